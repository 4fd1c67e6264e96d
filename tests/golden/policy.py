#!/usr/bin/env python3
"""Writes tests/unit/kernels/policy.inc: loss and weights of three completions by each combination of ratio, clipping,
mean, divergence, correction and old log-probabilities; and values/policy-*.golden: twenty steps of a small llama on fixed
completions. All in fp64.

    python3 tests/golden/policy.py [kernels | policy-KIND ...]        torch; the steps: transformers, too

The formulas are those of TRL 1.16's GRPOTrainer._compute_loss: importance_sampling_level token and sequence, loss_type
grpo, dapo, dr_grpo and cispo, epsilon, epsilon_high and delta, beta with the estimator k3,
vllm_importance_sampling_mode token_truncate (with
one ratio per completion sequence_truncate) and sequence_mask. Old log-probabilities are those of the sampler, whose
ratio then is the correction, or those of the pass itself. k1 and k2: http://joschu.net/blog/kl-approx.html. Weights are
minus the gradients of the summed loss by torch.autograd.
"""
import itertools
import os
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
LENGTHS = [3, 2, 2]
ADVANTAGES = [0.75, -1.25, 0.5]
# clip_low, clip_high, dual_clip, cispo_max, kl_beta, correction_max, max_tokens: exact in fp32
LOW, HIGH, DUAL, CISPO, BETA, MOST, LONGEST = 0.25, 0.375, 1.75, 1.25, 0.125, 1.125, 4
# log-probabilities by token, exact in fp32: of the pass, minus those of the sampler, and of the reference minus the pass's
LOGP = [-0.5, -2.25, -0.125, -3.5, -1.0, -0.75, -4.0]
LESS = [1.25, -0.625, 0.5, -1.5, 0.75, -0.03125, 0.0625]
REFERENCE = [0.25, -1.5, 3.0, -0.125, 0.5, 0.75, -2.0]


def by_completion(x, reduce):
    """Each token's value of its completion: `reduce` of the completion's tokens."""
    return torch.cat([reduce(part).expand(len(part)) for part in x.split(LENGTHS)])


def case(level, clip, mean, kl, correction, old_is_sampled, dual):
    logp = torch.tensor(LOGP, dtype=torch.float64, requires_grad=True)
    sampled = logp.detach() - torch.tensor(LESS, dtype=torch.float64)
    reference = logp.detach() + torch.tensor(REFERENCE, dtype=torch.float64)
    advantage = torch.tensor(ADVANTAGES, dtype=torch.float64).repeat_interleave(torch.tensor(LENGTHS))
    old = sampled if old_is_sampled else logp.detach()
    log_ratio = logp - old
    if level == 1:
        log_ratio = by_completion(log_ratio, torch.mean)
    ratio = log_ratio.exp()
    if clip == 1:
        loss = -ratio.clamp(max=CISPO).detach() * advantage * logp
    else:
        first = ratio.clamp(max=dual) if dual else ratio
        loss = -torch.min(first * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage)
    if correction:
        difference = (logp - sampled).detach()
        if correction == 1:
            weight = by_completion(difference, torch.sum) if level else difference
            weight = torch.ones_like(difference) if old_is_sampled else weight.exp().clamp(max=MOST)
        else:
            whole = by_completion(difference, torch.sum).exp()
            weight = (torch.ones_like(whole) if old_is_sampled else whole).masked_fill(whole > MOST, 0)
        loss = loss * weight
    divergence = torch.zeros_like(logp)
    if kl:
        y = reference - logp
        divergence = [None, -y, y * y / 2, y.exp() - y - 1][kl]
        loss = loss + BETA * divergence
    n = torch.tensor(LENGTHS, dtype=torch.float64).repeat_interleave(torch.tensor(LENGTHS))
    total = (loss / n if mean == 0 else loss).sum()
    total.backward()
    low = (ratio < 1 - LOW) & (advantage < 0) & (clip == 0)
    high = (ratio > (CISPO if clip else 1 + HIGH)) & (advantage > 0)
    return total.item(), low.sum().item(), high.sum().item(), divergence.sum().item(), (-logp.grad).tolist()


def kernels():
    with open(os.path.join(HERE, "../unit/kernels/policy.inc"), "w") as out:
        out.write(f"/* by tests/golden/policy.py: torch {torch.__version__} */\n")
        for number, (level, clip, mean, kl, correction, sampled) in enumerate(
                itertools.product(range(2), range(2), range(3), range(4), range(3), range(2))):
            dual = DUAL if number % 5 < 2 else 0
            loss, low, high, kl_sum, weights = case(level, clip, mean, kl, correction, bool(sampled), dual)
            out.write("{%d, %d, %d, %d, %d, %d, %s, %.17g, %d, %d, %.17g, {%s}},\n" %
                      (level, clip, mean, kl, correction, sampled, dual, loss, low, high, kl_sum,
                       ", ".join("%.17g" % w for w in weights)))


# ---- steps ----

STEPS, COUNT = 20, 6
# settings of the loss, and whether old log-probabilities are the sampler's
KINDS = {
    "policy-dapo": dict(loss="dapo", updates=2, clip_low=0.2, clip_high=0.28, kl="k3", kl_beta=0.05, correction="none",
                        temperature=0.8),
    "policy-gspo": dict(loss="gspo", updates=2, clip_low=0.3, clip_high=0.5, kl="k1", kl_beta=0.1,
                        correction="mask_sequence", temperature=1.0),
    "policy-dr_grpo": dict(loss="dr_grpo", updates=1, clip_low=0.2, clip_high=0.2, kl="k2", kl_beta=0.1,
                           correction="truncate", temperature=1.0),
}
LARGEST, MAX_TOKENS = 2.0, 8


