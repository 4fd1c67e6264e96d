/* core: the order in which jobs start: priorities, queues with limits and shares, jobs that are
 * held, jobs after jobs, time limits. */
#include <stdio.h>
#include <string.h>

#include "sim.h"
#include "tests/program/tells.h"
#include "tests/program/test.h"

static uint64_t submit(struct sim *sim, const char *queue, int priority, int devices, int steps)
{
    struct hd_job_needs needs = sim_needs(devices, steps);

    needs.queue = queue;
    needs.priority = priority;
    return sim_submitted(sim, &needs);
}

static enum hd_job_state state_of(const struct sim *sim, uint64_t job)
{
    return sim_job(sim, job)->state;
}

/* ---- priority ---------------------------------------------------------------------------------*/

/* The node is taken by a job of the highest priority; the others start by theirs, then by age. */
static void the_job_with_the_higher_priority_starts_first(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t first = submit(sim, NULL, 9, 2, 10);
    const uint64_t low = submit(sim, NULL, -5, 2, 5), old = submit(sim, NULL, 0, 2, 5);
    const uint64_t young = submit(sim, NULL, 0, 2, 5), high = submit(sim, NULL, 7, 2, 5);
    const uint64_t order[] = {first, high, old, young, low};

    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(state_of(sim, order[i]), HD_JOB_STATE_RUNNING);
        sim_run_until_ended(sim, order[i], 60);
        sim_run(sim, 2);
    }
    sim_free(sim);
}

/* ---- lengths ----------------------------------------------------------------------------------*/

/* A job that may take so many seconds holds the node, and waits there for its disk. Behind it waits
 * a job that may take ten hours, ten minutes younger is one that may take one hour, and ten minutes
 * later the first one is cancelled: which starts? */
static bool the_short_one_is_first(int first_s)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 5);
    uint64_t first, long_one, short_one;
    bool is_first;

    sim->nodes[0].faults.full_disk = true;
    needs.time_limit_ms = first_s * 1000;
    first = sim_submitted(sim, &needs);
    needs.time_limit_ms = 10 * 3600 * 1000;
    long_one = sim_submitted(sim, &needs);
    sim_run(sim, 600);
    assert_true(sim_job(sim, long_one)->planned_start_ms > 0);
    needs.time_limit_ms = 3600 * 1000;
    short_one = sim_submitted(sim, &needs);
    sim_run(sim, 600);
    assert_int_equal(sim_cancel(sim, first, true), HD_OK);
    sim_run(sim, 5);
    is_first = sim_job(sim, short_one)->attempt_count == 1;
    assert_int_equal(sim_job(sim, long_one)->attempt_count, !is_first);
    sim_free(sim);
    return is_first;
}

/* Then its slowdown is 1 + 600 / 3,660, the long one's 1 + 1,200 / 36,060. */
static void a_short_job_starts_before_a_long_one(void **state)
{
    assert_true(the_short_one_is_first(2 * 3600));
}

/* The long one was expected to start eleven minutes later. */
static void a_job_that_starts_soon_keeps_its_turn(void **state)
{
    assert_false(the_short_one_is_first(1800));
}

/* ---- queues -----------------------------------------------------------------------------------*/

/* Eight devices, weights 1 and 3: when both queues are full, 2 and 6 of them. All of b's jobs are
 * younger than all of a's. */
static void queues_share_devices_by_their_weights(void **state)
{
    struct sim *sim = sim_joined(4);
    const uint64_t all = submit(sim, NULL, 0, 8, 5);
    struct hd_queue_view a, b;
    size_t index;

    assert_int_equal(sim_set_queue(sim, "a", -1, -1, 1), HD_OK);
    assert_int_equal(sim_set_queue(sim, "b", -1, -1, 3), HD_OK);
    for (int i = 0; i < 12; i++)
        (void)submit(sim, "a", 0, 1, 30);
    for (int i = 0; i < 12; i++)
        (void)submit(sim, "b", 0, 1, 30);
    sim_run_until_ended(sim, all, 60);
    sim_run(sim, 3);
    assert_true(hd_core_queue_find(sim->core, "a", &index));
    hd_core_queue_at(sim->core, index, &a);
    assert_true(hd_core_queue_find(sim->core, "b", &index));
    hd_core_queue_at(sim->core, index, &b);
    assert_int_equal(a.devices_held, 2);
    assert_int_equal(b.devices_held, 6);
    assert_int_equal(a.jobs_waiting, 10);
    assert_int_equal(b.jobs_waiting, 6);
    sim_free(sim);
}

