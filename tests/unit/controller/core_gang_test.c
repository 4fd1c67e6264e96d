/* core: jobs on several nodes. */
#include <stdio.h>

#include "sim.h"
#include "tests/program/tells.h"
#include "tests/program/test.h"
#include "tests/sanitized.h"

/* ---- placement --------------------------------------------------------------------------------*/

/* Nodes have two devices each. */
static void a_job_that_fits_on_one_node_stays_there(void **state)
{
    struct sim *sim = sim_joined(3);
    struct hd_job_needs one = sim_needs(1, 20), two = sim_needs(2, 20);
    uint64_t a = sim_submitted(sim, &one), b = sim_submitted(sim, &two);

    sim_assert_places(sim, a, 1, "cpu n1:0");
    sim_assert_places(sim, b, 1, "cpu n2:0 n2:1"); /* not n1:1 n2:0 */
    sim_free(sim);
}

static void ranks_of_a_node_are_neighbours_in_the_order_of_names(void **state)
{
    struct sim *sim = sim_joined(3);
    struct hd_job_needs four = sim_needs(4, 12);
    uint64_t job = sim_submitted(sim, &four);

    sim_assert_places(sim, job, 1, "cpu n1:0 n1:1 n2:0 n2:1");
    sim_run_until_ended(sim, job, 60);
    sim_assert_undisturbed(sim, job, 12);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    for (int64_t step = 1; step <= 12; step++)
        assert_int_equal(sim_count_steps(sim, job, step), 1);
    sim_free(sim);
}

/* n1 has one device left, n2 and n3 two: three devices come of n2 or n3, and of n1 the last one,
 * so that a whole node stays free. */
static void the_fewest_nodes_with_the_smallest_rest(void **state)
{
    struct sim *sim = sim_joined(3);
    struct hd_job_needs one = sim_needs(1, 40), three = sim_needs(3, 40);
    uint64_t a = sim_submitted(sim, &one), b;

    three.wish.global_batch = 9;
    b = sim_submitted(sim, &three);
    sim_assert_places(sim, a, 1, "cpu n1:0");
    sim_assert_places(sim, b, 1, "cpu n1:1 n2:0 n2:1");
    sim_free(sim);
}

static void a_range_takes_as_many_devices_as_there_are(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(4, 10);
    uint64_t job;

    needs.devices_min = 1;
    needs.devices_max = 8;
    job = sim_submitted(sim, &needs);
    sim_assert_places(sim, job, 1, "cpu n1:0 n1:1 n2:0 n2:1");
    sim_free(sim);
}

static void what_is_missing_is_said_exactly(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs one = sim_needs(1, 40), four = sim_needs(4, 10);
    uint64_t job;

    (void)sim_submitted(sim, &one);
    job = sim_submitted(sim, &four);
    sim_assert_reason(sim, job,
                      "needs 4 cpu devices; n1 has 1 of 2 free (reserved for it), n2 has 2 "
                      "(reserved for it)");
    sim_free(sim);
}

/* A device of each node is free, which would do for two ranks, but not for two of one group. */
static void a_tensor_parallel_group_stays_on_one_node(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs one = sim_needs(1, 40), pair = sim_needs(2, 10), four = sim_needs(4, 10);
    uint64_t first = sim_submitted(sim, &one), job, spread;

    (void)sim_submitted(sim, &one); /* n1:1 */
    (void)sim_submitted(sim, &one); /* n2:0 */
    assert_int_equal(sim_cancel(sim, first, false), HD_OK);
    sim_run_until_ended(sim, first, 20);
    pair.wish.sizes.tp = four.wish.sizes.tp = 2;
    job = sim_submitted(sim, &pair);
    sim_assert_reason(
        sim, job,
        "needs 2 cpu devices, on each node a multiple of parallel.tp = 2; n1 has 1 of "
        "2 free (0 in whole tp groups) (reserved for it), n2 has 1 of 2 free (0 in whole tp "
        "groups)");
    sim_run_until_ended(sim, job, 100);
    sim_assert_places(sim, job, 1, "cpu n1:0 n1:1");
    sim_assert_undisturbed(sim, job, 10);
    spread = sim_submitted(sim, &four);
    sim_run_until_ended(sim, spread, 100);
    sim_assert_places(sim, spread, 1, "cpu n1:0 n1:1 n2:0 n2:1");
    assert_int_equal(sim_attempt(sim, spread, 1)->plan.layout.tp, 2);
    assert_int_equal(sim_attempt(sim, spread, 1)->plan.layout.dp, 2);
    sim_free(sim);
}

