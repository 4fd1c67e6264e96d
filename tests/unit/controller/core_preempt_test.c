/* core: jobs that give way to jobs of higher priority. */
#include <string.h>

#include "sim.h"
#include "tests/program/test.h"

static uint64_t submit(struct sim *sim, int priority, int devices, int steps)
{
    struct hd_job_needs needs = sim_needs(devices, steps);

    needs.priority = priority;
    return sim_submitted(sim, &needs);
}

static enum hd_job_state state_of(const struct sim *sim, uint64_t job)
{
    return sim_job(sim, job)->state;
}

static void expect_each_step_once(const struct sim *sim, uint64_t job, int64_t steps)
{
    for (int64_t step = 1; step <= steps; step++)
        if (sim_count_steps(sim, job, step) != 1)
            fail_msg("step %lld of job %llu was done %zu times", (long long)step,
                     (unsigned long long)job, sim_count_steps(sim, job, step));
}

/* Steps 1 to 7 or so are done when the higher one comes; the checkpoints of the job are of steps 5
 * and 10. That of the stop is what it goes on from: no step is done twice. restart.max is 0. */
static void a_job_gives_way_at_a_checkpoint_and_goes_on_from_it(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 24);
    uint64_t low, high;

    needs.restart_max = 0;
    low = sim_submitted(sim, &needs);
    sim_run(sim, 10);
    high = submit(sim, 1, 2, 10);
    assert_int_equal(state_of(sim, high), HD_JOB_STATE_QUEUED);
    sim_run_until_ended(sim, high, 60);
    assert_int_equal(sim_attempt(sim, low, 1)->end.cause, HD_END_CAUSE_PREEMPTED);
    assert_int_equal(sim_attempt(sim, low, 1)->stop_job, high);
    assert_int_equal(sim_count_events(sim, low, "preempted"), 1);
    assert_int_equal(sim_count_events(sim, high, "preempting"), 1);
    sim_run_until_ended(sim, low, 60);
    sim_assert_undisturbed(sim, low, 24);
    sim_assert_undisturbed(sim, high, 10);
    expect_each_step_once(sim, low, 24);
    assert_int_equal(sim_job(sim, low)->attempt_count, 2);
    sim_free(sim);
}

/* Only one start is told, not that the low job would have ended in minutes by itself. */
static void who_makes_others_give_way_is_told_one_start(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t low = submit(sim, 0, 2, 400);
    uint64_t high;

    sim_run(sim, 10);
    high = submit(sim, 1, 2, 5);
    sim_run_until_ended(sim, high, 60);
    assert_int_equal(sim_count_events(sim, low, "preempted"), 1);
    assert_int_equal(sim_count_events(sim, high, "start_expected"), 1);
    assert_int_equal(sim_count_events(sim, high, "start_moved"), 0);
    sim_free(sim);
}

static void a_job_of_equal_priority_gives_way_to_none(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t a = submit(sim, 3, 2, 20), b = submit(sim, 3, 2, 5);

    sim_run_until_ended(sim, a, 60);
    assert_int_equal(sim_job(sim, a)->attempt_count, 1);
    sim_run_until_ended(sim, b, 60);
    sim_free(sim);
}

/* Each of four nodes has one device of a low job and one of a high one: four devices would be freed
 * in sum, and never two on one node, which a tensor-parallel group of two needs (I11). */
static void devices_that_are_enough_in_sum_alone_stop_none(void **state)
{
    struct sim *sim = sim_joined(4);
    struct hd_job_needs needs = sim_needs(2, 5);
    uint64_t low[4], high[4], job;

    for (int n = 0; n < 4; n++) {
        high[n] = submit(sim, 9, 1, 60);
        low[n] = submit(sim, 0, 1, 40);
    }
    needs.priority = 5;
    needs.wish.sizes.tp = 2;
    job = sim_submitted(sim, &needs);
    sim_run(sim, 20);
    for (int n = 0; n < 4; n++) {
        assert_int_equal(sim_job(sim, low[n])->attempt_count, 1);
        assert_int_equal(state_of(sim, low[n]), HD_JOB_STATE_RUNNING);
    }
    sim_run_until_ended(sim, job, 200);
    for (int n = 0; n < 4; n++)
        assert_int_equal(sim_job(sim, high[n])->attempt_count, 1);
    sim_free(sim);
}

