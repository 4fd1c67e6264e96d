/* handler: callbacks of libmicrohttpd, all on the listener's thread: connections, headers and
 * bodies of requests, and the bytes of a stream. */
#include "http/http_internal.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"

/* Drops libmicrohttpd's log: it contains only mistakes of clients, who get them in the reply. */
void http_drop_log(void *cls, const char *fmt, va_list ap)
{
    (void)cls, (void)fmt, (void)ap;
}

/* listener whose handshake runs on this thread; libmicrohttpd does not pass it to the callback, and
 * its thread serves one listener */
static _Thread_local struct hd_http *serving;

size_t http_limit_of_one(const struct hd_http *http)
{
    return (http->options.connections_max + 1) / 2;
}

void http_on_connection(void *cls, struct MHD_Connection *connection, void **socket_context,
                        enum MHD_ConnectionNotificationCode code)
{
    struct hd_http *http = cls;
    struct http_connection *c = *socket_context;

    serving = http;
    uv_mutex_lock(&http->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

        c = http_adopt(http, info->connect_fd);
        *socket_context = c;
        http->stats.connections++;
    } else { /* the descriptor is still open, so http_check_clients cannot end another connection */
        http->stats.connections--;
        if (c) {
            http->stats.answered[0] += c->phase <= PHASE_BODY;
            http_forget(http, c);
        }
        *socket_context = NULL;
    }
    uv_mutex_unlock(&http->lock);
}

/* Makes the request struct, with its target before libmicrohttpd decodes it. */
void *http_on_target(void *cls, const char *raw, struct MHD_Connection *connection)
{
    struct hd_http *http = cls;
    struct hd_http_request *r = calloc(1, sizeof *r);
    const union MHD_ConnectionInfo *info;

    if (!r)
        return NULL;
    r->http = http;
    r->connection = connection;
    r->raw = strndup(raw, HD_HTTP_TARGET_MAX + 1);
    r->by_handler = true;
    info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    r->slot = info ? info->socket_context : NULL;
    uv_mutex_lock(&http->lock);
    if (r->slot)
        r->slot->request = r;
    r->all_next = http->all;
    if (r->all_next)
        r->all_next->all_before = r;
    http->all = r;
    uv_mutex_unlock(&http->lock);
    return r;
}

/* Leaves percent codes in the target undecoded: hd_http_target_parse decodes them. */
size_t http_keep_codes(void *cls, struct MHD_Connection *connection, char *text)
{
    (void)cls, (void)connection;
    return strlen(text);
}

struct reading {
    struct hd_http_head head;
    const char *authorization;
};

static enum MHD_Result read_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    struct reading *reading = cls;
    const struct {
        const char *name, **place;
    } once[] = {{"Host", &reading->head.host},
                {"Origin", &reading->head.origin},
                {"Sec-Fetch-Site", &reading->head.fetch_site},
                {"Sec-Fetch-Mode", &reading->head.fetch_mode},
                {"Sec-Fetch-Dest", &reading->head.fetch_dest},
                {"Content-Type", &reading->head.type},
                {"Content-Length", &reading->head.length},
                {"Authorization", &reading->authorization}};

    (void)kind;
    if (!value)
        value = "";
    for (size_t i = 0; i < sizeof once / sizeof once[0]; i++) {
        if (strcasecmp(name, once[i].name) != 0)
            continue;
        reading->head.repeated |= *once[i].place != NULL;
        *once[i].place = value;
    }
    if (strcasecmp(name, "Transfer-Encoding") == 0)
        reading->head.is_coded = true;
    return MHD_YES;
}

static void keep_caller(struct hd_http_request *r, const char *authorization)
{
    static const char scheme[] = "Bearer ";
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct ucred peer;
    socklen_t peer_bytes = sizeof peer;
    size_t length;

    r->uid = (uid_t)-1;
    r->is_unix = r->http->listener.socket.path[0] != '\0';
    if (r->is_unix && info &&
        getsockopt(info->connect_fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) == 0)
        r->uid = peer.uid;
    if (!authorization || strncasecmp(authorization, scheme, strlen(scheme)) != 0)
        return;
    authorization += strlen(scheme);
    length = strlen(authorization);
    if (length == 0 || length > HD_RPC_TOKEN_MAX)
        return;
    memcpy(r->token, authorization, length + 1);
    r->has_token = true;
}

static enum MHD_Result send_response(struct hd_http_request *r)
{
    enum MHD_Result result = MHD_NO;

    if (r->response)
        result = MHD_queue_response(r->connection, (unsigned)r->status, r->response);
    uv_mutex_lock(&r->http->lock);
    r->http->stats.answered[result == MHD_YES ? r->status / 100 % 6 : 0]++;
    http_request_enter(r, r->state == STREAM ? PHASE_STREAM : PHASE_REPLY);
    uv_mutex_unlock(&r->http->lock);
    return result;
}

static enum MHD_Result refuse(struct hd_http_request *r, int status, const char *message)
{
    r->state = ANSWERED;
    r->status = status;
    r->response = http_make_failure(r->http, status, "invalid", message);
    return send_response(r);
}

/* Passes a request to the loop: before its body is read, to be authorised, and again with the body.
 */
static enum MHD_Result hand_over(struct hd_http_request *r)
{
    struct hd_http *http = r->http;
    bool closing;