static void no_node_is_large_enough_for_a_group(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs four = sim_needs(4, 10);
    uint64_t job;

    four.wish.sizes.tp = 4;
    job = sim_submitted(sim, &four);
    sim_assert_reason(sim, job,
                      "needs 4 cpu devices, on each node a multiple of parallel.tp = 4; n1 has 2 "
                      "(0 in whole tp groups), n2 has 2 (0 in whole tp groups)");
    sim_free(sim);
}

/* Six devices are there: of replicas of four that is one. */
static void a_range_uses_whole_replicas_only(void **state)
{
    struct sim *sim = sim_joined(3);
    struct hd_job_needs needs = sim_needs(1, 10);
    uint64_t job;

    needs.devices_max = 12;
    needs.wish.sizes.tp = needs.wish.sizes.cp = 2;
    job = sim_submitted(sim, &needs);
    sim_assert_places(sim, job, 1, "cpu n1:0 n1:1 n2:0 n2:1");
    assert_int_equal(sim_attempt(sim, job, 1)->plan.layout.dp, 1);
    sim_free(sim);
}

/* A context-parallel group may span nodes: it exchanges blocks, not every activation. */
static void a_context_parallel_group_may_span_nodes(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs four = sim_needs(4, 12);
    uint64_t job;

    four.wish.sizes.cp = 4;
    job = sim_submitted(sim, &four);
    sim_assert_places(sim, job, 1, "cpu n1:0 n1:1 n2:0 n2:1");
    assert_int_equal(sim_attempt(sim, job, 1)->plan.layout.cp, 4);
    assert_int_equal(sim_attempt(sim, job, 1)->plan.layout.micro_batch,
                     8); /* one replica has them all */
    sim_run_until_ended(sim, job, 60);
    sim_assert_undisturbed(sim, job, 12);
    sim_free(sim);
}

/* Goal: no starvation across nodes. Method: small jobs that would always fill the holes. */
static void a_gang_is_not_starved_by_small_jobs(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs small = sim_needs(1, 10), gang = sim_needs(4, 10);
    uint64_t job;

    for (int i = 0; i < 4; i++) {
        (void)sim_submitted(sim, &small);
        sim_run(sim, 3); /* so that they never end at the same time */
    }
    job = sim_submitted(sim, &gang);
    for (int i = 0; i < 20; i++) {
        (void)sim_submitted(sim, &small);
        sim_run(sim, 2);
    }
    sim_run_until_ended(sim, job, 60);
    sim_assert_undisturbed(sim, job, 10);
    sim_free(sim);
}

/* ---- who may work with whom -------------------------------------------------------------------*/

static void a_node_that_does_not_see_the_jobs_works_alone(void **state)
{
    struct sim *sim = sim_new(1, 2);
    struct hd_job_needs four = sim_needs(4, 10), two = sim_needs(2, 10);
    uint64_t gang, single, other;

    sim->nodes[1].blind = true;
    sim_run(sim, 2);
    gang = sim_submitted(sim, &four);
    single = sim_submitted(sim, &two);
    other = sim_submitted(sim, &two);
    sim_assert_reason(
        sim, gang,
        "needs 4 cpu devices; n1 has 0 of 2 free, n2 has 0 of 2 free (no jobs with other "
        "nodes: it does not see the jobs directory)");
    assert_int_equal(sim_job(sim, single)->state, HD_JOB_STATE_RUNNING);
    assert_int_equal(sim_job(sim, other)->state, HD_JOB_STATE_RUNNING);
    sim->nodes[1].blind = false; /* mounted at last, and said so */
    sim->nodes[1].changed = true;
    sim_run_until_ended(sim, gang, 100);
    sim_assert_undisturbed(sim, gang, 10);
    sim_free(sim);
}

