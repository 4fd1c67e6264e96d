/* core: listed checkpoints that are not on the disk, as after a jobs share was put back to a
 * snapshot.
 *
 * Checkpoints come every 5 steps; a rank of attempt 1 dies before step 13, when those of 5 and 10
 * are listed. They are taken from the disk while it trains.
 */
#include <stdio.h>
#include <string.h>

#include "sim.h"
#include "tests/program/test.h"

static struct hd_job_needs job_needs(void)
{
    struct hd_job_needs needs = sim_needs(2, 24);

    needs.restart_max = 1;
    return needs;
}

/* Starts the job of 24 steps and runs it until attempt 1 has written the checkpoint of step 10 and,
 * with keep, the one of step 5 has been deleted. */
static uint64_t begin(struct sim *sim, struct hd_job_needs *needs)
{
    uint64_t job;

    for (int n = 0; n < sim->node_count; n++)
        sim->nodes[n].faults = (struct sim_faults){.fail_at_step = 13};
    sim->nodes[0].faults.fail_count = 1;
    job = sim_submitted(sim, needs);
    while (sim_count_steps(sim, job, 12) == 0)
        sim_second(sim);
    assert_int_equal(sim_count_on_disk(sim, job), needs->keep == 1 ? 1 : 2);
    return job;
}

static void a_missing_base_costs_no_restart(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = job_needs();
    uint64_t job;

    job = begin(sim, &needs);
    sim_move_checkpoint(sim, job, 1, 10, false);
    sim_run_until_ended(sim, job, 200);
    sim_assert_undisturbed(sim, job, 24);
    assert_int_equal(sim_job(sim, job)->attempt_count, 3);
    assert_int_equal(sim_attempt(sim, job, 2)->base_step, 10);
    assert_int_equal(sim_attempt(sim, job, 3)->base_step, 5);
    assert_int_equal(sim_count_events(sim, job, "checkpoint_missing"), 1);
    assert_int_equal(sim_count_events(sim, job, "checkpoint_damaged"), 0);
    sim_free(sim);
}

/* Goal: the snapshot is from before the listed one was written; it has an older one, which was
 * deleted since and is in no list. */
static void an_older_checkpoint_that_is_in_no_list_is_found(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = job_needs();
    uint64_t job;

    needs.keep = 1;
    job = begin(sim, &needs);
    sim_move_checkpoint(sim, job, 1, 10, false);
    sim_move_checkpoint(sim, job, 1, 5, true);
    sim_run_until_ended(sim, job, 200);
    sim_assert_undisturbed(sim, job, 24);
    assert_int_equal(sim_job(sim, job)->attempt_count, 3);
    assert_int_equal(sim_attempt(sim, job, 3)->base_attempt, 1);
    assert_int_equal(sim_attempt(sim, job, 3)->base_step, 5);
    assert_int_equal(sim_count_events(sim, job, "checkpoint_missing"), 1);
    sim_free(sim);
}

/* Goal: `keep` counts checkpoints that are there, also after the controller has started anew.
 * Method: of keep 1 that of step 15 is missing, and attempt 3, which began at 5, writes one of step
 * 10; with the missing one in the count, that would go at once. Attempt 3 dies at step 14. */
static void a_missing_checkpoint_pushes_none_out(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = job_needs();
    uint64_t job;

    needs.keep = needs.restart_max = 1;
    sim->nodes[0].faults = (struct sim_faults){.fail_at_step = 18, .fail_count = 1};
    job = sim_submitted(sim, &needs);
    while (sim_count_steps(sim, job, 17) == 0)
        sim_second(sim);
    assert_int_equal(sim_count_on_disk(sim, job), 1);
    sim_move_checkpoint(sim, job, 1, 15, false);
    sim_move_checkpoint(sim, job, 1, 5, true);
    while (sim_job(sim, job)->attempt_count < 3)
        sim_second(sim);
    sim->nodes[0].faults = (struct sim_faults){.fail_at_step = 14, .fail_count = 1};
    sim_controller_crash(sim);
    sim_run_until_ended(sim, job, 300);
    sim_assert_undisturbed(sim, job, 24);
    assert_int_equal(sim_attempt(sim, job, 3)->base_step, 5);
    assert_int_equal(sim_attempt(sim, job, 4)->base_attempt, 3);
    assert_int_equal(sim_attempt(sim, job, 4)->base_step, 10);
    sim_free(sim);
}

