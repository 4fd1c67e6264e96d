/* moments: with train.moments: 8bit layouts have each other's bits where they have them in fp32,
 * checkpoints cross between layouts and encodings, memory follows closed forms, and training ends
 * where it ends in fp32.
 *
 * The model has every kind of block: q, gate, up and head of rows of 64; out of 16, as tp may leave
 * one head of 16 channels; down of 8, as tp = 4 would leave 24 channels. fp32 are k and v (2,048
 * elements), norms and the embedding.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "tests/sanitized.h"

enum { STEPS = 4, LONG_STEPS = HD_TEST_SANITIZED ? 100 : 500 };

static struct hd_job wide_job(const struct harness *h, const char *family, int dp)
{
    struct hd_job job = harness_job(h, family, dp);

    job.hidden = 64;
    job.head_width = 16;
    job.ffn_hidden = 96;
    job.moments = HD_JOB_MOMENTS_INT8;
    return job;
}

struct layout {
    const char *family, *precision;
    int dp, tp, pp, cp, zero, zero_shard;
};

static struct hd_job job_of(const struct harness *h, const struct layout *l)
{
    struct hd_job job = wide_job(h, l->family, l->dp);

    job.tp = l->tp ? l->tp : 1;
    job.pp = l->pp ? l->pp : 1;
    job.cp = l->cp ? l->cp : 1;
    job.zero = l->zero;
    job.zero_shard = l->zero_shard;
    job.tie_embeddings = false;
    if (strcmp(l->family, "mixtral") == 0) { /* RUN_ELEMENTS_MAX */
        job.layers = 1;
        job.ffn_hidden = 64;
    }
    if (l->precision)
        job.precision = hd_job_find_word(hd_job_precision_words, l->precision);
    if (job.pp > 1)
        (void)snprintf(job.schedule, sizeof job.schedule, "1f1b");
    return job;
}

/* ---- blocks ---- */

static int64_t block_of(const struct hd_registry *r, const char *name)
{
    for (int i = 0; i < r->param_count; i++)
        if (strcmp(r->params[i].name, name) == 0)
            return r->params[i].block;
    fail_msg("no parameter %s", name);
    return -1;
}

/* Goal: a block is a property of the model. Method: all ranks of layouts that cut in every way have
 * the blocks that are derived above; k and v would be 1,024 elements of each tp rank, and q, which
 * has 4,096, is in blocks where a rank has 1,024. A cut is at a bound of blocks. */
static void blocks_follow_from_global_shapes(void **state)
{
    static const struct layout layouts[] = {{.family = "llama", .dp = 1},
                                            {.family = "llama", .dp = 1, .tp = 4},
                                            {.family = "llama", .dp = 2, .tp = 2, .zero = 3},
                                            {.family = "llama", .dp = 4, .zero = 1},
                                            {.family = "llama", .dp = 2, .pp = 2, .zero = 2}};
    static const struct {
        const char *name;
        int64_t block;
    } wanted[] = {{"embedding.weight", 0},
                  {"blocks.1.norm1.weight", 0},
                  {"blocks.1.attention.q.weight", 64},
                  {"blocks.1.attention.k.weight", 0},
                  {"blocks.1.attention.out.weight", 16},
                  {"blocks.1.mlp.up.weight", 64},
                  {"blocks.1.mlp.down.weight", 8},
                  {"head.weight", 64}};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        const struct hd_job job = job_of(&h, &layouts[i]);

        for (int rank = 0; rank < run_world(&job); rank++) {
            struct hd_arena arena;
            struct hd_rank_program l;

            hd_arena_init(&arena, 0);
            run_layout_of(&job, rank, &(struct hd_rank_program_options){0}, &arena, &l);
            for (size_t k = 0; k < sizeof wanted / sizeof wanted[0]; k++)
                assert_int_equal(block_of(&l.registry, wanted[k].name), wanted[k].block);
            for (int p = 0; p < l.registry.param_count; p++) {
                const struct hd_param *q = &l.registry.params[p];
                const struct hd_bucket *bucket = &l.registry.buckets[q->bucket];

                if (!q->block)
                    continue;
                assert_int_equal(q->offset % q->block, 0);
                assert_int_equal(q->local[q->dim_count - 1] % q->block, 0);
                if (bucket->shard_begin < bucket->count)
                    assert_int_equal(bucket->shard_begin % q->block, 0);
            }
            hd_arena_done(&arena);
        }
    }
    harness_teardown(&h);
}

