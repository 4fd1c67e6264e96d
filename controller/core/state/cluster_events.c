/* cluster_events: the sentence of every event that the core adds to the history of the cluster:
 * nodes, devices, queues, removed jobs, the controller. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "controller/core/state/texts.h"

static const char *text_or_empty(const char *text)
{
    return text ? text : "";
}

/* ---- nodes ------------------------------------------------------------------------------------*/

void core_event_joined(struct hd_core *core, const struct core_node *node)
{
    core_event(core, NULL, HD_EVENT_JOINED, 0, -1, node->rec.name, "node %s joined with %d devices",
               node->rec.name, node->rec.device_count);
}

void core_event_returned(struct hd_core *core, const struct core_node *node)
{
    core_event(core, NULL, HD_EVENT_RETURNED, 0, -1, node->rec.name, "node %s is back",
               node->rec.name);
}

void core_event_rebooted(struct hd_core *core, const struct core_node *node)
{
    core_event(core, NULL, HD_EVENT_REBOOTED, 0, -1, node->rec.name,
               "the machine of node %s was restarted", node->rec.name);
}

void core_event_renamed(struct hd_core *core, const struct core_node *node, const char *name)
{
    core_event(core, NULL, HD_EVENT_RENAMED, 0, -1, name, "node %s is called %s from now on",
               node->rec.name, name);
}

void core_event_rename_waits(struct hd_core *core, const struct core_node *node, const char *name)
{
    core_event(core, NULL, HD_EVENT_RENAME_WAITS, 0, -1, node->rec.name,
               "the daemon of %s calls itself %s now; the node keeps its name until the jobs "
               "that run there have ended",
               node->rec.name, name);
}

void core_event_node_state(struct hd_core *core, const struct core_node *node)
{
    const enum hd_node_state state = node->rec.state;
    const enum hd_event_kind kind = state == HD_NODE_STATE_DRAINING  ? HD_EVENT_DRAINING
                                    : state == HD_NODE_STATE_DRAINED ? HD_EVENT_DRAINED
                                                                     : HD_EVENT_READY;

    core_event(core, NULL, kind, 0, -1, node->rec.name, "node %s is %s", node->rec.name,
               hd_node_state_name((int)state));
}

void core_event_reachable(struct hd_core *core, const struct core_node *node)
{
    core_event(core, NULL, HD_EVENT_REACHABLE, 0, -1, node->rec.name, "node %s is reachable again",
               node->rec.name);
}

void core_event_unreachable(struct hd_core *core, const struct core_node *node, int64_t silent_ms)
{
    core_event(core, NULL, HD_EVENT_UNREACHABLE, 0, -1, node->rec.name,
               "node %s has been silent for %lld s; its ranks may still be training",
               node->rec.name, (long long)(silent_ms / 1000));
}

void core_event_lost(struct hd_core *core, const struct core_node *node, const char *why)
{
    core_event(core, NULL, HD_EVENT_LOST, 0, -1, node->rec.name, "%s and is lost", why);
}

void core_event_retired(struct hd_core *core, const struct core_node *node)
{
    core_event(
        core, NULL, HD_EVENT_RETIRED, 0, -1, node->rec.name,
        "another machine joined under the name %s of a lost node (uuid %s), which is retired",
        node->rec.name, node->rec.uuid);
}

void core_event_removed(struct hd_core *core, const struct core_node *node, const char *by)
{
    core_event(core, NULL, HD_EVENT_REMOVED, 0, -1, node->rec.name,
               "node %s (%s) was removed by %s%s", node->rec.name, node->rec.uuid, by,
               node->probe_asked ? "; its probe has no result" : "");
}

