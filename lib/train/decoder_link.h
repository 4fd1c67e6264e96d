/* decoder_link: sends the hidden rows of a decoder from each pipeline stage to the next. Only for
 * lib/train.
 *
 * A rank receives from the previous stage and sends to the next one, in lanes (inference_rank.h). A
 * lane's rows are those of one call of a program. Each lane carries rows once per run of the
 * decoder; the runner's join at the end of the run waits for the transfers.
 */
#ifndef HD_TRAIN_DECODER_LINK_H
#define HD_TRAIN_DECODER_LINK_H

#include "train/inference_rank.h"

struct decoder_link {
    /* groups with the previous pipeline stage (from) and the next one (to); NULL: this stage is the
     * first (from) or the last (to) */
    struct hd_comm_group *from, *to;
    /* [lanes], the receive of input rows that is in progress in each lane */
    struct hd_transfer *arrivals;
};

/* Opens the channels to the previous and the next pipeline stage and waits for their ranks. Call it
 * after hd_inference_rank_reserve. With one stage this function and those below do nothing. */
enum hd_status decoder_link_open(struct hd_inference_rank *model, int micro_batches,
                                 struct decoder_link *ret_link);

/* decoder_link_receive begins to receive the chunk's input rows from the previous stage;
 * decoder_link_await makes later launches wait until these rows have arrived. */
enum hd_status decoder_link_receive(struct decoder_link *link, struct hd_inference_rank *model,
                                    const struct hd_chunk *chunk, int micro_batch);
enum hd_status decoder_link_await(struct decoder_link *link, struct hd_inference_rank *model,
                                  int micro_batch);
/* Begins to send the chunk's output rows to the next stage. */
enum hd_status decoder_link_send(struct decoder_link *link, struct hd_inference_rank *model,
                                 const struct hd_chunk *chunk, int micro_batch);

#endif
