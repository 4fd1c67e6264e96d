/* preference: log-probabilities of targets, their sums by answer, and the losses of pairs; the
 * rewards of answers. */
#include <math.h>
#include <string.h>

#include "tests/reference/reference.h"
#include "tests/unit/kernels/harness.h"

/* By tests/golden/preference.py, in 60 digits. */
static const struct golden {
    enum hd_preference objective;
    double beta; /* REWARD: center */
    struct {
        double smoothing, gamma, sft;
    } more;
    double sums[4], loss, margin, reward, pull[2];
} golden[] = {
#include "preference.inc"
};
enum { GOLDEN = sizeof golden / sizeof golden[0] };

static void everywhere(void (*check)(struct device *device))
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        check(&device);
        tensors_free();
        device_close(&device);
    }
}

/* ---- pairs ---- */

/* Two samples of six rows: the pair of the table in the second one as answers 2 and 3, beside a
 * pair whose rejected answer has no target, and rows of no answer. */
static void check_pair(struct device *device, const struct golden *g)
{
    enum { S = 6, R = 2 * S, A = 4 };
    static const int answers[R] = {-1, -1, -1, -1, -1, -1, 0, 1, 2, 2, 3, -1};
    struct tensor *sums = tensor_new(2 * A * 2, HD_F64);
    struct tensor *answer = tensor_random_int32(R, 0, 1, 1), *weight = tensor_new(R, HD_F32);
    struct hd_step_state block = {.loss_sum = 2, .target_count = 3, .margin_sum = 1};
    struct hd_preference_args a = {.block = &block,
                                   .sums = sums->data,
                                   .answer = answer->data,
                                   .R = R,
                                   .S = S,
                                   .A = A,
                                   .objective = g->objective,
                                   .factors = {.beta = (float)g->beta,
                                               .center = (float)g->beta,
                                               .gamma = (float)g->more.gamma,
                                               .smoothing = (float)g->more.smoothing,
                                               .sft = (float)g->more.sft}};
    /* beta is a float: the losses of the table move by as much, relative to a margin */
    const double near = 1e-7 * (1 + fabs(g->margin) + fabs(g->loss) + fabs(g->reward));

    for (int i = 0; i < 2 * A * 2; i++)
        tensor_put(sums, i, 0);
    tensor_put(sums, A * 2, -7);
    tensor_put(sums, A * 2 + 1, 1);
    for (int i = 0; i < 4; i++)
        tensor_put(sums, A * 2 + 4 + i, g->sums[i]);
    for (int r = 0; r < R; r++)
        tensor_put(answer, r, answers[r]);
    device_launch(device, HD_K_preference, &a); /* not this rank's to count, and no gradient */
    assert_true(block.loss_sum == 2 && block.target_count == 3 && block.margin_sum == 1);
    a.counts = true;
    a.weight = weight->data;
    device_launch(device, HD_K_preference, &a);
    assert_close_at("loss", 0, block.loss_sum, 2 + g->loss, near);
    assert_close_at("margin", 0, block.margin_sum, 1 + g->margin, near);
    assert_close_at("reward", 0, block.reward_sum, g->reward, near);
    assert_int_equal(block.target_count, 3 + 1);
    assert_true(block.correct_pairs == (g->margin > 0));
    assert_true(block.answer_targets == g->sums[1] + g->sums[3]);
    for (int r = 0; r < R; r++) {
        const double want = answers[r] == 2 ? g->pull[0] : answers[r] == 3 ? g->pull[1] : 0;

        /* of the sigmoid of a large margin relative to itself */
        assert_close_at("weight", r, tensor_get(weight, r), want,
                        1e-6 * fabs(want) * (1 + fabs(g->margin)));
    }
    tensors_free();
}

static void check_pairs(struct device *device)
{
    for (int i = 0; i < GOLDEN; i++)
        check_pair(device, &golden[i]);
}

static void losses_of_pairs_are_the_golden_values(void **state)
{
    everywhere(check_pairs);
}

/* ---- rated answers ---- */

/* By tests/golden/kto.py: TRL's loss of four answers, desirable ones at even places. */
static const struct rated {
    double beta, desirable, undesirable, ratio[4], kl, loss, pull[4];
} rated[] = {
#include "kto.inc"
};

