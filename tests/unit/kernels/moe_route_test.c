/* moe_route: the router of a mixture of experts, against double arithmetic written from the
 * formulas, central differences, and PyTorch (tests/golden/noisy_gating.py). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

struct shape {
    int64_t B, S, E, K;
    bool renormalize, noisy;
    bool documents; /* sequences hold several, and rows that are no tokens */
    bool biased;    /* the choice has a select bias */
    struct hd_route_form form;
};

static const struct shape shapes[] = {
    {.B = 3, .S = 22, .E = 8, .K = 2, .renormalize = true},
    {.B = 2, .S = 33, .E = 8, .K = 2},
    {.B = 1, .S = 40, .E = 1, .K = 1},
    {.B = 5, .S = 7, .E = 37, .K = 5, .renormalize = true, .noisy = true},
    {.B = 2, .S = 9, .E = 37, .K = 1, .noisy = true},
    {.B = 2, .S = 150, .E = 64, .K = 8, .renormalize = true},
    {.B = 2, .S = 5, .E = 3, .K = 3},
    {.B = 1, .S = 1, .E = 128, .K = 8},
    {.B = 1, .S = 1200, .E = 2, .K = 1, .renormalize = true},
    {.B = 2, .S = 3, .E = 130, .K = 6, .renormalize = true, .noisy = true},
    {.B = 1, .S = 20, .E = 300, .K = 40},
    {.B = 4, .S = 23, .E = 8, .K = 2, .renormalize = true, .documents = true},
    {.B = 2, .S = 30, .E = 37, .K = 3, .noisy = true, .documents = true},
    {.B = 3, .S = 400, .E = 130, .K = 4, .documents = true},
    {.B = 2, .S = 12, .E = 9, .K = 3, .renormalize = true, .form = {.scale = 2.5f}},
    {.B = 2, .S = 17, .E = 37, .K = 4, .biased = true, .form = {.score = HD_ROUTE_SIGMOID}},
    {.B = 2,
     .S = 22,
     .E = 12,
     .K = 3,
     .renormalize = true,
     .biased = true,
     .documents = true,
     .form = {HD_ROUTE_SIGMOID, HD_ROUTE_GROUPS_BEST_TWO, .groups = 4, .kept = 2, .scale = 2.5f}},
    {.B = 2,
     .S = 9,
     .E = 12,
     .K = 4,
     .noisy = true,
     .form = {HD_ROUTE_SOFTMAX, HD_ROUTE_GROUPS_BEST, .groups = 3, .kept = 2, .scale = 16}},
    {.B = 2, .S = 11, .E = 10, .K = 3, .renormalize = true, .biased = true},
    {.B = 1, .S = 9, .E = 100, .K = 5, .biased = true, .form = {.score = HD_ROUTE_SIGMOID}},
    {.B = 1, .S = 9, .E = 160, .K = 5, .biased = true, .form = {.score = HD_ROUTE_SIGMOID}},
    {.B = 1,
     .S = 30,
     .E = 300,
     .K = 8,
     .renormalize = true,
     .biased = true,
     .form = {HD_ROUTE_SIGMOID, HD_ROUTE_GROUPS_BEST_TWO, .groups = 50, .kept = 7}},
};

/* A router's inputs and what the kernels make of them. */
struct router {
    struct shape s;
    int64_t R;
    struct tensor *logits, *noise_logits, *noise, *dgate, *select_bias;
    struct tensor *begins, *lengths; /* as in a batch */
    struct tensor *probs, *lse, *chosen, *gate, *counts, *dlogits, *dnoise_logits;
    struct hd_step_state block;
    float balance, z, share;
};

/* Cuts each sequence into documents of 1 to 12 tokens; a third of its end is padding, the whole of
 * the last sequence. Without documents a sequence is one. */
static void cut(struct router *t)
{
    const int64_t S = t->s.S;
    int64_t begin = 0;

    t->begins = tensor_int32(t->R, 0, 0);
    t->lengths = tensor_int32(t->R, S, 0);
    for (int64_t b = 0; t->s.documents && b < t->s.B; b++, begin = 0) {
        while (begin < S) {
            const bool padding = begin >= S - S / 3 || b == t->s.B - 1;
            const int64_t n = 1 + (int64_t)(hd_random_u64(5, (uint64_t)(b * S + begin)) % 12);
            const int64_t length = padding || n > S - begin ? S - begin : n;

            for (int64_t j = begin; j < begin + length; j++) {
                tensor_put(t->begins, b * S + j, (double)begin);
                tensor_put(t->lengths, b * S + j, padding ? 0 : (double)length);
            }
            begin += length;
        }
    }
}

