#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digits.h"
#include "chat/template_internal.h"

struct lexer {
    struct hd_arena *arena;
    const char *p, *end;
    const char *counted; /* position in the source whose line and column are `at` */
    struct chat_place at;
    bool line_starts; /* whether the text before the current position ends with a line break */
    struct chat_token *tokens;
    int count, capacity;
};

enum hd_status chat_fail(struct chat_place at, enum hd_status st, const char *fmt, ...)
{
    char text[HD_ERR_MAX];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return hd_err(st, "%d:%d: %s", at.line, at.column, text);
}

static struct chat_place place_of(struct lexer *x, const char *p)
{
    for (; x->counted < p; x->counted++) {
        if (*x->counted == '\n') {
            x->at.line++;
            x->at.column = 1;
        } else if (((unsigned char)*x->counted & 0xC0) != 0x80) {
            x->at.column++;
        }
    }
    return x->at;
}

static enum hd_status wrong(struct lexer *x, const char *p, const char *what)
{
    return chat_fail(place_of(x, p), HD_INVALID, "%s", what);
}

static enum hd_status add_token(struct lexer *x, enum chat_token_kind kind, const char *from,
                                const char *text, size_t bytes, struct chat_token **ret_token)
{
    struct chat_token *tokens =
        hd_arena_grow(x->arena, x->tokens, x->count, &x->capacity, sizeof *tokens);
    char *copy = hd_arena_alloc(x->arena, bytes + 1);
    struct chat_token *token;

    if (!tokens || !copy)
        return hd_err(HD_NO_MEMORY, "no memory for the chat template");
    x->tokens = tokens;
    memcpy(copy, text, bytes);
    token = &tokens[x->count++];
    *token =
        (struct chat_token){.kind = kind, .at = place_of(x, from), .text = copy, .bytes = bytes};
    if (ret_token)
        *ret_token = token;
    return HD_OK;
}

/* ---- text between tags ---- */

static bool only_spaces(const char *from, const char *to)
{
    return from < to && chat_skip_spaces(from, (size_t)(to - from)) == (size_t)(to - from);
}

/* Adds the text [x->p, tag) before a tag; sign: '-' or '+' of the tag, or 0. */
static enum hd_status add_text(struct lexer *x, const char *tag, char sign, bool is_block)
{
    const char *to = tag, *line = tag;

    if (sign == '-') {
        to = x->p + chat_trim_end(x->p, (size_t)(tag - x->p));
        /* the setting lstrip_blocks: removes blanks between the line's beginning and the tag */
    } else if (sign != '+' && is_block) {
        while (line > x->p && line[-1] != '\n')
            line--;
        if ((line > x->p || x->line_starts) && only_spaces(line, tag))
            to = line;
    }
    if (to == x->p)
        return HD_OK;
    return add_token(x, CHAT_TOKEN_TEXT, x->p, x->p, (size_t)(to - x->p), NULL);
}

static const char *find_tag(const char *p, const char *end)
{
    for (; p + 1 < end; p++)
        if (p[0] == '{' && (p[1] == '%' || p[1] == '{' || p[1] == '#'))
            return p;
    return NULL;
}

/* Skips the white space after a tag that the tag's sign '-' or the setting trim_blocks removes. */
static void end_tag(struct lexer *x, char sign, bool is_block)
{
    if (sign == '-')
        x->p += chat_skip_spaces(x->p, (size_t)(x->end - x->p));
    else if (is_block && sign != '+' && x->p < x->end && *x->p == '\n')
        x->p++;
    x->line_starts = x->p[-1] == '\n';
}

/* Returns the number of bytes of a tag's end ("%}", "}}" or "#}", perhaps with a sign) at p; 0: no
 * end is there. */
static size_t at_end(const char *p, const char *end, char first, char *ret_sign)
{
    const size_t n = (size_t)(end - p);

    *ret_sign = '\0';
    if (n >= 2 && p[0] == first && p[1] == '}')
        return 2;
    if (n >= 3 && (p[0] == '-' || (p[0] == '+' && first != '}')) && p[1] == first && p[2] == '}') {
        *ret_sign = p[0];
        return 3;
    }
    return 0;
}

static enum hd_status skip_comment(struct lexer *x, const char *tag)
{
    for (; x->p < x->end; x->p++) {
        char sign;
        const size_t n = at_end(x->p, x->end, '#', &sign);

        if (n) {
            x->p += n;
            end_tag(x, sign, true);
            return HD_OK;
        }
    }
    return wrong(x, tag, "the comment that begins here has no end");
}

/* Returns the position after `word` (raw, endraw) and the end of its tag, if both are at p; NULL:
 * they are not. */
