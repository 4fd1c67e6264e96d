/* core: an attempt's layout is chosen so that it fits the devices that were found for it. */
#include <stdio.h>
#include <string.h>

#include "sim.h"
#include "tests/program/test.h"

/* Stands for plan/best.h. A rank of a pipeline of pp stages takes WHOLE / pp; nothing else helps.
 */
enum { WHOLE = 4000 };
static int asked_count;
static struct hd_core_asked newest;

static void choose_stages(const struct hd_core_asked *asked, struct hd_core_answer *answer)
{
    static char why[64];
    int32_t pp = 1;

    asked_count++;
    newest = *asked;
    newest.key = newest.device_name = newest.traits = NULL; /* live as long as the call */
    assert_int_equal(asked->wish.sizes.device, HD_JOB_DEVICE_CPU);
    while (pp <= asked->devices && WHOLE / pp > asked->memory_bytes)
        pp *= 2;
    answer->fits = pp <= asked->devices;
    answer->step_s = 2.0 / asked->devices;
    answer->memory_bytes = WHOLE / pp;
    why[0] = '\0';
    if (pp > 1)
        (void)snprintf(why, sizeof why, answer->fits ? "%d share it" : "%d are too few",
                       asked->devices);
    answer->why = why;
    assert_int_equal(hd_plan_size(&asked->wish, asked->devices, &answer->layout), HD_PLAN_FITS);
    if (answer->fits) {
        answer->layout.pp = pp;
        answer->layout.dp = asked->devices / pp;
    }
}

/* Nodes of two devices with so much memory each; `last`: those of the last node. */
static struct sim *sim_with(int node_count, int64_t memory_bytes, int64_t last)
{
    struct sim *sim = sim_new(1, node_count);

    asked_count = 0;
    sim_ask_layouts(sim, choose_stages, 0);
    for (int n = 0; n < node_count; n++)
        sim->nodes[n].memory_bytes = n < node_count - 1 ? memory_bytes : last;
    sim_run(sim, 3);
    return sim;
}

static struct hd_job_needs range(int min, int max)
{
    struct hd_job_needs needs = sim_needs(max, 20);

    needs.wish.layers = 8;
    needs.devices_min = min;
    needs.devices_max = max;
    needs.shape = 7;
    return needs;
}

/* Leaves nothing of the layout open. */
static void write_down(struct hd_job_needs *needs, int64_t pp)
{
    struct hd_layout_sizes *s = &needs->wish.sizes;

    s->tp = s->cp = s->ep = s->micro_batch = 1;
    s->pp = pp;
    s->zero = 0;
    (void)snprintf(s->recompute, sizeof s->recompute, "none");
    if (pp > 1)
        (void)snprintf(s->schedule, sizeof s->schedule, "1f1b");
}

static void the_attempt_has_the_layout_that_was_chosen(void **state)
{
    struct sim *sim = sim_with(1, WHOLE / 2, WHOLE / 2);
    const struct hd_job_needs needs = range(2, 2);
    const uint64_t job = sim_submitted(sim, &needs);

    assert_int_equal(sim_attempt(sim, job, 1)->plan.layout.pp, 2);
    assert_int_equal(sim_attempt(sim, job, 1)->plan.layout.dp, 1);
    assert_int_equal(sim_count_events(sim, job, "layout"), 1);
    assert_int_equal(newest.devices, 2);
    assert_int_equal(newest.memory_bytes, WHOLE / 2);
    sim_run_until_ended(sim, job, 60);
    sim_assert_undisturbed(sim, job, 20);
    sim_free(sim);
}

/* The device that has least counts, and one whose memory is not known leaves the layout alone. */
static void the_smallest_device_decides(void **state)
{
    struct sim *sim = sim_with(2, WHOLE, WHOLE / 4);
    const struct hd_job_needs needs = range(4, 4);
    uint64_t job = sim_submitted(sim, &needs);

    assert_int_equal(sim_attempt(sim, job, 1)->plan.layout.pp, 4);
    sim_free(sim);

    sim = sim_with(2, WHOLE, 0);
    job = sim_submitted(sim, &needs);
    assert_int_equal(sim_attempt(sim, job, 1)->plan.layout.pp, 1);
    assert_int_equal(asked_count, 0);
    sim_free(sim);
}

