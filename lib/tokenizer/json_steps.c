/* json_steps: parses normalizer, pre_tokenizer and post_processor of tokenizer.json. Sequences
 * become flat lists of steps. */
#include <string.h>

#include "base/json.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer_internal.h"

enum { DEPTH_MAX = 32 };

/* GPT-2's pattern, used by ByteLevel if use_regex is true. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|"
                                   " ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static enum hd_status read_type(const struct hd_json *object, const char *where,
                                const char **ret_type)
{
    enum hd_status st = hd_json_need_string(object, "type", ret_type);

    return st ? hd_err_prefix(st, "%s", where) : HD_OK;
}

/* ---- members ---- */

void hd_matcher_done(struct hd_matcher *matcher)
{
    hd_regex_free(matcher->regex);
    matcher->regex = NULL;
}

enum hd_status hd_bpe_read_pattern(struct hd_bpe *bpe, const struct hd_json *object,
                                   const char *where, struct hd_matcher *ret_matcher)
{
    const struct hd_json *pattern = NULL;
    enum hd_status st = hd_json_need(object, "pattern", HD_JSON_OBJECT, &pattern);

    if (!st)
        st = hd_bpe_check_keys(pattern, "pattern", "Regex|String");
    if (!st && (pattern->count != 1 || pattern->first->kind != HD_JSON_STRING))
        st = hd_err(HD_INVALID, "pattern is not one String or Regex");
    if (st)
        return hd_err_prefix(st, "%s", where);
    if (strcmp(pattern->first->key, "Regex") == 0 || !pattern->first->text[0]) {
        st = hd_regex_new(pattern->first->text, &ret_matcher->regex);
        return st ? hd_err_prefix(st, "%s.pattern", where) : HD_OK;
    }
    ret_matcher->literal =
        (const unsigned char *)hd_arena_strdup(&bpe->arena, pattern->first->text);
    ret_matcher->literal_bytes = strlen(pattern->first->text);
    return ret_matcher->literal ? HD_OK : hd_bpe_no_memory();
}

enum hd_status hd_bpe_read_character(const struct hd_json *object, const char *where,
                                     const char *key, const char **ret_text)
{
    enum hd_status st = hd_json_need_string(object, key, ret_text);

    if (st)
        return hd_err_prefix(st, "%s", where);
    if (!**ret_text || strlen(*ret_text) != hd_character_bytes((unsigned char)**ret_text))
        return hd_err(HD_INVALID, "%s.%s is not one character", where, key);
    return HD_OK;
}

enum hd_status hd_bpe_read_metaspace(struct hd_bpe *bpe, const struct hd_json *p, const char *where,
                                     const char **ret_content, enum hd_prepend *ret_prepend,
                                     bool *ret_splits)
{
    static const char *const schemes[] = {
        [HD_PREPEND_NEVER] = "never", [HD_PREPEND_FIRST] = "first", [HD_PREPEND_ALWAYS] = "always"};
    const struct hd_json *scheme = hd_bpe_member(p, "prepend_scheme");
    const char *text = scheme && scheme->kind == HD_JSON_STRING ? scheme->text : "always";
    bool old_prefix = true;
    int prepend = 0;
    enum hd_status st = hd_bpe_check_keys(
        p, where, "type|replacement|prepend_scheme|split|add_prefix_space|str_rep");

    if (!st)
        st = hd_bpe_read_character(p, where, "replacement", ret_content);
    if (!st)
        st = hd_bpe_read_bool(p, where, "split", true, ret_splits);
    if (!st) /* older files have the key add_prefix_space instead of prepend_scheme */
        st = hd_bpe_read_bool(p, where, "add_prefix_space", true, &old_prefix);
    if (st)
        return st;
    while (prepend <= HD_PREPEND_ALWAYS && strcmp(text, schemes[prepend]) != 0)
        prepend++;
    if (prepend > HD_PREPEND_ALWAYS)
        return hd_err(HD_UNSUPPORTED, "%s.prepend_scheme %.64s is not supported", where, text);
    if (scheme && !old_prefix && prepend != HD_PREPEND_NEVER)
        return hd_err(HD_INVALID, "%s: add_prefix_space false contradicts prepend_scheme %s", where,
                      text);
    *ret_prepend = old_prefix ? (enum hd_prepend)prepend : HD_PREPEND_NEVER;
    *ret_content = hd_arena_strdup(&bpe->arena, *ret_content);
    return *ret_content ? HD_OK : hd_bpe_no_memory();
}

