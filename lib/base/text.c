#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool grow(struct hd_text *text, size_t more)
{
    size_t size = text->size_bytes ? text->size_bytes : 128;
    char *data;

    if (text->failed)
        return false;
    if (more < text->size_bytes - text->len_bytes)
        return true;
    while (size - text->len_bytes <= more)
        size *= 2;
    data = realloc(text->data, size);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->size_bytes = size;
    return true;
}

void hd_text_add(struct hd_text *text, const char *fmt, ...)
{
    const size_t room = text->failed ? 0 : text->size_bytes - text->len_bytes;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(room ? text->data + text->len_bytes : NULL, room, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < room) {
        text->len_bytes += (size_t)n;
        return;
    }
    if (room)
        text->data[text->len_bytes] = '\0'; /* cuts what did not fit */
    if (n < 0 || !grow(text, (size_t)n))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text->data + text->len_bytes, (size_t)n + 1, fmt, ap);
    va_end(ap);
    text->len_bytes += (size_t)n;
}

void hd_text_add_bytes(struct hd_text *text, const void *bytes, size_t count)
{
    if (!grow(text, count))
        return;
    if (count)
        memcpy(text->data + text->len_bytes, bytes, count);
    text->len_bytes += count;
    text->data[text->len_bytes] = '\0';
}

void hd_text_clear(struct hd_text *text)
{
    text->len_bytes = 0;
    if (text->data)
        text->data[0] = '\0';
}

void hd_text_free(struct hd_text *text)
{
    free(text->data);
    *text = (struct hd_text){0};
}

enum hd_status hd_text_to_int64(const char *text, int64_t min, int64_t max, int64_t *ret_value)
{
    long long value;
    char *end;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end || errno || *text == ' ' || *text == '+')
        return hd_err(HD_INVALID, "'%s' is not a whole number", text);
    if (value < min || value > max)
        return hd_err(HD_INVALID, "%s is outside %lld to %lld", text, (long long)min,
                      (long long)max);
    *ret_value = value;
    return HD_OK;
}

enum hd_status hd_text_to_bytes(const char *text, int64_t min, int64_t *ret_bytes)
{
    static const char units[] = "KMGT";
    const size_t all = strlen(text);
    const bool spelled = all > 2 && strcmp(text + all - 2, "iB") == 0;
    const size_t len = spelled ? all - 2 : all;
    const char *unit = len ? strchr(units, text[len - 1]) : NULL;
    const int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    char digits[24];
    int64_t value;

    if (len >= sizeof digits || (spelled && !unit))
        return hd_err(HD_INVALID, "%.32s is not a size, such as 24G or 512MiB", text);
    memcpy(digits, text, len);
    digits[len] = '\0';
    if (unit)
        digits[len - 1] = '\0';
    if (hd_text_to_int64(digits, 0, INT64_MAX >> shift, &value) || value << shift < min)
        return hd_err(HD_INVALID, "%s is not a size of at least %lld bytes, such as 24G or 512MiB",
                      text, (long long)min);
    *ret_bytes = value << shift;
    return HD_OK;
}

enum hd_status hd_text_to_double(const char *text, double min, double max, double *ret_value)
{
    double value;
    char *end;

    errno = 0;
    value = strtod(text, &end);
    if (end == text || *end || *text == ' ' || !isfinite(value))
        return hd_err(HD_INVALID, "'%s' is not a number", text);
    if (value < min || value > max)
        return hd_err(HD_INVALID, "%s is outside %g to %g", text, min, max);
    *ret_value = value;
    return HD_OK;
}