/* Two of four devices, which a restart of the controller does not forget. */
static void a_job_beyond_the_limit_of_its_queue_waits(void **state)
{
    struct sim *sim = sim_joined(2);
    uint64_t a, b, other;

    assert_int_equal(sim_set_queue(sim, "small", 2, -1, -1), HD_OK);
    a = submit(sim, "small", 0, 2, 30);
    b = submit(sim, "small", 5, 1, 5);
    other = submit(sim, NULL, 0, 1, 200);
    assert_int_equal(state_of(sim, a), HD_JOB_STATE_RUNNING);
    sim_assert_reason(sim, b,
                      "needs 1 device; queue small holds 2 of the 2 devices that it may hold");
    assert_int_equal(state_of(sim, other), HD_JOB_STATE_RUNNING); /* b keeps nothing */
    sim_controller_crash(sim);
    sim_run(sim, 5);
    assert_int_equal(state_of(sim, b), HD_JOB_STATE_QUEUED);
    sim_run_until_ended(sim, a, 60);
    sim_run(sim, 3);
    assert_int_equal(state_of(sim, b), HD_JOB_STATE_RUNNING);
    assert_int_equal(sim_count_events(sim, 0, "queue_set"), 1);
    sim_free(sim);
}

/* Goal: running jobs go on, and those of other queues start; a waiting job says why, also to a
 * controller that was started anew. A job that has to start again waits, too. */
static void a_closed_queue_starts_nothing(void **state)
{
    struct sim *sim = sim_joined(2);
    uint64_t runs, waits, other;

    assert_int_equal(sim_set_queue(sim, "night", -1, -1, -1), HD_OK);
    runs = submit(sim, "night", 0, 1, 60);
    assert_int_equal(sim_close_queue(sim, "night", true), HD_OK);
    waits = submit(sim, "night", 5, 1, 5);
    other = submit(sim, NULL, 0, 1, 5);
    sim_assert_reason(sim, waits,
                      "queue night is closed: none of its jobs starts; heddle queue set night "
                      "--open");
    sim_run_until_ended(sim, other, 60);
    sim_controller_crash(sim);
    sim_run(sim, 10);
    assert_int_equal(state_of(sim, runs), HD_JOB_STATE_RUNNING);
    assert_int_equal(state_of(sim, waits), HD_JOB_STATE_QUEUED);
    assert_int_equal(sim_set_queue(sim, "night", 4, -1, -1), HD_OK); /* it stays closed */
    assert_int_equal(sim_requeue(sim, runs), HD_OK);
    sim_run(sim, 10);
    assert_int_equal(state_of(sim, runs), HD_JOB_STATE_QUEUED);
    assert_int_equal(sim_close_queue(sim, "night", false), HD_OK);
    sim_run_until_ended(sim, waits, 60);
    sim_run_until_ended(sim, runs, 200);
    assert_int_equal(sim_count_events(sim, 0, "queue_set"), 4);
    sim_free(sim);
}

/* A submission beyond it is refused; lowered below what a job needs that waits already, it is
 * named. */
