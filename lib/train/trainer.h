/* trainer: the members of a trainer. Only for lib/train. */
#ifndef HD_TRAIN_TRAINER_H
#define HD_TRAIN_TRAINER_H

#include "optim/optim.h"
#include "train/guard.h"
#include "train/job_data.h"
#include "train/reserve.h"
#include "train/scale.h"
#include "train/staging.h"
#include "train/train.h"

struct hd_profile;
struct hd_bound_instructions;
struct hd_background_save;
struct hd_reference;

struct hd_trainer {
    struct hd_arena arena;
    struct hd_rank_program rank_program;
    const struct hd_backend_table *table;
    struct hd_backend *backend;
    struct hd_backend *own_backend;  /* NULL: `backend` is borrowed */
    struct hd_backend *host_backend; /* of the CPU, with parallel.offload (offload.h), else NULL */
    struct hd_stream *host_stream;
    struct hd_traits traits;
    struct hd_comm *comm;
    struct hd_comm_group *world;
    struct hd_runner *runner;
    double peak;                                /* measured FLOP/s of this rank */
    double flops_per_token;                     /* hd_model_flops_per_token */
    int64_t step_deadline_ms, save_deadline_ms; /* of waits for other ranks */

    char *private_base, *registered_base; /* of tensors; on a device, device addresses */
    char *host_base;                      /* host memory for profile, sample and batch
                                             (rank_program.h) */
    struct hd_private reserved; /* memory of host_base and, without a device, private_base */
    struct hd_reservation reservation;
    struct hd_staging staging;

    struct hd_bound_instructions *step, *round; /* of a step, of a round of validation */
    struct hd_transfer *slots; /* of the boundary region: the transfers under way */

    /* The host's copies of step results. Between two steps only the host changes the block, so its
     * whole copy is written back. */
    struct hd_step_state block;
    double *records, *routes; /* HD_GLOBAL_RECORDS, HD_GLOBAL_ROUTES */
    char *messages;           /* of hd_trainer_exchange: [world, HD_EXCHANGE_SLOT_BYTES] */
    int64_t *router_load;     /* [experts] of the last step */

    struct hd_job_data data;
    struct hd_reference *reference; /* reference.c; NULL: none is open */
    struct hd_lr_schedule schedule;

    struct hd_profile *profile;    /* NULL: the job has no train.profile */
    char kept_by[HD_JOB_PATH_MAX]; /* the last checkpoint, which has the base's files; "": none */
    struct hd_background_save *background; /* NULL: without checkpoint.async */
    bool saw_attempt_dir;                  /* rank 0: the attempt's folder was there once */

    int64_t steps_done;
    int64_t updates;     /* steps done that were not skipped */
    int64_t tokens_seen; /* of all steps done, without padding */
    struct hd_loss_scale scale;
    struct hd_guard guard;
    int64_t data_skipped; /* batches that were left out: step n trains on batch n + data_skipped */

    /* Of the last step: what this rank tells with the next one, and what all told with it of the
     * step before. */
    double busy_ms;           /* less than 0: not known */
    int awaited;              /* rank; -1: none, or not known */
    double step_ms;           /* 0: no step was done yet */
    double *reported_busy_ms; /* [world] */
    int *reported_waiting;    /* [world] */

    struct hd_pair_result validated_pairs; /* of the last validation */

    /* of checkpoint.best */
    double val_loss, lowest_val_loss; /* of step val_step; of the run until now; NaN: none */
    int64_t val_step, lowest_step;    /* lowest_step: -1 if it was before this attempt */
};

/* For checkpoint.async: memory for what describes a save, so that begin does not fail for want of
 * it on one rank alone. done ends a save that is under way; what was written of it is no
 * checkpoint. */
enum hd_status hd_trainer_background_init(struct hd_trainer *t);
void hd_trainer_background_done(struct hd_trainer *t);

/* reference.c */
void hd_trainer_close_reference(struct hd_trainer *t);

/* Where a kind of state of a held part begins, in device or host memory. */
char *hd_trainer_state(const struct hd_trainer *t, const struct hd_bucket *bucket,
                       enum hd_state_kind kind);

void *hd_trainer_global(const struct hd_trainer *t, enum hd_global global);

/* Where this rank has a kind of state of a parameter: elements first .. first + count - 1 of its
 * share of the parameter (struct hd_param), row-major. count is 0 where it has nothing. */
struct hd_local_shard {
    int64_t first, count;
    char *at;            /* of element `first`, or its code */
    enum hd_dtype dtype; /* of elements that are not in blocks */
    int64_t block;       /* of a moment in blocks (base/encoding.h); 0: fp32 */
    char *scales;        /* of a moment in blocks: of the block that begins with element `first` */
    enum hd_map map;
    const struct hd_param
        *codes; /* of a matrix in codes: the parameter; `at` is its first record */
};
struct hd_local_shard hd_trainer_find(const struct hd_trainer *t, int param,
                                      enum hd_state_kind kind);

/* Whether the host sees in its memory what is held: fp32. Else it reads and writes by the functions
 * below. */
static inline bool hd_local_shard_is_plain(const struct hd_local_shard *local_shard)
{
    return !local_shard->block && !local_shard->codes && local_shard->dtype == HD_F32;
}

/* Elements [at, at + count) of those held, as fp32; of a moment in blocks they are whole blocks.
 * What is in codes can only be read: encoded.h makes it. */
enum { HD_LOCAL_SHARD_CHUNK = 64 * 1024 }; /* elements that are decoded or encoded at once */
enum hd_status hd_local_shard_read(const struct hd_staging *staging,
                                   const struct hd_local_shard *local_shard, int64_t at,
                                   int64_t count, float *ret_values);
enum hd_status hd_local_shard_write(const struct hd_staging *staging,
                                    const struct hd_local_shard *local_shard, int64_t at,
                                    int64_t count, const float *values);

/* All-gather of host data: every rank gives at most HD_EXCHANGE_SLOT_BYTES. ret_all: slot of each
 * rank, valid until the next call. Collective: all ranks must call it. */
enum hd_status hd_trainer_exchange(struct hd_trainer *t, const void *mine, size_t size_bytes,
                                   const char **ret_all);

/* choices.c. All ranks call it after their programs are bound: those that have the same product use
 * the same algorithm for it from now on, and keep that choice on disk. */
enum hd_status hd_trainer_settle_choices(struct hd_trainer *t);

#endif
