/* control: the unary calls of the service Control.
 *
 * A call that changes something becomes a core event and is answered when that is durable. Jobs are
 * read from the store, so a client never sees what a crash could lose.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "controller/services/control.h"
#include "spec/spec.h"

enum { REQUEST_ID_MIN = 16, REQUEST_ID_MAX = 64 };

/* ---- permissions ------------------------------------------------------------------------------*/

const char *control_caller(const struct hd_rpc_call *call)
{
    const struct hd_rpc_principal *principal = hd_rpc_call_principal(call);

    return principal ? principal->name : "";
}

enum hd_status control_check_owner(const struct hd_rpc_call *call, const char *owner, uint64_t job)
{
    const struct hd_rpc_principal *principal = hd_rpc_call_principal(call);

    if (!principal)
        return hd_err(HD_DENIED,
                      "the caller is not authenticated: use the controller's Unix socket, a token "
                      "or a client certificate");
    if (strcmp(principal->name, owner) == 0)
        return HD_OK;
    if (principal->transport == HD_RPC_TRANSPORT_UNIX &&
        (principal->uid == 0 || principal->uid == geteuid()))
        return HD_OK;
    return hd_err(HD_DENIED, "job %" PRIu64 " belongs to %s; you are %s", job, owner,
                  principal->name);
}

enum hd_status control_check_disk(const struct controller *c)
{
    const char *trouble = hd_store_trouble(c->store);

    return trouble ? hd_err(HD_LIMIT, "the controller cannot write its state: %s", trouble) : HD_OK;
}

static uint64_t number_of(int64_t value)
{
    return value > 0 ? (uint64_t)value : 0;
}

static int32_t page_size(int32_t limit)
{
    if (limit <= 0)
        return PAGE_DEFAULT;
    return limit < PAGE_MAX ? limit : PAGE_MAX;
}

static void fail(struct hd_rpc_call *call, enum hd_status st)
{
    hd_rpc_call_fail(call, st);
}

/* ---- answers about one job --------------------------------------------------------------------*/

/* code, names in control.proto: calls whose answer is the job's status and nothing else */
#define JOB_ANSWER_LIST(X)                       \
    X(CANCEL, CancelJob, CANCEL_JOB)             \
    X(RESUME, ResumeJob, RESUME_JOB)             \
    X(REQUEUE, RequeueJob, REQUEUE_JOB)          \
    X(CHECKPOINT, CheckpointJob, CHECKPOINT_JOB) \
    X(HOLD, HoldJob, HOLD_JOB)                   \
    X(RELEASE, ReleaseJob, RELEASE_JOB)          \
    X(EXPLAIN, ExplainJob, EXPLAIN_JOB)          \
    X(GET, GetJob, GET_JOB)

enum answer_kind {
#define X(code, message, name) ANSWER_##code,
    JOB_ANSWER_LIST(X)
#undef X
        ANSWER_SUBMIT
};

struct job_answer {
    struct controller *c;
    struct hd_rpc_call *call; /* referenced */
    enum answer_kind kind;
    bool repeated;
};

/* Said when many jobs live; freed by the caller. */
static char *warning_of(const struct controller *c, struct hd_text *ret_text)
{
    hd_core_warn(c->core, ret_text);
    return convert_text(ret_text->failed ? "" : ret_text->data);
}

static void send_submitted(const struct controller *c, struct hd_rpc_call *call,
                           Heddle__V1__JobStatus *status, bool repeated)
{
    Heddle__V1__SubmitJobResponse response = HEDDLE__V1__SUBMIT_JOB_RESPONSE__INIT;
    struct hd_text warning = {0};

    response.job = status;
    response.repeated = repeated;
    response.warning = warning_of(c, &warning);
    (void)hd_rpc_call_reply(call, &response.base);
    hd_text_free(&warning);
}

static void send_job(struct job_answer *answer, Heddle__V1__JobStatus *status)
{
    switch (answer->kind) {
    case ANSWER_SUBMIT:
        send_submitted(answer->c, answer->call, status, answer->repeated);
        break;
#define X(code, message, name)                                                          \
    case ANSWER_##code: {                                                               \
        Heddle__V1__##message##Response response = HEDDLE__V1__##name##_RESPONSE__INIT; \
                                                                                        \
        response.job = status;                                                          \
        (void)hd_rpc_call_reply(answer->call, &response.base);                          \
        break;                                                                          \
    }
        JOB_ANSWER_LIST(X)
#undef X
    }
}

