/* The engine gloo: ranks on several nodes, connected by TCP. gloo's thread moves bytes between
 * sockets and memory. The thread that owns the endpoint does the rest when it launches, polls or
 * waits; only the abort messages of peers may be read by any thread (has_failed). */
#include "comm/gloo.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/gloo_internal.h"

enum { FILES_BESIDE = 256 }; /* files that a rank opens in addition to its connections */

/* ---- headers ---- */

static void await_header(struct gloo_peer *peer, int rank, uint64_t place)
{
    (void)hd_gloo_recv(peer->in_ticket[place], rank, GLOO_SLOT_HEADER, place * peer->in.each_bytes,
                       peer->in.each_bytes);
}

/* Moves the headers of a peer that have arrived to the peer's inbox. Returns false if the peer sent
 * more than the inbox holds. */
static bool take_headers(struct gloo_peer *peer, int rank)
{
    for (;;) {
        const uint64_t place = peer->in_next % GLOO_HEADERS_IN;

        if (hd_gloo_received(peer->in_ticket[place]) != HD_GLOO_DONE)
            return true;
        if (!gloo_header_keep(peer, gloo_header_of(&peer->in, place)))
            return false;
        peer->latest = *gloo_header_of(&peer->in, place);
        if (!hd_comm_is_of_a_pair(peer->latest.signature.kind))
            hd_comm_note_entered(&peer->entered, peer->latest.group, peer->latest.seq);
        peer->in_next++;
        await_header(peer, rank, place);
    }
}

/* ---- failures ---- */

static void send_abort_message(struct gloo_state *gloo, int rank, int world)
{
    const size_t bytes = offsetof(struct gloo_abort_message, text) +
                         strnlen(gloo->abort_message.text, HD_COMM_REASON_MAX - 1) + 1;

    gloo->abort_message_sent = true;
    for (int r = 0; r < world; r++) {
        if (r != rank)
            (void)hd_gloo_send(gloo->peers[r].abort_message_out_ticket, r, GLOO_SLOT_ABORT_MESSAGE,
                               0, bytes);
    }
}

/* Writes this rank's only abort message, and sends it if `send`. Returns false if one was already
 * written. */
static bool make_abort_message(const struct hd_comm *comm, enum gloo_abort_message_kind kind,
                               enum hd_status st, int rank, const char *text, bool send)
{
    struct gloo_state *gloo = gloo_of(comm);
    int none = 0;

    if (!atomic_compare_exchange_strong(&gloo->abort_message_state, &none, 1))
        return false;
    gloo->abort_message.kind = (uint32_t)kind;
    gloo->abort_message.status = (uint32_t)st;
    gloo->abort_message.rank = rank;
    (void)snprintf(gloo->abort_message.text, sizeof gloo->abort_message.text, "%s", text);
    if (send)
        send_abort_message(gloo, comm->rank, comm->world);
    atomic_store(&gloo->abort_message_state, 2);
    hd_comm_doorbell_wake(&gloo->doorbell);
    return true;
}

static void engine_abort(struct hd_comm *comm, enum hd_status st, const char *reason)
{
    (void)make_abort_message(comm, GLOO_FAILED, st, comm->rank, reason, true);
}

/* Reads the peer's abort message, or detects the end of its connection. Any thread may call this,
 * because the owner of the endpoint may be blocked in a call of the device when a peer fails
 * (nccl). */
static void read_abort_message(const struct hd_comm *comm, int rank)
{
    struct gloo_state *gloo = gloo_of(comm);
    struct gloo_peer *peer = &gloo->peers[rank];
    /* read before the message: a peer's abort message arrives before its connection ends */
    const bool lost = hd_gloo_link_lost(gloo->link, rank);
    char text[HD_COMM_REASON_MAX];

    (void)pthread_mutex_lock(&gloo->abort_message_lock);
    if (!peer->abort_message_done && hd_gloo_received(peer->abort_message_ticket) == HD_GLOO_DONE) {
        peer->abort_message.text[HD_COMM_REASON_MAX - 1] = '\0';
        if (peer->abort_message.kind !=
            GLOO_LEFT) /* a failed peer sends its message to all ranks, so this rank does not
                          forward it */
            (void)make_abort_message(comm, (enum gloo_abort_message_kind)peer->abort_message.kind,
                                     (enum hd_status)peer->abort_message.status,
                                     peer->abort_message.rank, peer->abort_message.text, false);
        peer->abort_message_done = true;
    }
    if (lost && !peer->abort_message_done) {
        peer->abort_message.kind = GLOO_DIED;
        peer->abort_message_done = true;
        (void)snprintf(text, sizeof text,
                       "its connection closed without an abort message (node %s); it was killed or "
                       "crashed, or the network failed",
                       gloo->addresses[rank].node);
        (void)make_abort_message(comm, GLOO_DIED, HD_ABORTED, rank, text, true);
    }
    (void)pthread_mutex_unlock(&gloo->abort_message_lock);
}

