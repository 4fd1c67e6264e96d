/* npy: parses the header of NumPy's array files (NumPy Enhancement Proposal 1).
 *
 *   "\x93NUMPY", major, minor, length of the rest (u16; from version 2.0 on u32), then a Python
 *   dictionary with the keys descr, fortran_order and shape, padded with blanks, newline.
 *
 * NumPy writes that dictionary in one form only. This parser accepts the three keys in any order
 * and spacing, and nothing else.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "data/token_file.h"
#include "data/token_file_internal.h"

enum { HEAD_BYTES_MAX = 1 << 16, WORD_MAX = 32 };

struct npy_reader {
    const char *at, *end;
};

static void skip_blanks(struct npy_reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t'))
        r->at++;
}

static bool take_character(struct npy_reader *r, char c)
{
    skip_blanks(r);
    if (r->at == r->end || *r->at != c)
        return false;
    r->at++;
    return true;
}

/* Parses a string in single or double quotes: printable ASCII without escapes. */
static bool take_text(struct npy_reader *r, char ret_text[WORD_MAX])
{
    size_t n = 0;
    char quote;

    skip_blanks(r);
    if (r->at == r->end || (*r->at != '\'' && *r->at != '"'))
        return false;
    quote = *r->at++;
    while (r->at < r->end && *r->at != quote) {
        if (n + 1 == WORD_MAX || *r->at < ' ' || *r->at > '~' || *r->at == '\\')
            return false;
        ret_text[n++] = *r->at++;
    }
    ret_text[n] = '\0';
    return r->at < r->end && *r->at++ == quote;
}

static bool take_word(struct npy_reader *r, const char *word)
{
    const size_t n = strlen(word);

    skip_blanks(r);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0)
        return false;
    r->at += n;
    return true;
}

static bool take_number(struct npy_reader *r, int64_t *ret_value)
{
    int64_t value = 0;
    int digits = 0;

    skip_blanks(r);
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9' && digits < 18; r->at++, digits++)
        value = 10 * value + (*r->at - '0');
    *ret_value = value;
    return digits > 0;
}

struct header {
    char descr[WORD_MAX];
    bool fortran, seen[3];
    int dims;
    int64_t count; /* length of the first dimension */
};

static bool take_shape(struct npy_reader *r, struct header *h)
{
    int64_t size;

    if (!take_character(r, '('))
        return false;
    while (!take_character(r, ')')) {
        if (!take_number(r, &size))
            return false;
        if (h->dims++ == 0)
            h->count = size;
        if (!take_character(r, ',') && !(r->at < r->end && *r->at == ')'))
            return false;
    }
    return true;
}

static bool take_entry(struct npy_reader *r, struct header *h)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    char key[WORD_MAX];
    int which = 0;

    if (!take_text(r, key) || !take_character(r, ':'))
        return false;
    while (which < 3 && strcmp(key, keys[which]) != 0)
        which++;
    if (which == 3 || h->seen[which])
        return false;
    h->seen[which] = true;
    if (which == 0)
        return take_text(r, h->descr);
    if (which == 2)
        return take_shape(r, h);
    h->fortran = take_word(r, "True");
    return h->fortran || take_word(r, "False");
}

static bool take_header(struct npy_reader *r, struct header *h)
{
    if (!take_character(r, '{'))
        return false;
    while (!take_character(r, '}'))
        if (!take_entry(r, h) || (!take_character(r, ',') && !(r->at < r->end && *r->at == '}')))
            return false;
    skip_blanks(r);
    return r->at == r->end && h->seen[0] && h->seen[1] && h->seen[2];
}

static enum hd_status check_header(const struct header *h, struct hd_token_view *view)
{
    static const struct {
        const char *descr;
        enum hd_token_type type;
    } types[] = {{"|u1", HD_TOKEN_U8},  {"<u1", HD_TOKEN_U8},  {"<i2", HD_TOKEN_I16},
                 {"<u2", HD_TOKEN_U16}, {"<i4", HD_TOKEN_I32}, {"<u4", HD_TOKEN_U32},
                 {"<i8", HD_TOKEN_I64}};

    if (h->dims != 1)
        return hd_err(HD_UNSUPPORTED,
                      "an array of %d dimensions; token files have one: save a.reshape(-1)",
                      h->dims);
    if (h->fortran)
        return hd_err(HD_UNSUPPORTED, "an array in Fortran's order; save np.ascontiguousarray(a)");
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(h->descr, types[i].descr) == 0) {
            view->type = types[i].type;
            return HD_OK;
        }
    return hd_err(HD_UNSUPPORTED,
                  "elements of type '%s'; token ids are little-endian integers: save "
                  "a.astype('<u2') or a.astype('<u4')",
                  h->descr);
}

enum hd_status hd_token_view_npy(const void *bytes, int64_t size_bytes,
                                 struct hd_token_view *ret_view)
{
    const unsigned char *p = bytes;
    struct hd_token_view view = {.kind = "npy"};
    struct header header = {.dims = 0};
    struct npy_reader r;
    enum hd_status st;
    int64_t head, length;

    if (size_bytes < 6 || memcmp(p, "\x93NUMPY", 6) != 0)
        return hd_err(HD_INVALID, "not a NumPy array file: it does not begin with \\x93NUMPY");
    if (size_bytes < 12)
        return hd_err(HD_INVALID,
                      "it ends in its header, after %" PRId64 " bytes; it was truncated "
                      "or is being written",
                      size_bytes);
    if (p[6] < 1 || p[6] > 3 || p[7] != 0)
        return hd_err(HD_UNSUPPORTED, "version %d.%d of NumPy's array files; 1.0 to 3.0 are read",
                      p[6], p[7]);
    head = p[6] == 1 ? 10 : 12;
    length = p[6] == 1 ? hd_load_u16(p + 8) : (int64_t)(uint32_t)hd_load_i32(p + 8);
    if (length > HEAD_BYTES_MAX || length > size_bytes - head)
        return hd_err(HD_INVALID, "the header of %" PRId64 " bytes is truncated or too long",
                      length);
    r = (struct npy_reader){(const char *)p + head, (const char *)p + head + length};
    if (!take_header(&r, &header))
        return hd_err(HD_INVALID,
                      "its header is not one that NumPy writes for a plain array; write "
                      "one array of integers with np.save");
    st = check_header(&header, &view);
    if (st)
        return st;
    view.tokens = p + head + length;
    view.count = header.count;
    length = size_bytes - head - length; /* from here on: bytes of the array */
    if (view.count > length || length != view.count * hd_token_type_bytes(view.type))
        return hd_err(HD_INVALID,
                      "%" PRId64 " bytes after the header, but its %" PRId64
                      " elements have %d each; it was truncated or is being written",
                      length, view.count, hd_token_type_bytes(view.type));
    *ret_view = view;
    return HD_OK;
}

void hd_npy_format_head(const char *descr, const char *shape, char ret_head[HD_NPY_HEAD_BYTES])
{
    int n;

    memcpy(ret_head, "\x93NUMPY\x01\x00\x76\x00", 10); /* version 1.0, 118 bytes follow */
    n = snprintf(ret_head + 10, HD_NPY_HEAD_BYTES - 10,
                 "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape);
    memset(ret_head + 10 + n, ' ', HD_NPY_HEAD_BYTES - 11 - (size_t)n);
    ret_head[HD_NPY_HEAD_BYTES - 1] = '\n';
}
