/* rank_program: everything about a rank that is decided before anything runs: parameters, compiled
 * programs, the step plan, and the exact bytes of each region. The rank and the planner make the
 * same call, so a plan shows the bytes that the rank will reserve.
 *
 * Memory: everything lives in the arena that is given to hd_rank_program_build.
 * Used by: train, generate, plan.   Uses: model, optim, pipeline, program, job.
 * Threads: immutable after it is built.
 */
#ifndef HD_TRAIN_RANK_PROGRAM_H
#define HD_TRAIN_RANK_PROGRAM_H

#include "base/arena.h"
#include "base/pieces.h"
#include "job/job.h"
#include "model/model.h"
#include "pipeline/pipeline.h"
#include "program/dry.h"
#include "program/program.h"

enum { HD_EXCHANGE_SLOT_BYTES = 1024 }; /* bytes of one rank's message in hd_trainer_exchange */
/* Fields of a sample: tokens, targets, positions, index, bounds, begins, lengths; for pairs also
 * answers and reference, for completions these, sampled and advantage; or, for each further token that
 * the model predicts, ahead and further. A batch has one more field: the index of each row's sample. */
enum {
    HD_SAMPLE_FIELDS = 7,
    HD_ANSWER_FIELDS_MAX = 4,
    HD_SAMPLE_FIELDS_MAX = HD_SAMPLE_FIELDS + HD_ANSWER_FIELDS_MAX + 2 * HD_FURTHER_MAX,
    HD_BATCH_FIELDS_MAX = HD_SAMPLE_FIELDS_MAX + 1
};
/* Returns the number of fields that only samples of answers have. */
static inline int64_t hd_rank_program_answer_fields(const struct hd_job *job)
{
    return hd_job_has_policy_loss(job) ? 4 : hd_job_has_pairs(job) ? 2 : 0;
}
static inline int64_t hd_rank_program_sample_fields(const struct hd_job *job)
{
    return HD_SAMPLE_FIELDS + hd_rank_program_answer_fields(job) + 2 * job->mtp_layers;
}
static inline int64_t hd_rank_program_batch_fields(const struct hd_job *job)
{
    return hd_rank_program_sample_fields(job) + 1;
}
enum {
    /* bytes of the record of one launch, wait or poll of a profiled step */
    HD_PROFILE_RECORD_BYTES = 64,
    /* limit of the bytes of all records of a profile; a job that needs more is HD_INVALID */
    HD_PROFILE_BYTES_MAX = 1 << 30,
};

/* Memory of one rank in bytes, by purpose. */
#define HD_MEMORY_LIST(X)                                                                   \
    X(weights, "fp32 master weights")                                                       \
    X(copies, "weights in the compute encoding")                                            \
    X(gradients, "fp32 gradient sums (registered)")                                         \
    X(moments, "the optimizer's moments")                                                   \
    X(ema, "fp32 moving average of the weights (train.ema)")                                \
    X(reference, "trained weights as the run began (train.policy.kl)")                      \
    X(step_state, "step block, chunk sums, exchange records, update ranges, matrix tables") \
    X(constants, "tables of angles, slopes and indices, caches")                            \
    X(kept, "activations saved for backward, all slots")                                    \
    X(deferred, "tensors saved for deferred weight gradients, all slots")                   \
    X(boundary, "hidden rows between chunks, and their gradients (registered)")             \
    X(work, "temporaries and scratch; ZeRO: buckets, gathered weights")                     \
    X(sample, "host buffers of samples, for context parallelism and for a device")          \
    X(offload, "gradients and weights in transfer to the host and back (parallel.offload)") \
    X(snapshot, "copy of a rank's checkpoint entries (checkpoint.async)")                   \
    X(profile, "records of the profiled steps (train.profile)")                             \
    X(teacher, "model of the teacher, and its predictions of a step (train.distill)")       \
    X(reward_model, "model that rates answers (train.rewards)")                             \
    X(exchange, "messages between hosts (registered)")

struct hd_memory {
#define X(name, meaning) int64_t name;
    HD_MEMORY_LIST(X)
#undef X
    /* Bytes of the private reservation, of the registered one and, on a device, of host memory:
     * samples, profile, snapshot, and with parallel.offload masters, moments, averages and ranges. The sum of
     * the three is the sum of all members above. */
    int64_t private_bytes, registered_bytes, host_bytes;
    /* Bytes of weights, moments, averages and step_state that are part of host_bytes
     * (parallel.offload); 0: none. */
    int64_t host_weights, host_moments, host_ema, host_ranges;
};

