#include "data/lines.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/pieces.h"
#include "data/data_internal.h"

enum { READ_BYTES = HD_PIECE(256 << 10, 61) };

enum hd_status hd_lines_open(struct hd_lines *l, const char *path, const char *columns,
                             size_t bytes_max)
{
    enum hd_status st;

    *l = (struct hd_lines){.path = path, .bytes_max = bytes_max};
    st = hd_records_open(path, columns, &l->source);
    if (st)
        return st;
    l->bytes = malloc(READ_BYTES);
    return l->bytes ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to read %s", path);
}

void hd_lines_close(struct hd_lines *l)
{
    hd_records_close(l->source);
    free(l->bytes);
    hd_text_free(&l->line);
}

const char *hd_lines_unit(const struct hd_lines *l)
{
    return hd_records_unit(l->source);
}

/* Appends the buffered bytes up to the end of the line to the current line; sets *ret_whole to
 * whether that end was found. */
static enum hd_status add_bytes(struct hd_lines *l, bool *ret_whole)
{
    const char *from = l->bytes + l->from;
    const char *end = memchr(from, '\n', l->until - l->from);
    const size_t count = end ? (size_t)(end - from) : l->until - l->from;
    char size[32];

    if (count > l->bytes_max - l->line.len_bytes) {
        hd_text_format_bytes((int64_t)l->bytes_max, size);
        return hd_err(HD_INVALID, "%s:%s%" PRId64 ": a line of more than %s; is its end missing?",
                      l->path, hd_lines_unit(l), l->number, size);
    }
    hd_text_add_bytes(&l->line, from, count);
    l->from += count + (end != NULL);
    *ret_whole = end;
    return l->line.failed ? hd_err(HD_NO_MEMORY, "no memory for a line of %s", l->path) : HD_OK;
}

enum hd_status hd_lines_next(struct hd_lines *l, bool *ret_there)
{
    enum hd_status st = HD_OK;
    bool whole = false;

    hd_text_clear(&l->line);
    l->number++;
    *ret_there = false;
    while (!st && !whole) {
        if (l->from == l->until) {
            l->from = 0;
            st = hd_records_read(l->source, l->bytes, READ_BYTES, &l->until);
        }
        if (st || !l->until)
            break;
        *ret_there = true;
        st = add_bytes(l, &whole);
    }
    return st;
}

bool hd_lines_is_blank(const struct hd_lines *l)
{
    return hd_jsonl_is_blank(l->line.data ? l->line.data : "", l->line.len_bytes);
}

bool hd_jsonl_is_blank(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}
