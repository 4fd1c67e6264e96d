#include "nccl_wire.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "nccl_address.h"
#include "nccl_hello.h"
#include "nccl_link.h"
#include "nccl_wait.h"
#include "tests/cudasim/internal.h"

enum { WAIT_MS = 50, FLUSH_LOOKS = 2000, TEXT_MAX = 64 };

/* Content of an ncclUniqueId. */
struct identity {
    uint8_t token[HD_TOKEN_BYTES];
    struct hd_address maker;
};
_Static_assert(sizeof(struct identity) <= sizeof(ncclUniqueId), "an identity fits");

struct color {
    struct color *next;
    uint64_t comm;
    int split, rank, color, key;
};

/* Connections of one unique id: communicators split from it use the same connections. */
struct world {
    struct world *next;
    struct identity identity;
    int size, rank, communicators;
    bool connected, broken, closed, joined; /* joined: its connecting thread has ended */
    uint64_t tcp_bytes, shared_bytes;       /* sent on links that are closed */
    struct color *colors;
    struct hd_link *links; /* [size] */
};

struct hd_wire {
    struct world *world;
    uint64_t comm;
    int size, rank;
    int members[]; /* their ranks in the world */
};

/* The ranks that have come to the maker of an id. */
struct meeting {
    struct meeting *next;
    uint8_t token[HD_TOKEN_BYTES];
    int size, count;
    int *fds;
    struct hd_address *addresses;
};

/* An arrived message, on its way to the inbox. */
struct arrival {
    struct arrival *next;
    const struct world *world; /* of the rank that it came to */
    uint64_t comm;
    struct hd_wire_message *message;
};

/* Protects everything below but `inbox`. Taken after the lock of the streams, never before it. */
static pthread_mutex_t io = PTHREAD_MUTEX_INITIALIZER;
static struct world *worlds;
static struct meeting *meetings;
static struct hd_guest *guests;
static int listeners[HD_LISTENERS] = {-1, -1}, wake_fd = -1;
static struct hd_address self;
static bool started;

/* Under the lock of the streams: messages that nothing has taken. */
static struct arrival *inbox;

static void wake(void)
{
    const uint64_t one = 1;

    (void)!write(wake_fd, &one, sizeof one);
}

/* Under `io`. */
static void lose(struct world *world, struct hd_link *link)
{
    if (link->fd < 0)
        return;
    *(link->rings ? &world->shared_bytes : &world->tcp_bytes) += link->sent;
    hd_link_close(link);
    if (!link->has_said_bye)
        world->broken = true;
}

/* ---- receiving; under `io` ---- */

/* A whole message has come. */
static void take_in(struct world *world, struct hd_link *link, const struct hd_link_header *h,
                    struct hd_wire_message *message, struct arrival **list)
{
    if (h->type == HD_LINK_DATA) {
        struct arrival *arrival = malloc(sizeof *arrival);

        if (!arrival)
            abort();
        *arrival = (struct arrival){*list, world, h->comm, message};
        *list = arrival;
        return;
    }
    if (h->type == HD_LINK_COLOR) {
        struct color *color = malloc(sizeof *color);

        if (!color)
            abort();
        *color = (struct color){.next = world->colors,
                                .comm = h->comm,
                                .split = (int)h->number,
                                .rank = h->from,
                                .color = h->kind};
        memcpy(&color->key, message->data, sizeof color->key);
        world->colors = color;
    } else {
        link->has_said_bye = true;
    }
    free(message);
}

static void receive(struct world *world, struct hd_link *link, struct arrival **list)
{
    struct hd_link_header header;
    struct hd_wire_message *message;

    while ((message = hd_link_take(link, &header)))
        take_in(world, link, &header, message, list);
    if (link->ended)
        lose(world, link);
}

/* ---- guests; under `io` ---- */

