/* core: whole jobs on two simulated nodes: to their end, cancelled, waiting; what is reported of
 * them, and everything at once. */
#include <string.h>

#include "sim.h"
#include "tests/program/test.h"
#include "tests/sanitized.h"

/* ---- success ----------------------------------------------------------------------------------*/

static void a_job_trains_to_its_end(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 12);
    uint64_t job = sim_submitted(sim, &needs);

    sim_run_until_ended(sim, job, 60);
    sim_assert_undisturbed(sim, job, 12);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_COMPLETED);
    assert_int_equal(sim_attempt(sim, job, 1)->plan.layout.dp, 2);
    for (int64_t step = 1; step <= 12; step++)
        assert_int_equal(sim_count_steps(sim, job, step), 1);
    sim_free(sim);
}

/* Two jobs of one device each fill one node before the other is touched: large holes stay large. */
static void small_jobs_share_a_node(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(1, 50);
    uint64_t a = sim_submitted(sim, &needs), b = sim_submitted(sim, &needs);

    assert_string_equal(sim_attempt(sim, a, 1)->plan.ranks[0].node_name, "n1");
    assert_string_equal(sim_attempt(sim, b, 1)->plan.ranks[0].node_name, "n1");
    assert_int_equal(sim_attempt(sim, a, 1)->plan.ranks[0].device, 0);
    assert_int_equal(sim_attempt(sim, b, 1)->plan.ranks[0].device, 1);
    sim_free(sim);
}

/* A waits for nothing, B for A; A's rank dies at step 8 and it goes on. Steps take a second each.
 */
static void the_times_of_jobs_and_attempts_are_recorded(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 12);
    const int64_t begin_ms = sim->now.wall_ms;
    const struct hd_attempt_record *first, *second;
    uint64_t a, b;

    sim->nodes[0].faults = (struct sim_faults){.fail_at_step = 8, .fail_count = 1};
    a = sim_submitted(sim, &needs);
    sim_run(sim, 2);
    b = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, b, 60);
    first = sim_attempt(sim, a, 1);
    second = sim_attempt(sim, a, 2);
    assert_int_equal(sim_job(sim, a)->submitted_ms, begin_ms);
    assert_int_equal(sim_job(sim, a)->started_ms, begin_ms);
    assert_int_equal(first->created_ms, begin_ms);
    assert_int_equal(first->running_ms, begin_ms + 1000);
    assert_int_equal(first->ended_ms, begin_ms + 9000); /* 7 steps, and the one that fails */
    assert_int_equal(second->created_ms, first->ended_ms);
    assert_int_equal(second->running_ms, second->created_ms + 1000);
    assert_int_equal(second->ended_ms, second->running_ms + 7000); /* steps 6 to 12 */
    assert_int_equal(sim_job(sim, a)->ended_ms, second->ended_ms);
    assert_int_equal(sim_job(sim, b)->submitted_ms, begin_ms + 2000);
    assert_int_equal(sim_job(sim, b)->started_ms, second->ended_ms);
    assert_int_equal(sim_job(sim, b)->ended_ms, sim_attempt(sim, b, 1)->ended_ms);
    sim_free(sim);
}

/* While it runs a job has so many devices as it got; while it waits, as many as it may get. */
static void a_job_that_waits_again_asks_for_all_its_devices(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(1, 100);
    uint64_t job;

    needs.devices_max = 8;
    job = sim_submitted(sim, &needs);
    assert_int_equal(sim_job(sim, job)->devices, 4);
    sim_run(sim, 5);
    sim_reboot(sim, &sim->nodes[0]);
    sim_reboot(sim, &sim->nodes[1]);
    sim->nodes[0].cut = sim->nodes[1].cut = true;
    sim_run(sim, 200);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_QUEUED);
    assert_int_equal(sim_job(sim, job)->devices, 8);
    sim_free(sim);
}

/* ---- cancel -----------------------------------------------------------------------------------*/

