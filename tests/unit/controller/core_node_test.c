/* core: nodes that vanish and come back, and a controller that restarts. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "sim.h"
#include "tests/program/test.h"

/* ---- nodes that vanish ------------------------------------------------------------------------*/

/* A job whose node is silent runs for three minutes more, and says why from the first 15 s on. */
static void a_running_job_tells_that_its_node_is_silent(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 400);
    char since[HD_CLOCK_TEXT_MAX], lost_at[HD_CLOCK_TEXT_MAX], expected[256];
    struct hd_text text = {0};
    uint64_t job;

    job = sim_submitted(sim, &needs);
    sim_run(sim, 9);
    hd_clock_format_utc(sim->now.wall_ms, since);
    hd_clock_format_utc(sim->now.wall_ms + 180000, lost_at);
    sim->nodes[0].cut = true;
    sim_run(sim, 14);
    hd_core_explain(sim->core, job, sim->now, &text);
    assert_int_equal(text.len_bytes, 0);
    sim_run(sim, 1);
    (void)snprintf(expected, sizeof expected,
                   "node n1 has been silent since %s; its ranks may be training; it becomes lost "
                   "at %s",
                   since, lost_at);
    sim_assert_reason(sim, job, expected);
    sim->nodes[0].cut = false;
    sim_run(sim, 5);
    hd_core_explain(sim->core, job, sim->now, &text);
    assert_int_equal(text.len_bytes, 0);
    sim_free(sim);
}

/* Goal: a disk that is nearly full is left to what runs there. The node has two devices. */
static void a_node_without_room_takes_no_new_jobs(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(1, 400);
    enum hd_core_blocker blockers[HD_CORE_BLOCKERS_MAX];
    struct hd_text text = {0};
    uint64_t first, second, third;

    first = sim_submitted(sim, &needs);
    sim_run(sim, 5);
    assert_int_equal(sim_job(sim, first)->state, HD_JOB_STATE_RUNNING);
    sim->nodes[0].full = sim->nodes[0].changed = true;
    sim_run(sim, 5);
    second = sim_submitted(sim, &needs);
    sim_run(sim, 20);
    assert_int_equal(sim_job(sim, second)->state, HD_JOB_STATE_QUEUED);
    hd_core_explain(sim->core, second, sim->now, &text);
    assert_non_null(strstr(text.data, "n1 takes no new jobs: 3% are free"));
    hd_text_free(&text);
    assert_int_equal(hd_core_blockers(sim->core, second, blockers), 1); /* it has a free device */
    assert_string_equal(hd_core_blocker_word(blockers[0]), "nodes");
    assert_int_equal(sim_job(sim, first)->state, HD_JOB_STATE_RUNNING);
    assert_int_equal(sim_count_events(sim, 0, "node_full"), 1); /* told once */
    sim->nodes[0].full = false;
    sim->nodes[0].changed = true;
    sim_run(sim, 5);
    assert_int_equal(sim_job(sim, second)->state, HD_JOB_STATE_RUNNING);
    assert_int_equal(sim_count_events(sim, 0, "node_has_room"), 1);
    third = sim_submitted(sim, &needs);
    sim_run(sim, 5);
    assert_int_equal(hd_core_blockers(sim->core, third, blockers), 1); /* now jobs hold both */
    assert_string_equal(hd_core_blocker_word(blockers[0]), "devices");
    sim_free(sim);
}

