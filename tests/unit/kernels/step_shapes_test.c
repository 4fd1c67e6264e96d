/* step_shapes: the loss, the gradient norm and AdamW at the sizes and places where packs, warps,
 * blocks and what a block can keep of a row end. */
#include <math.h>
#include <string.h>

#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

/* ---- Loss ---- */

struct rows {
    int64_t R, V, Vp;
    int64_t offset; /* elements by which dlogits is displaced against logits; both by as much: in
                       place */
    bool in_place;
};

static const struct rows rows[] = {
    {.R = 1, .V = 1, .Vp = 1},
    {.R = 3, .V = 3, .Vp = 3, .in_place = true},
    {.R = 2, .V = 3, .Vp = 16},
    {.R = 5, .V = 67, .Vp = 67, .in_place = true},
    {.R = 5, .V = 67, .Vp = 67, .offset = 1},
    {.R = 3, .V = 64, .Vp = 71, .offset = 2, .in_place = true},
    {.R = 1500, .V = 4, .Vp = 5},
};
/* Rows of GPT-2's vocabulary, without and with padding; and a row that no block keeps whole. */
static const struct rows long_rows[] = {
    {.R = 3, .V = 50257, .Vp = 50257, .in_place = true},
    {.R = 2, .V = 50257, .Vp = 50304},
    {.R = 2, .V = 151643, .Vp = 151936, .in_place = true},
};

/* Every third row has only two logits that are not minus infinity, or one. A target of the first
 * and of the last column and a masked one are among the rows where there are so many. Around the
 * rows nothing is written, and in the padding stands NaN. */
static void check_rows(struct device *device, const struct rows *s, enum hd_dtype dtype)
{
    const int64_t R = s->R, V = s->V, Vp = s->Vp, count = R * Vp;
    const size_t size = hd_dtype_size(dtype);
    struct tensor *whole = tensor_random(count + 2 * s->offset, dtype, 3, 1);
    struct tensor *other = s->in_place ? whole : tensor_new(count + 2 * s->offset, dtype);
    struct tensor *target = tensor_random_int32(R, 0, V, 2), used = *other;
    struct hd_step_state block = {.loss_scale = 8};
    const int64_t at = s->in_place ? s->offset : 0; /* of logits */
    double *want = doubles(count), *logits = doubles(count), loss, units;
    int64_t counted = R;

    tensor_put(target, 0, 0);
    if (R > 1)
        tensor_put(target, 1, (double)V - 1);
    if (R > 2) {
        tensor_put(target, 2, -1);
        counted--;
    }
    for (int64_t i = 0; i < count; i++) {
        const int64_t r = i / Vp, v = i % Vp;

        if (v >= V)
            tensor_put(whole, at + i, NAN);
        else if (r % 3 == 0 && v != tensor_get(target, r) && v != V / 2)
            tensor_put(whole, at + i, -INFINITY);
        else if (r == 1) /* as a model begins: sums of exponentials beyond every logit */
            tensor_put(whole, at + i, 0.25);
        logits[i] = whole->values[at + i];
    }
    loss = ref_cross_entropy(want, logits, target->data, R, V, Vp, 8);
    device_launch(
        device, HD_K_cross_entropy,
        &(struct hd_cross_entropy_args){.dlogits = (char *)other->data + (size_t)s->offset * size,
                                        .block = &block,
                                        .logits = (char *)whole->data + (size_t)at * size,
                                        .target = target->data,
                                        .R = R,
                                        .V = V,
                                        .Vp = Vp,
                                        .dtype = dtype});
    /* A sum of V exponentials, of which a thread or lane adds up to a hundred or some thousand. */
    units = FP32_UNITS + (double)V / 512;
    assert_close_at("loss", 0, block.loss_sum, loss, (double)R * 20 * units * 0x1p-24);
    assert_int_equal(block.target_count, counted);
    assert_int_equal(block.overflow, 0);
    used.data = (char *)other->data + (size_t)s->offset * size;
    used.count = count;
    assert_close("dlogits", &used, want, units);
    for (int64_t i = 0; i < s->offset; i++) {
        const int64_t behind = s->offset + count + i;

        assert_true(s->in_place ? tensor_get(other, i) == other->values[i]
                                : isnan(tensor_get(other, i)));
        assert_true(s->in_place ? tensor_get(other, behind) == other->values[behind]
                                : isnan(tensor_get(other, behind)));
    }
    tensors_free();
}

