/* membership: nodes that join, reconnect, are drained and removed. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"

#define DEADLINE_MAX_MS ((int64_t)365 * 86400 * 1000)

/* ---- hello ------------------------------------------------------------------------------------*/

static enum hd_status check_hello(const struct hd_core_event *event)
{
    const char *name = event->hello.name, *uuid = event->hello.uuid;

    if (!uuid || !*uuid || strlen(uuid) > HD_CTL_NAME_BYTES_MAX)
        return hd_err(HD_INVALID, "node_uuid: must have 1 to %d bytes", HD_CTL_NAME_BYTES_MAX);
    if (!name || !*name || strlen(name) > HD_CTL_NAME_BYTES_MAX ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") !=
            strlen(name))
        return hd_err(HD_INVALID,
                      "node name '%s': use 1 to %d letters, digits, '-', '_' or '.' (--node-name)",
                      name ? name : "", HD_CTL_NAME_BYTES_MAX);
    if (event->hello.device_count < 1 || event->hello.device_count > HD_CTL_DEVICES_PER_NODE_MAX)
        return hd_err(HD_INVALID, "node %s offers %d devices; 1 to %d are allowed", name,
                      event->hello.device_count, HD_CTL_DEVICES_PER_NODE_MAX);
    for (int32_t i = 0; i < event->hello.device_count; i++) {
        for (int32_t k = 0; k < i; k++) {
            if (event->hello.devices[i].index == event->hello.devices[k].index)
                return hd_err(HD_INVALID, "node %s offers device %d twice", name,
                              event->hello.devices[i].index);
        }
    }
    return HD_OK;
}

/* Checks the name of a joining node. HD_EXISTS: another node's daemon has it. Sets *ret_old_owner
 * to a lost node that must give up the name, or NULL. */
static enum hd_status check_name(const struct hd_core *core, const struct hd_core_event *event,
                                 struct core_node **ret_old_owner)
{
    struct core_node *other = core_find_node_named(core, event->hello.name);

    *ret_old_owner = NULL;
    if (!other || core_same(other->rec.uuid, event->hello.uuid))
        return HD_OK;
    if (other->rec.state != HD_NODE_STATE_LOST)
        return hd_err(HD_EXISTS,
                      "the name %s belongs to another daemon (%s), which is %s; if that daemon is "
                      "gone for good, because this machine was installed anew, run: heddle node rm "
                      "%s; otherwise start this one with another --node-name, or with the "
                      "--state-dir of that daemon",
                      event->hello.name, other->rec.uuid, hd_node_state_name(other->rec.state),
                      event->hello.name);
    *ret_old_owner = other;
    return HD_OK;
}

/* Returns whether the daemon's hello still offers this device; an equal index may now be another
 * GPU, or a CPU device. */
static bool offers(const struct hd_core_event *event, const struct hd_device_record *device)
{
    for (int32_t i = 0; i < event->hello.device_count; i++) {
        const struct hd_device_record *offered = &event->hello.devices[i];

        if (offered->index == device->index)
            return offered->kind == device->kind && core_same(offered->uuid, device->uuid);
    }
    return false;
}

/* Checks the devices that a daemon's hello offers. HD_CONFLICT: a device that an attempt uses is
 * missing. */
static enum hd_status check_devices(const struct hd_core *core, const struct core_node *node,
                                    const struct hd_core_event *event)
{
    const bool rebooted = !core_same(node->rec.boot_id, event->hello.boot_id);

    for (int32_t i = 0; i < node->rec.device_count; i++) {
        const struct core_job *job = core_find_job(core, node->holds[i].job);
        const struct core_attempt *attempt = job ? core_active(job) : NULL;

        if (!attempt || offers(event, &node->rec.devices[i]))
            continue;
        if (rebooted && attempt->alloc_count == 1)
            continue; /* reconnect_node ends the attempt */
        return hd_err(HD_CONFLICT,
                      "attempt %d of job %llu uses device %d of %s, which its daemon no longer "
                      "offers; start it with the same --devices, or cancel the job first",
                      attempt->rec.attempt, (unsigned long long)attempt->rec.job,
                      node->rec.devices[i].index, event->hello.name);
    }
    return HD_OK;
}

