/* fp8: every layout has one history of scales, a checkpoint takes it along, recompute changes no
 * bit, what is not finite is still found, and training ends where it ends in bf16. Formats and
 * kernels have tests of their own (base, kernels); tests/parity/grid has the layouts' gradients.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "compare.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "tests/sanitized.h"

enum { STEPS = 3, HISTORY = 4, LONG_STEPS = 500, SHORT_STEPS = 80 };

struct layout {
    const char *family;
    int dp, tp, pp, cp, zero;
    bool sequence;
    const char *schedule, *recompute;
};

/* A rank's share of every side is a multiple of 16 up to tp = 4: one head of 16 channels, 16 inner
 * channels; a micro-batch has 32 rows. */
static struct hd_job job_of(const struct harness *h, const struct layout *l)
{
    struct hd_job job = harness_job(h, l->family, l->dp);

    job.hidden = 64;
    job.head_width = 16;
    job.ffn_hidden = 64;
    job.tie_embeddings = false;
    job.tp = l->tp ? l->tp : 1;
    job.pp = l->pp ? l->pp : 1;
    job.cp = l->cp ? l->cp : 1;
    job.zero = l->zero;
    job.sequence = l->sequence;
    job.fp8_history = HISTORY;
    if (strcmp(l->family, "mixtral") == 0) /* RUN_ELEMENTS_MAX */
        job.layers = 1;
    job.precision = HD_JOB_PRECISION_FP8;
    if (job.pp > 1)
        (void)snprintf(job.schedule, sizeof job.schedule, "%s", l->schedule ? l->schedule : "1f1b");
    if (l->recompute)
        (void)snprintf(job.recompute, sizeof job.recompute, "%s", l->recompute);
    return job;
}

/* ---- histories ---- */

/* The buffers of a checkpoint: those of the products of layer l begin at [l]. */
enum { LAYERS = 2, PRODUCTS = 4, NAMES = LAYERS * PRODUCTS };
struct histories {
    float of[NAMES][HD_AMAX_COUNT][HISTORY];
};
static const char *const products[PRODUCTS] = {"attention.q", "attention.out", "mlp.gate",
                                               "mlp.down"};

static void read_histories(const char *path, struct histories *ret)
{
    struct hd_ckpt *ckpt;

    if (hd_ckpt_open(path, &ckpt))
        fail_msg("%s", hd_err_message());
    for (int i = 0; i < NAMES; i++) {
        char name[HD_CKPT_NAME_MAX];
        const struct hd_ckpt_entry *is;

        (void)snprintf(name, sizeof name, "buffer.blocks.%d.%s.weight.amax", i / PRODUCTS,
                       products[i % PRODUCTS]);
        is = hd_ckpt_find_tensor(ckpt, name);
        if (!is)
            fail_msg("%s has no %s", path, name);
        assert_int_equal(is->dim_count, 2);
        assert_int_equal(is->shape[0], HD_AMAX_COUNT);
        assert_int_equal(is->shape[1], HISTORY);
        assert_int_equal(hd_ckpt_read(ckpt, is, ret->of[i]), HD_OK);
    }
    hd_ckpt_close(ckpt);
}

/* Trains and saves; what the checkpoint has. */
static struct histories histories_after(const struct harness *h, const struct layout *l, int steps,
                                        int attempt)
{
    struct hd_job job = job_of(h, l);
    struct run *run = run_new(0);
    struct histories found;
    struct hd_saved saved;

    job.attempt_dir = job_text("%s/attempt-%d", h->dir, attempt);
    run_save(&job, steps, run, &saved);
    read_histories(saved.path, &found);
    run_free(run);
    return found;
}

/* Goal: the histories are of whole tensors and whole steps. Method: where a layout computes the
 * same micro-batches, the first maxima have the same bits. Where tp or cp cut them, those of
 * weights still have; other elements come from products, whose factors may round to the
 * neighbouring code: by a unit of E4M3, or of E5M2, at most. (Not with more tp ranks than key/value
 * heads, where a rank's gradients of keys and values are terms of a sum.) */
