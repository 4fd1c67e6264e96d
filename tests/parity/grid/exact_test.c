/* Goal: bits are equal by construction: what one layout computes with the same operands, in the
 * same order, as another.
 */
#include <stdio.h>
#include <string.h>

#include "tests/program/test.h"
#include "trial.h"

static const char *const models[] = {"gpt2", "llama", "qwen2", "qwen3", "mistral", "mixtral"};
enum { MODELS = sizeof models / sizeof models[0] };

/* Trains a layout, given in words; the caller frees the run. */
static struct run *run_of(const struct grid_bench *bench, const char *words)
{
    struct run *run = run_new(GRID_STEPS);
    struct grid_layout layout;
    struct hd_job job;

    if (grid_read(words, &layout))
        fail_msg("%s", hd_err_message());
    for (int a = 0; a < GRID_AXES; a++)
        if (layout.value[a] < 0)
            layout.value[a] = 0;
    job = grid_job(bench->model, &bench->harness, &layout, &run->layout);
    if (run_on_threads(&job, run))
        fail_msg("%s %s: %s", bench->model->name, words, hd_err_message());
    return run;
}

/* Parameters whose gradient is a sum over the rows of all ranks with sequence parallelism, and over
 * all rows on each rank without: the order of the terms differs. */
static bool sees_local_rows(const struct hd_param *p)
{
    return p->tp_axis < 0 && !strstr(p->name, "q_norm") && !strstr(p->name, "k_norm");
}

static void compare_first_gradients(const struct grid_bench *bench, const struct run *a,
                                    const struct run *b, const char *text)
{
    const struct hd_job job = grid_reference(bench->model, &bench->harness);
    struct hd_rank_program layout;
    struct hd_arena arena;
    int64_t at = 0, equal = 0;

    hd_arena_init(&arena, 0);
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &layout);
    for (int i = 0; i < layout.registry.param_count; i++) {
        const struct hd_param *p = &layout.registry.params[i];
        const size_t bytes = (size_t)p->real_count * sizeof(float);

        if (!sees_local_rows(p)) {
            if (memcmp(a->first_grad + at, b->first_grad + at, bytes) != 0)
                fail_msg("%s %s: the first gradient of %s differs in a bit", bench->model->name,
                         text, p->name);
            equal++;
        }
        at += p->real_count;
    }
    assert_true(equal >= 8); /* embedding, q, k, v, out, up, down of two blocks */
    hd_arena_done(&arena);
}

/* All rows are gathered before each product, so products, attention and loss have the operands they
 * had without; rows of a norm know nothing of each other; and a scattered sum adds the ranks in the
 * order in which the whole one does. The first loss and the gradients of everything that sees all
 * rows are the same bits. */
static void sharing_rows_changes_no_bit_of_what_sees_all_rows(void **state)
{
    for (int m = 0; m < MODELS; m++) {
        struct grid_bench bench;

        grid_bench_open(&bench, models[m]);
        for (int tp = 2; tp <= 4; tp *= 2) {
            struct run *off = run_of(&bench, tp == 2 ? "tp=2" : "tp=4");
            struct run *on = run_of(&bench, tp == 2 ? "tp=2 sequence=on" : "tp=4 sequence=on");

            assert_true(off->loss[0] == on->loss[0]);
            compare_first_gradients(&bench, off, on, tp == 2 ? "tp=2" : "tp=4");
            run_free(off);
            run_free(on);
        }
        grid_bench_close(&bench);
    }
}

static void check_same_run(const struct grid_bench *bench, const char *one, const char *other)
{
    struct run *a = run_of(bench, one), *b = run_of(bench, other);

    if (memcmp(a->state_hash, b->state_hash, sizeof a->state_hash) != 0 ||
        memcmp(a->loss, b->loss, sizeof a->loss) != 0)
        fail_msg("%s: '%s' and '%s' differ in a bit", bench->model->name, one, other);
    run_free(a);
    run_free(b);
}

/* When a collective of tp runs and when a weight's gradient is formed is no part of the result:
 * each program takes the micro-batches in ascending order. Only where two programs add to one
 * gradient, head and embedding of a tied one, does a schedule order them. */
static void schedules_and_repeats_give_the_same_bits(void **state)
{
    for (int m = 0; m < MODELS; m++) {
        struct grid_bench bench;

        grid_bench_open(&bench, models[m]);
        if (!grid_reference(bench.model, &bench.harness).tie_embeddings) {
            check_same_run(&bench, "tp=2 sequence=on", "tp=2 sequence=on schedule=gpipe");
            check_same_run(&bench, "tp=4 dp=2", "tp=4 dp=2 schedule=gpipe");
        }
        check_same_run(&bench, "tp=2 sequence=on dp=2", "tp=2 sequence=on dp=2");
        grid_bench_close(&bench);
    }
}

/* Both exchanges attend to the same blocks in the same order, the own one first, so the first loss
 * is the same bits. In backward a ring adds the terms of a block in the order in which it passes
 * the ranks, a scattered sum in theirs: of two terms there is but one sum. */
static void keys_gathered_or_in_a_ring_give_the_same_bits(void **state)
{
    for (int m = 0; m < MODELS; m++) {
        struct run *ring, *gather;
        struct grid_bench bench;

        grid_bench_open(&bench, models[m]);
        check_same_run(&bench, "cp=2 dp=2", "cp=2 dp=2 cp_exchange=all_gather");
        ring = run_of(&bench, "cp=4");
        gather = run_of(&bench, "cp=4 cp_exchange=all_gather");
        assert_true(ring->loss[0] == gather->loss[0]);
        run_free(ring);
        run_free(gather);
        grid_bench_close(&bench);
    }
}

RUN_CASES()
