#include "plan/rollout_profile.h"

#include <stdio.h>
#include <string.h>

#include "base/math.h"

struct hd_rollout_calls hd_rollout_count_calls(const struct hd_job *job)
{
    const int64_t replicas = hd_max(job->dp * job->cp, 1);
    const int64_t answers = (job->rollout_prompts + replicas - 1) / replicas * job->rollout_group;
    struct hd_rollout_calls c = {.slots = hd_rank_program_decode_slots(job)};
    int64_t turns;

    if (!hd_job_has_policy(job) || !c.slots)
        return (struct hd_rollout_calls){0};
    for (int p = 0; p < HD_DECODE_PROGRAMS; p++)
        c.rows[p] = hd_rank_program_decode_rows(job, (enum hd_decode_program)p);
    turns = (answers + c.slots - 1) / c.slots;
    c.draws = turns * job->rollout_max_tokens;
    c.count[HD_DECODE_TOKENS] = turns * (job->rollout_max_tokens - 1);
    c.count[HD_DECODE_PROMPTS] =
        turns * hd_max(1, (hd_job_rollout_prompt_max(job) + c.rows[HD_DECODE_PROMPTS] - 1) /
                              c.rows[HD_DECODE_PROMPTS]);
    return c;
}

/* Returns the tokens that an answer's cache has in the mean, its prompt and half of it, as a context that
 * each layout of the job may have. */
static int64_t mean_context(const struct hd_job *job)
{
    const int64_t grain = 2 * job->cp * job->tp;
    const int64_t mean = hd_job_rollout_prompt_max(job) + job->rollout_max_tokens / 2;

    return hd_min(job->context, (hd_max(mean, 1) + grain - 1) / grain * grain);
}

/* Returns the seconds of a draw: tp ranks gather the logits, the host reads them over its link and then
 * from its memory, and all ranks exchange the tokens. */
static double draw_seconds(const struct hd_layer_profiles *p, const struct hd_job *job,
                           const struct hd_cluster *cluster, int64_t slots)
{
    const struct hd_rates *r = &cluster->rates;
    const double bytes = (double)(slots * job->vocab) * (double)sizeof(float);
    double seconds = r->host_bytes_per_s > 0 ? bytes / r->host_bytes_per_s : 0;

    if (r->multiprocessors && r->host_link_bytes_per_s > 0)
        seconds += bytes / r->host_link_bytes_per_s;
    if (p->tp.size > 1)
        seconds += r->wait_s + hd_links_collective(cluster, &p->tp, HD_COMM_ALL_GATHER,
                                                   bytes / p->tp.size, job->native_reduction);
    if (p->world.size > 1)
        seconds += r->wait_s + hd_links_collective(cluster, &p->world, HD_COMM_ALL_GATHER,
                                                   HD_EXCHANGE_SLOT_BYTES, job->native_reduction);
    return seconds;
}

enum hd_status hd_rollout_profile_build(const struct hd_job *job, const struct hd_cluster *cluster,
                                        struct hd_rollout_profile *ret_profile)
{
    struct hd_rollout_profile r = {.calls = hd_rollout_count_calls(job)};
    struct hd_job decodes = *job;
    struct hd_layer_profiles p;
    enum hd_status st = HD_OK;

    decodes.reward_model = decodes.distill_model = "";
    decodes.policy_kl = HD_JOB_POLICY_KL_NONE;
    decodes.context = mean_context(job);
    (void)snprintf(decodes.recompute, sizeof decodes.recompute, "none");
    for (int k = 0; !st && r.calls.slots && k < HD_DECODE_PROGRAMS; k++) {
        st = hd_layer_profiles_decode(&decodes, cluster, r.calls.slots, r.calls.rows[k], &p,
                                      &r.call_s[k]);
        r.stage_io_bytes[k] = p.stage_io_bytes;
    }
    if (st)
        return st;
    if (r.calls.slots) {
        r.draw_s = draw_seconds(&p, job, cluster, r.calls.slots);
        r.stages = p.stages;
    }
    *ret_profile = r;
    return HD_OK;
}

double hd_rollout_seconds(const struct hd_rollout_profile *r, const struct hd_job *job,
                          const struct hd_cluster *cluster)
{
    const struct hd_pipeline pipeline = {(int32_t)job->pp,
                                         (int32_t)(job->pp * hd_max(job->virtual_stages, 1)),
                                         strcmp(job->schedule, "zb-v") == 0};
    const int64_t ranks = job->dp * job->cp * job->tp;
    double seconds = (double)r->calls.draws * r->draw_s;

    for (int p = 0; p < HD_DECODE_PROGRAMS; p++) {
        double call_s = r->call_s[p];

        for (int32_t c = 1; c < pipeline.chunks; c++) {
            const int32_t from = hd_pipeline_stage(&pipeline, c - 1),
                          to = hd_pipeline_stage(&pipeline, c);

            if (from != to)
                call_s += cluster->rates.wait_s + hd_links_transfer(cluster, &r->stages,
                                                                    from * ranks, to * ranks,
                                                                    (double)r->stage_io_bytes[p]);
        }
        seconds += (double)r->calls.count[p] * call_s;
    }
    if (job->objective == HD_JOB_OBJECTIVE_GKD) /* other steps take completions of rows */
        seconds *= job->distill_on_policy;
    return seconds / (double)hd_max(job->rollout_updates, 1);
}
