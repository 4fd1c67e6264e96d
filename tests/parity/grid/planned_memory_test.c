/* Goal: a rank takes exactly the memory that `heddle plan` predicts, for 20 layouts each of three
 * models.
 *
 * Predicted is hd_plan_build, which lays out one rank of each class and never opens a device.
 * Measured is the rank: it trains and validates in a reservation of exactly that size, whose every
 * page the system counts as in use, and behind whose last byte nothing is written; its own layout
 * has the same bytes for each purpose; and (--full) no step asks for any more.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"
#include "tests/program/test.h"
#include "trial.h"
#include "witness.h"

/* Layouts of every model. */
static const char *const layouts[] = {
    "tp=1",
    "tp=2",
    "tp=4 sequence=on",
    "tp=2 sequence=on dp=2 zero=1",
    "dp=4 zero=1",
    "dp=4 zero=2 recompute=selective",
    "dp=4 zero=3 recompute=full",
    "dp=4 zero=3 zero_shard=2",
    "cp=2 recompute=full:2",
    "cp=2 dp=2 zero=2",
    "tp=2 sequence=on cp=2 zero=1 recompute=full",
    "pp=2",
    "pp=4 recompute=selective",
    "pp=2 schedule=gpipe recompute=full",
    "pp=2 schedule=interleaved",
    "pp=2 schedule=zb-h1 tp=2",
    "pp=2 schedule=zb-v dp=2 zero=1",
    "pp=2 dp=2 zero=3",
};
/* The last two of each. */
static const struct {
    const char *model, *layouts[2];
} more[] = {
    {"gpt2", {"dp=2 offload=optimizer zero=1", "dp=2 reduce=bf16 recompute=full:2"}},
    {"llama", {"dp=2 offload=optimizer zero=2", "pp=2 tp=2 sequence=on dp=2 zero=2"}},
    {"mixtral", {"dp=2 ep=2 zero=2", "dp=4 ep=4 recompute=full"}},
};
/* Fine-tuning, and blocks of several kinds. */
static const char *const tuned[] = {
    "mixtral_kinds: pp=2 tp=2 recompute=full",
    "mixtral_kinds: dp=2 ep=2 zero=3",
    "glm4_moe_further: pp=2 dp=2 ep=2 zero=2",
    "mixtral_tuned: tp=2 sequence=on dp=2 zero=1 adapter=bottleneck weights=int8",
    "mixtral_tuned: cp=2 recompute=full adapter=lora objective=reward",
    "mistral_tuned: tp=4 dp=2 zero=2 adapter=prefix weights=nf4",
    "llama_tuned: cp=2 recompute=selective adapter=prefix objective=dpo",
    "gpt_oss_tuned: tp=2 recompute=full adapter=lora weights=int8",
    "gpt2_tuned: pp=2 dp=2 zero=3 adapter=lora objective=grpo weights=fp8",
};
enum {
    MODELS = sizeof more / sizeof more[0],
    SHARED = sizeof layouts / sizeof layouts[0],
    EACH = SHARED + 2,
    NAMED = MODELS * EACH,
    NAMES = NAMED + sizeof tuned / sizeof tuned[0]
};
static_assert(EACH == 20, "20 layouts of each model");

static char texts[NAMED][GRID_TEXT_MAX];
static const char *names[NAMES];

static void name_all(void)
{
    for (int i = 0; i < NAMED; i++) {
        const int m = i / EACH, k = i % EACH;

        (void)snprintf(texts[i], sizeof texts[i], "%s: %s", more[m].model,
                       k < SHARED ? layouts[k] : more[m].layouts[k - SHARED]);
        names[i] = texts[i];
    }
    for (int i = NAMED; i < NAMES; i++)
        names[i] = tuned[i - NAMED];
}

/* bf16 and fp32 in turns. */
static struct hd_job job_of(const struct grid_pick *pick, int number)
{
    struct hd_rank_program_options options;
    struct hd_job job =
        grid_job(pick->bench->model, &pick->bench->harness, &pick->layout, &options);

    job.precision = number % 2 ? HD_JOB_PRECISION_BF16 : HD_JOB_PRECISION_FP32;
    return job;
}

static void plan_job(const struct hd_job *job, struct hd_memory *ret_memory)
{
    struct hd_traits traits;
    struct hd_arena arena;
    struct hd_plan plan;

    harness_backend()->describe(&(struct hd_backend_options){.threads = 1}, &traits);
    hd_arena_init(&arena, 0);
    if (hd_plan_build(job, &traits, &arena, &plan))
        fail_msg("%s", hd_err_message());
    for (int r = 0; r < plan.mesh.world; r++)
        ret_memory[r] = hd_plan_rank(&plan, r)->memory;
    hd_arena_done(&arena);
}

static void each_rank_takes_what_was_planned(void **state)
{
    struct grid_bench benches[GRID_BENCHES_MAX] = {0};
    static struct grid_pick picks[NAMES];
    int count;

    name_all();
    count = grid_pick(names, NAMES, benches, picks);
    for (int i = 0; i < count; i++) {
        const struct hd_job job = job_of(&picks[i], i);
        struct hd_memory planned[HARNESS_WORLD_MAX];

        plan_job(&job, planned);
        if (witness_edges(&job, &(struct witness_cut){.predicted = planned}))
            fail_msg("%s, %s: %s", picks[i].text, hd_job_precision_words[job.precision],
                     hd_err_message());
    }
    assert_int_equal(count, NAMES);
    grid_benches_close(benches);
}

/* In processes, so that what is counted is one rank's. */
static void no_step_of_theirs_allocates(void **state)
{
    struct grid_bench benches[GRID_BENCHES_MAX] = {0};
    static struct grid_pick picks[NAMES];
    int count;

    if (!interpose_works()) {
        print_message("a sanitizer brings its own malloc\n");
        skip();
    }
    name_all();
    count = grid_pick(names, NAMES, benches, picks);
    for (int i = 0; i < count; i++) {
        struct hd_job job = job_of(&picks[i], i);

        job.vocab = 256; /* oneDNN takes buffers for products of uneven shares */
        print_message("%s, %s\n", picks[i].text, hd_job_precision_words[job.precision]);
        witness_quiet(&job, &(struct hd_rank_program_options){0});
    }
    grid_benches_close(benches);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_rank_takes_what_was_planned)};
    const struct CMUnitTest dear[] = {cmocka_unit_test(no_step_of_theirs_allocates)};

    if (argc > 1 && strcmp(argv[1], "--full") == 0)
        return cmocka_run_group_tests_name("planned memory in full", dear, NULL, NULL);
    return cmocka_run_group_tests_name("planned memory", tests, NULL, NULL);
}
