/* copies: two daemons with the same node UUID, as a machine and its clone have.
 *
 * The Hello of another process is held while the node has a stream. If the older stream ends or
 * stays silent, heddled was restarted: the Hello is accepted. If the older daemon sends something,
 * both are alive: the newer one is refused, as often as it retries.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/services/fleet.h"

enum {
    /* messages of a dead heddled process may still arrive this long after its end, ms */
    TWIN_IN_FLIGHT_MS = 1000,
    TWIN_SILENT_MS = 2 * HEARTBEAT_MS + 1000, /* a live heddled is never silent this long, ms */
    REPORTED_AGAIN_MS = 3600 * 1000           /* pause between two events about one copy, ms */
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

/* Refuses a daemon whose node is alive on another machine with a copy of the state directory, and
 * adds an event about it. */
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
            hd_log(HD_LOG_WARN, "cannot add an event about the copy of node %s: %s", twin->name,
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

/* Accepts the held Hello if the node's older stream has ended or is silent; refuses it if the older
 * daemon has sent something; else leaves it held. */
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
