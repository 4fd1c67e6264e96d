"""compare.py TOKENS_OF COUNT [SEED]: every character of Unicode and random texts, our ids and decoded texts beside
those of Hugging Face tokenizers.

Prints one line per tokenizer, with the texts that differ (at most ten), and exits with 1 if one does.
"""
import os
import random
import sys
import tempfile
import unicodedata

import grid
import make_tokenizers

LETTERS = [
    lambda r: chr(r.randrange(0x20, 0x7F)), lambda r: r.choice(" \t\n\r'"), lambda r: r.choice("sStTrReEvVmMlLdD\u017f'"),
    lambda r: chr(r.randrange(0, 0x20)), lambda r: chr(r.randrange(0x80, 0x250)), lambda r: chr(r.randrange(0x300, 0x370)),
    lambda r: chr(r.randrange(0x370, 0x1100)), lambda r: chr(r.randrange(0x1100, 0x3100)), lambda r: chr(r.randrange(0x4E00, 0x9FFF)),
    lambda r: chr(r.randrange(0xAC00, 0xD7A4)), lambda r: chr(r.randrange(0xE000, 0x10000)),
    lambda r: chr(r.randrange(0x10000, 0x20000)), lambda r: chr(r.randrange(0x20000, 0x110000)), lambda r: str(r.randrange(100000)),
    lambda r: r.choice(["<|endoftext|>", "<strip>", "<left>", "<right>", "word", "token", "caf\u00e9token", " ", "   ", "\u2581", "</s>", "<s>"]),
]


def texts(count, seed):
    r = random.Random(seed)
    for code in range(0x110000):  # every character by itself and between others; some of those that are none yet
        if not 0xD800 <= code < 0xE000 and (code < 0x20000 or unicodedata.category(chr(code)) not in ("Cn", "Co")
                                            or 0x2EBF0 <= code < 0x323B0 or code % 101 == 0):
            yield "a" + chr(code) + " " + chr(code) + "1" + chr(code) + "\u0327\u0301"
    for _ in range(count):
        kinds = r.sample(LETTERS, r.randrange(1, 5))
        yield "".join(r.choice(kinds)(r) for _ in range(r.randrange(1, 40)))


def main(program, count, seed):
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, tokenizer in make_tokenizers.make():
            path = os.path.join(folder, name + ".json")
            tokenizer.save(path, pretty=False)
            all_texts = list(texts(count, seed))
            rc, answers = grid.ours(program, path, all_texts, folder)
            if rc:
                print("%s: %s" % (name, answers))
                return 1
            encodings = tokenizer.encode_batch(all_texts, add_special_tokens=False)
            theirs = [e.ids for e in encodings]
            backs = tokenizer.decode_batch(theirs, skip_special_tokens=False)
            differ = [(text, ours, back, ids, text_back) for text, (ours, back), ids, text_back
                      in zip(all_texts, answers, theirs, backs) if ours != ids or back != text_back.encode()]
            print("%s: %d of %d texts differ" % (name, len(differ), len(all_texts)))
            for text, *what in differ[:10]:
                print("  %r\n    ours   %s %r\n    theirs %s %r" % (text, *what))
            wrong += len(differ)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1))
