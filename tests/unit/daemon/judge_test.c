/* Whom the supervisors of one or several nodes blame, of ranks that wait for each other. */
#include <stdio.h>
#include <string.h>

#include "daemon/supervisor/judge.h"
#include "tests/program/test.h"

static void a_chain_ends_at_the_rank_that_waits_for_none(void **state)
{
    const struct sup_rank_state states[] = {
        {0, 90, SUP_WAITS, 2}, {1, 60, SUP_COMPUTES, -1}, {2, 80, SUP_WAITS, 1}};
    int64_t rank;

    assert_int_equal(sup_judge(states, 3, &rank), SUP_FOUND);
    assert_int_equal(rank, 1);
    assert_true(sup_judge_leads_to(states, 3, 0, 1));
    assert_true(sup_judge_leads_to(states, 3, 2, 1));
    assert_false(sup_judge_leads_to(states, 3, 1, 1));
    assert_false(sup_judge_leads_to(states, 3, 2, 0));
}

/* Rank 1 was heard a moment ago: it computes, and is waited for by none. */
static void a_rank_that_was_just_heard_is_not_blamed(void **state)
{
    const struct sup_rank_state states[] = {{0, 90, SUP_WAITS, 7}, {1, 2, SUP_COMPUTES, -1}};
    int64_t rank;

    assert_int_equal(sup_judge(states, 2, &rank), SUP_FOUND_ELSEWHERE);
    assert_int_equal(rank, 7);
}

/* Rank 1 has taken long to set up and goes on: rank 0 will, too. */
static void a_rank_that_is_waited_for_and_lives_is_no_hang(void **state)
{
    const struct sup_rank_state lives[] = {{0, 90, SUP_WAITS, 1}, {1, 44, SUP_COMPUTES, -1}},
                                silent[] = {{0, 90, SUP_WAITS, 1}, {1, 45, SUP_COMPUTES, -1}};
    int64_t rank;

    assert_int_equal(sup_judge(lives, 2, &rank), SUP_FOUND_ALIVE);
    assert_int_equal(sup_judge(silent, 2, &rank), SUP_FOUND);
    assert_int_equal(rank, 1);
}

/* Rank 0 waits for a rank of another node, which waits for rank 1 here. */
static void a_chain_over_another_node_is_found_at_its_end(void **state)
{
    const struct sup_rank_state states[] = {{0, 90, SUP_WAITS, 7}, {1, 89, SUP_STOPPED, -1}};
    int64_t rank;

    assert_int_equal(sup_judge(states, 2, &rank), SUP_FOUND);
    assert_int_equal(rank, 1);
}

static void a_circle_has_no_end(void **state)
{
    const struct sup_rank_state states[] = {
        {4, 9, SUP_WAITS, 5}, {5, 9, SUP_WAITS, 6}, {6, 9, SUP_WAITS, 5}};
    int64_t rank;

    assert_int_equal(sup_judge(states, 3, &rank), SUP_FOUND_CIRCLE);
    assert_true(rank == 5 || rank == 6); /* 4 only leads to it */
}

static void a_wait_that_is_not_seen_is_no_finding(void **state)
{
    const struct sup_rank_state unseen[] = {{0, 9, SUP_WAITS, 1}, {1, 8, SUP_UNSEEN, -1}},
                                unknown[] = {{0, 9, SUP_WAITS, -1}, {1, 8, SUP_WAITS, 0}};
    int64_t rank;

    assert_int_equal(sup_judge(unseen, 2, &rank), SUP_FOUND_NOTHING);
    assert_int_equal(sup_judge(unknown, 2, &rank), SUP_FOUND_NOTHING);
}

/* Rank 1 has told nothing since all ranks met; rank 0 is connecting, and misses it. */
static void a_rank_that_is_missed_while_ranks_connect_is_found(void **state)
{
    const struct sup_rank_state missed[] = {{0, 9, SUP_WAITS, 1}, {1, 9, SUP_CONNECTS, -1}},
                                alone[] = {{0, 9, SUP_CONNECTS, -1}, {1, 9, SUP_CONNECTS, -1}};
    int64_t rank;

    assert_int_equal(sup_judge(missed, 2, &rank), SUP_FOUND);
    assert_int_equal(rank, 1);
    assert_int_equal(sup_judge(alone, 2, &rank), SUP_FOUND_NOTHING);
}

/* ---- a step of eight ranks, dp 2 x pp 2 x tp 2 ---- */

enum { WORLD = 8, OPS_MAX = 16 };

