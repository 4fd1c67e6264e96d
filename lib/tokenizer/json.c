/* json: parses tokenizer.json of a byte-level BPE. An unknown key is an error that names it,
 * because ignoring a key could change the ids. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "tokenizer/tokenizer_internal.h"

enum {
    VALUES_MAX = 16 << 20, /* the largest vocabularies have about 1.5 million */
    DEPTH_MAX = 32,
    ADDED_MAX = 1 << 20,
};
static const size_t arena_bytes_max = (size_t)4 << 30;

/* GPT-2's pattern, used by ByteLevel if use_regex is true. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|"
                                   " ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct tokenizer_reading {
    struct hd_bpe *bpe;
    struct hd_arena json; /* freed after reading */
    int32_t letters[512]; /* the byte that a letter represents, by code point; -1: none */
    bool has_byte_level;
};

static enum hd_status no_memory(void)
{
    return hd_err(HD_NO_MEMORY, "no memory for a tokenizer");
}

/* ---- keys ---- */

/* `known`: the keys that `object` may have, as "a|b|c". */
static enum hd_status check_keys(const struct hd_json *object, const char *where, const char *known)
{
    if (object->kind != HD_JSON_OBJECT)
        return hd_err(HD_INVALID, "%s is not an object", where);
    for (const struct hd_json *m = object->first; m; m = m->next) {
        const size_t n = strlen(m->key);
        const char *p = known;

        while (*p && !(strncmp(p, m->key, n) == 0 && (p[n] == '|' || !p[n]))) {
            p += strcspn(p, "|");
            p += *p == '|';
        }
        if (!*p || !n)
            return hd_err(HD_UNSUPPORTED, "%s.%.64s is not known", where, m->key);
    }
    return HD_OK;
}

static const struct hd_json *member(const struct hd_json *object, const char *key)
{
    const struct hd_json *m = hd_json_member(object, key);

    return m && m->kind != HD_JSON_NULL ? m : NULL; /* null means absent */
}

static enum hd_status read_bool(const struct hd_json *object, const char *where, const char *key,
                                bool otherwise, bool *ret_value)
{
    const struct hd_json *m = member(object, key);

    if (m && m->kind != HD_JSON_TRUE && m->kind != HD_JSON_FALSE)
        return hd_err(HD_INVALID, "%s.%s is neither true nor false", where, key);
    *ret_value = m ? m->kind == HD_JSON_TRUE : otherwise;
    return HD_OK;
}

static enum hd_status read_type(const struct hd_json *object, const char *where,
                                const char **ret_type)
{
    enum hd_status st = hd_json_need_string(object, "type", ret_type);

    return st ? hd_err_prefix(st, "%s", where) : HD_OK;
}

static enum hd_status must_be_empty(const struct hd_json *object, const char *where,
                                    const char *key)
{
    const struct hd_json *m = member(object, key);

    if (!m || (m->kind == HD_JSON_STRING && !m->text[0]))
        return HD_OK;
    return hd_err(HD_UNSUPPORTED, "%s.%s is set; only null is supported", where, key);
}

/* ---- tokens ---- */

static void name_letters(struct tokenizer_reading *r)
{
    int next = 256;

    for (int i = 0; i < 512; i++)
        r->letters[i] = -1;
    for (int b = 0; b < 256; b++) {
        const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;

        r->letters[itself ? b : next++] = b;
    }
}

/* The bytes of a token of the model. None if it has a letter that represents no byte; such a token
 * never occurs in a text. */
static enum hd_status spell(struct tokenizer_reading *r, const char *content,
                            struct hd_token_text *text)
{
    const unsigned char *p = (const unsigned char *)content;
    unsigned char *out = hd_arena_alloc(&r->bpe->arena, strlen(content) + 1);
    uint32_t n = 0;

    if (!out)
        return no_memory();
    text->bytes = out;
    for (; *p; p++) {
        int code = *p;

        if (code >= 0xC0 && code < 0xC8) /* 0x80 .. 0x1FF: two bytes in UTF-8 */
            code = (code & 0x1F) << 6 | (*++p & 0x3F);
        else if (code >= 0x80)
            return HD_OK;
        if (r->letters[code] < 0)
            return HD_OK;
        out[n++] = (unsigned char)r->letters[code];
    }
    text->len_bytes = n;
    return HD_OK;
}

