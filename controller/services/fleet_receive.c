/* fleet_receive: messages of a daemon about its attempts: observed sets, and reports, which are
 * acknowledged after the commit.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/services/fleet.h"

/* ---- observed sets ----------------------------------------------------------------------------*/

/* Checks that a checkpoint's path is in its attempt's folder: otherwise deleting the checkpoint
 * could delete another folder. */
static bool is_in_place(struct node_stream *s, uint64_t job, int32_t attempt, const char *path)
{
    struct hd_arena arena;
    const char *dir;
    bool in_place;

    hd_arena_init(&arena, 0);
    dir = convert_checkpoint_dir(&arena, s->c, job, attempt);
    in_place = dir && strncmp(path, dir, strlen(dir)) == 0 && path[strlen(dir)] == '/' &&
               !strstr(path, "/../") && strlen(path) < HD_CTL_PATH_BYTES_MAX;
    hd_arena_done(&arena);
    if (!in_place)
        hd_log(HD_LOG_WARN, "node %s reports a checkpoint of job %" PRIu64 " in a wrong folder: %s",
               s->name, job, path);
    return in_place;
}

static void take_checkpoints(struct node_stream *s, struct hd_arena *arena,
                             const Heddle__V1__ObservedAttempt *m, struct hd_observed *observed)
{
    observed->checkpoints =
        hd_arena_array(arena, m->n_checkpoints + 1, sizeof *observed->checkpoints);
    for (size_t i = 0; observed->checkpoints && i < m->n_checkpoints; i++) {
        if (is_in_place(s, m->job, m->attempt, m->checkpoints[i]->path))
            observed->checkpoints[observed->checkpoint_count++] =
                convert_checkpoint_record(m->checkpoints[i]);
    }
}

enum hd_status fleet_receive_observed(struct node_stream *s, const Heddle__V1__ObservedState *m)
{
    struct hd_core_event event = {
        .kind = HD_CORE_OBSERVED,
        .observed = {.uuid = s->uuid,
                     .stream = s->number,
                     .generation = m->generation,
                     .jobs_dir_visible = strcmp(m->jobs_dir_probe, s->c->probe) == 0,
                     .jobs_dir_problem = m->jobs_dir_problem,
                     .refuses_attempts = m->no_room,
                     .leaves = m->leaves}};
    struct hd_observed *attempts;
    struct hd_deletion *deleted;
    struct hd_copied *copied;
    struct hd_arena arena;
    enum hd_status st;

    if (!event.observed.jobs_dir_visible && !*m->jobs_dir_problem)
        event.observed.jobs_dir_problem = "a different folder has the same path";
    hd_arena_init(&arena, 0);
    attempts = hd_arena_array(&arena, m->n_attempts + 1, sizeof *attempts);
    deleted = hd_arena_array(&arena, m->n_deleted + 1, sizeof *deleted);
    for (size_t i = 0; attempts && i < m->n_attempts; i++) {
        const Heddle__V1__ObservedAttempt *a = m->attempts[i];

        attempts[i] = (struct hd_observed){.job = a->job,
                                           .attempt = a->attempt,
                                           .state = (enum hd_attempt_state)a->state,
                                           .end = convert_end_record(a->end),
                                           .problem = a->problem,
                                           .waits = a->waits};
        take_checkpoints(s, &arena, a, &attempts[i]);
    }
    for (size_t i = 0; deleted && i < m->n_deleted; i++)
        deleted[i] = (struct hd_deletion){.job = m->deleted[i]->job,
                                          .attempt = m->deleted[i]->attempt,
                                          .step = m->deleted[i]->step,
                                          .left = m->deleted[i]->left};
    copied = hd_arena_array(&arena, m->n_copied + 1, sizeof *copied);
    for (size_t i = 0; copied && i < m->n_copied; i++)
        copied[i] = (struct hd_copied){.job = m->copied[i]->job,
                                       .attempt = m->copied[i]->attempt,
                                       .step = m->copied[i]->step,
                                       .to = m->copied[i]->to,
                                       .time_ms = m->copied[i]->time_unix_ms};
    event.observed.copied = copied;
    event.observed.copied_count = m->n_copied;
    event.observed.attempts = attempts;
    event.observed.attempt_count = m->n_attempts;
    event.observed.deleted = deleted;
    event.observed.deleted_count = m->n_deleted;
    st = hd_arena_failed(&arena) ? hd_err(HD_NO_MEMORY, "no memory for an observed set")
                                 : transaction_step(s->c, &event);
    hd_arena_done(&arena);
    return st;
}

/* ---- reports ----------------------------------------------------------------------------------*/

/* Post-commit action that acknowledges the highest sequence number of reports per (job, attempt,
 * rank). */
struct ack_action {
    struct post_commit_action action;
    uint64_t stream;
    size_t count;
    struct hd_position_record positions[];
};

static void run_ack(struct post_commit_action *action, struct controller *c, enum hd_status st)
{
    struct ack_action *ack = (struct ack_action *)(void *)action;
    struct node_stream *s = fleet_find_stream(c, ack->stream);
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    Heddle__V1__ReportAck body = HEDDLE__V1__REPORT_ACK__INIT;
    Heddle__V1__ReportPosition *items = calloc(ack->count + 1, sizeof *items);
    Heddle__V1__ReportPosition **pointers = calloc(ack->count + 1, sizeof(void *));

    for (size_t i = 0; items && pointers && i < ack->count; i++) {
        heddle__v1__report_position__init(&items[i]);
        items[i].job = ack->positions[i].job;
        items[i].attempt = ack->positions[i].attempt;
        items[i].rank = ack->positions[i].rank;
        items[i].seq = ack->positions[i].seq;
        pointers[i] = &items[i];
    }
    body.n_positions = ack->count;
    body.positions = pointers;
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_REPORT_ACK;
    message.report_ack = &body;
    if (!st && s && items && pointers)
        fleet_send_message(s, &message);
    free(items);
    free(pointers);
    free(ack);
}