/* Both are low. The first one has just written its checkpoint of step 10, the second one has that
 * of step 5 behind it for seconds. */
static void the_victim_is_the_one_that_loses_least(void **state)
{
    struct sim *sim = sim_joined(2);
    const uint64_t first = submit(sim, 0, 2, 60);
    uint64_t second, high;

    sim_run(sim, 4);
    second = submit(sim, 0, 2, 60);
    for (int s = 0; s < 60 && !sim_count_steps(sim, first, 10); s++)
        sim_second(sim);
    assert_true(sim_count_steps(sim, second, 5));
    high = submit(sim, 1, 2, 5);
    sim_run_until_ended(sim, high, 60);
    assert_int_equal(sim_count_events(sim, first, "preempted"), 1);
    assert_int_equal(sim_count_events(sim, second, "preempted"), 0);
    sim_free(sim);
}

/* The jobs of n1 and n2 give way; that of n2 takes 10 s to write its checkpoint. Those of n3 and n4
 * end before, as far as is predicted. Meanwhile n1 is not for others, who would have to give way in
 * their transaction. */
static void a_place_that_is_made_free_is_kept_until_all_of_it_is(void **state)
{
    struct sim *sim = sim_joined(4);
    uint64_t low[2], high, other;

    low[0] = submit(sim, 0, 2, 200);
    low[1] = submit(sim, 0, 2, 200);
    (void)submit(sim, 1, 2, 24);
    (void)submit(sim, 1, 2, 24);
    sim->nodes[1].faults.save_s = 10;
    sim_run(sim, 8);
    high = submit(sim, 1, 4, 40);
    other = submit(sim, 0, 2, 200);
    sim_run(sim, 5);
    assert_int_equal(sim_attempt(sim, low[0], 1)->end.cause, HD_END_CAUSE_PREEMPTED);
    assert_int_equal(sim_attempt(sim, low[1], 1)->state, HD_ATTEMPT_STATE_STOPPING);
    assert_int_equal(state_of(sim, other), HD_JOB_STATE_QUEUED);
    sim_run_until_ended(sim, high, 100);
    sim_assert_places(sim, high, 1, "cpu n1:0 n1:1 n2:0 n2:1");
    assert_int_equal(sim_count_events(sim, other, "preempted"), 0);
    assert_int_equal(sim_count_events(sim, high, "preempting"), 1);
    sim_free(sim);
}

static bool is_preempting(const struct sim *sim, uint64_t job)
{
    enum hd_core_blocker found[HD_CORE_BLOCKERS_MAX];
    const size_t count = hd_core_blockers(sim->core, job, found);

    for (size_t i = 0; i < count; i++)
        if (found[i] == HD_CORE_WAITS_PREEMPTING)
            return true;
    return false;
}

/* The job of n2, the younger of two, takes 12 s to write its checkpoint for the higher one.
 * Meanwhile the controller is started anew, and n2 comes back seconds after n1: the higher job says
 * all the time that others stop for it, does not ask the job of n1, and gets n2. */
