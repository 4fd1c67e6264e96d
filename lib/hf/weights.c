/* weights: maps and checks a set of safetensors files. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/folder.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/order.h"
#include "hf/hf_internal.h"

enum {
    VALUES_MAX = 8 * HD_CKPT_ENTRIES_MAX, /* JSON values of an index */
    INDEX_DEPTH_MAX = 8,
    IDENTITY_BYTES = 4096 /* bytes at each end of a tensor's data that hd_weights_identity hashes */
};

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE  "model.safetensors.index.json"

struct mapped {
    const char *name;
    void *bytes; /* mapped contents of the file; NULL: not mapped */
    int64_t size_bytes;
};

struct hd_weights {
    struct hd_arena arena;
    const char *dir;
    struct mapped *files;
    size_t file_count;
    struct hd_weight *tensors; /* [tensor_count] the tensors of all files, sorted by name */
    size_t tensor_count;
};

enum hd_status hd_weights_parse(struct hd_arena *arena, const void *bytes, int64_t size_bytes,
                                struct hd_weight **ret_weights, size_t *ret_count)
{
    const char *json = (const char *)bytes + 8;
    size_t length = 0;
    enum hd_status st;

    if (size_bytes < 8)
        return hd_err(HD_INVALID, "%" PRId64 " bytes are not a safetensors file", size_bytes);
    st = hd_safetensors_length(bytes, size_bytes, &length);
    if (st)
        return hd_err(st, "%s: it was cut off, or is no safetensors file%s", hd_err_message(),
                      hd_json_explain_foreign(bytes, (size_t)size_bytes));
    st = hd_safetensors_parse(arena, json, length, size_bytes - 8 - (int64_t)length,
                              HD_WEIGHTS_NAME_MAX, ret_weights, ret_count);
    for (size_t i = 0; !st && i < *ret_count; i++)
        (*ret_weights)[i].data = json + length + (*ret_weights)[i].offset_bytes;
    return st;
}

/* ---- files ---- */

static enum hd_status map_file(const char *dir, struct mapped *file)
{
    int fd = -1;
    enum hd_status st = hd_ckpt_open_file(dir, file->name, &fd, &file->size_bytes);

    if (st)
        return st;
    if (file->size_bytes > 0) {
        file->bytes = mmap(NULL, (size_t)file->size_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (file->bytes == MAP_FAILED) {
            file->bytes = NULL;
            st = hd_err(HD_IO, "cannot map %s/%s: %s", dir, file->name, strerror(errno));
        }
    }
    (void)close(fd);
    return st;
}

static enum hd_status open_file(struct hd_weights *w, struct mapped *file,
                                struct hd_weight **ret_list, size_t *ret_count)
{
    enum hd_status st = map_file(w->dir, file);

    if (st)
        return st;
    st = hd_weights_parse(&w->arena, file->bytes, file->size_bytes, ret_list, ret_count);
    if (st)
        return hd_err_prefix(st == HD_NO_MEMORY ? st : HD_CORRUPT, "%s/%s", w->dir, file->name);
    for (size_t i = 0; i < *ret_count; i++) {
        (*ret_list)[i].file = file->name;
        (*ret_list)[i].offset_bytes = (const char *)(*ret_list)[i].data - (const char *)file->bytes;
    }
    return HD_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct hd_weight *)a)->name, ((const struct hd_weight *)b)->name);
}

/* Maps every file and makes one list of tensors, sorted by name. */
static enum hd_status open_files(struct hd_weights *w)
{
    struct hd_weight **lists =
        hd_arena_array(&w->arena, w->file_count + 1, sizeof(struct hd_weight *));
    size_t *counts = hd_arena_array(&w->arena, w->file_count + 1, sizeof *counts), total = 0;
    enum hd_status st =
        lists && counts ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for the list of tensors");

