#include "nccl_wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "nccl_wait.h"
#include "tests/cudasim/internal.h"

enum { TOKEN_BYTES = 16, LISTENERS = 2, MAGIC = 0x6e63636c, WAIT_MS = 50, FLUSH_LOOKS = 2000 };

/* Where a process listens. */
struct address {
    uint64_t node;  /* processes of equal `node` use `local` */
    uint64_t local; /* the name of its local socket */
    uint16_t family, port;
    uint8_t ip[16];
};

/* What an ncclUniqueId contains. */
struct identity {
    uint8_t token[TOKEN_BYTES];
    struct address maker;
};
_Static_assert(sizeof(struct identity) <= sizeof(ncclUniqueId), "an identity fits");

/* The first bytes on a connection: to the maker of an id, or to a rank of the same world. */
enum purpose { TO_MEET = 1, TO_EXCHANGE };
struct hello {
    uint32_t magic, purpose;
    uint8_t token[TOKEN_BYTES];
    int32_t size, rank;
    struct address address;
};

enum message_type { DATA = 1, COLOR, BYE };
struct header {
    uint32_t magic, type;
    uint64_t comm, number, bytes;
    int32_t kind, from; /* `from`: rank in comm */
};

struct out {
    struct out *next;
    size_t size, done;
    char bytes[];
};

/* The connection to one peer. Read and closed by the thread alone. */
struct peer_link {
    int fd; /* -1: none */
    bool tcp, has_said_bye;
    struct out *first, **last;
    struct header header;
    size_t got;
    struct hd_wire_message *message; /* whose header has been read */
    uint64_t comm;
};

struct color {
    struct color *next;
    uint64_t comm;
    int split, rank, color, key;
};

/* What one unique id connects: communicators split from it use the same connections. */
struct world {
    struct world *next;
    struct identity identity;
    int size, rank, communicators;
    bool connected, broken, closed, joined; /* joined: its connecting thread has ended */
    uint64_t tcp_bytes, local_bytes;        /* sent */
    struct color *colors;
    struct peer_link *links; /* [size] */
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
    uint8_t token[TOKEN_BYTES];
    int size, count;
    int *fds;
    struct address *addresses;
};

/* An accepted connection that has not said what it is. */
struct guest {
    struct guest *next;
    int fd;
    size_t got;
    struct hello hello;
};

/* An arrived message, on its way to the inbox. */
struct arrival {
    struct arrival *next;
    uint64_t comm;
    struct hd_wire_message *message;
};

/* Protects everything below but `inbox`. Taken after the lock of the streams, never before it. */
static pthread_mutex_t io = PTHREAD_MUTEX_INITIALIZER;
static struct world *worlds;
static struct meeting *meetings;
static struct guest *guests;
static int listeners[LISTENERS] = {-1, -1}, wake_fd = -1;
static struct address self;
static bool started;

/* Under the lock of the streams: messages that nothing has taken. */
static struct arrival *inbox;

/* ---- addresses ---- */

static uint64_t hash(uint64_t h, const void *bytes, size_t size)
{
    const unsigned char *p = bytes;

    for (size_t i = 0; i < size; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h;
}

static uint64_t node_id(void)
{
    const char *id = getenv("NCCL_HOSTID");
    char text[512] = "";
    FILE *boot;

    if (id)
        return hash(14695981039346656037u, id, strlen(id));
    (void)gethostname(text, 255);
    boot = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (boot) {
        (void)!fgets(text + strlen(text), 64, boot);
        (void)fclose(boot);
    }
    return hash(14695981039346656037u, text, strlen(text));
}

static socklen_t local_address(uint64_t name, struct sockaddr_un *ret_address)
{
    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                       (size_t)snprintf(ret_address->sun_path + 1, sizeof ret_address->sun_path - 1,
                                        "emulated-nccl-%016llx", (unsigned long long)name));
}

