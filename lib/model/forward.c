/* forward: the forward functions of the units. They record ops and compute nothing. */
#include "model/model.h"

static struct hd_tensor *norm_forward(struct hd_rec *rec, const struct hd_model_config *c,
                                      struct hd_tensor *x, struct hd_norm w)
{
    const bool one_plus = hd_family_adds_one(c->family);

    if (hd_family_has_layernorm(c->family))
        return op_layernorm(rec, x, w.weight, w.bias, c->norm_eps, one_plus);
    return op_rmsnorm(rec, x, w.weight, c->norm_eps, one_plus);
}

/* Records y += s B (A drop(x)), the product of the linear's LoRA adapter, where y = x W^T; returns
 * y. Without an adapter records nothing. */
static struct hd_tensor *adapted(struct hd_rec *rec, const struct hd_model_config *c, int64_t layer,
                                 struct hd_tensor *x, struct hd_tensor *y,
                                 const struct hd_lora *lora)
{
    const struct hd_dropout d = {c->adapter.dropout, c->seed, layer, lora->site};
    struct hd_tensor *h;

    if (!lora->count)
        return y;
    x = op_dropout_all_rows(rec, x, &d, lora->first_channel);
    h = op_scale(rec, op_linear(rec, x, lora->a, -1, lora->a_count), c->adapter.scale);
    return op_low_rank(rec, y, h, lora->target, lora->count);
}

/* Records, with DoRA, the scaling of W x + s B A x by the magnitudes: one factor per output
 * channel, after the sum over tp ranks and before the bias. */
static struct hd_tensor *magnified(struct hd_rec *rec, const struct hd_model_config *c,
                                   struct hd_tensor *x, const struct hd_lora *lora)
{
    if (!c->adapter.dora || !lora->count)
        return x;
    return op_magnitude(rec, x, lora->magnitude, lora->count, c->adapter.scale, lora->by_columns);
}

/* Records a linear whose rows of W tp splits (q, k, v; gate, up; any if tp is 1), or which every tp
 * rank has whole (to a latent), of `fused_count` weights, with its adapter: [R, C] -> [R, N]. */
static struct hd_tensor *column_parallel(struct hd_rec *rec, const struct hd_model_config *c,
                                         int64_t layer, struct hd_tensor *x, int weight, int bias,
                                         int fused_count, const struct hd_lora *lora)
{
    const bool apart = c->adapter.dora && lora->count;
    struct hd_tensor *y = op_linear(rec, x, weight, apart ? -1 : bias, fused_count);

    y = magnified(rec, c, adapted(rec, c, layer, x, y, lora), lora);
    return apart && bias >= 0 ? op_bias(rec, y, bias, fused_count) : y;
}

/* Records this tp rank's part of a linear whose columns of W tp splits, with its adapter, without
 * its bias: [R, K] -> [R, C]. */
static struct hd_tensor *partial_product(struct hd_rec *rec, const struct hd_model_config *c,
                                         int64_t layer, struct hd_tensor *x, int weight,
                                         const struct hd_lora *lora)
{
    return adapted(rec, c, layer, x, op_linear(rec, x, weight, -1, 1), lora);
}

/* Records a linear whose columns of W tp splits (attention's output, down), with its adapter, and
 * the sum of the tp ranks' partial results: [R, K] -> [Rl, C]. The bias is added once, after the
 * sum. */
static struct hd_tensor *row_parallel(struct hd_rec *rec, const struct hd_model_config *c,
                                      int64_t layer, struct hd_tensor *x, int weight, int bias,
                                      const struct hd_lora *lora)
{
    if (hd_rec_tp_size(rec) == 1)
        return column_parallel(rec, c, layer, x, weight, bias, 1, lora);
    x = op_reduce_from_tp(rec, partial_product(rec, c, layer, x, weight, lora));
    x = magnified(rec, c, x, lora);
    return bias < 0 ? x : op_bias(rec, x, bias, 1);
}

/* Records dropout of the output of attention or MLP before it is added to the residual stream. */
static struct hd_tensor *residual_dropout(struct hd_rec *rec, const struct hd_model_config *c,
                                          int64_t layer, int64_t site, struct hd_tensor *x)
{
    const struct hd_dropout d = {c->dropout_residual, c->seed, layer, site};

    return op_dropout(rec, x, &d);
}

