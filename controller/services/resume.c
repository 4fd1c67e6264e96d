/* resume: ResumeJob, RequeueJob, CheckpointJob, HoldJob, ReleaseJob.
 *
 *   ResumeJob: check the spec -> read all records of the job from the store -> compare the keys
 * that may not change -> core step -> commit -> reply
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "controller/services/control.h"
#include "job/data_stages.h"

/* ---- keys that a resume may change ------------------------------------------------------------*/

/* Returns the length of the list of file positions before a fingerprint's colon; 0 if the
 * fingerprint has no list. */
static size_t places_of(const char *fingerprint)
{
    return fingerprint ? strcspn(fingerprint, ":") : 0;
}

/* Returns whether two files may have equal bytes. Fingerprints taken at different positions, or
 * missing ones of a job of an older build, are not compared. */
static bool same_bytes(const struct hd_job_file *a, const struct hd_job_file *b)
{
    const size_t places = places_of(a->fingerprint);

    if (a->size_bytes != b->size_bytes)
        return false;
    return !places || places != places_of(b->fingerprint) ||
           strncmp(a->fingerprint, b->fingerprint, places) != 0 ||
           strcmp(a->fingerprint, b->fingerprint) == 0;
}

/* Checks that the data files are unchanged: their bytes decide which sample comes at which step. */
static enum hd_status compare_bytes(const char *key, const struct hd_job_file *before,
                                    const struct hd_job_file *now, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!same_bytes(&before[i], &now[i]))
            return hd_err(HD_INVALID,
                          "%s: %s is another file than when the job was submitted: it had %" PRId64
                          " bytes with the fingerprint %s, and has %" PRId64
                          " with %s; restore it, or submit a new job, with train.init_from to "
                          "start from this one's weights",
                          key, now[i].path, before[i].size_bytes,
                          before[i].fingerprint ? before[i].fingerprint : "-", now[i].size_bytes,
                          now[i].fingerprint ? now[i].fingerprint : "-");
    return HD_OK;
}

static bool same_files(const struct hd_job_file *a, int64_t a_count, const struct hd_job_file *b,
                       int64_t b_count)
{
    if (a_count != b_count)
        return false;
    for (int64_t i = 0; i < a_count; i++)
        if (strcmp(a[i].path, b[i].path) != 0 || a[i].source != b[i].source)
            return false;
    return true;
}

/* Refuses a job whose initial weights have changed; the message names the key with their folder. */
static enum hd_status refuse_weights(const struct hd_job *now)
{
    const char *key = *now->continue_from                          ? "train.continue_from"
                      : strcmp(now->init_from, now->from_dir) == 0 ? "model.from"
                                                                   : "train.init_from";

    return hd_err(
        HD_INVALID,
        "%s: the weights in %s are not those with which the job began: they were changed, "
        "or it is another model; put them back, or name a folder that has them (--set "
        "%s=DIR)",
        key, now->init_from, key);
}

static enum hd_status refuse_change(const char *path)
{
    return hd_err(HD_INVALID, HD_JOB_KEY_FIXED, path);
}

/* Returns whether the stages end at the same steps and have windows and batches of equal sizes. Their learning rates may change, as train.lr
 * may; the last one ends with the run. */
static bool same_stages(const struct hd_job *before, const struct hd_job *now)
{
    struct hd_data_stage a[HD_JOB_STAGES_MAX], b[HD_JOB_STAGES_MAX];
    int64_t a_count, b_count;

    if (hd_data_stages_read(before, a, &a_count) || hd_data_stages_read(now, b, &b_count) ||
        a_count != b_count)
        return false;
    for (int64_t k = 0; k < a_count; k++)
        if ((k + 1 < a_count && a[k].until != b[k].until) || !hd_data_stages_alike(&a[k], &b[k]))
            return false;
    return true;
}

