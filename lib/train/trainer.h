/* trainer: the members of a trainer. Only for lib/train. */
#ifndef HD_TRAIN_TRAINER_H
#define HD_TRAIN_TRAINER_H

#include "base/pieces.h"
#include "optim/optim.h"
#include "train/exam.h"
#include "train/guard.h"
#include "train/job_data.h"
#include "train/opened_rank.h"
#include "train/prompts.h"
#include "train/scale.h"
#include "train/train.h"

struct hd_profile;
struct hd_bound_instructions;
struct hd_background_save;
struct hd_reference;
struct hd_teacher;
struct hd_rollouts;
struct hd_packed_completions;
struct hd_rollout_sequence;

/* Numbers of validations (val_numbers.c). */
struct hd_val_numbers {
    /* the newest loss of each validation set, scores of each file of questions, and the steps of
     * their weights; -1: none */
    double loss[HD_JOB_VAL_SETS_MAX], acc[HD_CHOICE_SETS_MAX], acc_norm[HD_CHOICE_SETS_MAX];
    double pass[HD_CHOICE_SETS_MAX], pass_k[HD_CHOICE_SETS_MAX];
    int64_t loss_step[HD_JOB_VAL_SETS_MAX], score_step[HD_CHOICE_SETS_MAX],
        pass_step[HD_CHOICE_SETS_MAX];
    /* the same losses of the moving averages of the weights (validate.ema) */
    double ema[HD_JOB_VAL_SETS_MAX];
    int64_t ema_step[HD_JOB_VAL_SETS_MAX];
    /* early stopping: the number that later ones must improve on, NaN: none; its step; validations
     * since then; the step of the last one that was counted, -1: none in this attempt */
    double stop_best;
    int64_t stop_best_step, stop_waits, stop_step;
};

struct hd_trainer {
    struct hd_arena arena;
    struct hd_rank_program rank_program;
    struct hd_opened_rank open; /* its communicator is borrowed */
    struct hd_opened_rank host; /* CPU backend for parallel.offload (offload.h); else {0} */
    struct hd_stream *host_stream;
    struct hd_traits traits;
    struct hd_comm_group *world;
    double peak;            /* measured FLOP/s of this rank */
    double flops_per_token; /* hd_model_flops_per_token */
    /* ms that a rank waits for other ranks, in steps and in saves or loads */
    int64_t step_deadline_ms, save_deadline_ms;
    void (*alive)(void *user); /* of hd_trainer_options; NULL: none */
    void *alive_user;

    char *private_base, *registered_base; /* memory of tensors; on a device, device addresses */
    /* host memory for profile, sample and batch (rank_program.h) */
    char *host_base;
    struct hd_reservation reservation;

    /* bound instruction streams: `step` for the next training step, `round` for a round of
     * validation */
    struct hd_bound_instructions *step, *round;
    bool has_averages; /* true: programs compute with the averages of the weights (averages.c) */
    /* [largest number of micro-batches + 1], the streams of steps by their number of micro-batches;
     * NULL: not bound yet */
    struct hd_bound_instructions **steps;
    int64_t micro_batches;        /* micro-batches that each rank computes in the next step */
    struct hd_rollouts *rollouts; /* bound programs of decoding (rollout.c); NULL: none */
    /* [slots at hd_rank_program.stage_io, which hold hidden rows sent or received], the transfer
     * in progress in each slot */
    struct hd_transfer *slots;

    /* Host copies of step results. Between two steps only the host changes the step's state block,
     * so it writes its whole copy back to the device. */
    struct hd_step_state block;
    /* host copies of the global buffers HD_GLOBAL_RECORDS, HD_GLOBAL_ROUTES, HD_GLOBAL_FURTHER and
     * HD_GLOBAL_SCORES */
    double *records, *routes, *further;
    float *scores;
    char *messages; /* result of hd_trainer_exchange: [world, HD_EXCHANGE_SLOT_BYTES] */
    /* [experts], how often the routers chose each expert in the last step */
    int64_t *router_load;

    struct hd_job_data data;
    struct hd_exams exams;
    struct hd_prompts prompts;
    struct hd_rollout_sequence *sampled; /* [prompts.count], with the newest samples */
    /* open file of DPO's reference log-probabilities (reference.c); NULL: none is open */
    struct hd_reference *reference;
    struct hd_packed_completions *completions; /* of the next step (policy.c); NULL: none are set */
    struct hd_teacher *teacher; /* open file of a teacher (teacher.c); NULL: none is open */
    /* model that only computes (frozen.c): its programs, in memory of this trainer; NULL: none */
    struct hd_trainer *frozen;
    struct hd_lr_schedule schedule;
    /* [stages of the data], schedules of those that have one of their own */
    struct hd_lr_schedule stage_schedules[HD_JOB_STAGES_MAX];

