/* encoded: products whose right factor is codes (base/quant.h), against double of the decoded
 * values, which are rounded to the encoding that is multiplied. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

struct encoded_case {
    enum hd_quant quant;
    int64_t rows[HD_QUANT_MATRICES]; /* of each matrix; 0: there is none */
    int64_t columns, M;
    int64_t shares, share; /* of the columns: a box of a matrix `shares` times as wide */
    bool trans_b, accumulate, bias, residual;
    enum hd_dtype ab, c;
};

/* The factor, its values as a tensor of the case's encoding, and its memory. */
struct encoded_factor {
    struct hd_quant_factor codes;
    void *memory;
    struct tensor *values;
    int64_t rows;
};

static int64_t sum_of_rows(const struct encoded_case *p)
{
    return p->rows[0] + p->rows[1] + p->rows[2];
}

/* Adds a matrix of random values to the factor; `at`: the end of its memory so far. */
static int64_t add_matrix(const struct encoded_case *p, int64_t rows, int64_t first_row, int64_t at,
                          char *memory, struct encoded_factor *f)
{
    const int64_t wide = p->columns * p->shares;
    const struct hd_quant_box box = {.quant = p->quant,
                                     .rows = rows,
                                     .columns = wide,
                                     .first_column = p->share * p->columns,
                                     .box_rows = rows,
                                     .box_columns = p->columns};
    struct tensor *random = tensor_random(rows * wide, HD_F32, 0.05, (uint64_t)(11 + first_row));
    float *values = malloc((size_t)(rows * p->columns) * sizeof *values);
    const struct hd_quant_factor one = {.quant = p->quant,
                                        .count = 1,
                                        .columns = p->columns,
                                        .matrix = {hd_quant_matrix_at(&box, 0)}};

    assert_non_null(values);
    assert_int_equal(hd_quant_encode(&box, tensor_read, random, memory + at), HD_OK);
    hd_quant_decode(&one, memory + at, 0, rows * p->columns, values);
    for (int64_t i = 0; i < rows * p->columns; i++)
        tensor_put(f->values, first_row * p->columns + i, (double)values[i]);
    free(values);
    f->codes.matrix[f->codes.count++] = hd_quant_matrix_at(&box, at);
    return at + hd_quant_lay_out(&box).size_bytes;
}

static struct encoded_factor make_factor(const struct encoded_case *p)
{
    enum { BYTES_MAX = 1 << 20 };
    struct encoded_factor f = {.codes = {.quant = p->quant, .columns = p->columns},
                               .rows = sum_of_rows(p)};
    char *memory = calloc(1, BYTES_MAX);
    int64_t at = 0, row = 0;

    assert_non_null(memory);
    f.values = tensor_new(f.rows * p->columns, p->ab);
    for (int i = 0; i < HD_QUANT_MATRICES && p->rows[i]; i++) {
        at = add_matrix(p, p->rows[i], row, at, memory, &f);
        row += p->rows[i];
    }
    assert_true(at <= BYTES_MAX);
    f.memory = reachable(memory, (size_t)at);
    free(memory);
    return f;
}

