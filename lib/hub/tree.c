/* tree: the files of a commit with their sizes and hashes, as the hub lists them and as
 * trees/COMMIT.json of the cache keeps them. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "hub_internal.h"

enum {
    JSON_DEPTH_MAX = 16,
    JSON_VALUES_MAX = 24 * HUB_FILES_MAX,
    FORMAT_VERSION = 1,
    FOLDER_DEPTH_MAX = 16
};

static const struct hd_json_limits limits = {.values_max = JSON_VALUES_MAX,
                                             .depth_max = JSON_DEPTH_MAX};

static int file_by_path(const void *a, const void *b)
{
    return strcmp(((const struct hd_hub_file *)a)->path, ((const struct hd_hub_file *)b)->path);
}

void hub_tree_sort(struct hub_tree *tree)
{
    if (tree->count)
        qsort(tree->files, (size_t)tree->count, sizeof tree->files[0], file_by_path);
}

const struct hd_hub_file *hub_tree_find(const struct hub_tree *tree, const char *path)
{
    const struct hd_hub_file wanted = {.path = path};

    return tree->count
               ? bsearch(&wanted, tree->files, (size_t)tree->count, sizeof wanted, file_by_path)
               : NULL;
}

enum hd_status hub_tree_add(struct hub_tree *tree, const struct hd_hub_file *file,
                            struct hd_arena *arena)
{
    struct hd_hub_file *files =
        hd_arena_grow(arena, tree->files, tree->count, &tree->room, sizeof *files);

    if (!files)
        return hd_err(HD_NO_MEMORY, "no memory for the list of files");
    if (tree->count == HUB_FILES_MAX)
        return hd_err(HD_LIMIT, "the repository has more than %d files", HUB_FILES_MAX);
    tree->files = files;
    tree->files[tree->count] = *file;
    tree->files[tree->count].path = hd_arena_strdup(arena, file->path);
    return tree->files[tree->count++].path ? HD_OK
                                           : hd_err(HD_NO_MEMORY, "no memory for a file's name");
}

/* Copies the text of a member that is a hash; leaves ret_hash empty if there is none. */
static enum hd_status copy_hash(const struct hd_json *object, const char *key,
                                char ret_hash[HD_HUB_HASH_MAX])
{
    const struct hd_json *member = hd_json_member(object, key);

    if (!member || member->kind == HD_JSON_NULL)
        return HD_OK;
    if (member->kind != HD_JSON_STRING || !hub_is_hash(member->text))
        return hd_err(HD_CORRUPT, "%s is no hash", key);
    memcpy(ret_hash, member->text, strlen(member->text) + 1);
    return HD_OK;
}

/* Reads an entry of the API: {type, path, size, oid, lfs: {oid, size}, xetHash}. */
static enum hd_status add_entry(struct hub_tree *tree, const struct hd_json *entry,
                                struct hd_arena *arena)
{
    struct hd_hub_file file = {.path = NULL};
    const struct hd_json *lfs = hd_json_member(entry, "lfs");
    const char *type, *path = NULL;
    enum hd_status st = hd_json_need_string(entry, "type", &type);

    if (!st && strcmp(type, "file") != 0)
        return HD_OK; /* a directory */
    if (!st)
        st = hd_json_need_string(entry, "path", &path);
    if (!st && !hub_path_is_safe(path))
        return hd_err(HD_CORRUPT, "it names a file whose path could lead out of its folder");
    if (!st)
        st = hd_json_need_int64(entry, "size", 0, INT64_MAX, &file.size_bytes);
    if (!st)
        st = copy_hash(entry, "oid", file.blob_id);
    if (!st && lfs && lfs->kind == HD_JSON_OBJECT) {
        st = copy_hash(lfs, "oid", file.sha256);
        if (!st)
            st = hd_json_need_int64(lfs, "size", 0, INT64_MAX, &file.size_bytes);
        if (!st && strlen(file.sha256) != 64)
            st = hd_err(HD_CORRUPT, "a large file has no SHA-256");
    }
    if (!st && copy_hash(entry, "xetHash", file.xet_hash))
        file.xet_hash[0] = '\0'; /* nothing here needs it */
    if (!st && strlen(file.blob_id) != 40)
        st = hd_err(HD_CORRUPT, "a file has no hash of git");
    file.path = path;
    return st ? st : hub_tree_add(tree, &file, arena);
}

enum hd_status hub_tree_add_page(struct hub_tree *tree, const char *text, size_t bytes,
                                 struct hd_arena *arena)
{
    struct hd_arena page;
    const struct hd_json *root = NULL;
    enum hd_status st;

    hd_arena_init(&page, 0);
    st = hd_json_parse_repeated(&page, text, bytes, &limits, &root);
    if (!st && root->kind != HD_JSON_ARRAY)
        st = hd_err(HD_CORRUPT, "it is no JSON array");
    for (const struct hd_json *entry = st ? NULL : root->first; entry && !st; entry = entry->next)
        st = add_entry(tree, entry, arena);
    hd_arena_done(&page);
    if (st && st != HD_NO_MEMORY && st != HD_LIMIT)
        st = hd_err(HD_CORRUPT, "the list of files that the hub sent: %s", hd_err_message());
    return st;
}