/* Reads the abort message and the headers of a peer that have arrived. The thread that owns the
 * endpoint calls this after a change of `events`. */
static void look_at(struct hd_comm *comm, int rank)
{
    struct gloo_peer *peer = gloo_peer_of(comm, rank);

    read_abort_message(comm, rank);
    if (peer->abort_message_done && peer->abort_message.kind == GLOO_LEFT)
        peer->left = true;
    /* A peer sends its abort message last, so all its headers have arrived. */
    if (!take_headers(peer, rank))
        engine_abort(comm, HD_CORRUPT, "a peer announced more operations than it can have");
}

/* Returns HD_OK, or the first failure of the job that this rank has heard of, and makes that
 * failure sticky. */
static enum hd_status check_failure(struct hd_comm *comm)
{
    struct gloo_state *gloo = gloo_of(comm);
    const uint64_t events = atomic_load(&gloo->events);
    enum hd_status st;

    if (comm->failure.status)
        return hd_err_restore(&comm->failure);
    if (events != gloo->events_seen) {
        gloo->events_seen = events;
        for (int r = 0; r < comm->world; r++) {
            if (r != comm->rank)
                look_at(comm, r);
        }
    }
    if (atomic_load(&gloo->abort_message_state) != 2)
        return HD_OK;
    st = (enum hd_status)gloo->abort_message.status;
    st =
        hd_err(st ? st : HD_ABORTED, "rank %d %s first: %s", (int)gloo->abort_message.rank,
               gloo->abort_message.kind == GLOO_DIED ? "died" : "failed", gloo->abort_message.text);
    return hd_comm_keep_failure(comm, st);
}

static bool has_failed(const struct hd_comm *comm)
{
    struct gloo_state *gloo = gloo_of(comm);
    const uint64_t events = atomic_load(&gloo->events);

    if (atomic_load(&gloo->abort_message_state) != 2 &&
        atomic_exchange(&gloo->events_checked, events) != events) {
        for (int r = 0; r < comm->world; r++) {
            if (r != comm->rank)
                read_abort_message(comm, r);
        }
    }
    return atomic_load(&gloo->abort_message_state) == 2;
}

static bool has_left(const struct hd_comm *comm, int rank)
{
    return gloo_peer_of(comm, rank)->left;
}

static void describe_latest(struct hd_comm *comm, int rank, char *ret_text, size_t size_bytes)
{
    const struct gloo_header *latest = &gloo_peer_of(comm, rank)->latest;
    char bytes[32];

    if (latest->signature.kind == HD_COMM_KIND_COUNT) {
        (void)snprintf(ret_text, size_bytes, "nothing was received from rank %d yet", rank);
        return;
    }
    hd_text_format_bytes(latest->signature.count *
                             (int64_t)hd_dtype_size((enum hd_dtype)latest->signature.dtype),
                         bytes);
    (void)snprintf(ret_text, size_bytes, "the latest of rank %d is %s #%llu of group %.15s (%s)",
                   rank, hd_comm_kind_name((enum hd_comm_kind)latest->signature.kind),
                   (unsigned long long)latest->seq, latest->group, bytes);
}

static uint64_t entered(struct hd_comm_group *group, int member)
{
    return member == group->index
               ? hd_comm_flight_entered(group->comm->flight, group->name)
               : hd_comm_find_entered(&gloo_peer_of(group->comm, group->members[member])->entered,
                                      group->name);
}

/* ---- operations ---- */

static enum hd_status group_open(struct hd_comm_group *group)
{
    (void)group; /* no preparation needed: headers contain the group's id */
    return HD_OK;
}

/* ---- memory ---- */