static socklen_t tcp_address(const struct address *a, bool any_port, struct sockaddr_storage *ret)
{
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)ret;
    struct sockaddr_in *four = (struct sockaddr_in *)ret;

    memset(ret, 0, sizeof *ret);
    ret->ss_family = a->family;
    if (a->family == AF_INET6) {
        memcpy(&six->sin6_addr, a->ip, 16);
        six->sin6_port = any_port ? 0 : a->port;
        return sizeof *six;
    }
    memcpy(&four->sin_addr, a->ip, 4);
    four->sin_port = any_port ? 0 : a->port;
    return sizeof *four;
}

/* The first address of the interface that NCCL_SOCKET_IFNAME names; only the form "=NAME". */
static bool find_interface(struct address *a)
{
    const char *name = getenv("NCCL_SOCKET_IFNAME"), *family = getenv("NCCL_SOCKET_FAMILY");
    const int wanted = family && strcmp(family, "AF_INET6") == 0 ? AF_INET6 : AF_INET;
    struct ifaddrs *all = NULL;

    if (!name || name[0] != '=' || getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *i = all; i && !a->family; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != wanted || strcmp(i->ifa_name, name + 1) != 0)
            continue;
        a->family = (uint16_t)wanted;
        if (wanted == AF_INET)
            memcpy(a->ip, &((const struct sockaddr_in *)i->ifa_addr)->sin_addr, 4);
        else
            memcpy(a->ip, &((const struct sockaddr_in6 *)i->ifa_addr)->sin6_addr, 16);
    }
    freeifaddrs(all);
    return a->family;
}

static int listen_at(const void *address, socklen_t size, int family)
{
    const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 && bind(fd, address, size) == 0 && listen(fd, 128) == 0)
        return fd;
    if (fd >= 0)
        (void)close(fd);
    return -1;
}

static void wake(void)
{
    const uint64_t one = 1;

    (void)!write(wake_fd, &one, sizeof one);
}

static void be_quick(int fd)
{
    const int one = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* fails on local sockets */
}

/* ---- sending; under `io` ---- */

static void queue(struct peer_link *link, const struct header *header, const void *bytes)
{
    struct out *out = malloc(sizeof *out + sizeof *header + header->bytes);

    if (!out)
        abort();
    *out = (struct out){.size = sizeof *header + header->bytes};
    memcpy(out->bytes, header, sizeof *header);
    if (header->bytes)
        memcpy(out->bytes + sizeof *header, bytes, header->bytes);
    *link->last = out;
    link->last = &out->next;
}

static void drop_out(struct peer_link *link)
{
    while (link->first) {
        struct out *out = link->first;

        link->first = out->next;
        free(out);
    }
    link->last = &link->first;
}

static void lose(struct world *world, struct peer_link *link)
{
    if (link->fd < 0)
        return;
    (void)close(link->fd);
    link->fd = -1;
    free(link->message);
    link->message = NULL;
    drop_out(link);
    if (!link->has_said_bye)
        world->broken = true;
}

static void flush(struct world *world, struct peer_link *link)
{
    while (link->first && link->fd >= 0) {
        struct out *out = link->first;
        const ssize_t n = send(link->fd, out->bytes + out->done, out->size - out->done,
                               MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0) {
            lose(world, link);
            return;
        }
        *(link->tcp ? &world->tcp_bytes : &world->local_bytes) += (uint64_t)n;
        out->done += (size_t)n;
        if (out->done < out->size)
            return;
        link->first = out->next;
        if (!link->first)
            link->last = &link->first;
        free(out);
    }
}

/* ---- receiving; under `io` ---- */

