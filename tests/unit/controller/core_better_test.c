/* core: a job that could start now waits for a better place, if it ends earlier there. */
#include <string.h>

#include "sim.h"
#include "tests/program/test.h"

/* Stands for plan/best.h: a step takes a second on one node and two seconds on several. */
static void price(const struct hd_core_asked *asked, struct hd_core_answer *answer)
{
    answer->fits = true;
    answer->step_s = asked->tier ? 2 : 1;
    assert_int_equal(asked->tier ? asked->devices / 2 : asked->devices, asked->together);
    assert_int_equal(hd_plan_size(&asked->wish, asked->devices, &answer->layout), HD_PLAN_FITS);
}

static uint64_t submit(struct sim *sim, int devices, int steps)
{
    const struct hd_job_needs needs = sim_needs(devices, steps);

    return sim_submitted(sim, &needs);
}

/* Returns a simulation of two nodes with two devices each. */
static struct sim *two_nodes(void)
{
    struct sim *sim = sim_new(1, 2);

    sim_ask_layouts(sim, price, 0);
    sim->nodes[0].memory_bytes = sim->nodes[1].memory_bytes = 1 << 30;
    sim_run(sim, 3);
    return sim;
}

/* Two nodes of two devices, of which each has one free: `first` holds one of n1 and ends after so
 * many steps of a second, another job holds one of n2 for `other_steps`. */
static struct sim *two_halves(int first_steps, int other_steps, uint64_t *ret_first)
{
    struct sim *sim = two_nodes();
    uint64_t second;

    *ret_first = submit(sim, 1, first_steps);
    second = submit(sim, 1, 500);
    (void)submit(sim, 1, other_steps);
    assert_int_equal(sim_cancel(sim, second, true), HD_OK);
    sim_run(sim, 10); /* the pace of both is known */
    sim_assert_places(sim, *ret_first, 1, "cpu n1:0");
    return sim;
}

static bool is_blocked_by(const struct sim *sim, uint64_t job, enum hd_core_blocker blocker)
{
    enum hd_core_blocker found[HD_CORE_BLOCKERS_MAX];
    const size_t count = hd_core_blockers(sim->core, job, found);

    return count == 1 && found[0] == blocker;
}

/* 300 steps: now 600 s on two nodes; in at most 100 s n1 is free, and then it takes 300 s. */
static void a_job_waits_where_it_ends_earlier(void **state)
{
    uint64_t first;
    struct sim *sim = two_halves(100, 500, &first);
    const uint64_t job = submit(sim, 2, 300);
    struct hd_text reason = {0};

    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_QUEUED);
    assert_true(is_blocked_by(sim, job, HD_CORE_WAITS_BETTER));
    assert_in_range(sim_job(sim, job)->planned_start_ms - sim->now.wall_ms, 60000, 100000);
    hd_core_explain(sim->core, job, sim->now, &reason);
    assert_non_null(strstr(reason.data, "could start now on 2 nodes at 2 s a step, but waits for 1 "
                                        "node at 1 s a step, expected free at "));
    hd_text_free(&reason);
    sim_run_until_ended(sim, first, 120);
    sim_run(sim, 3);
    sim_assert_places(sim, job, 1, "cpu n1:0 n1:1");
    sim_run_until_ended(sim, job, 400);
    sim_assert_undisturbed(sim, job, 300);
    sim_free(sim);
}

/* 30 steps: now 60 s; later up to 100 s and then 30 s. It starts, and says what it left. */
static void a_job_starts_where_it_ends_earlier(void **state)
{
    uint64_t first;
    struct sim *sim = two_halves(100, 500, &first);
    const uint64_t job = submit(sim, 2, 30);

    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_RUNNING);
    sim_assert_places(sim, job, 1, "cpu n1:1 n2:1");
    assert_int_equal(sim_count_events(sim, job, "weighed"), 1);
    sim_free(sim);
}

/* n1 and n2 have one free device each, and all of n1 is free in 100 s. 80 steps take 160 s now and
 * 80 s then. Alone the job starts. Behind one that waits for n3 it waits for n1: it ends later by
 * some seconds, and needs its devices 80 s less. */