void core_event_drain(struct hd_core *core, const struct core_node *node, const char *by,
                      int64_t void_ms)
{
    const char *reason = text_or_empty(node->rec.drain_reason);
    const bool has_deadline = node->rec.drain_deadline_ms != 0;
    char deadline[HD_CLOCK_TEXT_MAX], before[HD_CLOCK_TEXT_MAX];

    hd_clock_format_utc(node->rec.drain_deadline_ms, deadline);
    hd_clock_format_utc(void_ms, before);
    if (!node->rec.drain)
        core_event(core, NULL, HD_EVENT_UNDRAIN, 0, -1, node->rec.name, "%s was undrained by %s",
                   node->rec.name, by);
    else
        core_event(core, NULL, HD_EVENT_DRAIN, 0, -1, node->rec.name,
                   "%s was drained by %s%s%s%s%s%s%s", node->rec.name, by, *reason ? ": " : "",
                   reason, has_deadline ? "; its jobs leave it by " : "",
                   has_deadline ? deadline : "", void_ms ? "; this replaces the deadline " : "",
                   void_ms ? before : "");
}

void core_event_node_leaves(struct hd_core *core, const struct core_node *node, const char *why)
{
    core_event(core, NULL, HD_EVENT_NODE_LEAVES, 0, -1, node->rec.name, "node %s %s",
               node->rec.name, why);
}

void core_event_refuses_jobs(struct hd_core *core, const struct core_node *node)
{
    core_event(core, NULL, node->lacks_jobs_dir ? HD_EVENT_JOBS_DIR_LOST : HD_EVENT_NODE_FULL, 0,
               -1, node->rec.name, "node %s %s", node->rec.name,
               text_or_empty(node->refuses_attempts));
}

void core_event_takes_jobs(struct hd_core *core, const struct core_node *node, bool had_no_jobs_dir)
{
    core_event(core, NULL, had_no_jobs_dir ? HD_EVENT_JOBS_DIR_BACK : HD_EVENT_NODE_HAS_ROOM, 0, -1,
               node->rec.name, "node %s takes new jobs again", node->rec.name);
}

void core_event_copy_refused(struct hd_core *core, const struct core_node *node, const char *from)
{
    core_event(core, NULL, HD_EVENT_COPY_REFUSED, 0, -1, node->rec.name,
               "another heddled, from %s, has a copy of the state directory of node %s and is "
               "refused; remove the state directory of the copy, and start it again with a "
               "--node-name of its own",
               from, node->rec.name);
}

/* ---- devices ----------------------------------------------------------------------------------*/

void core_event_device(struct hd_core *core, const char *node,
                       const struct hd_device_record *device)
{
    const char *problem = text_or_empty(device->problem);

    if (*problem)
        core_event(core, NULL, HD_EVENT_DEVICE_WITHDRAWN, 0, -1, node,
                   "device %d of %s takes no new jobs: %s", device->index, node, problem);
    else
        core_event(core, NULL, HD_EVENT_DEVICE_OFFERED, 0, -1, node,
                   "device %d of %s takes new jobs again", device->index, node);
}

void core_event_device_slow(struct hd_core *core, const struct core_node *node,
                            const struct hd_device_record *device, const char *why)
{
    core_event(core, NULL, HD_EVENT_DEVICE_SLOW, 0, -1, node->rec.name,
               "device %d of %s is slow: %s", device->index, node->rec.name, why);
}

void core_event_probe(struct hd_core *core, const struct core_node *node, const char *by)
{
    core_event(core, NULL, HD_EVENT_PROBE, 0, -1, node->rec.name,
               "a probe of %s was asked for by %s", node->rec.name, by);
}

void core_event_probed(struct hd_core *core, const struct core_node *node,
                       const struct hd_probe_record *record)
{
    const char *name = node->rec.name;

    if (!record)
        core_event(core, NULL, HD_EVENT_PROBE_FAILED, 0, -1, name,
                   "the probe of %s has no result: the node is lost; when it is ready again: "
                   "heddle probe %s",
                   name, name);
    else if (*text_or_empty(record->problem))
        core_event(core, NULL, HD_EVENT_PROBE_FAILED, 0, -1, name,
                   "the probe of %s measured nothing, plans keep using %s: %s", name,
                   record->measured_ms ? "its earlier figures" : "built-in figures",
                   record->problem);
    else
        core_event(core, NULL, HD_EVENT_PROBED, 0, -1, name, "%s has measured its devices", name);
}

