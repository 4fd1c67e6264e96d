/* queue: the queues in which jobs wait, their limits and their fair shares.
 *
 * A limit counts devices that attempts hold, including attempts that are stopping. Of two queues
 * with jobs of equal priority the one that holds less for its weight comes first. Past usage is not
 * remembered, so a restart of the controller changes no share.
 *
 * An account is one user's usage of one queue, created with the first job. Accounts, and ended jobs
 * in memory, point to their queue: the struct of a removed queue is kept, and reused if the queue
 * is created again.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"

/* ---- queues -----------------------------------------------------------------------------------*/

static bool is_queue_before(const void *item, const void *name)
{
    return strcmp((*(struct core_queue *const *)item)->rec.name, name) < 0;
}

/* Returns the index of the queue with this name in core->queues, or where it would be inserted. */
static size_t index_of_name(const struct hd_core *core, const char *name)
{
    return core_bisect(core->queues, core->queue_count, sizeof core->queues[0], name,
                       is_queue_before);
}

struct core_queue *core_find_queue(const struct hd_core *core, const char *name)
{
    const size_t at = index_of_name(core, name && *name ? name : "default");

    return at < core->queue_count &&
                   core_same(core->queues[at]->rec.name, name && *name ? name : "default")
               ? core->queues[at]
               : NULL;
}

/* Removes the struct of a queue of this name from the list of removed queues and returns it; NULL:
 * no removed queue had this name. */
static struct core_queue *take_removed(struct hd_core *core, const char *name)
{
    for (struct core_queue **at = &core->removed_queues; *at; at = &(*at)->next_removed) {
        struct core_queue *queue = *at;

        if (core_same(queue->rec.name, name)) {
            *at = queue->next_removed;
            return queue;
        }
    }
    return NULL;
}

struct core_queue *core_queue_put(struct hd_core *core, const struct hd_queue_record *record)
{
    struct core_queue *queue = core_find_queue(core, record->name);
    const size_t at = index_of_name(core, record->name);
    const char *name = queue ? queue->rec.name : NULL;

    if (!queue) {
        queue = take_removed(core, record->name);
        name = queue ? queue->rec.name : NULL;
        queue = queue ? queue : calloc(1, sizeof *queue);
        if (queue && !name)
            core_set_text(core, &name, record->name);
        if (!name || !core_grow_array(core, &core->queues, core->queue_count, &core->queue_size,
                                      sizeof queue)) {
            core_free_text(&name);
            free(queue);
            core->no_memory = true;
            return NULL;
        }
        memmove(&core->queues[at + 1], &core->queues[at], (core->queue_count - at) * sizeof queue);
        core->queues[at] = queue;
        core->queue_count++;
    }
    queue->rec = *record;
    queue->rec.name = name;
    return queue;
}

static enum hd_status check_setting(const char *what, int64_t value, int64_t min, int64_t max)
{
    if (value >= min && value <= max)
        return HD_OK;
    return hd_err(HD_INVALID, "%s: %" PRId64 " is not possible; give %" PRId64 " to %" PRId64, what,
                  value, min, max);
}

static enum hd_status check_queue(const struct hd_core *core, const struct hd_queue_record *queue)
{
    enum hd_status st;

    st = check_setting("devices_max", queue->devices_max, 0, INT32_MAX);
    if (!st)
        st = check_setting("user_devices_max", queue->user_devices_max, 0, INT32_MAX);
    if (!st)
        st = check_setting("weight", queue->weight, 1, HD_CTL_WEIGHT_MAX);
    if (!st && core->queue_count >= HD_CTL_QUEUES_MAX && !core_find_queue(core, queue->name))
        st = hd_err(HD_LIMIT, "there are %d queues, which is the limit; change one of them",
                    HD_CTL_QUEUES_MAX);
    return st;
}

enum hd_status core_set_queue(struct hd_core *core, const struct hd_core_event *event)
{
    const struct hd_queue_record *to = &event->queue.to;
    struct hd_queue_record record = {.name = to->name, .weight = 1};
    const struct core_queue *before;
    enum hd_status st;