/* A matrix whose declaration says that tp leaves rows whole, of which four ranks have 48 columns of
 * a block of 64. */
static void a_cut_within_a_block_is_refused_by_name(void **state)
{
    const struct hd_param_spec spec = {.name = "wrong",
                                       .dim_count = 2,
                                       .shape = {64, 192},
                                       .tp_axis = 1,
                                       .tp_grain = 192,
                                       .decay = true};
    struct hd_registry r;
    struct hd_arena arena;
    struct hd_mesh mesh;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_mesh_init(&mesh, &(struct hd_mesh_sizes){.tp = 4}), HD_OK);
    for (int in_blocks = 0; in_blocks < 2; in_blocks++) {
        hd_registry_init(&r, &arena, &mesh, 0);
        r.moments_in_blocks = in_blocks;
        (void)hd_registry_unit(&r, "u", "u");
        (void)hd_registry_param(&r, &spec);
        assert_int_equal(hd_registry_finish(&r, HD_F32, true), in_blocks ? HD_INVALID : HD_OK);
    }
    assert_non_null(strstr(hd_err_message(), "train.moments: rows of wrong in shards of 48 are not "
                                             "whole blocks of 64"));
    hd_arena_done(&arena);
}

/* ---- bits ---- */

static void compare_bits(const struct run *a, const struct run *b)
{
    assert_memory_equal(a->loss, b->loss, sizeof b->loss);
    assert_memory_equal(a->grad_norm, b->grad_norm, sizeof b->grad_norm);
    assert_memory_equal(a->weights, b->weights, sizeof b->weights);
    assert_memory_equal(a->moments, b->moments, sizeof b->moments);
    assert_memory_equal(&a->validation_loss, &b->validation_loss, sizeof(double));
}

static void check_same_bits(const struct layout *plain, const struct layout *cut)
{
    struct run *a = run_new(STEPS), *b = run_new(STEPS);
    struct hd_job jobs[2];
    struct harness h;

    harness_setup(&h, 20000);
    jobs[0] = job_of(&h, plain);
    jobs[1] = job_of(&h, cut);
    jobs[0].micro_batch = jobs[0].global_batch / plain->dp; /* stages 2 and 3: one micro-batch */
    jobs[1].micro_batch = jobs[0].micro_batch;
    run_threads(jobs[0], plain->dp, a);
    run_threads(jobs[1], cut->dp, b);
    compare_bits(a, b);
    run_free(a);
    run_free(b);
    harness_teardown(&h);
}

/* Goal: the promise of zero_test for fp32, with moments in codes. Parts of the blocks have 30,848
 * elements, so that shards of multiples of 4,096 are cut within matrices. */
static void every_stage_of_zero_has_the_bits_of_plain_data_parallelism(void **state)
{
    static const struct layout layouts[] = {
        {.family = "llama", .precision = "fp32", .dp = 2},
        {.family = "gpt2", .precision = "bf16", .dp = 4},
        {.family = "llama", .precision = "fp16", .dp = 2, .tp = 2},
        {.family = "mixtral", .precision = "bf16", .dp = 2},
        {.family = "gpt2", .precision = "fp32", .dp = 2, .pp = 2},
    };

    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        for (int zero = 1; zero <= 3; zero++) {
            struct layout cut = layouts[i];

            cut.zero = zero;
            check_same_bits(&layouts[i], &cut);
        }
}

