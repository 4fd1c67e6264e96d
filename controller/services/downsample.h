/* thin: the steps of a job in a row of buckets, of any length in the same memory.
 *
 * All buckets have the same width in steps. Each keeps the lowest, the highest and the newest value
 * of every metric, so no spike is lost, however many steps a bucket has. When a step lies behind
 * the last bucket, pairs of buckets are joined and the width doubles. Steps that are done twice,
 * after a return to a checkpoint, fall into the buckets of the first time.
 *
 * Used by: curve.c.   Uses: record.   Threads: one owner.
 */
#ifndef HD_CONTROLLER_SERVICES_DOWNSAMPLE_H
#define HD_CONTROLLER_SERVICES_DOWNSAMPLE_H

#include "controller/core/record.h"

enum {
    DOWNSAMPLE_BUCKETS = 1024,
    DOWNSAMPLE_VALIDATIONS_MAX = 512, /* then every second one goes */
};

struct downsample_bucket {
    int64_t count; /* steps in it; 0: nothing below is set */
    struct {
        double min, max, last; /* NaN: the metric is absent, or never was finite */
    } metrics[HD_METRIC_COUNT];
};

struct downsample {
    int64_t width, last_step, steps;   /* last_step: the newest */
    uint32_t present;                  /* bit i: some step has metric i */
    struct downsample_bucket *buckets; /* [DOWNSAMPLE_BUCKETS] */
    size_t count;                      /* up to the highest step */
    struct {
        int64_t step;
        double loss;
    } validations[DOWNSAMPLE_VALIDATIONS_MAX];
    size_t validation_count;
    int64_t validation_stride, validations_seen; /* every n-th is kept */
};

bool downsample_init(struct downsample *downsample); /* false: no memory */
void downsample_done(struct downsample *downsample);

/* In the order of the history. */
void downsample_add_step(struct downsample *downsample, const struct hd_step_record *step);
void downsample_add_validation(struct downsample *downsample,
                               const struct hd_validation_record *validation);

/* How many buckets are to be joined so that `wish` are enough. */
size_t downsample_stride(const struct downsample *downsample, size_t wish);
/* Joins `stride` buckets at a time; only those with steps. ret, ret_first (the first step of each):
 * room for DOWNSAMPLE_BUCKETS. Returns how many. */
size_t downsample_row(const struct downsample *downsample, size_t stride,
                      struct downsample_bucket *ret, int64_t *ret_first);

#endif
