#!/usr/bin/env python3
"""Writes values/*.golden: what PyTorch and Hugging Face transformers compute for small models.

    python3 tests/golden/generate.py [CASE...]

Needs torch, transformers and, for adapters, peft; the tests need none of them. A file says which versions made it. Weights and
tokens are not in it: both sides make them by the rule of number(), so a file holds the model's
settings, the loss, the logits of the first sequence, the gradient of each parameter and the losses
of 20 AdamW steps, all in fp32, computed in fp64.

Format: lines of text ("golden 1", "KEY VALUE" in the words of the resolved job file, "tensor NAME
COUNT" in the order of the data, "end"), then the tensors' values as little-endian fp32.
"""
import math
import os
import sys

import numpy as np
import torch
import transformers

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
HERE = os.path.dirname(os.path.abspath(__file__))
MASK64 = (1 << 64) - 1

# The recipe of the 20 steps; the test has the same.
STEPS, WARMUP, PEAK, LEAST = 20, 4, 0.01, 0.001
BETA1, BETA2, EPS, DECAY, CLIP = 0.9, 0.95, 1e-6, 0.1, 0.5
END_OF_TEXT = 0


def numbers(name, count):
    """u in [0, 1) for i < count: 24 bits of splitmix64 (Steele et al. 2014), keyed by FNV-1a."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = ((key ^ byte) * 0x100000001B3) & MASK64
    with np.errstate(over="ignore"):
        z = np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) / 2.0**24


def weights(name, shape):
    """Norm weights 1 +- 1/8, biases +- 1/16, matrices +- 1/4, rounded to fp32."""
    u = numbers(name, int(np.prod(shape))) - 0.5
    if name.endswith("bias"):
        w = u / 8
    elif len(shape) == 1:
        w = 1 + u / 4
    else:
        w = u / 2
    return w.astype(np.float32).astype(np.float64).reshape(shape)


def token_ids(case):
    n = case["batch"] * case["context"] + 1
    ids = (numbers("tokens", n) * case["vocab"]).astype(np.int64)
    if case["documents"]:
        ids[6::9] = END_OF_TEXT
    return ids


BASE = dict(layers=2, hidden=24, heads=3, kv_heads=3, head_width=8, ffn_hidden=40, vocab=61, context=19,
            batch=3, tied=False, qkv_bias=False, out_bias=False, mlp_bias=False, qk_norm=False, window=0,
            window_from=0, rope_theta=10000.0, norm_eps=1e-5, rope=None, documents=False, experts=0,
            experts_per_token=0, adapter=None, mtp=0, mtp_weight=0.3)


def case(family, **changes):
    return {**BASE, "family": family, **changes}


GPT2 = dict(ffn_hidden=96, tied=True, qkv_bias=True, out_bias=True, mlp_bias=True)
EXPERTS = dict(hidden=32, heads=4, kv_heads=2, ffn_hidden=48, vocab=256, context=16, experts=4,
               experts_per_token=2)
CASES = {
    "gpt2": case("gpt2", **GPT2),
    "gpt2-own-head": case("gpt2", **{**GPT2, "tied": False, "ffn_hidden": 72}),
    "llama": case("llama"),
    "llama-gqa-tied": case("llama", hidden=32, heads=4, kv_heads=2, tied=True, context=21),
    "llama-mqa-theta-biases": case("llama", kv_heads=1, rope_theta=500000.0, qkv_bias=True, out_bias=True,
                                   mlp_bias=True, norm_eps=1e-6),
    "llama-linear": case("llama", rope=dict(type="linear", factor=3.0)),
    # 16 channels, so that waves of all three bands are there: shorter than 40 / 4, longer than 40
    "llama-llama3": case("llama", heads=2, kv_heads=2, head_width=16, context=43,
                         rope=dict(type="llama3", factor=8.0, original_context=40, low_freq_factor=1.0,
                                   high_freq_factor=4.0)),
    "llama-yarn": case("llama", heads=2, kv_heads=1, head_width=16, context=43,
                       rope=dict(type="yarn", factor=4.0, original_context=64, beta_fast=8.0, beta_slow=1.0,
                                 attention_factor=0.0)),
    "llama-documents": case("llama", documents=True, context=29, kv_heads=1),
    "llama-mtp": case("llama", documents=True, context=29, kv_heads=1, mtp=2, mtp_weight=0.6),
    "gpt2-documents": case("gpt2", **GPT2, documents=True, context=29),
    "mistral": case("mistral", heads=2, kv_heads=1, head_width=16, window=7, context=23),
    "qwen2": case("qwen2", heads=3, kv_heads=1, qkv_bias=True, tied=True, window=5, window_from=1),
    "mixtral": case("mixtral", **EXPERTS),
    "mixtral-documents": case("mixtral", **{**EXPERTS, "context": 29, "vocab": 61, "experts": 5,
                                            "experts_per_token": 3, "tied": True}, documents=True),
    # every target; B is not zero, or A would have no gradient
    "llama-lora": case("llama", kv_heads=1, adapter=dict(type="lora", rank=4, alpha=6.0, rslora=False,
                                                         targets="q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj")),
    "gpt2-lora": case("gpt2", **GPT2, adapter=dict(type="lora", rank=3, alpha=6.0, rslora=False,
                                                   targets="attn.c_attn,attn.c_proj,mlp.c_fc,mlp.c_proj")),
    "qwen2-lora": case("qwen2", heads=3, kv_heads=1, qkv_bias=True, tied=True,
                       adapter=dict(type="lora", rank=5, alpha=4.0, rslora=True, targets="q_proj,v_proj,up_proj,down_proj")),
    # magnitudes that are not the norms of rows; of all targets, with biases, and between columns that have none
    "llama-dora": case("llama", kv_heads=1, adapter=dict(type="lora", rank=4, alpha=6.0, rslora=False, dora=True,
                                                         targets="q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj")),
    "gpt2-dora": case("gpt2", **GPT2, adapter=dict(type="lora", rank=3, alpha=6.0, rslora=False, dora=True,
                                                   targets="attn.c_attn,attn.c_proj,mlp.c_fc,mlp.c_proj")),
    "qwen2-dora": case("qwen2", heads=3, kv_heads=1, qkv_bias=True, tied=True,
                       adapter=dict(type="lora", rank=5, alpha=4.0, rslora=True, dora=True,
                                    targets="q_proj,v_proj,up_proj,down_proj")),
    # behind attention and behind the feed-forward layer; U is not zero
    "llama-bottleneck": case("llama", kv_heads=1, adapter=dict(type="bottleneck", width=5)),
    "gpt2-bottleneck": case("gpt2", **GPT2, adapter=dict(type="bottleneck", width=7)),
    "mixtral-bottleneck": case("mixtral", **EXPERTS, adapter=dict(type="bottleneck", width=4)),
    # one with a key head for each head, one with two heads each; one whose mask is ours
    "gpt2-prefix": case("gpt2", **GPT2, adapter=dict(type="prefix", tokens=5)),
    "llama-prefix": case("llama", hidden=32, heads=4, kv_heads=2, adapter=dict(type="prefix", tokens=7)),
    "mistral-prefix": case("mistral", heads=2, kv_heads=1, head_width=16, window=5, context=29, documents=True,
                           adapter=dict(type="prefix", tokens=3)),
    # only with transformers 4, where an expert is a module of its own, which PEFT can adapt
    "mixtral-lora": case("mixtral", **EXPERTS, adapter=dict(type="lora", rank=3, alpha=4.0, rslora=False,
                                                            targets="q_proj,o_proj,w1,w2,w3")),
    "qwen3": case("qwen3", heads=4, kv_heads=2, head_width=16, qk_norm=True, norm_eps=1e-6),
}


def rope_parameters(c):
    r = c["rope"]
    out = {"rope_theta": c["rope_theta"], "rope_type": "default"}
    if not r:
        return out
    out.update(rope_type=r["type"], factor=r["factor"])
    if r["type"] in ("llama3", "yarn"):
        out["original_max_position_embeddings"] = r["original_context"]
    if r["type"] == "llama3":
        out.update(low_freq_factor=r["low_freq_factor"], high_freq_factor=r["high_freq_factor"])
    if r["type"] == "yarn":
        out.update(beta_fast=r["beta_fast"], beta_slow=r["beta_slow"])
    return out


def prefix_tokens(c):
    return (c["adapter"] or {}).get("tokens", 0)


def build(c):
    if c["family"] == "gpt2":
        config = transformers.GPT2Config(
            n_layer=c["layers"], n_embd=c["hidden"], n_head=c["heads"], n_inner=c["ffn_hidden"],
            vocab_size=c["vocab"], n_positions=c["context"] + prefix_tokens(c), layer_norm_epsilon=c["norm_eps"],
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, tie_word_embeddings=c["tied"])
        kind = transformers.GPT2LMHeadModel
    else:
        common = dict(
            num_hidden_layers=c["layers"], hidden_size=c["hidden"], num_attention_heads=c["heads"],
            num_key_value_heads=c["kv_heads"], head_dim=c["head_width"], intermediate_size=c["ffn_hidden"],
            vocab_size=c["vocab"], max_position_embeddings=c["context"] + prefix_tokens(c), rms_norm_eps=c["norm_eps"],
            tie_word_embeddings=c["tied"], rope_parameters=rope_parameters(c), attention_dropout=0.0)
        if transformers.__version__ < "5":
            common["rope_theta"] = c["rope_theta"]
        if c["family"] == "llama":
            assert c["qkv_bias"] == c["out_bias"]
            config = transformers.LlamaConfig(attention_bias=c["qkv_bias"], mlp_bias=c["mlp_bias"], **common)
            kind = transformers.LlamaForCausalLM
        elif c["family"] == "mistral":
            config = transformers.MistralConfig(sliding_window=c["window"], **common)
            kind = transformers.MistralForCausalLM
        elif c["family"] == "mixtral":  # its balancing loss is not in the loss: see balance()
            config = transformers.MixtralConfig(num_local_experts=c["experts"],
                                                num_experts_per_tok=c["experts_per_token"],
                                                sliding_window=None, **common)
            kind = transformers.MixtralForCausalLM
        elif c["family"] == "qwen2":
            del common["head_dim"]
            config = transformers.Qwen2Config(use_sliding_window=c["window"] > 0, sliding_window=c["window"],
                                              max_window_layers=c["window_from"], **common)
            kind = transformers.Qwen2ForCausalLM
        else:
            config = transformers.Qwen3Config(attention_bias=False, **common)
            kind = transformers.Qwen3ForCausalLM
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"  # the others know no fp64
    model = kind(config).double().train()
    if c["mtp"]:
        model.mtp = torch.nn.ModuleList(Further(config, c["layers"] + k) for k in range(c["mtp"])).double()
    return adapted(c, model) if c["adapter"] else model


class Further(torch.nn.Module):
    """A module of multi-token prediction (DeepSeek-AI 2024, "DeepSeek-V3", equations 21 to 24), whose embedding and head
    are the model's."""

    def __init__(self, config, layer):
        super().__init__()
        llama = transformers.models.llama.modeling_llama
        self.enorm, self.hnorm, self.norm = (llama.LlamaRMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(3))
        self.proj = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.block = llama.LlamaDecoderLayer(config, layer)

    def forward(self, hidden, embedded, **rest):
        rows = self.proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], -1))
        rows = self.block(rows, **rest)
        return self.norm(rows[0] if isinstance(rows, tuple) else rows)


