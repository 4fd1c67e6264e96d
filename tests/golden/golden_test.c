/* Goal: PyTorch's numbers: loss, logits, the gradient of every parameter, and 20 steps of AdamW (4 on
 * an emulated device), against values/ (generate.py), for each family and feature. The values were
 * computed in fp64 and kept in fp32.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "decoding.h"
#include "golden.h"
#include "harness.h"
#include "tests/program/test.h"

enum { STEPS = 20, PARAMS_MAX = 96 };

/* Results of one run in fp32 or bf16. */
struct run {
    const struct golden *golden;
    struct hd_job job;
    int steps;              /* of the STEPS */
    const char *checkpoint; /* to start from; NULL: weights by the rule */
    struct hd_saved saved;  /* of the start, before any step */
    double losses[STEPS], norms[STEPS];
    double balance;                   /* of the first step's routers */
    struct hd_further_result further; /* of the first step */
    int64_t choices;
    double targets; /* of the step */
    float *gradients[PARAMS_MAX];
    struct hd_param params[PARAMS_MAX];
    int param_count;
};

struct fixture {
    struct harness h;
    struct hd_arena arena;
    struct hd_job_file file;
    struct golden golden;
    struct hd_job job;
};

/* ---- what both sides start from ---- */

/* A one-dimensional array of bytes in NumPy's format, 64 bytes of head: B * S + 1 ids. */
static void write_tokens(struct fixture *f)
{
    const int64_t S = f->job.context, n = f->job.global_batch * S + 1;
    const bool documents = f->job.documents == HD_JOB_DOCUMENTS_BOUNDED;
    struct hd_text file = {0};

    hd_text_add_bytes(&file, "\x93NUMPY\x01\x00\x76\x00", 10);
    hd_text_add(&file, "%-117s\n", "");
    (void)snprintf(file.data + 10, 118,
                   "{'descr': '|u1', 'fortran_order': False, 'shape': (%lld,)}", (long long)n);
    file.data[strlen(file.data + 10) + 10] = ' ';
    for (int64_t i = 0; i < n; i++) {
        char id = (char)(golden_number("tokens", i) * (double)f->job.vocab);

        if (documents && i % 9 == 6)
            id = 0;
        hd_text_add_bytes(&file, &id, 1);
    }
    (void)snprintf(f->h.corpus, sizeof f->h.corpus, "%s/tokens.npy", f->h.dir);
    assert_int_equal(hd_file_write_atomic(f->h.corpus, file.data, file.len_bytes, 0600), HD_OK);
    f->file = (struct hd_job_file){.path = f->h.corpus, .size_bytes = (int64_t)file.len_bytes};
    hd_text_free(&file);
}

/* Keys of train.adapter that a case has. */
static int adapter_settings(const struct hd_job *job)
{
    return job->adapter == HD_JOB_ADAPTER_NONE   ? 0
           : job->adapter == HD_JOB_ADAPTER_LORA ? 5 + job->adapter_dora
                                                 : 2;
}

/* The recipe of generate.py. */
static void set_up(struct fixture *f, const char *name)
{
    memset(f, 0, sizeof *f);
    golden_open(name, STEPS, &f->h, &f->arena, &f->job, &f->golden);
    assert_int_equal(f->golden.setting_count, 29 + (f->job.experts ? 3 : 0) +
                                                  (f->job.mtp_layers ? 2 : 0) +
                                                  adapter_settings(&f->job));
    f->job.balance = 0; /* the golden loss is without; its value is checked by itself */
    write_tokens(f);
    f->job.train = &f->file;
}

static void tear_down(struct fixture *f)
{
    hd_arena_done(&f->arena);
    harness_teardown(&f->h);
}

/* ---- running ---- */

static void copy_gradients(struct run *run, struct hd_trainer *t)
{
    const struct hd_registry *r = &hd_trainer_rank_program(t)->registry;

    assert_true(r->param_count <= PARAMS_MAX);
    run->param_count = r->param_count;
    for (int i = 0; i < r->param_count; i++) {
        run->params[i] = r->params[i];
        run->gradients[i] = harness_take(t, i, HD_STATE_GRAD);
    }
}

