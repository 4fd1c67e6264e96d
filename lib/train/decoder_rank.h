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

enum { DECODER_PROGRAMS_MAX = 16 };

struct decoder_rank {
    struct hd_inference_rank model;
    struct decode_program {
        int64_t B, S; /* sequences, tokens per sequence */
        struct hd_chunk *chunk;
        struct hd_bound **bound; /* [lanes] */
    } programs[DECODER_PROGRAMS_MAX];
    int program_count, slots, micro_batches;
    struct decoder_link link;
    const struct decode_program **last; /* [lanes], the programs of the last run */
    int32_t *fields;                    /* [rows + 3 * slots], host buffer for one batch field */
};

/* Sequences of a run that one call of a program computes, in a lane of its own. */
struct decoder_part {
    const struct hd_decoder_rows *rows;
    int count;
};

/* Opens rank `number` of a decoder. connecting: NULL with one rank. Close the rank also after a
 * failure. */
enum hd_status decoder_rank_open(struct decoder_rank *rank,
                                 const struct hd_decoder_options *options, int number,
                                 const struct hd_shm_control *connecting);
void decoder_rank_close(struct decoder_rank *rank);

/* Runs part k in lane k; at most pp parts. The rows are those of hd_decoder_run, already
 * checked. */
enum hd_status decoder_rank_run(struct decoder_rank *rank, const struct decoder_part *parts,
                                int count);
/* Writes this rank's columns of the logits [V] behind a token of the last run; `index` and `row`
 * count within part `part`. */
enum hd_status decoder_rank_logits(struct decoder_rank *rank, int part, int index, int64_t row,
                                   float *ret_all);

#endif