static void cancel_writes_a_checkpoint_first(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 100);
    uint64_t job = sim_submitted(sim, &needs);

    sim_run(sim, 9); /* between checkpoints */
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_STOPPING);
    sim_run_until_ended(sim, job, 10);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_CANCELLED);
    assert_int_equal(sim_attempt(sim, job, 1)->end.cause, HD_END_CAUSE_USER);
    assert_int_equal(sim_count_on_disk(sim, job), 2); /* step 5 and the last */
    assert_string_equal(sim_job(sim, job)->reason, "");
    assert_int_equal(sim_cancel(sim, job, false), HD_NOT_FOUND);
    sim_free(sim);
}

/* Goal: what a stop without a checkpoint loses is told. Method: a checkpoint every 5 steps, a stop
 * behind the first one, and an end before the simulated ranks write another. */
static void a_cancelled_job_says_which_steps_are_lost(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 100);
    uint64_t job = sim_submitted(sim, &needs);
    const struct hd_observed ended = {
        .job = job,
        .attempt = 1,
        .state = HD_ATTEMPT_STATE_ENDED,
        .end = {.cause = HD_END_CAUSE_STORAGE, .rank = -1, .message = "its folder was removed"}};
    const struct hd_core_event observed = {.kind = HD_CORE_OBSERVED,
                                           .observed = {.uuid = "uuid-1",
                                                        .stream = sim->nodes[0].stream,
                                                        .attempts = &ended,
                                                        .attempt_count = 1}};

    sim_run(sim, 9);
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    assert_int_equal(sim_event(sim, &observed), HD_OK);
    sim_run_until_ended(sim, job, 10);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_CANCELLED);
    assert_non_null(strstr(sim_job(sim, job)->reason, "steps 6 to at least "));
    assert_non_null(strstr(sim_job(sim, job)->reason, " are lost: storage: "));
    assert_non_null(strstr(sim_job(sim, job)->reason, "its folder was removed"));
    sim_free(sim);
}

static void cancel_now_writes_nothing(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 100);
    uint64_t job = sim_submitted(sim, &needs);

    sim_run(sim, 9);
    assert_int_equal(sim_cancel(sim, job, true), HD_OK);
    sim_run_until_ended(sim, job, 10);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_CANCELLED);
    assert_int_equal(sim_count_on_disk(sim, job), 1);
    sim_free(sim);
}

static void a_stop_that_takes_too_long_becomes_a_kill(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 10000);
    uint64_t job;

    needs.keep = 2;
    sim->nodes[0].faults.ignore_stop = true;
    job = sim_submitted(sim, &needs);
    sim_run(sim, 3);
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    sim_run(sim, 298);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_STOPPING);
    assert_int_equal(sim_count_events(sim, job, "killed"), 0);
    sim_run(sim, 4);
    assert_int_equal(sim_count_events(sim, job, "killed"), 1);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_CANCELLED);
    sim_free(sim);
}

static void a_queued_job_is_cancelled_at_once(void **state)
{
    struct sim *sim = sim_new(1, 2);
    struct hd_job_needs needs = sim_needs(2, 10);
    uint64_t job = sim_submitted(sim, &needs);

    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_CANCELLED);
    sim_run(sim, 5);
    assert_int_equal(sim->starts, 0);
    sim_free(sim);
}

/* The desired set with "stopping" is the first that the daemon hears of the attempt. */
static void an_attempt_cancelled_before_it_started_never_starts(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 10);
    uint64_t job;

    sim->nodes[0].cut = true;
    job = sim_submitted(sim, &needs);
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    sim->nodes[0].cut = false;
    sim_daemon_restart(sim, &sim->nodes[0]);
    sim_run_until_ended(sim, job, 20);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_CANCELLED);
    assert_int_equal(sim->starts, 0);
    sim_free(sim);
}

