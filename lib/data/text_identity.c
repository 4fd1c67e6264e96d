/* text_identity: what the tokens of texts depend on beside the texts, as one hash. */
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "chat/model.h"
#include "data/data.h"
#include "tokenizer/tokenizer.h"

/* A file that is not there differs from an empty one. */
static enum hd_status mix_file(const char *path, size_t bytes_max, struct hd_hash *hash)
{
    struct hd_text bytes = {0};
    enum hd_status st = HD_OK;

    if (hd_file_exists(path)) {
        st = hd_file_read(path, bytes_max, &bytes);
        hd_hash_add(hash, &bytes.len_bytes, sizeof bytes.len_bytes);
        hd_hash_add(hash, bytes.data ? bytes.data : "", bytes.len_bytes);
    }
    hd_hash_add(hash, "", 1);
    hd_text_free(&bytes);
    return st;
}

static enum hd_status mix_conversations(const struct hd_text_origin *o, struct hd_hash *hash)
{
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json"};
    enum hd_status st = HD_OK;

    hd_hash_add(hash, o->format, strlen(o->format) + 1);
    hd_hash_add(hash, o->loss, strlen(o->loss) + 1);
    if (*o->template)
        st = mix_file(o->template, HD_CHAT_FILE_BYTES_MAX, hash);
    for (size_t i = 0; !st && *o->folder && i < sizeof names / sizeof names[0]; i++) {
        struct hd_text path = {0};

        hd_file_join(&path, o->folder, names[i]);
        st = path.failed ? hd_err(HD_NO_MEMORY, "no memory for a path")
                         : mix_file(path.data, HD_CHAT_FILE_BYTES_MAX, hash);
        hd_text_free(&path);
    }
    return st;
}

enum hd_status hd_text_identity(const struct hd_text_origin *origin, uint64_t *ret_hash)
{
    struct hd_hash hash;
    enum hd_status st = HD_OK;

    hd_hash_begin(&hash);
    if (strcmp(origin->tokenizer, "bytes") != 0)
        st = mix_file(origin->tokenizer, HD_TOKENIZER_FILE_BYTES_MAX, &hash);
    if (!st && origin->template)
        st = mix_conversations(origin, &hash);
    *ret_hash = hd_hash_value(&hash);
    return st;
}
