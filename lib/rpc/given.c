#include "rpc/given.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"

enum {
    ENDING_MAX = 64, /* connections ended and not yet closed by gRPC: they still have descriptors */
    ROOM_MIN = 64,   /* a power of two */
};

struct hd_rpc_given_item {
    struct hd_rpc_peer peer;
    unsigned char host[16]; /* the whole address; IPv4 as ::ffff:a.b.c.d */
    uint16_t port;
    int fd;
    ino_t inode;
    int64_t deadline_ms; /* for the first call with a token; 0: there was one */
    bool ended;
    int32_t next; /* in the bucket; -1: the last */
};

/* ---- addresses ---- */

static void host_of(const struct sockaddr_storage *from, unsigned char ret_host[16])
{
    memset(ret_host, 0, 16);
    if (from->ss_family == AF_INET) {
        memset(ret_host + 10, 0xff, 2);
        memcpy(ret_host + 12, &((const struct sockaddr_in *)from)->sin_addr, 4);
    } else if (from->ss_family == AF_INET6) {
        memcpy(ret_host, &((const struct sockaddr_in6 *)from)->sin6_addr, 16);
    }
}

static uint16_t port_of(const struct sockaddr_storage *from)
{
    return ntohs(from->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)from)->sin6_port
                                             : ((const struct sockaddr_in *)from)->sin_port);
}

struct hd_rpc_peer hd_rpc_peer_of(const struct sockaddr_storage *from)
{
    struct hd_rpc_peer peer;

    host_of(from, peer.bytes);
    if (!IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)peer.bytes))
        memset(peer.bytes + 8, 0, 8);
    return peer;
}

