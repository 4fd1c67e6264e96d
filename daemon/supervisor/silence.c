/* Silence: a rank that gives no sign of life for too long hangs, and one is to blame. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/supervisor/supervisor.h"

/* Longest silence of a rank. While training it is learned: 8 times the longest so far, at least
 * TRAINING_SILENCE_MS, once LEARNED_COUNT reports have come. */
enum {
    UNLEARNED_SILENCE_MS = 30 * 60 * 1000,
    TRAINING_SILENCE_MS = 60 * 1000,
    STOPPED_TOLD_MS = 10 * 1000,
    SILENCE_FACTOR = 8,
    LEARNED_COUNT = 16,
};

static int64_t silence_limit_ms(const struct sup *sup, const struct sup_rank *rank)
{
    int64_t learned_ms;

    if (sup->options.hang_limit_ms)
        return sup->options.hang_limit_ms;
    if (rank->phase != HD_LINK_PHASE_TRAINING || rank->heard_count < LEARNED_COUNT)
        return UNLEARNED_SILENCE_MS;
    learned_ms = SILENCE_FACTOR * rank->longest_silence_ms;
    return learned_ms > TRAINING_SILENCE_MS ? learned_ms : TRAINING_SILENCE_MS;
}

/* How far a rank has come: its first collective that is not complete, and how far that is. */
static uint64_t progress_of(const struct sup *sup, const struct sup_rank *rank)
{
    struct hd_flight_record record;

    if (!sup_find_flight(sup, rank, &record))
        return 0;
    return record.launch * (HD_FLIGHT_COMPLETE + 1) + (uint64_t)record.state;
}

/* When one rank stops, its peers wait for it and fall silent, too: those count whose silence is at
 * least half of the longest. */
static bool is_silent_too(const struct sup_rank *rank, const struct sup_rank *silent,
                          int64_t now_ms)
{
    return rank->pid && now_ms - rank->heard_ms >= (now_ms - silent->heard_ms) / 2;
}

/* The rank to blame is the one whose collectives are behind, for which the others wait; of several,
 * the one that was silent first. */
static const struct sup_rank *find_behind(const struct sup *sup, const struct sup_rank *silent,
                                          int64_t now_ms)
{
    const struct sup_rank *blamed = silent;

    for (int i = 0; i < sup->options.rank_count; i++)
        if (is_silent_too(&sup->ranks[i], silent, now_ms) &&
            progress_of(sup, &sup->ranks[i]) < progress_of(sup, blamed))
            blamed = &sup->ranks[i];
    return blamed;
}

/* With ranks on other nodes (gloo) collectives are not counted, and those of pipeline stages cannot
 * be counted against one another. A rank that waits for peers sleeps, so the rank to blame is one
 * that does not: it computes, or is stopped. NULL: all sleep. The search ends at the first busy
 * rank, because sup_is_busy blocks. */
static const struct sup_rank *find_busy(const struct sup *sup, const struct sup_rank *silent,
                                        int64_t now_ms)
{
    if (sup_is_busy(silent))
        return silent;
    for (int i = 0; i < sup->options.rank_count; i++)
        if (&sup->ranks[i] != silent && is_silent_too(&sup->ranks[i], silent, now_ms) &&
            sup_is_busy(&sup->ranks[i]))
            return &sup->ranks[i];
    return NULL;
}

static const struct sup_rank *find_blamed(const struct sup *sup, const struct sup_rank *silent,
                                          int64_t now_ms)
{
    const bool are_stages = sup->job.pp > 1; /* which launch different numbers of operations */
    const struct sup_rank *busy;

    if (!sup_spans(sup) && !are_stages)
        return find_behind(sup, silent, now_ms);
    busy = find_busy(sup, silent, now_ms);
    return busy || sup_spans(sup) ? busy : find_behind(sup, silent, now_ms);
}

void sup_look_for_hang(struct sup *sup, int64_t now_ms)
{
    const struct sup_rank *silent = NULL, *blamed;
    char flight[SUP_FLIGHT_MAX];

    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].pid && (!silent || sup->ranks[i].heard_ms < silent->heard_ms))
            silent = &sup->ranks[i];
    if (!silent || sup->ending || now_ms - silent->heard_ms < silence_limit_ms(sup, silent))
        return;
    blamed = find_blamed(sup, silent, now_ms);
    if (!blamed) { /* they may wait for a rank of another node */
        sup->echo = true;
        sup_begin_end(sup, HD_LINK_CAUSE_HANG, -1, false,
                      "no rank here gave a sign of life for %" PRId64 " s while %s",
                      (now_ms - silent->heard_ms) / 1000, hd_link_phase_name(silent->phase));
        return;
    }
    sup_describe_flight(sup, blamed, flight);
    sup_begin_end(sup, HD_LINK_CAUSE_HANG, blamed->rank, false,
                  "rank %" PRId64 " gave no sign of life for %" PRId64 " s while %s%s",
                  blamed->rank, (now_ms - blamed->heard_ms) / 1000,
                  hd_link_phase_name(blamed->phase), flight);
}

/* In any phase: a rank that is stopped by a signal does nothing, however long its phase may take.
 */
void sup_look_for_stopped(struct sup *sup, int64_t now_ms)
{
    char text[HD_LINK_TEXT_MAX] = "";

    for (int i = 0; i < sup->options.rank_count && !sup->ending; i++) {
        struct sup_rank *rank = &sup->ranks[i];

        if (now_ms - rank->heard_ms < STOPPED_TOLD_MS || !sup_is_stopped(rank))
            rank->stopped_ms = 0;
        else if (!rank->stopped_ms)
            rank->stopped_ms = now_ms;
        if (!rank->stopped_ms)
            continue;
        if (now_ms - rank->stopped_ms >= TRAINING_SILENCE_MS)
            sup_begin_end(
                sup, HD_LINK_CAUSE_HANG, rank->rank, false,
                "rank %" PRId64 " was stopped by a signal (SIGSTOP) for %" PRId64 " s while %s",
                rank->rank, (now_ms - rank->stopped_ms) / 1000, hd_link_phase_name(rank->phase));
        (void)snprintf(text, sizeof text,
                       "rank %" PRId64 " (process %d) is stopped by a signal; kill -CONT %d lets "
                       "it go on, and after %d s it is ended",
                       rank->rank, (int)rank->pid, (int)rank->pid, TRAINING_SILENCE_MS / 1000);
    }
    sup_set_stopped(sup, text);
}

/* A machine that slept, or a supervisor that was stopped, knows nothing of the ranks' silence. */
void sup_forgive_silence(struct sup *sup, int64_t now_ms)
{
    for (int i = 0; i < sup->options.rank_count; i++)
        sup->ranks[i].heard_ms = now_ms;
}
