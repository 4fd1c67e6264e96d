/* read_log: sends a rank's log to a client, chunk by chunk: from the rank's daemon or, while that
 * is disconnected, from the file in the jobs directory.
 *
 *   read the job (which node, which folder) -> request to the daemon -> its chunk -> client
 *                                           '> read of the file      ->        ^      |
 *                                               ^                                      |
 *                                               '----- more, or follow and not ended --'
 *
 * Files are read in libuv's thread pool, because a network file system may not respond for long.
 *
 * A reader has at most one request in flight. The next one is sent when the client has taken the
 * last chunk, so a slow client delays only itself. A request of the dashboard
 * (/api/v1/jobs/N/log) is answered with one chunk.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "controller/services/control.h"
#include "controller/services/web.h"
#include "controller/show/show.h"

enum {
    FOLLOW_WAIT_MS = 2000, /* time for which a daemon waits for new bytes before it replies */
    WEB_READERS_MAX = 32,  /* requests of the dashboard that are answered at a time */
    WEB_BYTES = 64 * 1024, /* bytes that are sent to the dashboard unless it asks for others */
};

struct log_reader {
    struct controller *c;
    /* call of the client; NULL: the call has ended while a query was in flight, or the reader is
     * that of an HTTP request */
    struct hd_rpc_call *call;
    struct hd_http_request
        *http; /* NULL: the reader is that of a call, or the request is answered */
    uint64_t job;
    int32_t attempt, rank, bytes_max;
    int64_t offset;
    /* follow: send later bytes, too, until the attempt ends; busy: a query of the store is in
     * flight */
    bool follow, busy;
    bool blocked;          /* the client reads slowly: sending continues in read_log_drain */
    bool ended_at_request; /* the attempt had ended when the last request was sent */
    bool noted;            /* the client was told that the node is disconnected */
    /* the reader is at the end of the file: it reads again at the next tick */
    bool waits;
    /* number of the request in flight, to the daemon or for the file; 0: none */
    uint64_t request;
    bool to_daemon; /* the request in flight goes to the daemon, not to the file */
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

/* Returns whether a client still waits for the log. */
static bool is_wanted(const struct log_reader *r)
{
    return r->call || r->http;
}

/* Ends the call, or answers the request, with a failure. A reader whose request was answered is
 * freed by the next tick. */
static void fail(struct log_reader *r, enum hd_status st)
{
    r->request = 0;
    if (r->call)
        hd_rpc_call_fail(r->call, st);
    else if (r->http)
        hd_http_fail(r->http, st);
    r->http = NULL;
}

static bool attempt_has_ended(const struct log_reader *r)
{
    const struct hd_attempt_record *attempt = hd_core_attempt(r->c->core, r->job, r->attempt);

    return !attempt || attempt->state == HD_ATTEMPT_STATE_ENDED;
}

/* ---- reading the file -------------------------------------------------------------------------*/

struct log_piece {
    uv_work_t work;
    struct controller *c; /* NULL: the controller was freed; the result is dropped */
    struct log_piece *next;
    /* number of the reader's request that waits for these bytes; the reader may have ended */
    uint64_t request;
    char path[HD_CTL_PATH_BYTES_MAX];
    int64_t offset;
    size_t bytes_max;
    uint8_t *bytes; /* bytes read from the log file, [LOG_CHUNK_BYTES] */
    size_t count;
    struct hd_error error;
};

static void free_piece(struct log_piece *piece)
{
    free(piece->bytes);
    free(piece);
}

static void read_piece(uv_work_t *work)
{
    struct log_piece *p = work->data;

    hd_err_save(
        hd_file_read_piece(p->path, p->offset, p->bytes, p->bytes_max, &p->count, &p->offset),
        &p->error);
}

static void take_chunk(struct log_reader *r, int64_t offset, ProtobufCBinaryData data,
                       const char *note);

static void answer_http(struct log_reader *r, int64_t offset, ProtobufCBinaryData data,
                        const char *note);

/* Ends a reader whose node is away and whose file cannot be read here. To the dashboard this is a
 * log without text, and the message its note. */
static void fail_piece(struct log_reader *r, const struct log_piece *p)
{
    const enum hd_status st =
        p->error.status == HD_NOT_FOUND
            ? hd_err(HD_UNAVAILABLE,
                     "node %s, which has the log, is away, and %s is not on the controller's "
                     "machine; retry when the node is back, or read that file there",
                     r->node_name, p->path)
            : hd_err(p->error.status,
                     "node %s, which has the log, is away, and its file cannot be read here: %s",
                     r->node_name, p->error.message);

    if (r->http)
        answer_http(r, 0, (ProtobufCBinaryData){0}, hd_err_message());
    else
        fail(r, st);
}

static void on_piece(uv_work_t *work, int status)
{
    struct log_piece *p = work->data, **at;
    struct log_reader *r = p->c ? p->c->log_readers : NULL;
    char note[HD_CTL_PATH_BYTES_MAX + 256];

    for (at = p->c ? &p->c->log_pieces : NULL; at && *at != p; at = &(*at)->next)
        ;
    if (at)
        *at = p->next;
    while (r && r->request != p->request)
        r = r->next;
    if (r && is_wanted(r) && !status && !p->c->stopping) {
        r->request = 0;
        (void)snprintf(note, sizeof note,
                       "node %s is away; this is what the jobs directory has (%s)", r->node_name,
                       p->path);
        if (p->error.status)
            fail_piece(r, p);
        else
            take_chunk(r, p->offset, (ProtobufCBinaryData){p->count, p->bytes},
                       r->noted ? "" : note);
    }
    free_piece(p);
}

static enum hd_status begin_piece(struct log_reader *r)
{
    struct log_piece *p = calloc(1, sizeof *p);
    struct hd_arena arena;
    const char *path;

