/* Goal: with HEDDLE_CUDA_GLU=wgmma a training step computes each gated activation, and its backward, inside a
 * product, to the same losses and gradients. Method: a run on the emulator beside one of two products each; each
 * activation of a layer, forward and backward, takes a product from the library.
 */
#include <math.h>
#include <stdlib.h>

#include "runs.h"
#include "tests/cudasim/cudasim.h"
#include "tests/program/test.h"

enum { LAYERS = 2, STEPS = 2, MICRO_BATCHES = 2 };

/* Returns a run, and in ret_products the products that the library computed in it. */
static struct run *train(struct hd_job job, const char *glu, uint64_t *ret_products)
{
    struct run *run = run_new(STEPS);
    const uint64_t before = hd_cudasim_products();

    run->backend = harness_backend();
    (void)setenv("HEDDLE_CUDA_GLU", glu, 1);
    run_threads(job, 1, run);
    (void)unsetenv("HEDDLE_CUDA_GLU");
    *ret_products = hd_cudasim_products() - before;
    return run;
}

static void gated_activations_of_a_step_are_inside_products(void **state)
{
    struct harness h;
    struct hd_job job;
    struct run *apart, *inside;
    uint64_t products[2];
    double off = 0, size = 0;

    harness_setup(&h, 4000);
    job = harness_job(&h, "llama", 1);
    job.layers = LAYERS;
    job.precision = HD_JOB_PRECISION_BF16;
    job.global_batch = MICRO_BATCHES * job.micro_batch;
    apart = train(job, "separate", &products[0]);
    inside = train(job, "wgmma", &products[1]);
    assert_true(products[0] >= products[1] + 2 * STEPS * MICRO_BATCHES * LAYERS);
    for (int i = 0; i < STEPS; i++) /* bf16 has 8 bits; a loss is near ln 256 = 5.5 */
        assert_true(fabs(apart->loss[i] - inside->loss[i]) < 0.01);
    for (int64_t i = 0; i < apart->count; i++) {
        off += pow((double)apart->first_grad[i] - (double)inside->first_grad[i], 2);
        size += pow((double)apart->first_grad[i], 2);
    }
    assert_true(sqrt(off / size) < 1.0 / 256);
    run_free(apart);
    run_free(inside);
    harness_teardown(&h);
}

RUN_CASES()