static const char *raw_tag(const char *p, const char *end, const char *word, char *ret_sign)
{
    const size_t n = strlen(word);
    size_t close;

    p += chat_skip_spaces(p, (size_t)(end - p));
    if ((size_t)(end - p) < n || memcmp(p, word, n) != 0)
        return NULL;
    p += n;
    p += chat_skip_spaces(p, (size_t)(end - p));
    close = at_end(p, end, '%', ret_sign);
    return close ? p + close : NULL;
}

static enum hd_status lex_raw(struct lexer *x, const char *tag)
{
    for (const char *p = x->p; p + 2 < x->end; p++) {
        const char opens = p[2] == '-' || p[2] == '+' ? p[2] : '\0';
        const char *behind;
        char sign;
        enum hd_status st;

        if (p[0] != '{' || p[1] != '%')
            continue;
        behind = raw_tag(p + 2 + (opens != '\0'), x->end, "endraw", &sign);
        if (!behind)
            continue;
        st = add_text(x, p, opens, true);
        x->p = behind;
        end_tag(x, sign, true);
        return st;
    }
    return wrong(x, tag, "{% raw %} has no {% endraw %}");
}

/* ---- inside a tag ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name(char c)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c);
}

static size_t digits(const char *p, const char *end)
{
    size_t n = 0;

    while (p + n < end && is_digit(p[n]))
        n++;
    return n;
}

static enum hd_status lex_number(struct lexer *x)
{
    const char *from = x->p, *p = from + digits(from, x->end);
    bool real = false;
    struct chat_token *token;
    enum hd_status st;
    size_t n;

    if (p + 1 < x->end && *p == '.' && is_digit(p[1])) {
        real = true;
        p += 1 + digits(p + 1, x->end);
    }
    if (p < x->end && (*p == 'e' || *p == 'E')) {
        n = (size_t)(p + 1 < x->end && (p[1] == '-' || p[1] == '+'));
        if (digits(p + 1 + n, x->end) > 0) {
            real = true;
            p += 1 + n + digits(p + 1 + n, x->end);
        }
    }
    if (p < x->end && is_name(*p))
        return chat_fail(place_of(x, from), HD_UNSUPPORTED,
                         "a number of this form is not supported; write decimal digits");
    st = add_token(x, real ? CHAT_TOKEN_REAL : CHAT_TOKEN_INT, from, from, (size_t)(p - from),
                   &token);
    if (st)
        return st;
    errno = 0;
    if (real)
        token->real = strtod(token->text, NULL);
    else
        token->integer = strtoll(token->text, NULL, 10);
    if (errno && !real)
        return wrong(x, from, "a number beyond 64 bits");
    x->p = p;
    return HD_OK;
}

static int hex_value(const char *p, int count, const char *end)
{
    int code = 0;

    for (int i = 0; i < count; i++) {
        const int digit = p + i < end ? hd_hex_digit(p[i]) : -1;

        if (digit < 0 || code > 0xFFFFFF)
            return -1;
        code = code << 4 | digit;
    }
    return code;
}

/* Decodes the escape sequence of a string at *p, which is after its backslash. An escape that
 * Python does not know stays unchanged. */
static enum hd_status unescape(struct lexer *x, const char **p, char **out)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char c = **p, *found = c ? strchr(from, c) : NULL;
    const int hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    int code;

    if (c == '\n') { /* escaped line break: the line continues */
        ++*p;
        return HD_OK;
    }
    if (found) {
        *(*out)++ = to[found - from];
        ++*p;
        return HD_OK;
    }
    if (is_digit(c) || c == 'N')
        return chat_fail(place_of(x, *p - 1), HD_UNSUPPORTED,
                         "the escape \\%c is not supported; write \\x, \\u or \\U", c);
    if (!hex) {
        *(*out)++ = '\\';
        return HD_OK;
    }
    code = hex_value(*p + 1, hex, x->end);
    if (code <= 0 || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        return wrong(x, *p - 1, "not the code of a character");
    *out += chat_put_code_point((uint32_t)code, *out);
    *p += 1 + hex;
    return HD_OK;
}

static enum hd_status lex_string(struct lexer *x)
{
    const char *from = x->p, quote = *from, *close = from + 1;
    enum hd_status st = HD_OK;
    char *text, *out;

    while (close < x->end && *close != quote)
        close += *close == '\\' ? 2 : 1;
    if (close >= x->end)
        return wrong(x, from, "the string that begins here has no end");
    /* the decoded text is never longer: \uXXXX gives at most 3 bytes, \UXXXXXXXX 4, \xXX 2 */
    text = out = hd_arena_alloc(x->arena, (size_t)(close - from) + 1);
    if (!text)
        return hd_err(HD_NO_MEMORY, "no memory for the chat template");
    for (const char *p = from + 1; !st && p < close;) {
        if (*p == '\\') {
            p++;
            st = unescape(x, &p, &out);
        } else {
            *out++ = *p++;
        }
    }
    x->p = close + 1;
    return st ? st : add_token(x, CHAT_TOKEN_STRING, from, text, (size_t)(out - text), NULL);
}