/* Called when every rank has connected: sends each of them the list of all addresses. */
static void end_meeting(struct meeting *m)
{
    for (int r = 0; r < m->size; r++) {
        const size_t bytes = (size_t)m->size * sizeof m->addresses[0];

        (void)!send(m->fds[r], m->addresses, bytes, MSG_NOSIGNAL);
        (void)close(m->fds[r]);
    }
    free(m->fds);
    free(m->addresses);
    m->fds = NULL;
    m->addresses = NULL;
}

/* Takes the guest's connection. */
static bool meet(struct hd_guest *guest)
{
    const struct hd_hello *hello = &guest->hello;
    struct meeting *m = meetings;

    while (m && memcmp(m->token, hello->token, HD_TOKEN_BYTES) != 0)
        m = m->next;
    if (!m || hello->size < 1 || hello->rank < 0 || hello->rank >= hello->size ||
        (m->size && (hello->size != m->size || !m->fds)))
        return false;
    if (!m->size) {
        m->size = hello->size;
        m->fds = calloc((size_t)m->size, sizeof m->fds[0]);
        m->addresses = calloc((size_t)m->size, sizeof m->addresses[0]);
        if (!m->fds || !m->addresses)
            abort();
    }
    m->fds[hello->rank] = guest->fd;
    m->addresses[hello->rank] = hello->address;
    if (++m->count == m->size)
        end_meeting(m);
    guest->fd = -1;
    return true;
}

/* Takes the guest's connection and the memory that a process of this node has sent. */
static bool join_world(struct hd_guest *guest)
{
    const struct hd_hello *hello = &guest->hello;
    const bool is_near = hello->address.node == self.node;
    struct hd_rings *rings = NULL;
    struct world *w = worlds;

    while (w && (w->closed || w->rank != hello->to ||
                 memcmp(w->identity.token, hello->token, HD_TOKEN_BYTES) != 0))
        w = w->next;
    if (!w || hello->rank <= w->rank || hello->rank >= w->size || w->links[hello->rank].fd >= 0)
        return false;
    if (is_near)
        rings = hd_rings_map(guest->memory_fd, false);
    if (is_near && !rings)
        return false;
    hd_link_set(&w->links[hello->rank], guest->fd, rings);
    guest->fd = -1;
    return true;
}

static void look_at_guests(void)
{
    for (struct hd_guest **at = &guests; *at;) {
        struct hd_guest *guest = *at;
        const enum hd_heard heard = hd_hello_hear(guest);

        if (heard == HD_HEARD_PART) {
            at = &guest->next;
            continue;
        }
        if (heard == HD_HEARD_ALL)
            (void)(guest->hello.purpose == HD_TO_MEET ? meet(guest) : join_world(guest));
        *at = guest->next;
        hd_hello_free(guest);
    }
}

/* ---- the thread ---- */

static void free_world(struct world *world)
{
    struct world **at = &worlds;

    while (*at != world)
        at = &(*at)->next;
    *at = world->next;
    for (int r = 0; r < world->size; r++) {
        world->links[r].has_said_bye = true;
        lose(world, &world->links[r]);
    }
    while (world->colors) {
        struct color *color = world->colors;

        world->colors = color->next;
        free(color);
    }
    free(world->links);
    free(world);
}

static void look_at_links(struct arrival **list)
{
    struct world *next;

    for (struct world *w = worlds; w; w = next) {
        next = w->next;
        for (int r = 0; r < w->size && !w->closed; r++) {
            if (w->links[r].fd < 0)
                continue;
            receive(w, &w->links[r], list);
            hd_link_flush(&w->links[r]); /* behind: receiving has taken the wake for new room */
        }
        if (w->closed && w->joined)
            free_world(w);
    }
}

/* All descriptors to wait for; the caller frees them. */
static struct pollfd *list_descriptors(nfds_t *ret_count)
{
    nfds_t count = 1 + HD_LISTENERS;
    struct pollfd *fds;

