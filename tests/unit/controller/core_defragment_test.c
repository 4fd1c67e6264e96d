/* core: running jobs move, so that a gang can start where it is together. */
#include <string.h>

#include "sim.h"
#include "tests/program/test.h"

/* Stands for plan/best.h: a step takes a second on one node or on one switch's nodes, and two
 * seconds on nodes further apart. */
static void price(const struct hd_core_asked *asked, struct hd_core_answer *answer)
{
    answer->fits = true;
    answer->step_s = asked->tier > (asked->devices > 2) ? 2 : 1;
    assert_int_equal(hd_plan_size(&asked->wish, asked->devices, &answer->layout), HD_PLAN_FITS);
}

static uint64_t submit_at(struct sim *sim, int devices, int steps, int priority)
{
    struct hd_job_needs needs = sim_needs(devices, steps);

    needs.priority = priority;
    return sim_submitted(sim, &needs);
}

static uint64_t submit(struct sim *sim, int devices, int steps)
{
    return submit_at(sim, devices, steps, 0);
}

/* So many nodes of two devices, two at each switch. */
static struct sim *open_sim(int nodes)
{
    static const struct hd_node_tree tree = {.tier_count = 1,
                                             .tier_nodes = {2},
                                             .tiers = {{.name = "leaf"}},
                                             .group_count = 1,
                                             .groups = {{.names = "n[1-4]"}}};
    struct sim *sim = sim_new(1, nodes);

    sim->config.tree = &tree;
    sim_ask_layouts(sim, price, 0);
    for (int n = 0; n < nodes; n++)
        sim->nodes[n].memory_bytes = 1 << 30;
    sim_run(sim, 3);
    return sim;
}

/* Two nodes, one device of each is free: on the others are jobs of 400 steps. */
static struct sim *two_halves(int priority, uint64_t ret_jobs[2])
{
    struct sim *sim = open_sim(2);
    uint64_t gone;

    ret_jobs[0] = submit_at(sim, 1, 400, priority);
    gone = submit_at(sim, 1, 400, priority);
    ret_jobs[1] = submit_at(sim, 1, 400, priority);
    assert_int_equal(sim_cancel(sim, gone, true), HD_OK);
    sim_run(sim, 10);
    sim_assert_places(sim, ret_jobs[0], 1, "cpu n1:0");
    sim_assert_places(sim, ret_jobs[1], 1, "cpu n2:0");
    return sim;
}

static bool is_running(const struct sim *sim, uint64_t job)
{
    return sim_job(sim, job)->state == HD_JOB_STATE_RUNNING;
}

/* 200 steps take 400 s on the halves and 200 s on one node: the job on n1 goes to n2. */
static void a_job_moves_so_that_another_has_one_node(void **state)
{
    uint64_t jobs[2];
    struct sim *sim = two_halves(0, jobs);
    uint64_t pair;
    struct hd_text reason = {0};

    sim_run(sim, 100);
    pair = submit(sim, 2, 200);
    assert_int_equal(sim_job(sim, pair)->state, HD_JOB_STATE_QUEUED);
    assert_int_equal(sim_count_events(sim, pair, "gathering"), 1);
    assert_int_equal(sim_count_events(sim, jobs[0], "moving"), 1);
    hd_core_explain(sim->core, jobs[0], sim->now, &reason);
    assert_non_null(strstr(reason.data, "moves to other nodes"));
    hd_text_free(&reason);
    sim_run(sim, 45);
    sim_assert_places(sim, pair, 1, "cpu n1:0 n1:1");
    sim_assert_places(sim, jobs[0], 2, "cpu n2:1");
    assert_int_equal(sim_attempt(sim, jobs[0], 1)->end.cause, HD_END_CAUSE_PREEMPTED);
    sim_run_until_ended(sim, pair, 800);
    sim_run_until_ended(sim, jobs[0], 1000);
    sim_assert_undisturbed(sim, pair, 200);
    sim_assert_undisturbed(sim, jobs[0], 400);
    sim_free(sim);
}

/* n1 | n3 hold gangs' halves: a gang of four devices would be at two switches. One of n3 moves to
 * n2, or one of n1 to n4, and it is at one. */
static void a_gang_is_at_one_switch(void **state)
{
    struct sim *sim = open_sim(4);
    uint64_t gone, left, right, gang;

    left = submit(sim, 2, 400);
    gone = submit(sim, 2, 500);
    right = submit(sim, 2, 400);
    assert_int_equal(sim_cancel(sim, gone, true), HD_OK);
    sim_run(sim, 100);
    sim_assert_places(sim, left, 1, "cpu n1:0 n1:1");
    sim_assert_places(sim, right, 1, "cpu n3:0 n3:1");
    gang = submit(sim, 4, 200);
    sim_run(sim, 45);
    sim_assert_places(sim, gang, 1, "cpu n1:0 n1:1 n2:0 n2:1");
    sim_assert_places(sim, left, 2, "cpu n4:0 n4:1");
    assert_int_equal(sim_job(sim, right)->attempt_count, 1);
    sim_run_until_ended(sim, gang, 1200);
    sim_assert_undisturbed(sim, gang, 200);
    sim_free(sim);
}