/* Allocates entries for the ids up to `id`. */
static enum hd_status reach(struct hd_bpe *bpe, int32_t id)
{
    static const struct hd_token_text none = {0};
    int room = 64;

    while (room < bpe->vocab)
        room *= 2;
    while (bpe->vocab <= id) {
        if (!bpe->texts || bpe->vocab == room || bpe->vocab == 0) {
            int have = bpe->texts ? room : 0;
            struct hd_token_text *texts =
                hd_arena_grow(&bpe->arena, bpe->texts, bpe->vocab, &have, sizeof *texts);

            if (!texts)
                return no_memory();
            bpe->texts = texts;
            room = have;
        }
        bpe->texts[bpe->vocab++] = none;
    }
    return HD_OK;
}

static enum hd_status read_vocab(struct tokenizer_reading *r, const struct hd_json *vocab)
{
    struct hd_bpe *bpe = r->bpe;

    for (const struct hd_json *m = vocab->first; m; m = m->next) {
        int64_t id = 0;
        enum hd_status st = hd_json_to_int64(m, 0, HD_BPE_IDS_MAX - 1, &id);

        if (st)
            return hd_err_prefix(st, "model.vocab: the id of '%.64s'", m->key);
        st = reach(bpe, (int32_t)id);
        if (st)
            return st;
        if (bpe->texts[id].content)
            return hd_err(HD_INVALID, "model.vocab: '%.64s' and '%.64s' have the same id %lld",
                          bpe->texts[id].content, m->key, (long long)id);
        if (strlen(m->key) > HD_BPE_TOKEN_BYTES_MAX)
            return hd_err(HD_LIMIT, "model.vocab: a token is longer than %d bytes",
                          HD_BPE_TOKEN_BYTES_MAX);
        bpe->texts[id].content = hd_arena_strdup(&bpe->arena, m->key);
        if (!bpe->texts[id].content)
            return no_memory();
        st = spell(r, bpe->texts[id].content, &bpe->texts[id]);
        if (st)
            return st;
    }
    return HD_OK;
}

static uint64_t table_mask(size_t count) /* at most half full */
{
    uint64_t size = 64;

    while (size < 2 * (uint64_t)count)
        size *= 2;
    return size - 1;
}

static enum hd_status index_words(struct hd_bpe *bpe, size_t count)
{
    bpe->word_mask = table_mask(count);
    bpe->words = hd_arena_array(&bpe->arena, bpe->word_mask + 1, sizeof *bpe->words);
    if (!bpe->words)
        return no_memory();
    memset(bpe->words, 0xFF, (bpe->word_mask + 1) * sizeof *bpe->words);
    for (int32_t id = 0; id < bpe->vocab; id++) {
        const struct hd_token_text *t = &bpe->texts[id];
        uint64_t i;

        if (!t->len_bytes)
            continue;
        i = hd_mix64(hd_hash_bytes(t->bytes, t->len_bytes)) & bpe->word_mask;
        while (bpe->words[i] >= 0)
            i = (i + 1) & bpe->word_mask;
        bpe->words[i] = id;
    }
    for (int b = 0; b < 256; b++) {
        const unsigned char byte = (unsigned char)b;

        bpe->byte_ids[b] = hd_bpe_word(bpe, &byte, 1);
    }
    return HD_OK;
}

/* ---- merges ---- */

/* Parses "a b" or ["a", "b"]; the results are in the arena of the JSON. */
static enum hd_status read_pair(struct tokenizer_reading *r, const struct hd_json *merge,
                                const char **ret_a, const char **ret_b)
{
    if (merge->kind == HD_JSON_STRING) {
        char *a = hd_arena_strdup(&r->json, merge->text);
        char *space = a ? strchr(a, ' ') : NULL;

        if (!a)
            return no_memory();
        if (!space || strchr(space + 1, ' '))
            return hd_err(HD_INVALID, "'%.64s' is not two tokens with a space between", a);
        *space = '\0';
        *ret_a = a;
        *ret_b = space + 1;
        return HD_OK;
    }
    if (merge->kind != HD_JSON_ARRAY || merge->count != 2 || merge->first->kind != HD_JSON_STRING ||
        merge->first->next->kind != HD_JSON_STRING)
        return hd_err(HD_INVALID, "a merge is neither \"a b\" nor [\"a\", \"b\"]");
    *ret_a = merge->first->text;
    *ret_b = merge->first->next->text;
    return HD_OK;
}