/* A whole message has come. */
static void take_in(struct world *world, struct peer_link *link, struct arrival **list)
{
    const struct header *h = &link->header;
    struct hd_wire_message *message = link->message;

    link->message = NULL;
    link->got = 0;
    if (h->type == DATA) {
        struct arrival *arrival = malloc(sizeof *arrival);

        if (!arrival)
            abort();
        *arrival = (struct arrival){*list, h->comm, message};
        *list = arrival;
        return;
    }
    if (h->type == COLOR) {
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

static void receive(struct world *world, struct peer_link *link, struct arrival **list)
{
    while (link->fd >= 0) {
        const bool in_header = link->got < sizeof link->header;
        char *to = in_header ? (char *)&link->header + link->got
                             : link->message->data + (link->got - sizeof link->header);
        const size_t want = in_header ? sizeof link->header - link->got
                                      : sizeof link->header + link->header.bytes - link->got;
        const ssize_t n = want ? recv(link->fd, to, want, MSG_DONTWAIT) : 0;

        if (want && n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (want && n <= 0) {
            lose(world, link);
            return;
        }
        link->got += (size_t)n;
        if (link->got < sizeof link->header)
            continue;
        if (!link->message) {
            const struct header *h = &link->header;

            if (h->magic != MAGIC) {
                lose(world, link);
                return;
            }
            link->message = malloc(sizeof *link->message + h->bytes);
            if (!link->message)
                abort();
            *link->message = (struct hd_wire_message){
                .peer = h->from, .kind = h->kind, .number = h->number, .bytes = h->bytes};
        }
        if (link->got == sizeof link->header + link->header.bytes)
            take_in(world, link, list);
    }
}

/* ---- guests; under `io` ---- */

static void accept_guests(int listener)
{
    int fd;

    while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        struct guest *guest = calloc(1, sizeof *guest);

        if (!guest)
            abort();
        guest->fd = fd;
        guest->next = guests;
        guests = guest;
    }
}

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

static bool meet(const struct guest *guest)
{
    const struct hello *hello = &guest->hello;
    struct meeting *m = meetings;

    while (m && memcmp(m->token, hello->token, TOKEN_BYTES) != 0)
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
    return true;
}

static void set_link(struct world *world, int rank, int fd, bool tcp)
{
    struct peer_link *link = &world->links[rank];

    be_quick(fd);
    link->fd = fd;
    link->tcp = tcp;
}

static bool join_world(const struct guest *guest)
{
    const struct hello *hello = &guest->hello;
    struct sockaddr_storage from;
    socklen_t size = sizeof from;
    struct world *w = worlds;

    while (w && (w->closed || memcmp(w->identity.token, hello->token, TOKEN_BYTES) != 0))
        w = w->next;
    if (!w || hello->rank <= w->rank || hello->rank >= w->size || w->links[hello->rank].fd >= 0 ||
        getpeername(guest->fd, (struct sockaddr *)&from, &size) != 0)
        return false;
    set_link(w, hello->rank, guest->fd, from.ss_family != AF_UNIX);
    return true;
}

/* False: the connection is of no use, or was handed on. */
static bool hear_guest(struct guest *guest)
{
    const ssize_t n = recv(guest->fd, (char *)&guest->hello + guest->got,
                           sizeof guest->hello - guest->got, MSG_DONTWAIT);
    bool taken;

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    guest->got += n > 0 ? (size_t)n : 0;
    if (n > 0 && guest->got < sizeof guest->hello)
        return true;
    taken = n > 0 && guest->hello.magic == MAGIC &&
            (guest->hello.purpose == TO_MEET ? meet(guest) : join_world(guest));
    if (!taken)
        (void)close(guest->fd);
    return false;
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
            flush(w, &w->links[r]);
            receive(w, &w->links[r], list);
        }
        if (w->closed && w->joined)
            free_world(w);
    }
}

static void look_at_guests(void)
{
    for (struct guest **at = &guests; *at;) {
        struct guest *guest = *at;

        if (hear_guest(guest)) {
            at = &guest->next;
        } else {
            *at = guest->next;
            free(guest);
        }
    }
}

/* All descriptors to wait for; the caller frees them. */
static struct pollfd *list_descriptors(nfds_t *ret_count)
{
    nfds_t count = 1 + LISTENERS;
    struct pollfd *fds;

