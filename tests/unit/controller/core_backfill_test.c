/* core: expected starts, and jobs that start before others without delaying them. */
#include <stdio.h>
#include <string.h>

#include "sim.h"
#include "tests/program/test.h"

static uint64_t submit(struct sim *sim, int priority, int devices, int steps, int limit_s)
{
    struct hd_job_needs needs = sim_needs(devices, steps);

    needs.priority = priority;
    needs.time_limit_ms = (int64_t)limit_s * 1000;
    return sim_submitted(sim, &needs);
}

static enum hd_job_state state_of(const struct sim *sim, uint64_t job)
{
    return sim_job(sim, job)->state;
}

/* Seconds from now to the expected start. */
static int64_t expected_in_s(const struct sim *sim, uint64_t job)
{
    return (sim_job(sim, job)->planned_start_ms - sim->now.wall_ms) / 1000;
}

/* One node of two devices. Job 1 has one of them for 300 steps of a second; job 2 needs both. When
 * steps are measured, its start is expected at the end of job 1. A job that has ended by then may
 * have the free device; one that may run longer, or for a time that is not known, may not. */
static void a_job_may_use_what_is_kept_if_it_ends_in_time(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t running = submit(sim, 0, 1, 300, 0), blocked = submit(sim, 0, 2, 5, 0);
    uint64_t unknown, too_long, fits;

    assert_int_equal(sim_job(sim, blocked)->planned_start_ms, 0); /* no step is measured yet */
    sim_run(sim, 20);
    assert_in_range(expected_in_s(sim, blocked), 270, 300);
    assert_int_equal(sim_count_events(sim, blocked, "start_expected"), 1);
    unknown = submit(sim, 0, 1, 5, 0);
    too_long = submit(sim, 0, 1, 5, 400);
    fits = submit(sim, 0, 1, 5, 100);
    assert_int_equal(state_of(sim, unknown), HD_JOB_STATE_QUEUED);
    assert_int_equal(state_of(sim, too_long), HD_JOB_STATE_QUEUED);
    assert_int_equal(state_of(sim, fits), HD_JOB_STATE_RUNNING);
    sim_assert_undisturbed(sim, (sim_run_until_ended(sim, fits, 60), fits), 5);
    sim_run_until_ended(sim, running, 400);
    sim_run(sim, 3);
    assert_int_equal(state_of(sim, blocked), HD_JOB_STATE_RUNNING);
    assert_int_equal(sim_count_events(sim, blocked, "start_moved"), 0);
    sim_run_until_ended(sim, too_long, 60);
    sim_free(sim);
}

/* One node of two devices, the older job's start known and far away: a younger job whose length is
 * not known borrows what is kept, and gives it back at a checkpoint when the older one can start.
 */
static void what_is_kept_for_long_is_lent_and_given_back(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t running = submit(sim, 0, 1, 1500, 0), blocked = submit(sim, 0, 2, 5, 0);
    uint64_t borrower;

    sim_run(sim, 20);
    borrower = submit(sim, 0, 1, 200, 0);
    assert_int_equal(state_of(sim, borrower), HD_JOB_STATE_RUNNING);
    assert_int_equal(sim_count_events(sim, borrower, "borrowing"), 1);
    sim_run(sim, 30);
    assert_int_equal(sim_cancel(sim, running, true), HD_OK);
    sim_run_until_ended(sim, blocked, 60);
    assert_int_equal(sim_attempt(sim, borrower, 1)->end.cause, HD_END_CAUSE_PREEMPTED);
    sim_run_until_ended(sim, borrower, 400);
    assert_true(sim_attempt(sim, borrower, 2)->base_step > 0);
    sim_assert_undisturbed(sim, borrower, 200);
    sim_free(sim);
}

/* The case above, but the controller is killed while the device is lent: the new one knows who
 * borrows. */
static void a_new_controller_knows_who_borrows(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t running = submit(sim, 0, 1, 1500, 0), blocked = submit(sim, 0, 2, 5, 0);
    uint64_t borrower;

    sim_run(sim, 20);
    borrower = submit(sim, 0, 1, 400, 0);
    assert_int_equal(state_of(sim, borrower), HD_JOB_STATE_RUNNING);
    sim_run(sim, 10);
    sim_controller_crash(sim);
    sim_run(sim, 10);
    assert_int_equal(sim_cancel(sim, running, true), HD_OK);
    sim_run_until_ended(sim, blocked, 60);
    assert_int_equal(sim_attempt(sim, borrower, 1)->end.cause, HD_END_CAUSE_PREEMPTED);
    sim_free(sim);
}

