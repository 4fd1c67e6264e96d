/* The launches that kernels_gpu times, at the shapes of training. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/random.h"
#include "kernels/plugin.h"
#include "tests/bench/kernels_gpu.h"
#include "tests/sorted.h"

enum { POOL_ELEMENTS = 1 << 20, ALIGN = 256, WARM_UP = 3 };
#define FLUSH_BYTES (INT64_C(256) << 20) /* several times the largest second-level cache */

struct bench {
    const struct kernels_run *run;
    FILE *out;
    struct hd_backend *backend;
    struct hd_stream *stream;
    struct hd_event *events[2];
    struct hd_traits traits;
    char *memory; /* one reservation, used anew by each case */
    int64_t size_bytes, used;
    double peak, bandwidth; /* operations, and bytes read and written, per second */
    char *flushed;          /* what is written before each timed launch, flush_bytes */
    int64_t flush_bytes;
    bool products;         /* what is timed may be bound by operations */
    char *pool;            /* POOL_ELEMENTS random values, on their way to the device */
    enum hd_status failed; /* sticks */
};

/* ---- tensors ---- */

static void *take(struct bench *b, int64_t bytes)
{
    void *at = b->memory + b->used;

    b->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (b->used > b->size_bytes && !b->failed)
        b->failed = hd_err(HD_NO_MEMORY, "a case needs more than the %lld MiB that were reserved",
                           (long long)(b->size_bytes >> 20));
    return at;
}

static void *put(struct bench *b, const void *bytes, int64_t size)
{
    void *at = take(b, size);

    if (!b->failed)
        b->failed = b->run->table->device->write(b->stream, at, bytes, size);
    return at;
}

/* Standard normal values times `spread`, the same ones every POOL_ELEMENTS. */
static void *random_values(struct bench *b, int64_t count, enum hd_dtype dtype, double spread)
{
    const int64_t size = (int64_t)hd_dtype_size(dtype);
    const int64_t pool = count < POOL_ELEMENTS ? count : POOL_ELEMENTS;
    char *at = take(b, count * size);

    for (int64_t i = 0; i < pool; i++) {
        const float x = (float)(spread * (double)hd_random_normal(1, (uint64_t)i));
        const uint16_t half = dtype == HD_BF16 ? hd_f32_to_bf16(x) : hd_f32_to_f16(x);

        memcpy(b->pool + i * size, dtype == HD_F32 ? (const void *)&x : &half, (size_t)size);
    }
    for (int64_t i = 0; !b->failed && i < count; i += pool)
        b->failed = b->run->table->device->write(b->stream, at + i * size, b->pool,
                                                 (count - i < pool ? count - i : pool) * size);
    return at;
}

/* i * step % period, or, without a step, random below it. */
static int32_t *integers(struct bench *b, int64_t count, int64_t step, int64_t period)
{
    int32_t *values = malloc((size_t)count * sizeof *values), *at;

    if (!values) {
        b->failed = hd_err(HD_NO_MEMORY, "no memory for %lld numbers", (long long)count);
        return take(b, count * (int64_t)sizeof *values);
    }
    for (int64_t i = 0; i < count; i++)
        values[i] = (int32_t)(step ? i * step % period
                                   : (int64_t)(hd_random_u64(2, (uint64_t)i) % (uint64_t)period));
    at = put(b, values, count * (int64_t)sizeof *values);
    free(values);
    return at;
}

static struct hd_step_state *step_block(struct bench *b)
{
    const struct hd_step_state block = {.step = 7,
                                        .lr = 1e-4f,
                                        .beta1 = 0.9f,
                                        .beta2 = 0.95f,
                                        .adam_eps = 1e-8f,
                                        .weight_decay = 0.1f,
                                        .loss_scale = 1,
                                        .grad_factor = 1e-3f};

    return put(b, &block, sizeof block);
}

/* ---- timing ---- */

/* Nothing of the launch's tensors is in the second-level cache when it begins, and the clocks do
 * not fall while the host works. */
static enum hd_status flush(struct bench *b)
{
    const struct hd_zero_args zero = {.out = b->flushed, .size_bytes = b->flush_bytes};

