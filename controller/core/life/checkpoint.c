/* checkpoint: reports of ranks, the list of a job's checkpoints, and which of them are deleted. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"
#include "link/link.h"

/* ---- the list ---------------------------------------------------------------------------------*/

/* Returns whether a later checkpoint of the same attempt is listed. An older one that is not listed
 * was deleted; its reappearance means that the jobs directory was restored from a snapshot, in
 * which it may be the only one left. */
static bool is_before_known(const struct core_job *job,
                            const struct hd_checkpoint_record *checkpoint)
{
    for (size_t i = 0; i < job->checkpoint_count; i++)
        if (job->checkpoints[i].attempt == checkpoint->attempt &&
            job->checkpoints[i].step > checkpoint->step)
            return true;
    return false;
}

/* Returns whether the newest attempt started from this checkpoint (I6): it is kept until the job
 * ends, because a rank may still have to read it, and the next attempt needs it if this one writes
 * none. */
static bool is_base(const struct core_job *job, const struct hd_checkpoint_record *checkpoint)
{
    const struct core_attempt *newest = core_newest(job);

    return newest && !job->ended && checkpoint->attempt == newest->rec.base_attempt &&
           checkpoint->step == newest->rec.base_step;
}

static void forget(struct core_job *job, size_t index)
{
    struct hd_checkpoint_record *c = &job->checkpoints[index];

    core_free_texts(&hd_table_checkpoints, c);
    job->checkpoint_count--;
    memmove(c, c + 1, (job->checkpoint_count - index) * sizeof *c);
}

/* Removes the oldest checkpoint from a job's list that has HD_CTL_CHECKPOINTS_MAX entries. The
 * files and the store keep it, but no attempt starts from it. False: `checkpoint` itself is older
 * than all listed ones. */
static bool add_checkpoint_slot(struct core_job *job, const struct hd_checkpoint_record *checkpoint)
{
    const struct hd_checkpoint_record *all = job->checkpoints, *best = core_checkpoint_best(job);
    size_t oldest = job->checkpoint_count;

    if (job->checkpoint_count < HD_CTL_CHECKPOINTS_MAX)
        return true;
    for (size_t i = 0; i < job->checkpoint_count; i++) {
        if (all[i].state == HD_CHECKPOINT_STATE_PRESENT && !is_base(job, &all[i]) &&
            &all[i] != best &&
            (oldest == job->checkpoint_count || core_checkpoint_is_newer(&all[oldest], &all[i])))
            oldest = i;
    }
    if (oldest == job->checkpoint_count || !core_checkpoint_is_newer(checkpoint, &all[oldest]))
        return false;
    forget(job, oldest);
    return true;
}

/* Adds a checkpoint that is not listed yet to the job's list. is_left_over: it is to be deleted.
 * False: it is older than all entries of a full list. */
static bool add(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                const struct core_node *node, const struct hd_checkpoint_record *checkpoint,
                bool is_left_over)
{
    struct hd_checkpoint_record record = *checkpoint;

    record.job = job->rec.job;
    record.attempt = attempt->rec.attempt;
    if (!add_checkpoint_slot(job, &record) ||
        !core_grow_array(core, &job->checkpoints, job->checkpoint_count, &job->checkpoint_size,
                         sizeof record))
        return false;
    record.node_uuid = node->rec.uuid;
    core_own_texts(core, &hd_table_checkpoints, &record);
    /* every node of an attempt on several nodes sees the jobs directory */
    record.shared = checkpoint->shared || node->jobs_dir_visible || attempt->alloc_count > 1;
    record.state = is_left_over ? HD_CHECKPOINT_STATE_DELETING : HD_CHECKPOINT_STATE_PRESENT;
    record.sequence = ++job->sequence;
    job->checkpoints[job->checkpoint_count++] = record;
    hd_batch_add_checkpoint(core->out->batch, &record);
    core_announce(core, job);
    if (is_left_over)
        core_jobs_add(core, &core->deleting, job);
    return true;
}

void core_checkpoint_take(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                          const struct core_node *node,
                          const struct hd_checkpoint_record *checkpoint)
{
    struct hd_checkpoint_record record = *checkpoint;
    /* I5: a newer attempt exists, and started from another checkpoint. Not if the job has no
     * checkpoint to start from: this one may be the last. */
    const bool is_left_over = attempt != core_newest(job) && !core_lacks_checkpoint(job);
    struct hd_checkpoint_record *listed;
    struct core_node *deleter;

    record.attempt = attempt->rec.attempt;
    listed = core_checkpoint_listed(job, record.attempt, record.step);
    if (listed)
        core_checkpoint_is_back(core, job, listed, &record);
    if (listed || (is_left_over && job->needs.keep <= 0) || record.step < 1 || !record.path ||
        !*record.path)
        return;
    if (is_left_over && is_before_known(job, &record))
        return;
    if (!add(core, job, attempt, node, &record, is_left_over))
        return;
    attempt->saved_mono_ms = core->now.mono_ms;
    if (!is_left_over && core_active(job) && job->needs.devices_max > attempt->rec.plan.rank_count)
        core_jobs_add(core, &core->resize_candidates, job);
    deleter = core_checkpoint_deleter(core, &job->checkpoints[job->checkpoint_count - 1]);
    if (is_left_over && deleter)
        core_dirty_desired(core, deleter);
    else if (!is_left_over)
        core_checkpoint_prune(core, job);
    if (job->rec.state == HD_JOB_STATE_QUEUED) /* the report came late: its attempt has ended */
        core_checkpoints_moved(core, job);
}

