/* adapter: factors of low rank beside frozen weights. A fresh adapter changes no bit of the model,
 * training it changes nothing else, and every layout trains alike. (The numbers themselves:
 * tests/golden, against PEFT.)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "compare.h"

enum { STEPS = 4 };

struct adapted {
    const char *family, *precision, *targets, *also;
    int dp, tp, pp, cp, zero, ep;
    const char *recompute;
    bool split_backward;
    double dropout;
};

static struct hd_job job_of(const struct harness *h, const struct adapted *a)
{
    struct hd_job job = harness_job(h, a->family, a->dp);

    (void)snprintf(job.precision, sizeof job.precision, "%s", a->precision);
    (void)snprintf(job.adapter, sizeof job.adapter, "%s", a->targets ? "lora" : "none");
    (void)snprintf(job.adapter_targets, sizeof job.adapter_targets, "%s",
                   a->targets ? a->targets : "");
    (void)snprintf(job.adapter_also, sizeof job.adapter_also, "%s", a->also ? a->also : "");
    job.adapter_rank = 4;
    job.adapter_alpha = 6;
    job.adapter_b_lr = 4;
    job.adapter_dropout = a->dropout;
    job.tp = a->tp ? a->tp : 1;
    job.pp = a->pp ? a->pp : 1;
    job.cp = a->cp ? a->cp : 1;
    job.zero = a->zero;
    job.ep = a->ep ? a->ep : 1;
    (void)snprintf(job.schedule, sizeof job.schedule, "%s",
                   a->pp < 2           ? "none"
                   : a->split_backward ? "zb-h1"
                                       : "1f1b");
    if (a->recompute)
        (void)snprintf(job.recompute, sizeof job.recompute, "%s", a->recompute);
    job.micro_batch = job.global_batch / a->dp / 2;
    return job;
}

struct visited {
    const struct run *run, *base;
    int64_t base_first; /* of the base's arrays, which have no adapter */
};

static void for_params(const struct hd_job *job,
                       void (*visit)(const struct hd_param *p, int64_t first, void *context),
                       void *context)
{
    struct hd_arena arena;
    struct hd_layout l;
    int64_t first = 0;

    hd_arena_init(&arena, 0);
    run_layout(job, &(struct hd_layout_options){0}, &arena, &l);
    for (int i = 0; i < l.registry.param_count; i++) {
        visit(&l.registry.params[i], first, context);
        first += param_elements(&l.registry.params[i]);
    }
    hd_arena_done(&arena);
}

static void check_moved(const struct hd_param *p, int64_t first, void *context)
{
    const struct visited *v = context;
    const size_t bytes = (size_t)param_elements(p) * sizeof(float);
    const bool same = memcmp(v->run->initial + first, v->run->weights + first, bytes) == 0;

    if (same == p->trainable)
        fail_msg("%s, which %s, %s", p->name, p->trainable ? "trains" : "does not train",
                 same ? "has not changed" : "has changed");
    if (p->adapter && !p->trainable)
        fail_msg("%s does not train", p->name);
}

/* Goal: the adapter trains, and what is named beside it; the base keeps its bits; a fresh adapter
 * leaves the loss as it was. Method: weights before and after; the first loss against that of a run
 * without adapter. */
static void the_adapter_trains_and_begins_as_nothing(void **state)
{
    static const struct adapted cases[] = {
        {"llama", "fp32", "all-linear", .dp = 1},
        {"llama", "bf16", "all-linear", .dp = 2},
        {"llama", "fp32", "q_proj,v_proj", .dp = 1},
        {"llama", "bf16", "self_attn.k_proj,up_proj", "norms,head", .dp = 1},
        {"llama", "fp8", "all-linear", .dp = 1},
        {"gpt2", "bf16", "all-linear", .dp = 1},
        {"gpt2", "fp32", "c_attn,mlp.c_proj", "embedding", .dp = 1},
        {"qwen3", "fp32", "all-linear", .dp = 1},
        {"mixtral", "fp32", "q_proj,k_proj,v_proj,o_proj", .dp = 1},
        {"mixtral", "bf16", "experts.w1,w2", .dp = 1},
        {"mixtral", "fp32", "all-linear", .dp = 1}};
    struct harness h;

    (void)state;
    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct adapted without = cases[i];
        const struct hd_job job = job_of(&h, &cases[i]);
        struct run *run = run_new(STEPS), *base = run_new(1);
        struct visited v = {run, base, 0};

        without.targets = without.also = NULL;
        run_threads(job, cases[i].dp, run);
        run_threads(job_of(&h, &without), cases[i].dp, base);
        (void)printf("%s %s %s\n", cases[i].family, cases[i].precision, cases[i].targets);
        for_params(&job, check_moved, &v);
        assert_true(run->loss[0] == base->loss[0]);
        run_free(run);
        run_free(base);
    }
    harness_teardown(&h);
}

