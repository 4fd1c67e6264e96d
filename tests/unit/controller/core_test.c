/* core: whole jobs on two simulated nodes, and every rule that the state machine states. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sim.h"

static enum hd_job_state state_of(const struct sim *sim, uint64_t job)
{
    return sim_job(sim, job)->state;
}

/* ---- success ----------------------------------------------------------------------------------*/

static void a_job_trains_to_its_end(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 12);
    uint64_t job = sim_submitted(sim, &ask);

    (void)state;
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_COMPLETED);
    assert_int_equal(sim_attempt(sim, job, 1)->plan.dp, 2);
    assert_int_equal(sim_final_value(sim, job), sim_undisturbed_value(job, 12));
    for (int64_t step = 1; step <= 12; step++)
        assert_int_equal(sim_count_steps(sim, job, step), 1);
    sim_free(sim);
}

/* Two jobs of one device each fill one node before the other is touched: large holes stay large. */
static void small_jobs_share_a_node(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(1, 50);
    uint64_t a = sim_submitted(sim, &ask), b = sim_submitted(sim, &ask);

    (void)state;
    assert_string_equal(sim_attempt(sim, a, 1)->plan.ranks[0].node_name, "n1");
    assert_string_equal(sim_attempt(sim, b, 1)->plan.ranks[0].node_name, "n1");
    assert_int_equal(sim_attempt(sim, a, 1)->plan.ranks[0].device, 0);
    assert_int_equal(sim_attempt(sim, b, 1)->plan.ranks[0].device, 1);
    sim_free(sim);
}

/* ---- failures ---------------------------------------------------------------------------------*/

/* Checkpoints come every 5 steps; a rank dies before step 8: steps 6 and 7 are done twice. */
static void a_failed_rank_restarts_from_the_newest_checkpoint(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 12);
    uint64_t job;

    (void)state;
    for (int n = 0; n < sim->node_count; n++)
        sim->nodes[n].faults = (struct sim_faults){.fail_at_step = 8};
    sim->nodes[0].faults.fail_count = 1;
    job = sim_submitted(sim, &ask);
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_SUCCEEDED);
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

/* restart.max 2: the first attempt and two more fail in a row without a checkpoint. */
static void a_job_gives_up_after_restart_max(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 12);
    uint64_t job;

    (void)state;
    for (int n = 0; n < sim->node_count; n++)
        sim->nodes[n].faults = (struct sim_faults){.fail_at_step = 3, .fail_count = 100};
    ask.restart_max = 2;
    job = sim_submitted(sim, &ask);
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_FAILED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 3);
    assert_string_equal(sim_job(sim, job)->reason,
                        "rank_exit: rank 1 on n1: killed by signal 9: killed (3 failed in a row "
                        "without a new checkpoint, restart.max is 2)");
    sim_free(sim);
}

/* Each attempt dies 3 steps after its base, but only every second one reaches a checkpoint: never
 * more than one failure in a row, so restart.max 1 is enough to reach the end. */
static void a_new_checkpoint_forgives_failures(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 24);
    uint64_t job;

    (void)state;
    ask.restart_max = 1;
    job = sim_submitted(sim, &ask);
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
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1 + 4 * 2);
    assert_int_equal(sim_final_value(sim, job), sim_undisturbed_value(job, 24));
    sim_free(sim);
}

/* Goal: damage costs the steps behind the checkpoint before, and no restart. Method: checkpoints at
 * 5 and 10 of attempt 1, which dies at step 13; that of 10 cannot be loaded. */
static void a_damaged_checkpoint_is_gone_back_from(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 24);
    uint64_t job;

    (void)state;
    ask.restart_max = 1; /* which the death at step 13 uses up */
    ask.keep = 2;
    sim->nodes[0].faults =
        (struct sim_faults){.fail_at_step = 13, .fail_count = 1, .damaged = {10, 10}};
    job = sim_submitted(sim, &ask);
    sim_run_until_ended(sim, job, 200);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 3);
    assert_int_equal(sim_attempt(sim, job, 2)->base_step, 10);
    assert_int_equal(sim_attempt(sim, job, 3)->base_attempt, 1);
    assert_int_equal(sim_attempt(sim, job, 3)->base_step, 5);
    assert_int_equal(sim_count_events(sim, job, "checkpoint_damaged"), 1);
    assert_int_equal(sim_final_value(sim, job), sim_undisturbed_value(job, 24));
    sim_free(sim);
}

/* Goal: one after the other, and never silently from the beginning. Method: both are damaged. */
static void without_a_sound_checkpoint_the_job_fails(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 24);
    uint64_t job;

    (void)state;
    ask.restart_max = 2;
    sim->nodes[0].faults =
        (struct sim_faults){.fail_at_step = 13, .fail_count = 1, .damaged = {5, 10}};
    job = sim_submitted(sim, &ask);
    sim_run_until_ended(sim, job, 200);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_FAILED);
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
    struct hd_ask ask = sim_ask(2, 12);
    uint64_t job;

    (void)state;
    sim->nodes[0].faults = (struct sim_faults){.fail_at_step = 8, .fail_count = 1};
    ask.restart_max = 0;
    job = sim_submitted(sim, &ask);
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_FAILED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    sim_free(sim);
}