class Bottleneck(torch.nn.Module):
    """Houlsby et al. 2019, in the words of lib/model/adapter.h: h + U gelu(D h)."""

    def __init__(self, hidden, width):
        super().__init__()
        self.down = torch.nn.Parameter(torch.zeros(width, hidden))
        self.up = torch.nn.Parameter(torch.zeros(hidden, width))

    def forward(self, h):
        return h + torch.nn.functional.gelu(h @ self.down.T, approximate="tanh") @ self.up.T


def with_bottlenecks(c, model):
    def behind(module, adapter):
        def hook(_, __, out):
            return (adapter(out[0]), *out[1:]) if isinstance(out, tuple) else adapter(out)
        module.register_forward_hook(hook)

    model.requires_grad_(False)
    for block in model.transformer.h if c["family"] == "gpt2" else model.model.layers:
        block.adapter1 = Bottleneck(c["hidden"], c["adapter"]["width"])
        block.adapter2 = Bottleneck(c["hidden"], c["adapter"]["width"])
        behind(block.attn if c["family"] == "gpt2" else block.self_attn, block.adapter1)
        behind(block.mlp, block.adapter2)
    return model


def adapted(c, model):
    a = c["adapter"]
    if a["type"] == "bottleneck":
        return with_bottlenecks(c, model)
    import peft

    if a["type"] == "prefix":
        return peft.get_peft_model(model, peft.PrefixTuningConfig(num_virtual_tokens=a["tokens"],
                                                                  task_type="CAUSAL_LM")).double()
    return peft.get_peft_model(model, peft.LoraConfig(
        r=a["rank"], lora_alpha=a["alpha"], use_rslora=a["rslora"], use_dora=a.get("dora", False), target_modules=a["targets"].split(","),
        lora_dropout=0.0, bias="none", fan_in_fan_out=c["family"] == "gpt2", task_type="CAUSAL_LM")).double()


