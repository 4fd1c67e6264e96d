#include "rpc/relay_internal.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "rpc/acceptor.h"
#include "rpc/server_internal.h"

enum {
    FILES_SPARED = 128, /* file descriptors kept for everything except TCP connections */
    /* descriptors of one TCP connection: the socket, and both ends of the socket pair */
    FILES_OF_A_CONNECTION = 3,
    /* lowest default limit of TCP connections, however low the limit of open files is */
    CONNECTIONS_MIN = 16,
    CONNECTIONS_MAX = 32768,
    /* default limit for one address: a fourth of the limit of all connections */
    DIVISOR_OF_ONE_PEER = 4,
    /* limit of unauthenticated connections; while OUTSIDE one costs a file descriptor only */
    UNAUTHENTICATED_MAX = 4096,
    INSIDE_MAX = 128,
    INSIDE_OF_ADDRESS_MAX = 32,
    TLS_BYTES_MAX = 24 * 1024, /* bounds of bytes, from here on: see relay.h */
    PLAIN_BYTES_MAX = 12 * 1024,
    SUSPECT_BYTES_MAX = 8 * 1024,
    TLS_BYTES_FREE = 1024,
    PLAIN_BYTES_FREE = 128,
    BUDGET_BYTES_PER_S = 128 * 1024,
    HELD_MS = 2000,
    HELD_SUSPECT_MS = 250,
    DENIED_MAX = 32, /* limit of calls without a valid token on one connection */
    SPENT_MS = 1000, /* time to send a call with a token after the last allowed byte, ms */
    TICK_MS = 10,
    RETRY_MS = 100,
    EVENTS_MAX = 32,
    ACCEPTS_PER_WAKE = 64,
    LISTENERS_MAX = 64,
    /* rounds of TICK_MS that the thread runs at the end, to send gRPC's last bytes */
    LAST_ROUNDS = 50,
};

struct hd_rpc_relay {
    struct hd_rpc_server *server;
    struct relay_source wake;
    struct relay_listener listeners[LISTENERS_MAX];
    size_t listener_count;
    char name[32]; /* prefix of the names of this relay's socket pairs */
    uv_thread_t thread;
    bool started;

    /* guards the members below; the thread holds it while it handles a batch of events */
    uv_mutex_t lock;
    struct hd_unauth_table *table;
    struct relay_link **slots;
    size_t slot_count, open, next_slot;
    struct relay_pump pump;
    /* bytes of closed unauthenticated connections that have not returned to the budget yet */
    size_t debt;
    int64_t debt_ms;
    uint32_t dice;
    uint32_t round;
    struct relay_link *dead;
    struct hd_rpc_rate refusals, unauthenticated;
    bool closing, stop;

    /* gRPC's ends of new socket pairs, passed to gRPC after `lock` is released */
    int gives[EVENTS_MAX * ACCEPTS_PER_WAKE];
    size_t give_count;
    uv_mutex_t give_lock; /* held while ends are passed to gRPC; guards gives_no_more */
    bool gives_no_more;
};

/* ---- limits ---- */

static size_t default_max(void)
{
    struct rlimit limit;
    size_t most;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 ||
        limit.rlim_cur < FILES_SPARED + FILES_OF_A_CONNECTION * CONNECTIONS_MIN)
        return CONNECTIONS_MIN;
    most = (size_t)(limit.rlim_cur - FILES_SPARED) / FILES_OF_A_CONNECTION;
    return most < CONNECTIONS_MAX ? most : CONNECTIONS_MAX;
}

static size_t at_most(size_t value, size_t most)
{
    return value < most ? value : most;
}

static struct hd_unauth_limits limits_of(const struct hd_rpc_server_options *o)
{
    const size_t max = o->connections_max ? o->connections_max : default_max();
    const size_t of_address = o->connections_of_peer_max   ? o->connections_of_peer_max
                              : max >= DIVISOR_OF_ONE_PEER ? max / DIVISOR_OF_ONE_PEER
                                                           : 1;

    return (struct hd_unauth_limits){
        .connections = max,
        .connections_of_address = of_address,
        .known = max,
        .known_of_address = of_address,
        .unauthenticated = at_most(max, UNAUTHENTICATED_MAX),
        .unauthenticated_of_address =
            at_most(of_address, UNAUTHENTICATED_MAX / DIVISOR_OF_ONE_PEER),
        .inside = at_most(max, INSIDE_MAX),
        .inside_of_address = at_most(of_address, INSIDE_OF_ADDRESS_MAX),
    };
}

