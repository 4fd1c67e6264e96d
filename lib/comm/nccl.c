/* The engine nccl: opening, communicators, closing. Communicators are non-blocking: after a call,
 * nccl_wait_ready polls until it is finished or a failure is known. */
#include "comm/nccl.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/nccl_internal.h"

enum { READY_LOOKS = 2000, READY_LOOK_US = 50 };

int64_t hd_comm_nccl_bytes(int world)
{
    return nccl_streams_bytes(HD_COMM_NCCL_PIECE, nccl_scratch_bytes(world),
                              HD_COMM_COLLECTIVE_STREAMS);
}

/* A piece has at least a line for each member, and one more. */
static enum hd_status take_piece_bytes(struct hd_comm *comm, int64_t piece_bytes)
{
    const int64_t bytes = piece_bytes ? piece_bytes : HD_COMM_NCCL_PIECE;
    const int64_t least = (int64_t)2 * HD_COMM_ALIGN * comm->world * HD_COMM_NCCL_SMALL_PIECE_PART;

    if (bytes < least || bytes % (HD_COMM_ALIGN * HD_COMM_NCCL_SMALL_PIECE_PART) != 0)
        return hd_err(
            HD_INVALID, "nccl: pieces of %lld bytes; give a multiple of %d, at least %lld",
            (long long)bytes, HD_COMM_ALIGN * HD_COMM_NCCL_SMALL_PIECE_PART, (long long)least);
    nccl_of(comm)->piece_bytes = bytes;
    return HD_OK;
}

/* ---- failing ---- */

enum hd_status nccl_failure(struct hd_comm *comm)
{
    struct nccl_state *nccl = nccl_of(comm);
    enum hd_status st;

    if (comm->failure.status)
        return hd_err_restore(&comm->failure);
    st = nccl->host->engine->failure(nccl->host);
    if (!st)
        return HD_OK;
    nccl_abort_all(comm);
    (void)nccl->host->engine->failure(nccl->host); /* sets this thread's message */
    return hd_comm_keep_failure(comm, st);
}

bool nccl_has_failed(const struct hd_comm *comm)
{
    return nccl_of(comm)->host->engine->has_failed(nccl_of(comm)->host);
}

enum hd_status nccl_wait_ready(struct hd_comm *comm, struct hd_nccl_comm *nccl_comm,
                               const char *about)
{
    struct nccl_state *nccl = nccl_of(comm);
    const int64_t begin_ms = hd_clock_now_ms();

    for (int looks = 0;; looks++) {
        bool busy = false;
        enum hd_status st = nccl_lock_calls(nccl);

        nccl_note_progress(nccl);
        if (!st) {
            st = nccl->calls->poll(nccl_comm, &busy);
            nccl_unlock_calls(nccl);
        }
        if (st) {
            char message[HD_COMM_REASON_MAX];

            (void)snprintf(message, sizeof message, "%s", hd_err_message());
            if (nccl_hear_cause(comm) && nccl_failure(comm))
                return nccl_failure(comm); /* the cause of st */
            return hd_comm_fail(comm, st, "%s: %s", about, message);
        }
        if (!busy)
            return HD_OK;
        st = nccl_failure(comm);
        if (st)
            return st;
        if (hd_clock_now_ms() - begin_ms >= comm->deadline_ms)
            return hd_comm_fail(comm, HD_TIMEOUT, "%s: NCCL did not finish for %lld ms", about,
                                (long long)(hd_clock_now_ms() - begin_ms));
        if (looks < READY_LOOKS)
            (void)sched_yield();
        else
            (void)usleep(READY_LOOK_US);
    }
}

/* ---- communicators ---- */

