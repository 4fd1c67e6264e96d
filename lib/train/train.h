/* train: one rank's training: memory, weights, steps, validation, checkpoints.
 *
 * A trainer reserves its memory once, binds every program to it, and then steps; a step allocates
 * nothing. All ranks of a job make the same calls in the same order. The first failure of a step or
 * of a validation sticks, aborts the peers, and is returned by every later call; a rank that gives
 * up after any other failure tells its peers by hd_comm_abort.
 *
 * Used by: worker, tests.   Uses: layout, program, comm, data, checkpoint.
 * Threads: a trainer belongs to the thread of its rank.
 */
#ifndef HD_TRAIN_TRAIN_H
#define HD_TRAIN_TRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "comm/comm.h"
#include "job/job.h"
#include "kernels/kernels.h"
#include "program/run.h"
#include "train/layout.h"
#include "train/token_cache.h"

/* How long a rank of a running step waits while nothing moves. A save, being slower, has a longer
 * deadline of its own and sets this one again. */
enum { HD_STEP_DEADLINE_MS = 120 * 1000 };

struct hd_trainer;

/* What the system, or the device, gave. */
struct hd_reservation {
    int64_t resident_before_bytes;           /* of the process, just before the first touch */
    int64_t private_bytes, visible_bytes;    /* reserved */
    int64_t private_huge, visible_huge;      /* bytes of them on huge pages */
    const void *private_base, *visible_base; /* where */
};

struct hd_trainer_options {
    const struct hd_backend_table *backend;
    struct hd_backend *instance; /* of it, open, that the endpoint uses too; the trainer borrows it.
                                    NULL: the trainer opens one of its own */
    struct hd_comm *comm; /* this rank's endpoint, nothing visible yet; the trainer borrows it */
    int rank;
    struct hd_layout_options layout;
    struct hd_job_tokenizer *tokenizer;  /* may be NULL */
    const struct hd_token_cache *tokens; /* the job's text as token files; NULL: read as it is */
    bool force_plain;                    /* tests: the portable kernels */
    bool epilogues_apart; /* measurements: of the backend's options, and so of `instance` */
    /* Tests: reservations other than the layout's; smaller ones are HD_NO_MEMORY. 0: the layout's.
     */
    int64_t private_bytes, visible_bytes;
};

/* How a job wants its backend: for who opens an instance. */
struct hd_backend_options hd_trainer_backend_options(const struct hd_job *job);

/* Reserves memory, compiles, binds, opens the data. The job is copied except for its file lists,
 * which must outlive the trainer. Weights are not set: hd_trainer_init or hd_trainer_load follows.
 */
enum hd_status hd_trainer_new(const struct hd_job *job, const struct hd_trainer_options *options,
                              struct hd_trainer **ret_trainer);
void hd_trainer_free(struct hd_trainer *trainer);

const struct hd_layout *hd_trainer_layout(const struct hd_trainer *trainer);
const struct hd_reservation *hd_trainer_reservation(const struct hd_trainer *trainer);

/* A device's memory between two steps: what this rank's plan takes of it, and what else is in use
 * there: this process's context, kernels and libraries, its communicators, and other processes.
 * HD_UNSUPPORTED where tensors are the host's. */
struct hd_device_use {
    int64_t planned_bytes, beside_bytes, total_bytes;
    int64_t assumed_bytes; /* that a process and its communicators take (hd_layout_beside) */
};
enum hd_status hd_trainer_device_use(struct hd_trainer *trainer, struct hd_device_use *ret_use);
struct hd_runner *hd_trainer_runner(struct hd_trainer *trainer); /* for tests and traces */

/* Step 0: weights by the init rules, or those of the job's init_from, which must still be what they
 * were at submission; moments zero. */
enum hd_status hd_trainer_init(struct hd_trainer *trainer);

