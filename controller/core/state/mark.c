/* mark: notes which records and desired sets a step has changed, and adds entries to histories.
 * core.c adds the changed records to the batch when the step ends.
 */
#include <stdarg.h>
#include <stdio.h>

#include "controller/core/state/state.h"
#include "controller/core/state/texts.h"

void core_dirty_job(struct hd_core *core, struct core_job *job)
{
    if (job->dirty)
        return;
    job->dirty = true;
    job->next_dirty = NULL;
    *core->dirty_jobs_end = job;
    core->dirty_jobs_end = &job->next_dirty;
}

void core_dirty_attempt(struct hd_core *core, struct core_job *job, struct core_attempt *attempt)
{
    attempt->dirty = true;
    core_dirty_job(core, job);
}

static void link_dirty_node(struct hd_core *core, struct core_node *node)
{
    if (node->dirty || node->desired_dirty)
        return;
    node->next_dirty = NULL;
    *core->dirty_nodes_end = node;
    core->dirty_nodes_end = &node->next_dirty;
}

void core_dirty_node(struct hd_core *core, struct core_node *node)
{
    link_dirty_node(core, node);
    node->dirty = true;
}

void core_dirty_desired(struct hd_core *core, struct core_node *node)
{
    if (node->desired_dirty)
        return;
    link_dirty_node(core, node);
    node->desired_dirty = true;
    node->generation++;
}

void core_announce(struct hd_core *core, const struct core_job *job)
{
    struct hd_core_out *out = core->out;

    if (out->job_count && out->jobs[out->job_count - 1] == job->rec.job)
        return;
    if (core_grow_array(core, &out->jobs, out->job_count, &out->job_size, sizeof *out->jobs))
        out->jobs[out->job_count++] = job->rec.job;
}

void core_event(struct hd_core *core, struct core_job *job, enum hd_event_kind kind,
                int32_t attempt, int32_t rank, const char *node, const char *fmt, ...)
{
    char message[HD_CTL_MESSAGE_BYTES_MAX + 8]; /* buffer longer than the limit, so that
                                                 * hd_record_fit cuts between characters */
    struct hd_event_record event = {.time_ms = core->now.wall_ms,
                                    .attempt = attempt,
                                    .rank = rank,
                                    .kind = hd_event_kind_name(kind),
                                    .node = node,
                                    .message = message};
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    message[hd_record_fit(message, HD_CTL_MESSAGE_BYTES_MAX)] = '\0';
    if (job) {
        event.job = job->rec.job;
        event.sequence = ++job->sequence;
        core_announce(core, job);
    } else {
        event.sequence = ++core->cluster_sequence;
    }
    hd_batch_add_event(core->out->batch, &event);
}
