/* json: parses a tokenizer.json, and its model if that is a BPE. An unknown key is an error that
 * names the key, because ignoring it could change the ids. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "tokenizer/tokenizer_internal.h"

enum {
    /* most JSON values of a tokenizer.json; those of the largest vocabularies have about 1.5
     * million */
    VALUES_MAX = 16 << 20,
    DEPTH_MAX = 32,
};
static const size_t arena_bytes_max = (size_t)4 << 30;

struct tokenizer_reading {
    struct hd_bpe *bpe;
    struct hd_companions *companions; /* files beside the tokenizer.json; NULL: none */
    struct hd_arena json;             /* memory of the parsed file; freed after reading */
};

/* ---- tokens ---- */

/* Sets the bytes by which a token of the model occurs in words: its characters or, if
 * r->bpe->is_byte_level, the bytes of its letters. Sets no bytes if the token has a character that
 * is no ByteLevel letter, because it never occurs in a word. */
static enum hd_status spell(struct tokenizer_reading *r, const char *content,
                            struct hd_token_text *text)
{
    const unsigned char *p = (const unsigned char *)content;
    unsigned char *out;
    size_t n = 0;

    if (!r->bpe->is_byte_level) {
        text->bytes = p;
        text->len_bytes = (uint32_t)strlen(content);
        return HD_OK;
    }
    out = hd_arena_alloc(&r->bpe->arena, strlen(content) + 1);
    if (!out)
        return hd_bpe_no_memory();
    text->bytes = out;
    for (uint32_t count = 0; *p; p += n) {
        const int byte = hd_byte_of_letter(hd_character_code(p, &n));

        if (byte < 0) {
            text->len_bytes = 0;
            return HD_OK;
        }
        out[count++] = (unsigned char)byte;
        text->len_bytes = count;
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
        st = hd_bpe_reach(bpe, (int32_t)id);
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
            return hd_bpe_no_memory();
        bpe->texts[id].shown = bpe->texts[id].content;
        st = spell(r, bpe->texts[id].content, &bpe->texts[id]);
        if (st)
            return st;
    }
    return HD_OK;
}

/* ---- merges ---- */

