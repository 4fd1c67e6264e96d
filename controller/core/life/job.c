/* job: jobs and attempts in memory. State charts: core.c; transitions: submit.c, start.c, end.c. */
#include <stdlib.h>
#include <string.h>

#include "controller/core/life/life.h"

/* ---- memory -----------------------------------------------------------------------------------*/

void core_set_job_state(struct hd_core *core, struct core_job *job, enum hd_job_state state)
{
    if (job->rec.state == HD_JOB_STATE_QUEUED) {
        core_waiting_remove(core, job);
        job->account->queue->waiting--;
    }
    job->rec.state = state;
    if (state == HD_JOB_STATE_QUEUED) {
        job->account->queue->waiting++;
        core_waiting_add(core, job);
        core_migration_becomes_pending(core, job);
        return;
    }
    core_search_end(core, job);
    core_pending_end(core, job);
    core_planned_start_end(core, job);
    job->better_until_mono_ms = job->price_mono_ms = 0;
}

/* Returns the account of the queue and owner that a job's record names. A queue that does not exist
 * (the record is from an older database) is replaced by the default queue. */
static struct core_account *account_for(struct hd_core *core, const struct hd_job_record *record)
{
    struct core_queue *queue = core_find_queue(core, record->queue);

    return core_account_of(core, queue ? queue : core_find_queue(core, NULL), record->owner);
}

struct core_job *core_job_new(struct hd_core *core, const struct hd_job_record *record,
                              const struct hd_job_needs *needs)
{
    struct core_job *job = calloc(1, sizeof *job);
    void *spec = malloc(record->spec_bytes + 1);
    struct core_account *account = account_for(core, record);

    if (job)
        job->rec = *record;
    if (!job || !spec || !account || !core_table_add(&core->jobs, job)) {
        free(job);
        free(spec);
        core->no_memory = true;
        return NULL;
    }
    if (record->spec_bytes)
        memcpy(spec, record->spec, record->spec_bytes);
    job->rec.spec = spec;
    job->rec.attempt_count = 0; /* core_attempt_new increments it */
    job->rec.queue = account->queue->rec.name;
    job->account = account;
    core_own_texts(core, &hd_table_jobs, &job->rec);
    job->needs = *needs;
    job->needs.name = job->rec.name;
    job->needs.queue = job->rec.queue;
    job->ended = record->state > HD_JOB_STATE_STOPPING;
    core_array_join(core, job);
    core->live_count += !job->ended;
    if (record->state == HD_JOB_STATE_QUEUED) {
        account->queue->waiting++;
        core_waiting_add(core, job);
    }
    return job;
}

static void free_attempt(struct core_attempt *attempt)
{
    for (int32_t i = 0; i < attempt->rec.plan.rank_count; i++) {
        core_free_text(&attempt->rec.plan.ranks[i].node_uuid);
        core_free_text(&attempt->rec.plan.ranks[i].node_name);
    }
    free(attempt->rec.plan.ranks);
    core_free_texts(&hd_table_attempts, &attempt->rec);
    for (size_t i = 0; i < attempt->alloc_count; i++)
        core_free_text(&attempt->allocs[i].problem);
    free(attempt->allocs);
    free(attempt->seq);
    free(attempt);
}

void core_job_free(struct core_job *job)
{
    for (int32_t i = 0; i < job->rec.attempt_count; i++)
        free_attempt(job->attempts[i]);
    for (size_t i = 0; i < job->checkpoint_count; i++)
        core_free_texts(&hd_table_checkpoints, &job->checkpoints[i]);
    free(job->attempts);
    free(job->checkpoints);
    core_free_text(&job->search_problem);
    core_pending_drop(job);
    core_migration_target_drop(job);
    free((void *)(uintptr_t)job->rec.spec);
    core_free_texts(&hd_table_jobs, &job->rec);
    core_free_text(&job->infeasible);
    free(job);
}

void core_job_forget(struct hd_core *core, struct core_job *job)
{
    core_table_remove(&core->jobs, job);
    core_array_leave(core, job);
    core_job_free(job);
}

/* ---- attempts in memory -----------------------------------------------------------------------*/

/* Returns the attempt's allocation on a node; creates it. Ranks of a node are usually consecutive,
 * so the newest allocation is tried first. */
static struct core_node_alloc *alloc_of(struct core_attempt *attempt, struct core_node *node)
{
    struct core_node_alloc *newest =
        attempt->alloc_count ? &attempt->allocs[attempt->alloc_count - 1] : NULL;
    struct core_node_alloc *alloc =
        newest && newest->node == node ? newest : core_find_node_alloc(attempt, node);

