"""The PyTorch side of layouts_cpu: one rank of the same model, in one of PyTorch's layouts, over gloo.

    layouts_cpu_torch.py LAYERS HIDDEN HEADS VOCAB CONTEXT BATCH fp32|bf16 THREADS
                         one|ddp|fsdp|pp RANK WORLD MICRO_BATCHES STORE

BATCH sequences a step over all ranks; STORE: a file where the ranks meet. Says one line about
itself, answers each line `run N` by N step times in milliseconds, and `memory` by the bytes that the
process has taken at most since before it made the model.

  one    one process                        ddp  DistributedDataParallel
  fsdp   fully_shard (FSDP2); where it does not run on the CPU, FullyShardedDataParallel (FSDP1,
         FULL_SHARD); a unit per block
  pp     torch.distributed.pipelining, PipelineStage and Schedule1F1B, half of the blocks a rank; it
         has neither tied weights nor a norm over stages, so these are summed here
"""

import contextlib
import inspect
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from torch_block import Block

layers, hidden, heads, vocab, context, batch = (int(a) for a in sys.argv[1:7])
precision, threads, layout = sys.argv[7], int(sys.argv[8]), sys.argv[9]
rank, world, micro_batches, store = int(sys.argv[10]), int(sys.argv[11]), int(sys.argv[12]), sys.argv[13]
torch.set_num_threads(threads)
torch.set_num_interop_threads(1)
torch.manual_seed(1)
if world > 1:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)

fsdp2 = None
if layout == "fsdp":  # FSDP2 is tried on a module of one layer: PyTorch 2.4 wants a CUDA stream for it
    try:
        from torch.distributed._composable.fsdp import fully_shard
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (world,))
        tried = fully_shard(nn.Linear(4, 4), mesh=mesh)
        tried(torch.zeros(1, 4)).sum().backward()
        fsdp2 = True
    except (RuntimeError, AssertionError, AttributeError, NotImplementedError, ImportError):
        fsdp2 = False


def high_water_bytes():
    with open("/proc/self/status") as f:
        return next(int(l.split()[1]) * 1024 for l in f if l.startswith("VmHWM"))


before = high_water_bytes()


def autocast():
    return torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()


class GPT2(nn.Module):
    """All of it, or its first or last blocks: tokens in or hidden rows in, hidden rows or logits out."""

    def __init__(self, blocks, first, last):
        super().__init__()
        self.first, self.last = first, last
        self.tokens = nn.Embedding(vocab, hidden)  # tied: also the head's weight
        if first:
            self.positions = nn.Embedding(context, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(blocks))
        if last:
            self.norm = nn.LayerNorm(hidden)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, x):
        with autocast():
            if self.first:
                x = self.tokens(x) + self.positions.weight
            for block in self.blocks:
                x = block(x)
            return F.linear(self.norm(x), self.tokens.weight) if self.last else x


def loss_of(logits, targets):
    return F.cross_entropy(logits.float().reshape(-1, vocab), targets.reshape(-1))


def shard(model):
    """The sharded model and its clipping of gradients."""
    if fsdp2:
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    model = FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True,
        device_id=torch.device("cpu"), forward_prefetch=True,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE)
    return model, lambda: model.clip_grad_norm_(1.0)


class Works:
    """Transfers that are waited for together."""

    def __init__(self, works):
        self.works = works

    def wait(self):
        for work in self.works:
            work.wait()


def keep_transfers(schedules):
    """PyTorch 2.4 keeps only the last work of a batch. With nccl it stands for all; with gloo the others
    are sends that are cancelled when they are collected, and the peer waits for ever. Later versions
    wait for all, too."""
    if not hasattr(schedules, "_wait_batch_p2p"):
        schedules._batch_p2p = lambda ops, desc=None: Works(dist.batch_isend_irecv(ops)) if ops else None


def stage(model):
    """A pipeline stage's schedule, and the clipping of gradients over both stages."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, schedules
    keep_transfers(schedules)
    rows = batch // micro_batches
    inside = torch.zeros(rows, context, hidden, requires_grad=True)  # later versions ask it whether gradients come back
    shapes = [torch.zeros(rows, context, dtype=torch.int64), inside, torch.zeros(rows, context, vocab, requires_grad=True)]
    part = PipelineStage(model, rank, world, torch.device("cpu"), input_args=(shapes[0] if rank == 0 else inside,),
                         output_args=(inside if rank == 0 else shapes[2],))
    options = {"scale_grads": False} if "scale_grads" in inspect.signature(Schedule1F1B).parameters else {}
    schedule = Schedule1F1B(part, micro_batches, loss_fn=lambda y, t: loss_of(y, t) / micro_batches, **options)

    def clip():
        dist.all_reduce(model.tokens.weight.grad)
        grads = [p.grad for p in model.parameters()]
        counted = [p.grad for p in model.parameters() if model.first or p is not model.tokens.weight]
        square = torch.stack(torch._foreach_norm(counted)).square().sum()
        dist.all_reduce(square)
        torch._foreach_mul_(grads, torch.clamp(1.0 / (square.sqrt() + 1e-6), max=1.0))
    return schedule, clip


pipeline = None
if layout == "pp":
    model = GPT2(layers // world, rank == 0, rank == world - 1)
    pipeline, clip = stage(model)
    name = "pipelining 1F1B"
elif layout == "fsdp":
    model, clip = shard(GPT2(layers, True, True))
    name = "FSDP2" if fsdp2 else "FSDP1 (FSDP2 does not run without a GPU)"
else:
    model, name = GPT2(layers, True, True), "one process"
    if layout == "ddp":
        model, name = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True), "DDP"
    clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0)

matrices = [p for n, p in model.named_parameters() if "norm" not in n and "bias" not in n]
vectors = [p for n, p in model.named_parameters() if "norm" in n or "bias" in n]
update = torch.optim.AdamW(
    [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
    lr=6e-4, betas=(0.9, 0.95), fused=True)
mine = batch if layout in ("one", "pp") else batch // world
data = torch.randint(0, 256, (16, mine, context + 1))
steps = 0


def step():
    global steps
    tokens = data[steps % len(data)]
    steps += 1
    update.zero_grad(set_to_none=True)
    loss = None
    if pipeline:
        losses = []
        pipeline.step(*([tokens[:, :-1].contiguous()] if rank == 0 else []),
                      target=tokens[:, 1:] if rank == world - 1 else None, losses=losses)
    else:
        loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
    clip()
    update.step()
    return loss.item() if loss is not None else None


step()  # touches what later steps reuse
onednn = next((l for l in torch.__config__.show().splitlines() if "MKL-DNN" in l), "").strip(" -")
print(f"PyTorch {torch.__version__} {name}, {onednn}", flush=True)
for line in sys.stdin:
    if line.startswith("memory"):
        print(high_water_bytes() - before, flush=True)
        continue
    times = []
    for _ in range(int(line.split()[1])):
        begin = time.perf_counter()
        step()
        times.append((time.perf_counter() - begin) * 1e3)
    print(*(f"{t:.3f}" for t in times), flush=True)
