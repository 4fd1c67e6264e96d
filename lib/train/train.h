/* train: the training of one rank: memory, weights, steps, validation, checkpoints.
 *
 * A trainer reserves all memory at the start and binds every program to it; a step allocates
 * nothing. All ranks of a job make the same calls in the same order. The first failure of a step or
 * validation aborts the peers and is returned by every later call. After another failure a rank
 * that stops must call hd_comm_abort, so that its peers do not wait for it.
 *
 * Used by: worker, tests.   Uses: rank_program, program, comm, data, checkpoint.
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
#include "train/rank_program.h"
#include "train/token_cache.h"

/* Default deadlines. A step fails with HD_TIMEOUT when its communication has made no progress for
 * this long. Saves and loads set the longer deadline for their duration. hd_trainer_set_deadlines
 * changes both. */
enum { HD_STEP_DEADLINE_MS = 120 * 1000, HD_SAVE_DEADLINE_MS = 15 * 60 * 1000 };

struct hd_guard;
struct hd_trainer;

/* Memory that a trainer has reserved. */
struct hd_reservation {
    /* resident memory of the process, just before it first touched the reserved pages */
    int64_t resident_before_bytes;
    int64_t private_bytes, registered_bytes;
    const void *private_base, *registered_base;
};

struct hd_trainer_options {
    const struct hd_backend_table *backend;
    /* an open backend instance that `comm` also uses; borrowed. NULL: the trainer opens one of its
     * own */
    struct hd_backend *instance;
    /* this rank's communicator, borrowed; without registered memory yet, or with that of a freed
     * trainer of the same job, all of whose ranks then open another one */
    struct hd_comm *comm;
    int rank;
    struct hd_rank_program_options layout;
    struct hd_job_tokenizer *tokenizer;  /* the job's tokenizer; may be NULL */
    const struct hd_token_cache *tokens; /* token files of the job's text; NULL: read the text */
    /* Callback, called once before memory is reserved, with the bytes of host memory that this
     * rank's plan needs. May be NULL. */
    void (*planned)(void *user, int64_t host_bytes);
    void *planned_user;
    /* Callback, called when a parameter of a load has been read, which may take minutes (pissa.h). May
     * be NULL. */
    void (*alive)(void *user);
    void *alive_user;
    /* peak FLOP/s of this rank, to which MFU is relative; 0: the trainer measures it */
    double peak;
    bool force_plain; /* true: use the portable kernels; for tests */
    /* true: epilogues of matrix products run as kernels of their own, as in hd_backend_options; for
     * measurements */
    bool epilogues_separate;
    /* bytes to reserve, for tests; 0: as many as planned; fewer than planned fail with
     * HD_NO_MEMORY */
    int64_t private_bytes, registered_bytes;
};

/* Returns the backend options of a job, for a caller that opens the instance. */
struct hd_backend_options hd_trainer_backend_options(const struct hd_job *job);
struct hd_opened_rank;
struct hd_shm_fds;
/* Opens the backend and the communicator of a job's rank, which all its trainers borrow.
 * choices_dir: folder in which choices of GEMM algorithms are stored; NULL: none. host: with several
 * ranks, their communicator through host memory, as in hd_rank_opening; NULL: there is one rank,
 * whose communicator on the device maps memory of the supervisor, `fds`. */
enum hd_status hd_trainer_open_rank(const struct hd_backend_table *table, const struct hd_job *job,
                                    const char *choices_dir, struct hd_comm *host,
                                    const struct hd_shm_fds *fds,
                                    struct hd_opened_rank *ret_opened);

/* Makes a trainer: reserves memory, compiles, binds, opens the data. In a job with several spans
 * (job/data_stages.h) it trains in the span of options->layout.step. The job is copied except for
 * its file lists, which must outlive the trainer. Weights are not set: call hd_trainer_init or
 * hd_trainer_load next. */
enum hd_status hd_trainer_new(const struct hd_job *job, const struct hd_trainer_options *options,
                              struct hd_trainer **ret_trainer);