/* ---- lines of the log, and what a refused client hears ---- */

static void report_unauthenticated(struct hd_rpc_relay *relay, const char *why)
{
    size_t left_out;

    if (hd_rpc_rate_allows(&relay->unauthenticated, &left_out))
        hd_log(HD_LOG_WARN,
               "closed a TCP connection that sent no call with a token: %s (%zu more "
               "closed since the last such line)",
               why, left_out);
}

static const void *host_of(const struct sockaddr_storage *from)
{
    return from->ss_family == AF_INET6
               ? (const void *)&((const struct sockaddr_in6 *)from)->sin6_addr
               : (const void *)&((const struct sockaddr_in *)from)->sin_addr;
}

static void report_refused(struct hd_rpc_relay *relay, const struct sockaddr_storage *from)
{
    const struct hd_unauth_limits limits = limits_of(&relay->server->options);
    char host[INET6_ADDRSTRLEN] = "?";
    size_t all, mine, left_out;

    if (!hd_rpc_rate_allows(&relay->refusals, &left_out))
        return;
    all = hd_unauth_count(relay->table, from, &mine);
    (void)inet_ntop(from->ss_family, host_of(from), host, sizeof host);
    hd_log(
        HD_LOG_WARN,
        "refused a connection from %s: it has %zu of at most %zu connections of one address, all "
        "addresses have %zu of at most %zu (%zu more refused since the last such line)",
        host, mine, limits.connections_of_address, all, limits.connections, left_out);
}

/* Tells a client without TLS why it is refused: HTTP/2 clients show the text of GOAWAY in their
 * error. */
static void notify_client(const struct hd_rpc_relay *relay, int fd,
                          const struct sockaddr_storage *from)
{
    static const unsigned char settings[9] = {[3] = 4};
    const struct hd_unauth_limits limits = limits_of(&relay->server->options);
    /* error code ENHANCE_YOUR_CALM, last stream 0: none was processed */
    unsigned char goaway[9 + 8] = {[3] = 7, [16] = 11};
    const size_t head = sizeof settings + sizeof goaway;
    char text[sizeof settings + sizeof goaway + 200];
    size_t all, mine;
    bool peer_full;
    int length;

    all = hd_unauth_count(relay->table, from, &mine);
    peer_full = mine >= limits.connections_of_address;
    length = snprintf(text + head, sizeof text - head,
                      "refused: too many connections%s are open (%zu of at most %zu); close some "
                      "and try again",
                      peer_full ? " from this address" : "", peer_full ? mine : all,
                      peer_full ? limits.connections_of_address : limits.connections);
    goaway[2] = (unsigned char)(8 + length); /* frame length in one byte: below 256 */
    memcpy(text, settings, sizeof settings);
    memcpy(text + sizeof settings, goaway, sizeof goaway);
    (void)send(fd, text, head + (size_t)length, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* ---- links ---- */

static bool grow_slots(struct hd_rpc_relay *relay)
{
    const size_t room = relay->slot_count ? 2 * relay->slot_count : 64;
    struct relay_link **slots = realloc(relay->slots, room * sizeof *slots);

    if (!slots)
        return false;
    memset(slots + relay->slot_count, 0, (room - relay->slot_count) * sizeof *slots);
    relay->next_slot = relay->slot_count;
    relay->slots = slots;
    relay->slot_count = room;
    return true;
}

/* Puts a link into a free place of the relay's table. Returns false if out of memory. */
static bool take_slot(struct hd_rpc_relay *relay, struct relay_link *link)
{
    if (relay->open == relay->slot_count && !grow_slots(relay))
        return false;
    while (relay->slots[relay->next_slot % relay->slot_count])
        relay->next_slot++;
    link->slot = (uint32_t)(relay->next_slot++ % relay->slot_count);
    relay->slots[link->slot] = link;
    relay->open++;
    link->round = ++relay->round;
    return true;
}

/* Closes a link; its memory is freed after the epoll events of this round have been handled. */
static void end_link(struct hd_rpc_relay *relay, struct relay_link *link)
{
    if (link->dead)
        return;
    link->dead = true;
    if (!relay->debt)
        relay->debt_ms = hd_clock_now_ms();
    relay->debt += relay_link_charge(link);
    relay_link_close(&relay->pump, link);
    hd_unauth_leave(relay->table, &link->connection, hd_clock_now_ms());
    relay->slots[link->slot] = NULL;
    relay->open--;
    link->next = relay->dead;
    relay->dead = link;
}

static void end_victim(struct hd_rpc_relay *relay, struct hd_unauth_connection *victim)
{
    if (!victim)
        return;
    if (victim->stage == HD_UNAUTH_INSIDE) {
        hd_unauth_break(victim, hd_clock_now_ms());
        report_unauthenticated(relay, "a new connection needs its place");
    }
    end_link(relay, (struct relay_link *)victim);
}

static void free_dead(struct hd_rpc_relay *relay)
{
    while (relay->dead) {
        struct relay_link *link = relay->dead;

        relay->dead = link->next;
        free(link);
    }
}

static void take(struct hd_rpc_relay *relay, int fd, const struct sockaddr_storage *from)
{
    struct relay_link *link = calloc(1, sizeof *link);
    const int64_t now_ms = hd_clock_now_ms();
    struct hd_unauth_connection *victim;

    if (!link) {
        (void)close(fd);
        return;
    }
    if (!hd_unauth_arrive(relay->table, &link->connection, from, now_ms, &victim)) {
        report_refused(relay, from);
        if (!relay->server->tls)
            notify_client(relay, fd, from);
        (void)close(fd);
        free(link);
        return;
    }
    end_victim(relay, victim);
    if (!take_slot(relay, link)) {
        hd_unauth_leave(relay->table, &link->connection, now_ms);
        (void)close(fd);
        free(link);
        return;
    }
    link->from = *from;
    link->net.source = (struct relay_source){.link = link, .fd = fd};
    link->pair.source = (struct relay_source){.link = link, .fd = -1};
    relay_link_watch(&relay->pump, link);
}

/* ---- going in ---- */

/* Makes the socket pair of a link; gRPC reports the name bound to its first end as the peer's
 * address. */
static bool make_pair(const struct hd_rpc_relay *relay, const struct relay_link *link, int fds[2])
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    int length;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
        return false;
    length = snprintf(un.sun_path + 1, sizeof un.sun_path - 1, "%s%" PRIu32 "-%" PRIu32,
                      relay->name, link->slot, link->round);
    if (bind(fds[0], (const struct sockaddr *)&un,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)) == 0)
        return true;
    (void)close(fds[0]);
    (void)close(fds[1]);
    return false;
}

