/* Logical ranks on one device, over the engine local, train like one rank on it: a layout of each
 * kind of collective, small enough for an emulator. grid_test.c has all of them, for a device that
 * is fast.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "trial.h"

enum { STEPS = 4 }; /* 2 runs of them a layout */

/* Sums over dp and tp with sequences shared, a ring, rows to experts. */
static void layout_trains_like_one_rank(void **state)
{
    const char *const name = *state;
    struct grid_bench benches[GRID_BENCHES_MAX] = {0};
    struct grid_pick pick;
    double worst = 0;

    assert_int_equal(grid_pick(&name, 1, benches, &pick), 1);
    pick.bench->reference->steps = STEPS;
    grid_bench_refer(pick.bench);
    if (grid_try(pick.bench, &pick.layout, &worst))
        fail_msg("%s: %s", name, hd_err_message());
    grid_benches_close(benches);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"tensor_parallelism_with_sequences", layout_trains_like_one_rank, NULL, NULL,
         "llama: tp=2 sequence=on"},
        {"data_parallelism", layout_trains_like_one_rank, NULL, NULL, "gpt2: dp=2"},
        {"a_ring", layout_trains_like_one_rank, NULL, NULL, "llama: cp=2"},
        {"experts_on_two_ranks", layout_trains_like_one_rank, NULL, NULL, "mixtral: dp=2 ep=2"},
    };

    return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}