/* It costs a layout, so it is asked for the job that starts, however many wait. */
static void waiting_jobs_are_not_laid_out(void **state)
{
    struct sim *sim = sim_with(1, WHOLE, WHOLE);
    const struct hd_job_needs needs = range(2, 2);

    for (int i = 0; i < 6; i++)
        (void)sim_submitted(sim, &needs);
    sim_second(sim);
    assert_int_equal(asked_count, 1);
    sim_free(sim);
}

static void a_job_that_fits_nowhere_fails_and_says_why(void **state)
{
    struct sim *sim = sim_with(2, WHOLE / 8, WHOLE / 8);
    const struct hd_job_needs needs = range(2, 4);
    const uint64_t job = sim_submitted(sim, &needs);

    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_FAILED);
    assert_string_equal(sim_job(sim, job)->reason, "4 are too few");
    assert_int_equal(sim_count_events(sim, job, "no_fit"), 1);
    assert_int_equal(asked_count, 2); /* for four devices, and meanwhile for two, the fewest */
    sim_free(sim);
}

/* Two devices are too few while another job has the other two; then it gets all four. */
static void a_job_waits_for_the_devices_that_it_fits(void **state)
{
    struct sim *sim = sim_with(2, WHOLE / 4, WHOLE / 4);
    struct hd_job_needs other = range(2, 2), needs = range(2, 4);
    uint64_t first, job;

    write_down(&other, 2); /* it is not asked */
    first = sim_submitted(sim, &other);
    job = sim_submitted(sim, &needs);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_QUEUED);
    assert_int_equal(asked_count, 1);
    sim_assert_reason(sim, job,
                      "needs 4 cpu devices; n1 has 0 of 2 free (reserved for it), n2 has 2 "
                      "(reserved for it); fewer are too few: 2 are too few");
    sim_run_until_ended(sim, first, 60);
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(sim_attempt(sim, job, 1)->plan.rank_count, 4);
    assert_int_equal(sim_attempt(sim, job, 1)->plan.layout.pp, 4);
    assert_int_equal(asked_count, 2);
    sim_free(sim);
}

/* One of two nodes has little memory and is not used: both when its devices are among more than are
 * needed, and when the other node is busy. */
static void a_job_waits_for_devices_that_are_large_enough(void **state)
{
    struct sim *sim = sim_with(2, WHOLE / 2, WHOLE / 16);
    const struct hd_job_needs needs = range(2, 4);
    const uint64_t first = sim_submitted(sim, &needs), second = sim_submitted(sim, &needs);

    assert_int_equal(sim_attempt(sim, first, 1)->plan.rank_count, 2);
    assert_int_equal(sim_attempt(sim, first, 1)->plan.layout.pp, 2);
    assert_string_equal(sim_attempt(sim, first, 1)->plan.ranks[1].node_name, "n1");
    assert_int_equal(sim_job(sim, second)->state, HD_JOB_STATE_QUEUED);
    sim_assert_reason(sim, second,
                      "needs 2 cpu devices with more than 250 B; n1 has 0 of 2 free "
                      "(reserved for it), n2 has 0; less memory is too little: 2 are too few");
    sim_run_until_ended(sim, first, 60);
    sim_run_until_ended(sim, second, 60);
    assert_int_equal(sim_job(sim, second)->state, HD_JOB_STATE_SUCCEEDED);
    sim_free(sim);
}

/* 2 devices are too few, and of 3 no layout makes use: there is nothing to wait for. */
static void a_job_that_could_have_no_more_fails(void **state)
{
    struct sim *sim = sim_with(2, WHOLE / 4, WHOLE / 4);
    struct hd_job_needs other = range(2, 2), needs = range(2, 3);
    uint64_t job;

    write_down(&other, 2);
    (void)sim_submitted(sim, &other);
    job = sim_submitted(sim, &needs);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_FAILED);
    assert_string_equal(sim_job(sim, job)->reason, "2 are too few");
    sim_free(sim);
}

/* Goal: a job's layouts are searched anew when a node comes with other devices. */
static void a_node_with_larger_devices_ends_the_wait(void **state)
{
    struct sim *sim = sim_with(2, WHOLE / 4, WHOLE / 4);
    struct hd_job_needs other = range(2, 2), needs = range(2, 4);
    uint64_t job;

    write_down(&other, 2);
    other.steps = 100000;
    (void)sim_submitted(sim, &other);
    job = sim_submitted(sim, &needs);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_QUEUED);
    sim->nodes[1].memory_bytes = WHOLE;
    sim_daemon_restart(sim, &sim->nodes[1]);
    sim_run(sim, 5);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_RUNNING);
    assert_int_equal(sim_attempt(sim, job, 1)->plan.rank_count, 2);
    assert_int_equal(sim_attempt(sim, job, 1)->plan.layout.pp, 1);
    sim_free(sim);
}

