#include "rpc/arrivals.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "rpc/acceptor.h"
#include "rpc/rate.h"
#include "rpc/server_internal.h"

enum {
    FILES_RESERVED = 128, /* descriptors for everything but TCP connections */
    CONNECTIONS_MIN = 16, /* of the default, however low the limit of open files is */
    CONNECTIONS_MAX = 32768,
    SHARE_OF_ONE_PEER = 4, /* by default one address has at most a fourth of all connections */
};

struct peer { /* an IPv4 address as ::ffff:a.b.c.d, or the first 8 bytes of an IPv6 address */
    unsigned char bytes[16];
};

/* A connection that has sent nothing yet. */
struct arrival {
    struct arrival *next, **link; /* oldest first */
    struct hd_rpc_arrivals *all;
    uv_poll_t poll;
    struct peer peer;
    int64_t deadline_ms;
    int fd;
    bool give; /* to gRPC, once the handle is closed; else the connection is closed then */
};

/* A connection that was handed to gRPC, which does not tell when it closes the descriptor. It has
 * closed it when the descriptor is invalid, or belongs to a socket with another inode. */
struct given {
    struct peer peer;
    int fd;
    ino_t inode;
};

struct hd_rpc_arrivals {
    struct hd_rpc_server *server;
    struct arrival *first, **last;
    size_t waiting;
    struct given *given;
    size_t given_count, given_room;
    size_t max, max_of_peer;
    int64_t look_again_ms; /* for given connections that were closed */
    uv_timer_t deadline;   /* of `first` */
    struct hd_rpc_rate refusals;
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

static struct peer peer_of(const struct sockaddr_storage *from)
{
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)from)->sin6_addr;
    struct peer peer = {{0}};

    if (from->ss_family == AF_INET) {
        memset(peer.bytes + 10, 0xff, 2);
        memcpy(peer.bytes + 12, &((const struct sockaddr_in *)from)->sin_addr, 4);
    } else if (from->ss_family == AF_INET6) {
        memcpy(peer.bytes, v6, IN6_IS_ADDR_V4MAPPED(v6) ? 16 : 8);
    }
    return peer;
}

static bool same_peer(const struct peer *a, const struct peer *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static size_t count_of_peer(const struct hd_rpc_arrivals *all, const struct peer *peer)
{
    size_t count = 0;

    for (const struct arrival *a = all->first; a; a = a->next)
        count += same_peer(&a->peer, peer);
    for (size_t i = 0; i < all->given_count; i++)
        count += same_peer(&all->given[i].peer, peer);
    return count;
}

static bool is_open(const struct given *given)
{
    struct stat info;

    return fstat(given->fd, &info) == 0 && S_ISSOCK(info.st_mode) && info.st_ino == given->inode;
}

/* Forgets the connections that gRPC has closed. A look costs below a microsecond for each; the
 * pause of a hundredth of a millisecond for each keeps a flood from filling the loop with looks. */
static void forget_closed(struct hd_rpc_arrivals *all)
{
    int64_t now_ms = hd_clock_now_ms();
    size_t kept = 0;

    if (now_ms < all->look_again_ms)
        return;
    all->look_again_ms = now_ms + (int64_t)all->given_count / 100;
    for (size_t i = 0; i < all->given_count; i++)
        if (is_open(&all->given[i]))
            all->given[kept++] = all->given[i];
    all->given_count = kept;
}

static bool is_full(const struct hd_rpc_arrivals *all)
{
    return all->waiting + all->given_count >= all->max;
}

static void dismiss(struct arrival *arrival);

/* Whether a connection of this peer may stay; makes room if that is possible. */
static bool make_room(struct hd_rpc_arrivals *all, const struct peer *peer)
{
    bool full = is_full(all), peer_full = count_of_peer(all, peer) >= all->max_of_peer;

    if (full || peer_full) {
        forget_closed(all);
        full = is_full(all);
        peer_full = count_of_peer(all, peer) >= all->max_of_peer;
    }
    if (!full && !peer_full)
        return true;
    for (struct arrival *a = all->first; a; a = a->next) {
        if (peer_full && !same_peer(&a->peer, peer))
            continue;
        dismiss(a);
        return true;
    }
    return false;
}

static void tell_refused(struct hd_rpc_arrivals *all, const struct sockaddr_storage *from,
                         const struct peer *peer)
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
        host, mine, all->max_of_peer, all->waiting + all->given_count, all->max, left_out);
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

/* Notes a connection as gRPC's. False: no memory. */
static bool note_given(struct hd_rpc_arrivals *all, const struct arrival *arrival)
{
    size_t room = all->given_room ? 2 * all->given_room : 64;
    struct given *given = all->given;
    struct stat info;

    if (all->given_count == all->given_room) {
        given = realloc(given, room * sizeof *given);
        if (!given)
            return false;
        all->given = given;
        all->given_room = room;
    }
    if (fstat(arrival->fd, &info) < 0)
        return false;
    given[all->given_count++] =
        (struct given){.peer = arrival->peer, .fd = arrival->fd, .inode = info.st_ino};
    return true;
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
    struct peer peer = peer_of(from);
    struct arrival *arrival;

    if (!make_room(all, &peer)) {
        tell_refused(all, from, &peer);
        (void)close(fd);
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
    all->deadline.data = all;
    server->handles++;
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
}

void hd_rpc_arrivals_free(struct hd_rpc_arrivals *all)
{
    if (!all)
        return;
    assert(!all->first);
    free(all->given);
    free(all);
}