/* A loopback address is reached from the same machine only, which the boot tells. */
static void loopback_joins_nodes_of_one_machine_only(void **state)
{
    struct sim *sim = sim_new(1, 3);
    struct hd_job_needs four = sim_needs(4, 10), six = sim_needs(6, 10);
    uint64_t a, b;

    for (int n = 0; n < 3; n++)
        (void)snprintf(sim->nodes[n].data_address, sizeof sim->nodes[n].data_address, "127.0.0.1");
    (void)snprintf(sim->nodes[2].boot_id, sizeof sim->nodes[2].boot_id, "%s",
                   sim->nodes[1].boot_id);
    sim_run(sim, 2);
    a = sim_submitted(sim, &four);
    sim_assert_places(sim, a, 1, "cpu n2:0 n2:1 n3:0 n3:1"); /* n1 is another machine */
    six.wish.global_batch = 12;
    b = sim_submitted(sim, &six);
    sim_assert_reason(
        sim, b,
        "needs 6 cpu devices; n1 has 2 (jobs only with nodes of its own machine: its "
        "--data-address is 127.0.0.1), n2 has 0 of 2 free (jobs only with nodes of its own "
        "machine: its --data-address is 127.0.0.1), n3 has 0 of 2 free (jobs only with nodes "
        "of its own machine: its --data-address is 127.0.0.1)");
    sim_free(sim);
}

/* n1 and n3 compute alike; n2, which stands between them, does not. */
static void only_nodes_that_compute_alike_work_together(void **state)
{
    struct sim *sim = sim_new(1, 3);
    struct hd_job_needs four = sim_needs(4, 10), six = sim_needs(6, 10);
    uint64_t a, b;

    for (int n = 0; n < 3; n++)
        (void)snprintf(sim->nodes[n].compute, sizeof sim->nodes[n].compute, "%s",
                       n == 1 ? "avx2" : "avx512");
    sim_run(sim, 2);
    a = sim_submitted(sim, &four);
    sim_assert_places(sim, a, 1, "cpu n1:0 n1:1 n3:0 n3:1");
    six.wish.global_batch = 12;
    b = sim_submitted(sim, &six);
    sim_assert_reason(
        sim, b,
        "needs 6 cpu devices; n1 has 0 of 2 free (jobs only with nodes that compute with "
        "avx512), n2 has 2 (jobs only with nodes that compute with avx2), n3 has 0 of 2 free "
        "(jobs only with nodes that compute with avx512)");
    sim_free(sim);
}

/* n2, which computes like n1, is not back after a start of the controller: nothing is said of what
 * it computes with, nor that it connects. */
static void of_a_node_that_is_not_back_only_that_is_said(void **state)
{
    struct sim *sim = sim_new(1, 2);
    struct hd_job_needs four = sim_needs(4, 10);
    uint64_t job;

    for (int n = 0; n < 2; n++)
        (void)snprintf(sim->nodes[n].compute, sizeof sim->nodes[n].compute, "avx2");
    sim_run(sim, 2);
    sim->nodes[1].cut = true;
    sim_controller_crash(sim);
    sim_run(sim, 3);
    job = sim_submitted(sim, &four);
    sim_assert_reason(sim, job,
                      "needs 4 cpu devices; n1 has 2, n2 has not connected since the "
                      "controller was started 3 s ago");
    sim_free(sim);
}

static void a_node_without_an_address_works_alone(void **state)
{
    struct sim *sim = sim_new(1, 2);
    struct hd_job_needs four = sim_needs(4, 10);
    uint64_t job;

    sim->nodes[0].data_address[0] = '\0';
    sim_run(sim, 2);
    job = sim_submitted(sim, &four);
    sim_assert_reason(sim, job,
                      "needs 4 cpu devices; n1 has 2 (no jobs with other nodes: its heddled has "
                      "no --data-address), n2 has 2");
    sim_free(sim);
}

/* ---- failures ---------------------------------------------------------------------------------*/

/* A rank of n2 dies; those of n1 notice and end as well, and may say so first. To blame is n2. */
static void a_failure_on_one_node_ends_all_and_is_named(void **state)
{
    for (int later = 0; later < 2; later++) { /* the news of n2 come in time, or later */
        struct sim *sim = sim_joined(2);
        struct hd_job_needs four = sim_needs(4, 12);
        uint64_t job;

        sim->nodes[1].faults = (struct sim_faults){.fail_at_step = 8, .fail_count = 1};
        job = sim_submitted(sim, &four);
        sim_run(sim, 8);
        sim->nodes[1].cut = later;
        sim_run(sim, 3);
        sim->nodes[1].cut = false;
        sim_run_until_ended(sim, job, 60);
        assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_RANK_EXIT);
        assert_int_equal(sim_attempt(sim, job, 1)->end.rank, 3);
        assert_string_equal(sim_attempt(sim, job, 1)->end.node, "n2");
        assert_int_equal(sim_attempt(sim, job, 2)->base_step, 5);
        assert_int_equal(sim_job(sim, job)->attempt_count, 2);
        sim_assert_undisturbed(sim, job, 12);
        sim_free(sim);
    }
}

