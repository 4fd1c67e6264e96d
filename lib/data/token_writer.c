#include "data/token_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/folder.h"
#include "base/pieces.h"
#include "base/text.h"
#include "data/token_file.h"

enum {
    LLMC_HEAD_BYTES = 1024,
    LLMC_MAGIC_16 = 20240520,
    LLMC_VERSION_16 = 1,
    LLMC_MAGIC_32 = 20240801,
    LLMC_VERSION_32 = 7,
    MEGATRON_I32 = 4, /* Megatron's codes of id types */
    MEGATRON_U16 = 8,
    BUFFER_IDS = HD_PIECE(1 << 16, 61),
};

struct hd_token_writer {
    enum hd_token_format format;
    int id_bytes, fd;
    char *out, *part, *idx, *idx_part; /* final and temporary paths; idx, idx_part NULL: the format
                                          has no index */
    int64_t count;                     /* ids written so far */
    unsigned char *buffer;             /* [BUFFER_IDS, id_bytes] ids to write */
    /* the tables of Megatron's index */
    struct hd_text lengths, pointers, documents; /* arrays of little-endian i32, i64 and i64 */
    struct hd_text counts;                       /* one bit per token: counts for the loss */
    int64_t sequences, sequence_first;
};

static int64_t head_bytes(const struct hd_token_writer *w)
{
    return w->format == HD_TOKEN_FORMAT_NPY    ? HD_NPY_HEAD_BYTES
           : w->format == HD_TOKEN_FORMAT_LLMC ? LLMC_HEAD_BYTES
                                               : 0;
}

static void add_int64(struct hd_text *table, int64_t value)
{
    hd_text_add_bytes(table, &value, sizeof value);
}

static enum hd_status name_files(struct hd_token_writer *w, const char *out)
{
    const bool has_index =
        w->format == HD_TOKEN_FORMAT_MEGATRON || w->format == HD_TOKEN_FORMAT_COUNTS;
    struct hd_text name = {0}, part = {0}, idx = {0}, idx_part = {0};

    hd_text_add(&name, "%s%s", out, has_index ? ".bin" : "");
    hd_text_add(&part, "%s.part.%ld.%p", name.data ? name.data : "", (long)getpid(), (void *)w);
    if (has_index) {
        hd_text_add(&idx, "%s.idx", out);
        hd_text_add(&idx_part, "%s.part.%ld.%p", idx.data ? idx.data : "", (long)getpid(),
                    (void *)w);
    }
    w->out = name.data;
    w->part = part.data;
    w->idx = idx.data;
    w->idx_part = idx_part.data;
    return name.failed || part.failed || idx.failed || idx_part.failed
               ? hd_err(HD_NO_MEMORY, "no memory to write tokens")
               : HD_OK;
}

/* Returns HD_INVALID if `path` exists and is no regular file, which the writer must not replace. */
static enum hd_status check_place(const char *path)
{
    struct stat info;

    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return hd_err(HD_INVALID, "%s exists and is not a regular file; choose another name", path);
    return HD_OK;
}

/* Refuses to write an llm.c .bin beside an .idx, because readers would take it for Megatron's. */
static enum hd_status check_no_index(const char *out)
{
    struct hd_text idx = {0};
    enum hd_status st = hd_token_index_name(out, &idx);

    if (!st && *idx.data && hd_file_exists(idx.data))
        st = hd_err(HD_INVALID,
                    "%s: with %s beside it, it would be read as one of Megatron's; remove that "
                    "index, or choose another name",
                    out, idx.data);
    hd_text_free(&idx);
    return st;
}

static enum hd_status check_places(const struct hd_token_writer *w)
{
    enum hd_status st = check_place(w->out);

    if (!st && w->idx)
        st = check_place(w->idx);
    if (!st && w->format == HD_TOKEN_FORMAT_LLMC)
        st = check_no_index(w->out);
    return st;
}

enum hd_status hd_token_writer_open(const char *out, enum hd_token_format format, int id_bytes,
                                    struct hd_token_writer **ret_writer)
{
    struct hd_token_writer *w = calloc(1, sizeof *w);
    enum hd_status st;