    for (size_t i = 0; !st && i < w->file_count; i++) {
        st = open_file(w, &w->files[i], &lists[i], &counts[i]);
        total += counts[i];
    }
    if (st)
        return st;
    w->tensors = hd_arena_array(&w->arena, total + 1, sizeof *w->tensors);
    if (!w->tensors)
        return hd_err(HD_NO_MEMORY, "no memory for the list of tensors");
    for (size_t i = 0; i < w->file_count; i++) {
        if (counts[i])
            memcpy(w->tensors + w->tensor_count, lists[i], counts[i] * sizeof **lists);
        w->tensor_count += counts[i];
    }
    if (total)
        qsort(w->tensors, total, sizeof *w->tensors, by_name);
    for (size_t i = 1; i < total; i++)
        if (strcmp(w->tensors[i].name, w->tensors[i - 1].name) == 0)
            return hd_err(HD_CORRUPT, "%s: tensor %s is both in %s and in %s", w->dir,
                          w->tensors[i].name, w->tensors[i - 1].file, w->tensors[i].file);
    return HD_OK;
}

/* ---- the index ---- */

/* Returns whether a name in the index is a plain file name, without a path. */
static bool is_file_name(const char *name)
{
    static const char end[] = ".safetensors";
    const size_t n = strnlen(name, HD_WEIGHTS_NAME_MAX);

    return hd_safetensors_is_name(name, HD_WEIGHTS_NAME_MAX) && name[0] != '.' &&
           !strchr(name, '/') && n > sizeof end - 1 &&
           strcmp(name + n - (sizeof end - 1), end) == 0;
}

/* Lists the distinct files of the index's map {tensor: file}. */
static enum hd_status list_files(struct hd_arena *arena, const struct hd_json *map,
                                 const char ***ret_names, size_t *ret_count)
{
    const char **names = hd_arena_array(arena, map->count + 1, sizeof(char *));
    size_t n = 0, distinct = 0;

    if (!names)
        return hd_err(HD_NO_MEMORY, "no memory for the list of tensors");
    for (const struct hd_json *v = map->first; v; v = v->next) {
        if (v->kind != HD_JSON_STRING || !is_file_name(v->text))
            return hd_err(HD_INVALID,
                          "weight_map: entry %zu does not name a .safetensors file of this folder",
                          n + 1);
        names[n++] = v->text;
    }
    if (n)
        qsort(names, n, sizeof *names, hd_order_texts);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(names[i], names[i - 1]) != 0)
            names[distinct++] = names[i];
    if (distinct == 0 || distinct > HD_WEIGHTS_FILES_MAX)
        return hd_err(HD_INVALID, "weight_map: names %zu files; 1 to %d are allowed", distinct,
                      HD_WEIGHTS_FILES_MAX);
    *ret_names = names;
    *ret_count = distinct;
    return HD_OK;
}

enum hd_status hd_hf_parse_index(struct hd_arena *arena, const char *text, size_t text_bytes,
                                 const struct hd_json **ret_map, const char ***ret_names,
                                 size_t *ret_count)
{
    const struct hd_json_limits limits = {.values_max = VALUES_MAX, .depth_max = INDEX_DEPTH_MAX};
    const struct hd_json *root = NULL;
    enum hd_status st = hd_json_parse_repeated(arena, text, text_bytes, &limits, &root);

    if (!st)
        st = hd_json_need(root, "weight_map", HD_JSON_OBJECT, ret_map);
    return st ? st : list_files(arena, *ret_map, ret_names, ret_count);
}

/* Compares the index with the files. HD_CORRUPT: they differ. An index may list an output head that
 * no file has because it is tied, or constants that later versions do not save; names.c decides
 * whether the model needs a head. */
static enum hd_status check_index(const struct hd_weights *w, const struct hd_json *map)
{
    size_t found = 0;

