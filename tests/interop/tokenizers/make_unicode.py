"""make_unicode.py FILE: writes the tables of lib/tokenizer/unicode.def, asked of Hugging Face tokenizers.

The parts of tokenizers read Unicode in versions of their own: patterns (Oniguruma) in version 16, Digits and
Lowercase (Rust) in a later one, normal forms and StripAccents in version 9, Punctuation and BertNormalizer in
version 8. PCRE2 and utf8proc have the version of the distribution. So each set of characters is asked here,
character by character, of tokenizers 0.23 and of PCRE2 10.42 (Unicode 14), and the differences are written.
Needs libpcre2-8 and libutf8proc beside tokenizers.
"""
import ctypes
import sys

from tokenizers import Regex, normalizers, pre_tokenizers

CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, CODES))
RAW = TEXT.encode()
SPACES = r"\t-\r \x{85}\p{Z}"

GENERAL = {"L": "letter", "M": "mark", "N": "number", "P": "punctuation", "S": "symbol", "Z": "separator", "C": "other",
           "Lu": "uppercaseletter", "Ll": "lowercaseletter", "Lt": "titlecaseletter", "Lm": "modifierletter",
           "Lo": "otherletter", "Mn": "nonspacingmark", "Mc": "spacingmark", "Me": "enclosingmark",
           "Nd": "decimalnumber", "Nl": "letternumber", "No": "othernumber", "Pc": "connectorpunctuation",
           "Pd": "dashpunctuation", "Ps": "openpunctuation", "Pe": "closepunctuation", "Pi": "initialpunctuation",
           "Pf": "finalpunctuation", "Po": "otherpunctuation", "Sm": "mathsymbol", "Sc": "currencysymbol",
           "Sk": "modifiersymbol", "So": "othersymbol", "Zs": "spaceseparator", "Zl": "lineseparator",
           "Zp": "paragraphseparator", "Cc": "control", "Cf": "format", "Co": "privateuse", "Cn": "unassigned"}
SCRIPTS = ("Han Hiragana Katakana Hangul Latin Cyrillic Greek Arabic Hebrew Devanagari Thai Bengali Tamil Telugu Kannada "
           "Malayalam Gujarati Gurmukhi Khmer Lao Myanmar Tibetan Georgian Armenian Ethiopic Mongolian Sinhala Common "
           "Inherited Bopomofo").split()
