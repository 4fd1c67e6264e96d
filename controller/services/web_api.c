/* web_api: the data of the dashboard, as JSON of `heddle ... -o json` (docs/api.md).
 *
 * Data of the core is sent at once, data of the store from a query's callback.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "controller/services/web.h"
#include "controller/show/show.h"
#include "spec/spec.h"

/* set of job states that matches no job */
#define NO_JOBS (1u << 31)

static const char json_type[] = "application/json";

/* ---- envelopes --------------------------------------------------------------------------------*/

static void begin_list(struct hd_json_writer *w, const char *kind)
{
    show_envelope_begin(w, kind);
    hd_json_begin(w, "items", '[');
}

/* Adds an item of a list on a line of its own. message NULL: there was no memory for it; returns
 * false. */
static bool add_item(struct hd_json_writer *w, const ProtobufCMessage *message, const char *form)
{
    w->out->failed |= message == NULL;
    if (!message)
        return false;
    hd_json_add_line(w);
    show_item(w, message, form);
    return true;
}

/* Closes the JSON list and its envelope, and sends the reply. */
static void reply_list(struct hd_http_request *request, struct hd_json_writer *w)
{
    hd_json_end(w, ']');
    hd_json_end(w, '}');
    hd_text_add(w->out, "\n");
    hd_http_reply(request, 200, json_type, w->out);
}

/* ---- data of the store ------------------------------------------------------------------------*/

struct asked {
    struct controller *c;
    struct hd_http_request *request;
    struct web_reader reader;
};

static void ask_store(struct controller *c, struct hd_http_request *request, struct hd_query *query,
                      void (*done)(struct hd_query *query, enum hd_status st))
{
    struct asked *asked = calloc(1, sizeof *asked);

    if (!asked || !query) {
        free(asked);
        hd_query_free(query);
        hd_http_fail(request, hd_err(HD_NO_MEMORY, "no memory for an answer"));
        return;
    }
    *asked = (struct asked){.c = c, .request = request, .reader = c->web->reader};
    query->done = done;
    query->user = asked;
    hd_store_query(c->store, query);
}

static void end_asked(struct hd_query *query)
{
    free(query->user);
    hd_query_free(query);
}

/* Returns whether the query failed or the controller is stopping, when the core may be freed; if
 * so, fails the HTTP request. */
static bool failed(struct hd_query *query, enum hd_status st)
{
    struct asked *asked = query->user;

    if (!st && asked->c->stopping)
        st = hd_err(HD_UNAVAILABLE, "the controller is stopping");
    if (!st && hd_arena_failed(&query->arena))
        st = hd_err(HD_NO_MEMORY, "no memory for an answer");
    if (st)
        hd_http_fail(asked->request, st);
    return st != HD_OK;
}

/* Replies with a list of `count` messages that were converted in the query's arena; to a list of
 * jobs it adds the number of the next page. Fails the request if there was no memory for a message. */
static void reply_rows(struct hd_query *query, const char *kind, const void *rows, size_t count,
                       const char *form)
{
    struct asked *asked = query->user;
    const ProtobufCMessage *const *messages = rows;
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};

    if (failed(query, HD_OK))
        return;
    show_envelope_begin(&w, kind);
    if (query->kind == HD_QUERY_JOBS && query->more)
        hd_json_add_int64(&w, "next_page", (int64_t)query->jobs[count - 1].record.job);
    else if (query->kind == HD_QUERY_JOBS)
        hd_json_add_null(&w, "next_page");
    hd_json_begin(&w, "items", '[');
    for (size_t i = 0; i < count; i++)
        (void)add_item(&w, messages[i], form);
    reply_list(asked->request, &w);
}

static void web_jobs(struct hd_query *query, enum hd_status st)
{
    struct asked *asked = query->user;
    const struct veil veil = web_veil(asked->c, &asked->reader);

    if (!failed(query, st))
        reply_rows(query, "JobList", convert_jobs(query, asked->c, &veil), query->job_count,
                   show_job_form);
    end_asked(query);
}

