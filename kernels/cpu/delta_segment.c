/* delta_segment: what ranks that share a sequence exchange in the gated delta rule. A segment is an
 * affine function of the state before it: delta_summary computes its two matrices,
 * delta_state_gradient the gradient through its own results, and delta_prefix goes through the
 * segments of all ranks. A piece of work is one key head of one segment; of delta_prefix a block of
 * columns of a value head's state, which do not depend on one another. */
#include "base/math.h"
#include "kernels/cpu/delta.h"

/* ---- the matrices of a segment ---- */

struct delta_summary {
    const struct hd_delta_summary_args *args;
    struct hd_costs_delta_layout layout;
};

/* Computes km = K T and u = U of rows without values, with the transition t before the chunk; areas
 * and matrices are as wide as keys (h->layout.value). */
static void new_transitions(const struct delta_head *h, const struct delta_chunk *c, const float *t)
{
    const int64_t width = h->layout.value;
    const float *beta = delta_vector(h, DELTA_BETA), *e = delta_vector(h, DELTA_E);
    float *u = delta_area(h, h->layout.u), *kt = delta_area(h, h->layout.km);

    delta_multiply_rows(kt, width, delta_area(h, h->layout.k), h->layout.key, t, width, c->count,
                        width, h->Dk, false);
    for (int64_t i = 0; i < c->count; i++)
        FOR_VECTORS (d, n, 0, width)
            vf_store_f32(u + i * width + d, n,
                         -beta[i] * e[i] * vf_load_f32(kt + i * width + d, n));
    delta_solve(u, width, delta_area(h, h->layout.l), c->count);
}

static void summarize_segment(const struct hd_delta_summary_args *a, const struct delta_head *h,
                              int64_t b)
{
    const int64_t group = delta_group(h), key = h->layout.key;
    const int64_t of_state = key * h->layout.value, of_transition = key * key;
    const int64_t first = b * h->H + h->head * group;
    float *m = delta_area(h, h->layout.state), *t = delta_area(h, h->layout.transition);
    struct delta_head wide = *h; /* the same head, with matrices as wide as keys */

    wide.layout.value = key;
    memset(m, 0, (size_t)(group * of_state) * sizeof *m);
    memset(t, 0, (size_t)(group * of_transition) * sizeof *t);
    for (int64_t i = 0; i < group * h->Dk; i++)
        t[i / h->Dk * of_transition + i % h->Dk * (key + 1)] = 1;
    for (int64_t at = 0; at < a->S; at += P) {
        const struct delta_chunk c = delta_chunk_of(h, at, a->S);

        delta_load_own_keys(h, &c);
        for (int64_t n = 0; n < group; n++) {
            delta_load_gates(h, &c, h->head * group + n);
            delta_decay_of(h, &c, false);
            delta_new_values(h, &c, h->head * group + n, m + n * of_state);
            delta_advance(h, &c, m + n * of_state, m + n * of_state);
            new_transitions(&wide, &c, t + n * of_transition);
            delta_advance(&wide, &c, t + n * of_transition, t + n * of_transition);
        }
    }
    for (int64_t n = 0; n < group; n++) {
        delta_put_state(a->summary + (first + n) * h->Dk * h->Dk, t + n * of_transition, key, h->Dk,
                        h->Dk);
        delta_put_state(a->summary + a->B * h->H * h->Dk * h->Dk + (first + n) * h->Dk * h->Dv,
                        m + n * of_state, h->layout.value, h->Dk, h->Dv);
    }
}

static void summarize_heads(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct delta_summary *f = args;
    const struct hd_delta_summary_args *a = f->args;

    for (int64_t i = begin; i < end; i++) {
        const int64_t b = i / a->G;
        const struct delta_head h = DELTA_HEAD_OF(a, &f->layout, b, i % a->G, thread);

        summarize_segment(a, &h, b);
    }
}