/* Returns the bytes of one stream's staging buffer, sized for a group of all ranks, at most
 * GLOO_STAGE_MAX. */
static size_t stage_bytes(int world)
{
    const size_t all = (size_t)(world - 1) * GLOO_STAGES * GLOO_CHUNK_MAX;

    return all < GLOO_STAGE_MAX ? all : GLOO_STAGE_MAX;
}

/* Lays out one array in an allocation: advances the offset *at by `bytes`, aligned, and returns the
 * address of the old offset; NULL if `base` is NULL (the caller only counts bytes). */
static void *take_piece(char *base, size_t *at, size_t bytes)
{
    const size_t begin = *at;

    *at += (bytes + 15) / 16 * 16;
    return base ? base + begin : NULL;
}

static struct gloo_headers take_some(char *base, size_t *at, int count, int world)
{
    const size_t each = gloo_header_bytes(world);

    return (struct gloo_headers){take_piece(base, at, (size_t)count * each), each};
}

/* Sets the array pointers of a zeroed state, whose arrays follow it in one allocation. With `gloo`
 * NULL only counts. Returns the bytes of the allocation. */
static size_t lay_out(struct gloo_state *gloo, int world)
{
    const size_t ranks = (size_t)world;
    char *base = (char *)gloo;
    struct gloo_address *addresses;
    size_t at = 0;

    (void)take_piece(base, &at, sizeof *gloo + ranks * sizeof gloo->peers[0]);
    addresses = take_piece(base, &at, ranks * sizeof *addresses);
    if (gloo)
        gloo->addresses = addresses;
    for (int s = 0; s < HD_COMM_COLLECTIVE_STREAMS; s++) {
        struct gloo_run run = {.headers = take_some(base, &at, world, world)};

        run.out = take_piece(base, &at, ranks * sizeof *run.out);
        run.in = take_piece(base, &at, ranks * sizeof *run.in);
        run.result_out = take_piece(base, &at, ranks * sizeof *run.result_out);
        run.result_in = take_piece(base, &at, ranks * sizeof *run.result_in);
        run.slots = take_piece(base, &at, ranks * sizeof *run.slots);
        if (gloo)
            gloo->runs[s] = run;
    }
    for (int r = 0; r < world; r++) {
        const struct gloo_headers in = take_some(base, &at, GLOO_HEADERS_IN, world);
        const struct gloo_headers out = take_some(base, &at, GLOO_HEADERS_OUT, world);
        const struct gloo_headers inbox = take_some(base, &at, GLOO_INBOX, world);

        if (gloo) {
            gloo->peers[r].in = in;
            gloo->peers[r].out = out;
            gloo->peers[r].inbox = inbox;
        }
    }
    return at;
}

uint64_t hd_gloo_memory_bytes(int world)
{
    return hd_comm_whole_pages(lay_out(NULL, world)) +
           hd_comm_whole_pages(HD_COMM_COLLECTIVE_STREAMS * stage_bytes(world));
}

static enum hd_status registered(struct hd_comm *comm, size_t size_bytes, void **ret_base)
{
    struct gloo_state *gloo = gloo_of(comm);
    const size_t stage_at = hd_comm_whole_pages(size_bytes);
    const size_t bytes = stage_at + HD_COMM_COLLECTIVE_STREAMS * stage_bytes(comm->world);
    void *base;
    const enum hd_status st = hd_comm_map_region(bytes, -1, &base);

    if (st)
        return st;
    gloo->data = base;
    gloo->data_bytes = bytes;
    gloo->stage_at = stage_at;
    gloo->stage_bytes = stage_bytes(comm->world);
    *ret_base = base;
    return HD_OK;
}

/* ---- closing ---- */

/* Waits, up to GLOO_LINGER_MS, until all peers have closed their connections, so that no sent data
 * is lost. */
