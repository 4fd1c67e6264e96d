/* The engine shm: ranks of one node on shared memory; and the engine self: a world of one, with the
 * code of shm on private memory. There is no engine thread: a rank steps its own operations when it
 * launches, polls or waits. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/shm_internal.h"

enum { SELF_DEADLINE_MS = 5000 }; /* only a receive without a matching send can wait */

/* ---- failures ---- */

/* Describes the last operation of a rank, from its flight record. */
void shm_describe_latest(struct hd_comm *comm, int rank, char *ret_text, size_t size_bytes)
{
    const struct shm_area *area = shm_area_of(comm, rank);
    struct hd_flight_record records[HD_FLIGHT_MAX];
    const int count = hd_comm_flight_read(&area->flight, records);
    char what[128];

    if (!atomic_load(&area->attached)) {
        (void)snprintf(ret_text, size_bytes, "rank %d has not attached yet", rank);
    } else if (count == 0) {
        (void)snprintf(ret_text, size_bytes, "rank %d has launched nothing yet", rank);
    } else {
        hd_flight_describe(&records[count - 1], what, sizeof what);
        (void)snprintf(ret_text, size_bytes, "the latest of rank %d is %s", rank, what);
    }
}

/* Returns HD_OK, or the job's first failure, and makes it sticky. */
enum hd_status shm_check_failure(struct hd_comm *comm)
{
    const char *text;
    int index;
    enum hd_status st;

    if (comm->failure.status)
        return hd_err_restore(&comm->failure);
    st = shm_failure(shm_of(comm)->block, &index, &text);
    if (!st)
        return HD_OK;
    if (index == shm_reason_of_parent(comm->world))
        st = hd_err(st, "stopped by the supervisor: %s", text);
    else if (index >= comm->world)
        st = hd_err(st, "rank %d died first: %s", index - comm->world, text);
    else
        st = hd_err(st, "rank %d failed first: %s", index, text);
    return hd_comm_keep_failure(comm, st);
}

bool shm_has_failed(const struct hd_comm *comm)
{
    return atomic_load(&shm_of(comm)->block->failure) != 0;
}

const struct hd_comm_flight *shm_flight_of(const struct hd_comm *comm, int rank)
{
    return &shm_area_of(comm, rank)->flight;
}

void shm_abort(struct hd_comm *comm, enum hd_status st, const char *reason)
{
    shm_fail(shm_of(comm)->block, comm->rank, st, reason);
}

/* ---- registered memory ---- */

static enum hd_status map_registered(struct hd_comm *comm, size_t size_bytes, int fd,
                                     void **ret_base)
{
    const enum hd_status st = hd_comm_map_region(size_bytes, fd, ret_base);

    if (!st)
        atomic_store(&shm_of(comm)->area->registered_bytes, hd_comm_whole_pages(size_bytes));
    return st;
}

static enum hd_status self_registered(struct hd_comm *comm, size_t size_bytes, void **ret_base)
{
    return map_registered(comm, size_bytes, -1, ret_base);
}

static enum hd_status shm_registered(struct hd_comm *comm, size_t size_bytes, void **ret_base)
{
    const int fd = shm_of(comm)->peers[comm->rank].fd;

    /* seal the size, so that the memory cannot be truncated while peers have it mapped */
    if (ftruncate(fd, (off_t)hd_comm_whole_pages(size_bytes)) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
        return hd_err(HD_NO_MEMORY, "comm: cannot size the registered memory of rank %d to %zu: %s",
                      comm->rank, size_bytes, strerror(errno));
    return map_registered(comm, size_bytes, fd, ret_base);
}

enum hd_status shm_reach(struct hd_comm *comm, int rank, uint64_t offset, int64_t bytes,
                         char **ret_at)
{
    struct shm_peer *peer = &shm_of(comm)->peers[rank];

    if (bytes == 0) {
        *ret_at = NULL;
        return HD_OK;
    }
    if (rank == comm->rank) {
        *ret_at = comm->registered + offset;
        return HD_OK;
    }
    if (!peer->base) {
        const uint64_t size = atomic_load(&shm_area_of(comm, rank)->registered_bytes);
        void *base = size == 0 ? MAP_FAILED
                               : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, peer->fd, 0);

        if (base == MAP_FAILED)
            return hd_comm_fail(
                comm, HD_NO_MEMORY, "cannot map the registered memory of rank %d (%llu bytes): %s",
                rank, (unsigned long long)size, size ? strerror(errno) : "it has allocated none");
        peer->base = base;
        peer->bytes = size;
        (void)close(peer->fd);
        peer->fd = -1;
    }
    if (offset > peer->bytes || (uint64_t)bytes > peer->bytes - offset)
        return hd_comm_fail(comm, HD_CORRUPT,
                            "rank %d announced %lld bytes at offset %llu of its %llu bytes of "
                            "registered memory",
                            rank, (long long)bytes, (unsigned long long)offset,
                            (unsigned long long)peer->bytes);
    *ret_at = peer->base + offset;
    return HD_OK;
}

bool shm_has_left(const struct hd_comm *comm, int rank)
{
    return atomic_load(&shm_area_of(comm, rank)->left);
}

/* ---- opening and closing ---- */