    struct hd_profile *profile; /* NULL: the job has no train.profile */
    /* path of the last checkpoint, which has a copy of the base model's files; "": none */
    char files_of[HD_JOB_PATH_MAX];
    /* background save; NULL: the job has no checkpoint.async */
    struct hd_background_save *background;
    /* true, on rank 0 only: an earlier check found the attempt's folder */
    bool saw_attempt_dir;

    int64_t steps_done;
    int64_t span_end; /* last step of the trainer's span of data.stages; without spans of the run */
    int64_t updates;  /* steps that were not skipped */
    int64_t tokens_seen; /* tokens in all steps done, without padding */
    struct hd_loss_scale scale;
    struct hd_guard guard;
    /* batches skipped by hd_trainer_go_back: step n trains on batch n + data_skipped; below 0: the
     * run goes on from another (hd_trainer_continue) with other data */
    int64_t data_skipped;

    /* Timing of the last step, which this rank sends with the next one, and the reports that all
     * ranks sent with the last step about the step before it. */
    /* duration in ms of this rank's last step without its waits for other ranks; below 0:
     * unknown */
    double busy_ms;
    int awaited;              /* rank that this rank waited for longest; -1: none, or unknown */
    double step_ms;           /* ms of the last step on this rank; 0: no step was done yet */
    double *reported_busy_ms; /* [world], value that each rank sent with the last step */
    int *reported_waiting;    /* [world], value that each rank sent with the last step */

    struct hd_pair_result validated_pairs; /* pairs of the last validation */

    struct hd_val_numbers numbers;
    /* Numbers for checkpoint.best, of which lower ones are better. */
    /* val_loss: that of the weights at step val_step; lowest_val_loss: lowest one of the run so
     * far; NaN: none */
    double val_loss, lowest_val_loss;
    /* steps of these two; lowest_step -1: the lowest number is from before this attempt */
    int64_t val_step, lowest_step;
};

/* Allocates the members for background saves (checkpoint.async), so that hd_trainer_save_begin
 * cannot fail for lack of memory on one rank alone. hd_trainer_background_done stops a save in
 * progress; its shard stays without a manifest, so it is no checkpoint. */
enum hd_status hd_trainer_background_init(struct hd_trainer *t);
void hd_trainer_background_done(struct hd_trainer *t);

/* Reads the prompts of validate.samples (samples.c). */
enum hd_status hd_trainer_open_samples(struct hd_trainer *t, struct hd_job_tokenizer *tokenizer);
/* Writes the host's copy of the step's state block to the device. */
enum hd_status hd_trainer_write_block(struct hd_trainer *t);

/* Set the sums that programs E add to, in the step's state block, to zero, and read them. */
enum hd_status hd_trainer_reset_sums(struct hd_trainer *t);
enum hd_status hd_trainer_read_sums(struct hd_trainer *t);
/* Returns HD_LIMIT: routers sent more rows than parallel.expert_rows allows. */
enum hd_status hd_trainer_refuse_rows(void);

/* Store the newest numbers of a validation, and decide with them (val_numbers.c). */
void hd_trainer_note_loss(struct hd_trainer *t, int64_t set, double loss);
void hd_trainer_note_ema(struct hd_trainer *t, int64_t set, double loss);
void hd_trainer_note_score(struct hd_trainer *t, int64_t index, const struct hd_exam_score *score);
/* Forgets all numbers, also those to compare with. */
void hd_trainer_forget_numbers(struct hd_trainer *t);

/* Sets block.kl to the KL term of a validation set, or of the next step if `set` is NULL
 * (mismatched.c). Runs the eval programs; collective. */
enum hd_status hd_trainer_find_kl(struct hd_trainer *t, const struct hd_validation *set);
/* Make a trainer for the programs of the frozen model, in this one's memory; read its weights; and free it
 * (frozen.c). All but the last are collective. */
enum hd_status hd_trainer_open_frozen(struct hd_trainer *t);
enum hd_status hd_trainer_load_frozen(struct hd_trainer *t);
void hd_trainer_close_frozen(struct hd_trainer *t);
/* Runs the teacher's model on the batch of the next step, whose predictions a rank with the head then has
 * (lessons.c). Collective. */
