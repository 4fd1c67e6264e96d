/* pattern: translates regular expressions of tokenizer.json from Oniguruma's syntax to PCRE2's.
 *
 * Hugging Face tokenizers compiles patterns with Oniguruma (its own syntax, no options, Unicode
 * 16). A pattern is parsed here and written again, piece by piece. Pieces that both engines read
 * alike are kept; those that they read differently are spelt out:
 *
 *   Oniguruma                             PCRE2 10.42
 *   \w \d \s \b [[:alpha:]] \p{Name}      sets of unicode.def
 *   \h a hexadecimal digit                white space that is no line break
 *   \v U+000B                             all vertical white space
 *   a{,2} is a{0,2}                       five characters (10.43: a{0,2})
 *   a{1,2}+ is (?:a{1,2})+                possessive
 *   a{2}? is (?:a{2})?                    lazy
 *   (?m) . matches a line break           ^ and $ match at lines, which Oniguruma always does
 *   a(?i)b|c is a(?i:b|c)                 two branches
 *   [a-z&&[^c]], [ab[cd]]                 no sets in classes
 *   \R \N \O                              spelt out, because \R may be set otherwise
 *   ignoring case, ss and U+00DF match    never: such patterns are refused
 *
 * All other pieces are refused by name: back references, \G, \K, \X, \y, absent operators,
 * conditions, callouts, calls of groups, octal and control escapes, (?x) and the ASCII options.
 * tests/unit/tokenizer/tokenizer_pattern_test.c has a table of patterns and what Oniguruma matches.
 */
#include <stdlib.h>
#include <string.h>

#include "base/digits.h"
#include "tokenizer/tokenizer_internal.h"

enum { DEPTH_MAX = 64, REPEAT_MAX = 65535, NAME_BYTES_MAX = 64 };

struct translation {
    const char *pattern, *p;
    struct hd_text *out;
    bool newer, ignores_case, dot_matches_all;
    uint32_t last; /* with (?i): the ASCII literal just before the current position; 0: none */
    int depth;
};

enum atom { ATOM_NONE, ATOM_ANCHOR, ATOM_REPEATABLE };

static enum hd_status parse_branches(struct translation *t);
static enum hd_status parse_class(struct translation *t, struct hd_text *out);

/* ---- messages ---- */

static enum hd_status refuse(const struct translation *t, const char *from, const char *to,
                             const char *hint)
{
    return hd_err(HD_UNSUPPORTED, "the pattern has %.*s at byte %zu, which is not supported%s%s",
                  (int)(to - from), from, (size_t)(from - t->pattern), hint ? "; " : "",
                  hint ? hint : "");
}

static enum hd_status invalid(const struct translation *t, const char *at, const char *what)
{
    return hd_err(HD_INVALID, "the pattern is not valid at byte %zu: %s", (size_t)(at - t->pattern),
                  what);
}

/* Returns a pointer to the byte after the UTF-8 character at p. */
static const char *behind(const char *p)
{
    return *p ? p + hd_character_bytes((unsigned char)*p) : p;
}

/* ---- characters ---- */

static bool is_letter_or_digit(uint32_t code)
{
    return (code >= '0' && code <= '9') || ((code | 0x20) >= 'a' && (code | 0x20) <= 'z');
}

static void add_literal(struct hd_text *out, uint32_t code)
{
    unsigned char bytes[4];

    if (code < 0x80 && is_letter_or_digit(code))
        hd_text_add(out, "%c", (char)code);
    else if (code < 0x80)
        hd_text_add(out, "\\x{%X}", (unsigned)code);
    else
        hd_text_add_bytes(out, bytes, hd_character_spell(code, bytes));
}

/* Returns whether Oniguruma, ignoring case, would also match one character that folds to these
 * two. */
static bool folds_together(uint32_t first, uint32_t second)
{
    first |= 0x20;
    second |= 0x20;
    return (first == 's' && (second == 's' || second == 't')) ||
           (first == 'f' && (second == 'f' || second == 'i' || second == 'l'));
}

static enum hd_status literal(struct translation *t, const char *from, uint32_t code)
{
    static const char hint[] = "with (?i) it also matches characters that fold to several; write "
                               "both cases in classes, without (?i)";

