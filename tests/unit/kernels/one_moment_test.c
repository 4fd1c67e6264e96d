/* one_moment: Lion, and Muon's momentum, weights and pieces, by a reference of the same operations in
 * fp32: every backend and instruction set gives its bits.
 */
#include <math.h>
#include <string.h>

#include "tests/unit/kernels/harness.h"

/* Ranges in fp32 cut where no vector ends; blocks of two sizes between fp32. */
enum { N = 20483, N_BLOCKS = 33024 + 8, RANGES = 3 };
static const struct hd_update_range plain[RANGES] = {
    {0, 1000, 1, 1, 0, 0}, {1000, 10005, 0, 1, 0, 0}, {10005, N, 1, 0.5f, 0, 0}};
static const struct hd_update_range in_blocks[RANGES] = {
    {0, 4096, 1, 1, 0, 256}, {4096, 4128, 0, 1, 0, 0}, {4128, N_BLOCKS, 1, 0.5f, 0, 8}};

/* A shard with one moment, and the same in the reference. */
struct one_shard {
    int64_t count, moment_bytes;
    struct hd_update_range *ranges;
    struct tensor *weight, *grad, *out;
    char *m;
    float *w_, *m_, *out_; /* of the reference */
};

static uint8_t *code_of(const struct one_shard *s, const struct hd_update_range *r, int64_t i,
                        float **ret_scale)
{
    char *run = s->m + (s->moment_bytes ? r->moments : 0);

    i -= s->moment_bytes ? r->begin : 0;
    *ret_scale = r->block ? (float *)run + i / r->block : NULL;
    return r->block ? (uint8_t *)run + hd_encoding_scales_bytes(r->end - r->begin, r->block) + i
                    : (uint8_t *)((float *)run + i);
}

static float moment_of(const struct one_shard *s, const struct hd_update_range *r, int64_t i)
{
    float *scale, value;
    const uint8_t *code = code_of(s, r, i, &scale);

    if (scale)
        return hd_encoding_value(*code, HD_MAP_SIGNED) * *scale;
    memcpy(&value, code, sizeof value);
    return value;
}

static struct one_shard shard_new(const struct hd_update_range *ranges, bool placed,
                                  enum hd_dtype out_dtype)
{
    struct one_shard s = {.count = ranges[RANGES - 1].end};
    struct tensor *random = tensor_random(s.count, HD_F32, 0.1, 3);

    s.ranges = reachable(ranges, RANGES * sizeof *ranges);
    for (int k = 0; placed && k < RANGES; k++) {
        s.ranges[k].moments = s.moment_bytes;
        s.moment_bytes += hd_encoding_bytes(ranges[k].end - ranges[k].begin, ranges[k].block);
    }
    s.m = reachable(NULL, (size_t)(placed ? s.moment_bytes : s.count * 4));
    s.weight = tensor_random(s.count, HD_F32, 1, 1);
    s.grad = tensor_random(s.count, HD_F32, 1, 2);
    s.out = tensor_new(s.count, out_dtype);
    s.w_ = reachable(s.weight->data, (size_t)s.count * 4);
    s.m_ = reachable(NULL, (size_t)s.count * 4);
    s.out_ = reachable(NULL, (size_t)s.count * 4);
    for (int k = 0; k < RANGES; k++)
        for (int64_t i = ranges[k].begin; i < ranges[k].end; i++) {
            const float value = i % 7 ? (float)random->values[i] : 0;
            float *scale;
            uint8_t *code = code_of(&s, &s.ranges[k], i, &scale);

            if (i % 7 == 0) /* where both are 0, the sign is 0 */
                tensor_put(s.grad, i, 0);
            if (scale) {
                *scale = 0.3f;
                *code = i % 7 ? (uint8_t)(i * 37) : 0;
            } else {
                memcpy(code, &value, sizeof value);
            }
            s.m_[i] = moment_of(&s, &s.ranges[k], i);
        }
    return s;
}

