/* moe_rows: moves rows of a mixture of experts: into expert order, back into row order weighted by
 * the gates, and between the (rank, expert) and (expert, rank) orders. */
#include "base/math.h"
#include "kernels/costs/costs.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"
#include "kernels/document.h"

/* ---- assign ---- */

/* Returns row q of the first array in scratch, [Q, E]: the number of kept choices of each run and
 * expert, later the next slot for them. seen_of returns row q of the second array, [Q, E]: the
 * choices of the current document. */
static int64_t *next_of(const struct hd_assign_args *a, int64_t q)
{
    return (int64_t *)a->scratch + q * a->E;
}

static int64_t *seen_of(const struct hd_assign_args *a, int64_t q)
{
    return (int64_t *)a->scratch + (a->at.Q + q) * a->E;
}

/* Counts, by expert, the choices of the rows before run q of the document that continues into the
 * first row of the run; none if a document begins there. */
static void count_before(const struct hd_assign_args *a, int64_t q, const struct hd_document_row *d)
{
    int64_t *seen = seen_of(a, q);

    for (int64_t place = d->begin; place < d->place; place++) {
        const int32_t *chosen =
            a->chosen + hd_row_of_place(&a->at, a->R, q / a->at.runs, place) * a->K;

        for (int64_t k = 0; k < a->K; k++)
            seen[chosen[k]]++;
    }
}

/* Sets slot to 0 for the choices of run q that are kept, to -1 for those that are dropped, and
 * counts the kept ones by expert. */
static void keep_run(const struct hd_assign_args *a, int64_t q)
{
    const int64_t rows = a->R / a->at.Q;
    const int32_t *own = a->chosen + a->at.rank * a->R * a->K;
    int64_t *kept = next_of(a, q), *seen = seen_of(a, q);

    memset(kept, 0, (size_t)a->E * sizeof *kept);
    for (int64_t r = q * rows; r < (q + 1) * rows; r++) {
        const struct hd_document_row d = hd_document_of(&a->at, a->R, a->begins, a->lengths, r);
        const int64_t capacity =
            a->capacity > 0 ? hd_document_capacity(a->capacity, d.length, a->K, a->E) : INT64_MAX;

        if (d.first == r) {
            memset(seen, 0, (size_t)a->E * sizeof *seen);
            if (d.length && a->capacity > 0)
                count_before(a, q, &d);
        }
        for (int64_t i = r * a->K; i < (r + 1) * a->K; i++) {
            const bool keeps = own[i] >= 0 && seen[own[i]]++ < capacity;

            a->slot[i] = keeps ? 0 : -1;
            if (keeps)
                kept[own[i]]++;
        }
    }
}

static void keep_runs(const void *args, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    for (int64_t q = begin; q < end; q++)
        keep_run(args, q);
}

static void assign_runs(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_assign_args *a = args;
    const int64_t choices = a->R / a->at.Q * a->K;
    const int32_t *own = a->chosen + a->at.rank * a->R * a->K;

    (void)thread;
    for (int64_t q = begin; q < end; q++) {
        int64_t *next = next_of(a, q);

        for (int64_t i = q * choices; i < (q + 1) * choices; i++)
            if (a->slot[i] >= 0) {
                const int64_t place = next[own[i]]++;

                a->slot[i] = place < a->T ? (int32_t)place : -1;
            }
    }
}

enum hd_status KERNEL(assign)(struct hd_backend *cpu, const struct hd_assign_args *args)
{
    const struct hd_assign_args *a = args;
    int64_t place = 0;

    if (a->P < 1 || a->E % a->P)
        return hd_err(HD_INVALID, "assign: %lld ranks cannot hold equal shares of %lld experts",
                      (long long)a->P, (long long)a->E);
    hd_cpu_parallel(cpu, a->at.Q, 1, keep_runs, args);
    memset(a->sent, 0, (size_t)a->P * sizeof *a->sent);
    for (int64_t e = 0; e < a->E; e++) {
        const int64_t first = hd_min(place, a->T);

        for (int64_t q = 0; q < a->at.Q; q++) {
            const int64_t kept = next_of(a, q)[e];

            next_of(a, q)[e] = place;
            place += kept;
        }
        a->counts[e] = (int32_t)(hd_min(place, a->T) - first);
        a->sent[e / (a->E / a->P)] += a->counts[e];
    }
    if (place > a->T)
        a->block->overflow = 1;
    hd_cpu_parallel(cpu, a->at.Q, 1, assign_runs, args);
    return HD_OK;
}

/* ---- permute ---- */

static void permute_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_permute_forward_args *a = args;
    const size_t bytes = (size_t)a->C * hd_dtype_size(a->dtype);

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        for (int64_t k = 0; k < a->K; k++) {
            const int32_t slot = a->slot[r * a->K + k];

            if (slot >= 0)
                memcpy((char *)a->out + (size_t)slot * bytes,
                       (const char *)a->inp + (size_t)r * bytes, bytes);
        }
}

enum hd_status KERNEL(permute_forward)(struct hd_backend *cpu,
                                       const struct hd_permute_forward_args *args)
{
    const int64_t row_bytes = args->C * (int64_t)hd_dtype_size(args->dtype);

    hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain((args->K + 1) * row_bytes), permute_rows, args);
    return HD_OK;
}

