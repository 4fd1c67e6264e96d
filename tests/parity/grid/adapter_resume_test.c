/* Goal: fine-tuning keeps its promises: an adapter that any layout saved goes on under any other,
 * bit for bit, and what is frozen is after 100 steps what it was.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "trial.h"

static struct hd_job job_of(const struct grid_bench *bench, const char *tuning, const char *ranks)
{
    struct hd_rank_program_options options;
    struct grid_layout layout;
    char words[GRID_TEXT_MAX];

    (void)snprintf(words, sizeof words, "%s %s", ranks, tuning);
    if (grid_read(words, &layout))
        fail_msg("%s", hd_err_message());
    for (int a = 0; a < GRID_AXES; a++)
        layout.value[a] = layout.value[a] < 0 ? 0 : layout.value[a];
    if (grid_exclusion(&layout))
        fail_msg("%s: %s", words, grid_exclusion(&layout));
    return grid_job(bench->model, &bench->harness, &layout, &options);
}

/* ---- checkpoints ---- */

enum { LINKS = 5, BEFORE = 2, AFTER = 2 };

struct chain {
    const char *model, *tuning, *ranks[LINKS];
};

/* The first saves; each other loads that and saves it again, so that every layout reads another's
 * checkpoint and writes one; and the first goes on from the last of them. */
static void pass_on(const struct chain *c)
{
    struct run *first = run_new(AFTER), *again = run_new(AFTER);
    struct hd_saved saved, next;
    struct grid_bench bench;
    struct hd_job job;

    grid_bench_open(&bench, c->model);
    job = job_of(&bench, c->tuning, c->ranks[0]);
    run_save(&job, BEFORE, first, &saved);
    for (int i = 1; i < LINKS; i++) {
        struct run *run = run_new(0);

        job = job_of(&bench, c->tuning, c->ranks[i]);
        job.attempt_dir = job_text("%.150s/attempt-%d", bench.harness.dir, i + 1);
        run_load_and_save(&job, &saved, run, &next);
        (void)printf("%s %s: %s\n", c->model, c->tuning, c->ranks[i]);
        run_compare_state(first, run);
        saved = next;
        run_free(run);
    }
    job = job_of(&bench, c->tuning, c->ranks[0]);
    run_load(&job, &saved, again);
    run_compare_state(first, again);
    for (int s = 0; s < AFTER; s++)
        assert_true(first->loss[s] == again->loss[s] && first->loss[s] > 0);
    run_free(first);
    run_free(again);
    grid_bench_close(&bench);
}

static void an_adapter_of_any_layout_goes_on_under_any_other(void **state)
{
    static const struct chain chains[] = {
        {"llama_tuned",
         "adapter=lora objective=dpo weights=nf4",
         {"tp=1", "tp=4 pp=2", "cp=2 dp=2 zero=1", "dp=4 zero=3", "tp=2 sequence=on dp=2 zero=2"}},
        {"mixtral_tuned",
         "adapter=lora",
         {"tp=2 dp=2 ep=2 zero=1", "tp=4 dp=2 zero=3", "dp=4 ep=4", "pp=4", "cp=2 ep=2 zero=2"}},
        {"mixtral_tuned",
         "adapter=bottleneck objective=reward weights=int8",
         {"pp=2 dp=2 zero=3", "tp=1", "tp=4", "cp=4 zero=1", "dp=2 ep=2 zero=2 tp=2"}},
        {"gpt2_tuned",
         "adapter=prefix objective=grpo weights=fp8",
         {"dp=4 zero=3 zero_shard=2", "tp=4 sequence=on", "tp=2 pp=2 dp=2 zero=1", "cp=4", "pp=4"}},
    };

    for (size_t i = 0; i < sizeof chains / sizeof chains[0]; i++)
        pass_on(&chains[i]);
}

/* ---- frozen weights ---- */

enum { STEPS = 100 };