static enum hd_status lex_operator(struct lexer *x, int *balance)
{
    static const char *const two[] = {"==", "!=", "<=", ">=", "//", "**"};
    const char *from = x->p;
    size_t n = 0;

    for (size_t i = 0; !n && i < sizeof two / sizeof *two; i++)
        if (x->end - from >= 2 && memcmp(from, two[i], 2) == 0)
            n = 2;
    if (!n && *from && strchr("+-*/%~<>=.:|,()[]{}", *from))
        n = 1;
    if (!n)
        return wrong(x, from, "a character that has no meaning inside a tag");
    if (strchr("([{", *from))
        ++*balance;
    else if (strchr(")]}", *from))
        --*balance;
    x->p += n;
    return add_token(x, CHAT_TOKEN_OPERATOR, from, from, n, NULL);
}

static enum hd_status lex_name(struct lexer *x)
{
    const char *from = x->p;

    while (x->p < x->end && is_name(*x->p))
        x->p++;
    return add_token(x, CHAT_TOKEN_NAME, from, from, (size_t)(x->p - from), NULL);
}

static enum hd_status lex_tag(struct lexer *x, const char *tag, bool is_block)
{
    int balance = 0;
    enum hd_status st =
        add_token(x, is_block ? CHAT_TOKEN_BLOCK_BEGIN : CHAT_TOKEN_PRINT_BEGIN, tag, tag, 2, NULL);

    while (!st) {
        char sign;
        size_t n;

        x->p += chat_skip_spaces(x->p, (size_t)(x->end - x->p));
        if (x->p >= x->end)
            return wrong(x, tag, "the tag that begins here has no end");
        n = balance <= 0 ? at_end(x->p, x->end, is_block ? '%' : '}', &sign) : 0;
        if (n) {
            st = add_token(x, is_block ? CHAT_TOKEN_BLOCK_END : CHAT_TOKEN_PRINT_END, x->p, x->p, n,
                           NULL);
            x->p += n;
            end_tag(x, sign, is_block);
            return st;
        }
        if (is_digit(*x->p))
            st = lex_number(x);
        else if (is_name(*x->p))
            st = lex_name(x);
        else if (*x->p == '\'' || *x->p == '"')
            st = lex_string(x);
        else
            st = lex_operator(x, &balance);
    }
    return st;
}

/* Copies the source with \n for each line break, but without one at the end; returns the copy's
 * bytes. */
static size_t normalise(const char *source, size_t bytes, char *out)
{
    size_t n = 0;

    for (size_t i = 0; i < bytes; i++) {
        out[n++] = source[i] == '\r' ? '\n' : source[i];
        if (source[i] == '\r' && i + 1 < bytes && source[i + 1] == '\n')
            i++;
    }
    return n > 0 && out[n - 1] == '\n' ? n - 1 : n;
}

static enum hd_status lex_next(struct lexer *x, const char *tag)
{
    const char sign = tag + 2 < x->end && (tag[2] == '-' || tag[2] == '+') ? tag[2] : '\0';
    const char kind = tag[1];
    const char *behind;
    char raw_sign;
    enum hd_status st = add_text(x, tag, sign, kind != '{');

    if (st)
        return st;
    x->p = tag + 2 + (sign != '\0');
    if (kind == '#')
        return skip_comment(x, tag);
    behind = kind == '%' ? raw_tag(x->p, x->end, "raw", &raw_sign) : NULL;
    if (behind && raw_sign != '+') {
        x->p = behind;
        if (raw_sign == '-')
            x->p += chat_skip_spaces(x->p, (size_t)(x->end - x->p));
        x->line_starts = x->p[-1] == '\n';
        return lex_raw(x, tag);
    }
    return lex_tag(x, tag, kind == '%');
}

enum hd_status chat_lex(struct hd_arena *arena, const char *source, size_t source_bytes,
                        struct chat_token **ret_tokens)
{
    char *text = hd_arena_alloc(arena, source_bytes + 1);
    struct lexer x = {.arena = arena, .line_starts = true, .at = {.line = 1, .column = 1}};
    enum hd_status st = HD_OK;

    if (!text)
        return hd_err(HD_NO_MEMORY, "no memory for the chat template");
    x.p = x.counted = text;
    x.end = text + normalise(source, source_bytes, text);
    while (!st && x.p < x.end) {
        const char *tag = find_tag(x.p, x.end);

        if (tag) {
            st = lex_next(&x, tag);
        } else {
            st = add_token(&x, CHAT_TOKEN_TEXT, x.p, x.p, (size_t)(x.end - x.p), NULL);
            x.p = x.end;
        }
    }
    if (!st)
        st = add_token(&x, CHAT_TOKEN_END, x.end, "", 0, NULL);
    *ret_tokens = x.tokens;
    return st;
}
