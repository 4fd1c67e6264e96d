/* stream: the bytes of a file, decompressed if it is a gzip or Zstandard file.
 *
 * Both formats may be several members or frames behind each other, as `cat` of two files makes
 * them. A build without zlib or libzstd refuses such files and says so.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef HEDDLE_HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef HEDDLE_HAVE_ZSTD
#include <zstd.h>
#endif

#include "base/file.h"
#include "base/pieces.h"
#include "records_internal.h"

enum { INPUT_BYTES = HD_PIECE(256 << 10, 61) };

struct records_stream {
    char *path;
    enum hd_data_packing packing;
    int fd;
    int64_t place;      /* bytes read from the file */
    char *input;        /* [INPUT_BYTES] compressed bytes; NULL: the file is not compressed */
    size_t from, until; /* offsets in `input` of the bytes that are not decompressed yet */
    bool at_end;        /* whether the file has no more bytes than are in `input` */
    bool in_member;     /* whether a member or frame has begun and not ended */
    bool any_member;    /* whether a member or frame has ended */
#ifdef HEDDLE_HAVE_ZLIB
    z_stream gzip;
#endif
#ifdef HEDDLE_HAVE_ZSTD
    ZSTD_DStream *zstd;
#endif
};

static enum hd_status damaged(const struct records_stream *s, const char *how)
{
    return hd_err(HD_INVALID, "%s: the %s data %s behind byte %lld; write the file again", s->path,
                  s->packing == HD_DATA_GZIP ? "gzip" : "Zstandard", how,
                  (long long)(s->place - (int64_t)(s->until - s->from)));
}

#if !defined HEDDLE_HAVE_ZLIB || !defined HEDDLE_HAVE_ZSTD
static enum hd_status not_built(const char *path, const char *kind, const char *package,
                                const char *unpack)
{
    return hd_err(HD_INVALID,
                  "%s: is %s, and this program was built without its library (%s); unpack it: %s",
                  path, kind, package, unpack);
}
#endif

static enum hd_status begin_unpacking(struct records_stream *s)
{
    s->input = malloc(INPUT_BYTES);
    if (!s->input)
        return hd_err(HD_NO_MEMORY, "no memory to read %s", s->path);
    if (s->packing == HD_DATA_GZIP) {
#ifdef HEDDLE_HAVE_ZLIB
        /* 16: gzip's header and trailer, not zlib's; 15: windows of up to 32 KiB */
        if (inflateInit2(&s->gzip, 16 + 15) != Z_OK)
            return hd_err(HD_NO_MEMORY, "no memory to read %s", s->path);
#else
        return not_built(s->path, "a gzip file", "zlib1g-dev", "gzip -dk");
#endif
    } else {
#ifdef HEDDLE_HAVE_ZSTD
        s->zstd = ZSTD_createDStream();
        if (!s->zstd)
            return hd_err(HD_NO_MEMORY, "no memory to read %s", s->path);
        /* the most that zstd --long=31 writes; the library refuses more than 27 unless told */
        (void)ZSTD_DCtx_setParameter(s->zstd, ZSTD_d_windowLogMax, sizeof(size_t) == 8 ? 31 : 30);
#else
        return not_built(s->path, "a Zstandard file", "libzstd-dev", "zstd -d");
#endif
    }
    return HD_OK;
}

enum hd_status records_stream_open(const char *path, struct records_stream **ret_stream)
{
    struct records_stream *s = calloc(1, sizeof *s);
    enum hd_status st;

    if (!s)
        return hd_err(HD_NO_MEMORY, "no memory to read %s", path);
    s->fd = -1;
    s->path = strdup(path);
    st = s->path ? hd_file_open_regular("the data file ", path, &s->fd)
                 : hd_err(HD_NO_MEMORY, "no memory for the path %s", path);
    if (st)
        records_stream_close(s);
    else
        *ret_stream = s;
    return st;
}

static void end_unpacking(struct records_stream *s)
{
#ifdef HEDDLE_HAVE_ZLIB
    if (s->packing == HD_DATA_GZIP)
        (void)inflateEnd(&s->gzip);
#endif
#ifdef HEDDLE_HAVE_ZSTD
    (void)ZSTD_freeDStream(s->zstd);
#endif
    free(s->input);
}

void records_stream_close(struct records_stream *s)
{
    if (!s)
        return;
    end_unpacking(s);
    if (s->fd >= 0)
        (void)close(s->fd);
    free(s->path);
    free(s);
}

enum hd_status records_stream_restart(struct records_stream *s, enum hd_data_packing packing)
{
    enum hd_status st;

    end_unpacking(s);
    *s = (struct records_stream){.path = s->path, .packing = packing, .fd = s->fd};
    st = records_stream_seek(s, 0);
    return !st && packing ? begin_unpacking(s) : st;
}

int64_t records_stream_place(const struct records_stream *s)
{
    return s->place;
}

enum hd_status records_stream_seek(struct records_stream *s, int64_t at)
{
    if (lseek(s->fd, at, SEEK_SET) < 0)
        return hd_err(HD_IO, "cannot read %s: %s", s->path, strerror(errno));
    s->place = at;
    return HD_OK;
}