/* Makes a socket pair for a link and queues one end of it for gRPC. Returns false if no file
 * descriptor is free or too many ends are queued; retry later. */
static bool open_pair(struct hd_rpc_relay *relay, struct relay_link *link)
{
    int fds[2];

    if (relay->give_count == sizeof relay->gives / sizeof relay->gives[0] ||
        !make_pair(relay, link, fds))
        return false;
    link->pair.source.fd = fds[0];
    relay->gives[relay->give_count++] = fds[1];
    relay_link_move(&relay->pump, link, &link->net, EPOLLIN);
    return true;
}

/* Moves an unauthenticated connection INSIDE, so that gRPC gets it. Returns false if it must wait.
 */
static bool let_in(struct hd_rpc_relay *relay, struct relay_link *link, int64_t now_ms)
{
    struct hd_unauth_connection *victim;

    if (relay->closing || !hd_unauth_enter(relay->table, &link->connection, now_ms, &victim))
        return false;
    end_victim(relay, victim);
    link->inside_ms = now_ms;
    link->taken_max = hd_unauth_level(&link->connection, now_ms) ? SUSPECT_BYTES_MAX
                      : relay->server->tls                       ? TLS_BYTES_MAX
                                                                 : PLAIN_BYTES_MAX;
    link->taken_free = relay->server->tls ? TLS_BYTES_FREE : PLAIN_BYTES_FREE;
    (void)open_pair(relay, link);
    return true;
}

static void give_all(struct hd_rpc_relay *relay)
{
    uv_mutex_lock(&relay->give_lock);
    for (size_t i = 0; i < relay->give_count; i++) {
        if (relay->gives_no_more)
            (void)close(relay->gives[i]);
        else
            hd_rpc_acceptor_give(relay->server->acceptor, relay->gives[i]);
    }
    relay->give_count = 0;
    uv_mutex_unlock(&relay->give_lock);
}

/* ---- unauthenticated connections, by the clock ---- */

