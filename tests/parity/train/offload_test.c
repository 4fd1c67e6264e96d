/* offload: with parallel.offload: optimizer the host makes the update that the device makes
 * without, to the bit where the device computes as the CPU does; the device's memory shrinks by
 * what moved, and a checkpoint knows nothing of it.
 *
 * On the CPU the key changes nothing: the same tests then compare a run with itself.
 */
#include <stdio.h>
#include <string.h>

#include "compare.h"
#include "tests/program/test.h"

enum { STEPS = 4 };

struct layout {
    const char *family, *precision, *moments, *reduce;
    int dp, tp, pp, zero;
    int64_t scale; /* of fp16; 0: the default */
    const char *optimizer;
};

static struct hd_job job_of(const struct harness *h, const struct layout *l, bool offload)
{
    struct hd_job job = harness_job(h, l->family, l->dp);

    job.hidden = 64;
    job.head_width = 16;
    job.ffn_hidden = 96;
    job.tp = l->tp ? l->tp : 1;
    job.pp = l->pp ? l->pp : 1;
    job.zero = l->zero;
    if (l->scale)
        job.loss_scale_initial = l->scale;
    job.precision = hd_job_find_word(hd_job_precision_words, l->precision);
    if (l->moments)
        job.moments = hd_job_find_word(hd_job_moments_words, l->moments);
    if (l->optimizer)
        job.optimizer = hd_job_find_word(hd_job_optimizer_words, l->optimizer);
    if (l->reduce)
        job.reduce = hd_job_find_word(hd_job_reduce_words, l->reduce);
    if (job.pp > 1)
        (void)snprintf(job.schedule, sizeof job.schedule, "1f1b");
    job.qk_clip_threshold = 0.02; /* some heads are clipped, others not */
    if (offload)
        job.offload = HD_JOB_OFFLOAD_OPTIMIZER;
    return job;
}

static const struct layout layouts[] = {
    {.family = "llama", .precision = "fp32", .dp = 1},
    {.family = "gpt2", .precision = "bf16", .dp = 2},
    {.family = "llama", .precision = "fp32", .dp = 2, .zero = 1},
    {.family = "gpt2", .precision = "bf16", .dp = 2, .zero = 1},
    {.family = "llama", .precision = "bf16", .dp = 2, .zero = 2, .moments = "8bit"},
    {.family = "llama", .precision = "bf16", .dp = 2, .tp = 2, .zero = 3},
    {.family = "gpt2", .precision = "fp32", .dp = 2, .pp = 2, .zero = 2},
    {.family = "gpt2", .precision = "bf16", .dp = 2, .zero = 1, .reduce = "bf16"},
    {.family = "llama", .precision = "bf16", .dp = 2, .zero = 1, .optimizer = "lion"},
    /* the first steps overflow, and are skipped */
    {.family = "llama", .precision = "fp16", .dp = 2, .zero = 1, .scale = (int64_t)1 << 26},
};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

static void the_host_updates_as_the_device_does(void **state)
{
    struct harness h;

    harness_setup(&h, 20000);
    for (int i = 0; i < LAYOUTS; i++) {
        const struct hd_job plain = job_of(&h, &layouts[i], false),
                            offloaded = job_of(&h, &layouts[i], true);
        struct run *a = run_new(STEPS), *b = run_new(STEPS);

        run_threads(plain, layouts[i].dp, a);
        run_threads(offloaded, layouts[i].dp, b);
        assert_true(b->loss[STEPS - 1] != b->loss[0]); /* it trains */
        assert_memory_equal(b->loss, a->loss, sizeof a->loss);
        assert_memory_equal(b->grad_norm, a->grad_norm, sizeof a->grad_norm);
        assert_memory_equal(b->weights, a->weights, sizeof a->weights);
        assert_memory_equal(b->moments, a->moments, sizeof a->moments);
        assert_memory_equal(&b->validation_loss, &a->validation_loss, sizeof(double));
        if (compare_ranks_agree(b, run_world(&offloaded)))
            fail_msg("%s", hd_err_message());
        run_free(a);
        run_free(b);
    }
    harness_teardown(&h);
}

/* ---- memory ---- */

static int64_t aligned(int64_t bytes)
{
    return (bytes + HD_TENSOR_ALIGN - 1) / HD_TENSOR_ALIGN * HD_TENSOR_ALIGN;
}