static bool is_token(const struct router *t, int64_t r)
{
    return tensor_get(t->lengths, r) > 0;
}

/* Returns the first row of the document of row r, in the order of whole sequences. */
static int64_t document_of(const struct router *t, int64_t r)
{
    return r / t->s.S * t->s.S + (int64_t)tensor_get(t->begins, r);
}

static struct router make_router(const struct shape *s)
{
    struct router t = {.s = *s, .R = s->B * s->S, .balance = 0.3f, .z = 0.02f, .share = 0.5f};

    t.block.loss_scale = 4;
    t.block.loss_per_token = 0.375f;
    cut(&t);
    t.logits = tensor_random(t.R * s->E, HD_F32, 2, 1);
    t.noise_logits = tensor_random(t.R * s->E, HD_F32, 2, 2);
    t.noise = tensor_random(t.R * s->E, HD_F32, 1, 3);
    t.dgate = tensor_random(t.R * s->K, HD_F32, 1, 4);
    t.select_bias = tensor_random(s->E, HD_F32, 1, 5); /* spread wider than the scores */
    t.probs = tensor_new(t.R * s->E, HD_F32);
    t.lse = tensor_new(t.R, HD_F32);
    t.chosen = tensor_new(t.R * s->K, HD_I32);
    t.gate = tensor_new(t.R * s->K, HD_F32);
    t.counts = tensor_new(t.R * s->E, HD_I32);
    t.dlogits = tensor_new(t.R * s->E, HD_F32);
    t.dnoise_logits = tensor_new(t.R * s->E, HD_F32);
    return t;
}

static void run_forward(struct device *device, struct router *t)
{
    struct hd_route_forward_args a = {.probs = t->probs->data,
                                      .lse = t->lse->data,
                                      .chosen = t->chosen->data,
                                      .gate = t->gate->data,
                                      .logits = t->logits->data,
                                      .noise_logits = t->s.noisy ? t->noise_logits->data : NULL,
                                      .noise = t->s.noisy ? t->noise->data : NULL,
                                      .R = t->R,
                                      .lengths = t->s.documents ? t->lengths->data : NULL,
                                      .E = t->s.E,
                                      .K = t->s.K,
                                      .select_bias = t->s.biased ? t->select_bias->data : NULL,
                                      .form = t->s.form,
                                      .renormalize = t->s.renormalize};
    struct hd_route_counts_args s = {.counts = t->counts->data,
                                     .chosen = t->chosen->data,
                                     .begins = t->s.documents ? t->begins->data : NULL,
                                     .lengths = t->s.documents ? t->lengths->data : NULL,
                                     .at = {.Q = t->s.B, .runs = 1, .P = 1},
                                     .R = t->R,
                                     .E = t->s.E,
                                     .K = t->s.K};

    device_launch(device, HD_K_route_forward, &a);
    device_launch(device, HD_K_route_counts, &s);
}

static void run_backward(struct device *device, struct router *t)
{
    struct hd_route_backward_args a = {.dlogits = t->dlogits->data,
                                       .dnoise_logits = t->s.noisy ? t->dnoise_logits->data : NULL,
                                       .dgate = t->dgate->data,
                                       .probs = t->probs->data,
                                       .lse = t->lse->data,
                                       .chosen = t->chosen->data,
                                       .gate = t->gate->data,
                                       .noise_logits = t->s.noisy ? t->noise_logits->data : NULL,
                                       .noise = t->s.noisy ? t->noise->data : NULL,
                                       .counts = t->counts->data,
                                       .begins = t->s.documents ? t->begins->data : NULL,
                                       .lengths = t->s.documents ? t->lengths->data : NULL,
                                       .block = &t->block,
                                       .at = {.Q = t->s.B, .runs = 1, .P = 1},
                                       .form = t->s.form,
                                       .R = t->R,
                                       .E = t->s.E,
                                       .K = t->s.K,
                                       .balance = t->balance,
                                       .z = t->z,
                                       .share = t->share,
                                       .renormalize = t->s.renormalize};

    device_launch(device, HD_K_route_backward, &a);
}

