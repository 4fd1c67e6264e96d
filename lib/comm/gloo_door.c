#include "comm/gloo_door.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/text.h"

#define CARD_MAGIC "hd-card1"

enum { BACKLOG = 128, SLICE_MS = 50, AGAIN_MS = 100, NAMED_MAX = 4 };
enum { NONCE_AT = 8, PORT_AT = 40, ADDRESS_AT = 42, NODE_AT = 96 };
_Static_assert(ADDRESS_AT + INET6_ADDRSTRLEN <= NODE_AT, "an address fits");
_Static_assert((int)NODE_AT + (int)HD_GLOO_NODE_MAX <= (int)HD_GLOO_CARD_BYTES, "a node fits");

struct hd_gloo_door {
    int fd;
    struct hd_gloo_card card;
};

/* ---- cards ---- */

enum hd_status gloo_card_read(const struct hd_gloo_card *card, int rank,
                              struct gloo_place *ret_place)
{
    const uint8_t *at = card->bytes;

    if (memcmp(at, CARD_MAGIC, sizeof CARD_MAGIC - 1) != 0 || at[NODE_AT - 1] != 0 ||
        at[NODE_AT + HD_GLOO_NODE_MAX - 1] != 0)
        return hd_err(HD_CORRUPT, "gloo: the card of rank %d is none of this version of Heddle",
                      rank);
    memcpy(ret_place->address, at + ADDRESS_AT, sizeof ret_place->address);
    ret_place->address[sizeof ret_place->address - 1] = '\0';
    memcpy(ret_place->node, at + NODE_AT, sizeof ret_place->node);
    ret_place->port = (uint16_t)(at[PORT_AT] | at[PORT_AT + 1] << 8);
    for (char *c = ret_place->node; *c; c++) { /* goes into messages */
        if (*c < ' ' || *c > '~')
            *c = '?';
    }
    return HD_OK;
}

void gloo_secret(const struct hd_gloo_card *cards, int world,
                 uint8_t ret_secret[HD_GLOO_HASH_BYTES])
{
    hd_gloo_hash(cards, (size_t)world * sizeof *cards, ret_secret);
}

void gloo_prove(const uint8_t secret[HD_GLOO_HASH_BYTES], char side, const struct gloo_hello *hello,
                const uint8_t host_nonce[HD_GLOO_HASH_BYTES], uint8_t ret_proof[HD_GLOO_HASH_BYTES])
{
    uint8_t said[1 + sizeof *hello + HD_GLOO_HASH_BYTES];

    said[0] = (uint8_t)side;
    memcpy(said + 1, hello, sizeof *hello);
    memcpy(said + 1 + sizeof *hello, host_nonce, HD_GLOO_HASH_BYTES);
    hd_gloo_proof(secret, said, sizeof said, ret_proof);
}

/* ---- doors ---- */

/* A numeric address and port as the system wants them. */
static enum hd_status find_address(const char *address, uint16_t port,
                                   struct sockaddr_storage *ret_at, socklen_t *ret_bytes)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                                   .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    char service[8];
    int failed;

    (void)snprintf(service, sizeof service, "%u", port);
    failed = getaddrinfo(address, service, &hints, &found);
    if (failed)
        return hd_err(HD_INVALID, "gloo: \"%.64s\" is not a numeric address: %s", address,
                      gai_strerror(failed));
    memcpy(ret_at, found->ai_addr, found->ai_addrlen);
    *ret_bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return HD_OK;
}

static enum hd_status fill_card(struct hd_gloo_card *card, const char *address, uint16_t port,
                                const char *node)
{
    uint8_t *at = card->bytes;

    memcpy(at, CARD_MAGIC, sizeof CARD_MAGIC - 1);
    at[PORT_AT] = (uint8_t)port;
    at[PORT_AT + 1] = (uint8_t)(port >> 8);
    (void)snprintf((char *)at + ADDRESS_AT, INET6_ADDRSTRLEN, "%s", address);
    (void)snprintf((char *)at + NODE_AT, HD_GLOO_NODE_MAX, "%s", node);
    return hd_random_bytes(at + NONCE_AT, HD_GLOO_HASH_BYTES);
}