/* Two stages add the squares of the gradient in another order than one, which shows where it is
 * clipped; the gradients are the same sums. */
static void stages_of_a_pipeline_have_the_bits_of_one(void **state)
{
    static const struct layout layouts[] = {{.family = "llama", .dp = 2},
                                            {.family = "llama", .dp = 2, .pp = 2},
                                            {.family = "llama", .dp = 2, .pp = 2, .zero = 1}};
    struct run *one = NULL;
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct run *run = run_new(STEPS);
        struct hd_job job = job_of(&h, &layouts[i]);

        job.clip = 0;
        run_threads(job, layouts[i].dp, run);
        if (!one) {
            one = run;
            continue;
        }
        assert_memory_equal(run->weights, one->weights, sizeof one->weights);
        assert_memory_equal(run->moments, one->moments, sizeof one->moments);
        run_free(run);
    }
    run_free(one);
    harness_teardown(&h);
}

/* Hybrid sharding adds by blocks of ranks, and which stage of ZeRO does is all the same. */
static void stages_agree_with_hybrid_sharding(void **state)
{
    struct layout a = {.family = "llama", .dp = 4, .zero = 2, .zero_shard = 2}, b = a;

    b.zero = 3;
    check_same_bits(&a, &b);
}

/* Sums over tp and dp are in another order, so moments may differ by a code where a quotient is at
 * the bound of two: the usual bounds of gradients and losses, at the initial weights and at those
 * of the reference. */
static void tensor_parallel_ranks_stay_within_the_usual_bounds(void **state)
{
    static const struct layout layouts[] = {{.family = "llama", .dp = 1, .tp = 2},
                                            {.family = "llama", .dp = 1, .tp = 4},
                                            {.family = "gpt2", .dp = 2, .tp = 2},
                                            {.family = "llama", .dp = 2, .cp = 2}};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        const struct layout one = {.family = layouts[i].family, .dp = 1};
        const struct hd_job reference = job_of(&h, &one), job = job_of(&h, &layouts[i]);
        struct run *alone = run_new(STEPS), *cut = run_new(STEPS);
        double worst = 0;

        run_threads(reference, 1, alone);
        run_threads(job, layouts[i].dp, cut);
        if (compare_ranks_agree(cut, run_world(&job)) ||
            compare_gradients(&job, cut->first_grad, alone->first_grad, fp32_bound, &worst))
            fail_msg("%s", hd_err_message());
        for (int s = 0; s < STEPS; s++)
            assert_true(fabs(cut->loss[s] - alone->loss[s]) <= 1e-3 * alone->loss[s]);
        run_free(alone);
        run_free(cut);
    }
    harness_teardown(&h);
}

/* ---- checkpoints ---- */

static void set_moments(struct hd_job *job, const char *word)
{
    job->moments = hd_job_find_word(hd_job_moments_words, word);
}

/* The bits of what was saved, whatever the layout that loads; then the steps of a run that was not
 * interrupted, where the layout has its sums. */
static void a_checkpoint_crosses_layouts_bit_for_bit(void **state)
{
    static const struct layout layouts[] = {{.family = "llama", .dp = 1},
                                            {.family = "llama", .dp = 2, .zero = 1},
                                            {.family = "llama", .dp = 1, .tp = 4},
                                            {.family = "llama", .dp = 2, .pp = 2, .zero = 3}};
    enum { COUNT = sizeof layouts / sizeof layouts[0] };
    struct harness h;

    harness_setup(&h, 20000);
    for (int from = 0; from < COUNT; from++) {
        struct run *saved = run_new(STEPS);
        struct hd_job job = job_of(&h, &layouts[from]);
        struct hd_saved at;

        job.attempt = from + 1;
        job.attempt_dir = job_text("%s/attempt-%d", h.dir, from + 1);
        run_save(&job, 3, saved, &at);
        for (int to = 0; to < COUNT; to++) {
            struct run *loaded = run_new(STEPS);
            const struct hd_job other = job_of(&h, &layouts[to]);

            run_load(&other, &at, loaded);
            run_compare_state(loaded, saved);
            if (to == from)
                assert_memory_equal(loaded->loss, saved->loss, sizeof saved->loss);
            run_free(loaded);
        }
        run_free(saved);
    }
    harness_teardown(&h);
}