    for (const struct hd_json *v = map->first; v; v = v->next) {
        const struct hd_weight *t =
            hd_safetensors_is_name(v->key, HD_WEIGHTS_NAME_MAX) ? hd_weights_find(w, v->key) : NULL;

        found += t != NULL;
        if ((!t && !hd_hf_may_be_absent(v->key)) || (t && strcmp(t->file, v->text) != 0))
            return hd_err(HD_CORRUPT, "weight_map: there is no tensor %s in %s",
                          hd_safetensors_is_name(v->key, HD_WEIGHTS_NAME_MAX) ? v->key
                                                                              : "of that name",
                          v->text);
    }
    /* the index lacks a tensor of the files, since names are unique in both */
    if (found != w->tensor_count)
        return hd_err(HD_CORRUPT, "weight_map: it names %zu tensors, the files have %zu", found,
                      w->tensor_count);
    return HD_OK;
}

static enum hd_status open_index(struct hd_weights *w)
{
    const struct hd_json *map = NULL;
    const char **names = NULL;
    struct hd_text text = {0};
    enum hd_status st = hd_folder_read(w->dir, INDEX_FILE, HD_HF_INDEX_BYTES_MAX, &text);

    if (!st)
        st = hd_hf_parse_index(&w->arena, text.data, text.len_bytes, &map, &names, &w->file_count);
    if (!st) {
        w->files = hd_arena_array(&w->arena, w->file_count, sizeof *w->files);
        st = w->files ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for the list of tensors");
    }
    for (size_t i = 0; !st && i < w->file_count; i++)
        w->files[i].name = names[i];
    if (st) /* no file is mapped yet */
        w->file_count = 0;
    if (st == HD_INVALID || st == HD_LIMIT)
        st = HD_CORRUPT;
    if (st)
        st = hd_err_prefix(st, "%s/%s", w->dir, INDEX_FILE);
    if (!st) {
        st = open_files(w);
        st = st == HD_NOT_FOUND ? hd_err(st,
                                         "%s; %s names it: fetch it, too, or all files of the "
                                         "model again",
                                         hd_err_message(), INDEX_FILE)
                                : st;
    }
    if (!st) {
        st = check_index(w, map);
        if (st)
            st = hd_err_prefix(st, "%s/%s", w->dir, INDEX_FILE);
    }
    hd_text_free(&text);
    return st;
}

/* ---- opening ---- */

static enum hd_status open_single(struct hd_weights *w, const char *file)
{
    w->files = hd_arena_array(&w->arena, 1, sizeof *w->files);
    if (!w->files)
        return hd_err(HD_NO_MEMORY, "no memory for the list of tensors");
    w->files[0].name = file;
    w->file_count = 1;
    return open_files(w);
}

static enum hd_status open_dir(struct hd_weights *w)
{
    if (hd_folder_has(w->dir, SINGLE_FILE)) /* a single file comes first, as in transformers */
        return open_single(w, SINGLE_FILE);
    if (hd_folder_has(w->dir, INDEX_FILE))
        return open_index(w);
    if (!hd_file_exists(w->dir))
        return hd_err(HD_NOT_FOUND, "there is no folder %s", w->dir);
    return hd_err(HD_NOT_FOUND, "%s has neither %s nor %s; %s", w->dir, SINGLE_FILE, INDEX_FILE,
                  hd_folder_has(w->dir, "pytorch_model.bin") ||
                          hd_folder_has(w->dir, "pytorch_model.bin.index.json")
                      ? "save the model with safe_serialization=True"
                      : "fetch the model's .safetensors files");
}

static enum hd_status new_weights(const char *dir, size_t dir_bytes,
                                  struct hd_weights **ret_weights)
{
    struct hd_weights *w = calloc(1, sizeof *w);

    if (!w)
        return hd_err(HD_NO_MEMORY, "no memory for the list of tensors");
    hd_arena_init(&w->arena, 0);
    w->dir = hd_arena_printf(&w->arena, "%.*s", (int)dir_bytes, dir);
    if (!w->dir) {
        hd_weights_close(w);
        return hd_err(HD_NO_MEMORY, "no memory for the list of tensors");
    }
    *ret_weights = w;
    return HD_OK;
}