/* Encodes the reference's new moments, block by block, and compares all bytes. */
static void compare_moments(const struct one_shard *s)
{
    for (int k = 0; k < RANGES; k++) {
        const struct hd_update_range *r = &s->ranges[k];
        const int64_t step = r->block ? r->block : 1;

        for (int64_t at = r->begin; at < r->end; at += step) {
            float largest = 0, smallest = 0, scale, *scale_of;

            for (int64_t i = at; i < at + step; i++) {
                largest = fmaxf(largest, s->m_[i]);
                smallest = fminf(smallest, s->m_[i]);
            }
            scale = hd_encoding_scale(HD_MAP_SIGNED, largest, smallest);
            for (int64_t i = at; i < at + step; i++) {
                const uint8_t *code = code_of(s, r, i, &scale_of);

                if (!r->block) {
                    if (memcmp(code, &s->m_[i], 4) != 0)
                        fail_msg("moment %lld: %.9g, expected %.9g", (long long)i,
                                 (double)moment_of(s, r, i), (double)s->m_[i]);
                    continue;
                }
                assert_true(*scale_of == scale);
                assert_int_equal(*code, hd_encoding_code(hd_encoding_quotient(
                                                             s->m_[i], hd_encoding_divisor(scale)),
                                                         HD_MAP_SIGNED));
            }
        }
    }
}

static void compare_floats(const char *what, const struct tensor *got, const float *want)
{
    for (int64_t i = 0; i < got->count; i++) {
        const double expected = (double)want[i];
        const double bound = got->dtype == HD_F32 ? 0 : rounding_of(got->dtype, expected);

        assert_close_at(what, i, tensor_get(got, i), expected, bound);
    }
}

/* The six lines of Lion. Every operation is stored, so that none is fused with the next. */
static void lion_in_fp32(const struct one_shard *s, const struct hd_step_state *block)
{
    for (int k = 0; k < RANGES; k++)
        for (int64_t i = s->ranges[k].begin; i < s->ranges[k].end; i++) {
            const float lr = block->lr * s->ranges[k].lr_scale;
            const float decay = block->weight_decay * s->ranges[k].decay;
            volatile float g = (float)s->grad->values[i] * block->grad_factor;
            volatile float a = block->beta1 * s->m_[i], b = (1.0f - block->beta1) * g, c = a + b;
            volatile float shrink = decay * s->w_[i], step = (c > 0) - (c < 0) + shrink;
            volatile float move = lr * step;

            s->w_[i] = s->w_[i] - move;
            a = block->beta2 * s->m_[i];
            b = (1.0f - block->beta2) * g;
            s->m_[i] = a + b;
        }
}

static void check_lion(struct device *device, const struct hd_update_range *ranges, bool placed,
                       enum hd_dtype copy_dtype)
{
    struct one_shard s = shard_new(ranges, placed, copy_dtype);
    struct hd_step_state block = adam_block();
    struct hd_lion_args a = {.weight = s.weight->data,
                             .m = s.m,
                             .copy = s.out->data,
                             .grad = s.grad->data,
                             .block = &block,
                             .ranges = s.ranges,
                             .N = s.count,
                             .range_count = RANGES,
                             .moment_bytes = s.moment_bytes,
                             .copy_dtype = copy_dtype};
    void *then;

    lion_in_fp32(&s, &block);
    device_launch(device, HD_K_lion, &a);
    compare_floats("weight", s.weight, s.w_);
    compare_floats("copy", s.out, s.w_);
    compare_moments(&s);
    block.skip_update = 1;
    then = reachable(s.m, (size_t)(placed ? s.moment_bytes : s.count * 4));
    device_launch(device, HD_K_lion, &a);
    compare_floats("weight of a skipped step", s.weight, s.w_);
    assert_memory_equal(s.m, then, (size_t)(placed ? s.moment_bytes : s.count * 4));
}

static void for_settings(void (*check)(struct device *device, enum hd_dtype dtype))
{
    for (int i = 0; i < setting_count * float_type_count; i++)
        if (on_takes(i / float_type_count, i, 1)) {
            struct device device = device_open(&settings[i / float_type_count]);

            check(&device, float_types[i % float_type_count]);
            device_close(&device);
            tensors_free();
        }
}

