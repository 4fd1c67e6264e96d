/* moe_route: the router of a mixture of experts: noise, scores, choice, sums, losses and gradients.
 * Rows are short (one value per expert), so the work is divided by rows and runs. */
#include "base/random.h"
#include "kernels/costs/costs.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vecmath.h"
#include "kernels/document.h"

static const float NO_SCORE = 1e-20f; /* added to sums of scores, which may all underflow */

INLINE vf load_counts(const int32_t *counts, int64_t n) /* returns n counts as floats, and zero in
                                                           the other lanes */
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
    /* memory traffic that takes as long as computing one normal number */
    enum { BYTES_PER_NUMBER = 256 };

    hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->E * BYTES_PER_NUMBER), noise_rows, args);
    return HD_OK;
}

/* ---- choice ---- */

static float softplus(float x) /* returns log(1 + exp(x)) without overflow for large x, or underflow
                                  to 0 for small results */
{
    return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x)));
}

/* Inserts expert e into the row's list of the K largest so far (`count` entries, descending h).
 * Equal values and NaN are placed after the entries already in the list, so an expert is never in
 * the list twice. */
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

/* Replaces h by its softmax, exp(h - max) / sum. Returns log sum exp(h). */
INLINE float softmax_logits(float *h, int64_t count)
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

/* Writes the router's outputs of an empty row r: no choices, zeros. */
static void leave_out(const struct hd_route_forward_args *a, int64_t r)
{
    memset(a->probs + r * a->E, 0, (size_t)a->E * sizeof *a->probs);
    memset(a->gate + r * a->K, 0, (size_t)a->K * sizeof *a->gate);
    memset(a->chosen + r * a->K, 0xFF, (size_t)a->K * sizeof *a->chosen); /* sets every choice to
                                                                             -1 */
    a->lse[r] = 0;
}

static float scale_of(const struct hd_route_form *form)
{
    return form->scale > 0 ? form->scale : 1;
}

/* Replaces h by sigmoid(h). Returns log(1e-20 + the sum of these). */
static float sigmoid_logits(float *h, int64_t count)
{
    vf sums = {0};

    FOR_VECTORS (e, n, 0, count) {
        const vf s = vf_keep(vf_sigmoid(vf_load_f32(h + e, n)), n, 0);

        vf_store_f32(h + e, n, s);
        sums += s;
    }
    return logf(vf_sum(sums) + NO_SCORE);
}

static float choice_value(const struct hd_route_forward_args *a, const float *probs, int64_t e)
{
    return probs[e] + (a->select_bias ? a->select_bias[e] : 0);
}

/* Returns the value of a group of `size` experts, from `first` on. */
static float group_value(const struct hd_route_forward_args *a, const float *probs, int64_t first,
                         int64_t size)
{
    float best = -INFINITY, second = -INFINITY;

    for (int64_t e = first; e < first + size; e++) {
        const float v = choice_value(a, probs, e);

        second = v > best ? best : v > second ? v : second;
        best = v > best ? v : best;
    }
    return a->form.rule == HD_ROUTE_GROUPS_BEST_TWO ? best + second : best;
}

/* Returns the groups whose experts a row may choose, as bits. */
static uint64_t keep_groups(const struct hd_route_forward_args *a, const float *probs)
{
    const int64_t groups = a->form.groups, kept = a->form.kept;
    int32_t number[HD_ROUTE_GROUPS_MAX];
    float value[HD_ROUTE_GROUPS_MAX];
    uint64_t bits = 0;

    if (groups <= 1)
        return 1;
    for (int64_t g = 0; g < groups; g++)
        insert(number, value, g < kept ? g : kept, kept, (int32_t)g,
               group_value(a, probs, g * (a->E / groups), a->E / groups));
    for (int64_t i = 0; i < kept; i++)
        bits |= (uint64_t)1 << number[i];
    return bits;
}

/* Chooses by the scores of a sigmoid, by scores with a select bias, or in groups. h: the row of
 * probs, which holds the row's logits. */
