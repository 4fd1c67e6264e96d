/* cost: the planner may trust the counts. One launch per stem is counted by hand, at sizes small
 * enough to check on paper. */
#include <string.h>

#include "tests/unit/kernels/cost.h"

static char given; /* a pointer that is there; costs never look behind it */

static void gemm_reads_both_factors_and_writes_the_product(void **state)
{
    struct hd_gemm_args a = {
        .M = 2, .N = 3, .K = 5, .ab_dtype = HD_BF16, .c_dtype = HD_F32, .bias = &given};

    /* a 2*5, b 5*3 and the bias 3 of two bytes, c 2*3 of four; 2*3*5 multiply-adds */
    check(cost_of(HD_K_gemm, &a), 60, 2 * (10 + 15 + 3), 4 * 6);
    a.bias = NULL;
    a.accumulate = true; /* c is read too */
    check(cost_of(HD_K_gemm, &a), 60, 2 * (10 + 15) + 4 * 6, 4 * 6);
    a.accumulate = false;
    a.add = &given; /* as large as c */
    check(cost_of(HD_K_gemm, &a), 60, 2 * (10 + 15) + 4 * 6, 4 * 6);
}

/* GELU costs what it costs alone, but for the matrix that the pair would write and read again. */
static void a_fused_gelu_moves_one_matrix_more(void **state)
{
    struct hd_gemm_args a = {.M = 2, .N = 3, .K = 5, .ab_dtype = HD_BF16, .c_dtype = HD_BF16};

    a.epilogue = HD_EPILOGUE_GELU;
    check(cost_of(HD_K_gemm, &a), 60 + 9 * 6, 2 * (10 + 15), 2 * 6);
    a.pre = &given; /* kept for backward */
    check(cost_of(HD_K_gemm, &a), 60 + 9 * 6, 2 * (10 + 15), 2 * (6 + 6));
    a.pre = NULL;
    a.gelu_inp = &given;
    a.epilogue = HD_EPILOGUE_GELU_BACKWARD;
    check(cost_of(HD_K_gemm, &a), 60 + 18 * 6, 2 * (10 + 15 + 6), 2 * 6);
}

/* 16 x 48 from a depth of 32: codes are bytes, a factor is a float. Scratch on the CPU: both
 * factors as bf16, aligned, and what a GEMM of those needs. */
static void products_of_fp8_read_bytes(void **state)
{
    struct hd_fp8_gemm_args a = {.M = 16, .N = 48, .K = 32, .bias = &given, .c_dtype = HD_BF16};
    const struct hd_gemm_args wide = {.M = 16,
                                      .N = 48,
                                      .K = 32,
                                      .lda = 32,
                                      .ldb = 32,
                                      .ldc = 48,
                                      .trans_b = true,
                                      .ab_dtype = HD_BF16,
                                      .c_dtype = HD_BF16};
    const struct hd_traits traits = {.threads = 1};
    uint8_t byte;
    const struct hd_fp8_encode_args e = {.code = &byte, .R = 3, .C = 5};
    const struct hd_fp8_encode_args twice = {.code = &byte, .transposed = &byte, .R = 3, .C = 5};
    const struct hd_fp8_amax_args present = {.N = 15};
    const struct hd_fp8_amax_args old = {.N = 15, .history = (float *)&given, .history_len = 4};
    const struct hd_fp8_history_args h = {.N = 6, .history_len = 4};
    struct hd_glu_forward_args glu = {.R = 3,
                                      .F = 5,
                                      .act = HD_ACT_SILU,
                                      .dtype = HD_BF16,
                                      .code = &byte,
                                      .code_t = &byte,
                                      .history_len = 4};

    check(cost_of(HD_K_fp8_gemm, &a), 2 * 16 * 48 * 32, 16 * 32 + 48 * 32 + 2 * 48 + 8,
          2 * 16 * 48);
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_fp8_gemm, &a, &traits),
                     2 * 16 * 32 + 2 * 48 * 32 +
                         hd_kernel_scratch_bytes(HD_K_gemm, &wide, &traits));
    a.bias = NULL;
    a.add = &given;
    check(cost_of(HD_K_fp8_gemm, &a), 2 * 16 * 48 * 32, 16 * 32 + 48 * 32 + 8 + 2 * 16 * 48,
          2 * 16 * 48);
    a.add = NULL;
    a.accumulate = true;
    a.c_dtype = HD_F32;
    check(cost_of(HD_K_fp8_gemm, &a), 2 * 16 * 48 * 32, 16 * 32 + 48 * 32 + 8 + 4 * 16 * 48,
          4 * 16 * 48);
    check(cost_of(HD_K_fp8_encode, &e), 30, 2 * 15 + 4 * HD_AMAX_PARTS, 15 + 4);
    check(cost_of(HD_K_fp8_encode, &twice), 30, 2 * 15 + 4 * HD_AMAX_PARTS, 2 * 15 + 4);
    check(cost_of(HD_K_fp8_amax, &present), 15, 2 * 15, 4 * HD_AMAX_PARTS);
    check(cost_of(HD_K_fp8_amax, &old), 4, 4 * 4, 4 * HD_AMAX_PARTS);
    check(cost_of(HD_K_fp8_history, &h), 0, 4 * 24, 4 * 24);
    /* 3 x 5 of SwiGLU: 5 operations an element and 2 for its codes, in two orders; then the result,
     * in bf16, is not written */
    check(cost_of(HD_K_glu_forward, &glu), 7 * 15, 2 * 30 + 4 * 4, 2 * 15 + 2 * 15 + 4);
    glu.codes_only = true;
    check(cost_of(HD_K_glu_forward, &glu), 7 * 15, 2 * 30 + 4 * 4, 2 * 15 + 4);
}

/* Who has GELU in the product's pass: own code on any device; of libraries that of a GPU, where
 * rows are multiples of 8 of the factors' type. */
static void epilogues_are_taken_where_they_save_a_pass(void **state)
{
    struct hd_traits cpu = {.threads = 1, .bf16_products = HD_BF16_PAIRS, .own_bf16 = true};
    struct hd_traits gpu = {.multiprocessors = 132};
    struct hd_gemm_args a = {.M = 4,
                             .N = 16,
                             .K = 16,
                             .ldc = 16,
                             .epilogue = HD_EPILOGUE_GELU,
                             .ab_dtype = HD_F32,
                             .c_dtype = HD_F32};

    assert_true(hd_gemm_takes_epilogue(&a, &cpu)); /* no library */
    assert_true(hd_gemm_takes_epilogue(&a, &gpu));
    cpu.gemm_scratch_bytes = gpu.gemm_scratch_bytes = 1;
    assert_false(hd_gemm_takes_epilogue(&a, &cpu)); /* fp32 is the library's */
    assert_true(hd_gemm_takes_epilogue(&a, &gpu));
    a.ab_dtype = a.c_dtype = HD_BF16; /* and bf16 own code's */
    assert_true(hd_gemm_takes_epilogue(&a, &cpu));
    assert_true(hd_gemm_takes_epilogue(&a, &gpu));
    a.ldc = 12;
    assert_true(hd_gemm_takes_epilogue(&a, &cpu));
    assert_false(hd_gemm_takes_epilogue(&a, &gpu));
    a.ldc = 16;
    a.c_dtype = HD_F32;
    assert_false(hd_gemm_takes_epilogue(&a, &gpu));
    /* A gated activation needs a setting, and rows of c behind each other: N / 2 of N columns. */
    a = (struct hd_gemm_args){.M = 4,
                              .N = 16,
                              .K = 16,
                              .lda = 16,
                              .ldb = 16,
                              .ldc = 8,
                              .trans_b = true,
                              .epilogue = HD_EPILOGUE_GLU,
                              .act = HD_ACT_SILU,
                              .ab_dtype = HD_BF16,
                              .c_dtype = HD_BF16};
    assert_false(hd_gemm_takes_epilogue(&a, &gpu));
    (void)strcpy(gpu.isa, "sm_90_cuda_12.8_glu");
    assert_true(hd_gemm_takes_epilogue(&a, &gpu));
    a.ldc = 16;
    assert_false(hd_gemm_takes_epilogue(&a, &gpu));
    /* A residual is added by a GPU's own code and by its library. */
    gpu.gemm_scratch_bytes = 0;
    a.epilogue = HD_EPILOGUE_NONE;
    a.add = &given;
    assert_true(hd_gemm_takes_epilogue(&a, &gpu));
    gpu.gemm_scratch_bytes = 1;
    assert_true(hd_gemm_takes_epilogue(&a, &gpu));
    assert_false(hd_gemm_takes_epilogue(&a, &cpu));
    cpu.gemm_scratch_bytes = 0;
    assert_false(hd_gemm_takes_epilogue(&a, &cpu));
}