    hd_arena_init(&arena, 0);
    path = convert_log_path(&arena, r->c, r->job, r->attempt, r->rank);
    if (p)
        p->bytes = malloc(LOG_CHUNK_BYTES);
    if (!p || !p->bytes || !path) {
        hd_arena_done(&arena);
        if (p)
            free_piece(p);
        return hd_err(HD_NO_MEMORY, "no memory for a log");
    }
    (void)snprintf(p->path, sizeof p->path, "%s", path);
    hd_arena_done(&arena);
    p->c = r->c;
    p->work.data = p;
    p->request = r->request;
    p->offset = r->offset;
    p->bytes_max = (size_t)r->bytes_max;
    if (uv_queue_work(r->c->loop, &p->work, read_piece, on_piece)) {
        free_piece(p);
        return hd_err(HD_INTERNAL, "cannot read in a thread");
    }
    p->next = r->c->log_pieces;
    r->c->log_pieces = p;
    return HD_OK;
}

void read_log_forget_all(struct controller *c)
{
    for (; c->log_pieces; c->log_pieces = c->log_pieces->next)
        c->log_pieces->c = NULL;
    while (c->log_readers) { /* readers of calls were freed when their calls ended */
        fail(c->log_readers, hd_err(HD_UNAVAILABLE, "the controller is stopping"));
        free_reader(c->log_readers);
    }
}

/* ---- requests for bytes -----------------------------------------------------------------------*/

/* Returns whether the node's daemon has sent nothing for a while: its streams may be open although
 * the daemon is dead. */
static bool node_is_silent(const struct log_reader *r)
{
    struct hd_node_view node;

    for (size_t i = 0; i < hd_core_node_count(r->c->core); i++) {
        hd_core_node_at(r->c->core, i, &node);
        if (strcmp(node.record->uuid, r->node_uuid) == 0)
            return node.record->state == HD_NODE_STATE_UNREACHABLE ||
                   node.record->state == HD_NODE_STATE_LOST;
    }
    return true;
}

static bool ask_daemon(struct log_reader *r)
{
    Heddle__V1__LogRequest m = HEDDLE__V1__LOG_REQUEST__INIT;
    struct hd_rpc_call *logs = node_is_silent(r) ? NULL : fleet_logs_of(r->c, r->node_uuid);
    struct hd_arena arena;
    bool sent;

    if (!logs)
        return false;
    hd_arena_init(&arena, 0);
    m.attempt_dir = convert_text(convert_attempt_dir(&arena, r->c, r->job, r->attempt));
    m.request = r->request;
    m.job = r->job;
    m.attempt = r->attempt;
    m.rank = r->rank;
    m.offset_bytes = r->offset;
    m.max_bytes = r->bytes_max;
    m.wait_ms = r->follow && !r->ended_at_request ? FOLLOW_WAIT_MS : 0;
    sent = m.attempt_dir && !hd_rpc_call_write(logs, &m.base);
    hd_arena_done(&arena);
    return sent;
}

static void ask(struct log_reader *r)
{
    enum hd_status st;

    r->waits = false;
    r->ended_at_request = attempt_has_ended(r);
    r->request = ++r->c->last_log_request;
    r->to_daemon = ask_daemon(r);
    if (r->to_daemon) {
        r->noted = false; /* the node is connected again: the client is told when it disconnects */
        return;
    }
    st = begin_piece(r);
    if (!st)
        return;
    fail(r, st);
}

/* ---- finding the log --------------------------------------------------------------------------*/

static enum hd_status find_log(struct log_reader *r, const struct hd_query *query)
{
    const struct hd_attempt_record *attempt;

