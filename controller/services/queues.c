/* queues: the calls of Control about queues. */

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
    struct hd_core_event event = {.kind = HD_CORE_SET_QUEUE,
                                  .queue = {.to = {.name = m->name}, .by = control_caller(call)}};
    bool negative = false;
    enum hd_status st = control_check_disk(c);

#define NEGATIVE_INT(value)  (value) < 0
#define NEGATIVE_BOOL(value) false
#define TAKE_KEY(type, member)
#define TAKE_LIVE(type, member)
#define TAKE_PUT(type, member)                        \
    if (m->_##member##_case) {                        \
        event.queue.given |= 1u << HD_QUEUE_##member; \
        event.queue.to.member = m->member;            \
        negative |= NEGATIVE_##type(m->member);       \
    }
#define TAKE(R, P, when, type, member, ...) TAKE_##when(type, member)
    HD_QUEUE_FIELDS(TAKE, , )
    if (!st && negative)
        st = hd_err(HD_INVALID, "a limit or weight below 0 is not possible");
    answer_change(call, st, &event, m->name, send_queue);
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
    const struct hd_core_event event = {
        .kind = HD_CORE_REMOVE_QUEUE,
        .queue = {.to = {.name = m->name}, .by = control_caller(call)}};

    answer_change(call, control_check_reserve(c), &event, m->name, send_queue_removed);
}
