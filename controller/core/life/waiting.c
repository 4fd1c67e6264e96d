/* waiting: the queued jobs, sorted into classes and groups.
 *
 * Jobs of a class are equal to the search for a placement: if one finds neither a placement nor
 * nodes to reserve, no other does until something changes. A group holds the jobs of a class with
 * equal priority, queue and owner, in the order of numbers. So a pass evaluates classes instead of
 * jobs, and its cost depends on the number of different kinds of waiting jobs, not on the number of
 * jobs.
 *
 * A queued job is in exactly one group, or in none while a user holds it, or while it waits for
 * other jobs to succeed (core->dependents), for members of its array to end (array.c), for its
 * retry delay (core->delayed), for a search, or for missing checkpoints (core->delayed: until the
 * next search).
 */
#include <stdlib.h>
#include <string.h>

#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"

enum {
    FAILURES_MAX = 2,         /* failures of a job on one node after which the job avoids the
                               * node */
    FAILURES_CONSIDERED = 32, /* newest attempts of a job that are examined */
};

/* ---- classes ----------------------------------------------------------------------------------*/

/* Returns a job's length rounded up to three significant binary digits, so that there are few
 * distinct lengths and few classes. */
static int64_t round_up(int64_t minutes)
{
    int64_t unit = 1;

    while (minutes / unit >= 8)
        unit *= 2;
    return (minutes + unit - 1) / unit * unit;
}

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
    key.shape = hd_plan_shape_of(&job->needs.wish);
    for (size_t k = 0; k < count;
         k++) /* an older build may have accepted a job that this one cannot run */
        key.possible |= core_devices_needed(&job->needs, kinds[k]) ? 1u << kinds[k] : 0;
    key.has_base = base != NULL;
    key.base_shared = base && base->shared;
    key.base_node = base ? core_find_node(core, base->node_uuid) : NULL;
    key.length_minutes = round_up((core_predict_length_ms(core, job) + 59999) / 60000);
    key.hot_spares = core->config.spare_nodes && core_has_failed(job);
    key.avoids = job->avoided_count ? job->rec.job : 0;
    return key;
}

static bool is_class_before(const void *item, const void *key)
{
    return memcmp(&(*(struct core_class *const *)item)->key, key, sizeof(struct core_class_key)) <
           0;
}

static struct core_class *class_of(struct hd_core *core, const struct core_class_key *key)
{
    const size_t at = core_bisect(core->classes, core->class_count, sizeof core->classes[0], key,
                                  is_class_before);
    struct core_class *made;

    if (at < core->class_count && memcmp(&core->classes[at]->key, key, sizeof *key) == 0)
        return core->classes[at];
    made = core_new_item(core, &core->classes, core->class_count, &core->class_size, sizeof *made);
    if (!made)
        return NULL;
    made->key = *key;
    memmove(&core->classes[at + 1], &core->classes[at], (core->class_count - at) * sizeof made);
    core->classes[at] = made;
    core->class_count++;
    return made;
}

/* ---- groups -----------------------------------------------------------------------------------*/

/* Compares the keys of two groups; negative: `a` comes before `b` in core->groups. Only the order
 * of priorities has a meaning. */
static int compare(const struct core_job_group_key *a, const struct core_job_group_key *b)
{
    if (a->priority != b->priority)
        return a->priority > b->priority ? -1 : 1;
    if (a->account != b->account)
        return (uintptr_t)a->account < (uintptr_t)b->account ? -1 : 1;
    if (a->class != b->class)
        return (uintptr_t)a->class < (uintptr_t)b->class ? -1 : 1;
    return 0;
}

static bool is_group_before(const void *item, const void *key)
{
    return compare(&(*(struct core_job_group *const *)item)->key, key) < 0;
}

static struct core_job_group *group_of(struct hd_core *core, const struct core_job_group_key *key)
{
    const size_t low =
        core_bisect(core->groups, core->group_count, sizeof core->groups[0], key, is_group_before);
    struct core_job_group *made;

    if (low < core->group_count && compare(&core->groups[low]->key, key) == 0)
        return core->groups[low];
    made = core_new_item(core, &core->groups, core->group_count, &core->group_size, sizeof *made);
    if (!made)
        return NULL;
    made->key = *key;
    key->class->group_count++;
    memmove(&core->groups[low + 1], &core->groups[low], (core->group_count - low) * sizeof made);
    core->groups[low] = made;
    core->group_count++;
    return made;
}