/* Returns a hash of this rank's shard of the trainable weights, or of the frozen ones. */
static uint64_t hash_of(struct hd_trainer *t, bool trainable)
{
    const struct hd_registry *r = &hd_trainer_rank_program(t)->registry;
    struct hd_hash hash;

    hd_hash_begin(&hash);
    for (int i = 0; i < r->param_count; i++) {
        int64_t first, count;
        float *values;

        hd_trainer_local_shard(t, i, HD_STATE_WEIGHT, &first, &count);
        if (r->params[i].trainable != trainable || !count)
            continue;
        values = harness_take(t, i, HD_STATE_WEIGHT);
        hd_hash_add(&hash, values + first, (size_t)count * sizeof *values);
        free(values);
    }
    return hd_hash_value(&hash);
}

static enum hd_status train_long(struct harness_rank *r)
{
    struct hd_step_result result;
    struct hd_trainer *t;
    uint64_t frozen, trained;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    frozen = hash_of(t, false);
    trained = hash_of(t, true);
    for (int s = 0; !st && s < STEPS; s++)
        st = pairs_step(t, &result);
    if (!st && hash_of(t, false) != frozen)
        st = hd_err(HD_INTERNAL, "rank %d: frozen weights are not what they were", r->rank);
    if (!st && hash_of(t, true) == trained)
        st = hd_err(HD_INTERNAL, "rank %d: nothing has trained", r->rank);
    hd_trainer_free(t);
    return st;
}

/* Goal: not one bit of what is frozen moves. Method: hashes of each rank's shares, of bf16 and of
 * codes as they are decoded, before and after. */
static void frozen_weights_are_after_100_steps_what_they_were(void **state)
{
    static const struct {
        const char *model, *tuning, *ranks;
    } cases[] = {{"llama_tuned", "adapter=lora weights=nf4", "tp=1"},
                 {"gpt2_tuned", "adapter=prefix objective=reward", "dp=2 zero=3"}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct grid_bench bench;
        struct hd_job job;

        grid_bench_open(&bench, cases[i].model);
        job = job_of(&bench, cases[i].tuning, cases[i].ranks);
        job.precision = HD_JOB_PRECISION_BF16;
        job.global_batch = 2;
        job.micro_batch = 1;
        job.steps = STEPS;
        if (harness_threads(&job, run_world(&job), NULL, train_long))
            fail_msg("%s %s: %s", cases[i].model, cases[i].tuning, hd_err_message());
        grid_bench_close(&bench);
    }
}

/* ---- the reference ---- */

static enum hd_status take_first_step(struct harness_rank *r)
{
    struct hd_step_result result;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (!st)
        st = pairs_step(t, &result);
    if (!st && (fabs(result.loss - log(2)) > 1e-15 || result.pairs.margin != 0))
        st = hd_err(HD_INTERNAL, "rank %d: the first loss is %.17g, the margin %g", r->rank,
                    result.loss, result.pairs.margin);
    hd_trainer_free(t);
    return st;
}

/* Goal: every log-ratio is 0 to the last bit, so the loss is -log sigmoid(0) = ln 2. Method:
 * layouts whose training program differs from that of validation, which made the reference; each
 * makes its own. */
static void dpo_begins_at_ln_2_in_any_layout(void **state)
{
    static const struct {
        const char *tuning, *ranks;
    } cases[] = {{"objective=dpo adapter=lora weights=nf4", "tp=4 sequence=on recompute=full"},
                 {"objective=dpo adapter=dora weights=int8", "tp=2 cp=2 cp_exchange=all_gather"},
                 {"objective=dpo adapter=prefix weights=fp8", "pp=4 dp=2 zero=2 schedule=zb-h1"},
                 {"objective=dpo adapter=bottleneck", "cp=4 recompute=selective"},
                 {"objective=dpo", "dp=4 zero=3"}};
    struct grid_bench bench;

    grid_bench_open(&bench, "llama_tuned");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_job job = job_of(&bench, cases[i].tuning, cases[i].ranks);

        job.precision = i % 2 ? HD_JOB_PRECISION_BF16 : HD_JOB_PRECISION_FP32;
        pairs_forget_reference(&bench.harness);
        if (harness_threads(&job, run_world(&job), NULL, take_first_step))
            fail_msg("%s %s, %s: %s", cases[i].tuning, cases[i].ranks,
                     hd_job_precision_words[job.precision], hd_err_message());
    }
    grid_bench_close(&bench);
}

RUN_CASES()
