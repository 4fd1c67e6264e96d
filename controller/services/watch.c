/* watch: sends a job's history from a given entry on, then new entries after their commit.
 *
 *   read the job -> send its status if changed -> read history -> send entries -> more: read again
 *        ^                                                             |
 *        '-- a change was committed (watch_announce) <-- waiting       '--> JobEnd, if the job
 * ended
 *
 * The job is read before its history: if the job has ended, the history read after it is complete.
 * For a slow client only its position is kept; watch_drain continues from there.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/services/control.h"

enum { ENTRIES_PER_QUERY = 200, REASON_MAX = 1024 };

struct watcher {
    struct controller *c;
    /* call of the client; NULL: the call has ended while a query was in flight */
    struct hd_rpc_call *call;
    /* job's number; sequence number of the last entry of its history that was sent */
    uint64_t job, after;
    bool new_only;
    bool busy;    /* a query of the store is in flight */
    bool stale;   /* the job changed after it was read: read it again */
    bool blocked; /* the client reads slowly: sending continues in watch_drain */
    bool ended;   /* the job had ended when it was read */
    enum hd_job_state state;
    /* texts of JobStatus.reason and .stale as last sent to the client */
    char reason[REASON_MAX], trouble[REASON_MAX];
    Heddle__V1__JobEnd end;
    Heddle__V1__EndReport end_report;
    char end_reason[REASON_MAX], end_node[HD_CTL_NAME_BYTES_MAX + 1], end_message[REASON_MAX];
    struct watcher *next;
};

static void free_watcher(struct watcher *w)
{
    struct watcher **at = &w->c->watchers;

    while (*at && *at != w)
        at = &(*at)->next;
    if (*at)
        *at = w->next;
    free(w);
}

static void read_job(struct watcher *w);
static void read_history(struct watcher *w);

/* ---- sending ----------------------------------------------------------------------------------*/

/* Sends a message to the client. Returns false if it was not sent: the client is slow (then sets
 * blocked) or gone. */
static bool send_message(struct watcher *w, const Heddle__V1__WatchJobResponse *message)
{
    enum hd_status st = hd_rpc_call_write(w->call, &message->base);

    if (st == HD_LIMIT)
        w->blocked = true;
    return st == HD_OK;
}

static bool send_entry(struct watcher *w, struct hd_arena *arena,
                       const struct hd_history_entry *entry)
{
    Heddle__V1__WatchJobResponse m = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;
    const struct veil veil = guard_veil(w->c, w->call);

    m.sequence = entry->sequence;
    switch (entry->kind) {
    case HD_OP_STEP:
        m.attempt = entry->step.attempt;
        m.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STEP;
        m.step = convert_step(arena, &entry->step);
        break;
    case HD_OP_VALIDATION:
        m.attempt = entry->validation.attempt;
        m.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_VALIDATION;
        m.validation = convert_validation(arena, &entry->validation);
        break;
    case HD_OP_CHECKPOINT:
        m.attempt = entry->checkpoint.attempt;
        m.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_CHECKPOINT;
        m.checkpoint = convert_checkpoint(arena, &entry->checkpoint);
        break;
    default:
        m.attempt = entry->event.attempt;
        m.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_EVENT;
        m.event = convert_event(arena, &veil, &entry->event);
        break;
    }
    return !hd_arena_failed(arena) && send_message(w, &m);
}

static bool send_status(struct watcher *w, Heddle__V1__JobStatus *status)
{
    Heddle__V1__WatchJobResponse m = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;

    m.attempt = status->attempt;
    m.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STATUS;
    m.status = status;
    if (!send_message(w, &m))
        return false;
    w->state = (enum hd_job_state)status->state;
    (void)snprintf(w->reason, sizeof w->reason, "%s", status->reason);
    (void)snprintf(w->trouble, sizeof w->trouble, "%s", status->stale);
    return true;
}

