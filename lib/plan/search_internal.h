/* search_internal: what the files of the search share.
 *
 *     search.c             the loop, and its steps from schedules on
 *     search_candidates.c  the heap of candidates, and how one becomes a layout
 *     search_families.c    the first two steps: families, and those that may fit
 *     search_bounds.c      lower bounds of time and memory
 *     search_partitions.c        other bounds of stages than the even ones
 *     search_memo.c       layer profiles and orders, each made once; costs
 *     search_infeasible.c     what does not fit, and what of it needs least
 */
#ifndef HD_PLAN_SEARCH_INTERNAL_H
#define HD_PLAN_SEARCH_INTERNAL_H

#include "plan/search.h"

/* What a candidate chooses among; PINNED: the job says it. */
enum { NO_RECOMPUTE, SELECTIVE, FULL, SEGMENTS, PINNED_RECOMPUTE };
/* gpipe keeps more than 1f1b, but waits less for what travels: F does not wait for B. */
enum { NO_SCHEDULE, ONE_F_ONE_B, INTERLEAVED, ZB_H1, ZB_V, GPIPE, PINNED_SCHEDULE };
enum { NO_OFFLOAD, OFFLOAD_OPTIMIZER, OFFLOADS, PINNED_OFFLOAD = OFFLOADS };

/* What a candidate has decided, and what its bound is of. */
enum decided {
    DECIDED_FAMILY,
    DECIDED_BLOCKS,     /* its blocks are compiled */
    DECIDED_PARTITIONS, /* stands for all layouts with this schedule whose stages are not even */
    DECIDED_SCHEDULE,   /* has a schedule; the bound is of its blocks */
    DECIDED_WALKED,     /* its programs were walked, without ZeRO */
    DECIDED_VARIANT,    /* has a stage of ZeRO, too */
    DECIDED_COSTED
};

/* A layout, as far as the search has decided it. Small: there may be a million. */
struct candidate {
    double bound_s;
    int32_t pp, tp, cp, ep, micro_batch;
    int32_t virtual_stages, zero_shard; /* 0: auto */
    int16_t segment;                    /* blocks between those that recompute keeps the input of;
                                           1: full; 0: none, selective */
    int8_t recompute, schedule;         /* of the lists above */
    int8_t zero, offload;
    int8_t decided;                         /* enum decided */
    const struct hd_layer_profiles *blocks; /* DECIDED_BLOCKS and later */
    const struct hd_layer_profiles *plain;  /* segment > 1: the same without recompute, whose values
                                       backward has of a whole segment; NULL: not known */
    const struct search_partition *own;     /* its cut is not the even one; NULL: it is */
    uint64_t tie_break;                     /* of equal bounds the smaller one is first */
};

/* What was made for one candidate serves all others that agree in these numbers. */
enum { KEY_NUMBERS = 11, MEMO_SLOTS = 1 << 16 };
struct memo {
    struct memo_entry {
        int32_t key[KEY_NUMBERS];
        void *value; /* NULL: it cannot be laid out */
        bool known;
    } * slots; /* [MEMO_SLOTS] */
    int count;
};

/* The cut of the model, and the orders of a step; of many micro-batches those of two shorter
 * steps. */
struct ordered {
    struct hd_rank_program_shared shared, shorter;
    double repeats; /* of what the longer of the two has more; 0: `shared` is the whole step */
    struct ordered_stage {
        int32_t blocks, largest; /* of all its chunks; of the chunk that has most */
        int32_t before;          /* of all chunks before its first one */
        int32_t kept;            /* (chunk, micro-batch) that are between F and the end of backward
                                    at the same time, at most */
        int32_t deferred;        /* of those, between B and W */
    } * stages;                  /* [shared.pipeline.stages] */
};

/* Another cut than the even one, whose order serves it, too. Small: there may be many. */
struct search_partition {
    const struct ordered *even;
    struct hd_units *units;       /* [chunks] */
    struct ordered_stage *stages; /* [stages] */
};

enum {
    SEARCH_LOWEST_MAX = 16 /* of layouts that do not fit, so many are laid out where none fits */
};

/* What costs need of the model, in whatever layout: to find it anew for each would take most of a
 * search. */
