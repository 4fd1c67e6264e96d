#include "comm/gloo_listener.h"

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

#define ENDPOINT_MAGIC "hd-card1"

enum { BACKLOG = 128, SLICE_MS = 50, RETRY_MS = 100, NAMED_MAX = 4 };
enum { NONCE_AT = 8, PORT_AT = 40, ADDRESS_AT = 42, NODE_AT = 96 };
_Static_assert(ADDRESS_AT + INET6_ADDRSTRLEN <= NODE_AT, "an address fits");
_Static_assert((int)NODE_AT + (int)HD_GLOO_NODE_MAX <= (int)HD_GLOO_ENDPOINT_BYTES, "a node fits");

struct hd_gloo_listener {
    int fd;
    struct hd_gloo_endpoint endpoint;
    void (*waiting_on)(void *of, int rank); /* called with a rank that is not connected yet
                                               (hd_gloo_listener_report); NULL: none */
    void *of_waiting_on;
};

/* ---- endpoint infos ---- */

enum hd_status gloo_endpoint_read(const struct hd_gloo_endpoint *endpoint, int rank,
                                  struct gloo_address *ret_address)
{
    const uint8_t *at = endpoint->bytes;

    if (memcmp(at, ENDPOINT_MAGIC, sizeof ENDPOINT_MAGIC - 1) != 0 || at[NODE_AT - 1] != 0 ||
        at[NODE_AT + HD_GLOO_NODE_MAX - 1] != 0)
        return hd_err(HD_CORRUPT,
                      "gloo: the endpoint info of rank %d is not of this version of Heddle", rank);
    memcpy(ret_address->address, at + ADDRESS_AT, sizeof ret_address->address);
    ret_address->address[sizeof ret_address->address - 1] = '\0';
    memcpy(ret_address->node, at + NODE_AT, sizeof ret_address->node);
    ret_address->port = (uint16_t)(at[PORT_AT] | at[PORT_AT + 1] << 8);
    for (char *c = ret_address->node; *c; c++) { /* replace control characters: the name is printed
                                                    in messages */
        if (*c < ' ' || *c > '~')
            *c = '?';
    }
    return HD_OK;
}

void gloo_secret(const struct hd_gloo_endpoint *endpoints, int world,
                 uint8_t ret_secret[HD_GLOO_HASH_BYTES])
{
    hd_gloo_hash(endpoints, (size_t)world * sizeof *endpoints, ret_secret);
}

void gloo_prove(const uint8_t secret[HD_GLOO_HASH_BYTES], char proof_kind,
                const struct gloo_hello *hello, const uint8_t host_nonce[HD_GLOO_HASH_BYTES],
                uint8_t ret_proof[HD_GLOO_HASH_BYTES])
{
    uint8_t said[1 + sizeof *hello + HD_GLOO_HASH_BYTES];

    said[0] = (uint8_t)proof_kind;
    memcpy(said + 1, hello, sizeof *hello);
    memcpy(said + 1 + sizeof *hello, host_nonce, HD_GLOO_HASH_BYTES);
    hd_gloo_proof(secret, said, sizeof said, ret_proof);
}

/* ---- listeners ---- */

/* Sets the ret_ arguments to the socket address of a numeric address and port. */
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

static enum hd_status fill_endpoint(struct hd_gloo_endpoint *endpoint, const char *address,
                                    uint16_t port, const char *node)
{
    uint8_t *at = endpoint->bytes;

    memcpy(at, ENDPOINT_MAGIC, sizeof ENDPOINT_MAGIC - 1);
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

enum hd_status hd_gloo_listener_open(const char *address, const char *node,
                                     struct hd_gloo_listener **ret_listener)
{
    struct hd_gloo_listener *listener;
    struct sockaddr_storage at;
    socklen_t bytes;
    enum hd_status st = find_address(address, 0, &at, &bytes);

    if (st)
        return st;
    if (strlen(address) >= INET6_ADDRSTRLEN)
        return hd_err(HD_INVALID, "gloo: the address \"%.64s\" is longer than %d bytes", address,
                      INET6_ADDRSTRLEN - 1);
    listener = calloc(1, sizeof *listener);
    if (!listener)
        return hd_err(HD_NO_MEMORY, "gloo: no memory for a listener");
    listener->fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0 || bind(listener->fd, (const struct sockaddr *)&at, bytes) < 0 ||
        listen(listener->fd, BACKLOG) < 0 ||
        getsockname(listener->fd, (struct sockaddr *)&at, &bytes) < 0)
        st = hd_err(HD_IO, "gloo: cannot listen on %s: %s; is it an address of this node?", address,
                    strerror(errno));
    if (!st)
        st = fill_endpoint(&listener->endpoint, address, port_of(&at), node);
    if (st) {
        hd_gloo_listener_close(listener);
        return st;
    }
    *ret_listener = listener;
    return HD_OK;
}

