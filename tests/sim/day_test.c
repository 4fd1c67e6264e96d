/* The small form of the simulated day: hours of a cluster of hundreds of nodes. */
#include "tests/program/test.h"
#include "tests/sim/day.h"

static struct sim_score live(uint64_t seed, int32_t nodes, int hours, enum sim_policy_kind policy)
{
    const struct sim_trace_job wish = {.seed = seed,
                                       .nodes = nodes,
                                       .horizon_ms = hours * SIM_HOUR_MS,
                                       .tail_ms = 0,
                                       .load = 1.05,
                                       .elastic = 0.1};
    struct sim_trace *trace = sim_trace_new(&wish);
    struct sim_score score;

    assert_non_null(trace);
    assert_true(sim_day(trace, policy, true, &score));
    sim_trace_free(trace);
    if (*score.broken)
        fail_msg("seed %llu: %s", (unsigned long long)seed, score.broken);
    return score;
}

/* Goal: the rules of watch.h and the core's invariants hold over hours of a full cluster. */
static void the_rules_hold_over_hours_of_a_full_cluster(void **state)
{
    const struct sim_score score = live(3, 300, 6, SIM_BY_HEDDLE);

    assert_true(score.starts > 50);
    assert_true(score.preempted > 0);
}

static void one_seed_gives_one_day(void **state)
{
    const struct sim_score first = live(2, 40, 2, SIM_BY_HEDDLE);
    const struct sim_score again = live(2, 40, 2, SIM_BY_HEDDLE);
    const struct sim_score other = live(3, 40, 2, SIM_BY_HEDDLE);

    assert_true(first.digest == again.digest);
    assert_true(first.digest != other.digest);
}

RUN_CASES()
