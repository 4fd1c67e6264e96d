#include "unpack.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "records_internal.h"

#ifdef HEDDLE_HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef HEDDLE_HAVE_ZSTD
#include <zstd.h>
#endif

/* A block that is being decompressed. */
struct packed_block {
    const unsigned char *in, *in_end;
    unsigned char *out, *begin, *out_end;
};

static bool copy_literals(struct packed_block *b, size_t count)
{
    if (count > (size_t)(b->in_end - b->in) || count > (size_t)(b->out_end - b->out))
        return false;
    memcpy(b->out, b->in, count);
    b->in += count;
    b->out += count;
    return true;
}

/* Repeats bytes of the output, which may overlap what is written. */
static bool copy_match(struct packed_block *b, size_t offset, size_t count)
{
    const unsigned char *from;

    if (!offset || offset > (size_t)(b->out - b->begin) || count > (size_t)(b->out_end - b->out))
        return false;
    from = b->out - offset;
    if (offset >= count) {
        memcpy(b->out, from, count);
        b->out += count;
        return true;
    }
    while (count--)
        *b->out++ = *from++;
    return true;
}

/* Reads a number of `bytes` bytes, lowest first. */
static bool read_number(struct packed_block *b, int bytes, size_t *ret_value)
{
    if (b->in_end - b->in < bytes)
        return false;
    *ret_value = 0;
    for (int i = 0; i < bytes; i++)
        *ret_value |= (size_t)*b->in++ << (8 * i);
    return true;
}

/* Decompresses a Snappy block: the size as a varint, then literals and copies whose kind is in the
 * low two bits of their first byte. */
static bool unpack_snappy(struct packed_block *b)
{
    size_t size = 0, n, offset;

    for (int shift = 0;; shift += 7) {
        if (b->in == b->in_end || shift > 28)
            return false;
        size |= (size_t)(*b->in & 0x7F) << shift;
        if (!(*b->in++ & 0x80))
            break;
    }
    if (size != (size_t)(b->out_end - b->out))
        return false;
    while (b->in < b->in_end) {
        const unsigned tag = *b->in++;

        if ((tag & 3) == 0) {
            n = tag >> 2;
            if (n >= 60 && !read_number(b, (int)n - 59, &n))
                return false;
            if (!copy_literals(b, n + 1))
                return false;
            continue;
        }
        n = (tag >> 2) + 1;
        if ((tag & 3) == 1) {
            if (!read_number(b, 1, &offset))
                return false;
            offset |= (size_t)(tag >> 5) << 8;
            n = ((tag >> 2) & 7) + 4;
        } else if (!read_number(b, (tag & 3) == 2 ? 2 : 4, &offset)) {
            return false;
        }
        if (!copy_match(b, offset, n))
            return false;
    }
    return b->out == b->out_end;
}

/* Adds the bytes of a length that is longer than its four bits. */
static bool add_length(struct packed_block *b, size_t *length)
{
    size_t byte = 255;

    while (byte == 255) {
        if (!read_number(b, 1, &byte) || *length > SIZE_MAX / 2)
            return false;
        *length += byte;
    }
    return true;
}

/* Decompresses an LZ4 block: literals and a match, whose lengths are in the halves of a byte; the
 * block ends behind literals. */
static bool unpack_lz4_block(struct packed_block *b)
{
    while (b->in < b->in_end) {
        const unsigned token = *b->in++;
        size_t literals = token >> 4, match = token & 15, offset;

        if ((literals == 15 && !add_length(b, &literals)) || !copy_literals(b, literals))
            return false;
        if (b->in == b->in_end)
            return true;
        if (!read_number(b, 2, &offset) || (match == 15 && !add_length(b, &match)) ||
            !copy_match(b, offset, match + 4))
            return false;
    }
    return false;
}

/* Decompresses an LZ4 frame without checking its checksums. Blocks may refer to those before. */
static bool unpack_lz4_frame(struct packed_block *b)
{
    const unsigned char *end = b->in_end;
    size_t magic, flags, size;

    if (!read_number(b, 4, &magic) || magic != 0x184D2204 || !read_number(b, 1, &flags) ||
        flags >> 6 != 1)
        return false;
    size = 2 + (flags & 8 ? 8 : 0) + (flags & 1 ? 4 : 0); /* descriptor: block size .. checksum */
    if (size > (size_t)(end - b->in))
        return false;
    b->in += size;
    for (;;) {
        const bool has_checksum = flags & 16;
        bool good;

        if (!read_number(b, 4, &size))
            return false;
        if (!size)
            return b->out == b->out_end;
        if ((size & 0x7FFFFFFF) > (size_t)(end - b->in))
            return false;
        b->in_end = b->in + (size & 0x7FFFFFFF);
        good = size >> 31 ? copy_literals(b, size & 0x7FFFFFFF) : unpack_lz4_block(b);
        b->in_end = end;
        if (!good || (has_checksum && !read_number(b, 4, &magic)))
            return false;
    }
}