static void bias_backward_reads_each_row_once(void **state)
{
    const struct hd_bias_backward_args a = {.R = 10, .N = 3, .ldd = 7, .dtype = HD_F32};

    check(cost_of(HD_K_bias_backward, &a), 30, 4 * 30, 4 * 3);
}

static void embedding_touches_only_named_rows(void **state)
{
    const struct hd_embedding_forward_args f = {
        .R = 4, .C = 3, .V = 100, .index2 = (const int32_t *)&given, .dtype = HD_BF16};
    struct hd_embedding_backward_args b = {.R = 4, .C = 3, .V = 100, .dtype = HD_BF16};

    /* from each table 4 rows of 3 and 4 indices; one add per element */
    check(cost_of(HD_K_embedding_forward, &f), 12, 2 * (4 * 3 * 2 + 4 * 4), 4 * 3 * 2);
    /* stored: dout and indices in, the whole table of 100 rows out */
    check(cost_of(HD_K_embedding_backward, &b), 12, 4 * 3 * 2 + 4 * 4, 100 * 3 * 4);
    b.accumulate = true; /* added: at most 4 rows in and out */
    check(cost_of(HD_K_embedding_backward, &b), 12, 4 * 3 * 2 + 4 * 4 + 4 * 3 * 4, 4 * 3 * 4);
}

static void rmsnorm_moves_each_byte_once(void **state)
{
    struct hd_rmsnorm_forward_args a = {.R = 6, .C = 8, .eps = 1e-5f, .dtype = HD_F32};
    const struct hd_rmsnorm_backward_args b = {.R = 6, .C = 8, .dtype = HD_BF16};
    const struct hd_rmsnorm_backward_weight_args w = {.R = 6, .C = 8, .dtype = HD_BF16};
    struct hd_rmsnorm_backward_args both = b;
    float sum;

    /* reads inp 6*8 and weight 8, writes out 6*8 and rstd 6, four bytes each */
    check(cost_of(HD_K_rmsnorm_forward, &a), 4 * 48, 4 * (48 + 8), 4 * (48 + 6));
    a.add = &given;
    a.sum = &given;
    check(cost_of(HD_K_rmsnorm_forward, &a), 5 * 48, 4 * (2 * 48 + 8), 4 * (2 * 48 + 6));
    /* dout, inp and weight of two bytes, rstd of four; dinp out */
    check(cost_of(HD_K_rmsnorm_backward, &b), 7 * 48, 2 * (2 * 48 + 8) + 4 * 6, 2 * 48);
    check(cost_of(HD_K_rmsnorm_backward_weight, &w), 3 * 48, 2 * 2 * 48 + 4 * 6, 4 * 8);
    /* both in one pass: dout, inp and rstd once; one product and one addition more */
    both.dweight = &sum;
    check(cost_of(HD_K_rmsnorm_backward, &both), 9 * 48, 2 * (2 * 48 + 8) + 4 * 6, 2 * 48 + 4 * 8);
    both.accumulate = true;
    check(cost_of(HD_K_rmsnorm_backward, &both), 9 * 48, 2 * (2 * 48 + 8) + 4 * 6 + 4 * 8,
          2 * 48 + 4 * 8);
    a.one_plus = true; /* the same tensors */
    check(cost_of(HD_K_rmsnorm_forward, &a), 5 * 48, 4 * (2 * 48 + 8), 4 * (2 * 48 + 6));
}

static void layernorm_moves_each_byte_once(void **state)
{
    struct hd_layernorm_forward_args a = {
        .weight = &given, .R = 6, .C = 8, .bias = &given, .dtype = HD_F32};
    struct hd_layernorm_backward_args b = {
        .weight = &given, .R = 6, .C = 8, .add = &given, .dtype = HD_F32};
    float sum;
    struct hd_layernorm_backward_weight_args w = {
        .R = 6, .C = 8, .dbias = &sum, .accumulate = true, .dtype = HD_F32};
    struct hd_layernorm_backward_args both = b;

    /* inp, weight and bias in; out, mean and rstd out */
    check(cost_of(HD_K_layernorm_forward, &a), 7 * 48, 4 * (48 + 2 * 8), 4 * (48 + 2 * 6));
    /* dout, inp, add, weight, mean and rstd in; dinp out */
    check(cost_of(HD_K_layernorm_backward, &b), 11 * 48, 4 * (3 * 48 + 8 + 2 * 6), 4 * 48);
    /* dout, inp, mean, rstd and the two gradients in; the gradients out */
    check(cost_of(HD_K_layernorm_backward_weight, &w), 5 * 48, 4 * (2 * 48 + 2 * 6 + 2 * 8),
          4 * 2 * 8);
    /* in one pass: a product and two additions more, two gradients in and out */
    both.dweight = both.dbias = &sum;
    both.accumulate = true;
    check(cost_of(HD_K_layernorm_backward, &both), 14 * 48, 4 * (3 * 48 + 8 + 2 * 6 + 2 * 8),
          4 * (48 + 2 * 8));
    /* without a bias: an addition, a vector, and in backward a sum and its vector less */
    a.bias = NULL;
    check(cost_of(HD_K_layernorm_forward, &a), 6 * 48, 4 * (48 + 8), 4 * (48 + 2 * 6));
    w.dbias = both.dbias = NULL;
    check(cost_of(HD_K_layernorm_backward_weight, &w), 4 * 48, 4 * (2 * 48 + 2 * 6 + 8), 4 * 8);
    check(cost_of(HD_K_layernorm_backward, &both), 13 * 48, 4 * (3 * 48 + 8 + 2 * 6 + 8),
          4 * (48 + 8));
    /* without a weight: a product and a vector less */
    a.weight = b.weight = NULL;
    check(cost_of(HD_K_layernorm_forward, &a), 5 * 48, 4 * 48, 4 * (48 + 2 * 6));
    check(cost_of(HD_K_layernorm_backward, &b), 10 * 48, 4 * (3 * 48 + 2 * 6), 4 * 48);
}

