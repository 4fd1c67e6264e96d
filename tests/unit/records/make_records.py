#!/usr/bin/env python3
"""make_records: writes the small data files that records_test reads, in the folder files.

Each set of rows is written by several programs in several containers; NAME.rows has the same rows
as JSON, one per line, as the writing program's own reader gives them. A null column is left out of
a row of a table, as it is by Heddle. Run it again only to add files: the bytes depend on the
versions of the programs (pyarrow 26, pandas 3, polars 2, duckdb 2, datasets 5, fastparquet 2026).
"""
import csv
import gzip
import io
import json
import os
import sys

import datasets
import duckdb
import fastparquet
import pandas
import polars
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import zstandard

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "files")

CHAT = [
    {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi, {\"you\"}]"}]},
    {"messages": [{"role": "system", "content": "Kurz: \u00e4\u00f6\u00fc \U0001F9F5\n\ttab"},
                  {"role": "user", "content": "q \\ \"w\""},
                  {"role": "assistant", "content": "[1, 2]"}]},
    {"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": "x" * 300}]},
]
TABLE = [
    {"text": "plain", "label": "1"},
    {"text": "with, comma and \"quotes\"", "label": "two"},
    {"text": "two\nlines", "label": "NA"},
    {"label": "no text"},
    {"text": "\u6771\u4eac", "label": ""},
]


def put(name, data):
    with open(os.path.join(OUT, name), "wb") as f:
        f.write(data)


def lines(rows):
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows).encode()


def gz(data):
    return gzip.compress(data, mtime=0)


def zst(data, checksum=False):
    return zstandard.ZstdCompressor(level=9, write_checksum=checksum).compress(data)


def shared():
    """Three row groups in the footer that are the same bytes of the file."""
    path = os.path.join(OUT, "shared.parquet")
    text = "".join(chr(33 + i * i * 7919 % 89) for i in range(3000))
    pyarrow.parquet.write_table(pyarrow.table({"text": [text, text[::-1]]}), path, compression="none",
                                use_dictionary=False, write_statistics=False, store_schema=False)
    with open(path, "rb") as file:
        body = file.read()
    meta, once = pyarrow.parquet.read_metadata(path), pyarrow.parquet.read_metadata(path)
    meta.append_row_groups(once)
    meta.append_row_groups(once)
    footer = io.BytesIO()
    meta.write_metadata_file(footer)
    bytes_of_footer = int.from_bytes(body[-8:-4], "little")
    with open(path, "wb") as file:
        file.write(body[:-8 - bytes_of_footer] + footer.getvalue()[4:])


def endless():
    """Records whose string has no end within 128 MiB, packed to a few KB."""
    for name, begin in (("endless.jsonl", '{"text": "'), ("endless.json", '[{"text": "'), ("endless.csv", 'text\n"'),
                        ("endless.tsv", "text\n")):
        with open(os.path.join(OUT, name + ".zst"), "wb") as file:
            file.write(zstandard.ZstdCompressor(level=19).compress(begin.encode() + b"a" * (128 << 20)))


def packed():
    """Streams: several members and frames, a skippable frame, zeros behind the last member.
    The frames of chat.JSONL.zst have checksums, as the zstd command writes them: damaged_streams_are_refused
    needs them."""
    put("chat.rows", lines(CHAT))
    first, rest = lines(CHAT[:1]), lines(CHAT[1:])
    put("chat.jsonl.gz", gz(first) + gz(b"") + gz(rest) + b"\0" * 512)
    put("chat.JSONL.zst", zst(first, True) + b"\x5a\x2a\x4d\x18\x04\x00\x00\x00skip" + zst(rest, True))
    put("marked.ndjson", b"\xef\xbb\xbf" + lines(CHAT).replace(b"\n", b"\r\n\r\n"))
    put("array.json", json.dumps(CHAT, indent=2).encode())
    put("array.jsonl.gz", gz(b"\xef\xbb\xbf \n" + json.dumps(CHAT).encode() + b"\n"))
    put("wrapped.json", json.dumps({"data": CHAT}).encode())
    put("objects.json", b"\n".join(json.dumps(r, indent=1).encode() for r in CHAT))


def tables():
    put("table.rows", lines(TABLE))
    for name, separator, end in (("table.csv", ",", "\n"), ("table.tsv", "\t", "\r\n")):
        out = io.StringIO()
        w = csv.writer(out, delimiter=separator, lineterminator=end)
        w.writerow(["text", "label"])
        for r in TABLE:
            w.writerow([r.get("text", ""), r["label"]])
        # python's csv writes an empty string without quotes, which is null here
        text = out.getvalue().replace("\u6771\u4eac" + separator, "\u6771\u4eac" + separator + '""')
        data = text.encode()
        put(name, b"\xef\xbb\xbf" + data if separator == "," else data)
        put(name + ".zst", zst(data))


