/* hashes: heddle-hashes.json, the block hashes of an exported model directory.
 *
 *     {"format":"heddle-hashes","version":1,"files":[
 *     {"file":"config.json","regions":[
 *     {"kind":"file","name":"","size_bytes":612,"block_bytes":1048576,"blocks":"01234567.."}]},
 *     {"file":"model.safetensors","regions":[
 *     {"kind":"header","name":"","size_bytes":1320,"block_bytes":64,"blocks":"..."},
 *     {"kind":"tensor","name":"model.norm.weight","size_bytes":256,"block_bytes":1048576,
 *      "blocks":"..."}]}],
 *     "self_xxh64":"0123456789abcdef"}
 *
 * blocks: the XXH64 of each block of the region, 16 digits each. Other readers of model directories
 * ignore this file.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fields.h"
#include "base/file.h"
#include "base/folder.h"
#include "hf/hf_internal.h"

#define FORMAT "heddle-hashes"

enum { FILES_MAX = 2 * HD_WEIGHTS_FILES_MAX, VERSION = 1 };

struct listed_region {
    const char *kind, *name, *blocks;
    int64_t size_bytes, block_bytes;
};
static const struct hd_json_field region_fields[] = {
    HD_JSON_FIELD("kind", TEXT, struct listed_region, kind),
    HD_JSON_FIELD("name", TEXT, struct listed_region, name),
    HD_JSON_FIELD("size_bytes", INT, struct listed_region, size_bytes, .min = 1,
                  .max = INT64_MAX / 4),
    HD_JSON_FIELD("block_bytes", INT, struct listed_region, block_bytes, .min = 1,
                  .max = HD_CKPT_BLOCK_BYTES),
    HD_JSON_FIELD("blocks", TEXT, struct listed_region, blocks),
};

/* ---- writing ---- */

void hd_hf_hashes_begin(struct hd_hf_hashes *h)
{
    *h = (struct hd_hf_hashes){.writer = {.out = &h->text}};
    hd_ckpt_begin_sealed(&h->writer, FORMAT, VERSION);
    hd_json_begin(&h->writer, "files", '[');
}

static const char *kind_of(const struct hd_ckpt_region *region)
{
    if (!region->name)
        return "header";
    return region->name[0] ? "tensor" : "file";
}

void hd_hf_hashes_add(struct hd_hf_hashes *h, const char *file, const struct hd_ckpt_blocks *blocks)
{
    struct hd_json_writer *w = &h->writer;
    size_t at = 0;

    hd_json_add_line(w);
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "file", file);
    hd_json_begin(w, "regions", '[');
    for (size_t i = 0; i < blocks->region_count; i++) {
        const struct hd_ckpt_region *region = &blocks->regions[i];
        const size_t n = hd_ckpt_count_blocks(region, 1);
        char *hashes = hd_ckpt_format_hashes(blocks->hashes + at, n);

        hd_json_add_line(w);
        hd_json_begin(w, NULL, '{');
        hd_fields_write(w, region_fields, HD_JSON_FIELD_COUNT(region_fields),
                        &(struct listed_region){kind_of(region), region->name ? region->name : "",
                                                hashes ? hashes : "", region->size_bytes,
                                                region->block_bytes});
        hd_json_end(w, '}');
        h->text.failed = h->text.failed || !hashes;
        free(hashes);
        at += n;
    }
    hd_json_end(w, ']');
    hd_json_end(w, '}');
}

enum hd_status hd_hf_hashes_end(struct hd_hf_hashes *h)
{
    hd_json_end(&h->writer, ']');
    hd_text_add(&h->text, ",");
    return hd_ckpt_seal(&h->text);
}

/* ---- verifying ---- */

static enum hd_status parse_region(struct hd_arena *arena, const struct hd_json *value,
                                   struct hd_ckpt_region *ret_region,
                                   struct hd_ckpt_hash_list *ret_list)
{
    struct listed_region r;
    enum hd_status st =
        hd_fields_read(value, region_fields, HD_JSON_FIELD_COUNT(region_fields), NULL, &r);

    if (!st)
        st = hd_ckpt_parse_hashes(arena, r.blocks, ret_list);
    if (st)
        return st;
    *ret_region = (struct hd_ckpt_region){strcmp(r.kind, "header") == 0 ? NULL : r.name,
                                          r.size_bytes, r.block_bytes};
    return hd_ckpt_count_blocks(ret_region, 1) == ret_list->count
               ? HD_OK
               : hd_err(HD_INVALID, "%zu hashes of a region of %" PRId64 " bytes", ret_list->count,
                        r.size_bytes);
}