static void on_job(struct hd_query *query, enum hd_status st)
{
    struct job_answer *answer = query->user;
    Heddle__V1__JobStatus *status = NULL;

    if (!st) {
        status = convert_job(&query->arena, answer->c, &query->jobs[0]);
        if (!status)
            st = hd_err(HD_NO_MEMORY, "out of memory for a reply");
    }
    if (!st && answer->kind == ANSWER_GET)
        st = convert_job_details(&query->arena, query, status);
    if (st)
        fail(answer->call, st);
    else
        send_job(answer, status);
    if (status && status->spec)
        heddle__v1__job_spec__free_unpacked(status->spec, NULL);
    hd_rpc_call_unref(answer->call);
    free(answer);
    hd_query_free(query);
}

static void answer_job(struct controller *c, struct hd_rpc_call *call, uint64_t job,
                       enum answer_kind kind, bool repeated)
{
    struct job_answer *answer = calloc(1, sizeof *answer);
    struct hd_query *query = hd_query_new(HD_QUERY_JOB);

    if (!answer || !query) {
        free(answer);
        hd_query_free(query);
        fail(call, hd_err(HD_NO_MEMORY, "out of memory for a reply"));
        return;
    }
    *answer = (struct job_answer){
        .c = c, .call = hd_rpc_call_ref(call), .kind = kind, .repeated = repeated};
    query->job = job;
    query->done = on_job;
    query->user = answer;
    hd_store_query(c->store, query);
}

/* ---- queues -----------------------------------------------------------------------------------*/

static void list_queues(struct hd_rpc_call *call, const ProtobufCMessage *message)
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

static void answer_queue(const struct controller *c, struct hd_rpc_call *call, const char *name)
{
    Heddle__V1__SetQueueResponse response = HEDDLE__V1__SET_QUEUE_RESPONSE__INIT;
    Heddle__V1__QueueStatus queue;
    size_t index;

    if (!hd_core_queue_find(c->core, name, &index)) {
        fail(call, hd_err(HD_NOT_FOUND, "there is no queue %s", name));
        return;
    }
    convert_queue(c, index, &queue);
    response.queue = &queue;
    (void)hd_rpc_call_reply(call, &response.base);
}

/* ---- replies that wait for the commit ---------------------------------------------------------*/

struct reply {
    struct effect effect;
    struct hd_rpc_call *call; /* referenced; NULL: control_fail_waiting has answered it */
    enum answer_kind kind;
    uint64_t job; /* 0: the reply is about `node` */
    bool repeated, undrain, removed, probe;
    char node_uuid[HD_CTL_NAME_BYTES_MAX + 1]; /* of a removed one */
    char node[HD_CTL_NAME_BYTES_MAX + 1];
    char queue[HD_CTL_NAME_BYTES_MAX + 1]; /* "": the reply is about no queue */
    /* A new job as the step left it; NULL: it is read from the store. The step is on disk when the
     * reply leaves, and a second way through the store's queue would double the time of a reply. */
    Heddle__V1__JobStatus *status;
    struct hd_arena arena;       /* of status */
    struct reply *before, *next; /* in controller.replies */
};

static void answer_node(struct controller *c, struct reply *reply)
{
    Heddle__V1__DrainNodeResponse drain = HEDDLE__V1__DRAIN_NODE_RESPONSE__INIT;
    Heddle__V1__UndrainNodeResponse undrain = HEDDLE__V1__UNDRAIN_NODE_RESPONSE__INIT;
    Heddle__V1__RemoveNodeResponse removed = HEDDLE__V1__REMOVE_NODE_RESPONSE__INIT;
    Heddle__V1__ProbeNodeResponse probe = HEDDLE__V1__PROBE_NODE_RESPONSE__INIT;
    Heddle__V1__NodeStatus *node = NULL;
    struct hd_arena arena;
    size_t index;

    if (reply->removed) {
        removed.node = reply->node;
        removed.node_uuid = reply->node_uuid;
        (void)hd_rpc_call_reply(reply->call, &removed.base);
        return;
    }
    hd_arena_init(&arena, 0);
    if (reply->probe && hd_core_node_find(c->core, reply->node, &index)) {
        probe.probe = probe_show(c, &arena, index);
        (void)hd_rpc_call_reply(reply->call, &probe.base);
        hd_arena_done(&arena);
        return;
    }
    if (hd_core_node_find(c->core, reply->node, &index))
        node = convert_node(&arena, c, index);
    drain.node = undrain.node = node;
    if (!node)
        fail(reply->call, hd_err(HD_NOT_FOUND, "node %s does not exist any more", reply->node));
    else
        (void)hd_rpc_call_reply(reply->call, reply->undrain ? &undrain.base : &drain.base);
    hd_arena_done(&arena);
}