    if (t->ignores_case && code >= 0x80 && hd_unicode_may_fold(code))
        return refuse(t, from, t->p, hint);
    if (t->ignores_case && t->last && code < 0x80 && folds_together(t->last, code))
        return refuse(t, from - 1, t->p, hint);
    add_literal(t->out, code);
    t->last = t->ignores_case && code < 0x80 ? code : 0;
    return HD_OK;
}

static int hex_digits(const char *p, int max, uint32_t *ret_code)
{
    int n = 0;

    for (*ret_code = 0; n < max && hd_hex_digit(p[n]) >= 0; n++)
        *ret_code = *ret_code * 16 + (uint32_t)hd_hex_digit(p[n]);
    return n;
}

/* Parses the hexadecimal number of an escape \x or \u; t->p is at the letter. */
static enum hd_status parse_hex(struct translation *t, uint32_t *ret_code)
{
    const char *from = t->p - 1;
    int n;

    if (*t->p++ == 'u') {
        n = hex_digits(t->p, 4, ret_code);
        t->p += n;
        if (n != 4)
            return invalid(t, from, "\\u needs four hexadecimal digits");
    } else if (*t->p == '{') {
        n = hex_digits(t->p + 1, 8, ret_code);
        if (!n || t->p[n + 1] != '}')
            return refuse(t, from, from + 3, "write one character, \\x{..}");
        t->p += n + 2;
    } else {
        n = hex_digits(t->p, 2, ret_code);
        t->p += n;
        if (!n || *ret_code >= 0x80)
            return refuse(t, from, t->p, "write \\x{..} for a character");
    }
    if (!*ret_code || *ret_code > 0x10FFFF || (*ret_code >= 0xD800 && *ret_code < 0xE000))
        return refuse(t, from, t->p, "it is no character of a text");
    return HD_OK;
}

/* Parses an escape that means one character; *ret_is false: the escape is of another kind, and t->p
 * has not moved. */
static enum hd_status parse_character_escape(struct translation *t, bool *ret_is,
                                             uint32_t *ret_code)
{
    static const char names[] = "ntrfvae", codes[] = "\n\t\r\f\v\a\033",
                      themselves[] = "EFIJLQTUVijlmq";
    const char *name = *t->p ? strchr(names, *t->p) : NULL;
    size_t n;

    *ret_is = true;
    if (!*t->p)
        return invalid(t, t->p - 1, "it ends behind a \\");
    if (*t->p == 'x' || *t->p == 'u')
        return parse_hex(t, ret_code);
    if (name) {
        *ret_code = (uint32_t)codes[name - names];
    } else if (is_letter_or_digit((unsigned char)*t->p) && !strchr(themselves, *t->p)) {
        *ret_is = false;
        return HD_OK;
    } else {
        *ret_code = hd_character_code((const unsigned char *)t->p, &n);
    }
    t->p = behind(t->p);
    return HD_OK;
}

/* ---- sets ---- */

/* Returns whether case folding does not change this set of characters. */
static bool is_caseless(const char *name)
{
    static const char *const sets[] = {
        "n",        "nd",     "nl",    "no",    "p",      "pc",    "pd",   "ps",
        "pe",       "pi",     "pf",    "po",    "z",      "zs",    "zl",   "zp",
        "s",        "sm",     "sc",    "sk",    "so",     "han",   "thai", "hiragana",
        "katakana", "hangul", "digit", "space", "xdigit", "blank", "punct"};

    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
        if (strcmp(sets[i], name) == 0)
            return true;
    return false;
}

/* Appends a set of characters as [..] or [^..]. */
static enum hd_status add_set(struct translation *t, const char *from, const char *name,
                              bool negated, struct hd_text *out)
{
    hd_text_add(out, t->ignores_case ? "(?-i:[%s" : "[%s", negated ? "^" : "");
    if (!hd_unicode_add_set(name, strlen(name), t->newer, out))
        return refuse(t, from, t->p, "write the characters, or another property");
    hd_text_add(out, t->ignores_case ? "])" : "]");
    return HD_OK;
}

/* Reads the name of a character property up to the character `end`, dropping case, spaces, - and
 * _. */
static enum hd_status read_property_name(const struct translation *t, const char *from,
                                         const char *p, const char *end,
                                         char ret_name[NAME_BYTES_MAX])
{
    size_t n = 0;

    for (; p < end; p++) {
        if (*p == ' ' || *p == '-' || *p == '_')
            continue;
        if (!is_letter_or_digit((unsigned char)*p) || n + 1 == NAME_BYTES_MAX)
            return refuse(t, from, end + 1, NULL);
        ret_name[n++] = (char)(*p >= 'A' && *p <= 'Z' ? *p + 32 : *p);
    }
    ret_name[n] = '\0';
    return HD_OK;
}