/* Returns the device memory in bytes that the private and the registered reservation take, each
 * rounded up to whole pages. */
int64_t hd_memory_on_device(const struct hd_memory *memory, const struct hd_traits *traits);

/* Most channels of one rank, and most communicators: the world's, the groups' and the channels'. */
enum {
    HD_GPU_CHANNELS_MAX = 16,
    HD_GPU_COMMUNICATORS_MAX = 1 + HD_GROUP_COUNT + HD_GPU_CHANNELS_MAX
};

/* GPU memory that a rank's process uses besides its reservations, from the device's traits, which
 * assume or have measured it. */
struct hd_gpu_overhead {
    int64_t process_bytes; /* CUDA context, kernels and libraries */
    int communicators;     /* number of NCCL communicators; 0 with one rank */
    /* bytes of the NCCL communicators and of the nccl engine's own buffers */
    int64_t communicators_bytes;
    int64_t buffers_bytes; /* the latter's part of communicators_bytes */
    /* [communicators]; the first is the world's, then those of the mesh's groups, then channels */
    struct hd_gpu_communicator {
        char name[24]; /* group, such as "dp_cp", or channel, such as "grad to stage 2" */
        int members;   /* number of ranks */
        int blocks;    /* most blocks of its kernels (hd_comm_nccl_blocks) */
        int channels;  /* most channels of its sends and receives with a peer */
        int64_t bytes; /* hd_traits.communicator_bytes and its connections */
    } list[HD_GPU_COMMUNICATORS_MAX];
};
struct hd_rank_program;
/* Returns what the programs of steps and validations do on the rank's group of this name, as flags
 * of hd_comm_use; 0: nothing. The world's group always gathers (exchange.h). */
unsigned hd_rank_program_group_uses(const struct hd_rank_program *rank_program,
                                    enum hd_group_name group);

struct hd_gpu_overhead hd_rank_program_gpu_overhead(const struct hd_rank_program *rank_program,
                                                    const struct hd_traits *traits);

struct hd_rank_program_options {
    /* Options for tests, for a job with one pipeline stage: another schedule, and B and W as
     * separate programs. */
    enum hd_schedule_kind schedule;
    bool split_backward;
    /* true: steps may have any number of micro-batches, from 1 to that of train.global_batch;
     * false: only the numbers that the job's batches have */
    bool any_micro_batches;
    /* a step, from 1, of the span of data.stages whose sizes the program has (job/data_stages.h); 0:
     * the job's own sizes, which are those of the longest context */
    int64_t step;
};

/* Most micro-batches in one round of validation, which is one run of the eval instruction stream:
 * it fills and drains the pipeline once. */
enum { HD_EVAL_ROUND = HD_PIECE(64, 3) };

/* The two programs of decoding on the ranks of training (rollout.h), and most sequences at a time on
 * a rank. */
enum hd_decode_program { HD_DECODE_PROMPTS, HD_DECODE_TOKENS, HD_DECODE_PROGRAMS };
enum { HD_DECODE_SLOTS_MAX = 64 };

/* Decoding with the weights of training, between two steps. The memory of its caches, constants and
 * temporaries is that of the saved and deferred activations and of work, which only steps and
 * validations use; hd_memory.work has what it needs beyond these. */
struct hd_rank_decode {
    /* sequences at a time on each dp and cp rank, each with a slot of the caches; 0: the job writes
     * no samples, and the other members are unset */
    int64_t slots;
    /* tokens of each sequence that a call of program HD_DECODE_PROMPTS reads; HD_DECODE_TOKENS
     * reads one */
    int64_t rows;
    /* [program][chunk_count], with the same caches and constants in both programs */
    struct hd_chunk **chunks[HD_DECODE_PROGRAMS];
    struct hd_step_plan plan; /* instruction stream of one call on this rank's stage */
    int64_t *state;           /* [chunk_count], offsets of caches and constants; private */
    int64_t work[2];
    /* offset of the logits that tp ranks gather: [tp + 1, slots, columns] fp32, the last one this
     * rank's; registered */
    int64_t logits;
    int64_t cache_bytes;  /* bytes of caches and constants */
    int64_t bytes;        /* bytes of all of this memory */
    int64_t beyond_bytes; /* bytes of it that steps and validations leave no memory for */
};

