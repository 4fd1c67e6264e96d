#include "model/adapter.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "job/family.h"

enum { WORD_MAX = 64 };

/* A module of a family, by its Hugging Face name, and the targets that it contains. */
struct module {
    const char *name;
    int target[3], count; /* a module of several targets is one matrix, with one factor A */
    enum {
        LINEAR,      /* a linear of each block */
        EACH_EXPERT, /* a linear of each expert of a block */
        STACK        /* no module, but one parameter with the matrices of all experts */
    } kind;
};

#define ATTENTION                                       \
    {"self_attn.q_proj", {HD_TARGET_Q}, 1, LINEAR},     \
        {"self_attn.k_proj", {HD_TARGET_K}, 1, LINEAR}, \
        {"self_attn.v_proj", {HD_TARGET_V}, 1, LINEAR}, \
    {                                                   \
        "self_attn.o_proj", {HD_TARGET_OUT}, 1, LINEAR  \
    }
#define MLP                                                                                     \
    {"mlp.gate_proj", {HD_TARGET_GATE}, 1, LINEAR}, {"mlp.up_proj", {HD_TARGET_UP}, 1, LINEAR}, \
    {                                                                                           \
        "mlp.down_proj", {HD_TARGET_DOWN}, 1, LINEAR                                            \
    }
#define FUSED_MLP                                                    \
    {"mlp.gate_up_proj", {HD_TARGET_GATE, HD_TARGET_UP}, 2, LINEAR}, \
    {                                                                \
        "mlp.down_proj", {HD_TARGET_DOWN}, 1, LINEAR                 \
    }

static const struct module gpt2_modules[] = {
    {"attn.c_attn", {HD_TARGET_Q, HD_TARGET_K, HD_TARGET_V}, 3, LINEAR},
    {"attn.c_proj", {HD_TARGET_OUT}, 1, LINEAR},
    {"mlp.c_fc", {HD_TARGET_UP}, 1, LINEAR},
    {"mlp.c_proj", {HD_TARGET_DOWN}, 1, LINEAR}};
static const struct module llama_modules[] = {ATTENTION, MLP};
/* Routers and shared experts have no adapters. Dense blocks beside experts, which Mixtral does not
 * have, use llama's names. */
static const struct module mixtral_modules[] = {
    ATTENTION,
    {"block_sparse_moe.experts.w1", {HD_TARGET_GATE}, 1, EACH_EXPERT},
    {"block_sparse_moe.experts.w3", {HD_TARGET_UP}, 1, EACH_EXPERT},
    {"block_sparse_moe.experts.w2", {HD_TARGET_DOWN}, 1, EACH_EXPERT},
    MLP};
static const struct module qwen_moe_modules[] = {
    ATTENTION,
    {"mlp.experts.gate_proj", {HD_TARGET_GATE}, 1, EACH_EXPERT},
    {"mlp.experts.up_proj", {HD_TARGET_UP}, 1, EACH_EXPERT},
    {"mlp.experts.down_proj", {HD_TARGET_DOWN}, 1, EACH_EXPERT},
    MLP};
#define STACKS(experts)                                                  \
    {experts ".gate_up_proj", {HD_TARGET_GATE, HD_TARGET_UP}, 2, STACK}, \
    {                                                                    \
        experts ".down_proj", {HD_TARGET_DOWN}, 1, STACK                 \
    }
static const struct module granite_moe_modules[] = {ATTENTION, MLP,
                                                    STACKS("block_sparse_moe.experts")};
static const struct module gpt_oss_modules[] = {ATTENTION, STACKS("mlp.experts")};
static const struct module phi3_modules[] = {
    {"self_attn.qkv_proj", {HD_TARGET_Q, HD_TARGET_K, HD_TARGET_V}, 3, LINEAR},
    {"self_attn.o_proj", {HD_TARGET_OUT}, 1, LINEAR},
    FUSED_MLP};