/* A number of a hundredth of its block's largest, or more, has 16 values in its decade at least,
 * the lowest of them 0.0128 and below it 0.00986: half the distance is 13 %. Smaller ones are off
 * by half the distance at that place at most. */
static void check_near(const struct run *a, const struct run *b)
{
    for (int k = 0; k < 2; k++) {
        double most = 0;

        for (int64_t i = 0; i < RUN_ELEMENTS_MAX; i++)
            most = fmax(most, fabs((double)a->moments[k][i]));
        assert_true(most > 0);
        for (int64_t i = 0; i < RUN_ELEMENTS_MAX; i++)
            assert_true(fabs((double)b->moments[k][i] - (double)a->moments[k][i]) <=
                        0.14 * fabs((double)a->moments[k][i]) + 2e-3 * most);
    }
}

/* Goal: what a rank's codes mean to the kernel, to a checkpoint and to tests is the same. Method:
 * the first step's gradients are those of fp32, so its moments are them, encoded. */
static void the_first_moments_are_those_of_fp32(void **state)
{
    static const struct layout one = {.family = "gpt2", .dp = 1};
    struct run *fp32 = run_new(1), *blocks = run_new(1);
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = job_of(&h, &one);
    run_threads(job, 1, blocks);
    set_moments(&job, "fp32");
    run_threads(job, 1, fp32);
    assert_memory_equal(blocks->last_grad, fp32->last_grad, sizeof fp32->last_grad);
    check_near(fp32, blocks);
    run_free(fp32);
    run_free(blocks);
    harness_teardown(&h);
}

/* Weights are the same bits; moments in blocks are read as those numbers in fp32, moments in fp32
 * as their nearest values. */
static void a_checkpoint_crosses_encodings(void **state)
{
    static const struct layout layout = {.family = "llama", .dp = 2, .zero = 1};
    const char *const words[] = {"fp32", "8bit"};
    struct harness h;

    harness_setup(&h, 20000);
    for (int from = 0; from < 2; from++) {
        struct run *saved = run_new(STEPS), *loaded = run_new(STEPS);
        struct hd_job job = job_of(&h, &layout);
        struct hd_saved at;

        job.attempt_dir = job_text("%s/attempt-%d", h.dir, from + 1);
        set_moments(&job, words[from]);
        run_save(&job, 3, saved, &at);
        set_moments(&job, words[1 - from]);
        run_load(&job, &at, loaded);
        assert_memory_equal(loaded->weights, saved->weights, sizeof saved->weights);
        check_near(saved, loaded);
        assert_int_equal(memcmp(loaded->moments, saved->moments, sizeof saved->moments) == 0,
                         from == 1);
        assert_true(fabs(loaded->loss[STEPS - 1] / saved->loss[STEPS - 1] - 1) < 0.01);
        run_free(saved);
        run_free(loaded);
    }
    harness_teardown(&h);
}

/* ---- memory ---- */

/* Bytes of a moment in blocks: scales, and a byte per element, each aligned to 16. */
static int64_t blocks_bytes(int64_t elements, int64_t block)
{
    return (4 * elements / block + 15) / 16 * 16 + (elements + 15) / 16 * 16;
}

/* One rank of llama, by hand. A layer in order of the part: norm1 64, to the next block of q to
 * element 64; q 4,096 in blocks of 64; k and v 2 x 2,048 and, aligned, nothing; out 4,096 in blocks
 * of 16; norm2 64; gate and up 2 x 6,144 of 64; down 6,144 of 8. */
