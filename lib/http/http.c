/* A request on its way. `lock` guards what both threads use; the arrows that cross between the
 * threads are named.
 *
 *   FRESH --head is in, refused--> ANSWERED --sent--> freed
 *     |
 *     '--suspended, on `arrived` [async]--> HANDED --hd_http_reply [resume]--> ANSWERED
 *                                              |
 *                                              '--hd_http_stream_begin [resume]--> STREAM
 *                                STREAM --client gone, on `gone` [async]--> on_gone, freed
 *                                       --hd_http_stream_end [resume]--> sent, freed
 *
 * Two own a request: the door's thread until libmicrohttpd has completed it, the loop from HANDED
 * until it has answered. The last one frees it.
 */
#include "http/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "http/certificate.h"
#include "http/listen.h"
#include "http/target.h"
#include "rpc/rpc.h"

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
    LOOK_MS = 1000, /* between two looks for clients that are slow, or have gone */
    REFUSALS = 16,  /* connections over the limit of one address that are told so at a time */
};

enum request_state { FRESH, HANDED, ANSWERED, STREAM };

/* One connection, which carries one request. */
struct http_connection {
    struct http_connection *before, *next;
    int fd;
    struct sockaddr_storage from; /* of TCP: without the port */
    bool too_many;                /* its address has its share without it: it is refused */
    int64_t since_ms;             /* of this phase */
    enum { PHASE_HEAD, PHASE_BODY, PHASE_WORK, PHASE_REPLY, PHASE_STREAM } phase;
    struct hd_http_request *request; /* NULL: none, or its answer is over */
};

struct hd_http_request {
    struct hd_http *http;
    struct hd_http_request *next; /* in `arrived` or `gone` */
    struct hd_http_request *all_before, *all_next;
    struct MHD_Connection *connection;
    struct http_connection *place;
    enum request_state state;
    bool seen; /* the head was checked */
    bool is_post;
    size_t body_left; /* bytes that are still to come */
    struct hd_text body;
    bool by_door, by_loop; /* owners */
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
    uv_timer_t look;
    int open_handles;
    bool tls;
    void (*on_closed)(void *user);
    void *closed_user;

    /* under `lock` */
    uv_mutex_t lock;
    struct hd_http_request *arrived, **arrived_end, *gone, *all;
    struct http_connection *connections;
    struct hd_http_stats stats;
    bool closing;
    bool closed; /* its thread and handles are gone; freed with the last request */
};

/* ---- requests ---------------------------------------------------------------------------------*/

static void free_request(struct hd_http_request *r)
{
    if (r->response)
        MHD_destroy_response(r->response);
    hd_text_free(&r->queue);
    hd_text_free(&r->body);
    explicit_bzero(r->token, sizeof r->token);
    free(r->raw);
    free(r);
}

static void unlist(struct hd_http_request *r)
{
    *(r->all_before ? &r->all_before->all_next : &r->http->all) = r->all_next;
    if (r->all_next)
        r->all_next->all_before = r->all_before;
}

static void free_http(struct hd_http *http)
{
    if (http->tls)
        hd_http_certificate_done(&http->certificate);
    uv_mutex_destroy(&http->lock);
    free(http);
}

/* One of the two owners lets go. Call it without the lock. */
static void let_go(struct hd_http_request *r, bool door)
{
    struct hd_http *http = r->http;
    bool last, all;

    uv_mutex_lock(&http->lock);
    *(door ? &r->by_door : &r->by_loop) = false;
    last = !r->by_door && !r->by_loop;
    if (last)
        unlist(r);
    all = http->closed && !http->all;
    uv_mutex_unlock(&http->lock);
    if (last)
        free_request(r);
    if (all)
        free_http(http);
}

/* Under the lock. */
static void resume(struct hd_http_request *r)
{
    if (!r->suspended)
        return;
    r->suspended = false;
    MHD_resume_connection(r->connection);
}

static void enter(struct hd_http_request *r, int phase)
{
    if (!r->place)
        return;
    r->place->phase = phase;
    r->place->since_ms = hd_clock_now_ms();
}

/* ---- answers (both threads) -------------------------------------------------------------------*/

