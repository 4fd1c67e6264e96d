/* core: attempts that fail, and the checkpoints that the next ones start from. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sim.h"
#include "tests/program/tells.h"
#include "tests/program/test.h"

/* ---- failures ---------------------------------------------------------------------------------*/

/* Checkpoints come every 5 steps; a rank dies before step 8: steps 6 and 7 are done twice. */
static void a_failed_rank_restarts_from_the_newest_checkpoint(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 12);
    uint64_t job;

    for (int n = 0; n < sim->node_count; n++)
        sim->nodes[n].faults = (struct sim_faults){.fail_at_step = 8};
    sim->nodes[0].faults.fail_count = 1;
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_RANK_EXIT);
    assert_int_equal(sim_attempt(sim, job, 1)->end.rank, 1);
    assert_string_equal(sim_attempt(sim, job, 1)->end.node, "n1");
    assert_int_equal(sim_attempt(sim, job, 1)->end.signal, 9);
    assert_int_equal(sim_attempt(sim, job, 2)->base_step, 5);
    assert_int_equal(sim_attempt(sim, job, 2)->base_attempt, 1);
    assert_int_equal(sim_count_steps(sim, job, 5), 1);
    assert_int_equal(sim_count_steps(sim, job, 7), 2);
    assert_int_equal(sim_final_value(sim, job), sim_undisturbed_value(job, 12));
    sim_free(sim);
}

/* A daemon says that the run is complete, and has reported only 7 of 12 steps. */
static void a_claim_without_the_last_step_is_no_success(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 12);
    uint64_t job;

    sim->nodes[0].faults = (struct sim_faults){.fail_at_step = 8, .fail_count = 1, .claims = true};
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_INCOMPLETE);
    assert_string_equal(sim_attempt(sim, job, 1)->end.node, "n1");
    assert_tells(sim_attempt(sim, job, 1)->end.message, "complete", "7 of 12");
    assert_int_equal(sim_attempt(sim, job, 2)->base_step, 5); /* tried again, as after a failure */
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_final_value(sim, job), sim_undisturbed_value(job, 12));

    needs.restart_max = 1;
    sim->nodes[0].faults = (struct sim_faults){.fail_at_step = 1, .fail_count = 2, .claims = true};
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_FAILED);
    assert_non_null(
        strstr(sim_job(sim, job)->reason, "incomplete: node n1: its ranks ended as if"));
    assert_non_null(strstr(sim_job(sim, job)->reason, "reported is 0 of 12"));
    sim_free(sim);
}

/* Early stopping ends a run after 5 of 12 steps, at a checkpoint; another says so after 7, of which
 * there is no checkpoint. One that ends before its first step, as a teacher's job, needs none. */
static void an_early_end_with_its_checkpoint_is_a_success(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 12);
    uint64_t job;

    needs.restart_max = 0;
    sim->nodes[0].faults =
        (struct sim_faults){.fail_at_step = 6, .fail_count = 1, .claims = true, .early = true};
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    assert_string_equal(sim_job(sim, job)->reason, "ended early");
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_COMPLETED);
    sim->nodes[0].faults =
        (struct sim_faults){.fail_at_step = 8, .fail_count = 1, .claims = true, .early = true};
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_FAILED);
    assert_tells(sim_attempt(sim, job, 1)->end.message, "complete", "no checkpoint of step 7");
    sim->nodes[0].faults =
        (struct sim_faults){.fail_at_step = 1, .fail_count = 1, .claims = true, .early = true};
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    assert_string_equal(sim_job(sim, job)->reason, "ended early");
    sim_free(sim);
}

/* Likewise without the checkpoint of the last step; that of step 10 does not count. */
static void a_claim_without_the_last_checkpoint_is_no_success(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 12);
    uint64_t job;

    needs.restart_max = 0;
    sim->nodes[0].faults = (struct sim_faults){.keeps_last = true};
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_FAILED);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_INCOMPLETE);
    assert_tells(sim_attempt(sim, job, 1)->end.message, "complete", "no checkpoint of step 12");
    sim_free(sim);
}

