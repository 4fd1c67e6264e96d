/* Dropout in a whole model: what is dropped is what ops.h says, no two places share a mask,
 * backward has forward's, and evaluation knows nothing of it. That layouts train alike is the
 * grid's business, that gradients are right gradient_test's.
 */
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "runs.h"
#include "tests/program/test.h"

enum { L = 2, C = 32, S = 16, MASKS_MAX = 64 };

static struct hd_job dropping_job(const struct harness *h, double p)
{
    struct hd_job job = harness_job(h, "gpt2", 1);

    job.dropout_embedding = job.dropout_attention = job.dropout_residual = p;
    return job;
}

/* ---- which masks there are ---- */

struct keys {
    uint64_t dropout[MASKS_MAX], attention[MASKS_MAX];
    int dropout_count, attention_count;
};

/* The keys of a program, in its order. */
static struct keys keys_of(const struct hd_program *p)
{
    struct keys k = {.dropout_count = 0};

    for (int i = 0; i < p->count; i++) {
        const struct hd_node *n = p->nodes[i];
        const struct hd_attention_forward_args *forward = n->args;
        const struct hd_attention_backward_args *backward = n->args;

        if (n->is_comm)
            continue;
        assert_true(k.dropout_count < MASKS_MAX && k.attention_count < MASKS_MAX);
        if (n->kernel == HD_K_dropout)
            k.dropout[k.dropout_count++] = ((const struct hd_dropout_args *)n->args)->key;
        else if (n->kernel == HD_K_attention_forward && forward->dropout > 0)
            k.attention[k.attention_count++] = forward->dropout_key;
        else if (n->kernel == HD_K_attention_backward && backward->dropout > 0)
            k.attention[k.attention_count++] = backward->dropout_key;
    }
    return k;
}

static void check_backward_is_forward_reversed(const uint64_t *f, const uint64_t *b, int count)
{
    for (int i = 0; i < count; i++)
        assert_true(b[count - 1 - i] == f[i]);
}

static void check_differ(const uint64_t *keys, int count)
{
    for (int i = 0; i < count; i++)
        for (int k = 0; k < i; k++)
            assert_true(keys[i] != keys[k]);
}

/* Sites that drop values: 1 + 2 L, the embedding and twice a block; of weights L, once a block.
 * Blocks are recorded once and repeated, and still each has its own. */
static void no_two_places_share_a_mask_but_forward_and_backward(void **state)
{
    struct hd_arena arena;
    struct hd_rank_program layout;
    struct harness h;
    struct hd_job job;
    struct keys f, b;

    harness_setup(&h, 4000);
    hd_arena_init(&arena, 0);
    job = dropping_job(&h, 0.25);
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &layout);
    f = keys_of(&layout.train[0]->program[HD_CALL_F]);
    b = keys_of(&layout.train[0]->program[HD_CALL_B]);
    assert_int_equal(f.dropout_count, 1 + 2 * L);
    assert_int_equal(f.attention_count, L);
    assert_int_equal(b.dropout_count, f.dropout_count);
    assert_int_equal(b.attention_count, f.attention_count);
    check_backward_is_forward_reversed(f.dropout, b.dropout, f.dropout_count);
    check_backward_is_forward_reversed(f.attention, b.attention, f.attention_count);
    memcpy(f.dropout + f.dropout_count, f.attention, L * sizeof *f.attention);
    check_differ(f.dropout, f.dropout_count + L);
    hd_arena_done(&arena);
    harness_teardown(&h);
}

/* Evaluation has none, and a share of 0 leaves no trace in training: not even the field of the
 * batch that masks depend on. */
static void what_is_not_dropped_costs_nothing(void **state)
{
    struct hd_arena arena;
    struct hd_rank_program dropping, plain;
    struct harness h;
    struct hd_job job;
    struct keys k;

    harness_setup(&h, 4000);
    hd_arena_init(&arena, 0);
    job = dropping_job(&h, 0.25);
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &dropping);
    job = dropping_job(&h, 0);
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &plain);
    k = keys_of(&dropping.eval[0]->program[HD_CALL_E]);
    assert_int_equal(k.dropout_count + k.attention_count, 0);
    assert_int_equal(dropping.eval[0]->program[HD_CALL_E].count,
                     plain.eval[0]->program[HD_CALL_E].count);
    k = keys_of(&plain.train[0]->program[HD_CALL_F]);
    assert_int_equal(k.dropout_count + k.attention_count, 0);
    assert_non_null(hd_chunk_find_batch(dropping.train[0], HD_BATCH_SAMPLES));
    assert_null(hd_chunk_find_batch(plain.train[0], HD_BATCH_SAMPLES));
    hd_arena_done(&arena);
    harness_teardown(&h);
}

