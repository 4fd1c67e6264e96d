/* node: nodes, their streams, leases and observed sets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "controller/core/core_internal.h"

#define DEADLINE_MAX_MS ((int64_t)365 * 86400 * 1000)

/* ---- the table of nodes -----------------------------------------------------------------------*/

struct core_node *core_find_node(const struct hd_core *core, const char *uuid)
{
    uint64_t value;

    if (!uuid || !core_map_get(&core->node_by_uuid, uuid, &value))
        return NULL;
    return (struct core_node *)(uintptr_t)value;
}

struct core_node *core_find_node_named(const struct hd_core *core, const char *name)
{
    for (size_t i = 0; i < core->node_count; i++) {
        if (!core->nodes[i]->rec.retired && core_same(core->nodes[i]->rec.name, name))
            return core->nodes[i];
    }
    return NULL;
}

static bool sorts_before(const struct core_node *a, const struct core_node *b)
{
    if (a->rec.retired != b->rec.retired)
        return b->rec.retired;
    return strcmp(a->rec.name, b->rec.name) < 0;
}

static void insert_node(struct hd_core *core, struct core_node *node)
{
    size_t at = core->node_count;

    if (!core_reserve(core, &core->nodes, core->node_count, &core->node_size, sizeof node))
        return;
    for (; at > 0 && sorts_before(node, core->nodes[at - 1]); at--)
        core->nodes[at] = core->nodes[at - 1];
    core->nodes[at] = node;
    core->node_count++;
    core_find_position(core, node);
    core->reach_due = core->free_due = true;
}

static void remove_node(struct hd_core *core, const struct core_node *node)
{
    size_t at = 0;

    while (at < core->node_count && core->nodes[at] != node)
        at++;
    if (at == core->node_count)
        return;
    memmove(&core->nodes[at], &core->nodes[at + 1],
            (core->node_count - at - 1) * sizeof core->nodes[0]);
    core->node_count--;
    core->free_due = true;
}

static void free_devices(struct core_node *node)
{
    for (int32_t i = 0; i < node->rec.device_count; i++) {
        core_unset(&node->rec.devices[i].name);
        core_unset(&node->rec.devices[i].uuid);
        core_unset(&node->rec.devices[i].problem);
    }
    free(node->rec.devices);
    free(node->holds);
    node->rec.devices = NULL;
    node->holds = NULL;
    node->rec.device_count = 0;
}

bool core_device_works(const struct core_node *node, int32_t place)
{
    const char *problem = node->rec.devices[place].problem;

    return !problem || !*problem;
}

static struct hd_device_hold find_hold(const struct core_node *node, int32_t index)
{
    for (int32_t i = 0; i < node->rec.device_count; i++) {
        if (node->rec.devices[i].index == index)
            return node->holds[i];
    }
    return (struct hd_device_hold){0};
}

/* Replaces the device list; a device whose index stays keeps its holder. */
static void set_devices(struct hd_core *core, struct core_node *node,
                        const struct hd_device_record *devices, int32_t count)
{
    struct hd_device_record *copy = calloc((size_t)count + 1, sizeof *copy);
    struct hd_device_hold *holds = calloc((size_t)count + 1, sizeof *holds);

    if (!copy || !holds) {
        free(copy);
        free(holds);
        core->no_memory = true;
        return;
    }
    for (int32_t i = 0; i < count; i++) {
        copy[i] = devices[i];
        copy[i].name = copy[i].uuid = copy[i].problem = NULL;
        core_set(core, &copy[i].name, devices[i].name);
        core_set(core, &copy[i].uuid, devices[i].uuid);
        core_set(core, &copy[i].problem, devices[i].problem);
        holds[i] = find_hold(node, devices[i].index);
    }
    free_devices(node);
    node->rec.devices = copy;
    node->rec.device_count = count;
    node->holds = holds;
    core_node_changed(core, node);
}

struct core_node *core_node_new(struct hd_core *core, const struct hd_node_record *record)
{
    struct core_node *node = calloc(1, sizeof *node);