/* ---- normalizer ---- */

static enum hd_status add_normal_step(struct hd_bpe *bpe, struct hd_normal_step step)
{
    const bool needs_tables = step.kind == HD_NORMAL_FORM || step.kind == HD_NORMAL_LOWERCASE;

    if (bpe->normal_count == HD_BPE_STEPS_MAX) {
        hd_matcher_done(&step.pattern);
        return hd_err(HD_LIMIT, "normalizer has more than %d steps", HD_BPE_STEPS_MAX);
    }
    if (needs_tables && !hd_unicode_is_present())
        return hd_err(HD_UNSUPPORTED, "normalizer: normal forms and Lowercase need utf8proc, which "
                                      "this build does not have; install libutf8proc-dev and build "
                                      "again");
    bpe->normals[bpe->normal_count++] = step;
    return HD_OK;
}

static enum hd_status read_prepend(struct hd_bpe *bpe, const struct hd_json *n)
{
    struct hd_normal_step step = {.kind = HD_NORMAL_PREPEND};
    enum hd_status st = hd_bpe_check_keys(n, "normalizer", "type|prepend");

    if (!st)
        st = hd_json_need_string(n, "prepend", &step.content);
    if (st)
        return st;
    step.content = hd_arena_strdup(&bpe->arena, step.content);
    if (!step.content)
        return hd_bpe_no_memory();
    step.content_bytes = strlen(step.content);
    return add_normal_step(bpe, step);
}

static enum hd_status read_normal_replace(struct hd_bpe *bpe, const struct hd_json *n)
{
    struct hd_normal_step step = {.kind = HD_NORMAL_REPLACE};
    enum hd_status st = hd_bpe_check_keys(n, "normalizer", "type|pattern|content");

    if (!st)
        st = hd_json_need_string(n, "content", &step.content);
    if (!st)
        st = hd_bpe_read_pattern(bpe, n, "normalizer", &step.pattern);
    if (st)
        return st;
    step.content = hd_arena_strdup(&bpe->arena, step.content);
    if (!step.content) {
        hd_matcher_done(&step.pattern);
        return hd_bpe_no_memory();
    }
    step.content_bytes = strlen(step.content);
    return add_normal_step(bpe, step);
}

static enum hd_status read_normal_strip(struct hd_bpe *bpe, const struct hd_json *n)
{
    struct hd_normal_step step = {.kind = HD_NORMAL_STRIP};
    enum hd_status st = hd_bpe_check_keys(n, "normalizer", "type|strip_left|strip_right");

    if (!st)
        st = hd_bpe_read_bool(n, "normalizer", "strip_left", true, &step.left);
    if (!st)
        st = hd_bpe_read_bool(n, "normalizer", "strip_right", true, &step.right);
    return st ? st : add_normal_step(bpe, step);
}

static enum hd_status read_precompiled(struct hd_bpe *bpe, const struct hd_json *n)
{
    struct hd_normal_step step = {.kind = HD_NORMAL_PRECOMPILED};
    const enum hd_status st = hd_precompiled_read(n, &bpe->arena, &step.sp);

    return st ? st : add_normal_step(bpe, step);
}

static enum hd_status read_bert(struct hd_bpe *bpe, const struct hd_json *n)
{
    static const char where[] = "normalizer";
    bool cleans = true, spaces = true, lowers = true, strips = true;
    enum hd_status st =
        hd_bpe_check_keys(n, where, "type|clean_text|handle_chinese_chars|strip_accents|lowercase");

