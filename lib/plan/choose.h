/* choose: how many ranks stand on each axis, and what `auto` becomes. Pure arithmetic, and the only
 * place that knows which sizes go together: the rules of the job file, the controller and `heddle
 * plan` ask here, so that they say the same.
 *
 *     devices       tp x cp x dp (x pp = 1), at most hd_plan_ranks_max; dp is what tp and cp leave
 *     tp            divides model.heads, model.ffn_hidden and model.shared_ffn_hidden; divides
 *                   model.kv_heads, or is a multiple of it (then each key/value head is held by
 *                   tp / kv_heads ranks); leaves no rank without a token of model.vocab, whose
 *                   shares need not be equal
 *     cp > 1        2 x cp divides model.context: each rank has a chunk from the front and its
 *                   mirror image from the back, so that causal attention is shared evenly
 *     ep > 1        the model has experts, and ep divides their number and dp x cp: a block of ep
 *                   neighbours among those ranks holds one copy of all experts
 *     sequence      tp divides model.context / cp: rows of a norm are shared out among tp ranks.
 *                   Enough for every micro-batch, and the reason why none is asked for here
 *     micro_batch   dp x micro_batch divides train.global_batch
 *
 * Used by: spec, controller, the heddle command.   Uses: base, job, comm.h (limits).
 * Threads: pure.
 */
#ifndef HD_PLAN_CHOOSE_H
#define HD_PLAN_CHOOSE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "job/job.h"

enum { HD_MICRO_BATCH_AUTO_MAX = 8 }; /* sequences: enough to fill the cores, small in memory */

/* What a job says about its layout, and what of its model and recipe the rules need. */
struct hd_plan_wish {
    struct hd_layout_sizes sizes;                 /* with auto (job/job.h) */
    int64_t global_batch;                         /* sequences per step */
    int64_t heads, kv_heads, ffn_hidden, context; /* of the model, all >= 1 */
    int64_t experts;                              /* of a block; 0: it has no router */
    int64_t shared_ffn_hidden;                    /* 0: no shared expert */
    int64_t vocab;                                /* 0: not known, no rule applies */
};

/* How many ranks the engine connects (comm/comm.h) that a job of several nodes has on such devices
 * ("cpu", "cuda"; "auto" counts as cpu); ret_engine, which may be NULL: its name. */
int32_t hd_plan_ranks_max(const char *device, const char **ret_engine);

/* Why there is no layout: what is not built, what the model does not allow on any devices, and what
 * the number of devices does not allow. */
enum hd_plan_obstacle {
    HD_PLAN_FITS,
    HD_PLAN_PP_NOT_BUILT,
    HD_PLAN_ZERO_NOT_BUILT,
    HD_PLAN_TP_HEADS,
    HD_PLAN_TP_KV_HEADS,
    HD_PLAN_TP_FFN,
    HD_PLAN_TP_SHARED_FFN,
    HD_PLAN_TP_VOCAB,
    HD_PLAN_CP_CONTEXT,
    HD_PLAN_EP_DENSE,
    HD_PLAN_EP_EXPERTS,
    HD_PLAN_SEQUENCE_ALONE, /* asked for, but tp is 1 */
    HD_PLAN_SEQUENCE_ROWS,
    HD_PLAN_TOO_MANY, /* devices, of hd_plan_ranks_max at most */
    HD_PLAN_DEVICES,  /* no multiple of tp x cp */
    HD_PLAN_DP,       /* not what tp and cp leave */
    HD_PLAN_EP_RANKS, /* does not divide dp x cp */
    HD_PLAN_BATCH,
    HD_PLAN_MICRO_BATCH
};

/* The layout on exactly so many devices, or why there is none. Precision, kind of device and
 * threads are the wish's: hd_plan_decide_device decides them. */
enum hd_plan_obstacle hd_plan_size(const struct hd_plan_wish *wish, int32_t devices,
                                   struct hd_layout_sizes *ret_sizes);

/* What the devices decide of a layout: their kind; fp32 or bf16 where the job says auto (bf16_fast:
 * these devices multiply bf16 faster); threads of a rank where it says auto. */
void hd_plan_decide_device(const char *device, bool bf16_fast, int64_t threads,
                           struct hd_layout_sizes *sizes);

/* The largest number within min and max on which there is a layout; 0: none. */
int32_t hd_plan_most(const struct hd_plan_wish *wish, int32_t devices_min, int32_t devices_max);

/* HD_OK when there is a layout on some number within min and max. Else HD_INVALID or HD_UNSUPPORTED
 * with the key, what is wrong and what to write instead. */
enum hd_status hd_plan_check(const struct hd_plan_wish *wish, int32_t devices_min,
                             int32_t devices_max);

/* The layout on exactly so many devices; where there is none, hd_plan_check's failure. */
enum hd_status hd_plan_decide(const struct hd_plan_wish *wish, int32_t devices,
                              struct hd_layout_sizes *ret_sizes);

/* What decides on how many devices a wish has a layout, if it has one on any: two wishes for the
 * same kind of device that each have a layout on some number, and whose shapes are equal, have
 * layouts on exactly the same numbers. No padding: memcmp compares two of them. */
struct hd_plan_shape {
    int64_t tp, cp, ep, dp; /* dp 0: auto; the others: 1 where the job says auto */
    int64_t micro_batch;    /* 0: auto */
    int64_t global_batch;
};
struct hd_plan_shape hd_plan_shape(const struct hd_plan_wish *wish);

/* The ranks that may not be parted by the edge of a node: those of one tensor-parallel group. */
int32_t hd_plan_unit(const struct hd_plan_wish *wish);

#endif
