#include "data/tokenize.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"

enum { PIECE_BYTES = 1 << 20, LINE_BYTES_MAX = 256 << 20, TYPE_I32 = 4, TYPE_U16 = 8 };

/* The three tables of an index, while they grow: a sequence for each piece. */
struct run {
    const struct hd_tokenize *what;
    struct hd_encoder *encoder;
    struct hd_id_list ids;
    struct hd_text lengths, pointers, documents; /* i32, i64, i64 */
    struct hd_text bytes;                        /* of a piece's ids, as they go to the file */
    int64_t sequences, written_bytes;
    int width, fd;
    const char *text;
    int64_t text_bytes;
};

static void add_int64(struct hd_text *table, int64_t value)
{
    hd_text_add_bytes(table, &value, sizeof value);
}

/* Writes the ids gathered so far as one sequence. */
static enum hd_status put_sequence(struct run *r)
{
    const int32_t length = (int32_t)r->ids.count;
    enum hd_status st;

    if (!length)
        return HD_OK;
    hd_text_clear(&r->bytes);
    for (size_t i = 0; i < r->ids.count; i++) /* little-endian machines only, as token_file.h */
        hd_text_add_bytes(&r->bytes, &r->ids.ids[i], (size_t)r->width);
    r->ids.count = 0;
    hd_text_add_bytes(&r->lengths, &length, sizeof length);
    add_int64(&r->pointers, r->written_bytes);
    if (r->bytes.failed || r->lengths.failed || r->pointers.failed)
        return hd_err(HD_NO_MEMORY, "no memory for an index");
    st = hd_file_write_all(r->fd, r->bytes.data, r->bytes.len_bytes);
    r->written_bytes += (int64_t)r->bytes.len_bytes;
    r->sequences++;
    return st ? hd_err_prefix(st, "%s.bin", r->what->out) : HD_OK;
}

static enum hd_status end_document(struct run *r)
{
    int32_t end = (int32_t)r->what->end_of_text;
    enum hd_status st = put_sequence(r);

    if (!st && r->what->end_of_text >= 0) {
        if (!r->ids.room) {
            r->ids.ids = malloc(sizeof *r->ids.ids);
            r->ids.room = r->ids.ids != NULL;
        }
        if (!r->ids.room)
            return hd_err(HD_NO_MEMORY, "no memory for a token");
        r->ids.ids[r->ids.count++] = end;
        st = put_sequence(r);
    }
    add_int64(&r->documents, r->sequences);
    return st;
}

static enum hd_status report(const struct run *r, int64_t done)
{
    const struct hd_tokenize *w = r->what;

    if (!w->progress || w->progress(w->context, done, r->text_bytes))
        return HD_OK;
    return hd_err(HD_ABORTED, "%s: given up after %" PRId64 " of %" PRId64 " bytes", w->in, done,
                  r->text_bytes);
}

/* May a piece begin with a character of this first byte? Visible ASCII, and the blocks in which all
 * are letters, neither spaces nor marks: the second half of Latin-1, Greek and the Cyrillic
 * alphabet, most of the Chinese and Korean characters. */
static bool begins_piece(unsigned char byte)
{
    return (byte > ' ' && byte < 0x7F) || byte == 0xC3 || (byte >= 0xCE && byte <= 0xD1) ||
           (byte >= 0xE4 && byte <= 0xE9) || byte == 0xEB || byte == 0xEC;
}

/* Where the piece that begins at `first` ends: see the header. */
static int64_t piece_end(const struct run *r, int64_t first)
{
    int64_t at = first + PIECE_BYTES;

    for (; at < r->text_bytes; at++)
        if (r->text[at - 1] == '\n' && begins_piece((unsigned char)r->text[at]))
            return at;
    return r->text_bytes;
}

static enum hd_status run_text(struct run *r)
{
    enum hd_status st = HD_OK;

    for (int64_t at = 0, end; !st && at < r->text_bytes; at = end) {
        end = piece_end(r, at);
        st = hd_encoder_add(r->encoder, r->text + at, (size_t)(end - at), &r->ids);
        if (st)
            st = hd_err_prefix(st, "%s, from byte %" PRId64, r->what->in, at);
        if (!st)
            st = put_sequence(r);
        if (!st)
            st = report(r, end);
    }
    return st ? st : end_document(r);
}

static enum hd_status run_line(struct run *r, const char *line, int64_t bytes)
{
    static const struct hd_json_limits limits = {.values_max = 1 << 20, .depth_max = 64};
    const struct hd_json *root;
    struct hd_arena arena;
    const char *text;
    enum hd_status st;

    if (bytes > LINE_BYTES_MAX)
        return hd_err(HD_LIMIT, "a line of %" PRId64 " bytes; at most %d are read", bytes,
                      LINE_BYTES_MAX);
    hd_arena_init(&arena, 0);
    st = hd_json_parse(&arena, line, (size_t)bytes, &limits, &root);
    if (!st)
        st = hd_json_need_string(root, "text", &text);
    if (!st)
        st = hd_encoder_add(r->encoder, text, strlen(text), &r->ids);
    hd_arena_done(&arena);
    return st ? st : end_document(r);
}