/* An end that names no node is that of the node that tells it. */
static void an_end_without_a_node_is_the_tellers(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 12);
    uint64_t job = sim_submitted(sim, &needs);
    const struct hd_observed ended = {.job = job,
                                      .attempt = 1,
                                      .state = HD_ATTEMPT_STATE_ENDED,
                                      .end = {.cause = HD_END_CAUSE_RANK_EXIT,
                                              .rank = 1,
                                              .exit_code = 3,
                                              .message = "the disk is full"}};
    const struct hd_core_event observed = {.kind = HD_CORE_OBSERVED,
                                           .observed = {.uuid = "uuid-1",
                                                        .stream = sim->nodes[0].stream,
                                                        .attempts = &ended,
                                                        .attempt_count = 1}};

    sim->slow_store = true; /* the simulated ranks know of no end */
    assert_int_equal(sim_event(sim, &observed), HD_OK);
    assert_string_equal(hd_core_attempt(sim->core, job, 1)->end.node, "n1");
    assert_int_equal(hd_core_attempt(sim->core, job, 1)->end.exit_code, 3);
    sim_free(sim);
}

/* restart.max 2: the first attempt and two more fail in a row without a checkpoint. */
static void a_job_gives_up_after_restart_max(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 12);
    uint64_t job;

    for (int n = 0; n < sim->node_count; n++)
        sim->nodes[n].faults = (struct sim_faults){.fail_at_step = 3, .fail_count = 100};
    needs.restart_max = 2;
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_FAILED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 3);
    assert_tells(sim_job(sim, job)->reason, "rank_exit: rank 1 on n2", "signal 9", "3 failures",
                 "restart.max is 2");
    sim_free(sim);
}

/* Each attempt dies 3 steps after its base, but only every second one reaches a checkpoint: never
 * more than one failure in a row, so restart.max 1 is enough to reach the end. */
static void a_new_checkpoint_forgives_failures(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 24);
    uint64_t job;

    needs.restart_max = 1;
    job = sim_submitted(sim, &needs);
    for (int64_t fail_at = 8; fail_at <= 23; fail_at += 5) {
        for (int again = 0; again < 2; again++) {
            const int32_t attempts = sim_job(sim, job)->attempt_count;

            sim->nodes[0].faults.fail_at_step = (int)fail_at;
            sim->nodes[0].faults.fail_count = 1;
            for (int s = 0; s < 60 && sim_job(sim, job)->attempt_count == attempts; s++)
                sim_second(sim);
            assert_int_equal(sim_job(sim, job)->attempt_count, attempts + 1);
        }
    }
    sim_run_until_ended(sim, job, 60);
    sim_assert_undisturbed(sim, job, 24);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1 + 4 * 2);
    sim_free(sim);
}

/* Goal: damage costs the steps behind the checkpoint before, and no restart. Method: checkpoints at
 * 5 and 10 of attempt 1, which dies at step 13; that of 10 cannot be loaded. */
static void a_damaged_checkpoint_is_gone_back_from(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 24);
    uint64_t job;

    needs.restart_max = 1; /* which the death at step 13 uses up */
    needs.keep = 2;
    sim->nodes[0].faults =
        (struct sim_faults){.fail_at_step = 13, .fail_count = 1, .damaged = {10, 10}};
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 200);
    sim_assert_undisturbed(sim, job, 24);
    assert_int_equal(sim_job(sim, job)->attempt_count, 3);
    assert_int_equal(sim_attempt(sim, job, 2)->base_step, 10);
    assert_int_equal(sim_attempt(sim, job, 3)->base_attempt, 1);
    assert_int_equal(sim_attempt(sim, job, 3)->base_step, 5);
    assert_int_equal(sim_count_events(sim, job, "checkpoint_damaged"), 1);
    sim_free(sim);
}

/* The checkpoint of step 10 that attempt 1 wrote is damaged; that of the same step by attempt 3 is
 * not, and attempt 4 goes on from it. */
