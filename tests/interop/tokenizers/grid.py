"""grid.py: tokenizers of many parts beside Hugging Face tokenizers.

grid.py compare TOKENS_OF COUNT [SEED]: COUNT random combinations of {normalizer, pre-tokenizers, model, decoder}
over 2,000 odd texts; prints what differs and exits with 1 if something does.
grid.py golden DIR: writes the parts, the texts and a digest for each combination of a fixed grid, for
tests/unit/tokenizer/grid_test.c. Made with tokenizers 0.23; running it again gives the same files.
"""
import collections
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer

BLANKS = [chr(c) for c in [9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
                           0x205F, 0x3000, 0x180E, 0x200B, 0x200D, 0x2060, 0xFEFF]]
SPACE = "\u2581"
ODD = [SPACE, "\0", "\1", "\x1b", "\x7f", "\x8f", "\x9f", "\xad", "\ufffd", "\u0345", "\u0301", "\u0327", "\u0130",
       "\u0131", "\u017f", "\u212a", "\u1e9e", "\xdf", "\ufb01", "\ufb06", "\u01c5", "\u2160", "\xbd", "\xb2", "\u2167",
       "\u0661", "\u0e33", "\u1100\u1161\u11a8", "\ud55c", "\uffa1", "\uff76\uff9e", "\u32ff", "\ufdfa", "\u0958",
       "\U0001f600", "\U0001f468\u200d\U0001f469", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\U0001fae8", "\u4e2d\u6587",
       "\u65e5\u672c", "\u3042", "\u30ab", "\U00031350", "\U0002ebf0", "\u1c89", "\ua7da", "\U00010d50", "\U0001e030",
       "\u0897", "\ua7cb", "\U00016ea0", "\U00011f50", "\u24b6", "\u0e01", "\u0939\u093f", "\u05d0", "\u0627\u0644",
       "\u0391\u03a3", "\u03c2", "\u0416", "\xe9", "e\u0301", "\xc5", "A\u030a", "\u1e69", "\ufb03", "\u2126", "\u0149",
       "\u2019", "\u201c", "\u3001", "\u00b7", "\u061d", "\u2e5d", "\u2e43"]
PLAIN = ["a", "b", "A", "Hello", "world", "WORLD", "the ", " the", "ss", "st", "fi", "1", "12", "345", "0x1F", "'s", "'LL",
         "can't", "I'm", "!", "?", "...", ",", "-", "--", "_", "(", "]", "#", "/", "\\", "<", ">", "<s>", "</s>",
         "<strip>", "<left>", "<right>", "<word>", "<norm>", "<NORM>", "caf\xe9", "ing", "un", "  ", "   ", " ", " ",
         " ", "\n", "\n\n", "\r\n", "\t", "</w>", "##", "<0x0A>", "<unk>", "\u0120", "\u0120a", "\xc3\xa9", SPACE + "a",
         SPACE + SPACE, " " + SPACE, SPACE + " "]


def texts(seed, count):
    r = random.Random(seed)
    yield from ["", " ", "  ", "a", SPACE, "Hello world", " Hello  world ", "<s>", " <s> a", "a <strip> b", "x<word>y <word>",
                "HELLO Caf\xe9", "a" * 70, "ab " * 30, " ".join(BLANKS), "".join(BLANKS), "".join(ODD)]
    for b in BLANKS:
        yield "a" + b + "b" + b + b
    for o in ODD:
        yield o + "a " + o + o
    for _ in range(count - 17 - len(BLANKS) - len(ODD)):
        pools = [PLAIN, PLAIN, BLANKS, ODD, [chr(r.randrange(0x20, 0x17F)) for _ in range(8)],
                 [chr(r.randrange(0x180, 0xD7FF)) for _ in range(8)], [chr(r.randrange(0xE000, 0x20000)) for _ in range(4)]]
        yield "".join(r.choice(r.choice(pools)) for _ in range(r.randrange(1, 16)))


