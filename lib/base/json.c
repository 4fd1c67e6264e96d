#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digits.h"

struct json_reader {
    struct hd_arena *arena;
    const struct hd_json_limits *limits;
    const char *start, *p, *end;
    size_t value_count;
    bool last_counts; /* true: of several members of an object with one name the last counts; false:
                         several are an error */
};

static enum hd_status parse_value(struct json_reader *r, int depth, struct hd_json **ret_value);

static enum hd_status wrong(const struct json_reader *r, const char *what)
{
    return hd_err(HD_INVALID, "byte %zu: %s", (size_t)(r->p - r->start), what);
}

static bool text_begins_with(const struct json_reader *r, const char *word)
{
    const size_t n = strlen(word);

    return (size_t)(r->end - r->p) >= n && memcmp(r->p, word, n) == 0;
}

/* Returns whether a number that is not finite follows, as Python or C write it. */
static bool is_not_finite(const struct json_reader *r)
{
    static const char *const words[] = {"NaN",       "nan", "-nan", "Infinity",
                                        "-Infinity", "inf", "-inf"};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (text_begins_with(r, words[i]))
            return true;
    return false;
}

const char *hd_json_explain_foreign(const char *text, size_t text_bytes)
{
    static const char *const others[][2] = {
        {"version https://git-lfs",
         "; it is a pointer of Git LFS, not the file itself: git lfs pull"},
        {"<",
         "; it begins as a page of HTML or XML: perhaps what a server said in place of the file"},
        {"\xff\xfe", "; it is text in UTF-16: iconv -f UTF-16 -t UTF-8"},
        {"\xfe\xff", "; it is text in UTF-16: iconv -f UTF-16 -t UTF-8"},
        {"\x1f\x8b", "; it is a gzip file: unpack it"},
        {"PK\x03\x04", "; it is a ZIP archive: unpack it"},
        {"GGUF", "; it is a GGUF file: fetch the model's .safetensors files"},
    };

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (text_bytes >= strlen(others[i][0]) &&
            memcmp(text, others[i][0], strlen(others[i][0])) == 0)
            return others[i][1];
    return "";
}

/* Returns a hint about a common mistake at this position, such as a Python literal or a comment;
 * "": unknown. */
static const char *explain(const struct json_reader *r)
{
    const char *foreign;

    if (r->start == r->end)
        return ", and the text is empty";
    if (r->p == r->end)
        return ", and the text ends";
    foreign =
        r->p == r->start ? hd_json_explain_foreign(r->start, (size_t)(r->end - r->start)) : "";
    if (*foreign)
        return foreign;
    if (!*r->p)
        return ", and a NUL byte is there";
    if (is_not_finite(r))
        return "; JSON has neither NaN nor Infinity: write null, or leave the member out";
    if (text_begins_with(r, "True") || text_begins_with(r, "False") || text_begins_with(r, "None"))
        return "; JSON has true, false and null";
    if (*r->p == '\'')
        return "; JSON has double quotes, \"";
    if (*r->p == '#' || text_begins_with(r, "//") || text_begins_with(r, "/*"))
        return "; JSON has no comments";
    if ((*r->p == '}' || *r->p == ']') && r->p > r->start && r->p[-1] == ',')
        return "; remove the comma in front";
    if (*r->p == '+')
        return "; a number has no + in front";
    if (*r->p >= '0' && *r->p <= '9' && r->p > r->start && r->p[-1] == '0')
        return "; a number has no 0 in front";
    if ((unsigned char)*r->p >= 0x80)
        return "; outside of strings there are only ASCII characters, so no typographic quotes and "
               "no other spaces";
    return "";
}

/* Reports what is expected at this position, with a hint if the text is a common mistake. */
static enum hd_status expected(const struct json_reader *r, const char *what)
{
    return hd_err(HD_INVALID, "byte %zu: %s is expected here%s", (size_t)(r->p - r->start), what,
                  explain(r));
}

static void skip_blanks(struct json_reader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r'))
        r->p++;
}

static bool take(struct json_reader *r, char c)
{
    if (r->p == r->end || *r->p != c)
        return false;
    r->p++;
    return true;
}

/* ---- strings ---- */

/* Parses the four hexadecimal digits after \u. */
static enum hd_status parse_hex4(struct json_reader *r, uint32_t *ret_code)
{
    uint32_t code = 0;

