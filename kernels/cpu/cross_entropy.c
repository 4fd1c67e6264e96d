#include "kernels/cpu/cpu.h"
#include "kernels/cpu/logits.h"

INLINE void map_piece(const struct hd_map_logits_args *a, int64_t begin, int64_t end,
                      enum map_kind kind, enum hd_dtype dtype)
{
    FOR_VECTORS (i, n, begin, end)
        vf_store(a->logits, i, n, mapped(vf_load(a->logits, i, n, dtype), a->map, kind), dtype);
}

static void map_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_map_logits_args *a = args;

    (void)thread;
    WITH_MAP(a->map, M, WITH_FLOATS(a->dtype, T, map_piece(a, begin, end, M, T)));
}

enum hd_status KERNEL(map_logits)(struct hd_backend *cpu, const struct hd_map_logits_args *args)
{
    enum { GRAIN = 16 * 1024 }; /* number of elements that a thread takes at a time */
    const enum hd_status st = hd_cpu_check_float("map_logits", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->N, GRAIN, map_pieces, args);
    return st;
}

/* Computes one row of dlogits = scale * exp(mapped logits - max), with a cap times its slope; 0 in
 * the padding columns. */
INLINE void row_gradient(void *dlogits, const void *logits, int64_t row, int64_t V, int64_t Vp,
                         float max, float scale, struct hd_logit_map map, enum map_kind kind,
                         enum hd_dtype dtype)
{
    FOR_VECTORS (v, n, 0, V) {
        const vf y = mapped(vf_load(logits, row + v, n, dtype), map, kind);
        vf d = vf_exp(y - max) * scale;

        if (kind == MAP_CAP)
            d *= logit_slope(y, map);
        vf_store(dlogits, row + v, n, d, dtype);
    }
    FOR_VECTORS (v, n, V, Vp)
        vf_store(dlogits, row + v, n, (vf){0}, dtype);
}

INLINE void row_of_zeros(void *dlogits, int64_t row, int64_t Vp, enum hd_dtype dtype)
{
    FOR_VECTORS (v, n, 0, Vp)
        vf_store(dlogits, row + v, n, (vf){0}, dtype);
}

/* ---- records of further tokens ---- */

/* Returns the factor of the gradients of a loss with this record; NULL: the model's own loss. */
INLINE float record_factor(const double *record)
{
    return record ? (float)record[HD_FURTHER_FACTOR] : 1;
}

/* Returns the loss of a row as the scratch has it: with a record its sign, which may be that of a
 * zero, marks a target with the largest logit; a loss is not below 0. */
INLINE double marked(double loss, bool hit)
{
    return hit ? -fabs(loss) : loss;
}

/* ---- z-loss ---- */

/* Returns the factor by which the z-loss multiplies the softmax in a row's gradient, and keeps log Z
 * of the row behind the R losses of the scratch. Without a z-loss returns 1 and keeps nothing. */
INLINE float z_factor(float z, double log_z, double *losses, int64_t R, int64_t r)
{
    if (!(z > 0))
        return 1;
    losses[R + r] = log_z;
    return (float)(1 + 2 * (double)z * log_z);
}

/* ---- one rank has all logits ---- */

/* Computes the cross-entropy of row r in three passes over its logits in cache: maximum, sum of
 * exponentials, gradient. losses[r] is log sum exp(logits - max) + max - logits[target], marked. */
INLINE void cross_entropy_row(const struct hd_cross_entropy_args *a, int64_t r, enum map_kind kind,
                              enum hd_dtype dtype)
{
    const int64_t row = r * a->Vp;
    const int32_t target = a->target[r];
    double *losses = a->scratch;
    float max, sum, unit, scale, target_logit, gradient, factor;

