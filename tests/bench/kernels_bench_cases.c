/* The cases of kernels_bench: arguments of each kernel, at the shapes of training. */
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "tests/bench/kernels_bench.h"

static void *indices(int64_t count, int64_t period)
{
    int32_t *index = malloc((size_t)count * sizeof *index);

    if (!index)
        bench_die("no memory");
    for (int64_t i = 0; i < count; i++)
        index[i] = (int32_t)(i % period);
    return index;
}

/* ---- products ---- */

static void make_gemm(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    struct hd_gemm_args *a = args;
    const bool weight = s[3] == 'w';

    *a = (struct hd_gemm_args){.M = s[0],
                               .N = s[1],
                               .K = s[2],
                               .trans_a = weight,
                               .trans_b = s[3] == 'f',
                               .accumulate = weight,
                               .ab_dtype = dtype,
                               .c_dtype = weight ? HD_F32 : dtype};
    a->lda = weight ? a->M : a->K;
    a->ldb = a->trans_b ? a->K : a->N;
    a->ldc = a->N;
    a->a = bench_tensor(b, a->M * a->K, dtype);
    a->b = bench_tensor(b, a->K * a->N, dtype);
    a->c = bench_tensor(b, a->M * a->N, a->c_dtype);
}

static void bench_gemm(struct bench *b, int64_t R, int64_t out, int64_t in)
{
    static const char kinds[] = "fbw"; /* Y = X W^T, dX = dY W, dW += dY^T X */

    R = bench_size(b, R);
    out = bench_size(b, out);
    in = bench_size(b, in);

    for (int type = 0; type < TYPES; type++)
        for (int k = 0; k < 3; k++) {
            const int64_t forward[] = {R, out, in, 'f'}, backward[] = {R, in, out, 'b'};
            const int64_t weight[] = {out, in, R, 'w'};
            const int64_t *const all[] = {forward, backward, weight};
            char label[64];

            (void)snprintf(label, sizeof label, "%lldx%lldx%lld %c", (long long)all[k][0],
                           (long long)all[k][1], (long long)all[k][2], kinds[k]);
            bench_kernel(b, label, HD_K_gemm, make_gemm, all[k], (enum hd_dtype)type, true);
        }
}

/* sizes: B, q_len, kv_len, H, G, D */
static int32_t *positions;

static void make_attention(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    struct hd_attention_forward_args *a = args;
    const int64_t rows = s[0] * s[1], keys = s[0] * s[2];

    *a = (struct hd_attention_forward_args){.out = bench_tensor(b, rows * s[3] * s[5], dtype),
                                            .lse = bench_tensor(b, rows * s[3], HD_F32),
                                            .q = bench_tensor(b, rows * s[3] * s[5], dtype),
                                            .k = bench_tensor(b, keys * s[4] * s[5], dtype),
                                            .v = bench_tensor(b, keys * s[4] * s[5], dtype),
                                            .q_index = positions,
                                            .kv_index = positions,
                                            .B = s[0],
                                            .q_len = s[1],
                                            .kv_len = s[2],
                                            .kv_stride = s[2],
                                            .H = s[3],
                                            .G = s[4],
                                            .D = s[5],
                                            .ldq = s[3] * s[5],
                                            .ldk = s[4] * s[5],
                                            .ldv = s[4] * s[5],
                                            .ldo = s[3] * s[5],
                                            .scale = 0.125f,
                                            .causal = s[1] > 1,
                                            .dtype = dtype};
}

static void make_attention_backward(struct bench *b, void *args, const int64_t *s,
                                    enum hd_dtype dtype)
{
    struct hd_attention_forward_args f;
    struct hd_attention_backward_args *a = args;
    float *lse;

