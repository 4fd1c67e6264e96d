/* http_internal: shared by the files of lib/http: a request and its states. `lock` guards the
 * members that both threads use; the transitions that pass a request between the threads are named
 * in [].
 *
 *   FRESH --headers complete, refused--> ANSWERED --sent--> freed
 *     |
 *     '--suspended, put into `arrived` [async]--> HANDED --hd_http_reply [resume]--> ANSWERED
 *                                                   |
 *                                                   '--hd_http_stream_begin [resume]--> STREAM
 *                                STREAM --client gone, put into `gone` [async]--> on_gone, freed
 *                                       --hd_http_stream_end [resume]--> sent, freed
 *
 * A request has two owners: the listener's thread until libmicrohttpd has completed it, the loop
 * from HANDED until it has answered. The last owner frees the request.
 *
 *   http.c     opens and closes the listener       accept.c    accepts connections (loop's thread)
 *   answer.c   makes responses (both threads)      handler.c   callbacks of libmicrohttpd
 *                                                              (listener's thread)
 *   request.c  http.h's functions about requests (loop's thread)
 */
#ifndef HD_HTTP_INTERNAL_H
#define HD_HTTP_INTERNAL_H

#include "http/http.h"

#include <gnutls/abstract.h>
#include <microhttpd.h>
#include <stdarg.h>
#include <sys/socket.h>

#include "http/certificate.h"
#include "http/listen.h"
#include "http/target.h"
#include "rpc/rpc.h"
#include "rpc/unauthenticated.h"

/* Versions of libmicrohttpd: Debian 12 has 0.9.75, Ubuntu 24.04 and Debian 13 have 1.0. */
_Static_assert(MHD_VERSION >= 0x00097500, "libmicrohttpd 0.9.75 or newer is needed");

enum {
    CONNECTIONS_DEFAULT = 64,
    HEAD_MS_DEFAULT = 10000,
    BODY_MS_DEFAULT = 30000,
    REPLY_MS_DEFAULT = 60000,
    STREAM_BYTES_DEFAULT = 256 * 1024,
    /* limit of the bytes of request headers, and of the reply's buffer, per connection */
    CONNECTION_BYTES = 16 * 1024,
    STREAM_PIECE_BYTES = 16 * 1024,
    CHECK_MS = 1000, /* period of the check for slow or disconnected clients */
    /* limit of connections answered with 503 at a time, because other limits are reached */
    REFUSALS = 16,
    /* limit of unauthenticated connections in libmicrohttpd, in multiples of connections_max */
    INSIDE = 2,
    /* limit of connections that were ended but that libmicrohttpd has not closed yet */
    ENDING = 64,
};

#define HTTP_TOO_MANY                                                                         \
    "there are as many connections as there may be, of this address or in all; wait for the " \
    "end of another request"

enum request_state { FRESH, HANDED, ANSWERED, STREAM };

/* One connection, which carries one request. */
struct http_connection {
    /* first member: pointers to it are cast to the connection; valid with `counted` */
    struct hd_unauth_connection connection;
    struct http_connection *before, *next;
    int fd;
    struct sockaddr_storage from;
    socklen_t from_bytes;
    bool counted;     /* the connection is counted in hd_http.table */
    bool outside;     /* the connection is not yet passed to libmicrohttpd */
    bool adopted;     /* libmicrohttpd has the connection, and http_adopt has found it */
    bool too_many;    /* the connection is over a limit: it gets a 503 */
    int64_t since_ms; /* time when the connection's current phase began (monotonic) */
    enum { PHASE_HEAD, PHASE_BODY, PHASE_WORK, PHASE_REPLY, PHASE_STREAM } phase;
    /* current request of the connection; NULL: none, or completed */
    struct hd_http_request *request;
};

struct hd_http_request {
    struct hd_http *http;
    struct hd_http_request *next; /* next request in `arrived` or `gone` */
    struct hd_http_request *all_before, *all_next;
    struct MHD_Connection *connection;
    struct http_connection *slot;
    enum request_state state;
    bool seen; /* the request's headers were checked */
    bool is_post, is_head;
    size_t body_left; /* bytes of the request's body that are still to come */
    bool admitted;    /* the caller was authorised before the body was read */
    bool reads_body;
    struct hd_text body;
    bool by_handler, by_loop; /* owners of the request that remain: the listener's thread; the
                                 loop */
    bool suspended, ended, completed;
    bool left; /* stream: the loop has ended it */
    char token[HD_RPC_TOKEN_MAX + 1];
    bool has_token, is_unix;
    uid_t uid;
    int status;
    struct MHD_Response *response; /* reply, in states ANSWERED and STREAM */
    struct hd_text queue;          /* bytes of a STREAM; those from `sent` on are unsent */
    size_t sent;
    void (*on_gone)(void *user);
    void *user;
    char *raw;
    struct hd_http_target target;
};

