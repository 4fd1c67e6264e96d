/* The small form of the simulated day: hours of a cluster of hundreds of nodes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim/day.h"

static struct sim_score live(uint64_t seed, int32_t nodes, int hours, enum sim_policy_kind policy)
{
    const struct sim_trace_wish wish = {.seed = seed,
                                        .nodes = nodes,
                                        .horizon_ms = hours * SIM_HOUR_MS,
                                        .tail_ms = 0,
                                        .load = 1.05};
    struct sim_trace *trace = sim_trace_new(&wish);
    struct sim_score score;

    assert_non_null(trace);
    assert_true(sim_day(trace, policy, true, &score));
    sim_trace_free(trace);
    if (*score.broken)
        fail_msg("seed %llu: %s", (unsigned long long)seed, score.broken);
    return score;
}

static void a_day(void **state)
{
    (void)state;
    live(1, 100, 3, SIM_BY_HEDDLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_day),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
