/* Ended jobs that are removed with their folders; and jobs whose whole cluster has died. */
#include "sim.h"
#include "tests/program/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* On n1, succeeded, with three checkpoints on the disk: keep 2 and the one that is being deleted
 * are no concern here. */
static uint64_t succeeded(struct sim *sim, struct hd_job_needs *needs)
{
    uint64_t job;

    *needs = sim_needs(2, 60);
    needs->keep = 0;
    job = sim_submitted(sim, needs);
    sim_run_until_ended(sim, job, 200);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    assert_true(sim_count_on_disk(sim, job) > 2);
    return job;
}

static void a_removed_job_leaves_nothing_but_its_number(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs;
    uint64_t job = succeeded(sim, &needs);

    assert_int_equal(sim_remove(sim, job, &needs), HD_OK);
    assert_null(sim->out.waits_for);
    sim_run(sim, 3);
    assert_int_equal(sim_count_on_disk(sim, job), 0);
    assert_int_equal(sim_job(sim, job)->removal, HD_REMOVAL_DONE);
    sim_controller_crash(sim);
    sim_run(sim, 3);
    assert_int_equal(sim_submitted(sim, &needs), job + 1);
    assert_int_equal(
        sim_submit_as(sim, &needs, sim_job(sim, job)->request_id, &job, &(bool){false}), HD_OK);
    assert_int_equal(job, 1); /* the request made a job once, and makes none again */
    sim_free(sim);
}

/* Once, although the node says it with each observed set until it is heard. Event of job 0: of the
 * cluster. */
static void what_stays_of_a_removed_job_is_told_once(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs;
    uint64_t job = succeeded(sim, &needs);

    sim->nodes[0].leaves_files = "/jobs/1/share stays, because a file system is mounted there";
    assert_int_equal(sim_remove(sim, job, &needs), HD_OK);
    sim_run(sim, 5);
    assert_int_equal(sim_job(sim, job)->removal, HD_REMOVAL_DONE);
    assert_int_equal(sim_count_events(sim, 0, "files_left"), 1);
    sim_free(sim);
}

static void a_job_that_has_not_ended_stays(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 400);
    uint64_t job = sim_submitted(sim, &needs);

    sim_run(sim, 9);
    assert_int_equal(sim_remove(sim, job, &needs), HD_CONFLICT);
    sim_run_until_ended(sim, job, 400);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    sim_free(sim);
}

/* Both while the node is away and after a restart of the controller, which has it in its records
 * only. A job that is being removed is not resumed. */
static void the_node_that_is_away_deletes_when_it_is_back(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs;
    uint64_t job = succeeded(sim, &needs);

    sim->nodes[0].cut = true;
    sim_run(sim, 20);
    assert_int_equal(sim_remove(sim, job, &needs), HD_OK);
    assert_string_equal(sim->out.waits_for, "n1");
    needs.steps = 90;
    assert_int_equal(sim_resume(sim, job, &needs), HD_NOT_FOUND);
    sim_commit(sim);
    sim_controller_crash(sim);
    sim_run(sim, 5);
    assert_true(sim_count_on_disk(sim, job) > 2);
    assert_int_equal(sim_job(sim, job)->removal, HD_REMOVAL_BEGUN);
    sim->nodes[0].cut = false;
    sim_run(sim, 3);
    assert_int_equal(sim_count_on_disk(sim, job), 0);
    assert_int_equal(sim_job(sim, job)->removal, HD_REMOVAL_DONE);
    sim_free(sim);
}

static void another_node_deletes_for_one_that_is_lost(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs;
    uint64_t job = succeeded(sim, &needs);

    sim_assert_places(sim, job, 1, "cpu n1:0 n1:1");
    sim->nodes[0].cut = true;
    sim_run(sim, 200);
    assert_int_equal(sim_remove(sim, job, &needs), HD_OK);
    assert_null(sim->out.waits_for);
    sim_run(sim, 3);
    assert_int_equal(sim_count_on_disk(sim, job), 0);
    assert_int_equal(sim_job(sim, job)->removal, HD_REMOVAL_DONE);
    sim_free(sim);
}

/* Goal: what was written in the jobs directory is gone on from by any node that sees it, also when
 * the node that wrote it has never been heard of since the start. */
static void a_cluster_that_died_goes_on_elsewhere(void **state)
{
    const struct hd_core_event end = {.kind = HD_CORE_END_ALL, .end_all = {.reason = "killed"}};
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 200);
    uint64_t job = sim_submitted(sim, &needs), other;

    sim_run(sim, 9);
    other = sim_submitted(sim, &needs);
    sim->nodes[0].cut = true; /* for good; what it writes from now on is not reported */
    sim_run(sim, 30);
    sim_controller_crash(sim);
    assert_int_equal(sim_event(sim, &end), HD_OK);
    sim_commit(sim);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_FAILED);
    assert_string_equal(sim_job(sim, job)->reason, "killed");
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_NODE_LOST);
    assert_int_equal(sim_job(sim, other)->state, HD_JOB_STATE_FAILED);
    assert_int_equal(sim_resume(sim, job, &needs), HD_OK);
    sim_run(sim, 5);
    assert_in_range(sim_attempt(sim, job, 2)->base_step, 20, 40);
    sim_assert_places(sim, job, 2, "cpu n2:0 n2:1");
    sim_run_until_ended(sim, job, 400);
    assert_int_equal(sim_final_value(sim, job), sim_undisturbed_value(job, 200));
    sim_free(sim);
}

/* Goal: each checkpoint of an ended job can be removed, from the disk, too, and the job stays. */
static void one_checkpoint_of_an_ended_job_goes(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs;
    uint64_t job = succeeded(sim, &needs);
    const size_t before = sim_count_on_disk(sim, job);

    assert_int_equal(sim_remove_checkpoint(sim, job, &needs, 11), HD_NOT_FOUND); /* every 10 */
    assert_int_equal(sim_remove_checkpoint(sim, job, &needs, 20), HD_OK);
    sim_run(sim, 3);
    assert_int_equal(sim_count_on_disk(sim, job), before - 1);
    assert_int_equal(sim_remove_checkpoint(sim, job, &needs, 20), HD_NOT_FOUND);
    assert_int_equal(sim_remove_checkpoint(sim, job, &needs, 60), HD_OK); /* the newest */
    sim_run(sim, 3);
    assert_int_equal(sim_count_on_disk(sim, job), before - 2);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_remove(sim, job, &needs), HD_OK); /* and the rest with the job */
    sim_run(sim, 3);
    assert_int_equal(sim_count_on_disk(sim, job), 0);
    sim_free(sim);
}

/* I6: what a job that has not ended may go on from stays, whoever asks. */
static void what_a_live_job_goes_on_from_stays(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 400);
    int64_t newest = 0;
    uint64_t job;

    needs.keep = 0;
    job = sim_submitted(sim, &needs);
    sim_run(sim, 12);
    for (int64_t step = 10; step <= 400; step += 10)
        if (sim_remove_checkpoint(sim, job, &needs, step) == HD_CONFLICT)
            newest = step;
    assert_true(newest >= 10);
    assert_int_equal(sim_remove_checkpoint(sim, job, &needs, newest), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), "it is the newest"));
    sim_run_until_ended(sim, job, 400);
    assert_int_equal(sim_final_value(sim, job), sim_undisturbed_value(job, 400));
    sim_free(sim);
}

RUN_CASES()
