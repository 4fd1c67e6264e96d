/* reach: how the host reaches the bytes of a rank's tensors. Only for lib/train.
 *
 * With the cpu tensors are host memory, and are filled and read in place. On a device an address
 * means nothing here: bytes go through a window of host memory, in the order of the rank's compute
 * stream. Whoever has much to move goes piece by piece and is told how much a piece is:
 *
 *     for (int64_t at = 0; at < bytes; at += piece) {
 *         piece = hd_reach_piece(reach, bytes - at);
 *         fill(hd_reach_view(reach, tensor + at), piece);
 *         st = hd_reach_put(reach, tensor + at, piece);
 *     }
 *
 * Threads: the rank's.
 */
#ifndef HD_TRAIN_REACH_H
#define HD_TRAIN_REACH_H

#include "kernels/kernels.h"

enum { HD_REACH_WINDOW_BYTES = 16 << 20 };

struct hd_reach {
    const struct hd_device_table *device; /* NULL: tensors are host memory */
    struct hd_stream *stream;
    void *window; /* HD_REACH_WINDOW_BYTES, of a device alone */
};

/* Borrows the stream. */
enum hd_status hd_reach_init(const struct hd_backend_table *table, struct hd_stream *stream,
                             struct hd_reach *ret_reach);
void hd_reach_done(struct hd_reach *reach); /* one of zeros is fine */

/* write: `bytes` may change when it returns. read: waits for what was launched before. */
enum hd_status hd_reach_write(const struct hd_reach *reach, void *tensor, const void *bytes,
                              int64_t size_bytes);
enum hd_status hd_reach_read(const struct hd_reach *reach, void *ret_bytes, const void *tensor,
                             int64_t size_bytes);

/* How many of `left_bytes` the next piece has: all of them, or those of the window. */
int64_t hd_reach_piece(const struct hd_reach *reach, int64_t left_bytes);
/* Where the host fills a piece of a tensor; what is there before is undefined. Until the next call
 * of view or fetch. */
void *hd_reach_view(const struct hd_reach *reach, void *tensor);
/* The piece that was filled, to its tensor. */
enum hd_status hd_reach_put(const struct hd_reach *reach, void *tensor, int64_t size_bytes);
/* A piece to look at, until the next call of view or fetch. */
enum hd_status hd_reach_fetch(const struct hd_reach *reach, const void *tensor, int64_t size_bytes,
                              const void **ret_bytes);

/* Zeros. */
enum hd_status hd_reach_clear(const struct hd_reach *reach, void *tensor, int64_t size_bytes);

#endif