static const struct module glm_modules[] = {ATTENTION, FUSED_MLP};
static const struct module deepseek_modules[] = {
    {"self_attn.q_proj", {HD_TARGET_Q}, 1, LINEAR},
    {"self_attn.q_a_proj", {HD_TARGET_Q_A}, 1, LINEAR},
    {"self_attn.q_b_proj", {HD_TARGET_Q_B}, 1, LINEAR},
    {"self_attn.kv_a_proj_with_mqa", {HD_TARGET_KV_A}, 1, LINEAR},
    {"self_attn.kv_b_proj", {HD_TARGET_KV_B}, 1, LINEAR},
    {"self_attn.o_proj", {HD_TARGET_OUT}, 1, LINEAR},
    {"mlp.experts.gate_proj", {HD_TARGET_GATE}, 1, EACH_EXPERT},
    {"mlp.experts.up_proj", {HD_TARGET_UP}, 1, EACH_EXPERT},
    {"mlp.experts.down_proj", {HD_TARGET_DOWN}, 1, EACH_EXPERT},
    MLP};
/* Without q_proj, whose rows are those of two of our parameters, q and the gate of the output, and
 * without the projections of gated delta layers. */
#define WITHOUT_Q                                       \
    {"self_attn.k_proj", {HD_TARGET_K}, 1, LINEAR},     \
        {"self_attn.v_proj", {HD_TARGET_V}, 1, LINEAR}, \
    {                                                   \
        "self_attn.o_proj", {HD_TARGET_OUT}, 1, LINEAR  \
    }
static const struct module qwen_next_modules[] = {
    WITHOUT_Q,
    {"mlp.experts.gate_proj", {HD_TARGET_GATE}, 1, EACH_EXPERT},
    {"mlp.experts.up_proj", {HD_TARGET_UP}, 1, EACH_EXPERT},
    {"mlp.experts.down_proj", {HD_TARGET_DOWN}, 1, EACH_EXPERT},
    MLP};
/* without the projections of short convolutions */
static const struct module lfm2_modules[] = {{"self_attn.q_proj", {HD_TARGET_Q}, 1, LINEAR},
                                             {"self_attn.k_proj", {HD_TARGET_K}, 1, LINEAR},
                                             {"self_attn.v_proj", {HD_TARGET_V}, 1, LINEAR},
                                             {"self_attn.out_proj", {HD_TARGET_OUT}, 1, LINEAR},
                                             {"feed_forward.w1", {HD_TARGET_GATE}, 1, LINEAR},
                                             {"feed_forward.w3", {HD_TARGET_UP}, 1, LINEAR},
                                             {"feed_forward.w2", {HD_TARGET_DOWN}, 1, LINEAR}};
static const struct module qwen3_5_modules[] = {WITHOUT_Q, MLP, STACKS("mlp.experts")};
static const struct module starcoder2_modules[] = {ATTENTION,
                                                   {"mlp.c_fc", {HD_TARGET_UP}, 1, LINEAR},
                                                   {"mlp.c_proj", {HD_TARGET_DOWN}, 1, LINEAR}};

static const struct module granite_hybrid_modules[] = {
    ATTENTION,
    {"shared_mlp.input_linear", {HD_TARGET_GATE, HD_TARGET_UP}, 2, LINEAR},
    {"shared_mlp.output_linear", {HD_TARGET_DOWN}, 1, LINEAR}};
static const struct module gpt_neox_modules[] = {
    {"attention.query_key_value", {HD_TARGET_Q, HD_TARGET_K, HD_TARGET_V}, 3, LINEAR},
    {"attention.dense", {HD_TARGET_OUT}, 1, LINEAR},
    {"mlp.dense_h_to_4h", {HD_TARGET_UP}, 1, LINEAR},
    {"mlp.dense_4h_to_h", {HD_TARGET_DOWN}, 1, LINEAR}};

static const struct module phi_modules[] = {
    {"self_attn.q_proj", {HD_TARGET_Q}, 1, LINEAR}, {"self_attn.k_proj", {HD_TARGET_K}, 1, LINEAR},
    {"self_attn.v_proj", {HD_TARGET_V}, 1, LINEAR}, {"self_attn.dense", {HD_TARGET_OUT}, 1, LINEAR},
    {"mlp.fc1", {HD_TARGET_UP}, 1, LINEAR},         {"mlp.fc2", {HD_TARGET_DOWN}, 1, LINEAR}};
