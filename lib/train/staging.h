/* staging: host access to a rank's tensors. Only for lib/train.
 *
 * On the CPU, tensors are host memory and are accessed in place. On a device the host cannot
 * dereference a tensor's address: bytes are copied through a staging buffer in host memory, ordered
 * with the launches of the rank's compute stream. Tensors that a rank with a device keeps in host
 * memory (parallel.offload) are accessed in place, too. Large tensors are processed in pieces:
 *
 *     for (int64_t at = 0; at < bytes; at += piece) {
 *         piece = hd_staging_piece(staging, bytes - at);
 *         fill(hd_staging_view(staging, tensor + at), piece);
 *         st = hd_staging_put(staging, tensor + at, piece);
 *     }
 *
 * Threads: the rank's.
 */
#ifndef HD_TRAIN_STAGING_H
#define HD_TRAIN_STAGING_H

#include "base/pieces.h"
#include "kernels/kernels.h"

enum { HD_STAGING_BYTES = HD_PIECE(16 << 20, 4 * 768) };

struct hd_staging {
    const struct hd_device_table *device; /* NULL: tensors are host memory */
    /* compute stream of the rank, with whose launches copies are ordered; borrowed */
    struct hd_stream *stream;
    /* staging buffer of HD_STAGING_BYTES in host memory; NULL without a device */
    void *buffer;
    /* host memory of a rank with a device (parallel.offload): tensors in it are accessed in
     * place */
    const char *host_begin, *host_end;
};

enum hd_status hd_staging_init(const struct hd_backend_table *table, struct hd_stream *stream,
                               struct hd_staging *ret_staging);
void hd_staging_done(struct hd_staging *staging); /* {0} is fine */

/* Returns false for tensors in host memory. */
bool hd_staging_is_on_device(const struct hd_staging *staging, const void *tensor);

/* hd_staging_write copies host bytes to a tensor; `bytes` may change after it returns.
 * hd_staging_read copies a tensor to the host; it waits for earlier launches on the stream. */
enum hd_status hd_staging_write(const struct hd_staging *staging, void *tensor, const void *bytes,
                                int64_t size_bytes);
enum hd_status hd_staging_read(const struct hd_staging *staging, void *ret_bytes,
                               const void *tensor, int64_t size_bytes);

/* Returns how many bytes of a tensor to process next: left_bytes, on a device at most
 * HD_STAGING_BYTES. */
int64_t hd_staging_piece(const struct hd_staging *staging, int64_t left_bytes);
/* Returns memory that the host fills with the next part of a tensor (the tensor itself or the
 * staging buffer); its contents are undefined. Valid until the next view or fetch. */
void *hd_staging_view(const struct hd_staging *staging, void *tensor);
/* Copies the memory of the last hd_staging_view, which the caller has filled, to its tensor. */
enum hd_status hd_staging_put(const struct hd_staging *staging, void *tensor, int64_t size_bytes);
/* Sets *ret_bytes to host memory that has the bytes of a part of a tensor; valid until the next
 * view or fetch. */
enum hd_status hd_staging_fetch(const struct hd_staging *staging, const void *tensor,
                                int64_t size_bytes, const void **ret_bytes);

/* Copies size_bytes of a tensor of the device to another one, which does not overlap; on the CPU, of host
 * memory. */
enum hd_status hd_staging_copy(const struct hd_staging *staging, void *tensor, const void *from,
                               int64_t size_bytes);
/* Writes the tables of a chunk (of angles, indices ..) whose constants and caches are at chunk_state
 * (constants.c). */
struct hd_chunk;
enum hd_status hd_staging_write_constants(const struct hd_staging *staging,
                                          const struct hd_chunk *chunk, char *chunk_state);
/* Sets size_bytes of a tensor to zero. */
enum hd_status hd_staging_clear(const struct hd_staging *staging, void *tensor, int64_t size_bytes);

#endif