/* Computes one row out[c] = sum over k of factor[k] * rows[slot[k], c], for the K choices of a row
 * that have a slot; factor NULL: all are 1. */
INLINE void sum_slots(void *out, int64_t out_at, const void *rows, const int32_t *slot,
                      const float *factor, int64_t K, int64_t C, enum hd_dtype dtype)
{
    FOR_VECTORS (c, n, 0, C) {
        vf sum = {0};

        for (int64_t k = 0; k < K; k++)
            if (slot[k] >= 0)
                sum += vf_load(rows, slot[k] * C + c, n, dtype) * (factor ? factor[k] : 1.0f);
        vf_store(out, out_at + c, n, sum, dtype);
    }
}

static void permute_gradients(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_permute_backward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(a->dtype, T,
                    sum_slots(a->dinp, r * a->C, a->dout, a->slot + r * a->K, NULL, a->K, a->C, T));
}

enum hd_status KERNEL(permute_backward)(struct hd_backend *cpu,
                                        const struct hd_permute_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("permute_backward", args->dtype);
    const int64_t row_bytes = args->C * (int64_t)hd_dtype_size(args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain((args->K + 1) * row_bytes),
                        permute_gradients, args);
    return st;
}

/* ---- combine ---- */

static void combine_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_combine_forward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const int32_t *slot = a->slot + r * a->K;
        const float *gate = a->gate + r * a->K;

        WITH_FLOATS(a->dtype, T, sum_slots(a->out, r * a->C, a->inp, slot, gate, a->K, a->C, T));
    }
}

enum hd_status KERNEL(combine_forward)(struct hd_backend *cpu,
                                       const struct hd_combine_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("combine_forward", args->dtype);
    const int64_t row_bytes = args->C * (int64_t)hd_dtype_size(args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain((args->K + 1) * row_bytes), combine_rows,
                        args);
    return st;
}

/* Computes the gradient of one choice of row r: dinp of its slot; returns dgate. Each element of
 * inp is read before the element of dinp at its index is written: they may alias. */
INLINE float combine_gradient(const struct hd_combine_backward_args *a, int64_t r, int64_t slot,
                              float gate, enum hd_dtype dtype)
{
    vf dot = {0};

    FOR_VECTORS (c, n, 0, a->C) {
        const vf dout = vf_load(a->dout, r * a->C + c, n, dtype);

        if (a->dgate)
            dot += dout * vf_load(a->inp, slot * a->C + c, n, dtype);
        if (a->dinp)
            vf_store(a->dinp, slot * a->C + c, n, dout * gate, dtype);
    }
    return vf_sum(dot);
}

static void combine_gradients(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_combine_backward_args *a = args;

    (void)thread;
    for (int64_t i = begin * a->K; i < end * a->K; i++) {
        float dgate = 0;

        if (a->slot[i] >= 0)
            WITH_FLOATS(a->dtype, T,
                        dgate = combine_gradient(a, i / a->K, a->slot[i], a->gate[i], T));
        if (a->dgate)
            a->dgate[i] = dgate;
    }
}

enum hd_status KERNEL(combine_backward)(struct hd_backend *cpu,
                                        const struct hd_combine_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("combine_backward", args->dtype);
    const int64_t row_bytes = args->C * (int64_t)hd_dtype_size(args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain((2 * args->K + 1) * row_bytes),
                        combine_gradients, args);
    return st;
}

/* ---- regroup ---- */

/* Copies the rows whose indices in the (rank, expert) order are [begin, end) to or from the
 * (expert, rank) order. */
static void regroup_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_regroup_args *a = args;
    const int64_t *places = a->scratch, bytes = a->C * (int64_t)hd_dtype_size(a->dtype);
    int64_t arrived = 0;

    (void)thread;
    for (int64_t i = 0; i < a->P * a->E && arrived < end; i++) {
        const int64_t first = hd_max(arrived, begin);
        const int64_t place = places[i] + first - arrived;
        const int64_t last = hd_min(hd_min(arrived + a->all_counts[i], end), first + a->T - place);
        const int64_t to = a->inverse ? first : place, from = a->inverse ? place : first;

        if (first < last)
            memcpy((char *)a->out + to * bytes, (const char *)a->inp + from * bytes,
                   (size_t)((last - first) * bytes));
        arrived += a->all_counts[i];
    }
}

enum hd_status KERNEL(regroup)(struct hd_backend *cpu, const struct hd_regroup_args *args)
{
    const struct hd_regroup_args *a = args;
    int64_t *places = a->scratch; /* [P, E]: first row of each (rank, expert) in the (expert, rank)
                                     order */
    int64_t place = 0;

    for (int64_t e = 0; e < a->E; e++) {
        const int64_t first = hd_min(place, a->T);

        for (int64_t p = 0; p < a->P; p++) {
            places[p * a->E + e] = place;
            place += a->all_counts[p * a->E + e];
        }
        if (a->counts)
            a->counts[e] = (int32_t)(hd_min(place, a->T) - first);
    }
    if (place > a->T && a->block)
        a->block->overflow = 1;
    hd_cpu_parallel(cpu, hd_min(place, a->T),
                    hd_cpu_row_grain(2 * a->C * (int64_t)hd_dtype_size(a->dtype)), regroup_rows,
                    args);
    return HD_OK;
}