static void send_end(struct watcher *w)
{
    Heddle__V1__WatchJobResponse m = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;

    m.attempt = w->end.attempts;
    m.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_END;
    m.end = &w->end;
    if (send_message(w, &m))
        hd_rpc_call_finish(w->call);
}

/* ---- reading ----------------------------------------------------------------------------------*/

/* Fills in the message JobEnd, which is sent after the whole history. */
static void keep_end(struct watcher *w, struct hd_query *query)
{
    const struct veil veil = guard_veil(w->c, w->call);
    const struct hd_job_row *row = &query->jobs[0];
    const struct hd_end_record *end =
        query->attempt_count ? &query->attempts[query->attempt_count - 1].end : NULL;
    const char *reason = veil_copy(&veil, &query->arena, row->record.reason);
    const char *message = veil_copy(&veil, &query->arena, end ? end->message : "");

    heddle__v1__job_end__init(&w->end);
    (void)snprintf(w->end_reason, sizeof w->end_reason, "%.*s",
                   (int)hd_record_fit(reason, sizeof w->end_reason - 1), reason);
    w->end.state = (Heddle__V1__JobState)row->record.state;
    w->end.reason = w->end_reason;
    w->end.attempts = row->record.attempt_count;
    w->end.step = row->has_step ? row->step.step : 0;
    if (!end)
        return;
    heddle__v1__end_report__init(&w->end_report);
    (void)snprintf(w->end_node, sizeof w->end_node, "%s", end->node);
    (void)snprintf(w->end_message, sizeof w->end_message, "%.*s",
                   (int)hd_record_fit(message, sizeof w->end_message - 1), message);
    w->end_report.cause = (Heddle__V1__EndCause)end->cause;
    w->end_report.rank = end->rank;
    w->end_report.node = w->end_node;
    w->end_report.message = w->end_message;
    w->end_report.exit_code = end->exit_code;
    w->end_report.signal = end->signal;
    w->end_report.bad_input = end->bad_input;
    w->end.end = &w->end_report;
}

/* Called first in each callback of a query. Returns false if the client has left, or if the query
 * failed; then it has failed the call, too. */
static bool finish_query(struct watcher *w, enum hd_status st)
{
    w->busy = false;
    if (!w->call) {
        free_watcher(w);
        return false;
    }
    if (st)
        hd_rpc_call_fail(w->call, st);
    return !st;
}

static void on_watched_job(struct hd_query *query, enum hd_status st)
{
    struct watcher *w = query->user;
    Heddle__V1__JobStatus *status;
    const struct hd_job_row *row;
    struct veil veil;

    if (!finish_query(w, st)) {
        hd_query_free(query);
        return;
    }
    row = &query->jobs[0];
    w->ended = row->record.state > HD_JOB_STATE_STOPPING;
    if (w->ended)
        keep_end(w, query);
    if (w->new_only) {
        w->after = row->sequence;
        w->new_only = false;
    }
    veil = guard_veil(w->c, w->call);
    status = convert_job(&query->arena, w->c, &veil, row);
    if (status && ((enum hd_job_state)status->state != w->state ||
                   strncmp(status->reason, w->reason, sizeof w->reason - 1) != 0 ||
                   strncmp(status->stale, w->trouble, sizeof w->trouble - 1) != 0))
        (void)send_status(w, status);
    hd_query_free(query);
    if (!w->blocked)
        read_history(w);
}

static void on_history(struct hd_query *query, enum hd_status st)
{
    struct watcher *w = query->user;
    bool more;

    if (!finish_query(w, st)) {
        hd_query_free(query);
        return;
    }
    for (size_t i = 0; i < query->entry_count; i++) {
        if (!send_entry(w, &query->arena, &query->entries[i]))
            break;
        w->after = query->entries[i].sequence;
    }
    more = query->more;
    hd_query_free(query);
    if (w->blocked)
        return; /* watch_drain continues */
    if (more)
        read_history(w);
    else if (w->ended)
        send_end(w);
    else if (w->stale)
        read_job(w);
}

