/* In bf16 layouts stay as close to one rank, and to fp32, as rounding allows: the gradients of the
 * first step by the bound that grows with the layers above.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "trial.h"

static const char *const names[] = {
    "gpt2: tp=2",
    "gpt2: tp=4",
    "gpt2: tp=2 sequence=on dp=2",
    "gpt2: tp=4 sequence=on schedule=gpipe",
    "gpt2: dp=4 micro_batches=1",
    "llama: tp=2 dp=4",
    "llama: tp=4",
    "llama: tp=2 sequence=on micro_batches=1",
    "llama: tp=4 sequence=on dp=2",
    "qwen2: tp=2 sequence=on",
    "qwen3: tp=4 sequence=on",
    "mistral: tp=2 sequence=on dp=2",
    "gpt2: cp=2",
    "llama: cp=4",
    "llama: tp=2 sequence=on cp=2 dp=2",
    "mistral: tp=2 cp=2 cp_exchange=all_gather",
    "gpt2_dropout: tp=2 sequence=on cp=2 dp=2",
    "llama_alibi: tp=4 sequence=on cp=2",
};
enum { NAMES = sizeof names / sizeof names[0], AT_LEAST = 12 };

static void set_bf16(struct hd_job *job)
{
    (void)snprintf(job->precision, sizeof job->precision, "bf16");
}

static void check(enum hd_status st, const char *text)
{
    if (st)
        fail_msg("%s: %s", text, hd_err_message());
}

/* One rank in bf16, and in fp32 (the bench's own run). */
struct pair {
    struct grid_bench *bench;
    struct run *bf16;
};

static struct pair *pair_of(struct pair pairs[GRID_BENCHES_MAX], struct grid_bench *bench)
{
    struct hd_job job = grid_reference(bench->model, &bench->harness);
    int i = 0;

    while (pairs[i].bench && pairs[i].bench != bench)
        i++;
    if (pairs[i].bench)
        return &pairs[i];
    pairs[i] = (struct pair){bench, run_new(GRID_STEPS)};
    grid_bench_refer(bench);
    set_bf16(&job);
    run_threads(job, 1, pairs[i].bf16);
    return &pairs[i];
}

static void check_pick(const struct grid_pick *pick, const struct pair *pair)
{
    struct run *run = run_new(GRID_STEPS);
    struct hd_job job =
        grid_job(pick->bench->model, &pick->bench->harness, &pick->layout, &run->layout);
    double worst = 0;

    set_bf16(&job);
    check(run_on_threads(&job, run), pick->text);
    check(compare_ranks_agree(run, run_world(&job)), pick->text);
    check(compare_gradients(&job, run->first_grad, pair->bf16->first_grad, bf16_bound, &worst),
          pick->text);
    check(compare_gradients(&job, run->first_grad, pick->bench->reference->first_grad, bf16_bound,
                            &worst),
          pick->text);
    (void)printf("PASS %s worst %.1e, loss %.4f -> %.4f\n", pick->text, worst, run->loss[0],
                 run->loss[GRID_STEPS - 1]);
    assert_true(fabs(run->loss[0] - pair->bf16->loss[0]) <= bf16_loss_bound(&job));
    assert_true(fabs(run->loss[0] - pick->bench->reference->loss[0]) <= bf16_loss_bound(&job));
    if (!HD_TEST_SANITIZED)                                        /* it takes fewer steps */
        assert_true(run->loss[GRID_STEPS - 1] < run->loss[0] - 1); /* as ranks_test.c derives */
    run_free(run);
}

static void a_dozen_layouts_stay_within_the_rounding_of_bf16(void **state)
{
    struct grid_bench benches[GRID_BENCHES_MAX] = {0};
    struct pair pairs[GRID_BENCHES_MAX] = {0};
    struct grid_pick picks[NAMES];
    const int count = grid_pick(names, NAMES, benches, picks);

    (void)state;
    for (int i = 0; i < count; i++)
        check_pick(&picks[i], pair_of(pairs, picks[i].bench));
    assert_true(count >= AT_LEAST);
    for (int i = 0; i < GRID_BENCHES_MAX && pairs[i].bench; i++)
        run_free(pairs[i].bf16);
    grid_benches_close(benches);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dozen_layouts_stay_within_the_rounding_of_bf16)};

    return cmocka_run_group_tests_name("bf16", tests, NULL, NULL);
}
