/* The engine nccl: opens and closes endpoints, and reports failures. Operations are enqueued by
 * nccl_move.c. */
#include "comm/nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/nccl_internal.h"

int64_t hd_comm_nccl_bytes(int world)
{
    return nccl_streams_bytes(HD_COMM_NCCL_PIECE, nccl_scratch_bytes(world),
                              HD_COMM_COLLECTIVE_STREAMS);
}

/* Checks and sets the bytes of a piece of ordered sums. The smallest pieces (size /
 * HD_COMM_NCCL_SMALL_PIECE_PART) must have at least two lines (HD_COMM_ALIGN) per member. */
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
    (void)nccl->host->engine->failure(nccl->host); /* sets this thread's error message */
    return hd_comm_keep_failure(comm, st);
}

bool nccl_has_failed(const struct hd_comm *comm)
{
    return nccl_of(comm)->host->engine->has_failed(nccl_of(comm)->host);
}

enum hd_status nccl_end_call(struct hd_comm *comm, enum hd_status st, const char *about)
{
    char message[HD_COMM_REASON_MAX];

    nccl_note_progress(nccl_of(comm));
    if (!st)
        return HD_OK;
    (void)snprintf(message, sizeof message, "%s", hd_err_message());
    if (nccl_hear_cause(comm) && nccl_failure(comm))
        return nccl_failure(comm); /* the host endpoint has failed, which is the cause of st */
    return hd_comm_fail(comm, st, "%s: %s", about, message);
}

/* ---- the slots of the engine ---- */

static enum hd_status nccl_registered(struct hd_comm *comm, size_t size_bytes, void **ret_base)
{
    return nccl_reserve(comm, NCCL_REGISTERED, (int64_t)size_bytes, ret_base);
}

static enum hd_status nccl_group_open(struct hd_comm_group *group)
{
    (void)group; /* no preparation needed: the first operation creates the communicator */
    return HD_OK;
}

static uint64_t nccl_entered(struct hd_comm_group *group, int member)
{
    const struct hd_comm *host = nccl_of(group->comm)->host;
    const struct hd_comm_flight *flight =
        host->engine->flight_of ? host->engine->flight_of(host, group->members[member])
                                : group->comm->flight; /* the peer's record is not readable: assume
                                                          the count of this rank */

    return hd_comm_flight_entered(flight, group->name);
}

static int nccl_missing(struct hd_comm_op *op, const char **ret_what)
{
    *ret_what = "has not launched it";
    for (int m = 0; m < op->group->size; m++) {
        if (op->direction == HD_COMM_AMONG_ALL && nccl_entered(op->group, m) < op->seq)
            return op->group->members[m];
    }
    return -1;
}

static const struct hd_comm_signature *nccl_signature(const struct hd_comm_op *op, int member)
{
    (void)op, (void)member; /* unused: this engine compares no signatures (nccl.h) */
    return NULL;
}

static bool nccl_has_left(const struct hd_comm *comm, int rank)
{
    return nccl_of(comm)->host->engine->has_left(nccl_of(comm)->host, rank);
}

/* Describes the last operation of a peer; writes "" if the peer's flight record cannot be read: the
 * host endpoint's own text would name host operations. */
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

static void nccl_free(struct hd_comm *comm)
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

/* Waits until the device has run all operations: those that are complete for the host may still
 * wait for peers on the device. The watchdog must be running, because it ends a hang. The caller
 * checks nccl_has_failed. */
static void wait_for_device(struct hd_comm *comm)
{
    for (int s = 0; s < HD_COMM_STREAM_COUNT && !nccl_has_failed(comm); s++) {
        if (comm->streams[s].completed)
            (void)hd_comm_wait_device(&comm->streams[s], comm->streams[s].completed);
    }
}

/* Waits until the device has run the second device streams of the collective streams, and closes
 * them. After a failure in the middle of a sum the first stream does not wait for its second one,
 * so this function must. */
static void close_second_streams(struct nccl_state *nccl, const struct hd_comm_device *device)
{
    for (int s = 0; s < HD_COMM_COLLECTIVE_STREAMS; s++) {
        if (!nccl->second[s])
            continue;
        (void)device->table->synchronize(nccl->second[s]); /* closing continues after an error */
        device->table->stream_close(nccl->second[s]);
    }
}

