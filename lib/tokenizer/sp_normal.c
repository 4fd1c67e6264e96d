/* sp_normal: the normalizer of a SentencePiece model: replaces by its rules, the longest match
 * first, removes repeated spaces, and writes U+2581 for a space. User-defined pieces stay as they
 * are. */
#include <string.h>

#include "tokenizer/sentencepiece.h"

enum { MATCHES_MAX = 32 }; /* matches of rules that are looked at, as in the library */

static const char space_mark[] = "\xE2\x96\x81"; /* U+2581 */

/* ---- rules ---- */

enum hd_status hd_sp_take_rules(const unsigned char *charsmap, size_t charsmap_bytes,
                                struct hd_arena *arena, struct hd_sp *sp)
{
    uint32_t size = 0, *units;
    char *replacements;

    for (int i = 3; charsmap_bytes > 4 && i >= 0; i--)
        size = size << 8 | charsmap[i];
    if (charsmap_bytes <= 4 || size % 4 || size >= charsmap_bytes - 4)
        return hd_err(HD_INVALID, "precompiled_charsmap is damaged: %u of %zu bytes", size,
                      charsmap_bytes);
    sp->unit_count = size / 4;
    sp->replacement_bytes = charsmap_bytes - 4 - size;
    units = hd_arena_array(arena, sp->unit_count + 1, sizeof *units);
    replacements = hd_arena_alloc(arena, sp->replacement_bytes + 1);
    if (!units || !replacements)
        return hd_bpe_no_memory();
    for (size_t i = 0; i < sp->unit_count; i++) {
        const unsigned char *u = charsmap + 4 + 4 * i;

        units[i] =
            (uint32_t)u[0] | (uint32_t)u[1] << 8 | (uint32_t)u[2] << 16 | (uint32_t)u[3] << 24;
    }
    memcpy(replacements, charsmap + 4 + size, sp->replacement_bytes);
    replacements[sp->replacement_bytes] = '\0';
    sp->units = units;
    sp->replacements = replacements;
    return HD_OK;
}

/* Fields of a unit of the double array (Yata 2012, darts-clone): bit 8 says that it has a leaf,
 * which is the unit at its offset; bits 0 to 7 and bit 31 are its label. */
static uint32_t unit_offset(uint32_t unit)
{
    return (unit >> 10) << ((unit & (1U << 9)) >> 6);
}

static bool unit_has_leaf(uint32_t unit)
{
    return (unit >> 8 & 1) != 0;
}

static uint32_t unit_label(uint32_t unit)
{
    return unit & (1U << 31 | 0xFF);
}

size_t hd_sp_find_rule(const struct hd_sp *sp, const unsigned char *text, size_t len_bytes,
                       bool shortest, uint32_t *ret_value)
{
    size_t longest = 0;
    uint32_t unit, at;
    int matches = 0;

    if (!sp->unit_count)
        return 0;
    at = unit_offset(sp->units[0]);
    for (size_t i = 0; i < len_bytes; i++) {
        at ^= text[i];
        if (at >= sp->unit_count)
            break;
        unit = sp->units[at];
        if (unit_label(unit) != text[i])
            break;
        at ^= unit_offset(unit);
        if (!unit_has_leaf(unit))
            continue;
        if (at >= sp->unit_count || matches++ == MATCHES_MAX)
            break;
        longest = i + 1;
        *ret_value = sp->units[at] & INT32_MAX;
        if (shortest)
            break;
    }
    return longest;
}

struct replaced { /* the beginning of a text, and what replaces it */
    const char *text;
    size_t len_bytes;
    size_t from_bytes; /* bytes of the text that are replaced */
};