/* Returns whether an unauthenticated connection has held bytes of the budget for too long while
 * other connections wait for such bytes. */
static bool holds_too_long(const struct hd_rpc_relay *relay, const struct relay_link *link,
                           int64_t now_ms)
{
    const bool suspect =
        link->taken >= RELAY_LINK_BYTES || hd_unauth_level(&link->connection, now_ms) > 0;

    return relay->pump.budget <= RELAY_BUDGET_BYTES / 2 && link->charged_ms &&
           now_ms - link->charged_ms >= (suspect ? HELD_SUSPECT_MS : HELD_MS);
}

static void check_inside(struct hd_rpc_relay *relay, struct relay_link *link, int64_t now_ms)
{
    const int64_t first_call_ms = relay->server->options.first_call_ms;
    char why[128];

    if (link->spent_ms && now_ms - link->spent_ms >= SPENT_MS) {
        (void)snprintf(why, sizeof why, "it has sent %zu KiB without one", link->taken / 1024);
        hd_unauth_break(&link->connection, now_ms);
    } else if (now_ms - link->inside_ms >= first_call_ms) {
        (void)snprintf(why, sizeof why, "none came within %g s; or this machine is overloaded",
                       (double)first_call_ms / 1e3);
    } else if (holds_too_long(relay, link, now_ms)) {
        (void)snprintf(why, sizeof why,
                       "all such connections together have sent too much; or this "
                       "machine is overloaded");
        hd_unauth_break(&link->connection, now_ms);
    } else {
        if (link->pair.source.fd < 0)
            (void)open_pair(relay, link);
        return;
    }
    report_unauthenticated(relay, why);
    end_link(relay, link);
}

static void refill(struct hd_rpc_relay *relay, int64_t now_ms)
{
    const size_t due = (size_t)(now_ms - relay->debt_ms) * BUDGET_BYTES_PER_S / 1000,
                 paid = due < relay->debt ? due : relay->debt;

    relay->debt -= paid;
    relay->pump.budget += paid;
    relay->debt_ms = now_ms;
}

static void check_outside(struct hd_rpc_relay *relay, struct relay_link *link, int64_t now_ms)
{
    const struct hd_rpc_server_options *o = &relay->server->options;
    const int64_t limit_ms = o->first_bytes_ms + (link->ready ? o->first_call_ms : 0);

    if (now_ms - link->connection.since_ms >= limit_ms)
        end_link(relay, link);
    else if (link->ready)
        (void)let_in(relay, link, now_ms);
}

/* Copies bytes of unauthenticated connections that waited for the budget. is_below_limit true: only
 * of connections that have sent less than RELAY_LINK_BYTES; false: only of the others. */
static void move_waiting(struct hd_rpc_relay *relay, bool is_below_limit)
{
    struct hd_unauth_connection *newer;

    for (struct hd_unauth_connection *s = hd_unauth_oldest(relay->table); s; s = newer) {
        struct relay_link *link = (struct relay_link *)s;

        newer = s->newer;
        if (s->stage == HD_UNAUTH_INSIDE && (link->taken < RELAY_LINK_BYTES) == is_below_limit)
            relay_link_move(&relay->pump, link, &link->net, EPOLLIN);
    }
}

/* Checks all unauthenticated connections: in seven of eight rounds, at random, from the newest to
 * the oldest, else from the oldest. Why the newest first: an attacker's connections that wait
 * outside reconnect only after one of them was let in and closed, so an honest client that has just
 * connected is the newest when its address may enter next; if it misses that, it reconnects. Why
 * sometimes the oldest first: many honest clients that only wait must not starve the oldest of
 * them.
 */
static void check_unauthenticated(struct hd_rpc_relay *relay, int64_t now_ms)
{
    struct hd_unauth_connection *s, *next;
    bool from_oldest;

    refill(relay, now_ms);
    relay->dice = relay->dice * 1664525u + 1013904223u;
    from_oldest = relay->dice >> 29 == 0;
    s = from_oldest ? hd_unauth_oldest(relay->table) : hd_unauth_newest(relay->table);
    for (; s; s = next) {
        next = from_oldest ? s->newer : s->older;
        if (s->stage == HD_UNAUTH_INSIDE)
            check_inside(relay, (struct relay_link *)s, now_ms);
        else
            check_outside(relay, (struct relay_link *)s, now_ms);
        if (next && ((struct relay_link *)next)->dead)
            break; /* `next` was closed for another connection; the next round checks the rest */
    }
    move_waiting(relay, true);
    move_waiting(relay, false);
}