static void damage_is_of_one_attempts_checkpoint(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 24);
    uint64_t job;

    sim->nodes[0].faults =
        (struct sim_faults){.fail_at_step = 13, .fail_count = 2, .damaged = {10, 10}};
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 200);
    sim_assert_undisturbed(sim, job, 24);
    assert_int_equal(sim_attempt(sim, job, 3)->base_step, 5);
    assert_int_equal(sim_attempt(sim, job, 4)->base_attempt, 3);
    assert_int_equal(sim_attempt(sim, job, 4)->base_step, 10);
    assert_int_equal(sim_job(sim, job)->attempt_count, 4);
    sim_free(sim);
}

/* Goal: one after the other, and never silently from the beginning. Method: both are damaged. */
static void without_a_sound_checkpoint_the_job_fails(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 24);
    uint64_t job;

    needs.restart_max = 2;
    sim->nodes[0].faults =
        (struct sim_faults){.fail_at_step = 13, .fail_count = 1, .damaged = {5, 10}};
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 200);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_FAILED);
    assert_int_equal(sim_attempt(sim, job, 2)->base_step, 10);
    assert_int_equal(sim_attempt(sim, job, 3)->base_step, 5);
    /* nothing is left to go back to: now attempts 2 and 3 count, and 4 (again from 10) is one more
     * than restart.max */
    assert_int_equal(sim_attempt(sim, job, 4)->base_step, 10);
    assert_int_equal(sim_job(sim, job)->attempt_count, 4);
    assert_int_equal(sim_count_events(sim, job, "checkpoint_damaged"), 1);
    sim_free(sim);
}

static void restart_max_0_means_one_attempt(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 12);
    uint64_t job;

    sim->nodes[0].faults = (struct sim_faults){.fail_at_step = 8, .fail_count = 1};
    needs.restart_max = 0;
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_FAILED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    sim_free(sim);
}

static void bad_input_is_never_tried_again(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 12);
    uint64_t job;

    sim->nodes[0].faults =
        (struct sim_faults){.fail_at_step = 8, .fail_count = 1, .bad_input = true};
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_FAILED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    sim_free(sim);
}

/* Losses are finite up to step 13. The checkpoint of step 10 was followed by finite ones, that of
 * 15 by none; keep: 1 may not take the former away, and no attempt repeats what diverged. */
static void a_diverged_run_fails_and_keeps_what_is_from_before(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 60);
    uint64_t job;

    needs.keep = 1;
    sim->nodes[0].faults.diverges_at = 14;
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 100);
    sim_run(sim, 3);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_FAILED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_DIVERGED);
    assert_tells(sim_job(sim, job)->reason, "diverged", "not finite", "step 10 of attempt 1");
    assert_int_equal(sim_count_on_disk(sim, job), 2); /* 10 and the newest, 15 */
    sim_free(sim);
}

/* Attempt 2 starts from the last checkpoint of a job that succeeded and has no finite step: what it
 * started from is not sound, so attempt 3 starts from the one before. */
static void a_resume_goes_back_behind_weights_that_diverge_at_once(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 20);
    uint64_t job;

    needs.keep = 0;
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(sim_resume(sim, job, &needs), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "has done all its 20 steps"));
    needs.steps = 60;
    sim->nodes[0].faults.diverges_at = 21;
    assert_int_equal(sim_resume(sim, job, &needs), HD_OK);
    assert_int_equal(sim_resume(sim, job, &needs), HD_CONFLICT); /* it runs */
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(sim_attempt(sim, job, 2)->base_step, 20);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_FAILED);
    sim_controller_crash(sim);
    sim->nodes[0].faults.diverges_at = 0;
    sim_run(sim, 2);
    assert_int_equal(sim_resume(sim, job, &needs), HD_OK);
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(sim_attempt(sim, job, 3)->base_attempt, 1);
    assert_int_equal(sim_attempt(sim, job, 3)->base_step, 15);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_final_value(sim, job), sim_undisturbed_value(job, 60));
    sim_free(sim);
}

