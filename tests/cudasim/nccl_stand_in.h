/* nccl_stand_in: what tests ask of the stand-in for NCCL beside NCCL's own calls.
 *
 * It joins ranks that are threads of one process. Communicators never block: they are in progress a
 * few looks longer than they need to be, and a call is until its peers have made theirs.
 *
 * Threads: any.
 */
#ifndef HD_CUDASIM_NCCL_STAND_IN_H
#define HD_CUDASIM_NCCL_STAND_IN_H

enum hd_nccl_defect {
    HD_NCCL_WELL,
    HD_NCCL_BROKEN, /* every communicator of the rank reports ncclRemoteError */
    HD_NCCL_STUCK,  /* what the rank posts never meets what its peers post */
};

/* Of the rank with this number in its world, from now on; HD_NCCL_WELL mends it. */
void hd_nccl_stand_in_defect(int rank, enum hd_nccl_defect defect);

int hd_nccl_stand_in_splits(void); /* splits that all ranks of their parent have made, ever */
int hd_nccl_stand_in_aborts(void); /* communicators aborted, ever */
int hd_nccl_stand_in_open(void);   /* communicators that are neither destroyed nor aborted */

#endif
