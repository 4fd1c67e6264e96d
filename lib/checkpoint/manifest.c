/* manifest: writes and parses manifest.json:
 *
 *     {"format":"heddle-checkpoint","version":2,
 *     "job":"42","attempt":1,"step":100,"tokens_seen":1638400,
 *     "val_loss":1.8125,
 *     "lowest_val_loss":1.8125,
 *     "layout":{...},"determinism":{...},"counters":{...},"config":"...",
 *     "shards":[
 *     {"file":"rank-00000.safetensors","size_bytes":1320,"xxh64":"0123456789abcdef",
 *      "blocks":"..."}],
 *     "entries":[
 *     {"label":"w@0:2/4,0:8/8","dtype":"F32","shape":[4,8],"shard":0,"offset_bytes":128,
 *      "size_bytes":64}],
 *     "self_xxh64":"0123456789abcdef"}
 *
 * (Each entry is one line in the file.) "blocks" of a shard: the XXH64 of each of its blocks, 16
 * digits each: first of its head in blocks of 64 bytes, then of each entry in blocks of 1 MiB.
 * "xxh64" is the hash of these hashes. Version 1 has no "blocks", and its "xxh64" is the hash of
 * the whole file.
 *
 * The two losses are written only if they are known, each on its own line; hd_ckpt_summarize
 * searches for the line of val_loss.
 *
 * The last line has the XXH64 of all bytes before it, in every version. The hash is checked before
 * the version, so that damage is not reported as another version. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "checkpoint/checkpoint_internal.h"

#define FORMAT          "heddle-checkpoint"
#define LAST_LINE_BEGIN "\n\"self_xxh64\":\""
#define LAST_LINE_END   "\"}\n"

enum {
    LAST_LINE_BYTES = sizeof LAST_LINE_BEGIN - 1 + HD_HASH_TEXT_MAX - 1 + sizeof LAST_LINE_END - 1,
    FACTS_MAX = 4096, /* members of layout, determinism and counters */
    VERSION_WITHOUT_BLOCKS = 1,
};

/* ---- writing ---- */

static enum hd_status check_text(const char *what, const char *text)
{
    if (!text || !hd_text_is_utf8(text, strlen(text)))
        return hd_err(HD_INVALID, "the manifest's %s is not UTF-8", what);
    return HD_OK;
}

static enum hd_status check_facts(const char *what, const struct hd_ckpt_fact *facts, size_t count)
{
    enum hd_status st = HD_OK;

    if (count > FACTS_MAX)
        return hd_err(HD_LIMIT, "the manifest's %s has %zu members; at most %d are allowed", what,
                      count, FACTS_MAX);
    for (size_t i = 0; !st && i < count; i++) {
        st = check_text(what, facts[i].name);
        if (!st)
            st = check_text(what, facts[i].value);
    }
    return st;
}

static enum hd_status check_manifest(const struct hd_ckpt_manifest *m)
{
    enum hd_status st;

    if ((m->has_val_loss && !isfinite(m->val_loss)) ||
        (m->has_lowest_val_loss && !isfinite(m->lowest_val_loss)))
        return hd_err(HD_INVALID, "the manifest's validation loss is not finite");
    if (m->attempt < 0 || m->step < 0 || m->tokens_seen < 0)
        return hd_err(HD_INVALID, "the manifest's attempt, step or tokens_seen is negative");
    if (m->counter_count > FACTS_MAX)
        return hd_err(HD_LIMIT, "%zu counters; at most %d are allowed", m->counter_count,
                      FACTS_MAX);
    st = check_text("job", m->job);
    if (!st)
        st = check_text("config", m->config);
    if (!st)
        st = check_facts("layout", m->layout, m->layout_count);
    if (!st)
        st = check_facts("determinism", m->determinism, m->determinism_count);
    for (size_t i = 0; !st && i < m->counter_count; i++)
        st = check_text("counters", m->counters[i].name);
    return st;
}

