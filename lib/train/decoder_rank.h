/* decoder_rank: what one rank does for a decoder (decoder.h): it has its share of the model and of
 * the caches, and runs the D programs of its stage. Only for lib/train.
 *
 * All ranks make the same calls in the same order, each in its own thread. In `run` they wait for
 * each other wherever tp ranks exchange, and a stage for the hidden rows of the stage before it.
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
        int64_t B, S; /* sequences, tokens of each */
        struct hd_chunk *chunk;
        struct hd_bound **bound; /* [lanes] */
    } programs[DECODER_PROGRAMS_MAX];
    int program_count, slots, micro_batches;
    struct decoder_link link;
    const struct decode_program **last; /* [lanes] of the last run */
    int32_t *fields;                    /* [rows + 3 * slots], for the batch */
};

/* A part of the rows of a run: one call of a program, in a lane of its own. */
struct decoder_part {
    const struct hd_decoder_rows *rows;
    int count;
};

/* meeting: NULL with one rank. Close it also after a failure. */
enum hd_status decoder_rank_open(struct decoder_rank *rank,
                                 const struct hd_decoder_options *options, int number,
                                 const struct hd_shm_control *connecting);
void decoder_rank_close(struct decoder_rank *rank);

/* Part k in lane k; at most pp of them. The rows are those of hd_decoder_run, and have been
 * checked.
 */
enum hd_status decoder_rank_run(struct decoder_rank *rank, const struct decoder_part *parts,
                                int count);
/* Writes this rank's part of the logits [V] behind a token of the last run; `index` and `row` are
 * in that part of it. */
enum hd_status decoder_rank_logits(struct decoder_rank *rank, int part, int index, int64_t row,
                                   float *ret_all);

#endif
