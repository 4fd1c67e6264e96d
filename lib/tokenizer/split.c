/* split: patterns of pre-tokenizers, with PCRE2.
 *
 * The patterns are written for Oniguruma (Ruby syntax), so they are translated first. Syntax with
 * the same meaning is kept. \s becomes Unicode's White_Space (PCRE2 also has U+180E). \p{Han}
 * becomes a script property (in PCRE2 it means script extensions). Other syntax is an error that
 * names it. tests/interop compares the results. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

#ifdef HEDDLE_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { JIT_STACK_BYTES_MAX = 16 << 20, PATTERN_BYTES_MAX = 1 << 16, HEAP_KIB_MAX = 64 << 10 };

struct hd_regex {
    pcre2_code *code;
    bool has_jit;
};

struct hd_regex_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

bool hd_regex_is_present(void)
{
    return true;
}

/* ---- translation ---- */

#define SPACES "\\t-\\r \\x{85}\\p{Z}"

struct translation {
    const char *p;
    struct hd_text out;
    bool in_class;
};

static enum hd_status not_built(const char *p, size_t len_bytes)
{
    return hd_err(HD_UNSUPPORTED, "the pattern has %.*s, which is not supported", (int)len_bytes,
                  p);
}

/* At the p of \p{..} or \P{..}: a general category of one or two letters, or a script. */
static enum hd_status translate_property(struct translation *t)
{
    const char *from = t->p - 1;
    const char kind = *t->p++;
    size_t n;

    if (*t->p++ != '{')
        return hd_err(HD_UNSUPPORTED, "the pattern has \\%c without {}", kind);
    n = strspn(t->p, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_");
    if (!n || t->p[n] != '}')
        return not_built(from, strcspn(from, "}") + 1);
    hd_text_add(&t->out, n <= 2 ? "\\%c{%.*s}" : "\\%c{sc:%.*s}", kind, (int)n, t->p);
    t->p += n + 1;
    return HD_OK;
}

/* After a backslash. */
static enum hd_status translate_escape(struct translation *t)
{
    const char c = *t->p;

    if (c == 'p' || c == 'P')
        return translate_property(t);
    t->p++;
    if (c == 's') {
        hd_text_add(&t->out, t->in_class ? SPACES : "[" SPACES "]");
        return HD_OK;
    }
    if (c == 'S' && !t->in_class) {
        hd_text_add(&t->out, "[^" SPACES "]");
        return HD_OK;
    }
    if (c == 'x' && *t->p == '{') {
        const size_t n = strcspn(t->p, "}");

        hd_text_add(&t->out, "\\x%.*s", (int)n + 1, t->p);
        t->p += n + (t->p[n] == '}');
        return HD_OK;
    }
    if (c == 'u' && strspn(t->p, "0123456789abcdefABCDEF") >= 4) {
        hd_text_add(&t->out, "\\x{%.4s}", t->p);
        t->p += 4;
        return HD_OK;
    }
    if (c && (strchr("rntfdD", c) || (strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ", c)))) {
        hd_text_add(&t->out, "\\%c", c);
        return HD_OK;
    }
    return hd_err(HD_UNSUPPORTED, "the pattern has \\%c, which is not supported", c);
}

static enum hd_status translate(const char *pattern, struct translation *t)
{
    enum hd_status st = HD_OK;

    t->p = pattern;
    while (!st && *t->p) {
        const char c = *t->p;

        if (c == '\\') {
            t->p++;
            hd_text_add(&t->out, "%s", "");
            st = translate_escape(t);
            continue;
        }
        if (t->in_class && (c == '[' || (c == '&' && t->p[1] == '&')))
            return not_built(t->p, c == '[' ? 1 : 2);
        if (!t->in_class && c == '(' && t->p[1] == '?' && !strchr(":=!<>i", t->p[2]))
            return not_built(t->p, 3);
        if (!t->in_class && c == '(' && t->p[1] == '*')
            return not_built(t->p, 2);
        if (c == '[') {
            t->in_class = true;
            hd_text_add(&t->out, t->p[1] == '^' ? "[^" : "[");
            t->p += t->p[1] == '^' ? 2 : 1;
            if (*t->p == ']')
                return not_built(t->p, 1);
            continue;
        }
        if (t->in_class && c == ']')
            t->in_class = false;
        hd_text_add_bytes(&t->out, t->p++, 1);
    }
    if (!st && t->out.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a pattern");
    return st;
}

/* ---- patterns ---- */

static enum hd_status compile(const char *text, struct hd_regex **ret_regex)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    struct hd_regex *r = calloc(1, sizeof *r);
    PCRE2_SIZE where = 0;
    uint32_t can_be_empty = 0;
    int code = 0;

    if (!context || !r) {
        pcre2_compile_context_free(context);
        free(r);
        return hd_err(HD_NO_MEMORY, "no memory for a pattern");
    }
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    r->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE, &code,
                            &where, context);
    pcre2_compile_context_free(context);
    if (!r->code) {
        PCRE2_UCHAR message[160];

        (void)pcre2_get_error_message(code, message, sizeof message);
        free(r);
        return hd_err(HD_INVALID, "the pattern is not valid: %s, at byte %zu of %.300s",
                      (const char *)message, (size_t)where, text);
    }
    (void)pcre2_pattern_info(r->code, PCRE2_INFO_MATCHEMPTY, &can_be_empty);
    if (can_be_empty) {
        hd_regex_free(r);
        return hd_err(HD_UNSUPPORTED, "the pattern can match the empty string: %.300s", text);
    }
    r->has_jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) == 0;
    *ret_regex = r;
    return HD_OK;
}

enum hd_status hd_regex_new(const char *pattern, struct hd_regex **ret_regex)
{
    struct translation t = {0};
    enum hd_status st;

