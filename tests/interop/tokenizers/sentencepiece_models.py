"""sentencepiece_models.py compare TOKENS_OF TEXTS SEED | golden FOLDER

SentencePiece models in Heddle beside the library sentencepiece (pip install sentencepiece).

Trains small models on text of its own making: unigram, BPE with byte fallback, rules of nmt_nfkc_cf, spaces as
suffixes, no escaped spaces; and changes one into a BPE with unused pieces. compare: ids of random texts must be
equal, one by one. golden: writes NAME.model and NAME.ids of three models, and texts.sp, which
tokenizer_sentencepiece_test reads: texts, each its size in bytes and the bytes; ids, each text's number and ids
(all numbers have 32 bits).
"""
import io
import os
import random
import struct
import subprocess
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

SYLLABLES = ("the re to in an on er at es or ing ed is al st ar nd le ou it de me se ve co of ha he as ne ro li"
             " é ü ß 日本 中文 при вет 한글 ﬁ ① Ａ ½ 12 2026 . , ! ( ) - ' \" 🙂 ́").split()


def corpus(rng, lines):
    words = ["".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 4))) for _ in range(400)]
    return [" ".join(rng.choice(words) for _ in range(rng.randint(1, 20))) for _ in range(lines)]


def odd_text(rng):
    pools = [SYLLABLES, ["ab", "ab c", "<tool>", "<s>", "</s>", "<unk>", "<0x41>", "<ctl>", "<pad>", "▁", "▁▁"],
             [" ", "  ", "\t", "\n", "\r\n", "\u3000", "\u00a0", "\u200b", "\u200d", "\ufeff", "\x00", "\x07"],
             [chr(rng.choice([rng.randrange(32, 127), rng.randrange(0xA0, 0x3000), rng.randrange(0x3000, 0xD800),
                              rng.randrange(0xE000, 0x110000)])) for _ in range(20)]]
    parts = rng.choice([1, 3, 10, 40])
    return "".join(rng.choice(rng.choice(pools)) + rng.choice(["", "", " "]) for _ in range(parts))


def train(text, **options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=out, character_coverage=0.98, minloglevel=2, num_threads=1, hard_vocab_limit=False,
        **options)
    return out.getvalue()


def with_unused(model, rng):
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    for piece in proto.pieces:
        if piece.type == 1 and len(piece.piece) > 1 and rng.random() < 0.3:
            piece.type = 5
    return proto.SerializeToString()


def models(rng, lines):
    text = corpus(rng, lines)
    bpe = train(text, model_type="bpe", vocab_size=520, byte_fallback=True, normalization_rule_name="identity",
                remove_extra_whitespaces=False, user_defined_symbols=["<tool>", "ab c"], control_symbols=["<ctl>"],
                split_digits=True)
    unigram = train(text, model_type="unigram", vocab_size=300)
    return {
        "unigram": unigram,
        "bpe": bpe,
        "nfkc": train(text, model_type="unigram", vocab_size=280, normalization_rule_name="nmt_nfkc_cf",
                      user_defined_symbols=["<tool>"], pad_id=3),
        "suffix": train(text, model_type="bpe", vocab_size=260, treat_whitespace_as_suffix=True),
        "plain": train(text, model_type="bpe", vocab_size=260, add_dummy_prefix=False, split_by_whitespace=False,
                       allow_whitespace_only_pieces=True),
        "unused": with_unused(bpe, rng),
        "unigram_unused": with_unused(unigram, rng),
    }


def ids_of(program, path, texts):
    sent = b"".join(struct.pack("<I", len(t)) + t for t in texts)
    answer = subprocess.run([program, path], input=sent, stdout=subprocess.PIPE, check=True).stdout
    at, found = 0, []
    for _ in texts:
        count, = struct.unpack_from("<i", answer, at)
        assert count >= 0, "a text was refused"
        found.append(list(struct.unpack_from("<%di" % count, answer, at + 4)))
        at += 4 + 4 * count
        at += 4 + struct.unpack_from("<i", answer, at)[0]
    return found


def compare(program, count, seed):
    rng = random.Random(seed)
    texts = [odd_text(rng) for _ in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        for name, model in models(rng, 300).items():
            path = os.path.join(folder, "tokenizer.model")
            with open(path, "wb") as f:
                f.write(model)
            reference = sentencepiece.SentencePieceProcessor(model_proto=model)
            ours = ids_of(program, path, [t.encode() for t in texts])
            for text, mine in zip(texts, ours):
                theirs = reference.encode(text)
                assert mine == theirs, (seed, name, text, mine, theirs, reference.encode(text, out_type=str))
            print("%s: %d texts have equal ids" % (name, count))


def golden(folder):
    rng = random.Random(5)
    texts = [odd_text(rng) for _ in range(60)]
    with open(os.path.join(folder, "texts.sp"), "wb") as f:
        f.write(b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts))
    for name, model in models(rng, 150).items():
        if name not in ("unigram", "bpe", "suffix"):
            continue
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
        proto.trainer_spec.ClearField("input")
        if name == "suffix":
            proto.normalizer_spec.precompiled_charsmap = small_rules()
        elif name == "unigram":
            proto.normalizer_spec.precompiled_charsmap = b""
        model = proto.SerializeToString()
        reference = sentencepiece.SentencePieceProcessor(model_proto=model)
        with open(os.path.join(folder, name + ".model"), "wb") as f:
            f.write(model)
        with open(os.path.join(folder, name + ".ids"), "wb") as f:
            for text in texts:
                ids = reference.encode(text)
                f.write(struct.pack("<I%di" % len(ids), len(ids), *ids))


def small_rules():
    """The rules of a model that replaces a few characters, as the library compiles them."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rules.tsv")
        with open(path, "w") as f: # characters in hexadecimal, and what replaces them
            f.write("41\t61\n42\t62\nFB01\t66 69\nBD\t31 2044 32\nA0\t20\n9\t20\n2060\t\n65 301\tE9\n")
        text = ["a b c d e f %d" % i for i in range(50)]
        model = train(text, model_type="char", vocab_size=40, normalization_rule_tsv=path)
    return sentencepiece_model_pb2.ModelProto.FromString(model).normalizer_spec.precompiled_charsmap


if __name__ == "__main__":
    if sys.argv[1] == "golden":
        golden(sys.argv[2])
    else:
        compare(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
