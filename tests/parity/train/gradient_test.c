/* The compiled programs against the mathematics: gradients of whole models by central differences.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "harness.h"
#include "tests/program/test.h"

/* ---- gradients by central differences
 * --------------------------------------------------------------- */

/* Back before the first step, at the present weights: every step drops something else. */
static void begin_again(struct hd_trainer *t)
{
    const struct hd_registry *r = &hd_trainer_rank_program(t)->registry;
    float **weights = malloc((size_t)r->param_count * sizeof *weights);

    for (int i = 0; i < r->param_count; i++)
        weights[i] = harness_take(t, i, HD_STATE_WEIGHT);
    assert_int_equal(hd_trainer_init(t), HD_OK);
    for (int i = 0; i < r->param_count; i++)
        harness_put(t, i, HD_STATE_WEIGHT, weights[i]);
    free(weights);
}

/* Mean loss of the batch at the present weights, with those of further tokens and the z-loss. */
static double loss_now(struct hd_trainer *t)
{
    const double weight = hd_trainer_rank_program(t)->job.mtp_weight;
    struct hd_step_result s;

    if (hd_trainer_rank_program(t)->job.dropout_attention > 0)
        begin_again(t);
    assert_int_equal(hd_trainer_step(t, 0, &s), HD_OK);
    for (int k = 0; k < s.further.count; k++)
        s.loss += weight / s.further.count * s.further.loss[k];
    return s.loss + hd_trainer_rank_program(t)->job.head_z_loss * s.z_loss;
}

static double length(const double *d, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += d[i] * d[i];
    return sqrt(sum);
}

/* A unit vector, half along the gradient (so that the derivative is large), half by chance (so that
 * a gradient that is missing or wrong is seen). */
static void choose_direction(const struct hd_param *p, const float *g, double *d)
{
    double norm = 0;

    for (int64_t i = 0; i < p->count; i++) {
        d[i] = (double)g[i];
        norm += d[i] * d[i];
    }
    for (int64_t i = 0; i < p->count; i++)
        d[i] =
            (norm > 0 ? d[i] / sqrt(norm) : 0) +
            (double)hd_random_normal(hd_random_hash(p->name), (uint64_t)i) / sqrt((double)p->count);
    norm = length(d, p->count);
    for (int64_t i = 0; i < p->count; i++)
        d[i] /= norm;
}

/* From the weights `from`, which it leaves there again. */
static double loss_at(struct hd_trainer *t, int param, const float *from, const double *d,
                      double by)
{
    const int64_t n = hd_trainer_rank_program(t)->registry.params[param].count;
    float *w = malloc((size_t)n * sizeof *w);
    double loss;

    for (int64_t i = 0; i < n; i++)
        w[i] = (float)((double)from[i] + by * d[i]);
    harness_put(t, param, HD_STATE_WEIGHT, w);
    loss = loss_now(t);
    assert_int_equal(hd_trainer_write_state(t, param, HD_STATE_WEIGHT, from), HD_OK);
    return loss;
}

/* The derivative along d: g . d against (L(w+hd) - L(w-hd)) / 2h. L is exact to about 3e-7, so with
 * h = 0.01 rounding gives 3e-5; truncation is about h^2 of the third derivative, small beside 2%.
 */
static enum hd_status check_param(struct hd_trainer *t, int param, const struct hd_param *p,
                                  const float *g)
{
    const struct hd_job *job = &hd_trainer_rank_program(t)->job;
    const double targets = (double)(job->global_batch * job->context), h = 0.01;
    float *from = harness_take(t, param, HD_STATE_WEIGHT);
    double *d = malloc((size_t)p->count * sizeof *d), expected = 0, measured;

    choose_direction(p, g, d);
    for (int64_t i = 0; i < p->count; i++)
        expected += d[i] * (double)g[i] / targets;
    measured = (loss_at(t, param, from, d, h) - loss_at(t, param, from, d, -h)) / (2 * h);
    free(from);
    free(d);
    if (fabs(measured - expected) > 0.02 * fabs(expected) + 5e-5)
        return hd_err(HD_INTERNAL, "%s: derivative %g by difference, %g by backward", p->name,
                      measured, expected);
    return HD_OK;
}

