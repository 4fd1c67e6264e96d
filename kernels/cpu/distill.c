#include "kernels/distill.h"
#include "kernels/cpu/logits.h"

/* ---- the largest logits ---- */

/* Puts a logit into a list of the k largest, in descending order, of equal ones in the order of
 * arrival. Only called for one that belongs into it. */
static void insert_top(float *list, int64_t k, float y, int64_t id)
{
    int64_t at = k - 1;

    for (; at > 0 && list[2 * at - 2] < y; at--)
        memcpy(list + 2 * at, list + 2 * at - 2, 2 * sizeof *list);
    list[2 * at] = y;
    list[2 * at + 1] = (float)id;
}

static void clear_list(float *list, int64_t k)
{
    for (int64_t j = 0; j < k; j++) {
        list[2 * j] = -INFINITY;
        list[2 * j + 1] = -1;
    }
}

INLINE void top_row(const struct hd_top_logits_args *a, int64_t r, enum map_kind kind,
                    enum hd_dtype dtype)
{
    float *top = a->top + r * HD_TOP_WORDS(a->k), *list = top + 2;
    const float inverse = 1 / a->temperature;
    vf sums = {0};
    float max;

    clear_list(list, a->k);
    FOR_VECTORS (v, n, 0, a->V) {
        const vf y =
            vf_keep(mapped(vf_load(a->logits, r * a->Vp + v, n, dtype), a->map, kind) * inverse, n,
                    -INFINITY);

        if (!(vf_max_lane(y) > list[2 * a->k - 2])) /* most vectors have none of the largest */
            continue;
        for (int64_t i = 0; i < n; i++)
            if (y[i] > list[2 * a->k - 2])
                insert_top(list, a->k, y[i], a->first + v + i);
    }
    max = list[0];
    FOR_VECTORS (v, n, 0, a->V) {
        const vf y = mapped(vf_load(a->logits, r * a->Vp + v, n, dtype), a->map, kind) * inverse;

        sums += vf_exp(vf_keep(y - max, n, -INFINITY));
    }
    top[0] = max;
    top[1] = a->V > 0 ? vf_sum(sums) : 0;
}

static void top_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_top_logits_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_MAP(a->map, M, WITH_FLOATS(a->dtype, T, top_row(a, r, M, T)));
}

enum hd_status KERNEL(top_logits)(struct hd_backend *cpu, const struct hd_top_logits_args *args)
{
    const enum hd_status st = hd_cpu_check_float("top_logits", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->Vp * 8), top_rows, args);
    return st;
}

static void merge_top(const struct hd_top_merge_args *a, int64_t r)
{
    float *out = a->out + r * 2 * a->k;
    double max = -INFINITY, sum = 0;

    clear_list(out, a->k);
    for (int64_t p = 0; p < a->P; p++) {
        const float *top = a->top + (p * a->R + r) * HD_TOP_WORDS(a->k);

        max = (double)top[0] > max ? (double)top[0] : max;
        /* ranks are in the order of their ids, so the lowest of equal ones comes first */
        for (int64_t j = 0; j < a->k && top[2 + 2 * j] > out[2 * a->k - 2]; j++)
            insert_top(out, a->k, top[2 + 2 * j], (int64_t)top[3 + 2 * j]);
    }
    for (int64_t p = 0; p < a->P; p++) {
        const float *top = a->top + (p * a->R + r) * HD_TOP_WORDS(a->k);

        sum += top[1] > 0 ? (double)top[1] * exp((double)top[0] - max) : 0;
    }
    for (int64_t j = 0; j < a->k; j++)
        out[2 * j] = (float)((double)out[2 * j] - max - log(sum));
}

static void merge_tops(const void *args, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    for (int64_t r = begin; r < end; r++)
        merge_top(args, r);
}

enum hd_status KERNEL(top_merge)(struct hd_backend *cpu, const struct hd_top_merge_args *args)
{
    hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->P * HD_TOP_WORDS(args->k) * 4), merge_tops,
                    args);
    return HD_OK;
}

/* ---- statistics ---- */

/* Lists the kept ids of a row among this rank's real columns, as columns in ascending order; returns
 * their number. */