void hd_trainer_free(struct hd_trainer *trainer);

/* Sets how many ms a rank waits for other ranks before HD_TIMEOUT: step_ms in steps and
 * validations, save_ms in saves and loads. */
void hd_trainer_set_deadlines(struct hd_trainer *trainer, int64_t step_ms, int64_t save_ms);

const struct hd_rank_program *hd_trainer_rank_program(const struct hd_trainer *trainer);
const struct hd_reservation *hd_trainer_reservation(const struct hd_trainer *trainer);

/* Device memory in use between two steps, in bytes. HD_UNSUPPORTED: tensors are in host memory. */
struct hd_device_use {
    int64_t planned_bytes; /* memory in this rank's plan */
    /* memory in use by this process besides its plan, and by all other processes */
    int64_t other_bytes;
    int64_t total_bytes; /* memory of the device */
    /* memory assumed for this process besides its plan (hd_rank_program_gpu_overhead) */
    int64_t assumed_bytes;
};
enum hd_status hd_trainer_device_use(struct hd_trainer *trainer, struct hd_device_use *ret_use);
struct hd_runner *hd_trainer_runner(struct hd_trainer *trainer); /* runner, for tests and traces */

/* Sets step 0: weights by the init rules, or those of the job's init_from, which must not have
 * changed since submission; moments are zero. */
enum hd_status hd_trainer_init(struct hd_trainer *trainer);

/* Sets the state of the run from whose checkpoint the job goes on (train.continue_from): weights,
 * moments and counters, as hd_trainer_load. If the data are the ones of that run, the job reads on
 * behind what it has read; other data are read from their first sample, and the guard forgets.
 * ret_said gets a sentence about that, ret_note what hd_trainer_load notes. HD_INVALID: the
 * checkpoint is damaged, or is not the one of the submission. */
enum hd_status hd_trainer_continue(struct hd_trainer *trainer, struct hd_text *ret_said,
                                   struct hd_text *ret_note);

/* Watch over the computation of the log-probabilities of DPO's reference model (train.objective:
 * dpo; reference.c). The reference model has the weights with which the run begins. */
struct hd_reference_watch {
    /* Callback, called often to report that the rank is alive. It returns false to stop with
     * HD_ABORTED. May be NULL. */
    bool (*alive)(void *context, int64_t done_windows, int64_t windows);
    void *context;
};
/* Returns true for train.objective: dpo. */
bool hd_trainer_needs_reference(const struct hd_trainer *trainer);
/* Opens the file of reference log-probabilities that an earlier attempt wrote; if there is none,
 * sets the weights of hd_trainer_init, computes the file by a forward pass over all preference
 * pairs, and sets *ret_made to true. Call it before hd_trainer_init or hd_trainer_load. Does
 * nothing if the objective needs no reference. Collective. HD_STORAGE, HD_IO: the file cannot be
 * written. */
enum hd_status hd_trainer_prepare_reference(struct hd_trainer *trainer,
                                            const struct hd_reference_watch *watch, bool *ret_made);

/* Writes the teacher's file of a job with train.distill.write (teacher.c), by a forward pass over all
 * windows of the training data with the weights that the trainer has; goes on where an earlier
 * attempt stopped. ret_said gets a sentence about the file. Collective. HD_STORAGE, HD_IO: the file
 * cannot be written. */
enum hd_status hd_trainer_write_teacher(struct hd_trainer *trainer,
                                        const struct hd_reference_watch *watch,
                                        struct hd_text *ret_said);
/* Opens the teacher's file that train.distill.teacher names, or reads the weights of the job's frozen
 * model (job/frozen_model.h); does nothing without. Call it before the first step. Collective.
 * HD_INVALID: the file is not one of this job's data. */
enum hd_status hd_trainer_open_teacher(struct hd_trainer *trainer);

