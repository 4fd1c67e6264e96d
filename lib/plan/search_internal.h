/* search_internal: declarations that the files of the search share.
 *
 *     search.c             the loop, and its steps from schedules on
 *     search_candidates.c  the heap of candidates, and how one becomes a layout
 *     search_families.c    the first two steps: families, and those that may fit
 *     search_bounds.c      lower bounds of time and memory
 *     search_partitions.c  cuts of the model into stages other than the even one
 *     search_memo.c        layer profiles and schedules, each made once; costs
 *     search_infeasible.c  layouts that do not fit, and which of them needs least
 */
#ifndef HD_PLAN_SEARCH_INTERNAL_H
#define HD_PLAN_SEARCH_INTERNAL_H

#include "plan/search.h"

/* Choices of a candidate, one enum per member; PINNED_..: the job gives the value. */
enum { NO_RECOMPUTE, SELECTIVE, FULL, SEGMENTS, PINNED_RECOMPUTE };
/* gpipe saves more than 1f1b, but waits less for transfers: F does not wait for B. */
enum { NO_SCHEDULE, ONE_F_ONE_B, INTERLEAVED, ZB_H1, ZB_V, GPIPE, PINNED_SCHEDULE };
enum { NO_OFFLOAD, OFFLOAD_OPTIMIZER, OFFLOADS, PINNED_OFFLOAD = OFFLOADS };

/* How far a candidate is decided, and what its bound contains. */
enum decided {
    DECIDED_FAMILY,
    DECIDED_BLOCKS, /* its blocks are compiled */
    /* represents all layouts with this schedule whose stages are not cut evenly */
    DECIDED_PARTITIONS,
    DECIDED_SCHEDULE, /* has a schedule; the bound is that of its blocks */
    DECIDED_WALKED,   /* its programs were walked, without ZeRO */
    DECIDED_VARIANT,  /* has a ZeRO stage, too */
    DECIDED_COSTED
};

/* A layout as far as the search has decided it. Kept small: there may be a million. */
struct candidate {
    double bound_s;
    int32_t pp, tp, cp, ep, micro_batch;
    int32_t virtual_stages, zero_shard; /* values of parallel.*; 0: auto */
    int16_t segment;            /* blocks per recompute segment; 1: full; 0: none or selective */
    int8_t recompute, schedule; /* values of the enums above */
    int8_t zero, offload;
    int8_t decided;                         /* value of enum decided */
    const struct hd_layer_profiles *blocks; /* set from DECIDED_BLOCKS on */
    /* if segment > 1: profiles without recompute, which tell what backward recomputes of a segment;
     * NULL: unknown */
    const struct hd_layer_profiles *plain;
    const struct search_partition *own; /* its cut of the model; NULL: the even one */
    uint64_t tie_break;                 /* order among equal bounds, smallest first */
};

/* A memo: a value made for one candidate serves all others with an equal key. */
enum { KEY_NUMBERS = 11, MEMO_SLOTS = 1 << 16 };
struct memo {
    struct memo_entry {
        int32_t key[KEY_NUMBERS];
        void *value; /* NULL: it cannot be built */
        bool known;
    } * slots; /* [MEMO_SLOTS] hash table */
    int count;
};

/* The cut of the model and the schedule of a step. A step of many micro-batches is described by two
 * shorter steps. */
struct ordered {
    struct hd_rank_program_shared shared, shorter;
    /* how often the difference of the two shorter steps is added; 0: `shared` is the whole step */
    double repeats;
    struct ordered_stage {
        int32_t blocks, largest; /* blocks of all its chunks; blocks of its largest chunk */
        int32_t before;          /* blocks of the model before its first chunk */
        /* most pairs (chunk, micro-batch) that are between F and the end of backward at the same
         * time */
        int32_t kept;
        int32_t deferred; /* most pairs between B and W at the same time */
    } * stages;           /* [shared.pipeline.stages] */
};

/* A cut of the model other than the even one, with whose schedule it runs. Kept small: there may be
 * many. */
struct search_partition {
    const struct ordered *even;
    struct hd_units *units;       /* [chunks] units of each chunk */
    struct ordered_stage *stages; /* [stages] sizes of each stage */
};

enum {
    SEARCH_LOWEST_MAX = 16 /* layouts that do not fit and are built, if no layout fits */
};

