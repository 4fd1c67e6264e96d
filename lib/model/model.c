/* model: the parameters of a model, declared in the registry unit by unit. */
#include "model/model.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A parameter's name is PREFIX.what; the prefix is the name of its unit or of a module in it. */
struct declare {
    struct hd_registry *registry;
    const struct hd_model_config *config;
    char prefix[48];
};

/* Distribution of a parameter over ranks, and its role; the members are those of struct
 * hd_param_spec. */
struct shard {
    int axis, copies;
    int norms_of; /* HD_INIT_NORMS only: index of the matrix whose row norms are the initial
                     values */
    int64_t grain;
    bool padded, partial, experts, tied, head, keep_fp32, table, product, linear, adapter,
        newly_initialized, state;
    int router;      /* state only */
    double rate;     /* state only */
    bool bias;       /* true: weight decay does not apply to it, although it has two dimensions */
    double lr_scale; /* factor on the learning rate; 0 means 1 */
    struct hd_score_rows scores;
};

static struct shard split_rows(void)
{
    return (struct shard){.axis = 0};
}

/* Returns the distribution over ranks of a parameter whose columns tp splits; no legal tp separates
 * the `grain` columns of an aligned group. */
static struct shard split_columns(int64_t grain)
{
    return (struct shard){.axis = 1, .grain = grain};
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        const int64_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* Returns the size of a group of columns that no legal tp separates: tp divides the number of heads
 * and the width of every feed-forward layer (check_tp). */
static int64_t ffn_grain(const struct hd_model_config *c, int64_t F)
{
    return F / common_divisor(common_divisor(common_divisor(c->H, c->F), c->F_shared), c->F_dense);
}

/* Returns the size of a group of channels of short convolutions that no legal tp separates. */
static int64_t conv_grain(const struct hd_model_config *c)
{
    return c->C / common_divisor(c->C, common_divisor(c->H, c->F));
}

/* Returns the distribution over ranks of a parameter whose rows are key/value heads, which tp
 * splits; if tp exceeds their number, several tp ranks hold the same head. */
static struct shard split_kv_heads(const struct declare *d)
{
    return (struct shard){.axis = 0, .copies = d->registry->mesh.sizes.kv_replica};
}

/* Returns `s` for rows of queries or keys of head_rows channels a head (struct hd_score_rows). */
static struct shard scored(const struct declare *d, struct shard s, int64_t head_rows,
                           int64_t split, bool keys)
{
    s.scores = (struct hd_score_rows){head_rows, split, d->config->H / d->config->G, keys};
    return s;
}

static struct shard split_vocabulary(void)
{
    return (struct shard){.axis = 0, .padded = true};
}

/* Returns the distribution over ranks of a parameter that every tp rank has whole and applies
 * outside of op_copy_to_tp and op_reduce_from_tp: with sequence parallelism each tp rank applies it
 * to other rows, so its gradient is partial. */
static struct shard on_rows(const struct declare *d)
{
    return (struct shard){.axis = -1, .partial = d->registry->sequence};
}

/* Returns the distribution over ranks of a parameter that every tp rank has whole and applies to
 * its own heads or part of the experts only, so its gradient is partial. */
static struct shard on_parts(void)
{
    return (struct shard){.axis = -1, .partial = true};
}

/* Returns the distribution over ranks of a parameter of experts: ep splits axis 0, tp splits axis
 * `axis`; if that is the last one, no legal tp separates a group of `grain` columns. */
static struct shard of_experts(int axis, int64_t grain)
{
    return (struct shard){.axis = axis, .grain = grain, .experts = true, .linear = true};
}

/* Declares a parameter in the registry and returns its index. shape: 1 to 3 dimensions; unused ones
 * are 0. */
static int tensor(struct declare *d, const char *what, const int64_t shape[3], struct shard shard,
                  enum hd_init_kind init, double std, bool fused)
{
    const int dims = shape[2] ? 3 : shape[1] ? 2 : 1;
    const struct hd_only only = hd_model_only(d->config);
    char name[HD_PARAM_NAME_MAX];