/* A sample with three pairs of which the first two have one answer, the third has both. */
static void check_rated(struct device *device, const struct rated *g)
{
    enum { S = 8, A = 6 };
    static const int number[4] = {0, 3, 4, 5}; /* of the four answers */
    static const int answers[S] = {0, 1, 2, 3, 4, 5, 5, -1};
    struct tensor *sums = tensor_new(A * 2, HD_F64), *weight = tensor_new(S, HD_F32);
    struct tensor *answer = tensor_random_int32(S, 0, 1, 1);
    struct hd_step_state block = {.kl = g->kl};
    const struct hd_preference_factors factors = {.beta = (float)g->beta,
                                                  .desirable = (float)g->desirable,
                                                  .undesirable = (float)g->undesirable};
    struct hd_preference_args a = {.weight = weight->data,
                                   .block = &block,
                                   .sums = sums->data,
                                   .answer = answer->data,
                                   .R = S,
                                   .S = S,
                                   .A = A,
                                   .objective = HD_PREFERENCE_KTO,
                                   .factors = factors,
                                   .counts = true};
    double chosen = 0, all = 0;

    for (int i = 0; i < A * 2; i++)
        tensor_put(sums, i, 0);
    for (int k = 0; k < 4; k++) {
        tensor_put(sums, 2 * number[k], g->ratio[k]);
        tensor_put(sums, 2 * number[k] + 1, 3);
        chosen += k % 2 ? 0 : g->beta * g->ratio[k];
        all += g->beta * g->ratio[k];
    }
    for (int r = 0; r < S; r++)
        tensor_put(answer, r, answers[r]);
    device_launch(device, HD_K_preference, &a);
    assert_close_at("loss", 0, block.loss_sum, g->loss, 1e-6 * (1 + g->loss));
    assert_int_equal(block.target_count, 4);
    assert_true(block.correct_pairs == 2 && block.answer_targets == 12);
    assert_close_at("rewards of the chosen", 0, block.margin_sum, chosen,
                    1e-6 * (1 + fabs(chosen)));
    assert_close_at("rewards", 0, block.reward_sum, all, 1e-5);
    for (int r = 0; r < S; r++) {
        double want = 0;

        for (int k = 0; k < 4; k++)
            if (answers[r] == number[k])
                want = g->pull[k];
        assert_close_at("weight", r, tensor_get(weight, r), want, 1e-5 * fabs(want) + 1e-30);
    }
    tensors_free();
}

static void check_all_rated(struct device *device)
{
    for (size_t i = 0; i < sizeof rated / sizeof rated[0]; i++)
        check_rated(device, &rated[i]);
}

static void losses_of_rated_answers_are_those_of_trl(void **state)
{
    everywhere(check_all_rated);
}

/* ---- sums ---- */

/* Two samples of 300 rows with three answers each, of 80 rows, and rows of none; every fifth row
 * has no target. The last answer of the first sample and the first one of the second have one
 * number. */
static void check_sums(struct device *device)
{
    enum { S = 300, R = 2 * S, A = 6 };
    struct tensor *logp = tensor_random(R, HD_F32, 3, 1), *ref = tensor_random(R, HD_F32, 3, 2);
    struct tensor *answer = tensor_random_int32(R, 0, 1, 3),
                  *target = tensor_random_int32(R, 0, 9, 4);
    struct tensor *sums = tensor_new(2 * A * 2, HD_F64);
    double want[2 * A * 2] = {0}, alone[2 * A * 2] = {0};
    struct hd_answer_sums_args a = {.sums = sums->data,
                                    .logp = logp->data,
                                    .reference = ref->data,
                                    .answer = answer->data,
                                    .target = target->data,
                                    .R = R,
                                    .S = S,
                                    .A = A};

    for (int r = 0; r < R; r++) {
        const int p = r % S, first = p < 60 ? -1 : (p - 60) / 80 + 1,
                  second = p < 240 ? 3 - p / 80 : -1;
        const int number = r < S ? first : second;

        tensor_put(answer, r, number);
        if (r % 5 == 2)
            tensor_put(target, r, -1);
        if (number < 0 || r % 5 == 2)
            continue;
        want[2 * (r / S * A + number)] += logp->values[r] - ref->values[r];
        alone[2 * (r / S * A + number)] += logp->values[r];
        want[2 * (r / S * A + number) + 1] += 1;
    }
    device_launch(device, HD_K_answer_sums, &a);
    for (int i = 0; i < 2 * A * 2; i++)
        assert_close_at("sum", i, tensor_get(sums, i), want[i], 1e-9);
    a.reference = NULL;
    device_launch(device, HD_K_answer_sums, &a);
    for (int i = 0; i < 2 * A * 2; i += 2)
        assert_close_at("sum without a reference", i, tensor_get(sums, i), alone[i], 1e-9);
}