/* Values of the model that every cost needs; finding them for each candidate would take most of a
 * search. */
struct search_model {
    const struct hd_model_config *config;
    const double *trained; /* from hd_step_cost_trained */
    double flops_per_token;
};

struct layout_search {
    const struct hd_search_asked *asked;
    struct hd_arena *arena; /* memory of the result */
    struct hd_arena kept;   /* memory of the memos */
    struct hd_model_config config;
    /* train.only trains a part of the model: updates and optimizer state of trained parameters have
     * no lower bound */
    bool tuned;
    /* the trained part may differ from block to block: saved bytes of blocks have no lower bound */
    bool differ;
    struct search_model model;
    /* Parameters of one block, not split, in the layout's precision: outside experts, and of
     * experts. */
    int64_t block_parameters, block_experts;
    /* parameters of embedding and head; a tied table counts once */
    int64_t first_parameters, last_parameters;
    /* If tuned: parameters that do not train, in the block that has fewest, and in embedding and
     * head. */
    int64_t block_frozen, experts_frozen, first_frozen, last_frozen;
    struct candidate *heap;
    int64_t count, capacity;
    struct memo blocks, profiles, orders, partitions;
    struct ordered repartition; /* the cut that search_ordered returned last */
    const struct ordered *repartition_from;
    int64_t pp_least; /* least pp that is tried, if pp is not pinned */
    int64_t variants; /* legal layouts with a ZeRO stage seen so far */
    struct hd_search *found;
    /* The layouts that do not fit and need least, by ascending bound. */
    struct hd_search_rejected lowest[SEARCH_LOWEST_MAX];
    int lowest_count;
    enum hd_status st;
    enum hd_status refused; /* why the first candidate that could not be built failed */
    char why[HD_ERR_MAX];
};

/* Keeps the first error of a layout that cannot be built, for the case that none can. Only
 * HD_NO_MEMORY ends the search. */
void search_note_refusal(struct layout_search *s, enum hd_status st);

/* Computes a search_model, which lives as long as config and arena. */
enum hd_status search_model_of(const struct hd_model_config *config, struct hd_arena *arena,
                               struct search_model *ret_model);

/* ---- search_candidates.c ---- */

void search_push(struct layout_search *s, const struct candidate *c);
/* Removes and returns the candidate with the lowest bound; the heap must not be empty. */
struct candidate search_pop(struct layout_search *s);
/* Returns the candidate's order among candidates with an equal bound; smaller is first. */
uint64_t search_tie_break(const struct candidate *c);
/* Computes the candidate's layout; false: it is not legal. Turns off sequence parallelism that is
 * auto where tp does not divide the rows. */
bool search_size(const struct layout_search *s, const struct candidate *c,
                 struct hd_layout_sizes *sizes);
/* Returns the spec with this layout. */
struct hd_job search_job(const struct layout_search *s, const struct hd_layout_sizes *sizes);
/* Returns whether offload of the optimizer may be searched: the job leaves it auto, the devices
 * have their own memory, and the hosts' memory is known. */
bool search_may_offload(const struct layout_search *s);
/* Sets the ZeRO stage and the place of the optimizer state that need least memory, among those that
 * may be searched. */
void search_take_least_state(const struct layout_search *s, struct hd_layout_sizes *sizes);

/* ---- search_families.c ---- */

/* Pushes every family. */
void search_try_families(struct layout_search *s);
/* Compiles the family's blocks and pushes it again, if it may fit. */
void search_refine_family(struct layout_search *s, struct candidate *c);
/* Pushes full recompute in segments of two blocks, of three .. as families of their own. Their time
 * is at least that of single blocks, since backward also recomputes the input of each block that
 * continues a segment. All share one set of layer profiles, which is compiled if one of them may
 * fit. The longest segments save least; those that do not fit are too many to note one by one. */
void search_try_segments(struct layout_search *s, const struct candidate *of);
/* Returns whether a layout that does not fit is dropped. A pinned layout, or the only one, is
 * costed even if it does not fit. */
bool search_may_reject(const struct layout_search *s);

/* ---- search_infeasible.c ---- */

