/* search: finds the fastest layouts of a job on a cluster that fit the memory of its devices.
 *
 * The search covers all members of `parallel` that the job leaves auto; pinned members keep their
 * values. Legal layouts are those of plan/choose.h. The candidates are:
 *
 *     tp, pp, cp, ep   every legal value; dp is the quotient
 *     micro_batch      up to HD_SEARCH_MICRO_BATCH_MAX
 *     schedule         with virtual_stages
 *     recompute        with segments of any number of blocks
 *     zero             with zero_shard
 *     stages           if the whole model trains and can be cut into the chunks in at most
 *                      HD_SEARCH_PARTITIONS_MAX ways; else of even work, or of even seconds
 *     offload          if the memory of the hosts is known
 *
 * The search is exact: best first by lower bounds. A bound is refined in five steps, each more
 * expensive than the one before, and only the candidate with the lowest bound is refined:
 *
 *   1 family    tp, pp, cp, ep, micro_batch, recompute: the model's FLOPs at the products' rate,
 *               then its blocks with the largest micro-batch and without recompute
 *   2 blocks    the family's blocks are compiled and costed, without reductions and update
 *   3 walked    with a schedule: the walk of all stages' programs, without ZeRO
 *   4 costed    with a ZeRO stage: the cost of a step (step_cost.h). Dropped before that, if even a
 *               lower bound of its memory does not fit
 *   5 laid out  the rank programs of all classes (plan.h): memory to the byte
 *
 * The first candidate that passes step 5 is the fastest one: all others are at least as slow. Its
 * predicted time is no truer than the others', so the layout that is taken is the simplest of all that
 * take at most HD_SEARCH_NEAR longer, and the fastest of the simplest: see hd_search_axes. Among equal
 * costs it has less pp, tp, cp, recompute and ZeRO.
 *
 * Used by: report, best, the heddle command.   Uses: step_cost, plan, choose.   Threads: any.
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
    /* most sequences of a micro-batch that the search tries where micro_batch is auto */
    HD_SEARCH_MICRO_BATCH_MAX = 16,
};

/* Share by which a step may take longer than the fastest and count as equally fast. Predictions of
 * times are no more exact (struct hd_rates: error_band). */
#define HD_SEARCH_NEAR 0.02

struct hd_search;

struct hd_search_asked {
    const struct hd_job *spec;             /* complete spec of the job; its layout is ignored */
    const struct hd_plan_request *request; /* requested sizes; device: cpu or cuda, not auto */
    const struct hd_cluster *cluster;
    int32_t devices;
    int64_t threads; /* threads of one CPU device */
    bool bf16_fast;
    /* memory of one device for one rank, bytes; 0: unknown, and every layout fits */
    int64_t memory_bytes;
    double peak_flops; /* peak FLOP/s of one device, for MFU; 0: unknown */
    int top;           /* number of layouts to find, fastest first */
    /* time by hd_clock_now_ns at which the search ends with the layouts found so far; 0: no
     * limit */
    int64_t deadline_ns;
    /* Progress callback, called repeatedly during the search with the layouts found so far; NULL:
     * none. */
    void (*tell)(void *about, const struct hd_search *so_far);
    void *about;
};

struct hd_search_plan {
    struct hd_job job; /* the job's spec with this layout */
    struct hd_step_cost cost;
    struct hd_plan plan;
    bool fits;
    int64_t needed_bytes; /* memory of one device for the rank that needs most, bytes */
};

/* A layout that is faster than the chosen one, but does not fit. Its bytes are a lower bound unless
 * `exact`. */
struct hd_search_rejected {
    struct hd_layout_sizes sizes;
    double step_s; /* lower bound of the seconds of a step */
    int32_t stage;
    /* bytes of one device for the rank that needs most; a lower bound unless `exact` */
    int64_t needed_bytes;
    bool exact; /* the layout was built, so needed_bytes is exact */
    /* share of needed_bytes, 0 to 1, that activations saved for backward take */
    double activations;
};

struct hd_search {
    /* [plan_count] the layouts that fit: the one that is taken, then the others, fastest first */
    struct hd_search_plan *plans;
    int plan_count; /* layouts found; 0: none fits the device memory */
    /* the fastest layout that fits, which is plans[0] where no simpler one is nearly as fast */
    struct hd_layout_sizes fastest;
    double fastest_s; /* seconds of its step; 0: none fits */
    /* the deadline passed before all simpler layouts that may be nearly as fast were looked at */
    bool is_cut;
    /* layouts that are faster but do not fit, fastest first */
    struct hd_search_rejected rejected[HD_SEARCH_REJECTED_MAX];
    int rejected_count;
    /* Set if no layout fits: the layout that needs least memory, among those with the lowest bounds
     * of it. */
    struct hd_search_rejected least;
    /* number of candidates that reached each step of the search (1 to 5) */
    int64_t families, blocks, walked, costed, laid_out;
};

/* Returns what a layout uses beside dp; the smaller of two numbers is the simpler layout: pp is simpler
 * than tp, tp than ep, ep than cp, cp than an optimizer on the host. */
unsigned hd_search_axes(const struct hd_layout_sizes *sizes);
/* Returns the name of the least simple of what `more` uses and `fewer` does not: "cp". */
const char *hd_search_axis_spared(const struct hd_layout_sizes *more,
                                  const struct hd_layout_sizes *fewer);

/* Searches the legal layouts of the job; the result lives in `arena`. If exactly one layout is
 * possible, because all members are pinned, it is costed and returned even if it does not fit.
 * Fails as hd_plan_decide does if no layout is legal. HD_TIMEOUT: the deadline passed before the
 * first plan was found. */
enum hd_status hd_search_layouts(const struct hd_search_asked *asked, struct hd_arena *arena,
                                 struct hd_search *ret_search);

/* Computes the step time and the exact memory of one layout whose members are all set. */
enum hd_status hd_search_cost(const struct hd_search_asked *asked,
                              const struct hd_layout_sizes *sizes, struct hd_arena *arena,
                              struct hd_search_plan *ret_plan);

#endif
