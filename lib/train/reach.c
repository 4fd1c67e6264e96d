#include "train/reach.h"

#include <stdlib.h>
#include <string.h>

enum hd_status hd_reach_init(const struct hd_backend_table *table, struct hd_stream *stream,
                             struct hd_reach *ret_reach)
{
    struct hd_reach r = {.device = table->device, .stream = stream};

    if (r.device) {
        r.window = malloc(HD_REACH_WINDOW_BYTES);
        if (!r.window)
            return hd_err(HD_NO_MEMORY, "no memory for bytes on their way to a device");
    }
    *ret_reach = r;
    return HD_OK;
}

void hd_reach_done(struct hd_reach *reach)
{
    free(reach->window);
    *reach = (struct hd_reach){0};
}

enum hd_status hd_reach_write(const struct hd_reach *reach, void *tensor, const void *bytes,
                              int64_t size_bytes)
{
    if (reach->device)
        return reach->device->write(reach->stream, tensor, bytes, size_bytes);
    memcpy(tensor, bytes, (size_t)size_bytes);
    return HD_OK;
}

enum hd_status hd_reach_read(const struct hd_reach *reach, void *ret_bytes, const void *tensor,
                             int64_t size_bytes)
{
    if (reach->device)
        return reach->device->read(reach->stream, ret_bytes, tensor, size_bytes);
    memcpy(ret_bytes, tensor, (size_t)size_bytes);
    return HD_OK;
}

int64_t hd_reach_piece(const struct hd_reach *reach, int64_t left_bytes)
{
    return reach->device && left_bytes > HD_REACH_WINDOW_BYTES ? HD_REACH_WINDOW_BYTES : left_bytes;
}

void *hd_reach_view(const struct hd_reach *reach, void *tensor)
{
    return reach->device ? reach->window : tensor;
}

enum hd_status hd_reach_put(const struct hd_reach *reach, void *tensor, int64_t size_bytes)
{
    return reach->device ? hd_reach_write(reach, tensor, reach->window, size_bytes) : HD_OK;
}

enum hd_status hd_reach_fetch(const struct hd_reach *reach, const void *tensor, int64_t size_bytes,
                              const void **ret_bytes)
{
    *ret_bytes = reach->device ? reach->window : tensor;
    return reach->device ? hd_reach_read(reach, reach->window, tensor, size_bytes) : HD_OK;
}

enum hd_status hd_reach_clear(const struct hd_reach *reach, void *tensor, int64_t size_bytes)
{
    enum hd_status st = HD_OK;

    for (int64_t at = 0, piece; !st && at < size_bytes; at += piece) {
        piece = hd_reach_piece(reach, size_bytes - at);
        memset(hd_reach_view(reach, (char *)tensor + at), 0, (size_t)piece);
        st = hd_reach_put(reach, (char *)tensor + at, piece);
    }
    return st;
}
