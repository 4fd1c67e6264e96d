/* work: FLOPs of a token in forward and backward. */
#include <math.h>
#include <string.h>

#include "model/model.h"

/* Number of a block's weights that multiply one token, with the name of the parameter to which they
 * belong. */
struct multiplied {
    const char *name;
    double weights;
};

enum { MULTIPLIED_MAX = 17 + 2 * HD_TARGET_COUNT };

static int list_bottlenecks(const struct hd_model_config *c, struct multiplied *list, int count)
{
    static const char *const names[] = {"adapter1.down", "adapter1.up", "adapter2.down",
                                        "adapter2.up"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        list[count++] = (struct multiplied){names[i], (double)(c->adapter.width * c->C)};
    return count;
}

/* Appends the two LoRA factors of each adapted weight to the `count` entries of the list. Returns
 * the new count. */
static int list_lora(const struct hd_model_config *c, const struct hd_layer *layer,
                     struct multiplied *list, int count)
{
    static const char *const a_names[][2] = {{"attention.q.lora_a", "attention.q.lora_a"},
                                             {"attention.k.lora_a", "attention.k.lora_a"},
                                             {"attention.v.lora_a", "attention.v.lora_a"},
                                             {"attention.out.lora_a", "attention.out.lora_a"},
                                             {"attention.q_a.lora_a", "attention.q_a.lora_a"},
                                             {"attention.q_b.lora_a", "attention.q_b.lora_a"},
                                             {"attention.kv_a.lora_a", "attention.kv_a.lora_a"},
                                             {"attention.kv_b.lora_a", "attention.kv_b.lora_a"},
                                             {"mlp.gate.lora_a", "moe.gate.lora_a"},
                                             {"mlp.up.lora_a", "moe.up.lora_a"},
                                             {"mlp.down.lora_a", "moe.down.lora_a"}};
    static const char *const b_names[][2] = {{"attention.q.lora_b", "attention.q.lora_b"},
                                             {"attention.k.lora_b", "attention.k.lora_b"},
                                             {"attention.v.lora_b", "attention.v.lora_b"},
                                             {"attention.out.lora_b", "attention.out.lora_b"},
                                             {"attention.q_a.lora_b", "attention.q_a.lora_b"},
                                             {"attention.q_b.lora_b", "attention.q_b.lora_b"},
                                             {"attention.kv_a.lora_b", "attention.kv_a.lora_b"},
                                             {"attention.kv_b.lora_b", "attention.kv_b.lora_b"},
                                             {"mlp.gate.lora_b", "moe.gate.lora_b"},
                                             {"mlp.up.lora_b", "moe.up.lora_b"},
                                             {"mlp.down.lora_b", "moe.down.lora_b"}};
    const int64_t C = c->C, Q = c->H * c->D, K = c->G * c->D, F = layer->F;
    const struct hd_latents *l = &c->latents;
    const int64_t V = c->H * hd_model_value_width(c);
    const int64_t in[] = {C, C, C, V, C, l->q_rank, C, l->kv_rank, C, C, F};
    const int64_t out[] = {Q, K, K, C, l->q_rank, Q, l->kv_rank + l->rope, c->H * l->nope + V,
                           F, F, C};

    for (int t = 0; t < HD_TARGET_COUNT; t++) {
        const bool experts = layer->experts && t >= HD_TARGET_GATE;
        const bool shares =
            (c->adapter.one_a[HD_TARGET_Q] && (t == HD_TARGET_K || t == HD_TARGET_V)) ||
            (t == HD_TARGET_UP &&
             (experts ? c->adapter.expert_one_a : c->adapter.one_a[HD_TARGET_GATE]));
        /* a token goes to K experts, so K times the weights of one expert multiply it */
        const double times = experts ? (double)c->router.K : 1;

        if (!(experts ? c->adapter.expert_target : c->adapter.target)[t] ||
            ((layer->delta || layer->conv) && t < HD_TARGET_GATE))
            continue;
        if (!shares)
            list[count++] =
                (struct multiplied){a_names[t][experts], times * (double)(c->adapter.rank * in[t])};
        list[count++] =
            (struct multiplied){b_names[t][experts], times * (double)(c->adapter.rank * out[t])};
    }
    return count;
}

/* Lists the weights of a gated delta layer. Returns their number. */
static int list_delta(const struct hd_model_config *c, struct multiplied *ret)
{
    const struct hd_delta_sizes *s = &c->delta;
    const double C = (double)c->C, K = (double)(s->key_heads * s->key_width);
    const double V = (double)(s->value_heads * s->value_width), H = (double)s->value_heads;
    const double W = (double)s->conv_width;
    const struct multiplied list[] = {
        {"delta.q.weight", K * C},      {"delta.k.weight", K * C},
        {"delta.v.weight", V * C},      {"delta.z.weight", V * C},
        {"delta.b.weight", H * C},      {"delta.a.weight", H * C},
        {"delta.conv_q.weight", K * W}, {"delta.conv_k.weight", K * W},
        {"delta.conv_v.weight", V * W}, {"delta.out.weight", V * C}};

    memcpy(ret, list, sizeof list);
    return (int)(sizeof list / sizeof list[0]);
}

/* Lists the weights of a short convolution. Returns their number. */
static int list_conv(const struct hd_model_config *c, struct multiplied *ret)
{
    const double C = (double)c->C, W = (double)c->conv_width;
    const struct multiplied list[] = {{"conv.b.weight", C * C},
                                      {"conv.c.weight", C * C},
                                      {"conv.x.weight", C * C},
                                      {"conv.kernel.weight", C * W},
                                      {"conv.out.weight", C * C}};

    memcpy(ret, list, sizeof list);
    return (int)(sizeof list / sizeof list[0]);
}

/* Lists the weights of attention. Returns their number. */
static int list_attention(const struct hd_model_config *c, struct multiplied *ret)
{
    const double C = (double)c->C, Q = (double)(c->H * c->D), K = (double)(c->G * c->D);
    const double V = (double)(c->H * hd_model_value_width(c)), to_q = (double)c->latents.q_rank;
    const double to_kv = (double)c->latents.kv_rank, rope = (double)c->latents.rope;
    const double kv = (double)(c->H * c->latents.nope) + V;
    int n = 0;

    if (to_q > 0) {
        ret[n++] = (struct multiplied){"attention.q_a.weight", to_q * C};
        ret[n++] = (struct multiplied){"attention.q_b.weight", Q * to_q};
    } else {
        ret[n++] = (struct multiplied){"attention.q.weight", Q * C};
    }
    if (to_kv > 0) {
        ret[n++] = (struct multiplied){"attention.kv_a.weight", (to_kv + rope) * C};
        ret[n++] = (struct multiplied){"attention.kv_b.weight", kv * to_kv};
    } else {
        ret[n++] = (struct multiplied){"attention.k.weight", K * C};
        ret[n++] = (struct multiplied){"attention.v.weight", K * C};
    }
    if (c->family->output_gate)
        ret[n++] = (struct multiplied){"attention.gate.weight", V * C};
    ret[n++] = (struct multiplied){"attention.out.weight", V * C};
    return n;
}

static int list_multiplied(const struct hd_model_config *c, const struct hd_layer *layer,
                           struct multiplied ret[MULTIPLIED_MAX])
{
    const double C = (double)c->C;
    const double F = (double)layer->F * C * (layer->experts ? (double)c->router.K : 1);
    const double shared = (double)c->F_shared * C, gated = c->family->gated ? 1 : 0;
    const struct multiplied dense[] = {
        {"mlp.gate.weight", gated * F}, {"mlp.up.weight", F}, {"mlp.down.weight", F}};
    const struct multiplied experts[] = {{"moe.router.weight", (double)c->router.E * C},
                                         {"moe.gate.weight", F},
                                         {"moe.up.weight", F},
                                         {"moe.down.weight", F},
                                         {"moe.shared.gate.weight", shared},
                                         {"moe.shared.up.weight", shared},
                                         {"moe.shared.down.weight", shared}};
    int count = layer->delta  ? list_delta(c, ret)
                : layer->conv ? list_conv(c, ret)
                              : list_attention(c, ret);

    if (layer->experts)
        memcpy(ret + count, experts, sizeof experts);
    else
        memcpy(ret + count, dense, sizeof dense);
    count += layer->experts ? 7 : 3;
    if (c->adapter.kind == HD_ADAPTER_BOTTLENECK)
        return list_bottlenecks(c, ret, count);
    return c->adapter.kind == HD_ADAPTER_LORA ? list_lora(c, layer, ret, count) : count;
}

/* Work of one token in one block: weights that multiply it, those of them that get a gradient, and
 * the FLOPs of attention in forward. */
struct block_work {
    double weights, trained, attention;
    bool backward;
};

/* Returns the number of tokens to which a token attends, on average over a sequence. */
static double visible_tokens(const struct hd_model_config *c, const struct hd_layer *l)
{
    const double S = (double)c->context, W = (double)l->window, K = (double)l->chunk;
    const double rest = K > 0 ? fmod(S, K) : 0;

    if (W > 0 && W < S)
        return W * (2 * S - W + 1) / (2 * S);
    if (K > 0 && K < S)
        return ((S - rest) * (K + 1) + rest * (rest + 1)) / (2 * S);
    return (S + 1) / 2;
}

static struct block_work work_of(const struct hd_model_config *c, int64_t layer)
{
    const struct hd_layer l = hd_model_layer(c, layer);
    const double H = (double)c->H, D = (double)c->D;
    const double V = (double)hd_model_value_width(c);
    const double visible_pairs = visible_tokens(c, &l) + (double)c->adapter.tokens;
    struct block_work w = {.attention = 2 * H * (D + V) * visible_pairs,
                           .backward = HD_UNIT_FIRST_BLOCK + layer >= c->lowest_trained};
    struct multiplied list[MULTIPLIED_MAX];
    const int count = list_multiplied(c, &l, list);

    if (l.delta) /* k^T M, the row that is added to M, and q^T M */
        w.attention =
            6 * (double)(c->delta.value_heads * c->delta.key_width * c->delta.value_width);
    if (l.conv)
        w.attention = 0;
    for (int i = 0; i < count; i++) {
        w.weights += list[i].weights;
        w.trained += w.backward && hd_model_trains(c, layer, list[i].name) ? list[i].weights : 0;
    }
    return w;
}

static double block_flops(const struct hd_model_config *c, int64_t layer)
{
    const struct block_work w = work_of(c, layer);

    return (w.backward ? 4 : 2) * w.weights + 2 * w.trained + (w.backward ? 3 : 1) * w.attention;
}

struct hd_backward_shares hd_model_backward_shares(const struct hd_model_config *c, int64_t layer)
{
    const struct block_work w = work_of(c, layer);
    const double inputs = w.backward ? 1 : 0;

    return (struct hd_backward_shares){
        .inputs = inputs,
        .weights = w.trained / w.weights,
        .all = (inputs * (2 * w.weights + 2 * w.attention) + 2 * w.trained) /
               (4 * w.weights + 2 * w.attention)};
}

/* Returns the FLOPs of a token's logits and of their gradients. */
static double head_flops(const struct hd_model_config *c)
{
    const struct hd_only only = hd_model_only(c);

    return (hd_only_trains(&only, c->tied ? "embedding.weight" : "head.weight") ? 6 : 4) *
           (double)c->C * (double)c->V;
}

/* Returns the FLOPs of the projections and blocks that predict further tokens. */
static double further_flops(const struct hd_model_config *c)
{
    double flops = 0;

    for (int64_t i = 0; i < c->further; i++)
        flops +=
            block_flops(c, c->L + i) + (hd_model_trains(c, c->L + i, "projection.weight") ? 6 : 4) *
                                           2 * (double)c->C * (double)c->C;
    return flops;
}

double hd_model_unit_flops(const struct hd_model_config *c, int unit)
{
    if (unit == HD_UNIT_EMBEDDING)
        return 0;
    if (unit == hd_model_unit_count(c) - 1 && c->reward)
        return 0; /* the head of a reward model multiplies one row of an answer by one vector: not
                     counted */
    if (unit == hd_model_unit_count(c) - 1)
        return (double)(1 + c->further) * head_flops(c) + further_flops(c);
    return block_flops(c, unit - HD_UNIT_FIRST_BLOCK);
}

double hd_model_flops_per_token(const struct hd_model_config *c)
{
    double flops = 0;

    for (int unit = 0; unit < hd_model_unit_count(c); unit++)
        flops += hd_model_unit_flops(c, unit);
    return flops;
}
