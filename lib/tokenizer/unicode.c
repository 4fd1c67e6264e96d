/* unicode: normal forms and sets of characters as Hugging Face tokenizers defines them.
 *
 * Parts of that library use different versions of Unicode, as do PCRE2 and utf8proc. Its normal
 * forms are those of Unicode 9: characters that later versions made combining marks or parts of
 * compositions are ordinary letters, neither reordered nor composed. So a text is split at these
 * characters, and utf8proc converts the pieces between them. `inert` is complete for Unicode 14; it
 * also has U+11A7, which utf8proc 2.8 wrongly treats as a final consonant and drops. The sets are
 * in unicode.def. tests/interop/tokenizers compares every character. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

struct range {
    uint32_t first, last;
};

#define R(first, last)              {first, last},
#define HD_UNICODE_RANGES(set, ...) static const struct range set[] = {__VA_ARGS__};
#define HD_UNICODE_SET(set, names, items)
#define HD_UNICODE_LOWER(code, first, second)
#include "tokenizer/unicode.def"
#undef R

struct char_set {
    const char *names; /* names of the set of characters, as in "lu|uppercaseletter" */
    /* characters of the set as PCRE2 writes them in a class; NULL: the set has only the ranges of
     * unicode.def */
    const char *items;
    const struct range *ranges;
    size_t count;
};

static const struct char_set sets[] = {
#define HD_UNICODE_RANGES(set, ...)
#define HD_UNICODE_SET(set, names, items) {names, items, set, sizeof set / sizeof set[0]},
#define HD_UNICODE_LOWER(code, first, second)
#include "tokenizer/unicode.def"
};

static const struct lower {
    uint32_t code, to[2]; /* to: lower case of the character `code`; to[1] 0: it is one character */
} lowered[] = {
#define HD_UNICODE_RANGES(set, ...)
#define HD_UNICODE_SET(set, names, items)
#define HD_UNICODE_LOWER(code, first, second) {code, {first, second}},
#include "tokenizer/unicode.def"
};

static bool is_in(const struct range *ranges, size_t count, uint32_t code)
{
    size_t low = 0, high = count;

    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (code > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && code >= ranges[low].first;
}

#define IS_IN(ranges, code) is_in(ranges, sizeof ranges / sizeof ranges[0], code)

/* ---- sets ---- */

static bool has_name(const char *names, const char *name, size_t name_bytes)
{
    for (const char *p = names; *p;) {
        const size_t n = strcspn(p, "|");

        if (n == name_bytes && memcmp(p, name, n) == 0)
            return true;
        p += n + (p[n] == '|');
    }
    return false;
}

bool hd_unicode_add_set(const char *name, size_t name_bytes, bool with_newer,
                        struct hd_text *ret_items)
{
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        const struct char_set *s = &sets[i];

        if (!has_name(s->names, name, name_bytes))
            continue;
        if (s->items)
            hd_text_add(ret_items, "%s", s->items);
        for (size_t r = 0;
             (with_newer || !s->items) && r < s->count && s->ranges[r].last < 0x110000; r++)
            hd_text_add(ret_items,
                        s->ranges[r].first == s->ranges[r].last ? "\\x{%X}" : "\\x{%X}-\\x{%X}",
                        (unsigned)s->ranges[r].first, (unsigned)s->ranges[r].last);
        return true;
    }
    return false;
}

bool hd_unicode_has_newer(const unsigned char *text, size_t len_bytes)
{
    size_t n = 1;

    for (size_t at = 0; at < len_bytes; at += n) {
        const unsigned char lead = text[at];

        n = hd_character_bytes(lead);
        /* quick test: no newer character is below U+0340, in U+0380 .. U+07FF or in U+4000 ..
         * U+9FFF */
        if ((lead < 0xE0 && lead != 0xCD) || (lead >= 0xE4 && lead <= 0xE9))
            continue;
        if (IS_IN(newer, hd_character_code(text + at, &n)))
            return true;
    }
    return false;
}

bool hd_unicode_is_accent(uint32_t code, bool as_bert)
{
    return code >= 0x300 && (as_bert ? IS_IN(bert_accents, code) : IS_IN(accents, code));
}

bool hd_unicode_is_control(uint32_t code)
{
    return IS_IN(bert_control, code);
}

