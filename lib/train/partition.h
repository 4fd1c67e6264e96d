/* cut: which units of a model make up which chunk of a pipeline.
 *
 * Used by: layout, loaded, plan.   Uses: model, pipeline, job.   Threads: any; no state.
 */
#ifndef HD_TRAIN_PARTITION_H
#define HD_TRAIN_PARTITION_H

#include "base/arena.h"
#include "job/job.h"
#include "model/model.h"
#include "pipeline/pipeline.h"

/* The pipeline of a resolved job, and the units of each of its chunks, in `arena`. The first chunk
 * has the embedding, the last one the head; every other chunk has at least one block. The blocks
 * are shared out as parallel.stages says, else so that the chunk with the most work has as little
 * as possible, counted in FLOPs of training (hd_model_unit_flops), and among such cuts the work is
 * as even as possible. HD_INVALID: more chunks than units, or parallel.stages does not add up; the
 * message names the key. cut: the units of such a cut, made before, which are returned; NULL: none.
 */
enum hd_status hd_partition_model(const struct hd_job *job, const struct hd_model_config *config,
                                  struct hd_units *cut, struct hd_arena *arena,
                                  struct hd_pipeline *ret_pipeline, struct hd_units **ret_units);

/* The same of a model alone: the chunk with the most of `load` [layers + 2], which is of the
 * embedding, each block and the head, has as little as possible. 1 <= chunks <= layers + 2.
 * ret_units: [chunks]. HD_NO_MEMORY. */
enum hd_status hd_partition_evenly(const double *load, int64_t layers, int32_t chunks,
                                   struct hd_arena *arena, struct hd_units *ret_units);

#endif