/* A secondary failure remains one still after a start of the controller: the cause, told later,
 * wins. */
static void an_echo_heard_before_a_crash_is_not_taken_for_the_cause(void **state)
{
    for (int hangs = 0; hangs < 2; hangs++) {
        const enum hd_end_cause cause = hangs ? HD_END_CAUSE_HANG : HD_END_CAUSE_RANK_EXIT;
        struct sim *sim = sim_joined(2);
        struct hd_job_needs four = sim_needs(4, 12);
        uint64_t job;

        sim->nodes[1].faults =
            (struct sim_faults){.fail_at_step = 8, .fail_count = 1, .hangs = hangs};
        job = sim_submitted(sim, &four);
        sim_run(sim, 8);
        sim->nodes[1].cut = true;
        sim_run(sim, 3);
        assert_int_equal(sim_attempt(sim, job, 1)->end.cause, cause); /* as n1 tells it */
        assert_int_equal(sim_attempt(sim, job, 1)->end.rank, -1);
        sim_controller_crash(sim);
        sim->nodes[1].cut = false;
        sim_run_until_ended(sim, job, 60);
        assert_int_equal(sim_attempt(sim, job, 1)->end.cause, cause);
        assert_int_equal(sim_attempt(sim, job, 1)->end.rank, 3);
        assert_string_equal(sim_attempt(sim, job, 1)->end.node, "n2");
        sim_assert_undisturbed(sim, job, 12);
        sim_free(sim);
    }
}

/* n1 tells of an echo; n2, told to stop everything, ends its ranks as it was told. That explains
 * nothing: the echo is still the best that is known of the cause. */
static void an_end_as_told_does_not_take_the_place_of_an_echo(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs four = sim_needs(4, 12);
    uint64_t job = sim_submitted(sim, &four);
    const struct hd_observed ended = {
        .job = job,
        .attempt = 1,
        .state = HD_ATTEMPT_STATE_ENDED,
        .end = {.cause = HD_END_CAUSE_RANK_EXIT, .rank = -1, .secondary = true, .message = "echo"}};
    const struct hd_core_event observed = {.kind = HD_CORE_OBSERVED,
                                           .observed = {.uuid = "uuid-1",
                                                        .stream = sim->nodes[0].stream,
                                                        .attempts = &ended,
                                                        .attempt_count = 1,
                                                        .jobs_dir_visible = true}};

    sim_run(sim, 7);
    sim->nodes[1].faults.unaware = true;
    assert_int_equal(sim_event(sim, &observed), HD_OK);
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_RANK_EXIT);
    assert_string_equal(sim_attempt(sim, job, 1)->end.message, "echo");
    sim_assert_undisturbed(sim, job, 12);
    sim_free(sim);
}

/* The ranks of n1 wait for one of n2, whose supervisor says nothing of it: that rank, its node and
 * its device are named, not n1, which tells of it. */
static void a_hang_elsewhere_is_of_the_node_that_is_waited_for(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs four = sim_needs(4, 12);
    uint64_t job = sim_submitted(sim, &four);
    const struct hd_observed ended = {.job = job,
                                      .attempt = 1,
                                      .state = HD_ATTEMPT_STATE_ENDED,
                                      .end = {.cause = HD_END_CAUSE_HANG,
                                              .rank = 3,
                                              .node = "n1",
                                              .secondary = true,
                                              .message = "rank 3 is waited for"}};
    const struct hd_core_event observed = {.kind = HD_CORE_OBSERVED,
                                           .observed = {.uuid = "uuid-1",
                                                        .stream = sim->nodes[0].stream,
                                                        .attempts = &ended,
                                                        .attempt_count = 1,
                                                        .jobs_dir_visible = true}};

    sim_run(sim, 7);
    sim->nodes[1].faults.unaware = true;
    assert_int_equal(sim_event(sim, &observed), HD_OK);
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_HANG);
    assert_int_equal(sim_attempt(sim, job, 1)->end.rank, 3);
    assert_string_equal(sim_attempt(sim, job, 1)->end.node, "n2");
    sim_free(sim);
}