    if (!node || !core_map_put(&core->node_by_uuid, record->uuid, (uint64_t)(uintptr_t)node)) {
        free(node);
        core->no_memory = true;
        return NULL;
    }
    node->rec = *record;
    node->rec.devices = NULL;
    node->rec.device_count = 0;
    node->rec.uuid = node->rec.name = node->rec.boot_id = node->rec.build = NULL;
    node->rec.drain_reason = NULL;
    core_set(core, &node->rec.uuid, record->uuid);
    core_set(core, &node->rec.name, record->name);
    core_set(core, &node->rec.boot_id, record->boot_id);
    core_set(core, &node->rec.build, record->build);
    core_set(core, &node->rec.drain_reason, record->drain_reason);
    core->free_due = true; /* it has no index yet */
    set_devices(core, node, record->devices, record->device_count);
    core_forget_misfits(core);
    node->seen_mono_ms = core->now.mono_ms;
    node->lost_after_ms = core->config.lost_ms;
    node->generation = 1;
    insert_node(core, node);
    return node;
}

void core_node_free(struct core_node *node)
{
    free_devices(node);
    core_unset(&node->rec.uuid);
    core_unset(&node->rec.name);
    core_unset(&node->rec.boot_id);
    core_unset(&node->rec.build);
    core_unset(&node->rec.drain_reason);
    core_unset(&node->jobs_dir_problem);
    core_unset(&node->data_address);
    for (int kind = 0; kind < HD_DEVICE_KIND_COUNT; kind++)
        core_unset(&node->compute[kind]);
    core_unset(&node->traits);
    core_probe_drop(node);
    free(node);
}

/* ---- states -----------------------------------------------------------------------------------*/

static bool has_held_device(const struct core_node *node)
{
    for (int32_t i = 0; i < node->rec.device_count; i++) {
        if (node->holds[i].job)
            return true;
    }
    return false;
}

static void set_state(struct hd_core *core, struct core_node *node, enum hd_node_state state)
{
    node->rec.state = state;
    node->rec.seen_ms = core->now.wall_ms - (core->now.mono_ms - node->seen_mono_ms);
    core_dirty_node(core, node);
    core->schedule_due = true;
}

void core_node_refresh(struct hd_core *core, struct core_node *node)
{
    enum hd_node_state state = HD_NODE_STATE_READY;

    if (node->rec.state == HD_NODE_STATE_LOST || node->rec.state == HD_NODE_STATE_UNREACHABLE)
        return; /* only a message of the node ends these states */
    if (node->rec.drain)
        state = has_held_device(node) ? HD_NODE_STATE_DRAINING : HD_NODE_STATE_DRAINED;
    if (state == node->rec.state)
        return;
    set_state(core, node, state);
    core_event(core, NULL, hd_node_state_name(state), 0, -1, node->rec.name, "node %s is %s",
               node->rec.name, hd_node_state_name(state));
}

static void renew_lease(struct hd_core *core, struct core_node *node)
{
    node->seen_mono_ms = core->now.mono_ms;
    node->rec.seen_ms = core->now.wall_ms;
    node->lost_after_ms = core->config.lost_ms;
    node->suspect = false;
    if (node->rec.state != HD_NODE_STATE_UNREACHABLE)
        return;
    core_event(core, NULL, "reachable", 0, -1, node->rec.name, "node %s is reachable again",
               node->rec.name);
    set_state(core, node, HD_NODE_STATE_READY);
    core_node_refresh(core, node);
}

/* Ends this node's share of every attempt. */
static void end_shares(struct hd_core *core, struct core_node *node, const char *message)
{
    const struct hd_end_record end = {
        .cause = HD_END_CAUSE_NODE_LOST, .rank = -1, .node = node->rec.name, .message = message};

    for (size_t i = 0; i < core->active.count;) {
        struct core_job *job = core->active.items[i];
        struct core_attempt *attempt = core_active(job);
        struct core_share *share = core_find_share(attempt, node);

        if (share && !share->ended) {
            core_attempt_fail(core, job, attempt, &end);
            core_share_end(core, job, attempt, share);
        }
        i += core_active(job) != NULL; /* one that has ended left the set */
    }
}

void core_node_lose(struct hd_core *core, struct core_node *node, const char *why)
{
    node->connected = node->synced = false;
    node->stale_count = 0;
    set_state(core, node, HD_NODE_STATE_LOST);
    core_event(core, NULL, "lost", 0, -1, node->rec.name, "%s and is lost", why);
    end_shares(core, node, why);
    for (size_t i = 0; i < core->node_count; i++) /* one of them deletes in its place */
        if (core->nodes[i]->synced)
            core_dirty_desired(core, core->nodes[i]);
}

