/* http: a listener for requests: GET, for metrics and the dashboard with its data, and where the
 * program takes bodies also POST, for a model that is served.
 *
 * A request is answered with one reply, or with a stream of bytes. Each connection carries one
 * request, so no second request can hide in the first one.
 *
 *   browser, Prometheus          the listener's thread (libmicrohttpd)        the loop's thread
 *   -- request ------------->    head checked (check.h, target.h)
 *                                waits  ------------------------------->  authorize, on_request
 *   <- answer ---------------    sends  <-------------------------------  hd_http_reply
 *                                                                    or   hd_http_stream_write ..
 *
 * What is no HTTP, or has too large a head, is answered by libmicrohttpd itself, with a page of
 * HTML; all other failures by write_failure.
 *
 * Everything is bounded: connections, of one address as well, where the oldest that was not
 * authorised makes room for a new one (rpc/unauthenticated.h); bytes of a head, a body and of a
 * stream's queue; seconds until head and body are complete and until a reply is taken (a slow
 * client is cut off). A body is read when its caller is authorised. A body is JSON whose length the
 * head says, so a page of another site cannot send one without being asked first (CORS), which is
 * refused.
 *
 * Security: `unix:PATH` is a socket with mode 0600. `HOST:PORT` beyond loopback needs TLS and a
 * caller that shows a token; without them the listener does not open (HD_DENIED). Responses forbid the
 * browser to load anything from elsewhere.
 *
 * Used by: controller, daemon, serve.   Uses: base, rpc (the form of addresses), libuv, GnuTLS, and
 * libmicrohttpd, whose header is included in this room alone.   Threads: all functions and
 * callbacks on the loop's thread. The listener has one thread of its own, which sees nothing but its
 * connections and requests, under a lock.
 */
#ifndef HD_HTTP_HTTP_H
#define HD_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <uv.h>

#include "base/status.h"
#include "base/text.h"

struct hd_http;
struct hd_http_request;

/* Who asks. */
struct hd_http_caller {
    bool is_unix;
    uid_t uid;         /* of a Unix socket's peer; else (uid_t)-1 */
    const char *token; /* of Authorization: Bearer; NULL: none */
};

struct hd_http_options {
    const char *address;      /* unix:PATH or HOST:PORT */
    const char *const *hosts; /* further names that Host may have: this machine's own, beside
                               * localhost, its host name, and addresses in numbers */
    size_t host_count;
    const char *cert_path, *key_path; /* PEM; NULL: no TLS. Not for unix: */
    bool asks_tokens;                 /* whether authorize refuses callers without a token */
    /* HD_DENIED: the answer is 401, with hd_err_message(). Called for each request of a `guarded`
     * path; the others, such as the dashboard's page, have no data. */
    enum hd_status (*authorize)(void *user, const struct hd_http_caller *caller);
    bool (*guarded)(void *user, const char *path); /* NULL: all are */
    void (*on_request)(void *user, struct hd_http_request *request);
    void *user;
    size_t body_bytes_max; /* of a POST; 0: GET alone is taken */
    /* Writes the body of an answer of failure, for status and message; `word` names the kind of
     * failure ("not_found"). Called on both threads; may only look at its arguments. NULL:
     * {"error":{"status":word,"message":message}}. */
    void (*write_failure)(struct hd_text *out, int status, const char *word, const char *message);
    /* 0 means the default */
    size_t connections_max;  /* 64; half of them from one address. Where all of them are authorised
                                callers', 16 more are answered with 503, and those beyond closed */
    int64_t head_ms;         /* 10 s: until a request's head is complete */
    int64_t body_ms;         /* 30 s: from there until its body is */
    int64_t reply_ms;        /* 60 s: until the reply is sent */
    size_t stream_bytes_max; /* 256 KiB: of a stream's queue */
};

/* Listens and starts the listener's thread. HD_DENIED: TLS or tokens are missing; HD_CONFLICT:
 * another program listens there. */
enum hd_status hd_http_new(uv_loop_t *loop, const struct hd_http_options *options,
                           struct hd_http **ret_http);
/* Ends all connections, waits for the listener's thread, and frees; then on_closed (may be NULL) is
 * called. Requests that are not answered stay valid: answer them, and end the streams, as ever.
 * NULL is fine: on_closed is called at once. */
void hd_http_close(struct hd_http *http, void (*on_closed)(void *user), void *user);

int hd_http_port(const struct hd_http *http); /* 0 for unix: */

/* Shows another certificate to those who connect from now on; connections stay. Without TLS nothing
 * happens. HD_INVALID: not PEM, or the key is another's; the one before stays. */
enum hd_status hd_http_set_tls(struct hd_http *http, const char *cert_path, const char *key_path);

/* Numbers since the listener was opened. */
struct hd_http_stats {
    uint64_t answered[6]; /* answers by the first digit of their status; [0]: cut off without one */
    uint64_t connections; /* open now */
    uint64_t streams;     /* open now */
};
void hd_http_get_stats(struct hd_http *http, struct hd_http_stats *ret_stats);

/* ---- a request: valid until it is answered -------------------------------------------------- */

bool hd_http_is_post(const struct hd_http_request *request);
/* The body of a POST, which ends with a NUL that does not count. */
const char *hd_http_body(const struct hd_http_request *request, size_t *ret_bytes);
const char *hd_http_path(const struct hd_http_request *request); /* decoded, begins with / */
const char *hd_http_param(const struct hd_http_request *request, const char *name); /* or NULL */
size_t hd_http_param_count(const struct hd_http_request *request);
const char *hd_http_param_name(const struct hd_http_request *request, size_t index);

/* Answers, and takes the text's bytes (the text is empty then). A text that has failed is answered
 * with 503. */
void hd_http_reply(struct hd_http_request *request, int status, const char *type,
                   struct hd_text *text);
/* Answers with bytes that live as long as the program. */
void hd_http_reply_static(struct hd_http_request *request, const char *type, const void *bytes,
                          size_t count);
/* Answers a failure with its message (options.write_failure); HD_DENIED: 403. */
void hd_http_fail(struct hd_http_request *request, enum hd_status st);
/* The same with this status. */
void hd_http_fail_as(struct hd_http_request *request, int status, enum hd_status st);

/* Until it is answered: on_gone when its client has gone, which is seen within a second. Then the
 * request is no longer valid. A client that has closed its side alone counts as gone. */
void hd_http_watch(struct hd_http_request *request, void (*on_gone)(void *user), void *user);

/* ---- a stream ------------------------------------------------------------------------------- */

/* Begins an answer of any length. on_gone: the client has gone; the request is no longer valid. */
void hd_http_stream_begin(struct hd_http_request *request, const char *type,
                          void (*on_gone)(void *user), void *user);
/* Queues a copy. HD_LIMIT: the client reads too slowly, and nothing was queued. */
enum hd_status hd_http_stream_write(struct hd_http_request *request, const void *bytes,
                                    size_t count);
/* Ends it behind what is queued; the request is no longer valid, on_gone is not called. */
void hd_http_stream_end(struct hd_http_request *request);

#endif