static void moments_take_a_byte_and_a_scale_per_block(void **state)
{
    static const struct layout one = {.family = "llama", .dp = 1};
    const int64_t layer = 4 * 64 + blocks_bytes(4096, 64) + 4 * 4096 + blocks_bytes(4096, 16) +
                          4 * 64 + blocks_bytes(2 * 6144, 64) + blocks_bytes(6144, 8);
    const int64_t elements = 2 * 256 * 64 + 64 + 2 * (2 * 64 + 3 * 4096 + 3 * 6144);
    struct harness h;
    struct hd_arena arena;
    struct hd_rank_program l;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = job_of(&h, &one);
    hd_arena_init(&arena, 0);
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &l);
    assert_int_equal(l.memory.moments,
                     2 * (2 * layer + 4 * (256 * 64 + 64) + blocks_bytes(256 * 64, 64)));
    assert_int_equal(l.memory.weights, 4 * elements);
    assert_int_equal(l.memory.gradients, 4 * elements);
    hd_arena_done(&arena);
    harness_teardown(&h);
}

/* Codes stay on their rank: collectives and their bytes are those of fp32. */
static void what_is_sent_is_what_fp32_sends(void **state)
{
    static const struct layout layouts[] = {
        {.family = "llama", .precision = "bf16", .dp = 2, .tp = 2, .zero = 3},
        {.family = "gpt2", .dp = 4, .zero = 1, .zero_shard = 2}};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct hd_dry dry[2] = {{0}};

        for (int k = 0; k < 2; k++) {
            struct hd_job job = job_of(&h, &layouts[i]);
            struct hd_arena arena;
            struct hd_rank_program l;

            set_moments(&job, k ? "fp32" : "8bit");
            hd_arena_init(&arena, 0);
            run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &l);
            for (int32_t n = 0; n < l.plan.count; n++)
                hd_rank_program_fold(&l, &l.plan.list[n], &dry[k]);
            hd_arena_done(&arena);
        }
        assert_memory_equal(dry[0].calls, dry[1].calls, sizeof dry[0].calls);
        assert_memory_equal(dry[0].group_bytes, dry[1].group_bytes, sizeof dry[0].group_bytes);
        assert_true(dry[0].group_bytes[HD_GROUP_ZERO_SHARD][HD_COMM_ALL_GATHER] > 0);
    }
    harness_teardown(&h);
}

/* ---- against fp32 ---- */

struct ending {
    double first, mean; /* loss: of the first step, and over the last 50 */
};

static enum hd_status train_long(struct harness_rank *r)
{
    struct ending *e = r->context;
    struct hd_step_result result = {0};
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    for (int s = 1; !st && s <= LONG_STEPS; s++) {
        st = hd_trainer_step(t, 0, &result);
        if (s == 1)
            e->first = result.loss;
        if (s > LONG_STEPS - 50)
            e->mean += result.loss / 50;
    }
    hd_trainer_free(t);
    return st;
}

static void five_hundred_steps_end_within_a_percent_of_fp32(void **state)
{
    static const struct layout one = {.family = "llama", .dp = 1};
    struct ending fp32 = {0}, blocks = {0};
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 200000);
    job = job_of(&h, &one);
    job.steps = LONG_STEPS;
    job.micro_batch = job.global_batch;
    if (harness_threads(&job, 1, &blocks, train_long))
        fail_msg("%s", hd_err_message());
    set_moments(&job, "fp32");
    if (harness_threads(&job, 1, &fp32, train_long))
        fail_msg("%s", hd_err_message());
    (void)printf("after %d steps: fp32 %.4f, 8bit %.4f\n", LONG_STEPS, fp32.mean, blocks.mean);
    assert_true(fp32.mean < 0.8 * fp32.first); /* it has learnt */
    assert_true(fabs(blocks.mean / fp32.mean - 1) < 0.01);
    harness_teardown(&h);
}

RUN_CASES()