static void a_limit_below_what_a_job_needs_is_named(void **state)
{
    struct sim *sim = sim_joined(2);
    uint64_t job;

    assert_int_equal(sim_set_queue(sim, "small", 2, -1, -1), HD_OK);
    job = submit(sim, "small", 0, 2, 300);
    sim_run(sim, 5);
    assert_int_equal(sim_hold(sim, job, true), HD_OK);
    assert_int_equal(sim_requeue(sim, job), HD_OK);
    sim_run(sim, 5);
    assert_int_equal(sim_set_queue(sim, "small", 1, -1, -1), HD_OK);
    assert_int_equal(sim_hold(sim, job, false), HD_OK);
    sim_assert_reason(sim, job,
                      "attempt 1 ended (user on n1); needs 2 devices; its queue may hold only 1, "
                      "so it cannot start: raise the "
                      "limit (heddle queue set), or cancel it and ask for fewer or for another "
                      "queue");
    assert_int_equal(sim_set_queue(sim, "small", 2, 1, -1), HD_OK);
    sim_assert_reason(sim, job,
                      "attempt 1 ended (user on n1); needs 2 devices; one user of its queue may "
                      "hold only 1, so it cannot start: "
                      "raise the limit (heddle queue set), or cancel it and ask for fewer or for "
                      "another queue");
    sim_free(sim);
}

/* Not while a job waits or runs in it; then it is gone, also behind a restart, and a job that ended
 * in it goes on in the default one. Made again, it has no limit of before. */
static void a_queue_is_removed_when_it_is_empty(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_queue_view view;
    uint64_t a, b;
    size_t index;

    assert_int_equal(sim_remove_queue(sim, "default"), HD_INVALID);
    assert_int_equal(sim_remove_queue(sim, "small"), HD_NOT_FOUND);
    assert_int_equal(sim_remove_queue(sim, ""), HD_NOT_FOUND);
    assert_string_equal(hd_err_message(), "there is no queue ''; heddle queue ls lists them");
    assert_int_equal(sim_set_queue(sim, "small", 2, -1, 5), HD_OK);
    a = submit(sim, "small", 0, 2, 30);
    b = submit(sim, "small", 0, 2, 30); /* waits: a holds what the queue may */
    assert_int_equal(sim_remove_queue(sim, "small"), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), "2 jobs"));
    sim_run_until_ended(sim, a, 60);
    assert_int_equal(sim_remove_queue(sim, "small"), HD_CONFLICT);
    sim_run_until_ended(sim, b, 60);
    assert_int_equal(sim_remove_queue(sim, "small"), HD_OK);
    assert_false(hd_core_queue_find(sim->core, "small", &index));
    assert_int_equal(sim_count_events(sim, 0, "queue_removed"), 1);
    sim_controller_crash(sim);
    sim_run(sim, 5);
    assert_int_equal(hd_core_queue_count(sim->core), 1);
    assert_int_equal(sim_set_queue(sim, "small", -1, -1, -1), HD_OK);
    assert_true(hd_core_queue_find(sim->core, "small", &index));
    hd_core_queue_at(sim->core, index, &view);
    assert_int_equal(view.record->devices_max, 0);
    assert_int_equal(view.record->weight, 1);
    a = submit(sim, "small", 0, 2, 30);
    assert_int_equal(state_of(sim, a), HD_JOB_STATE_RUNNING);
    assert_int_equal(sim_remove_queue(sim, "small"), HD_CONFLICT);
    sim_free(sim);
}

static void a_job_that_can_never_fit_its_queue_is_refused(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(4, 5);
    uint64_t job;

    assert_int_equal(sim_set_queue(sim, "small", 2, 1, -1), HD_OK);
    needs.queue = "small";
    assert_int_equal(sim_submit(sim, &needs, &job), HD_INVALID);
    assert_tells(hd_err_message(), "resources.devices", "needs 4", "queue small", "2");
    needs = sim_needs(2, 5);
    needs.queue = "small";
    assert_int_equal(sim_submit(sim, &needs, &job), HD_INVALID);
    assert_tells(hd_err_message(), "resources.devices", "needs 2", "one user", "1 in queue small");
    needs.queue = "smal";
    assert_int_equal(sim_submit(sim, &needs, &job), HD_NOT_FOUND);
    sim_free(sim);
}

