#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/folder.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer_internal.h"

/* ---- tokenizers ---- */

struct hd_tokenizer {
    char *name;
    bool is_bytes;
    struct hd_bpe bpe;               /* the BPE, unless is_bytes */
    struct hd_companions companions; /* files beside the tokenizer.json, unless is_bytes */
};

struct hd_encoder {
    const struct hd_tokenizer *tokenizer;
    struct hd_bpe_encoder *bpe; /* NULL: the tokenizer is "bytes" */
};

static bool is_path(const char *name)
{
    const size_t n = strlen(name);

    return strchr(name, '/') || (n > 5 && strcmp(name + n - 5, ".json") == 0) ||
           (n > 6 && strcmp(name + n - 6, ".model") == 0);
}

static enum hd_status read_tokenizer_file(struct hd_tokenizer *t)
{
    static const struct hd_text none = {0};
    const bool is_model = hd_text_ends(t->name, ".model");
    struct hd_text text = {0}, folder = {0};
    enum hd_status st =
        hd_file_read(t->name, is_model ? HD_SP_FILE_BYTES_MAX : HD_TOKENIZER_FILE_BYTES_MAX, &text);

    hd_folder_of(t->name, &folder);
    if (!st && folder.failed)
        st = hd_bpe_no_memory();
    if (!st) /* messages of failures before this line name a file already */
        st = hd_companions_read(folder.data, is_model ? &none : &text, &t->companions);
    if (!st && is_model) {
        st = hd_sp_read(text.data ? text.data : "", text.len_bytes, &t->companions, &t->bpe);
        st = st ? hd_err_prefix(st, "%s cannot be used as a SentencePiece model", t->name) : HD_OK;
    } else if (!st) {
        st = hd_bpe_read(text.data ? text.data : "", text.len_bytes, &t->companions, &t->bpe);
        if (st)
            st = hd_err_prefix(st, "%s cannot be used as a tokenizer.json", t->name);
    }
    hd_text_free(&folder);
    hd_text_free(&text);
    return st;
}

enum hd_status hd_tokenizer_open(const char *name, struct hd_tokenizer **ret_tokenizer)
{
    const bool is_bytes = strcmp(name, "bytes") == 0;
    struct hd_tokenizer *t;
    enum hd_status st = HD_OK;

    if (!is_bytes && hd_file_is_dir(name))
        return hd_err(HD_INVALID,
                      "%s is a folder; give the tokenizer.json or tokenizer.model in it", name);
    if (!is_bytes && !is_path(name))
        return hd_err(HD_UNSUPPORTED,
                      "there is no tokenizer '%s'; use bytes or the path of a tokenizer.json "
                      "or tokenizer.model",
                      name);
    t = calloc(1, sizeof *t);
    if (!t)
        return hd_bpe_no_memory();
    t->is_bytes = is_bytes;
    t->name = strdup(name);
    if (!t->name)
        st = hd_bpe_no_memory();
    if (!st && !is_bytes)
        st = read_tokenizer_file(t);
    if (st) {
        hd_tokenizer_close(t);
        return st;
    }
    *ret_tokenizer = t;
    return HD_OK;
}

enum hd_status hd_tokenizer_open_words(enum hd_word_pattern pattern,
                                       struct hd_tokenizer **ret_tokenizer)
{
    static const struct hd_bpe_token none = {.bytes = (const unsigned char *)"!", .len_bytes = 1};
    struct hd_tokenizer *t = calloc(1, sizeof *t);
    struct hd_text json = {0};
    enum hd_status st = HD_OK;

    hd_bpe_write(pattern, &none, 1, NULL, 0, &json);
    if (!t || json.failed || !(t->name = strdup(hd_word_pattern_names[pattern])))
        st = hd_bpe_no_memory();
    if (!st)
        st = hd_bpe_read(json.data, json.len_bytes, NULL, &t->bpe);
    hd_text_free(&json);
    if (st) {
        hd_tokenizer_close(t);
        return st;
    }
    t->bpe.spells_words = true;
    *ret_tokenizer = t;
    return HD_OK;
}

void hd_tokenizer_close(struct hd_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    hd_bpe_done(&tokenizer->bpe);
    hd_companions_done(&tokenizer->companions);
    free(tokenizer->name);
    free(tokenizer);
}

const char *hd_tokenizer_name(const struct hd_tokenizer *tokenizer)
{
    return tokenizer->name;
}

int32_t hd_tokenizer_vocab(const struct hd_tokenizer *tokenizer)
{
    if (tokenizer->bpe.spells_words)
        return HD_WORD_END + 1;
    return tokenizer->is_bytes ? 256 : tokenizer->bpe.vocab;
}

const struct hd_companions *hd_tokenizer_companions(const struct hd_tokenizer *tokenizer)
{
    return tokenizer->is_bytes ? NULL : &tokenizer->companions;
}

bool hd_tokenizer_has_rules(const struct hd_tokenizer *tokenizer)
{
    const struct hd_sp *sp = tokenizer->bpe.sp;

    return sp && (sp->unit_count || sp->removes_spaces || sp->space_is_suffix || sp->has_unused);
}

bool hd_tokenizer_is_special(const struct hd_tokenizer *tokenizer, int32_t id)
{
    for (int i = 0; i < tokenizer->bpe.token_count; i++)
        if (tokenizer->bpe.tokens[i].id == id)
            return tokenizer->bpe.tokens[i].special;
    return false;
}

const int32_t *hd_tokenizer_before(const struct hd_tokenizer *tokenizer, int *ret_count)
{
    *ret_count = tokenizer->bpe.around.before_count;
    return tokenizer->bpe.around.before;
}

