/* moments: AdamW with moments in blocks of 8-bit codes.
 *
 * One shard with every size of block, fp32 ranges between them, and blocks of special contents. The
 * reference decodes by the map built in double, updates in double, and of what the kernel encoded
 * checks the scale and that each code is the nearest one.
 */
#include <math.h>
#include <string.h>

#include "tests/unit/kernels/harness.h"

enum { RANGES = 10, BLOCK_OF_16 = 4096, N = 53760, MOMENTS = 2 };

/* Blocks of 256 from element 0 on; blocks of 16 behind fp32; all sizes; fp32 at the end. Elements
 * 32768 and 49152 are where a thread's piece ends. */
static const struct hd_update_range layout[RANGES] = {
    {0, 4096, 1, 1, 0, 256},     {4096, 4128, 0, 1, 0, 0},   {4128, 8192, 1, 1, 0, 16},
    {8192, 8448, 1, 0.5f, 0, 8}, {8448, 8704, 0, 1, 0, 32},  {8704, 8960, 1, 1, 0, 64},
    {8960, 33024, 1, 1, 0, 128}, {33024, 33032, 1, 1, 0, 8}, {33280 - 248, 33280, 0, 1, 0, 0},
    {33280, N, 1, 1, 0, 256}};

/* State of elements [begin, end) has. */
struct shard {
    int64_t begin, end, range_count, moment_bytes;
    struct hd_update_range *ranges;
    struct tensor *weight, *grad, *copy;
    char *moment[MOMENTS];
};

static struct shard cut(int64_t begin, int64_t end)
{
    struct shard s = {.begin = begin, .end = end};

    s.ranges = reachable(layout, sizeof layout);
    for (int k = 0; k < RANGES; k++) {
        struct hd_update_range r = layout[k];

        r.begin = (r.begin > begin ? r.begin : begin) - begin;
        r.end = (r.end < end ? r.end : end) - begin;
        r.moments = s.moment_bytes;
        if (r.begin >= r.end)
            continue;
        s.moment_bytes += hd_encoding_bytes(r.end - r.begin, r.block);
        s.ranges[s.range_count++] = r;
    }
    for (int m = 0; m < MOMENTS; m++)
        s.moment[m] = reachable(NULL, (size_t)s.moment_bytes);
    return s;
}

/* Returns the code of element i of the whole and the scale of its block, or NULL in fp32. */
static uint8_t *code_of(const struct shard *s, int moment, int64_t i, float **ret_scale)
{
    const struct hd_update_range *r = s->ranges;
    char *run;

    i -= s->begin;
    while (r->end <= i)
        r++;
    run = s->moment[moment] + r->moments;
    *ret_scale = r->block ? (float *)run + (i - r->begin) / r->block : NULL;
    if (!r->block)
        return (uint8_t *)((float *)run + (i - r->begin));
    return (uint8_t *)run + hd_encoding_scales_bytes(r->end - r->begin, r->block) + i - r->begin;
}

static double moment_of(const struct shard *s, int moment, int64_t i)
{
    float *scale, value;
    const uint8_t *code = code_of(s, moment, i, &scale);

    if (scale)
        return (double)hd_encoding_value(*code, moment ? HD_MAP_UNSIGNED : HD_MAP_SIGNED) *
               (double)*scale;
    memcpy(&value, code, sizeof value);
    return (double)value;
}

/* Bounds of special ranges: elements 256 to 511 have never had a gradient; of the next block only
 * the first element has, the others are padding; of the next the first gradient is 1e5 times the
 * others, whose second moments are far below what the map reaches; the largest of the next is
 * negative. */
enum { ZEROS = 256, PADDED = 512, STEEP = 768, NEGATIVE = 1024, ORDINARY = 1280 };

static double grad_at(const struct tensor *random, int64_t i)
{
    if (i >= ZEROS && i < STEEP && i != PADDED)
        return 0;
    if (i >= STEEP && i < NEGATIVE)
        return i == STEEP ? 10 : 1e-4;
    return i == NEGATIVE ? -50 : random->values[i];
}

static void fill(struct shard *s, const struct tensor *grad, const struct tensor *weight,
                 enum hd_dtype copy_dtype, bool fresh)
{
    const struct tensor *m = tensor_random(N, HD_F32, 0.1, 3);
    const int64_t count = s->end - s->begin;

    s->weight = tensor_new(count, HD_F32);
    s->grad = tensor_new(count, HD_F32);
    s->copy = tensor_new(count, copy_dtype);
    for (int64_t i = s->begin; i < s->end; i++) {
        tensor_put(s->weight, i - s->begin, weight->values[i]);
        tensor_put(s->grad, i - s->begin, grad_at(grad, i));
        for (int k = 0; k < MOMENTS && !fresh && i >= ORDINARY; k++) {
            float *scale, value = (float)(k ? m->values[i] * m->values[i] : m->values[i]);
            uint8_t *code = code_of(s, k, i, &scale);

            if (scale) {
                *scale = k ? 0.04f : i % 512 < 256 ? 0.3f : -0.3f;
                *code = (uint8_t)(i * 37);
            } else {
                memcpy(code, &value, sizeof value);
            }
        }
    }
}