static void a_launch_that_fails_is_tried_again(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 12);
    uint64_t job;

    sim->nodes[0].faults.no_start = 2;
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 3);
    assert_int_equal(sim_attempt(sim, job, 2)->end.cause, HD_END_CAUSE_LAUNCH_FAILED);
    sim_free(sim);
}

/* Attempt after attempt cannot be launched. The second one follows at once, then the controller
 * waits 1 s, and twice as long each time up to a minute. */
static void retries_without_progress_are_spaced_out(void **state)
{
    static const int delays_s[] = {0, 1, 2, 4, 8, 16, 32, 60, 60}; /* behind attempts 1, 2, 3 .. */
    enum { DELAYS = sizeof delays_s / sizeof delays_s[0] };
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(4, 12); /* on both nodes */
    uint64_t job;

    needs.restart_max = DELAYS + 1;
    sim->nodes[0].faults.no_start = DELAYS;
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 300);
    sim_assert_undisturbed(sim, job, 12);
    assert_int_equal(sim_job(sim, job)->attempt_count, DELAYS + 1);
    for (int k = 1; k <= DELAYS; k++)
        assert_int_equal(sim_attempt(sim, job, k + 1)->created_ms -
                             sim_attempt(sim, job, k)->ended_ms,
                         1000 * delays_s[k - 1]);
    sim_free(sim);
}

/* The wait is told with what is left of it, a part of a second as a whole one. */
static void a_retry_that_waits_says_for_how_long(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 12);
    uint64_t job;

    sim->nodes[0].faults.no_start = 5;
    needs.restart_max = 9;
    job = sim_submitted(sim, &needs);
    while (sim_job(sim, job)->attempt_count < 4 ||
           sim_attempt(sim, job, 4)->state != HD_ATTEMPT_STATE_ENDED)
        sim_second(sim);
    sim_assert_reason(sim, job, "attempt 4 ended (launch_failed on n1); will be retried in 4 s");
    sim->now.mono_ms += 1500;
    sim_assert_reason(sim, job, "attempt 4 ended (launch_failed on n1); will be retried in 3 s");
    sim_free(sim);
}

/* An attempt after progress is retried at once: only the attempts behind the last progress count.
 */
static void progress_ends_the_waiting(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 30);
    uint64_t job;

    needs.restart_max = 9;
    sim->nodes[0].faults.no_start = 3;
    job = sim_submitted(sim, &needs);
    while (sim_job(sim, job)->attempt_count < 4)
        sim_second(sim);
    sim->nodes[0].faults = (struct sim_faults){.fail_at_step = 8, .fail_count = 1};
    sim_run_until_ended(sim, job, 100);
    sim_assert_undisturbed(sim, job, 30);
    assert_int_equal(sim_job(sim, job)->attempt_count, 5);
    assert_int_equal(sim_attempt(sim, job, 5)->created_ms, sim_attempt(sim, job, 4)->ended_ms);
    sim_free(sim);
}

static void ranks_that_never_meet_are_a_failed_launch(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 12);
    uint64_t job;

    sim->nodes[0].faults.never_meet = true;
    job = sim_submitted(sim, &needs);
    sim_run(sim, 599);
    assert_int_equal(sim_attempt(sim, job, 1)->state, HD_ATTEMPT_STATE_STARTING);
    sim_run(sim, 3);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_LAUNCH_FAILED);
    sim->nodes[0].faults.never_meet = false;
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    sim_free(sim);
}

/* ---- disks that take no writes ----------------------------------------------------------------*/

/* restart.max 1, and ranks that die of a full disk six times before the first checkpoint. */
static void what_a_full_disk_ends_is_not_counted(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 12);
    uint64_t job;

    needs.restart_max = 1;
    sim->nodes[0].faults =
        (struct sim_faults){.fail_at_step = 3, .fail_count = 6, .full_disk = true};
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 200);
    sim_assert_undisturbed(sim, job, 12);
    assert_int_equal(sim_job(sim, job)->attempt_count, 7);
    assert_int_equal(sim_attempt(sim, job, 6)->end.cause, HD_END_CAUSE_STORAGE);
    sim_free(sim);
}