/* Two nodes: job 1 holds a whole one, job 2 one device of the other. Job 3, of one node, is
 * expected on whichever is free first: that of job 1, after 100 steps. The free device of the other
 * node is not kept: a job whose length is not known takes it. */
static void devices_that_are_not_needed_then_are_not_kept(void **state)
{
    struct sim *sim = sim_joined(2);
    const uint64_t first = submit(sim, 0, 2, 100, 0), second = submit(sim, 0, 1, 300, 0);
    struct hd_job_needs needs = sim_needs(2, 5);
    uint64_t blocked, other;

    needs.wish.sizes.tp = 2;
    blocked = sim_submitted(sim, &needs);
    sim_run(sim, 20);
    other = submit(sim, 0, 1, 30, 0);
    assert_int_equal(state_of(sim, other), HD_JOB_STATE_RUNNING);
    sim_assert_places(sim, other, 1, "cpu n2:1");
    assert_in_range(expected_in_s(sim, blocked), 70, 100);
    sim_run_until_ended(sim, blocked, 200);
    assert_true(sim_attempt(sim, blocked, 1)->created_ms <=
                sim_attempt(sim, first, 1)->ended_ms + 3000);
    assert_int_equal(state_of(sim, second), HD_JOB_STATE_RUNNING);
    sim_free(sim);
}

/* A job with a time limit is known to end even before its steps are measured. */
static void a_time_limit_is_an_end_that_is_known(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t running = submit(sim, 0, 2, 1000, 500), blocked = submit(sim, 0, 1, 5, 0);

    assert_int_equal(state_of(sim, running), HD_JOB_STATE_RUNNING);
    assert_in_range(expected_in_s(sim, blocked), 500, 570);
    sim_free(sim);
}

/* Goal: an event tells why an expected start moves: here a job of higher priority comes before it;
 * that makes no device free, as it is no higher than what runs. */
static void an_expected_start_moves_with_an_event(void **state)
{
    struct sim *sim = sim_joined(1);
    int64_t before_ms;
    uint64_t blocked, higher;

    submit(sim, 5, 2, 100, 0);
    blocked = submit(sim, 0, 2, 5, 0);
    sim_run(sim, 20);
    before_ms = sim_job(sim, blocked)->planned_start_ms;
    assert_true(before_ms > 0);
    higher = submit(sim, 3, 2, 10, 0);
    assert_int_equal(sim_count_events(sim, blocked, "start_moved"), 1);
    assert_int_equal(sim_job(sim, blocked)->planned_start_ms,
                     0); /* the higher one's end is not known */
    assert_true(sim_job(sim, higher)->planned_start_ms >= before_ms - 60000);
    sim_run_until_ended(sim, blocked, 300);
    assert_true(sim_attempt(sim, blocked, 1)->created_ms >= sim_attempt(sim, higher, 1)->ended_ms);
    sim_free(sim);
}

/* The expected start is stored: a new controller keeps it, and needs no new measurement of a pace
 * that it knows from the newest step. */
static void an_expected_start_survives_a_restart(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t running = submit(sim, 0, 2, 200, 0), blocked = submit(sim, 0, 2, 5, 0);
    int64_t before_ms;

    sim_run(sim, 30);
    before_ms = sim_job(sim, blocked)->planned_start_ms;
    assert_true(before_ms > 0);
    sim_controller_crash(sim);
    sim_run(sim, 30);
    assert_int_equal(sim_job(sim, blocked)->planned_start_ms, before_ms);
    assert_int_equal(sim_count_events(sim, blocked, "start_moved"), 0);
    sim_run_until_ended(sim, running, 300);
    sim_run(sim, 3);
    assert_int_equal(state_of(sim, blocked), HD_JOB_STATE_RUNNING);
    sim_free(sim);
}

/* A node that is out of reach when its ranks begin tells a minute later that they run, and the
 * controller is killed then: neither the old controller nor the new one takes the steps for faster
 * than they are, and the time limit counts from the first step. */
static void ranks_that_ran_unheard_are_not_taken_for_faster(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t running = submit(sim, 0, 2, 1500, 0);
    const struct hd_attempt_record *attempt;
    uint64_t blocked;

    sim_commit(sim); /* the node is told to start */
    sim->nodes[0].cut = true;
    sim_run(sim, 20);
    attempt = sim_attempt(sim, running, 1);
    assert_int_equal(attempt->state, HD_ATTEMPT_STATE_STARTING);
    sim->nodes[0].cut = false;
    sim_run(sim, 5);
    assert_in_range(attempt->running_ms, attempt->created_ms, attempt->created_ms + 5000);
    blocked = submit(sim, 0, 2, 5, 0);
    sim_run(sim, 2);
    assert_in_range(expected_in_s(sim, blocked), 1450, 1500);
    sim_controller_crash(sim);
    sim_run(sim, 10);
    assert_int_equal(sim_count_events(sim, blocked, "start_moved"), 0);
    assert_in_range(expected_in_s(sim, blocked), 1430, 1500);
    sim_free(sim);
}