/* The router's numbers in double. */
struct exact {
    double *h, *probs, *lse, *gate;
    int32_t *chosen;
};

static struct exact make_exact(const struct router *t)
{
    return (struct exact){.h = doubles(t->R * t->s.E),
                          .probs = doubles(t->R * t->s.E),
                          .lse = doubles(t->R),
                          .gate = doubles(t->R * t->s.K),
                          .chosen = (int32_t *)doubles(t->R * t->s.K)};
}

static void compute_exact(struct exact *x, const struct router *t)
{
    const struct hd_route_form *f = &t->s.form;
    const struct ref_route_form form = {.sigmoid = f->score == HD_ROUTE_SIGMOID,
                                        .best_two = f->rule == HD_ROUTE_GROUPS_BEST_TWO,
                                        .groups = f->groups,
                                        .kept = f->kept,
                                        .scale = f->scale > 0 ? (double)f->scale : 1,
                                        .select_bias = t->s.biased ? t->select_bias->values : NULL};

    ref_route(x->h, x->probs, x->lse, x->chosen, x->gate, t->logits->values,
              t->noise_logits->values, t->s.noisy ? t->noise->values : NULL, t->R, t->s.E, t->s.K,
              t->s.renormalize);
    if (f->score || f->groups || f->scale > 0 || t->s.biased)
        ref_route_by(&form, x->probs, x->lse, x->chosen, x->gate, x->h, t->R, t->s.E, t->s.K,
                     t->s.renormalize);
    for (int64_t r = 0; r < t->R; r++) {
        if (is_token(t, r))
            continue;
        x->lse[r] = 0;
        for (int64_t e = 0; e < t->s.E; e++)
            x->probs[r * t->s.E + e] = 0;
        for (int64_t k = 0; k < t->s.K; k++) {
            x->gate[r * t->s.K + k] = 0;
            x->chosen[r * t->s.K + k] = -1;
        }
    }
}

/* Sums over rows of the balancing loss of their document and of lse^2, from the formulas. */
static void exact_losses(const struct exact *x, const struct router *t, double *ret_balance,
                         double *ret_z)
{
    const struct shape *s = &t->s;

    *ret_balance = *ret_z = 0;
    for (int64_t first = 0; first < t->R; first++) {
        const int64_t n = (int64_t)tensor_get(t->lengths, first);

        if (!n || document_of(t, first) != first)
            continue;
        for (int64_t e = 0; e < s->E; e++) {
            double share = 0, mean = 0;

            for (int64_t r = first; r < first + n; r++) {
                mean += x->probs[r * s->E + e] / (double)n *
                        (s->form.score == HD_ROUTE_SIGMOID ? exp(-x->lse[r]) : 1);
                for (int64_t k = 0; k < s->K; k++)
                    share += (x->chosen[r * s->K + k] == e) / (double)(n * s->K);
            }
            *ret_balance += (double)(n * s->E) * share * mean;
        }
    }
    for (int64_t r = 0; r < t->R; r++)
        *ret_z += x->lse[r] * x->lse[r];
}

static void for_all(void (*check)(struct device *device, const struct shape *shape))
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            check(&device, &shapes[i]);
            tensors_free();
        }
        device_close(&device);
    }
}

static void check_forward(struct device *device, const struct shape *shape)
{
    struct router t = make_router(shape);
    struct exact x = make_exact(&t);
    double *counts = doubles(t.R * t.s.E);

    compute_exact(&x, &t);
    tensor_poison(t.probs);
    tensor_poison(t.lse);
    tensor_poison(t.gate);
    run_forward(device, &t);
    assert_memory_equal(t.chosen->data, x.chosen, (size_t)(t.R * t.s.K) * sizeof *x.chosen);
    assert_close("probs", t.probs, x.probs, FP32_UNITS);
    assert_close("lse", t.lse, x.lse, FP32_UNITS);
    assert_close("gate", t.gate, x.gate, FP32_UNITS);
    for (int64_t r = 0; r < t.R; r++)
        for (int64_t k = 0; is_token(&t, r) && k < t.s.K; k++)
            counts[document_of(&t, r) * t.s.E + x.chosen[r * t.s.K + k]]++;
    for (int64_t r = 0; r < t.R; r++)
        for (int64_t e = 0; is_token(&t, r) && document_of(&t, r) == r && e < t.s.E; e++)
            assert_true(tensor_get(t.counts, r * t.s.E + e) == counts[r * t.s.E + e]);
}