    make_attention(b, &f, s, dtype);
    lse = f.lse;
    for (int64_t i = 0; i < s[0] * s[1] * s[3]; i++)
        lse[i] = 8;
    *a = (struct hd_attention_backward_args){.dq = bench_tensor(b, f.B * f.q_len * f.ldq, dtype),
                                             .dk = bench_tensor(b, f.B * f.kv_len * f.ldk, dtype),
                                             .dv = bench_tensor(b, f.B * f.kv_len * f.ldv, dtype),
                                             .dout = bench_tensor(b, f.B * f.q_len * f.ldq, dtype),
                                             .q = f.q,
                                             .k = f.k,
                                             .v = f.v,
                                             .out = f.out,
                                             .lse = f.lse,
                                             .q_index = positions,
                                             .kv_index = positions,
                                             .B = f.B,
                                             .q_len = f.q_len,
                                             .kv_len = f.kv_len,
                                             .kv_stride = f.kv_len,
                                             .H = f.H,
                                             .G = f.G,
                                             .D = f.D,
                                             .ldq = f.ldq,
                                             .ldk = f.ldk,
                                             .ldv = f.ldv,
                                             .ldo = f.ldo,
                                             .lddq = f.ldq,
                                             .lddk = f.ldk,
                                             .lddv = f.ldv,
                                             .lddo = f.ldo,
                                             .scale = f.scale,
                                             .causal = f.causal,
                                             .dtype = dtype,
                                             .grad_dtype = dtype};
}

static void bench_attention(struct bench *b)
{
    static const int64_t sizes[][6] = {{16, 256, 256, 6, 6, 64},
                                       {2, 1024, 1024, 12, 12, 64},
                                       {1, 2048, 2048, 12, 4, 128},
                                       {8, 1, 1024, 12, 4, 64}};

    for (int i = 0; i < 4; i++)
        for (int type = 0; type < TYPES; type++) {
            const int64_t s[] = {sizes[i][0],
                                 bench_size(b, sizes[i][1]),
                                 bench_size(b, sizes[i][2]),
                                 sizes[i][3],
                                 sizes[i][4],
                                 sizes[i][5]};
            char label[64];

            (void)snprintf(label, sizeof label, "B%lld %lldx%lld H%lld/%lld D%lld", (long long)s[0],
                           (long long)s[1], (long long)s[2], (long long)s[3], (long long)s[4],
                           (long long)s[5]);
            bench_kernel(b, label, HD_K_attention_forward, make_attention, s, (enum hd_dtype)type,
                         true);
            if (s[1] > 1)
                bench_kernel(b, label, HD_K_attention_backward, make_attention_backward, s,
                             (enum hd_dtype)type, true);
        }
}

/* ---- rows and elements; sizes: R, C, F, V ---- */

static void make_attention_merge(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    const int64_t D = 64, H = s[1] / D;

    *(struct hd_attention_merge_args *)args =
        (struct hd_attention_merge_args){.acc = bench_tensor(b, s[0] * s[1], HD_F32),
                                         .lse = bench_tensor(b, s[0] * H, HD_F32),
                                         .block_out = bench_tensor(b, s[0] * s[1], dtype),
                                         .block_lse = bench_tensor(b, s[0] * H, HD_F32),
                                         .R = s[0],
                                         .H = H,
                                         .D = D,
                                         .dtype = dtype};
}

/* Samples and indices are the tensor's bits: any will do. */
static void make_dropout(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_dropout_args *)args =
        (struct hd_dropout_args){.out = bench_tensor(b, s[0] * s[1], dtype),
                                 .inp = bench_tensor(b, s[0] * s[1], dtype),
                                 .sample = bench_tensor(b, s[0], HD_F32),
                                 .index = bench_tensor(b, s[0], HD_F32),
                                 .block = bench_tensor(b, sizeof(struct hd_step_state), HD_F32),
                                 .R = s[0],
                                 .C = s[1],
                                 .p = 0.1f,
                                 .dtype = dtype};
}

static void make_bias(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_bias_backward_args *)args =
        (struct hd_bias_backward_args){.dbias = bench_tensor(b, s[1], HD_F32),
                                       .dout = bench_tensor(b, s[0] * s[1], dtype),
                                       .R = s[0],
                                       .N = s[1],
                                       .ldd = s[1],
                                       .dtype = dtype};
}

static int32_t *token_index;

static void make_embedding(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_embedding_forward_args *)args =
        (struct hd_embedding_forward_args){.out = bench_tensor(b, s[0] * s[1], dtype),
                                           .index = token_index,
                                           .weight = bench_tensor(b, s[3] * s[1], dtype),
                                           .R = s[0],
                                           .C = s[1],
                                           .V = s[3],
                                           .dtype = dtype};
}