static void acknowledge(struct ack_action *ack, const Heddle__V1__Report *r)
{
    for (size_t i = 0; i < ack->count; i++) {
        struct hd_position_record *p = &ack->positions[i];

        if (p->job == r->job && p->attempt == r->attempt && p->rank == r->rank) {
            p->seq = r->seq > p->seq ? r->seq : p->seq;
            return;
        }
    }
    ack->positions[ack->count++] = (struct hd_position_record){
        .job = r->job, .attempt = r->attempt, .rank = r->rank, .seq = r->seq};
}

static void describe_exit(const Heddle__V1__Report *r, char *ret_text, size_t size)
{
    const Heddle__V1__RankExit *e = r->rank_exit;

    if (e->signal)
        (void)snprintf(ret_text, size, "rank %d was killed by signal %d%s%s", r->rank, e->signal,
                       *e->message ? ": " : "", e->message);
    else if (e->exit_code)
        (void)snprintf(ret_text, size, "rank %d ended with exit code %d%s%s", r->rank, e->exit_code,
                       *e->message ? ": " : "", e->message);
    else
        (void)snprintf(ret_text, size, "rank %d is done", r->rank);
}

/* Converts a report to a core event. False: skip and acknowledge the report, because its kind is
 * unknown (a later version's), its checkpoint is outside the attempt's folder, or its validation set
 * has no possible name. */
static bool fill_report(struct node_stream *s, const Heddle__V1__Report *r,
                        struct hd_core_event *event, char *text, size_t size)
{
    bool clean;

    switch (r->body_case) {
    case HEDDLE__V1__REPORT__BODY_STEP:
        event->report.kind = HD_REPORT_STEP;
        event->report.step = (struct hd_step_record){.step = r->step->step,
                                                     .time_ms = r->step->time_unix_ms,
                                                     .expert_load = r->step->expert_load,
                                                     .expert_count = r->step->n_expert_load};
        hd_step_from_message(r->step, &event->report.step.metrics);
        return true;
    case HEDDLE__V1__REPORT__BODY_VALIDATION:
        event->report.kind = HD_REPORT_VALIDATION;
        event->report.validation =
            (struct hd_validation_record){.step = r->validation->step,
                                          .tokens = r->validation->tokens,
                                          .time_ms = r->validation->time_unix_ms,
                                          .loss = r->validation->loss};
        (void)snprintf(event->report.validation.set, sizeof event->report.validation.set, "%s",
                       r->validation->set);
        return !*r->validation->set || hd_job_val_report_is_possible(r->validation->set);
    case HEDDLE__V1__REPORT__BODY_CHECKPOINT:
        event->report.kind = HD_REPORT_CHECKPOINT;
        event->report.checkpoint = convert_checkpoint_record(r->checkpoint);
        return is_in_place(s, r->job, r->attempt, r->checkpoint->path);
    case HEDDLE__V1__REPORT__BODY_EVENT:
        event->report.kind = HD_REPORT_EVENT;
        event->report.event = (struct hd_event_record){.time_ms = r->event->time_unix_ms,
                                                       .rank = r->event->rank,
                                                       .kind = r->event->kind,
                                                       .message = r->event->message};
        return true;
    case HEDDLE__V1__REPORT__BODY_RANK_EXIT:
        describe_exit(r, text, size);
        clean = !r->rank_exit->signal && !r->rank_exit->exit_code;
        event->report.kind = HD_REPORT_EVENT;
        event->report.event = (struct hd_event_record){.time_ms = r->rank_exit->time_unix_ms,
                                                       .rank = -1,
                                                       .kind = clean ? "rank_done" : "rank_exit",
                                                       .message = text};
        return true;
    default:
        return false;
    }
}

static enum hd_status take_report(struct node_stream *s, const Heddle__V1__Report *r)
{
    char text[HD_CTL_MESSAGE_BYTES_MAX + 8]; /* may be too long: the core cuts it */
    struct hd_core_event event = {.kind = HD_CORE_REPORT,
                                  .report = {.uuid = s->uuid,
                                             .stream = s->number,
                                             .job = r->job,
                                             .attempt = r->attempt,
                                             .rank = r->rank,
                                             .seq = r->seq}};
    enum hd_status st;

    if (!fill_report(s, r, &event, text, sizeof text))
        return HD_OK;
    st = transaction_step(s->c, &event);
    if (st == HD_NOT_FOUND || st == HD_INVALID) {
        hd_log(HD_LOG_DEBUG, "a report of node %s is dropped: %s", s->name, hd_err_message());
        return HD_OK; /* acknowledged, so that the daemon deletes it from its spool */
    }
    return st;
}

enum hd_status fleet_take_reports(struct node_stream *s, const Heddle__V1__Reports *m)
{
    struct ack_action *ack = calloc(1, sizeof *ack + (m->n_reports + 1) * sizeof ack->positions[0]);
    enum hd_status st = HD_OK;

    if (!ack)
        return hd_err(HD_NO_MEMORY, "no memory for reports");
    ack->action.run = run_ack;
    ack->stream = s->number;
    for (size_t i = 0; !st && i < m->n_reports; i++) {
        st = take_report(s, m->reports[i]);
        if (!st)
            acknowledge(ack, m->reports[i]);
    }
    transaction_when_durable(s->c, &ack->action);
    return st;
}