/* Inserts the job into the group's list. Most jobs are the newest of their group. A requeued job is
 * older than most, so the search from the front passes only other requeued jobs. */
static void link_job(struct core_job_group *group, struct core_job *job)
{
    struct core_job *after = NULL;

    if (group->last && group->last->rec.job > job->rec.job)
        for (after = group->first; after->rec.job < job->rec.job;)
            after = after->after;
    job->group = group;
    job->after = after;
    job->before = after ? after->before : group->last;
    *(job->before ? &job->before->after : &group->first) = job;
    *(job->after ? &job->after->before : &group->last) = job;
}

static void unlink_job(struct hd_core *core, struct core_job *job)
{
    struct core_job_group *group = job->group;

    *(job->before ? &job->before->after : &group->first) = job->after;
    *(job->after ? &job->after->before : &group->last) = job->before;
    job->group = NULL;
    job->before = job->after = NULL;
    core_due_if(core, CORE_DUE_SWEEP, !group->first);
}

void core_waiting_sweep(struct hd_core *core)
{
    size_t kept = 0;

    if (!core_take_due(core, CORE_DUE_SWEEP))
        return;
    for (size_t i = 0; i < core->group_count; i++) {
        if (core->groups[i]->first) {
            core->groups[kept++] = core->groups[i];
            continue;
        }
        core->groups[i]->key.class->group_count--;
        free(core->groups[i]);
    }
    core->group_count = kept;
    kept = 0;
    for (size_t i = 0; i < core->class_count; i++) {
        if (core->classes[i]->group_count)
            core->classes[kept++] = core->classes[i];
        else
            free(core->classes[i]);
    }
    core->class_count = kept;
}

/* ---- nodes on which a job failed --------------------------------------------------------------*/

/* Returns the node that the failure of the attempt names; NULL: none. A damaged or missing
 * checkpoint is not the node's fault. */
static const struct core_node *failed_on(const struct core_job *job,
                                         const struct core_attempt *attempt)
{
    if (attempt->rec.state != HD_ATTEMPT_STATE_ENDED || !core_is_failure(attempt->rec.end.cause) ||
        core_attempt_found_base_damaged(attempt) || core_attempt_missed_base(job, attempt))
        return NULL;
    for (size_t i = 0; i < attempt->alloc_count; i++)
        if (core_same(attempt->allocs[i].node->rec.name, attempt->rec.end.node))
            return attempt->allocs[i].node;
    return NULL;
}

static bool knows(const struct core_job *job, const struct core_node *node)
{
    for (size_t i = 0; i < job->avoided_count; i++)
        if (job->avoided[i] == node)
            return true;
    return false;
}

/* Finds the nodes on which the job failed twice; the job avoids them if it fits elsewhere. */
static void learn_failures(struct core_job *job)
{
    const int32_t newest = job->rec.attempt_count;
    const int32_t oldest = newest - job->rec.resumed_attempt > FAILURES_CONSIDERED
                               ? newest - FAILURES_CONSIDERED
                               : job->rec.resumed_attempt;

    job->avoided_count = 0;
    for (int32_t k = newest; k > oldest && job->avoided_count < CORE_AVOIDED_MAX; k--) {
        const struct core_node *node = failed_on(job, core_find_attempt(job, k));
        int failures = 0;

        for (int32_t i = k; node && i > oldest; i--)
            failures += failed_on(job, core_find_attempt(job, i)) == node;
        if (failures >= FAILURES_MAX && !knows(job, node))
            job->avoided[job->avoided_count++] = node;
    }
}

/* ---- jobs -------------------------------------------------------------------------------------*/

static void enter_group(struct hd_core *core, struct core_job *job)
{
    const struct core_class_key key = key_of(core, job);
    const struct core_job_group_key group_key = {
        .priority = job->rec.priority, .account = job->account, .class = class_of(core, &key)};
    struct core_job_group *group = group_key.class ? group_of(core, &group_key) : NULL;

    job->wait = CORE_WAIT_NONE;
    if (group)
        link_job(group, job);
    if (group && !job->price_predicted && core->config.asks_layouts)
        core_jobs_add(core, &core->price_unpredicted, job);
}

/* Puts a job into its group, from which it may start, or lets it wait for its array. */
static void let_start(struct hd_core *core, struct core_job *job)
{
    if (core_array_keeps(job))
        job->wait = CORE_WAIT_ARRAY;
    else
        enter_group(core, job);
}