    (void)snprintf(name, sizeof name, "%s.%s", d->prefix, what);
    return hd_registry_param(
        d->registry, &(struct hd_param_spec){.name = name,
                                             .dim_count = dims,
                                             .shape = {shape[0], shape[1], shape[2]},
                                             .tp_axis = shard.axis,
                                             .tp_copies = shard.copies,
                                             .tp_grain = shard.grain,
                                             .padded = shard.padded,
                                             .partial = shard.partial,
                                             .experts = shard.experts,
                                             .init = init,
                                             .init_std = std,
                                             .norms_of = shard.norms_of,
                                             .decay = dims > 1 && !shard.adapter && !shard.bias,
                                             .lr_scale = shard.lr_scale,
                                             .adapter = shard.adapter,
                                             .newly_initialized = shard.newly_initialized,
                                             .frozen = !hd_only_trains(&only, name),
                                             .state = shard.state,
                                             .router = shard.router,
                                             .rate = shard.rate,
                                             .fused = fused,
                                             .tied = shard.tied,
                                             .head = shard.head,
                                             .keep_fp32 = shard.keep_fp32,
                                             .table = shard.table,
                                             .product = shard.product,
                                             .scores = shard.scores,
                                             .linear = shard.linear});
}

static int param(struct declare *d, const char *what, int64_t rows, int64_t columns,
                 struct shard shard, enum hd_init_kind init, double std, bool fused)
{
    return tensor(d, what, (const int64_t[3]){rows, columns}, shard, init, std, fused);
}

static int matrix(struct declare *d, const char *what, int64_t rows, int64_t columns,
                  struct shard shard, double std, bool fused)
{
    return param(d, what, rows, columns, shard, HD_INIT_NORMAL, std, fused);
}

/* Declares the first matrix of a linear of a block. */
static int product(struct declare *d, const char *what, int64_t rows, int64_t columns,
                   struct shard shard, double std)
{
    shard.product = shard.linear = true;
    return matrix(d, what, rows, columns, shard, std, false);
}

/* Declares another matrix of the same linear, whose memory follows that of the previous one. */
static int fused(struct declare *d, const char *what, int64_t rows, int64_t columns,
                 struct shard shard, double std)
{
    shard.linear = true;
    return matrix(d, what, rows, columns, shard, std, true);
}

static int bias(struct declare *d, bool wanted, const char *what, int64_t rows, struct shard shard,
                bool fused)
{
    if (!wanted)
        return -1;
    return param(d, what, rows, 0, shard, HD_INIT_ZEROS, 0, fused);
}

/* Returns the initial values of the weights of norms. */
static enum hd_init_kind norm_init(const struct hd_model_config *c)
{
    return hd_family_adds_one(c->family) ? HD_INIT_ZEROS : HD_INIT_ONES;
}

static struct hd_norm declare_norm(struct declare *d, bool wanted, const char *which)
{
    const enum hd_norm_kind kind = d->config->family->norm;
    struct hd_norm n = {wanted, -1, -1};
    char what[32];

    if (!wanted || kind == HD_NORM_LAYER_BARE)
        return n;
    (void)snprintf(what, sizeof what, "%s.weight", which);
    n.weight = param(d, what, d->config->C, 0, on_rows(d), norm_init(d->config), 0, false);
    (void)snprintf(what, sizeof what, "%s.bias", which);
    if (kind == HD_NORM_LAYER || kind == HD_NORM_LAYER_ONE_PLUS)
        n.bias = param(d, what, d->config->C, 0, on_rows(d), HD_INIT_ZEROS, 0, false);
    return n;
}

/* Returns the standard deviation of initial weights; without model.init.std that of GPT-2. */
static double init_std(const struct declare *d)
{
    return d->config->init_std > 0 ? d->config->init_std : 0.02;
}

/* Returns the standard deviation of projections into the residual stream: unless model.init.residual
 * is plain, it is divided by sqrt(2 L), because 2 L of them are added (Radford et al. 2019, section
 * 2.3). */
static double residual_std(const struct declare *d)
{
    return d->config->init_plain ? init_std(d) : init_std(d) / sqrt(2.0 * (double)d->config->L);
}

/* The adapters of a linear of `fused_count` weights from `weight` on, the first of which is
 * `target`. If tp splits the linear by rows, every tp rank has A whole and B is split like the
 * weight; if tp splits it by columns, A is split and B is whole. Each rank multiplies the whole
 * factor by its channels only, so that factor's gradient is partial. */
struct adapted_weight {
    enum hd_target target;
    int weight, fused_count;
    int64_t in;
    int64_t grain; /* tp splits W by columns: size of a group of columns that no legal tp separates;
                      else 0 */
    int64_t site;  /* dropout site of the adapter (recording.h) */
};

/* Returns whether every tp rank has the target's weight whole, between op_copy_to_tp and
 * op_reduce_from_tp: then A, B and magnitudes are whole, too, and their gradients partial. */
static bool is_whole(enum hd_target target)
{
    return target == HD_TARGET_Q_A || target == HD_TARGET_KV_A;
}

static void declare_a(struct declare *d, const struct adapted_weight *w, struct hd_lora *l)
{
    const struct hd_adapter *adapter = &d->config->adapter;
    const bool shared = adapter->one_a[w->target];
    struct shard shard = w->grain ? split_columns(w->grain) : on_parts();
    char what[48];

    shard.adapter = true;
    for (int i = 0; i < w->fused_count; i++) {
        const enum hd_target t = (enum hd_target)((int)w->target + i);
        int a;

        if (!adapter->target[t] || (shared && l->a_count))
            continue;
        (void)snprintf(what, sizeof what, "%s.lora_a",
                       !shared                    ? hd_target_name(t, false)
                       : w->target == HD_TARGET_Q ? "attention.qkv"
                                                  : "mlp.gate_up");
        a = param(d, what, adapter->rank, w->in, shard, HD_INIT_UNIFORM, 1 / sqrt((double)w->in),
                  l->a_count > 0);
        l->a = l->a_count++ ? l->a : a;
    }
}

static void declare_b(struct declare *d, const struct adapted_weight *w, struct hd_lora *l)
{
    const struct hd_adapter *adapter = &d->config->adapter;
    int64_t column = 0;
    char what[48];

    for (int i = 0; i < w->fused_count; i++) {
        const enum hd_target t = (enum hd_target)((int)w->target + i);
        const struct hd_param *weight = &d->registry->params[w->weight + i];
        const int64_t rows = weight->shape[0], local = weight->local[0];
        struct shard shard = w->grain || is_whole(t) ? on_parts() : split_rows();

        shard.adapter = true;
        shard.lr_scale = adapter->b_lr;
        if (i && w->target == HD_TARGET_Q)
            shard.copies = d->registry->mesh.sizes.kv_replica;
        if (adapter->target[t]) {
            (void)snprintf(what, sizeof what, "%s.lora_b", hd_target_name(t, false));
            l->target[l->count] = (struct hd_low_rank){
                .weight = param(d, what, rows, adapter->rank, shard, HD_INIT_ZEROS, 0, false),
                .column = column,
                .inner = l->a_count > 1 ? l->count * adapter->rank : 0};
            l->count++;
        }
        column += local;
    }
}

/* Declares the magnitudes of the adapter's targets, in fp32. For a linear that tp splits by columns
 * every tp rank has all of them, and they scale rows outside of op_copy_to_tp and
 * op_reduce_from_tp. */
static void declare_magnitudes(struct declare *d, const struct adapted_weight *w, struct hd_lora *l)
{
    const struct hd_adapter *adapter = &d->config->adapter;
    char what[48];
    int n = 0;

    for (int i = 0; i < w->fused_count; i++) {
        const enum hd_target t = (enum hd_target)((int)w->target + i);
        const int weight = w->weight + i;
        struct shard shard = is_whole(t) ? on_parts() : w->grain ? on_rows(d) : split_rows();

        if (!adapter->target[t])
            continue;
        shard.adapter = shard.keep_fp32 = true;
        shard.norms_of = weight;
        if (i && w->target == HD_TARGET_Q)
            shard.copies = d->registry->mesh.sizes.kv_replica;
        (void)snprintf(what, sizeof what, "%s.lora_m", hd_target_name(t, false));
        l->magnitude[n] =
            (struct hd_magnitude){.magnitude = param(d, what, d->registry->params[weight].shape[0],
                                                     0, shard, HD_INIT_NORMS, 0, false),
                                  .weight = weight,
                                  .a = l->a + (l->a_count > 1 ? n : 0),
                                  .b = l->target[n].weight,
                                  .column = l->target[n].column};
        n++;
    }
}

static struct hd_lora declare_lora(struct declare *d, struct adapted_weight w)
{
    struct hd_lora l = {0};

