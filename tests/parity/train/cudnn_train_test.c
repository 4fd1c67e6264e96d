/* Goal: with HEDDLE_CUDA_ATTENTION=cudnn the attention of a training step is computed by the library, not by own
 * kernels unnoticed, in the scratch that the program planned. Method: a run on the emulator, whose stand-in
 * counts the launches of each of its plans; losses beside a run of own kernels.
 */
#include <math.h>
#include <stdlib.h>

#include "runs.h"
#include "tests/cudasim/cudasim.h"
#include "tests/program/test.h"

enum { STEPS = 1, MICRO_BATCHES = 2 };

static struct run *train(struct hd_job job, const char *attention)
{
    struct run *run = run_new(STEPS);

    run->backend = harness_backend();
    (void)setenv("HEDDLE_CUDA_ATTENTION", attention, 1);
    run_threads(job, 1, run);
    (void)unsetenv("HEDDLE_CUDA_ATTENTION");
    return run;
}

static void attention_of_a_step_is_by_the_library(void **state)
{
    struct harness h;
    struct hd_job job;
    struct run *own, *library;

    harness_setup(&h, 4000);
    job = harness_job(&h, "gpt2", 1);
    job.layers = 1;
    job.hidden = job.head_width = 64;
    job.heads = job.kv_heads = 1;
    job.precision = HD_JOB_PRECISION_BF16;
    job.deterministic = true;
    job.global_batch = MICRO_BATCHES * job.micro_batch;
    own = train(job, "tiled");
    assert_int_equal(hd_cudasim_cudnn_launches(1) + hd_cudasim_cudnn_launches(2), 0);
    library = train(job, "cudnn");
    /* forward asks for no order, so that its plan is the first that fits; validation is forward, too */
    assert_true(hd_cudasim_cudnn_launches(1) >= STEPS * MICRO_BATCHES);
    assert_int_equal(hd_cudasim_cudnn_launches(2), STEPS * MICRO_BATCHES);
    for (int i = 0; i < STEPS; i++) /* bf16 has 8 bits; a loss is near ln 256 = 5.5 */
        assert_true(fabs(own->loss[i] - library->loss[i]) < 0.01);
    run_free(own);
    run_free(library);
    harness_teardown(&h);
}

RUN_CASES()