    for (const struct hd_guest *g = guests; g; g = g->next)
        count++;
    for (const struct world *w = worlds; w; w = w->next)
        count += (nfds_t)w->size;
    fds = calloc(count, sizeof *fds);
    if (!fds)
        abort();
    count = 0;
    fds[count++] = (struct pollfd){.fd = wake_fd, .events = POLLIN};
    for (int i = 0; i < HD_LISTENERS; i++)
        fds[count++] = (struct pollfd){.fd = listeners[i], .events = POLLIN};
    for (const struct hd_guest *g = guests; g; g = g->next)
        fds[count++] = (struct pollfd){.fd = g->fd, .events = POLLIN};
    for (const struct world *w = worlds; w; w = w->next)
        for (int r = 0; r < w->size; r++)
            fds[count++] =
                (struct pollfd){.fd = w->links[r].fd, .events = hd_link_events(&w->links[r])};
    *ret_count = count;
    return fds;
}

static void *move_bytes(void *unused)
{
    pthread_mutex_lock(&io);
    for (;;) {
        struct arrival *list = NULL;
        nfds_t count;
        struct pollfd *fds = list_descriptors(&count);
        uint64_t wakes;

        pthread_mutex_unlock(&io);
        (void)poll(fds, count, -1);
        free(fds);
        (void)!read(wake_fd, &wakes, sizeof wakes);
        pthread_mutex_lock(&io);
        for (int i = 0; i < HD_LISTENERS; i++)
            if (listeners[i] >= 0)
                hd_hello_accept(listeners[i], &guests);
        look_at_guests();
        look_at_links(&list);
        if (!list)
            continue;
        pthread_mutex_unlock(&io);
        hd_sim_streams_lock();
        while (list) {
            struct arrival *arrival = list;

            list = arrival->next;
            arrival->next = inbox;
            inbox = arrival;
        }
        hd_sim_parts_look();
        hd_sim_streams_unlock();
        pthread_mutex_lock(&io);
    }
    return NULL;
}

static ncclResult_t start(void)
{
    pthread_t thread;

    if (started)
        return ncclSuccess;
    if (!hd_address_listen(&self, listeners))
        return ncclUnhandledCudaError;
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd < 0 || pthread_create(&thread, NULL, move_bytes, NULL) != 0)
        return ncclUnhandledCudaError;
    (void)pthread_detach(thread);
    started = true;
    return ncclSuccess;
}

/* ---- connecting ---- */

static bool is_closed(const struct world *world)
{
    bool closed;

    pthread_mutex_lock(&io);
    closed = world->closed;
    pthread_mutex_unlock(&io);
    return closed;
}

/* Reads all addresses; false: the world was closed, or the maker of the id is gone. */
static bool read_addresses(const struct world *world, int fd, struct hd_address *addresses)
{
    const size_t bytes = (size_t)world->size * sizeof addresses[0];

    for (size_t got = 0; got < bytes;) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        ssize_t n = 0;

        if (is_closed(world))
            return false;
        if (poll(&ready, 1, WAIT_MS) <= 0)
            continue;
        n = recv(fd, (char *)addresses + got, bytes - got, 0);
        if (n <= 0)
            return false;
        got += (size_t)n;
    }
    return true;
}

/* to: -1: the maker of the id. */
static bool say_hello(const struct world *world, int fd, int to, int memory_fd)
{
    struct hd_hello hello;

    memset(&hello, 0, sizeof hello);
    hello.purpose = to < 0 ? HD_TO_MEET : HD_TO_EXCHANGE;
    hello.to = to;
    memcpy(hello.token, world->identity.token, HD_TOKEN_BYTES);
    hello.size = world->size;
    hello.rank = world->rank;
    hello.address = self;
    return hd_hello_send(fd, &hello, memory_fd);
}