static void check_lions(struct device *device, enum hd_dtype dtype)
{
    check_lion(device, plain, false, dtype);
    check_lion(device, in_blocks, true, dtype);
}

static void lion_has_the_bits_of_its_six_lines(void **state)
{
    for_settings(check_lions);
}

static void check_momentum(struct device *device, const struct hd_update_range *ranges, bool placed,
                           bool nesterov, enum hd_dtype dtype)
{
    struct one_shard s = shard_new(ranges, placed, dtype);
    struct hd_step_state block = adam_block();
    struct hd_momentum_args a = {.m = s.m,
                                 .step = s.out->data,
                                 .grad = s.grad->data,
                                 .block = &block,
                                 .ranges = s.ranges,
                                 .N = s.count,
                                 .range_count = RANGES,
                                 .moment_bytes = s.moment_bytes,
                                 .momentum = 0.95f,
                                 .nesterov = nesterov,
                                 .dtype = dtype};
    void *then;

    for (int64_t i = 0; i < s.count; i++) {
        volatile float g = (float)s.grad->values[i] * block.grad_factor;
        volatile float kept = a.momentum * s.m_[i], ahead;

        s.m_[i] = kept + g;
        ahead = a.momentum * s.m_[i];
        s.out_[i] = nesterov ? g + ahead : s.m_[i];
    }
    device_launch(device, HD_K_momentum, &a);
    compare_floats("step", s.out, s.out_);
    compare_moments(&s);
    block.skip_update = 1;
    then = reachable(s.m, (size_t)(placed ? s.moment_bytes : s.count * 4));
    device_launch(device, HD_K_momentum, &a);
    assert_memory_equal(s.m, then, (size_t)(placed ? s.moment_bytes : s.count * 4));
}

static void check_momenta(struct device *device, enum hd_dtype dtype)
{
    check_momentum(device, plain, false, true, dtype);
    check_momentum(device, in_blocks, true, false, dtype);
}

static void momentum_has_the_bits_of_its_lines(void **state)
{
    for_settings(check_momenta);
}

static void check_step_of(struct device *device, enum hd_dtype copy_dtype, enum hd_dtype dtype)
{
    struct one_shard s = shard_new(plain, false, copy_dtype);
    struct tensor *step = tensor_random(N, dtype, 1, 5);
    struct hd_step_state block = adam_block();
    struct hd_step_along_args a = {.weight = s.weight->data,
                                   .copy = s.out->data,
                                   .step = step->data,
                                   .block = &block,
                                   .ranges = s.ranges,
                                   .N = N,
                                   .range_count = RANGES,
                                   .copy_dtype = copy_dtype,
                                   .dtype = dtype};

    for (int k = 0; k < RANGES; k++)
        for (int64_t i = plain[k].begin; i < plain[k].end; i++) {
            const float lr = block.lr * plain[k].lr_scale;
            volatile float part = lr * (block.weight_decay * plain[k].decay), move;

            move = part * s.w_[i];
            s.w_[i] = s.w_[i] - move;
            move = lr * (float)step->values[i];
            s.w_[i] = s.w_[i] - move;
        }
    device_launch(device, HD_K_step_along, &a);
    compare_floats("weight", s.weight, s.w_);
    compare_floats("copy", s.out, s.w_);
    block.skip_update = 1;
    device_launch(device, HD_K_step_along, &a);
    compare_floats("weight of a skipped step", s.weight, s.w_);
}

static void check_step_along(struct device *device, enum hd_dtype copy_dtype)
{
    check_step_of(device, copy_dtype, HD_F32);
    check_step_of(device, copy_dtype, HD_BF16);
}

static void weights_decay_before_they_step(void **state)
{
    for_settings(check_step_along);
}

/* ---- the average of weights ---- */