/* Longer than the limit for starts (600 s), with the reason shown, in one attempt. */
static void an_attempt_waits_for_a_disk_as_long_as_it_takes(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 12);
    uint64_t job;

    sim->nodes[0].faults.full_disk = true;
    job = sim_submitted(sim, &needs);
    sim_run(sim, 1500);
    assert_int_equal(sim_attempt(sim, job, 1)->state, HD_ATTEMPT_STATE_STARTING);
    sim_assert_reason(sim, job, "n1: waits to start: no space");
    sim->nodes[0].faults.full_disk = false;
    sim_run_until_ended(sim, job, 60);
    sim_assert_undisturbed(sim, job, 12);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    sim_free(sim);
}

/* After the disk is back the limit for starts counts from there. */
static void the_limit_for_starts_begins_after_the_wait(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 12);
    uint64_t job;

    sim->nodes[0].faults = (struct sim_faults){.full_disk = true, .never_meet = true};
    job = sim_submitted(sim, &needs);
    sim_run(sim, 700);
    sim->nodes[0].faults.full_disk = false;
    sim->nodes[0].changed = true;
    sim_run(sim, 590);
    assert_int_equal(sim_attempt(sim, job, 1)->state, HD_ATTEMPT_STATE_STARTING);
    sim_run(sim, 20);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_LAUNCH_FAILED);
    sim_free(sim);
}

static void a_job_that_waits_for_a_disk_can_be_cancelled(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 12);
    uint64_t job;

    sim->nodes[0].faults.full_disk = true;
    job = sim_submitted(sim, &needs);
    sim_run(sim, 20);
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    sim_run_until_ended(sim, job, 10);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_CANCELLED);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_USER);
    assert_string_equal(sim_attempt(sim, job, 1)->end.message, "stopped before its start");
    sim_free(sim);
}

/* The ranks of n1 gave up waiting for those of n2, which waits for its disk: that is the cause, and
 * no failure of the job. */
static void peers_of_a_node_that_waits_are_not_to_blame(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(4, 12);
    struct hd_observed ended = {.attempt = 1,
                                .state = HD_ATTEMPT_STATE_ENDED,
                                .end = {.cause = HD_END_CAUSE_RANK_EXIT,
                                        .rank = -1,
                                        .secondary = true,
                                        .message = "rank 2 is missing"}};
    struct hd_core_event observed = {
        .kind = HD_CORE_OBSERVED,
        .observed = {.uuid = "uuid-1", .attempts = &ended, .attempt_count = 1}};

    sim->nodes[1].faults.full_disk = true;
    ended.job = sim_submitted(sim, &needs);
    sim_run(sim, 5);
    observed.observed.stream = sim->nodes[0].stream;
    sim->slow_store = true; /* the simulated ranks know of no end */
    assert_int_equal(sim_event(sim, &observed), HD_OK);
    assert_int_equal(hd_core_attempt(sim->core, ended.job, 1)->end.cause, HD_END_CAUSE_STORAGE);
    assert_string_equal(hd_core_attempt(sim->core, ended.job, 1)->end.node, "n2");
    sim_free(sim);
}

/* ---- checkpoints ------------------------------------------------------------------------------*/

static void old_checkpoints_go_and_the_newest_stay(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 42);
    uint64_t job = sim_submitted(sim, &needs);

    sim_run_until_ended(sim, job, 100);
    sim_run(sim, 5);
    assert_int_equal(sim_count_on_disk(sim, job), 2); /* keep: steps 40 and 42 */
    assert_int_equal(sim_final_value(sim, job), sim_undisturbed_value(job, 42));
    sim_free(sim);
}

/* keep 1, base at step 5 of attempt 1: it stays while attempt 2 runs, whatever is newer. */
static void the_base_in_use_is_not_deleted(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 60);
    uint64_t job;

    needs.keep = 1;
    sim->nodes[0].faults = (struct sim_faults){.fail_at_step = 8, .fail_count = 1};
    job = sim_submitted(sim, &needs);
    sim_run(sim, 47); /* well beyond step 20 of attempt 2; its newest is proven */
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    assert_int_equal(sim_attempt(sim, job, 2)->base_step, 5);
    assert_int_equal(sim_count_on_disk(sim, job), 2); /* the base and the newest */
    sim_run_until_ended(sim, job, 100);
    sim_run(sim, 3);
    assert_int_equal(sim_count_on_disk(sim, job), 1);
    sim_free(sim);
}

