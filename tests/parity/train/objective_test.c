/* Losses of pairs of answers: the formula from log-probabilities that other programs make,
 * gradients by differences, and the reference, which is of the weights of the start. (Every layout:
 * the tuned models of the grid.)
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/random.h"
#include "compare.h"
#include "pairs.h"
#include "tests/program/test.h"

/* A test has one file at a time. */
static void write_pairs(const struct harness *h, int first, int count, enum pairs_side side,
                        struct hd_job_file *file)
{
    static char path[PAIRS_PATH_MAX];

    pairs_write(h, first, count, side, path, file);
}

static struct hd_job pair_job(const struct harness *h, const char *objective,
                              struct hd_job_file *file)
{
    struct hd_job job = harness_job(h, "llama", 1);

    job.train = file;
    job.val_split = 0;
    job.val = file;
    job.val_count = 1;
    job.validate_batches = 1;
    job.context = PAIRS_WINDOW;
    job.end_of_text = -1;
    job.preference_beta = 0.3;
    job.documents = HD_JOB_DOCUMENTS_BOUNDED;
    job.objective = hd_job_find_word(hd_job_objective_words, objective);
    return job;
}

/* The weights of the start with some noise, of which a reference knows nothing. */
static void stir(struct hd_trainer *t)
{
    const struct hd_registry *r = &hd_trainer_rank_program(t)->registry;

    for (int i = 0; i < r->param_count; i++) {
        float *w = harness_take(t, i, HD_STATE_WEIGHT);

        for (int64_t k = 0; k < r->params[i].count; k++)
            w[k] += 0.1f * hd_random_normal(hd_random_hash(r->params[i].name) + 1, (uint64_t)k);
        harness_put(t, i, HD_STATE_WEIGHT, w);
    }
}

/* ---- the formula ---- */

struct answer {
    double start, stirred; /* log-probability of it by both weights */
    double targets;
};

static enum hd_status rate_answer(struct harness_rank *r)
{
    struct answer *a = r->context;
    struct hd_trainer *t;
    int64_t targets = 0;
    double loss = 0;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    st = hd_trainer_validate(t, &loss, &targets);
    a->start = -loss * (double)targets;
    stir(t);
    if (!st)
        st = hd_trainer_validate(t, &loss, &targets);
    a->stirred = -loss * (double)targets;
    a->targets = (double)targets;
    hd_trainer_free(t);
    return st;
}

/* An answer by itself, as a text to predict. */
static struct answer rate(const struct harness *h, int pair, enum pairs_side side)
{
    struct answer a;
    struct hd_job_file file;
    struct hd_job job;

    write_pairs(h, pair, 1, side, &file);
    job = pair_job(h, "next_token", &file);
    job.global_batch = job.micro_batch = 1;
    if (harness_threads(&job, 1, &a, rate_answer))
        fail_msg("%s", hd_err_message());
    return a;
}

static enum hd_status step_stirred(struct harness_rank *r)
{
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    stir(t);
    st = hd_trainer_step(t, 0, r->context);
    hd_trainer_free(t);
    return st;
}

static double odds(double mean)
{
    return mean - log(1 - exp(mean));
}

enum { PAIRS = 3 };

/* Goal: a step's loss is the formula over sums of whole answers, relative to the start. Method: the
 * log-probability of every answer is that of a text, by two jobs that know no pairs; the formulas
 * once more in double. */
