/* A dozen layouts live in exactly the memory that was predicted for each of their ranks, and no
 * step of theirs asks for any more; what a rank holds of the model is what its shares come to.
 */
#include <stdio.h>
#include <string.h>

#include "tests/program/test.h"
#include "trial.h"
#include "witness.h"

static const char *const names[] = {
    "llama: tp=2",
    "llama: tp=4",
    "llama: tp=2 sequence=on",
    "llama: tp=4 sequence=on dp=2",
    "llama: tp=2 sequence=on dp=2 schedule=gpipe",
    "llama: dp=4 micro_batches=1",
    "gpt2: tp=2",
    "gpt2: tp=4 sequence=on",
    "gpt2: tp=2 sequence=on schedule=gpipe",
    "qwen2: tp=2 dp=2",
    "qwen3: tp=4 sequence=on",
    "mistral: tp=2 sequence=on dp=4",
    "llama: cp=2",
    "llama: tp=2 sequence=on cp=2 dp=2",
    "gpt2: cp=4 cp_exchange=all_gather",
    "mistral: cp=2 dp=2 schedule=gpipe",
    "mixtral: tp=2 dp=2 ep=2",
    "mixtral: cp=2 dp=2 ep=4 schedule=gpipe",
    "gpt2: dp=2 reduce=bf16",
};
enum { NAMES = sizeof names / sizeof names[0], AT_LEAST = 12 };

/* The sizes of harness_job. */
enum { L = 2, C = 32, H = 4, G = 2, D = 8, F = 48 };

static struct hd_job job_of(const struct grid_pick *pick, bool bf16,
                            struct hd_rank_program_options *ret_options)
{
    struct hd_job job =
        grid_job(pick->bench->model, &pick->bench->harness, &pick->layout, ret_options);

    job.precision = bf16 ? HD_JOB_PRECISION_BF16 : HD_JOB_PRECISION_FP32;
    return job;
}

/* First in the list: processes. With a vocabulary that tp divides: for a product as wide as the
 * last of uneven shares oneDNN takes buffers that are not ours to plan. */
static void no_step_of_any_layout_allocates(void **state)
{
    struct grid_bench benches[GRID_BENCHES_MAX] = {0};
    struct grid_pick picks[NAMES];
    const int count = grid_pick(names, NAMES, benches, picks);

    if (!interpose_works()) {
        print_message("a sanitizer brings its own malloc\n");
        grid_benches_close(benches);
        skip();
    }
    for (int i = 0; i < count; i++) {
        struct hd_rank_program_options options;
        struct hd_job job = job_of(&picks[i], i % 2, &options);

        job.vocab = 256;
        print_message("%s, %s\n", picks[i].text, hd_job_precision_words[job.precision]);
        witness_quiet(&job, &options);
    }
    assert_true(count >= AT_LEAST);
    grid_benches_close(benches);
}

static void every_rank_lives_in_exactly_what_was_predicted(void **state)
{
    struct grid_bench benches[GRID_BENCHES_MAX] = {0};
    struct grid_pick picks[NAMES];
    const int count = grid_pick(names, NAMES, benches, picks);

    for (int i = 0; i < 2 * count; i++) {
        struct witness_cut cut = {.layout = {0}};
        const struct hd_job job = job_of(&picks[i / 2], i % 2, &cut.layout);

        if (witness_edges(&job, &cut))
            fail_msg("%s, %s: %s", picks[i / 2].text, hd_job_precision_words[job.precision],
                     hd_err_message());
    }
    assert_true(count >= AT_LEAST);
    grid_benches_close(benches);
}

/* Elements of one rank. Embedding and head: for 258 rows one rank has 320 and two have 192 each
 * (multiples of 64), four 65 (with 128 each the last one would have none). Of a block everything
 * but the two norms is cut; a key/value head is the least that a rank has of those. All of it in
 * multiples of 16. */
static int64_t llama_share(int64_t tp)
{
    const int64_t rows = tp == 1 ? 320 : tp == 2 ? 192 : 65, kv = G > tp ? G / tp : 1;
    const int64_t block = 2 * C + (2 * H / tp + 2 * kv) * D * C + 3 * (F / tp) * C;

    return 2 * rows * C + L * block + C;
}

static void weights_gradients_and_moments_are_those_of_the_share(void **state)
{
    struct grid_bench benches[GRID_BENCHES_MAX] = {0};
    struct grid_pick picks[NAMES];
    const int count = grid_pick(names, NAMES, benches, picks);
    int checked = 0;

    for (int i = 0; i < count; i++) {
        struct hd_rank_program_options options;
        const struct hd_job job = job_of(&picks[i], true, &options);

        for (int r = 0; r < run_world(&job) && strcmp(job.family, "llama") == 0; r++) {
            const struct hd_memory m = witness_predict(&job, &options, r);

            assert_int_equal(m.weights, 4 * llama_share(job.tp));
            assert_int_equal(m.gradients, 4 * llama_share(job.tp));
            assert_int_equal(m.moments, 2 * 4 * llama_share(job.tp));
            assert_int_equal(m.copies, 2 * llama_share(job.tp));
            checked++;
        }
    }
    assert_true(checked >= 2 + 4 + 2 + 8 + 4 + 4);
    grid_benches_close(benches);
}

RUN_CASES()
