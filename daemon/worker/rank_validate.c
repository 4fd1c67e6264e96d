/* rank_validate: validates on the sets of data.val, and reports their losses. */
#include <math.h>
#include <stdio.h>

#include "base/log.h"
#include "worker/rank_internal.h"

/* Adds the numbers of a set to TensorBoard: "validation/loss", of a set with a name
 * "validation/NAME/loss". */
static void show_set(struct rank *r, int64_t step, const char *name, double loss)
{
    const struct hd_pair_result pairs = hd_trainer_validated_pairs(r->trainer);
    const char *const words[] = {"loss", "margin", "accuracy", "reward"};
    const double values[] = {loss, pairs.margin, pairs.accuracy, pairs.reward};
    char tags[4][HD_JOB_WORD_MAX];
    struct hd_scalar scalars[4];

    for (int i = 0; i < 4; i++) {
        (void)snprintf(tags[i], sizeof tags[i], "validation/%s%s%s", name, *name ? "/" : "",
                       words[i]);
        scalars[i] = (struct hd_scalar){tags[i], values[i]};
    }
    rank_show(r, step, scalars, pairs.count ? 4 : 1);
}

/* Validates on one set. A loss that cannot be computed, for a reason that all ranks have, is an
 * event, and training continues. */
static enum hd_status validate_set(struct rank *r, int64_t set)
{
    const int64_t step = hd_trainer_steps_done(r->trainer);
    char name[HD_JOB_VAL_NAME_MAX], text[256];
    int64_t targets;
    double loss;
    enum hd_status st = hd_trainer_validate_set(r->trainer, set, &loss, &targets);

    hd_job_val_set_name(&r->job, set, name);
    if (st == HD_LIMIT) {
        (void)snprintf(text, sizeof text, "no validation at step %lld: %s", (long long)step,
                       hd_err_message());
        rank_say(r, HD_LINK_LEVEL_WARN, text);
        return HD_OK;
    }
    if (st)
        return *name ? hd_err_prefix(st, "data.val.%s", name) : st;
    if (set == hd_job_val_set_best(&r->job)) /* the first of a validation */
        r->finite = true;
    r->finite = r->finite && (isfinite(loss) || targets == 0);
    hd_log(HD_LOG_INFO, "step %lld: val_loss %.4f over %lld targets%s%s", (long long)step, loss,
           (long long)targets, *name ? " of " : "", name);
    if (r->rank == 0)
        hd_link_report_validation(r->link, step, loss, targets, name);
    show_set(r, step, name, loss);
    return HD_OK;
}

enum hd_status rank_validate(struct rank *r)
{
    const int64_t step = hd_trainer_steps_done(r->trainer), best = hd_job_val_set_best(&r->job);
    enum hd_status st;

    hd_link_report_phase(r->link, HD_LINK_PHASE_VALIDATING, step);
    st = validate_set(r, best);
    for (int64_t set = 0; !st && set < hd_trainer_validation_count(r->trainer); set++) {
        if (set == best)
            continue;
        hd_link_report_phase(r->link, HD_LINK_PHASE_VALIDATING, step);
        st = validate_set(r, set);
    }
    return st;
}