static void check_average(struct device *device, enum hd_dtype dtype)
{
    struct tensor *ema = tensor_random(N, HD_F32, 1, 7), *weight = tensor_random(N, HD_F32, 1, 8);
    struct hd_step_state block = adam_block();
    struct hd_ema_args a = {
        .ema = ema->data, .weight = weight->data, .block = &block, .N = N, .rate = 0.01F};
    static float expected[N];

    (void)dtype;
    for (int64_t i = 0; i < N; i++) {
        volatile float step = (float)weight->values[i] - (float)ema->values[i];

        step = 0.01F * step;
        expected[i] = (float)ema->values[i] + step;
    }
    device_launch(device, HD_K_ema, &a);
    compare_floats("average", ema, expected);
    block.skip_update = 1;
    device_launch(device, HD_K_ema, &a);
    compare_floats("average of a skipped step", ema, expected);
}

static void an_average_has_the_bits_of_its_line(void **state)
{
    for_settings(check_average);
}

/* ---- QK-clip ---- */

/* Goal: each row of a shard that is cut within rows gets the factor of its head. Method: the elements
 * from 5 on of a matrix of 4 heads with 3 rows of 7, all 1. Scores are 200, 50, 400, 800, of query
 * heads 2 to 5 of a model with 6, and the threshold is 100: with groups of one, gamma is 1/2, 1, 1/4,
 * 1/8; with groups of two the first two are 1/2, the others 1/8. The first row of a head has power 1,
 * the others 2. Keys: 2 heads, 1 and 2 of 3, with those groups. */
static void check_clip_of(struct device *device, enum hd_dtype copy_dtype, int64_t group, bool keys)
{
    static const float scores[] = {1e4F, 1e4F, 200, 50, 400, 800};
    enum { FIRST = 5, COLUMNS = 7, ROWS = 3, COUNT = 12 * COLUMNS - FIRST };
    struct tensor *weight = tensor_new(COUNT, HD_F32), *copy = tensor_new(COUNT, copy_dtype);
    struct hd_step_state block = adam_block();
    struct hd_qk_clip_args a = {.weight = weight->data,
                                .copy = copy_dtype == HD_F32 ? NULL : copy->data,
                                .top_score = reachable(scores, sizeof scores),
                                .block = &block,
                                .N = keys ? 6 * COLUMNS - FIRST : COUNT,
                                .first = FIRST,
                                .columns = COLUMNS,
                                .head_rows = ROWS,
                                .split = 1,
                                .first_head = 2,
                                .head_step = keys ? 2 : 1,
                                .group = group,
                                .threshold = 100,
                                .power = 1,
                                .rest_power = 2,
                                .copy_dtype = copy_dtype};

    for (int64_t i = 0; i < COUNT; i++) {
        tensor_put(weight, i, 1);
        tensor_put(copy, i, 1);
    }
    block.skip_update = 1;
    device_launch(device, HD_K_qk_clip, &a);
    for (int64_t i = 0; i < COUNT; i++)
        assert_true(tensor_get(weight, i) == 1 && tensor_get(copy, i) == 1);
    block.skip_update = 0;
    device_launch(device, HD_K_qk_clip, &a);
    for (int64_t i = 0; i < COUNT; i++) {
        const int64_t row = (FIRST + i) / COLUMNS, head = 2 + row / ROWS * (keys ? 2 : 1);
        const double gamma = group == 2  ? (head < 4 ? 0.5 : 0.125)
                             : head == 2 ? 0.5
                             : head == 3 ? 1
                             : head == 4 ? 0.25
                                         : 0.125;
        const double factor = i >= a.N ? 1 : row % ROWS < 1 ? gamma : gamma * gamma;

        assert_true(tensor_get(weight, i) == factor);
        assert_true(tensor_get(copy, i) == (a.copy ? factor : 1));
    }
}

static void check_clip(struct device *device, enum hd_dtype copy_dtype)
{
    check_clip_of(device, copy_dtype, 1, false);
    check_clip_of(device, copy_dtype, 2, false);
    check_clip_of(device, copy_dtype, 2, true);
}