static void bad_input_is_never_tried_again(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 12);
    uint64_t job;

    (void)state;
    sim->nodes[0].faults =
        (struct sim_faults){.fail_at_step = 8, .fail_count = 1, .bad_input = true};
    job = sim_submitted(sim, &ask);
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_FAILED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    sim_free(sim);
}

static void a_launch_that_fails_is_tried_again(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 12);
    uint64_t job;

    (void)state;
    sim->nodes[0].faults.no_start = 2;
    job = sim_submitted(sim, &ask);
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 3);
    assert_int_equal(sim_attempt(sim, job, 2)->end.cause, HD_END_CAUSE_LAUNCH_FAILED);
    sim_free(sim);
}

static void ranks_that_never_meet_are_a_failed_launch(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 12);
    uint64_t job;

    (void)state;
    sim->nodes[0].faults.never_meet = true;
    job = sim_submitted(sim, &ask);
    sim_run(sim, 599);
    assert_int_equal(sim_attempt(sim, job, 1)->state, HD_ATTEMPT_STATE_STARTING);
    sim_run(sim, 3);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_LAUNCH_FAILED);
    sim->nodes[0].faults.never_meet = false;
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_SUCCEEDED);
    sim_free(sim);
}

/* ---- nodes that vanish ------------------------------------------------------------------------*/

/* Silence means unreachable after 15 s and lost after 180 s, not before; it costs no restart. */
static void a_lost_node_moves_its_job_to_the_other(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 400);
    uint64_t job;

    (void)state;
    ask.restart_max = 0;
    job = sim_submitted(sim, &ask);
    sim_run(sim, 9); /* past step 5 */
    sim->nodes[0].cut = true;
    sim_run(sim, 14);
    assert_int_equal(sim_count_events(sim, 0, "unreachable"), 0);
    sim_run(sim, 165); /* 179 s */
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_RUNNING);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    assert_int_equal(sim_count_events(sim, 0, "unreachable"), 1);
    assert_int_equal(sim_count_events(sim, 0, "lost"), 0);
    sim_run(sim, 1);
    assert_int_equal(sim_count_events(sim, 0, "lost"), 1);
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_NODE_LOST);
    assert_string_equal(sim_attempt(sim, job, 2)->plan.ranks[0].node_name, "n2");
    assert_int_equal(sim_attempt(sim, job, 2)->base_step, 5);

    /* The old attempt has trained on, far beyond; nothing of that is looked at any more. */
    sim->nodes[0].cut = false;
    sim_run(sim, 5);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_NODE_LOST);
    sim->nodes[1].faults = (struct sim_faults){.fail_at_step = 40, .fail_count = 1};
    ask.restart_max = 0;
    sim_run_until_ended(sim, job, 500);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_FAILED); /* step 40 of attempt 2 */
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    sim_free(sim);
}

/* Attempt 1 reaches step 170 or so behind the broken network; attempt 2 starts from 5 and dies at
 * 40: attempt 3 must start from 35 of attempt 2, not from what attempt 1 wrote. */
static void what_an_older_attempt_writes_is_never_looked_at(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 400);
    uint64_t job = sim_submitted(sim, &ask);

    (void)state;
    sim_run(sim, 9);
    sim->nodes[0].cut = true;
    sim_run(sim, 180);
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    sim->nodes[1].faults = (struct sim_faults){.fail_at_step = 40, .fail_count = 1};
    sim->nodes[0].cut = false;
    sim->slow_store = true; /* so that the node reports before it hears that nobody wants it */
    sim_run(sim, 3);
    sim->slow_store = false;
    sim_commit(sim);
    sim_run(sim, 57);
    assert_int_equal(sim_job(sim, job)->attempt_count, 3);
    assert_int_equal(sim_attempt(sim, job, 3)->base_attempt, 2);
    assert_int_equal(sim_attempt(sim, job, 3)->base_step, 35);
    sim_free(sim);
}

/* The other node was never connected, so both attempts run on n1: attempt 2 may not start before
 * the ranks of attempt 1 are gone (the simulated devices assert it). */
static void a_returning_node_is_emptied_before_it_works(void **state)
{
    struct sim *sim = sim_new(1, 2);
    struct hd_ask ask = sim_ask(2, 400);
    uint64_t job;

    (void)state;
    sim->nodes[1].cut = true;
    sim_run(sim, 2);
    job = sim_submitted(sim, &ask);
    sim_run(sim, 9);
    sim->nodes[0].cut = true;
    sim_run(sim, 185);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_QUEUED);
    sim_assert_reason(sim, job,
                      "attempt 1 ended (node_lost on n1); needs 2 cpu devices; n1 is lost");
    sim->nodes[0].cut = false;
    sim_run(sim, 2); /* the old stream is refused, a new one is made */
    sim_assert_reason(sim, job,
                      "attempt 1 ended (node_lost on n1); needs 2 cpu devices; n1 is still "
                      "stopping attempt 1 of job 1");
    sim_run(sim, 5);
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    sim_free(sim);
}

static void a_short_silence_changes_nothing(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 200);
    uint64_t job = sim_submitted(sim, &ask);

    (void)state;
    sim_run(sim, 5);
    sim->nodes[0].cut = true;
    sim_run(sim, 100);
    sim->nodes[0].cut = false;
    sim_run_until_ended(sim, job, 300);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    assert_int_equal(sim_count_steps(sim, job, 90), 1); /* reported after the silence */
    sim_free(sim);
}