static void add_facts(struct hd_json_writer *w, const char *key, const struct hd_ckpt_fact *facts,
                      size_t count)
{
    hd_json_add_line(w);
    hd_json_begin(w, key, '{');
    for (size_t i = 0; i < count; i++)
        hd_json_add_string(w, facts[i].name, facts[i].value);
    hd_json_end(w, '}');
}

static void add_loss(struct hd_json_writer *w, const char *key, bool known, double loss)
{
    if (!known)
        return;
    hd_json_add_line(w);
    hd_json_add_real(w, key, loss);
}

static void add_head(struct hd_json_writer *w, const struct hd_ckpt_manifest *m)
{
    hd_json_add_line(w);
    hd_json_add_string(w, "job", m->job);
    hd_json_add_int64(w, "attempt", m->attempt);
    hd_json_add_int64(w, "step", m->step);
    hd_json_add_int64(w, "tokens_seen", m->tokens_seen);
    add_loss(w, HD_CKPT_VAL_LOSS, m->has_val_loss, m->val_loss);
    add_loss(w, "lowest_val_loss", m->has_lowest_val_loss, m->lowest_val_loss);
    add_facts(w, "layout", m->layout, m->layout_count);
    add_facts(w, "determinism", m->determinism, m->determinism_count);
    hd_json_add_line(w);
    hd_json_begin(w, "counters", '{');
    for (size_t i = 0; i < m->counter_count; i++)
        hd_json_add_int64(w, m->counters[i].name, m->counters[i].value);
    hd_json_end(w, '}');
    hd_json_add_line(w);
    hd_json_add_string(w, "config", m->config);
}

static void add_blocks(struct hd_json_writer *w, const struct hd_ckpt_hash_list *list)
{
    char *text = hd_ckpt_format_hashes(list->hashes, list->count);

    hd_json_add_line(w);
    if (text)
        hd_json_add_string(w, "blocks", text);
    else
        w->out->failed = true;
    free(text);
}

static void add_shards(struct hd_json_writer *w, const struct hd_ckpt_manifest *m,
                       const struct hd_ckpt_hash_list *lists)
{
    char hash[HD_HASH_TEXT_MAX];

    hd_json_add_line(w);
    hd_json_begin(w, "shards", '[');
    for (size_t i = 0; i < m->shard_count; i++) {
        hd_hash_format(m->shards[i].hash, hash);
        hd_json_add_line(w);
        hd_json_begin(w, NULL, '{');
        hd_json_add_string(w, "file", m->shards[i].file);
        hd_json_add_int64(w, "size_bytes", m->shards[i].size_bytes);
        hd_json_add_string(w, "xxh64", hash);
        if (lists)
            add_blocks(w, &lists[i]);
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
}

static void write_entry(struct hd_json_writer *w, const struct hd_ckpt_stored *stored,
                        struct hd_text *label)
{
    const struct hd_ckpt_entry *entry = &stored->entry;
    char dtype[16];

    hd_text_clear(label);
    hd_ckpt_add_label(label, entry);
    if (label->failed)
        return;
    hd_json_add_line(w);
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "label", label->data);
    hd_json_add_string(w, "dtype", hd_ckpt_dtype_name(entry->dtype, dtype));
    hd_json_begin(w, "shape", '[');
    for (int d = 0; d < entry->dim_count; d++)
        hd_json_add_int64(w, NULL, entry->shape[d]);
    hd_json_end(w, ']');
    hd_json_add_int64(w, "shard", stored->shard);
    hd_json_add_int64(w, "offset_bytes", stored->offset_bytes);
    hd_json_add_int64(w, "size_bytes", hd_ckpt_entry_bytes(entry));
    hd_json_end(w, '}');
}

void hd_ckpt_begin_sealed(struct hd_json_writer *w, const char *format, int version)
{
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "format", format);
    hd_json_add_int64(w, "version", version);
}

enum hd_status hd_ckpt_seal(struct hd_text *text)
{
    char hash[HD_HASH_TEXT_MAX] = "";

    if (!text->failed)
        hd_hash_format(hd_hash_bytes(text->data, text->len_bytes), hash);
    hd_text_add(text, LAST_LINE_BEGIN "%s" LAST_LINE_END, hash);
    return text->failed ? hd_err(HD_NO_MEMORY, "no memory for a file of hashes") : HD_OK;
}

