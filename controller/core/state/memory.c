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

struct core_node *core_find_node_named(const struct hd_core *core, const char *name)
{
    for (size_t i = 0; i < core->node_count; i++) {
        if (!core->nodes[i]->rec.retired && core_same(core->nodes[i]->rec.name, name))
            return core->nodes[i];
    }
    return NULL;
}

bool core_avoids(const struct core_view *view, const struct core_node *node)
{
    for (size_t i = 0; view->avoids && i < view->job->avoided_count; i++)
        if (view->job->avoided[i] == node)
            return true;
    return false;
}