def names(c, model):
    """Our name -> (tensor of the model, how to cut ours out of it, how to put it in), or a list of them, one for each expert."""
    wrapper = "base_model." if prefix_tokens(c) else "base_model.model."
    state = {name.removeprefix(wrapper).replace(".base_layer.", "."): p for name, p in model.named_parameters()}
    out = {}
    for i in range(2 * c["layers"] if prefix_tokens(c) else 0):  # keys and values of each block, side by side
        width = c["kv_heads"] * c["head_width"]
        out[f"blocks.{i // 2}.attention.prefix_{'kv'[i % 2]}"] = (
            state["prompt_encoder.default.embedding.weight"],
            lambda t, first=i * width: t[:, first:first + width])

    def plain(ours, theirs):
        out[ours] = (state[theirs], lambda t: t)

    def part(ours, theirs, first, count):  # of the middle dimension of [experts, out, in]
        out[ours] = (state[theirs], lambda t: t[:, first:first + count])

    def factors(ours, theirs):  # of an adapter
        if f"{theirs}.lora_A.default.weight" in state:
            plain(ours + ".lora_a", theirs + ".lora_A.default.weight")
            plain(ours + ".lora_b", theirs + ".lora_B.default.weight")
        if f"{theirs}.lora_magnitude_vector.default.weight" in state:
            plain(ours + ".lora_m", theirs + ".lora_magnitude_vector.default.weight")

    def bottlenecks(block, theirs):
        for which in ("adapter1.down", "adapter1.up", "adapter2.down", "adapter2.up"):
            if theirs + which in state:
                plain(block + which, theirs + which)

    def rows(ours, theirs, first, count):
        out[ours] = (state[theirs], lambda t: t[first:first + count])

    def conv(ours, theirs, first=0, count=None):  # Conv1D keeps [in, out]
        out[ours] = (state[theirs],
                     lambda t: (t[..., first:first + count] if count else t).T if t.dim() == 2
                     else (t[first:first + count] if count else t))

    if c["family"] == "gpt2":
        C = c["hidden"]
        plain("embedding.weight", "transformer.wte.weight")
        plain("embedding.positions", "transformer.wpe.weight")
        for i in range(c["layers"]):
            h, b = f"transformer.h.{i}.", f"blocks.{i}."
            for ours, theirs in (("norm1", "ln_1"), ("norm2", "ln_2")):
                plain(b + ours + ".weight", h + theirs + ".weight")
                plain(b + ours + ".bias", h + theirs + ".bias")
            for kind in ("weight", "bias"):
                for k, which in enumerate("qkv"):
                    conv(f"{b}attention.{which}.{kind}", f"{h}attn.c_attn.{kind}", k * C, C)
                conv(f"{b}attention.out.{kind}", f"{h}attn.c_proj.{kind}")
                conv(f"{b}mlp.up.{kind}", f"{h}mlp.c_fc.{kind}")
                conv(f"{b}mlp.down.{kind}", f"{h}mlp.c_proj.{kind}")
            for ours, theirs in (("attention.out", "attn.c_proj"), ("mlp.up", "mlp.c_fc"),
                                 ("mlp.down", "mlp.c_proj")):
                factors(b + ours, h + theirs)
            bottlenecks(b, h)
            if f"{h}attn.c_attn.lora_A.default.weight" in state:  # c_attn is one module: one A
                plain(b + "attention.qkv.lora_a", h + "attn.c_attn.lora_A.default.weight")
                for k, which in enumerate("qkv"):
                    rows(f"{b}attention.{which}.lora_b", h + "attn.c_attn.lora_B.default.weight", k * C, C)
                    if c["adapter"].get("dora"):
                        rows(f"{b}attention.{which}.lora_m", h + "attn.c_attn.lora_magnitude_vector.default.weight",
                             k * C, C)
        plain("head.norm.weight", "transformer.ln_f.weight")
        plain("head.norm.bias", "transformer.ln_f.bias")
    else:
        plain("embedding.weight", "model.embed_tokens.weight")
        blocks = [(f"model.layers.{i}.", f"blocks.{i}.") for i in range(c["layers"])]
        for k in range(c["mtp"]):
            blocks.append((f"mtp.{k}.block.", f"mtp.{k}."))
            for ours, theirs in (("embedding_norm", "enorm"), ("hidden_norm", "hnorm"), ("projection", "proj"),
                                 ("head_norm", "norm")):
                plain(f"mtp.{k}.{ours}.weight", f"mtp.{k}.{theirs}.weight")
        for h, b in blocks:
            bottlenecks(b, h)
            plain(b + "norm1.weight", h + "input_layernorm.weight")
            plain(b + "norm2.weight", h + "post_attention_layernorm.weight")
            for ours, theirs in (("attention.q", "self_attn.q_proj"), ("attention.k", "self_attn.k_proj"),
                                 ("attention.v", "self_attn.v_proj"), ("attention.out", "self_attn.o_proj"),
                                 ("mlp.gate", "mlp.gate_proj"), ("mlp.up", "mlp.up_proj"),
                                 ("mlp.down", "mlp.down_proj")):
                for kind in ("weight", "bias"):
                    if f"{h}{theirs}.{kind}" in state:
                        plain(f"{b}{ours}.{kind}", f"{h}{theirs}.{kind}")
                factors(b + ours, h + theirs)
            if c["experts"] and h + "block_sparse_moe.gate.weight" in state:  # transformers 4
                plain(b + "moe.router.weight", h + "block_sparse_moe.gate.weight")
                for ours, theirs in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
                    for end, kind in (("weight", "weight"), ("lora_a", "lora_A.default.weight"),
                                      ("lora_b", "lora_B.default.weight")):
                        of = [f"{h}block_sparse_moe.experts.{e}.{theirs}.{kind}" for e in range(c["experts"])]
                        if of[0] in state:
                            out[f"{b}moe.{ours}.{end}"] = ([state[name] for name in of], lambda t: t)
            elif c["experts"]:
                F = c["ffn_hidden"]
                plain(b + "moe.router.weight", h + "mlp.gate.weight")
                part(b + "moe.gate.weight", h + "mlp.experts.gate_up_proj", 0, F)
                part(b + "moe.up.weight", h + "mlp.experts.gate_up_proj", F, F)
                plain(b + "moe.down.weight", h + "mlp.experts.down_proj")
            if c["qk_norm"]:
                plain(b + "attention.q_norm.weight", h + "self_attn.q_norm.weight")
                plain(b + "attention.k_norm.weight", h + "self_attn.k_norm.weight")
        plain("head.norm.weight", "model.norm.weight")
    if not c["tied"]:
        plain("head.weight", "lm_head.weight")
    return out