/* Records h + U gelu(D h) for an output h [Rl, C], with bottleneck adapters; else returns h. */
static struct hd_tensor *bottleneck_forward(struct hd_rec *rec, const struct hd_model_config *c,
                                            const struct hd_bottleneck *w, int64_t layer,
                                            struct hd_tensor *h)
{
    const struct hd_dropout d = {c->adapter.dropout, c->seed, layer, w->site};
    struct hd_tensor *inner;

    if (c->adapter.kind != HD_ADAPTER_BOTTLENECK)
        return h;
    inner =
        op_activation(rec, op_linear(rec, h, w->down, -1, 1), HD_ACT_GELU_TANH); /* [Rl, width] */
    return op_add(rec, h, op_dropout(rec, op_linear(rec, inner, w->up, -1, 1), &d), 1);
}

/* Records latents of x [R, C], and from them the rows [R, 3*H*D] that op_attention takes. Every tp
 * rank computes the latents and the rotated channels of keys, which all heads share. */
static struct hd_tensor *latent_forward(struct hd_rec *rec, const struct hd_model_config *c, int tp,
                                        const struct hd_attention *w, int64_t layer,
                                        struct hd_tensor *x)
{
    const struct hd_latents *l = &c->latents;
    const struct hd_rope *rope = hd_model_layer(c, layer).rope;
    const struct hd_latent_heads heads = {c->H / tp, l->nope, l->rope, l->value};
    const int64_t both = l->kv_rank + l->rope;
    struct hd_tensor *q = x, *kv, *k_rope;

    if (l->q_rank) {
        q = column_parallel(rec, c, layer, x, w->q_a, -1, 1, &w->lora_q_a); /* [R, q_rank] */
        q = op_rmsnorm(rec, q, w->q_a_norm, l->eps, false);
        q = column_parallel(rec, c, layer, q, w->q_b, -1, 1, &w->lora_q_b);
    } else {
        q = column_parallel(rec, c, layer, x, w->qkv, -1, 1, &w->lora_qkv);
    }
    kv = column_parallel(rec, c, layer, x, w->kv_a, -1, 1, &w->lora_kv_a); /* [R, kv_rank + rope] */
    k_rope = op_head_columns(rec, kv, 1, both, l->kv_rank, l->rope);
    kv = op_head_columns(rec, kv, 1, both, 0, l->kv_rank);
    kv = op_rmsnorm(rec, kv, w->kv_a_norm, l->eps, false);
    kv = w->lora_kv_b.count ? column_parallel(rec, c, layer, kv, w->kv_b, -1, 1, &w->lora_kv_b)
                            : op_rebuilt_linear(rec, kv, w->kv_b); /* [R, H*(nope + value)] */
    if (rope) {
        struct hd_rope shared = *rope;

        shared.first = 0;
        q = op_rope(rec, q, hd_rec_batch(rec, HD_BATCH_POSITIONS), heads.heads, c->D, rope);
        k_rope = op_rope(rec, k_rope, hd_rec_batch(rec, HD_BATCH_POSITIONS), 1, l->rope, &shared);
    }
    return op_latent_join(rec, q, kv, k_rope, &heads);
}

/* Records the norms of queries and keys in rows [q | k | v]. */
static struct hd_tensor *qk_norm_forward(struct hd_rec *rec, const struct hd_model_config *c,
                                         const struct hd_attention *w, int64_t H, int64_t G,
                                         struct hd_tensor *qkv)
{
    const enum hd_qk_norm_form form = c->family->qk_norm_form;
    const struct hd_head_norm_settings settings = {.heads = H,
                                                   .kv_heads = G,
                                                   .head_width = c->D,
                                                   .eps = c->norm_eps,
                                                   .one_plus =
                                                       c->family->norm == HD_NORM_RMS_ONE_PLUS,
                                                   .whole = form == HD_QK_NORM_WHOLE,
                                                   .layer = form == HD_QK_NORM_LAYER};

    return op_head_norm(rec, qkv, w->q_norm, w->k_norm, &settings);
}