    if (!query->attempt_count)
        return hd_err(HD_NOT_FOUND, "job %" PRIu64 " has no log: it has not started", r->job);
    if (r->attempt == 0)
        r->attempt = (int32_t)query->attempt_count;
    if (r->attempt < 1 || (size_t)r->attempt > query->attempt_count)
        return hd_err(HD_NOT_FOUND, "job %" PRIu64 " has no attempt %" PRId32 "; use 1 to %zu",
                      r->job, r->attempt, query->attempt_count);
    attempt = &query->attempts[r->attempt - 1];
    if (r->rank < 0 || r->rank >= attempt->plan.rank_count)
        return hd_err(HD_NOT_FOUND,
                      "attempt %" PRId32 " of job %" PRIu64 " has no rank %" PRId32
                      "; use 0 to %" PRId32,
                      r->attempt, r->job, r->rank, attempt->plan.rank_count - 1);
    (void)snprintf(r->node_uuid, sizeof r->node_uuid, "%s", attempt->plan.ranks[r->rank].node_uuid);
    (void)snprintf(r->node_name, sizeof r->node_name, "%s", attempt->plan.ranks[r->rank].node_name);
    return HD_OK;
}

static void on_log_job(struct hd_query *query, enum hd_status st)
{
    struct log_reader *r = query->user;

    r->busy = false;
    if (!is_wanted(r)) {
        free_reader(r);
    } else {
        if (!st && r->http && r->c->stopping) /* the core may be freed */
            st = hd_err(HD_UNAVAILABLE, "the controller is stopping");
        if (!st)
            st = find_log(r, query);
        if (st)
            fail(r, st);
        else
            ask(r);
    }
    hd_query_free(query);
}

/* ---- chunks -----------------------------------------------------------------------------------*/

static void request_next(struct log_reader *r, size_t received)
{
    const bool goes_on = received || (r->follow && !r->ended_at_request);

    if (!goes_on)
        hd_rpc_call_finish(r->call);
    else if (received || r->to_daemon) /* the daemon waits for new bytes, a file read does not */
        ask(r);
    else
        r->waits = true;
}

/* Returns how many bytes of a chunk are sent as text: a character of which the chunk has only the
 * beginning is left to the next request, unless nothing else is there. */
static size_t whole_characters(const uint8_t *bytes, size_t count)
{
    for (size_t back = 1; back <= 3 && back < count; back++) {
        const uint8_t byte = bytes[count - back];
        const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;

        if ((byte & 0xc0) != 0x80)
            return length > back ? count - back : count;
    }
    return count;
}

/* Appends bytes of a log as UTF-8; bytes that are not UTF-8, and NUL, become U+FFFD. */
static void add_text(struct hd_text *out, const uint8_t *bytes, size_t count)
{
    while (count) {
        const size_t good = hd_text_find_not_utf8(bytes, count);

        hd_text_add_bytes(out, (const char *)bytes, good);
        if (good == count)
            break;
        hd_text_add(out, "\xef\xbf\xbd");
        bytes += good + 1;
        count -= good + 1;
    }
}

/* Answers a request of the dashboard with a chunk. */
static void answer_http(struct log_reader *r, int64_t offset, ProtobufCBinaryData data,
                        const char *note)
{
    const size_t used = whole_characters(data.data, data.len);
    struct hd_text out = {0}, text = {0};
    struct hd_json_writer w = {.out = &out};

    if (used)
        add_text(&text, data.data, used);
    show_envelope_begin(&w, "Log");
    hd_json_add_int64(&w, "job", (int64_t)r->job);
    hd_json_add_int64(&w, "attempt", r->attempt);
    hd_json_add_int64(&w, "rank", r->rank);
    hd_json_add_string(&w, "node", r->node_name);
    hd_json_add_int64(&w, "offset_bytes", offset);
    hd_json_add_int64(&w, "next_offset_bytes", offset + (int64_t)used);
    hd_json_add_bool(&w, "ended", r->ended_at_request);
    hd_json_add_string(&w, "note", note);
    hd_json_add_string(&w, "text", text.data ? text.data : "");
    hd_json_end(&w, '}');
    hd_text_add(&out, "\n");
    out.failed |= text.failed;
    hd_http_reply(r->http, 200, "application/json", &out);
    hd_text_free(&text);
    r->http = NULL;
}

/* Sends a chunk to the client. note: new remark about the source of the data; "": none. */
static void take_chunk(struct log_reader *r, int64_t offset, ProtobufCBinaryData data,
                       const char *note)
{
    Heddle__V1__ReadLogResponse m = HEDDLE__V1__READ_LOG_RESPONSE__INIT;
    enum hd_status st = HD_OK;

    if (r->http) {
        answer_http(r, offset, data, note);
        return;
    }
    m.attempt = r->attempt;
    m.rank = r->rank;
    m.offset_bytes = offset;
    m.data = data;
    m.note = convert_text(note);
    if (data.len || *note)
        st = hd_rpc_call_write(r->call, &m.base);
    if (st == HD_LIMIT) { /* read_log_drain requests the same chunk again */
        r->blocked = true;
        return;
    }
    if (st)
        return; /* the call has ended, read_log_done follows */
    r->noted |= *note != 0;
    if (data.len || r->offset < 0)
        r->offset = offset + (int64_t)data.len;
    request_next(r, data.len);
}

void read_log_chunk(struct controller *c, const struct hd_rpc_call *logs,
                    const Heddle__V1__LogChunk *chunk)
{
    struct log_reader *r = c->log_readers;

    while (r && r->request != chunk->request)
        r = r->next;
    if (!r || !is_wanted(r) || !r->to_daemon || fleet_logs_of(c, r->node_uuid) != logs)
        /* the client left, the log file is read instead, or this chunk comes from another node */
        return;
    r->request = 0;
    if (*chunk->error)
        fail(r, hd_err(HD_IO, "node %s: %s", r->node_name, chunk->error));
    else
        take_chunk(r, chunk->offset_bytes, chunk->data, "");
}

void read_log_node_gone(struct controller *c, const char *uuid)
{
    for (struct log_reader *r = c->log_readers; r; r = r->next)
        if (is_wanted(r) && r->request && r->to_daemon && strcmp(r->node_uuid, uuid) == 0)
            ask(r); /* reads the same bytes from the file */
}

void read_log_cut(struct controller *c, uint64_t credential)
{
    for (struct log_reader *r = c->log_readers; r; r = r->next) {
        const struct hd_rpc_principal *caller = r->call ? hd_rpc_call_principal(r->call) : NULL;

        if (caller &&
            (credential ? caller->credential == credential : !credential_is_valid(c, caller)))
            hd_rpc_call_fail(r->call, hd_err(HD_DENIED, "the token or certificate of this call has "
                                                        "expired or was revoked"));
    }
}

int64_t read_log_count_of(const struct controller *c, const char *name)
{
    int64_t count = 0;

    for (const struct log_reader *r = c->log_readers; r; r = r->next)
        count += r->call && strcmp(hd_rpc_call_principal(r->call)->name, name) == 0;
    return count;
}

void read_log_tick(struct controller *c)
{
    for (struct log_reader *r = c->log_readers, *next; r; r = next) {
        next = r->next;
        if (!is_wanted(r) && !r->busy)
            free_reader(r);
        else if (is_wanted(r) && (r->waits || (r->request && r->to_daemon && node_is_silent(r))))
            ask(r);
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
    r->bytes_max = LOG_CHUNK_BYTES;
    r->job = m->job;
    r->attempt = m->attempt;
    r->rank = m->rank;
    r->offset = m->offset_bytes;
    r->follow = m->follow;
    r->next = c->log_readers;
    c->log_readers = r;
    query->job = m->job;
    query->done = on_log_job;
    query->user = r;
    control_see(c, call, HD_VISIBILITY_ALL, query);
    r->busy = true;
    hd_store_query(c->store, query);
}

void read_log_drain(struct hd_rpc_call *call)
{
    struct log_reader *r = hd_rpc_call_user(call);

    if (!r || !r->blocked)
        return;
    r->blocked = false;
    ask(r);
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

/* ---- the dashboard ----------------------------------------------------------------------------*/

static enum hd_status read_params(const struct hd_http_request *request, struct log_reader *r)
{
    int64_t attempt = 0, rank = 0, bytes = 0;
    enum hd_status st = web_check_params(request, "attempt rank offset bytes");

    if (!st)
        st = web_number(request, "attempt", 0, HD_CTL_ATTEMPTS_MAX, 0, &attempt);
    if (!st)
        st = web_number(request, "rank", 0, INT32_MAX, 0, &rank);
    if (!st)
        st = web_number(request, "offset", -((int64_t)1 << 52), (int64_t)1 << 52, -WEB_BYTES,
                        &r->offset);
    if (!st)
        st = web_number(request, "bytes", 1, LOG_CHUNK_BYTES, WEB_BYTES, &bytes);
    r->attempt = (int32_t)attempt;
    r->rank = (int32_t)rank;
    r->bytes_max = (int32_t)bytes;
    return st;
}

void read_log_answer(struct controller *c, struct hd_http_request *request, struct hd_query *query)
{
    struct log_reader *r = calloc(1, sizeof *r);
    enum hd_status st = r && query ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a log");
    size_t count = 0;

    if (!st)
        st = read_params(request, r);
    for (const struct log_reader *other = c->log_readers; other; other = other->next)
        count += other->http != NULL;
    if (!st && count >= WEB_READERS_MAX)
        st = hd_err(HD_LIMIT, "%zu logs are being read; try again", count);
    if (st) {
        free(r);
        hd_query_free(query);
        hd_http_fail(request, st);
        return;
    }
    r->c = c;
    r->http = request;
    r->job = query->job;
    r->next = c->log_readers;
    c->log_readers = r;
    query->done = on_log_job;
    query->user = r;
    r->busy = true;
    hd_store_query(c->store, query);
}
