/* A reward model: the same rewards, also beside a model that answers, loss, gradients and 20 steps as transformers'
 * classes for sequence classification with TRL's loss, against values/reward-*.golden (reward.py).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/token_writer.h"
#include "golden.h"
#include "harness.h"
#include "job/frozen_model.h"
#include "tests/program/test.h"
#include "train/policy.h"

enum { STEPS = 20, PAIRS = 4, DOCUMENT_MAX = 16 };

struct fixture {
    struct harness h;
    struct hd_arena arena;
    struct golden golden;
    struct hd_job job;
    struct hd_job_file file;
    char path[200];
    struct hd_pair_result before; /* of the weights by the rule */
    struct hd_saved saved;
    /* the documents of the pairs, and their rewards by the model beside another one */
    int32_t ids[2 * PAIRS][DOCUMENT_MAX];
    struct hd_rated_text texts[2 * PAIRS + 1];
    float rewards[2 * PAIRS + 1];
};

/* ---- what both sides start from ---- */

/* Appends a part of a document of pair k: by the rule of reward.py. */
static int add_ids(const struct fixture *f, const char *part, int k, int count, int32_t *ids)
{
    char name[32];

    (void)snprintf(name, sizeof name, "%s %d", part, k);
    for (int i = 0; i < count; i++)
        ids[i] = (int32_t)(golden_number(name, i) * (double)(f->job.vocab - 1)) + 1;
    return count;
}

static void write_pairs(struct fixture *f)
{
    struct hd_token_writer *w;
    struct stat info;
    char out[180];

    (void)snprintf(out, sizeof out, "%.150s/pairs", f->h.dir);
    (void)snprintf(f->path, sizeof f->path, "%s.bin", out);
    assert_int_equal(hd_token_writer_open(out, HD_TOKEN_FORMAT_COUNTS, 2, &w), HD_OK);
    for (int k = 0; k < PAIRS; k++)
        for (int side = 0; side < 2; side++) {
            int32_t *ids = f->ids[2 * k + side];
            char counts[DOCUMENT_MAX] = {0};
            const int prompt = add_ids(f, "prompt", k, 2 + k % 3, ids);
            const int answer = add_ids(f, side ? "rejected" : "chosen", k,
                                       side ? 2 + k % 5 : 3 + k % 4, ids + prompt);

            f->texts[2 * k + side] = (struct hd_rated_text){ids, prompt + answer};
            memset(counts + prompt, 1, (size_t)answer);
            assert_int_equal(hd_token_writer_add_document(w, ids, counts, prompt + answer), HD_OK);
        }
    assert_int_equal(hd_token_writer_finish(w), HD_OK);
    assert_int_equal(stat(f->path, &info), 0);
    f->file = (struct hd_job_file){.path = f->path, .size_bytes = info.st_size};
}

/* The recipe of generate.py. The pairs take 9, 13, 17 and 15 rows: two windows of 32 hold them all,
 * so every step is over all. */
static void set_up(struct fixture *f, const char *name)
{
    memset(f, 0, sizeof *f);
    golden_open(name, STEPS, &f->h, &f->arena, &f->job, &f->golden);
    write_pairs(f);
    f->job.micro_batch = 1;
    f->job.train = f->job.val = &f->file;
    f->job.val_count = 1;
    f->job.val_split = 0;
    f->job.validate_batches = 1;
}

/* ---- comparing ---- */

static bool is_near(const char *what, int step, double is, double want, double bound)
{
    if (fabs(is - want) <= bound * fabs(want))
        return true;
    (void)hd_err(HD_INTERNAL, "step %d: %s %.8f, PyTorch's %.8f", step, what, is, want);
    return false;
}

/* A gradient of sums over pairs against one of means. A key bias moves all scores of a row alike:
 * its true gradient is zero, and what is left is rounding. */
static enum hd_status check_gradients(const struct fixture *f, struct hd_trainer *t)
{
    const struct hd_registry *r = &hd_trainer_rank_program(t)->registry;
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < r->param_count; i++) {
        const struct hd_param *p = &r->params[i];
        float *g = harness_take(t, i, HD_STATE_GRAD);
        const struct golden_tensor *want;
        double apart = 0, length = 0;
        char name[GOLDEN_NAME_MAX];

        (void)snprintf(name, sizeof name, "gradient %s", p->name);
        want = golden_find(&f->golden, name);
        for (int64_t k = 0; want && k < want->count; k++) {
            apart += pow((double)g[k] / PAIRS - (double)want->values[k], 2);
            length += pow((double)want->values[k], 2);
        }
        if (!want || want->count != p->real_count ||
            !(sqrt(apart) <= (strstr(p->name, "attention.k.bias") ? 1e-7 : 1e-4 * sqrt(length))))
            st = hd_err(HD_INTERNAL, "%s: gradient %g away from one of length %g", p->name,
                        sqrt(apart), sqrt(length));
        free(g);
    }
    /* beside them loss, rewards, curve and norms: the model has no other parameter, so no head of
     * tokens */
    if (!st && r->param_count + 4 != f->golden.tensor_count)
        st = hd_err(HD_INTERNAL, "%d parameters", r->param_count);
    return st;
}

