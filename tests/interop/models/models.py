"""models.py make DIR             a model directory per configuration, with the logits that it should give
   models.py compare LIST         a line of LIST is "NAME DIR NPY": does NPY hold the logits that
                                  transformers gives for the model in DIR? Prints ok or not ok
   models.py balance NAME DIR TEXT METRIC WEIGHT
                                  the balancing losses of the Mixtral in DIR on the first four sequences of the
                                  file TEXT: is METRIC the mean of the routers', and WEIGHT what makes of their
                                  sum the loss of transformers? Prints ok or not ok, and how they differ"""
import os
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
import numpy as np
import torch
from transformers import (AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, MixtralConfig,
                          Qwen2Config, Qwen3Config)
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

# Odd sizes where the kernels allow them; the window, the original context and the ramps of scaled
# angles all lie within the tokens that are compared.
TOKENS = [(37 * i * i + 11 * i + 5) % 256 for i in range(41)]
GPT2 = dict(vocab_size=256, n_positions=48, n_embd=48, n_layer=2, n_head=3, attn_pdrop=0.0,
            embd_pdrop=0.0, resid_pdrop=0.0)
LIKE = dict(vocab_size=256, hidden_size=48, num_hidden_layers=3, num_attention_heads=6,
            num_key_value_heads=2, intermediate_size=88, max_position_embeddings=48)
LLAMA3 = dict(rope_type="llama3", rope_theta=50000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=16)
LINEAR = dict(rope_type="linear", rope_theta=1000.0, factor=3.0)
CONFIGS = {
    "gpt2": lambda: GPT2Config(**GPT2),
    "gpt2-untied-narrow": lambda: GPT2Config(**GPT2, n_inner=100, tie_word_embeddings=False),
    "llama-gqa": lambda: LlamaConfig(**LIKE),
    "llama-mqa-tied": lambda: LlamaConfig(**{**LIKE, "num_key_value_heads": 1},
                                          tie_word_embeddings=True),
    "llama-biases-linear": lambda: LlamaConfig(**LIKE, attention_bias=True, mlp_bias=True,
                                               rope_parameters=LINEAR),
    "llama-llama3": lambda: LlamaConfig(**LIKE, rope_parameters=LLAMA3),
    "mistral-window": lambda: MistralConfig(**LIKE, head_dim=16, sliding_window=9),
    "mistral-full": lambda: MistralConfig(**LIKE, head_dim=8, sliding_window=None),
    "qwen2": lambda: Qwen2Config(**LIKE),
    "qwen2-window-tied": lambda: Qwen2Config(**LIKE, use_sliding_window=True, sliding_window=7,
                                             max_window_layers=1, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**LIKE, head_dim=16),
    "qwen3-bias-yarn": lambda: Qwen3Config(**LIKE, head_dim=16, attention_bias=True,
                                           rope_parameters=YARN),
    "mixtral": lambda: MixtralConfig(**LIKE, num_local_experts=4),
    "mixtral-fused": lambda: MixtralConfig(**LIKE, num_local_experts=6, num_experts_per_tok=3,
                                           sliding_window=9, tie_word_embeddings=True),
}


def logits_of(directory):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                 attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].numpy()


def make(out):
    torch.manual_seed(1)
    for name, config in CONFIGS.items():
        model = AutoModelForCausalLM.from_config(config())
        with torch.no_grad():  # biases and norms begin as zeros and ones, which fit anywhere
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        # one of them in several files with an index, one as version 5 has it in memory
        form = dict(save_original_format=False) if name == "mixtral-fused" else {}
        model.save_pretrained(f"{out}/{name}", **form,
                              max_shard_size="40KB" if name == "llama-gqa" else "1GB")
    print(" ".join(CONFIGS))


def compare(name, directory, npy):
    want, got = logits_of(directory), np.load(npy)
    if want.shape != got.shape:
        print(f"not ok {name}: shape {got.shape}, not {want.shape}")
        return
    error = float(np.abs(got - want).max() / np.abs(want).max())
    verdict = "ok" if error < 1e-5 else "not ok"
    print(f"{verdict} {name}: the largest difference is {error:.2g} of the largest logit")


def balance(name, directory, text, metric, weight):
    """Ours is the sum over layers of the mean over sequences; that of transformers is one of all tokens in all
    layers, so that an imbalance of one layer may hide that of another. metric: our mean over layers."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    c, B, S = model.config, 4, model.config.max_position_embeddings
    E, K, L = c.num_local_experts, c.num_experts_per_tok, c.num_hidden_layers
    gates = [p for n, p in model.named_parameters() if n.endswith("gate.weight")]
    assert len(gates) == L
    ids = torch.tensor(list(open(text, "rb").read(B * S))).reshape(B, S)
    logits = model(ids, output_router_logits=True).router_logits
    theirs = load_balancing_loss_func(logits, E, K)
    layers = [load_balancing_loss_func((one,), E, K) / K for one in logits]
    ours = sum(load_balancing_loss_func((one,), E, K) / K for layer in logits for one in layer.reshape(B, S, E)) / B

    def gradient(loss):
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, gates, retain_graph=True)])

    a, b = gradient(c.router_aux_loss_coef * theirs), gradient(weight * ours)
    size, along = float(b.norm() / a.norm()), float(torch.dot(a, b) / a.norm() / b.norm())
    each, pooled = float(ours) / L, float(theirs) / K
    print(f"# {name}, {L} layers, {E} experts, {K} a token: balance of all layers together {pooled:.4f}, mean of "
          f"layers {float(sum(layers)) / L:.4f}, of layers and sequences (ours) {each:.4f}")
    print(f"# {name}: our weighted loss is {weight * float(ours) / (c.router_aux_loss_coef * float(theirs)):.3f} times "
          f"theirs; the gradients of the routers: {size:.2f} times as large, cosine {along:.3f}")
    same = abs(metric - each) < 1e-4 * each
    print("ok" if same else f"not ok {name}: {metric} is not {each}:", f"{name}_is_what_we_report")
    # equal where all layers are balanced alike, since both are 1 there: the weights agree
    fits = abs(weight * L - c.router_aux_loss_coef * K) < 1e-12
    print("ok" if fits else f"not ok {name}: {weight} for {L} layers, {c.router_aux_loss_coef} there:",
          f"{name}_has_its_weight")


if sys.argv[1] == "make":
    make(sys.argv[2])
elif sys.argv[1] == "tokens":
    print(*TOKENS)
elif sys.argv[1] == "balance":
    balance(*sys.argv[2:5], float(sys.argv[5]), float(sys.argv[6]))
else:
    for line in open(sys.argv[2]):
        compare(*line.split())
