/* accept: accepts connections on the loop's thread, and passes them to libmicrohttpd.
 * rpc/unauthenticated.h has the rules by which connections without an authorised request stay: a
 * connection is known once a request of it was authorised, and one that is not may be closed for a
 * new one, the oldest first. A connection waits outside, at the cost of a file descriptor only,
 * until it has sent something and its address may enter one more.
 *
 * A connection is in http->connections from accept on; libmicrohttpd names its connections by
 * descriptor (http_adopt). Only this thread opens descriptors of connections and ends them, and
 * only under the lock, so a descriptor never belongs to another connection by then. */
#include "http/http_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum {
    ACCEPTS_PER_WAKE = 64,
    ROUND_MS = 2, /* period of the check of waiting connections soon after one has arrived */
    SLOW_ROUND_MS = 20,
    YOUNG_MS = 50,
    RETRY_MS = 100,
    UNAUTHENTICATED = 4, /* limit of unauthenticated connections, in multiples of connections_max */
};

/* ---- under the lock ---- */

static void list(struct hd_http *http, struct http_connection *c)
{
    c->next = http->connections;
    if (c->next)
        c->next->before = c;
    http->connections = c;
    http->refused += c->too_many;
}

static bool has_bytes(const struct http_connection *c)
{
    char byte;

    /* the end of the stream counts, too: libmicrohttpd then closes the connection */
    return recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 ||
           (errno != EAGAIN && errno != EINTR);
}

static void uncount(struct hd_http *http, struct http_connection *c, int64_t now_ms)
{
    if (c->counted)
        hd_unauth_leave(http->table, &c->connection, now_ms);
    c->counted = false;
}

void http_forget(struct hd_http *http, struct http_connection *c)
{
    *(c->before ? &c->before->next : &http->connections) = c->next;
    if (c->next)
        c->next->before = c->before;
    http->refused -= c->too_many;
    uncount(http, c, hd_clock_now_ms());
    free(c);
}

void http_end(struct hd_http *http, struct http_connection *c)
{
    if (!c->outside) {
        /* libmicrohttpd reads the end, and closes the descriptor */
        (void)shutdown(c->fd, SHUT_RDWR);
        uncount(http, c, hd_clock_now_ms());
        return;
    }
    (void)close(c->fd);
    http_forget(http, c);
}

bool http_prove(struct hd_http *http, struct http_connection *c)
{
    if (!c || !c->counted)
        return true;
    if (!hd_unauth_may_prove(http->table, &c->connection))
        return false;
    hd_unauth_prove(http->table, &c->connection);
    return true;
}

void http_break(struct http_connection *c, int64_t now_ms)
{
    if (c && c->counted)
        hd_unauth_break(&c->connection, now_ms);
}

struct http_connection *http_adopt(struct hd_http *http, int fd)
{
    struct http_connection *c = http->connections;

    while (c && (c->fd != fd || c->adopted || c->outside))
        c = c->next;
    if (c)
        c->adopted = true;
    return c;
}

/* Lets a connection in if it may enter, and ends the connection that is closed for it (the victim),
 * if any. */
static bool enter(struct hd_http *http, struct http_connection *c, int64_t now_ms)
{
    struct hd_unauth_connection *victim;

    c->outside = true;
    if (!has_bytes(c))
        return false;
    c->outside = !hd_unauth_enter(http->table, &c->connection, now_ms, &victim);
    if (victim) {
        hd_unauth_break(victim, now_ms);
        http_end(http, (struct http_connection *)victim);
    }
    return !c->outside;
}

/* ---- on the loop's thread ---- */

/* Passes a connection to libmicrohttpd, which closes the descriptor if it refuses the connection.
 */
static void give(struct hd_http *http, struct http_connection *c)
{
    if (MHD_add_connection(http->daemon, c->fd, (const struct sockaddr *)&c->from, c->from_bytes) ==
        MHD_YES)
        return;
    uv_mutex_lock(&http->lock);
    http_forget(http, c);
    uv_mutex_unlock(&http->lock);
}

/* Finds the newest waiting connection that may enter now; NULL: none. Sets *ret_next_ms to the time
 * until the next check; 0: no connection waits. */
static struct http_connection *find_next(struct hd_http *http, int64_t now_ms,
                                         uint64_t *ret_next_ms)
{
    struct http_connection *c;

    *ret_next_ms = 0;
    for (c = http->connections; c; c = c->next) { /* list() puts the newest first */
        if (!c->outside)
            continue;
        if (enter(http, c, now_ms))
            return c;
        if (!*ret_next_ms)
            *ret_next_ms = now_ms - c->since_ms < YOUNG_MS ? ROUND_MS : SLOW_ROUND_MS;
    }
    return NULL;
}

