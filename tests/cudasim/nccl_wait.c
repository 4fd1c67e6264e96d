#include "nccl_wait.h"
#include "nccl_state.h"

#include <stdlib.h>
#include <string.h>

#include "tests/cudasim/internal.h"

/* All members are protected by the lock of the streams. */
struct hd_sim_part {
    int references;
    bool sends;
    char *buf;
    size_t bytes;
    struct hd_sim_part *peer; /* NULL: not matched yet, or finished with it */
    struct hd_sim_record *gate;
    bool arrived, ended, left;
    struct kernel *kernel; /* has a reference; NULL: it needs no multiprocessors */
    /* if the peer is another process */
    struct hd_wire_place place; /* wire NULL: it is not */
    struct hd_wire_message *message;
    struct hd_sim_part *next; /* in `expected`, which has a reference */
};

static struct hd_sim_part *expected; /* receives from other processes */

/* A kernel that holds multiprocessors. */
struct kernel {
    int references, rank, blocks, running; /* running: parts that have not ended */
    bool waits, holds;
    struct hd_sim_record *gate; /* opens when it holds them */
    struct kernel *next;        /* in `waiting`, which has a reference */
};

static int held[RANKS_MAX];    /* multiprocessors, by rank */
static struct kernel *waiting; /* oldest first */

int hd_nccl_stand_in_held(int rank)
{
    int count;

    hd_sim_streams_lock();
    count = held[rank];
    hd_sim_streams_unlock();
    return count;
}

static void release_kernel(struct kernel *kernel)
{
    if (--kernel->references)
        return;
    hd_sim_gate_release(kernel->gate);
    free(kernel);
}

/* Starts the waiting kernels of a rank, in order, as far as multiprocessors are free. */
static void start_kernels(int rank)
{
    struct kernel **at = &waiting;

    while (*at) {
        struct kernel *kernel = *at;

        if (kernel->rank != rank) {
            at = &kernel->next;
            continue;
        }
        if (held[rank] && held[rank] + kernel->blocks > hd_nccl.multiprocessors)
            return;
        held[rank] += kernel->blocks;
        kernel->waits = false;
        kernel->holds = true;
        hd_sim_gate_set(kernel->gate, true);
        *at = kernel->next;
        release_kernel(kernel);
    }
}

/* The stream has reached the kernel. */
static void ask_for_blocks(void *context)
{
    struct kernel *kernel = context, **tail = &waiting;

    if (!kernel->running) /* abandoned */
        return;
    while (*tail)
        tail = &(*tail)->next;
    kernel->waits = true;
    kernel->references++;
    *tail = kernel;
    start_kernels(kernel->rank);
}

static void end_ask(void *context)
{
    release_kernel(context);
}

/* A part of the kernel has ended, or is abandoned. */
static void end_block(struct hd_sim_part *part)
{
    struct kernel *kernel = part->kernel;

    if (!kernel)
        return;
    part->kernel = NULL;
    if (--kernel->running == 0) {
        if (kernel->holds)
            held[kernel->rank] -= kernel->blocks;
        for (struct kernel **at = &waiting; *at; at = &(*at)->next)
            if (*at == kernel) {
                *at = kernel->next;
                release_kernel(kernel);
                break;
            }
        hd_sim_gate_set(kernel->gate, true);
        start_kernels(kernel->rank);
    }
    release_kernel(kernel);
}

/* The operation that marks parts as reached by their stream. */
struct arrival {
    int count;
    struct hd_sim_part *parts[];
};

static void release(struct hd_sim_part *part)
{
    if (--part->references)
        return;
    free(part->message);
    hd_sim_gate_release(part->gate);
    free(part);
}

static void part_ways(struct hd_sim_part *part)
{
    struct hd_sim_part *peer = part->peer;

    if (!peer)
        return;
    part->peer = peer->peer = NULL;
    release(peer); /* this part's reference */
    release(part);
}

struct hd_sim_part *hd_sim_part_new(bool sends, char *buf, size_t bytes)
{
    struct hd_sim_part *part = calloc(1, sizeof *part);

    if (!part)
        abort();
    *part = (struct hd_sim_part){
        .references = 1, .sends = sends, .buf = buf, .bytes = bytes, .gate = hd_sim_gate_new()};
    if (!part->gate)
        abort();
    return part;
}

struct hd_sim_part *hd_sim_part_share(struct hd_sim_part *part)
{
    hd_sim_streams_lock();
    part->references++;
    hd_sim_streams_unlock();
    return part;
}

void hd_sim_part_release(struct hd_sim_part *part)
{
    hd_sim_streams_lock();
    release(part);
    hd_sim_streams_unlock();
}

/* ---- peers in other processes ---- */

void hd_sim_part_place(struct hd_sim_part *part, const struct hd_wire_place *place)
{
    hd_sim_streams_lock();
    part->place = *place;
    if (!part->sends) {
        part->references++;
        part->next = expected;
        expected = part;
        hd_sim_parts_look();
    }
    hd_sim_streams_unlock();
}