static const char *const headers[][2] = {
    {"Connection", "close"},
    {"Cache-Control", "no-store"},
    {"Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; "
                                "connect-src 'self'; img-src 'self'; base-uri 'none'; "
                                "form-action 'none'; frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
};

static void add_headers(const struct hd_http *http, struct MHD_Response *response, int status,
                        const char *type)
{
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++)
        (void)MHD_add_response_header(response, headers[i][0], headers[i][1]);
    (void)MHD_add_response_header(response, "Content-Type", type);
    if (status == MHD_HTTP_UNAUTHORIZED)
        (void)MHD_add_response_header(response, "WWW-Authenticate", "Bearer realm=\"heddle\"");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        (void)MHD_add_response_header(response, "Allow",
                                      http->options.body_bytes_max ? "GET, POST" : "GET");
}

/* Takes the text. NULL: no memory. */
static struct MHD_Response *make_response(const struct hd_http *http, int status, const char *type,
                                          struct hd_text *text)
{
    struct MHD_Response *response;

    if (text->failed) {
        hd_text_free(text);
        return NULL;
    }
    response = MHD_create_response_from_buffer(text->len_bytes, text->data ? text->data : "",
                                               text->data ? MHD_RESPMEM_MUST_FREE
                                                          : MHD_RESPMEM_PERSISTENT);
    if (!response)
        free(text->data);
    *text = (struct hd_text){0};
    if (response)
        add_headers(http, response, status, type);
    return response;
}

static void write_failure(struct hd_text *out, int status, const char *word, const char *message)
{
    struct hd_json_writer w = {.out = out};

    (void)status;
    hd_json_begin(&w, NULL, '{');
    hd_json_begin(&w, "error", '{');
    hd_json_add_string(&w, "status", word);
    hd_json_add_string(&w, "message", message);
    hd_json_end(&w, '}');
    hd_json_end(&w, '}');
    hd_text_add(out, "\n");
}

static struct MHD_Response *make_failure(const struct hd_http *http, int status, const char *word,
                                         const char *message)
{
    struct hd_text text = {0};

    (http->options.write_failure ? http->options.write_failure : write_failure)(&text, status, word,
                                                                                message);
    return make_response(http, status, "application/json", &text);
}

static int status_of(enum hd_status st)
{
    switch (st) {
    case HD_NOT_FOUND:
        return MHD_HTTP_NOT_FOUND;
    case HD_INVALID:
    case HD_UNSUPPORTED:
        return MHD_HTTP_BAD_REQUEST;
    case HD_DENIED:
        return MHD_HTTP_FORBIDDEN; /* to a caller who is known; see handle */
    case HD_LIMIT:
    case HD_NO_MEMORY:
    case HD_UNAVAILABLE:
    case HD_ABORTED:
    case HD_TIMEOUT:
        return MHD_HTTP_SERVICE_UNAVAILABLE;
    default:
        return MHD_HTTP_INTERNAL_SERVER_ERROR;
    }
}

/* ---- the door's thread ------------------------------------------------------------------------*/

/* libmicrohttpd logs what clients do wrong; that is theirs to know. */
static void drop_log(void *cls, const char *fmt, va_list ap)
{
    (void)cls, (void)fmt, (void)ap;
}

/* libmicrohttpd does not say of which door a handshake is. Its thread serves one alone. */
static _Thread_local struct hd_http *serving;

/* The most connections of one address. */
static size_t share_of_one(const struct hd_http *http)
{
    return (http->options.connections_max + 1) / 2;
}

/* Under the lock. Those that are refused do not count. */
static bool has_its_share(const struct hd_http *http, const struct http_connection *c)
{
    size_t count = 0;

    if (c->from.ss_family != AF_INET && c->from.ss_family != AF_INET6)
        return false;
    for (const struct http_connection *other = http->connections; other; other = other->next)
        count += !other->too_many && memcmp(&other->from, &c->from, sizeof c->from) == 0;
    return count >= share_of_one(http);
}