enum hd_status hd_weights_open(const char *dir, struct hd_weights **ret_weights)
{
    struct hd_weights *w = NULL;
    enum hd_status st = new_weights(dir, strlen(dir), &w);

    if (!st)
        st = open_dir(w);
    if (st)
        hd_weights_close(w);
    else
        *ret_weights = w;
    return st;
}

enum hd_status hd_weights_open_file(const char *path, struct hd_weights **ret_weights)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    struct hd_weights *w = NULL;
    enum hd_status st = slash ? new_weights(path, slash == path ? 1 : (size_t)(slash - path), &w)
                              : new_weights(".", 1, &w);

    if (!st) {
        const char *copy = hd_arena_strdup(&w->arena, name);

        st =
            copy ? open_single(w, copy) : hd_err(HD_NO_MEMORY, "no memory for the list of tensors");
    }
    if (st)
        hd_weights_close(w);
    else
        *ret_weights = w;
    return st;
}

void hd_weights_close(struct hd_weights *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->file_count; i++)
        if (w->files[i].bytes)
            (void)munmap(w->files[i].bytes, (size_t)w->files[i].size_bytes);
    hd_arena_done(&w->arena);
    free(w);
}

/* ---- access ---- */

size_t hd_weights_count(const struct hd_weights *w)
{
    return w->tensor_count;
}

const struct hd_weight *hd_weights_at(const struct hd_weights *w, size_t index)
{
    return &w->tensors[index];
}

const struct hd_weight *hd_weights_find(const struct hd_weights *w, const char *name)
{
    const struct hd_weight key = {.name = name};

    return w->tensor_count ? bsearch(&key, w->tensors, w->tensor_count, sizeof *w->tensors, by_name)
                           : NULL;
}

/* Tells the kernel how the files are read next. */
static void advise(const struct hd_weights *w, int advice)
{
    for (size_t i = 0; i < w->file_count; i++)
        if (w->files[i].bytes) /* best effort: it is a matter of time alone */
            (void)madvise(w->files[i].bytes, (size_t)w->files[i].size_bytes, advice);
}

uint64_t hd_weights_identity(const struct hd_weights *w)
{
    struct hd_hash hash;

    hd_hash_begin(&hash);
    /* two pages of each tensor: reading ahead, up to 8 MiB each time, would read most of the file */
    advise(w, MADV_RANDOM);
    for (size_t i = 0; i < w->tensor_count; i++) {
        const struct hd_weight *t = &w->tensors[i];
        const int64_t edge = t->size_bytes < IDENTITY_BYTES ? t->size_bytes : IDENTITY_BYTES;
        const int32_t dims = t->dim_count;

        hd_hash_add(&hash, t->name, strlen(t->name) + 1);
        hd_hash_add(&hash, t->form, strlen(t->form) + 1);
        hd_hash_add(&hash, &dims, sizeof dims);
        hd_hash_add(&hash, t->shape, (size_t)t->dim_count * sizeof *t->shape);
        hd_hash_add(&hash, t->data, (size_t)edge);
        hd_hash_add(&hash, (const char *)t->data + t->size_bytes - edge, (size_t)edge);
    }
    advise(w, MADV_NORMAL);
    return hd_hash_value(&hash);
}

bool hd_source_is_checkpoint(const char *dir)
{
    return hd_folder_has(dir, HD_CKPT_MANIFEST_FILE);
}

enum hd_status hd_source_identity(const char *dir, uint64_t *ret_identity)
{
    struct hd_weights *weights = NULL;
    struct hd_ckpt *ckpt = NULL;
    enum hd_status st;

    if (hd_source_is_checkpoint(dir)) {
        st = hd_ckpt_open(dir, &ckpt);
        if (!st)
            *ret_identity = hd_ckpt_hash(ckpt);
        hd_ckpt_close(ckpt);
        return st;
    }
    st = hd_weights_open(dir, &weights);
    if (!st)
        *ret_identity = hd_weights_identity(weights);
    hd_weights_close(weights);
    return st;
}