/* ---- events ---- */

static void on_link(struct hd_rpc_relay *relay, const struct relay_source *source, uint32_t events)
{
    struct relay_link *link = source->link;
    const int64_t now_ms = hd_clock_now_ms();

    if (link->dead)
        return;
    if (link->connection.stage == HD_UNAUTH_OUTSIDE) {
        char byte;

        if (recv(source->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) {
            link->ready = true;
            if (!let_in(relay, link, now_ms))
                relay_link_watch(&relay->pump, link);
        } else if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
            end_link(relay, link);
        }
        return;
    }
    relay_link_move(&relay->pump, link, source == &link->net.source ? &link->net : &link->pair,
                    events);
    if (relay_link_is_over(link))
        end_link(relay, link);
}

static void watch_listener(struct hd_rpc_relay *relay, struct relay_listener *l, bool on)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &l->source};

    if (on == (l->source.events != 0))
        return;
    (void)epoll_ctl(relay->pump.epoll_fd, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, l->source.fd, &event);
    l->source.events = on ? EPOLLIN : 0;
}

/* Pauses accepting after a failure, because the pending connection would wake the thread again and
 * again. */
static void pause_listener(struct hd_rpc_relay *relay, struct relay_listener *l, int error)
{
    size_t left_out;

    if (hd_rpc_rate_allows(&l->failures, &left_out))
        hd_log(HD_LOG_WARN,
               "cannot accept on %s, retrying: %s (%zu more failures since the last such line)",
               l->name, strerror(error), left_out);
    watch_listener(relay, l, false);
    l->retry_ms = hd_clock_now_ms() + RETRY_MS;
}

static void on_connection(struct hd_rpc_relay *relay, struct relay_listener *l)
{
    for (int i = 0; i < ACCEPTS_PER_WAKE && l->source.fd >= 0; i++) {
        struct sockaddr_storage from = {0};
        socklen_t bytes = sizeof from;
        const int fd =
            accept4(l->source.fd, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0) {
            take(relay, fd, &from);
        } else if (errno == EAGAIN) {
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            pause_listener(relay, l, errno);
            return;
        }
    }
}

static void drain_wake(const struct hd_rpc_relay *relay)
{
    uint64_t count;

    (void)!read(relay->wake.fd, &count, sizeof count);
}

static void wake(const struct hd_rpc_relay *relay)
{
    const uint64_t one = 1;

    (void)!write(relay->wake.fd, &one, sizeof one); /* a full counter wakes the thread, too */
}

static bool retry_listeners(struct hd_rpc_relay *relay, int64_t now_ms)
{
    bool paused = false;

    for (size_t i = 0; i < relay->listener_count; i++) {
        struct relay_listener *l = &relay->listeners[i];

        if (!l->retry_ms || l->source.fd < 0)
            continue;
        if (l->retry_ms <= now_ms) {
            l->retry_ms = 0;
            watch_listener(relay, l, true);
        } else {
            paused = true;
        }
    }
    return paused;
}

/* Handles one round of epoll events. Returns the timeout of the next round in ms; -1: none. */
static int handle(struct hd_rpc_relay *relay, const struct epoll_event *events, int count,
                  int64_t *tick_ms)
{
    const int64_t now_ms = hd_clock_now_ms();
    bool by_the_clock;

    relay->pump.now_ms = now_ms;
    for (int i = 0; i < count; i++) {
        const struct relay_source *source = events[i].data.ptr;

        if (source->link)
            on_link(relay, source, events[i].events);
        else if (source->listener)
            on_connection(relay, source->listener);
        else
            drain_wake(relay);
    }
    by_the_clock = retry_listeners(relay, now_ms);
    if (now_ms - *tick_ms >= TICK_MS) {
        *tick_ms = now_ms;
        check_unauthenticated(relay, now_ms);
    }
    free_dead(relay);
    return by_the_clock || relay->debt || hd_unauth_oldest(relay->table) ? TICK_MS : -1;
}

