"""unigram.py compare TOKENS_OF COUNT SEED | golden FOLDER

Models of type Unigram in Heddle beside Hugging Face tokenizers: the steps that transformers writes for T5, XLM-R,
ALBERT, XLNet and Llama-like conversions, and random ones.

compare: COUNT random combinations of steps and models beside these, ids and decoded texts of 1,500 odd texts. golden:
writes NAME.json and NAME.ids of two models on the texts of texts.sp (sentencepiece_models.py), which
tokenizer_sentencepiece_test reads.
"""
import base64
import json
import os
import random
import struct
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

import grid
import sentencepiece_models as sp

SPACE = "\u2581"


def precompiled(charsmap):
    return dict(type="Precompiled", precompiled_charsmap=base64.b64encode(charsmap).decode())


def steps(charsmap):
    """(normalizer, pre-tokenizer, decoder) by the names of models that have them."""
    meta = grid.meta("always", True)
    many = grid.replace(" {2,}", " ", "Regex")
    quotes = [grid.replace("``", '"'), grid.replace("''", '"')]
    return {
        "t5": (precompiled(charsmap), grid.seq("pretokenizers", [dict(type="WhitespaceSplit"), meta]), meta),
        "xlmr": (grid.seq("normalizers", [precompiled(charsmap), many]), meta, meta),
        "strip": (grid.seq("normalizers", [precompiled(charsmap), dict(type="Strip", strip_left=False, strip_right=True),
                                           grid.replace(" {2,}", SPACE, "Regex")]), grid.meta("first", True), meta),
        "albert": (grid.seq("normalizers", quotes + [dict(type="NFKD"), dict(type="StripAccents"),
                                                     dict(type="Lowercase"), precompiled(charsmap), many]), meta, meta),
        "llama": (grid.seq("normalizers", [dict(type="Prepend", prepend=SPACE), grid.replace(" ", SPACE)]), None,
                  grid.seq("decoders", [grid.replace(SPACE, " "), dict(type="ByteFallback"), dict(type="Fuse"),
                                        dict(type="Strip", content=" ", start=1, stop=0)])),
        "plain": (None, grid.meta("never", False), None),
    }