static void choose_by_scores(const struct hd_route_forward_args *a, int64_t r, float *h)
{
    const bool sigmoid = a->form.score == HD_ROUTE_SIGMOID;
    const int64_t size = a->form.groups > 1 ? a->E / a->form.groups : a->E;
    int32_t *chosen = a->chosen + r * a->K;
    float *gate = a->gate + r * a->K, sum = 0, factor;
    uint64_t groups;
    int64_t count = 0;

    a->lse[r] = sigmoid ? sigmoid_logits(h, a->E) : softmax_logits(h, a->E);
    groups = keep_groups(a, h);
    for (int64_t e = 0; e < a->E; e++) {
        if (!(groups >> (e / size) & 1))
            continue;
        insert(chosen, gate, count, a->K, (int32_t)e, choice_value(a, h, e));
        count += count < a->K;
    }
    for (int64_t k = 0; k < a->K; k++)
        sum += gate[k] = h[chosen[k]];
    factor = scale_of(&a->form) / (a->renormalize ? sum + NO_SCORE : 1);
    for (int64_t k = 0; k < a->K; k++)
        gate[k] *= factor;
}

/* Chooses by logits. h: the row of probs, which holds the row's logits. */
static void choose_by_logits(const struct hd_route_forward_args *a, int64_t r, float *h)
{
    int32_t *chosen = a->chosen + r * a->K;
    float *gate = a->gate + r * a->K;

    for (int64_t e = 0; e < a->E; e++)
        insert(chosen, gate, e < a->K ? e : a->K, a->K, (int32_t)e, h[e]);
    a->lse[r] = softmax_logits(h, a->E);
    if (a->renormalize) /* gate[k] still is the logit h of expert chosen[k] */
        (void)softmax_logits(gate, a->K);
    else
        for (int64_t k = 0; k < a->K; k++)
            gate[k] = h[chosen[k]];
    for (int64_t k = 0; a->form.scale > 0 && k < a->K; k++)
        gate[k] *= a->form.scale;
}

static void route_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_route_forward_args *a = args;
    const bool by_scores =
        a->form.score == HD_ROUTE_SIGMOID || a->select_bias || a->form.groups > 1;

    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        float *h = a->probs + r * a->E;

        if (a->lengths && !a->lengths[r]) {
            leave_out(a, r);
            continue;
        }
        memcpy(h, a->logits + r * a->E, (size_t)a->E * sizeof *h);
        for (int64_t e = 0; a->noise_logits && e < a->E; e++)
            h[e] += a->noise[r * a->E + e] * softplus(a->noise_logits[r * a->E + e]);
        if (by_scores)
            choose_by_scores(a, r, h);
        else
            choose_by_logits(a, r, h);
    }
}

enum hd_status KERNEL(route_forward)(struct hd_backend *cpu,
                                     const struct hd_route_forward_args *args)
{
    const enum hd_status st = hd_costs_route_check(args);

    if (st)
        return st;
    hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->E * 32), route_rows, args);
    return HD_OK;
}

/* ---- sums and losses ---- */

static void count_documents(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_route_counts_args *a = args;
    const int64_t run_rows = a->R / a->at.Q;

    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const struct hd_document_row d = hd_document_of(&a->at, a->R, a->begins, a->lengths, r);
        const int64_t b = r / run_rows / a->at.runs;
        int32_t *counts = a->counts + r * a->E;

        if (d.first != r || !d.length)
            continue;
        memset(counts, 0, (size_t)a->E * sizeof *counts);
        for (int64_t place = d.begin; place < d.begin + d.length; place++) {
            const int32_t *chosen = a->chosen + hd_row_of_place(&a->at, a->R, b, place) * a->K;

            for (int64_t k = 0; k < a->K; k++)
                counts[chosen[k]]++;
        }
    }
}

enum hd_status KERNEL(route_counts)(struct hd_backend *cpu, const struct hd_route_counts_args *args)
{
    hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->K * 16), count_documents, args);
    return HD_OK;
}

enum hd_status KERNEL(route_record)(struct hd_backend *cpu, const struct hd_route_record_args *args)
{
    const struct hd_route_record_args *a = args;
    double balance = 0, z = 0, rows = 0, dropped = 0;

    (void)cpu; /* runs on one thread: the values are few and added in order */
    for (int64_t r = 0; r < a->R; r++) {
        const struct hd_document_row d = hd_document_of(&a->at, a->R, a->begins, a->lengths, r);
        const int32_t *counts = a->counts + d.first * a->E;
        double sum = 0;

        if (!d.length)
            continue;
        for (int64_t e = 0; e < a->E; e++)
            sum += (double)counts[e] * (double)a->probs[r * a->E + e];
        if (a->score == HD_ROUTE_SIGMOID)
            sum *= exp(-(double)a->lse[r]);
        balance += sum * (double)a->E / ((double)a->K * (double)d.length);
        z += (double)a->lse[r] * (double)a->lse[r];
        rows++;
        for (int64_t i = r * a->K; i < (r + 1) * a->K; i++) {
            a->record[HD_ROUTE_WORDS + a->chosen[i]]++;
            dropped += a->slot[i] < 0;
        }
    }
    a->record[HD_ROUTE_ROWS] += rows;
    a->record[HD_ROUTE_BALANCE] += balance;
    a->record[HD_ROUTE_Z] += z;
    a->record[HD_ROUTE_DROPPED] += dropped;
    return HD_OK;
}