static void the_router_is_the_formula(void **state)
{
    for_all(check_forward);
}

/* Checks equal logits: their order is decided by the index; NaN or not, K different experts are
 * chosen. */
static void check_ties(struct device *device, const struct shape *shape)
{
    struct router t = make_router(shape);
    const int32_t *chosen = t.chosen->data;
    const int64_t E = t.s.E, K = t.s.K;

    t.s.noisy = t.s.documents = t.s.biased = false;
    for (int64_t r = 0; r < t.R; r++)
        for (int64_t e = 0; e < E; e++) /* all equal, or falling in pairs of equal ones, or NaN */
            tensor_put(t.logits, r * E + e,
                       r % 3 == 0   ? 1.5
                       : r % 3 == 1 ? -(double)(e / 2)
                       : e % 2      ? 1
                                    : NAN);
    run_forward(device, &t);
    for (int64_t r = 0; r < t.R; r++)
        for (int64_t k = 0; k < K; k++) {
            assert_in_range(chosen[r * K + k], 0, E - 1);
            if (r % 3 < 2)
                assert_int_equal(chosen[r * K + k], k);
            for (int64_t j = 0; j < k; j++)
                assert_int_not_equal(chosen[r * K + k], chosen[r * K + j]);
        }
}

static void the_lower_index_wins_a_tie(void **state)
{
    for_all(check_ties);
}

static void choices_that_cannot_be_made_are_refused(void **state)
{
    struct hd_route_forward_args wrong[] = {
        {.R = 1, .E = 4, .K = 5},
        {.R = 1, .E = 8, .K = 2, .form = {.groups = 3, .kept = 2}}, /* 3 does not divide 8 */
        {.R = 1, .E = 8, .K = 2, .form = {.groups = 4, .kept = 5}},
        {.R = 1, .E = 8, .K = 2, .form = {.groups = 4, .kept = 0}},
        {.R = 1, .E = 8, .K = 3, .form = {.groups = 4, .kept = 1}}, /* a group has 2 */
        {.R = 1,
         .E = 8,
         .K = 1,
         .form = {.rule = HD_ROUTE_GROUPS_BEST_TWO, .groups = 8, .kept = 8}},
        {.R = 1, .E = 130, .K = 1, .form = {.groups = 65, .kept = 2}},
    };
    struct device device = device_open(&settings[0]);

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(device_try(&device, HD_K_route_forward, &wrong[i]), HD_INVALID);
    device_close(&device);
}

/* Loads 5, 0, 4, 4, 7: the mean is 4. */
static void a_select_bias_moves_towards_the_mean_load(void **state)
{
    const double load[] = {5, 0, 4, 4, 7};
    const float want[] = {-0.25f, 0.25f, 0, 0, -0.25f};

    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);
        struct hd_step_state block = {.skip_update = 0};
        struct tensor *bias = tensor_new(5, HD_F32), *loads = tensor_new(5, HD_F64);
        struct hd_route_bias_args a = {
            .bias = bias->data, .load = loads->data, .block = &block, .E = 5, .rate = 0.25f};

        for (int e = 0; e < 5; e++) {
            tensor_put(bias, e, 0);
            tensor_put(loads, e, load[e]);
        }
        device_launch(&device, HD_K_route_bias, &a);
        for (int e = 0; e < 5; e++)
            assert_true(tensor_get(bias, e) == (double)want[e]);
        block.skip_update = 1;
        device_launch(&device, HD_K_route_bias, &a);
        for (int e = 0; e < 5; e++)
            assert_true(tensor_get(bias, e) == (double)want[e]);
        tensors_free();
        device_close(&device);
    }
}

/* Returns the loss whose gradient route_backward computes, in double. */
static double loss_of(struct exact *x, const struct router *t)
{
    const double scale =
        (double)t->share * (double)t->block.loss_scale * (double)t->block.loss_per_token;
    double balance, z, sum = 0;

    compute_exact(x, t);
    exact_losses(x, t, &balance, &z);
    for (int64_t i = 0; i < t->R * t->s.K; i++)
        sum += t->dgate->values[i] * x->gate[i]; /* of a row that is no token 0 */
    return sum + scale * ((double)t->balance * balance + (double)t->z * z);
}