static void a_restarted_machine_ends_its_attempts_at_once(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 30);
    uint64_t job;

    (void)state;
    ask.restart_max = 0; /* a lost node never counts */
    job = sim_submitted(sim, &ask);
    sim_run(sim, 9);
    sim_reboot(sim, &sim->nodes[0]);
    sim_run(sim, 2);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_NODE_LOST);
    assert_string_equal(sim_attempt(sim, job, 1)->end.message, "the machine was restarted");
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_final_value(sim, job), sim_undisturbed_value(job, 30));
    sim_free(sim);
}

static void a_restarted_daemon_keeps_its_ranks(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 30);
    uint64_t job = sim_submitted(sim, &ask);

    (void)state;
    for (int i = 0; i < 10; i++) {
        sim_run(sim, 3);
        sim_daemon_restart(sim, &sim->nodes[0]);
    }
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim->starts, 1);
    for (int64_t step = 1; step <= 30; step++)
        assert_int_equal(sim_count_steps(sim, job, step), 1);
    sim_free(sim);
}

/* A checkpoint on a disk that only n1 sees: the job waits for n1 although n2 is free. */
static void a_private_checkpoint_ties_the_job_to_its_node(void **state)
{
    struct sim *sim = sim_new(1, 2);
    struct hd_ask ask = sim_ask(2, 30);
    uint64_t job;

    (void)state;
    sim->shared_disk = false;
    sim_run(sim, 2);
    job = sim_submitted(sim, &ask);
    sim_run(sim, 9);
    sim->nodes[0].cut = true;
    sim_run(sim, 185);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    sim_assert_reason(sim, job,
                      "attempt 1 ended (node_lost on n1); needs 2 cpu devices on one node; its "
                      "checkpoint of step 5 is on n1 only; n1 is lost, n2 has 2");
    sim->nodes[0].cut = false;
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_SUCCEEDED);
    assert_string_equal(sim_attempt(sim, job, 2)->plan.ranks[0].node_name, "n1");
    sim_free(sim);
}

/* ---- cancel -----------------------------------------------------------------------------------*/

static void cancel_writes_a_checkpoint_first(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 100);
    uint64_t job = sim_submitted(sim, &ask);

    (void)state;
    sim_run(sim, 9); /* between checkpoints */
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_STOPPING);
    sim_run_until_ended(sim, job, 10);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_CANCELLED);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_USER);
    assert_int_equal(sim_count_on_disk(sim, job), 2); /* step 5 and the last */
    assert_int_equal(sim_cancel(sim, job, false), HD_NOT_FOUND);
    sim_free(sim);
}

static void cancel_now_writes_nothing(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 100);
    uint64_t job = sim_submitted(sim, &ask);

    (void)state;
    sim_run(sim, 9);
    assert_int_equal(sim_cancel(sim, job, true), HD_OK);
    sim_run_until_ended(sim, job, 10);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_CANCELLED);
    assert_int_equal(sim_count_on_disk(sim, job), 1);
    sim_free(sim);
}

static void a_stop_that_takes_too_long_becomes_a_kill(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 10000);
    uint64_t job;

    (void)state;
    ask.keep = 2;
    sim->nodes[0].faults.ignore_stop = true;
    job = sim_submitted(sim, &ask);
    sim_run(sim, 3);
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    sim_run(sim, 298);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_STOPPING);
    assert_int_equal(sim_count_events(sim, job, "killed"), 0);
    sim_run(sim, 4);
    assert_int_equal(sim_count_events(sim, job, "killed"), 1);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_CANCELLED);
    sim_free(sim);
}

static void a_queued_job_is_cancelled_at_once(void **state)
{
    struct sim *sim = sim_new(1, 2);
    struct hd_ask ask = sim_ask(2, 10);
    uint64_t job = sim_submitted(sim, &ask);

    (void)state;
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_CANCELLED);
    sim_run(sim, 5);
    assert_int_equal(sim->starts, 0);
    sim_free(sim);
}

/* The desired set with "stopping" is the first that the daemon hears of the attempt. */
static void an_attempt_cancelled_before_it_started_never_starts(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 10);
    uint64_t job;

    (void)state;
    sim->nodes[0].cut = true;
    job = sim_submitted(sim, &ask);
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    sim->nodes[0].cut = false;
    sim_daemon_restart(sim, &sim->nodes[0]);
    sim_run_until_ended(sim, job, 20);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_CANCELLED);
    assert_int_equal(sim->starts, 0);
    sim_free(sim);
}

static void a_job_that_was_faster_than_its_cancel_has_succeeded(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 10);
    uint64_t job;

    (void)state;
    sim->nodes[0].faults.ignore_stop = true;
    job = sim_submitted(sim, &ask);
    sim_run(sim, 5);
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    sim_run_until_ended(sim, job, 20);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_SUCCEEDED);
    sim_free(sim);
}

/* ---- waiting ----------------------------------------------------------------------------------*/

static void a_job_without_nodes_says_so(void **state)
{
    struct sim *sim = sim_new(1, 2);
    struct hd_ask ask = sim_ask(2, 10);
    uint64_t job = sim_submitted(sim, &ask);

    (void)state;
    sim_assert_reason(sim, job,
                      "needs 2 cpu devices; no node has joined yet (start heddled on one)");
    sim_free(sim);
}

