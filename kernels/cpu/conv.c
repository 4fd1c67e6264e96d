/* conv: causal convolution along the rows, each channel by itself, then SiLU or nothing.
 *
 * A piece of work is a block of channels of a sequence, or of all sequences for the gradient of the
 * weights: it reads each element once, and no other piece writes its results.
 */
#include "base/math.h"
#include "kernels/costs/costs.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vecmath.h"

enum { BLOCK = 128, W_MAX = HD_CONV_WIDTH_MAX }; /* channels of a block; most taps */

/* A block of channels of one sequence. */
struct conv_block {
    const void *inp, *state;    /* state: the last W - 1 inputs before the rows; NULL: zeros */
    const int32_t *bound;       /* bounds of the sequence's rows, or NULL */
    int64_t origin;             /* index of the first row, as bounds count; 0: whole sequences */
    int64_t first, count, N, W; /* first channel of the block, number of its channels, of all
                                   channels, and of taps */
    bool plain;                 /* true: no SiLU behind the sum */
    float taps[W_MAX][BLOCK];   /* taps[j]: factors of the inputs j rows before */
};

static void load_taps(struct conv_block *b, const void *weight, enum hd_dtype dtype)
{
    for (int64_t c = 0; c < b->count; c++)
        for (int64_t j = 0; j < b->W; j++)
            WITH_FLOATS(dtype, T, {
                b->taps[j][c] = vf_load(weight, (b->first + c) * b->W + b->W - 1 - j, 1, T)[0];
            });
}

/* Returns the number of taps whose rows are in the document of row t; they may be in the state. */
INLINE int64_t taps_of(const struct conv_block *b, int64_t t)
{
    const int64_t seen = b->bound ? t + 1 - (b->bound[t] - b->origin) : b->state ? b->W : t + 1;

    return seen < b->W ? seen : b->W;
}

/* Returns n inputs of row t, which may be in the state, from channel c of the block on. */
INLINE vf input(const struct conv_block *b, int64_t t, int64_t c, int64_t n, enum hd_dtype dtype)
{
    if (t < 0)
        return vf_load(b->state, (b->W - 1 + t) * b->N + b->first + c, n, dtype);
    return vf_load(b->inp, t * b->N + b->first + c, n, dtype);
}

INLINE vf convolve(const struct conv_block *b, int64_t t, int64_t taps, int64_t c, int64_t n,
                   enum hd_dtype dtype)
{
    vf sum = {0};

    for (int64_t j = 0; j < taps; j++)
        sum += vf_load_f32(b->taps[j] + c, n) * input(b, t - j, c, n, dtype);
    return sum;
}

/* Moves the last W - 1 inputs of the sequence into the slot; was_empty: those of the slot count as
 * zeros. */
INLINE void keep_inputs(const struct conv_block *b, void *state, int64_t rows, bool was_empty,
                        enum hd_dtype dtype)
{
    for (int64_t i = 0; i < b->W - 1; i++) {
        const int64_t t = rows - (b->W - 1) + i;

        FOR_VECTORS (c, n, 0, b->count)
            vf_store(state, i * b->N + b->first + c, n,
                     t < 0 && was_empty ? (vf){0} : input(b, t, c, n, dtype), dtype);
    }
}

INLINE void forward_block(const struct hd_conv_forward_args *a, struct conv_block *b,
                          int64_t sequence, enum hd_dtype dtype)
{
    const int64_t element = vf_element_bytes(dtype);
    int64_t rows = a->S;
    char *state = NULL;

    if (a->state) {
        rows = a->after[sequence] - a->before[sequence];
        rows = rows < a->S ? rows : a->S;
        state = (char *)a->state + a->slot[sequence] * (a->W - 1) * a->N * element;
        b->state = a->before[sequence] > 0 ? state : NULL;
    }
    b->inp = (const char *)a->inp + sequence * a->S * a->N * element;
    for (int64_t t = 0; t < rows; t++) {
        const int64_t taps = taps_of(b, t), at = (sequence * a->S + t) * a->N + b->first;

        FOR_VECTORS (c, n, 0, b->count) {
            const vf pre = convolve(b, t, taps, c, n, dtype);

            vf_store(a->out, at + c, n, b->plain ? pre : pre * vf_sigmoid(pre), dtype);
        }
    }
    if (state && rows > 0) {
        const bool was_empty = !b->state;

        b->state = state;
        keep_inputs(b, state, rows, was_empty, dtype);
    }
}