static void in_a_queue_a_job_waits_longer_for_a_better_place(void **state)
{
    for (int queue = 0; queue < 2; queue++) {
        struct sim *sim = sim_new(1, 3);
        struct hd_job_needs large = sim_needs(2, 1000);
        struct hd_text reason = {0};
        uint64_t second, job;

        sim_ask_layouts(sim, price, 0);
        for (int n = 0; n < 3; n++)
            sim->nodes[n].memory_bytes = (int64_t)(n == 2 ? 2 : 1) << 30;
        sim_run(sim, 3);
        large.memory_min = (int64_t)2 << 30;
        sim_assert_places(sim, sim_submitted(sim, &large), 1, "cpu n3:0 n3:1");
        (void)submit(sim, 1, 100);
        second = submit(sim, 1, 500);
        (void)submit(sim, 1, 500);
        assert_int_equal(sim_cancel(sim, second, true), HD_OK);
        if (queue)
            (void)sim_submitted(sim, &large);
        sim_run(sim, 10);
        job = submit(sim, 2, 80);
        sim_run(sim, 2);
        assert_int_equal(sim_job(sim, job)->state,
                         queue ? HD_JOB_STATE_QUEUED : HD_JOB_STATE_RUNNING);
        hd_core_explain(sim->core, job, sim->now, &reason);
        assert_int_equal(strstr(reason.data ? reason.data : "",
                                "later, but uses its devices for 1m20s less, and other jobs wait "
                                "for devices") != NULL,
                         queue);
        hd_text_free(&reason);
        if (queue)
            sim_run(sim, 100);
        sim_assert_places(sim, job, 1, queue ? "cpu n1:0 n1:1" : "cpu n1:1 n2:1");
        sim_free(sim);
    }
}

/* Half of n1 and half of n2 are free in 60 s, all of n1 in 150 s. 80 steps take 160 s or 80 s: the
 * job waits for the halves while it waits alone, and for n1 as soon as another job waits behind it.
 */
static void a_job_weighs_anew_when_one_comes_behind_it(void **state)
{
    struct sim *sim = two_nodes();
    uint64_t job, behind;

    (void)submit(sim, 1, 60);
    (void)submit(sim, 1, 150);
    (void)submit(sim, 1, 60);
    (void)submit(sim, 1, 1000);
    sim_run(sim, 10);
    job = submit(sim, 2, 80);
    sim_run(sim, 2);
    assert_in_range(sim_job(sim, job)->planned_start_ms - sim->now.wall_ms, 40000, 60000);
    behind = submit(sim, 1, 400);
    assert_in_range(sim_job(sim, job)->planned_start_ms - sim->now.wall_ms, 125000, 150000);
    sim_run_until_ended(sim, job, 300);
    sim_assert_places(sim, behind, 1, "cpu n2:0");
    sim_assert_places(sim, job, 1, "cpu n1:0 n1:1");
    sim_free(sim);
}

/* A job whose quota leaves it too few devices, and jobs that fit on no node, do not count as
 * waiting behind another job: that weighs as if it were alone, and no event moves its expected
 * start. */
static void a_job_does_not_weigh_with_those_that_cannot_start(void **state)
{
    struct sim *sim = two_nodes();
    struct hd_job_needs needs = sim_needs(1, 1000);
    uint64_t job;

    assert_int_equal(sim_set_queue(sim, "tight", 2, -1, 1), HD_OK);
    (void)submit(sim, 1, 60);
    (void)submit(sim, 1, 150);
    (void)submit(sim, 1, 60);
    needs.queue = "tight";
    (void)sim_submitted(sim, &needs);
    sim_run(sim, 10);
    job = submit(sim, 2, 80);
    needs = sim_needs(2, 50);
    needs.queue = "tight";
    needs.devices_min = 1;
    needs.wish.sizes.tp = 2;
    needs.wish.global_batch = 840;
    (void)sim_submitted(sim, &needs);
    needs = sim_needs(1, 50);
    needs.memory_min = (int64_t)1 << 40;
    for (int i = 0; i < 3; i++) {
        sim_run(sim, 1);
        (void)sim_submitted(sim, &needs);
        sim->owner = "bob";
        assert_in_range(sim_job(sim, job)->planned_start_ms - sim->now.wall_ms, 40000, 60000);
    }
    assert_int_equal(sim_count_events(sim, job, "start_moved"), 0);
    sim_free(sim);
}

/* The end of one job makes the second half free, and opens the quota of the job that waits behind:
 * in that same pass it counts as waiting. */
static void a_job_weighs_with_those_whose_quota_opens(void **state)
{
    struct sim *sim = two_nodes();
    struct hd_job_needs needs = sim_needs(1, 60);
    uint64_t job, behind;

    needs.queue = "tight";
    assert_int_equal(sim_set_queue(sim, "tight", 1, -1, 1), HD_OK);
    assert_int_equal(sim_set_queue(sim, "first", -1, -1, 1), HD_OK); /* it holds nothing else */
    (void)sim_submitted(sim, &needs);
    (void)submit(sim, 1, 150);
    (void)submit(sim, 1, 30);
    (void)submit(sim, 1, 1000);
    needs = sim_needs(2, 80);
    needs.queue = "first";
    job = sim_submitted(sim, &needs);
    needs = sim_needs(1, 100);
    needs.queue = "tight";
    behind = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, behind, 600);
    sim_assert_places(sim, behind, 1, "cpu n2:0");
    sim_assert_places(sim, job, 1, "cpu n1:0 n1:1");
    sim_free(sim);
}

