"""models.py make DIR             a model directory per configuration, with the logits that it should give
   models.py compare LIST         a line of LIST is "NAME DIR NPY": does NPY hold the logits that
                                  transformers gives for the model in DIR? Prints ok or not ok"""
import os
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
import numpy as np
import torch
from transformers import (AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, MixtralConfig,
                          Qwen2Config, Qwen3Config)

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


if sys.argv[1] == "make":
    make(sys.argv[2])
elif sys.argv[1] == "tokens":
    print(*TOKENS)
else:
    for line in open(sys.argv[2]):
        compare(*line.split())
