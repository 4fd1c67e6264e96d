/* search_internal: what the files of the search share.
 *
 *     search.c         candidates, best first, and what is searched
 *     search_bounds.c  lower bounds of time and memory
 *     search_known.c   pieces and orders, each made once; prices
 */
#ifndef HD_PLAN_SEARCH_INTERNAL_H
#define HD_PLAN_SEARCH_INTERNAL_H

#include "plan/search.h"

/* What a candidate has decided, and what its bound is of. */
enum decided {
    DECIDED_FAMILY,
    DECIDED_BLOCKS,   /* its blocks are compiled */
    DECIDED_SCHEDULE, /* has a schedule; the bound is of its blocks */
    DECIDED_WALKED,   /* its programs were walked, without ZeRO */
    DECIDED_VARIANT,  /* has a stage of ZeRO, too */
    DECIDED_PRICED
};

/* A layout, as far as the search has decided it. Small: there may be a million. */
struct candidate {
    double bound_s;
    int32_t pp, tp, cp, ep, micro_batch;
    int32_t virtual_stages, zero_shard; /* 0: auto */
    int16_t segment;                    /* blocks between those that recompute keeps the input of;
                                           1: full; 0: none, selective */
    int8_t recompute, schedule;         /* indices into the lists of search.c */
    int8_t zero, offload;
    int8_t decided;                 /* enum decided */
    const struct hd_pieces *blocks; /* DECIDED_BLOCKS and later */
    const struct hd_pieces *plain;  /* segment > 1: the same without recompute, whose values
                                       backward has of a whole segment; NULL: not known */
    uint64_t habit;                 /* of equal bounds the smaller one is first */
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
    struct hd_layout_shared shared, shorter;
    double repeats; /* of what the longer of the two has more; 0: `shared` is the whole step */
    struct ordered_stage {
        int32_t blocks, largest; /* of all its chunks; of the chunk that has most */
        int32_t before;          /* of all chunks before its first one */
        int32_t kept;            /* (chunk, micro-batch) that are between F and the end of backward
                                    at the same time, at most */
    } * stages;                  /* [shared.pipeline.stages] */
};

struct layout_search {
    const struct hd_search_asked *asked;
    struct hd_arena *arena; /* of the result */
    struct hd_arena kept;   /* of memos */
    struct hd_model_config config;
    bool tuned; /* a part of the model trains (train.only): no bound of memory or of updates */
    const double *trained;                     /* hd_price_trained */
    int64_t block_parameters;                  /* of one block, whole */
    int64_t first_parameters, last_parameters; /* of embedding and head; a tied table counts once */
    struct candidate *heap;
    int64_t count, room;
    struct memo blocks, pieces, orders, cuts;
    int64_t variants; /* legal layouts with a stage of ZeRO that were seen */
    struct hd_search *found;
    enum hd_status st;
    enum hd_status refused; /* why a candidate could not be laid out; the first */
    char why[HD_ERR_MAX];
};

/* The spec in this layout. */
struct hd_job search_job(const struct layout_search *s, const struct hd_layout_sizes *sizes);

/* Keeps the story of a layout that cannot be laid out, in case none can. Only HD_NO_MEMORY ends the
 * search. */
void search_note_refusal(struct layout_search *s, enum hd_status st);

/* The optimizer may be kept on the host although the job leaves that open: the devices have memory
 * of their own, and it is known how much their hosts have. */
bool search_may_offload(const struct layout_search *s);

/* ---- search_bounds.c ---- */

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
 * which has one sequence per micro-batch, cp 1 and ep 1; and with a schedule. */
struct hd_search_rejected search_family_memory(const struct layout_search *s,
                                               const struct candidate *c,
                                               const struct hd_layout_sizes *z,
                                               const struct hd_pieces *reference);
struct hd_search_rejected search_least_memory(const struct layout_search *s,
                                              const struct candidate *c,
                                              const struct hd_layout_sizes *z,
                                              const struct ordered *ordered);

/* ---- search_known.c ---- NULL: it cannot be laid out, or there is no memory (s->st) */

/* The blocks of a layout, without ZeRO: they depend neither on the stages nor on the replicas. */
const struct hd_pieces *search_blocks(struct layout_search *s, const struct candidate *c,
                                      const struct hd_layout_sizes *sizes);
/* All pieces; alone: without replicas and ZeRO, on which F, B and W do not depend. */
const struct hd_pieces *search_pieces(struct layout_search *s, const struct candidate *c,
                                      const struct hd_job *job, bool alone);
const struct ordered *search_ordered(struct layout_search *s, const struct candidate *c,
                                     const struct hd_job *job);

/* The price of the whole step. */
enum hd_status search_walk(const struct hd_search_asked *asked,
                           const struct hd_model_config *config, const struct hd_job *job,
                           const struct hd_pieces *pieces, const struct ordered *ordered,
                           const double *trained, struct hd_price *ret_price);
enum hd_status search_price(const struct hd_search_asked *asked,
                            const struct hd_model_config *config, const struct hd_job *job,
                            struct hd_price *ret_price);

#endif