struct hd_http {
    uv_loop_t *loop;
    struct hd_http_options options;
    struct hd_http_names names;
    struct hd_http_listener listener;
    struct hd_http_certificate certificate; /* initialised if `tls` */
    struct MHD_Daemon *daemon;
    uv_async_t async;
    uv_timer_t check;
    uv_poll_t poll; /* the listening socket; open while `accepting`, like round and retry */
    uv_timer_t round, retry;
    bool accepting;
    int open_handles;
    bool tls;
    void (*on_closed)(void *user);
    void *closed_user;

    /* members from here on: under `lock` */
    uv_mutex_t lock;
    struct hd_http_request *arrived, **arrived_end, *gone, *all;
    struct http_connection *connections; /* all connections, newest first */
    struct hd_unauth_table *table;
    size_t refused; /* number of connections with too_many */
    struct hd_http_stats stats;
    bool closing;
    /* the listener's thread has ended and the handles are closed; the struct is freed with the last
     * request */
    bool closed;
};

/* ---- request.c --------------------------------------------------------------------------------*/

/* Ends the ownership of a request by the listener's thread (handler true) or the loop (false); the
 * last owner frees the request. Call it without the lock. */
void http_request_let_go(struct hd_http_request *r, bool handler);
void http_request_resume(struct hd_http_request *r); /* the caller holds the lock */
void http_request_enter(struct hd_http_request *r, int phase);
void http_free(struct hd_http *http);
/* Callbacks of libuv, on the loop's thread: handle requests that arrived or whose client is gone;
 * disconnect slow clients.
 */
void http_on_wake(uv_async_t *async);
void http_check_clients(uv_timer_t *timer);

/* ---- accept.c ---------------------------------------------------------------------------------*/

enum hd_status http_accept_start(struct hd_http *http);
/* Closes the handles of accept.c, calling on_closed for each, and the connections that
 * libmicrohttpd does not have yet. Returns the number of handles. */
int http_accept_stop(struct hd_http *http, uv_close_cb on_closed);
/* The caller of the functions below holds the lock. */
/* Returns the connection with this descriptor; NULL: none. */
struct http_connection *http_adopt(struct hd_http *http, int fd);
/* Removes a connection that libmicrohttpd has closed. */
void http_forget(struct hd_http *http, struct http_connection *c);
void http_end(struct hd_http *http, struct http_connection *c);
/* Marks the connection as known: a request of it was authorised. Returns false if too many
 * connections are known already. c may be NULL, also below. */
bool http_prove(struct hd_http *http, struct http_connection *c);
void http_break(struct http_connection *c, int64_t now_ms);

/* ---- answer.c ---------------------------------------------------------------------------------*/

/* Return a response for libmicrohttpd; NULL: no memory. http_make_response takes the bytes of
 * `text`. */
struct MHD_Response *http_make_response(const struct hd_http *http, int status, const char *type,
                                        struct hd_text *text);
struct MHD_Response *http_make_failure(const struct hd_http *http, int status, const char *word,
                                       const char *message);
void http_add_headers(const struct hd_http *http, struct MHD_Response *response, int status,
                      const char *type);

/* ---- handler.c: callbacks of libmicrohttpd ----------------------------------------------------*/

/* Returns the limit of connections from one address. */
size_t http_limit_of_one(const struct hd_http *http);
void http_drop_log(void *cls, const char *fmt, va_list ap);
void http_on_connection(void *cls, struct MHD_Connection *connection, void **socket_context,
                        enum MHD_ConnectionNotificationCode code);
void *http_on_target(void *cls, const char *raw, struct MHD_Connection *connection);
size_t http_keep_codes(void *cls, struct MHD_Connection *connection, char *text);
enum MHD_Result http_on_access(void *cls, struct MHD_Connection *connection, const char *url,
                               const char *method, const char *version, const char *upload,
                               size_t *upload_bytes, void **context);
void http_on_completed(void *cls, struct MHD_Connection *connection, void **context,
                       enum MHD_RequestTerminationCode code);
ssize_t http_read_stream(void *cls, uint64_t position, char *bytes, size_t max);
int http_give_certificate(gnutls_session_t session, const struct gnutls_cert_retr_st *info,
                          gnutls_pcert_st **certs, unsigned *count, gnutls_ocsp_data_st **ocsp,
                          unsigned *ocsp_count, gnutls_privkey_t *key, unsigned *flags);

#endif
