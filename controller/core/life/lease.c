/* lease: nodes that fall silent and are lost, and the ends of their node allocations. */
#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"

void core_node_end_allocs(struct hd_core *core, struct core_node *node, const char *message)
{
    const struct hd_end_record end = {
        .cause = HD_END_CAUSE_NODE_LOST, .rank = -1, .node = node->rec.name, .message = message};

    for (size_t i = 0; i < node->active.count;) {
        struct core_job *job = node->active.items[i];
        struct core_attempt *attempt = core_active(job);
        struct core_node_alloc *alloc = core_find_node_alloc(attempt, node);

        if (!alloc->ended) {
            core_attempt_fail(core, job, attempt, &end);
            core_node_alloc_end(core, job, attempt, alloc);
        }
        i += core_active(job) != NULL; /* a job whose attempt ended has left the set */
    }
}

void core_node_lose(struct hd_core *core, struct core_node *node, const char *why)
{
    node->connected = node->synced = false;
    node->stale_count = 0;
    core_node_set_state(core, node, HD_NODE_STATE_LOST);
    core_event_lost(core, node, why);
    core_probe_give_up(core, node);
    core_node_end_allocs(core, node, why);
    for (size_t i = 0; i < core->node_count; i++) /* another node takes over this node's
                                                   * deletions */
        if (core->nodes[i]->synced)
            core_dirty_desired(core, core->nodes[i]);
}

static void mark_silent(struct hd_core *core, struct core_node *node, int64_t silent_ms)
{
    struct hd_text why = {0};

    core_add_silence(node, silent_ms, &why);
    core_node_lose(core, node, core_text(core, &why));
    hd_text_free(&why);
}

void core_node_pardon(struct hd_core *core, struct core_node *node, int64_t away_ms)
{
    node->silent_since_mono_ms += away_ms; /* the silence from before the pause still counts */
    node->silent_since_ms += away_ms;
    node->lost_after_ms = core->config.restart_grace_ms;
    node->suspect = false;
    core->due |= CORE_DUE_SILENCE;
}

/* Returns the milliseconds of silence after which the node is lost; fewer if ranks of other nodes
 * report it gone. */
static int64_t lost_after_ms(const struct hd_core *core, const struct core_node *node)
{
    return node->suspect ? core->config.lost_confirmed_ms : node->lost_after_ms;
}

int64_t core_node_lost_at_ms(const struct hd_core *core, const struct core_node *node)
{
    return node->silent_since_ms + lost_after_ms(core, node);
}

/* Handles the node's silence; returns a time (monotonic, ms) before which it has not to be handled
 * again, unless CORE_DUE_SILENCE is set. */
static int64_t handle_silence(struct hd_core *core, struct core_node *node)
{
    const int64_t silent_ms = core->now.mono_ms - node->silent_since_mono_ms;
    int64_t limit_ms = lost_after_ms(core, node);

    if (node->rec.retired || node->rec.state == HD_NODE_STATE_LOST)
        return INT64_MAX;
    if (silent_ms >= limit_ms) {
        mark_silent(core, node, silent_ms);
        return INT64_MAX;
    }
    if (silent_ms >= core->config.unreachable_ms && node->rec.state != HD_NODE_STATE_UNREACHABLE) {
        core_node_set_state(core, node, HD_NODE_STATE_UNREACHABLE);
        core_event_unreachable(core, node, silent_ms);
    }
    if (node->rec.state != HD_NODE_STATE_UNREACHABLE && core->config.unreachable_ms < limit_ms)
        limit_ms = core->config.unreachable_ms;
    if (core->config.lost_ms < limit_ms)
        limit_ms = core->config.lost_ms;
    return node->silent_since_mono_ms + limit_ms;
}

void core_node_timers(struct hd_core *core)
{
    for (size_t i = 0; i < core->leaving_count; i++) {
        struct core_node *node = core->leaving[i];

        if (node->rec.state == HD_NODE_STATE_LOST || !core_node_has_deadline(node) ||
            node->deadline_met || core->now.wall_ms < node->rec.drain_deadline_ms)
            continue;
        node->deadline_met = true;
        core->due |= CORE_DUE_PASS;
    }
    if (!core_take_due(core, CORE_DUE_SILENCE) && core->now.mono_ms < core->silence_mono_ms)
        return;
    core->silence_mono_ms = INT64_MAX;
    for (size_t i = 0; i < core->node_count; i++) {
        const int64_t due_ms = handle_silence(core, core->nodes[i]);

        if (due_ms < core->silence_mono_ms)
            core->silence_mono_ms = due_ms;
    }
}