static void a_new_controller_knows_who_makes_a_place_free(void **state)
{
    struct sim *sim = sim_joined(2);
    uint64_t low[2], high;

    low[0] = submit(sim, 0, 2, 200);
    low[1] = submit(sim, 0, 2, 200);
    sim_run(sim, 8);
    sim_assert_places(sim, low[1], 1, "cpu n2:0 n2:1");
    sim->nodes[1].faults.save_s = 12;
    high = submit(sim, 1, 2, 10);
    assert_true(is_preempting(sim, high));
    sim->nodes[1].cut = true;
    sim_controller_crash(sim);
    for (int s = 0; s < 8; s++) {
        sim->nodes[1].cut = s < 4;
        sim_second(sim);
        assert_int_equal(state_of(sim, high), HD_JOB_STATE_QUEUED);
        assert_true(is_preempting(sim, high));
    }
    sim_run_until_ended(sim, high, 60);
    sim_assert_places(sim, high, 1, "cpu n2:0 n2:1");
    assert_int_equal(sim_count_events(sim, low[0], "preempted"), 0);
    assert_int_equal(sim_count_events(sim, high, "preempting"), 1);
    sim_free(sim);
}

/* Two nodes; the controller is started anew, and the second node connects four seconds later. There
 * a job of high priority finds room: devices that a cancelled job gives back, or that are free. So
 * the job on the first node is not asked to stop. */
static void a_new_controller_asks_nobody_before_all_nodes_are_back(void **state)
{
    for (int idle = 0; idle < 2; idle++) {
        struct sim *sim = sim_joined(2);
        const uint64_t first = submit(sim, 0, 2, 200), second = submit(sim, 0, 2, 200);
        uint64_t high;

        sim_run(sim, 8);
        sim_assert_places(sim, second, 1, "cpu n2:0 n2:1");
        sim->nodes[1].faults.save_s = 12;
        assert_int_equal(sim_cancel(sim, second, idle), HD_OK);
        if (idle)
            sim_run(sim, 3);
        sim->nodes[1].cut = idle; /* else it would start there now */
        high = submit(sim, 1, 2, 10);
        sim->nodes[1].cut = true;
        sim_controller_crash(sim);
        for (int s = 0; s < 8; s++) {
            sim->nodes[1].cut = s < 4;
            sim_second(sim);
        }
        sim_run_until_ended(sim, high, 60);
        sim_assert_places(sim, high, 1, "cpu n2:0 n2:1");
        assert_int_equal(sim_count_events(sim, first, "preempted"), 0);
        assert_int_equal(sim_count_events(sim, high, "preempting"), 0);
        sim_free(sim);
    }
}

/* A job of four to eight devices has made two nodes free, and one device each of two others is: it
 * starts on the four, for which others have stopped. */
static void an_elastic_job_takes_the_place_that_was_made_free(void **state)
{
    struct sim *sim = sim_joined(4);
    struct hd_job_needs needs = sim_needs(8, 20);
    uint64_t high, second;

    (void)submit(sim, 0, 2, 200);
    (void)submit(sim, 0, 2, 200);
    (void)submit(sim, 1, 1, 200);
    second = submit(sim, 1, 1, 200);
    (void)submit(sim, 1, 1, 200);
    assert_int_equal(sim_cancel(sim, second, true), HD_OK);
    sim_run(sim, 8);
    needs.priority = 1;
    needs.devices_min = 4;
    needs.wish.global_batch = 12; /* on four devices, or on six */
    high = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, high, 100);
    sim_assert_places(sim, high, 1, "cpu n1:0 n1:1 n2:0 n2:1");
    assert_int_equal(sim_count_events(sim, high, "preempting"), 1);
    sim_free(sim);
}

/* n1 has jobs of both priorities, n2 of the higher one. When that of n1 ends, the other one gives
 * way, which takes seconds: the device that is free is not lent to a third one meanwhile. */