static void expect_no_more(struct hd_sim_part *part)
{
    struct hd_sim_part **at = &expected;

    while (*at && *at != part)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = part->next;
    release(part);
}

void hd_sim_parts_look(void)
{
    struct hd_sim_part *next;

    for (struct hd_sim_part *part = expected; part; part = next) {
        next = part->next;
        part->message = hd_wire_take(&part->place, part->bytes);
        if (!part->message)
            continue;
        hd_sim_gate_set(part->gate, true);
        expect_no_more(part);
    }
}

/* ---- what runs on a stream ---- */

/* Lets the receive copy if the sender's stream has reached the send, or sends to another process.
 */
static void look_at_pair(struct hd_sim_part *send)
{
    struct hd_sim_part *recv = send->peer;

    if (send->arrived && send->place.wire && !send->left) {
        hd_wire_send(&send->place, send->buf, send->bytes);
        hd_sim_gate_set(send->gate, true);
    }
    if (send->arrived && recv)
        hd_sim_gate_set(recv->gate, true);
}

static void arrive(void *context)
{
    const struct arrival *arrival = context;

    for (int i = 0; i < arrival->count; i++) {
        struct hd_sim_part *part = arrival->parts[i];

        part->arrived = true;
        if (part->sends)
            look_at_pair(part);
        else if (!part->left)
            memset(part->buf, HD_SIM_GARBAGE, part->bytes);
    }
}

static void end_arrival(void *context)
{
    struct arrival *arrival = context;

    for (int i = 0; i < arrival->count; i++)
        release(arrival->parts[i]);
    free(arrival);
}

static void run_part(void *context)
{
    struct hd_sim_part *part = context;

    part->ended = true;
    end_block(part);
    if (part->sends || part->left)
        return;
    if (part->message) {
        memcpy(part->buf, part->message->data, part->bytes);
        return;
    }
    memmove(part->buf, part->peer->buf, part->bytes);
    hd_sim_gate_set(part->peer->gate, true);
    part_ways(part);
}

static void end_part(void *context)
{
    release(context);
}

static void enqueue_part(cudaStream_t stream, struct hd_sim_part *part)
{
    part->references++;
    if (hd_sim_enqueue_behind(stream, part->gate, run_part, end_part, part))
        abort();
}

/* Enqueues the request for multiprocessors; returns the kernel, whose gate opens when it has them. */
static struct kernel *enqueue_ask(cudaStream_t stream, struct hd_sim_part *const *parts, int count,
                                  int rank, int blocks)
{
    struct kernel *kernel = malloc(sizeof *kernel);

    if (!kernel)
        abort();
    *kernel = (struct kernel){.references = 1 + count,
                              .rank = rank,
                              .blocks = blocks,
                              .running = count,
                              .gate = hd_sim_gate_new()};
    for (int i = 0; i < count; i++)
        parts[i]->kernel = kernel;
    if (!kernel->gate || hd_sim_enqueue_behind(stream, NULL, ask_for_blocks, end_ask, kernel))
        abort();
    return kernel;
}

void hd_sim_parts_enqueue(cudaStream_t stream, struct hd_sim_part *const *parts, int count,
                          int rank, int blocks)
{
    struct arrival *arrival = malloc(sizeof *arrival + (size_t)count * sizeof(void *));
    struct hd_sim_record *gate = NULL;

    if (!arrival)
        abort();
    arrival->count = count;
    hd_sim_streams_lock();
    for (int i = 0; i < count; i++) {
        arrival->parts[i] = parts[i];
        parts[i]->references++;
    }
    if (blocks)
        gate = enqueue_ask(stream, parts, count, rank, blocks)->gate;
    if (hd_sim_enqueue_behind(stream, gate, arrive, end_arrival, arrival))
        abort();
    for (int i = 0; i < count; i++) /* receives first: they wait only for the sender's arrival */
        if (!parts[i]->sends)
            enqueue_part(stream, parts[i]);
    for (int i = 0; i < count; i++)
        if (parts[i]->sends)
            enqueue_part(stream, parts[i]);
    hd_sim_streams_unlock();
}

/* ---- what the host does ---- */

void hd_sim_parts_meet(struct hd_sim_part *send, struct hd_sim_part *recv)
{
    hd_sim_streams_lock();
    send->peer = recv;
    recv->peer = send;
    send->references++;
    recv->references++;
    look_at_pair(send);
    hd_sim_streams_unlock();
}

bool hd_sim_part_has_ended(struct hd_sim_part *part)
{
    bool ended;

    hd_sim_streams_lock();
    ended = part->ended;
    hd_sim_streams_unlock();
    return ended;
}

void hd_sim_part_leave(struct hd_sim_part *part)
{
    hd_sim_streams_lock();
    part->left = true;
    end_block(part);
    expect_no_more(part);
    hd_sim_gate_set(part->gate, true);
    if (part->sends && part->peer)
        hd_sim_gate_set(part->peer->gate, false); /* the send buffer may be freed now */
    part_ways(part);
    hd_sim_streams_unlock();
}