/* n1 is full; on the other nodes are jobs of a higher priority, and a pair would start beside two of
 * them. Both jobs of n1 move there. */
static void a_node_without_a_free_device_is_cleared(void **state)
{
    struct sim *sim = open_sim(4);
    uint64_t jobs[8], pair;

    for (int k = 0; k < 8; k++)
        jobs[k] = submit_at(sim, 1, 900, k >= 2);
    assert_int_equal(sim_cancel(sim, jobs[3], true), HD_OK);
    assert_int_equal(sim_cancel(sim, jobs[5], true), HD_OK);
    sim_run(sim, 100);
    sim_assert_places(sim, jobs[0], 1, "cpu n1:0");
    sim_assert_places(sim, jobs[1], 1, "cpu n1:1");
    pair = submit(sim, 2, 600);
    assert_int_equal(sim_count_events(sim, pair, "gathering"), 1);
    sim_run(sim, 45);
    sim_assert_places(sim, pair, 1, "cpu n1:0 n1:1");
    sim_assert_places(sim, jobs[0], 2, "cpu n2:1");
    sim_assert_places(sim, jobs[1], 2, "cpu n3:1");
    sim_free(sim);
}

/* The gain is less than twice the cost, or those that could move have a higher priority, or have
 * only just started: the pair starts on the two halves. */
static void none_moves_for_little_or_of_higher_priority_or_soon(void **state)
{
    static const struct {
        int steps, priority, ran_s;
    } cases[] = {{20, 0, 100}, {200, 1, 100}, {200, 0, 0}};

    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        uint64_t jobs[2], pair;
        struct sim *sim = two_halves(cases[k].priority, jobs);

        sim_run(sim, cases[k].ran_s);
        pair = submit(sim, 2, cases[k].steps);
        assert_true(is_running(sim, pair));
        sim_assert_places(sim, pair, 1, "cpu n1:1 n2:1");
        assert_int_equal(sim_count_events(sim, pair, "gathering"), 0);
        sim_free(sim);
    }
}

/* Both running jobs end in 15 s: the pair asks neither to move, and starts when the first of them
 * has ended. */
static void none_moves_that_ends_sooner(void **state)
{
    uint64_t jobs[2], pair;
    struct sim *sim = two_halves(0, jobs);

    sim_run(sim, 375);
    pair = submit(sim, 2, 200);
    assert_false(is_running(sim, pair));
    sim_run_until_ended(sim, jobs[0], 30);
    sim_run(sim, 3);
    sim_assert_places(sim, pair, 1, "cpu n1:0 n1:1");
    assert_int_equal(sim_count_events(sim, pair, "gathering"), 0);
    assert_int_equal(sim_job(sim, jobs[0])->attempt_count, 1);
    sim_free(sim);
}

/* A third job comes while the first moves: it gets neither place. */
static void nobody_comes_between(void **state)
{
    uint64_t jobs[2];
    struct sim *sim = two_halves(0, jobs);
    uint64_t pair, third;

    sim_run(sim, 100);
    pair = submit(sim, 2, 200);
    third = submit(sim, 1, 5);
    sim_run(sim, 45);
    sim_assert_places(sim, pair, 1, "cpu n1:0 n1:1");
    sim_assert_places(sim, jobs[0], 2, "cpu n2:1");
    assert_int_equal(sim_job(sim, third)->state, HD_JOB_STATE_QUEUED);
    sim_free(sim);
}

/* While the first job moves, the pair or the mover is cancelled, the controller is killed, or a
 * node is lost: all other jobs run to their ends. */
static void each_goes_on_without_the_others(void **state)
{
    enum { PAIR_CANCELLED, MOVER_CANCELLED, CONTROLLER_KILLED, NODE_LOST, CASES };

    for (int k = 0; k < CASES; k++) {
        uint64_t jobs[2], pair;
        struct sim *sim = two_halves(0, jobs);

        sim_run(sim, 100);
        pair = submit(sim, 2, 200);
        sim_run(sim, 1);
        assert_int_equal(sim_count_events(sim, pair, "gathering"), 1);
        if (k == PAIR_CANCELLED)
            assert_int_equal(sim_cancel(sim, pair, false), HD_OK);
        else if (k == MOVER_CANCELLED)
            assert_int_equal(sim_cancel(sim, jobs[0], false), HD_OK);
        else if (k == CONTROLLER_KILLED)
            sim_controller_crash(sim);
        else
            sim_reboot(sim, &sim->nodes[1]);
        sim_run_until_ended(sim, pair, 3000);
        sim_run_until_ended(sim, jobs[0], 3000);
        sim_run_until_ended(sim, jobs[1], 3000);
        if (k != PAIR_CANCELLED)
            sim_assert_undisturbed(sim, pair, 200);
        if (k != MOVER_CANCELLED)
            sim_assert_undisturbed(sim, jobs[0], 400);
        sim_assert_undisturbed(sim, jobs[1], 400);
        assert_int_equal(hd_core_check(sim->core), HD_OK);
        sim_free(sim);
    }
}

