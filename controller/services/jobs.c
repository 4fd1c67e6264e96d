/* jobs: the calls of Control about one job, except those that need all its records (resume.c,
 * remove.c). */
#include <string.h>

#include "controller/services/control.h"

enum { REQUEST_ID_MIN = 16, REQUEST_ID_MAX = 64 };

/* ---- submit -----------------------------------------------------------------------------------*/

static enum hd_status check_request_id(const char *id)
{
    const size_t length = strlen(id);

    if (length >= REQUEST_ID_MIN && length <= REQUEST_ID_MAX &&
        strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == length)
        return HD_OK;
    return hd_err(HD_INVALID, "request_id: %d to %d letters, digits, '-' or '_' are needed",
                  REQUEST_ID_MIN, REQUEST_ID_MAX);
}

/* Returns the status of a job that the step has just created; the job has no training step or
 * checkpoint yet. NULL: the core does not have the job, or out of memory. */
static Heddle__V1__JobStatus *new_job(const struct controller *c, const struct hd_rpc_call *call,
                                      uint64_t job, struct hd_arena *arena)
{
    const struct hd_job_record *record = hd_core_job(c->core, job);
    const struct veil veil = guard_veil(c, call);
    struct hd_job_row row = {.sequence = hd_core_job_sequence(c->core, job)};

    if (!record)
        return NULL;
    row.record = *record;
    row.record.spec = NULL;
    row.record.spec_bytes = 0;
    row.record =
        /* copied: the core may change its record before the reply is sent */
        hd_record_copy_job(arena, &row.record);
    return convert_job(arena, c, &veil, &row);
}

static void send_new_job(struct controller *c, struct reply *reply)
{
    if (reply->status)
        answer_submitted(c, reply->call, reply->status, false);
    else
        answer_with_job(c, reply->call, reply->job, ANSWER_SUBMIT, reply->repeated);
}

/* Submits a job that has passed all checks: takes the core step. */
static enum hd_status submit(struct controller *c, struct hd_rpc_call *call, const char *request_id,
                             const struct prepared *prepared)
{
    const struct hd_core_event event = {.kind = HD_CORE_SUBMIT,
                                        .submit = {.request_id = request_id,
                                                   .owner = control_caller(call),
                                                   .needs = convert_needs(&prepared->job),
                                                   .spec = prepared->bytes,
                                                   .spec_bytes = prepared->count}};
    char user[HD_USER_BYTES_MAX + 1];
    struct reply *reply;
    /* fails now if the policy has no system user for the caller, and not when the job starts */
    enum hd_status st = hd_policy_user(c->policy, control_caller(call), user);

    if (st)
        return st;
    transaction_begin(c);
    st = answer_after_step(c, call, &event, send_new_job, &reply);
    if (reply) {
        reply->job = c->out.job;
        reply->repeated = c->out.repeated;
        if (!reply->repeated)
            reply->status = new_job(c, call, reply->job, &reply->arena);
    }
    transaction_end(c);
    return st == HD_UNSUPPORTED ? hd_err(HD_INVALID, "%s", hd_err_message()) : st;
}

void control_submit_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__SubmitJobRequest *m = (const void *)message;
    struct controller *c = hd_rpc_call_user(call);
    struct prepared *prepared = NULL;
    enum hd_status st = control_check_disk(c);

    if (st &&
        hd_core_knows_request(c->core, m->request_id,
                              control_caller(call))) /* the first request may be uncommitted */
        st = hd_err(HD_ABORTED, "%s; this request was taken before and may still take effect",
                    hd_err_message());
    if (!st)
        st = check_request_id(m->request_id);
    if (!st)
        st = control_prepare(m->spec, &prepared);
    if (!st)
        st = control_check_after(c, call, &prepared->job, false);
    if (!st && hd_core_knows_request(c->core, m->request_id, control_caller(call))) {
        /* a repeated request creates no job, so no limit applies */
        st = submit(c, call, m->request_id, prepared);
        if (!st)
            control_free_prepared(prepared);
    } else if (!st) {
        st = limits_check_then(c, call, m->request_id, prepared, submit);
    }
    if (st) {
        hd_rpc_call_fail(call, st);
        control_free_prepared(prepared);
    }
}

/* ---- one job ----------------------------------------------------------------------------------*/

void control_get_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__GetJobRequest *m = (const void *)message;

    answer_with_job(hd_rpc_call_user(call), call, m->job, ANSWER_GET, false);
}

void control_explain_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ExplainJobRequest *m = (const void *)message;

    answer_with_job(hd_rpc_call_user(call), call, m->job, ANSWER_EXPLAIN, false);
}

void control_cancel_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__CancelJobRequest *m = (const void *)message;
    struct controller *c = hd_rpc_call_user(call);
    const struct hd_job_record *job = hd_core_job(c->core, m->job);
    const struct hd_core_event event = {
        .kind = HD_CORE_CANCEL,
        .cancel = {.job = m->job, .now = m->now, .by = control_caller(call)}};
    enum hd_status st;

    if (!job) { /* the job is not live: the store knows whether it ended or never existed */
        answer_with_job(c, call, m->job, ANSWER_CANCEL, false);
        return;
    }
    st = control_check_owner(c, call, job->owner, m->job);
    if (!st)
        st = control_check_reserve(c);
    if (!st)
        st = control_step(c, call, &event);
    if (st)
        hd_rpc_call_fail(call, st);
}
