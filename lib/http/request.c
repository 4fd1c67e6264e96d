/* request: a request from `arrived` until it is answered; on the loop's thread, except the first
 * section. */
#include "http/http_internal.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* ---- both threads
 * ------------------------------------------------------------------------------*/

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

void http_free(struct hd_http *http)
{
    if (http->tls)
        hd_http_certificate_done(&http->certificate);
    hd_unauth_free(http->table);
    uv_mutex_destroy(&http->lock);
    free(http);
}

void http_request_let_go(struct hd_http_request *r, bool handler)
{
    struct hd_http *http = r->http;
    bool last, all;

    uv_mutex_lock(&http->lock);
    *(handler ? &r->by_handler : &r->by_loop) = false;
    last = !r->by_handler && !r->by_loop;
    if (last)
        unlist(r);
    all = http->closed && !http->all;
    uv_mutex_unlock(&http->lock);
    if (last)
        free_request(r);
    if (all)
        http_free(http);
}

void http_request_resume(struct hd_http_request *r)
{
    if (!r->suspended)
        return;
    r->suspended = false;
    MHD_resume_connection(r->connection);
}

void http_request_enter(struct hd_http_request *r, int phase)
{
    if (!r->slot)
        return;
    r->slot->phase = phase;
    r->slot->since_ms = hd_clock_now_ms();
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
    http_request_resume(r);
    uv_mutex_unlock(&r->http->lock);
    http_request_let_go(r, false);
}

void hd_http_reply(struct hd_http_request *r, int status, const char *type, struct hd_text *text)
{
    const bool failed = text->failed;
    struct MHD_Response *response = http_make_response(r->http, status, type, text);

    if (failed) {
        status = MHD_HTTP_SERVICE_UNAVAILABLE;
        response = http_make_failure(r->http, status, "no_memory", "no memory for the answer");
    }
    answer(r, status, response);
}

void hd_http_reply_static(struct hd_http_request *r, const char *type, const void *bytes,
                          size_t count)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(count, (void *)(uintptr_t)bytes, MHD_RESPMEM_PERSISTENT);

    if (response)
        http_add_headers(r->http, response, MHD_HTTP_OK, type);
    answer(r, MHD_HTTP_OK, response);
}

void hd_http_fail_as(struct hd_http_request *r, int status, enum hd_status st)
{
    answer(r, status, http_make_failure(r->http, status, hd_status_name(st), hd_err_message()));
}

void hd_http_fail(struct hd_http_request *r, enum hd_status st)
{
    hd_http_fail_as(r, hd_http_status(st), st);
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
        MHD_SIZE_UNKNOWN, STREAM_PIECE_BYTES, http_read_stream, r, NULL);

    if (response)
        http_add_headers(r->http, response, MHD_HTTP_OK, type);
    if (response && r->is_head) /* else libmicrohttpd sends the last chunk of a body */
        (void)MHD_set_response_options(response, MHD_RF_HTTP_VERSION_1_0_ONLY, MHD_RO_END);
    uv_mutex_lock(&r->http->lock);
    r->on_gone = on_gone;
    r->user = user;
    r->status = MHD_HTTP_OK;
    r->response = response; /* NULL: the connection is closed, and on_gone follows */
    r->state = STREAM;
    r->http->stats.streams++;
    http_request_resume(r);
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
            /* bytes of the stream are missing, so it ends: the client must reconnect */
            r->ended = true;
            hd_text_free(&r->queue);
            r->sent = 0;
        }
        http_request_resume(r);
    }
    uv_mutex_unlock(&http->lock);
    return st;
}

void hd_http_stream_end(struct hd_http_request *r)
{
    struct hd_http *http = r->http;

    uv_mutex_lock(&http->lock);
    /* `left` keeps http_on_completed from putting the request into `gone`: let_go may free it */
    r->ended = r->left = true;
    r->on_gone = NULL;
    for (struct hd_http_request **at = &http->gone; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            break;
        }
    if (!r->completed)
        http_request_resume(r);
    uv_mutex_unlock(&http->lock);
    http_request_let_go(r, false);
}