/* Who is held, or is in a queue that is closed or that holds more than it may, would not start
 * again. Their gang starts where it can. */
static void none_moves_that_could_not_start_again(void **state)
{
    enum { HELD, CLOSED, OVER_QUOTA, CASES };

    for (int k = 0; k < CASES; k++) {
        struct sim *sim = open_sim(2);
        struct hd_job_needs needs = sim_needs(1, 400);
        uint64_t jobs[2], gone, pair;

        needs.queue = "wide";
        assert_int_equal(sim_set_queue(sim, "wide", -1, -1, 1), HD_OK);
        jobs[0] = sim_submitted(sim, &needs);
        gone = submit(sim, 1, 400);
        jobs[1] = sim_submitted(sim, &needs);
        assert_int_equal(sim_cancel(sim, gone, true), HD_OK);
        sim_run(sim, 110);
        for (int j = 0; k == HELD && j < 2; j++)
            assert_int_equal(sim_hold(sim, jobs[j], true), HD_OK);
        if (k == CLOSED)
            assert_int_equal(sim_close_queue(sim, "wide", true), HD_OK);
        if (k == OVER_QUOTA)
            assert_int_equal(sim_set_queue(sim, "wide", -1, 1, 1), HD_OK);
        pair = submit(sim, 2, 200);
        assert_true(is_running(sim, pair));
        assert_int_equal(sim_count_events(sim, pair, "gathering"), 0);
        sim_run_until_ended(sim, jobs[0], 1000);
        assert_int_equal(sim_job(sim, jobs[0])->attempt_count, 1);
        sim_free(sim);
    }
}

/* While the first moves it is cancelled or held, or its queue is closed: nothing is kept for it
 * then, and who waits behind it starts. */
static void nothing_is_kept_for_one_that_does_not_start(void **state)
{
    enum { CANCELLED, HELD, CLOSED, CASES };

    for (int k = 0; k < CASES; k++) {
        struct sim *sim = open_sim(2);
        struct hd_job_needs needs = sim_needs(1, 400);
        uint64_t first, gone, pair, third;

        needs.queue = "wide";
        assert_int_equal(sim_set_queue(sim, "wide", -1, -1, 1), HD_OK);
        first = sim_submitted(sim, &needs);
        gone = submit(sim, 1, 400);
        (void)submit(sim, 1, 400);
        assert_int_equal(sim_cancel(sim, gone, true), HD_OK);
        sim_run(sim, 110);
        pair = submit(sim, 2, 200);
        assert_int_equal(sim_count_events(sim, first, "moving"), 1);
        third = submit(sim, 1, 5);
        assert_false(is_running(sim, third));
        if (k == CANCELLED)
            assert_int_equal(sim_cancel(sim, first, false), HD_OK);
        else if (k == HELD)
            assert_int_equal(sim_hold(sim, first, true), HD_OK);
        else
            assert_int_equal(sim_close_queue(sim, "wide", true), HD_OK);
        assert_true(is_running(sim, third));
        sim_run(sim, 60);
        sim_assert_places(sim, pair, 1, "cpu n1:0 n1:1");
        assert_int_equal(sim_job(sim, third)->state, HD_JOB_STATE_SUCCEEDED);
        if (k != CANCELLED) {
            assert_int_equal(sim_hold(sim, first, false), HD_OK);
            assert_int_equal(sim_close_queue(sim, "wide", false), HD_OK);
            sim_run_until_ended(sim, first, 1000);
            sim_assert_undisturbed(sim, first, 400);
        }
        sim_free(sim);
    }
}

/* A place with less memory is not as good as its own. */
static void none_moves_to_smaller_devices(void **state)
{
    struct sim *sim = sim_new(1, 2);
    uint64_t first, gone, second, pair;

    sim_ask_layouts(sim, price, 0);
    sim->nodes[0].memory_bytes = 1 << 30;
    sim->nodes[1].memory_bytes = 1 << 29;
    sim_run(sim, 3);
    first = submit_at(sim, 1, 400, 0);
    gone = submit_at(sim, 1, 400, 0);
    second = submit_at(sim, 1, 400, 1);
    assert_int_equal(sim_cancel(sim, gone, true), HD_OK);
    sim_run(sim, 110);
    sim_assert_places(sim, first, 1, "cpu n1:0");
    sim_assert_places(sim, second, 1, "cpu n2:0");
    pair = submit(sim, 2, 200);
    assert_int_equal(sim_count_events(sim, pair, "gathering"), 0);
    assert_int_equal(sim_count_events(sim, first, "moving"), 0);
    sim_free(sim);
}

RUN_CASES()