/* Records queries, keys and values of x [R, C], with their norms and positions: [R, (H+2G)*D]. */
static struct hd_tensor *qkv_forward(struct hd_rec *rec, const struct hd_model_config *c, int tp,
                                     const struct hd_attention *w, int64_t layer,
                                     struct hd_tensor *x)
{
    const struct hd_rope *rope = hd_model_layer(c, layer).rope;
    const int64_t H = c->H / tp, G = c->G > tp ? c->G / tp : 1;
    const bool rotated_alone = c->family->qk_norm_form == HD_QK_NORM_PLAIN;
    const bool norm_last = rotated_alone || c->family->qk_norm_form == HD_QK_NORM_HEAD_LAST;
    struct hd_tensor *qkv = column_parallel(rec, c, layer, x, w->qkv, w->qkv_bias, 3, &w->lora_qkv);

    if (c->qkv_clip > 0)
        qkv = op_clamp(rec, qkv, c->qkv_clip);
    if (c->qk_norm && !norm_last)
        qkv = qk_norm_forward(rec, c, w, H, G, qkv);
    if (rope)
        qkv = op_rope(rec, qkv, hd_rec_batch(rec, HD_BATCH_POSITIONS), H + G, c->D, rope);
    if (c->qk_norm && norm_last && (rope || !rotated_alone))
        qkv = qk_norm_forward(rec, c, w, H, G, qkv);
    if (c->query_factor.beta > 0 && !(c->family->query_factor_unrotated && rope))
        qkv = op_query_factor(rec, qkv, hd_rec_batch(rec, HD_BATCH_POSITIONS), H, c->D,
                              c->query_factor.beta, c->query_factor.original,
                              c->query_factor.floor_offset);
    return qkv;
}

/* Records attention up to its output projection, x: [R, C] -> [R, H*D]. Heads are split over tp;
 * several ranks may hold one key/value head. */
static struct hd_tensor *attend(struct hd_rec *rec, const struct hd_model_config *c, int tp,
                                const struct hd_attention *w, int64_t layer, struct hd_tensor *x)
{
    const int64_t H = c->H / tp, G = c->G > tp ? c->G / tp : 1, value = hd_model_value_width(c);
    const struct hd_attention_settings settings = {
        .heads = H,
        .kv_heads = G,
        .head_width = c->D,
        .window = hd_model_layer(c, layer).window,
        .chunk = hd_model_layer(c, layer).chunk,
        .scale = c->attention_scale,
        .cap = c->attention_cap,
        .causal = true,
        .alibi = c->positions == HD_POSITIONS_ALIBI,
        .scaled_alibi = c->family->scaled_alibi,
        .has_sinks = c->family->sinks,
        .sinks = w->sinks,
        .prefix = c->adapter.tokens,
        .prefix_k = w->prefix_k,
        .prefix_v = w->prefix_v,
        .dropout = {c->dropout_attention, c->seed, layer, HD_SITE_ATTENTION}};
    struct hd_tensor *h = c->latents.kv_rank ? latent_forward(rec, c, tp, w, layer, x)
                                             : qkv_forward(rec, c, tp, w, layer, x);

    h = op_attention(rec, h, &settings); /* [R, H*D] */
    if (value < c->D)                    /* values were padded with zeros */
        h = op_head_columns(rec, h, H, c->D, 0, value);
    if (w->gate >= 0)
        h = op_sigmoid_gate(rec, h, op_linear(rec, x, w->gate, -1, 1));
    return h;
}

/* Records attention, x: [R, C] -> [Rl, C]. */
static struct hd_tensor *attention_forward(struct hd_rec *rec, const struct hd_model_config *c,
                                           int tp, const struct hd_attention *w, int64_t layer,
                                           struct hd_tensor *x)
{
    return row_parallel(rec, c, layer, attend(rec, c, tp, w, layer, x), w->out, w->out_bias,
                        &w->lora_out);
}

/* Records a gated delta layer, x: [R, C] -> [Rl, C]. tp splits the key heads, each with its value
 * heads. */