static void mark_silent(struct hd_core *core, struct core_node *node, int64_t silent_ms)
{
    char message[160];

    (void)snprintf(message, sizeof message, "node %s was silent for %lld s", node->rec.name,
                   (long long)(silent_ms / 1000));
    core_node_lose(core, node, message);
}

void core_node_timers(struct hd_core *core, struct core_node *node)
{
    const int64_t silent_ms = core->now.mono_ms - node->seen_mono_ms;
    const int64_t limit_ms = node->suspect ? core->config.lost_confirmed_ms : node->lost_after_ms;

    if (node->rec.retired || node->rec.state == HD_NODE_STATE_LOST)
        return;
    core_leave_timers(core, node);
    if (silent_ms >= limit_ms) {
        mark_silent(core, node, silent_ms);
    } else if (silent_ms >= core->config.unreachable_ms &&
               node->rec.state != HD_NODE_STATE_UNREACHABLE) {
        set_state(core, node, HD_NODE_STATE_UNREACHABLE);
        core_event(core, NULL, "unreachable", 0, -1, node->rec.name,
                   "node %s has been silent for %lld s; its ranks may still be training",
                   node->rec.name, (long long)(silent_ms / 1000));
    }
}

bool core_node_usable(const struct core_node *node)
{
    return !node->rec.retired && node->rec.state == HD_NODE_STATE_READY && node->synced &&
           !node->stale_count;
}

void core_node_reason(const struct core_node *node, struct hd_now now, struct hd_text *text)
{
    const int64_t silent_s = (now.mono_ms - node->seen_mono_ms) / 1000;

    if (core_node_usable(node))
        return;
    if (node->rec.state == HD_NODE_STATE_LOST)
        hd_text_add(text, "is lost");
    else if (node->rec.drain)
        hd_text_add(text, "is %s: %s", hd_node_state_name(node->rec.state),
                    node->rec.drain_reason && *node->rec.drain_reason ? node->rec.drain_reason
                                                                      : "no reason given");
    else if (node->rec.state == HD_NODE_STATE_UNREACHABLE)
        hd_text_add(text, "has been unreachable for %lld s", (long long)silent_s);
    else if (!node->synced)
        hd_text_add(text, "is connecting");
    else
        hd_text_add(text, "is still stopping attempt %d of job %llu", node->stale_attempt,
                    (unsigned long long)node->stale_job);
}

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

/* HD_EXISTS: another daemon has the name. *ret_old_owner: a lost one that must give it up, or NULL.
 */
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

/* The daemon offers this same device: an equal index may now be another GPU, or a CPU device. */
static bool offers(const struct hd_core_event *event, const struct hd_device_record *device)
{
    for (int32_t i = 0; i < event->hello.device_count; i++) {
        const struct hd_device_record *offered = &event->hello.devices[i];

        if (offered->index == device->index)
            return offered->kind == device->kind && core_same(offered->uuid, device->uuid);
    }
    return false;
}