static void web_job(struct hd_query *query, enum hd_status st)
{
    struct asked *asked = query->user;
    const struct veil veil = web_veil(asked->c, &asked->reader);
    Heddle__V1__JobStatus *job = NULL;
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};

    if (failed(query, st)) {
        end_asked(query);
        return;
    }
    job = convert_job(&query->arena, asked->c, &veil, &query->jobs[0]);
    st = job ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for an answer");
    if (!st && (asked->reader.visibility == HD_VISIBILITY_ALL ||
                strcmp(query->jobs[0].record.owner, asked->reader.name) == 0))
        st = convert_job_details(&query->arena, &veil, query, job);
    if (st) {
        hd_http_fail(asked->request, st);
    } else {
        begin_list(&w, "JobList");
        hd_json_begin(&w, NULL, '{');
        show_whole_job(&w, job);
        hd_json_end(&w, '}');
        reply_list(asked->request, &w);
    }
    if (job && job->spec)
        heddle__v1__job_spec__free_unpacked(job->spec, NULL);
    end_asked(query);
}

/* Appends the text of the job that the ranks of an attempt read. */
static enum hd_status resolve_attempt(struct hd_query *query, struct asked *asked,
                                      struct hd_text *ret_text)
{
    const struct hd_job_record *job = &query->jobs[0].record;
    struct hd_job *spec = hd_arena_alloc(&query->arena, sizeof *spec);
    struct hd_job *resolved = hd_arena_alloc(&query->arena, sizeof *resolved);
    const struct hd_attempt_record *record;
    struct hd_spec_attempt attempt;
    int64_t number;
    enum hd_status st = web_number(asked->request, "attempt", 1, HD_CTL_ATTEMPTS_MAX,
                                   (int64_t)query->attempt_count, &number);

    if (st)
        return st;
    if (!query->attempt_count)
        return hd_err(HD_NOT_FOUND,
                      "job %" PRIu64 " has not started: ranks have read it in no form yet",
                      job->job);
    if ((size_t)number > query->attempt_count)
        return hd_err(HD_NOT_FOUND, "job %" PRIu64 " has no attempt %" PRId64 "; its newest is %zu",
                      job->job, number, query->attempt_count);
    record = &query->attempts[number - 1];
    attempt = (struct hd_spec_attempt){
        .job_id = (int64_t)job->job,
        .number = record->attempt,
        .dir = convert_attempt_dir(&query->arena, asked->c, job->job, record->attempt),
        .base_checkpoint = record->base_attempt ? record->base_path : NULL,
        .base_manifest_hash = record->base_attempt ? record->base_hash : NULL};
    if (!spec || !resolved || !attempt.dir)
        return hd_err(HD_NO_MEMORY, "no memory for a job");
    st = convert_unpack_spec(job->spec, job->spec_bytes, &query->arena, spec);
    if (!st)
        st = hd_spec_resolve(spec, &record->plan.layout, &attempt, resolved);
    return st ? st : hd_job_write(resolved, ret_text);
}

static void web_resolved(struct hd_query *query, enum hd_status st)
{
    struct asked *asked = query->user;
    struct hd_text text = {0};

    if (!failed(query, st)) {
        st = resolve_attempt(query, asked, &text);
        if (st)
            hd_http_fail(asked->request, st);
        else
            hd_http_reply(asked->request, 200, "text/plain; charset=utf-8", &text);
        hd_text_free(&text);
    }
    end_asked(query);
}

static void web_events(struct hd_query *query, enum hd_status st)
{
    struct asked *asked = query->user;
    const struct veil veil = web_veil(asked->c, &asked->reader);

    if (!failed(query, st))
        reply_rows(query, "EventList", convert_events(query, &veil), query->entry_count,
                   show_event_form);
    end_asked(query);
}

static void web_checkpoints(struct hd_query *query, enum hd_status st)
{
    if (!failed(query, st))
        reply_rows(query, "CheckpointList", convert_checkpoints(query), query->entry_count,
                   show_checkpoint_form);
    end_asked(query);
}

/* ---- lists of jobs ----------------------------------------------------------------------------*/

/* Parses a list of job states such as "queued,running" to a set of bits. HD_INVALID: a word is no
 * job state. */
static enum hd_status read_states(const char *text, uint32_t *ret_states)
{
    *ret_states = 0;
    while (text && *text) {
        const size_t length = strcspn(text, ",");
        int state = HD_JOB_STATE_QUEUED;

        while (state <= HD_JOB_STATE_CANCELLED &&
               (strlen(hd_job_state_name(state)) != length ||
                strncmp(hd_job_state_name(state), text, length) != 0))
            state++;
        if (state > HD_JOB_STATE_CANCELLED)
            return hd_err(HD_INVALID,
                          "state: %.40s is not queued, running, stopping, succeeded, failed or "
                          "cancelled",
                          text);
        *ret_states |= 1u << state;
        text += length;
        text += *text == ',';
    }
    return HD_OK;
}