static struct hd_tensor *delta_forward(struct hd_rec *rec, const struct hd_model_config *c, int tp,
                                       const struct hd_delta *w, int64_t layer, struct hd_tensor *x)
{
    static const struct hd_lora none;
    const struct hd_delta_sizes *s = &c->delta;
    const int64_t heads = s->value_heads / tp;
    const struct hd_delta_settings settings = {.heads = heads,
                                               .key_heads = s->key_heads / tp,
                                               .value_width = s->value_width,
                                               .key_width = s->key_width,
                                               .eps = 1e-6};
    struct hd_tensor *qkv = op_linear(rec, x, w->qkv, -1, 3);
    struct hd_tensor *gate = op_linear(rec, x, w->gate, -1, 1),
                     *ba = op_linear(rec, x, w->ba, -1, 2);
    struct hd_tensor *h;

    qkv = op_conv(rec, qkv, w->conv, 3, s->conv_width, false);
    h = op_gated_delta(rec, qkv, ba, w->A_log, &settings); /* [R, heads * value_width] */
    h = op_gated_norm(rec, h, gate, w->norm, heads, c->norm_eps);
    return row_parallel(rec, c, layer, h, w->out, -1, &none);
}

/* Records a short convolution, x: [R, C] -> [Rl, C]: with the projections b, c and v of x,
 * out(c * conv(b * v)). tp splits the channels. */
static struct hd_tensor *conv_forward(struct hd_rec *rec, const struct hd_model_config *c,
                                      const struct hd_short_conv *w, int64_t layer,
                                      struct hd_tensor *x)
{
    static const struct hd_lora none;
    struct hd_tensor *gate_in = op_linear(rec, x, w->b, w->b_bias, 1);
    struct hd_tensor *gate_out = op_linear(rec, x, w->c, w->c_bias, 1);
    struct hd_tensor *h = op_multiply(rec, op_linear(rec, x, w->x, w->x_bias, 1), gate_in);

    h = op_conv(rec, h, w->kernel, 1, c->conv_width, true); /* [R, C / tp] */
    if (w->kernel_bias >= 0)
        h = op_bias(rec, h, w->kernel_bias, 1);
    return row_parallel(rec, c, layer, op_multiply(rec, h, gate_out), w->out, w->out_bias, &none);
}

static enum hd_activation activation(const struct hd_model_config *c)
{
    static const enum hd_activation kinds[] = {
        [HD_FFN_SILU] = HD_ACT_SILU,         [HD_FFN_GELU_TANH] = HD_ACT_GELU_TANH,
        [HD_FFN_GELU_ERF] = HD_ACT_GELU_ERF, [HD_FFN_RELU2] = HD_ACT_RELU2,
        [HD_FFN_RELU] = HD_ACT_RELU,         [HD_FFN_OSS] = HD_ACT_OSS};

    return kinds[c->family->activation];
}

/* Returns the factor in the sigmoid of GPT-OSS's activation; 0: the activation is another. */
static double oss_alpha(const struct hd_model_config *c)
{
    return c->family->activation == HD_FFN_OSS ? 1.702 : 0;
}

/* Records the MLP up to its down projection, x: [R, C] -> [R, F]. */
static struct hd_tensor *mlp_inner(struct hd_rec *rec, const struct hd_model_config *c,
                                   const struct hd_mlp *w, int64_t layer, struct hd_tensor *x)
{
    struct hd_tensor *h =
        column_parallel(rec, c, layer, x, w->up, w->up_bias, c->family->gated ? 2 : 1, &w->lora_up);

    return c->family->gated ? op_glu(rec, h, activation(c), oss_alpha(c), c->glu_limit)
                            : op_activation(rec, h, activation(c));
}

/* Records the MLP, x: [R, C] -> [Rl, C]. */
static struct hd_tensor *mlp_forward(struct hd_rec *rec, const struct hd_model_config *c,
                                     const struct hd_mlp *w, int64_t layer, struct hd_tensor *x)
{
    return row_parallel(rec, c, layer, mlp_inner(rec, c, w, layer, x), w->down, w->down_bias,
                        &w->lora_down);
}

/* Records the shared expert, x: [R, C] -> [Rl, C], times the sigmoid of its gate if it has one. The
 * gate is applied to the rows outside of op_copy_to_tp and op_reduce_from_tp, [Rl, C]. */