static void every_layout_has_one_history(void **state)
{
    static const struct layout one = {.family = "llama", .dp = 1};
    static const struct layout same[] = {{.family = "llama", .dp = 4},
                                         {.family = "llama", .dp = 2, .zero = 3},
                                         {.family = "llama", .dp = 2, .pp = 2, .zero = 1}};
    static const struct layout near[] = {{.family = "llama", .dp = 1, .tp = 2},
                                         {.family = "llama", .dp = 2, .tp = 2, .sequence = true},
                                         {.family = "llama", .dp = 1, .cp = 2}};
    static const double units[HD_AMAX_COUNT] = {
        [HD_AMAX_INPUT] = 0x1p-3, [HD_AMAX_WEIGHT] = 0, [HD_AMAX_GRAD] = 0x1p-2};
    struct histories want, got;
    struct harness h;

    harness_setup(&h, 20000);
    want = histories_after(&h, &one, 1, 1);
    for (int i = 0; i < NAMES; i++)
        for (int k = 0; k < HD_AMAX_COUNT; k++) {
            assert_true(want.of[i][k][0] > 0);
            for (int s = 1; s < HISTORY; s++) /* there was one step */
                assert_true(want.of[i][k][s] == 0);
        }
    for (size_t l = 0; l < sizeof same / sizeof same[0]; l++) {
        got = histories_after(&h, &same[l], 1, 2 + (int)l);
        assert_memory_equal(&got, &want, sizeof want);
    }
    for (size_t l = 0; l < sizeof near / sizeof near[0]; l++) {
        got = histories_after(&h, &near[l], 1, 10 + (int)l);
        for (int i = 0; i < NAMES; i++)
            for (int k = 0; k < HD_AMAX_COUNT; k++)
                if (!(fabs((double)got.of[i][k][0] / (double)want.of[i][k][0] - 1) <= units[k]))
                    fail_msg("%s, tensor %d of layer %d: %g, one rank has %g", products[i % 4], k,
                             i / 4, (double)got.of[i][k][0], (double)want.of[i][k][0]);
    }
    harness_teardown(&h);
}

/* Each step's maxima move up by one; those of the oldest step are dropped. Samples and gradients of
 * steps differ, so some maxima are smaller than those of the step before. */
static void a_history_has_the_newest_steps_first(void **state)
{
    static const struct layout two = {.family = "llama", .dp = 2};
    struct histories at[HISTORY + 2];
    struct harness h;
    int smaller = 0;

    harness_setup(&h, 20000);
    for (int s = 1; s <= HISTORY + 1; s++)
        at[s] = histories_after(&h, &two, s, s);
    for (int i = 0; i < NAMES; i++)
        for (int k = 0; k < HD_AMAX_COUNT; k++)
            for (int s = 1; s <= HISTORY; s++) {
                assert_memory_equal(at[s + 1].of[i][k] + 1, at[s].of[i][k],
                                    (HISTORY - 1) * sizeof(float));
                assert_true(at[s + 1].of[i][k][0] > 0);
                smaller += at[s + 1].of[i][k][0] < at[s + 1].of[i][k][1];
            }
    assert_true(smaller > 10); /* of 96: a step's are its own */
    harness_teardown(&h);
}

/* ---- checkpoints ---- */

/* Goal: a checkpoint of one layout resumes under another one, with its histories. Method: what is
 * loaded and saved again has equal bits; so have the next steps in the layout that saved. */