/* Returns the length of the well-formed sequence at p, or 0 (RFC 3629, table in section 4). */
static size_t utf8_sequence(const unsigned char *p, size_t left)
{
    unsigned char lo = 0x80, hi = 0xBF;
    size_t n;

    if (p[0] < 0x80)
        return p[0] ? 1 : 0;
    if (p[0] >= 0xC2 && p[0] <= 0xDF)
        n = 2;
    else if ((p[0] & 0xF0) == 0xE0)
        n = 3;
    else if (p[0] >= 0xF0 && p[0] <= 0xF4)
        n = 4;
    else
        return 0;
    if (left < n)
        return 0;
    if (p[0] == 0xE0)
        lo = 0xA0; /* excludes overlong forms */
    else if (p[0] == 0xED)
        hi = 0x9F; /* excludes surrogates */
    else if (p[0] == 0xF0)
        lo = 0x90;
    else if (p[0] == 0xF4)
        hi = 0x8F; /* no code points above U+10FFFF */
    if (p[1] < lo || p[1] > hi)
        return 0;
    for (size_t i = 2; i < n; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    return n;
}

/* Returns whether a character controls a terminal or is invisible to a reader: U+0000..001F and
 * 007F..009F, soft hyphen, U+061C, 180E, 200B..200F, 2028..202E, 2060..206F, FEFF, FFF9..FFFB,
 * E0000..E0FFF. */
static bool is_hidden(uint32_t c)
{
    static const struct {
        uint32_t first, last;
    } ranges[] = {{0, 0x1F},        {0x7F, 0x9F},     {0xAD, 0xAD},      {0x61C, 0x61C},
                  {0x180E, 0x180E}, {0x200B, 0x200F}, {0x2028, 0x202E},  {0x2060, 0x206F},
                  {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0xE0000, 0xE0FFF}};

    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (c >= ranges[i].first && c <= ranges[i].last)
            return true;
    return false;
}

size_t hd_text_character(const char *at, size_t count, bool *ret_harmless)
{
    const unsigned char *p = (const unsigned char *)at;
    const size_t n = utf8_sequence(p, count);
    uint32_t c = p[0];

    *ret_harmless = false;
    if (!n)
        return 1;
    if (n > 1)
        c &= 0x7Fu >> n;
    for (size_t i = 1; i < n; i++)
        c = c << 6 | (p[i] & 0x3Fu);
    *ret_harmless = !is_hidden(c);
    return n;
}

/* Returns whether the next eight bytes are ASCII without NUL. */
static bool are_ascii(const unsigned char *p)
{
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    uint64_t word;

    memcpy(&word, p, sizeof word);
    return !((word | (word - ones)) & high); /* a NUL borrows, which sets its high bit */
}

size_t hd_text_find_not_utf8(const void *bytes, size_t count)
{
    const unsigned char *p = bytes;
    size_t at = 0, n;

    while (at < count) {
        while (count - at >= 8 && are_ascii(p + at))
            at += 8;
        n = at < count ? utf8_sequence(p + at, count - at) : 0;
        if (!n)
            break;
        at += n;
    }
    return at;
}

bool hd_text_is_utf8(const void *bytes, size_t count)
{
    return hd_text_find_not_utf8(bytes, count) == count;
}

const char *hd_text_explain_not_utf8(const void *bytes, size_t count, size_t at)
{
    const unsigned char *p = bytes;
    const size_t left = count - at;
    const size_t wanted = p[at] < 0xC2 ? 1 : p[at] < 0xE0 ? 2 : p[at] < 0xF0 ? 3 : 4;
    size_t have = 1;

    while (have < left && have < wanted && (p[at + have] & 0xC0) == 0x80)
        have++;
    if (!p[at])
        return "; a NUL byte is no text: the file is damaged, or of another kind";
    if (have == left && have < wanted && p[at] < 0xF5)
        return "; the text ends inside a character: it was cut, or is in another encoding";
    if (p[at] == 0xED && have == 3)
        return "; it is half of a surrogate pair: write the text once more, in UTF-8";
    if (left < 2 || p[at + 1] < 0x80)
        return "; if the text is in Latin-1 or Windows-1252, write it in UTF-8: iconv -f "
               "WINDOWS-1252 -t UTF-8";
    return "; if the text is in another encoding, write it in UTF-8: iconv -f ENCODING -t UTF-8";
}

bool hd_text_is_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || (code >= 0x1C && code <= 0x20) || code == 0x85 ||
           code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
           code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

/* Returns the code of the character at p if it has at most three bytes: no white space has four. */
static uint32_t short_code(const unsigned char *p, size_t bytes)
{
    return bytes == 1   ? p[0]
           : bytes == 2 ? (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu)
           : bytes == 3 ? (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu)
                        : UINT32_MAX;
}

size_t hd_text_trim_end(const char *text, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)text;

    while (bytes > 0) {
        size_t at = bytes - 1;

        while (at > 0 && (p[at] & 0xC0) == 0x80)
            at--;
        if (!hd_text_is_space(short_code(p + at, bytes - at)))
            break;
        bytes = at;
    }
    return bytes;
}

bool hd_text_starts(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool hd_text_ends(const char *text, const char *suffix)
{
    const size_t length = strlen(text), suffix_length = strlen(suffix);

    return length >= suffix_length && strcmp(text + length - suffix_length, suffix) == 0;
}

void hd_text_format_bytes(int64_t count, char ret_text[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)count;
    int unit = 0;

    while (value >= 1024 && unit < 5) {
        value /= 1024;
        unit++;
    }
    (void)snprintf(ret_text, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

void hd_text_list_near(bool (*fits)(const void *about, int64_t number), const void *about,
                       int64_t max, int64_t nearest_to, char ret_list[HD_TEXT_LIST_MAX])
{
    enum { SHOWN = 8 };
    int64_t near[SHOWN];
    size_t count = 0, len = 0;
    bool more = false;

    /* Collects numbers in ascending order; when the list is full, drops its first or its last
     * number, the one farther from `nearest_to`. */
    for (int64_t number = 1; number <= max; number++) {
        if (!fits(about, number))
            continue;
        if (count == SHOWN) {
            more = true;
            if (number - nearest_to >= nearest_to - near[0])
                break;
            memmove(near, near + 1, sizeof near - sizeof near[0]);
            count--;
        }
        near[count++] = number;
    }
    ret_list[0] = '\0';
    for (size_t i = 0; i < count; i++)
        len += (size_t)snprintf(ret_list + len, HD_TEXT_LIST_MAX - len, "%s%lld",
                                i == 0           ? ""
                                : i + 1 == count ? " or "
                                                 : ", ",
                                (long long)near[i]);
    if (more)
        (void)snprintf(ret_list + len, HD_TEXT_LIST_MAX - len, ", among others");
}
