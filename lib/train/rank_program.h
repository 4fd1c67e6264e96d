/* layout: everything about a rank that is known before anything runs: parameters, compiled
 * programs, the step plan, and the exact bytes of each region. The rank and the planner make the
 * same call, so a plan has the bytes that the rank will reserve.
 *
 * Memory: everything lives in the arena that is given to hd_rank_program_build.
 * Used by: train, generate, plan.   Uses: model, optim, pipeline, program, job.
 * Threads: immutable after it is built.
 */
#ifndef HD_TRAIN_RANK_PROGRAM_H
#define HD_TRAIN_RANK_PROGRAM_H

#include "base/arena.h"
#include "job/job.h"
#include "model/model.h"
#include "pipeline/pipeline.h"
#include "program/dry.h"
#include "program/program.h"

enum { HD_EXCHANGE_SLOT_BYTES = 1024 }; /* of one rank's message in hd_trainer_exchange */
/* Fields of a sample: tokens, targets, positions, index, bounds, begins, lengths; of pairs answers
 * and reference. Those of a batch: and the index of the row's sample. */
enum { HD_SAMPLE_FIELDS_MAX = 9, HD_BATCH_FIELDS_MAX = HD_SAMPLE_FIELDS_MAX + 1 };
static inline int64_t hd_rank_program_sample_fields(const struct hd_job *job)
{
    return hd_job_has_pairs(job) ? HD_SAMPLE_FIELDS_MAX : 7;
}
static inline int64_t hd_rank_program_batch_fields(const struct hd_job *job)
{
    return hd_rank_program_sample_fields(job) + 1;
}
enum {
    HD_PROFILE_RECORD_BYTES = 64,   /* of one launch, wait or poll of a profiled step */
    HD_PROFILE_BYTES_MAX = 1 << 30, /* of all records; more is HD_INVALID */
};

/* Bytes of one rank, by purpose. */
#define HD_MEMORY_LIST(X)                                                                 \
    X(weights, "fp32 master weights")                                                     \
    X(copies, "weights in the compute encoding")                                          \
    X(gradients, "fp32 gradient sums (comm-visible)")                                     \
    X(moments, "both moments of AdamW")                                                   \
    X(step_state, "step block, chunk sums, exchange records, update ranges")              \
    X(constants, "tables of angles, slopes and indices, caches")                          \
    X(kept, "activations that forward keeps for backward, all slots")                     \
    X(deferred, "what backward keeps for postponed weight gradients, all slots")          \
    X(boundary, "hidden rows between chunks, and their gradients (comm-visible)")         \
    X(work, "temporaries and scratch; ZeRO: buckets, gathered weights")                   \
    X(sample, "host buffers of samples, for context parallelism and for a device")        \
    X(offload, "gradients and weights under way to the host and back (parallel.offload)") \
    X(snapshot, "copy of what a rank writes of a checkpoint (checkpoint.async)")          \
    X(profile, "records of the steps that train.profile names")                           \
    X(exchange, "messages between hosts (comm-visible)")

struct hd_memory {
#define X(name, meaning) int64_t name;
    HD_MEMORY_LIST(X)
#undef X
    /* Sizes of the two reservations, and, on a device, of host memory: for samples, profile, a
     * snapshot, and with parallel.offload masters, moments and ranges. The sum of the three is the
     * sum of all members above. */
    int64_t private_bytes, registered_bytes, host_bytes;
    /* Of weights, moments and step_state: what is in host_bytes (parallel.offload). */
    int64_t host_weights, host_moments, host_ranges;
};

/* Bytes of device memory of the two reservations, each rounded up to pages. */
int64_t hd_memory_on_device(const struct hd_memory *memory, const struct hd_traits *traits);

/* GPU memory that a rank's process uses besides its reservations; from the traits, where it is
 * assumed or measured. */
struct hd_gpu_overhead {
    int64_t process_bytes;       /* CUDA context, kernels and libraries */
    int communicators;           /* number of NCCL communicators; 0 with one rank */
    int64_t communicators_bytes; /* of these, and of the engine's own buffer */
};
struct hd_rank_program;
struct hd_gpu_overhead hd_rank_program_gpu_overhead(const struct hd_rank_program *rank_program,
                                                    const struct hd_traits *traits);

