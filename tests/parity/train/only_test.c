/* only: with train.trainable what does not train keeps its bits, takes no memory but one copy in
 * the encoding that computes, and changes nothing for what trains; in every layout, and over a
 stop. */
#include <stdio.h>
#include <string.h>

#include "compare.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

enum { STEPS = 4 };

struct tuned {
    const char *family, *precision, *only;
    int dp, tp, pp, cp, zero;
};

static struct hd_job job_of(const struct harness *h, const struct tuned *t)
{
    struct hd_job job = harness_job(h, t->family, t->dp);

    job.precision = hd_job_find_word(hd_job_precision_words, t->precision);
    job.only = job_text("%s", t->only);
    job.tp = t->tp ? t->tp : 1;
    job.pp = t->pp ? t->pp : 1;
    job.cp = t->cp ? t->cp : 1;
    job.zero = t->zero;
    (void)snprintf(job.schedule, sizeof job.schedule, "%s", t->pp > 1 ? "1f1b" : "none");
    if (t->pp > 1) /* in the first stage nothing trains where only the last block does */
        (void)snprintf(job.stages, sizeof job.stages, "1,1");
    job.micro_batch = job.global_batch / t->dp / 2;
    return job;
}

static void check_moved(const struct hd_param *p, int64_t first, void *context)
{
    const struct run *run = context;
    const size_t bytes = (size_t)param_elements(p) * sizeof(float);
    const bool same = memcmp(run->initial + first, run->weights + first, bytes) == 0;

    if (same == p->trainable)
        fail_msg("%s, which %s, %s", p->name, p->trainable ? "trains" : "does not train",
                 same ? "has not changed" : "has changed");
}

/* Goal: what trains changes, the rest keeps its bits. Method: all forms of train.trainable,
 * families and encodings, by weights before and after. */
static void what_is_frozen_keeps_its_bits(void **state)
{
    static const struct tuned cases[] = {{"llama", "fp32", "last:1", .dp = 1},
                                         {"llama", "bf16", "last:1", .dp = 1},
                                         {"llama", "fp16", "head,norms", .dp = 1},
                                         {"gpt2", "bf16", "norms", .dp = 1},
                                         {"gpt2", "fp32", "head", .dp = 1},
                                         {"qwen3", "bf16", "blocks.0.attention.*", .dp = 2},
                                         {"llama", "bf16", "embedding", .dp = 1},
                                         {"llama", "bf16", "last:1", .dp = 2, .tp = 2},
                                         {"llama", "bf16", "last:1", .dp = 1, .pp = 2},
                                         {"gpt2", "fp32", "blocks.0.*", .dp = 1, .pp = 2},
                                         {"llama", "bf16", "*.mlp.*", .dp = 2, .zero = 3}};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct hd_job job = job_of(&h, &cases[i]);
        struct run *run = run_new(STEPS);

        run_threads(job, cases[i].dp, run);
        (void)printf("%s %s %s\n", cases[i].family, cases[i].precision, cases[i].only);
        run_for_params(&job, check_moved, run);
        run_free(run);
    }
    harness_teardown(&h);
}

struct compared {
    const struct run *all, *some;
};

static void check_gradient(const struct hd_param *p, int64_t first, void *context)
{
    const struct compared *c = context;
    const size_t bytes = (size_t)param_elements(p) * sizeof(float);

    if (p->trainable && memcmp(c->all->first_grad + first, c->some->first_grad + first, bytes) != 0)
        fail_msg("%s has another gradient", p->name);
}

/* Goal: freezing changes no gradient. Method: those of the first step, bit for bit. */
static void the_rest_has_the_gradients_of_full_training(void **state)
{
    static const char *const texts[] = {"last:1", "blocks.*.mlp.*", "norms", "embedding", "head"};
    struct tuned t = {"llama", "fp32", "all", .dp = 1};
    struct run *all = run_new(1);
    struct harness h;

    harness_setup(&h, 20000);
    run_threads(job_of(&h, &t), 1, all);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct run *some = run_new(1);
        struct compared compared = {all, some};
        struct hd_job job;

        t.only = texts[i];
        job = job_of(&h, &t);
        run_threads(job, 1, some);
        run_for_params(&job, check_gradient, &compared);
        run_free(some);
    }
    run_free(all);
    harness_teardown(&h);
}