static void make_embedding_backward(struct bench *b, void *args, const int64_t *s,
                                    enum hd_dtype dtype)
{
    *(struct hd_embedding_backward_args *)args =
        (struct hd_embedding_backward_args){.dweight = bench_tensor(b, s[3] * s[1], HD_F32),
                                            .index = token_index,
                                            .dout = bench_tensor(b, s[0] * s[1], dtype),
                                            .R = s[0],
                                            .C = s[1],
                                            .V = s[3],
                                            .accumulate = true,
                                            .dtype = dtype};
}

static void make_rmsnorm(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_rmsnorm_forward_args *)args =
        (struct hd_rmsnorm_forward_args){.out = bench_tensor(b, s[0] * s[1], dtype),
                                         .sum = bench_tensor(b, s[0] * s[1], dtype),
                                         .rstd = bench_tensor(b, s[0], HD_F32),
                                         .inp = bench_tensor(b, s[0] * s[1], dtype),
                                         .add = bench_tensor(b, s[0] * s[1], dtype),
                                         .weight = bench_tensor(b, s[1], dtype),
                                         .R = s[0],
                                         .C = s[1],
                                         .eps = 1e-5f,
                                         .dtype = dtype};
}

static void make_rmsnorm_backward(struct bench *b, void *args, const int64_t *s,
                                  enum hd_dtype dtype)
{
    *(struct hd_rmsnorm_backward_args *)args =
        (struct hd_rmsnorm_backward_args){.dinp = bench_tensor(b, s[0] * s[1], dtype),
                                          .dout = bench_tensor(b, s[0] * s[1], dtype),
                                          .inp = bench_tensor(b, s[0] * s[1], dtype),
                                          .rstd = bench_tensor(b, s[0], HD_F32),
                                          .weight = bench_tensor(b, s[1], dtype),
                                          .add = bench_tensor(b, s[0] * s[1], dtype),
                                          .R = s[0],
                                          .C = s[1],
                                          .dtype = dtype};
}

static void make_rmsnorm_weight(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_rmsnorm_backward_weight_args *)args =
        (struct hd_rmsnorm_backward_weight_args){.dweight = bench_tensor(b, s[1], HD_F32),
                                                 .dout = bench_tensor(b, s[0] * s[1], dtype),
                                                 .inp = bench_tensor(b, s[0] * s[1], dtype),
                                                 .rstd = bench_tensor(b, s[0], HD_F32),
                                                 .R = s[0],
                                                 .C = s[1],
                                                 .dtype = dtype};
}

static void make_layernorm(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_layernorm_forward_args *)args =
        (struct hd_layernorm_forward_args){.out = bench_tensor(b, s[0] * s[1], dtype),
                                           .mean = bench_tensor(b, s[0], HD_F32),
                                           .rstd = bench_tensor(b, s[0], HD_F32),
                                           .inp = bench_tensor(b, s[0] * s[1], dtype),
                                           .weight = bench_tensor(b, s[1], dtype),
                                           .bias = bench_tensor(b, s[1], dtype),
                                           .R = s[0],
                                           .C = s[1],
                                           .eps = 1e-5f,
                                           .dtype = dtype};
}

static void make_layernorm_backward(struct bench *b, void *args, const int64_t *s,
                                    enum hd_dtype dtype)
{
    *(struct hd_layernorm_backward_args *)args =
        (struct hd_layernorm_backward_args){.dinp = bench_tensor(b, s[0] * s[1], dtype),
                                            .dout = bench_tensor(b, s[0] * s[1], dtype),
                                            .inp = bench_tensor(b, s[0] * s[1], dtype),
                                            .mean = bench_tensor(b, s[0], HD_F32),
                                            .rstd = bench_tensor(b, s[0], HD_F32),
                                            .weight = bench_tensor(b, s[1], dtype),
                                            .R = s[0],
                                            .C = s[1],
                                            .dtype = dtype};
}

static void make_layernorm_weight(struct bench *b, void *args, const int64_t *s,
                                  enum hd_dtype dtype)
{
    *(struct hd_layernorm_backward_weight_args *)args =
        (struct hd_layernorm_backward_weight_args){.dweight = bench_tensor(b, s[1], HD_F32),
                                                   .dbias = bench_tensor(b, s[1], HD_F32),
                                                   .dout = bench_tensor(b, s[0] * s[1], dtype),
                                                   .inp = bench_tensor(b, s[0] * s[1], dtype),
                                                   .mean = bench_tensor(b, s[0], HD_F32),
                                                   .rstd = bench_tensor(b, s[0], HD_F32),
                                                   .R = s[0],
                                                   .C = s[1],
                                                   .dtype = dtype};
}