/* For tests, of a job with one pipeline stage: another schedule, W apart. */
struct hd_rank_program_options {
    enum hd_schedule_kind schedule;
    bool split_backward;
};

/* A validation runs in rounds of at most so many micro-batches; each fills the pipeline once. */
enum { HD_EVAL_ROUND = 64 };

/* What is the same for all ranks of a job: sizes, the cut of the model, and the lists of all
 * stages, proved together. */
struct hd_rank_program_shared {
    struct hd_job job;
    struct hd_model_config config;
    struct hd_mesh mesh;
    struct hd_pipeline pipeline;
    struct hd_units *units;                  /* [pipeline.chunks] of each chunk of the model */
    const int32_t *unit_stages;              /* [units of the model] the stage of each */
    struct hd_schedule order, eval_order;    /* of all stages */
    struct hd_step_plan *plans, *eval_plans; /* [stages] of a step, of a round of validation */
    struct hd_traits traits;                 /* of the ranks' devices, which are alike */
    int64_t micro_batches;                   /* per rank and step */
    int64_t *snapshot_bytes; /* [world] of all entries that a rank saves; NULL: not copied */
};

struct hd_rank_program {
    struct hd_job job;
    struct hd_mesh mesh;
    int rank;
    struct hd_mesh_coord coord;
    struct hd_model model;
    struct hd_registry registry;
    struct hd_pipeline pipeline;
    struct hd_schedule order, eval_order; /* of all stages */
    struct hd_units *units;               /* [pipeline.chunks] of each chunk of the model */
    int chunk_count; /* of this rank: train[k] is the chunk hd_rank_program_chunk(k) */
    struct hd_chunk **train, **eval, *update;
    struct hd_step_plan plan, eval_plan; /* of a step, and of a round of validation */
    int64_t micro_batches;               /* per rank and step */
    int64_t snapshot_bytes;              /* of all entries that this rank saves; 0: not copied */
    struct hd_memory memory;

    /* offsets in bytes in the private or visible reservation; on a device profile, sample, batch,
     * snapshot, host_state and window are offsets in host memory */
    int64_t *train_state, *eval_state;       /* private: the constants of each chunk */
    int64_t kept[2], deferred[2], work[2];   /* [visible] */
    int64_t saved_slot[2], deferred_slot[2]; /* sizes of one slot */
    int64_t boundary, stage_io_slot;         /* visible: slots; size of one slot */
    int64_t profile;                         /* private: records */
    int64_t sample;                          /* private: [fields of a sample, context] of 4 bytes */
    int64_t snapshot;   /* private: the copy of what this rank writes of a checkpoint */
    int64_t host_state; /* device only: state of offloaded parts (registry.h) */
    int64_t window;     /* device only: gradients of the largest offloaded part, then its copies */
    int64_t batch;      /* device only: [fields of a batch, rows of a micro-batch] of 4 bytes */
    int64_t exchange;   /* visible: [world + 1, HD_EXCHANGE_SLOT_BYTES] */
};

/* Builds the layout of `rank` of the job's mesh, on a device with these traits. Fails with
 * HD_INVALID, HD_UNSUPPORTED or HD_LIMIT for jobs that are not possible, or with HD_NO_MEMORY. */
enum hd_status hd_rank_program_build(const struct hd_job *job, int rank,
                                     const struct hd_traits *traits,
                                     const struct hd_rank_program_options *options,
                                     struct hd_arena *arena,
                                     struct hd_rank_program *ret_rank_program);

/* hd_rank_program_build in its two parts, for who builds several ranks. The layout borrows from
 * `shared`. hd_rank_program_declare makes the parameters alone, finished. */
enum hd_status hd_rank_program_prepare(const struct hd_job *job, const struct hd_traits *traits,
                                       const struct hd_rank_program_options *options,
                                       struct hd_arena *arena,
                                       struct hd_rank_program_shared *ret_shared);