/* Goal: devices that a job leaves while it waits are free for others. */
static void what_it_could_have_now_is_free_for_others(void **state)
{
    uint64_t first;
    struct sim *sim = two_halves(100, 500, &first);
    const uint64_t job = submit(sim, 2, 300), other = submit(sim, 1, 20);

    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_QUEUED);
    assert_int_equal(sim_job(sim, other)->state, HD_JOB_STATE_RUNNING);
    sim_assert_places(sim, other, 1, "cpu n2:1");
    sim_free(sim);
}

/* `first` is cancelled and takes longer than its 30 s for its last checkpoint, so it is always
 * expected to end in half a minute. The job of 120 steps would save 120 s on one node: it waits so
 * long, and then starts on two. */
static void a_better_place_that_is_late_keeps_no_job_for_ever(void **state)
{
    uint64_t first;
    struct sim *sim = two_halves(1000, 500, &first);
    uint64_t job;

    sim->nodes[0].faults.save_s = 600;
    assert_int_equal(sim_cancel(sim, first, false), HD_OK);
    sim_run(sim, 2);
    job = submit(sim, 2, 120);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_QUEUED);
    sim_run(sim, 80);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_QUEUED);
    sim_run(sim, 120);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_RUNNING);
    sim_assert_places(sim, job, 1, "cpu n1:1 n2:1");
    assert_int_equal(sim_job(sim, first)->state, HD_JOB_STATE_STOPPING);
    sim_free(sim);
}

/* A controller that is killed while a job waits keeps its expected start. */
static void an_expected_better_place_survives_a_restart(void **state)
{
    uint64_t first;
    struct sim *sim = two_halves(100, 500, &first);
    const uint64_t job = submit(sim, 2, 300);
    const int64_t planned_start_ms = sim_job(sim, job)->planned_start_ms;

    sim_controller_crash(sim);
    sim_run(sim, 20);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_QUEUED);
    assert_int_equal(sim_job(sim, job)->planned_start_ms, planned_start_ms);
    sim_run_until_ended(sim, first, 120);
    sim_run(sim, 3);
    sim_assert_places(sim, job, 1, "cpu n1:0 n1:1");
    sim_free(sim);
}

/* One node: a job of one device for 300 s, and one of both that waits for its end. How long others
 * would run follows from their price: one of 20 steps ends before that and starts at once, one of
 * 400 does not. */
static void a_price_says_whether_a_job_ends_in_time(void **state)
{
    struct sim *sim = sim_new(1, 1);
    uint64_t blocked, fits, too_long;

    sim_ask_layouts(sim, price, 0);
    sim->nodes[0].memory_bytes = 1 << 30;
    sim_run(sim, 3);
    (void)submit(sim, 1, 300);
    blocked = submit(sim, 2, 5);
    sim_run(sim, 20);
    assert_true(sim_job(sim, blocked)->planned_start_ms > 0);
    too_long = submit(sim, 1, 400);
    fits = submit(sim, 1, 20);
    sim_run(sim, 2);
    assert_int_equal(sim_job(sim, too_long)->state, HD_JOB_STATE_QUEUED);
    assert_int_equal(sim_job(sim, fits)->state, HD_JOB_STATE_RUNNING);
    sim_free(sim);
}

/* A job of all four devices waits for the two that run, about 285 s, so that none
 * borrows (five minutes at least). On one node 120 steps would take 120 x 1.25 + 60 s, rounded up
 * to 4 minutes; on the two halves that are free they take 120 x 2.5 + 60 s, and the promise would
 * slide. 50 steps end in time there as well. */
static void a_worse_place_is_lent_by_its_own_price(void **state)
{
    uint64_t first;
    struct sim *sim = two_halves(300, 300, &first);
    const uint64_t blocked = submit(sim, 4, 5);
    int64_t planned_start_ms;
    uint64_t too_long, fits;

    sim_run(sim, 2);
    planned_start_ms = sim_job(sim, blocked)->planned_start_ms;
    assert_in_range(planned_start_ms - sim->now.wall_ms, 250000, 299000);
    too_long = submit(sim, 2, 120);
    fits = submit(sim, 2, 50);
    sim_run(sim, 2);
    assert_int_equal(sim_job(sim, too_long)->state, HD_JOB_STATE_QUEUED);
    assert_int_equal(sim_job(sim, fits)->state, HD_JOB_STATE_RUNNING);
    sim_assert_places(sim, fits, 1, "cpu n1:1 n2:1");
    assert_int_equal(sim_job(sim, blocked)->planned_start_ms, planned_start_ms);
    sim_free(sim);
}

