/* search_internal: declarations that the files of the search share.
 *
 *     search.c             the loop, and its last step: layouts
 *     search_families.c    the first two steps: families, and those that may fit
 *     search_schedules.c   the next two: schedules, and stages of ZeRO
 *     search_segments.c    full recompute in segments of several blocks
 *     search_bounds.c      lower bounds of time and memory
 *     search_infeasible.c  layouts that do not fit, and which of them needs least
 *     search_memo.c        layer profiles, schedules and states, each made once; costs
 *     search_partitions.c  cuts of the model into stages other than the even one
 *     search_candidates.c  the heap of candidates, and how one becomes a layout
 *
 * A file calls only those below it.
 */
#ifndef HD_PLAN_SEARCH_INTERNAL_H
#define HD_PLAN_SEARCH_INTERNAL_H

#include "plan/rollout_profile.h"
#include "plan/search.h"

/* Values of struct candidate's members recompute and schedule; PINNED_..: the job file gives the
 * value. */
enum { NO_RECOMPUTE, SELECTIVE, FULL, SEGMENTS, PINNED_RECOMPUTE };
/* GPIPE is tried besides ONE_F_ONE_B: it saves more activations, but waits less for transfers,
 * since F does not wait for B. */
enum { NO_SCHEDULE, ONE_F_ONE_B, INTERLEAVED, ZB_H1, ZB_V, GPIPE, PINNED_SCHEDULE };
enum { NO_OFFLOAD, OFFLOAD_OPTIMIZER, OFFLOADS, PINNED_OFFLOAD = OFFLOADS };

/* How far a candidate is decided, and what its bound of the step time contains. */
enum decided {
    DECIDED_FAMILY,
    DECIDED_BLOCKS, /* the layer profiles of the candidate's blocks are computed */
    /* the candidate represents all layouts with its schedule whose pipeline stages do not have even
     * work */
    DECIDED_PARTITIONS,
    DECIDED_SCHEDULE, /* the candidate has a schedule; its bound is still that of DECIDED_BLOCKS */
    DECIDED_WALKED,   /* the candidate's bound is the time of all stages' programs, without ZeRO */
    /* the candidate has full recompute and its cost is known; it represents all layouts that differ
     * from it only in segments of several blocks */
    DECIDED_SEGMENTS,
    DECIDED_VARIANT, /* the candidate also has a ZeRO stage */
    DECIDED_COSTED
};

/* Bytes and seconds of one micro-batch by kind of block. An array has one number per kind; those of
 * kinds that the model does not have are neither set nor read. */
struct search_sizes {
    double forward_s[HD_LAYER_KINDS],
        all_s[HD_LAYER_KINDS];                              /* of F, and of F, B and W of a block; a
                                                                lower bound */
    double saved[HD_LAYER_KINDS], deferred[HD_LAYER_KINDS]; /* of one block */
    double inner_deferred[HD_LAYER_KINDS]; /* of a block that continues a recompute segment */
    double base_saved[HD_LAYER_KINDS], base_deferred[HD_LAYER_KINDS]; /* of a chunk, beside its
                                                                          blocks */
    double work[HD_LAYER_KINDS]; /* lower bound of the work memory of a chunk with such a block */
};

/* Layer profiles, and the bytes of them that bounds of memory need. */
struct profiled {
    struct hd_layer_profiles profiles;
    struct search_sizes sizes;
};

/* Bytes of parameters and their optimizer state on one rank, and seconds of a micro-batch in which ZeRO moves
 * them, as struct hd_layer_states has them; by kind of block. */
struct held_state {
    double block[HD_LAYER_KINDS], host[HD_LAYER_KINDS];
    double gathered[HD_LAYER_KINDS];
    double gather_s[HD_LAYER_KINDS], reduce_s[HD_LAYER_KINDS];
    double embedding, head, tied;
};

