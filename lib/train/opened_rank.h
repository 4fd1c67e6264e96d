/* opened_rank: what a rank opens before it computes: backend, communicator, runner with its staging,
 * memory. Training, frozen models, generation, evaluation, probes and benchmarks open a rank by
 * hd_rank_open, and close it by hd_rank_close, which goes in reverse order.
 *
 * A trainer borrows the communicator, and on a GPU the backend, that the worker has open
 * (rank_connect.c); their owner closes them after it.
 *
 * Used by: train, worker, tests.   Uses: comm, program.   Threads: the rank's.
 */
#ifndef HD_TRAIN_OPENED_RANK_H
#define HD_TRAIN_OPENED_RANK_H

#include "comm/shm_control.h"
#include "program/run.h"
#include "train/reserve.h"
#include "train/staging.h"

struct hd_comm_hub;

struct hd_opened_rank {
    const struct hd_backend_table *table;
    struct hd_backend *backend;
    struct hd_comm_hub *hub; /* of a communicator of one rank on a device; else NULL */
    struct hd_comm *comm;    /* communicator of the ranks; NULL: there is one rank, without any */
    struct hd_runner *runner;
    struct hd_staging staging;
    struct hd_private memory; /* without the registered memory that collectives use */
    bool borrows_backend, borrows_comm;
};

struct hd_rank_opening {
    const struct hd_backend_table *table;
    struct hd_backend *instance; /* borrowed backend; NULL: one is opened with `options` */
    struct hd_backend_options options;

    /* The communicator is the first of these that is set; none: the rank has no communicator. */
    struct hd_comm *comm; /* borrowed */
    /* communicator of all ranks through host memory, which the opening takes over, also on failure;
     * between devices NCCL uses it */
    struct hd_comm *host;
    /* through it rank `rank` of `world` opens such a `host` itself */
    const struct hd_shm_control *shm;
    bool alone; /* true: the rank is the only one, and gets a communicator of itself alone */

    int rank, world;
    /* with `alone` on a device: the supervisor's control block, in which the record of collectives
     * outlives the rank; NULL: memory of its own */
    const struct hd_shm_fds *fds;
    const struct hd_mesh *nccl_mesh; /* as in hd_comm_nccl_options, as is `native` */
    bool native;
    int64_t deadline_ms; /* deadline in ms of waits for other ranks */

    const struct hd_mesh *mesh; /* mesh of the runner; NULL: neither runner nor staging is opened */
};

/* Opens what `opening` says. hd_rank_close also follows a failure; ret_opened->backend is NULL if it
 * was the backend's. */
enum hd_status hd_rank_open(const struct hd_rank_opening *opening,
                            struct hd_opened_rank *ret_opened);
/* Reserves size_bytes > 0 of memory for tensors and, if the backend has a device, host_bytes beside
 * it; touches each page of host memory with `threads` threads. HD_NO_MEMORY: no address space, or not
 * enough memory for the pages. */
enum hd_status hd_rank_reserve(struct hd_opened_rank *opened, int64_t size_bytes,
                               int64_t host_bytes, int threads);
/* Opens the channel from a stage to another one, between the ranks of both with the other coordinates
 * of `rank`. `backward`: gradients pass through it. */
enum hd_status hd_rank_open_channel(const struct hd_opened_rank *opened, const struct hd_mesh *mesh,
                                    int rank, int from_stage, int to_stage, bool backward,
                                    struct hd_comm_group **ret_channel);
/* Waits for the device: after a failure its kernels may still use memory that is about to be freed. */
void hd_rank_settle(const struct hd_opened_rank *opened);
void hd_rank_close(struct hd_opened_rank *opened); /* {0} is fine */

#endif
