/* rank: what the files of a rank share (rank*.c). Only for daemon/worker.
 *
 *   rank.c         set-up, the loop over steps, the exit status
 *   rank_save.c    room on disk and checkpoints, also those written while training goes on
 *   rank_check.c   what steps that change no weight and losses that do not fall mean for the run
 *   rank_guard.c   what is done after a step whose loss or gradient is far too large
 *   rank_peers.c   ranks that are slower than their peers
 *   rank_tensorboard.c   numbers for TensorBoard
 *   rank_lock.c    the locks that a rank closes behind itself before it reads data
 *
 * Threads: the rank's.
 */
#ifndef HD_WORKER_RANK_INTERNAL_H
#define HD_WORKER_RANK_INTERNAL_H

#include "base/arena.h"
#include "comm/comm.h"
#include "comm/shm_control.h"
#include "job/job.h"
#include "job/metrics.h"
#include "kernels/kernels.h"
#include "link/link.h"
#include "metrics/tensorboard.h"
#include "train/guard.h"
#include "train/straggler.h"
#include "train/train.h"
#include "train/trend.h"
#include "worker/storage.h"
#include "worker/worker.h"

enum { OVERFLOWS_SUSPECT = 3 }; /* in a row: a single one may be a bad batch */

/* What a rank asks for in a step's exchange, or says there; the largest wins. */
enum rank_request { REQUEST_NONE, REQUEST_WRITING, REQUEST_CHECKPOINT, REQUEST_STOP };

/* What becomes of locks that the kernel lacks; with OFF none is closed. */
enum rank_isolation { RANK_ISOLATION_TRY, RANK_ISOLATION_REQUIRE, RANK_ISOLATION_OFF };

struct rank {
    struct hd_arena arena;
    struct hd_job job;
    int64_t rank, world;
    int link_fd;
    int64_t here;          /* index among the ranks of this node */
    int64_t wait_limit_ms; /* what the supervisor has learned that a wait may last; 0: nothing */
    int64_t step_deadline_ms, save_deadline_ms;
    struct hd_shm_fds fds;
    const struct hd_backend_table *backend;
    struct hd_worker_device device;  /* where backend has memory of its own */
    const char *node, *data_address; /* with ranks on other nodes, else NULL */
    const char *choices_dir;         /* of the node, if it was given; else NULL */
    enum rank_isolation isolation;
    const char *data_roots; /* folders with ':' between, below which data may lie; NULL: all */
    struct hd_link *link;
    struct hd_comm *comm;
    struct hd_trainer *trainer;
    bool bad_base; /* the checkpoint to start from could not be loaded as it was written */
    bool no_base;  /* the checkpoint to start from is not on the disk */
    struct hd_tensorboard *tensorboard; /* rank 0 */
    enum rank_request request;          /* of this rank */
    int64_t saved_step;                 /* of the newest checkpoint; -1: none */
    struct hd_saved saved;              /* the newest checkpoint of this attempt; path "": none */
    int64_t skips;                      /* steps in a row that changed no weight */
    int64_t spikes;                     /* steps in a row that were spikes */
    int64_t went_back;                  /* times since the newest checkpoint */
    int64_t overflows;                  /* steps in a row whose gradient was not finite */
    bool improved;                      /* a step since saved_step had a finite gradient */
    bool finite;                        /* the newest loss */
    bool diverged;                      /* the reason for which the run is given up */
    bool fails_alike;                   /* all ranks give it up for what they all know */
    struct hd_trend trend;
    bool said_stuck;
    bool data_changed;       /* and said so */
    bool tensorboard_failed; /* and said so */
    bool said_memory;        /* of the device */
    bool stopped;
    bool unsaved; /* stopped without the last checkpoint, which could not be written */
    struct storage storage;
    struct hd_stragglers *stragglers; /* rank 0, with others */
};

/* A line in the log, from rank 0 also an event of the job. */
void rank_say(struct rank *r, enum hd_link_level level, const char *text);
/* The same of an event about a rank, which may be another one. */
void rank_say_about(struct rank *r, enum hd_link_level level, int64_t about, const char *text);
/* Takes the newest command of the supervisor: sets r->request. */
void rank_listen(struct rank *r);

/* ---- rank_lock.c ---- */

/* The job has been read and this thread is the only one. HD_INVALID: it names a path that this node
 * does not allow; HD_UNAVAILABLE, HD_UNSUPPORTED: a lock that is demanded, or that the kernel has,
 * cannot be closed. */
enum hd_status rank_lock_in(const struct rank *r);
/* The ranks have met, and no library will connect later (NCCL does). */
enum hd_status rank_close_network(const struct rank *r);

/* ---- rank_save.c ---- */

/* Waits until there is room for a checkpoint. Before the first step, whose work could not be kept
 * else. */
enum hd_status rank_make_room(struct rank *r);
/* must: the last checkpoint, without which the work would be lost. No periodic one is written of a
 * run that only skips steps: it would count as progress, and in time take the place of a sound one.
 */
enum hd_status rank_save(struct rank *r, bool must);
/* Ends a checkpoint that is being written while training goes on. A failure is a warning; the next
 * checkpoint is tried when it is due. */
enum hd_status rank_end_save(struct rank *r);
/* A run that fails with `st` on all ranks alike keeps the checkpoint that is being written. */
void rank_keep_save(struct rank *r, enum hd_status st);

/* ---- rank_check.c ---- */

/* Counts steps that change no weight. A failure: the run is given up. Collective. */
enum hd_status rank_check_skip(struct rank *r, const struct hd_step_result *s);
/* Losses that are finite and of no use: the run goes on and ends as it would, but says so. */
void rank_check_trend(struct rank *r, const struct hd_step_result *s);
void rank_check_trend_at_end(struct rank *r);
/* A run that ends with a loss that is not finite, or with gradients that are not, has diverged,
 * however many steps it did. */
enum hd_status rank_check_end(struct rank *r);

/* ---- rank_guard.c ---- */

/* After each step. A failure: the run is given up. *ret_went_back: the trainer is at an earlier
 * step now, and nothing else is to be done after this one. Collective. */
enum hd_status rank_check_spike(struct rank *r, const struct hd_step_result *s,
                                bool *ret_went_back);

/* ---- rank_peers.c ---- */

enum hd_status rank_watch_peers(struct rank *r);
/* After each step: tells stragglers. */
void rank_look_at_peers(struct rank *r, const struct hd_step_result *s);

/* ---- rank_tensorboard.c ---- */

/* One warning when it cannot be opened or written; training goes on. */
void rank_open_tensorboard(struct rank *r);
struct hd_step_metrics rank_metrics(const struct hd_step_result *s);
void rank_show(struct rank *r, int64_t step, const struct hd_scalar *scalars, size_t count);
void rank_show_step(struct rank *r, const struct hd_step_result *s);

#endif
