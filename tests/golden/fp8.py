#!/usr/bin/env python3
"""Writes tests/unit/base/fp8_codes.inc: numbers, and the codes that PyTorch casts them to in
float8_e4m3fn and float8_e5m2.

    /opt/ref/venv/bin/python tests/golden/fp8.py       any Python with PyTorch 2.1 or newer will do

Left out is what PyTorch does not clamp: E4M3 above 464 becomes NaN there, E5M2 from 61440 on
infinity.
"""
import os

import torch

FORMATS = [("HD_E4M3", torch.float8_e4m3fn, 464.0), ("HD_E5M2", torch.float8_e5m2, 61439.0)]


def numbers(dtype, most):
    """Every value, what is midway between neighbours, and random numbers of every size."""
    codes = torch.arange(0, 127, dtype=torch.uint8).view(dtype).float()
    values = codes[torch.isfinite(codes)]
    middles = (values[1:] + values[:-1]) / 2
    generator = torch.Generator().manual_seed(1)
    powers = torch.randint(-20, 17, (60,), generator=generator)
    spread = torch.rand(60, generator=generator) * 2.0**powers
    beside = torch.cat([middles[::5] * (1 + 2.0**-20), middles[::5] * (1 - 2.0**-20)])
    every = torch.cat([values, middles, beside, spread])
    every = every[every <= most]
    return torch.cat([every, -every[::9]])


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "../unit/base/fp8_codes.inc"), "w") as out:
        out.write("/* by tests/golden/fp8.py, PyTorch %s */\n" % torch.__version__)
        rows = []
        for name, dtype, most in FORMATS:
            values = numbers(dtype, most)
            codes = values.to(dtype).view(torch.uint8)
            for value, code in zip(values.tolist(), codes.tolist()):
                text = "%.9g" % value
                text += "f" if "." in text or "e" in text else ".0f"
                rows.append("{%s, %s, 0x%02x}," % (name, text, code))
        # three to a line fit 100 columns
        out.writelines(" ".join(rows[i:i + 3]) + "\n" for i in range(0, len(rows), 3))


main()