static void on_round(uv_timer_t *timer)
{
    struct hd_http *http = timer->data;
    struct http_connection *in;
    uint64_t next_ms;

    do {
        uv_mutex_lock(&http->lock);
        in = find_next(http, hd_clock_now_ms(), &next_ms);
        uv_mutex_unlock(&http->lock);
        if (in)
            give(http, in);
    } while (in);
    if (next_ms)
        (void)uv_timer_start(timer, on_round, next_ms, 0);
}

/* Adds an accepted connection to the table. Returns false if the caller must close it; a few
 * connections over the limit are kept for a reply 503. */
static bool arrive(struct hd_http *http, struct http_connection *c, int64_t now_ms)
{
    struct hd_unauth_connection *victim;

    c->counted = hd_unauth_arrive(http->table, &c->connection, &c->from, now_ms, &victim);
    if (victim)
        http_end(http, (struct http_connection *)victim);
    c->too_many = !c->counted;
    return c->counted || http->refused < REFUSALS;
}

static void take(struct hd_http *http, int fd, const struct sockaddr_storage *from, socklen_t bytes)
{
    struct http_connection *c = calloc(1, sizeof *c);
    const int64_t now_ms = hd_clock_now_ms();
    bool goes_in = false;

    if (!c) {
        (void)close(fd);
        return;
    }
    c->fd = fd;
    c->since_ms = now_ms;
    c->from = *from;
    c->from_bytes = bytes;
    uv_mutex_lock(&http->lock);
    if (!arrive(http, c, now_ms)) {
        uv_mutex_unlock(&http->lock);
        (void)close(fd);
        free(c);
        return;
    }
    list(http, c);
    goes_in = c->too_many || enter(http, c, now_ms);
    uv_mutex_unlock(&http->lock);
    if (goes_in)
        give(http, c);
    else
        (void)uv_timer_start(&http->round, on_round, ROUND_MS, 0);
}

static void on_connection(uv_poll_t *poll, int status, int events);

static void on_retry(uv_timer_t *timer)
{
    struct hd_http *http = timer->data;

    (void)uv_poll_start(&http->poll, UV_READABLE, on_connection);
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    struct hd_http *http = poll->data;

    (void)status, (void)events;
    for (int i = 0; i < ACCEPTS_PER_WAKE; i++) {
        struct sockaddr_storage from = {0};
        socklen_t bytes = sizeof from;
        const int fd = accept4(http->listener.socket.fd, (struct sockaddr *)&from, &bytes,
                               SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0) {
            take(http, fd, &from, bytes);
        } else if (errno == EAGAIN) {
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            /* No file descriptor is free: the pending connection would wake the loop again and
             * again. */
            (void)uv_poll_stop(poll);
            (void)uv_timer_start(&http->retry, on_retry, RETRY_MS, 0);
            return;
        }
    }
}

enum hd_status http_accept_start(struct hd_http *http)
{
    const size_t max = http->options.connections_max, limit = http_limit_of_one(http);
    const struct hd_unauth_limits limits = {.connections = (UNAUTHENTICATED + 1) * max,
                                            .connections_of_address = (UNAUTHENTICATED + 1) * limit,
                                            .known = max,
                                            .known_of_address = limit,
                                            .unauthenticated = UNAUTHENTICATED * max,
                                            .unauthenticated_of_address = UNAUTHENTICATED * limit,
                                            .inside = INSIDE * max,
                                            .inside_of_address = INSIDE * limit};

    http->table = hd_unauth_new(&limits);
    if (!http->table)
        return hd_err(HD_NO_MEMORY, "no memory for an HTTP listener");
    if (uv_poll_init(http->loop, &http->poll, http->listener.socket.fd))
        return hd_err(HD_IO, "cannot poll the HTTP listener %s", http->options.address);
    (void)uv_timer_init(http->loop, &http->round);
    (void)uv_timer_init(http->loop, &http->retry);
    http->poll.data = http->round.data = http->retry.data = http;
    http->accepting = true;
    (void)uv_poll_start(&http->poll, UV_READABLE, on_connection);
    return HD_OK;
}

int http_accept_stop(struct hd_http *http, uv_close_cb on_closed)
{
    if (!http->accepting)
        return 0;
    http->accepting = false;
    uv_close((uv_handle_t *)&http->poll, on_closed);
    uv_close((uv_handle_t *)&http->round, on_closed);
    uv_close((uv_handle_t *)&http->retry, on_closed);
    uv_mutex_lock(&http->lock);
    for (struct http_connection *c = http->connections, *next; c; c = next) {
        next = c->next;
        if (c->outside)
            http_end(http, c);
    }
    uv_mutex_unlock(&http->lock);
    return 3;
}
