/* one_moment: Lion, and Muon's momentum, weights and pieces. Compiled without fused multiply-adds,
 * so that every instruction set gives the bits of the operations of ops_update.h, in their order.
 */
#include "kernels/cpu/moments.h"

/* An update of a flat shard that has one moment: Lion, or the momentum of Muon. */
struct one_moment {
    void *m;
    const float *grad;
    const struct hd_step_state *block;
    const struct hd_update_range *ranges;
    int64_t range_count, moment_bytes;
    float *weight;     /* Lion */
    void *out;         /* Lion: the copy, or NULL; else the step */
    float momentum;    /* Muon */
    bool nesterov;     /* Muon */
    float values[256]; /* values of the codes; used with moment_bytes */
};

struct one_factors {
    float lr, decay;
};

INLINE vf sign_of(vf x)
{
    return vf_select(x > 0.0f, vf_set(1), vf_select(x < 0.0f, vf_set(-1), vf_set(0)));
}

/* Computes the new moment of elements i .. i + n - 1, and writes their weights or their step. */
INLINE void one_moment_vector(const struct one_moment *u, bool is_lion, int64_t i, int64_t n,
                              struct one_factors f, vf *m, enum hd_dtype out_dtype)
{
    const struct hd_step_state *block = u->block;
    const vf g = vf_load_f32(u->grad + i, n) * block->grad_factor;

    if (is_lion) {
        const float b1 = block->beta1, b2 = block->beta2;
        const vf c = *m * b1 + g * (1.0f - b1);
        vf w = vf_load_f32(u->weight + i, n);

        w -= f.lr * (sign_of(c) + f.decay * w);
        *m = *m * b2 + g * (1.0f - b2);
        vf_store_f32(u->weight + i, n, w);
        if (u->out)
            vf_store(u->out, i, n, w, out_dtype);
        return;
    }
    *m = *m * u->momentum + g;
    vf_store(u->out, i, n, u->nesterov ? g + *m * u->momentum : *m, out_dtype);
}

/* Updates elements [begin, end) of a range whose moment is fp32; m_[0] is the moment of element
 * `first`. */
INLINE void one_moment_fp32(const struct one_moment *u, bool is_lion, float *m_, int64_t first,
                            int64_t begin, int64_t end, struct one_factors f,
                            enum hd_dtype out_dtype)
{
    FOR_VECTORS (i, n, begin, end) {
        vf m = vf_load_f32(m_ + (i - first), n);

        one_moment_vector(u, is_lion, i, n, f, &m, out_dtype);
        if (!u->block->skip_update)
            vf_store_f32(m_ + (i - first), n, m);
    }
}

INLINE void one_moment_blocks(const struct one_moment *u, bool is_lion,
                              const struct hd_update_range *range, int64_t begin, int64_t end,
                              struct one_factors f, enum hd_dtype out_dtype)
{
    const int64_t block = range->block;
    float *scales = (float *)((char *)u->m + range->moments), elements[HD_BLOCK_MAX];
    uint8_t *codes = (uint8_t *)scales + hd_encoding_scales_bytes(range->end - range->begin, block);

    for (int64_t at = begin; at < end; at += block) {
        const int64_t in_range = at - range->begin;

        FOR_VECTORS (i, n, 0, block) {
            vf m = vf_lookup(u->values, vi_load_u8(codes + in_range + i, n)) *
                   scales[in_range / block];

            one_moment_vector(u, is_lion, at + i, n, f, &m, out_dtype);
            vf_store_f32(elements + i, n, m);
        }
        if (!u->block->skip_update)
            scales[in_range / block] = encode(elements, block, HD_MAP_SIGNED, codes + in_range);
    }
}

INLINE void one_moment_range(const struct one_moment *u, bool is_lion,
                             const struct hd_update_range *range, int64_t begin, int64_t end,
                             enum hd_dtype out_dtype)
{
    const struct one_factors f = {u->block->lr * range->lr_scale,
                                  u->block->weight_decay * range->decay};
    const bool placed = u->moment_bytes > 0;

    if (placed && range->block)
        one_moment_blocks(u, is_lion, range, begin, end, f, out_dtype);
    else
        one_moment_fp32(u, is_lion, (float *)((char *)u->m + (placed ? range->moments : 0)),
                        placed ? range->begin : 0, begin, end, f, out_dtype);
}

/* Runs statements with `range`, `first` and `last` for the part of each range in [begin, end). */
#define FOR_RANGES(u, begin, end, ...)                                         \
    for (int64_t k = range_at((u)->ranges, (u)->range_count, begin);           \
         k < (u)->range_count && (u)->ranges[k].begin < (end); k++) {          \
        const struct hd_update_range *range = &(u)->ranges[k];                 \
        const int64_t first = range->begin > (begin) ? range->begin : (begin); \
        const int64_t last = range->end < (end) ? range->end : (end);          \
                                                                               \
        __VA_ARGS__;                                                           \
    }

static void lion_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_lion_args *a = args;
    struct one_moment u = {.m = a->m,
                           .grad = a->grad,
                           .block = a->block,
                           .ranges = a->ranges,
                           .range_count = a->range_count,
                           .moment_bytes = a->moment_bytes,
                           .weight = a->weight,
                           .out = a->copy};

    (void)thread;
    for (int code = 0; a->moment_bytes && code < 256; code++)
        u.values[code] = hd_encoding_value((uint8_t)code, HD_MAP_SIGNED);
    FOR_RANGES(&u, begin, end,
               WITH_FLOATS(a->copy_dtype, T, one_moment_range(&u, true, range, first, last, T)))
}