    return hd_launch(b->stream, HD_K_zero, &zero);
}

static enum hd_status time_once(struct bench *b, enum hd_kernel kernel, const void *args,
                                double *ret_seconds)
{
    const struct hd_device_table *device = b->run->table->device;
    enum hd_status st = flush(b);

    if (!st)
        st = device->event_record(b->events[0], b->stream);
    if (!st)
        st = hd_launch(b->stream, kernel, args);
    if (!st)
        st = device->event_record(b->events[1], b->stream);
    if (!st)
        st = device->event_finish(b->events[1]);
    return st ? st : device->event_elapsed(b->events[0], b->events[1], ret_seconds);
}

/* Gives the launch its scratch, times it and prints a line: the median, the least, the floor (what
 * its bytes take at a copy's rate or, for products and attention, its operations at the peak), and
 * the floor's share of the median. Then its tensors are forgotten. */
static void run(struct bench *b, enum hd_kernel kernel, void *args, const char *shape)
{
    const struct hd_kernel_info *info = hd_kernel_get_info(kernel);
    void *scratch = take(b, hd_kernel_scratch_bytes(kernel, args, &b->traits));
    struct hd_costs costs = {0};
    double times[KERNELS_GPU_ROUNDS_MAX], median, bytes, by_bytes, by_flops, floor;
    const char *by = NULL;

    for (int i = 0; i < info->operand_count; i++)
        if (info->operands[i].access == HD_SCRATCH)
            memcpy((char *)args + info->operands[i].offset, &scratch, sizeof scratch);
    if (!b->failed)
        b->failed = b->run->table->prepare(b->backend, kernel, args);
    if (!b->failed && b->run->table->computed_by)
        b->failed = b->run->table->computed_by(b->backend, kernel, args, &by);
    for (int i = -WARM_UP; !b->failed && i < b->run->rounds; i++)
        b->failed = time_once(b, kernel, args, &times[i < 0 ? 0 : i]);
    b->used = 0;
    if (b->failed)
        return;
    sort_doubles(times, (size_t)b->run->rounds);
    median = times[b->run->rounds / 2] > 1e-9 ? times[b->run->rounds / 2] : 1e-9;
    hd_kernel_cost_add(&costs, kernel, args);
    bytes = (double)(costs.read_bytes + costs.write_bytes);
    by_bytes = bytes / b->bandwidth;
    by_flops = costs.flops / b->peak;
    floor = by_bytes > by_flops || !b->products ? by_bytes : by_flops;
    fprintf(b->out, "%-26s %-30s %9.1f us %9.1f %9.1f %8.1f GB/s %7.1f TF/s %6.1f%%%s%s\n",
            info->name, shape, median * 1e6, times[0] * 1e6, floor * 1e6, bytes / median * 1e-9,
            costs.flops / median * 1e-12, 100 * floor / median,
            b->products && by && kernel == HD_K_gemm && strcmp(by, b->traits.library) != 0
                ? "  BY OWN CODE"
                : "",
            by && !strncmp(by, HD_BY_CUDNN + 1, strlen(HD_BY_CUDNN) - 1) ? "  by cuDNN" : "");
}

static bool wanted(const struct bench *b, enum hd_kernel kernel)
{
    const char *only = b->run->only;

    return !b->failed && (!only || !strncmp(hd_kernel_get_info(kernel)->name, only, strlen(only)));
}

