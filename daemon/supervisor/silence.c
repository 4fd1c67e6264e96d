/* silence: detects ranks that give no sign of life for too long, and ends the attempt for the one
 * to blame. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/supervisor/supervisor.h"

enum {
    STOPPED_REPORTED_MS = 10 * 1000,
    STOPPED_ENDS_MS = 60 * 1000,
    KEEP_EVERY_MS = 5 * 60 * 1000,
    STARVED_CHECK_MIN_MS = 250, /* ms between two samples of a silent rank's threads */
    STARVED_CHECK_MAX_MS = 5 * 1000,
    /* ms after a sample for which the waits of a starved rank's peers have no limit; longer than
     * the time between samples */
    PATIENCE_MS = 30 * 1000,
};

/* ---- saved limits ---- */

/* Returns the path JOBS_DIR/JOB/silences; false: the attempt's folder has no parent. */
static bool limits_path(const struct sup *sup, char ret_path[PATH_MAX])
{
    const char *slash = strrchr(sup->job.attempt_dir, '/');

    return slash && snprintf(ret_path, PATH_MAX, "%.*s/silences",
                             (int)(slash - sup->job.attempt_dir), sup->job.attempt_dir) < PATH_MAX;
}

void sup_read_limits(struct sup *sup)
{
    char path[PATH_MAX];

    sup->limits_kept_ms = hd_clock_now_ms();
    if (limits_path(sup, path))
        sup_limits_read(&sup->limits, path);
}

void sup_keep_limits(struct sup *sup, int64_t now_ms, bool at_end)
{
    bool has_rank_0 = false;
    char path[PATH_MAX];

    for (int i = 0; i < sup->options.rank_count; i++)
        has_rank_0 |= sup->ranks[i].rank == 0;
    if (!has_rank_0 || !limits_path(sup, path) ||
        (!at_end && now_ms - sup->limits_kept_ms < KEEP_EVERY_MS))
        return;
    sup->limits_kept_ms = now_ms;
    /* on failure the next attempt learns the limits anew */
    if (sup_limits_write(&sup->limits, path))
        hd_log(HD_LOG_INFO, "the learned silences are not saved: %s", hd_err_message());
}

/* ---- ranks that get no CPU ---- */

static int64_t check_every_ms(const struct sup *sup, const struct sup_rank *rank)
{
    const int64_t every_ms = sup_limits_of(&sup->limits, rank->phase).reported_ms / 8;

    return every_ms < STARVED_CHECK_MIN_MS   ? STARVED_CHECK_MIN_MS
           : every_ms > STARVED_CHECK_MAX_MS ? STARVED_CHECK_MAX_MS
                                             : every_ms;
}

void sup_check_starved(struct sup *sup, int64_t now_ms)
{
    struct hd_starve_thread threads[HD_STARVE_THREADS_MAX];

    for (int i = 0; i < sup->options.rank_count; i++) {
        struct sup_rank *rank = &sup->ranks[i];
        const bool is_known =
            rank->starve.begin_ms && rank->starve.received_ms == rank->received_ms;
        const int64_t before_ms = is_known ? rank->starve.seen_ms : rank->received_ms;

        if (rank->pid && now_ms - before_ms >= check_every_ms(sup, rank))
            hd_starve_note(&rank->starve, rank->received_ms, threads,
                           hd_starve_sample(rank->pid, threads), now_ms);
        if (sup_is_starved(sup, rank, now_ms))
            hd_shm_control_be_patient(sup->shm, now_ms + PATIENCE_MS);
    }
}

/* Returns the first rank that would be reported as hanging if it did not wait for a CPU; NULL:
 * none. */
static struct sup_rank *find_starved(struct sup *sup, int64_t now_ms)
{
    for (int i = 0; i < sup->options.rank_count; i++) {
        struct sup_rank *rank = &sup->ranks[i];

        if (sup_is_starved(sup, rank, now_ms) &&
            now_ms - rank->received_ms >= sup_limits_of(&sup->limits, rank->phase).reported_ms)
            return rank;
    }
    return NULL;
}

/* Reports a starved rank, once; nothing while a hang is reported, which is more important. */
static void report_starved(struct sup *sup, int64_t now_ms)
{
    struct sup_rank *rank = find_starved(sup, now_ms);
    char text[HD_LINK_TEXT_MAX];

    if (sup->hanging >= 0 || (rank && rank->rank == sup->starving))
        return;
    if (rank) {
        (void)snprintf(text, sizeof text,
                       "rank %" PRId64 " gets no processor: in %" PRId64 " of the %" PRId64
                       " s since its last sign of life it was ready to run and waited; it does "
                       "not count as hanging. Look which other programs use the processors of "
                       "node %s",
                       rank->rank, hd_starve_ms(&rank->starve, rank->received_ms) / 1000,
                       (now_ms - rank->received_ms) / 1000, sup->options.node);
        sup_set_hang(sup, text);
    } else if (sup->starving >= 0) {
        sup_set_hang(sup, "");
    }
    sup->starving = rank ? rank->rank : -1;
}

