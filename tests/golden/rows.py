#!/usr/bin/env python3
"""Writes values/rows.inc: the loss and gradient norm of one conversation of 42 tokens, of which 17 count, through a
Mixtral of one layer with router_aux_loss_coef 0.5, as transformers' MixtralForCausalLM computes them.

    python3 tests/golden/rows.py

Prompt tokens are routed and count in the balancing loss; padding, hidden by the attention mask, does not: the script
checks that windows of 42, 48, 64 and 128 tokens give the same numbers. Weights are made by generate.py's rule. Z is the
mean of log^2 Z over the targets, Z_NORM the gradient norm with 0.25 times it added to the loss.
"""
import math
import os

import numpy as np
import torch
import transformers

import generate

TOKENS, COEF, Z = 42, 0.5, 0.25
CASE = generate.case("mixtral", **{**generate.EXPERTS, "layers": 1, "context": 128})


def ids_and_counts():
    ids = (generate.numbers("rows", TOKENS) * CASE["vocab"]).astype(np.int64)
    return ids, [10 <= i < 19 or 30 <= i < 38 for i in range(TOKENS)]


def compute(model, window, z=0):
    ids, counts = ids_and_counts()
    pad = window - TOKENS
    tokens = torch.tensor(np.concatenate([ids, np.zeros(pad, np.int64)]))[None]
    mask = torch.tensor([[1] * TOKENS + [0] * pad])
    labels = torch.tensor([[int(i) if c else -100 for i, c in zip(ids, counts)] + [-100] * pad])
    model.zero_grad()
    out = model(input_ids=tokens, attention_mask=mask, labels=labels, output_router_logits=True, use_cache=False)
    rows = [i - 1 for i in range(1, TOKENS) if counts[i]]
    squares = (torch.logsumexp(out.logits[0, rows].double(), -1) ** 2).mean()
    (out.loss + z * squares).backward()
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in model.parameters()))
    balance = out.aux_loss.item() / CASE["experts_per_token"]
    return out.loss.item() - COEF * out.aux_loss.item(), norm, balance, squares.item()


def main():
    model = generate.build(CASE)
    model.router_aux_loss_coef = COEF
    with torch.no_grad():
        for ours, (tensor, cut) in generate.names(CASE, model).items():
            view = cut(tensor)
            view.copy_(torch.tensor(generate.weights(ours, tuple(view.shape))))
    results = [compute(model, window) for window in (42, 48, 64, 128)]
    for one in results[1:]:
        assert np.allclose(one, results[0], rtol=1e-9), results
    ids, counts = ids_and_counts()
    with open(os.path.join(generate.HERE, "values", "rows.inc"), "w") as out:
        out.write(f"/* rows.py: torch {torch.__version__}, transformers {transformers.__version__}; "
                  f"{sum(counts)} of the tokens count */\n")
        out.write(f"enum {{ ROWS_TOKENS = {TOKENS} }};\n")
        for name, value in zip(("LOSS", "NORM", "BALANCE", "Z"), results[0]):
            out.write(f"#define ROWS_{name} {value:.9f}\n")
        out.write(f"#define ROWS_Z_NORM {compute(model, TOKENS, Z)[1]:.9f}\n")
        out.write("static const int32_t rows_ids[] = {" + ", ".join(map(str, ids)) + "};\n")
        out.write("static const char rows_counts[] = {" + ", ".join(str(int(c)) for c in counts) + "};\n")


main()