/* Silence means unreachable after 15 s and lost after 180 s, not before; it costs no restart. */
static void a_lost_node_moves_its_job_to_the_other(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 400);
    int64_t base;
    struct hd_node_view view;
    int64_t received_ms;
    uint64_t job;

    needs.restart_max = 0;
    job = sim_submitted(sim, &needs);
    sim_run(sim, 9); /* past step 5 */
    received_ms = sim->now.wall_ms;
    sim->nodes[0].cut = true;
    sim_run(sim, 14);
    assert_int_equal(sim_count_events(sim, 0, "unreachable"), 0);
    sim_run(sim, 1);
    assert_int_equal(sim_count_events(sim, 0, "unreachable"), 1);
    sim_run(sim, 164); /* 179 s */
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_RUNNING);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    assert_int_equal(sim_count_events(sim, 0, "unreachable"), 1);
    assert_int_equal(sim_count_events(sim, 0, "lost"), 0);
    sim_run(sim, 1);
    assert_int_equal(sim_count_events(sim, 0, "lost"), 1);
    hd_core_node_at(sim->core, 0, &view);
    assert_int_equal(view.record->state, HD_NODE_STATE_LOST);
    assert_int_equal(view.record->seen_ms, received_ms); /* not when it was given up */
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_NODE_LOST);
    assert_string_equal(sim_attempt(sim, job, 2)->plan.ranks[0].node_name, "n2");

    /* The last report was of step 5 or 10. Attempt 1 has trained on, and its checkpoints are on the
     * shared disk. */
    base = sim_attempt(sim, job, 2)->base_step;
    assert_in_range(base, 175, 190);
    assert_int_equal(sim_count_events(sim, job, "checkpoints_found"), 1);

    /* Checkpoints that attempt 1 has written since then are ignored and deleted. */
    sim->nodes[0].cut = false;
    sim_run(sim, 5);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_NODE_LOST);
    sim->nodes[1].faults = (struct sim_faults){.fail_at_step = (int)base + 35, .fail_count = 1};
    sim_run_until_ended(sim, job, 500);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_FAILED); /* a step of attempt 2 */
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    sim_free(sim);
}

/* Attempt 2 starts from what attempt 1 had written when its node was lost, and dies at its first
 * step, as do some after it. Attempt 1 trains on meanwhile, is ahead, and reports: no attempt may
 * start from that. What attempt 1 has left is deleted. */
static void what_an_older_attempt_writes_later_is_never_looked_at(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 400);
    int64_t base;
    uint64_t job;

    needs.restart_max = 9;
    job = sim_submitted(sim, &needs);
    sim_run(sim, 9);
    sim->nodes[0].cut = true;
    sim_run(sim, 180);
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    base = sim_attempt(sim, job, 2)->base_step;
    sim->nodes[1].faults = (struct sim_faults){.fail_at_step = (int)base + 1, .fail_count = 5};
    sim_run(sim, 10);
    sim->nodes[0].cut = false;
    sim->slow_store = true; /* so that the node reports before it hears that nobody wants it */
    sim_run(sim, 3);
    sim->slow_store = false;
    sim_commit(sim);
    sim_run(sim, 37);
    assert_in_range(sim_job(sim, job)->attempt_count, 6, 8);
    for (int32_t k = 2; k <= sim_job(sim, job)->attempt_count; k++) {
        assert_int_equal(sim_attempt(sim, job, k)->base_attempt, 1);
        assert_int_equal(sim_attempt(sim, job, k)->base_step, base);
    }
    assert_in_range(sim_count_on_disk(sim, job), 1, 4); /* keep: 2, the base, one not yet proven */
    sim_free(sim);
}

/* No other node can take the job, so attempt 1 is the job's work still; also across a restart of
 * the controller. */
static void an_attempt_goes_on_when_its_lost_node_is_back_first(void **state)
{
    for (int crash = 0; crash < 2; crash++) {
        struct sim *sim = sim_new(1, 2);
        struct hd_job_needs needs = sim_needs(2, 400);
        uint64_t job;

        sim->nodes[1].cut = true;
        sim_run(sim, 2);
        job = sim_submitted(sim, &needs);
        sim_run(sim, 9);
        sim->nodes[0].cut = true;
        sim_run(sim, 185);
        assert_int_equal(sim_attempt(sim, job, 1)->state, HD_ATTEMPT_STATE_ENDED);
        if (crash)
            sim_controller_crash(sim);
        sim->nodes[0].cut = false;
        sim_run(sim, 3);
        assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_RUNNING);
        assert_int_equal(sim_attempt(sim, job, 1)->state, HD_ATTEMPT_STATE_RUNNING);
        assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_NONE);
        assert_int_equal(sim_count_events(sim, job, "attempt_back"), 1);
        sim_run_until_ended(sim, job, 400);
        assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
        assert_int_equal(sim_job(sim, job)->attempt_count, 1);
        assert_int_equal(sim->starts, 1);
        sim_assert_undisturbed(sim, job, 400);
        sim_free(sim);
    }
}

