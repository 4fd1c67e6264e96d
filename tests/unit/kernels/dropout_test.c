/* dropout: what is kept, against the contract in ops.h recomputed from base/random; that it
 * depends on the place in the job alone; and that it looks random. */
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "tests/unit/kernels/harness.h"

enum { SEED = 7, LAYER = 3, SITE = 1, STEP = 12 };

/* Rows of some samples from some index on, as a batch has them. */
struct problem {
    struct tensor *inp, *out, *sample, *index;
    struct hd_step_state block;
    struct dropping dropping;
    struct hd_dropout_args args;
};

static void make(struct problem *p, int64_t R, int64_t C, int64_t first_channel, float probability,
                 enum hd_dtype dtype)
{
    p->inp = tensor_random(R * C, dtype, 1, 41);
    p->out = tensor_new(R * C, dtype);
    p->sample = tensor_new(R, HD_I32);
    p->index = tensor_new(R, HD_I32);
    for (int64_t r = 0; r < R; r++) {
        tensor_put(p->sample, r, (double)(5 + r / 4));
        tensor_put(p->index, r, (double)(1000 + r % 4));
    }
    p->block = (struct hd_step_state){.step = STEP};
    p->dropping = (struct dropping){hd_dropout_key(SEED, LAYER, SITE), STEP, (double)probability};
    p->args = (struct hd_dropout_args){.out = p->out->data,
                                       .inp = p->inp->data,
                                       .sample = p->sample->data,
                                       .index = p->index->data,
                                       .block = &p->block,
                                       .key = p->dropping.key,
                                       .R = R,
                                       .C = C,
                                       .first_channel = first_channel,
                                       .p = probability,
                                       .dtype = dtype};
}

static double *wanted(const struct problem *p)
{
    const int64_t C = p->args.C;
    double *want = doubles(p->inp->count);

    for (int64_t i = 0; i < p->inp->count; i++)
        want[i] =
            p->inp->values[i] * dropout_factor(&p->dropping, (int64_t)p->sample->values[i / C],
                                               (int64_t)p->index->values[i / C], 0,
                                               p->args.first_channel + i % C);
    return want;
}

/* Channels on both sides of a vector, of what a vector of calls gives and of 256; shares that begin
 * within the four channels of a call. */
static void what_stays_is_the_contract(void **state)
{
    static const int64_t cases[][2] = {{1, 0}, {5, 2}, {40, 0}, {255, 3}, {257, 1}, {600, 252}};
    enum { CASES = sizeof cases / sizeof cases[0], PROBABILITIES = 4 };
    static const float probabilities[] = {0, 0.1f, 0.5f, 0.97f};

    for (int i = 0; i < CASES * PROBABILITIES * float_type_count; i++) {
        const int64_t *size = cases[i / float_type_count / PROBABILITIES];
        struct tensor *first = NULL;
        struct problem p;
        double *want;

        make(&p, 9, size[0], size[1], probabilities[i / float_type_count % PROBABILITIES],
             float_types[i % float_type_count]);
        want = wanted(&p);
        for (int setting = 0; setting < setting_count; setting++) {
            struct device device = device_open(&settings[setting]);

            tensor_poison(p.out);
            device_launch(&device, HD_K_dropout, &p.args);
            assert_close("out", p.out, want, 2); /* of the quotient and of the product */
            for (int64_t j = 0; j < p.out->count; j++)
                assert_true((tensor_get(p.out, j) == 0) == (want[j] == 0));
            if (!first)
                first = tensor_copy(p.out);
            assert_same_bits("out of another setting", p.out, first);
            device_close(&device);
        }
        tensors_free();
    }
}

/* Returns the noise of a channel by the contract in ops.h, before its factor. */
static double uniform(uint64_t key, int64_t sample, int64_t index, int64_t channel)
{
    uint32_t words[4];

    hd_random_philox(hd_random_key(key, STEP), (uint64_t)(channel / 4) | (uint64_t)index << 32,
                     (uint64_t)sample << 32, words);
    return (2.0 * (words[channel % 4] >> 8) + 1) * 0x1p-24 - 1;
}

/* Channels on both sides of a vector and of 256; rows of conversations of several lengths, and of
 * padding. Every setting gives the same bits. */