void core_checkpoint_adopt(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                           const struct hd_checkpoint_record *checkpoint)
{
    if (attempt->alloc_count && checkpoint->step > 0 &&
        !core_checkpoint_listed(job, attempt->rec.attempt, checkpoint->step))
        (void)add(core, job, attempt, attempt->allocs[0].node, checkpoint, false);
}

/* ---- deletion ---------------------------------------------------------------------------------*/

void core_checkpoint_prove(struct hd_core *core, struct core_job *job, int32_t attempt,
                           int64_t step)
{
    const struct core_attempt *a = core_find_attempt(job, attempt);
    bool proved = false;

    for (size_t i = 0; a && i < job->checkpoint_count; i++) {
        struct hd_checkpoint_record *c = &job->checkpoints[i];
        const bool is_from_it = c->attempt == attempt ? c->step <= step
                                                      : c->attempt == a->rec.base_attempt &&
                                                            c->step == a->rec.base_step;

        if (c->proven || !is_from_it)
            continue;
        c->proven = proved = true;
        hd_batch_add_checkpoint(core->out->batch, c);
    }
    if (proved)
        core_checkpoint_prune(core, job);
}

void core_checkpoint_disprove_base(struct hd_core *core, struct core_job *job,
                                   const struct core_attempt *attempt)
{
    for (size_t i = 0; i < job->checkpoint_count; i++) {
        struct hd_checkpoint_record *c = &job->checkpoints[i];

        if (!c->proven || c->attempt != attempt->rec.base_attempt ||
            c->step != attempt->rec.base_step)
            continue;
        c->proven = false;
        hd_batch_add_checkpoint(core->out->batch, c);
    }
}

/* Returns how many checkpoints newer than `than` an attempt may start from. Damaged and missing
 * ones do not count towards `keep`. */
static size_t count_newer(const struct core_job *job, const struct hd_checkpoint_record *than)
{
    size_t count = 0;

    for (size_t i = 0; i < job->checkpoint_count; i++)
        count += core_checkpoint_is_there(&job->checkpoints[i]) &&
                 core_checkpoint_is_newer(&job->checkpoints[i], than) &&
                 !core_checkpoint_is_damaged(job, &job->checkpoints[i]);
    return count;
}

void core_checkpoint_forget_all(struct hd_core *core, struct core_job *job)
{
    while (job->checkpoint_count)
        forget(job, job->checkpoint_count - 1);
    core_jobs_remove(&core->deleting, job);
}

static void begin_deletion(struct hd_core *core, struct core_job *job,
                           struct hd_checkpoint_record *checkpoint)
{
    struct core_node *node;

    checkpoint->state = HD_CHECKPOINT_STATE_DELETING;
    core_jobs_add(core, &core->deleting, job);
    hd_batch_add_checkpoint(core->out->batch, checkpoint);
    node = core_checkpoint_deleter(core, checkpoint);
    if (node)
        core_dirty_desired(core, node);
}

/* Returns why a user may not remove a checkpoint; NULL: it may be removed. A job that has ended
 * needs none of its checkpoints, and a missing one has no files. */
static const char *needed_for(const struct core_job *job, const struct hd_checkpoint_record *c)
{
    if (c->missing)
        return NULL;
    if (job->ended)
        return NULL;
    if (is_base(job, c))
        return "its attempt started from it";
    if (c == core_checkpoint_newest(job))
        return "it is the newest, from which the next attempt would start";
    if (c == core_checkpoint_proven(job))
        return "it is the newest after which the loss was finite";
    return c == core_checkpoint_best(job) ? "it is the best, which checkpoint.best keeps" : NULL;
}