static void linger(struct hd_comm *comm)
{
    struct gloo_state *gloo = gloo_of(comm);
    const int64_t until_ms = hd_clock_now_ms() + GLOO_LINGER_MS;
    bool open = true;

    while (open && hd_clock_now_ms() < until_ms) {
        const uint32_t rings = atomic_load(&gloo->doorbell.rings);

        atomic_store(&gloo->doorbell.asleep, 1);
        open = false;
        for (int r = 0; r < comm->world; r++) {
            if (r == comm->rank || hd_gloo_link_lost(gloo->link, r))
                continue;
            open = true;
            if (!gloo->peers[r].ended &&
                hd_gloo_sent(gloo->peers[r].abort_message_out_ticket) == HD_GLOO_DONE)
                gloo->peers[r].ended = hd_gloo_link_end(gloo->link, r);
        }
        if (open)
            hd_comm_doorbell_sleep(&gloo->doorbell, rings, 10);
        atomic_store(&gloo->doorbell.asleep, 0);
    }
}

static void gloo_free(struct hd_comm *comm)
{
    struct gloo_state *gloo = gloo_of(comm);

    gloo_data_free(gloo);
    for (int r = 0; r < comm->world; r++) {
        struct gloo_peer *peer = &gloo->peers[r];

        for (int i = 0; i < GLOO_HEADERS_IN; i++)
            hd_gloo_ticket_free(peer->in_ticket[i]);
        for (int i = 0; i < GLOO_HEADERS_OUT; i++)
            hd_gloo_ticket_free(peer->out_ticket[i]);
        hd_gloo_ticket_free(peer->abort_message_ticket);
        hd_gloo_ticket_free(peer->abort_message_out_ticket);
    }
    hd_gloo_link_close(gloo->link);
    (void)pthread_mutex_destroy(&gloo->abort_message_lock);
    if (gloo->data)
        (void)munmap(gloo->data, hd_comm_whole_pages(gloo->data_bytes));
    free(gloo);
    comm->engine_state = NULL;
}

static void engine_close(struct hd_comm *comm, bool clean)
{
    struct gloo_state *gloo = gloo_of(comm);

    if (!clean)
        engine_abort(comm, HD_ABORTED, "it closed its endpoint with operations in flight");
    if (!make_abort_message(comm, GLOO_LEFT, HD_OK, comm->rank, "", true) &&
        !gloo->abort_message_sent)
        send_abort_message(gloo, comm->rank, comm->world);
    linger(comm);
    gloo_free(comm);
}

/* ---- opening ---- */

static const struct hd_comm_engine gloo_engine = {
    .kind = HD_COMM_BY_GLOO,
    .registered = registered,
    .group_open = group_open,
    .collective_step = gloo_collective_step,
    .send_step = gloo_send_step,
    .recv_step = gloo_recv_step,
    .collective_missing = gloo_collective_missing,
    .pair_missing = gloo_pair_missing,
    .signature = gloo_signature,
    .send_counts = gloo_send_counts,
    .has_left = has_left,
    .latest = describe_latest,
    .entered = entered,
    .failure = check_failure,
    .has_failed = has_failed,
    .abort = engine_abort,
    .close = engine_close,
};

/* Counts an event and rings the doorbell: a message is complete or a connection has ended. Runs on
 * gloo's thread, or on a thread in hd_gloo_send whose write completes at once. */
static void something_moved(void *arg)
{
    struct gloo_state *gloo = arg;

    atomic_fetch_add(&gloo->events, 1);
    hd_comm_doorbell_ring(&gloo->doorbell);
}

static enum hd_status open_peer(struct gloo_state *gloo, int rank)
{
    struct gloo_peer *peer = &gloo->peers[rank];
    enum hd_status st = HD_OK;

    for (int i = 0; i < GLOO_HEADERS_IN && !st; i++)
        st = hd_gloo_ticket_new(gloo->link, peer->in.at, GLOO_HEADERS_IN * peer->in.each_bytes,
                                &peer->in_ticket[i]);
    for (int i = 0; i < GLOO_HEADERS_OUT && !st; i++)
        st = hd_gloo_ticket_new(gloo->link, peer->out.at, GLOO_HEADERS_OUT * peer->out.each_bytes,
                                &peer->out_ticket[i]);
    if (!st)
        st = hd_gloo_ticket_new(gloo->link, &peer->abort_message, sizeof peer->abort_message,
                                &peer->abort_message_ticket);
    if (!st)
        st = hd_gloo_ticket_new(gloo->link, &gloo->abort_message, sizeof gloo->abort_message,
                                &peer->abort_message_out_ticket);
    if (st)
        return st;
    (void)hd_gloo_recv(peer->abort_message_ticket, rank, GLOO_SLOT_ABORT_MESSAGE, 0,
                       sizeof peer->abort_message);
    for (uint64_t i = 0; i < GLOO_HEADERS_IN; i++)
        await_header(peer, rank, i);
    return HD_OK;
}