/* Goal: never silently from the beginning. Method: both are taken away, for ten minutes in which
 * the controller starts anew; then that of 10 is put back. */
static void with_none_left_the_job_waits_for_them(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = job_needs();
    enum hd_core_blocker blockers[HD_CORE_BLOCKERS_MAX];
    uint64_t job;

    job = begin(sim, &needs);
    sim_move_checkpoint(sim, job, 1, 5, false);
    sim_move_checkpoint(sim, job, 1, 10, false);
    sim_run(sim, 300);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_QUEUED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    sim_assert_reason(
        sim, job,
        "attempt 2 ended (rank_exit on n1); its checkpoints are not on the disk: step 10 of "
        "attempt "
        "1 (/jobs/1/attempt-1/checkpoints/step-10), step 5 of attempt 1; restore a state of the "
        "jobs "
        "directory that has one (it is searched every minute, and at once after heddle hold and "
        "heddle release), or give each of them up, to begin at step 0: heddle checkpoint rm 1 "
        "--step N");
    assert_int_equal(hd_core_blockers(sim->core, job, blockers), 1);
    assert_string_equal(hd_core_blocker_word(blockers[0]), "missing");
    sim_controller_crash(sim);
    sim_run(sim, 300);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_QUEUED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    assert_int_equal(sim_count_events(sim, job, "checkpoint_missing"), 1);
    sim_move_checkpoint(sim, job, 1, 10, true);
    sim_run(sim, 61);
    assert_int_equal(sim_count_events(sim, job, "checkpoint_back"), 1);
    sim_run_until_ended(sim, job, 100);
    sim_assert_undisturbed(sim, job, 24);
    assert_int_equal(sim_job(sim, job)->attempt_count, 3);
    assert_int_equal(sim_attempt(sim, job, 3)->base_step, 10);
    sim_free(sim);
}

static void a_release_looks_at_once(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = job_needs();
    uint64_t job;

    job = begin(sim, &needs);
    sim_move_checkpoint(sim, job, 1, 5, false);
    sim_move_checkpoint(sim, job, 1, 10, false);
    sim_run(sim, 62);
    assert_int_equal(sim_hold(sim, job, true), HD_OK);
    sim_move_checkpoint(sim, job, 1, 10, true);
    sim_run(sim, 5); /* less than the minute until the next search */
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    assert_int_equal(sim_hold(sim, job, false), HD_OK);
    sim_run(sim, 3);
    assert_int_equal(sim_job(sim, job)->attempt_count, 3);
    sim_free(sim);
}

/* Both are given up, one after the other, and only then it begins at step 0. */
static void given_up_ones_are_waited_for_no_more(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = job_needs();
    uint64_t job;

    job = begin(sim, &needs);
    sim_move_checkpoint(sim, job, 1, 5, false);
    sim_move_checkpoint(sim, job, 1, 10, false);
    sim_run(sim, 30);
    assert_int_equal(sim_remove_checkpoint(sim, job, &needs, 10), HD_OK);
    sim_run(sim, 70);
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    assert_int_equal(sim_remove_checkpoint(sim, job, &needs, 5), HD_OK);
    sim_run_until_ended(sim, job, 100);
    sim_assert_undisturbed(sim, job, 24);
    assert_int_equal(sim_job(sim, job)->attempt_count, 3);
    assert_int_equal(sim_attempt(sim, job, 3)->base_attempt, 0);
    sim_free(sim);
}

/* The controller cannot list the folder: the word of the ranks counts, one checkpoint after the
 * other. */
static void without_a_list_the_next_listed_one_is_tried(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = job_needs();
    uint64_t job;

    sim->unlistable = "the controller does not see the job's folder";
    job = begin(sim, &needs);
    sim_move_checkpoint(sim, job, 1, 10, false);
    sim_run_until_ended(sim, job, 200);
    sim_assert_undisturbed(sim, job, 24);
    assert_int_equal(sim_attempt(sim, job, 3)->base_step, 5);
    assert_int_equal(sim_count_events(sim, job, "search_failed"), 1);
    assert_int_equal(sim_count_events(sim, job, "checkpoint_missing"), 1);
    sim_free(sim);
}

