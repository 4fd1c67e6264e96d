#include "rpc/unauthenticated.h"

#include <assert.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1024 };

struct hd_unauth_address {
    struct hd_unauth_address *next; /* next address in the same chain of the hash table */
    /* neighbours in the list of addresses without a connection, oldest first */
    struct hd_unauth_address *before, *after;
    unsigned char bytes[16];
    size_t count, unauthenticated, inside;
    int level; /* how often the address's interval was doubled, at time level_ms */
    int64_t level_ms;
    int64_t next_ms; /* time when the next connection of this address could enter at an even pace */
};

struct hd_unauth_table {
    struct hd_unauth_limits limits;
    struct hd_unauth_address *buckets[BUCKETS];
    struct hd_unauth_address *idle_first, *idle_last; /* list of addresses without a connection */
    struct hd_unauth_connection *oldest, *newest;
    size_t count, unauthenticated, inside, idle;
};

/* ---- addresses ---- */

/* Sets ret_bytes to the address whose connections share limits. Returns false if the socket family
 * has none. */
static bool read_address(const struct sockaddr_storage *from, unsigned char ret_bytes[16])
{
    memset(ret_bytes, 0, 16);
    if (from->ss_family == AF_INET) {
        memset(ret_bytes + 10, 0xff, 2);
        memcpy(ret_bytes + 12, &((const struct sockaddr_in *)from)->sin_addr, 4);
        return true;
    }
    if (from->ss_family != AF_INET6)
        return false;
    memcpy(ret_bytes, &((const struct sockaddr_in6 *)from)->sin6_addr, 16);
    if (!IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)ret_bytes))
        memset(ret_bytes + 8, 0, 8);
    return true;
}