static void run_reply(struct effect *effect, struct controller *c, enum hd_status st)
{
    struct reply *reply = (struct reply *)(void *)effect;

    *(reply->before ? &reply->before->next : &c->replies) = reply->next;
    if (reply->next)
        reply->next->before = reply->before;
    if (reply->call && st)
        fail(reply->call,
             hd_err(HD_UNAVAILABLE,
                    "the controller stopped before the request was stored; repeat it"));
    else if (reply->call && reply->status)
        send_submitted(c, reply->call, reply->status, false);
    else if (reply->call && reply->job)
        answer_job(c, reply->call, reply->job, reply->kind, reply->repeated);
    else if (reply->call && *reply->queue)
        answer_queue(c, reply->call, reply->queue);
    else if (reply->call)
        answer_node(c, reply);
    if (reply->call)
        hd_rpc_call_unref(reply->call);
    hd_arena_done(&reply->arena);
    free(reply);
}

static struct reply *new_reply(struct controller *c, struct hd_rpc_call *call)
{
    struct reply *reply = calloc(1, sizeof *reply);

    if (!reply) {
        fail(call, hd_err(HD_NO_MEMORY, "out of memory for a reply"));
        return NULL;
    }
    reply->effect.run = run_reply;
    reply->call = hd_rpc_call_ref(call);
    hd_arena_init(&reply->arena, 0);
    reply->next = c->replies;
    if (reply->next)
        reply->next->before = reply;
    c->replies = reply;
    return reply;
}

void control_fail_waiting(struct controller *c, const char *message)
{
    for (struct reply *reply = c->replies; reply; reply = reply->next) {
        if (!reply->call)
            continue;
        fail(reply->call,
             hd_err(HD_LIMIT,
                    "the controller cannot write its state: %s; it retries, so the request may "
                    "still take effect (repeat the same request to learn the outcome)",
                    message));
        hd_rpc_call_unref(reply->call);
        reply->call = NULL;
    }
}

/* ---- specs ------------------------------------------------------------------------------------*/

void control_free_prepared(struct prepared *prepared)
{
    if (!prepared)
        return;
    hd_arena_done(&prepared->arena);
    free(prepared->bytes);
    free(prepared);
}

static enum hd_status pack(struct prepared *prepared)
{
    const Heddle__V1__JobSpec *message = hd_spec_to_message(&prepared->job, &prepared->arena);

    prepared->count = message ? heddle__v1__job_spec__get_packed_size(message) : 0;
    if (prepared->count > HD_CTL_SPEC_BYTES_MAX)
        return hd_err(HD_LIMIT,
                      "the job spec has %zu bytes (most of it file names), the limit is %d; use "
                      "fewer, larger files",
                      prepared->count, HD_CTL_SPEC_BYTES_MAX);
    prepared->bytes = message ? malloc(prepared->count + 1) : NULL;
    if (!prepared->bytes)
        return hd_err(HD_NO_MEMORY, "no memory for a job");
    (void)heddle__v1__job_spec__pack(message, prepared->bytes);
    return HD_OK;
}

enum hd_status control_prepare(const Heddle__V1__JobSpec *given, struct prepared **ret_prepared)
{
    struct prepared *prepared = malloc(sizeof *prepared); /* large; the reader clears the job */
    enum hd_status st = HD_OK;

    *ret_prepared = NULL;
    if (!prepared)
        return hd_err(HD_NO_MEMORY, "no memory for a job");
    prepared->bytes = NULL;
    prepared->count = 0;
    hd_arena_init(&prepared->arena, 0);
    if (!given)
        st = hd_err(HD_INVALID, "spec is missing");
    if (!st)
        st = hd_spec_from_message(given, &prepared->arena, &prepared->job);
    if (!st)
        st = hd_spec_check(&prepared->job);
    if (!st)
        st = pack(prepared);
    if (st)
        control_free_prepared(prepared);
    else
        *ret_prepared = prepared;
    /* the client gets INVALID_ARGUMENT for features that are not built */
    return st == HD_UNSUPPORTED ? hd_err(HD_INVALID, "%s", hd_err_message()) : st;
}

static enum hd_status check_request_id(const char *id)
{
    const size_t length = strlen(id);

    if (length >= REQUEST_ID_MIN && length <= REQUEST_ID_MAX &&
        strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == length)
        return HD_OK;
    return hd_err(HD_INVALID, "request_id: %d to %d letters, digits, '-' or '_' are needed",
                  REQUEST_ID_MIN, REQUEST_ID_MAX);
}

/* ---- calls about jobs -------------------------------------------------------------------------*/

