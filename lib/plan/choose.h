/* choose: how many ranks stand on each axis, and what `auto` becomes. Pure arithmetic, and the only
 * place that knows which sizes go together: the rules of the job file, the controller and `heddle
 * plan` ask here, so that they say the same.
 *
 *     devices       tp x cp x dp (x pp = 1), at most HD_JOB_RANKS_MAX; dp is what tp and cp leave
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
 * Used by: spec, controller, the heddle command.   Uses: base, link.   Threads: pure.
 */
#ifndef HD_PLAN_CHOOSE_H
#define HD_PLAN_CHOOSE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { HD_MICRO_BATCH_AUTO_MAX = 8 }; /* sequences: enough to fill the cores, small in memory */

/* The numbers of both are those of job.proto. */
enum hd_plan_switch { HD_PLAN_AUTO, HD_PLAN_OFF, HD_PLAN_ON };
enum hd_plan_exchange { HD_PLAN_EXCHANGE_AUTO, HD_PLAN_RING, HD_PLAN_ALL_GATHER };

/* What a job says about its layout. Members of the job file, in their own ranges; none negative but
 * zero's auto. */
struct hd_plan_wish {
    int64_t global_batch;                         /* sequences per step */
    int64_t heads, kv_heads, ffn_hidden, context; /* of the model, all >= 1 */
    int64_t experts;                              /* of a block; 0: it has no router */
    int64_t shared_ffn_hidden;                    /* 0: no shared expert */
    int64_t vocab;                                /* 0: not known, nothing is asked of it */
    int32_t tp, pp, dp, cp, ep;                   /* 0: auto */
    int32_t zero;                                 /* -1: auto */
    int32_t micro_batch;                          /* 0: auto */
    enum hd_plan_switch sequence;
    enum hd_plan_exchange cp_exchange;
};

/* A layout with nothing left to choose. */
struct hd_plan_sizes {
    int32_t pp, dp, cp, tp, ep, zero;
    int32_t micro_batch, micro_batches; /* of a rank and step */
    bool sequence;                      /* sequence parallelism */
    enum hd_plan_exchange cp_exchange;  /* never AUTO */
};

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
    HD_PLAN_TOO_MANY, /* devices, of HD_JOB_RANKS_MAX at most */
    HD_PLAN_DEVICES,  /* no multiple of tp x cp */
    HD_PLAN_DP,       /* not what tp and cp leave */
    HD_PLAN_EP_RANKS, /* does not divide dp x cp */
    HD_PLAN_BATCH,
    HD_PLAN_MICRO_BATCH
};

/* The layout on exactly so many devices, or why there is none. */
enum hd_plan_obstacle hd_plan_size(const struct hd_plan_wish *wish, int32_t devices,
                                   struct hd_plan_sizes *ret_sizes);

/* The largest number within min and max on which there is a layout; 0: none. */
int32_t hd_plan_most(const struct hd_plan_wish *wish, int32_t devices_min, int32_t devices_max);

/* HD_OK when there is a layout on some number within min and max. Else HD_INVALID or HD_UNSUPPORTED
 * with the key, what is wrong and what to write instead. */
enum hd_status hd_plan_check(const struct hd_plan_wish *wish, int32_t devices_min,
                             int32_t devices_max);

/* The ranks that may not be parted by the edge of a node: those of one tensor-parallel group. */
int32_t hd_plan_unit(const struct hd_plan_wish *wish);

const char *hd_plan_exchange_name(enum hd_plan_exchange exchange); /* "ring", "all_gather" */

#endif
