/* node: nodes in memory, their devices, states and leases. Events from nodes and operators:
 * membership.c, observe.c. */
#include <stdlib.h>
#include <string.h>

#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"

/* ---- the table of nodes -----------------------------------------------------------------------*/

static bool sorts_before(const struct core_node *a, const struct core_node *b)
{
    if (a->rec.retired != b->rec.retired)
        return b->rec.retired;
    return strcmp(a->rec.name, b->rec.name) < 0;
}

void core_node_list(struct hd_core *core, struct core_node *node)
{
    size_t at = core->node_count;

    if (!core_grow_array(core, &core->nodes, core->node_count, &core->node_size, sizeof node))
        return;
    for (; at > 0 && sorts_before(node, core->nodes[at - 1]); at--)
        core->nodes[at] = core->nodes[at - 1];
    core->nodes[at] = node;
    core->node_count++;
    core_find_position(core, node);
    core->due |= CORE_DUE_REACH | CORE_DUE_ARRAYS | CORE_DUE_SILENCE;
    core->most.devices = 0;
}

void core_node_unlist(struct hd_core *core, const struct core_node *node)
{
    size_t at = 0;

    while (at < core->node_count && core->nodes[at] != node)
        at++;
    if (at == core->node_count)
        return;
    memmove(&core->nodes[at], &core->nodes[at + 1],
            (core->node_count - at - 1) * sizeof core->nodes[0]);
    core->node_count--;
    core->due |= CORE_DUE_REACH | CORE_DUE_ARRAYS;
}

static void free_devices(struct core_node *node)
{
    for (int32_t i = 0; i < node->rec.device_count; i++) {
        core_free_texts(&hd_table_devices, &node->rec.devices[i]);
        core_free_text(&node->rec.devices[i].problem);
    }
    free(node->rec.devices);
    free(node->holds);
    node->rec.devices = NULL;
    node->holds = NULL;
    node->rec.device_count = 0;
}

static bool are_like_first(const struct hd_device_record *devices, int32_t count)
{
    for (int32_t i = 1; i < count; i++)
        if (devices[i].kind != devices[0].kind || devices[i].threads != devices[0].threads ||
            devices[i].memory_bytes != devices[0].memory_bytes ||
            devices[i].precisions != devices[0].precisions ||
            !core_same(devices[i].name, devices[0].name))
            return false;
    return true;
}

void core_node_set_devices(struct hd_core *core, struct core_node *node,
                           const struct hd_device_record *devices, int32_t count)
{
    struct hd_device_record *copy = calloc((size_t)count + 1, sizeof *copy);
    struct hd_device_hold *holds = calloc((size_t)count + 1, sizeof *holds);
    int32_t before;

    if (!copy || !holds) {
        free(copy);
        free(holds);
        core->no_memory = true;
        return;
    }
    for (int32_t i = 0; i < count; i++) {
        copy[i] = devices[i];
        copy[i].problem = NULL;
        core_own_texts(core, &hd_table_devices, &copy[i]);
        core_set_text(core, &copy[i].problem, devices[i].problem);
        before = core_find_device(node, devices[i].index);
        if (before >= 0)
            holds[i] = node->holds[before];
    }
    free_devices(node);
    node->rec.devices = copy;
    node->rec.device_count = count;
    node->holds = holds;
    node->alike = are_like_first(copy, count);
    for (size_t i = 0; i < node->active.count; i++)
        core_attempt_note_devices(core_active(node->active.items[i]));
    core_node_changed(core, node);
}

enum { FACTS = sizeof(struct hd_node_facts) / sizeof(const char *) };

/* Returns the address of one of the node's facts, which are all texts. */
static const char **fact_at(struct hd_node_facts *facts, size_t i)
{
    return (const char **)(void *)facts + i;
}