    if (!d->registry->status) {
        declare_a(d, &w, &l);
        declare_b(d, &w, &l);
        if (d->config->adapter.dora)
            declare_magnitudes(d, &w, &l);
        l.by_columns = w.grain > 0;
        l.site = w.site;
        l.first_channel = w.grain ? d->registry->params[w.weight].start[1] : 0;
    }
    return l;
}

/* Declares the two layers of a bottleneck adapter, which is applied outside of op_copy_to_tp and
 * op_reduce_from_tp: with sequence parallelism the gradients are partial. */
static struct hd_bottleneck declare_bottleneck(struct declare *d, const char *which, int64_t site)
{
    const int64_t C = d->config->C, width = d->config->adapter.width;
    struct shard shard = on_rows(d);
    struct hd_bottleneck b = {.site = site};
    char what[32];

    shard.adapter = true;
    (void)snprintf(what, sizeof what, "%s.down", which);
    b.down = param(d, what, width, C, shard, HD_INIT_UNIFORM, 1 / sqrt((double)C), false);
    (void)snprintf(what, sizeof what, "%s.up", which);
    b.up = param(d, what, C, width, shard, HD_INIT_ZEROS, 0, false);
    return b;
}

/* Declares, for each token of the prefix, one row of all key/value heads; several tp ranks may hold
 * the same head. */
static int declare_prefix(struct declare *d, const char *what)
{
    const struct hd_model_config *c = d->config;
    struct shard shard = split_columns(c->D);

    shard.copies = d->registry->mesh.sizes.kv_replica;
    shard.adapter = true;
    return param(d, what, c->adapter.tokens, c->G * c->D, shard, HD_INIT_NORMAL, init_std(d),
                 false);
}

/* Declares the factors of one product of all experts. As for a linear: if tp splits the product by
 * rows, A is whole on every tp rank and its gradient is partial; if by columns, B. With one A of gate
 * and up, up has none of its own. */
static void declare_expert_lora(struct declare *d, enum hd_target target,
                                struct hd_expert_params *p)
{
    const struct hd_model_config *c = d->config;
    const int which = (int)target - HD_TARGET_GATE;
    const bool down = target == HD_TARGET_DOWN, one = c->adapter.expert_one_a && !down;
    const int64_t E = c->router.E, r = c->adapter.rank, in = down ? c->F : c->C;
    struct shard a = down ? of_experts(2, ffn_grain(c, c->F)) : of_experts(-1, 0);
    struct shard b = of_experts(down ? -1 : 1, 0);
    char what[48];

