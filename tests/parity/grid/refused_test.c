/* Goal: the engine refuses layouts by name: the combinations of the grid that axes.c leaves out
 * because they cannot be, and those that no model of the grid has. One that begins to work fails
 * here, so that it is taken into the grid. (What a job file may not say beside an objective:
 * unit/spec/spec_test.)
 */
#include <stdio.h>
#include <string.h>

#include "tests/program/test.h"
#include "trial.h"

static void name_experts(struct hd_job *job)
{
    job->adapter_targets = "q_proj,w2";
}

static void train_the_last_block(struct hd_job *job)
{
    job->only = "last:1";
}

static void train_a_matrix_beside(struct hd_job *job)
{
    job->adapter_also = "blocks.0.mlp.down.weight";
}

static const struct grid_refusal {
    const char *model, *words;
    void (*change)(struct hd_job *job); /* what no axis says; NULL: nothing */
    const char *message;
} refusals[] = {
    {"llama_tuned", "weights=nf4", NULL,
     "model.quantization: nf4 does not go with blocks.0.attention.q.weight, which trains"},
    {"gpt2_tuned", "weights=int8 objective=dpo", NULL,
     "model.quantization: int8 does not go with blocks.0.attention.q.weight, which trains"},
    {"mixtral_tuned", "weights=fp8 objective=reward", NULL,
     "model.quantization: fp8 does not go with blocks.0.attention.q.weight, which trains"},
    {"llama_tuned", "weights=nf4", train_the_last_block,
     "model.quantization: nf4 does not go with blocks.1.attention.q.weight, which trains"},
    {"llama_tuned", "weights=nf4 adapter=lora", train_a_matrix_beside,
     "model.quantization: nf4 does not go with blocks.0.mlp.down.weight, which trains"},
    {"llama_tuned", "adapter=lora", train_the_last_block,
     "train.trainable: with train.adapter the adapter trains"},
    {"llama", "weights=nf4 adapter=lora tp=4", NULL,
     "parallel.tp: 4 cuts through a block of 64 weights of "},
    {"llama_alibi", "adapter=prefix", NULL, "train.adapter.type: a prefix has no position"},
    {"mixtral_tuned", "adapter=dora", name_experts,
     "train.adapter.dora: the adapters of experts have no magnitudes"},
};

static void each_refusal_has_its_words(void **state)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct grid_refusal *r = &refusals[i];
        struct hd_rank_program_options options;
        struct grid_layout layout;
        struct grid_bench bench;
        struct hd_job job;

        grid_bench_open(&bench, r->model);
        assert_int_equal(grid_read(r->words, &layout), HD_OK);
        for (int a = 0; a < GRID_AXES; a++)
            layout.value[a] = layout.value[a] < 0 ? 0 : layout.value[a];
        job = grid_job(bench.model, &bench.harness, &layout, &options);
        if (r->change)
            r->change(&job);
        if (!grid_ask(&job, &options))
            fail_msg("%s %s is not refused any more: take it into the grid", r->model, r->words);
        if (!strstr(hd_err_message(), r->message))
            fail_msg("%s %s: %s", r->model, r->words, hd_err_message());
        (void)printf("REFUSED %s %s: %s\n", r->model, r->words, hd_err_message());
        grid_bench_close(&bench);
    }
}

RUN_CASES()
