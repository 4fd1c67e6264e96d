#include "model/adapter.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

enum { WORD_MAX = 64 };

/* A module of a family, by its Hugging Face name, and the targets that it contains. */
struct module {
    const char *name;
    int target[3], count;
};

static const struct module gpt2_modules[] = {
    {"attn.c_attn", {HD_TARGET_Q, HD_TARGET_K, HD_TARGET_V}, 3},
    {"attn.c_proj", {HD_TARGET_OUT}, 1},
    {"mlp.c_fc", {HD_TARGET_UP}, 1},
    {"mlp.c_proj", {HD_TARGET_DOWN}, 1}};

static const struct module llama_modules[] = {
    {"self_attn.q_proj", {HD_TARGET_Q}, 1}, {"self_attn.k_proj", {HD_TARGET_K}, 1},
    {"self_attn.v_proj", {HD_TARGET_V}, 1}, {"self_attn.o_proj", {HD_TARGET_OUT}, 1},
    {"mlp.gate_proj", {HD_TARGET_GATE}, 1}, {"mlp.up_proj", {HD_TARGET_UP}, 1},
    {"mlp.down_proj", {HD_TARGET_DOWN}, 1}};

/* Modules of Mixtral; each expert has a module of each of the last three names. The router has no
 * adapter. */
static const struct module expert_modules[] = {
    {"self_attn.q_proj", {HD_TARGET_Q}, 1},
    {"self_attn.k_proj", {HD_TARGET_K}, 1},
    {"self_attn.v_proj", {HD_TARGET_V}, 1},
    {"self_attn.o_proj", {HD_TARGET_OUT}, 1},
    {"block_sparse_moe.experts.w1", {HD_TARGET_GATE}, 1},
    {"block_sparse_moe.experts.w3", {HD_TARGET_UP}, 1},
    {"block_sparse_moe.experts.w2", {HD_TARGET_DOWN}, 1}};

struct modules {
    const struct module *list;
    int count;
};

static struct modules modules_of(const struct hd_job *job)
{
    if (strcmp(job->family, "gpt2") == 0)
        return (struct modules){gpt2_modules, sizeof gpt2_modules / sizeof *gpt2_modules};
    if (job->experts)
        return (struct modules){expert_modules, sizeof expert_modules / sizeof *expert_modules};
    return (struct modules){llama_modules, sizeof llama_modules / sizeof *llama_modules};
}

/* Returns whether the word names the module as PEFT matches names: it is the module's whole name,
 * or its part behind a point. */
static bool matches(const struct module *m, const char *word)
{
    const size_t all = strlen(m->name), end = strlen(word);

    return end <= all && strcmp(m->name + all - end, word) == 0 &&
           (end == all || m->name[all - end - 1] == '.');
}

static enum hd_status refuse(const struct hd_job *job, const char *word)
{
    const struct modules m = modules_of(job);
    struct hd_text names = {0};
    enum hd_status st;

    for (int i = 0; i < m.count; i++)
        hd_text_add(&names, "%s%s", i ? ", " : "", m.list[i].name);
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

    for (int i = 0; i < m.count; i++) {
        if (!all && !matches(&m.list[i], word))
            continue;
        found = true;
        for (int k = 0; k < m.list[i].count; k++)
            adapter->target[m.list[i].target[k]] = true;
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
                           .one_a = strcmp(job->family, "gpt2") == 0,
                           .dora = job->adapter_dora,
                           .experts = job->experts > 0};
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
    if (!st && a.experts && a.dora &&
        (a.target[HD_TARGET_GATE] || a.target[HD_TARGET_UP] || a.target[HD_TARGET_DOWN]))
        st = hd_err(HD_UNSUPPORTED,
                    "train.adapter.dora: the adapters of experts have no magnitudes; name the "
                    "attention's modules in train.adapter.targets: [q_proj, k_proj, v_proj, "
                    "o_proj], or remove dora");
    if (!st)
        *ret_adapter = a;
    return st;
}

static bool is(const struct hd_job *job, const char *type)
{
    return strcmp(job->adapter, type) == 0;
}

enum hd_status hd_adapter_from_job(const struct hd_job *job, struct hd_adapter *ret_adapter)
{
    *ret_adapter = (struct hd_adapter){0};
    if (is(job, "lora"))
        return lora_from_job(job, ret_adapter);
    if (is(job, "bottleneck"))
        *ret_adapter = (struct hd_adapter){.kind = HD_ADAPTER_BOTTLENECK,
                                           .dropout = job->adapter_dropout,
                                           .width = job->adapter_width};
    if (is(job, "prefix") && strcmp(job->positions, "alibi") == 0)
        return hd_err(HD_UNSUPPORTED,
                      "train.adapter.type: a prefix has no position, and model.positions: alibi "
                      "needs the distance to it; use lora or bottleneck");
    if (is(job, "prefix"))
        *ret_adapter =
            (struct hd_adapter){.kind = HD_ADAPTER_PREFIX, .tokens = job->adapter_tokens};
    return HD_OK;
}

const char *hd_target_name(enum hd_target target, bool experts)
{
    static const char *const names[] = {"attention.q",   "attention.k", "attention.v",
                                        "attention.out", "mlp.gate",    "mlp.up",
                                        "mlp.down"};
    static const char *const of_experts[] = {"moe.gate", "moe.up", "moe.down"};

    return experts && target >= HD_TARGET_GATE ? of_experts[target - HD_TARGET_GATE]
                                               : names[target];
}

enum hd_status hd_adapter_only(const struct hd_job *job, char ret_only[HD_JOB_PATH_MAX])
{
    const char *own = is(job, "bottleneck") ? "*.adapter[12].*"
                      : is(job, "prefix")   ? "*.prefix_[kv]"
                                            : "*.lora_[abm]";
    int length;

    if (!*job->adapter || is(job, "none")) {
        (void)snprintf(ret_only, HD_JOB_PATH_MAX, "%s", job->only);
        return HD_OK;
    }
    if (*job->only && strcmp(job->only, "all") != 0)
        return hd_err(HD_INVALID, "train.only: with train.adapter the adapter trains; name other "
                                  "parameters that train in train.adapter.also, or remove one of "
                                  "the two keys");
    length = snprintf(ret_only, HD_JOB_PATH_MAX, "%s%s%s", own, *job->adapter_also ? "," : "",
                      job->adapter_also);
    return length < HD_JOB_PATH_MAX
               ? HD_OK
               : hd_err(HD_INVALID, "train.adapter.also: is too long; use patterns");
}
