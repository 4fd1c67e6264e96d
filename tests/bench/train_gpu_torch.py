"""The PyTorch side of train_gpu: the same model, data shapes and update, at PyTorch's best.

    train_gpu_torch.py FAMILY fp32|bf16 torch|torch-cudnn LAYERS HIDDEN HEADS KV_HEADS HEAD_WIDTH FFN
                       VOCAB CONTEXT MICRO_BATCH GLOBAL_BATCH WARM_UP STEPS [cuda|cpu]

Says one line about itself, by which library attention is among it, then the milliseconds of each step,
then the peak of allocated memory in MiB and the last step's loss. What is at its best: torch.compile (of
each block, if there are more than 16 layers), fused AdamW, scaled_dot_product_attention with grouped
heads, autocast to bf16 over fp32 weights, a vocabulary padded to a multiple of 128, gradients set to
None. torch-cudnn: attention is by cuDNN, whatever PyTorch would choose by itself.

A step is what ours is: GLOBAL_BATCH sequences in parts of MICRO_BATCH, random tokens that change with
the step, gradients summed in fp32, clipped at 1, AdamW with decay for matrices alone over fp32
weights and moments, the loss read by the host. What differs: autocast rounds weights to bf16 in every
part (ours once a step), norms and the loss compute in fp32 (ours in fp32 from and to bf16), and the
logits of a part are there all at once (ours in pieces of 4,096 rows).

On a cpu it only shows that it runs.
"""

import sys
import time

import torch
from torch import nn
from torch.backends import cuda
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

family, precision, peer = sys.argv[1:4]
(layers, hidden, heads, kv_heads, width, ffn, vocab, context, micro, batch, warm_up,
 steps) = (int(a) for a in sys.argv[4:16])
device = sys.argv[16] if len(sys.argv) > 16 else "cuda"
gpt2 = family == "gpt2"
padded = (vocab + 127) // 128 * 128
torch.manual_seed(1)
torch.set_float32_matmul_precision("high" if precision == "bf16" else "highest")


def norm():
    return nn.LayerNorm(hidden) if gpt2 else nn.RMSNorm(hidden, eps=1e-5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = norm(), norm()
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * width, bias=family != "llama")
        self.out = nn.Linear(heads * width, hidden, bias=gpt2)
        self.up = nn.Linear(hidden, ffn if gpt2 else 2 * ffn, bias=gpt2)
        self.down = nn.Linear(ffn, hidden, bias=gpt2)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        parts = [heads * width, kv_heads * width, kv_heads * width]
        q, k, v = (t.view(b, s, -1, width).transpose(1, 2)
                   for t in self.qkv(self.norm1(x)).split(parts, dim=2))
        if not gpt2:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, heads * width))
        h = self.up(self.norm2(x))
        if gpt2:
            h = F.gelu(h, approximate="tanh")
        else:
            gate, up = h.chunk(2, dim=2)
            h = F.silu(gate) * up
        return x + self.down(h)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=3)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=3).to(x.dtype)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(padded, hidden)
        self.positions = nn.Embedding(context, hidden) if gpt2 else None
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = norm()
        angles = torch.outer(torch.arange(context).float(),
                             1e6 ** (-torch.arange(0, width, 2).float() / width))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        if gpt2:
            x = x + self.positions.weight
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.tokens.weight)[..., :vocab]
        return F.cross_entropy(logits.reshape(-1, vocab), targets.reshape(-1))


model = Model().to(device)
if layers > 16:  # as a whole it compiles for minutes; blocks alike are compiled once
    for block in model.blocks:
        block.compile()
run = torch.compile(model) if layers <= 16 else model
matrices = [p for p in model.parameters() if p.dim() == 2]
vectors = [p for p in model.parameters() if p.dim() != 2]
update = torch.optim.AdamW(
    [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
    lr=6e-4, betas=(0.9, 0.95), fused=True)
data = torch.randint(0, vocab, (4, batch, context + 1), device=device)


def step(i):
    update.zero_grad(set_to_none=True)
    total = 0
    for part in data[i % len(data)].split(micro):
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            loss = run(part[:, :-1], part[:, 1:]) * (len(part) / batch)
        loss.backward()
        total = total + loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    update.step()
    return total.item()


def chosen():
    """Returns the name of the library that computes attention at the model's shapes."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    q, k = (torch.zeros(micro, n, context, width, dtype=dtype, device=device, requires_grad=True)
            for n in (heads, kv_heads))
    number = torch._fused_sdp_choice(q, k, k, is_causal=True, enable_gqa=heads != kv_heads)
    return SDPBackend(number).name.lower().replace("_attention", "")


if peer == "torch-cudnn":
    for other in (cuda.enable_flash_sdp, cuda.enable_mem_efficient_sdp, cuda.enable_math_sdp):
        other(False)
    cuda.enable_cudnn_sdp(True)
attention = chosen()
for i in range(warm_up):
    step(i)
on = f"CUDA {torch.version.cuda}" if device == "cuda" else device
whole = "compiled" if layers <= 16 else "its blocks compiled"
print(f"PyTorch {torch.__version__}, {on}, {whole}, attention by {attention}", flush=True)
times = []
for i in range(steps):
    begin = time.perf_counter()
    loss = step(i)  # the host has it when the update is done: .item() waits for its stream
    times.append((time.perf_counter() - begin) * 1e3)
print(*(f"{t:.3f}" for t in times))
peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
print(f"{peak / 2**20:.0f} {loss:.4f}", flush=True)