/* RUN(name, shape, members of the argument struct): nothing of it happens unless it is wanted. */
#define RUN(b, name, shape, ...)                           \
    do {                                                   \
        if (wanted(b, HD_K_##name)) {                      \
            struct hd_##name##_args args_ = {__VA_ARGS__}; \
                                                           \
            run(b, HD_K_##name, &args_, shape);            \
        }                                                  \
    } while (0)

/* ---- what bytes bound ---- */

static void elements(struct bench *b)
{
    const int64_t R = b->run->rows, C = b->run->channels, N = R * C;
    const enum hd_dtype t = b->run->dtype;
    const int64_t e = (int64_t)hd_dtype_size(t);

    RUN(b, add, "[R,C]", .out = take(b, N * e), .a = random_values(b, N, t, 1),
        .b = random_values(b, N, t, 1), .N = N, .dtype = t);
    RUN(b, cast, "[R,C] from f32", .out = take(b, N * e), .inp = random_values(b, N, HD_F32, 1),
        .N = N, .out_dtype = t, .inp_dtype = HD_F32);
    RUN(b, zero, "[R,C]", .out = take(b, N * e), .size_bytes = N * e);
    RUN(b, copy_columns, "[R,C] of 2C", .out = take(b, N * e), .inp = random_values(b, 2 * N, t, 1),
        .R = R, .N = C, .ldo = C, .ldi = 2 * C, .factor = 1, .out_dtype = t, .inp_dtype = t);
    RUN(b, bias_forward, "[R,C]", .out = take(b, N * e), .inp = random_values(b, N, t, 1),
        .bias = random_values(b, C, t, 1), .R = R, .N = C, .dtype = t);
    RUN(b, bias_backward, "[R,C]", .dbias = take(b, C * 4), .dout = random_values(b, N, t, 1),
        .R = R, .N = C, .ldd = C, .dtype = t);
    RUN(b, glu_forward, "[R,2C]", .out = take(b, N * e), .inp = random_values(b, 2 * N, t, 1),
        .R = R, .F = C, .dtype = t);
    RUN(b, glu_backward, "[R,2C]", .dinp = take(b, 2 * N * e), .dout = random_values(b, N, t, 1),
        .inp = random_values(b, 2 * N, t, 1), .R = R, .F = C, .dtype = t);
    RUN(b, activation_forward, "[R,C]", .act = HD_ACT_GELU_TANH, .out = take(b, N * e),
        .inp = random_values(b, N, t, 1), .N = N, .dtype = t);
    RUN(b, activation_backward, "[R,C]", .act = HD_ACT_GELU_TANH, .dinp = take(b, N * e),
        .dout = random_values(b, N, t, 1), .inp = random_values(b, N, t, 1), .N = N, .dtype = t);
    RUN(b, dropout, "[R,C]", .out = take(b, N * e), .inp = random_values(b, N, t, 1),
        .sample = integers(b, R, 0, 64), .index = integers(b, R, 1, R), .block = step_block(b),
        .R = R, .C = C, .p = 0.1f, .dtype = t);
}

static void norms(struct bench *b)
{
    const int64_t R = b->run->rows, C = b->run->channels, N = R * C, D = 64, H = C / D;
    const enum hd_dtype t = b->run->dtype;
    const int64_t e = (int64_t)hd_dtype_size(t);

    RUN(b, rmsnorm_forward, "[R,C] with add", .out = take(b, N * e), .sum = take(b, N * e),
        .rstd = take(b, R * 4), .inp = random_values(b, N, t, 1), .add = random_values(b, N, t, 1),
        .weight = random_values(b, C, t, 1), .R = R, .C = C, .eps = 1e-5f, .dtype = t);
    RUN(b, rmsnorm_backward, "[R,C] with add", .dinp = take(b, N * e),
        .dout = random_values(b, N, t, 1), .inp = random_values(b, N, t, 1),
        .rstd = random_values(b, R, HD_F32, 1), .weight = random_values(b, C, t, 1),
        .add = random_values(b, N, t, 1), .R = R, .C = C, .dtype = t);
    RUN(b, rmsnorm_backward, "[R,C] with add, weights", .dinp = take(b, N * e),
        .dweight = take(b, C * 4), .dout = random_values(b, N, t, 1),
        .inp = random_values(b, N, t, 1), .rstd = random_values(b, R, HD_F32, 1),
        .weight = random_values(b, C, t, 1), .add = random_values(b, N, t, 1), .R = R, .C = C,
        .dtype = t);
    RUN(b, rmsnorm_backward_weight, "[R,C]", .dweight = take(b, C * 4),
        .dout = random_values(b, N, t, 1), .inp = random_values(b, N, t, 1),
        .rstd = random_values(b, R, HD_F32, 1), .R = R, .C = C, .dtype = t);
    RUN(b, layernorm_forward, "[R,C] with add", .out = take(b, N * e), .sum = take(b, N * e),
        .mean = take(b, R * 4), .rstd = take(b, R * 4), .inp = random_values(b, N, t, 1),
        .add = random_values(b, N, t, 1), .weight = random_values(b, C, t, 1),
        .bias = random_values(b, C, t, 1), .R = R, .C = C, .eps = 1e-5f, .dtype = t);
    RUN(b, layernorm_backward, "[R,C] with add", .dinp = take(b, N * e),
        .dout = random_values(b, N, t, 1), .inp = random_values(b, N, t, 1),
        .mean = random_values(b, R, HD_F32, 1), .rstd = random_values(b, R, HD_F32, 1),
        .weight = random_values(b, C, t, 1), .add = random_values(b, N, t, 1), .R = R, .C = C,
        .dtype = t);
    RUN(b, layernorm_backward, "[R,C] with add, weights", .dinp = take(b, N * e),
        .dweight = take(b, C * 4), .dbias = take(b, C * 4), .dout = random_values(b, N, t, 1),
        .inp = random_values(b, N, t, 1), .mean = random_values(b, R, HD_F32, 1),
        .rstd = random_values(b, R, HD_F32, 1), .weight = random_values(b, C, t, 1),
        .add = random_values(b, N, t, 1), .R = R, .C = C, .dtype = t);
    RUN(b, layernorm_backward_weight, "[R,C]", .dweight = take(b, C * 4), .dbias = take(b, C * 4),
        .dout = random_values(b, N, t, 1), .inp = random_values(b, N, t, 1),
        .mean = random_values(b, R, HD_F32, 1), .rstd = random_values(b, R, HD_F32, 1), .R = R,
        .C = C, .dtype = t);
    RUN(b, head_norm_forward, "[R,C/64+2,64]", .out = take(b, R * (H + 2) * D * e),
        .rstd = take(b, R * (H + 1) * 4), .inp = random_values(b, R * (H + 2) * D, t, 1),
        .q_weight = random_values(b, D, t, 1), .k_weight = random_values(b, D, t, 1), .R = R,
        .H = H, .G = 1, .D = D, .eps = 1e-5f, .dtype = t);
    RUN(b, head_norm_backward, "[R,C/64+2,64]", .dinp = take(b, R * (H + 2) * D * e),
        .dout = random_values(b, R * (H + 2) * D, t, 1),
        .inp = random_values(b, R * (H + 2) * D, t, 1),
        .rstd = random_values(b, R * (H + 1), HD_F32, 1), .q_weight = random_values(b, D, t, 1),
        .k_weight = random_values(b, D, t, 1), .R = R, .H = H, .G = 1, .D = D, .dtype = t);
    RUN(b, rope, "[R,C/64,64]", .x = random_values(b, N, t, 1), .position = integers(b, R, 1, 1024),
        .table = random_values(b, 1024 * D, HD_F32, 1), .R = R, .H = H, .D = D, .P = 1024, .ldx = C,
        .dtype = t);
}

/* Tokens are as uneven as random ones are. */
static void ends(struct bench *b)
{
    const int64_t R = b->run->rows, C = b->run->channels, N = R * C;
    const enum hd_dtype t = b->run->dtype;
    const int64_t e = (int64_t)hd_dtype_size(t), V = R < 1024 ? 97 : 50257;
    const int64_t few = R < 1024 ? R : R / 8;

    RUN(b, embedding_forward, "[R,C] of 50257", .out = take(b, N * e),
        .index = integers(b, R, 0, V), .weight = random_values(b, V * C, t, 1), .R = R, .C = C,
        .V = V, .dtype = t);
    RUN(b, embedding_backward, "[R,C] of 50257", .dweight = take(b, V * C * 4),
        .index = integers(b, R, 0, V), .dout = random_values(b, N, t, 1), .R = R, .C = C, .V = V,
        .accumulate = true, .dtype = t);
    for (int padded = 0; padded < 3; padded++) {
        const int64_t columns = padded < 2 ? V : 3 * V;
        const int64_t stride = padded ? (columns + 63) / 64 * 64 : columns;
        void *logits;

        if (!wanted(b, HD_K_cross_entropy))
            continue;
        logits = random_values(b, few * stride, t, 2);
        RUN(b, cross_entropy,
            padded == 0   ? "[R/8,50257] in place"
            : padded == 1 ? "[R/8,50304] in place"
                          : "[R/8,150784] in place",
            .dlogits = logits, .block = step_block(b), .logits = logits,
            .target = integers(b, few, 0, V), .R = few, .V = columns, .Vp = stride, .dtype = t);
    }
}

static void update(struct bench *b)
{
    const int64_t N = b->run->rows * b->run->channels;
    const struct hd_update_range ranges[] = {{.begin = 0, .end = N / 2, .decay = 1, .lr_scale = 1},
                                             {.begin = N / 2, .end = N, .decay = 0, .lr_scale = 1}};
    const struct hd_update_range blocks = {
        .end = N, .decay = 1, .lr_scale = 1, .block = HD_BLOCK_MAX};
    const int64_t bytes = hd_encoding_bytes(N, HD_BLOCK_MAX);

    RUN(b, square_sums, "[R C]", .sums = take(b, (N / HD_GRAD_CHUNK + 1) * 8),
        .block = step_block(b), .grad = random_values(b, N, HD_F32, 1), .N = N);
    RUN(b, adamw, "[R C] with a copy", .weight = random_values(b, N, HD_F32, 1),
        .m = random_values(b, N, HD_F32, 0), .v = random_values(b, N, HD_F32, 0),
        .copy = take(b, N * 2), .grad = random_values(b, N, HD_F32, 1), .block = step_block(b),
        .ranges = put(b, ranges, sizeof ranges), .N = N, .range_count = 2, .copy_dtype = HD_BF16);
    RUN(b, adamw, "[R C] with a copy, moments of 8 bits", .weight = random_values(b, N, HD_F32, 1),
        .m = take(b, bytes), .v = take(b, bytes), .copy = take(b, N * 2),
        .grad = random_values(b, N, HD_F32, 1), .block = step_block(b),
        .ranges = put(b, &blocks, sizeof blocks), .N = N, .range_count = 1, .moment_bytes = bytes,
        .copy_dtype = HD_BF16);
}

/* Two of 64 experts for each row; slots as a permutation that jumps. */
static void experts(struct bench *b)
{
    const int64_t R = b->run->rows / 2, C = b->run->channels, K = 2, T = R * K;
    const enum hd_dtype t = b->run->dtype;
    const int64_t e = (int64_t)hd_dtype_size(t), jump = T % 7 ? 7 : 11;

    RUN(b, permute_forward, "[R/2,C] twice", .out = take(b, T * C * e),
        .inp = random_values(b, R * C, t, 1), .slot = integers(b, T, jump, T), .R = R, .K = K,
        .C = C, .T = T, .dtype = t);
    RUN(b, permute_backward, "[R/2,C] of two", .dinp = take(b, R * C * e),
        .dout = random_values(b, T * C, t, 1), .slot = integers(b, T, jump, T), .R = R, .K = K,
        .C = C, .T = T, .dtype = t);
    RUN(b, combine_forward, "[R/2,C] of two", .out = take(b, R * C * e),
        .inp = random_values(b, T * C, t, 1), .gate = random_values(b, T, HD_F32, 1),
        .slot = integers(b, T, jump, T), .R = R, .K = K, .C = C, .T = T, .dtype = t);
    RUN(b, combine_backward, "[R/2,C] twice", .dinp = take(b, T * C * e), .dgate = take(b, T * 4),
        .dout = random_values(b, R * C, t, 1), .inp = random_values(b, T * C, t, 1),
        .gate = random_values(b, T, HD_F32, 1), .slot = integers(b, T, jump, T), .R = R, .K = K,
        .C = C, .T = T, .dtype = t);
    RUN(b, route_forward, "[R/2,64] two of them", .probs = take(b, R * 64 * 4),
        .lse = take(b, R * 4), .chosen = take(b, R * K * 4), .gate = take(b, R * K * 4),
        .logits = random_values(b, R * 64, HD_F32, 1), .R = R, .E = 64, .K = K,
        .renormalize = true);
}

/* ---- products: forward, the gradient of the input, that of the weight ---- */

/* The two of an MLP with more behind them: against the lines above and those of activation_forward,
 * activation_backward, bias_backward and add, what it saves that they are one launch. */
static void fused_products(struct bench *b)
{
    const int64_t R = b->run->rows / 2, C = b->run->channels, F = 4 * C;
    const enum hd_dtype t = b->run->dtype;
    const int64_t e = (int64_t)hd_dtype_size(t);

    RUN(b, gemm, "[R/2,C] x [4C,C]^T, bias, GELU", .c = take(b, R * F * e),
        .a = random_values(b, R * C, t, 1), .b = random_values(b, F * C, t, 1),
        .bias = random_values(b, F, t, 1), .M = R, .N = F, .K = C, .lda = C, .ldb = C, .ldc = F,
        .trans_b = true, .epilogue = HD_EPILOGUE_GELU, .ab_dtype = t, .c_dtype = t);
    RUN(b, gemm, "  the same, GELU's input kept", .c = take(b, R * F * e),
        .pre = take(b, R * F * e), .a = random_values(b, R * C, t, 1),
        .b = random_values(b, F * C, t, 1), .bias = random_values(b, F, t, 1), .M = R, .N = F,
        .K = C, .lda = C, .ldb = C, .ldc = F, .trans_b = true, .epilogue = HD_EPILOGUE_GELU,
        .ab_dtype = t, .c_dtype = t);
    RUN(b, gemm, "[R/2,C] x [C,4C], GELU's derivative", .c = take(b, R * F * e),
        .a = random_values(b, R * C, t, 1), .b = random_values(b, C * F, t, 1),
        .gelu_inp = random_values(b, R * F, t, 1), .M = R, .N = F, .K = C, .lda = C, .ldb = F,
        .ldc = F, .epilogue = HD_EPILOGUE_GELU_BACKWARD, .ab_dtype = t, .c_dtype = t);
    RUN(b, gemm, "[R/2,4C]^T x [R/2,C], added", .c = random_values(b, F * C, HD_F32, 1),
        .a = random_values(b, R * F, t, 1), .b = random_values(b, R * C, t, 1), .M = F, .N = C,
        .K = R, .lda = F, .ldb = C, .ldc = C, .trans_a = true, .accumulate = true, .ab_dtype = t,
        .c_dtype = HD_F32);
    RUN(b, gemm, "[R/2,4C] x [C,4C]^T, residual", .c = take(b, R * C * e),
        .a = random_values(b, R * F, t, 1), .b = random_values(b, C * F, t, 1),
        .add = random_values(b, R * C, t, 1), .M = R, .N = C, .K = F, .lda = F, .ldb = F, .ldc = C,
        .trans_b = true, .ab_dtype = t, .c_dtype = t);
}

static void products(struct bench *b)
{
    static const int64_t wide[][2] = {{1, 3}, {1, 4}, {4, 1}, {1, 1}}; /* inputs, outputs, in C */
    const int64_t R = b->run->rows / 2, C = b->run->channels;
    const enum hd_dtype t = b->run->dtype;
    const int64_t e = (int64_t)hd_dtype_size(t);

    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++) {
        const int64_t K = wide[i][0] * C, N = wide[i][1] * C;
        char shape[64];

        (void)snprintf(shape, sizeof shape, "[%lld,%lld] x [%lld,%lld]^T", (long long)R,
                       (long long)K, (long long)N, (long long)K);
        RUN(b, gemm, shape, .c = take(b, R * N * e), .a = random_values(b, R * K, t, 1),
            .b = random_values(b, N * K, t, 1), .M = R, .N = N, .K = K, .lda = K, .ldb = K,
            .ldc = N, .trans_b = true, .ab_dtype = t, .c_dtype = t);
        RUN(b, gemm, "  its gradient of the input", .c = take(b, R * K * e),
            .a = random_values(b, R * N, t, 1), .b = random_values(b, N * K, t, 1), .M = R, .N = K,
            .K = N, .lda = N, .ldb = K, .ldc = K, .ab_dtype = t, .c_dtype = t);
        RUN(b, gemm, "  its gradient of the weight", .c = random_values(b, N * K, HD_F32, 1),
            .a = random_values(b, R * N, t, 1), .b = random_values(b, R * K, t, 1), .M = N, .N = K,
            .K = R, .lda = N, .ldb = K, .ldc = K, .trans_a = true, .accumulate = true,
            .ab_dtype = t, .c_dtype = HD_F32);
    }
}

/* ---- attention: causal, whole sequences ---- */

static void attend(struct bench *b, int64_t S, int64_t H, int64_t G, int64_t D)
{
    const int64_t R = S > b->run->rows / 2 ? S : b->run->rows / 2, B = R / S;
    const int64_t rows = B * S, row = (H + 2 * G) * D;
    const enum hd_dtype t = b->run->dtype;
    const int64_t e = (int64_t)hd_dtype_size(t);
    char shape[64];

    (void)snprintf(shape, sizeof shape, "%lld x %lld, %lld/%lld heads of %lld", (long long)B,
                   (long long)S, (long long)H, (long long)G, (long long)D);
    if (wanted(b, HD_K_attention_forward)) {
        const char *qkv = random_values(b, rows * row, t, 1);
        int32_t *index = integers(b, rows, 1, S);

        RUN(b, attention_forward, shape, .out = take(b, rows * H * D * e),
            .lse = take(b, H * rows * 4), .q = qkv, .k = qkv + H * D * e,
            .v = qkv + (H + G) * D * e, .q_index = index, .kv_index = index, .B = B, .q_len = S,
            .kv_len = S, .kv_stride = S, .H = H, .G = G, .D = D, .ldq = row, .ldk = row, .ldv = row,
            .ldo = H * D, .scale = 1 / sqrtf((float)D), .causal = true, .dtype = t);
    }
    if (wanted(b, HD_K_attention_backward)) {
        const char *qkv = random_values(b, rows * row, t, 1);
        char *dqkv = take(b, rows * row * e);
        int32_t *index = integers(b, rows, 1, S);

        RUN(b, attention_backward, shape, .dq = dqkv, .dk = dqkv + H * D * e,
            .dv = dqkv + (H + G) * D * e, .dout = random_values(b, rows * H * D, t, 1), .q = qkv,
            .k = qkv + H * D * e, .v = qkv + (H + G) * D * e,
            .out = random_values(b, rows * H * D, t, 1),
            .lse = random_values(b, H * rows, HD_F32, 1), .q_index = index, .kv_index = index,
            .B = B, .q_len = S, .kv_len = S, .kv_stride = S, .H = H, .G = G, .D = D, .ldq = row,
            .ldk = row, .ldv = row, .ldo = H * D, .lddq = row, .lddk = row, .lddv = row,
            .lddo = H * D, .scale = 1 / sqrtf((float)D), .causal = true, .dtype = t,
            .grad_dtype = t);
    }
}

static void attention(struct bench *b)
{
    const int64_t heads = b->run->channels / 128 > 0 ? b->run->channels / 128 : 1;
    const bool is_small = b->run->rows < 1024;

    for (int64_t S = is_small ? 40 : 1024; S <= (is_small ? 40 : 16384); S *= 4) {
        attend(b, S, 2 * heads, 2 * heads, 64);
        attend(b, S, heads, heads, 128);
        attend(b, S, 2 * heads, heads, 128);
    }
}

/* ---- the run ---- */

/* Half the reservation into the other half, by the device's own copy. */
static enum hd_status measure_copy(struct bench *b, double *ret_bandwidth)
{
    const struct hd_device_table *device = b->run->table->device;
    const int64_t bytes = b->size_bytes / 4;
    double least = 1e30, seconds = 0;
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < b->run->rounds + WARM_UP; i++) {
        st = device->event_record(b->events[0], b->stream);
        if (!st)
            st = device->copy(b->stream, b->memory, b->memory + 2 * bytes, bytes);
        if (!st)
            st = device->event_record(b->events[1], b->stream);
        if (!st)
            st = device->event_finish(b->events[1]);
        if (!st)
            st = device->event_elapsed(b->events[0], b->events[1], &seconds);
        least = i >= WARM_UP && seconds < least ? seconds : least;
    }
    *ret_bandwidth = 2 * (double)bytes / (least > 1e-9 ? least : 1e-9);
    return st;
}

