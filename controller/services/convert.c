/* convert: records <-> messages of proto/heddle/v1. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "controller/services/fleet.h"
#include "plan/identity.h"
#include "spec/spec.h"

/* Checks that the enum values of record.h equal those of the messages; add new values to both. */
#define SAME(record, message)                    _Static_assert((int)(record) == (int)(message), #record);
#define HEDDLE__V1__END_CAUSE__END_CAUSE_NONE    HEDDLE__V1__END_CAUSE__END_CAUSE_UNSPECIFIED
#define HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_ANY HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_UNSPECIFIED
#define X(name, number, text)                    SAME(HD_JOB_STATE_##name, HEDDLE__V1__JOB_STATE__JOB_STATE_##name)
HD_JOB_STATE_LIST(X)
#undef X
#define X(name, number, text) \
    SAME(HD_ATTEMPT_STATE_##name, HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_##name)
HD_ATTEMPT_STATE_LIST(X)
#undef X
#define X(name, number, text) SAME(HD_END_CAUSE_##name, HEDDLE__V1__END_CAUSE__END_CAUSE_##name)
HD_END_CAUSE_LIST(X)
#undef X
#define X(name, number, text) SAME(HD_NODE_STATE_##name, HEDDLE__V1__NODE_STATE__NODE_STATE_##name)
HD_NODE_STATE_LIST(X)
#undef X
#define X(name, number, text) \
    SAME(HD_DEVICE_KIND_##name, HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_##name)
HD_DEVICE_KIND_LIST(X)
#undef X
SAME(HD_PRECISION_FP32, HEDDLE__V1__PRECISION__PRECISION_FP32)
SAME(HD_PRECISION_BF16, HEDDLE__V1__PRECISION__PRECISION_BF16)
SAME(HD_WANTED_RUNNING, HEDDLE__V1__WANTED__WANTED_RUNNING)
SAME(HD_WANTED_STOPPING, HEDDLE__V1__WANTED__WANTED_STOPPING)
SAME(HD_WANTED_STOPPED, HEDDLE__V1__WANTED__WANTED_STOPPED)
#undef HEDDLE__V1__END_CAUSE__END_CAUSE_NONE
#undef HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_ANY
#undef SAME

/* ---- folders ----------------------------------------------------------------------------------*/

const char *convert_job_dir(struct hd_arena *arena, const struct controller *c, uint64_t job)
{
    return hd_arena_printf(arena, "%s/%" PRIu64, c->jobs_dir, job);
}

const char *convert_attempt_dir(struct hd_arena *arena, const struct controller *c, uint64_t job,
                                int32_t attempt)
{
    return hd_arena_printf(arena, "%s/%" PRIu64 "/attempt-%" PRId32, c->jobs_dir, job, attempt);
}

const char *convert_log_path(struct hd_arena *arena, const struct controller *c, uint64_t job,
                             int32_t attempt, int32_t rank)
{
    return hd_arena_printf(arena, "%s/%" PRIu64 "/attempt-%" PRId32 "/logs/rank-%" PRId32 ".log",
                           c->jobs_dir, job, attempt, rank);
}

const char *convert_checkpoint_dir(struct hd_arena *arena, const struct controller *c, uint64_t job,
                                   int32_t attempt)
{
    return hd_arena_printf(arena, "%s/%" PRIu64 "/attempt-%" PRId32 "/checkpoints", c->jobs_dir,
                           job, attempt);
}

/* ---- fields of records.def ----------------------------------------------------------------------
 *
 * A row that is SENT(name) sets the member `name` of a message m from a record r: SENT_FIELD; or back
 * again: TAKEN_FIELD. */

#define TO_SENT(name)                                       m->name =
#define TO_INNER                                            (void)
#define SENT_TEXT(value)                                    convert_text(value)
#define SENT_INT(value)                                     value
#define SENT_LONG(value)                                    value
#define SENT_NUMBER(value)                                  value
#define SENT_BOOL(value)                                    value
#define SENT_REAL(value)                                    value
#define SENT_BITS(value)                                    value
#define SENT_REMOVAL(value)                                 value
#define SENT_BYTES(value)                                   value
#define SENT_LAYOUT(value)                                  value
#define SENT_SET(value)                                     value
#define SENT_INT_OR_NULL(v)                                 v
#define SENT_LONG_OR_NULL(v)                                v
#define SENT_JOB_STATE(value)                               (Heddle__V1__JobState)(value)
#define SENT_ATTEMPT_STATE(value)                           (Heddle__V1__AttemptState)(value)
#define SENT_END_CAUSE(value)                               (Heddle__V1__EndCause)(value)
#define SENT_NODE_STATE(value)                              (Heddle__V1__NodeState)(value)
#define SENT_DEVICE_KIND(value)                             (Heddle__V1__DeviceKind)(value)
#define SENT_CHECKPOINT_STATE(value)                        value
#define SENT_FIELD(R, P, when, type, member, column, wire)  TO_##wire SENT_##type(r->member);
#define TAKEN_SENT(name)                                    m->name
#define TAKEN_INNER                                         0
#define TAKEN_FIELD(R, P, when, type, member, column, wire) .member = TAKEN_##wire,

/* ---- records to messages ----------------------------------------------------------------------*/

/* Sets `pointer` to a new initialised message in the arena; NULL: out of memory. */
#define NEW(pointer, arena, init)                             \
    do {                                                      \
        (pointer) = hd_arena_alloc(arena, sizeof *(pointer)); \
        if (pointer)                                          \
            init(pointer);                                    \
    } while (0)

Heddle__V1__Plan *convert_plan(struct hd_arena *arena, const struct hd_plan_record *r)
{
    Heddle__V1__Plan *m;

    NEW(m, arena, heddle__v1__plan__init);
    if (!m)
        return NULL;
    if (!hd_spec_plan_to_message(&r->layout, arena, m))
        return NULL;
    HD_PLAN_FIELDS(SENT_FIELD, , )
    m->predicted_step_ms = 1000 * r->step_s;
    m->ranks = hd_arena_array(arena, (size_t)r->rank_count + 1, sizeof *m->ranks);
    for (int32_t rank = 0; m->ranks && rank < r->rank_count; rank++) {
        Heddle__V1__RankPlacement *place;

        NEW(place, arena, heddle__v1__rank_placement__init);
        if (!place)
            return NULL;
        place->rank = rank;
        place->node = convert_text(r->ranks[rank].node_name);
        place->node_uuid = convert_text(r->ranks[rank].node_uuid);
        place->device = r->ranks[rank].device;
        m->ranks[m->n_ranks++] = place;
    }
    return m->ranks ? m : NULL;
}

Heddle__V1__EndReport *convert_end(struct hd_arena *arena, const struct veil *veil,
                                   const struct hd_end_record *r)
{
    Heddle__V1__EndReport *m;

    NEW(m, arena, heddle__v1__end_report__init);
    if (!m)
        return NULL;
    HD_END_FIELDS(SENT_FIELD, , )
    m->cause = (Heddle__V1__EndCause)r->cause;
    m->message = convert_text(veil_copy(veil, arena, r->message));
    return m;
}

Heddle__V1__CheckpointInfo *convert_checkpoint(struct hd_arena *arena,
                                               const struct hd_checkpoint_record *r)
{
    Heddle__V1__CheckpointInfo *m;

    NEW(m, arena, heddle__v1__checkpoint_info__init);
    if (!m)
        return NULL;
    HD_CHECKPOINT_FIELDS(SENT_FIELD, , )
    if (!isnan(r->val_loss)) {
        m->_val_loss_case = HEDDLE__V1__CHECKPOINT_INFO___VAL_LOSS_VAL_LOSS;
        m->val_loss = r->val_loss;
    }
    return m;
}

/* Returns what a reader may know of an event of the cluster that begins with a job that the reader may
 * not see: "job 7 (NAME) was removed by BOB", "job 7, which has ended: .. was copied to PATH". The name
 * and the path are hidden as well as the number. NULL: the event is no such one. */
static const char *hidden_event(const struct veil *veil, const struct hd_event_record *event)
{
    static const struct {
        const char *kind, *known;
    } events[] = {{"job_removed", "another job was removed"},
                  {"checkpoint_copied", "a checkpoint of another job was copied"}};

    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        if (strcmp(event->kind, events[i].kind) == 0 && event->message &&
            veil_hides_subject(veil, event->message))
            return events[i].known;
    return NULL;
}

Heddle__V1__CheckpointInfo **convert_checkpoints(struct hd_query *query)
{
    Heddle__V1__CheckpointInfo **m =
        hd_arena_array(&query->arena, query->entry_count + 1, sizeof *m);
    const struct hd_checkpoint_record *best = NULL;
    size_t best_at = 0;

    for (size_t i = 0; m && i < query->entry_count; i++) {
        const struct hd_checkpoint_record *r = &query->entries[i].checkpoint;

        m[i] = convert_checkpoint(&query->arena, r);
        if (!r->missing && hd_record_is_better(r, best))
            best = &query->entries[best_at = i].checkpoint;
    }
    if (best && m[best_at])
        m[best_at]->best = true;
    return m;
}

Heddle__V1__Event **convert_events(struct hd_query *query, const struct veil *veil)
{
    Heddle__V1__Event **m = hd_arena_array(&query->arena, query->entry_count + 1, sizeof *m);

    for (size_t i = 0; m && i < query->entry_count; i++)
        m[i] = convert_event(&query->arena, veil, &query->entries[i].event);
    return m;
}

Heddle__V1__Event *convert_event(struct hd_arena *arena, const struct veil *veil,
                                 const struct hd_event_record *r)
{
    Heddle__V1__Event *m;
    const char *hidden;

    NEW(m, arena, heddle__v1__event__init);
    if (!m)
        return NULL;
    HD_EVENT_FIELDS(SENT_FIELD, , )
    hidden = hidden_event(veil, r);
    m->message = convert_text(hidden ? hidden : veil_copy(veil, arena, r->message));
    return m;
}

Heddle__V1__StepReport *convert_step(struct hd_arena *arena, const struct hd_step_record *step)
{
    Heddle__V1__StepReport *m;

    NEW(m, arena, heddle__v1__step_report__init);
    if (!m)
        return NULL;
    m->step = step->step;
    m->time_unix_ms = step->time_ms;
    if (!hd_step_to_message(&step->metrics, arena, m))
        return NULL;
    m->expert_load = (int64_t *)hd_record_copy_loads(arena, step);
    m->n_expert_load = m->expert_load ? step->expert_count : 0;
    return m;
}

Heddle__V1__ValidationReport *convert_validation(struct hd_arena *arena,
                                                 const struct hd_validation_record *r)
{
    Heddle__V1__ValidationReport *m;

    NEW(m, arena, heddle__v1__validation_report__init);
    if (!m)
        return NULL;
    HD_VALIDATION_FIELDS(SENT_FIELD, , )
    m->set = hd_arena_strdup(arena, r->set);
    return m->set ? m : NULL;
}

/* Returns why a job waits or ended: for a live job computed now, for an ended one as stored. */
static const char *reason_of(struct hd_arena *arena, const struct controller *c,
                             const struct veil *veil, const struct hd_job_record *job)
{
    struct hd_text text = {0};
    const char *copy;

    if (job->state > HD_JOB_STATE_STOPPING)
        return veil_copy(veil, arena, job->reason);
    hd_core_explain(c->core, job->job, controller_now(), &text);
    veil_text(veil, &text);
    copy = text.data && !text.failed ? hd_arena_strdup(arena, text.data) : "";
    hd_text_free(&text);
    return copy;
}

static char *switch_name(const struct controller *c, int32_t tier)
{
    if (!tier || !c->tree)
        return convert_text("");
    return convert_text(tier <= c->tree->tier_count ? c->tree->tiers[tier - 1].name : "several");
}

static Heddle__V1__PlaceChoice *choice_of(struct hd_arena *arena, const struct controller *c,
                                          uint64_t job)
{
    const struct hd_core_choice *choice = hd_core_choice_of(c->core, job);
    Heddle__V1__PlaceChoice *m = NULL;

    if (!choice)
        return NULL;
    NEW(m, arena, heddle__v1__place_choice__init);
    if (!m)
        return NULL;
    m->now_nodes = choice->nodes_now;
    m->now_switch = switch_name(c, choice->tier_now);
    m->now_step_s = choice->step_now_s;
    m->later_nodes = choice->nodes_later;
    m->later_switch = switch_name(c, choice->tier_later);
    m->later_step_s = choice->step_later_s;
    m->later_unix_ms = choice->later_ms;
    m->saved_s = (double)choice->saved_ms / 1000;
    return m;
}

static void add_blockers(struct hd_arena *arena, const struct controller *c, uint64_t job,
                         Heddle__V1__JobStatus *m)
{
    enum hd_core_blocker blockers[HD_CORE_BLOCKERS_MAX];
    const size_t count = hd_core_blockers(c->core, job, blockers);

    m->blockers = hd_arena_array(arena, count + 1, sizeof *m->blockers);
    for (size_t i = 0; m->blockers && i < count; i++) {
        Heddle__V1__Blocker *blocker;

        NEW(blocker, arena, heddle__v1__blocker__init);
        if (!blocker)
            return;
        blocker->kind = convert_text(hd_core_blocker_word(blockers[i]));
        blocker->message = convert_text(hd_core_blocker_meaning(blockers[i]));
        m->blockers[m->n_blockers++] = blocker;
    }
}

/* Adds the nodes of the running attempt to the message, each node once. */
static void add_nodes(struct hd_arena *arena, const struct controller *c,
                      const struct hd_job_record *job, Heddle__V1__JobStatus *m)
{
    const struct hd_attempt_record *attempt = hd_core_attempt(c->core, job->job, 0);

    if (!attempt || attempt->state == HD_ATTEMPT_STATE_ENDED ||
        (job->state != HD_JOB_STATE_RUNNING && job->state != HD_JOB_STATE_STOPPING))
        return;
    m->nodes = hd_arena_array(arena, (size_t)attempt->plan.rank_count, sizeof *m->nodes);
    for (int32_t rank = 0; m->nodes && rank < attempt->plan.rank_count; rank++) {
        const char *name = attempt->plan.ranks[rank].node_name;
        size_t i = 0;

        while (i < m->n_nodes && strcmp(m->nodes[i], name) != 0)
            i++;
        if (i == m->n_nodes) /* copied: the core may free its string before the message is packed */
            m->nodes[m->n_nodes++] = convert_text(hd_arena_strdup(arena, name));
    }
}

const char *convert_stale(const struct controller *c)
{
    return hd_store_disk_state(c->store) == HD_STORE_STUCK ? hd_store_trouble(c->store) : "";
}

Heddle__V1__JobStatus *convert_job(struct hd_arena *arena, const struct controller *c,
                                   const struct veil *veil, const struct hd_job_row *row)
{
    const struct hd_job_record *r = &row->record;
    Heddle__V1__JobStatus *m;

    NEW(m, arena, heddle__v1__job_status__init);
    if (!m)
        return NULL;
    HD_JOB_FIELDS(SENT_FIELD, , )
    m->reason = convert_text(reason_of(arena, c, veil, r));
    if (r->state <= HD_JOB_STATE_STOPPING)
        m->stale = convert_text(convert_stale(c));
    if (row->has_step) {
        m->step = row->step.step;
        m->loss = row->step.metrics.loss;
        m->tokens_per_s = row->step.metrics.tokens_per_s;
        m->mfu = row->step.metrics.mfu;
    }
    m->checkpoint_step = row->checkpoint_step;
    m->restarts = r->attempt_count > 1 ? r->attempt_count - 1 : 0;
    m->directory = convert_text(convert_job_dir(arena, c, r->job));
    m->sequence = row->sequence;
    m->expected_start_unix_ms = hd_core_expected_start_ms(r, controller_now());
    add_blockers(arena, c, r->job, m);
    m->choice = choice_of(arena, c, r->job);
    add_nodes(arena, c, r, m);
    return hd_arena_failed(arena) ? NULL : m;
}

Heddle__V1__JobStatus **convert_jobs(struct hd_query *query, const struct controller *c,
                                     const struct veil *veil)
{
    Heddle__V1__JobStatus **m = hd_arena_array(&query->arena, query->job_count + 1, sizeof *m);

    for (size_t i = 0; m && i < query->job_count; i++)
        m[i] = convert_job(&query->arena, c, veil, &query->jobs[i]);
    return m;
}

static Heddle__V1__AttemptStatus *convert_attempt(struct hd_arena *arena, const struct veil *veil,
                                                  const struct hd_attempt_record *r)
{
    Heddle__V1__AttemptStatus *m;
    const struct hd_checkpoint_record base = {.attempt = r->base_attempt,
                                              .step = r->base_step,
                                              .path = r->base_path,
                                              .hash = r->base_hash};

    NEW(m, arena, heddle__v1__attempt_status__init);
    if (!m)
        return NULL;
    HD_ATTEMPT_FIELDS(SENT_FIELD, , )
    m->plan = convert_plan(arena, &r->plan);
    if (r->base_attempt)
        m->base_checkpoint = convert_checkpoint(arena, &base);
    if (r->state == HD_ATTEMPT_STATE_ENDED)
        m->end = convert_end(arena, veil, &r->end);
    return m;
}

enum hd_status convert_job_details(struct hd_arena *arena, const struct veil *veil,
                                   const struct hd_query *query, Heddle__V1__JobStatus *status)
{
    const struct hd_job_record *job = &query->jobs[0].record;

    status->spec = heddle__v1__job_spec__unpack(NULL, job->spec_bytes, job->spec);
    if (!status->spec)
        return hd_err(HD_CORRUPT, "the stored spec of a job cannot be decoded");
    status->attempts = hd_arena_array(arena, query->attempt_count + 1, sizeof *status->attempts);
    for (size_t i = 0; status->attempts && i < query->attempt_count; i++) {
        status->attempts[i] = convert_attempt(arena, veil, &query->attempts[i]);
        if (!status->attempts[i])
            break;
        if (status->spec->train)
            status->attempts[i]->plan->micro_batches = (int32_t)hd_layout_micro_batches(
                &query->attempts[i].plan.layout, status->spec->train->global_batch);
        status->n_attempts++;
    }
    return hd_arena_failed(arena) ? hd_err(HD_NO_MEMORY, "out of memory for a reply") : HD_OK;
}

void convert_queue(const struct controller *c, size_t index, Heddle__V1__QueueStatus *m)
{
    const struct hd_queue_record *r;
    struct hd_queue_view view;

    hd_core_queue_at(c->core, index, &view);
    r = view.record;
    heddle__v1__queue_status__init(m);
    HD_QUEUE_FIELDS(SENT_FIELD, , )
    m->devices_held = view.devices_held;
    m->jobs_waiting = (int64_t)view.jobs_waiting;
}

static Heddle__V1__DeviceInfo *convert_device(struct hd_arena *arena, const struct veil *veil,
                                              const struct hd_device_record *r,
                                              const struct hd_device_hold *hold)
{
    Heddle__V1__DeviceInfo *m;

    NEW(m, arena, heddle__v1__device_info__init);
    if (!m)
        return NULL;
    HD_DEVICE_FIELDS(SENT_FIELD, , )
    m->problem = convert_text(veil_copy(veil, arena, r->problem));
    m->native_precisions = hd_arena_array(arena, 32, sizeof *m->native_precisions);
    for (int p = 0; m->native_precisions && p < 32; p++) {
        if (r->precisions & (1u << p))
            m->native_precisions[m->n_native_precisions++] = (Heddle__V1__Precision)p;
    }
    m->held = hold->job != 0;
    if (m->held && veil_shows(veil, hold->job)) {
        m->job = hold->job;
        m->attempt = hold->attempt;
    }
    return m;
}

static void describe_name(const struct hd_node_view *view, struct hd_text *ret_text)
{
    if (*view->asked_name)
        hd_text_add(ret_text,
                    "%sits daemon calls itself %s: it is renamed when its jobs have ended",
                    ret_text->len_bytes ? "; " : "", view->asked_name);
    else if (*view->facts->host)
        hd_text_add(ret_text,
                    "%sits machine is called %s now: heddled --node-name %s renames the node",
                    ret_text->len_bytes ? "; " : "", view->facts->host, view->facts->host);
}

Heddle__V1__NodeStatus *convert_node(struct hd_arena *arena, const struct controller *c,
                                     const struct veil *veil, size_t index)
{
    Heddle__V1__NodeStatus *m;
    const struct hd_node_record *r;
    struct hd_node_view view;
    struct hd_text reason = {0};

    NEW(m, arena, heddle__v1__node_status__init);
    if (!m)
        return NULL;
    hd_core_node_at(c->core, index, &view);
    r = view.record;
    hd_core_node_reason(c->core, index, controller_now(), &reason);
    copies_describe(c, r->uuid, &reason);
    describe_name(&view, &reason);
    veil_text(veil, &reason);
    HD_NODE_FIELDS(SENT_FIELD, , )
    m->state = (Heddle__V1__NodeState)hd_node_view_state(&view);
    m->reason = convert_text(reason.data ? hd_arena_strdup(arena, reason.data) : "");
    m->jobs_dir_visible = view.jobs_dir_visible;
    m->data_address = convert_text(hd_arena_strdup(arena, view.facts->data_address));
    m->jobs_dir_problem = convert_text(veil_copy(veil, arena, view.jobs_dir_problem));
    if (*view.facts->isolation.mode) {
        NEW(m->isolation, arena, heddle__v1__node_isolation__init);
        if (!m->isolation)
            goto out;
        m->isolation->mode = hd_arena_strdup(arena, view.facts->isolation.mode);
        m->isolation->tier = hd_arena_strdup(arena, view.facts->isolation.tier);
        m->isolation->locks = hd_arena_strdup(arena, view.facts->isolation.locks);
        m->isolation->lacks = hd_arena_strdup(arena, view.facts->isolation.lacks);
        m->isolation->users = hd_arena_strdup(arena, view.facts->isolation.users);
    }
    m->drain_deadline_unix_ms = r->drain ? r->drain_deadline_ms : 0;
    m->devices = hd_arena_array(arena, (size_t)r->device_count + 1, sizeof *m->devices);
    for (int32_t d = 0; m->devices && d < r->device_count; d++) {
        m->devices[d] = convert_device(arena, veil, &r->devices[d], &view.holds[d]);
        if (!m->devices[d])
            break;
        m->n_devices++;
    }
out:
    hd_text_free(&reason);
    return hd_arena_failed(arena) ? NULL : m;
}

/* ---- messages to records ----------------------------------------------------------------------*/

enum hd_status convert_unpack_spec(const void *bytes, size_t count, struct hd_arena *arena,
                                   struct hd_job *ret_job)
{
    Heddle__V1__JobSpec *message = heddle__v1__job_spec__unpack(NULL, count, bytes);
    enum hd_status st;

    if (!message)
        return hd_err(HD_CORRUPT, "the stored spec of a job cannot be decoded");
    st = hd_spec_from_message(message, arena, ret_job);
    heddle__v1__job_spec__free_unpacked(message, NULL);
    return st;
}

/* Returns whether no number of the job's devices allows one replica per device, so tp, pp or cp
 * must split the model. Only then does the core search sizes other than 1; so all other jobs get as
 * many devices as without a search.
 */
static bool is_split_only(const struct hd_job_needs *needs)
{
    struct hd_plan_request plain = needs->wish;

    plain.searched = false;
    return !hd_plan_most(&plain, needs->devices_min, needs->devices_max);
}

struct hd_job_needs convert_needs(const struct hd_job *job)
{
    struct hd_job_needs needs = {.name = job->name,
                                 .device = hd_device_kind_of(job->device),
                                 .devices_min = (int32_t)job->devices_min,
                                 .devices_max = (int32_t)job->devices_max,
                                 .steps = job->steps,
                                 .keep = (int32_t)job->checkpoint_keep,
                                 .keep_best = job->checkpoint_best,
                                 .restart_max = (int32_t)job->restart_max,
                                 .queue = job->queue,
                                 .priority = (int32_t)job->priority,
                                 .array_at_once = (int32_t)job->array_at_once};
    int count = 0;

    /* cannot fail: control_prepare has checked both texts */
    (void)hd_after_read(job->after, needs.after, &count);
    (void)hd_time_limit_read(job->time_limit, &needs.time_limit_ms);
    needs.after_count = count;
    needs.array = strcmp(job->array_id, "none") == 0 ? NULL : job->array_id;
    hd_plan_request_of(job, &needs.wish);
    needs.wish.searched = is_split_only(&needs);
    /* layouts of equal shape are cached; not those of a schedule order that comes from a file */
    needs.shape = job->schedule_order ? 0 : hd_plan_hash(job);
    return needs;
}

struct hd_end_record convert_end_record(const Heddle__V1__EndReport *m)
{
    struct hd_end_record record = {.cause = HD_END_CAUSE_RANK_EXIT, .rank = -1};

    if (!m)
        return record;
    record = (struct hd_end_record){HD_END_FIELDS(TAKEN_FIELD, , )};
    if ((m->cause >= HEDDLE__V1__END_CAUSE__END_CAUSE_COMPLETED &&
         m->cause <= HEDDLE__V1__END_CAUSE__END_CAUSE_STORAGE) ||
        m->cause == HEDDLE__V1__END_CAUSE__END_CAUSE_OOM)
        record.cause = (enum hd_end_cause)m->cause;
    else
        record.cause = HD_END_CAUSE_RANK_EXIT; /* a cause that this build does not know */
    record.message = m->message;
    record.secondary = m->echo;
    return record;
}

struct hd_checkpoint_record convert_checkpoint_record(const Heddle__V1__CheckpointInfo *m)
{
    struct hd_checkpoint_record record = {HD_CHECKPOINT_FIELDS(TAKEN_FIELD, , )};

    record.missing = false; /* the search alone finds that */
    record.val_loss = m->_val_loss_case ? m->val_loss : NAN;
    return record;
}
