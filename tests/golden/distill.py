#!/usr/bin/env python3
"""Writes tests/unit/kernels/distill.inc: divergences of a row of logits from a teacher's, and their gradients, by
torch.nn.functional.kl_div and autograd in fp64: forward and reverse KL, the generalised Jensen-Shannon divergence of
Agarwal et al. 2024 (a mixture in log space, as TRL's generalized_jsd_loss), and the forward KL over the teacher's two
largest and all others as one.

    python3 tests/golden/distill.py        needs torch
"""
import os

import torch
import torch.nn.functional as F

STUDENT = [[0.5, -1.25, 2.0, 0.75, -0.5, 1.5], [3.0, 2.5, -4.0, 0.25, 1.0, -2.0]]
TEACHER = [[1.5, -2.0, 2.5, -0.25, 0.5, 0.25], [-1.0, 4.0, -3.0, 1.75, 0.5, 2.0]]
# loss, temperature, beta, kept ids (6: all)
CASES = [("FORWARD", 1.0, 0.5, 6), ("FORWARD", 2.0, 0.5, 6), ("REVERSE", 1.0, 0.5, 6), ("REVERSE", 2.0, 0.5, 6),
         ("JSD", 1.0, 0.5, 6), ("JSD", 1.5, 0.9, 6), ("FORWARD", 1.0, 0.5, 2), ("FORWARD", 2.0, 0.5, 2)]


def kl(p_log, q_log):
    """KL(p || q)"""
    return F.kl_div(q_log, p_log, reduction="sum", log_target=True)


def buckets(log_p, ids):
    rest = [v for v in range(log_p.shape[0]) if v not in ids]
    parts = [log_p[ids]]
    if rest:
        parts.append(torch.logsumexp(log_p[rest], 0, keepdim=True))
    return torch.cat(parts)


def divergence(loss, s, t, beta):
    if loss == "FORWARD":
        return kl(t, s)
    if loss == "REVERSE":
        return kl(s, t)
    b = torch.tensor(beta, dtype=s.dtype)
    m = torch.logsumexp(torch.stack([s + torch.log1p(-b), t + torch.log(b)]), dim=0)
    return b * kl(t, m) + (1 - b) * kl(s, m)


def main():
    lines = [f"/* by tests/golden/distill.py: torch {torch.__version__} */"]
    for loss, temperature, beta, k in CASES:
        for student, teacher in zip(STUDENT, TEACHER):
            z = torch.tensor(student, dtype=torch.float64, requires_grad=True)
            t = torch.log_softmax(torch.tensor(teacher, dtype=torch.float64) / temperature, 0)
            ids = sorted(range(6), key=lambda v: -teacher[v])[:k]
            s = buckets(torch.log_softmax(z / temperature, 0), ids)
            d = divergence(loss, s, buckets(t, ids), beta)
            d.backward()
            numbers = lambda xs: "{" + ", ".join(repr(float(x)) for x in xs) + "}"
            lines.append(f"{{HD_DISTILL_{loss}, {temperature}, {beta}, {k}, {numbers(student)}, {numbers(teacher)},")
            lines.append(f" {d.item()!r}, {numbers(z.grad)}}},")
    path = os.path.join(os.path.dirname(__file__), "../unit/kernels/distill.inc")
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
