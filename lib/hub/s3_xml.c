/* s3_xml: as much XML as the answers of stores have. */
#include <stdlib.h>
#include <string.h>

#include "s3_internal.h"

bool s3_find_element(const char *at, const char *end, const char *tag, const char **ret_begin,
                     const char **ret_end)
{
    const size_t n = strlen(tag);

    for (; (at = memchr(at, '<', (size_t)(end - at))); at++) {
        const char *close, *last = NULL;

        if ((size_t)(end - at) < n + 2 || memcmp(at + 1, tag, n) != 0 ||
            !strchr("> \t\r\n", at[n + 1]))
            continue;
        *ret_begin = memchr(at, '>', (size_t)(end - at));
        if (!*ret_begin)
            return false;
        ++*ret_begin;
        for (close = *ret_begin; (close = memchr(close, '<', (size_t)(end - close))); close++)
            if ((size_t)(end - close) > n + 2 && close[1] == '/' &&
                memcmp(close + 2, tag, n) == 0 && close[n + 2] == '>') {
                last = close;
                break;
            }
        *ret_end = last;
        return last;
    }
    return false;
}

/* Appends XML text with its entities decoded. */
static void add_decoded(struct hd_text *out, const char *at, const char *end)
{
    static const struct {
        const char *name, *text;
    } entities[] = {
        {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&apos;", "'"}};

    while (at < end) {
        const char *and = memchr(at, '&', (size_t)(end - at));
        size_t taken = 0;

        hd_text_add_bytes(out, at, (size_t)((and? and : end) - at));
        if (!and)
            return;
        for (size_t i = 0; i < sizeof entities / sizeof entities[0] && !taken; i++)
            if ((size_t)(end - and) >= strlen(entities[i].name) &&
                memcmp(and, entities[i].name, strlen(entities[i].name)) == 0) {
                hd_text_add(out, "%s", entities[i].text);
                taken = strlen(entities[i].name);
            }
        if (!taken && end - and > 3 && and[1] == '#') {
            const bool hex = and[2] == 'x';
            char *rest;
            const long code = strtol(and+2 + hex, &rest, hex ? 16 : 10);

            if (*rest == ';' && rest < end && code > 0 && code < 0x80) {
                hd_text_add(out, "%c", (int)code);
                taken = (size_t)(rest + 1 - and);
            }
        }
        if (!taken)
            hd_text_add(out, "&");
        at = and+(taken ? taken : 1);
    }
}

const char *s3_find_text(const char *at, const char *end, const char *tag, struct hd_text *ret_text)
{
    const char *begin, *last;

    hd_text_clear(ret_text);
    if (!s3_find_element(at, end, tag, &begin, &last))
        return NULL;
    hd_text_add(ret_text, "%s", "");
    add_decoded(ret_text, begin, last);
    return last;
}