struct search_model {
    const struct hd_model_config *config;
    const double *trained; /* hd_step_cost_trained */
    double flops_per_token;
};

struct layout_search {
    const struct hd_search_asked *asked;
    struct hd_arena *arena; /* of the result */
    struct hd_arena kept;   /* of memos */
    struct hd_model_config config;
    bool tuned;  /* a part of the model trains (train.only): no bound of updates, nor of the states
                    of what trains */
    bool differ; /* and it may be another one in each block: no bound of what blocks keep */
    struct search_model model;
    /* Of one block, whole, that compute in the layout's precision: outside experts, and theirs. */
    int64_t block_parameters, block_experts;
    int64_t first_parameters, last_parameters; /* of embedding and head; a tied table counts once */
    /* If tuned: of those that do not train, in the block that has fewest; of both ends. */
    int64_t block_frozen, experts_frozen, first_frozen, last_frozen;
    struct candidate *heap;
    int64_t count, capacity;
    struct memo blocks, profiles, orders, partitions;
    struct ordered repartition; /* the cut that search_ordered was asked for last */
    const struct ordered *repartition_from;
    int64_t pp_least; /* of layouts that are tried, where pp is not pinned */
    int64_t variants; /* legal layouts with a stage of ZeRO that were seen */
    struct hd_search *found;
    /* Of the layouts that do not fit, those that need least: the smallest bound first. */
    struct hd_search_rejected lowest[SEARCH_LOWEST_MAX];
    int lowest_count;
    enum hd_status st;
    enum hd_status refused; /* why a candidate could not be laid out; the first */
    char why[HD_ERR_MAX];
};

/* Keeps the story of a layout that cannot be laid out, in case none can. Only HD_NO_MEMORY ends the
 * search. */
void search_note_refusal(struct layout_search *s, enum hd_status st);

/* The model lives as long as config and arena. */
enum hd_status search_model_of(const struct hd_model_config *config, struct hd_arena *arena,
                               struct search_model *ret_model);

/* ---- search_candidates.c ---- */

void search_push(struct layout_search *s, const struct candidate *c);
/* Takes out the candidate with the lowest bound; there is one. */
struct candidate search_pop(struct layout_search *s);
/* The candidate's place among those with its bound. */
uint64_t search_tie_break(const struct candidate *c);
/* The layout; false: it is not legal. A job that leaves sequence parallelism auto goes without it
 * where tp does not divide the rows. */
bool search_size(const struct layout_search *s, const struct candidate *c,
                 struct hd_layout_sizes *sizes);
/* The spec in this layout. */
struct hd_job search_job(const struct layout_search *s, const struct hd_layout_sizes *sizes);
/* The optimizer may be kept on the host although the job leaves that open: the devices have memory
 * of their own, and it is known how much their hosts have. */
bool search_may_offload(const struct layout_search *s);
/* The stage of ZeRO, and the place of the optimizer, that take least, of those that may be
 * searched. */
void search_take_least_state(const struct layout_search *s, struct hd_layout_sizes *sizes);

/* ---- search_families.c ---- */

/* Pushes every family. */
void search_try_families(struct layout_search *s);
/* Pushes the family again, its blocks compiled, if it may fit. */
void search_refine_family(struct layout_search *s, struct candidate *c);
/* Full recompute of two blocks together, of three ..: families of their own, whose time is at least
 * that of single blocks, since backward makes the input of a block that continues a segment, too.
 * All have the same layer profiles, which are compiled if one of them may fit. The longest segments
 * keep
 * least; the others that do not fit are too many to note. */
void search_try_segments(struct layout_search *s, const struct candidate *of);
/* A layout that is pinned, or the only one, is costed even if it does not fit. */
bool search_may_reject(const struct layout_search *s);

/* ---- search_infeasible.c ---- */

/* Bytes of the rank that takes most, which is *ret_most. */
int64_t search_needed(const struct hd_plan *plan, const struct hd_traits *traits,
                      const struct hd_plan_class **ret_most);
