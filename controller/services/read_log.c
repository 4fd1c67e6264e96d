/* read_log: what a rank wrote, piece by piece from its daemon to whoever asks.
 *
 *   the job is read (which node, which folder) -> a request to the daemon -> its chunk -> written
 *                                                  ^                                         |
 *                                                  '------- more, or follow and not ended ---'
 *
 * One request is out at a time, and the next follows when the peer has taken the last chunk: a slow
 * reader slows only itself.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/services/internal.h"

enum { FOLLOW_WAIT_MS = 2000 };

struct log_reader {
    struct controller *c;
    struct hd_rpc_call *call; /* NULL: over, a query is still out */
    uint64_t job;
    int32_t attempt, rank;
    int64_t offset;
    bool follow, busy;     /* busy: the store is asked */
    bool blocked;          /* the peer reads slowly */
    bool ended_at_request; /* the attempt had ended before the last request was made */
    uint64_t request;      /* to the daemon; 0: none is out */
    char node_uuid[HD_CTL_NAME_BYTES_MAX + 1], node_name[HD_CTL_NAME_BYTES_MAX + 1];
    struct log_reader *next;
};

static void free_reader(struct log_reader *r)
{
    struct log_reader **at = &r->c->log_readers;

    while (*at && *at != r)
        at = &(*at)->next;
    if (*at)
        *at = r->next;
    free(r);
}

static bool attempt_has_ended(const struct log_reader *r)
{
    const struct hd_attempt_record *attempt = hd_core_attempt(r->c->core, r->job, r->attempt);

    return !attempt || attempt->state == HD_ATTEMPT_STATE_ENDED;
}

static void ask_daemon(struct log_reader *r)
{
    Heddle__V1__LogRequest m = HEDDLE__V1__LOG_REQUEST__INIT;
    struct hd_rpc_call *logs = fleet_logs_of(r->c, r->node_uuid);
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    m.attempt_dir = convert_text(convert_attempt_dir(&arena, r->c, r->job, r->attempt));
    r->ended_at_request = attempt_has_ended(r);
    r->request = m.request = ++r->c->last_log_request;
    m.job = r->job;
    m.attempt = r->attempt;
    m.rank = r->rank;
    m.offset_bytes = r->offset;
    m.max_bytes = LOG_CHUNK_BYTES;
    m.wait_ms = r->follow && !r->ended_at_request ? FOLLOW_WAIT_MS : 0;
    if (!logs || hd_rpc_call_write(logs, &m.base))
        hd_rpc_call_fail(r->call, hd_err(HD_UNAVAILABLE,
                                         "node %s, which has the log, is not connected; it is in "
                                         "%s there",
                                         r->node_name, m.attempt_dir));
    hd_arena_done(&arena);
}

/* ---- which log --------------------------------------------------------------------------------*/

static enum hd_status find_log(struct log_reader *r, const struct hd_query *query)
{
    const struct hd_attempt_record *attempt;

    if (!query->attempt_count)
        return hd_err(HD_NOT_FOUND, "job %" PRIu64 " has not started yet: there is no log", r->job);
    if (r->attempt == 0)
        r->attempt = (int32_t)query->attempt_count;
    if (r->attempt < 1 || (size_t)r->attempt > query->attempt_count)
        return hd_err(HD_NOT_FOUND, "job %" PRIu64 " has no attempt %" PRId32 ", only 1 to %zu",
                      r->job, r->attempt, query->attempt_count);
    attempt = &query->attempts[r->attempt - 1];
    if (r->rank < 0 || r->rank >= attempt->plan.rank_count)
        return hd_err(HD_NOT_FOUND,
                      "attempt %" PRId32 " of job %" PRIu64 " has ranks 0 to %" PRId32
                      ", not %" PRId32,
                      r->attempt, r->job, attempt->plan.rank_count - 1, r->rank);
    (void)snprintf(r->node_uuid, sizeof r->node_uuid, "%s", attempt->plan.ranks[r->rank].node_uuid);
    (void)snprintf(r->node_name, sizeof r->node_name, "%s", attempt->plan.ranks[r->rank].node_name);
    return HD_OK;
}