static void gangs_wait_first_in_first_out_and_say_why(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask two = sim_ask(2, 20), one = sim_ask(1, 20);
    uint64_t a = sim_submitted(sim, &one), b = sim_submitted(sim, &two),
             c = sim_submitted(sim, &two);
    uint64_t d = sim_submitted(sim, &one), e = sim_submitted(sim, &two);

    (void)state;
    /* a holds a device of n1, b holds n2. c needs a whole node: n1 is kept for it, so d, which
     * would fit there, waits behind it, and so does e. */
    assert_int_equal(state_of(sim, a), HD_JOB_STATE_RUNNING);
    assert_int_equal(state_of(sim, b), HD_JOB_STATE_RUNNING);
    sim_assert_reason(sim, c,
                      "needs 2 cpu devices; n1 has 1 of 2 free (kept for job 3), n2 has 0 "
                      "of 2 free (kept for job 4)");
    sim_assert_reason(sim, d,
                      "needs 1 cpu device; n1 has 1 of 2 free (kept for job 3), n2 has 0 "
                      "of 2 free (kept for job 4)");
    sim_assert_reason(sim, e,
                      "waits behind job 3; needs 2 cpu devices; n1 has 1 of 2 free (kept "
                      "for job 3), n2 has 0 of 2 free (kept for job 4)");
    for (uint64_t job = a; job <= e; job++)
        sim_run_until_ended(sim, job, 200);
    assert_true(sim_job(sim, c)->started_ms <= sim_job(sim, d)->started_ms);
    assert_true(sim_job(sim, d)->started_ms <= sim_job(sim, e)->started_ms);
    sim_free(sim);
}

/* Goal: no starvation. Method: a stream of small jobs that would always fill the holes. */
static void a_large_job_is_not_starved_by_small_ones(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask small = sim_ask(1, 10), large = sim_ask(2, 10);
    uint64_t job;

    (void)state;
    for (int i = 0; i < 4; i++) {
        (void)sim_submitted(sim, &small);
        sim_run(sim, 3); /* so that they never end at the same time */
    }
    job = sim_submitted(sim, &large);
    for (int i = 0; i < 20; i++) {
        (void)sim_submitted(sim, &small);
        sim_run(sim, 2);
    }
    assert_int_not_equal(state_of(sim, job), HD_JOB_STATE_QUEUED);
    sim_free(sim);
}

static void an_impossible_job_holds_nobody_up(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask eight = sim_ask(8, 10), two = sim_ask(2, 10);
    uint64_t job = sim_submitted(sim, &eight), next = sim_submitted(sim, &two);

    (void)state;
    sim_assert_reason(sim, job, "needs 8 cpu devices; n1 has 0 of 2 free, n2 has 2");
    sim_run_until_ended(sim, next, 60);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_QUEUED);
    sim_free(sim);
}

static void a_range_of_devices_takes_what_is_there(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(1, 10);
    uint64_t a, b, c;

    (void)state;
    a = sim_submitted(sim, &ask);
    ask.devices_max = 8; /* n1 has one left, n2 two; three do not share 8 sequences evenly */
    b = sim_submitted(sim, &ask);
    c = sim_submitted(sim, &ask);
    assert_int_equal(sim_attempt(sim, a, 1)->plan.rank_count, 1);
    assert_int_equal(sim_attempt(sim, b, 1)->plan.rank_count, 2);
    assert_int_equal(sim_attempt(sim, c, 1)->plan.rank_count, 1);
    sim_free(sim);
}

static void retries_without_progress_are_spaced_out(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 10);
    struct hd_text text = {0};
    uint64_t job;

    (void)state;
    ask.restart_max = 100;
    sim->nodes[0].faults.no_start = 100;
    sim->nodes[1].faults.no_start = 100;
    job = sim_submitted(sim, &ask);
    sim_run(sim, 130);
    /* waits 0, 1, 2, 4, 8, 16, 32, 60 s: within 130 s at most 2 + 7 attempts, at least 7 */
    assert_in_range(sim_job(sim, job)->attempt_count, 7, 9);
    hd_core_explain(sim->core, job, sim->now, &text);
    assert_non_null(strstr(text.data, "attempt"));
    assert_non_null(strstr(text.data, "ended (launch_failed on n1); tries again in "));
    hd_text_free(&text);
    sim_free(sim);
}

static void a_draining_node_finishes_and_takes_nothing_new(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 10);
    uint64_t a = sim_submitted(sim, &ask), b;
    const struct hd_core_event drain = {.kind = HD_CORE_DRAIN,
                                        .drain = {.node = "n1", .reason = "new disk"}};
    const struct hd_core_event undrain = {.kind = HD_CORE_UNDRAIN, .drain = {.node = "n1"}};
    const struct hd_core_event unknown = {.kind = HD_CORE_DRAIN, .drain = {.node = "n9"}};
    struct hd_node_view view;

    (void)state;
    assert_int_equal(sim_event(sim, &unknown), HD_NOT_FOUND);
    assert_int_equal(sim_event(sim, &drain), HD_OK);
    hd_core_node_at(sim->core, 0, &view);
    assert_int_equal(view.record->state, HD_NODE_STATE_DRAINING);
    sim->nodes[1].cut = true;
    sim_run(sim, 16);
    b = sim_submitted(sim, &ask);
    assert_int_equal(state_of(sim, a), HD_JOB_STATE_SUCCEEDED);
    hd_core_node_at(sim->core, 0, &view);
    assert_int_equal(view.record->state, HD_NODE_STATE_DRAINED);
    sim_assert_reason(sim, b,
                      "needs 2 cpu devices; n1 is drained: new disk, n2 has been "
                      "unreachable for 16 s");
    assert_int_equal(sim_event(sim, &undrain), HD_OK);
    assert_int_equal(state_of(sim, b), HD_JOB_STATE_RUNNING);
    sim_free(sim);
}

