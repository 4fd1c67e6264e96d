/* fleet_send: messages to a daemon after a commit: its complete desired set, the removal of its
 * node, a probe request.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/services/fleet.h"
#include "spec/spec.h"

/* ---- desired sets -----------------------------------------------------------------------------*/

struct desired_action {
    struct post_commit_action action;
    uint64_t stream;
    struct hd_arena arena;
    Heddle__V1__DesiredState state;
};

static void free_desired(struct desired_action *d)
{
    hd_arena_done(&d->arena);
    free(d);
}

static void run_desired(struct post_commit_action *action, struct controller *c, enum hd_status st)
{
    struct desired_action *d = (struct desired_action *)(void *)action;
    struct node_stream *s = fleet_find_stream(c, d->stream);
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;

    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_DESIRED;
    message.desired = &d->state;
    if (!st && s)
        fleet_send_message(s, &message);
    free_desired(d);
}

/* Sets m->resolved_job or, if the job cannot run, m->problem, with which the daemon ends the
 * attempt. */
static enum hd_status resolve(struct desired_action *d, const struct hd_job_record *job,
                              const struct hd_attempt_record *record, Heddle__V1__DesiredAttempt *m)
{
    const struct hd_spec_attempt attempt = {
        .job_id = (int64_t)record->job,
        .number = record->attempt,
        .dir = m->attempt_dir,
        .base_checkpoint = record->base_attempt ? record->base_path : NULL,
        .base_manifest_hash = record->base_attempt ? record->base_hash : NULL};
    struct hd_job *spec = hd_arena_alloc(&d->arena, sizeof *spec);
    struct hd_job *resolved = hd_arena_alloc(&d->arena, sizeof *resolved);
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    if (!spec || !resolved)
        return hd_err(HD_NO_MEMORY, "no memory for a job");
    st = convert_unpack_spec(job->spec, job->spec_bytes, &d->arena, spec);
    if (!st)
        st = hd_spec_resolve(spec, &record->plan.layout, &attempt, resolved);
    if (!st)
        st = hd_job_write(resolved, &text);
    if (st)
        m->problem = convert_text(hd_arena_strdup(&d->arena, hd_err_message()));
    else
        m->resolved_job = convert_text(hd_arena_strdup(&d->arena, text.data));
    hd_text_free(&text);
    return hd_arena_failed(&d->arena) ? hd_err(HD_NO_MEMORY, "no memory for a job") : st;
}

/* Returns why the attempt cannot start as the user that the policy wants, on any node or on this
 * one; NULL: it can. A daemon too old for run_as would run the ranks as its own user. */
static const char *find_user_problem(struct desired_action *d, const struct controller *c,
                                     const struct hd_desired_attempt *desired)
{
    const struct node_stream *s = fleet_find_stream(c, d->stream);
    const char *run_as = desired->attempt->run_as;
    char user[HD_USER_BYTES_MAX + 1];

    if (!run_as || !*run_as)
        return NULL;
    if (strcmp(run_as, HD_RUN_AS_NONE) == 0)
        return hd_policy_user(c->policy, desired->job->owner, user)
                   ? hd_arena_strdup(&d->arena, hd_err_message())
                   : "the policy had no system user for this job when the attempt began; resume "
                     "the job";
    if (!s || s->knows_users)
        return NULL;
    return hd_arena_printf(&d->arena,
                           "the daemon of node %s is older and runs all jobs as its own user, not "
                           "as %s, which the policy wants; install this version of Heddle there",
                           s->name, run_as);
}

static Heddle__V1__DesiredAttempt *copy_attempt(struct desired_action *d, struct controller *c,
                                                const struct hd_desired_attempt *desired)
{
    const struct hd_attempt_record record = hd_record_copy_attempt(&d->arena, desired->attempt);
    Heddle__V1__DesiredAttempt *m = hd_arena_alloc(&d->arena, sizeof *m);
    const char *problem;

    if (!m)
        return NULL;
    heddle__v1__desired_attempt__init(m);
    m->job = record.job;
    m->attempt = record.attempt;
    m->wanted = (Heddle__V1__Wanted)desired->wanted;
    m->saves_asked = desired->saves_asked;
    m->ran = desired->ran;
    m->attempt_dir = convert_text(convert_attempt_dir(&d->arena, c, record.job, record.attempt));
    m->checkpoint_dir =
        convert_text(convert_checkpoint_dir(&d->arena, c, record.job, record.attempt));
    if (desired->wanted == HD_WANTED_STOPPED)
        return m;
    m->plan = convert_plan(&d->arena, &record.plan);
    if (!m->plan)
        return NULL;
    problem = find_user_problem(d, c, desired);
    if (problem)
        m->problem = convert_text(problem);
    else if (resolve(d, desired->job, &record, m) == HD_NO_MEMORY)
        return NULL;
    m->run_as = convert_text(record.run_as);
    return m;
}

