/* choose: the number of ranks on each parallel axis, and the values that replace `auto`. Pure
 * arithmetic. All rules about which sizes are allowed together are here; the check of job files,
 * the controller and `heddle plan` call it, so that they agree.
 *
 *     devices       tp x cp x dp x pp, at most hd_plan_ranks_max (of a job that is only planned:
 *                   HD_PLAN_DEVICES_MAX); dp = devices / (tp x cp x pp)
 *     pp > 1        pp x virtual_stages chunks, at most the units of the model: its layers and two;
 *                   interleaved has two chunks per stage or more, zb-v two, other schedules one;
 *                   stages: so many numbers, which add up to model.layers
 *     tp            divides model.heads, model.ffn_hidden and model.shared_ffn_hidden; divides
 *                   model.kv_heads, or is a multiple of it (then each key/value head is held by
 *                   tp / kv_heads ranks); gives every rank at least one token of model.vocab, whose
 *                   shares need not be equal
 *     cp > 1        2 x cp divides model.context: a rank has chunk i from the front and chunk i
 *                   from the back, so that all ranks have equal work in causal attention
 *     ep > 1        the model has experts, and ep divides their number and dp x cp: ep adjacent
 *                   ranks of dp x cp together hold one copy of all experts
 *     sequence      tp > 1, and tp divides model.context / cp: tp ranks split the rows of norms;
 *                   the rule holds for every micro-batch size
 *     micro_batch   dp x micro_batch divides train.global_batch; with an order from a file the
 *                   quotient is the order's number of micro-batches
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
    HD_MICRO_BATCH_AUTO_MAX = 8, /* sequences: uses all cores, in little memory */
    HD_PLAN_CHUNKS_MAX = 1024,   /* of a pipeline */
    HD_PLAN_ROWS_MIN = 256,      /* of a sequence on a rank, where cp is auto and searched: with
                                    fewer, attention has no whole tiles */
    HD_PLAN_DEVICES_MAX = 65536  /* of a job that no engine has to connect */
};

/* The sizes that a job requests, and the sizes of its model and batch that the rules need. */
struct hd_plan_request {
    struct hd_layout_sizes sizes;                         /* may be auto (job/job.h) */
    int64_t global_batch;                                 /* sequences per step */
    int64_t layers, heads, kv_heads, ffn_hidden, context; /* of the model, all >= 1 */
    int64_t experts;                                      /* of a block; 0: the model has none */
    int64_t shared_ffn_hidden;                            /* 0: no shared expert */
    int64_t vocab;                                        /* 0: not known, not checked */
    int64_t hidden; /* 0: not known; for the choice of devices alone (plan/rank_map.h) */
    int64_t head_width;
    bool nf4;          /* matrices of blocks are codes in nf4; hidden and head_width are known */
    bool only_planned; /* will not run: no engine has to connect its ranks */
    bool searched; /* tp, pp and cp that are auto may be any (plan/search.h), not just 1, where 1
                      gives no layout; hd_plan_size alone knows only 1 */
};

/* The most ranks that the communication engine of multi-node jobs connects (comm/comm.h). device:
 * "cuda" (engine nccl); "cpu" or "auto" (gloo). ret_engine: the engine's name; may be NULL. */
int32_t hd_plan_ranks_max(const char *device, const char **ret_engine);

/* A number of devices is from 1 to hd_plan_ranks_max, or to HD_PLAN_DEVICES_MAX of a job that is
 * only planned. The message begins with `path`, the key. HD_UNSUPPORTED: more; HD_INVALID: less
 * than 1. */
enum hd_status hd_plan_check_devices(const char *path, const char *device, bool only_planned,
                                     int64_t devices);

/* Why there is no layout. Up to HD_PLAN_SHARD_EP the reason holds for every number of devices:
 * not supported yet, or not possible with the model. The others depend on that number. */
