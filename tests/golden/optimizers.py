#!/usr/bin/env python3
"""Writes values/optimizer-*.golden: 20 steps of a small model by the optimizers of train.optimizer that
generate.py does not use, in its format and by its rules.

    python3 tests/golden/optimizers.py [CASE...]        torch (with torch.optim.Muon) and transformers

Lion is the six lines of its paper. Muon is torch.optim.Muon for the matrices of linears of blocks, whose
iteration computes in the precision of its input in place of bf16 and divides by no less than 1e-30, and
AdamW for all other parameters. A file holds the losses before the steps, the gradient norms, and the
weights after the last step; with QK-clip, which is written here by the words of its paper (Kimi Team
2025), also the largest attention scores, and how many heads were clipped.
"""
import math
import os
import sys

import numpy as np
import torch
import torch.optim._muon as muon_of_torch

import generate
from generate import (BETA1, CLIP, DECAY, EPS, HERE, STEPS, batch, build, case, names, rate, settings, weights,
                      whole_loss)

THRESHOLD, ALPHA = 0.25, 0.375
CASES = {
    "optimizer-lion": dict(case("llama", layers=1, kv_heads=1), optimizer="lion", beta2=0.99, keys={}),
    "optimizer-muon": dict(case("llama", layers=1, kv_heads=1), optimizer="muon", beta2=0.95, scale="match_rms_adamw",
                           keys={"train.optimizer.momentum": 0.95, "train.optimizer.nesterov": 1,
                                 "train.optimizer.scale": "moonlight", "train.optimizer.ns_steps": 5,
                                 "train.optimizer.adamw_lr": 1.0}),
    "optimizer-muon-keller": dict(case("llama", layers=1, kv_heads=1), optimizer="muon", beta2=0.95, scale="original",
                                  keys={"train.optimizer.momentum": 0.9, "train.optimizer.nesterov": 0,
                                        "train.optimizer.scale": "keller", "train.optimizer.ns_steps": 5,
                                        "train.optimizer.adamw_lr": 0.5}),
}
# two groups of two heads, with biases; the threshold is within the range of the heads' largest scores
CASES["optimizer-muon-qk-clip"] = {**CASES["optimizer-muon"],
                                   **dict(heads=4, kv_heads=2, qkv_bias=True, out_bias=True, mlp_bias=True),
                                   "keys": {**CASES["optimizer-muon"]["keys"], "train.qk_clip.threshold": THRESHOLD,
                                            "train.qk_clip.alpha": ALPHA}}


def iterate(u, coefficients, steps, eps):
    a, b, c = coefficients
    x = u / max(float(u.norm()), 1e-30)
    x = x.T if u.size(0) > u.size(1) else x
    for _ in range(steps):
        g = x @ x.T
        x = a * x + (b * g + c * g @ g) @ x
    return x.T if u.size(0) > u.size(1) else x


muon_of_torch._zeropower_via_newtonschulz = iterate


class Lion:
    def __init__(self, trained, beta2):
        self.trained, self.beta2 = trained, beta2
        self.m = [torch.zeros_like(p) for p in trained]

    def step(self, lr):
        for p, m in zip(self.trained, self.m):
            c = BETA1 * m + (1 - BETA1) * p.grad
            p.data -= lr * (torch.sign(c) + (DECAY if p.dim() > 1 else 0) * p.data)
            m.mul_(self.beta2).add_((1 - self.beta2) * p.grad)


class Muon:
    def __init__(self, c, named):
        linear = [p for name, p in named if p.dim() > 1 and ".layers." in name]
        others = [p for name, p in named if not (p.dim() > 1 and ".layers." in name)]
        keys = c["keys"]
        self.factor = keys["train.optimizer.adamw_lr"]
        self.muon = torch.optim.Muon(linear, weight_decay=DECAY, momentum=keys["train.optimizer.momentum"],
                                     nesterov=bool(keys["train.optimizer.nesterov"]), adjust_lr_fn=c["scale"])
        self.adamw = torch.optim.AdamW([{"params": [p for p in others if p.dim() > 1], "weight_decay": DECAY},
                                        {"params": [p for p in others if p.dim() == 1], "weight_decay": 0.0}],
                                       betas=(BETA1, c["beta2"]), eps=EPS)

    def step(self, lr):
        for optimizer, factor in (self.muon, 1.0), (self.adamw, self.factor):
            for group in optimizer.param_groups:
                group["lr"] = lr * factor
            optimizer.step()


