#include "rpc/arrivals.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "rpc/acceptor.h"
#include "rpc/given.h"
#include "rpc/rate.h"
#include "rpc/server_internal.h"

enum {
    FILES_RESERVED = 128, /* descriptors for everything but TCP connections */
    CONNECTIONS_MIN = 16, /* of the default, however low the limit of open files is */
    CONNECTIONS_MAX = 32768,
    SHARE_OF_ONE_PEER = 4, /* by default one address has at most a fourth of all connections */
};

/* A connection that has sent nothing yet. */
struct arrival {
    struct arrival *next, **link; /* oldest first */
    struct hd_rpc_arrivals *all;
    uv_poll_t poll;
    struct sockaddr_storage from;
    struct hd_rpc_peer peer;
    int64_t deadline_ms;
    int fd;
    bool give; /* to gRPC, once the handle is closed; else the connection is closed then */
};

struct hd_rpc_arrivals {
    struct hd_rpc_server *server;
    struct arrival *first, **last;
    size_t waiting;
    struct hd_rpc_given given;
    size_t max, max_of_peer;
    uv_timer_t deadline;   /* of `first` */
    uv_timer_t first_call; /* of the oldest given one that is not proven */
    struct hd_rpc_rate refusals, strangers;
};

/* ---- limits ---- */

static size_t default_max(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur < FILES_RESERVED + CONNECTIONS_MIN)
        return CONNECTIONS_MIN;
    return limit.rlim_cur - FILES_RESERVED < CONNECTIONS_MAX
               ? (size_t)limit.rlim_cur - FILES_RESERVED
               : CONNECTIONS_MAX;
}

static size_t count_of_peer(const struct hd_rpc_arrivals *all, const struct hd_rpc_peer *peer)
{
    size_t count = hd_rpc_given_count(&all->given, peer);

    for (const struct arrival *a = all->first; a; a = a->next)
        count += hd_rpc_peer_same(&a->peer, peer);
    return count;
}

static size_t count_of_all(const struct hd_rpc_arrivals *all)
{
    return all->waiting + hd_rpc_given_count(&all->given, NULL);
}

static void dismiss(struct arrival *arrival);

static void tell_strangers(struct hd_rpc_arrivals *all, size_t count, const char *why)
{
    size_t left_out;

    all->strangers.left_out += count - 1;
    if (hd_rpc_rate_allows(&all->strangers, &left_out))
        hd_log(HD_LOG_WARN,
               "closed a TCP connection by which no call with a token has come: %s (%zu more "
               "closed since the last such line)",
               why, left_out);
}

/* The oldest connection of this peer, or of all (NULL), that has sent nothing. */
static struct arrival *find_silent(const struct hd_rpc_arrivals *all,
                                   const struct hd_rpc_peer *peer)
{
    struct arrival *a = all->first;

    while (a && peer && !hd_rpc_peer_same(&a->peer, peer))
        a = a->next;
    return a;
}

/* Whether a connection of this peer may stay; makes room if that is possible: in the place of the
 * oldest one by which no call with a token has come, whether it has sent something or not. Were
 * silent ones to go first, strangers that send at once would displace clients on their way in. */
static bool make_room(struct hd_rpc_arrivals *all, const struct hd_rpc_peer *peer)
{
    const struct hd_rpc_server_options *options = &all->server->options;
    bool full = count_of_all(all) >= all->max,
         peer_full = count_of_peer(all, peer) >= all->max_of_peer;
    struct arrival *silent;
    int64_t given_ms;

    if (full || peer_full) {
        hd_rpc_given_forget_closed(&all->given);
        full = count_of_all(all) >= all->max;
        peer_full = count_of_peer(all, peer) >= all->max_of_peer;
    }
    if (!full && !peer_full)
        return true;
    silent = find_silent(all, peer_full ? peer : NULL);
    given_ms = hd_rpc_given_oldest_ms(&all->given, peer_full ? peer : NULL);
    if (silent &&
        silent->deadline_ms - options->first_bytes_ms <= given_ms - options->first_call_ms)
        dismiss(silent);
    else if (hd_rpc_given_end_oldest(&all->given, peer_full ? peer : NULL))
        tell_strangers(all, 1, "a new connection needs its place");
    else if (silent)
        dismiss(silent);
    else
        return false;
    return true;
}