static enum hd_status parse_regions(struct hd_arena *arena, const struct hd_json *list,
                                    struct hd_hf_listed *ret_file)
{
    struct hd_ckpt_hash_list *lists = hd_arena_array(arena, list->count, sizeof *lists);
    enum hd_status st = HD_OK;
    size_t at = 0;

    ret_file->regions = hd_arena_array(arena, list->count, sizeof *ret_file->regions);
    if (hd_arena_failed(arena))
        return hd_err(HD_NO_MEMORY, "no memory for %zu regions", list->count);
    for (const struct hd_json *v = list->first; !st && v; v = v->next) {
        struct hd_ckpt_region *region = &ret_file->regions[ret_file->count];

        st = parse_region(arena, v, region, &lists[ret_file->count]);
        if (!st && region->size_bytes > INT64_MAX / 4 - ret_file->size_bytes)
            st = hd_err(HD_INVALID, "its regions are too large");
        if (st)
            return st;
        ret_file->size_bytes += region->size_bytes;
        ret_file->hash_count += lists[ret_file->count++].count;
    }
    ret_file->hashes = hd_arena_array(arena, ret_file->hash_count + 1, sizeof *ret_file->hashes);
    if (!ret_file->hashes)
        return hd_err(HD_NO_MEMORY, "no memory for %zu hashes", ret_file->hash_count);
    for (size_t i = 0; i < ret_file->count; i++) {
        memcpy(ret_file->hashes + at, lists[i].hashes, lists[i].count * sizeof *ret_file->hashes);
        at += lists[i].count;
    }
    return st;
}

/* Returns whether a listed name is a plain file name, or one in the folder of named templates, and
 * so no path out of the directory. */
static bool is_own_name(const char *name)
{
    const size_t n = sizeof HD_HF_TEMPLATES_DIR; /* length of the folder's name with its slash */

    if (strncmp(name, HD_HF_TEMPLATES_DIR "/", n) == 0)
        name += n;
    return *name && *name != '.' && !strchr(name, '/');
}

static enum hd_status parse_file(struct hd_arena *arena, const struct hd_json *value,
                                 struct hd_hf_listed *ret_file)
{
    const struct hd_json *list = NULL;
    enum hd_status st = hd_json_need_string(value, "file", &ret_file->file);

    if (!st && !is_own_name(ret_file->file))
        st = hd_err(HD_INVALID, "'%.100s' is not a plain file name", ret_file->file);
    if (!st)
        st = hd_json_need(value, "regions", HD_JSON_ARRAY, &list);
    return st ? st : parse_regions(arena, list, ret_file);
}

static enum hd_status check_file(const char *dir, const struct hd_hf_listed *file)
{
    int64_t size = 0;
    int fd = -1;
    enum hd_status st = hd_ckpt_open_file(dir, file->file, &fd, &size);

    if (st)
        return st == HD_NOT_FOUND ? HD_CORRUPT : st; /* a listed file is missing */
    if (size != file->size_bytes)
        st = hd_err(HD_CORRUPT, "%s/%s has %" PRId64 " bytes, not %" PRId64, dir, file->file, size,
                    file->size_bytes);
    if (!st)
        st = hd_ckpt_check_blocks(dir, file->file, fd, file->regions, file->count, file->hashes);
    (void)close(fd);
    return st;
}

static enum hd_status parse_list(struct hd_arena *arena, const char *text, size_t text_bytes,
                                 const struct hd_json **ret_files)
{
    const struct hd_json *root = NULL;
    int64_t version;
    enum hd_status st =
        hd_ckpt_parse_sealed(arena, text, text_bytes, FORMAT, VERSION, &root, &version);

    if (!st)
        st = hd_json_need(root, "files", HD_JSON_ARRAY, ret_files);
    if (!st && (*ret_files)->count > FILES_MAX)
        st = hd_err(HD_LIMIT, "it lists more than %d files", FILES_MAX);
    return st;
}