static void copy_deletions(struct desired_action *d, const struct controller *c,
                           const struct hd_desired *desired)
{
    d->state.deletions =
        hd_arena_array(&d->arena, desired->deletion_count + 1, sizeof *d->state.deletions);
    for (size_t i = 0; d->state.deletions && i < desired->deletion_count; i++) {
        Heddle__V1__CheckpointDeletion *m = hd_arena_alloc(&d->arena, sizeof *m);
        const struct hd_deletion *deletion = &desired->deletions[i];

        if (!m)
            return;
        heddle__v1__checkpoint_deletion__init(m);
        m->job = deletion->job;
        m->attempt = deletion->attempt;
        m->step = deletion->step;
        m->path = convert_text(deletion->attempt ? hd_arena_strdup(&d->arena, deletion->path)
                                                 : convert_job_dir(&d->arena, c, deletion->job));
        m->manifest_hash =
            convert_text(hd_arena_strdup(&d->arena, deletion->hash ? deletion->hash : ""));
        d->state.deletions[d->state.n_deletions++] = m;
    }
}

static enum hd_status fill_desired(struct desired_action *d, struct controller *c, const char *uuid)
{
    struct hd_desired desired;
    enum hd_status st = hd_core_desired(c->core, uuid, &d->arena, &desired);

    if (st)
        return st;
    d->state.generation = desired.generation;
    d->state.attempts =
        hd_arena_array(&d->arena, desired.attempt_count + 1, sizeof *d->state.attempts);
    for (size_t i = 0; d->state.attempts && i < desired.attempt_count; i++) {
        d->state.attempts[i] = copy_attempt(d, c, &desired.attempts[i]);
        if (!d->state.attempts[i])
            return hd_err(HD_NO_MEMORY, "no memory for a desired set");
        d->state.n_attempts++;
    }
    copy_deletions(d, c, &desired);
    return hd_arena_failed(&d->arena) ? hd_err(HD_NO_MEMORY, "no memory for a desired set") : HD_OK;
}

void fleet_send_desired(struct controller *c, const char *uuid)
{
    struct node_stream *s = fleet_find_node(c, uuid);
    struct desired_action *d;

    if (!s)
        return; /* the daemon gets its desired set when it reconnects */
    d = calloc(1, sizeof *d);
    if (!d) {
        hd_rpc_call_fail(s->call, hd_err(HD_NO_MEMORY, "no memory for a desired set"));
        return;
    }
    hd_arena_init(&d->arena, 0);
    heddle__v1__desired_state__init(&d->state);
    d->action.run = run_desired;
    d->stream = s->number;
    if (fill_desired(d, c, uuid)) {
        free_desired(d);
        hd_rpc_call_fail(s->call, hd_err(HD_NO_MEMORY, "no memory for a desired set"));
        return;
    }
    transaction_when_durable(c, &d->action);
}

/* ---- removal ----------------------------------------------------------------------------------*/

struct removed_action {
    struct post_commit_action action;
    uint64_t stream;
    char text[HD_CTL_NAME_BYTES_MAX + 16];
};

static void run_removed(struct post_commit_action *action, struct controller *c, enum hd_status st)
{
    struct removed_action *r = (struct removed_action *)(void *)action;
    struct node_stream *s = fleet_find_stream(c, r->stream);
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    Heddle__V1__Removed body = HEDDLE__V1__REMOVED__INIT;

    body.message = r->text;
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_REMOVED;
    message.removed = &body;
    if (!st && s) {
        fleet_send_message(s, &message);
        hd_rpc_call_finish(s->call);
    }
    free(r);
}

void fleet_send_removed(struct controller *c, const char *uuid, const char *by)
{
    struct node_stream *s = fleet_find_node(c, uuid);
    struct removed_action *r = s ? calloc(1, sizeof *r) : NULL;

    if (!s)
        return;
    s->removed = true;
    if (!r) {
        hd_rpc_call_fail(s->call, hd_err(HD_NO_MEMORY, "no memory to tell node %s", s->name));
        return;
    }
    r->action.run = run_removed;
    r->stream = s->number;
    (void)snprintf(r->text, sizeof r->text, "%s", by);
    transaction_when_durable(c, &r->action);
}

/* ---- probes -----------------------------------------------------------------------------------*/

struct probe_action {
    struct post_commit_action action;
    uint64_t stream;
};

void fleet_ask_for_probe(struct node_stream *s)
{
    const uint64_t request = hd_core_probe_asked(s->c->core, s->uuid);
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    Heddle__V1__ProbeRequest body = HEDDLE__V1__PROBE_REQUEST__INIT;

    if (!request)
        return;
    body.request = request;
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_PROBE_REQUEST;
    message.probe_request = &body;
    fleet_send_message(s, &message);
}

static void run_probe(struct post_commit_action *action, struct controller *c, enum hd_status st)
{
    struct probe_action *p = (struct probe_action *)(void *)action;
    struct node_stream *s = fleet_find_stream(c, p->stream);

    if (!st && s)
        fleet_ask_for_probe(s);
    free(p);
}

void fleet_send_probe_request(struct controller *c, const char *uuid)
{
    const struct node_stream *s = fleet_find_node(c, uuid);
    struct probe_action *p = s ? calloc(1, sizeof *p) : NULL;

    if (!s)
        return; /* the daemon gets the request when it reconnects */
    if (!p) {
        hd_rpc_call_fail(s->call, hd_err(HD_NO_MEMORY, "no memory to ask node %s", s->name));
        return;
    }
    p->action.run = run_probe;
    p->stream = s->number;
    transaction_when_durable(c, &p->action);
}
