/* recompute: every policy gives the bits of `none`, keeps what the closed forms say, and computes
 * again no more than that. tests/parity/grid pairs it with every other axis.
 */
#include <stdio.h>
#include <string.h>

#include "compare.h"
#include "tests/program/test.h"

enum { STEPS = 3, LAYERS = 6 };

struct layout {
    const char *family, *precision;
    int dp, tp, pp, cp;
    bool sequence;
    const char *schedule;
};

static struct hd_job job_of(const struct harness *h, const struct layout *l, const char *recompute)
{
    struct hd_job job = harness_job(h, l->family, l->dp);

    job.layers = strcmp(l->family, "mixtral") == 0 ? 3 : LAYERS; /* RUN_ELEMENTS_MAX */
    job.tp = l->tp ? l->tp : 1;
    job.pp = l->pp ? l->pp : 1;
    job.cp = l->cp ? l->cp : 1;
    job.sequence = l->sequence;
    job.micro_batch = 1;
    job.precision = hd_job_find_word(hd_job_precision_words, l->precision);
    (void)snprintf(job.recompute, sizeof job.recompute, "%s", recompute);
    if (l->schedule)
        (void)snprintf(job.schedule, sizeof job.schedule, "%s", l->schedule);
    if (l->schedule && strcmp(l->schedule, "zb-v") == 0)
        job.virtual_stages = 2;
    if (strcmp(l->family, "gpt2") == 0)
        job.dropout_residual = job.dropout_attention = job.dropout_embedding = 0.1;
    return job;
}

static const char *const policies[] = {"selective", "full", "full:2", "full:4"};
enum { POLICIES = sizeof policies / sizeof policies[0] };

static void every_policy_has_the_bits_of_none(void **state)
{
    static const struct layout layouts[] = {
        {.family = "gpt2", .precision = "fp32", .dp = 1},
        {.family = "gpt2", .precision = "bf16", .dp = 1},
        {.family = "llama", .precision = "bf16", .dp = 1, .tp = 2, .sequence = true},
        {.family = "qwen3", .precision = "fp32", .dp = 1, .cp = 2},
        {.family = "mixtral", .precision = "bf16", .dp = 2},
        {.family = "gpt2", .precision = "bf16", .dp = 1, .pp = 2, .schedule = "zb-h1"},
        {.family = "mixtral", .precision = "fp32", .dp = 1, .pp = 2, .schedule = "zb-v"},
    };

    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct run *none = run_new(STEPS);
        struct harness h;

        harness_setup(&h, 20000);
        run_threads(job_of(&h, &layouts[i], "none"), layouts[i].dp, none);
        for (int p = 0; p < POLICIES; p++) {
            struct run *again = run_new(STEPS);

            run_threads(job_of(&h, &layouts[i], policies[p]), layouts[i].dp, again);
            if (memcmp(again->last_grad, none->last_grad, sizeof none->last_grad))
                fail_msg("%s, %s: %s differs from none in a gradient's bits", layouts[i].family,
                         layouts[i].precision, policies[p]);
            assert_memory_equal(again->loss, none->loss, sizeof none->loss);
            assert_memory_equal(again->grad_norm, none->grad_norm, sizeof none->grad_norm);
            assert_memory_equal(again->weights, none->weights, sizeof none->weights);
            run_free(again);
        }
        run_free(none);
        harness_teardown(&h);
    }
}

/* ---- memory and work, by hand ---- */

static void build(struct hd_job job, const char *recompute, struct hd_arena *arena,
                  struct hd_rank_program *ret_layout)
{
    (void)snprintf(job.recompute, sizeof job.recompute, "%s", recompute);
    hd_arena_init(arena, 0);
    run_layout(&job, &(struct hd_rank_program_options){0}, arena, ret_layout);
}

static int64_t kept_with(const struct hd_job *job, const char *recompute)
{
    struct hd_arena arena;
    struct hd_rank_program l;
    int64_t kept;

    build(*job, recompute, &arena, &l);
    kept = l.memory.kept;
    hd_arena_done(&arena);
    return kept;
}