static void read_address(struct http_connection *c)
{
    socklen_t bytes = sizeof c->from;

    if (getpeername(c->fd, (struct sockaddr *)&c->from, &bytes) < 0)
        c->from.ss_family = AF_UNSPEC;
    if (c->from.ss_family == AF_INET)
        ((struct sockaddr_in *)&c->from)->sin_port = 0;
    if (c->from.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&c->from)->sin6_port = 0;
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct hd_http *http = cls;
    struct http_connection *c = *socket_context;

    serving = http;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

        c = calloc(1, sizeof *c);
        *socket_context = c;
        if (!c)
            return; /* without a place it is bounded by libmicrohttpd's own timeout */
        c->fd = info->connect_fd;
        c->since_ms = hd_clock_now_ms();
        read_address(c);
        uv_mutex_lock(&http->lock);
        c->too_many = has_its_share(http, c);
        c->next = http->connections;
        if (c->next)
            c->next->before = c;
        http->connections = c;
        http->stats.connections++;
        uv_mutex_unlock(&http->lock);
    } else if (c) { /* its descriptor is still open: look_at_clients cannot hit another's */
        uv_mutex_lock(&http->lock);
        *(c->before ? &c->before->next : &http->connections) = c->next;
        if (c->next)
            c->next->before = c->before;
        http->stats.connections--;
        http->stats.answered[0] += c->phase <= PHASE_BODY;
        uv_mutex_unlock(&http->lock);
        free(c);
        *socket_context = NULL;
    }
}

/* The target as it came, before libmicrohttpd takes it apart. */
static void *on_target(void *cls, const char *raw, struct MHD_Connection *connection)
{
    struct hd_http *http = cls;
    struct hd_http_request *r = calloc(1, sizeof *r);
    const union MHD_ConnectionInfo *info;

    if (!r)
        return NULL;
    r->http = http;
    r->connection = connection;
    r->raw = strndup(raw, HD_HTTP_TARGET_MAX + 1);
    r->by_door = true;
    info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    r->place = info ? info->socket_context : NULL;
    uv_mutex_lock(&http->lock);
    if (r->place)
        r->place->request = r;
    r->all_next = http->all;
    if (r->all_next)
        r->all_next->all_before = r;
    http->all = r;
    uv_mutex_unlock(&http->lock);
    return r;
}

/* Leaves the target to hd_http_target_parse. */
static size_t keep_codes(void *cls, struct MHD_Connection *connection, char *text)
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
    r->is_unix = r->http->listener.path[0] != '\0';
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
    enter(r, r->state == STREAM ? PHASE_STREAM : PHASE_REPLY);
    uv_mutex_unlock(&r->http->lock);
    return result;
}

static enum MHD_Result refuse(struct hd_http_request *r, int status, const char *message)
{
    r->state = ANSWERED;
    r->status = status;
    r->response = make_failure(r->http, status, "invalid", message);
    return send_response(r);
}

/* To the loop. */
static enum MHD_Result hand_over(struct hd_http_request *r)
{
    struct hd_http *http = r->http;
    bool closing;

    uv_mutex_lock(&http->lock);
    closing = http->closing;
    if (!closing) {
        r->state = HANDED;
        r->by_loop = r->suspended = true;
        enter(r, PHASE_WORK);
        MHD_suspend_connection(r->connection);
        *http->arrived_end = r;
        http->arrived_end = &r->next;
        (void)uv_async_send(&http->async);
    }
    uv_mutex_unlock(&http->lock);
    return closing ? refuse(r, MHD_HTTP_SERVICE_UNAVAILABLE, "the program is stopping") : MHD_YES;
}

static void begin_body(struct hd_http_request *r, size_t bytes)
{
    uv_mutex_lock(&r->http->lock);
    enter(r, PHASE_BODY);
    uv_mutex_unlock(&r->http->lock);
    r->body_left = bytes;
}

/* A piece of the body; when all of it is here, the end, which has no piece. */
static enum MHD_Result read_body(struct hd_http_request *r, const char *piece, size_t *piece_bytes)
{
    if (!*piece_bytes)
        return MHD_NO; /* the client has gone before the end */
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
    if (r->place && r->place->too_many)
        return refuse(r, MHD_HTTP_SERVICE_UNAVAILABLE,
                      "this address has as many connections as one may have; wait for the end of "
                      "another request");
    (void)MHD_get_connection_values(r->connection, MHD_HEADER_KIND, read_header, &reading);
    status = hd_http_check_head(&reading.head, &r->http->names, &body_bytes, message);
    if (status)
        return refuse(r, status, message);
    if (hd_http_target_parse(r->raw, &r->target))
        return refuse(r, MHD_HTTP_BAD_REQUEST, hd_err_message());
    keep_caller(r, reading.authorization);
    r->is_post = strcmp(method, "POST") == 0;
    if (!body_bytes)
        return hand_over(r);
    begin_body(r, body_bytes);
    return MHD_YES;
}

