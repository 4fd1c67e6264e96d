/* normal: applies the normalizers of tokenizer.json, each to the result of the one before. */
#include <string.h>

#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer_internal.h"

/* State of one normalizer at work. */
struct normalising {
    const struct hd_normal_step *step;
    struct hd_regex_scratch *scratch;
    const struct hd_text_piece *in;
    struct hd_rewrite *out;
};

static bool is_ascii(const unsigned char *text, size_t n)
{
    unsigned char all = 0;

    for (size_t i = 0; i < n; i++)
        all |= text[i];
    return all < 0x80;
}

/* ---- normal forms ---- */

/* most characters of a sequence whose bytes get origins of their own; a longer one has one common
 * origin */
enum { JOINED_MAX = 8 };

/* Sets ret_ends to the offsets at which the characters of a text end; returns their number, at most
 * JOINED_MAX + 1. */
static size_t find_ends(const unsigned char *text, size_t n, size_t ret_ends[JOINED_MAX + 1])
{
    size_t count = 0;

    for (size_t at = 0; at < n && count <= JOINED_MAX;)
        ret_ends[count++] = at += hd_character_bytes(text[at]);
    return count;
}

/* Checks whether converting the first `joined` characters of in[from, ...) together, and each later
 * one alone, gives the normal form; if so, writes it with these origins and sets *ret_is. */
static enum hd_status write_apart(const struct normalising *w, size_t from, const size_t *ends,
                                  size_t count, size_t joined, const struct hd_text *normal,
                                  bool *ret_is)
{
    struct hd_text parts[JOINED_MAX] = {{0}};
    const unsigned char *text = w->in->text + from;
    size_t at = 0;
    enum hd_status st = HD_OK;

    *ret_is = true;
    for (size_t i = joined - 1; !st && i < count && *ret_is; i++) {
        const size_t first = i == joined - 1 ? 0 : ends[i - 1];

        st = hd_unicode_normal(w->step->form, text + first, ends[i] - first, &parts[i]);
        *ret_is = !st && at + parts[i].len_bytes <= normal->len_bytes &&
                  memcmp(normal->data + at, parts[i].data, parts[i].len_bytes) == 0;
        at += parts[i].len_bytes;
    }
    *ret_is &= at == normal->len_bytes;
    for (size_t i = joined - 1; i < count && *ret_is; i++) {
        const size_t first = i == joined - 1 ? 0 : ends[i - 1];

        hd_rewrite_add(w->out, parts[i].data, parts[i].len_bytes,
                       hd_text_piece_origin(w->in, from + first, from + ends[i]));
    }
    for (size_t i = 0; i < JOINED_MAX; i++)
        hd_text_free(&parts[i]);
    return st;
}

/* Writes combining marks that the normal form reordered; the origin of each is the mark that was in
 * its position. */
static void write_reordered(const struct normalising *w, size_t from, const size_t *ends,
                            size_t count, const struct hd_text *normal)
{
    size_t out_ends[JOINED_MAX + 1];

    (void)find_ends((const unsigned char *)normal->data, normal->len_bytes, out_ends);
    for (size_t i = 0; i < count; i++) {
        const size_t first = i ? out_ends[i - 1] : 0;

        hd_rewrite_add(w->out, normal->data + first, out_ends[i] - first,
                       hd_text_piece_origin(w->in, from + (i ? ends[i - 1] : 0), from + ends[i]));
    }
}

/* Writes the normal form of a sequence of characters that differs from it, with the best
 * origins. */
static enum hd_status write_sequence(const struct normalising *w, size_t from, size_t to,
                                     const struct hd_text *normal)
{
    size_t ends[JOINED_MAX + 1], out_ends[JOINED_MAX + 1];
    const size_t count = find_ends(w->in->text + from, to - from, ends);
    bool is = false;
    enum hd_status st = HD_OK;

    for (size_t joined = 1; !st && !is && joined < count && count <= JOINED_MAX; joined++)
        st = write_apart(w, from, ends, count, joined, normal, &is);
    if (st || is)
        return st;
    if (count <= JOINED_MAX &&
        find_ends((const unsigned char *)normal->data, normal->len_bytes, out_ends) == count)
        write_reordered(w, from, ends, count, normal);
    else
        hd_rewrite_add(w->out, normal->data, normal->len_bytes,
                       hd_text_piece_origin(w->in, from, to));
    return HD_OK;
}

