#!/usr/bin/env python3
"""Writes values/reward-*.golden: what transformers' classes for sequence classification and TRL's
RewardTrainer compute for small models, in the format and by the rules of generate.py.

    python3 tests/golden/reward.py [CASE...]        torch and transformers

The loss is that of TRL 1.16: -logsigmoid(chosen - rejected), the mean over pairs, plus
center_rewards_coefficient times the mean of (chosen + rejected)^2. The reward of an answer is read where
transformers reads it, at the last token that is no padding, of a batch padded on the right.

A file holds the loss, the two rewards of each pair, the gradient of each parameter, and the losses and
gradient norms of 20 steps of AdamW. The tokens are made by pairs() here and in reward_test.c.
"""
import math
import os
import sys

import numpy as np
import torch
import transformers

from generate import (BETA1, BETA2, CLIP, DECAY, EPS, GPT2, HERE, STEPS, build, case, names, numbers, rate,
                      settings, weights)

PAIRS, PAD = 4, 0
CASES = {
    "reward-llama": dict(case("llama", hidden=32, heads=4, kv_heads=2, tied=True, context=32, batch=2), center=0.0),
    "reward-gpt2": dict(case("gpt2", **GPT2, context=32, batch=2), center=0.05),
}


def pairs(vocab):
    """Of each pair the ids of both documents: a prompt and an answer. No id is that of padding."""
    for k in range(PAIRS):
        prompt = numbers(f"prompt {k}", 2 + k % 3)
        yield [(np.concatenate([prompt, numbers(f"{side} {k}", n)]) * (vocab - 1)).astype(np.int64) + 1
               for side, n in (("chosen", 3 + k % 4), ("rejected", 2 + k % 5))]


def rewards(c, model):
    documents = [d for pair in pairs(c["vocab"]) for d in pair]
    longest = max(len(d) for d in documents)
    ids = torch.full((len(documents), longest), PAD)
    for row, d in zip(ids, documents):
        row[:len(d)] = torch.tensor(d)
    return model(input_ids=ids, attention_mask=(ids != PAD).long(), use_cache=False).logits[:, 0].reshape(PAIRS, 2)


def loss_of(c, model):
    chosen, rejected = rewards(c, model).unbind(1)
    return (-torch.nn.functional.logsigmoid(chosen - rejected).mean()
            + c["center"] * torch.mean((chosen + rejected) ** 2))


def curve(c, model):
    trained = list(model.parameters())
    adamw = torch.optim.AdamW([{"params": [p for p in trained if p.dim() > 1], "weight_decay": DECAY},
                               {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0}],
                              betas=(BETA1, BETA2), eps=EPS)
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        loss = loss_of(c, model)
        adamw.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float((p.grad**2).sum()) for p in trained))
        for p in trained:
            p.grad *= min(1.0, CLIP / norm)
        for group in adamw.param_groups:
            group["lr"] = rate(step)
        adamw.step()
        losses.append(loss.item())
        norms.append(norm)
    return np.array(losses), np.array(norms)


def write(name, c):
    config = build(c).config
    config.num_labels, config.pad_token_id = 1, PAD
    model = transformers.AutoModelForSequenceClassification.from_config(config).double().train()
    ours = names(c, model)  # of a tied model: without a head
    ours["head.score.weight"] = (model.score.weight, lambda t: t)
    assert len({id(t) for t, _ in ours.values()}) == len(list(model.parameters())), "a parameter is not named"
    with torch.no_grad():
        for our_name, (tensor, cut) in ours.items():
            view = cut(tensor)
            view.copy_(torch.tensor(weights(our_name, tuple(view.shape))))
    loss = loss_of(c, model)
    loss.backward()
    tensors = {"loss": np.array([loss.item()]), "rewards": rewards(c, model).detach().numpy()}
    for our_name, (tensor, cut) in ours.items():
        tensors["gradient " + our_name] = cut(tensor.grad).detach().numpy().copy()
    tensors["curve"], tensors["norms"] = curve(c, model)
    keys = {**settings(c), "data.documents": "bounded", "train.objective": "reward",
            "train.preference.center": c["center"]}
    path = os.path.join(HERE, "values", name + ".golden")
    with open(path, "wb") as f:
        f.write(b"golden 1\n")
        f.write(f"# torch {torch.__version__}, transformers {transformers.__version__}\n".encode())
        for key, value in keys.items():
            f.write(f"{key} {value}\n".encode())
        for key, value in tensors.items():
            f.write(f"tensor {key} {value.size}\n".encode())
        f.write(b"end\n")
        for value in tensors.values():
            f.write(np.ascontiguousarray(value, dtype="<f4").tobytes())
    print(f"{name}: loss {loss.item():.6f} -> {tensors['curve'][-1]:.6f}, {os.path.getsize(path)} bytes")


for name in sys.argv[1:] or CASES:
    write(name, CASES[name])