/* Goal: a finished copy is one event, however often the node lists it; that of a job that the core does
 * not have is one of the cluster. */
static void a_finished_copy_is_told_once(void **state)
{
    struct sim *sim = sim_joined(1);
    const struct hd_job_needs needs = sim_needs(1, 100);
    const uint64_t job = sim_submitted(sim, &needs);
    struct hd_copied copies[] = {
        {.job = job, .attempt = 1, .step = 5, .to = "s3://b/attempt-1/step-5", .time_ms = 100},
        {.job = job, .attempt = 1, .step = 9, .to = "s3://b/attempt-1/step-9", .time_ms = 101},
        {.job = job + 1, .attempt = 1, .step = 9, .to = "s3://b", .time_ms = 102}};
    struct hd_core_event observed = {
        .kind = HD_CORE_OBSERVED,
        .observed = {.uuid = "uuid-1", .copied = copies, .jobs_dir_visible = true}};

    sim_run(sim, 2);
    observed.observed.stream = sim->nodes[0].stream;
    for (; observed.observed.copied_count <= 3; observed.observed.copied_count++)
        assert_int_equal(sim_event(sim, &observed), HD_OK);
    assert_int_equal(sim_count_events(sim, job, "checkpoint_copied"), 2);
    assert_int_equal(sim_count_events(sim, 0, "checkpoint_copied"), 1);
    sim_free(sim);
}

/* n2 was never asked to delete what n1 has: its word does not count, also after a start of the
 * controller. n1 is cut, so that its checkpoint of step 5 is still to be deleted. */
static void only_the_node_that_has_a_checkpoint_can_delete_it(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 100);
    uint64_t job;
    struct hd_deletion told = {.attempt = 1, .step = 5};
    struct hd_core_event observed = {
        .kind = HD_CORE_OBSERVED,
        .observed = {
            .uuid = "uuid-2", .deleted = &told, .deleted_count = 1, .jobs_dir_visible = true}};

    needs.keep = 1;
    job = told.job = sim_submitted(sim, &needs);
    sim_run(sim, 10); /* step 9 */
    sim->slow_store = true;
    sim_run(sim, 2); /* the checkpoint of step 10 makes that of step 5 superfluous */
    for (int crash = 0; crash < 2; crash++) {
        struct hd_desired desired;
        struct hd_arena arena;

        observed.observed.stream = sim->nodes[1].stream;
        assert_int_equal(sim_event(sim, &observed), HD_OK);
        hd_arena_init(&arena, 0);
        assert_int_equal(hd_core_desired(sim->core, "uuid-1", &arena, &desired), HD_OK);
        assert_int_equal(desired.deletion_count, 1);
        assert_int_equal(desired.deletions[0].step, 5);
        hd_arena_done(&arena);
        if (crash)
            break;
        for (int n = 0; n < 2; n++)
            sim->nodes[n].stream = 0; /* nothing is told to them any more */
        sim_commit(sim);
        sim_controller_crash(sim);
        sim_run(sim, 1); /* hello again */
    }
    assert_int_equal(sim_count_on_disk(sim, job), 2);
    sim_free(sim);
}

/* Which checkpoints of the only job are to be deleted, as "1 2 4". */
static void list_deletions(struct sim *sim, char ret_text[64])
{
    struct hd_desired desired;
    struct hd_arena arena;
    size_t n = 0;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_core_desired(sim->core, "uuid-1", &arena, &desired), HD_OK);
    ret_text[0] = '\0';
    for (size_t i = 0; i < desired.deletion_count; i++)
        n += (size_t)snprintf(ret_text + n, 64 - n, "%s%lld", i ? " " : "",
                              (long long)desired.deletions[i].step);
    hd_arena_done(&arena);
}