static void retire(struct hd_core *core, struct core_node *node)
{
    core_node_unlist(core, node);
    node->rec.retired = true;
    core_node_list(core, node);
    core_dirty_node(core, node);
    core_event_retired(core, node);
}

/* Adds events for devices that accept no new jobs any more, or accept them again. */
static void add_device_events(struct hd_core *core, const struct core_node *node,
                              const struct hd_core_event *event)
{
    for (int32_t i = 0; i < event->hello.device_count; i++) {
        const struct hd_device_record *now = &event->hello.devices[i];
        const char *problem = now->problem ? now->problem : "", *before = "";
        const int32_t k = core_find_device(node, now->index);

        if (k >= 0 && node->rec.devices[k].problem)
            before = node->rec.devices[k].problem;
        if ((*problem != 0) != (*before != 0))
            core_event_device(core, event->hello.name, now);
    }
}

/* Stores the name that the daemon requests, while the node must keep another one. */
static void ask_name(struct hd_core *core, struct core_node *node, const char *name)
{
    const bool differs = !core_same(node->rec.name, name);

    if (differs && !core_same(node->asked_name, name))
        core_event_rename_waits(core, node, name);
    core_set_text(core, &node->asked_name, differs ? name : "");
}

static void rename_node(struct hd_core *core, struct core_node *node, const char *name)
{
    core_node_unlist(core, node);
    node->rec.retired = node->rec.removed = false;
    core_set_text(core, &node->rec.name, name);
    if (node->rec.name)
        core_node_list(core, node);
}

void core_node_rename(struct hd_core *core, struct core_node *node)
{
    char name[HD_CTL_NAME_BYTES_MAX + 1];

    if (!node->asked_name || !*node->asked_name || node->rec.retired || core_node_is_held(node) ||
        core_find_node_named(core, node->asked_name))
        return;
    (void)snprintf(name, sizeof name, "%s", node->asked_name);
    core_set_text(core, &node->asked_name, "");
    core_event_renamed(core, node, name);
    rename_node(core, node, name);
    core_dirty_node(core, node);
}

/* Updates a known node from its daemon's hello. */
static void reconnect_node(struct hd_core *core, struct core_node *node,
                           const struct hd_core_event *event)
{
    const bool was_lost = node->rec.state == HD_NODE_STATE_LOST;

    if (!core_same(node->rec.boot_id, event->hello.boot_id)) {
        core_event_rebooted(core, node);
        core_node_end_allocs(core, node, core_end_message(CORE_END_MACHINE_RESTARTED));
    }
    if (node->rec.retired || !core_same(node->rec.name, event->hello.name))
        rename_node(core, node, event->hello.name);
    core_set_text(core, &node->rec.boot_id, event->hello.boot_id);
    core_set_text(core, &node->rec.build, event->hello.build);
    add_device_events(core, node, event);
    core_node_set_devices(core, node, event->hello.devices, event->hello.device_count);
    core->due |= CORE_DUE_DEVICES;
    if (was_lost) {
        core_event_returned(core, node);
        core_node_set_state(core, node, HD_NODE_STATE_READY);
    }
}

enum hd_status core_hello(struct hd_core *core, const struct hd_core_event *reported)
{
    struct hd_core_event known =
        *reported; /* copy of the hello; while jobs run on the node, it has the node's present
                    * name */
    const struct hd_core_event *event = &known;
    struct core_node *node =
                         reported->hello.uuid ? core_find_node(core, reported->hello.uuid) : NULL,
                     *old_owner;
    enum hd_status st = check_hello(reported);

