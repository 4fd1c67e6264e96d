/* end: ends an attempt: a stop, the sequence of signals, the rank to blame, and the record
 * `end`. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "daemon/supervisor/supervisor.h"

/* ---- ending the ranks ---- */

void sup_ask_stop(struct sup *sup, int64_t grace_ms)
{
    if (!sup->stop_asked)
        hd_log(HD_LOG_INFO, "stopping: the ranks write a checkpoint and end");
    sup->stop_asked = true;
    if (grace_ms > 0 && !sup->stop_deadline_ms)
        sup->stop_deadline_ms = hd_clock_now_ms() + grace_ms;
    sup->state = HD_ALLOC_STOPPING;
    for (int i = 0; i < sup->options.rank_count; i++)
        sup_command(&sup->ranks[i], HD_LINK_MSG_STOP);
    sup_send_state(sup);
}

void sup_begin_end(struct sup *sup, enum hd_link_cause cause, int64_t blamed, bool at_once,
                   const char *fmt, ...)
{
    const int64_t now_ms = hd_clock_now_ms();
    va_list ap;

    if (at_once && (!sup->ending || sup->term_at_ms > now_ms)) {
        sup->term_at_ms = now_ms;
        sup->kill_at_ms = now_ms + HD_SUP_TERM_MS;
    }
    if (sup->ending)
        return;
    sup->ending = true;
    sup->cause = cause;
    sup->blamed = blamed;
    va_start(ap, fmt);
    (void)vsnprintf(sup->reason, sizeof sup->reason, fmt, ap);
    va_end(ap);
    if (!at_once) {
        sup->term_at_ms = now_ms + HD_SUP_LEAVE_MS;
        sup->kill_at_ms = sup->term_at_ms + HD_SUP_TERM_MS;
    }
    sup->give_up_at_ms = sup->kill_at_ms + HD_SUP_GONE_MS;
    sup->state = HD_ALLOC_STOPPING;
    hd_log(HD_LOG_WARN, "ending all ranks: %s", sup->reason);
    /* on the exit of a rank, that rank was already marked dead, with its reason */
    if (cause != HD_LINK_CAUSE_RANK_EXIT)
        hd_shm_control_abort(sup->shm, sup->reason);
    sup_send_state(sup);
}

static void signal_ranks(struct sup *sup, int signal)
{
    for (int i = 0; i < sup->options.rank_count; i++) {
        if (!sup->ranks[i].pid)
            continue;
        (void)kill(sup->ranks[i].pid, signal);
        sup->ranks[i].is_ending = true;
    }
}

static enum hd_link_cause stop_cause(const struct sup *sup)
{
    return sup->shut_down ? HD_LINK_CAUSE_NODE_LOST : HD_LINK_CAUSE_USER;
}

/* Sends the ranks each signal of the sequence SIGTERM, SIGKILL when its time has come. */
void sup_climb(struct sup *sup, int64_t now_ms)
{
    if (sup->stop_deadline_ms && now_ms >= sup->stop_deadline_ms)
        sup_begin_end(sup, stop_cause(sup), -1, true,
                      "the ranks did not stop within the grace period");
    if (!sup->ending)
        return;
    if (sup->term_at_ms && now_ms >= sup->term_at_ms) {
        signal_ranks(sup, SIGTERM);
        /* continues stopped ranks: a stopped process acts on no other signal */
        signal_ranks(sup, SIGCONT);
        sup->term_at_ms = 0;
    }
    if (now_ms >= sup->kill_at_ms)
        /* SIGKILL is repeated in each pass of the loop, which is harmless */
        signal_ranks(sup, SIGKILL);
}

/* ---- the rank to blame ---- */

/* Returns true if the rank failed only because other ranks did not answer or had given up. */
static bool only_secondary(const struct sup_rank *rank)
{
    return rank->has_failure &&
           (rank->failure.status == HD_ABORTED || rank->failure.status == HD_TIMEOUT);
}

/* Returns, for an attempt on several nodes, a rank here that failed by itself; NULL: none. */
static struct sup_rank *find_cause(struct sup *sup)
{
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].gone_bad && !sup->ranks[i].is_ending && !only_secondary(&sup->ranks[i]))
            return &sup->ranks[i];
    return NULL;
}

/* Returns the rank that failed first: the one recorded in shared memory, or the one that this rank
 * names as its cause. */
static struct sup_rank *find_blamed(struct sup *sup)
{
    char reason[HD_SHM_REASON_MAX];
    struct sup_rank *rank = NULL, *named;
    enum hd_status st;
    int index;

    if (sup->blamed >= 0)
        return sup_find_rank(sup, sup->blamed);
    if (sup_spans(sup))
        return find_cause(sup);
    if (hd_shm_control_failure(sup->shm, &index, &st, reason) && index >= 0 &&
        index < sup->options.rank_count)
        rank = &sup->ranks[index];
    for (int i = 0; !rank && i < sup->options.rank_count; i++)
        if (sup->ranks[i].gone_bad)
            rank = &sup->ranks[i];
    named = rank && rank->has_failure ? sup_find_rank(sup, rank->failure.first_rank) : NULL;
    return named && named->gone_bad ? named : rank;
}

