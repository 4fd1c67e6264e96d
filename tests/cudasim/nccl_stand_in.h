/* nccl_stand_in: controls for tests of the emulated NCCL (nccl.c), besides NCCL's own functions.
 *
 * The ranks are threads of one process, or each is a process (nccl_wire.h). Communicators are made
 * non-blocking: a new one stays in progress for a few polls more than necessary. Children may be
 * blocking. Later calls finish at once, as NCCL's do when it is connected, and lazy streams wait
 * for the peers. If a peer never calls, they wait until the communicator is aborted; then they
 * leave garbage in the buffers.
 *
 * Threads: any.
 */
#ifndef HD_CUDASIM_NCCL_STAND_IN_H
#define HD_CUDASIM_NCCL_STAND_IN_H

#include <stdbool.h>
#include <stdint.h>

enum hd_nccl_defect {
    HD_NCCL_WELL,
    HD_NCCL_BROKEN,  /* every communicator of the rank reports ncclRemoteError */
    HD_NCCL_STUCK,   /* sends and receives of the rank are never matched with its peers' */
    HD_NCCL_BLOCKED, /* calls of the rank do not return until another thread aborts one of its
                        communicators, as if the device's queue were full */
};

/* Sets the defect of the rank with this number in its world; HD_NCCL_WELL removes it. */
void hd_nccl_stand_in_defect(int rank, enum hd_nccl_defect defect);

/* wanted: calls are in progress, or block, until the peers have called, too, as while NCCL connects
 * (default false). Streams that are not lazy always work so. Call it while no communicator is open.
 */
void hd_nccl_stand_in_wait_on_host(bool wanted);

/* From now on every rank is a process. HD_CUDASIM_NCCL_VERSION: the version that the library says.
 */
void hd_nccl_stand_in_between_processes(void);

/* From now on NCCL takes device memory for each connection and channel, when it makes it: for the
 * sending and for the receiving end, and `base_bytes` for each communicator that has a connection.
 * Communicators have a channel per block (maxCTAs; 32 if it is not set), sends and receives at most
 * NCCL_MAX_P2P_NCHANNELS. An abort or destruction gives all back. {0}: it takes none (default). */
struct hd_nccl_charges {
    int64_t send_bytes, receive_bytes, base_bytes;
};
void hd_nccl_stand_in_charge(struct hd_nccl_charges charges);

/* From now on each rank's device has `count` multiprocessors, and a kernel of NCCL holds one for
 * each of its blocks from when it starts until it has ended: it starts when so many are free. 0: any
 * number of kernels run (default). */
void hd_nccl_stand_in_multiprocessors(int count);

/* Counters of all ranks of this process, since the process began: */
int hd_nccl_stand_in_splits(void); /* splits that all ranks of the parent have called */
int hd_nccl_stand_in_aborts(void); /* aborted communicators */
int hd_nccl_stand_in_sums(void);   /* calls that reduce */
int hd_nccl_stand_in_groups(
    void); /* groups of calls, or calls outside of a group, that move bytes */
int hd_nccl_stand_in_turns(void); /* such groups on another stream than their communicator's last */
int hd_nccl_stand_in_registered(void); /* registrations of memory */
int hd_nccl_stand_in_threads(void);    /* groups of calls on non-blocking communicators */
int hd_nccl_stand_in_held(int rank);   /* multiprocessors that kernels of NCCL hold now */
int hd_nccl_stand_in_open(void); /* communicators that are neither destroyed nor aborted now */

#endif