    if (st)
        return st;
    if (node && core_node_is_held(node))
        known.hello.name = node->rec.name;
    st = check_name(core, event, &old_owner);
    if (st)
        return st;
    if (node)
        st = check_devices(core, node, event);
    else if (hd_core_node_count(core) >= HD_CTL_NODES_MAX)
        st = hd_err(HD_LIMIT, "the cluster has %d nodes, which is the limit", HD_CTL_NODES_MAX);
    if (st)
        return st;

    if (old_owner)
        retire(core, old_owner);
    if (node) {
        reconnect_node(core, node, event);
    } else {
        const struct hd_node_record record = {.uuid = event->hello.uuid,
                                              .name = event->hello.name,
                                              .boot_id = event->hello.boot_id,
                                              .build = event->hello.build,
                                              .state = HD_NODE_STATE_READY,
                                              /* a new node under an old name is usually the same
                                               * machine, reinstalled */
                                              .saw_jobs_dir =
                                                  old_owner && old_owner->rec.saw_jobs_dir,
                                              .devices = (void *)(uintptr_t)event->hello.devices,
                                              .device_count = event->hello.device_count};

        node = core_node_new(core, &record);
        if (!node)
            return HD_OK; /* hd_core_step returns HD_NO_MEMORY */
        core_event_joined(core, node);
    }
    ask_name(core, node, reported->hello.name);
    core_node_set_facts(core, node, &event->hello.facts);
    core_links_take(core, node, event->hello.links);
    /* an earlier obeyed_before is kept until the node has reported its attempts */
    node->obeyed_before = event->hello.obeyed_before || (node->obeyed_before && !node->told_all);
    node->told_all = false;
    node->probes = event->hello.probes;
    if (!node->probes)
        node->probe_asked = 0;
    core->due |= CORE_DUE_MEDIANS;
    node->connected = true;
    node->synced = node->leaves = false;
    core_node_note(core, node);
    core->due |= CORE_DUE_REACH;
    node->stream = event->hello.stream;
    core_node_renew(core, node);
    core_node_refresh(core, node);
    core_dirty_node(core, node);
    core->due |= CORE_DUE_PASS;
    return HD_OK;
}

/* ---- streams ----------------------------------------------------------------------------------*/

enum hd_status core_alive(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_node *node = NULL;
    enum hd_status st = core_find_stream(core, event->node.uuid, event->node.stream, &node);

    if (!st)
        core_node_renew(core, node);
    return st;
}

enum hd_status core_copy(struct hd_core *core, const struct hd_core_event *event)
{
    const struct core_node *node = core_find_node(core, event->copy.uuid);

    if (!node)
        return hd_err(HD_NOT_FOUND, "there is no node with uuid %s", event->copy.uuid);
    core_event_copy_refused(core, node, event->copy.from);
    return HD_OK;
}

enum hd_status core_disconnected(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_node *node = NULL;
    enum hd_status st = core_find_stream(core, event->node.uuid, event->node.stream, &node);

    if (st)
        return HD_OK; /* a newer stream of the node has replaced this one */
    node->connected = node->synced = false;
    core_node_note(core, node);
    core->due |= CORE_DUE_PASS;
    return HD_OK;
}

/* ---- drain ------------------------------------------------------------------------------------*/

enum hd_status core_drain(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_node *node = core_find_node_named(core, event->drain.node);
    const int64_t deadline_ms = event->drain.deadline_ms;
    const int64_t before_ms = node ? node->rec.drain_deadline_ms : 0;

    if (!node)
        return hd_err(HD_NOT_FOUND, "there is no node '%s'", event->drain.node);
    if (deadline_ms < 0 || deadline_ms > DEADLINE_MAX_MS)
        return hd_err(HD_INVALID,
                      "the deadline of a drain is between a second and a year from now");
    node->rec.drain = event->kind == HD_CORE_DRAIN;
    core->most.devices = 0;
    node->rec.drain_deadline_ms =
        node->rec.drain && deadline_ms ? core->now.wall_ms + deadline_ms : 0;
    node->deadline_met = false;
    if (node->rec.drain_deadline_ms)
        core_node_leaves(core, node);
    core_set_text(core, &node->rec.drain_reason, node->rec.drain ? event->drain.reason : "");
    core_event_drain(core, node, event->drain.by ? event->drain.by : "", before_ms);
    core_dirty_node(core, node);
    core_node_refresh(core, node);
    core->due |= CORE_DUE_PASS;
    return HD_OK;
}