/* The job is cancelled while its node is silent, and its ranks train on. What they have written is
 * found when the job is resumed, and nothing of it is deleted before. */
static void a_cancelled_job_of_a_lost_node_is_resumed_from_what_is_found(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 400);
    uint64_t job;

    job = sim_submitted(sim, &needs);
    sim_run(sim, 9);
    sim->nodes[0].cut = true;
    sim_run(sim, 20);
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    sim_run_until_ended(sim, job, 200);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_CANCELLED);
    assert_int_equal(sim_resume(sim, job, &needs), HD_OK);
    sim_run(sim, 2);
    assert_in_range(sim_attempt(sim, job, 2)->base_step, 170, 190);
    sim->nodes[0].cut = false;
    sim_run_until_ended(sim, job, 400);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_final_value(sim, job), sim_undisturbed_value(job, 400));
    sim_free(sim);
}

static void an_attempt_that_completes_while_its_node_is_lost_has_completed(void **state)
{
    struct sim *sim = sim_new(1, 2);
    struct hd_job_needs needs = sim_needs(2, 100);
    uint64_t job;

    sim->nodes[1].cut = true;
    sim_run(sim, 2);
    job = sim_submitted(sim, &needs);
    sim_run(sim, 9);
    sim->nodes[0].cut = true;
    sim_run(sim, 200);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_QUEUED);
    sim->nodes[0].cut = false;
    sim_run_until_ended(sim, job, 10);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    sim_free(sim);
}

/* The other node was never connected, so both jobs run on n1: job 2 may not start before the ranks
 * of job 1, which was cancelled while n1 was lost, are gone (the simulated devices assert it). */
static void a_returning_node_is_emptied_before_it_works(void **state)
{
    struct sim *sim = sim_new(1, 2);
    struct hd_job_needs needs = sim_needs(2, 400);
    uint64_t job;

    sim->nodes[1].cut = true;
    sim_run(sim, 2);
    job = sim_submitted(sim, &needs);
    sim_run(sim, 9);
    sim->nodes[0].cut = true;
    sim_run(sim, 185);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_QUEUED);
    sim_assert_reason(sim, job,
                      "attempt 1 ended (node_lost on n1); needs 2 cpu devices; n1 is lost");
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    job = sim_submitted(sim, &needs);
    sim->nodes[0].cut = false;
    sim_run(sim, 2); /* the old stream is refused, a new one is made */
    sim_assert_reason(sim, job, "needs 2 cpu devices; n1 is still stopping attempt 1 of job 1");
    sim_run(sim, 5);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    sim_free(sim);
}

static void a_short_silence_changes_nothing(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 200);
    uint64_t job = sim_submitted(sim, &needs);

    sim_run(sim, 5);
    sim->nodes[0].cut = true;
    sim_run(sim, 100);
    sim->nodes[0].cut = false;
    sim_run_until_ended(sim, job, 300);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    assert_int_equal(sim_count_steps(sim, job, 90), 1); /* reported after the silence */
    sim_free(sim);
}

/* A job on n1 and n2 whose rank on n2 dies at step 8, which n2 cannot tell: the ranks of n1 say
 * that a peer has left, so n2 is suspected. n2 has been silent for 3 s. */
static struct sim *with_a_suspect(uint64_t *ret_job)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs four = sim_needs(4, 400);

    sim->nodes[1].faults = (struct sim_faults){.fail_at_step = 8, .fail_count = 1};
    *ret_job = sim_submitted(sim, &four);
    sim_run(sim, 8);
    sim->nodes[1].cut = true;
    sim_run(sim, 3);
    assert_int_equal(sim_attempt(sim, *ret_job, 1)->end.cause, HD_END_CAUSE_RANK_EXIT);
    return sim;
}