# ---- parts ----

def seq(kind, parts):
    return dict(type="Sequence", **{kind: parts})


def replace(pattern, content, kind="String"):
    return dict(type="Replace", pattern={kind: pattern}, content=content)


NORMALIZERS = [
    None, dict(type="NFC"), dict(type="NFD"), dict(type="NFKC"), dict(type="NFKD"), dict(type="Lowercase"),
    dict(type="Strip", strip_left=True, strip_right=True), dict(type="Strip", strip_left=True, strip_right=False),
    dict(type="Strip", strip_left=False, strip_right=True), dict(type="StripAccents"), dict(type="Nmt"),
    dict(type="ByteLevel"), dict(type="Prepend", prepend=SPACE), dict(type="Prepend", prepend="ab "),
    replace(" ", SPACE), replace(r"\s+", " ", "Regex"), replace(" {2,}", SPACE, "Regex"), replace("[aeiou]", "", "Regex"),
    replace("a", "bb"), replace(r"(?<=\d)\d", "#", "Regex"), replace("x*", "-", "Regex"), replace("", "_"),
    replace(r"\p{M}|[\p{Lu}&&[^A-M]]", "", "Regex"), replace("``", '"'), replace("^", ">", "Regex"), replace("$", "<", "Regex"),
    seq("normalizers", [dict(type="Prepend", prepend=SPACE), replace(" ", SPACE)]),
    seq("normalizers", [dict(type="NFKD"), seq("normalizers", [dict(type="StripAccents"), dict(type="Lowercase")])]),
    seq("normalizers", [dict(type="Strip", strip_left=False, strip_right=True), replace(r"\s+", SPACE, "Regex")]),
    seq("normalizers", [dict(type="NFC"), replace("\n", " "), replace(" ", SPACE)]), seq("normalizers", []),
    dict(type="BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True),
    dict(type="BertNormalizer", clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False),
    dict(type="BertNormalizer", clean_text=True, handle_chinese_chars=False, strip_accents=True, lowercase=False),
]

BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern, behavior, invert=False, kind="Regex"):
    return dict(type="Split", pattern={kind: pattern}, behavior=behavior, invert=invert)


def meta(scheme, splits, replacement=SPACE):
    return dict(type="Metaspace", replacement=replacement, prepend_scheme=scheme, split=splits)


def level(prefix, regex):
    return dict(type="ByteLevel", add_prefix_space=prefix, trim_offsets=True, use_regex=regex)


PATTERNS = [(r"\s+", "Regex"), (" ", "String"), (SPACE, "String"), ("[" + SPACE + " ]", "Regex"), (r"\d\d{,2}", "Regex"),
            (r"\w+|[^\w\s]+", "Regex"), (r"\b", "Regex"), ("x*", "Regex"), (LLAMA3, "Regex"), (r"\p{L}{1,2}+", "Regex"),
            (r"[\w&&[^\d_]]+", "Regex"), ("(?i:'s|hello)", "Regex"), (r"(?<=\s)\S", "Regex"), (r"^.|.$", "Regex"),
            ("", "String"), ("ab", "String"), (r"\h+", "Regex"), (r"[[:punct:]]+", "Regex"), (r"(?m).\R?", "Regex"),
            (r"\p{Han}+|\p{^L}", "Regex"), ("[^\\S\n]+", "Regex")]

PRE_TOKENIZERS = (
    [None, level(False, True), level(True, True), level(False, False), level(True, False), dict(type="Whitespace"),
     dict(type="WhitespaceSplit"), dict(type="BertPreTokenizer"), dict(type="CharDelimiterSplit", delimiter="a"),
     dict(type="CharDelimiterSplit", delimiter=" "), dict(type="FixedLength", length=3),
     dict(type="Digits", individual_digits=True), dict(type="Digits", individual_digits=False)]
    + [meta(scheme, splits) for scheme in ("always", "first", "never") for splits in (True, False)]
    + [meta("first", True, "_"), meta("always", True, "\xe9")]
    + [dict(type="Punctuation", behavior=b) for b in BEHAVIORS]
    + [split(PATTERNS[i % len(PATTERNS)][0], BEHAVIORS[i % 5], i % 3 == 1, PATTERNS[i % len(PATTERNS)][1])
       for i in range(2 * len(PATTERNS))])