static const struct module opt_modules[] = {{"self_attn.q_proj", {HD_TARGET_Q}, 1, LINEAR},
                                            {"self_attn.k_proj", {HD_TARGET_K}, 1, LINEAR},
                                            {"self_attn.v_proj", {HD_TARGET_V}, 1, LINEAR},
                                            {"self_attn.out_proj", {HD_TARGET_OUT}, 1, LINEAR},
                                            {"fc1", {HD_TARGET_UP}, 1, LINEAR},
                                            {"fc2", {HD_TARGET_DOWN}, 1, LINEAR}};
static const struct module mpt_modules[] = {
    {"attn.Wqkv", {HD_TARGET_Q, HD_TARGET_K, HD_TARGET_V}, 3, LINEAR},
    {"attn.out_proj", {HD_TARGET_OUT}, 1, LINEAR},
    {"ffn.up_proj", {HD_TARGET_UP}, 1, LINEAR},
    {"ffn.down_proj", {HD_TARGET_DOWN}, 1, LINEAR}};
static const struct module falcon_modules[] = {
    {"self_attention.query_key_value", {HD_TARGET_Q, HD_TARGET_K, HD_TARGET_V}, 3, LINEAR},
    {"self_attention.dense", {HD_TARGET_OUT}, 1, LINEAR},
    {"mlp.dense_h_to_4h", {HD_TARGET_UP}, 1, LINEAR},
    {"mlp.dense_4h_to_h", {HD_TARGET_DOWN}, 1, LINEAR}};
static const struct module llama4_modules[] = {
    ATTENTION,
    {"feed_forward.gate_proj", {HD_TARGET_GATE}, 1, LINEAR},
    {"feed_forward.up_proj", {HD_TARGET_UP}, 1, LINEAR},
    {"feed_forward.down_proj", {HD_TARGET_DOWN}, 1, LINEAR},
    STACKS("feed_forward.experts")};

/* Modules by table of names (job/family.h). */
struct modules {
    const struct module *list;
    size_t count;
};
#define MODULES(list)                       \
    {                                       \
        list, sizeof(list) / sizeof *(list) \
    }
static const struct modules modules[HD_NAMES_COUNT] = {
    [HD_NAMES_GPT2] = MODULES(gpt2_modules),
    [HD_NAMES_LLAMA] = MODULES(llama_modules),
    [HD_NAMES_MIXTRAL] = MODULES(mixtral_modules),
    [HD_NAMES_QWEN_MOE] = MODULES(qwen_moe_modules),
    [HD_NAMES_GEMMA] = MODULES(llama_modules),
    [HD_NAMES_OLMO2] = MODULES(llama_modules),
    [HD_NAMES_PHI3] = MODULES(phi3_modules),
    [HD_NAMES_GLM] = MODULES(glm_modules),
    [HD_NAMES_GLM4] = MODULES(glm_modules),
    [HD_NAMES_GRANITE_MOE] = MODULES(granite_moe_modules),
    [HD_NAMES_GRANITE_MOE_SWA] = MODULES(granite_moe_modules),
    [HD_NAMES_QWEN_NEXT] = MODULES(qwen_next_modules),
    [HD_NAMES_QWEN3_5] = MODULES(qwen3_5_modules),
    [HD_NAMES_LFM2] = MODULES(lfm2_modules),
    [HD_NAMES_STARCODER2] = MODULES(starcoder2_modules),
    [HD_NAMES_DEEPSEEK] = MODULES(deepseek_modules),
    [HD_NAMES_GLM4_MOE] = MODULES(qwen_moe_modules),
    [HD_NAMES_MINIMAX_M2] = MODULES(mixtral_modules),
    [HD_NAMES_ERNIE4_5_MOE] = MODULES(qwen_moe_modules),
    [HD_NAMES_GRANITE_HYBRID] = MODULES(granite_hybrid_modules),
    [HD_NAMES_GPT_NEOX] = MODULES(gpt_neox_modules),
    [HD_NAMES_PHI] = MODULES(phi_modules),
    [HD_NAMES_OPT] = MODULES(opt_modules),
    [HD_NAMES_BLOOM] = MODULES(falcon_modules),
    [HD_NAMES_MPT] = MODULES(mpt_modules),
    [HD_NAMES_STABLELM] = MODULES(llama_modules),
    [HD_NAMES_HUNYUAN] = MODULES(llama_modules),
    [HD_NAMES_HYPERCLOVAX] = MODULES(llama_modules),
    [HD_NAMES_FALCON] = MODULES(falcon_modules),
    [HD_NAMES_LLAMA4] = MODULES(llama4_modules),
    [HD_NAMES_GPT_OSS] = MODULES(gpt_oss_modules),
};