enum hd_status hd_trainer_take_lessons(struct hd_trainer *t);
/* Returns the number of predictions of a micro-batch: rows of this rank x top_k. */
static inline int64_t hd_trainer_lesson_elements(const struct hd_trainer *t)
{
    const struct hd_job *job = &t->rank_program.job;

    return job->micro_batch * job->context / job->cp * job->distill_top_k;
}
/* Return the predictions of a micro-batch: [rows, top_k] ids, and log q. */
static inline int32_t *hd_trainer_lesson_ids(const struct hd_trainer *t, int64_t micro_batch)
{
    return (int32_t *)(void *)(t->host_base + t->rank_program.teacher) +
           micro_batch * hd_trainer_lesson_elements(t);
}
static inline float *hd_trainer_lesson_logq(const struct hd_trainer *t, int64_t micro_batch)
{
    return (float *)(void *)hd_trainer_lesson_ids(t, t->rank_program.micro_batches + micro_batch);
}

/* Unmaps the teacher's file (teacher.c). */
void hd_trainer_close_teacher(struct hd_trainer *t);
/* Unmaps the reference file (reference.c). */
void hd_trainer_close_reference(struct hd_trainer *t);

/* Makes the compute copies of a bucket from its masters or, with HD_STATE_EMA, from their averages: each
 * rank casts its own shard, if copies are memory of their own; ZeRO 1 and 2 then gather the shards
 * (load.c). Collective. */
enum hd_status hd_trainer_refresh_bucket(struct hd_trainer *t, const struct hd_bucket *bucket,
                                         enum hd_state_kind from);

/* Returns the address of one kind of state of a bucket that this rank holds, in device or host
 * memory. */
char *hd_trainer_state(const struct hd_trainer *t, const struct hd_bucket *bucket,
                       enum hd_state_kind kind);

/* Lets two tensors of a state, both on the device or both in host memory, change places, between steps
 * (state.c). */
enum hd_status hd_trainer_swap(struct hd_trainer *t, char *a, char *b, int64_t size_bytes);

/* Returns the number of sequences of the next step, over all ranks. */
static inline int64_t hd_trainer_batch(const struct hd_trainer *t)
{
    return t->micro_batches * t->rank_program.job.micro_batch * t->rank_program.job.dp;
}

void *hd_trainer_global(const struct hd_trainer *t, enum hd_global global);

/* Elements of one kind of state of a parameter that this rank has: first .. first + count - 1 of
 * its shard of the parameter (struct hd_param), row-major. count is 0 if it has none. */
struct hd_local_shard {
    int64_t first, count;
    /* address of the element with index `first`, or of the code that encodes it */
    char *at;
    /* encoding of the elements, if they are neither in 8-bit blocks nor quantized */
    enum hd_dtype dtype;
    /* elements per block of a moment in 8-bit blocks (base/encoding.h); 0: fp32 */
    int64_t block;
    char *scales; /* scales of a moment in blocks, from the block of element `first` on */
    enum hd_map map;
    const struct hd_param
        /* parameter of a quantized matrix, whose first record is `at`; NULL: not quantized */
        *codes;
};
struct hd_local_shard hd_trainer_find(const struct hd_trainer *t, int param,
                                      enum hd_state_kind kind);

/* Returns true if the elements are fp32, so that no decoding is needed; else they are accessed with
 * the functions below. */
static inline bool hd_local_shard_is_plain(const struct hd_local_shard *local_shard)
{
    return !local_shard->block && !local_shard->codes && local_shard->dtype == HD_F32;
}

/* Read or write elements [at, at + count) of a local shard as fp32; of a moment in blocks only
 * whole blocks. Quantized matrices can only be read: encoded.h makes them. */
/* most elements of a local shard that are decoded or encoded at a time: whole blocks of moments */
enum { HD_LOCAL_SHARD_CHUNK = HD_PIECE(64 * 1024, 768) };
enum hd_status hd_local_shard_read(const struct hd_staging *staging,
                                   const struct hd_local_shard *local_shard, int64_t at,
                                   int64_t count, float *ret_values);
enum hd_status hd_local_shard_write(const struct hd_staging *staging,
                                    const struct hd_local_shard *local_shard, int64_t at,
                                    int64_t count, const float *values);

/* Gathers a message from the host of each rank on all ranks: every rank gives at most
 * HD_EXCHANGE_SLOT_BYTES. *ret_all: one slot of HD_EXCHANGE_SLOT_BYTES per rank, valid until the
 * next call. Collective: all ranks must call it. */
enum hd_status hd_trainer_exchange(struct hd_trainer *t, const void *mine, size_t size_bytes,
                                   const char **ret_all);

/* Makes ranks that compute the same matrix product use the same GEMM algorithm from now on, and
 * stores the choice on disk (choices.c). All ranks call it after their programs are bound. */
enum hd_status hd_trainer_settle_choices(struct hd_trainer *t);

#endif