static void make_rope(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_rope_args *)args =
        (struct hd_rope_args){.x = bench_tensor(b, s[0] * s[1], dtype),
                              .position = positions,
                              .table = bench_tensor(b, s[0] * 64, HD_F32),
                              .R = s[0],
                              .H = s[1] / 64,
                              .D = 64,
                              .P = s[0],
                              .ldx = s[1],
                              .dtype = dtype};
}

static void make_glu(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_glu_forward_args *)args =
        (struct hd_glu_forward_args){.out = bench_tensor(b, s[0] * s[2], dtype),
                                     .inp = bench_tensor(b, s[0] * 2 * s[2], dtype),
                                     .R = s[0],
                                     .F = s[2],
                                     .dtype = dtype};
}

static void make_glu_backward(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_glu_backward_args *)args =
        (struct hd_glu_backward_args){.dinp = bench_tensor(b, s[0] * 2 * s[2], dtype),
                                      .dout = bench_tensor(b, s[0] * s[2], dtype),
                                      .inp = bench_tensor(b, s[0] * 2 * s[2], dtype),
                                      .R = s[0],
                                      .F = s[2],
                                      .dtype = dtype};
}

static void make_gelu(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_activation_forward_args *)args =
        (struct hd_activation_forward_args){.act = HD_ACT_GELU_TANH,
                                            .out = bench_tensor(b, s[0] * s[2], dtype),
                                            .inp = bench_tensor(b, s[0] * s[2], dtype),
                                            .N = s[0] * s[2],
                                            .dtype = dtype};
}

static void make_gelu_backward(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_activation_backward_args *)args =
        (struct hd_activation_backward_args){.act = HD_ACT_GELU_TANH,
                                             .dinp = bench_tensor(b, s[0] * s[2], dtype),
                                             .dout = bench_tensor(b, s[0] * s[2], dtype),
                                             .inp = bench_tensor(b, s[0] * s[2], dtype),
                                             .N = s[0] * s[2],
                                             .dtype = dtype};
}

static void make_add(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_add_args *)args = (struct hd_add_args){.out = bench_tensor(b, s[0] * s[1], dtype),
                                                       .a = bench_tensor(b, s[0] * s[1], dtype),
                                                       .b = bench_tensor(b, s[0] * s[1], dtype),
                                                       .N = s[0] * s[1],
                                                       .dtype = dtype};
}

static void make_cast(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_cast_args *)args =
        (struct hd_cast_args){.out = bench_tensor(b, s[0] * s[1], dtype),
                              .inp = bench_tensor(b, s[0] * s[1], HD_F32),
                              .N = s[0] * s[1],
                              .out_dtype = dtype,
                              .inp_dtype = HD_F32};
}

static void make_zero(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    const int64_t bytes = s[0] * s[1] * (int64_t)hd_dtype_size(dtype);

    *(struct hd_zero_args *)args =
        (struct hd_zero_args){.out = bench_tensor(b, s[0] * s[1], dtype), .size_bytes = bytes};
}

static void make_cross_entropy(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_cross_entropy_args *)args =
        (struct hd_cross_entropy_args){.dlogits = bench_tensor(b, s[0] * s[3], dtype),
                                       .block = b->block,
                                       .logits = bench_tensor(b, s[0] * s[3], dtype),
                                       .target = token_index,
                                       .R = s[0],
                                       .V = s[3],
                                       .Vp = s[3],
                                       .dtype = dtype};
}

static void make_square_sums(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_square_sums_args *)args = (struct hd_square_sums_args){
        .sums = bench_tensor(b, s[1] * s[2] / HD_GRAD_CHUNK + 1, HD_F64),
        .block = b->block,
        .grad = bench_tensor(b, 4 * s[1] * s[2], HD_F32),
        .N = 4 * s[1] * s[2]};
}

static void make_adamw(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    static struct hd_update_range range = {.decay = 1, .lr_scale = 1};
    const int64_t N = 4 * s[1] * s[2];

    range.end = N;
    *(struct hd_adamw_args *)args = (struct hd_adamw_args){.weight = bench_tensor(b, N, HD_F32),
                                                           .m = bench_tensor(b, N, HD_F32),
                                                           .v = bench_tensor(b, N, HD_F32),
                                                           .copy = bench_tensor(b, N, dtype),
                                                           .grad = bench_tensor(b, N, HD_F32),
                                                           .block = b->block,
                                                           .ranges = &range,
                                                           .N = N,
                                                           .range_count = 1,
                                                           .copy_dtype = dtype};
}