/* Asks the maker of the id for the addresses of all. */
static bool meet_all(const struct world *world, struct hd_address *addresses)
{
    const int fd = hd_address_connect(&self, &world->identity.maker);
    const bool good =
        fd >= 0 && say_hello(world, fd, -1, -1) && read_addresses(world, fd, addresses);

    if (fd >= 0)
        (void)close(fd);
    return good;
}

/* Connects to one rank; in a node, with new shared memory. */
static bool connect_to(struct world *world, int rank, const struct hd_address *address)
{
    const bool is_near = address->node == self.node;
    const int memory_fd = is_near ? hd_rings_make() : -1;
    struct hd_rings *rings = is_near ? hd_rings_map(memory_fd, true) : NULL;
    const int fd = is_near && !rings ? -1 : hd_address_connect(&self, address);
    const bool good = fd >= 0 && say_hello(world, fd, rank, memory_fd);

    if (memory_fd >= 0)
        (void)close(memory_fd);
    if (good) {
        pthread_mutex_lock(&io);
        hd_link_set(&world->links[rank], fd, rings);
        pthread_mutex_unlock(&io);
        return true;
    }
    hd_rings_unmap(rings);
    if (fd >= 0)
        (void)close(fd);
    return false;
}

/* Each rank connects to those before it. */
static bool connect_all(struct world *world, struct hd_address *addresses)
{
    bool good = meet_all(world, addresses), all = false;

    for (int r = 0; good && r < world->rank; r++)
        good = connect_to(world, r, &addresses[r]);
    while (good && !all && !is_closed(world)) {
        all = true;
        pthread_mutex_lock(&io);
        for (int r = 0; r < world->size; r++)
            all &= r == world->rank || world->links[r].fd >= 0 || world->broken;
        pthread_mutex_unlock(&io);
        if (!all)
            (void)usleep(1000);
    }
    return good;
}

static void say_ways(const struct world *world)
{
    char text[TEXT_MAX];
    int far = 0;

    for (int r = 0; r < world->size; r++)
        far += r != world->rank && !world->links[r].rings;
    hd_address_text(&self, text, sizeof text);
    fprintf(stderr, "emulated NCCL: rank %d of %d: %d peers by shared memory, %d by TCP from %s\n",
            world->rank, world->size, world->size - 1 - far, far, text);
}

static void *join(void *context)
{
    struct world *world = context;
    struct hd_address *addresses = calloc((size_t)world->size, sizeof *addresses);
    const bool good = addresses && connect_all(world, addresses);

    free(addresses);
    pthread_mutex_lock(&io);
    world->connected = good;
    world->broken |= !good;
    world->joined = true;
    if (good && world->size > 2)
        say_ways(world);
    pthread_mutex_unlock(&io);
    wake();
    return NULL;
}

/* ---- the header's functions ---- */

ncclResult_t hd_wire_make_id(ncclUniqueId *ret_id)
{
    struct meeting *meeting = calloc(1, sizeof *meeting);
    struct identity identity;
    ncclResult_t result;

    if (!meeting)
        abort();
    memset(&identity, 0, sizeof identity);
    pthread_mutex_lock(&io);
    result = start();
    if (!result && getrandom(identity.token, HD_TOKEN_BYTES, 0) != HD_TOKEN_BYTES)
        result = ncclUnhandledCudaError;
    if (!result) {
        identity.maker = self;
        memcpy(meeting->token, identity.token, HD_TOKEN_BYTES);
        meeting->next = meetings;
        meetings = meeting;
        memset(ret_id, 0, sizeof *ret_id);
        memcpy(ret_id, &identity, sizeof identity);
    } else {
        free(meeting);
    }
    pthread_mutex_unlock(&io);
    return result;
}

