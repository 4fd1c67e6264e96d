/* precompiled: the normalizer Precompiled of a tokenizer.json, whose rules are those of a
 * SentencePiece model (sp_normal.c). Hugging Face tokenizers applies them in its own way: where the
 * text of a rule begins a grapheme cluster of at most 5 bytes, the rule with the shortest text
 * replaces the whole cluster; in other clusters each character is replaced by itself. Clusters are
 * those of Unicode Standard Annex 29. */
#include <stdlib.h>
#include <string.h>

#include "base/digits.h"
#include "base/json.h"
#include "tokenizer/sentencepiece.h"

enum { CLUSTER_BYTES_MAX = 5 }; /* bytes of the longest cluster that a rule replaces as a whole */

/* ---- reading ---- */

enum hd_status hd_precompiled_read(const struct hd_json *n, struct hd_arena *arena,
                                   const struct hd_sp **ret_sp)
{
    struct hd_sp *sp = hd_arena_alloc(arena, sizeof *sp);
    const char *text = NULL;
    unsigned char *bytes;
    int64_t count;
    enum hd_status st = hd_bpe_check_keys(n, "normalizer", "type|precompiled_charsmap");

    if (!st)
        st = hd_json_need_string(n, "precompiled_charsmap", &text);
    if (st)
        return hd_err_prefix(st, "normalizer");
    bytes = malloc(strlen(text) + 1);
    if (!sp || !bytes) {
        free(bytes);
        return hd_bpe_no_memory();
    }
    *sp = (struct hd_sp){0};
    count = hd_base64_parse(text, bytes);
    st = count < 0 ? hd_err(HD_INVALID, "precompiled_charsmap is no base64")
                   : hd_sp_take_rules(bytes, (size_t)count, arena, sp);
    free(bytes);
    *ret_sp = sp;
    return st ? hd_err_prefix(st, "normalizer") : HD_OK;
}

/* ---- clusters ---- */

enum cluster_class {
    OTHER,
    CR,
    LF,
    CONTROL,
    EXTEND,
    EXTEND_INSIDE, /* Extend that may be between two consonants of an Indic conjunct */
    LINKER,        /* Extend that joins two consonants */
    ZWJ,
    SPACING,
    PREPEND,
    REGIONAL,
    L,
    V,
    T,
    LV,
    LVT,
    PICTURE,
    CONSONANT,
};

static const struct class_range {
    uint32_t first, last;
    enum cluster_class class;
} class_ranges[] = {
#define G(first, last, class) {first, last, class},
#include "tokenizer/grapheme.def"
#undef G
};

static enum cluster_class class_of(uint32_t code)
{
    size_t low = 0, high = sizeof class_ranges / sizeof class_ranges[0];