/* Called when the head is in, for each piece of the body and behind the last one, and when the
 * request is resumed. */
static enum MHD_Result on_access(void *cls, struct MHD_Connection *connection, const char *url,
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
    if (r->body_left)
        return read_body(r, upload, upload_bytes);
    if (*upload_bytes)
        return MHD_NO;
    if (r->body.failed)
        return refuse(r, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory for the body");
    return hand_over(r);
}

static void on_completed(void *cls, struct MHD_Connection *connection, void **context,
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
    if (r->place)
        r->place->request = NULL;
    r->place = NULL;
    if (r->state == STREAM) {
        http->stats.streams--;
        if (r->by_loop && !r->left) {
            r->next = http->gone;
            http->gone = r;
            (void)uv_async_send(&http->async);
        }
    }
    uv_mutex_unlock(&http->lock);
    let_go(r, true);
}

/* What a stream sends next. */
static ssize_t read_stream(void *cls, uint64_t position, char *bytes, size_t max)
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

/* ---- the loop's thread ------------------------------------------------------------------------*/

bool hd_http_is_post(const struct hd_http_request *r)
{
    return r->is_post;
}

const char *hd_http_body(const struct hd_http_request *r, size_t *ret_bytes)
{
    *ret_bytes = r->body.len_bytes;
    return r->body.data ? r->body.data : "";
}

const char *hd_http_path(const struct hd_http_request *r)
{
    return r->target.text;
}

const char *hd_http_param(const struct hd_http_request *r, const char *name)
{
    return hd_http_target_param(&r->target, name);
}

size_t hd_http_param_count(const struct hd_http_request *r)
{
    return r->target.param_count;
}

const char *hd_http_param_name(const struct hd_http_request *r, size_t index)
{
    return r->target.params[index].name;
}

static void answer(struct hd_http_request *r, int status, struct MHD_Response *response)
{
    uv_mutex_lock(&r->http->lock);
    r->status = status;
    r->response = response; /* NULL: the connection is closed */
    r->state = ANSWERED;
    resume(r);
    uv_mutex_unlock(&r->http->lock);
    let_go(r, false);
}

void hd_http_reply(struct hd_http_request *r, int status, const char *type, struct hd_text *text)
{
    const bool failed = text->failed;
    struct MHD_Response *response = make_response(r->http, status, type, text);

    if (failed) {
        status = MHD_HTTP_SERVICE_UNAVAILABLE;
        response = make_failure(r->http, status, "no_memory", "no memory for the answer");
    }
    answer(r, status, response);
}

void hd_http_reply_static(struct hd_http_request *r, const char *type, const void *bytes,
                          size_t count)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(count, (void *)(uintptr_t)bytes, MHD_RESPMEM_PERSISTENT);

    if (response)
        add_headers(r->http, response, MHD_HTTP_OK, type);
    answer(r, MHD_HTTP_OK, response);
}

void hd_http_fail_as(struct hd_http_request *r, int status, enum hd_status st)
{
    answer(r, status, make_failure(r->http, status, hd_status_name(st), hd_err_message()));
}

void hd_http_fail(struct hd_http_request *r, enum hd_status st)
{
    hd_http_fail_as(r, status_of(st), st);
}

void hd_http_watch(struct hd_http_request *r, void (*on_gone)(void *user), void *user)
{
    uv_mutex_lock(&r->http->lock);
    r->on_gone = on_gone;
    r->user = user;
    uv_mutex_unlock(&r->http->lock);
}