/* An offloaded optimizer has room in the memory of the host, which the devices of a node share. */
bool search_host_fits(const struct hd_cluster *cluster, const struct hd_plan *plan);
/* A layout that does not fit is among those that may need least. */
void search_note_least(struct layout_search *s, const struct hd_search_rejected *r);
/* False, with a note of it: even the least that it takes is too much. */
bool search_could_fit(struct layout_search *s, struct hd_search_rejected least);
/* Notes a layout that was laid out and does not fit. */
void search_reject_plan(struct layout_search *s, const struct hd_search_plan *plan);
/* If no layout fits: sets found->least. */
void search_find_least(struct layout_search *s);

/* ---- search_bounds.c ---- */

/* Bytes that a rank's optimizer takes in the host's memory, at least, where it is offloaded. */
double search_host_bytes(const struct layout_search *s, const struct hd_layout_sizes *z);

/* Seconds of a step, at least: by the model's FLOPs; by the blocks that the candidate has. */
double search_ideal_seconds(const struct layout_search *s);
double search_blocks_bound(const struct layout_search *s, const struct candidate *c);
/* The same of a candidate that has a schedule. */
double search_schedule_bound(const struct layout_search *s, const struct candidate *c,
                             const struct ordered *ordered);
/* The same of a candidate whose programs were walked, with the stage of ZeRO in `z`. */
double search_variant_bound(const struct layout_search *s, const struct candidate *c,
                            const struct hd_layout_sizes *z);

/* Bytes that some rank takes at least: before the family is compiled, by the blocks of `reference`,
 * which has one sequence per micro-batch, cp 1 and ep 1; and with a schedule, by the candidate's
 * blocks or by its layer profiles, which know what W waits for. */
struct hd_search_rejected search_family_memory(const struct layout_search *s,
                                               const struct candidate *c,
                                               const struct hd_layout_sizes *z,
                                               const struct hd_layer_profiles *reference);
struct hd_search_rejected search_least_memory(const struct layout_search *s,
                                              const struct candidate *c,
                                              const struct hd_layout_sizes *z,
                                              const struct ordered *ordered,
                                              const struct hd_layer_profiles *profiles);

/* ---- search_partitions.c ---- */

/* The bounds of stages are searched: the job leaves them open, everything trains, and there are at
 * most HD_SEARCH_PARTITIONS_MAX. */
bool search_has_partitions(const struct layout_search *s, int64_t chunks);
/* The order of the even cut with the units of this one. */
const struct ordered *search_repartition(struct layout_search *s,
                                         const struct search_partition *partition);
/* Calls `each` with every cut of the model into as many chunks but the even one. The cuts live as
 * long as the search. */
void search_each_partition(struct layout_search *s, const struct ordered *even,
                           void (*each)(struct layout_search *s,
                                        const struct search_partition *partition, void *context),
                           void *context);

/* ---- search_memo.c ---- NULL: it cannot be laid out, or there is no memory (s->st) */

/* The blocks of a layout, without ZeRO: they depend neither on the stages nor on the replicas. */
const struct hd_layer_profiles *search_blocks(struct layout_search *s, const struct candidate *c,
                                              const struct hd_layout_sizes *sizes);
/* How many blocks a chunk has: its units but for the embedding and the head. */
int32_t search_blocks_of(const struct hd_rank_program_shared *shared, int32_t chunk);
/* All layer profiles; alone: without replicas and ZeRO, on which F, B and W do not depend. */
const struct hd_layer_profiles *search_profiles(struct layout_search *s, const struct candidate *c,
                                                const struct hd_layout_sizes *sizes, bool alone);
/* Of a cut that is not even it is there until the next call. */
const struct ordered *search_ordered(struct layout_search *s, const struct candidate *c,
                                     const struct hd_layout_sizes *sizes);

/* The cost of the whole step. */
enum hd_status search_walk(const struct hd_search_asked *asked, const struct search_model *model,
                           const struct hd_job *job, const struct hd_layer_profiles *profiles,
                           const struct ordered *ordered, struct hd_step_cost *ret_cost);
enum hd_status search_cost(const struct hd_search_asked *asked,
                           const struct hd_model_config *config, const struct hd_job *job,
                           struct hd_step_cost *ret_cost);

#endif