static void unmap(struct hd_comm *comm)
{
    struct shm_state *shm = shm_of(comm);

    for (int r = 0; r < comm->world; r++) {
        if (shm->peers[r].base)
            (void)munmap(shm->peers[r].base, shm->peers[r].bytes);
        if (shm->peers[r].fd >= 0)
            (void)close(shm->peers[r].fd);
    }
    if (comm->registered)
        (void)munmap(comm->registered, hd_comm_whole_pages(comm->registered_bytes));
    if (shm->block != MAP_FAILED)
        (void)munmap(shm->block, shm->block_bytes);
    free(shm);
    comm->engine_state = NULL;
}

void shm_close(struct hd_comm *comm, bool clean)
{
    struct shm_state *shm = shm_of(comm);

    if (!clean)
        shm_abort(comm, HD_ABORTED, "it closed its endpoint with operations in flight");
    atomic_store(&shm->area->left, 1);
    for (int r = 0; r < comm->world; r++)
        hd_comm_doorbell_ring(&shm_area_of(comm, r)->doorbell);
    unmap(comm);
}

static const struct hd_comm_engine shm_engine = {
    .kind = HD_COMM_BY_SHM,
    .registered = shm_registered,
    SHM_ENGINE_CALLS,
    .close = shm_close,
};

static const struct hd_comm_engine self_engine = {
    .kind = HD_COMM_BY_SELF,
    .registered = self_registered,
    SHM_ENGINE_CALLS,
    .close = shm_close,
};

/* Allocates an endpoint of the given engine and its state; maps no shared memory. */
static enum hd_status open_engine(const struct hd_comm_engine *engine, int rank, int world,
                                  int64_t deadline_ms, struct hd_comm **ret_comm)
{
    struct shm_state *shm;
    struct hd_comm *comm;
    enum hd_status st;

    st = hd_comm_new(engine, rank, world, deadline_ms, &comm);
    if (st)
        return st;
    shm = calloc(1, sizeof *shm + (size_t)world * sizeof shm->peers[0]);
    if (!shm) {
        hd_comm_delete(comm);
        return hd_err(HD_NO_MEMORY, "comm: no memory for an endpoint");
    }
    for (int r = 0; r < world; r++)
        shm->peers[r].fd = -1;
    shm->block = MAP_FAILED;
    shm->block_bytes = shm_block_bytes(world);
    hd_comm_set_spin(comm, world);
    comm->engine_state = shm;
    *ret_comm = comm;
    return HD_OK;
}

static enum hd_status attach(struct hd_comm *comm, int control_fd, const int *rank_fds)
{
    struct shm_state *shm = shm_of(comm);
    enum hd_status st = shm_block_check(control_fd, comm->world);

    if (st)
        return st;
    shm->block = mmap(NULL, shm->block_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, control_fd, 0);
    if (shm->block == MAP_FAILED)
        return hd_err(HD_NO_MEMORY, "shm: cannot map the control block: %s", strerror(errno));
    shm->area = shm_area_of(comm, comm->rank);
    comm->doorbell = &shm->area->doorbell;
    comm->flight = &shm->area->flight;
    comm->wait = &shm->area->wait;
    atomic_store(&comm->wait->reports, 1);
    for (int r = 0; r < comm->world; r++) {
        shm->peers[r].fd = fcntl(rank_fds[r], F_DUPFD_CLOEXEC, 3);
        if (shm->peers[r].fd < 0)
            return hd_err(HD_IO, "shm: the descriptor %d of rank %d: %s", rank_fds[r], r,
                          strerror(errno));
    }
    if (atomic_exchange(&shm->area->attached, 1))
        return hd_err(HD_CONFLICT, "shm: rank %d is attached already", comm->rank);
    return HD_OK;
}

enum hd_status shm_join(const struct hd_comm_engine *engine, int control_fd, const int *rank_fds,
                        int rank, int world, int64_t deadline_ms, struct hd_comm **ret_comm)
{
    struct hd_comm *comm = NULL;
    enum hd_status st = hd_comm_check_world(engine->kind, rank, world);

    if (st)
        return st;
    st = open_engine(engine, rank, world, deadline_ms, &comm);
    if (st)
        return st;
    st = attach(comm, control_fd, rank_fds);
    if (st) {
        unmap(comm);
        hd_comm_delete(comm);
        return st;
    }
    *ret_comm = comm;
    return HD_OK;
}

enum hd_status hd_comm_open_shm(int control_fd, const int *rank_fds, int rank, int world,
                                int64_t deadline_ms, struct hd_comm **ret_comm)
{
    return shm_join(&shm_engine, control_fd, rank_fds, rank, world, deadline_ms, ret_comm);
}

enum hd_status hd_comm_open_self(struct hd_comm **ret_comm)
{
    struct hd_comm *comm = NULL;
    struct shm_state *shm;
    enum hd_status st;

    st = open_engine(&self_engine, 0, 1, SELF_DEADLINE_MS, &comm);
    if (st)
        return st;
    shm = shm_of(comm);
    shm->block =
        mmap(NULL, shm->block_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (shm->block == MAP_FAILED) {
        st = hd_err(HD_NO_MEMORY, "comm: cannot map an endpoint: %s", strerror(errno));
        unmap(comm);
        hd_comm_delete(comm);
        return st;
    }
    shm_block_init(shm->block, 1);
    shm->area = shm_area_of(comm, 0);
    comm->doorbell = &shm->area->doorbell;
    comm->flight = &shm->area->flight;
    atomic_store(&shm->area->attached, 1);
    *ret_comm = comm;
    return HD_OK;
}