    for (const struct guest *g = guests; g; g = g->next)
        count++;
    for (const struct world *w = worlds; w; w = w->next)
        count += (nfds_t)w->size;
    fds = calloc(count, sizeof *fds);
    if (!fds)
        abort();
    count = 0;
    fds[count++] = (struct pollfd){.fd = wake_fd, .events = POLLIN};
    for (int i = 0; i < LISTENERS; i++)
        fds[count++] = (struct pollfd){.fd = listeners[i], .events = POLLIN};
    for (const struct guest *g = guests; g; g = g->next)
        fds[count++] = (struct pollfd){.fd = g->fd, .events = POLLIN};
    for (const struct world *w = worlds; w; w = w->next)
        for (int r = 0; r < w->size; r++)
            fds[count++] =
                (struct pollfd){.fd = w->links[r].fd,
                                .events = (short)(POLLIN | (w->links[r].first ? POLLOUT : 0))};
    *ret_count = count;
    return fds;
}

static void *move_bytes(void *unused)
{
    (void)unused;
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
        for (int i = 0; i < LISTENERS; i++)
            if (listeners[i] >= 0)
                accept_guests(listeners[i]);
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
    struct sockaddr_un here;
    struct sockaddr_storage there;
    socklen_t size;
    pthread_t thread;

    if (started)
        return ncclSuccess;
    self = (struct address){.node = node_id()};
    if (getrandom(&self.local, sizeof self.local, 0) != (ssize_t)sizeof self.local)
        return ncclUnhandledCudaError;
    size = local_address(self.local, &here);
    listeners[0] = listen_at(&here, size, AF_UNIX);
    if (find_interface(&self)) {
        size = tcp_address(&self, true, &there);
        listeners[1] = listen_at(&there, size, self.family);
        if (getsockname(listeners[1], (struct sockaddr *)&there, &size) == 0)
            self.port = self.family == AF_INET6 ? ((struct sockaddr_in6 *)&there)->sin6_port
                                                : ((struct sockaddr_in *)&there)->sin_port;
    }
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (listeners[0] < 0 || wake_fd < 0 || pthread_create(&thread, NULL, move_bytes, NULL) != 0)
        return ncclUnhandledCudaError;
    (void)pthread_detach(thread);
    started = true;
    return ncclSuccess;
}

/* ---- connecting ---- */

static int connect_to(const struct address *to, bool *ret_tcp)
{
    struct sockaddr_storage there, here;
    struct sockaddr_un local;
    socklen_t size;
    int fd;

    *ret_tcp = to->node != self.node;
    if (!*ret_tcp) {
        size = local_address(to->local, &local);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&local, size) == 0)
            return fd;
    } else {
        if (!self.family || self.family != to->family)
            return -1;
        fd = socket(to->family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        size = tcp_address(&self, true, &here);
        if (fd >= 0 && bind(fd, (struct sockaddr *)&here, size) == 0) {
            size = tcp_address(to, false, &there);
            if (connect(fd, (struct sockaddr *)&there, size) == 0)
                return fd;
        }
    }
    if (fd >= 0)
        (void)close(fd);
    return -1;
}

static bool is_closed(const struct world *world)
{
    bool closed;

    pthread_mutex_lock(&io);
    closed = world->closed;
    pthread_mutex_unlock(&io);
    return closed;
}

/* Reads all addresses; false: the world was closed, or the maker of the id is gone. */
static bool read_addresses(const struct world *world, int fd, struct address *addresses)
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

static bool say_hello(const struct world *world, int fd, enum purpose purpose)
{
    struct hello hello;

    memset(&hello, 0, sizeof hello);
    hello.magic = MAGIC;
    hello.purpose = purpose;
    memcpy(hello.token, world->identity.token, TOKEN_BYTES);
    hello.size = world->size;
    hello.rank = world->rank;
    hello.address = self;
    return send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == (ssize_t)sizeof hello;
}