/* Data that is equal for all ranks of a job: sizes, the division of the model into chunks, and the
 * instruction streams of all stages, checked together for deadlock. */
struct hd_rank_program_shared {
    struct hd_job job;
    struct hd_model_config config;
    struct hd_mesh mesh;
    struct hd_pipeline pipeline;
    struct hd_units *units;     /* [pipeline.chunks], the units of each chunk */
    const int32_t *unit_stages; /* [units of the model], the stage of each unit */
    /* schedules of all stages: `order` for a training step, eval_order for a round of validation,
     * decode_order for a call of decoding */
    struct hd_schedule order, eval_order, decode_order;
    /* [stages], instruction streams of each stage: `plans` for a training step, eval_plans for a
     * round of validation, decode_plans for a call of decoding; NULL: the job decodes nothing.
     * `plans` is of the largest step; its numbers of slots suffice for every step */
    struct hd_step_plan *plans, *eval_plans, *decode_plans;
    struct hd_traits traits; /* traits of the ranks' devices, which are all of one kind */
    int64_t micro_batches;   /* micro-batches that each rank computes in the largest step */
    /* [world], bytes of the checkpoint entries that each rank saves; NULL: no snapshot is made (no
     * checkpoint.async) */
    int64_t *snapshot_bytes;
    /* [other_count], the same of the job's other spans (job/data_stages.h), for which a rank's
     * reservation must suffice, too */
    struct hd_rank_program_shared *others;
    int64_t other_count;
    /* the same of a frozen model (job/frozen_model.h), whose programs are those of validation
     * alone, on the same mesh; NULL: the job has none */
    struct hd_rank_program_shared *frozen;
    bool only_evaluates; /* true: these are the values of a frozen model */
};

struct hd_rank_program {
    struct hd_job job;
    struct hd_mesh mesh;
    int rank;
    struct hd_mesh_coord coord;
    struct hd_model model;
    struct hd_registry registry;
    struct hd_pipeline pipeline;
    struct hd_schedule order, eval_order; /* schedules of all stages */
    struct hd_units *units;               /* [pipeline.chunks], the units of each chunk */
    /* chunks on this rank: train[k] is chunk hd_rank_program_chunk(k) of the model */
    int chunk_count;
    struct hd_chunk **train, **eval, *update;
    /* instruction streams of this rank's stage: `plan` for the largest training step, eval_plan for
     * a round of validation. The numbers of slots of `plan` suffice for every step */
    struct hd_step_plan plan, eval_plan;
    struct hd_rank_decode decode;
    int64_t micro_batches; /* micro-batches that each rank computes in the largest step */
    /* bytes of the checkpoint entries that this rank saves; 0: no snapshot is made */
    int64_t snapshot_bytes;
    struct hd_memory memory;

    /* Offsets in bytes in the private or registered reservation. On a device profile, sample,
     * batch, snapshot, host_state and window are offsets in host memory. */

    /* offsets of each chunk's constants, for training and for validation; private */
    int64_t *train_state, *eval_state;
    /* offsets of the regions; [0]: in the private reservation, [1]: in the registered one */
    int64_t saved[2], deferred[2], work[2];
    /* bytes of one slot of saved and of deferred activations; [0]: private, [1]: registered */
    int64_t saved_slot[2], deferred_slot[2];
    /* offset of the slots for hidden rows that stages send and receive; bytes of one such slot;
     * registered */
    int64_t stage_io, stage_io_slot;
    int64_t work_bytes; /* bytes of the private work region */
    int64_t profile;    /* offset of the profile's records; private */
    /* offset of one whole sample: [fields of a sample, context], elements of 4 bytes; private */
    int64_t sample;
    /* offset of the copy of the entries that this rank writes to a checkpoint; private */
    int64_t snapshot;
    /* offset of the state of offloaded buckets (registry.h); only with a device */
    int64_t host_state;
    /* offset of the gradients of the largest offloaded bucket, then its compute copies; only with a
     * device */
    int64_t window;
    /* offset of the host's copy of a batch: [fields of a batch, rows of a micro-batch], elements of
     * 4 bytes; only with a device */
    int64_t batch;
    /* with a teacher's file: offset of the places of a batch's targets in the corpus,
     * [max(rows of a micro-batch, context)] int64; then, with a device, the host's copy of the fields
     * TEACHER_IDS and TEACHER_LOGQ. With a teacher's model, on the stage of the head: these two fields of
     * all micro-batches of a step, [micro_batches, rows of a micro-batch, top_k] int32, then floats */
    int64_t teacher;
    /* program of the frozen model on this rank; NULL: there is none. Its memory begins at these
     * offsets of the private, the registered and, on a device, the host memory */
    struct hd_rank_program *frozen_program;
    int64_t frozen_begin[3];
    /* offset of the messages of hd_trainer_exchange: [world + 1, HD_EXCHANGE_SLOT_BYTES];
     * registered */
    int64_t exchange;
};

