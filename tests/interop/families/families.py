"""families.py make DIR              a model directory per configuration, random in every tensor; prints the names, in a
                                     line of their own those that are not trained here, first;
                                     HEDDLE_FAMILIES="NAME ..": only these
   families.py tokens                the tokens whose logits are compared
   families.py compare LIST TEXT     a line of LIST is "NAME DIR LOGITS OUT LOSSES": does the file LOGITS hold the logits that
                                     transformers gives for the model in DIR? OUT is DIR after one AdamW step with
                                     lr = eps = 1 on the first sequences of TEXT, which shows the gradient g of each weight
                                     as g / (|g| + 1): is it that of autograd, and are names and shapes of the tensors equal?
                                     Has the file LOSSES the losses of ten AdamW steps?
   families.py keys NAME DIR WORKER      each key of config.json is changed once, whatever it is: does heddle-worker refuse the
                                     folder, or give the logits that transformers gives for it?
Each prints ok or not ok, with the largest difference behind a colon."""
import copy
import json
import os
import subprocess
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

TOKENS = [(37 * i * i + 11 * i + 5) % 256 for i in range(41)]
S, B = 48, 4  # sequences of the steps: context and number

# Sizes differ from one another so that no transposed or shifted part fits, windows, scaled angles and caps bite within
# the tokens that are compared, and layers are of every kind.
BASE = dict(vocab_size=256, hidden_size=64, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=88, max_position_embeddings=64)
NARROW = {**BASE, "hidden_size": 48, "head_dim": 16}  # heads * head_dim is not hidden_size
EXPERTS = dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=40)
YARN = dict(rope_type="yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=16)
PLAIN = dict(rope_type="default", rope_theta=50.0)
LONGROPE = dict(rope_type="longrope", rope_theta=50.0, short_factor=[1.0, 1.1, 1.25, 1.3, 1.5, 1.6, 1.9, 2.1],
                long_factor=[1.0, 1.3, 1.7, 2.2, 2.9, 3.5, 4.1, 4.3])
GRANITE = dict(attention_multiplier=0.1, embedding_multiplier=3.0, residual_multiplier=0.7, logits_scaling=2.5)
VISION = dict(hidden_size=32, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
GEMMA3 = dict(NARROW, num_hidden_layers=8, sliding_window=5, query_pre_attn_scalar=24,
              rope_parameters=dict(sliding_attention=PLAIN,
                                   full_attention=dict(rope_type="linear", factor=4.0, rope_theta=500.0)))
# a factor of cos and sin and, by its square, one of scores
MSCALE = dict(YARN, mscale=0.8, mscale_all_dim=1.3)
LATENTS = dict(NARROW, num_key_value_heads=4, kv_lora_rank=20, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=16,
               num_experts_per_tok=3, moe_intermediate_size=40, rms_norm_eps=0.01)
GROUPS = dict(n_routed_experts=8, n_group=4, topk_group=2, routed_scaling_factor=1.7)
del LATENTS["head_dim"]
NEOX = {**BASE, "hidden_size": 96, "rope_parameters": dict(rope_type="default", rope_theta=50.0,
                                                          partial_rotary_factor=0.25)}
del NEOX["num_key_value_heads"]
# a gated delta layer in three of four; more value heads than key heads, heads of other widths than attention's
DELTA = dict(NARROW, num_hidden_layers=6, linear_conv_kernel_dim=4, linear_key_head_dim=24, linear_value_head_dim=16,
             linear_num_key_heads=2, linear_num_value_heads=6, rms_norm_eps=0.01,
             rope_parameters=dict(PLAIN, partial_rotary_factor=0.5))
# short convolutions in three of five layers
LFM2 = dict(norm_eps=0.01, rope_parameters=PLAIN)
SOLAR = {k: v for k, v in NARROW.items() if k != "intermediate_size"}
FALCON = {k: v for k, v in BASE.items() if k not in ("intermediate_size", "num_key_value_heads")}
# dense layers, experts and shared experts of other widths than the rest
LLAMA4 = dict(NARROW, num_hidden_layers=5, intermediate_size=40, intermediate_size_mlp=88, num_local_experts=6,
              num_experts_per_tok=3, rope_parameters=PLAIN)
CONFIGS = {
    "ministral": ("ministral", dict(NARROW, sliding_window=5, layer_types=[
        "full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"])),
    "qwen3_moe": ("qwen3_moe", dict(NARROW, **EXPERTS, norm_topk_prob=True, mlp_only_layers=[1],
                                    decoder_sparse_step=2, attention_bias=True)),
    "qwen3_moe-all": ("qwen3_moe", dict(NARROW, **EXPERTS, norm_topk_prob=False)),
    "qwen2_moe": ("qwen2_moe", dict(BASE, **EXPERTS, shared_expert_intermediate_size=56, mlp_only_layers=[0])),
    "gemma2": ("gemma2", dict(NARROW, sliding_window=5, query_pre_attn_scalar=24, attn_logit_softcapping=2.0,
                              final_logit_softcapping=2.0)),
    "gemma3_text": ("gemma3_text", GEMMA3),
    # text models with a vision tower, which an export has unchanged
    "gemma3": ("gemma3", dict(text_config=GEMMA3, vision_config=dict(VISION, model_type="siglip_vision_model"),
                              mm_tokens_per_image=4, image_token_index=250, boi_token_index=251, eoi_token_index=252)),
    "mistral3": ("mistral3", dict(text_config=dict(NARROW, model_type="mistral", sliding_window=None),
                                  vision_config=dict(VISION, model_type="pixtral", head_dim=16), image_token_index=250,
                                  tie_word_embeddings=False)),
    "gemma": ("gemma", NARROW),
    "olmo2": ("olmo2", BASE),
    # windows in three of four layers, whose others have no positions
    "exaone4": ("exaone4", dict(NARROW, sliding_window=5)),
    "olmo3": ("olmo3", dict(BASE, sliding_window=5,
                            rope_parameters=dict(sliding_attention=PLAIN, full_attention=YARN))),
    "olmoe": ("olmoe", dict(BASE, num_experts=6, num_experts_per_tok=3)),
    "granite": ("granite", dict(BASE, **GRANITE, attention_bias=True, mlp_bias=True)),
    "granitemoe": ("granitemoe", dict(BASE, **GRANITE, num_local_experts=6, num_experts_per_tok=3)),
    "granitemoeshared": ("granitemoeshared", dict(BASE, **GRANITE, num_local_experts=6, num_experts_per_tok=3,
                                                  shared_intermediate_size=56)),
    # no experts and no Mamba layers; positions by one key
    "granitemoehybrid": ("granitemoehybrid", dict(
        BASE, **GRANITE, num_local_experts=0, shared_intermediate_size=72, mamba_n_heads=4, attention_bias=True,
        position_embedding_type="rope", layer_types=["full_attention"] * 5)),
    "granite_swa": ("granite_swa", dict(BASE, **GRANITE, sliding_window=5, mlp_bias=True,
                                        layer_rope_theta=[500.0, 50.0, 0, 50.0, 500.0])),
    # clamps, and gates that change places, make longer and steeper models chaotic in ten steps
    "gpt_oss": ("gpt_oss", dict(NARROW, num_hidden_layers=3, num_local_experts=6, num_experts_per_tok=3,
                                sliding_window=5, swiglu_limit=3.0, rope_parameters=dict(YARN, truncate=False))),
    "gpt_oss-plain": ("gpt_oss", dict(BASE, num_hidden_layers=2, num_local_experts=3, num_experts_per_tok=3, head_dim=24,
                                      sliding_window=7, attention_bias=False, rope_parameters=PLAIN)),
    "smollm3": ("smollm3", dict(BASE, num_hidden_layers=6, no_rope_layers=[1, 1, 0, 1, 1, 0])),
    "phi3": ("phi3", dict(BASE, hidden_size=48, num_attention_heads=3, num_key_value_heads=1, sliding_window=9)),
    "phi3-partial": ("phi3", dict(BASE, tie_word_embeddings=True,
                                  rope_parameters=dict(PLAIN, partial_rotary_factor=0.75))),
    # every length that is compared is beyond the original context
    "phi3-long": ("phi3", dict(BASE, original_max_position_embeddings=16,
                               rope_parameters=dict(LONGROPE, partial_rotary_factor=0.5, short_factor=[1.0, 1.1, 1.2, 1.3],
                                                    long_factor=[1.0, 1.7, 2.9, 4.3]))),
    "glm": ("glm", NARROW),
    "glm4": ("glm4", NARROW),
    "ernie4_5": ("ernie4_5", dict(NARROW, use_bias=True)),
    "ernie4_5_moe": ("ernie4_5_moe", dict(
        NARROW, moe_num_experts=8, moe_k=6, moe_num_shared_experts=2, moe_intermediate_size=40, moe_layer_start_index=1,
        moe_layer_interval=2)),
    # groups by their two best, of which the bias changes the order; and neither groups nor norms
    "glm4_moe": ("glm4_moe", dict(
        NARROW, n_routed_experts=12, num_experts_per_tok=3, moe_intermediate_size=40, n_shared_experts=2, n_group=4,
        topk_group=2, routed_scaling_factor=2.5, first_k_dense_replace=2, use_qk_norm=True, attention_bias=True)),
    "glm4_moe-plain": ("glm4_moe", dict(NARROW, n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=40,
                                        norm_topk_prob=False, first_k_dense_replace=0)),
    "dots1_moe": ("dots1", dict(NARROW, n_routed_experts=12, num_experts_per_tok=3, moe_intermediate_size=40,
                                n_shared_experts=2, n_group=4, topk_group=2, routed_scaling_factor=2.5,
                                first_k_dense_replace=1, norm_topk_prob=True, layer_types=[
        "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"], sliding_window=5)),
    "minimax_m2": ("minimax_m2", dict(NARROW, num_local_experts=6, num_experts_per_tok=3, rotary_dim=8)),
    "helium": ("helium", dict(BASE, head_dim=16, attention_bias=True)),
    "deepseek_v2_moe": ("deepseek_v2", dict(LATENTS, **GROUPS, q_lora_rank=28, first_k_dense_replace=1,
                                            n_shared_experts=2, topk_method="group_limited_greedy",
                                            rope_parameters=MSCALE)),
    # four layers: in more a gate near a tie changes its expert within ten steps
    "deepseek_v2-lite_moe": ("deepseek_v2", dict(LATENTS, num_hidden_layers=4, q_lora_rank=None, n_routed_experts=6, v_head_dim=32,
                                                 first_k_dense_replace=2, n_shared_experts=1, rope_parameters=PLAIN)),
    # bounds of yarn as Kimi K2 has them
    "deepseek_v3_moe": ("deepseek_v3", dict(LATENTS, **GROUPS, q_lora_rank=28, first_k_dense_replace=2,
                                            rope_parameters=dict(MSCALE, beta_fast=1.0, beta_slow=1.0))),
    "deepseek_v3-lite_moe": ("deepseek_v3", dict(LATENTS, n_routed_experts=6, n_group=1, topk_group=1, q_lora_rank=None,
                                                 norm_topk_prob=False, first_k_dense_replace=1, rope_parameters=PLAIN)),
    "glm4_moe_lite": ("glm4_moe_lite", dict(LATENTS, **GROUPS, q_lora_rank=28, v_head_dim=32, rope_parameters=MSCALE,
                                            mlp_layer_types=["dense", "sparse", "dense", "sparse", "sparse"])),
    "starcoder2": ("starcoder2", dict(BASE, sliding_window=9)),
    # four factors of queries
    "ministral3": ("ministral3", dict(NARROW, sliding_window=9, rope_parameters=dict(YARN, mscale=0.7, mscale_all_dim=1.2,
                                                                   llama_4_scaling_beta=0.3))),
    "seed_oss": ("seed_oss", dict(BASE, head_dim=16, attention_out_bias=True, attention_dropout=0.0,
                                  residual_dropout=0.0)),
    "arcee": ("arcee", dict(BASE, mlp_bias=True)),
    "jais2": ("jais2", {**BASE, "layer_norm_eps": 0.01}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", dict(NARROW, attention_bias=True, rope_parameters=dict(
        rope_type="dynamic", rope_theta=50.0, alpha=7.0, factor=1.0))),
    # its dynamic angles are plain ones up to max_position_embeddings
    "internlm3": ("internlm3", dict(BASE, num_hidden_layers=4, head_dim=16, attention_bias=True, mlp_bias=True, rope_parameters=dict(
        rope_type="dynamic", rope_theta=50.0, factor=6.0))),
    "iquestcoder": ("iquestcoder", dict(NARROW, rope_parameters=PLAIN)),
    # windows in three of four layers, and scaled angles in all
    "cwm": ("cwm", dict(NARROW, sliding_window=5, rope_parameters=dict(
        rope_type="llama3", rope_theta=50.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16))),
    "vaultgemma": ("vaultgemma", dict(NARROW, sliding_window=5, query_pre_attn_scalar=24, attn_logit_softcapping=2.0,
                                      final_logit_softcapping=2.0)),
    "hyperclovax": ("hyperclovax", dict(NARROW, **GRANITE, attention_bias=True, mlp_bias=True)),
    "youtu": ("youtu", dict({**BASE, "hidden_size": 48, "num_key_value_heads": 4}, q_lora_rank=28, kv_lora_rank=20,
                            qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=16, rms_norm_eps=0.01,
                            rope_parameters=MSCALE)),
    "solar_open_moe": ("solar_open", dict(SOLAR, num_hidden_layers=3, n_routed_experts=12, num_experts_per_tok=3, moe_intermediate_size=40,
                                          n_shared_experts=2, n_group=4, topk_group=2, routed_scaling_factor=2.5,
                                          attention_bias=True)),
    "gpt_neox": ("gpt_neox", dict(NEOX)),
    "gpt_neox-sequential": ("gpt_neox", dict(NEOX, use_parallel_residual=False, attention_bias=False)),
    "stablelm": ("stablelm", dict(BASE, use_qkv_bias=True)),
    "stablelm-parallel": ("stablelm", dict(BASE, use_parallel_residual=True)),
    "cohere": ("cohere", dict(BASE, logit_scale=0.3)),
    # no biases: that of keys has no gradient in layers without positions
    "cohere2": ("cohere2", dict(BASE, sliding_window=5, logit_scale=0.3, layer_types=[
        "full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"])),
    # LayerNorms of the heads of q and k: of one tensor, and of a tensor for each head
    "cohere-norms": ("cohere", dict(BASE, logit_scale=2.0, use_qk_norm=True)),
    "stablelm-norms": ("stablelm", dict(BASE, use_parallel_residual=True, qk_layernorm=True)),
    # the three layouts of query_key_value: one key/value head, groups, and one for each head; with ALiBi as many heads
    # and positions as bf16 has exactly
    "falcon": ("falcon", dict(FALCON)),
    "falcon-groups": ("falcon", dict(FALCON, new_decoder_architecture=True, num_kv_heads=2, bias=True)),
    "falcon-groups-one": ("falcon", dict(FALCON, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1,
                                         tie_word_embeddings=False)),
    "falcon-rw": ("falcon", dict(FALCON, multi_query=False, parallel_attn=False, alibi=True, bias=True,
                                 ffn_hidden_size=88)),
    # chunks in three of four layers, experts in every second one; and all as they come (no biases, as in cohere2)
    "llama4_moe": ("llama4_text", dict(LLAMA4, attention_chunk_size=7, interleave_moe_layer_step=2, floor_scale=6,
                                       attn_scale=0.4)),
    "llama4_moe-plain": ("llama4_text", dict(LLAMA4, num_experts_per_tok=1, moe_layers=[0, 1, 2, 3, 4], use_qk_norm=False,
                                             attn_temperature_tuning=False, no_rope_layers=[1, 0, 1, 1, 0],
                                             attention_chunk_size=11)),
    "llama4_moe-wrapped": ("llama4", dict(text_config=dict(LLAMA4, model_type="llama4_text", attention_chunk_size=7),
                                          vision_config=dict(
        VISION, model_type="llama4_vision_model", vision_output_dim=48, projector_input_dim=48, projector_output_dim=48,
        pixel_shuffle_ratio=0.5), image_token_index=250, boi_token_index=251, eoi_token_index=252)),
    "granitemoe_swa": ("granitemoe_swa", dict(BASE, **GRANITE, num_hidden_layers=4, num_local_experts=6, num_experts_per_tok=3,
                                              sliding_window=5, layer_rope_theta=[500.0, 50.0, 0, 50.0])),
    "qwen3_next_moe": ("qwen3_next", dict(DELTA, **EXPERTS, norm_topk_prob=True, shared_expert_intermediate_size=56,
                                          mlp_only_layers=[1])),
    "qwen3_5_text": ("qwen3_5_text", dict(DELTA, layer_types=[
        "linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention",
        "linear_attention"])),
    "qwen3_5": ("qwen3_5", dict(text_config=dict(DELTA, model_type="qwen3_5_text"), vision_config=dict(
        depth=1, hidden_size=32, intermediate_size=40, num_heads=2, out_hidden_size=48, patch_size=4, spatial_merge_size=2,
        temporal_patch_size=2, num_position_embeddings=16), image_token_id=250, video_token_id=251,
        vision_start_token_id=252, vision_end_token_id=253, tie_word_embeddings=False)),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", dict(DELTA, **EXPERTS, shared_expert_intermediate_size=56)),
    "lfm2": ("lfm2", dict(NARROW, **LFM2, conv_L_cache=4, conv_bias=True, block_auto_adjust_ff_dim=False,
                          layer_types=["conv", "full_attention", "conv", "conv", "full_attention"])),
    # the width of the feed-forward layer is computed from three keys; the head has a weight of its own
    "lfm2-adjusted": ("lfm2", dict(BASE, **LFM2, intermediate_size=120, block_ffn_dim_multiplier=1.3, block_multiple_of=32,
                                   full_attn_idxs=[1, 4], tie_word_embeddings=False)),
    "nemotron": ("nemotron", dict(NARROW, attention_bias=True, mlp_bias=True, norm_eps=0.01,
                                  rope_parameters=dict(PLAIN, partial_rotary_factor=0.5))),
    "phi": ("phi", dict(BASE, layer_norm_eps=0.01, rope_parameters=dict(PLAIN, partial_rotary_factor=0.5))),
    # a bound that a third of queries, keys and values is beyond
    "olmo": ("olmo", dict(BASE, clip_qkv=1.5, attention_bias=True)),
    "opt": ("opt", dict(vocab_size=256, hidden_size=64, word_embed_proj_dim=64, num_hidden_layers=4, ffn_dim=88,
                        num_attention_heads=4, max_position_embeddings=64, dropout=0.0)),
    "bloom": ("bloom", dict(vocab_size=256, hidden_size=96, n_layer=4, n_head=6, layer_norm_epsilon=0.01)),
    "mpt": ("mpt", dict(vocab_size=256, d_model=64, n_layers=4, n_heads=4, max_seq_len=64,
                        attn_config=dict(clip_qkv=1.5, softmax_scale=0.3))),
}
# their logits, and the flips of their switches: of the families that tests/interop/models trains, and of further models
# of families that are trained above
WINDOWED = dict(use_sliding_window=True, sliding_window=5, max_window_layers=2)
ALONE = {
    "gpt2": ("gpt2", dict(vocab_size=256, n_positions=64, n_embd=48, n_layer=3, n_head=3)),
    "llama": ("llama", dict(BASE)),
    "mistral": ("mistral", dict(NARROW, sliding_window=5)),
    "qwen2": ("qwen2", dict(BASE, **WINDOWED)),
    "qwen3": ("qwen3", dict(NARROW, **WINDOWED)),
    "seed_oss-plain": ("seed_oss", dict(BASE, num_hidden_layers=2, head_dim=16)),
    "mixtral": ("mixtral", dict(BASE, num_local_experts=6, num_experts_per_tok=3, sliding_window=5)),
    "cwm-plain": ("cwm", dict(BASE, num_hidden_layers=4, head_dim=16, sliding_window=7)),
    "hyperclovax-plain": ("hyperclovax", dict(BASE)),
    "granite_swa-plain": ("granite_swa", dict(NARROW, **GRANITE, sliding_window=5, attention_bias=True, layer_types=[
        "sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"])),
    # positions in all layers
    "exaone4-full": ("exaone4", dict(BASE, sliding_window=None, layer_types=["full_attention"] * 5, rope_parameters=PLAIN)),
    # every length that is compared is within the original context
    "phi3-short": ("phi3", dict(BASE, original_max_position_embeddings=64,
                                rope_parameters=dict(LONGROPE, factor=4.0, attention_factor=0.8))),
    "granitemoehybrid-nope": ("granitemoehybrid", dict(
        BASE, **GRANITE, num_local_experts=0, shared_intermediate_size=72, mamba_n_heads=4,
        layer_types=["full_attention"] * 5)),
}