/* A job that the step has just made, as a reply will tell of it: without a step or a checkpoint. */
static Heddle__V1__JobStatus *new_job(const struct controller *c, uint64_t job,
                                      struct hd_arena *arena)
{
    const struct hd_job_record *record = hd_core_job(c->core, job);
    struct hd_job_row row = {.sequence = hd_core_job_sequence(c->core, job)};

    if (!record)
        return NULL;
    row.record = *record;
    row.record.spec = NULL;
    row.record.spec_bytes = 0;
    row.record =
        hd_record_copy_job(arena, &row.record); /* the core's may change before it leaves */
    return convert_job(arena, c, &row);
}

static enum hd_status submit(struct controller *c, struct hd_rpc_call *call, const char *request_id,
                             const struct prepared *prepared)
{
    const struct hd_core_event event = {.kind = HD_CORE_SUBMIT,
                                        .submit = {.request_id = request_id,
                                                   .owner = control_caller(call),
                                                   .needs = convert_needs(&prepared->job),
                                                   .spec = prepared->bytes,
                                                   .spec_bytes = prepared->count}};
    struct reply *reply;
    enum hd_status st;

    turn_begin(c);
    st = turn_step(c, &event);
    reply = st ? NULL : new_reply(c, call);
    if (reply) {
        reply->kind = ANSWER_SUBMIT;
        reply->job = c->out.job;
        reply->repeated = c->out.repeated;
        if (!reply->repeated)
            reply->status = new_job(c, reply->job, &reply->arena);
        turn_when_durable(c, &reply->effect);
    }
    turn_end(c);
    return st == HD_UNSUPPORTED ? hd_err(HD_INVALID, "%s", hd_err_message()) : st;
}

static void submit_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__SubmitJobRequest *m = (const void *)message;
    struct controller *c = hd_rpc_call_user(call);
    struct prepared *prepared = NULL;
    enum hd_status st = control_check_disk(c);

    if (!st)
        st = check_request_id(m->request_id);
    if (!st)
        st = control_prepare(m->spec, &prepared);
    if (!st)
        st = submit(c, call, m->request_id, prepared);
    if (st)
        fail(call, st);
    control_free_prepared(prepared);
}

/* A job that is validated. It waits while its layout is being found. */
struct validation {
    struct hd_rpc_call *call; /* referenced */
    struct prepared *prepared;
    struct validation *next;
};

static void free_validation(struct validation *v)
{
    hd_rpc_call_unref(v->call);
    control_free_prepared(v->prepared);
    free(v);
}

/* True: it is answered. */
static bool try_to_validate(struct controller *c, struct hd_rpc_call *call,
                            const struct prepared *prepared)
{
    Heddle__V1__ValidateJobResponse response = HEDDLE__V1__VALIDATE_JOB_RESPONSE__INIT;
    const struct hd_job_needs needs = convert_needs(&prepared->job);
    struct hd_core_readiness ready = {0};
    enum hd_status st;

    hd_core_out_clear(&c->out);
    st = hd_core_explain_needs(c->core, &needs, prepared->bytes, prepared->count, controller_now(),
                               &c->out, &ready);
    if (c->out.asked_count)
        planner_ask(c, &c->out);
    response.fits_now = ready.fits_now;
    response.reason = convert_text(ready.reason.data);
    if (st == HD_UNSUPPORTED)
        st = hd_err(HD_INVALID, "%s", hd_err_message());
    if (st)
        fail(call, st);
    else if (!ready.later)
        (void)hd_rpc_call_reply(call, &response.base);
    hd_text_free(&ready.reason);
    return st || !ready.later;
}

static void validate_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ValidateJobRequest *m = (const void *)message;
    struct controller *c = hd_rpc_call_user(call);
    struct validation *v = calloc(1, sizeof *v);
    enum hd_status st = v ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a job");

    if (!st)
        st = control_prepare(m->spec, &v->prepared);
    if (st)
        fail(call, st);
    if (v)
        v->call = hd_rpc_call_ref(call);
    if (st || try_to_validate(c, call, v->prepared)) {
        if (v)
            free_validation(v);
        return;
    }
    v->next = c->validations;
    c->validations = v;
}

void control_go_on_validating(struct controller *c)
{
    struct validation *waiting = c->validations;

    c->validations = NULL;
    for (struct validation *v = waiting, *next; v; v = next) {
        next = v->next;
        if (try_to_validate(c, v->call, v->prepared)) {
            free_validation(v);
            continue;
        }
        v->next = c->validations;
        c->validations = v;
    }
}

void control_forget_validations(struct controller *c)
{
    for (struct validation *v = c->validations, *next; v; v = next) {
        next = v->next;
        free_validation(v);
    }
    c->validations = NULL;
}