static void update(struct device *device, const struct shard *s, struct hd_step_state *block,
                   bool with_copy)
{
    device_launch(device, HD_K_adamw,
                  &(struct hd_adamw_args){.weight = s->weight->data,
                                          .m = s->moment[0],
                                          .v = s->moment[1],
                                          .copy = with_copy ? s->copy->data : NULL,
                                          .grad = s->grad->data,
                                          .block = block,
                                          .ranges = s->ranges,
                                          .N = s->end - s->begin,
                                          .range_count = s->range_count,
                                          .moment_bytes = s->moment_bytes,
                                          .copy_dtype = s->copy->dtype});
}

/* ---- one update ---- */

static void in_double(const struct hd_step_state *block, const struct shard *s, double *w,
                      double *m, double *v)
{
    for (int64_t k = 0; k < s->range_count; k++) {
        const struct hd_update_range *r = &s->ranges[k];
        const struct ref_adamw ref = {.lr = (double)block->lr * (double)r->lr_scale,
                                      .beta1 = (double)block->beta1,
                                      .beta2 = (double)block->beta2,
                                      .eps = (double)block->adam_eps,
                                      .weight_decay =
                                          (double)block->weight_decay * (double)r->decay,
                                      .step = block->update};
        double *scaled = doubles(r->end - r->begin);

        for (int64_t i = r->begin; i < r->end; i++) {
            w[i] = s->weight->values[i];
            m[i] = moment_of(s, 0, i);
            v[i] = moment_of(s, 1, i);
            scaled[i - r->begin] = s->grad->values[i] * 0.25;
        }
        ref_adamw(&ref, w + r->begin, m + r->begin, v + r->begin, scaled, r->end - r->begin);
    }
}

/* Returns the largest magnitude of a block, with its sign. */
static double largest_of(const double *want, int64_t count)
{
    double most = 0;

    for (int64_t i = 0; i < count; i++)
        if (fabs(want[i]) > fabs(most))
            most = want[i];
    return most;
}

/* Returns the distance of x to the nearest of the ascending values, x; of those > 0 alone if
 * `positive`. */
static double distance_to_nearest(const double values[256], double x, bool positive)
{
    int low = 0, high = 255;

    while (high - low > 1) {
        const int middle = (low + high) / 2;

        if (values[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    if (positive && values[low] <= 0)
        return fabs(values[high] - x);
    return fmin(fabs(values[low] - x), fabs(values[high] - x));
}

/* The scale is the largest element, and each code that of the nearest value; a second moment > 0
 * stays > 0. */
static void check_block(const struct shard *s, int moment, int64_t begin, int64_t count,
                        const double *want)
{
    const double scale_wanted = largest_of(want + begin, count);
    double values[256];
    float *scale;

    ref_dynamic_map(values, moment == 0);
    (void)code_of(s, moment, begin, &scale);
    assert_close_at("scale", begin, (double)*scale, scale_wanted, fabs(scale_wanted) * 1e-6);
    for (int64_t i = begin; i < begin + count; i++) {
        const double got = moment_of(s, moment, i);
        const double off = *scale == 0 ? fabs(want[i])
                                       : fabs((double)*scale) *
                                             distance_to_nearest(values, want[i] / (double)*scale,
                                                                 moment == 1 && want[i] > 0);

        assert_close_at(moment ? "v" : "m", i, got, want[i],
                        off + 1e-6 * fabs(got) + 1e-5 * fabs(want[i])); /* and last bits of fp32 */
        if (moment == 1)
            assert_true((got > 0) == (want[i] > 0));
    }
}

static void check_update(struct device *device, enum hd_dtype copy_dtype, bool with_copy,
                         bool fresh)
{
    const struct tensor *grad = tensor_random(N, HD_F32, 1, 1);
    const struct tensor *weight = tensor_random(N, HD_F32, 1, 2);
    struct hd_step_state block = adam_block();
    struct shard s = cut(0, N);
    double *w = doubles(N), *m = doubles(N), *v = doubles(N);

    fill(&s, grad, weight, copy_dtype, fresh);
    in_double(&block, &s, w, m, v);
    update(device, &s, &block, with_copy);
    assert_close("weight", s.weight, w, 2);
    for (int64_t k = 0; k < s.range_count; k++) {
        const struct hd_update_range *r = &s.ranges[k];

        for (int64_t i = r->begin; r->block && i < r->end; i += r->block) {
            check_block(&s, 0, i, r->block, m);
            check_block(&s, 1, i, r->block, v);
        }
        for (int64_t i = r->begin; !r->block && i < r->end; i++) {
            assert_close_at("m in fp32", i, moment_of(&s, 0, i), m[i], 1e-6 * (fabs(m[i]) + 0.1));
            assert_close_at("v in fp32", i, moment_of(&s, 1, i), v[i], 1e-6 * (v[i] + 0.1));
        }
    }
    for (int64_t i = 0; with_copy && i < N; i++) {
        const double is = tensor_get(s.weight, i);

        assert_close_at("copy", i, tensor_get(s.copy, i), is, rounding_of(copy_dtype, is));
    }
    for (int64_t i = ZEROS; i < STEEP; i++) /* no gradient yet: exact zeros, not small numbers */
        if (i != PADDED)
            assert_true(moment_of(&s, 0, i) == 0 && moment_of(&s, 1, i) == 0);
}

static void an_update_is_that_of_the_decoded_moments(void **state)
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        for (int kind = 0; kind < 2 * float_type_count; kind++)
            if (on_takes(setting, kind, 2)) {
                check_update(&device, float_types[kind / 2], kind % 2, kind == 0);
                tensors_free();
            }
        device_close(&device);
    }
}

/* Goal: a gradient that is 1e-5 of the block's largest has a second moment of 1e-10 of the largest,
 * which no code reaches. As 0, when gradients of 0 follow, it would divide the first moment by eps:
 * a step of some 1e-6 / 1e-8 rates. Method: 5 steps, and 15 without gradients but the largest; no
 * weight moves by more than a rate each. */
static void a_small_second_moment_does_not_make_a_large_step(void **state)
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);
        const struct tensor *grad = tensor_random(N, HD_F32, 1, 1);
        const struct tensor *weight = tensor_random(N, HD_F32, 1, 2);
        struct hd_step_state block = adam_block();
        struct shard s = cut(0, BLOCK_OF_16);

        block.weight_decay = 0;
        block.adam_eps = 1e-8f;
        fill(&s, grad, weight, HD_F32, true);
        for (block.update = 1; block.update <= 20; block.update++) {
            for (int64_t i = STEEP + 1; block.update == 6 && i < NEGATIVE; i++)
                tensor_put(s.grad, i, 0);
            update(&device, &s, &block, false);
        }
        for (int64_t i = ZEROS; i < NEGATIVE; i++) {
            const double moved = fabs(tensor_get(s.weight, i) - weight->values[i]);

            assert_true(moved <= 20.5 * (double)block.lr);
            if (i < STEEP && i != PADDED)
                assert_true(moved == 0);
        }
        tensors_free();
        device_close(&device);
    }
}