DECODERS = [
    None, dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True), dict(type="Fuse"),
    dict(type="ByteFallback"), meta("always", True), meta("never", True), dict(type="BPEDecoder", suffix="</w>"),
    dict(type="Strip", content=" ", start=1, stop=0), replace(SPACE, " "), replace(r"\s", "", "Regex"),
    seq("decoders", [replace(SPACE, " "), dict(type="ByteFallback"), dict(type="Fuse"),
                     dict(type="Strip", content=" ", start=1, stop=0)]),
    seq("decoders", [dict(type="ByteFallback"), meta("first", True), dict(type="Fuse"), replace("a+", "A", "Regex")]),
    seq("decoders", [dict(type="Fuse"), dict(type="Strip", content="a", start=2, stop=1)]),
    seq("decoders", [dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True), replace(" ", "+")]),
]


def added(first):
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
    tokens = [dict(content="<s>", special=True), dict(content="</s>", special=True, rstrip=True),
              dict(content="<strip>", lstrip=True, rstrip=True), dict(content="<left>", lstrip=True, normalized=True),
              dict(content="<right>", rstrip=True), dict(content="<word>", single_word=True),
              dict(content="<norm>", normalized=True), dict(content="the ", normalized=True, single_word=True),
              dict(content="caf\xe9", normalized=True, lstrip=True), dict(content="345", rstrip=True, single_word=True)]
    return [dict(flags, id=first + i, **t) for i, t in enumerate(tokens)]


LETTERS = [chr(b) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174 else None for b in range(256)]
LETTERS = [x or chr(256 + sum(y is None for y in LETTERS[:i])) for i, x in enumerate(LETTERS)]


def learn(count, affix=lambda word: word):
    """Merges of a small corpus, spelt with spaces, with U+2581 and with ByteLevel's letters."""
    words = collections.Counter()
    for text in texts(7, 600):
        text = "".join(c for c in text if c != "\0")
        for spelt in (text, text.replace(" ", SPACE), "".join(LETTERS[b] for b in text.encode())):
            for word in spelt.split(" "):
                if word:
                    words[affix(tuple(word))] += 1
    merges = []
    for _ in range(count):
        pairs = collections.Counter()
        for word, n in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += n
        best = max(sorted(pairs), key=lambda p: pairs[p])
        merges.append(best)
        joined = {}
        for word, n in words.items():
            out, i = [], 0
            while i < len(word):
                if word[i:i + 2] == best:
                    out.append(join(best))
                    i += 2
                else:
                    out.append(word[i])
                    i += 1
            joined[tuple(out)] = joined.get(tuple(out), 0) + n
        words = collections.Counter(joined)
    return merges


def join(pair):
    return pair[0] + (pair[1][2:] if pair[1].startswith("##") else pair[1])


def suffixed(word):
    return word[:-1] + (word[-1] + "</w>",)


def prefixed(word):
    return word[:1] + tuple("##" + c for c in word[1:])


def model(merges, more=(), **settings):
    base = ["<unk>"] + LETTERS + [SPACE, " ", "\n", "\t", "\u4e2d", "\u0301", "\U0001f600", "\u0416"] + list(more)
    known = dict.fromkeys(base)
    for pair in merges:
        known.update(dict.fromkeys([pair[0], pair[1], join(pair)]))
    out = dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None, end_of_word_suffix=None,
               fuse_unk=False, byte_fallback=False, ignore_merges=False)
    return dict(out, **settings, vocab={x: i for i, x in enumerate(known)}, merges=[list(m) for m in merges])