static enum hd_status find_token(struct tokenizer_reading *r, const char *content,
                                 struct hd_token_text *spelt, int32_t *ret_id)
{
    enum hd_status st;

    *spelt = (struct hd_token_text){0};
    st = spell(r, content, spelt);
    if (st)
        return st;
    *ret_id = spelt->len_bytes ? hd_bpe_word(r->bpe, spelt->bytes, spelt->len_bytes) : -1;
    return *ret_id >= 0
               ? HD_OK
               : hd_err(HD_INVALID, "'%.64s' is not in model.vocab, or spells no bytes", content);
}

static void put_merge(struct hd_bpe *bpe, struct hd_merge merge)
{
    uint64_t i = hd_mix64(merge.key) & bpe->merge_mask;

    while (bpe->merges[i].key && bpe->merges[i].key != merge.key)
        i = (i + 1) & bpe->merge_mask;
    bpe->merges[i] = merge; /* of duplicates the last one counts */
}

static enum hd_status read_merge(struct tokenizer_reading *r, const struct hd_json *m, int32_t rank)
{
    struct hd_token_text left, right;
    const char *a = NULL, *b = NULL;
    unsigned char *both;
    int32_t left_id = 0, right_id = 0, result;
    enum hd_status st = read_pair(r, m, &a, &b);

    if (!st)
        st = find_token(r, a, &left, &left_id);
    if (!st)
        st = find_token(r, b, &right, &right_id);
    if (st)
        return st;
    both = malloc((size_t)left.len_bytes + right.len_bytes);
    if (!both)
        return no_memory();
    memcpy(both, left.bytes, left.len_bytes);
    memcpy(both + left.len_bytes, right.bytes, right.len_bytes);
    result = hd_bpe_word(r->bpe, both, (size_t)left.len_bytes + right.len_bytes);
    free(both);
    if (result < 0)
        return hd_err(HD_INVALID, "'%.64s' and '%.64s' give a token that is not in model.vocab", a,
                      b);
    put_merge(r->bpe,
              (struct hd_merge){((uint64_t)left_id + 1) << 32 | (uint32_t)right_id, rank, result});
    return HD_OK;
}

static enum hd_status read_merges(struct tokenizer_reading *r, const struct hd_json *merges)
{
    struct hd_bpe *bpe = r->bpe;
    int32_t rank = 0;

    bpe->merge_mask = table_mask(merges->count);
    bpe->merges = hd_arena_array(&bpe->arena, bpe->merge_mask + 1, sizeof *bpe->merges);
    if (!bpe->merges)
        return no_memory();
    for (const struct hd_json *m = merges->first; m; m = m->next) {
        enum hd_status st = read_merge(r, m, rank);

        if (st)
            return hd_err_prefix(st, "model.merges[%d]", (int)rank);
        rank++;
    }
    return HD_OK;
}

static enum hd_status read_model(struct tokenizer_reading *r, const struct hd_json *model)
{
    const struct hd_json *type = member(model, "type"), *vocab = NULL, *merges = NULL,
                         *dropout = member(model, "dropout");
    bool byte_fallback = false, ignored;
    enum hd_status st =
        check_keys(model, "model",
                   "type|dropout|unk_token|continuing_subword_prefix|end_of_word_suffix|fuse_unk|"
                   "byte_fallback|ignore_merges|vocab|merges");

    if (!st && type && (type->kind != HD_JSON_STRING || strcmp(type->text, "BPE") != 0))
        st = hd_err(HD_UNSUPPORTED, "model.type is %.64s; only BPE is supported",
                    type->text ? type->text : "not a string");
    if (!st && dropout &&
        (dropout->kind != HD_JSON_NUMBER || strspn(dropout->text, "0.") != strlen(dropout->text)))
        st = hd_err(HD_UNSUPPORTED, "model.dropout is set; only null is supported");
    if (!st)
        st = must_be_empty(model, "model", "continuing_subword_prefix");
    if (!st)
        st = must_be_empty(model, "model", "end_of_word_suffix");
    if (!st)
        st = read_bool(model, "model", "byte_fallback", false, &byte_fallback);
    if (!st && byte_fallback)
        st = hd_err(HD_UNSUPPORTED, "model.byte_fallback is true; byte-level BPE does not use it");
    if (!st) /* irrelevant: unknown letters are an error here */
        st = read_bool(model, "model", "fuse_unk", false, &ignored);
    if (!st)
        st = read_bool(model, "model", "ignore_merges", false, &r->bpe->ignores_merges);
    if (!st)
        st = hd_json_need(model, "vocab", HD_JSON_OBJECT, &vocab);
    if (!st)
        st = hd_json_need(model, "merges", HD_JSON_ARRAY, &merges);
    if (!st)
        st = read_vocab(r, vocab);
    if (!st)
        st = index_words(r->bpe, vocab->count);
    return st ? st : read_merges(r, merges);
}