/* ---- hangs ---- */

static void report_over(struct sup *sup)
{
    char text[128];

    if (sup->hanging < 0)
        return;
    (void)snprintf(text, sizeof text,
                   "rank %" PRId64 " gives signs of life again; the hang is over", sup->hanging);
    sup_report_event(sup, &sup->ranks[0], sup->hanging, HD_LINK_LEVEL_HANG, text);
    sup->hanging = -1;
    sup_set_hang(sup, "");
}

/* Reports a hang, once per rank to blame. */
static void report_hang(struct sup *sup, struct sup_rank *silent, int64_t now_ms)
{
    struct sup_blame blame;
    int64_t rank;

    if (sup->hanging >= 0)
        return;
    sup_find_blame(sup, silent, now_ms, &blame);
    if (blame.finding == SUP_FOUND_ALIVE)
        return;
    rank = blame.here ? blame.here->rank : blame.rank >= 0 ? blame.rank : silent->rank;
    sup->hanging = rank;
    sup->starving = -1;
    sup_report_event(sup, blame.here ? blame.here : silent, rank, HD_LINK_LEVEL_HANG, blame.text);
    sup_set_hang(sup, blame.text);
}

static void end_hang(struct sup *sup, struct sup_rank *silent, int64_t ends_ms, int64_t now_ms)
{
    struct sup_blame blame;

    sup_find_blame(sup, silent, now_ms, &blame);
    if (blame.here) {
        sup_begin_end(sup, HD_LINK_CAUSE_HANG, blame.here->rank, false, "%s", blame.text);
        return;
    }
    if (blame.finding == SUP_FOUND_ALIVE || sup_silence_ms(silent, now_ms) < ends_ms + ends_ms / 2)
        return; /* reports nothing: the supervisor of the other node knows more about its rank */
    sup->secondary = true;
    sup->elsewhere = blame.rank;
    sup_begin_end(sup, HD_LINK_CAUSE_HANG, -1, false, "%s", blame.text);
}

void sup_check_hang(struct sup *sup, int64_t now_ms)
{
    struct sup_rank *silent;
    struct sup_limit limit;

    if (sup->ending)
        return;
    report_starved(sup, now_ms);
    silent = sup_find_silent(sup, now_ms);
    if (!silent) {
        report_over(sup);
        return;
    }
    limit = sup_limits_of(&sup->limits, silent->phase);
    if (sup_silence_ms(silent, now_ms) >= limit.ends_ms)
        end_hang(sup, silent, limit.ends_ms, now_ms);
    else
        report_hang(sup, silent, now_ms);
}

/* ---- stopped ranks ---- */

/* Returns how long a rank may stay stopped, from when it was first seen stopped; the limit of its
 * phase if that is shorter. */
static int64_t stopped_limit_ms(const struct sup *sup, const struct sup_rank *rank)
{
    const int64_t hang_ms = sup_limits_of(&sup->limits, rank->phase).ends_ms;

    return hang_ms < STOPPED_ENDS_MS ? hang_ms : STOPPED_ENDS_MS;
}

/* Handles ranks that a signal has stopped, in any phase: such a rank does nothing, however long its
 * phase may take. */
void sup_check_stopped(struct sup *sup, int64_t now_ms)
{
    char text[HD_LINK_TEXT_MAX] = "";

    for (int i = 0; i < sup->options.rank_count && !sup->ending; i++) {
        struct sup_rank *rank = &sup->ranks[i];

        if (now_ms - rank->received_ms < STOPPED_REPORTED_MS || !sup_is_stopped(rank))
            rank->stopped_ms = 0;
        else if (!rank->stopped_ms)
            rank->stopped_ms = now_ms;
        if (!rank->stopped_ms)
            continue;
        if (now_ms - rank->stopped_ms >= STOPPED_ENDS_MS && !sup->limits.reports_only)
            sup_begin_end(sup, HD_LINK_CAUSE_HANG, rank->rank, false,
                          "rank %" PRId64 " was stopped by a signal (SIGSTOP) for %" PRId64
                          " s while %s",
                          rank->rank, (now_ms - rank->stopped_ms) / 1000, sup_phase_text(rank));
        (void)snprintf(text, sizeof text,
                       "rank %" PRId64 " (process %d) is stopped by a signal; kill -CONT %d lets "
                       "it go on",
                       rank->rank, (int)rank->pid, (int)rank->pid);
        if (!sup->limits.reports_only)
            (void)snprintf(text + strlen(text), sizeof text - strlen(text),
                           ", and after %lld s it is ended",
                           (long long)stopped_limit_ms(sup, rank) / 1000);
    }
    sup_set_stopped(sup, text);
}

/* Restarts the silence of every rank: after the machine slept, or this supervisor was stopped, it
 * does not know how long the ranks were silent. */
void sup_forgive_silence(struct sup *sup, int64_t now_ms)
{
    for (int i = 0; i < sup->options.rank_count; i++)
        sup->ranks[i].received_ms = now_ms;
}