enum hd_status KERNEL(lion)(struct hd_backend *cpu, const struct hd_lion_args *args)
{
    const enum hd_status st = args->copy ? hd_cpu_check_float("lion", args->copy_dtype) : HD_OK;

    if (!st && !args->block->skip_update)
        hd_cpu_parallel(cpu, args->N, MOMENTS_GRAIN, lion_pieces, args);
    return st;
}

static void momentum_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_momentum_args *a = args;
    struct one_moment u = {.m = a->m,
                           .grad = a->grad,
                           .block = a->block,
                           .ranges = a->ranges,
                           .range_count = a->range_count,
                           .moment_bytes = a->moment_bytes,
                           .out = a->step,
                           .momentum = a->momentum,
                           .nesterov = a->nesterov};

    (void)thread;
    for (int code = 0; a->moment_bytes && code < 256; code++)
        u.values[code] = hd_encoding_value((uint8_t)code, HD_MAP_SIGNED);
    FOR_RANGES(&u, begin, end,
               WITH_FLOATS(a->dtype, T, one_moment_range(&u, false, range, first, last, T)))
}

enum hd_status KERNEL(momentum)(struct hd_backend *cpu, const struct hd_momentum_args *args)
{
    const enum hd_status st = hd_cpu_check_float("momentum", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->N, MOMENTS_GRAIN, momentum_pieces, args);
    return st;
}

/* ---- weights ---- */

INLINE void step_range(const struct hd_step_along_args *a, struct one_factors f, int64_t begin,
                       int64_t end, enum hd_dtype dtype, enum hd_dtype copy_dtype)
{
    FOR_VECTORS (i, n, begin, end) {
        vf w = vf_load_f32(a->weight + i, n);

        w -= f.lr * f.decay * w;
        w -= f.lr * vf_load(a->step, i, n, dtype);
        vf_store_f32(a->weight + i, n, w);
        if (a->copy)
            vf_store(a->copy, i, n, w, copy_dtype);
    }
}

static void step_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_step_along_args *a = args;

    (void)thread;
    FOR_RANGES(a, begin, end, {
        const struct one_factors f = {a->block->lr * range->lr_scale,
                                      a->block->weight_decay * range->decay};

        WITH_FLOATS(a->copy_dtype, T, {
            if (a->dtype == HD_F32)
                step_range(a, f, first, last, HD_F32, T);
            else
                step_range(a, f, first, last, HD_BF16, T);
        });
    })
}

enum hd_status KERNEL(step_along)(struct hd_backend *cpu, const struct hd_step_along_args *args)
{
    enum hd_status st = args->copy ? hd_cpu_check_float("step_along", args->copy_dtype) : HD_OK;

    if (!st && args->dtype != HD_F32 && args->dtype != HD_BF16)
        st = hd_err(HD_UNSUPPORTED, "step_along: the step is bf16 or fp32, not %s",
                    hd_dtype_name(args->dtype));
    if (!st && !args->block->skip_update)
        hd_cpu_parallel(cpu, args->N, MOMENTS_GRAIN, step_pieces, args);
    return st;
}

/* ---- the average of weights ---- */

static void ema_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_ema_args *a = args;
    const float rate = a->rate;

    (void)thread;
    FOR_VECTORS (i, n, begin, end) {
        vf e = vf_load_f32(a->ema + i, n);

        e += rate * (vf_load_f32(a->weight + i, n) - e);
        vf_store_f32(a->ema + i, n, e);
    }
}

enum hd_status KERNEL(ema)(struct hd_backend *cpu, const struct hd_ema_args *args)
{
    if (!args->block->skip_update)
        hd_cpu_parallel(cpu, args->N, MOMENTS_GRAIN, ema_pieces, args);
    return HD_OK;
}

/* ---- pieces ---- */

/* Copies one piece, a row of its box at a time. */
static void move_piece(const struct hd_move_pieces_args *a, const struct hd_piece *p)
{
    const int64_t size = (int64_t)hd_dtype_size(a->dtype);

    for (int64_t done = 0, n; done < p->count; done += n) {
        const int64_t in_box = p->begin + done, column = in_box % p->columns;
        const int64_t matrix = p->origin + in_box / p->columns * p->pitch + column;
        const int64_t packed = p->packed + done;

        n = p->columns - column < p->count - done ? p->columns - column : p->count - done;
        memcpy((char *)a->out + (a->gathers ? packed : matrix) * size,
               (const char *)a->inp + (a->gathers ? matrix : packed) * size, (size_t)(n * size));
    }
}

static void move_each(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_move_pieces_args *a = args;

    (void)thread;
    for (int64_t k = begin; k < end; k++)
        move_piece(a, &a->pieces[k]);
}

enum hd_status KERNEL(move_pieces)(struct hd_backend *cpu, const struct hd_move_pieces_args *args)
{
    hd_cpu_parallel(cpu, args->piece_count, 1, move_each, args);
    return HD_OK;
}