static struct hd_tensor *shared_forward(struct hd_rec *rec, const struct hd_model_config *c,
                                        const struct hd_block *w, int64_t layer,
                                        struct hd_tensor *x, struct hd_tensor *outside)
{
    struct hd_tensor *y = mlp_forward(rec, c, &w->mlp, layer, x);

    if (w->shared_gate < 0)
        return y;
    return op_row_gate(rec, y, op_linear(rec, outside, w->shared_gate, -1, 1));
}

/* Records the experts, x: [R, C] -> [Rl, C]. Each row is sent to the experts that the router
 * chooses, and to the shared expert if the model has one. outside: the rows x before
 * op_copy_to_tp. */
static struct hd_tensor *experts_forward(struct hd_rec *rec, const struct hd_model_config *c,
                                         const struct hd_block *w, int64_t layer,
                                         struct hd_tensor *x, struct hd_tensor *outside)
{
    struct hd_expert_params experts = w->experts;
    struct hd_router router = c->router;
    struct hd_tensor *h;

    router.number = (int)layer;
    if (c->adapter.kind == HD_ADAPTER_LORA)
        experts.dropout =
            (struct hd_dropout){c->adapter.dropout, c->seed, layer, HD_SITE_ADAPTER_UP};
    experts.down_site = HD_SITE_ADAPTER_DOWN;
    experts.act = activation(c);
    experts.alpha = oss_alpha(c);
    experts.limit = c->glu_limit;
    h = op_reduce_from_tp(rec, op_experts(rec, x, &experts, &router));
    return c->F_shared ? op_add(rec, h, shared_forward(rec, c, w, layer, x, outside), 1) : h;
}

/* Steps between attention or feed-forward layer and the sum: norm, dropout site, bottleneck
 * adapter. */
struct residual_part {
    struct hd_norm norm;
    int64_t site;
    const struct hd_bottleneck *adapter;
};

/* Context argument of the forward functions of units (hd_rec_unit). */
struct model_forward {
    const struct hd_model *model;
    int tp;
};

/* Records x + f, the output of attention or feed-forward layer added to the residual stream: with
 * its norm, its dropout and its bottleneck adapter. */
static struct hd_tensor *add_to_residual(struct hd_rec *rec, const struct hd_model_config *c,
                                         int64_t layer, struct hd_tensor *x, struct hd_tensor *f,
                                         const struct residual_part *part)
{
    if (part->norm.exists)
        f = norm_forward(rec, c, f, part->norm);
    f = residual_dropout(rec, c, layer, part->site, f);
    return op_add(rec, x, bottleneck_forward(rec, c, part->adapter, layer, f), c->residual_scale);
}

/* Records the norm before attention or feed-forward layer, if there is one: [Rl, C]. */
static struct hd_tensor *norm_before(struct hd_rec *rec, const struct hd_model_config *c,
                                     struct hd_tensor *x, struct hd_norm norm)
{
    return norm.exists ? norm_forward(rec, c, x, norm) : x;
}

/* Returns whether the outputs of both branches are summed before the exchange between tp ranks.
 * With dropout, magnitudes or bottleneck adapters, each branch needs its own sum first. */
static bool sums_branches(const struct hd_model_config *c, int tp)
{
    return tp > 1 && c->dropout_residual == 0 && !c->adapter.dora &&
           c->adapter.kind != HD_ADAPTER_BOTTLENECK;
}

/* Records attention and MLP of the rows a and m [R, C] and their common sum over the tp ranks, half
 * the exchange of two sums: -> [Rl, C]. Both biases are added once, after it. */
static struct hd_tensor *branches_forward(struct hd_rec *rec, const struct model_forward *f,
                                          const struct hd_block *w, int64_t layer,
                                          struct hd_tensor *a, struct hd_tensor *m)
{
    const struct hd_model_config *c = &f->model->config;
    struct hd_tensor *h;

