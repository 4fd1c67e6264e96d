#include "http/target.h"

#include <stdbool.h>
#include <string.h>

#include "base/digits.h"
#include "base/text.h"

/* Decodes percent codes from *raw up to one of the characters `ends` or the NUL; *raw points there
 * afterwards. */
static enum hd_status decode(const char **raw, const char *ends, char **out, bool is_path)
{
    const char *p = *raw, *begin = *out;
    char *at = *out;

    for (; *p && !strchr(ends, *p); p++) {
        int c = (unsigned char)*p;

        if (c <= ' ' || c > '~' || c == '#' || c == '\\')
            return hd_err(HD_INVALID, "the request target has the byte 0x%02x", (unsigned)c);
        if (c == '%') {
            const int high = hd_hex_digit(p[1]), low = high < 0 ? -1 : hd_hex_digit(p[2]);

            if (low < 0)
                return hd_err(HD_INVALID, "the request target has a wrong percent code");
            c = 16 * high + low;
            p += 2;
            if (c < ' ' || c == 0x7f || (is_path && c == '/'))
                return hd_err(HD_INVALID, "the request target has the percent code %%%02X",
                              (unsigned)c);
        }
        *at++ = (char)c;
    }
    *at++ = '\0';
    if (!hd_text_is_utf8(begin, (size_t)(at - begin) - 1))
        return hd_err(HD_INVALID, "the request target is not UTF-8");
    *raw = p;
    *out = at;
    return HD_OK;
}

static enum hd_status check_path(const char *path)
{
    if (path[0] == '/' && !path[1])
        return HD_OK;
    while (*path == '/') {
        const char *segment = path + 1;
        const size_t length = strcspn(segment, "/");

        if (length == 0 || (length == 1 && segment[0] == '.') ||
            (length == 2 && segment[0] == '.' && segment[1] == '.'))
            return hd_err(HD_INVALID, "the path of the request has a segment that is empty, \".\" "
                                      "or \"..\"");
        path = segment + length;
    }
    return HD_OK;
}

static enum hd_status take_param(const char **raw, char **out, struct hd_http_target *target)
{
    struct hd_http_pair param = {.name = *out};
    enum hd_status st = decode(raw, "=&", out, false);

    param.value = *out - 1; /* empty value: the NUL of the name */
    if (!st && **raw == '=') {
        (*raw)++;
        param.value = *out;
        st = decode(raw, "&", out, false);
    }
    if (st)
        return st;
    if (!*param.name)
        return hd_err(HD_INVALID, "the query of the request has a parameter without a name");
    if (hd_http_target_param(target, param.name))
        return hd_err(HD_INVALID, "the query of the request has the parameter %s twice",
                      param.name);
    if (target->param_count == HD_HTTP_PARAMS_MAX)
        return hd_err(HD_LIMIT, "the query of the request has more than %d parameters",
                      HD_HTTP_PARAMS_MAX);
    target->params[target->param_count++] = param;
    return HD_OK;
}

enum hd_status hd_http_target_parse(const char *raw, struct hd_http_target *target)
{
    char *out = target->text;
    enum hd_status st;

    target->param_count = target->path_bytes = 0;
    target->text[0] = '\0';
    if (strlen(raw) > HD_HTTP_TARGET_MAX)
        return hd_err(HD_LIMIT, "the request target has more than %d bytes", HD_HTTP_TARGET_MAX);
    if (*raw != '/')
        return hd_err(HD_INVALID, "the request target is no path: it must begin with /");
    st = decode(&raw, "?", &out, true);
    if (!st)
        st = check_path(target->text);
    target->path_bytes = strlen(target->text);
    if (!st && *raw == '?') {
        raw++;
        while (!st && *raw) {
            st = take_param(&raw, &out, target);
            if (!st && *raw == '&' && !*++raw)
                st = hd_err(HD_INVALID, "the query of the request ends with &");
        }
    }
    return st;
}

const char *hd_http_target_param(const struct hd_http_target *target, const char *name)
{
    for (size_t i = 0; i < target->param_count; i++)
        if (strcmp(target->params[i].name, name) == 0)
            return target->params[i].value;
    return NULL;
}