def completions(vocab):
    """Ids of prompt and completion, and the advantage: by the rule that policy_test.c has, too."""
    from generate import numbers
    for k in range(COUNT):
        prompt, ids = numbers(f"prompt {k}", 2 + k % 3), numbers(f"completion {k}", 3 + k % 4)
        yield (prompt * vocab).astype(int), (ids * vocab).astype(int), float(numbers("advantage", COUNT)[k] * 2 - 0.5)


def log_probabilities(model, k, prompt, ids):
    inputs = torch.tensor([list(prompt) + list(ids)])
    logits = model(input_ids=inputs, use_cache=False).logits[0, len(prompt) - 1:-1] / k["temperature"]
    rows = torch.log_softmax(logits, -1)
    return rows[torch.arange(len(ids)), torch.tensor(ids)], -(rows.exp() * rows).sum(-1)


def step_loss(model, k, sampled, reference, vocab):
    """Loss of a step, and the means over tokens of divergence and entropy."""
    total, terms, tokens, kl_sum, entropies = 0, 0, 0, 0, 0
    for i, (prompt, ids, advantage) in enumerate(completions(vocab)):
        logp, entropy = log_probabilities(model, k, prompt, ids)
        n = len(ids)
        log_ratio = logp - (sampled[i] if k["updates"] > 1 else logp.detach())
        if k["loss"] == "gspo":
            log_ratio = log_ratio.mean().expand(n)
        ratio = log_ratio.exp()
        loss = -torch.min(ratio * advantage, ratio.clamp(1 - k["clip_low"], 1 + k["clip_high"]) * advantage)
        difference = (logp - sampled[i]).detach()
        if k["correction"] == "truncate":
            loss = loss * difference.exp().clamp(max=LARGEST)
        if k["correction"] == "mask_sequence":
            loss = loss * float(difference.sum().exp() <= LARGEST)
        y = reference[i] - logp
        divergence = {"k1": -y, "k2": y * y / 2, "k3": y.exp() - y - 1}[k["kl"]]
        loss = loss + k["kl_beta"] * divergence
        total = total + (loss.mean() if k["loss"] == "gspo" else loss.sum())
        terms += {"dapo": n, "gspo": 1, "dr_grpo": MAX_TOKENS}[k["loss"]]
        tokens += n
        kl_sum += divergence.sum().item()
        entropies += entropy.sum().item()
    return total / terms, kl_sum / tokens, entropies / tokens


def steps(name):
    import math
    import numpy as np
    from generate import BETA1, BETA2, CLIP, DECAY, EPS, build, case as model_case, names, numbers, rate, settings, weights
    k, c = KINDS[name], model_case("llama", hidden=32, heads=4, kv_heads=2, context=32, batch=2)
    model = build(c).double().train()
    with torch.no_grad():
        for our_name, (tensor, cut) in names(c, model).items():
            view = cut(tensor)
            view.copy_(torch.tensor(weights(our_name, tuple(view.shape))))
        sampled, reference = [], []
        for i, (prompt, ids, _) in enumerate(completions(c["vocab"])):
            logp = log_probabilities(model, k, prompt, ids)[0].numpy()
            for out, what in ((sampled, "sampled"), (reference, "reference")):
                noise = numbers(f"{what} {i}", len(ids)) - 0.5
                out.append(torch.tensor((logp + noise * (0.5 if what == "sampled" else 2)).astype(np.float32).astype(float)))
    trained = list(model.parameters())
    adamw = torch.optim.AdamW([{"params": [p for p in trained if p.dim() > 1], "weight_decay": DECAY},
                               {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0}],
                              betas=(BETA1, BETA2), eps=EPS)
    curves = {"curve": [], "norms": [], "kl": [], "entropy": []}
    for step in range(1, STEPS + 1):
        loss, kl, entropy = step_loss(model, k, sampled, reference, c["vocab"])
        adamw.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float((p.grad**2).sum()) for p in trained))
        for p in trained:
            p.grad *= min(1.0, CLIP / norm) if norm else 1
        for group in adamw.param_groups:
            group["lr"] = rate(step)
        adamw.step()
        for key, value in zip(curves, (loss.item(), norm, kl, entropy)):
            curves[key].append(value)
    tensors = {"sampled": torch.cat(sampled).numpy(), "reference": torch.cat(reference).numpy(),
               **{key: np.array(values) for key, values in curves.items()}}
    keys = {**settings(c), "data.documents": "bounded", "train.objective": "grpo", "train.policy.loss": k["loss"],
            "train.policy.clip_low": k["clip_low"], "train.policy.clip_high": k["clip_high"],
            "train.policy.kl": k["kl"], "train.policy.kl_beta": k["kl_beta"],
            "train.policy.correction": k["correction"], "train.policy.correction_max": LARGEST,
            "train.rollout.updates": k["updates"], "train.rollout.temperature": k["temperature"],
            "train.rollout.max_tokens": MAX_TOKENS}
    with open(os.path.join(HERE, "values", name + ".golden"), "wb") as f:
        f.write(f"golden 1\n# torch {torch.__version__}\n".encode())
        for key, value in keys.items():
            f.write(f"{key} {value}\n".encode())
        for key, value in tensors.items():
            f.write(f"tensor {key} {value.size}\n".encode())
        f.write(b"end\n")
        for value in tensors.values():
            f.write(np.ascontiguousarray(value, dtype="<f4").tobytes())
    print(name, ["%.6f" % x for x in curves["curve"]], ["%.4f" % x for x in curves["kl"]])


if __name__ == "__main__":
    for asked in sys.argv[1:] or ["kernels", *KINDS]:
        kernels() if asked == "kernels" else steps(asked)