const struct hd_gloo_endpoint *hd_gloo_listener_endpoint(const struct hd_gloo_listener *listener)
{
    return &listener->endpoint;
}

void hd_gloo_listener_close(struct hd_gloo_listener *listener)
{
    if (!listener)
        return;
    if (listener->fd >= 0)
        (void)close(listener->fd);
    free(listener);
}

void hd_gloo_listener_report(struct hd_gloo_listener *listener,
                             void (*waiting_on)(void *of, int rank), void *of)
{
    listener->waiting_on = waiting_on;
    listener->of_waiting_on = of;
}

/* ---- one connection during its handshake; step X_DUE waits for message X ---- */

enum handshake_step { UNUSED, CONNECTING, HELLO_DUE, ANSWER_DUE, PROOF_DUE, WELCOME_DUE };

struct connection {
    enum handshake_step step;
    int fd, peer; /* fd: socket; peer: rank of the other end, -1: unknown before its hello */
    int64_t since_ms;
    struct gloo_hello hello;
    uint8_t host_nonce[HD_GLOO_HASH_BYTES];
    union {
        uint8_t bytes[1];
        struct gloo_hello hello;
        struct gloo_answer answer;
        uint8_t proof[HD_GLOO_HASH_BYTES];
    } in;        /* handshake message that is being received */
    size_t have; /* bytes of `in` received so far */
};

struct gloo_setup {
    int rank, world, listener_fd;
    const struct gloo_address *addresses;
    uint8_t secret[HD_GLOO_HASH_BYTES];
    int *fds; /* [world]; sockets of authenticated connections; -1: none yet */
    struct connection incoming[GLOO_INCOMING_MAX];
    struct pollfd *polled;           /* [1 + GLOO_INCOMING_MAX + world]; [0]: the listening socket;
                                        then the connections' sockets */
    struct connection **connections; /* the connection of polled[i] */
    struct gloo_outgoing {
        struct connection connection;
        int64_t retry_at_ms;
        const char *why; /* error of the last attempt to connect; NULL: none */
    } outgoing[];        /* [world]; connections to lower ranks, by rank */
};

static void drop(struct connection *c)
{
    if (c->step != UNUSED)
        (void)close(c->fd);
    c->step = UNUSED;
}

static size_t bytes_due(const struct connection *c)
{
    switch (c->step) {
    case HELLO_DUE:
        return sizeof c->in.hello;
    case ANSWER_DUE:
        return sizeof c->in.answer;
    default:
        return sizeof c->in.proof;
    }
}

/* Sends a short message at once; a new socket's buffer always has space for it. Returns false on an
 * error: the caller drops the connection. */
static bool send_all(const struct connection *c, const void *data, size_t size_bytes)
{
    return send(c->fd, data, size_bytes, MSG_NOSIGNAL) == (ssize_t)size_bytes;
}

static bool send_proof(const struct gloo_setup *m, const struct connection *c, char proof_kind)
{
    uint8_t proof[HD_GLOO_HASH_BYTES];

    gloo_prove(m->secret, proof_kind, &c->hello, c->host_nonce, proof);
    return send_all(c, proof, sizeof proof);
}

static bool proof_matches(const struct gloo_setup *m, const struct connection *c, char proof_kind,
                          const uint8_t *proof)
{
    uint8_t expected[HD_GLOO_HASH_BYTES];

    gloo_prove(m->secret, proof_kind, &c->hello, c->host_nonce, expected);
    return hd_gloo_same(proof, expected, sizeof expected);
}

static bool is_expected(const struct gloo_setup *m, const struct gloo_hello *hello)
{
    return memcmp(hello->magic, GLOO_HELLO_MAGIC, sizeof hello->magic) == 0 &&
           le32toh(hello->world) == (uint32_t)m->world &&
           le32toh(hello->host) == (uint32_t)m->rank && hello->zero == 0 &&
           le32toh(hello->caller) > (uint32_t)m->rank &&
           le32toh(hello->caller) < (uint32_t)m->world;
}

