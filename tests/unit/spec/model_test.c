/* Job files: what is refused of the keys of a model, and in which words. */
#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/family.h"
#include "tests/program/tells.h"

static const struct mistake mistakes[] = {
    /* features of a model */
    {6, "  heads: 8\n  head_width: 12",
     "job.yaml:7: model.head_width: 12 is not possible; use a multiple of 8 up to 256"},
    {6, "  heads: 8\n  window_from: 1",
     "job.yaml:7: model.window_from: 1 names no block with a window; give model.window, and a "
     "block "
     "below model.layers = 2"},
    {6, "  heads: 8\n  rope_scaling: {type: llama3, factor: 8}",
     "job.yaml:7: model.rope_scaling.original_context: is missing; give the context of "
     "pretraining"},
    {6,
     "  heads: 8\n  rope_theta: 1\n  rope_scaling: {type: yarn, factor: 4, original_context: 16}",
     "job.yaml:7: model.rope_theta: yarn divides by its logarithm; give more than 1, "
     "such as 10000"},
    {6,
     "  heads: 8\n  rope_scaling: {type: yarn, factor: 4, original_context: 16, beta_fast: 1,\n"
     "    beta_slow: 1.5}",
     "job.yaml:8: model.rope_scaling.beta_slow: 1.5 is above beta_fast = 1; lower it"},
    /* 64 / 8 = 8 channels rotate, which are 4 pairs */
    {6,
     "  heads: 8\n  rope_scaling: {type: longrope, original_context: 16, short_factor: 1 1 1 1,\n"
     "    long_factor: 1 2 3}",
     "job.yaml:8: model.rope_scaling.long_factor: has 3 factors; write 4, one for each pair of "
     "rotated channels"},
    {6,
     "  heads: 8\n  rope_scaling: {type: longrope, original_context: 16, long_factor: 1 1 1 1,\n"
     "    short_factor: 1 2 -3 4}",
     "job.yaml:8: model.rope_scaling.short_factor: '-3' is not possible as factor 3; write numbers "
     "from 1e-06 to 1e+06 with blanks between them, one for each pair of rotated channels"},
    {6, "  heads: 8\n  rope_scaling: {type: longrope, original_context: 16, short_factor: 1 1 1 1}",
     "job.yaml:7: model.rope_scaling.long_factor: has 0 factors; write 4, one for each pair of "
     "rotated channels"},
    {6,
     "  heads: 8\n  rope_scaling: {type: longrope, original_context: 1, short_factor: 1 1 1 1,\n"
     "    long_factor: 1 1 1 1}",
     "job.yaml:7: model.rope_scaling.original_context: longrope divides by its logarithm; give "
     "more "
     "than 1, such as 4096"},
    {6, "  heads: 8\n  rope_scaling: {type: linear, factor: 2, short_factor: 1 1 1 1}",
     "job.yaml:7: model.rope_scaling.short_factor: only the type longrope has it; remove it"},
    {6, "  heads: 8\n  rope_scaling: {type: cubic}",
     "job.yaml:7: model.rope_scaling.type: 'cubic' is not one of none, linear, llama3, yarn, "
     "longrope; use one of them"},
    {6, "  heads: 8\n  positions: learned",
     "job.yaml:7: model.positions: llama has no learned positions; use rope or alibi"},
    {3, "  family: gpt2\n  positions: rope",
     "job.yaml:4: model.positions: gpt2 has no rotary positions; use learned or alibi"},
    {6, "  heads: 8\n  positions: alibi\n  rope_scaling: {factor: 2, type: linear}",
     "job.yaml:8: model.rope_scaling: alibi has no rotary positions; remove it, or "
     "model.positions: alibi"},
    {6, "  heads: 8\n  positions: sideways",
     "job.yaml:7: model.positions: 'sideways' is not one of rope, learned, alibi; use one of them"},
    {14, "  lr: 1e-3\n  dropout: 1",
     "job.yaml:15: train.dropout: 1 is not possible; give a number from 0 to 0.99"},
    {14, "  lr: 1e-3\n  dropout: {residual: -0.5}",
     "job.yaml:15: train.dropout.residual: -0.5 is not possible; give a number from 0 to 0.99"},
    /* latents */
    {3, "  family: deepseek_v3\n  qkv_clip: 8",
     "job.yaml:4: model.qkv_clip: latent attention has no bounds; remove it"},
    {3, "  family: llama\n  mla: {q_rank: 8}",
     "job.yaml:4: model.mla.q_rank: llama has no latent attention; remove the line, or use a "
     "family "
     "with it, such as deepseek_v3"},
    {3, "  family: deepseek_v3\n  mla: {rope_width: 12}",
     "job.yaml:4: model.mla.rope_width: 12 is not possible; use a multiple of 8"},
    {3, "  family: deepseek_v3\n  mla: {value_width: 256}",
     "job.yaml:4: model.mla.value_width: 256 is more than nope_width + rope_width = 192, which the "
     "attention kernels do not have; use at most that"},
    {3, "  family: deepseek_v2\n  head_width: 64",
     "job.yaml:4: model.head_width: 64; with model.mla it is nope_width + rope_width = 192, at "
     "most "
     "256; remove the line, or change these"},
    /* short convolutions */
    {3, "  family: llama\n  conv: {width: 4}",
     "job.yaml:4: model.conv: llama has no short convolutions; remove its keys, or use a family "
     "with "
     "them, such as lfm2"},
    {3, "  family: lfm2\n  conv: {width: 1}",
     "job.yaml:4: model.conv.width: 1 tap is no convolution; use 2 to 8"},
    /* experts */
    {3, "  family: llama\n  experts: 8",
     "job.yaml:4: model.experts: llama has no experts; remove the line, or use a family with "
     "experts, such as mixtral or qwen3_moe"},
    {3, "  family: llama\n  router:\n    renormalize: true",
     "job.yaml:5: model.router.renormalize: llama has no experts; remove the line, or use a family "
     "with experts, such as mixtral or qwen3_moe"},
    {3, "  family: llama\n  window_layers: 5:1",
     "job.yaml:4: model.window_layers: there is no window; give model.window, or remove the line"},
    {3, "  family: llama\n  rope_local_theta: 500",
     "job.yaml:4: model.rope_local_theta: there is no window, so no block has these angles; give "
     "model.window, or remove the line"},
    {3, "  family: llama\n  window: 5\n  rope_local_theta: 0.5",
     "job.yaml:5: model.rope_local_theta: 0.5 is not possible; give more than 1, such as 10000, or "
     "0 for the angles of the other blocks"},
    {3, "  family: llama\n  positions: alibi\n  rope_layers: 3:1",
     "job.yaml:5: model.rope_layers: alibi positions are not rotary; remove the line"},
    {3, "  family: gpt2\n  rope_fraction: 0.5",
     "job.yaml:4: model.rope_fraction: learned positions are not rotary; remove the line"},
    {3, "  family: llama\n  parallel_residual: one_norm",
     "job.yaml:4: model.parallel_residual: blocks of llama have no parallel branches; write none, "
     "or use a family such as gpt_neox"},
    {3, "  family: gpt_neox\n  parallel_residual: both",
     "job.yaml:4: model.parallel_residual: both is not known; use none, one_norm or two_norms"},
    {3, "  family: llama\n  query_factor: 0.1",
     "job.yaml:4: model.query_factor: grows by model.query_factor_step or "
     "model.rope_scaling.original_context, which are missing; give one, such as 16384"},
    {3, "  family: llama\n  query_factor_step: 8192",
     "job.yaml:4: model.query_factor_step: there is no factor; give model.query_factor, such as "
     "0.1, or remove the line"},
    {3, "  family: llama\n  window: 5\n  window_layers: none",
     "job.yaml:5: model.window_layers: none picks none of the 2 blocks for the window; give all or "
     "counts such as 5:1, or remove the window"},
    {3, "  family: llama\n  window: 5\n  attention_chunk: 7",
     "job.yaml:5: model.attention_chunk: blocks have a window or chunks, and model.window = 5 is "
     "given; remove one of the two lines"},
    {3, "  family: llama\n  positions: alibi\n  query_factor: 0.1",
     "job.yaml:5: model.query_factor: only queries with rotary positions and without latents have "
     "one; remove the line"},
    {3, "  family: llama\n  window: 5\n  window_layers: 5",
     "job.yaml:5: model.window_layers: '5' is no rule for layers; write all, none, or counts such "
     "as 5:1 (five layers with, one without, repeated), at most 32 counts up to 1024"},
    {3, "  family: mixtral\n  experts_layers: none",
     "job.yaml:4: model.experts_layers: none picks none of the 2 blocks; use a family without "
     "experts"},
    {15, "parallel: {expert_rows: 2}",
     "job.yaml:15: parallel.expert_rows: llama has no experts; remove the line, or use a family "
     "with experts, such as mixtral or qwen3_moe"},
    {15, "parallel: {expert_rows: 0.5}",
     "job.yaml:15: parallel.expert_rows: 0.5 is not possible; give auto or a number from 1 to "
     "1000000"},
    {15, "parallel: {ep: 2}",
     "job.yaml:15: parallel.ep: 2 ranks would share the experts of a block, and the model has "
     "none; write auto or 1"},
    {3, "  family: mixtral\n  experts: 3\n  experts_per_token: 4",
     "job.yaml:5: model.experts_per_token: 4 is more than model.experts = 3; use a whole number "
     "from 1 to 3"},
    {3, "  family: mixtral\n  mlp_bias: true",
     "job.yaml:4: model.mlp_bias: experts of mixtral have none; remove the line"},
    {3, "  family: mixtral\n  router: {balance: -1}",
     "job.yaml:4: model.router.balance: -1 is not possible; give a number from 0 to 1000"},
    {3, "  family: mixtral\n  router: {top_k: 1}",
     "job.yaml:4: model.router.top_k: unknown key; model.router has renormalize, groups, "
     "groups_kept, scale, bias_rate, noisy, balance, z_loss, capacity_factor"},
    {3, "  family: qwen3_moe\n  router: {scale: 2}",
     "job.yaml:4: model.router.scale: routers of qwen3_moe have none; remove the line"},
    {3, "  family: mixtral\n  router: {bias_rate: 0.1}",
     "job.yaml:4: model.router.bias_rate: routers of mixtral have no select bias; remove the line, "
     "or balance with model.router.balance"},
    {3, "  family: glm4_moe\n  router: {z_loss: 0.1}",
     "job.yaml:4: model.router.z_loss: is a loss of softmax routers, and those of glm4_moe are "
     "sigmoids; "
     "write 0"},
    {3, "  family: glm4_moe\n  experts: 8\n  router: {groups: 3}",
     "job.yaml:5: model.router.groups: 3 does not divide the 8 experts into groups of at least 2"},
    {3, "  family: glm4_moe\n  experts: 8\n  experts_per_token: 3\n  router: {groups: 4}",
     "job.yaml:6: model.router.groups_kept: 1 of 4 groups of 2 experts cannot give a token 3 "
     "experts"},
    /* further tokens */
    {6, "  heads: 8\n  mtp: {layers: 5}",
     "job.yaml:7: model.mtp.layers: 5 is not possible; give a whole number from 0 to 4"},
    {6, "  heads: 8\n  mtp: {loss_weight: 0.1}",
     "job.yaml:7: model.mtp.loss_weight: there are no layers that predict further tokens; give "
     "model.mtp.layers, or remove the line"},
    {6, "  heads: 8\n  mtp: {layers: 1, weight: 0.1}",
     "job.yaml:7: model.mtp.weight: unknown key; model.mtp has layers, loss_weight"},
};

