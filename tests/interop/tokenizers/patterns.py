"""patterns.py: regular expressions as Oniguruma reads them, beside ours.

patterns.py compare SPANS_OF COUNT [SEED]: the table below and COUNT random patterns over odd texts; prints what
differs and exits with 1 if something does.
patterns.py golden FILE: for each pattern of the table "same" and a digest of its matches in TEXTS, "refused" where
Heddle does not support it, or "invalid" where Oniguruma refuses it; for tests/unit/tokenizer/tokenizer_pattern_test.c.
"""
import os
import random
import struct
import subprocess
import sys
import tempfile

import grid
from tokenizers import Regex, pre_tokenizers

TEXTS = ["a", "ab", "aaaaab", "aab b", "12345 1 ", "a{,}", "a{,2}", "a{1", "e\u0301a", "a\nb\n", "\n", "a\r\nb\r\n\n", "a\x0b\x0c\x85b\u2028c",
         "xAbC aBc ABC", "can't I'LL 'S '\u017f", "xyz-_.,:;!?", "\u00e9\u00c9\u00df ss", "\u4e2d\u6587 abc \u3042", "\u00b2\u00bd\u2160\u0661 1a", "fg FG 09",
         "a b\tc\u00a0d\u3000e", "\u2581a\u2581\u2581b", "[a]", "a-z", "\\ ^ $ . |", "(?:x)", "a&&b", ":alpha:", "\U0001f600\u200d\u2764\ufe0f",
         "word_1 word-2", "aXbX", "\x07\x1b\x01", "ZAzG", "RXB", "\u1c89\ua7da\U00031350 \U00010d40", "\u0345\u0130\u0131\u212a\u24b6", "a\u00adb\u200bc",
         "bab bba", "adbcdd", "aaa", "aabbaabb", "1a2b3c", "\u0e01\u0e33 \u0939\u093f", "  \n  x"]

SAME = [
    r"\d\d{,2}", r"a{,2}", r"a{2}", r"a{2,}", r"a{1,2}", r"a{0}", r"a{,}", r"a{ 1}", r"a{1", "{", "}", "]", r"a{1,2}+", r"a{2}+", r"a{2,}+b", r"a{2}?", r"a{1,3}?",
    r"a{,2}?", r"a{2,}?", r"a+?", r"a*?b", r"a??b", r"a++", r"a*+b", r"a?+a", r"a**", r"a+*", r"(?:a|b?)*", r"a{1,2}{2}", r"a+?*", r"(?:a+)+b",
    r"\h+", r"\H+", r"\R", r"\N+", r"\O+", r"\v", r"\e\a", r"\w+", r"\W+", r"[\w]+", r"[^\w]+", r"\s+", r"\S+", r"[\S]+", r"[^\S]+", r"[\s\S]", r"[^\S\n]+",
    r"\d+", r"\D+", r"\b", r"\B", r"\bb", r"\A", r"\Z", r"\z", r"^", r"$", r"^.", r".$", r"\n$", r"a\Z", r".", r".+", r"(?m).+", r"(?m:.)b", r"(?-m:.)", r"(?m-i).",
    r"a|", r"|a", r"", r"(?:)", r"(a)(b)", r"(?<n>a)b", r"(?'n'a)b", r"(?>a+)b", r"(?=a)a", r"a(?!b)", r"(?<=a)b", r"(?<!a)b", r"(?<=a|bc)d", r"(?#x)a", r"a(?#x)+"[:6],
    r"a(?i)b|c", r"(?i)ab", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"'(?i:[sdmt]|ll|ve|re)", r"(?i:a(?-i)b|c)", r"(?i)[a-c]+", r"(?i)[^a]", r"(?i)k", r"(?i)[k]", r"(?i)\d\s\h",
    r"(?i)\w", r"(?i)\p{N}+", r"(?i)\p{Han}", r"(?i)[\d\s]+", r"(?i)\x61", r"(?i)\u2019|a",
    r"\x{e9}", r"\x41", r"\u0041", r"\t|\n|\r|\f", r"\_", r"\-\.\:", r"\é", r"\m|\i", r"\l", r"\\", r"\^\$", r"[\^\$\\]", r"[\t\n]", r"[\b]", r"[\R\X\B\Z\A\z\G]+",
    r"[a-c]+", r"[^a-c]+", r"[a\-z]", r"[a-]", r"[-a]", r"[]a]", r"[^]a]", r"[a\]]", r"[[a]]", r"[a[bc]]+", r"[a[^b]]+", r"[^a[b]]+", r"[a-z&&[^b]]+", r"[^a-z&&[b-d]]+",
    r"[\w&&[^\d_]]+", r"[a-z&&\w&&[^aeiou]]+", r"[[a-c]&&[b-d]]", r"[a&b]", r"[--/]", r"[!--]", r"[\x{4e00}-\x{9fff}]+", r"[\u3040-\u30ff]", r"[ -~]+",
    r"[[:alpha:]]+", r"[[:^alpha:]]+", r"[[:digit:]]", r"[[:punct:]]+", r"[[:space:]]+", r"[[:upper:]]", r"[[:lower:]]+", r"[[:alnum:]]+", r"[[:word:]]+", r"[[:xdigit:]]+",
    r"[[:cntrl:]]", r"[[:blank:]]", r"[[:ascii:]]+", r"[[:graph:]]+", r"[[:print:]]+", r"[^[:space:]]+", r"[[:alpha:][:digit:]]+", r"[:alpha:]+",
    r"\p{L}+", r"\P{L}+", r"\p{^L}+", r"\P{^L}+", r"\p{Lu}", r"\p{Letter}", r"\p{Uppercase_Letter}", r"\p{Uppercase Letter}", r"\p{uppercase-letter}", r"\p{Han}+", r"\p{hAn_}", r"[\p{L}\p{N}]+",
    r"[\P{L}]+", r"[^\p{L}]+", r"[^\P{L}]+", r"[\p{^L}]", r"\p{M}", r"\p{Mn}+", r"\p{Nd}", r"\p{No}", r"\p{P}+", r"\p{S}", r"\p{So}", r"\p{Z}", r"\p{Zs}", r"\p{C}+", r"\p{Cn}", r"\p{Cc}",
    r"\p{Alnum}+", r"\p{Punct}", r"\p{Word}+", r"[\p{Word}]+", r"[\p{Alnum}]+", r"[\p{Punct}]+", r"\p{Space}", r"\p{Upper}", r"\p{ASCII}+", r"\p{Alphabetic}+", r"\p{Lowercase}", r"\p{Latin}+", r"\p{Hiragana}", r"\p{Common}+",
    r"\s*[\r\n]+|\s+(?!\S)|\s+", grid.LLAMA3, r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}", r"(?<=\d)(?=(?:\d{3})+(?!\d))", r"\d{1,3}(?=(?:\d{3})*\b)",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+", r" ?[\p{P}\p{S}]+[\r\n]*", r"[一-龥぀-ゟ゠-ヿ]+", r"[A-Za-zµÀ-ÖØ-öø-ƺ]+",
]

