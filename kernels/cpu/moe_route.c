/* moe_route: the router of a mixture of experts: noise, top-k softmax, sums, losses and gradients.
 * Rows are short (one value per expert), so the work is divided by rows and runs. */
#include "base/random.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vecmath.h"

INLINE vf load_counts(const int32_t *counts, int64_t n) /* zero in the other lanes */
{
    vi x = {0};

    memcpy(&x, counts, (size_t)n * sizeof *counts);
    return __builtin_convertvector(x, vf);
}

/* ---- noise ---- */

static void noise_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_route_noise_args *a = args;
    const uint64_t key = hd_random_key(a->key, (uint64_t)a->block->step);

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        for (int64_t e = 0; e < a->E; e += 2) {
            const uint64_t place = (uint64_t)(uint32_t)a->index[r] << 32 | (uint64_t)(e / 2);
            float pair[2];

            hd_random_normals(key, place, (uint64_t)(uint32_t)a->sample[r] << 32, pair);
            a->noise[r * a->E + e] = pair[0];
            if (e + 1 < a->E)
                a->noise[r * a->E + e + 1] = pair[1];
        }
}

enum hd_status KERNEL(route_noise)(struct hd_backend *cpu, const struct hd_route_noise_args *args)
{
    enum { BYTES_PER_NUMBER = 256 }; /* bytes moved in the time that one random number takes */

    hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->E * BYTES_PER_NUMBER), noise_rows, args);
    return HD_OK;
}

/* ---- choice ---- */

static float softplus(float x) /* no overflow for large x, no underflow to 0 for small results */
{
    return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x)));
}

/* Inserts expert e into the row's list of the K largest so far (`count` entries, descending h).
 * Equal values and NaN go after the entries already in the list, so the list never has an expert
 * twice. */
INLINE void insert(int32_t *chosen, float *h, int64_t count, int64_t K, int32_t e, float h_e)
{
    int64_t at = count;

    if (count == K && !(h_e > h[K - 1]))
        return;
    if (count == K)
        at--;
    for (; at > 0 && h[at - 1] < h_e; at--) {
        h[at] = h[at - 1];
        chosen[at] = chosen[at - 1];
    }
    h[at] = h_e;
    chosen[at] = e;
}

/* Replaces h by its softmax, exp(h - max) / sum; returns log sum exp(h). */
INLINE float softmax_row(float *h, int64_t count)
{
    vf lane_max = vf_set(-INFINITY), sums = {0};
    float max, sum;

    FOR_VECTORS (e, n, 0, count)
        lane_max = vf_max(lane_max, vf_keep(vf_load_f32(h + e, n), n, -INFINITY));
    max = vf_max_lane(lane_max);
    FOR_VECTORS (e, n, 0, count) {
        const vf x = vf_exp(vf_keep(vf_load_f32(h + e, n) - max, n, -INFINITY));

        vf_store_f32(h + e, n, x);
        sums += x;
    }
    sum = vf_sum(sums);
    FOR_VECTORS (e, n, 0, count)
        vf_store_f32(h + e, n, vf_load_f32(h + e, n) * (1 / sum));
    return max + logf(sum);
}

static void route_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_route_forward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        float *h = a->probs + r * a->E, *gate = a->gate + r * a->K;
        int32_t *chosen = a->chosen + r * a->K;

        memcpy(h, a->logits + r * a->E, (size_t)a->E * sizeof *h);
        for (int64_t e = 0; a->noise_logits && e < a->E; e++)
            h[e] += a->noise[r * a->E + e] * softplus(a->noise_logits[r * a->E + e]);
        for (int64_t e = 0; e < a->E; e++)
            insert(chosen, gate, e < a->K ? e : a->K, a->K, (int32_t)e, h[e]);
        a->lse[r] = softmax_row(h, a->E);
        if (a->renormalize) /* here gate[k] is h of expert chosen[k] */
            (void)softmax_row(gate, a->K);
        else
            for (int64_t k = 0; k < a->K; k++)
                gate[k] = h[chosen[k]];
    }
}

enum hd_status KERNEL(route_forward)(struct hd_backend *cpu,
                                     const struct hd_route_forward_args *args)
{
    if (args->K < 1 || args->K > args->E)
        return hd_err(HD_INVALID, "route_forward: cannot choose %lld of %lld experts",
                      (long long)args->K, (long long)args->E);
    hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->E * 32), route_rows, args);
    return HD_OK;
}

/* ---- sums and losses ---- */

/* Rows are added in blocks of 64, then the blocks: this keeps the rounding error small. */
static void sum_run(const struct hd_route_sums_args *a, int64_t q)
{
    enum { BLOCK = 64 };
    const int64_t rows = a->R / a->Q;
    int32_t *counts = a->counts + q * a->E;
    float *sums = a->prob_sums + q * a->E;

    memset(counts, 0, (size_t)a->E * sizeof *counts);
    for (int64_t i = q * rows * a->K; i < (q + 1) * rows * a->K; i++)
        counts[a->chosen[i]]++;
    FOR_VECTORS (e, n, 0, a->E) {
        vf sum = {0};

        for (int64_t r = q * rows; r < (q + 1) * rows; r += BLOCK) {
            const int64_t end = r + BLOCK < (q + 1) * rows ? r + BLOCK : (q + 1) * rows;
            vf part = {0};

            for (int64_t i = r; i < end; i++)
                part += vf_load_f32(a->probs + i * a->E + e, n);
            sum += part;
        }
        vf_store_f32(sums + e, n, sum);
    }
}

static void sum_runs(const void *args, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    for (int64_t q = begin; q < end; q++)
        sum_run(args, q);
}

