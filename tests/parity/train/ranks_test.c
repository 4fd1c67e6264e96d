/* Data parallelism changes nothing but rounding: 2 and 4 ranks against 1, one rank with its batch
 * cut in other ways, threads against processes, bf16 and fp16 against fp32.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare.h"
#include "tests/program/test.h"
#include "tests/sanitized.h"

enum { STEPS = HD_TEST_SANITIZED ? 4 : 20, CORPUS_BYTES = 20000 };

/* Every rank holds the same bits. */
static void check_ranks_agree(const struct run *run, int dp)
{
    for (int r = 1; r < dp; r++)
        assert_true(run->state_hash[r] == run->state_hash[0]);
}

static void check(enum hd_status st)
{
    if (st)
        fail_msg("%s", hd_err_message());
}

/* A run of this job and dp against the reference run of the same global batch. */
static void compare_run(struct hd_job job, int dp, const struct run *reference)
{
    job.dp = dp;
    check(compare_with(&job, reference, NULL));
}

/* The loss starts near ln 256 = 5.55, as far as small weights know nothing. The corpus has 19
 * letters; to know only which bytes there are, at equal odds, leaves ln 19 = 2.94. Adam moves each
 * weight by about its rate: 20 steps of 3e-3, cosine, are about 0.03, more than the initial 0.02.
 * So the loss must have gone at least one nat of the 2.6 on that way: in all 20 steps. */
static void check_learning(const struct run *run)
{
    assert_true(fabs(run->loss[0] - log(256)) < 0.2);
    if (!HD_TEST_SANITIZED && !(run->loss[STEPS - 1] < run->loss[0] - 1))
        fail_msg("the loss went only from %g to %g", run->loss[0], run->loss[STEPS - 1]);
}

static void family_case(const char *family)
{
    struct harness h;
    struct hd_job job;
    struct run *one = run_new(STEPS);

    harness_setup(&h, CORPUS_BYTES);
    job = harness_job(&h, family, 1);
    run_threads(job, 1, one);
    check_learning(one);
    compare_run(job, 2, one);
    compare_run(job, 4, one);
    job.micro_batch = 1;
    compare_run(job, 1, one);
    compare_run(job, 2, one);
    job.micro_batch = 4;
    compare_run(job, 1, one);
    run_free(one);
    harness_teardown(&h);
}

static void llama_with_grouped_queries_trains_alike_on_1_2_and_4_ranks(void **state)
{
    family_case("llama");
}

static void gpt2_with_a_tied_head_trains_alike_on_1_2_and_4_ranks(void **state)
{
    family_case("gpt2");
}

static void the_same_run_gives_the_same_bits(void **state)
{
    struct harness h;
    struct hd_job job;
    struct run *a = run_new(STEPS), *b = run_new(STEPS);

    harness_setup(&h, CORPUS_BYTES);
    job = harness_job(&h, "llama", 4);
    run_threads(job, 4, a);
    run_threads(job, 4, b);
    check_ranks_agree(a, 4);
    assert_true(a->state_hash[0] == b->state_hash[0]);
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    run_free(a);
    run_free(b);
    harness_teardown(&h);
}

/* First in the list: no thread of the parent may hold a lock when it forks. */
static void processes_and_threads_give_the_same_bits(void **state)
{
    static const char *const families[] = {"llama", "gpt2"};
    struct run *processes[2] = {run_new(STEPS), run_new(STEPS)};
    struct harness h;

    harness_setup(&h, CORPUS_BYTES);
    for (int f = 0; f < 2; f++)
        run_processes(harness_job(&h, families[f], 4), 4, processes[f]);
    for (int f = 0; f < 2; f++) {
        struct run *threads = run_new(STEPS);

        run_threads(harness_job(&h, families[f], 4), 4, threads);
        check_ranks_agree(processes[f], 4);
        assert_true(threads->state_hash[0] == processes[f]->state_hash[0]);
        assert_memory_equal(threads->loss, processes[f]->loss, sizeof threads->loss);
        run_free(threads);
        run_free(processes[f]);
    }
    harness_teardown(&h);
}

/* The order in which a schedule runs the micro-batches, and whether B and W are one program, are no
 * part of the result: each program takes the micro-batches in ascending order. */
static void schedules_give_the_same_bits(void **state)
{
    struct harness h;
    struct hd_job job;
    struct run *sequential = run_new(STEPS);

    harness_setup(&h, CORPUS_BYTES);
    job = harness_job(&h, "llama", 2);
    run_threads(job, 2, sequential);
    for (int v = 1; v < 4; v++) {
        struct run *other = run_new(STEPS);

        other->layout = (struct hd_rank_program_options){
            .schedule = v & 1 ? HD_SCHEDULE_GPIPE : HD_SCHEDULE_1F1B, .split_backward = v & 2};
        run_threads(job, 2, other);
        assert_true(other->state_hash[0] == sequential->state_hash[0]);
        run_free(other);
    }
    run_free(sequential);
    harness_teardown(&h);
}

static void half_case(const char *family, const char *precision)
{
    struct harness h;
    struct hd_job job;
    struct run *fp32 = run_new(STEPS), *one = run_new(STEPS), *two = run_new(STEPS);

    harness_setup(&h, CORPUS_BYTES);
    job = harness_job(&h, family, 1);
    run_threads(job, 1, fp32);
    job.precision = hd_job_find_word(hd_job_precision_words, precision);
    run_threads(job, 1, one);
    job.micro_batch = 1;
    run_threads(job, 2, two);
    check_ranks_agree(two, 2);
    check(compare_gradients(&job, two->first_grad, one->first_grad, half_bound, NULL));
    check(compare_gradients(&job, one->first_grad, fp32->first_grad, half_bound, NULL));
    assert_true(fabs(one->loss[0] - fp32->loss[0]) <= half_loss_bound(&job));
    assert_true(fabs(two->loss[0] - fp32->loss[0]) <= half_loss_bound(&job));
    check_learning(one);
    check_learning(two);
    run_free(fp32);
    run_free(one);
    run_free(two);
    harness_teardown(&h);
}

static void llama_in_bf16_stays_within_its_rounding(void **state)
{
    half_case("llama", "bf16");
}

static void gpt2_in_bf16_stays_within_its_rounding(void **state)
{
    half_case("gpt2", "bf16");
}

static void llama_in_fp16_stays_within_its_rounding(void **state)
{
    half_case("llama", "fp16");
}

static void gpt2_in_fp16_stays_within_its_rounding(void **state)
{
    half_case("gpt2", "fp16");
}

RUN_CASES()
