#include "train/staging.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum hd_status hd_staging_init(const struct hd_backend_table *table, struct hd_stream *stream,
                               struct hd_staging *ret_staging)
{
    struct hd_staging r = {.device = table->device, .stream = stream};

    if (r.device) {
        r.buffer = malloc(HD_STAGING_BYTES);
        if (!r.buffer)
            return hd_err(HD_NO_MEMORY, "no memory for the staging buffer of a device");
    }
    *ret_staging = r;
    return HD_OK;
}

bool hd_staging_is_on_device(const struct hd_staging *staging, const void *tensor)
{
    const uintptr_t at = (uintptr_t)tensor;

    return staging->device &&
           !(at >= (uintptr_t)staging->host_begin && at < (uintptr_t)staging->host_end);
}

void hd_staging_done(struct hd_staging *staging)
{
    free(staging->buffer);
    *staging = (struct hd_staging){0};
}

enum hd_status hd_staging_write(const struct hd_staging *staging, void *tensor, const void *bytes,
                                int64_t size_bytes)
{
    if (hd_staging_is_on_device(staging, tensor))
        return staging->device->write(staging->stream, tensor, bytes, size_bytes);
    memcpy(tensor, bytes, (size_t)size_bytes);
    return HD_OK;
}

enum hd_status hd_staging_read(const struct hd_staging *staging, void *ret_bytes,
                               const void *tensor, int64_t size_bytes)
{
    if (hd_staging_is_on_device(staging, tensor))
        return staging->device->read(staging->stream, ret_bytes, tensor, size_bytes);
    memcpy(ret_bytes, tensor, (size_t)size_bytes);
    return HD_OK;
}

int64_t hd_staging_piece(const struct hd_staging *staging, int64_t left_bytes)
{
    return staging->device && left_bytes > HD_STAGING_BYTES ? HD_STAGING_BYTES : left_bytes;
}

void *hd_staging_view(const struct hd_staging *staging, void *tensor)
{
    return hd_staging_is_on_device(staging, tensor) ? staging->buffer : tensor;
}

enum hd_status hd_staging_put(const struct hd_staging *staging, void *tensor, int64_t size_bytes)
{
    return hd_staging_is_on_device(staging, tensor)
               ? hd_staging_write(staging, tensor, staging->buffer, size_bytes)
               : HD_OK;
}

enum hd_status hd_staging_fetch(const struct hd_staging *staging, const void *tensor,
                                int64_t size_bytes, const void **ret_bytes)
{
    if (!hd_staging_is_on_device(staging, tensor)) {
        *ret_bytes = tensor;
        return HD_OK;
    }
    *ret_bytes = staging->buffer;
    return hd_staging_read(staging, staging->buffer, tensor, size_bytes);
}

enum hd_status hd_staging_clear(const struct hd_staging *staging, void *tensor, int64_t size_bytes)
{
    enum hd_status st = HD_OK;

    for (int64_t at = 0, piece; !st && at < size_bytes; at += piece) {
        piece = hd_staging_piece(staging, size_bytes - at);
        memset(hd_staging_view(staging, (char *)tensor + at), 0, (size_t)piece);
        st = hd_staging_put(staging, (char *)tensor + at, piece);
    }
    return st;
}

enum hd_status hd_staging_copy(const struct hd_staging *s, void *tensor, const void *from,
                               int64_t size_bytes)
{
    if (hd_staging_is_on_device(s, tensor))
        return s->device->copy(s->stream, tensor, from, size_bytes);
    memcpy(tensor, from, (size_t)size_bytes);
    return HD_OK;
}
