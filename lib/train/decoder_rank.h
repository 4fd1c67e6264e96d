/* decoder_rank: one rank of a decoder (decoder.h), with its shard of the model and of the caches;
 * runs the D programs of its stage. Only for lib/train.
 *
 * All ranks make the same calls in the same order, each in its own thread. decoder_rank_run waits
 * for the other tp ranks in their collectives, and for the hidden rows of the previous stage.
 */
#ifndef HD_TRAIN_DECODER_RANK_H
#define HD_TRAIN_DECODER_RANK_H

#include "train/decoder.h"
#include "train/decoder_link.h"
#include "train/inference_rank.h"

enum { DECODER_PROGRAMS_MAX = 32 };

/* Programs of one model, or of the layer that drafts, for calls of different sizes. */
struct decode_programs {
    struct decode_program {
        /* B: sequences that one call of the program computes; S: tokens per sequence */
        int64_t B, S;
        bool drafts;
        struct hd_chunk *chunk;
        struct hd_bound **bound; /* [lanes] */
    } list[DECODER_PROGRAMS_MAX];
    int count;
};

struct decoder_rank {
    struct hd_inference_rank model;
    struct decode_programs programs, drafts; /* drafts: none on ranks without the head */
    int slots, micro_batches;
    int drafts_max; /* most tokens that are drafted at a time; 0: none */
    struct decoder_link link;
    /* [lanes], the program that each lane ran in the last decoder_rank_run or decoder_rank_draft */
    const struct decode_program **last;
    /* [rows + 3 * slots], host buffer in which the values of one batch field are prepared */
    int32_t *fields;
};

/* Sequences of one decoder_rank_run that one call of a program computes, in a lane of its own. */
struct decoder_part {
    const struct hd_decoder_rows *rows;
    int count;
    /* [count], in decoder_rank_draft: index, among the rows of the sequence that the lane computed
     * last, of the row that the first of `rows` continues */
    const int64_t *from;
};

/* Opens rank `number` of a decoder. connecting: memory through which the ranks connect; NULL if the
 * decoder has one rank. Call decoder_rank_close also after a failure. */
enum hd_status decoder_rank_open(struct decoder_rank *rank,
                                 const struct hd_decoder_options *options, int number,
                                 const struct hd_shm_control *connecting);
void decoder_rank_close(struct decoder_rank *rank);

/* Computes part k of `parts` in lane k; there are at most pp parts. The rows of the parts are those
 * of hd_decoder_run, which has checked them. */
enum hd_status decoder_rank_run(struct decoder_rank *rank, const struct decoder_part *parts,
                                int count);
/* Drafts in the lanes of the last decoder_rank_run: part k in lane k. A sequence of the lane whose
 * count is 0 is left out, as is a part with none but such. Ranks without the head do nothing. */
enum hd_status decoder_rank_draft(struct decoder_rank *rank, const struct decoder_part *parts,
                                  int count);
/* Writes this rank's share of the logits [V] behind one token of the last decoder_rank_run or
 * decoder_rank_draft: the token is `row` of sequence `index` of part `part`; a draft has those of a
 * sequence's last row alone, and `row` is not used. */
enum hd_status decoder_rank_logits(struct decoder_rank *rank, int part, int index, int64_t row,
                                   float *ret_all);

#endif