def vocabulary(model, rng, more=()):
    """The pieces and scores of a SentencePiece model as transformers converts them."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    pieces = [[p.piece, p.score] for p in proto.pieces]
    if rng.random() < 0.3:  # scores of the full width of a double, as tokenizers' own trainer writes them
        pieces = [[p, s * rng.uniform(0.99, 1.01)] for p, s in pieces]
    return pieces + [[m, 0.0] for m in more]


def models(rng, lines):
    text = sp.corpus(rng, lines)
    plain = sp.train(text, model_type="unigram", vocab_size=300)
    raw = sp.train(text, model_type="unigram", vocab_size=600, byte_fallback=True, normalization_rule_name="identity",
                   remove_extra_whitespaces=False, user_defined_symbols=["<tool>", "ab c"])
    runs = [["<unk>", 0.0]] + [[c * n, -rng.uniform(1, 9)] for c in "a1-= " + SPACE for n in range(1, 9)]
    known = vocabulary(plain, rng)
    def model(vocab, unk, **more):
        return dict(type="Unigram", unk_id=unk, vocab=vocab, byte_fallback=False, **more)
    yield model(known, 0)
    yield model(vocabulary(plain, rng, ["<extra_id_0>", "<mask>"]), 0)
    yield dict(model(vocabulary(raw, rng), 0), byte_fallback=True)
    yield dict(model([v for v in vocabulary(raw, rng) if not v[0].startswith("<0x4")], 0), byte_fallback=True)
    yield model(runs, 0)
    yield model(known[5:], 7)  # an ordinary token in the place of the unknown one
    yield model(known + known[30:60], 0)  # tokens that are there twice
    yield model([[p, s + 30] for p, s in known], 0)  # positive scores


def file_of(parts, model):
    normalizer, pre, decoder = parts
    return dict(version="1.0", truncation=None, padding=None, added_tokens=grid.added(len(model["vocab"])),
                normalizer=normalizer, pre_tokenizer=pre, post_processor=None, decoder=decoder, model=model)


def all_texts(rng, count):
    texts = list(grid.texts(rng.randrange(1 << 30), count // 2)) + [sp.odd_text(rng) for _ in range(count // 2)]
    marks = ["\u0300", "\u0301", "\u0345", "\u200d", "\u0903", "\u094d", "\u0915", "\u0600", "\xa9", "\u2122", "\u1100",
             "\u1161", "\u11a8", "\uff41", "\xbd", "\r", "\n", "a", "e", "\U0001f1e9", "\ufe0f", "\u0b53", "\u09c1"]
    for _ in range(count // 4):
        texts.append("".join(rng.choice(marks) for _ in range(rng.randrange(1, 12))))
        texts.append("".join(rng.choice("a1-= ") * rng.randrange(1, 30) for _ in range(rng.randrange(1, 5))))
    return texts


def asks_origin(parts):
    """A Metaspace of the first piece behind Precompiled and a split: offsets of tokenizers are wrong there."""
    text = json.dumps(parts[:2])
    return "Precompiled" in text and '"first"' in text and "Sequence" in json.dumps(parts[1])


def compare(program, count, seed):
    grid.silence()
    rng = random.Random(seed)
    known = list(models(rng, 300))
    charsmap = sentencepiece_model_pb2.ModelProto.FromString(
        sp.train(sp.corpus(rng, 100), model_type="unigram", vocab_size=200,
                 normalization_rule_name=rng.choice(["nmt_nfkc", "nmt_nfkc_cf"]))).normalizer_spec.precompiled_charsmap
    named = list(steps(charsmap).values())
    texts = all_texts(rng, 1500)
    wrong = refused = 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokenizer.json")
        for i in range(count):
            parts = list(rng.choice(named))
            if i >= len(named):
                pre = grid.pre_tokenizer([rng.choice(grid.PRE_TOKENIZERS) for _ in range(rng.randrange(1, 3))])
                normal = [n for n in (rng.choice(grid.NORMALIZERS), precompiled(charsmap), rng.choice(grid.NORMALIZERS)) if n]
                parts = rng.choice([[parts[0], pre, parts[2]], [grid.seq("normalizers", normal), parts[1], parts[2]],
                                    [parts[0], pre, rng.choice(grid.DECODERS)]])
            else:
                parts = named[i]
            model = rng.choice(known)
            if asks_origin(parts):
                continue
            file = file_of(parts, model)
            with open(path, "w") as out:
                json.dump(file, out)
            theirs = grid.reference(file)
            rc, answers = grid.ours(program, path, texts, folder)
            where = "model %d %s" % (known.index(model), json.dumps(parts)[:600])
            if rc == 3 and "fails in tokenizers too" in answers:
                continue
            if rc:
                print("refused (%d): %s\n  %s" % (rc, answers, where))
                refused += 1
                continue
            shown = 0
            for text, (ids, back) in zip(texts, answers):
                answer = grid.answer_of(theirs, text)
                if not answer or (ids == answer[0] and answer[1] in (None, back)):
                    continue
                wrong += 1
                shown += 1
                if shown <= 2:
                    print("%s\n  %r\n    ours   %s %r\n    theirs %s %r" % (where, text, ids, back, *answer))
                    print("    tokens", theirs.encode(text, add_special_tokens=False).tokens, flush=True)
    print("%d combinations, %d texts each: %d refused, %d texts differ" % (count, len(texts), refused, wrong))
    return 1 if wrong or refused else 0


def golden(folder):
    rng = random.Random(7)
    known = list(models(rng, 150))
    named = steps(sp.small_rules())
    with open(os.path.join(folder, "texts.sp"), "rb") as f:
        sent, texts, at = f.read(), [], 0
    while at < len(sent):
        n, = struct.unpack_from("<I", sent, at)
        texts.append(sent[at + 4:at + 4 + n].decode())
        at += 4 + n
    for name, model in (("t5", known[1]), ("albert", known[3])):
        file = file_of(named[name], model)
        with open(os.path.join(folder, name + ".json"), "w") as f:
            json.dump(file, f, separators=(",", ":"))
        theirs = grid.reference(file)
        with open(os.path.join(folder, name + ".ids"), "wb") as f:
            for text in texts:
                ids = theirs.encode(text, add_special_tokens=False).ids
                f.write(struct.pack("<I%di" % len(ids), len(ids), *ids))


if __name__ == "__main__":
    if sys.argv[1] == "golden":
        golden(sys.argv[2])
    else:
        sys.exit(compare(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
