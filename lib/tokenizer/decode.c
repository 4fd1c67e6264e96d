/* decode: decodes ids to text by the decoder of tokenizer.json, whose steps transform a list of
 * tokens; the resulting tokens are joined. Without a decoder the tokens are joined with spaces, as
 * in the reference. */
#include <stdlib.h>
#include <string.h>

#include "base/digits.h"
#include "tokenizer/tokenizer_internal.h"

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD, replaces invalid bytes */

struct token_list { /* token i ends at ends[i] of the text; the next one begins at that offset */
    struct hd_text text;
    size_t *ends;
    size_t count, capacity;
};

/* State of one decoder step on a list of tokens. */
struct decoding {
    const struct hd_decode_step *step;
    struct hd_regex_scratch *scratch;
    const struct token_list *in;
    struct token_list *out;
    /* true: the list is from the middle of a text: other tokens are before and after it */
    bool is_next;
    bool is_whole; /* true: an earlier step was Fuse, so the list's only token is the whole text */
};

/* ---- lists ---- */

static void end_token(struct token_list *list)
{
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity ? 2 * list->capacity : 256;
        size_t *ends = realloc(list->ends, capacity * sizeof *ends);

        if (!ends) {
            list->text.failed = true;
            return;
        }
        list->ends = ends;
        list->capacity = capacity;
    }
    list->ends[list->count++] = list->text.len_bytes;
}

static void list_clear(struct token_list *list)
{
    hd_text_clear(&list->text);
    list->count = 0;
}

static void list_free(struct token_list *list)
{
    hd_text_free(&list->text);
    free(list->ends);
}

static const char *token_of(const struct token_list *list, size_t i, size_t *ret_bytes)
{
    const size_t from = i ? list->ends[i - 1] : 0;

    *ret_bytes = list->ends[i] - from;
    return list->text.data ? list->text.data + from : "";
}

/* ---- bytes ---- */

/* Returns how many bytes at p, which begin no valid character, become one U+FFFD: the longest valid
 * beginning of a character, else one byte (Unicode 15, 3.9, "U+FFFD Substitution of Maximal
 * Subparts"). */
static size_t broken_bytes(const unsigned char *p, size_t n)
{
    const size_t need = p[0] < 0xC2 || p[0] > 0xF4 ? 1 : hd_character_bytes(p[0]);
    const unsigned char least = p[0] == 0xE0 ? 0xA0 : p[0] == 0xF0 ? 0x90 : 0x80;
    const unsigned char most = p[0] == 0xED ? 0x9F : p[0] == 0xF4 ? 0x8F : 0xBF;
    size_t have = 1;

    if (need == 1 || n < 2 || p[1] < least || p[1] > most)
        return 1;
    for (have = 2; have < need && have < n && (p[have] & 0xC0) == 0x80;)
        have++;
    return have;
}

static void add_lossy(struct hd_text *out, const char *bytes, size_t n)
{
    const unsigned char *p = (const unsigned char *)bytes;

    for (size_t at = 0, whole; at < n; at += broken_bytes(p + at, n - at)) {
        whole = hd_find_broken(p + at, n - at);
        hd_text_add_bytes(out, p + at, whole);
        at += whole;
        if (at == n)
            break;
        hd_text_add_bytes(out, replacement, 3);
    }
}

/* Returns the byte value of a token such as <0x0A>; -1: another token. Parses the digits as Rust
 * does. */
static int decoded_byte(const char *token, size_t n)
{
    int value = 0;

    if (n != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        const int digit = hd_hex_digit(token[i]);

        if (digit < 0 && !(i == 3 && token[i] == '+'))
            return -1;
        value = digit < 0 ? 0 : value * 16 + digit;
    }
    return value;
}

/* ---- steps ---- */

static enum hd_status replace_in_token(const struct decoding *d, const char *token, size_t n,
                                       const char *content)
{
    struct hd_match_walk walk = {.matcher = &d->step->pattern,
                                 .scratch = d->scratch,
                                 .text = (const unsigned char *)token,
                                 .len_bytes = n};
    size_t at = 0, from = 0, to = 0;
    bool found = false;
    enum hd_status st = n ? hd_match_next(&walk, &found, &from, &to) : HD_OK;

    for (; !st && found; st = hd_match_next(&walk, &found, &from, &to)) {
        hd_text_add_bytes(&d->out->text, token + at, from - at);
        hd_text_add_bytes(&d->out->text, content, strlen(content));
        at = to;
    }
    hd_text_add_bytes(&d->out->text, token + at, n - at);
    return st;
}

