/* array: jobs of one owner with the same array.id, of which at most array.at_once run at a time.
 *
 * A member is open while it has an attempt, or is in a group of waiting.c, from which the scheduler
 * may start it. The array lets as many members be open as may run, in the order of priority and
 * number; the others wait with CORE_WAIT_ARRAY outside the groups, so no pass looks at them. A member
 * in a group gives its place to one that comes before it; one with an attempt keeps it.
 * Nothing is stored: after a restart the members' specs give the same arrays.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/core/life/life.h"

/* ---- membership -------------------------------------------------------------------------------*/

static struct core_array *array_of(struct hd_core *core, const char *owner, const char *id)
{
    struct core_array *array;

    for (size_t i = 0; i < core->array_count; i++)
        if (core_same(core->arrays[i]->owner, owner) && strcmp(core->arrays[i]->id, id) == 0)
            return core->arrays[i];
    array = core_new_item(core, &core->arrays, core->array_count, &core->array_size, sizeof *array);
    if (!array)
        return NULL;
    core_set_text(core, &array->owner, owner);
    core_set_text(core, &array->id, id);
    core->arrays[core->array_count++] = array;
    return array;
}

static void free_array(struct core_array *array)
{
    core_free_text(&array->owner);
    core_free_text(&array->id);
    free(array->members.items);
    free(array);
}

void core_array_join(struct hd_core *core, struct core_job *job)
{
    const char *id = job->needs.array;

    job->needs.array = NULL; /* the text belongs to the event */
    if (!id)
        return;
    job->array = array_of(core, job->rec.owner, id);
    if (!job->array)
        return;
    core_jobs_add(core, &job->array->members, job);
    job->array->due = true;
}

void core_array_leave(struct hd_core *core, struct core_job *job)
{
    struct core_array *array = job->array;
    size_t at = 0;

    if (!array)
        return;
    job->array = NULL;
    core_jobs_remove(&array->members, job);
    array->due = true;
    if (array->members.count)
        return;
    while (core->arrays[at] != array)
        at++;
    core->arrays[at] = core->arrays[--core->array_count];
    free_array(array);
}

void core_arrays_done(struct hd_core *core)
{
    for (size_t i = 0; i < core->array_count; i++)
        free_array(core->arrays[i]);
    free(core->arrays);
}

/* ---- which members may start ------------------------------------------------------------------*/

bool core_array_is_open(const struct core_job *job)
{
    return job->group || job->active;
}

int32_t core_array_open(const struct core_array *array)
{
    int32_t open = 0;

    for (size_t i = 0; i < array->members.count; i++)
        open += core_array_is_open(array->members.items[i]);
    return open;
}

bool core_array_precedes(const struct core_job *a, const struct core_job *b)
{
    return a->rec.priority != b->rec.priority ? a->rec.priority > b->rec.priority
                                              : a->rec.job < b->rec.job;
}

struct core_job *core_array_first_kept(const struct core_array *array)
{
    struct core_job *first = NULL;

    for (size_t i = 0; i < array->members.count; i++) {
        struct core_job *job = array->members.items[i];

        if (job->wait == CORE_WAIT_ARRAY && !core_array_is_open(job) &&
            (!first || core_array_precedes(job, first)))
            first = job;
    }
    return first;
}

bool core_array_keeps(const struct core_job *job)
{
    const struct core_array *array = job->array;
    const struct core_job *first;

    if (!array || !array->at_once)
        return false;
    first = core_array_first_kept(array);
    return core_array_open(array) >= array->at_once || (first && core_array_precedes(first, job));
}

struct core_job *core_array_last_open(const struct core_array *array)
{
    struct core_job *last = NULL;

    for (size_t i = 0; i < array->members.count; i++) {
        struct core_job *job = array->members.items[i];

        if (job->group && (!last || core_array_precedes(last, job)))
            last = job;
    }
    return last;
}

enum hd_status core_check_arrays(const struct hd_core *core)
{
    for (size_t i = 0; i < core->array_count; i++) {
        const struct core_array *array = core->arrays[i];
        const bool is_full = array->at_once && core_array_open(array) >= array->at_once;

        if (array->at_once && core_array_open(array) > array->at_once &&
            core_array_last_open(array))
            return hd_err(HD_INTERNAL, "I18: more members of array %s may start than may run",
                          array->id);
        if (!is_full && core_array_first_kept(array))
            return hd_err(HD_INTERNAL, "I18: job %llu waits for array %s, which is not full",
                          (unsigned long long)core_array_first_kept(array)->rec.job, array->id);
        if (core_array_first_kept(array) && core_array_last_open(array) &&
            core_array_precedes(core_array_first_kept(array), core_array_last_open(array)))
            return hd_err(HD_INTERNAL, "I18: job %llu waits for array %s behind job %llu",
                          (unsigned long long)core_array_first_kept(array)->rec.job, array->id,
                          (unsigned long long)core_array_last_open(array)->rec.job);
    }
    return HD_OK;
}
