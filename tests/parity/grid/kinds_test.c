/* Models with other switches than llama's train alike on one rank and on several: blocks of several
 * kinds in one model, and families.
 */
#include "tests/program/test.h"
#include "trial.h"

static const char *const kinds[] = {
    "mixtral_kinds: tp=2 sequence=on",
    "mixtral_kinds: cp=2",
    "mixtral_kinds: dp=2 ep=2 zero=3",
    "mixtral_kinds: pp=2",
    "mixtral_kinds: pp=2 recompute=full:2",
    "mixtral_kinds: recompute=selective",
    "mixtral_kinds: pp=2 schedule=zb-v dp=2 ep=2 zero=1",
    "mixtral_kinds_tuned: tp=2 adapter=lora",
    "mixtral_kinds_tuned: dp=2 ep=2 pp=2 adapter=lora weights=nf4",
};

static const char *const families[] = {
    "gemma2: tp=2 sequence=on",
    "gemma2: cp=2 recompute=full",
    "gemma2: pp=2",
    "gemma2_tuned: tp=2 adapter=lora",
    "olmo3: tp=2 sequence=on",
    "olmo3: tp=4",
    "olmo3: cp=2",
    "glm4: tp=2 cp=2",
    "qwen2_moe: tp=2",
    "qwen2_moe: dp=2 ep=2 zero=3",
    "granitemoe: tp=2 dp=2 ep=2",
    "granitemoe: cp=2 recompute=selective",
    "qwen3_next: tp=2 sequence=on",
    "qwen3_next: tp=2 dp=2 ep=2 zero=3",
    "qwen3_next: tp=2 cp=2",
    "qwen3_next: cp=4 zero=3 recompute=selective",
    "qwen3_next: cp=2 pp=2 schedule=zb-h1 recompute=full",
    "lfm2: tp=2 sequence=on",
    "lfm2: tp=4 dp=2 zero=3",
    "lfm2: tp=2 cp=2",
    "lfm2: cp=4 zero=3 recompute=selective",
    "lfm2: cp=2 pp=2 schedule=zb-h1 recompute=full",
    "lfm2_tuned: tp=2 sequence=on adapter=lora weights=int8",
    "deepseek_v2: tp=2 sequence=on",
    "deepseek_v2: tp=2 dp=2 ep=2 zero=3",
    "deepseek_v2: cp=2 recompute=selective",
    "deepseek_v2: pp=2 recompute=full",
    "deepseek_v2_tuned: tp=2 adapter=lora",
    "deepseek_v2_tuned: tp=2 sequence=on adapter=dora weights=nf4",
    "glm4_moe: tp=2 sequence=on",
    "glm4_moe: dp=2 ep=2 zero=3",
    "glm4_moe: cp=2 recompute=full",
    "glm4_moe: pp=2 dp=2",
    "gpt_oss: tp=2 sequence=on",
    "gpt_oss: tp=4 recompute=full",
    "gpt_oss: cp=2 dp=2 ep=2 zero=3",
    "gpt_oss: pp=2 tp=2",
    "gpt_oss_tuned: tp=2 adapter=lora",
    "llama4: tp=2 sequence=on",
    "llama4: cp=2 dp=2 ep=2 zero=3",
    "llama4: pp=2 recompute=full",
    "llama4: tp=2 recompute=selective",
};

/* Layers for further tokens, with the embedding on two stages, or in two chunks of one rank. */
static const char *const further[] = {
    "glm4_moe_further: tp=2 sequence=on",
    "glm4_moe_further: cp=2 dp=2 ep=2 zero=3",
    "glm4_moe_further: pp=2 schedule=zb-v dp=2 ep=2 zero=1",
    "qwen2_further: pp=2 tp=2 recompute=full",
    "qwen2_further: pp=2 schedule=zb-h1 cp=2 recompute=selective",
};

/* Attention and feed-forward layer that read the same rows, and factors of queries. */
static const char *const branches[] = {
    "gpt_neox: tp=2 sequence=on",
    "gpt_neox: tp=4",
    "gpt_neox: pp=2 recompute=full",
    "gpt_neox_tuned: tp=2 adapter=lora",
    "cohere2: tp=2 sequence=on",
    "cohere2: cp=2 recompute=selective",
    "cohere: tp=2 sequence=on",
    "cohere: tp=4",
    "ministral3: tp=2 cp=2",
    "phi: tp=2 sequence=on",
    "phi: tp=4",
    "phi: pp=2 recompute=full",
    "bloom: tp=2 sequence=on",
    "bloom: cp=2 pp=2",
    "opt: tp=2 cp=2",
    "olmo: tp=2 recompute=selective",
};
enum {
    KINDS = sizeof kinds / sizeof kinds[0],
    FAMILIES = sizeof families / sizeof families[0],
    BRANCHES = sizeof branches / sizeof branches[0],
    FURTHER = sizeof further / sizeof further[0],
    NAMES_MAX = KINDS + FAMILIES + BRANCHES
};

static void try_all(const char *const *names, int name_count)
{
    struct grid_bench benches[GRID_BENCHES_MAX] = {0};
    static struct grid_pick picks[NAMES_MAX];
    const int count = grid_pick(names, name_count, benches, picks);

    assert_int_equal(count, name_count);
    for (int i = 0; i < count; i++) {
        double worst;

        if (grid_try(picks[i].bench, &picks[i].layout, &worst))
            fail_msg("%s: %s", picks[i].text, hd_err_message());
    }
    grid_benches_close(benches);
}

static void several_kinds_of_blocks_train_like_one_rank(void **state)
{
    try_all(kinds, KINDS);
}

static void families_train_like_one_rank(void **state)
{
    try_all(families, FAMILIES);
}

static void further_tokens_train_like_one_rank(void **state)
{
    try_all(further, FURTHER);
}

static void parallel_branches_train_like_one_rank(void **state)
{
    try_all(branches, BRANCHES);
}

RUN_CASES()
