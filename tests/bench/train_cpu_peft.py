"""The PEFT side of train_cpu: the same shape, adapter and update, by transformers and PEFT at their best.

    train_cpu_peft.py LAYERS HIDDEN HEADS KV_HEADS FFN VOCAB CONTEXT BATCH fp32|bf16 THREADS plain|nf4

A Qwen2 of random weights with tied embeddings, LoRA of rank 16 on all linears; with nf4 the base's linears are
bitsandbytes' Linear4bit with double quantisation. Says one line about itself, then answers each line `run N` by N
step times in milliseconds. What is at its best: the frozen base in the precision that computes, adapters in fp32
as PEFT has them by default, scaled_dot_product_attention, fused AdamW over the adapters alone, no gradient
checkpointing, gradients set to None, threads pinned and the allocator kept from returning memory (by train_cpu).
"""
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, Qwen2Config

layers, hidden, heads, kv_heads, ffn, vocab, context, batch = (int(a) for a in sys.argv[1:9])
precision, threads, weights = sys.argv[9], int(sys.argv[10]), sys.argv[11]
torch.set_num_threads(threads)
torch.set_num_interop_threads(1)
torch.manual_seed(1)
dtype = torch.bfloat16 if precision == "bf16" else torch.float32
versions = f"PyTorch {torch.__version__}"


def quantise(model):
    import bitsandbytes as bnb
    for parent in list(model.model.layers.modules()):
        for name, linear in list(parent.named_children()):
            if not isinstance(linear, nn.Linear):
                continue
            own = bnb.nn.Linear4bit(linear.in_features, linear.out_features, linear.bias is not None,
                                    compute_dtype=dtype, compress_statistics=True, quant_type="nf4")
            own.weight = bnb.nn.Params4bit(linear.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4")
            own.bias = linear.bias
            setattr(parent, name, own.to("cpu"))  # encodes
            assert getattr(parent, name).weight.quant_state is not None
    model.is_loaded_in_4bit = True
    return f", bitsandbytes {bnb.__version__}"


config = Qwen2Config(vocab_size=vocab, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                     num_key_value_heads=kv_heads, intermediate_size=ffn, max_position_embeddings=context,
                     tie_word_embeddings=True, use_cache=False)
model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
if weights == "nf4":
    versions += quantise(model)
model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear"))
model.train()
trained = [p for p in model.parameters() if p.requires_grad]
assert sum(p.numel() for p in trained) == layers * 16 * (2 * hidden + 2 * (hidden + kv_heads * hidden // heads) + 2 * hidden
                                                        + 3 * (hidden + ffn))
update = torch.optim.AdamW(trained, lr=6e-4, betas=(0.9, 0.95), weight_decay=0, fused=True)
data = torch.randint(0, 256, (64, batch, context + 1))
steps = 0


def step():
    global steps
    tokens = data[steps % len(data)]
    steps += 1
    update.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        logits = model(input_ids=tokens[:, :-1]).logits
    loss = nn.functional.cross_entropy(logits.reshape(-1, vocab), tokens[:, 1:].reshape(-1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    update.step()
    return loss.item()


step()  # touches what later steps reuse
import peft
import transformers
print(f"PEFT {peft.__version__}, transformers {transformers.__version__}, {versions}, "
      f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads", flush=True)
for line in sys.stdin:
    times = []
    for _ in range(int(line.split()[1])):
        begin = time.perf_counter()
        step()
        times.append((time.perf_counter() - begin) * 1e3)
    print(*(f"{t:.3f}" for t in times), flush=True)
