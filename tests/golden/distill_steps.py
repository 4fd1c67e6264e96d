#!/usr/bin/env python3
"""Writes values/distill-*.golden: 10 steps of a student with a teacher's model beside it, in the format and by the rules
of generate.py.

    python3 tests/golden/distill_steps.py [CASE...]        torch and transformers

The teacher has another width and depth, and the weights of the rule for the names "teacher NAME". The loss of a row is
(1 - w) x that of its label + w x the divergence of the student's distribution over the whole vocabulary from the
teacher's, both of logits divided by a temperature (distill.py). A file holds the means of the label's loss and of the
divergence before each step, and the gradient norms. Of distill-gkd rows are those of fixed answers behind their prompts
(policy.py), each read alone, and their tokens are the labels.
"""
import math
import os
import sys

import numpy as np
import torch

import generate
from distill import divergence
import policy
from generate import BETA1, BETA2, CLIP, DECAY, EPS, HERE, batch, build, case, logits_of, names, rate, settings, weights

STEPS = 10
STUDENT = case("llama", layers=1, kv_heads=1)
# of distill-gkd: what pairs of tp, dp and pp ranks can share
ANSWERS = case("llama", hidden=32, heads=4, kv_heads=2, context=32, batch=4)
TEACHER = case("llama", hidden=32, heads=4, kv_heads=2, ffn_hidden=56)
# loss, temperature, weight, beta
CASES = {"distill-forward": ("forward", 2.0, 0.5, 0.5), "distill-reverse": ("reverse", 1.0, 1.0, 0.5),
         "distill-jsd": ("jsd", 1.5, 0.75, 0.3), "distill-gkd": ("jsd", 0.9, 1.0, 0.5)}
MODEL = ("layers", "hidden", "heads", "kv_heads", "head_width", "ffn_hidden", "vocab", "rope_theta", "norm_eps")


def made(c, prefix):
    model = build(c)
    with torch.no_grad():
        for name, (tensor, cut) in names(c, model).items():
            view = cut(tensor)
            view.copy_(torch.tensor(weights(prefix + name, tuple(view.shape))))
    return model


def rows(model, c):
    """Logits and labels of all rows of a step of case c."""
    V = c["vocab"]
    if c is STUDENT:
        tokens, targets, positions, mask = batch(c)
        return logits_of(model, tokens, positions, mask, 0).reshape(-1, V), targets.reshape(-1)
    logits, labels = [], []
    for prompt, ids, _ in policy.completions(V):
        whole = torch.tensor([[*prompt, *ids]])
        logits.append(model(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1:-1])
        labels.append(whole[0, len(prompt):])
    return torch.cat(logits), torch.cat(labels)


def write(name, of):
    loss, temperature, weight, beta = of
    c = ANSWERS if name == "distill-gkd" else STUDENT
    student, teacher = made(c, ""), made(TEACHER, "teacher ")
    V = c["vocab"]
    with torch.no_grad():
        q = torch.log_softmax(rows(teacher, c)[0] / temperature, -1)
    parameters = list(student.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() > 1], "weight_decay": DECAY},
                                   {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}],
                                  betas=(BETA1, BETA2), eps=EPS)
    curve, apart, norms = [], [], []
    for step in range(1, STEPS + 1):
        z, targets = rows(student, c)
        own = torch.nn.functional.cross_entropy(z, targets)
        p = torch.log_softmax(z / temperature, -1)
        d = torch.stack([divergence(loss.upper(), s, t, beta) for s, t in zip(p, q)]).mean()
        optimizer.zero_grad()
        ((1 - weight) * own + weight * d).backward()
        norm = math.sqrt(sum(float((p.grad**2).sum()) for p in parameters))
        for p in parameters:
            p.grad *= min(1.0, CLIP / norm)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        curve.append(own.item())
        apart.append(d.item())
        norms.append(norm)
    model = "\t".join(["model.family llama", "model.positions rope"] + [f"model.{key} {TEACHER[key]}" for key in MODEL])
    keys = {**settings(c), "train.distill.teacher": "/teacher", "train.distill.model": model,
            "train.distill.top_k": V, "train.distill.temperature": temperature, "train.distill.loss": loss,
            "train.distill.weight": weight, "train.distill.beta": beta, "train.distill.tail": 1}
    if c is ANSWERS:
        keys.update({"data.documents": "bounded", "train.objective": "gkd"})
    tensors = {"curve": np.array(curve), "divergence": np.array(apart), "norms": np.array(norms)}
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
    print(f"{name}: {curve[0]:.6f} {apart[0]:.6f} -> {curve[-1]:.6f} {apart[-1]:.6f}, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        write(name, CASES[name])
