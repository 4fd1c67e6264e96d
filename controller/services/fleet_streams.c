/* fleet_streams: finds the stream of a node and writes messages to it; calls nothing else of this
 * folder.
 */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/services/fleet.h"

enum {
    SHOWN_MS = 60 * 1000, /* a refused daemon that has not retried for this long is not shown, ms */
};

struct node_stream *fleet_find_node(const struct controller *c, const char *uuid)
{
    for (struct node_stream *s = c->streams; s; s = s->next) {
        if (s->number && strcmp(s->uuid, uuid) == 0)
            return s;
    }
    return NULL;
}

struct node_stream *fleet_find_stream(const struct controller *c, uint64_t number)
{
    for (struct node_stream *s = c->streams; s; s = s->next) {
        if (s->number == number)
            return s;
    }
    return NULL;
}

struct hd_rpc_call *fleet_logs_of(const struct controller *c, const char *uuid)
{
    const struct node_stream *s = fleet_find_node(c, uuid);

    return s ? s->logs : NULL;
}

void fleet_send_message(struct node_stream *s, const Heddle__V1__ControllerMessage *message)
{
    enum hd_status st = hd_rpc_call_write(s->call, &message->base);

    if (st == HD_LIMIT)
        hd_rpc_call_fail(s->call, hd_err(HD_UNAVAILABLE, "%s reads too slowly", s->name));
    else if (st && st != HD_ABORTED) /* HD_ABORTED: the call has ended, on_done follows */
        hd_log(HD_LOG_ERROR, "cannot send a message to node %s: %s", s->name, hd_err_message());
}

void fleet_send_to_attempt(struct controller *c, const struct hd_attempt_record *attempt,
                           const Heddle__V1__ControllerMessage *message)
{
    for (struct node_stream *s = c->streams; s; s = s->next) {
        for (int32_t rank = 0; s->number && rank < attempt->plan.rank_count; rank++) {
            if (strcmp(attempt->plan.ranks[rank].node_uuid, s->uuid) == 0) {
                fleet_send_message(s, message);
                break;
            }
        }
    }
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
