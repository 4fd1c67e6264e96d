#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vecmath.h"

INLINE float row_max(const void *logits, int64_t row, int64_t V, enum hd_dtype dtype)
{
    vf lane_max = vf_set(-INFINITY);

    FOR_VECTORS (v, n, 0, V) {
        lane_max = vf_max(lane_max, vf_keep(vf_load(logits, row + v, n, dtype), n, -INFINITY));
    }
    return vf_max_lane(lane_max);
}

INLINE float row_sum(const void *logits, int64_t row, int64_t V, float max, enum hd_dtype dtype)
{
    vf sums = {0};

    FOR_VECTORS (v, n, 0, V) {
        sums += vf_exp(vf_keep(vf_load(logits, row + v, n, dtype) - max, n, -INFINITY));
    }
    return vf_sum(sums);
}

/* Computes one row of dlogits = scale * exp(logits - max), 0 in the padding columns. */
INLINE void row_gradient(void *dlogits, const void *logits, int64_t row, int64_t V, int64_t Vp,
                         float max, float scale, enum hd_dtype dtype)
{
    FOR_VECTORS (v, n, 0, V) {
        vf_store(dlogits, row + v, n, vf_exp(vf_load(logits, row + v, n, dtype) - max) * scale,
                 dtype);
    }
    FOR_VECTORS (v, n, V, Vp)
        vf_store(dlogits, row + v, n, (vf){0}, dtype);
}

INLINE void row_of_zeros(void *dlogits, int64_t row, int64_t Vp, enum hd_dtype dtype)
{
    FOR_VECTORS (v, n, 0, Vp)
        vf_store(dlogits, row + v, n, (vf){0}, dtype);
}

/* ---- one rank has all logits ---- */

/* Computes the cross-entropy of row r in three passes over its logits in cache: maximum, sum of
 * exponentials, gradient. losses[r] is log sum exp(logits - max) + max - logits[target]. */
INLINE void cross_entropy_row(const struct hd_cross_entropy_args *a, int64_t r, enum hd_dtype dtype)
{
    const int64_t row = r * a->Vp;
    const int32_t target = a->target[r];
    double *losses = a->scratch;
    float max, sum, unit, scale, target_logit, gradient;

    if (target < 0 || target >= a->V) { /* no target: masked, or invalid, which sets overflow when
                                           the losses are added */
        if (a->dlogits)
            row_of_zeros(a->dlogits, row, a->Vp, dtype);
        return;
    }
    max = row_max(a->logits, row, a->V, dtype);
    sum = row_sum(a->logits, row, a->V, max, dtype);
    target_logit = vf_load(a->logits, row + target, 1, dtype)[0];
    losses[r] = log((double)sum) + ((double)max - (double)target_logit);
    if (!a->dlogits)
        return;
    unit = a->block->loss_scale * (a->weight ? a->weight[r] : 1);
    scale = unit / sum;
    gradient = vf_exp(vf_set(target_logit - max))[0] * scale - unit;
    row_gradient(a->dlogits, a->logits, row, a->V, a->Vp, max, scale, dtype);
    vf_store(a->dlogits, row + target, 1, vf_set(gradient), dtype);
}

static void cross_entropy_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_cross_entropy_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(a->dtype, T, cross_entropy_row(a, r, T));
}

/* Destination of the losses of rows that have a target. */
struct loss_sink {
    float *logp;
    bool adds;
    double sum;
    int64_t count;
};

INLINE void take_loss(struct loss_sink *sink, int64_t r, double loss)
{
    if (sink->logp)
        sink->logp[r] = (float)-loss;
    sink->sum += loss;
    sink->count++;
}

INLINE void add_losses(const struct loss_sink *sink, struct hd_step_state *block)
{
    if (!sink->adds)
        return;
    block->loss_sum += sink->sum;
    block->target_count += sink->count;
}

enum hd_status KERNEL(cross_entropy)(struct hd_backend *cpu,
                                     const struct hd_cross_entropy_args *args)
{
    const enum hd_status st = hd_cpu_check_float("cross_entropy", args->dtype);
    const double *losses = args->scratch;
    struct hd_step_state *block = args->block;
    struct loss_sink sink = {.logp = args->logp, .adds = !args->logp && !args->weight};

    if (st)
        return st;
    hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->Vp * 16), cross_entropy_rows, args);
    for (int64_t r = 0; r < args->R; r++) {
        if (args->logp)
            args->logp[r] = 0;
        if (args->target[r] >= args->V)
            block->overflow = 1;
        else if (args->target[r] >= 0)
            take_loss(&sink, r, losses[r]);
    }
    add_losses(&sink, block);
    return HD_OK;
}