static enum hd_status run_steps(struct harness_rank *r)
{
    struct run *run = r->context;
    struct hd_step_result result;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    if (run->checkpoint) {
        st = hd_trainer_load(t, run->checkpoint, "-", NULL);
    } else {
        golden_set_weights(t);
        st = hd_trainer_save(t, &run->saved);
    }
    for (int s = 0; s < run->steps && !st; s++) {
        st = hd_trainer_step(t, 0, &result);
        run->losses[s] = result.loss;
        run->norms[s] = result.grad_norm;
        run->targets = (double)result.tokens / (s + 1);
        if (s > 0 || st)
            continue;
        copy_gradients(run, t);
        run->balance = result.router.balance;
        run->further = result.further;
        for (int64_t e = 0; e < result.router.experts; e++)
            run->choices += result.router.load[e];
    }
    hd_trainer_free(t);
    return st;
}

static void execute(struct run *run)
{
    if (harness_threads(&run->job, 1, run, run_steps))
        fail_msg("%s", hd_err_message());
}

static void drop(struct run *run)
{
    for (int i = 0; i < run->param_count; i++)
        free(run->gradients[i]);
}

/* ---- comparing ---- */

static double norm_of(const float *x, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* A gradient of sums over `targets` against one of means: |ours / targets - theirs|. */
static double distance(const float *ours, double targets, const float *theirs, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++) {
        const double d = (double)ours[i] / targets - (double)theirs[i];

        sum += d * d;
    }
    return sqrt(sum);
}

/* A key bias moves all scores of a row alike, which softmax forgets: without rotation its true
 * gradient is zero, and what is left is rounding. */
static bool is_zero_by_nature(const struct run *run, const struct hd_param *p)
{
    return strcmp(run->job.family, "gpt2") == 0 && strstr(p->name, "attention.k.bias");
}

/* Targets that count: of the golden file's mean. With documents, a target behind an end is none. */
static double count_targets(const struct run *run)
{
    const int64_t n = run->job.global_batch * run->job.context;
    double count = 0;

    for (int64_t i = 0; i < n; i++)
        count += run->job.documents != HD_JOB_DOCUMENTS_BOUNDED ||
                 (i % 9 != 6 && (int)(golden_number("tokens", i) * (double)run->job.vocab) != 0);
    return count;
}

static const struct golden_tensor *gradient_of(const struct run *run, const struct hd_param *p)
{
    char name[GOLDEN_NAME_MAX];
    const struct golden_tensor *g;

    (void)snprintf(name, sizeof name, "gradient %s", p->name);
    g = golden_find(run->golden, name);
    if (!g || g->count != p->real_count)
        fail_msg("%s: %lld elements here, %lld in the golden file", p->name,
                 (long long)p->real_count, g ? (long long)g->count : -1LL);
    return g;
}

static void check_gradients(const struct run *run)
{
    const double targets = count_targets(run);
    int compared = 0;

    for (int i = 0; i < run->param_count; i++) {
        const struct hd_param *p = &run->params[i];
        const struct golden_tensor *g = p->trainable ? gradient_of(run, p) : NULL;
        double apart, bound;

        if (!g) /* beside an adapter */
            continue;
        apart = distance(run->gradients[i], targets, g->values, p->real_count);
        bound = is_zero_by_nature(run, p) ? 1e-7 : 1e-4 * norm_of(g->values, g->count);
        if (!(apart <= bound))
            fail_msg("%s: gradient %g away, bound %g", p->name, apart, bound);
        compared++;
    }
    /* loss, logits, curve, norms; of experts balance; of further tokens their losses */
    assert_int_equal(compared + 4 + (run->job.experts ? 1 : 0) + (run->job.mtp_layers ? 1 : 0),
                     run->golden->tensor_count);
}

/* Each step adds its own rounding, of about 1e-7 in the weights' updates, to what it inherits, and
 * AdamW's first steps, being nearly signs of gradients, enlarge it: the bound grows from that of
 * one step by its own size each step. */