static void start_query(struct watcher *w, enum hd_query_kind kind,
                        void (*done)(struct hd_query *query, enum hd_status st))
{
    struct hd_query *query = hd_query_new(kind);

    if (!query) {
        hd_rpc_call_fail(w->call, hd_err(HD_NO_MEMORY, "out of memory for a reply"));
        return;
    }
    query->job = w->job;
    query->after = w->after;
    query->limit = ENTRIES_PER_QUERY;
    query->done = done;
    query->user = w;
    if (kind == HD_QUERY_JOB) /* access is checked by the first query only */
        control_see(w->c, w->call, HD_VISIBILITY_JOBS, query);
    w->busy = true;
    hd_store_query(w->c->store, query);
}

static void read_job(struct watcher *w)
{
    w->stale = false;
    start_query(w, HD_QUERY_JOB, on_watched_job);
}

static void read_history(struct watcher *w)
{
    start_query(w, HD_QUERY_HISTORY, on_history);
}

/* ---- the call ---------------------------------------------------------------------------------*/

void watch_open(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    const Heddle__V1__WatchJobRequest *m = (const void *)request;
    struct controller *c = hd_rpc_call_user(call);
    struct watcher *w = calloc(1, sizeof *w);

    hd_rpc_call_set_user(call, w);
    if (!w) {
        hd_rpc_call_fail(call, hd_err(HD_NO_MEMORY, "no memory for a watcher"));
        return;
    }
    w->c = c;
    w->call = call;
    w->job = m->job;
    w->after = m->after_sequence;
    w->new_only = m->new_only;
    w->next = c->watchers;
    c->watchers = w;
    read_job(w);
}

void watch_drain(struct hd_rpc_call *call)
{
    struct watcher *w = hd_rpc_call_user(call);

    if (!w || !w->blocked)
        return;
    w->blocked = false;
    if (!w->busy)
        read_job(w);
}

void watch_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct watcher *w = hd_rpc_call_user(call);

    (void)status;
    (void)message;
    if (!w)
        return;
    w->call = NULL;
    if (!w->busy)
        free_watcher(w);
}

void watch_cut(struct controller *c, uint64_t credential)
{
    for (struct watcher *w = c->watchers; w; w = w->next) {
        const struct hd_rpc_principal *caller = w->call ? hd_rpc_call_principal(w->call) : NULL;

        if (caller &&
            (credential ? caller->credential == credential : !credential_is_valid(c, caller)))
            hd_rpc_call_fail(w->call, hd_err(HD_DENIED, "the token or certificate of this call has "
                                                        "expired or was revoked"));
    }
}

int64_t watch_count_of(const struct controller *c, const char *name)
{
    int64_t count = 0;

    for (const struct watcher *w = c->watchers; w; w = w->next)
        count += w->call && strcmp(hd_rpc_call_principal(w->call)->name, name) == 0;
    return count;
}

void watch_announce(struct controller *c, uint64_t job)
{
    for (struct watcher *w = c->watchers; w; w = w->next) {
        if (w->job != job || !w->call)
            continue;
        w->stale = true;
        if (!w->busy && !w->blocked)
            read_job(w);
    }
}

void watch_tick(struct controller *c)
{
    for (struct watcher *w = c->watchers; w; w = w->next) {
        struct hd_text reason = {0};
        struct veil veil;

        if (!w->call || w->busy || w->blocked || w->state > HD_JOB_STATE_STOPPING)
            continue;
        hd_core_explain(c->core, w->job, controller_now(), &reason);
        veil = guard_veil(c, w->call);
        veil_text(&veil, &reason);
        if ((!reason.failed &&
             strncmp(reason.data ? reason.data : "", w->reason, sizeof w->reason - 1) != 0) ||
            strncmp(convert_stale(c), w->trouble, sizeof w->trouble - 1) != 0)
            read_job(w);
        hd_text_free(&reason);
    }
}