static void what_is_being_made_free_is_not_lent(void **state)
{
    struct sim *sim = sim_joined(2);
    const uint64_t equal = submit(sim, 1, 1, 20), low = submit(sim, 0, 1, 900);
    struct hd_job_needs needs = sim_needs(2, 20);
    uint64_t high, other;

    (void)submit(sim, 1, 1, 900);
    (void)submit(sim, 1, 1, 900);
    sim->nodes[0].faults.save_s = 6;
    sim_run(sim, 8);
    needs.priority = 1;
    needs.wish.sizes.tp = 2;
    high = sim_submitted(sim, &needs);
    other = submit(sim, 0, 1, 900);
    sim_run_until_ended(sim, equal, 60);
    sim_run(sim, 2);
    assert_int_equal(sim_attempt(sim, low, 1)->state, HD_ATTEMPT_STATE_STOPPING);
    assert_int_equal(state_of(sim, other), HD_JOB_STATE_QUEUED);
    sim_run_until_ended(sim, high, 100);
    assert_int_equal(sim_count_events(sim, other, "preempted"), 0);
    sim_free(sim);
}

/* On n1 and n2 one device each has a job that would lose less than that of n3, which has both. The
 * higher one gets n3, and not one device of each of the others. */
static void others_give_way_where_the_place_is_best(void **state)
{
    struct sim *sim = sim_joined(3);
    uint64_t high;

    (void)submit(sim, 9, 1, 200);
    (void)submit(sim, 9, 1, 1);
    sim_run(sim, 1);
    (void)submit(sim, 0, 2, 200);
    (void)submit(sim, 9, 1, 200);
    sim_run(sim, 20);
    (void)submit(sim, 0, 1, 200);
    (void)submit(sim, 0, 1, 200);
    sim_run(sim, 3);
    high = submit(sim, 1, 2, 20);
    sim_run_until_ended(sim, high, 100);
    for (int r = 0; r < 2; r++)
        assert_string_equal(sim_attempt(sim, high, 1)->plan.ranks[r].node_name,
                            sim_attempt(sim, high, 1)->plan.ranks[0].node_name);
    assert_int_equal(sim_count_events(sim, high, "preempting"), 1);
    sim_free(sim);
}

/* A job of one device needs one victim of the two on the node. */
static void no_more_give_way_than_have_to(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t a = submit(sim, 0, 1, 40), b = submit(sim, 0, 1, 40);
    uint64_t high;

    sim_run(sim, 8);
    high = submit(sim, 1, 1, 5);
    sim_run_until_ended(sim, high, 60);
    assert_int_equal(sim_count_events(sim, a, "preempted") + sim_count_events(sim, b, "preempted"),
                     1);
    sim_free(sim);
}

/* The victim takes 6 s to write its checkpoint. Meanwhile the controller is started anew, and older
 * and younger jobs of less priority wait: the devices are kept for whom they were freed. */
static void freed_devices_are_kept_through_a_restart(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t low = submit(sim, 0, 2, 60), older = submit(sim, 0, 1, 5);
    uint64_t high, younger;

    sim->nodes[0].faults.save_s = 6;
    sim_run(sim, 8);
    high = submit(sim, 1, 2, 5);
    sim_run(sim, 2);
    assert_int_equal(sim_attempt(sim, low, 1)->stop_cause, HD_END_CAUSE_PREEMPTED);
    sim_assert_reason(sim, low, "writes a checkpoint and gives its devices back for job 3");
    sim_controller_crash(sim);
    sim_run(sim, 2);
    sim_assert_reason(sim, low, "writes a checkpoint and gives its devices back for job 3");
    younger = submit(sim, 0, 1, 5);
    for (int s = 0; s < 60 && state_of(sim, high) == HD_JOB_STATE_QUEUED; s++)
        sim_second(sim);
    assert_int_equal(state_of(sim, older), HD_JOB_STATE_QUEUED);
    assert_int_equal(state_of(sim, younger), HD_JOB_STATE_QUEUED);
    assert_int_equal(sim_attempt(sim, low, 1)->end.cause, HD_END_CAUSE_PREEMPTED);
    assert_int_equal(sim_job(sim, low)->attempt_count, 1);
    sim_run_until_ended(sim, low, 200);
    sim_assert_undisturbed(sim, low, 60);
    expect_each_step_once(sim, low, 60);
    sim_free(sim);
}