/* Lost after 60 s of silence instead of 180 s. */
static void a_suspected_node_is_lost_sooner(void **state)
{
    uint64_t job;
    struct sim *sim = with_a_suspect(&job);

    sim_run(sim, 56); /* 59 s */
    assert_int_equal(sim_count_events(sim, 0, "lost"), 0);
    sim_run(sim, 1);
    assert_int_equal(sim_count_events(sim, 0, "lost"), 1);
    sim_free(sim);
}

/* The suspicion is over as soon as the node is heard: its next silence may last 180 s again. */
static void a_suspected_node_that_was_heard_is_no_suspect(void **state)
{
    uint64_t job;
    struct sim *sim = with_a_suspect(&job);

    sim->nodes[1].cut = false;
    sim_run(sim, 5);
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    sim->nodes[1].cut = true;
    sim_run(sim, 179);
    assert_int_equal(sim_count_events(sim, 0, "lost"), 0);
    sim_run(sim, 1);
    assert_int_equal(sim_count_events(sim, 0, "lost"), 1);
    sim_free(sim);
}

/* n1, which said that a peer has left, is no suspect itself: as silent as n2 it is not lost with
 * it. */
static void the_node_that_tells_an_echo_is_no_suspect(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs four = sim_needs(4, 400);
    struct hd_node_view view;
    uint64_t job;

    sim->nodes[1].faults = (struct sim_faults){.fail_at_step = 8, .fail_count = 1};
    job = sim_submitted(sim, &four);
    sim_run(sim, 8);
    sim->nodes[1].cut = true;
    while (sim_attempt(sim, job, 1)->end.cause != HD_END_CAUSE_RANK_EXIT)
        sim_second(sim);
    sim->nodes[0].cut = true; /* before its next sign of life */
    sim_run(sim, 100);
    hd_core_node_at(sim->core, 0, &view);
    assert_int_equal(view.record->state, HD_NODE_STATE_UNREACHABLE);
    hd_core_node_at(sim->core, 1, &view);
    assert_int_equal(view.record->state, HD_NODE_STATE_LOST);
    sim_free(sim);
}

/* n1 knows where the cause is: its end names n2, which is silent already. */
static void a_node_that_a_peer_names_is_suspected(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs four = sim_needs(4, 400);
    uint64_t job = sim_submitted(sim, &four);
    const struct hd_observed ended = {
        .job = job,
        .attempt = 1,
        .state = HD_ATTEMPT_STATE_ENDED,
        .end = {.cause = HD_END_CAUSE_RANK_EXIT, .rank = 2, .node = "n2"}};
    const struct hd_core_event observed = {.kind = HD_CORE_OBSERVED,
                                           .observed = {.uuid = "uuid-1",
                                                        .stream = sim->nodes[0].stream,
                                                        .attempts = &ended,
                                                        .attempt_count = 1}};
    struct hd_node_view view;

    sim->nodes[1].cut = true;
    sim->slow_store = true; /* the simulated ranks know of no end */
    assert_int_equal(sim_event(sim, &observed), HD_OK);
    sim->nodes[0].cut = true;
    sim_run(sim, 59);
    hd_core_node_at(sim->core, 1, &view);
    assert_int_equal(view.record->state, HD_NODE_STATE_UNREACHABLE);
    sim_run(sim, 1);
    hd_core_node_at(sim->core, 1, &view);
    assert_int_equal(view.record->state, HD_NODE_STATE_LOST);
    sim_free(sim);
}

/* Its stream is gone, so nobody could tell it: a job that comes now waits until it is back. */
static void a_node_without_a_stream_gets_no_job(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 5);
    uint64_t job;

    sim_daemon_restart(sim, &sim->nodes[0]);
    job = sim_submitted(sim, &needs);
    sim_assert_reason(sim, job,
                      "needs 2 cpu devices; n1 has been without its heddled for 0 s: "
                      "that was stopped, or its connection is lost");
    sim_run_until_ended(sim, job, 30);
    sim_assert_undisturbed(sim, job, 5);
    sim_free(sim);
}

