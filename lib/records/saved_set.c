#include "records/saved_set.h"

#include <string.h>

#include "base/folder.h"

enum { FILE_BYTES_MAX = 16 << 20, SPLITS_SHOWN = 8 };

/* Reads a JSON file of a folder. *ret_root NULL: there is none. */
static enum hd_status read_json(const char *folder, const char *name, struct hd_arena *arena,
                                const struct hd_json **ret_root)
{
    static const struct hd_json_limits limits = {.values_max = 1 << 20, .depth_max = 32};
    const enum hd_status st =
        hd_folder_read_json(arena, folder, name, FILE_BYTES_MAX, &limits, ret_root);

    return st && st != HD_NO_MEMORY ? hd_err(HD_INVALID, "%s", hd_err_message()) : st;
}

/* Refuses a folder with a folder for each split, naming them. */
static enum hd_status refuse_splits(const char *folder, const struct hd_json *root)
{
    const struct hd_json *splits = hd_json_member(root, "splits");
    struct hd_text names = {0};
    const char *first = "train";
    enum hd_status st;
    int shown = 0;

    for (const struct hd_json *s = splits ? splits->first : NULL; s && shown < SPLITS_SHOWN;
         s = s->next)
        if (s->kind == HD_JSON_STRING) {
            first = shown ? first : s->text;
            hd_text_add(&names, "%s%.60s", shown++ ? ", " : "", s->text);
        }
    st = hd_err(HD_INVALID, "%s has the splits %s; name one of them, such as %s/%.60s", folder,
                names.data ? names.data : "of a data set", folder, first);
    hd_text_free(&names);
    return st;
}

enum hd_status hd_records_read_saved_set(const char *folder, struct hd_arena *arena,
                                         const struct hd_json **ret_files)
{
    const struct hd_json *root = NULL, *indices;
    enum hd_status st = read_json(folder, "dataset_dict.json", arena, &root);

    *ret_files = NULL;
    if (!st && root)
        return refuse_splits(folder, root);
    if (!st)
        st = read_json(folder, "state.json", arena, &root);
    if (st || !root || !hd_json_member(root, "_data_files"))
        return st;
    indices = hd_json_member(root, "_indices_data_files");
    if (indices && indices->count)
        return hd_err(HD_INVALID,
                      "%s: its rows are chosen by an index, which is not read; save the set again "
                      "after flatten_indices()",
                      folder);
    st = hd_json_need(root, "_data_files", HD_JSON_ARRAY, ret_files);
    for (const struct hd_json *f = st ? NULL : (*ret_files)->first; !st && f; f = f->next) {
        const char *name;

        st = hd_json_need_string(f, "filename", &name);
        if (!st &&
            (strchr(name, '/') || !*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0))
            st = hd_err(HD_INVALID, "'filename' is '%.80s', which names no file of the folder",
                        name);
    }
    return st ? hd_err_prefix(st, "%s/state.json", folder) : HD_OK;
}