/* A gradient that is not finite, in a step that is skipped. */
static void a_skipped_step_changes_no_code(void **state)
{
    struct device device = device_open(&settings[0]);
    const struct tensor *grad = tensor_random(N, HD_F32, 1, 1);
    const struct tensor *weight = tensor_random(N, HD_F32, 1, 2);
    struct hd_step_state block = adam_block();
    struct shard s = cut(0, N);
    void *then[MOMENTS];

    fill(&s, grad, weight, HD_F32, false);
    for (int m = 0; m < MOMENTS; m++)
        then[m] = reachable(s.moment[m], (size_t)s.moment_bytes);
    tensor_put(s.grad, 7, NAN);
    block.skip_update = 1;
    update(&device, &s, &block, true);
    for (int m = 0; m < MOMENTS; m++)
        assert_memory_equal(s.moment[m], then[m], (size_t)s.moment_bytes);
    for (int64_t i = 0; i < N; i++)
        assert_true(tensor_get(s.weight, i) == s.weight->values[i]);
    tensors_free();
    device_close(&device);
}

/* Goal: ZeRO may cut a part at any multiple of HD_GRAD_CHUNK without changing a bit. Method: the
 * whole, and the same in two shards, twice each. */
static void blocks_do_not_depend_on_the_cut(void **state)
{
    enum { AT = 5 * HD_GRAD_CHUNK };

    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);
        const struct tensor *grad = tensor_random(N, HD_F32, 1, 1);
        const struct tensor *weight = tensor_random(N, HD_F32, 1, 2);
        struct shard whole = cut(0, N), halves[2] = {cut(0, AT), cut(AT, N)};
        struct hd_step_state block = adam_block();

        fill(&whole, grad, weight, HD_F32, false);
        for (int h = 0; h < 2; h++)
            fill(&halves[h], grad, weight, HD_F32, false);
        for (int step = 0; step < 2; step++) {
            update(&device, &whole, &block, false);
            update(&device, &halves[0], &block, false);
            update(&device, &halves[1], &block, false);
        }
        for (int64_t i = 0; i < N; i++) {
            const struct shard *half = &halves[i >= AT];

            assert_true(tensor_get(whole.weight, i) == tensor_get(half->weight, i - half->begin));
            for (int m = 0; m < MOMENTS; m++) {
                float *scale[2];
                const uint8_t *a = code_of(&whole, m, i, &scale[0]);
                const uint8_t *b = code_of(half, m, i, &scale[1]);

                assert_memory_equal(a, b, scale[0] ? 1 : sizeof(float));
                if (scale[0])
                    assert_memory_equal(scale[0], scale[1], sizeof(float));
            }
        }
        tensors_free();
        device_close(&device);
    }
}

RUN_CASES()
