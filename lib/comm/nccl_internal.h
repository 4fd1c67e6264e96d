/* nccl_internal: what the files of the engine nccl share.
 *
 *   nccl.c         open and close, communicators, the watchdog, failing
 *   nccl_move.c    what an operation puts on its stream
 *
 * Operations are handed to NCCL in the order of their launches, over all streams: so every rank
 * hands them over in the same order, as NCCL asks of communicators that run side by side.
 *
 * Used by: nccl*.c.
 */
#ifndef HD_COMM_NCCL_INTERNAL_H
#define HD_COMM_NCCL_INTERNAL_H

#include <pthread.h>

#include "comm/nccl.h"
#include "comm/side.h"
#include "kernels/nccl.h"

enum {
    NCCL_STAGE = 8 << 20,    /* bytes in which one stream collects what is to be summed */
    NCCL_SCRATCH = 64 << 10, /* bytes beside it: counts and bounds of all members */
    NCCL_COMMS_MAX = HD_COMM_GROUPS_MAX + HD_GROUP_COUNT + 1,
    NCCL_LOOK_MS = 100, /* the watchdog's */
};

/* A communicator and whom it joins. */
struct nccl_joined {
    struct hd_nccl_comm *comm;
    int size;
    int32_t members[HD_COMM_WORLD_MAX];
};

struct nccl_state {
    struct hd_comm *host;
    struct hd_comm_flight host_flight; /* what host notes once its record is this endpoint's */
    const struct hd_nccl_table *calls;
    bool native;
    char *room;           /* device memory: for each stream a stage and a scratch */
    uint64_t handed;      /* the launch that was handed to NCCL last */
    bool grouping;        /* between group_begin and group_end */
    pthread_mutex_t lock; /* around every call of NCCL but poll: the watchdog aborts under it */
    bool aborted;         /* under the lock: communicators are gone */
    struct nccl_joined joined[NCCL_COMMS_MAX]; /* under the lock; [0] the world */
    int joined_count;
    char *host_memory; /* visible memory of `host`: an identity on its way */
    pthread_t watchdog;
    bool watching;
    pthread_mutex_t stop_lock;
    pthread_cond_t stop_cond;
    bool stop;
};

static inline struct nccl_state *nccl_of(const struct hd_comm *comm)
{
    return comm->engine_state;
}

/* What a stream collects in, and its scratch. */
static inline char *nccl_stage(const struct hd_comm_op *op)
{
    return nccl_of(op->group->comm)->room + (size_t)op->stream->name * (NCCL_STAGE + NCCL_SCRATCH);
}

/* ---- nccl.c ---- */

/* The communicator of a group of several, made when it is first needed. */
enum hd_status nccl_need(struct hd_comm_group *group, struct hd_nccl_comm **ret_comm);

/* Takes the lock for a call; HD_ABORTED when communicators are gone, unlocked then. */
enum hd_status nccl_enter(struct nccl_state *nccl);
void nccl_leave(struct nccl_state *nccl);

/* Waits until no call on the communicator is under way any more. `about` is for the story. */
enum hd_status nccl_settle(struct hd_comm *comm, struct hd_nccl_comm *nccl_comm, const char *about);

/* ---- nccl_move.c ---- */

enum hd_status nccl_collective_step(struct hd_comm_op *op, bool *moved);
enum hd_status nccl_pair_step(struct hd_comm_op *op, bool *moved);

#endif