/* A promise moves when it is more than a minute late; until then people are told that the job may
 * start now, and never a time that has passed. */
static void a_start_that_is_late_is_expected_now(void **state)
{
    struct sim *sim = sim_joined(1);
    uint64_t blocked;
    int64_t planned_start_ms;

    (void)submit(sim, 0, 2, 60, 0);
    blocked = submit(sim, 0, 2, 5, 0);
    sim_run(sim, 20);
    planned_start_ms = sim_job(sim, blocked)->planned_start_ms;
    assert_true(planned_start_ms > sim->now.wall_ms);
    assert_int_equal(hd_core_expected_start_ms(sim_job(sim, blocked), sim->now), planned_start_ms);
    sim->nodes[0].cut = true;
    while (sim->now.wall_ms < planned_start_ms + 30000)
        sim_second(sim);
    assert_int_equal(sim_job(sim, blocked)->planned_start_ms, planned_start_ms);
    assert_int_equal(hd_core_expected_start_ms(sim_job(sim, blocked), sim->now), sim->now.wall_ms);
    sim->nodes[0].cut = false;
    sim_run_until_ended(sim, blocked, 300);
    assert_int_equal(hd_core_expected_start_ms(sim_job(sim, blocked), sim->now), 0);
    sim_free(sim);
}

/* Takes the message of the newest start_moved; a char[256]. */
static void keep_cause(void *user, struct hd_batch *batch)
{
    for (const struct hd_batch_op *op = batch->first; op; op = op->next)
        if (op->kind == HD_OP_EVENT && strcmp(op->event.kind, "start_moved") == 0)
            (void)snprintf(user, 256, "%s", op->event.message);
    hd_batch_free(batch);
}

/* One of two nodes is drained, no job can start on four devices any more: that is why, and not what
 * is known of the jobs that run. */
static void a_drain_is_the_cause_of_the_move(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_core_event drain = {.kind = HD_CORE_DRAIN, .drain = {.node = "n2", .reason = ""}};
    char cause[256] = "";
    uint64_t blocked;

    (void)submit(sim, 0, 2, 600, 0);
    (void)submit(sim, 0, 2, 600, 0);
    sim_run(sim, 20);
    blocked = submit(sim, 0, 4, 5, 0);
    sim_run(sim, 2);
    assert_true(sim_job(sim, blocked)->planned_start_ms > 0);
    sim->on_durable = keep_cause;
    sim->on_durable_user = cause;
    assert_int_equal(sim_event(sim, &drain), HD_OK);
    sim_run(sim, 2);
    assert_int_equal(sim_job(sim, blocked)->planned_start_ms, 0);
    assert_non_null(
        strstr(cause, "an unknown time: the nodes that it was to start on have changed"));
    sim_free(sim);
}

/* The node of the running job stands still for five minutes: its end is later than was predicted.
 * Nobody is ended for that; the expected start moves, with an event. */
static void a_wrong_prediction_ends_no_job(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t running = submit(sim, 0, 2, 60, 0), blocked = submit(sim, 0, 2, 5, 0);

    sim_run(sim, 20);
    assert_true(sim_job(sim, blocked)->planned_start_ms > 0);
    sim->nodes[0].cut = true; /* its ranks go on; nothing is heard of them */
    sim_run(sim, 150);
    assert_true(sim_count_events(sim, blocked, "start_moved") > 0);
    assert_int_equal(sim_job(sim, running)->attempt_count, 1);
    sim->nodes[0].cut = false;
    sim_run_until_ended(sim, running, 300);
    sim_run_until_ended(sim, blocked, 60);
    sim_assert_undisturbed(sim, running, 60);
    assert_int_equal(sim_job(sim, running)->attempt_count, 1);
    sim_free(sim);
}

/* Every world is broken as in the other tests; besides, jobs have priorities, queues and limits. */
static void policies_hold_whatever_breaks(void **state)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        print_message("world %llu\n", (unsigned long long)seed);
        sim_live_with_policies(seed, 2 + (int)(seed % 3));
    }
}

/* Besides, places differ in their price: jobs wait for better ones, and move for one another. */
static void choices_hold_whatever_breaks(void **state)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        print_message("world %llu\n", (unsigned long long)seed);
        sim_live_among_switches(seed, 4);
    }
}

RUN_CASES()