/* ---- while a layout is being found ------------------------------------------------------------*/

static struct sim *slow_sim(int node_count)
{
    struct sim *sim = sim_new(1, node_count);

    asked_count = 0;
    sim_ask_layouts(sim, choose_stages, 20);
    for (int n = 0; n < node_count; n++)
        sim->nodes[n].memory_bytes = WHOLE;
    sim_run(sim, 3);
    return sim;
}

/* Until the answer comes the job waits with that reason; its devices are its own. */
static void a_job_keeps_its_place_while_its_layout_is_found(void **state)
{
    struct sim *sim = slow_sim(1);
    const struct hd_job_needs needs = range(2, 2);
    struct hd_job_needs small = range(1, 1);
    uint64_t job, other;

    job = sim_submitted(sim, &needs);
    sim->questions[0].due_mono_ms = sim->now.mono_ms + 10000;
    write_down(&small, 1);
    other = sim_submitted(sim, &small);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_QUEUED);
    assert_int_equal(sim_job(sim, other)->state, HD_JOB_STATE_QUEUED);
    sim_assert_reason(sim, job, "the best layout for its devices is being computed");
    assert_int_equal(sim->question_count, 1);
    sim_run(sim, 12);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_RUNNING);
    assert_true(sim_attempt(sim, job, 1)->plan.step_s == 1.0);
    assert_int_equal(sim_attempt(sim, job, 1)->plan.memory_bytes, WHOLE);
    sim_run_until_ended(sim, other, 200);
    sim_free(sim);
}

/* Goal: a layout is searched while the job waits, so that it starts at once when devices are free.
 */
static void a_waiting_job_is_planned_while_it_waits(void **state)
{
    struct sim *sim = slow_sim(1);
    struct hd_job_needs first = range(2, 2);
    const struct hd_job_needs needs = range(2, 2);
    uint64_t before, job;

    write_down(&first, 1);
    first.steps = 60;
    before = sim_submitted(sim, &first);
    job = sim_submitted(sim, &needs);
    sim_run(sim, 2); /* no end is known yet, so no place is looked for */
    assert_int_equal(sim->question_count + asked_count, 1);
    sim_run(sim, 23);
    assert_int_equal(sim_job(sim, before)->state, HD_JOB_STATE_RUNNING);
    assert_int_equal(asked_count, 1);
    sim_run_until_ended(sim, before, 200);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_RUNNING);
    assert_int_equal(asked_count, 1);
    sim_free(sim);
}

/* Equal jobs share an answer; one of another shape has its own. */
static void equal_jobs_share_a_layout(void **state)
{
    struct sim *sim = slow_sim(2);
    struct hd_job_needs needs = range(1, 1);

    for (int i = 0; i < 3; i++)
        (void)sim_submitted(sim, &needs);
    assert_int_equal(sim->question_count, 1);
    needs.shape = 8;
    (void)sim_submitted(sim, &needs);
    assert_int_equal(sim->question_count, 2);
    needs.shape = 0; /* shares with none */
    (void)sim_submitted(sim, &needs);
    (void)sim_submitted(sim, &needs);
    assert_int_equal(sim->question_count, 4);
    sim_free(sim);
}

/* A restart forgets the question; the answer to the old one is not waited for. */
static void a_restart_asks_again(void **state)
{
    struct sim *sim = slow_sim(1);
    const struct hd_job_needs needs = range(2, 2);
    const uint64_t job = sim_submitted(sim, &needs);

    assert_int_equal(sim->question_count, 1);
    sim_controller_crash(sim);
    sim->question_count = 0;
    sim_run(sim, 40);
    assert_true(sim_job(sim, job)->state > HD_JOB_STATE_QUEUED);
    sim_run_until_ended(sim, job, 100);
    sim_assert_undisturbed(sim, job, 20);
    sim_free(sim);
}

