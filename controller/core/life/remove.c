/* remove: removal of ended jobs with their folders; and the end of all jobs, when a one-machine
 * cluster is known to have died.
 *
 * A job's folder is deleted by the nodes that ran it: where the jobs directory is not shared, each
 * node has a part of it. For a node that is gone, another node that sees the jobs directory
 * deletes.
 */
#include <inttypes.h>

#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"

/* ---- which node deletes -----------------------------------------------------------------------*/

/* Returns the node that must delete the files of the attempt on this allocation's node: that node
 * itself or, if it is gone, another; NULL: none can now. */
static struct core_node *find_remover(const struct hd_core *core,
                                      const struct core_node_alloc *alloc)
{
    struct core_node *node = alloc->node;

    if (!node->rec.retired && (node->rec.state != HD_NODE_STATE_LOST || !node->jobs_dir_visible))
        return node;
    return core_find_deleter(core);
}

bool core_removes(const struct hd_core *core, const struct core_job *job,
                  const struct core_node *node)
{
    const struct core_node_alloc *alloc;
    int32_t attempt = 1;
    size_t index = 0;

    if (job->rec.removal != HD_REMOVAL_BEGUN)
        return false;
    while ((alloc = core_next_unremoved(job, &attempt, &index)))
        if (find_remover(core, alloc) == node)
            return true;
    return false;
}

void core_removed(struct hd_core *core, const struct core_node *node, uint64_t number,
                  const char *left)
{
    struct core_job *job = core_find_job(core, number);
    struct core_node_alloc *alloc;
    int32_t attempt = 1;
    size_t index = 0;
    bool is_news = false;

    if (!job || job->rec.removal != HD_REMOVAL_BEGUN)
        return;
    while ((alloc = core_next_unremoved(job, &attempt, &index))) {
        alloc->removed = alloc->node == node || find_remover(core, alloc) == node;
        is_news |= alloc->removed;
    }
    if (is_news && left && *left)
        core_event_files_left(core, NULL, node, left);
    core_dirty_desired(core, (struct core_node *)(uintptr_t)node);
    if (!core_waits_for_deletion(job)) {
        core_jobs_remove(&core->deleting, job);
        core_dirty_job(core, job); /* flush in core.c frees the job */
    }
}

/* ---- remove -----------------------------------------------------------------------------------*/

static void begin_removal(struct hd_core *core, struct core_job *job, const char *by)
{
    struct core_node_alloc *alloc;
    int32_t attempt = 1;
    size_t index = 0;

    core_checkpoint_forget_all(core, job); /* its checkpoints are deleted together with the
                                            * folder */
    job->rec.removal = HD_REMOVAL_BEGUN;
    while ((alloc = core_next_unremoved(job, &attempt, &index))) {
        struct core_node *remover = find_remover(core, alloc);

        if (remover)
            core_dirty_desired(core, remover);
        if (!remover || !remover->synced || remover->rec.state == HD_NODE_STATE_UNREACHABLE)
            core->out->waits_for = remover ? remover->rec.name : alloc->node->rec.name;
    }
    if (core_waits_for_deletion(job))
        core_jobs_add(core, &core->deleting, job);
    core_dirty_job(core, job);
    core_event_job_removed(core, job, by);
}

/* Removes the checkpoints of one step of a job. job NULL: the job has ended and only the store has
 * it; it is loaded from the event. */
static enum hd_status remove_checkpoint(struct hd_core *core, struct core_job *job,
                                        const struct hd_core_event *event)
{
    const bool is_recalled = !job;
    enum hd_status st = HD_OK;

    if (job && job->rec.removal)
        return hd_err(HD_CONFLICT, "job %" PRIu64 " is being removed", job->rec.job);
    if (!job)
        st = core_recall(core, event, &job);
    if (!st) {
        st = core_checkpoint_remove(core, job, event->resume.checkpoint_step, event->resume.by);
        if (st && is_recalled)
            core_job_forget(core, job);
    }
    return st;
}

enum hd_status core_remove(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_job *job = core_find_job(core, event->resume.job->job);
    enum hd_status st = HD_OK;

    core->out->job = event->resume.job->job;
    if (event->resume.checkpoint_step)
        return remove_checkpoint(core, job, event);
    if (job && !job->ended)
        return hd_err(HD_CONFLICT,
                      "job %" PRIu64 " is %s: only a job that has ended is removed; stop it with: "
                      "heddle cancel %" PRIu64,
                      job->rec.job, hd_job_state_name((int)job->rec.state), job->rec.job);
    if (job && job->rec.removal)
        return HD_OK;
    if (!job)
        st = core_recall(core, event, &job);
    if (!st)
        begin_removal(core, job, event->resume.by);
    return st;
}

/* ---- end of all jobs --------------------------------------------------------------------------*/

enum hd_status core_end_all(struct hd_core *core, const struct hd_core_event *event)
{
    struct hd_text why = {0};

    for (size_t i = 0; i < core->node_count; i++) {
        struct core_node *node = core->nodes[i];

        if (node->rec.retired || node->rec.state == HD_NODE_STATE_LOST)
            continue;
        hd_text_clear(&why);
        core_add_end_with_controller(node, &why);
        core_node_lose(core, node, core_text(core, &why));
    }
    for (struct core_job *job = core_table_next(&core->jobs, NULL); job;
         job = core_table_next(&core->jobs, job))
        if (!job->ended)
            core_finish_job(core, job, HD_JOB_STATE_FAILED, event->end_all.reason);
    hd_text_free(&why);
    return HD_OK;
}