void core_node_set_facts(struct hd_core *core, struct core_node *node,
                         const struct hd_node_facts *facts)
{
    struct hd_node_facts given = *facts;

    for (size_t i = 0; i < FACTS; i++)
        core_set_text(core, fact_at(&node->facts, i), *fact_at(&given, i));
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
    core_own_texts(core, &hd_table_nodes, &node->rec);
    core_node_set_facts(core, node, &(struct hd_node_facts){0});
    if (node->rec.drain_deadline_ms)
        core_node_leaves(core, node);
    core->due |=
        CORE_DUE_REACH | CORE_DUE_ARRAYS; /* core_node_list has not assigned an index yet */
    core_node_set_devices(core, node, record->devices, record->device_count);
    core->due |= CORE_DUE_DEVICES;
    node->seen_mono_ms = node->silent_since_mono_ms = core->now.mono_ms;
    node->silent_since_ms = core->now.wall_ms;
    node->lost_after_ms = core->config.lost_ms;
    node->generation = 1;
    core_node_list(core, node);
    return node;
}

void core_node_free(struct core_node *node)
{
    free(node->active.items);
    free_devices(node);
    core_free_texts(&hd_table_nodes, &node->rec);
    core_free_text(&node->jobs_dir_problem);
    core_free_text(&node->refuses_attempts);
    core_free_text(&node->reported_refusal);
    core_free_text(&node->asked_name);
    for (size_t i = 0; i < FACTS; i++)
        core_free_text(fact_at(&node->facts, i));
    core_probe_drop(node);
    free(node);
}