enum hd_status hd_ckpt_write_manifest(const struct hd_ckpt_manifest *manifest,
                                      const struct hd_ckpt_hash_list *lists,
                                      const struct hd_ckpt_stored *stored, size_t count,
                                      struct hd_text *ret_text)
{
    struct hd_json_writer w = {.out = ret_text};
    struct hd_text label = {0};
    enum hd_status st = check_manifest(manifest);

    if (st)
        return st;
    hd_ckpt_begin_sealed(&w, FORMAT, lists ? HD_CKPT_FORMAT_VERSION : VERSION_WITHOUT_BLOCKS);
    add_head(&w, manifest);
    add_shards(&w, manifest, lists);
    hd_json_add_line(&w);
    hd_json_begin(&w, "entries", '[');
    for (size_t i = 0; i < count; i++)
        write_entry(&w, &stored[i], &label);
    hd_json_end(&w, ']');
    hd_text_add(ret_text, ",");
    ret_text->failed = ret_text->failed || label.failed;
    if (hd_ckpt_seal(ret_text))
        st = hd_err(HD_NO_MEMORY, "no memory for the manifest of %zu entries", count);
    else if (ret_text->len_bytes > HD_CKPT_MANIFEST_BYTES_MAX)
        st = hd_err(HD_LIMIT, "the manifest of %zu entries is larger than %d bytes", count,
                    HD_CKPT_MANIFEST_BYTES_MAX);
    hd_text_free(&label);
    return st;
}

/* ---- reading ---- */

static enum hd_status check_seal(const char *text, size_t text_bytes)
{
    const size_t begin = sizeof LAST_LINE_BEGIN - 1, end = sizeof LAST_LINE_END - 1;
    char digits[HD_HASH_TEXT_MAX] = "";
    const char *line;
    uint64_t hash;

    if (text_bytes < LAST_LINE_BYTES)
        return hd_err(HD_CORRUPT, "it is truncated");
    line = text + text_bytes - LAST_LINE_BYTES;
    memcpy(digits, line + begin, sizeof digits - 1);
    if (memcmp(line, LAST_LINE_BEGIN, begin) != 0 || !hd_hash_parse(digits, &hash) ||
        memcmp(text + text_bytes - end, LAST_LINE_END, end) != 0)
        return hd_err(HD_CORRUPT, "its last line, with the hash, is truncated or damaged");
    if (hash != hd_hash_bytes(text, text_bytes - LAST_LINE_BYTES))
        return hd_err(HD_CORRUPT, "it is damaged: its bytes do not have the hash in its last line");
    return HD_OK;
}

enum hd_status hd_ckpt_parse_sealed(struct hd_arena *arena, const char *text, size_t text_bytes,
                                    const char *format, int64_t version_max,
                                    const struct hd_json **ret_root, int64_t *ret_version)
{
    const struct hd_json_limits limits = {.values_max = text_bytes / 2 + 1, .depth_max = 6};
    const char *is = NULL;
    enum hd_status st = check_seal(text, text_bytes);

    if (!st)
        st = hd_json_parse(arena, text, text_bytes, &limits, ret_root);
    if (!st)
        st = hd_json_need_string(*ret_root, "format", &is);
    if (!st && strcmp(is, format) != 0)
        st = hd_err(HD_INVALID, "'format' is not %s", format);
    if (!st)
        st = hd_json_need_int64(*ret_root, "version", 0, INT64_MAX, ret_version);
    if (!st && (*ret_version < 1 || *ret_version > version_max))
        st = hd_err(HD_UNSUPPORTED,
                    "it has format version %" PRId64 ", this build reads versions 1 to %" PRId64,
                    *ret_version, version_max);
    return st;
}

static enum hd_status copy_string(struct hd_arena *arena, const struct hd_json *root,
                                  const char *key, const char **ret_text)
{
    const char *text = NULL;
    enum hd_status st = hd_json_need_string(root, key, &text);

    if (st)
        return st;
    *ret_text = hd_arena_strdup(arena, text);
    return *ret_text ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for '%s'", key);
}

