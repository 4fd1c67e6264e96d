/* answer: replies to calls of Control, sent after the commit of their core step. A job's status is
 * read from the store, so a client never sees a state that a crash could lose.
 *
 *   answer_after_step: core step -> commit -> run_reply -> reply->send
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "controller/services/control.h"

/* ---- answers about one job --------------------------------------------------------------------*/

struct job_answer {
    struct controller *c;
    struct hd_rpc_call *call; /* the call to answer; holds a reference */
    enum answer_kind kind;
    bool repeated;
};

char *answer_trouble(const struct controller *c, struct hd_text *ret_text)
{
    const char *trouble = hd_store_trouble(c->store);

    if (trouble)
        hd_text_add(ret_text, "%s", trouble);
    else if (c->jobs_dir_problem[0])
        hd_text_add(ret_text, "no job starts: %s", c->jobs_dir_problem);
    return convert_text(ret_text->failed || !ret_text->data ? "" : ret_text->data);
}

char *answer_warning(const struct controller *c, struct hd_text *ret_text)
{
    (void)answer_trouble(c, ret_text);
    if (!ret_text->len_bytes)
        hd_core_warn(c->core, ret_text);
    return convert_text(ret_text->failed || !ret_text->data ? "" : ret_text->data);
}

void answer_submitted(const struct controller *c, struct hd_rpc_call *call,
                      Heddle__V1__JobStatus *status, bool repeated)
{
    Heddle__V1__SubmitJobResponse response = HEDDLE__V1__SUBMIT_JOB_RESPONSE__INIT;
    struct hd_text warning = {0}, never_fits = {0};

    response.job = status;
    response.repeated = repeated;
    hd_core_add_never_fits(c->core, status->job, &never_fits);
    response.never_fits = convert_text(never_fits.data);
    response.warning = answer_warning(c, &warning);
    (void)hd_rpc_call_reply(call, &response.base);
    hd_text_free(&warning);
    hd_text_free(&never_fits);
}

static void answer_got(const struct job_answer *answer, Heddle__V1__JobStatus *status)
{
    Heddle__V1__GetJobResponse response = HEDDLE__V1__GET_JOB_RESPONSE__INIT;

    response.job = status;
    response.time_unix_ms = hd_clock_wall_ms();
    (void)hd_rpc_call_reply(answer->call, &response.base);
}

static void answer_explained(const struct job_answer *answer, Heddle__V1__JobStatus *status)
{
    Heddle__V1__ExplainJobResponse response = HEDDLE__V1__EXPLAIN_JOB_RESPONSE__INIT;

    response.job = status;
    response.time_unix_ms = hd_clock_wall_ms();
    (void)hd_rpc_call_reply(answer->call, &response.base);
}