enum hd_status core_checkpoint_remove(struct hd_core *core, struct core_job *job, int64_t step,
                                      const char *by)
{
    bool found = false;

    for (size_t i = 0; i < job->checkpoint_count; i++) {
        const struct hd_checkpoint_record *c = &job->checkpoints[i];
        const char *need =
            c->step == step && c->state == HD_CHECKPOINT_STATE_PRESENT ? needed_for(job, c) : NULL;

        found |= c->step == step && c->state == HD_CHECKPOINT_STATE_PRESENT;
        if (need)
            return hd_err(HD_CONFLICT,
                          "the checkpoint of step %lld of job %llu is in use: %s; the job is %s",
                          (long long)step, (unsigned long long)job->rec.job, need,
                          hd_job_state_name((int)job->rec.state));
    }
    if (!found)
        return hd_err(
            HD_NOT_FOUND,
            "job %llu has no checkpoint of step %lld; heddle checkpoint ls %llu lists them",
            (unsigned long long)job->rec.job, (long long)step, (unsigned long long)job->rec.job);
    for (size_t i = 0; i < job->checkpoint_count; i++)
        if (job->checkpoints[i].step == step &&
            job->checkpoints[i].state == HD_CHECKPOINT_STATE_PRESENT)
            begin_deletion(core, job, &job->checkpoints[i]);
    if (job->rec.state == HD_JOB_STATE_QUEUED)
        core_checkpoints_moved(core, job); /* the missing checkpoints for which the job waited may
                                            * all have been deleted from its list now */
    core_dirty_job(core, job);
    core_event_checkpoint_removed(core, job, step, by);
    return HD_OK;
}

void core_checkpoint_prune(struct hd_core *core, struct core_job *job)
{
    if (job->needs.keep <= 0)
        return;
    for (size_t i = 0; i < job->checkpoint_count; i++) {
        struct hd_checkpoint_record *c = &job->checkpoints[i];

        if (c->state != HD_CHECKPOINT_STATE_PRESENT || is_base(job, c) ||
            c == core_checkpoint_proven(job) || /* a run that diverges may fall back to it */
            c == core_checkpoint_best(job) || count_newer(job, c) < (size_t)job->needs.keep)
            continue;
        begin_deletion(core, job, c);
    }
}

struct core_node *core_find_deleter(const struct hd_core *core)
{
    for (size_t i = 0; i < core->node_count; i++)
        if (core->nodes[i]->synced && core->nodes[i]->jobs_dir_visible &&
            !core->nodes[i]->rec.retired)
            return core->nodes[i];
    return NULL;
}

struct core_node *core_checkpoint_deleter(const struct hd_core *core,
                                          const struct hd_checkpoint_record *checkpoint)
{
    struct core_node *writer = core_find_node(core, checkpoint->node_uuid);
    struct core_node *other = checkpoint->shared ? core_find_deleter(core) : NULL;

    if (writer && writer->rec.state != HD_NODE_STATE_LOST && !writer->rec.retired)
        return writer;
    return other ? other : writer;
}

void core_checkpoint_deleted(struct hd_core *core, const struct core_node *node,
                             const struct hd_deletion *deletion)
{
    struct core_job *job = core_find_job(core, deletion->job);

    for (size_t i = 0; job && i < job->checkpoint_count; i++) {
        struct hd_checkpoint_record *c = &job->checkpoints[i];

        if (c->attempt != deletion->attempt || c->step != deletion->step ||
            c->state != HD_CHECKPOINT_STATE_DELETING ||
            (!core_same(c->node_uuid, node->rec.uuid) && core_checkpoint_deleter(core, c) != node))
            continue;
        c->state = HD_CHECKPOINT_STATE_DELETED;
        if (deletion->left && *deletion->left)
            core_event_files_left(core, job, node, deletion->left);
        hd_batch_add_checkpoint(core->out->batch, c);
        forget(job, i);
        if (!core_waits_for_deletion(job))
            core_jobs_remove(&core->deleting, job);
        core_dirty_job(core, job); /* flush in core.c frees an ended job after its last deletion */
        core_dirty_desired(core, (struct core_node *)(uintptr_t)node);
        return;
    }
}

void core_checkpoint_abandon(struct hd_core *core, struct core_node *node)
{
    for (size_t j = 0; j < core->deleting.count;) {
        struct core_job *job = core->deleting.items[j];

        for (size_t i = 0; i < job->checkpoint_count;) {
            struct hd_checkpoint_record *c = &job->checkpoints[i];

            if (c->state != HD_CHECKPOINT_STATE_DELETING ||
                core_checkpoint_deleter(core, c) != node) {
                i++;
                continue;
            }
            c->state = HD_CHECKPOINT_STATE_DELETED;
            hd_batch_add_checkpoint(core->out->batch, c);
            forget(job, i);
            core_dirty_job(core, job);
        }
        if (core_waits_for_deletion(job))
            j++;
        else
            core_jobs_remove(&core->deleting, job);
    }
}

/* ---- reports ----------------------------------------------------------------------------------*/