/* Compares the weights of jobs with equally many sources and stages. */
static bool same_weights(const struct hd_job *before, const struct hd_job *now)
{
    for (int64_t i = 0; i < before->weight_count * hd_job_weights_each(before); i++)
        if (before->weights[i] != now->weights[i])
            return false;
    return true;
}

/* Refuses what would compare the number that decides which checkpoint is the best with numbers of
 * other data: another number, or for scores other questions. */
static enum hd_status compare_best(const struct hd_job *before, const struct hd_job *now)
{
    const struct hd_val_metric was = hd_job_best_metric(before), is = hd_job_best_metric(now);
    char name[HD_JOB_WORD_MAX], new_name[HD_JOB_WORD_MAX];

    hd_job_metric_name(before, was, name);
    hd_job_metric_name(now, is, new_name);
    if (was.kind != is.kind || strcmp(name, new_name) != 0)
        return hd_err(HD_INVALID,
                      "checkpoint.best: cannot name another number while '%s' decides: numbers of "
                      "other data cannot be compared; keep it, or set it to false",
                      name);
    if (hd_job_metric_rises(was) && !hd_job_same_questions(before, now, was))
        return hd_err(
            HD_INVALID,
            "%s: cannot change while '%s' decides which checkpoint is the best: scores of "
            "other questions cannot be compared; keep the files, their limit and how they "
            "are answered, or set checkpoint.best to false",
            was.kind >= HD_VAL_PASS ? "validate.tasks" : "validate.choices", name);
    if (!hd_job_metric_rises(was) && before->validate_batches != now->validate_batches)
        return hd_err(HD_INVALID,
                      "validate.batches: cannot change while checkpoint.best is true: losses of "
                      "other data cannot be compared; keep %lld, or set checkpoint.best to false",
                      (long long)before->validate_batches);
    return HD_OK;
}

/* Refuses a frozen model whose files have changed under the same name. */
static enum hd_status compare_frozen(const struct hd_job *before, const struct hd_job *now)
{
    const struct {
        const char *path, *model, *dir[2], *identity[2];
    } frozen[] = {
        {"train.distill.teacher",
         "taught",
         {before->distill_teacher, now->distill_teacher},
         {before->distill_identity, now->distill_identity}},
        {"train.rewards",
         "rated the answers of",
         {before->reward_dir, now->reward_dir},
         {before->reward_identity, now->reward_identity}},
    };

    for (size_t i = 0; i < sizeof frozen / sizeof frozen[0]; i++)
        if (strcmp(frozen[i].dir[0], frozen[i].dir[1]) == 0 && *frozen[i].identity[0] &&
            strcmp(frozen[i].identity[0], frozen[i].identity[1]) != 0)
            return hd_err(HD_INVALID,
                          "%s: %s has not the weights that %s the job: they were changed or "
                          "removed; put them back, or name another one: --set %s=..",
                          frozen[i].path, frozen[i].dir[1], frozen[i].model, frozen[i].path);
    return HD_OK;
}

static enum hd_status compare(const struct hd_job *before, const struct hd_job *now)
{
    enum hd_status st;

    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];

        if (key->kind == HD_KEY_FORM || !hd_job_key_is_fixed(key) ||
            hd_job_members_equal(key, before, now))
            continue;
        if (strcmp(key->path, "train.init_identity") == 0)
            return refuse_weights(now);
        return refuse_change(strcmp(key->path, "data.val.sets") == 0 ? "data.val" : key->path);
    }
    st = compare_frozen(before, now);
    if (st)
        return st;
    if (!*before->continue_from != !*now->continue_from)
        return refuse_change("train.continue_from");
    if (!same_stages(before, now))
        return refuse_change("data.stages");
    if (!same_files(before->train, before->train_count, now->train, now->train_count) ||
        before->weight_count != now->weight_count || !same_weights(before, now))
        return refuse_change(hd_job_stage_count(now) ? "data.stages" : "data.train");
    if (!same_files(before->val, before->val_count, now->val, now->val_count))
        return refuse_change("data.val");
    if (compare_bytes("data.train", before->train, now->train, now->train_count) ||
        compare_bytes("data.val", before->val, now->val, now->val_count))
        return HD_INVALID;
    return before->checkpoint_best && now->checkpoint_best ? compare_best(before, now) : HD_OK;
}