static void head_norm_norms_queries_and_keys_and_copies_values(void **state)
{
    struct hd_head_norm_forward_args a = {.q_weight = &given,
                                          .k_weight = &given,
                                          .R = 5,
                                          .H = 3,
                                          .G = 2,
                                          .D = 8,
                                          .eps = 1e-5f,
                                          .dtype = HD_F32};
    struct hd_head_norm_backward_args b = {
        .q_weight = &given, .k_weight = &given, .R = 5, .H = 3, .G = 2, .D = 8, .dtype = HD_F32};
    const struct hd_head_norm_backward_weight_args w = {
        .R = 5, .H = 3, .G = 2, .D = 8, .accumulate = true, .dtype = HD_F32};

    /* 5*5 heads of 8 are normed, 5*2 copied; two weights of 8; 25 rstd */
    check(cost_of(HD_K_head_norm_forward, &a), 4 * 200, 4 * (280 + 16), 4 * (280 + 25));
    /* dout of all, inp of the normed, weights and rstd in; dinp out */
    check(cost_of(HD_K_head_norm_backward, &b), 7 * 200, 4 * (280 + 200 + 16 + 25), 4 * 280);
    /* dout and inp of the normed, rstd and the two gradients in; the gradients out */
    check(cost_of(HD_K_head_norm_backward_weight, &w), 3 * 200, 4 * (2 * 200 + 25 + 16), 4 * 16);
    /* without weights: a multiplication, and the two vectors, less */
    a.q_weight = a.k_weight = b.q_weight = b.k_weight = NULL;
    check(cost_of(HD_K_head_norm_forward, &a), 3 * 200, 4 * 280, 4 * (280 + 25));
    check(cost_of(HD_K_head_norm_backward, &b), 6 * 200, 4 * (280 + 200 + 25), 4 * 280);
}

/* The counts of layernorm without a bias, with 3 + 2 vectors of 8 weights and two statistics. */
static void head_norm_centers_with_a_weight_for_each_head(void **state)
{
    const struct hd_head_norm_forward_args a = {.q_weight = &given,
                                                .k_weight = &given,
                                                .R = 5,
                                                .H = 3,
                                                .G = 2,
                                                .D = 8,
                                                .layer = true,
                                                .dtype = HD_F32};
    const struct hd_head_norm_backward_args b = {.q_weight = &given,
                                                 .k_weight = &given,
                                                 .R = 5,
                                                 .H = 3,
                                                 .G = 2,
                                                 .D = 8,
                                                 .layer = true,
                                                 .dtype = HD_F32};
    const struct hd_head_norm_backward_weight_args w = {
        .R = 5, .H = 3, .G = 2, .D = 8, .layer = true, .dtype = HD_F32};

    check(cost_of(HD_K_head_norm_forward, &a), 6 * 200, 4 * (280 + 40), 4 * (280 + 50));
    check(cost_of(HD_K_head_norm_backward, &b), 10 * 200, 4 * (280 + 200 + 40 + 50), 4 * 280);
    check(cost_of(HD_K_head_norm_backward_weight, &w), 4 * 200, 4 * (2 * 200 + 50), 4 * 40);
}

/* R 5, H 3, G 2, D 8: 5*5*8 = 200 channels of q and k, 5*2*8 = 80 of v; weights of 5*8 = 40; two
 * statistics a row, 10. */
static void qk_norm_reads_its_sums_or_adds_them(void **state)
{
    const float *sums = (const float *)&given;
    struct hd_qk_norm_sums_args s = {.R = 5, .H = 3, .G = 2, .D = 8, .dtype = HD_BF16};
    struct hd_qk_norm_forward_args f = {.q_weight = &given,
                                        .k_weight = &given,
                                        .R = 5,
                                        .H = 3,
                                        .G = 2,
                                        .D = 8,
                                        .ranks = 1,
                                        .dtype = HD_BF16};
    struct hd_qk_norm_backward_args b = {.q_weight = &given,
                                         .k_weight = &given,
                                         .R = 5,
                                         .H = 3,
                                         .G = 2,
                                         .D = 8,
                                         .ranks = 1,
                                         .dtype = HD_BF16};
    const struct hd_qk_norm_backward_weight_args w = {
        .R = 5, .H = 3, .G = 2, .D = 8, .accumulate = true, .dtype = HD_BF16};

    /* squares: a multiplication and an addition; with dout and a weight one multiplication more */
    check(cost_of(HD_K_qk_norm_sums, &s), 2 * 200, 2 * 200, 4 * 10);
    s.dout = s.q_weight = s.k_weight = &given;
    check(cost_of(HD_K_qk_norm_sums, &s), 3 * 200, 2 * (2 * 200 + 40), 4 * 10);
    /* as head_norm; with the sums given two operations less, and the sums in */
    check(cost_of(HD_K_qk_norm_forward, &f), 4 * 200, 2 * (280 + 40), 2 * 280 + 4 * 10);
    f.sums = sums;
    check(cost_of(HD_K_qk_norm_forward, &f), 2 * 200, 2 * (280 + 40) + 4 * 10, 2 * 280 + 4 * 10);
    check(cost_of(HD_K_qk_norm_backward, &b), 7 * 200, 2 * (2 * 200 + 80 + 40) + 4 * 10, 2 * 280);
    b.sums = sums;
    check(cost_of(HD_K_qk_norm_backward, &b), 5 * 200, 2 * (2 * 200 + 80 + 40) + 4 * 20, 2 * 280);
    check(cost_of(HD_K_qk_norm_backward_weight, &w), 3 * 200, 2 * 2 * 200 + 4 * 10 + 4 * 40,
          4 * 40);
}

static void rope_reads_and_writes_x_and_a_table_row_per_row(void **state)
{
    struct hd_rope_args a = {.R = 5, .H = 3, .D = 4, .P = 100, .ldx = 20, .dtype = HD_BF16};

    /* 5*3*2 pairs of 6 operations; x in and out; per row an index and 4 floats of the table */
    check(cost_of(HD_K_rope, &a), 5 * 3 * 2 * 6, 2 * 60 + 5 * (4 + 16), 2 * 60);
    a.rotated = 2; /* one pair of a head: half of x, and 2 floats of the table */
    a.first = 1;
    check(cost_of(HD_K_rope, &a), 5 * 3 * 6, 2 * 30 + 5 * (4 + 8), 2 * 30);
}

static void a_factor_of_queries_is_one_product(void **state)
{
    const struct hd_query_factor_args a = {.R = 5, .N = 12, .P = 9, .ldx = 20, .dtype = HD_BF16};

    /* 5*12 elements in and out; per row an index and a factor */
    check(cost_of(HD_K_query_factor, &a), 60, 2 * 60 + 5 * (4 + 4), 2 * 60);
}

static void latent_rows_are_read_and_written_once(void **state)
{
    const struct hd_latent_join_forward_args f = {
        .R = 5, .H = 3, .nope = 6, .rope = 2, .value = 4, .padded = 8, .dtype = HD_BF16};
    const struct hd_latent_join_backward_args b = {
        .R = 5, .H = 3, .nope = 6, .rope = 2, .value = 4, .padded = 8, .dtype = HD_BF16};

    /* per row: q 3*8, kv 3*(6+4) and the shared 2 in; 3*(8+8+8) out */
    check(cost_of(HD_K_latent_join_forward, &f), 0, 2 * 5 * (24 + 30 + 2), 2 * 5 * 72);
    /* dout without padding in, and without q: 3*(8+4); 3*(6+4) and 2 out; an add per shared
     * channel and head */
    check(cost_of(HD_K_latent_join_backward, &b), 5 * 3 * 2, 2 * 5 * 36, 2 * 5 * (30 + 2));
}