/* Goal: every layout trains alike. Method: each axis against one rank. */
static void layouts_agree_with_one_rank(void **state)
{
    static const struct tuned layouts[] = {
        {"llama", "fp32", "last:1,norms", .dp = 2},
        {"llama", "fp32", "last:1,norms", .dp = 1, .tp = 2},
        {"llama", "fp32", "last:1,norms", .dp = 1, .pp = 2},
        {"llama", "fp32", "last:1,norms", .dp = 1, .cp = 2},
        {"llama", "fp32", "last:1,norms", .dp = 2, .pp = 2, .zero = 2},
        {"llama", "fp32", "last:1,norms", .dp = 2, .zero = 1},
        {"llama", "fp32", "last:1,norms", .dp = 2, .zero = 2},
        {"llama", "fp32", "last:1,norms", .dp = 2, .zero = 3},
        {"llama", "fp32", "last:1,norms", .dp = 2, .tp = 2, .zero = 3}};
    static const struct tuned one = {"llama", "fp32", "last:1,norms", .dp = 1};
    struct run *reference = run_new(STEPS);
    struct harness h;

    harness_setup(&h, 20000);
    run_threads(job_of(&h, &one), 1, reference);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        const struct hd_job job = job_of(&h, &layouts[i]);

        if (compare_with(&job, reference, NULL))
            fail_msg("layout %zu: %s", i, hd_err_message());
    }
    run_free(reference);
    harness_teardown(&h);
}

/* ---- stages below the first that trains ---- */

/* Gradients that the stage gives to the one before, B and W that it runs. */
struct backward {
    int sends, runs;
};

static struct backward backward_of(const struct hd_job *job, int rank)
{
    struct hd_rank_program_options options = {0};
    struct backward b = {0, 0};
    struct hd_arena arena;
    struct hd_rank_program l;

    hd_arena_init(&arena, 0);
    run_layout_of(job, rank, &options, &arena, &l);
    for (int32_t i = 0; i < l.plan.count; i++) {
        const struct hd_instruction *in = &l.plan.list[i];

        b.sends += in->kind == HD_DO_SEND && in->call == HD_CALL_B;
        b.runs += in->kind == HD_DO_RUN && in->call != HD_CALL_F;
    }
    hd_arena_done(&arena);
    return b;
}

/* Goal: a pipeline sends no gradient below the first stage that trains, and trains alike. Method:
 * four stages of one unit each, the last one or two of which train; two micro-batches; orders with
 * B and W together and apart. Losses, weights and moments have the bits of one rank. */
static void stages_below_what_trains_run_forward_alone(void **state)
{
    static const struct {
        const char *only, *schedule;
        int frozen, programs; /* stages; programs of backward on the others */
    } cases[] = {{"head", "1f1b", 3, 2},    {"last:1", "1f1b", 2, 2}, {"last:1", "gpipe", 2, 2},
                 {"last:1", "zb-h1", 2, 4}, {"head", "zb-h1", 3, 4},  {"last:2", "1f1b", 1, 2}};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct tuned one = {"llama", "fp32", cases[i].only, .dp = 1};
        struct run *alone = run_new(STEPS), *staged = run_new(STEPS);
        struct hd_job job = job_of(&h, &one);

        run_threads(job, 1, alone);
        job.pp = 4;
        (void)snprintf(job.stages, sizeof job.stages, "0,1,1,0");
        (void)snprintf(job.schedule, sizeof job.schedule, "%s", cases[i].schedule);
        for (int stage = 0; stage < 4; stage++) {
            const struct backward b = backward_of(&job, stage);

            assert_int_equal(b.runs, stage < cases[i].frozen ? 0 : cases[i].programs);
            assert_int_equal(b.sends, stage > cases[i].frozen ? 2 : 0);
        }
        run_threads(job, 1, staged);
        run_compare_state(alone, staged);
        assert_memory_equal(staged->loss, alone->loss, sizeof alone->loss);
        run_free(alone);
        run_free(staged);
    }
    harness_teardown(&h);
}

