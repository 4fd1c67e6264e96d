"""The PyTorch side of train_cpu: the same model, data shapes and update, at PyTorch's best.

    train_cpu_torch.py LAYERS HIDDEN HEADS VOCAB CONTEXT BATCH fp32|bf16 THREADS eager|compile

Says one line about itself, then answers each line `run N` by N step times in milliseconds. What is
at its best: fused AdamW, scaled_dot_product_attention, autocast to bf16, gradients set to None,
threads pinned and the allocator kept from returning memory (by train_cpu, in the environment).
"""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

from torch_block import Block

layers, hidden, heads, vocab, context, batch = (int(a) for a in sys.argv[1:7])
precision, threads, how = sys.argv[7], int(sys.argv[8]), sys.argv[9]
torch.set_num_threads(threads)
torch.set_num_interop_threads(1)
torch.manual_seed(1)


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(context, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.reshape(-1, vocab), targets.reshape(-1))


model = GPT2()
run = torch.compile(model) if how == "compile" else model
matrices = [p for p in model.parameters() if p.dim() == 2]
vectors = [p for p in model.parameters() if p.dim() != 2]
update = torch.optim.AdamW(
    [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
    lr=6e-4, betas=(0.9, 0.95), fused=True)
data = torch.randint(0, 256, (64, batch, context + 1))
steps = 0


def step():
    global steps
    tokens = data[steps % len(data)]
    steps += 1
    update.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        loss = run(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    update.step()
    return loss.item()


step()  # compiles, and touches what later steps reuse
blas = next((w for w in torch.__config__.show().split(", ") if "BLAS_INFO" in w), "BLAS unknown")
onednn = next((l for l in torch.__config__.show().splitlines() if "MKL-DNN" in l), "").strip(" -")
print(f"PyTorch {torch.__version__} {how}, {blas.split()[-1]}, {onednn}, "
      f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads", flush=True)
for line in sys.stdin:
    times = []
    for _ in range(int(line.split()[1])):
        begin = time.perf_counter()
        step()
        times.append((time.perf_counter() - begin) * 1e3)
    print(*(f"{t:.3f}" for t in times), flush=True)