static void a_restarted_machine_ends_its_attempts_at_once(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 30);
    uint64_t job;

    needs.restart_max = 0; /* a lost node never counts */
    job = sim_submitted(sim, &needs);
    sim_run(sim, 9);
    sim_reboot(sim, &sim->nodes[0]);
    sim_run(sim, 2);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_NODE_LOST);
    assert_string_equal(sim_attempt(sim, job, 1)->end.message, "the machine was restarted");
    sim_run_until_ended(sim, job, 100);
    sim_assert_undisturbed(sim, job, 30);
    sim_free(sim);
}

/* The daemon connects a second time after the same boot: attempt 2 has nothing to fear from that.
 */
static void a_machine_was_restarted_once(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 30);
    uint64_t job = sim_submitted(sim, &needs);

    sim_run(sim, 9);
    sim_reboot(sim, &sim->nodes[0]);
    sim_run(sim, 5);
    sim_daemon_restart(sim, &sim->nodes[0]);
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    assert_int_equal(sim_count_events(sim, 0, "rebooted"), 1);
    sim_free(sim);
}

static void a_restarted_daemon_keeps_its_ranks(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 30);
    uint64_t job = sim_submitted(sim, &needs);

    for (int i = 0; i < 10; i++) {
        sim_run(sim, 3);
        sim_daemon_restart(sim, &sim->nodes[0]);
    }
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim->starts, 1);
    for (int64_t step = 1; step <= 30; step++)
        assert_int_equal(sim_count_steps(sim, job, step), 1);
    sim_free(sim);
}

/* ---- the controller away ----------------------------------------------------------------------*/

static void a_controller_restart_does_not_touch_training(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 60);
    uint64_t job = sim_submitted(sim, &needs), other = sim_submitted(sim, &needs);

    for (int i = 0; i < 12; i++) {
        sim_run(sim, 5);
        sim_controller_crash(sim);
    }
    sim_run_until_ended(sim, job, 100);
    sim_run_until_ended(sim, other, 100);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim->starts, 2);
    for (int64_t step = 1; step <= 60; step++)
        assert_int_equal(sim_count_steps(sim, job, step), 1);
    sim_free(sim);
}

/* After a restart, a node has 300 s to come back before its attempts are given up. */
static void a_restarted_controller_is_patient(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 1000);
    uint64_t job = sim_submitted(sim, &needs);

    sim_run(sim, 5);
    sim->nodes[0].cut = true;
    sim_controller_crash(sim);
    sim_run(sim, 299);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_RUNNING);
    sim_run(sim, 1);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_NODE_LOST);
    sim_free(sim);
}

static bool waits_for(const struct sim *sim, uint64_t job, enum hd_core_blocker blocker)
{
    enum hd_core_blocker found[HD_CORE_BLOCKERS_MAX];
    const size_t count = hd_core_blockers(sim->core, job, found);

    for (size_t i = 0; i < count; i++)
        if (found[i] == blocker)
            return true;
    return false;
}

/* Two nodes have four devices, and one of them does not come back after a start of the controller.
 * A job of four waits for that node, until it is lost; one of eight has too few in any case. */
static void a_job_waits_for_a_node_that_has_not_come_back(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs runs = sim_needs(2, 1000), four = sim_needs(4, 10),
                        eight = sim_needs(8, 10);
    uint64_t of_four, of_eight;

    (void)sim_submitted(sim, &runs);
    (void)sim_submitted(sim, &runs);
    sim_run(sim, 5);
    of_four = sim_submitted(sim, &four);
    of_eight = sim_submitted(sim, &eight);
    sim->nodes[1].cut = true;
    sim_controller_crash(sim);
    sim_run(sim, 20);
    assert_true(waits_for(sim, of_four, HD_CORE_WAITS_NODES));
    assert_false(waits_for(sim, of_four, HD_CORE_WAITS_CAPACITY));
    assert_false(waits_for(sim, of_eight, HD_CORE_WAITS_NODES));
    assert_true(waits_for(sim, of_eight, HD_CORE_WAITS_CAPACITY));
    sim_run(sim, 285);
    assert_false(waits_for(sim, of_four, HD_CORE_WAITS_NODES));
    assert_true(waits_for(sim, of_four, HD_CORE_WAITS_CAPACITY));
    sim_free(sim);
}