/* The victim takes 12 s to write its checkpoint. Meanwhile somebody holds the job that asked for
 * its devices, so that this one neither makes others give way nor gets what they free; and somebody
 * else cancels a third job, which says why it stops. */
static void who_stops_for_a_job_that_is_held_says_so(void **state)
{
    struct sim *sim = sim_joined(2);
    const uint64_t low = submit(sim, 0, 2, 60), third = submit(sim, 2, 2, 60);
    uint64_t high;

    sim->nodes[0].faults.save_s = sim->nodes[1].faults.save_s = 12;
    sim_run(sim, 8);
    high = submit(sim, 1, 2, 5);
    sim_run(sim, 2);
    sim_assert_reason(sim, low, "writes a checkpoint and gives its devices back for job 3");
    sim_assert_reason(
        sim, high,
        "other jobs are being preempted for it and write checkpoints; needs 2 cpu "
        "devices; n1 has 0 of 2 free (reserved for it, for which jobs stop there), n2 "
        "has 0 of 2 free");
    assert_true(is_preempting(sim, high));
    assert_int_equal(sim_hold(sim, high, true), HD_OK);
    assert_int_equal(sim_cancel(sim, third, false), HD_OK);
    sim_run(sim, 2);
    sim_assert_reason(sim, low,
                      "writes a checkpoint and gives its devices back: job 3 asked for them, and "
                      "is now held");
    assert_false(is_preempting(sim, high));
    sim_assert_reason(sim, third,
                      "writes a checkpoint, for at most 300 s, and stops, as a user asked");
    assert_int_equal(sim_hold(sim, high, false), HD_OK);
    sim_run_until_ended(sim, high, 60);
    sim_free(sim);
}

/* A job that has not started training has nothing to lose, and no checkpoint to write. */
static void a_job_that_starts_gives_way_too(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t low = submit(sim, 0, 2, 10), high = submit(sim, 1, 2, 5);

    sim_run_until_ended(sim, high, 60);
    assert_int_equal(sim_attempt(sim, low, 1)->end.cause, HD_END_CAUSE_PREEMPTED);
    sim_run_until_ended(sim, low, 60);
    sim_assert_undisturbed(sim, low, 10);
    sim_free(sim);
}

/* ---- drained nodes ----------------------------------------------------------------------------*/

static void drain(struct sim *sim, const char *node, int deadline_s)
{
    const struct hd_core_event event = {
        .kind = HD_CORE_DRAIN,
        .drain = {.node = node, .reason = "disk", .deadline_ms = deadline_s * 1000, .by = "root"}};

    assert_int_equal(sim_event(sim, &event), HD_OK);
}

/* Both nodes have a job of both devices. The one on n1 has nowhere to go until the other one ends
 * at step 20; then it moves, long before the deadline, and does no step twice. */
static void a_job_leaves_a_drained_node_when_it_fits_elsewhere(void **state)
{
    struct sim *sim = sim_joined(2);
    const uint64_t stays = submit(sim, 0, 2, 60), ends = submit(sim, 0, 2, 20);

    sim_assert_places(sim, stays, 1, "cpu n1:0 n1:1");
    sim_run(sim, 8);
    drain(sim, "n1", 3600);
    sim_run(sim, 5);
    assert_int_equal(sim_job(sim, stays)->attempt_count, 1);
    sim_run_until_ended(sim, ends, 60);
    sim_run_until_ended(sim, stays, 100);
    sim_assert_places(sim, stays, 2, "cpu n2:0 n2:1");
    assert_int_equal(sim_attempt(sim, stays, 1)->end.cause, HD_END_CAUSE_PREEMPTED);
    sim_assert_undisturbed(sim, stays, 60);
    expect_each_step_once(sim, stays, 60);
    assert_int_equal(sim_count_events(sim, 0, "drain"), 1);
    sim_free(sim);
}

/* Nothing else is free: at the deadline, which a restart of the controller does not forget, the job
 * stops all the same, and waits. */