static void noise_is_the_contract(void **state)
{
    static const int64_t channels[] = {1, 5, 40, 255, 257, 600};
    enum { R = 9, CASES = sizeof channels / sizeof channels[0] };

    for (int i = 0; i < CASES * float_type_count; i++) {
        const int64_t C = channels[i / float_type_count];
        struct tensor *length = tensor_new(R, HD_I32);
        double *want = doubles(R * C);
        struct problem p;

        make(&p, R, C, 0, 0, float_types[i % float_type_count]);
        for (int64_t r = 0; r < R; r++)
            tensor_put(length, r, (double)(r % 4 ? 10 * r : 0));
        for (int64_t k = 0; k < R * C; k++) {
            const int64_t r = k / C, L = r % 4 ? 10 * r : 0;
            const double u = uniform(p.args.key, 5 + r / 4, 1000 + r % 4, k % C);

            want[k] = p.inp->values[k] + (L ? 5 / sqrt((double)(L * C)) * u : 0);
        }
        for (int setting = 0; setting < setting_count; setting++) {
            struct device device = device_open(&settings[setting]);
            struct hd_noise_args a = {.out = p.out->data,
                                      .inp = p.inp->data,
                                      .sample = p.sample->data,
                                      .index = p.index->data,
                                      .length = length->data,
                                      .block = &p.block,
                                      .key = p.args.key,
                                      .R = R,
                                      .C = C,
                                      .alpha = 5,
                                      .dtype = p.args.dtype};

            tensor_poison(p.out);
            device_launch(&device, HD_K_noise, &a);
            assert_close("out", p.out, want, FP32_UNITS);
            device_close(&device);
        }
        tensors_free();
    }
}

/* Rows of experts 6 to 8, of which the second one has none; the last two rows are of no expert. The
 * same place is given to rows of two experts. */
static void experts_have_masks_of_their_own(void **state)
{
    enum { R = 9, C = 300, USED = 7, FIRST = 6 };
    static const int counts[] = {3, 0, 4}, expert[USED] = {6, 6, 6, 8, 8, 8, 8};

    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);
        struct tensor *groups = tensor_new(3, HD_I32);
        struct problem p;
        int differ = 0;

        make(&p, R, C, 4, 0.3f, HD_BF16);
        for (int i = 0; i < 3; i++)
            tensor_put(groups, i, counts[i]);
        for (int64_t r = 0; r < R; r++) { /* rows 0 and 3, 1 and 4 .. have one place */
            tensor_put(p.sample, r, 2);
            tensor_put(p.index, r, (double)(r % 3));
        }
        for (int64_t i = 0; i < R * C; i++)
            tensor_put(p.out, i, 77);
        p.args.counts = groups->data;
        p.args.groups = 3;
        p.args.first_group = FIRST;
        device_launch(&device, HD_K_dropout, &p.args);
        for (int64_t i = 0; i < R * C; i++) {
            const int64_t r = i / C;
            const double want = r >= USED ? 77
                                          : p.inp->values[i] * dropout_factor(&p.dropping, 2, r % 3,
                                                                              expert[r], 4 + i % C);

            assert_close_at("out", i, tensor_get(p.out, i), want,
                            rounding_of(HD_BF16, want) + 4 * 0x1p-24 * fabs(want));
            if (r < 3)
                differ += (want == 0) != (tensor_get(p.out, i + 3 * C) == 0);
        }
        assert_true(differ > 100); /* of 900, at a probability of 0.42 */
        tensors_free();
        device_close(&device);
    }
}

static void a_gradient_may_be_dropped_in_place(void **state)
{
    struct device device = device_open(&settings[0]);
    struct problem p;

    make(&p, 9, 300, 0, 0.3f, HD_BF16);
    device_launch(&device, HD_K_dropout, &p.args);
    p.args.out = p.inp->data;
    device_launch(&device, HD_K_dropout, &p.args);
    assert_same_bits("in place", p.inp, p.out);
    device_close(&device);
    tensors_free();
}

/* Goal: no layout changes a bit. Method: rows in two calls, then channels in two calls. */
static void a_cut_changes_no_bit(void **state)
{
    static const int64_t cuts[] = {1, 30, 256, 299};

    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct device device = device_open(&settings[1]);
        struct problem p;
        struct tensor *whole;
        const int64_t R = 10, C = 300;

        make(&p, R, C, 0, 0.2f, bf16 ? HD_BF16 : HD_F32);
        device_launch(&device, HD_K_dropout, &p.args);
        whole = tensor_copy(p.out);
        tensor_poison(p.out);
        for (int64_t first = 0; first < R; first += 3) {
            const size_t at = (size_t)(first * C) * hd_dtype_size(p.args.dtype);
            struct hd_dropout_args a = p.args;

            a.inp = (const char *)a.inp + at;
            a.out = (char *)a.out + at;
            a.sample += first;
            a.index += first;
            a.R = first + 3 < R ? 3 : R - first;
            device_launch(&device, HD_K_dropout, &a);
        }
        assert_same_bits("rows apart", p.out, whole);
        for (int i = 0; i < 8; i++) {
            const int64_t first = i % 2 ? cuts[i / 2] : 0;
            const int64_t count = i % 2 ? C - first : cuts[i / 2];
            struct tensor *inp = tensor_new(R * count, p.args.dtype);
            struct tensor *out = tensor_new(R * count, p.args.dtype);
            struct tensor *want = tensor_new(R * count, p.args.dtype);
            struct hd_dropout_args a = p.args;

            for (int64_t j = 0; j < inp->count; j++) {
                const int64_t at = j / count * C + first + j % count;

                tensor_put(inp, j, p.inp->values[at]);
                tensor_put(want, j, tensor_get(whole, at));
            }
            a.inp = inp->data;
            a.out = out->data;
            a.C = count;
            a.first_channel = first;
            device_launch(&device, HD_K_dropout, &a);
            assert_close("channels apart", out, want->values, 0);
        }
        device_close(&device);
        tensors_free();
    }
}