/* With checkpoint.best the lowest validation loss is kept beside the newest, here one: of equal
 * losses the oldest, and not what had none. A start of the controller does not change it. */
static void the_best_checkpoint_is_kept_beside_the_newest(void **state)
{
    /* by step, from 1; NaN: not validated */
    static const double losses[] = {2.5, 1.5, 1.75, NAN, 1.5, 1.25, 1.375};
    static const char *const deleted[] = {"", "1", "1", "1 3", "1 3 4", "1 2 3 4 5", "1 2 3 4 5"};
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 100);
    struct hd_core_event report;
    char text[64];
    uint64_t job;

    needs.keep = 1;
    needs.keep_best = true;
    job = sim_submitted(sim, &needs);
    report = sim_report(sim, job, 0, HD_REPORT_CHECKPOINT);
    sim->slow_store = true; /* the node hears of no deletion */
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        report.report.seq = i + 1;
        report.report.checkpoint = (struct hd_checkpoint_record){
            .step = (int64_t)i + 1, .path = "/step", .hash = "h", .val_loss = losses[i]};
        assert_int_equal(sim_event(sim, &report), HD_OK);
        list_deletions(sim, text);
        assert_string_equal(text, deleted[i]);
    }
    sim->nodes[0].stream = 0; /* nothing is told to it any more */
    sim_commit(sim);
    sim_controller_crash(sim);
    sim_run(sim, 1); /* hello again */
    list_deletions(sim, text);
    assert_string_equal(text, "1 2 3 4 5");
    sim_free(sim);
}

/* A deletion is durable: after a start of the controller it is not asked for again. */
static void a_deletion_is_remembered(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 100);
    struct hd_desired desired;
    struct hd_arena arena;
    uint64_t job;

    needs.keep = 1;
    job = sim_submitted(sim, &needs);
    sim_run(sim, 14);
    assert_int_equal(sim_count_on_disk(sim, job), 1);
    sim_controller_crash(sim);
    sim_run(sim, 1);
    hd_arena_init(&arena, 0);
    assert_int_equal(hd_core_desired(sim->core, "uuid-1", &arena, &desired), HD_OK);
    assert_int_equal(desired.deletion_count, 0);
    hd_arena_done(&arena);
    sim_free(sim);
}

/* All are kept, and there are more than the core remembers: it is the oldest that it forgets, so
 * that the job goes on from the newest. */
static void beyond_the_limit_the_newest_checkpoints_count(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 2 * HD_CTL_CHECKPOINTS_MAX);
    uint64_t job = sim_submitted(sim, &needs);
    struct hd_core_event report = sim_report(sim, job, 0, HD_REPORT_CHECKPOINT);
    const struct hd_observed ended = {.job = job,
                                      .attempt = 1,
                                      .state = HD_ATTEMPT_STATE_ENDED,
                                      .end = {.cause = HD_END_CAUSE_RANK_EXIT, .rank = 1}};
    const struct hd_core_event observed = {.kind = HD_CORE_OBSERVED,
                                           .observed = {.uuid = "uuid-1",
                                                        .stream = sim->nodes[0].stream,
                                                        .attempts = &ended,
                                                        .attempt_count = 1}};

    for (int64_t step = 1; step <= HD_CTL_CHECKPOINTS_MAX + 2; step++) {
        report.report.seq = (uint64_t)step;
        report.report.checkpoint =
            (struct hd_checkpoint_record){.step = step, .path = "/step", .hash = "h"};
        assert_int_equal(sim_event(sim, &report), HD_OK);
    }
    sim->slow_store = true; /* attempt 2 is decided; the simulated ranks of 1 know of no end */
    assert_int_equal(sim_event(sim, &observed), HD_OK);
    assert_non_null(hd_core_attempt(sim->core, job, 2));
    assert_int_equal(hd_core_attempt(sim->core, job, 2)->base_step, HD_CTL_CHECKPOINTS_MAX + 2);
    sim_free(sim);
}

RUN_CASES()
