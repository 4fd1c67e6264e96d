/* attention_sink: adds a learned score per head to the softmax of finished attention, and its
 * gradient row by row. Memory-bound: the exponentials are computed for a vector of rows at a time;
 * then the channels are read and written once, row after row. */
#include "base/math.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vecmath.h"

enum { HEADS = 16 }; /* number of heads whose factors are computed at a time */

struct sink_factors {
    _Alignas(64) float of[HEADS][VL];
};

/* Adds the sink to the log-sum-exp of n rows of one head. With m the larger of the two and e =
 * exp(-|difference|), the sum is m + log(1 + e), and the keys keep 1 / (1 + e) or e / (1 + e) of
 * their weights; 0 if the row sees no key. */
INLINE void add_sink(const struct hd_attention_sink_forward_args *a, struct sink_factors *f,
                     int64_t head, int64_t i, int64_t row, int64_t n, enum hd_dtype dtype)
{
    float *lse = a->lse + head * a->R + row;
    const vf sink = vf_set(vf_load(a->sink, head, 1, dtype)[0]), keys = vf_load_f32(lse, n);
    const vf distance = keys - sink, e = vf_exp(-vf_max(distance, -distance));
    const vi keys_are_less = keys < sink;

    vf_store_f32(lse, n, vf_select(keys_are_less, sink, keys) + vf_log1p(e));
    vf_store_f32(f->of[i], VL, vf_select(keys_are_less, e, vf_set(1.0f)) / (1.0f + e));
}

INLINE void sink_scale_heads(const struct hd_attention_sink_forward_args *a, int64_t row,
                             int64_t rows, int64_t first_head, int64_t heads, enum hd_dtype dtype)
{
    struct sink_factors f;

    for (int64_t i = 0; i < heads; i++)
        add_sink(a, &f, first_head + i, i, row, rows, dtype);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < heads; i++) {
            const int64_t at = ((row + r) * a->H + first_head + i) * a->D;

            FOR_VECTORS (d, n, 0, a->D)
                vf_store(a->out, at + d, n, vf_load(a->out, at + d, n, dtype) * f.of[i][r], dtype);
        }
}

static void sink_scale_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_attention_sink_forward_args *a = args;

    (void)thread;
    for (int64_t row = begin; row < end; row += VL)
        for (int64_t h = 0; h < a->H; h += HEADS)
            WITH_FLOATS(
                a->dtype, T,
                sink_scale_heads(a, row, hd_min(VL, end - row), h, hd_min(HEADS, a->H - h), T));
}

enum hd_status KERNEL(attention_sink_forward)(struct hd_backend *cpu,
                                              const struct hd_attention_sink_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("attention_sink_forward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->H * args->D * 8), sink_scale_rows,
                        args);
    return st;
}

INLINE void sink_differentiate_heads(const struct hd_attention_sink_backward_args *a, int64_t row,
                                     int64_t rows, int64_t first_head, int64_t heads,
                                     enum hd_dtype dtype)
{
    struct sink_factors f;

    for (int64_t i = 0; i < heads; i++) {
        const int64_t head = first_head + i;
        const float sink = vf_load(a->sink, head, 1, dtype)[0];

        vf_store_f32(f.of[i], VL, -vf_exp(sink - vf_load_f32(a->lse + head * a->R + row, rows)));
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < heads; i++) {
            const int64_t place = (row + r) * a->H + first_head + i;
            vf products = {0};

            FOR_VECTORS (d, n, 0, a->D)
                products += vf_load(a->dout, place * a->D + d, n, dtype) *
                            vf_load(a->out, place * a->D + d, n, dtype);
            a->dsink[place] = f.of[i][r] * vf_sum(products);
        }
}

static void sink_differentiate_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_attention_sink_backward_args *a = args;

    (void)thread;
    for (int64_t row = begin; row < end; row += VL)
        for (int64_t h = 0; h < a->H; h += HEADS)
            WITH_FLOATS(a->dtype, T,
                        sink_differentiate_heads(a, row, hd_min(VL, end - row), h,
                                                 hd_min(HEADS, a->H - h), T));
}

enum hd_status KERNEL(attention_sink_backward)(struct hd_backend *cpu,
                                               const struct hd_attention_sink_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("attention_sink_backward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->H * args->D * 8),
                        sink_differentiate_rows, args);
    return st;
}