/* Parses \p{..}, \w and other sets; t->p is at the letter. *ret_is false: the escape is no set. */
static enum hd_status parse_set_escape(struct translation *t, bool in_class, bool *ret_is,
                                       char ret_name[NAME_BYTES_MAX], bool *ret_negated)
{
    static const char letters[] = "dDsSwWhH";
    const char *const names[] = {"digit", "space", in_class ? "word" : "\\w", "xdigit"};
    const char *from = t->p - 1, *letter = *t->p ? strchr(letters, *t->p) : NULL, *end;
    enum hd_status st;

    *ret_is = letter || *t->p == 'p' || *t->p == 'P';
    if (!*ret_is)
        return HD_OK;
    if (letter) {
        *ret_negated = (letter - letters) & 1;
        (void)strcpy(ret_name, names[(letter - letters) / 2]);
        t->p++;
        return t->ignores_case && in_class && strcmp(ret_name, "word") == 0
                   ? refuse(t, from, t->p, "write it without (?i)")
                   : HD_OK;
    }
    *ret_negated = *t->p == 'P';
    if (t->p[1] != '{')
        return refuse(t, from, t->p + 1, "write \\p{..}");
    t->p += 2;
    if (*t->p == '^') {
        *ret_negated = !*ret_negated;
        t->p++;
    }
    end = strchr(t->p, '}');
    if (!end)
        return invalid(t, from, "a property has no }");
    st = read_property_name(t, from, t->p, end, ret_name);
    t->p = end + 1;
    if (!st && !in_class && strcmp(ret_name, "word") == 0)
        (void)strcpy(ret_name, "\\w");
    if (!st && t->ignores_case && !is_caseless(ret_name))
        st = refuse(t, from, t->p, "write it without (?i)");
    return st;
}

/* ---- classes ---- */

/* Part of a class up to && or the end of the class. */
struct term {
    struct hd_text items; /* characters as PCRE2 writes them between [ and ] */
    /* alternatives for characters that cannot be written in `items`, as "|[^..]|.." */
    struct hd_text others;
};

static void term_free(struct term *term)
{
    hd_text_free(&term->items);
    hd_text_free(&term->others);
}

static void add_term(const struct term *term, struct hd_text *out)
{
    const char *others = term->others.data ? term->others.data : "";

    if (term->items.len_bytes && term->others.len_bytes)
        hd_text_add(out, "(?:[%s]%s)", term->items.data, others);
    else if (term->items.len_bytes)
        hd_text_add(out, "[%s]", term->items.data);
    else
        hd_text_add(out, "(?:%s)", others + 1);
}

static enum hd_status add_class_set(struct translation *t, const char *from, const char *name,
                                    bool negated, struct term *term)
{
    if (!negated) {
        if (!hd_unicode_add_set(name, strlen(name), t->newer, &term->items))
            return refuse(t, from, t->p, "write the characters, or another property");
        return HD_OK;
    }
    if (t->ignores_case)
        return refuse(t, from, t->p, "write it without (?i)");
    hd_text_add(&term->others, "|");
    return add_set(t, from, name, true, &term->others);
}

/* Parses a POSIX class inside a class; t->p is at its "[:". */
static enum hd_status parse_posix(struct translation *t, struct term *term)
{
    const char *from = t->p, *p = t->p + 2;
    const bool negated = *p == '^';
    char name[NAME_BYTES_MAX];
    const char *end = strstr(p, ":]");
    enum hd_status st;

    p += negated;
    if (!end)
        return refuse(t, from, from + 2, "write \\[ for the character");
    st = read_property_name(t, from, p, end, name);
    t->p = end + 2;
    if (st)
        return st;
    if (t->ignores_case && !is_caseless(name))
        return refuse(t, from, t->p, "write it without (?i)");
    return add_class_set(t, from, strcmp(name, "punct") == 0 ? "[punct]" : name, negated, term);
}

/* Parses one character of a class, perhaps escaped. *ret_is false: it is an escape of another
 * kind. */
static enum hd_status parse_class_character(struct translation *t, bool *ret_is, uint32_t *ret_code)
{
    size_t n = 0;

