#include "generate/stops.h"

#include <string.h>

#include "base/file.h"
#include "base/json.h"

enum { CONFIG_BYTES_MAX = 16 << 20 };

bool hd_stops_has(const struct hd_stops *stops, int32_t id)
{
    for (int i = 0; i < stops->count; i++)
        if (stops->ids[i] == id)
            return true;
    return false;
}

static void add(struct hd_stops *stops, const struct hd_tokenizer *tokenizer, int64_t id)
{
    if (id >= 0 && id < hd_tokenizer_vocab(tokenizer) && stops->count < HD_STOPS_MAX &&
        !hd_stops_has(stops, (int32_t)id))
        stops->ids[stops->count++] = (int32_t)id;
}

/* eos_token_id, a number or a list, of a file. *ret_found false: it has none. */
static enum hd_status read_file(const char *dir, const char *name,
                                const struct hd_tokenizer *tokenizer, struct hd_stops *stops,
                                bool *ret_found)
{
    static const struct hd_json_limits limits = {.values_max = 1 << 16, .depth_max = 32};
    struct hd_text path = {0}, text = {0};
    const struct hd_json *root = NULL, *ids;
    struct hd_arena arena;
    enum hd_status st = HD_OK;
    int64_t id;

    *ret_found = false;
    hd_arena_init(&arena, 0);
    hd_file_join(&path, dir, name);
    if (path.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a path");
    else if (hd_file_exists(path.data)) {
        st = hd_file_read(path.data, CONFIG_BYTES_MAX, &text);
        if (!st)
            st = hd_json_parse(&arena, text.data ? text.data : "", text.len_bytes, &limits, &root);
        st = st ? hd_err_prefix(st, "%s", path.data) : HD_OK;
    }
    ids = root ? hd_json_member(root, "eos_token_id") : NULL;
    if (ids && ids->kind == HD_JSON_ARRAY)
        ids = ids->first;
    for (; !st && ids; ids = ids->key ? NULL : ids->next)
        if (ids->kind == HD_JSON_NUMBER && !hd_json_to_int64(ids, 0, INT32_MAX, &id)) {
            add(stops, tokenizer, id);
            *ret_found = true;
        }
    hd_text_free(&path);
    hd_text_free(&text);
    hd_arena_done(&arena);
    return st;
}

enum hd_status hd_stops_read(const char *dir, const struct hd_tokenizer *tokenizer,
                             struct hd_stops *stops)
{
    bool found = false;
    enum hd_status st = HD_OK;

    if (dir && *dir)
        st = read_file(dir, "generation_config.json", tokenizer, stops, &found);
    if (!st && !found && dir && *dir)
        st = read_file(dir, "config.json", tokenizer, stops, &found);
    if (!st)
        add(stops, tokenizer, hd_tokenizer_end_of_text(tokenizer));
    return st;
}

enum hd_status hd_stops_add_chat(struct hd_conversation_encoder *encoder,
                                 const struct hd_chat *chat, const struct hd_tokenizer *tokenizer,
                                 struct hd_stops *stops)
{
    const char *eos = hd_chat_token(chat, "eos_token");
    int32_t end = -1;

    if (eos)
        add(stops, tokenizer, hd_tokenizer_find(tokenizer, eos));
    if (!hd_conversation_find_end(encoder, &end)) /* a template may refuse such a conversation */
        add(stops, tokenizer, end);
    return HD_OK;
}
