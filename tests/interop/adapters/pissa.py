#!/usr/bin/env python3
"""pissa.py FOLDER CORPUS CONTEXT STEPS: steps of an adapter that begins with singular directions, beside torch.

STEPS has the reports of `heddle local -o jsonl` of a run with rank 4, alpha 8, 8 windows of CONTEXT bytes a step in
their order, lr 2e-3 and no decay. Here the directions are those of torch.linalg.svd, everything is in fp64, and
transformers has the model. Prints `ok ...: largest difference` or `not ok ...`.
"""
import json
import sys

import torch
import transformers

RANK, ALPHA, BATCH, LR = 4, 8.0, 8, 2e-3


class Adapted(torch.nn.Module):
    def __init__(self, linear):
        super().__init__()
        u, s, v = torch.linalg.svd(linear.weight.data, full_matrices=False)
        self.scale, root = ALPHA / RANK, s[:RANK].sqrt()
        self.a = torch.nn.Parameter(root[:, None] * v[:RANK] / self.scale**0.5)
        self.b = torch.nn.Parameter(u[:, :RANK] * root / self.scale**0.5)
        self.rest = linear.weight.data - self.scale * self.b.data @ self.a.data
        self.bias = linear.bias

    def forward(self, x):
        f = torch.nn.functional.linear
        return f(x, self.rest, self.bias) + self.scale * f(f(x, self.a), self.b)


def main(folder, corpus, context, steps):
    torch.set_num_threads(1)
    context = int(context)
    ours = {}
    for line in open(steps):
        report = json.loads(line)
        if report.get("type") == "step":
            ours[report["step"]] = (report["loss"], report["grad_norm"])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).double()
    for p in model.parameters():
        p.requires_grad_(False)
    trained = []
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, child in list(part.named_children()):
                if isinstance(child, torch.nn.Linear):
                    setattr(part, name, Adapted(child))
                    trained += [getattr(part, name).a, getattr(part, name).b]
    optimizer = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    data = torch.tensor(list(open(corpus, "rb").read()))
    worst = 0.0
    for step in sorted(ours):
        at = [((step - 1) * BATCH + b) * context for b in range(BATCH)]
        x = torch.stack([data[i : i + context + 1] for i in at])
        logits = model(x[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), x[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for mine, theirs in zip(ours[step], (loss.item(), norm.item())):
            worst = max(worst, abs(mine - theirs) / abs(theirs))
        optimizer.step()
    good = len(ours) == 10 and worst < 1e-5
    print(f"{'ok' if good else 'not ok'} ten_steps_of_singular_directions_are_those_of_torch: {len(ours)} steps, {worst:.2e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
