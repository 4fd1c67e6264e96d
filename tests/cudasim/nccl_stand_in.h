/* nccl_stand_in: what tests ask of the stand-in for NCCL beside NCCL's own calls.
 *
 * It joins ranks that are threads of one process. Communicators never block: while they come up
 * they are in progress a few looks longer than they need to be. Then a call is through at once, as
 * NCCL's are once it is connected, and lazy streams wait for the peers: a peer that never comes
 * keeps them standing until the communicator is aborted, and what they then leave behind is
 * garbage.
 *
 * Threads: any.
 */
#ifndef HD_CUDASIM_NCCL_STAND_IN_H
#define HD_CUDASIM_NCCL_STAND_IN_H

#include <stdbool.h>

enum hd_nccl_defect {
    HD_NCCL_WELL,
    HD_NCCL_BROKEN,  /* every communicator of the rank reports ncclRemoteError */
    HD_NCCL_STUCK,   /* what the rank posts never meets what its peers post */
    HD_NCCL_BLOCKED, /* calls of the rank do not return until another thread aborts one of its
                        communicators: the device's queue is full */
};

/* Of the rank with this number in its world, from now on; HD_NCCL_WELL mends it. */
void hd_nccl_stand_in_defect(int rank, enum hd_nccl_defect defect);

/* Whether calls are in progress until the peers have made theirs, as NCCL's are while it connects;
 * so they are anyway where streams are eager. Call it while no communicator is open. */
void hd_nccl_stand_in_wait_on_host(bool wanted);

int hd_nccl_stand_in_splits(void); /* splits that all ranks of their parent have made, ever */
int hd_nccl_stand_in_aborts(void); /* communicators aborted, ever */
int hd_nccl_stand_in_sums(void);   /* calls that reduce, of all ranks, ever */
int hd_nccl_stand_in_open(void);   /* communicators that are neither destroyed nor aborted */

#endif