enum { LOOK_MS = 60 * 1000 }; /* milliseconds between two searches for missing checkpoints */

/* Lets a job whose checkpoints are missing wait for the next search of the disk. */
static void wait_for_search(struct hd_core *core, struct core_job *job)
{
    job->wait = CORE_WAIT_MISSING;
    job->not_before_mono_ms = core->now.mono_ms + LOOK_MS;
    core_heap_put(core, &core->delayed, (uint64_t)job->not_before_mono_ms, job->rec.job);
}

void core_waiting_add(struct hd_core *core, struct core_job *job)
{
    learn_failures(job);
    if (job->array)
        job->array->due = true;
    if (job->search) {
        job->wait = CORE_WAIT_SEARCH;
    } else if (!core_has_started(job) && core_waits_for_success(core, job)) {
        job->wait = job->rec.held ? CORE_WAIT_HELD : CORE_WAIT_AFTER;
        core_jobs_add(core, &core->dependents, job);
    } else if (job->rec.held) {
        job->wait = CORE_WAIT_HELD;
    } else if (core_lacks_checkpoint(job)) {
        wait_for_search(core, job);
    } else if (job->not_before_mono_ms <= core->now.mono_ms) {
        let_start(core, job);
    } else {
        job->wait = CORE_WAIT_DELAY;
        core_heap_put(core, &core->delayed, (uint64_t)job->not_before_mono_ms, job->rec.job);
    }
}

void core_waiting_remove(struct hd_core *core, struct core_job *job)
{
    if (job->group)
        unlink_job(core, job);
    core_jobs_remove(&core->dependents, job);
    core_jobs_remove(&core->price_unpredicted, job);
    job->open_s = 0;
    if (job->array)
        job->array->due = true;
    job->planning = NULL; /* the layout cache may drop layouts for which no job in a group waits */
    job->wait = CORE_WAIT_NONE; /* makes the job's entry in core->delayed stale */
}

void core_waiting_again(struct hd_core *core, struct core_job *job)
{
    core_waiting_remove(core, job);
    core_waiting_add(core, job);
    core->due |= CORE_DUE_PASS;
}

void core_waiting_moved(struct hd_core *core, struct core_job *job)
{
    const struct core_class_key key = key_of(core, job);
    enum core_wait wait;
    uint64_t behind;

    core->due |= CORE_DUE_TICK;
    if (!job->group || memcmp(&job->group->key.class->key, &key, sizeof key) == 0)
        return;
    wait = core_wait_of(core, job, &behind);
    unlink_job(core, job);
    enter_group(core, job);
    job->wait = wait; /* the reason stays valid until the next pass evaluates the job */
    job->wait_job = behind;
    job->evaluated_in = core->pass;
}

/* Returns the first job of core->delayed; NULL: that entry is stale. */
static struct core_job *first_delayed(const struct hd_core *core)
{
    const struct core_heap_item *first = &core->delayed.items[0];
    struct core_job *job = core_find_job(core, first->value);

    return job && (job->wait == CORE_WAIT_DELAY || job->wait == CORE_WAIT_MISSING) &&
                   (uint64_t)job->not_before_mono_ms == first->key
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
        if (job->wait == CORE_WAIT_MISSING && core->jobs_dir_problem && *core->jobs_dir_problem)
            wait_for_search(core, job); /* a search would only wait for the same disk */
        else if (job->wait == CORE_WAIT_MISSING)
            core_search_begin(core, job);
        else
            let_start(core, job);
    }
}

/* ---- searches ---------------------------------------------------------------------------------*/

void core_search_begin(struct hd_core *core, struct core_job *job)
{
    core_due_if(core, CORE_DUE_PASS, job->group != NULL); /* nodes may be reserved for the job */
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
    core->due |= CORE_DUE_PASS;
}

enum core_wait core_wait_of(const struct hd_core *core, const struct core_job *job,
                            uint64_t *ret_blocking_job)
{
    const struct core_job_group *group = job->group;
    const bool missed = group && job->evaluated_in != core->pass;

    *ret_blocking_job = job->wait_job;
    if (missed && group->closed_in == core->pass)
        return CORE_WAIT_QUOTA;
    if (!missed || group->key.class->closed_in != core->pass)
        return job->wait;
    *ret_blocking_job = group->key.class->wait_job;
    return group->key.class->wait;
}