/* Returns an event in which n1 lists nothing at all, having applied this desired set. */
static struct hd_core_event lists_nothing(const struct sim *sim, uint64_t generation)
{
    return (struct hd_core_event){.kind = HD_CORE_OBSERVED,
                                  .observed = {.uuid = "uuid-1",
                                               .stream = sim->nodes[0].stream,
                                               .generation = generation,
                                               .jobs_dir_visible = true}};
}

static uint64_t generation_of_n1(const struct sim *sim)
{
    struct hd_desired desired;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_core_desired(sim->core, "uuid-1", &arena, &desired), HD_OK);
    hd_arena_done(&arena);
    return desired.generation;
}

/* n1 could not launch it yet and has nothing on record: then the attempt is over as soon as n1 has
 * heard the first request to stop, and not before, whatever is asked for after that. */
static void a_stop_before_the_launch_ends_when_it_was_heard(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 10);
    struct hd_core_event observed;
    uint64_t job, stop;

    sim->slow_store = true; /* what n1 says is made up here */
    job = sim_submitted(sim, &needs);
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    stop = generation_of_n1(sim);
    assert_int_equal(sim_cancel(sim, job, true), HD_OK);
    assert_true(generation_of_n1(sim) > stop);
    observed = lists_nothing(sim, stop - 1);
    assert_int_equal(sim_event(sim, &observed), HD_OK);
    assert_non_null(hd_core_job(sim->core, job)); /* lives */
    observed = lists_nothing(sim, stop);
    assert_int_equal(sim_event(sim, &observed), HD_OK);
    assert_null(hd_core_job(sim->core, job));
    sim_commit(sim);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_CANCELLED);
    assert_string_equal(sim_attempt(sim, job, 1)->end.message, "stopped before its start");
    sim_free(sim);
}

static void a_job_that_was_faster_than_its_cancel_has_succeeded(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 10);
    uint64_t job;

    sim->nodes[0].faults.ignore_stop = true;
    job = sim_submitted(sim, &needs);
    sim_run(sim, 5);
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    sim_run_until_ended(sim, job, 20);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    sim_free(sim);
}

/* ---- waiting ----------------------------------------------------------------------------------*/

static void a_job_without_nodes_says_so(void **state)
{
    struct sim *sim = sim_new(1, 2);
    struct hd_job_needs needs = sim_needs(2, 10);
    uint64_t job = sim_submitted(sim, &needs);

    sim_assert_reason(sim, job,
                      "needs 2 cpu devices; no node has joined yet (start heddled on one)");
    sim_free(sim);
}

static void gangs_wait_first_in_first_out_and_say_why(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs two = sim_needs(2, 20), one = sim_needs(1, 20);
    uint64_t a = sim_submitted(sim, &one), b = sim_submitted(sim, &two),
             c = sim_submitted(sim, &two);
    uint64_t d = sim_submitted(sim, &one), e = sim_submitted(sim, &two);

    /* a holds a device of n1, b holds n2. c needs a whole node: n1 is kept for it, so d, which
     * would fit there, waits behind it, and so does e. */
    assert_int_equal(sim_job(sim, a)->state, HD_JOB_STATE_RUNNING);
    assert_int_equal(sim_job(sim, b)->state, HD_JOB_STATE_RUNNING);
    sim_assert_reason(sim, c,
                      "needs 2 cpu devices; n1 has 1 of 2 free (reserved for it), n2 has 0 "
                      "of 2 free (reserved for job 4)");
    sim_assert_reason(sim, d,
                      "needs 1 cpu device; n1 has 1 of 2 free (reserved for job 3), n2 has 0 "
                      "of 2 free (reserved for it)");
    sim_assert_reason(sim, e,
                      "waits behind job 3; needs 2 cpu devices; n1 has 1 of 2 free (reserved "
                      "for job 3), n2 has 0 of 2 free (reserved for job 4)");
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
    struct hd_job_needs small = sim_needs(1, 10), large = sim_needs(2, 10);
    uint64_t job;

    for (int i = 0; i < 4; i++) {
        (void)sim_submitted(sim, &small);
        sim_run(sim, 3); /* so that they never end at the same time */
    }
    job = sim_submitted(sim, &large);
    for (int i = 0; i < 20; i++) {
        (void)sim_submitted(sim, &small);
        sim_run(sim, 2);
    }
    assert_int_not_equal(sim_job(sim, job)->state, HD_JOB_STATE_QUEUED);
    sim_free(sim);
}

