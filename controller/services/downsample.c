#include "controller/services/downsample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double lower(double a, double b)
{
    return isnan(a) || b < a ? b : a; /* NaN b: a, which is NaN only if both are */
}

static double higher(double a, double b)
{
    return isnan(a) || b > a ? b : a;
}

/* Adds the steps of the bucket `later`, which are newer, to the bucket `to`. */
static void join(struct downsample_bucket *to, const struct downsample_bucket *later)
{
    if (!later->count)
        return;
    if (!to->count) {
        *to = *later;
        return;
    }
    to->count += later->count;
    for (int i = 0; i < HD_METRIC_COUNT; i++) {
        to->metrics[i].min = lower(to->metrics[i].min, later->metrics[i].min);
        to->metrics[i].max = higher(to->metrics[i].max, later->metrics[i].max);
        if (!isnan(later->metrics[i].last))
            to->metrics[i].last = later->metrics[i].last;
    }
}

static void halve(struct downsample *downsample)
{
    for (size_t i = 0; i < DOWNSAMPLE_BUCKETS / 2; i++) {
        struct downsample_bucket joined = downsample->buckets[2 * i];

        join(&joined, &downsample->buckets[2 * i + 1]);
        downsample->buckets[i] = joined;
    }
    memset(&downsample->buckets[DOWNSAMPLE_BUCKETS / 2], 0,
           DOWNSAMPLE_BUCKETS / 2 * sizeof *downsample->buckets);
    downsample->width *= 2;
    downsample->count = (downsample->count + 1) / 2;
}

void downsample_add_step(struct downsample *downsample, const struct hd_step_record *step)
{
    struct downsample_bucket one = {.count = 1};
    size_t at;

    if (step->step < 1 || step->step > INT64_MAX / 4)
        return;
    while ((step->step - 1) / downsample->width >= DOWNSAMPLE_BUCKETS)
        halve(downsample);
    at = (size_t)((step->step - 1) / downsample->width);
    for (int i = 0; i < HD_METRIC_COUNT; i++) {
        double value = NAN;

        if (hd_metric_is_present(&step->metrics, i, step->expert_count > 0)) {
            value = hd_metric_get(&step->metrics, i);
            downsample->present |= UINT64_C(1) << i;
        }
        if (!isfinite(value))
            value = NAN;
        one.metrics[i].min = one.metrics[i].max = one.metrics[i].last = value;
    }
    join(&downsample->buckets[at], &one);
    downsample->count = at + 1 > downsample->count ? at + 1 : downsample->count;
    downsample->last_step = step->step;
    downsample->steps++;
}
_Static_assert(HD_METRIC_COUNT <= 64, "downsample.present has a bit for each metric");

/* Drops every second validation; with sets, all points of its step. */
static void drop_validations(struct downsample *downsample)
{
    size_t kept = 0;
    bool keeps = true;

    for (size_t i = 0; i < downsample->validation_count; i++) {
        if (i && (!*downsample->validations[i].set ||
                  downsample->validations[i].step != downsample->validations[i - 1].step))
            keeps = !keeps;
        if (keeps)
            downsample->validations[kept++] = downsample->validations[i];
    }
    downsample->validation_count = kept;
    downsample->validation_stride *= 2;
}

void downsample_add_validation(struct downsample *downsample,
                               const struct hd_validation_record *validation)
{
    const bool again = downsample->validations_seen && *validation->set &&
                       validation->step == downsample->newest_step;

    if (!again)
        downsample->validations_seen++;
    downsample->newest_step = validation->step;
    if ((downsample->validations_seen - 1) % downsample->validation_stride)
        return;
    if (downsample->validation_count == DOWNSAMPLE_VALIDATIONS_MAX) {
        drop_validations(downsample);
        if ((downsample->validations_seen - 1) % downsample->validation_stride)
            return;
    }
    if (downsample->validation_count == DOWNSAMPLE_VALIDATIONS_MAX)
        return; /* all of one step, of which nothing can be dropped */
    downsample->validations[downsample->validation_count].step = validation->step;
    memcpy(downsample->validations[downsample->validation_count].set, validation->set,
           sizeof validation->set);
    downsample->validations[downsample->validation_count++].loss = validation->loss;
}

bool downsample_init(struct downsample *downsample)
{
    *downsample = (struct downsample){.width = 1, .validation_stride = 1};
    downsample->buckets = calloc(DOWNSAMPLE_BUCKETS, sizeof *downsample->buckets);
    return downsample->buckets != NULL;
}

void downsample_done(struct downsample *downsample)
{
    free(downsample->buckets);
    downsample->buckets = NULL;
}

size_t downsample_stride(const struct downsample *downsample, size_t wish)
{
    size_t stride = 1;

    while ((downsample->count + stride - 1) / stride > wish)
        stride *= 2;
    return stride;
}

size_t downsample_row(const struct downsample *downsample, size_t stride,
                      struct downsample_bucket *ret, int64_t *ret_first)
{
    size_t count = 0;

    for (size_t i = 0; i < downsample->count; i += stride) {
        struct downsample_bucket joined = {.count = 0};

        for (size_t k = i; k < i + stride && k < downsample->count; k++)
            join(&joined, &downsample->buckets[k]);
        if (!joined.count)
            continue;
        ret_first[count] = (int64_t)i * downsample->width + 1;
        ret[count++] = joined;
    }
    return count;
}