/* A layout as far as the search has decided it. Kept small: there may be a million. */
struct candidate {
    /* lower bounds of the seconds of training; and of those beside, in which answers are written. A
     * candidate whose cost is known has the sum in bound_s */
    double bound_s, rollout_s;
    int32_t pp, tp, cp, ep, micro_batch;
    /* values of parallel.virtual_stages and parallel.zero_shard; 0: auto */
    int32_t virtual_stages, zero_shard;
    int16_t segment;            /* blocks per recompute segment; 1: full; 0: none or selective */
    int8_t recompute, schedule; /* values of the enums NO_RECOMPUTE .. and NO_SCHEDULE .. */
    int8_t zero, offload;
    int8_t decided; /* how far the candidate is decided: value of enum decided */
    bool raised;    /* the family's bound was raised by blocks of others */
    /* full recompute: segments of one block do not fit, so the candidate only represents longer
     * ones */
    bool only_segments;
    /* layer profiles of its blocks; set from DECIDED_BLOCKS on */
    const struct profiled *blocks;
    /* if segment > 1: bytes without recompute, which tell what backward recomputes of a segment;
     * NULL: unknown */
    const struct search_sizes *plain;
    /* its partition of the model into stages; NULL: stages of even work */
    const struct search_partition *own;
    uint64_t tie_break; /* order among candidates with equal bounds, smallest first */
};

/* A hash table of computed values (layer profiles, schedules): a value computed for one candidate
 * serves all others with an equal key. */
enum { KEY_NUMBERS = 11, MEMO_SLOTS = 1 << 16 };
struct memo {
    struct memo_entry {
        int32_t key[KEY_NUMBERS];
        void *value; /* the computed value; NULL: it cannot be built */
        bool known;
    } * slots; /* [MEMO_SLOTS] hash table */
    int count;
};

/* A step of some micro-batches: the units of each chunk, and the schedules of all stages. */
struct ordered_step {
    struct hd_pipeline pipeline;
    struct hd_units *units; /* [pipeline.chunks] */
    struct hd_schedule order;
};

/* The partition of the model into stages and the schedule of a step. A step of many micro-batches
 * is described by two shorter steps, `step` and `shorter`. */
struct ordered {
    struct ordered_step step, shorter;
    /* how often the difference of the two shorter steps is added; 0: `step` is the whole step */
    double repeats;
    struct ordered_stage {
        /* transformer blocks of all chunks of the stage; blocks of its largest chunk */
        int32_t blocks, largest;
        int32_t before; /* transformer blocks of the model before the stage's first chunk */
        /* most pairs of chunk and micro-batch whose activations are saved at the same time, from F
         * to the end of backward */
        int32_t kept;
        /* most pairs of chunk and micro-batch that are between B and W at the same time */
        int32_t deferred;
    } * stages; /* [step.pipeline.stages] */
};

/* A partition of the model into stages that do not have even work. It uses the schedule of the even
 * partition, `even`. Kept small: there may be many. */
struct search_partition {
    const struct ordered *even;
    struct hd_units *units;       /* [chunks] units of each chunk */
    struct ordered_stage *stages; /* [stages] sizes of each stage */
};

/* Least ratio of the time of ZeRO-3 programs, added up from layer profiles, to that of programs
 * without ZeRO: which weights are gathered first depends on the chunk (step_cost_test). */
#define SEARCH_GATHERED_SHARE 0.97

enum {
    /* layouts that are built to find the one that needs least memory, if no layout fits */
    SEARCH_LOWEST_MAX = 16
};

/* Values of the model that the cost of every candidate needs; computing them for each candidate
 * would take most of a search. */
struct search_model {
    const struct hd_model_config *config;
    /* share of each unit's parameters that trains (hd_step_cost_trained); NULL: not needed */
    const double *trained;
    double flops_per_token;
};

