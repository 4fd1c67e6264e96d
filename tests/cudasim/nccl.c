/* nccl: an emulation of NCCL, to test the host code that uses NCCL. Every operation consists of
 * sends and receives, and waits for the peers in one of two ways (nccl_stand_in.h):
 *
 *   on the host     a call is in progress until its sends and receives are matched. A matched pair
 *                   is enqueued on both streams: the receiver's stream copies after the sender's
 *                   event, the sender's stream continues after the receiver's event.
 *   on the stream   a call finishes at once, and each stream waits (nccl_wait.h). Sends and
 *                   receives of different calls, or of different sizes, are never matched.
 *
 * So operations have the same order on the device as with NCCL.
 *
 * A call on a blocking communicator returns when nothing of it is in progress, or with an error
 * when another thread aborts it. Groups of calls on a non-blocking one are counted: NCCL starts a
 * thread for each.
 *
 * Ranks are threads of one process, or processes (hd_nccl_stand_in_between_processes), whose bytes
 * nccl_wire.c moves; then streams become lazy, and always wait. */

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/nccl_api.h"
#include "nccl_buffers.h"
#include "nccl_stand_in.h"
#include "nccl_wait.h"
#include "nccl_wire.h"
#include "tests/cudasim/internal.h"

enum { RANKS_MAX = 128, LOOKS_IN_PROGRESS = 3, SPLITS_MAX = 64, BLOCKED_LOOK_US = 500 };

enum kind { PAIR, GATHER, BROADCAST, REDUCE, SCATTER };

/* One call of NCCL: `left` of its sends and receives are not yet matched; then it may combine. */
struct call {
    enum kind kind;
    int left;
    bool combines;
    void *room; /* buffer of a sum that waits on its stream */
    void *partial;
    struct hd_combine_args combine;
    cudaStream_t stream;
};

struct post {
    bool sends;
    int peer;
    char *buf;
    size_t bytes;
    cudaStream_t stream;
    cudaEvent_t came;
    struct call *call;
    struct hd_sim_part *part;   /* if it waits on its stream; else NULL */
    struct hd_wire_place place; /* if its peer is a process */
    struct post *next;
};

struct part_kept { /* kept until the part has ended or is abandoned */
    struct hd_sim_part *part;
    struct part_kept *next;
};

struct kept { /* freed with the communicator */
    cudaEvent_t event;
    void *memory;
    struct call *call;
    struct kept *next;
};

struct split {
    int arrived, color[RANKS_MAX], key[RANKS_MAX];
    bool blocking[RANKS_MAX];
    ncclComm_t *place[RANKS_MAX];
};

struct joined {
    ncclUniqueId id;
    int size, arrived, gone;
    int world_rank[RANKS_MAX];
    ncclComm_t ranks[RANKS_MAX];
    struct split splits[SPLITS_MAX];
    struct joined *next;
};

struct ncclComm {
    struct joined *joined;
    struct hd_wire *wire;      /* NULL: the ranks are threads */
    uint64_t *sent, *received; /* with a wire: messages per peer */
    ncclComm_t *place;         /* of the child, while a split over wires is in progress */
    int color;
    bool blocking, child_blocking; /* child_blocking: of the split over wires */
    int rank, looks, splits;
    int splitting; /* splits in progress */
    struct post *posts;
    struct kept *kept;
    struct part_kept *parts;
    bool finalizing;
    cudaStream_t last_stream; /* of its last group of calls; NULL: none yet */
    ncclResult_t error;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct joined *all;
static int ids, splits_done, aborts, open_comms, sums, groups, turns, threads;
static enum hd_nccl_defect defects[RANKS_MAX];
static int aborts_of[RANKS_MAX]; /* by rank of the world */
static bool waits_on_host, between_processes, had_defects;

/* Calls between ncclGroupStart and ncclGroupEnd, of this thread. */
static _Thread_local int depth;
static _Thread_local struct grouped {
    ncclComm_t comm;
    struct post *post;
    struct grouped *next;
} * grouped;

/* ---- communicators ---- */

static int world_rank_of(const struct ncclComm *comm)
{
    return comm->joined->world_rank[comm->wire ? 0 : comm->rank] % RANKS_MAX;
}

static enum hd_nccl_defect defect_of(const struct ncclComm *comm)
{
    return defects[world_rank_of(comm)];
}

static ncclComm_t add_rank(struct joined *joined, int rank, int world_rank)
{
    ncclComm_t comm = calloc(1, sizeof *comm);

    if (!comm)
        abort();
    comm->joined = joined;
    comm->rank = rank;
    joined->ranks[rank] = comm;
    joined->world_rank[rank] = world_rank;
    joined->arrived++;
    open_comms++;
    return comm;
}

static struct joined *add_joined(int size)
{
    struct joined *joined = calloc(1, sizeof *joined);