/* ---- identity ---------------------------------------------------------------------------------*/

static void a_taken_name_is_refused_until_its_owner_is_lost(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_device_record device = {.kind = HD_DEVICE_KIND_CPU, .threads = 1};
    const struct hd_core_event hello = {.kind = HD_CORE_HELLO,
                                        .hello = {.uuid = "another",
                                                  .name = "n1",
                                                  .boot_id = "b",
                                                  .stream = 1000,
                                                  .devices = &device,
                                                  .device_count = 1}};

    (void)state;
    assert_int_equal(sim_event(sim, &hello), HD_EXISTS);
    assert_non_null(strstr(hd_err_message(), "--node-name"));
    sim->nodes[0].cut = true;
    sim_run(sim, 181);
    assert_int_equal(sim_event(sim, &hello), HD_OK);
    assert_int_equal(hd_core_node_count(sim->core), 2);
    sim_free(sim);
}

static void a_second_stream_of_a_node_replaces_the_first(void **state)
{
    struct sim *sim = sim_joined(2);
    struct sim_node *node = &sim->nodes[0];
    const uint64_t old = node->stream;
    struct hd_core_event alive = {.kind = HD_CORE_ALIVE, .node = {.uuid = "uuid-1", .stream = old}};
    struct hd_core_event gone = {.kind = HD_CORE_GONE, .node = {.uuid = "uuid-1", .stream = old}};
    struct hd_node_view view;

    (void)state;
    node->stream = 0;
    sim_second(sim); /* says hello again */
    assert_int_not_equal(node->stream, old);
    assert_int_equal(sim_event(sim, &alive), HD_CONFLICT);
    assert_int_equal(sim_event(sim, &gone), HD_OK); /* late news of the old stream: ignored */
    hd_core_node_at(sim->core, 0, &view);
    assert_int_equal(view.record->state, HD_NODE_STATE_READY);
    alive.node.stream = node->stream;
    assert_int_equal(sim_event(sim, &alive), HD_OK);
    sim_free(sim);
}

static void a_daemon_may_not_come_back_without_a_device_in_use(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 100);
    struct hd_device_record device = {.kind = HD_DEVICE_KIND_CPU, .threads = 1};
    struct hd_core_event hello = {.kind = HD_CORE_HELLO,
                                  .hello = {.uuid = "uuid-1",
                                            .name = "n1",
                                            .boot_id = "boot-1",
                                            .stream = 1000,
                                            .devices = &device,
                                            .device_count = 1}};

    (void)state;
    (void)sim_submitted(sim, &ask);
    assert_int_equal(sim_event(sim, &hello), HD_CONFLICT);
    hello.hello.boot_id = "boot-9"; /* after a restart of the machine nothing runs there */
    assert_int_equal(sim_event(sim, &hello), HD_OK);
    sim_free(sim);
}

static void a_repeated_request_is_the_same_job(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 3), other = sim_ask(1, 9);
    uint64_t first, again;
    bool repeated;

    (void)state;
    assert_int_equal(sim_submit_as(sim, &ask, "r-1", &first, &repeated), HD_OK);
    assert_false(repeated);
    assert_int_equal(sim_submit_as(sim, &other, "r-1", &again, &repeated), HD_OK);
    assert_true(repeated);
    assert_int_equal(again, first);
    sim_run_until_ended(sim, first, 60);
    sim_controller_crash(sim);
    assert_int_equal(sim_submit_as(sim, &ask, "r-1", &again, &repeated), HD_OK);
    assert_true(repeated);
    assert_int_equal(again, first);
    assert_int_equal(hd_core_live_jobs(sim->core), 0);
    sim_free(sim);
}

/* ---- checkpoints ------------------------------------------------------------------------------*/

static void old_checkpoints_go_and_the_newest_stay(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 42);
    uint64_t job = sim_submitted(sim, &ask);

    (void)state;
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
    struct hd_ask ask = sim_ask(2, 60);
    uint64_t job;

    (void)state;
    ask.keep = 1;
    sim->nodes[0].faults = (struct sim_faults){.fail_at_step = 8, .fail_count = 1};
    job = sim_submitted(sim, &ask);
    sim_run(sim, 45); /* well beyond step 20 of attempt 2 */
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    assert_int_equal(sim_attempt(sim, job, 2)->base_step, 5);
    assert_int_equal(sim_count_on_disk(sim, job), 2); /* the base and the newest */
    sim_run_until_ended(sim, job, 100);
    sim_run(sim, 3);
    assert_int_equal(sim_count_on_disk(sim, job), 1);
    sim_free(sim);
}

/* All are kept, and there are more than the core remembers: it is the oldest that it forgets, so
 * that the job goes on from the newest. */
