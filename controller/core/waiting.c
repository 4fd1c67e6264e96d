/* core_waiting: the queued jobs, sorted into classes.
 *
 * Jobs of a class are all the same to the scheduler: where one finds no place, and no nodes to keep
 * free, no other does either, until something changes. So a pass looks at classes instead of jobs,
 * and what it costs depends on how many different kinds of job wait, not on how many jobs do.
 *
 * A queued job is in exactly one class, in the order of numbers, or it waits for its retry delay
 * and is in none (core->delayed has it).
 */
#include <stdlib.h>
#include <string.h>

#include "controller/core/core_internal.h"

/* ---- classes ----------------------------------------------------------------------------------*/

static struct core_class_key key_of(const struct hd_core *core, const struct core_job *job)
{
    const struct hd_checkpoint_record *base = core_checkpoint_newest(job);
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    const size_t count = core_kinds(&job->needs, kinds);
    struct core_class_key key;

    memset(&key, 0, sizeof key); /* padding too: keys are compared as bytes */
    key.device = job->needs.device;
    key.devices_min = job->needs.devices_min;
    key.devices_max = job->needs.devices_max;
    key.memory_min = job->needs.memory_min;
    key.shape = hd_plan_shape(&job->needs.wish);
    for (size_t k = 0; k < count;
         k++) /* an older build may have accepted what this one cannot run */
        key.possible |= core_devices_needed(&job->needs, kinds[k]) ? 1u << kinds[k] : 0;
    key.has_base = base != NULL;
    key.base_shared = base && base->shared;
    key.base_node = base ? core_find_node(core, base->node_uuid) : NULL;
    return key;
}