/* A layer of llama keeps, in rows of R, two norms' results (2 C), q, k, v, attention's result, the
 * sum before the MLP (C), gate and up (2 F), their product (F) and, what enters the layer, C; in
 * fp32 two rstd and a log-sum-exp per head. All sizes here are multiples of HD_TENSOR_ALIGN. */
static void what_is_kept_follows_closed_forms(void **state)
{
    static const struct layout llama = {.family = "llama", .precision = "bf16", .dp = 1};
    struct harness h;
    struct hd_job job;
    int64_t R, C, F, cheap, dear, none;

    harness_setup(&h, 20000);
    job = job_of(&h, &llama, "none");
    job.micro_batch = 4;
    R = job.micro_batch * job.context;
    C = job.hidden;
    F = job.ffn_hidden;
    cheap = 2 * R * (2 * C + F) + 2 * 4 * R;
    dear = 2 * R * ((job.heads + 2 * job.kv_heads) * job.head_width + C + C + 2 * F) +
           4 * R * job.heads;
    none = kept_with(&job, "none");
    assert_int_equal(none - kept_with(&job, "selective"), LAYERS * cheap);
    assert_int_equal(none - kept_with(&job, "full"), LAYERS * (cheap + dear));
    assert_int_equal(none - kept_with(&job, "full:2"), LAYERS * (cheap + dear) + 3 * 2 * R * C);
    assert_int_equal(none - kept_with(&job, "full:4"), LAYERS * (cheap + dear) + 4 * 2 * R * C);
    harness_teardown(&h);
}

static int count(const struct hd_rank_program *l, enum hd_kernel kernel)
{
    const struct hd_program *b = &l->train[0]->program[HD_CALL_B];
    int nodes = 0;

    for (int i = 0; i < b->count; i++)
        nodes += !b->nodes[i]->is_comm && b->nodes[i]->kernel == kernel;
    return nodes;
}

/* Selective launches no product again; full three of a layer's four, and attention: nothing needs
 * the result of the last product, but the next layer of a segment. */
static void no_more_is_computed_again_than_needed(void **state)
{
    static const struct layout llama = {.family = "llama", .precision = "bf16", .dp = 1};
    static const struct {
        const char *recompute;
        int products, attentions, norms;
    } counts[] = {{"none", 0, 0, 0},
                  {"selective", 0, 0, 2 * LAYERS},
                  {"full", 3 * LAYERS, LAYERS, 2 * LAYERS},
                  {"full:2", 3 * LAYERS + 3, LAYERS, 2 * LAYERS}};
    struct harness h;
    struct hd_job job;
    int products = 0;

    harness_setup(&h, 20000);
    job = job_of(&h, &llama, "none");
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct hd_arena arena;
        struct hd_rank_program l;

        build(job, counts[i].recompute, &arena, &l);
        if (i == 0)
            products = count(&l, HD_K_gemm);
        assert_int_equal(count(&l, HD_K_gemm) - products, counts[i].products);
        assert_int_equal(count(&l, HD_K_attention_forward), counts[i].attentions);
        assert_int_equal(count(&l, HD_K_rmsnorm_forward), counts[i].norms);
        hd_arena_done(&arena);
    }
    harness_teardown(&h);
}

/* A second choice could differ where two experts are nearly as good. */
static void no_router_chooses_again(void **state)
{
    static const struct layout mixtral = {.family = "mixtral", .precision = "bf16", .dp = 2};
    struct harness h;
    struct hd_arena arena;
    struct hd_rank_program l;

    harness_setup(&h, 20000);
    build(job_of(&h, &mixtral, "full"), "full", &arena, &l);
    assert_int_equal(count(&l, HD_K_route_forward), 0);
    assert_int_equal(count(&l, HD_K_route_record), 0);
    assert_int_equal(count(&l, HD_K_assign), 0);
    assert_true(count(&l, HD_K_permute_forward) > 0);
    hd_arena_done(&arena);
    harness_teardown(&h);
}

RUN_CASES()