static void formula_case(const char *objective)
{
    const bool dpo = strcmp(objective, "dpo") == 0, simpo = strcmp(objective, "simpo") == 0;
    const double beta = 0.3f;
    struct answer a[PAIRS][2];
    double loss = 0, margin = 0, correct = 0, targets = 0;
    struct hd_step_result s;
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 64);
    for (int k = 0; k < PAIRS; k++)
        for (int side = 0; side < 2; side++)
            a[k][side] = rate(&h, k, (enum pairs_side)side);
    for (int k = 0; k < PAIRS; k++) {
        const struct answer *c = &a[k][0], *r = &a[k][1];
        const double mean = c->stirred / c->targets, other = r->stirred / r->targets;
        const double z = dpo ? beta * ((c->stirred - c->start) - (r->stirred - r->start))
                             : beta * (mean - other);

        margin += z / PAIRS;
        correct += (z > 0) / (double)PAIRS;
        targets += c->targets + r->targets;
        loss += (dpo     ? log1p(exp(-z))
                 : simpo ? log1p(exp(0.5 - z)) - 0.25 * mean
                         : -mean + beta * log1p(exp(odds(other) - odds(mean)))) /
                PAIRS;
    }
    write_pairs(&h, 0, PAIRS, PAIRS_BOTH, &file);
    job = pair_job(&h, objective, &file);
    job.preference_gamma = 0.5;
    job.preference_sft = simpo ? 0.25 : 0;
    job.global_batch = job.micro_batch = 2; /* windows: 5 + 4 + 7 + 6, and 10 + 8 */
    if (harness_threads(&job, 1, &s, step_stirred))
        fail_msg("%s", hd_err_message());
    assert_int_equal(s.pairs.count, PAIRS);
    assert_true((double)s.targets == targets);
    if (fabs(s.loss - loss) > 1e-5 || fabs(s.pairs.margin - margin) > 1e-5 ||
        fabs(s.pairs.accuracy - correct) > 1e-12)
        fail_msg("%s: loss %.8f margin %.8f accuracy %g, by the formula %.8f %.8f %g", objective,
                 s.loss, s.pairs.margin, s.pairs.accuracy, loss, margin, correct);
    harness_teardown(&h);
}

static void a_step_of_pairs_is_the_formula(void **state)
{
    formula_case("dpo");
    formula_case("orpo");
    formula_case("simpo");
}

/* ---- the first loss ---- */

static enum hd_status take_step(struct harness_rank *r)
{
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (!st)
        st = hd_trainer_step(t, 0, r->context);
    hd_trainer_free(t);
    return st;
}

/* Before the first update every log-ratio is 0, to the last bit: of each loss that has a reference its value at
 * 0; of sigmoid -log sigmoid(0) = ln 2. */
static void the_first_loss_is_that_of_no_difference(void **state)
{
    static const struct {
        const char *loss;
        double first; /* 1 / (2 beta)^2 of ipo, with beta 0.3 as a float */
    } losses[] = {{"sigmoid", 0},
                  {"robust", 0},
                  {"sigmoid_norm", 0},
                  {"hinge", 1},
                  {"apo_zero", 1},
                  {"apo_down", 1},
                  {"ipo", 1 / (4 * (double)0.3f * (double)0.3f)}};
    static const char *const precisions[] = {"fp32", "bf16"};
    struct hd_step_result s;
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;

    for (int i = 0; i < 7; i++) {
        const double first = losses[i].first > 0 ? losses[i].first : log(2);

        harness_setup(&h, 64);
        write_pairs(&h, 0, 16, PAIRS_BOTH, &file);
        job = pair_job(&h, "dpo", &file);
        job.preference_loss = hd_job_find_word(hd_job_preference_loss_words, losses[i].loss);
        job.precision = hd_job_find_word(hd_job_precision_words, precisions[i % 2]);
        job.adapter = i & 2 ? HD_JOB_ADAPTER_LORA : HD_JOB_ADAPTER_NONE;
        if (harness_threads(&job, 1, &s, take_step))
            fail_msg("%s", hd_err_message());
        if (fabs(s.loss - first) > 1e-14 || s.pairs.margin != 0)
            fail_msg("%s, %s: the first loss is %.17g, margin %g",
                     hd_job_preference_loss_words[job.preference_loss],
                     hd_job_precision_words[job.precision], s.loss, s.pairs.margin);
        harness_teardown(&h);
    }
}

/* With a vector of zeros every reward is 0. */
static enum hd_status step_from_zeros(struct harness_rank *r)
{
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    for (int i = 0; i < hd_trainer_rank_program(t)->registry.param_count; i++) {
        const struct hd_param *p = &hd_trainer_rank_program(t)->registry.params[i];

        if (strcmp(p->name, "head.score.weight") == 0)
            harness_put(t, i, HD_STATE_WEIGHT, calloc((size_t)p->count, sizeof(float)));
    }
    st = hd_trainer_step(t, 0, r->context);
    hd_trainer_free(t);
    return st;
}

