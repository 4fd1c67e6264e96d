/* copies: two daemons that call themselves the same node, as a machine and its clone do.
 *
 * A Hello of another process of a node that has a stream is held. If the older stream ends, or
 * nothing comes from it, heddled was started again: the Hello is answered. If the older daemon says
 * something, both live: the newer one is refused, for as long as it comes again.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/services/fleet.h"

enum {
    TWIN_IN_FLIGHT_MS = 1000,                 /* what was sent by a process that is gone */
    TWIN_SILENT_MS = 2 * HEARTBEAT_MS + 1000, /* so long a daemon that lives is never silent */
    SHOWN_MS = 60 * 1000,           /* a copy that was refused so long ago has not come again */
    REPORTED_AGAIN_MS = 3600 * 1000 /* an event tells it at most so often */
};

struct node_stream *copies_find_twin(const struct node_stream *s, const Heddle__V1__Hello *hello)
{
    struct node_stream *other = fleet_find_node(s->c, hello->node_uuid);

    return other && other != s && !other->removed && *other->instance && *hello->instance_id &&
                   strcmp(other->instance, hello->instance_id) != 0
               ? other
               : NULL;
}

enum hd_status copies_hold(struct node_stream *s)
{
    s->held = (Heddle__V1__NodeMessage *)(void *)hd_rpc_call_take(s->call);
    s->held_ms = hd_clock_now_ms();
    return s->held ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a node");
}

/* Two machines with one node's state directory: the first one has the node. */
static enum hd_status refuse_copy(const struct node_stream *s, struct node_stream *twin)
{
    const int64_t now_ms = hd_clock_now_ms();
    const struct hd_core_event event = {.kind = HD_CORE_COPY,
                                        .copy = {.uuid = twin->uuid, .from = twin->copy.from}};

    (void)snprintf(twin->copy.from, sizeof twin->copy.from, "%s", hd_rpc_call_peer(s->call));
    twin->copy.refused_ms = now_ms;
    if (!twin->copy.reported_ms || now_ms - twin->copy.reported_ms >= REPORTED_AGAIN_MS) {
        twin->copy.reported_ms = now_ms;
        if (transaction_step(s->c, &event))
            hd_log(HD_LOG_WARN, "no event tells of a copy of node %s: %s", twin->name,
                   hd_err_message());
    }
    return hd_err(HD_CONFLICT,
                  "another heddled is connected as this node: %s, from %s. The heddled that calls "
                  "itself %s, from %s, has a copy of its --state-dir, as a cloned machine has: "
                  "remove the state directory of the copy, and start it again; it then joins as a "
                  "node of its own, which needs a --node-name of its own",
                  twin->name, hd_rpc_call_peer(twin->call), s->held->hello->node_name,
                  hd_rpc_call_peer(s->call));
}

/* A daemon that was started again has no older stream, or one that nothing comes from any more. */
static void check_held(struct node_stream *s)
{
    struct node_stream *twin = copies_find_twin(s, s->held->hello);
    const int64_t now_ms = hd_clock_now_ms();
    Heddle__V1__NodeMessage *held = s->held;
    struct controller *c = s->c;
    enum hd_status st;

    if (twin && twin->received_ms <= s->held_ms + TWIN_IN_FLIGHT_MS &&
        now_ms < s->held_ms + TWIN_SILENT_MS)
        return;
    transaction_begin(c);
    st = twin && twin->received_ms > s->held_ms + TWIN_IN_FLIGHT_MS
             ? refuse_copy(s, twin)
             : fleet_take_hello(s, held->hello);
    s->held = NULL;
    hd_rpc_message_free(&held->base);
    if (st) {
        hd_log(HD_LOG_WARN, "closing the stream of a daemon: %s", hd_err_message());
        hd_rpc_call_fail(s->call, st);
    }
    transaction_end(c);
}

void copies_check(struct controller *c)
{
    for (struct node_stream *s = c->streams; s; s = s->next)
        if (s->held)
            check_held(s);
}

void copies_describe(const struct controller *c, const char *uuid, struct hd_text *ret_text)
{
    const struct node_stream *s = fleet_find_node(c, uuid);
    const int64_t now_ms = hd_clock_now_ms();

    if (s && s->copy.refused_ms && now_ms - s->copy.refused_ms < SHOWN_MS)
        hd_text_add(ret_text,
                    "%sanother heddled, from %s, has a copy of this node's --state-dir and is "
                    "refused",
                    ret_text->len_bytes ? "; " : "", s->copy.from);
}