/* The sizes, the cut and the orders alone: without lists of instructions, traits and snapshots.
 * cut: the units of each chunk, of a layout of this model with as many chunks and stages, which
 * must live as long; NULL: the model is cut here. */
enum hd_status hd_rank_program_schedule(const struct hd_job *job, struct hd_units *cut,
                                        struct hd_arena *arena,
                                        struct hd_rank_program_shared *ret_shared);
enum hd_status hd_rank_program_build_rank(const struct hd_rank_program_shared *shared, int rank,
                                          struct hd_arena *arena,
                                          struct hd_rank_program *ret_rank_program);
/* Makes of a layout that of another rank, perhaps on another stage, whose programs are the same but
 * for the numbers of units (plan/classes.h): its lists, slots and memory. For planning only. */
enum hd_status hd_rank_program_take_place(const struct hd_rank_program_shared *shared, int rank,
                                          struct hd_rank_program *rank_program);
enum hd_status hd_rank_program_declare(const struct hd_rank_program_shared *shared, int rank,
                                       struct hd_arena *arena, struct hd_registry *ret_registry,
                                       struct hd_model *ret_model);

/* The training programs F, B and W of these units alone, and the update of all that the registry's
 * rank holds, as hd_rank_program_build_rank compiles them, but for the places of work memory; for
 * the
 * planner, which adds up what single units take (plan/layer_profile.h). */
enum hd_status hd_rank_program_compile_units(const struct hd_rank_program_shared *shared,
                                             const struct hd_registry *registry,
                                             const struct hd_model *model, struct hd_units units,
                                             struct hd_arena *arena, struct hd_chunk **ret_chunk);
enum hd_status hd_rank_program_compile_update(const struct hd_rank_program_shared *shared,
                                              const struct hd_registry *registry,
                                              struct hd_arena *arena, struct hd_chunk **ret_chunk);

/* True if tensors are in device memory, false if they are in host memory. */
static inline bool hd_rank_program_has_device(const struct hd_rank_program *rank_program)
{
    return rank_program->update->traits.memory_bytes > 0;
}

/* The number, in the model, of this rank's k-th chunk. */
int32_t hd_rank_program_chunk(const struct hd_rank_program *rank_program, int k);

/* The programs that an instruction of `plan` or `eval_plan` runs; ret_state: the offset of their
 * constants. */
const struct hd_chunk *hd_rank_program_get(const struct hd_rank_program *rank_program,
                                           const struct hd_instruction *in, int64_t *ret_state);

/* Adds the work of one instruction, and what its transfer moves: at SEND a call, at RECEIVE a call
 * and the bytes, both of group pp. */
void hd_rank_program_fold(const struct hd_rank_program *rank_program,
                          const struct hd_instruction *in, struct hd_dry *dry);

/* Where the copies of an offloaded part begin in the window, in bytes. */
int64_t hd_rank_program_window_copy(const struct hd_bucket *bucket);

/* Elements and encoding of the hidden rows that a transfer moves. */
int64_t hd_rank_program_transfer(const struct hd_rank_program *rank_program,
                                 const struct hd_instruction *in, enum hd_dtype *ret_dtype);

/* In which codes the matrices of blocks are kept (model.weights); NONE: plain. */
enum hd_quant hd_rank_program_quant(const struct hd_job *job);

/* The loss of pairs that train.objective names; NONE: it is no such loss. */
enum hd_preference hd_rank_program_preference(const struct hd_job *job);

/* The encoding that a value of train.precision names; false: none that programs compute in. */
bool hd_rank_program_find_precision(const char *precision, enum hd_dtype *ret_dtype);
/* fp8 is bf16 with other products in training: programs compute in bf16. */
bool hd_rank_program_is_fp8(const struct hd_job *job);
/* What MFU is relative to: the peak for factors of this type (measure_peak). */
enum hd_dtype hd_rank_program_peak_dtype(const struct hd_job *job);
enum hd_dtype hd_rank_program_compute_dtype(const struct hd_job *job); /* the job's; else HD_F32 */

#endif