static void run(void *arg)
{
    struct hd_rpc_relay *relay = arg;
    struct epoll_event events[EVENTS_MAX];
    int timeout_ms = -1, last_rounds = 0;
    int64_t tick_ms = 0;
    bool stop = false;

    while (!stop) {
        const int count = epoll_wait(relay->pump.epoll_fd, events, EVENTS_MAX, timeout_ms);

        uv_mutex_lock(&relay->lock);
        timeout_ms = handle(relay, events, count > 0 ? count : 0, &tick_ms);
        if (relay->stop) {
            /* gRPC has closed its ends of the socket pairs: their last bytes are being sent to the
             * clients */
            timeout_ms = TICK_MS;
            stop = !relay->open || ++last_rounds >= LAST_ROUNDS;
        }
        uv_mutex_unlock(&relay->lock);
        give_all(relay);
    }
}

/* ---- for the loop's thread ---- */

/* Finds a link by the name of its socket pair. The caller holds the lock. Returns NULL if the name
 * is unknown or the connection has ended. */
static struct relay_link *find_link(struct hd_rpc_relay *relay, const char *peer)
{
    const char *at = strstr(peer, relay->name);
    struct relay_link *link;
    uint32_t slot, round;

    if (!at || sscanf(at + strlen(relay->name), "%" SCNu32 "-%" SCNu32, &slot, &round) != 2 ||
        slot >= relay->slot_count)
        return NULL;
    link = relay->slots[slot];
    return link && link->round == round ? link : NULL;
}

bool hd_rpc_relay_name(struct hd_rpc_relay *relay, const char *peer,
                       char ret_name[HD_RPC_RELAY_NAME_MAX])
{
    struct sockaddr_storage from = {0};
    char host[INET6_ADDRSTRLEN];
    struct relay_link *link;

    uv_mutex_lock(&relay->lock);
    link = find_link(relay, peer);
    if (link)
        from = link->from;
    uv_mutex_unlock(&relay->lock);
    if (!link || !inet_ntop(from.ss_family, host_of(&from), host, sizeof host))
        return false;
    (void)snprintf(ret_name, HD_RPC_RELAY_NAME_MAX,
                   from.ss_family == AF_INET6 ? "ipv6:[%s]:%d" : "ipv4:%s:%d", host,
                   ntohs(from.ss_family == AF_INET6
                             ? ((const struct sockaddr_in6 *)&from)->sin6_port
                             : ((const struct sockaddr_in *)&from)->sin_port));
    return true;
}

void hd_rpc_relay_prove(struct hd_rpc_relay *relay, const char *peer)
{
    struct relay_link *link;

    uv_mutex_lock(&relay->lock);
    link = find_link(relay, peer);
    if (link && link->connection.stage != HD_UNAUTH_KNOWN) {
        relay->pump.budget += relay_link_charge(link);
        hd_unauth_prove(relay->table, &link->connection);
        relay_link_watch(&relay->pump, link);
    }
    uv_mutex_unlock(&relay->lock);
}

void hd_rpc_relay_deny(struct hd_rpc_relay *relay, const char *peer)
{
    struct relay_link *link;

    uv_mutex_lock(&relay->lock);
    link = find_link(relay, peer);
    if (link && link->connection.stage != HD_UNAUTH_KNOWN && ++link->denied == DENIED_MAX) {
        /* nothing more is read; it still gets its replies, and is closed soon */
        link->taken_max = link->taken;
        link->spent_ms = hd_clock_now_ms();
        relay_link_watch(&relay->pump, link);
    }
    uv_mutex_unlock(&relay->lock);
}

size_t hd_rpc_relay_listeners(const struct hd_rpc_relay *relay)
{
    return relay->listener_count;
}

void hd_rpc_relay_unlisten(struct hd_rpc_relay *relay, size_t kept)
{
    while (relay->listener_count > kept)
        (void)close(relay->listeners[--relay->listener_count].source.fd);
}

enum hd_status hd_rpc_relay_listen(struct hd_rpc_relay *relay, int fd, const char *name)
{
    struct relay_listener *l = &relay->listeners[relay->listener_count];

    assert(!relay->started);
    if (relay->listener_count == LISTENERS_MAX) {
        (void)close(fd);
        return hd_err(HD_LIMIT, "cannot listen on %s: a server has at most %d TCP addresses", name,
                      LISTENERS_MAX);
    }
    *l = (struct relay_listener){.source = {.listener = l, .fd = fd}};
    (void)snprintf(l->name, sizeof l->name, "%s", name);
    relay->listener_count++;
    return HD_OK;
}

/* ---- coming and going ---- */