/* HD_CONFLICT: the daemon no longer offers a device that an attempt uses. */
static enum hd_status check_devices(const struct hd_core *core, const struct core_node *node,
                                    const struct hd_core_event *event)
{
    const bool rebooted = !core_same(node->rec.boot_id, event->hello.boot_id);

    for (int32_t i = 0; i < node->rec.device_count; i++) {
        const struct core_job *job = core_find_job(core, node->holds[i].job);
        const struct core_attempt *attempt = job ? core_active(job) : NULL;

        if (!attempt || offers(event, &node->rec.devices[i]))
            continue;
        if (rebooted && attempt->share_count == 1)
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
    remove_node(core, node);
    node->rec.retired = true;
    insert_node(core, node);
    core_dirty_node(core, node);
    core_event(core, NULL, "retired", 0, -1, node->rec.name,
               "the name %s of a lost daemon (%s) was taken over by another daemon", node->rec.name,
               node->rec.uuid);
}

/* Adds events for devices that no longer take new jobs, or take them again. */
static void add_device_events(struct hd_core *core, const struct core_node *node,
                              const struct hd_core_event *event)
{
    for (int32_t i = 0; i < event->hello.device_count; i++) {
        const struct hd_device_record *now = &event->hello.devices[i];
        const char *problem = now->problem ? now->problem : "", *before = "";

        for (int32_t k = 0; k < node->rec.device_count; k++)
            if (node->rec.devices[k].index == now->index && node->rec.devices[k].problem)
                before = node->rec.devices[k].problem;
        if (*problem && !*before)
            core_event(core, NULL, "device_withdrawn", 0, -1, event->hello.name,
                       "device %d of %s takes no new jobs: %s", now->index, event->hello.name,
                       problem);
        else if (!*problem && *before)
            core_event(core, NULL, "device_offered", 0, -1, event->hello.name,
                       "device %d of %s takes new jobs again", now->index, event->hello.name);
    }
}

static void rename_node(struct hd_core *core, struct core_node *node, const char *name)
{
    remove_node(core, node);
    node->rec.retired = node->rec.removed = false;
    core_set(core, &node->rec.name, name);
    if (node->rec.name)
        insert_node(core, node);
}

/* Hello of a known daemon. */
static void reconnect_node(struct hd_core *core, struct core_node *node,
                           const struct hd_core_event *event)
{
    const bool was_lost = node->rec.state == HD_NODE_STATE_LOST;

    if (!core_same(node->rec.boot_id, event->hello.boot_id)) {
        core_event(core, NULL, "rebooted", 0, -1, node->rec.name, "node %s was restarted",
                   node->rec.name);
        end_shares(core, node, "the machine was restarted");
    }
    if (node->rec.retired || !core_same(node->rec.name, event->hello.name))
        rename_node(core, node, event->hello.name);
    core_set(core, &node->rec.boot_id, event->hello.boot_id);
    core_set(core, &node->rec.build, event->hello.build);
    add_device_events(core, node, event);
    set_devices(core, node, event->hello.devices, event->hello.device_count);
    core_forget_misfits(core);
    if (was_lost) {
        core_event(core, NULL, "returned", 0, -1, node->rec.name, "node %s is back",
                   node->rec.name);
        set_state(core, node, HD_NODE_STATE_READY);
    }
}

enum hd_status core_hello(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_node *node, *old_owner;
    enum hd_status st = check_hello(event);

    if (st)
        return st;
    st = check_name(core, event, &old_owner);
    if (st)
        return st;
    node = core_find_node(core, event->hello.uuid);
    if (node && !core_same(node->rec.name, event->hello.name) && has_held_device(node))
        return hd_err(HD_CONFLICT, "the daemon of %s runs jobs and cannot be renamed to %s now",
                      node->rec.name, event->hello.name);
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
                                              .devices = (void *)(uintptr_t)event->hello.devices,
                                              .device_count = event->hello.device_count};

        node = core_node_new(core, &record);
        if (!node)
            return HD_OK; /* hd_core_step returns HD_NO_MEMORY */
        core_event(core, NULL, "joined", 0, -1, node->rec.name, "node %s joined with %d devices",
                   node->rec.name, node->rec.device_count);
    }
    core_set(core, &node->data_address, event->hello.data_address);
    core_set(core, &node->compute[HD_DEVICE_KIND_CPU], event->hello.compute);
    core_set(core, &node->compute[HD_DEVICE_KIND_CUDA], event->hello.compute_cuda);
    core_set(core, &node->traits, event->hello.traits);
    core_links_take(core, node, event->hello.links);
    node->probes = event->hello.probes;
    if (!node->probes)
        node->probe_asked = 0;
    core->medians_due = true;
    node->connected = true;
    node->synced = false;
    core->reach_due = true;
    node->stream = event->hello.stream;
    renew_lease(core, node);
    core_node_refresh(core, node);
    core_dirty_node(core, node);
    core->schedule_due = true;
    return HD_OK;
}

/* ---- other events of a node -------------------------------------------------------------------*/

static enum hd_status find_stream(const struct hd_core *core, const char *uuid, uint64_t stream,
                                  struct core_node **ret_node)
{
    struct core_node *node = core_find_node(core, uuid);

    if (!node)
        return hd_err(HD_NOT_FOUND, "there is no node with uuid %s", uuid);
    if (!node->connected || node->stream != stream)
        return hd_err(HD_CONFLICT, "node %s has a newer stream, or was lost; connect again",
                      node->rec.name);
    *ret_node = node;
    return HD_OK;
}