static void check_curve(const struct run *run)
{
    const float *losses = golden_find(run->golden, "curve")->values;
    const float *norms = golden_find(run->golden, "norms")->values;

    for (int s = 0; s < run->steps; s++) {
        const double bound = 1e-5 * (s + 1);

        if (!(fabs(run->losses[s] - (double)losses[s]) <= bound * (double)losses[s]))
            fail_msg("step %d: loss %.8f, PyTorch's %.8f", s + 1, run->losses[s],
                     (double)losses[s]);
        if (!(fabs(run->norms[s] - (double)norms[s]) <= 10 * bound * (double)norms[s]))
            fail_msg("step %d: norm %.8f, PyTorch's %.8f", s + 1, run->norms[s], (double)norms[s]);
    }
}

/* Every row of every block has its experts, and their balancing loss is PyTorch's. */
static void check_routers(const struct run *run)
{
    const struct hd_job *j = &run->job;
    const double balance = (double)golden_find(run->golden, "balance")->values[0];

    assert_int_equal(run->choices, j->layers * j->global_batch * j->context * j->experts_per_token);
    if (!(fabs(run->balance - balance) <= 1e-6 * balance))
        fail_msg("balance %.8f, PyTorch's %.8f", run->balance, balance);
}

static void check_further(const struct run *run)
{
    const struct golden_tensor *want = golden_find(run->golden, "further");

    assert_int_equal(run->further.count, want->count);
    for (int k = 0; k < run->further.count; k++)
        if (!(fabs(run->further.loss[k] - (double)want->values[k]) <= 1e-5 * run->further.loss[k]))
            fail_msg("loss of further token %d: %.8f, PyTorch's %.8f", k + 1, run->further.loss[k],
                     (double)want->values[k]);
}

/* Logits of the first sequence, token by token through the cache: the other way through the model.
 * Their size is about 1: an absolute bound. */
static void check_logits(const struct fixture *f, const struct run *run)
{
    const struct golden_tensor *want = golden_find(&f->golden, "logits");
    const int64_t S = f->job.context, V = f->job.vocab;
    struct decoding d = decoding_open(run->saved.path);

    assert_int_equal(want->count, S * V);
    for (int64_t s = 0; s < S; s++) {
        const int32_t token = (int32_t)(golden_number("tokens", s) * (double)V);
        const float *logits = decoding_next(&d, token);

        for (int64_t v = 0; v < V; v++)
            if (!(fabsf(logits[v] - want->values[s * V + v]) <= 2e-5f))
                fail_msg("logit %lld of row %lld: %.7f, PyTorch's %.7f", (long long)v, (long long)s,
                         (double)logits[v], (double)want->values[s * V + v]);
    }
    decoding_close(&d);
}

/* ---- bf16: gradients within k C^(L+1-l) eps of their length ---- */

/* The layer of a parameter, counted from the input: 0 the embedding, then the blocks, then the
 * head. */
static int layer_of(const struct run *run, const struct hd_param *p)
{
    if (strncmp(p->name, "blocks.", 7) == 0)
        return 1 + atoi(p->name + 7);
    return strncmp(p->name, "embedding", 9) == 0 ? 0 : 1 + (int)run->job.layers;
}

/* Rounding enters at every layer and is carried down to the first, so that the bound grows by C a
 * layer (the rule of Megatron-LM's tests of layouts, with its k and C). It holds for a layer's
 * parameters together; one alone, such as the few weights of a norm, may be twice as far away.
 * Where a router's choice was almost a tie, rounding makes another, and a row or two of a hundred
 * have other experts: four times the bound, which a lost term is still far beyond. */
static void check_bf16_gradients(const struct run *run)
{
    const double k = run->job.experts ? 16 : 4, C = 1.03, eps = 0x1p-7;
    const int64_t last = run->job.layers + 1;

    for (int64_t layer = 0; layer <= last; layer++) {
        const double bound = k * pow(C, (double)(last - layer)) * eps;
        double apart = 0, length = 0;

        for (int i = 0; i < run->param_count; i++) {
            const struct hd_param *p = &run->params[i];
            const struct golden_tensor *g = p->trainable ? gradient_of(run, p) : NULL;
            double norm, d;

            if (!g || layer_of(run, p) != layer || is_zero_by_nature(run, p))
                continue;
            norm = norm_of(g->values, g->count);
            d = distance(run->gradients[i], count_targets(run), g->values, p->real_count);
            if (!(d <= 2 * bound * norm))
                fail_msg("%s: gradient %g of its length away, bound %g", p->name, d / norm,
                         2 * bound);
            apart += d * d;
            length += norm * norm;
        }
        if (!(sqrt(apart) <= bound * sqrt(length)))
            fail_msg("layer %lld: gradients %g of their length away, bound %g", (long long)layer,
                     sqrt(apart / length), bound);
    }
}