    uv_mutex_lock(&http->lock);
    closing = http->closing;
    if (!closing) {
        r->state = HANDED;
        r->by_loop = r->suspended = true;
        http_request_enter(r, PHASE_WORK);
        MHD_suspend_connection(r->connection);
        *http->arrived_end = r;
        http->arrived_end = &r->next;
        (void)uv_async_send(&http->async);
    }
    uv_mutex_unlock(&http->lock);
    return closing ? refuse(r, MHD_HTTP_SERVICE_UNAVAILABLE, "the program is stopping") : MHD_YES;
}

/* Begins to read the body of a request whose caller the loop has authorised. */
static enum MHD_Result begin_body(struct hd_http_request *r)
{
    if (!r->admitted)
        return MHD_NO; /* the program is stopping */
    uv_mutex_lock(&r->http->lock);
    http_request_enter(r, PHASE_BODY);
    uv_mutex_unlock(&r->http->lock);
    r->reads_body = true;
    return MHD_YES;
}

/* Appends received bytes to the request's body. Returns MHD_NO if the client disconnected or sends
 * too much. */
static enum MHD_Result read_body(struct hd_http_request *r, const char *piece, size_t *piece_bytes)
{
    if (!*piece_bytes)
        return MHD_NO; /* the client disconnected before the end */
    if (*piece_bytes > r->body_left)
        return MHD_NO;
    hd_text_add_bytes(&r->body, piece, *piece_bytes);
    r->body_left -= *piece_bytes;
    *piece_bytes = 0;
    return MHD_YES;
}

static enum MHD_Result take_head(struct hd_http_request *r, const char *method, const char *version)
{
    struct reading reading = {.head = {.method = method,
                                       .version = version,
                                       .tls = r->http->tls,
                                       .body_bytes_max = r->http->options.body_bytes_max}};
    char message[HD_HTTP_REFUSAL_MAX];
    size_t body_bytes;
    int status;

    r->seen = true;
    if (r->slot && r->slot->too_many)
        return refuse(r, MHD_HTTP_SERVICE_UNAVAILABLE, HTTP_TOO_MANY);
    (void)MHD_get_connection_values(r->connection, MHD_HEADER_KIND, read_header, &reading);
    status = hd_http_check_head(&reading.head, &r->http->names, &body_bytes, message);
    if (status)
        return refuse(r, status, message);
    if (hd_http_target_parse(r->raw, &r->target))
        return refuse(r, MHD_HTTP_BAD_REQUEST, hd_err_message());
    keep_caller(r, reading.authorization);
    r->is_post = strcmp(method, "POST") == 0;
    r->is_head = strcmp(method, "HEAD") == 0;
    r->body_left = body_bytes;
    return hand_over(r);
}

/* Called by libmicrohttpd when the headers are complete, again when the caller is authorised, for
 * each piece of the body and after the last one, and when the reply is ready. */
enum MHD_Result http_on_access(void *cls, struct MHD_Connection *connection, const char *url,
                               const char *method, const char *version, const char *upload,
                               size_t *upload_bytes, void **context)
{
    struct hd_http_request *r = *context;

    (void)cls, (void)connection, (void)url;
    if (!r || !r->raw)
        return MHD_NO;
    if (!r->seen)
        return take_head(r, method, version);
    if (r->state != FRESH)
        return send_response(r);
    if (r->body_left && !r->reads_body)
        return begin_body(r);
    if (r->body_left)
        return read_body(r, upload, upload_bytes);
    if (*upload_bytes)
        return MHD_NO;
    if (r->body.failed)
        return refuse(r, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory for the body");
    return hand_over(r);
}

void http_on_completed(void *cls, struct MHD_Connection *connection, void **context,
                       enum MHD_RequestTerminationCode code)
{
    struct hd_http_request *r = *context;
    struct hd_http *http = cls;

    (void)connection, (void)code;
    *context = NULL;
    if (!r)
        return;
    uv_mutex_lock(&http->lock);
    r->completed = true;
    if (r->slot)
        r->slot->request = NULL;
    r->slot = NULL;
    if (r->state == STREAM) {
        http->stats.streams--;
        if (r->by_loop && !r->left) {
            r->next = http->gone;
            http->gone = r;
            (void)uv_async_send(&http->async);
        }
    }
    uv_mutex_unlock(&http->lock);
    http_request_let_go(r, true);
}

/* Copies the next bytes of a stream for libmicrohttpd; suspends the connection if none are queued.
 */
ssize_t http_read_stream(void *cls, uint64_t position, char *bytes, size_t max)
{
    struct hd_http_request *r = cls;
    ssize_t count = 0;

    (void)position;
    uv_mutex_lock(&r->http->lock);
    if (r->sent < r->queue.len_bytes) {
        count = (ssize_t)(r->queue.len_bytes - r->sent);
        if ((size_t)count > max)
            count = (ssize_t)max;
        memcpy(bytes, r->queue.data + r->sent, (size_t)count);
        r->sent += (size_t)count;
        if (r->sent == r->queue.len_bytes) {
            hd_text_clear(&r->queue);
            r->sent = 0;
        }
    } else if (r->ended || r->http->closing) {
        count = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        r->suspended = true;
        MHD_suspend_connection(r->connection);
    }
    uv_mutex_unlock(&r->http->lock);
    return count;
}

int http_give_certificate(gnutls_session_t session, const struct gnutls_cert_retr_st *info,
                          gnutls_pcert_st **certs, unsigned *count, gnutls_ocsp_data_st **ocsp,
                          unsigned *ocsp_count, gnutls_privkey_t *key, unsigned *flags)
{
    (void)session;
    (void)info;
    *ocsp = NULL;
    *ocsp_count = 0;
    *flags = GNUTLS_CERT_RETR_DEINIT_ALL;
    return hd_http_certificate_give(&serving->certificate, certs, count, key);
}
