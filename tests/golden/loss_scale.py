#!/usr/bin/env python3
"""Writes tests/parity/train/loss_scales.inc: the scale of PyTorch's GradScaler after each step of a
forced sequence of overflows (init_scale 2^10, growth_interval 3).

    /opt/ref/venv/bin/python tests/golden/loss_scale.py       any Python with PyTorch will do
"""
import os

import torch

FORCED = "..x....xx......x....."  # as in scale_test.c


def main():
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    scales = []
    for step in FORCED:
        optimizer.zero_grad()
        scaler.scale((weight * (float("inf") if step == "x" else 1.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(int(scaler.get_scale()))
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "../parity/train/loss_scales.inc"), "w") as out:
        out.write("/* by tests/golden/loss_scale.py, PyTorch %s */\n" % torch.__version__)
        out.write(", ".join(str(s) for s in scales) + "\n")


main()
