/* json_steps: the parts of tokenizer.json around its model: normalizer, pre_tokenizer,
 * post_processor and decoder. */
#include <string.h>

#include "base/json.h"
#include "tokenizer/tokenizer_internal.h"

enum { DEPTH_MAX = 32 };

/* GPT-2's pattern, used by ByteLevel if use_regex is true. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|"
                                   " ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct steps_reading {
    struct hd_bpe *bpe;
    struct hd_bpe_steps *steps;
};

static enum hd_status read_type(const struct hd_json *object, const char *where,
                                const char **ret_type)
{
    enum hd_status st = hd_json_need_string(object, "type", ret_type);

    return st ? hd_err_prefix(st, "%s", where) : HD_OK;
}

/* ---- normalizer ---- */

#define SPACE "\xE2\x96\x81" /* U+2581 */

static enum hd_status must_say(const struct hd_json *object, const char *where, const char *key,
                               const char *text)
{
    const char *have = NULL;
    enum hd_status st = hd_json_need_string(object, key, &have);

    if (st)
        return hd_err_prefix(st, "%s", where);
    if (strcmp(have, text) == 0)
        return HD_OK;
    return hd_err(HD_UNSUPPORTED, "%s.%s is '%.64s'; only '%s' is supported", where, key, have,
                  text);
}

/* U+2581 in front of each piece between added tokens. */
static enum hd_status read_prepend(struct steps_reading *r, const struct hd_json *n)
{
    enum hd_status st = hd_bpe_check_keys(n, "normalizer", "type|prepend");

    if (!st)
        st = must_say(n, "normalizer", "prepend", SPACE);
    r->bpe->prefix = HD_PREFIX_NORMAL;
    return st;
}

/* U+2581 in place of spaces. */
static enum hd_status read_replace(struct steps_reading *r, const struct hd_json *n)
{
    const struct hd_json *pattern = NULL;
    enum hd_status st = hd_bpe_check_keys(n, "normalizer", "type|pattern|content");

    if (!st)
        st = hd_json_need(n, "pattern", HD_JSON_OBJECT, &pattern);
    if (!st)
        st = must_say(pattern, "normalizer.pattern", "String", " ");
    if (!st)
        st = must_say(n, "normalizer", "content", SPACE);
    r->bpe->normal_spaces = true;
    r->steps->has_spaces = true;
    return st;
}

static enum hd_status read_nfc(struct steps_reading *r, const struct hd_json *n)
{
    if (!hd_nfc_is_present())
        return hd_err(HD_UNSUPPORTED, "normalizer: NFC needs utf8proc, which this build does "
                                      "not have; install libutf8proc-dev and build again");
    r->bpe->is_nfc = true;
    return hd_bpe_check_keys(n, "normalizer", "type");
}

static enum hd_status read_normalizer(struct steps_reading *r, const struct hd_json *n, int depth)
{
    const struct hd_json *list = NULL;
    const char *type = NULL;
    enum hd_status st = read_type(n, "normalizer", &type);

    if (st)
        return st;
    if (strcmp(type, "NFC") == 0)
        return read_nfc(r, n);
    if (strcmp(type, "Prepend") == 0)
        return read_prepend(r, n);
    if (strcmp(type, "Replace") == 0)
        return read_replace(r, n);
    if (strcmp(type, "Sequence") != 0)
        return hd_err(HD_UNSUPPORTED,
                      "normalizer.type %.64s is not supported; NFC, Prepend, Replace and Sequence "
                      "are",
                      type);
    st = hd_bpe_check_keys(n, "normalizer", "type|normalizers");
    if (!st)
        st = hd_json_need(n, "normalizers", HD_JSON_ARRAY, &list);
    for (const struct hd_json *m = st ? NULL : list->first; m && !st; m = m->next)
        st = depth < DEPTH_MAX ? read_normalizer(r, m, depth + 1)
                               : hd_err(HD_LIMIT, "normalizer: nested too deep");
    return st;
}

/* ---- pre-tokenizer ---- */

static enum hd_status add_step(struct steps_reading *r, struct hd_split_step step)
{
    struct hd_bpe *bpe = r->bpe;

    if (bpe->step_count == HD_BPE_STEPS_MAX) {
        hd_regex_free(step.regex);
        return hd_err(HD_LIMIT, "pre_tokenizer has more than %d steps", HD_BPE_STEPS_MAX);
    }
    bpe->steps[bpe->step_count++] = step;
    return HD_OK;
}

static enum hd_status read_byte_level(struct steps_reading *r, const struct hd_json *p)
{
    struct hd_split_step step = {.behavior = HD_SPLIT_ISOLATED};
    bool use_regex = true, trims;
    enum hd_status st =
        hd_bpe_check_keys(p, "pre_tokenizer", "type|add_prefix_space|trim_offsets|use_regex");