/* ---- queues and jobs --------------------------------------------------------------------------*/

static void add_limit(struct hd_text *text, const char *before, int32_t limit, const char *after)
{
    if (limit)
        hd_text_add(text, "%sat most %d device%s%s", before, limit, limit == 1 ? "" : "s", after);
    else
        hd_text_add(text, "%sno limit of devices%s", before, after);
}

void core_event_queue_set(struct hd_core *core, const struct hd_queue_record *queue, const char *by)
{
    struct hd_text limits = {0};

    add_limit(&limits, "", queue->devices_max, " in all");
    add_limit(&limits, ", ", queue->user_devices_max, " for a user");
    core->no_memory |= limits.failed;
    core_event(core, NULL, HD_EVENT_QUEUE_SET, 0, -1, "", "queue %s: %s, weight %d%s; set by %s",
               queue->name, limits.failed ? "" : limits.data, queue->weight,
               queue->closed ? ", closed" : "", by);
    hd_text_free(&limits);
}

void core_event_queue_removed(struct hd_core *core, const char *queue, const char *by)
{
    core_event(core, NULL, HD_EVENT_QUEUE_REMOVED, 0, -1, "", "queue %s: removed by %s", queue, by);
}

void core_event_job_removed(struct hd_core *core, const struct core_job *job, const char *by)
{
    core_event(core, NULL, HD_EVENT_JOB_REMOVED, 0, -1, "",
               "job %" PRIu64 " (%s) was removed by %s", job->rec.job, job->rec.name, by);
}

void core_event_job_unknown(struct hd_core *core, const struct core_node *node, uint64_t job,
                            int32_t attempt)
{
    core_event(core, NULL, HD_EVENT_JOB_UNKNOWN, 0, -1, node->rec.name,
               "node %s runs attempt %d of job %" PRIu64
               ", which the controller does not know: the node ends it and keeps its files",
               node->rec.name, attempt, job);
}

void core_add_jobs_limit(const struct hd_core *core, struct hd_text *text)
{
    hd_text_add(text,
                "%zu jobs are queued or running; at %zu new ones are refused: let some end, or "
                "cancel some",
                core->live_count, core->config.jobs_live_max);
}

void core_event_jobs_near_limit(struct hd_core *core)
{
    struct hd_text text = {0};

    core_add_jobs_limit(core, &text);
    core->no_memory |= text.failed;
    core_event(core, NULL, HD_EVENT_JOBS_NEAR_LIMIT, 0, -1, "", "%s",
               text.data && !text.failed ? text.data : "");
    hd_text_free(&text);
}

/* ---- the controller ---------------------------------------------------------------------------*/

void core_event_clock_set(struct hd_core *core, int64_t step_ms)
{
    char span[HD_CLOCK_TEXT_MAX];

    hd_clock_format_span(llabs(step_ms), span);
    core_event(core, NULL, HD_EVENT_CLOCK_SET, 0, -1, "",
               "the clock of the controller's machine was set %s by %s%s: time limits, deadlines "
               "of drains and expected starts move with it",
               step_ms > 0 ? "ahead" : "back", span, step_ms > 0 ? ", or the machine slept" : "");
}

void core_event_controller_away(struct hd_core *core)
{
    char away[HD_CLOCK_TEXT_MAX], grace[HD_CLOCK_TEXT_MAX];

    hd_clock_format_span(core->away_ms, away);
    hd_clock_format_span(core->config.restart_grace_ms, grace);
    core_event(core, NULL, HD_EVENT_CONTROLLER_AWAY, 0, -1, "",
               "the controller was paused for %s (by a signal, or its machine was suspended): "
               "nodes have %s to reconnect",
               away, grace);
}
