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


def zst(data):
    return zstandard.ZstdCompressor(level=9).compress(data)


def packed():
    """Streams: several members and frames, a skippable frame, zeros behind the last member."""
    put("chat.rows", lines(CHAT))
    first, rest = lines(CHAT[:1]), lines(CHAT[1:])
    put("chat.jsonl.gz", gz(first) + gz(b"") + gz(rest) + b"\0" * 512)
    put("chat.JSONL.zst", zst(first) + b"\x5a\x2a\x4d\x18\x04\x00\x00\x00skip" + zst(rest))
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


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    packed()
    tables()
    sys.exit(0)
