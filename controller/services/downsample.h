/* downsample: a job's training curve in bounded memory, however many steps the job has.
 *
 * All buckets have the same width in steps. Each keeps minimum, maximum and newest value of every
 * metric, so no spike is lost. When a step lies behind the last bucket, pairs of buckets are merged
 * and the width doubles. Steps that are repeated after a restart from a checkpoint are added to the
 * buckets of their first run.
 *
 * Used by: curve.c.   Uses: record.   Threads: one owner.
 */
#ifndef HD_CONTROLLER_SERVICES_DOWNSAMPLE_H
#define HD_CONTROLLER_SERVICES_DOWNSAMPLE_H

#include "controller/core/record.h"

enum {
    DOWNSAMPLE_BUCKETS = 1024,
    /* limit of points in the validation curve; when it is reached, the points of every second
     * validation are dropped */
    DOWNSAMPLE_VALIDATIONS_MAX = 512,
};

struct downsample_bucket {
    int64_t count; /* training steps merged in this bucket; 0: `metrics` is not set */
    struct {
        /* values of one metric over the bucket's steps; NaN: the metric is absent, or was never
         * finite */
        double min, max, last;
    } metrics[HD_METRIC_COUNT];
};

struct downsample {
    /* width of a bucket in training steps; number of the newest step; steps added since the start
     */
    int64_t width, last_step, steps;
    uint64_t present;                  /* set of bits: bit i is 1 if any step has metric i */
    struct downsample_bucket *buckets; /* array of DOWNSAMPLE_BUCKETS */
    /* number of buckets in use, up to the one of the highest step */
    size_t count;
    struct {
        int64_t step;
        double loss;
        char set[HD_JOB_VAL_REPORT_MAX]; /* name of the validation set; "": the job has one list */
    } validations[DOWNSAMPLE_VALIDATIONS_MAX];
    size_t validation_count;
    /* Every validation_stride-th validation is kept; number of validations added so far. The losses
     * of several sets at one step are one validation, the newest of which is at newest_step. */
    int64_t validation_stride, validations_seen, newest_step;
};

bool downsample_init(struct downsample *downsample); /* returns false if out of memory */
void downsample_done(struct downsample *downsample);

/* Add a step or a validation to the curve; call in the order of the job's history. */
void downsample_add_step(struct downsample *downsample, const struct hd_step_record *step);
void downsample_add_validation(struct downsample *downsample,
                               const struct hd_validation_record *validation);

/* Returns how many neighbouring buckets to merge into one (a power of two), so that at most `wish`
 * buckets remain. */
size_t downsample_stride(const struct downsample *downsample, size_t wish);
/* Merges each `stride` neighbouring buckets into one. Writes the merged buckets that have steps to
 * `ret`, and the first step of each to ret_first; both arrays have space for DOWNSAMPLE_BUCKETS.
 * Returns the number written. */
size_t downsample_row(const struct downsample *downsample, size_t stride,
                      struct downsample_bucket *ret, int64_t *ret_first);

#endif