enum hd_status core_alive(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_node *node = NULL;
    enum hd_status st = find_stream(core, event->node.uuid, event->node.stream, &node);

    if (!st)
        renew_lease(core, node);
    return st;
}

enum hd_status core_disconnected(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_node *node = NULL;
    enum hd_status st = find_stream(core, event->node.uuid, event->node.stream, &node);

    if (st)
        return HD_OK; /* a newer stream has replaced it */
    node->connected = node->synced = false;
    core->schedule_due = true;
    return HD_OK;
}

static void tell_drain(struct hd_core *core, const struct core_node *node, const char *by)
{
    const char *reason = node->rec.drain_reason ? node->rec.drain_reason : "";
    char deadline[HD_CLOCK_TEXT_MAX];

    hd_clock_format_utc(node->rec.drain_deadline_ms, deadline);
    if (!node->rec.drain)
        core_event(core, NULL, "undrain", 0, -1, node->rec.name, "%s was given jobs again by %s",
                   node->rec.name, by);
    else
        core_event(core, NULL, "drain", 0, -1, node->rec.name, "%s was drained by %s%s%s%s%s",
                   node->rec.name, by, *reason ? ": " : "", reason,
                   node->rec.drain_deadline_ms ? "; its jobs leave it by " : "",
                   node->rec.drain_deadline_ms ? deadline : "");
}

enum hd_status core_drain(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_node *node = core_find_node_named(core, event->drain.node);
    const int64_t deadline_ms = event->drain.deadline_ms;

    if (!node)
        return hd_err(HD_NOT_FOUND, "there is no node %s", event->drain.node);
    if (deadline_ms < 0 || deadline_ms > DEADLINE_MAX_MS)
        return hd_err(HD_INVALID,
                      "the deadline of a drain is between a second and a year from now");
    node->rec.drain = event->kind == HD_CORE_DRAIN;
    node->rec.drain_deadline_ms =
        node->rec.drain && deadline_ms ? core->now.wall_ms + deadline_ms : 0;
    node->deadline_met = false;
    core_set(core, &node->rec.drain_reason, node->rec.drain ? event->drain.reason : "");
    tell_drain(core, node, event->drain.by ? event->drain.by : "");
    core_dirty_node(core, node);
    core_node_refresh(core, node);
    core->schedule_due = true;
    return HD_OK;
}

/* ---- removal ----------------------------------------------------------------------------------*/

/* A queued job that can go on nowhere else: its newest checkpoint is on this node's disk alone. */
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

        if (job && node->rec.state == HD_NODE_STATE_UNREACHABLE)
            return hd_err(HD_CONFLICT,
                          "%s is unreachable and may still be training job %llu; wait until it is "
                          "lost, %lld s after its last message (heddle nodes), then remove it",
                          name, job, (long long)(node->lost_after_ms / 1000));
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
        return hd_err(HD_NOT_FOUND, "there is no node %s", event->remove.node);
    st = check_removal(core, node);
    if (st)
        return st;
    core_event(core, NULL, "removed", 0, -1, node->rec.name, "node %s (%s) was removed by %s",
               node->rec.name, node->rec.uuid, event->remove.by);
    remove_node(core, node);
    /* in memory it stays, because attempts may point to it; and its daemon may come again */
    node->rec.retired = node->rec.removed = true;
    insert_node(core, node);
    node->connected = node->synced = false;
    node->stale_count = 0;
    node->reserved.by = 0;
    node->rec.drain = false;
    node->rec.drain_deadline_ms = 0;
    core_set(core, &node->rec.drain_reason, "");
    core_probe_drop(node);
    node->probe.ended_ms = node->probe.measured_ms = 0;
    node->probe_asked = 0;
    core->medians_due = true;
    set_state(core, node, HD_NODE_STATE_LOST);
    core_checkpoint_abandon(core, node);
    return HD_OK;
}

/* ---- observed sets ----------------------------------------------------------------------------*/

/* A node that names another node as the cause of a failure shortens that node's lease. */
static void suspect_named_node(struct hd_core *core, const struct core_node *node,
                               const struct hd_end_record *end)
{
    struct core_node *other;

    if (!end->node || !*end->node || core_same(end->node, node->rec.name))
        return;
    other = core_find_node_named(core, end->node);
    if (other)
        other->suspect = true;
}