def batch(c):
    """tokens, targets (-100: none), positions, mask [B, 1, S, S] or None"""
    B, S = c["batch"], c["context"]
    ids = token_ids(c)
    tokens = torch.tensor(ids[:B * S].reshape(B, S))
    targets = torch.tensor(ids[1:B * S + 1].reshape(B, S))
    positions = torch.arange(S).expand(B, S).clone()
    if not c["documents"]:
        return tokens, targets, positions, None
    mask = torch.full((B, 1, S, S), torch.finfo(torch.float64).min)
    for b in range(B):
        first = 0
        for s in range(S):
            positions[b, s] = s - first
            mask[b, 0, s, first:s + 1] = 0
            if tokens[b, s] == END_OF_TEXT:
                targets[b, s] = -100
                first = s + 1
    return tokens, targets, positions, mask


def loss_and_logits(c, model):
    tokens, targets, positions, mask = batch(c)
    P = prefix_tokens(c)
    if P and mask is not None:  # every token sees the prefix, and of its document what is in the window
        hidden = torch.arange(c["context"])[:, None] - torch.arange(c["context"]) >= c["window"]
        mask = torch.nn.functional.pad(mask.masked_fill(hidden, torch.finfo(torch.float64).min), (P, 0))
        logits = model.base_model(input_ids=tokens, position_ids=positions + P, attention_mask=mask,
                                  past_key_values=model.get_prompt(c["batch"])).logits
    else:
        logits = logits_of(model, tokens, positions, mask, P)
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, c["vocab"]), targets.reshape(-1),
                                             ignore_index=-100)
    return loss, logits