static bool answer_hello(const struct gloo_setup *m, struct connection *c)
{
    struct gloo_answer answer;

    if (!is_expected(m, &c->in.hello) ||
        hd_random_bytes(c->host_nonce, sizeof c->host_nonce) != HD_OK)
        return false;
    c->hello = c->in.hello;
    c->peer = (int)le32toh(c->hello.caller);
    memcpy(answer.nonce, c->host_nonce, sizeof answer.nonce);
    gloo_prove(m->secret, 'A', &c->hello, c->host_nonce, answer.proof);
    c->step = PROOF_DUE;
    return send_all(c, &answer, sizeof answer);
}

static bool send_hello(const struct gloo_setup *m, struct connection *c)
{
    struct gloo_hello *hello = &c->hello;

    memcpy(hello->magic, GLOO_HELLO_MAGIC, sizeof hello->magic);
    hello->caller = htole32((uint32_t)m->rank);
    hello->host = htole32((uint32_t)c->peer);
    hello->world = htole32((uint32_t)m->world);
    hello->zero = 0;
    c->step = ANSWER_DUE;
    return hd_random_bytes(hello->nonce, sizeof hello->nonce) == HD_OK &&
           send_all(c, hello, sizeof *hello);
}

/* Stores the socket of an authenticated connection in `fds`. It replaces an earlier one of the same
 * peer, which that peer has closed. */
static void keep(struct gloo_setup *m, struct connection *c)
{
    if (m->fds[c->peer] >= 0)
        (void)close(m->fds[c->peer]);
    m->fds[c->peer] = c->fd;
    c->step = UNUSED;
}

/* Handles a complete message of the handshake. Returns false if the connection must be dropped. */
static bool handle_message(struct gloo_setup *m, struct connection *c)
{
    c->have = 0;
    switch (c->step) {
    case HELLO_DUE:
        return answer_hello(m, c);
    case ANSWER_DUE:
        memcpy(c->host_nonce, c->in.answer.nonce, sizeof c->host_nonce);
        if (!proof_matches(m, c, 'A', c->in.answer.proof))
            return false;
        c->step = WELCOME_DUE;
        return send_proof(m, c, 'B');
    case PROOF_DUE:
        if (!proof_matches(m, c, 'B', c->in.proof) || !send_proof(m, c, 'C'))
            return false;
        keep(m, c);
        return true;
    default:
        if (!proof_matches(m, c, 'C', c->in.proof))
            return false;
        keep(m, c);
        return true;
    }
}

/* Continues the handshake on a socket that is ready. Returns false if the connection must be
 * dropped; *ret_why is the reason. */
static bool advance(struct gloo_setup *m, struct connection *c, const char **ret_why)
{
    while (c->step != UNUSED) {
        const size_t due = bytes_due(c);
        ssize_t n;

        if (c->step == CONNECTING) {
            int error = 0;
            socklen_t bytes = sizeof error;

            (void)getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
            *ret_why = error ? strerrordesc_np(error) : "it does not answer";
            if (error || !send_hello(m, c))
                return false;
            continue;
        }
        n = recv(c->fd, c->in.bytes + c->have, due - c->have, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        *ret_why = "it closed the connection during the handshake";
        if (n <= 0)
            return false;
        c->have += (size_t)n;
        *ret_why = "it does not prove that it holds the cards";
        if (c->have == due && !handle_message(m, c))
            return false;
    }
    return true;
}

/* ---- all connections ---- */

static void connect_to(struct gloo_setup *m, int peer, int64_t now_ms)
{
    struct connection *c = &m->outgoing[peer].connection;
    struct sockaddr_storage at;
    socklen_t bytes;

    m->outgoing[peer].retry_at_ms = now_ms + RETRY_MS;
    if (!m->outgoing[peer].why) /* keeps the error of an earlier attempt to connect */
        m->outgoing[peer].why = "it cannot be reached";
    if (find_address(m->addresses[peer].address, m->addresses[peer].port, &at, &bytes) != HD_OK)
        return;
    *c = (struct connection){.peer = peer, .since_ms = now_ms};
    c->fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0)
        return;
    c->step = CONNECTING;
    if (connect(c->fd, (const struct sockaddr *)&at, bytes) < 0 && errno != EINPROGRESS) {
        m->outgoing[peer].why = strerrordesc_np(errno);
        drop(c);
    }
}