/* The largest bucket holds its gradients, and what computes in bf16. Elements of a block of the
 * llama above with tied nothing: q and out 64 x 64, k and v 32 x 64, gate, up and down 96 x 64, two
 * norms of 64. The embedding and the head have 256 x 64. */
enum { BLOCK = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64 + 2 * 64 };

/* Goal: a plan says what the device keeps. Method: masters, moments and ranges leave it; fp32
 * weights that compute stay, as a copy, and a block's gradients pass through the host. */
static void the_device_keeps_what_computes(void **state)
{
    static const struct layout bf16 = {.family = "llama", .precision = "bf16", .dp = 1},
                               fp32 = {.family = "llama", .precision = "fp32", .dp = 1};
    const struct layout *const both[] = {&bf16, &fp32};
    const bool on_device = harness_backend()->device != NULL;
    struct harness h;

    harness_setup(&h, 20000);
    for (int i = 0; i < 2; i++) {
        const struct hd_job jobs[] = {job_of(&h, both[i], false), job_of(&h, both[i], true)};
        const int64_t width = both[i] == &bf16 ? 2 : 4;
        struct hd_rank_program plain, offloaded;
        struct hd_arena arena;
        int64_t ranges = 0, copies;

        hd_arena_init(&arena, 0);
        run_layout(&jobs[0], &(struct hd_rank_program_options){0}, &arena, &plain);
        run_layout(&jobs[1], &(struct hd_rank_program_options){0}, &arena, &offloaded);
        for (int p = 0; p < plain.registry.bucket_count; p++)
            ranges += aligned(plain.registry.buckets[p].range_count *
                              (int64_t)sizeof(struct hd_update_range));
        if (!on_device) {
            assert_memory_equal(&offloaded.memory, &plain.memory, sizeof plain.memory);
            hd_arena_done(&arena);
            continue;
        }
        copies = both[i] == &fp32 ? plain.memory.weights : 0;
        assert_int_equal(offloaded.memory.weights, plain.memory.weights);
        assert_int_equal(offloaded.memory.moments, plain.memory.moments);
        assert_int_equal(offloaded.memory.copies, plain.memory.copies + copies);
        assert_int_equal(offloaded.memory.offload, aligned(BLOCK * 4) + aligned(BLOCK * width));
        /* work has what aligns its begin, too */
        assert_int_equal(offloaded.memory.private_bytes - offloaded.memory.work,
                         plain.memory.private_bytes - plain.memory.work + copies -
                             plain.memory.weights - plain.memory.moments - ranges);
        assert_int_equal(offloaded.memory.host_bytes,
                         plain.memory.host_bytes + plain.memory.weights + plain.memory.moments +
                             ranges + offloaded.memory.offload);
        assert_int_equal(offloaded.memory.registered_bytes, plain.memory.registered_bytes);
        hd_arena_done(&arena);
    }
    harness_teardown(&h);
}

/* ---- checkpoints ---- */

/* Saved with the optimizer here, loaded with it there, in another layout: the same bits, and the
 * same steps. */
static void a_checkpoint_does_not_say_where_the_optimizer_was(void **state)
{
    static const struct layout one = {.family = "llama", .precision = "bf16", .dp = 1},
                               two = {.family = "llama", .precision = "bf16", .dp = 2, .zero = 2};
    struct harness h;

    harness_setup(&h, 20000);
    for (int from = 0; from < 2; from++) {
        const struct hd_job saves = job_of(&h, &two, from == 0);
        const struct hd_job loads[] = {job_of(&h, &two, from == 1), job_of(&h, &one, from == 1)};
        struct run *saved = run_new(2), *loaded = run_new(2);
        struct hd_saved checkpoint;

        run_save(&saves, 2 + from, saved, &checkpoint); /* a step is saved once */
        run_load(&loads[0], &checkpoint, loaded);
        run_compare_state(saved, loaded);
        assert_memory_equal(loaded->loss, saved->loss, sizeof saved->loss);
        run_load(&loads[1], &checkpoint, loaded);
        run_compare_state(saved, loaded);
        run_free(saved);
        run_free(loaded);
    }
    harness_teardown(&h);
}

RUN_CASES()
