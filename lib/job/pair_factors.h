/* pair_factors: the lists model.rope_scaling.short_factor and long_factor of LongRoPE. Each has one
 * factor for each pair of rotated channels, in a text such as "1.0 1.05 1.3".
 *
 * Used by: spec, model, hf.   Uses: base, job.h.   Threads: any. */
#ifndef HD_JOB_PAIR_FACTORS_H
#define HD_JOB_PAIR_FACTORS_H

#include <stdint.h>

#include "base/status.h"
#include "job/job.h"

enum { HD_PAIR_FACTORS_MAX = 128 }; /* factors of one list: pairs of the widest head */

/* Returns the number of channels of a head that rotate. */
int64_t hd_job_rotated(const struct hd_job *job);

/* Parses a list that has hd_job_rotated(job) / 2 factors. HD_INVALID: it has another number of
 * them, or one is not a positive number; the message does not name the key. */
enum hd_status hd_pair_factors_parse(const struct hd_job *job, const char *text,
                                     double ret_factors[HD_PAIR_FACTORS_MAX]);

/* Returns the list that the job's context needs: short_factor while every position is one of the
 * original context, else long_factor. transformers chooses alike by the length of each call; a job
 * has one table of angles. */
const char *hd_pair_factors_of(const struct hd_job *job);

#endif