    *ret_is = true;
    if (*t->p != '\\') {
        *ret_code = hd_character_code((const unsigned char *)t->p, &n);
        t->p += n;
        return HD_OK;
    }
    t->p++;
    if (*t->p == 'b' || (*t->p && strchr("ABGRXZz", *t->p))) {
        *ret_code = *t->p == 'b' ? '\b' : (unsigned char)*t->p;
        t->p++;
        return HD_OK;
    }
    return parse_character_escape(t, ret_is, ret_code);
}

static enum hd_status add_range(struct translation *t, const char *from, uint32_t first,
                                uint32_t last, struct term *term)
{
    if (first > last)
        return invalid(t, from, "a range is empty");
    if (t->ignores_case && last >= 0x80 && (first != last || hd_unicode_may_fold(first)))
        return refuse(t, from, t->p, "write it without (?i)");
    hd_text_add(&term->items, first == last ? "\\x{%X}" : "\\x{%X}-\\x{%X}", (unsigned)first,
                (unsigned)last);
    return HD_OK;
}

/* Parses one item of a class: a character, range or escape. */
static enum hd_status parse_class_item(struct translation *t, struct term *term)
{
    const char *from = t->p;
    char name[NAME_BYTES_MAX];
    bool is = false, negated = false;
    uint32_t first = 0, last = 0;
    enum hd_status st = parse_class_character(t, &is, &first);

    if (st)
        return st;
    if (!is) {
        st = parse_set_escape(t, true, &is, name, &negated);
        if (!st)
            st = is ? add_class_set(t, from, name, negated, term) : refuse(t, from, t->p + 1, NULL);
        if (!st && *t->p == '-' && t->p[1] != ']')
            st = refuse(t, t->p, t->p + 1, "write \\- for the character");
        return st;
    }
    if (*t->p != '-' || t->p[1] == ']')
        return add_range(t, from, first, first, term);
    t->p++;
    if (!*t->p || *t->p == '[' || (*t->p == '&' && t->p[1] == '&'))
        return refuse(t, from, t->p, "write \\- for the character");
    st = parse_class_character(t, &is, &last);
    if (st)
        return st;
    if (!is)
        return refuse(t, from, t->p, "write \\- for the character");
    if (*t->p == '-' && t->p[1] != ']')
        return refuse(t, t->p, t->p + 1, "write \\- for the character");
    return add_range(t, from, first, last, term);
}

/* Parses the items of a class up to && or ]. */
static enum hd_status parse_term(struct translation *t, bool is_first, struct term *term)
{
    const char *from = t->p;
    enum hd_status st = HD_OK;

    for (; !st && *t->p; is_first = false) {
        if (*t->p == ']' && !(is_first && strchr(t->p + 1, ']')))
            break;
        if (*t->p == '&' && t->p[1] == '&')
            break;
        if (*t->p == '[' && t->p[1] == ':') {
            st = parse_posix(t, term);
        } else if (*t->p == '[') {
            if (t->ignores_case)
                return refuse(t, t->p, t->p + 1, "write it without (?i)");
            hd_text_add(&term->others, "|");
            st = parse_class(t, &term->others);
        } else {
            st = parse_class_item(t, term);
        }
    }
    if (!st && !*t->p)
        st = invalid(t, from, "a class has no ]");
    if (!st && !term->items.len_bytes && !term->others.len_bytes)
        st = refuse(t, from, t->p + 1, "a class is empty");
    return st;
}

/* Parses all terms of a class, and joins them as one expression in `all`; sets *ret_count to the
 * number of terms. */
static enum hd_status parse_terms(struct translation *t, struct hd_text *all, int *ret_count,
                                  bool *ret_is_list)
{
    enum hd_status st;

    *ret_count = 0;
    do {
        struct term term = {{0}, {0}};

        if (*ret_count)
            t->p += 2;
        st = parse_term(t, !*ret_count, &term);
        if (!st && *t->p == '&')
            hd_text_add(all, "(?=");
        if (!st)
            add_term(&term, all);
        if (!st && *t->p == '&')
            hd_text_add(all, ")");
        *ret_is_list = !term.others.len_bytes;
        term_free(&term);
        ++*ret_count;
    } while (!st && *t->p == '&');
    if (!st && *ret_count > 1 && t->ignores_case)
        st = refuse(t, t->p, t->p + 1, "write && without (?i)");
    return st;
}