/* ---- normalizer ---- */

static enum hd_status read_normalizer(struct tokenizer_reading *r, const struct hd_json *n,
                                      int depth)
{
    const struct hd_json *list = NULL;
    const char *type = NULL;
    enum hd_status st = read_type(n, "normalizer", &type);

    if (st)
        return st;
    if (strcmp(type, "NFC") == 0) {
        if (!hd_nfc_is_present())
            return hd_err(HD_UNSUPPORTED, "normalizer: NFC needs utf8proc, which this build does "
                                          "not have; install libutf8proc-dev and build again");
        r->bpe->is_nfc = true;
        return check_keys(n, "normalizer", "type");
    }
    if (strcmp(type, "Sequence") != 0)
        return hd_err(HD_UNSUPPORTED, "normalizer.type %.64s is not supported; NFC is", type);
    st = check_keys(n, "normalizer", "type|normalizers");
    if (!st)
        st = hd_json_need(n, "normalizers", HD_JSON_ARRAY, &list);
    for (const struct hd_json *m = st ? NULL : list->first; m && !st; m = m->next)
        st = depth < DEPTH_MAX ? read_normalizer(r, m, depth + 1) : HD_LIMIT;
    return st;
}

/* ---- pre-tokenizer ---- */

static enum hd_status add_step(struct tokenizer_reading *r, struct hd_split_step step)
{
    struct hd_bpe *bpe = r->bpe;

    if (bpe->step_count == HD_BPE_STEPS_MAX) {
        hd_regex_free(step.regex);
        return hd_err(HD_LIMIT, "pre_tokenizer has more than %d steps", HD_BPE_STEPS_MAX);
    }
    bpe->steps[bpe->step_count++] = step;
    return HD_OK;
}

static enum hd_status read_byte_level(struct tokenizer_reading *r, const struct hd_json *p)
{
    struct hd_split_step step = {.behavior = HD_SPLIT_ISOLATED};
    bool use_regex = true, trims;
    enum hd_status st =
        check_keys(p, "pre_tokenizer", "type|add_prefix_space|trim_offsets|use_regex");

    if (!st)
        st = read_bool(p, "pre_tokenizer", "add_prefix_space", true, &step.adds_space);
    if (!st) /* irrelevant: this affects offsets only */
        st = read_bool(p, "pre_tokenizer", "trim_offsets", true, &trims);
    if (!st)
        st = read_bool(p, "pre_tokenizer", "use_regex", true, &use_regex);
    if (!st && use_regex)
        st = hd_regex_new(gpt2_pattern, &step.regex);
    step.cut_properties = use_regex ? hd_cut_properties(gpt2_pattern, step.behavior) : 0;
    if (st)
        return st;
    r->has_byte_level = true;
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

static enum hd_status read_split(struct tokenizer_reading *r, const struct hd_json *p)
{
    struct hd_split_step step = {0};
    const struct hd_json *pattern = NULL;
    enum hd_status st = check_keys(p, "pre_tokenizer", "type|pattern|behavior|invert");

    if (!st)
        st = read_behavior(p, &step.behavior);
    if (!st)
        st = read_bool(p, "pre_tokenizer", "invert", false, &step.invert);
    if (!st)
        st = hd_json_need(p, "pattern", HD_JSON_OBJECT, &pattern);
    if (!st)
        st = check_keys(pattern, "pre_tokenizer.pattern", "Regex|String");
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

static enum hd_status read_digits(struct tokenizer_reading *r, const struct hd_json *p)
{
    struct hd_split_step step = {0};
    bool each = false;
    enum hd_status st = check_keys(p, "pre_tokenizer", "type|individual_digits");

