/* partition: decides which units of a model (embedding, blocks, head) each chunk of a pipeline has.
 *
 * Used by: rank_program, inference_rank, plan.   Uses: model, pipeline, job.
 * Threads: any; no state.
 */
#ifndef HD_TRAIN_PARTITION_H
#define HD_TRAIN_PARTITION_H

#include "base/arena.h"
#include "job/job.h"
#include "model/model.h"
#include "pipeline/pipeline.h"

/* Computes the pipeline of a resolved job, and the units of each of its chunks, in `arena`. The
 * first chunk has the embedding, the last one the head; every other chunk has at least one block.
 * The blocks are divided as parallel.layers_per_stage says; else so that the largest chunk has the
 * least work, counted in FLOPs of training (hd_model_unit_flops), and among the divisions with this
 * largest work the most even one. HD_INVALID: more chunks than units, or parallel.layers_per_stage
 * does not add up; the message names the key. cut: units of each chunk from an earlier call with
 * the same model, which are returned unchanged; NULL: the function divides the model. */
enum hd_status hd_partition_model(const struct hd_job *job, const struct hd_model_config *config,
                                  struct hd_units *cut, struct hd_arena *arena,
                                  struct hd_pipeline *ret_pipeline, struct hd_units **ret_units);

/* Divides a model's units into chunks so that the largest chunk has the least load. load: [layers +
 * 2], load of the embedding, of each block and of the head. 1 <= chunks <= layers + 2. ret_units:
 * [chunks]. HD_NO_MEMORY. */
enum hd_status hd_partition_evenly(const double *load, int64_t layers, int32_t chunks,
                                   struct hd_arena *arena, struct hd_units *ret_units);

#endif