/* Answers are forgotten when there are many; a job that was held meanwhile asks again. */
static void a_held_job_outlives_the_answers(void **state)
{
    struct sim *sim = slow_sim(1);
    const struct hd_job_needs needs = range(2, 2);
    const uint64_t job = sim_submitted(sim, &needs);

    assert_int_equal(sim_hold(sim, job, true), HD_OK);
    sim_run(sim, 25);
    assert_int_equal(asked_count, 1);
    for (uint64_t shape = 100; shape < 100 + 4200; shape++) {
        struct hd_job_needs other = needs;
        struct hd_core_readiness ready = {0};
        struct hd_core_event event = {.kind = HD_CORE_PLANNED};
        char key[512];

        other.shape = shape;
        hd_core_out_clear(&sim->out);
        assert_int_equal(
            hd_core_explain_needs(sim->core, &other, "", 0, sim->now, &sim->out, &ready), HD_OK);
        assert_true(ready.later);
        assert_int_equal(sim->out.asked_count, 1);
        (void)snprintf(key, sizeof key, "%s", sim->out.asked[0].key);
        choose_stages(&sim->out.asked[0], &event.planned);
        event.planned.key = key;
        assert_int_equal(sim_event(sim, &event), HD_OK);
        hd_text_free(&ready.reason);
    }
    assert_int_equal(sim_hold(sim, job, false), HD_OK);
    sim_run_until_ended(sim, job, 100);
    sim_assert_undisturbed(sim, job, 20);
    sim_free(sim);
}

/* Goal: a job that the nodes could never run is known from one that only waits. */
static void what_needs_more_than_all_nodes_have_never_fits(void **state)
{
    struct sim *sim = sim_with(3, WHOLE, 2 * WHOLE); /* 3 nodes of 2 devices, one of large ones */
    struct hd_job_needs needs = range(6, 6);
    struct hd_text text = {0};
    uint64_t fits, job;

    needs.wish.global_batch = 7 * 6;
    fits = sim_submitted(sim, &needs);
    needs.devices_min = needs.devices_max = 7;
    job = sim_submitted(sim, &needs);
    hd_core_add_never_fits(sim->core, fits, &text);
    assert_int_equal(text.len_bytes, 0);
    hd_core_add_never_fits(sim->core, job, &text);
    assert_string_equal(text.data, "needs 7 cpu devices; the cluster has 6 cpu devices in all, at "
                                   "most 2 on one node");
    hd_text_free(&text);
    sim_free(sim);
}

static void choose_in_a_hurry(const struct hd_core_asked *asked, struct hd_core_answer *answer)
{
    choose_stages(asked, answer);
    answer->preliminary = true;
    answer->step_s = 0;
}

/* The answer of a search that was cut short serves those that ask within a minute. Who asks later
 * has it, too, but it is asked for once more, behind all others, and replaced. */
static void a_hasty_answer_is_improved(void **state)
{
    struct sim *sim = sim_with(4, WHOLE, WHOLE);
    const struct hd_job_needs needs = range(2, 2);
    uint64_t first, second, third;

    sim->plan = choose_in_a_hurry;
    first = sim_submitted(sim, &needs);
    sim_run(sim, 10);
    second = sim_submitted(sim, &needs);
    assert_int_equal(asked_count, 1);
    sim_run_until_ended(sim, first, 100);
    sim_run_until_ended(sim, second, 100);
    sim_run(sim, 60);
    sim->plan = choose_stages;
    third = sim_submitted(sim, &needs);
    assert_int_equal(asked_count, 2);
    assert_true(newest.ahead);
    assert_int_equal(sim_job(sim, third)->state, HD_JOB_STATE_RUNNING);
    assert_true(sim_attempt(sim, third, 1)->plan.step_s == 0);
    sim_run_until_ended(sim, third, 100);
    third = sim_submitted(sim, &needs);
    assert_true(sim_attempt(sim, third, 1)->plan.step_s == 1.0);
    assert_int_equal(asked_count, 2);
    sim_free(sim);
}

/* Stands for a search whose prices come from a noisy measurement: what is open becomes `mood`
 * stages. */
static int64_t mood;
static double mood_step_s = 1; /* predicted */

static void choose_by_mood(const struct hd_core_asked *asked, struct hd_core_answer *answer)
{
    const int64_t pp = asked->wish.sizes.pp ? asked->wish.sizes.pp : mood;
    struct hd_plan_request request = asked->wish;

    asked_count++;
    request.sizes.pp = pp;
    assert_int_equal(hd_plan_size(&request, asked->devices, &answer->layout), HD_PLAN_FITS);
    answer->fits = WHOLE / pp <= asked->memory_bytes;
    answer->step_s = mood_step_s;
    answer->memory_bytes = WHOLE / pp;
    answer->why = "";
}