ncclResult_t hd_wire_open(const ncclUniqueId *id, int size, int rank, struct hd_wire **ret_wire)
{
    struct world *world = calloc(1, sizeof *world);
    struct hd_wire *wire = calloc(1, sizeof *wire + (size_t)size * sizeof wire->members[0]);
    pthread_t thread;
    ncclResult_t result;

    if (!world || !wire)
        abort();
    world->links = calloc((size_t)size, sizeof world->links[0]);
    if (!world->links)
        abort();
    memcpy(&world->identity, id, sizeof world->identity);
    world->size = size;
    world->rank = rank;
    world->communicators = 1;
    *wire = (struct hd_wire){.world = world, .size = size, .rank = rank};
    wire->comm = hd_address_hash(0, world->identity.token, HD_TOKEN_BYTES);
    for (int r = 0; r < size; r++) {
        wire->members[r] = r;
        hd_link_init(&world->links[r]);
    }
    pthread_mutex_lock(&io);
    result = start();
    world->next = worlds;
    worlds = world;
    pthread_mutex_unlock(&io);
    if (result || pthread_create(&thread, NULL, join, world) != 0)
        return ncclUnhandledCudaError;
    (void)pthread_detach(thread);
    *ret_wire = wire;
    return ncclSuccess;
}

/* Under `io`. */
static void post_header(const struct hd_wire *wire, int peer, const struct hd_link_header *header,
                        const void *bytes)
{
    if (!wire->world->closed)
        hd_link_send(&wire->world->links[wire->members[peer]], header, bytes);
}

void hd_wire_tell_color(struct hd_wire *parent, int split, int color, int key)
{
    const struct hd_link_header header = {.type = HD_LINK_COLOR,
                                          .comm = parent->comm,
                                          .number = (uint64_t)split,
                                          .bytes = sizeof key,
                                          .kind = color,
                                          .from = parent->rank};
    struct color *own = malloc(sizeof *own);

    if (!own)
        abort();
    pthread_mutex_lock(&io);
    *own = (struct color){parent->world->colors, parent->comm, split, parent->rank, color, key};
    parent->world->colors = own;
    for (int r = 0; r < parent->size; r++)
        if (r != parent->rank)
            post_header(parent, r, &header, &key);
    pthread_mutex_unlock(&io);
    wake();
}

bool hd_wire_has_colors(struct hd_wire *parent, int split)
{
    int count = 0;

    pthread_mutex_lock(&io);
    for (const struct color *c = parent->world->colors; c; c = c->next)
        count += c->comm == parent->comm && c->split == split;
    pthread_mutex_unlock(&io);
    return count == parent->size;
}

static bool is_before(const struct color *a, const struct color *b)
{
    return a->key < b->key || (a->key == b->key && a->rank < b->rank);
}

struct hd_wire *hd_wire_split(struct hd_wire *parent, int split, int color)
{
    struct hd_wire *wire = calloc(1, sizeof *wire + (size_t)parent->size * sizeof wire->members[0]);
    const uint64_t names[] = {(uint64_t)split, (uint64_t)color};
    const struct color *colors;

    if (!wire)
        abort();
    if (color == NCCL_SPLIT_NOCOLOR) {
        free(wire);
        return NULL;
    }
    pthread_mutex_lock(&io);
    colors = parent->world->colors;
    wire->world = parent->world;
    wire->comm = hd_address_hash(parent->comm, names, sizeof names);
    for (const struct color *c = colors; c; c = c->next) {
        int before = 0;

        if (c->comm != parent->comm || c->split != split || c->color != color)
            continue;
        for (const struct color *o = colors; o; o = o->next)
            before += o->comm == parent->comm && o->split == split && o->color == color &&
                      is_before(o, c);
        wire->members[before] = parent->members[c->rank];
        wire->size++;
        if (c->rank == parent->rank)
            wire->rank = before;
    }
    wire->world->communicators++;
    pthread_mutex_unlock(&io);
    return wire;
}

int hd_wire_size(const struct hd_wire *wire)
{
    return wire->size;
}

int hd_wire_rank(const struct hd_wire *wire)
{
    return wire->rank;
}

bool hd_wire_is_connected(struct hd_wire *wire)
{
    bool connected;

    pthread_mutex_lock(&io);
    connected = wire->world->connected;
    pthread_mutex_unlock(&io);
    return connected;
}