static void get_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__GetJobRequest *m = (const void *)message;

    answer_job(hd_rpc_call_user(call), call, m->job, ANSWER_GET, false);
}

static void explain_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ExplainJobRequest *m = (const void *)message;

    answer_job(hd_rpc_call_user(call), call, m->job, ANSWER_EXPLAIN, false);
}

static enum answer_kind answer_to(enum hd_core_event_kind kind)
{
    switch (kind) {
    case HD_CORE_RESUME:
        return ANSWER_RESUME;
    case HD_CORE_REQUEUE:
        return ANSWER_REQUEUE;
    case HD_CORE_CHECKPOINT_NOW:
        return ANSWER_CHECKPOINT;
    case HD_CORE_HOLD:
        return ANSWER_HOLD;
    case HD_CORE_RELEASE:
        return ANSWER_RELEASE;
    default:
        return ANSWER_CANCEL;
    }
}

enum hd_status control_step(struct controller *c, struct hd_rpc_call *call,
                            const struct hd_core_event *event)
{
    struct reply *reply;
    enum hd_status st;

    turn_begin(c);
    st = turn_step(c, event);
    reply = st ? NULL : new_reply(c, call);
    if (reply) {
        reply->kind = answer_to(event->kind);
        reply->job = c->out.job;
        turn_when_durable(c, &reply->effect);
    }
    turn_end(c);
    return st;
}

static void cancel_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__CancelJobRequest *m = (const void *)message;
    struct controller *c = hd_rpc_call_user(call);
    const struct hd_job_record *job = hd_core_job(c->core, m->job);
    const struct hd_core_event event = {
        .kind = HD_CORE_CANCEL,
        .cancel = {.job = m->job, .now = m->now, .by = control_caller(call)}};
    enum hd_status st;

    if (!job) { /* it has ended or does not exist: the store tells */
        answer_job(c, call, m->job, ANSWER_CANCEL, false);
        return;
    }
    st = control_check_owner(call, job->owner, m->job);
    if (!st)
        st = control_check_disk(c);
    if (!st)
        st = control_step(c, call, &event);
    if (st)
        fail(call, st);
}

/* ---- lists ------------------------------------------------------------------------------------*/

struct list_answer {
    struct controller *c;
    struct hd_rpc_call *call; /* referenced */
};

static void finish_list(struct hd_query *query, struct list_answer *answer)
{
    hd_rpc_call_unref(answer->call);
    free(answer);
    hd_query_free(query);
}

/* Sends the query; `done` replies and then calls finish_list. */
static void query_list(struct controller *c, struct hd_rpc_call *call, struct hd_query *query,
                       void (*done)(struct hd_query *query, enum hd_status st))
{
    struct list_answer *answer = calloc(1, sizeof *answer);

    if (!answer || !query) {
        free(answer);
        hd_query_free(query);
        fail(call, hd_err(HD_NO_MEMORY, "out of memory for a reply"));
        return;
    }
    answer->c = c;
    answer->call = hd_rpc_call_ref(call);
    query->done = done;
    query->user = answer;
    hd_store_query(c->store, query);
}

static void on_jobs(struct hd_query *query, enum hd_status st)
{
    struct list_answer *answer = query->user;
    Heddle__V1__ListJobsResponse response = HEDDLE__V1__LIST_JOBS_RESPONSE__INIT;
    struct hd_text warning = {0};

    response.warning = warning_of(answer->c, &warning);
    response.jobs = hd_arena_array(&query->arena, query->job_count + 1, sizeof *response.jobs);
    for (size_t i = 0; !st && response.jobs && i < query->job_count; i++) {
        response.jobs[i] = convert_job(&query->arena, answer->c, &query->jobs[i]);
        response.n_jobs += response.jobs[i] != NULL;
    }
    if (!st && query->more)
        response.next_page = convert_text(hd_arena_printf(
            &query->arena, "%" PRIu64, query->jobs[query->job_count - 1].record.job));
    if (!st && hd_arena_failed(&query->arena))
        st = hd_err(HD_NO_MEMORY, "out of memory for a reply");
    if (st)
        fail(answer->call, st);
    else
        (void)hd_rpc_call_reply(answer->call, &response.base);
    hd_text_free(&warning);
    finish_list(query, answer);
}