/* Central differences over every value; the choices stay as they are at this distance. */
static double *differences(struct exact *x, const struct router *t, const struct tensor *of)
{
    const double h = 1e-5;
    double *want = doubles(of->count);

    for (int64_t i = 0; i < of->count; i++) {
        const double at = of->values[i];
        double above;

        of->values[i] = at + h;
        above = loss_of(x, t);
        of->values[i] = at - h;
        want[i] = (above - loss_of(x, t)) / (2 * h);
        of->values[i] = at;
    }
    return want;
}

static void its_gradient_is_that_of_gates_and_losses(void **state)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct router t = make_router(&shapes[i]);
        struct exact x = make_exact(&t);
        const double *dlogits, *dnoise;

        if (t.R * t.R * t.s.E > 100000) /* differences take the square of the rows */
            continue;
        dlogits = differences(&x, &t, t.logits);
        dnoise = t.s.noisy ? differences(&x, &t, t.noise_logits) : NULL;
        for (int setting = 0; setting < setting_count; setting++) {
            struct device device = device_open(&settings[setting]);

            tensor_poison(t.dlogits);
            tensor_poison(t.dnoise_logits);
            run_forward(&device, &t);
            run_backward(&device, &t);
            assert_close("dlogits", t.dlogits, dlogits, FP32_UNITS);
            if (dnoise)
                assert_close("dnoise_logits", t.dnoise_logits, dnoise, FP32_UNITS);
            device_close(&device);
        }
        tensors_free();
    }
}

/* Goal: the factor of the losses is left out only where it is meant to be. Method: half the share,
 * twice the loss scale or half the coefficients and a scaled dgate are the same gradient. */
static void a_share_scales_the_losses_alone(void **state)
{
    struct device device = device_open(&settings[1]);
    struct router t = make_router(&shapes[0]);
    struct tensor *first;

    run_forward(&device, &t);
    run_backward(&device, &t);
    first = tensor_copy(t.dlogits);
    t.share /= 4;
    t.balance *= 4;
    t.z *= 4;
    run_backward(&device, &t);
    assert_same_bits("dlogits", t.dlogits, first);
    t.block.loss_scale *= 4;
    t.balance /= 4;
    t.z /= 4;
    run_backward(&device, &t);
    assert_same_bits("dlogits", t.dlogits, first);
    tensors_free();
    device_close(&device);
}

static void threads_change_no_bit(void **state)
{
    struct router runs[2];

    for (int i = 0; i < 2; i++) {
        struct device device = device_open(&settings[i]);

        runs[i] = make_router(&shapes[3]);
        run_forward(&device, &runs[i]);
        run_backward(&device, &runs[i]);
        device_close(&device);
    }
    assert_same_bits("probs", runs[0].probs, runs[1].probs);
    assert_same_bits("gate", runs[0].gate, runs[1].gate);
    assert_same_bits("dlogits", runs[0].dlogits, runs[1].dlogits);
    assert_same_bits("dnoise_logits", runs[0].dnoise_logits, runs[1].dnoise_logits);
    tensors_free();
}

/* ---- sequences that several ranks share ---- */

enum { RANKS = 3 };

/* Rows of rank p in the order it holds them: pieces p and 2 RANKS - 1 - p of each sequence, or,
 * with one run, piece p. */
static int64_t row_of(const struct router *t, int64_t p, int64_t runs, int64_t i)
{
    const int64_t local = t->s.S / RANKS, length = local / runs;
    const int64_t b = i / local, run = i % local / length;

    return b * t->s.S + (run ? 2 * RANKS - 1 - p : p) * length + i % length;
}

/* Returns the rows of rank p of a tensor with `width` values a row. */
static struct tensor *dealt(const struct router *t, const struct tensor *from, int64_t p,
                            int64_t runs, int64_t width)
{
    const int64_t local = t->R / RANKS;
    struct tensor *mine = tensor_new(local * width, from->dtype);

    for (int64_t i = 0; i < local * width; i++)
        tensor_put(mine, i, tensor_get(from, row_of(t, p, runs, i / width) * width + i % width));
    return mine;
}