    if (!st)
        st = hd_bpe_read_bool(n, where, "clean_text", true, &cleans);
    if (!st)
        st = hd_bpe_read_bool(n, where, "handle_chinese_chars", true, &spaces);
    if (!st)
        st = hd_bpe_read_bool(n, where, "lowercase", true, &lowers);
    if (!st)
        st = hd_bpe_read_bool(n, where, "strip_accents", lowers, &strips);
    if (!st && cleans)
        st = add_normal_step(bpe, (struct hd_normal_step){.kind = HD_NORMAL_BERT_CLEAN});
    if (!st && spaces)
        st = add_normal_step(bpe, (struct hd_normal_step){.kind = HD_NORMAL_BERT_CHINESE});
    if (!st && strips)
        st = add_normal_step(bpe, (struct hd_normal_step){.kind = HD_NORMAL_FORM, .form = HD_NFD});
    if (!st && strips)
        st = add_normal_step(bpe, (struct hd_normal_step){.kind = HD_NORMAL_BERT_ACCENTS});
    if (!st && lowers)
        st = add_normal_step(bpe, (struct hd_normal_step){.kind = HD_NORMAL_LOWERCASE});
    return st;
}

/* Reads a normalizer that has no settings. */
static enum hd_status read_plain_normalizer(struct hd_bpe *bpe, const struct hd_json *n,
                                            const char *type)
{
    static const struct {
        const char *type;
        struct hd_normal_step step;
    } plain[] = {
        {"NFC", {.kind = HD_NORMAL_FORM, .form = HD_NFC}},
        {"NFD", {.kind = HD_NORMAL_FORM, .form = HD_NFD}},
        {"NFKC", {.kind = HD_NORMAL_FORM, .form = HD_NFKC}},
        {"NFKD", {.kind = HD_NORMAL_FORM, .form = HD_NFKD}},
        {"Lowercase", {.kind = HD_NORMAL_LOWERCASE}},
        {"StripAccents", {.kind = HD_NORMAL_STRIP_ACCENTS}},
        {"Nmt", {.kind = HD_NORMAL_NMT}},
        {"ByteLevel", {.kind = HD_NORMAL_LETTERS}},
    };

    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strcmp(type, plain[i].type) == 0) {
            const enum hd_status st = hd_bpe_check_keys(n, "normalizer", "type");

            return st ? st : add_normal_step(bpe, plain[i].step);
        }
    return hd_err(HD_UNSUPPORTED,
                  "normalizer.type %.64s is not supported; NFC, NFD, NFKC, NFKD, Lowercase, Strip, "
                  "StripAccents, Nmt, Replace, Prepend, ByteLevel, BertNormalizer, Precompiled and "
                  "Sequence are",
                  type);
}

static enum hd_status read_normalizer(struct hd_bpe *bpe, const struct hd_json *n, int depth)
{
    const struct hd_json *list = NULL;
    const char *type = NULL;
    enum hd_status st = read_type(n, "normalizer", &type);

    if (st)
        return st;
    if (strcmp(type, "Prepend") == 0)
        return read_prepend(bpe, n);
    if (strcmp(type, "Replace") == 0)
        return read_normal_replace(bpe, n);
    if (strcmp(type, "Strip") == 0)
        return read_normal_strip(bpe, n);
    if (strcmp(type, "BertNormalizer") == 0)
        return read_bert(bpe, n);
    if (strcmp(type, "Precompiled") == 0)
        return read_precompiled(bpe, n);
    if (strcmp(type, "Sequence") != 0)
        return read_plain_normalizer(bpe, n, type);
    st = hd_bpe_check_keys(n, "normalizer", "type|normalizers");
    if (!st)
        st = hd_json_need(n, "normalizers", HD_JSON_ARRAY, &list);
    for (const struct hd_json *m = st ? NULL : list->first; m && !st; m = m->next)
        st = depth < DEPTH_MAX ? read_normalizer(bpe, m, depth + 1)
                               : hd_err(HD_LIMIT, "normalizer: nested too deep");
    return st;
}

/* ---- pre-tokenizer ---- */

