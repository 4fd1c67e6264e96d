"""tokenize_beside.py HEDDLE_WORKER [FOLDER...]: heddle data tokenize beside Hugging Face tokenizers.

Gathers up to 50 MB of text from the folders (default: what Debian has in /usr), trains a byte-level BPE of
32,000 tokens on a fifth of it, and measures both on the same cores, by turns, five times each: ours from
process start to the synced file, theirs encode_batch alone on texts already in memory, parallel. Prints
the medians in MB/s, their spread, and the ratio; exits with 1 when the ids differ.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
from tokenizers import Tokenizer, __version__, decoders, models, pre_tokenizers, trainers

BYTES, DOCUMENT, TURNS = 50_000_000, 20_000, 5


def gather(folders):
    text, size = [], 0
    for folder in folders:
        for place, _, names in os.walk(folder):
            for name in sorted(names):
                try:
                    raw = open(os.path.join(place, name), "rb").read()
                    if b"\0" not in raw and size < BYTES:
                        text.append(raw.decode())
                        size += len(raw)
                except (OSError, UnicodeDecodeError):
                    pass
    whole = "".join(text)
    return [whole[i : i + DOCUMENT] for i in range(0, len(whole), DOCUMENT)]


def main(worker, folders):
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    documents = gather(folders)
    size = sum(len(d.encode()) for d in documents)
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(documents[::5], trainers.BpeTrainer(
        vocab_size=32000, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        source, out, path = (os.path.join(folder, n) for n in ("text.jsonl", "ids.npy", "tokenizer.json"))
        t.save(path)
        with open(source, "w") as lines:
            lines.writelines(json.dumps({"text": d}) + "\n" for d in documents)
        for _ in range(TURNS):
            begin = time.monotonic()
            subprocess.run([worker, "tokenize", "--tokenizer", path, "--out", out, "--", source], check=True,
                           stdout=subprocess.DEVNULL)
            ours.append(size / 1e6 / (time.monotonic() - begin))
            begin = time.monotonic()
            encodings = t.encode_batch(documents, add_special_tokens=False)
            theirs.append(size / 1e6 / (time.monotonic() - begin))
        end = t.token_to_id("<|endoftext|>")
        expected = numpy.concatenate([numpy.array(e.ids + [end], dtype=numpy.uint16) for e in encodings])
        same = numpy.array_equal(expected, numpy.load(out))
    print("%.1f MB, %d documents, %d tokens, %d cores, tokenizers %s" %
          (size / 1e6, len(documents), len(expected), os.cpu_count(), __version__))
    for name, rates in (("heddle", ours), ("tokenizers", theirs)):
        print("%-10s %6.1f MB/s  (%.1f to %.1f)" % (name, statistics.median(rates), min(rates), max(rates)))
    ratios = [a / b for a, b in zip(ours, theirs)]
    print("ratio      %6.2f       (%.2f to %.2f)" % (statistics.median(ratios), min(ratios), max(ratios)))
    print("the ids are the same" if same else "THE IDS DIFFER")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:] or ["/usr/lib/python3.11", "/usr/include", "/usr/share/doc", "/usr/share/perl"]))
