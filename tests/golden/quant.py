#!/usr/bin/env python3
"""Writes lib/base/quant_map.inc, the map of nf4's scales, and tests/unit/base/quant_golden.inc: what
bitsandbytes makes of matrices of odd and of large shapes, as hashes of bytes.

    /opt/ref/venv/bin/python tests/golden/quant.py      any Python with PyTorch and bitsandbytes 0.50

The matrices are made of integers, so the test makes the same ones. fp8 has no peer with powers of
two as scales: its codes are PyTorch's of the scaled rows.
"""
import os

import bitsandbytes
import torch
from bitsandbytes import functional as F

SHAPES = [(1, 1), (7, 9), (3, 130), (5, 64), (64, 192), (130, 128), (33, 1000), (96, 704)]


def matrix(rows, columns):
    """Numbers from -1/2 to 1/2 with steps of 2^-24, in runs of different magnitude; a row of zeros."""
    i = torch.arange(rows * columns, dtype=torch.int64)
    bits = (i * 2654435761 + rows * 40503) % 2**32
    values = (bits // 2**8).double() / 2**24 - 0.5
    values = values * 2.0 ** -((i // 640) % 5 + 3).double()
    values = values.float().view(rows, columns)
    if rows > 4:
        values[3] = 0
    return values


def fnv(tensor):
    value = 14695981039346656037
    for byte in tensor.contiguous().view(torch.uint8).flatten().tolist():
        value = (value ^ byte) * 1099511628211 % 2**64
    return "0x%016xull" % value


def nearest(x):
    """quantize_blockwise of bitsandbytes' default and CUDA code. Its CPU code takes the neighbour now
    and then where a number is almost midway."""
    code = F.create_dynamic_map(signed=True)
    codes, scales = [], []
    for block in x.split(256):
        scale = block.abs().max()
        if len(block) == 256:
            scaled = block * (1.0 / scale.clamp(min=1e-38))
        else:
            scale = scale.clamp(min=1e-38)
            scaled = block / scale
        codes.append(torch.bucketize(scaled.clamp(-1, 1), (code[:-1] + code[1:]) / 2))
        scales.append(scale)
    codes, state = torch.cat(codes).to(torch.uint8), F.quantize_blockwise(x, blocksize=256)[1]
    theirs = F.quantize_blockwise(x, blocksize=256)[0]
    assert (codes.int() - theirs.int()).abs().max() <= 1 or x.abs().max() == 0
    assert (codes != theirs).sum() <= 1 + len(x) // 500 or x.abs().max() == 0
    state.absmax = torch.stack(scales)
    return codes, state


def nf4(values):
    codes, state = F.quantize_4bit(values, blocksize=64, compress_statistics=True, quant_type="nf4")
    plain = F.quantize_4bit(values, blocksize=64, compress_statistics=False, quant_type="nf4")[1]
    mean = plain.absmax.double().mean().float()
    # their mean is of sums in fp32: the second level is made of the rounded exact one
    second, inner = nearest(plain.absmax - mean)
    assert abs(float(mean) - float(state.offset)) <= 2e-7 * float(mean)
    state.absmax, state.state2, state.offset = second, inner, mean
    back = F.dequantize_4bit(codes, state)
    return [fnv(codes), fnv(second), fnv(inner.absmax), fnv(mean.view(1)), fnv(back)]


def int8(values):
    codes, scales, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(values.clone())
    codes = torch.where(scales.view(-1, 1) > 0, codes, torch.zeros_like(codes))
    back = codes * scales.view(-1, 1) * 7.874015718698502e-3
    assert torch.equal(back, F.int8_vectorwise_dequant(codes, scales))
    return [fnv(codes), fnv(scales), "0", "0", fnv(back)]


def fp8(values):
    most = values.abs().max(dim=1).values
    exponent = torch.floor(torch.log2(448 / most.double()))
    exponent = torch.where(most > 0, exponent, torch.zeros_like(exponent))
    codes = (values * 2.0 ** exponent.view(-1, 1)).float().to(torch.float8_e4m3fn)
    scales = (2.0**-exponent).float()
    return [fnv(codes), fnv(scales), "0", "0", fnv(codes.float() * scales.view(-1, 1))]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    line = "/* by tests/golden/quant.py, bitsandbytes %s */\n" % bitsandbytes.__version__
    with open(os.path.join(here, "../../lib/base/quant_map.inc"), "w") as out:
        out.write(line)
        for value in F.create_dynamic_map(signed=True).tolist():
            out.write("%sF,\n" % value.hex())
    with open(os.path.join(here, "../unit/base/quant_golden.inc"), "w") as out:
        out.write(line)
        for rows, columns in SHAPES:
            values = matrix(rows, columns)
            for name, encode in [("NF4", nf4), ("INT8", int8), ("FP8", fp8)]:
                out.write("{HD_QUANT_%s, %d, %d, %s},\n"
                          % (name, rows, columns, ", ".join(encode(values))))


main()
