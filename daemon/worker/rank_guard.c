/* rank_guard: acts on a step that was a spike (train.guard). All ranks do the same, because they
 * all have the same results of the step. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "worker/rank_internal.h"

enum rank_guard_limits {
    /* spikes in a row after which the run ends: the losses will not return to their earlier
     * level */
    SPIKES_MAX = 20,
    GOES_BACK_MAX = 3, /* most rollbacks to the same checkpoint; at the next spike the run ends */
    TEXT_MAX = 512,
};

/* Writes "step 812 is a spike: its loss of 9.2134 is above 4.0121, which is 6 standard deviations
 * above the mean of the last 200 steps that were none". */
static void describe_spike(const struct rank *r, const struct hd_step_result *s,
                           char ret_text[TEXT_MAX])
{
    const bool by_loss = s->loss_limit > 0 && s->loss > s->loss_limit;

    (void)snprintf(ret_text, TEXT_MAX,
                   "step %lld is a spike: its %s of %.6g is above %.6g, which is %.4g standard "
                   "deviations above the mean of the last %d steps that were none",
                   (long long)s->step, by_loss ? "loss" : "gradient norm",
                   by_loss ? s->loss : s->grad_norm, by_loss ? s->loss_limit : s->norm_limit,
                   r->job.guard_spike, HD_GUARD_STEPS);
}

static void say(struct rank *r, const char *spike, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void say(struct rank *r, const char *spike, const char *fmt, ...)
{
    char text[HD_LINK_TEXT_MAX];
    size_t n = (size_t)snprintf(text, sizeof text, "%s; ", spike);
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text + n, sizeof text - n, fmt, ap);
    va_end(ap);
    rank_say(r, HD_LINK_LEVEL_GUARD, text);
}

static enum hd_status give_up(struct rank *r, const char *spike, const char *why)
{
    r->diverged = true;
    return hd_err(HD_INTERNAL, "%s; %s", spike, why);
}

/* Ends the run after a spike. The weights are those before the spike, so a checkpoint is written
 * first. */
static enum hd_status stop(struct rank *r, const char *spike)
{
    enum hd_status st;

    say(r, spike, "no weight was changed by it; the run ends, as train.guard.action says");
    st = rank_save(r, true);
    return st || r->unsaved
               ? st
               : give_up(r, spike,
                         "the last checkpoint is of the weights before it; " HD_JOB_GUARD_STOPS);
}

/* Finds the checkpoint to roll back to: the newest of this attempt, or the one that it started
 * from. Returns false if there is none. */
static bool find_checkpoint(const struct rank *r, const char **ret_dir, const char **ret_hash)
{
    *ret_dir = r->saved.path[0] ? r->saved.path : r->job.base_checkpoint;
    *ret_hash = r->saved.path[0] ? r->saved.hash : r->job.base_manifest_hash;
    return (*ret_dir)[0] != '\0';
}

static enum hd_status go_back(struct rank *r, const struct hd_step_result *s, const char *spike)
{
    const int64_t skipped = hd_trainer_data_skipped(r->trainer);
    const char *dir, *hash;
    enum hd_status st = HD_OK;

    if (hd_trainer_is_saving(r->trainer))
        st = rank_end_save(r);
    if (st)
        return st;
    if (!find_checkpoint(r, &dir, &hash)) {
        say(r, spike, "no weight was changed by it; there is no checkpoint yet to go back to");
        return HD_OK;
    }
    if (r->went_back >= GOES_BACK_MAX)
        return give_up(r, spike,
                       "training went back three times to the checkpoint before it, and "
                       "each time a spike came; lower train.lr or look at the data");
    r->went_back++;
    hd_link_report_phase(r->link, HD_LINK_PHASE_CHECKPOINTING, s->step);
    st = hd_trainer_go_back(r->trainer, dir, hash);
    if (st)
        return hd_err_prefix(st, "cannot go back to the checkpoint before the spike of step %lld",
                             (long long)s->step);
    r->saved_step = hd_trainer_steps_done(r->trainer);
    r->trend = (struct hd_trend){0};
    hd_link_report_phase(r->link, HD_LINK_PHASE_TRAINING, r->saved_step);
    say(r, spike,
        "training went back to the checkpoint of step %lld, and skips the %lld batches since then",
        (long long)r->saved_step, (long long)(hd_trainer_data_skipped(r->trainer) - skipped));
    return HD_OK;
}

enum hd_status rank_check_spike(struct rank *r, const struct hd_step_result *s, bool *ret_went_back)
{
    const enum hd_job_guard_action action = r->job.guard_action;
    char spike[TEXT_MAX];
    enum hd_status st = HD_OK;

    *ret_went_back = false;
    r->spikes = s->spiked ? r->spikes + 1 : 0;
    if (!s->spiked)
        return HD_OK;
    describe_spike(r, s, spike);
    if (r->spikes >= SPIKES_MAX)
        return give_up(
            r, spike,
            "the 19 steps before it were spikes, too: the losses do not fall again; lower "
            "train.lr, or raise train.guard.spike");
    if (action == HD_JOB_GUARD_ACTION_STOP)
        return stop(r, spike);
    if (action == HD_JOB_GUARD_ACTION_ROLLBACK && s->request != REQUEST_STOP) {
        st = go_back(r, s, spike);
        *ret_went_back = hd_trainer_steps_done(r->trainer) < s->step;
    } else {
        say(r, spike, "no weight was changed by it");
    }
    return st;
}
