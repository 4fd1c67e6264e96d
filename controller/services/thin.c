#include "controller/services/thin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double lower(double a, double b)
{
    return isnan(a) || b < a ? b : a; /* also if b is NaN: then it is a, unless that is NaN */
}

static double higher(double a, double b)
{
    return isnan(a) || b > a ? b : a;
}

/* `later` has newer steps. */
static void join(struct thin_bucket *to, const struct thin_bucket *later)
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

static void halve(struct thin *thin)
{
    for (size_t i = 0; i < THIN_BUCKETS / 2; i++) {
        struct thin_bucket joined = thin->buckets[2 * i];

        join(&joined, &thin->buckets[2 * i + 1]);
        thin->buckets[i] = joined;
    }
    memset(&thin->buckets[THIN_BUCKETS / 2], 0, THIN_BUCKETS / 2 * sizeof *thin->buckets);
    thin->width *= 2;
    thin->count = (thin->count + 1) / 2;
}

void thin_add_step(struct thin *thin, const struct hd_step_record *step)
{
    struct thin_bucket one = {.count = 1};
    size_t at;

    if (step->step < 1 || step->step > INT64_MAX / 4)
        return;
    while ((step->step - 1) / thin->width >= THIN_BUCKETS)
        halve(thin);
    at = (size_t)((step->step - 1) / thin->width);
    for (int i = 0; i < HD_METRIC_COUNT; i++) {
        double value = NAN;

        if (hd_metric_is_present(&step->metrics, i, step->expert_count > 0)) {
            value = hd_metric_get(&step->metrics, i);
            thin->present |= 1u << i;
        }
        if (!isfinite(value))
            value = NAN;
        one.metrics[i].min = one.metrics[i].max = one.metrics[i].last = value;
    }
    join(&thin->buckets[at], &one);
    thin->count = at + 1 > thin->count ? at + 1 : thin->count;
    thin->last_step = step->step;
    thin->steps++;
}
_Static_assert(HD_METRIC_COUNT <= 32, "thin.present has a bit for each metric");

void thin_add_validation(struct thin *thin, const struct hd_validation_record *validation)
{
    if (thin->validation_count == THIN_VALIDATIONS_MAX) {
        for (size_t i = 0; i < THIN_VALIDATIONS_MAX / 2; i++)
            thin->validations[i] = thin->validations[2 * i];
        thin->validation_count = THIN_VALIDATIONS_MAX / 2;
        thin->validation_stride *= 2;
    }
    if (thin->validations_seen++ % thin->validation_stride)
        return;
    thin->validations[thin->validation_count].step = validation->step;
    thin->validations[thin->validation_count++].loss = validation->loss;
}

bool thin_init(struct thin *thin)
{
    *thin = (struct thin){.width = 1, .validation_stride = 1};
    thin->buckets = calloc(THIN_BUCKETS, sizeof *thin->buckets);
    return thin->buckets != NULL;
}

void thin_done(struct thin *thin)
{
    free(thin->buckets);
    thin->buckets = NULL;
}

size_t thin_stride(const struct thin *thin, size_t wish)
{
    size_t stride = 1;

    while ((thin->count + stride - 1) / stride > wish)
        stride *= 2;
    return stride;
}

/* Joins `stride` buckets at a time. ret: room for BUCKETS; only those with steps. Returns how many.
 */
size_t thin_row(const struct thin *thin, size_t stride, struct thin_bucket *ret, int64_t *ret_first)
{
    size_t count = 0;

    for (size_t i = 0; i < thin->count; i += stride) {
        struct thin_bucket joined = {.count = 0};

        for (size_t k = i; k < i + stride && k < thin->count; k++)
            join(&joined, &thin->buckets[k]);
        if (!joined.count)
            continue;
        ret_first[count] = (int64_t)i * thin->width + 1;
        ret[count++] = joined;
    }
    return count;
}