    if (target < 0 || target >= a->V) { /* no target: masked, or invalid, which sets overflow when
                                           the losses are added */
        if (a->dlogits)
            row_of_zeros(a->dlogits, row, a->Vp, dtype);
        return;
    }
    max = mapped_max(a->logits, row, a->V, a->map, kind, dtype);
    sum = row_sum(a->logits, row, a->V, max, a->map, kind, dtype);
    target_logit = mapped(vf_load(a->logits, row + target, 1, dtype), a->map, kind)[0];
    losses[r] = marked(log((double)sum) + ((double)max - (double)target_logit),
                       a->record && target_logit >= max);
    factor = z_factor(a->z, log((double)sum) + (double)max, losses, a->R, r);
    if (!a->dlogits)
        return;
    unit = a->block->loss_scale * (a->weight ? a->weight[r] : 1) * record_factor(a->record) *
           hd_factor_of(a->map.scale);
    scale = unit / sum;
    if (a->z > 0)
        scale *= factor;
    gradient = vf_exp(vf_set(target_logit - max))[0] * scale - unit;
    if (kind == MAP_CAP)
        gradient *= logit_slope(vf_set(target_logit), a->map)[0];
    row_gradient(a->dlogits, a->logits, row, a->V, a->Vp, max, scale, a->map, kind, dtype);
    vf_store(a->dlogits, row + target, 1, vf_set(gradient), dtype);
}

static void cross_entropy_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_cross_entropy_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_MAP(a->map, M, WITH_FLOATS(a->dtype, T, cross_entropy_row(a, r, M, T)));
}

/* Destination of the losses of rows that have a target. */
struct loss_sink {
    float *logp;
    const double *log_z; /* [R], with a z-loss; NULL: none */
    bool adds;
    bool has_marks; /* true: the losses are marked */
    double sum, z_sum;
    int64_t count, hits;
};

INLINE void take_loss(struct loss_sink *sink, int64_t r, double loss)
{
    if (sink->logp)
        sink->logp[r] = (float)-loss;
    sink->hits += signbit(loss) != 0;
    sink->sum += sink->has_marks ? fabs(loss) : loss;
    sink->count++;
    if (sink->log_z)
        sink->z_sum += sink->log_z[r] * sink->log_z[r];
}

INLINE void add_losses(const struct loss_sink *sink, double *record, struct hd_step_state *block)
{
    if (record) {
        record[HD_FURTHER_LOSS] += sink->sum;
        record[HD_FURTHER_TARGETS] += (double)sink->count;
        record[HD_FURTHER_HITS] += (double)sink->hits;
        return;
    }
    if (!sink->adds)
        return;
    block->loss_sum += sink->sum;
    block->target_count += sink->count;
    block->z_sum += sink->z_sum;
}

enum hd_status KERNEL(cross_entropy)(struct hd_backend *cpu,
                                     const struct hd_cross_entropy_args *args)
{
    const enum hd_status st = hd_cpu_check_float("cross_entropy", args->dtype);
    const double *losses = args->scratch;
    struct hd_step_state *block = args->block;
    struct loss_sink sink = {.logp = args->logp,
                             .log_z = args->z > 0 ? losses + args->R : NULL,
                             .adds = !args->logp && !args->weight,
                             .has_marks = args->record != NULL};

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
    add_losses(&sink, args->record, block);
    return HD_OK;
}

/* ---- several ranks share the logits ---- */

INLINE void stats_row(const struct hd_cross_entropy_stats_args *a, int64_t r, enum map_kind kind,
                      enum hd_dtype dtype)
{
    const int64_t row = r * a->Vp, target = a->target[r] - a->first;
    const bool mine = target >= 0 && target < a->V;
    float *stats = a->stats + r * HD_CROSS_ENTROPY_STATS;

    stats[0] = mapped_max(a->logits, row, a->V, a->map, kind, dtype);
    stats[1] = row_sum(a->logits, row, a->V, stats[0], a->map, kind, dtype);
    stats[2] = mine ? mapped(vf_load(a->logits, row + target, 1, dtype), a->map, kind)[0] : 0;
    stats[3] = mine ? 1 : 0;
}