static void tell_refused(struct hd_rpc_arrivals *all, const struct sockaddr_storage *from,
                         const struct hd_rpc_peer *peer)
{
    char host[INET6_ADDRSTRLEN] = "?";
    size_t mine = count_of_peer(all, peer), left_out;
    const void *address = from->ss_family == AF_INET6
                              ? (const void *)&((const struct sockaddr_in6 *)from)->sin6_addr
                              : (const void *)&((const struct sockaddr_in *)from)->sin_addr;

    if (!hd_rpc_rate_allows(&all->refusals, &left_out))
        return;
    (void)inet_ntop(from->ss_family, address, host, sizeof host);
    hd_log(
        HD_LOG_WARN,
        "refused a connection from %s: it has %zu of at most %zu connections of one address, all "
        "addresses have %zu of at most %zu (%zu more refused since the last such line)",
        host, mine, all->max_of_peer, count_of_all(all), all->max, left_out);
}

/* Without TLS the client can be told why: an HTTP/2 client shows the text of GOAWAY in its error.
 */
static void tell_client(const struct hd_rpc_arrivals *all, int fd, const struct hd_rpc_peer *peer)
{
    static const unsigned char settings[9] = {[3] = 4};
    unsigned char goaway[9 + 8] = {[3] = 7, [16] = 11}; /* ENHANCE_YOUR_CALM; no stream was taken */
    char text[sizeof settings + sizeof goaway + 200];
    const size_t mine = count_of_peer(all, peer), head = sizeof settings + sizeof goaway;
    const bool peer_full = mine >= all->max_of_peer;
    int length;

    length = snprintf(text + head, sizeof text - head,
                      "refused: too many connections%s are open (%zu of at most %zu); close some "
                      "and try again",
                      peer_full ? " from this address" : "", peer_full ? mine : count_of_all(all),
                      peer_full ? all->max_of_peer : all->max);
    goaway[2] = (unsigned char)(8 + length); /* below 256 */
    memcpy(text, settings, sizeof settings);
    memcpy(text + sizeof settings, goaway, sizeof goaway);
    (void)send(fd, text, head + (size_t)length, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void refuse(struct hd_rpc_arrivals *all, int fd, const struct sockaddr_storage *from,
                   const struct hd_rpc_peer *peer)
{
    tell_refused(all, from, peer);
    if (!all->server->tls)
        tell_client(all, fd, peer);
    (void)close(fd);
}

/* ---- waiting for the first bytes ---- */

static void on_poll_closed(uv_handle_t *handle)
{
    struct arrival *arrival = handle->data;
    struct hd_rpc_server *server = arrival->all->server;

    if (arrival->give && !server->closing)
        hd_rpc_acceptor_give(server->acceptor, arrival->fd);
    else
        (void)close(arrival->fd);
    free(arrival);
    hd_rpc_server_handle_closed(server);
}

/* Takes the connection from the list; on_poll_closed gives or closes it. */
static void dismiss(struct arrival *arrival)
{
    struct hd_rpc_arrivals *all = arrival->all;

    *arrival->link = arrival->next;
    if (arrival->next)
        arrival->next->link = arrival->link;
    else
        all->last = arrival->link;
    all->waiting--;
    uv_close((uv_handle_t *)&arrival->poll, on_poll_closed);
}

static void on_deadline(uv_timer_t *timer);

static void set_timer(struct hd_rpc_arrivals *all)
{
    int64_t left_ms;

    if (!all->first)
        return;
    left_ms = all->first->deadline_ms - hd_clock_now_ms();
    (void)uv_timer_start(&all->deadline, on_deadline, left_ms > 0 ? (uint64_t)left_ms : 1, 0);
}

static void on_deadline(uv_timer_t *timer)
{
    struct hd_rpc_arrivals *all = timer->data;
    int64_t now_ms = hd_clock_now_ms();

    while (all->first && all->first->deadline_ms <= now_ms)
        dismiss(all->first);
    set_timer(all);
}

static void on_first_call(uv_timer_t *timer)
{
    struct hd_rpc_arrivals *all = timer->data;
    const int64_t now_ms = hd_clock_now_ms();
    int64_t next_ms;
    size_t count = hd_rpc_given_end_overdue(&all->given, now_ms, &next_ms);
    char why[64];

    if (count) {
        (void)snprintf(why, sizeof why, "none came within %g s",
                       (double)all->server->options.first_call_ms / 1e3);
        tell_strangers(all, count, why);
    }
    if (next_ms)
        (void)uv_timer_start(timer, on_first_call, (uint64_t)(next_ms - now_ms), 0);
}

/* Notes a connection as gRPC's. False: no memory. */
static bool note_given(struct hd_rpc_arrivals *all, const struct arrival *arrival)
{
    const int64_t span_ms = all->server->options.first_call_ms;

    if (!hd_rpc_given_add(&all->given, arrival->fd, &arrival->from, hd_clock_now_ms() + span_ms))
        return false;
    if (!uv_is_active((uv_handle_t *)&all->first_call))
        (void)uv_timer_start(&all->first_call, on_first_call, (uint64_t)span_ms, 0);
    return true;
}

void hd_rpc_arrivals_prove(struct hd_rpc_arrivals *all, const char *peer)
{
    hd_rpc_given_prove(&all->given, peer);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct arrival *arrival = poll->data;
    ssize_t count;
    char byte;

    (void)status, (void)events;
    count = recv(arrival->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    arrival->give = count > 0 && note_given(arrival->all, arrival);
    dismiss(arrival);
}

void hd_rpc_arrivals_take(struct hd_rpc_arrivals *all, int fd, const struct sockaddr_storage *from)
{
    const struct hd_rpc_peer peer = hd_rpc_peer_of(from);
    struct arrival *arrival;

    if (!make_room(all, &peer)) {
        refuse(all, fd, from, &peer);
        return;
    }
    arrival = calloc(1, sizeof *arrival);
    if (!arrival || uv_poll_init(all->server->rpc->loop, &arrival->poll, fd)) {
        free(arrival);
        (void)close(fd);
        return;
    }
    arrival->all = all;
    arrival->poll.data = arrival;
    arrival->from = *from;
    arrival->peer = peer;
    arrival->fd = fd;
    arrival->deadline_ms = hd_clock_now_ms() + all->server->options.first_bytes_ms;
    arrival->link = all->last;
    *all->last = arrival;
    all->last = &arrival->next;
    all->waiting++;
    all->server->handles++;
    (void)uv_poll_start(&arrival->poll, UV_READABLE, on_readable); /* not closing: cannot fail */
    if (!uv_is_active((uv_handle_t *)&all->deadline))
        set_timer(all);
}

/* ---- coming and going ---- */

enum hd_status hd_rpc_arrivals_open(struct hd_rpc_server *server, struct hd_rpc_arrivals **ret)
{
    const struct hd_rpc_server_options *options = &server->options;
    struct hd_rpc_arrivals *all = calloc(1, sizeof *all);

    if (!all)
        return hd_err(HD_NO_MEMORY, "no memory to listen");
    all->server = server;
    all->last = &all->first;
    all->max = options->connections_max ? options->connections_max : default_max();
    all->max_of_peer = options->connections_of_peer_max ? options->connections_of_peer_max
                                                        : all->max / SHARE_OF_ONE_PEER;
    (void)uv_timer_init(server->rpc->loop, &all->deadline);
    (void)uv_timer_init(server->rpc->loop, &all->first_call);
    all->deadline.data = all->first_call.data = all;
    server->handles += 2;
    *ret = all;
    return HD_OK;
}

static void on_timer_closed(uv_handle_t *handle)
{
    hd_rpc_server_handle_closed(((struct hd_rpc_arrivals *)handle->data)->server);
}

void hd_rpc_arrivals_close(struct hd_rpc_arrivals *all)
{
    while (all->first)
        dismiss(all->first);
    uv_close((uv_handle_t *)&all->deadline, on_timer_closed);
    uv_close((uv_handle_t *)&all->first_call, on_timer_closed);
}

void hd_rpc_arrivals_free(struct hd_rpc_arrivals *all)
{
    if (!all)
        return;
    assert(!all->first);
    hd_rpc_given_done(&all->given);
    free(all);
}