enum hd_status hd_hf_parse_hashes(struct hd_arena *arena, const char *text, size_t text_bytes,
                                  struct hd_hf_listed **ret_files, size_t *ret_count)
{
    const struct hd_json *list = NULL;
    struct hd_hf_listed *files;
    size_t n = 0;
    enum hd_status st = parse_list(arena, text, text_bytes, &list);

    if (st)
        return st == HD_INVALID || st == HD_LIMIT ? HD_CORRUPT : st;
    files = hd_arena_array(arena, list->count, sizeof *files);
    if (!files)
        return hd_err(HD_NO_MEMORY, "no memory for %zu files", list->count);
    for (const struct hd_json *v = list->first; !st && v; v = v->next)
        st = parse_file(arena, v, &files[n++]);
    *ret_files = files;
    *ret_count = n;
    return st == HD_INVALID || st == HD_LIMIT ? HD_CORRUPT : st;
}

bool hd_hf_has_hashes(const char *dir)
{
    return hd_folder_has(dir, HD_HF_HASHES_FILE);
}

static enum hd_status read_listed(const char *dir, struct hd_arena *arena,
                                  struct hd_hf_listed **ret_files, size_t *ret_count)
{
    struct hd_text text = {0};
    enum hd_status st = hd_folder_read(dir, HD_HF_HASHES_FILE, HD_CKPT_MANIFEST_BYTES_MAX, &text);

    if (st == HD_NOT_FOUND)
        st = hd_err(st,
                    "%s cannot be verified: it has no " HD_HF_HASHES_FILE
                    ", which heddle checkpoint export writes",
                    dir);
    if (!st) {
        st = hd_hf_parse_hashes(arena, text.data, text.len_bytes, ret_files, ret_count);
        if (st)
            (void)hd_err_prefix(st, "%s/" HD_HF_HASHES_FILE, dir);
    }
    hd_text_free(&text);
    return st;
}

enum hd_status hd_hf_verify(const char *dir)
{
    struct hd_hf_listed *files = NULL;
    struct hd_arena arena;
    size_t count = 0;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = read_listed(dir, &arena, &files, &count);
    for (size_t i = 0; !st && i < count; i++)
        st = check_file(dir, &files[i]);
    hd_arena_done(&arena);
    return st;
}

/* ---- files that an export may replace ---- */

static bool ends_with(const char *name, const char *tail)
{
    const size_t n = strlen(name), t = strlen(tail);

    return n >= t && strcmp(name + n - t, tail) == 0;
}

static bool is_of_export(const char *name, const struct hd_hf_listed *files, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, files[i].file) == 0)
            return true;
    return strcmp(name, HD_HF_HASHES_FILE) == 0 || strcmp(name, "config.json") == 0 ||
           ends_with(name, ".safetensors") || ends_with(name, ".safetensors.index.json");
}

/* Checks that a folder has only files of an export. below: the folder is that of named
 * templates. */
static enum hd_status check_entries(const char *dir, bool below, const struct hd_hf_listed *files,
                                    size_t count)
{
    const struct dirent *entry;
    enum hd_status st = HD_OK;
    DIR *d = opendir(dir);

    if (!d)
        return hd_err(HD_IO, "cannot read the folder %s: %s", dir, strerror(errno));
    while (!st && (entry = readdir(d))) {
        char name[sizeof HD_HF_TEMPLATES_DIR + sizeof entry->d_name];
        struct hd_text path = {0};

        (void)snprintf(name, sizeof name, "%s%s", below ? HD_HF_TEMPLATES_DIR "/" : "",
                       entry->d_name);
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            is_of_export(name, files, count))
            continue;
        hd_file_join(&path, dir, entry->d_name);
        if (!below && !path.failed && strcmp(name, HD_HF_TEMPLATES_DIR) == 0)
            st = check_entries(path.data, true, files, count);
        else
            st = hd_err(HD_EXISTS,
                        "%s has files that no export has written, such as %.200s; move them to "
                        "another place, or choose another folder",
                        dir, entry->d_name);
        hd_text_free(&path);
    }
    (void)closedir(d);
    return st;
}

enum hd_status hd_hf_check_own(const char *dir)
{
    struct hd_hf_listed *files = NULL;
    struct hd_arena arena;
    size_t count = 0;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    if (read_listed(dir, &arena, &files, &count))
        count = 0; /* no list, or a damaged one: only files that every model has are allowed */
    st = check_entries(dir, false, files, count);
    hd_arena_done(&arena);
    return st;
}
