/* plan: the memory and work of each rank of a resolved job, known before anything runs.
 *
 * The memory is exact: hd_rank_program_build_rank, which the rank itself calls, computes the bytes
 * that the rank will reserve. One rank of each class (classes.h) is laid out, so a plan may have
 * more ranks than any engine connects. FLOPs and communicated bytes are added up over the programs
 * of a step. No device is needed or opened: its traits are an argument. Only what a GPU process
 * uses besides the reserved memory (hd_gpu_overhead) is an assumption.
 *
 * Used by: the heddle command, controller, tests.   Uses: layout (lib/train), program, mesh, job.
 * Threads: any; a plan is immutable. */
#ifndef HD_PLAN_PLAN_H
#define HD_PLAN_PLAN_H

#include "base/arena.h"
#include "job/job.h"
#include "plan/choose.h"
#include "program/dry.h"
#include "train/rank_program.h"

/* A class of ranks with equal programs, and the memory and work of each of them. */
struct hd_plan_class {
    int32_t lowest, ranks; /* the class's lowest rank; the number of its ranks */
    int32_t stage;
    struct hd_memory memory;
    /* slots for activations saved for backward, for what B leaves to W, and for transfers between
     * stages */
    int32_t saved_slots, deferred_slots, stage_io_slots;
    /* validate.samples: sequences at a time, 0: none; bytes of their caches and programs, and those
     * that steps leave no memory for, which are part of memory.work */
    int64_t sample_slots, sample_bytes, sample_beyond_bytes;
    struct hd_dry step; /* costs of one optimizer step: all micro-batches and the update */
    struct hd_dry decode[HD_DECODE_PROGRAMS]; /* costs of one call of each program of decoding */
    /* Muon: matrices whose steps each of these ranks computes, and rounds of its stage
     * (program/matrices.h); 0: none */
    int64_t owned_matrices, matrix_rounds;
    /* Bytes of GPU memory; on the CPU device_bytes is 0. */
    int64_t reserved_bytes;          /* memory that the rank reserves */
    struct hd_gpu_overhead overhead; /* memory that the rank's process uses besides */
    int64_t device_bytes;            /* reserved_bytes plus the process's overhead, bytes */
};

struct hd_plan {
    struct hd_mesh mesh;
    int64_t parameters;    /* parameters of the whole model, each counted once */
    int64_t trained;       /* parameters that the job trains */
    int64_t micro_batches; /* micro-batches of one rank in one step */
    /* true: `classes` has one class, of ranks that need more than the limit, and nothing else is
     * known */
    bool partial;
    struct hd_plan_class *classes; /* [class_count] ordered by lowest rank */
    int32_t class_count;
    int32_t *class_of; /* [mesh.world] index in `classes` of each rank's class */
    struct hd_pipeline pipeline;
    struct hd_plan_stage {
        double busy; /* share of a step in which the pipeline stage computes, 0 to 1 */
        double work; /* FLOPs of the stage over the mean of all stages; 1: even */
    } * stages;      /* [pipeline.stages] */
    /* share of a step, 0 to 1, in which a pipeline stage waits, mean of all stages */
    double bubble;
    /* [pipeline.chunks] the embedding, the head and the layers of each chunk; layers 0: none */
    struct hd_plan_chunk {
        int64_t first_layer, layers;
        bool embedding, head;
    } * chunks;
};

/* Lays out one rank of each class of the job on devices with these traits. Times of the stages
 * count FLOPs (hd_model_unit_flops; backward takes twice as long as forward) and take transfers as
 * free. The result lives in `arena`. HD_LIMIT: more than HD_PLAN_DEVICES_MAX ranks; otherwise fails
 * as hd_rank_program_build does. */
enum hd_status hd_plan_build(const struct hd_job *job, const struct hd_traits *traits,
                             struct hd_arena *arena, struct hd_plan *ret_plan);

/* Memory of one device, bytes, and the stage whose first rank is likely to need most. */
struct hd_plan_limit {
    int64_t bytes;
    int32_t stage;
};

/* Makes the plan of the job with these sizes as hd_plan_build does, on CPU devices with their threads. limit:
 * lays out the first rank of its stage before all others, and makes a `partial` plan if that needs more:
 * laying out one rank costs a fraction of a whole plan; NULL: none. */
enum hd_status hd_plan_build_layout(const struct hd_job *spec, const struct hd_layout_sizes *sizes,
                                    const struct hd_traits *traits,
                                    const struct hd_plan_limit *limit, struct hd_arena *arena,
                                    struct hd_plan *ret_plan);

/* Returns the class of a rank, which has its memory and work. */
static inline const struct hd_plan_class *hd_plan_rank(const struct hd_plan *plan, int32_t rank)
{
    return &plan->classes[plan->class_of[rank]];
}

/* Returns the device bytes that each rank of the class needs: on a GPU with the memory of its
 * process, on a CPU the planned memory alone. */
int64_t hd_plan_class_bytes(const struct hd_plan_class *of);
/* Returns, of the classes of a pipeline stage, the one that needs most device memory; stage -1: of
 * all. */
const struct hd_plan_class *hd_plan_fullest(const struct hd_plan *plan, int32_t stage);

/* Returns whether a rank fits in its GPU's memory; always true on the CPU, where device_bytes is
 * 0. */
static inline bool hd_plan_fits(const struct hd_plan_class *rank, const struct hd_traits *traits)
{
    return rank->device_bytes <= traits->memory_bytes;
}

/* Compares the weights that a spec starts from (train.init_from, else model.from) with the
 * parameters of its model: names, shapes, encodings, and that the files are complete. Reads no
 * values. Also checks that the model has the parameters that train.trainable names. HD_INVALID or
 * HD_UNSUPPORTED; the message begins with the key. */
enum hd_status hd_plan_check_weights(const struct hd_job *spec);

/* Appends a line for each matrix whose step one rank computes (Muon), with the rank; nothing for
 * other optimizers. */
enum hd_status hd_plan_owners(const struct hd_job *job, const struct hd_traits *traits,
                              struct hd_text *ret_text);

int64_t hd_memory_total(const struct hd_memory *memory); /* Returns private + registered bytes. */

#endif