/* A disk that cannot be read for ten minutes, with no checkpoint left in the list, is one event, and
 * the reason tells it as long as it lasts. */
static void a_search_that_keeps_failing_is_one_event(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = job_needs();
    struct hd_text reason = {0};
    uint64_t job;

    job = begin(sim, &needs);
    sim_move_checkpoint(sim, job, 1, 5, false);
    sim_move_checkpoint(sim, job, 1, 10, false);
    sim_run(sim, 62);
    sim->unlistable = "Stale file handle";
    sim_run(sim, 600);
    assert_int_equal(sim_count_events(sim, job, "search_failed"), 1);
    hd_core_explain(sim->core, job, sim->now, &reason);
    assert_non_null(strstr(reason.data, "; the last search failed: Stale file handle"));
    hd_text_free(&reason);
    sim->unlistable = NULL;
    sim_move_checkpoint(sim, job, 1, 10, true);
    sim_run_until_ended(sim, job, 200);
    sim_assert_undisturbed(sim, job, 24);
    sim_free(sim);
}

/* Goal: an attempt whose checkpoints were given up had progressed, because later ones began from
 * them. Method: attempts 2 and 4 fail without a checkpoint, 3 misses its base and is free; with
 * attempt 1 they would be 3 failures, more than restart.max = 2. */
static void a_given_up_checkpoint_was_progress(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = job_needs();
    uint64_t job;

    needs.restart_max = 2;
    job = begin(sim, &needs);
    sim->nodes[0].faults = (struct sim_faults){.fail_at_step = 13, .fail_count = 2};
    while (sim_job(sim, job)->attempt_count < 2 || sim_count_steps(sim, job, 12) < 2)
        sim_second(sim);
    sim_move_checkpoint(sim, job, 1, 10, false);
    sim_move_checkpoint(sim, job, 1, 5, false);
    sim_run(sim, 62);
    assert_int_equal(sim_remove_checkpoint(sim, job, &needs, 10), HD_OK);
    assert_int_equal(sim_remove_checkpoint(sim, job, &needs, 5), HD_OK);
    sim->nodes[0].faults = (struct sim_faults){.fail_at_step = 3, .fail_count = 1};
    sim_run_until_ended(sim, job, 300);
    assert_int_equal(sim_job(sim, job)->attempt_count, 5);
    sim_assert_undisturbed(sim, job, 24);
    sim_free(sim);
}

/* Goal: ranks that miss what is there do not begin again for ever. Method: attempt 2 misses the
 * base and is free, 3 and 4 miss the same one and count: 2 failures are more than restart.max = 1.
 */
static void a_base_that_only_ranks_miss_counts_from_the_second_time_on(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = job_needs();
    uint64_t job;

    job = begin(sim, &needs);
    sim->loses_checkpoints = true;
    sim->nodes[0].faults.misses = true;
    sim_run_until_ended(sim, job, 200);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_FAILED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 4);
    assert_int_equal(sim_attempt(sim, job, 4)->base_step, 10);
    assert_int_equal(sim_count_events(sim, job, "checkpoint_missing"), 0);
    sim_free(sim);
}

/* The listed one is damaged, and an older one, which was deleted once, is on the disk again. */
static void a_damaged_base_is_gone_back_from_to_one_in_no_list(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = job_needs();
    uint64_t job;

    needs.keep = 1;
    job = begin(sim, &needs);
    sim->nodes[0].faults.damaged[0] = sim->nodes[0].faults.damaged[1] = 10;
    sim_move_checkpoint(sim, job, 1, 5, true);
    sim_run_until_ended(sim, job, 200);
    sim_assert_undisturbed(sim, job, 24);
    assert_int_equal(sim_attempt(sim, job, 3)->base_step, 5);
    assert_int_equal(sim_count_events(sim, job, "checkpoint_damaged"), 1);
    assert_int_equal(sim_count_events(sim, job, "checkpoint_missing"), 0);
    sim_free(sim);
}

RUN_CASES()