enum hd_status KERNEL(delta_summary)(struct hd_backend *cpu,
                                     const struct hd_delta_summary_args *args)
{
    const struct delta_summary f = {args, hd_costs_delta_summary_layout(args, &cpu->traits)};
    enum hd_status st = hd_cpu_check_float("delta_summary", args->dtype);

    if (!st)
        st = hd_costs_check_delta(args->G, args->H, args->Dk, args->Dv);
    if (!st)
        hd_cpu_parallel(cpu, args->B * args->G, 1, summarize_heads, &f);
    return st;
}

/* ---- the gradient of the state before a segment ---- */

struct delta_state_gradient {
    const struct hd_delta_state_gradient_args *args;
    struct hd_costs_delta_layout layout;
};

/* Computes dm, the gradient of the state after the chunk, to that of the state before it, by the
 * formulas of delta_backward.c. */
static void retreat(const struct delta_head *h, const struct delta_chunk *c, float *dm)
{
    const struct hd_costs_delta_layout *l = &h->layout;
    const int64_t value = l->value, key = l->key, count = c->count;
    const float *beta = delta_vector(h, DELTA_BETA), *e = delta_vector(h, DELTA_E);
    float *fk = delta_area(h, l->wide), *du = delta_area(h, l->du), *dout = delta_area(h, l->dout);
    const float *q = delta_area(h, l->q), *k = delta_area(h, l->k);

    delta_scale_rows(fk, k, delta_vector(h, DELTA_F), count, key);
    delta_multiply_columns(du, value, delta_area(h, l->a), P, dout, value, count, value, count,
                           false);
    delta_multiply_rows(du, value, fk, key, dm, value, count, value, h->Dk, true);
    delta_solve_transposed(du, value, delta_area(h, l->l), count);
    for (int64_t i = 0; i < count; i++)
        FOR_VECTORS (d, n, 0, value) {
            vf_store_f32(du + i * value + d, n,
                         -(beta[i] * e[i]) * vf_load_f32(du + i * value + d, n));
            vf_store_f32(dout + i * value + d, n, e[i] * vf_load_f32(dout + i * value + d, n));
        }
    FOR_VECTORS (i, n, 0, key * value)
        vf_store_f32(dm + i, n, e[count - 1] * vf_load_f32(dm + i, n));
    delta_multiply_columns(dm, value, q, key, dout, value, key, value, count, true);
    delta_multiply_columns(dm, value, k, key, du, value, key, value, count, true);
}

static void retreat_segment(const struct hd_delta_state_gradient_args *a,
                            const struct delta_head *h, int64_t b)
{
    const int64_t group = delta_group(h), size = h->layout.key * h->layout.value;
    float *dm = delta_area(h, h->layout.dstate);

    memset(dm, 0, (size_t)(group * size) * sizeof *dm);
    for (int64_t chunk = h->layout.chunks - 1; chunk >= 0; chunk--) {
        const struct delta_chunk c = delta_chunk_of(h, chunk * P, a->S);

        delta_load_keys(h, &c);
        for (int64_t n = 0; n < group; n++) {
            const int64_t head = h->head * group + n;

            delta_load_gates(h, &c, head);
            delta_decay(h, &c);
            WITH_FLOATS(a->dtype, T, delta_load_dout(a->dout, h, &c, head, T));
            retreat(h, &c, dm + n * size);
        }
    }
    for (int64_t n = 0; n < group; n++)
        delta_put_state(a->dstate + (b * h->H + h->head * group + n) * h->Dk * h->Dv, dm + n * size,
                        h->layout.value, h->Dk, h->Dv);
}

static void retreat_heads(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct delta_state_gradient *f = args;
    const struct hd_delta_state_gradient_args *a = f->args;

    for (int64_t i = begin; i < end; i++) {
        const int64_t b = i / a->G;
        const struct delta_head h = DELTA_HEAD_OF(a, &f->layout, b, i % a->G, thread);

        retreat_segment(a, &h, b);
    }
}