/* Counts the choices that find no room, from the definition: by document, row and k. */
static int64_t count_dropped(const struct router *t, const struct exact *x, double capacity)
{
    int64_t dropped = 0;

    for (int64_t i = 0; i < t->R * t->s.K; i++) {
        const int64_t r = i / t->s.K;
        int64_t earlier = 0;

        if (x->chosen[i] < 0)
            continue;
        for (int64_t j = document_of(t, r) * t->s.K; j < i; j++)
            earlier += x->chosen[j] == x->chosen[i];
        dropped += (double)earlier >=
                   ceil(capacity * tensor_get(t->lengths, r) * (double)t->s.K / (double)t->s.E);
    }
    return dropped;
}

/* Goal: ranks that share sequences count their documents' choices, drop and add up to what one rank
 * with all rows would. Method: the rows of one router, dealt out to RANKS ranks, against the
 * formulas. */
static void check_shares(struct device *device, int64_t runs, double capacity, bool documents)
{
    const struct shape shape = {.B = 3,
                                .S = 36,
                                .E = 5,
                                .K = 2,
                                .renormalize = true,
                                .documents = documents,
                                .form = {.score = runs > 1 ? HD_ROUTE_SIGMOID : HD_ROUTE_SOFTMAX}};
    struct router t = make_router(&shape);
    const int64_t E = shape.E, K = shape.K, local = t.R / RANKS, Q = shape.B * runs;
    struct tensor *all_chosen = tensor_new(t.R * K, HD_I32);
    struct tensor *record = tensor_new(HD_ROUTE_WORDS + E, HD_F64);
    double *want = doubles(record->count);
    struct exact x = make_exact(&t);

    run_forward(device, &t);
    compute_exact(&x, &t);
    for (int64_t i = 0; i < record->count; i++)
        tensor_put(record, i, 100); /* what earlier micro-batches left */
    for (int64_t i = 0; i < t.R * K; i++)
        tensor_put(
            all_chosen, i,
            tensor_get(t.chosen, row_of(&t, i / K / local, runs, i / K % local) * K + i % K));
    for (int64_t p = 0; p < RANKS; p++) {
        const struct hd_row_runs at = {.Q = Q, .runs = runs, .P = RANKS, .rank = p};
        const struct tensor *begins = dealt(&t, t.begins, p, runs, 1);
        const struct tensor *lengths = dealt(&t, t.lengths, p, runs, 1);
        struct tensor *counts = tensor_int32(local * E, -7, 0),
                      *slot = tensor_new(local * K, HD_I32);
        struct tensor *kept = tensor_new(E, HD_I32), *sent = tensor_new(1, HD_I32);
        struct hd_route_counts_args c = {.counts = counts->data,
                                         .chosen = all_chosen->data,
                                         .begins = begins->data,
                                         .lengths = lengths->data,
                                         .at = at,
                                         .R = local,
                                         .E = E,
                                         .K = K};
        struct hd_assign_args a = {.slot = slot->data,
                                   .counts = kept->data,
                                   .sent = sent->data,
                                   .block = &t.block,
                                   .chosen = all_chosen->data,
                                   .begins = begins->data,
                                   .lengths = lengths->data,
                                   .at = at,
                                   .R = local,
                                   .E = E,
                                   .K = K,
                                   .T = local * K,
                                   .P = 1,
                                   .capacity = capacity};

        device_launch(device, HD_K_route_counts, &c);
        device_launch(device, HD_K_assign, &a);
        for (int64_t i = 0; i < local * E; i++) {
            const int64_t r = row_of(&t, p, runs, i / E), first = document_of(&t, r);
            const bool is_first = r == first || (i / E) % (local / Q) == 0;

            /* of the whole document, or not written */
            assert_true(
                tensor_get(counts, i) ==
                (is_first && is_token(&t, r) ? tensor_get(t.counts, first * E + i % E) : -7));
        }
        device_launch(device, HD_K_route_record,
                      &(struct hd_route_record_args){.record = record->data,
                                                     .counts = counts->data,
                                                     .chosen = (const int32_t *)all_chosen->data +
                                                               p * local * K,
                                                     .slot = slot->data,
                                                     .probs = dealt(&t, t.probs, p, runs, E)->data,
                                                     .lse = dealt(&t, t.lse, p, runs, 1)->data,
                                                     .begins = begins->data,
                                                     .lengths = lengths->data,
                                                     .at = at,
                                                     .R = local,
                                                     .E = E,
                                                     .K = K,
                                                     .score = shape.form.score});
    }
    exact_losses(&x, &t, &want[HD_ROUTE_BALANCE], &want[HD_ROUTE_Z]);
    for (int64_t r = 0; r < t.R; r++)
        want[HD_ROUTE_ROWS] += is_token(&t, r);
    for (int64_t i = 0; i < t.R * K; i++)
        if (x.chosen[i] >= 0)
            want[HD_ROUTE_WORDS + x.chosen[i]]++;
    want[HD_ROUTE_DROPPED] = capacity > 0 ? (double)count_dropped(&t, &x, capacity) : 0;
    assert_true((want[HD_ROUTE_DROPPED] > 0) == (capacity > 0));
    for (int64_t i = 0; i < record->count; i++)
        assert_close_at("record", i, tensor_get(record, i), 100 + want[i], 1e-5 * want[i]);
    tensors_free();
}