static void an_impossible_job_holds_nobody_up(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs eight = sim_needs(8, 10), two = sim_needs(2, 10);
    uint64_t job = sim_submitted(sim, &eight), next = sim_submitted(sim, &two);

    sim_assert_reason(sim, job, "needs 8 cpu devices; n1 has 0 of 2 free, n2 has 2");
    sim_run_until_ended(sim, next, 60);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_QUEUED);
    sim_free(sim);
}

static void a_range_of_devices_takes_what_is_there(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(1, 10);
    uint64_t a, b, c;

    a = sim_submitted(sim, &needs);
    needs.devices_max = 8; /* n1 has one left, n2 two; three do not share 8 sequences evenly */
    b = sim_submitted(sim, &needs);
    c = sim_submitted(sim, &needs);
    assert_int_equal(sim_attempt(sim, a, 1)->plan.rank_count, 1);
    assert_int_equal(sim_attempt(sim, b, 1)->plan.rank_count, 2);
    assert_int_equal(sim_attempt(sim, c, 1)->plan.rank_count, 1);
    sim_free(sim);
}

static void a_draining_node_finishes_and_takes_nothing_new(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 10);
    uint64_t a = sim_submitted(sim, &needs), b;
    const struct hd_core_event drain = {.kind = HD_CORE_DRAIN,
                                        .drain = {.node = "n1", .reason = "new disk"}};
    const struct hd_core_event undrain = {.kind = HD_CORE_UNDRAIN,
                                          .drain = {.node = "n1", .reason = "of no interest"}};
    const struct hd_core_event unknown = {.kind = HD_CORE_DRAIN, .drain = {.node = "n9"}};
    struct hd_node_view view;

    assert_int_equal(sim_event(sim, &unknown), HD_NOT_FOUND);
    assert_int_equal(sim_event(sim, &drain), HD_OK);
    hd_core_node_at(sim->core, 0, &view);
    assert_int_equal(view.record->state, HD_NODE_STATE_DRAINING);
    sim->nodes[1].cut = true;
    sim_run(sim, 16);
    b = sim_submitted(sim, &needs);
    assert_int_equal(sim_job(sim, a)->state, HD_JOB_STATE_SUCCEEDED);
    hd_core_node_at(sim->core, 0, &view);
    assert_int_equal(view.record->state, HD_NODE_STATE_DRAINED);
    sim_assert_reason(sim, b,
                      "needs 2 cpu devices; n1 is drained: new disk, n2 has been "
                      "unreachable for 16 s");
    assert_int_equal(sim_event(sim, &undrain), HD_OK);
    hd_core_node_at(sim->core, 0, &view);
    assert_string_equal(view.record->drain_reason, "");
    assert_int_equal(sim_job(sim, b)->state, HD_JOB_STATE_RUNNING);
    sim_free(sim);
}

/* ---- reports ----------------------------------------------------------------------------------*/

static void reports_of_a_rank_that_does_not_exist_are_refused(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 100);
    uint64_t job = sim_submitted(sim, &needs);
    struct hd_core_event event = sim_report(sim, job, 2, HD_REPORT_STEP);

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

/* Everything that a rank reports is stored under its own job, attempt and rank, and under the name
 * of its node, each with the next number of the history. Attempt 2, so that 1 is not right by
 * chance. */