static void share_runs(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                       struct core_share *share)
{
    share->running = true;
    if (attempt->rec.state != HD_ATTEMPT_STATE_STARTING)
        return;
    for (size_t i = 0; i < attempt->share_count; i++) {
        if (!attempt->shares[i].running)
            return;
    }
    attempt->rec.state = HD_ATTEMPT_STATE_RUNNING;
    attempt->rec.running_ms = core->now.wall_ms;
    core_dirty_attempt(core, job, attempt);
    core_event(core, job, "running", attempt->rec.attempt, -1, "",
               "attempt %d: all %d ranks are up", attempt->rec.attempt,
               attempt->rec.plan.rank_count);
}

/* Ranks that gave up waiting for those of a node whose disk takes no writes: that is the cause. */
static void blame_the_wait(const struct core_attempt *attempt, struct hd_end_record *end)
{
    for (size_t i = 0; end->echo && i < attempt->share_count; i++) {
        const struct core_share *share = &attempt->shares[i];

        if (share->ended || !share->waits)
            continue;
        *end = (struct hd_end_record){.cause = HD_END_CAUSE_STORAGE,
                                      .rank = -1,
                                      .node = share->node->rec.name,
                                      .message = share->problem};
    }
}

/* The ranks of every node gave up because those of another one were gone, and no node knows of a
 * rank that failed: what failed is between the nodes. */
static void blame_the_network(struct hd_core *core, struct core_job *job,
                              struct core_attempt *attempt)
{
    struct hd_end_record end = attempt->rec.end;
    char message[HD_CTL_MESSAGE_BYTES_MAX];

    for (size_t i = 0; i < attempt->share_count; i++)
        if (!attempt->shares[i].echoed)
            return;
    (void)snprintf(message, sizeof message,
                   "its nodes (%s, %s%s) lost the connection to each other, and on none of them a "
                   "rank was killed or crashed: look at the network between their data addresses (the "
                   "first message: %s)",
                   attempt->shares[0].node->rec.name, attempt->shares[1].node->rec.name,
                   attempt->share_count > 2 ? ", .." : "", end.message);
    end.echo = false;
    end.node = "";
    end.message = message;
    core_attempt_fail(core, job, attempt, &end);
}

static void share_ended(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                        struct core_share *share, const struct hd_observed *observed)
{
    struct hd_end_record end = observed->end;

    if (!end.node || !*end.node)
        end.node = share->node->rec.name;
    suspect_named_node(core, share->node, &end);
    /* an echo names no node: suspect all others; the next message of a node clears it */
    for (size_t i = 0; end.echo && i < attempt->share_count; i++)
        attempt->shares[i].node->suspect |=
            !attempt->shares[i].ended && &attempt->shares[i] != share;
    blame_the_wait(attempt, &end);
    share->echoed = end.echo && end.cause == HD_END_CAUSE_RANK_EXIT && attempt->share_count > 1;
    if (end.cause != HD_END_CAUSE_COMPLETED)
        core_attempt_fail(core, job, attempt, &end);
    blame_the_network(core, job, attempt);
    core_share_end(core, job, attempt, share);
}

/* The node was lost, the attempt counted as ended, and no other has been started since: what the
 * node still has of it is the job's work, unless others of its queue hold its devices' quota now.
 * Only of an attempt on one node: of one on several, the ranks elsewhere have been ended. */
static bool may_revive(const struct core_job *job, const struct core_attempt *attempt,
                       const struct core_node *node, const struct hd_observed *observed)
{
    const struct hd_plan_record *plan = &attempt->rec.plan;
    bool by_user;

    if (attempt != core_newest(job) || job->ended || job->rec.cancel ||
        attempt->rec.state != HD_ATTEMPT_STATE_ENDED ||
        attempt->rec.end.cause != HD_END_CAUSE_NODE_LOST || attempt->share_count != 1 ||
        attempt->shares[0].node != node || observed->state < HD_ATTEMPT_STATE_RUNNING ||
        observed->end.cause == HD_END_CAUSE_NODE_LOST || /* as it is recorded */
        core_quota_left(job->account, &by_user) < plan->rank_count)
        return false;
    for (int32_t r = 0; r < plan->rank_count; r++) {
        int32_t d = 0;

        while (d < node->rec.device_count && node->rec.devices[d].index != plan->ranks[r].device)
            d++;
        if (d == node->rec.device_count || node->holds[d].job)
            return false;
    }
    return true;
}