struct layout_search {
    const struct hd_search_asked *asked;
    struct hd_arena *arena; /* memory of the search's result */
    struct hd_arena kept;   /* memory of the tables of computed values, freed with the search */
    struct hd_model_config config;
    struct hd_job job; /* the job's spec with the layout of the last call of search_job */
    /* true: train.trainable trains a part of the model, so updates and optimizer state of trained
     * parameters have no lower bound */
    bool tuned;
    /* true: the trained part may differ from block to block, so saved bytes of blocks have no lower
     * bound */
    bool differ;
    struct search_model model;
    /* [L + 1] numbers of blocks of each kind (hd_model_layer_kind) before a layer; [L]: in all */
    int32_t (*kinds_before)[HD_LAYER_KINDS];
    int kinds[HD_LAYER_KINDS], kind_count; /* kinds of blocks that the model has, ascending */
    /* parameters of the frozen model (job/frozen_model.h), outside experts and of experts; 0:
     * there is none on these ranks */
    int64_t frozen_parameters, frozen_experts;
    struct candidate *heap;
    int64_t count, capacity;
    struct memo blocks, profiles, rollouts, orders, partitions, states;
    /* the schedule of an uneven partition that search_ordered returned last */
    struct ordered repartition;
    int64_t pp_least; /* least pp that the search tries, if the job does not pin pp */
    int64_t variants; /* legal layouts with a ZeRO stage seen so far */
    /* if a layout was built that does not fit: its stage that needs most memory; -1: its last one */
    bool has_full_stage;
    int32_t full_stage;
    struct hd_search *found;
    /* Layouts that do not fit, with the lowest bounds of memory, ascending. */
    struct hd_search_rejected lowest[SEARCH_LOWEST_MAX];
    int lowest_count;
    enum hd_status st;
    /* error of the first candidate that could not be built; HD_OK: all could */
    enum hd_status refused;
    char why[HD_ERR_MAX];
};

/* Sets *ret_model to the values of a model that costs need; they live as long as config and
 * arena. */
enum hd_status search_model_of(const struct hd_model_config *config, struct hd_arena *arena,
                               struct search_model *ret_model);

/* ---- search_candidates.c ---- */

void search_push(struct layout_search *s, const struct candidate *c);
/* Removes the open candidate with the lowest bound from the search's heap, which must not be empty,
 * and returns it. */
struct candidate search_pop(struct layout_search *s);
/* Returns the candidate's rank among candidates with an equal bound; the smallest is refined
 * first. */
uint64_t search_tie_break(const struct candidate *c);
/* Returns what every layout that the candidate represents uses at least (hd_search_axes). */
unsigned search_axes(const struct layout_search *s, const struct candidate *c);
/* Sets the layout of the candidate; false: it is not legal. */
bool search_size(const struct layout_search *s, const struct candidate *c,
                 struct hd_layout_sizes *sizes);
/* Returns the job's spec with this layout, valid until the next call. A struct hd_job is large, so
 * the search has one, of which only the layout changes. */
const struct hd_job *search_job(struct layout_search *s, const struct hd_layout_sizes *sizes);
/* Returns whether offload of the optimizer may be searched: the job leaves it auto, the devices
 * have their own memory, and the hosts' memory is known. */
bool search_may_offload(const struct layout_search *s);
/* Records the error of a layout that cannot be built, if it is the first; it is returned if no
 * layout can be built. Only HD_NO_MEMORY ends the search. */
void search_note_refusal(struct layout_search *s, enum hd_status st);
/* Returns whether the search drops layouts that do not fit the memory. A pinned layout, or the only
 * one, is costed even if it does not fit. */
bool search_may_reject(const struct layout_search *s);

/* ---- search_families.c ---- */

/* Adds every family (tp, pp, cp, ep, micro_batch, recompute) to the search's candidates. */
void search_try_families(struct layout_search *s);
/* Compiles the blocks of a family and adds it to the candidates again with a better bound, if it
 * may fit the memory. */
void search_refine_family(struct layout_search *s, struct candidate *c);

/* ---- search_schedules.c ---- */

/* Adds the candidate, whose blocks are compiled, to the candidates again with every schedule that may
 * fit. */