    a = attend(rec, c, f->tp, &w->attention, layer, a);
    a = partial_product(rec, c, layer, a, w->attention.out, &w->attention.lora_out);
    m = mlp_inner(rec, c, &w->mlp, layer, m);
    m = partial_product(rec, c, layer, m, w->mlp.down, &w->mlp.lora_down);
    h = op_reduce_from_tp(rec, op_add(rec, a, m, 1));
    if (w->attention.out_bias >= 0)
        h = op_bias(rec, h, w->attention.out_bias, 1);
    return w->mlp.down_bias >= 0 ? op_bias(rec, h, w->mlp.down_bias, 1) : h;
}

/* Records a block whose attention and MLP read the same rows, [Rl, C] -> [Rl, C]: through one norm,
 * or each through its own. */
static struct hd_tensor *parallel_forward(struct hd_rec *rec, const struct model_forward *f,
                                          const struct hd_block *w, int64_t layer,
                                          struct hd_tensor *x)
{
    const struct hd_model_config *c = &f->model->config;
    const struct residual_part attention = {w->norm1_out, HD_SITE_RESIDUAL1, &w->adapter1};
    const struct residual_part feed_forward = {w->norm2_out, HD_SITE_RESIDUAL2, &w->adapter2};
    struct hd_tensor *a = op_copy_to_tp(rec, norm_before(rec, c, x, w->norm1)), *m = a;

    if (c->place == HD_NORM_TWO)
        m = op_copy_to_tp(rec, norm_before(rec, c, x, w->norm2));
    if (sums_branches(c, f->tp))
        return op_add(rec, x, branches_forward(rec, f, w, layer, a, m), c->residual_scale);
    a = attention_forward(rec, c, f->tp, &w->attention, layer, a);
    m = mlp_forward(rec, c, &w->mlp, layer, m);
    x = add_to_residual(rec, c, layer, x, a, &attention);
    return add_to_residual(rec, c, layer, x, m, &feed_forward);
}

/* Records what a block has of attention, a gated delta layer and a short convolution, x: [R, C] ->
 * [Rl, C]. */
static struct hd_tensor *mixer_forward(struct hd_rec *rec, const struct model_forward *f,
                                       const struct hd_block *w, int64_t layer, struct hd_tensor *x)
{
    const struct hd_model_config *c = &f->model->config;
    const struct hd_layer l = hd_model_layer(c, layer);

    if (l.delta)
        return delta_forward(rec, c, f->tp, &w->delta, layer, x);
    if (l.conv)
        return conv_forward(rec, c, &w->conv, layer, x);
    return attention_forward(rec, c, f->tp, &w->attention, layer, x);
}

/* Records one block, [Rl, C] -> [Rl, C]. The norms stand before attention and feed-forward layer,
 * after them, or on both sides (hd_norm_place). */
static struct hd_tensor *layer_forward(struct hd_rec *rec, const struct model_forward *f,
                                       const struct hd_block *w, int64_t layer, struct hd_tensor *x)
{
    const struct hd_model_config *c = &f->model->config;
    const struct residual_part attention = {w->norm1_out, HD_SITE_RESIDUAL1, &w->adapter1};
    const struct residual_part feed_forward = {w->norm2_out, HD_SITE_RESIDUAL2, &w->adapter2};
    struct hd_tensor *h, *normed;

    if (c->place == HD_NORM_ONE || c->place == HD_NORM_TWO)
        return parallel_forward(rec, f, w, layer, x);
    h = op_copy_to_tp(rec, norm_before(rec, c, x, w->norm1)); /* [R, C] */
    h = mixer_forward(rec, f, w, layer, h);
    x = add_to_residual(rec, c, layer, x, h, &attention);

    normed = norm_before(rec, c, x, w->norm2);
    h = op_copy_to_tp(rec, normed);
    h = hd_model_layer(c, layer).experts ? experts_forward(rec, c, w, layer, h, normed)
                                         : mlp_forward(rec, c, &w->mlp, layer, h);
    return add_to_residual(rec, c, layer, x, h, &feed_forward);
}

static struct hd_tensor *block_forward(struct hd_rec *rec, void *context, int unit,
                                       struct hd_tensor *x)
{
    const struct model_forward *f = context;
    const int64_t layer = unit - f->model->unit_first_block;

    return layer_forward(rec, f, &f->model->blocks[layer], layer, x);
}