static struct hd_unauth_address **bucket_of(struct hd_unauth_table *table,
                                            const unsigned char bytes[16])
{
    uint32_t hash = 2166136261u;

    for (int i = 0; i < 16; i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    return &table->buckets[(hash ^ hash >> 15) % BUCKETS];
}

static struct hd_unauth_address *find_address(struct hd_unauth_table *table,
                                              const unsigned char bytes[16])
{
    struct hd_unauth_address *a = *bucket_of(table, bytes);

    while (a && memcmp(a->bytes, bytes, 16) != 0)
        a = a->next;
    return a;
}

static void leave_idle(struct hd_unauth_table *table, struct hd_unauth_address *a)
{
    *(a->before ? &a->before->after : &table->idle_first) = a->after;
    *(a->after ? &a->after->before : &table->idle_last) = a->before;
    a->before = a->after = NULL;
    table->idle--;
}

static void forget(struct hd_unauth_table *table, struct hd_unauth_address *a)
{
    struct hd_unauth_address **at = bucket_of(table, a->bytes);

    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    free(a);
}

/* Returns the table's entry of an address, added if necessary; NULL: no memory. */
static struct hd_unauth_address *find_or_add(struct hd_unauth_table *table,
                                             const unsigned char bytes[16])
{
    struct hd_unauth_address *a = find_address(table, bytes), **bucket = bucket_of(table, bytes);

    if (a)
        return a;
    a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    memcpy(a->bytes, bytes, 16);
    a->next = *bucket;
    *bucket = a;
    return a;
}

/* Returns how often the address's interval is doubled now: one doubling less for each LEVEL_MS
 * without an excess. */
static int level_of(struct hd_unauth_address *a, int64_t now_ms)
{
    while (a->level && now_ms - a->level_ms >= HD_UNAUTH_LEVEL_MS) {
        a->level--;
        a->level_ms += HD_UNAUTH_LEVEL_MS;
    }
    return a->level;
}

/* Frees the entry of an address without a connection, unless its doublings or the time of its next
 * entry must be remembered. */
static void keep_or_forget(struct hd_unauth_table *table, struct hd_unauth_address *a,
                           int64_t now_ms)
{
    if (a->count)
        return;
    if (!level_of(a, now_ms) && a->next_ms <= now_ms) {
        forget(table, a);
        return;
    }
    if (table->idle == HD_UNAUTH_REMEMBERED) {
        struct hd_unauth_address *first = table->idle_first;

        leave_idle(table, first);
        forget(table, first);
    }
    a->before = table->idle_last;
    *(table->idle_last ? &table->idle_last->after : &table->idle_first) = a;
    table->idle_last = a;
    table->idle++;
}

/* ---- the table ---- */

struct hd_unauth_table *hd_unauth_new(const struct hd_unauth_limits *limits)
{
    struct hd_unauth_table *table = calloc(1, sizeof *table);

    if (table)
        table->limits = *limits;
    return table;
}

void hd_unauth_free(struct hd_unauth_table *table)
{
    if (!table)
        return;
    assert(!table->count);
    while (table->idle_first) {
        struct hd_unauth_address *a = table->idle_first;

        leave_idle(table, a);
        forget(table, a);
    }
    free(table);
}

struct hd_unauth_connection *hd_unauth_oldest(const struct hd_unauth_table *table)
{
    return table->oldest;
}

struct hd_unauth_connection *hd_unauth_newest(const struct hd_unauth_table *table)
{
    return table->newest;
}

static void list(struct hd_unauth_table *table, struct hd_unauth_connection *s)
{
    s->older = table->newest;
    s->newer = NULL;
    *(table->newest ? &table->newest->newer : &table->oldest) = s;
    table->newest = s;
    table->unauthenticated++;
    if (s->address)
        s->address->unauthenticated++;
}

static void unlist(struct hd_unauth_table *table, struct hd_unauth_connection *s)
{
    const bool inside = s->stage == HD_UNAUTH_INSIDE;

    *(s->older ? &s->older->newer : &table->oldest) = s->newer;
    *(s->newer ? &s->newer->older : &table->newest) = s->older;
    s->older = s->newer = NULL;
    table->unauthenticated--;
    table->inside -= inside;
    if (!s->address)
        return;
    s->address->unauthenticated--;
    s->address->inside -= inside;
}

/* ---- making room ---- */

/* Returns the unauthenticated connection that entered first: of this address, or, with address
 * NULL, of all. */
static struct hd_unauth_connection *find_first_inside(const struct hd_unauth_table *table,
                                                      const struct hd_unauth_address *address)
{
    struct hd_unauth_connection *first = NULL;

    for (struct hd_unauth_connection *s = table->oldest; s; s = s->newer)
        if ((!address || s->address == address) && s->stage == HD_UNAUTH_INSIDE &&
            (!first || s->entered_ms < first->entered_ms))
            first = s;
    return first;
}

/* Returns the connection to close for one that arrives (the victim) among the unauthenticated
 * connections of this address, or, with address NULL, of all: the one that arrived first; if more
 * are OUTSIDE than INSIDE, the first of those OUTSIDE. */
static struct hd_unauth_connection *find_first_arrived(const struct hd_unauth_table *table,
                                                       const struct hd_unauth_address *address)
{
    const size_t all = address ? address->unauthenticated : table->unauthenticated,
                 inside = address ? address->inside : table->inside;
    const bool crowd = all - inside > inside;
    struct hd_unauth_connection *s = table->oldest;

    while (s && ((address && s->address != address) || (crowd && s->stage == HD_UNAUTH_INSIDE)))
        s = s->newer;
    return s;
}

/* Returns the victim among the connections of the address with the most unauthenticated ones
 * (`inside`: with the most INSIDE). If no address has two, returns the victim of all if its grace
 * period is over, else NULL. */
static struct hd_unauth_connection *find_of_busiest(const struct hd_unauth_table *table,
                                                    bool inside, int64_t now_ms)
{
    const struct hd_unauth_address *busiest = NULL;
    size_t most = 1;
    struct hd_unauth_connection *victim;

    for (const struct hd_unauth_connection *s = table->oldest; s; s = s->newer) {
        const size_t count = !s->address ? 0
                             : inside    ? s->address->inside
                                         : s->address->unauthenticated;

        if (count > most) {
            most = count;
            busiest = s->address;
        }
    }
    victim = inside ? find_first_inside(table, busiest) : find_first_arrived(table, busiest);
    return victim && (busiest || now_ms - victim->since_ms >= HD_UNAUTH_GRACE_MS) ? victim : NULL;
}

static bool known_is_full(const struct hd_unauth_table *table, const struct hd_unauth_address *a)
{
    return table->count - table->unauthenticated >= table->limits.known ||
           (a && a->count - a->unauthenticated >= table->limits.known_of_address);
}

static bool address_is_full(const struct hd_unauth_table *table, const struct hd_unauth_address *a)
{
    return a && (a->count >= table->limits.connections_of_address ||
                 a->unauthenticated >= table->limits.unauthenticated_of_address);
}

static bool all_is_full(const struct hd_unauth_table *table)
{
    return table->count >= table->limits.connections ||
           table->unauthenticated >= table->limits.unauthenticated;
}

/* Returns whether one more connection of the address may arrive. *ret_victim: the connection that
 * must be closed for it; NULL: none. */
static bool find_room(const struct hd_unauth_table *table, const struct hd_unauth_address *address,
                      int64_t now_ms, struct hd_unauth_connection **ret_victim)
{
    *ret_victim = NULL;
    if (known_is_full(table, address))
        return false;
    if (address_is_full(table, address))
        *ret_victim = find_first_arrived(table, address);
    else if (all_is_full(table))
        *ret_victim = find_of_busiest(table, false, now_ms);
    else
        return true;
    return *ret_victim;
}

bool hd_unauth_arrive(struct hd_unauth_table *table, struct hd_unauth_connection *connection,
                      const struct sockaddr_storage *from, int64_t now_ms,
                      struct hd_unauth_connection **ret_victim)
{
    struct hd_unauth_address *address = NULL;
    unsigned char bytes[16];

    *ret_victim = NULL;
    *connection = (struct hd_unauth_connection){.since_ms = now_ms, .stage = HD_UNAUTH_OUTSIDE};
    if (read_address(from, bytes)) {
        address = find_or_add(table, bytes);
        if (!address)
            return false;
    }
    if (!find_room(table, address, now_ms, ret_victim)) {
        if (address && !address->count && !address->before && table->idle_first != address)
            forget(table, address); /* created by find_or_add above */
        return false;
    }
    if (address && (address->before || table->idle_first == address))
        leave_idle(table, address);
    connection->address = address;
    if (address)
        address->count++;
    table->count++;
    list(table, connection);
    return true;
}

/* ---- going in ---- */

/* Returns whether a connection of the address may enter now by the address's rate. */
static bool is_due(struct hd_unauth_address *a, int64_t now_ms)
{
    return a->next_ms - HD_UNAUTH_BURST_MS <= now_ms;
}

static void pace(struct hd_unauth_address *a, int64_t now_ms)
{
    if (a->next_ms < now_ms)
        a->next_ms = now_ms;
    a->next_ms += (int64_t)HD_UNAUTH_INTERVAL_MS << level_of(a, now_ms);
}

bool hd_unauth_enter(struct hd_unauth_table *table, struct hd_unauth_connection *connection,
                     int64_t now_ms, struct hd_unauth_connection **ret_victim)
{
    struct hd_unauth_address *a = connection->address;

    *ret_victim = NULL;
    assert(connection->stage == HD_UNAUTH_OUTSIDE);
    if (a && !is_due(a, now_ms))
        return false;
    if (a && a->inside >= table->limits.inside_of_address) {
        *ret_victim = find_first_inside(table, a);
    } else if (table->inside >= table->limits.inside) {
        *ret_victim = find_of_busiest(table, true, now_ms);
        if (!*ret_victim)
            return false;
    }
    connection->stage = HD_UNAUTH_INSIDE;
    connection->entered_ms = now_ms;
    table->inside++;
    if (a) {
        a->inside++;
        pace(a, now_ms);
    }
    return true;
}

bool hd_unauth_may_prove(const struct hd_unauth_table *table, const struct hd_unauth_connection *s)
{
    return s->stage == HD_UNAUTH_KNOWN || !known_is_full(table, s->address);
}

void hd_unauth_prove(struct hd_unauth_table *table, struct hd_unauth_connection *connection)
{
    if (connection->stage == HD_UNAUTH_KNOWN)
        return;
    unlist(table, connection);
    connection->stage = HD_UNAUTH_KNOWN;
}

void hd_unauth_break(struct hd_unauth_connection *connection, int64_t now_ms)
{
    struct hd_unauth_address *a = connection->address;

    if (!a)
        return;
    a->level = level_of(a, now_ms);
    if (a->level < HD_UNAUTH_LEVEL_MAX)
        a->level++;
    a->level_ms = now_ms;
}

void hd_unauth_leave(struct hd_unauth_table *table, struct hd_unauth_connection *connection,
                     int64_t now_ms)
{
    struct hd_unauth_address *a = connection->address;

    if (connection->stage != HD_UNAUTH_KNOWN)
        unlist(table, connection);
    table->count--;
    if (!a)
        return;
    a->count--;
    connection->address = NULL;
    keep_or_forget(table, a, now_ms);
}

/* ---- for logs and tests ---- */

size_t hd_unauth_count(const struct hd_unauth_table *table, const struct sockaddr_storage *from,
                       size_t *ret_of_address)
{
    struct hd_unauth_table *mine = (struct hd_unauth_table *)(uintptr_t)table;
    const struct hd_unauth_address *a = NULL;
    unsigned char bytes[16];

    if (read_address(from, bytes))
        a = find_address(mine, bytes);
    if (ret_of_address)
        *ret_of_address = a ? a->count : 0;
    return table->count;
}

int hd_unauth_level(const struct hd_unauth_connection *connection, int64_t now_ms)
{
    return connection->address ? level_of(connection->address, now_ms) : 0;
}

int64_t hd_unauth_interval_ms(struct hd_unauth_table *table, const struct sockaddr_storage *from,
                              int64_t now_ms)
{
    struct hd_unauth_address *a = NULL;
    unsigned char bytes[16];

    if (read_address(from, bytes))
        a = find_address(table, bytes);
    return (int64_t)HD_UNAUTH_INTERVAL_MS << (a ? level_of(a, now_ms) : 0);
}

size_t hd_unauth_remembered(const struct hd_unauth_table *table)
{
    return table->idle;
}
