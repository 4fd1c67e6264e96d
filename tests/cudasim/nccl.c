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
 * This file has communicators, nccl_calls.c groups of calls and the operations.
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

#include "nccl_buffers.h"
#include "nccl_state.h"
#include "tests/cudasim/internal.h"

struct hd_nccl hd_nccl = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- communicators ---- */

int hd_nccl_world_rank(const struct ncclComm *comm)
{
    return comm->joined->world_rank[comm->wire ? 0 : comm->rank] % RANKS_MAX;
}

enum hd_nccl_defect hd_nccl_defect_of(const struct ncclComm *comm)
{
    return hd_nccl.defects[hd_nccl_world_rank(comm)];
}

struct kept *hd_nccl_keep(ncclComm_t comm)
{
    struct kept *kept = calloc(1, sizeof *kept);

    if (!kept)
        abort();
    kept->next = comm->kept;
    comm->kept = kept;
    return kept;
}

/* ---- memory and blocks ---- */

enum { CHANNELS_MAX = 32, TREE_PEERS = 4 };

static int blocks_of(const ncclConfig_t *config)
{
    return config->maxCTAs > 0 && config->maxCTAs < CHANNELS_MAX ? config->maxCTAs : CHANNELS_MAX;
}

/* Sends and receives have a power of two of channels, at most as many as the communicator has. */
static int pair_channels(const struct ncclComm *comm)
{
    const char *wish = getenv("NCCL_MAX_P2P_NCHANNELS");
    const int most = wish ? atoi(wish) : CHANNELS_MAX;
    int channels = 1;

    while (channels < (comm->blocks < most ? comm->blocks : most))
        channels *= 2;
    return channels;
}

int hd_nccl_blocks(const struct ncclComm *comm, bool pairs)
{
    return pairs ? pair_channels(comm) : comm->blocks;
}

/* Call it under the lock. */
static bool charge(ncclComm_t comm, int64_t bytes)
{
    if (!comm->charged_bytes) {
        comm->device = hd_sim_device();
        bytes += hd_nccl.charges.base_bytes;
    }
    if (!hd_sim_charge(comm->device, bytes))
        return false;
    comm->charged_bytes += bytes;
    return true;
}

bool hd_nccl_connect_peer(ncclComm_t comm, bool sends, int peer)
{
    bool **known = sends ? &comm->sends_to : &comm->receives_from, done = true;

    pthread_mutex_lock(&hd_nccl.lock);
    if (!*known)
        *known = calloc((size_t)comm->joined->size, sizeof **known);
    if (!*known)
        abort();
    if (hd_nccl.charges.send_bytes && !(*known)[peer])
        done = charge(comm, pair_channels(comm) * (sends ? hd_nccl.charges.send_bytes
                                                         : hd_nccl.charges.receive_bytes));
    (*known)[peer] = done;
    pthread_mutex_unlock(&hd_nccl.lock);
    return done;
}

bool hd_nccl_connect_ring(ncclComm_t comm, bool with_trees)
{
    const struct hd_nccl_charges *c = &hd_nccl.charges;
    int peers;
    bool done = true;

    pthread_mutex_lock(&hd_nccl.lock);
    peers = !comm->has_ring + (with_trees && !comm->has_trees ? TREE_PEERS : 0);
    if (c->send_bytes && peers)
        done = charge(comm, peers * comm->blocks * (c->send_bytes + c->receive_bytes));
    comm->has_ring |= done;
    comm->has_trees |= done && with_trees;
    pthread_mutex_unlock(&hd_nccl.lock);
    return done;
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
    hd_nccl.open_comms++;
    return comm;
}

static struct joined *add_joined(int size)
{
    struct joined *joined = calloc(1, sizeof *joined);

    if (!joined)
        abort();
    joined->size = size;
    joined->next = hd_nccl.all;
    hd_nccl.all = joined;
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
    if (hd_nccl.between_processes)
        return hd_wire_make_id(id);
    pthread_mutex_lock(&hd_nccl.lock);
    memset(id, 0, sizeof *id);
    (void)snprintf(id->internal, sizeof id->internal, "stand-in %d", ++hd_nccl.ids);
    pthread_mutex_unlock(&hd_nccl.lock);
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
    pthread_mutex_lock(&hd_nccl.lock);
    *comm = add_wired(wire, rank);
    pthread_mutex_unlock(&hd_nccl.lock);
    return ncclInProgress;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    struct joined *joined;

    if (config->blocking || rank < 0 || rank >= nranks)
        return ncclInvalidArgument;
    if (hd_nccl.between_processes)
        return init_wired(comm, nranks, &id, rank);
    if (nranks > RANKS_MAX)
        return ncclInvalidArgument;
    pthread_mutex_lock(&hd_nccl.lock);
    for (joined = hd_nccl.all; joined && memcmp(&joined->id, &id, sizeof id) != 0;
         joined = joined->next)
        ;
    if (!joined) {
        joined = add_joined(nranks);
        joined->id = id;
    }
    *comm = add_rank(joined, rank, rank);
    pthread_mutex_unlock(&hd_nccl.lock);
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
            (*split->place[o])->blocks = split->blocks[o];
        }
    }
    for (int r = 0; r < parent->size; r++)
        if (parent->ranks[r])
            parent->ranks[r]->splitting--;
    hd_nccl.splits_done++;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
                           ncclConfig_t *config)
{
    const bool blocking = config ? config->blocking : comm->blocking;
    const int blocks = config ? blocks_of(config) : comm->blocks;
    struct split *split;

    if (comm->blocking) /* it would have to wait here for all ranks of the parent */
        return ncclInvalidUsage;
    if (comm->wire) {
        pthread_mutex_lock(&hd_nccl.lock);
        *newcomm = NULL;
        comm->child_blocking = blocking;
        comm->child_blocks = blocks;
        comm->place = newcomm;
        comm->color = color;
        comm->splitting = 1;
        hd_wire_tell_color(comm->wire, comm->splits++, color, key);
        pthread_mutex_unlock(&hd_nccl.lock);
        return ncclInProgress;
    }
    pthread_mutex_lock(&hd_nccl.lock);
    split = &comm->joined->splits[comm->splits++ % SPLITS_MAX];
    *newcomm = NULL;
    split->color[comm->rank] = color;
    split->key[comm->rank] = key;
    split->place[comm->rank] = newcomm;
    split->blocking[comm->rank] = blocking;
    split->blocks[comm->rank] = blocks;
    comm->splitting++;
    if (++split->arrived == comm->joined->size)
        make_children(comm->joined, split);
    pthread_mutex_unlock(&hd_nccl.lock);
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
        (*comm->place)->blocks = comm->child_blocks;
    }
    comm->splitting = 0;
    hd_nccl.splits_done++;
}