/* Returns a free entry of `incoming` for a new connection; if none is free, drops the oldest
 * connection in it. */
static struct connection *free_connection_slot(struct gloo_setup *m)
{
    struct connection *oldest = &m->incoming[0];

    for (int g = 0; g < GLOO_INCOMING_MAX; g++) {
        if (m->incoming[g].step == UNUSED)
            return &m->incoming[g];
        if (m->incoming[g].since_ms < oldest->since_ms)
            oldest = &m->incoming[g];
    }
    drop(oldest);
    return oldest;
}

static void accept_some(struct gloo_setup *m, int64_t now_ms)
{
    for (int n = 0; n < GLOO_INCOMING_MAX / 4; n++) {
        const int fd = accept4(m->listener_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0)
            return;
        *free_connection_slot(m) =
            (struct connection){.step = HELLO_DUE, .fd = fd, .peer = -1, .since_ms = now_ms};
    }
}

static void connect_due(struct gloo_setup *m, int64_t now_ms)
{
    for (int r = 0; r < m->rank; r++) {
        if (m->fds[r] < 0 && m->outgoing[r].connection.step == UNUSED &&
            now_ms >= m->outgoing[r].retry_at_ms)
            connect_to(m, r, now_ms);
    }
}

static void drop_expired(struct gloo_setup *m, int64_t now_ms)
{
    for (int g = 0; g < GLOO_INCOMING_MAX; g++) {
        if (m->incoming[g].step != UNUSED && now_ms - m->incoming[g].since_ms > GLOO_HANDSHAKE_MS)
            drop(&m->incoming[g]);
    }
    for (int r = 0; r < m->rank; r++) {
        if (m->outgoing[r].connection.step != UNUSED &&
            now_ms - m->outgoing[r].connection.since_ms > GLOO_HANDSHAKE_MS) {
            m->outgoing[r].why = "it does not answer";
            drop(&m->outgoing[r].connection);
        }
    }
}

/* Polls all sockets for up to SLICE_MS and handles their events. */
static void progress_setup(struct gloo_setup *m, int64_t until_ms)
{
    const int64_t now_ms = hd_clock_now_ms(), left_ms = now_ms < until_ms ? until_ms - now_ms : 0;
    int count = 1;

    drop_expired(m, now_ms);
    connect_due(m, now_ms);
    m->polled[0] = (struct pollfd){.fd = m->listener_fd, .events = POLLIN};
    for (int v = 0; v < GLOO_INCOMING_MAX + m->rank; v++) {
        struct connection *c = v < GLOO_INCOMING_MAX
                                   ? &m->incoming[v]
                                   : &m->outgoing[v - GLOO_INCOMING_MAX].connection;

        if (c->step == UNUSED)
            continue;
        m->connections[count] = c;
        m->polled[count++] =
            (struct pollfd){.fd = c->fd, .events = c->step == CONNECTING ? POLLOUT : POLLIN};
    }
    if (poll(m->polled, (nfds_t)count, left_ms < SLICE_MS ? (int)left_ms : SLICE_MS) <= 0)
        return;
    for (int v = 1; v < count; v++) {
        const char *why = "";

        if (!m->polled[v].revents || advance(m, m->connections[v], &why))
            continue;
        for (int r = 0; r < m->rank; r++)
            if (m->connections[v] == &m->outgoing[r].connection)
                m->outgoing[r].why = why;
        drop(m->connections[v]);
    }
    if (m->polled[0].revents)
        accept_some(m, now_ms);
}

static int count_missing(const struct gloo_setup *m)
{
    int missing = 0;

    for (int r = 0; r < m->world; r++)
        missing += r != m->rank && m->fds[r] < 0;
    return missing;
}

/* Returns the lowest rank that is not connected to this one; -1: all are connected. */
static int first_missing(const struct gloo_setup *m)
{
    for (int r = 0; r < m->world; r++)
        if (r != m->rank && m->fds[r] < 0)
            return r;
    return -1;
}

static void report(const struct hd_gloo_listener *listener, int rank)
{
    if (listener->waiting_on)
        listener->waiting_on(listener->of_waiting_on, rank);
}