def models():
    merges = learn(250)
    inside = [m for m in merges if not any(SPACE in x[1:] and x.strip(SPACE) for x in (join(m),))]
    raw = ["<0x%02X>" % b for b in range(256)]
    some = {m for m in merges if all(ord(c) < 128 or c == SPACE for c in join(m))}
    small = [m for m in merges if m in some]
    yield model(merges)
    yield model(inside, raw, byte_fallback=True, fuse_unk=True)
    yield model(merges, raw, byte_fallback=True, unk_token=None)
    yield model(merges, raw[:200:3], byte_fallback=True)
    yield model(merges, raw[:200:3], byte_fallback=True, fuse_unk=True)
    yield model(small, fuse_unk=True, ignore_merges=True)
    yield model(merges, ignore_merges=True)
    yield model(learn(150, suffixed), end_of_word_suffix="</w>", fuse_unk=True)
    yield model(learn(150, prefixed), continuing_subword_prefix="##")


def pre_tokenizer(parts):
    parts = [p for p in parts if p]
    return seq("pretokenizers", parts) if len(parts) > 1 else parts[0] if parts else None


def file_of(normalizer, pre, which, decoder):
    return dict(version="1.0", truncation=dict(direction="Right", max_length=4, strategy="LongestFirst", stride=0),
                padding=None, added_tokens=added(len(which["vocab"])), normalizer=normalizer, pre_tokenizer=pre,
                post_processor=None, decoder=decoder, model=which)


def reference(file):
    t = Tokenizer.from_str(json.dumps(file))
    t.no_truncation()
    t.no_padding()
    return t


def answer_of(tokenizer, text):
    """Its ids and their text; None where the reference panics (it does, on some normalizers of others)."""
    try:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
    except BaseException:  # a panic is no Exception
        return None
    try:
        return ids, tokenizer.decode(ids, skip_special_tokens=False).encode()
    except BaseException:
        return ids, None


def silence():
    """Panics print a stack."""
    os.environ["RUST_BACKTRACE"] = "0"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


# ---- comparing ----

