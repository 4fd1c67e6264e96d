/* memory: the core's strings and arrays, and lookups of jobs, attempts, node allocations and nodes.
 * A leaf: calls nothing of this folder but map.c and index.c. */
#include <stdlib.h>
#include <string.h>

#include "controller/core/state/state.h"

void core_free_text(const char **slot)
{
    free((char *)(uintptr_t)*slot);
    *slot = NULL;
}

void core_set_text(struct hd_core *core, const char **slot, const char *text)
{
    const char *given = text ? text : "";
    char *copy = strndup(given, hd_record_fit(given, HD_CTL_PATH_BYTES_MAX));

    if (!copy)
        core->no_memory = true;
    core_free_text(slot);
    *slot = copy;
}

/* Returns the address of the record's next text from field *index on, which becomes the index behind
 * it; NULL: it has none. */
static const char **next_text(const struct hd_table *table, void *record, size_t *index)
{
    while (*index < table->count) {
        const struct hd_field *field = &table->fields[(*index)++];

        if (field->type == HD_FIELD_TEXT)
            return (const char **)(void *)((char *)record + field->offset);
    }
    return NULL;
}

void core_own_texts(struct hd_core *core, const struct hd_table *table, void *record)
{
    const char **text;

    for (size_t i = 0; (text = next_text(table, record, &i));) {
        const char *given = *text;

        *text = NULL;
        core_set_text(core, text, given);
    }
}

void core_free_texts(const struct hd_table *table, void *record)
{
    const char **text;

    for (size_t i = 0; (text = next_text(table, record, &i));)
        core_free_text(text);
}

const char *core_text(struct hd_core *core, const struct hd_text *text)
{
    core->no_memory |= text->failed;
    return text->data && !text->failed ? text->data : "";
}

bool core_same(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

bool core_grow_array(struct hd_core *core, void *array, size_t count, size_t *size,
                     size_t item_bytes)
{
    size_t bigger = *size ? *size * 2 : 8;
    void *old, *moved;

    if (count < *size)
        return true;
    memcpy(&old, array, sizeof old); /* copied by memcpy, because the pointer's type is unknown
                                      * here */
    moved = realloc(old, bigger * item_bytes);
    if (!moved) {
        core->no_memory = true;
        return false;
    }
    memcpy(array, &moved, sizeof moved);
    *size = bigger;
    return true;
}

void *core_new_item(struct hd_core *core, void *array, size_t count, size_t *size,
                    size_t item_bytes)
{
    void *made = calloc(1, item_bytes);

    if (made && core_grow_array(core, array, count, size, sizeof made))
        return made;
    free(made);
    core->no_memory = true;
    return NULL;
}

size_t core_bisect(const void *items, size_t count, size_t item_bytes, const void *key,
                   bool (*is_before)(const void *item, const void *key))
{
    size_t low = 0, high = count;

    while (low < high) {
        const size_t mid = low + (high - low) / 2;

        if (is_before((const char *)items + mid * item_bytes, key))
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct core_attempt *core_find_attempt(const struct core_job *job, int32_t number)
{
    return number >= 1 && number <= job->rec.attempt_count ? job->attempts[number - 1] : NULL;
}

struct core_attempt *core_newest(const struct core_job *job)
{
    return core_find_attempt(job, job->rec.attempt_count);
}

struct core_node_alloc *core_find_node_alloc(const struct core_attempt *attempt,
                                             const struct core_node *node)
{
    for (size_t i = 0; i < attempt->alloc_count; i++) {
        if (attempt->allocs[i].node == node)
            return &attempt->allocs[i];
    }
    return NULL;
}

struct core_node *core_find_node(const struct hd_core *core, const char *uuid)
{
    uint64_t value;

    if (!uuid || !core_map_get(&core->node_by_uuid, uuid, &value))
        return NULL;
    return (struct core_node *)(uintptr_t)value;
}

/* Compares in the order of core->nodes (core_node_list): retired nodes come last. */
static bool is_node_before(const void *item, const void *name)
{
    const struct core_node *node = *(struct core_node *const *)item;

    return !node->rec.retired && strcmp(node->rec.name, name) < 0;
}

bool hd_core_node_find(const struct hd_core *core, const char *name, size_t *ret_index)
{
    const char *key = name ? name : "";
    const size_t at =
        core_bisect(core->nodes, core->node_count, sizeof *core->nodes, key, is_node_before);

    if (at == core->node_count || core->nodes[at]->rec.retired ||
        strcmp(core->nodes[at]->rec.name, key) != 0)
        return false;
    *ret_index = at;
    return true;
}

struct core_node *core_find_node_named(const struct hd_core *core, const char *name)
{
    size_t index;

    return hd_core_node_find(core, name, &index) ? core->nodes[index] : NULL;
}

int32_t core_find_device(const struct core_node *node, int32_t index)
{
    for (int32_t d = 0; d < node->rec.device_count; d++)
        if (node->rec.devices[d].index == index)
            return d;
    return -1;
}

bool core_avoids(const struct core_view *view, const struct core_node *node)
{
    for (size_t i = 0; view->avoids && i < view->job->avoided_count; i++)
        if (view->job->avoided[i] == node)
            return true;
    return false;
}
