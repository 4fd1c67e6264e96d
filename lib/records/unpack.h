/* unpack: decompresses one block whose size is known: a page of Parquet, a buffer of Arrow. */
#ifndef HD_RECORDS_UNPACK_H
#define HD_RECORDS_UNPACK_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum records_codec {
    RECORDS_SNAPPY,
    RECORDS_DEFLATE, /* gzip members */
    RECORDS_ZSTANDARD,
    RECORDS_LZ4,      /* an LZ4 block without a frame */
    RECORDS_LZ4_FRAME /* an LZ4 frame */
};

/* Sets *ret_out to `out_bytes` decompressed bytes, which the caller frees. HD_INVALID: the block is
 * damaged, has another size, or this build lacks the codec's library. Allocates no more than the
 * codec can make of in_bytes. */
enum hd_status records_unpack(enum records_codec codec, const unsigned char *in, size_t in_bytes,
                              size_t out_bytes, unsigned char **ret_out);

#endif