static enum hd_status add_step(struct hd_bpe *bpe, struct hd_split_step step)
{
    if (bpe->step_count == HD_BPE_STEPS_MAX) {
        hd_matcher_done(&step.pattern);
        return hd_err(HD_LIMIT, "pre_tokenizer has more than %d steps", HD_BPE_STEPS_MAX);
    }
    bpe->steps[bpe->step_count++] = step;
    return HD_OK;
}

static enum hd_status read_byte_level(struct hd_bpe *bpe, const struct hd_json *p)
{
    struct hd_split_step step = {.kind = HD_STEP_SPLIT};
    bool adds_space = true, use_regex = true, trims;
    enum hd_status st =
        hd_bpe_check_keys(p, "pre_tokenizer", "type|add_prefix_space|trim_offsets|use_regex");

    if (!st)
        st = hd_bpe_read_bool(p, "pre_tokenizer", "add_prefix_space", true, &adds_space);
    if (!st) /* trim_offsets has no effect on ids: it changes offsets only */
        st = hd_bpe_read_bool(p, "pre_tokenizer", "trim_offsets", true, &trims);
    if (!st)
        st = hd_bpe_read_bool(p, "pre_tokenizer", "use_regex", true, &use_regex);
    if (!st && adds_space)
        st = add_step(bpe, (struct hd_split_step){.kind = HD_STEP_SPACE});
    if (!st && use_regex) {
        step.cut_properties = hd_cut_properties(gpt2_pattern, step.behavior);
        st = hd_regex_new(gpt2_pattern, &step.pattern.regex);
        if (!st)
            st = add_step(bpe, step);
    }
    return st ? st : add_step(bpe, (struct hd_split_step){.kind = HD_STEP_LETTERS});
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

static enum hd_status read_split(struct hd_bpe *bpe, const struct hd_json *p)
{
    struct hd_split_step step = {.kind = HD_STEP_SPLIT};
    const struct hd_json *pattern;
    enum hd_status st = hd_bpe_check_keys(p, "pre_tokenizer", "type|pattern|behavior|invert");

    if (!st)
        st = read_behavior(p, &step.behavior);
    if (!st)
        st = hd_bpe_read_bool(p, "pre_tokenizer", "invert", false, &step.invert);
    if (!st)
        st = hd_bpe_read_pattern(bpe, p, "pre_tokenizer", &step.pattern);
    if (st)
        return st;
    pattern = hd_json_member(p, "pattern")->first;
    if (strcmp(pattern->key, "Regex") == 0)
        step.cut_properties = hd_cut_properties(pattern->text, step.behavior);
    return add_step(bpe, step);
}

/* Adds a pre-tokenizer step that splits at the characters of a set of unicode.def, written as
 * "[<name>]". */
static enum hd_status add_set_split(struct hd_bpe *bpe, const char *pattern,
                                    enum hd_split_behavior behavior, unsigned cut_properties)
{
    struct hd_split_step step = {
        .kind = HD_STEP_SPLIT, .behavior = behavior, .cut_properties = cut_properties};
    const enum hd_status st = hd_regex_of_sets(pattern, &step.pattern.regex);

    return st ? st : add_step(bpe, step);
}

static enum hd_status read_digits(struct hd_bpe *bpe, const struct hd_json *p)
{
    enum hd_split_behavior behavior;
    bool each = false;
    enum hd_status st = hd_bpe_check_keys(p, "pre_tokenizer", "type|individual_digits");

    if (!st)
        st = hd_bpe_read_bool(p, "pre_tokenizer", "individual_digits", false, &each);
    behavior = each ? HD_SPLIT_ISOLATED : HD_SPLIT_CONTIGUOUS;
    return st ? st
              : add_set_split(bpe, "[<\\rn>]", behavior, hd_cut_properties("\\p{N}", behavior));
}

static enum hd_status read_punctuation(struct hd_bpe *bpe, const struct hd_json *p)
{
    enum hd_split_behavior behavior = HD_SPLIT_ISOLATED;
    enum hd_status st = hd_bpe_check_keys(p, "pre_tokenizer", "type|behavior");

