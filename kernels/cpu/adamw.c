#include "kernels/cpu/cpu.h"
#include "kernels/cpu/moments.h"

struct update {
    const struct hd_adamw_args *args;
    float correction1, correction2; /* bias corrections of m and v: 1 / (1 - b1^t), 1 / (1 -
                                       b2^t) */
    float values[2][256];           /* values of the 256 codes, of m and of v; used with
                                       moment_bytes */
};

/* Learning rate and weight decay of the elements of one struct hd_update_range. */
struct update_factors {
    float lr, decay;
};

/* Updates m, v and weights of elements i .. i + n - 1. Every element is computed by equal vector
 * instructions, wherever it lies in its shard, so the result does not depend on the sharding. */
INLINE void update_vector(const struct update *u, int64_t i, int64_t n, struct update_factors f,
                          vf *m, vf *v, enum hd_dtype copy_dtype)
{
    const struct hd_adamw_args *a = u->args;
    const struct hd_step_state *block = a->block;
    const float b1 = block->beta1, b2 = block->beta2, eps = block->adam_eps;
    const float rest1 = 1.0f - b1, rest2 = 1.0f - b2;
    const vf g = vf_load_f32(a->grad + i, n) * block->grad_factor;
    vf w = vf_load_f32(a->weight + i, n), step;

    *m = *m * b1 + g * rest1;
    *v = *v * b2 + g * g * rest2;
    step = *m * u->correction1 / (vf_sqrt(*v * u->correction2) + eps);
    w -= f.lr * (step + f.decay * w);
    vf_store_f32(a->weight + i, n, w);
    if (a->copy)
        vf_store(a->copy, i, n, w, copy_dtype);
}

/* Updates elements [begin, end), whose moments are fp32; m_[0] and v_[0] are the moments of element
 * `first`. */
INLINE void update_fp32(const struct update *u, float *m_, float *v_, int64_t first, int64_t begin,
                        int64_t end, struct update_factors f, enum hd_dtype copy_dtype)
{
    FOR_VECTORS (i, n, begin, end) {
        vf m = vf_load_f32(m_ + (i - first), n), v = vf_load_f32(v_ + (i - first), n);

        update_vector(u, i, n, f, &m, &v, copy_dtype);
        vf_store_f32(m_ + (i - first), n, m);
        vf_store_f32(v_ + (i - first), n, v);
    }
}

/* ---- moments in blocks ---- */

INLINE void update_blocks(const struct update *u, const struct hd_update_range *range,
                          int64_t begin, int64_t end, struct update_factors f,
                          enum hd_dtype copy_dtype)
{
    const int64_t block = range->block;
    const int64_t codes_at = hd_encoding_scales_bytes(range->end - range->begin, block);
    float *scales[2], elements[2][HD_BLOCK_MAX];
    uint8_t *codes[2];

    scales[0] = (float *)((char *)u->args->m + range->moments);
    scales[1] = (float *)((char *)u->args->v + range->moments);
    for (int k = 0; k < 2; k++)
        codes[k] = (uint8_t *)scales[k] + codes_at;
    for (int64_t at = begin; at < end; at += block) {
        const int64_t in_range = at - range->begin;

        FOR_VECTORS (i, n, 0, block) {
            vf m = vf_lookup(u->values[0], vi_load_u8(codes[0] + in_range + i, n)) *
                   scales[0][in_range / block];
            vf v = vf_lookup(u->values[1], vi_load_u8(codes[1] + in_range + i, n)) *
                   scales[1][in_range / block];

            update_vector(u, at + i, n, f, &m, &v, copy_dtype);
            vf_store_f32(elements[0] + i, n, m);
            vf_store_f32(elements[1] + i, n, v);
        }
        scales[0][in_range / block] =
            encode(elements[0], block, HD_MAP_SIGNED, codes[0] + in_range);
        scales[1][in_range / block] =
            encode(elements[1], block, HD_MAP_UNSIGNED, codes[1] + in_range);
    }
}

/* ---- ranges ---- */

INLINE void update_range(const struct update *u, const struct hd_update_range *range, int64_t begin,
                         int64_t end, enum hd_dtype copy_dtype)
{
    const struct hd_adamw_args *a = u->args;
    const struct update_factors f = {a->block->lr * range->lr_scale,
                                     a->block->weight_decay * range->decay};
    const bool placed = a->moment_bytes > 0;
    const int64_t moments = placed ? range->moments : 0, first = placed ? range->begin : 0;

    if (placed && range->block)
        update_blocks(u, range, begin, end, f, copy_dtype);
    else
        update_fp32(u, (float *)((char *)a->m + moments), (float *)((char *)a->v + moments), first,
                    begin, end, f, copy_dtype);
}

static void update_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct update *u = args;
    const struct hd_adamw_args *a = u->args;

    (void)thread;
    for (int64_t k = range_at(a->ranges, a->range_count, begin);
         k < a->range_count && a->ranges[k].begin < end; k++) {
        const struct hd_update_range *range = &a->ranges[k];
        const int64_t first = range->begin > begin ? range->begin : begin;
        const int64_t last = range->end < end ? range->end : end;

        WITH_FLOATS(a->copy_dtype, T, update_range(u, range, first, last, T));
    }
}

enum hd_status KERNEL(adamw)(struct hd_backend *cpu, const struct hd_adamw_args *args)
{
    const struct hd_step_state *block = args->block;
    const double t = (double)block->update;
    struct update update = {
        .args = args,
        .correction1 = (float)(1.0 / (1.0 - pow((double)block->beta1, t))),
        .correction2 = (float)(1.0 / (1.0 - pow((double)block->beta2, t))),
    };
    const enum hd_status st = args->copy ? hd_cpu_check_float("adamw", args->copy_dtype) : HD_OK;

    for (int code = 0; args->moment_bytes && code < 256; code++) {
        update.values[0][code] = hd_encoding_value((uint8_t)code, HD_MAP_SIGNED);
        update.values[1][code] = hd_encoding_value((uint8_t)code, HD_MAP_UNSIGNED);
    }
    if (!st && !block->skip_update)
        hd_cpu_parallel(cpu, args->N, MOMENTS_GRAIN, update_pieces, &update);
    return st;
}