static void list_jobs(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ListJobsRequest *m = (const void *)message;
    struct hd_query *query;
    int64_t before = 0;

    if (*m->page && hd_text_to_int64(m->page, 1, INT64_MAX, &before)) {
        fail(call, hd_err(HD_INVALID, "page: \"%s\" is not a next_page of ListJobs", m->page));
        return;
    }
    query = hd_query_new(HD_QUERY_JOBS);
    if (query) {
        query->before_job = number_of(before);
        query->owner = m->owner;
        query->limit = page_size(m->limit);
        for (size_t i = 0; i < m->n_states; i++)
            query->states |= (unsigned)m->states[i] < 32 ? 1u << (unsigned)m->states[i] : 0;
    }
    query_list(hd_rpc_call_user(call), call, query, on_jobs);
}

static void on_events(struct hd_query *query, enum hd_status st)
{
    struct list_answer *answer = query->user;
    Heddle__V1__ListEventsResponse response = HEDDLE__V1__LIST_EVENTS_RESPONSE__INIT;

    response.events =
        hd_arena_array(&query->arena, query->entry_count + 1, sizeof *response.events);
    for (size_t i = 0; !st && response.events && i < query->entry_count; i++) {
        response.events[i] = convert_event(&query->arena, &query->entries[i].event);
        response.n_events += response.events[i] != NULL;
    }
    response.more = query->more;
    if (!st && hd_arena_failed(&query->arena))
        st = hd_err(HD_NO_MEMORY, "out of memory for a reply");
    if (st)
        fail(answer->call, st);
    else
        (void)hd_rpc_call_reply(answer->call, &response.base);
    finish_list(query, answer);
}

static void list_events(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ListEventsRequest *m = (const void *)message;
    struct hd_query *query = hd_query_new(HD_QUERY_EVENTS);

    if (query) {
        query->job = m->job;
        query->after = m->after_sequence;
        query->limit = page_size(m->limit);
    }
    query_list(hd_rpc_call_user(call), call, query, on_events);
}

static void on_checkpoints(struct hd_query *query, enum hd_status st)
{
    struct list_answer *answer = query->user;
    Heddle__V1__ListCheckpointsResponse response = HEDDLE__V1__LIST_CHECKPOINTS_RESPONSE__INIT;
    const struct hd_checkpoint_record *best = NULL;
    size_t best_at = 0;

    response.checkpoints =
        hd_arena_array(&query->arena, query->entry_count + 1, sizeof *response.checkpoints);
    for (size_t i = 0; !st && response.checkpoints && i < query->entry_count; i++) {
        response.checkpoints[i] = convert_checkpoint(&query->arena, &query->entries[i].checkpoint);
        response.n_checkpoints += response.checkpoints[i] != NULL;
        if (hd_record_is_better(&query->entries[i].checkpoint, best))
            best = &query->entries[best_at = i].checkpoint;
    }
    if (best && response.n_checkpoints == query->entry_count)
        response.checkpoints[best_at]->best = true;
    if (!st && hd_arena_failed(&query->arena))
        st = hd_err(HD_NO_MEMORY, "out of memory for a reply");
    if (st)
        fail(answer->call, st);
    else
        (void)hd_rpc_call_reply(answer->call, &response.base);
    finish_list(query, answer);
}

static void list_checkpoints(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ListCheckpointsRequest *m = (const void *)message;
    struct hd_query *query = hd_query_new(HD_QUERY_CHECKPOINTS);

    if (query)
        query->job = m->job;
    query_list(hd_rpc_call_user(call), call, query, on_checkpoints);
}

/* ---- calls about nodes ------------------------------------------------------------------------*/

static void list_nodes(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    Heddle__V1__ListNodesResponse response = HEDDLE__V1__LIST_NODES_RESPONSE__INIT;
    const struct controller *c = hd_rpc_call_user(call);
    const size_t count = hd_core_node_count(c->core);
    struct hd_arena arena;

    (void)message;
    hd_arena_init(&arena, 0);
    response.nodes = hd_arena_array(&arena, count + 1, sizeof *response.nodes);
    for (size_t i = 0; response.nodes && i < count; i++) {
        response.nodes[i] = convert_node(&arena, c, i);
        response.n_nodes += response.nodes[i] != NULL;
    }
    if (hd_arena_failed(&arena))
        fail(call, hd_err(HD_NO_MEMORY, "out of memory for a reply"));
    else
        (void)hd_rpc_call_reply(call, &response.base);
    hd_arena_done(&arena);
}

static void change_drain(struct hd_rpc_call *call, const struct hd_core_event *event)
{
    struct controller *c = hd_rpc_call_user(call);
    struct reply *reply;
    enum hd_status st = control_check_disk(c);

    if (st) {
        fail(call, st);
        return;
    }
    turn_begin(c);
    st = turn_step(c, event);
    reply = st ? NULL : new_reply(c, call);
    if (reply) {
        reply->undrain = event->kind == HD_CORE_UNDRAIN;
        (void)snprintf(reply->node, sizeof reply->node, "%s", event->drain.node);
        turn_when_durable(c, &reply->effect);
    }
    turn_end(c);
    if (st)
        fail(call, st);
}