static void attention_counts_visible_pairs(void **state)
{
    struct hd_attention_forward_args f = {.B = 2,
                                          .q_len = 4,
                                          .kv_len = 4,
                                          .kv_stride = 4,
                                          .H = 2,
                                          .G = 1,
                                          .D = 8,
                                          .causal = true,
                                          .dtype = HD_BF16};
    struct hd_attention_backward_args b = {.B = 1,
                                           .q_len = 4,
                                           .kv_len = 4,
                                           .kv_stride = 4,
                                           .H = 2,
                                           .G = 2,
                                           .D = 8,
                                           .dtype = HD_F32,
                                           .grad_dtype = HD_F32};

    /* 1+2+3+4 pairs, 2 sequences, 2 heads, two products of 2*8 each. q and out 2*4*16, k and v
     * 2*4*8 of two bytes; 8 indices of queries and 8 of keys; lse 2*8 of four bytes. */
    check(cost_of(HD_K_attention_forward, &f), 10 * 2 * 2 * 32, 2 * (128 + 2 * 64) + 4 * 16,
          2 * 128 + 4 * 16);
    f.window = 2; /* 1+2+2+2 pairs */
    assert_int_equal((int64_t)cost_of(HD_K_attention_forward, &f).flops, 7 * 2 * 2 * 32);
    f.window = 0;
    f.q_len = 1; /* decoding: one query sees all 4 keys */
    assert_int_equal((int64_t)cost_of(HD_K_attention_forward, &f).flops, 4 * 2 * 2 * 32);
    f.chunk = 3; /* the 4th position sees its chunk, which begins with it */
    assert_int_equal((int64_t)cost_of(HD_K_attention_forward, &f).flops, 1 * 2 * 2 * 32);
    f.q_len = 4; /* 1+2+3+1 pairs; with a window of 2: 1+2+2+1 */
    assert_int_equal((int64_t)cost_of(HD_K_attention_forward, &f).flops, 7 * 2 * 2 * 32);
    f.window = 2;
    assert_int_equal((int64_t)cost_of(HD_K_attention_forward, &f).flops, 6 * 2 * 2 * 32);
    f.window = f.chunk = 0;
    f.q_len = 1;
    f.pairs = 3; /* what whoever cuts a sequence knows better */
    assert_int_equal((int64_t)cost_of(HD_K_attention_forward, &f).flops, 3 * 2 * 2 * 32);
    f.pairs = 0;
    f.causal = false;
    f.q_len = 4;
    assert_int_equal((int64_t)cost_of(HD_K_attention_forward, &f).flops, 16 * 2 * 2 * 32);
    /* 16 pairs, 2 heads, five products; q, dout, out, k, v 4*16 each, lse 2*4, 8 indices in; dq,
     * dk, dv out */
    check(cost_of(HD_K_attention_backward, &b), 16 * 2 * 5 * 16, 4 * (5 * 64 + 8 + 8), 4 * 3 * 64);
    b.sample = (const int32_t *)&given; /* with dropout 4 numbers of samples more */
    assert_int_equal(cost_of(HD_K_attention_backward, &b).read_bytes, 4 * (5 * 64 + 8 + 8 + 4));
    b.pairs = 7;
    assert_int_equal((int64_t)cost_of(HD_K_attention_backward, &b).flops, 7 * 2 * 5 * 16);
}

static void attention_merge_moves_the_block_and_the_sum(void **state)
{
    struct hd_attention_merge_args a = {.R = 6, .H = 2, .D = 8, .dtype = HD_BF16};

    /* 96 elements, 12 pairs of row and head: block, acc and both lse in; acc and lse out */
    check(cost_of(HD_K_attention_merge, &a), 3 * 96, 96 * (2 + 4) + 12 * 8, 96 * 4 + 12 * 4);
    a.out = &given;
    check(cost_of(HD_K_attention_merge, &a), 3 * 96, 96 * (2 + 4) + 12 * 8, 96 * 2 + 12 * 4);
    a.first = true;
    a.out = NULL;
    check(cost_of(HD_K_attention_merge, &a), 0, 96 * 2 + 12 * 4, 96 * 4 + 12 * 4);
}

static void attention_sinks_move_the_result_once(void **state)
{
    const struct hd_attention_sink_forward_args f = {.R = 6, .H = 2, .D = 8, .dtype = HD_BF16};
    const struct hd_attention_sink_backward_args b = {.R = 6, .H = 2, .D = 8, .dtype = HD_BF16};

    /* 96 elements, 12 pairs of row and head, 2 sinks: a product each; out and lse in and out */
    check(cost_of(HD_K_attention_sink_forward, &f), 96, 96 * 2 + 12 * 4 + 2 * 2, 96 * 2 + 12 * 4);
    /* a product and a sum each; dout, out, lse and the sinks in, a number per row and head out */
    check(cost_of(HD_K_attention_sink_backward, &b), 2 * 96, 2 * 96 * 2 + 12 * 4 + 2 * 2, 12 * 4);
}

static void cache_append_moves_the_new_rows(void **state)
{
    const struct hd_cache_append_args a = {
        .B = 2, .rows = 100, .new_rows = 3, .N = 5, .ldi = 9, .ldc = 9, .dtype = HD_BF16};

    /* two sequences of 3 rows of 5 values of 2 bytes; `filled` and `slot` of each */
    check(cost_of(HD_K_cache_append, &a), 0, 2 * 2 * 3 * 5 + 2 * 2 * 4, 2 * 2 * 3 * 5);
}

static void activations_move_each_element_once(void **state)
{
    /* glu: the activation and its product with up; backward: the slope's, then dout up, one
     * product for act(gate), and dup. erf: exp(-x x / 2) 3, t 3, polynomial 16, bell, t and 1 -
     * tail 3, x 1. oss: clamps 3, alpha g, sigmoid 3, u + 1, two products; backward 8 of these, 6
     * for dgate, 2 for dup, 3 comparisons. */
    static const struct {
        enum hd_activation act;
        int glu, dglu, alone, dalone;
    } others[] = {{HD_ACT_GELU_TANH, 9 + 1, 18 + 3, 9, 18},
                  {HD_ACT_GELU_ERF, 26 + 1, 29 + 3, 26, 29},
                  {HD_ACT_RELU2, 2 + 1, 3 + 3, 2, 3},
                  {HD_ACT_RELU, 1 + 1, 2 + 3, 1, 2},
                  {HD_ACT_OSS, 10, 19, 0, 0}};
    struct hd_glu_forward_args sf = {.R = 3, .F = 5, .dtype = HD_F32};
    struct hd_glu_backward_args sb = {.R = 3, .F = 5, .dtype = HD_F32};
    struct hd_activation_forward_args gf = {.N = 7, .act = HD_ACT_GELU_TANH, .dtype = HD_BF16};
    struct hd_activation_backward_args gb = {.N = 7, .act = HD_ACT_GELU_TANH, .dtype = HD_BF16};

    check(cost_of(HD_K_glu_forward, &sf), 5 * 15, 4 * 30, 4 * 15);
    check(cost_of(HD_K_glu_backward, &sb), 11 * 15, 4 * (15 + 30), 4 * 30);
    check(cost_of(HD_K_activation_forward, &gf), 9 * 7, 2 * 7, 2 * 7);
    check(cost_of(HD_K_activation_backward, &gb), 18 * 7, 2 * 14, 2 * 7);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        sf.act = sb.act = gf.act = gb.act = others[i].act;
        check(cost_of(HD_K_glu_forward, &sf), others[i].glu * 15, 4 * 30, 4 * 15);
        check(cost_of(HD_K_glu_backward, &sb), others[i].dglu * 15, 4 * 45, 4 * 30);
        if (!others[i].alone)
            continue;
        check(cost_of(HD_K_activation_forward, &gf), others[i].alone * 7, 2 * 7, 2 * 7);
        check(cost_of(HD_K_activation_backward, &gb), others[i].dalone * 7, 2 * 14, 2 * 7);
    }
}