static enum hd_status name_missing(const struct gloo_setup *m, int64_t deadline_ms)
{
    struct hd_text text = {0};
    enum hd_status st;
    int named = 0;

    for (int r = 0; r < m->world; r++) {
        if (r == m->rank || m->fds[r] >= 0 || named++ >= NAMED_MAX)
            continue;
        hd_text_add(&text, "; rank %d (node %s, %s port %u): %s", r, m->addresses[r].node,
                    m->addresses[r].address, m->addresses[r].port,
                    r > m->rank          ? "it has not connected"
                    : m->outgoing[r].why ? m->outgoing[r].why
                                         : "not contacted yet");
    }
    st = hd_err(HD_TIMEOUT,
                "gloo: after %lld ms rank %d (node %s) is not connected to %d of %d ranks%s",
                (long long)deadline_ms, m->rank, m->addresses[m->rank].node, count_missing(m),
                m->world, text.data ? text.data : "");
    hd_text_free(&text);
    return st;
}

static enum hd_status check_endpoints(const struct hd_gloo_listener *listener,
                                      const struct hd_gloo_endpoint *endpoints, int rank, int world,
                                      struct gloo_address *ret_addresses)
{
    if (memcmp(&endpoints[rank], &listener->endpoint, sizeof listener->endpoint) != 0)
        return hd_err(HD_INVALID,
                      "gloo: the endpoint info of rank %d is not that of its own listener", rank);
    for (int r = 0; r < world; r++) {
        struct sockaddr_storage at;
        socklen_t bytes;
        enum hd_status st = gloo_endpoint_read(&endpoints[r], r, &ret_addresses[r]);

        if (!st)
            st = find_address(ret_addresses[r].address, ret_addresses[r].port, &at, &bytes);
        if (st)
            return st;
        for (int before = 0; before < r; before++) {
            if (memcmp(&endpoints[before], &endpoints[r], sizeof endpoints[r]) == 0)
                return hd_err(HD_INVALID, "gloo: ranks %d and %d have the same endpoint info",
                              before, r);
        }
    }
    return HD_OK;
}

static void free_setup(struct gloo_setup *m)
{
    free(m->polled);
    free(m->connections);
    memset(m->secret, 0, sizeof m->secret);
    free(m);
}

static struct gloo_setup *new_setup(int world)
{
    const size_t most = 1 + GLOO_INCOMING_MAX + (size_t)world;
    struct gloo_setup *m = calloc(1, sizeof *m + (size_t)world * sizeof m->outgoing[0]);

    if (!m)
        return NULL;
    m->world = world;
    m->polled = calloc(most, sizeof *m->polled);
    m->connections = calloc(most, sizeof(struct connection *));
    if (m->polled && m->connections)
        return m;
    free_setup(m);
    return NULL;
}

enum hd_status gloo_rendezvous(struct hd_gloo_listener *listener,
                               const struct hd_gloo_endpoint *endpoints, int rank, int world,
                               int64_t deadline_ms, struct gloo_address *ret_addresses,
                               int *ret_fds)
{
    const int64_t until_ms = hd_clock_now_ms() + deadline_ms;
    enum hd_status st = check_endpoints(listener, endpoints, rank, world, ret_addresses);
    struct gloo_setup *m;

    if (st)
        return st;
    m = new_setup(world);
    if (!m)
        return hd_err(HD_NO_MEMORY, "gloo: no memory to connect the ranks");
    m->rank = rank;
    m->listener_fd = listener->fd;
    m->addresses = ret_addresses;
    m->fds = ret_fds;
    gloo_secret(endpoints, world, m->secret);
    for (int r = 0; r < world; r++)
        ret_fds[r] = -1;
    while (count_missing(m) > 0 && hd_clock_now_ms() < until_ms) {
        report(listener, first_missing(m));
        progress_setup(m, until_ms);
    }
    report(listener, -1);
    if (count_missing(m) > 0)
        st = name_missing(m, deadline_ms);
    for (int g = 0; g < GLOO_INCOMING_MAX; g++)
        drop(&m->incoming[g]);
    for (int r = 0; r < rank; r++)
        drop(&m->outgoing[r].connection);
    for (int r = 0; r < world && st; r++) {
        if (ret_fds[r] >= 0)
            (void)close(ret_fds[r]);
        ret_fds[r] = -1;
    }
    free_setup(m);
    return st;
}