/* ---- several ranks share the logits ---- */

INLINE void stats_row(const struct hd_cross_entropy_stats_args *a, int64_t r, enum hd_dtype dtype)
{
    const int64_t row = r * a->Vp, target = a->target[r] - a->first;
    const bool mine = target >= 0 && target < a->V;
    float *stats = a->stats + r * HD_CROSS_ENTROPY_STATS;

    stats[0] = row_max(a->logits, row, a->V, dtype);
    stats[1] = row_sum(a->logits, row, a->V, stats[0], dtype);
    stats[2] = mine ? vf_load(a->logits, row + target, 1, dtype)[0] : 0;
    stats[3] = mine ? 1 : 0;
}

static void stats_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_cross_entropy_stats_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(a->dtype, T, stats_row(a, r, T));
}

enum hd_status KERNEL(cross_entropy_stats)(struct hd_backend *cpu,
                                           const struct hd_cross_entropy_stats_args *args)
{
    const enum hd_status st = hd_cpu_check_float("cross_entropy_stats", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->Vp * 8), stats_rows, args);
    return st;
}

INLINE void shared_row(const struct hd_cross_entropy_shared_args *a, int64_t r, enum hd_dtype dtype)
{
    const int64_t row = r * a->Vp, target = a->target[r] - a->first;
    double *losses = a->scratch, sum = 0, target_logit = 0;
    const float unit = a->block->loss_scale * (a->weight ? a->weight[r] : 1);
    float max = -INFINITY, owners = 0, scale;

    for (int64_t p = 0; p < a->P && a->target[r] >= 0; p++) {
        const float *stats = a->stats + (p * a->R + r) * HD_CROSS_ENTROPY_STATS;

        max = stats[0] > max ? stats[0] : max;
        owners += stats[3];
    }
    if (owners == 0) { /* no target: masked, or invalid, which sets overflow when the losses are
                          added */
        if (a->dlogits)
            row_of_zeros(a->dlogits, row, a->Vp, dtype);
        return;
    }
    for (int64_t p = 0; p < a->P; p++) {
        const float *stats = a->stats + (p * a->R + r) * HD_CROSS_ENTROPY_STATS;

        sum += (double)stats[1] * exp((double)stats[0] - (double)max);
        target_logit += (double)stats[2];
    }
    losses[r] = log(sum) + ((double)max - target_logit);
    if (!a->dlogits)
        return;
    scale = (float)((double)unit / sum);
    row_gradient(a->dlogits, a->logits, row, a->V, a->Vp, max, scale, dtype);
    if (target >= 0 && target < a->V)
        vf_store(a->dlogits, row + target, 1,
                 vf_exp(vf_set((float)target_logit - max)) * scale - unit, dtype);
}

static void shared_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_cross_entropy_shared_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(a->dtype, T, shared_row(a, r, T));
}

enum hd_status KERNEL(cross_entropy_shared)(struct hd_backend *cpu,
                                            const struct hd_cross_entropy_shared_args *args)
{
    const enum hd_status st = hd_cpu_check_float("cross_entropy_shared", args->dtype);
    const double *losses = args->scratch;
    struct hd_step_state *block = args->block;
    struct loss_sink sink = {.logp = args->logp, .adds = !args->logp && !args->weight};

    if (st)
        return st;
    hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->Vp * 8), shared_rows, args);
    for (int64_t r = 0; r < args->R; r++) {
        const float *stats = args->stats + r * HD_CROSS_ENTROPY_STATS;
        float owners = 0;

        for (int64_t p = 0; p < args->P; p++)
            owners += stats[p * args->R * HD_CROSS_ENTROPY_STATS + 3];
        if (args->logp)
            args->logp[r] = 0;
        if (args->target[r] >= 0 && owners == 0)
            block->overflow = 1;
        else if (args->target[r] >= 0)
            take_loss(&sink, r, losses[r]);
    }
    add_losses(&sink, block);
    return HD_OK;
}