/* Returns the bytes of the largest rank; sets *ret_most to its class. */
int64_t search_needed(const struct hd_plan *plan, const struct hd_traits *traits,
                      const struct hd_plan_class **ret_most);
/* Returns whether offloaded optimizers fit in the memory of the host, which the devices of a node
 * share. */
bool search_host_fits(const struct hd_cluster *cluster, const struct hd_plan *plan);
/* Notes a layout that does not fit among those that need least. */
void search_note_least(struct layout_search *s, const struct hd_search_rejected *r);
/* Returns whether a layout with this lower bound may fit; if not, notes it as rejected. */
bool search_could_fit(struct layout_search *s, struct hd_search_rejected least);
/* Notes a layout that was built and does not fit. */
void search_reject_plan(struct layout_search *s, const struct hd_search_plan *plan);
/* Sets found->least. Called if no layout fits. */
void search_find_least(struct layout_search *s);

/* ---- search_bounds.c ---- */

/* Returns a lower bound of the host memory of a rank's offloaded optimizer state, bytes. */
double search_host_bytes(const struct layout_search *s, const struct hd_layout_sizes *z);

/* Return a lower bound of a step's seconds: by the model's FLOPs; by the candidate's blocks. */
double search_ideal_seconds(const struct layout_search *s);
double search_blocks_bound(const struct layout_search *s, const struct candidate *c);
/* Returns a lower bound of a step's seconds for a candidate that has a schedule. */
double search_schedule_bound(const struct layout_search *s, const struct candidate *c,
                             const struct ordered *ordered);
/* Returns a lower bound of a step's seconds for a candidate whose programs were walked, with the
 * ZeRO stage of `z`. */
double search_variant_bound(const struct layout_search *s, const struct candidate *c,
                            const struct hd_layout_sizes *z);

/* Return a lower bound of the largest rank's memory. search_family_memory: before the family is
 * compiled, by the blocks of `reference`, which has one sequence per micro-batch, cp 1 and ep 1.
 * search_least_memory: with a schedule, by the candidate's own blocks or by its layer profiles,
 * which also tell what is deferred for W. */
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

/* Returns whether cuts other than the even one are searched: the job leaves `stages` auto,
 * everything trains, the schedule is not from a file, and there are at most
 * HD_SEARCH_PARTITIONS_MAX cuts. */
bool search_has_partitions(const struct layout_search *s, int64_t chunks);
/* Returns the schedule of the even cut with the units of this cut. */
const struct ordered *search_repartition(struct layout_search *s,
                                         const struct search_partition *partition);
/* Calls `each` with every cut of the model into as many chunks, except the even one. The cuts live
 * as long as the search. */
void search_each_partition(struct layout_search *s, const struct ordered *even,
                           void (*each)(struct layout_search *s,
                                        const struct search_partition *partition, void *context),
                           void *context);

/* ---- search_memo.c: its functions return NULL if the candidate cannot be built, or without memory
 * (s->st) ---- */

/* Returns the profiles of the layout's blocks, without ZeRO: they depend neither on the stages nor
 * on the replicas. */
const struct hd_layer_profiles *search_blocks(struct layout_search *s, const struct candidate *c,
                                              const struct hd_layout_sizes *sizes);
/* Returns the number of blocks of a chunk: its units without the embedding and the head. */
int32_t search_blocks_of(const struct hd_rank_program_shared *shared, int32_t chunk);
/* Returns all layer profiles; alone: without replicas and ZeRO, on which F, B and W do not
 * depend. */
const struct hd_layer_profiles *search_profiles(struct layout_search *s, const struct candidate *c,
                                                const struct hd_layout_sizes *sizes, bool alone);
/* Returns the schedule of the layout. For a cut that is not even it is valid until the next
 * call. */
const struct ordered *search_ordered(struct layout_search *s, const struct candidate *c,
                                     const struct hd_layout_sizes *sizes);

/* Compute the cost of a whole step. */
enum hd_status search_walk(const struct hd_search_asked *asked, const struct search_model *model,
                           const struct hd_job *job, const struct hd_layer_profiles *profiles,
                           const struct ordered *ordered, struct hd_step_cost *ret_cost);
enum hd_status search_cost(const struct hd_search_asked *asked,
                           const struct hd_model_config *config, const struct hd_job *job,
                           struct hd_step_cost *ret_cost);

#endif