static void rows_of_a_clipped_head_have_its_factor(void **state)
{
    for_settings(check_clip);
}

/* Goal: scores that overflowed change no weight. */
static void check_no_clip(struct device *device, enum hd_dtype dtype)
{
    struct tensor *weight = tensor_new(2, HD_F32);
    struct hd_step_state block = adam_block();
    const float scores[] = {INFINITY, NAN};
    struct hd_qk_clip_args a = {.weight = weight->data,
                                .top_score = reachable(scores, sizeof scores),
                                .block = &block,
                                .N = 2,
                                .columns = 1,
                                .head_rows = 1,
                                .split = 1,
                                .head_step = 1,
                                .group = 1,
                                .threshold = 100,
                                .power = 1};

    (void)dtype;
    tensor_put(weight, 0, 1);
    tensor_put(weight, 1, 1);
    device_launch(device, HD_K_qk_clip, &a);
    assert_true(tensor_get(weight, 0) == 1 && tensor_get(weight, 1) == 1);
}

static void scores_without_bounds_clip_nothing(void **state)
{
    for_settings(check_no_clip);
}

/* ---- pieces ---- */

/* Goal: pieces of boxes of a matrix, cut within rows, get to their places, and back. Method: a matrix
 * [6, 10] at element 3, of which one box has rows 0 to 5 and columns 4 to 9, the other rows 2 and 3
 * and columns 0 to 3. Element (r, c) has the value 10 r + c + 1. */
static void check_pieces(struct device *device, enum hd_dtype dtype)
{
    static const struct hd_piece pieces[] = {
        {.packed = 0, .begin = 8, .count = 20, .origin = 3 + 4, .columns = 6, .pitch = 10},
        {.packed = 32, .begin = 3, .count = 5, .origin = 3 + 20, .columns = 4, .pitch = 10}};
    struct tensor *matrix = tensor_new(64, dtype), *packed = tensor_new(48, dtype);
    struct tensor *back = tensor_new(64, dtype);
    struct hd_move_pieces_args a = {.out = packed->data,
                                    .inp = matrix->data,
                                    .pieces = reachable(pieces, sizeof pieces),
                                    .piece_count = 2,
                                    .N = 25,
                                    .gathers = true,
                                    .dtype = dtype};

    for (int64_t i = 0; i < 64; i++) {
        tensor_put(matrix, i, i < 3 ? 0 : (double)(i - 2));
        tensor_put(back, i, 0);
    }
    device_launch(device, HD_K_move_pieces, &a);
    for (int64_t i = 0; i < 20; i++) /* element 8 of the first box is in row 1, column 4 + 2 */
        assert_true(tensor_get(packed, i) == (double)(10 * ((i + 8) / 6) + 4 + (i + 8) % 6 + 1));
    for (int64_t i = 0; i < 5; i++)
        assert_true(tensor_get(packed, 32 + i) ==
                    (double)(10 * (2 + (i + 3) / 4) + (i + 3) % 4 + 1));
    assert_true(isnan(tensor_get(packed, 20)));
    a.out = back->data;
    a.inp = packed->data;
    a.gathers = false;
    device_launch(device, HD_K_move_pieces, &a);
    for (int64_t i = 0, found = 0; i < 64; i++) {
        const double value = tensor_get(back, i);

        assert_true(value == 0 || value == tensor_get(matrix, i));
        found += value != 0;
        if (i == 63)
            assert_int_equal(found, 25);
    }
}

static void pieces_get_to_their_places_and_back(void **state)
{
    for_settings(check_pieces);
}

/* ---- newton_schulz ---- */