/* Loads weights, moments and counters from a checkpoint directory of any layout. Rank 0 checks
 * every byte against its hash; damage is HD_CORRUPT on all ranks. If settings that the bits of
 * results depend on differ from this run's, ret_note (may be NULL) gets a sentence that names them.
 * expected_hash: the manifest's hash, hexadecimal; "-": any. */
enum hd_status hd_trainer_load(struct hd_trainer *trainer, const char *dir,
                               const char *expected_hash, struct hd_text *ret_note);

/* Results of all routers of a mixture of experts in one step. */
struct hd_router_result {
    bool present; /* true: the model has routers */
    /* balance and z losses, each a mean over rows and routers, unweighted; a perfect balance is
     * 1 */
    double balance, z;
    /* tokens' choices of an expert that were dropped, because the expert was at its capacity */
    int64_t dropped;
    int64_t experts; /* experts per router */
    /* [experts], how often each expert was chosen; valid until the next step */
    const int64_t *load;
};

/* Results of the predictions of further tokens in one step, by depth. */
struct hd_further_result {
    int count;                   /* number of further tokens that the model predicts; 0: none */
    double loss[HD_FURTHER_MAX]; /* mean loss over their targets, in nats */
    double hits[HD_FURTHER_MAX]; /* fraction of the targets that were the likeliest token */
};

/* Results of preference pairs (a chosen and a rejected answer), or of rated answers (kto);
 * hd_preference_args in ops.h defines the values of one pair. */
struct hd_pair_result {
    int64_t count;   /* number of preference pairs; 0: train.objective has none */
    double margin;   /* mean margin of the pairs; of rated answers chosen - rejected */
    double accuracy; /* fraction of the pairs with a margin above 0 */
    double reward;   /* mean reward of all answers, chosen and rejected */
    int64_t answers; /* number of rated answers; 0: train.objective has none */
    double chosen;   /* mean reward of desirable answers; 0: there are none */
    double rejected; /* mean reward of undesirable answers; 0: there are none */
    double kl;       /* KL term (mismatched.c) */
};

/* Results of the completions of one step (train/policy.h), over all ranks. */
struct hd_policy_result {
    int64_t tokens;      /* tokens that have a loss; 0: train.objective has no completions */
    int64_t completions; /* completions that have such tokens */
    int64_t dropped;     /* tokens without a loss, because a log-probability is not finite */
    /* fractions of the tokens whose ratio is below, above its limit (hd_policy_args in ops.h) */
    double clipped_low, clipped_high;
    double kl;                         /* mean divergence from the reference; 0 without one */
    double difference, difference_max; /* |log p - log p when sampled|: mean, largest */
    double ratio, ratio_max;           /* p / p when sampled: mean, largest */
    double entropy;                    /* mean entropy of the tokens' distributions, in nats */
};

/* Times of the previous step on all ranks, which the ranks sent with the exchange of this step. */
struct hd_reported_step {
    bool present;   /* false: this was the first step of the run */
    double step_ms; /* duration of the previous step on this rank */
    const double
        /* [world], duration of the previous step on each rank without its waits for other ranks;
         * below 0: unknown, as on GPUs */
        *busy_ms;
    /* [world], the rank for which each rank waited longest in the previous step; -1: none, or
     * unknown */
    const int *awaited;
};