static void a_report_is_stored_under_its_own_name(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 100);
    uint64_t job, sequence;
    struct hd_core_event report;
    struct hd_core_out out = {.batch = hd_batch_new()};
    const struct hd_batch_op *op;

    (void)sim_submitted(sim, &needs); /* job 1 is another one */
    assert_int_equal(sim_cancel(sim, 1, true), HD_OK);
    sim_run(sim, 3);
    sim->nodes[0].faults.no_start = 1;
    job = sim_submitted(sim, &needs);
    sim_run(sim, 3);
    report = sim_report(sim, job, 1, HD_REPORT_EVENT);
    report.report.attempt = 2;
    report.report.event =
        (struct hd_event_record){.rank = 1, .kind = "warning", .message = "it is hot"};
    assert_int_equal(hd_core_step(sim->core, &report, sim->now, &out), HD_OK);
    report.report.kind = HD_REPORT_VALIDATION;
    report.report.seq = 2;
    report.report.validation = (struct hd_validation_record){.step = 5, .tokens = 6, .loss = 7};
    assert_int_equal(hd_core_step(sim->core, &report, sim->now, &out), HD_OK);
    report.report.kind = HD_REPORT_STEP;
    report.report.seq = 3;
    report.report.step = (struct hd_step_record){.step = 8};
    assert_int_equal(hd_core_step(sim->core, &report, sim->now, &out), HD_OK);

    op = out.batch->first; /* a position, then the report, three times */
    for (uint64_t seq = 1; seq <= 3; seq++, op = op->next->next) {
        assert_int_equal(op->kind, HD_OP_POSITION);
        assert_int_equal(op->position.job, job);
        assert_int_equal(op->position.attempt, 2);
        assert_int_equal(op->position.rank, 1);
        assert_int_equal(op->position.seq, seq);
    }
    op = out.batch->first->next;
    assert_int_equal(op->kind, HD_OP_EVENT);
    sequence = op->event.sequence;
    assert_int_equal(op->event.job, job);
    assert_int_equal(op->event.attempt, 2);
    assert_int_equal(op->event.rank, 1);
    assert_string_equal(op->event.node, "n1");
    assert_string_equal(op->event.kind, "warning");
    assert_string_equal(op->event.message, "it is hot");
    op = op->next->next;
    assert_int_equal(op->kind, HD_OP_VALIDATION);
    assert_int_equal(op->validation.job, job);
    assert_int_equal(op->validation.attempt, 2);
    assert_int_equal(op->validation.sequence, sequence + 1);
    assert_int_equal(op->validation.tokens, 6);
    op = op->next->next;
    assert_int_equal(op->kind, HD_OP_STEP);
    assert_int_equal(op->step.job, job);
    assert_int_equal(op->step.attempt, 2);
    assert_int_equal(op->step.sequence, sequence + 2);
    assert_int_equal(op->step.step, 8);
    hd_batch_free(out.batch);
    hd_core_out_done(&out);
    sim_free(sim);
}