static uint16_t port_of(const struct sockaddr_storage *at)
{
    return at->ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)at)->sin6_port)
                                     : ntohs(((const struct sockaddr_in *)at)->sin_port);
}

bool hd_gloo_built_in(void)
{
    return true;
}

enum hd_status hd_gloo_door_open(const char *address, const char *node,
                                 struct hd_gloo_door **ret_door)
{
    struct hd_gloo_door *door;
    struct sockaddr_storage at;
    socklen_t bytes;
    enum hd_status st = find_address(address, 0, &at, &bytes);

    if (st)
        return st;
    if (strlen(address) >= INET6_ADDRSTRLEN)
        return hd_err(HD_INVALID, "gloo: the address \"%.64s\" is longer than %d bytes", address,
                      INET6_ADDRSTRLEN - 1);
    door = calloc(1, sizeof *door);
    if (!door)
        return hd_err(HD_NO_MEMORY, "gloo: no memory for a door");
    door->fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (door->fd < 0 || bind(door->fd, (const struct sockaddr *)&at, bytes) < 0 ||
        listen(door->fd, BACKLOG) < 0 || getsockname(door->fd, (struct sockaddr *)&at, &bytes) < 0)
        st = hd_err(HD_IO, "gloo: cannot listen on %s: %s; is it an address of this node?", address,
                    strerror(errno));
    if (!st)
        st = fill_card(&door->card, address, port_of(&at), node);
    if (st) {
        hd_gloo_door_close(door);
        return st;
    }
    *ret_door = door;
    return HD_OK;
}

const struct hd_gloo_card *hd_gloo_door_card(const struct hd_gloo_door *door)
{
    return &door->card;
}

void hd_gloo_door_close(struct hd_gloo_door *door)
{
    if (!door)
        return;
    if (door->fd >= 0)
        (void)close(door->fd);
    free(door);
}

/* ---- one connection on its way ---- */

enum step { UNUSED, CONNECTING, HELLO_DUE, ANSWER_DUE, PROOF_DUE, WELCOME_DUE };

struct visit {
    enum step step;
    int fd, peer; /* peer: -1 while unknown */
    int64_t since_ms;
    struct gloo_hello hello;
    uint8_t host_nonce[HD_GLOO_HASH_BYTES];
    union {
        uint8_t bytes[1];
        struct gloo_hello hello;
        struct gloo_answer answer;
        uint8_t proof[HD_GLOO_HASH_BYTES];
    } in; /* what arrives */
    size_t have;
};

struct meeting {
    int rank, world, door_fd;
    const struct gloo_place *places;
    uint8_t secret[HD_GLOO_HASH_BYTES];
    int *fds;                             /* [world]; -1: not met yet */
    struct visit guests[GLOO_GUESTS_MAX]; /* at our door */
    struct pollfd *polled;                /* [1 + GLOO_GUESTS_MAX + world] */
    struct visit **visits;                /* whose they are */
    struct gloo_call {
        struct visit visit;
        int64_t again_ms; /* when to call again */
        const char *why;  /* what the last call ended with */
    } calls[];            /* [world]; to lower ranks, by rank */
};

static void turn_away(struct visit *visit)
{
    if (visit->step != UNUSED)
        (void)close(visit->fd);
    visit->step = UNUSED;
}

static size_t bytes_due(const struct visit *visit)
{
    switch (visit->step) {
    case HELLO_DUE:
        return sizeof visit->in.hello;
    case ANSWER_DUE:
        return sizeof visit->in.answer;
    default:
        return sizeof visit->in.proof;
    }
}

/* Fresh connections take such few bytes at once; one that does not is no peer. */
static bool say(const struct visit *visit, const void *data, size_t size_bytes)
{
    return send(visit->fd, data, size_bytes, MSG_NOSIGNAL) == (ssize_t)size_bytes;
}

static bool say_proof(const struct meeting *m, const struct visit *visit, char side)
{
    uint8_t proof[HD_GLOO_HASH_BYTES];

    gloo_prove(m->secret, side, &visit->hello, visit->host_nonce, proof);
    return say(visit, proof, sizeof proof);
}