static int64_t list_columns(const int32_t *ids, int64_t k, int64_t first, int64_t real,
                            int32_t columns[HD_DISTILL_K_MAX])
{
    int64_t count = 0;

    for (int64_t j = 0; j < k && ids[j] >= 0; j++) {
        const int64_t column = ids[j] - first;
        int64_t at = count;

        if (column < 0 || column >= real)
            continue;
        for (; at > 0 && columns[at - 1] > column; at--)
            columns[at] = columns[at - 1];
        columns[at] = (int32_t)column;
        count++;
    }
    return count;
}

/* Returns the sum of exp(y - max) over columns [begin, end). */
INLINE float sum_between(const struct hd_distill_stats_args *a, int64_t row, int64_t begin,
                         int64_t end, float max, enum map_kind kind, enum hd_dtype dtype)
{
    const float inverse = 1 / a->temperature;
    vf sums = {0};

    FOR_VECTORS (v, n, begin, end) {
        const vf y = mapped(vf_load(a->logits, row + v, n, dtype), a->map, kind) * inverse;

        sums += vf_exp(vf_keep(y - max, n, -INFINITY));
    }
    return vf_sum(sums);
}

INLINE void distill_stats_row(const struct hd_distill_stats_args *a, int64_t r, enum map_kind kind,
                              enum hd_dtype dtype)
{
    const int64_t row = r * a->Vp, target = a->target[r] - a->first;
    const bool mine = target >= 0 && target < a->V;
    const int32_t *ids = a->ids + r * a->k;
    float *stats = a->stats + r * HD_DISTILL_WORDS(a->k);
    int32_t columns[HD_DISTILL_K_MAX];
    int64_t count, from = 0;
    double rest = 0;

    stats[0] = mapped_max(a->logits, row, a->V, a->map, kind, dtype);
    stats[1] = row_sum(a->logits, row, a->V, stats[0], a->map, kind, dtype);
    stats[2] = mine ? mapped(vf_load(a->logits, row + target, 1, dtype), a->map, kind)[0] : 0;
    stats[3] = mine ? 1 : 0;
    stats[4] = a->real > 0
                   ? mapped_max(a->logits, row, a->real, a->map, kind, dtype) / a->temperature
                   : -INFINITY;
    count = list_columns(ids, a->k, a->first, a->real, columns);
    for (int64_t i = 0; i < count; from = columns[i++] + 1)
        rest += (double)sum_between(a, row, from, columns[i], stats[4], kind, dtype);
    rest += (double)sum_between(a, row, from, a->real, stats[4], kind, dtype);
    stats[5] = (float)rest;
    for (int64_t j = 0; j < a->k; j++) {
        const int64_t column = ids[j] < 0 ? -1 : ids[j] - a->first;

        stats[6 + j] = column >= 0 && column < a->real
                           ? mapped(vf_load(a->logits, row + column, 1, dtype), a->map, kind)[0] /
                                 a->temperature
                           : 0;
    }
}

static void distill_stats_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_distill_stats_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_MAP(a->map, M, WITH_FLOATS(a->dtype, T, distill_stats_row(a, r, M, T)));
}

/* Returns HD_UNSUPPORTED for more kept ids than a row may have. */
static enum hd_status check_kept(const char *kernel, int64_t k)
{
    if (k >= 1 && k <= HD_DISTILL_K_MAX)
        return HD_OK;
    return hd_err(HD_UNSUPPORTED, "%s: k = %lld is not between 1 and %d", kernel, (long long)k,
                  HD_DISTILL_K_MAX);
}

enum hd_status KERNEL(distill_stats)(struct hd_backend *cpu,
                                     const struct hd_distill_stats_args *args)
{
    enum hd_status st = hd_cpu_check_float("distill_stats", args->dtype);

    if (!st)
        st = check_kept("distill_stats", args->k);
    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->Vp * 16), distill_stats_rows, args);
    return st;
}

/* ---- the loss ---- */

INLINE void put_gradient(const struct hd_distill_args *a, int64_t at, double gradient, double logit,
                         enum map_kind kind, enum hd_dtype dtype)
{
    vf d = vf_set((float)gradient);