    for (int i = 0; i < 4; i++) {
        int digit = r->p < r->end ? hd_hex_digit(*r->p) : -1;

        if (digit < 0)
            return wrong(r, "four hexadecimal digits must follow \\u");
        code = code << 4 | (uint32_t)digit;
        r->p++;
    }
    *ret_code = code;
    return HD_OK;
}

static char *put_utf8(char *out, uint32_t code)
{
    if (code < 0x80) {
        *out++ = (char)code;
    } else if (code < 0x800) {
        *out++ = (char)(0xC0 | code >> 6);
        *out++ = (char)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *out++ = (char)(0xE0 | code >> 12);
        *out++ = (char)(0x80 | (code >> 6 & 0x3F));
        *out++ = (char)(0x80 | (code & 0x3F));
    } else {
        *out++ = (char)(0xF0 | code >> 18);
        *out++ = (char)(0x80 | (code >> 12 & 0x3F));
        *out++ = (char)(0x80 | (code >> 6 & 0x3F));
        *out++ = (char)(0x80 | (code & 0x3F));
    }
    return out;
}

/* Parses the rest of an escape \uXXXX, which gives one code point; for a surrogate pair also the
 * second \uXXXX. */
static enum hd_status parse_unicode(struct json_reader *r, char **out)
{
    uint32_t code = 0, low = 0;
    enum hd_status st = parse_hex4(r, &code);

    if (st)
        return st;
    if (code >= 0xD800 && code <= 0xDBFF) {
        if (!take(r, '\\') || !take(r, 'u'))
            return wrong(r, "the second half of a surrogate pair is missing; write the character "
                            "itself, or remove it");
        st = parse_hex4(r, &low);
        if (st)
            return st;
        if (low < 0xDC00 || low > 0xDFFF)
            return wrong(r, "not the second half of a surrogate pair");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code <= 0xDFFF) {
        return wrong(r, "the second half of a surrogate pair without the first; write the "
                        "character itself, or remove it");
    }
    if (code == 0)
        return wrong(r, "\\u0000, a NUL inside a string, is not supported; remove it");
    *out = put_utf8(*out, code);
    return HD_OK;
}

static enum hd_status parse_escape(struct json_reader *r, char **out)
{
    char c;

    if (r->p == r->end)
        return wrong(r, "the text ends inside a string");
    if (take(r, 'u'))
        return parse_unicode(r, out);
    switch (*r->p) {
    case 'n':
        c = '\n';
        break;
    case '"':
    case '\\':
    case '/':
        c = *r->p;
        break;
    case 't':
        c = '\t';
        break;
    case 'r':
        c = '\r';
        break;
    case 'b':
        c = '\b';
        break;
    case 'f':
        c = '\f';
        break;
    default:
        return wrong(r, "unknown escape in a string; a backslash itself is written \\\\");
    }
    *(*out)++ = c;
    r->p++;
    return HD_OK;
}

/* Returns the number of bytes at the beginning of a text that a JSON string has as they are: up to a
 * quote, a backslash or a control character. Looks at eight at a time. */