class Scores:
    """The largest attention score of each head in a step: what eager attention hands to softmax."""

    def __init__(self, model):
        self.of_blocks, self.softmax = [], torch.nn.functional.softmax
        model.set_attn_implementation("eager")
        torch.nn.functional.softmax = self.see

    def see(self, scores, *rest, **named):
        if scores.dim() == 4:
            self.of_blocks.append(scores.detach().amax(dim=(0, 2, 3)))
        return self.softmax(scores, *rest, **named)

    def clip(self, c, model):
        """Scales queries and keys; returns the largest score, and the number of heads that were clipped."""
        share, width, clipped = c["heads"] // c["kv_heads"], c["head_width"], 0
        for block, tops in zip(model.model.layers, self.of_blocks):
            for g in range(c["kv_heads"]):
                gamma = min(1.0, THRESHOLD / float(tops[g * share:(g + 1) * share].max()))
                clipped += share * (gamma < 1)
                for linear, first, rows, power in (
                        (block.self_attn.q_proj, g * share * width, share * width, ALPHA),
                        (block.self_attn.k_proj, g * width, width, 1 - ALPHA)):
                    for tensor in linear.weight, linear.bias:
                        tensor.data[first:first + rows] *= gamma**power
        most = max(float(tops.max()) for tops in self.of_blocks)
        self.of_blocks.clear()
        return most, clipped


def write(name, c):
    model = build(c)
    ours = names(c, model)
    with torch.no_grad():
        for our_name, (tensor, cut) in ours.items():
            view = cut(tensor)
            view.copy_(torch.tensor(weights(our_name, tuple(view.shape))))
    named = list(model.named_parameters())
    trained = [p for _, p in named]
    optimizer = Lion(trained, c["beta2"]) if c["optimizer"] == "lion" else Muon(c, named)
    scores = Scores(model) if "train.qk_clip.threshold" in c["keys"] else None
    losses, norms, tops = [], [], []
    for step in range(1, STEPS + 1):
        whole, loss = whole_loss(c, model)
        model.zero_grad()
        whole.backward()
        norm = math.sqrt(sum(float((p.grad**2).sum()) for p in trained))
        for p in trained:
            p.grad *= min(1.0, CLIP / norm)
        optimizer.step(rate(step))
        if scores:
            tops.append(scores.clip(c, model))
        losses.append(loss.item())
        norms.append(norm)
    tensors = {"curve": np.array(losses), "norms": np.array(norms)}
    if scores:
        torch.nn.functional.softmax = scores.softmax
        print("largest scores, clipped heads:", tops)
        tensors.update(top=np.array([top for top, _ in tops]), clipped=np.array([n for _, n in tops]))
    for our_name, (tensor, cut) in ours.items():
        tensors["weight " + our_name] = cut(tensor).detach().numpy().copy()
    keys = {**settings(c), "train.optimizer.name": c["optimizer"], "train.beta2": c["beta2"], **c["keys"]}
    path = os.path.join(HERE, "values", name + ".golden")
    with open(path, "wb") as f:
        f.write(b"golden 1\n")
        f.write(f"# torch {torch.__version__}, transformers {generate.transformers.__version__}\n".encode())
        for key, value in keys.items():
            f.write(f"{key} {value}\n".encode())
        for key, value in tensors.items():
            f.write(f"tensor {key} {value.size}\n".encode())
        f.write(b"end\n")
        for value in tensors.values():
            f.write(np.ascontiguousarray(value, dtype="<f4").tobytes())
    print(f"{name}: loss {losses[0]:.6f} -> {losses[-1]:.6f}, {os.path.getsize(path)} bytes")


for name in sys.argv[1:] or CASES:
    write(name, CASES[name])