/* Records the embeddings of the tokens plus, with learned positions, those of their positions: [Rl,
 * C]. */
static struct hd_tensor *embed(struct hd_rec *rec, const struct model_forward *f)
{
    const int table = f->model->positions;
    const struct hd_model_config *c = &f->model->config;
    const double scale = c->embedding_scale;
    struct hd_tensor *tokens = hd_rec_batch(rec, HD_BATCH_TOKENS);
    struct hd_tensor *positions = table >= 0 ? hd_rec_batch(rec, HD_BATCH_POSITIONS) : NULL;
    struct hd_tensor *x;

    if (f->tp == 1 && !(c->neftune_alpha > 0))
        return op_embedding(rec, tokens, f->model->embedding, positions, table, scale);
    x = op_embedding(rec, tokens, f->model->embedding, NULL, -1, scale);
    x = op_noise(rec, f->tp > 1 ? op_reduce_from_tp(rec, x) : x, c->neftune_alpha, c->seed);
    if (!positions)
        return x;
    return op_add(rec, x, op_embedding(rec, op_tp_rows(rec, positions), table, NULL, -1, 1), 1);
}

static struct hd_tensor *embedding_forward(struct hd_rec *rec, void *context, int unit,
                                           struct hd_tensor *x)
{
    const struct model_forward *f = context;
    const struct hd_model_config *c = &f->model->config;
    const struct hd_dropout d = {c->dropout_embedding, c->seed, 0, HD_SITE_EMBEDDING};

    (void)unit, (void)x;
    return op_dropout(rec, norm_before(rec, c, embed(rec, f), f->model->embedding_norm), &d);
}

/* Records layer k = 1 .. of those that predict further tokens, [Rl, C] -> [Rl, C]. x: the normed rows
 * of the last block, or those of layer k - 1; ahead: the token k places ahead of each row. */
static struct hd_tensor *further_rows(struct hd_rec *rec, const struct model_forward *f, int k,
                                      struct hd_tensor *x, struct hd_tensor *ahead)
{
    const struct hd_model *m = f->model;
    const struct hd_model_config *c = &m->config;
    const struct hd_further *w = &m->further[k - 1];
    struct hd_tensor *e = op_embedding(rec, ahead, m->embedding, NULL, -1, c->embedding_scale);

    e = norm_forward(rec, c, op_reduce_from_tp(rec, e), w->embedding_norm);
    x = op_join_columns(rec, e, norm_forward(rec, c, x, w->hidden_norm)); /* [Rl, 2 C] */
    x = op_linear(rec, x, w->projection, -1, 1);
    x = layer_forward(rec, f, &w->block, c->L + k - 1, x);
    return norm_forward(rec, c, x, w->head_norm);
}

/* Records the layers that predict further tokens, and their losses (DeepSeek-AI 2024, "DeepSeek-V3",
 * section 2.2). x: the normed rows of the last block, [Rl, C]. Layer k predicts the token k + 1 places
 * ahead. */
static void further_forward(struct hd_rec *rec, const struct model_forward *f, struct hd_tensor *x,
                            struct hd_head_settings settings)
{
    for (int k = 1; k <= (int)f->model->config.further; k++) {
        struct hd_tensor *ahead = hd_rec_batch(rec, HD_BATCH_AHEAD1 + k - 1);
        struct hd_tensor *target = hd_rec_batch(rec, HD_BATCH_FURTHER1 + k - 1);

        x = further_rows(rec, f, k, x, ahead);
        settings.further = k;
        op_head_loss(rec, op_copy_to_tp(rec, x), f->model->head, target, settings);
    }
}

/* Returns the settings of the head. Completions are sampled at a temperature, so their
 * log-probabilities are those of logits that are divided by it; in decoding the sampler divides. */
static struct hd_head_settings head_settings(const struct hd_rec_shape *shape,
                                             const struct hd_model *m)
{
    const struct hd_model_config *c = &m->config;
    const bool divides = shape->has_policy && shape->mode != HD_RECORD_DECODE;
    const double temperature = divides ? (double)hd_factor_of(shape->policy.temperature) : 1;

    return (struct hd_head_settings){.logit_scale =
                                         (c->logit_scale > 0 ? c->logit_scale : 1) / temperature,
                                     .cap = c->logit_cap,
                                     .z_loss = c->z_loss,
                                     .has_bias = m->head_bias >= 0,
                                     .bias = m->head_bias};
}