static void a_checkpoint_takes_the_histories_to_any_layout(void **state)
{
    static const struct layout from = {.family = "llama", .dp = 2, .zero = 2};
    static const struct layout others[] = {
        {.family = "llama", .dp = 1, .tp = 2, .sequence = true},
        {.family = "llama", .dp = 1, .pp = 2, .schedule = "1f1b"},
        {.family = "llama", .dp = 4, .zero = 3},
        {.family = "llama", .dp = 2, .zero = 2}};
    struct run *whole = run_new(STEPS), *resumed = run_new(STEPS);
    struct histories want, got;
    struct hd_saved saved, again;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = job_of(&h, &from);
    run_save(&job, 5, whole, &saved);
    read_histories(saved.path, &want);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        struct run *run = run_new(0);

        job = job_of(&h, &others[i]);
        job.attempt_dir = job_text("%s/attempt-%d", h.dir, 2 + (int)i);
        run_load_and_save(&job, &saved, run, &again);
        read_histories(again.path, &got);
        assert_memory_equal(&got, &want, sizeof want);
        run_free(run);
    }
    job = job_of(&h, &from);
    run_load(&job, &saved, resumed);
    assert_memory_equal(resumed->loss, whole->loss, sizeof whole->loss);
    run_compare_state(resumed, whole);
    run_free(whole);
    run_free(resumed);
    harness_teardown(&h);
}

/* A run in bf16 reads a checkpoint of fp8, and the other way, where histories begin anew; one with
 * a shorter history keeps the newest steps. */
static void a_checkpoint_crosses_precisions_and_lengths(void **state)
{
    static const struct layout two = {.family = "llama", .dp = 2};
    struct run *run = run_new(1);
    struct hd_saved fp8, bf16, again;
    struct harness h;
    struct hd_job job;
    struct hd_ckpt *ckpt;
    float kept[HD_AMAX_COUNT][2];
    struct histories want;

    harness_setup(&h, 20000);
    job = job_of(&h, &two);
    run_save(&job, 3, run, &fp8);
    read_histories(fp8.path, &want);
    job.fp8_history = 2;
    job.attempt_dir = job_text("%s/attempt-2", h.dir);
    run_load_and_save(&job, &fp8, run, &again);
    if (hd_ckpt_open(again.path, &ckpt))
        fail_msg("%s", hd_err_message());
    assert_int_equal(
        hd_ckpt_read(ckpt, hd_ckpt_find_tensor(ckpt, "buffer.blocks.1.mlp.down.weight.amax"), kept),
        HD_OK);
    for (int k = 0; k < HD_AMAX_COUNT; k++)
        assert_memory_equal(kept[k], want.of[NAMES - 1][k], sizeof kept[k]);
    hd_ckpt_close(ckpt);

    job.precision = HD_JOB_PRECISION_BF16;
    job.attempt_dir = job_text("%s/attempt-3", h.dir);
    run_load_and_save(&job, &fp8, run, &bf16);
    job = job_of(&h, &two);
    job.attempt_dir = job_text("%s/attempt-4", h.dir);
    run_load_and_save(&job, &bf16, run, &again);
    read_histories(again.path, &want);
    for (int i = 0; i < NAMES; i++)
        for (int k = 0; k < HD_AMAX_COUNT; k++)
            assert_true(want.of[i][k][0] == 0);
    run_free(run);
    harness_teardown(&h);
}

/* ---- recompute ---- */

static void recompute_changes_no_bit(void **state)
{
    static const struct layout kinds[] = {{.family = "llama", .dp = 1, .tp = 2, .sequence = true},
                                          {.family = "gpt2", .dp = 1, .pp = 2, .schedule = "zb-h1"},
                                          {.family = "mixtral", .dp = 2}};
    static const char *const policies[] = {"selective", "full"};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct run *none = run_new(STEPS);

        run_threads(job_of(&h, &kinds[i]), kinds[i].dp, none);
        for (int p = 0; p < 2; p++) {
            struct layout l = kinds[i];
            struct run *again = run_new(STEPS);

            l.recompute = policies[p];
            run_threads(job_of(&h, &l), l.dp, again);
            assert_memory_equal(again->last_grad, none->last_grad, sizeof none->last_grad);
            assert_memory_equal(again->weights, none->weights, sizeof none->weights);
            run_free(again);
        }
        run_free(none);
    }
    harness_teardown(&h);
}

/* ---- what is not finite ---- */

