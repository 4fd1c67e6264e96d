#!/usr/bin/env python3
"""Writes values/noisy-gating.txt: noisy top-k gating after Shazeer et al. 2017, equations 3 to 5, with
the balancing loss per sequence (Switch) and the router's z-loss (ST-MoE), in PyTorch in fp64:

    G(x) = softmax(KeepTopK(H(x), K)),  H(x)_e = (x Wg)_e + noise_e softplus((x Wnoise)_e)

The noise is part of the values, so that no generator matters. L = sum G cotangent
+ CB sum_rows E sum_e f P + CZ sum_rows lse(H)^2; its gradients come from autograd.

    /opt/ref/venv/bin/python tests/golden/noisy_gating.py       any Python with PyTorch will do
"""
import os

import torch

B, S, C, E, K = 2, 5, 6, 7, 3
CB, CZ = 0.5, 0.25


def keep_top_k(h):
    rank = (h.unsqueeze(-2) > h.unsqueeze(-1)).sum(-1)  # how many are larger
    return torch.where(rank < K, h, torch.full_like(h, -float("inf")))


def main():
    torch.manual_seed(17)
    torch.set_default_dtype(torch.float64)
    x, wg, wnoise = torch.randn(B, S, C), torch.randn(C, E), torch.randn(C, E)
    noise, cotangent = torch.randn(B, S, E), torch.randn(B, S, E)
    # what both sides start from is exact in fp32
    logits = (x @ wg).float().double().requires_grad_()
    noise_logits = (x @ wnoise).float().double().requires_grad_()
    noise, cotangent = noise.float().double(), cotangent.float().double()
    h = logits + noise * torch.nn.functional.softplus(noise_logits)
    g = torch.softmax(keep_top_k(h), -1)
    probs = torch.softmax(h, -1)
    f = (g > 0).double().sum(1) / (S * K)
    balance = S * (E * (f * probs.mean(1)).sum(-1)).sum()
    z = (torch.logsumexp(h, -1) ** 2).sum()
    ((g * cotangent).sum() + CB * balance + CZ * z).backward()
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "values", "noisy-gating.txt")
    with open(path, "w") as out:
        out.write(f"# torch {torch.__version__}; B {B} S {S} E {E} K {K} balance {CB} z {CZ}\n")
        for name, t in {"logits": logits, "noise_logits": noise_logits, "noise": noise,
                        "cotangent": cotangent, "gates": g, "probs": probs, "balance": balance, "z": z,
                        "dlogits": logits.grad, "dnoise_logits": noise_logits.grad}.items():
            numbers = [f"{v:.10g}" for v in t.detach().flatten().tolist()]
            out.write(f"{name} {t.numel()}\n")
            out.writelines(" ".join(numbers[i:i + 7]) + "\n" for i in range(0, len(numbers), 7))


if __name__ == "__main__":
    main()