static void revive(struct hd_core *core, struct core_job *job, struct core_attempt *attempt)
{
    struct core_share *share = &attempt->shares[0];
    struct core_node *node = share->node;

    attempt->failed = attempt->kill = false;
    core_attempt_set_end(core, attempt, &(struct hd_end_record){.rank = -1});
    attempt->rec.ended_ms = 0;
    attempt->rec.state = HD_ATTEMPT_STATE_RUNNING;
    if (!attempt->rec.running_ms)
        attempt->rec.running_ms = core->now.wall_ms;
    share->listed = share->running = true;
    share->ended = false;
    share->stop_generation = 0;
    for (int32_t r = 0; r < attempt->rec.plan.rank_count; r++)
        for (int32_t d = 0; d < node->rec.device_count; d++)
            if (node->rec.devices[d].index == attempt->rec.plan.ranks[r].device)
                node->holds[d] = (struct hd_device_hold){.job = attempt->rec.job,
                                                         .attempt = attempt->rec.attempt,
                                                         .start = attempt->start_number};
    core_node_changed(core, node);
    core_quota_take(job, attempt->rec.plan.rank_count);
    core->schedule_due = true;
    core_set_job_state(core, job, HD_JOB_STATE_RUNNING);
    core_jobs_add(core, &core->active, job);
    job->rec.devices = attempt->rec.plan.rank_count;
    core_dirty_attempt(core, job, attempt);
    core_dirty_desired(core, node);
    core_node_refresh(core, node);
    core_event(core, job, "attempt_back", attempt->rec.attempt, -1, node->rec.name,
               "node %s answers again before another attempt was started: attempt %d goes on",
               node->rec.name, attempt->rec.attempt);
}

static void take_problem(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                         struct core_share *share, const char *problem)
{
    if (core_same(share->problem ? share->problem : "", problem))
        return;
    core_set(core, &share->problem, problem);
    if (*problem)
        core_event(core, job, "problem", attempt->rec.attempt, -1, share->node->rec.name,
                   "attempt %d on %s: %s", attempt->rec.attempt, share->node->rec.name, problem);
    core_announce(core, job);
}

static void take_observed_attempt(struct hd_core *core, struct core_node *node,
                                  const struct hd_observed *observed)
{
    struct core_job *job = core_find_job(core, observed->job);
    struct core_attempt *attempt = job ? core_find_attempt(job, observed->attempt) : NULL;
    struct core_share *share = NULL;

    if (attempt && may_revive(job, attempt, node, observed))
        revive(core, job, attempt);
    for (size_t i = 0; attempt && i < observed->checkpoint_count; i++)
        core_checkpoint_take(core, job, attempt, node, &observed->checkpoints[i]);
    if (attempt && attempt->rec.state != HD_ATTEMPT_STATE_ENDED)
        share = core_find_share(attempt, node);
    if (!share || share->ended) {
        if (observed->state != HD_ATTEMPT_STATE_ENDED) {
            node->stale_count++;
            node->stale_job = observed->job;
            node->stale_attempt = observed->attempt;
        }
        return;
    }
    share->listed = true;
    take_problem(core, job, attempt, share, observed->problem ? observed->problem : "");
    share->waits = observed->waits && share->problem && *share->problem;
    if (observed->state == HD_ATTEMPT_STATE_RUNNING)
        share_runs(core, job, attempt, share);
    else if (observed->state == HD_ATTEMPT_STATE_ENDED)
        share_ended(core, job, attempt, share, observed);
}

static bool is_listed(const struct hd_core_event *event, const struct core_attempt *attempt)
{
    for (size_t i = 0; i < event->observed.attempt_count; i++) {
        if (event->observed.attempts[i].job == attempt->rec.job &&
            event->observed.attempts[i].attempt == attempt->rec.attempt)
            return true;
    }
    return false;
}