static void drain_node(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__DrainNodeRequest *m = (const void *)message;
    const struct hd_core_event event = {.kind = HD_CORE_DRAIN,
                                        .drain = {.node = m->node,
                                                  .reason = m->reason,
                                                  .deadline_ms = m->deadline_ms,
                                                  .by = control_caller(call)}};

    change_drain(call, &event);
}

static void undrain_node(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__UndrainNodeRequest *m = (const void *)message;
    const struct hd_core_event event = {.kind = HD_CORE_UNDRAIN,
                                        .drain = {.node = m->node, .by = control_caller(call)}};

    change_drain(call, &event);
}

/* For those who may do everything: a limit that its users could lift would be none, and a probe
 * takes all of a node for a while. What: "queues are changed". */
static enum hd_status check_operator(const struct hd_rpc_call *call, const char *what)
{
    const struct hd_rpc_principal *principal = hd_rpc_call_principal(call);

    if (principal && principal->transport == HD_RPC_TRANSPORT_UNIX &&
        (principal->uid == 0 || principal->uid == geteuid()))
        return HD_OK;
    return hd_err(HD_DENIED,
                  "%s by root or by the controller's user, on the controller's machine and through "
                  "its Unix socket; you are %s",
                  what, principal ? principal->name : "not authenticated");
}

static void set_queue(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__SetQueueRequest *m = (const void *)message;
    struct controller *c = hd_rpc_call_user(call);
    const struct hd_core_event event = {
        .kind = HD_CORE_SET_QUEUE,
        .queue = {.name = m->name,
                  .devices_max = m->_devices_max_case ? m->devices_max : -1,
                  .user_devices_max = m->_user_devices_max_case ? m->user_devices_max : -1,
                  .weight = m->_weight_case ? m->weight : -1,
                  .by = control_caller(call)}};
    struct reply *reply;
    enum hd_status st = check_operator(call, "queues are changed");

    if (!st)
        st = control_check_disk(c);
    if (!st && ((m->_devices_max_case && m->devices_max < 0) ||
                (m->_user_devices_max_case && m->user_devices_max < 0) ||
                (m->_weight_case && m->weight < 0)))
        st = hd_err(HD_INVALID, "a limit or weight below 0 is not possible");
    if (st) {
        fail(call, st);
        return;
    }
    turn_begin(c);
    st = turn_step(c, &event);
    reply = st ? NULL : new_reply(c, call);
    if (reply) {
        (void)snprintf(reply->queue, sizeof reply->queue, "%s", m->name);
        turn_when_durable(c, &reply->effect);
    }
    turn_end(c);
    if (st)
        fail(call, st);
}

static void probe_node(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ProbeNodeRequest *m = (const void *)message;
    struct controller *c = hd_rpc_call_user(call);
    const struct hd_core_event event = {.kind = HD_CORE_PROBE,
                                        .probe = {.node = m->node, .by = control_caller(call)}};
    struct hd_node_view view;
    struct reply *reply;
    size_t index;
    enum hd_status st = check_operator(call, "devices are probed");

    if (!st)
        st = control_check_disk(c);
    if (st) {
        fail(call, st);
        return;
    }
    turn_begin(c);
    st = turn_step(c, &event);
    reply = st ? NULL : new_reply(c, call);
    if (reply) {
        reply->probe = true;
        (void)snprintf(reply->node, sizeof reply->node, "%s", m->node);
        turn_when_durable(c, &reply->effect);
    }
    if (!st && hd_core_node_find(c->core, m->node, &index)) {
        hd_core_node_at(c->core, index, &view);
        fleet_send_probe_request(c, view.record->uuid);
    }
    turn_end(c);
    if (st)
        fail(call, st);
}

static void remove_node(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__RemoveNodeRequest *m = (const void *)message;
    struct controller *c = hd_rpc_call_user(call);
    const struct hd_core_event event = {.kind = HD_CORE_REMOVE_NODE,
                                        .remove = {.node = m->node, .by = control_caller(call)}};
    char uuid[HD_CTL_NAME_BYTES_MAX + 1] = "";
    struct hd_node_view view;
    struct reply *reply;
    size_t index;
    enum hd_status st = control_check_disk(c);

    if (!st && hd_core_node_find(c->core, m->node, &index)) {
        hd_core_node_at(c->core, index, &view);
        (void)snprintf(uuid, sizeof uuid, "%s", view.record->uuid);
    }
    if (st) {
        fail(call, st);
        return;
    }
    turn_begin(c);
    st = turn_step(c, &event);
    reply = st ? NULL : new_reply(c, call);
    if (reply) {
        reply->removed = true;
        (void)snprintf(reply->node, sizeof reply->node, "%s", m->node);
        (void)snprintf(reply->node_uuid, sizeof reply->node_uuid, "%s", uuid);
        turn_when_durable(c, &reply->effect);
    }
    if (!st)
        fleet_send_removed(c, uuid, control_caller(call));
    turn_end(c);
    if (st)
        fail(call, st);
}