    if (!w)
        return hd_err(HD_NO_MEMORY, "no memory to write tokens");
    w->format = format;
    w->id_bytes = id_bytes;
    w->fd = -1;
    w->buffer = malloc((size_t)BUFFER_IDS * (size_t)id_bytes);
    st = w->buffer ? name_files(w, out) : hd_err(HD_NO_MEMORY, "no memory to write tokens");
    if (!st)
        st = check_places(w);
    if (!st) {
        w->fd = open(w->part, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (w->fd < 0)
            st = hd_err(hd_file_write_status(errno), "cannot create %s: %s%s", w->out,
                        strerror(errno), errno == ENOENT ? "; create its folder first" : "");
    }
    if (!st && lseek(w->fd, head_bytes(w), SEEK_SET) < 0)
        st = hd_err(hd_file_write_status(errno), "cannot seek in %s: %s", w->part, strerror(errno));
    add_int64(&w->documents, 0);
    if (st)
        hd_token_writer_drop(w);
    else
        *ret_writer = w;
    return st;
}

void hd_token_writer_drop(struct hd_token_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0) {
        (void)close(w->fd);
        (void)unlink(w->part); /* after the rename no file has this name, so this does nothing */
        if (w->idx_part)
            (void)unlink(w->idx_part);
    }
    hd_text_free(&w->lengths);
    hd_text_free(&w->pointers);
    hd_text_free(&w->documents);
    hd_text_free(&w->counts);
    free(w->buffer);
    free(w->out);
    free(w->part);
    free(w->idx);
    free(w->idx_part);
    free(w);
}

/* ---- ids ---- */

static enum hd_status put_ids(struct hd_token_writer *w, const int32_t *ids, size_t count)
{
    enum hd_status st;

    for (size_t i = 0; i < count; i++) { /* correct on little-endian machines only, as
                                            token_file_internal.h checks */
        const uint32_t id = (uint32_t)ids[i];

        memcpy(w->buffer + i * (size_t)w->id_bytes, &id, (size_t)w->id_bytes);
    }
    st = hd_file_write_all(w->fd, w->buffer, count * (size_t)w->id_bytes);
    w->count += (int64_t)count;
    return st ? hd_err_prefix(st, "%s", w->out) : HD_OK;
}

/* Adds to the index a sequence of the ids written since the last sequence; adds none if there are
 * no such ids. */
static void end_sequence(struct hd_token_writer *w)
{
    const int32_t length = (int32_t)(w->count - w->sequence_first);

    if (!length || !w->idx)
        return;
    hd_text_add_bytes(&w->lengths, &length, sizeof length);
    add_int64(&w->pointers, w->sequence_first * w->id_bytes);
    w->sequences++;
    w->sequence_first = w->count;
}

enum hd_status hd_token_writer_add(struct hd_token_writer *w, const int32_t *ids, int64_t count)
{
    enum hd_status st = HD_OK;

    for (int64_t at = 0; !st && at < count;) {
        const int64_t n = count - at < BUFFER_IDS ? count - at : BUFFER_IDS;

        if (w->count - w->sequence_first > INT32_MAX - n) /* lengths in the index are int32 */
            end_sequence(w);
        st = put_ids(w, ids + at, (size_t)n);
        at += n;
    }
    return st;
}

enum hd_status hd_token_writer_end_document(struct hd_token_writer *w)
{
    if (!w->idx)
        return HD_OK;
    end_sequence(w);
    add_int64(&w->documents, w->sequences);
    return w->lengths.failed || w->pointers.failed || w->documents.failed
               ? hd_err(HD_NO_MEMORY, "no memory to write tokens")
               : HD_OK;
}

/* Appends to the index one bit for each of the next `count` ids: whether it counts for the loss. */
static void add_counts(struct hd_token_writer *w, const char *counts, int64_t count)
{
    static const char none = 0;

    for (int64_t i = 0; i < count && !w->counts.failed; i++) {
        const int64_t place = w->count + i;

        if (place % 8 == 0)
            hd_text_add_bytes(&w->counts, &none, 1);
        if (counts[i] && !w->counts.failed)
            w->counts.data[place / 8] = (char)(w->counts.data[place / 8] | 1 << place % 8);
    }
}

enum hd_status hd_token_writer_add_document(struct hd_token_writer *w, const int32_t *ids,
                                            const char *counts, int64_t count)
{
    enum hd_status st;

    if (count > INT32_MAX)
        return hd_err(HD_LIMIT, "%s: a document of %" PRId64 " tokens; at most %d are possible",
                      w->out, count, INT32_MAX);
    add_counts(w, counts, count);
    st = w->counts.failed ? hd_err(HD_NO_MEMORY, "no memory to write tokens")
                          : hd_token_writer_add(w, ids, count);
    return st ? st : hd_token_writer_end_document(w);
}

