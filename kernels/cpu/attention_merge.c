/* attention_merge: merges attention over two blocks of keys. Memory-bound: the two factors per row
 * and head are computed for a vector of rows at a time; then the channels are read and written
 * once, row after row. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vecmath.h"

enum { HEADS = 16 }; /* number of heads whose factors are computed at a time */

struct factors {
    _Alignas(64) float old[HEADS][VL], block[HEADS][VL];
};

/* Merges the log-sum-exp (lse) of n rows of one head over two blocks of keys. With m the larger of
 * the two lse and e = exp(-|difference|), the merged lse is m + log(1 + e); the factors of the
 * larger and the smaller are 1 / (1 + e) and e / (1 + e). */
INLINE void merge_lse(const struct hd_attention_merge_args *a, struct factors *f, int64_t head,
                      int64_t i, int64_t row, int64_t n)
{
    float *lse = a->lse + head * a->R + row;
    const vf none = vf_set(-INFINITY);
    const vf block = vf_load_f32(a->block_lse + head * a->R + row, n);
    const vf old = a->first ? none : vf_load_f32(lse, n);
    const vi no_key = (old == none) & (block == none), block_is_less = block < old;
    const vf distance = block - old;
    const vf e = vf_exp(-vf_max(distance, -distance)); /* NaN if both are -inf */
    const vf more = 1.0f / (1.0f + e), less = e / (1.0f + e);
    const vf merged = vf_select(block_is_less, old, block) + vf_log1p(e);

    vf_store_f32(lse, n, a->first ? block : vf_select(no_key, none, merged));
    vf_store_f32(f->old[i], VL, vf_select(no_key, (vf){0}, vf_select(block_is_less, more, less)));
    vf_store_f32(f->block[i], VL, vf_select(no_key, (vf){0}, vf_select(block_is_less, less, more)));
}

/* Merges the attention results of one head of one row over two blocks of keys. first: there is no
 * earlier block; last: the result goes to `out`. Both are constants where this is inlined. */
INLINE void merge_head(const struct hd_attention_merge_args *a, int64_t at, float old, float block,
                       bool first, bool last, enum hd_dtype dtype)
{
    FOR_VECTORS (d, n, 0, a->D) {
        vf x = vf_load(a->block_out, at + d, n, dtype);

        if (!first)
            x = vf_load_f32(a->acc + at + d, n) * old + x * block;
        if (last)
            vf_store(a->out, at + d, n, x, dtype);
        else
            vf_store_f32(a->acc + at + d, n, x);
    }
}

INLINE void merge_heads(const struct hd_attention_merge_args *a, int64_t row, int64_t rows,
                        int64_t first_head, int64_t heads, enum hd_dtype dtype)
{
    struct factors f;

    for (int64_t i = 0; i < heads; i++)
        merge_lse(a, &f, first_head + i, i, row, rows);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < heads; i++) {
            const int64_t at = ((row + r) * a->H + first_head + i) * a->D;
            const float old = f.old[i][r], block = f.block[i][r];

            if (a->first && a->out)
                merge_head(a, at, old, block, true, true, dtype);
            else if (a->first)
                merge_head(a, at, old, block, true, false, dtype);
            else if (a->out)
                merge_head(a, at, old, block, false, true, dtype);
            else if (block != 0) /* a row that sees no key of the block does not change */
                merge_head(a, at, old, block, false, false, dtype);
        }
}

static void merge_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_attention_merge_args *a = args;

    (void)thread;
    for (int64_t row = begin; row < end; row += VL)
        for (int64_t h = 0; h < a->H; h += HEADS) {
            const int64_t rows = end - row < VL ? end - row : VL;
            const int64_t heads = a->H - h < HEADS ? a->H - h : HEADS;

            WITH_FLOATS(a->dtype, T, merge_heads(a, row, rows, h, heads, T));
        }
}

enum hd_status KERNEL(attention_merge)(struct hd_backend *cpu,
                                       const struct hd_attention_merge_args *args)
{
    const enum hd_status st = hd_cpu_check_float("attention_merge", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->H * args->D * 12), merge_rows, args);
    return st;
}