def further_losses(c, model):
    """The mean loss of each further token. Row t of module k reads the rows of module k - 1 (or of the model) and the token
    k places ahead, and predicts the target of that token, if both are in the row's document."""
    tokens, targets, positions, mask = batch(c)
    rows = model.model(input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=False).last_hidden_state
    document = torch.arange(c["context"]) - positions  # its first row
    losses = []
    for k, module in enumerate(model.mtp, 1):
        there = torch.zeros(tokens.shape, dtype=torch.bool)
        there[:, :-k] = document[:, k:] == document[:, :-k]
        ahead = torch.where(there, tokens.roll(-k, 1), 0)
        embedded = model.model.embed_tokens(ahead) * there[..., None]
        rows = module(rows, embedded, attention_mask=mask, position_ids=positions,
                      position_embeddings=model.model.rotary_emb(rows, positions))
        losses.append(torch.nn.functional.cross_entropy(
            model.lm_head(rows).reshape(-1, c["vocab"]),
            torch.where(there, targets.roll(-k, 1), -100).reshape(-1), ignore_index=-100))
    return losses


def whole_loss(c, model):
    """What is trained: the model's own loss, and with a weight those of further tokens; and the former alone."""
    own, _ = loss_and_logits(c, model)
    further = further_losses(c, model) if c["mtp"] else []
    return own + c["mtp_weight"] / max(c["mtp"], 1) * sum(further), own