/* Converts the bytes [from, to) of the piece to the normal form, which never joins them with
 * characters outside. */
static enum hd_status convert(const struct normalising *w, size_t from, size_t to)
{
    const struct hd_text_piece *in = w->in;
    struct hd_text normal = {0};
    enum hd_status st;

    if (from == to)
        return HD_OK;
    st = hd_unicode_normal(w->step->form, in->text + from, to - from, &normal);
    if (!st && normal.len_bytes == to - from &&
        memcmp(normal.data, in->text + from, to - from) == 0)
        hd_rewrite_copy(w->out, in, from, to);
    else if (!st)
        st = write_sequence(w, from, to, &normal);
    hd_text_free(&normal);
    return st;
}

static enum hd_status to_form(const struct normalising *w)
{
    const struct hd_text_piece *in = w->in;
    enum hd_status st = HD_OK;
    size_t from = 0, n = 0;

    if (!w->out->tracks)
        return hd_unicode_normal(w->step->form, in->text, in->len_bytes, &w->out->text);
    for (size_t at = 0; !st && at < in->len_bytes; at += n) {
        const uint32_t code = hd_character_code(in->text + at, &n);

        if (!hd_unicode_begins(w->step->form, code))
            continue;
        st = convert(w, from, at);
        from = at;
    }
    return st ? st : convert(w, from, in->len_bytes);
}

/* ---- characters ---- */

/* Returns the character that Sentencepiece's nmt puts in place of a character; 0: nmt drops it. */
static uint32_t nmt(uint32_t code)
{
    if ((code >= 0x1 && code <= 0x8) || code == 0xB || (code >= 0xE && code <= 0x1F) ||
        code == 0x7F || code == 0x8F || code == 0x9F)
        return 0;
    if (code == 0x9 || code == 0xA || code == 0xC || code == 0xD || code == 0x1680 ||
        (code >= 0x200B && code <= 0x200F) || code == 0x2028 || code == 0x2029 || code == 0x2581 ||
        code == 0xFEFF || code == 0xFFFD)
        return ' ';
    return code;
}

static uint32_t cleaned(uint32_t code)
{
    if (code == '\t' || code == '\n' || code == '\r')
        return ' ';
    if (!code || code == 0xFFFD || hd_unicode_is_control(code))
        return 0;
    return hd_unicode_is_space(code) ? ' ' : code;
}

static bool is_chinese(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) ||
           (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
           (c >= 0x2F800 && c <= 0x2FA1F);
}

/* Sets ret_codes to the characters by which the normalizer replaces one character; returns their
 * number. NMT keeps U+0000. */
static size_t change_code(const struct normalising *w, uint32_t code, uint32_t ret_codes[3])
{
    ret_codes[0] = code;
    switch (w->step->kind) {
    case HD_NORMAL_LOWERCASE:
        return hd_unicode_lower(code, ret_codes);
    case HD_NORMAL_STRIP_ACCENTS:
        return !hd_unicode_is_accent(code, false);
    case HD_NORMAL_BERT_ACCENTS:
        return !hd_unicode_is_accent(code, true);
    case HD_NORMAL_NMT:
        ret_codes[0] = nmt(code);
        return ret_codes[0] || !code;
    case HD_NORMAL_BERT_CLEAN:
        ret_codes[0] = cleaned(code);
        return ret_codes[0] != 0;
    case HD_NORMAL_BERT_CHINESE:
        if (!is_chinese(code))
            return 1;
        ret_codes[0] = ret_codes[2] = ' ';
        ret_codes[1] = code;
        return 3;
    default:
        return 1;
    }
}

static void change_all(const struct normalising *w)
{
    const struct hd_text_piece *in = w->in;
    size_t n = 0;

    for (size_t at = 0; at < in->len_bytes; at += n) {
        const uint32_t code = hd_character_code(in->text + at, &n);
        uint32_t codes[3];
        const size_t count = change_code(w, code, codes);

        if (count == 1 && codes[0] == code) {
            hd_rewrite_copy(w->out, in, at, at + n);
            continue;
        }
        for (size_t i = 0; i < count; i++) {
            unsigned char bytes[4];

            hd_rewrite_add(w->out, bytes, hd_character_spell(codes[i], bytes),
                           hd_text_piece_origin(in, at, at + n));
        }
    }
}