/* Goal: partial sums cost an addition for each value that is stored and, in fp32, a row for each 32
 * rows or less (of few rows): 3 for 70. Who adds them up reads them in place of the rows. */
static void sums_of_rows_are_counted_where_they_are_made_and_read(void **state)
{
    enum { R = 70, C = 8, N = R * C };
    float sums;
    const struct hd_rmsnorm_backward_args r = {.sums = &sums, .R = R, .C = C, .dtype = HD_BF16};
    const struct hd_layernorm_backward_args l = {.sums = &sums, .R = R, .C = C, .dtype = HD_BF16};
    const struct hd_activation_backward_args a = {
        .sums = &sums, .N = N, .R = R, .act = HD_ACT_RELU, .dtype = HD_BF16};
    const struct hd_bias_backward_args b = {
        .sums = &sums, .R = R, .N = C, .P = 3, .accumulate = true, .dtype = HD_BF16};
    const struct hd_traits gpu = {.multiprocessors = 132}, cpu = {.threads = 1};

    assert_int_equal(hd_row_sums_count(&gpu, R), 3);
    check(cost_of(HD_K_rmsnorm_backward, &r), (7 + 1) * N, 2 * (2 * N + C) + 4 * R,
          2 * N + 4 * 3 * C);
    check(cost_of(HD_K_layernorm_backward, &l), (9 + 1) * N, 2 * 2 * N + 4 * 2 * R,
          2 * N + 4 * 3 * C);
    check(cost_of(HD_K_activation_backward, &a), (2 + 1) * N, 2 * 2 * N, 2 * N + 4 * 3 * C);
    check(cost_of(HD_K_bias_backward, &b), 3 * C, 4 * (3 * C + C), 4 * C);
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_bias_backward, &b, &gpu), 0);
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_bias_backward, &b, &cpu), 0);
}

static void a_bound_costs_two_comparisons(void **state)
{
    const struct hd_clamp_forward_args f = {.N = 9, .limit = 2, .dtype = HD_BF16};
    const struct hd_clamp_backward_args b = {.N = 9, .limit = 2, .dtype = HD_BF16};

    check(cost_of(HD_K_clamp_forward, &f), 2 * 9, 2 * 9, 2 * 9);
    check(cost_of(HD_K_clamp_backward, &b), 2 * 9, 2 * 2 * 9, 2 * 9);
}

/* A factor is one product more: of an added residual, of an embedded row, of its gradient. */
static void a_factor_costs_one_operation(void **state)
{
    struct hd_add_args a = {.N = 9, .factor = 1, .dtype = HD_BF16};
    struct hd_embedding_forward_args ef = {.R = 3, .C = 4, .V = 9, .dtype = HD_F32};
    struct hd_embedding_backward_args eb = {.R = 3, .C = 4, .V = 9, .dtype = HD_F32};
    struct hd_rmsnorm_forward_args rms = {.add = &given, .R = 3, .C = 4, .dtype = HD_F32};
    struct hd_layernorm_forward_args layer = {
        .add = &given, .weight = &given, .bias = &given, .R = 3, .C = 4, .dtype = HD_F32};

    assert_true(cost_of(HD_K_add, &a).flops == 9);
    assert_true(cost_of(HD_K_embedding_forward, &ef).flops == 0);
    assert_true(cost_of(HD_K_embedding_backward, &eb).flops == 12);
    assert_true(cost_of(HD_K_rmsnorm_forward, &rms).flops == 5 * 12);
    assert_true(cost_of(HD_K_layernorm_forward, &layer).flops == 8 * 12);
    a.factor = ef.scale = eb.scale = rms.factor = layer.factor = 0.5f;
    assert_true(cost_of(HD_K_add, &a).flops == 18);
    assert_true(cost_of(HD_K_embedding_forward, &ef).flops == 12);
    assert_true(cost_of(HD_K_embedding_backward, &eb).flops == 24);
    assert_true(cost_of(HD_K_rmsnorm_forward, &rms).flops == 6 * 12);
    assert_true(cost_of(HD_K_layernorm_forward, &layer).flops == 9 * 12);
}

static void a_row_gate_moves_each_element_once(void **state)
{
    const struct hd_row_gate_forward_args f = {.R = 3, .C = 4, .dtype = HD_BF16};
    const struct hd_row_gate_backward_args b = {.R = 3, .C = 4, .dtype = HD_BF16};

    check(cost_of(HD_K_row_gate_forward, &f), 12, 2 * (12 + 3), 2 * 12);
    check(cost_of(HD_K_row_gate_backward, &b), 3 * 12, 2 * (24 + 3), 2 * (12 + 3));
}

/* With a factor: one product per logit and pass, but none for the gradient, whose row has it. With
 * a cap: factor, 2u, exp, + 1, 2 / , 1 - and the product with the cap; for the gradient 1 - t t and
 * its product. */
static void mapped_logits_cost_their_map(void **state)
{
    static const struct {
        struct hd_logit_map map;
        int map_flops, gradient_flops;
    } cases[] = {{{1, 0}, 0, 0}, {{0.5f, 0}, 1, 1}, {{0, 30}, 7, 7 + 3}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int m = cases[i].map_flops, g = cases[i].gradient_flops;
        struct hd_map_logits_args a = {.N = 6, .map = cases[i].map, .dtype = HD_F32};
        struct hd_cross_entropy_args c = {
            .R = 2, .V = 3, .Vp = 4, .map = cases[i].map, .dtype = HD_F32};
        struct hd_cross_entropy_stats_args s = {
            .R = 2, .V = 3, .Vp = 4, .map = cases[i].map, .dtype = HD_F32};
        struct hd_cross_entropy_shared_args h = {
            .dlogits = &given, .R = 2, .V = 3, .Vp = 4, .P = 2, .map = cases[i].map};

        check(cost_of(HD_K_map_logits, &a), 6 * m, 24, 24);
        assert_true(cost_of(HD_K_cross_entropy, &c).flops == 6 * (4 + m));
        c.dlogits = &given;
        assert_true(cost_of(HD_K_cross_entropy, &c).flops == 6 * (4 + m + 3 + g));
        assert_true(cost_of(HD_K_cross_entropy_stats, &s).flops == 6 * (4 + m));
        assert_true(cost_of(HD_K_cross_entropy_shared, &h).flops == 6 * (3 + g));
    }
}

static void add_cast_and_zero_move_their_elements(void **state)
{
    const struct hd_add_args a = {.N = 9, .dtype = HD_BF16};
    const struct hd_cast_args c = {.N = 9, .out_dtype = HD_BF16, .inp_dtype = HD_F32};
    const struct hd_zero_args z = {.size_bytes = 123};

    check(cost_of(HD_K_add, &a), 9, 2 * 18, 18);
    check(cost_of(HD_K_cast, &c), 0, 36, 18);
    check(cost_of(HD_K_zero, &z), 0, 0, 123);
}

