/* search: the fastest layouts of a job on a cluster that fit the memory of its devices.
 *
 * Searched are all members of `parallel` that the job leaves auto: tp, pp, cp, ep, dp (what is
 * left), micro_batch up to HD_SEARCH_MICRO_BATCH_MAX, schedule with virtual_stages, recompute with
 * segments of any number of blocks, zero with zero_shard, stages where all of a model trains and it
 * can be cut into so many chunks in at most HD_SEARCH_PARTITIONS_MAX ways (else its stages are even
 * by
 * their work), and offload where it is known how much memory the hosts have. Pinned members keep
 * their values. Legal is what plan/choose.h says.
 *
 * The search is exact: best first by lower bounds. A bound is refined in five steps, each dearer
 * than the one before, and only the candidate with the lowest bound is refined:
 *
 *   1 family    tp, pp, cp, ep, micro_batch, recompute: the model's FLOPs at the products' rate
 *   2 blocks    the family's blocks are compiled and costed, without reductions and update
 *   3 walked    with a schedule: the walk of all stages' programs, without ZeRO
 *   4 costed    with a ZeRO stage: the cost of a step (cost.h). Dropped before that, if even a
 *               lower bound of its memory does not fit
 *   5 laid out  the ranks' own layouts (plan.h): memory to the byte
 *
 * The first candidate that passes step 5 is the best one: all others are at least as slow. Of equal
 * costs the simpler layout is taken: less pp, tp, cp, recompute and ZeRO.
 *
 * Used by: the heddle command.   Uses: cost, plan, choose.   Threads: any.
 */
#ifndef HD_PLAN_SEARCH_H
#define HD_PLAN_SEARCH_H

#include "base/text.h"
#include "plan/choose.h"
#include "plan/cluster.h"
#include "plan/plan.h"
#include "plan/step_cost.h"

enum {
    HD_SEARCH_TOP_MAX = 64,
    HD_SEARCH_REJECTED_MAX = 8,
    HD_SEARCH_PARTITIONS_MAX = 64,
    HD_SEARCH_MICRO_BATCH_MAX = 16, /* of those that are auto */
};

struct hd_search; /* below */

struct hd_search_asked {
    const struct hd_job *spec;             /* complete; its layout is not looked at */
    const struct hd_plan_request *request; /* with the kind of device */
    const struct hd_cluster *cluster;
    int32_t devices;
    int64_t threads; /* of a CPU device */
    bool bf16_fast;
    int64_t memory_bytes; /* of a device, for a rank; 0: not known, everything fits */
    double peak_flops;    /* of a device, for MFU; 0: not known */
    int top;              /* how many plans are wanted */
    int64_t deadline_ns;  /* by hd_clock_now_ns: the search ends then with what it has; 0: none */
    /* Called again and again while it runs; NULL: not. */
    void (*tell)(void *about, const struct hd_search *so_far);
    void *about;
};

struct hd_search_plan {
    struct hd_job job; /* resolved in its layout; the rest is the spec's */
    struct hd_step_cost cost;
    struct hd_plan plan;
    bool fits;
    int64_t needed_bytes; /* of a device, for the rank that takes most */
};

/* A layout that is faster than the chosen one, but does not fit. Bytes are at least so many. */
struct hd_search_rejected {
    struct hd_layout_sizes sizes;
    double step_s; /* at least */
    int32_t stage;
    int64_t needed_bytes; /* at least */
    bool exact;           /* it was laid out: exactly so many */
    double activations;   /* share of that which is kept for backward */
};

struct hd_search {
    struct hd_search_plan *plans;                               /* [plan_count] the fastest first */
    int plan_count;                                             /* 0: none fits */
    struct hd_search_rejected rejected[HD_SEARCH_REJECTED_MAX]; /* the fastest first */
    int rejected_count;
    /* If none fits: the one that needs least, by the bytes of those whose bounds are lowest. */
    struct hd_search_rejected least;
    int64_t families, blocks, walked, costed, laid_out; /* candidates that each step has seen */
};

/* The result lives in `arena`. If exactly one layout is possible because all members are pinned, it
 * is costed and returned even if it does not fit. Fails as hd_plan_decide does if no layout is
 * legal. HD_TIMEOUT: the deadline passed before the first plan was found. */
enum hd_status hd_search_layouts(const struct hd_search_asked *asked, struct hd_arena *arena,
                                 struct hd_search *ret_search);

/* The cost and the exact memory of one layout, which is complete. */
enum hd_status hd_search_cost(const struct hd_search_asked *asked,
                              const struct hd_layout_sizes *sizes, struct hd_arena *arena,
                              struct hd_search_plan *ret_plan);

#endif
