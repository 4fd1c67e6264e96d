/* decoder_rank: what one rank does for a decoder (decoder.h): it has its share of the model and of
 * the caches, and runs the D programs. Only for lib/train.
 *
 * All ranks make the same calls in the same order, each in its own thread. In `run` they wait for
 * each other wherever tp ranks exchange.
 */
#ifndef HD_TRAIN_DECODER_RANK_H
#define HD_TRAIN_DECODER_RANK_H

#include "train/decoder.h"
#include "train/loaded.h"

enum { DECODER_PROGRAMS_MAX = 16 };

struct decoder_rank {
    struct hd_loaded model;
    struct decode_program {
        int64_t B, S; /* sequences, tokens of each */
        struct hd_chunk *chunk;
        struct hd_bound *bound;
    } programs[DECODER_PROGRAMS_MAX];
    int program_count, slots;
    const struct decode_program *last; /* of the last call; NULL: none has been */
    int32_t *fields;                   /* [rows + 3 * slots], for the batch */
};

/* meeting: NULL with one rank. Close it also after a failure. */
enum hd_status decoder_rank_open(struct decoder_rank *rank,
                                 const struct hd_decoder_options *options, int number,
                                 const struct hd_shm_control *meeting);
void decoder_rank_close(struct decoder_rank *rank);

/* The rows are those of hd_decoder_run, and have been checked. */
enum hd_status decoder_rank_run(struct decoder_rank *rank, const struct hd_decoder_rows *rows,
                                int count);
/* Writes this rank's part of the logits [V] behind a token of the last run. */
enum hd_status decoder_rank_logits(struct decoder_rank *rank, int index, int64_t row,
                                   float *ret_all);

#endif