static void a_loss_of_any_shape_is_the_reference(void **state)
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
            for (int type = 0; type < float_type_count; type++)
                check_rows(&device, &rows[i], float_types[type]);
        device_close(&device);
    }
}

static void a_loss_over_a_long_vocabulary_is_the_reference(void **state)
{
    for (int setting = 1; setting < 3; setting++) {
        struct device device = device_open(&settings[setting]);

        for (size_t i = 0; i < sizeof long_rows / sizeof long_rows[0]; i++)
            for (int type = 0; type < float_type_count; type++)
                check_rows(&device, &long_rows[i], float_types[type]);
        device_close(&device);
    }
}

/* Goal: a target that is nobody's is seen wherever it stands, and the others count. */
static void every_target_outside_is_seen(void **state)
{
    enum { R = 1100, V = 2 };
    struct device device = device_open(&settings[2]);
    const struct tensor *logits = tensor_random(R * V, HD_F32, 1, 1);
    struct tensor *target = tensor_random_int32(R, 0, V, 2);

    for (int64_t r = 0; r < R; r += 157) {
        struct hd_step_state block = {.loss_scale = 1};

        tensor_put(target, r, V);
        device_launch(&device, HD_K_cross_entropy,
                      &(struct hd_cross_entropy_args){.block = &block,
                                                      .logits = logits->data,
                                                      .target = target->data,
                                                      .R = R,
                                                      .V = V,
                                                      .Vp = V,
                                                      .dtype = HD_F32});
        assert_int_equal(block.overflow, 1);
        assert_int_equal(block.target_count, R - 1);
        tensor_put(target, r, 0);
    }
    tensors_free();
    device_close(&device);
}

/* ---- Norm ---- */

/* Goal: sums do not depend on where a gradient lies in memory. Method: the same values at a bound
 * of 64 bytes and one element further. */
static void square_sums_do_not_depend_on_the_address(void **state)
{
    static const int64_t sizes[] = {1, 3, 5, 4099, HD_GRAD_CHUNK + 2};

    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            const int64_t N = sizes[s], chunks = (N + HD_GRAD_CHUNK - 1) / HD_GRAD_CHUNK;
            struct tensor *grad = tensor_random(N, HD_F32, 1, 1);
            struct tensor *displaced = tensor_new(N + 1, HD_F32);
            struct tensor *sums[2] = {tensor_new(chunks, HD_F64), tensor_new(chunks, HD_F64)};
            struct hd_step_state block = {0};
            struct hd_square_sums_args a = {
                .sums = sums[0]->data, .block = &block, .grad = grad->data, .N = N};
            double want = 0;

            for (int64_t i = 0; i < N; i++) {
                tensor_put(displaced, i + 1, grad->values[i]);
                want += grad->values[i] * grad->values[i];
            }
            device_launch(&device, HD_K_square_sums, &a);
            a.sums = sums[1]->data;
            a.grad = (const float *)displaced->data + 1;
            device_launch(&device, HD_K_square_sums, &a);
            assert_same_bits("sums", sums[0], sums[1]);
            for (int64_t i = 0; i < chunks; i++)
                want -= tensor_get(sums[0], i);
            assert_close_at("what is left of the sum", s, want, 0, (double)N * 1e-12);
            assert_int_equal(block.overflow, 0);
        }
        tensors_free();
        device_close(&device);
    }
}

static void a_record_adds_every_chunk(void **state)
{
    enum { CHUNKS = 3001 };
    struct device device = device_open(&settings[2]);
    const struct tensor *sums = tensor_random(CHUNKS, HD_F64, 1, 1);
    struct tensor *record = tensor_new(HD_EXCHANGE_WORDS, HD_F64);
    struct hd_step_state block = {
        .loss_sum = 3, .target_count = 5, .request = 7, .too_many_rows = 1};
    double want = 0;

    for (int64_t i = 0; i < CHUNKS; i++)
        want += sums->values[i];
    device_launch(&device, HD_K_step_record,
                  &(struct hd_step_record_args){.record = record->data,
                                                .block = &block,
                                                .sums = sums->data,
                                                .chunks = CHUNKS,
                                                .counts_loss = true});
    assert_close_at("squares", 0, tensor_get(record, HD_EXCHANGE_SQUARES), want, 1e-9);
    assert_true(tensor_get(record, HD_EXCHANGE_LOSS) == 3);
    assert_true(tensor_get(record, HD_EXCHANGE_TARGETS) == 5);
    assert_true(tensor_get(record, HD_EXCHANGE_OVERFLOW) == HD_EXCHANGE_TOO_MANY_ROWS);
    assert_true(tensor_get(record, HD_EXCHANGE_REQUEST) == 7);
    tensors_free();
    device_close(&device);
}