static struct modules modules_of(const struct hd_job *job)
{
    const struct hd_family *family = hd_family_named(job->family);

    return family ? modules[family->names] : (struct modules){NULL, 0};
}

/* Returns whether some block of the job's model has the module. */
static bool has_module(const struct hd_job *job, const struct module *m)
{
    const struct hd_family *family = hd_family_named(job->family);
    const int64_t dense =
        job->experts ? hd_layers_left(job->experts_layers, job->layers) : job->layers;

    if (m->kind != LINEAR)
        return dense < job->layers;
    if (job->mla_kv_rank && m->target[0] == HD_TARGET_Q)
        return job->mla_q_rank == 0;
    if (m->target[0] == HD_TARGET_Q_A || m->target[0] == HD_TARGET_Q_B)
        return job->mla_q_rank > 0;
    if (m->target[0] == HD_TARGET_GATE && !family->gated)
        return false;
    return dense > 0 || m->target[0] < HD_TARGET_GATE;
}

/* Returns whether the word names the module as PEFT matches names: it is the module's whole name,
 * or its part behind a point. A stack's part has a point itself, because a linear module beside the
 * experts may have the name of its last part. */
static bool matches(const struct module *m, const char *word)
{
    const size_t all = strlen(m->name), end = strlen(word);

    if (m->kind == STACK && !strchr(word, '.'))
        return false;
    return end <= all && strcmp(m->name + all - end, word) == 0 &&
           (end == all || m->name[all - end - 1] == '.');
}

static enum hd_status refuse(const struct hd_job *job, const char *word)
{
    const struct modules m = modules_of(job);
    struct hd_text names = {0};
    enum hd_status st;

    for (size_t i = 0; i < m.count; i++)
        if (has_module(job, &m.list[i]))
            hd_text_add(&names, "%s%s", names.len_bytes ? ", " : "", m.list[i].name);
    st = hd_err(HD_INVALID, "train.adapter.targets: %s has no module '%s'; its modules are %s",
                job->family, word, names.data ? names.data : "");
    hd_text_free(&names);
    return st;
}

static enum hd_status take(const struct hd_job *job, const char *word, struct hd_adapter *adapter)
{
    const struct modules m = modules_of(job);
    const bool all = strcmp(word, "all-linear") == 0;
    bool found = false;

    for (size_t i = 0; i < m.count; i++) {
        const struct module *one = &m.list[i];
        bool *target = one->kind != LINEAR ? adapter->expert_target : adapter->target;

        if (!has_module(job, one) || (all ? one->kind == STACK : !matches(one, word)))
            continue;
        found = true;
        for (int k = 0; k < one->count; k++)
            target[one->target[k]] = true;
        if (one->kind != LINEAR)
            adapter->expert_one_a |= one->count > 1;
        else
            adapter->one_a[one->target[0]] = one->count > 1;
    }
    return found ? HD_OK : refuse(job, word);
}

static enum hd_status lora_from_job(const struct hd_job *job, struct hd_adapter *ret_adapter)
{
    struct hd_adapter a = {.kind = HD_ADAPTER_LORA,
                           .rank = job->adapter_rank,
                           .scale = hd_job_adapter_scale(job),
                           .b_lr = job->adapter_b_lr,
                           .dropout = job->adapter_dropout,
                           .dora = job->adapter_dora};
    enum hd_status st = HD_OK;
    char word[WORD_MAX];