/* Ann may hold one device; Bob's is his own. A job of {min 1, max 2} gets what is left. */
static void a_user_beyond_his_limit_waits(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs elastic = sim_needs(2, 30);
    uint64_t first, second, bobs;

    assert_int_equal(sim_set_queue(sim, "default", -1, 1, -1), HD_OK);
    elastic.devices_min = 1;
    first = sim_submitted(sim, &elastic);
    second = submit(sim, NULL, 0, 1, 5);
    sim->owner = "bob";
    bobs = submit(sim, NULL, 0, 1, 30);
    assert_int_equal(sim_attempt(sim, first, 1)->plan.rank_count, 1);
    sim_assert_reason(sim, second,
                      "needs 1 device; ann holds 1 of the 1 devices that one user may hold in "
                      "queue default");
    assert_int_equal(state_of(sim, bobs), HD_JOB_STATE_RUNNING);
    assert_int_equal(sim_set_queue(sim, "default", -1, 0, -1), HD_OK); /* no limit any more */
    assert_int_equal(state_of(sim, second), HD_JOB_STATE_RUNNING);
    sim_free(sim);
}

static void there_are_as_many_queues_as_may_be(void **state)
{
    struct sim *sim = sim_joined(1);
    char name[16];

    sim->slow_store = true; /* the simulated store has room for few */
    for (int i = 1; i < HD_CTL_QUEUES_MAX; i++) {
        (void)snprintf(name, sizeof name, "q%d", i);
        assert_int_equal(sim_set_queue(sim, name, -1, -1, -1), HD_OK);
    }
    assert_int_equal(sim_set_queue(sim, "more", -1, -1, -1), HD_LIMIT);
    assert_int_equal(sim_set_queue(sim, "q1", 5, -1, -1), HD_OK);
    assert_int_equal(sim_set_queue(sim, "a b", -1, -1, -1), HD_INVALID);
    assert_int_equal(sim_set_queue(sim, "q1", -1, -1, 1001), HD_INVALID);
    sim_free(sim);
}

/* ---- hold and release -------------------------------------------------------------------------*/

static void a_held_job_is_not_started(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t first = submit(sim, NULL, 0, 2, 5), held = submit(sim, NULL, 0, 2, 5);
    const uint64_t later = submit(sim, NULL, 0, 1, 60);

    assert_int_equal(sim_hold(sim, held, true), HD_OK);
    assert_int_equal(sim_hold(sim, held, true), HD_OK); /* changes nothing */
    sim_run_until_ended(sim, first, 60);
    sim_run(sim, 5);
    assert_int_equal(state_of(sim, held), HD_JOB_STATE_QUEUED);
    assert_int_equal(state_of(sim, later), HD_JOB_STATE_RUNNING); /* it keeps no devices */
    sim_assert_reason(sim, held, "held; heddle release 2 lets it start");
    sim_controller_crash(sim);
    sim_run(sim, 10);
    assert_int_equal(state_of(sim, held), HD_JOB_STATE_QUEUED);
    assert_int_equal(sim_hold(sim, held, false), HD_OK);
    sim_run_until_ended(sim, held, 200);
    sim_assert_undisturbed(sim, held, 5);
    assert_int_equal(sim_count_events(sim, held, "held"), 1);
    assert_int_equal(sim_count_events(sim, held, "released"), 1);
    sim_free(sim);
}

static void a_held_job_that_runs_goes_on(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t job = submit(sim, NULL, 0, 1, 30);

    sim_run(sim, 5);
    assert_int_equal(sim_hold(sim, job, true), HD_OK);
    sim_run(sim, 5);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_RUNNING);
    assert_int_equal(sim_requeue(sim, job), HD_OK);
    sim_run(sim, 10);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_QUEUED); /* now it waits, and is held */
    assert_int_equal(sim_hold(sim, job, false), HD_OK);
    sim_run_until_ended(sim, job, 100);
    sim_assert_undisturbed(sim, job, 30);
    sim_free(sim);
}

static void a_cancelled_job_cannot_be_held(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t job = submit(sim, NULL, 0, 1, 30);

    sim_run(sim, 5);
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    assert_int_equal(sim_hold(sim, job, true), HD_CONFLICT); /* it stops, and does not wait again */
    assert_string_equal(hd_err_message(), "job 1 is being cancelled: it does not start again");
    sim_run_until_ended(sim, job, 30);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_CANCELLED);
    sim_free(sim);
}