/* Fills the next place of `communicators`; nccl_add_communicator counts it. */
static enum hd_status reserve_communicator(struct nccl_state *nccl, const int32_t *members,
                                           int size, struct nccl_communicator **ret_communicator)
{
    struct nccl_communicator *communicator;

    if (nccl->communicator_count == NCCL_COMMS_MAX)
        return hd_err(HD_LIMIT, "nccl: more than %d communicators", (int)NCCL_COMMS_MAX);
    communicator = &nccl->communicators[nccl->communicator_count];
    communicator->way = 0;
    communicator->size = size;
    free(communicator->members); /* of an attempt that has failed */
    communicator->members = calloc((size_t)size, sizeof communicator->members[0]);
    if (!communicator->members)
        return hd_err(HD_NO_MEMORY, "nccl: no memory for a communicator");
    memcpy(communicator->members, members, (size_t)size * sizeof members[0]);
    *ret_communicator = communicator;
    return HD_OK;
}

/* Creates the communicator of `group`, a group of the host endpoint, which broadcasts the unique id
 * of member 0. */
static enum hd_status join_by_identity(struct hd_comm *comm, struct hd_comm_group *group,
                                       uint64_t way)
{
    struct nccl_state *nccl = nccl_of(comm);
    struct hd_comm_stream *stream = hd_comm_stream(nccl->host, HD_COMM_STREAM_GATHER);
    struct hd_nccl_id *id = (struct hd_nccl_id *)nccl->host_memory;
    struct nccl_communicator *communicator = NULL;
    enum hd_status st = reserve_communicator(nccl, group->members, group->size, &communicator);

    if (!st)
        communicator->way = way;
    if (!st && group->index == 0)
        st = nccl->calls->unique_id(id);
    if (!st)
        st = hd_comm_broadcast(group, stream,
                               &(struct hd_comm_broadcast_args){id, sizeof *id, HD_U8, 0});
    if (!st)
        st = hd_comm_wait(stream, hd_comm_record(stream));
    if (st)
        return st;
    st = nccl_lock_calls(nccl);
    if (st)
        return st;
    nccl_note_progress(nccl); /* all members have arrived */
    nccl_may_block(nccl);     /* init allocates device memory */
    st = nccl->calls->init(id, group->size, group->index, &communicator->comm);
    if (communicator->comm)
        nccl_add_communicator(nccl);
    nccl_unlock_calls(nccl);
    return st ? st : nccl_wait_ready(comm, communicator->comm, "ncclCommInitRankConfig");
}

static bool same_members(const struct nccl_communicator *communicator,
                         const struct hd_comm_group *group)
{
    return communicator->comm && communicator->way == (group->is_way ? group->id : 0) &&
           communicator->size == group->size &&
           memcmp(communicator->members, group->members, (size_t)group->size * sizeof(int32_t)) ==
               0;
}

enum hd_status nccl_get_communicator(struct hd_comm_group *group, struct hd_nccl_comm **ret_comm)
{
    struct hd_comm *comm = group->comm;
    struct nccl_state *nccl = nccl_of(comm);
    struct hd_comm_group *host_group;
    enum hd_status st;

    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < nccl->communicator_count; i++) {
            if (same_members(&nccl->communicators[i], group)) {
                *ret_comm = nccl->communicators[i].comm;
                return HD_OK;
            }
        }
        st = hd_comm_group(nccl->host, group->name, group->members, group->size, &host_group);
        nccl_note_progress(nccl);
        if (!st)
            st = join_by_identity(comm, host_group, group->is_way ? group->id : 0);
        if (st)
            return st;
    }
    return hd_err(HD_INTERNAL, "nccl: group %s has no communicator", group->name);
}

/* One ncclCommSplit for each distinct partition of the world into groups of the mesh. Every rank
 * calls the same splits in the same order, also for groups of size 1. */
static enum hd_status split_mesh(struct hd_comm *comm, const struct hd_mesh *mesh)
{
    struct nccl_state *nccl = nccl_of(comm);
    enum hd_group_name names[HD_GROUP_COUNT];
    const int count = hd_mesh_divisions(mesh, names);
    enum hd_status st = HD_OK;

