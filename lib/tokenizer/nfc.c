/* nfc: normal form C as in Hugging Face tokenizers, whose tables are of Unicode 9. Characters that
 * later versions made combining marks or parts of compositions are ordinary letters there: they are
 * neither reordered nor composed. So the text is split at them, and utf8proc converts the pieces
 * between. `younger` is complete for Unicode 14; it also has U+11A7, which utf8proc 2.8 wrongly
 * treats as a final consonant and drops. tests/interop/tokenizers compares every character. */
#include <stdlib.h>

#include "tokenizer/tokenizer_internal.h"

#ifdef HEDDLE_HAVE_UTF8PROC
#include <utf8proc.h>

static const struct range {
    uint32_t first, last;
} younger[] = {
    {0x07FD, 0x07FD},   {0x0898, 0x089F},   {0x08CA, 0x08D3},   {0x09FE, 0x09FE},
    {0x0C3C, 0x0C3C},   {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x11A7, 0x11A7},
    {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},
    {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x16FF0, 0x16FF1},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
};

bool hd_nfc_is_present(void)
{
    return true;
}

static bool is_younger(uint32_t code)
{
    size_t low = 0, high = sizeof younger / sizeof younger[0];

    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (code > younger[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof younger / sizeof younger[0] && code >= younger[low].first;
}

static uint32_t code_of(const unsigned char *p, size_t *ret_bytes)
{
    const size_t n = p[0] < 0x80 ? 1 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    uint32_t code = n == 1 ? p[0] : p[0] & (0x7Fu >> n);

    for (size_t i = 1; i < n; i++)
        code = code << 6 | (p[i] & 0x3Fu);
    *ret_bytes = n;
    return code;
}

static enum hd_status add_normal(const unsigned char *text, size_t len_bytes,
                                 struct hd_text *ret_text)
{
    utf8proc_uint8_t *out = NULL;
    utf8proc_ssize_t n;

    if (!len_bytes)
        return HD_OK;
    n = utf8proc_map(text, (utf8proc_ssize_t)len_bytes, &out, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n < 0)
        return hd_err(HD_NO_MEMORY, "cannot convert a text to normal form C: %s",
                      utf8proc_errmsg(n));
    hd_text_add_bytes(ret_text, out, (size_t)n);
    free(out); /* as utf8proc documents */
    return HD_OK;
}

enum hd_status hd_nfc(const unsigned char *text, size_t len_bytes, struct hd_text *ret_text)
{
    enum hd_status st = HD_OK;
    size_t from = 0, at = 0, n = 0;

    hd_text_clear(ret_text);
    for (; !st && at < len_bytes; at += n) {
        const uint32_t code = code_of(text + at, &n);

        if (code < younger[0].first || !is_younger(code))
            continue;
        st = add_normal(text + from, at - from, ret_text);
        hd_text_add_bytes(ret_text, text + at, n);
        from = at + n;
    }
    if (!st)
        st = add_normal(text + from, len_bytes - from, ret_text);
    if (!st && ret_text->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a text in normal form C");
    return st;
}

#else

bool hd_nfc_is_present(void)
{
    return false;
}

enum hd_status hd_nfc(const unsigned char *text, size_t len_bytes, struct hd_text *ret_text)
{
    (void)text;
    (void)len_bytes;
    (void)ret_text;
    return hd_err(HD_UNSUPPORTED, "built without utf8proc");
}

#endif