/* A job of all four devices waits 1000 s. One device is lent meanwhile; two of two nodes are not,
 * as two would fit on one. */
static void devices_are_lent_for_a_good_place_alone(void **state)
{
    uint64_t first, apart, one;
    struct sim *sim = two_halves(1000, 1000, &first);

    (void)submit(sim, 4, 5);
    apart = submit(sim, 2, 2000);
    sim_run(sim, 2);
    assert_int_equal(sim_job(sim, apart)->state, HD_JOB_STATE_QUEUED);
    one = submit(sim, 1, 2000);
    sim_run(sim, 2);
    assert_int_equal(sim_job(sim, one)->state, HD_JOB_STATE_RUNNING);
    assert_int_equal(sim_count_events(sim, one, "borrowing"), 1);
    sim_free(sim);
}

/* A job of one or two devices could have two halves; the price of two on one node is asked when the
 * halves have theirs, and does not come. The job waits for it half a minute. */
static void a_price_is_not_waited_for_without_end(void **state)
{
    uint64_t first;
    struct sim *sim = two_halves(1000, 500, &first);
    struct hd_job_needs needs = sim_needs(2, 300);
    uint64_t job;

    needs.devices_min = 1;
    sim->plan_delay_s = 1;
    job = sim_submitted(sim, &needs);
    assert_true(sim->question_count > 0);
    for (int i = 0; i < sim->question_count; i++)
        sim->questions[i].due_mono_ms = sim->now.mono_ms + 1000;
    sim->plan_delay_s = 1000000;
    sim_run(sim, 3);
    assert_int_equal(sim->question_count, 1);
    sim->questions[0].due_mono_ms = INT64_MAX;
    sim_run(sim, 20);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_QUEUED);
    assert_true(is_blocked_by(sim, job, HD_CORE_WAITS_PLAN));
    sim_run(sim, 15);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_RUNNING);
    sim_assert_places(sim, job, 1, "cpu n1:1 n2:1");
    sim_free(sim);
}

/* Nothing is free. n1 has jobs of 100 and 240 s, n2 of 150 and 900: two halves open after 150 s,
 * all of n1 after 240 s. Of 300 steps that saves 300 s for 90. */
static void a_kept_place_says_what_it_was_weighed_with(void **state)
{
    struct sim *sim = two_nodes();
    struct hd_text reason = {0};
    uint64_t job;

    (void)submit(sim, 1, 100);
    (void)submit(sim, 1, 240);
    (void)submit(sim, 1, 150);
    (void)submit(sim, 1, 900);
    sim_run(sim, 10);
    job = submit(sim, 2, 300);
    sim_run(sim, 2);
    assert_in_range(sim_job(sim, job)->planned_start_ms - sim->now.wall_ms, 210000, 240000);
    hd_core_explain(sim->core, job, sim->now, &reason);
    assert_non_null(strstr(reason.data, "; could start at "));
    assert_non_null(strstr(reason.data, " on 2 nodes at 2 s a step, but waits for 1 node at 1 s a "
                                        "step, expected free at "));
    hd_text_free(&reason);
    sim_free(sim);
}

/* More devices are faster, also on two nodes. */
static void price_wide(const struct hd_core_asked *asked, struct hd_core_answer *answer)
{
    price(asked, answer);
    answer->step_s = 2.0 / asked->devices;
}

/* A job of two to four devices has one node, and at step 20 of 300 it could have both. By the
 * number of devices it would grow. Where a step takes twice as long on two nodes, it does not. */
static void a_job_grows_by_the_price_of_a_step(void **state)
{
    for (int gains = 0; gains < 2; gains++) {
        struct sim *sim = sim_new(1, 2);
        struct hd_job_needs needs = sim_needs(4, 300);
        uint64_t other, job;

        sim_ask_layouts(sim, gains ? price_wide : price, 0);
        sim->nodes[0].memory_bytes = sim->nodes[1].memory_bytes = 1 << 30;
        sim_run(sim, 3);
        other = submit(sim, 2, 20);
        needs.devices_min = 2;
        job = sim_submitted(sim, &needs);
        assert_int_equal(sim_attempt(sim, job, 1)->plan.rank_count, 2);
        sim_run_until_ended(sim, other, 60);
        sim_run_until_ended(sim, job, 400);
        assert_int_equal(sim_job(sim, job)->attempt_count, gains ? 2 : 1);
        sim_assert_undisturbed(sim, job, 300);
        sim_free(sim);
    }
}

RUN_CASES()
