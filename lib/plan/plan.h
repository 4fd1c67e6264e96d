/* plan: the memory and work of each rank of a resolved job, known before anything runs.
 *
 * The memory is exact: hd_rank_program_build_rank, which the rank itself calls, computes the bytes
 * that
 * the rank will reserve. One rank of each class (classes.h) is laid out, so a plan may be of more
 * ranks than any engine connects. FLOPs and communicated bytes are added up over the programs of
 * the step plan. No device is needed or opened: its traits are an argument. Only what a GPU process
 * uses besides the reserved memory (hd_gpu_overhead) is an assumption.
 *
 * Used by: the heddle command, controller, tests.   Uses: layout (lib/train), program, mesh, job.
 * Threads: any; a plan is immutable.
 */
#ifndef HD_PLAN_PLAN_H
#define HD_PLAN_PLAN_H

#include "base/arena.h"
#include "job/job.h"
#include "plan/choose.h"
#include "program/dry.h"
#include "train/rank_program.h"

/* Ranks that cannot differ, and what each of them takes. */
struct hd_plan_class {
    int32_t lowest, ranks; /* the lowest of them, and how many there are */
    int32_t stage;
    struct hd_memory memory;
    int32_t saved_slots, deferred_slots, stage_io_slots; /* of a step (lib/pipeline) */
    struct hd_dry step; /* one optimizer step: all micro-batches and the update */
    /* on a GPU, else 0 */
    int64_t reserved_bytes;          /* the rank's plan */
    struct hd_gpu_overhead overhead; /* in use on the GPU besides the plan */
    int64_t device_bytes;            /* both */
};

struct hd_plan {
    struct hd_mesh mesh;
    int64_t parameters;            /* of the whole model */
    int64_t trained;               /* of these */
    int64_t micro_batches;         /* per rank and step */
    struct hd_plan_class *classes; /* [class_count] by their lowest ranks */
    int32_t class_count;
    int32_t *class_of; /* [mesh.world] the class of each rank */
    struct hd_pipeline pipeline;
    struct hd_plan_stage {
        double busy; /* share of a step that the stage computes, 0 to 1 */
        double work; /* its share of the FLOPs of training, in means over all stages; 1: even */
    } * stages;      /* [pipeline.stages] */
    double bubble;   /* share of a step that the stages wait, on average */
    /* [pipeline.chunks] the layers of each chunk: first, and how many; units without layers: 0 */
    struct hd_plan_chunk {
        int64_t first_layer, layers;
        bool embedding, head;
    } * chunks;
};

/* Lays out a rank of each class of the job on devices with these traits. Times of the stages count
 * FLOPs (hd_model_unit_flops; backward takes twice as long as forward) and transfers as free. The
 * result lives in `arena`. HD_LIMIT: more than HD_PLAN_DEVICES_MAX ranks; else it fails as
 * hd_rank_program_build does. */
enum hd_status hd_plan_build(const struct hd_job *job, const struct hd_traits *traits,
                             struct hd_arena *arena, struct hd_plan *ret_plan);

/* What a rank takes. */
static inline const struct hd_plan_class *hd_plan_rank(const struct hd_plan *plan, int32_t rank)
{
    return &plan->classes[plan->class_of[rank]];
}

/* True if a rank fits in its GPU's memory; always true on the CPU, where device_bytes is 0. */
static inline bool hd_plan_fits(const struct hd_plan_class *rank, const struct hd_traits *traits)
{
    return rank->device_bytes <= traits->memory_bytes;
}

/* Compares the weights that a spec starts from (train.init_from, else model.from) with the
 * parameters of its model: names, shapes, encodings, and that the files are whole. Reads no values.
 * Also looks whether what train.only names is there. HD_INVALID or HD_UNSUPPORTED; the message
 * begins with the key. */
enum hd_status hd_plan_check_weights(const struct hd_job *spec);

int64_t hd_memory_total(const struct hd_memory *memory); /* private + registered bytes */

#endif