static enum hd_status parse_facts(struct hd_arena *arena, const struct hd_json *root,
                                  const char *key, const struct hd_ckpt_fact **ret_facts,
                                  size_t *ret_count)
{
    const struct hd_json *object = NULL;
    struct hd_ckpt_fact *facts;
    enum hd_status st = hd_json_need(root, key, HD_JSON_OBJECT, &object);
    size_t n = 0;

    if (!st && object->count > FACTS_MAX)
        st = hd_err(HD_LIMIT, "'%s' has more than %d members", key, FACTS_MAX);
    if (st)
        return st;
    facts = hd_arena_array(arena, object->count, sizeof *facts);
    for (const struct hd_json *m = object->first; facts && m; m = m->next) {
        if (m->kind != HD_JSON_STRING)
            return hd_err(HD_INVALID, "'%s.%.100s' is not a string", key, m->key);
        facts[n].name = hd_arena_strdup(arena, m->key);
        facts[n++].value = hd_arena_strdup(arena, m->text);
    }
    if (hd_arena_failed(arena))
        return hd_err(HD_NO_MEMORY, "no memory for '%s'", key);
    *ret_facts = facts;
    *ret_count = n;
    return HD_OK;
}

static enum hd_status parse_counters(struct hd_arena *arena, const struct hd_json *root,
                                     struct hd_ckpt_manifest *ret_manifest)
{
    const struct hd_json *object = NULL;
    struct hd_ckpt_counter *counters;
    enum hd_status st = hd_json_need(root, "counters", HD_JSON_OBJECT, &object);
    size_t n = 0;

    if (!st && object->count > FACTS_MAX)
        st = hd_err(HD_LIMIT, "'counters' has more than %d members", FACTS_MAX);
    if (st)
        return st;
    counters = hd_arena_array(arena, object->count, sizeof *counters);
    for (const struct hd_json *m = object->first; counters && m; m = m->next) {
        st = hd_json_to_int64(m, INT64_MIN, INT64_MAX, &counters[n].value);
        if (st)
            return hd_err_prefix(st, "'counters.%.100s'", m->key);
        counters[n++].name = hd_arena_strdup(arena, m->key);
    }
    if (hd_arena_failed(arena))
        return hd_err(HD_NO_MEMORY, "no memory for 'counters'");
    ret_manifest->counters = counters;
    ret_manifest->counter_count = n;
    return HD_OK;
}

static enum hd_status parse_shard(const struct hd_json *value, struct hd_ckpt_shard *ret_shard)
{
    const char *file = NULL, *hash = NULL;
    enum hd_status st = hd_json_need_string(value, "file", &file);

    if (!st && !hd_ckpt_is_shard_name(file)) /* also refuses a path that leads out of the
                                                checkpoint's directory */
        st = hd_err(HD_INVALID, "'%.100s' is not a name of a shard", file);
    if (!st)
        st = hd_json_need_int64(value, "size_bytes", 8, INT64_MAX / 4, &ret_shard->size_bytes);
    if (!st)
        st = hd_json_need_string(value, "xxh64", &hash);
    if (!st && !hd_hash_parse(hash, &ret_shard->hash))
        st = hd_err(HD_INVALID, "'xxh64' is not 16 hexadecimal digits");
    if (!st)
        (void)snprintf(ret_shard->file, sizeof ret_shard->file, "%s", file);
    return st;
}

static enum hd_status parse_blocks(struct hd_arena *arena, const struct hd_json *value,
                                   const struct hd_ckpt_shard *shard,
                                   struct hd_ckpt_hash_list *ret_list)
{
    const char *text = NULL;
    enum hd_status st = hd_json_need_string(value, "blocks", &text);

    if (!st)
        st = hd_ckpt_parse_hashes(arena, text, ret_list);
    if (!st && hd_ckpt_hash_of_hashes(ret_list->hashes, ret_list->count) != shard->hash)
        st = hd_err(HD_INVALID, "'xxh64' is not the hash of 'blocks'");
    return st;
}

