/* Which ranks are stragglers, on clocks of the test: simulated ranks that are slow, and machines on
 * which all are slow now and then. */
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "tests/program/test.h"
#include "train/straggler.h"

enum { WORLD_MAX = 8, HEALTHY_STEPS = 20000 };

/* ---- a simulated machine ---- */

struct machine {
    int world, stages;
    double step_ms;              /* of work */
    double jitter;               /* each rank's work varies by so much, up and down */
    double busy_chance;          /* that something else runs beside a rank for a step, ... */
    double busy_most;            /* ... and lengthens it by up to this share */
    int burst_every, burst_most; /* something runs beside one rank for up to so many steps */
    bool takes_turns;            /* in each step one rank or another is late by half of it */
    uint64_t numbers;            /* drawn so far */
    int burst_rank, burst_left, burst_gap;
    double slow[WORLD_MAX]; /* factor of a rank that is slow; 0: 1 */
};

static double draw(struct machine *m)
{
    return hd_random_uniform(1, ++m->numbers);
}

static void next_burst(struct machine *m)
{
    if (m->burst_left > 0 && --m->burst_left == 0)
        m->burst_gap = m->burst_every / 2 + (int)(draw(m) * m->burst_every);
    if (m->burst_every && m->burst_left == 0 && m->burst_gap-- <= 0) {
        m->burst_rank = (int)(draw(m) * m->world);
        m->burst_left = 1 + (int)(draw(m) * m->burst_most);
    }
}

/* Takes one step in which each rank is busy for its time; returns the duration of the step, which
 * the slowest rank sets. A later stage does half as much again, by design. */
static double one_step(struct machine *m, double ret_busy_ms[WORLD_MAX])
{
    const int turn = (int)(draw(m) * m->world);
    double longest = 0;

    next_burst(m);
    for (int r = 0; r < m->world; r++) {
        const int stage = r * m->stages / m->world;
        double ms = m->step_ms * (1 + 0.5 * stage) * (1 + m->jitter * (2 * draw(m) - 1));

        if (draw(m) < m->busy_chance)
            ms *= 1 + m->busy_most * draw(m);
        if (m->burst_left > 0 && r == m->burst_rank)
            ms *= 2;
        if (m->takes_turns && r == turn)
            ms *= 1.5;
        ms *= m->slow[r] > 0 ? m->slow[r] : 1;
        ret_busy_ms[r] = ms;
        longest = ms > longest ? ms : longest;
    }
    return longest;
}

static struct hd_stragglers *watch_of(const struct machine *m)
{
    struct hd_stragglers *watch;
    int stage_of[WORLD_MAX];

    for (int r = 0; r < m->world; r++)
        stage_of[r] = r * m->stages / m->world;
    assert_int_equal(hd_stragglers_new(m->world, stage_of, &watch), HD_OK);
    return watch;
}

static int count_of(const struct hd_stragglers *watch, int world)
{
    int count = 0;

    for (int r = 0; r < world; r++)
        count += hd_stragglers_get(watch, r).is;
    return count;
}

/* Runs until something changes, at most `steps`; returns the step in which it did, 0: it did not.
 */
static int run(struct machine *m, struct hd_stragglers *watch, int steps)
{
    double busy_ms[WORLD_MAX];

    for (int s = 1; s <= steps; s++) {
        const double step_ms = one_step(m, busy_ms);

        if (hd_stragglers_add(watch, busy_ms, step_ms))
            return s;
    }
    return 0;
}

/* ---- healthy machines ---- */

/* Goal: no false alarm in 20,000 healthy steps, on a machine with load. */
static void on_a_healthy_machine_no_rank_is_named(void **state)
{
    static const struct machine machines[] = {
        /* world, stages, step_ms */
        {8, 1, 1000, .jitter = 0.05},
        {2, 1, 1000, .jitter = 0.3},
        /* the stages differ by half, the ranks of one do not */
        {8, 2, 1000, .jitter = 0.05},
        {4, 4, 1000, .jitter = 0.05},
        /* something runs beside a rank in every third step, and doubles it at most */
        {2, 1, 1000, .jitter = 0.05, .busy_chance = 0.3, .busy_most = 1},
        {8, 1, 1000, .jitter = 0.05, .busy_chance = 0.3, .busy_most = 1},
        {8, 1, 600, .jitter = 0.1, .busy_chance = 0.9, .busy_most = 3},
        /* a process beside one rank or another, for up to 15 steps */
        {2, 1, 1000, .jitter = 0.05, .burst_every = 60, .burst_most = 15},
        {8, 1, 1000, .jitter = 0.05, .burst_every = 60, .burst_most = 15},
        /* one of two is always late: by the count alone, each would be in 1 of 20 windows */
        {2, 1, 1000, .takes_turns = true},
        /* short steps, each disturbed as much as it lasts */
        {2, 1, 5, .jitter = 0.3, .busy_chance = 0.5, .busy_most = 4},
    };

    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
        struct machine m = machines[i];
        struct hd_stragglers *watch = watch_of(&m);

        if (run(&m, watch, HEALTHY_STEPS))
            fail_msg("a rank of machine %zu was named", i);
        hd_stragglers_free(watch);
    }
}