/* Normalizes the beginning of a text: a user-defined piece, the longest rule, or a character. */
static enum hd_status normalise_prefix(const struct hd_sp *sp, const unsigned char *text,
                                       size_t len_bytes, struct replaced *ret)
{
    int32_t token;
    uint32_t value = 0;
    size_t n = hd_sp_longest(&sp->symbols, text, len_bytes, &token);

    *ret = (struct replaced){(const char *)text, n, n};
    if (n)
        return HD_OK;
    n = hd_sp_find_rule(sp, text, len_bytes, false, &value);
    if (!n) {
        n = hd_character_bytes(text[0]);
        *ret = (struct replaced){(const char *)text, n, n};
        return HD_OK;
    }
    if (value >= sp->replacement_bytes)
        return hd_err(HD_INVALID, "precompiled_charsmap: a rule has no replacement");
    *ret = (struct replaced){sp->replacements + value, strlen(sp->replacements + value), n};
    /* the rule's own text may end inside a character, and its replacement begin inside one */
    if (!hd_text_is_utf8(ret->text, ret->len_bytes) || (n < len_bytes && (text[n] & 0xC0) == 0x80))
        return hd_err(HD_INVALID, "precompiled_charsmap: a rule breaks UTF-8");
    return HD_OK;
}

/* ---- pieces ---- */

struct sp_writer {
    const struct hd_sp *sp;
    const struct hd_text_piece *piece;
    struct hd_rewrite *out;
};

static void add_space(const struct sp_writer *w, struct hd_origin origin)
{
    if (w->sp->escapes_spaces)
        hd_rewrite_add(w->out, space_mark, 3, origin);
    else
        hd_rewrite_add(w->out, " ", 1, origin);
}

/* Writes the replacement of some characters, each space as the space mark. after_space: the text
 * ends with a space, so leading spaces of the replacement are left out. Returns whether the text
 * then ends with a space. */
static bool write_replaced(const struct sp_writer *w, const struct replaced *r, size_t at,
                           bool after_space)
{
    const struct hd_origin origin = hd_text_piece_origin(w->piece, at, at + r->from_bytes);
    size_t from = 0;

    while (after_space && from < r->len_bytes && r->text[from] == ' ')
        from++;
    if (from == r->len_bytes)
        return after_space;
    for (size_t i = from; i < r->len_bytes; i++) {
        size_t end = i;

        while (end < r->len_bytes && r->text[end] != ' ')
            end++;
        hd_rewrite_add(w->out, r->text + i, end - i, origin);
        if (end < r->len_bytes)
            add_space(w, origin);
        i = end;
    }
    return r->text[r->len_bytes - 1] == ' ';
}

/* Removes spaces from the end of what was written. */
static void strip_end(const struct sp_writer *w)
{
    const char *space = w->sp->escapes_spaces ? space_mark : " ";
    const size_t n = strlen(space);
    struct hd_text *text = &w->out->text;

    while (text->len_bytes >= n && memcmp(text->data + text->len_bytes - n, space, n) == 0)
        text->len_bytes -= n;
}

enum hd_status hd_sp_normalise(const struct hd_sp *sp, const struct hd_text_piece *piece,
                               struct hd_rewrite *out)
{
    const struct sp_writer w = {sp, piece, out};
    const unsigned char *text = piece->text;
    const size_t n = piece->len_bytes;
    bool after_space = sp->removes_spaces;
    struct replaced r;
    size_t at = 0;
    enum hd_status st = HD_OK;

    for (; sp->removes_spaces && at < n; at += r.from_bytes) {
        st = normalise_prefix(sp, text + at, n - at, &r);
        if (st || r.len_bytes != 1 || r.text[0] != ' ')
            break;
    }
    if (st || at == n)
        return st;
    /* text behind an added token gets no space in front */
    if (sp->adds_prefix && !sp->space_is_suffix && !piece->from)
        add_space(&w, hd_text_piece_origin(piece, at, at + hd_character_bytes(text[at])));
    for (; at < n; at += r.from_bytes) {
        st = normalise_prefix(sp, text + at, n - at, &r);
        if (st)
            return st;
        if (r.len_bytes > HD_SP_PIECE_BYTES_MAX || out->text.len_bytes > HD_SP_WORD_BYTES_MAX)
            return hd_err(HD_LIMIT,
                          "the normalization of the tokenizer makes a text longer than "
                          "%d bytes, or a character longer than %d",
                          HD_SP_WORD_BYTES_MAX, HD_SP_PIECE_BYTES_MAX);
        after_space = write_replaced(&w, &r, at, after_space) && sp->removes_spaces;
    }
    if (sp->removes_spaces)
        strip_end(&w);
    if (sp->adds_prefix && sp->space_is_suffix)
        add_space(&w, hd_text_piece_origin(piece, n - 1, n));
    return HD_OK;
}