/* ---- the cases ---- */

static void check_case(void **state)
{
    const char *name = *state;
    struct fixture f;
    struct run fp32, bf16;

    set_up(&f, name);
    fp32 = (struct run){.golden = &f.golden, .job = f.job, .steps = on_steps(STEPS)};
    execute(&fp32);
    assert_true(fabs(fp32.losses[0] - (double)golden_find(&f.golden, "loss")->values[0]) <=
                1e-5 * fp32.losses[0]);
    check_gradients(&fp32);
    check_curve(&fp32);
    if (f.job.experts)
        check_routers(&fp32);
    if (f.job.mtp_layers)
        check_further(&fp32);
    if (f.job.documents == HD_JOB_DOCUMENTS_JOINED) /* a cache knows no ends */
        check_logits(&f, &fp32);

    /* one step, for its gradients */
    bf16 =
        (struct run){.golden = &f.golden, .job = f.job, .steps = 1, .checkpoint = fp32.saved.path};
    bf16.job.precision = HD_JOB_PRECISION_BF16;
    execute(&bf16);
    check_bf16_gradients(&bf16);
    drop(&fp32);
    drop(&bf16);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"gpt2", check_case, NULL, NULL, "gpt2"},
        {"gpt2_with_its_own_head", check_case, NULL, NULL, "gpt2-own-head"},
        {"llama", check_case, NULL, NULL, "llama"},
        {"grouped_queries_and_a_tied_head", check_case, NULL, NULL, "llama-gqa-tied"},
        {"one_key_head_another_theta_biases", check_case, NULL, NULL, "llama-mqa-theta-biases"},
        {"linear_scaling_of_angles", check_case, NULL, NULL, "llama-linear"},
        {"llama3_scaling_of_angles", check_case, NULL, NULL, "llama-llama3"},
        {"yarn_scaling_of_angles", check_case, NULL, NULL, "llama-yarn"},
        {"documents_in_llama", check_case, NULL, NULL, "llama-documents"},
        {"further_tokens_in_documents", check_case, NULL, NULL, "llama-mtp"},
        {"documents_in_gpt2", check_case, NULL, NULL, "gpt2-documents"},
        {"mistral_with_a_window", check_case, NULL, NULL, "mistral"},
        {"qwen2_with_a_window_from_block_1", check_case, NULL, NULL, "qwen2"},
        {"mixtral", check_case, NULL, NULL, "mixtral"},
        {"documents_in_mixtral", check_case, NULL, NULL, "mixtral-documents"},
        {"qwen3", check_case, NULL, NULL, "qwen3"},
        {"llama_with_an_adapter", check_case, NULL, NULL, "llama-lora"},
        {"gpt2_with_an_adapter", check_case, NULL, NULL, "gpt2-lora"},
        {"mixtral_with_an_adapter_of_each_expert", check_case, NULL, NULL, "mixtral-lora"},
        {"qwen2_with_an_adapter_of_some", check_case, NULL, NULL, "qwen2-lora"},
        {"llama_with_magnitudes", check_case, NULL, NULL, "llama-dora"},
        {"gpt2_with_magnitudes", check_case, NULL, NULL, "gpt2-dora"},
        {"qwen2_with_magnitudes_of_some", check_case, NULL, NULL, "qwen2-dora"},
        {"llama_with_bottlenecks", check_case, NULL, NULL, "llama-bottleneck"},
        {"gpt2_with_bottlenecks", check_case, NULL, NULL, "gpt2-bottleneck"},
        {"mixtral_with_bottlenecks", check_case, NULL, NULL, "mixtral-bottleneck"},
        {"gpt2_behind_a_prefix", check_case, NULL, NULL, "gpt2-prefix"},
        {"grouped_queries_behind_a_prefix", check_case, NULL, NULL, "llama-prefix"},
        {"documents_and_a_window_behind_a_prefix", check_case, NULL, NULL, "mistral-prefix"},
    };

    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