static void send_job(struct job_answer *answer, Heddle__V1__JobStatus *status)
{
    switch (answer->kind) {
    case ANSWER_GET:
        answer_got(answer, status);
        break;
    case ANSWER_EXPLAIN:
        answer_explained(answer, status);
        break;
    case ANSWER_SUBMIT:
        answer_submitted(answer->c, answer->call, status, answer->repeated);
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

static void on_status_job(struct hd_query *query, enum hd_status st)
{
    struct job_answer *answer = query->user;
    const struct veil veil = guard_veil(answer->c, answer->call);
    Heddle__V1__JobStatus *status = NULL;

    if (!st) {
        status = convert_job(&query->arena, answer->c, &veil, &query->jobs[0]);
        if (!status)
            st = hd_err(HD_NO_MEMORY, "out of memory for a reply");
    }
    if (!st && answer->kind == ANSWER_GET &&
        (guard_visibility(answer->c, answer->call) == HD_VISIBILITY_ALL ||
         strcmp(query->jobs[0].record.owner, control_caller(answer->call)) == 0))
        st = convert_job_details(&query->arena, &veil, query, status);
    if (st)
        hd_rpc_call_fail(answer->call, st);
    else
        send_job(answer, status);
    if (status && status->spec)
        heddle__v1__job_spec__free_unpacked(status->spec, NULL);
    hd_rpc_call_unref(answer->call);
    free(answer);
    hd_query_free(query);
}

void answer_with_job(struct controller *c, struct hd_rpc_call *call, uint64_t job,
                     enum answer_kind kind, bool repeated)
{
    struct job_answer *answer = calloc(1, sizeof *answer);
    struct hd_query *query = hd_query_new(HD_QUERY_JOB);

    if (!answer || !query) {
        free(answer);
        hd_query_free(query);
        hd_rpc_call_fail(call, hd_err(HD_NO_MEMORY, "out of memory for a reply"));
        return;
    }
    *answer = (struct job_answer){
        .c = c, .call = hd_rpc_call_ref(call), .kind = kind, .repeated = repeated};
    query->job = job;
    query->done = on_status_job;
    query->user = answer;
    control_see(c, call, HD_VISIBILITY_JOBS, query);
    hd_store_query(c->store, query);
}

/* ---- replies that wait for the commit ---------------------------------------------------------*/

static void run_reply(struct post_commit_action *action, struct controller *c, enum hd_status st)
{
    struct reply *reply = (struct reply *)(void *)action;

    *(reply->before ? &reply->before->next : &c->replies) = reply->next;
    if (reply->next)
        reply->next->before = reply->before;
    if (reply->call && st)
        hd_rpc_call_fail(reply->call,
                         hd_err(HD_UNAVAILABLE,
                                "the controller stopped before the request was stored; repeat it"));
    else if (reply->call)
        reply->send(c, reply);
    if (reply->call)
        hd_rpc_call_unref(reply->call);
    hd_arena_done(&reply->arena);
    free(reply);
}

static struct reply *new_reply(struct controller *c, struct hd_rpc_call *call)
{
    struct reply *reply = calloc(1, sizeof *reply);

    if (!reply) {
        hd_rpc_call_fail(call, hd_err(HD_NO_MEMORY, "out of memory for a reply"));
        return NULL;
    }
    reply->action.run = run_reply;
    reply->call = hd_rpc_call_ref(call);
    hd_arena_init(&reply->arena, 0);
    reply->next = c->replies;
    if (reply->next)
        reply->next->before = reply;
    c->replies = reply;
    return reply;
}

struct reply *answer_when_durable(struct controller *c, struct hd_rpc_call *call, answer_send send)
{
    struct reply *reply = new_reply(c, call);

    if (!reply)
        return NULL;
    reply->send = send;
    transaction_when_durable(c, &reply->action);
    return reply;
}

/* Adds the audit row of a successful call to the transaction; the row of a submission names the new
 * job. */
static void audit_step(struct controller *c, struct hd_rpc_call *call,
                       const struct hd_core_event *event)
{
    char object[32];

    (void)snprintf(object, sizeof object, "job %" PRIu64, c->out.job);
    guard_audit(c, call, event->kind == HD_CORE_SUBMIT ? object : NULL);
}

enum hd_status answer_after_step(struct controller *c, struct hd_rpc_call *call,
                                 const struct hd_core_event *event, answer_send send,
                                 struct reply **ret_reply)
{
    enum hd_status st = transaction_step(c, event);

    *ret_reply = st ? NULL : answer_when_durable(c, call, send);
    if (*ret_reply)
        audit_step(c, call, event);
    return st;
}

void answer_change(struct hd_rpc_call *call, enum hd_status st, const struct hd_core_event *event,
                   const char *name, answer_send send)
{
    struct controller *c = hd_rpc_call_user(call);
    struct reply *reply;

    if (!st) {
        transaction_begin(c);
        st = answer_after_step(c, call, event, send, &reply);
        if (reply)
            (void)snprintf(reply->name, sizeof reply->name, "%s", name);
        transaction_end(c);
    }
    if (st)
        hd_rpc_call_fail(call, st);
}

/* ---- lists ------------------------------------------------------------------------------------*/

struct list_answer {
    struct hd_rpc_call *call; /* the call to answer; holds a reference */
    answer_fill *fill;
};

void *answer_message(struct hd_arena *arena, const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *message = hd_arena_alloc(arena, descriptor->sizeof_message);

    if (message)
        descriptor->message_init(message);
    return message;
}

static void on_list(struct hd_query *query, enum hd_status st)
{
    struct list_answer *answer = query->user;
    const ProtobufCMessage *reply =
        st ? NULL : answer->fill(hd_rpc_call_user(answer->call), answer->call, query);

    if (!st && (!reply || hd_arena_failed(&query->arena)))
        st = hd_err(HD_NO_MEMORY, "out of memory for a reply");
    if (st)
        hd_rpc_call_fail(answer->call, st);
    else
        (void)hd_rpc_call_reply(answer->call, reply);
    hd_rpc_call_unref(answer->call);
    free(answer);
    hd_query_free(query);
}

void answer_list(struct hd_rpc_call *call, struct hd_query *query, answer_fill *fill)
{
    struct controller *c = hd_rpc_call_user(call);
    struct list_answer *answer = calloc(1, sizeof *answer);

    if (!answer || !query) {
        free(answer);
        hd_query_free(query);
        hd_rpc_call_fail(call, hd_err(HD_NO_MEMORY, "out of memory for a reply"));
        return;
    }
    answer->call = hd_rpc_call_ref(call);
    answer->fill = fill;
    query->done = on_list;
    query->user = answer;
    hd_store_query(c->store, query);
}

/* ---- replies that wait ------------------------------------------------------------------------*/

void control_fail_waiting(struct controller *c, const char *message)
{
    for (struct reply *reply = c->replies; reply; reply = reply->next) {
        if (!reply->call)
            continue;
        hd_rpc_call_fail(
            reply->call,
            hd_err(HD_ABORTED,
                   "%s; the controller retries, so the request may still take effect: repeat the "
                   "same request to learn the outcome",
                   message));
        hd_rpc_call_unref(reply->call);
        reply->call = NULL;
    }
}

/* ---- steps about one job ----------------------------------------------------------------------*/

static void send_job_answer(struct controller *c, struct reply *reply)
{
    answer_with_job(c, reply->call, reply->job, reply->kind, false);
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

    transaction_begin(c);
    st = answer_after_step(c, call, event, send_job_answer, &reply);
    if (reply) {
        reply->kind = answer_to(event->kind);
        reply->job = c->out.job;
    }
    transaction_end(c);
    return st;
}