    if (!st)
        st = read_bool(p, "pre_tokenizer", "individual_digits", false, &each);
    if (!st)
        st = hd_regex_new("\\p{N}", &step.regex);
    step.behavior = each ? HD_SPLIT_ISOLATED : HD_SPLIT_CONTIGUOUS;
    step.cut_properties = hd_cut_properties("\\p{N}", step.behavior);
    return st ? st : add_step(r, step);
}

static enum hd_status read_pre_tokenizer(struct tokenizer_reading *r, const struct hd_json *p,
                                         int depth)
{
    const struct hd_json *list = NULL;
    const char *type = NULL;
    enum hd_status st = read_type(p, "pre_tokenizer", &type);

    if (st)
        return st;
    if (r->has_byte_level)
        return hd_err(HD_UNSUPPORTED, "pre_tokenizer: %.64s after ByteLevel is not supported",
                      type);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(r, p);
    if (strcmp(type, "Split") == 0)
        return read_split(r, p);
    if (strcmp(type, "Digits") == 0)
        return read_digits(r, p);
    if (strcmp(type, "Sequence") != 0)
        return hd_err(HD_UNSUPPORTED,
                      "pre_tokenizer.type %.64s is not supported; ByteLevel, Split, Digits and "
                      "Sequence are",
                      type);
    st = check_keys(p, "pre_tokenizer", "type|pretokenizers");
    if (!st)
        st = hd_json_need(p, "pretokenizers", HD_JSON_ARRAY, &list);
    for (const struct hd_json *m = st ? NULL : list->first; m && !st; m = m->next)
        st = read_pre_tokenizer(r, m, depth + 1);
    return st;
}

/* ---- added tokens ---- */

/* Registers the text of an added token under `id`. */
static enum hd_status take_added(struct tokenizer_reading *r, const char *content, int64_t id)
{
    struct hd_bpe *bpe = r->bpe;
    struct hd_token_text *text;
    enum hd_status st = reach(bpe, (int32_t)id);

    if (st)
        return st;
    text = &bpe->texts[id];
    if (text->content && strcmp(text->content, content) != 0)
        return hd_err(HD_INVALID, "'%.64s' has the id %lld of '%.64s'", content, (long long)id,
                      text->content);
    text->content = hd_arena_strdup(&bpe->arena, content);
    text->bytes = (const unsigned char *)text->content;
    text->len_bytes = (uint32_t)strlen(content);
    text->is_added = true;
    return text->content ? HD_OK : no_memory();
}

/* The content to search for; of a normalized token in normal form C. */
static enum hd_status set_content(struct tokenizer_reading *r, struct hd_added_token *token,
                                  const char *content)
{
    struct hd_text normal = {0};
    enum hd_status st = HD_OK;

    if (token->normalized && r->bpe->is_nfc)
        st = hd_nfc((const unsigned char *)content, strlen(content), &normal);
    if (!st) {
        token->content = hd_arena_strdup(&r->bpe->arena, normal.data ? normal.data : content);
        if (!token->content)
            st = no_memory();
        else
            token->len_bytes = (uint32_t)strlen(token->content);
    }
    hd_text_free(&normal);
    return st;
}

static enum hd_status read_added_token(struct tokenizer_reading *r, const struct hd_json *a)
{
    static const char where[] = "added_tokens";
    struct hd_bpe *bpe = r->bpe;
    struct hd_added_token *token = &bpe->tokens[bpe->token_count];
    const char *content = NULL;
    bool special;
    int64_t id = 0;
    enum hd_status st =
        check_keys(a, where, "id|content|single_word|lstrip|rstrip|normalized|special");

    if (!st)
        st = hd_json_need_int64(a, "id", 0, HD_BPE_IDS_MAX - 1, &id);
    if (!st)
        st = hd_json_need_string(a, "content", &content);
    if (!st) /* irrelevant: it only lets decoders skip the token */
        st = read_bool(a, where, "special", false, &special);
    if (!st)
        st = read_bool(a, where, "single_word", false, &token->single_word);
    if (!st)
        st = read_bool(a, where, "lstrip", false, &token->lstrip);
    if (!st)
        st = read_bool(a, where, "rstrip", false, &token->rstrip);
    if (!st)
        st = read_bool(a, where, "normalized", !special, &token->normalized);
    if (st || !content[0]) /* an empty token never occurs */
        return st;
    if (strlen(content) > HD_BPE_TOKEN_BYTES_MAX)
        return hd_err(HD_LIMIT, "a token is longer than %d bytes", HD_BPE_TOKEN_BYTES_MAX);
    token->id = (int32_t)id;
    st = take_added(r, content, id);
    if (!st)
        st = set_content(r, token, content);
    if (!st && token->single_word && !bpe->word_char) /* Rust's \w */
        st = hd_regex_new("[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200C}\\x{200D}\\x{24B6}-\\x{24E9}"
                          "\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}]",
                          &bpe->word_char);
    if (!st)
        st = hd_added_insert(&bpe->arena, token->normalized ? &bpe->normalized : &bpe->plain,
                             bpe->token_count, token->content, token->len_bytes);
    bpe->token_count++;
    return st;
}

static enum hd_status read_added_tokens(struct tokenizer_reading *r, const struct hd_json *list)
{
    int index = 0;