def without_nulls(value):
    """The value without null members, and with whole numbers as such."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


MESSAGE = pyarrow.struct([
    ("role", pyarrow.string()), ("content", pyarrow.string()), ("weight", pyarrow.float64()),
    ("tool_calls", pyarrow.list_(pyarrow.struct([("name", pyarrow.string()),
                                                 ("arguments", pyarrow.struct([("city", pyarrow.string()),
                                                                               ("day", pyarrow.int64())]))])))])
DEEP_SCHEMA = pyarrow.schema([("messages", pyarrow.list_(MESSAGE)), ("system", pyarrow.string()),
                              ("label", pyarrow.bool_())])
DEEP = [
    {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "weight": 0.0,
                  "tool_calls": [{"name": "a", "arguments": {"city": "Ulm"}}, {"name": "b", "arguments": {"day": -3}}]}],
     "system": None, "label": True},
    {"messages": [], "system": "\U0001F9F5 4 bytes", "label": None},
    {"messages": None, "system": "", "label": False},
    {"messages": [None, {"role": "assistant", "content": "\u6771" * 1000 + "\n\"", "weight": 1.0, "tool_calls": []}],
     "system": "s", "label": True},
    *[{"messages": [{"role": "user", "content": "row %d" % (i % 5)}], "system": "same", "label": i % 3 == 0}
      for i in range(40)],
]
NUMBERS_SCHEMA = pyarrow.schema([("i8", pyarrow.int8()), ("u32", pyarrow.uint32()), ("i64", pyarrow.int64()),
                                 ("u64", pyarrow.uint64()), ("f", pyarrow.float32()), ("d", pyarrow.float64()),
                                 ("b", pyarrow.bool_()), ("m", pyarrow.map_(pyarrow.string(), pyarrow.int32()))])
NUMBERS = [{"i8": -i if i % 4 else None, "u32": 4294967295 - i, "i64": (-1) ** i * 3 ** i, "u64": 18446744073709551615 - i,
            "f": i / 4, "d": i * 1e10 + 0.5, "b": i % 3 == 0, "m": {"k%d" % k: k for k in range(i % 3)}} for i in range(39)]


def parquet(name, rows, schema, **options):
    table = pyarrow.Table.from_pylist([{k: list(v.items()) if k == "m" else v for k, v in r.items()} for r in rows],
                                      schema=schema)
    small = {"write_statistics": False, "store_schema": False} # files of 3 KB rather than 9
    pyarrow.parquet.write_table(table, os.path.join(OUT, name), **{**small, **options})


def parquets():
    """pyarrow with every codec, version of pages and encoding that it writes; the other writers."""
    put("deep.rows", lines(without_nulls(DEEP)))
    put("numbers.rows", lines(without_nulls(NUMBERS)))
    texts = ["messages.list.element.role", "messages.list.element.content", "system"]
    encodings = ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "PLAIN"]
    for version in ("1.0", "2.0"):
        for codec in ("none", "snappy", "gzip", "zstd", "lz4"):
            parquet("deep-%s-v%s.parquet" % (codec, version[0]), DEEP, DEEP_SCHEMA, compression=codec,
                    data_page_version=version, write_page_checksum=codec == "zstd")
        for e in encodings:
            parquet("deep-%s-v%s.parquet" % (e.lower(), version[0]), DEEP, DEEP_SCHEMA, data_page_version=version,
                    use_dictionary=False, column_encoding={t: e for t in texts})
        parquet("numbers-v%s.parquet" % version[0], NUMBERS, NUMBERS_SCHEMA, data_page_version=version)
    parquet("numbers-split.parquet", NUMBERS, NUMBERS_SCHEMA, use_dictionary=False,
            column_encoding={"i8": "DELTA_BINARY_PACKED", "u32": "DELTA_BINARY_PACKED", "i64": "DELTA_BINARY_PACKED",
                             "u64": "BYTE_STREAM_SPLIT", "f": "BYTE_STREAM_SPLIT", "d": "BYTE_STREAM_SPLIT"})
    parquet("deep-old.parquet", DEEP, DEEP_SCHEMA, version="1.0", write_statistics=True, store_schema=True, use_compliant_nested_type=False)
    parquet("deep-pages.parquet", DEEP, DEEP_SCHEMA, data_page_size=64, write_batch_size=3, max_rows_per_page=3,
            row_group_size=17, write_page_index=True, write_statistics=True)
    parquet("deep-overflow.parquet", DEEP, DEEP_SCHEMA, dictionary_pagesize_limit=40, write_batch_size=4)
    parquet("empty.parquet", [], DEEP_SCHEMA)
    put("empty.rows", b"")
    # the text set, from every writer: more columns than are read, one that cannot be
    texts = [{"text": None if i == 3 else "%d " % i * (i * 7 % 30), "id": i} for i in range(50)]
    put("text.rows", lines(without_nulls([{"text": t["text"]} for t in texts])))
    frame = pandas.DataFrame(texts)
    frame["when"] = pandas.Timestamp("2026-01-01")
    frame.to_parquet(os.path.join(OUT, "text-pandas.parquet"))
    fastparquet.write(os.path.join(OUT, "text-fastparquet.parquet"), frame, row_group_offsets=[0, 20, 30])
    polars.DataFrame(texts).write_parquet(os.path.join(OUT, "text-polars.parquet"), row_group_size=20)
    datasets.Dataset.from_list(texts).to_parquet(os.path.join(OUT, "text-datasets.parquet"))
    duckdb.sql("create table t as select * from frame")
    for v in ("v1", "v2"):
        duckdb.sql("copy t to '%s' (format parquet, parquet_version %s)" % (os.path.join(OUT, "text-duckdb-%s.parquet" % v), v))
    required = pyarrow.schema([pyarrow.field("text", pyarrow.large_string(), nullable=False)])
    rows = [{"text": t["text"] or ""} for t in texts]
    parquet("required.parquet", rows, required)
    put("required.rows", lines(rows))


def arrows():
    """IPC files and streams; deep.rows and text.rows as in Parquet."""
    table = pyarrow.Table.from_pylist(DEEP, schema=DEEP_SCHEMA)
    for codec in (None, "lz4", "zstd"):
        options = pyarrow.ipc.IpcWriteOptions(compression=codec)
        with pyarrow.ipc.new_file(os.path.join(OUT, "deep-%s.arrow" % codec), DEEP_SCHEMA, options=options) as w:
            w.write_table(table, max_chunksize=20)
    with pyarrow.ipc.new_stream(os.path.join(OUT, "deep-stream.arrow"), DEEP_SCHEMA) as w:
        w.write_table(table, max_chunksize=15)
    numbers = pyarrow.Table.from_pylist([{**r, "m": list(r["m"].items())} for r in NUMBERS], schema=NUMBERS_SCHEMA)
    with pyarrow.ipc.new_stream(os.path.join(OUT, "numbers.arrow"), NUMBERS_SCHEMA) as w:
        w.write_table(numbers)
    frame = polars.DataFrame({"text": [None if i == 3 else "%d " % i * (i * 7 % 30) for i in range(50)]})
    frame.write_ipc(os.path.join(OUT, "text-views.arrow"), compression="lz4")
    texts = pyarrow.array(frame["text"].to_list())
    words = pyarrow.schema([("text", pyarrow.dictionary(pyarrow.int8(), pyarrow.string()))])
    options = pyarrow.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pyarrow.ipc.new_stream(os.path.join(OUT, "text-words.arrow"), words, options=options) as w:
        whole = texts.dictionary_encode().dictionary # each batch knows more of it
        for first, end in ((0, 20), (20, 50)):
            codes = pyarrow.array([None if t is None else whole.to_pylist().index(t) for t in texts.to_pylist()[first:end]],
                                  pyarrow.int8())
            known = whole.slice(0, 1 + max(c for c in codes.to_pylist() if c is not None))
            w.write_batch(pyarrow.record_batch([pyarrow.DictionaryArray.from_arrays(codes, known)], schema=words))
    lists = pyarrow.schema([("messages", pyarrow.list_(pyarrow.large_string(), 2))])
    rows = [{"messages": ["a", None]}, {"messages": None}, {"messages": ["b", "c"]}]
    with pyarrow.ipc.new_file(os.path.join(OUT, "fixed.arrow"), lists) as w:
        w.write_table(pyarrow.Table.from_pylist(rows, schema=lists))
    rows = [json.loads(r) for r in open(os.path.join(OUT, "required.rows"))]
    with pyarrow.ipc.new_stream(os.path.join(OUT, "required.arrow"), pyarrow.schema([("text", pyarrow.string())])) as w:
        w.write_table(pyarrow.Table.from_pylist(rows))
    rows = [{"messages": ["a", None]}, {"messages": None}, {"messages": ["b", "c"]}]
    put("fixed.rows", lines(without_nulls(rows)))
    picture = pyarrow.table({"image": [{"bytes": b"\x89PNG", "path": None}], "text": ["a cat"]})
    pyarrow.parquet.write_table(picture, os.path.join(OUT, "picture.parquet"), compression="none")
    endless()
    shared()
    bomb = pyarrow.table({"text": ["\0" * (96 << 20)]})
    pyarrow.parquet.write_table(bomb, os.path.join(OUT, "bomb.parquet"), compression="zstd", use_dictionary=False,
                                write_statistics=False)
    with pyarrow.ipc.new_file(os.path.join(OUT, "picture.arrow"), picture.schema) as w:
        w.write_table(picture)


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    packed()
    tables()
    parquets()
    arrows()
    sys.exit(0)