/* Each expert has factors of its own: they are on the rank that has the expert, and tp splits one of
 * the two. */
static void layouts_of_experts(const struct harness *h)
{
    static const struct adapted layouts[] = {
        {.dp = 2, .ep = 2},
        {.dp = 1, .tp = 2},
        {.dp = 2, .tp = 2, .ep = 2, .zero = 1},
        {.dp = 1, .cp = 2, .ep = 2},
        {.dp = 1, .pp = 2, .split_backward = true},
        {.dp = 2, .zero = 3, .recompute = "full"},
        {.dp = 2, .ep = 2, .zero = 2, .recompute = "selective"}};
    const struct adapted one = {"mixtral", "fp32", "all-linear", "norms", .dp = 1};
    struct run *reference = run_new(STEPS);

    run_threads(job_of(h, &one), 1, reference);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct adapted a = layouts[i];
        struct hd_job job;

        a.family = "mixtral";
        a.precision = "fp32";
        a.targets = "all-linear";
        a.also = "norms";
        job = job_of(h, &a);
        if (compare_with(&job, reference, NULL))
            fail_msg("experts, layout %zu: %s", i, hd_err_message());
    }
    run_free(reference);
}

/* Goal: every layout trains alike, also with dropout before A: a mask depends on a value's place
 * alone. Method: each axis against one rank; at tp = 4 two ranks hold one head of keys and values.
 */
static void layouts_agree_with_one_rank(void **state)
{
    static const struct adapted layouts[] = {{.dp = 2},
                                             {.dp = 1, .tp = 2},
                                             {.dp = 1, .tp = 4},
                                             {.dp = 1, .cp = 2},
                                             {.dp = 1, .pp = 2},
                                             {.dp = 1, .pp = 2, .split_backward = true},
                                             {.dp = 2, .zero = 1},
                                             {.dp = 2, .zero = 2},
                                             {.dp = 2, .tp = 2, .zero = 3},
                                             {.dp = 1, .recompute = "selective"},
                                             {.dp = 1, .tp = 2, .recompute = "full"}};
    static const char *const families[] = {"llama", "gpt2", "qwen3"};
    struct harness h;

    (void)state;
    harness_setup(&h, 20000);
    layouts_of_experts(&h);
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        const double dropout = f < 2 ? 0.2 : 0;
        const struct adapted one = {families[f], "fp32",  "all-linear",
                                    "norms",     .dp = 1, .dropout = dropout};
        struct run *reference = run_new(STEPS);

        run_threads(job_of(&h, &one), 1, reference);
        for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
            struct adapted a = layouts[i];
            struct hd_job job;

            a.family = families[f];
            a.precision = "fp32";
            a.targets = "all-linear";
            a.also = "norms";
            a.dropout = dropout;
            job = job_of(&h, &a);
            if (compare_with(&job, reference, NULL))
                fail_msg("%s, layout %zu: %s", families[f], i, hd_err_message());
        }
        run_free(reference);
    }
    harness_teardown(&h);
}