/* ---- gradients ---- */

static void route_backward_row(const struct hd_route_backward_args *a, int64_t r)
{
    const struct hd_document_row d = hd_document_of(&a->at, a->R, a->begins, a->lengths, r);
    const float scale = a->share * a->block->loss_scale * a->block->loss_per_token;
    const float per_count = a->counts && d.length
                                ? a->balance * scale * (float)a->E / ((float)a->K * (float)d.length)
                                : 0;
    const int32_t *counts = a->counts ? a->counts + d.first * a->E : NULL;
    const int32_t *chosen = a->chosen + r * a->K;
    const float *probs = a->probs + r * a->E, *gate = a->gate + r * a->K;
    const float *dgate = a->dgate + r * a->K;
    const bool sigmoid = a->form.score == HD_ROUTE_SIGMOID;
    const float inverse = sigmoid ? expf(-a->lse[r]) : 1; /* 1 / sum of the probs */
    float *dlogits = a->dlogits + r * a->E, mean, gate_mean = 0, common;
    vf sums = {0};

    if (!d.length) {
        memset(dlogits, 0, (size_t)a->E * sizeof *dlogits);
        if (a->dnoise_logits)
            memset(a->dnoise_logits + r * a->E, 0, (size_t)a->E * sizeof *dlogits);
        return;
    }
    FOR_VECTORS (e, n, 0, counts ? a->E : 0)
        sums += vf_load_f32(probs + e, n) * inverse * load_counts(counts + e, n) * per_count;
    mean = vf_sum(sums);
    for (int64_t k = 0; k < a->K; k++)
        gate_mean += gate[k] * dgate[k];
    if (a->renormalize)
        gate_mean /= scale_of(&a->form);
    else if (!sigmoid) /* then gate[k] is the scale times probs[chosen[k]] */
        mean += gate_mean;
    common = 2 * a->z * scale * a->lse[r] - mean;
    FOR_VECTORS (e, n, 0, a->E) {
        const vf t = counts ? load_counts(counts + e, n) * per_count : (vf){0};

        vf_store_f32(dlogits + e, n, vf_load_f32(probs + e, n) * inverse * (t + common));
    }
    for (int64_t k = 0; k < a->K; k++)
        dlogits[chosen[k]] += gate[k] * (dgate[k] - (a->renormalize ? gate_mean : 0));
    FOR_VECTORS (e, n, 0, sigmoid ? a->E : 0)
        vf_store_f32(dlogits + e, n, vf_load_f32(dlogits + e, n) * (1 - vf_load_f32(probs + e, n)));
    FOR_VECTORS (e, n, 0, a->noise_logits ? a->E : 0)
        vf_store_f32(a->dnoise_logits + r * a->E + e, n,
                     vf_load_f32(dlogits + e, n) * vf_load_f32(a->noise + r * a->E + e, n) *
                         vf_sigmoid(vf_load_f32(a->noise_logits + r * a->E + e, n)));
}

static void route_backward_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    for (int64_t r = begin; r < end; r++)
        route_backward_row(args, r);
}

enum hd_status KERNEL(route_backward)(struct hd_backend *cpu,
                                      const struct hd_route_backward_args *args)
{
    hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->E * 16), route_backward_rows, args);
    return HD_OK;
}

/* ---- select bias ---- */

enum hd_status KERNEL(route_bias)(struct hd_backend *cpu, const struct hd_route_bias_args *args)
{
    double sum = 0; /* sum of whole numbers, which is exact in any order */

    (void)cpu;
    for (int64_t e = 0; e < args->E; e++)
        sum += args->load[e];
    for (int64_t e = 0; e < args->E && !args->block->skip_update; e++) {
        const double lack = sum - (double)args->E * args->load[e];

        args->bias[e] += lack > 0 ? args->rate : lack < 0 ? -args->rate : 0;
    }
    return HD_OK;
}
