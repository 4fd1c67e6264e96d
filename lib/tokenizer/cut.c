/* cut: finds offsets at which a text may be cut so that both parts give the ids of the whole text.
 *
 * A cut is between a letter or ASCII digit and a space (or line break) after it: "word| next".
 * Below, "letter" includes ASCII digits. Cuts are allowed only for tokenizers whose steps are all
 * known to preserve them; for others there is no cut, and a text is encoded as a whole. Proof:
 *
 *  1. Normal form C never composes across ASCII white space.
 *  2. No added token may contain a letter followed by white space, so no added token crosses a cut.
 *     White space that a token strips on its left ends at a letter, on either side of a cut. A
 *     token that strips on its right must not end with a letter, and a single_word token must not
 *     begin with white space, because their matching would depend on text across the cut.
 *  3. No step may add a space to a text that begins without one.
 *  4. Splitting. Patterns are split at their outermost `|`; each branch must be in the table below.
 *     The branches have these properties: no match contains a letter followed by white space; the
 *     look-ahead of a match that ends with a letter does not distinguish white space from the end
 *     of the text; no branch has a look-behind. So no match crosses a cut, and the matches on both
 *     sides are those of the whole text (LOCAL). One step must match at every white space (SPACES)
 *     or line break (LINES): there a match of the whole text begins at the cut, so the cut is a
 *     word boundary in the whole text, too. Earlier steps are LOCAL, so this step gets the same
 *     input; later steps get the same pieces.
 *  5. The merges of a word depend on that word only.
 */
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

enum { LOCAL = 1, LINES = 2, SPACES = 4 };

#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

static const struct {
    const char *branch;
    unsigned properties;
} branches[] = {
    /* branches of GPT-2's pattern */
    {"'s", LOCAL},
    {"'t", LOCAL},
    {"'re", LOCAL},
    {"'ve", LOCAL},
    {"'m", LOCAL},
    {"'ll", LOCAL},
    {"'d", LOCAL},
    {" ?\\p{L}+", LOCAL},
    {" ?\\p{N}+", LOCAL},
    {" ?[^\\s\\p{L}\\p{N}]+", LOCAL},
    /* this branch matches only after a cut, since its match begins with white space */
    {"\\s+(?!\\S)", LOCAL},
    {"\\s+", LOCAL | LINES | SPACES},
    /* branches of the patterns of GPT-4, Llama-3 and Qwen */
    {ENDINGS, LOCAL},
    {"'(?i:[sdmt]|ll|ve|re)", LOCAL},
    {"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+", LOCAL},
    {"[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+", LOCAL},
    {"\\p{N}", LOCAL},
    {"\\p{N}+", LOCAL},
    {"\\p{N}{1,3}", LOCAL},
    {" ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*", LOCAL},
    {" ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*", LOCAL},
    {" ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*", LOCAL},
    {"\\s*[\\r\\n]+", LOCAL | LINES},
    {"\\s*[\\r\\n]", LOCAL | LINES},
    {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
     "+" ENDINGS "?",
     LOCAL},
    {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
     "*" ENDINGS "?",
     LOCAL},
    /* branches of DeepSeek's pattern */
    {"[\\r\\n]", LOCAL | LINES},
    {"\\s?\\p{L}+", LOCAL},
    {"\\s?\\p{P}+", LOCAL},
};

/* ---- steps ---- */

static unsigned properties_of(const char *branch, size_t len)
{
    for (size_t i = 0; i < sizeof branches / sizeof branches[0]; i++)
        if (strlen(branches[i].branch) == len && memcmp(branches[i].branch, branch, len) == 0)
            return branches[i].properties;
    return 0;
}

/* Returns the end of the branch that begins at p: the next `|` outside all brackets, or the end of
 * the pattern. */
static const char *branch_end(const char *p)
{
    int depth = 0;
    bool in_class = false;

    for (; *p && (*p != '|' || depth || in_class); p++) {
        if (*p == '\\' && p[1])
            p++;
        else if (in_class)
            in_class = *p != ']';
        else if (*p == '[')
            in_class = true;
        else
            depth += (*p == '(') - (*p == ')');
    }
    return p;
}

unsigned hd_cut_properties(const char *pattern, enum hd_split_behavior behavior)
{
    unsigned all = LOCAL, any = 0;

    for (const char *p = pattern;; p++) {
        const char *end = branch_end(p);
        const unsigned one = properties_of(p, (size_t)(end - p));

        all &= one;
        any |= one;
        p = end;
        if (!*p)
            break;
    }
    if (!all || behavior == HD_SPLIT_MERGED_WITH_PREVIOUS || behavior == HD_SPLIT_MERGED_WITH_NEXT)
        return 0;
    /* adjacent matches are joined, so their ends are not known */
    return behavior == HD_SPLIT_CONTIGUOUS ? LOCAL : any;
}