/* Rank 0 on n1 tells of the straggler, which is rank 3 on n2. */
static void an_event_may_be_about_a_rank_of_another_node(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs four = sim_needs(4, 12);
    uint64_t job = sim_submitted(sim, &four);
    struct hd_core_out out = {.batch = hd_batch_new()};
    struct hd_core_event report;

    sim_run(sim, 7);
    report = sim_report(sim, job, 0, HD_REPORT_EVENT);
    report.report.seq = 1000;
    report.report.event =
        (struct hd_event_record){.rank = 3, .kind = "straggler", .message = "it is slow"};
    assert_int_equal(hd_core_step(sim->core, &report, sim->now, &out), HD_OK);
    assert_int_equal(out.batch->first->kind, HD_OP_POSITION);
    assert_int_equal(out.batch->first->position.rank, 0);
    assert_int_equal(out.batch->first->next->kind, HD_OP_EVENT);
    assert_int_equal(out.batch->first->next->event.rank, 3);
    assert_string_equal(out.batch->first->next->event.node, "n2");
    hd_batch_free(out.batch);
    hd_core_out_done(&out);
    sim_free(sim);
}

/* Both nodes tell an echo, and neither a rank that failed: the network between them did. */
static void two_echoes_without_a_cause_are_the_networks(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs four = sim_needs(4, 12);
    uint64_t job = sim_submitted(sim, &four);

    sim_run(sim, 7);
    for (int n = 0; n < 2; n++) {
        struct sim_attempt *here = &sim->nodes[n].attempts[0];

        assert_true(here->used && here->attempt == 1);
        here->state = HD_ATTEMPT_STATE_ENDED;
        here->end = (struct hd_end_record){
            .cause = HD_END_CAUSE_RANK_EXIT, .rank = -1, .secondary = true, .message = "echo"};
        sim->nodes[n].changed = true;
    }
    sim_run(sim, 2);
    assert_int_equal(sim_attempt(sim, job, 1)->state, HD_ATTEMPT_STATE_ENDED);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_RANK_EXIT);
    assert_string_equal(sim_attempt(sim, job, 1)->end.node, "");
    assert_tells(sim_attempt(sim, job, 1)->end.message, "n1, n2", "look at the network", "echo");
    sim_run_until_ended(sim, job, 60);
    sim_assert_undisturbed(sim, job, 12);
    sim_free(sim);
}

/* With a range the job goes on with what is left; with a fixed number it waits for the node. */
static void a_lost_node_leaves_the_job_what_is_left(void **state)
{
    for (int fixed = 0; fixed < 2; fixed++) {
        struct sim *sim = sim_joined(2);
        struct hd_job_needs needs = sim_needs(4, 300);
        uint64_t job;

        needs.devices_min = fixed ? 4 : 1;
        needs.restart_max = 0; /* a lost node never counts */
        job = sim_submitted(sim, &needs);
        sim_run(sim, 9);
        sim_reboot(sim, &sim->nodes[1]); /* the machine is gone, and does not come back: */
        sim->nodes[1].cut = true;
        sim_run(sim, 200);
        assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_NODE_LOST);
        assert_string_equal(sim_attempt(sim, job, 1)->end.node, "n2");
        if (fixed) {
            sim_assert_reason(
                sim, job,
                "attempt 1 ended (node_lost on n2); needs 4 cpu devices; n1 has 2, n2 is "
                "lost");
            sim->nodes[1].cut = false;
        } else {
            sim_assert_places(sim, job, 2, "cpu n1:0 n1:1");
            assert_int_equal(sim_attempt(sim, job, 2)->base_step, 5);
        }
        sim_run_until_ended(sim, job, 400);
        sim_assert_undisturbed(sim, job, 300);
        sim_free(sim);
    }
}

/* One node hears of the cancel at once, the other only after a while. */
static void a_cancel_stops_all_shares_after_one_checkpoint(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs four = sim_needs(4, 300);
    uint64_t job = sim_submitted(sim, &four);

    sim_run(sim, 8);
    sim->nodes[1].cut = true;
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    sim_run(sim, 5);
    sim->nodes[1].cut = false;
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_CANCELLED);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_USER);
    assert_int_equal(sim_count_on_disk(sim, job), 2); /* step 5, and where it stopped */
    sim_free(sim);
}

/* A rank of n2 has died, those of n1 have not noticed and could not be told: after a start of the
 * controller they are ended all the same, even if n2 does not say it again, and their end does not
 * take the place of the cause. */
