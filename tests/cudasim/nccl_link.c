#include "nccl_link.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAGIC = 0x6e63636c, WAKES = 4096 };

struct hd_link_out {
    struct hd_link_out *next;
    size_t size, done;
    char bytes[];
};

void hd_link_init(struct hd_link *link)
{
    *link = (struct hd_link){.fd = -1, .last = &link->first};
}

void hd_link_set(struct hd_link *link, int fd, struct hd_rings *rings)
{
    const int one = 1;

    link->fd = fd;
    link->rings = rings;
    if (!rings)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void drop_out(struct hd_link *link)
{
    while (link->first) {
        struct hd_link_out *out = link->first;

        link->first = out->next;
        free(out);
    }
    link->last = &link->first;
}

void hd_link_close(struct hd_link *link)
{
    if (link->fd < 0)
        return;
    (void)close(link->fd);
    link->fd = -1;
    hd_rings_unmap(link->rings);
    link->rings = NULL;
    free(link->message);
    link->message = NULL;
    drop_out(link);
}

/* ---- bytes ---- */

/* A full socket has enough to wake the other process with; one that is gone is noticed by take. */
static void wake(const struct hd_link *link)
{
    (void)!send(link->fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* How many were sent; -1: the other process takes no more. */
static ssize_t put(struct hd_link *link, const char *bytes, size_t size)
{
    ssize_t n;

    if (link->rings) {
        n = (ssize_t)hd_rings_put(link->rings, bytes, size);
        if (n > 0)
            wake(link);
        return n;
    }
    n = send(link->fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : n;
}

/* Empties the local socket. False: the other process is gone. */
static bool hear_wakes(const struct hd_link *link)
{
    char bytes[WAKES];
    ssize_t n;

    do
        n = recv(link->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    while (n > 0 || (n < 0 && errno == EINTR));
    return n < 0 && errno == EAGAIN;
}

static size_t take_from_rings(struct hd_link *link, char *to, size_t size)
{
    bool to_wake = false;
    const size_t n = hd_rings_take(link->rings, to, size, &to_wake);

    if (to_wake)
        wake(link);
    return n;
}

/* How many have come; 0 without `ended`: none now. */
static size_t take(struct hd_link *link, char *to, size_t size)
{
    ssize_t n;

    if (link->rings) {
        n = (ssize_t)take_from_rings(link, to, size);
        if (n > 0)
            return (size_t)n;
        /* Wakes are heard before the second look: what is put after it wakes again. */
        link->ended = !hear_wakes(link);
        n = (ssize_t)take_from_rings(link, to, size);
        if (n > 0)
            link->ended = false; /* first all that it has left */
        return (size_t)n;
    }
    n = recv(link->fd, to, size, MSG_DONTWAIT);
    link->ended = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
    return n > 0 ? (size_t)n : 0;
}

/* ---- messages ---- */

void hd_link_send(struct hd_link *link, const struct hd_link_header *header, const void *bytes)
{
    struct hd_link_out *out;

    if (link->fd < 0)
        return;
    out = malloc(sizeof *out + sizeof *header + header->bytes);
    if (!out)
        abort();
    *out = (struct hd_link_out){.size = sizeof *header + header->bytes};
    memcpy(out->bytes, header, sizeof *header);
    memcpy(out->bytes + offsetof(struct hd_link_header, magic), &(uint32_t){MAGIC}, 4);
    if (header->bytes)
        memcpy(out->bytes + sizeof *header, bytes, header->bytes);
    *link->last = out;
    link->last = &out->next;
    hd_link_flush(link);
}

void hd_link_flush(struct hd_link *link)
{
    while (link->first && link->fd >= 0) {
        struct hd_link_out *out = link->first;
        const ssize_t n = put(link, out->bytes + out->done, out->size - out->done);

        if (n < 0) { /* what it has sent before can still be taken */
            drop_out(link);
            return;
        }
        link->sent += (uint64_t)n;
        out->done += (size_t)n;
        if (out->done < out->size)
            return;
        link->first = out->next;
        if (!link->first)
            link->last = &link->first;
        free(out);
    }
}

bool hd_link_is_flushed(const struct hd_link *link)
{
    return !link->first;
}

short hd_link_events(const struct hd_link *link)
{
    return (short)(POLLIN | (link->first && !link->rings ? POLLOUT : 0));
}

/* The header has come: makes room for the message. False: it is none. */
static bool begin_message(struct hd_link *link)
{
    const struct hd_link_header *h = &link->header;

    if (h->magic != MAGIC)
        return false;
    link->message = malloc(sizeof *link->message + h->bytes);
    if (!link->message)
        abort();
    *link->message = (struct hd_wire_message){
        .peer = h->from, .kind = h->kind, .number = h->number, .bytes = h->bytes};
    return true;
}

struct hd_wire_message *hd_link_take(struct hd_link *link, struct hd_link_header *ret_header)
{
    struct hd_wire_message *message;

    while (!link->message || link->got < sizeof link->header + link->header.bytes) {
        char *to = link->message ? link->message->data + (link->got - sizeof link->header)
                                 : (char *)&link->header + link->got;
        const size_t end = sizeof link->header + (link->message ? link->header.bytes : 0);
        const size_t n = take(link, to, end - link->got);

        if (n == 0)
            return NULL;
        link->got += n;
        if (!link->message && link->got == sizeof link->header && !begin_message(link)) {
            link->ended = true;
            return NULL;
        }
    }
    message = link->message;
    *ret_header = link->header;
    link->message = NULL;
    link->got = 0;
    return message;
}
