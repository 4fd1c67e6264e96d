/* choose: decides the number of ranks on each parallel axis, and the values that replace `auto`.
 * Pure arithmetic. All rules about which sizes are possible together are here; the check of job
 * files, the controller and `heddle plan` call them, so that they agree.
 *
 * The rules are the rows of choose_rules.def: each has its condition and its message. Beside them:
 *
 *     devices       tp x cp x dp x pp, at most hd_plan_ranks_max (for a job that is only planned:
 *                   HD_PLAN_DEVICES_MAX); dp = devices / (tp x cp x pp)
 *     pp > 1        pp x virtual_stages chunks, at most the units of the model: its layers, the
 *                   embedding and the head. interleaved has at least two chunks per stage, zb-v
 *                   exactly two, other schedules one. stages: one number of layers per chunk; they
 *                   add up to model.layers
 *
 * Used by: spec, plan, controller, the heddle command.   Uses: base, job, comm.h (limits).
 * Threads: any; no state.
 */
#ifndef HD_PLAN_CHOOSE_H
#define HD_PLAN_CHOOSE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "job/job.h"

enum {
    /* sequences of a micro-batch that auto chooses at most: enough to use all cores */
    HD_MICRO_BATCH_AUTO_MAX = 8,
    HD_PLAN_CHUNKS_MAX = 1024, /* pipeline chunks of one model replica: pp x virtual_stages */
    /* least tokens of a sequence per rank when the search for a layout raises cp: attention needs
     * whole tiles */
    HD_PLAN_ROWS_MIN = 256,
    /* most devices of a job that is only planned, whose ranks no communication engine has to
     * connect */
    HD_PLAN_DEVICES_MAX = 65536
};

/* The sizes that a job requests, and those sizes of its model and batch that the rules need. */
struct hd_plan_request {
    struct hd_layout_sizes sizes; /* requested sizes; members may be auto (job/job.h) */
    int64_t global_batch;         /* sequences in the largest optimizer step, over all ranks */
    /* train.batch_schedule: greatest common divisor of the batches of all steps, which dp x
     * micro_batch divides; 0: all steps have global_batch */
    int64_t batch_divisor;
    int64_t layers, heads, kv_heads, ffn_hidden, context; /* sizes of the model, all >= 1 */
    int64_t experts;           /* experts of a block; 0: the model has none */
    int64_t shared_ffn_hidden; /* feed-forward width of the shared expert; 0: the model has none */
    /* with experts: number of blocks without, and their feed-forward width; 0: every block has
     * experts */
    int64_t dense_layers, dense_ffn_hidden;
    int64_t delta_heads; /* key heads of the gated delta layers, which tp splits; 0: none */
    int64_t vocab;       /* tokens of the vocabulary; 0: unknown and not checked */
    /* channels of a token (model.hidden); 0: unknown. Used to choose each rank's device
     * (plan/rank_map.h), and, if nf4 is set, to check that shards are whole nf4 blocks */
    int64_t hidden;
    int64_t head_width; /* 0: hidden / heads */
    /* latent attention (model.mla): ranks of the latents of queries and of keys and values, and
     * channels of a head: unrotated ones, and its value's; 0: none */
    int64_t mla_q_rank, mla_kv_rank, mla_nope, mla_value;
    /* gated delta layers: their number, the sizes of their heads beside delta_heads, and the taps of
     * their convolution; 0: none */
    int64_t delta_layers, delta_key_width, delta_value_heads, delta_value_width, delta_conv_width;
    /* short convolutions: their number, and their taps; 0: none. tp splits their channels, model.hidden */
    int64_t conv_layers, conv_width;
    /* the weight matrices of transformer blocks are stored as nf4 codes; then hidden and head_width
     * are set */
    bool nf4;
    /* the job will not run, so no communication engine has to connect its ranks */
    bool only_planned;
    /* if tp, pp and cp of 1 give no layout, those that are auto may be larger (plan/search.h);
     * hd_plan_size itself replaces auto by 1 only */
    bool searched;
};

/* Sets *ret_request to the request of a job: its `parallel`, and what the rules need of its model and batch. A
 * member that is auto stays so. */
void hd_plan_request_of(const struct hd_job *job, struct hd_plan_request *ret_request);

/* Returns the most ranks of one job that the communication engine of multi-node jobs connects
 * (comm/comm.h): nccl with HD_JOB_DEVICE_CUDA, gloo with every other device. ret_engine: the engine's
 * name; may be NULL. */
int32_t hd_plan_ranks_max(enum hd_job_device device, const char **ret_engine);