static void strip_token(const struct decoding *d, const char *token, size_t n)
{
    const char *content = d->step->content;
    const size_t one = strlen(content);
    size_t from = 0, to = n;

    /* characters are stripped from the ends of a token; a list that Fuse joined is one token, whose
     * ends in a piece from the middle of a text are not the ends of the text */
    if (!(d->is_next && d->is_whole)) {
        for (int64_t i = 0;
             i < d->step->start && n - from >= one && memcmp(token + from, content, one) == 0; i++)
            from += one;
        for (int64_t i = 0;
             i < d->step->stop && to - from >= one && memcmp(token + to - one, content, one) == 0;
             i++)
            to -= one;
    }
    hd_text_add_bytes(&d->out->text, token + from, to - from);
}

/* Writes a token as the decoder step Metaspace of a tokenizer.json does: the character that stands for
 * a space (the step's `content`, often U+2581) is written as a space; in the first
 * token of a text it is left out, unless `prepend` is never. */
static void write_spaces(const struct decoding *d, const char *token, size_t n, bool is_first)
{
    const char *content = d->step->content;
    const size_t one = strlen(content);

    for (const char *end = token + n; token < end;) {
        const char *next = memmem(token, (size_t)(end - token), content, one);

        hd_text_add_bytes(&d->out->text, token, (size_t)((next ? next : end) - token));
        if (next && !(is_first && d->step->prepend != HD_PREPEND_NEVER))
            hd_text_add_bytes(&d->out->text, " ", 1);
        token = next ? next + one : end;
    }
}

/* ByteLevel: appends the bytes that the letters of a token encode; appends a token unchanged if it
 * contains a character that encodes no byte. */
static void add_letters(struct hd_text *out, const char *token, size_t n)
{
    const unsigned char *p = (const unsigned char *)token;
    size_t bytes = 0;

    for (size_t at = 0; at < n; at += bytes)
        if (hd_byte_of_letter(hd_character_code(p + at, &bytes)) < 0) {
            hd_text_add_bytes(out, token, n);
            return;
        }
    for (size_t at = 0; at < n; at += bytes) {
        const char byte = (char)hd_byte_of_letter(hd_character_code(p + at, &bytes));

        hd_text_add_bytes(out, &byte, 1);
    }
}

static void letters_of_all(const struct decoding *d)
{
    struct hd_text bytes = {0};
    size_t n;

    for (size_t i = 0; i < d->in->count; i++) {
        const char *token = token_of(d->in, i, &n);

        add_letters(&bytes, token, n);
    }
    if (bytes.failed)
        d->out->text.failed = true;
    else if (d->is_next)
        hd_text_add_bytes(&d->out->text, bytes.data, bytes.len_bytes);
    else
        add_lossy(&d->out->text, bytes.data, bytes.len_bytes);
    end_token(d->out);
    hd_text_free(&bytes);
}

/* Appends the bytes of adjacent <0x..> tokens: as text if they are UTF-8, else one U+FFFD per
 * byte. */
static void flush_bytes(const struct decoding *d, struct hd_text *bytes)
{
    if (!bytes->len_bytes)
        return;
    if (d->is_next || hd_find_broken(bytes->data, bytes->len_bytes) == bytes->len_bytes) {
        hd_text_add_bytes(&d->out->text, bytes->data, bytes->len_bytes);
        end_token(d->out);
    } else {
        for (size_t i = 0; i < bytes->len_bytes; i++) {
            hd_text_add_bytes(&d->out->text, replacement, 3);
            end_token(d->out);
        }
    }
    hd_text_clear(bytes);
}

static void join_bytes(const struct decoding *d)
{
    struct hd_text bytes = {0};
    size_t n;

    for (size_t i = 0; i < d->in->count; i++) {
        const char *token = token_of(d->in, i, &n);
        const int byte = decoded_byte(token, n);

        if (byte >= 0) {
            hd_text_add_bytes(&bytes, &(char){(char)byte}, 1);
            continue;
        }
        flush_bytes(d, &bytes);
        hd_text_add_bytes(&d->out->text, token, n);
        end_token(d->out);
    }
    flush_bytes(d, &bytes);
    d->out->text.failed |= bytes.failed;
    hd_text_free(&bytes);
}

