/* Goal: heddled's actions are a function of two sets: cases by hand, then properties over random
 * sets. */
#include <stdbool.h>
#include <string.h>

#include "base/random.h"
#include "daemon/agent/reconcile.h"
#include "tests/program/test.h"

enum { NOT_HERE = -1, NOT_WANTED = -1, NO_DEED = -1, SETS_MAX = 8 };

/* One attempt alone. */
static int deed_of(int target, int state)
{
    const struct hd_wanted_attempt wanted = {7, 1, (enum hd_target_state)target};
    const struct hd_here here = {7, 1, (enum hd_here_state)state};
    struct hd_action actions[2];
    size_t n = hd_reconcile(&wanted, target != NOT_WANTED, &here, state != NOT_HERE, actions);

    assert_in_range(n, 0, 1);
    return n ? (int)actions[0].deed : NO_DEED;
}

/* The table of reconcile.h, cell by cell. */
static void each_pair_of_wish_and_state_has_its_deed(void **state)
{
    static const struct {
        int target, here, deed;
    } cells[] = {
        {HD_TARGET_RUNNING, NOT_HERE, HD_DEED_LAUNCH},
        {HD_TARGET_RUNNING, HD_HERE_PLANNED, HD_DEED_LAUNCH},
        {HD_TARGET_RUNNING, HD_HERE_ALIVE, NO_DEED},
        {HD_TARGET_RUNNING, HD_HERE_STOPPING, NO_DEED},
        {HD_TARGET_RUNNING, HD_HERE_DYING, NO_DEED},
        {HD_TARGET_RUNNING, HD_HERE_ENDED, NO_DEED},
        {HD_TARGET_STOPPING, NOT_HERE, NO_DEED},
        {HD_TARGET_STOPPING, HD_HERE_PLANNED, HD_DEED_FORGET},
        {HD_TARGET_STOPPING, HD_HERE_ALIVE, HD_DEED_STOP},
        {HD_TARGET_STOPPING, HD_HERE_STOPPING, NO_DEED},
        {HD_TARGET_STOPPING, HD_HERE_DYING, NO_DEED},
        {HD_TARGET_STOPPING, HD_HERE_ENDED, NO_DEED},
        {HD_TARGET_STOPPED, NOT_HERE, NO_DEED},
        {HD_TARGET_STOPPED, HD_HERE_PLANNED, HD_DEED_FORGET},
        {HD_TARGET_STOPPED, HD_HERE_ALIVE, HD_DEED_KILL},
        {HD_TARGET_STOPPED, HD_HERE_STOPPING, HD_DEED_KILL},
        {HD_TARGET_STOPPED, HD_HERE_DYING, NO_DEED},
        {HD_TARGET_STOPPED, HD_HERE_ENDED, NO_DEED},
        {NOT_WANTED, HD_HERE_PLANNED, HD_DEED_FORGET},
        {NOT_WANTED, HD_HERE_ALIVE, HD_DEED_KILL},
        {NOT_WANTED, HD_HERE_STOPPING, HD_DEED_KILL},
        {NOT_WANTED, HD_HERE_DYING, NO_DEED},
        {NOT_WANTED, HD_HERE_ENDED, HD_DEED_FORGET},
    };

    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++)
        assert_int_equal(deed_of(cells[i].target, cells[i].here), cells[i].deed);
}

static void a_launch_waits_for_what_nobody_wants_any_more(void **state)
{
    const struct hd_wanted_attempt wanted = {7, 2, HD_TARGET_RUNNING};
    struct hd_here here = {7, 1, HD_HERE_ALIVE};
    struct hd_action actions[2];

    assert_int_equal(hd_reconcile(&wanted, 1, &here, 1, actions), 1);
    assert_int_equal(actions[0].deed, HD_DEED_KILL);
    here.state = HD_HERE_DYING;
    assert_int_equal(hd_reconcile(&wanted, 1, &here, 1, actions), 0);
    here.state = HD_HERE_ENDED;
    assert_int_equal(hd_reconcile(&wanted, 1, &here, 1, actions), 2);
    assert_int_equal(actions[0].deed, HD_DEED_FORGET);
    assert_int_equal(actions[1].deed, HD_DEED_LAUNCH);
    assert_true(actions[1].here_index == SIZE_MAX);
}

static void a_launch_does_not_wait_for_what_is_listed(void **state)
{
    const struct hd_wanted_attempt wanted[] = {{7, 1, HD_TARGET_STOPPING},
                                               {8, 1, HD_TARGET_RUNNING}};
    const struct hd_here here = {7, 1, HD_HERE_STOPPING};
    struct hd_action actions[3];

    assert_int_equal(hd_reconcile(wanted, 2, &here, 1, actions), 1);
    assert_int_equal(actions[0].deed, HD_DEED_LAUNCH);
    assert_int_equal(actions[0].wanted_index, 1);
}

/* ---- properties ---- */

struct sets {
    struct hd_wanted_attempt wanted[SETS_MAX];
    struct hd_here here[2 * SETS_MAX];
    size_t wanted_count, here_count;
};

