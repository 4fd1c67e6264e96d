/* priced: jobs and clusters for the tests of prices and of the search. */
#ifndef HD_TESTS_PLAN_FIXTURE_H
#define HD_TESTS_PLAN_FIXTURE_H

#include <stdio.h>

#include "plan/rollout_profile.h"
#include "plan/search.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

static inline void priced_set(char *member, const char *word)
{
    (void)snprintf(member, HD_JOB_WORD_MAX, "%s", word);
}

/* A small llama, everything of `parallel` auto. */
static inline struct hd_job priced_job(int64_t layers, int64_t hidden, int64_t global_batch)
{
    struct hd_job job =
        HD_JOB(.arena = job_arena(), .layers = layers, .hidden = hidden, .heads = 8, .kv_heads = 4,
               .head_width = hidden / 8, .rope_factor = 1, .ffn_hidden = 2 * hidden, .vocab = 512,
               .context = 256, .rope_theta = 1e4, .norm_eps = 1e-5, .steps = 10,
               .global_batch = global_batch, .lr_peak = 1e-3, .beta1 = 0.9, .beta2 = 0.95,
               .adam_eps = 1e-8, .clip = 1, .zero = -1, .sequence = -1);

    job.name = "priced";
    job.family = "llama";
    job.order = HD_JOB_ORDER_SEQUENTIAL;
    job.rope_scaling = HD_JOB_ROPE_SCALING_NONE;
    job.positions = HD_JOB_POSITIONS_ROPE;
    job.documents = HD_JOB_DOCUMENTS_JOINED;
    job.lr_decay = HD_JOB_LR_DECAY_CONSTANT;
    job.moments = HD_JOB_MOMENTS_FP32;
    job.offload = HD_JOB_OFFLOAD_NONE;
    job.device = HD_JOB_DEVICE_CUDA;
    job.precision = HD_JOB_PRECISION_BF16;
    priced_set(job.stages, "auto");
    priced_set(job.schedule, "auto");
    priced_set(job.recompute, "auto");
    job.cp_exchange = HD_JOB_CP_EXCHANGE_AUTO;
    return job;
}

/* A job of grpo, whose answers fill its windows: two groups of four, for `max_tokens` each. */
static inline struct hd_job priced_answers(int64_t hidden, int64_t max_tokens)
{
    struct hd_job job = priced_job(4, hidden, 8);

    job.objective = HD_JOB_OBJECTIVE_GRPO;
    job.documents = HD_JOB_DOCUMENTS_BOUNDED;
    job.rewards = "[{\"builtin\": \"format\"}]";
    job.rollout_prompts = 2;
    job.rollout_group = 4;
    job.rollout_max_tokens = max_tokens;
    job.rollout_updates = 1;
    job.rollout_temperature = 1;
    job.policy_cispo_max = 5;
    return job;
}

static inline struct hd_plan_request priced_request(const struct hd_job *job)
{
    return (struct hd_plan_request){.sizes = job->layout,
                                    .global_batch = job->global_batch,
                                    .layers = job->layers,
                                    .heads = job->heads,
                                    .kv_heads = job->kv_heads,
                                    .ffn_hidden = job->ffn_hidden,
                                    .context = job->context,
                                    .vocab = job->vocab,
                                    .experts = job->experts,
                                    .dense_ffn_hidden = job->dense_ffn_hidden,
                                    .only_planned = true};
}

/* Nodes of GPUs with a tenth of an h100's rates, so that small models compute for a while. */
static inline struct hd_cluster priced_cluster(int64_t nodes, int64_t devices_per_node,
                                               double node_bytes_per_s, double network_bytes_per_s)
{
    const struct hd_cluster_level node = {
        .name = "node", .bytes_per_s = node_bytes_per_s, .latency_s = 3e-6};
    const struct hd_cluster_level network = {
        .name = "network", .bytes_per_s = network_bytes_per_s, .latency_s = 8e-6};
    struct hd_cluster c = {.nodes = nodes, .devices_per_node = devices_per_node};

    priced_set(c.device, "own");
    hd_traits_of_gpu(132, 90, (int64_t)64 << 30, true, &c.traits);
    c.traits.process_bytes = c.traits.communicator_bytes = 1 << 20; /* so that the rest counts */
    hd_rates_of_peaks(1e14, 1e13, 3e11, 132, 90, &c.rates);
    c.rates.step_s = c.rates.wait_share = 0; /* what tests derive has neither */
    c.rates.network_share = 1;
    hd_cluster_set_levels(&c, 0, NULL, &node, &network);
    return c;
}

/* Searches the layouts of all devices of a cluster; `top` plans at most. */
static inline struct hd_search priced_search(const struct hd_job *job, const struct hd_cluster *c,
                                             int64_t memory_bytes, int top, struct hd_arena *arena)
{
    const struct hd_plan_request request = priced_request(job);
    const struct hd_search_asked asked = {.spec = job,
                                          .request = &request,
                                          .cluster = c,
                                          .devices = (int32_t)hd_cluster_devices(c),
                                          .threads = 1,
                                          .bf16_fast = true,
                                          .memory_bytes = memory_bytes,
                                          .top = top};
    struct hd_search found;

    hd_arena_init(arena, 0);
    if (hd_search_layouts(&asked, arena, &found))
        fail_msg("%s", hd_err_message());
    return found;
}

#endif