enum hd_status core_find_stream(const struct hd_core *core, const char *uuid, uint64_t stream,
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

/* ---- states -----------------------------------------------------------------------------------*/

/* Returns whether ranks run on the node or may run there: it has stale attempts, or has not
 * reported yet. */
static bool may_run(const struct core_node *node)
{
    return core_node_is_held(node) || node->stale_count || (node->connected && !node->synced);
}

void core_node_set_state(struct hd_core *core, struct core_node *node, enum hd_node_state state)
{
    node->rec.state = state;
    if (core_node_has_come(node)) /* a node that has not connected since the controller started
                                   * keeps the stored time */
        node->rec.seen_ms = core->now.wall_ms - (core->now.mono_ms - node->seen_mono_ms);
    core_dirty_node(core, node);
    core_node_note(core, node);
    core->most.devices = 0;
    core->due |= CORE_DUE_PASS | CORE_DUE_SILENCE;
}

void core_node_refresh(struct hd_core *core, struct core_node *node)
{
    enum hd_node_state state = HD_NODE_STATE_READY;

    if (node->rec.state == HD_NODE_STATE_LOST || node->rec.state == HD_NODE_STATE_UNREACHABLE)
        return; /* only a message of the node ends the states LOST and UNREACHABLE */
    if (node->rec.drain && node->connected && !node->synced)
        return; /* the node keeps its state until it has reported its attempts */
    if (node->rec.drain)
        state = may_run(node) ? HD_NODE_STATE_DRAINING : HD_NODE_STATE_DRAINED;
    if (state == node->rec.state)
        return;
    core_node_set_state(core, node, state);
    core_event_node_state(core, node);
}

void core_node_renew(struct hd_core *core, struct core_node *node)
{
    node->seen_mono_ms = node->silent_since_mono_ms = core->now.mono_ms;
    node->silent_since_ms = core->now.wall_ms;
    node->rec.seen_ms = core->now.wall_ms;
    node->lost_after_ms = core->config.lost_ms;
    node->suspect = false;
    if (node->rec.state != HD_NODE_STATE_UNREACHABLE)
        return;
    core_event_reachable(core, node);
    core_node_set_state(core, node, HD_NODE_STATE_READY);
    core_node_refresh(core, node);
}

/* Returns whether the node's stream has ended; false for a node that has not connected since the
 * controller started. */
static bool is_away(const struct core_node *node)
{
    return !node->connected && core_node_has_come(node);
}

static enum core_absence find_absence(const struct core_node *node)
{
    const bool answers = node->connected && node->rec.state != HD_NODE_STATE_UNREACHABLE;

    if (core_node_usable(node))
        return CORE_ABSENCE_NONE;
    if (node->rec.state == HD_NODE_STATE_LOST)
        return CORE_ABSENCE_LOST;
    if (node->rec.drain && answers)
        return CORE_ABSENCE_DRAINED;
    if (!core_node_has_come(node))
        return CORE_ABSENCE_NOT_COME;
    if (node->rec.state == HD_NODE_STATE_UNREACHABLE)
        return CORE_ABSENCE_UNREACHABLE;
    if (is_away(node))
        return CORE_ABSENCE_AWAY;
    if (!node->synced)
        return CORE_ABSENCE_CONNECTING;
    return node->stale_count ? CORE_ABSENCE_STALE : CORE_ABSENCE_REFUSES;
}

void core_node_reason(const struct core_node *node, struct hd_now now, struct hd_text *text)
{
    core_add_absence(node, find_absence(node), !may_run(node),
                     now.mono_ms - node->silent_since_mono_ms, text);
}

bool hd_core_saw_jobs_dir(const struct hd_core *core, const char *uuid)
{
    const struct core_node *node = core_find_node(core, uuid);

    return node && node->rec.saw_jobs_dir;
}

/* ---- queries ----------------------------------------------------------------------------------*/

void hd_core_node_at(const struct hd_core *core, size_t index, struct hd_node_view *ret_view)
{
    const struct core_node *node = core->nodes[index];

    *ret_view = (struct hd_node_view){
        .record = &node->rec,
        .facts = &node->facts,
        .is_away = !node->connected,
        .jobs_dir_visible = node->jobs_dir_visible,
        .jobs_dir_problem = node->jobs_dir_problem ? node->jobs_dir_problem : "",
        .asked_name = node->asked_name ? node->asked_name : "",
        .position = node->position,
        .holds = node->holds,
        .probe_pending = node->probe_asked != 0,
        .probe_ended_ms = node->probe.ended_ms,
        .probe_measured_ms = node->probe.measured_ms,
        .probe_problem = node->probe.problem ? node->probe.problem : "",
        .probe_measured_on = node->probe.measured_on ? node->probe.measured_on : "",
    };
}

enum hd_node_state hd_node_view_state(const struct hd_node_view *view)
{
    return view->is_away && view->record->state == HD_NODE_STATE_READY ? HD_NODE_STATE_UNREACHABLE
                                                                       : view->record->state;
}

void hd_core_node_reason(const struct hd_core *core, size_t index, struct hd_now now,
                         struct hd_text *ret_reason)
{
    core_node_reason(core->nodes[index], now, ret_reason);
}

int64_t hd_core_node_silent_ms(const struct hd_core *core, size_t index, struct hd_now now)
{
    const struct core_node *node = core->nodes[index];
    const int64_t silent_ms = now.mono_ms - node->silent_since_mono_ms;

    if (node->rec.state != HD_NODE_STATE_LOST && node->rec.state != HD_NODE_STATE_UNREACHABLE &&
        !is_away(node))
        return 0;
    return silent_ms > 1 ? silent_ms : 1;
}

/* ---- nodes to be emptied --------------------------------------------------------------------*/

bool core_node_has_deadline(const struct core_node *node)
{
    return node->rec.drain && node->rec.drain_deadline_ms && !node->rec.retired;
}

void core_node_leaves(struct hd_core *core, struct core_node *node)
{
    size_t at = core->leaving_count;

    for (size_t i = 0; i < core->leaving_count; i++)
        if (core->leaving[i] == node)
            return;
    if (!core_grow_array(core, &core->leaving, core->leaving_count, &core->leaving_size,
                         sizeof node))
        return;
    for (; at && strcmp(core->leaving[at - 1]->rec.name, node->rec.name) > 0; at--)
        core->leaving[at] = core->leaving[at - 1];
    core->leaving[at] = node;
    core->leaving_count++;
}

void core_probe_drop(struct core_node *node)
{
    free(node->probe.devices);
    node->probe.devices = NULL;
    node->probe.device_count = 0;
    core_free_text(&node->probe.problem);
    core_free_text(&node->probe.measured_on);
}
