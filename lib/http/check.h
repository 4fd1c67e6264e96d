/* check: whether the head of an HTTP request is let in, before anything is done for it.
 *
 * A page of another site that a user has open may send requests to a listener on this machine. What it
 * may read of the answer is decided by names: the browser takes a listener for the page's own site if
 * the site's name leads to this machine (DNS rebinding). So a request must name this listener in Host,
 * by an address or by a name that the listener knows, and a request that a page of another site has
 * made (Origin, Sec-Fetch-Site) is refused. Browsers set these headers; no page can change them.
 *
 * Used by: http.   Uses: base.   Threads: any; pure.
 */
#ifndef HD_HTTP_CHECK_H
#define HD_HTTP_CHECK_H

#include <stdbool.h>
#include <stddef.h>

enum { HD_HTTP_NAMES_MAX = 16, HD_HTTP_NAME_MAX = 255, HD_HTTP_REFUSAL_MAX = 400 };

/* Names of the listener, beside localhost and addresses in numbers. */
struct hd_http_names {
    char name[HD_HTTP_NAMES_MAX][HD_HTTP_NAME_MAX + 1];
    size_t count;
};

struct hd_http_head {
    const char *method, *version; /* "GET", "HTTP/1.1" */
    const char *type, *length;    /* Content-Type, Content-Length; NULL: not sent */
    const char *host, *origin;    /* NULL: not sent */
    const char *fetch_site, *fetch_mode,
        *fetch_dest;       /* Sec-Fetch-Site, -Mode, -Dest; NULL: not sent */
    bool repeated;         /* one of these, or Authorization, came more than once */
    bool is_coded;         /* Transfer-Encoding: a body of a length that is not said */
    size_t body_bytes_max; /* of a POST; 0: none is taken */
    bool tls;
};

/* 0: it is let in, and a body of *ret_body_bytes follows; else the status of the answer, and a
 * message for people. */
int hd_http_check_head(const struct hd_http_head *head, const struct hd_http_names *names,
                       size_t *ret_body_bytes, char ret_message[HD_HTTP_REFUSAL_MAX]);

#endif
