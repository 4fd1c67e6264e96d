/* shm_internal: shared by the files of the engine shm.
 *
 *   shm.c             attach, registered memory, failures
 *   shm_collective.c  one collective of a group, step by step
 *   shm_pair.c        one send or receive, step by step
 *   shm_control.c     the parent's side, and the failures in the control block
 *   shm_block.c       the header of the control block
 *
 * Used by: shm*.c. */
#ifndef HD_COMM_SHM_INTERNAL_H
#define HD_COMM_SHM_INTERNAL_H

#include "base/pieces.h"
#include "comm/comm_internal.h"
#include "comm/shm_layout.h"

/* Maximum of bytes that one step of an operation reads; it takes some tens of microseconds. */
enum { SHM_STEP_BYTES = HD_PIECE(128 * 1024, 1024) };

struct shm_peer {
    int fd;
    char *base; /* mapping of the rank's registered memory; NULL: this process has not mapped it
                   yet */
    uint64_t bytes;
};

struct shm_state {
    struct shm_block *block;
    size_t block_bytes;
    struct shm_area *area;    /* area of this rank in the control block */
    struct comm_local *local; /* engine local (registered memory is device memory); NULL: engine
                                 shm */
    struct shm_peer peers[];  /* [world]; registered memory of each rank */
};

static inline struct shm_state *shm_of(const struct hd_comm *comm)
{
    return comm->engine_state;
}

static inline struct shm_area *shm_area_of(const struct hd_comm *comm, int rank)
{
    return shm_block_area(shm_of(comm)->block, rank);
}

/* Sets *ret_at to the address in this process of `bytes` at `offset` (in bytes) of a rank's
 * registered memory, and maps that memory on first use. HD_CORRUPT: the range is outside of that
 * memory. */
enum hd_status shm_reach(struct hd_comm *comm, int rank, uint64_t offset, int64_t bytes,
                         char **ret_at);

/* Returns the offset in bytes of a buffer from the start of this rank's registered memory; 0 for
 * NULL. */
static inline uint64_t shm_offset(const struct hd_comm *comm, const char *at)
{
    return at ? (uint64_t)(at - comm->registered) : 0;
}

/* Execute one step of an operation; *moved becomes true when the operation made progress. */
enum hd_status shm_collective_step(struct hd_comm_op *op, bool *moved);
enum hd_status shm_send_step(struct hd_comm_op *op, bool *moved);
enum hd_status shm_recv_step(struct hd_comm_op *op, bool *moved);

/* Returns the signature of a member that has entered the collective of `op`. */
const struct hd_comm_signature *shm_signature(const struct hd_comm_op *op, int member);
const int32_t *shm_send_counts(const struct hd_comm_op *op, int member);

/* Return the rank that an op waits for, -1: none; *ret_what says what that rank has not done. */
int shm_collective_missing(struct hd_comm_op *op, const char **ret_what);
int shm_pair_missing(struct hd_comm_op *op, const char **ret_what);
uint64_t shm_entered(struct hd_comm_group *group, int member);

/* Opens this rank's side of a group. */
enum hd_status shm_group_open(struct hd_comm_group *group);

/* ---- shm.c and shm_collective.c, also for the engine local ---- */

enum hd_status shm_join(const struct hd_comm_engine *engine, int control_fd, const int *rank_fds,
                        int rank, int world, int64_t deadline_ms, struct hd_comm **ret_comm);
void shm_close(struct hd_comm *comm, bool clean);
enum hd_status shm_check_failure(struct hd_comm *comm);
void shm_abort(struct hd_comm *comm, enum hd_status st, const char *reason);
bool shm_has_failed(const struct hd_comm *comm);
const struct hd_comm_flight *shm_flight_of(const struct hd_comm *comm, int rank);
bool shm_has_left(const struct hd_comm *comm, int rank);
void shm_describe_latest(struct hd_comm *comm, int rank, char *ret_text, size_t size_bytes);
struct shm_entry *shm_entry_of(const struct hd_comm_op *op, int member);

/* The engine functions shared by shm, self and local; `registered` and `close` differ. */
#define SHM_ENGINE_CALLS                                                                  \
    .group_open = shm_group_open, .collective_step = shm_collective_step,                 \
    .send_step = shm_send_step, .recv_step = shm_recv_step,                               \
    .collective_missing = shm_collective_missing, .pair_missing = shm_pair_missing,       \
    .signature = shm_signature, .send_counts = shm_send_counts, .has_left = shm_has_left, \
    .latest = shm_describe_latest, .entered = shm_entered, .flight_of = shm_flight_of,    \
    .failure = shm_check_failure, .has_failed = shm_has_failed, .abort = shm_abort

/* ---- local.c: the steps of an operation that touch memory, when it is device memory ---- */

enum hd_status local_enter(const struct hd_comm_op *op, struct shm_entry *entry);
enum hd_status local_move(struct hd_comm_op *op);
enum hd_status local_finish(struct hd_comm_op *op);
enum hd_status local_post(const struct hd_comm_op *op, struct shm_slot *slot);
enum hd_status local_take(struct hd_comm_op *op, struct shm_slot *slot);
enum hd_status local_taken(const struct hd_comm_op *op, const struct shm_slot *slot);

#endif