/* The node has applied a desired set that says to stop the share. */
static bool is_stopped_there(const struct hd_core_event *event, const struct core_share *share)
{
    return share->stop_generation && event->observed.generation >= share->stop_generation;
}

/* An attempt that the node should list and does not: the node has not applied the desired set yet
 * (no action), has stopped the attempt before its start, or has lost it. */
static void end_unlisted(struct hd_core *core, struct core_node *node,
                         const struct hd_core_event *event, struct core_job *job)
{
    struct core_attempt *attempt = core_active(job);
    struct core_share *share = core_find_share(attempt, node);
    struct hd_end_record end = {.rank = -1, .node = node->rec.name};

    core->out->looked++;
    if (!share || share->ended || is_listed(event, attempt))
        return;
    if (share->listed && !(share->waits && is_stopped_there(event, share))) {
        end.cause = HD_END_CAUSE_NODE_LOST;
        end.message = "the node no longer has the attempt";
    } else if (is_stopped_there(event, share)) {
        end.cause = HD_END_CAUSE_USER;
        end.message = "stopped before its start";
    } else {
        return;
    }
    core_attempt_fail(core, job, attempt, &end);
    core_share_end(core, job, attempt, share);
}

enum hd_status core_observed(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_node *node = NULL;
    enum hd_status st = find_stream(core, event->observed.uuid, event->observed.stream, &node);
    bool was_usable, was_visible;

    if (st)
        return st;
    was_usable = core_node_usable(node);
    was_visible = node->jobs_dir_visible;
    renew_lease(core, node);
    if (!node->synced)
        core_dirty_desired(core, node); /* answer the stream's first observed set */
    node->synced = true;
    node->stale_count = 0;
    core->reach_due |= node->jobs_dir_visible != event->observed.jobs_dir_visible;
    node->jobs_dir_visible = event->observed.jobs_dir_visible;
    core_set(core, &node->jobs_dir_problem, event->observed.jobs_dir_problem);

    for (size_t i = 0; i < event->observed.deleted_count; i++)
        core_checkpoint_deleted(core, node, &event->observed.deleted[i]);
    for (size_t i = 0; i < event->observed.attempt_count; i++)
        take_observed_attempt(core, node, &event->observed.attempts[i]);
    for (size_t i = 0; i < core->active.count;) {
        struct core_job *job = core->active.items[i];

        end_unlisted(core, node, event, job);
        i += core_active(job) != NULL; /* one that has ended left the set */
    }
    /* That ranks came up changes nothing for those that wait, and a gang says it once a node. An
     * attempt that failed, ended or was revived has asked for a pass itself. */
    core->schedule_due |= core->unsettled || core_node_usable(node) != was_usable ||
                          node->jobs_dir_visible != was_visible;
    return HD_OK;
}

/* ---- queries ----------------------------------------------------------------------------------*/

size_t hd_core_node_count(const struct hd_core *core)
{
    size_t count = core->node_count;

    while (count > 0 && core->nodes[count - 1]->rec.retired)
        count--;
    return count;
}

void hd_core_node_at(const struct hd_core *core, size_t index, struct hd_node_view *ret_view)
{
    const struct core_node *node = core->nodes[index];

    *ret_view = (struct hd_node_view){
        .record = &node->rec,
        .jobs_dir_visible = node->jobs_dir_visible,
        .jobs_dir_problem = node->jobs_dir_problem ? node->jobs_dir_problem : "",
        .data_address = node->data_address ? node->data_address : "",
        .position = node->position,
        .holds = node->holds,
        .probe_pending = node->probe_asked != 0,
        .probe_ended_ms = node->probe.ended_ms,
        .probe_measured_ms = node->probe.measured_ms,
        .probe_problem = node->probe.problem ? node->probe.problem : "",
        .probe_measured_on = node->probe.measured_on ? node->probe.measured_on : "",
    };
}

void hd_core_node_reason(const struct hd_core *core, size_t index, struct hd_now now,
                         struct hd_text *ret_reason)
{
    core_node_reason(core->nodes[index], now, ret_reason);
}

bool hd_core_node_find(const struct hd_core *core, const char *name, size_t *ret_index)
{
    for (size_t i = 0; i < hd_core_node_count(core); i++) {
        if (core_same(core->nodes[i]->rec.name, name)) {
            *ret_index = i;
            return true;
        }
    }
    return false;
}