/* Answers with a piece of the log that the request's parameters name. */
static void show_log(struct controller *c, struct hd_http_request *request, uint64_t job)
{
    struct hd_query *query = hd_query_new(HD_QUERY_JOB);

    if (query) {
        query->job = job;
        web_see(&c->web->reader, HD_VISIBILITY_ALL, query);
    }
    read_log_answer(c, request, query);
}

static void list_jobs(struct controller *c, struct hd_http_request *request)
{
    struct hd_query *query = hd_query_new(HD_QUERY_JOBS);
    int64_t limit = PAGE_DEFAULT, before = 0;
    uint32_t states = 0;
    enum hd_status st = web_check_params(request, "state owner limit page");

    if (!st)
        st = read_states(hd_http_param(request, "state"), &states);
    if (!st)
        st = web_number(request, "limit", 1, PAGE_MAX, PAGE_DEFAULT, &limit);
    if (!st)
        st = web_number(request, "page", 1, INT64_MAX, 0, &before);
    if (st) {
        hd_query_free(query);
        hd_http_fail(request, st);
        return;
    }
    if (query) {
        const char *owner = hd_http_param(request, "owner");
        const bool own = c->web->reader.visibility == HD_VISIBILITY_OWN;

        query->owner = own && !owner ? c->web->reader.name : owner;
        query->states = own && strcmp(query->owner, c->web->reader.name) != 0
                            ? NO_JOBS /* the reader sees no jobs of other users */
                            : states;
        query->before_job = (uint64_t)before;
        query->limit = (int32_t)limit;
    }
    ask_store(c, request, query, web_jobs);
}

static void ask_about(struct controller *c, struct hd_http_request *request, uint64_t job,
                      enum hd_query_kind kind, enum hd_visibility needed, const char *params,
                      void (*done)(struct hd_query *query, enum hd_status st))
{
    int64_t limit = PAGE_DEFAULT;
    enum hd_status st = web_check_params(request, params);
    struct hd_query *query;

    if (!st && *params)
        st = web_number(request, "limit", 1, PAGE_MAX, PAGE_DEFAULT, &limit);
    if (st) {
        hd_http_fail(request, st);
        return;
    }
    query = hd_query_new(kind);
    if (query) {
        query->job = job;
        query->limit = (int32_t)limit;
        web_see(&c->web->reader, needed, query);
    }
    ask_store(c, request, query, done);
}

/* Replies with the curve: the query has shown that the reader may see the job. */
static void on_seen(struct hd_query *query, enum hd_status st)
{
    struct asked *asked = query->user;

    if (!failed(query, st))
        curve_answer(asked->c, asked->request, query->job);
    end_asked(query);
}

/* ---- data of the core -------------------------------------------------------------------------*/

static void list_nodes(struct controller *c, struct hd_http_request *request)
{
    const size_t count = hd_core_node_count(c->core);
    const struct veil veil = web_veil(c, &c->web->reader);
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    begin_list(&w, "NodeList");
    for (size_t i = 0; i < count && !text.failed; i++) {
        const Heddle__V1__NodeStatus *node = convert_node(&arena, c, &veil, i);

        if (!add_item(&w, node ? &node->base : NULL, show_node_form))
            break;
    }
    reply_list(request, &w);
    hd_arena_done(&arena);
}

static void list_queues(struct controller *c, struct hd_http_request *request)
{
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};

    begin_list(&w, "QueueList");
    for (size_t i = 0; i < hd_core_queue_count(c->core); i++) {
        Heddle__V1__QueueStatus queue;

        convert_queue(c, i, &queue);
        show_item(&w, &queue.base, "*");
    }
    reply_list(request, &w);
}