/* ---- what they do ---- */

struct losses {
    double training, validation;
};

static enum hd_status take_losses(struct harness_rank *r)
{
    struct losses *losses = r->context;
    struct hd_step_result step;
    struct hd_trainer *t;
    int64_t targets;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    st = hd_trainer_validate(t, &losses->validation, &targets);
    if (!st)
        st = hd_trainer_step(t, 0, &step);
    losses->training = step.loss;
    hd_trainer_free(t);
    return st;
}

static struct losses losses_of(const struct hd_job *job)
{
    struct losses losses = {0, 0};

    if (harness_threads(job, 1, &losses, take_losses))
        fail_msg("%s", hd_err_message());
    return losses;
}

/* At the initial weights, which are those of a model that drops nothing. */
static void evaluation_drops_nothing_and_training_each_of_the_three(void **state)
{
    struct losses plain, all;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 8000);
    job = dropping_job(&h, 0);
    plain = losses_of(&job);
    for (int which = 0; which < 3; which++) {
        job = dropping_job(&h, 0);
        *(which == 0   ? &job.dropout_embedding
          : which == 1 ? &job.dropout_attention
                       : &job.dropout_residual) = 0.5;
        all = losses_of(&job);
        assert_true(all.validation == plain.validation);
        assert_true(all.training != plain.training);
    }
    harness_teardown(&h);
}

/* ---- the mask itself, seen from outside ---- */

enum { SEED = 11 };
static const double p = 0.25;

static enum hd_status take_position_gradient(struct harness_rank *r)
{
    float *gradient = r->context;
    int positions;
    struct hd_step_result step;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    positions = hd_trainer_rank_program(t)->model.positions;
    st = hd_trainer_step(t, 0, &step);
    assert_int_equal(hd_trainer_rank_program(t)->registry.params[positions].count, S * C);
    if (!st)
        st = hd_trainer_read_state(t, positions, HD_STATE_GRAD, gradient);
    hd_trainer_free(t);
    return st;
}

/* Recomputes ops.h's contract: word c % 4 at {c / 4, index, head 0, sample 0} of the key of (seed,
 * layer 0, the embedding's site), step 1. */
static bool contract_drops(int64_t index, int64_t c)
{
    const uint64_t key = hd_dropout_key(SEED, 0, HD_SITE_EMBEDDING);
    uint32_t words[4];

    hd_random_philox(hd_random_key(key, 1), (uint64_t)index << 32 | (uint64_t)c / 4, 0, words);
    return (double)words[c % 4] < p * 0x1p32;
}

/* Goal: what the model drops is what the contract says, and the kept share is 1 - p. Method: one
 * sequence a step, so that each row of the table of positions is used once: what was dropped of it
 * has no gradient at all, and everything else has one. */
static void the_embedding_loses_what_the_contract_says(void **state)
{
    static float gradient[S * C];
    struct harness h;
    struct hd_job job;
    int kept = 0;

    harness_setup(&h, 4000);
    job = dropping_job(&h, 0);
    job.dropout_embedding = p;
    job.seed = SEED;
    job.global_batch = job.micro_batch = 1;
    if (harness_threads(&job, 1, gradient, take_position_gradient))
        fail_msg("%s", hd_err_message());
    for (int64_t i = 0; i < S; i++)
        for (int64_t c = 0; c < C; c++) {
            assert_int_equal(gradient[i * C + c] == 0, contract_drops(i, c));
            kept += gradient[i * C + c] != 0;
        }
    /* 512 draws: five standard deviations of a binomial share, sqrt(p (1-p) / 512) */
    assert_true(fabs(kept / (double)(S * C) - (1 - p)) < 5 * sqrt(p * (1 - p) / (S * C)));
    harness_teardown(&h);
}

RUN_CASES()
