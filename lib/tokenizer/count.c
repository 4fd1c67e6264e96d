/* count: counts the ids of a tokenizer from its files alone, for programs that do not encode: the
 * tokens of the model and the added tokens of all files. Equals hd_tokenizer_vocab; checks nothing
 * else of the tokenizer, so that it needs neither PCRE2 nor utf8proc. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/folder.h"
#include "base/hash.h"
#include "base/json.h"
#include "tokenizer/count.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_internal.h"

enum { COUNT_VALUES_MAX = 16 << 20, COUNT_DEPTH_MAX = 32 };
static const size_t count_bytes_max = (size_t)4 << 30;

/* Adds the tokens of a Unigram model to the table of texts. */
static enum hd_status add_list_tokens(const struct hd_json *vocab, struct hd_bpe *bpe)
{
    int32_t id = 0;
    enum hd_status st = HD_OK;

    if (vocab->count > HD_BPE_IDS_MAX)
        return hd_err(HD_LIMIT, "model.vocab has %zu tokens", vocab->count);
    for (const struct hd_json *m = vocab->first; !st && m; m = m->next, id++) {
        st = hd_bpe_reach(bpe, id);
        if (!st && (m->kind != HD_JSON_ARRAY || !m->count || m->first->kind != HD_JSON_STRING))
            st = hd_err(HD_INVALID, "model.vocab[%d] is not [\"TOKEN\", SCORE]", (int)id);
        if (!st)
            bpe->texts[id].content = m->first->text;
    }
    return st;
}

/* Adds the tokens of a tokenizer.json's model to the table of texts. */
static enum hd_status add_model_tokens(const struct hd_json *root, struct hd_bpe *bpe)
{
    const struct hd_json *model = NULL, *vocab = NULL;
    bool is_unigram = false;
    enum hd_status st = hd_bpe_need_model(root, &model);

    if (!st)
        st = hd_bpe_check_type(model, &is_unigram);
    if (!st)
        st = hd_json_need(model, "vocab", is_unigram ? HD_JSON_ARRAY : HD_JSON_OBJECT, &vocab);
    if (!st && is_unigram)
        return add_list_tokens(vocab, bpe);
    for (const struct hd_json *m = st ? NULL : vocab->first; !st && m; m = m->next) {
        int64_t id = 0;

        st = hd_json_to_int64(m, 0, HD_BPE_IDS_MAX - 1, &id);
        if (st)
            st = hd_err_prefix(st, "model.vocab: the id of '%.64s'", m->key);
        else
            st = hd_bpe_reach(bpe, (int32_t)id);
        if (!st)
            bpe->texts[id].content = m->key;
    }
    return st;
}

/* Adds the pieces of a SentencePiece model to the table of texts. */
static enum hd_status add_pieces(const struct hd_text *text, struct hd_bpe *bpe)
{
    struct hd_sp_file file;
    enum hd_status st =
        hd_sp_file_read(text->data ? text->data : "", text->len_bytes, &bpe->arena, &file);

    if (!st)
        st = hd_bpe_reach(bpe, file.count - 1);
    for (int32_t id = 0; !st && id < file.count; id++)
        bpe->texts[id].content = file.pieces[id].text;
    return st;
}

/* Facts of a tokenizer that its rules are not needed for. */
struct token_facts {
    int32_t ids;   /* ids that the hash covers */
    int32_t count; /* largest id + 1 */
    uint64_t hash; /* of the texts of these ids */
};

static uint64_t hash_texts(const struct hd_bpe *bpe, int32_t ids)
{
    struct hd_hash hash;

    hd_hash_begin(&hash);
    for (int32_t id = 0; id < ids && id < bpe->vocab; id++) {
        const char *text = bpe->texts[id].content ? bpe->texts[id].content : "";

        hd_hash_add(&hash, text, strlen(text) + 1);
    }
    return hd_hash_value(&hash);
}

static enum hd_status count_all(const struct hd_text *file, bool is_model,
                                struct hd_companions *companions, struct hd_bpe *bpe,
                                struct token_facts *ret)
{
    static const struct hd_json_limits limits = {COUNT_VALUES_MAX, COUNT_DEPTH_MAX};
    struct hd_merged_list merged = {0};
    const struct hd_json *root = NULL;
    struct hd_arena json;
    enum hd_status st;

    hd_arena_init(&json, count_bytes_max);
    st = is_model
             ? add_pieces(file, bpe)
             : hd_json_parse(&json, file->data ? file->data : "", file->len_bytes, &limits, &root);
    if (!st && !is_model)
        st = add_model_tokens(root, bpe);
    if (!st)
        st = hd_merged_list_make(&json, root ? hd_bpe_member(root, "added_tokens") : NULL,
                                 companions, bpe, &merged);
    ret->count = bpe->vocab;
    ret->hash = st ? 0 : hash_texts(bpe, ret->ids);
    for (int i = 0; !st && i < merged.count; i++)
        if (merged.tokens[i].id >= ret->count)
            ret->count = merged.tokens[i].id + 1;
    hd_arena_done(&json);
    return st;
}

static enum hd_status count_file(const char *path, struct token_facts *ret)
{
    static const struct hd_text none = {0};
    const bool is_model = hd_text_ends(path, ".model");
    struct hd_companions companions = {.tokenizer_class = "", .asked_class = ""};
    struct hd_bpe *bpe = calloc(1, sizeof *bpe);
    struct hd_text file = {0}, folder = {0};
    enum hd_status st =
        hd_file_read(path, is_model ? HD_SP_FILE_BYTES_MAX : HD_TOKENIZER_FILE_BYTES_MAX, &file);

    hd_folder_of(path, &folder);
    if (!st && (folder.failed || !bpe))
        st = hd_bpe_no_memory();
    if (!st)
        st = hd_companions_read(folder.data, is_model ? &none : &file, &companions);
    if (!st) {
        hd_arena_init(&bpe->arena, count_bytes_max);
        st = count_all(&file, is_model, &companions, bpe, ret);
        st = st ? hd_err_prefix(st, "%s", path) : HD_OK;
        hd_arena_done(&bpe->arena);
    }
    hd_companions_done(&companions);
    hd_text_free(&file);
    hd_text_free(&folder);
    free(bpe);
    return st;
}

enum hd_status hd_tokenizer_count_ids(const char *path, int32_t *ret_count)
{
    struct token_facts facts = {.ids = 0};
    const enum hd_status st = count_file(path, &facts);

    *ret_count = facts.count;
    return st;
}

enum hd_status hd_tokenizer_hash_ids(const char *path, int32_t ids, uint64_t *ret_hash)
{
    struct token_facts facts = {.ids = ids};
    const enum hd_status st = count_file(path, &facts);

    *ret_hash = facts.hash;
    return st;
}