static bool is_bad_input(const struct sup_rank *rank)
{
    return (rank->exited && rank->code == HD_LINK_EXIT_BAD_INPUT) ||
           (rank->has_failure &&
            (rank->failure.status == HD_INVALID || rank->failure.status == HD_DENIED ||
             rank->failure.status == HD_UNSUPPORTED));
}

/* Returns the cause of an end for which no rank failed and none was ended: completed, or that of
 * the stop. */
static enum hd_link_cause quiet_cause(const struct sup *sup)
{
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].code == HD_LINK_EXIT_STOPPED)
            return stop_cause(sup);
    return HD_LINK_CAUSE_COMPLETED;
}

/* Returns the message of the first rank here that only reports a failure elsewhere. */
static const char *secondary_message(const struct sup *sup)
{
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].gone_bad && only_secondary(&sup->ranks[i]))
            return sup->ranks[i].failure.message;
    return sup->reason;
}

/* ---- the record ---- */

/* Returns a rank here that ended before the last step, as validate.stop says; NULL: none. */
static const struct sup_rank *find_early(const struct sup *sup)
{
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].exited && sup->ranks[i].code == HD_LINK_EXIT_EARLY)
            return &sup->ranks[i];
    return NULL;
}

static const char *quiet_message(const struct sup *sup, char *text, size_t size_bytes)
{
    const bool asked = quiet_cause(sup) == HD_LINK_CAUSE_USER;
    struct hd_text line = {0};

    if (quiet_cause(sup) == HD_LINK_CAUSE_COMPLETED)
        return find_early(sup) ? find_early(sup)->failure.message : sup->reason;
    if (!asked)
        hd_text_add(&line, "node %s ended its supervisor, ", sup->options.node);
    if (sup->problem[0])
        hd_text_add(&line, "%swithout a checkpoint: %.900s", asked ? "stopped as requested, " : "",
                    sup->problem);
    else
        hd_text_add(&line,
                    asked ? "stopped after a checkpoint, as requested" : "after a checkpoint");
    (void)snprintf(text, size_bytes, "%s", line.failed ? sup->reason : line.data);
    hd_text_free(&line);
    return text;
}

/* Returns the cause of an end for which `blamed` is blamed; the rank's exit status may say more
 * than that it failed. */
static enum hd_link_cause cause_of(const struct sup_rank *blamed)
{
    switch (blamed->code) {
    case HD_LINK_EXIT_DIVERGED:
        return HD_LINK_CAUSE_DIVERGED;
    case HD_LINK_EXIT_STORAGE:
        return HD_LINK_CAUSE_STORAGE;
    default:
        return HD_LINK_CAUSE_RANK_EXIT;
    }
}

void sup_describe_end(struct sup *sup, int left, struct hd_link_report *ret_end)
{
    struct hd_link_report report = {.kind = HD_LINK_END, .rank = -1};
    struct hd_link_end *end = &report.end;
    const struct sup_rank *blamed = NULL;
    const char *message = sup->reason;
    char text[HD_LINK_TEXT_MAX];

    if (!sup->ending)
        message = quiet_message(sup, text, sizeof text);
    report.job = sup->job.job_id;
    report.attempt = sup->job.attempt;
    report.wall_ms = hd_clock_wall_ms();
    end->cause = sup->ending ? sup->cause : quiet_cause(sup);
    if (end->cause == HD_LINK_CAUSE_RANK_EXIT || sup->blamed >= 0)
        blamed = find_blamed(sup);
    end->first_rank = blamed ? blamed->rank : sup->elsewhere;
    end->secondary =
        sup->secondary || (end->cause == HD_LINK_CAUSE_RANK_EXIT && !blamed && sup_spans(sup));
    if (end->secondary && end->cause == HD_LINK_CAUSE_RANK_EXIT)
        message = secondary_message(sup);
    if (blamed) {
        end->code = blamed->code;
        end->signal = blamed->signal;
        end->bad_input = is_bad_input(blamed);
        (void)snprintf(end->operation, sizeof end->operation, "%s", blamed->failure.operation);
        if (end->cause == HD_LINK_CAUSE_RANK_EXIT && blamed->exit_text[0])
            message = blamed->exit_text;
        if (end->cause == HD_LINK_CAUSE_RANK_EXIT)
            end->cause = cause_of(blamed);
    }
    if (end->cause == HD_LINK_CAUSE_COMPLETED && find_early(sup))
        end->code = HD_LINK_EXIT_EARLY;
    (void)snprintf(end->message, sizeof end->message, "%s", message);
    if (left) {
        const size_t n = strlen(end->message);

        (void)snprintf(end->message + n, sizeof end->message - n,
                       "; %d processes could not be killed", left);
    }
    *ret_end = report;
}

enum hd_status sup_write_end(struct sup *sup, const struct hd_link_report *end)
{
    enum hd_status st = sup_retry_held(sup);

    if (!st)
        st = hd_attempt_write_end(sup->options.run_dir, end);
    if (st)
        return st;
    sup->state = HD_ALLOC_ENDED;
    hd_log(HD_LOG_INFO, "ended: %s %s", hd_link_cause_name((enum hd_link_cause)end->end.cause),
           end->end.message);
    sup_send_state(sup);
    return HD_OK;
}