static void stats_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_cross_entropy_stats_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_MAP(a->map, M, WITH_FLOATS(a->dtype, T, stats_row(a, r, M, T)));
}

enum hd_status KERNEL(cross_entropy_stats)(struct hd_backend *cpu,
                                           const struct hd_cross_entropy_stats_args *args)
{
    const enum hd_status st = hd_cpu_check_float("cross_entropy_stats", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->Vp * 8), stats_rows, args);
    return st;
}

INLINE void shared_row(const struct hd_cross_entropy_shared_args *a, int64_t r, enum map_kind kind,
                       enum hd_dtype dtype)
{
    const int64_t row = r * a->Vp, target = a->target[r] - a->first;
    double *losses = a->scratch, sum = 0, target_logit = 0;
    const float unit = a->block->loss_scale * (a->weight ? a->weight[r] : 1) *
                       record_factor(a->record) * hd_factor_of(a->map.scale);
    float max = -INFINITY, owners = 0, scale, factor;
    vf gradient;

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
    losses[r] =
        marked(log(sum) + ((double)max - target_logit), a->record && target_logit >= (double)max);
    factor = z_factor(a->z, log(sum) + (double)max, losses, a->R, r);
    if (!a->dlogits)
        return;
    scale = (float)((double)unit / sum);
    if (a->z > 0)
        scale *= factor;
    row_gradient(a->dlogits, a->logits, row, a->V, a->Vp, max, scale, a->map, kind, dtype);
    if (target < 0 || target >= a->V)
        return;
    gradient = vf_exp(vf_set((float)target_logit - max)) * scale - unit;
    if (kind == MAP_CAP)
        gradient *= logit_slope(vf_set((float)target_logit), a->map);
    vf_store(a->dlogits, row + target, 1, gradient, dtype);
}

static void shared_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_cross_entropy_shared_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_MAP(a->map, M, WITH_FLOATS(a->dtype, T, shared_row(a, r, M, T)));
}

enum hd_status KERNEL(cross_entropy_shared)(struct hd_backend *cpu,
                                            const struct hd_cross_entropy_shared_args *args)
{
    const enum hd_status st = hd_cpu_check_float("cross_entropy_shared", args->dtype);
    const double *losses = args->scratch;
    struct hd_step_state *block = args->block;
    struct loss_sink sink = {.logp = args->logp,
                             .log_z = args->z > 0 ? losses + args->R : NULL,
                             .adds = !args->logp && !args->weight,
                             .has_marks = args->record != NULL};

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
    add_losses(&sink, args->record, block);
    return HD_OK;
}

/* ---- entropy ---- */

INLINE void entropy_row(const struct hd_entropy_args *a, int64_t r, enum map_kind kind,
                        enum hd_dtype dtype)
{
    const int64_t row = r * a->Vp;
    float *spread = a->spread + r * HD_ENTROPY_WORDS, max;
    vf sums = {0}, moments = {0};

    if (a->target[r] < 0) {
        memset(spread, 0, HD_ENTROPY_WORDS * sizeof *spread);
        return;
    }
    max = mapped_max(a->logits, row, a->V, a->map, kind, dtype);
    FOR_VECTORS (v, n, 0, a->V) {
        const vf y = mapped(vf_load(a->logits, row + v, n, dtype), a->map, kind) - max;
        const vf e = vf_exp(vf_keep(y, n, -INFINITY));

        sums += e;
        moments += e * vf_keep(y, n, 0);
    }
    spread[0] = max;
    spread[1] = vf_sum(sums);
    spread[2] = vf_sum(moments);
}

static void entropy_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_entropy_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_MAP(a->map, M, WITH_FLOATS(a->dtype, T, entropy_row(a, r, M, T)));
}

enum hd_status KERNEL(entropy)(struct hd_backend *cpu, const struct hd_entropy_args *args)
{
    const enum hd_status st = hd_cpu_check_float("entropy", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->Vp * 10), entropy_rows, args);
    return st;
}