/* Parses a merge, "a b" or ["a", "b"]; the results are in the arena of the JSON. */
static enum hd_status read_merge_pair(struct tokenizer_reading *r, const struct hd_json *merge,
                                      const char **ret_a, const char **ret_b)
{
    if (merge->kind == HD_JSON_STRING) {
        char *a = hd_arena_strdup(&r->json, merge->text);
        char *space = a ? strchr(a, ' ') : NULL;

        if (!a)
            return hd_bpe_no_memory();
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

/* Finds a token of the model by its content. `spelt` has no bytes if the token never occurs in a
 * word. */
static enum hd_status find_token(struct tokenizer_reading *r, const char *content,
                                 struct hd_token_text *spelt, int32_t *ret_id)
{
    enum hd_status st;

    *spelt = (struct hd_token_text){0};
    *ret_id = -1;
    st = spell(r, content, spelt);
    if (st || !spelt->len_bytes)
        return st;
    *ret_id = hd_bpe_word(r->bpe, spelt->bytes, spelt->len_bytes);
    return *ret_id >= 0 ? HD_OK : hd_err(HD_INVALID, "'%.64s' is not in model.vocab", content);
}

static void put_merge(struct hd_bpe *bpe, struct hd_merge merge)
{
    uint64_t i = hd_mix64(merge.key) & bpe->merge_mask;

    while (bpe->merges[i].key && bpe->merges[i].key != merge.key)
        i = (i + 1) & bpe->merge_mask;
    bpe->merges[i] = merge; /* the last of several merges of the same two tokens counts */
}

static enum hd_status read_merge(struct tokenizer_reading *r, const struct hd_json *m, int32_t rank)
{
    struct hd_token_text left, right;
    const char *a = NULL, *b = NULL;
    unsigned char *both;
    /* bytes of the model's prefix at the right token, which the merged token lacks */
    size_t passed;
    int32_t left_id = 0, right_id = 0, result;
    enum hd_status st = read_merge_pair(r, m, &a, &b);

    if (!st)
        st = find_token(r, a, &left, &left_id);
    if (!st)
        st = find_token(r, b, &right, &right_id);
    if (st || left_id < 0 || right_id < 0)
        return st;
    passed = strlen(r->bpe->prefix);
    if (passed > right.len_bytes)
        return hd_err(HD_INVALID, "'%.64s' is shorter than continuing_subword_prefix", b);
    both = malloc((size_t)left.len_bytes + right.len_bytes);
    if (!both)
        return hd_bpe_no_memory();
    memcpy(both, left.bytes, left.len_bytes);
    memcpy(both + left.len_bytes, right.bytes + passed, right.len_bytes - passed);
    result = hd_bpe_word(r->bpe, both, (size_t)left.len_bytes + right.len_bytes - passed);
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

    bpe->merge_mask = hd_table_mask(merges->count);
    bpe->merges = hd_arena_array(&bpe->arena, bpe->merge_mask + 1, sizeof *bpe->merges);
    if (!bpe->merges)
        return hd_bpe_no_memory();
    for (const struct hd_json *m = merges->first; m; m = m->next) {
        enum hd_status st;

        if (m->kind == HD_JSON_STRING && hd_text_starts(m->text, "#version"))
            continue; /* skips the first line of an old merges.txt */
        st = read_merge(r, m, rank);
        if (st)
            return hd_err_prefix(st, "model.merges[%d]", (int)rank);
        rank++;
    }
    return HD_OK;
}

/* Reads the prefix or suffix that the model adds to characters; "" if absent. */
static enum hd_status read_affix(struct hd_bpe *bpe, const struct hd_json *model, const char *key,
                                 const char **ret_text)
{
    const struct hd_json *m = hd_bpe_member(model, key);

    *ret_text = "";
    if (!m)
        return HD_OK;
    if (m->kind != HD_JSON_STRING)
        return hd_err(HD_INVALID, "model.%s is not a string", key);
    if (strlen(m->text) > HD_BPE_AFFIX_BYTES_MAX)
        return hd_err(HD_LIMIT, "model.%s is longer than %d bytes", key, HD_BPE_AFFIX_BYTES_MAX);
    *ret_text = hd_arena_strdup(&bpe->arena, m->text);
    return *ret_text ? HD_OK : hd_bpe_no_memory();
}

/* Returns whether words may be stored as bytes: ByteLevel is the last step and the only one that
 * writes letters, and the model has no byte fallback, prefix or suffix. If so, removes that
 * step. */
static bool take_byte_level(struct hd_bpe *bpe)
{
    bool has_letters = false;
    const int last = bpe->step_count - 1;

    for (int i = 0; i < bpe->normal_count; i++)
        has_letters |= bpe->normals[i].kind == HD_NORMAL_LETTERS;
    for (int i = 0; i < last; i++)
        has_letters |= bpe->steps[i].kind == HD_STEP_LETTERS;
    if (last < 0 || bpe->steps[last].kind != HD_STEP_LETTERS || has_letters || bpe->falls_back ||
        bpe->prefix[0] || bpe->suffix[0])
        return false;
    bpe->step_count = last;
    return true;
}

/* Reads the settings of the model: all keys but its tokens and merges. */
static enum hd_status read_settings(struct hd_bpe *bpe, const struct hd_json *model)
{
    const struct hd_json *dropout = hd_bpe_member(model, "dropout");
    enum hd_status st = HD_OK;

    if (dropout &&
        (dropout->kind != HD_JSON_NUMBER || strspn(dropout->text, "0.") != strlen(dropout->text)))
        st = hd_err(HD_UNSUPPORTED, "model.dropout is set; only null is supported");
    if (!st)
        st = read_affix(bpe, model, "continuing_subword_prefix", &bpe->prefix);
    if (!st)
        st = read_affix(bpe, model, "end_of_word_suffix", &bpe->suffix);
    if (!st)
        st = hd_bpe_read_bool(model, "model", "byte_fallback", false, &bpe->falls_back);
    if (!st && bpe->falls_back && (bpe->prefix[0] || bpe->suffix[0]))
        st = hd_err(HD_UNSUPPORTED, "model.byte_fallback with continuing_subword_prefix or "
                                    "end_of_word_suffix is not supported");
    if (!st)
        st = hd_bpe_read_bool(model, "model", "fuse_unk", false, &bpe->fuses_unknown);
    if (!st)
        st = hd_bpe_read_bool(model, "model", "ignore_merges", false, &bpe->ignores_merges);
    if (!st)
        bpe->is_byte_level = take_byte_level(bpe);
    return st;
}

/* Reads the token for unknown characters. If the vocabulary lacks it, texts with unknown characters
 * are refused. */
static enum hd_status read_unknown(struct tokenizer_reading *r, const struct hd_json *model)
{
    const struct hd_json *m = hd_bpe_member(model, "unk_token");

    r->bpe->unknown = -1;
    if (m && m->kind != HD_JSON_STRING)
        return hd_err(HD_INVALID, "model.unk_token is not a string");
    for (int32_t id = 0; m && id < r->bpe->vocab; id++)
        if (r->bpe->texts[id].content && strcmp(r->bpe->texts[id].content, m->text) == 0)
            r->bpe->unknown = id;
    return HD_OK;
}

static enum hd_status read_model(struct tokenizer_reading *r, const struct hd_json *model)
{
    const struct hd_json *vocab = NULL, *merges = NULL;
    bool is_unigram = false;
    enum hd_status st = hd_bpe_check_type(model, &is_unigram);

    if (st || is_unigram)
        return st ? st : hd_unigram_read(model, r->bpe);
    st = hd_bpe_check_keys(
        model, "model",
        "type|dropout|unk_token|continuing_subword_prefix|end_of_word_suffix|fuse_unk|"
        "byte_fallback|ignore_merges|vocab|merges");
    if (!st)
        st = read_settings(r->bpe, model);
    if (!st)
        st = hd_json_need(model, "vocab", HD_JSON_OBJECT, &vocab);
    if (!st)
        st = hd_json_need(model, "merges", HD_JSON_ARRAY, &merges);
    if (!st)
        st = read_vocab(r, vocab);
    if (!st)
        st = hd_bpe_index_words(r->bpe, vocab->count);
    if (!st)
        st = read_unknown(r, model);
    return st ? st : read_merges(r, merges);
}

/* ---- the file ---- */

/* Checks that the steps of tokenizer.json agree with add_prefix_space of tokenizer_config.json,
 * which tokenizer classes that build their own steps use instead. */
static enum hd_status check_prefix_space(const struct hd_bpe *bpe, const struct hd_companions *c)
{
    bool has = false;

    if (!c || !c->asks_prefix_space)
        return HD_OK;
    for (int i = 0; i < bpe->normal_count; i++)
        has |= bpe->normals[i].kind == HD_NORMAL_PREPEND;
    for (int i = 0; i < bpe->step_count; i++)
        has |= bpe->steps[i].kind == HD_STEP_SPACE || (bpe->steps[i].kind == HD_STEP_METASPACE &&
                                                       bpe->steps[i].prepend != HD_PREPEND_NEVER);
    if (has == c->wants_prefix_space)
        return HD_OK;
    return hd_err(HD_UNSUPPORTED,
                  "add_prefix_space of tokenizer_config.json is %s, which %s of transformers "
                  "follows, and this file puts %s space in front of a text; make the two agree",
                  c->wants_prefix_space ? "true" : "false", c->tokenizer_class, has ? "a" : "no");
}

static enum hd_status read_root(struct tokenizer_reading *r, const struct hd_json *root)
{
    const struct hd_json *model = NULL, *m;
    enum hd_status st = hd_bpe_need_model(root, &model);

    if (!st)
        st = hd_bpe_check_keys(root, "tokenizer",
                               "version|truncation|padding|added_tokens|normalizer|pre_tokenizer|"
                               "post_processor|decoder|model");
    /* truncation and padding are settings of calls; transformers resets them when it opens the
     * file */
    if (!st)
        st = hd_bpe_read_steps(root, r->bpe);
    if (!st)
        st = hd_bpe_read_decoder(root, r->bpe);
    if (!st)
        st = check_prefix_space(r->bpe, r->companions);
    if (!st)
        st = read_model(r, model);
    if (!st)
        st =
            hd_bpe_read_added(hd_bpe_member(root, "added_tokens"), &r->json, r->companions, r->bpe);
    if (!st && (m = hd_bpe_member(root, "post_processor")))
        st = hd_around_read(m, &r->bpe->arena, &r->bpe->around);
    if (!st && !r->bpe->vocab)
        st = hd_err(HD_INVALID, "model.vocab is empty");
    return st;
}

enum hd_status hd_bpe_read(const char *text, size_t text_bytes, struct hd_companions *companions,
                           struct hd_bpe *bpe)
{
    static const struct hd_json_limits limits = {VALUES_MAX, DEPTH_MAX};
    struct tokenizer_reading r = {.bpe = bpe, .companions = companions};
    const struct hd_json *root = NULL;
    enum hd_status st;

    hd_arena_init(&bpe->arena, arena_bytes_max);
    if (!hd_regex_is_present())
        return hd_err(HD_UNSUPPORTED, "tokenizer.json needs PCRE2, which this build does not have; "
                                      "install libpcre2-dev and libutf8proc-dev and build again");
    hd_arena_init(&r.json, arena_bytes_max);
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
    for (int i = 0; i < bpe->normal_count; i++)
        hd_matcher_done(&bpe->normals[i].pattern);
    for (int i = 0; i < bpe->step_count; i++)
        hd_matcher_done(&bpe->steps[i].pattern);
    for (int i = 0; i < bpe->decode_count; i++)
        hd_matcher_done(&bpe->decodes[i].pattern);
    hd_regex_free(bpe->word_char);
    hd_arena_done(&bpe->arena);
}
