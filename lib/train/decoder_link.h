/* decoder_link: the hidden rows that pipeline stages of a decoder send each other. Only for
 * lib/train.
 *
 * A rank receives from the stage before its own and sends to the next one, in lanes
 * (inference_rank.h). A
 * lane's rows are those of one call of a program; a lane carries them once between two joins of the
 * runner, which are the ends of a decoder's runs.
 */
#ifndef HD_TRAIN_DECODER_LINK_H
#define HD_TRAIN_DECODER_LINK_H

#include "train/inference_rank.h"

struct decoder_link {
    struct hd_comm_group *from, *to; /* NULL: on the first, on the last stage */
    struct hd_transfer *arrivals;    /* [lanes] */
};

/* After hd_inference_rank_reserve. Waits for the ranks of the other stages. With one stage nothing
 * is done,
 * here and below. */
enum hd_status decoder_link_open(struct hd_inference_rank *model, int micro_batches,
                                 struct decoder_link *ret_link);

/* Begins to receive what the chunk takes in; await: later launches run behind it. */
enum hd_status decoder_link_receive(struct decoder_link *link, struct hd_inference_rank *model,
                                    const struct hd_chunk *chunk, int micro_batch);
enum hd_status decoder_link_await(struct decoder_link *link, struct hd_inference_rank *model,
                                  int micro_batch);
/* Begins to send what the chunk has put out. */
enum hd_status decoder_link_send(struct decoder_link *link, struct hd_inference_rank *model,
                                 const struct hd_chunk *chunk, int micro_batch);

#endif