/* ---- arrays -----------------------------------------------------------------------------------*/

static uint64_t submit_member(struct sim *sim, int at_once, int priority, int steps)
{
    struct hd_job_needs needs = sim_needs(1, steps);

    needs.array = "lr";
    needs.array_at_once = at_once;
    needs.priority = priority;
    return sim_submitted(sim, &needs);
}

static int count_running(struct sim *sim, uint64_t first, uint64_t last)
{
    int count = 0;

    for (uint64_t job = first; job <= last; job++)
        count += state_of(sim, job) == HD_JOB_STATE_RUNNING;
    return count;
}

/* Two nodes have four devices, and an array of jobs of one device leaves two of them to others. The
 * limit survives a restart, after which the members that run are known before those that wait. */
static void no_more_members_of_an_array_run_than_it_allows(void **state)
{
    struct sim *sim = sim_joined(2);
    const uint64_t first = submit_member(sim, 2, 0, 20), second = submit_member(sim, 2, 0, 60);
    const uint64_t third = submit_member(sim, 2, 0, 60), fourth = submit_member(sim, 2, 0, 5);
    const uint64_t other = submit(sim, NULL, 0, 1, 60);

    sim_run(sim, 8);
    assert_int_equal(state_of(sim, first), HD_JOB_STATE_RUNNING);
    assert_int_equal(state_of(sim, second), HD_JOB_STATE_RUNNING);
    assert_int_equal(count_running(sim, first, fourth), 2);
    assert_int_equal(state_of(sim, other), HD_JOB_STATE_RUNNING);
    sim_assert_reason(sim, third,
                      "2 jobs of its array lr run or start next, and array.at_once allows no more "
                      "than 2");
    sim_controller_crash(sim);
    sim_run(sim, 5);
    assert_int_equal(count_running(sim, first, fourth), 2);
    sim_run_until_ended(sim, first, 60);
    sim_run(sim, 5);
    assert_int_equal(state_of(sim, third), HD_JOB_STATE_RUNNING);
    assert_int_equal(state_of(sim, fourth), HD_JOB_STATE_QUEUED);
    sim_run_until_ended(sim, fourth, 150);
    sim_assert_undisturbed(sim, fourth, 5);
    sim_free(sim);
}

/* A held member is passed over, the higher priority comes first, and what the newest member allows
 * counts for all. */
static void members_of_an_array_start_by_priority_and_number(void **state)
{
    struct sim *sim = sim_joined(2);
    const uint64_t first = submit_member(sim, 1, 0, 20), second = submit_member(sim, 1, 0, 100);
    const uint64_t third = submit_member(sim, 1, 0, 100), urgent = submit_member(sim, 1, 5, 100);

    assert_int_equal(sim_hold(sim, second, true), HD_OK);
    sim_run_until_ended(sim, first, 60);
    sim_run(sim, 5);
    assert_int_equal(state_of(sim, urgent), HD_JOB_STATE_RUNNING);
    assert_int_equal(count_running(sim, second, urgent), 1);
    (void)submit_member(sim, 2, 0, 100);
    sim_run(sim, 8);
    assert_int_equal(state_of(sim, third), HD_JOB_STATE_RUNNING);
    assert_int_equal(count_running(sim, second, urgent + 1), 2);
    (void)submit_member(sim, 0, 0, 100);
    assert_int_equal(sim_hold(sim, second, false), HD_OK);
    sim_run(sim, 8);
    assert_int_equal(count_running(sim, second, urgent + 2), 4); /* as many as there are devices */
    sim_free(sim);
}

/* The limit of a member that has ended counts no more, so that a restart, which forgets the member,
 * lets the same others start. */