static enum hd_status each_token(const struct decoding *d)
{
    enum hd_status st = HD_OK;
    size_t n;

    for (size_t i = 0; !st && i < d->in->count; i++) {
        const char *token = token_of(d->in, i, &n);
        const bool is_last = i + 1 == d->in->count && !d->is_next;

        if (d->step->kind == HD_DECODE_REPLACE)
            st = replace_in_token(d, token, n, d->step->content);
        else if (d->step->kind == HD_DECODE_SUFFIX)
            st = replace_in_token(d, token, n, is_last ? "" : " ");
        else if (d->step->kind == HD_DECODE_STRIP)
            strip_token(d, token, n);
        else
            write_spaces(d, token, n, !i && !d->is_next);
        end_token(d->out);
    }
    return st;
}

static enum hd_status apply_decode_step(struct decoding *d)
{
    switch (d->step->kind) {
    case HD_DECODE_LETTERS:
        letters_of_all(d);
        d->is_whole = true;
        return HD_OK;
    case HD_DECODE_BYTE_FALLBACK:
        join_bytes(d);
        return HD_OK;
    case HD_DECODE_FUSE:
        hd_text_add_bytes(&d->out->text, d->in->text.data ? d->in->text.data : "",
                          d->in->text.len_bytes);
        end_token(d->out);
        d->is_whole = true;
        return HD_OK;
    default:
        return each_token(d);
    }
}

/* ---- all steps ---- */

/* Applies all steps of the decoder. lists[0] holds the tokens; each step reads one list and writes
 * the other. */
static enum hd_status apply_all(const struct hd_bpe *bpe, bool is_next, struct token_list lists[2],
                                struct hd_text *ret_text)
{
    struct decoding d = {.is_next = is_next};
    const struct token_list *last;
    enum hd_status st = HD_OK;
    size_t n;
    int at = 0;

    for (int i = 0; !st && i < bpe->decode_count; i++, at = !at) {
        d.step = &bpe->decodes[i];
        d.in = &lists[at];
        d.out = &lists[!at];
        list_clear(d.out);
        if (d.step->pattern.regex && !d.scratch)
            st = hd_regex_scratch_new(&d.scratch);
        if (d.scratch)
            hd_regex_scratch_newer(d.scratch, true);
        if (!st)
            st = apply_decode_step(&d);
        if (!st && d.out->text.failed)
            st = hd_err(HD_NO_MEMORY, "no memory for the decoded text");
    }
    last = &lists[at];
    for (size_t i = 0; !st && i < last->count; i++) {
        const char *token = token_of(last, i, &n);

        if (!bpe->has_decoder && (i || is_next))
            hd_text_add_bytes(ret_text, " ", 1);
        hd_text_add_bytes(ret_text, token, n);
    }
    if (!st && ret_text->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for the decoded text");
    hd_regex_scratch_free(d.scratch);
    return st;
}

static enum hd_status decode(const struct hd_bpe *bpe, const int32_t *ids, size_t count,
                             bool is_next, struct hd_text *ret_text)
{
    struct token_list lists[2] = {{{0}, NULL, 0, 0}, {{0}, NULL, 0, 0}};
    enum hd_status st;

    for (size_t i = 0; i < count; i++) {
        const char *shown = bpe->texts[ids[i]].shown;

        hd_text_add_bytes(&lists[0].text, shown, strlen(shown));
        end_token(&lists[0]);
    }
    st = lists[0].text.failed ? hd_err(HD_NO_MEMORY, "no memory for the decoded text")
                              : apply_all(bpe, is_next, lists, ret_text);
    list_free(&lists[0]);
    list_free(&lists[1]);
    return st;
}

enum hd_status hd_bpe_decode(const struct hd_bpe *bpe, const int32_t *ids, size_t count,
                             struct hd_text *ret_text)
{
    return decode(bpe, ids, count, false, ret_text);
}

enum hd_status hd_bpe_decode_next(const struct hd_bpe *bpe, int32_t id, struct hd_text *ret_bytes)
{
    return decode(bpe, &id, 1, true, ret_bytes);
}