struct hd_step_result {
    int64_t step; /* number of this step, from 1 */
    /* mean loss over the step's predicted tokens, in nats; with preference pairs the mean over the
     * pairs */
    double loss;
    double grad_norm; /* norm of the gradient of all parameters before clipping */
    double lr;
    int64_t tokens; /* tokens of all ranks, without padding */
    double tokens_per_s, step_ms, mfu;
    int64_t targets; /* tokens of all ranks whose prediction counts in the loss */
    double z_loss;   /* mean of log^2 Z over the targets, with train.z_loss; 0 without */
    /* mean divergence from the teacher over the targets that its file has (train.distill.teacher);
     * 0 without */
    double distill_loss;
    /* with train.qk_clip: largest attention score, and query heads of the groups that were clipped */
    double max_attention_logit;
    int64_t clipped_heads;
    struct hd_pair_result pairs;    /* results of the preference pairs of all ranks */
    struct hd_policy_result policy; /* results of the completions of all ranks */
    /* true: no weight changed, because a gradient was not finite, the step had no target, or
     * too_many_rows or spiked is set */
    bool skipped;
    /* true: the experts of a rank received more rows than parallel.expert_rows allows */
    bool too_many_rows;
    int64_t loss_scale; /* loss scale of this step, if the job computes in fp16; else 0 */
    /* true, with fp16 only: skipped because gradients overflowed; the next step's loss scale is
     * half of this one's */
    bool rescaled;
    /* true: skipped because the loss or gradient norm is a spike (train/guard.h) */
    bool spiked;
    /* limits above which this step's loss or gradient norm was a spike; 0: no limit */
    double loss_limit, norm_limit;
    struct hd_reported_step reported;
    struct hd_router_result router;
    struct hd_further_result further;
    int64_t request; /* largest `request` that any rank gave to hd_trainer_step */
};

/* Sets how many micro-batches each rank computes in the next steps, 1 to
 * hd_rank_program.micro_batches; at first the largest number. A step with fewer reads the first
 * sequences of its batch. All ranks must set the same number; the first time that a number is set, its
 * instruction stream is generated and bound. HD_INVALID: see hd_rank_program_step_plan. */
enum hd_status hd_trainer_set_micro_batches(struct hd_trainer *trainer, int64_t micro_batches);

/* Runs one step: an update over the next global batch. Each rank gives a `request`, for example to
 * stop or save; all ranks get the largest, so that they make the same decision. */
enum hd_status hd_trainer_step(struct hd_trainer *trainer, int64_t request,
                               struct hd_step_result *ret_result);
int64_t hd_trainer_steps_done(const struct hd_trainer *trainer);
/* Returns the last step of the trainer's span (job/data_stages.h): the run goes on in another trainer,
 * which loads a checkpoint of this step. The run's last step if it has no spans. */
int64_t hd_trainer_span_end(const struct hd_trainer *trainer);
/* Returns the number, from 1, of the stage of the data that the next step begins; 0: it begins none,
 * or the job has no stages. */
int64_t hd_trainer_begins_stage(const struct hd_trainer *trainer);
/* Returns the number of batches skipped by hd_trainer_go_back since the run began, plus the offset
 * of hd_trainer_continue, which may be below 0. */
int64_t hd_trainer_data_skipped(const struct hd_trainer *trainer);
struct hd_guard *hd_trainer_guard(struct hd_trainer *trainer); /* guard, for tests */
/* Loads an earlier checkpoint of this run, as hd_trainer_load, and skips the data since then: the
 * next step trains on the batch that would have come next. Collective, between steps. */
enum hd_status hd_trainer_go_back(struct hd_trainer *trainer, const char *dir,
                                  const char *expected_hash);
/* Returns the number of steps of the run that were not skipped. */
int64_t hd_trainer_updates_done(const struct hd_trainer *trainer);

/* Writes, after a skipped step, the name of the first gradient element that is not finite, on the
 * lowest rank that has one, such as "blocks.0.mlp.up.weight[3, 17] is NaN on rank 2"; "": all are
 * finite. Collective: all ranks must call it. */
enum { HD_NONFINITE_TEXT = 256 };
enum hd_status hd_trainer_find_nonfinite(struct hd_trainer *trainer,
                                         char ret_text[HD_NONFINITE_TEXT]);

/* Writes this rank's profile once: when all steps of train.profile are done, or with `ended` (the
 * run is over) when at least one is. Call it between steps. If it was written, ret_note gets a
 * sentence with the path. After a failure (disk full ...) training can continue. */
enum hd_status hd_trainer_write_profile(struct hd_trainer *trainer, bool ended,
                                        struct hd_text *ret_note);