static void norms_of_rows_read_the_weight_once(void **state)
{
    struct hd_dora_squares_args s = {.N = 6, .K = 20, .r = 3, .dtype = HD_BF16};
    const struct hd_dora_inverse_args i = {.N = 6};
    const struct hd_dora_scale_args f = {.R = 5, .N = 6, .ldo = 9, .ldi = 9, .dtype = HD_BF16};
    struct hd_dora_backward_args b = {.R = 5, .N = 6, .ldd = 9, .ldi = 9, .dtype = HD_BF16};

    /* a row: 20 squares and their sum, and for each of 3 columns of B 3 products with G, and 4
     * more; W and B of two bytes, P and G of four */
    check(cost_of(HD_K_dora_squares, &s), 6 * (40 + 3 * (6 + 4)),
          2 * 6 * 20 + 2 * 6 * 3 + 4 * 6 * 3 + 4 * 9, 4 * 6);
    s.codes =
        (struct hd_quant_factor){.quant = HD_QUANT_INT8}; /* bytes, and a scale for each row */
    check(cost_of(HD_K_dora_squares, &s), 6 * (40 + 3 * (6 + 4)),
          6 * 20 + 4 * 6 + 2 * 6 * 3 + 4 * 6 * 3 + 4 * 9, 4 * 6);
    check(cost_of(HD_K_dora_inverse, &i), 2 * 6, 4 * 6, 4 * 6);
    check(cost_of(HD_K_dora_scale, &f), 30, 2 * 30 + 2 * 4 * 6, 2 * 30);
    check(cost_of(HD_K_dora_backward, &b), 2 * 30, 2 * 2 * 30 + 4 * 6, 4 * 6);
    b.accumulate = true;
    check(cost_of(HD_K_dora_backward, &b), 2 * 30, 2 * 2 * 30 + 4 * 6 + 4 * 6, 4 * 6);
}

static void dropout_moves_each_element_once(void **state)
{
    const struct hd_dropout_args a = {.R = 3, .C = 5, .p = 0.5f, .dtype = HD_BF16};

    /* with a sample and an index per row */
    check(cost_of(HD_K_dropout, &a), 15, 2 * 15 + 3 * 8, 2 * 15);
}

static void noise_moves_each_element_once(void **state)
{
    const struct hd_noise_args a = {.R = 3, .C = 5, .alpha = 5, .dtype = HD_BF16};

    /* a multiply and an add; with a sample, an index and a length per row */
    check(cost_of(HD_K_noise, &a), 2 * 15, 2 * 15 + 3 * 12, 2 * 15);
}

/* Two rows, 10 columns of 16, 6 of them real, 3 kept ids: a record of 2 + 2 * 3 words, statistics of
 * 6 + 3; bf16 logits. */
static void distillation_reads_logits_and_the_records(void **state)
{
    struct hd_top_logits_args t = {.R = 2, .V = 10, .Vp = 16, .k = 3, .dtype = HD_BF16};
    const struct hd_top_merge_args m = {.R = 2, .P = 4, .k = 3};
    const struct hd_distill_stats_args s = {
        .R = 2, .V = 10, .Vp = 16, .real = 6, .k = 3, .dtype = HD_BF16};
    struct hd_distill_args d = {
        .R = 2, .V = 10, .Vp = 16, .P = 4, .real = 6, .k = 3, .dtype = HD_BF16};
    float there = 0;

    check(cost_of(HD_K_top_logits, &t), 4 * 20, 2 * 20, 2 * 8 * 4);
    check(cost_of(HD_K_top_merge, &m), 0, 4 * 2 * 8 * 4, 2 * 6 * 4);
    /* logits, a target and three ids of each row */
    check(cost_of(HD_K_distill_stats, &s), 4 * 2 * 16, 2 * 20 + 2 * 4 + 2 * 12, 2 * 9 * 4);
    check(cost_of(HD_K_distill, &d), 0, 4 * 2 * 9 * 4 + 2 * (4 + 24), 0);
    d.dlogits = &there;
    check(cost_of(HD_K_distill, &d), 3 * 2 * 16, 4 * 2 * 9 * 4 + 2 * (4 + 24) + 2 * 20, 2 * 32);
}

static void cross_entropy_reads_v_and_writes_vp_columns(void **state)
{
    struct hd_cross_entropy_args a = {.R = 3, .V = 10, .Vp = 16, .dtype = HD_F32};

    check(cost_of(HD_K_cross_entropy, &a), 4 * 30, 4 * 30 + 4 * 3, 0);
    a.dlogits = &given;
    check(cost_of(HD_K_cross_entropy, &a), 7 * 30, 4 * 30 + 4 * 3, 4 * 48);
}

/* 12 rows in 2 samples of at most 4 answers, whose two sums are doubles. */
static void pairs_cost_a_few_numbers_beside_the_logits(void **state)
{
    const int32_t target = 0;
    struct hd_answer_sums_args s = {.R = 12, .S = 6, .A = 4};
    struct hd_preference_args p = {.R = 12, .S = 6, .A = 4};
    float there = 0;

    check(cost_of(HD_K_answer_sums, &s), 12, 12 * 8, 2 * 4 * 16); /* logp, answer */
    s.target = &target;
    check(cost_of(HD_K_answer_sums, &s), 12, 12 * 12, 2 * 4 * 16);
    s.reference = &there;
    check(cost_of(HD_K_answer_sums, &s), 24, 12 * 16, 2 * 4 * 16);
    check(cost_of(HD_K_preference, &p), 0, 12 * 4 + 2 * 4 * 16, 0);
    p.weight = &there;
    check(cost_of(HD_K_preference, &p), 0, 12 * 4 + 2 * 4 * 16, 12 * 4);
}

/* Five numbers of 4 bytes a row, then a reference, then three numbers of each of two ranks; an entropy reads
 * the logits once more: 6 operations each. */
static void completions_cost_a_few_numbers_and_the_logits_once(void **state)
{
    struct hd_policy_args p = {.R = 12, .S = 6, .A = 4, .P = 2};
    const struct hd_entropy_args e = {.R = 5, .V = 7, .Vp = 32, .dtype = HD_BF16};
    float there = 0;

    check(cost_of(HD_K_policy, &p), 0, 12 * 5 * 4 + 2 * 4 * 16, 0);
    p.reference = &there;
    p.weight = &there;
    check(cost_of(HD_K_policy, &p), 0, 12 * 6 * 4 + 2 * 4 * 16, 12 * 4);
    p.spread = &there;
    check(cost_of(HD_K_policy, &p), 0, 12 * 6 * 4 + 2 * 4 * 16 + 2 * 12 * 3 * 4, 12 * 4);
    check(cost_of(HD_K_entropy, &e), 5 * 7 * 6, 5 * (7 * 2 + 4), 5 * 3 * 4);
}

/* 6 of 12 rows of 5 channels, of which half may end an answer. */
static void a_reward_costs_a_product_of_a_row(void **state)
{
    const struct hd_score_forward_args f = {.N = 12, .R = 6, .C = 5, .dtype = HD_F32};
    struct hd_score_backward_args b = {.N = 12, .R = 6, .C = 5, .dtype = HD_F32};
    float there = 0;

    check(cost_of(HD_K_score_forward, &f), 2 * 3 * 5, 4 * 12 + 4 * 4 * 5, 4 * 12);
    b.dx = &there;
    check(cost_of(HD_K_score_backward, &b), 3 * 5, 4 * 6 + 4 * 5, 4 * 6 * 5);
    b.dweight = &there;
    b.accumulate = true;
    check(cost_of(HD_K_score_backward, &b), 3 * 3 * 5, 4 * 6 + 4 * 5 + 4 * 3 * 5 + 4 * 5,
          4 * 6 * 5 + 4 * 5);
}