enum hd_status KERNEL(route_sums)(struct hd_backend *cpu, const struct hd_route_sums_args *args)
{
    hd_cpu_parallel(cpu, args->Q, 1, sum_runs, args);
    return HD_OK;
}

/* The number of the piece that is run `run` of rank p (see route_totals in ops_moe.h). */
static int64_t piece_of(int64_t p, int64_t run, int64_t P)
{
    return run ? 2 * P - 1 - p : p;
}

enum hd_status KERNEL(route_totals)(struct hd_backend *cpu, const struct hd_route_totals_args *args)
{
    const struct hd_route_totals_args *a = args;
    const int64_t B = a->Q / a->runs;

    (void)cpu; /* one thread is enough for some kilobytes */
    memset(a->counts, 0, (size_t)(B * a->E) * sizeof *a->counts);
    memset(a->prob_sums, 0, (size_t)(B * a->E) * sizeof *a->prob_sums);
    memset(a->taken, 0, (size_t)(a->Q * a->E) * sizeof *a->taken);
    for (int64_t p = 0; p < a->P; p++)
        for (int64_t q = 0; q < a->Q; q++) {
            const int64_t from = (p * a->Q + q) * a->E, b = q / a->runs;
            const int64_t piece = piece_of(p, q % a->runs, a->P);

            for (int64_t e = 0; e < a->E; e++) {
                a->counts[b * a->E + e] += a->all_counts[from + e];
                a->prob_sums[b * a->E + e] += a->all_prob_sums[from + e];
                for (int64_t own = b * a->runs; own < (b + 1) * a->runs; own++)
                    if (piece < piece_of(a->rank, own % a->runs, a->P))
                        a->taken[own * a->E + e] += a->all_counts[from + e];
            }
        }
    return HD_OK;
}

static int64_t dropped_of(const struct hd_route_record_args *a, int64_t at)
{
    const int64_t room = a->capacity - (a->taken ? a->taken[at] : 0);
    const int64_t kept = room < 0 ? 0 : room;

    return a->capacity > 0 && a->run_counts[at] > kept ? a->run_counts[at] - kept : 0;
}

enum hd_status KERNEL(route_record)(struct hd_backend *cpu, const struct hd_route_record_args *args)
{
    const struct hd_route_record_args *a = args;
    const int64_t B = a->Q / a->runs;
    double balance = 0, z = 0, dropped = 0;

    (void)cpu; /* one thread: few values, added in order */
    for (int64_t i = 0; i < B * a->E; i++)
        balance += (double)a->counts[i] * (double)a->prob_sums[i];
    for (int64_t r = 0; r < a->R; r++)
        z += (double)a->lse[r] * (double)a->lse[r];
    for (int64_t i = 0; i < a->Q * a->E; i++) {
        dropped += (double)dropped_of(a, i);
        a->record[HD_ROUTE_WORDS + i % a->E] += a->run_counts[i];
    }
    a->record[HD_ROUTE_ROWS] += (double)a->R;
    a->record[HD_ROUTE_BALANCE] +=
        balance * (double)(a->R / B) * (double)a->E / ((double)a->K * (double)a->S * (double)a->S);
    a->record[HD_ROUTE_Z] += z;
    a->record[HD_ROUTE_DROPPED] += dropped;
    return HD_OK;
}

/* ---- gradients ---- */

static void backward_row(const struct hd_route_backward_args *a, int64_t r)
{
    const float scale = a->share * a->block->loss_scale;
    const float per_count =
        a->counts ? a->balance * scale * (float)a->E / ((float)a->K * (float)a->S) : 0;
    const int32_t *counts = a->counts ? a->counts + r / (a->R / a->B) * a->E : NULL;
    const int32_t *chosen = a->chosen + r * a->K;
    const float *probs = a->probs + r * a->E, *gate = a->gate + r * a->K;
    const float *dgate = a->dgate + r * a->K;
    float *dlogits = a->dlogits + r * a->E, mean, gate_mean = 0, common;
    vf sums = {0};

    FOR_VECTORS (e, n, 0, counts ? a->E : 0)
        sums += vf_load_f32(probs + e, n) * load_counts(counts + e, n) * per_count;
    mean = vf_sum(sums);
    for (int64_t k = 0; k < a->K; k++)
        gate_mean += gate[k] * dgate[k];
    if (!a->renormalize) /* then gate[k] is probs[chosen[k]] */
        mean += gate_mean;
    common = 2 * a->z * scale * a->lse[r] - mean;
    FOR_VECTORS (e, n, 0, a->E) {
        const vf t = counts ? load_counts(counts + e, n) * per_count : (vf){0};

        vf_store_f32(dlogits + e, n, vf_load_f32(probs + e, n) * (t + common));
    }
    for (int64_t k = 0; k < a->K; k++)
        dlogits[chosen[k]] += gate[k] * (dgate[k] - (a->renormalize ? gate_mean : 0));
    FOR_VECTORS (e, n, 0, a->noise_logits ? a->E : 0)
        vf_store_f32(a->dnoise_logits + r * a->E + e, n,
                     vf_load_f32(dlogits + e, n) * vf_load_f32(a->noise + r * a->E + e, n) *
                         vf_sigmoid(vf_load_f32(a->noise_logits + r * a->E + e, n)));
}

static void backward_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    for (int64_t r = begin; r < end; r++)
        backward_row(args, r);
}

enum hd_status KERNEL(route_backward)(struct hd_backend *cpu,
                                      const struct hd_route_backward_args *args)
{
    hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->E * 16), backward_rows, args);
    return HD_OK;
}