static enum hd_status begin(struct bench *b, int64_t *ret_open_ns)
{
    const struct hd_backend_table *table = b->run->table;
    const struct hd_backend_options options = {.threads = 1, .epilogues_separate = b->run->apart};
    /* Seven tensors of rows x channels in fp32, and what is as large as the largest table. */
    const int64_t most = 7 * b->run->rows * b->run->channels * 4 + (INT64_C(1) << 20);
    const int64_t table_bytes = b->run->rows < 1024 ? 1 << 20 : INT64_C(1) << 31;
    void *memory = NULL;
    enum hd_status st;

    table->describe(&options, &b->traits);
    b->size_bytes = most + table_bytes + b->traits.gemm_scratch_bytes;
    b->flush_bytes = b->run->rows < 1024 ? 1 << 16 : FLUSH_BYTES;
    b->pool = malloc((size_t)POOL_ELEMENTS * 4);
    if (!b->pool)
        return hd_err(HD_NO_MEMORY, "no memory for random values");
    st = table->open(&options, &b->backend);
    *ret_open_ns = hd_clock_now_ns();
    if (!st)
        st = table->stream_open(b->backend, HD_STREAM_FOR_COMPUTE, &b->stream);
    for (int i = 0; !st && i < 2; i++)
        st = table->device->event_new(b->backend, true, &b->events[i]);
    if (!st)
        st = table->device->reserve(b->backend, b->size_bytes + b->flush_bytes, false, &memory);
    b->memory = memory;
    if (st)
        return st;
    b->peak = table->measure_peak(b->backend, b->run->dtype);
    b->flushed = b->memory + b->size_bytes;
    return measure_copy(b, &b->bandwidth);
}