static void the_step_and_the_update_are_counted_per_weight(void **state)
{
    const struct hd_square_sums_args s = {.N = HD_GRAD_CHUNK + 1};
    const struct hd_step_finish_args f = {.ranks = 2};
    const struct hd_step_record_args r = {.chunks = 5};
    const struct hd_step_begin_args b = {0};
    const struct hd_adamw_args a = {.N = 10, .copy = &given, .copy_dtype = HD_BF16};
    const struct hd_adamw_args blocks = {.N = 512, .moment_bytes = 512 + 16};

    /* a square and an add each; two chunks of 8 bytes */
    check(cost_of(HD_K_square_sums, &s), 2 * (HD_GRAD_CHUNK + 1), 4 * (HD_GRAD_CHUNK + 1), 16);
    /* a record of 24 words; 21 words of 2 ranks are added or compared */
    check(cost_of(HD_K_step_record, &r), 0, 0, 8 * 24);
    check(cost_of(HD_K_step_finish, &f), 42, 8 * 48, 0);
    check(cost_of(HD_K_step_begin, &b), 0, 0, 0);
    /* weight, m, v and grad in; weight, m, v and the copy out */
    check(cost_of(HD_K_adamw, &a), 170, 4 * 40, 4 * 30 + 2 * 10);
    /* weight and grad, two moments of a byte each and two scales aligned to 16 bytes */
    check(cost_of(HD_K_adamw, &blocks), 27 * 512, 4 * 1024 + 2 * 528, 4 * 512 + 2 * 528);
}

static void updates_with_one_moment_are_counted_per_weight(void **state)
{
    const struct hd_lion_args l = {.N = 10, .copy = &given, .copy_dtype = HD_BF16};
    const struct hd_lion_args blocks = {.N = 512, .moment_bytes = 512 + 16};
    const struct hd_momentum_args m = {.N = 10, .nesterov = true, .dtype = HD_BF16};
    const struct hd_step_along_args s = {.N = 10, .dtype = HD_BF16};
    const struct hd_move_pieces_args p = {.N = 10, .dtype = HD_BF16};
    const struct hd_ema_args e = {.N = 10};
    const struct hd_qk_clip_args c = {.N = 48, .columns = 4, .head_rows = 3, .group = 2};
    const struct hd_newton_schulz_args n = {
        .count = 2, .rows = 3, .columns = 5, .iterations = 4, .dtype = HD_F32};

    /* weight, m and grad in; weight, m and the copy out; grad_factor, c of 3, sign, m of 3, step of 4
     */
    check(cost_of(HD_K_lion, &l), 12 * 10, 3 * 40, 2 * 40 + 20);
    check(cost_of(HD_K_lion, &blocks), 17 * 512, 8 * 512 + 528, 4 * 512 + 528);
    /* m and grad in, m and the step out */
    check(cost_of(HD_K_momentum, &m), 50, 80, 40 + 20);
    /* weight and step in, weight out */
    check(cost_of(HD_K_step_along, &s), 40, 40 + 20, 40);
    check(cost_of(HD_K_move_pieces, &p), 0, 20, 20);
    /* the average and the weight in, the average out; a subtraction, a product, a sum */
    check(cost_of(HD_K_ema, &e), 30, 80, 40);
    /* 12 rows of 4 heads, each with two scores; weights only where a head is clipped */
    check(cost_of(HD_K_qk_clip, &c), 0, 4 * 2 * 4, 0);
    /* An iteration: G of 3 x 3 from 3 x 5 twice, G G of 3 x 3 twice, polynomial times X: 2 * 9 * 5 +
     * 2 * 9 * 3 + 2 * 15 * 3 FLOPs and 5 * 9 of the polynomial, which reads G and G G. Besides, 3 per
     * element for the norm, which reads X twice and writes it. */
    check(cost_of(HD_K_newton_schulz, &n), 2 * (4 * (90 + 54 + 90 + 45) + 45),
          2 * (4 * 4 * (30 + 18 + (9 + 15) + 18) + 4 * 30),
          2 * (4 * 4 * (9 + 9 + 15 + 9) + 4 * 15));
}

/* Costs of a program are sums: adding does not overwrite. */
static void costs_add_up(void **state)
{
    const struct hd_add_args a = {.N = 9, .dtype = HD_F32};
    struct hd_costs costs = {0};

    hd_kernel_cost_add(&costs, HD_K_add, &a);
    hd_kernel_cost_add(&costs, HD_K_add, &a);
    check(costs, 18, 2 * 72, 2 * 36);
}

static void scratch_follows_shape_and_threads(void **state)
{
    struct hd_traits traits = {.threads = 2};
    const struct hd_bias_backward_args small = {.R = 65, .N = 10};
    const struct hd_bias_backward_args large = {.R = 1000000, .N = 10};
    const struct hd_cross_entropy_args loss = {.R = 9}, with_z = {.R = 9, .z = 1e-4f};
    const struct hd_embedding_backward_args table = {.R = 9, .V = 20};
    const struct hd_gemm_args product = {.M = 1000, .N = 1000, .K = 1000, .c_dtype = HD_F32};
    struct hd_gemm_args rounded = {
        .M = 1000, .N = 1000, .K = 2000, .ab_dtype = HD_BF16, .c_dtype = HD_BF16};
    const struct hd_gemm_args row = {.M = 1, .N = 1000, .K = 1000, .trans_b = true};

    /* two chunks of 64 rows and of 1 row; never more than 64 chunks */
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_bias_backward, &small, &traits), 2 * 10 * 4);
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_bias_backward, &large, &traits), 64 * 10 * 4);
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_cross_entropy, &loss, &traits), 9 * 8);
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_cross_entropy, &with_z, &traits), 2 * 9 * 8);
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_embedding_backward, &table, &traits),
                     (21 + 9) * 8);
    /* panels of a slab of 672 x 1000, each with room for one more panel of 32, one slice of 1000
     * words rounded up to 1008; c holds the sums */
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_gemm, &product, &traits),
                     4 * (704 + 1032) * 1008);
    /* a bf16 result cannot hold those of two slices */
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_gemm, &rounded, &traits),
                     4 * (704 + 1032) * 1008 + 4 * 672 * 1000);
    /* words that are pairs: 1000 rows are one slab, slices have 500 words rounded up to 512 */
    traits.bf16_products = HD_BF16_PAIRS;
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_gemm, &rounded, &traits),
                     2 * 4 * (1000 + 32) * 512 + 4 * 1000 * 1000);
    /* decoding: one row */
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_gemm, &row, &traits), 0);
    /* the library's budget counts where the library may multiply */
    traits.gemm_scratch_bytes = 10000000;
    traits.own_bf16 = true;
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_gemm, &rounded, &traits),
                     2 * 4 * (1000 + 32) * 512 + 4 * 1000 * 1000);
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_gemm, &product, &traits), 10000000);
}

/* Goal: the scratch of attention does not grow with the square of the length. Method: four times
 * the length takes less than four times the scratch, forward none more at all. */