    if (!st && hd_bpe_member(p, "behavior"))
        st = read_behavior(p, &behavior);
    return st ? st : add_set_split(bpe, "[<\\rp>]", behavior, 0);
}

/* Reads a pre-tokenizer Whitespace, WhitespaceSplit or BertPreTokenizer; sets *ret_is to false if
 * it has another type. */
static enum hd_status read_whitespace(struct hd_bpe *bpe, const struct hd_json *p, const char *type,
                                      bool *ret_is)
{
    static const char spaces[] = "[<space>]";
    const bool is_words = strcmp(type, "Whitespace") == 0,
               is_bert = strcmp(type, "BertPreTokenizer") == 0;
    enum hd_status st;

    *ret_is = is_words || is_bert || strcmp(type, "WhitespaceSplit") == 0;
    if (!*ret_is)
        return HD_OK;
    st = hd_bpe_check_keys(p, "pre_tokenizer", "type");
    if (!st)
        st = add_set_split(bpe, is_words ? "[<\\rw>]+|[^<\\rw><space>]+" : spaces, HD_SPLIT_REMOVED,
                           0);
    if (!st && is_words)
        bpe->steps[bpe->step_count - 1].invert = true;
    if (!st && is_bert)
        st = add_set_split(bpe, "[<\\rp>]", HD_SPLIT_ISOLATED, 0);
    return st;
}

/* Adds a pre-tokenizer step that splits at one character. */
static enum hd_status add_character_split(struct hd_bpe *bpe, const char *character,
                                          enum hd_split_behavior behavior)
{
    struct hd_split_step step = {.kind = HD_STEP_SPLIT, .behavior = behavior};

    step.pattern.literal = (const unsigned char *)hd_arena_strdup(&bpe->arena, character);
    step.pattern.literal_bytes = strlen(character);
    return step.pattern.literal ? add_step(bpe, step) : hd_bpe_no_memory();
}

static enum hd_status read_delimiter(struct hd_bpe *bpe, const struct hd_json *p)
{
    const char *delimiter = NULL;
    enum hd_status st = hd_bpe_check_keys(p, "pre_tokenizer", "type|delimiter");

    if (!st)
        st = hd_bpe_read_character(p, "pre_tokenizer", "delimiter", &delimiter);
    return st ? st : add_character_split(bpe, delimiter, HD_SPLIT_REMOVED);
}

static enum hd_status read_length(struct hd_bpe *bpe, const struct hd_json *p)
{
    struct hd_split_step step = {.kind = HD_STEP_LENGTH, .length = 5};
    enum hd_status st = hd_bpe_check_keys(p, "pre_tokenizer", "type|length");

    if (!st && hd_bpe_member(p, "length"))
        st = hd_json_need_int64(p, "length", 1, INT32_MAX, &step.length);
    return st ? st : add_step(bpe, step);
}

static enum hd_status add_metaspace(struct hd_bpe *bpe, const struct hd_json *p)
{
    struct hd_split_step step = {.kind = HD_STEP_METASPACE};
    const char *content = NULL;
    bool splits = true;
    enum hd_status st =
        hd_bpe_read_metaspace(bpe, p, "pre_tokenizer", &content, &step.prepend, &splits);

    if (st)
        return st;
    (void)strcpy(step.content, content); /* `content` is one character, at most 4 bytes */
    st = add_step(bpe, step);
    return st || !splits ? st : add_character_split(bpe, content, HD_SPLIT_MERGED_WITH_NEXT);
}

/* Reads a pre-tokenizer of any type but Sequence. */
static enum hd_status read_split_step(struct hd_bpe *bpe, const struct hd_json *p, const char *type)
{
    static const struct {
        const char *type;
        enum hd_status (*read)(struct hd_bpe *, const struct hd_json *);
    } readers[] = {
        {"ByteLevel", read_byte_level},
        {"Split", read_split},
        {"Digits", read_digits},
        {"Punctuation", read_punctuation},
        {"CharDelimiterSplit", read_delimiter},
        {"FixedLength", read_length},
        {"Metaspace", add_metaspace},
    };
    bool is = false;
    const enum hd_status st = read_whitespace(bpe, p, type, &is);