/* Zeros and ones are too special: every tensor gets some noise. */
static void stir_weights(struct hd_trainer *t)
{
    const struct hd_registry *r = &hd_trainer_rank_program(t)->registry;

    for (int i = 0; i < r->param_count; i++) {
        float *w = harness_take(t, i, HD_STATE_WEIGHT);

        for (int64_t k = 0; k < r->params[i].count; k++)
            w[k] += 0.1f * hd_random_normal(hd_random_hash(r->params[i].name) + 1, (uint64_t)k);
        harness_put(t, i, HD_STATE_WEIGHT, w);
    }
}

static enum hd_status check_all_params(struct harness_rank *r)
{
    const struct hd_registry *registry;
    int *checked = r->context;
    struct hd_trainer *t;
    float **grads;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    registry = &hd_trainer_rank_program(t)->registry;
    grads = malloc((size_t)registry->param_count * sizeof *grads);
    stir_weights(t);
    (void)loss_now(t);
    (void)loss_now(t); /* again: nothing of one step's gradients may be left in the next one's */
    for (int i = 0; i < registry->param_count; i++)
        grads[i] = harness_take(t, i, HD_STATE_GRAD);
    for (int i = 0; !st && i < registry->param_count; i++, (*checked)++)
        if (registry->params[i].trainable)
            st = check_param(t, i, &registry->params[i], grads[i]);
    for (int i = 0; i < registry->param_count; i++)
        free(grads[i]);
    free(grads);
    hd_trainer_free(t);
    return st;
}

static void drop(struct hd_job *job)
{
    job->dropout_embedding = 0.1;
    job->dropout_attention = 0.3;
    job->dropout_residual = 0.2;
    job->neftune_alpha = 5;
    job->head_z_loss = 0.02;
}

/* Six heads, no power of two. */
static void weigh_by_distance(struct hd_job *job)
{
    job->heads = 6;
    job->positions = HD_JOB_POSITIONS_ALIBI;
}

/* The corpus is one global batch of windows, read in order: every step sees the same batch. lr 0
 * and no decay: weights stay where the test puts them. */
static void changed_case(const char *family, int kv_heads, bool tied, int params,
                         void (*change)(struct hd_job *job))
{
    struct harness h;
    struct hd_job job;
    int checked = 0;

    harness_setup(&h, 4 * 16 + 1);
    job = harness_job(&h, family, 1);
    job.kv_heads = kv_heads;
    job.tie_embeddings = tied;
    job.lr_peak = job.lr_min = job.weight_decay = 0;
    job.global_batch = 4;
    job.val_split = 0;
    job.order = HD_JOB_ORDER_SEQUENTIAL;
    if (change)
        change(&job);
    if (harness_threads(&job, 1, &checked, check_all_params))
        fail_msg("%s: %s", family, hd_err_message());
    if (params)
        assert_int_equal(checked, params);
    harness_teardown(&h);
}

static void difference_case(const char *family, int kv_heads, bool tied, int params)
{
    changed_case(family, kv_heads, tied, params, NULL);
}

static void multiply(struct hd_job *job)
{
    job->attention_scale = 0.2;
    job->embedding_scale = 1.5;
    job->residual_scale = 0.7;
    job->logit_divisor = 2.5;
}

/* All experts compute every token: a choice that changes within a difference is a step of the loss.
 * The reported loss does not have the router's own losses. */
static void choose_all(struct hd_job *job)
{
    job->experts_per_token = job->experts;
    job->balance = job->z_loss = 0;
}

/* Factors of gate and up with one A, and of down. */
static void adapt_stacks(struct hd_job *job)
{
    choose_all(job);
    job->adapter = HD_JOB_ADAPTER_LORA;
    job->adapter_rank = 3;
    job->adapter_alpha = 5;
    job->adapter_targets = "experts.gate_up_proj,experts.down_proj";
}