/* Builds the program of one rank of the job's mesh, for a device with the given traits. The memory of
 * a job with several spans suffices for each of them: what the others need beyond this program's is
 * part of hd_memory.work, on a host of a device of hd_memory.sample. HD_INVALID,
 * HD_UNSUPPORTED or HD_LIMIT: the job is not possible. HD_NO_MEMORY. */
enum hd_status hd_rank_program_build(const struct hd_job *job, int rank,
                                     const struct hd_traits *traits,
                                     const struct hd_rank_program_options *options,
                                     struct hd_arena *arena,
                                     struct hd_rank_program *ret_rank_program);

/* The two parts of hd_rank_program_build, for callers that build several ranks.
 * hd_rank_program_prepare computes what all ranks share; the rank program borrows from `shared`.
 * hd_rank_program_declare only declares one rank's parameters and finishes its registry. */
enum hd_status hd_rank_program_prepare(const struct hd_job *job, const struct hd_traits *traits,
                                       const struct hd_rank_program_options *options,
                                       struct hd_arena *arena,
                                       struct hd_rank_program_shared *ret_shared);
/* Computes only the sizes, the division of the model into chunks, and the schedules: no instruction
 * streams, traits or snapshots. cut: the units of each chunk, from a call for the same model with
 * as many chunks and stages, which must live as long as ret_shared; NULL: this function divides the
 * model. */
enum hd_status hd_rank_program_schedule(const struct hd_job *job, struct hd_units *cut,
                                        struct hd_arena *arena,
                                        struct hd_rank_program_shared *ret_shared);
enum hd_status hd_rank_program_build_rank(const struct hd_rank_program_shared *shared, int rank,
                                          struct hd_arena *arena,
                                          struct hd_rank_program *ret_rank_program);
/* Turns the program of one rank into that of another rank, perhaps on another stage, whose programs
 * differ only in unit numbers (plan/classes.h): replaces its instruction streams, its slots of
 * activations and its memory sizes. For planning only. */
enum hd_status hd_rank_program_take_place(const struct hd_rank_program_shared *shared, int rank,
                                          struct hd_rank_program *rank_program);
enum hd_status hd_rank_program_declare(const struct hd_rank_program_shared *shared, int rank,
                                       struct hd_arena *arena, struct hd_registry *ret_registry,
                                       struct hd_model *ret_model);

/* Generates the instruction stream of this rank's stage for a step in which each rank computes
 * `micro_batches` micro-batches, 1 to rank_program->micro_batches, in `arena`, after checking those of
 * all stages together. HD_INVALID: another number, or one for which the plan reserves too few slots
 * (hd_rank_program_options.any_micro_batches). */
enum hd_status hd_rank_program_step_plan(const struct hd_rank_program *rank_program,
                                         int64_t micro_batches, struct hd_arena *arena,
                                         struct hd_step_plan *ret_plan);

/* Returns how many micro-batches a step on the model's own answers computes (train.objective: grpo) that
 * needs `needed` of at most `largest`: the next larger of the eighths of `largest`, so that few
 * instruction streams occur. */
int64_t hd_rank_program_round_micro_batches(int64_t largest, int64_t needed);

/* Compiles the training programs F, B and W of these units alone, or the optimizer's update of all
 * parameters that the registry's rank holds, as hd_rank_program_build_rank does, but does not
 * assign offsets in work memory. For the planner, which adds up the memory of single units
 * (plan/layer_profile.h). */
enum hd_status hd_rank_program_compile_units(const struct hd_rank_program_shared *shared,
                                             const struct hd_registry *registry,
                                             const struct hd_model *model, struct hd_units units,
                                             struct hd_arena *arena, struct hd_chunk **ret_chunk);