bool hd_unicode_is_space(uint32_t code)
{
    return code == ' ' || (code >= '\t' && code <= '\r') || code == 0x85 || code == 0xA0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
           code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

#ifdef HEDDLE_HAVE_UTF8PROC
#include <utf8proc.h>

bool hd_unicode_is_present(void)
{
    return true;
}

static const struct range inert[] = {
    {0x07FD, 0x07FD},   {0x0898, 0x089F},   {0x08CA, 0x08D3},   {0x09FE, 0x09FE},
    {0x0C3C, 0x0C3C},   {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x11A7, 0x11A7},
    {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},
    {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785},
    {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x16FF0, 0x16FF1}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};

/* ---- normal forms ---- */

static bool is_inert(uint32_t code)
{
    return code >= inert[0].first && (IS_IN(inert, code) || IS_IN(assigned_since, code));
}

static utf8proc_option_t options_of(enum hd_normal_form form)
{
    static const int options[] = {
        [HD_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [HD_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [HD_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [HD_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };

    return (utf8proc_option_t)options[form];
}

static enum hd_status add_normal_form(enum hd_normal_form form, const unsigned char *text,
                                      size_t len_bytes, struct hd_text *ret_text)
{
    utf8proc_uint8_t *out = NULL;
    utf8proc_ssize_t n;

    if (!len_bytes)
        return HD_OK;
    n = utf8proc_map(text, (utf8proc_ssize_t)len_bytes, &out, options_of(form));
    if (n < 0)
        return hd_err(HD_NO_MEMORY, "cannot convert a text to a normal form: %s",
                      utf8proc_errmsg(n));
    hd_text_add_bytes(ret_text, out, (size_t)n);
    free(out); /* utf8proc allocates with malloc */
    return HD_OK;
}

enum hd_status hd_unicode_normal(enum hd_normal_form form, const unsigned char *text,
                                 size_t len_bytes, struct hd_text *ret_text)
{
    enum hd_status st = HD_OK;
    size_t from = 0, n = 0;

    for (size_t at = 0; !st && at < len_bytes; at += n) {
        const uint32_t code = hd_character_code(text + at, &n);

        if (!is_inert(code))
            continue;
        st = add_normal_form(form, text + from, at - from, ret_text);
        hd_text_add_bytes(ret_text, text + at, n);
        from = at + n;
    }
    if (!st)
        st = add_normal_form(form, text + from, len_bytes - from, ret_text);
    if (!st && ret_text->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a text in a normal form");
    return st;
}

/* Returns whether a character joins the one before it in a normal form: a mark, or a vowel or final
 * consonant of Hangul. */
static bool joins_character(uint32_t code)
{
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);

    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
           category == UTF8PROC_CATEGORY_ME || (code >= 0x1160 && code <= 0x11FF);
}

bool hd_unicode_begins(enum hd_normal_form form, uint32_t code)
{
    utf8proc_int32_t parts[32];
    utf8proc_ssize_t n;
    int last = 0;

    if (code < 0x300 || is_inert(code))
        return true;
    n = utf8proc_decompose_char((utf8proc_int32_t)code, parts, 32,
                                options_of(form) | UTF8PROC_DECOMPOSE, &last);
    return !joins_character(n > 0 && n <= 32 ? (uint32_t)parts[0] : code);
}

size_t hd_unicode_lower(uint32_t code, uint32_t ret_codes[2])
{
    size_t low = 0, high = sizeof lowered / sizeof lowered[0];

    if (code < 0x80) {
        ret_codes[0] = code >= 'A' && code <= 'Z' ? code + 32 : code;
        return 1;
    }
    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (code > lowered[middle].code)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < sizeof lowered / sizeof lowered[0] && lowered[low].code == code) {
        ret_codes[0] = lowered[low].to[0];
        ret_codes[1] = lowered[low].to[1];
        return ret_codes[1] ? 2 : 1;
    }
    ret_codes[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
    return 1;
}

bool hd_unicode_may_fold(uint32_t code)
{
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);

    return category <= UTF8PROC_CATEGORY_ME; /* letters, marks and unassigned (0) */
}

#else

bool hd_unicode_is_present(void)
{
    return false;
}

enum hd_status hd_unicode_normal(enum hd_normal_form form, const unsigned char *text,
                                 size_t len_bytes, struct hd_text *ret_text)
{
    (void)form;
    (void)text;
    (void)len_bytes;
    (void)ret_text;
    return hd_err(HD_UNSUPPORTED, "built without utf8proc");
}

bool hd_unicode_begins(enum hd_normal_form form, uint32_t code)
{
    (void)form;
    (void)code;
    return true;
}

size_t hd_unicode_lower(uint32_t code, uint32_t ret_codes[2])
{
    (void)lowered;
    ret_codes[0] = code;
    return 1;
}

bool hd_unicode_may_fold(uint32_t code)
{
    (void)code;
    return true;
}

#endif