/* The bounds of golden_test.c. */
static enum hd_status compare_steps(struct harness_rank *r)
{
    struct fixture *f = r->context;
    const float *losses = golden_find(&f->golden, "curve")->values;
    const float *norms = golden_find(&f->golden, "norms")->values;
    struct hd_step_result s;
    struct hd_trainer *t;
    double loss;
    int64_t pairs;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    golden_set_weights(t);
    st = hd_trainer_validate(t, &loss, &pairs);
    f->before = hd_trainer_validated_pairs(t);
    for (int i = 0; !st && i < on_steps(STEPS); i++) {
        const double bound = 1e-5 * (i + 1);

        st = hd_trainer_step(t, 0, &s);
        if (!st && i == 0)
            st = check_gradients(f, t);
        if (!st && (!is_near("loss", i + 1, s.loss, (double)losses[i], bound) ||
                    !is_near("norm", i + 1, s.grad_norm, (double)norms[i], 10 * bound)))
            st = HD_INTERNAL;
    }
    hd_trainer_free(t);
    return st;
}

static void check_case(void **state)
{
    double margin = 0, reward = 0, correct = 0;
    const struct golden_tensor *rewards;
    struct fixture f;

    set_up(&f, *state);
    rewards = golden_find(&f.golden, "rewards");
    assert_int_equal(rewards->count, 2 * PAIRS);
    for (int k = 0; k < PAIRS; k++) {
        const double chosen = (double)rewards->values[2 * k];
        const double rejected = (double)rewards->values[2 * k + 1];

        margin += (chosen - rejected) / PAIRS;
        reward += (chosen + rejected) / 2 / PAIRS;
        correct += (chosen > rejected) / (double)PAIRS;
    }
    if (harness_threads(&f.job, 1, &f, compare_steps))
        fail_msg("%s", hd_err_message());
    assert_int_equal(f.before.count, PAIRS);
    assert_true(fabs(f.before.margin - margin) < 1e-5);
    assert_true(fabs(f.before.reward - reward) < 1e-5);
    assert_true(f.before.accuracy == correct);
    hd_arena_done(&f.arena);
    harness_teardown(&f.h);
}

/* ---- beside a model that answers ---- */

static enum hd_status save(struct harness_rank *r)
{
    struct fixture *f = r->context;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    golden_set_weights(t);
    st = hd_trainer_save(t, &f->saved);
    hd_trainer_free(t);
    return st;
}

/* Rates the documents, and behind them one that is longer than a window of the reward model. */
static enum hd_status rate(struct harness_rank *r)
{
    struct fixture *f = r->context;
    float rewards[2 * PAIRS + 1];
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    st = hd_trainer_open_teacher(t);
    if (!st)
        st = hd_trainer_rate_texts(t, f->texts, 2 * PAIRS + 1, rewards);
    if (!st && r->rank == 0)
        memcpy(f->rewards, rewards, sizeof rewards);
    hd_trainer_free(t);
    return st;
}

/* Goal: a reward model beside the one that answers, of another architecture, gives the rewards of
 * transformers, whatever the layout and the windows. Method: the documents of the pairs, whose rewards the
 * golden file has. */
static void it_rates_beside_a_model_that_answers(void **state)
{
    static const struct {
        int64_t tp, pp, dp, cp, micro_batch;
        bool sequence;
    } layouts[] = {{1, 1, 1, 1, 1, false}, {2, 1, 1, 1, 2, true},  {1, 2, 1, 1, 1, false},
                   {1, 1, 2, 1, 1, false}, {1, 1, 1, 2, 2, false}, {2, 1, 1, 1, 1, false}};
    static int32_t long_ids[256];
    const struct golden_tensor *want;
    struct hd_job job, own;
    struct fixture f;

    set_up(&f, *state);
    want = golden_find(&f.golden, "rewards");
    f.texts[2 * PAIRS] = (struct hd_rated_text){long_ids, 256};
    if (harness_threads(&f.job, 1, &f, save))
        fail_msg("%s", hd_err_message());
    f.job.context = 16; /* a window holds one or two documents */
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        own = harness_job(&f.h, "llama", 1);
        own.objective = HD_JOB_OBJECTIVE_GRPO;
        own.context = 32;
        own.rollout_prompts = own.rollout_group = 2;
        own.rollout_max_tokens = 8;
        own.global_batch = 4;
        own.tp = layouts[i].tp;
        own.pp = layouts[i].pp;
        own.dp = layouts[i].dp;
        own.cp = layouts[i].cp;
        own.sequence = layouts[i].sequence;
        own.micro_batch = layouts[i].micro_batch;
        if (own.pp > 1)
            memcpy(own.schedule, "1f1b", 5);
        job = own;
        job.reward_dir = f.saved.path;
        assert_int_equal(hd_job_set_reward_model(&f.job, &job), HD_OK);
        if (harness_threads(&job, (int)(job.tp * job.pp * job.dp * job.cp), &f, rate))
            fail_msg("layout %zu: %s", i, hd_err_message());
        for (int k = 0; k < 2 * PAIRS; k++)
            if (!(fabsf(f.rewards[k] - want->values[k]) < 1e-5f))
                fail_msg("layout %zu: reward %d is %.8f, PyTorch's %.8f", i, k,
                         (double)f.rewards[k], (double)want->values[k]);
        assert_true(isnan(f.rewards[2 * PAIRS]));
    }
    hd_arena_done(&f.arena);
    harness_teardown(&f.h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"it_rates_beside_a_model_that_answers", it_rates_beside_a_model_that_answers, NULL, NULL,
         "reward-llama"},
        {"a_reward_model_of_llama", check_case, NULL, NULL, "reward-llama"},
        {"a_reward_model_of_gpt2_with_rewards_around_zero", check_case, NULL, NULL, "reward-gpt2"},
    };

    return cmocka_run_group_tests_name("reward", tests, NULL, NULL);
}
