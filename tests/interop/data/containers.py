"""containers.py HEDDLE_WORKER FOLDER: token ids of one text in every container beside `datasets` and `tokenizers`.

Writes the same 200 documents with pyarrow, pandas, polars and duckdb, as far as they are installed, in each codec, page
version, encoding and type of text that these have; as Arrow files, streams and folders of save_to_disk; and as JSON lines,
JSON arrays, CSV and TSV, plain, gzip and zstd. `heddle-worker tokenize` must make the same ids of each as `tokenizers` of what
`datasets` reads in the first of them; Brotli must be refused by its name. Prints a line for each that differs, and how many were
compared; exits with 1 if one differs.
"""
import csv
import gzip
import io
import json
import os
import random
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import numpy
import pyarrow
import pyarrow.feather
import pyarrow.parquet
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

WORDS = ["the", "a", "model", "Straße", "naïve", "数据", "🙂", "é", "token", "\t", "\n", "\"quoted\"", "comma,", "\\", "{}", "x" * 50]


def documents():
    """Returns texts of several lengths, repeated ones among them, so that dictionaries are used."""
    draw = random.Random(7)
    texts = [" ".join(draw.choice(WORDS) for _ in range(draw.randrange(1, 120))) for _ in range(150)]
    return [t.strip() or "x" for t in texts + texts[:50]]


def write_bytes(path, data):
    with open(path, "wb") as out:
        out.write(data)


def parquet(folder, texts):
    """Parquet of pyarrow, pandas, polars and duckdb."""
    more = {"id": list(range(len(texts))), "score": [i / 7 for i in range(len(texts))],
            "tags": [[str(i % 3)] * (i % 4) for i in range(len(texts))]}
    kinds = {"string": pyarrow.string(), "large": pyarrow.large_string(), "view": pyarrow.string_view(),
             "dictionary": pyarrow.dictionary(pyarrow.int32(), pyarrow.string())}
    made = []
    for kind, of in kinds.items():
        column = pyarrow.array(texts, pyarrow.string()).cast(of)
        table = pyarrow.table({"text": column, **{k: pyarrow.array(v) for k, v in more.items()}})
        for codec in ("NONE", "SNAPPY", "GZIP", "ZSTD", "LZ4", "BROTLI"):
            for pages in ("1.0", "2.0"):
                for version in ("1.0", "2.6"):
                    path = os.path.join(folder, "pa-%s-%s-%s-%s.parquet" % (kind, codec, pages, version))
                    pyarrow.parquet.write_table(table, path, compression=codec, data_page_version=pages,
                                                version=version, row_group_size=70, data_page_size=2000)
                    made.append(path)
    for encoding in ("PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"):
        for pages in ("1.0", "2.0"):
            path = os.path.join(folder, "pa-%s-%s.parquet" % (encoding, pages))
            pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, use_dictionary=False,
                                        column_encoding={"text": encoding}, data_page_version=pages)
            made.append(path)
    datasets.Dataset.from_dict({"text": texts, **more}).to_parquet(os.path.join(folder, "datasets.parquet"))
    made.append(os.path.join(folder, "datasets.parquet"))
    try:
        import pandas
        frame = pandas.DataFrame({"text": texts, "id": more["id"]})
        frame.to_parquet(os.path.join(folder, "pandas.parquet"))
        made.append(os.path.join(folder, "pandas.parquet"))
    except ImportError:
        pass
    try:
        import polars
        for codec in ("uncompressed", "snappy", "gzip", "zstd", "lz4", "brotli"):
            path = os.path.join(folder, "polars-%s.parquet" % codec)
            polars.DataFrame({"text": texts, **more}).write_parquet(path, compression=codec)
            made.append(path)
    except ImportError:
        pass
    try:
        import duckdb
        rows = pyarrow.table({"text": texts, "id": more["id"]})
        for codec in ("uncompressed", "snappy", "gzip", "zstd", "lz4_raw", "brotli"):
            for version in ("v1", "v2"):
                path = os.path.join(folder, "duckdb-%s-%s.parquet" % (codec, version))
                duckdb.connect().register("rows", rows).execute(
                    "COPY (SELECT * FROM rows ORDER BY id) TO '%s' (FORMAT parquet, CODEC '%s', PARQUET_VERSION %s)" %
                    (path, codec, version))
                made.append(path)
    except ImportError:
        pass
    return made