REFUSED = [
    r"(a)\1", r"(?<n>a)\k<n>", r"\k'n'", r"\g<0>", r"\Ga", r"a\Kb", r"\X", r"\y", r"\Y", r"(?~b)", r"(?~|a|b)", r"(?(a)b|c)", r"(?{x})", r"(*FAIL)", r"(?x) a b", r"(?W)\w", r"(?P:a)", r"(?y{w})\X",
    r"(?I)a", r"\101", r"\0", r"\o{101}", r"\cA", r"\C-a", r"\M-a", r"\x{61 62}", r"\pL", r"[\pL]", r"a{3,1}", r"(?i)ss", r"(?i)first", r"(?i)ß", r"(?i)[ß]", r"(?i)\p{L}", r"(?i)[\w]", r"(?i)[à-ÿ]",
    r"(?i)[[a]]", r"(?<=a*)d", r"\p{InBasicLatin}", r"\p{LC}", r"\p{Emoji}", r"[a&&]", r"[a-c-e]", r"[a[:alpha]b]"[:8] + "]]",
]

INVALID = [r"*a", r"a|*", r"(?=a)*", r"(a", r"a)", r"[a", r"[]", "\\", r"[z-a]", r"[\w-x]", r"\p{Foo}", r"[[:foo:]]", r"(?P<x>a)", r"(?s).", r"\u12", r"\xE9", r"\p{L&}", r"\p{Script=Han}", r"(?<>a)"]


def spans(pattern, text):
    """The matches of a text, in bytes: the pieces that are one, and where empty ones cut."""
    raw = [len(text[:i].encode()) for i in range(len(text) + 1)]
    if not text:
        return [], []
    r = Regex(pattern)
    cut = [raw[a] for _, (a, b) in pre_tokenizers.Split(r, "isolated").pre_tokenize_str(text)]
    found = [(raw[a], raw[b]) for _, (a, b) in pre_tokenizers.Split(r, "removed", invert=True).pre_tokenize_str(text)]
    return cut, found