static void the_first_loss_of_a_reward_model_of_zeros_is_ln_2(void **state)
{
    struct hd_step_result s;
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 64);
    write_pairs(&h, 0, 16, PAIRS_BOTH, &file);
    job = pair_job(&h, "reward", &file);
    if (harness_threads(&job, 1, &s, step_from_zeros))
        fail_msg("%s", hd_err_message());
    assert_true(fabs(s.loss - log(2)) < 1e-15 && s.pairs.margin == 0 && s.pairs.reward == 0);
    assert_true(s.grad_norm > 0);
    harness_teardown(&h);
}

/* ---- gradients ---- */

static double loss_with(struct hd_trainer *t, int param, const float *from, const double *d,
                        double by)
{
    const int64_t n = hd_trainer_rank_program(t)->registry.params[param].count;
    float *w = malloc((size_t)n * sizeof *w);
    struct hd_step_result s;

    for (int64_t i = 0; i < n; i++)
        w[i] = (float)((double)from[i] + by * d[i]);
    harness_put(t, param, HD_STATE_WEIGHT, w);
    assert_int_equal(hd_trainer_step(t, 0, &s), HD_OK);
    assert_int_equal(hd_trainer_write_state(t, param, HD_STATE_WEIGHT, from), HD_OK);
    return s.loss;
}

/* Along a unit vector, half the gradient and half chance: as in gradient_test.c, with pairs for
 * targets. The loss is exact to about 1e-6. */
static enum hd_status check_param(struct hd_trainer *t, int param, const float *g, double pairs)
{
    const struct hd_param *p = &hd_trainer_rank_program(t)->registry.params[param];
    const double h = 0.01;
    float *from = harness_take(t, param, HD_STATE_WEIGHT);
    double *d = malloc((size_t)p->count * sizeof *d), size = 0, norm = 0, want = 0, got;

    for (int64_t i = 0; i < p->count; i++)
        size += (double)g[i] * (double)g[i];
    for (int64_t i = 0; i < p->count; i++) {
        d[i] =
            (size > 0 ? (double)g[i] / sqrt(size) : 0) +
            (double)hd_random_normal(hd_random_hash(p->name), (uint64_t)i) / sqrt((double)p->count);
        norm += d[i] * d[i];
    }
    for (int64_t i = 0; i < p->count; i++) {
        d[i] /= sqrt(norm);
        want += d[i] * (double)g[i] / pairs;
    }
    got = (loss_with(t, param, from, d, h) - loss_with(t, param, from, d, -h)) / (2 * h);
    free(from);
    free(d);
    if (fabs(got - want) > 0.02 * fabs(want) + 2e-4)
        return hd_err(HD_INTERNAL, "%s: derivative %g by difference, %g by backward", p->name, got,
                      want);
    return HD_OK;
}

static enum hd_status check_gradients(struct harness_rank *r)
{
    const struct hd_registry *registry;
    struct hd_step_result s;
    struct hd_trainer *t;
    float *grads[64];
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    registry = &hd_trainer_rank_program(t)->registry;
    stir(t);
    st = hd_trainer_step(t, 0, &s);
    for (int i = 0; i < registry->param_count; i++)
        grads[i] = harness_take(t, i, HD_STATE_GRAD);
    for (int i = 0; !st && i < registry->param_count; i++)
        st = check_param(t, i, grads[i], (double)s.pairs.count);
    for (int i = 0; i < registry->param_count; i++)
        free(grads[i]);
    hd_trainer_free(t);
    return st;
}

static void gradients_agree_with_differences(void **state)
{
    static const char *const objectives[] = {"dpo", "orpo", "reward", "simpo"};
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;

    for (int i = 0; i < 4; i++) {
        harness_setup(&h, 64);
        write_pairs(&h, 0, PAIRS, PAIRS_BOTH, &file);
        job = pair_job(&h, objectives[i], &file);
        job.preference_center = i == 2 ? 0.1 : 0;
        job.preference_gamma = 0.5;
        job.preference_sft = 0.25;
        job.global_batch = job.micro_batch = 2;
        job.lr_peak = job.lr_min = job.weight_decay = 0;
        if (harness_threads(&job, 1, NULL, check_gradients))
            fail_msg("%s: %s", objectives[i], hd_err_message());
        harness_teardown(&h);
    }
}