/* Moments in blocks of 256. */
static void make_adamw_blocks(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    static struct hd_update_range range = {.decay = 1, .lr_scale = 1, .block = HD_BLOCK_MAX};
    struct hd_adamw_args *a = args;

    make_adamw(b, args, s, dtype);
    range.end = a->N;
    a->ranges = &range;
    a->moment_bytes = hd_encoding_bytes(a->N, range.block);
    a->m = bench_tensor(b, a->moment_bytes, HD_U8);
    a->v = bench_tensor(b, a->moment_bytes, HD_U8);
}

static void bench_rows(struct bench *b, const int64_t *sizes)
{
    const int64_t s[] = {bench_size(b, sizes[0]), sizes[1], sizes[2], sizes[3]};
    static const struct {
        enum hd_kernel kernel;
        void (*make)(struct bench *, void *, const int64_t *, enum hd_dtype);
    } all[] = {{HD_K_attention_merge, make_attention_merge},
               {HD_K_bias_backward, make_bias},
               {HD_K_dropout, make_dropout},
               {HD_K_embedding_forward, make_embedding},
               {HD_K_embedding_backward, make_embedding_backward},
               {HD_K_rmsnorm_forward, make_rmsnorm},
               {HD_K_rmsnorm_backward, make_rmsnorm_backward},
               {HD_K_rmsnorm_backward_weight, make_rmsnorm_weight},
               {HD_K_layernorm_forward, make_layernorm},
               {HD_K_layernorm_backward, make_layernorm_backward},
               {HD_K_layernorm_backward_weight, make_layernorm_weight},
               {HD_K_rope, make_rope},
               {HD_K_glu_forward, make_glu},
               {HD_K_glu_backward, make_glu_backward},
               {HD_K_activation_forward, make_gelu},
               {HD_K_activation_backward, make_gelu_backward},
               {HD_K_add, make_add},
               {HD_K_cast, make_cast},
               {HD_K_zero, make_zero},
               {HD_K_cross_entropy, make_cross_entropy},
               {HD_K_square_sums, make_square_sums},
               {HD_K_adamw, make_adamw}};
    char label[64];

    (void)snprintf(label, sizeof label, "R%lld C%lld F%lld V%lld", (long long)s[0], (long long)s[1],
                   (long long)s[2], (long long)s[3]);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (int type = 0; type < TYPES; type++)
            bench_kernel(b, label, all[i].kernel, all[i].make, s, (enum hd_dtype)type, false);
    (void)snprintf(label, sizeof label, "R%lld C%lld F%lld 8bit", (long long)s[0], (long long)s[1],
                   (long long)s[2]);
    for (int type = 0; type < TYPES; type++)
        bench_kernel(b, label, HD_K_adamw, make_adamw_blocks, s, (enum hd_dtype)type, false);
}

/* ---- experts: sizes are {R, C, F, E, K} ---- */

static struct {
    int32_t *counts, *slot; /* every expert gets as many rows, none is dropped */
} experts;

static void set_experts(const int64_t *s)
{
    const int64_t T = s[0] * s[4], E = s[3];

    for (int64_t e = 0; e < E; e++)
        experts.counts[e] = (int32_t)(T / E);
    for (int64_t i = 0; i < T; i++) /* choice i is of expert i % E */
        experts.slot[i] = (int32_t)(i % E * (T / E) + i / E);
}

static void make_route(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_route_forward_args *)args =
        (struct hd_route_forward_args){.probs = bench_tensor(b, s[0] * s[3], HD_F32),
                                       .lse = bench_tensor(b, s[0], HD_F32),
                                       .chosen = bench_tensor(b, s[0] * s[4], HD_I32),
                                       .gate = bench_tensor(b, s[0] * s[4], HD_F32),
                                       .logits = bench_tensor(b, s[0] * s[3], HD_F32),
                                       .R = s[0],
                                       .E = s[3],
                                       .K = s[4],
                                       .renormalize = true};
}