static void a_job_leaves_a_drained_node_at_the_deadline(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t job = submit(sim, 0, 2, 100);
    const struct hd_core_event undrain = {.kind = HD_CORE_UNDRAIN,
                                          .drain = {.node = "n1", .by = "root"}};

    sim_run(sim, 8);
    drain(sim, "n1", 20);
    sim_run(sim, 5);
    sim_controller_crash(sim);
    sim_run(sim, 10);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_RUNNING);
    sim_run(sim, 12);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_QUEUED);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_PREEMPTED);
    assert_int_equal(sim_event(sim, &undrain), HD_OK);
    sim_run_until_ended(sim, job, 200);
    sim_assert_undisturbed(sim, job, 100);
    expect_each_step_once(sim, job, 100);
    sim_free(sim);
}

/* It takes 12 s to write its checkpoint, and meanwhile somebody takes the drain back. */
static void who_leaves_a_node_that_is_drained_no_more_says_so(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t job = submit(sim, 0, 2, 60);
    const struct hd_core_event undrain = {.kind = HD_CORE_UNDRAIN,
                                          .drain = {.node = "n1", .by = "root"}};

    sim->nodes[0].faults.save_s = 12;
    sim_run(sim, 8);
    drain(sim, "n1", 2);
    sim_run(sim, 4);
    sim_assert_reason(sim, job, "writes a checkpoint and leaves a node that is drained");
    assert_int_equal(sim_event(sim, &undrain), HD_OK);
    sim_assert_reason(sim, job,
                      "writes a checkpoint and starts again: it was asked to leave a node that is "
                      "not drained any more");
    sim_run_until_ended(sim, job, 200);
    sim_free(sim);
}

/* A job on both nodes stops at a checkpoint as soon as the daemon of one ends, without a deadline
 * and with no place elsewhere, also when the controller is started anew meanwhile; and it goes on
 * when the node is back. One that fits on what is left goes on at once. */
static void a_job_leaves_a_node_whose_daemon_ends(void **state)
{
    for (int devices = 2; devices <= 4; devices += 2) {
        struct sim *sim = sim_joined(2);
        const uint64_t job = submit(sim, 0, devices, 60);

        sim_run(sim, 8);
        sim->nodes[0].leaves = sim->nodes[0].changed = true;
        sim_controller_crash(sim);
        sim_run(sim, 12);
        assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_PREEMPTED);
        assert_int_equal(state_of(sim, job),
                         devices == 2 ? HD_JOB_STATE_RUNNING : HD_JOB_STATE_QUEUED);
        if (devices == 2)
            sim_assert_places(sim, job, 2, "cpu n2:0 n2:1");
        assert_int_equal(sim_count_events(sim, 0, "node_leaves"), 1);
        sim->nodes[0].leaves = false;
        sim->nodes[0].changed = true;
        sim_run_until_ended(sim, job, 200);
        sim_assert_undisturbed(sim, job, 60);
        expect_each_step_once(sim, job, 60);
        sim_free(sim);
    }
}

/* ---- growth -----------------------------------------------------------------------------------*/

/* A job of 1 to 4 devices gets 2 while another one has a node. When that ends, at step 20 of 300,
 * four devices would save half of 280 s: it goes on with them, at a checkpoint. Near the end they
 * would save too little for a restart of 31 s. */
static void a_job_grows_at_a_checkpoint_if_it_pays(void **state)
{
    for (int steps = 60; steps <= 300; steps += 240) {
        struct sim *sim = sim_joined(2);
        const uint64_t other = submit(sim, 0, 2, 20);
        struct hd_job_needs needs = sim_needs(4, steps);
        uint64_t job;

        needs.devices_min = 1;
        job = sim_submitted(sim, &needs);
        assert_int_equal(sim_attempt(sim, job, 1)->plan.rank_count, 2);
        sim_run_until_ended(sim, other, 60);
        sim_run_until_ended(sim, job, 400);
        assert_int_equal(sim_job(sim, job)->attempt_count, steps == 300 ? 2 : 1);
        assert_int_equal(sim_attempt(sim, job, 1)->end.cause,
                         steps == 300 ? HD_END_CAUSE_RESIZED : HD_END_CAUSE_COMPLETED);
        if (steps == 300)
            assert_int_equal(sim_attempt(sim, job, 2)->plan.rank_count, 4);
        sim_assert_undisturbed(sim, job, steps);
        expect_each_step_once(sim, job, steps);
        sim_free(sim);
    }
}

