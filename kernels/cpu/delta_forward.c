/* delta_forward: the gated delta rule, chunk after chunk; a piece of work is one key head of one
 * sequence with the value heads that share it. */
#include "kernels/cpu/delta.h"

struct delta_forward {
    const struct hd_gated_delta_forward_args *args;
    struct hd_costs_delta_layout layout;
};

INLINE void store_out(const struct hd_gated_delta_forward_args *a, const struct delta_head *h,
                      const struct delta_chunk *c, int64_t head, const float *out,
                      enum hd_dtype dtype)
{
    for (int64_t i = 0; i < c->count; i++)
        FOR_VECTORS (d, n, 0, h->Dv)
            vf_store(a->out, ((h->row + c->first + i) * h->H + head) * h->Dv + d, n,
                     vf_load_f32(out + i * h->layout.value + d, n), dtype);
}

/* Computes the results of one value head in a chunk, and its state after it, in place. */
static void forward_head(const struct hd_gated_delta_forward_args *a, const struct delta_head *h,
                         const struct delta_chunk *c, int64_t head, float *m)
{
    const struct hd_costs_delta_layout *l = &h->layout;
    float *out = delta_area(h, l->wide);

    delta_load_gates(h, c, head);
    delta_decay(h, c);
    delta_new_values(h, c, head, m);
    delta_multiply_rows(out, l->value, delta_area(h, l->q), l->key, m, l->value, c->count, l->value,
                        h->Dk, false);
    delta_scale_rows(out, out, delta_vector(h, DELTA_E), c->count, l->value);
    delta_multiply_rows(out, l->value, delta_area(h, l->a), P, delta_area(h, l->u), l->value,
                        c->count, l->value, c->count, true);
    WITH_FLOATS(a->dtype, T, store_out(a, h, c, head, out, T));
    delta_advance(h, c, m, m);
}

static void forward_sequence(const struct hd_gated_delta_forward_args *a, struct delta_head *h,
                             int64_t b)
{
    const int64_t group = delta_group(h), size = h->layout.key * h->layout.value;
    const int64_t first = h->head * group, rows = a->state ? a->after[b] - a->before[b] : a->S;
    const int64_t slot = a->state ? a->slot[b] : b,
                  at_state = (slot * h->H + first) * h->Dk * h->Dv;
    float *m = delta_area(h, h->layout.state);
    float *state = a->state ? a->state + at_state : NULL;
    const float *before = a->initial ? a->initial + at_state : NULL;

    if (a->state && a->before[b] > 0) {
        h->continues = true;
        before = state;
    }
    memset(m, 0, (size_t)(group * size) * sizeof *m);
    for (int64_t n = 0; before && n < group; n++)
        delta_take_state(m + n * size, h->layout.value, before + n * h->Dk * h->Dv, h->Dk, h->Dv);
    for (int64_t at = 0; at < rows; at += P) {
        const struct delta_chunk c = delta_chunk_of(h, at, rows);

        delta_load_keys(h, &c);
        for (int64_t n = 0; n < group; n++)
            forward_head(a, h, &c, first + n, m + n * size);
    }
    for (int64_t n = 0; state && rows > 0 && n < group; n++)
        delta_put_state(state + n * h->Dk * h->Dv, m + n * size, h->layout.value, h->Dk, h->Dv);
}

static void forward_heads(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct delta_forward *f = args;
    const struct hd_gated_delta_forward_args *a = f->args;

    for (int64_t i = begin; i < end; i++) {
        const int64_t b = i / a->G;
        struct delta_head h = DELTA_HEAD_OF(a, &f->layout, b, i % a->G, thread);

        forward_sequence(a, &h, b);
    }
}

enum hd_status KERNEL(gated_delta_forward)(struct hd_backend *cpu,
                                           const struct hd_gated_delta_forward_args *args)
{
    const struct delta_forward f = {args, hd_costs_delta_forward_layout(args, &cpu->traits)};
    enum hd_status st = hd_cpu_check_float("gated_delta_forward", args->dtype);

    if (!st)
        st = hd_costs_check_delta(args->G, args->H, args->Dk, args->Dv);
    if (!st)
        hd_cpu_parallel(cpu, args->B * args->G, 1, forward_heads, &f);
    return st;
}
