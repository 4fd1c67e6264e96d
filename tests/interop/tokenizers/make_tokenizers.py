"""make_tokenizers.py DIR: trains small BPE tokenizers and writes golden ids.

DIR gets gpt2.json, llama3.json, qwen2.json (byte-level), llama2.json and mistral.json (byte fallback: spaces by a
normaliser, or by Metaspace), tokenizers of 600 to 800 tokens with the pre-tokenizers,
normalisers and flags of the models they are named after, corpus.bin, texts of many scripts, and for
each tokenizer its ids of them, NAME.ids. What is committed in tests/unit/tokenizer/tokenizers was made by
this with tokenizers 0.23; training is repeatable, so running it again gives the same files.

corpus.bin: for each text its size in bytes, then the bytes. NAME.ids: for each text the number of
ids, then the ids. All numbers are 32 bits, little-endian.
"""
import json
import os
import struct
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")

TEXTS = [
    "", " ", "  ", "\n", "a", "Hello world", " Hello  world ", "The quick brown fox jumps over the lazy dog.",
    "I'm you're he's we'll they've I'd can't DON'T I'M YOU'RE WE'LL it\u2019s 'sup '\u017fo '\u212a 'RE'VE",
    "1 12 123 1234 12345 1234567890 3.14159 1,000,000 \u0661\u0662\u0663 \u2167 \u00bd \u4e00\u4e8c 1a2b",
    "   \t\t  \n\n \r\n\r\n   x   \n  y\u00a0\u3000\u2003z \u180e \u200b \u0085 end   ",
    "if (a != b) {\n\treturn f(x)[0] ->y << 2; /* ... */\n}\n\n\n", "!!!???...---===### @@ $$ %% ^^ && ** ~~ ``",
    "caf\u00e9 cafe\u0301 \u00c5 A\u030a \u1e9b\u0323 \u212b \u2126 q\u0307\u0323 q\u0323\u0307 \u0344 \u0958 \ufb1d",
    "\u1100\u1161\u11a8 \uac00\u11a8 \uac01 \ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0419\u0438\u0306 \u0401\u0435\u0308",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \u304b\u3099 \ufa10 \uf900",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u05e9\u05dc\u05d5\u05dd "
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u1019\u103c\u1014\u103a\u1019\u102c",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \U0001f3f4\u200d\u2620\ufe0f "
    "\U0001f44d\U0001f3fd \u2764\ufe0f \U00010348 \U0001d54f\U0001d7d8 \U0010ffff \ue000 \ufffd \ufeff",
    "\x00\x01\x07\x08\x0b\x0c\x0e\x1b[31m\x7f\x80\x9f", "a\u0300\u0301\u0302\u0303\u0304\u0315\u0316 zalgo",
    "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> \n<|endoftext|><|endoftext|>", "<|endoftext|", "<|im_start|>user\n",
    "<<|endoftext|>>", "x <strip> y", "x  \t<strip>\n  y<strip><strip> ", "keep  <left>  it", "keep  <right>  it <right>",
    "word", "a word here", "words sword word", "_word word_ word-word \u00e9word word\u0301 word", "caf\u00e9token cafe\u0301token",
    "tok", "token", "tokenizer tok", "longlonglong longlong", " " * 300 + "x" + "\n" * 70 + " \n" * 50, "x" * 700,
    "ab" * 400, "1" * 500, "'" * 90, "\u00e9" * 300, "e\u0301" * 150, ("aA1 _-\n\t\u00e9\u4e2d\U0001f600' " * 30),
]


def bpe(pre, norm, ignore_merges, name, specials, added):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if norm:
        t.normalizer = norm
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=specials, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator([x for x in TEXTS if "\x00" not in x], trainer)
    t.add_tokens(added)
    return name, t


def fallback(name, normal, pre, decoder, added):
    """A BPE with byte fallback, as converted from SentencePiece: <unk>, <s>, </s>, 256 bytes, then what was learned."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Replace(" ", "\u2581")
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False)
    t.train_from_iterator([x for x in TEXTS if "\x00" not in x and len(x) < 290], trainer)
    learned = json.loads(t.to_str())["model"]
    names = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    names += [x for x in sorted(learned["vocab"], key=learned["vocab"].get) if ord(x[0]) < 0x3000 or len(x) > 1]
    kept = set(names)
    merges = [m for m in learned["merges"] if all(p in kept for p in m) and "".join(m) in kept]
    special = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    tokens = [dict(special, id=i, content=c) for i, c in enumerate(names[:3])]
    tokens += [dict(dict(special, **a), id=len(names) + i) for i, a in enumerate(added)]
    model = dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None, end_of_word_suffix=None,
                 fuse_unk=True, byte_fallback=True, ignore_merges=False, vocab={x: i for i, x in enumerate(names)},
                 merges=merges)
    return name, Tokenizer.from_str(json.dumps(dict(
        version="1.0", truncation=None, padding=None, added_tokens=tokens, normalizer=normal, pre_tokenizer=pre,
        post_processor=None, decoder=decoder, model=model)))


def make_fallbacks():
    replace = dict(type="Replace", pattern=dict(String=" "), content="\u2581")
    decoder = dict(type="Sequence", decoders=[dict(type="Replace", pattern=dict(String="\u2581"), content=" "),
                                              dict(type="ByteFallback"), dict(type="Fuse"),
                                              dict(type="Strip", content=" ", start=1, stop=0)])
    meta = dict(type="Metaspace", replacement="\u2581", prepend_scheme="first", split=False)
    odd = [dict(content="<strip>", lstrip=True, rstrip=True, special=False),
           dict(content="token", normalized=True, special=False)]
    yield fallback("llama2", dict(type="Sequence", normalizers=[dict(type="Prepend", prepend="\u2581"), replace]), None,
                   decoder, odd)
    yield fallback("mistral", None, meta, meta, odd)
    yield fallback("metaspace", None, dict(meta, prepend_scheme="always", split=True), meta, odd)


def make():
    yield from make_byte_level()
    yield from make_fallbacks()


def make_byte_level():
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    odd = [AddedToken("<strip>", lstrip=True, rstrip=True, normalized=False), AddedToken("<left>", lstrip=True),
           AddedToken("<right>", rstrip=True, normalized=False), AddedToken("word", single_word=True, normalized=False),
           AddedToken("caf\u00e9token", normalized=True), AddedToken("tok", normalized=False),
           AddedToken("token", normalized=False), AddedToken("longlong", normalized=True)]
    yield bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), None, False, "gpt2", ["<|endoftext|>"], [])
    yield bpe(pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), level]), None, True, "llama3",
              ["<|begin_of_text|>", "<|end_of_text|>"], odd)
    yield bpe(pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"), level]), normalizers.NFC(), False,
              "qwen2", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], odd)


def main(folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "corpus.bin"), "wb") as out:
        for text in TEXTS:
            raw = text.encode()
            out.write(struct.pack("<I", len(raw)) + raw)
    for name, t in make():
        t.save(os.path.join(folder, name + ".json"), pretty=False)
        with open(os.path.join(folder, name + ".ids"), "wb") as out:
            for text in TEXTS:
                ids = t.encode(text, add_special_tokens=False).ids
                out.write(struct.pack("<%di" % (len(ids) + 1), len(ids), *ids))


if __name__ == "__main__":
    main(sys.argv[1])
