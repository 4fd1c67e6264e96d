/* thin and seen: what the dashboard and a scrape tell of jobs, from the records of the store. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "controller/services/downsample.h"
#include "controller/services/job_stats.h"
#include "tests/program/test.h"

static struct hd_step_record step_of(int64_t step, double loss)
{
    return (struct hd_step_record){
        .job = 7, .attempt = 1, .step = step, .time_ms = 1000 * step, .metrics = {.loss = loss}};
}

static struct downsample_bucket row[DOWNSAMPLE_BUCKETS];
static int64_t first[DOWNSAMPLE_BUCKETS];

/* Goal: a million steps, no spike lost, whatever the width. Method: one spike and one dip among
 * equal values, at steps that share buckets with many others. */
static void a_million_steps_lose_no_spike(void **state)
{
    enum { STEPS = 1000000, SPIKE = 654321, DIP = 123456 };
    const int loss = HD_METRIC_INDEX_loss;
    struct downsample t;
    size_t count, holder = 0;
    int64_t steps = 0;

    assert_true(downsample_init(&t));
    for (int64_t s = 1; s <= STEPS; s++) {
        const struct hd_step_record step = step_of(s, s == SPIKE ? 9.5 : s == DIP ? 0.5 : 2);

        downsample_add_step(&t, &step);
    }
    /* 1,024 buckets hold a million steps from a width of 1,024 on: 2^10 * 2^10 = 1,048,576 */
    assert_int_equal(t.width, 1024);
    assert_int_equal(t.steps, STEPS);
    count = downsample_row(&t, downsample_stride(&t, 64), row, first);
    assert_int_equal(count, 62); /* 1,000,000 / (1,024 * 16), rounded up */
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(first[i], 1 + (int64_t)i * 16384);
        steps += row[i].count;
        holder = row[i].metrics[loss].max > 9 ? i : holder;
        assert_true(row[i].metrics[loss].last == 2);
    }
    assert_int_equal(steps, STEPS);
    assert_int_equal(holder, (SPIKE - 1) / 16384);
    assert_true(row[holder].metrics[loss].max == 9.5 && row[holder].metrics[loss].min == 2);
    assert_true(row[(DIP - 1) / 16384].metrics[loss].min == 0.5);
    downsample_done(&t);
}

/* Steps 1 to 9, then from a checkpoint of step 5 on once more. */
static void steps_that_are_done_twice_fall_into_the_same_buckets(void **state)
{
    const int loss = HD_METRIC_INDEX_loss;
    struct hd_step_record step;
    struct downsample t;

    assert_true(downsample_init(&t));
    for (int64_t s = 1; s <= 9; s++) {
        step = step_of(s, 1);
        downsample_add_step(&t, &step);
    }
    for (int64_t s = 6; s <= 7; s++) {
        step = step_of(s, 3);
        downsample_add_step(&t, &step);
    }
    assert_int_equal(t.last_step, 7);
    assert_int_equal(downsample_row(&t, 1, row, first), 9);
    assert_int_equal(row[5].count, 2);
    assert_true(row[5].metrics[loss].min == 1 && row[5].metrics[loss].max == 3);
    assert_true(row[5].metrics[loss].last == 3);
    assert_true(row[8].metrics[loss].last == 1);
    downsample_done(&t);
}

static void what_is_no_number_is_a_gap_and_hides_nothing(void **state)
{
    const int loss = HD_METRIC_INDEX_loss;
    const double values[] = {2, NAN, 5, INFINITY, 3, NAN};
    struct downsample t;

    assert_true(downsample_init(&t));
    for (int64_t s = 1; s <= 6; s++) {
        const struct hd_step_record step = step_of(s, values[s - 1]);

        downsample_add_step(&t, &step);
    }
    assert_int_equal(downsample_row(&t, 8, row, first), 1);
    assert_true(row[0].metrics[loss].min == 2 && row[0].metrics[loss].max == 5);
    assert_true(row[0].metrics[loss].last == 3);
    assert_int_equal(downsample_row(&t, 1, row, first), 6);
    assert_true(isnan(row[1].metrics[loss].min) && isnan(row[3].metrics[loss].last));
    downsample_done(&t);
}

/* 5,000 validations: 512 places are full after 512, 1,024, 2,048 and 4,096; then one of 16 is kept.
 */
static void validations_are_bounded_and_evenly_spread(void **state)
{
    struct downsample t;

    assert_true(downsample_init(&t));
    for (int64_t v = 0; v < 5000; v++)
        downsample_add_validation(&t, &(struct hd_validation_record){.step = 10 * v, .loss = 1});
    assert_int_equal(t.validation_stride, 16);
    assert_int_equal(t.validation_count, 313); /* 5,000 / 16, rounded up */
    for (size_t i = 0; i < t.validation_count; i++)
        assert_int_equal(t.validations[i].step, 160 * (int64_t)i);
    downsample_done(&t);
}

/* Three sets at each of 200 steps are 600 points for 512 places: steps 10, 30 .. are dropped whole. */
static void validation_sets_are_thinned_together(void **state)
{
    static const char names[] = "abc";
    struct downsample t;

    assert_true(downsample_init(&t));
    for (int64_t v = 0; v < 600; v++)
        downsample_add_validation(&t, &(struct hd_validation_record){
                                          .step = v / 3 * 10, .loss = 1, .set = {names[v % 3]}});
    assert_int_equal(t.validation_count, 300);
    for (size_t i = 0; i < t.validation_count; i++) {
        assert_int_equal(t.validations[i].step, 20 * (int64_t)(i / 3));
        assert_int_equal(t.validations[i].set[0], names[i % 3]);
    }
    downsample_done(&t);
}

