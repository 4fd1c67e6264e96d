/* optim: learning-rate schedules. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "optim/optim.h"
#include "tests/program/test.h"

static void near(double a, double b)
{
    assert_true(fabs(a - b) < 1e-12);
}

static void warm_up_rises_linearly_to_the_peak(void **state)
{
    const struct hd_lr_schedule s = {
        .decay = HD_JOB_LR_DECAY_CONSTANT, .peak = 0.4, .warmup_steps = 4};

    near(hd_lr_at(&s, 1), 0.1);
    near(hd_lr_at(&s, 4), 0.4);
    near(hd_lr_at(&s, 1000), 0.4);
}

/* Half way the cosine stands in the middle between peak and min; at the end at min, and stays. */
static void cosine_falls_to_the_minimum(void **state)
{
    const struct hd_lr_schedule s = {.decay = HD_JOB_LR_DECAY_COSINE,
                                     .peak = 1,
                                     .min = 0.2,
                                     .warmup_steps = 10,
                                     .total_steps = 110};

    near(hd_lr_at(&s, 10), 1);
    near(hd_lr_at(&s, 60), 0.6);
    near(hd_lr_at(&s, 35), 0.2 + 0.8 * (1 + sqrt(0.5)) / 2); /* cos(pi/4) */
    near(hd_lr_at(&s, 110), 0.2);
    near(hd_lr_at(&s, 200), 0.2);
}

static void linear_and_wsd_fall_where_they_say(void **state)
{
    const struct hd_lr_schedule linear = {.decay = HD_JOB_LR_DECAY_LINEAR,
                                          .peak = 1,
                                          .min = 0,
                                          .warmup_steps = 0,
                                          .total_steps = 100};
    const struct hd_lr_schedule wsd = {.decay = HD_JOB_LR_DECAY_WSD,
                                       .peak = 1,
                                       .min = 0.5,
                                       .warmup_steps = 2,
                                       .decay_steps = 20,
                                       .total_steps = 100};

    const struct hd_lr_schedule early = {.decay = HD_JOB_LR_DECAY_LINEAR,
                                         .peak = 1,
                                         .min = 0.5,
                                         .warmup_steps = 10,
                                         .decay_steps = 20,
                                         .total_steps = 100};

    near(hd_lr_at(&early, 20), 0.75); /* half way behind the warm-up */
    near(hd_lr_at(&early, 31), 0.5);  /* and the minimum from there on */
    near(hd_lr_at(&linear, 25), 0.75);
    near(hd_lr_at(&wsd, 80), 1);
    near(hd_lr_at(&wsd, 90), 0.75);
    near(hd_lr_at(&wsd, 100), 0.5);
}

/* At x = 1/4 of the decay from 1 to 0.2 over 40 steps: cos(pi/4) = sqrt(1/2); sqrt(1/4) = 1/2;
 * 2 x 0.5^(1/4) - 1. Each shape begins at the peak and ends at the minimum, and stays there. */
static void the_decay_of_wsd_has_four_shapes(void **state)
{
    const double left[] = {
        [HD_JOB_LR_DECAY_SHAPE_LINEAR] = 0.75,
        [HD_JOB_LR_DECAY_SHAPE_COSINE] = (1 + sqrt(0.5)) / 2,
        [HD_JOB_LR_DECAY_SHAPE_SQRT] = 0.5,
        [HD_JOB_LR_DECAY_SHAPE_EXPONENTIAL] = 2 * sqrt(sqrt(0.5)) - 1,
    };
    struct hd_lr_schedule s = {.decay = HD_JOB_LR_DECAY_WSD,
                               .peak = 1,
                               .min = 0.2,
                               .warmup_steps = 10,
                               .decay_steps = 40,
                               .total_steps = 100};

    for (unsigned shape = 1; hd_job_lr_decay_shape_words[shape]; shape++) {
        s.shape = shape;
        near(hd_lr_at(&s, 5), 0.5);
        near(hd_lr_at(&s, 60), 1);
        near(hd_lr_at(&s, 70), 0.2 + 0.8 * left[shape]);
        near(hd_lr_at(&s, 100), 0.2);
        near(hd_lr_at(&s, 101), 0.2);
    }
}

/* sqrt(4 / 16) = 1/2; without a warm-up the first step has the peak: sqrt(1 / 1). */
static void the_inverse_square_root_falls_from_the_warm_up_on(void **state)
{
    struct hd_lr_schedule s = {.decay = HD_JOB_LR_DECAY_INVERSE_SQRT,
                               .peak = 1,
                               .min = 0.3,
                               .warmup_steps = 4,
                               .total_steps = 100};

    near(hd_lr_at(&s, 2), 0.5);
    near(hd_lr_at(&s, 4), 1);
    near(hd_lr_at(&s, 16), 0.5);
    near(hd_lr_at(&s, 64), 0.3); /* not sqrt(4 / 64) = 1/4 */
    s.warmup_steps = 0;
    near(hd_lr_at(&s, 1), 1);
    near(hd_lr_at(&s, 4), 0.5);
}

/* decay_steps ends the fall of cosine and linear before the last step; then the minimum stays. */
static void a_fall_takes_as_long_as_it_says(void **state)
{
    struct hd_lr_schedule s = {.decay = HD_JOB_LR_DECAY_COSINE,
                               .peak = 1,
                               .min = 0.2,
                               .warmup_steps = 10,
                               .decay_steps = 40,
                               .total_steps = 110};

    near(hd_lr_at(&s, 30), 0.6); /* half of 40 behind the warm-up */
    near(hd_lr_at(&s, 50), 0.2);
    near(hd_lr_at(&s, 110), 0.2);
    s.decay = HD_JOB_LR_DECAY_LINEAR;
    near(hd_lr_at(&s, 20), 0.8); /* a quarter of the way from 1 to 0.2 */
    near(hd_lr_at(&s, 51), 0.2);
}

/* Goal: without room for one phase of a schedule, no rate is divided by zero or falls early. */
static void phases_of_no_length_are_left_out(void **state)
{
    struct hd_lr_schedule s = {.peak = 1, .min = 0.2, .warmup_steps = 8, .total_steps = 4};

    for (unsigned d = 1; hd_job_lr_decay_words[d]; d++) {
        s.decay = d;
        near(hd_lr_at(&s, 4), 0.5); /* the run ends half way up */
    }
    s.warmup_steps = 0;
    s.decay = HD_JOB_LR_DECAY_WSD;
    near(hd_lr_at(&s, 1), 1);
    near(hd_lr_at(&s, 4), 1); /* no fall was asked for */
    s.decay = HD_JOB_LR_DECAY_LINEAR;
    near(hd_lr_at(&s, 1), 0.8); /* a fourth of the fall behind it */
    s.warmup_steps = s.total_steps;
    near(hd_lr_at(&s, 4), 1);
}

static void a_schedule_is_that_of_its_job(void **state)
{
    struct hd_job job = HD_JOB(.lr_peak = 1, .steps = 10, .lr_decay = HD_JOB_LR_DECAY_WSD);
    struct hd_lr_schedule s;

    job.lr_decay_shape = HD_JOB_LR_DECAY_SHAPE_EXPONENTIAL;
    job.lr_after = 4;
    s = hd_lr_schedule_from_job(&job);
    assert_int_equal(s.decay, HD_JOB_LR_DECAY_WSD);
    assert_int_equal(s.shape, HD_JOB_LR_DECAY_SHAPE_EXPONENTIAL);
    assert_int_equal(s.total_steps, 6); /* a schedule that begins after step 4 of 10 */
}

RUN_CASES()