    if (!c->adapter.expert_target[target])
        return;
    a.linear = b.linear = false;
    a.adapter = b.adapter = true;
    a.partial = !down;
    b.partial = down;
    b.lr_scale = c->adapter.b_lr;
    (void)snprintf(what, sizeof what, "%s.lora_a",
                   one ? "moe.gate_up" : hd_target_name(target, true));
    if (!one || target == HD_TARGET_GATE)
        p->a[which] = tensor(d, what, (const int64_t[3]){E, r, in}, a, HD_INIT_UNIFORM,
                             1 / sqrt((double)in), false);
    (void)snprintf(what, sizeof what, "%s.lora_b", hd_target_name(target, true));
    p->b[which] =
        tensor(d, what, (const int64_t[3]){E, down ? c->C : c->F, r}, b, HD_INIT_ZEROS, 0, false);
}

static void declare_latent_loras(struct declare *d, struct hd_attention *a)
{
    const struct hd_latents *l = &d->config->latents;
    const int64_t C = d->config->C;

    if (l->q_rank) {
        a->lora_q_a = declare_lora(
            d, (struct adapted_weight){HD_TARGET_Q_A, a->q_a, 1, C, 0, HD_SITE_ADAPTER_QKV});
        a->lora_q_b = declare_lora(d, (struct adapted_weight){HD_TARGET_Q_B, a->q_b, 1, l->q_rank,
                                                              0, HD_SITE_ADAPTER_Q_B});
    } else {
        a->lora_qkv = declare_lora(
            d, (struct adapted_weight){HD_TARGET_Q, a->qkv, 1, C, 0, HD_SITE_ADAPTER_QKV});
    }
    a->lora_kv_a = declare_lora(
        d, (struct adapted_weight){HD_TARGET_KV_A, a->kv_a, 1, C, 0, HD_SITE_ADAPTER_KV_A});
    a->lora_kv_b = declare_lora(d, (struct adapted_weight){HD_TARGET_KV_B, a->kv_b, 1, l->kv_rank,
                                                           0, HD_SITE_ADAPTER_KV_B});
}

static void declare_attention_loras(struct declare *d, struct hd_attention *a)
{
    const struct hd_model_config *c = d->config;
    const int64_t value = hd_model_value_width(c);

    if (c->latents.kv_rank)
        declare_latent_loras(d, a);
    else
        a->lora_qkv = declare_lora(
            d, (struct adapted_weight){HD_TARGET_Q, a->qkv, 3, c->C, 0, HD_SITE_ADAPTER_QKV});
    a->lora_out = declare_lora(d, (struct adapted_weight){HD_TARGET_OUT, a->out, 1, c->H * value,
                                                          value, HD_SITE_ADAPTER_OUT});
}

static void declare_loras(struct declare *d, struct hd_layer l, struct hd_block *b)
{
    const struct hd_model_config *c = d->config;

    if (!l.delta && !l.conv)
        declare_attention_loras(d, &b->attention);
    b->experts.scale = c->adapter.scale;
    for (int t = HD_TARGET_GATE; l.experts && t <= HD_TARGET_DOWN; t++)
        if (c->adapter.rank && !d->registry->status)
            declare_expert_lora(d, (enum hd_target)t, &b->experts);
    if (l.experts)
        return;
    b->mlp.lora_up = declare_lora(
        d, c->family->gated
               ? (struct adapted_weight){HD_TARGET_GATE, b->mlp.up, 2, c->C, 0, HD_SITE_ADAPTER_UP}
               : (struct adapted_weight){HD_TARGET_UP, b->mlp.up, 1, c->C, 0, HD_SITE_ADAPTER_UP});
    b->mlp.lora_down =
        declare_lora(d, (struct adapted_weight){HD_TARGET_DOWN, b->mlp.down, 1, l.F,
                                                ffn_grain(c, l.F), HD_SITE_ADAPTER_DOWN});
}

static void declare_adapters(struct declare *d, struct hd_layer l, struct hd_block *b)
{
    if (d->config->adapter.kind == HD_ADAPTER_LORA)
        declare_loras(d, l, b);
    if (d->config->adapter.kind == HD_ADAPTER_BOTTLENECK) {
        b->adapter1 = declare_bottleneck(d, "adapter1", HD_SITE_ADAPTER1);
        b->adapter2 = declare_bottleneck(d, "adapter2", HD_SITE_ADAPTER2);
    }
    if (d->config->adapter.kind == HD_ADAPTER_PREFIX) {
        b->attention.prefix_k = declare_prefix(d, "attention.prefix_k");
        b->attention.prefix_v = declare_prefix(d, "attention.prefix_v");
    }
}

/* Returns attention without parameters. */
static struct hd_attention no_attention(void)
{
    return (struct hd_attention){.qkv = -1,
                                 .qkv_bias = -1,
                                 .out = -1,
                                 .out_bias = -1,
                                 .q_norm = -1,
                                 .k_norm = -1,
                                 .gate = -1,
                                 .q_a = -1,
                                 .q_a_norm = -1,
                                 .q_b = -1,
                                 .kv_a = -1,
                                 .kv_a_norm = -1,
                                 .kv_b = -1};
}

/* Declares a weight that every tp rank has whole, and multiplies by all rows between op_copy_to_tp
 * and op_reduce_from_tp; as only its own heads use the result, its gradient is partial. */
static int latent_product(struct declare *d, const char *what, int64_t rows)
{
    return product(d, what, rows, d->config->C, on_parts(), init_std(d));
}

static int latent_norm(struct declare *d, const char *what, int64_t channels)
{
    return param(d, what, channels, 0, on_parts(), HD_INIT_ONES, 0, false);
}

/* Declares latent attention. tp splits the heads: rows of q, q_b and kv_b, columns of out. */
static struct hd_attention declare_latents(struct declare *d)
{
    const struct hd_model_config *c = d->config;
    const struct hd_latents *l = &c->latents;
    const int64_t Q = c->H * c->D, KV = c->H * (l->nope + l->value), V = c->H * l->value;
    struct hd_attention a = no_attention();

