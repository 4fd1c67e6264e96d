/* nccl_internal: what the files of the engine nccl share.
 *
 *   nccl.c         open and close, communicators
 *   nccl_move.c    what an operation puts on its stream
 *   nccl_watch.c   the watchdog, failing
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
    NCCL_LOOK_MS = 100,     /* the watchdog's */
    NCCL_BLOCKED_MS = 2500, /* so long a call of the owner may take while others wait to abort */
    NCCL_GRACE_MS = 2000,   /* the owner's own deadlines come before the watchdog's of the owner */
};

/* A communicator and whom it joins. */
struct nccl_joined {
    struct hd_nccl_comm *comm;
    int size;
    int32_t members[HD_COMM_NCCL_RANKS_MAX];
    _Atomic bool gone; /* somebody aborts it */
};

struct nccl_state {
    struct hd_comm *host;
    struct hd_comm_flight host_flight; /* what host notes once its record is this endpoint's */
    const struct hd_nccl_table *calls;
    char *room;           /* device memory: for each stream a stage and a scratch */
    uint64_t handed;      /* the launch that was handed to NCCL last */
    bool grouping;        /* between group_begin and group_end */
    pthread_mutex_t lock; /* around every call of NCCL, and around a group of calls */
    _Atomic bool aborted; /* communicators are gone, or going; set without the lock */
    /* since when the owner is in a call that may not return while the device's queue is full; in
     * what an operation puts there; 0: it is not. Whoever aborts does not wait for it. */
    _Atomic int64_t calling_since_ms, handing_since_ms;
    /* when a stream of the device was last seen to move; since when the driver is being asked for
     * that, 0: it is not */
    _Atomic int64_t moved_ms, asking_since_ms;
    _Atomic int handing_on; /* of that operation: its stream, and its launch */
    _Atomic uint64_t handing_launch;
    struct hd_event *counted;                  /* the counts of an all_to_all_v are there */
    struct nccl_joined joined[NCCL_COMMS_MAX]; /* grows under the lock; [0] the world */
    _Atomic int joined_count;
    char *host_memory; /* visible memory of `host`: an identity on its way */
    pthread_t watchdog, listener;
    bool watching, listening;
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

/* HD_OK or the failure that the host endpoint knows; composes its story once. */
enum hd_status nccl_failure(struct hd_comm *comm);
bool nccl_has_failed(const struct hd_comm *comm); /* any thread */

/* Waits until no call on the communicator is under way any more. `about` is for the story. */
enum hd_status nccl_settle(struct hd_comm *comm, struct hd_nccl_comm *nccl_comm, const char *about);

/* ---- nccl_watch.c ---- */

/* Takes the lock for calls; HD_ABORTED when communicators are gone, unlocked then. */
enum hd_status nccl_enter(struct nccl_state *nccl);
void nccl_leave(struct nccl_state *nccl);
/* Under the lock: the next call puts something on the device, and may wait for room there. */
void nccl_may_block(struct nccl_state *nccl);

/* The owner is alive in an operation that it hands over: the watchdog's patience begins anew. */
void nccl_note_life(struct nccl_state *nccl);

/* Whether the owner's call may be aborted beside: it has been in the same one for long, and the
 * device has moved nowhere meanwhile, as when its queue is full of what only an abort ends. */
static inline bool nccl_is_blocked(const struct nccl_state *nccl, int64_t now_ms)
{
    const int64_t since_ms = atomic_load(&nccl->calling_since_ms);

    return since_ms && now_ms - since_ms >= NCCL_BLOCKED_MS &&
           now_ms - atomic_load(&nccl->moved_ms) >= NCCL_BLOCKED_MS;
}

/* Any thread. What is on the device's streams ends; nothing more is put there. */
void nccl_abort_all(struct hd_comm *comm);
void nccl_abort(struct hd_comm *comm, enum hd_status st, const char *reason);

/* Under the lock, by the owner: a communicator has come up, or begun to. Behind an abort it goes at
 * once. */
void nccl_add_joined(struct nccl_state *nccl);

enum hd_status nccl_start_watchdog(struct hd_comm *comm);
void nccl_stop_watchdog(struct nccl_state *nccl);

/* ---- nccl_move.c ---- */

enum hd_status nccl_collective_step(struct hd_comm_op *op, bool *moved);
enum hd_status nccl_pair_step(struct hd_comm_op *op, bool *moved);

#endif