/* ---- resume -----------------------------------------------------------------------------------*/

struct resume {
    struct controller *c;
    struct hd_rpc_call *call;  /* the call to answer; holds a reference */
    struct prepared *prepared; /* new job spec of the call; NULL: unchanged */
};

enum hd_status resume_event(enum hd_core_event_kind kind, struct hd_query *query,
                            struct hd_rpc_call *call, struct hd_core_event *ret_event)
{
    const struct hd_job_record *record = &query->jobs[0].record;
    struct hd_checkpoint_record *checkpoints =
        hd_arena_array(&query->arena, query->entry_count + 1, sizeof *checkpoints);

    if (!checkpoints)
        return hd_err(HD_NO_MEMORY, "no memory for a job");
    for (size_t i = 0; i < query->entry_count; i++)
        checkpoints[i] = query->entries[i].checkpoint;
    *ret_event = (struct hd_core_event){.kind = kind,
                                        .resume = {.job = record,
                                                   .attempts = query->attempts,
                                                   .attempt_count = query->attempt_count,
                                                   .checkpoints = checkpoints,
                                                   .checkpoint_count = query->entry_count,
                                                   .positions = query->positions,
                                                   .position_count = query->position_count,
                                                   .sequence = query->jobs[0].sequence,
                                                   .spec = record->spec,
                                                   .spec_bytes = record->spec_bytes,
                                                   .by = control_caller(call)}};
    return HD_OK;
}

static enum hd_status resume_step(const struct resume *r, struct hd_query *query)
{
    const struct hd_job_record *record = &query->jobs[0].record;
    char user[HD_USER_BYTES_MAX + 1];
    struct hd_core_event event;
    struct hd_job before;
    enum hd_status st = control_check_owner(r->c, r->call, record->owner, record->job);

    if (!st)
        st = guard_check_jobs(r->c, r->call);
    if (!st)
        st = hd_policy_user(r->c->policy, record->owner, user);
    if (!st)
        st = resume_event(HD_CORE_RESUME, query, r->call, &event);
    if (!st)
        st = convert_unpack_spec(record->spec, record->spec_bytes, &query->arena, &before);
    if (!st)
        st = r->prepared ? compare(&before, &r->prepared->job)
                         : control_check_after(r->c, r->call, &before, true);
    if (st)
        return st;
    event.resume.needs = convert_needs(r->prepared ? &r->prepared->job : &before);
    if (r->prepared) {
        event.resume.spec = r->prepared->bytes;
        event.resume.spec_bytes = r->prepared->count;
    }
    return control_step(r->c, r->call, &event);
}

static void on_resume_records(struct hd_query *query, enum hd_status st)
{
    struct resume *r = query->user;

    if (!st)
        st = resume_step(r, query);
    if (st)
        hd_rpc_call_fail(r->call, st);
    hd_rpc_call_unref(r->call);
    control_free_prepared(r->prepared);
    free(r);
    hd_query_free(query);
}

void control_resume_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ResumeJobRequest *m = (const void *)message;
    struct controller *c = hd_rpc_call_user(call);
    struct resume *r = calloc(1, sizeof *r);
    struct hd_query *query = hd_query_new(HD_QUERY_RECORDS);
    enum hd_status st =
        r && query ? control_check_disk(c) : hd_err(HD_NO_MEMORY, "no memory for an answer");

    if (!st && m->spec)
        st = control_prepare(m->spec, &r->prepared);
    if (!st && m->spec)
        st = control_check_after(c, call, &r->prepared->job, false);
    if (st) {
        hd_rpc_call_fail(call, st);
        if (r)
            control_free_prepared(r->prepared);
        free(r);
        hd_query_free(query);
        return;
    }
    r->c = c;
    r->call = hd_rpc_call_ref(call);
    query->job = m->job;
    query->done = on_resume_records;
    query->user = r;
    control_see(c, call, HD_VISIBILITY_JOBS, query);
    hd_store_query(c->store, query);
}