void hd_http_stream_begin(struct hd_http_request *r, const char *type, void (*on_gone)(void *user),
                          void *user)
{
    struct MHD_Response *response = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, STREAM_PIECE_BYTES, read_stream, r, NULL);

    if (response)
        add_headers(r->http, response, MHD_HTTP_OK, type);
    uv_mutex_lock(&r->http->lock);
    r->on_gone = on_gone;
    r->user = user;
    r->status = MHD_HTTP_OK;
    r->response = response; /* NULL: the connection is closed, and on_gone follows */
    r->state = STREAM;
    r->http->stats.streams++;
    resume(r);
    uv_mutex_unlock(&r->http->lock);
}

enum hd_status hd_http_stream_write(struct hd_http_request *r, const void *bytes, size_t count)
{
    struct hd_http *http = r->http;
    enum hd_status st = HD_OK;

    uv_mutex_lock(&http->lock);
    if (r->queue.len_bytes + count > http->options.stream_bytes_max) {
        st = hd_err(HD_LIMIT, "the client reads too slowly");
    } else if (!r->completed) {
        hd_text_add_bytes(&r->queue, bytes, count);
        if (r->queue.failed) {
            r->ended = true; /* what is missing cannot be mended: the client connects anew */
            hd_text_free(&r->queue);
            r->sent = 0;
        }
        resume(r);
    }
    uv_mutex_unlock(&http->lock);
    return st;
}

void hd_http_stream_end(struct hd_http_request *r)
{
    struct hd_http *http = r->http;

    uv_mutex_lock(&http->lock);
    r->ended = r->left = true; /* from here on it is not listed as gone: let_go may free it */
    r->on_gone = NULL;
    for (struct hd_http_request **at = &http->gone; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            break;
        }
    if (!r->completed)
        resume(r);
    uv_mutex_unlock(&http->lock);
    let_go(r, false);
}

static void handle(struct hd_http *http, struct hd_http_request *r)
{
    const struct hd_http_options *o = &http->options;
    const struct hd_http_caller caller = {
        .is_unix = r->is_unix, .uid = r->uid, .token = r->has_token ? r->token : NULL};
    enum hd_status st = HD_OK;

    if (!o->guarded || o->guarded(o->user, r->target.text))
        st = o->authorize(o->user, &caller);
    explicit_bzero(r->token, sizeof r->token);
    if (st)
        hd_http_fail_as(r, st == HD_DENIED ? MHD_HTTP_UNAUTHORIZED : status_of(st), st);
    else
        o->on_request(o->user, r);
}

static void on_wake(uv_async_t *async)
{
    struct hd_http *http = async->data;
    struct hd_http_request *arrived, *gone;

    uv_mutex_lock(&http->lock);
    arrived = http->arrived;
    http->arrived = NULL;
    http->arrived_end = &http->arrived;
    uv_mutex_unlock(&http->lock);
    for (struct hd_http_request *next; arrived; arrived = next) {
        next = arrived->next;
        arrived->next = NULL;
        handle(http, arrived);
    }
    for (;;) {
        uv_mutex_lock(&http->lock);
        gone = http->gone;
        if (gone)
            http->gone = gone->next;
        uv_mutex_unlock(&http->lock);
        if (!gone)
            return;
        if (gone->on_gone)
            gone->on_gone(gone->user);
        let_go(gone, false);
    }
}

/* The client has closed the connection, or its side of it, while its answer is being made.
 * libmicrohttpd does not look at a connection then. */
static bool has_left(const struct http_connection *c)
{
    struct pollfd look = {.fd = c->fd, .events = POLLRDHUP};

    return c->phase == PHASE_WORK && c->request && c->request->state == HANDED &&
           c->request->on_gone && poll(&look, 1, 0) == 1;
}

/* Its connection is closed without an answer. */
static void tell_gone(struct hd_http_request *r)
{
    void (*on_gone)(void *user) = r->on_gone;

    r->on_gone = NULL;
    on_gone(r->user);
    answer(r, 0, NULL);
}

/* A client that sends its head byte by byte, or does not read, keeps a place only for so long.
 * The door's thread sees the end of the connection as if the client had closed it. */