    if (kind == MAP_CAP)
        d *= logit_slope(vf_set((float)logit), a->map);
    vf_store(a->dlogits, at, 1, d, dtype);
}

/* Computes columns [begin, end) of a row's gradient, of which none is kept and none the target. */
INLINE void gradient_between(const struct hd_distill_args *a, const struct hd_distill_row *s,
                             int64_t row, int64_t begin, int64_t end, float label, float rest,
                             enum map_kind kind, enum hd_dtype dtype)
{
    const float label_max = (float)s->label_max, max = (float)s->max;
    const float inverse = 1 / a->temperature;

    FOR_VECTORS (v, n, begin, end) {
        const vf z = mapped(vf_load(a->logits, row + v, n, dtype), a->map, kind);
        vf d = vf_exp(z - label_max) * label;

        if (rest != 0)
            d += vf_exp(z * inverse - max) * rest;
        if (kind == MAP_CAP)
            d *= logit_slope(z, a->map);
        vf_store(a->dlogits, row + v, n, d, dtype);
    }
}

INLINE void distill_gradient(const struct hd_distill_args *a, const struct hd_distill_row *s,
                             int64_t r, enum map_kind kind, enum hd_dtype dtype)
{
    const struct hd_distill_factors f = hd_distill_factors_of(a, s);
    const int64_t row = r * a->Vp, target = a->target[r] - a->first;
    const int32_t *ids = a->ids + r * a->k;
    double at_target = f.label * exp(s->target_logit - s->label_max) - f.less;

    if (target < a->real)
        at_target += f.rest * exp(s->target_logit / (double)a->temperature - s->max);
    gradient_between(a, s, row, 0, a->real, (float)f.label, (float)f.rest, kind, dtype);
    gradient_between(a, s, row, a->real, a->V, (float)f.label, 0, kind, dtype);
    FOR_VECTORS (v, n, a->V, a->Vp)
        vf_store(a->dlogits, row + v, n, (vf){0}, dtype);
    if (target >= 0 && target < a->V)
        put_gradient(a, row + target, at_target, s->target_logit, kind, dtype);
    for (int64_t j = 0; j < a->k && ids[j] >= 0; j++) {
        const int64_t column = ids[j] - a->first;

        if (column >= 0 && column < a->real)
            put_gradient(a, row + column, hd_distill_kept_gradient(a, s, &f, r, j),
                         hd_distill_kept(a, r, j) * (double)a->temperature, kind, dtype);
    }
}

INLINE void distill_row(const struct hd_distill_args *a, int64_t r, enum map_kind kind,
                        enum hd_dtype dtype)
{
    double *losses = (double *)a->scratch + 2 * r;
    struct hd_distill_row s = {.valid = false};

    if (a->target[r] >= 0)
        s = hd_distill_row_of(a, r);
    losses[0] = s.valid ? s.label_loss : -INFINITY; /* -infinity: no valid target */
    losses[1] = s.divergence;
    if (!a->dlogits)
        return;
    if (s.valid)
        distill_gradient(a, &s, r, kind, dtype);
    else
        FOR_VECTORS (v, n, 0, a->Vp)
            vf_store(a->dlogits, r * a->Vp + v, n, (vf){0}, dtype);
}

static void distill_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_distill_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_MAP(a->map, M, WITH_FLOATS(a->dtype, T, distill_row(a, r, M, T)));
}

enum hd_status KERNEL(distill)(struct hd_backend *cpu, const struct hd_distill_args *args)
{
    enum hd_status st = hd_cpu_check_float("distill", args->dtype);
    const double *losses = args->scratch;
    struct hd_step_state *block = args->block;

    if (!st)
        st = check_kept("distill", args->k);
    if (st)
        return st;
    hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->Vp * 16), distill_rows, args);
    for (int64_t r = 0; r < args->R; r++) {
        if (args->target[r] < 0)
            continue;
        if (losses[2 * r] == -INFINITY) {
            block->overflow = 1;
            continue;
        }
        block->loss_sum += losses[2 * r];
        block->target_count++;
        if (args->ids[r * args->k] < 0)
            continue;
        block->distill_sum += losses[2 * r + 1];
        block->distill_rows++;
    }
    return HD_OK;
}