void search_try_schedules(struct layout_search *s, const struct candidate *c);
/* Adds the partitions that the candidate represents to the candidates. */
void search_refine_partitions(struct layout_search *s, const struct candidate *c);
/* Computes the time of all stages' programs, without update and reductions: a lower bound for every
 * variant with this schedule. */
void search_refine_schedule(struct layout_search *s, struct candidate *c);
/* Adds the candidate with every ZeRO stage, sharded over all replicas or over groups of them. */
void search_try_zeros(struct layout_search *s, const struct candidate *of);
/* Computes the cost of a candidate with a ZeRO stage. */
void search_refine_variant(struct layout_search *s, struct candidate *c);

/* ---- search_segments.c ---- */

/* Returns whether the candidate also represents full recompute with segments of several blocks. */
bool search_has_segments(const struct layout_search *s, const struct candidate *c);
/* Returns whether segments of some length may fit the memory, by a lower bound from the bytes of
 * full recompute without segments (`bytes`) and of no recompute (c->plain). If not, the length that
 * needs least is recorded as rejected. */
bool search_segments_may_fit(struct layout_search *s, const struct candidate *c,
                             const struct hd_layout_sizes *z, const struct ordered *ordered,
                             const struct search_sizes *bytes);
/* Returns the same candidate without recompute. */
struct candidate search_without_recompute(const struct candidate *of);
/* Returns the bytes of the candidate's blocks without recompute; NULL: unknown. */
const struct search_sizes *search_plain_sizes(struct layout_search *s, const struct candidate *c);
/* Adds the variant `of` with segments of every length from 2 blocks on that may fit to the
 * candidates. */
void search_expand_segments(struct layout_search *s, const struct candidate *of);

/* ---- search_infeasible.c ---- */

/* Returns whether offloaded optimizers fit in the memory of the host, which the devices of a node
 * share. */
bool search_host_fits(const struct hd_cluster *cluster, const struct hd_plan *plan);
/* Adds a layout that does not fit to s->lowest, if it needs less memory than one of them. */
void search_note_least(struct layout_search *s, const struct hd_search_rejected *r);
/* Returns whether a layout whose memory has this lower bound may fit; if not, records it as
 * rejected. */
bool search_could_fit(struct layout_search *s, struct hd_search_rejected least);
/* Records as rejected a layout that was built and does not fit the memory. */
void search_reject_plan(struct layout_search *s, const struct hd_search_plan *plan);
/* Sets found->least to the layout that needs least memory. Called if no layout fits. */
void search_find_least(struct layout_search *s);

/* ---- search_bounds.c ---- */

/* Sets the ZeRO stage and the place of the optimizer state (device or host) that need least device
 * memory, among those that the job leaves open. */
void search_take_least_state(struct layout_search *s, struct hd_layout_sizes *sizes);

/* Return a lower bound of a step's seconds: search_ideal_seconds from the model's FLOPs,
 * search_blocks_bound from the times of the candidate's blocks, if some stage takes stage_s in a
 * micro-batch. */
double search_ideal_seconds(const struct layout_search *s);
double search_blocks_bound(const struct layout_search *s, const struct candidate *c,
                           const struct search_sizes *sizes, double stage_s);
/* Returns a lower bound of a step's seconds with any micro-batch and recompute, from the times of blocks with
 * the largest micro-batch and without recompute. */
double search_coarse_bound(const struct layout_search *s, const struct candidate *c,
                           const struct search_sizes *large);
/* Returns a lower bound of a step's seconds for a candidate with a schedule and stages, from the times of
 * its blocks. */
double search_schedule_bound(const struct layout_search *s, const struct candidate *c,
                             const struct ordered *ordered, const struct search_sizes *sizes);
/* Returns a lower bound of the seconds in which a rank gathers weights and reduces gradients in each
 * micro-batch, with the ZeRO stage of `z`. */
double search_traffic_bound(struct layout_search *s, const struct candidate *c,
                            const struct hd_layout_sizes *z, const struct search_sizes *sizes);

