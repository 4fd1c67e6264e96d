/* http: a listener for HTTP requests: GET for metrics and the dashboard with its data; HEAD, which
 * is handled as a GET and replied to without a body; also POST if the program accepts bodies, for a
 * served model.
 *
 * A request is answered with one reply, or with a stream of bytes. Each connection carries one
 * request, so no second request can be hidden inside the first one.
 *
 *   browser, Prometheus      the listener's thread (libmicrohttpd)    the loop's thread
 *   -- request ------------->  headers checked (check.h, target.h)
 *                              suspended  ----------------------->  authorize, on_request
 *   <- reply ----------------  sends  <---------------------------  hd_http_reply
 *                                                              or   hd_http_stream_write ..
 *
 * libmicrohttpd itself answers input that is not HTTP or has too large headers, with a page of
 * HTML; all other failures are answered by write_failure.
 *
 * Bounds: connections in total and per address, where the oldest one without an authorised request
 * is closed for a new one (rpc/unauthenticated.h); bytes of headers, of a body and of a stream's
 * queue; time until headers and body are complete and until a reply is read (slow clients are
 * disconnected). A body is read only after its caller is authorised. A body must be JSON of
 * announced length, so a browser sends one for a page of another site only after a CORS preflight,
 * which is refused.
 *
 * Security: `unix:PATH` is a socket with mode 0600. `HOST:PORT` beyond loopback needs TLS and
 * callers with a token; else the listener does not open (HD_DENIED). Replies forbid the browser to
 * load anything from other sites.
 *
 * Used by: controller, daemon, serve.   Uses: base, rpc (syntax of addresses), libuv, GnuTLS, and
 * libmicrohttpd, whose header only this package includes.
 * Threads: all functions and callbacks on the loop's thread. The listener has one thread of its
 * own, which accesses only its connections and requests, under a lock.
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

/* The caller of a request. */
struct hd_http_caller {
    bool is_unix;
    uid_t uid;         /* uid of a Unix socket's peer; (uid_t)-1 for TCP */
    const char *token; /* token in the header Authorization: Bearer; NULL: none */
};

struct hd_http_options {
    const char *address; /* address to listen at, unix:PATH or HOST:PORT */
    /* further names that the Host header may have, besides localhost, this machine's host name and
     * numeric addresses */
    const char *const *hosts;
    size_t host_count;
    const char *cert_path, *key_path; /* PEM files; NULL: no TLS; ignored for unix:PATH */
    bool asks_tokens;                 /* `authorize` refuses callers without a token */
    /* Authorises the caller of a request for a `guarded` path; other paths, such as the dashboard's
     * page, have no data. HD_DENIED: the reply is 401, with hd_err_message(). */
    enum hd_status (*authorize)(void *user, const struct hd_http_caller *caller);
    /* Returns whether requests for a path need authorisation. NULL: all paths do. */
    bool (*guarded)(void *user, const char *path);
    void (*on_request)(void *user, struct hd_http_request *request);
    void *user;
    size_t body_bytes_max; /* limit of a POST's body; 0: no POST is accepted */
    /* Writes the body of a failure's reply; `word` is the kind of failure ("not_found"). Called on
     * both threads; may only use its arguments. NULL: {"error":{"status":word,"message":message}}.
     */
    void (*write_failure)(struct hd_text *out, int status, const char *word, const char *message);
    /* limits of one listener; 0: the default */
    /* default 64; half of them from one address. If all are used by authorised callers, 16 more
     * connections are answered with 503, and further ones closed */
    size_t connections_max;
    /* limit of the time until the request's headers are complete, ms; 0: 10 s */
    int64_t head_ms;
    /* limit of the time from then until the body is complete, ms; 0: 30 s */
    int64_t body_ms;
    int64_t reply_ms;        /* limit of the time until the reply is sent, ms; 0: 60 s */
    size_t stream_bytes_max; /* limit of the bytes queued for one stream; 0: 256 KiB */
};

/* Opens the listener and starts its thread. HD_DENIED: beyond loopback, but without TLS or tokens.
 * HD_CONFLICT: another program listens at the address. */
enum hd_status hd_http_new(uv_loop_t *loop, const struct hd_http_options *options,
                           struct hd_http **ret_http);
/* Ends all connections, waits for the listener's thread, and frees the listener; then calls
 * on_closed (may be NULL). Unanswered requests stay valid and must still be answered, streams still
 * be ended. http NULL: only calls on_closed, at once. */
void hd_http_close(struct hd_http *http, void (*on_closed)(void *user), void *user);

int hd_http_port(const struct hd_http *http); /* returns the TCP port; 0 for unix: */

/* Replaces the TLS certificate for new connections; open connections keep theirs. Without TLS does
 * nothing. HD_INVALID: not PEM, or the key belongs to another certificate; the previous certificate
 * stays in use. */
enum hd_status hd_http_set_tls(struct hd_http *http, const char *cert_path, const char *key_path);

/* Counters since the listener was opened. */
struct hd_http_stats {
    /* replies by the first digit of their status; [0]: closed without a reply */
    uint64_t answered[6];
    uint64_t connections; /* number of connections open now */
    uint64_t streams;     /* number of streams open now */
};
void hd_http_get_stats(struct hd_http *http, struct hd_http_stats *ret_stats);

/* ---- a request: valid until it is answered -------------------------------------------------- */

bool hd_http_is_post(const struct hd_http_request *request);
/* Returns the body of a POST; a NUL follows its *ret_bytes bytes. */
const char *hd_http_body(const struct hd_http_request *request, size_t *ret_bytes);
/* percent codes are decoded; begins with / */
const char *hd_http_path(const struct hd_http_request *request);
/* Returns the value of a parameter of the request's query; NULL: absent. */
const char *hd_http_param(const struct hd_http_request *request, const char *name);
size_t hd_http_param_count(const struct hd_http_request *request);
const char *hd_http_param_name(const struct hd_http_request *request, size_t index);

/* Replies with the text, whose bytes it takes: `text` is empty afterwards. If building the text
 * failed, replies with 503. */
void hd_http_reply(struct hd_http_request *request, int status, const char *type,
                   struct hd_text *text);
/* Replies with bytes that live as long as the program. */
void hd_http_reply_static(struct hd_http_request *request, const char *type, const void *bytes,
                          size_t count);
/* Replies with a failure and its message (options.write_failure); HD_DENIED becomes 403. */
void hd_http_fail(struct hd_http_request *request, enum hd_status st);
int hd_http_status(enum hd_status st); /* returns the HTTP status with which it replies */
/* Replies with a failure, as hd_http_fail, but with this status. */
void hd_http_fail_as(struct hd_http_request *request, int status, enum hd_status st);

/* Calls on_gone within a second after the client disconnects before the request is answered; the
 * request is no longer valid then. A client that has closed only its sending side counts as
 * disconnected. */
void hd_http_watch(struct hd_http_request *request, void (*on_gone)(void *user), void *user);

/* ---- a stream ------------------------------------------------------------------------------- */

/* Begins a reply of unlimited length. on_gone is called when the client has disconnected; the
 * request is invalid then. */
void hd_http_stream_begin(struct hd_http_request *request, const char *type,
                          void (*on_gone)(void *user), void *user);
/* Queues a copy of the bytes for sending. HD_LIMIT: the client reads too slowly, and nothing was
 * queued. */
enum hd_status hd_http_stream_write(struct hd_http_request *request, const void *bytes,
                                    size_t count);
/* Ends the stream after the queued bytes are sent; the request is invalid at once, and on_gone is
 * not called. */
void hd_http_stream_end(struct hd_http_request *request);

#endif