enum hd_status KERNEL(delta_state_gradient)(struct hd_backend *cpu,
                                            const struct hd_delta_state_gradient_args *args)
{
    const struct delta_state_gradient f = {
        args, hd_costs_delta_state_gradient_layout(args, &cpu->traits)};
    enum hd_status st = hd_cpu_check_float("delta_state_gradient", args->dtype);

    if (!st)
        st = hd_costs_check_delta(args->G, args->H, args->Dk, args->Dv);
    if (!st)
        hd_cpu_parallel(cpu, args->B * args->G, 1, retreat_heads, &f);
    return st;
}

/* ---- the states between the segments of all ranks ---- */

enum { COLUMNS = 16 }; /* columns of a piece of work */

/* Computes to = X + T from, or with `transposed` X + T^T from, for `columns` columns of rows Dv
 * apart in x and COLUMNS apart in from and to. */
static void apply_segment(float *to, const float *from, const float *t, const float *x, int64_t Dk,
                          int64_t Dv, int64_t columns, bool transposed)
{
    const int64_t by_row = transposed ? 1 : Dk, by_column = transposed ? Dk : 1;

    for (int64_t i = 0; i < Dk; i++)
        FOR_VECTORS (d, n, 0, columns) {
            vf sum = vf_load_f32(x + i * Dv + d, n);

            for (int64_t j = 0; j < Dk; j++)
                sum += t[i * by_row + j * by_column] * vf_load_f32(from + j * COLUMNS + d, n);
            vf_store_f32(to + i * COLUMNS + d, n, sum);
        }
}

/* Goes through the segments of sequence b for some columns of value head h. */
static void walk_segments(const struct hd_delta_prefix_args *a, int64_t b, int64_t h, int64_t first)
{
    const int64_t columns = a->Dv - first < COLUMNS ? a->Dv - first : COLUMNS;
    const int64_t heads = a->B * 2 * a->H, own = a->Dk * a->Dk;
    const int64_t rank_size = heads * a->Dk * (a->Dk + a->Dv);
    const int64_t steps = hd_costs_delta_prefix_steps(a);
    float m[2][HD_DELTA_WIDTH_MAX * COLUMNS] = {{0}};
    int now = 0;

    for (int64_t step = 0; step <= steps; step++) {
        const int64_t s = a->reverse ? 2 * a->P - 1 - step : step;
        const int64_t rank = s < a->P ? s : 2 * a->P - 1 - s, half = s < a->P ? 0 : 1;
        const int64_t head = (b * 2 + half) * a->H + h;
        const float *summary = a->summaries + rank * rank_size;

        if (rank == a->rank)
            for (int64_t i = 0; i < a->Dk; i++)
                memcpy(a->state + (head * a->Dk + i) * a->Dv + first, m[now] + i * COLUMNS,
                       (size_t)columns * sizeof(float));
        if (step < steps)
            apply_segment(m[!now], m[now], summary + head * own,
                          summary + heads * own + head * a->Dk * a->Dv + first, a->Dk, a->Dv,
                          columns, a->reverse);
        now = !now;
    }
}

static void walk_columns(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_delta_prefix_args *a = args;
    const int64_t blocks = hd_divide_up(a->Dv, COLUMNS);

    (void)thread;
    for (int64_t i = begin; i < end; i++)
        walk_segments(a, i / blocks / a->H, i / blocks % a->H, i % blocks * COLUMNS);
}

enum hd_status KERNEL(delta_prefix)(struct hd_backend *cpu, const struct hd_delta_prefix_args *args)
{
    const enum hd_status st = hd_costs_check_delta(args->H, args->H, args->Dk, args->Dv);

    if (!st)
        hd_cpu_parallel(cpu, args->B * args->H * hd_divide_up(args->Dv, COLUMNS), 1, walk_columns,
                        args);
    return st;
}