static void ranks_that_share_a_sequence_find_its_sums(void **state)
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        for (int i = 0; i < 8; i++)
            check_shares(&device, 1 + i % 2, i & 2 ? 0.75 : 0, (i & 4) != 0);
        device_close(&device);
    }
}

/* ---- noise ---- */

static struct hd_route_noise_args noise_args(struct tensor *noise, struct hd_step_state *block,
                                             const struct tensor *sample,
                                             const struct tensor *index, int64_t E)
{
    return (struct hd_route_noise_args){.noise = noise->data,
                                        .block = block,
                                        .sample = sample->data,
                                        .index = index->data,
                                        .R = sample->count,
                                        .E = E,
                                        .key = hd_dropout_key(7, 3, 1)};
}

/* Goal: a row's noise belongs to its place in the data, not to where it is computed. Method: the
 * rows in another order and on other threads, and the number that the header names; another step,
 * layer, seed, sample or place gives other numbers. */
static void noise_is_keyed_by_step_layer_and_place(void **state)
{
    enum { R = 300, E = 7 };
    struct hd_step_state block = {.step = 11};
    struct tensor *sample = tensor_int32(R, 1000, 1), *index = tensor_int32(R, 0, 3);
    struct tensor *sample_back = tensor_int32(R, 1000 + R - 1, -1);
    struct tensor *index_back = tensor_int32(R, 3 * (R - 1), -3);
    struct tensor *noise = tensor_new(R * E, HD_F32), *back = tensor_new(R * E, HD_F32);
    struct tensor *same_place = tensor_int32(R, 5, 0), *other = tensor_new(R * E, HD_F32);
    struct hd_route_noise_args a = noise_args(noise, &block, sample, index, E);
    struct hd_route_noise_args b = noise_args(back, &block, sample_back, index_back, E);

    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        device_launch(&device, HD_K_route_noise, &a);
        device_launch(&device, HD_K_route_noise, &b);
        for (int64_t i = 0; i < R * E; i++)
            assert_true(tensor_get(noise, i) == tensor_get(back, (R - 1 - i / E) * E + i % E));
        for (int64_t i = 0; i < R * E; i++) {
            float pair[2];

            hd_random_normals(hd_random_key(a.key, 11),
                              (uint64_t)(i % E / 2) | (uint64_t)(3 * (i / E)) << 32,
                              (uint64_t)(1000 + i / E) << 32, pair);
            assert_true(tensor_get(noise, i) == (double)pair[i % E % 2]);
        }
        for (int change = 0; change < 5; change++) {
            struct hd_step_state other_block = block;
            struct hd_route_noise_args c = a;

            c.noise = other->data;
            c.block = &other_block;
            other_block.step += change == 0;
            c.key = hd_dropout_key(7 + (change == 2), 3 + (change == 1), 1);
            if (change == 3)
                c.sample = same_place->data;
            if (change == 4)
                c.index = same_place->data;
            device_launch(&device, HD_K_route_noise, &c);
            for (int64_t i = 0; i < R * E; i++) /* but for the row that stands at 5 in both */
                if (!(change == 4 && tensor_get(index, i / E) == 5))
                    assert_true(tensor_get(noise, i) != tensor_get(other, i));
        }
        device_close(&device);
    }
    tensors_free();
}

/* The mean of N numbers is 0 5 / sqrt(N), the mean square 1 within 5 sqrt(2 / N), and so is the
 * mean product of neighbours, which come from one call of the generator. */