    if (l->q_rank) {
        a.q_a = latent_product(d, "attention.q_a.weight", l->q_rank);
        a.q_a_norm = latent_norm(d, "attention.q_a_norm.weight", l->q_rank);
        a.q_b = product(d, "attention.q_b.weight", Q, l->q_rank,
                        scored(d, split_rows(), c->D, l->nope, false), init_std(d));
    } else {
        a.qkv = product(d, "attention.q.weight", Q, c->C,
                        scored(d, split_rows(), c->D, l->nope, false), init_std(d));
    }
    a.kv_a = latent_product(d, "attention.kv_a.weight", l->kv_rank + l->rope);
    a.kv_a_norm = latent_norm(d, "attention.kv_a_norm.weight", l->kv_rank);
    a.kv_b = product(d, "attention.kv_b.weight", KV, l->kv_rank,
                     scored(d, split_rows(), l->nope + l->value, l->nope, true), init_std(d));
    a.out = product(d, "attention.out.weight", c->C, V, split_columns(l->value), residual_std(d));
    return a;
}

/* Declares the weights of the norms of q and k. */
static void declare_qk_norm(struct declare *d, struct hd_attention *a)
{
    static const char q_name[] = "attention.q_norm.weight", k_name[] = "attention.k_norm.weight";
    const struct hd_model_config *c = d->config;
    struct shard q = split_rows(), k = split_kv_heads(d);

    q.bias = k.bias = true;
    if (!c->qk_norm)
        return;
    switch (c->family->qk_norm_form) {
    case HD_QK_NORM_HEAD:
    case HD_QK_NORM_HEAD_LAST:
        a->q_norm = param(d, q_name, c->D, 0, on_parts(), norm_init(c), 0, false);
        a->k_norm = param(d, k_name, c->D, 0, on_parts(), norm_init(c), 0, false);
        break;
    case HD_QK_NORM_WHOLE:
        a->q_norm = param(d, q_name, c->H * c->D, 0, q, HD_INIT_ONES, 0, false);
        a->k_norm = param(d, k_name, c->G * c->D, 0, k, HD_INIT_ONES, 0, false);
        break;
    case HD_QK_NORM_LAYER:
        a->q_norm = param(d, q_name, c->H, c->D, q, HD_INIT_ONES, 0, false);
        a->k_norm = param(d, k_name, c->G, c->D, k, HD_INIT_ONES, 0, false);
        break;
    case HD_QK_NORM_PLAIN:
        break;
    }
}

static struct hd_attention declare_attention(struct declare *d)
{
    const struct hd_model_config *c = d->config;
    const int64_t Q = c->H * c->D, K = c->G * c->D;
    const struct shard q = scored(d, split_rows(), c->D, c->D, false);
    const struct shard k = scored(d, split_kv_heads(d), c->D, c->D, true);
    struct hd_attention a = no_attention();

    if (c->latents.kv_rank)
        return declare_latents(d);
    a.qkv = product(d, "attention.q.weight", Q, c->C, q, init_std(d));
    (void)fused(d, "attention.k.weight", K, c->C, k, init_std(d));
    (void)fused(d, "attention.v.weight", K, c->C, split_kv_heads(d), init_std(d));
    if (c->family->output_gate)
        a.gate = product(d, "attention.gate.weight", Q, c->C, split_rows(), init_std(d));
    a.out = product(d, "attention.out.weight", c->C, Q, split_columns(c->D), residual_std(d));
    a.qkv_bias = bias(d, c->qkv_bias, "attention.q.bias", Q, q, false);
    (void)bias(d, c->qkv_bias, "attention.k.bias", K, k, true);
    (void)bias(d, c->qkv_bias, "attention.v.bias", K, split_kv_heads(d), true);
    a.out_bias = bias(d, c->out_bias, "attention.out.bias", c->C, on_rows(d), false);
    if (c->family->sinks)
        a.sinks =
            param(d, "attention.sinks", c->H, 0, split_rows(), HD_INIT_NORMAL, init_std(d), false);
    declare_qk_norm(d, &a);
    return a;
}

/* Declares a gated delta layer, whose key heads tp splits, each with its value heads. A_log and
 * dt_bias are fp32: the decay is an exponential of them. */
static struct hd_delta declare_delta(struct declare *d)
{
    const struct hd_model_config *c = d->config;
    const struct hd_delta_sizes *s = &c->delta;
    const int64_t K = s->key_heads * s->key_width, V = s->value_heads * s->value_width;
    struct shard decay = split_rows();
    struct hd_delta b = {0};

