"""make_graphemes.py FILE: writes the table of lib/tokenizer/grapheme.def.

Where grapheme clusters (Unicode Standard Annex 29) begin and end decides what the normalizer Precompiled of Hugging
Face tokenizers replaces. The classes of characters are those of the package regex, without the characters that
tokenizers does not know yet: it is asked, by a normalizer that replaces "a" and what extends it.
"""
import struct
import sys

import regex
from tokenizers import normalizers

CODES = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]


def charsmap(rules):
    """A double array with rules for some ASCII letters: {letter: replacement}."""
    units, texts = [0] * 1024, b""
    units[0] = 256 << 10
    for i, (letter, to) in enumerate(rules.items()):
        at = 256 ^ ord(letter)
        units[at] = ord(letter) | 1 << 8 | (at ^ 512 + i) << 10
        units[512 + i] = 1 << 31 | len(texts)
        texts += to.encode() + b"\0"
    return struct.pack("<I1024I", 4096, *units) + texts


def extending():
    step = normalizers.Precompiled(charsmap({"a": "X"}))
    return {c for c in CODES if step.normalize_str("a" + chr(c)) == "X"}


def of(pattern):
    compiled = regex.compile(pattern)
    return {c for c in CODES if compiled.match(chr(c))}


def main(path):
    known, classes = extending(), {}
    for name, pattern in (
            ("CONTROL", r"\p{GCB=Control}"), ("CR", r"\r"), ("LF", r"\n"), ("PREPEND", r"\p{GCB=Prepend}"),
            ("SPACING", r"\p{GCB=SpacingMark}"), ("REGIONAL", r"\p{GCB=Regional_Indicator}"), ("L", r"\p{GCB=L}"),
            ("V", r"\p{GCB=V}"), ("T", r"\p{GCB=T}"), ("PICTURE", r"\p{Extended_Pictographic}"),
            ("CONSONANT", r"\p{InCB=Consonant}"), ("EXTEND", r"(?!\p{InCB=Extend})\p{GCB=Extend}"),
            ("EXTEND_INSIDE", r"(?=\p{InCB=Extend})\p{GCB=Extend}"), ("LINKER", r"\p{InCB=Linker}"), ("ZWJ", r"\u200d")):
        for c in of(pattern):
            if name in ("SPACING", "EXTEND", "EXTEND_INSIDE", "LINKER", "ZWJ") and c not in known:
                continue
            classes[c] = name
    missing = [hex(c) for c in known if classes.get(c) not in ("SPACING", "EXTEND", "EXTEND_INSIDE", "LINKER", "ZWJ")]
    assert not missing, missing
    rows = []
    for c in sorted(classes):
        if rows and rows[-1][1] == c - 1 and rows[-1][2] == classes[c]:
            rows[-1][1] = c
        else:
            rows.append([c, c, classes[c]])
    with open(path, "w") as out:
        out.write("/* grapheme.def: classes of characters by which grapheme clusters are found, as Hugging Face\n"
                  " * tokenizers knows them, ascending: G(first, last, class). Syllables of Hangul are left out.\n"
                  " * Written by tests/interop/tokenizers/make_graphemes.py; do not edit. */\n")
        line = ""
        for a, b, name in rows:
            item = "G(0x%X, 0x%X, %s)" % (a, b, name)
            if len(line) + len(item) > 98:
                out.write(line + "\n")
                line = ""
            line += (" " if line else "") + item
        out.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