/* Parses the manifest's list of shards. has_blocks: the format version is 2 or later, so *ret_lists
 * is set to the block hashes of each shard; otherwise it is set to NULL. */
static enum hd_status parse_shards(struct hd_arena *arena, const struct hd_json *root,
                                   bool has_blocks, struct hd_ckpt_manifest *ret_manifest,
                                   struct hd_ckpt_hash_list **ret_lists)
{
    const struct hd_json *list = NULL;
    struct hd_ckpt_hash_list *lists = NULL;
    struct hd_ckpt_shard *shards;
    enum hd_status st = hd_json_need(root, "shards", HD_JSON_ARRAY, &list);
    size_t n = 0;

    if (!st && (list->count < 1 || list->count > HD_CKPT_SHARDS_MAX))
        st = hd_err(HD_INVALID, "%zu shards; 1 to %d are allowed", list->count, HD_CKPT_SHARDS_MAX);
    if (st)
        return st;
    shards = hd_arena_array(arena, list->count, sizeof *shards);
    if (has_blocks)
        lists = hd_arena_array(arena, list->count, sizeof *lists);
    if (hd_arena_failed(arena))
        return hd_err(HD_NO_MEMORY, "no memory for %zu shards", list->count);
    for (const struct hd_json *v = list->first; v; v = v->next, n++) {
        st = parse_shard(v, &shards[n]);
        if (!st && has_blocks)
            st = parse_blocks(arena, v, &shards[n], &lists[n]);
        if (st)
            return hd_err_prefix(st, "shard %zu", n);
    }
    *ret_lists = lists;
    ret_manifest->shards = shards;
    ret_manifest->shard_count = n;
    return HD_OK;
}

static enum hd_status parse_entry(struct hd_arena *arena, const struct hd_json *value,
                                  const struct hd_ckpt_manifest *manifest,
                                  struct hd_ckpt_stored *ret_stored)
{
    struct hd_ckpt_entry entry = {0}, from_label;
    const struct hd_json *shape = NULL;
    const char *label = NULL, *dtype = NULL;
    int64_t shard = 0, offset = 0, size = 0, elements;
    enum hd_status st = hd_json_need_string(value, "label", &label);

    if (!st)
        st = hd_json_need_string(value, "dtype", &dtype);
    if (!st && !hd_ckpt_parse_dtype(dtype, &entry.dtype))
        st = hd_err(HD_INVALID, "unknown dtype '%.16s'", dtype);
    if (!st)
        st = hd_json_need(value, "shape", HD_JSON_ARRAY, &shape);
    if (!st)
        st =
            hd_safetensors_shape(shape, HD_CKPT_DIMS_MAX, entry.shape, &entry.dim_count, &elements);
    from_label = entry;
    if (!st)
        st = hd_ckpt_parse_label(arena, label, &from_label);
    if (!st && (entry.dim_count != from_label.dim_count ||
                memcmp(entry.shape, from_label.shape, sizeof entry.shape) != 0))
        st = hd_err(HD_INVALID, "'%.300s' is not a piece of a tensor of its shape", label);
    if (!st)
        st = hd_json_need_int64(value, "shard", 0, (int64_t)manifest->shard_count - 1, &shard);
    if (!st)
        st = hd_json_need_int64(value, "offset_bytes", 8, INT64_MAX / 4, &offset);
    if (!st)
        st = hd_json_need_int64(value, "size_bytes", 1, INT64_MAX / 4, &size);
    if (!st && (size != hd_ckpt_entry_bytes(&from_label) ||
                offset > manifest->shards[shard].size_bytes - size))
        st = hd_err(HD_INVALID, "'%.300s': its bytes are not inside %s", label,
                    manifest->shards[shard].file);
    if (!st)
        *ret_stored = (struct hd_ckpt_stored){
            .entry = from_label, .offset_bytes = offset, .shard = (int32_t)shard};
    return st;
}