struct blown {
    char text[HD_NONFINITE_TEXT];
    struct hd_saved saved[2];
    bool skipped;
};

/* The first update makes weights so large that nothing is finite in the second step. */
static enum hd_status blow_up(struct harness_rank *r)
{
    struct blown *b = r->context;
    struct hd_step_result result = {0};
    char text[HD_NONFINITE_TEXT];
    struct hd_saved saved[2];
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    for (int s = 0; !st && s < 2; s++) {
        st = hd_trainer_step(t, 0, &result);
        if (!st)
            st = hd_trainer_save(t, &saved[s]);
    }
    if (!st)
        st = hd_trainer_find_nonfinite(t, text);
    if (!st && r->rank == 0) {
        memcpy(b->text, text, sizeof text);
        memcpy(b->saved, saved, sizeof saved);
        b->skipped = result.skipped;
    }
    hd_trainer_free(t);
    return st;
}

static void what_is_not_finite_is_found_and_leaves_no_trace(void **state)
{
    static const struct layout two = {.family = "llama", .dp = 2};
    struct histories before, after;
    struct blown b = {.skipped = false};
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = job_of(&h, &two);
    job.lr_warmup_steps = 1;
    job.lr_peak = 1e30;
    if (harness_threads(&job, 2, &b, blow_up))
        fail_msg("%s", hd_err_message());
    assert_true(b.skipped);
    assert_non_null(strstr(b.text, " is "));
    read_histories(b.saved[0].path, &before);
    read_histories(b.saved[1].path, &after);
    assert_memory_equal(&after, &before, sizeof before);
    harness_teardown(&h);
}

/* ---- the plan ---- */

static struct hd_memory memory_of(const struct hd_job *job)
{
    struct hd_arena arena;
    struct hd_rank_program l;

    hd_arena_init(&arena, 0);
    run_layout(job, &(struct hd_rank_program_options){0}, &arena, &l);
    hd_arena_done(&arena);
    return l.memory;
}

/* Beside bf16: of each product HD_AMAX_COUNT histories and one maximum, each of both in whole
 * alignments; with current scaling nothing. Of the inputs of a layer's four products, 32 rows of 64
 * each, both norms' and SwiGLU's are kept in one byte of an element and not in two, and attention's
 * result, which its backward reads, in one more; and of each product a factor. A job that recomputes keeps
 * what it keeps in bf16. */
static void the_state_of_fp8_is_its_histories(void **state)
{
    static const struct layout one = {.family = "llama", .dp = 1};
    const int64_t rows = (int64_t)NAMES * HD_AMAX_COUNT, align = HD_TENSOR_ALIGN;
    struct harness h;
    struct hd_job job;
    struct hd_memory bf16, delayed, current;

    harness_setup(&h, 20000);
    job = job_of(&h, &one);
    delayed = memory_of(&job);
    job.fp8_scaling = HD_JOB_FP8_SCALING_CURRENT;
    current = memory_of(&job);
    job.precision = HD_JOB_PRECISION_BF16;
    bf16 = memory_of(&job);
    assert_int_equal(delayed.step_state - bf16.step_state,
                     (4 * rows * HISTORY + align - 1) / align * align +
                         (4 * rows + align - 1) / align * align);
    assert_int_equal(current.step_state, bf16.step_state);
    assert_int_equal(delayed.kept - bf16.kept, LAYERS * (4 * align - (3 - 1) * 32 * 64));
    assert_int_equal(current.kept, delayed.kept);
    assert_int_equal(delayed.copies, bf16.copies);
    memcpy(job.recompute, "selective", sizeof "selective");
    bf16 = memory_of(&job);
    job.precision = HD_JOB_PRECISION_FP8;
    current = memory_of(&job);
    assert_int_equal(current.kept, bf16.kept);
    harness_teardown(&h);
}

static int count_nodes(const struct hd_chunk *chunk, enum hd_kernel kernel)
{
    int count = 0;

    for (int c = 0; c < HD_CALL_COUNT; c++)
        for (int i = 0; i < chunk->program[c].count; i++)
            count += !chunk->program[c].nodes[i]->is_comm &&
                     chunk->program[c].nodes[i]->kernel == kernel;
    return count;
}