static void a_member_that_has_ended_allows_nothing(void **state)
{
    struct sim *sim = sim_joined(2);
    const uint64_t first = submit_member(sim, 1, 0, 200), second = submit_member(sim, 1, 0, 20);
    const uint64_t third = submit_member(sim, 1, 0, 20), newest = submit_member(sim, 2, 5, 10);

    sim_run_until_ended(sim, newest, 60);
    sim_run(sim, 8);
    assert_int_equal(state_of(sim, first), HD_JOB_STATE_RUNNING);
    assert_int_equal(state_of(sim, second), HD_JOB_STATE_QUEUED);
    sim_controller_crash(sim);
    sim_run(sim, 8);
    assert_int_equal(state_of(sim, first), HD_JOB_STATE_RUNNING);
    assert_int_equal(count_running(sim, second, third), 0);
    assert_int_equal(sim_job(sim, second)->attempt_count, 0);
    sim_free(sim);
}

/* A job of no array has both devices of the node, so a member that may start waits for them; one of
 * higher priority that is submitted meanwhile takes its place. */
static void a_member_that_waits_for_devices_gives_its_place_to_an_urgent_one(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t other = submit(sim, NULL, 5, 2, 30);
    const uint64_t first = submit_member(sim, 1, 0, 100), urgent = submit_member(sim, 1, 5, 100);

    sim_run(sim, 5);
    assert_int_equal(state_of(sim, other), HD_JOB_STATE_RUNNING);
    sim_assert_reason(sim, first,
                      "1 job of its array lr runs or starts next, and array.at_once allows no more "
                      "than 1");
    sim_run_until_ended(sim, other, 90);
    sim_run(sim, 5);
    assert_int_equal(state_of(sim, urgent), HD_JOB_STATE_RUNNING);
    assert_int_equal(state_of(sim, first), HD_JOB_STATE_QUEUED);
    sim_free(sim);
}

/* ---- jobs after jobs --------------------------------------------------------------------------*/

static uint64_t submit_after(struct sim *sim, uint64_t a, uint64_t b)
{
    struct hd_job_needs needs = sim_needs(1, 5);

    needs.after[needs.after_count++] = a;
    if (b)
        needs.after[needs.after_count++] = b;
    return sim_submitted(sim, &needs);
}

/* The wait for the second of two jobs survives a restart of the controller, after which the first
 * one is known from the store alone. */
static void a_job_starts_when_those_before_it_have_succeeded(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t a = submit(sim, NULL, 0, 1, 5), b = submit(sim, NULL, 0, 1, 30);
    const uint64_t job = submit_after(sim, a, b);

    sim_assert_reason(sim, job, "waits for jobs 1, 2 to succeed");
    sim_run_until_ended(sim, a, 30);
    sim_run(sim, 3);
    sim_assert_reason(sim, job, "waits for job 2 to succeed");
    sim_controller_crash(sim);
    sim_run(sim, 3);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_QUEUED);
    sim_run_until_ended(sim, b, 60);
    sim_run_until_ended(sim, job, 60);
    sim_assert_undisturbed(sim, job, 5);
    sim_free(sim);
}

/* And so are those that come after it. */
static void a_job_is_cancelled_when_one_before_it_does_not_succeed(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t a = submit(sim, NULL, 0, 1, 50), b = submit_after(sim, a, 0);
    const uint64_t c = submit_after(sim, b, 0);
    struct hd_job_needs needs = sim_needs(1, 5);
    uint64_t refused;

    sim_run(sim, 5);
    assert_int_equal(sim_cancel(sim, a, false), HD_OK);
    sim_run_until_ended(sim, a, 30);
    assert_int_equal(state_of(sim, b), HD_JOB_STATE_CANCELLED);
    assert_tells(sim_job(sim, b)->reason, "after", "job 1 was cancelled");
    assert_int_equal(state_of(sim, c), HD_JOB_STATE_CANCELLED);
    needs.after[needs.after_count++] = a;
    assert_int_equal(sim_submit(sim, &needs, &refused), HD_INVALID);
    assert_tells(hd_err_message(), "after", "job 1 was cancelled", "heddle resume 1",
                 "--set after=");
    needs.after[0] = 99;
    assert_int_equal(sim_submit(sim, &needs, &refused), HD_NOT_FOUND);
    sim_free(sim);
}