SELECT_BIAS = "e_score_correction_bias"  # of routers; it has no gradient and stays as it is


def class_of(config):
    return AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM


def load(directory):
    config = AutoConfig.from_pretrained(directory)
    # with "eager" Falcon's class adds ALiBi twice, to the mask and to the scores
    how = "sdpa" if getattr(config, "alibi", False) else "eager"
    return class_of(config).from_pretrained(directory, dtype=torch.float32, attn_implementation=how)


def logits_of(model, tokens):
    # without images the class of Llama 4 fails behind its text model, which has the head
    text = model.language_model if model.config.model_type == "llama4" else model
    return text(tokens).logits


def make(out):
    every = {**ALONE, **CONFIGS}
    names = os.environ.get("HEDDLE_FAMILIES", "").split() or list(every)
    for name in names:
        kind, settings = every[name]
        torch.manual_seed(sum(map(ord, name)))
        config = AutoConfig.for_model(kind, **settings)
        config.pad_token_id, config.bos_token_id, config.eos_token_id = None, 1, 2
        model = class_of(config).from_config(config, dtype=torch.float32, attn_implementation="eager")
        with torch.no_grad():  # nothing keeps its initial 0 or 1, which would hide a missing factor
            for tensor, p in model.named_parameters():
                if p.dim() == 1 and tensor.endswith("norm.weight"):
                    p.add_(torch.randn_like(p) * 0.3)
                else:
                    p.copy_(torch.randn_like(p) * (0.3 if p.dim() == 1 else 0.5 if "embed" in tensor else 0.25))
            for tensor, p in model.named_buffers():
                if tensor.endswith(SELECT_BIAS):
                    p.copy_(torch.randn_like(p) * 0.3)
        model.save_pretrained(f"{out}/{name}")
    print(*(name for name in names if name in ALONE))
    print(*(name for name in names if name in CONFIGS))


