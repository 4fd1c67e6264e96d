/* pipeline_internal: shared by the files of lib/pipeline. */
#ifndef HD_PIPELINE_PIPELINE_INTERNAL_H
#define HD_PIPELINE_PIPELINE_INTERNAL_H

#include "pipeline/pipeline.h"

enum { PROGRAM_ROWS = 3 }; /* rows of an array of programs: F or E; B; W */
static inline int program_row(enum hd_call call)
{
    return call == HD_CALL_W ? 2 : call == HD_CALL_B ? 1 : 0;
}

/* Returns the index of the program of a chunk and micro-batch within one row (program_row) of an
 * array of programs. */
static inline int64_t program_id(const struct hd_schedule *schedule, int32_t chunk,
                                 int32_t micro_batch)
{
    return (int64_t)chunk * schedule->micro_batches + micro_batch;
}

/* Returns whether a chunk sends the gradient of its input to the chunk below: not if that chunk is
 * frozen. */
static inline bool schedule_sends_back(const struct hd_schedule *schedule, int32_t chunk)
{
    return chunk > schedule->frozen;
}

/* Returns the number of programs that a chunk runs on each micro-batch. */
static inline int32_t schedule_programs(const struct hd_schedule *schedule, bool forward,
                                        int32_t chunk)
{
    return forward || chunk < schedule->frozen ? 1 : schedule->split ? 3 : 2;
}

static inline bool schedule_is_forward(const struct hd_schedule *schedule)
{
    return schedule->stages[0].count > 0 && schedule->stages[0].entries[0].call == HD_CALL_E;
}

/* The results of a walk for each program, by [program_row][program_id]. */
struct schedule_walk {
    int32_t *index[PROGRAM_ROWS]; /* the program's position in the schedule of its stage; -1: not in
                                     it */
    double *start[PROGRAM_ROWS], *end[PROGRAM_ROWS];
};

/* Checks that a schedule has each program exactly once, on its stage, with ascending micro-batches,
 * and that it does not deadlock; computes the times. costs NULL: 1 per program, 2 for B if not
 * split, and transfers take no time. lines: number of the line that describes each stage in the
 * user's text, for messages; NULL: messages name stage and position. The result lives in
 * `arena`. */
enum hd_status schedule_walk_run(const struct hd_schedule *schedule,
                                 const struct hd_schedule_costs *costs, const int32_t *lines,
                                 struct hd_arena *arena, struct schedule_walk *ret_walk);

/* Checks the numbers of stages, chunks and micro-batches. HD_INVALID: one is below 1, or the chunks
 * do not fit the stages. HD_LIMIT: too many programs on a stage. */
enum hd_status pipeline_check(const struct hd_pipeline *pipeline, int32_t micro_batches);

#endif