/* Goal: what is in fp8 are the products of blocks, in training. Method: each of a layer's products
 * has three; the head's three and the two of a router's gradient stay as they are; their FLOPs by
 * hand. */
static void only_products_of_blocks_in_training_are_in_fp8(void **state)
{
    static const struct layout dense = {.family = "llama", .dp = 1},
                               experts = {.family = "mixtral", .dp = 1};
    struct harness h;
    struct hd_job job;
    struct hd_arena arena;
    struct hd_rank_program l;
    struct hd_dry dry = {.gemm_flops = 0};

    harness_setup(&h, 20000);
    job = job_of(&h, &dense);
    hd_arena_init(&arena, 0);
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &l);
    assert_int_equal(count_nodes(l.train[0], HD_K_fp8_gemm), 3 * NAMES);
    /* values and gradients once; norms, SwiGLU and its gradient encode their results themselves */
    assert_int_equal(count_nodes(l.train[0], HD_K_fp8_encode), 4 * NAMES - 4 * LAYERS);
    assert_int_equal(count_nodes(l.train[0], HD_K_gemm), 3); /* the head in one chunk of rows */
    assert_int_equal(count_nodes(l.eval[0], HD_K_fp8_gemm), 0);
    assert_int_equal(count_nodes(l.update, HD_K_fp8_history), 1);
    hd_dry_add(&dry, l.train[0], HD_CALL_F, true);
    hd_dry_add(&dry, l.train[0], HD_CALL_B, true);
    /* rows 32; C and F 64; heads of 16, 4 of queries and 2 of keys and of values */
    assert_true(dry.fp8_flops == LAYERS * 3 * 2.0 * 32 * 64 * (8 * 16 + 64 + 3 * 64));
    hd_arena_done(&arena);

    job = job_of(&h, &experts);
    hd_arena_init(&arena, 0);
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &l);
    assert_int_equal(count_nodes(l.train[0], HD_K_fp8_gemm), 3 * 2); /* attention's */
    hd_arena_done(&arena);
    harness_teardown(&h);
}

/* Codes stay on their rank: beside what bf16 sends there is, once a step, the maximum of a float
 * per tensor over all ranks. */
static void what_is_sent_beside_bf16_are_the_maxima(void **state)
{
    static const struct layout four = {.family = "llama", .dp = 2, .tp = 2, .zero = 3};
    const int64_t bytes =
        2 * 3 * NAMES * HD_AMAX_COUNT * 4; /* all-reduce over P = 4: 2 (P - 1) n */
    struct hd_dry dry[2] = {{.gemm_flops = 0}};
    struct harness h;

    harness_setup(&h, 20000);
    for (int k = 0; k < 2; k++) {
        struct hd_job job = job_of(&h, &four);
        struct hd_arena arena;
        struct hd_rank_program l;

        job.precision = k ? HD_JOB_PRECISION_BF16 : HD_JOB_PRECISION_FP8;
        hd_arena_init(&arena, 0);
        run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &l);
        for (int32_t n = 0; n < l.plan.count; n++)
            hd_rank_program_fold(&l, &l.plan.list[n], &dry[k]);
        hd_arena_done(&arena);
    }
    dry[0].calls[HD_GROUP_WORLD][HD_COMM_ALL_REDUCE] -= 1;
    dry[0].group_bytes[HD_GROUP_WORLD][HD_COMM_ALL_REDUCE] -= bytes;
    assert_memory_equal(dry[0].calls, dry[1].calls, sizeof dry[0].calls);
    assert_memory_equal(dry[0].group_bytes, dry[1].group_bytes, sizeof dry[0].group_bytes);
    harness_teardown(&h);
}

