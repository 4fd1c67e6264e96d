#include "http/check.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"

enum {
    BAD_REQUEST = 400,
    FORBIDDEN = 403,
    NOT_ALLOWED = 405,
    NO_LENGTH = 411,
    TOO_LARGE = 413,
    NO_JSON = 415,
    MISDIRECTED = 421,
    NOT_SPOKEN = 505
};

/* Copies the host name from a Host header: "NAME", "NAME:PORT", "[IPV6]" or "[IPV6]:PORT". Returns
 * false if it has another form. */
static bool split_host(const char *host, char ret_name[HD_HTTP_NAME_MAX + 1])
{
    const bool bracketed = *host == '[';
    const char *begin = bracketed ? host + 1 : host;
    const size_t length = strcspn(begin, bracketed ? "]" : ":");
    const char *rest = begin + length;
    int64_t port;

    if (length == 0 || length > HD_HTTP_NAME_MAX || (bracketed && *rest++ != ']'))
        return false;
    memcpy(ret_name, begin, length);
    ret_name[length] = '\0';
    return !*rest || (*rest == ':' && hd_text_to_int64(rest + 1, 0, 65535, &port) == HD_OK);
}

/* Returns whether the name is a numeric address, which cannot be the name of another site. */
static bool is_address(const char *name)
{
    unsigned char bytes[16];

    return inet_pton(AF_INET, name, bytes) == 1 || inet_pton(AF_INET6, name, bytes) == 1;
}

static bool is_own(const char *name, const struct hd_http_names *names)
{
    if (strcasecmp(name, "localhost") == 0 || is_address(name))
        return true;
    for (size_t i = 0; i < names->count; i++)
        if (strcasecmp(name, names->name[i]) == 0)
            return true;
    return false;
}

/* Returns whether the header Origin is "SCHEME://HOST" with the HOST of the header Host. */
static bool is_same_site(const struct hd_http_head *head)
{
    const char *scheme = head->tls ? "https://" : "http://";
    const size_t length = strlen(scheme);

    return strncasecmp(head->origin, scheme, length) == 0 &&
           strcasecmp(head->origin + length, head->host) == 0;
}

/* Returns whether the user followed a link from another site: the reply fills the window, so that
 * site's page cannot read it. A frame, an image or a script has another destination. */
static bool is_followed_link(const struct hd_http_head *head)
{
    return strcmp(head->method, "GET") == 0 && !head->origin && head->fetch_mode &&
           strcmp(head->fetch_mode, "navigate") == 0 && head->fetch_dest &&
           strcmp(head->fetch_dest, "document") == 0;
}

#define REFUSE(status, ...)                                            \
    do {                                                               \
        (void)snprintf(ret_message, HD_HTTP_REFUSAL_MAX, __VA_ARGS__); \
        return (status);                                               \
    } while (0)

/* Returns whether a Content-Type is "application/json", with or without parameters. HTML forms
 * cannot send this type. */
static bool is_json(const char *type)
{
    static const char json[] = "application/json";
    const size_t length = sizeof json - 1;

    return strncasecmp(type, json, length) == 0 && (!type[length] || strchr("; \t", type[length]));
}

static int check_method(const struct hd_http_head *head, size_t *ret_body_bytes,
                        char ret_message[HD_HTTP_REFUSAL_MAX])
{
    const bool is_post = strcmp(head->method, "POST") == 0;
    /* libmicrohttpd leaves out the body of the reply to a HEAD */
    const bool reads = strcmp(head->method, "GET") == 0 || strcmp(head->method, "HEAD") == 0;
    int64_t length = 0;

    *ret_body_bytes = 0;
    if (!head->body_bytes_max && !reads)
        REFUSE(NOT_ALLOWED,
               "only GET and HEAD are allowed here: this listener only reads; to change something, "
               "use the heddle command");
    if (!reads && !is_post)
        REFUSE(NOT_ALLOWED, "only GET, HEAD and POST are allowed here");
    if (head->length && (head->length[strspn(head->length, "0123456789")] ||
                         hd_text_to_int64(head->length, 0, INT64_MAX, &length)))
        REFUSE(BAD_REQUEST, "the header Content-Length is malformed");
    if (!is_post && (head->is_coded || length))
        REFUSE(BAD_REQUEST, "the request has a body; a %s here has none", head->method);
    if (!is_post)
        return 0;
    if (head->is_coded || !head->length)
        REFUSE(NO_LENGTH, "the length of the body must be said (Content-Length)");
    if ((uint64_t)length > head->body_bytes_max)
        REFUSE(TOO_LARGE, "the body has %lld bytes, and at most %zu are taken", (long long)length,
               head->body_bytes_max);
    if (!head->type || !is_json(head->type))
        REFUSE(NO_JSON,
               "the body must be JSON; curl says so with -H 'Content-Type: application/json'");
    *ret_body_bytes = (size_t)length;
    return 0;
}

int hd_http_check_head(const struct hd_http_head *head, const struct hd_http_names *names,
                       size_t *ret_body_bytes, char ret_message[HD_HTTP_REFUSAL_MAX])
{
    char name[HD_HTTP_NAME_MAX + 1];
    int status;

    ret_message[0] = '\0';
    if (strcmp(head->version, "HTTP/1.1") != 0 && strcmp(head->version, "HTTP/1.0") != 0)
        REFUSE(NOT_SPOKEN, "only HTTP/1.1 is supported here");
    if (head->repeated)
        REFUSE(BAD_REQUEST, "a header that may come once has come twice");
    status = check_method(head, ret_body_bytes, ret_message);
    if (status)
        return status;
    if (!head->host || !split_host(head->host, name))
        REFUSE(BAD_REQUEST, "the header Host is missing or malformed");
    if (!is_own(name, names))
        REFUSE(MISDIRECTED,
               "Host names \"%.100s\", which this listener does not have; use localhost, an "
               "address in "
               "numbers, or start the program with --http-host %.100s",
               name, name);
    if (head->origin && !is_same_site(head))
        REFUSE(FORBIDDEN, "a page of another site (Origin: %.100s) may not ask here", head->origin);
    if (head->fetch_site && strcmp(head->fetch_site, "same-origin") != 0 &&
        strcmp(head->fetch_site, "none") != 0 && !is_followed_link(head))
        REFUSE(FORBIDDEN, "a page of another site may not ask here (Sec-Fetch-Site: %.40s)",
               head->fetch_site);
    return 0;
}
