/* Goal: launches that were captured as graphs (HEDDLE_CUDA_GRAPHS) train to the same bits as launches one by one,
 * so that no argument that a graph keeps is one that changes from step to step or from micro-batch to
 * micro-batch. Method: a run of each kind on the emulator, which replays arguments as they were captured.
 * Work runs when it is enqueued, so that a launch that takes a number out of device memory has the right
 * one: only its replay has an old one.
 */
#include <stdlib.h>

#include "runs.h"
#include "tests/cudasim/cudasim.h"
#include "tests/program/test.h"

/* The first run of a program launches one by one, the second captures; the rest only replay. */
enum { STEPS = 3 };

static struct run *train(struct hd_job job, int dp, const char *graphs, size_t *ret_replays)
{
    const size_t before = hd_cudasim_replays();
    struct run *run = run_new(STEPS);

    run->backend = harness_backend();
    (void)setenv("HEDDLE_CUDA_GRAPHS", graphs, 1);
    hd_cudasim_lazy(false, 0);
    run_threads(job, dp, run);
    (void)unsetenv("HEDDLE_CUDA_GRAPHS");
    *ret_replays = hd_cudasim_replays() - before;
    return run;
}

/* Two ranks with ZeRO-3: collectives part a program into graphs, and what was captured runs beside
 * them. Dropout draws other numbers in each micro-batch of each step. */
static void graphs_train_to_the_same_bits(void **state)
{
    enum { DP = 2 };
    struct harness h;
    struct hd_job job;
    struct run *plain, *graphs;
    size_t replays;

    harness_setup(&h, 4000);
    job = harness_job(&h, "gpt2", DP);
    job.layers = 1;
    job.zero = 3;
    job.dropout_residual = 0.1;
    plain = train(job, DP, "off", &replays);
    assert_int_equal(replays, 0);
    graphs = train(job, DP, "on", &replays);
    /* F and B of two steps, two micro-batches each, have more than one kernel on each rank */
    assert_true(replays > 2 * 2 * 2 * DP);
    assert_memory_equal(plain->loss, graphs->loss, STEPS * sizeof *plain->loss);
    for (int r = 0; r < DP; r++)
        assert_true(plain->state_hash[r] == graphs->state_hash[r]);
    run_free(plain);
    run_free(graphs);
    harness_teardown(&h);
}

RUN_CASES()