/* The time of a node's last message is not that of the controller's start. */
static void a_lost_node_was_seen_before_the_controllers_start(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_node_view view;
    int64_t seen_ms;

    sim->nodes[0].cut = true;
    sim_run(sim, 30); /* it is unreachable, and its last message is stored */
    sim_controller_crash(sim);
    hd_core_node_at(sim->core, 0, &view);
    seen_ms = view.record->seen_ms;
    assert_true(seen_ms <= sim->now.wall_ms - 30 * 1000);
    sim_run(sim, 300);
    hd_core_node_at(sim->core, 0, &view);
    assert_int_equal(view.record->state, HD_NODE_STATE_LOST);
    assert_int_equal(view.record->seen_ms, seen_ms);
    sim_free(sim);
}

/* Goal: the controller's own absence is no node's silence. Method: it is stopped for 400 s, which
 * is longer than a node may be silent (180 s), and than a stop may take (300 s, of which 20 have
 * gone). n1 cannot be heard afterwards: it is lost after 300 s, as after a start.
 */
static void a_controller_that_was_stopped_blames_no_node(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 1000);
    uint64_t trains, stops;

    trains = sim_submitted(sim, &needs);
    stops = sim_submitted(sim, &needs);
    sim_run(sim, 5);
    sim_assert_places(sim, trains, 1, "cpu n1:0 n1:1");
    sim_assert_places(sim, stops, 1, "cpu n2:0 n2:1");
    sim->nodes[1].faults.ignore_stop = true;
    assert_int_equal(sim_cancel(sim, stops, false), HD_OK);
    sim_run(sim, 20);
    sim->now.mono_ms += 400 * 1000;
    sim->now.wall_ms += 400 * 1000;
    sim->nodes[0].cut = true;
    sim_run(sim, 15); /* its silence counts from the end of the first second on */
    assert_int_equal(sim_count_events(sim, 0, "controller_away"), 1);
    assert_int_equal(sim_count_events(sim, 0, "unreachable"), 0);
    sim_run(sim, 1);
    assert_int_equal(sim_count_events(sim, 0, "unreachable"), 1); /* after 15 s, n1 alone */
    sim_run(sim, 264);
    assert_int_equal(sim_count_events(sim, stops, "killed"), 0); /* 20 + 279 s */
    sim_run(sim, 1);
    assert_int_equal(sim_count_events(sim, stops, "killed"), 1);
    sim_run(sim, 19);
    assert_int_equal(sim_count_events(sim, 0, "lost"), 0);
    assert_int_equal(sim_job(sim, trains)->state, HD_JOB_STATE_RUNNING);
    sim_run(sim, 1);
    assert_int_equal(sim_count_events(sim, 0, "lost"), 1);
    assert_int_equal(sim_attempt(sim, trains, 1)->end.cause, HD_END_CAUSE_NODE_LOST);
    sim_free(sim);
}

/* Stalls of 10 s in each minute, of which 49 s are left: the node is lost after 300 s in which the
 * controller listened, in the seventh. */
static void a_controller_that_stalls_often_loses_a_node_all_the_same(void **state)
{
    struct sim *sim = sim_joined(1);

    sim->nodes[0].cut = true;
    for (int minute = 0; minute < 8; minute++) {
        assert_int_equal(sim_count_events(sim, 0, "lost"), minute == 7 ? 1 : 0);
        sim_run(sim, 50);
        sim->now.mono_ms += 10 * 1000;
        sim->now.wall_ms += 10 * 1000;
    }
    sim_free(sim);
}

