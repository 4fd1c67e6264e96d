/* json_keys: checks and reads members of the objects of a tokenizer.json, and grows the table of
 * tokens; used by all its parsers. */
#include <string.h>

#include "base/json.h"
#include "tokenizer/tokenizer_internal.h"

enum hd_status hd_bpe_no_memory(void)
{
    return hd_err(HD_NO_MEMORY, "no memory for a tokenizer");
}

enum hd_status hd_bpe_check_keys(const struct hd_json *object, const char *where, const char *known)
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

enum hd_status hd_bpe_need_model(const struct hd_json *root, const struct hd_json **ret_model)
{
    const bool is_other = root->kind == HD_JSON_OBJECT && !hd_json_member(root, "model");

    return is_other ? hd_err(HD_INVALID, "'model' is missing, so it is another file, such as a "
                                         "vocab.json or a tokenizer_config.json; name the "
                                         "tokenizer.json")
                    : hd_json_need(root, "model", HD_JSON_OBJECT, ret_model);
}

enum hd_status hd_bpe_check_type(const struct hd_json *model, bool *ret_is_unigram)
{
    const struct hd_json *type = hd_bpe_member(model, "type"), *vocab;

    *ret_is_unigram = false;
    if (!type) { /* files of 2020 name no type; a list of tokens is that of Unigram */
        vocab = hd_bpe_member(model, "vocab");
        *ret_is_unigram = vocab && vocab->kind == HD_JSON_ARRAY;
        return HD_OK;
    }
    if (type->kind == HD_JSON_STRING && strcmp(type->text, "BPE") == 0)
        return HD_OK;
    *ret_is_unigram = type->kind == HD_JSON_STRING && strcmp(type->text, "Unigram") == 0;
    return *ret_is_unigram
               ? HD_OK
               : hd_err(HD_UNSUPPORTED, "model.type is %.64s; only BPE and Unigram are supported",
                        type->text ? type->text : "not a string");
}

const struct hd_json *hd_bpe_member(const struct hd_json *object, const char *key)
{
    const struct hd_json *m = hd_json_member(object, key);

    /* a member with the value null counts as absent */
    return m && m->kind != HD_JSON_NULL ? m : NULL;
}

enum hd_status hd_bpe_read_bool(const struct hd_json *object, const char *where, const char *key,
                                bool otherwise, bool *ret_value)
{
    const struct hd_json *m = hd_bpe_member(object, key);

    if (m && m->kind != HD_JSON_TRUE && m->kind != HD_JSON_FALSE)
        return hd_err(HD_INVALID, "%s.%s is neither true nor false", where, key);
    *ret_value = m ? m->kind == HD_JSON_TRUE : otherwise;
    return HD_OK;
}

enum hd_status hd_bpe_reach(struct hd_bpe *bpe, int32_t id)
{
    static const struct hd_token_text none = {0};
    int capacity = 64;

    while (capacity < bpe->vocab)
        capacity *= 2;
    while (bpe->vocab <= id) {
        if (!bpe->texts || bpe->vocab == capacity || bpe->vocab == 0) {
            int have = bpe->texts ? capacity : 0;
            struct hd_token_text *texts =
                hd_arena_grow(&bpe->arena, bpe->texts, bpe->vocab, &have, sizeof *texts);

            if (!texts)
                return hd_err(HD_NO_MEMORY, "no memory for a tokenizer");
            bpe->texts = texts;
            capacity = have;
        }
        bpe->texts[bpe->vocab++] = none;
    }
    return HD_OK;
}