/* Goal: another seed, layer, site, step, sample or row has another mask. Method: two masks that
 * have nothing to do with each other agree in a share p^2 + (1-p)^2 of the places. */
static void everything_named_changes_the_mask(void **state)
{
    enum { R = 64, C = 256, KINDS = 6 };
    const double p = 0.25, agree = p * p + (1 - p) * (1 - p);
    struct device device = device_open(&settings[0]);
    struct problem problem;
    struct tensor *first;

    make(&problem, R, C, 0, (float)p, HD_F32);
    device_launch(&device, HD_K_dropout, &problem.args);
    first = tensor_copy(problem.out);
    for (int kind = 0; kind < KINDS; kind++) {
        int64_t same = 0;

        make(&problem, R, C, 0, (float)p, HD_F32);
        problem.args.key =
            hd_dropout_key(SEED + (kind == 0), LAYER + (kind == 1), SITE + (kind == 2));
        problem.block.step += kind == 3;
        for (int64_t r = 0; r < R; r++) {
            tensor_put(problem.sample, r, problem.sample->values[r] + (kind == 4 ? 100 : 0));
            tensor_put(problem.index, r, problem.index->values[r] + (kind == 5 ? 100 : 0));
        }
        device_launch(&device, HD_K_dropout, &problem.args);
        for (int64_t i = 0; i < R * C; i++)
            same += (tensor_get(problem.out, i) == 0) == (tensor_get(first, i) == 0);
        /* five standard deviations of the share */
        assert_true(fabs((double)same / (R * C) - agree) < 5 * sqrt(agree * (1 - agree) / (R * C)));
    }
    assert_int_equal(hd_dropout_key(1, 2, 3), hd_random_key(hd_random_key(1, 2), 3));
    device_close(&device);
    tensors_free();
}

/* Goal: as many stay as should, and rows differ by as much as coins do. Method: the kept of a row
 * of C are binomial: mean C (1-p), variance C p (1-p); their sample variance over R rows has a
 * standard deviation of sqrt(2 / (R - 1)) of itself. Five standard deviations each; keys are fixed,
 * so that the test says the same each time. */
static void as_many_stay_as_coins_would_leave(void **state)
{
    enum { R = 512, C = 1024 };
    static const float probabilities[] = {0.1f, 0.5f, 0.9f};

    for (int i = 0; i < 3; i++) {
        const double p = (double)probabilities[i], variance = C * p * (1 - p);
        struct device device = device_open(&settings[1]);
        double sum = 0, squares = 0;
        struct problem problem;

        make(&problem, R, C, 0, probabilities[i], HD_F32);
        for (int64_t j = 0; j < R * C; j++)
            tensor_put(problem.inp, j, 1);
        device_launch(&device, HD_K_dropout, &problem.args);
        for (int64_t r = 0; r < R; r++) {
            double kept = 0;

            for (int64_t c = 0; c < C; c++)
                kept += tensor_get(problem.out, r * C + c) != 0;
            sum += kept;
            squares += (kept - C * (1 - p)) * (kept - C * (1 - p));
        }
        assert_true(fabs(sum / R - C * (1 - p)) < 5 * sqrt(variance / R));
        assert_true(fabs(squares / R / variance - 1) < 5 * sqrt(2.0 / (R - 1)));
        device_close(&device);
        tensors_free();
    }
}

static void what_is_no_probability_is_refused(void **state)
{
    static const float probabilities[] = {-0.1f, 1, NAN};
    struct device device = device_open(&settings[0]);

    for (int i = 0; i < 3; i++) {
        struct problem p;

        make(&p, 1, 8, 0, probabilities[i], HD_F32);
        assert_int_equal(device_try(&device, HD_K_dropout, &p.args), HD_INVALID);
        assert_non_null(strstr(hd_err_message(), "in [0, 1)"));
        tensors_free();
    }
    device_close(&device);
}

RUN_CASES()