    for (int g = 0; g < count && !st; g++) {
        const struct hd_mesh_group where = hd_mesh_find_group(mesh, names[g], comm->rank);
        struct nccl_communicator *communicator = NULL;
        int32_t *members = calloc((size_t)where.size, sizeof members[0]);

        if (!members)
            return hd_err(HD_NO_MEMORY, "nccl: no memory for a group");
        for (int32_t m = 0; m < where.size; m++)
            members[m] = hd_mesh_member(&where, m);
        st = reserve_communicator(nccl, members, where.size, &communicator);
        free(members);
        if (!st)
            st = nccl_lock_calls(nccl);
        if (st)
            return st;
        nccl_may_block(nccl);
        st = nccl->calls->split(nccl->communicators[0].comm,
                                where.size > 1 ? (int)communicator->members[0] : -1, comm->rank,
                                &communicator->comm);
        nccl_unlock_calls(nccl);
        if (!st)
            st = nccl_wait_ready(comm, nccl->communicators[0].comm, "ncclCommSplit of the world");
        if (!st && communicator->comm) {
            (void)pthread_mutex_lock(&nccl->lock);
            nccl_add_communicator(nccl);
            (void)pthread_mutex_unlock(&nccl->lock);
            st = nccl_wait_ready(comm, communicator->comm, "the communicator of a split");
        }
    }
    return st;
}

/* ---- the slots of the engine ---- */

static enum hd_status nccl_visible(struct hd_comm *comm, size_t size_bytes, void **ret_base)
{
    const struct hd_comm_device *device = &comm->side->device;

    return device->table->device->reserve(device->backend, (int64_t)size_bytes,
                                          device->host_reachable, ret_base);
}

static enum hd_status nccl_group_open(struct hd_comm_group *group)
{
    (void)group; /* its communicator is created by its first operation */
    return HD_OK;
}

static uint64_t nccl_entered(struct hd_comm_group *group, int member)
{
    const struct hd_comm *host = nccl_of(group->comm)->host;
    const struct hd_comm_flight *flight =
        host->engine->flight_of ? host->engine->flight_of(host, group->members[member])
                                : group->comm->flight; /* unknown: assume the same as this rank */

    return hd_comm_flight_entered(flight, group->name);
}

static int nccl_missing(struct hd_comm_op *op, const char **ret_what)
{
    *ret_what = "has not launched it";
    for (int m = 0; m < op->group->size; m++) {
        if (op->way == HD_COMM_AMONG_ALL && nccl_entered(op->group, m) < op->seq)
            return op->group->members[m];
    }
    return -1;
}

static const struct hd_comm_offer *nccl_offer(const struct hd_comm_op *op, int member)
{
    (void)op, (void)member; /* this engine compares no offers (nccl.h) */
    return NULL;
}

static bool nccl_has_left(const struct hd_comm *comm, int rank)
{
    return nccl_of(comm)->host->engine->has_left(nccl_of(comm)->host, rank);
}

/* "" if the peer's flight record cannot be read: the host endpoint's operations are not wanted. */
static void nccl_latest(struct hd_comm *comm, int rank, char *ret_text, size_t size_bytes)
{
    const struct hd_comm *host = nccl_of(comm)->host;

    ret_text[0] = '\0';
    if (host->engine->flight_of)
        host->engine->latest(nccl_of(comm)->host, rank, ret_text, size_bytes);
}

static const struct hd_comm_flight *nccl_flight_of(const struct hd_comm *comm, int rank)
{
    const struct hd_comm *host = nccl_of(comm)->host;

    return host->engine->flight_of ? host->engine->flight_of(host, rank) : NULL;
}

/* ---- opening and closing ---- */

static void free_state(struct hd_comm *comm)
{
    struct nccl_state *nccl = nccl_of(comm);

    hd_comm_free(nccl->host);
    for (int i = 0; i < NCCL_COMMS_MAX; i++)
        free(nccl->communicators[i].members);
    free(nccl->parts);
    free(nccl->bounds);
    (void)pthread_cond_destroy(&nccl->stop_cond);
    (void)pthread_mutex_destroy(&nccl->stop_lock);
    (void)pthread_mutex_destroy(&nccl->lock);
    free(nccl);
    comm->engine_state = NULL;
}