static void attention_needs_no_square_of_the_length(void **state)
{
    const struct hd_traits traits = {.threads = 2};
    struct hd_attention_forward_args f = {
        .B = 1, .q_len = 4096, .kv_len = 4096, .kv_stride = 4096, .H = 4, .G = 4, .D = 64};
    struct hd_attention_backward_args b = {
        .B = 1, .q_len = 4096, .kv_len = 4096, .kv_stride = 4096, .H = 4, .G = 4, .D = 64};
    const int64_t forward = hd_kernel_scratch_bytes(HD_K_attention_forward, &f, &traits);
    const int64_t backward = hd_kernel_scratch_bytes(HD_K_attention_backward, &b, &traits);

    f.q_len = f.kv_len = f.kv_stride = 4 * 4096;
    b.q_len = b.kv_len = b.kv_stride = 4 * 4096;
    assert_int_equal(hd_kernel_scratch_bytes(HD_K_attention_forward, &f, &traits), forward);
    assert_true(hd_kernel_scratch_bytes(HD_K_attention_backward, &b, &traits) < 4 * backward);
}

static void a_foreign_table_is_refused(void **state)
{
    struct hd_backend_table table = *hd_backend_cpu();

    assert_int_equal(hd_backend_check(&table), HD_OK);
    table.kernel_list_hash ^= 1;
    assert_int_equal(hd_backend_check(&table), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "another list of kernels"));
    table = *hd_backend_cpu();
    table.abi++;
    assert_int_equal(hd_backend_check(&table), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "ABI"));
}

/* The traits are known without opening, and a backend that is forced to be plain says so. */
static void traits_say_what_will_run(void **state)
{
    const struct hd_backend_options options = {.threads = 2},
                                    plain = {.threads = 2, .force_plain = true};
    struct hd_traits traits;

    hd_backend_cpu()->describe(&options, &traits);
    assert_string_equal(traits.backend, "cpu");
    assert_true(traits.vector_bytes >= 16 && traits.page_bytes > 0 && traits.threads >= 1);
    if (!strcmp(traits.isa, "avx2")) { /* where a library would allocate in a step */
        assert_int_equal(traits.gemm_scratch_bytes, 0);
        assert_string_equal(traits.library, "own");
    }
    hd_backend_cpu()->describe(&plain, &traits);
    assert_string_equal(traits.isa, "plain");
    assert_int_equal(traits.gemm_scratch_bytes, 0);
    assert_int_equal(traits.vector_bytes, 16);
    assert_false(traits.bf16_fast);
}

static void the_measured_peak_is_a_peak(void **state)
{
    for (int setting = 0; setting < setting_count; setting += 3) {
        struct device device = device_open(&settings[setting]);

        /* any processor does 100 million and none 100 million million per second and core */
        for (int type = 0; type <= float_type_count; type++) {
            const double rate = hd_backend_cpu()->measure_peak(
                device.backend, type < float_type_count ? float_types[type] : HD_U8); /* of fp8 */

            assert_true(rate > 1e8 && rate < 1e14);
        }
        device_close(&device);
    }
}

/* One row of one key head of 8 channels with two value heads of 16, in bf16. */
static void a_gated_delta_layer_counts_its_state(void **state)
{
    const struct hd_gated_delta_forward_args f = {
        .B = 1, .S = 1, .G = 1, .H = 2, .Dk = 8, .Dv = 16, .dtype = HD_BF16};
    const struct hd_gated_delta_backward_args b = {
        .B = 1, .S = 1, .G = 1, .H = 2, .Dk = 8, .Dv = 16, .dtype = HD_BF16};
    struct hd_conv_forward_args c = {.B = 1, .S = 3, .N = 5, .W = 4, .dtype = HD_BF16};
    const struct hd_conv_backward_args d = {
        .B = 1, .S = 3, .N = 5, .W = 4, .plain = true, .dtype = HD_BF16};
    const struct hd_sigmoid_gate_backward_args p = {.N = 15, .plain = true, .dtype = HD_BF16};

    /* of a head: three products with the state of 8 x 16, four with one pair of rows; two gates are
     * two floats each */
    check(cost_of(HD_K_gated_delta_forward, &f), 2 * (6 * 128 + 2 * (8 + 16)),
          2 * (8 + 8 + 32) + 4 * 4, 2 * 32);
    check(cost_of(HD_K_gated_delta_backward, &b), 3 * 2 * (6 * 128 + 2 * (8 + 16)),
          2 * (8 + 8 + 32 + 32) + 4 * 4, 2 * (8 + 8 + 32) + 4 * 4);
    /* four taps and SiLU for each of 15 elements */
    check(cost_of(HD_K_conv_forward, &c), 15 * (8 + 4), 2 * (15 + 4 * 5), 2 * 15);
    /* plain: the taps alone; and two products for each of 15 elements */
    c.plain = true;
    check(cost_of(HD_K_conv_forward, &c), 15 * 8, 2 * (15 + 4 * 5), 2 * 15);
    check(cost_of(HD_K_conv_backward, &d), 15 * 8, 2 * (2 * 15 + 4 * 5), 2 * 15);
    check(cost_of(HD_K_sigmoid_gate_backward, &p), 2 * 15, 2 * 3 * 15, 2 * 2 * 15);
}

/* Two segments of one row, with heads as above; two ranks. */
static void segments_of_a_gated_delta_layer_count_their_matrices(void **state)
{
    static const float states[1];
    static const int32_t positions[1];
    const struct hd_delta_summary_args s = {
        .B = 2, .S = 1, .G = 1, .H = 2, .Dk = 8, .Dv = 16, .dtype = HD_BF16};
    const struct hd_delta_state_gradient_args g = {
        .B = 2, .S = 1, .G = 1, .H = 2, .Dk = 8, .Dv = 16, .dtype = HD_BF16};
    const struct hd_delta_prefix_args p = {.P = 2, .rank = 1, .B = 1, .H = 2, .Dk = 8, .Dv = 16};
    const struct hd_gated_delta_forward_args f = {.initial = states,
                                                  .position = positions,
                                                  .B = 2,
                                                  .S = 1,
                                                  .G = 1,
                                                  .H = 2,
                                                  .Dk = 8,
                                                  .Dv = 16,
                                                  .dtype = HD_BF16};

    /* of a head and segment: two products with each of T of 8 x 8 and M of 8 x 16, and with one pair
     * of rows L and two solutions, of 8, 8 and 16; rows of k and v, two gates */
    check(cost_of(HD_K_delta_summary, &s), 4 * (4 * (64 + 128) + (8 + 8 + 16)),
          2 * (2 * (8 + 32) + 4 * 4), 4 * (64 + 128) * 4);
    /* three products with dM, and L, A, A^T dO and one solution; rows of q, k and dout */
    check(cost_of(HD_K_delta_state_gradient, &g), 4 * (6 * 128 + 2 * (8 + 16)),
          2 * (2 * (8 + 8 + 32) + 4 * 4), 4 * 128 * 4);
    /* rank 1 has segments 1 and 2 of 4: the matrices of segments 0 and 1 */
    check(cost_of(HD_K_delta_prefix, &p), 2 * 2 * 2 * 8 * 8 * 16, 2 * 2 * (64 + 128) * 4,
          2 * 2 * 128 * 4);
    /* the states of two segments more than without */
    check(cost_of(HD_K_gated_delta_forward, &f), 2 * 2 * (6 * 128 + 2 * (8 + 16)),
          2 * (2 * (8 + 8 + 32) + 4 * 4) + 4 * 128 * 4, 2 * 2 * 32);
}

RUN_CASES()
