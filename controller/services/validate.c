/* validate: ValidateJob, which may have to wait for a layout search (planner.c). */
#include <stdlib.h>
#include <string.h>

#include "controller/services/control.h"

/* A validation that waits for a layout search. */
struct validation {
    struct hd_rpc_call *call; /* the call to answer; holds a reference */
    struct prepared *prepared;
    struct validation *next;
};

static void free_validation(struct validation *v)
{
    hd_rpc_call_unref(v->call);
    control_free_prepared(v->prepared);
    free(v);
}

/* Replies, or fails the call; false: a layout is needed first. */
static bool try_to_validate(struct controller *c, struct hd_rpc_call *call,
                            const struct prepared *prepared)
{
    const struct veil veil = guard_veil(c, call);
    Heddle__V1__ValidateJobResponse response = HEDDLE__V1__VALIDATE_JOB_RESPONSE__INIT;
    const struct hd_job_needs needs = convert_needs(&prepared->job);
    struct hd_core_readiness ready = {0};
    enum hd_status st;

    hd_core_out_clear(&c->out);
    st = hd_core_explain_needs(c->core, &needs, prepared->bytes, prepared->count, controller_now(),
                               &c->out, &ready);
    if (c->out.asked_count)
        planner_ask(c, &c->out);
    veil_text(&veil, &ready.reason);
    response.fits_now = ready.fits_now;
    response.reason = convert_text(ready.reason.data);
    response.never_fits = convert_text(ready.never_fits.data);
    if (st == HD_UNSUPPORTED)
        st = hd_err(HD_INVALID, "%s", hd_err_message());
    if (st)
        hd_rpc_call_fail(call, st);
    else if (!ready.later)
        (void)hd_rpc_call_reply(call, &response.base);
    hd_text_free(&ready.reason);
    hd_text_free(&ready.never_fits);
    return st || !ready.later;
}

void control_validate_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ValidateJobRequest *m = (const void *)message;
    struct controller *c = hd_rpc_call_user(call);
    struct validation *v = calloc(1, sizeof *v);
    enum hd_status st = v ? control_check_disk(c) /* SubmitJob fails then, too */
                          : hd_err(HD_NO_MEMORY, "no memory for a job");

    if (!st)
        st = control_prepare(m->spec, &v->prepared);
    if (!st)
        st = control_check_after(c, call, &v->prepared->job, false);
    if (st)
        hd_rpc_call_fail(call, st);
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