/* ---- seen -------------------------------------------------------------------------------------*/

static struct hd_job_record job_of(uint64_t job, enum hd_job_state state)
{
    return (struct hd_job_record){.job = job,
                                  .request_id = "r",
                                  .owner = "ann",
                                  .name = "x",
                                  .state = state,
                                  .submitted_ms = 1000,
                                  .steps = 100};
}

static void take_job(struct stats *stats, bool is_new, const struct hd_job_record *job)
{
    struct hd_batch *batch = hd_batch_new();

    hd_batch_add_job(batch, is_new, job);
    stats_take(stats, batch);
    hd_batch_free(batch);
}

static void only_live_jobs_are_kept(void **state)
{
    struct hd_job_record job;
    struct stats stats;

    stats_init(&stats);
    for (uint64_t j = 1; j <= 300; j++) {
        job = job_of(j, HD_JOB_STATE_QUEUED);
        take_job(&stats, true, &job);
    }
    for (uint64_t j = 1; j <= 300; j += 2) {
        job = job_of(j, HD_JOB_STATE_SUCCEEDED);
        take_job(&stats, false, &job);
        take_job(&stats, false, &job); /* written once more: counted once */
    }
    assert_int_equal(stats.count, 150);
    assert_int_equal(stats.submitted, 300);
    assert_int_equal(stats.ended[HD_JOB_STATE_SUCCEEDED], 150);
    assert_null(stats_find(&stats, 1));
    assert_non_null(stats_find(&stats, 2));
    job = job_of(1, HD_JOB_STATE_QUEUED); /* resumed */
    take_job(&stats, false, &job);
    assert_string_equal(stats_find(&stats, 1)->label, "job_id=\"1\"");
    assert_true(stats.jobs[0].job == 1 && stats.jobs[1].job == 2);
    stats_done(&stats);
}

/* Attempt 1 makes 40 steps and hangs; attempt 2 starts from step 30: 10 steps are lost. Both
 * records of the end are in one batch, the job's before the attempt's. */
static void attempts_are_counted_with_the_steps_they_lost(void **state)
{
    struct hd_job_record job = job_of(7, HD_JOB_STATE_QUEUED);
    struct hd_attempt_record attempt = {
        .job = 7, .attempt = 1, .state = HD_ATTEMPT_STATE_RUNNING, .plan.step_s = 0.125};
    struct hd_batch *batch = hd_batch_new();
    struct stats stats;

    stats_init(&stats);
    take_job(&stats, true, &job);
    job.state = HD_JOB_STATE_RUNNING;
    job.started_ms = 61000; /* 60 s behind its submission: in the bucket up to 60 s, the fourth */
    hd_batch_add_job(batch, false, &job);
    hd_batch_add_attempt(batch, &attempt);
    for (int64_t s = 1; s <= 40; s++) {
        struct hd_step_record step = step_of(s, 2);

        step.metrics.step_ms = 500;
        step.metrics.tokens = 1000;
        hd_batch_add_step(batch, &step);
    }
    attempt.state = HD_ATTEMPT_STATE_ENDED;
    attempt.end.cause = HD_END_CAUSE_HANG;
    hd_batch_add_attempt(batch, &attempt);
    hd_batch_add_attempt(batch, &attempt);
    attempt = (struct hd_attempt_record){.job = 7,
                                         .attempt = 2,
                                         .state = HD_ATTEMPT_STATE_STARTING,
                                         .base_attempt = 1,
                                         .base_step = 30,
                                         .plan.step_s = 0.5};
    hd_batch_add_attempt(batch, &attempt);
    stats_take(&stats, batch);
    hd_batch_free(batch);
    assert_int_equal(stats.attempts_started, 2);
    assert_int_equal(stats.attempts_ended[HD_END_CAUSE_HANG], 1);
    assert_int_equal(stats.steps, 40);
    assert_int_equal(stats.tokens, 40000);
    assert_int_equal(stats.steps_lost, 10);
    assert_int_equal(stats.waits.counts[3], 1);
    assert_int_equal(stats_find(&stats, 7)->step, 30);
    assert_true(stats_find(&stats, 7)->predicted_step_s == 0.5); /* of the newest attempt */
    /* 30 steps of 0.5 s within 100 s */
    assert_true(fabs(stats_goodput(stats_find(&stats, 7), 161000) - 0.15) < 1e-12);

    batch = hd_batch_new();
    job.state = HD_JOB_STATE_FAILED;
    attempt.state = HD_ATTEMPT_STATE_ENDED;
    attempt.end.cause = HD_END_CAUSE_DIVERGED;
    hd_batch_add_job(batch, false, &job);
    hd_batch_add_attempt(batch, &attempt);
    stats_take(&stats, batch);
    hd_batch_free(batch);
    assert_int_equal(stats.attempts_ended[HD_END_CAUSE_DIVERGED], 1);
    assert_int_equal(stats.ended[HD_JOB_STATE_FAILED], 1);
    assert_int_equal(stats.count, 0);
    stats_done(&stats);
}

RUN_CASES()