static void get_server_info(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    Heddle__V1__GetServerInfoResponse response = HEDDLE__V1__GET_SERVER_INFO_RESPONSE__INIT;
    struct controller *c = hd_rpc_call_user(call);

    (void)message;
    response.protocol_min = HEDDLE__V1__PROTOCOL__PROTOCOL_MIN;
    response.protocol_max = HEDDLE__V1__PROTOCOL__PROTOCOL_MAX;
    response.build = convert_text(c->options.build);
    response.jobs_dir = c->jobs_dir;
    response.time_unix_ms = hd_clock_wall_ms();
    response.owner = convert_text(control_caller(call));
    (void)hd_rpc_call_reply(call, &response.base);
}

/* ---- the service ------------------------------------------------------------------------------*/

#define UNARY(name, request_type, response_type, function)                                        \
    {                                                                                             \
        .path = "/heddle.v1.Control/" name, .kind = HD_RPC_UNARY,                                 \
        .request = &heddle__v1__##request_type##__descriptor,                                     \
        .response = &heddle__v1__##response_type##__descriptor, .handler = {.on_open = function}, \
    }

enum hd_status control_register(struct controller *c)
{
    struct hd_rpc_method methods[] = {
        UNARY("SubmitJob", submit_job_request, submit_job_response, submit_job),
        UNARY("ValidateJob", validate_job_request, validate_job_response, validate_job),
        UNARY("GetJob", get_job_request, get_job_response, get_job),
        UNARY("ListJobs", list_jobs_request, list_jobs_response, list_jobs),
        UNARY("CancelJob", cancel_job_request, cancel_job_response, cancel_job),
        UNARY("ResumeJob", resume_job_request, resume_job_response, resume_job),
        UNARY("RequeueJob", requeue_job_request, requeue_job_response, requeue_job),
        UNARY("CheckpointJob", checkpoint_job_request, checkpoint_job_response, checkpoint_job),
        UNARY("HoldJob", hold_job_request, hold_job_response, hold_job),
        UNARY("ReleaseJob", release_job_request, release_job_response, release_job),
        UNARY("ExplainJob", explain_job_request, explain_job_response, explain_job),
        UNARY("ListQueues", list_queues_request, list_queues_response, list_queues),
        UNARY("SetQueue", set_queue_request, set_queue_response, set_queue),
        UNARY("RemoveJob", remove_job_request, remove_job_response, remove_job),
        UNARY("ListEvents", list_events_request, list_events_response, list_events),
        UNARY("ListNodes", list_nodes_request, list_nodes_response, list_nodes),
        UNARY("GetTopology", get_topology_request, get_topology_response, topology_open),
        UNARY("ProbeNode", probe_node_request, probe_node_response, probe_node),
        UNARY("DrainNode", drain_node_request, drain_node_response, drain_node),
        UNARY("UndrainNode", undrain_node_request, undrain_node_response, undrain_node),
        UNARY("RemoveNode", remove_node_request, remove_node_response, remove_node),
        UNARY("ListCheckpoints", list_checkpoints_request, list_checkpoints_response,
              list_checkpoints),
        UNARY("GetServerInfo", get_server_info_request, get_server_info_response, get_server_info),
        {
            .path = "/heddle.v1.Control/WatchJob",
            .kind = HD_RPC_SERVER_STREAM,
            .request = &heddle__v1__watch_job_request__descriptor,
            .response = &heddle__v1__watch_job_response__descriptor,
            .handler = {.on_open = watch_open, .on_drain = watch_drain, .on_done = watch_done},
        },
        {
            .path = "/heddle.v1.Control/ReadLog",
            .kind = HD_RPC_SERVER_STREAM,
            .request = &heddle__v1__read_log_request__descriptor,
            .response = &heddle__v1__read_log_response__descriptor,
            .handler = {.on_open = read_log_open,
                        .on_drain = read_log_drain,
                        .on_done = read_log_done},
        },
    };
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < sizeof methods / sizeof methods[0]; i++) {
        methods[i].user = c;
        st = hd_rpc_server_add_method(c->server, &methods[i]);
    }
    return st;
}