static void make_permute(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_permute_forward_args *)args =
        (struct hd_permute_forward_args){.out = bench_tensor(b, s[0] * s[4] * s[1], dtype),
                                         .inp = bench_tensor(b, s[0] * s[1], dtype),
                                         .slot = experts.slot,
                                         .R = s[0],
                                         .K = s[4],
                                         .C = s[1],
                                         .T = s[0] * s[4],
                                         .dtype = dtype};
}

static void make_combine(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_combine_forward_args *)args =
        (struct hd_combine_forward_args){.out = bench_tensor(b, s[0] * s[1], dtype),
                                         .inp = bench_tensor(b, s[0] * s[4] * s[1], dtype),
                                         .gate = bench_tensor(b, s[0] * s[4], HD_F32),
                                         .slot = experts.slot,
                                         .R = s[0],
                                         .K = s[4],
                                         .C = s[1],
                                         .T = s[0] * s[4],
                                         .dtype = dtype};
}

static void make_combine_backward(struct bench *b, void *args, const int64_t *s,
                                  enum hd_dtype dtype)
{
    *(struct hd_combine_backward_args *)args =
        (struct hd_combine_backward_args){.dinp = bench_tensor(b, s[0] * s[4] * s[1], dtype),
                                          .dgate = bench_tensor(b, s[0] * s[4], HD_F32),
                                          .dout = bench_tensor(b, s[0] * s[1], dtype),
                                          .inp = bench_tensor(b, s[0] * s[4] * s[1], dtype),
                                          .gate = bench_tensor(b, s[0] * s[4], HD_F32),
                                          .slot = experts.slot,
                                          .R = s[0],
                                          .K = s[4],
                                          .C = s[1],
                                          .T = s[0] * s[4],
                                          .dtype = dtype};
}

/* sizes: rows, N, K, E, 'f' or 'b': a product of the experts, or the gradient of its input */
static void make_experts_gemm(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    const bool forward = s[4] == 'f';

    *(struct hd_grouped_gemm_args *)args =
        (struct hd_grouped_gemm_args){.c = bench_tensor(b, s[0] * s[1], dtype),
                                      .a = bench_tensor(b, s[0] * s[2], dtype),
                                      .b = bench_tensor(b, s[3] * s[1] * s[2], dtype),
                                      .counts = experts.counts,
                                      .E = s[3],
                                      .T = s[0],
                                      .N = s[1],
                                      .K = s[2],
                                      .lda = s[2],
                                      .ldb = forward ? s[2] : s[1],
                                      .ldc = s[1],
                                      .stride_b = s[1] * s[2],
                                      .trans_b = forward,
                                      .ab_dtype = dtype,
                                      .c_dtype = dtype};
}

/* sizes: rows, M, N, E */
static void make_experts_weight(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_grouped_gemm_weight_args *)args =
        (struct hd_grouped_gemm_weight_args){.c = bench_tensor(b, s[3] * s[1] * s[2], HD_F32),
                                             .a = bench_tensor(b, s[0] * s[1], dtype),
                                             .b = bench_tensor(b, s[0] * s[2], dtype),
                                             .counts = experts.counts,
                                             .E = s[3],
                                             .T = s[0],
                                             .M = s[1],
                                             .N = s[2],
                                             .lda = s[1],
                                             .ldb = s[2],
                                             .ldc = s[2],
                                             .stride_c = s[1] * s[2],
                                             .accumulate = true,
                                             .ab_dtype = dtype};
}

static void bench_experts(struct bench *b, const int64_t *sizes)
{
    const int64_t s[] = {bench_size(b, sizes[0]), sizes[1], sizes[2], sizes[3], sizes[4]};
    static const struct {
        enum hd_kernel kernel;
        make_args *make;
        bool computes;
    } all[] = {{HD_K_route_forward, make_route, false},
               {HD_K_permute_forward, make_permute, false},
               {HD_K_combine_forward, make_combine, false},
               {HD_K_combine_backward, make_combine_backward, false},
               {HD_K_grouped_gemm, make_experts_gemm, true},
               {HD_K_grouped_gemm_weight, make_experts_weight, true}};
    /* of gate and up, which are one product here */
    const int64_t product[] = {s[0] * s[4], 2 * s[2], s[1], s[3], 'f'};
    char label[64];

    (void)snprintf(label, sizeof label, "R%lld C%lld F%lld E%lld K%lld", (long long)s[0],
                   (long long)s[1], (long long)s[2], (long long)s[3], (long long)s[4]);
    set_experts(s);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (int type = 0; type < (all[i].kernel == HD_K_route_forward ? 1 : TYPES); type++)
            bench_kernel(b, label, all[i].kernel, all[i].make, all[i].computes ? product : s,
                         (enum hd_dtype)type, all[i].computes);
}