/* Also one that has run before: it is asked for anew, and after other jobs. Not after itself, by
 * whichever way. What has started goes on, whatever becomes of those. */
static void a_resumed_job_waits_for_those_that_it_names(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t job = submit(sim, NULL, 0, 1, 5), other = submit(sim, NULL, 0, 1, 40);
    struct hd_job_needs needs = sim_needs(1, 10), second = sim_needs(1, 60);

    sim_run_until_ended(sim, job, 30);
    needs.after[needs.after_count++] = job;
    assert_int_equal(sim_resume(sim, job, &needs), HD_INVALID);
    needs.after[0] = other;
    assert_int_equal(sim_resume(sim, job, &needs), HD_OK);
    sim_run(sim, 3);
    sim_assert_reason(sim, job, "attempt 1 ended (completed); waits for job 2 to succeed");
    sim_controller_crash(sim);
    sim_run(sim, 3);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_QUEUED);
    assert_int_equal(sim_cancel(sim, job, false), HD_OK);
    assert_int_equal(sim_resume(sim, job, &needs), HD_OK);
    sim_run_until_ended(sim, other, 60);
    second.after[second.after_count++] = job;
    assert_int_equal(sim_resume(sim, other, &second), HD_OK); /* both could wait for one another */
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_SUCCEEDED);
    sim_run_until_ended(sim, other, 120);
    assert_int_equal(state_of(sim, other), HD_JOB_STATE_SUCCEEDED);
    sim_free(sim);
}

static void jobs_do_not_wait_for_one_another(void **state)
{
    struct sim *sim = sim_joined(1);
    const uint64_t a = submit(sim, NULL, 0, 1, 5), b = submit(sim, NULL, 0, 1, 5);
    const uint64_t blocker = submit(sim, NULL, 0, 1, 90);
    struct hd_job_needs of_a = sim_needs(1, 10), of_b = sim_needs(1, 10);

    sim_run_until_ended(sim, a, 30);
    sim_run_until_ended(sim, b, 30);
    of_a.after[of_a.after_count++] = blocker;
    of_a.after[of_a.after_count++] = b;
    of_b.after[of_b.after_count++] = a;
    assert_int_equal(sim_resume(sim, a, &of_a), HD_OK);
    assert_int_equal(sim_resume(sim, b, &of_b), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "job 2 would wait for itself"));
    assert_int_equal(sim_hold(sim, a, true),
                     HD_OK); /* it waits for b all the same, once released */
    assert_int_equal(sim_resume(sim, b, &of_b), HD_INVALID);
    sim_free(sim);
}

/* ---- time limits ------------------------------------------------------------------------------*/

/* 20 s of running time, a step a second: the checkpoint is of a step near 20, and the end says so.
 * A resume gives the time anew. */
static void a_job_ends_at_its_time_limit_with_a_checkpoint(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(1, 30);
    uint64_t job;

    needs.time_limit_ms = 20000;
    job = sim_submitted(sim, &needs);
    sim_run(sim, 10);
    assert_int_equal(sim_requeue(sim, job), HD_OK); /* both attempts count */
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_FAILED);
    assert_int_equal(sim_job(sim, job)->attempt_count, 2);
    assert_int_equal(sim_attempt(sim, job, 2)->end.cause, HD_END_CAUSE_TIME_LIMIT);
    assert_in_range(sim_attempt(sim, job, 2)->ended_ms - sim_attempt(sim, job, 2)->running_ms +
                        sim_attempt(sim, job, 1)->ended_ms - sim_attempt(sim, job, 1)->running_ms,
                    20000, 23000);
    assert_non_null(strstr(sim_job(sim, job)->reason, " of 20.0s; its newest checkpoint"));
    assert_int_equal(sim_resume(sim, job, &needs), HD_OK);
    sim_run_until_ended(sim, job, 60);
    sim_assert_undisturbed(sim, job, 30);
    sim_free(sim);
}

/* Goal: a job has run for as long as it has run, and is expected when it is expected. Method: while
 * a job with a limit of 30 s runs and another one waits for its devices, the machine's clock is set
 * an hour ahead, later two hours back. */