    if (!to->name || !hd_queue_name_is_possible(to->name))
        return hd_err(HD_INVALID, "the name of the queue is not possible; " HD_QUEUE_NAME_RULE);
    before = core_find_queue(core, to->name);
    if (before)
        record = before->rec;
#define SET_KEY(member)
#define SET_LIVE(member)
#define SET_PUT(member)                                 \
    if (event->queue.given & (1u << HD_QUEUE_##member)) \
        record.member = to->member;
#define SET(R, P, when, type, member, ...) SET_##when(member)
    HD_QUEUE_FIELDS(SET, , )
    st = check_queue(core, &record);
    if (st)
        return st;
    core_event_queue_set(core, &record, event->queue.by);
    hd_batch_add_queue(core->out->batch, &record);
    (void)core_queue_put(core, &record);
    core->due |= CORE_DUE_PASS;
    return HD_OK;
}

static const struct core_job *first_job_in(const struct hd_core *core,
                                           const struct core_queue *queue, size_t *ret_count)
{
    const struct core_job *first = NULL;

    *ret_count = 0;
    for (const struct core_job *job = core_table_next(&core->jobs, NULL); job;
         job = core_table_next(&core->jobs, job)) {
        if (job->ended || job->account->queue != queue)
            continue;
        (*ret_count)++;
        first = first && first->rec.job < job->rec.job ? first : job;
    }
    return first;
}

enum hd_status core_remove_queue(struct hd_core *core, const struct hd_core_event *event)
{
    const char *name = event->queue.to.name ? event->queue.to.name : "";
    struct core_queue *queue = *name ? core_find_queue(core, name) : NULL;
    const struct core_job *first;
    struct hd_queue_record record;
    size_t at, count;

    if (!queue)
        return hd_err(HD_NOT_FOUND, "there is no queue '%s'; heddle queue ls lists them", name);
    if (core_same(name, "default"))
        return hd_err(HD_INVALID, "queue default is that of jobs which name none, and stays");
    first = first_job_in(core, queue, &count);
    if (first)
        return hd_err(HD_CONFLICT,
                      "queue %s has %zu job%s that %s not ended, such as job %" PRIu64
                      "; let them end, or cancel them, then remove it",
                      name, count, count == 1 ? "" : "s", count == 1 ? "has" : "have",
                      first->rec.job);
    core_event_queue_removed(core, name, event->queue.by);
    record = queue->rec;
    record.removed = true;
    hd_batch_add_queue(core->out->batch, &record);
    at = index_of_name(core, name);
    core->queue_count--;
    memmove(&core->queues[at], &core->queues[at + 1], (core->queue_count - at) * sizeof queue);
    queue->next_removed = core->removed_queues;
    core->removed_queues = queue;
    return HD_OK;
}

/* ---- accounts ---------------------------------------------------------------------------------*/

struct core_account *core_account_of(struct hd_core *core, struct core_queue *queue,
                                     const char *owner)
{
    struct core_account *account;
    struct hd_text name = {0};
    uint64_t index;
    bool known;

    hd_text_add(&name, "%s %s", queue->rec.name, owner ? owner : "");
    if (name.failed) {
        core->no_memory = true;
        return NULL;
    }
    known = core_map_get(&core->account_by_name, name.data, &index);
    account = known ? core->accounts[index] : calloc(1, sizeof *account);
    if (account && !known) {
        account->queue = queue;
        if (!core_grow_array(core, &core->accounts, core->account_count, &core->account_size,
                             sizeof account) ||
            !core_map_put(&core->account_by_name, name.data, core->account_count)) {
            free(account);
            account = NULL;
        } else {
            core->accounts[core->account_count++] = account;
        }
    }
    core->no_memory |= !account;
    hd_text_free(&name);
    return account;
}

void core_quota_take(struct core_job *job, int64_t devices)
{
    job->account->held += devices;
    job->account->queue->held += devices;
}

int64_t core_quota_left(const struct core_account *account, bool *ret_by_user)
{
    const struct hd_queue_record *queue = &account->queue->rec;
    const int64_t of_all =
        queue->devices_max ? queue->devices_max - account->queue->held : INT64_MAX;
    const int64_t of_user =
        queue->user_devices_max ? queue->user_devices_max - account->held : INT64_MAX;

    *ret_by_user = of_user < of_all;
    return *ret_by_user ? of_user : of_all;
}

enum hd_status core_check_quota(const struct hd_core *core, const struct hd_job_needs *needs)
{
    const struct core_queue *queue = core_find_queue(core, needs->queue);

    if (!queue)
        return hd_err(HD_NOT_FOUND,
                      "queue: there is no queue '%s'; heddle queue ls lists them, heddle queue set "
                      "makes one",
                      needs->queue);
    if (queue->rec.devices_max && needs->devices_min > queue->rec.devices_max)
        return hd_err(
            HD_INVALID,
            "resources.devices: the job needs %d, and queue %s may hold %d in all; ask for "
            "fewer, or use another queue",
            needs->devices_min, queue->rec.name, queue->rec.devices_max);
    if (queue->rec.user_devices_max && needs->devices_min > queue->rec.user_devices_max)
        return hd_err(HD_INVALID,
                      "resources.devices: the job needs %d, and one user may hold %d in queue %s; "
                      "ask for fewer, or use another queue",
                      needs->devices_min, queue->rec.user_devices_max, queue->rec.name);
    return HD_OK;
}

bool core_queue_is_behind(const struct core_queue *a, const struct core_queue *b)
{
    return a->held * b->rec.weight > b->held * a->rec.weight;
}

static void free_queue(struct core_queue *queue)
{
    core_free_text(&queue->rec.name);
    free(queue->next.items);
    free(queue);
}

void core_queues_free(struct hd_core *core)
{
    struct core_queue *queue;

    while ((queue = core->removed_queues)) {
        core->removed_queues = queue->next_removed;
        free_queue(queue);
    }
    for (size_t i = 0; i < core->queue_count; i++)
        free_queue(core->queues[i]);
    for (size_t i = 0; i < core->account_count; i++)
        free(core->accounts[i]);
    free(core->queues);
    free(core->accounts);
    core_map_done(&core->account_by_name);
}

/* ---- queries ----------------------------------------------------------------------------------*/

size_t hd_core_queue_count(const struct hd_core *core)
{
    return core->queue_count;
}

void hd_core_queue_at(const struct hd_core *core, size_t index, struct hd_queue_view *ret_view)
{
    const struct core_queue *queue = core->queues[index];

    *ret_view = (struct hd_queue_view){
        .record = &queue->rec, .devices_held = queue->held, .jobs_waiting = queue->waiting};
}

bool hd_core_queue_find(const struct hd_core *core, const char *name, size_t *ret_index)
{
    *ret_index = index_of_name(core, name);
    return *ret_index < core->queue_count && core_same(core->queues[*ret_index]->rec.name, name);
}

/* Checks invariant I14 of core.c (held devices per queue and user) by recounting from the
 * attempts. */
enum hd_status core_check_quotas(const struct hd_core *core)
{
    int64_t held = 0, counted = 0;
    size_t waiting = 0;

    for (size_t q = 0; q < core->queue_count; q++) {
        int64_t of_queue = 0;

        for (size_t i = 0; i < core->active.count; i++)
            if (core->active.items[i]->account->queue == core->queues[q])
                of_queue += core_active(core->active.items[i])->rec.plan.rank_count;
        if (of_queue != core->queues[q]->held)
            return hd_err(HD_INTERNAL,
                          "I14: the jobs of queue %s hold %" PRId64 " devices, %" PRId64
                          " are counted",
                          core->queues[q]->rec.name, of_queue, core->queues[q]->held);
        held += of_queue;
        waiting += core->queues[q]->waiting;
    }
    for (size_t i = 0; i < core->account_count; i++)
        counted += core->accounts[i]->held;
    if (counted != held)
        return hd_err(HD_INTERNAL, "I14: queues hold %" PRId64 " devices, their users %" PRId64,
                      held, counted);
    for (const struct core_job *job = core_table_next(&core->jobs, NULL); job;
         job = core_table_next(&core->jobs, job))
        waiting -= job->rec.state == HD_JOB_STATE_QUEUED;
    return waiting ? hd_err(HD_INTERNAL, "I14: the queues count other jobs than wait") : HD_OK;
}

bool core_within_quota(const struct core_job *job, struct hd_job_needs *ret_needs)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    bool by_user;
    const int64_t left = core_quota_left(job->account, &by_user);
    size_t kind_count;

    *ret_needs = job->needs;
    if (job->account->queue->rec.closed)
        return false;
    if (left >= job->needs.devices_max)
        return true;
    if (left < job->needs.devices_min)
        return false;
    ret_needs->devices_max = (int32_t)left;
    kind_count = core_kinds(ret_needs, kinds);
    for (size_t k = 0; k < kind_count; k++)
        if (core_devices_needed(ret_needs, kinds[k]))
            return true;
    return false;
}