static bool proves(const struct meeting *m, const struct visit *visit, char side,
                   const uint8_t *proof)
{
    uint8_t expected[HD_GLOO_HASH_BYTES];

    gloo_prove(m->secret, side, &visit->hello, visit->host_nonce, expected);
    return hd_gloo_same(proof, expected, sizeof expected);
}

static bool is_awaited(const struct meeting *m, const struct gloo_hello *hello)
{
    return memcmp(hello->magic, GLOO_HELLO_MAGIC, sizeof hello->magic) == 0 &&
           le32toh(hello->world) == (uint32_t)m->world &&
           le32toh(hello->host) == (uint32_t)m->rank && hello->zero == 0 &&
           le32toh(hello->caller) > (uint32_t)m->rank &&
           le32toh(hello->caller) < (uint32_t)m->world;
}

static bool answer_hello(const struct meeting *m, struct visit *visit)
{
    struct gloo_answer answer;

    if (!is_awaited(m, &visit->in.hello) ||
        hd_random_bytes(visit->host_nonce, sizeof visit->host_nonce) != HD_OK)
        return false;
    visit->hello = visit->in.hello;
    visit->peer = (int)le32toh(visit->hello.caller);
    memcpy(answer.nonce, visit->host_nonce, sizeof answer.nonce);
    gloo_prove(m->secret, 'A', &visit->hello, visit->host_nonce, answer.proof);
    visit->step = PROOF_DUE;
    return say(visit, &answer, sizeof answer);
}

static bool say_hello(const struct meeting *m, struct visit *visit)
{
    struct gloo_hello *hello = &visit->hello;

    memcpy(hello->magic, GLOO_HELLO_MAGIC, sizeof hello->magic);
    hello->caller = htole32((uint32_t)m->rank);
    hello->host = htole32((uint32_t)visit->peer);
    hello->world = htole32((uint32_t)m->world);
    hello->zero = 0;
    visit->step = ANSWER_DUE;
    return hd_random_bytes(hello->nonce, sizeof hello->nonce) == HD_OK &&
           say(visit, hello, sizeof *hello);
}

/* The connection stays; a later one of the same peer is taken in place of the earlier, which that
 * peer has given up. */
static void keep(struct meeting *m, struct visit *visit)
{
    if (m->fds[visit->peer] >= 0)
        (void)close(m->fds[visit->peer]);
    m->fds[visit->peer] = visit->fd;
    visit->step = UNUSED;
}

/* What was due is here. False: turn it away. */
static bool take(struct meeting *m, struct visit *visit)
{
    visit->have = 0;
    switch (visit->step) {
    case HELLO_DUE:
        return answer_hello(m, visit);
    case ANSWER_DUE:
        memcpy(visit->host_nonce, visit->in.answer.nonce, sizeof visit->host_nonce);
        if (!proves(m, visit, 'A', visit->in.answer.proof))
            return false;
        visit->step = WELCOME_DUE;
        return say_proof(m, visit, 'B');
    case PROOF_DUE:
        if (!proves(m, visit, 'B', visit->in.proof) || !say_proof(m, visit, 'C'))
            return false;
        keep(m, visit);
        return true;
    default:
        if (!proves(m, visit, 'C', visit->in.proof))
            return false;
        keep(m, visit);
        return true;
    }
}