/* An operation of a group: bit r of `members`: rank r takes part. */
struct step {
    unsigned ops[WORLD][OPS_MAX];
    int count[WORLD];
};

static void add(struct step *s, unsigned members)
{
    for (int r = 0; r < WORLD; r++)
        if (members >> r & 1)
            s->ops[r][s->count[r]++] = members;
}

/* rank = dp * 4 + pp * 2 + tp. Forward and backward of two layers of each stage with sums over tp,
 * transfers between the stages, sums over dp, and the exchange of all. */
static struct step make_step(void)
{
    struct step s = {.count = {0}};

    for (int dp = 0; dp < 2; dp++) {
        const unsigned first = 3u << 4 * dp, last = 12u << 4 * dp;

        add(&s, first);
        add(&s, first);
        for (int tp = 0; tp < 2; tp++)
            add(&s, 5u << (4 * dp + tp));
        add(&s, last);
        add(&s, last);
        for (int tp = 0; tp < 2; tp++)
            add(&s, 5u << (4 * dp + tp));
        add(&s, first);
    }
    for (int r = 0; r < 4; r++)
        add(&s, 17u << r);
    add(&s, 255u);
    return s;
}

/* How far each rank comes when `culprit` stops before its operation `place`. */
static void run_until_still(const struct step *s, int culprit, int place, int ret_at[WORLD])
{
    bool moved = true;

    memset(ret_at, 0, WORLD * sizeof *ret_at);
    while (moved) {
        moved = false;
        for (int r = 0; r < WORLD; r++) {
            const unsigned members = ret_at[r] < s->count[r] ? s->ops[r][ret_at[r]] : 0;
            bool all = members != 0;

            for (int m = 0; m < WORLD && all; m++)
                if (members >> m & 1)
                    all = ret_at[m] < s->count[m] && s->ops[m][ret_at[m]] == members &&
                          !(m == culprit && ret_at[m] == place);
            for (int m = 0; m < WORLD && all; m++)
                ret_at[m] += members >> m & 1;
            moved |= all;
        }
    }
}

/* Returns the member for which a rank waits, as an engine tells it: the first member that has not
 * entered. */
static int64_t missing(const struct step *s, const int at[WORLD], int rank, int culprit, int place)
{
    const unsigned members = s->ops[rank][at[rank]];

    for (int m = 0; m < WORLD; m++)
        if (members >> m & 1 && m != rank &&
            (s->ops[m][at[m]] != members || (m == culprit && at[m] == place)))
            return m;
    return -1;
}

/* Goal: all culprits are right, on one node and on two, at every place of a step, whichever rank is
 * silent longest. */
static void each_culprit_of_each_place_is_found(void **state)
{
    const struct step s = make_step();
    int places = 0;

    for (int culprit = 0; culprit < WORLD; culprit++)
        for (int place = 0; place < s.count[culprit]; place++, places++) {
            int at[WORLD];

            run_until_still(&s, culprit, place, at);
            assert_int_equal(at[culprit], place);
            for (int nodes = 1; nodes <= 2; nodes++)
                for (int node = 0; node < nodes; node++)
                    for (int longest = 0; longest < WORLD / nodes; longest++) {
                        const int here = WORLD / nodes;
                        struct sup_rank_state states[WORLD];
                        enum sup_finding finding;
                        int64_t rank;

                        for (int i = 0; i < here; i++) {
                            /* two nodes: even and odd ranks, so that chains go to and fro */
                            const int r = nodes == 1 ? i : 2 * i + node;

                            states[i] = (struct sup_rank_state){.rank = r,
                                                                .silent_ms = i == longest ? 70 : 60,
                                                                .doing = r == culprit ? SUP_COMPUTES
                                                                                      : SUP_WAITS,
                                                                .waits_for = -1};
                            if (r != culprit)
                                states[i].waits_for = missing(&s, at, r, culprit, place);
                        }
                        finding = sup_judge(states, here, &rank);
                        if (nodes == 1 || culprit % 2 == node) {
                            assert_int_equal(finding, SUP_FOUND);
                            assert_int_equal(rank, culprit);
                        } else {
                            assert_int_equal(finding, SUP_FOUND_ELSEWHERE);
                        }
                    }
        }
    /* stage 0: 3 sums over tp, 2 transfers, 1 over dp, 1 exchange; stage 1: 2, 2, 1, 1 */
    assert_int_equal(places, 4 * 7 + 4 * 6);
}

RUN_CASES()