/* ---- chunks ---- */

/* Goal: what the second pass over the head multiplies again is what the first one had. Method: a
 * vocabulary so large that 64 rows of logits fill a chunk; three windows of 64 rows at once take
 * three chunks, one at a time they take one. */
static void chunks_of_the_head_add_up_to_the_whole(void **state)
{
    struct hd_step_result s[2];
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 64);
    write_pairs(&h, 0, 12, PAIRS_BOTH, &file); /* of 9 to 20 rows: three windows */
    job = pair_job(&h, "dpo", &file);
    job.layers = 1;
    job.hidden = 8;
    job.heads = job.kv_heads = 1;
    job.vocab = (64 << 20) / 4 / 64;
    job.context = 64;
    job.global_batch = 3;
    job.validate_batches = 0;
    job.val_count = 0;
    for (int i = 0; i < 2; i++) {
        job.micro_batch = i ? 1 : 3;
        if (harness_threads(&job, 1, &s[i], step_stirred))
            fail_msg("%s", hd_err_message());
    }
    assert_true(s[0].pairs.margin != 0 && s[0].grad_norm > 0);
    assert_true(fabs(s[0].loss - s[1].loss) < 1e-6);
    assert_true(fabs(s[0].grad_norm - s[1].grad_norm) < 1e-5 * s[0].grad_norm);
    harness_teardown(&h);
}

/* ---- a reward model ---- */

/* The vector trains though train.trainable does not name it. */
static enum hd_status check_only(struct harness_rank *r)
{
    const struct hd_registry *registry;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    registry = &hd_trainer_rank_program(t)->registry;
    for (int i = 0; !st && i < registry->param_count; i++) {
        const struct hd_param *p = &registry->params[i];
        const bool is_norm = strstr(p->name, "norm") != NULL;
        const bool is_score = strcmp(p->name, "head.score.weight") == 0;

        if (p->trainable != (is_norm || is_score))
            st = hd_err(HD_INTERNAL, "%s: trainable is %d", p->name, p->trainable);
    }
    hd_trainer_free(t);
    return st;
}

static void the_vector_of_a_reward_model_always_trains(void **state)
{
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 64);
    write_pairs(&h, 0, 16, PAIRS_BOTH, &file);
    job = pair_job(&h, "reward", &file);
    job.only = "norms";
    if (harness_threads(&job, 1, NULL, check_only))
        fail_msg("%s", hd_err_message());
    harness_teardown(&h);
}

/* ---- the reference ---- */

/* Goal: a reference is of the weights of the start, also where an attempt that goes on has to make
 * it again. Method: 3 steps and 3 more; from the checkpoint with the file, and without it, and with
 * a damaged one. */
static void a_run_goes_on_with_the_reference_of_the_start(void **state)
{
    enum { HALF = 3, REST = 3 };
    struct run *straight = run_new(REST), *after = run_new(REST);
    struct hd_job_file file;
    struct hd_saved saved;
    struct harness h;
    struct hd_job job;
    char path[200];
    FILE *f;

    harness_setup(&h, 64);
    write_pairs(&h, 0, 40, PAIRS_BOTH, &file);
    job = pair_job(&h, "dpo", &file);
    run_save(&job, HALF, straight, &saved);
    assert_true(straight->loss[0] != log(2));
    (void)snprintf(path, sizeof path, "%.160s/tokens/reference", h.dir);
    for (int i = 0; i < 3; i++) {
        if (i == 1)
            pairs_forget_reference(&h);
        if (i == 2) {
            f = fopen(path, "r+e");
            assert_non_null(f);
            assert_int_equal(fseek(f, 100, SEEK_SET), 0);
            assert_int_equal(fputc(0x55, f), 0x55);
            assert_int_equal(fclose(f), 0);
        }
        run_load(&job, &saved, after);
        for (int s = 0; s < REST; s++)
            assert_true(straight->loss[s] == after->loss[s]);
        assert_true(straight->state_hash[0] == after->state_hash[0]);
    }
    run_free(straight);
    run_free(after);
    harness_teardown(&h);
}

RUN_CASES()