/* A step of the simulation takes 1 s, four times what is predicted. The job that gives way keeps its
 * layout, though the search would choose another one now, and is priced by what its steps took; the
 * attempt that is priced so is not told again. All follows from the records of the attempts. */
static void a_job_that_gave_way_keeps_its_layout_and_is_priced_by_its_steps(void **state)
{
    struct sim *sim = sim_with(1, WHOLE, WHOLE);
    struct hd_job_needs needs = range(2, 2), higher = range(2, 2);
    uint64_t low, high;

    needs.shape = higher.shape = 0;
    needs.steps = 40;
    higher.steps = 5; /* its prediction is not judged: that takes ten measured steps */
    higher.priority = 1;
    sim->plan = choose_by_mood;
    mood = 2;
    mood_step_s = 0.25;
    low = sim_submitted(sim, &needs);
    sim_run(sim, 20);
    assert_int_equal(sim_count_events(sim, low, "step_time"), 1);
    assert_true(sim_attempt(sim, low, 1)->plan.step_s == 0.25);
    mood = 1;
    high = sim_submitted(sim, &higher);
    sim_run(sim, 6);
    sim_controller_crash(sim);
    sim_run_until_ended(sim, high, 60);
    sim_run_until_ended(sim, low, 100);
    assert_int_equal(sim_attempt(sim, low, 1)->end.cause, HD_END_CAUSE_PREEMPTED);
    assert_int_equal(sim_attempt(sim, low, 2)->plan.layout.pp, 2);
    assert_true(sim_attempt(sim, low, 2)->plan.step_s > 0.75);
    assert_true(sim_attempt(sim, low, 2)->plan.step_s < 1.25);
    assert_int_equal(sim_count_events(sim, low, "step_time"), 1);
    assert_int_equal(sim_count_events(sim, high, "step_time"), 0);
    assert_int_equal(sim_attempt(sim, high, 1)->plan.layout.pp, 1);
    sim_assert_undisturbed(sim, low, 40);
    mood_step_s = 1;
    sim_free(sim);
}

/* A controller that starts anew knows the newest step of a job, and nothing of the steps of attempts
 * before: each attempt's record has the factor of its prediction, so the third one is priced as the
 * second one was. Figures that the node measures afterwards speak for themselves. */
static void the_price_of_an_attempt_outlives_restarts_until_the_node_is_measured(void **state)
{
    struct sim *sim = sim_with(1, WHOLE, WHOLE);
    struct hd_job_needs needs = range(2, 2);
    struct hd_core_event probed = {.kind = HD_CORE_PROBED};
    uint64_t job;

    needs.shape = 0;
    needs.steps = 100;
    sim->plan = choose_by_mood;
    mood = 2;
    mood_step_s = 0.25;
    job = sim_submitted(sim, &needs);
    sim_run(sim, 20);
    assert_int_equal(sim_requeue(sim, job), HD_OK);
    sim_run(sim, 20);
    sim_controller_crash(sim);
    sim_run(sim, 5);
    assert_true(sim_attempt(sim, job, 2)->plan.step_s > 0.75);
    assert_int_equal(sim_requeue(sim, job), HD_OK);
    sim_run(sim, 20);
    assert_true(sim_attempt(sim, job, 3)->plan.step_s == sim_attempt(sim, job, 2)->plan.step_s);
    assert_int_equal(sim_count_events(sim, job, "step_time"), 1);
    mood_step_s = 1;
    probed.probed.stream = sim->nodes[0].stream;
    probed.probed.record = (struct hd_probe_record){.node_uuid = sim->nodes[0].uuid,
                                                    .ended_ms = sim->now.wall_ms,
                                                    .measured_on = "this build",
                                                    .measured_ms = sim->now.wall_ms,
                                                    .calibration = "text",
                                                    .calibration_bytes = 4};
    assert_int_equal(sim_event(sim, &probed), HD_OK);
    assert_int_equal(sim_requeue(sim, job), HD_OK);
    sim_run(sim, 20);
    assert_true(sim_attempt(sim, job, 4)->plan.step_s == 1);
    assert_int_equal(sim_count_events(sim, job, "step_time"), 1);
    sim_free(sim);
}