#ifdef HEDDLE_HAVE_ZLIB
/* Decompresses gzip members behind each other. */
static bool unpack_deflate(struct packed_block *b)
{
    z_stream z = {.next_in = (Bytef *)(uintptr_t)b->in,
                  .avail_in = (uInt)(b->in_end - b->in),
                  .next_out = b->out,
                  .avail_out = (uInt)(b->out_end - b->out)};
    int rc = Z_STREAM_END;

    if (inflateInit2(&z, 32 + 15) != Z_OK) /* 32: with the header of gzip or of zlib */
        return false;
    while (rc == Z_STREAM_END && z.avail_in) {
        rc = inflate(&z, Z_FINISH);
        if (rc == Z_STREAM_END && z.avail_in)
            (void)inflateReset(&z);
    }
    b->out += (size_t)(b->out_end - b->out) - z.avail_out;
    (void)inflateEnd(&z);
    return rc == Z_STREAM_END && b->out == b->out_end;
}
#endif

static bool unpack_block(enum records_codec codec, struct packed_block *b)
{
    switch (codec) {
    case RECORDS_SNAPPY:
        return unpack_snappy(b);
    case RECORDS_LZ4:
        return unpack_lz4_block(b) && b->out == b->out_end;
    case RECORDS_LZ4_FRAME:
        return unpack_lz4_frame(b);
    case RECORDS_DEFLATE:
#ifdef HEDDLE_HAVE_ZLIB
        return unpack_deflate(b);
#else
        return false;
#endif
    case RECORDS_ZSTANDARD:
#ifdef HEDDLE_HAVE_ZSTD
        return ZSTD_decompress(b->out, (size_t)(b->out_end - b->out), b->in,
                               (size_t)(b->in_end - b->in)) == (size_t)(b->out_end - b->out);
#endif
        break;
    }
    return false;
}

/* Returns the most bytes that a block can decompress to. */
static size_t most_of(enum records_codec codec, const unsigned char *in, size_t in_bytes)
{
    /* a copy of 64 bytes takes 3; a match of 255 takes 1 more byte; deflate reaches 1032 : 1 */
    const size_t factor = codec == RECORDS_SNAPPY ? 22 : codec == RECORDS_DEFLATE ? 1040 : 256;

#ifdef HEDDLE_HAVE_ZSTD
    if (codec == RECORDS_ZSTANDARD) {
        const unsigned long long size = ZSTD_getFrameContentSize(in, in_bytes);

        return size == ZSTD_CONTENTSIZE_ERROR     ? 0
               : size == ZSTD_CONTENTSIZE_UNKNOWN ? INT32_MAX
                                                  : (size_t)size;
    }
#endif
    (void)in;
    return in_bytes > SIZE_MAX / 2 / factor ? SIZE_MAX / 2 : in_bytes * factor + 64;
}

static enum hd_status check_built(enum records_codec codec)
{
#ifndef HEDDLE_HAVE_ZLIB
    if (codec == RECORDS_DEFLATE)
        return hd_err(HD_INVALID, "it is compressed by gzip, and this program was built without "
                                  "its library (zlib1g-dev); write it uncompressed");
#endif
#ifndef HEDDLE_HAVE_ZSTD
    if (codec == RECORDS_ZSTANDARD)
        return hd_err(HD_INVALID, "it is compressed by Zstandard, and this program was built "
                                  "without its library (libzstd-dev); write it uncompressed");
#endif
    (void)codec;
    return HD_OK;
}

/* Blocks that hold more than the first number of bytes in all are refused if that is more than the
 * second times as much as when packed: text packs 5 to 30 times. */
enum { UNPACKED_BYTES = 64 << 20, PACKED_TIMES_MAX = 200 };

enum hd_status records_use_read(struct records_use *use, int64_t bytes)
{
    use->read += bytes;
    return use->read <= use->file_bytes
               ? HD_OK
               : hd_err(HD_INVALID, "parts of the file are used twice, which no writer makes; the "
                                    "file is damaged");
}

enum hd_status records_use_packed(struct records_use *use, int64_t packed, int64_t unpacked)
{
    use->packed += packed;
    use->unpacked += unpacked;
    if (use->unpacked <= UNPACKED_BYTES || use->unpacked / PACKED_TIMES_MAX <= use->packed)
        return HD_OK;
    return hd_err(HD_INVALID,
                  "%lld packed bytes say that they hold %lld, which no text does; the file is "
                  "damaged, or made to fill the memory",
                  (long long)use->packed, (long long)use->unpacked);
}

enum hd_status records_unpack(enum records_codec codec, const unsigned char *in, size_t in_bytes,
                              size_t out_bytes, unsigned char **ret_out)
{
    struct packed_block b = {.in = in, .in_end = in + in_bytes};
    enum hd_status st = check_built(codec);

    if (st)
        return st;
    if (out_bytes > most_of(codec, in, in_bytes))
        return hd_err(HD_INVALID, "a compressed block is damaged: it cannot have %zu bytes",
                      out_bytes);
    b.begin = b.out = malloc(out_bytes + 1);
    if (!b.out)
        return hd_err(HD_NO_MEMORY, "no memory for a block of %zu bytes", out_bytes);
    b.out_end = b.out + out_bytes;
    if (out_bytes && !unpack_block(codec, &b)) {
        free(b.begin);
        return hd_err(HD_INVALID, "a compressed block is damaged");
    }
    *ret_out = b.begin;
    return HD_OK;
}
