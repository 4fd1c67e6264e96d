/* queues: the calls of Control about queues. */
#include <stdio.h>

#include "controller/services/control.h"

void control_list_queues(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    Heddle__V1__ListQueuesResponse response = HEDDLE__V1__LIST_QUEUES_RESPONSE__INIT;
    Heddle__V1__QueueStatus queues[HD_CTL_QUEUES_MAX], *pointers[HD_CTL_QUEUES_MAX];
    const struct controller *c = hd_rpc_call_user(call);

    (void)message;
    response.queues = pointers;
    response.n_queues = hd_core_queue_count(c->core);
    for (size_t i = 0; i < response.n_queues; i++) {
        pointers[i] = &queues[i];
        convert_queue(c, i, &queues[i]);
    }
    (void)hd_rpc_call_reply(call, &response.base);
}

static void send_queue(struct controller *c, struct reply *reply)
{
    Heddle__V1__SetQueueResponse response = HEDDLE__V1__SET_QUEUE_RESPONSE__INIT;
    Heddle__V1__QueueStatus queue;
    size_t index;

    if (!hd_core_queue_find(c->core, reply->name, &index)) {
        hd_rpc_call_fail(reply->call, hd_err(HD_NOT_FOUND, "there is no queue '%s'", reply->name));
        return;
    }
    convert_queue(c, index, &queue);
    response.queue = &queue;
    (void)hd_rpc_call_reply(reply->call, &response.base);
}

void control_set_queue(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__SetQueueRequest *m = (const void *)message;
    struct controller *c = hd_rpc_call_user(call);
    const struct hd_core_event event = {
        .kind = HD_CORE_SET_QUEUE,
        .queue = {.name = m->name,
                  .devices_max = m->_devices_max_case ? m->devices_max : -1,
                  .user_devices_max = m->_user_devices_max_case ? m->user_devices_max : -1,
                  .weight = m->_weight_case ? m->weight : -1,
                  .closes = m->_closed_case && m->closed,
                  .opens = m->_closed_case && !m->closed,
                  .by = control_caller(call)}};
    struct reply *reply;
    enum hd_status st = control_check_disk(c);

    if (!st && ((m->_devices_max_case && m->devices_max < 0) ||
                (m->_user_devices_max_case && m->user_devices_max < 0) ||
                (m->_weight_case && m->weight < 0)))
        st = hd_err(HD_INVALID, "a limit or weight below 0 is not possible");
    if (st) {
        hd_rpc_call_fail(call, st);
        return;
    }
    transaction_begin(c);
    st = answer_after_step(c, call, &event, send_queue, &reply);
    if (reply)
        (void)snprintf(reply->name, sizeof reply->name, "%s", m->name);
    transaction_end(c);
    if (st)
        hd_rpc_call_fail(call, st);
}

static void send_queue_removed(struct controller *c, struct reply *reply)
{
    Heddle__V1__RemoveQueueResponse response = HEDDLE__V1__REMOVE_QUEUE_RESPONSE__INIT;

    (void)c;
    response.name = reply->name;
    (void)hd_rpc_call_reply(reply->call, &response.base);
}

void control_remove_queue(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__RemoveQueueRequest *m = (const void *)message;
    struct controller *c = hd_rpc_call_user(call);
    const struct hd_core_event event = {.kind = HD_CORE_REMOVE_QUEUE,
                                        .queue = {.name = m->name, .by = control_caller(call)}};
    struct reply *reply;
    enum hd_status st = control_check_reserve(c);

    if (st) {
        hd_rpc_call_fail(call, st);
        return;
    }
    transaction_begin(c);
    st = answer_after_step(c, call, &event, send_queue_removed, &reply);
    if (reply)
        (void)snprintf(reply->name, sizeof reply->name, "%s", m->name);
    transaction_end(c);
    if (st)
        hd_rpc_call_fail(call, st);
}
