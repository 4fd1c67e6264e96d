/* trained: which parameters train (adapters, prompts, names that a job lists), and the lowest unit
 * that has one. */
#include <stdio.h>

#include "model/model.h"

struct hd_only hd_model_only(const struct hd_model_config *c)
{
    return (struct hd_only){c->only, c->L, c->tied,
                            c->adapter.kind ? "train.adapter.trainable" : NULL};
}

bool hd_model_trains(const struct hd_model_config *c, int64_t layer, const char *what)
{
    const struct hd_only only = hd_model_only(c);
    char name[HD_PARAM_NAME_MAX];

    if (hd_only_is_all(&only)) /* fast path, because a planner's search over parallel layouts calls
                                  this function often */
        return true;
    (void)snprintf(name, sizeof name, "%s.%lld.%s", layer < c->L ? "blocks" : "mtp",
                   (long long)(layer < c->L ? layer : layer - c->L), what);
    return hd_only_trains(&only, name);
}

/* Names of all parameters that a block may have. */
static const char *const block_names[] = {"norm1.weight",
                                          "norm1.bias",
                                          "attention.q.weight",
                                          "attention.k.weight",
                                          "attention.v.weight",
                                          "attention.out.weight",
                                          "attention.q.bias",
                                          "attention.k.bias",
                                          "attention.v.bias",
                                          "attention.out.bias",
                                          "attention.gate.weight",
                                          "attention.q_a.weight",
                                          "attention.q_a_norm.weight",
                                          "attention.q_b.weight",
                                          "attention.kv_a.weight",
                                          "attention.kv_a_norm.weight",
                                          "attention.kv_b.weight",
                                          "attention.sinks",
                                          "delta.q.weight",
                                          "delta.k.weight",
                                          "delta.v.weight",
                                          "delta.z.weight",
                                          "delta.b.weight",
                                          "delta.a.weight",
                                          "delta.conv_q.weight",
                                          "delta.conv_k.weight",
                                          "delta.conv_v.weight",
                                          "delta.A_log",
                                          "delta.dt_bias",
                                          "delta.norm.weight",
                                          "delta.out.weight",
                                          "conv.b.weight",
                                          "conv.b.bias",
                                          "conv.c.weight",
                                          "conv.c.bias",
                                          "conv.x.weight",
                                          "conv.x.bias",
                                          "conv.kernel.weight",
                                          "conv.kernel.bias",
                                          "conv.out.weight",
                                          "conv.out.bias",
                                          "attention.q_norm.weight",
                                          "attention.k_norm.weight",
                                          "norm2.weight",
                                          "norm2.bias",
                                          "norm1_out.weight",
                                          "norm1_out.bias",
                                          "norm2_out.weight",
                                          "norm2_out.bias",
                                          "mlp.gate.weight",
                                          "mlp.up.weight",
                                          "mlp.down.weight",
                                          "mlp.gate.bias",
                                          "mlp.up.bias",
                                          "mlp.down.bias",
                                          "moe.router.weight",
                                          "moe.router_noise.weight",
                                          "moe.router.bias",
                                          "moe.gate.weight",
                                          "moe.up.weight",
                                          "moe.down.weight",
                                          "moe.gate.bias",
                                          "moe.up.bias",
                                          "moe.down.bias",
                                          "moe.shared_gate.weight",
                                          "moe.shared.gate.weight",
                                          "moe.shared.up.weight",
                                          "moe.shared.down.weight",
                                          "moe.shared.gate.bias",
                                          "moe.shared.up.bias",
                                          "moe.shared.down.bias",
                                          "attention.qkv.lora_a",
                                          "mlp.gate_up.lora_a",
                                          "attention.q.lora_a",
                                          "attention.k.lora_a",
                                          "attention.v.lora_a",
                                          "attention.out.lora_a",
                                          "mlp.gate.lora_a",
                                          "mlp.up.lora_a",
                                          "mlp.down.lora_a",
                                          "attention.q.lora_b",
                                          "attention.q.lora_m",
                                          "attention.k.lora_b",
                                          "attention.k.lora_m",
                                          "attention.v.lora_b",
                                          "attention.v.lora_m",
                                          "attention.out.lora_b",
                                          "attention.out.lora_m",
                                          "mlp.gate.lora_b",
                                          "mlp.gate.lora_m",
                                          "mlp.up.lora_b",
                                          "mlp.up.lora_m",
                                          "mlp.down.lora_b",
                                          "mlp.down.lora_m",
                                          "adapter1.down",
                                          "adapter1.up",
                                          "adapter2.down",
                                          "adapter2.up",
                                          "attention.prefix_k",
                                          "attention.prefix_v",
                                          "moe.gate_up.lora_a",
                                          "moe.gate.lora_a",
                                          "moe.up.lora_a",
                                          "moe.down.lora_a",
                                          "moe.gate.lora_b",
                                          "moe.up.lora_b",
                                          "moe.down.lora_b"};

int hd_model_lowest_trained(const struct hd_model_config *c)
{
    const struct hd_only only = hd_model_only(c);

    if (hd_only_trains(&only, "embedding.weight") || hd_only_trains(&only, "embedding.positions") ||
        (c->family->embedding_norm && (hd_only_trains(&only, "embedding.norm.weight") ||
                                       hd_only_trains(&only, "embedding.norm.bias"))))
        return HD_UNIT_EMBEDDING;
    for (int64_t layer = 0; layer < c->L; layer++)
        for (size_t i = 0; i < sizeof block_names / sizeof block_names[0]; i++)
            if (hd_model_trains(c, layer, block_names[i]))
                return HD_UNIT_FIRST_BLOCK + (int)layer;
    return HD_UNIT_FIRST_BLOCK + (int)c->L;
}