static void noise_is_standard_normal(void **state)
{
    enum { R = 20000, E = 4, N = R * E };
    struct device device = device_open(&settings[1]);
    struct hd_step_state block = {.step = 1};
    const struct tensor *sample = tensor_int32(R, 0, 1), *index = tensor_int32(R, 9, 0);
    struct tensor *noise = tensor_new(N, HD_F32);
    struct hd_route_noise_args a = noise_args(noise, &block, sample, index, E);
    double mean = 0, square = 0, product = 0;

    device_launch(&device, HD_K_route_noise, &a);
    for (int64_t i = 0; i < N; i++) {
        mean += tensor_get(noise, i) / N;
        square += tensor_get(noise, i) * tensor_get(noise, i) / N;
        product += i % 2 ? tensor_get(noise, i) * tensor_get(noise, i - 1) / (N / 2) : 0;
    }
    assert_close_at("mean", 0, mean, 0, 5 / sqrt(N));
    assert_close_at("square", 0, square, 1, 5 * sqrt(2.0 / N));
    assert_close_at("product", 0, product, 0, 5 / sqrt(N / 2.0));
    tensors_free();
    device_close(&device);
}

/* ---- PyTorch ---- */

/* The next tensor of the file, which must be `name`. */
static double *read_golden(FILE *file, const char *name, int64_t count)
{
    double *values = doubles(count);
    char found[64];
    long long found_count;

    assert_int_equal(fscanf(file, "%63s %lld", found, &found_count), 2);
    assert_string_equal(found, name);
    assert_int_equal(found_count, count);
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(fscanf(file, "%lf", &values[i]), 1);
    return values;
}

static struct tensor *golden_input(FILE *file, const char *name, int64_t count)
{
    const double *values = read_golden(file, name, count);
    struct tensor *t = tensor_new(count, HD_F32);

    for (int64_t i = 0; i < count; i++)
        tensor_put(t, i, values[i]);
    return t;
}

static void noisy_top_k_gating_is_that_of_the_paper(void **state)
{
    const struct shape s = {.B = 2, .S = 5, .E = 7, .K = 3, .renormalize = true, .noisy = true};
    const int64_t N = s.B * s.S * s.E;
    struct router t = make_router(&s);
    const char *source = getenv("HEDDLE_SOURCE_DIR");
    struct device device = device_open(&settings[0]);
    struct tensor *gates = tensor_new(N, HD_F32), *cotangent;
    const double *want, *probs;
    double balance = 0, z = 0;
    char path[512], line[256];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/tests/golden/values/noisy-gating.txt",
                   source ? source : ".");
    file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file)); /* what it was made by */
    t.logits = golden_input(file, "logits", N);
    t.noise_logits = golden_input(file, "noise_logits", N);
    t.noise = golden_input(file, "noise", N);
    cotangent = golden_input(file, "cotangent", N);
    t.balance = 0.5f;
    t.z = 0.25f;
    t.share = t.block.loss_scale = t.block.loss_per_token = 1;

    run_forward(&device, &t);
    for (int64_t i = 0; i < N; i++)
        tensor_put(gates, i, 0);
    for (int64_t i = 0; i < t.R * s.K; i++) {
        const int64_t at = i / s.K * s.E + (int64_t)tensor_get(t.chosen, i);

        tensor_put(gates, at, tensor_get(t.gate, i));
        tensor_put(t.dgate, i, cotangent->values[at]);
    }
    assert_close("gates", gates, read_golden(file, "gates", N), FP32_UNITS);
    probs = read_golden(file, "probs", N);
    assert_close("probs", t.probs, probs, FP32_UNITS);
    for (int64_t i = 0; i < t.R * s.E; i++)
        balance += (double)s.E * tensor_get(t.counts, document_of(&t, i / s.E) * s.E + i % s.E) /
                   (double)(s.K * s.S) * tensor_get(t.probs, i);
    for (int64_t r = 0; r < t.R; r++)
        z += tensor_get(t.lse, r) * tensor_get(t.lse, r);
    assert_close_at("balance", 0, balance, *read_golden(file, "balance", 1), 1e-5);
    assert_close_at("z", 0, z, *read_golden(file, "z", 1), 1e-4);
    run_backward(&device, &t);
    want = read_golden(file, "dlogits", N);
    assert_close("dlogits", t.dlogits, want, FP32_UNITS);
    want = read_golden(file, "dnoise_logits", N);
    assert_close("dnoise_logits", t.dnoise_logits, want, FP32_UNITS);
    (void)fclose(file);
    tensors_free();
    device_close(&device);
}

RUN_CASES()