/* Reads bytes of the file until the buffer is full or the file ends. */
static enum hd_status read_file(struct records_stream *s, char *buffer, size_t bytes,
                                size_t *ret_count)
{
    size_t have = 0;
    ssize_t n = 1;

    while (have < bytes && n) {
        n = read(s->fd, buffer + have, bytes - have);
        if (n < 0 && errno != EINTR)
            return hd_err(HD_IO, "cannot read %s: %s", s->path, strerror(errno));
        have += n > 0 ? (size_t)n : 0;
    }
    s->place += (int64_t)have;
    *ret_count = have;
    return HD_OK;
}

/* Reads compressed bytes if there are none; at the end of the file, none are. */
static enum hd_status need_input(struct records_stream *s)
{
    enum hd_status st = HD_OK;

    if (s->from < s->until || s->at_end)
        return HD_OK;
    s->from = 0;
    st = read_file(s, s->input, INPUT_BYTES, &s->until);
    s->at_end = s->until < INPUT_BYTES;
    return st;
}

#ifdef HEDDLE_HAVE_ZLIB
/* Drops the zeros that tapes and some writers put behind the last member. */
static void drop_zeros(struct records_stream *s)
{
    while (s->any_member && !s->in_member && s->from < s->until && !s->input[s->from])
        s->from++;
}

static enum hd_status unpack_gzip(struct records_stream *s, char *out, size_t bytes,
                                  size_t *ret_count)
{
    int rc = Z_OK;

    drop_zeros(s);
    *ret_count = 0;
    if (s->from == s->until)
        return HD_OK;
    if (!s->in_member && s->any_member)
        (void)inflateReset(&s->gzip);
    s->in_member = true;
    s->gzip.next_in = (Bytef *)s->input + s->from;
    s->gzip.avail_in = (uInt)(s->until - s->from);
    s->gzip.next_out = (Bytef *)out;
    s->gzip.avail_out = bytes < INPUT_BYTES ? (uInt)bytes : INPUT_BYTES;
    *ret_count = s->gzip.avail_out;
    rc = inflate(&s->gzip, Z_NO_FLUSH);
    *ret_count -= s->gzip.avail_out;
    s->from = s->until - s->gzip.avail_in;
    if (rc == Z_STREAM_END) {
        s->in_member = false;
        s->any_member = true;
        return HD_OK;
    }
    if (rc == Z_MEM_ERROR)
        return hd_err(HD_NO_MEMORY, "no memory to read %s", s->path);
    return rc == Z_OK || rc == Z_BUF_ERROR ? HD_OK : damaged(s, "are damaged");
}
#endif

#ifdef HEDDLE_HAVE_ZSTD
static enum hd_status unpack_zstd(struct records_stream *s, char *out, size_t bytes,
                                  size_t *ret_count)
{
    ZSTD_inBuffer in = {s->input, s->until, s->from};
    ZSTD_outBuffer to = {out, bytes, 0};
    size_t rc;

    *ret_count = 0;
    if (s->from == s->until && !s->in_member)
        return HD_OK;
    rc = ZSTD_decompressStream(s->zstd, &to, &in);
    if (ZSTD_isError(rc) && strstr(ZSTD_getErrorName(rc), "memory"))
        return hd_err(HD_NO_MEMORY,
                      "no memory to read %s: its frames need windows of up to 2 GiB; write it "
                      "again with zstd, without --long",
                      s->path);
    if (ZSTD_isError(rc))
        return damaged(s, "are damaged");
    s->from = in.pos;
    s->in_member = rc != 0;
    s->any_member |= !rc;
    *ret_count = to.pos;
    return HD_OK;
}
#endif

/* Decompresses some bytes; none if more input is needed. */
static enum hd_status unpack(struct records_stream *s, char *out, size_t bytes, size_t *ret_count)
{
    *ret_count = 0;
#ifdef HEDDLE_HAVE_ZLIB
    if (s->packing == HD_DATA_GZIP)
        return unpack_gzip(s, out, bytes, ret_count);
#endif
#ifdef HEDDLE_HAVE_ZSTD
    if (s->packing == HD_DATA_ZSTD)
        return unpack_zstd(s, out, bytes, ret_count);
#endif
    (void)out, (void)bytes;
    return damaged(s, "cannot be read");
}

enum hd_status records_stream_read(struct records_stream *s, char *ret_bytes, size_t bytes,
                                   size_t *ret_count)
{
    enum hd_status st = HD_OK;
    size_t have = 0;

    if (!s->packing)
        return read_file(s, ret_bytes, bytes, ret_count);
    while (!st && have < bytes) {
        size_t n = 0, before;

        st = need_input(s);
        before = s->from;
        if (!st)
            st = unpack(s, ret_bytes + have, bytes - have, &n);
        have += n;
        if (!st && !n && s->at_end && s->from == s->until) {
            if (s->in_member || !s->any_member)
                st = damaged(s, "end in the middle: the file was cut");
            break;
        }
        if (!st && !n && s->from == before && s->from < s->until)
            st = damaged(s, "do not go on");
    }
    *ret_count = have;
    return st;
}