    if (alloc)
        return alloc;
    attempt->allocs[attempt->alloc_count].node = node;
    return &attempt->allocs[attempt->alloc_count++];
}

static bool copy_ranks(struct hd_core *core, struct core_attempt *attempt,
                       const struct hd_plan_record *plan)
{
    const size_t count = (size_t)plan->rank_count;

    attempt->rec.plan.rank_count = 0;
    attempt->rec.plan.ranks = calloc(count + 1, sizeof *plan->ranks);
    attempt->allocs = calloc(count + 1, sizeof *attempt->allocs);
    attempt->seq = calloc(count + 1, sizeof *attempt->seq);
    if (!attempt->rec.plan.ranks || !attempt->allocs || !attempt->seq)
        return false;
    attempt->rec.plan.rank_count = plan->rank_count;
    for (size_t i = 0; i < count; i++) {
        struct core_node *node = core_find_node(core, plan->ranks[i].node_uuid);

        attempt->rec.plan.ranks[i].device = plan->ranks[i].device;
        core_set_text(core, &attempt->rec.plan.ranks[i].node_uuid, plan->ranks[i].node_uuid);
        core_set_text(core, &attempt->rec.plan.ranks[i].node_name, plan->ranks[i].node_name);
        if (node)
            alloc_of(attempt, node)->devices++;
    }
    return true;
}

struct core_attempt *core_attempt_new(struct hd_core *core, struct core_job *job,
                                      const struct hd_attempt_record *record)
{
    struct core_attempt *attempt = core_new_item(
        core, &job->attempts, (size_t)job->rec.attempt_count, &job->attempt_size, sizeof *attempt);

    if (!attempt)
        return NULL;
    attempt->rec = *record;
    core_own_texts(core, &hd_table_attempts, &attempt->rec);
    if (!copy_ranks(core, attempt, &record->plan))
        core->no_memory = true;
    attempt->kind = hd_device_kind_of(attempt->rec.plan.layout.device);
    attempt->state_since_mono_ms = core->now.mono_ms;
    attempt->ends_mono_ms = INT64_MAX;
    job->attempts[job->rec.attempt_count++] = attempt;
    if (record->state != HD_ATTEMPT_STATE_ENDED)
        core_active_add(core, job);
    return attempt;
}

void core_attempt_set_end(struct hd_core *core, struct core_attempt *attempt,
                          const struct hd_end_record *end)
{
    const char *node = attempt->rec.end.node, *message = attempt->rec.end.message;

    core_set_text(core, &node, end->node);
    core_set_text(core, &message, end->message);
    attempt->rec.end = *end;
    attempt->rec.end.node = node;
    attempt->rec.end.message = message;
}

void core_attempt_note_devices(struct core_attempt *attempt)
{
    for (size_t i = 0; i < attempt->alloc_count; i++) {
        struct core_node_alloc *alloc = &attempt->allocs[i];
        struct core_node *node = alloc->node;

        alloc->works = 0;
        for (int32_t d = 0; d < node->rec.device_count; d++) {
            if (node->holds[d].job != attempt->rec.job)
                continue;
            node->holds[d].by = attempt;
            alloc->works += core_device_works(node, d);
        }
    }
}

void core_active_add(struct hd_core *core, struct core_job *job)
{
    struct core_attempt *attempt = core_newest(job);

    job->active = attempt;
    if (core->free_slot_count)
        attempt->slot = core->free_slots[--core->free_slot_count];
    else if (core_grow_array(core, &core->free_slots, core->slot_count, &core->slot_size,
                             sizeof *core->free_slots))
        attempt->slot = (uint32_t)core->slot_count++;
    core_jobs_add(core, &core->active, job);
    for (size_t i = 0; i < attempt->alloc_count; i++)
        core_jobs_add(core, &attempt->allocs[i].node->active, job);
    core_attempt_note_devices(attempt);
}

void core_active_remove(struct hd_core *core, struct core_job *job)
{
    const struct core_attempt *attempt = job->active;

    job->active = NULL;
    core->free_slots[core->free_slot_count++] = attempt->slot;
    if (job->array)
        job->array->due = true;
    core_jobs_remove(&core->active, job);
    for (size_t i = 0; i < attempt->alloc_count; i++)
        core_jobs_remove(&attempt->allocs[i].node->active, job);
}