/* Operations that are complete for the host may still wait for peers on the device. Must run while
 * the watchdog does, which ends a hang. A failure needs no return value: nccl_has_failed. */
static void wait_for_device(struct hd_comm *comm)
{
    for (int s = 0; s < HD_COMM_STREAM_COUNT && !nccl_has_failed(comm); s++) {
        if (comm->streams[s].completed)
            (void)hd_comm_wait_device(&comm->streams[s], comm->streams[s].completed);
    }
}

/* After a failure in the middle of a sum, nothing else waits for what these have to run. */
static void close_second_streams(struct nccl_state *nccl, const struct hd_comm_device *device)
{
    for (int s = 0; s < HD_COMM_COLLECTIVE_STREAMS; s++) {
        if (!nccl->second[s])
            continue;
        (void)device->table->synchronize(nccl->second[s]); /* close even on an error */
        device->table->stream_close(nccl->second[s]);
    }
}

static void nccl_close(struct hd_comm *comm, bool clean)
{
    struct nccl_state *nccl = nccl_of(comm);
    struct hd_comm_side *side = comm->side;
    const struct hd_comm_device device = side->device;

    if (!clean && !nccl_has_failed(comm))
        nccl_abort(comm, HD_ABORTED, "it closed its endpoint with operations in flight");
    else if (clean)
        wait_for_device(comm);
    nccl_stop_watchdog(nccl);
    if (nccl_has_failed(comm))
        nccl_abort_all(comm);
    close_second_streams(nccl, &device);
    hd_comm_side_close(side);
    if (nccl->counts_ready)
        device.table->device->event_free(nccl->counts_ready);
    if (nccl->forked)
        device.table->device->event_free(nccl->forked);
    if (nccl->joined)
        device.table->device->event_free(nccl->joined);
    for (int i = nccl->communicator_count - 1; i >= 0 && !atomic_load(&nccl->aborted); i--)
        nccl->calls->destroy(nccl->communicators[i].comm); /* splits before the world */
    if (comm->visible)
        device.table->device->release(device.backend, comm->visible);
    if (nccl->staging)
        device.table->device->release(device.backend, nccl->staging);
    comm->visible = NULL;
    comm->side = NULL;
    free_state(comm);
}

static const struct hd_comm_engine nccl_engine = {
    .kind = HD_COMM_BY_NCCL,
    .waits_on_device = true,
    .visible = nccl_visible,
    .group_open = nccl_group_open,
    .collective_step = nccl_collective_step,
    .send_step = nccl_pair_step,
    .recv_step = nccl_pair_step,
    .collective_missing = nccl_missing,
    .pair_missing = nccl_missing,
    .offer = nccl_offer,
    .has_left = nccl_has_left,
    .latest = nccl_latest,
    .entered = nccl_entered,
    .flight_of = nccl_flight_of,
    .failure = nccl_failure,
    .has_failed = nccl_has_failed,
    .abort = nccl_abort,
    .close = nccl_close,
};

/* Allocates the endpoint and takes over `host`, which is freed on failure. */
static enum hd_status new_endpoint(struct hd_comm *host, int64_t deadline_ms,
                                   struct hd_comm **ret_comm)
{
    struct nccl_state *nccl = calloc(1, sizeof *nccl);
    pthread_condattr_t monotonic;
    struct hd_comm *comm = NULL;
    enum hd_status st = hd_comm_check_world(HD_COMM_BY_NCCL, host->rank, host->world);