def logits_of(model, tokens, positions, mask, prefix):
    if prefix:  # PEFT chooses positions: they begin behind the prefix
        return model(input_ids=tokens).logits
    return model(input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=False).logits


def balance(c, model):
    """The mean over rows and routers of the balancing loss of the row's sequence, 1 at balance, in
    the words of Fedus et al. 2021: E sum_e f_e P_e; f is the share of the sequence's choices."""
    tokens, _, positions, mask = batch(c)
    base = model.get_base_model() if c["adapter"] else model
    with torch.no_grad():
        routers = base.model(input_ids=tokens, position_ids=positions, attention_mask=mask,
                              use_cache=False, output_router_logits=True).router_logits
    total, one = 0.0, transformers.models.mixtral.modeling_mixtral.load_balancing_loss_func
    for logits in routers:
        for rows in logits.reshape(c["batch"], c["context"], c["experts"]):
            total += float(one((rows,), c["experts"], c["experts_per_token"])) / c["experts_per_token"]
    return total / (len(routers) * c["batch"])


def rate(step):
    if step <= WARMUP:
        return PEAK * step / WARMUP
    x = (step - WARMUP) / (STEPS - WARMUP)
    return LEAST + (PEAK - LEAST) * 0.5 * (1 + math.cos(math.pi * x))


def curve(c, model):
    """Losses before each of the steps, and the gradient norms."""
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() > 1 and not c["adapter"]]  # an adapter does not decay
    vectors = [p for p in trained if p.dim() == 1 or c["adapter"]]
    adamw = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY},
                               {"params": vectors, "weight_decay": 0.0}],
                              betas=(BETA1, BETA2), eps=EPS)
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        whole, loss = whole_loss(c, model)
        adamw.zero_grad()
        whole.backward()
        norm = math.sqrt(sum(float((p.grad**2).sum()) for p in trained))
        for p in trained:
            p.grad *= min(1.0, CLIP / norm)
        for group in adamw.param_groups:
            group["lr"] = rate(step)
        adamw.step()
        losses.append(loss.item())
        norms.append(norm)
    return np.array(losses), np.array(norms)


def adapter_settings(a):
    """The keys of train.adapter are those of the case."""
    return {"train.adapter." + key: int(value) if isinstance(value, bool) else value for key, value in (a or {}).items()}