/* ---- trees/COMMIT.json ---- */

static enum hd_status read_entry(struct hub_tree *tree, const struct hd_json *entry,
                                 struct hd_arena *arena)
{
    struct hd_hub_file file = {.path = entry->key};
    enum hd_status st = hd_json_need_int64(entry, "size", 0, INT64_MAX, &file.size_bytes);

    if (!st)
        st = copy_hash(entry, "blob_id", file.blob_id);
    if (!st)
        st = copy_hash(entry, "lfs_sha256", file.sha256);
    if (!st && *file.sha256)
        st = hd_json_need_int64(entry, "lfs_size", 0, INT64_MAX, &file.size_bytes);
    if (!st)
        st = copy_hash(entry, "xet_hash", file.xet_hash);
    if (!st && (!hub_path_is_safe(file.path) || !*file.blob_id))
        st = hd_err(HD_CORRUPT, "an entry is wrong");
    return st ? st : hub_tree_add(tree, &file, arena);
}

enum hd_status hub_tree_read(const char *path, struct hd_arena *arena, struct hub_tree *tree)
{
    const struct hd_json *root = NULL, *files = NULL;
    struct hd_text text = {0};
    struct hd_arena page;
    int64_t version;
    enum hd_status st = hd_file_read(path, HUB_API_BYTES_MAX, &text);

    hd_arena_init(&page, 0);
    tree->count = 0;
    if (!st)
        st = hd_json_parse_repeated(&page, text.data ? text.data : "", text.len_bytes, &limits,
                                    &root);
    if (!st)
        st = hd_json_need_int64(root, "format_version", FORMAT_VERSION, FORMAT_VERSION, &version);
    if (!st)
        st = hd_json_need(root, "files", HD_JSON_OBJECT, &files);
    for (const struct hd_json *entry = st ? NULL : files->first; entry && !st; entry = entry->next)
        st = read_entry(tree, entry, arena);
    hd_arena_done(&page);
    hd_text_free(&text);
    hub_tree_sort(tree);
    return st && st != HD_NO_MEMORY ? hd_err(HD_NOT_FOUND, "%s", hd_err_message()) : st;
}

enum hd_status hub_tree_write(const char *path, const struct hub_tree *tree)
{
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};
    enum hd_status st;

    hd_json_begin(&w, NULL, '{');
    hd_json_add_int64(&w, "format_version", FORMAT_VERSION);
    hd_json_begin(&w, "files", '{');
    for (int i = 0; i < tree->count; i++) {
        const struct hd_hub_file *f = &tree->files[i];

        hd_json_begin(&w, f->path, '{');
        hd_json_add_int64(&w, "size", f->size_bytes);
        hd_json_add_string(&w, "blob_id", f->blob_id);
        if (*f->sha256) {
            hd_json_add_string(&w, "lfs_sha256", f->sha256);
            hd_json_add_int64(&w, "lfs_size", f->size_bytes);
        }
        if (*f->xet_hash)
            hd_json_add_string(&w, "xet_hash", f->xet_hash);
        hd_json_end(&w, '}');
    }
    hd_json_end(&w, '}');
    hd_json_end(&w, '}');
    st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for a list of files")
                     : hub_write_file(path, text.data, text.len_bytes);
    hd_text_free(&text);
    return st;
}

/* ---- a snapshot without such a list ---- */

/* Adds the files below snapshot/below to the tree. */
static enum hd_status list_folder(const char *snapshot, const char *below, int depth,
                                  struct hd_arena *arena, struct hub_tree *tree)
{
    char path[PATH_MAX];
    const bool fits = snprintf(path, sizeof path, "%s/%s", snapshot, below) < (int)sizeof path;
    DIR *dir = fits ? opendir(path) : NULL;
    const struct dirent *entry;
    enum hd_status st = HD_OK;

    while (dir && !st && (entry = readdir(dir))) {
        struct hd_hub_file file = {.path = NULL};
        char name[HD_HUB_PATH_MAX];
        struct stat info;

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            snprintf(name, sizeof name, "%s%s%s", below, *below ? "/" : "", entry->d_name) >=
                (int)sizeof name ||
            fstatat(dirfd(dir), entry->d_name, &info, 0) < 0)
            continue;
        file.path = name;
        file.size_bytes = info.st_size;
        if (S_ISDIR(info.st_mode) && depth < FOLDER_DEPTH_MAX)
            st = list_folder(snapshot, name, depth + 1, arena, tree);
        else if (S_ISREG(info.st_mode))
            st = hub_tree_add(tree, &file, arena);
    }
    if (dir)
        (void)closedir(dir);
    return st;
}

enum hd_status hub_list_snapshot(const char *snapshot, struct hd_arena *arena,
                                 struct hub_tree *tree)
{
    enum hd_status st;

    tree->count = 0;
    tree->is_partial = true;
    st = list_folder(snapshot, "", 0, arena, tree);
    hub_tree_sort(tree);
    return st;
}