static void refuse(const struct hd_job *job, const struct hd_traits *traits, const char *story)
{
    struct hd_arena arena;
    struct hd_rank_program l;

    hd_arena_init(&arena, 0);
    assert_int_equal(
        hd_rank_program_build(job, 0, traits, &(struct hd_rank_program_options){0}, &arena, &l),
        HD_UNSUPPORTED);
    if (!strstr(hd_err_message(), story))
        fail_msg("'%s' is not in '%s'", story, hd_err_message());
    hd_arena_done(&arena);
}

static void what_is_not_multiplied_in_fp8_is_refused_by_name(void **state)
{
    static const struct layout one = {.family = "llama", .dp = 1};
    struct hd_traits cpu, a100;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    harness_backend()->describe(&(struct hd_backend_options){.threads = 1}, &cpu);
    hd_gpu_kind_traits(hd_gpu_kind_find("a100-80gb"), &a100);
    job = job_of(&h, &one);
    refuse(&job, &a100,
           "fp8 needs a GPU of compute capability 8.9 or later (Ada, Hopper, "
           "Blackwell), and this one has 8.0");
    a100.capability = 90;
    a100.gemm_scratch_bytes = 0;
    refuse(&job, &a100, "fp8 is multiplied by cuBLASLt alone");
    job.ffn_hidden = 72;
    refuse(&job, &cpu, "with blocks.0.mlp.down.weight a rank would multiply [32, 72] by [72, 64]");
    job = job_of(&h, &one);
    job.context = 12;
    refuse(&job, &cpu, "with blocks.0.attention.q.weight a rank would multiply [24, 64] by");
    harness_teardown(&h);
}

/* ---- against bf16 ---- */

/* Under a sanitizer or on a slow device, which shows nothing more by the last steps, fewer. */
static int long_steps(void)
{
    return HD_TEST_SANITIZED || harness_backend()->device ? SHORT_STEPS : LONG_STEPS;
}

struct ending {
    double first, mean; /* loss: of the first step, and over the last 50 */
};

static enum hd_status train_long(struct harness_rank *r)
{
    struct ending *e = r->context;
    struct hd_step_result result = {0};
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    for (int s = 1; !st && s <= r->job->steps; s++) {
        st = hd_trainer_step(t, 0, &result);
        if (s == 1)
            e->first = result.loss;
        if (s > r->job->steps - 50)
            e->mean += result.loss / 50;
    }
    hd_trainer_free(t);
    return st;
}

static struct ending ending_with(const struct harness *h, const char *precision,
                                 const char *scaling)
{
    static const struct layout one = {.family = "llama", .dp = 1};
    struct hd_job job = job_of(h, &one);
    struct ending e = {0};

    job.steps = long_steps();
    job.micro_batch = job.global_batch;
    job.fp8_history = 16;
    job.precision = hd_job_find_word(hd_job_precision_words, precision);
    job.fp8_scaling = hd_job_find_word(hd_job_fp8_scaling_words, scaling);
    if (harness_threads(&job, 1, &e, train_long))
        fail_msg("%s", hd_err_message());
    return e;
}

static void five_hundred_steps_end_within_a_percent_of_bf16(void **state)
{
    /* with fewer steps the loss still falls fast: a step or two are some percent */
    const double percent = long_steps() == LONG_STEPS ? 0.01 : 0.04;
    struct ending bf16, delayed, current;
    struct harness h;

    harness_setup(&h, 200000);
    bf16 = ending_with(&h, "bf16", "delayed");
    delayed = ending_with(&h, "fp8", "delayed");
    current = ending_with(&h, "fp8", "current");
    (void)printf("after %d steps: bf16 %.4f, fp8 %.4f delayed, %.4f current\n", long_steps(),
                 bf16.mean, delayed.mean, current.mean);
    assert_true(bf16.mean < 0.8 * bf16.first); /* it has learnt */
    assert_true(fabs(delayed.mean / bf16.mean - 1) < percent);
    assert_true(fabs(current.mean / bf16.mean - 1) < percent);
    assert_true(delayed.mean != bf16.mean && current.mean != delayed.mean);
    harness_teardown(&h);
}

RUN_CASES()