    if (list->kind != HD_JSON_ARRAY || list->count > ADDED_MAX)
        return hd_err(HD_INVALID, "added_tokens is not a list of at most %d tokens", ADDED_MAX);
    r->bpe->tokens = hd_arena_array(&r->bpe->arena, list->count + 1, sizeof *r->bpe->tokens);
    if (!r->bpe->tokens)
        return no_memory();
    for (const struct hd_json *a = list->first; a; a = a->next) {
        enum hd_status st = read_added_token(r, a);

        if (st)
            return hd_err_prefix(st, "added_tokens[%d]", index);
        index++;
    }
    return HD_OK;
}

/* ---- the file ---- */

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

static enum hd_status check_decoder(const struct hd_json *d)
{
    const char *type = NULL;
    enum hd_status st = read_type(d, "decoder", &type);

    if (!st && strcmp(type, "ByteLevel") != 0)
        st = hd_err(HD_UNSUPPORTED, "decoder.type %.64s is not supported; ByteLevel is", type);
    return st;
}

static enum hd_status read_root(struct tokenizer_reading *r, const struct hd_json *root)
{
    const struct hd_json *model = NULL, *m;
    enum hd_status st = check_keys(root, "the file",
                                   "version|truncation|padding|added_tokens|normalizer|"
                                   "pre_tokenizer|post_processor|decoder|model");

    if (!st)
        st = must_be_empty(root, "the file", "truncation");
    if (!st)
        st = must_be_empty(root, "the file", "padding");
    if (!st && (m = member(root, "normalizer")))
        st = read_normalizer(r, m, 0);
    if (!st && (m = member(root, "pre_tokenizer")))
        st = read_pre_tokenizer(r, m, 0);
    if (!st && !r->has_byte_level)
        st = hd_err(HD_UNSUPPORTED, "pre_tokenizer has no ByteLevel; only byte-level BPE is "
                                    "supported");
    if (!st && (m = member(root, "post_processor")))
        st = check_post_processor(m, 0);
    if (!st && (m = member(root, "decoder")))
        st = check_decoder(m);
    if (!st)
        st = hd_json_need(root, "model", HD_JSON_OBJECT, &model);
    if (!st)
        st = read_model(r, model);
    if (!st && (m = member(root, "added_tokens")))
        st = read_added_tokens(r, m);
    if (!st && !r->bpe->vocab)
        st = hd_err(HD_INVALID, "model.vocab is empty");
    return st;
}

enum hd_status hd_bpe_read(const char *text, size_t text_bytes, struct hd_bpe *bpe)
{
    static const struct hd_json_limits limits = {VALUES_MAX, DEPTH_MAX};
    struct tokenizer_reading r = {.bpe = bpe};
    const struct hd_json *root = NULL;
    enum hd_status st;

    hd_arena_init(&bpe->arena, arena_bytes_max);
    if (!hd_regex_is_present())
        return hd_err(HD_UNSUPPORTED, "tokenizer.json needs PCRE2, which this build does not have; "
                                      "install libpcre2-dev and libutf8proc-dev and build again");
    hd_arena_init(&r.json, arena_bytes_max);
    name_letters(&r);
    st = hd_json_parse(&r.json, text, text_bytes, &limits, &root);
    if (!st)
        st = read_root(&r, root);
    if (!st)
        bpe->cut = hd_bpe_find_cut(bpe);
    hd_arena_done(&r.json);
    return st;
}

void hd_bpe_done(struct hd_bpe *bpe)
{
    for (int i = 0; i < bpe->step_count; i++)
        hd_regex_free(bpe->steps[i].regex);
    hd_regex_free(bpe->word_char);
    hd_arena_done(&bpe->arena);
}
