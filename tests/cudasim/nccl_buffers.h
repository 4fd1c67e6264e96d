/* nccl_buffers: what nccl.c tells nccl_buffers.c.   Threads: any. */
#ifndef HD_CUDASIM_NCCL_BUFFERS_H
#define HD_CUDASIM_NCCL_BUFFERS_H

#include <stdbool.h>

#include "kernels/cuda/nccl_api.h"
#include "nccl_stand_in.h"

/* The communicator ends; clean: it is destroyed, not aborted. */
void hd_sim_nccl_forget(ncclComm_t comm, bool clean);

#endif