/* Attempts 1..SETS_MAX of one job, each wanted or not, here or not. */
static void draw_sets(uint64_t key, struct sets *ret_sets)
{
    struct sets s = {.wanted_count = 0};

    for (int k = 1; k <= SETS_MAX; k++) {
        const int target = (int)(hd_random_u64(key, 2 * (uint64_t)k) % 4) - 1;
        const int state = (int)(hd_random_u64(key, 2 * (uint64_t)k + 1) % 6) - 1;

        if (target != NOT_WANTED)
            s.wanted[s.wanted_count++] =
                (struct hd_wanted_attempt){1, k, (enum hd_target_state)target};
        if (state != NOT_HERE)
            s.here[s.here_count++] = (struct hd_here){1, k, (enum hd_here_state)state};
    }
    *ret_sets = s;
}

/* Does what is asked, as heddled would. */
static void carry_out(struct sets *sets, const struct hd_action *actions, size_t count)
{
    size_t kept = 0;
    bool forget[2 * SETS_MAX] = {false};

    for (size_t i = 0; i < count; i++) {
        const struct hd_action *a = &actions[i];

        switch (a->deed) {
        case HD_DEED_LAUNCH:
            if (a->here_index == SIZE_MAX)
                sets->here[sets->here_count++] =
                    (struct hd_here){1, sets->wanted[a->wanted_index].attempt, HD_HERE_ALIVE};
            else
                sets->here[a->here_index].state = HD_HERE_ALIVE;
            break;
        case HD_DEED_STOP:
            sets->here[a->here_index].state = HD_HERE_STOPPING;
            break;
        case HD_DEED_KILL:
            sets->here[a->here_index].state = HD_HERE_DYING;
            break;
        case HD_DEED_FORGET:
            forget[a->here_index] = true;
            break;
        }
    }
    for (size_t i = 0; i < sets->here_count; i++)
        if (!forget[i])
            sets->here[kept++] = sets->here[i];
    sets->here_count = kept;
}

static void processes_end(struct sets *sets)
{
    for (size_t i = 0; i < sets->here_count; i++)
        if (sets->here[i].state == HD_HERE_STOPPING || sets->here[i].state == HD_HERE_DYING)
            sets->here[i].state = HD_HERE_ENDED;
}

static const struct hd_wanted_attempt *wanted_of(const struct sets *sets, int64_t attempt)
{
    for (size_t i = 0; i < sets->wanted_count; i++)
        if (sets->wanted[i].attempt == attempt)
            return &sets->wanted[i];
    return NULL;
}

static void doing_it_again_changes_nothing(void **state)
{
    struct hd_action actions[4 * SETS_MAX];
    struct sets sets;

    for (uint64_t round = 0; round < 20000; round++) {
        draw_sets(hd_random_key(1, round), &sets);
        carry_out(
            &sets, actions,
            hd_reconcile(sets.wanted, sets.wanted_count, sets.here, sets.here_count, actions));
        assert_int_equal(
            hd_reconcile(sets.wanted, sets.wanted_count, sets.here, sets.here_count, actions), 0);
    }
}

/* Goal: whatever the start, the node gets there. Method: carry out, let what was told to end end,
 * repeat; after three rounds exactly the wanted runs and nothing else lives. */
static void the_node_gets_what_it_should_have(void **state)
{
    struct hd_action actions[4 * SETS_MAX];
    struct sets sets;

    for (uint64_t round = 0; round < 20000; round++) {
        draw_sets(hd_random_key(2, round), &sets);
        for (int i = 0; i < 3; i++) {
            carry_out(
                &sets, actions,
                hd_reconcile(sets.wanted, sets.wanted_count, sets.here, sets.here_count, actions));
            processes_end(&sets);
        }
        for (size_t i = 0; i < sets.here_count; i++) {
            const struct hd_wanted_attempt *w = wanted_of(&sets, sets.here[i].attempt);

            assert_non_null(w);
            assert_int_not_equal(sets.here[i].state, HD_HERE_PLANNED);
            assert_true(sets.here[i].state == HD_HERE_ENDED || w->target == HD_TARGET_RUNNING);
        }
        for (size_t i = 0; i < sets.wanted_count; i++) {
            size_t found = 0;

            for (size_t k = 0; k < sets.here_count; k++)
                found += sets.here[k].attempt == sets.wanted[i].attempt;
            assert_int_equal(found, sets.wanted[i].target == HD_TARGET_RUNNING ? 1 : found);
            assert_in_range(found, 0, 1);
        }
    }
}

static void no_deed_breaks_a_rule(void **state)
{
    struct hd_action actions[4 * SETS_MAX];
    struct sets sets;

    for (uint64_t round = 0; round < 20000; round++) {
        size_t n;

        draw_sets(hd_random_key(3, round), &sets);
        n = hd_reconcile(sets.wanted, sets.wanted_count, sets.here, sets.here_count, actions);
        for (size_t i = 0; i < n; i++) {
            const struct hd_here *here =
                actions[i].here_index == SIZE_MAX ? NULL : &sets.here[actions[i].here_index];
            const struct hd_wanted_attempt *w = here ? wanted_of(&sets, here->attempt) : NULL;

            if (actions[i].deed == HD_DEED_LAUNCH)
                assert_true(!here || here->state == HD_HERE_PLANNED);
            else
                assert_true(!w || w->target != HD_TARGET_RUNNING);
            if (actions[i].deed == HD_DEED_FORGET)
                assert_true(here->state == HD_HERE_PLANNED || here->state == HD_HERE_ENDED);
        }
    }
}

RUN_CASES()
