/* rank_check: handles steps that change no weight, and losses that do not fall. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "worker/rank_internal.h"

/* steps in a row without an update of the weights, after which the run ends */
enum { SKIPS_MAX = 20 };

/* Returns true if a gradient overflowed; false for steps that were skipped for another reason: no
 * targets, too many expert rows, a spike. */
static bool is_overflow(const struct hd_step_result *s)
{
    return s->skipped && !s->too_many_rows && s->targets && !s->spiked;
}

static const char *why_skipped(const struct hd_step_result *s)
{
    if (s->too_many_rows)
        return "routers sent more rows to the experts of a rank than parallel.expert_rows allows; "
               "raise it, or set it to auto";
    return is_overflow(s) ? "a gradient was not finite; lower train.lr or look at the data"
                          : "no token has a target";
}

/* Writes ": the gradient of TENSOR is NaN on rank 2", or "". Collective: all ranks call it. */
static enum hd_status name_gradient(struct rank *r, char ret_text[HD_NONFINITE_TEXT + 32])
{
    char found[HD_NONFINITE_TEXT];
    const enum hd_status st = hd_trainer_find_nonfinite(r->trainer, found);

    (void)snprintf(ret_text, HD_NONFINITE_TEXT + 32, "%s%s", *found ? ": the gradient of " : "",
                   found);
    return st;
}

/* Handles an overflow with fp16. It is normal while the loss scale is being found; with the scale
 * at its floor the run ends. */
static enum hd_status check_scale(struct rank *r, const struct hd_step_result *s)
{
    char text[160], gradient[HD_NONFINITE_TEXT + 32];
    enum hd_status st;

    if (s->rescaled) {
        r->overflows++;
        (void)snprintf(text, sizeof text,
                       "step %lld: gradients overflowed fp16; no weight was changed by this step, "
                       "and the loss scale is halved to %lld",
                       (long long)s->step, (long long)s->loss_scale / 2);
        rank_say(r, HD_LINK_LEVEL_INFO, text);
        return HD_OK;
    }
    st = name_gradient(r, gradient);
    if (st)
        return st;
    if (r->finite && r->job.loss_scale_floor > 1)
        return hd_err(HD_INVALID,
                      "step %lld: gradients overflow fp16 with the loss scale at %lld, and "
                      "train.loss_scale.floor = %lld allows no lower one%s; lower the floor",
                      (long long)s->step, (long long)s->loss_scale,
                      (long long)r->job.loss_scale_floor, gradient);
    r->diverged = true;
    return hd_err(HD_INTERNAL,
                  "step %lld: gradients overflow fp16 even with the loss scale at its floor of "
                  "%lld%s; lower train.lr, look at the data, or take bf16",
                  (long long)s->step, (long long)s->loss_scale, gradient);
}

enum hd_status rank_check_skip(struct rank *r, const struct hd_step_result *s)
{
    char text[256 + HD_NONFINITE_TEXT], gradient[HD_NONFINITE_TEXT + 32] = "";
    enum hd_status st = HD_OK;

    r->finite = isfinite(s->loss) || !s->targets;
    r->improved |= !is_overflow(s);
    if (is_overflow(s) && s->loss_scale)
        return check_scale(r, s);
    r->skips = s->skipped && !s->spiked ? r->skips + 1 : 0;
    r->overflows = is_overflow(s) ? r->overflows + 1 : 0;
    if (!s->skipped || s->spiked) /* rank_check_spike reports a spike */
        return HD_OK;
    r->diverged = r->skips >= SKIPS_MAX && is_overflow(s);
    if (r->overflows == 1 || r->diverged)
        st = name_gradient(r, gradient);
    if (st)
        return st;
    if (r->skips >= SKIPS_MAX)
        return hd_err(HD_INTERNAL, "step %lld: no weight was changed in %d steps in a row: %s%s",
                      (long long)s->step, SKIPS_MAX, why_skipped(s), gradient);
    (void)snprintf(text, sizeof text, "step %lld: %s; no weight was changed by this step%s",
                   (long long)s->step, why_skipped(s), gradient);
    rank_say(r, HD_LINK_LEVEL_WARN, text);
    return HD_OK;
}

void rank_check_trend(struct rank *r, const struct hd_step_result *s)
{
    char text[320];
    bool stuck;

    if (!s->targets || s->too_many_rows)
        return;
    hd_trend_add(&r->trend, s->step, s->loss, s->grad_norm);
    stuck = hd_trend_is_stuck(&r->trend, r->job.vocab);
    if (stuck && !r->said_stuck) {
        (void)snprintf(text, sizeof text,
                       "step %lld: the loss has been %.4f for %d steps, with a gradient norm of "
                       "%.3g: the model is not learning (its lowest loss was %.4f at step %lld); a "
                       "lower train.lr, or train.clip, may prevent this",
                       (long long)s->step, s->loss, HD_TREND_STEPS, s->grad_norm, r->trend.lowest,
                       (long long)r->trend.lowest_step);
        rank_say(r, HD_LINK_LEVEL_WARN, text);
    }
    r->said_stuck = stuck;
}

void rank_check_trend_at_end(struct rank *r)
{
    char text[320];

    if (!hd_trend_is_stuck(&r->trend, r->job.vocab) && !hd_trend_is_lost(&r->trend, r->job.vocab))
        return;
    (void)snprintf(
        text, sizeof text,
        "the loss ended at %.4f, its lowest was %.4f at step %lld; a model that guesses at random "
        "has %.4f: the last weights are probably of no use; lower train.lr, or "
        "set train.clip",
        r->trend.last, r->trend.lowest, (long long)r->trend.lowest_step, log((double)r->job.vocab));
    rank_say(r, HD_LINK_LEVEL_WARN, text);
}

/* Handles a run whose last steps overflowed fp16: a warning if some step changed the weights; if
 * none did, an error, because the run has trained nothing. */
static enum hd_status check_scale_at_end(struct rank *r)
{
    const int64_t updates = hd_trainer_updates_done(r->trainer);
    char text[160];

    if (!updates)
        return hd_err(HD_INVALID,
                      "no step changed a weight: their gradients overflowed fp16 while the loss "
                      "scale was lowered; lower train.loss_scale.initial (now %lld), or train more "
                      "steps",
                      (long long)r->job.loss_scale_initial);
    (void)snprintf(
        text, sizeof text,
        "the last %lld steps changed no weight, as their gradients overflowed fp16; %lld "
        "of all steps did",
        (long long)r->overflows, (long long)updates);
    rank_say(r, HD_LINK_LEVEL_WARN, text);
    r->overflows = 0; /* set to 0, so that the overflows are reported once */
    return HD_OK;
}

enum hd_status rank_check_end(struct rank *r)
{
    const int64_t step = hd_trainer_steps_done(r->trainer);

    if (r->stopped || (r->finite && !r->overflows))
        return HD_OK;
    if (r->finite && r->job.precision == HD_JOB_PRECISION_FP16)
        return check_scale_at_end(r);
    r->diverged = true;
    return hd_err(HD_INTERNAL,
                  "step %lld, the last one: the %s not finite; lower train.lr or look at the data",
                  (long long)step, r->finite ? "gradients of the last steps are" : "loss is");
}