def arrow(folder, texts):
    """Arrow files, streams and folders."""
    made = []
    for kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
        table = pyarrow.table({"text": pyarrow.array(texts, pyarrow.string()).cast(kind),
                               "id": pyarrow.array(range(len(texts)))})
        for codec in (None, "lz4", "zstd"):
            for name, make in (("file", pyarrow.ipc.new_file), ("stream", pyarrow.ipc.new_stream)):
                path = os.path.join(folder, "%s-%s-%s.arrow" % (name, kind, codec))
                with make(path, table.schema, options=pyarrow.ipc.IpcWriteOptions(compression=codec)) as out:
                    out.write_table(table, max_chunksize=60)
                made.append(path)
    pyarrow.feather.write_feather(table.cast(pyarrow.schema({"text": pyarrow.string(), "id": pyarrow.int64()})),
                                  os.path.join(folder, "v2.feather"))
    made.append(os.path.join(folder, "v2.feather"))
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(os.path.join(folder, "saved"), num_shards=3)
    made.append([os.path.join(folder, "saved", n) for n in sorted(os.listdir(os.path.join(folder, "saved")))
                 if n.endswith(".arrow")])
    return made


def text(folder, texts):
    """JSON lines, JSON arrays, CSV and TSV, plain and compressed."""
    import zstandard

    def table(delimiter, end, quoting):
        out = io.StringIO()
        writer = csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=quoting)
        writer.writerow(["id", "text"])
        writer.writerows(enumerate(texts))
        return out.getvalue().encode()

    rows = [{"text": t, "id": i} for i, t in enumerate(texts)]
    lines = "".join(json.dumps(r) + "\n" for r in rows).encode()
    raw = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows).encode()
    plain = {"a.jsonl": lines, "raw.jsonl": raw, "bom.jsonl": b"\xef\xbb\xbf" + raw, "upper.JSONL": lines, "b.ndjson": raw,
             "crlf.jsonl": lines.replace(b"\n", b"\r\n"), "no-end.jsonl": lines.rstrip(b"\n"),
             "blank.jsonl": lines.replace(b"\n", b"\n\n"), "array.json": json.dumps(rows).encode(),
             "indented.json": json.dumps(rows, indent=2, ensure_ascii=False).encode(), "lines.json": lines,
             "a.csv": table(",", "\r\n", csv.QUOTE_MINIMAL), "all.csv": table(",", "\n", csv.QUOTE_ALL),
             "bom.csv": b"\xef\xbb\xbf" + table(",", "\r\n", csv.QUOTE_MINIMAL), "a.tsv": table("\t", "\n", csv.QUOTE_MINIMAL)}
    made = []
    for name, data in plain.items():
        half = len(data) // 2
        for end, packed in (("", data), (".gz", gzip.compress(data[:half]) + gzip.compress(data[half:])),
                            (".zst", zstandard.compress(data[:half]) + zstandard.compress(data[half:])),
                            (".zstd", zstandard.ZstdCompressor(write_checksum=True, threads=2).compress(data))):
            path = os.path.join(folder, name + end)
            write_bytes(path, packed)
            made.append(path)
    return made


def main(worker, folder):
    texts = documents()
    datasets.disable_progress_bars()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    where = os.path.join(folder, "tokenizer.json")
    tokenizer.save(where)
    end = tokenizer.token_to_id("<|endoftext|>")
    made = parquet(folder, texts) + arrow(folder, texts) + text(folder, texts)
    rows = datasets.load_dataset("parquet", data_files=made[0], split="train", cache_dir=os.path.join(folder, "cache"))
    wanted = []
    for e in tokenizer.encode_batch(rows["text"][:], add_special_tokens=False):
        wanted += e.ids + [end]
    command = [worker, "tokenize", "--tokenizer", where, "--threads", "1", "--end-of-text", str(end), "--out",
               os.path.join(folder, "ids.npy"), "--"]

    def ids(files):
        """Returns the ids of the files, or what is wrong with them."""
        run = subprocess.run(command + files, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return numpy.load(os.path.join(folder, "ids.npy")).tolist() if run.returncode == 0 else run.stdout.strip()

    made = [files if isinstance(files, list) else [files] for files in made]
    brotli = [files for files in made if "brotli" in files[0].lower()]
    read = [files for files in made if files not in brotli]
    wrong = ["%s: is not refused by name" % files[0] for files in brotli if "compressed by Brotli" not in ids(files)]
    if ids([name for files in read for name in files]) != wanted * len(read): # one by one only to name them
        wrong += ["%s: %s" % (files[0], "other ids" if isinstance(got, list) else got)
                  for files in read for got in [ids(files)] if got != wanted]
    print("\n".join(wrong + ["%d containers, %d wrong" % (len(made), len(wrong))]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