static void free_relay(struct hd_rpc_relay *relay)
{
    hd_rpc_relay_unlisten(relay, 0);
    if (relay->pump.epoll_fd >= 0)
        (void)close(relay->pump.epoll_fd);
    if (relay->wake.fd >= 0)
        (void)close(relay->wake.fd);
    uv_mutex_destroy(&relay->lock);
    uv_mutex_destroy(&relay->give_lock);
    hd_unauth_free(relay->table);
    free(relay->slots);
    free(relay->pump.scratch);
    free(relay);
}

enum hd_status hd_rpc_relay_open(struct hd_rpc_server *server, struct hd_rpc_relay **ret_relay)
{
    const struct hd_unauth_limits limits = limits_of(&server->options);
    struct hd_rpc_relay *relay = calloc(1, sizeof *relay);
    uint64_t number = 0;
    enum hd_status st;

    if (!relay || uv_mutex_init(&relay->lock)) {
        free(relay);
        return hd_err(HD_NO_MEMORY, "no memory to listen");
    }
    if (uv_mutex_init(&relay->give_lock)) {
        uv_mutex_destroy(&relay->lock);
        free(relay);
        return hd_err(HD_NO_MEMORY, "no memory to listen");
    }
    relay->server = server;
    relay->pump.budget = RELAY_BUDGET_BYTES;
    relay->debt_ms = hd_clock_now_ms();
    relay->table = hd_unauth_new(&limits);
    relay->pump.scratch = malloc(RELAY_SCRATCH_BYTES);
    relay->pump.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    relay->wake.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    st = hd_random_bytes(&number, sizeof number);
    if (!st && (!relay->table || !relay->pump.scratch))
        st = hd_err(HD_NO_MEMORY, "no memory to listen");
    if (!st && (relay->pump.epoll_fd < 0 || relay->wake.fd < 0 ||
                epoll_ctl(relay->pump.epoll_fd, EPOLL_CTL_ADD, relay->wake.fd,
                          &(struct epoll_event){.events = EPOLLIN, .data.ptr = &relay->wake}) < 0))
        st = hd_err(HD_LIMIT, "cannot listen: no descriptor is left (%m)");
    if (st) {
        free_relay(relay);
        return st;
    }
    (void)snprintf(relay->name, sizeof relay->name, "heddle-%016" PRIx64 "-", number);
    *ret_relay = relay;
    return HD_OK;
}

enum hd_status hd_rpc_relay_start(struct hd_rpc_relay *relay)
{
    int code;

    for (size_t i = 0; i < relay->listener_count; i++)
        watch_listener(relay, &relay->listeners[i], true);
    code = uv_thread_create(&relay->thread, run, relay);
    if (code)
        return hd_err(HD_NO_MEMORY, "cannot start the thread of TCP connections: %s",
                      uv_strerror(code));
    relay->started = true;
    return HD_OK;
}

void hd_rpc_relay_close(struct hd_rpc_relay *relay)
{
    struct hd_unauth_connection *newer;

    uv_mutex_lock(&relay->lock);
    relay->closing = true;
    for (size_t i = 0; i < relay->listener_count; i++) {
        watch_listener(relay, &relay->listeners[i], false);
        (void)close(relay->listeners[i].source.fd);
        relay->listeners[i].source.fd = -1;
    }
    for (struct hd_unauth_connection *s = hd_unauth_oldest(relay->table); s; s = newer) {
        newer = s->newer;
        if (s->stage == HD_UNAUTH_OUTSIDE)
            end_link(relay, (struct relay_link *)s);
    }
    uv_mutex_unlock(&relay->lock);
    uv_mutex_lock(&relay->give_lock);
    relay->gives_no_more = true;
    uv_mutex_unlock(&relay->give_lock);
    wake(relay);
}

void hd_rpc_relay_free(struct hd_rpc_relay *relay)
{
    if (!relay)
        return;
    if (relay->started) {
        uv_mutex_lock(&relay->lock);
        relay->stop = true;
        uv_mutex_unlock(&relay->lock);
        wake(relay);
        (void)uv_thread_join(&relay->thread);
    }
    for (size_t i = 0; i < relay->slot_count; i++)
        if (relay->slots[i])
            end_link(relay, relay->slots[i]);
    free_dead(relay);
    relay->listener_count = relay->closing ? 0 : relay->listener_count;
    free_relay(relay);
}