static void look_at_clients(uv_timer_t *timer)
{
    struct hd_http *http = timer->data;
    struct hd_http_request *left = NULL;
    const int64_t now_ms = hd_clock_now_ms();

    uv_mutex_lock(&http->lock);
    for (const struct http_connection *c = http->connections; c; c = c->next) {
        const int64_t age_ms = now_ms - c->since_ms;

        if ((c->phase == PHASE_HEAD && age_ms >= http->options.head_ms) ||
            (c->phase == PHASE_BODY && age_ms >= http->options.body_ms) ||
            (c->phase == PHASE_REPLY && age_ms >= http->options.reply_ms))
            (void)shutdown(c->fd, SHUT_RDWR);
        if (has_left(c)) {
            c->request->next = left;
            left = c->request;
        }
    }
    uv_mutex_unlock(&http->lock);
    for (struct hd_http_request *next; left; left = next) {
        next = left->next;
        left->next = NULL;
        tell_gone(left);
    }
}

/* ---- open and close ---------------------------------------------------------------------------*/

static int give_certificate(gnutls_session_t session, const struct gnutls_cert_retr_st *info,
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

static enum hd_status start_daemon(struct hd_http *http)
{
    const struct hd_http_options *o = &http->options;
    const unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL |
                           MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                           (http->tls ? MHD_USE_TLS : 0);
    const struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_CERT_CALLBACK2, 0, (void *)(uintptr_t)give_certificate},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t) "NORMAL:-VERS-ALL:+VERS-TLS1.3"},
        {MHD_OPTION_END, 0, NULL}};

    http->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_access, http, MHD_OPTION_EXTERNAL_LOGGER, drop_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, http->listener.fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed,
        http, MHD_OPTION_NOTIFY_CONNECTION, on_connection, http, MHD_OPTION_URI_LOG_CALLBACK,
        on_target, http, MHD_OPTION_UNESCAPE_CALLBACK, keep_codes, NULL,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)o->connections_max + REFUSALS,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)share_of_one(http) + REFUSALS,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)((o->head_ms + 999) / 1000),
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_STRICT_FOR_CLIENT,
        1, http->tls ? MHD_OPTION_ARRAY : MHD_OPTION_END, tls, MHD_OPTION_END);
    return http->daemon ? HD_OK : hd_err(HD_IO, "the HTTP door %s cannot be opened", o->address);
}

static enum hd_status check_options(const struct hd_http_options *o)
{
    enum hd_status st = hd_rpc_check_address(o->address);

    if (st)
        return hd_err_prefix(st, "the HTTP door");
    if (!o->cert_path != !o->key_path)
        return hd_err(HD_INVALID, "TLS needs a certificate and its key, or neither");
    if (hd_rpc_address_is_loopback(o->address))
        return HD_OK;
    if (!o->cert_path || !o->asks_tokens)
        return hd_err(HD_DENIED,
                      "an HTTP door at %s can be reached from other machines: it needs %s; or "
                      "listen on 127.0.0.1 or unix:PATH",
                      o->address,
                      !o->cert_path ? "a certificate and its key (TLS)"
                                    : "tokens by which callers are known");
    if (o->host_count > HD_HTTP_NAMES_MAX - 2)
        return hd_err(HD_LIMIT, "more than %d names of the HTTP door", HD_HTTP_NAMES_MAX - 2);
    return HD_OK;
}

static enum hd_status take_names(struct hd_http *http)
{
    const struct hd_http_options *o = &http->options;

    for (size_t i = 0; i < o->host_count; i++) {
        const size_t length = strlen(o->hosts[i]);

        if (length == 0 || length > HD_HTTP_NAME_MAX || i == HD_HTTP_NAMES_MAX - 2)
            return hd_err(HD_INVALID, "\"%.100s\" is no name of a host, or there are too many",
                          o->hosts[i]);
        memcpy(http->names.name[http->names.count++], o->hosts[i], length + 1);
    }
    return HD_OK;
}

static void set_defaults(struct hd_http_options *o)
{
    o->connections_max = o->connections_max ? o->connections_max : CONNECTIONS_DEFAULT;
    o->head_ms = o->head_ms ? o->head_ms : HEAD_MS_DEFAULT;
    o->body_ms = o->body_ms ? o->body_ms : BODY_MS_DEFAULT;
    o->reply_ms = o->reply_ms ? o->reply_ms : REPLY_MS_DEFAULT;
    o->stream_bytes_max = o->stream_bytes_max ? o->stream_bytes_max : STREAM_BYTES_DEFAULT;
}

