/* nccl_make: creates communicators.
 *
 * A group call on a non-blocking communicator makes NCCL start a thread; on a blocking one it does
 * not. But the creation of a blocking communicator has no time limit. So a temporary non-blocking
 * communicator, the maker, is created first: its initialisation is polled, with a deadline, and the
 * watchdog can abort it. Blocking communicators are split off the maker, which is a non-blocking
 * call on it with the same deadline; then the maker is destroyed (docs/decisions/nccl.md). */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/nccl_internal.h"

enum { READY_LOOKS = 2000, READY_LOOK_US = 50 };

/* Waits until the last call on the maker, a non-blocking communicator, has finished. `about` names
 * the call in messages. */
static enum hd_status wait_ready(struct hd_comm *comm, struct hd_nccl_comm *maker,
                                 const char *about)
{
    struct nccl_state *nccl = nccl_of(comm);
    const int64_t begin_ms = hd_clock_now_ms();

    for (int looks = 0;; looks++) {
        bool busy = false;
        enum hd_status st = nccl_lock_calls(nccl);

        nccl_note_progress(nccl);
        if (!st) {
            st = nccl->calls->poll(maker, &busy);
            nccl_unlock_calls(nccl);
        }
        if (st)
            return nccl_end_call(comm, st, about);
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

/* ---- the maker ---- */

/* Creates the maker for `group`, a group of the host endpoint; member 0 broadcasts NCCL's unique id
 * to the others. */
static enum hd_status open_maker(struct hd_comm *comm, struct hd_comm_group *group)
{
    struct nccl_state *nccl = nccl_of(comm);
    struct hd_comm_stream *stream = hd_comm_get_stream(nccl->host, HD_COMM_STREAM_GATHER);
    struct hd_nccl_id *id = (struct hd_nccl_id *)nccl->host_memory;
    enum hd_status st = group->index == 0 ? nccl->calls->unique_id(id) : HD_OK;

    if (!st)
        st = hd_comm_launch(group, stream, HD_COMM_BROADCAST,
                            &(struct hd_collective_args){
                                .recv = id, .count = sizeof *id, .dtype = HD_U8, .root = 0});
    if (!st)
        st = hd_comm_wait(stream, hd_comm_record(stream));
    if (!st)
        st = nccl_lock_calls(nccl);
    if (st)
        return st;
    nccl_note_progress(nccl); /* all members have arrived */
    nccl_may_block(nccl);     /* the initialisation allocates device memory */
    nccl->maker.comm = NULL;
    atomic_store(&nccl->maker.is_aborted, false);
    st = nccl->calls->init(id, group->size, group->index, &nccl->maker.comm);
    if (nccl->maker.comm)
        nccl_add_maker(nccl);
    nccl_unlock_calls(nccl);
    return st ? nccl_end_call(comm, st, "ncclCommInitRankConfig")
              : wait_ready(comm, nccl->maker.comm, "ncclCommInitRankConfig");
}

/* Destroys the maker. After a failure it is kept until nccl_abort_all has aborted it. */
static enum hd_status close_maker(struct nccl_state *nccl)
{
    struct hd_nccl_comm *maker = nccl->maker.comm;
    const enum hd_status st = nccl_lock_calls(nccl);

    if (st)
        return st;
    atomic_store(&nccl->has_maker, false);
    nccl_unlock_calls(nccl);
    nccl->calls->destroy(maker);
    return HD_OK;
}

/* ---- communicators ---- */

/* Fills the next entry of `communicators` with these members, without counting it:
 * nccl_add_communicator does. */
static enum hd_status reserve_communicator(struct nccl_state *nccl, const int32_t *members,
                                           int size, struct nccl_communicator **ret_communicator)
{
    struct nccl_communicator *communicator;

    if (nccl->communicator_count == NCCL_COMMS_MAX)
        return hd_err(HD_LIMIT, "nccl: more than %d communicators", (int)NCCL_COMMS_MAX);
    communicator = &nccl->communicators[nccl->communicator_count];
    communicator->direction = 0;
    communicator->size = size;
    communicator->comm = NULL;
    memset(communicator->buffers, 0, sizeof communicator->buffers);
    free(communicator->members); /* left by an attempt that failed */
    communicator->members = calloc((size_t)size, sizeof communicator->members[0]);
    if (!communicator->members)
        return hd_err(HD_NO_MEMORY, "nccl: no memory for a communicator");
    memcpy(communicator->members, members, (size_t)size * sizeof members[0]);
    *ret_communicator = communicator;
    return HD_OK;
}

/* Splits a communicator of these members off the maker. Every rank of the maker must call this; a
 * group of one rank gets no communicator, but its rank takes part in the split. */
static enum hd_status split_off(struct hd_comm *comm, const int32_t *members, int size,
                                uint64_t direction)
{
    struct nccl_state *nccl = nccl_of(comm);
    struct nccl_communicator *communicator = NULL;
    enum hd_status st = reserve_communicator(nccl, members, size, &communicator);
    int index = 0;

    while (index < size && members[index] != comm->rank)
        index++;
    if (!st)
        communicator->direction = direction;
    if (!st)
        st = nccl_lock_calls(nccl);
    if (st)
        return st;
    nccl_may_block(nccl);
    st = nccl->calls->split(nccl->maker.comm, size > 1 ? (int)members[0] : -1, index,
                            hd_comm_nccl_blocks(direction != 0, nccl->multiprocessors),
                            &communicator->comm);
    nccl_unlock_calls(nccl);
    st = st ? nccl_end_call(comm, st, "ncclCommSplit")
            : wait_ready(comm, nccl->maker.comm, "ncclCommSplit");
    if (!st && communicator->comm) {
        (void)pthread_mutex_lock(&nccl->lock);
        nccl_add_communicator(nccl);
        (void)pthread_mutex_unlock(&nccl->lock);
        st = nccl_register_all(comm, communicator);
    }
    return st;
}

static bool same_members(const struct nccl_communicator *communicator,
                         const struct hd_comm_group *group)
{
    return communicator->comm && communicator->direction == (group->is_channel ? group->id : 0) &&
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
        st = hd_comm_open_group(nccl->host, group->name, group->members, group->size, &host_group);
        nccl_note_progress(nccl);
        if (!st)
            st = open_maker(comm, host_group);
        if (!st)
            st = split_off(comm, group->members, group->size, group->is_channel ? group->id : 0);
        if (!st)
            st = close_maker(nccl);
        if (st)
            return st;
    }
    return hd_err(HD_INTERNAL, "nccl: group %s has no communicator", group->name);
}

/* Makes one split for each distinct partition of the world into groups of the mesh. Every rank
 * makes the same splits in the same order, also for groups of size 1. */
static enum hd_status split_mesh(struct hd_comm *comm, const struct hd_mesh *mesh)
{
    enum hd_group_name names[HD_GROUP_COUNT];
    const int count = hd_mesh_divisions(mesh, names);
    enum hd_status st = HD_OK;

    for (int g = 0; g < count && !st; g++) {
        const struct hd_mesh_group where = hd_mesh_find_group(mesh, names[g], comm->rank);
        int32_t *members = calloc((size_t)where.size, sizeof members[0]);

        if (!members)
            return hd_err(HD_NO_MEMORY, "nccl: no memory for a group");
        for (int32_t m = 0; m < where.size; m++)
            members[m] = hd_mesh_member(&where, m);
        st = split_off(comm, members, where.size, 0);
        free(members);
    }
    return st;
}

enum hd_status nccl_make_world(struct hd_comm *comm, const struct hd_mesh *mesh)
{
    struct nccl_state *nccl = nccl_of(comm);
    int32_t *all_ranks = calloc((size_t)comm->world, sizeof *all_ranks);
    struct hd_comm_group *world;
    enum hd_status st;

    if (!all_ranks)
        return hd_err(HD_NO_MEMORY, "nccl: no memory for the world");
    for (int32_t r = 0; r < comm->world; r++)
        all_ranks[r] = r;
    st = hd_comm_open_group(nccl->host, "nccl", all_ranks, comm->world, &world);
    if (!st)
        st = open_maker(comm, world);
    if (!st)
        st = split_off(comm, all_ranks, comm->world, 0);
    free(all_ranks);
    if (!st && mesh)
        st = split_mesh(comm, mesh);
    return st ? st : close_maker(nccl);
}