static void beyond_the_limit_the_newest_checkpoints_count(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 2 * HD_CTL_CHECKPOINTS_MAX);
    uint64_t job = sim_submitted(sim, &ask);
    struct hd_core_event report = {.kind = HD_CORE_REPORT,
                                   .report = {.uuid = "uuid-1",
                                              .stream = sim->nodes[0].stream,
                                              .job = job,
                                              .attempt = 1,
                                              .kind = HD_REPORT_CHECKPOINT,
                                              .checkpoint = {.path = "/step", .hash = "h"}}};
    const struct hd_observed ended = {.job = job,
                                      .attempt = 1,
                                      .state = HD_ATTEMPT_STATE_ENDED,
                                      .end = {.cause = HD_END_CAUSE_RANK_EXIT, .rank = 1}};
    const struct hd_core_event observed = {.kind = HD_CORE_OBSERVED,
                                           .observed = {.uuid = "uuid-1",
                                                        .stream = sim->nodes[0].stream,
                                                        .attempts = &ended,
                                                        .attempt_count = 1}};

    (void)state;
    for (int64_t step = 1; step <= HD_CTL_CHECKPOINTS_MAX + 2; step++) {
        report.report.seq = (uint64_t)step;
        report.report.checkpoint.step = step;
        assert_int_equal(sim_event(sim, &report), HD_OK);
    }
    sim->slow_store = true; /* attempt 2 is decided; the simulated ranks of 1 know of no end */
    assert_int_equal(sim_event(sim, &observed), HD_OK);
    assert_non_null(hd_core_attempt(sim->core, job, 2));
    assert_int_equal(hd_core_attempt(sim->core, job, 2)->base_step, HD_CTL_CHECKPOINTS_MAX + 2);
    sim_free(sim);
}

/* ---- the controller away ----------------------------------------------------------------------*/

static void a_controller_restart_does_not_touch_training(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 60);
    uint64_t job = sim_submitted(sim, &ask), other = sim_submitted(sim, &ask);

    (void)state;
    for (int i = 0; i < 12; i++) {
        sim_run(sim, 5);
        sim_controller_crash(sim);
    }
    sim_run_until_ended(sim, job, 100);
    sim_run_until_ended(sim, other, 100);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim->starts, 2);
    for (int64_t step = 1; step <= 60; step++)
        assert_int_equal(sim_count_steps(sim, job, step), 1);
    sim_free(sim);
}

/* After a restart, a node has 300 s to come back before its attempts are given up. */
static void a_restarted_controller_is_patient(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 1000);
    uint64_t job = sim_submitted(sim, &ask);

    (void)state;
    sim_run(sim, 5);
    sim->nodes[0].cut = true;
    sim_controller_crash(sim);
    sim_run(sim, 299);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_RUNNING);
    sim_run(sim, 1);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_NODE_LOST);
    sim_free(sim);
}

/* n1's ranks vanish without a trace and without a reboot while the controller is away: attempt 1
 * was running, so it is over; it must not be started a second time. */
static void an_attempt_that_vanished_is_not_started_twice(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 30);
    uint64_t job = sim_submitted(sim, &ask);

    (void)state;
    sim_run(sim, 9);
    memset(sim->nodes[0].attempts, 0, sizeof sim->nodes[0].attempts);
    sim_controller_crash(sim);
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_NODE_LOST);
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    assert_int_equal(sim_final_value(sim, job), sim_undisturbed_value(job, 30));
    sim_free(sim);
}

/* A job that was accepted but not durable when the controller died was never acknowledged, and no
 * daemon has heard of it. */
static void nothing_leaves_before_it_is_durable(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 10);
    uint64_t job, again;

    (void)state;
    sim->slow_store = true;
    job = sim_submitted(sim, &ask);
    sim_run(sim, 10);
    assert_false(sim->acknowledged[job]);
    assert_int_equal(sim->starts, 0);
    sim_controller_crash(sim);
    assert_int_equal(hd_core_live_jobs(sim->core), 0);
    again = sim_submitted(sim, &ask);
    sim_commit(sim);
    assert_true(sim->acknowledged[again]);
    sim_free(sim);
}

/* ---- reports ----------------------------------------------------------------------------------*/

static void reports_of_a_rank_that_does_not_exist_are_refused(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 100);
    uint64_t job = sim_submitted(sim, &ask);
    struct hd_core_event event = {.kind = HD_CORE_REPORT,
                                  .report = {.uuid = "uuid-1",
                                             .stream = sim->nodes[0].stream,
                                             .job = job,
                                             .attempt = 1,
                                             .rank = 2,
                                             .seq = 1,
                                             .kind = HD_REPORT_STEP}};

    (void)state;
    assert_int_equal(sim_event(sim, &event), HD_INVALID);
    event.report.rank = 1;
    event.report.attempt = 2;
    assert_int_equal(sim_event(sim, &event), HD_NOT_FOUND);
    event.report.attempt = 1;
    event.report.uuid = "uuid-2";
    event.report.stream = sim->nodes[1].stream;
    assert_int_equal(sim_event(sim, &event), HD_INVALID); /* not on that node */
    event.report.uuid = "uuid-1";
    event.report.stream = sim->nodes[0].stream;
    assert_int_equal(sim_event(sim, &event), HD_OK);
    sim_free(sim);
}

