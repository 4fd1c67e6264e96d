#include "worker/storage.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"

enum {
    RETRY_MIN_MS = 1000,      /* ms between the first two tries; doubles with each try */
    RETRY_MAX_MS = 15 * 1000, /* largest pause between two tries, ms */
    HEAR_MS = 100,
    /* ms until a problem whose numbers have changed is reported again */
    REPORT_AGAIN_MS = 60 * 1000,
};

bool storage_report(struct storage *s, const char *what, const char *why)
{
    const int64_t now_ms = hd_clock_now_ms();
    char text[HD_LINK_TEXT_MAX] = "";

    if (what == s->problem && (!what || now_ms - s->problem_ms < REPORT_AGAIN_MS))
        return false;
    if (what)
        (void)snprintf(text, sizeof text, "%s: %.900s", what, why);
    s->problem = what;
    s->problem_ms = now_ms;
    if (s->rank == 0)
        hd_link_report_problem(s->link, text);
    return true;
}

/* Waits until the next try to write, or until any rank was told to stop. Reports to the supervisor
 * meanwhile that the rank is alive. */
static enum hd_status pause_ranks(struct storage *s, int64_t pause_ms, bool *ret_stopped)
{
    const int64_t end_ms = hd_clock_now_ms() + pause_ms;
    int64_t said_ms = -RETRY_MIN_MS, stops;
    bool stop = s->hear_stop(s->user);
    enum hd_status st;

    for (int64_t now_ms; !stop && (now_ms = hd_clock_now_ms()) < end_ms;) {
        if (now_ms - said_ms >= RETRY_MIN_MS) {
            said_ms = now_ms;
            hd_link_report_phase(s->link, HD_LINK_PHASE_CHECKPOINTING,
                                 hd_trainer_steps_done(s->trainer));
        }
        (void)usleep(HEAR_MS * 1000);
        stop = s->hear_stop(s->user);
    }
    st = hd_trainer_agree(s->trainer, stop, &stops);
    *ret_stopped = !st && stops;
    return st;
}

enum hd_status storage_until_done(struct storage *s, storage_act_fn *act, const char *what,
                                  const char *left, bool *stopped, bool *ret_left,
                                  int64_t *ret_waited_ms)
{
    const int64_t begin_ms = hd_clock_now_ms();
    int64_t pause_ms = RETRY_MIN_MS;
    char why[HD_LINK_TEXT_MAX];
    enum hd_status st;

    *ret_left = false;
    *ret_waited_ms = -1;
    while ((st = act(s->user)) == HD_STORAGE) {
        (void)snprintf(why, sizeof why, "%.900s", hd_err_message());
        if (!*stopped && storage_report(s, what, why))
            hd_log(HD_LOG_WARN, "%s: %s", what, why);
        st = *stopped ? HD_OK : pause_ranks(s, pause_ms, stopped);
        *ret_left = !st && *stopped;
        if (*ret_left && storage_report(s, left, why))
            hd_log(HD_LOG_WARN, "%s: %s", left, why);
        if (st || *ret_left)
            return st;
        *ret_waited_ms = hd_clock_now_ms() - begin_ms;
        pause_ms = 2 * pause_ms < RETRY_MAX_MS ? 2 * pause_ms : RETRY_MAX_MS;
    }
    if (!st)
        (void)storage_report(s, NULL, NULL);
    return st;
}

void storage_clean_up(const char *attempt_dir, int64_t attempt)
{
    const char *slash = strrchr(attempt_dir, '/');
    struct hd_text dir = {0};

    hd_text_add(&dir, "%.*s", slash ? (int)(slash - attempt_dir) : 0, attempt_dir);
    if (slash && !dir.failed && hd_ckpt_clean_before(dir.data, attempt))
        hd_log(HD_LOG_WARN, "%s", hd_err_message());
    hd_text_free(&dir);
}