/* Returns the request to the listener's thread, which reads its body. */
static void admit(struct hd_http *http, struct hd_http_request *r)
{
    bool lives;

    uv_mutex_lock(&http->lock);
    lives = r->by_handler;
    r->admitted = true;
    r->state = FRESH;
    if (lives) {
        r->by_loop = false;
        http_request_resume(r);
    }
    uv_mutex_unlock(&http->lock);
    if (!lives)
        http_request_let_go(r, false);
}

/* Records whether the caller of a request was authorised: marks its connection as known, or counts
 * a failure. Returns false if too many connections are known. */
static bool note_caller(struct hd_http *http, struct hd_http_request *r, bool known)
{
    bool has_slot = true;

    uv_mutex_lock(&http->lock);
    if (known)
        has_slot = http_prove(http, r->slot);
    else
        http_break(r->slot, hd_clock_now_ms());
    uv_mutex_unlock(&http->lock);
    return has_slot;
}

static enum hd_status check_caller(struct hd_http *http, struct hd_http_request *r)
{
    const struct hd_http_options *o = &http->options;
    const struct hd_http_caller caller = {
        .is_unix = r->is_unix, .uid = r->uid, .token = r->has_token ? r->token : NULL};
    enum hd_status st;

    if (r->admitted || (o->guarded && !o->guarded(o->user, r->target.text)))
        return HD_OK;
    st = o->authorize(o->user, &caller);
    if (!note_caller(http, r, st == HD_OK))
        st = hd_err(HD_LIMIT, HTTP_TOO_MANY);
    return st;
}

static void handle(struct hd_http *http, struct hd_http_request *r)
{
    const enum hd_status st = check_caller(http, r);

    explicit_bzero(r->token, sizeof r->token);
    if (st)
        hd_http_fail_as(r, st == HD_DENIED ? MHD_HTTP_UNAUTHORIZED : hd_http_status(st), st);
    else if (r->body_left)
        admit(http, r);
    else
        http->options.on_request(http->options.user, r);
}

void http_on_wake(uv_async_t *async)
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
        http_request_let_go(gone, false);
    }
}

/* Returns whether the client has closed the connection, or its sending side, while its reply is
 * being made. libmicrohttpd does not watch the connection meanwhile. */
static bool has_left(const struct http_connection *c)
{
    struct pollfd look = {.fd = c->fd, .events = POLLRDHUP};

    return c->phase == PHASE_WORK && c->request && c->request->state == HANDED &&
           c->request->on_gone && poll(&look, 1, 0) == 1;
}

/* Calls on_gone of a request whose client has left, and closes the connection without a reply. */
static void report_gone(struct hd_http_request *r)
{
    void (*on_gone)(void *user) = r->on_gone;

    r->on_gone = NULL;
    on_gone(r->user);
    answer(r, 0, NULL);
}

static bool is_overdue(const struct hd_http *http, const struct http_connection *c, int64_t now_ms)
{
    const int64_t age_ms = now_ms - c->since_ms;

    return (c->phase == PHASE_HEAD && age_ms >= http->options.head_ms) ||
           (c->phase == PHASE_BODY && age_ms >= http->options.body_ms) ||
           (c->phase == PHASE_REPLY && age_ms >= http->options.reply_ms);
}

/* Disconnects clients that send their headers too slowly or do not read the reply, and calls
 * on_gone for clients that have left. The listener's thread sees a disconnected client as one that
 * closed its connection. */
void http_check_clients(uv_timer_t *timer)
{
    struct hd_http *http = timer->data;
    struct hd_http_request *left = NULL;
    const int64_t now_ms = hd_clock_now_ms();

    uv_mutex_lock(&http->lock);
    for (struct http_connection *c = http->connections, *next_one; c; c = next_one) {
        next_one = c->next;
        if (is_overdue(http, c, now_ms)) {
            http_break(c, now_ms);
            http_end(http, c);
            continue;
        }
        if (has_left(c)) {
            c->request->next = left;
            left = c->request;
        }
    }
    uv_mutex_unlock(&http->lock);
    for (struct hd_http_request *next; left; left = next) {
        next = left->next;
        left->next = NULL;
        report_gone(left);
    }
}