    decay.keep_fp32 = true;
    b.qkv = product(d, "delta.q.weight", K, c->C, split_rows(), init_std(d));
    (void)fused(d, "delta.k.weight", K, c->C, split_rows(), init_std(d));
    (void)fused(d, "delta.v.weight", V, c->C, split_rows(), init_std(d));
    b.gate = product(d, "delta.z.weight", V, c->C, split_rows(), init_std(d));
    b.ba = matrix(d, "delta.b.weight", s->value_heads, c->C, split_rows(), init_std(d), false);
    (void)matrix(d, "delta.a.weight", s->value_heads, c->C, split_rows(), init_std(d), true);
    b.conv = matrix(d, "delta.conv_q.weight", K, s->conv_width, split_rows(), init_std(d), false);
    (void)matrix(d, "delta.conv_k.weight", K, s->conv_width, split_rows(), init_std(d), true);
    (void)matrix(d, "delta.conv_v.weight", V, s->conv_width, split_rows(), init_std(d), true);
    b.A_log = param(d, "delta.A_log", s->value_heads, 0, decay, HD_INIT_LOG_UNIFORM, 16, false);
    (void)param(d, "delta.dt_bias", s->value_heads, 0, decay, HD_INIT_ONES, 0, true);
    b.norm = param(d, "delta.norm.weight", s->value_width, 0, on_parts(), HD_INIT_ONES, 0, false);
    b.out = product(d, "delta.out.weight", c->C, V, split_columns(s->value_width), residual_std(d));
    return b;
}

/* Declares a short convolution, whose channels tp splits: rows of the three projections of the input
 * and of the taps, columns of the output's. */
static struct hd_short_conv declare_conv(struct declare *d)
{
    const struct hd_model_config *c = d->config;
    const int64_t C = c->C;
    const bool biased = c->conv_bias;
    struct hd_short_conv s = {0};

    s.b = product(d, "conv.b.weight", C, C, split_rows(), init_std(d));
    s.c = product(d, "conv.c.weight", C, C, split_rows(), init_std(d));
    s.x = product(d, "conv.x.weight", C, C, split_rows(), init_std(d));
    s.b_bias = bias(d, biased, "conv.b.bias", C, split_rows(), false);
    s.c_bias = bias(d, biased, "conv.c.bias", C, split_rows(), false);
    s.x_bias = bias(d, biased, "conv.x.bias", C, split_rows(), false);
    s.kernel = matrix(d, "conv.kernel.weight", C, c->conv_width, split_rows(), init_std(d), false);
    s.kernel_bias = bias(d, biased, "conv.kernel.bias", C, split_rows(), false);
    s.out = product(d, "conv.out.weight", C, C, split_columns(conv_grain(c)), residual_std(d));
    s.out_bias = bias(d, biased, "conv.out.bias", C, on_rows(d), false);
    return s;
}

/* Returns a copy of *d whose prefix of parameter names is longer by ".what". */
static struct declare inside(const struct declare *d, const char *what)
{
    struct declare inner = *d;
    const size_t used = strlen(d->prefix);

    (void)snprintf(inner.prefix + used, sizeof inner.prefix - used, ".%s", what);
    return inner;
}

/* Declares an MLP with F inner channels. */
static struct hd_mlp declare_mlp(struct declare *d, int64_t F)
{
    const struct hd_model_config *c = d->config;
    struct hd_mlp m = {0};