static size_t place_of(const struct hd_core *core, const struct core_class_key *key)
{
    size_t low = 0, high = core->class_count;

    while (low < high) {
        const size_t mid = low + (high - low) / 2;

        if (memcmp(&core->classes[mid]->key, key, sizeof *key) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static struct core_class *class_of(struct hd_core *core, const struct core_class_key *key)
{
    const size_t at = place_of(core, key);
    struct core_class *made;

    if (at < core->class_count && memcmp(&core->classes[at]->key, key, sizeof *key) == 0)
        return core->classes[at];
    made = calloc(1, sizeof *made);
    if (!made ||
        !core_reserve(core, &core->classes, core->class_count, &core->class_size, sizeof made)) {
        free(made);
        core->no_memory = true;
        return NULL;
    }
    made->key = *key;
    memmove(&core->classes[at + 1], &core->classes[at], (core->class_count - at) * sizeof made);
    core->classes[at] = made;
    core->class_count++;
    return made;
}

/* Most jobs are the newest of their class. One that waits again was submitted before the others, so
 * that only jobs that were started before it and wait again as well are before it. */
static void link_job(struct core_class *class, struct core_job *job)
{
    struct core_job *after = NULL;

    if (class->last && class->last->rec.job > job->rec.job)
        for (after = class->first; after->rec.job < job->rec.job;)
            after = after->after;
    job->class = class;
    job->after = after;
    job->before = after ? after->before : class->last;
    *(job->before ? &job->before->after : &class->first) = job;
    *(job->after ? &job->after->before : &class->last) = job;
}

static void unlink_job(struct hd_core *core, struct core_job *job)
{
    struct core_class *class = job->class;

    *(job->before ? &job->before->after : &class->first) = job->after;
    *(job->after ? &job->after->before : &class->last) = job->before;
    job->class = NULL;
    job->before = job->after = NULL;
    core->class_emptied |= !class->first;
}

void core_waiting_sweep(struct hd_core *core)
{
    size_t kept = 0;

    if (!core->class_emptied)
        return;
    for (size_t i = 0; i < core->class_count; i++) {
        if (core->classes[i]->first)
            core->classes[kept++] = core->classes[i];
        else
            free(core->classes[i]);
    }
    core->class_count = kept;
    core->class_emptied = false;
}

/* ---- jobs -------------------------------------------------------------------------------------*/

static void enter_class(struct hd_core *core, struct core_job *job)
{
    const struct core_class_key key = key_of(core, job);
    struct core_class *class = class_of(core, &key);

    job->wait = CORE_WAIT_NONE;
    if (class)
        link_job(class, job);
}

void core_waiting_add(struct hd_core *core, struct core_job *job)
{
    if (job->search) {
        job->wait = CORE_WAIT_SEARCH;
        return;
    }
    if (job->not_before_mono_ms <= core->now.mono_ms) {
        enter_class(core, job);
        return;
    }
    job->wait = CORE_WAIT_DELAY;
    core_heap_put(core, &core->delayed, (uint64_t)job->not_before_mono_ms, job->rec.job);
}

void core_waiting_remove(struct hd_core *core, struct core_job *job)
{
    if (job->class)
        unlink_job(core, job);
    job->wait = CORE_WAIT_NONE; /* what core->delayed says of it no longer counts */
}

void core_waiting_moved(struct hd_core *core, struct core_job *job)
{
    const struct core_class_key key = key_of(core, job);
    enum core_wait wait;
    uint64_t behind;

    core->unsettled = true;
    if (!job->class || memcmp(&job->class->key, &key, sizeof key) == 0)
        return;
    wait = core_wait_of(core, job, &behind);
    unlink_job(core, job);
    enter_class(core, job);
    job->wait = wait; /* until the next pass looks at it */
    job->wait_job = behind;
    job->looked_in = core->pass;
}

/* The job that core->delayed has first; NULL: it is no longer delayed, or not by this entry. */
static struct core_job *first_delayed(const struct hd_core *core)
{
    const struct core_heap_item *first = &core->delayed.items[0];
    struct core_job *job = core_find_job(core, first->value);

    return job && job->wait == CORE_WAIT_DELAY && (uint64_t)job->not_before_mono_ms == first->key
               ? job
               : NULL;
}

bool core_waiting_due(struct hd_core *core)
{
    while (core->delayed.count && !first_delayed(core))
        core_heap_take(&core->delayed);
    return core->delayed.count && core->delayed.items[0].key <= (uint64_t)core->now.mono_ms;
}

void core_waiting_release(struct hd_core *core)
{
    while (core_waiting_due(core)) {
        struct core_job *job = first_delayed(core);

        core_heap_take(&core->delayed);
        enter_class(core, job);
    }
}

/* ---- searches ---------------------------------------------------------------------------------*/

void core_search_begin(struct hd_core *core, struct core_job *job)
{
    if (job->rec.state == HD_JOB_STATE_QUEUED)
        core_waiting_remove(core, job);
    job->search = CORE_SEARCH_DUE;
    job->wait = CORE_WAIT_SEARCH;
    core_jobs_add(core, &core->searching, job);
}

void core_search_end(struct hd_core *core, struct core_job *job)
{
    if (!job->search)
        return;
    job->search = CORE_SEARCH_NONE;
    core_jobs_remove(&core->searching, job);
    if (job->rec.state != HD_JOB_STATE_QUEUED)
        return;
    core_waiting_add(core, job);
    core->schedule_due = true;
}

void core_search_timers(struct hd_core *core, struct core_job *job)
{
    struct hd_core_out *out = core->out;

    if (job->search == CORE_SEARCH_DUE) {
        if (!core_reserve(core, &out->searches, out->search_count, &out->search_size,
                          sizeof *out->searches))
            return;
        out->searches[out->search_count++] =
            (struct hd_core_search){job->rec.job, job->rec.attempt_count};
        job->search = CORE_SEARCH_OUT;
        job->search_since_mono = core->now.mono_ms;
    } else if (job->search == CORE_SEARCH_OUT &&
               core->now.mono_ms - job->search_since_mono >= core->config.search_timeout_ms) {
        core_search_end(core, job);
        core_event(
            core, job, "search_failed", job->rec.attempt_count, -1, "",
            "the checkpoints of attempt %d could not be listed within %lld s; the job goes on "
            "from the newest one that was reported",
            job->rec.attempt_count, (long long)(core->config.search_timeout_ms / 1000));
    }
}

enum core_wait core_wait_of(const struct hd_core *core, const struct core_job *job,
                            uint64_t *ret_blocking_job)
{
    const struct core_class *class = job->class;
    const bool skipped = class && class->closed_in == core->pass && job->looked_in != core->pass;

    *ret_blocking_job = skipped ? class->wait_job : job->wait_job;
    return skipped ? class->wait : job->wait;
}
