/* model_ids: reads the ids at which generation begins and ends, and that of padding, from
 * generation_config.json or config.json. */
#include "base/folder.h"
#include "base/json.h"
#include "tokenizer/companions.h"
#include "tokenizer/special.h"

enum { VALUES_MAX = 1 << 16, DEPTH_MAX = 64 };

static const char generation_file[] = "generation_config.json", config_file[] = "config.json";

static enum hd_status read_id(const struct hd_json *value, int32_t *ret_id)
{
    int64_t id = 0;
    const enum hd_status st = hd_json_to_int64(value, INT32_MIN, INT32_MAX, &id);

    if (st)
        return hd_err(HD_INVALID, "is neither a token id nor null");
    *ret_id = id < 0 ? -1 : (int32_t)id; /* a negative id is an older notation of none */
    return HD_OK;
}

/* Sets *id to the id in a key of a JSON file, or to -1 for null; leaves it unchanged if the key is
 * absent. */
static enum hd_status read_one(const struct hd_json *root, const char *file, const char *key,
                               int32_t *id)
{
    const struct hd_json *m = hd_json_member(root, key);
    enum hd_status st;

    if (!m || m->kind == HD_JSON_NULL || *id >= 0)
        return HD_OK;
    st = read_id(m, id);
    return st ? hd_err_prefix(st, "%s: %s", file, key) : HD_OK;
}

/* Reads eos_token_id, a number or a list of numbers. */
static enum hd_status read_eos(const struct hd_json *root, const char *file,
                               struct hd_model_ids *ids)
{
    const struct hd_json *m = hd_json_member(root, "eos_token_id"), *v = m;
    enum hd_status st = HD_OK;

    if (m && file == generation_file)
        ids->no_eos = m->kind == HD_JSON_NULL    ? "null"
                      : m->kind == HD_JSON_ARRAY ? "a list without an id"
                                                 : "negative";
    if (!m || m->kind == HD_JSON_NULL || ids->eos_count)
        return HD_OK;
    if (m->kind == HD_JSON_ARRAY)
        v = m->first;
    for (; !st && v; v = m->kind == HD_JSON_ARRAY ? v->next : NULL) {
        int32_t id = -1;

        st = read_id(v, &id);
        if (!st && ids->eos_count == HD_SPECIAL_STOPS_MAX)
            st = hd_err(HD_LIMIT, "has more than %d ids", HD_SPECIAL_STOPS_MAX);
        if (!st && id >= 0)
            ids->eos[ids->eos_count++] = id;
    }
    if (ids->eos_count) {
        ids->eos_file = file;
        ids->no_eos = "";
    }
    return st ? hd_err_prefix(st, "%s: eos_token_id", file) : HD_OK;
}

static enum hd_status read_ids(const struct hd_json *root, const char *file,
                               struct hd_model_ids *ids)
{
    enum hd_status st = read_eos(root, file, ids);

    if (!st)
        st = read_one(root, file, "bos_token_id", &ids->bos);
    if (!st)
        st = read_one(root, file, "pad_token_id", &ids->pad);
    return st;
}

/* Reads the special token ids of config.json; a multimodal model has them in text_config. */
static enum hd_status read_config(const struct hd_json *root, struct hd_model_ids *ids)
{
    static const char *const parts[] = {"decoder", "generator", "text_config"};
    enum hd_status st = read_ids(root, config_file, ids);

    for (size_t i = 0; !st && i < sizeof parts / sizeof parts[0]; i++) {
        const struct hd_json *part = hd_json_member(root, parts[i]);

        if (part && part->kind == HD_JSON_OBJECT && part->count) {
            st = read_ids(part, config_file, ids);
            return st ? hd_err_prefix(st, "%s", parts[i]) : HD_OK;
        }
    }
    return st;
}

/* Parses a JSON object of the model's folder; sets *ret_root to NULL if the file is missing. */
static enum hd_status read_json_file(struct hd_arena *arena, const char *dir, const char *name,
                                     const struct hd_json **ret_root)
{
    static const struct hd_json_limits limits = {VALUES_MAX, DEPTH_MAX};
    const enum hd_status st =
        hd_folder_read_json(arena, dir, name, HD_COMPANION_BYTES_MAX, &limits, ret_root);

    return !st && *ret_root && (*ret_root)->kind != HD_JSON_OBJECT
               ? hd_err(HD_INVALID, "%s/%s: is not an object", dir, name)
               : st;
}

enum hd_status hd_model_ids_read(const char *dir, struct hd_model_ids *ret_ids)
{
    const struct hd_json *root = NULL;
    struct hd_arena arena;
    enum hd_status st;

    *ret_ids = (struct hd_model_ids){.bos = -1, .pad = -1, .eos_file = "", .no_eos = ""};
    if (!dir || !*dir)
        return HD_OK;
    hd_arena_init(&arena, 0);
    st = read_json_file(&arena, dir, generation_file, &root);
    if (!st && root) {
        ret_ids->has_generation = true;
        st = read_ids(root, generation_file, ret_ids);
        st = st ? hd_err_prefix(st, "%s", dir) : HD_OK;
    } else if (!st) {
        st = read_json_file(&arena, dir, config_file, &root);
        if (!st && root) {
            st = read_config(root, ret_ids);
            st = st ? hd_err_prefix(st, "%s", dir) : HD_OK;
        }
    }
    hd_arena_done(&arena);
    return st;
}