static int64_t blocks_of(int64_t N)
{
    return hd_divide_up(N, BLOCK);
}

static struct conv_block block_at(int64_t number, int64_t N, int64_t W, const void *weight,
                                  enum hd_dtype dtype)
{
    struct conv_block b = {.first = number * BLOCK, .N = N, .W = W};

    b.count = N - b.first < BLOCK ? N - b.first : BLOCK;
    load_taps(&b, weight, dtype);
    return b;
}

/* Sets form, bounds, origin and halo of sequence b_ from arguments, whose members have equal names. */
#define ENTER_SEQUENCE(block, a, b_)                                              \
    do {                                                                          \
        const int64_t halo_bytes =                                                \
            (b_) * ((a)->W - 1) * (a)->N * (int64_t)hd_dtype_size((a)->dtype);    \
                                                                                  \
        (block)->plain = (a)->plain;                                              \
        (block)->bound = (a)->bound ? (a)->bound + (b_) * (a)->S : NULL;          \
        (block)->origin = (a)->position ? (a)->position[(b_) * (a)->S] : 0;       \
        (block)->state = (a)->halo ? (const char *)(a)->halo + halo_bytes : NULL; \
    } while (0)

static void forward_blocks(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_conv_forward_args *a = args;

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const int64_t sequence = i / blocks_of(a->N);
        struct conv_block b = block_at(i % blocks_of(a->N), a->N, a->W, a->weight, a->dtype);

        ENTER_SEQUENCE(&b, a, sequence);
        WITH_FLOATS(a->dtype, T, forward_block(a, &b, sequence, T));
    }
}

static enum hd_status check_conv(const char *kernel, enum hd_dtype dtype, int64_t W)
{
    const enum hd_status st = hd_cpu_check_float(kernel, dtype);

    return st ? st : hd_costs_check_conv(W);
}

enum hd_status KERNEL(conv_forward)(struct hd_backend *cpu, const struct hd_conv_forward_args *args)
{
    const enum hd_status st = check_conv("conv_forward", args->dtype, args->W);

    if (!st)
        hd_cpu_parallel(cpu, args->B * blocks_of(args->N), 1, forward_blocks, args);
    return st;
}

/* Returns the gradient of n sums of row t, whose results have the gradient `dout`. */
INLINE vf sum_gradient(const struct conv_block *b, const void *dout, int64_t t, int64_t taps,
                       int64_t c, int64_t n, enum hd_dtype dtype)
{
    const vf g = vf_load(dout, t * b->N + b->first + c, n, dtype);
    vf pre, s;

    if (b->plain)
        return g;
    pre = convolve(b, t, taps, c, n, dtype);
    s = vf_sigmoid(pre);
    return g * s * (1.0f + pre * (1.0f - s));
}

/* Computes the gradients of a sequence's inputs, and of its halo [W-1, N] unless dhalo is NULL;
 * sums[t % W] are those of row t until row t + W - 1 has added to them. */