static enum hd_status find_reporter(const struct hd_core *core, const struct hd_core_event *event,
                                    struct core_node **ret_node, struct core_job **ret_job,
                                    struct core_attempt **ret_attempt)
{
    struct core_node *node = core_find_node(core, event->report.uuid);
    struct core_job *job = core_find_job(core, event->report.job);
    struct core_attempt *attempt = job ? core_find_attempt(job, event->report.attempt) : NULL;

    if (!node || !node->connected || node->stream != event->report.stream)
        return hd_err(HD_CONFLICT, "the node has a newer stream, or was lost; connect again");
    if (!attempt || job->ended)
        return hd_err(HD_NOT_FOUND, "report refused: job %llu has ended or has no attempt %d",
                      (unsigned long long)event->report.job, event->report.attempt);
    if (event->report.rank < 0 || event->report.rank >= attempt->rec.plan.rank_count ||
        !core_find_node_alloc(attempt, node))
        return hd_err(HD_INVALID, "attempt %d of job %llu has no rank %d on %s",
                      event->report.attempt, (unsigned long long)event->report.job,
                      event->report.rank, node->rec.name);
    *ret_node = node;
    *ret_job = job;
    *ret_attempt = attempt;
    return HD_OK;
}

/* Appends an event that a rank has reported to the job's history. The event may be about another
 * rank than the one that sent it. */
static void take_event(struct hd_core *core, struct core_job *job,
                       const struct core_attempt *attempt, const struct hd_core_event *event,
                       const struct core_node *node)
{
    struct hd_event_record record = event->report.event;
    const char *message = record.message ? record.message : "";
    const char *kind = record.kind ? record.kind : "";
    char message_kept[HD_CTL_MESSAGE_BYTES_MAX + 1], kind_kept[HD_CTL_NAME_BYTES_MAX + 1];

    (void)snprintf(message_kept, sizeof message_kept, "%.*s",
                   (int)hd_record_fit(message, sizeof message_kept - 1), message);
    (void)snprintf(kind_kept, sizeof kind_kept, "%.*s",
                   (int)hd_record_fit(kind, sizeof kind_kept - 1), kind);
    record.message = message_kept;
    record.kind = kind_kept;
    record.job = job->rec.job;
    record.attempt = event->report.attempt;
    record.node = node->rec.name;
    if (record.rank >= 0 && record.rank < attempt->rec.plan.rank_count)
        record.node = attempt->rec.plan.ranks[record.rank].node_name;
    else
        record.rank = event->report.rank;
    record.sequence = ++job->sequence;
    hd_batch_add_event(core->out->batch, &record);
}

static void take_step(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                      const struct hd_core_event *event)
{
    struct hd_step_record record = event->report.step;

    record.job = job->rec.job;
    record.attempt = event->report.attempt;
    record.sequence = ++job->sequence;
    hd_batch_add_step(core->out->batch, &record);
    core_due_if(core, CORE_DUE_TICK,
                core_predict_step(core, job, attempt, record.step, record.time_ms) &&
                    core->group_count);
    core_predict_judge(core, job, attempt);
    if (!isfinite(record.metrics.loss) || !isfinite(record.metrics.grad_norm))
        return;
    attempt->had_finite_step = true;
    /* a finite loss proves the weights from before this step */
    core_checkpoint_prove(core, job, record.attempt, record.step - 1);
}

static void take_validation(struct hd_core *core, struct core_job *job,
                            const struct hd_core_event *event)
{
    struct hd_validation_record record = event->report.validation;

    record.job = job->rec.job;
    record.attempt = event->report.attempt;
    record.sequence = ++job->sequence;
    hd_batch_add_validation(core->out->batch, &record);
}

enum hd_status core_report(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_node *node = NULL;
    struct core_job *job = NULL;
    struct core_attempt *attempt = NULL;
    enum hd_status st = find_reporter(core, event, &node, &job, &attempt);
    struct hd_position_record position = {.job = event->report.job,
                                          .attempt = event->report.attempt,
                                          .rank = event->report.rank,
                                          .seq = event->report.seq};

    if (st)
        return st;
    if (event->report.seq <= attempt->seq[event->report.rank])
        return HD_OK; /* a duplicate report, sent again after a reconnect */
    attempt->seq[event->report.rank] = event->report.seq;
    hd_batch_add_position(core->out->batch, &position);
    switch (event->report.kind) {
    case HD_REPORT_STEP:
        take_step(core, job, attempt, event);
        break;
    case HD_REPORT_VALIDATION:
        take_validation(core, job, event);
        break;
    case HD_REPORT_CHECKPOINT:
        core_checkpoint_take(core, job, attempt, node, &event->report.checkpoint);
        break;
    case HD_REPORT_EVENT:
        take_event(core, job, attempt, event, node);
        break;
    }
    core_announce(core, job);
    return HD_OK;
}
