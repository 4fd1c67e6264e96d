/* resolve: makes the ranks' job from a spec, a layout and an attempt. */
#include <string.h>

#include "plan/choose.h"
#include "spec_internal.h"

/* Checks that all sizes of the layout are set, and possible for the spec's model and batch. */
static enum hd_status check_layout(const struct hd_job *spec, const struct hd_layout_sizes *layout)
{
    const int64_t world = hd_layout_world(layout);
    struct hd_plan_request request;
    enum hd_status st;

    if (layout->pp < 1 || layout->dp < 1 || layout->cp < 1 || layout->tp < 1 || layout->ep < 1 ||
        layout->micro_batch < 1 || layout->threads < 1)
        return hd_err(HD_INVALID, "plan: a size of the layout is not set");
    if (layout->precision != HD_JOB_PRECISION_FP32 && layout->precision != HD_JOB_PRECISION_BF16 &&
        layout->precision != HD_JOB_PRECISION_FP16 && layout->precision != HD_JOB_PRECISION_FP8)
        return hd_err(HD_UNSUPPORTED, "plan: the precision %s is not supported",
                      hd_job_precision_words[layout->precision]);
    hd_plan_request_of(spec, &request);
    request.sizes = *layout;
    st = hd_plan_check(&request, (int32_t)world, (int32_t)world);
    return st ? hd_err_prefix(st, "plan") : HD_OK;
}

static enum hd_status check_length(const char *what, const char *text, size_t max)
{
    return strlen(text) < max ? HD_OK
                              : hd_err(HD_INVALID, "%s: longer than %zu bytes", what, max - 1);
}

enum hd_status hd_spec_resolve(const struct hd_job *spec, const struct hd_layout_sizes *layout,
                               const struct hd_spec_attempt *attempt, struct hd_job *ret_job)
{
    const char *base = attempt->base_checkpoint ? attempt->base_checkpoint : "";
    const char *hash = attempt->base_manifest_hash ? attempt->base_manifest_hash : "-";
    enum hd_status st = hd_spec_check(spec);

    if (!st)
        st = check_layout(spec, layout);
    if (st)
        return st;
    *ret_job = *spec;
    ret_job->layout = *layout;
    if (strcmp(ret_job->init_from, SPEC_INIT_NONE) == 0)
        ret_job->init_from = "";
    if (ret_job->checkpoint_base ==
        HD_JOB_CHECKPOINT_BASE_AUTO) /* the spec did not come from a job file */
        ret_job->checkpoint_base = HD_JOB_CHECKPOINT_BASE_SAVE;
    ret_job->job_id = attempt->job_id;
    ret_job->attempt = attempt->number;
    ret_job->attempt_dir = attempt->dir;
    ret_job->base_checkpoint = base;
    ret_job->base_manifest_hash = hash;
    st = check_length("attempt.dir", attempt->dir, HD_JOB_PATH_MAX);
    if (!st)
        st = check_length("attempt.base", base, HD_JOB_PATH_MAX);
    return st ? st : check_length("attempt.base_hash", hash, HD_JOB_WORD_MAX);
}