/* Checks that a number of devices is from 1 to hd_plan_ranks_max, or to HD_PLAN_DEVICES_MAX for a
 * job that is only planned. HD_UNSUPPORTED: more; HD_INVALID: less than 1. The message begins with
 * `path`, the key. */
enum hd_status hd_plan_check_devices(const char *path, enum hd_job_device device, bool only_planned,
                                     int64_t devices);

/* The reason why a request has no layout: the rule that is broken, choose_rules.def. Those from
 * HD_PLAN_TOO_MANY on depend on the number of devices. */
enum hd_plan_obstacle {
    HD_PLAN_FITS, /* no obstacle: there is a layout */
#define R(name, ...) HD_PLAN_##name,
#define N            R
#include "plan/choose_rules.def"
};

/* Computes the layout of a request on exactly `devices` devices; returns why none exists, or sets
 * ret_sizes and returns HD_PLAN_FITS. Precision, kind of device and threads are copied from the
 * request and may still be auto; hd_plan_decide_device replaces them. */
enum hd_plan_obstacle hd_plan_size(const struct hd_plan_request *request, int32_t devices,
                                   struct hd_layout_sizes *ret_sizes);

/* Computes the layout as hd_plan_size does, but turns off sequence parallelism that is auto where
 * tp does not divide the rows. False: none exists. */
bool hd_plan_size_searched(const struct hd_plan_request *request, int32_t devices,
                           struct hd_layout_sizes *ret_sizes);

/* Finds, for a request with `searched`, the first legal layout on `devices` devices: the least tp,
 * then the least pp, then the least cp among those that the search considers (search.h). False: no
 * layout is legal. */
bool hd_plan_first(const struct hd_plan_request *request, int32_t devices,
                   struct hd_layout_sizes *ret_sizes);

/* Returns whether a layout has the value of every member that the request fixes; a member that is
 * auto may have any value. Device, precision and threads are not compared. */
bool hd_plan_allows(const struct hd_plan_request *request, const struct hd_layout_sizes *sizes);

/* Sets the kind of device of a layout and, where they are auto, its precision and its threads per
 * rank. bf16_fast: the devices multiply bf16 faster than fp32, so auto precision is bf16; else it
 * is fp32. */
void hd_plan_decide_device(enum hd_job_device device, bool bf16_fast, int64_t threads,
                           struct hd_layout_sizes *sizes);

/* Returns the largest number of devices from min to max for which a layout exists; 0: none. */
int32_t hd_plan_most(const struct hd_plan_request *request, int32_t devices_min,
                     int32_t devices_max);

/* Returns HD_OK if a layout exists for some number of devices from min to max. Else HD_INVALID or
 * HD_UNSUPPORTED; the message has the key, what is wrong and which values are allowed. */
enum hd_status hd_plan_check(const struct hd_plan_request *request, int32_t devices_min,
                             int32_t devices_max);

/* Sets the layout of a request on exactly `devices` devices; fails as hd_plan_check does. */
enum hd_status hd_plan_decide(const struct hd_plan_request *request, int32_t devices,
                              struct hd_layout_sizes *ret_sizes);

/* Returns the number of sequences that dp x micro_batch divides. */
static inline int64_t hd_plan_batch_unit(const struct hd_plan_request *request)
{
    return request->batch_divisor ? request->batch_divisor : request->global_batch;
}

/* The part of a request that decides which numbers of devices have a layout. If two requests for
 * the same kind of device each have a layout on some number, and their shapes are equal, then both
 * have layouts on exactly the same numbers. Has no padding: compare with memcmp. */
struct hd_plan_shape {
    int64_t pp, tp, cp, ep, dp; /* requested sizes; dp 0: auto; in the others auto has become 1 */
    int64_t zero_shard;         /* ranks that ZeRO shards over; 0: auto */
    int64_t micro_batch;        /* sequences of one micro-batch; 0: auto */
    /* micro-batches of the schedule from a file; 0: no such schedule */
    int64_t order_micro_batches;
    int64_t global_batch, batch_divisor;
    /* set only if the request is `searched`; else 0 */
    int64_t layers, heads, kv_heads, ffn_hidden, context, vocab;
    int64_t shared_ffn_hidden, dense_ffn_hidden, delta_heads, delta_conv_width;
    int64_t conv_width, conv_hidden; /* conv_hidden: channels of short convolutions */
    /* set only if the request is `searched` and nf4; else 0 */
    int64_t nf4_hidden, nf4_head_width, nf4_latents[4], nf4_delta[3];
};
struct hd_plan_shape hd_plan_shape_of(const struct hd_plan_request *request);

/* Returns the number of ranks that must be together on one node: a tensor-parallel group. */
int32_t hd_plan_unit(const struct hd_plan_request *request);

#endif
