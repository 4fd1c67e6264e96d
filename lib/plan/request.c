/* request: what a job asks of its layout, and the sizes of its model that the rules need. */
#include "job/batch_spans.h"
#include "job/data_stages.h"
#include "job/family.h"
#include "plan/choose.h"

/* Returns a length of windows whose divisors divide the windows of all stages of the data. */
static int64_t common_context(const struct hd_job *job)
{
    struct hd_data_stage stages[HD_JOB_STAGES_MAX];
    int64_t common = job->context, count = 0;

    if (hd_data_stages_read(job, stages, &count))
        return common;
    for (int64_t k = 0; k < count && stages[k].context; k++)
        for (int64_t b = stages[k].context, rest; b; b = rest) {
            rest = common % b;
            common = b;
        }
    return common;
}

void hd_plan_request_of(const struct hd_job *job, struct hd_plan_request *ret_request)
{
    const bool has_delta = hd_job_has_delta(job), has_conv = hd_job_has_conv(job);
    const struct hd_batch_spans batches = hd_job_batch_spans(job);

    *ret_request = (struct hd_plan_request){
        .sizes = job->layout,
        .global_batch = job->global_batch,
        .batch_divisor = *job->batch_schedule ? hd_batch_spans_divisor(&batches) : 0,
        .layers = job->layers,
        .heads = job->heads,
        .kv_heads = job->kv_heads,
        .hidden = job->hidden,
        .head_width = job->head_width,
        .nf4 = job->model_weights == HD_JOB_MODEL_WEIGHTS_NF4,
        .ffn_hidden = job->ffn_hidden,
        .context = common_context(job),
        .experts = job->experts,
        .shared_ffn_hidden = job->shared_ffn_hidden,
        .dense_layers = job->experts ? hd_layers_left(job->experts_layers, job->layers) : 0,
        .dense_ffn_hidden = job->dense_ffn_hidden,
        .mla_q_rank = job->mla_kv_rank ? job->mla_q_rank : 0,
        .mla_kv_rank = job->mla_kv_rank,
        .mla_nope = job->mla_kv_rank ? job->mla_nope : 0,
        .mla_value = job->mla_kv_rank ? job->mla_value : 0,
        .delta_heads = has_delta ? job->delta_key_heads : 0,
        .delta_layers = has_delta ? hd_layers_count(job->delta_layers, job->layers) : 0,
        .delta_key_width = has_delta ? job->delta_key_width : 0,
        .delta_value_heads = has_delta ? job->delta_value_heads : 0,
        .delta_value_width = has_delta ? job->delta_value_width : 0,
        .delta_conv_width = has_delta ? job->delta_conv_width : 0,
        .conv_layers = has_conv ? hd_layers_count(job->conv_layers, job->layers) : 0,
        .conv_width = has_conv ? job->conv_width : 0,
        .vocab = job->vocab,
        .only_planned = job->only_planned,
        .searched = true};
}
