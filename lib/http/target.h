/* target: parses the target of an HTTP request, such as "/api/v1/jobs?state=running".
 *
 * Accepts only the origin form (RFC 9112, 3.2.1), and nothing that two programs could parse
 * differently. Refused are bytes that are not printable ASCII, a wrong percent code, an encoded
 * slash or control character, text that is not UTF-8, empty segments, "." and "..", and a repeated
 * parameter.
 *
 * Used by: http, its users.   Uses: base.   Threads: any; a target is a plain value.
 */
#ifndef HD_HTTP_TARGET_H
#define HD_HTTP_TARGET_H

#include <stddef.h>

#include "base/status.h"

enum {
    HD_HTTP_TARGET_MAX = 1024, /* limit of the bytes of a target before decoding */
    HD_HTTP_PARAMS_MAX = 16,
};

struct hd_http_target {
    char text[HD_HTTP_TARGET_MAX + 2]; /* decoded: path, names and values, each with its NUL */
    size_t path_bytes;                 /* length of the path, which is at the start of `text` */
    struct hd_http_pair {
        const char *name, *value; /* one parameter; both point into `text` */
    } params[HD_HTTP_PARAMS_MAX];
    size_t param_count;
};

/* Parses a target. HD_INVALID, or HD_LIMIT (too long, or too many parameters): the message says
 * what is wrong. The result points into itself: do not copy it. */
enum hd_status hd_http_target_parse(const char *raw, struct hd_http_target *ret_target);

/* Returns the parameter's value; NULL: absent. */
const char *hd_http_target_param(const struct hd_http_target *target, const char *name);

#endif