static void strip_piece(const struct normalising *w)
{
    const struct hd_text_piece *in = w->in;
    size_t from = 0, to = in->len_bytes, n = 0;

    while (w->step->left && from < to &&
           hd_unicode_is_space(hd_character_code(in->text + from, &n)))
        from += n;
    while (w->step->right && to > from) {
        size_t last = to - 1;

        while ((in->text[last] & 0xC0) == 0x80)
            last--;
        if (!hd_unicode_is_space(hd_character_code(in->text + last, &n)))
            break;
        to = last;
    }
    hd_rewrite_copy(w->out, in, from, to);
}

/* ---- texts ---- */

/* Returns the origin of the replacement of a match that ends at `to`: the last character of the
 * match. */
static struct hd_origin replaced_origin(const struct hd_text_piece *in, size_t to)
{
    size_t last = to ? to - 1 : 0;

    if (!to)
        return (struct hd_origin){(uint32_t)in->from, (uint32_t)in->from};
    while (last && (in->text[last] & 0xC0) == 0x80)
        last--;
    return hd_text_piece_origin(in, last, to);
}

static enum hd_status replace_in_piece(const struct normalising *w)
{
    const struct hd_text_piece *in = w->in;
    struct hd_match_walk walk = {.matcher = &w->step->pattern,
                                 .scratch = w->scratch,
                                 .text = in->text,
                                 .len_bytes = in->len_bytes};
    size_t at = 0, from = 0, to = 0;
    bool found = false;
    enum hd_status st = hd_match_next(&walk, &found, &from, &to);

    for (; !st && found; st = hd_match_next(&walk, &found, &from, &to)) {
        hd_rewrite_copy(w->out, in, at, from);
        hd_rewrite_add(w->out, w->step->content, w->step->content_bytes, replaced_origin(in, to));
        at = to;
    }
    hd_rewrite_copy(w->out, in, at, in->len_bytes);
    return st;
}

static void prepend(const struct normalising *w)
{
    const struct hd_text_piece *in = w->in;

    hd_rewrite_add(w->out, w->step->content, w->step->content_bytes,
                   hd_text_piece_origin(in, 0, hd_character_bytes(in->text[0])));
    hd_rewrite_copy(w->out, in, 0, in->len_bytes);
}

static enum hd_status apply_normal_step(const struct normalising *w)
{
    switch (w->step->kind) {
    case HD_NORMAL_FORM:
        return to_form(w);
    case HD_NORMAL_REPLACE:
        return replace_in_piece(w);
    case HD_NORMAL_PREPEND:
        prepend(w);
        return HD_OK;
    case HD_NORMAL_STRIP:
        strip_piece(w);
        return HD_OK;
    case HD_NORMAL_LETTERS:
        hd_rewrite_letters(w->out, w->in);
        return HD_OK;
    case HD_NORMAL_SENTENCEPIECE:
        return hd_sp_normalise(w->step->sp, w->in, w->out);
    case HD_NORMAL_PRECOMPILED:
        return hd_precompiled_normalise(w->step->sp, w->in, w->out);
    default:
        change_all(w);
        return HD_OK;
    }
}

/* Returns whether a normalizer leaves every ASCII text unchanged. */
static bool keeps_ascii(const struct hd_normal_step *step)
{
    return step->kind == HD_NORMAL_FORM || step->kind == HD_NORMAL_STRIP_ACCENTS ||
           step->kind == HD_NORMAL_BERT_CHINESE || step->kind == HD_NORMAL_BERT_ACCENTS;
}

enum hd_status hd_normalise(const struct hd_normal_step *steps, int count,
                            struct hd_regex_scratch *scratch, bool tracks,
                            struct hd_rewrite rewrites[2], struct hd_text_piece *piece)
{
    enum hd_status st = HD_OK;
    int next = 0;

    for (int i = 0; !st && i < count && piece->len_bytes; i++) {
        struct normalising w = {&steps[i], scratch, piece, &rewrites[next]};

        if (keeps_ascii(&steps[i]) && is_ascii(piece->text, piece->len_bytes))
            continue;
        hd_rewrite_begin(w.out, tracks);
        st = apply_normal_step(&w);
        if (!st)
            st = hd_rewrite_take(w.out, piece);
        next = !next;
    }
    return st;
}
