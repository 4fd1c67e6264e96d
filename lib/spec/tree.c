/* tree: parses job files and cluster files into trees of yaml/yaml.h, with their limits. */
#include "spec_internal.h"

enum hd_status spec_cluster_parse(const char *name, const void *bytes, size_t size_bytes,
                                  struct hd_arena *arena, struct yaml_node **ret_root)
{
    const struct hd_yaml_source source = {
        .name = name,
        .kind = "cluster file",
        .empty = "no keys are given; docs/planning.md has an example of a cluster file",
        .bytes = bytes,
        .size_bytes = size_bytes};

    return hd_yaml_parse(&source, arena, ret_root);
}

enum hd_status spec_yaml_parse(const char *name, const char *origin, const void *bytes,
                               size_t size_bytes, struct hd_arena *arena,
                               struct yaml_node **ret_root)
{
    const struct hd_yaml_source source = {
        .name = name,
        .origin = origin,
        .kind = "job file",
        .empty = origin ? "no value is given" : "no keys are given; README.md has an example",
        .bytes = bytes,
        .size_bytes = size_bytes};

    return hd_yaml_parse(&source, arena, ret_root);
}

struct yaml_node *spec_yaml_expand(struct hd_arena *arena, const char *group,
                                   const struct yaml_node *node)
{
    struct yaml_node *map = hd_yaml_new(arena, YAML_KIND_MAP, node->key, node->line, node->origin);
    struct spec_children children;

    spec_list_children(group, &children);
    for (size_t i = 0; map && i < children.count; i++) {
        struct yaml_node *value;

        if (!spec_is_short_for(group, children.names[i]))
            continue;
        value = hd_yaml_new(arena, node->kind, hd_arena_strdup(arena, children.names[i]),
                            node->line, node->origin);
        if (!value || !value->key)
            return NULL;
        value->plain = node->plain;
        value->text = node->text;
        value->first = node->first;
        value->last = node->last;
        value->short_form = true;
        hd_yaml_append(map, value);
    }
    return map;
}