static void a_failure_is_carried_through_after_a_start_of_the_controller(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs four = sim_needs(4, 12);
    uint64_t job;

    sim->nodes[0].faults.unaware = true;
    sim->nodes[1].faults = (struct sim_faults){.fail_at_step = 8, .fail_count = 1};
    job = sim_submitted(sim, &four);
    sim_run(sim, 8);
    sim->nodes[0].cut = true;
    sim_run(sim, 3);
    assert_int_equal(sim_attempt(sim, job, 1)->state, HD_ATTEMPT_STATE_STOPPING);
    sim_controller_crash(sim);
    sim->nodes[0].cut = false;
    sim->nodes[1].cut = true;
    sim_run(sim, 3);
    assert_int_equal(sim->nodes[0].attempts[0].job, job);
    assert_int_equal(sim->nodes[0].attempts[0].wanted, HD_WANTED_STOPPED);
    assert_int_equal(sim->nodes[0].attempts[0].state, HD_ATTEMPT_STATE_ENDED);
    sim->nodes[1].cut = false;
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_RANK_EXIT);
    assert_int_equal(sim_attempt(sim, job, 1)->end.rank, 3);
    assert_string_equal(sim_attempt(sim, job, 1)->end.node, "n2");
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    sim_assert_undisturbed(sim, job, 12);
    sim_free(sim);
}

/* Rank 0 on n1 still writes the last checkpoint, the ranks on n2 have ended, and the controller
 * starts again: a stop that goes on is not a failure, so nothing is killed. */
static void a_stop_is_graceful_after_a_start_of_the_controller(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs four = sim_needs(4, 300);
    uint64_t job = sim_submitted(sim, &four);

    sim->nodes[0].faults.save_s = 10;
    sim_run(sim, 8);
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    sim_run(sim, 3);
    assert_int_equal(sim_attempt(sim, job, 1)->state, HD_ATTEMPT_STATE_STOPPING);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_USER); /* of n2's share */
    sim_controller_crash(sim);
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_CANCELLED);
    assert_int_equal(sim_count_on_disk(sim, job), 2); /* step 5, and where it stopped */
    sim_free(sim);
}

/* ---- spares -----------------------------------------------------------------------------------*/

static struct sim *with_a_spare(int node_count)
{
    struct sim *sim = sim_new(1, node_count);

    sim->config.spare_nodes = 1;
    hd_core_free(sim->core);
    sim->core = hd_core_new(&sim->config);
    assert_non_null(sim->core);
    sim_run(sim, 3);
    return sim;
}

/* Three nodes of two devices. A job of four has two; one of two devices waits beside the third.
 * When the first job loses a node it goes on with the spare, and the other one waits on. */
static void a_gang_that_loses_a_node_has_a_spare(void **state)
{
    struct sim *sim = with_a_spare(3);
    struct hd_job_needs needs = sim_needs(4, 400), small = sim_needs(2, 20);
    uint64_t job, other;

    job = sim_submitted(sim, &needs);
    sim_assert_places(sim, job, 1, "cpu n1:0 n1:1 n2:0 n2:1");
    other = sim_submitted(sim, &small);
    sim_assert_reason(sim, other,
                      "needs 2 cpu devices; n1 has 0 of 2 free (reserved for it), n2 has 0 of 2 "
                      "free, n3 has 2 (hot spare)");
    sim_run(sim, 9);
    sim_reboot(sim, &sim->nodes[1]);
    sim->nodes[1].cut = true;
    sim_run(sim, 200);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_NODE_LOST);
    sim_assert_places(sim, job, 2, "cpu n1:0 n1:1 n3:0 n3:1");
    assert_int_equal(sim_job(sim, other)->state, HD_JOB_STATE_QUEUED);
    sim->nodes[1].cut = false; /* it is the spare now, until the job has ended */
    sim_run(sim, 20);
    assert_int_equal(sim_job(sim, other)->state, HD_JOB_STATE_QUEUED);
    sim_run_until_ended(sim, job, 500);
    sim_run_until_ended(sim, other, 100);
    sim_free(sim);
}

/* More than three nodes have: it would never start otherwise. */
static void a_job_that_needs_all_nodes_gets_the_spare(void **state)
{
    struct sim *sim = with_a_spare(4);
    const struct hd_job_needs needs = sim_needs(8, 20);
    const uint64_t job = sim_submitted(sim, &needs);

    assert_true(sim_job(sim, job)->state > HD_JOB_STATE_QUEUED);
    sim_run_until_ended(sim, job, 100);
    sim_free(sim);
}

/* ---- everything at once -----------------------------------------------------------------------*/

static void random_worlds_of_many_nodes_keep_every_rule(void **state)
{
    sim_live_through_all(HD_TEST_SANITIZED ? 10 : 30, 3, SIM_NODES);
}

RUN_CASES()