    if (code >= 0xAC00 && code <= 0xD7A3)
        return (code - 0xAC00) % 28 ? LVT : LV;
    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (code > class_ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof class_ranges / sizeof class_ranges[0] && code >= class_ranges[low].first
               ? class_ranges[low].class
               : OTHER;
}

static bool is_extending(enum cluster_class c)
{
    return c == EXTEND || c == EXTEND_INSIDE || c == LINKER || c == ZWJ;
}

/* State of a cluster whose end is searched. */
struct cluster {
    enum cluster_class last;
    bool after_picture;           /* a picture, then only Extend */
    bool joins_picture;           /* and then ZWJ */
    bool in_conjunct, has_linker; /* a consonant, then Extend or ZWJ; and a linker among these */
    bool is_odd;                  /* an odd number of regional indicators */
};

static void take_class(struct cluster *c, enum cluster_class next)
{
    c->joins_picture = c->after_picture && next == ZWJ;
    c->after_picture = next == PICTURE || (c->after_picture && is_extending(next) && next != ZWJ);
    c->has_linker = c->in_conjunct && next != CONSONANT && (c->has_linker || next == LINKER);
    c->in_conjunct = next == CONSONANT ||
                     (c->in_conjunct && (next == EXTEND_INSIDE || next == LINKER || next == ZWJ));
    c->has_linker &= c->in_conjunct;
    c->is_odd = next == REGIONAL && !c->is_odd;
    c->last = next;
}

/* Returns whether a character of class `next` belongs to the cluster (rules GB3 to GB13). */
static bool goes_on(const struct cluster *c, enum cluster_class next)
{
    if (c->last == CR && next == LF)
        return true;
    if (c->last == CR || c->last == LF || c->last == CONTROL || next == CR || next == LF ||
        next == CONTROL)
        return false;
    if ((c->last == L && (next == L || next == V || next == LV || next == LVT)) ||
        ((c->last == LV || c->last == V) && (next == V || next == T)) ||
        ((c->last == LVT || c->last == T) && next == T))
        return true;
    return is_extending(next) || next == SPACING || c->last == PREPEND ||
           (c->has_linker && next == CONSONANT) || (c->joins_picture && next == PICTURE) ||
           (c->is_odd && next == REGIONAL);
}

/* Returns the number of bytes of the cluster at the beginning of a text. */
static size_t cluster_bytes(const unsigned char *text, size_t len_bytes)
{
    struct cluster c = {0};
    size_t at = 0, n;

    /* two characters of ASCII are one cluster only if they are a line break */
    if (text[0] < 0x80 && text[0] != '\r' && (len_bytes == 1 || text[1] < 0x80))
        return 1;
    do {
        take_class(&c, class_of(hd_character_code(text + at, &n)));
        at += n;
    } while (at < len_bytes && goes_on(&c, class_of(hd_character_code(text + at, &n))));
    return at;
}

/* ---- texts ---- */

/* Returns the origin of bytes that are written for [from, to) of the piece. The first that are
 * written begin where the piece does, also behind characters that were removed. */
static struct hd_origin origin_of(const struct hd_text_piece *piece, size_t from, size_t to,
                                  const struct hd_rewrite *out)
{
    return hd_text_piece_origin(piece, out->text.len_bytes ? from : 0, to);
}

/* Writes the replacement of some bytes of the piece, if the text of a rule begins there. */
static enum hd_status replace_bytes(const struct hd_sp *sp, const struct hd_text_piece *piece,
                                    size_t at, size_t len_bytes, struct hd_rewrite *out,
                                    bool *ret_is)
{
    uint32_t value = 0;
    const char *to;

    *ret_is = hd_sp_find_rule(sp, piece->text + at, len_bytes, true, &value) > 0;
    if (!*ret_is)
        return HD_OK;
    to = value < sp->replacement_bytes ? sp->replacements + value : NULL;
    if (!to || !hd_text_is_utf8(to, strlen(to)))
        return hd_err(HD_INVALID, "precompiled_charsmap: a rule has no replacement in UTF-8");
    if (out->text.len_bytes > HD_SP_WORD_BYTES_MAX && strlen(to) > len_bytes)
        return hd_err(HD_LIMIT, "the normalizer makes a text longer than %d bytes",
                      HD_SP_WORD_BYTES_MAX);
    hd_rewrite_add(out, to, strlen(to), origin_of(piece, at, at + len_bytes, out));
    return HD_OK;
}

enum hd_status hd_precompiled_normalise(const struct hd_sp *sp, const struct hd_text_piece *piece,
                                        struct hd_rewrite *out)
{
    enum hd_status st = HD_OK;

    for (size_t at = 0, end; !st && at < piece->len_bytes; at = end) {
        bool is = false;

        end = at + cluster_bytes(piece->text + at, piece->len_bytes - at);
        if (end - at <= CLUSTER_BYTES_MAX)
            st = replace_bytes(sp, piece, at, end - at, out, &is);
        for (size_t n; !st && !is && at < end; at += n) {
            bool is_character = false;

            n = hd_character_bytes(piece->text[at]);
            st = replace_bytes(sp, piece, at, n, out, &is_character);
            if (!st && !is_character)
                hd_rewrite_add(out, piece->text + at, n, origin_of(piece, at, at + n, out));
        }
    }
    return st;
}
