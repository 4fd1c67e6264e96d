/* settings: the optimizer that a job names. */
#include <string.h>

#include "optim/optim.h"

static enum hd_rule rule_of(const struct hd_job *job)
{
    return hd_rule_named(hd_job_optimizer_words[job->optimizer]);
}

struct hd_optimizer hd_optimizer_of_job(const struct hd_job *job)
{
    const enum hd_rule rule = rule_of(job);

    if (!hd_rule_row(rule)->matrices)
        return (struct hd_optimizer){.matrices = rule, .others = rule};
    return (struct hd_optimizer){
        .matrices = rule,
        .others = HD_RULE_ADAMW,
        .momentum = (float)job->muon_momentum,
        .nesterov = job->muon_nesterov,
        .iterations = (int)job->muon_iterations,
        .scale = job->muon_scale == HD_JOB_MUON_SCALE_KELLER ? HD_SCALE_KELLER : HD_SCALE_MOONLIGHT,
        .others_lr = job->muon_adamw_lr};
}

bool hd_optimizer_needs_matrices(const struct hd_job *job)
{
    return hd_rule_row(rule_of(job))->matrices;
}