    if (st || is)
        return st;
    for (size_t i = 0; i < sizeof readers / sizeof readers[0]; i++)
        if (strcmp(type, readers[i].type) == 0)
            return readers[i].read(bpe, p);
    return hd_err(HD_UNSUPPORTED,
                  "pre_tokenizer.type %.64s is not supported; ByteLevel, Split, Digits, Metaspace, "
                  "Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer, CharDelimiterSplit, "
                  "FixedLength and Sequence are",
                  type);
}

static enum hd_status read_pre_tokenizer(struct hd_bpe *bpe, const struct hd_json *p, int depth)
{
    const struct hd_json *list = NULL;
    const char *type = NULL;
    enum hd_status st = read_type(p, "pre_tokenizer", &type);

    if (st)
        return st;
    if (depth > DEPTH_MAX)
        return hd_err(HD_LIMIT, "pre_tokenizer: nested too deep");
    if (strcmp(type, "Sequence") != 0)
        return read_split_step(bpe, p, type);
    st = hd_bpe_check_keys(p, "pre_tokenizer", "type|pretokenizers");
    if (!st)
        st = hd_json_need(p, "pretokenizers", HD_JSON_ARRAY, &list);
    for (const struct hd_json *m = st ? NULL : list->first; m && !st; m = m->next)
        st = read_pre_tokenizer(bpe, m, depth + 1);
    return st;
}

/* ---- the others ---- */

/* Checks that the post_processor only adds special tokens or changes offsets; the encoder does
 * neither. */
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

/* Returns whether a Metaspace step depends on the beginning of the text and follows steps that
 * change offsets. */
static bool asks_for_origins(const struct hd_bpe *bpe)
{
    bool changed = bpe->normal_count > 0, asks = false;

    for (int i = 0; i < bpe->step_count; i++) {
        const struct hd_split_step *s = &bpe->steps[i];

        asks |= changed && s->kind == HD_STEP_METASPACE && s->prepend == HD_PREPEND_FIRST;
        changed |= s->kind != HD_STEP_SPLIT && s->kind != HD_STEP_LENGTH;
    }
    return asks;
}

/* Returns whether a normalizer from number `from` on rewrites all characters of a piece. */
static bool rewrites(const struct hd_bpe *bpe, int from)
{
    for (int i = from; i < bpe->normal_count; i++)
        if (bpe->normals[i].kind != HD_NORMAL_REPLACE && bpe->normals[i].kind != HD_NORMAL_PREPEND)
            return true;
    for (int i = 0; i < bpe->step_count; i++)
        if (bpe->steps[i].kind == HD_STEP_LETTERS)
            return true;
    return false;
}

/* Refuses a Replace that inserts text before the first character and is followed by a step that
 * rewrites characters. The inserted text belongs to no character, and the reference then doubles it
 * or panics. */
static enum hd_status check_insertions(const struct hd_bpe *bpe)
{
    for (int i = 0; i < bpe->normal_count; i++) {
        const struct hd_normal_step *n = &bpe->normals[i];

        if (n->kind == HD_NORMAL_REPLACE && n->content_bytes && n->pattern.regex &&
            hd_regex_may_be_empty(n->pattern.regex) && rewrites(bpe, i + 1))
            return hd_err(HD_UNSUPPORTED,
                          "normalizer: a Replace whose pattern can match nothing, before a step "
                          "that rewrites characters, fails in tokenizers too; use Prepend");
    }
    return HD_OK;
}

enum hd_status hd_bpe_read_steps(const struct hd_json *root, struct hd_bpe *bpe)
{
    const struct hd_json *m;
    enum hd_status st = HD_OK;

    if ((m = hd_bpe_member(root, "normalizer")))
        st = read_normalizer(bpe, m, 0);
    if (!st && (m = hd_bpe_member(root, "pre_tokenizer")))
        st = read_pre_tokenizer(bpe, m, 0);
    if (!st && (m = hd_bpe_member(root, "post_processor")))
        st = check_post_processor(m, 0);
    if (!st)
        st = check_insertions(bpe);
    bpe->needs_origins = !st && asks_for_origins(bpe);
    return st;
}
