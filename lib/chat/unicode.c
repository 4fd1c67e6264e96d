#include <string.h>

#include "chat/template_internal.h"

size_t chat_code_point_bytes(const char *text)
{
    const unsigned char c = (unsigned char)*text;

    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

size_t chat_code_points(const char *text, size_t bytes)
{
    size_t n = 0;

    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

uint32_t chat_code_point(const char *text)
{
    const size_t n = chat_code_point_bytes(text);
    uint32_t code = (unsigned char)*text;

    if (n > 1)
        code &= n == 2 ? 0x1F : n == 3 ? 0x0F : 0x07;
    for (size_t i = 1; i < n; i++)
        code = code << 6 | ((unsigned char)text[i] & 0x3F);
    return code;
}

size_t chat_put_code_point(uint32_t code, char ret_text[4])
{
    const size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char head[] = {0, 0, 0xC0, 0xE0, 0xF0};

    for (size_t i = n; i-- > 1; code >>= 6)
        ret_text[i] = (char)(0x80 | (code & 0x3F));
    ret_text[0] = (char)(head[n == 1 ? 0 : n] | code);
    return n;
}

bool chat_is_space(uint32_t code)
{
    return hd_text_is_space(code);
}

bool chat_is_printable(uint32_t code)
{
    static const uint32_t not_printable[][2] = {
        {0, 0x1F},           {0x7F, 0xA0},       {0xAD, 0xAD},       {0x600, 0x605},
        {0x61C, 0x61C},      {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x1680, 0x1680},
        {0x180E, 0x180E},    {0x2000, 0x200F},   {0x2028, 0x202F},   {0x205F, 0x206F},
        {0x3000, 0x3000},    {0xD800, 0xF8FF},   {0xFEFF, 0xFEFF},   {0xFFF0, 0xFFFB},
        {0xFFFE, 0xFFFF},    {0x110BD, 0x110BD}, {0x1D173, 0x1D17A}, {0xE0000, 0xE00FF},
        {0xE01F0, 0x10FFFF},
    };

    for (size_t i = 0; i < sizeof not_printable / sizeof *not_printable; i++)
        if (code >= not_printable[i][0] && code <= not_printable[i][1])
            return false;
    return true;
}

size_t chat_skip_spaces(const char *text, size_t bytes)
{
    size_t at = 0;

    while (at < bytes && chat_is_space(chat_code_point(text + at)))
        at += chat_code_point_bytes(text + at);
    return at;
}

size_t chat_trim_end(const char *text, size_t bytes)
{
    return hd_text_trim_end(text, bytes);
}

/* ---- upper and lower case of ASCII, Latin-1 and Cyrillic ---- */

enum { NO_CASE, UPPER, LOWER, NOT_KNOWN };

/* Returns the case of a character; sets *ret_other to its counterpart in the other case, or to the
 * character itself. */
static int case_of(uint32_t c, uint32_t *ret_other)
{
    *ret_other = c;
    if ((c >= 'A' && c <= 'Z') || (c >= 0xC0 && c <= 0xDE && c != 0xD7) ||
        (c >= 0x410 && c <= 0x42F)) {
        *ret_other = c + 0x20;
        return UPPER;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 0xE0 && c <= 0xFE && c != 0xF7) ||
        (c >= 0x430 && c <= 0x44F)) {
        *ret_other = c - 0x20;
        return LOWER;
    }
    if (c >= 0x400 && c <= 0x40F) {
        *ret_other = c + 0x50;
        return UPPER;
    }
    if (c >= 0x450 && c <= 0x45F) {
        *ret_other = c - 0x50;
        return LOWER;
    }
    if (c < 0xC0)
        return c == 0xAA || c == 0xB5 || c == 0xBA ? NOT_KNOWN : NO_CASE;
    if (c == 0xD7 || c == 0xF7 || (c >= 0x5D0 && c <= 0x109F) || (c >= 0x1100 && c <= 0x139F) ||
        (c >= 0x2000 && c <= 0x206F) || (c >= 0x2190 && c <= 0x245F) ||
        (c >= 0x2500 && c <= 0x2BFF) || (c >= 0x2E00 && c <= 0xA63F) ||
        (c >= 0xAC00 && c <= 0xD7FF) || (c >= 0xF900 && c <= 0xFAFF) ||
        (c >= 0xFE00 && c <= 0xFE0F) || (c >= 0x1F200 && c <= 0x3FFFF))
        return NO_CASE;
    return NOT_KNOWN;
}

/* returns whether a character separates words for the filter `title` */
static bool parts_words(uint32_t c)
{
    return chat_is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
}

enum hd_status chat_change_case(struct chat_run *run, const struct chat_value *v,
                                enum chat_case how, struct chat_value *ret)
{
    const struct chat_value text = *v; /* `ret` may alias `v` */
    char *out = hd_arena_alloc(&run->arena, text.count + 1);
    bool begins = true;

    if (!out)
        return chat_no_memory(run);
    *ret = chat_part(out, text.count);
    for (size_t i = 0; i < text.count; i += chat_code_point_bytes(text.text + i)) {
        const uint32_t c = chat_code_point(text.text + i);
        uint32_t other;
        const int is = case_of(c, &other);
        const bool up = how == CHAT_UPPER || (how != CHAT_LOWER && begins);

        if (is == NOT_KNOWN)
            return chat_unsupported(run, "upper and lower case of U+%04X", (unsigned)c);
        /* both cases of a letter have the same number of bytes */
        out += chat_put_code_point(is == (up ? LOWER : UPPER) ? other : c, out);
        if (how == CHAT_TITLE)
            begins = is == NO_CASE;
        else
            begins = how == CHAT_TITLE_FILTER && parts_words(c);
    }
    return HD_OK;
}