/* Values as wide as keys; scores with a factor of scaled angles. */
static void without_query_latent(struct hd_job *job)
{
    choose_all(job);
    job->mla_q_rank = 0;
    job->mla_value = 24;
    job->rope_scaling = HD_JOB_ROPE_SCALING_YARN;
    job->rope_factor = 4;
    job->rope_original_context = 8;
    job->rope_beta_fast = 32;
    job->rope_beta_slow = 1;
    job->rope_mscale_all_dim = 0.7;
}

/* Sigmoids: each logit has a gradient of its own also if every expert is chosen. */
static void choose_all_scaled(struct hd_job *job)
{
    choose_all(job);
    job->router_scale = 2.5;
    job->shared_ffn_hidden = 24;
}

static void choose_all_as_they_are(struct hd_job *job)
{
    choose_all_scaled(job);
    job->renormalize = false;
}

/* Queries of positions 0 to 15 have four factors. */
static void grow_by_position(struct hd_job *job)
{
    job->query_factor = 0.5;
    job->rope_original_context = 4;
}

/* Experts of two, of a row times its gates; four factors of queries in the block without positions,
 * whose other one attends within chunks. */
static void gate_inputs(struct hd_job *job)
{
    choose_all(job);
    job->window_layers = "1:1";
}

/* LayerNorm of heads of q and k. */
static void norm_heads(struct hd_job *job)
{
    job->qk_norm = true;
}

/* The z-loss of logits with a bias. */
static void weigh_logits(struct hd_job *job)
{
    job->head_z_loss = 0.02;
}

/* Differences are taken across no bound: few values are beyond it, and these by far. */
static void bound_heads(struct hd_job *job)
{
    job->qkv_clip = 1;
}

/* Slopes divided by the root of the head's width. */
static void weigh_scaled(struct hd_job *job)
{
    weigh_by_distance(job);
    job->parallel_residual = "none";
}

/* The direction of a short key curves too much for these differences; those of 64 channels are long
 * enough. */
static void with_wide_keys(struct hd_job *job)
{
    job->delta_key_heads = 2;
    job->delta_value_heads = 4;
    job->delta_key_width = 64;
}

static void predict_two_further(struct hd_job *job)
{
    job->mtp_layers = 2;
    job->mtp_weight = 2;
}

static void predict_one_further(struct hd_job *job)
{
    choose_all_scaled(job);
    job->mtp_layers = 1;
    job->mtp_weight = 0.5;
}

/* Parameters: those of llama below, and for each further token 3 norms, a projection and a block. */
static void further_tokens_agree_with_differences(void **state)
{
    changed_case("llama", 2, false, 1 + 2 * 9 + 2 + 2 * (3 + 1 + 9), predict_two_further);
    changed_case("qwen3", 2, true, 0, predict_two_further);
    changed_case("glm4_moe", 2, false, 0, predict_one_further);
    changed_case("deepseek_v3", 4, false, 0, predict_one_further);
}

/* Families of which no other case here has the switches. */
static void families_agree_with_differences(void **state)
{
    changed_case("gemma2", 2, true, 0, NULL);
    changed_case("gemma3_text", 2, true, 0, NULL);
    changed_case("olmo3", 2, false, 0, NULL);
    changed_case("glm4", 2, false, 0, NULL);
    changed_case("qwen2_moe", 2, false, 0, choose_all);
    changed_case("glm4_moe", 2, false, 0, choose_all_scaled);
    changed_case("glm4_moe", 2, false, 0, choose_all_as_they_are);
    changed_case("ernie4_5_moe", 2, true, 0, choose_all);
    changed_case("smollm3", 2, true, 0, NULL);
    changed_case("granite", 2, false, 0, multiply);
    changed_case("deepseek_v2", 4, false, 0, choose_all);
    changed_case("deepseek_v2", 4, false, 0, without_query_latent);
    changed_case("ministral3", 2, false, 0, grow_by_position);
    changed_case("arcee", 2, false, 0, NULL);
    /* embedding; 2 norms, 10 of the convolution, MLP; 2 norms, 6 of attention, MLP; norm and head */
    changed_case("lfm2", 2, false, 1 + 2 + 10 + 3 + 2 + 6 + 3 + 2, NULL);
    changed_case("gpt_neox", 4, false, 0, NULL);
    changed_case("nemotron", 2, false, 0, NULL);
    changed_case("phi", 2, false, 0, weigh_logits);
    changed_case("olmo", 2, false, 0, bound_heads);
    changed_case("opt", 4, true, 0, NULL);
    changed_case("bloom", 4, true, 0, NULL);
    changed_case("cohere2", 2, true, 0, NULL);
    changed_case("cohere", 2, true, 0, norm_heads);
    changed_case("falcon", 1, true, 0, weigh_scaled);
    changed_case("llama4_text", 2, false, 0, gate_inputs);
    changed_case("qwen3_5_text", 2, false, 0, with_wide_keys);
    changed_case("gpt_oss", 2, false, 0, choose_all);
    changed_case("gpt_oss", 2, false, 0, adapt_stacks);
    changed_case("hunyuan_v1_dense", 2, false, 0, NULL);
}

