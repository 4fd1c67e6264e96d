/* logs: sends pieces of ranks' logs on request, on a separate stream that cannot delay the main
 * one. A request for bytes that are not written yet waits in memory. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "daemon/agent/agent.h"

enum { RETRY_MS = 1000, WAIT_MS_MAX = 60 * 1000 };

static void free_request(struct agent *agent, int index)
{
    free(agent->log_requests[index].path);
    agent->log_requests[index] = agent->log_requests[--agent->log_request_count];
}

static enum hd_status answer(struct agent *agent, uint64_t request, int64_t offset,
                             const uint8_t *bytes, size_t count, const char *error)
{
    Heddle__V1__LogChunk chunk = HEDDLE__V1__LOG_CHUNK__INIT;

    chunk.request = request;
    chunk.offset_bytes = offset;
    chunk.data.data = (uint8_t *)bytes;
    chunk.data.len = count;
    chunk.error = (char *)error;
    return hd_rpc_call_write(agent->logs, &chunk.base);
}

/* Reads a part of a rank's log; a missing file counts as not written yet. */
static enum hd_status read_piece(const struct agent_log_request *r, uint8_t *ret_bytes,
                                 size_t *ret_count, int64_t *ret_offset)
{
    const enum hd_status st = hd_file_read_piece(r->path, r->offset_bytes, ret_bytes,
                                                 (size_t)r->max_bytes, ret_count, ret_offset);

    return st == HD_NOT_FOUND ? HD_OK : st;
}

/* Tries to answer a request for log bytes. Returns whether the request is finished: it was
 * answered, or the stream has ended. */
static bool try_request(struct agent *agent, const struct agent_log_request *r, int64_t now_ms)
{
    int64_t offset;
    size_t count;
    enum hd_status st = read_piece(r, agent->log_bytes, &count, &offset);

    if (!st && !count && now_ms < r->deadline_ms)
        return false;
    st = answer(agent, r->request, offset, agent->log_bytes, st ? 0 : count,
                st ? hd_err_message() : "");
    return st != HD_LIMIT; /* HD_LIMIT: the controller reads slowly; retry later */
}

static void on_log_request(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__LogRequest *m = (const Heddle__V1__LogRequest *)message;
    struct agent *agent = hd_rpc_call_user(call);
    struct agent_log_request r = {.request = m->request, .rank = m->rank};
    struct hd_text path = {0};
    const int64_t now_ms = hd_clock_now_ms();

    if (call != agent->logs)
        return;
    if (m->attempt_dir[0] != '/' || strstr(m->attempt_dir, "/../") || m->rank < 0) {
        (void)answer(agent, m->request, 0, NULL, 0, "there is no such log");
        return;
    }
    hd_attempt_log_path(&path, m->attempt_dir, m->rank);
    r.path = path.data;
    r.offset_bytes = m->offset_bytes;
    r.max_bytes =
        m->max_bytes > 0 && m->max_bytes < AGENT_LOG_BYTES_MAX ? m->max_bytes : AGENT_LOG_BYTES_MAX;
    r.deadline_ms = now_ms + (m->wait_ms < WAIT_MS_MAX ? m->wait_ms : WAIT_MS_MAX);
    if (path.failed || agent->log_request_count == AGENT_LOG_REQUESTS_MAX)
        (void)answer(agent, m->request, 0, NULL, 0, "too many requests for logs wait on this node");
    else if (!try_request(agent, &r, now_ms)) {
        agent->log_requests[agent->log_request_count++] = r;
        return;
    }
    hd_text_free(&path);
}

static void on_logs_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct agent *agent = hd_rpc_call_user(call);

    if (call != agent->logs)
        return;
    if (status && status != HD_UNAVAILABLE && status != HD_ABORTED)
        hd_log(HD_LOG_WARN, "the stream of logs ended: %s", message);
    agent->logs = NULL;
    agent->logs_retry_ms = hd_clock_now_ms() + RETRY_MS;
    while (agent->log_request_count)
        free_request(agent, 0);
}

void logs_open(struct agent *agent)
{
    Heddle__V1__LogChunk first = HEDDLE__V1__LOG_CHUNK__INIT;
    const struct hd_rpc_call_options options = {
        .path = "/heddle.v1.Fleet/Logs",
        .kind = HD_RPC_BIDI,
        .response = &heddle__v1__log_request__descriptor,
        .handler = {.on_msg = on_log_request, .on_done = on_logs_done},
        .user = agent,
    };

    first.node_uuid = agent->identity.node_uuid;
    agent->logs_retry_ms = hd_clock_now_ms() + RETRY_MS;
    if (hd_rpc_client_call(agent->client, &options, &first.base, &agent->logs)) {
        agent->logs = NULL;
        hd_log(HD_LOG_WARN, "cannot open the stream of logs: %s", hd_err_message());
    }
}

void logs_tick(struct agent *agent)
{
    const int64_t now_ms = hd_clock_now_ms();

    if (!agent->logs && agent->welcomed && now_ms >= agent->logs_retry_ms)
        logs_open(agent);
    for (int i = agent->log_request_count - 1; agent->logs && i >= 0; i--)
        if (try_request(agent, &agent->log_requests[i], now_ms))
            free_request(agent, i);
}