    if (c->family->gated) {
        m.up = product(d, "gate.weight", F, c->C, split_rows(), init_std(d));
        (void)fused(d, "up.weight", F, c->C, split_rows(), init_std(d));
    } else {
        m.up = product(d, "up.weight", F, c->C, split_rows(), init_std(d));
    }
    m.down = product(d, "down.weight", c->C, F, split_columns(ffn_grain(c, F)), residual_std(d));
    if (c->family->gated) {
        m.up_bias = bias(d, c->mlp_bias, "gate.bias", F, split_rows(), false);
        (void)bias(d, c->mlp_bias, "up.bias", F, split_rows(), true);
    } else {
        m.up_bias = bias(d, c->mlp_bias, "up.bias", F, split_rows(), false);
    }
    m.down_bias = bias(d, c->mlp_bias, "down.bias", c->C, on_rows(d), false);
    return m;
}

/* Declares the biases of experts: tp splits those of gate and up like F; each tp rank has the whole
 * bias of down, of which all compute the same gradient. */
static void declare_expert_biases(struct declare *d, struct hd_expert_params *p)
{
    const struct hd_model_config *c = d->config;
    struct shard inner = of_experts(1, ffn_grain(c, c->F)), outer = of_experts(-1, 0);

    p->gate_bias = p->up_bias = p->down_bias = -1;
    inner.linear = outer.linear = false;
    inner.bias = outer.bias = true;
    if (!c->mlp_bias)
        return;
    p->gate_bias = param(d, "gate.bias", c->router.E, c->F, inner, HD_INIT_ZEROS, 0, false);
    p->up_bias = param(d, "up.bias", c->router.E, c->F, inner, HD_INIT_ZEROS, 0, false);
    p->down_bias = param(d, "down.bias", c->router.E, c->C, outer, HD_INIT_ZEROS, 0, false);
}

/* Declares the vectors [E] that a router adds to its logits and to its scores. */
static void declare_router_biases(struct declare *d, int64_t layer, struct hd_expert_params *p)
{
    const struct hd_model_config *c = d->config;
    struct shard logits = on_parts(), scores = {.axis = -1};

    logits.keep_fp32 = scores.keep_fp32 = scores.state = true;
    scores.router = (int)layer;
    scores.rate = c->bias_rate;
    p->router_bias = p->select_bias = -1;
    if (c->family->router_bias)
        p->router_bias =
            param(d, "router.bias", c->router.E, 0, logits, HD_INIT_NORMAL, init_std(d), false);
    if (c->family->select_bias)
        p->select_bias = param(d, "select_bias", c->router.E, 0, scores, HD_INIT_ZEROS, 0, false);
}

static struct hd_expert_params declare_experts(struct declare *d, int64_t layer)
{
    const struct hd_model_config *c = d->config;
    const int64_t E = c->router.E, in[3] = {E, c->F, c->C}, out[3] = {E, c->C, c->F};
    struct hd_expert_params p = {.noise = -1, .a = {-1, -1, -1}, .b = {-1, -1, -1}};
    struct shard router = on_parts();

    router.keep_fp32 = true; /* rounding must not change the router's choice */
    p.router = matrix(d, "router.weight", E, c->C, router, init_std(d), false);
    if (c->router.noisy) /* initialised to zeros: the noise starts at softplus(0) (Shazeer et al.
                            2017, app. A) */
        p.noise = param(d, "router_noise.weight", E, c->C, router, HD_INIT_ZEROS, 0, false);
    declare_router_biases(d, layer, &p);
    p.gate = tensor(d, "gate.weight", in, of_experts(1, 0), HD_INIT_NORMAL, init_std(d), false);
    p.up = tensor(d, "up.weight", in, of_experts(1, 0), HD_INIT_NORMAL, init_std(d), false);
    p.down = tensor(d, "down.weight", out, of_experts(2, ffn_grain(c, c->F)), HD_INIT_NORMAL,
                    residual_std(d), false);
    declare_expert_biases(d, &p);
    return p;
}

/* Declares the MLP of a block, or its experts and its shared expert. */
static void declare_feed_forward(struct declare *d, int64_t number, struct hd_layer layer,
                                 struct hd_block *b)
{
    const struct hd_model_config *c = d->config;
    struct declare inner = inside(d, layer.experts ? "moe" : "mlp");