/* Parses a class, t->p at its [, and appends an expression that matches one character. */
static enum hd_status parse_class(struct translation *t, struct hd_text *out)
{
    const bool negated = t->p[1] == '^';
    struct hd_text all = {0};
    bool is_list = false;
    int count = 0;
    enum hd_status st;

    if (++t->depth > DEPTH_MAX)
        return invalid(t, t->p, "it is nested too deep");
    t->p += 1 + negated;
    st = parse_terms(t, &all, &count, &is_list);
    if (!st)
        t->p++;
    if (!st && !negated)
        hd_text_add(out, count > 1 ? "(?:%s)" : "%s", all.data);
    else if (!st && is_list && count == 1)
        hd_text_add(out, "[^%s", all.data + 1);
    else if (!st)
        hd_text_add(out, "(?:(?!%s)(?s:.))", all.data);
    hd_text_free(&all);
    t->depth--;
    return st;
}

/* ---- groups ---- */

/* Parses (?i) or (?i:..), t->p at the first letter; only i and m may be switched. */
static enum hd_status parse_options(struct translation *t, const char *from)
{
    const bool ignored = t->ignores_case, matched = t->dot_matches_all;
    bool on = true, to_end;
    enum hd_status st;

    for (; *t->p && *t->p != ')' && *t->p != ':'; t->p++) {
        if (*t->p == '-')
            on = false;
        else if (*t->p == 'i')
            t->ignores_case = on;
        else if (*t->p == 'm')
            t->dot_matches_all = on;
        else
            return refuse(t, from, t->p + 1, NULL);
    }
    if (!*t->p)
        return invalid(t, from, "a group has no )");
    to_end = *t->p++ == ')'; /* the options hold to the end of the group around them */
    hd_text_add(t->out, t->ignores_case ? "(?i:" : "(?-i:");
    t->last = 0;
    st = parse_branches(t);
    if (!st && !to_end && *t->p != ')')
        st = invalid(t, from, "a group has no )");
    if (!st && !to_end)
        t->p++;
    hd_text_add(t->out, ")");
    t->ignores_case = ignored;
    t->dot_matches_all = matched;
    return st;
}

/* Skips the name of a group (?<name>..); t->p is at the beginning of the name. */
static enum hd_status skip_name(struct translation *t, const char *from, char end)
{
    const char *name = t->p;

    while (*t->p && *t->p != end && *t->p != ')')
        t->p = behind(t->p);
    if (*t->p != end || t->p == name)
        return invalid(t, from, "the name of a group has no end");
    t->p++;
    return HD_OK;
}

/* Parses the beginning of a group and writes it for PCRE2; t->p is after its "(". */
static enum hd_status open_group(struct translation *t, const char *from, enum atom *ret_atom)
{
    static const char hint[] = "write (?:..) or alternatives";
    const char *p = t->p;

    *ret_atom = ATOM_REPEATABLE;
    if (*p == '*')
        return refuse(t, from, p + 1, hint);
    if (*p != '?') {
        hd_text_add(t->out, "(?:");
        return HD_OK;
    }
    p++;
    if (*p == ':' || *p == '>' || *p == '=' || *p == '!') {
        hd_text_add(t->out, "(?%c", *p);
        *ret_atom = *p == '=' || *p == '!' ? ATOM_ANCHOR : ATOM_REPEATABLE;
        t->p = p + 1;
        return HD_OK;
    }
    if (*p == '<' && (p[1] == '=' || p[1] == '!')) {
        hd_text_add(t->out, "(?<%c", p[1]);
        *ret_atom = ATOM_ANCHOR;
        t->p = p + 2;
        return HD_OK;
    }
    if (*p == '<' || *p == '\'') {
        hd_text_add(t->out, "(?:");
        t->p = p + 1;
        return skip_name(t, from, *p == '<' ? '>' : '\'');
    }
    return *p ? refuse(t, from, behind(p), hint) : invalid(t, from, "a group has no )");
}

static enum hd_status parse_group(struct translation *t, enum atom *ret_atom)
{
    const char *from = t->p++;
    enum hd_status st;