INLINE void backward_block(const struct conv_block *b, void *dinp, float *dhalo, const void *dout,
                           int64_t S, enum hd_dtype dtype)
{
    float sums[W_MAX][BLOCK] = {{0}};

    for (int64_t t = 0; t < S + b->W - 1; t++) {
        const int64_t taps = t < S ? taps_of(b, t) : 0, done = t - (b->W - 1);

        FOR_VECTORS (c, n, 0, b->count) {
            if (t < S) {
                const vf g = sum_gradient(b, dout, t, taps, c, n, dtype);

                for (int64_t j = 0; j < taps; j++) {
                    float *sum = sums[(t - j + b->W) % b->W] + c;

                    vf_store_f32(sum, n, vf_load_f32(sum, n) + vf_load_f32(b->taps[j] + c, n) * g);
                }
            }
            if (done >= 0 || dhalo) {
                float *sum = sums[(done + b->W) % b->W] + c;

                if (done >= 0)
                    vf_store(dinp, done * b->N + b->first + c, n, vf_load_f32(sum, n), dtype);
                else
                    vf_store_f32(dhalo + t * b->N + b->first + c, n, vf_load_f32(sum, n));
                vf_store_f32(sum, n, (vf){0});
            }
        }
    }
}

static void backward_blocks(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_conv_backward_args *a = args;

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const int64_t sequence = i / blocks_of(a->N);
        const int64_t bytes = sequence * a->S * a->N * (int64_t)hd_dtype_size(a->dtype);
        struct conv_block b = block_at(i % blocks_of(a->N), a->N, a->W, a->weight, a->dtype);

        ENTER_SEQUENCE(&b, a, sequence);
        b.inp = (const char *)a->inp + bytes;
        WITH_FLOATS(a->dtype, T,
                    backward_block(&b, (char *)a->dinp + bytes,
                                   a->dhalo ? a->dhalo + sequence * (a->W - 1) * a->N : NULL,
                                   (const char *)a->dout + bytes, a->S, T));
    }
}

enum hd_status KERNEL(conv_backward)(struct hd_backend *cpu,
                                     const struct hd_conv_backward_args *args)
{
    const enum hd_status st = check_conv("conv_backward", args->dtype, args->W);

    if (!st)
        hd_cpu_parallel(cpu, args->B * blocks_of(args->N), 1, backward_blocks, args);
    return st;
}

/* Adds a sequence's terms to sums[j], the gradient of taps[j]. */
INLINE void add_weight_terms(const struct conv_block *b, float sums[W_MAX][BLOCK], const void *dout,
                             int64_t S, enum hd_dtype dtype)
{
    for (int64_t t = 0; t < S; t++) {
        const int64_t taps = taps_of(b, t);

        FOR_VECTORS (c, n, 0, b->count) {
            const vf g = sum_gradient(b, dout, t, taps, c, n, dtype);

            for (int64_t j = 0; j < taps; j++)
                vf_store_f32(sums[j] + c, n,
                             vf_load_f32(sums[j] + c, n) + g * input(b, t - j, c, n, dtype));
        }
    }
}

static void weight_blocks(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_conv_backward_weight_args *a = args;
    const int64_t bytes = a->S * a->N * (int64_t)hd_dtype_size(a->dtype);

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        struct conv_block b = block_at(i, a->N, a->W, a->weight, a->dtype);
        float sums[W_MAX][BLOCK] = {{0}};

        for (int64_t s = 0; s < a->B; s++) {
            ENTER_SEQUENCE(&b, a, s);
            b.inp = (const char *)a->inp + s * bytes;
            WITH_FLOATS(a->dtype, T,
                        add_weight_terms(&b, sums, (const char *)a->dout + s * bytes, a->S, T));
        }
        for (int64_t c = 0; c < b.count; c++)
            for (int64_t j = 0; j < a->W; j++) {
                float *to = a->dweight + (b.first + c) * a->W + a->W - 1 - j;

                *to = (a->accumulate ? *to : 0) + sums[j][c];
            }
    }
}

enum hd_status KERNEL(conv_backward_weight)(struct hd_backend *cpu,
                                            const struct hd_conv_backward_weight_args *args)
{
    const enum hd_status st = check_conv("conv_backward_weight", args->dtype, args->W);

    if (!st)
        hd_cpu_parallel(cpu, blocks_of(args->N), 1, weight_blocks, args);
    return st;
}