/* ---- whole blocks: their launches, forward and backward, without residual adds ---- */

/* One launch of a block; sizes as `make` reads them. */
struct launch {
    enum hd_kernel kernel;
    make_args *make;
    int64_t sizes[6];
    bool computes;
};

static void bench_block(struct bench *b, const char *block, const char *label,
                        const struct launch *launches, size_t count)
{
    const char *only = b->only;

    if (only && hd_text_starts(block, only))
        b->only = NULL; /* every launch of it, whatever the kernel */
    for (int type = 0; type < (b->smoke ? 1 : TYPES); type++) {
        bench_sum(b, block, label, (enum hd_dtype)type);
        for (size_t i = 0; i < count; i++)
            bench_kernel(b, label, launches[i].kernel, launches[i].make, launches[i].sizes,
                         (enum hd_dtype)type, launches[i].computes);
        bench_sum(b, block, label, (enum hd_dtype)type);
    }
    b->only = only;
}

/* The three products of a linear: Y = X W^T, dX = dY W, dW += dY^T X. */
#define LINEAR(R, out, in)                                     \
    {HD_K_gemm, make_gemm, {(R), (out), (in), 'f'}, true},     \
        {HD_K_gemm, make_gemm, {(R), (in), (out), 'b'}, true}, \
    {                                                          \
        HD_K_gemm, make_gemm, {(out), (in), (R), 'w'}, true    \
    }
#define RMSNORM(R, C)                                                        \
    {HD_K_rmsnorm_forward, make_rmsnorm, {(R), (C)}, false},                 \
        {HD_K_rmsnorm_backward, make_rmsnorm_backward, {(R), (C)}, false},   \
    {                                                                        \
        HD_K_rmsnorm_backward_weight, make_rmsnorm_weight, {(R), (C)}, false \
    }

/* Latent attention as DeepSeek-V2-Lite has it, with half of its width and heads. */
enum { LATENT_C = 1024, LATENT_H = 8, LATENT_RANK = 512, NOPE = 128, ROPE = 64, VALUE = 128 };
enum { WIDTH = NOPE + ROPE };

/* sizes: R, heads, rotated channels behind the others */
static void make_latent_rope(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    const int64_t D = s[2] + ROPE, ld = s[1] * D;

    *(struct hd_rope_args *)args =
        (struct hd_rope_args){.x = bench_tensor(b, s[0] * ld, dtype),
                              .position = positions,
                              .table = bench_tensor(b, s[0] * ROPE, HD_F32),
                              .R = s[0],
                              .H = s[1],
                              .D = D,
                              .P = s[0],
                              .ldx = ld,
                              .rotated = ROPE,
                              .first = s[2],
                              .interleaved = true,
                              .dtype = dtype};
}

static void make_join(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_latent_join_forward_args *)args = (struct hd_latent_join_forward_args){
        .out = bench_tensor(b, s[0] * LATENT_H * 3 * WIDTH, dtype),
        .q = bench_tensor(b, s[0] * LATENT_H * WIDTH, dtype),
        .kv = bench_tensor(b, s[0] * LATENT_H * (NOPE + VALUE), dtype),
        .k_rope = bench_tensor(b, s[0] * ROPE, dtype),
        .R = s[0],
        .H = LATENT_H,
        .nope = NOPE,
        .rope = ROPE,
        .value = VALUE,
        .padded = WIDTH,
        .dtype = dtype};
}

static void make_join_backward(struct bench *b, void *args, const int64_t *s, enum hd_dtype dtype)
{
    *(struct hd_latent_join_backward_args *)args = (struct hd_latent_join_backward_args){
        .dq = bench_tensor(b, s[0] * LATENT_H * WIDTH, dtype),
        .dkv = bench_tensor(b, s[0] * LATENT_H * (NOPE + VALUE), dtype),
        .dk_rope = bench_tensor(b, s[0] * ROPE, dtype),
        .dout = bench_tensor(b, s[0] * LATENT_H * 3 * WIDTH, dtype),
        .R = s[0],
        .H = LATENT_H,
        .nope = NOPE,
        .rope = ROPE,
        .value = VALUE,
        .padded = WIDTH,
        .dtype = dtype};
}