static size_t count_literal(const char *p, const char *end)
{
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    const char *const begin = p;

    while (end - p >= 8) {
        uint64_t word, quote, backslash, found;

        memcpy(&word, p, sizeof word);
        quote = word ^ ones * '"';
        backslash = word ^ ones * '\\';
        /* a byte is below n if taking n off borrows, and the byte itself is below 128; a borrow may
         * mark bytes above the first that is */
        found = (((word - ones * 0x20) & ~word) | ((quote - ones) & ~quote) |
                 ((backslash - ones) & ~backslash)) &
                high;
        if (found && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
            return (size_t)(p - begin) + ((size_t)__builtin_ctzll(found) >> 3);
        if (found)
            break;
        p += 8;
    }
    while (p < end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20)
        p++;
    return (size_t)(p - begin);
}

/* Returns the quote that ends a string, which no backslash escapes; NULL: there is none. */
static const char *find_close(const char *open, const char *end)
{
    for (const char *p = open; p < end && (p = memchr(p, '"', (size_t)(end - p))); p++) {
        const char *first = p;

        while (first > open && first[-1] == '\\')
            first--;
        if ((p - first) % 2 == 0)
            return p;
    }
    return NULL;
}

/* Parses a string; r->p is at the opening quote. The decoded string is never longer than its
 * source. */
static enum hd_status parse_string(struct json_reader *r, const char **ret_text)
{
    const char *open = r->p + 1, *close = find_close(open, r->end);
    enum hd_status st = HD_OK;
    char *text, *out;
    size_t bad;

    if (!close)
        return wrong(r, "the closing quote of a string is missing");
    text = out = hd_arena_alloc(r->arena, (size_t)(close - r->p));
    if (!text)
        return hd_err(HD_NO_MEMORY, "no memory for the JSON values");
    r->p++;
    while (!st && r->p < close) {
        const size_t n = count_literal(r->p, close);

        memcpy(out, r->p, n);
        out += n;
        r->p += n;
        if (r->p == close)
            break;
        if (!*r->p)
            return wrong(r, "a NUL byte inside a string; the file is damaged, or no text");
        if ((unsigned char)*r->p < 0x20)
            return hd_err(HD_INVALID,
                          "byte %zu: the control character 0x%02X inside a string; write it "
                          "\\u%04x",
                          (size_t)(r->p - r->start), (unsigned)*r->p, (unsigned)*r->p);
        r->p++; /* skips a backslash: what else ends a literal is refused or the end */
        st = parse_escape(r, &out);
    }
    if (st)
        return st;
    if (!hd_text_is_utf8(text, (size_t)(out - text))) {
        bad = (size_t)(open - r->start);
        bad += hd_text_find_not_utf8(open, (size_t)(close - open));
        return hd_err(HD_INVALID, "byte %zu (0x%02X) is not UTF-8%s", bad,
                      (unsigned)(unsigned char)r->start[bad],
                      hd_text_explain_not_utf8(r->start, (size_t)(r->end - r->start), bad));
    }
    *out = '\0';
    r->p++; /* skips the closing quote */
    *ret_text = text;
    return HD_OK;
}

/* ---- numbers ---- */

static bool take_digits(struct json_reader *r)
{
    const char *before = r->p;

    while (r->p < r->end && *r->p >= '0' && *r->p <= '9')
        r->p++;
    return r->p > before;
}

static enum hd_status parse_number(struct json_reader *r, struct hd_json *value)
{
    const char *from = r->p;
    size_t n;
    char *text;

    if (text_begins_with(r, "-I") || text_begins_with(r, "-i"))
        return expected(r, "a value");
    (void)take(r, '-');
    if (!take(r, '0') && !take_digits(r)) /* no digit may follow a leading 0 */
        return expected(r, "a value");
    if (take(r, '.') && !take_digits(r))
        return wrong(r, "a digit must follow the point");
    if (take(r, 'e') || take(r, 'E')) {
        if (!take(r, '+'))
            (void)take(r, '-');
        if (!take_digits(r))
            return wrong(r, "a digit must follow the exponent");
    }
    n = (size_t)(r->p - from);
    text = hd_arena_alloc(r->arena, n + 1);
    if (!text)
        return hd_err(HD_NO_MEMORY, "no memory for the JSON values");
    memcpy(text, from, n);
    value->kind = HD_JSON_NUMBER;
    value->text = text;
    return HD_OK;
}

/* ---- arrays and objects ---- */

struct json_name { /* one member of an object, for sorting the members by name */
    struct hd_json *member;
    size_t place;
};

static int compare_names(const void *a, const void *b)
{
    const struct json_name *x = a, *y = b;
    const int order = strcmp(x->member->key, y->member->key);

    return order ? order : x->place < y->place ? -1 : x->place > y->place;
}

/* Removes from an object the members whose key was set to NULL (dropped duplicates). */
static void unlink_dropped(struct hd_json *object)
{
    const struct hd_json **link = &object->first;

    object->count = 0;
    for (const struct hd_json *m = object->first; m; m = m->next)
        if (m->key) {
            *link = m;
            link = (const struct hd_json **)&((struct hd_json *)m)->next;
            object->count++;
        }
    *link = NULL;
}

/* Finds members of an object with equal names: drops all but the last if last_counts is set,
 * otherwise reports an error. */
static enum hd_status resolve_names(struct json_reader *r, struct hd_json *object)
{
    struct json_name *names;
    enum hd_status st = HD_OK;
    bool dropped = false;
    size_t n = 0;

    if (object->count < 2)
        return HD_OK;
    names = calloc(object->count, sizeof *names);
    if (!names)
        return hd_err(HD_NO_MEMORY, "no memory for the JSON values");
    for (const struct hd_json *m = object->first; m; m = m->next, n++)
        names[n] = (struct json_name){(struct hd_json *)m, n};
    qsort(names, n, sizeof *names, compare_names);
    for (size_t i = 1; i < n && !st; i++) {
        if (strcmp(names[i - 1].member->key, names[i].member->key) != 0)
            continue;
        if (r->last_counts)
            names[i].member->overrode = dropped = true;
        else
            st = hd_err(HD_INVALID,
                        "byte %zu: duplicate name '%s' in the object that ends here; write it once",
                        (size_t)(r->p - r->start), names[i].member->key);
    }
    for (size_t i = 1; i < n && dropped; i++)
        if (names[i].member->overrode)
            names[i - 1].member->key = NULL;
    if (dropped)
        unlink_dropped(object);
    free(names);
    return st;
}

static enum hd_status parse_key(struct json_reader *r, const char **ret_key)
{
    enum hd_status st;

    if (r->p == r->end || *r->p != '"')
        return expected(r, "a member's name");
    st = parse_string(r, ret_key);
    if (st)
        return st;
    skip_blanks(r);
    return take(r, ':') ? HD_OK : expected(r, "':'");
}

/* Parses the items of an array or object up to its closing bracket; r->p is after the opening
 * bracket. */
static enum hd_status parse_items(struct json_reader *r, int depth, struct hd_json *parent)
{
    const bool is_object = parent->kind == HD_JSON_OBJECT;
    const char close = is_object ? '}' : ']';
    const struct hd_json **link = &parent->first;

    skip_blanks(r);
    if (take(r, close))
        return HD_OK;
    for (;;) {
        struct hd_json *item = NULL;
        const char *key = NULL;
        enum hd_status st = HD_OK;

        skip_blanks(r);
        if (is_object)
            st = parse_key(r, &key);
        if (!st)
            st = parse_value(r, depth + 1, &item);
        if (st)
            return st;
        item->key = key;
        *link = item;
        link = &item->next;
        parent->count++;
        skip_blanks(r);
        if (take(r, close))
            return is_object ? resolve_names(r, parent) : HD_OK;
        if (!take(r, ','))
            return expected(r, is_object ? "',' or '}'" : "',' or ']'");
    }
}

static bool take_word(struct json_reader *r, const char *word)
{
    if (!text_begins_with(r, word))
        return false;
    r->p += strlen(word);
    return true;
}

static enum hd_status parse_value(struct json_reader *r, int depth, struct hd_json **ret_value)
{
    struct hd_json *value;

    skip_blanks(r);
    if (r->p == r->end)
        return expected(r, "a value");
    if (++r->value_count > r->limits->values_max)
        return hd_err(HD_LIMIT, "byte %zu: more than %zu values", (size_t)(r->p - r->start),
                      r->limits->values_max);
    value = hd_arena_alloc(r->arena, sizeof *value);
    if (!value)
        return hd_err(HD_NO_MEMORY, "no memory for the JSON values");
    *ret_value = value;
    if (*r->p == '"') {
        value->kind = HD_JSON_STRING;
        return parse_string(r, &value->text);
    }
    if (*r->p == '{' || *r->p == '[') {
        if (depth >= r->limits->depth_max)
            return hd_err(HD_LIMIT, "byte %zu: deeper than %d arrays and objects",
                          (size_t)(r->p - r->start), r->limits->depth_max);
        value->kind = *r->p++ == '{' ? HD_JSON_OBJECT : HD_JSON_ARRAY;
        return parse_items(r, depth, value);
    }
    if (take_word(r, "null"))
        value->kind = HD_JSON_NULL;
    else if (take_word(r, "true"))
        value->kind = HD_JSON_TRUE;
    else if (take_word(r, "false"))
        value->kind = HD_JSON_FALSE;
    else
        return parse_number(r, value);
    return HD_OK;
}

static enum hd_status parse_text(struct hd_arena *arena, const char *text, size_t text_bytes,
                                 const struct hd_json_limits *limits, bool last_counts,
                                 const struct hd_json **ret_root)
{
    struct json_reader r = {.arena = arena,
                            .limits = limits,
                            .start = text,
                            .p = text,
                            .end = text + text_bytes,
                            .last_counts = last_counts};
    struct hd_json *root = NULL;
    enum hd_status st;

    if (text_bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        r.p += 3; /* a byte order mark, which Windows editors write (RFC 8259, 8.1) */
    st = parse_value(&r, 0, &root);
    if (st)
        return st;
    skip_blanks(&r);
    if (r.p != r.end)
        return wrong(&r, *r.p == ',' ? "nothing more is expected behind the value; remove the comma"
                         : *r.p == '{'
                             ? "nothing more is expected behind the value; each object of "
                               "a line-wise file ends with a line feed (\\n)"
                             : "nothing more is expected behind the value");
    *ret_root = root;
    return HD_OK;
}

enum hd_status hd_json_parse(struct hd_arena *arena, const char *text, size_t text_bytes,
                             const struct hd_json_limits *limits, const struct hd_json **ret_root)
{
    return parse_text(arena, text, text_bytes, limits, false, ret_root);
}

enum hd_status hd_json_parse_repeated(struct hd_arena *arena, const char *text, size_t text_bytes,
                                      const struct hd_json_limits *limits,
                                      const struct hd_json **ret_root)
{
    return parse_text(arena, text, text_bytes, limits, true, ret_root);
}

static const char *const kind_names[] = {"null",     "false",    "true",     "a number",
                                         "a string", "an array", "an object"};

/* Reports that a line of a .jsonl file is not a JSON object; the message says so if the line is an
 * array, a common mistake. */
static enum hd_status no_object(char first)
{
    if (first == '[')
        return hd_err(HD_INVALID, "the line is a JSON array, not an object; write each of its "
                                  "objects in a line of its own");
    return hd_err(HD_INVALID, "the line is no JSON object; write {..} around its keys");
}

enum hd_status hd_json_parse_line(struct hd_arena *arena, const char *line, size_t line_bytes,
                                  const struct hd_json_limits *limits,
                                  const struct hd_json **ret_root)
{
    struct json_reader r = {.start = line, .p = line, .end = line + line_bytes};
    enum hd_status st;

    if (text_begins_with(&r, "\xef\xbb\xbf"))
        r.p += 3;
    skip_blanks(&r);
    if (r.p < r.end && *r.p && *r.p != '{')
        return no_object(*r.p);
    st = hd_json_parse(arena, line, line_bytes, limits, ret_root);
    return st == HD_LIMIT ? HD_INVALID : st;
}

/* ---- access ---- */

const struct hd_json *hd_json_member(const struct hd_json *object, const char *key)
{
    if (object->kind != HD_JSON_OBJECT)
        return NULL;
    for (const struct hd_json *m = object->first; m; m = m->next)
        if (strcmp(m->key, key) == 0)
            return m;
    return NULL;
}

const char *hd_json_text(const struct hd_json *object, const char *key)
{
    const struct hd_json *m =
        object && object->kind == HD_JSON_OBJECT ? hd_json_member(object, key) : NULL;

    return m && m->kind == HD_JSON_STRING ? m->text : NULL;
}

enum hd_status hd_json_need(const struct hd_json *object, const char *key, enum hd_json_kind kind,
                            const struct hd_json **ret_member)
{
    const struct hd_json *member = hd_json_member(object, key);

    if (object->kind != HD_JSON_OBJECT)
        return hd_err(HD_INVALID, "%s is given, and an object with '%s' is expected",
                      kind_names[object->kind], key);
    if (!member)
        return hd_err(HD_INVALID, "'%s' is missing", key);
    if (member->kind != kind)
        return hd_err(HD_INVALID, "'%s' is %s, not %s", key, kind_names[member->kind],
                      kind_names[kind]);
    *ret_member = member;
    return HD_OK;
}

enum hd_status hd_json_to_int64(const struct hd_json *value, int64_t min, int64_t max,
                                int64_t *ret_value)
{
    if (value->kind != HD_JSON_NUMBER)
        return hd_err(HD_INVALID, "a whole number is expected, not %s", kind_names[value->kind]);
    return hd_text_to_int64(value->text, min, max, ret_value);
}

enum hd_status hd_json_need_int64(const struct hd_json *object, const char *key, int64_t min,
                                  int64_t max, int64_t *ret_value)
{
    const struct hd_json *member = NULL;
    enum hd_status st = hd_json_need(object, key, HD_JSON_NUMBER, &member);

    if (st)
        return st;
    st = hd_json_to_int64(member, min, max, ret_value);
    return st ? hd_err_prefix(st, "'%s'", key) : HD_OK;
}

enum hd_status hd_json_need_string(const struct hd_json *object, const char *key,
                                   const char **ret_text)
{
    const struct hd_json *member = NULL;
    enum hd_status st = hd_json_need(object, key, HD_JSON_STRING, &member);

    if (!st)
        *ret_text = member->text;
    return st;
}

enum hd_status hd_json_copy_string(const struct hd_json *object, const char *key, char *ret_text,
                                   size_t size_bytes)
{
    const char *text;
    const enum hd_status st = hd_json_need_string(object, key, &text);

    if (!st)
        (void)snprintf(ret_text, size_bytes, "%s", text);
    return st;
}

/* ---- writing ---- */

static void add_quoted(struct hd_text *out, const char *text)
{
    const char *plain = text;

    hd_text_add_bytes(out, "\"", 1);
    for (const char *p = text;; p++) {
        if (*p && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20)
            continue;
        hd_text_add_bytes(out, plain, (size_t)(p - plain));
        plain = p + 1;
        if (!*p)
            break;
        if (*p == '\n')
            hd_text_add_bytes(out, "\\n", 2);
        else if (*p == '"' || *p == '\\')
            hd_text_add(out, "\\%c", *p);
        else
            hd_text_add(out, "\\u%04x", (unsigned char)*p);
    }
    hd_text_add_bytes(out, "\"", 1);
}

static void before_value(struct hd_json_writer *writer, const char *key)
{
    if (writer->needs_comma)
        hd_text_add_bytes(writer->out, ",", 1);
    writer->needs_comma = true;
    if (key) {
        add_quoted(writer->out, key);
        hd_text_add_bytes(writer->out, ":", 1);
    }
}

void hd_json_begin(struct hd_json_writer *writer, const char *key, char bracket)
{
    before_value(writer, key);
    hd_text_add_bytes(writer->out, &bracket, 1);
    writer->needs_comma = false;
}

void hd_json_end(struct hd_json_writer *writer, char bracket)
{
    hd_text_add_bytes(writer->out, &bracket, 1);
    writer->needs_comma = true;
}

void hd_json_add_string(struct hd_json_writer *writer, const char *key, const char *text)
{
    before_value(writer, key);
    add_quoted(writer->out, text);
}

void hd_json_add_int64(struct hd_json_writer *writer, const char *key, int64_t value)
{
    before_value(writer, key);
    hd_text_add(writer->out, "%" PRId64, value);
}

void hd_json_add_real(struct hd_json_writer *writer, const char *key, double value)
{
    char text[40];

    before_value(writer, key);
    for (int digits = 6; digits <= 17; digits++) { /* 17 digits always read back to the same bits */
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    hd_text_add(writer->out, "%s", isfinite(value) ? text : "null");
}

void hd_json_add_number(struct hd_json_writer *writer, const char *key, const char *text)
{
    before_value(writer, key);
    hd_text_add(writer->out, "%s", text);
}

void hd_json_add_bool(struct hd_json_writer *writer, const char *key, bool value)
{
    before_value(writer, key);
    hd_text_add(writer->out, "%s", value ? "true" : "false");
}

void hd_json_add_null(struct hd_json_writer *writer, const char *key)
{
    before_value(writer, key);
    hd_text_add(writer->out, "null");
}

void hd_json_add_value(struct hd_json_writer *writer, const char *key, const struct hd_json *value)
{
    const bool object = value->kind == HD_JSON_OBJECT;

    switch (value->kind) {
    case HD_JSON_NULL:
        hd_json_add_null(writer, key);
        break;
    case HD_JSON_FALSE:
    case HD_JSON_TRUE:
        hd_json_add_bool(writer, key, value->kind == HD_JSON_TRUE);
        break;
    case HD_JSON_NUMBER:
        hd_json_add_number(writer, key, value->text);
        break;
    case HD_JSON_STRING:
        hd_json_add_string(writer, key, value->text);
        break;
    case HD_JSON_ARRAY:
    case HD_JSON_OBJECT:
        hd_json_begin(writer, key, object ? '{' : '[');
        for (const struct hd_json *v = value->first; v; v = v->next)
            hd_json_add_value(writer, object ? v->key : NULL, v);
        hd_json_end(writer, object ? '}' : ']');
        break;
    }
}

void hd_json_add_line(struct hd_json_writer *writer)
{
    if (writer->needs_comma)
        hd_text_add_bytes(writer->out, ",", 1);
    hd_text_add_bytes(writer->out, "\n", 1);
    writer->needs_comma = false;
}