/* After a break the daemon sends again what was not acknowledged, known or not. */
static void a_resent_report_is_taken_in_once(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 100);
    uint64_t job = sim_submitted(sim, &ask);
    struct hd_core_event event = {.kind = HD_CORE_REPORT,
                                  .report = {.uuid = "uuid-1",
                                             .stream = sim->nodes[0].stream,
                                             .job = job,
                                             .attempt = 1,
                                             .rank = 1,
                                             .kind = HD_REPORT_STEP}};

    (void)state;
    for (int again = 0; again < 3; again++) {
        for (uint64_t seq = 1; seq <= 5; seq++) {
            event.report.seq = seq;
            event.report.step.step = 1000 + (int64_t)seq;
            assert_int_equal(sim_event(sim, &event), HD_OK);
        }
    }
    sim_controller_crash(sim); /* what was taken in is remembered on disk */
    sim_run(sim, 3);
    event.report.stream = sim->nodes[0].stream;
    assert_int_equal(sim_event(sim, &event), HD_OK);
    for (int64_t step = 1001; step <= 1005; step++)
        assert_int_equal(sim_count_steps(sim, job, step), 1);
    sim_free(sim);
}

/* "x" and two-byte characters: each character begins at an odd byte, so a cut at an even one halves
 * it. A receiver refuses every message with half a character, a whole list of nodes for one reason.
 */
static void a_text_too_long_is_cut_between_characters(void **state)
{
    enum { CHARACTERS = 4000 };
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(2, 100);
    uint64_t job = sim_submitted(sim, &ask);
    char text[1 + 2 * CHARACTERS + 1] = "x";
    struct hd_core_event drain = {.kind = HD_CORE_DRAIN, .drain = {.node = "n1", .reason = text}};
    struct hd_core_event report = {.kind = HD_CORE_REPORT,
                                   .report = {.uuid = "uuid-1",
                                              .stream = sim->nodes[0].stream,
                                              .job = job,
                                              .attempt = 1,
                                              .rank = 1,
                                              .seq = 1,
                                              .kind = HD_REPORT_EVENT,
                                              .event = {.kind = text, .message = text}}};
    struct hd_core_out out = {.batch = hd_batch_new()};
    const struct hd_event_record *kept = NULL;
    struct hd_node_view view;

    (void)state;
    for (int i = 0; i < CHARACTERS; i++)
        memcpy(text + 1 + 2 * i, "\xc3\xa9", 2);
    assert_int_equal(sim_event(sim, &drain), HD_OK);
    hd_core_node_at(sim->core, 0, &view);
    assert_int_equal(strlen(view.record->drain_reason), HD_CTL_PATH_BYTES_MAX - 1);
    assert_int_equal(hd_core_step(sim->core, &report, sim->now, &out), HD_OK);
    for (const struct hd_op *op = out.batch->first; op; op = op->next)
        kept = op->kind == HD_OP_EVENT ? &op->event : kept;
    assert_non_null(kept);
    assert_int_equal(strlen(kept->message), HD_CTL_MESSAGE_BYTES_MAX - 1);
    assert_int_equal(strlen(kept->kind), HD_CTL_NAME_BYTES_MAX - 1);
    assert_true(hd_text_is_utf8(view.record->drain_reason, HD_CTL_PATH_BYTES_MAX - 1));
    assert_true(hd_text_is_utf8(kept->message, HD_CTL_MESSAGE_BYTES_MAX - 1));
    hd_batch_free(out.batch);
    hd_core_out_done(&out);
    sim_free(sim);
}

/* ---- plans ------------------------------------------------------------------------------------*/

static void plans_divide_the_batch(void **state)
{
    struct hd_ask ask = sim_ask(2, 10);
    struct hd_plan_record plan;

    (void)state;
    ask.wish.global_batch = 60; /* 30 a rank: the largest divisor up to 8 is 6 */
    assert_int_equal(hd_core_plan(&ask, HD_DEVICE_KIND_CPU, 2, &plan), HD_OK);
    assert_int_equal(plan.micro_batch, 6);
    assert_int_equal(plan.micro_batches, 5);
    ask.wish.micro_batch = 15;
    assert_int_equal(hd_core_plan(&ask, HD_DEVICE_KIND_CPU, 2, &plan), HD_OK);
    assert_int_equal(plan.micro_batches, 2);
    ask.wish.micro_batch = 7;
    assert_int_equal(hd_core_plan(&ask, HD_DEVICE_KIND_CPU, 2, &plan), HD_INVALID);
    ask.wish.micro_batch = 0;
    assert_int_equal(hd_core_plan(&ask, HD_DEVICE_KIND_CPU, 7, &plan), HD_INVALID);
    ask.wish.tp = 2;
    assert_int_equal(hd_core_plan(&ask, HD_DEVICE_KIND_CPU, 6, &plan), HD_OK);
    assert_true(plan.tp == 2 && plan.dp == 3 && plan.sequence);
    assert_int_equal(plan.micro_batch, 5); /* 20 a replica */
    assert_int_equal(hd_core_plan(&ask, HD_DEVICE_KIND_CPU, 5, &plan), HD_INVALID);
    ask.wish.tp = 0;
    ask.wish.pp = 2;
    assert_int_equal(hd_core_plan(&ask, HD_DEVICE_KIND_CPU, 2, &plan), HD_UNSUPPORTED);
    ask.wish.pp = 0;
    assert_int_equal(hd_core_plan(&ask, HD_DEVICE_KIND_CUDA, 2, &plan), HD_OK);
    assert_int_equal(plan.device, HD_DEVICE_KIND_CUDA);
    ask.wish.global_batch = 128; /* 64 and 128 share it evenly, but 128 ranks cannot be connected */
    assert_int_equal(hd_core_plan(&ask, HD_DEVICE_KIND_CPU, 64, &plan), HD_OK);
    assert_int_equal(hd_core_plan(&ask, HD_DEVICE_KIND_CPU, 128, &plan), HD_UNSUPPORTED);
}

