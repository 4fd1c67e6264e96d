/* split: finds matches of patterns with PCRE2, after pattern.c has translated them.
 *
 * A pattern with sets of characters is compiled twice: once with the Unicode version of PCRE2, and
 * once with the newer characters that only the reference knows. The second form is slow, so it is
 * used only for texts that have such a character. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

#ifdef HEDDLE_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { JIT_STACK_BYTES_MAX = 16 << 20, PATTERN_BYTES_MAX = 1 << 16, HEAP_KIB_MAX = 64 << 10 };

struct compiled {
    pcre2_code *code;
    bool has_jit;
};

struct hd_regex {
    /* the compiled pattern without and with newer characters; newer.code NULL: `plain` is right for
     * all texts */
    struct compiled plain, newer;
};

struct hd_regex_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    bool newer;
};

bool hd_regex_is_present(void)
{
    return true;
}

/* ---- patterns ---- */

static enum hd_status compile(const char *text, struct compiled *ret_compiled)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    PCRE2_SIZE where = 0;
    int code = 0;

    if (!context)
        return hd_err(HD_NO_MEMORY, "no memory for a pattern");
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    ret_compiled->code = pcre2_compile(
        (PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE, &code, &where, context);
    pcre2_compile_context_free(context);
    if (!ret_compiled->code) {
        PCRE2_UCHAR message[160];

        (void)pcre2_get_error_message(code, message, sizeof message);
        return hd_err(HD_UNSUPPORTED,
                      "the pattern cannot be used with PCRE2: %s, at byte %zu of %.300s",
                      (const char *)message, (size_t)where, text);
    }
    ret_compiled->has_jit = pcre2_jit_compile(ret_compiled->code, PCRE2_JIT_COMPLETE) == 0;
    return HD_OK;
}

/* Compiles a pattern in both forms. `write` appends it in PCRE2's syntax, without or with newer
 * characters. */
static enum hd_status build(enum hd_status (*write)(const char *, bool, struct hd_text *),
                            const char *pattern, struct hd_regex **ret_regex)
{
    struct hd_regex *r = calloc(1, sizeof *r);
    struct hd_text plain = {0}, newer = {0};
    enum hd_status st = HD_OK;

    if (!r)
        return hd_err(HD_NO_MEMORY, "no memory for a pattern");
    if (strlen(pattern) > PATTERN_BYTES_MAX)
        st = hd_err(HD_LIMIT, "a pattern is longer than %d bytes", PATTERN_BYTES_MAX);
    if (!st)
        st = write(pattern, false, &plain);
    if (!st)
        st = write(pattern, true, &newer);
    if (!st)
        st = compile(plain.data, &r->plain);
    if (!st && strcmp(plain.data, newer.data) != 0)
        st = compile(newer.data, &r->newer);
    hd_text_free(&plain);
    hd_text_free(&newer);
    if (st)
        hd_regex_free(r);
    else
        *ret_regex = r;
    return st;
}

enum hd_status hd_regex_new(const char *pattern, struct hd_regex **ret_regex)
{
    return build(hd_pattern_translate, pattern, ret_regex);
}

static enum hd_status write_sets(const char *pattern, bool newer, struct hd_text *ret_text)
{
    while (*pattern) {
        const size_t n = strcspn(pattern, "<");
        const char *name = pattern + n + 1;

        hd_text_add_bytes(ret_text, pattern, n);
        pattern += n;
        if (!*pattern)
            break;
        pattern = strchr(name, '>');
        (void)hd_unicode_add_set(name, (size_t)(pattern - name), newer, ret_text);
        pattern++;
    }
    return ret_text->failed ? hd_err(HD_NO_MEMORY, "no memory for a pattern") : HD_OK;
}

enum hd_status hd_regex_of_sets(const char *pattern, struct hd_regex **ret_regex)
{
    return build(write_sets, pattern, ret_regex);
}

void hd_regex_free(struct hd_regex *regex)
{
    if (regex) {
        pcre2_code_free(regex->plain.code);
        pcre2_code_free(regex->newer.code);
    }
    free(regex);
}

