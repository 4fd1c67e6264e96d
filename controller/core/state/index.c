/* index: containers of jobs: the table of all jobs by number, sorted sets of a few, outcomes, and a
 * heap. Steps iterate over the sets only, so their cost does not depend on the number of waiting
 * jobs. */
#include <stdlib.h>
#include <string.h>

#include "controller/core/state/state.h"

enum { TABLE_SIZE_MIN = 64 };

/* ---- all jobs, by number ----------------------------------------------------------------------*/

/* Returns the bucket of a job number. Numbers are consecutive, so their low bits spread evenly. */
static struct core_job **bucket_of(const struct core_table *table, uint64_t number)
{
    return &table->buckets[number & (table->size - 1)];
}

static bool grow_table(struct core_table *table)
{
    struct core_table bigger = {.size = table->size ? table->size * 2 : TABLE_SIZE_MIN,
                                .count = table->count};

    bigger.buckets = calloc(bigger.size, sizeof *bigger.buckets);
    if (!bigger.buckets)
        return false;
    for (size_t i = 0; i < table->size; i++) {
        while (table->buckets[i]) {
            struct core_job *job = table->buckets[i];
            struct core_job **bucket = bucket_of(&bigger, job->rec.job);

            table->buckets[i] = job->next_in_table;
            job->next_in_table = *bucket;
            *bucket = job;
        }
    }
    free(table->buckets);
    *table = bigger;
    return true;
}

bool core_table_add(struct core_table *table, struct core_job *job)
{
    struct core_job **bucket;

    if (table->count == table->size && !grow_table(table))
        return false;
    bucket = bucket_of(table, job->rec.job);
    job->next_in_table = *bucket;
    *bucket = job;
    table->count++;
    return true;
}

struct core_job *core_find_job(const struct hd_core *core, uint64_t number)
{
    struct core_job *job = core->jobs.size ? *bucket_of(&core->jobs, number) : NULL;

    while (job && job->rec.job != number)
        job = job->next_in_table;
    return job;
}

void core_table_remove(struct core_table *table, struct core_job *job)
{
    struct core_job **at = bucket_of(table, job->rec.job);

    while (*at != job)
        at = &(*at)->next_in_table;
    *at = job->next_in_table;
    table->count--;
}

struct core_job *core_table_next(const struct core_table *table, const struct core_job *job)
{
    struct core_job *next = job ? job->next_in_table : NULL;
    size_t bucket = job ? (size_t)(job->rec.job & (table->size - 1)) + 1 : 0;

    while (!next && bucket < table->size)
        next = table->buckets[bucket++];
    return next;
}

/* ---- a few jobs, in the order of their numbers ------------------------------------------------*/

static bool is_job_before(const void *item, const void *number)
{
    return (*(struct core_job *const *)item)->rec.job < *(const uint64_t *)number;
}

/* Returns the index of the job with this number in the sorted set, or where it would be
 * inserted. */
static size_t index_of_job(const struct core_jobs *jobs, uint64_t number)
{
    return core_bisect(jobs->items, jobs->count, sizeof jobs->items[0], &number, is_job_before);
}

bool core_jobs_have(const struct core_jobs *jobs, const struct core_job *job)
{
    const size_t at = index_of_job(jobs, job->rec.job);

    return at < jobs->count && jobs->items[at] == job;
}

void core_jobs_add(struct hd_core *core, struct core_jobs *jobs, struct core_job *job)
{
    const size_t at = index_of_job(jobs, job->rec.job);

    if (core_jobs_have(jobs, job) ||
        !core_grow_array(core, &jobs->items, jobs->count, &jobs->size, sizeof job))
        return;
    memmove(&jobs->items[at + 1], &jobs->items[at], (jobs->count - at) * sizeof job);
    jobs->items[at] = job;
    jobs->count++;
}

void core_jobs_remove(struct core_jobs *jobs, const struct core_job *job)
{
    const size_t at = index_of_job(jobs, job->rec.job);

    if (!core_jobs_have(jobs, job))
        return;
    jobs->count--;
    memmove(&jobs->items[at], &jobs->items[at + 1], (jobs->count - at) * sizeof job);
}

/* ---- how jobs have ended ----------------------------------------------------------------------*/

static bool is_known_job_before(const void *item, const void *number)
{
    return ((const struct core_known_job *)item)->job < *(const uint64_t *)number;
}

struct core_known_job *core_find_known_job(const struct hd_core *core, uint64_t job)
{
    const size_t at = core_bisect(core->known_jobs, core->known_job_count, sizeof *core->known_jobs,
                                  &job, is_known_job_before);

    return at < core->known_job_count && core->known_jobs[at].job == job ? &core->known_jobs[at]
                                                                         : NULL;
}

void core_outcome_set(struct hd_core *core, uint64_t job, enum hd_job_state state)
{
    struct core_known_job *known = core_find_known_job(core, job);

    if (known)
        known->outcome = state > HD_JOB_STATE_STOPPING ? state : 0;
}

enum hd_job_state core_outcome_of(const struct hd_core *core, uint64_t job)
{
    const struct core_known_job *known = core_find_known_job(core, job);

    return known ? known->outcome : 0;
}

enum hd_job_state hd_core_outcome(const struct hd_core *core, uint64_t job)
{
    return core_outcome_of(core, job);
}

/* ---- binary min-heap --------------------------------------------------------------------------*/

static void swap(struct core_heap_item *a, struct core_heap_item *b)
{
    const struct core_heap_item kept = *a;

    *a = *b;
    *b = kept;
}

void core_heap_put(struct hd_core *core, struct core_heap *heap, uint64_t key, uint64_t value)
{
    size_t at = heap->count;

    if (!core_grow_array(core, &heap->items, heap->count, &heap->size, sizeof *heap->items))
        return;
    heap->items[heap->count++] = (struct core_heap_item){.key = key, .value = value};
    for (; at > 0 && heap->items[at].key < heap->items[(at - 1) / 2].key; at = (at - 1) / 2)
        swap(&heap->items[at], &heap->items[(at - 1) / 2]);
}

void core_heap_take(struct core_heap *heap)
{
    size_t at = 0;

    heap->items[0] = heap->items[--heap->count];
    for (;;) {
        const size_t left = 2 * at + 1, right = left + 1;
        size_t least = at;

        if (left < heap->count && heap->items[left].key < heap->items[least].key)
            least = left;
        if (right < heap->count && heap->items[right].key < heap->items[least].key)
            least = right;
        if (least == at)
            return;
        swap(&heap->items[at], &heap->items[least]);
        at = least;
    }
}