static void what_can_never_run_is_refused(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_ask ask = sim_ask(3, 10); /* 8 sequences for 3 devices */
    uint64_t job;

    (void)state;
    assert_int_equal(sim_submit(sim, &ask, &job), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "train.global_batch = 8"));
    ask = sim_ask(2, 10);
    ask.wish.pp = 2;
    assert_int_equal(sim_submit(sim, &ask, &job), HD_UNSUPPORTED);
    sim_free(sim);
}

/* ---- everything at once -----------------------------------------------------------------------*/

static void random_worlds_keep_every_rule(void **state)
{
    const char *given = getenv("HEDDLE_SIM_SEED");

    (void)state;
    if (given) {
        sim_live_through((uint64_t)atoll(given), 2);
        return;
    }
    for (uint64_t seed = 1; seed <= 40; seed++) {
        print_message("world %llu (to see it alone: HEDDLE_SIM_SEED=%llu)\n",
                      (unsigned long long)seed, (unsigned long long)seed);
        sim_live_through(seed, 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_trains_to_its_end),
        cmocka_unit_test(small_jobs_share_a_node),
        cmocka_unit_test(a_failed_rank_restarts_from_the_newest_checkpoint),
        cmocka_unit_test(a_job_gives_up_after_restart_max),
        cmocka_unit_test(a_new_checkpoint_forgives_failures),
        cmocka_unit_test(restart_max_0_means_one_attempt),
        cmocka_unit_test(a_damaged_checkpoint_is_gone_back_from),
        cmocka_unit_test(without_a_sound_checkpoint_the_job_fails),
        cmocka_unit_test(bad_input_is_never_tried_again),
        cmocka_unit_test(a_launch_that_fails_is_tried_again),
        cmocka_unit_test(ranks_that_never_meet_are_a_failed_launch),
        cmocka_unit_test(a_lost_node_moves_its_job_to_the_other),
        cmocka_unit_test(what_an_older_attempt_writes_is_never_looked_at),
        cmocka_unit_test(a_returning_node_is_emptied_before_it_works),
        cmocka_unit_test(a_short_silence_changes_nothing),
        cmocka_unit_test(a_restarted_machine_ends_its_attempts_at_once),
        cmocka_unit_test(a_restarted_daemon_keeps_its_ranks),
        cmocka_unit_test(a_private_checkpoint_ties_the_job_to_its_node),
        cmocka_unit_test(cancel_writes_a_checkpoint_first),
        cmocka_unit_test(cancel_now_writes_nothing),
        cmocka_unit_test(a_stop_that_takes_too_long_becomes_a_kill),
        cmocka_unit_test(a_queued_job_is_cancelled_at_once),
        cmocka_unit_test(an_attempt_cancelled_before_it_started_never_starts),
        cmocka_unit_test(a_job_that_was_faster_than_its_cancel_has_succeeded),
        cmocka_unit_test(a_job_without_nodes_says_so),
        cmocka_unit_test(gangs_wait_first_in_first_out_and_say_why),
        cmocka_unit_test(a_large_job_is_not_starved_by_small_ones),
        cmocka_unit_test(an_impossible_job_holds_nobody_up),
        cmocka_unit_test(a_range_of_devices_takes_what_is_there),
        cmocka_unit_test(retries_without_progress_are_spaced_out),
        cmocka_unit_test(a_draining_node_finishes_and_takes_nothing_new),
        cmocka_unit_test(a_taken_name_is_refused_until_its_owner_is_lost),
        cmocka_unit_test(a_second_stream_of_a_node_replaces_the_first),
        cmocka_unit_test(a_daemon_may_not_come_back_without_a_device_in_use),
        cmocka_unit_test(a_repeated_request_is_the_same_job),
        cmocka_unit_test(old_checkpoints_go_and_the_newest_stay),
        cmocka_unit_test(the_base_in_use_is_not_deleted),
        cmocka_unit_test(beyond_the_limit_the_newest_checkpoints_count),
        cmocka_unit_test(a_controller_restart_does_not_touch_training),
        cmocka_unit_test(a_restarted_controller_is_patient),
        cmocka_unit_test(an_attempt_that_vanished_is_not_started_twice),
        cmocka_unit_test(nothing_leaves_before_it_is_durable),
        cmocka_unit_test(reports_of_a_rank_that_does_not_exist_are_refused),
        cmocka_unit_test(a_resent_report_is_taken_in_once),
        cmocka_unit_test(a_text_too_long_is_cut_between_characters),
        cmocka_unit_test(plans_divide_the_batch),
        cmocka_unit_test(what_can_never_run_is_refused),
        cmocka_unit_test(random_worlds_keep_every_rule),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