    if (strlen(pattern) > PATTERN_BYTES_MAX)
        return hd_err(HD_LIMIT, "a pattern is longer than %d bytes", PATTERN_BYTES_MAX);
    st = translate(pattern, &t);
    if (!st)
        st = compile(t.out.data ? t.out.data : "", ret_regex);
    hd_text_free(&t.out);
    return st;
}

enum hd_status hd_regex_quote(const char *literal, struct hd_regex **ret_regex)
{
    struct hd_text text = {0};
    enum hd_status st;

    for (const char *p = literal; *p; p++)
        hd_text_add(&text, strchr("\\^$.[]|()?*+{}-", *p) ? "\\%c" : "%c", *p);
    st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for a pattern")
                     : compile(text.data ? text.data : "", ret_regex);
    hd_text_free(&text);
    return st;
}

void hd_regex_free(struct hd_regex *regex)
{
    if (regex)
        pcre2_code_free(regex->code);
    free(regex);
}

/* ---- matching ---- */

enum hd_status hd_regex_scratch_new(struct hd_regex_scratch **ret_scratch)
{
    struct hd_regex_scratch *s = calloc(1, sizeof *s);

    if (!s)
        return hd_err(HD_NO_MEMORY, "no memory to match patterns");
    s->data = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    if (!s->data || !s->context) {
        hd_regex_scratch_free(s);
        return hd_err(HD_NO_MEMORY, "no memory to match patterns");
    }
    s->stack = pcre2_jit_stack_create(64 << 10, JIT_STACK_BYTES_MAX, NULL); /* NULL: no JIT */
    if (s->stack)
        pcre2_jit_stack_assign(s->context, NULL, s->stack);
    (void)pcre2_set_heap_limit(s->context, HEAP_KIB_MAX);
    *ret_scratch = s;
    return HD_OK;
}

void hd_regex_scratch_free(struct hd_regex_scratch *scratch)
{
    if (!scratch)
        return;
    pcre2_match_data_free(scratch->data);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->stack);
    free(scratch);
}

enum hd_status hd_regex_find(const struct hd_regex *regex, struct hd_regex_scratch *scratch,
                             const unsigned char *text, size_t len_bytes, size_t from,
                             bool *ret_found, size_t *ret_start, size_t *ret_end)
{
    const int rc = regex->has_jit
                       ? pcre2_jit_match(regex->code, text, len_bytes, from, PCRE2_NO_UTF_CHECK,
                                         scratch->data, scratch->context)
                       : pcre2_match(regex->code, text, len_bytes, from, PCRE2_NO_UTF_CHECK,
                                     scratch->data, scratch->context);
    const PCRE2_SIZE *found;

    *ret_found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH)
        return HD_OK;
    if (rc < 0) {
        PCRE2_UCHAR message[160];

        (void)pcre2_get_error_message(rc, message, sizeof message);
        return hd_err(HD_LIMIT, "the pre-tokenizer's pattern fails at byte %zu of a piece: %s",
                      from, (const char *)message);
    }
    found = pcre2_get_ovector_pointer(scratch->data);
    *ret_start = found[0];
    *ret_end = found[1];
    return HD_OK;
}

bool hd_regex_is(const struct hd_regex *regex, const unsigned char *text, size_t len_bytes)
{
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    const bool is =
        data && pcre2_match(regex->code, text, len_bytes, 0, PCRE2_NO_UTF_CHECK, data, NULL) >= 0;

    pcre2_match_data_free(data);
    return is;
}

#else

struct hd_regex {
    int unused;
};

bool hd_regex_is_present(void)
{
    return false;
}

static enum hd_status absent(void)
{
    return hd_err(HD_UNSUPPORTED, "built without PCRE2");
}

enum hd_status hd_regex_new(const char *pattern, struct hd_regex **ret_regex)
{
    (void)pattern;
    (void)ret_regex;
    return absent();
}

enum hd_status hd_regex_quote(const char *literal, struct hd_regex **ret_regex)
{
    (void)literal;
    (void)ret_regex;
    return absent();
}

void hd_regex_free(struct hd_regex *regex)
{
    (void)regex;
}

enum hd_status hd_regex_scratch_new(struct hd_regex_scratch **ret_scratch)
{
    (void)ret_scratch;
    return absent();
}

void hd_regex_scratch_free(struct hd_regex_scratch *scratch)
{
    (void)scratch;
}

enum hd_status hd_regex_find(const struct hd_regex *regex, struct hd_regex_scratch *scratch,
                             const unsigned char *text, size_t len_bytes, size_t from,
                             bool *ret_found, size_t *ret_start, size_t *ret_end)
{
    (void)regex;
    (void)scratch;
    (void)text;
    (void)len_bytes;
    (void)from;
    (void)ret_found;
    (void)ret_start;
    (void)ret_end;
    return absent();
}

bool hd_regex_is(const struct hd_regex *regex, const unsigned char *text, size_t len_bytes)
{
    (void)regex;
    (void)text;
    (void)len_bytes;
    return false;
}

#endif
