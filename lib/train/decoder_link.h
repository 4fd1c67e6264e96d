/* decoder_link: the hidden rows that pipeline stages of a decoder send each other. Only for
 * lib/train.
 *
 * A rank receives from the stage before its own and sends to the next one, in lanes (loaded.h). A
 * lane's rows are those of one call of a program; a lane carries them once between two joins of the
 * runner, which are the ends of a decoder's runs.
 */
#ifndef HD_TRAIN_DECODER_LINK_H
#define HD_TRAIN_DECODER_LINK_H

#include "train/loaded.h"

struct decoder_link {
    struct hd_comm_group *from, *to; /* NULL: on the first, on the last stage */
    struct hd_transfer *arrivals;    /* [lanes] */
};

/* After hd_loaded_reserve. Waits for the ranks of the other stages. With one stage nothing is done,
 * here and below. */
enum hd_status decoder_link_open(struct hd_loaded *model, int lanes, struct decoder_link *ret_link);

/* Begins to receive what the chunk takes in; await: later launches run behind it. */
enum hd_status decoder_link_receive(struct decoder_link *link, struct hd_loaded *model,
                                    const struct hd_chunk *chunk, int lane);
enum hd_status decoder_link_await(struct decoder_link *link, struct hd_loaded *model, int lane);
/* Begins to send what the chunk has put out. */
enum hd_status decoder_link_send(struct decoder_link *link, struct hd_loaded *model,
                                 const struct hd_chunk *chunk, int lane);

#endif