POSIX = [("alnum", r"\p{Alphabetic}\p{Nd}"), ("alpha", r"\p{Alphabetic}"), ("blank", r"\t\p{Zs}"),
         ("cntrl", r"\p{Cc}"), ("digit", r"\p{Nd}"), ("graph", r"!-~\p{L}\p{M}\p{N}\p{P}\p{S}\p{Cf}\p{Co}"),
         ("lower", r"\p{Lowercase}"), ("print", r" -~\p{L}\p{M}\p{N}\p{P}\p{S}\p{Cf}\p{Co}\p{Zs}"),
         ("space", SPACES), ("upper", r"\p{Uppercase}"), ("xdigit", "0-9A-Fa-f"),
         ("word", r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}"), ("ascii", r"\x{0}-\x{7F}")]


def removed(step):
    """The characters that a pre-tokenizer takes away."""
    gone = set(range(len(CODES)))
    for _, (a, b) in step.pre_tokenize_str(TEXT):
        gone.difference_update(range(a, b))
    return {CODES[i] for i in gone}


def oniguruma(pattern):
    return removed(pre_tokenizers.Split(Regex("(?:" + pattern + ")+"), "removed"))


def numeric():
    """Digits with one piece per run: pieces alternate, the first begins with U+0000."""
    found = set()
    for k, (_, (a, b)) in enumerate(pre_tokenizers.Digits(False).pre_tokenize_str(TEXT)):
        if k % 2:
            found.update(CODES[a:b])
    return found


def word_of_rust():
    """Whitespace joins a letter and what follows it if both are word characters."""
    found, step = set(), pre_tokenizers.Whitespace()
    for i in range(0, len(CODES), 20000):
        part = CODES[i:i + 20000]
        ends = {a: b for _, (a, b) in step.pre_tokenize_str("".join("a" + chr(c) + " " for c in part))}
        found.update(c for k, c in enumerate(part) if ends.get(3 * k) == 3 * k + 2)
    return found


def dropped(normalizer):
    return {c for c in CODES if normalizer.normalize_str("a" + chr(c) + "b") == "ab"}


class Pcre:
    def __init__(self):
        self.lib = ctypes.CDLL("libpcre2-8.so.0")
        for name in ("compile", "match_data_create"):
            getattr(self.lib, "pcre2_%s_8" % name).restype = ctypes.c_void_p
        self.lib.pcre2_get_ovector_pointer_8.restype = ctypes.POINTER(ctypes.c_size_t)
        self.lib.pcre2_get_ovector_pointer_8.argtypes = [ctypes.c_void_p]
        self.index, at = {}, 0
        for i, c in enumerate(CODES):
            self.index[at] = i
            at += len(chr(c).encode())
        self.index[at] = len(CODES)

    def matches(self, items):
        pattern = ("[%s]+" % items).encode()
        code, where = ctypes.c_int(), ctypes.c_size_t()
        compiled = self.lib.pcre2_compile_8(pattern, ctypes.c_size_t(len(pattern)), ctypes.c_uint32(0x000A0000),
                                            ctypes.byref(code), ctypes.byref(where), None)
        assert compiled, pattern
        self.lib.pcre2_jit_compile_8(ctypes.c_void_p(compiled), 1)
        data = self.lib.pcre2_match_data_create_8(1, None)
        ends = self.lib.pcre2_get_ovector_pointer_8(data)
        found, at = set(), 0
        while at < len(RAW) and self.lib.pcre2_match_8(ctypes.c_void_p(compiled), RAW, ctypes.c_size_t(len(RAW)),
                                                       ctypes.c_size_t(at), ctypes.c_uint32(0x40000000),
                                                       ctypes.c_void_p(data), None) >= 0:
            found.update(CODES[self.index[ends[0]]:self.index[ends[1]]])
            at = ends[1]
        return found


def ranges(codes):
    out = []
    for c in sorted(codes):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def write_ranges(out, name, codes):
    """A row of bounds that has no rows of more than 100 columns."""
    line = "HD_UNICODE_RANGES(%s," % name
    items = ["R(0x%X, 0x%X)" % (a, b) for a, b in ranges(codes)]
    for i, item in enumerate(items):
        item = " " + item
        if len(line) + len(item) > 98:
            out.write(line + "\n")
            line = "   "
        line += item
    out.write(line + ")\n")


def lowered():
    lib = ctypes.CDLL("libutf8proc.so.2")
    step = normalizers.Lowercase()
    for c in CODES:
        text = step.normalize_str(chr(c))
        if text != chr(lib.utf8proc_tolower(c)):
            yield c, [ord(x) for x in text]


def main(path):
    pcre = Pcre()
    newer = set()
    with open(path, "w") as out:
        out.write("/* unicode.def: sets of characters as Hugging Face tokenizers has them, where PCRE2 10.42 or\n"
                  " * utf8proc 2.8 have another version of Unicode. Written by\n"
                  " * tests/interop/tokenizers/make_unicode.py; do not edit.\n"
                  " *\n"
                  " * HD_UNICODE_RANGES(set, R(first, last) ...): characters of a set.\n"
                  " * HD_UNICODE_SET(set, names, items): a set of `items`, as PCRE2 writes them in a class, and the\n"
                  " * ranges; items NULL: only the ranges. `newer` has all characters that PCRE2 lacks,\n"
                  " * `assigned_since` those that Unicode 14 lacks.\n"
                  " * HD_UNICODE_LOWER(code, first, second): lower case; second 0: one character. */\n")
        sets = []
        for name, words in GENERAL.items():
            sets.append((name, name.lower() + "|" + words, r"\p{%s}" % name, oniguruma(r"\p{%s}" % name)))
        for name in SCRIPTS:
            sets.append((name, name.lower(), r"\p{sc:%s}" % name, oniguruma(r"\p{%s}" % name)))
        for name, items in POSIX:
            sets.append((name, name, items, oniguruma("[[:%s:]]" % name)))
        for name, items in (("alphabetic", r"\p{Alphabetic}"), ("lowercase", r"\p{Lowercase}"),
                            ("uppercase", r"\p{Uppercase}")):
            sets.append((name, name, items, oniguruma(r"\p{%s}" % name)))
        sets.append(("posix_punct", "[punct]", r"\p{P}\p{S}", oniguruma("[[:punct:]]")))
        sets.append(("punct", "punct", r"\p{P}", oniguruma(r"\p{Punct}")))
        sets.append(("w", r"\\w", r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}", oniguruma(r"\w")))
        sets.append(("rust_word", r"\\rw", r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}", word_of_rust()))
        sets.append(("rust_numeric", r"\\rn", r"\p{N}", numeric()))
        sets.append(("rust_punctuation", r"\\rp", None, removed(pre_tokenizers.Punctuation("removed"))))
        for name, words, items, theirs in sets:
            ours = pcre.matches(items) if items else set()
            more = theirs - ours
            if ours - theirs:  # a character that moved to another set
                newer |= ours ^ theirs
                if name == "Cn":
                    assigned = ours - theirs
                items, more = None, theirs
            elif items:
                newer |= more
            write_ranges(out, "set_" + name, more or {0x110000})
            text = '"%s"' % items.replace("\\", "\\\\") if items else "NULL"
            out.write('HD_UNICODE_SET(set_%s, "%s",\n               %s)\n' % (name, words, text))
        write_ranges(out, "newer", newer)
        write_ranges(out, "assigned_since", assigned)
        write_ranges(out, "accents", dropped(normalizers.StripAccents()))
        bert = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
        write_ranges(out, "bert_accents", dropped(normalizers.BertNormalizer(**dict(bert, strip_accents=True))))
        write_ranges(out, "bert_control", dropped(normalizers.BertNormalizer(**dict(bert, clean_text=True))))
        for c, to in lowered():
            out.write("HD_UNICODE_LOWER(0x%X, 0x%X, 0x%X)\n" % (c, to[0], to[1] if len(to) > 1 else 0))
        out.write("#undef HD_UNICODE_RANGES\n#undef HD_UNICODE_SET\n#undef HD_UNICODE_LOWER\n")


if __name__ == "__main__":
    main(sys.argv[1])