    if (nccl) {
        nccl->scratch_bytes = nccl_scratch_bytes(host->world);
        nccl->parts = calloc((size_t)host->world, sizeof *nccl->parts);
    }
    if (!st && (!nccl || !nccl->parts))
        st = hd_err(HD_NO_MEMORY, "nccl: no memory for an endpoint");
    if (!st)
        st = hd_comm_new(&nccl_engine, host->rank, host->world, deadline_ms, &comm);
    if (st) {
        if (nccl)
            free(nccl->parts);
        free(nccl);
        hd_comm_free(host);
        return st;
    }
    (void)pthread_mutex_init(&nccl->lock, NULL);
    (void)pthread_mutex_init(&nccl->stop_lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&nccl->stop_cond, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    nccl->host = host;
    comm->engine_state = nccl;
    comm->bell = host->bell;
    comm->flight = host->flight;
    comm->spin_max = host->spin_max;
    comm->yielding = host->yielding;
    hd_comm_set_deadline(host, deadline_ms);
    *ret_comm = comm;
    return HD_OK;
}

static enum hd_status join_world(struct hd_comm *comm)
{
    struct nccl_state *nccl = nccl_of(comm);
    int32_t *all_ranks = calloc((size_t)comm->world, sizeof *all_ranks);
    struct hd_comm_group *world;
    enum hd_status st;

    if (!all_ranks)
        return hd_err(HD_NO_MEMORY, "nccl: no memory for the world");
    for (int32_t r = 0; r < comm->world; r++)
        all_ranks[r] = r;
    st = hd_comm_group(nccl->host, "nccl", all_ranks, comm->world, &world);
    free(all_ranks);
    return st ? st : join_by_identity(comm, world, 0);
}

/* From now on this endpoint continues the flight record of the host endpoint. Later operations of
 * the host endpoint are parts of operations of this one; they go to a record that nothing reads. */
static void take_record(struct hd_comm *comm)
{
    struct nccl_state *nccl = nccl_of(comm);

    comm->launches = nccl->last_enqueued = nccl->host->launches;
    nccl->host->flight = &nccl->host_flight;
}

enum hd_status hd_comm_open_nccl(struct hd_comm *host, const struct hd_comm_device *device,
                                 const struct hd_comm_nccl_options *options,
                                 struct hd_comm **ret_comm)
{
    const struct hd_device_table *calls = device->table->device;
    struct nccl_state *nccl;
    struct hd_comm *comm = NULL;
    void *memory;
    enum hd_status st = new_endpoint(host, options->deadline_ms, &comm);

    if (st)
        return st;
    nccl = nccl_of(comm);
    comm->native_sums = options->native;
    st = calls && calls->nccl
             ? calls->nccl(&nccl->calls)
             : hd_err(HD_UNSUPPORTED,
                      "nccl: backend %s was built without NCCL; use one device per job",
                      device->table->name);
    if (!st)
        st = take_piece_bytes(comm, options->piece_bytes);
    if (!st)
        st = hd_comm_side_open(device, &comm->side);
    if (!st)
        st = calls->event_new(device->backend, false, &nccl->counts_ready);
    if (!st)
        st = calls->event_new(device->backend, false, &nccl->forked);
    if (!st)
        st = calls->event_new(device->backend, false, &nccl->joined);
    if (!st)
        st = calls->reserve(
            device->backend,
            nccl_streams_bytes(nccl->piece_bytes, nccl->scratch_bytes, HD_COMM_COLLECTIVE_STREAMS),
            device->host_reachable, &memory);
    if (!st) {
        nccl->staging = memory;
        st = hd_comm_visible(host, sizeof(struct hd_nccl_id), &memory);
    }
    if (!st) {
        nccl->host_memory = memory;
        st = join_world(comm);
    }
    if (!st && options->mesh)
        st = split_mesh(comm, options->mesh);
    if (!st) {
        take_record(comm);
        st = nccl_start_watchdog(comm);
    }
    if (!st) {
        *ret_comm = comm;
        return HD_OK;
    }
    if (comm->side) {
        struct hd_error error;

        hd_err_save(st, &error);
        nccl_abort(comm, st, error.message); /* so that no rank waits for this one */
        nccl_close(comm, true);
        st = hd_err_restore(&error);
    } else {
        free_state(comm);
    }
    hd_comm_delete(comm);
    return st;
}