static enum hd_status parse_entries(struct hd_arena *arena, const struct hd_json *root,
                                    const struct hd_ckpt_manifest *manifest,
                                    struct hd_ckpt_stored **ret_stored, size_t *ret_count)
{
    const struct hd_json *list = NULL;
    struct hd_ckpt_stored *stored;
    enum hd_status st = hd_json_need(root, "entries", HD_JSON_ARRAY, &list);
    size_t n = 0;

    if (!st && (list->count < 1 || list->count > HD_CKPT_ENTRIES_MAX))
        st = hd_err(HD_INVALID, "%zu entries; 1 to %d are allowed", list->count,
                    HD_CKPT_ENTRIES_MAX);
    if (st)
        return st;
    stored = hd_arena_array(arena, list->count, sizeof *stored);
    if (!stored)
        return hd_err(HD_NO_MEMORY, "no memory for %zu entries", list->count);
    for (const struct hd_json *v = list->first; v; v = v->next, n++) {
        st = parse_entry(arena, v, manifest, &stored[n]);
        if (st)
            return hd_err_prefix(st, "entry %zu", n);
    }
    *ret_stored = stored;
    *ret_count = n;
    return HD_OK;
}

/* Parses the loss under `key` of the manifest; sets *ret_known to false if it is absent, as in
 * manifests of older builds and of runs without validation. */
static enum hd_status parse_loss(const struct hd_json *root, const char *key, bool *ret_known,
                                 double *ret_loss)
{
    const struct hd_json *member = hd_json_member(root, key);

    *ret_known = member != NULL;
    if (!member)
        return HD_OK;
    *ret_loss = member->kind == HD_JSON_NUMBER ? strtod(member->text, NULL) : NAN;
    return isfinite(*ret_loss) ? HD_OK : hd_err(HD_INVALID, "'%s' is no number", key);
}

static enum hd_status parse_head(struct hd_arena *arena, const struct hd_json *root,
                                 struct hd_ckpt_manifest *m)
{
    int64_t attempt = 0;
    enum hd_status st = copy_string(arena, root, "job", &m->job);

    if (!st)
        st = hd_json_need_int64(root, "attempt", 0, INT32_MAX, &attempt);
    m->attempt = (int)attempt;
    if (!st)
        st = hd_json_need_int64(root, "step", 0, INT64_MAX, &m->step);
    if (!st)
        st = hd_json_need_int64(root, "tokens_seen", 0, INT64_MAX, &m->tokens_seen);
    if (!st)
        st = parse_loss(root, HD_CKPT_VAL_LOSS, &m->has_val_loss, &m->val_loss);
    if (!st)
        st = parse_loss(root, "lowest_val_loss", &m->has_lowest_val_loss, &m->lowest_val_loss);
    if (!st)
        st = copy_string(arena, root, "config", &m->config);
    if (!st)
        st = parse_facts(arena, root, "layout", &m->layout, &m->layout_count);
    if (!st)
        st = parse_facts(arena, root, "determinism", &m->determinism, &m->determinism_count);
    if (!st)
        st = parse_counters(arena, root, m);
    return st;
}

enum hd_status hd_ckpt_parse_manifest(struct hd_arena *arena, struct hd_arena *scratch,
                                      const char *text, size_t text_bytes,
                                      struct hd_ckpt_manifest *ret_manifest,
                                      struct hd_ckpt_hash_list **ret_lists,
                                      struct hd_ckpt_stored **ret_stored, size_t *ret_count)
{
    struct hd_ckpt_manifest manifest = {0};
    const struct hd_json *root = NULL;
    int64_t version = 0;
    enum hd_status st = hd_ckpt_parse_sealed(scratch, text, text_bytes, FORMAT,
                                             HD_CKPT_FORMAT_VERSION, &root, &version);

    if (!st)
        st = parse_head(arena, root, &manifest);
    if (!st)
        st = parse_shards(arena, root, version > VERSION_WITHOUT_BLOCKS, &manifest, ret_lists);
    if (!st)
        st = parse_entries(arena, root, &manifest, ret_stored, ret_count);
    if (!st)
        *ret_manifest = manifest;
    return st == HD_INVALID || st == HD_LIMIT ? HD_CORRUPT : st;
}