/* ---- the end ---- */

static enum hd_status write_head(struct hd_token_writer *w)
{
    char head[LLMC_HEAD_BYTES] = {0};
    enum hd_status st;

    if (w->format == HD_TOKEN_FORMAT_LLMC) {
        const int32_t numbers[3] = {w->id_bytes == 2 ? LLMC_MAGIC_16 : LLMC_MAGIC_32,
                                    w->id_bytes == 2 ? LLMC_VERSION_16 : LLMC_VERSION_32,
                                    (int32_t)w->count};

        if (w->count > INT32_MAX)
            return hd_err(
                HD_LIMIT,
                "%s: llm.c's format counts at most %d tokens; write a .npy, or Megatron's "
                "format",
                w->out, INT32_MAX);
        memcpy(head, numbers, sizeof numbers);
    } else {
        char shape[32];

        (void)snprintf(shape, sizeof shape, "%" PRId64 ",", w->count);
        hd_npy_format_head(w->id_bytes == 2 ? "<u2" : "<u4", shape, head);
    }
    if (lseek(w->fd, 0, SEEK_SET) < 0)
        return hd_err(hd_file_write_status(errno), "cannot seek in %s: %s", w->out,
                      strerror(errno));
    st = hd_file_write_all(w->fd, head, (size_t)head_bytes(w));
    return st ? hd_err_prefix(st, "%s", w->out) : HD_OK;
}

static enum hd_status write_index(struct hd_token_writer *w)
{
    const int64_t entries = (int64_t)(w->documents.len_bytes / sizeof(int64_t));
    const char type = w->id_bytes == 2 ? MEGATRON_U16 : MEGATRON_I32;
    struct hd_text index = {0};
    enum hd_status st;

    hd_text_add_bytes(&index, "MMIDIDX\0", 9);
    add_int64(&index, w->format == HD_TOKEN_FORMAT_COUNTS ? 2 : 1);
    hd_text_add_bytes(&index, &type, 1);
    add_int64(&index, w->sequences);
    add_int64(&index, entries);
    hd_text_add_bytes(&index, w->lengths.data ? w->lengths.data : "", w->lengths.len_bytes);
    hd_text_add_bytes(&index, w->pointers.data ? w->pointers.data : "", w->pointers.len_bytes);
    hd_text_add_bytes(&index, w->documents.data ? w->documents.data : "", w->documents.len_bytes);
    hd_text_add_bytes(&index, w->counts.data ? w->counts.data : "", w->counts.len_bytes);
    st = index.failed || w->documents.failed
             ? hd_err(HD_NO_MEMORY, "no memory to write tokens")
             : hd_file_write_atomic(w->idx_part, index.data, index.len_bytes, 0644);
    hd_text_free(&index);
    return st;
}

static enum hd_status rename_to(const char *from, const char *to)
{
    if (rename(from, to) < 0)
        return hd_err(hd_file_write_status(errno), "cannot rename %s to %s: %s", from, to,
                      strerror(errno));
    return HD_OK;
}

/* Removes an older .idx file durably: even after a power cut it must not be beside the new .bin. */
static enum hd_status remove_index(const struct hd_token_writer *w)
{
    if (unlink(w->idx) < 0)
        return errno == ENOENT ? HD_OK
                               : hd_err(hd_file_write_status(errno), "cannot replace %s: %s",
                                        w->idx, strerror(errno));
    return hd_folder_sync_of(w->idx);
}

/* Flushes and renames the files. Every step that can fail on a full disk comes before the first
 * rename. */
static enum hd_status publish(struct hd_token_writer *w)
{
    enum hd_status st = HD_OK;

    if (fsync(w->fd) < 0)
        return hd_err(hd_file_write_status(errno), "cannot flush %s: %s", w->part, strerror(errno));
    if (w->idx)
        st = write_index(w);
    if (!st && w->idx)
        st = remove_index(w);
    if (!st)
        st = rename_to(w->part, w->out);
    if (!st && w->idx)
        st = hd_folder_sync_of(w->out);
    if (!st && w->idx)
        st = rename_to(w->idx_part, w->idx);
    return st ? st : hd_folder_sync_of(w->out);
}

enum hd_status hd_token_writer_finish(struct hd_token_writer *w)
{
    enum hd_status st = w->idx ? HD_OK : write_head(w);

    if (!st)
        st = publish(w);
    hd_token_writer_drop(w);
    return st;
}