/* Bytes of a part but for the padding of its kinds of state. */
static int64_t bucket_bytes(const struct hd_registry *r, const struct hd_bucket *p)
{
    int64_t bytes = 0;

    for (int k = 0; k < HD_STATE_RANGES; k++)
        if (p->offset[k] >= 0 && (k != HD_STATE_COPY || p->copied))
            bytes += hd_bucket_state_bytes(r, p, (enum hd_state_kind)k);
    return bytes;
}

/* Goal: in bf16 a frozen weight takes 2 bytes and one that trains 18. */
static void a_frozen_weight_takes_two_bytes(void **state)
{
    const struct tuned t = {"llama", "bf16", "last:1", .dp = 1};
    struct hd_arena arena;
    struct hd_rank_program l;
    struct harness h;
    struct hd_job job;
    int frozen = 0;

    harness_setup(&h, 20000);
    job = job_of(&h, &t);
    hd_arena_init(&arena, 0);
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &l);
    for (int i = 0; i < l.registry.bucket_count; i++) {
        const struct hd_bucket *p = &l.registry.buckets[i];

        frozen += !p->trainable;
        assert_int_equal(bucket_bytes(&l.registry, p), (p->trainable ? 18 : 2) * p->count);
    }
    assert_int_equal(frozen, 4); /* embedding, block 0, the head's norm and its weight */
    hd_arena_done(&arena);
    harness_teardown(&h);
}

/* Goal: backward ends at the lowest block that trains, and MFU counts what is done. Method: the
 * units of B's nodes; FLOPs by hand. */
static void backward_ends_at_the_lowest_that_trains(void **state)
{
    const struct tuned t = {"llama", "bf16", "blocks.1.mlp.*", .dp = 1};
    const struct hd_program *b;
    struct hd_arena arena;
    struct hd_rank_program l;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = job_of(&h, &t);
    hd_arena_init(&arena, 0);
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &l);
    b = &l.train[0]->program[HD_CALL_B];
    assert_true(b->count > 0);
    for (int i = 0; i < b->count; i++)
        assert_true(b->nodes[i]->unit > l.model.unit_first_block);
    /* weights of a block: q, out 32 x 32, k, v 16 x 32, MLP 3 x 48 x 32; (16 + 1) / 2 visible */
    assert_true(hd_model_flops_per_token(&l.model.config) ==
                (2 + 4) * 7680 + 2 * 3 * 48 * 32 + (4 + 12) * 4 * 8 * 8.5 + 4 * 32 * 256);
    hd_arena_done(&arena);
    harness_teardown(&h);
}

/* Goal: a stop changes no bit, and layouts read each other's. Method: weights and moments as they
 * were saved, and the losses of the steps behind. */
static void a_checkpoint_is_resumed_bit_for_bit(void **state)
{
    const struct tuned one = {"llama", "bf16", "last:1", .dp = 1};
    const struct tuned two = {"llama", "bf16", "last:1", .dp = 1, .tp = 2};
    struct run *saving = run_new(2), *loading = run_new(2), *crossing = run_new(0);
    struct hd_saved saved;
    struct harness h;
    struct hd_job job, other;

    harness_setup(&h, 20000);
    job = job_of(&h, &one);
    other = job_of(&h, &two);
    run_save(&job, 2, saving, &saved);
    run_load(&job, &saved, loading);
    run_load(&other, &saved, crossing);
    run_compare_state(saving, loading);
    run_compare_state(saving, crossing);
    for (int i = 0; i < 2; i++)
        assert_true(saving->loss[i] == loading->loss[i] && saving->loss[i] > 0);
    run_free(saving);
    run_free(loading);
    run_free(crossing);
    harness_teardown(&h);
}

static void check_moments(const struct hd_param *p, int64_t first, void *context)
{
    const struct compared *c = context;
    const size_t bytes = (size_t)param_elements(p) * sizeof(float);
    static const float zeros[RUN_ELEMENTS_MAX];
    const bool trained = strncmp(p->name, "blocks.1.", 9) == 0;

    for (int k = 0; k < 2; k++) {
        const float *wanted = trained ? c->some->moments[k] + first : zeros;

        if (memcmp(c->all->moments[k] + first, wanted, bytes) != 0)
            fail_msg("%s has other moments", p->name);
    }
}