/* Each rank connects to those before it. */
static bool connect_all(struct world *world, struct address *addresses)
{
    bool tcp, all = false;
    int fd = connect_to(&world->identity.maker, &tcp);
    bool good = fd >= 0 && say_hello(world, fd, TO_MEET) && read_addresses(world, fd, addresses);

    if (fd >= 0)
        (void)close(fd);
    for (int r = 0; good && r < world->rank; r++) {
        fd = connect_to(&addresses[r], &tcp);
        good = fd >= 0 && say_hello(world, fd, TO_EXCHANGE);
        if (!good)
            continue;
        pthread_mutex_lock(&io);
        set_link(world, r, fd, tcp);
        pthread_mutex_unlock(&io);
    }
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
    char text[INET6_ADDRSTRLEN] = "no address";
    int far = 0;

    for (int r = 0; r < world->size; r++)
        far += world->links[r].tcp;
    if (self.family)
        (void)inet_ntop(self.family, self.ip, text, sizeof text);
    fprintf(stderr, "emulated NCCL: rank %d of %d: %d peers of this node, %d by TCP from %s\n",
            world->rank, world->size, world->size - 1 - far, far, text);
}

static void *join(void *context)
{
    struct world *world = context;
    struct address *addresses = calloc((size_t)world->size, sizeof *addresses);
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
    if (!result && getrandom(identity.token, TOKEN_BYTES, 0) != TOKEN_BYTES)
        result = ncclUnhandledCudaError;
    if (!result) {
        identity.maker = self;
        memcpy(meeting->token, identity.token, TOKEN_BYTES);
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
    wire->comm = hash(14695981039346656037u, world->identity.token, TOKEN_BYTES);
    for (int r = 0; r < size; r++) {
        wire->members[r] = r;
        world->links[r].fd = -1;
        world->links[r].last = &world->links[r].first;
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
static void post_header(const struct hd_wire *wire, int peer, const struct header *header,
                        const void *bytes)
{
    struct world *world = wire->world;
    struct peer_link *link = &world->links[wire->members[peer]];

    if (world->closed || link->fd < 0)
        return;
    queue(link, header, bytes);
    flush(world, link);
}

void hd_wire_tell_color(struct hd_wire *parent, int split, int color, int key)
{
    const struct header header = {.magic = MAGIC,
                                  .type = COLOR,
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
    wire->comm = hash(parent->comm, names, sizeof names);
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
        flushed &= !wire->world->links[r].first;
    pthread_mutex_unlock(&io);
    return flushed;
}

void hd_wire_send(const struct hd_wire_place *place, const void *buf, size_t bytes)
{
    const struct header header = {.magic = MAGIC,
                                  .type = DATA,
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

        if (arrival->comm != place->wire->comm || m->peer != place->peer ||
            m->number != place->number || m->kind != place->kind || m->bytes != bytes)
            continue;
        *at = arrival->next;
        free(arrival);
        return m;
    }
    return NULL;
}

/* Messages that nothing will take. */
static void clear_inbox(uint64_t comm)
{
    hd_sim_streams_lock();
    for (struct arrival **at = &inbox; *at;) {
        struct arrival *arrival = *at;

        if (arrival->comm != comm) {
            at = &arrival->next;
            continue;
        }
        *at = arrival->next;
        free(arrival->message);
        free(arrival);
    }
    hd_sim_streams_unlock();
}

void hd_wire_close(struct hd_wire *wire, bool clean)
{
    struct world *world = wire->world;
    bool flushed = !clean;

    pthread_mutex_lock(&io);
    if (--world->communicators == 0) {
        const struct header bye = {.magic = MAGIC, .type = BYE, .from = wire->rank};

        for (int r = 0; r < world->size && clean; r++)
            if (world->links[r].fd >= 0)
                queue(&world->links[r], &bye, NULL);
        for (int looks = 0; looks < FLUSH_LOOKS && !flushed; looks++) {
            flushed = true;
            for (int r = 0; r < world->size; r++) {
                flush(world, &world->links[r]);
                flushed &= !world->links[r].first;
            }
            pthread_mutex_unlock(&io);
            if (!flushed)
                (void)usleep(1000);
            pthread_mutex_lock(&io);
        }
        if (clean && world->size > 2)
            fprintf(stderr, "emulated NCCL: rank %d sent %llu bytes in its node, %llu by TCP\n",
                    world->rank, (unsigned long long)world->local_bytes,
                    (unsigned long long)world->tcp_bytes);
        world->closed = true;
    }
    pthread_mutex_unlock(&io);
    wake();
    clear_inbox(wire->comm);
    free(wire);
}