static void nccl_close(struct hd_comm *comm, bool clean)
{
    struct nccl_state *nccl = nccl_of(comm);
    struct hd_comm_device_streams *device_streams = comm->device_streams;
    const struct hd_comm_device device = device_streams->device;

    if (!clean && !nccl_has_failed(comm))
        nccl_abort(comm, HD_ABORTED, "it closed its endpoint with operations in flight");
    else if (clean)
        wait_for_device(comm);
    nccl_stop_watchdog(nccl);
    if (nccl_has_failed(comm))
        nccl_abort_all(comm);
    close_second_streams(nccl, &device);
    hd_comm_streams_close(device_streams);
    if (nccl->counts_ready)
        device.table->device->event_free(nccl->counts_ready);
    if (nccl->forked)
        device.table->device->event_free(nccl->forked);
    if (nccl->joined)
        device.table->device->event_free(nccl->joined);
    if (!atomic_load(&nccl->aborted))
        nccl_deregister_all(nccl);
    for (int i = nccl->communicator_count - 1; i >= 0 && !atomic_load(&nccl->aborted); i--)
        /* destroys split communicators before the world's */
        nccl->calls->destroy(nccl->communicators[i].comm);
    nccl_release_memory(nccl, &device);
    comm->registered = NULL;
    comm->device_streams = NULL;
    nccl_free(comm);
}

static const struct hd_comm_engine nccl_engine = {
    .kind = HD_COMM_BY_NCCL,
    .waits_on_device = true,
    .registered = nccl_registered,
    .group_open = nccl_group_open,
    .collective_step = nccl_collective_step,
    .send_step = nccl_pair_step,
    .recv_step = nccl_pair_step,
    .collective_missing = nccl_missing,
    .pair_missing = nccl_missing,
    .signature = nccl_signature,
    .has_left = nccl_has_left,
    .latest = nccl_latest,
    .entered = nccl_entered,
    .flight_of = nccl_flight_of,
    .failure = nccl_failure,
    .has_failed = nccl_has_failed,
    .abort = nccl_abort,
    .close = nccl_close,
};

/* Allocates the endpoint and takes ownership of `host`, which is freed on failure. */
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
    comm->doorbell = host->doorbell;
    comm->flight = host->flight;
    comm->spin_max = host->spin_max;
    comm->yielding = host->yielding;
    hd_comm_set_deadline(host, deadline_ms);
    *ret_comm = comm;
    return HD_OK;
}

/* Makes this endpoint continue the flight record of the host endpoint. Later operations of the host
 * endpoint are parts of operations of this one and go to a record that nothing reads. Peers are
 * awaited on the device, where waits are not visible, so the wait slot reports none. */
static void take_record(struct hd_comm *comm)
{
    struct nccl_state *nccl = nccl_of(comm);

    comm->launches = nccl->last_enqueued = nccl->host->launches;
    nccl->host->flight = &nccl->host_flight;
    atomic_store(&nccl->host->wait->reports, 0);
    nccl->host->wait = &nccl->host->own_wait;
}

enum hd_status hd_comm_open_nccl(struct hd_comm *host, const struct hd_comm_device *device,
                                 const struct hd_comm_nccl_options *options,
                                 struct hd_comm **ret_comm)
{
    const struct hd_device_table *calls = device->table->device;
    struct nccl_state *nccl;
    struct hd_comm *comm = NULL;
    struct hd_traits traits;
    void *memory;
    enum hd_status st = new_endpoint(host, options->deadline_ms, &comm);

    if (st)
        return st;
    nccl = nccl_of(comm);
    comm->native_sums = options->native;
    device->table->describe(&(struct hd_backend_options){.threads = 1}, &traits);
    nccl->multiprocessors = traits.multiprocessors;
    st = calls && calls->nccl
             ? calls->nccl(&nccl->calls)
             : hd_err(HD_UNSUPPORTED,
                      "nccl: backend %s was built without NCCL; use one device per job",
                      device->table->name);
    if (!st)
        st = take_piece_bytes(comm, options->piece_bytes);
    if (!st)
        st = hd_comm_streams_open(device, &comm->device_streams);
    if (!st)
        st = calls->event_new(device->backend, false, &nccl->counts_ready);
    if (!st)
        st = calls->event_new(device->backend, false, &nccl->forked);
    if (!st)
        st = calls->event_new(device->backend, false, &nccl->joined);
    if (!st)
        st = nccl_reserve(
            comm, NCCL_STAGING,
            nccl_streams_bytes(nccl->piece_bytes, nccl->scratch_bytes, HD_COMM_COLLECTIVE_STREAMS),
            &memory);
    if (!st) {
        nccl->staging = memory;
        st = hd_comm_alloc_registered(host, sizeof(struct hd_nccl_id), &memory);
    }
    if (!st) {
        nccl->host_memory = memory;
        st = nccl_make_world(comm, options->mesh);
    }
    if (!st) {
        take_record(comm);
        st = nccl_start_watchdog(comm);
    }
    if (!st) {
        *ret_comm = comm;
        return HD_OK;
    }
    if (comm->device_streams) {
        struct hd_error error;

        hd_err_save(st, &error);
        nccl_abort(comm, st, error.message); /* tell the other ranks, so that none waits for this
                                                one */
        nccl_close(comm, true);
        st = hd_err_restore(&error);
    } else {
        nccl_free(comm);
    }
    hd_comm_delete(comm);
    return st;
}