/* Goal: a stop changes no bit, and layouts read each other's. */
static void a_checkpoint_is_resumed_bit_for_bit(void **state)
{
    const struct adapted one = {"llama", "bf16", "all-linear", .dp = 1};
    const struct adapted two = {"llama", "bf16", "all-linear", .dp = 1, .tp = 2};
    struct run *saving = run_new(2), *loading = run_new(2), *crossing = run_new(0);
    struct hd_saved saved;
    struct harness h;
    struct hd_job job, other;

    (void)state;
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

/* Goal: dropout drops what the adapter sees, in training alone. Method: against a run without it:
 * the first loss is that of the base, the second, when B is no longer zero, is another; validation,
 * at equal weights, is the same. */
static void dropout_is_of_training_alone(void **state)
{
    struct adapted a = {"llama", "fp32", "all-linear", .dp = 1};
    struct run *without = run_new(STEPS), *with = run_new(STEPS), *still[2];
    struct harness h;
    struct hd_job job;

    (void)state;
    harness_setup(&h, 20000);
    run_threads(job_of(&h, &a), 1, without);
    a.dropout = 0.5;
    run_threads(job_of(&h, &a), 1, with);
    assert_true(with->loss[0] == without->loss[0]);
    assert_true(with->loss[1] != without->loss[1]);
    for (int i = 0; i < 2; i++) { /* nothing moves */
        a.dropout = i ? 0.5 : 0;
        job = job_of(&h, &a);
        job.lr_peak = job.lr_min = 0;
        still[i] = run_new(1);
        still[i]->noise = 0.1F; /* B is not zero */
        run_threads(job, 1, still[i]);
    }
    assert_true(still[0]->loss[0] != still[1]->loss[0]);
    assert_true(still[0]->validation_loss == still[1]->validation_loss);
    run_free(still[0]);
    run_free(still[1]);
    run_free(without);
    run_free(with);
    harness_teardown(&h);
}

static enum hd_status declare(const struct hd_job *job, struct hd_arena *arena,
                              struct hd_registry *registry)
{
    struct hd_model_config config;
    struct hd_model model;
    const enum hd_status st = hd_model_config_from_job(job, &config);

    hd_registry_init(registry, arena, NULL, 0);
    return st ? st : hd_model_declare(&config, registry, arena, &model);
}

/* Goal: names, shapes and first values are those of the paper. Method: A within its bound and
 * filling it, B zero, in shapes by hand. */
static void factors_are_declared_as_in_the_paper(void **state)
{
    const struct adapted a = {"llama", "fp32", "v_proj,down_proj", .dp = 1};
    struct hd_registry r;
    struct hd_arena arena;
    struct harness h;
    struct hd_job job;
    int factors = 0;

    (void)state;
    harness_setup(&h, 20000);
    job = job_of(&h, &a);
    hd_arena_init(&arena, 0);
    assert_int_equal(declare(&job, &arena, &r), HD_OK);
    for (int i = 0; i < r.param_count; i++) {
        const struct hd_param *p = &r.params[i];
        const bool is_a = strstr(p->name, "lora_a") != NULL, down = strstr(p->name, "mlp.") != NULL;
        const int64_t in = down ? 48 : 32, out = down ? 32 : 16;
        float values[48 * 4], most = 0;

        if (!p->adapter)
            continue;
        factors++;
        assert_int_equal(p->shape[0], is_a ? 4 : out);
        assert_int_equal(p->shape[1], is_a ? in : 4);
        assert_false(p->decay);
        assert_true(p->lr_scale == (is_a ? 1 : 4));
        hd_param_init_values(p, 7, 0, p->count, values);
        for (int64_t k = 0; k < p->count; k++)
            most = values[k] > most ? values[k] : -values[k] > most ? -values[k] : most;
        if (is_a) {
            assert_true(most * most * (float)in <= 1);
            assert_true(most * most * (float)in > 0.9F);
        } else {
            assert_true(most == 0);
        }
    }
    assert_int_equal(factors, 2 * 2 * 2);
    hd_arena_done(&arena);
    harness_teardown(&h);
}

/* What cannot be is said with what there is. */
static void wrong_texts_are_refused_by_name(void **state)
{
    static const struct {
        const char *family, *targets, *only, *message, *also;
    } wrong[] = {
        {"llama", "c_attn", "all", "llama has no module 'c_attn'; there are self_attn.q_proj",
         NULL},
        {"llama", "proj", "all", "llama has no module 'proj'", NULL},
        {"gpt2", "q_proj", "all", "gpt2 has no module 'q_proj'; there are attn.c_attn", NULL},
        {"llama", "", "all", "train.adapter.targets: names nothing", NULL},
        {"llama", "q_proj", "norms", "train.only: with train.adapter the adapter trains", NULL},
        {"mixtral", "gate_proj", "all",
         "mixtral has no module 'gate_proj'; there are self_attn.q_proj", NULL},
        {"llama", "q_proj", "all", "train.adapter.also: 'lm_head' names no parameter", "lm_head"}};
    struct harness h;

    (void)state;
    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct adapted a = {wrong[i].family, "fp32", wrong[i].targets, wrong[i].also,
                                  .dp = 1};
        struct hd_job job = job_of(&h, &a);
        struct hd_registry r;
        struct hd_arena arena;

        (void)snprintf(job.only, sizeof job.only, "%s", wrong[i].only);
        hd_arena_init(&arena, 0);
        assert_int_not_equal(declare(&job, &arena, &r), HD_OK);
        if (!strstr(hd_err_message(), wrong[i].message))
            fail_msg("%s: %s", wrong[i].targets, hd_err_message());
        hd_arena_done(&arena);
    }
    harness_teardown(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_adapter_trains_and_begins_as_nothing),
        cmocka_unit_test(layouts_agree_with_one_rank),
        cmocka_unit_test(dropout_is_of_training_alone),
        cmocka_unit_test(a_checkpoint_is_resumed_bit_for_bit),
        cmocka_unit_test(factors_are_declared_as_in_the_paper),
        cmocka_unit_test(wrong_texts_are_refused_by_name),
    };
    return cmocka_run_group_tests_name("adapter", tests, NULL, NULL);
}