static void sums_are_by_answer(void **state)
{
    everywhere(check_sums);
}

/* ---- rows ---- */

enum { ROWS = 30, V = 307, VP = 320, STATS = ROWS * HD_CROSS_ENTROPY_STATS };

struct rows {
    struct tensor *logits, *target, *logp, *weight, *dlogits, *stats;
    double want[ROWS * VP], want_logp[ROWS];
};

static void make_rows(struct rows *t)
{
    t->logits = tensor_random(ROWS * VP, HD_F32, 3, 1);
    t->target = tensor_random_int32(ROWS, 0, V, 2);
    t->logp = tensor_new(ROWS, HD_F32);
    t->weight = tensor_random(ROWS, HD_F32, 1, 3);
    t->dlogits = tensor_new(ROWS * VP, HD_F32);
    t->stats = tensor_new(STATS, HD_F32);
    tensor_put(t->target, 3, -1);
    for (int r = 0; r < ROWS;
         r++) { /* the loss of a row, and its gradient times the row's weight */
        const int32_t *target = (const int32_t *)t->target->data + r;
        const double loss = ref_cross_entropy(t->want + r * VP, t->logits->values + r * VP, target,
                                              1, V, VP, t->weight->values[r]);

        t->want_logp[r] = r == 3 ? 0 : -loss;
    }
}

static void compare_rows(struct rows *t, const struct hd_step_state *block)
{
    for (int r = 0; r < ROWS; r++)
        assert_close_at("logp", r, tensor_get(t->logp, r), t->want_logp[r], 20 * 8 * 0x1p-24);
    assert_close("dlogits", t->dlogits, t->want, FP32_UNITS);
    assert_true(block->loss_sum == 5 && block->target_count == 7);
    assert_int_equal(block->overflow, 0);
}

/* Goal: with log-probabilities, or with weights, a row's loss is not counted: the pair's is. */
static void check_rows(struct device *device)
{
    struct rows t;
    struct hd_step_state block = {.loss_sum = 5, .target_count = 7, .loss_scale = 1};
    struct hd_cross_entropy_args a = {
        .block = &block, .R = ROWS, .V = V, .Vp = VP, .dtype = HD_F32};
    struct hd_cross_entropy_stats_args s = {.R = ROWS, .V = V, .Vp = VP, .dtype = HD_F32};
    struct hd_cross_entropy_shared_args shared = {
        .block = &block, .R = ROWS, .V = V, .Vp = VP, .P = 1, .dtype = HD_F32};

    make_rows(&t);
    a.logits = t.logits->data;
    a.target = t.target->data;
    a.logp = t.logp->data;
    device_launch(device, HD_K_cross_entropy, &a);
    a.logp = NULL;
    a.weight = t.weight->data;
    a.dlogits = t.dlogits->data;
    device_launch(device, HD_K_cross_entropy, &a);
    compare_rows(&t, &block);
    tensors_free();

    make_rows(&t);
    s.stats = t.stats->data;
    s.logits = shared.logits = t.logits->data;
    s.target = shared.target = t.target->data;
    device_launch(device, HD_K_cross_entropy_stats, &s);
    shared.stats = t.stats->data;
    shared.logp = t.logp->data;
    device_launch(device, HD_K_cross_entropy_shared, &shared);
    shared.logp = NULL;
    shared.weight = t.weight->data;
    shared.dlogits = t.dlogits->data;
    device_launch(device, HD_K_cross_entropy_shared, &shared);
    compare_rows(&t, &block);
}