static enum hd_status open_certificate(struct hd_http *http)
{
    enum hd_status st = hd_http_certificate_init(&http->certificate);

    if (st)
        return st;
    st = hd_http_certificate_read(&http->certificate, http->options.cert_path,
                                  http->options.key_path);
    if (st)
        hd_http_certificate_done(&http->certificate);
    return st;
}

enum hd_status hd_http_set_tls(struct hd_http *http, const char *cert_path, const char *key_path)
{
    return http->tls ? hd_http_certificate_read(&http->certificate, cert_path, key_path) : HD_OK;
}

enum hd_status hd_http_new(uv_loop_t *loop, const struct hd_http_options *options,
                           struct hd_http **ret_http)
{
    struct hd_http *http;
    enum hd_status st = check_options(options);

    if (st)
        return st;
    http = calloc(1, sizeof *http);
    if (!http)
        return hd_err(HD_NO_MEMORY, "no memory for an HTTP door");
    http->loop = loop;
    http->options = *options;
    http->arrived_end = &http->arrived;
    http->tls = options->cert_path && !hd_rpc_address_is_unix(options->address);
    set_defaults(&http->options);
    st = take_names(http);
    if (!st && http->tls)
        st = open_certificate(http);
    if (!st)
        st = hd_http_listen(options->address, &http->listener, &http->names);
    if (st) {
        if (http->certificate.chain.data)
            hd_http_certificate_done(&http->certificate);
        free(http);
        return st;
    }
    if (uv_mutex_init(&http->lock) || uv_async_init(loop, &http->async, on_wake)) {
        hd_http_unlisten(&http->listener);
        if (http->tls)
            hd_http_certificate_done(&http->certificate);
        free(http);
        return hd_err(HD_LIMIT, "no descriptor for an HTTP door");
    }
    http->async.data = http->look.data = http;
    st = start_daemon(http);
    if (st) {
        struct hd_error error;

        hd_err_save(st, &error);
        hd_http_close(http, NULL, NULL);
        return hd_err_restore(&error);
    }
    (void)uv_timer_init(loop, &http->look);
    (void)uv_timer_start(&http->look, look_at_clients, LOOK_MS, LOOK_MS);
    *ret_http = http;
    return HD_OK;
}

int hd_http_port(const struct hd_http *http)
{
    return http->listener.port;
}

void hd_http_get_stats(struct hd_http *http, struct hd_http_stats *ret_stats)
{
    uv_mutex_lock(&http->lock);
    *ret_stats = http->stats;
    uv_mutex_unlock(&http->lock);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct hd_http *http = handle->data;
    void (*on_closed)(void *user) = http->on_closed;
    void *user = http->closed_user;

    if (--http->open_handles)
        return;
    http->closed = true; /* the door's thread has ended: no lock is needed */
    if (!http->all)
        free_http(http);
    if (on_closed)
        on_closed(user);
}

/* libmicrohttpd stops only when no connection is suspended. */
static void end_requests(struct hd_http *http)
{
    uv_mutex_lock(&http->lock);
    http->closing = true;
    for (struct hd_http_request *r = http->all; r; r = r->all_next)
        if (!r->completed)
            resume(r); /* one that has no answer is closed */
    uv_mutex_unlock(&http->lock);
    if (http->daemon)
        MHD_stop_daemon(http->daemon); /* the door's thread has ended behind this */
    while (http->arrived) {            /* on_request was not called for these */
        struct hd_http_request *r = http->arrived;

        http->arrived = r->next;
        let_go(r, false);
    }
}

void hd_http_close(struct hd_http *http, void (*on_closed)(void *user), void *user)
{
    if (!http) {
        if (on_closed)
            on_closed(user);
        return;
    }
    http->on_closed = on_closed;
    http->closed_user = user;
    end_requests(http);
    http->listener.fd = -1; /* libmicrohttpd has closed it */
    hd_http_unlisten(&http->listener);
    http->open_handles = 1 + (http->look.loop != NULL);
    uv_close((uv_handle_t *)&http->async, on_handle_closed);
    if (http->look.loop)
        uv_close((uv_handle_t *)&http->look, on_handle_closed);
}