static void check(struct device *device, const struct encoded_case *p)
{
    const struct encoded_factor f = make_factor(p);
    const int64_t N = p->trans_b ? f.rows : p->columns, K = p->trans_b ? p->columns : f.rows;
    const struct tensor *a = tensor_random(p->M * K, p->ab, 1, 1);
    const struct tensor *bias = tensor_random(N, p->ab, 3, 3);
    const struct tensor *old = tensor_random(p->M * N, p->c, 3, 4);
    struct tensor *c = p->accumulate ? tensor_copy(old) : tensor_new(p->M * N, p->c);
    const struct product_in_double exact =
        product_in_double(a, f.values, p->bias ? bias : NULL, p->M, N, K, false, p->trans_b);
    struct hd_gemm_args args = {.c = c->data,
                                .a = a->data,
                                .b = f.memory,
                                .bias = p->bias ? bias->data : NULL,
                                .add = p->residual ? old->data : NULL,
                                .M = p->M,
                                .N = N,
                                .K = K,
                                .lda = K,
                                .ldb = -1, /* has no meaning */
                                .ldc = N,
                                .trans_b = p->trans_b,
                                .accumulate = p->accumulate,
                                .ab_dtype = p->ab,
                                .c_dtype = p->c,
                                .b_codes = f.codes};

    device_launch(device, HD_K_gemm, &args);
    for (int64_t i = 0; i < p->M * N; i++) {
        const double before = p->accumulate || p->residual ? old->values[i] : 0;
        const double added = fabs(before) + (p->bias ? fabs(bias->values[i % N]) : 0);
        const double sum = exact.sum[i] + before;
        const double round =
            (units_of_sum(p->ab, K) + 4) * 0x1p-24 * (exact.size[i] + fabs(sum) + 4);

        assert_close_at("c", i, tensor_get(c, i), sum,
                        round + rounding_of_product(p->c, sum, added));
    }
}

/* Odd sides, blocks that lie in two rows, several matrices (of which one has an odd number of
 * weights), several slabs and slices, one row, and the columns of a rank. */
static void products_of_codes_are_those_of_their_values(void **state)
{
    static const struct encoded_case cases[] = {
        {.rows = {7}, .columns = 9, .M = 5},
        {.rows = {33}, .columns = 130, .M = 1},
        {.rows = {5, 3, 4}, .columns = 33, .M = 9},
        {.rows = {64, 32, 32}, .columns = 192, .M = 40},
        {.rows = {70}, .columns = 64, .M = 17, .shares = 2, .share = 1},
        {.rows = {20, 11}, .columns = 128, .M = 3, .shares = 3, .share = 2},
        {.rows = {150}, .columns = 1100, .M = 30},
    };
    static const enum hd_dtype types[][2] = {
        {HD_F32, HD_F32}, {HD_BF16, HD_BF16}, {HD_BF16, HD_F32}, {HD_F16, HD_F16}};

    for (int s = 0; s < gemm_setting_count; s++) {
        struct device device = device_open(&settings[s]);
        int number = 0;

        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            for (int q = HD_QUANT_NF4; q < HD_QUANT_COUNT; q++)
                for (int bits = 0; bits < 4; bits++, number++) {
                    struct encoded_case p = cases[i];
                    const int type = (number + q) % 4;

                    p.quant = (enum hd_quant)q;
                    p.shares = p.shares ? p.shares : 1;
                    p.trans_b = bits & 1;
                    p.accumulate = bits & 2;
                    p.bias = !p.accumulate && number % 2;
                    p.residual = !p.accumulate && number % 3 == 0;
                    p.ab = types[type][0];
                    p.c = types[type][1];
                    if (!setting_takes(s, p.ab) || !on_takes(s, number, gemm_setting_count))
                        continue;
                    check(&device, &p);
                    tensors_free();
                }
        device_close(&device);
    }
    kept_free();
}