bool hd_regex_may_be_empty(const struct hd_regex *regex)
{
    uint32_t may = 1;

    (void)pcre2_pattern_info(regex->plain.code, PCRE2_INFO_MATCHEMPTY, &may);
    return may;
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
    /* NULL: PCRE2 has no JIT */
    s->stack = pcre2_jit_stack_create(64 << 10, JIT_STACK_BYTES_MAX, NULL);
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

void hd_regex_scratch_newer(struct hd_regex_scratch *scratch, bool newer)
{
    scratch->newer = newer;
}

static const struct compiled *compiled_for(const struct hd_regex *regex, bool newer)
{
    return newer && regex->newer.code ? &regex->newer : &regex->plain;
}

/* Finds the first match that begins at or after offset `from`. */
static enum hd_status find_match(const struct hd_match_walk *w, size_t from, bool *ret_found,
                                 size_t *ret_from, size_t *ret_to)
{
    const struct compiled *c = compiled_for(w->matcher->regex, w->scratch->newer);
    const int rc = c->has_jit
                       ? pcre2_jit_match(c->code, w->text, w->len_bytes, from, PCRE2_NO_UTF_CHECK,
                                         w->scratch->data, w->scratch->context)
                       : pcre2_match(c->code, w->text, w->len_bytes, from, PCRE2_NO_UTF_CHECK,
                                     w->scratch->data, w->scratch->context);
    const PCRE2_SIZE *found;

    *ret_found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH)
        return HD_OK;
    if (rc < 0) {
        PCRE2_UCHAR message[160];

        (void)pcre2_get_error_message(rc, message, sizeof message);
        return hd_err(HD_LIMIT, "a pattern of the tokenizer fails at byte %zu of a piece: %s", from,
                      (const char *)message);
    }
    found = pcre2_get_ovector_pointer(w->scratch->data);
    *ret_from = found[0];
    *ret_to = found[1];
    return HD_OK;
}

static bool find_literal(struct hd_match_walk *w, size_t *ret_from, size_t *ret_to)
{
    const unsigned char *at = memmem(w->text + w->search, w->len_bytes - w->search,
                                     w->matcher->literal, w->matcher->literal_bytes);

    if (!at)
        return false;
    *ret_from = (size_t)(at - w->text);
    *ret_to = w->search = *ret_from + w->matcher->literal_bytes;
    return true;
}

enum hd_status hd_match_next(struct hd_match_walk *walk, bool *ret_found, size_t *ret_from,
                             size_t *ret_to)
{
    enum hd_status st = HD_OK;

    if (!walk->matcher->regex) {
        *ret_found = find_literal(walk, ret_from, ret_to);
        return HD_OK;
    }
    for (;;) {
        *ret_found = false;
        if (walk->search > walk->len_bytes)
            return HD_OK;
        st = find_match(walk, walk->search, ret_found, ret_from, ret_to);
        if (st || !*ret_found)
            return st;
        if (*ret_from < *ret_to || !walk->has_last || *ret_to != walk->last_end)
            break;
        walk->search +=
            walk->search < walk->len_bytes ? hd_character_bytes(walk->text[walk->search]) : 1;
    }
    walk->search = walk->last_end = *ret_to;
    walk->has_last = true;
    return HD_OK;
}

bool hd_regex_is(const struct hd_regex *regex, const unsigned char *text, size_t len_bytes)
{
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    const bool is = data && pcre2_match(compiled_for(regex, true)->code, text, len_bytes, 0,
                                        PCRE2_NO_UTF_CHECK, data, NULL) >= 0;

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

enum hd_status hd_regex_of_sets(const char *pattern, struct hd_regex **ret_regex)
{
    (void)pattern;
    (void)ret_regex;
    return absent();
}

void hd_regex_free(struct hd_regex *regex)
{
    (void)regex;
}

bool hd_regex_may_be_empty(const struct hd_regex *regex)
{
    (void)regex;
    return false;
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

void hd_regex_scratch_newer(struct hd_regex_scratch *scratch, bool newer)
{
    (void)scratch;
    (void)newer;
}

enum hd_status hd_match_next(struct hd_match_walk *walk, bool *ret_found, size_t *ret_from,
                             size_t *ret_to)
{
    (void)walk;
    (void)ret_found;
    (void)ret_from;
    (void)ret_to;
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