static void rows_give_log_probabilities_and_take_weights(void **state)
{
    everywhere(check_rows);
}

/* ---- rewards ---- */

/* Rows 5 to 24 of 30 are here, of more channels than a thread takes at a time. Rows 2, 9, 17 and 28
 * end an answer: the first and the last are another rank's. */
enum { ALL = 30, HERE = 20, FIRST = 5, WIDTH = 1024 + 13 };

static bool ends_here(int i)
{
    return i == 9 || i == 17;
}

struct score {
    struct tensor *x, *weight, *answer, *pull, *value, *dx, *dweight;
    double want_dx[HERE * WIDTH], want_dweight[WIDTH];
};

static void make_score(struct score *t, enum hd_dtype dtype, double scale)
{
    t->x = tensor_random(HERE * WIDTH, dtype, 2, 1);
    t->weight = tensor_random(WIDTH, dtype, 1, 2);
    t->answer = tensor_int32(ALL, -1, 0);
    t->pull = tensor_random(ALL, HD_F32, 1, 3);
    t->value = tensor_new(ALL, HD_F32);
    t->dx = tensor_new(HERE * WIDTH, dtype);
    t->dweight = tensor_random(WIDTH, HD_F32, 1, 4);
    memset(t->want_dx, 0, sizeof t->want_dx);
    for (int c = 0; c < WIDTH; c++)
        t->want_dweight[c] = t->dweight->values[c];
    for (int i = 0; i < ALL; i++) {
        const int r = i - FIRST;

        if (ends_here(i) || i == 2 || i == 28)
            tensor_put(t->answer, i, i);
        else
            tensor_put(t->pull, i, 0);
        for (int c = 0; ends_here(i) && c < WIDTH; c++) {
            const double d = -scale * t->pull->values[i];

            t->want_dx[r * WIDTH + c] = d * t->weight->values[c];
            t->want_dweight[c] += d * t->x->values[r * WIDTH + c];
        }
    }
}

static void check_score(struct device *device, enum hd_dtype dtype)
{
    struct score t;
    struct hd_step_state block = {.loss_scale = 8};
    struct hd_score_forward_args f = {
        .N = ALL, .R = HERE, .C = WIDTH, .first = FIRST, .dtype = dtype};
    struct hd_score_backward_args b = {
        .block = &block, .N = ALL, .R = HERE, .C = WIDTH, .first = FIRST, .dtype = dtype};

    make_score(&t, dtype, 8);
    f.value = t.value->data;
    f.x = b.x = t.x->data;
    f.weight = b.weight = t.weight->data;
    f.answer = t.answer->data;
    device_launch(device, HD_K_score_forward, &f);
    for (int i = 0; i < ALL; i++) {
        double want = 0;

        for (int c = 0; ends_here(i) && c < WIDTH; c++)
            want += t.x->values[(i - FIRST) * WIDTH + c] * t.weight->values[c];
        /* 37 products of at most 2, each addition rounds once */
        assert_close_at("value", i, tensor_get(t.value, i), want, 37 * 2 * 37 * 0x1p-24);
    }
    b.pull = t.pull->data;
    b.dweight = t.dweight->data;
    b.accumulate = true;
    device_launch(device, HD_K_score_backward, &b); /* of a frozen model */
    assert_close("dweight", t.dweight, t.want_dweight, FP32_UNITS);
    b.accumulate = false;
    b.dx = t.dx->data;
    device_launch(device, HD_K_score_backward, &b);
    assert_close("dx", t.dx, t.want_dx, FP32_UNITS);
    for (int c = 0; c < WIDTH; c++)
        t.want_dweight[c] -= t.dweight->values[c]; /* what was there before */
    assert_close_terms("dweight that was not there", t.dweight, t.want_dweight, FP32_UNITS, 32);
    tensors_free();
}

static void check_scores(struct device *device)
{
    check_score(device, HD_F32);
    check_score(device, HD_BF16);
    check_score(device, HD_F16);
}

static void rewards_are_read_where_answers_end(void **state)
{
    everywhere(check_scores);
}

RUN_CASES()