static void on_job(struct hd_query *query, enum hd_status st)
{
    struct log_reader *r = query->user;

    r->busy = false;
    if (!r->call) {
        free_reader(r);
    } else {
        if (!st)
            st = find_log(r, query);
        if (st)
            hd_rpc_call_fail(r->call, st);
        else
            ask_daemon(r);
    }
    hd_query_free(query);
}

/* ---- pieces -----------------------------------------------------------------------------------*/

static void go_on(struct log_reader *r, size_t received)
{
    if (received || (r->follow && !r->ended_at_request))
        ask_daemon(r);
    else
        hd_rpc_call_finish(r->call);
}

void read_log_chunk(struct controller *c, const Heddle__V1__LogChunk *chunk)
{
    Heddle__V1__ReadLogResponse m = HEDDLE__V1__READ_LOG_RESPONSE__INIT;
    struct log_reader *r = c->log_readers;
    enum hd_status st = HD_OK;

    while (r && r->request != chunk->request)
        r = r->next;
    if (!r || !r->call)
        return; /* its reader has left */
    r->request = 0;
    if (*chunk->error) {
        hd_rpc_call_fail(r->call, hd_err(HD_IO, "node %s: %s", r->node_name, chunk->error));
        return;
    }
    m.attempt = r->attempt;
    m.rank = r->rank;
    m.offset_bytes = chunk->offset_bytes;
    m.data = chunk->data;
    if (chunk->data.len)
        st = hd_rpc_call_write(r->call, &m.base);
    if (st == HD_LIMIT) { /* on_drain asks for the same piece again */
        r->blocked = true;
        return;
    }
    if (st)
        return; /* the call is over, on_done follows */
    if (chunk->data.len || r->offset < 0)
        r->offset = chunk->offset_bytes + (int64_t)chunk->data.len;
    go_on(r, chunk->data.len);
}

void read_log_node_gone(struct controller *c, const char *uuid)
{
    for (struct log_reader *r = c->log_readers; r; r = r->next) {
        if (!r->call || !r->request || strcmp(r->node_uuid, uuid) != 0)
            continue;
        r->request = 0;
        hd_rpc_call_fail(r->call, hd_err(HD_UNAVAILABLE,
                                         "node %s, which has the log, has disconnected; go on from "
                                         "byte %" PRId64 " later",
                                         r->node_name, r->offset));
    }
}

/* ---- the call ---------------------------------------------------------------------------------*/

void read_log_open(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    const Heddle__V1__ReadLogRequest *m = (const void *)request;
    struct controller *c = hd_rpc_call_user(call);
    struct log_reader *r = calloc(1, sizeof *r);
    struct hd_query *query = hd_query_new(HD_QUERY_JOB);

    hd_rpc_call_set_user(call, r);
    if (!r || !query) {
        hd_rpc_call_set_user(call, NULL);
        free(r);
        hd_query_free(query);
        hd_rpc_call_fail(call, hd_err(HD_NO_MEMORY, "no memory for a log"));
        return;
    }
    r->c = c;
    r->call = call;
    r->job = m->job;
    r->attempt = m->attempt;
    r->rank = m->rank;
    r->offset = m->offset_bytes;
    r->follow = m->follow;
    r->next = c->log_readers;
    c->log_readers = r;
    query->job = m->job;
    query->done = on_job;
    query->user = r;
    r->busy = true;
    hd_store_query(c->store, query);
}

void read_log_drain(struct hd_rpc_call *call)
{
    struct log_reader *r = hd_rpc_call_user(call);

    if (!r || !r->blocked)
        return;
    r->blocked = false;
    ask_daemon(r);
}

void read_log_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct log_reader *r = hd_rpc_call_user(call);

    (void)status;
    (void)message;
    if (!r)
        return;
    r->call = NULL;
    r->request = 0;
    if (!r->busy)
        free_reader(r);
}
