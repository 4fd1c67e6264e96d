/* check: decides from the headers of an HTTP request whether it is accepted, before any work is
 * done.
 *
 * A page of another site, open in the user's browser, may send requests to a listener on this
 * machine. Whether it may read the reply depends on names: the browser takes the listener for the
 * page's own site if the site's name resolves to this machine (DNS rebinding). So a request must
 * name this listener in Host, by an address or by a name that the listener has, and a request made
 * by a page of another site (Origin, Sec-Fetch-Site) is refused. Browsers set these headers; no
 * page can change them.
 *
 * Used by: http.   Uses: base.   Threads: any; pure.
 */
#ifndef HD_HTTP_CHECK_H
#define HD_HTTP_CHECK_H

#include <stdbool.h>
#include <stddef.h>

enum { HD_HTTP_NAMES_MAX = 16, HD_HTTP_NAME_MAX = 255, HD_HTTP_REFUSAL_MAX = 400 };

/* Names of the listener, besides localhost and numeric addresses. */
struct hd_http_names {
    char name[HD_HTTP_NAMES_MAX][HD_HTTP_NAME_MAX + 1];
    size_t count;
};

struct hd_http_head {
    const char *method, *version; /* HTTP method and version: "GET", "HTTP/1.1" */
    const char *type, *length;    /* Content-Type, Content-Length; NULL: not sent */
    const char *host, *origin;    /* Host, Origin; NULL: not sent */
    const char *fetch_site, *fetch_mode,
        *fetch_dest;       /* Sec-Fetch-Site, -Mode, -Dest; NULL: not sent */
    bool repeated;         /* Authorization or one of the headers above was sent more than once */
    bool is_coded;         /* the request has Transfer-Encoding: a body of unknown length */
    size_t body_bytes_max; /* limit of a POST's body; 0: POST is refused */
    bool tls;
};

/* Checks the headers of a request. Returns 0 if the request is accepted; then a body of
 * *ret_body_bytes follows. Otherwise returns the HTTP status of the reply, with a message for
 * people. */
int hd_http_check_head(const struct hd_http_head *head, const struct hd_http_names *names,
                       size_t *ret_body_bytes, char ret_message[HD_HTTP_REFUSAL_MAX]);

#endif