/* Experts whose rows are few, many or none. */
static void experts_multiply_by_their_own_codes(void **state)
{
    static const int32_t counts[] = {3, 0, 20, 9};
    enum { E = 4, T = 40, OUT = 24, IN = 128 };

    for (int s = 0; s < gemm_setting_count; s++) {
        struct device device = device_open(&settings[s]);

        for (int q = HD_QUANT_NF4; q < HD_QUANT_COUNT; q++)
            for (int trans = 0; trans < 2; trans++) {
                const enum hd_dtype ab = trans ? HD_F32 : HD_BF16;
                const struct encoded_case p = {
                    .quant = (enum hd_quant)q, .columns = IN, .shares = 1, .ab = ab};
                const int64_t N = trans ? OUT : IN, K = trans ? IN : OUT;
                struct encoded_factor f = {.codes = {.quant = p.quant, .columns = IN},
                                           .values = tensor_new((int64_t)E * OUT * IN, ab)};
                const struct tensor *a = tensor_random(T * K, ab, 1, 5);
                struct tensor *c = tensor_new(T * N, HD_F32);
                char *memory = calloc(1, 1 << 20);
                int64_t at = 0, row = 0;
                struct hd_grouped_gemm_args args = {.E = E,
                                                    .T = T,
                                                    .N = N,
                                                    .K = K,
                                                    .lda = K,
                                                    .ldc = N,
                                                    .trans_b = trans,
                                                    .ab_dtype = ab,
                                                    .c_dtype = HD_F32};

                if (!setting_takes(s, ab) || !on_takes(s, q + trans, gemm_setting_count)) {
                    free(memory);
                    tensors_free();
                    continue;
                }
                assert_non_null(memory);
                for (int e = 0; e < E; e++) {
                    f.codes.count = 0;
                    args.stride_b = at = add_matrix(&p, OUT, e * OUT, at, memory, &f);
                    if (e == 0)
                        args.b_codes = f.codes;
                }
                args.stride_b = at / E;
                args.a = a->data;
                args.b = reachable(memory, (size_t)at);
                args.c = c->data;
                args.counts = reachable(counts, sizeof counts);
                device_launch(&device, HD_K_grouped_gemm, &args);
                for (int e = 0; e < E; row += counts[e++])
                    for (int64_t i = row; i < row + counts[e]; i++)
                        for (int64_t j = 0; j < N; j++) {
                            double sum = 0, size = 0;

                            for (int64_t k = 0; k < K; k++) {
                                const double term =
                                    a->values[i * K + k] *
                                    f.values->values[(e * OUT + (trans ? j : k)) * IN +
                                                     (trans ? k : j)];

                                sum += term;
                                size += fabs(term);
                            }
                            assert_close_at("c", i * N + j, tensor_get(c, i * N + j), sum,
                                            (units_of_sum(ab, K) + 4) * 0x1p-24 * (size + 1));
                        }
                free(memory);
                tensors_free();
            }
        device_close(&device);
    }
}

/* Codes of a matrix with other sides are refused. */
static void codes_of_another_shape_are_refused(void **state)
{
    struct device device = device_open(&settings[0]);
    struct hd_gemm_args args = {
        .M = 2,
        .N = 8,
        .K = 64,
        .lda = 64,
        .ldc = 8,
        .trans_b = true,
        .b_codes = {.quant = HD_QUANT_INT8, .count = 1, .columns = 64, .matrix = {{.rows = 7}}}};

    args.c = tensor_new(16, HD_F32)->data;
    args.a = tensor_random(128, HD_F32, 1, 1)->data;
    args.b = tensor_random(1024, HD_F32, 1, 2)->data;
    assert_int_equal(device_try(&device, HD_K_gemm, &args), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "its codes are of [7, 64]"));
    tensors_free();
    device_close(&device);
}

/* 30 rows by 64 x 128 in nf4: reads a 30 * 128 elements of 2 bytes, and 8,192 weights of 4 bits and
 * 128 scales of a byte; writes 30 * 64 elements. */
static void codes_cost_their_bytes(void **state)
{
    const struct hd_gemm_args args = {
        .M = 30,
        .N = 64,
        .K = 128,
        .trans_b = true,
        .ab_dtype = HD_BF16,
        .c_dtype = HD_BF16,
        .b_codes = {.quant = HD_QUANT_NF4, .count = 1, .columns = 128, .matrix = {{.rows = 64}}}};
    struct hd_costs costs = {0};

    hd_kernel_cost_add(&costs, HD_K_gemm, &args);
    assert_int_equal(costs.read_bytes, 30 * 128 * 2 + 4096 + 128);
    assert_int_equal(costs.write_bytes, 30 * 64 * 2);
}

RUN_CASES()