/* ---- requeue and checkpoint -------------------------------------------------------------------*/

/* Fails the call with "job 7 failed at 2026-03-01T12:00:00Z: REASON; let it go on with: heddle
 * resume 7". */
static void on_ended(struct hd_query *query, enum hd_status st)
{
    struct hd_rpc_call *call = query->user;
    const struct veil veil = guard_veil(hd_rpc_call_user(call), call);
    char when[HD_CLOCK_TEXT_MAX];

    if (!st) {
        const struct hd_job_record *job = &query->jobs[0].record;
        const bool cancelled = job->state == HD_JOB_STATE_CANCELLED;
        const char *reason = veil_copy(&veil, &query->arena, job->reason);

        hd_clock_format_utc(job->ended_ms, when);
        st = hd_err(HD_CONFLICT,
                    "job %" PRIu64 " %s%s at %s%s%.*s; let it go on with: heddle resume %" PRIu64,
                    job->job, cancelled ? "was " : "", hd_job_state_name((int)job->state), when,
                    *reason ? ": " : "", (int)hd_record_fit(reason, HD_ERR_MAX / 2), reason,
                    job->job);
    }
    hd_rpc_call_fail(call, st);
    hd_rpc_call_unref(call);
    hd_query_free(query);
}

/* Reads from the store how and when a job ended, for the error; the core has forgotten the job. */
static void report_end(struct controller *c, struct hd_rpc_call *call, uint64_t number)
{
    struct hd_query *query = hd_query_new(HD_QUERY_JOB);

    if (!query) {
        hd_rpc_call_fail(call, hd_err(HD_NO_MEMORY, "no memory for an answer"));
        return;
    }
    query->job = number;
    query->done = on_ended;
    query->user = hd_rpc_call_ref(call);
    control_see(c, call, HD_VISIBILITY_JOBS, query);
    hd_store_query(c->store, query);
}

static void ask_again(struct hd_rpc_call *call, uint64_t number, enum hd_core_event_kind kind)
{
    struct controller *c = hd_rpc_call_user(call);
    const struct hd_job_record *job = hd_core_job(c->core, number);
    const struct hd_core_event event = {.kind = kind,
                                        .again = {.job = number, .by = control_caller(call)}};
    enum hd_status st;

    if (!job) {
        report_end(c, call, number);
        return;
    }
    st = control_check_owner(c, call, job->owner, number);
    if (!st) /* allowed on a full disk: both make work stop or wait */
        st = kind == HD_CORE_REQUEUE || kind == HD_CORE_HOLD ? control_check_reserve(c)
                                                             : control_check_disk(c);
    if (!st)
        st = control_step(c, call, &event);
    if (st)
        hd_rpc_call_fail(call, st);
}

void control_requeue_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    ask_again(call, ((const Heddle__V1__RequeueJobRequest *)(const void *)message)->job,
              HD_CORE_REQUEUE);
}

void control_checkpoint_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    ask_again(call, ((const Heddle__V1__CheckpointJobRequest *)(const void *)message)->job,
              HD_CORE_CHECKPOINT_NOW);
}

void control_hold_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    ask_again(call, ((const Heddle__V1__HoldJobRequest *)(const void *)message)->job, HD_CORE_HOLD);
}

void control_release_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    ask_again(call, ((const Heddle__V1__ReleaseJobRequest *)(const void *)message)->job,
              HD_CORE_RELEASE);
}