/* Weights, moments and counters from a checkpoint directory, whatever layout wrote it; every byte
 * is checked against its hash, and a failure of that reaches all ranks (HD_CORRUPT). When the facts
 * that equal bits depend on differ from this run's, ret_note (may be NULL) gets a sentence that
 * says which. expected_hash: hex of the manifest's hash, or "-" for any. */
enum hd_status hd_trainer_load(struct hd_trainer *trainer, const char *dir,
                               const char *expected_hash, struct hd_text *ret_note);

/* What the routers of a mixture of experts did in a step, all of them together. */
struct hd_router_result {
    bool present;      /* the model has routers */
    double balance, z; /* means over rows and routers, without coefficients; balance is 1 at best */
    int64_t dropped;   /* choices beyond a capacity */
    int64_t experts;   /* of each router */
    const int64_t *load; /* [experts] choices of each; valid until the next step */
};

struct hd_step_result {
    int64_t step;     /* 1-based: updates done, this one included */
    double loss;      /* mean over the step's targets, nats */
    double grad_norm; /* before clipping */
    double lr;
    int64_t tokens; /* seen since the job's beginning */
    double tokens_per_s, step_ms, mfu;
    int64_t targets; /* of this step, over all ranks: tokens whose next one counts */
    bool skipped;    /* a gradient was not finite, there was no target, or more rows were sent to a
                        rank's experts than it has room for: no weight changed */
    bool too_many_rows; /* of the reasons the last */
    struct hd_router_result router;
    int64_t request; /* the largest that any rank gave to this step */
};

/* One update over the next global batch. `request` travels with the step's exchange: all ranks see
 * the largest, so that they decide alike (stop, checkpoint). */
enum hd_status hd_trainer_step(struct hd_trainer *trainer, int64_t request,
                               struct hd_step_result *ret_result);
int64_t hd_trainer_steps_done(const struct hd_trainer *trainer);

/* Between steps: writes this rank's profile when the steps that train.profile names are done, or,
 * with `ended`, when some of them are; once. ret_note then says where; else it stays as it is. A
 * failure (disk full ...) leaves the trainer able to go on. */
enum hd_status hd_trainer_write_profile(struct hd_trainer *trainer, bool ended,
                                        struct hd_text *ret_note);

/* Mean loss over the validation windows; ret_targets: how many tokens that is. HD_LIMIT, on every
 * rank, when more rows were sent to a rank's experts than it has room for: there is no loss then,
 * and training can go on. */
enum hd_status hd_trainer_validate(struct hd_trainer *trainer, double *ret_loss,
                                   int64_t *ret_targets);
bool hd_trainer_can_validate(const struct hd_trainer *trainer);

/* A sentence for people about the data. */
void hd_trainer_describe_data(const struct hd_trainer *trainer, struct hd_text *ret_text);

/* Are the data files still those that were opened? HD_INVALID or HD_NOT_FOUND names one that is
 * not. */
enum hd_status hd_trainer_check_data(const struct hd_trainer *trainer);

struct hd_saved {
    char path[HD_JOB_PATH_MAX];
    char hash[17]; /* of the manifest, hex */
    int64_t bytes; /* all shards */
};

/* Saves under ATTEMPT_DIR/checkpoints/step-N: every rank its shard, then rank 0 the manifest;
 * returns on all ranks when it is durable, or with the failure of whichever rank failed. A failed
 * save leaves the trainer able to go on. */
enum hd_status hd_trainer_save(struct hd_trainer *trainer, struct hd_saved *ret_saved);

/* A parameter's values of one kind of state, this rank's share, between steps: for tests and tools.
 * As many as the parameter has (hd_param.count). */
enum hd_status hd_trainer_read_state(struct hd_trainer *trainer, int param, enum hd_state_kind kind,
                                     float *ret_values);
enum hd_status hd_trainer_write_state(struct hd_trainer *trainer, int param,
                                      enum hd_state_kind kind, const float *values);

#endif