    if (t->p[0] == '?' && t->p[1] == '#') {
        t->p += 2 + strcspn(t->p + 2, ")");
        *ret_atom = ATOM_NONE;
        return *t->p++ ? HD_OK : invalid(t, from, "a comment has no )");
    }
    if (t->p[0] == '?' && t->p[1] && strchr("im-", t->p[1])) {
        const char *end = t->p + strcspn(t->p, ":)");

        *ret_atom = *end == ')' ? ATOM_NONE : ATOM_REPEATABLE;
        t->p++;
        return parse_options(t, from);
    }
    st = open_group(t, from, ret_atom);
    t->last = 0;
    if (!st)
        st = parse_branches(t);
    if (!st && *t->p != ')')
        st = invalid(t, from, "a group has no )");
    if (st)
        return st;
    hd_text_add(t->out, ")");
    t->last = 0;
    t->p++;
    return HD_OK;
}

/* ---- atoms ---- */

static enum hd_status add_boundary(struct translation *t, bool is)
{
    struct hd_text word = {0};
    const char *w;

    hd_text_add(&word, "[");
    (void)hd_unicode_add_set("\\w", 2, t->newer, &word);
    hd_text_add(&word, "]");
    w = word.data ? word.data : "";
    if (word.failed)
        t->out->failed = true;
    else if (is)
        hd_text_add(t->out, "(?-i:(?<=%s)(?!%s)|(?<!%s)(?=%s))", w, w, w, w);
    else
        hd_text_add(t->out, "(?-i:(?<=%s)(?=%s)|(?<!%s)(?!%s))", w, w, w, w);
    hd_text_free(&word);
    return HD_OK;
}

/* Parses an escape that is neither a character nor a set; t->p is at its letter. */
static enum hd_status parse_other_escape(struct translation *t, enum atom *ret_atom)
{
    const char *from = t->p - 1;
    const char c = *t->p++;

    *ret_atom = ATOM_ANCHOR;
    if (c == 'b' || c == 'B')
        return add_boundary(t, c == 'b');
    if (c == 'A' || c == 'Z' || c == 'z') {
        hd_text_add(t->out, "\\%c", c);
        return HD_OK;
    }
    *ret_atom = ATOM_REPEATABLE;
    if (c == 'R')
        hd_text_add(t->out, "(?>\\r\\n|[\\n-\\r\\x{85}\\x{2028}\\x{2029}])");
    else if (c == 'N')
        hd_text_add(t->out, "[^\\n]");
    else if (c == 'O')
        hd_text_add(t->out, "(?s:.)");
    else
        return refuse(t, from, t->p, c == 'X' ? "write the characters" : NULL);
    return HD_OK;
}

static enum hd_status parse_escape(struct translation *t, enum atom *ret_atom)
{
    const char *from = t->p++;
    char name[NAME_BYTES_MAX];
    uint32_t code = 0;
    bool is = false, negated = false;
    enum hd_status st = parse_character_escape(t, &is, &code);

    *ret_atom = ATOM_REPEATABLE;
    if (st)
        return st;
    if (is)
        return literal(t, from, code);
    t->last = 0;
    st = parse_set_escape(t, false, &is, name, &negated);
    if (st)
        return st;
    return is ? add_set(t, from, name, negated, t->out) : parse_other_escape(t, ret_atom);
}

/* Reads a repeat count {n}, {n,}, {,n} or {n,m} at p; *ret_max -1: no upper bound. Returns a
 * pointer behind it; NULL: there is none at p. */
static const char *read_interval(const char *p, int64_t *ret_min, int64_t *ret_max)
{
    const char *min = ++p, *max;

    *ret_min = *ret_max = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        *ret_min = *ret_min > REPEAT_MAX ? *ret_min : *ret_min * 10 + (*p - '0');
    if (*p == '}') {
        *ret_max = *ret_min;
        return p > min ? p + 1 : NULL;
    }
    if (*p != ',')
        return NULL;
    max = p + 1;
    for (p = max; *p >= '0' && *p <= '9'; p++)
        *ret_max = *ret_max > REPEAT_MAX ? *ret_max : *ret_max * 10 + (*p - '0');
    if (*p != '}' || (p == max && max - 1 == min))
        return NULL;
    if (p == max)
        *ret_max = -1;
    return p + 1;
}

static bool is_repeat(const char *p)
{
    int64_t min, max;

    return *p == '?' || *p == '*' || *p == '+' || (*p == '{' && read_interval(p, &min, &max));
}

static enum hd_status parse_atom(struct translation *t, enum atom *ret_atom)
{
    const char *from = t->p;
    enum hd_status st;
    size_t n = 0;

