/* In bf16, fp16 and fp8 layouts stay as close to one rank, and to fp32, as rounding allows: the
 * gradients of the first step by the bound that grows with the layers above.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/program/test.h"
#include "trial.h"

static const char *const bf16_names[] = {
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
static const char *const fp16_names[] = {
    "gpt2: tp=4 sequence=on schedule=gpipe",
    "qwen2: tp=2 sequence=on",
    "qwen3: tp=4 sequence=on",
    "llama: tp=2 sequence=on cp=2 dp=2",
    "mistral: tp=2 cp=2 cp_exchange=all_gather",
    "gpt2_dropout: tp=2 sequence=on cp=2 dp=2",
    "llama_alibi: tp=4 sequence=on cp=2",
};
static const char *const fp8_names[] = {
    "gpt2: tp=4 sequence=on",
    "gpt2: pp=2 dp=2 schedule=zb-h1",
    "llama: dp=4 zero=3",
    "llama: tp=2 sequence=on cp=2 dp=2",
    "llama: tp=2 recompute=full zero=1 dp=2",
    "qwen3: tp=2 cp=2",
};
enum {
    BF16_NAMES = sizeof bf16_names / sizeof bf16_names[0],
    FP16_NAMES = sizeof fp16_names / sizeof fp16_names[0],
    FP8_NAMES = sizeof fp8_names / sizeof fp8_names[0],
    BF16_AT_LEAST = 12
};

static bool is_fp8(const char *precision)
{
    return strcmp(precision, "fp8") == 0;
}

/* Sets the precision. For fp8 every share of a side is a multiple of 16 up to tp = 4. */
static void set_precision(struct hd_job *job, const char *precision, bool keep_fp32)
{
    if (keep_fp32) {
        job->hidden = job->ffn_hidden = 64;
        job->head_width = 16;
    }
    job->precision = hd_job_find_word(hd_job_precision_words, precision);
}

static void check(enum hd_status st, const char *text)
{
    if (st)
        fail_msg("%s: %s", text, hd_err_message());
}

/* One rank in a lower precision, and in fp32 (the bench's own run, unless sizes differ). */
struct pair {
    struct grid_bench *bench;
    struct run *half, *keep_fp32;
};

static struct pair *pair_of(struct pair pairs[GRID_BENCHES_MAX], struct grid_bench *bench,
                            const char *precision)
{
    struct hd_job job = grid_reference(bench->model, &bench->harness);
    const bool fp8 = is_fp8(precision);
    int i = 0;

    while (pairs[i].bench && pairs[i].bench != bench)
        i++;
    if (pairs[i].bench)
        return &pairs[i];
    pairs[i] = (struct pair){bench, run_new(GRID_STEPS), fp8 ? run_new(GRID_STEPS) : NULL};
    if (fp8) {
        set_precision(&job, "fp32", true);
        run_threads(job, 1, pairs[i].keep_fp32);
    } else {
        grid_bench_refer(bench);
    }
    set_precision(&job, precision, fp8);
    run_threads(job, 1, pairs[i].half);
    return &pairs[i];
}

static void check_pick(const struct grid_pick *pick, const struct pair *pair, const char *precision)
{
    const bool fp8 = is_fp8(precision);
    const struct run *fp32 = fp8 ? pair->keep_fp32 : pick->bench->reference;
    struct run *run = run_new(GRID_STEPS);
    struct hd_job job =
        grid_job(pick->bench->model, &pick->bench->harness, &pick->layout, &run->layout);
    double worst = 0;

    set_precision(&job, precision, fp8);
    check(run_on_threads(&job, run), pick->text);
    check(compare_ranks_agree(run, run_world(&job)), pick->text);
    check(compare_gradients(&job, run->first_grad, pair->half->first_grad,
                            fp8 ? fp8_bound : half_bound, &worst),
          pick->text);
    check(compare_gradients(&job, run->first_grad, fp32->first_grad,
                            fp8 ? fp8_rounding_bound : half_bound, &worst),
          pick->text);
    (void)printf("PASS %s %s worst %.1e, loss %.4f -> %.4f\n", precision, pick->text, worst,
                 run->loss[0], run->loss[GRID_STEPS - 1]);
    assert_true(fabs(run->loss[0] - pair->half->loss[0]) <= half_loss_bound(&job));
    assert_true(fabs(run->loss[0] - fp32->loss[0]) <= half_loss_bound(&job));
    if (!HD_TEST_SANITIZED) /* it takes fewer steps; noise on embeddings makes them smaller */
        assert_true(run->loss[GRID_STEPS - 1] <
                    run->loss[0] - (job.neftune_alpha > 0 ? 0.15 : 0.3));
    run_free(run);
}

static int check_layouts(const char *const *names, int name_count, const char *precision)
{
    struct grid_bench benches[GRID_BENCHES_MAX] = {0};
    struct pair pairs[GRID_BENCHES_MAX] = {0};
    struct grid_pick picks[BF16_NAMES];
    const int count = grid_pick(names, name_count, benches, picks);

    for (int i = 0; i < count; i++)
        check_pick(&picks[i], pair_of(pairs, picks[i].bench, precision), precision);
    for (int i = 0; i < GRID_BENCHES_MAX && pairs[i].bench; i++)
        run_free(pairs[i].half);
    for (int i = 0; i < GRID_BENCHES_MAX && pairs[i].keep_fp32; i++)
        run_free(pairs[i].keep_fp32);
    grid_benches_close(benches);
    return count;
}

static void a_dozen_layouts_stay_within_the_rounding_of_bf16(void **state)
{
    assert_true(check_layouts(bf16_names, BF16_NAMES, "bf16") >= BF16_AT_LEAST);
}

/* Without a loss scale: the gradients of these small models are within the range of fp16. */
static void some_layouts_stay_within_the_rounding_of_fp16(void **state)
{
    assert_int_equal(check_layouts(fp16_names, FP16_NAMES, "fp16"), FP16_NAMES);
}

static void some_layouts_stay_within_the_rounding_of_fp8(void **state)
{
    assert_int_equal(check_layouts(fp8_names, FP8_NAMES, "fp8"), FP8_NAMES);
}

RUN_CASES()