    if (!st)
        st = hd_bpe_read_bool(p, "pre_tokenizer", "add_prefix_space", true, &step.adds_space);
    if (!st) /* irrelevant: this affects offsets only */
        st = hd_bpe_read_bool(p, "pre_tokenizer", "trim_offsets", true, &trims);
    if (!st)
        st = hd_bpe_read_bool(p, "pre_tokenizer", "use_regex", true, &use_regex);
    if (!st && use_regex)
        st = hd_regex_new(gpt2_pattern, &step.regex);
    step.cut_properties = use_regex ? hd_cut_properties(gpt2_pattern, step.behavior) : 0;
    if (st)
        return st;
    r->steps->has_byte_level = true;
    return step.regex || step.adds_space ? add_step(r, step) : HD_OK;
}

static enum hd_status read_behavior(const struct hd_json *p, enum hd_split_behavior *ret_behavior)
{
    static const char *const names[] = {
        [HD_SPLIT_ISOLATED] = "Isolated",
        [HD_SPLIT_REMOVED] = "Removed",
        [HD_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [HD_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [HD_SPLIT_CONTIGUOUS] = "Contiguous",
    };
    const char *name = NULL;
    enum hd_status st = hd_json_need_string(p, "behavior", &name);

    if (st)
        return hd_err_prefix(st, "pre_tokenizer");
    for (int i = 0; i <= HD_SPLIT_CONTIGUOUS; i++)
        if (strcmp(name, names[i]) == 0) {
            *ret_behavior = (enum hd_split_behavior)i;
            return HD_OK;
        }
    return hd_err(HD_UNSUPPORTED, "pre_tokenizer.behavior %.64s is not supported", name);
}

static enum hd_status read_split(struct steps_reading *r, const struct hd_json *p)
{
    struct hd_split_step step = {0};
    const struct hd_json *pattern = NULL;
    enum hd_status st = hd_bpe_check_keys(p, "pre_tokenizer", "type|pattern|behavior|invert");

    if (!st)
        st = read_behavior(p, &step.behavior);
    if (!st)
        st = hd_bpe_read_bool(p, "pre_tokenizer", "invert", false, &step.invert);
    if (!st)
        st = hd_json_need(p, "pattern", HD_JSON_OBJECT, &pattern);
    if (!st)
        st = hd_bpe_check_keys(pattern, "pre_tokenizer.pattern", "Regex|String");
    if (!st && (pattern->count != 1 || pattern->first->kind != HD_JSON_STRING))
        st = hd_err(HD_INVALID, "pre_tokenizer.pattern is not one String or Regex");
    if (!st)
        st = strcmp(pattern->first->key, "Regex") == 0
                 ? hd_regex_new(pattern->first->text, &step.regex)
                 : hd_regex_quote(pattern->first->text, &step.regex);
    if (st)
        return hd_err_prefix(st, "pre_tokenizer");
    if (strcmp(pattern->first->key, "Regex") == 0)
        step.cut_properties = hd_cut_properties(pattern->first->text, step.behavior);
    return add_step(r, step);
}

static enum hd_status read_digits(struct steps_reading *r, const struct hd_json *p)
{
    struct hd_split_step step = {0};
    bool each = false;
    enum hd_status st = hd_bpe_check_keys(p, "pre_tokenizer", "type|individual_digits");

    if (!st)
        st = hd_bpe_read_bool(p, "pre_tokenizer", "individual_digits", false, &each);
    if (!st)
        st = hd_regex_new("\\p{N}", &step.regex);
    step.behavior = each ? HD_SPLIT_ISOLATED : HD_SPLIT_CONTIGUOUS;
    step.cut_properties = hd_cut_properties("\\p{N}", step.behavior);
    return st ? st : add_step(r, step);
}

/* Each space begins a piece. */
static enum hd_status add_space_split(struct steps_reading *r)
{
    struct hd_split_step step = {.behavior = HD_SPLIT_MERGED_WITH_NEXT};
    const enum hd_status st = hd_regex_quote(" ", &step.regex);

    return st ? st : add_step(r, step);
}

/* Metaspace: U+2581 in place of spaces and in front; splits in front of each. */
static enum hd_status read_metaspace(struct steps_reading *r, const struct hd_json *p)
{
    static const char where[] = "pre_tokenizer";
    const struct hd_json *scheme = hd_bpe_member(p, "prepend_scheme");
    const char *text = scheme && scheme->kind == HD_JSON_STRING ? scheme->text : "always";
    bool splits = true, old_prefix = true;
    enum hd_status st = hd_bpe_check_keys(
        p, where, "type|replacement|prepend_scheme|split|add_prefix_space|str_rep");

    if (!st)
        st = must_say(p, where, "replacement", SPACE);
    if (!st)
        st = hd_bpe_read_bool(p, where, "split", true, &splits);
    if (!st) /* of older files, which have no prepend_scheme */
        st = hd_bpe_read_bool(p, where, "add_prefix_space", true, &old_prefix);
    if (st)
        return st;
    if (strcmp(text, "always") != 0 && strcmp(text, "first") != 0 && strcmp(text, "never") != 0)
        return hd_err(HD_UNSUPPORTED, "pre_tokenizer.prepend_scheme %.64s is not supported", text);
    if (strcmp(text, "first") == 0)
        r->bpe->prefix = HD_PREFIX_FIRST;
    else if (strcmp(text, "always") == 0 && old_prefix)
        r->bpe->prefix = HD_PREFIX_PIECE;
    r->steps->has_spaces = true;
    return splits ? add_space_split(r) : HD_OK;
}

static enum hd_status read_pre_tokenizer(struct steps_reading *r, const struct hd_json *p,
                                         int depth)
{
    const struct hd_json *list = NULL;
    const char *type = NULL;
    enum hd_status st = read_type(p, "pre_tokenizer", &type);

    if (st)
        return st;
    if (r->steps->has_byte_level)
        return hd_err(HD_UNSUPPORTED, "pre_tokenizer: %.64s after ByteLevel is not supported",
                      type);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(r, p);
    if (strcmp(type, "Split") == 0)
        return read_split(r, p);
    if (strcmp(type, "Digits") == 0)
        return read_digits(r, p);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(r, p);
    if (strcmp(type, "Sequence") != 0)
        return hd_err(HD_UNSUPPORTED,
                      "pre_tokenizer.type %.64s is not supported; ByteLevel, Split, Digits, "
                      "Metaspace and Sequence are",
                      type);
    st = hd_bpe_check_keys(p, "pre_tokenizer", "type|pretokenizers");
    if (!st)
        st = hd_json_need(p, "pretokenizers", HD_JSON_ARRAY, &list);
    for (const struct hd_json *m = st ? NULL : list->first; m && !st; m = m->next)
        st = read_pre_tokenizer(r, m, depth + 1);
    return st;
}

/* ---- the others ---- */

/* Only types that add special tokens or change offsets are accepted; both are irrelevant here. */
static enum hd_status check_post_processor(const struct hd_json *p, int depth)
{
    static const char *const known[] = {"ByteLevel", "TemplateProcessing", "RobertaProcessing",
                                        "BertProcessing", "Sequence"};
    const struct hd_json *list = hd_json_member(p, "processors");
    const char *type = NULL;
    bool is_known = false;
    enum hd_status st = read_type(p, "post_processor", &type);

    if (st)
        return st;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        is_known |= strcmp(type, known[i]) == 0;
    if (!is_known)
        return hd_err(HD_UNSUPPORTED, "post_processor.type %.64s is not supported", type);
    if (list && list->kind == HD_JSON_ARRAY && depth < DEPTH_MAX)
        for (const struct hd_json *m = list->first; m && !st; m = m->next)
            st = check_post_processor(m, depth + 1);
    return st;
}

/* A decoder for the other kind of model is accepted nowhere. `spaces`: of a BPE that writes spaces
 * as U+2581. */
static enum hd_status check_decoder(const struct hd_json *d, bool spaces, int depth)
{
    static const char *const known[] = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"};
    const struct hd_json *list = hd_json_member(d, "decoders");
    const char *type = NULL;
    bool is_known = false;
    enum hd_status st = read_type(d, "decoder", &type);

    if (st)
        return st;
    if (spaces && strcmp(type, "Sequence") == 0 && list && depth < DEPTH_MAX) {
        for (const struct hd_json *m = list->first; m && !st; m = m->next)
            st = check_decoder(m, true, depth + 1);
        return st;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        is_known |= spaces && strcmp(type, known[i]) == 0;
    if (is_known || (!spaces && strcmp(type, "ByteLevel") == 0))
        return HD_OK;
    return hd_err(HD_UNSUPPORTED, "decoder.type %.64s is not supported; ByteLevel is", type);
}

enum hd_status hd_bpe_read_steps(const struct hd_json *root, struct hd_bpe *bpe,
                                 struct hd_bpe_steps *ret_steps)
{
    struct steps_reading r = {.bpe = bpe, .steps = ret_steps};
    const struct hd_json *m;
    enum hd_status st = HD_OK;

    if ((m = hd_bpe_member(root, "normalizer")))
        st = read_normalizer(&r, m, 0);
    if (!st && (m = hd_bpe_member(root, "pre_tokenizer")))
        st = read_pre_tokenizer(&r, m, 0);
    if (!st && (m = hd_bpe_member(root, "post_processor")))
        st = check_post_processor(m, 0);
    if (!st && (m = hd_bpe_member(root, "decoder")))
        st = check_decoder(m, ret_steps->has_spaces, 0);
    if (!st && bpe->prefix == HD_PREFIX_NORMAL && !bpe->normal_spaces)
        st = hd_err(HD_UNSUPPORTED, "normalizer: Prepend without a Replace of spaces");
    return st;
}