/* Opens the endpoint on connected sockets and takes ownership of them, also on failure. */
static enum hd_status open_endpoint(const int *fds, const struct gloo_address *addresses, int rank,
                                    int world, int64_t deadline_ms, struct hd_comm **ret_comm)
{
    struct gloo_state *gloo = calloc(1, lay_out(NULL, world));
    struct hd_comm *comm = NULL;
    int ranks_here = 0;
    enum hd_status st = gloo ? HD_OK : hd_err(HD_NO_MEMORY, "gloo: no memory for an endpoint");

    if (!st)
        st = hd_comm_new(&gloo_engine, rank, world, deadline_ms, &comm);
    if (st) {
        free(gloo);
        for (int r = 0; r < world; r++) {
            if (fds[r] >= 0)
                (void)close(fds[r]);
        }
        return st;
    }
    (void)pthread_mutex_init(&gloo->abort_message_lock, NULL);
    comm->engine_state = gloo;
    comm->doorbell = &gloo->doorbell;
    comm->flight = &gloo->flight;
    (void)lay_out(gloo, world);
    memcpy(gloo->addresses, addresses, (size_t)world * sizeof *addresses);
    for (int r = 0; r < world; r++) {
        gloo->peers[r].latest.signature.kind = HD_COMM_KIND_COUNT;
        gloo->peers[r].slot_next = GLOO_SLOT_FIRST;
        ranks_here += strcmp(addresses[r].node, addresses[rank].node) == 0;
    }
    hd_comm_set_spin(comm, 2 * ranks_here); /* each rank on this node spins in its owner and in
                                               gloo's thread */
    st = hd_gloo_link_open(fds, rank, world, something_moved, gloo, &gloo->link);
    for (int r = 0; r < world && !st; r++) {
        if (r != rank)
            st = open_peer(gloo, r);
    }
    if (st) {
        gloo_free(comm);
        hd_comm_delete(comm);
        return st;
    }
    *ret_comm = comm;
    return HD_OK;
}

/* Raises the soft limit of open files of this process to one socket per rank of the world plus
 * FILES_BESIDE. Returns HD_LIMIT if the hard limit is lower. */
static enum hd_status allow_files(int world)
{
    const rlim_t needed = (rlim_t)world + FILES_BESIDE;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return hd_err(HD_IO, "gloo: cannot read the limit of open files: %s", strerror(errno));
    if (limit.rlim_cur >= needed)
        return HD_OK;
    limit.rlim_cur = limit.rlim_max < needed ? limit.rlim_max : needed;
    if (limit.rlim_cur < needed || setrlimit(RLIMIT_NOFILE, &limit) < 0)
        return hd_err(HD_LIMIT,
                      "gloo: a rank of %d needs %llu open files, and the limit is %llu; raise it "
                      "for heddled (LimitNOFILE=, ulimit -n)",
                      world, (unsigned long long)needed, (unsigned long long)limit.rlim_max);
    return HD_OK;
}

enum hd_status hd_comm_open_gloo(struct hd_gloo_listener *listener,
                                 const struct hd_gloo_endpoint *endpoints, int rank, int world,
                                 int64_t deadline_ms, struct hd_comm **ret_comm)
{
    struct gloo_address *addresses;
    int *fds;
    enum hd_status st = hd_comm_check_world(HD_COMM_BY_GLOO, rank, world);

    if (st)
        return st;
    if (deadline_ms <= 0)
        return hd_err(HD_INVALID, "gloo: the deadline is %lld ms; use 1 or more",
                      (long long)deadline_ms);
    st = allow_files(world);
    addresses = calloc((size_t)world, sizeof *addresses);
    fds = calloc((size_t)world, sizeof *fds);
    if (!addresses || !fds)
        st = hd_err(HD_NO_MEMORY, "gloo: no memory to connect the ranks");
    if (!st)
        st = gloo_rendezvous(listener, endpoints, rank, world, deadline_ms, addresses, fds);
    if (!st)
        st = open_endpoint(fds, addresses, rank, world, deadline_ms, ret_comm);
    free(addresses);
    free(fds);
    return st;
}
