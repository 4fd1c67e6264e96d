/* override: --set KEY=VALUE replaces or adds a value of the job file. */
#include <stdio.h>
#include <string.h>

#include "spec_internal.h"

/* Finds in the tree of the job file the map that contains the key of a dotted path. Creates groups
 * that the file lacks; the reader refuses those whose names it does not know. Expands the short form
 * of a group: "lr: 1" becomes "lr: {peak: 1}". */
static enum hd_status override_map(struct hd_arena *arena, struct yaml_node *map,
                                   const char *origin, const char **path,
                                   struct yaml_node **ret_map)
{
    const char *whole = *path;

    for (const char *dot = strchr(*path, '.'); dot; dot = strchr(*path, '.')) {
        const char *name = hd_arena_printf(arena, "%.*s", (int)(dot - *path), *path);
        const char *group = hd_arena_printf(arena, "%.*s", (int)(dot - whole), whole);
        struct yaml_node *child, *full;

        if (!name || !group)
            return hd_err(HD_NO_MEMORY, "no memory for the job file");
        child = hd_yaml_find(map, name);
        if (!child) {
            child = hd_yaml_new(arena, YAML_KIND_MAP, name, 0, origin);
            if (!child)
                return hd_err(HD_NO_MEMORY, "no memory for the job file");
            hd_yaml_append(map, child);
        } else if (child->kind == YAML_KIND_SCALAR || spec_is_short_group(group, child)) {
            full = spec_yaml_expand(arena, group, child);
            if (!full)
                return hd_err(HD_NO_MEMORY, "no memory for the job file");
            /* the file gives the group in its short form, or as a word; a file of data.val,
             * validate.choices or validate.tasks is no word */
            if (full->first ||
                (!spec_is_group(group) && strcmp(group, "data.val") != 0 &&
                 strcmp(group, "validate.choices") != 0 &&
                 strcmp(group, "validate.tasks.files") != 0) ||
                spec_is_auto_group(group, child)) {
                child->kind = YAML_KIND_MAP;
                child->origin = full->first ? child->origin : origin; /* a word made a group */
                child->first = full->first;
                child->last = full->last;
            }
        }
        if (child->kind != YAML_KIND_MAP)
            return hd_err(HD_INVALID, "%s: %s is not a group of keys in the file", origin, name);
        map = child;
        *path = dot + 1;
    }
    *ret_map = map;
    return HD_OK;
}

void spec_override_origin(const struct hd_spec_source *source, size_t i,
                          char ret_origin[SPEC_ORIGIN_MAX])
{
    const char *origin = source->override_origins ? source->override_origins[i] : NULL;
    char quoted[SPEC_QUOTE_MAX];

    (void)spec_quote(origin ? origin : source->overrides[i], quoted);
    quoted[strlen(quoted) - 1] = '\0';
    (void)snprintf(ret_origin, SPEC_ORIGIN_MAX, "%s%s", origin ? "" : "--set ", quoted + 1);
}

/* Applies one override such as "train.steps=100". The value is YAML, so lists and groups work as in
 * the file. */
static enum hd_status apply_override(const struct hd_spec_source *source, size_t i,
                                     const char *name, struct hd_arena *arena,
                                     struct yaml_node *root)
{
    const char *override = source->overrides[i], *equals = strchr(override, '='), *key, *origin;
    struct yaml_node *value = NULL, *map = NULL, *old;
    char text[SPEC_ORIGIN_MAX], quoted[SPEC_QUOTE_MAX];
    enum hd_status st;

    spec_override_origin(source, i, text);
    if (!equals || equals == override)
        return hd_err(HD_INVALID, "--set %s: expected KEY=VALUE, such as train.steps=100",
                      spec_quote(override, quoted));
    origin = hd_arena_strdup(arena, text);
    key = hd_arena_printf(arena, "%.*s", (int)(equals - override), override);
    if (!origin || !key)
        return hd_err(HD_NO_MEMORY, "no memory for the job file");
    if (root->kind != YAML_KIND_MAP)
        return HD_OK; /* the job file is no map; reading its tree reports that */

    st = spec_yaml_parse(name, origin, equals + 1, strlen(equals + 1), arena, &value);
    if (!st)
        st = override_map(arena, root, origin, &key, &map);
    if (st)
        return st;
    value->key = key;
    old = hd_yaml_find(map, key);
    if (old) {
        struct yaml_node *next = old->next;

        *old = *value;
        old->next = next;
    } else {
        hd_yaml_append(map, value);
    }
    return HD_OK;
}

enum hd_status spec_apply_overrides(const struct hd_spec_source *source, const char *name,
                                    struct hd_arena *arena, struct yaml_node *root)
{
    enum hd_status st = HD_OK;

    if (source->override_count > HD_SPEC_OVERRIDES_MAX)
        return hd_err(HD_INVALID, "more than %d --set options; write them into the job file",
                      HD_SPEC_OVERRIDES_MAX);
    for (size_t i = 0; i < source->override_count && !st; i++)
        st = apply_override(source, i, name, arena, root);
    return st;
}