    if (!joined)
        abort();
    joined->size = size;
    joined->next = all;
    all = joined;
    return joined;
}

ncclResult_t ncclGetVersion(int *version)
{
    const char *wish = getenv("HD_CUDASIM_NCCL_VERSION");

    *version = wish ? atoi(wish) : 22809;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    if (between_processes)
        return hd_wire_make_id(id);
    pthread_mutex_lock(&lock);
    memset(id, 0, sizeof *id);
    (void)snprintf(id->internal, sizeof id->internal, "stand-in %d", ++ids);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

/* The communicator of this process over `wire`. Call it under the lock. */
static ncclComm_t add_wired(struct hd_wire *wire, int world_rank)
{
    const int size = hd_wire_size(wire);
    ncclComm_t comm = add_rank(add_joined(1), 0, world_rank);

    comm->wire = wire;
    comm->joined->size = size;
    comm->joined->arrived = size;
    comm->joined->gone = size - 1;
    comm->rank = hd_wire_rank(wire);
    comm->sent = calloc((size_t)size, sizeof *comm->sent);
    comm->received = calloc((size_t)size, sizeof *comm->received);
    if (!comm->sent || !comm->received)
        abort();
    return comm;
}

static ncclResult_t init_wired(ncclComm_t *comm, int size, const ncclUniqueId *id, int rank)
{
    struct hd_wire *wire = NULL;
    const ncclResult_t result = hd_wire_open(id, size, rank, &wire);

    if (result)
        return result;
    if (!hd_sim_is_lazy()) /* a stream must be able to wait for another process */
        hd_cudasim_lazy(true, (uint64_t)rank + 1);
    pthread_mutex_lock(&lock);
    *comm = add_wired(wire, rank);
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    struct joined *joined;

    if (config->blocking || rank < 0 || rank >= nranks)
        return ncclInvalidArgument;
    if (between_processes)
        return init_wired(comm, nranks, &id, rank);
    if (nranks > RANKS_MAX)
        return ncclInvalidArgument;
    pthread_mutex_lock(&lock);
    for (joined = all; joined && memcmp(&joined->id, &id, sizeof id) != 0; joined = joined->next)
        ;
    if (!joined) {
        joined = add_joined(nranks);
        joined->id = id;
    }
    *comm = add_rank(joined, rank, rank);
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

/* Called when all ranks have called split: makes a communicator per color, ordered by key. */
static void make_children(struct joined *parent, const struct split *split)
{
    for (int r = 0; r < parent->size; r++) {
        struct joined *child;
        int members = 0, first = r;

        for (int o = 0; o < parent->size; o++) {
            members += split->color[o] == split->color[r];
            first = split->color[o] == split->color[r] && o < first ? o : first;
        }
        if (split->color[r] == NCCL_SPLIT_NOCOLOR || first != r)
            continue;
        child = add_joined(members);
        for (int o = 0; o < parent->size; o++) {
            int before = 0;

            if (split->color[o] != split->color[r])
                continue;
            for (int p = 0; p < parent->size; p++)
                before +=
                    split->color[p] == split->color[o] &&
                    (split->key[p] < split->key[o] || (split->key[p] == split->key[o] && p < o));
            *split->place[o] = add_rank(child, before, parent->world_rank[o]);
            (*split->place[o])->blocking = split->blocking[o];
        }
    }
    for (int r = 0; r < parent->size; r++)
        if (parent->ranks[r])
            parent->ranks[r]->splitting--;
    splits_done++;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
                           ncclConfig_t *config)
{
    const bool blocking = config ? config->blocking : comm->blocking;
    struct split *split;

    if (comm->blocking) /* it would have to wait here for all ranks of the parent */
        return ncclInvalidUsage;
    if (comm->wire) {
        pthread_mutex_lock(&lock);
        *newcomm = NULL;
        comm->child_blocking = blocking;
        comm->place = newcomm;
        comm->color = color;
        comm->splitting = 1;
        hd_wire_tell_color(comm->wire, comm->splits++, color, key);
        pthread_mutex_unlock(&lock);
        return ncclInProgress;
    }
    pthread_mutex_lock(&lock);
    split = &comm->joined->splits[comm->splits++ % SPLITS_MAX];
    *newcomm = NULL;
    split->color[comm->rank] = color;
    split->key[comm->rank] = key;
    split->place[comm->rank] = newcomm;
    split->blocking[comm->rank] = blocking;
    comm->splitting++;
    if (++split->arrived == comm->joined->size)
        make_children(comm->joined, split);
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

/* Ends a split whose members have all called it. Call it under the lock. */
static void look_at_split(ncclComm_t comm)
{
    struct hd_wire *child;

    if (!comm->splitting || !hd_wire_has_colors(comm->wire, comm->splits - 1))
        return;
    child = hd_wire_split(comm->wire, comm->splits - 1, comm->color);
    if (child) {
        *comm->place = add_wired(child, comm->joined->world_rank[0]);
        (*comm->place)->blocking = comm->child_blocking;
    }
    comm->splitting = 0;
    splits_done++;
}

static bool is_coming_through(const struct ncclComm *comm)
{
    const struct post *p = comm->posts;

    if (comm->wire && !hd_wire_is_connected(comm->wire))
        return true;
    if (comm->wire && comm->finalizing) {
        for (const struct part_kept *k = comm->parts; k; k = k->next)
            if (!hd_sim_part_has_ended(k->part))
                return true;
        return !hd_wire_is_flushed(comm->wire);
    }
    while (p && p->part && !comm->finalizing)
        p = p->next;
    return p;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    pthread_mutex_lock(&lock);
    if (defect_of(comm) == HD_NCCL_BROKEN || (comm->wire && hd_wire_is_broken(comm->wire)))
        comm->error = ncclRemoteError;
    if (comm->wire)
        look_at_split(comm);
    if (comm->joined->arrived == comm->joined->size && comm->looks < LOOKS_IN_PROGRESS)
        comm->looks++;
    *error = comm->error ? comm->error
             : !comm->blocking &&
                     (comm->looks < LOOKS_IN_PROGRESS || comm->splitting || is_coming_through(comm))
                 ? ncclInProgress
                 : ncclSuccess;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

/* Call it under the lock. */
static void forget(ncclComm_t comm, bool clean)
{
    struct joined *joined = comm->joined, **at = &all;

    hd_sim_nccl_forget(comm, clean);
    while (comm->posts) {
        struct post *post = comm->posts;

        comm->posts = post->next;
        if (post->part)
            hd_sim_part_release(post->part);
        else
            (void)cudaEventDestroy(post->came);
        free(post);
    }
    while (comm->parts) {
        struct part_kept *kept = comm->parts;

        comm->parts = kept->next;
        hd_sim_part_leave(kept->part);
        hd_sim_part_release(kept->part);
        free(kept);
    }
    while (comm->kept) {
        struct kept *kept = comm->kept;

        comm->kept = kept->next;
        if (kept->event)
            (void)cudaEventDestroy(kept->event);
        if (kept->memory)
            (void)cudaFree(kept->memory);
        free(kept->call);
        free(kept);
    }
    joined->ranks[comm->wire ? 0 : comm->rank] = NULL;
    open_comms--;
    if (comm->wire)
        hd_wire_close(comm->wire, clean);
    free(comm->sent);
    free(comm->received);
    free(comm);
    if (++joined->gone < joined->size)
        return;
    while (*at != joined)
        at = &(*at)->next;
    *at = joined->next;
    free(joined);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    aborts++;
    aborts_of[world_rank_of(comm)]++;
    forget(comm, false);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    ncclResult_t result = ncclInProgress;

    for (bool returns = false; !returns;) {
        pthread_mutex_lock(&lock);
        comm->finalizing = true;
        if (!is_coming_through(comm))
            result = ncclSuccess;
        returns = !comm->blocking || result == ncclSuccess;
        pthread_mutex_unlock(&lock);
        if (!returns)
            (void)usleep(BLOCKED_LOOK_US);
    }
    return result;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    forget(comm, true);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclRemoteError ? "remote process exited or there was a network error"
                                     : "an error of the emulated NCCL";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "the emulated NCCL has no details";
}

/* ---- posting; under the lock ---- */

static struct kept *keep(ncclComm_t comm)
{
    struct kept *kept = calloc(1, sizeof *kept);

    if (!kept)
        abort();
    kept->next = comm->kept;
    comm->kept = kept;
    return kept;
}

/* Sums as a ring does: from the last rank to the first, rounded at every step. */
static void combine(const struct call *call)
{
    static struct hd_backend backend = {.traits.multiprocessors = 2};
    struct hd_cuda_stream stream = {.cuda = &backend, .handle = call->stream};
    const struct hd_combine_args *whole = &call->combine;
    struct hd_combine_args hop = *whole;

    hop.ins = 2;
    hop.in[0] = whole->in[whole->ins - 1];
    for (int m = whole->ins - 2; m >= 0; m--) {
        hop.in[1] = whole->in[m];
        hop.out[0] = m == 0 ? whole->out[0] : call->partial;
        (void)hd_cuda_comm_combine(&stream.stream, &hop);
        hop.in[0] = call->partial;
    }
}

static void end_call(struct call *call)
{
    if (--call->left == 0 && call->combines)
        combine(call);
}

static struct post **find(ncclComm_t comm, bool sends, int peer)
{
    struct post **at = &comm->posts;

    while (*at && ((*at)->sends != sends || (*at)->peer != peer))
        at = &(*at)->next;
    return *at ? at : NULL;
}

static void take_away(ncclComm_t comm, struct post **at)
{
    struct post *post = *at;

    *at = post->next;
    if (post->part) {
        hd_sim_part_release(post->part);
    } else {
        keep(comm)->event = post->came;
        end_call(post->call);
    }
    free(post);
}

/* Matches the oldest send from `from` to `to` with the oldest receive, if both exist. */
static bool meet(ncclComm_t from, ncclComm_t to)
{
    struct post **send = find(from, true, to->rank), **recv = find(to, false, from->rank);
    cudaEvent_t went;

    if (!send || !recv)
        return false;
    if ((*send)->part && (*recv)->part) {
        if ((*send)->bytes != (*recv)->bytes || (*send)->call->kind != (*recv)->call->kind)
            return false;
        hd_sim_parts_meet((*send)->part, (*recv)->part);
        take_away(from, send);
        take_away(to, find(to, false, from->rank));
        return true;
    }
    if ((*send)->part || (*recv)->part ||
        (*send)->bytes != (*recv)->bytes) /* real NCCL would hang or write out of bounds */
        from->error = to->error = ncclInvalidUsage;
    if (from->error || to->error)
        return false;
    (void)cudaEventCreateWithFlags(&went, cudaEventDisableTiming);
    keep(to)->event = went;
    (void)cudaStreamWaitEvent((*recv)->stream, (*send)->came, 0);
    (void)cudaMemcpyAsync((*recv)->buf, (*send)->buf, (*recv)->bytes, cudaMemcpyDefault,
                          (*recv)->stream);
    (void)cudaEventRecord(went, (*recv)->stream);
    (void)cudaStreamWaitEvent((*send)->stream, went, 0);
    take_away(from, send);
    take_away(to, find(to, false, from->rank)); /* a send to itself was in the same list */
    return true;
}

static bool is_stuck(const struct ncclComm *comm)
{
    return defect_of(comm) == HD_NCCL_STUCK;
}

static void meet_pair(ncclComm_t a, ncclComm_t b)
{
    while (a && b && !is_stuck(a) && !is_stuck(b) && meet(a, b))
        ;
}

/* Matches what `comm` has posted; after a defect, also what stayed behind elsewhere. */
static void meet_all(ncclComm_t comm)
{
    struct joined *joined = comm->joined;

    for (int r = 0; r < joined->size; r++) {
        meet_pair(comm, joined->ranks[r]);
        meet_pair(joined->ranks[r], comm);
        for (int to = 0; had_defects && to < joined->size; to++)
            meet_pair(joined->ranks[r], joined->ranks[to]);
    }
}

/* ---- groups of calls ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t at_the_end_of_a_thread;

/* Thread destructor: a group during which the communicator was aborted is never ended. */
static void leave_group(void *unused)
{
    (void)unused;
    while (grouped) {
        struct grouped *g = grouped;

        grouped = g->next;
        free(g->post);
        free(g);
    }
}

static void make_key(void)
{
    if (pthread_key_create(&at_the_end_of_a_thread, leave_group))
        abort();
}

ncclResult_t ncclGroupStart(void)
{
    (void)pthread_once(&once, make_key);
    (void)pthread_setspecific(at_the_end_of_a_thread, &depth);
    depth++;
    return ncclSuccess;
}

/* Only lazy streams can wait. */
static bool waits_on_streams(void)
{
    return between_processes || (!waits_on_host && hd_sim_is_lazy());
}

static void keep_part(ncclComm_t comm, struct hd_sim_part *part)
{
    struct part_kept *kept = calloc(1, sizeof *kept), **at = &comm->parts;

    if (!kept)
        abort();
    while (*at) { /* drop the parts that have ended */
        struct part_kept *old = *at;

        if (!hd_sim_part_has_ended(old->part)) {
            at = &old->next;
            continue;
        }
        *at = old->next;
        hd_sim_part_release(old->part);
        free(old);
    }
    *kept = (struct part_kept){.part = hd_sim_part_share(part)};
    *at = kept;
}

/* Enqueues, as one unit, the parts of all calls of the group, from `first` on, on its stream. */
static void put_on_stream(const struct grouped *first)
{
    struct hd_sim_part **parts;
    int count = 0;

    for (const struct grouped *g = first; g; g = g->next)
        count++;
    parts = malloc((size_t)count * sizeof(struct hd_sim_part *));
    if (!parts)
        abort();
    count = 0;
    for (const struct grouped *g = first; g; g = g->next) {
        struct post *p = g->post;

        if (p->part || p->stream != first->post->stream)
            continue;
        parts[count++] = p->part = hd_sim_part_new(p->sends, p->buf, p->bytes);
        keep_part(g->comm, p->part);
        if (g->comm->wire)
            hd_sim_part_place(p->part, &p->place);
    }
    hd_sim_parts_enqueue(first->post->stream, parts, count);
    free(parts);
}

/* For a call that waits on the host: records an event for which the peers' streams wait. */
static void note_place(struct post *post)
{
    (void)cudaEventCreateWithFlags(&post->came, cudaEventDisableTiming);
    (void)cudaEventRecord(post->came, post->stream);
}

/* Numbers the messages to and from other processes, in the order of the calls. */
static void number_messages(void)
{
    for (const struct grouped *g = grouped; g; g = g->next) {
        struct post *p = g->post;
        uint64_t *numbers = p->sends ? g->comm->sent : g->comm->received;

        if (g->comm->wire)
            p->place = (struct hd_wire_place){.wire = g->comm->wire,
                                              .peer = p->peer,
                                              .kind = (int)p->call->kind,
                                              .number = numbers[p->peer]++};
    }
}

static void put_on_streams(void)
{
    number_messages();
    for (const struct grouped *g = grouped; g; g = g->next) {
        struct call *call = g->post->call;

        if (!g->post->part)
            put_on_stream(g);
        if (!call->combines)
            continue;
        call->combines = false; /* all its parts are enqueued */
        combine(call);
        (void)hd_sim_enqueue(call->stream, NULL, free, call->room);
    }
}

/* Counts a group of calls, whose posts are of one communicator and one stream. */
static void count_group(const struct grouped *first)
{
    cudaStream_t *last = &first->comm->last_stream;

    groups++;
    turns += *last && *last != first->post->stream;
    *last = first->post->stream;
}

/* HD_NCCL_BLOCKED: waits until another thread aborts, as if the device's queue were full. */
static void stay_if_blocked(int world_rank, int aborts_before)
{
    for (bool blocked = true; blocked;) {
        pthread_mutex_lock(&lock);
        blocked = defects[world_rank] == HD_NCCL_BLOCKED && aborts_of[world_rank] == aborts_before;
        pthread_mutex_unlock(&lock);
        if (blocked)
            (void)usleep(BLOCKED_LOOK_US);
    }
}

/* A call on a blocking communicator: waits until it has come through, as NCCL does while it
 * connects. The communicator is gone when another thread has aborted those of this rank. */
static ncclResult_t wait_for_peers(ncclComm_t comm, int world_rank, int aborts_before)
{
    ncclResult_t result = ncclInProgress;

    while (result == ncclInProgress) {
        pthread_mutex_lock(&lock);
        if (aborts_of[world_rank] != aborts_before)
            result = ncclInternalError;
        else if (comm->error)
            result = comm->error;
        else if (defect_of(comm) == HD_NCCL_BROKEN || (comm->wire && hd_wire_is_broken(comm->wire)))
            result = ncclRemoteError;
        else if (!is_coming_through(comm))
            result = ncclSuccess;
        pthread_mutex_unlock(&lock);
        if (result == ncclInProgress)
            (void)usleep(BLOCKED_LOOK_US);
    }
    return result;
}

/* True if all calls of the group are on blocking communicators, or all on others. */
static bool is_alike(void)
{
    for (const struct grouped *g = grouped; g; g = g->next)
        if (g->comm->blocking != grouped->comm->blocking)
            return false;
    return true;
}

ncclResult_t ncclGroupEnd(void)
{
    int world_rank = -1, aborts_before = 0;
    ncclComm_t blocking = NULL;
    bool wait_on_stream;

    if (depth == 0)
        return ncclInvalidUsage;
    if (--depth)
        return ncclSuccess;
    if (!is_alike()) { /* nothing of the group is begun */
        while (grouped) {
            struct grouped *g = grouped;

            grouped = g->next;
            if (g->comm->wire)
                hd_sim_part_release(g->post->part);
            free(g->post);
            free(g);
        }
        return ncclInvalidArgument;
    }
    pthread_mutex_lock(&lock);
    wait_on_stream = waits_on_streams();
    if (grouped) {
        blocking = grouped->comm->blocking ? grouped->comm : NULL;
        threads += !blocking;
        world_rank = world_rank_of(grouped->comm);
        aborts_before = aborts_of[world_rank];
        count_group(grouped);
    }
    if (wait_on_stream)
        put_on_streams();
    for (struct grouped *g = grouped; g; g = g->next) { /* all are posted before any meets */
        struct post **at = &g->comm->posts;

        if (g->comm->wire) { /* its part is on its stream, and nothing meets here */
            hd_sim_part_release(g->post->part);
            free(g->post);
            continue;
        }
        while (*at)
            at = &(*at)->next;
        *at = g->post;
        if (!wait_on_stream)
            note_place(g->post);
    }
    while (grouped) {
        struct grouped *g = grouped;

        grouped = g->next;
        if (!g->comm->wire && (!grouped || grouped->comm != g->comm))
            meet_all(g->comm);
        free(g);
    }
    pthread_mutex_unlock(&lock);
    if (world_rank >= 0)
        stay_if_blocked(world_rank, aborts_before);
    if (blocking)
        return wait_for_peers(blocking, world_rank, aborts_before);
    return wait_on_stream || world_rank < 0 ? ncclSuccess : ncclInProgress;
}

static struct call *new_call(ncclComm_t comm, enum kind kind, cudaStream_t stream)
{
    struct call *call = calloc(1, sizeof *call);

    if (!call)
        abort();
    call->kind = kind;
    call->stream = stream;
    pthread_mutex_lock(&lock);
    keep(comm)->call = call;
    pthread_mutex_unlock(&lock);
    return call;
}

/* Call it inside a group. */
static ncclResult_t post(ncclComm_t comm, struct call *call, bool sends, const void *buf,
                         size_t bytes, int peer)
{
    struct post *p = calloc(1, sizeof *p);
    struct grouped *g = calloc(1, sizeof *g), **tail = &grouped;

    if (!p || !g)
        abort();
    *p = (struct post){.sends = sends,
                       .peer = peer,
                       .buf = (char *)(uintptr_t)buf,
                       .bytes = bytes,
                       .stream = call->stream,
                       .call = call};
    call->left++;
    *g = (struct grouped){.comm = comm, .post = p};
    while (*tail)
        tail = &(*tail)->next;
    *tail = g;
    return ncclSuccess;
}

static ncclResult_t post_one(ncclComm_t comm, bool sends, const void *buf, size_t bytes, int peer,
                             cudaStream_t stream)
{
    if (peer < 0 || peer >= comm->joined->size || (comm->wire && peer == comm->rank))
        return ncclInvalidArgument;
    (void)ncclGroupStart();
    (void)post(comm, new_call(comm, PAIR, stream), sends, buf, bytes, peer);
    return ncclGroupEnd();
}

/* ---- operations ---- */

static size_t size_of(ncclDataType_t type)
{
    return type == ncclUint8                             ? 1
           : type == ncclFloat16 || type == ncclBfloat16 ? 2
           : type == ncclInt32 || type == ncclFloat32    ? 4
                                                         : 8;
}

static enum hd_dtype dtype_of(ncclDataType_t type)
{
    switch (type) {
    case ncclUint8:
        return HD_U8;
    case ncclFloat16:
        return HD_F16;
    case ncclBfloat16:
        return HD_BF16;
    case ncclInt32:
        return HD_I32;
    case ncclFloat32:
        return HD_F32;
    case ncclFloat64:
        return HD_F64;
    default:
        return HD_I64;
    }
}

ncclResult_t ncclSend(const void *buf, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return post_one(comm, true, buf, count * size_of(type), peer, stream);
}

ncclResult_t ncclRecv(void *buf, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return post_one(comm, false, buf, count * size_of(type), peer, stream);
}

static void copy_own(void *to, const void *from, size_t bytes, cudaStream_t stream)
{
    if (to != from)
        (void)cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    const size_t bytes = count * size_of(type);
    struct call *call = new_call(comm, GATHER, stream);
    char *out = recv;

    (void)ncclGroupStart();
    for (int m = 0; m < comm->joined->size; m++) {
        if (m == comm->rank)
            continue;
        (void)post(comm, call, true, send, bytes, m);
        (void)post(comm, call, false, out + (size_t)m * bytes, bytes, m);
    }
    copy_own(out + (size_t)comm->rank * bytes, send, bytes, stream);
    return ncclGroupEnd();
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    const size_t bytes = count * size_of(type);
    struct call *call = new_call(comm, BROADCAST, stream);

    (void)ncclGroupStart();
    for (int m = 0; m < comm->joined->size && comm->rank == root; m++)
        if (m != root)
            (void)post(comm, call, true, send, bytes, m);
    if (comm->rank != root)
        (void)post(comm, call, false, recv, bytes, root);
    else
        copy_own(recv, send, bytes, stream);
    return ncclGroupEnd();
}

/* A buffer for a sum, and counts the sum. A waiting stream frees it after use; otherwise it is
 * freed with the communicator. */
static char *take_room(ncclComm_t comm, struct call *call, size_t bytes)
{
    void *room = NULL;

    pthread_mutex_lock(&lock);
    sums++;
    if (waits_on_streams())
        room = call->room = malloc(bytes);
    else if (cudaMalloc(&room, bytes) == cudaSuccess)
        keep(comm)->memory = room;
    pthread_mutex_unlock(&lock);
    return room;
}

/* all_reduce, or with `scatter` reduce_scatter: receives the data of all members, then sums. */
static ncclResult_t reduce(const char *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, bool scatter)
{
    const int size = comm->joined->size;
    const size_t bytes = count * size_of(type);
    struct call *call = new_call(comm, scatter ? SCATTER : REDUCE, stream);
    char *all_in = take_room(comm, call, (size_t)size * bytes + 1);

    if (!all_in)
        return ncclUnhandledCudaError;
    call->combines = true;
    call->combine = (struct hd_combine_args){.outs = 1,
                                             .ins = size,
                                             .count = (int64_t)count,
                                             .dtype = dtype_of(type),
                                             .max = op == ncclMax};
    call->combine.out[0] = recv;
    call->partial = all_in + (size_t)comm->rank * bytes; /* this part receives nothing */
    (void)ncclGroupStart();
    for (int m = 0; m < size; m++) {
        const char *part = send + (scatter ? (size_t)m * bytes : 0);
        char *place = all_in + (size_t)m * bytes;

        call->combine.in[m] = m == comm->rank ? part : place;
        if (m == comm->rank)
            continue;
        (void)post(comm, call, true, part, bytes, m);
        (void)post(comm, call, false, place, bytes, m);
    }
    return ncclGroupEnd();
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return reduce(send, recv, count, type, op, comm, stream, false);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return reduce(send, recv, count, type, op, comm, stream, true);
}

/* ---- controls for tests (nccl_stand_in.h) ---- */

void hd_nccl_stand_in_defect(int rank, enum hd_nccl_defect defect)
{
    pthread_mutex_lock(&lock);
    defects[rank] = defect;
    had_defects = true;
    pthread_mutex_unlock(&lock);
}

static int ask(const int *number)
{
    int answer;

    pthread_mutex_lock(&lock);
    answer = *number;
    pthread_mutex_unlock(&lock);
    return answer;
}

void hd_nccl_stand_in_wait_on_host(bool wanted)
{
    pthread_mutex_lock(&lock);
    waits_on_host = wanted;
    pthread_mutex_unlock(&lock);
}

void hd_nccl_stand_in_between_processes(void)
{
    pthread_mutex_lock(&lock);
    between_processes = true;
    pthread_mutex_unlock(&lock);
}

int hd_nccl_stand_in_splits(void)
{
    return ask(&splits_done);
}

int hd_nccl_stand_in_aborts(void)
{
    return ask(&aborts);
}

int hd_nccl_stand_in_sums(void)
{
    return ask(&sums);
}

int hd_nccl_stand_in_groups(void)
{
    return ask(&groups);
}

int hd_nccl_stand_in_turns(void)
{
    return ask(&turns);
}

int hd_nccl_stand_in_threads(void)
{
    return ask(&threads);
}

int hd_nccl_stand_in_open(void)
{
    return ask(&open_comms);
}