bool hd_rpc_peer_same(const struct hd_rpc_peer *a, const struct hd_rpc_peer *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* gRPC may write the brackets as %5B and %5D, and a zone behind the address. */
static bool parse_peer(const char *text, unsigned char ret_host[16], uint16_t *ret_port)
{
    struct sockaddr_storage at = {0};
    char host[INET6_ADDRSTRLEN] = "";
    const char *colon = strrchr(text, ':');
    size_t length;

    if (!colon || colon - text < 5)
        return false;
    *ret_port = (uint16_t)strtoul(colon + 1, NULL, 10);
    if (strncmp(text, "ipv4:", 5) == 0) {
        at.ss_family = AF_INET;
        text += 5;
    } else if (strncmp(text, "ipv6:", 5) == 0) {
        at.ss_family = AF_INET6;
        text += 5;
        text += *text == '[' ? 1 : strncmp(text, "%5B", 3) == 0 ? 3 : 0;
    } else {
        return false;
    }
    length = strcspn(text, "]%");
    if (length > (size_t)(colon - text))
        length = (size_t)(colon - text);
    if (length >= sizeof host)
        return false;
    memcpy(host, text, length);
    if (inet_pton(at.ss_family, host,
                  at.ss_family == AF_INET ? (void *)&((struct sockaddr_in *)&at)->sin_addr
                                          : (void *)&((struct sockaddr_in6 *)&at)->sin6_addr) != 1)
        return false;
    host_of(&at, ret_host);
    return true;
}

/* ---- the table ---- */

static int32_t *bucket_of(const struct hd_rpc_given *given, const unsigned char host[16],
                          uint16_t port)
{
    uint32_t hash = port;

    for (int i = 0; i < 16; i++)
        hash = (hash ^ host[i]) * 16777619u;
    return &given->buckets[(hash ^ hash >> 15) & (given->room - 1)];
}

static void put_in_bucket(struct hd_rpc_given *given, size_t index)
{
    struct hd_rpc_given_item *item = &given->items[index];
    int32_t *bucket = bucket_of(given, item->host, item->port);

    item->next = *bucket;
    *bucket = (int32_t)index;
}

static void fill_buckets(struct hd_rpc_given *given)
{
    for (size_t i = 0; i < given->room; i++)
        given->buckets[i] = -1;
    for (size_t i = 0; i < given->count; i++)
        put_in_bucket(given, i);
}

static bool grow(struct hd_rpc_given *given)
{
    const size_t room = given->room ? 2 * given->room : ROOM_MIN;
    struct hd_rpc_given_item *items = realloc(given->items, room * sizeof *items);
    int32_t *buckets;

    if (!items)
        return false;
    given->items = items;
    buckets = realloc(given->buckets, room * sizeof *buckets);
    if (!buckets)
        return false;
    given->buckets = buckets;
    given->room = room;
    fill_buckets(given);
    return true;
}

bool hd_rpc_given_add(struct hd_rpc_given *given, int fd, const struct sockaddr_storage *from,
                      int64_t deadline_ms)
{
    struct hd_rpc_given_item *item;
    struct stat info;

    if (fstat(fd, &info) < 0 || !S_ISSOCK(info.st_mode) ||
        (given->count == given->room && !grow(given)))
        return false;
    item = &given->items[given->count++];
    *item = (struct hd_rpc_given_item){.peer = hd_rpc_peer_of(from),
                                       .port = port_of(from),
                                       .fd = fd,
                                       .inode = info.st_ino,
                                       .deadline_ms = deadline_ms};
    host_of(from, item->host);
    put_in_bucket(given, given->count - 1);
    return true;
}

size_t hd_rpc_given_count(const struct hd_rpc_given *given, const struct hd_rpc_peer *peer)
{
    size_t count = 0;

    for (size_t i = 0; i < given->count; i++)
        count += !given->items[i].ended && (!peer || hd_rpc_peer_same(&given->items[i].peer, peer));
    return count;
}

static bool is_open(const struct hd_rpc_given_item *item)
{
    struct stat info;

    return fstat(item->fd, &info) == 0 && S_ISSOCK(info.st_mode) && info.st_ino == item->inode;
}

/* A look costs below a microsecond for each; the pause of a hundredth of a millisecond for each
 * keeps a flood from filling the loop with looks. */
void hd_rpc_given_forget_closed(struct hd_rpc_given *given)
{
    const int64_t now_ms = hd_clock_now_ms();
    size_t kept = 0;

    if (now_ms < given->look_again_ms)
        return;
    given->look_again_ms = now_ms + (int64_t)given->count / 100;
    for (size_t i = 0; i < given->count; i++)
        if (is_open(&given->items[i]))
            given->items[kept++] = given->items[i];
    given->count = kept;
    fill_buckets(given);
}

void hd_rpc_given_done(struct hd_rpc_given *given)
{
    free(given->items);
    free(given->buckets);
    *given = (struct hd_rpc_given){0};
}

/* ---- proof ---- */

void hd_rpc_given_prove(struct hd_rpc_given *given, const char *peer)
{
    unsigned char host[16];
    uint16_t port;

    if (!given->count || !parse_peer(peer, host, &port))
        return;
    for (int32_t i = *bucket_of(given, host, port); i >= 0; i = given->items[i].next) {
        struct hd_rpc_given_item *item = &given->items[i];

        if (item->port != port || memcmp(item->host, host, sizeof host) != 0)
            continue;
        item->deadline_ms = 0;
        return; /* the newest of its bucket: older ones of the same port have been closed */
    }
}

/* ---- the end of strangers ---- */

static void end(struct hd_rpc_given_item *item)
{
    if (is_open(item))
        (void)shutdown(item->fd, SHUT_RDWR);
    item->ended = true;
}

/* Those that gRPC has not closed yet. */
static size_t count_ending(const struct hd_rpc_given *given)
{
    size_t count = 0;

    for (size_t i = 0; i < given->count; i++)
        count += given->items[i].ended && is_open(&given->items[i]);
    return count;
}

static struct hd_rpc_given_item *find_oldest(const struct hd_rpc_given *given,
                                             const struct hd_rpc_peer *peer)
{
    for (size_t i = 0; i < given->count; i++) {
        struct hd_rpc_given_item *item = &given->items[i];

        if (!item->deadline_ms || item->ended || (peer && !hd_rpc_peer_same(&item->peer, peer)))
            continue;
        return item;
    }
    return NULL;
}

int64_t hd_rpc_given_oldest_ms(const struct hd_rpc_given *given, const struct hd_rpc_peer *peer)
{
    const struct hd_rpc_given_item *oldest = find_oldest(given, peer);

    return oldest ? oldest->deadline_ms : INT64_MAX;
}

bool hd_rpc_given_end_oldest(struct hd_rpc_given *given, const struct hd_rpc_peer *peer)
{
    struct hd_rpc_given_item *oldest = find_oldest(given, peer);

    if (!oldest || count_ending(given) >= ENDING_MAX)
        return false;
    end(oldest);
    return true;
}

size_t hd_rpc_given_end_overdue(struct hd_rpc_given *given, int64_t now_ms, int64_t *ret_next_ms)
{
    size_t count = 0;

    *ret_next_ms = 0;
    for (size_t i = 0; i < given->count; i++) {
        struct hd_rpc_given_item *item = &given->items[i];

        if (!item->deadline_ms || item->ended)
            continue;
        if (item->deadline_ms > now_ms) { /* the oldest come first */
            *ret_next_ms = item->deadline_ms;
            return count;
        }
        count += is_open(item);
        end(item);
    }
    return count;
}