    b->shared_gate = -1;
    if (!layer.experts) {
        b->mlp = declare_mlp(&inner, layer.F);
        return;
    }
    b->experts = declare_experts(&inner, number);
    if (c->F_shared && c->family->shared_gated)
        b->shared_gate =
            matrix(&inner, "shared_gate.weight", 1, c->C, on_rows(d), init_std(d), false);
    if (c->F_shared) {
        inner = inside(&inner, "shared");
        b->mlp = declare_mlp(&inner, c->F_shared);
    }
}

static void declare_embedding(struct declare *d, struct hd_model *m)
{
    const struct hd_model_config *c = d->config;
    struct shard table = split_vocabulary(), positions = on_rows(d);

    table.tied = c->tied || c->further;
    table.table = positions.table = true;
    (void)snprintf(d->prefix, sizeof d->prefix, "embedding");
    m->unit_embedding = hd_registry_unit(d->registry, "embedding", "embedding");
    m->embedding = matrix(d, "weight", c->V, c->C, table, init_std(d), false);
    m->positions = -1;
    if (c->positions == HD_POSITIONS_LEARNED)
        m->positions =
            matrix(d, "positions", c->adapter.tokens + c->family->first_position + c->context, c->C,
                   positions, init_std(d), false);
    m->embedding_norm = declare_norm(d, c->family->embedding_norm, "norm");
}

/* Names of the kinds of blocks, by hd_model_layer_kind; units of one kind are recorded once. */
static const char *const kind_names[HD_LAYER_KINDS] = {
    "block",
    "windowed block",
    "block without positions",
    "windowed block without positions",
    "dense block",
    "dense windowed block",
    "dense block without positions",
    "dense windowed block without positions",
    [HD_LAYER_UNATTENDED] = "block without attention",
    [HD_LAYER_UNATTENDED | HD_LAYER_DENSE] = "dense block without attention"};

/* Declares the parameters of a block under the present prefix. */
static void declare_layer(struct declare *d, int64_t layer, struct hd_block *b)
{
    const struct hd_model_config *c = d->config;
    const struct hd_layer l = hd_model_layer(c, layer);
    const bool before = c->place != HD_NORM_AFTER;
    const bool after = c->place == HD_NORM_AFTER || c->place == HD_NORM_BOTH;

    b->norm1 = declare_norm(d, before, "norm1");
    if (l.delta)
        b->delta = declare_delta(d);
    if (l.conv)
        b->conv = declare_conv(d);
    b->attention = l.delta || l.conv ? no_attention() : declare_attention(d);
    b->norm1_out = declare_norm(d, after, "norm1_out");
    b->norm2 = declare_norm(d, before && c->place != HD_NORM_ONE, "norm2");
    declare_feed_forward(d, layer, l, b);
    b->norm2_out = declare_norm(d, after, "norm2_out");
    declare_adapters(d, l, b);
}

static void declare_block(struct declare *d, struct hd_model *m, int64_t layer)
{
    char name[32];

    (void)snprintf(name, sizeof name, "block.%lld", (long long)layer);
    (void)snprintf(d->prefix, sizeof d->prefix, "blocks.%lld", (long long)layer);
    (void)hd_registry_unit(d->registry, kind_names[hd_model_layer_kind(d->config, layer)], name);
    declare_layer(d, layer, &m->blocks[layer]);
}

/* Declares the layers that predict further tokens. Their projection is whole on every tp rank,
 * outside of op_copy_to_tp and op_reduce_from_tp. */
static void declare_further(struct declare *d, struct hd_model *m)
{
    const struct hd_model_config *c = d->config;

    for (int64_t i = 0; i < c->further; i++) {
        struct hd_further *f = &m->further[i];

        (void)snprintf(d->prefix, sizeof d->prefix, "mtp.%lld", (long long)i);
        f->embedding_norm = declare_norm(d, true, "embedding_norm");
        f->hidden_norm = declare_norm(d, true, "hidden_norm");
        f->projection =
            matrix(d, "projection.weight", c->C, 2 * c->C, on_rows(d), init_std(d), false);
        declare_layer(d, c->L + i, &f->block);
        f->head_norm = declare_norm(d, true, "head_norm");
    }
}

/* Declares the vector of a reward model, initialised as in transformers. It is applied to the same
 * rows as the last norm. */
static int declare_score(struct declare *d)
{
    struct shard shard = on_rows(d);

    shard.head = shard.newly_initialized = true;
    return matrix(d, "score.weight", 1, d->config->C, shard, init_std(d), false);
}

static void declare_head(struct declare *d, struct hd_model *m)
{
    const struct hd_model_config *c = d->config;
    struct shard shard = split_vocabulary();

    shard.head = true;
    (void)snprintf(d->prefix, sizeof d->prefix, "head");
    m->unit_head = hd_registry_unit(d->registry, "head", "head");
    m->head_norm = declare_norm(d, true, "norm");
    if (c->reward)
        m->head = declare_score(d);
    else
        m->head =
            c->tied ? m->embedding : matrix(d, "weight", c->V, c->C, shard, init_std(d), false);
    m->head_bias = bias(d, c->family->head_bias && !c->reward, "bias", c->V, shard, false);
    declare_further(d, m);
}

static enum hd_status check_tp(const struct hd_model_config *c, const struct hd_mesh_sizes *sizes)
{
    const int tp = sizes->tp;

    if (!hd_model_tp_fits(c, tp))
        return hd_err(HD_INVALID,
                      "tp = %d must divide heads = %lld, ffn_hidden = %lld, the key heads of gated "
                      "delta layers = %lld and the channels of short convolutions = %lld, and "
                      "divide or be a multiple of kv_heads = %lld",
                      tp, (long long)c->H, (long long)c->F, (long long)c->delta.key_heads,
                      (long long)(c->conv_width ? c->C : 0), (long long)c->G);
    assert(sizes->kv_replica == hd_model_kv_replica(c, tp));
    return HD_OK;
}

enum hd_status hd_model_declare(const struct hd_model_config *config, struct hd_registry *registry,
                                struct hd_arena *arena, struct hd_model *ret_model)
{
    struct declare d = {.registry = registry, .config = config};
    struct hd_model m = {.config = *config};
    const struct hd_only only = hd_model_only(config);
    const enum hd_status st = check_tp(config, &registry->mesh.sizes);

    if (st)
        return st;
    m.blocks = hd_arena_array(arena, (size_t)config->L, sizeof *m.blocks);
    m.further = hd_arena_array(arena, (size_t)config->further + 1, sizeof *m.further);
    if (!m.blocks || !m.further)
        return hd_err(HD_NO_MEMORY, "no memory for %lld layers", (long long)config->L);
    declare_embedding(&d, &m);
    hd_registry_routers(registry, config->router.E ? config->L + config->further : 0,
                        config->router.E);
    registry->further = config->further;
    m.unit_first_block = HD_UNIT_FIRST_BLOCK;
    assert(registry->unit_count == m.unit_first_block);
    for (int64_t i = 0; i < config->L; i++)
        declare_block(&d, &m, i);
    declare_head(&d, &m);
    *ret_model = m;
    if (registry->status)
        return hd_err(registry->status, "%s", registry->error);
    return hd_only_check(&only, registry);
}
