"""Token files by NumPy alone: files.py write DIR | entropy DIR | compare DIR TOKENS_DIR"""
import json
import math
import os
import struct
import sys
from collections import Counter

import numpy as np

CONTEXT, VOCAB, END = 32, 900, 899
JOB = """name: {name}
model: {{family: llama, layers: 1, hidden: 32, heads: 2, context: {context}{vocab}}}
data: {data}
train: {{steps: 2, global_batch: 4, lr: 1e-3, precision: fp32}}
validate: {{every: 0, batches: 1000}}
resources: {{devices: 2}}
"""


def documents(seed, count):
    """Ids with a rule (each leads to a few others) in documents of 1 to 50 tokens, END last."""
    rng = np.random.default_rng(seed)
    ids, token = [], 1
    while len(ids) < count:
        for _ in range(rng.integers(0, 50)):
            token = int(token * 31 + rng.integers(0, 5)) % END
            ids.append(token)
        ids.append(END)
    return np.array(ids[:count])


def lines(where):
    rng = np.random.default_rng(7)
    words = ["loom", "weft", "häddle", "\U0001f9f5", "line\nbreak", 'quote"s', "\\"]
    return [" ".join(rng.choice(words, rng.integers(1, 30))) for _ in range(60)]


def write(where):
    # every type and version of the format
    parts = np.array_split(documents(1, 12000), 5)
    for part, (dtype, version) in zip(parts, [("<u2", (1, 0)), ("<u4", (2, 0)), ("<i4", (3, 0)),
                                              ("<i8", (1, 0)), ("<u2", (2, 0))]):
        name = f"{where}/train-{len(os.listdir(where)):04}-{dtype[1:]}.npy"
        with open(name, "wb") as file:
            np.lib.format.write_array(file, part.astype(dtype), version=version)
    np.save(f"{where}/val.npy", documents(2, 3000).astype(np.uint16))
    with open(f"{where}/lines.jsonl", "w", encoding="utf-8") as file:
        for i, text in enumerate(lines(where)):
            file.write(json.dumps({"text": text, "n": i}, ensure_ascii=i % 2 == 0) + "\n")
    with open(f"{where}/arrays.yaml", "w") as file:
        file.write(JOB.format(name="arrays", context=CONTEXT, vocab=f", vocab: {VOCAB}", data=(
            f"{{train: ['train-*.npy'], val: [val.npy], end_of_text: {END}, documents: joined}}")))
    with open(f"{where}/lines.yaml", "w") as file:
        file.write(JOB.format(name="lines", context=CONTEXT, vocab="",
                              data="{train: [lines.jsonl], val_split: 0.2, end_of_text: 10}"))


def entropy(where):
    """The bigram model of lib/data/data.h, joined documents, from the arrays as NumPy loads them."""
    names = sorted(n for n in os.listdir(where) if n.startswith("train-"))
    train = np.concatenate([np.load(f"{where}/{n}").astype(int) for n in names]).tolist()
    val = np.load(f"{where}/val.npy").astype(int).tolist()
    pair, single = Counter(zip(train, train[1:])), Counter(train)
    before = Counter(train[:-1])
    targets = (len(val) - 1) // CONTEXT * CONTEXT
    total = 0.0
    for a, b in zip(val[:targets], val[1:targets + 1]):
        p = (single[b] + 1) / (len(train) + VOCAB)
        total -= math.log((pair[a, b] + p) / (before[a] + 1))
    print(f"{total / targets:.4f}")


def compare(where, tokens):
    """Reads the indexed data set as its format says, and expects the documents that were written."""
    [index] = [n for n in os.listdir(tokens) if n.endswith(".idx")]
    with open(f"{tokens}/{index}", "rb") as file:
        head = file.read(34)
        assert head[:9] == b"MMIDIDX\0\0", head
        version, code, sequences, entries = struct.unpack("<QBQQ", head[9:])
        assert (version, code) == (1, 8), (version, code)
        lengths = np.frombuffer(file.read(4 * sequences), "<i4")
        pointers = np.frombuffer(file.read(8 * sequences), "<i8")
        starts = np.frombuffer(file.read(8 * entries), "<i8")
        assert not file.read(1)
    ids = np.fromfile(f"{tokens}/{index[:-3]}bin", "<u2")
    expected = [list(text.encode()) + [10] for text in lines(where)]
    assert entries - 1 == len(expected), (entries, len(expected))
    for begin, end, text in zip(starts, starts[1:], expected):
        got = []
        for s in range(begin, end):
            got += ids[pointers[s] // 2:pointers[s] // 2 + lengths[s]].tolist()
        assert got == text, (got, text)


{"write": write, "entropy": entropy, "compare": compare}[sys.argv[1]](*sys.argv[2:])