def settings(c):
    r = c["rope"] or {}
    mtp = {"model.mtp.layers": c["mtp"], "model.mtp.loss_weight": c["mtp_weight"]} if c["mtp"] else {}
    experts = {"model.experts": c["experts"], "model.experts_per_token": c["experts_per_token"],
               "model.router.renormalize": 1} if c["experts"] else {}
    return {
        **experts,
        **mtp,
        "model.family": c["family"], "model.layers": c["layers"], "model.hidden": c["hidden"],
        "model.heads": c["heads"], "model.kv_heads": c["kv_heads"], "model.head_width": c["head_width"],
        "model.ffn_hidden": c["ffn_hidden"], "model.vocab": c["vocab"], "model.context": c["context"],
        "model.rope_theta": c["rope_theta"], "model.norm_eps": c["norm_eps"],
        "model.tie_embeddings": int(c["tied"]), "model.qkv_bias": int(c["qkv_bias"]),
        "model.out_bias": int(c["out_bias"]), "model.mlp_bias": int(c["mlp_bias"]),
        "model.qk_norm": int(c["qk_norm"]), "model.window": c["window"], "model.window_from": c["window_from"],
        "model.rope_scaling": r.get("type", "none"), "model.rope_scaling.factor": r.get("factor", 1.0),
        "model.rope_scaling.original_context": r.get("original_context", 0),
        "model.rope_scaling.low_freq_factor": r.get("low_freq_factor", 1.0),
        "model.rope_scaling.high_freq_factor": r.get("high_freq_factor", 4.0),
        "model.rope_scaling.beta_fast": r.get("beta_fast", 32.0),
        "model.rope_scaling.beta_slow": r.get("beta_slow", 1.0),
        "model.rope_scaling.attention_factor": r.get("attention_factor", 0.0),
        "train.global_batch": c["batch"], "data.documents": "bounded" if c["documents"] else "joined",
        "data.end_of_text": END_OF_TEXT if c["documents"] else -1,
        **adapter_settings(c["adapter"]),
    }


def peft_version(c):
    if not c["adapter"] or c["adapter"]["type"] == "bottleneck":
        return ""
    import peft

    return ", peft " + peft.__version__


def write(name, c):
    model = build(c)
    ours = names(c, model)
    named = {id(t) for of, _ in ours.values() for t in (of if isinstance(of, list) else [of])}
    assert len(named) == len(list(model.parameters())), "a parameter is not named"
    with torch.no_grad():
        for our_name, (tensor, cut) in ours.items():
            if isinstance(tensor, list):
                values = weights(our_name, (len(tensor), *tensor[0].shape))
                for t, v in zip(tensor, values):
                    t.copy_(torch.tensor(v))
                continue
            view = cut(tensor)
            view.copy_(torch.tensor(weights(our_name, tuple(view.shape))))
    loss, logits = loss_and_logits(c, model)
    whole_loss(c, model)[0].backward()
    tensors = {"loss": np.array([loss.item()]), "logits": logits[0].detach().numpy()}
    for our_name, (tensor, cut) in ours.items():
        if isinstance(tensor, list):
            if tensor[0].requires_grad:
                tensors["gradient " + our_name] = np.stack([t.grad.numpy() for t in tensor])
        elif tensor.requires_grad:
            tensors["gradient " + our_name] = cut(tensor.grad).detach().numpy().copy()
    if c["mtp"]:
        tensors["further"] = np.array([loss.item() for loss in further_losses(c, model)])
    if c["experts"]:
        tensors["balance"] = np.array([balance(c, model)])
    tensors["curve"], tensors["norms"] = curve(c, model)
    path = os.path.join(HERE, "values", name + ".golden")
    with open(path, "wb") as f:
        f.write(b"golden 1\n")
        f.write(f"# torch {torch.__version__}, transformers {transformers.__version__}{peft_version(c)}\n".encode())
        for key, value in settings(c).items():
            f.write(f"{key} {value}\n".encode())
        for key, value in tensors.items():
            f.write(f"tensor {key} {value.size}\n".encode())
        f.write(b"end\n")
        for value in tensors.values():
            f.write(np.ascontiguousarray(value, dtype="<f4").tobytes())
    print(f"{name}: loss {loss.item():.6f} -> {tensors['curve'][-1]:.6f}, {os.path.getsize(path)} bytes")


def main():
    os.makedirs(os.path.join(HERE, "values"), exist_ok=True)
    for name in sys.argv[1:] or CASES:
        write(name, CASES[name])


if __name__ == "__main__":
    main()
