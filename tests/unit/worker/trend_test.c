/* trend: runs whose losses are finite and of no use are told, and no others. */
#include <math.h>

#include "tests/program/test.h"
#include "train/trend.h"

enum { VOCAB = 256 }; /* ln 256 = 5.545 */

/* Returns the trend of a run of these losses at its end. */
static struct hd_trend trend_of(const double *losses, const double *norms, int count)
{
    struct hd_trend trend = {0};

    for (int i = 0; i < count; i++)
        hd_trend_add(&trend, i + 1, losses[i], norms[i]);
    return trend;
}

/* train.lr 1000: the loss explodes, then every weight is dead. */
static void a_model_without_gradients_is_stuck(void **state)
{
    double losses[20] = {5.56, 204.0, 9.5}, norms[20] = {1.9, 5e8, 12};
    struct hd_trend trend;

    for (int i = 3; i < 20; i++) {
        losses[i] = log(VOCAB);
        norms[i] = 0;
    }
    trend = trend_of(losses, norms, 20);
    assert_true(hd_trend_is_stuck(&trend, VOCAB));
    assert_true(trend.lowest == log(VOCAB) && trend.lowest_step == 4);
    trend = trend_of(losses, norms, 12); /* nine of them: not yet */
    assert_false(hd_trend_is_stuck(&trend, VOCAB));
}

/* It had learned; now its output is the same for every text. */
static void a_loss_that_does_not_move_is_stuck(void **state)
{
    double losses[20], norms[20];
    struct hd_trend trend;

    for (int i = 0; i < 20; i++) {
        losses[i] = i < 10 ? 3 - 0.1 * i : 3.5;
        norms[i] = 0.3;
    }
    trend = trend_of(losses, norms, 20);
    assert_true(hd_trend_is_stuck(&trend, VOCAB)); /* 3.5 > 2.1 + 0.55 */
    for (int i = 10; i < 20; i++)
        losses[i] = 2.5; /* moves on soon, perhaps */
    trend = trend_of(losses, norms, 20);
    assert_false(hd_trend_is_stuck(&trend, VOCAB));
}

static void a_loss_above_that_of_knowing_nothing_is_lost(void **state)
{
    double losses[20], norms[20];
    struct hd_trend trend;

    for (int i = 0; i < 20; i++) {
        losses[i] = i < 5 ? 2.0 : 40 - i; /* falls, and is far above */
        norms[i] = 20;
    }
    trend = trend_of(losses, norms, 20);
    assert_true(hd_trend_is_lost(&trend, VOCAB));
    assert_false(hd_trend_is_stuck(&trend, VOCAB));
    losses[15] = 5.0; /* one step of the last ten is not */
    trend = trend_of(losses, norms, 20);
    assert_false(hd_trend_is_lost(&trend, VOCAB));
}

/* train.lr 1000 for six steps: nothing is left of what the model knew. */
static void a_short_run_is_judged_by_its_later_half(void **state)
{
    double losses[6] = {4.3, 4.9, 7.1, log(VOCAB), log(VOCAB), log(VOCAB)};
    const double norms[6] = {1.9, 40, 3, 0, 0, 0};
    struct hd_trend trend = trend_of(losses, norms, 6);

    assert_true(hd_trend_is_lost(&trend, VOCAB));
    losses[4] = 5.5; /* below ln 256 = 5.545: it may come back */
    trend = trend_of(losses, norms, 6);
    assert_false(hd_trend_is_lost(&trend, VOCAB));
    trend = trend_of((const double[]){9.0}, norms, 1);
    assert_false(hd_trend_is_lost(&trend, VOCAB));
}

/* A fresh model in a long warm-up: at ln V, noisy, with gradients. */
static void a_run_that_has_just_begun_is_neither(void **state)
{
    double losses[30], norms[30];
    struct hd_trend trend;

    for (int i = 0; i < 30; i++) {
        losses[i] = 5.56 + 0.004 * (i * 7 % 5 - 2);
        norms[i] = 2;
    }
    trend = trend_of(losses, norms, 30);
    assert_false(hd_trend_is_stuck(&trend, VOCAB));
    assert_false(hd_trend_is_lost(&trend, VOCAB));
}

/* Learned by heart: the probabilities round to 1, so that loss and gradient are 0. */
static void a_model_that_knows_its_data_is_neither(void **state)
{
    double losses[30], norms[30];
    struct hd_trend trend;

    for (int i = 0; i < 30; i++) {
        losses[i] = i < 15 ? 5.5 - 0.36 * i : 0;
        norms[i] = i < 15 ? 1 : 0;
    }
    trend = trend_of(losses, norms, 30);
    assert_false(hd_trend_is_stuck(&trend, VOCAB));
    assert_false(hd_trend_is_lost(&trend, VOCAB));
}

/* A spike, as of a bad batch, and the way back. */
static void a_spike_is_neither(void **state)
{
    double losses[40], norms[40];
    struct hd_trend trend;

    for (int i = 0; i < 40; i++) {
        losses[i] = i >= 20 && i < 29 ? 8 : 2.2 - 0.01 * i;
        norms[i] = 0.5;
    }
    for (int steps = 10; steps <= 40; steps++) {
        trend = trend_of(losses, norms, steps);
        assert_false(hd_trend_is_stuck(&trend, VOCAB));
        assert_false(hd_trend_is_lost(&trend, VOCAB));
    }
}

RUN_CASES()
