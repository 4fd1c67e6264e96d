/* http_internal: what the files of this room share: a request on its way. `lock` guards what both
 * threads use; the arrows that cross between the threads are named.
 *
 *   FRESH --head is in, refused--> ANSWERED --sent--> freed
 *     |
 *     '--suspended, on `arrived` [async]--> HANDED --hd_http_reply [resume]--> ANSWERED
 *                                              |
 *                                              '--hd_http_stream_begin [resume]--> STREAM
 *                                STREAM --client gone, on `gone` [async]--> on_gone, freed
 *                                       --hd_http_stream_end [resume]--> sent, freed
 *
 * Two own a request: the listener's thread until libmicrohttpd has completed it, the loop from HANDED
 * until it has answered. The last one frees it.
 *
 *   http.c     opening and closing        accept.c   which connections come in, on the loop's
 *                                         handler.c     what libmicrohttpd calls, on the listener's thread
 *   answer.c   responses, on both         request.c  http.h's functions of a request, on the loop's
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

/* Debian 12 has 0.9.75, Ubuntu 24.04 and Debian 13 have 1.0. */
_Static_assert(MHD_VERSION >= 0x00097500, "libmicrohttpd 0.9.75 or newer is needed");

enum {
    CONNECTIONS_DEFAULT = 64,
    HEAD_MS_DEFAULT = 10000,
    BODY_MS_DEFAULT = 30000,
    REPLY_MS_DEFAULT = 60000,
    STREAM_BYTES_DEFAULT = 256 * 1024,
    CONNECTION_BYTES = 16 * 1024, /* head, and buffer of what is sent */
    STREAM_PIECE_BYTES = 16 * 1024,
    CHECK_MS = 1000, /* between two looks for clients that are slow, or have gone */
    REFUSALS = 16,   /* connections over a limit that are told so at a time */
    INSIDE =
        2, /* times connections_max may be unauthenticated connections that libmicrohttpd has */
    ENDING = 64, /* connections that were ended, and that libmicrohttpd has not closed yet */
};

#define HTTP_TOO_MANY                                                                         \
    "there are as many connections as there may be, of this address or in all; wait for the " \
    "end of another request"

enum request_state { FRESH, HANDED, ANSWERED, STREAM };

/* One connection, which carries one request. */
struct http_connection {
    struct hd_unauth_connection connection; /* first: the table hands it back; with `counted` */
    struct http_connection *before, *next;
    int fd;
    struct sockaddr_storage from;
    socklen_t from_bytes;
    bool counted;     /* it is in the table */
    bool outside;     /* libmicrohttpd does not have it yet */
    bool adopted;     /* libmicrohttpd has it, and http_adopt has found it */
    bool too_many;    /* there is no place for it: it is refused */
    int64_t since_ms; /* monotonic time at which this phase began */
    enum { PHASE_HEAD, PHASE_BODY, PHASE_WORK, PHASE_REPLY, PHASE_STREAM } phase;
    struct hd_http_request *request; /* NULL: none, or its answer is over */
};

struct hd_http_request {
    struct hd_http *http;
    struct hd_http_request *next; /* in `arrived` or `gone` */
    struct hd_http_request *all_before, *all_next;
    struct MHD_Connection *connection;
    struct http_connection *slot;
    enum request_state state;
    bool seen; /* the head was checked */
    bool is_post;
    size_t body_left; /* bytes that are still to come */
    bool admitted;    /* authorised before its body */
    bool reads_body;
    struct hd_text body;
    bool by_handler, by_loop; /* owners */
    bool suspended, ended, completed;
    bool left; /* of a stream: the loop has ended it */
    char token[HD_RPC_TOKEN_MAX + 1];
    bool has_token, is_unix;
    uid_t uid;
    int status;
    struct MHD_Response *response; /* ANSWERED, STREAM */
    struct hd_text queue;          /* STREAM: not sent yet, from `sent` on */
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
    struct hd_http_certificate certificate; /* with `tls` */
    struct MHD_Daemon *daemon;
    uv_async_t async;
    uv_timer_t check;
    uv_poll_t poll; /* this and the next two: accept.c, while `accepting` */
    uv_timer_t round, retry;
    bool accepting;
    int open_handles;
    bool tls;
    void (*on_closed)(void *user);
    void *closed_user;

    /* under `lock` */
    uv_mutex_t lock;
    struct hd_http_request *arrived, **arrived_end, *gone, *all;
    struct http_connection *connections; /* the newest first */
    struct hd_unauth_table *table;
    size_t refused; /* of these, the number with too_many */
    struct hd_http_stats stats;
    bool closing;
    bool closed; /* its thread and handles are gone; freed with the last request */
};

/* ---- request.c --------------------------------------------------------------------------------*/

/* One of the two owners lets go. Call it without the lock. */
void http_request_let_go(struct hd_http_request *r, bool handler);
void http_request_resume(struct hd_http_request *r); /* under the lock */
void http_request_enter(struct hd_http_request *r, int phase);
void http_free(struct hd_http *http);
/* Callbacks of libuv, on the loop's thread: requests have arrived, or have gone; clients are slow.
 */
void http_on_wake(uv_async_t *async);
void http_check_clients(uv_timer_t *timer);

/* ---- accept.c ---------------------------------------------------------------------------------*/

enum hd_status http_accept_start(struct hd_http *http);
/* Closes the handles of accept.c, calling on_closed for each, and the connections that
 * libmicrohttpd does not have. Returns the number of handles. */
int http_accept_stop(struct hd_http *http, uv_close_cb on_closed);
/* The caller of the functions below holds the lock. */
struct http_connection *http_adopt(struct hd_http *http, int fd);  /* NULL: it is none of ours */
void http_forget(struct hd_http *http, struct http_connection *c); /* libmicrohttpd has closed it */
void http_end(struct hd_http *http, struct http_connection *c);
/* False: so many are known that there is no place. NULL is fine, as below. */
bool http_prove(struct hd_http *http, struct http_connection *c);
void http_break(struct http_connection *c, int64_t now_ms);

/* ---- answer.c ---------------------------------------------------------------------------------*/

/* NULL: no memory. `text` is taken. */
struct MHD_Response *http_make_response(const struct hd_http *http, int status, const char *type,
                                        struct hd_text *text);
struct MHD_Response *http_make_failure(const struct hd_http *http, int status, const char *word,
                                       const char *message);
void http_add_headers(const struct hd_http *http, struct MHD_Response *response, int status,
                      const char *type);
int http_status_of(enum hd_status st);

/* ---- handler.c: callbacks of libmicrohttpd ----------------------------------------------------*/

size_t http_limit_of_one(const struct hd_http *http); /* the most connections of one address */
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