enum hd_plan_obstacle {
    HD_PLAN_FITS,     /* no obstacle */
    HD_PLAN_PIPELINE, /* schedule, virtual_stages or stages do not go with pp or the layers */
    HD_PLAN_TP_HEADS,
    HD_PLAN_TP_KV_HEADS,
    HD_PLAN_TP_FFN,
    HD_PLAN_TP_SHARED_FFN,
    HD_PLAN_TP_VOCAB,
    HD_PLAN_TP_CODES, /* cuts through a block of nf4 */
    HD_PLAN_CP_CONTEXT,
    HD_PLAN_EP_DENSE,
    HD_PLAN_EP_EXPERTS,
    HD_PLAN_SEQUENCE_ALONE, /* requested, but tp is 1 */
    HD_PLAN_SEQUENCE_ROWS,
    HD_PLAN_SHARD_OF_NOTHING, /* zero_shard, but zero is 0 */
    HD_PLAN_SHARD_EP,         /* zero_shard is no multiple of ep */
    HD_PLAN_TOO_MANY,         /* more devices than may be */
    HD_PLAN_DEVICES,          /* no multiple of tp x cp */
    HD_PLAN_DP,               /* the requested dp is not devices / (tp x cp) */
    HD_PLAN_EP_RANKS,         /* ep does not divide dp x cp */
    HD_PLAN_SHARD,            /* zero_shard does not divide dp x cp */
    HD_PLAN_BATCH,
    HD_PLAN_MICRO_BATCH,
    HD_PLAN_ORDER /* the order from a file has another number of micro-batches */
};

/* The layout on exactly `devices` devices; ret_sizes is set only with HD_PLAN_FITS. Precision, kind
 * of device and threads are copied and may still be auto: see hd_plan_decide_device. */
enum hd_plan_obstacle hd_plan_size(const struct hd_plan_request *request, int32_t devices,
                                   struct hd_layout_sizes *ret_sizes);

/* Of a request that is searched: the first legal layout on so many devices, by the least tp, then
 * pp, then cp, among those that the search looks at (search.h). False: there is none. */
bool hd_plan_first(const struct hd_plan_request *request, int32_t devices,
                   struct hd_layout_sizes *ret_sizes);

/* Returns whether a layout has every member that the request fixes; a member that is auto may have
 * any value. Device, precision and threads are not compared. */
bool hd_plan_allows(const struct hd_plan_request *request, const struct hd_layout_sizes *sizes);

/* Sets the kind of device, and if they are auto precision (bf16_fast: bf16, else fp32; bf16_fast
 * says that the devices multiply bf16 faster) and threads of a rank. */
void hd_plan_decide_device(const char *device, bool bf16_fast, int64_t threads,
                           struct hd_layout_sizes *sizes);

/* The largest number of devices from min to max for which a layout exists; 0: none. */
int32_t hd_plan_most(const struct hd_plan_request *request, int32_t devices_min,
                     int32_t devices_max);

/* HD_OK if a layout exists for some number of devices from min to max. Else HD_INVALID or
 * HD_UNSUPPORTED; the message has the key, what is wrong and which values are allowed. */
enum hd_status hd_plan_check(const struct hd_plan_request *request, int32_t devices_min,
                             int32_t devices_max);

/* The layout on exactly `devices` devices, or the failure of hd_plan_check. */
enum hd_status hd_plan_decide(const struct hd_plan_request *request, int32_t devices,
                              struct hd_layout_sizes *ret_sizes);

/* What decides on how many devices a wish has a layout, if it has one on any: two wishes for the
 * same kind of device that each have a layout on some number, and whose shapes are equal, have
 * layouts on exactly the same numbers. No padding: memcmp compares two of them. */
struct hd_plan_shape {
    int64_t pp, tp, cp, ep, dp;  /* dp 0: auto; the others: 1 where the job says auto */
    int64_t zero_shard;          /* 0: auto */
    int64_t micro_batch;         /* 0: auto */
    int64_t order_micro_batches; /* 0: no order of pipeline stages from a file */
    int64_t global_batch;
    int64_t layers, heads, kv_heads, ffn_hidden, context, vocab; /* if it is searched; else 0 */
    int64_t nf4_hidden, nf4_head_width; /* if it is searched, and nf4; else 0 */
};
struct hd_plan_shape hd_plan_shape_of(const struct hd_plan_request *request);

/* The number of ranks that must be on one node together: a tensor-parallel group. */
int32_t hd_plan_unit(const struct hd_plan_request *request);

#endif