/* Computes the mean loss over the windows of validation set `set`, of hd_trainer_validation_count;
 * ret_targets: number of predicted tokens.
 * HD_LIMIT, on every rank: a rank's experts received more rows than parallel.expert_rows allows, so
 * there is no loss; training can continue. */
enum hd_status hd_trainer_validate_set(struct hd_trainer *trainer, int64_t set, double *ret_loss,
                                       int64_t *ret_targets);
/* Makes validations compute the losses of the moving averages of the weights (train.ema), whose
 * numbers are those of HD_VAL_EMA, until a call with `take` false restores the weights bit for bit. Not
 * before a step or a save. Collective. After a failure the trainer is of no more use. */
enum hd_status hd_trainer_take_averages(struct hd_trainer *trainer, bool take);
/* Validates on the set whose loss checkpoint.best compares; without named sets, on all of
 * data.val. */
enum hd_status hd_trainer_validate(struct hd_trainer *trainer, double *ret_loss,
                                   int64_t *ret_targets);
int64_t hd_trainer_validation_count(const struct hd_trainer *trainer); /* 0: no validation data */
bool hd_trainer_can_validate(const struct hd_trainer *trainer);
/* Returns the results of the preference pairs in the last validation. With pairs, ret_targets of
 * hd_trainer_validate is the number of pairs, and its loss is their mean loss. */
struct hd_pair_result hd_trainer_validated_pairs(const struct hd_trainer *trainer);

/* Scores of a file of questions (validate.choices). */
struct hd_exam_score {
    int64_t questions, cut; /* number of questions; of those whose beginning was cut */
    double acc, acc_norm;   /* fractions of right answers (generate/choices.h) */
};
int64_t hd_trainer_exam_count(const struct hd_trainer *trainer); /* 0: the job has no questions */
/* Answers the questions of file `index`; collective. alive: called between rounds of the programs;
 * may be NULL. HD_LIMIT: as hd_trainer_validate_set. */
enum hd_status hd_trainer_examine(struct hd_trainer *trainer, int64_t index,
                                  void (*alive)(void *user), void *user,
                                  struct hd_exam_score *ret_score);

/* Notes the scores of file `index` of validate.tasks, which the caller has computed of the current
 * weights: checkpoint.best and validate.stop may name them. All ranks note the same. */
void hd_trainer_note_pass(struct hd_trainer *trainer, int64_t index, double pass, double pass_k);

/* A text that the model wrote behind a prompt of validate.samples. */
struct hd_sample_text {
    const char *prompt; /* for people (prompts.h) */
    const int32_t *ids; /* [count], without the stop token */
    int64_t count;
    bool stopped;    /* true: a token ended it; false: it has as many tokens as it may */
    bool not_finite; /* true: it ends where the model's output was not finite */
};
int64_t hd_trainer_sample_count(const struct hd_trainer *trainer); /* 0: the job has no prompts */
/* Writes a sample behind each prompt with the weights of now; collective, between steps. alive:
 * called between calls of programs; may be NULL. */
enum hd_status hd_trainer_write_samples(struct hd_trainer *trainer, void (*alive)(void *user),
                                        void *user);
/* Returns the newest sample of prompt `index`; equal on all ranks. */
struct hd_sample_text hd_trainer_sample(const struct hd_trainer *trainer, int64_t index);

/* Returns true, with checkpoint.best, if the current weights were validated and no earlier weights
 * of the run had as good a number. A run that starts from a checkpoint compares with the best number
 * in that checkpoint. The initial weights (step 0) do not count: they have no checkpoint. */
bool hd_trainer_is_best(const struct hd_trainer *trainer);
/* Returns true if validate.stop ends the run: as many validations in a row as its patience brought
 * no improvement, those before the checkpoint that the run started from included. Equal on all
 * ranks. */
bool hd_trainer_stops_early(const struct hd_trainer *trainer);
/* Appends the reason of that end, a sentence for users. */
void hd_trainer_describe_stop(const struct hd_trainer *trainer, struct hd_text *ret_text);

/* Appends a sentence for users about the training and validation data (hd_job_data_describe);
 * windows: those of the whole run. */