static void a_clock_that_is_set_ends_no_job(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 60);
    int64_t begin_mono_ms, left_ms;
    uint64_t job, waits;

    needs.time_limit_ms = 30000;
    job = sim_submitted(sim, &needs);
    sim_run(sim, 5);
    waits = submit(sim, NULL, 0, 2, 5);
    sim_run(sim, 3);
    begin_mono_ms = sim->now.mono_ms;
    left_ms = sim_job(sim, waits)->planned_start_ms - sim->now.wall_ms;
    sim->now.wall_ms += 3600 * 1000;
    sim_run(sim, 2);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_RUNNING);
    assert_int_equal(sim_job(sim, waits)->planned_start_ms - sim->now.wall_ms, left_ms - 2000);
    assert_int_equal(sim_count_events(sim, 0, "clock_set"), 1);
    sim->now.wall_ms -= 7200 * 1000;
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(state_of(sim, job), HD_JOB_STATE_FAILED);
    assert_in_range(sim->now.mono_ms - begin_mono_ms, 20000, 30000);
    assert_int_equal(sim_count_events(sim, waits, "start_moved"), 2); /* with the clock */
    assert_int_equal(sim_count_events(sim, 0, "clock_set"), 2);
    sim_run_until_ended(sim, waits, 60);
    sim_free(sim);
}

/* The rank hangs at step 4; n1 is cut off meanwhile, so that the limit comes first. The reason of
 * the job names the hang, and no checkpoint of step 0. */
static void a_time_limit_hides_no_hang(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(1, 60);
    char expected[256];
    uint64_t job;

    needs.time_limit_ms = 8000;
    sim->nodes[0].faults = (struct sim_faults){.fail_at_step = 4, .fail_count = 1, .hangs = true};
    job = sim_submitted(sim, &needs);
    while (!sim_count_steps(sim, job, 3))
        sim_second(sim);
    sim->nodes[0].cut = true;
    sim_run(sim, 10);
    assert_int_equal(sim_count_events(sim, job, "time_limit"), 1);
    sim->nodes[0].cut = false;
    sim_run_until_ended(sim, job, 60);
    (void)snprintf(
        expected, sizeof expected,
        "(hang: rank 0 on n1, device 0: silent); it has no checkpoint; all its steps are "
        "lost; heddle resume %llu lets it run for another 8.0s, from its first step",
        (unsigned long long)job);
    assert_non_null(strstr(sim_job(sim, job)->reason, expected));
    assert_non_null(strstr(sim_job(sim, job)->reason,
                           " of 8.0s; attempt 1 wrote no checkpoint at its end (hang"));
    sim_free(sim);
}

/* Its ranks do not come to the end of a step, and are killed after 300 s: the steps since the
 * checkpoint of step 5 are lost. */
static void a_job_that_is_killed_at_its_time_limit_says_so(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(1, 60);
    const char *reason;
    uint64_t job;

    needs.time_limit_ms = 8000;
    sim->nodes[0].faults.save_s = 1000;
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 400);
    reason = sim_job(sim, job)->reason;
    assert_non_null(strstr(reason, "attempt 1 did not stop within 300 s and was killed"));
    assert_non_null(
        strstr(reason, "its newest checkpoint is of step 5 of 60; the steps after that are lost"));
    sim_free(sim);
}

/* ---- nodes that fail a job --------------------------------------------------------------------*/

static void there_is_no_third_try_where_it_failed_twice(void **state)
{
    struct sim *sim = sim_joined(2);
    const uint64_t job = submit(sim, NULL, 0, 1, 12);

    sim->nodes[0].faults = (struct sim_faults){.fail_at_step = 8, .fail_count = 100};
    sim_run_until_ended(sim, job, 100);
    sim_assert_places(sim, job, 1, "cpu n1:0");
    sim_assert_places(sim, job, 2, "cpu n1:0");
    sim_assert_places(sim, job, 3, "cpu n2:0");
    sim_assert_undisturbed(sim, job, 12);
    sim_free(sim);
}

RUN_CASES()