def ours(program, pattern, texts):
    data = b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts)
    done = subprocess.run([program, pattern], input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        return done.returncode, done.stderr.decode(errors="replace").strip()
    at, answers = 0, []
    for t in texts:
        (n,) = struct.unpack_from("<I", done.stdout, at)
        pairs = struct.unpack_from("<%dI" % (2 * n), done.stdout, at + 4)
        at += 4 + 8 * n
        pairs = list(zip(pairs[::2], pairs[1::2]))
        size = len(t.encode())
        cuts = {0} | {p for pair in pairs for p in pair if p < size} if size else set()
        answers.append((sorted(cuts), [p for p in pairs if p[0] < p[1]]))
    return 0, answers


ATOMS = ["a", "b", "A", "1", " ", "\\s", "\\S", "\\w", "\\W", "\\d", "\\p{L}", "\\p{^L}", "\\p{Lu}", "[a-c]", "[^a]", "[\\s\\d]", "[\\S]", "[a-z&&[^b]]", "[[:alpha:]]", "\\h", ".", "\\R", "\\n", "x",
         "\u4e2d", "\\p{Han}", "[^\\r\\n\\p{L}\\p{N}]", "'", "\u2581", "_", "-", "\\x{e9}", "\\O", "\\N", "[\\w-]", "\\p{P}", "\\p{N}", "[a[1-3]]"]
REPEATS = ["", "", "", "", "?", "*", "+", "??", "*?", "+?", "++", "*+", "?+", "{1,2}", "{,2}", "{2}", "{1,}", "{1,2}?", "{1,2}+", "{2}?", "{,1}+"]


def random_pattern(r, depth=0):
    kind = r.randrange(10) if depth < 3 else 0
    if kind < 4:
        return "".join(r.choice(ATOMS) + r.choice(REPEATS) for _ in range(r.randrange(1, 4)))
    if kind < 6:
        return random_pattern(r, depth + 1) + "|" + random_pattern(r, depth + 1)
    if kind < 8:
        return r.choice(["(%s)", "(?:%s)", "(?>%s)", "(?m:%s)", "(?i:%s)"]) % random_pattern(r, depth + 1) + r.choice(REPEATS)
    if kind == 8:
        return random_pattern(r, depth + 1) + r.choice(["(?=%s)", "(?!%s)"]) % random_pattern(r, depth + 1)
    return r.choice(["(?<=%s)", "(?<!%s)", "^%s", "%s$", "\\b%s", "%s\\b", "\\A%s", "(?i)%s"]) % r.choice(ATOMS) + random_pattern(r, depth + 1)


def compare(program, count, seed):
    grid.silence()
    r = random.Random(seed)
    texts = TEXTS + ["".join(r.choice("ab A1_'-x\n \u4e2d\u2581\xe9BC") for _ in range(r.randrange(1, 24))) for _ in range(120)]
    wrong = refused = invalid = 0
    for pattern in SAME + REFUSED + INVALID + [random_pattern(r) for _ in range(count)]:
        rc, answers = ours(program, pattern, texts)
        try:
            theirs = [spans(pattern, t) for t in texts]
        except BaseException as e:
            invalid += 1
            if rc != 3:
                print("invalid there, not here: %r %s" % (pattern, e))
                wrong += 1
            continue
        if rc == 3:
            refused += 1
            if pattern in SAME:
                print("refused: %r %s" % (pattern, answers))
                wrong += 1
            continue
        if pattern in REFUSED or pattern in INVALID:
            print("not refused: %r" % pattern)
            wrong += 1
        if rc and "match limit" in answers:  # an error of its own, for patterns that go back and forth without end
            continue
        bad = [(t, a, b) for t, a, b in zip(texts, answers, theirs) if a != b] if not rc else [(answers, rc, rc)]
        if bad:
            wrong += 1
            print("%r\n  %r\n    ours   %s\n    theirs %s" % (pattern, *bad[0]))
    print("%d random patterns: %d refused here, %d there, %d wrong" % (count, refused, invalid, wrong))
    return 1 if wrong else 0


def write_golden(path):
    with open(path, "w") as out:
        for pattern in SAME:
            value = 0xCBF29CE484222325
            for text in TEXTS:
                cut, found = spans(pattern, text)
                value = grid.fnv(value, struct.pack("<%dI" % (2 + len(cut) + 2 * len(found)), len(cut), *cut, len(found),
                                                    *[x for pair in found for x in pair]))
            out.write("same %016x %s\n" % (value, pattern))
        for pattern in REFUSED:
            out.write("refused - %s\n" % pattern)
        for pattern in INVALID:
            out.write("invalid - %s\n" % pattern)
        for text in TEXTS:
            out.write("text %s\n" % text.encode().hex())


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        sys.exit(compare(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 1))
    write_golden(sys.argv[2])
