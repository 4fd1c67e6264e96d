/* Layouts as processes, over shm and over gloo, and as logical ranks on a device that runs late,
 * give the bits of the same ranks as threads: sums are added in the order of ranks by every engine,
 * and what is launched late comes out as if it had run at once. `--run processes|gloo|lazy`
 * says how the ranks run.
 */
#include <stdio.h>
#include <string.h>

#include "tests/program/test.h"
#include "trial.h"

/* The other way of running a layout, chosen by --run. */
static enum hd_status (*run_otherwise)(const struct hd_job *job, struct run *run);

static const char *const names[] = {
    "gpt2: tp=2",
    "gpt2: tp=2 sequence=on dp=2",
    "gpt2: tp=4 sequence=on",
    "gpt2: tp=2 dp=4",
    "llama: tp=4",
    "llama: tp=2 sequence=on",
    "llama: tp=4 sequence=on dp=2",
    "llama: tp=2 dp=2 schedule=gpipe",
    "qwen2: tp=4 dp=2 micro_batches=1",
    "qwen3: tp=2 sequence=on dp=2",
    "qwen3: tp=4",
    "mistral: tp=2 dp=2",
    "gpt2: cp=2 dp=2",
    "llama: cp=4",
    "llama: cp=2 cp_exchange=all_gather",
    "llama: tp=2 sequence=on cp=2 dp=2",
    "mistral: tp=2 cp=2",
    "mixtral: dp=4 ep=2",
    "mixtral: tp=2 sequence=on cp=2 dp=2 ep=4",
    "gpt2: tp=2 sequence=on dp=2 schedule=gpipe reduce=bf16",
    "gpt2: dp=4 zero=1 zero_shard=2 reduce=bf16",
    "llama_tuned: tp=2 sequence=on dp=2 pp=2 zero=3 adapter=lora objective=dpo weights=nf4",
    "mixtral_tuned: tp=2 cp=2 dp=2 ep=2 adapter=prefix objective=reward weights=fp8",
};
enum { NAMES = sizeof names / sizeof names[0], AT_LEAST = 12 };
enum { STEPS = 3 }; /* the third begins with moments that two gradients have made */

static void check_same_bits(const struct run *mine, const struct run *threads, const char *text)
{
    if (memcmp(mine->state_hash, threads->state_hash, sizeof mine->state_hash) != 0)
        fail_msg("%s: gradients, weights or moments differ from those of threads", text);
    if (memcmp(mine->loss, threads->loss, sizeof mine->loss) != 0)
        fail_msg("%s: the losses differ from those of threads", text);
    if (memcmp(mine->grad_norm, threads->grad_norm, sizeof mine->grad_norm) != 0)
        fail_msg("%s: the gradient norms differ from those of threads", text);
}

/* The processes first: the parent must not have had threads when it forks. */
static void every_engine_gives_the_bits_of_threads(void **state)
{
    struct grid_bench benches[GRID_BENCHES_MAX] = {0};
    struct grid_pick picks[NAMES];
    struct run *runs[NAMES];
    const int count = grid_pick(names, NAMES, benches, picks);

    for (int i = 0; i < count; i++) {
        struct hd_job job;

        runs[i] = run_new(STEPS);
        job = grid_job(picks[i].bench->model, &picks[i].bench->harness, &picks[i].layout,
                       &runs[i]->layout);
        if (run_otherwise(&job, runs[i]))
            fail_msg("%s: %s", picks[i].text, hd_err_message());
    }
    for (int i = 0; i < count; i++) {
        struct run *threads = run_new(STEPS);
        const struct hd_job job = grid_job(picks[i].bench->model, &picks[i].bench->harness,
                                           &picks[i].layout, &threads->layout);

        if (run_on_threads(&job, threads))
            fail_msg("%s: %s", picks[i].text, hd_err_message());
        if (compare_ranks_agree(runs[i], run_world(&job)))
            fail_msg("%s: %s", picks[i].text, hd_err_message());
        check_same_bits(runs[i], threads, picks[i].text);
        (void)printf("PASS %s: the same bits\n", picks[i].text);
        run_free(threads);
        run_free(runs[i]);
    }
    assert_true(count >= AT_LEAST);
    grid_benches_close(benches);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {ALL_CASES};
    const char *how = argc == 3 && strcmp(argv[1], "--run") == 0 ? argv[2] : "";

    if (strcmp(how, "processes") == 0)
        run_otherwise = run_on_processes;
    else if (strcmp(how, "gloo") == 0)
        run_otherwise = run_on_gloo;
    else if (strcmp(how, "lazy") == 0)
        run_otherwise = run_on_lazy_device;
    else
        return 2;
    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
