/* nccl_state: what the files of the emulated NCCL share: communicators, and the calls on them.
 *
 * nccl.c has communicators, from init to abort, and the controls for tests; nccl_calls.c has groups
 * of calls and the operations.
 *
 * Threads: any; hd_nccl.lock protects everything here.
 */
#ifndef HD_CUDASIM_NCCL_STATE_H
#define HD_CUDASIM_NCCL_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/nccl_api.h"
#include "nccl_stand_in.h"
#include "nccl_wait.h"
#include "nccl_wire.h"

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
    int blocks[RANKS_MAX];
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
    int child_blocks;
    int rank, looks, splits;
    int splitting; /* splits in progress */
    struct post *posts;
    struct kept *kept;
    struct part_kept *parts;
    bool finalizing;
    int blocks; /* of its kernels, at most */
    /* its connections, and the memory that they take (hd_nccl_stand_in_charge) */
    bool has_ring, has_trees;
    bool *sends_to, *receives_from; /* [size]; NULL: none yet */
    int device;
    int64_t charged_bytes;
    cudaStream_t last_stream; /* of its last group of calls; NULL: none yet */
    ncclResult_t error;
};

/* One per process. */
struct hd_nccl {
    pthread_mutex_t lock;
    struct joined *all;
    enum hd_nccl_defect defects[RANKS_MAX];
    int aborts_of[RANKS_MAX]; /* by rank of the world */
    struct hd_nccl_charges charges;
    int multiprocessors; /* of each rank's device; 0: no limit */
    bool waits_on_host, between_processes, had_defects;
    int ids;
    int splits_done, aborts, open_comms, sums, groups, turns, threads; /* nccl_stand_in.h */
};
extern struct hd_nccl hd_nccl;

/* All under the lock: */

int hd_nccl_world_rank(const struct ncclComm *comm);
enum hd_nccl_defect hd_nccl_defect_of(const struct ncclComm *comm);

/* True while a call on it, or its connecting, is in progress. */
bool hd_nccl_is_coming_through(const struct ncclComm *comm);

/* Takes the memory of the connections that a call makes, if it is the first one that needs them:
 * with a peer (sends and receives), or of a ring or trees. False: the device has not so much. Not
 * under the lock. */
bool hd_nccl_connect_peer(ncclComm_t comm, bool sends, int peer);
bool hd_nccl_connect_ring(ncclComm_t comm, bool with_trees);

/* Blocks of a kernel of the communicator. */
int hd_nccl_blocks(const struct ncclComm *comm, bool pairs);

/* A new entry of what is freed with the communicator. */
struct kept *hd_nccl_keep(ncclComm_t comm);

#endif