/* After a break the daemon sends again what was not acknowledged, known or not. */
static void a_resent_report_is_taken_in_once(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 100);
    uint64_t job = sim_submitted(sim, &needs);
    struct hd_core_event event = sim_report(sim, job, 1, HD_REPORT_STEP);

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
    struct hd_job_needs needs = sim_needs(2, 100);
    uint64_t job = sim_submitted(sim, &needs);
    char text[1 + 2 * CHARACTERS + 1] = "x";
    struct hd_core_event drain = {.kind = HD_CORE_DRAIN, .drain = {.node = "n1", .reason = text}};
    struct hd_core_event report = sim_report(sim, job, 1, HD_REPORT_EVENT);
    struct hd_core_out out = {.batch = hd_batch_new()};
    const struct hd_event_record *kept = NULL;
    struct hd_node_view view;

    report.report.event.kind = report.report.event.message = text;
    for (int i = 0; i < CHARACTERS; i++)
        memcpy(text + 1 + 2 * i, "\xc3\xa9", 2);
    assert_int_equal(sim_event(sim, &drain), HD_OK);
    hd_core_node_at(sim->core, 0, &view);
    assert_int_equal(strlen(view.record->drain_reason), HD_CTL_PATH_BYTES_MAX - 1);
    assert_int_equal(hd_core_step(sim->core, &report, sim->now, &out), HD_OK);
    for (const struct hd_batch_op *op = out.batch->first; op; op = op->next)
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
    struct hd_job_needs needs = sim_needs(2, 10);
    struct hd_plan_record plan;

    needs.wish.global_batch = 60; /* 30 a rank: the largest divisor up to 8 is 6 */
    assert_int_equal(hd_core_plan(&needs, HD_DEVICE_KIND_CPU, 2, &plan), HD_OK);
    assert_int_equal(plan.layout.micro_batch, 6);
    assert_int_equal(hd_layout_micro_batches(&plan.layout, 60), 5);
    needs.wish.sizes.micro_batch = 15;
    assert_int_equal(hd_core_plan(&needs, HD_DEVICE_KIND_CPU, 2, &plan), HD_OK);
    assert_int_equal(hd_layout_micro_batches(&plan.layout, 60), 2);
    needs.wish.sizes.micro_batch = 7;
    assert_int_equal(hd_core_plan(&needs, HD_DEVICE_KIND_CPU, 2, &plan), HD_INVALID);
    needs.wish.sizes.micro_batch = 0;
    assert_int_equal(hd_core_plan(&needs, HD_DEVICE_KIND_CPU, 7, &plan), HD_INVALID);
    needs.wish.sizes.tp = 2;
    assert_int_equal(hd_core_plan(&needs, HD_DEVICE_KIND_CPU, 6, &plan), HD_OK);
    assert_true(plan.layout.tp == 2 && plan.layout.dp == 3 && plan.layout.sequence);
    assert_int_equal(plan.layout.micro_batch, 5); /* 20 a replica */
    assert_int_equal(hd_core_plan(&needs, HD_DEVICE_KIND_CPU, 5, &plan), HD_INVALID);
    needs.wish.sizes.tp = 0;
    needs.wish.sizes.zero = 3;
    assert_int_equal(hd_core_plan(&needs, HD_DEVICE_KIND_CPU, 2, &plan), HD_OK);
    assert_int_equal(plan.layout.zero, 3);
    needs.wish.sizes.zero = 0;
    needs.wish.sizes.pp = 2;
    needs.wish.layers = 4;
    assert_int_equal(hd_core_plan(&needs, HD_DEVICE_KIND_CPU, 2, &plan), HD_OK);
    assert_true(plan.layout.pp == 2 && plan.layout.dp == 1 && plan.layout.virtual_stages == 1);
    assert_string_equal(plan.layout.schedule, "1f1b");
    assert_int_equal(plan.layout.micro_batch, 6); /* 10 micro-batches: four for each stage */
    needs.wish.sizes.pp = 0;
    assert_int_equal(hd_core_plan(&needs, HD_DEVICE_KIND_CUDA, 2, &plan), HD_OK);
    assert_int_equal(plan.layout.device, HD_JOB_DEVICE_CUDA);
    needs.wish.global_batch = 8192; /* 4096 and 8192 share it evenly; 4096 are connected at most */
    assert_int_equal(hd_core_plan(&needs, HD_DEVICE_KIND_CUDA, 4096, &plan), HD_OK);
    assert_int_equal(hd_core_plan(&needs, HD_DEVICE_KIND_CUDA, 8192, &plan), HD_UNSUPPORTED);
    assert_int_equal(hd_core_plan(&needs, HD_DEVICE_KIND_CPU, 4096, &plan), HD_OK);
}

static void what_can_never_run_is_refused(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(3, 10); /* 8 sequences for 3 devices */
    uint64_t job;

    assert_int_equal(sim_submit(sim, &needs, &job), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "train.global_batch = 8"));
    sim_free(sim);
}

/* ---- everything at once -----------------------------------------------------------------------*/

static void random_worlds_keep_every_rule(void **state)
{
    sim_live_through_all(HD_TEST_SANITIZED ? 10 : 40, 2, 2);
}

RUN_CASES()