def verdict(good, name, what, error):
    print(f"{'ok' if good else 'not ok'} {name}_{what}: {error}")


def logits(name, directory, npy):
    with torch.no_grad():
        want = logits_of(load(directory).eval(), torch.tensor([TOKENS]))[0].numpy()
    got = np.load(npy)
    error = float(np.abs(got - want).max() / np.abs(want).max()) if want.shape == got.shape else 1
    verdict(error < 1e-5, name, "has_their_logits", error)


def batches(text, count):
    ids = torch.tensor(list(open(text, "rb").read(count * B * S + 1)))
    return [(ids[i * B * S:(i + 1) * B * S].reshape(B, S), ids[i * B * S + 1:(i + 1) * B * S + 1].reshape(B, S))
            for i in range(count)]


def loss_of(model, x, y):
    return torch.nn.functional.cross_entropy(logits_of(model, x).reshape(B * S, -1), y.reshape(-1))


def step(name, directory, out, text):
    model, gradients = load(directory), load(directory)
    loss_of(model, *batches(text, 1)[0]).backward()
    with torch.no_grad():  # gradients under the names that files have
        for p, g in zip(model.parameters(), gradients.parameters()):
            g.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
        for tensor, g in gradients.named_buffers():
            if tensor.endswith(SELECT_BIAS):
                g.zero_()
    gradients.save_pretrained(out + "-gradients")
    want = load_file(out + "-gradients/model.safetensors")
    before, after = load_file(directory + "/model.safetensors"), load_file(out + "/model.safetensors")
    same = {n: t.shape for n, t in before.items()} == {n: t.shape for n, t in after.items()}
    verdict(same, name, "keeps_names_and_shapes", sorted(set(before) ^ set(after))[:3])
    worst, largest = (0, ""), max(float(g.norm()) for g in want.values())
    for n in before if same else ():
        u = (before[n] - after[n]).double()
        got, g = u / (1 - u.abs()), want[n].double()
        # zero but for rounding, as of biases of keys without rotary positions: zero in both
        size = float(g.norm()) if float(g.norm()) > 1e-6 * largest else 1e-2 * largest
        worst = max(worst, (float((got - g).norm()) / size, n))
    verdict(same and worst[0] < 1e-4, name, "has_their_gradients", worst)