static struct hd_tensor *head_forward(struct hd_rec *rec, void *context, int unit,
                                      struct hd_tensor *x)
{
    const struct model_forward *f = context;
    const struct hd_model_config *c = &f->model->config;
    const struct hd_rec_shape *shape = hd_rec_get_shape(rec);
    const struct hd_head_settings settings = head_settings(shape, f->model);

    (void)unit;
    x = norm_forward(rec, c, x, f->model->head_norm);
    if (shape->mode == HD_RECORD_DECODE)
        op_logits(rec, x, f->model->head, settings);
    else if (c->reward)
        op_head_reward(rec, x, f->model->head);
    else if (shape->preference)
        op_head_pairs(rec, op_copy_to_tp(rec, x), f->model->head, settings);
    else if (shape->has_policy && shape->mode == HD_RECORD_TRAIN)
        op_head_policy(rec, op_copy_to_tp(rec, x), f->model->head, settings);
    else
        op_head_loss(rec, op_copy_to_tp(rec, x), f->model->head,
                     hd_rec_batch(rec, HD_BATCH_TARGETS), settings);
    if (shape->mode == HD_RECORD_TRAIN)
        further_forward(rec, f, x, settings);
    if (shape->drafts)
        hd_rec_output(rec, x);
    return NULL;
}

/* Records the first layer that predicts further tokens, with the logits behind the last row of each
 * sequence. */
static struct hd_tensor *draft_forward(struct hd_rec *rec, void *context, int unit,
                                       struct hd_tensor *x)
{
    const struct model_forward *f = context;

    (void)unit;
    x = op_take_rows(rec, x, hd_rec_batch(rec, HD_BATCH_TAKEN));
    x = further_rows(rec, f, 1, x, hd_rec_batch(rec, HD_BATCH_TOKENS));
    op_logits(rec, op_take_rows(rec, x, hd_rec_batch(rec, HD_BATCH_LAST)), f->model->head,
              head_settings(hd_rec_get_shape(rec), f->model));
    hd_rec_output(rec, x);
    return NULL;
}

struct hd_units hd_model_units(const struct hd_model *model)
{
    return (struct hd_units){HD_UNIT_EMBEDDING, model->unit_head + 1};
}

/* Records the input of a chunk without the embedding: the hidden rows of the previous chunk, as
 * outside of op_copy_to_tp and op_reduce_from_tp. Their gradient is computed unless backward ends
 * in this chunk. */
static struct hd_tensor *take_in(const struct hd_model *model, struct hd_rec *rec)
{
    const struct hd_rec_shape *shape = hd_rec_get_shape(rec);

    return hd_rec_input(rec, "hidden", shape->B * shape->S / hd_rec_row_shards(rec),
                        model->config.C, shape->mode == HD_RECORD_TRAIN && !shape->ends_backward);
}

void hd_model_record(const struct hd_model *model, struct hd_units units, struct hd_rec *rec)
{
    struct model_forward f = {model, hd_rec_tp_size(rec)};
    struct hd_tensor *x = units.first == HD_UNIT_EMBEDDING ? NULL : take_in(model, rec);

    for (int unit = units.first; unit < units.end; unit++)
        if (unit == model->unit_embedding)
            x = hd_rec_unit(rec, unit, embedding_forward, &f, NULL);
        else if (unit < model->unit_head)
            x = hd_rec_unit(rec, unit, block_forward, &f, x);
        else
            x = hd_rec_unit(rec, unit, head_forward, &f, x);
    if (units.end <= model->unit_head)
        hd_rec_output(rec, x);
}

void hd_model_record_draft(const struct hd_model *model, int64_t input_rows, struct hd_rec *rec)
{
    struct model_forward f = {model, hd_rec_tp_size(rec)};
    struct hd_tensor *x = hd_rec_input(rec, "hidden", input_rows, model->config.C, false);

    (void)hd_rec_unit(rec, model->unit_head, draft_forward, &f, x);
}