/* A job that was requeued goes on with its layout on another node whose measurement speaks for
 * another one; also after a restart of the controller. */
static void a_later_attempt_keeps_the_layout(void **state)
{
    struct sim *sim = sim_with(2, WHOLE, WHOLE);
    struct hd_job_needs needs = range(2, 2);
    uint64_t job;

    needs.shape = 0; /* each job asks for itself */
    sim->plan = choose_by_mood;
    mood = 2;
    sim->nodes[1].full = true;
    job = sim_submitted(sim, &needs);
    assert_int_equal(sim_attempt(sim, job, 1)->plan.layout.pp, 2);
    sim_run(sim, 3);
    mood = 1;
    sim->nodes[0].full = true;
    sim->nodes[1].full = false;
    sim_controller_crash(sim);
    sim_run(sim, 5);
    assert_int_equal(sim_requeue(sim, job), HD_OK);
    sim_run_until_ended(sim, job, 200);
    assert_int_equal(sim_attempt(sim, job, 2)->plan.layout.pp, 2);
    assert_int_equal(sim_attempt(sim, job, 2)->plan.layout.dp, 1);
    sim_assert_undisturbed(sim, job, 20);
    sim_free(sim);
}

/* The other node's devices have half the memory: the layout of before does not fit there, and the
 * best one that does is taken. */
static void a_layout_that_does_not_fit_any_more_is_replaced(void **state)
{
    struct sim *sim = sim_with(2, WHOLE, WHOLE / 2);
    struct hd_job_needs needs = range(2, 2);
    uint64_t job;

    needs.shape = 0;
    sim->plan = choose_by_mood;
    mood = 1;
    sim->nodes[1].full = true;
    job = sim_submitted(sim, &needs);
    assert_int_equal(sim_attempt(sim, job, 1)->plan.layout.pp, 1);
    sim_run(sim, 3);
    mood = 2;
    sim->nodes[0].full = true;
    sim->nodes[1].full = false;
    sim_run(sim, 5);
    assert_int_equal(sim_requeue(sim, job), HD_OK);
    sim_run_until_ended(sim, job, 200);
    assert_int_equal(sim_attempt(sim, job, 2)->plan.layout.pp, 2);
    sim_free(sim);
}

/* A member that a resumed job writes down anew goes before the layout of the attempts before. */
static void a_member_that_is_written_down_goes_before_an_earlier_layout(void **state)
{
    struct sim *sim = sim_with(1, WHOLE, WHOLE);
    struct hd_job_needs needs = range(2, 2);
    uint64_t job;

    needs.shape = 0;
    sim->plan = choose_by_mood;
    mood = 2;
    job = sim_submitted(sim, &needs);
    sim_run(sim, 3);
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    sim_run_until_ended(sim, job, 100);
    needs.wish.sizes.pp = 1;
    assert_int_equal(sim_resume(sim, job, &needs), HD_OK);
    sim_run_until_ended(sim, job, 200);
    assert_int_equal(sim_attempt(sim, job, 1)->plan.layout.pp, 2);
    assert_int_equal(sim_attempt(sim, job, 2)->plan.layout.pp, 1);
    sim_free(sim);
}

static void choose_four_stages(const struct hd_core_asked *asked, struct hd_core_answer *answer)
{
    assert_true(hd_plan_first(&asked->wish, asked->devices, &answer->layout));
    answer->fits = true;
    answer->why = "stages";
}

/* One sequence a step: only stages can share it. With `searched` (services/convert.c) the job is
 * accepted and gets what the search finds; without, it is refused as before. */
static void a_job_that_only_stages_can_split_is_accepted(void **state)
{
    struct sim *sim = sim_with(2, WHOLE, WHOLE);
    struct hd_job_needs needs = range(4, 4);
    uint64_t job;

    needs.wish.global_batch = 1;
    needs.wish.sizes.cp = 1;
    assert_int_equal(sim_submit(sim, &needs, &job), HD_INVALID);
    needs.wish.searched = true;
    sim->plan = choose_four_stages;
    job = sim_submitted(sim, &needs);
    assert_int_equal(sim_attempt(sim, job, 1)->plan.layout.pp, 4);
    assert_int_equal(sim_attempt(sim, job, 1)->plan.rank_count, 4);
    sim_free(sim);
}

RUN_CASES()