/* The iteration in double, by the words of ops_update.h. */
static void newton_in_double(double *x, int64_t rows, int64_t columns, int iterations, double scale)
{
    const bool wide = rows <= columns;
    const int64_t n = wide ? rows : columns, m = wide ? columns : rows;
    double *t = doubles(n * m), *g = doubles(n * n), *q = doubles(n * n), *next = doubles(n * m);
    double norm = 0;

    for (int64_t i = 0; i < rows * columns; i++)
        norm += x[i] * x[i];
    norm = fmax(sqrt(norm), 1e-30);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++)
            t[i * m + j] = x[wide ? i * m + j : j * n + i] / norm;
    for (int k = 0; k < iterations; k++) {
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) {
                g[i * n + j] = 0;
                for (int64_t c = 0; c < m; c++)
                    g[i * n + j] += t[i * m + c] * t[j * m + c];
            }
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) {
                double square = 0;

                for (int64_t c = 0; c < n; c++)
                    square += g[i * n + c] * g[c * n + j];
                q[i * n + j] = 3.4445 * (i == j) - 4.7750 * g[i * n + j] + 2.0315 * square;
            }
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < m; j++) {
                next[i * m + j] = 0;
                for (int64_t c = 0; c < n; c++)
                    next[i * m + j] += q[i * n + c] * t[c * m + j];
            }
        memcpy(t, next, (size_t)(n * m) * sizeof *t);
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++)
            x[wide ? i * m + j : j * n + i] = scale * t[i * m + j];
}

/* Two matrices one behind the other, the second of zeros if `zero`. In fp32 2e-5 of the length:
 * rounding of 1e-7 is amplified up to a hundred times; in bf16 2e-2, and a cosine above 0.9995. */
static void check_newton(struct device *device, enum hd_dtype dtype, int64_t rows, int64_t columns,
                         double size, int iterations)
{
    const int64_t count = rows * columns;
    struct tensor *x = tensor_random(2 * count, dtype, size, 9);
    double *want = doubles(count), apart = 0, length = 0, product = 0, own = 0;
    struct hd_newton_schulz_args a = {.x = x->data,
                                      .count = 2,
                                      .rows = rows,
                                      .columns = columns,
                                      .iterations = iterations,
                                      .scale = 0.7f,
                                      .dtype = dtype};

    for (int64_t i = 0; i < count; i++) {
        want[i] = x->values[i];
        tensor_put(x, count + i, 0);
    }
    newton_in_double(want, rows, columns, iterations, (double)a.scale);
    device_launch(device, HD_K_newton_schulz, &a);
    for (int64_t i = 0; i < count; i++) {
        const double got = tensor_get(x, i);

        apart += (got - want[i]) * (got - want[i]);
        length += want[i] * want[i];
        product += got * want[i];
        own += got * got;
        assert_true(tensor_get(x, count + i) == 0);
    }
    if (!(sqrt(apart) <= (dtype == HD_F32 ? 2e-5 : 2e-2) * sqrt(length)) ||
        !(product >= (dtype == HD_F32 ? 1 - 1e-9 : 0.9995) * sqrt(length * own)))
        fail_msg("[%lld, %lld] of size %g in %s: %g away, cosine %.6f", (long long)rows,
                 (long long)columns, size, hd_dtype_name(dtype), sqrt(apart / length),
                 product / sqrt(length * own));
}

static void matrices_of_all_shapes_become_orthogonal(void **state)
{
    static const struct {
        int64_t rows, columns;
        double size;
        int iterations;
    } cases[] = {{1, 7, 1, 5},    {7, 1, 1, 5},       {16, 16, 1, 5},    {40, 13, 1, 5},
                 {13, 40, 1, 5},  {33, 65, 1e-20, 5}, {65, 33, 1e20, 5}, {3, 5, 1, 4},
                 {64, 130, 1, 1}, {96, 48, 1e-5, 6}};

    for (int s = 0; s < setting_count; s++) {
        struct device device = device_open(&settings[s]);

        for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++)
            for (int d = 0; d < 2; d++)
                if (on_takes(s, 2 * i + d, 2)) {
                    check_newton(&device, d ? HD_BF16 : HD_F32, cases[i].rows, cases[i].columns,
                                 cases[i].size, cases[i].iterations);
                    tensors_free();
                }
        device_close(&device);
    }
}

RUN_CASES()
