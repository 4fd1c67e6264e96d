"""rows_beside.py HEDDLE_WORKER [FOLDER...]: rows of Parquet and of zst JSON lines beside what people use.

Takes 20 MB of the text of tokenize_beside.py. Prints, by turns on one core, in CPU time, so that other load
counts little: Parquet as `datasets` writes it to a token file, beside `datasets` and `tokenizers` (load, map in
batches, one array to disk); each row of a .jsonl.zst checked, beside `zstd -dc`. Then the greatest memory of
heddle-worker on a .jsonl.zst of SMALL and of LARGE bytes, which must not differ: first all rows are read, of the
smaller ones also tokenized. Exits with 1 when the ids differ.
"""
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import numpy
from tokenizers import Tokenizer, __version__, decoders, models, pre_tokenizers, trainers

from tokenize_beside import gather

TURNS, SMALL, LARGE, TOKENIZED = 3, 100_000_000, 4_000_000_000, 400_000_000
KIB = 1024


# Runs a command and prints its CPU time, s, and greatest memory, KiB. A program of its own, as the memory of a child
# begins with that of its parent.
MEASURE = """import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
sys.exit(code)
"""


def cpu_of_children(argv, stdin=""):
    """Returns the CPU time of a command, s, and its greatest memory, MiB."""
    said = subprocess.run([sys.executable, "-S", "-c", MEASURE, *argv], input=stdin, stdout=subprocess.PIPE,
                          text=True, check=True).stdout.split()
    return float(said[0]), int(said[1]) / KIB


def theirs(path, tokenizer, end, out, cache):
    """Parquet to a token file by datasets and tokenizers. Returns CPU time, s."""
    begin = resource.getrusage(resource.RUSAGE_SELF)
    rows = datasets.load_dataset("parquet", data_files=path, split="train", cache_dir=cache)

    def encode(batch):
        return {"ids": [e.ids + [end] for e in tokenizer.encode_batch(batch["text"], add_special_tokens=False)]}

    tokens = rows.map(encode, batched=True, remove_columns=["text"])
    numpy.save(out, numpy.concatenate([numpy.array(ids, dtype=numpy.uint16) for ids in tokens["ids"]]))
    now = resource.getrusage(resource.RUSAGE_SELF)
    return now.ru_utime + now.ru_stime - begin.ru_utime - begin.ru_stime


def show(name, size, ours, peers, peer):
    ratios = [b / a for a, b in zip(ours, peers)]
    print("%-28s heddle %6.1f MB/s, %s %6.1f MB/s: %5.2f times (%.2f to %.2f)" %
          (name, size / 1e6 / statistics.median(ours), peer, size / 1e6 / statistics.median(peers),
           statistics.median(ratios), min(ratios), max(ratios)))


def parquet(worker, documents, folder):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(documents[::5], trainers.BpeTrainer(
        vocab_size=32000, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    path, source, out, peer = (os.path.join(folder, n)
                               for n in ("tokenizer.json", "text.parquet", "ids.npy", "peer.npy"))
    t.save(path)
    datasets.Dataset.from_dict({"text": documents}).to_parquet(source)
    ours, peers = [], []
    for i in range(TURNS):
        ours.append(cpu_of_children([worker, "tokenize", "--tokenizer", path, "--threads", "1", "--end-of-text",
                                     str(t.token_to_id("<|endoftext|>")), "--out", out, "--", source])[0])
        peers.append(theirs(source, t, t.token_to_id("<|endoftext|>"), peer, os.path.join(folder, "cache%d" % i)))
    show("Parquet to tokens", sum(len(d.encode()) for d in documents), ours, peers, "datasets + tokenizers")
    return path, numpy.array_equal(numpy.load(out), numpy.load(peer))


def read_rows(worker, path):
    """All rows of a file, or a sample of a large one, checked as `heddle validate` does."""
    return cpu_of_children([worker, "data", "--tokenizer", "none", "--vocab", "256", "--form", "text"],
                           "train 0 %d %s\n" % (os.path.getsize(path), path))


def packed(documents, size, path):
    """Writes `size` bytes of rows, the same texts again and again, as .jsonl.zst."""
    rows = "".join(json.dumps({"text": d, "id": i}) + "\n" for i, d in enumerate(documents)).encode()
    zstd = subprocess.Popen(["zstd", "-q", "-3", "-f", "-o", path], stdin=subprocess.PIPE)
    while size > 0:
        zstd.stdin.write(rows)
        size -= len(rows)
    zstd.stdin.close()
    zstd.wait()
    return len(rows)


def main(worker, folders):
    os.sched_setaffinity(0, {0})
    documents = gather(folders)[:1000]
    datasets.disable_progress_bars()
    print("datasets %s, tokenizers %s, CPU time of one core, %d turns" % (datasets.__version__, __version__, TURNS))
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, same = parquet(worker, documents, folder)
        small, large, tokenized = (os.path.join(folder, n) for n in ("a.jsonl.zst", "b.jsonl.zst", "c.jsonl.zst"))
        size = packed(documents, 1, small)
        ours, peers = [], []
        for _ in range(TURNS):
            ours.append(read_rows(worker, small)[0])
            peers.append(cpu_of_children(["zstd", "-dcq", small])[0])
        show("rows of .jsonl.zst", size, ours, peers, "zstd -dc")
        packed(documents, SMALL, small)
        packed(documents, LARGE, large)
        print("memory, rows read of %.2f and %.2f GB: %.0f and %.0f MiB" % (
            SMALL / 1e9, LARGE / 1e9, read_rows(worker, small)[1], read_rows(worker, large)[1]))
        os.remove(large)
        packed(documents, TOKENIZED, tokenized)
        used = [cpu_of_children([worker, "tokenize", "--tokenizer", tokenizer, "--threads", "1", "--out",
                                 os.path.join(folder, "ids.npy"), "--", path])[1] for path in (small, tokenized)]
        print("memory, tokens of %.2f and %.2f GB: %.0f and %.0f MiB" % (SMALL / 1e9, TOKENIZED / 1e9, *used))
    print("the ids are the same" if same else "THE IDS DIFFER")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:] or ["/usr/lib/python3.11", "/usr/include", "/usr/share/doc", "/usr/share/perl"]))
