#!/usr/bin/env python3
"""pairs.py CORPUS FOLDER: preference pairs whose rule can be learnt, from the sentences of a text.

Of two sentences of about one length the one with the shorter words is chosen. The sentences of the last
fifth of the text make the held-out pairs. Writes train.jsonl (prompt, chosen, rejected) and held-out.jsonl (the same as
questions with two choices, in the form of `heddle eval --choices`).
"""
import json
import os
import random
import re
import sys

PROMPT, PAIRS, HELD_OUT = "Say:", 1200, 300


def sentences(text):
    found = re.findall(r"[A-Z][A-Za-z0-9 ,'()-]{38,98}\.", text.replace("\n", " "))
    return sorted(set(found))


def width(sentence):
    words = re.findall(r"[A-Za-z]+", sentence)
    return sum(map(len, words)) / max(len(words), 1)


def pairs(found, count, random_):
    out = []
    while len(out) < count:
        a, b = random_.sample(found, 2)
        if abs(len(a) - len(b)) <= 8 and abs(width(a) - width(b)) >= 0.5:
            out.append(sorted((a, b), key=width))
    return out


def main():
    text = open(sys.argv[1], encoding="utf-8").read()
    random_ = random.Random(1)
    cut = len(text) * 4 // 5
    with open(os.path.join(sys.argv[2], "train.jsonl"), "w") as f:
        for chosen, rejected in pairs(sentences(text[:cut]), PAIRS, random_):
            f.write(json.dumps({"prompt": PROMPT, "chosen": " " + chosen, "rejected": " " + rejected}) + "\n")
    with open(os.path.join(sys.argv[2], "held-out.jsonl"), "w") as f:
        for chosen, rejected in pairs(sentences(text[cut:]), HELD_OUT, random_):
            answer = random_.randrange(2)
            choices = [rejected, chosen] if answer else [chosen, rejected]
            f.write(json.dumps({"prompt": PROMPT, "choices": choices, "answer": answer}) + "\n")


main()