bool hd_wire_is_broken(struct hd_wire *wire)
{
    bool broken;

    pthread_mutex_lock(&io);
    broken = wire->world->broken;
    pthread_mutex_unlock(&io);
    return broken;
}

bool hd_wire_is_flushed(struct hd_wire *wire)
{
    bool flushed = true;

    pthread_mutex_lock(&io);
    for (int r = 0; r < wire->world->size; r++)
        flushed &= hd_link_is_flushed(&wire->world->links[r]);
    pthread_mutex_unlock(&io);
    return flushed;
}

void hd_wire_send(const struct hd_wire_place *place, const void *buf, size_t bytes)
{
    const struct hd_link_header header = {.type = HD_LINK_DATA,
                                          .comm = place->wire->comm,
                                          .number = place->number,
                                          .bytes = bytes,
                                          .kind = place->kind,
                                          .from = place->wire->rank};

    pthread_mutex_lock(&io);
    post_header(place->wire, place->peer, &header, buf);
    pthread_mutex_unlock(&io);
    wake();
}

struct hd_wire_message *hd_wire_take(const struct hd_wire_place *place, size_t bytes)
{
    for (struct arrival **at = &inbox; *at; at = &(*at)->next) {
        struct arrival *arrival = *at;
        struct hd_wire_message *m = arrival->message;

        if (arrival->world != place->wire->world || arrival->comm != place->wire->comm ||
            m->peer != place->peer || m->number != place->number || m->kind != place->kind ||
            m->bytes != bytes)
            continue;
        *at = arrival->next;
        free(arrival);
        return m;
    }
    return NULL;
}

/* Messages that nothing will take. */
static void clear_inbox(const struct world *world, uint64_t comm)
{
    hd_sim_streams_lock();
    for (struct arrival **at = &inbox; *at;) {
        struct arrival *arrival = *at;

        if (arrival->world != world || arrival->comm != comm) {
            at = &arrival->next;
            continue;
        }
        *at = arrival->next;
        free(arrival->message);
        free(arrival);
    }
    hd_sim_streams_unlock();
}

/* Sends what is left, and then a goodbye. Under `io`, which is given up in between. */
static void say_bye(struct world *world, int rank)
{
    const struct hd_link_header bye = {.type = HD_LINK_BYE, .from = rank};
    bool flushed = false;

    for (int r = 0; r < world->size; r++)
        hd_link_send(&world->links[r], &bye, NULL);
    for (int looks = 0; looks < FLUSH_LOOKS && !flushed; looks++) {
        flushed = true;
        for (int r = 0; r < world->size; r++) {
            hd_link_flush(&world->links[r]);
            flushed &= hd_link_is_flushed(&world->links[r]);
        }
        pthread_mutex_unlock(&io);
        if (!flushed)
            (void)usleep(1000);
        pthread_mutex_lock(&io);
    }
}

static void say_bytes(const struct world *world)
{
    uint64_t shared = world->shared_bytes, tcp = world->tcp_bytes;

    for (int r = 0; r < world->size; r++)
        if (world->links[r].fd >= 0)
            *(world->links[r].rings ? &shared : &tcp) += world->links[r].sent;
    fprintf(stderr, "emulated NCCL: rank %d sent %llu bytes by shared memory, %llu by TCP\n",
            world->rank, (unsigned long long)shared, (unsigned long long)tcp);
}

void hd_wire_close(struct hd_wire *wire, bool clean)
{
    struct world *world = wire->world;

    pthread_mutex_lock(&io);
    if (--world->communicators == 0) {
        if (clean)
            say_bye(world, wire->rank);
        if (clean && world->size > 2)
            say_bytes(world);
        world->closed = true;
    }
    pthread_mutex_unlock(&io);
    wake();
    clear_inbox(world, wire->comm);
    free(wire);
}