/* Goal: a run may go on with more that trains. Method: the last block first, then everything; what
 * begins to train has moments of 0, also in memory that had others. */
static void more_may_train_when_a_run_goes_on(void **state)
{
    const struct tuned first = {"llama", "bf16", "last:1", .dp = 1};
    const struct tuned then = {"llama", "bf16", "all", .dp = 1};
    struct run *some = run_new(0), *all = run_new(0), *on = run_new(2);
    struct compared compared = {all, some};
    struct hd_saved saved;
    struct harness h;
    struct hd_job job, more;

    harness_setup(&h, 20000);
    job = job_of(&h, &first);
    more = job_of(&h, &then);
    run_save(&job, 2, some, &saved);
    run_load(&more, &saved, all);
    run_for_params(&more, check_moments, &compared);
    run_load(&more, &saved, on);
    assert_true(on->loss[1] > 0);
    run_free(some);
    run_free(all);
    run_free(on);
    harness_teardown(&h);
}

/* Declares the job's model as with train.trainable `only`; returns whether the lowest unit that
 * trains is `unit`. */
static bool finds_lowest(struct hd_job *job, const char *only, int unit)
{
    struct hd_model_config config;

    job->only = job_text("%s", only);
    must(hd_model_config_from_job(job, &config));
    return config.lowest_trained == unit;
}

/* Goal: MFU and the cut into stages know every parameter that the model of any family declares.
 * Method: each of them as the only one that trains; a router's select bias never trains. */
static void the_lowest_unit_that_trains_is_known(void **state)
{
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t f = 0; f < hd_family_count; f++) {
        struct hd_job job = harness_job(&h, hd_families[f].name, 1);
        struct hd_model_config config;
        struct hd_registry registry;
        struct hd_model model;
        struct hd_arena arena;

        job.noisy = job.experts > 0;
        job.shared_ffn_hidden = job.experts ? 16 : 0;
        hd_arena_init(&arena, 0);
        hd_registry_init(&registry, &arena, NULL, 0);
        must(hd_model_config_from_job(&job, &config));
        must(hd_model_declare(&config, &registry, &arena, &model));
        for (int i = 0; i < registry.param_count; i++) {
            const struct hd_param *p = &registry.params[i];

            if (!p->state && !finds_lowest(&job, p->name, p->unit))
                fail_msg("%s: %s is not known", job.family, p->name);
        }
        hd_arena_done(&arena);
    }
    harness_teardown(&h);
}

/* Goal: a wrong text is refused with the choices that exist. */
static void wrong_texts_are_refused_by_name(void **state)
{
    static const struct {
        const char *family, *only, *message;
    } wrong[] = {
        {"llama", "last:3",
         "train.trainable: last:3: the model has 2 blocks; write last:1 to last:2"},
        {"llama", "last:0", "train.trainable: last:0: the model has 2 blocks"},
        {"llama", "q_proj", "train.trainable: 'q_proj' names no parameter; use all, last:K"},
        {"llama", "norms,blocks.2.*", "'blocks.2.*' names no parameter"},
        {"llama", "*.q.weight", "the two must train together; name both or neither"},
        {"gpt2", "*.norm1.bias", "the two must train together; name both or neither"},
        {"qwen3", "*.k_norm.*", "the two must train together; name both or neither"},
        {"glm4_moe", "*.select_bias", "train.trainable: '*.select_bias' names no parameter"}};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct tuned t = {wrong[i].family, "fp32", wrong[i].only, .dp = 1};
        const struct hd_job job = job_of(&h, &t);
        struct hd_model_config config;
        struct hd_registry registry;
        struct hd_model model;
        struct hd_arena arena;

        hd_arena_init(&arena, 0);
        assert_int_equal(hd_model_config_from_job(&job, &config), HD_OK);
        hd_registry_init(&registry, &arena, NULL, 0);
        assert_int_equal(hd_model_declare(&config, &registry, &arena, &model), HD_INVALID);
        if (!strstr(hd_err_message(), wrong[i].message))
            fail_msg("%s: %s", wrong[i].only, hd_err_message());
        hd_arena_done(&arena);
    }
    harness_teardown(&h);
}

RUN_CASES()
