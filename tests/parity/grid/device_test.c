/* Logical ranks on one device, over the engine local, train like one rank on it: a layout of each
 * kind of collective, small enough for an emulator. grid_test.c has all of them, for a device that
 * is fast. And the device computes in fp16, and two ranks of it in fp8.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/program/test.h"
#include "trial.h"

enum { STEPS = 4 }; /* 2 runs of them a layout */

/* Sums over tp with sequences shared, buckets, gathers ahead, transfers, an update on the host, a
 * ring, rows to experts. */
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

/* One rank in fp16 against fp32: gradients of the first step and its loss. */
static void fp16_stays_within_its_rounding(void **state)
{
    struct run *fp32 = run_new(1), *fp16 = run_new(1);
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = harness_job(&h, "llama", 1);
    run_threads(job, 1, fp32);
    job.precision = HD_JOB_PRECISION_FP16;
    run_threads(job, 1, fp16);
    if (compare_gradients(&job, fp16->first_grad, fp32->first_grad, half_bound, NULL))
        fail_msg("%s", hd_err_message());
    assert_true(fabs(fp16->loss[0] - fp32->loss[0]) <= half_loss_bound(&job));
    run_free(fp32);
    run_free(fp16);
    harness_teardown(&h);
}

static bool multiplies_fp8(void)
{
    struct hd_traits traits;

    harness_backend()->describe(&(struct hd_backend_options){.threads = 1}, &traits);
    return !hd_traits_is_cuda(&traits) || traits.capability >= HD_GPU_FP8_FROM;
}

/* Two tp ranks in fp8 against one in fp32: gradients of the first step, by present tensors, and of
 * the second, by their history; sides are multiples of 16. */
static void fp8_stays_within_its_rounding(void **state)
{
    struct run *fp32, *fp8;
    struct harness h;
    struct hd_job job;

    if (!multiplies_fp8()) {
        print_message("this GPU has no products in fp8\n");
        skip();
    }
    harness_setup(&h, 20000);
    job = harness_job(&h, "llama", 1);
    job.hidden = job.ffn_hidden = 64;
    job.head_width = 16;
    job.micro_batch = job.global_batch = 2;
    fp32 = run_new(2);
    run_threads(job, 1, fp32);
    fp8 = run_new(2);
    fp8->last_at = fp32->before_last;
    job.tp = 2;
    job.sequence = true;
    job.precision = HD_JOB_PRECISION_FP8;
    run_threads(job, 1, fp8);
    if (compare_gradients(&job, fp8->first_grad, fp32->first_grad, fp8_rounding_bound, NULL) ||
        compare_gradients(&job, fp8->last_grad, fp32->last_grad, fp8_rounding_bound, NULL))
        fail_msg("%s", hd_err_message());
    assert_true(fabs(fp8->loss[0] - fp32->loss[0]) <= half_loss_bound(&job));
    run_free(fp32);
    run_free(fp8);
    harness_teardown(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"tensor_parallelism_with_sequences", layout_trains_like_one_rank, NULL, NULL,
         "llama: tp=2 sequence=on"},
        {"shards_of_gradients_and_recompute", layout_trains_like_one_rank, NULL, NULL,
         "gpt2: dp=2 zero=2 recompute=selective"},
        {"stages_of_shards", layout_trains_like_one_rank, NULL, NULL,
         "llama: dp=2 pp=2 zero=3 recompute=full"},
        {"the_optimizer_on_the_host", layout_trains_like_one_rank, NULL, NULL,
         "gpt2: dp=2 zero=1 offload=optimizer"},
        {"an_adapter_whose_optimizer_is_on_the_host", layout_trains_like_one_rank, NULL, NULL,
         "llama_tuned: dp=2 zero=1 offload=optimizer adapter=lora objective=dpo weights=nf4"},
        {"a_prefix_of_shards_on_the_host", layout_trains_like_one_rank, NULL, NULL,
         "gpt2_tuned: tp=2 dp=2 zero=3 offload=optimizer adapter=prefix objective=reward "
         "weights=int8"},
        {"a_ring", layout_trains_like_one_rank, NULL, NULL, "llama: cp=2"},
        {"experts_on_two_ranks", layout_trains_like_one_rank, NULL, NULL, "mixtral: dp=2 ep=2"},
        cmocka_unit_test(fp16_stays_within_its_rounding),
        cmocka_unit_test(fp8_stays_within_its_rounding),
    };

    return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}
