/* text_identity: hashes everything except the texts that decides which tokens texts become. */
#include <string.h>

#include "base/file.h"
#include "base/folder.h"
#include "base/hash.h"
#include "chat/model.h"
#include "data/data.h"
#include "tokenizer/companions.h"
#include "tokenizer/special.h"
#include "tokenizer/tokenizer.h"

#define FORM "2:" /* prefix of a recorded identity; older identities have none */

/* Adds a file's contents to the hash. A missing file and an empty one give different hashes. */
static enum hd_status mix_file(const char *path, size_t bytes_max, struct hd_hash *hash)
{
    struct hd_text bytes = {0};
    enum hd_status st = HD_OK;

    if (hd_file_exists(path)) {
        st = hd_file_read(path, bytes_max, &bytes);
        hd_hash_add(hash, &bytes.len_bytes, sizeof bytes.len_bytes);
        hd_hash_add(hash, bytes.data, bytes.len_bytes);
    }
    hd_hash_add(hash, "", 1);
    hd_text_free(&bytes);
    return st;
}

/* Adds the chat template for conversations with tools to the hash; adds nothing if there is none,
 * as older builds did. */
static enum hd_status mix_tool_use(const char *template, struct hd_hash *hash)
{
    struct hd_text path = {0};
    enum hd_status st = hd_chat_find_tool_use(template, &path);

    if (!st && path.len_bytes)
        st = mix_file(path.data, HD_CHAT_FILE_BYTES_MAX, hash);
    hd_text_free(&path);
    return st;
}

/* Adds to the hash the settings that decide what tokens a conversation becomes. */
static enum hd_status mix_template(const struct hd_text_origin *o, struct hd_hash *hash)
{
    enum hd_status st = HD_OK;

    hd_hash_add(hash, o->format, strlen(o->format) + 1);
    hd_hash_add(hash, o->loss, strlen(o->loss) + 1);
    if (*o->date) /* older builds had no date; their identities must stay valid */
        hd_hash_add(hash, o->date, strlen(o->date) + 1);
    if (*o->template)
        st = mix_file(o->template, HD_CHAT_FILE_BYTES_MAX, hash);
    if (!st && *o->template)
        st = mix_tool_use(o->template, hash);
    return st;
}

/* Adds to both hashes the special tokens of the tokenizer's folder and, if they lack eos_token, the
 * eos ids of the model's files. */
static enum hd_status mix_special(const struct hd_text_origin *o, struct hd_hash hashes[2])
{
    struct hd_companions companions;
    struct hd_model_ids ids = {.eos_count = 0};
    enum hd_status st = hd_companions_read(o->folder, NULL, &companions);
    const uint64_t all = st ? 0 : hd_companions_hash(&companions);

    if (!st && !hd_companions_find(&companions, "eos_token"))
        st = hd_model_ids_read(o->model_dir, &ids);
    for (int i = 0; i < 2; i++) {
        hd_hash_add(&hashes[i], &all, sizeof all);
        hd_hash_add(&hashes[i], ids.eos, (size_t)ids.eos_count * sizeof ids.eos[0]);
    }
    hd_companions_done(&companions);
    return st;
}

enum hd_status hd_text_identities(const struct hd_text_origin *origin, uint64_t *ret_hash,
                                  uint64_t *ret_text_hash)
{
    struct hd_hash hashes[2]; /* with the template, without it */
    enum hd_status st = HD_OK;

    hd_hash_begin(&hashes[0]);
    if (strcmp(origin->tokenizer, "bytes") != 0)
        st = mix_file(origin->tokenizer, HD_TOKENIZER_FILE_BYTES_MAX, &hashes[0]);
    hashes[1] = hashes[0];
    if (!st && origin->template)
        st = mix_template(origin, &hashes[0]);
    if (!st && *origin->folder)
        st = mix_special(origin, hashes);
    *ret_hash = hd_hash_value(&hashes[0]);
    *ret_text_hash = hd_hash_value(&hashes[1]);
    return st;
}

enum hd_status hd_text_identity(const struct hd_text_origin *origin, uint64_t *ret_hash)
{
    uint64_t text_hash;

    return hd_text_identities(origin, ret_hash, &text_hash);
}

void hd_text_identity_format(uint64_t hash, char ret_text[HD_TEXT_IDENTITY_MAX])
{
    memcpy(ret_text, FORM, sizeof FORM - 1);
    hd_hash_format(hash, ret_text + sizeof FORM - 1);
}

/* ---- of older jobs ---- */

/* Sets *ret_hash to the identity as builds before version 12 of the text form recorded it: whole
 * files, and special tokens only if there are conversations. */
static enum hd_status old_identity(const struct hd_text_origin *o, uint64_t *ret_hash)
{
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json"};
    const char *folder = *o->model_dir ? o->model_dir : o->folder;
    struct hd_hash hash;
    enum hd_status st = HD_OK;

    hd_hash_begin(&hash);
    if (strcmp(o->tokenizer, "bytes") != 0)
        st = mix_file(o->tokenizer, HD_TOKENIZER_FILE_BYTES_MAX, &hash);
    if (!st && o->template)
        st = mix_template(o, &hash);
    for (size_t i = 0; !st && o->template && *folder && i < sizeof names / sizeof names[0]; i++) {
        struct hd_text path = {0};

        st = hd_folder_path(&path, folder, names[i]);
        if (!st)
            st = mix_file(path.data, HD_CHAT_FILE_BYTES_MAX, &hash);
        hd_text_free(&path);
    }
    *ret_hash = hd_hash_value(&hash);
    return st;
}

enum hd_status hd_text_identity_is(const struct hd_text_origin *origin, uint64_t hash,
                                   const char *recorded, bool *ret_same,
                                   char ret_now[HD_TEXT_IDENTITY_MAX])
{
    const bool is_old = strncmp(recorded, FORM, sizeof FORM - 1) != 0;
    const enum hd_status st = is_old ? old_identity(origin, &hash) : HD_OK;

    if (st)
        return st;
    if (is_old)
        hd_hash_format(hash, ret_now);
    else
        hd_text_identity_format(hash, ret_now);
    *ret_same = strcmp(ret_now, recorded) == 0;
    return HD_OK;
}