/* ---- slow ranks ---- */

/* Goal: a rank that is slowed by 20% is named within 60 steps, and no other; and when it is not
 * slow any more, that is said, too. */
static void a_rank_slowed_by_a_fifth_is_named_within_60_steps(void **state)
{
    static const struct machine machines[] = {
        {.world = 2, .stages = 1, .step_ms = 1000, .jitter = 0.03},
        {.world = 4, .stages = 2, .step_ms = 1000, .jitter = 0.03},
        {.world = 8, .stages = 1, .step_ms = 1000, .jitter = 0.03},
        {.world = 8, .stages = 2, .step_ms = 700, .jitter = 0.03},
    };

    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++)
        for (int slow = 0; slow < machines[i].world; slow++) {
            struct machine m = machines[i];
            struct hd_stragglers *watch = watch_of(&m);
            struct hd_straggler s;
            int step;

            assert_int_equal(run(&m, watch, 100), 0);
            m.slow[slow] = 1.2;
            step = run(&m, watch, 60);
            s = hd_stragglers_get(watch, slow);
            assert_true(step > 0 && s.is && s.changed);
            assert_int_equal(count_of(watch, m.world), 1);
            assert_in_range(s.late, HD_STRAGGLER_LATE_MIN, HD_STRAGGLER_STEPS);
            assert_true(s.busy_ms / s.others_ms > 1.1 && s.busy_ms / s.others_ms < 1.3);
            assert_int_equal(run(&m, watch, 1000), 0); /* it is told once */
            m.slow[slow] = 0;
            assert_true(run(&m, watch, 60) > 0);
            assert_int_equal(count_of(watch, m.world), 0);
            hd_stragglers_free(watch);
        }
}

/* Steps of 20 ms: 25 of them are one look. */
static void short_steps_are_judged_together(void **state)
{
    struct machine m = {.world = 2, .stages = 1, .step_ms = 20, .jitter = 0.03};
    struct hd_stragglers *watch = watch_of(&m);

    m.slow[1] = 1.2;
    assert_in_range(run(&m, watch, 60 * 25), 20 * 20, 60 * 25);
    assert_true(hd_stragglers_get(watch, 1).is);
    assert_in_range((int)hd_stragglers_get(watch, 1).steps, 20, 26);
    assert_true(fabs(hd_stragglers_get(watch, 1).busy_ms - 24) < 1);
    hd_stragglers_free(watch);
}

/* A node's two ranks are slow alike: each is compared with the median of the others. */
static void two_ranks_may_be_slow(void **state)
{
    struct machine m = {.world = 8, .stages = 1, .step_ms = 1000, .jitter = 0.03};
    struct hd_stragglers *watch = watch_of(&m);

    m.slow[2] = m.slow[3] = 1.3;
    assert_true(run(&m, watch, 60) > 0);
    (void)run(&m, watch, 30);
    assert_true(hd_stragglers_get(watch, 2).is && hd_stragglers_get(watch, 3).is);
    assert_int_equal(count_of(watch, 8), 2);
    hd_stragglers_free(watch);
}

/* Late in two of three steps: in 20 of 30. In half of the steps: in 15. */
static void twenty_of_thirty_is_the_border(void **state)
{
    const double quiet[] = {1000, 1000}, late[] = {1000, 1130};
    struct machine m = {.world = 2, .stages = 1};

    for (int of = 2; of <= 3; of++) {
        struct hd_stragglers *watch = watch_of(&m);
        bool named = false;

        for (int s = 0; s < 300; s++)
            named |= hd_stragglers_add(watch, s % of ? late : quiet, 1130);
        assert_int_equal(named, of == 3);
        hd_stragglers_free(watch);
    }
}

/* By less than a tenth of the step: 100 of 1101 ms. */
static void a_tenth_of_the_step_is_the_border(void **state)
{
    const double less[] = {1000, 1100}, more[] = {1000, 1120};
    struct machine m = {.world = 2, .stages = 1};
    struct hd_stragglers *watch = watch_of(&m);

    for (int s = 0; s < 300; s++)
        assert_false(hd_stragglers_add(watch, less, 1101));
    for (int s = 0; s < 60 && !hd_stragglers_get(watch, 1).is; s++)
        (void)hd_stragglers_add(watch, more, 1120);
    assert_true(hd_stragglers_get(watch, 1).is);
    hd_stragglers_free(watch);
}

/* On a device a rank does not know how long it waited. */
static void what_is_not_known_says_nothing(void **state)
{
    const double unknown[] = {100, -1}, nan[] = {100, NAN};
    struct machine m = {.world = 2, .stages = 1};
    struct hd_stragglers *watch = watch_of(&m);

    for (int s = 0; s < 300; s++) {
        assert_false(hd_stragglers_add(watch, unknown, 1000));
        assert_false(hd_stragglers_add(watch, nan, 1000));
    }
    hd_stragglers_free(watch);
}

RUN_CASES()