/* The message names every row of families.def. */
static void a_missing_family_names_them_all(void **state)
{
    char list[HD_FAMILY_LIST_MAX], message[HD_FAMILY_LIST_MAX + 64];
    const struct mistake mistake = {3, "", message};

    hd_family_list(list);
    (void)snprintf(message, sizeof message, "job.yaml:2: model.family: is missing; use %s", list);
    expect_refusals(&mistake, 1, HD_INVALID);
}

static void each_mistake_has_its_place_and_remedy(void **state)
{
    expect_refusals(mistakes, sizeof mistakes / sizeof mistakes[0], HD_INVALID);
}

/* Kimi K2's file has 1 for both bounds of yarn. */
static void bounds_of_yarn_may_be_equal(void **state)
{
    char *text = with_line(6, "  heads: 8\n  rope_scaling: {type: yarn, factor: 4, beta_fast: 1, "
                              "beta_slow: 1, original_context: 16}");
    struct hd_job *spec = NULL;

    assert_int_equal(read_bytes(text, strlen(text), NULL, &spec), HD_OK);
    free(text);
}

static void gpt2_has_a_key_head_for_each_head(void **state)
{
    char *text = with_line(3, "  family: gpt2\n  kv_heads: 4");
    struct hd_job *spec = NULL;

    assert_int_equal(read_bytes(text, strlen(text), NULL, &spec), HD_INVALID);
    assert_tells(hd_err_message(), "job.yaml:4: model.kv_heads", "gpt2", "write 8");
    free(text);
}

RUN_CASES_BETWEEN(make_corpus, drop_corpus)