void hd_trainer_describe_data(const struct hd_trainer *trainer, int64_t windows,
                              struct hd_text *ret_text);

/* Checks that no data file has changed since it was opened. HD_INVALID or HD_NOT_FOUND: the message
 * names the file. */
enum hd_status hd_trainer_check_data(const struct hd_trainer *trainer);

struct hd_saved {
    int64_t step;
    char path[HD_JOB_PATH_MAX];
    char hash[17]; /* hash of the manifest, hexadecimal */
    int64_t bytes; /* bytes of the shards of all ranks */
    /* number of the saved weights by which checkpoint.best decides, lower is better: a loss, or
     * 1 - score; NaN: they were not validated, or it is not set */
    double val_loss;
};

/* Saves to ATTEMPT_DIR/checkpoints/step-N: rank 0 checks the disk space, every rank writes its
 * shard, then rank 0 writes the manifest. Returns on all ranks when the checkpoint is durable, or
 * with the failure of the lowest failed rank. After a failed save its folder is removed; training
 * can continue and the save can be retried. HD_STORAGE: the file system accepts no writes at the
 * moment. */
enum hd_status hd_trainer_save(struct hd_trainer *trainer, struct hd_saved *ret_saved);

/* Saves in the background (checkpoint.async): begin copies this rank's entries, and a thread writes
 * them; until finish the rank may step and validate. Both are collective; only one save may be in
 * progress, and hd_trainer_save may not be called meanwhile. begin: HD_STORAGE if the disk is too
 * full. finish waits for the thread; its failures are those of hd_trainer_save, and the save is
 * over. A trainer that is freed drops a save in progress: the previous checkpoint is then the
 * newest. */
enum hd_status hd_trainer_save_begin(struct hd_trainer *trainer);
enum hd_status hd_trainer_save_finish(struct hd_trainer *trainer, struct hd_saved *ret_saved);
/* Returns true between begin and finish of a background save; equal on all ranks. */
bool hd_trainer_is_saving(const struct hd_trainer *trainer);
/* Returns true if this rank's shard is written; hd_trainer_save_finish then does not wait for the
 * thread. */
bool hd_trainer_has_written(const struct hd_trainer *trainer);

/* Checks on rank 0 that the file system has space for the next checkpoint; all ranks get the same
 * result. HD_STORAGE: the checkpoint does not fit. */
enum hd_status hd_trainer_check_space(struct hd_trainer *trainer);

/* Sets *ret_request to the largest `request` that any rank gives, as hd_trainer_step does.
 * Collective; call it between steps. */
enum hd_status hd_trainer_agree(struct hd_trainer *trainer, int64_t request, int64_t *ret_request);
/* Sets each of values[count] on all ranks to what the rank owner(of, index) gave. Collective; call it
 * between steps, with the same count and owners on all ranks. */
enum hd_status hd_trainer_share(struct hd_trainer *trainer, double *values, int64_t count,
                                int64_t (*owner)(const void *of, int64_t index), const void *of);

/* Reads or writes, for tests and tools, between steps, one kind of state of this rank's shard of a
 * parameter, hd_param.count values. Only the values that this rank has are read or written: see
 * hd_trainer_local_shard. Quantized weights can be read; a write leaves them unchanged. */
enum hd_status hd_trainer_read_state(struct hd_trainer *trainer, int param, enum hd_state_kind kind,
                                     float *ret_values);
enum hd_status hd_trainer_write_state(struct hd_trainer *trainer, int param,
                                      enum hd_state_kind kind, const float *values);

/* Sets *ret_first and *ret_count: this rank has *ret_count values of one kind of state of its
 * shard, from index *ret_first on. It has all values, unless the parameter belongs to another
 * pipeline stage (then none) or the values are divided among ranks by ZeRO. */
void hd_trainer_local_shard(const struct hd_trainer *trainer, int param, enum hd_state_kind kind,
                            int64_t *ret_first, int64_t *ret_count);

#endif
