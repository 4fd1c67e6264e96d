/* shm_layout: the layout of the control block in shared memory.
 *
 * Every field has one writer. A rank writes only its own area, with three exceptions: a peer marks
 * a slot of an outbox as taken, any process may ring a doorbell, and the parent writes until when
 * waits have no deadline (patient_until_ms). So there are no locks, and a rank that dies at any
 * instruction cannot block the others.
 *
 * Invariants
 *  1. An entry's `stamp` only grows. It is 4 * seq + phase; the entry of collective `seq` of a
 *     group is ring[seq % SHM_RING]. A member whose stamp is at least 4 * seq + LEFT has finished
 *     with `seq`, also when the entry has been reused for seq + SHM_RING since.
 *  2. The rest of an entry is written before its stamp becomes ENTERED. Peers read it only until
 *     their own stamp is LEFT. A rank reuses an entry only when its old stamp is COMPLETE, which
 *     means that every member has LEFT.
 *  3. Doorbells follow the protocol of struct hd_comm_doorbell.
 *  4. A reason is written once, by the process that set `claimed`, before `failure` points to it.
 *     `failure` changes once, from 0.
 *
 * Used by: shm*.c.   Uses: libc. */
#ifndef HD_COMM_SHM_LAYOUT_H
#define HD_COMM_SHM_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#include "comm/comm_internal.h"
#include "comm/shm_control.h"

enum {
    SHM_RING = 16,   /* most collectives of one group that are in flight, on several streams */
    SHM_OUTBOX = 32, /* most sends from one rank to another that are in flight */
    SHM_VERSION = 8,
};
#define SHM_MAGIC UINT64_C(0x316d68732d6c6468) /* the bytes "hdl-shm1" */

/* Phases of a member in one collective. SHM_COMPLETE: all members have left; only the owner of an
 * entry sees this phase. */
enum shm_phase { SHM_NONE, SHM_ENTERED, SHM_LEFT, SHM_COMPLETE };

/* One member's arguments of one collective of a group. Offsets are in bytes from the start of the
 * member's registered region. With the engine local, all uint64_t except `stamp` are addresses in
 * the one process. */
struct shm_entry {
    _Alignas(64) _Atomic uint64_t stamp;
    uint64_t send_offset, recv_offset;
    uint64_t send_counts, ready_event, done_event; /* engine local only: address of the member's
                                                      send counts; its ready and done events
                                                      (local.c) */
    struct hd_comm_signature signature;
};

struct shm_channel {
    _Alignas(64) _Atomic uint64_t id; /* id of the group; 0: free. The area's owner sets it last */
    struct shm_entry ring[SHM_RING];
};

enum shm_post { SHM_FREE, SHM_POSTED, SHM_TAKEN };

/* One send in flight, in the outbox of its sender. The sender sets its state to FREE and POSTED,
 * the receiver sets TAKEN (and done_event). */
struct shm_slot {
    _Alignas(64) _Atomic uint32_t post;
    uint32_t dtype;
    uint64_t group_id, seq, offset;
    uint64_t ready_event, done_event; /* engine local only: events of the sender and of the receiver
                                         (local.c) */
    int64_t count;
};

struct shm_area {
    _Alignas(64) struct hd_comm_doorbell doorbell;
    _Alignas(64) _Atomic uint32_t attached, left;
    _Atomic uint32_t enqueuing; /* engine local: nonzero while this rank may be enqueuing work on
                                   its peers' memory */
    _Atomic uint64_t registered_bytes; /* size of the region; 0: not allocated yet */
    struct hd_comm_flight flight;
    struct hd_comm_wait_slot wait;
    struct shm_channel channels[HD_COMM_GROUPS_MAX];
    /* In memory after the area: slots [world][SHM_OUTBOX], by receiver; then int32_t counts of
     * all_to_all_v [HD_COMM_GROUPS_MAX][SHM_RING][world]. */
};

struct shm_reason {
    _Atomic uint32_t claimed;
    uint32_t status;
    char text[HD_SHM_REASON_MAX];
};

struct shm_block {
    uint64_t magic;
    uint32_t version, world;
    uint64_t area_bytes;         /* shm_area_bytes of the build that created the block */
    _Atomic uint32_t failure;    /* 0: none; else 1 + the index of the first reason */
    struct shm_reason reasons[]; /* [2 * world + 1]; the areas of all ranks follow in memory */
};

/* Return the index in `reasons`: entries 0 to world - 1 are failures that a rank reported itself,
 * the next `world` are deaths of ranks, the last one is the parent's abort. */
static inline int shm_reason_of_death(int world, int rank)
{
    return world + rank;
}

static inline int shm_reason_of_parent(int world)
{
    return 2 * world;
}

static inline size_t shm_whole_lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static inline size_t shm_area_bytes(int world)
{
    const size_t ranks = (size_t)world;

    return sizeof(struct shm_area) + ranks * SHM_OUTBOX * sizeof(struct shm_slot) +
           shm_whole_lines(HD_COMM_GROUPS_MAX * SHM_RING * ranks * sizeof(int32_t));
}

static inline size_t shm_areas_at(int world)
{
    return shm_whole_lines(sizeof(struct shm_block) +
                           (2 * (size_t)world + 1) * sizeof(struct shm_reason));
}

static inline size_t shm_block_bytes(int world)
{
    return shm_areas_at(world) + (size_t)world * shm_area_bytes(world);
}

static inline struct shm_area *shm_block_area(const struct shm_block *block, int rank)
{
    const int world = (int)block->world;

    return (struct shm_area *)((char *)block + shm_areas_at(world) +
                               (size_t)rank * shm_area_bytes(world));
}

/* Returns the slots [SHM_OUTBOX] of the sends from a rank (the owner of `area`) to one receiver. */
static inline struct shm_slot *shm_outbox(const struct shm_area *area, int receiver)
{
    return (struct shm_slot *)(area + 1) + (size_t)receiver * SHM_OUTBOX;
}

/* Returns the all_to_all_v counts [world] that a rank (the owner of `area`) sends with one entry of
 * one of its channels. */
static inline int32_t *shm_counts(const struct shm_area *area, int world,
                                  const struct shm_channel *channel, uint64_t seq)
{
    const size_t place = (size_t)(channel - area->channels) * SHM_RING + (size_t)(seq % SHM_RING);

    return (int32_t *)(shm_outbox(area, 0) + (size_t)world * SHM_OUTBOX) + place * (size_t)world;
}

void shm_block_init(struct shm_block *block, int world); /* the memory must be zeroed */

/* Returns HD_INVALID if the descriptor is not a control block of this build for `world` ranks. */
enum hd_status shm_block_check(int control_fd, int world);

/* Records a failure in the control block, if it is the job's first, and wakes all ranks. */
void shm_fail(struct shm_block *block, int reason_index, enum hd_status st, const char *text);

/* Returns HD_OK, or the status of the job's first failure; then sets the index of its reason and
 * its text, which lies in the block. */
enum hd_status shm_failure(const struct shm_block *block, int *ret_reason_index,
                           const char **ret_text);

#endif
