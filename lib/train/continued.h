/* continued: where a job that goes on from another run's checkpoint begins in its data.
 *
 * Used by: load.   Uses: job.   Threads: any; no state.
 */
#ifndef HD_TRAIN_CONTINUED_H
#define HD_TRAIN_CONTINUED_H

#include "base/text.h"
#include "job/job.h"

/* Sets *skipped so that step n of the job `now` trains on batch n - 1 + *skipped (from 0) of its
 * data; on entry it has the number of the run that had the job `then`, which has taken `step`
 * steps. With the data of that run, in their order, it is the first batch that has only samples
 * which that run has not read; with other data the first batch. Data in stages count from the run's
 * first step. Returns whether the data are others. ret_said gets a sentence about it. */
bool hd_continued_skip(const struct hd_job *then, const struct hd_job *now, int64_t step,
                       int64_t *skipped, struct hd_text *ret_said);

#endif