/* ---- removal ----------------------------------------------------------------------------------*/

/* Returns a queued job that can continue on no other node, because its newest checkpoint is on this
 * node's disk only; NULL: none. */
static const struct core_job *waiting_for(const struct hd_core *core, const struct core_node *node)
{
    for (struct core_job *job = core_table_next(&core->jobs, NULL); job;
         job = core_table_next(&core->jobs, job)) {
        const struct hd_checkpoint_record *base =
            job->rec.state == HD_JOB_STATE_QUEUED ? core_checkpoint_newest(job) : NULL;

        if (base && !base->shared && core_same(base->node_uuid, node->rec.uuid))
            return job;
    }
    return NULL;
}

static enum hd_status check_removal(const struct hd_core *core, const struct core_node *node)
{
    const char *name = node->rec.name;
    const struct core_job *waiting = waiting_for(core, node);

    for (int32_t d = 0; d < node->rec.device_count; d++) {
        const unsigned long long job = node->holds[d].job;
        char lost_at[HD_CLOCK_TEXT_MAX];

        hd_clock_format_utc(core_node_lost_at_ms(core, node), lost_at);
        if (job && node->rec.state == HD_NODE_STATE_UNREACHABLE)
            return hd_err(HD_CONFLICT,
                          "%s is unreachable and may still be training job %llu; wait until it is "
                          "lost, at %s, then remove it",
                          name, job, lost_at);
        if (job)
            return hd_err(HD_CONFLICT,
                          "%s runs attempt %d of job %llu; heddle drain %s, and wait until it is "
                          "drained, or cancel the job",
                          name, node->holds[d].attempt, job, name);
    }
    if (node->connected && node->rec.state == HD_NODE_STATE_READY)
        return hd_err(HD_CONFLICT,
                      "%s is connected; stop its heddled for good and remove it 15 s later, or "
                      "drain it first: heddle drain %s",
                      name, name);
    if (waiting)
        return hd_err(HD_CONFLICT,
                      "job %llu waits for %s, because its newest checkpoint is on that node's disk "
                      "alone; bring the node back, or cancel the job",
                      (unsigned long long)waiting->rec.job, name);
    return HD_OK;
}

enum hd_status core_node_remove(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_node *node = core_find_node_named(core, event->remove.node);
    enum hd_status st;

    if (!node)
        return hd_err(HD_NOT_FOUND, "there is no node '%s'", event->remove.node);
    st = check_removal(core, node);
    if (st)
        return st;
    core_event_removed(core, node, event->remove.by);
    core_node_unlist(core, node);
    /* the node's struct stays, because attempts may point to it and its daemon may join again */
    node->rec.retired = node->rec.removed = true;
    core_node_list(core, node);
    node->connected = node->synced = false;
    node->stale_count = 0;
    node->reserved.allocation = 0;
    node->rec.drain = false;
    node->rec.drain_deadline_ms = 0;
    node->rec.saw_jobs_dir = false;
    core_set_text(core, &node->rec.drain_reason, "");
    core_probe_drop(node);
    node->probe.ended_ms = node->probe.measured_ms = 0;
    node->probe_asked = 0;
    core->due |= CORE_DUE_MEDIANS;
    core_node_set_state(core, node, HD_NODE_STATE_LOST);
    core_checkpoint_abandon(core, node);
    return HD_OK;
}
