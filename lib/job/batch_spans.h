/* batch_spans: how many sequences each step of a run reads, train.batch_schedule.
 *
 * The schedule is a list of spans of steps, "0:256 1000:512 10B:1024": where each begins, and the
 * sequences of its steps. A begin is a number of steps before the span, or, with a suffix K, M, B or T
 * (10^3, 10^6, 10^9, 10^12), of tokens: the first step before which the run has read so many, of
 * model.context tokens for each sequence. Everything is a closed form of the step's index, from 0, so
 * that the sampler stays a pure function of it.
 *
 * Used by: spec, data, train, plan, controller.   Uses: job.   Threads: any; no state.
 */
#ifndef HD_JOB_BATCH_SPANS_H
#define HD_JOB_BATCH_SPANS_H

#include "job/job.h"

enum { HD_BATCH_SPANS_MAX = 16 };

struct hd_batch_spans {
    int64_t count; /* at least 1 */
    struct hd_batch_span {
        int64_t first_step;   /* number of steps before the span; 0 in the first one, increasing */
        int64_t batch;        /* sequences of each of its steps, over all ranks */
        int64_t first_sample; /* number of sequences that earlier spans have read */
    } list[HD_BATCH_SPANS_MAX];
};

/* Returns one span with this batch. */
struct hd_batch_spans hd_batch_spans_even(int64_t batch);
/* Reads a schedule for a context of this many tokens. HD_INVALID: it is none; the message does not
 * name the key. */
enum hd_status hd_batch_spans_read(const char *text, int64_t context,
                                   struct hd_batch_spans *ret_spans);
/* Returns the spans of a job whose schedule has been checked; without one, a span of
 * train.global_batch. */
struct hd_batch_spans hd_job_batch_spans(const struct hd_job *job);

/* Returns the number of sequences of a step; of all steps before a step. `step` counts from 0. */
int64_t hd_batch_spans_batch(const struct hd_batch_spans *spans, int64_t step);
int64_t hd_batch_spans_before(const struct hd_batch_spans *spans, int64_t step);
/* Returns the step, from 0, that reads the sequence with this index. */
int64_t hd_batch_spans_step_of(const struct hd_batch_spans *spans, int64_t sample);
/* Returns the least number of steps that read at least `samples` sequences. */
int64_t hd_batch_spans_steps(const struct hd_batch_spans *spans, int64_t samples);
/* Returns the largest batch; the greatest common divisor of all batches. */
int64_t hd_batch_spans_largest(const struct hd_batch_spans *spans);
int64_t hd_batch_spans_divisor(const struct hd_batch_spans *spans);

#endif