static bool is_blank(const char *line, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

static enum hd_status run_lines(struct run *r)
{
    enum hd_status st = HD_OK;
    int64_t number = 1, reported = 0;

    for (int64_t at = 0, end; !st && at < r->text_bytes; at = end + 1, number++) {
        const char *line = r->text + at, *stop = memchr(line, '\n', (size_t)(r->text_bytes - at));

        end = stop ? stop - r->text : r->text_bytes;
        if (!is_blank(line, end - at)) /* such lines are no documents */
            st = run_line(r, line, end - at);
        if (st)
            return hd_err_prefix(st, "%s:%" PRId64, r->what->in, number);
        if (end - reported >= PIECE_BYTES) {
            reported = end;
            st = report(r, end);
        }
    }
    return st;
}

/* ---- files ---- */

static enum hd_status map_text(struct run *r)
{
    const char *in = r->what->in;
    const int fd = open(in, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum hd_status st = HD_OK;
    struct stat info;
    void *text;

    if (fd < 0)
        return hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO, "cannot open %s: %s", in,
                      strerror(errno));
    if (fstat(fd, &info) < 0)
        st = hd_err(HD_IO, "cannot examine %s: %s", in, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        st = hd_err(HD_INVALID, "%s is not a regular file", in);
    if (!st && info.st_size) {
        text = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (text == MAP_FAILED) {
            st = hd_err(HD_IO, "cannot map %s into memory: %s", in, strerror(errno));
        } else {
            r->text = text;
            r->text_bytes = info.st_size;
        }
    }
    (void)close(fd);
    return st;
}

static enum hd_status write_index(struct run *r, const char *path)
{
    struct hd_text index = {0};
    const int64_t entries = (int64_t)(r->documents.len_bytes / sizeof(int64_t));
    const char type = r->width == 2 ? TYPE_U16 : TYPE_I32;
    enum hd_status st;

    hd_text_add_bytes(&index, "MMIDIDX\0", 9);
    add_int64(&index, 1);
    hd_text_add_bytes(&index, &type, 1);
    add_int64(&index, r->sequences);
    add_int64(&index, entries);
    hd_text_add_bytes(&index, r->lengths.data ? r->lengths.data : "", r->lengths.len_bytes);
    hd_text_add_bytes(&index, r->pointers.data ? r->pointers.data : "", r->pointers.len_bytes);
    hd_text_add_bytes(&index, r->documents.data, r->documents.len_bytes);
    st = index.failed || r->documents.failed
             ? hd_err(HD_NO_MEMORY, "no memory for an index")
             : hd_file_write_atomic(path, index.data, index.len_bytes, 0644);
    hd_text_free(&index);
    return st;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0;
}

/* The ids under a name of their own until they are whole. */
static enum hd_status write_both(struct run *r, const char *part, const char *bin, const char *idx)
{
    enum hd_status st;

    r->fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (r->fd < 0)
        return hd_err(HD_IO, "cannot create %s: %s", part, strerror(errno));
    add_int64(&r->documents, 0);
    st = ends_with(r->what->in, ".jsonl") ? run_lines(r) : run_text(r);
    if (!st && fsync(r->fd) < 0)
        st = hd_err(HD_IO, "cannot flush %s: %s", part, strerror(errno));
    (void)close(r->fd);
    if (!st && rename(part, bin) < 0)
        st = hd_err(HD_IO, "cannot rename %s to %s: %s", part, bin, strerror(errno));
    if (st)
        (void)unlink(part); /* best effort: st is the news */
    return st ? st : write_index(r, idx);
}

enum hd_status hd_tokenize_file(const struct hd_tokenize *what)
{
    struct run r = {
        .what = what,
        .width =
            hd_tokenizer_vocab(what->tokenizer) <= 1 << 16 && what->end_of_text < 1 << 16 ? 2 : 4};
    struct hd_text part = {0}, bin = {0}, idx = {0};
    enum hd_status st;

    hd_text_add(&part, "%s.%ld.%p.part", what->out, (long)getpid(), (void *)&r);
    hd_text_add(&bin, "%s.bin", what->out);
    hd_text_add(&idx, "%s.idx", what->out);
    st = part.failed || bin.failed || idx.failed ? hd_err(HD_NO_MEMORY, "no memory for a path")
                                                 : hd_encoder_new(what->tokenizer, &r.encoder);
    if (!st)
        st = map_text(&r);
    if (!st)
        st = write_both(&r, part.data, bin.data, idx.data);
    if (r.text)
        (void)munmap((void *)(uintptr_t)r.text, (size_t)r.text_bytes);
    hd_encoder_free(r.encoder);
    hd_id_list_free(&r.ids);
    hd_text_free(&r.lengths);
    hd_text_free(&r.pointers);
    hd_text_free(&r.documents);
    hd_text_free(&r.bytes);
    hd_text_free(&part);
    hd_text_free(&bin);
    hd_text_free(&idx);
    return st;
}
