#include "base/folder.h"

#include <string.h>

#include "base/file.h"

void hd_folder_of(const char *path, struct hd_text *ret_dir)
{
    const char *slash = strrchr(path, '/');

    hd_text_add(ret_dir, "%.*s", slash && slash > path ? (int)(slash - path) : 1,
                slash ? path : ".");
}

enum hd_status hd_folder_make_of(const char *path, mode_t mode)
{
    struct hd_text dir = {0};
    enum hd_status st;

    hd_folder_of(path, &dir);
    st = dir.failed ? hd_err(HD_NO_MEMORY, "no memory for a path")
                    : hd_file_make_dirs(dir.data, mode);
    hd_text_free(&dir);
    return st;
}

enum hd_status hd_folder_sync_of(const char *path)
{
    struct hd_text dir = {0};
    enum hd_status st;

    hd_folder_of(path, &dir);
    st = dir.failed ? hd_err(HD_NO_MEMORY, "no memory for a path") : hd_file_sync_dir(dir.data);
    hd_text_free(&dir);
    return st;
}

bool hd_folder_has(const char *dir, const char *name)
{
    struct hd_text path = {0};
    const bool has = !hd_folder_path(&path, dir, name) && hd_file_exists(path.data);

    hd_text_free(&path);
    return has;
}

enum hd_status hd_folder_path(struct hd_text *ret_path, const char *dir, const char *name)
{
    hd_text_clear(ret_path);
    hd_file_join(ret_path, dir, name);
    return ret_path->failed ? hd_err(HD_NO_MEMORY, "no memory for a path") : HD_OK;
}

enum hd_status hd_folder_read(const char *dir, const char *name, size_t max_bytes,
                              struct hd_text *ret_text)
{
    struct hd_text path = {0};
    enum hd_status st = hd_folder_path(&path, dir, name);

    if (!st)
        st = hd_file_read(path.data, max_bytes, ret_text);
    hd_text_free(&path);
    return st;
}

enum hd_status hd_folder_read_any(const char *dir, const char *name, size_t max_bytes,
                                  struct hd_text *ret_text)
{
    return hd_folder_has(dir, name) ? hd_folder_read(dir, name, max_bytes, ret_text) : HD_OK;
}

enum hd_status hd_folder_read_json(struct hd_arena *arena, const char *dir, const char *name,
                                   size_t max_bytes, const struct hd_json_limits *limits,
                                   const struct hd_json **ret_root)
{
    struct hd_text text = {0};
    enum hd_status st = hd_folder_read_any(dir, name, max_bytes, &text);

    *ret_root = NULL;
    if (!st && text.data) {
        st = hd_json_parse_repeated(arena, text.data, text.len_bytes, limits, ret_root);
        st = st ? hd_err_prefix(st, "%s/%s", dir, name) : HD_OK;
    }
    hd_text_free(&text);
    return st;
}