/* The values that attention reads are padded to WIDTH channels. The floor counts the products of the
 * padding, too: a sixth of forward's, two fifteenths of backward's. */
static void bench_latent_block(struct bench *b)
{
    enum { R = 2048 };
    static const struct launch launches[] = {
        RMSNORM(R, LATENT_C),
        LINEAR(R, LATENT_H * WIDTH, LATENT_C),
        LINEAR(R, LATENT_RANK + ROPE, LATENT_C),
        RMSNORM(R, LATENT_RANK),
        LINEAR(R, LATENT_H * (NOPE + VALUE), LATENT_RANK),
        {HD_K_rope, make_latent_rope, {R, LATENT_H, NOPE}, false},
        {HD_K_rope, make_latent_rope, {R, LATENT_H, NOPE}, false},
        {HD_K_rope, make_latent_rope, {R, 1, 0}, false},
        {HD_K_rope, make_latent_rope, {R, 1, 0}, false},
        {HD_K_latent_join_forward, make_join, {R}, false},
        {HD_K_latent_join_backward, make_join_backward, {R}, false},
        {HD_K_attention_forward, make_attention, {1, R, R, LATENT_H, LATENT_H, WIDTH}, true},
        {HD_K_attention_backward,
         make_attention_backward,
         {1, R, R, LATENT_H, LATENT_H, WIDTH},
         true},
        LINEAR(R, LATENT_C, LATENT_H * VALUE)};

    bench_block(b, "latent_block", "R2048 C1024 H8", launches,
                sizeof launches / sizeof launches[0]);
}

/* Products of experts as of a linear: gate, up and down are three. */
#define EXPERTS_LINEAR(T, out, in, E)                                                \
    {HD_K_grouped_gemm, make_experts_gemm, {(T), (out), (in), (E), 'f'}, true},      \
        {HD_K_grouped_gemm, make_experts_gemm, {(T), (in), (out), (E), 'b'}, true},  \
    {                                                                                \
        HD_K_grouped_gemm_weight, make_experts_weight, {(T), (out), (in), (E)}, true \
    }

/* 32 experts, of which a row has 4. */
static void bench_experts_block(struct bench *b)
{
    enum { R = 2048, C = 768, F = 512, E = 32, K = 4 };
    static const int64_t sizes[] = {R, C, F, E, K};
    static const struct launch launches[] = {
        RMSNORM(R, C),
        LINEAR(R, E, C),
        {HD_K_route_forward, make_route, {R, C, F, E, K}, false},
        {HD_K_permute_forward, make_permute, {R, C, F, E, K}, false},
        EXPERTS_LINEAR(R * K, F, C, E),
        EXPERTS_LINEAR(R * K, F, C, E),
        {HD_K_glu_forward, make_glu, {R * K, C, F}, false},
        {HD_K_glu_backward, make_glu_backward, {R * K, C, F}, false},
        EXPERTS_LINEAR(R * K, C, F, E),
        {HD_K_combine_forward, make_combine, {R, C, F, E, K}, false},
        {HD_K_combine_backward, make_combine_backward, {R, C, F, E, K}, false}};

    set_experts(sizes);
    bench_block(b, "experts_block", "R2048 C768 F512 K4", launches,
                sizeof launches / sizeof launches[0]);
}

void bench_all(struct bench *b)
{
    static const int64_t small[] = {4096, 384, 1024, 256}, large[] = {2048, 768, 3072, 50304};
    static const int64_t few[] = {2048, 768, 1024, 8, 2}, many[] = {2048, 768, 256, 64, 8};

    positions = indices(65536, 65536);
    token_index = indices(65536, 251);
    experts.counts = indices(64, 1);
    experts.slot = indices(65536, 1);
    bench_gemm(b, 4096, 384, 384);
    bench_gemm(b, 4096, 2048, 384);
    bench_gemm(b, 2048, 3072, 768);
    bench_gemm(b, 1024, 50304, 768);
    bench_gemm(b, 1, 3072, 768);
    bench_attention(b);
    bench_rows(b, small);
    bench_rows(b, large);
    bench_experts(b, few);
    bench_experts(b, many);
    bench_latent_block(b);
    bench_experts_block(b);
    free(positions);
    free(token_index);
    free(experts.counts);
    free(experts.slot);
}