/* Parameters: embedding 1, two blocks of 9 (2 norms, q k v out, gate up down), head norm 1, head 1.
 */
static void llama_backward_agrees_with_differences(void **state)
{
    difference_case("llama", 2, false, 1 + 2 * 9 + 2);
}

static void llama_with_one_kv_head_and_tied_head_agrees_with_differences(void **state)
{
    difference_case("llama", 1, true, 1 + 2 * 9 + 1);
}

/* Embedding and positions 2, two blocks of 16 (2 norms of 2, 4 + 2 matrices with biases), head
 * norm 2. */
static void gpt2_backward_agrees_with_differences(void **state)
{
    difference_case("gpt2", 4, true, 2 + 2 * 16 + 2);
}

static void gpt2_with_its_own_head_agrees_with_differences(void **state)
{
    difference_case("gpt2", 4, false, 2 + 2 * 16 + 3);
}

/* Own products have GELU, and its derivative, behind them. */
static void gpt2_with_gelu_in_its_products_agrees_with_differences(void **state)
{
    harness_plain(true);
    difference_case("gpt2", 4, true, 2 + 2 * 16 + 2);
    harness_plain(false);
}

/* A window of 5 of 16 positions in both blocks. */
static void mistral_backward_agrees_with_differences(void **state)
{
    difference_case("mistral", 2, false, 1 + 2 * 9 + 2);
}

/* Three biases a block. */
static void qwen2_backward_agrees_with_differences(void **state)
{
    difference_case("qwen2", 2, true, 1 + 2 * 12 + 1);
}

/* Two norms of heads a block. */
static void qwen3_backward_agrees_with_differences(void **state)
{
    difference_case("qwen3", 2, false, 1 + 2 * 11 + 2);
}

static void gpt2_with_dropout_agrees_with_differences(void **state)
{
    changed_case("gpt2", 4, true, 2 + 2 * 16 + 2, drop);
}

/* Every row goes to every expert: with fewer the loss jumps where a choice tips over. The routers'
 * own losses are no part of the loss that is reported (kernels_moe_test differentiates them). A
 * block has two norms, four matrices of attention, a router, three of its experts and three of the
 * shared one. */
static void route_to_all(struct hd_job *job)
{
    job->experts_per_token = job->experts;
    job->balance = job->z_loss = 0;
    job->shared_ffn_hidden = 16;
}

static void mixtral_backward_agrees_with_differences(void **state)
{
    changed_case("mixtral", 2, false, 1 + 2 * 13 + 2, route_to_all);
}

static void llama_with_alibi_and_six_heads_agrees_with_differences(void **state)
{
    changed_case("llama", 2, false, 1 + 2 * 9 + 2, weigh_by_distance);
}

/* No table of positions, and keys whose bias has no gradient. */
static void gpt2_with_alibi_agrees_with_differences(void **state)
{
    changed_case("gpt2", 2, true, 1 + 2 * 16 + 2, weigh_by_distance);
}

/* The matrices of blocks are codes: what their products give back is the derivative. */
static void keep_codes(struct hd_job *job)
{
    job->only = "embedding,norms,head";
    job->model_weights = HD_JOB_MODEL_WEIGHTS_NF4;
}

static void llama_with_codes_agrees_with_differences(void **state)
{
    changed_case("llama", 2, false, 1 + 2 * 9 + 2, keep_codes);
}

