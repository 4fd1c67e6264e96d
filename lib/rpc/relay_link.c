#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "rpc/relay_internal.h"

enum { PIECES_PER_EVENT = 4 };

static bool is_known(const struct relay_link *link)
{
    return link->connection.stage == HD_UNAUTH_KNOWN;
}

static struct relay_end *other_of(struct relay_link *link, const struct relay_end *end)
{
    return end == &link->net ? &link->pair : &link->net;
}

size_t relay_link_charge(const struct relay_link *link)
{
    return link->connection.stage == HD_UNAUTH_INSIDE && link->taken > link->taken_free
               ? link->taken - link->taken_free
               : 0;
}

/* Returns how many bytes of an unauthenticated connection may be copied to gRPC now. */
static size_t bytes_of_unauthenticated(const struct relay_pump *pump, const struct relay_link *link)
{
    const size_t free = link->taken < link->taken_free ? link->taken_free - link->taken : 0;
    const size_t kept = link->taken < RELAY_LINK_BYTES ? 0 : RELAY_BUDGET_BYTES / 2;
    size_t space = free + (pump->budget > kept ? pump->budget - kept : 0);

    if (link->connection.stage == HD_UNAUTH_OUTSIDE || link->taken >= link->taken_max ||
        (link->moves >= RELAY_FREE_MOVES && pump->now_ms - link->moved_ms < RELAY_MOVE_PAUSE_MS))
        return 0;
    if (space > link->taken_max - link->taken)
        space = link->taken_max - link->taken;
    return space < RELAY_PIECE_BYTES ? space : RELAY_PIECE_BYTES;
}

/* Returns how many bytes may be read from `end` now. */
static size_t bytes_free_for(const struct relay_pump *pump, struct relay_link *link,
                             const struct relay_end *end)
{
    if (end->ended || other_of(link, end)->rest || other_of(link, end)->source.fd < 0)
        return 0;
    return end == &link->pair || is_known(link) ? RELAY_SCRATCH_BYTES
                                                : bytes_of_unauthenticated(pump, link);
}

static void drop_rest(struct relay_end *end)
{
    free(end->rest);
    end->rest = NULL;
}

/* Records that nothing can be written any more to this end of the link. */
static void break_end(struct relay_link *link, struct relay_end *end)
{
    drop_rest(end);
    end->shut = true;
    other_of(link, end)->ended = true;
    if (end == &link->net)
        /* the client is gone: gRPC's bytes have no receiver */
        link->pair.ended = link->net.ended = true;
}

/* Writes to one end of a link. Returns the number of bytes written; 0: its buffer is full; below 0:
 * the end is broken. */
static ssize_t write_some(const struct relay_end *end, const char *bytes, size_t count)
{
    ssize_t written;

    do
        written = send(end->source.fd, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (written < 0 && errno == EINTR);
    return written < 0 && (errno == EAGAIN || errno == ENOBUFS) ? 0 : written;
}

static void flush(struct relay_link *link, struct relay_end *end)
{
    const ssize_t written =
        write_some(end, end->rest + end->rest_begin, end->rest_end - end->rest_begin);

    if (written < 0) {
        break_end(link, end);
        return;
    }
    end->rest_begin += (size_t)written;
    if (end->rest_begin == end->rest_end)
        drop_rest(end);
}

static void keep_rest(struct relay_link *link, struct relay_end *end, const char *bytes,
                      size_t count)
{
    end->rest = malloc(count);
    if (!end->rest) {
        break_end(link, end);
        return;
    }
    memcpy(end->rest, bytes, count);
    end->rest_begin = 0;
    end->rest_end = count;
}

static void count_piece(struct relay_pump *pump, struct relay_link *link, size_t count)
{
    const size_t before = relay_link_charge(link);
    size_t charged;

    if (is_known(link))
        return;
    link->taken += count;
    link->moves++;
    link->moved_ms = pump->now_ms;
    charged = relay_link_charge(link) - before;
    pump->budget -= charged;
    if (charged && !link->charged_ms)
        link->charged_ms = pump->now_ms;
    if (link->taken >= link->taken_max)
        link->spent_ms = pump->now_ms;
}

/* Copies one piece of bytes from this end of the link to the other. Returns false if there are no
 * bytes, or no space for them. */
static bool move_piece(struct relay_pump *pump, struct relay_link *link, struct relay_end *end)
{
    const size_t space = bytes_free_for(pump, link, end);
    struct relay_end *to = other_of(link, end);
    ssize_t count, written;

    if (!space)
        return false;
    count = recv(end->source.fd, pump->scratch, space, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (count <= 0) {
        end->ended = true;
        return false;
    }
    if (end == &link->net)
        count_piece(pump, link, (size_t)count);
    written = write_some(to, pump->scratch, (size_t)count);
    if (written < 0)
        break_end(link, to);
    else if (written < count)
        keep_rest(link, to, pump->scratch + written, (size_t)(count - written));
    return (size_t)count == space && !to->rest;
}

static void pass_end_on(struct relay_link *link, struct relay_end *end)
{
    struct relay_end *to = other_of(link, end);

    if (!end->ended || to->rest || to->shut || to->source.fd < 0)
        return;
    (void)shutdown(to->source.fd, SHUT_WR);
    to->shut = true;
}

/* ---- epoll ---- */

static void update_events(int epoll_fd, struct relay_source *source, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = source};

    if (source->fd < 0 || events == source->events)
        return;
    (void)epoll_ctl(epoll_fd,
                    !events          ? EPOLL_CTL_DEL
                    : source->events ? EPOLL_CTL_MOD
                                     : EPOLL_CTL_ADD,
                    source->fd, &event); /* fails only for lack of memory */
    source->events = events;
}

/* An end that neither reads nor writes is not registered: its hang-up would wake the thread again
 * and again.
 */
void relay_link_watch(const struct relay_pump *pump, struct relay_link *link)
{
    const bool outside = link->connection.stage == HD_UNAUTH_OUTSIDE,
               net_in = outside ? !link->ready : bytes_free_for(pump, link, &link->net) > 0,
               pair_in = bytes_free_for(pump, link, &link->pair) > 0;

    update_events(pump->epoll_fd, &link->net.source,
                  (net_in ? EPOLLIN : 0) | (link->net.rest ? EPOLLOUT : 0));
    update_events(pump->epoll_fd, &link->pair.source,
                  (pair_in ? EPOLLIN : 0) | (link->pair.rest ? EPOLLOUT : 0));
}

void relay_link_move(struct relay_pump *pump, struct relay_link *link, struct relay_end *end,
                     uint32_t events)
{
    if (end->rest && events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
        flush(link, end);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        for (int i = 0; i < PIECES_PER_EVENT && move_piece(pump, link, end); i++)
            ;
    pass_end_on(link, &link->net);
    pass_end_on(link, &link->pair);
    relay_link_watch(pump, link);
}

bool relay_link_is_over(const struct relay_link *link)
{
    return link->pair.source.fd >= 0 ? link->pair.ended && !link->net.rest : link->net.ended;
}

static void close_end(int epoll_fd, struct relay_end *end)
{
    update_events(epoll_fd, &end->source, 0);
    if (end->source.fd >= 0)
        (void)close(end->source.fd);
    end->source.fd = -1;
    drop_rest(end);
}

void relay_link_close(const struct relay_pump *pump, struct relay_link *link)
{
    close_end(pump->epoll_fd, &link->net);
    close_end(pump->epoll_fd, &link->pair);
}
