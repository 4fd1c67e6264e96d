/* renamed: job files and --set options that have a key under its old name (hd_key.old_path) are read
 * as if they had the new one. A key keeps its group when it is renamed, so only its last part
 * changes. */
#include <stdio.h>
#include <string.h>

#include "spec_internal.h"

/* Returns whether `path` is `old`, or a path below it; "train.only" and "train.only.last". */
static bool begins_with(const char *path, const char *old)
{
    const size_t len = strlen(old);

    return strncmp(path, old, len) == 0 && (!path[len] || path[len] == '.');
}

const struct hd_key *hd_spec_find_renamed(const char *path)
{
    for (size_t i = 0; i < hd_job_key_count; i++)
        if (hd_job_keys[i].old_path && !hd_job_keys[i].hidden &&
            begins_with(path, hd_job_keys[i].old_path))
            return &hd_job_keys[i];
    return NULL;
}

/* Sets *ret_map to the map of the tree that has the last part of a path; NULL: the file lacks it.
 * Returns the last part. */
static const char *find_holder(const struct yaml_node *root, const char *path,
                               const struct yaml_node **ret_map)
{
    for (const char *dot = strchr(path, '.'); dot && root; dot = strchr(path, '.')) {
        char name[64];

        (void)snprintf(name, sizeof name, "%.*s", (int)(dot - path), path);
        root = hd_yaml_find(root, name);
        path = dot + 1;
    }
    *ret_map = root;
    return path;
}

static void note_old_name(const struct spec_reader *r, const struct yaml_node *node,
                          const struct hd_key *key)
{
    if (node->origin)
        hd_text_add(r->source->old_names, "%s: ", node->origin);
    else
        hd_text_add(r->source->old_names, "%s:%d: ", r->name, node->line);
    hd_text_add(r->source->old_names, "%s is now called %s; the old name is read, too\n",
                key->old_path, key->path);
}

enum hd_status spec_rename_keys(struct spec_reader *r)
{
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];
        const struct yaml_node *map;
        struct yaml_node *node;
        const char *last;

        if (!key->old_path)
            continue;
        last = find_holder(r->root, key->old_path, &map);
        node = map ? hd_yaml_find(map, last) : NULL;
        if (!node)
            continue;
        last = strrchr(key->path, '.') + 1;
        r->here = node;
        if (hd_yaml_find(map, last))
            return hd_err(HD_INVALID, "%s: is the old name of %s, which is given too; remove one",
                          key->old_path, key->path);
        node->key = last;
        if (r->source->old_names)
            note_old_name(r, node, key);
    }
    return HD_OK;
}

/* Returns the override with the new name of its key: itself, if the key was never renamed. NULL: no
 * memory. */
static const char *rename_override(const char *text, struct hd_arena *arena)
{
    const struct hd_key *key;
    const char *path = hd_arena_printf(arena, "%.*s", (int)strcspn(text, "="), text);

    if (!path)
        return NULL;
    key = hd_spec_find_renamed(path);
    return key ? hd_arena_printf(arena, "%s%s", key->path, text + strlen(key->old_path)) : text;
}

enum hd_status spec_rename_overrides(struct hd_spec_source *source, struct hd_arena *arena)
{
    const size_t count = source->override_count;
    const char **texts = hd_arena_array(arena, count + 1, sizeof *texts);
    const char **origins = hd_arena_array(arena, count + 1, sizeof *origins);

    if (count > HD_SPEC_OVERRIDES_MAX)
        return HD_OK; /* spec_apply_overrides refuses them */
    for (size_t i = 0; texts && origins && i < count; i++) {
        const char *origin = source->override_origins ? source->override_origins[i] : NULL;

        texts[i] = rename_override(source->overrides[i], arena);
        if (!texts[i])
            break;
        if (texts[i] == source->overrides[i]) {
            origins[i] = origin;
            continue;
        }
        origins[i] = origin ? origin : hd_arena_printf(arena, "--set %s", source->overrides[i]);
        if (source->old_names)
            hd_text_add(source->old_names,
                        "%s: the key is now called %.*s; the old name is read, too\n",
                        origins[i] ? origins[i] : "", (int)strcspn(texts[i], "="), texts[i]);
    }
    if (hd_arena_failed(arena))
        return hd_err(HD_NO_MEMORY, "no memory for the job file");
    source->overrides = texts;
    source->override_origins = origins;
    return HD_OK;
}