/* Once it has been heard, silence means what it always does. */
static void the_patience_of_a_start_ends_with_the_first_word(void **state)
{
    struct sim *sim = sim_joined(2);

    sim_controller_crash(sim);
    sim_run(sim, 5);
    sim->nodes[0].cut = true;
    sim_run(sim, 179);
    assert_int_equal(sim_count_events(sim, 0, "lost"), 0);
    sim_run(sim, 1);
    assert_int_equal(sim_count_events(sim, 0, "lost"), 1);
    sim_free(sim);
}

/* The limits of an attempt count from the start of the controller, whatever its clock says: a
 * launch has 600 s to succeed, a stop 300 s. */
static void limits_of_attempts_begin_with_the_controller(void **state)
{
    for (int stops = 0; stops < 2; stops++) {
        struct sim *sim = sim_joined(1);
        struct hd_job_needs needs = sim_needs(2, 1000);
        const char *event = stops ? "killed" : "attempt_failed";
        uint64_t job;

        sim->nodes[0].faults = (struct sim_faults){.never_meet = !stops, .ignore_stop = stops};
        job = sim_submitted(sim, &needs);
        sim_run(sim, 20);
        if (stops)
            assert_int_equal(sim_cancel(sim, job, false), HD_OK);
        for (int i = 0; i < 2; i++) { /* the clock goes on, and then begins anew */
            sim_run(sim, 50);
            sim_controller_crash(sim);
        }
        sim_run(sim, stops ? 299 : 599);
        assert_int_equal(sim_count_events(sim, job, event), 0);
        sim_run(sim, 1);
        assert_int_equal(sim_count_events(sim, job, event), 1);
        sim_free(sim);
    }
}

/* The daemon has never heard of the attempt, and never will. */
static void a_cancel_before_the_start_outlives_the_controller(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 10);
    uint64_t job;

    sim->nodes[0].cut = true;
    job = sim_submitted(sim, &needs);
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    sim_controller_crash(sim);
    sim->nodes[0].cut = false;
    sim_run_until_ended(sim, job, 20);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_CANCELLED);
    assert_int_equal(sim->starts, 0);
    sim_free(sim);
}

/* "At once" is remembered as that: no checkpoint is written although the request to stop comes from
 * a controller that was not there when it was made. */
static void a_cancel_at_once_outlives_the_controller(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 1000);
    uint64_t job = sim_submitted(sim, &needs);

    sim_run(sim, 8);
    sim->nodes[0].cut = true;
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    assert_int_equal(sim_cancel(sim, job, true), HD_OK);
    sim_controller_crash(sim);
    sim->nodes[0].cut = false;
    sim_run_until_ended(sim, job, 20);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_CANCELLED);
    assert_string_equal(sim_attempt(sim, job, 1)->end.message, "killed as told");
    sim_free(sim);
}

/* n1's ranks vanish without a trace and without a reboot while the controller is away: attempt 1
 * was running, so it is over; it must not be started a second time. */
static void an_attempt_that_vanished_is_not_started_twice(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 30);
    uint64_t job = sim_submitted(sim, &needs);

    sim_run(sim, 9);
    memset(sim->nodes[0].attempts, 0, sizeof sim->nodes[0].attempts);
    sim_controller_crash(sim);
    sim_run_until_ended(sim, job, 100);
    sim_assert_undisturbed(sim, job, 30);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_NODE_LOST);
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    sim_free(sim);
}

/* A job that was accepted but not durable when the controller died was never acknowledged, and no
 * daemon has heard of it. */
static void nothing_leaves_before_it_is_durable(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 10);
    uint64_t job, again;

    sim->slow_store = true;
    job = sim_submitted(sim, &needs);
    sim_run(sim, 10);
    assert_false(sim->acknowledged[job]);
    assert_int_equal(sim->starts, 0);
    sim_controller_crash(sim);
    assert_int_equal(hd_core_live_jobs(sim->core), 0);
    again = sim_submitted(sim, &needs);
    sim_commit(sim);
    assert_true(sim->acknowledged[again]);
    sim_free(sim);
}

RUN_CASES()