static void end(struct bench *b)
{
    const struct hd_backend_table *table = b->run->table;

    if (b->memory)
        table->device->release(b->backend, b->memory);
    for (int i = 0; i < 2; i++)
        if (b->events[i])
            table->device->event_free(b->events[i]);
    if (b->stream)
        table->stream_close(b->stream);
    if (b->backend)
        table->close(b->backend);
    free(b->pool);
}

enum hd_status kernels_gpu(const char *kind, const struct kernels_run *run, FILE *out)
{
    struct bench b = {.run = run, .out = out};
    const bool bytes = !strcmp(kind, "bytes"), gemm = !strcmp(kind, "gemm");
    int64_t begin_ns, open_ns = 0;
    double again = 0;

    if (!bytes && !gemm && strcmp(kind, "attention") != 0)
        return hd_err(HD_NOT_FOUND, "there is no kind \"%s\"; it is bytes, gemm or attention",
                      kind);
    b.products = !bytes;
    begin_ns = hd_clock_now_ns();
    b.failed = begin(&b, &open_ns);
    if (!b.failed)
        fprintf(
            out,
            "R %lld, C %lld, %s; a copy moves %.1f GB/s, the peak is %.1f TF/s; opened in %.2f s\n"
            "%-26s %-30s %12s %9s %9s %13s %12s %7s\n",
            (long long)run->rows, (long long)run->channels, hd_dtype_name(run->dtype),
            b.bandwidth * 1e-9, b.peak * 1e-12, (double)(open_ns - begin_ns) * 1e-9, "kernel",
            "shape", "median", "least", "floor us", "bytes", "operations", "floor");
    if (bytes) {
        elements(&b);
        norms(&b);
        ends(&b);
        update(&b);
        experts(&b);
    } else if (gemm) {
        products(&b);
        fused_products(&b);
    } else {
        attention(&b);
    }
    if (!b.failed)
        b.failed = measure_copy(&b, &again);
    if (!b.failed) /* much less than at first: it grew warm, or somebody shares it */
        fprintf(out, "a copy moves %.1f GB/s in the end\n", again * 1e-9);
    end(&b);
    return b.failed;
}