/* ---- the tokenizer ---- */

static bool is_space_byte(unsigned char byte)
{
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

/* Returns true for ASCII letters and digits, and for every byte of a multi-byte character. */
static bool may_end_letter(unsigned char byte)
{
    return byte >= 0x80 || (byte >= '0' && byte <= '9') ||
           ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z');
}

/* Checks condition 2 at the top of this file. */
static bool preserves_cuts(const struct hd_added_token *token)
{
    const unsigned char *p = (const unsigned char *)token->content;
    const size_t n = token->len_bytes;

    if (!n || (token->rstrip && may_end_letter(p[n - 1])) ||
        (token->single_word && is_space_byte(p[0])))
        return false;
    for (size_t i = 1; i < n; i++)
        if (may_end_letter(p[i - 1]) && is_space_byte(p[i]))
            return false;
    return true;
}

enum hd_cut hd_bpe_find_cut(const struct hd_bpe *bpe)
{
    for (int i = 0; i < bpe->token_count; i++)
        if (!preserves_cuts(&bpe->tokens[i]))
            return HD_CUT_NOWHERE;
    if (!bpe->is_byte_level)
        return HD_CUT_NOWHERE;
    for (int i = 0; i < bpe->normal_count; i++)
        if (bpe->normals[i].kind != HD_NORMAL_FORM || bpe->normals[i].form != HD_NFC)
            return HD_CUT_NOWHERE;
    for (int i = 0; i < bpe->step_count; i++)
        if (bpe->steps[i].kind != HD_STEP_SPLIT)
            return HD_CUT_NOWHERE;
    for (int i = 0; i < bpe->step_count; i++) {
        const unsigned properties = bpe->steps[i].cut_properties;

        if (!(properties & LOCAL))
            break;
        if (properties & SPACES)
            return HD_CUT_AT_SPACES;
        if (properties & LINES)
            return HD_CUT_AT_LINES;
    }
    return HD_CUT_NOWHERE;
}

/* ---- the text ---- */

/* Returns whether the character before text[at] is a letter. Detects only letters in large blocks
 * of which every character is a letter in every version of Unicode; missing others only loses
 * cuts. */
static bool letter_before(const unsigned char *text, size_t at)
{
    size_t first = at - 1;
    uint32_t c;

    if (text[first] < 0x80)
        return may_end_letter(text[first]);
    while (first && at - first < 3 && (text[first] & 0xC0) == 0x80)
        first--;
    if (at - first == 2 && text[first] >= 0xC3 && text[first] <= 0xDF) {
        c = (text[first] & 0x1Fu) << 6 | (text[first + 1] & 0x3Fu);
        return (c >= 0xC0 && c <= 0x17F && c != 0xD7 && c != 0xF7) || /* Latin letters */
               (c >= 0x3B1 && c <= 0x3C9) ||                          /* small Greek letters */
               (c >= 0x400 && c <= 0x481) ||                          /* Cyrillic letters */
               (c >= 0x5D0 && c <= 0x5EA) ||                          /* Hebrew letters */
               (c >= 0x620 && c <= 0x64A);                            /* Arabic letters */
    }
    if (at - first == 3 && (text[first] & 0xF0) == 0xE0) {
        c = (text[first] & 0x0Fu) << 12 | (text[first + 1] & 0x3Fu) << 6 |
            (text[first + 2] & 0x3Fu);
        return (c >= 0x3041 && c <= 0x3096) || (c >= 0x30A1 && c <= 0x30FA) || /* Japanese */
               (c >= 0x4E00 && c <= 0x9FA5) || /* Chinese characters */
               (c >= 0xAC00 && c <= 0xD7A3);   /* Korean syllables */
    }
    return false;
}

size_t hd_bpe_cut(const struct hd_bpe *bpe, const unsigned char *text, size_t len_bytes,
                  size_t from)
{
    if (bpe->cut == HD_CUT_NOWHERE)
        return 0;
    for (size_t at = from ? from : 1; at < len_bytes; at++)
        if ((text[at] == '\n' || (text[at] == ' ' && bpe->cut == HD_CUT_AT_SPACES)) &&
            letter_before(text, at))
            return at;
    return 0;
}