/* It would stop for more devices, and not start again. */
static void no_job_of_a_closed_queue_grows(void **state)
{
    struct sim *sim = sim_joined(2);
    const uint64_t other = submit(sim, 0, 2, 20);
    struct hd_job_needs needs = sim_needs(4, 300);
    uint64_t job;

    needs.devices_min = 1;
    job = sim_submitted(sim, &needs);
    assert_int_equal(sim_close_queue(sim, "default", true), HD_OK);
    sim_run_until_ended(sim, other, 60);
    sim_run_until_ended(sim, job, 400);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    sim_free(sim);
}

/* A job that waits comes before one that would have more. */
static void no_job_grows_while_others_wait(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(4, 300), waits = sim_needs(2, 5);
    const uint64_t other = submit(sim, 0, 2, 20);
    uint64_t job, held;

    needs.devices_min = 1;
    waits.wish.sizes.tp = 2;
    job = sim_submitted(sim, &needs);
    held = sim_submitted(sim, &waits);
    assert_int_equal(state_of(sim, held), HD_JOB_STATE_QUEUED);
    sim_run_until_ended(sim, other, 60);
    sim_run(sim, 3);
    assert_int_equal(state_of(sim, held), HD_JOB_STATE_RUNNING);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    sim_free(sim);
}

/* Two jobs of higher priority come, each as soon as the low one has started. After the first it
 * starts again at once; after the second its node is free, and it waits for five minutes. */
static void a_job_that_gave_way_twice_at_its_start_waits(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t low = submit(sim, 0, 2, 24);
    int64_t ended_ms;

    for (int32_t attempt = 1; attempt <= 2; attempt++) {
        for (int s = 0; s < 30 && sim_job(sim, low)->attempt_count < attempt; s++)
            sim_second(sim);
        sim_run_until_ended(sim, submit(sim, 1, 2, 5), 60);
        assert_int_equal(sim_attempt(sim, low, attempt)->end.cause, HD_END_CAUSE_PREEMPTED);
    }
    ended_ms = sim_attempt(sim, low, 2)->ended_ms;
    sim_run(sim, (int)((ended_ms + 5 * 60 * 1000 - sim->now.wall_ms) / 1000) - 2);
    assert_int_equal(sim_job(sim, low)->attempt_count, 2);
    sim_assert_reason(sim, low,
                      "attempt 2 ended (preempted on n1); it was preempted more than once soon "
                      "after its start; will be retried in 2 s");
    sim_run(sim, 4);
    assert_int_equal(sim_job(sim, low)->attempt_count, 3);
    sim_run_until_ended(sim, low, 60);
    sim_assert_undisturbed(sim, low, 24);
    sim_free(sim);
}

/* It runs for longer than five minutes before it gives way for the second time: that was worth its
 * start. */
static void a_job_that_ran_before_it_gave_way_does_not_wait(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t low = submit(sim, 0, 2, 4000);

    sim_run(sim, 3);
    sim_run_until_ended(sim, submit(sim, 1, 2, 5), 60);
    sim_run(sim, 6 * 60);
    assert_int_equal(sim_job(sim, low)->attempt_count, 2);
    sim_run_until_ended(sim, submit(sim, 1, 2, 5), 60);
    sim_run(sim, 3);
    assert_int_equal(sim_job(sim, low)->attempt_count, 3);
    sim_free(sim);
}

RUN_CASES()