/* Returns a lower bound of the memory of the rank that needs most, for a candidate with a schedule, among
 * the stages up to the first one that needs more than `enough` bytes. bytes: of its blocks, or of its layer
 * profiles, which also tell what is deferred for W. */
struct hd_search_rejected search_least_memory(struct layout_search *s, const struct candidate *c,
                                              const struct hd_layout_sizes *z,
                                              const struct ordered *ordered,
                                              const struct search_sizes *bytes, double enough);
/* Returns a lower bound of the seconds of a micro-batch on the slowest stage, of all cuts of the model
 * whose stages may fit the memory; INFINITY: none may. */
double search_cuts_seconds(struct layout_search *s, const struct candidate *c,
                           const struct hd_layout_sizes *z, const struct ordered *ordered,
                           const struct search_sizes *bytes);

/* ---- search_partitions.c ---- */

/* search_may_partition: returns whether partitions into stages of uneven work are searched: the job
 * leaves `stages` auto, everything trains, and the schedule is not from a file.
 * search_has_few_partitions: returns whether there are at most HD_SEARCH_PARTITIONS_MAX. */
bool search_may_partition(const struct layout_search *s, int64_t chunks);
bool search_has_few_partitions(const struct layout_search *s, int64_t chunks);
/* Returns the number of blocks of a chunk: its units without the embedding and the head. */
int32_t search_blocks_of(const struct ordered_step *step, int32_t chunk);
/* Returns the partition whose slowest chunk takes least by these layer profiles; NULL: the even one
 * takes about as little, or there is no memory (s->st). */
const struct search_partition *search_timed_partition(struct layout_search *s,
                                                      const struct ordered *even,
                                                      const struct hd_layer_profiles *profiles);
/* Returns the schedule of the even partition with the units of this partition. */
const struct ordered *search_repartition(struct layout_search *s,
                                         const struct search_partition *partition);
/* Calls `each` with every partition of the model into as many chunks as `even` has, except `even`
 * itself. The partitions live as long as the search. */
void search_each_partition(struct layout_search *s, const struct ordered *even,
                           void (*each)(struct layout_search *s,
                                        const struct search_partition *partition, void *context),
                           void *context);

/* ---- search_memo.c: its functions return NULL if the candidate cannot be built, or without memory
 * (s->st) ---- */

/* Returns the layer profiles of the layout's blocks, without ZeRO: they depend neither on the
 * pipeline stages nor on the replicas. */
const struct profiled *search_blocks(struct layout_search *s, const struct candidate *c,
                                     const struct hd_layout_sizes *sizes);
/* Returns all layer profiles; alone: without replicas and ZeRO, on which F, B and W do not
 * depend. */
const struct profiled *search_profiles(struct layout_search *s, const struct candidate *c,
                                       const struct hd_layout_sizes *sizes, bool alone);
/* Returns the seconds in which the answers of a step of the layout are written; 0: there are none, or its
 * programs cannot be built. */
double search_rollout(struct layout_search *s, const struct hd_layout_sizes *sizes);
/* Returns the schedule of the layout. For an uneven partition it is valid until the next call. */
const struct ordered *search_ordered(struct layout_search *s, const struct candidate *c,
                                     const struct hd_layout_sizes *sizes);

/* Returns the state of the layout's parameters; zeros if it cannot be laid out. */
const struct held_state *search_state(struct layout_search *s, const struct hd_layout_sizes *sizes);

/* Compute the cost of a whole step of one layout. rollout_s: of search_rollout. */
enum hd_status search_walk(const struct hd_search_asked *asked, const struct search_model *model,
                           const struct hd_job *job, const struct hd_layer_profiles *profiles,
                           const struct ordered *ordered, double rollout_s,
                           struct hd_step_cost *ret_cost);
enum hd_status search_cost(const struct hd_search_asked *asked,
                           const struct hd_model_config *config, const struct hd_job *job,
                           struct hd_step_cost *ret_cost);

#endif