static void add_counts(const struct controller *c, struct hd_json_writer *w)
{
    size_t states[HD_JOB_STATE_STOPPING + 1] = {0}, up = 0, held = 0, all = 0;
    const size_t nodes = hd_core_node_count(c->core);
    struct hd_node_view v;

    for (size_t i = 0; i < c->stats.count; i++) {
        const struct hd_job_record *job = hd_core_job(c->core, c->stats.jobs[i].job);

        if (job && job->state <= HD_JOB_STATE_STOPPING)
            states[job->state]++;
    }
    for (size_t i = 0; i < nodes; i++) {
        hd_core_node_at(c->core, i, &v);
        up += v.record->state != HD_NODE_STATE_UNREACHABLE && v.record->state != HD_NODE_STATE_LOST;
        all += (size_t)v.record->device_count;
        for (int32_t d = 0; d < v.record->device_count; d++)
            held += v.holds[d].job != 0;
    }
    hd_json_begin(w, "jobs", '{');
    for (int s = HD_JOB_STATE_QUEUED; s <= HD_JOB_STATE_STOPPING; s++)
        hd_json_add_int64(w, hd_job_state_name(s), (int64_t)states[s]);
    hd_json_end(w, '}');
    hd_json_begin(w, "nodes", '{');
    hd_json_add_int64(w, "all", (int64_t)nodes);
    hd_json_add_int64(w, "up", (int64_t)up);
    hd_json_end(w, '}');
    hd_json_begin(w, "devices", '{');
    hd_json_add_int64(w, "all", (int64_t)all);
    hd_json_add_int64(w, "held", (int64_t)held);
    hd_json_end(w, '}');
}

static void show_server(struct controller *c, struct hd_http_request *request)
{
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};

    show_envelope_begin(&w, "Server");
    hd_json_add_string(&w, "build", c->options.build);
    hd_json_add_string(&w, "jobs_dir", c->jobs_dir);
    show_time(&w, "time", hd_clock_wall_ms());
    hd_json_add_bool(&w, "writable", hd_store_trouble(c->store) == NULL);
    hd_json_add_string(&w, "trouble", convert_text(hd_store_trouble(c->store)));
    add_counts(c, &w);
    hd_json_end(&w, '}');
    hd_text_add(&text, "\n");
    hd_http_reply(request, 200, json_type, &text);
}

/* ---- requests ---------------------------------------------------------------------------------*/

/* Parses the end of a path, such as "7" or "7/curve": the job, and the text after the slash ("":
 * none). */
static bool read_job_number(const char *path, uint64_t *ret_job, const char **ret_rest)
{
    char digits[24];
    const size_t length = strcspn(path, "/");
    int64_t job;

    if (length == 0 || length >= sizeof digits)
        return false;
    memcpy(digits, path, length);
    digits[length] = '\0';
    *ret_rest = path[length] ? path + length + 1 : "";
    if (digits[0] == '+' || hd_text_to_int64(digits, 1, INT64_MAX, &job))
        return false;
    *ret_job = (uint64_t)job;
    return true;
}

static bool answer_job(struct controller *c, struct hd_http_request *request, const char *path)
{
    const char *rest;
    uint64_t job;

    if (!read_job_number(path, &job, &rest))
        return false;
    if (!*rest)
        ask_about(c, request, job, HD_QUERY_JOB, HD_VISIBILITY_JOBS, "", web_job);
    else if (strcmp(rest, "curve") == 0)
        ask_about(c, request, job, HD_QUERY_JOB, HD_VISIBILITY_JOBS, "buckets", on_seen);
    else if (strcmp(rest, "events") == 0)
        ask_about(c, request, job, HD_QUERY_LAST_EVENTS, HD_VISIBILITY_JOBS, "limit", web_events);
    else if (strcmp(rest, "log") == 0)
        show_log(c, request, job);
    else if (strcmp(rest, "resolved") == 0)
        ask_about(c, request, job, HD_QUERY_JOB, HD_VISIBILITY_ALL, "attempt", web_resolved);
    else if (strcmp(rest, "checkpoints") == 0)
        ask_about(c, request, job, HD_QUERY_CHECKPOINTS, HD_VISIBILITY_ALL, "", web_checkpoints);
    else
        return false;
    return true;
}

void web_api(struct controller *c, struct hd_http_request *request, const char *path)
{
    static const struct {
        const char *path;
        void (*answer)(struct controller *c, struct hd_http_request *request);
    } plain[] = {{"nodes", list_nodes}, {"queues", list_queues}, {"server", show_server}};
    enum hd_status st;

    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strcmp(path, plain[i].path) == 0) {
            st = web_check_params(request, "");
            if (st)
                hd_http_fail(request, st);
            else
                plain[i].answer(c, request);
            return;
        }
    if (strcmp(path, "jobs") == 0)
        list_jobs(c, request);
    else if (strcmp(path, "events") == 0)
        ask_about(c, request, 0, HD_QUERY_LAST_EVENTS, HD_VISIBILITY_OWN, "limit", web_events);
    else if (!hd_text_starts(path, "jobs/") || !answer_job(c, request, path + strlen("jobs/")))
        hd_http_fail(request, hd_err(HD_NOT_FOUND, "there is no /api/v1/%.200s", path));
}
