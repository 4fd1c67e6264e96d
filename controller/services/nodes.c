/* nodes: the calls of Control about nodes. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "controller/services/control.h"

enum { DRAIN_REASON_BYTES_MAX = 256 };

void control_list_nodes(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    Heddle__V1__ListNodesResponse response = HEDDLE__V1__LIST_NODES_RESPONSE__INIT;
    const struct controller *c = hd_rpc_call_user(call);
    const size_t count = hd_core_node_count(c->core);
    const struct veil veil = guard_veil(c, call);
    struct hd_text warning = {0};
    struct hd_arena arena;

    (void)message;
    hd_arena_init(&arena, 0);
    response.time_unix_ms = hd_clock_wall_ms();
    response.warning = answer_trouble(c, &warning);
    response.nodes = hd_arena_array(&arena, count + 1, sizeof *response.nodes);
    for (size_t i = 0; response.nodes && i < count; i++) {
        response.nodes[i] = convert_node(&arena, c, &veil, i);
        response.n_nodes += response.nodes[i] != NULL;
    }
    if (hd_arena_failed(&arena))
        hd_rpc_call_fail(call, hd_err(HD_NO_MEMORY, "out of memory for a reply"));
    else
        (void)hd_rpc_call_reply(call, &response.base);
    hd_text_free(&warning);
    hd_arena_done(&arena);
}

/* ---- drain and undrain ------------------------------------------------------------------------*/

/* Returns the node's current status; NULL: the call has been failed. */
static Heddle__V1__NodeStatus *find_status(const struct controller *c, struct reply *reply)
{
    const struct veil veil = guard_veil(c, reply->call);
    Heddle__V1__NodeStatus *node = NULL;
    size_t index;

    if (hd_core_node_find(c->core, reply->name, &index))
        node = convert_node(&reply->arena, c, &veil, index);
    if (!node)
        hd_rpc_call_fail(reply->call,
                         hd_err(HD_NOT_FOUND, "node %s does not exist any more", reply->name));
    return node;
}

static void send_drained(struct controller *c, struct reply *reply)
{
    Heddle__V1__DrainNodeResponse response = HEDDLE__V1__DRAIN_NODE_RESPONSE__INIT;

    response.node = find_status(c, reply);
    if (response.node)
        (void)hd_rpc_call_reply(reply->call, &response.base);
}

static void send_undrained(struct controller *c, struct reply *reply)
{
    Heddle__V1__UndrainNodeResponse response = HEDDLE__V1__UNDRAIN_NODE_RESPONSE__INIT;

    response.node = find_status(c, reply);
    if (response.node)
        (void)hd_rpc_call_reply(reply->call, &response.base);
}

void control_drain_node(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__DrainNodeRequest *m = (const void *)message;
    const struct hd_core_event event = {.kind = HD_CORE_DRAIN,
                                        .drain = {.node = m->node,
                                                  .reason = m->reason,
                                                  .deadline_ms = m->deadline_ms,
                                                  .by = control_caller(call)}};
    enum hd_status st;

    if (strlen(m->reason) > DRAIN_REASON_BYTES_MAX)
        st = hd_err(HD_INVALID,
                    "the reason has %zu bytes, the limit is %d: each line about the node shows it",
                    strlen(m->reason), DRAIN_REASON_BYTES_MAX);
    else
        st = control_check_reserve(hd_rpc_call_user(call));
    answer_change(call, st, &event, m->node, send_drained);
}

void control_undrain_node(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__UndrainNodeRequest *m = (const void *)message;
    const struct hd_core_event event = {.kind = HD_CORE_UNDRAIN,
                                        .drain = {.node = m->node, .by = control_caller(call)}};

    answer_change(call, control_check_disk(hd_rpc_call_user(call)), &event, m->node,
                  send_undrained);
}

/* ---- probe ------------------------------------------------------------------------------------*/

static void send_probe(struct controller *c, struct reply *reply)
{
    Heddle__V1__ProbeNodeResponse response = HEDDLE__V1__PROBE_NODE_RESPONSE__INIT;
    const struct veil veil = guard_veil(c, reply->call);
    size_t index;

    if (!hd_core_node_find(c->core, reply->name, &index)) {
        hd_rpc_call_fail(reply->call,
                         hd_err(HD_NOT_FOUND, "node %s does not exist any more", reply->name));
        return;
    }
    response.probe = probe_show(c, &veil, &reply->arena, index);
    (void)hd_rpc_call_reply(reply->call, &response.base);
}

void control_probe_node(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ProbeNodeRequest *m = (const void *)message;
    struct controller *c = hd_rpc_call_user(call);
    const struct hd_core_event event = {.kind = HD_CORE_PROBE,
                                        .probe = {.node = m->node, .by = control_caller(call)}};
    struct hd_node_view view;
    struct reply *reply;
    size_t index;
    enum hd_status st = control_check_disk(c);

    if (st) {
        hd_rpc_call_fail(call, st);
        return;
    }
    transaction_begin(c);
    st = answer_after_step(c, call, &event, send_probe, &reply);
    if (reply)
        (void)snprintf(reply->name, sizeof reply->name, "%s", m->node);
    if (!st && hd_core_node_find(c->core, m->node, &index)) {
        hd_core_node_at(c->core, index, &view);
        fleet_send_probe_request(c, view.record->uuid);
    }
    transaction_end(c);
    if (st)
        hd_rpc_call_fail(call, st);
}

/* ---- removal ----------------------------------------------------------------------------------*/

static void send_node_removed(struct controller *c, struct reply *reply)
{
    Heddle__V1__RemoveNodeResponse response = HEDDLE__V1__REMOVE_NODE_RESPONSE__INIT;

    (void)c;
    response.node = reply->name;
    response.node_uuid = reply->uuid;
    (void)hd_rpc_call_reply(reply->call, &response.base);
}

void control_remove_node(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__RemoveNodeRequest *m = (const void *)message;
    struct controller *c = hd_rpc_call_user(call);
    const struct hd_core_event event = {.kind = HD_CORE_REMOVE_NODE,
                                        .remove = {.node = m->node, .by = control_caller(call)}};
    char uuid[HD_CTL_NAME_BYTES_MAX + 1] = "";
    struct hd_node_view view;
    struct reply *reply;
    size_t index;
    enum hd_status st = control_check_reserve(c);

    if (!st && hd_core_node_find(c->core, m->node, &index)) {
        hd_core_node_at(c->core, index, &view);
        (void)snprintf(uuid, sizeof uuid, "%s", view.record->uuid);
    }
    if (st) {
        hd_rpc_call_fail(call, st);
        return;
    }
    transaction_begin(c);
    st = answer_after_step(c, call, &event, send_node_removed, &reply);
    if (reply) {
        (void)snprintf(reply->name, sizeof reply->name, "%s", m->node);
        (void)snprintf(reply->uuid, sizeof reply->uuid, "%s", uuid);
    }
    if (!st) {
        credential_end_node(c, m->node, control_caller(call));
        fleet_send_removed(c, uuid, control_caller(call));
    }
    transaction_end(c);
    if (st)
        hd_rpc_call_fail(call, st);
}