static void route_to_all_in_codes(struct hd_job *job)
{
    route_to_all(job);
    job->only = "embedding,norms,head,*.router.*";
    job->model_weights = HD_JOB_MODEL_WEIGHTS_NF4;
}

static void mixtral_with_codes_agrees_with_differences(void **state)
{
    changed_case("mixtral", 2, false, 1 + 2 * 13 + 2, route_to_all_in_codes);
}

/* ---- the head in chunks ---- */

struct heads {
    float *grads[2]; /* of the head's weight */
    double loss[2];
    int64_t count;
    int chunks, run, speaker; /* the rank whose gradient it is */
};

static enum hd_status take_head_gradient(struct harness_rank *r)
{
    struct heads *h = r->context;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);
    const struct hd_program *f;
    int head;

    if (st)
        return st;
    if (r->rank != h->speaker) {
        (void)loss_now(t);
        hd_trainer_free(t);
        return HD_OK;
    }
    f = &hd_trainer_rank_program(t)->train[0]->program[HD_CALL_F];
    head = hd_trainer_rank_program(t)->model.head;
    h->count = hd_trainer_rank_program(t)->registry.params[head].count;
    h->chunks = 0;
    for (int i = 0; i < f->count; i++)
        h->chunks += !f->nodes[i]->is_comm && (f->nodes[i]->kernel == HD_K_cross_entropy ||
                                               f->nodes[i]->kernel == HD_K_cross_entropy_shared);
    h->loss[h->run] = loss_now(t);
    h->grads[h->run] = harness_take(t, head, HD_STATE_GRAD);
    hd_trainer_free(t);
    return HD_OK;
}

/* The words of which 64 rows of fp32 logits fill a chunk on this backend (head_rows of its traits).
 */
static int64_t words_of_a_chunk(void)
{
    struct hd_traits traits;

    harness_backend()->describe(&(struct hd_backend_options){.threads = 1}, &traits);
    return ((int64_t)1 << (traits.head_rows ? 30 : 26)) / (int64_t)sizeof(float) / 64;
}

/* Goal: chunks of the head add up to the whole. Method: a vocabulary so large that 64 rows of fp32
 * logits fill a chunk; three sequences of 64 tokens at once take three chunks, one at a time they
 * take one each, and loss and gradient are the same. With tp a share is as large. */
static void heads_case(int tp, int speaker)
{
    struct heads heads = {.speaker = speaker};
    double difference = 0, size = 0;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 3 * 64 + 1);
    job = harness_job(&h, "llama", 1);
    job.layers = 1;
    job.hidden = 8;
    job.heads = job.kv_heads = job.tp = tp;
    job.sequence = tp > 1;
    job.vocab = tp * words_of_a_chunk();
    job.context = 64;
    job.lr_peak = job.lr_min = job.weight_decay = job.val_split = 0;
    job.global_batch = 3;
    job.order = HD_JOB_ORDER_SEQUENTIAL;
    for (heads.run = 0; heads.run < 2; heads.run++) {
        job.micro_batch = heads.run ? 1 : 3;
        if (harness_threads(&job, tp, &heads, take_head_gradient))
            fail_msg("%s", hd_err_message());
        assert_int_equal(heads.chunks, heads.run ? 1 : 3);
    }
    for (int64_t i = 0; i < heads.count; i++) {
        const double a = (double)heads.grads[0][i], b = (double)heads.grads[1][i];

        difference += (a - b) * (a - b);
        size += b * b;
    }
    assert_true(size > 0 && sqrt(difference) < 1e-5 * sqrt(size));
    assert_true(fabs(heads.loss[0] - heads.loss[1]) < 1e-6 * heads.loss[1]);
    free(heads.grads[0]);
    free(heads.grads[1]);
    harness_teardown(&h);
}

static void chunks_of_the_head_add_up_to_the_whole(void **state)
{
    heads_case(1, 0);
}

/* All targets of a text of bytes are in the first shard of the vocabulary. */
static void chunks_of_a_shared_head_add_up_to_the_whole(void **state)
{
    heads_case(2, 0);
    heads_case(2, 1);
}

RUN_CASES()