bool hd_nccl_is_coming_through(const struct ncclComm *comm)
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
    pthread_mutex_lock(&hd_nccl.lock);
    if (hd_nccl_defect_of(comm) == HD_NCCL_BROKEN || (comm->wire && hd_wire_is_broken(comm->wire)))
        comm->error = ncclRemoteError;
    if (comm->wire)
        look_at_split(comm);
    if (comm->joined->arrived == comm->joined->size && comm->looks < LOOKS_IN_PROGRESS)
        comm->looks++;
    *error = comm->error ? comm->error
             : !comm->blocking && (comm->looks < LOOKS_IN_PROGRESS || comm->splitting ||
                                   hd_nccl_is_coming_through(comm))
                 ? ncclInProgress
                 : ncclSuccess;
    pthread_mutex_unlock(&hd_nccl.lock);
    return ncclSuccess;
}

/* Call it under the lock. */
static void forget(ncclComm_t comm, bool clean)
{
    struct joined *joined = comm->joined, **at = &hd_nccl.all;

    hd_sim_nccl_forget(comm, clean);
    if (comm->charged_bytes)
        (void)hd_sim_charge(comm->device, -comm->charged_bytes);
    free(comm->sends_to);
    free(comm->receives_from);
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
    hd_nccl.open_comms--;
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
    pthread_mutex_lock(&hd_nccl.lock);
    hd_nccl.aborts++;
    hd_nccl.aborts_of[hd_nccl_world_rank(comm)]++;
    forget(comm, false);
    pthread_mutex_unlock(&hd_nccl.lock);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    ncclResult_t result = ncclInProgress;

    for (bool returns = false; !returns;) {
        pthread_mutex_lock(&hd_nccl.lock);
        comm->finalizing = true;
        if (!hd_nccl_is_coming_through(comm))
            result = ncclSuccess;
        returns = !comm->blocking || result == ncclSuccess;
        pthread_mutex_unlock(&hd_nccl.lock);
        if (!returns)
            (void)usleep(BLOCKED_LOOK_US);
    }
    return result;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    pthread_mutex_lock(&hd_nccl.lock);
    forget(comm, true);
    pthread_mutex_unlock(&hd_nccl.lock);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclRemoteError ? "remote process exited or there was a network error"
                                     : "an error of the emulated NCCL";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return "the emulated NCCL has no details";
}

/* ---- controls for tests (nccl_stand_in.h) ---- */

void hd_nccl_stand_in_defect(int rank, enum hd_nccl_defect defect)
{
    pthread_mutex_lock(&hd_nccl.lock);
    hd_nccl.defects[rank] = defect;
    hd_nccl.had_defects = true;
    pthread_mutex_unlock(&hd_nccl.lock);
}

static int ask(const int *number)
{
    int answer;

    pthread_mutex_lock(&hd_nccl.lock);
    answer = *number;
    pthread_mutex_unlock(&hd_nccl.lock);
    return answer;
}

void hd_nccl_stand_in_wait_on_host(bool wanted)
{
    pthread_mutex_lock(&hd_nccl.lock);
    hd_nccl.waits_on_host = wanted;
    pthread_mutex_unlock(&hd_nccl.lock);
}

void hd_nccl_stand_in_charge(struct hd_nccl_charges charges)
{
    pthread_mutex_lock(&hd_nccl.lock);
    hd_nccl.charges = charges;
    pthread_mutex_unlock(&hd_nccl.lock);
}

void hd_nccl_stand_in_multiprocessors(int count)
{
    pthread_mutex_lock(&hd_nccl.lock);
    hd_nccl.multiprocessors = count;
    pthread_mutex_unlock(&hd_nccl.lock);
}

void hd_nccl_stand_in_between_processes(void)
{
    pthread_mutex_lock(&hd_nccl.lock);
    hd_nccl.between_processes = true;
    pthread_mutex_unlock(&hd_nccl.lock);
}

int hd_nccl_stand_in_splits(void)
{
    return ask(&hd_nccl.splits_done);
}

int hd_nccl_stand_in_aborts(void)
{
    return ask(&hd_nccl.aborts);
}

int hd_nccl_stand_in_sums(void)
{
    return ask(&hd_nccl.sums);
}

int hd_nccl_stand_in_groups(void)
{
    return ask(&hd_nccl.groups);
}

int hd_nccl_stand_in_turns(void)
{
    return ask(&hd_nccl.turns);
}

int hd_nccl_stand_in_threads(void)
{
    return ask(&hd_nccl.threads);
}

int hd_nccl_stand_in_open(void)
{
    return ask(&hd_nccl.open_comms);
}