/* Compiles, for the planner too, the program of decoding that reads `rows` tokens of each of `slots`
 * sequences. */
enum hd_status hd_rank_program_compile_decode(const struct hd_rank_program_shared *shared,
                                              const struct hd_registry *registry,
                                              const struct hd_model *model, struct hd_units units,
                                              int64_t slots, int64_t rows, struct hd_arena *arena,
                                              struct hd_chunk **ret_chunk);
enum hd_status hd_rank_program_compile_update(const struct hd_rank_program_shared *shared,
                                              const struct hd_registry *registry,
                                              struct hd_arena *arena, struct hd_chunk **ret_chunk);

/* Returns true if tensors are in device memory, false if they are in host memory. */
static inline bool hd_rank_program_has_device(const struct hd_rank_program *rank_program)
{
    return rank_program->update->traits.memory_bytes > 0;
}

/* Returns the number, within the model, of this rank's k-th chunk. */
static inline int32_t hd_rank_program_chunk(const struct hd_rank_program *rank_program, int k)
{
    return hd_pipeline_chunk(&rank_program->pipeline, rank_program->coord.pp, k);
}

/* Returns the chunk whose programs an instruction of `plan` or `eval_plan` runs; *ret_state: offset
 * of the constants of these programs. */
const struct hd_chunk *hd_rank_program_get(const struct hd_rank_program *rank_program,
                                           const struct hd_instruction *in, int64_t *ret_state);

/* Returns the chunk whose program an instruction of decode.plan runs; *ret_state: offset of its
 * caches and constants. */
const struct hd_chunk *hd_rank_program_get_decode(const struct hd_rank_program *rank_program,
                                                  enum hd_decode_program program,
                                                  const struct hd_instruction *in,
                                                  int64_t *ret_state);
/* Returns the number of sequences that ranks of this job decode at a time: as many as a micro-batch
 * has, so that their caches take little more memory than the activations of a step; 0: none. */
int64_t hd_rank_program_decode_slots(const struct hd_job *job);
/* Returns the tokens of each of these sequences that a call of the program reads. */
int64_t hd_rank_program_decode_rows(const struct hd_job *job, enum hd_decode_program program);

/* Returns the number of slots of hidden rows that stages send and receive. */
int32_t hd_rank_program_stage_io_slots(const struct hd_rank_program *rank_program);

/* Adds the work of one instruction to the totals in `dry`, and its transfer to those of group pp: a
 * SEND counts as a call, a RECEIVE as a call and the bytes received. */
void hd_rank_program_fold(const struct hd_rank_program *rank_program,
                          const struct hd_instruction *in, struct hd_dry *dry);

/* Returns the offset in bytes of an offloaded bucket's compute copies, counted from the begin of
 * hd_rank_program.window. */
int64_t hd_rank_program_window_copy(const struct hd_bucket *bucket);

/* Returns the number of elements that a transfer moves, and their encoding. */
int64_t hd_rank_program_transfer(const struct hd_rank_program *rank_program,
                                 const struct hd_instruction *in, enum hd_dtype *ret_dtype);

/* Sets *ret_mesh to the mesh of the job's ranks. */
enum hd_status hd_rank_program_mesh(const struct hd_job *job, struct hd_mesh *ret_mesh);

/* Returns the quantization of the blocks' matrices (model.quantization); NONE: not quantized. */
enum hd_quant hd_rank_program_quant(const struct hd_job *job);

/* Returns the preference loss that train.objective names; NONE: another objective. */
enum hd_preference hd_rank_program_preference(const struct hd_job *job);

/* Returns the estimator that train.policy.kl names, be it in the loss or in the reward. */
enum hd_policy_kl hd_rank_program_kl(const struct hd_job *job);

/* Returns the numbers of the loss of completions that train.policy names, for a job that has one. */
struct hd_policy_factors hd_rank_program_policy(const struct hd_job *job);

/* Returns true for train.precision: fp8, which computes in bf16 except for the products of
 * training. */
bool hd_rank_program_is_fp8(const struct hd_job *job);
/* Returns the encoding whose measured peak MFU is relative to: that of the factors of matrix
 * products (measure_peak). */
enum hd_dtype hd_rank_program_peak_dtype(const struct hd_job *job);
/* Returns the compute encoding that train.precision names; HD_F32 if it names none. */
enum hd_dtype hd_rank_program_compute_dtype(const struct hd_job *job);

#endif