/* The socket is ready. False: turn it away; *ret_why says why. */
static bool advance(struct meeting *m, struct visit *visit, const char **ret_why)
{
    while (visit->step != UNUSED) {
        const size_t due = bytes_due(visit);
        ssize_t n;

        if (visit->step == CONNECTING) {
            int error = 0;
            socklen_t bytes = sizeof error;

            (void)getsockopt(visit->fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
            *ret_why = error ? strerrordesc_np(error) : "it does not answer";
            if (error || !say_hello(m, visit))
                return false;
            continue;
        }
        n = recv(visit->fd, visit->in.bytes + visit->have, due - visit->have, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        *ret_why = "it turned this rank away";
        if (n <= 0)
            return false;
        visit->have += (size_t)n;
        *ret_why = "it does not prove that it holds the cards";
        if (visit->have == due && !take(m, visit))
            return false;
    }
    return true;
}

/* ---- all of them ---- */

static void call(struct meeting *m, int peer, int64_t now_ms)
{
    struct visit *visit = &m->calls[peer].visit;
    struct sockaddr_storage at;
    socklen_t bytes;

    m->calls[peer].again_ms = now_ms + AGAIN_MS;
    if (!m->calls[peer].why) /* what an earlier call ended with says more */
        m->calls[peer].why = "it cannot be reached";
    if (find_address(m->places[peer].address, m->places[peer].port, &at, &bytes) != HD_OK)
        return;
    *visit = (struct visit){.peer = peer, .since_ms = now_ms};
    visit->fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (visit->fd < 0)
        return;
    visit->step = CONNECTING;
    if (connect(visit->fd, (const struct sockaddr *)&at, bytes) < 0 && errno != EINPROGRESS) {
        m->calls[peer].why = strerrordesc_np(errno);
        turn_away(visit);
    }
}

/* A place for a new guest: a free one, or that of whoever came first and is not known yet. */
static struct visit *make_room(struct meeting *m)
{
    struct visit *oldest = &m->guests[0];

    for (int g = 0; g < GLOO_GUESTS_MAX; g++) {
        if (m->guests[g].step == UNUSED)
            return &m->guests[g];
        if (m->guests[g].since_ms < oldest->since_ms)
            oldest = &m->guests[g];
    }
    turn_away(oldest);
    return oldest;
}

static void let_in(struct meeting *m, int64_t now_ms)
{
    for (int n = 0; n < GLOO_GUESTS_MAX / 4; n++) {
        const int fd = accept4(m->door_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0)
            return;
        *make_room(m) = (struct visit){.step = HELLO_DUE, .fd = fd, .peer = -1, .since_ms = now_ms};
    }
}

static void call_where_due(struct meeting *m, int64_t now_ms)
{
    for (int r = 0; r < m->rank; r++) {
        if (m->fds[r] < 0 && m->calls[r].visit.step == UNUSED && now_ms >= m->calls[r].again_ms)
            call(m, r, now_ms);
    }
}

static void drop_the_silent(struct meeting *m, int64_t now_ms)
{
    for (int g = 0; g < GLOO_GUESTS_MAX; g++) {
        if (m->guests[g].step != UNUSED && now_ms - m->guests[g].since_ms > GLOO_PATIENCE_MS)
            turn_away(&m->guests[g]);
    }
    for (int r = 0; r < m->rank; r++) {
        if (m->calls[r].visit.step != UNUSED &&
            now_ms - m->calls[r].visit.since_ms > GLOO_PATIENCE_MS) {
            m->calls[r].why = "it does not answer";
            turn_away(&m->calls[r].visit);
        }
    }
}

/* Waits a little for anything to happen and deals with it. */
static void meet_some(struct meeting *m, int64_t until_ms)
{
    const int64_t now_ms = hd_clock_now_ms(), left_ms = now_ms < until_ms ? until_ms - now_ms : 0;
    int count = 1;

    drop_the_silent(m, now_ms);
    call_where_due(m, now_ms);
    m->polled[0] = (struct pollfd){.fd = m->door_fd, .events = POLLIN};
    for (int v = 0; v < GLOO_GUESTS_MAX + m->rank; v++) {
        struct visit *visit =
            v < GLOO_GUESTS_MAX ? &m->guests[v] : &m->calls[v - GLOO_GUESTS_MAX].visit;

        if (visit->step == UNUSED)
            continue;
        m->visits[count] = visit;
        m->polled[count++] = (struct pollfd){
            .fd = visit->fd, .events = visit->step == CONNECTING ? POLLOUT : POLLIN};
    }
    if (poll(m->polled, (nfds_t)count, left_ms < SLICE_MS ? (int)left_ms : SLICE_MS) <= 0)
        return;
    for (int v = 1; v < count; v++) {
        const char *why = "";

        if (!m->polled[v].revents || advance(m, m->visits[v], &why))
            continue;
        for (int r = 0; r < m->rank; r++)
            if (m->visits[v] == &m->calls[r].visit)
                m->calls[r].why = why;
        turn_away(m->visits[v]);
    }
    if (m->polled[0].revents)
        let_in(m, now_ms);
}

static int count_missing(const struct meeting *m)
{
    int missing = 0;

    for (int r = 0; r < m->world; r++)
        missing += r != m->rank && m->fds[r] < 0;
    return missing;
}

static enum hd_status name_missing(const struct meeting *m, int64_t deadline_ms)
{
    struct hd_text text = {0};
    enum hd_status st;
    int named = 0;

    for (int r = 0; r < m->world; r++) {
        if (r == m->rank || m->fds[r] >= 0 || named++ >= NAMED_MAX)
            continue;
        hd_text_add(&text, "; rank %d (node %s, %s port %u): %s", r, m->places[r].node,
                    m->places[r].address, m->places[r].port,
                    r > m->rank       ? "it has not come"
                    : m->calls[r].why ? m->calls[r].why
                                      : "not called yet");
    }
    st = hd_err(HD_TIMEOUT,
                "gloo: after %lld ms rank %d (node %s) is not connected to %d of %d ranks%s",
                (long long)deadline_ms, m->rank, m->places[m->rank].node, count_missing(m),
                m->world, text.data ? text.data : "");
    hd_text_free(&text);
    return st;
}

static enum hd_status check_cards(const struct hd_gloo_door *door, const struct hd_gloo_card *cards,
                                  int rank, int world, struct gloo_place *ret_places)
{
    if (memcmp(&cards[rank], &door->card, sizeof door->card) != 0)
        return hd_err(HD_INVALID, "gloo: the card of rank %d is not that of its own door", rank);
    for (int r = 0; r < world; r++) {
        struct sockaddr_storage at;
        socklen_t bytes;
        enum hd_status st = gloo_card_read(&cards[r], r, &ret_places[r]);

        if (!st)
            st = find_address(ret_places[r].address, ret_places[r].port, &at, &bytes);
        if (st)
            return st;
        for (int before = 0; before < r; before++) {
            if (memcmp(&cards[before], &cards[r], sizeof cards[r]) == 0)
                return hd_err(HD_INVALID, "gloo: ranks %d and %d have the same card", before, r);
        }
    }
    return HD_OK;
}

static void free_meeting(struct meeting *m)
{
    free(m->polled);
    free(m->visits);
    memset(m->secret, 0, sizeof m->secret);
    free(m);
}

static struct meeting *new_meeting(int world)
{
    const size_t visits = 1 + GLOO_GUESTS_MAX + (size_t)world;
    struct meeting *m = calloc(1, sizeof *m + (size_t)world * sizeof m->calls[0]);

    if (!m)
        return NULL;
    m->world = world;
    m->polled = calloc(visits, sizeof *m->polled);
    m->visits = calloc(visits, sizeof(struct visit *));
    if (m->polled && m->visits)
        return m;
    free_meeting(m);
    return NULL;
}

enum hd_status gloo_meet(struct hd_gloo_door *door, const struct hd_gloo_card *cards, int rank,
                         int world, int64_t deadline_ms, struct gloo_place *ret_places,
                         int *ret_fds)
{
    const int64_t until_ms = hd_clock_now_ms() + deadline_ms;
    enum hd_status st = check_cards(door, cards, rank, world, ret_places);
    struct meeting *m;

    if (st)
        return st;
    m = new_meeting(world);
    if (!m)
        return hd_err(HD_NO_MEMORY, "gloo: no memory to meet the other ranks");
    m->rank = rank;
    m->door_fd = door->fd;
    m->places = ret_places;
    m->fds = ret_fds;
    gloo_secret(cards, world, m->secret);
    for (int r = 0; r < world; r++)
        ret_fds[r] = -1;
    while (count_missing(m) > 0 && hd_clock_now_ms() < until_ms)
        meet_some(m, until_ms);
    if (count_missing(m) > 0)
        st = name_missing(m, deadline_ms);
    for (int g = 0; g < GLOO_GUESTS_MAX; g++)
        turn_away(&m->guests[g]);
    for (int r = 0; r < rank; r++)
        turn_away(&m->calls[r].visit);
    for (int r = 0; r < world && st; r++) {
        if (ret_fds[r] >= 0)
            (void)close(ret_fds[r]);
        ret_fds[r] = -1;
    }
    free_meeting(m);
    return st;
}