def run(name, directory, text, losses):
    model = load(directory)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    worst = 0
    for (x, y), got in zip(batches(text, 10), losses):
        loss = loss_of(model, x, y)
        worst = max(worst, abs(float(loss) - got) / float(loss))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    verdict(len(losses) == 10 and worst < 1e-5, name, "trains_as_theirs", worst)


# Keys that say nothing of the logits: names of classes, what is trained how, which tokens mean what, and the length up to
# which positions go.
SILENT = set("""architectures model_type dtype torch_dtype transformers_version use_cache initializer_range attention_dropout
hidden_dropout residual_dropout embedding_dropout resid_pdrop embd_pdrop max_position_embeddings vocab_size bos_token_id
eos_token_id pad_token_id router_aux_loss_coef output_router_logits router_jitter_noise pretraining_tp classifier_dropout
vision_config mm_tokens_per_image""".split())


def changed(value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1 if value else 2
    if isinstance(value, float):
        return value * 1.25 if value else 0.5
    if isinstance(value, str):
        return {"full_attention": "sliding_attention", "sliding_attention": "full_attention", "conv": "full_attention", "dense": "sparse",
                "sparse": "dense", "default": "linear"}.get(value, "x" + value)
    return [changed(value[0]), *value[1:]] if value else [1]


def mutations(config, path=()):
    for key, value in config.items():
        if key in SILENT or value is None:
            continue
        if isinstance(value, dict):
            yield from mutations(value, path + (key,))
        else:
            yield path + (key,), changed(value)


def keys(name, directory, worker):
    config = json.load(open(directory + "/config.json"))
    folder = directory + "-changed"
    os.makedirs(folder, exist_ok=True)
    for file in os.listdir(directory):
        if file != "config.json" and not os.path.exists(f"{folder}/{file}"):
            os.symlink(f"{directory}/{file}", f"{folder}/{file}")
    bad, counts = [], dict(refused=0, same=0)
    for path, value in mutations(config):
        new = copy.deepcopy(config)
        at = new
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        json.dump(new, open(folder + "/config.json", "w"))
        what = ".".join(path) + f"={value}"
        got = subprocess.run([worker, "logits", "--checkpoint", folder, "--tokens", " ".join(map(str, TOKENS)), "--out",
                              folder + "/logits.npy"], capture_output=True, text=True)
        if got.returncode:
            counts["refused"] += 1
            if path[-1] not in got.stderr and "tensor" not in got.stderr and "shape" not in got.stderr:
                print(f"# {name} {what}: {got.stderr.strip()[:200]}")
            continue
        try:
            with torch.no_grad():
                want = logits_of(load(folder).eval(), torch.tensor([TOKENS]))[0].numpy()
        except Exception as e:  # transformers has no such model
            counts["refused"] += 1
            print(f"# {name} {what}: taken here, but by transformers: {str(e)[:100]!r}")
            continue
        mine = np.load(folder + "/logits.npy")
        error = float(np.abs(mine - want).max() / np.abs(want).max()) if want.shape == mine.shape else 1
        counts["same"] += error < 1e-5
        if error >= 1e-5:
            bad.append(f"{what} {error:.2g}")
    verdict(not bad, name, "changes_with_its_keys", bad or counts)


if sys.argv[1] == "make":
    make(sys.argv[2])
elif sys.argv[1] == "tokens":
    print(*TOKENS)
elif sys.argv[1] == "keys":
    keys(*sys.argv[2:5])
else:
    for entry in open(sys.argv[2]):
        name, directory, npy, out, losses = entry.split()
        try:
            logits(name, directory, npy)
            if name in ALONE:
                continue
            step(name, directory, out, sys.argv[3])
            run(name, directory, sys.argv[3], [float(loss) for loss in open(losses)])
        except Exception as e:  # a file is missing, or transformers cannot read it
            verdict(False, name, "is_compared", str(e)[:300])