/* ---- AdamW ---- */

/* Ranges of 1, 2, 3, .. elements with other factors each, so that most packs meet an end; against
 * the reference range by range. `displaced`: no operand begins on a bound of 16 bytes. */
static void check_ranges(struct device *device, int64_t N, int64_t longest, bool displaced,
                         enum hd_dtype copy_dtype)
{
    const struct hd_step_state values = {.update = 1000,
                                         .lr = 0.01f,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.999f,
                                         .adam_eps = 1e-8f,
                                         .weight_decay = 0.1f,
                                         .grad_factor = 0.5f};
    struct hd_step_state block = values;
    struct tensor *t[4]; /* weight, m, v, grad */
    double *scaled = doubles(N);
    struct hd_update_range *ranges;
    int64_t range_count = 0, count = N + displaced;
    struct tensor *copy = tensor_new(count, copy_dtype);

    for (int i = 0; i < 4; i++)
        t[i] = tensor_random(count, HD_F32, 1, (uint64_t)i + 1);
    for (int64_t i = 0; i < count; i++)
        tensor_put(t[2], i, t[2]->values[i] * t[2]->values[i]);
    ranges = reachable(NULL, (size_t)N * sizeof *ranges);
    for (int64_t begin = 0; begin < N; range_count++) {
        const int64_t length = 1 + range_count % longest;

        ranges[range_count] =
            (struct hd_update_range){.begin = begin,
                                     .end = begin + length < N ? begin + length : N,
                                     .decay = (float)(range_count % 2),
                                     .lr_scale = 1 + (float)(range_count % 5) / 8};
        begin += length;
    }
    for (int64_t i = 0; i < N; i++)
        scaled[i] = t[3]->values[i + displaced] * 0.5;
    for (int64_t k = 0; k < range_count; k++) {
        const int64_t begin = ranges[k].begin, at = begin + displaced;
        const struct ref_adamw ref = {.lr = (double)block.lr * (double)ranges[k].lr_scale,
                                      .beta1 = (double)block.beta1,
                                      .beta2 = (double)block.beta2,
                                      .eps = (double)block.adam_eps,
                                      .weight_decay =
                                          (double)block.weight_decay * (double)ranges[k].decay,
                                      .step = block.update};

        ref_adamw(&ref, t[0]->values + at, t[1]->values + at, t[2]->values + at, scaled + begin,
                  ranges[k].end - begin);
    }
    device_launch(device, HD_K_adamw,
                  &(struct hd_adamw_args){.weight = (float *)t[0]->data + displaced,
                                          .m = (float *)t[1]->data + displaced,
                                          .v = (float *)t[2]->data + displaced,
                                          .grad = (const float *)t[3]->data + displaced,
                                          .copy = (char *)copy->data +
                                                  (displaced ? hd_dtype_size(copy_dtype) : 0),
                                          .copy_dtype = copy_dtype,
                                          .block = &block,
                                          .ranges = ranges,
                                          .N = N,
                                          .range_count = range_count});
    assert_close("weight", t[0], t[0]->values, 2);
    assert_close("m", t[1], t[1]->values, 2);
    assert_close("v", t[2], t[2]->values, 2);
    for (int64_t i = displaced; i < count; i++) {
        const double weight = tensor_get(t[0], i);

        assert_close_at("copy", i, tensor_get(copy, i), weight, rounding_of(copy_dtype, weight));
    }
    assert_true(!displaced || isnan(tensor_get(copy, 0)));
    assert_memory_equal(&block, &values, sizeof block);
}

static void every_range_has_its_factors(void **state)
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        for (int i = 0; i < 2 * float_type_count; i++) {
            const enum hd_dtype copy_dtype = float_types[i / 2];
            const bool displaced = i % 2;

            check_ranges(&device, 1, 1, displaced, copy_dtype);
            check_ranges(&device, 7, 3, displaced, copy_dtype);
            check_ranges(&device, 301, 1, displaced, copy_dtype);
            check_ranges(&device, 30001, 11, displaced, copy_dtype);
            check_ranges(&device, 30002, 5000, displaced, copy_dtype);
            tensors_free();
        }
        device_close(&device);
    }
}

RUN_CASES()