    *ret_atom = ATOM_REPEATABLE;
    if (is_repeat(t->p))
        return invalid(t, t->p, "there is nothing to repeat");
    switch (*t->p) {
    case '\\':
        return parse_escape(t, ret_atom);
    case '(':
        if (++t->depth > DEPTH_MAX)
            return invalid(t, t->p, "it is nested too deep");
        st = parse_group(t, ret_atom);
        t->depth--;
        return st;
    case '[':
        t->last = 0;
        return parse_class(t, t->out);
    case '.':
        hd_text_add(t->out, t->dot_matches_all ? "(?s:.)" : "[^\\n]");
        break;
    case '^':
    case '$':
        hd_text_add(t->out, "%c", *t->p);
        *ret_atom = ATOM_ANCHOR;
        break;
    default: {
        const uint32_t code = hd_character_code((const unsigned char *)t->p, &n);

        t->p += n;
        return literal(t, from, code);
    }
    }
    t->last = 0;
    t->p++;
    return HD_OK;
}

/* ---- repeats ---- */

/* Puts (?:..) around the output from `start` on. */
static enum hd_status wrap(struct translation *t, size_t start)
{
    const size_t n = t->out->len_bytes - start;
    char *copy = malloc(n + 1);

    if (!copy)
        return hd_err(HD_NO_MEMORY, "no memory for a pattern");
    memcpy(copy, t->out->data + start, n);
    t->out->len_bytes = start;
    hd_text_add(t->out, "(?:");
    hd_text_add_bytes(t->out, copy, n);
    hd_text_add(t->out, ")");
    free(copy);
    return HD_OK;
}

/* Parses one repeat: ?, *, + or {..}, and a ? or + that belongs to it. */
static enum hd_status parse_repeat(struct translation *t)
{
    const char *from = t->p;
    int64_t min = 0, max = 0;

    if (*t->p != '{') {
        hd_text_add(t->out, "%c", *t->p++);
        if (*t->p == '?' || *t->p == '+')
            hd_text_add(t->out, "%c", *t->p++);
        return HD_OK;
    }
    t->p = read_interval(t->p, &min, &max);
    if (max >= 0 && min > max)
        return refuse(t, from, t->p,
                      "write the smaller number first; (?>..) for one that gives "
                      "nothing back");
    if (min > REPEAT_MAX || max > REPEAT_MAX)
        return hd_err(HD_LIMIT, "the pattern repeats more than %d times at byte %zu", REPEAT_MAX,
                      (size_t)(from - t->pattern));
    if (max < 0)
        hd_text_add(t->out, "{%d,}", (int)min);
    else
        hd_text_add(t->out, "{%d,%d}", (int)min, (int)max);
    if (*t->p == '?' && memchr(from, ',', (size_t)(t->p - from)))
        hd_text_add(t->out, "%c", *t->p++); /* lazy; after {n}, ? would be a repeat of its own */
    return HD_OK;
}

static enum hd_status parse_piece(struct translation *t)
{
    const size_t start = t->out->len_bytes;
    const char *from = t->p;
    enum atom atom = ATOM_NONE;
    enum hd_status st = parse_atom(t, &atom);

    if (!st && atom != ATOM_REPEATABLE && is_repeat(t->p))
        st = invalid(t, from, "it cannot be repeated");
    for (int repeats = 0; !st && !t->out->failed && is_repeat(t->p); repeats++) {
        t->last = 0;
        if (repeats)
            st = wrap(t, start);
        if (!st)
            st = parse_repeat(t);
    }
    return st;
}

static enum hd_status parse_branches(struct translation *t)
{
    enum hd_status st = HD_OK;

    while (!st && *t->p && *t->p != ')') {
        if (*t->p != '|') {
            st = parse_piece(t);
            continue;
        }
        hd_text_add(t->out, "|");
        t->last = 0;
        t->p++;
    }
    return st;
}

enum hd_status hd_pattern_translate(const char *pattern, bool newer, struct hd_text *ret_text)
{
    struct translation t = {.pattern = pattern, .p = pattern, .out = ret_text, .newer = newer};
    enum hd_status st;

    hd_text_add(ret_text, "%s", "");
    st = parse_branches(&t);
    if (!st && *t.p)
        st = invalid(&t, t.p, "a ) has no (");
    if (!st && ret_text->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a pattern");
    return st;
}