    for (const char *at = job->adapter_targets; !st && *at;) {
        const size_t length = strcspn(at, ",");

        (void)snprintf(word, sizeof word, "%.*s", (int)length, at);
        st = take(job, word, &a);
        at += length + (at[length] == ',');
    }
    if (!st && !*job->adapter_targets)
        st = hd_err(HD_INVALID, "train.adapter.targets: is empty; name modules, or use all-linear");
    if (!st && (a.dora || job->adapter_init == HD_JOB_ADAPTER_INIT_PISSA) &&
        (a.expert_target[HD_TARGET_GATE] || a.expert_target[HD_TARGET_UP] ||
         a.expert_target[HD_TARGET_DOWN]))
        st = hd_err(HD_UNSUPPORTED,
                    "train.adapter.%s; name the attention's modules in train.adapter.targets: "
                    "[q_proj, k_proj, v_proj, o_proj], or remove the key",
                    a.dora ? "dora: the adapters of experts have no magnitudes"
                           : "init: pissa is not there for the adapters of experts");
    if (!st)
        *ret_adapter = a;
    return st;
}

enum hd_status hd_adapter_from_job(const struct hd_job *job, struct hd_adapter *ret_adapter)
{
    *ret_adapter = (struct hd_adapter){0};
    if (job->adapter == HD_JOB_ADAPTER_LORA)
        return lora_from_job(job, ret_adapter);
    if (job->adapter == HD_JOB_ADAPTER_BOTTLENECK)
        *ret_adapter = (struct hd_adapter){.kind = HD_ADAPTER_BOTTLENECK,
                                           .dropout = job->adapter_dropout,
                                           .width = job->adapter_width};
    if (job->adapter == HD_JOB_ADAPTER_PREFIX && job->positions == HD_JOB_POSITIONS_ALIBI)
        return hd_err(HD_UNSUPPORTED,
                      "train.adapter.type: a prefix has no position, and model.positions: alibi "
                      "needs the distance to it; use lora or bottleneck");
    if (job->adapter == HD_JOB_ADAPTER_PREFIX && job->mla_kv_rank)
        return hd_err(HD_UNSUPPORTED,
                      "train.adapter.type: a prefix has keys and values of heads, and %s computes "
                      "them from latents; use lora or bottleneck",
                      job->family);
    if (job->adapter == HD_JOB_ADAPTER_PREFIX && hd_job_keeps_state(job))
        return hd_err(HD_UNSUPPORTED,
                      "train.adapter.type: a prefix has keys and values, and blocks with a %s have "
                      "none; use lora or bottleneck",
                      hd_job_has_delta(job) ? "gated delta layer (model.delta.layers)"
                                            : "short convolution (model.conv.layers)");
    if (job->adapter == HD_JOB_ADAPTER_PREFIX)
        *ret_adapter =
            (struct hd_adapter){.kind = HD_ADAPTER_PREFIX, .tokens = job->adapter_tokens};
    return HD_OK;
}

const char *hd_target_name(enum hd_target target, bool experts)
{
    static const char *const names[] = {"attention.q",    "attention.k",    "attention.v",
                                        "attention.out",  "attention.q_a",  "attention.q_b",
                                        "attention.kv_a", "attention.kv_b", "mlp.gate",
                                        "mlp.up",         "mlp.down"};
    static const char *const of_experts[] = {"moe.gate", "moe.up", "moe.down"};

    return experts && target >= HD_TARGET_GATE ? of_experts[target - HD_TARGET_GATE]
                                               : names[target];
}

enum hd_status hd_adapter_only(const struct hd_job *job, char ret_only[HD_JOB_PATH_MAX])
{
    const char *own = job->adapter == HD_JOB_ADAPTER_BOTTLENECK ? "*.adapter[12].*"
                      : job->adapter == HD_JOB_ADAPTER_PREFIX   ? "*.prefix_[kv]"
                                                                : "*.lora_[abm]";
    int length;

    if (!job->adapter || job->adapter == HD_JOB_ADAPTER_NONE) {
        (void)snprintf(ret_only, HD_JOB_PATH_MAX, "%s", job->only);
        return HD_OK;
    }
    if (*job->only && strcmp(job->only, "all") != 0)
        return hd_err(HD_INVALID,
                      "train.trainable: with train.adapter the adapter trains; name other "
                      "parameters that train in train.adapter.trainable, or remove one of "
                      "the two keys");
    length = snprintf(ret_only, HD_JOB_PATH_MAX, "%s%s%s", own, *job->adapter_also ? "," : "",
                      job->adapter_also);
    return length < HD_JOB_PATH_MAX
               ? HD_OK
               : hd_err(HD_INVALID, "train.adapter.trainable: is too long; use patterns");
}