const int32_t *hd_tokenizer_behind(const struct hd_tokenizer *tokenizer, int *ret_count)
{
    *ret_count = tokenizer->bpe.around.behind_count;
    return tokenizer->bpe.around.behind;
}

int32_t hd_tokenizer_find(const struct hd_tokenizer *tokenizer, const char *content)
{
    for (int32_t id = 0; !tokenizer->is_bytes && id < tokenizer->bpe.vocab; id++) {
        const char *have = tokenizer->bpe.texts[id].content;

        if (have && strcmp(have, content) == 0)
            return id;
    }
    return -1;
}

const char *hd_tokenizer_content(const struct hd_tokenizer *tokenizer, int32_t id)
{
    if (tokenizer->is_bytes || id < 0 || id >= tokenizer->bpe.vocab)
        return NULL;
    return tokenizer->bpe.texts[id].content;
}

/* ---- decoding ---- */

static enum hd_status check_id(const struct hd_tokenizer *t, int32_t id)
{
    if (id < 0 || id >= hd_tokenizer_vocab(t))
        return hd_err(HD_INVALID, "token id %d is outside 0 to %d", (int)id,
                      (int)hd_tokenizer_vocab(t) - 1);
    if (!t->is_bytes && !t->bpe.texts[id].content)
        return hd_err(HD_INVALID, "token id %d is not a token of %s", (int)id, t->name);
    return HD_OK;
}

enum hd_status hd_tokenizer_decode(const struct hd_tokenizer *tokenizer, const int32_t *ids,
                                   size_t count, struct hd_text *ret_text)
{
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < count; i++)
        st = check_id(tokenizer, ids[i]);
    if (!st && !tokenizer->is_bytes)
        return hd_bpe_decode(&tokenizer->bpe, ids, count, ret_text);
    for (size_t i = 0; !st && i < count; i++)
        hd_text_add_bytes(ret_text, &(char){(char)ids[i]}, 1);
    if (!st && ret_text->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for the decoded text");
    return st;
}

enum hd_status hd_tokenizer_decode_next(const struct hd_tokenizer *tokenizer, int32_t id,
                                        struct hd_text *ret_bytes)
{
    enum hd_status st = check_id(tokenizer, id);

    if (!st)
        st = tokenizer->is_bytes ? hd_tokenizer_decode(tokenizer, &id, 1, ret_bytes)
                                 : hd_bpe_decode_next(&tokenizer->bpe, id, ret_bytes);
    return st;
}

/* ---- encoding ---- */

enum hd_status hd_encoder_new(const struct hd_tokenizer *tokenizer, struct hd_encoder **ret_encoder)
{
    struct hd_encoder *e = calloc(1, sizeof *e);
    enum hd_status st = HD_OK;

    if (!e)
        return hd_bpe_no_memory();
    e->tokenizer = tokenizer;
    if (!tokenizer->is_bytes)
        st = hd_bpe_encoder_new(&tokenizer->bpe, &e->bpe);
    if (st) {
        free(e);
        return st;
    }
    *ret_encoder = e;
    return HD_OK;
}

void hd_encoder_free(struct hd_encoder *encoder)
{
    if (encoder)
        hd_bpe_encoder_free(encoder->bpe);
    free(encoder);
}

/* Checks that the text is UTF-8. HD_INVALID: the message names the offset of the first invalid
 * character. */
static enum hd_status check_utf8(const unsigned char *text, size_t len_bytes)
{
    const size_t at = hd_find_broken(text, len_bytes);

    return at == len_bytes ? HD_OK
                           : hd_err(HD_INVALID, "byte %zu (0x%02X) is not UTF-8%s", at, text[at],
                                    hd_text_explain_not_utf8(text, len_bytes, at));
}

enum hd_status hd_encoder_add(struct hd_encoder *encoder, const void *text, size_t text_bytes,
                              struct hd_id_list *list)
{
    return hd_encoder_add_places(encoder, text, text_bytes, NULL, list);
}

enum hd_status hd_encoder_add_places(struct hd_encoder *encoder, const void *text,
                                     size_t text_bytes, struct hd_encoder_places *places,
                                     struct hd_id_list *list)
{
    const unsigned char *bytes = text;
    const size_t before = list->count;
    enum hd_status st;

    if (encoder->bpe) {
        st = check_utf8(bytes, text_bytes);
        if (!st)
            st = hd_bpe_encode(encoder->bpe, bytes, text_bytes, places, list);
        if (st)
            list->count = before;
        return st;
    }
    st = hd_id_list_reserve(list, text_bytes);
    for (size_t i = 0; places && i < places->mark_count; i++)
        places->marks[i].token = before + places->marks[i].at;
    for (size_t i = 0; !st && i < text_bytes; i++)
        list->ids[list->count++] = bytes[i];
    return st;
}

bool hd_tokenizer_find_special(const struct hd_tokenizer *tokenizer, const char *text,
                               size_t text_bytes, size_t *at)
{
    return !tokenizer->is_bytes &&
           hd_added_find_special(&tokenizer->bpe, (const unsigned char *)text, text_bytes, at);
}

size_t hd_tokenizer_cut(const struct hd_tokenizer *tokenizer, const void *text, size_t text_bytes,
                        size_t from)
{
    if (tokenizer->is_bytes)
        return from < text_bytes ? (from ? from : text_bytes > 1) : 0;
    return hd_bpe_cut(&tokenizer->bpe, text, text_bytes, from);
}
