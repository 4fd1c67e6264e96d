"""compare.py TOKENS_OF COUNT [SEED]: random Unicode texts, our ids beside those of Hugging Face tokenizers.

Only characters of Python's Unicode are used: of younger ones PCRE2 and Hugging Face's patterns may know
different properties, each as its version of Unicode has them.

Prints one line per tokenizer, with the texts that differ (at most ten), and exits with 1 if one does.
"""
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

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
    for code in range(0x110000):  # every character by itself and between others
        if not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) != "Cn":
            yield "a" + chr(code) + " " + chr(code) + "1" + chr(code) + "\u0327\u0301"
    for _ in range(count):
        kinds = r.sample(LETTERS, r.randrange(1, 5))
        text = "".join(r.choice(kinds)(r) for _ in range(r.randrange(1, 40)))
        yield "".join(c for c in text if unicodedata.category(c) != "Cn")


def main(program, count, seed):
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, tokenizer in make_tokenizers.make():
            path = os.path.join(folder, name + ".json")
            source = os.path.join(folder, "texts")
            tokenizer.save(path, pretty=False)
            all_texts = list(texts(count, seed))
            with open(source, "wb") as out:
                for text in all_texts:
                    raw = text.encode()
                    out.write(struct.pack("<I", len(raw)) + raw)
            command = [program, path] + ([] if name == "gpt2" else ["lossy"])
            with open(source, "rb") as given:
                answer = subprocess.run(command, stdin=given, stdout=subprocess.PIPE, check=True).stdout
            at, differ = 0, []
            for text, encoding in zip(all_texts, tokenizer.encode_batch(all_texts, add_special_tokens=False)):
                (n,) = struct.unpack_from("<i", answer, at)
                ours = list(struct.unpack_from("<%di" % max(n, 0), answer, at + 4))
                at += 4 + 4 * max(n, 0)
                if ours != encoding.ids:
                    differ.append((text, ours, encoding.ids))
            print("%s: %d of %d texts differ" % (name, len(differ), len(all_texts)))
            for text, ours, theirs in differ[:10]:
                print("  %r\n    ours   %s\n    theirs %s" % (text, ours, theirs))
            wrong += len(differ)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1))