def ours(program, path, all_texts, folder):
    source = os.path.join(folder, "texts")
    with open(source, "wb") as out:
        for text in all_texts:
            raw = text.encode()
            out.write(struct.pack("<I", len(raw)) + raw)
    with open(source, "rb") as given:
        done = subprocess.run([program, path], stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        return done.returncode, done.stderr.decode(errors="replace").strip()
    at, answers = 0, []
    for _ in all_texts:
        (n,) = struct.unpack_from("<i", done.stdout, at)
        ids = list(struct.unpack_from("<%di" % max(n, 0), done.stdout, at + 4)) if n >= 0 else None
        at += 4 + 4 * max(n, 0)
        (size,) = struct.unpack_from("<i", done.stdout, at)
        answers.append((ids, done.stdout[at + 4:at + 4 + size]))
        at += 4 + size
    return 0, answers


def compare(program, count, seed):
    silence()
    r = random.Random(seed)
    which = list(models())
    all_texts = list(texts(seed, 2000))
    wrong = refused = 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokenizer.json")
        for i in range(count):
            parts = [r.choice(NORMALIZERS), pre_tokenizer([r.choice(PRE_TOKENIZERS) for _ in range(r.randrange(1, 4))]),
                     r.choice(which), r.choice(DECODERS)]
            if r.random() < 0.25:
                parts[0] = seq("normalizers", [n for n in (r.choice(NORMALIZERS), r.choice(NORMALIZERS)) if n])
            if r.random() < 0.4:
                p = r.choice(PATTERNS)
                parts[1] = pre_tokenizer([parts[1], split(p[0], r.choice(BEHAVIORS), r.random() < 0.3, p[1])])
            file = file_of(*parts)
            with open(path, "w") as out:
                json.dump(file, out)
            try:
                theirs = reference(file)
            except BaseException as e:  # a panic of the reference is no Exception
                print("the reference refuses %s: %s" % (json.dumps(parts[:2]), e))
                continue
            rc, answers = ours(program, path, all_texts, folder)
            where = json.dumps(parts[:2] + [{k: v for k, v in parts[2].items() if k not in ("vocab", "merges")}, parts[3]])
            if rc == 3 and "fails in tokenizers too" in answers:
                continue
            if rc:
                print("refused (%d): %s\n  %s" % (rc, answers, where))
                refused += 1
                continue
            shown = 0
            for text, (ids, back) in zip(all_texts, answers):
                answer = answer_of(theirs, text)
                if not answer or (ids == answer[0] and answer[1] in (None, back)):
                    continue
                wrong += 1
                shown += 1
                if shown <= 2:
                    print("%s\n  %r\n    ours   %s %r\n    theirs %s %r" % (where, text, ids, back, *answer))
                    print("    tokens", theirs.encode(text, add_special_tokens=False).tokens, flush=True)
    print("%d combinations, %d texts each: %d refused, %d texts differ" % (count, len(all_texts), refused, wrong))
    return 1 if wrong or refused else 0


# ---- golden ----

PARTS = 8  # a combination is tried on every eighth text


def fnv(value, data):
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def digest(tokenizer, some):
    """Of ids and decoded texts; None where the reference panics."""
    value = 0xCBF29CE484222325
    for text in some:
        answer = answer_of(tokenizer, text)
        if not answer or answer[1] is None:
            return None
        ids, back = answer
        value = fnv(value, struct.pack("<%di" % (len(ids) + 2), len(ids), *ids, len(back)) + back)
    return value


def is_refused(normalizer, *pre):
    """What Heddle refuses because tokenizers panics on it (lib/tokenizer/json_steps.c)."""
    empty = normalizer and normalizer["type"] == "Replace" and list(normalizer["pattern"].values())[0] in ("", "x*", "^", "$")
    return empty and any(p and p["type"] == "ByteLevel" for p in pre)


def combinations():
    """(normalizer, first and second pre-tokenizer): every normalizer beside some pre-tokenizers, and pairs of these."""
    for n in range(len(NORMALIZERS)):
        for p in range(len(PRE_TOKENIZERS)):
            if (n + p) % 4 == 0 and not is_refused(NORMALIZERS[n], PRE_TOKENIZERS[p]):
                yield n, 0, p
    for p in range(len(PRE_TOKENIZERS)):
        for q in range(len(PRE_TOKENIZERS)):
            if (p * 5 + q) % 13 == 0:
                yield (0, 10, 18)[(p + q) % 3], p, q  # a few normalizers only


def write_golden(folder):
    silence()
    which = list(models())
    all_texts = list(texts(1, 2000))
    with open(os.path.join(folder, "texts.bin"), "wb") as out:
        for text in all_texts:
            raw = text.encode()
            out.write(struct.pack("<I", len(raw)) + raw)
    with open(os.path.join(folder, "grid.txt"), "w") as out:
        for letter, parts in (("N", NORMALIZERS), ("P", PRE_TOKENIZERS), ("D", DECODERS), ("M", which),
                              ("A", [added(len(m["vocab"])) for m in which])):
            for part in parts:
                out.write("%s %s\n" % (letter, json.dumps(part, separators=(",", ":"))))
        for i, (n, p, q) in enumerate(combinations()):
            m, d = i * 7 % len(which), i * 5 % len(DECODERS)
            pre = pre_tokenizer([PRE_TOKENIZERS[p], PRE_TOKENIZERS[q]])
            value = digest(reference(file_of(NORMALIZERS[n], pre, which[m], DECODERS[d])), all_texts[i % PARTS::PARTS])
            if value is not None:
                out.write("C %d %d %d %d %d %d %016x\n" % (n, p, q, m, d, i % PARTS, value))


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        sys.exit(compare(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 1))
    write_golden(sys.argv[2])
