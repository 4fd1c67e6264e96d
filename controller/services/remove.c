/* remove: RemoveJob.
 *
 *   read all records of the job from the store -> look for other jobs that name files of its folder
 *   -> core step -> commit -> reply. The nodes delete the folder afterwards.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "controller/services/control.h"

enum { USERS_MAX = 16 };

struct removal {
    struct post_commit_action action;
    struct controller *c;
    struct hd_rpc_call *call; /* the call to answer; holds a reference */
    bool check;
    int64_t step; /* step of the only checkpoint to remove; 0: the whole job */
    struct hd_query *records;
    uint64_t users[USERS_MAX];
    size_t user_count;
    char waits_for[HD_CTL_NAME_BYTES_MAX + 1];
};

static void free_removal(struct removal *r)
{
    if (r->records)
        hd_query_free(r->records);
    hd_rpc_call_unref(r->call);
    free(r);
}

static void answer_removal(struct removal *r)
{
    Heddle__V1__RemoveJobResponse response = HEDDLE__V1__REMOVE_JOB_RESPONSE__INIT;
    const struct veil veil = guard_veil(r->c, r->call);
    struct hd_query *records = r->records;

    response.job = convert_job(&records->arena, r->c, &veil, &records->jobs[0]);
    for (size_t i = 0; i < records->entry_count; i++) {
        if (r->step && records->entries[i].checkpoint.step != r->step)
            continue;
        response.checkpoints++;
        response.checkpoint_bytes += records->entries[i].checkpoint.size_bytes;
    }
    response.users = r->users;
    response.n_users = r->user_count;
    response.waits_for = r->waits_for;
    if (response.job)
        (void)hd_rpc_call_reply(r->call, &response.base);
    else
        hd_rpc_call_fail(r->call, hd_err(HD_NO_MEMORY, "out of memory for a reply"));
}

static void run_answer(struct post_commit_action *action, struct controller *c, enum hd_status st)
{
    struct removal *r = (struct removal *)(void *)action;

    (void)c;
    if (st)
        hd_rpc_call_fail(r->call, hd_err(HD_UNAVAILABLE, "the controller stopped before the "
                                                         "request was stored; repeat it"));
    else
        answer_removal(r);
    free_removal(r);
}

/* Collects the jobs that name files of the removed job's folder. HD_CONFLICT: one of them has not
 * ended, so it may still read the files. */
static enum hd_status take_users(struct removal *r, const struct hd_query *users, const char *dir)
{
    const struct veil veil = guard_veil(r->c, r->call);

    for (size_t i = 0; i < users->job_count; i++) {
        const struct hd_job_record *user = &users->jobs[i].record;
        const bool shown = veil_shows(&veil, user->job);

        if (!shown && user->state <= HD_JOB_STATE_STOPPING)
            return hd_err(HD_CONFLICT,
                          "another job, which has not ended, names files in %s in its job file; "
                          "wait for its end, or ask an operator",
                          dir);
        if (user->state <= HD_JOB_STATE_STOPPING)
            return hd_err(HD_CONFLICT,
                          "job %" PRIu64 " is %s and its job file names files in %s; wait for its "
                          "end, or stop it with: heddle cancel %" PRIu64,
                          user->job, hd_job_state_name((int)user->state), dir, user->job);
        if (shown)
            r->users[r->user_count++] = user->job;
    }
    return HD_OK;
}

static enum hd_status check_ended(const struct hd_job_record *job)
{
    if (job->state > HD_JOB_STATE_STOPPING)
        return HD_OK;
    return hd_err(HD_CONFLICT,
                  "job %" PRIu64 " is %s: only a job that has ended is removed; stop it with: "
                  "heddle cancel %" PRIu64,
                  job->job, hd_job_state_name((int)job->state), job->job);
}

static enum hd_status check_step(const struct removal *r)
{
    for (size_t i = 0; i < r->records->entry_count; i++)
        if (r->records->entries[i].checkpoint.step == r->step)
            return HD_OK;
    return hd_err(HD_NOT_FOUND,
                  "job %" PRIu64 " has no checkpoint of step %" PRId64
                  "; heddle checkpoint ls %" PRIu64 " lists them",
                  r->records->jobs[0].record.job, r->step, r->records->jobs[0].record.job);
}

static enum hd_status step(struct removal *r)
{
    struct hd_query *records = r->records;
    struct hd_core_event event;
    struct hd_job spec;
    enum hd_status st = resume_event(HD_CORE_REMOVE, records, r->call, &event);

    if (!st)
        st =
            convert_unpack_spec(event.resume.spec, event.resume.spec_bytes, &records->arena, &spec);
    if (st)
        return st;
    event.resume.needs = convert_needs(&spec);
    event.resume.checkpoint_step = r->step;
    transaction_begin(r->c);
    st = transaction_step(r->c, &event);
    if (!st) {
        if (r->c->out.waits_for)
            (void)snprintf(r->waits_for, sizeof r->waits_for, "%s", r->c->out.waits_for);
        r->action.run = run_answer;
        transaction_when_durable(r->c, &r->action);
        guard_audit(r->c, r->call, NULL);
    }
    transaction_end(r->c);
    return st;
}

static void on_users(struct hd_query *users, enum hd_status st)
{
    struct removal *r = users->user;

    if (!st)
        st = take_users(r, users, users->text);
    if (!st && r->check) {
        answer_removal(r);
        free_removal(r);
    } else {
        st = st ? st : step(r);
        if (st) {
            hd_rpc_call_fail(r->call, st);
            free_removal(r);
        }
    }
    hd_query_free(users);
}

static void on_removal_records(struct hd_query *query, enum hd_status st)
{
    struct removal *r = query->user;
    const struct hd_job_record *job = st ? NULL : &query->jobs[0].record;
    struct hd_query *users = hd_query_new(HD_QUERY_USERS);

    r->records = query;
    if (!st)
        st = control_check_owner(r->c, r->call, job->owner, job->job);
    if (!st)
        st = r->step ? check_step(r) : check_ended(job);
    if (!st && users) {
        users->job = job->job;
        /* the slash keeps 70/ from matching 7 */
        users->text =
            hd_arena_printf(&query->arena, "%s/", convert_job_dir(&query->arena, r->c, job->job));
        users->limit = USERS_MAX;
        users->done = on_users;
        users->user = r;
    }
    if (!st && (!users || hd_arena_failed(&query->arena)))
        st = hd_err(HD_NO_MEMORY, "no memory for an answer");
    if (!st) {
        hd_store_query(r->c->store, users);
        return;
    }
    if (users)
        hd_query_free(users);
    hd_rpc_call_fail(r->call, st);
    free_removal(r);
}

void control_remove_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__RemoveJobRequest *m = (const void *)message;
    struct controller *c = hd_rpc_call_user(call);
    struct removal *r = calloc(1, sizeof *r);
    struct hd_query *query = hd_query_new(HD_QUERY_RECORDS);
    enum hd_status st =
        r && query ? control_check_reserve(c) : hd_err(HD_NO_MEMORY, "no memory for an answer");

    if (st) {
        hd_rpc_call_fail(call, st);
        free(r);
        hd_query_free(query);
        return;
    }
    r->c = c;
    r->call = hd_rpc_call_ref(call);
    r->check = m->check;
    r->step = m->step;
    query->job = m->job;
    query->done = on_removal_records;
    query->user = r;
    control_see(c, call, HD_VISIBILITY_JOBS, query);
    hd_store_query(c->store, query);
}
