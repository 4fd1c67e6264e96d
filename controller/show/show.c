#include "controller/show/show.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "job/job.h"
#include "proto/step.h"
#include "spec/spec.h"

const char *show_word(const ProtobufCEnumDescriptor *descriptor, const char *prefix, int value,
                      char ret_word[SHOW_WORD_MAX])
{
    const ProtobufCEnumValue *found = protobuf_c_enum_descriptor_get_value(descriptor, value);
    size_t n = 0;

    if (!found) { /* a value that only a newer peer has */
        (void)snprintf(ret_word, SHOW_WORD_MAX, "unknown(%d)", value);
        return ret_word;
    }
    for (const char *p = found->name + strlen(prefix); *p && n + 1 < SHOW_WORD_MAX; p++)
        ret_word[n++] = (char)(*p >= 'A' && *p <= 'Z' ? *p - 'A' + 'a' : *p);
    ret_word[n] = '\0';
    return ret_word;
}

void show_envelope_begin(struct hd_json_writer *w, const char *kind)
{
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "api_version", "heddle/v1");
    hd_json_add_string(w, "kind", kind);
}

void show_time(struct hd_json_writer *w, const char *key, int64_t unix_ms)
{
    char text[HD_CLOCK_TEXT_MAX];

    if (!unix_ms) {
        hd_json_add_null(w, key);
        return;
    }
    hd_clock_format_utc(unix_ms, text);
    hd_json_add_string(w, key, text);
}

/* Adds a number, or null if it is not known, because 0 is a valid number. */
void show_known(struct hd_json_writer *w, const char *key, bool known, double value)
{
    if (known)
        hd_json_add_real(w, key, value);
    else
        hd_json_add_null(w, key);
}

static void add_text_or_null(struct hd_json_writer *w, const char *key, const char *text)
{
    if (*text)
        hd_json_add_string(w, key, text);
    else
        hd_json_add_null(w, key);
}

void show_checkpoint(struct hd_json_writer *w, const Heddle__V1__CheckpointInfo *c)
{
    hd_json_add_int64(w, "attempt", c->attempt);
    hd_json_add_int64(w, "step", c->step);
    hd_json_add_string(w, "path", c->path);
    add_text_or_null(w, "manifest_hash", c->manifest_hash);
    show_known(w, "size_bytes", c->size_bytes > 0, (double)c->size_bytes);
    show_time(w, "time", c->time_unix_ms);
    show_known(w, "val_loss", c->_val_loss_case != 0, c->val_loss);
    hd_json_add_bool(w, "best", c->best);
}

static void add_end(struct hd_json_writer *w, const Heddle__V1__EndReport *end)
{
    char word[SHOW_WORD_MAX];

    if (!end) {
        hd_json_add_null(w, "end");
        return;
    }
    hd_json_begin(w, "end", '{');
    hd_json_add_string(
        w, "cause",
        show_word(&heddle__v1__end_cause__descriptor, "END_CAUSE_", (int)end->cause, word));
    if (end->rank >= 0)
        hd_json_add_int64(w, "rank", end->rank);
    else
        hd_json_add_null(w, "rank");
    add_text_or_null(w, "node", end->node);
    hd_json_add_string(w, "message", end->message);
    hd_json_add_int64(w, "exit_code", end->exit_code);
    hd_json_add_int64(w, "signal", end->signal);
    hd_json_add_bool(w, "bad_input", end->bad_input);
    hd_json_end(w, '}');
}

static void add_plan(struct hd_json_writer *w, const Heddle__V1__Plan *plan)
{
    struct hd_layout_sizes sizes;

    if (!plan) {
        hd_json_add_null(w, "plan");
        return;
    }
    hd_json_begin(w, "plan", '{');
    if (!hd_spec_plan_from_message(plan, &sizes))
        hd_spec_add_plan_json(&sizes, w);
    hd_json_add_int64(w, "micro_batches", plan->micro_batches);
    show_known(w, "predicted_step_ms", plan->predicted_step_ms > 0, plan->predicted_step_ms);
    show_known(w, "predicted_memory_bytes", plan->predicted_memory_bytes > 0,
               (double)plan->predicted_memory_bytes);
    hd_json_begin(w, "ranks", '[');
    for (size_t i = 0; i < plan->n_ranks; i++) {
        hd_json_begin(w, NULL, '{');
        hd_json_add_int64(w, "rank", plan->ranks[i]->rank);
        hd_json_add_string(w, "node", plan->ranks[i]->node);
        hd_json_add_int64(w, "device", plan->ranks[i]->device);
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
    hd_json_end(w, '}');
}

static void add_attempt(struct hd_json_writer *w, const Heddle__V1__AttemptStatus *a)
{
    char word[SHOW_WORD_MAX];

    hd_json_begin(w, NULL, '{');
    hd_json_add_int64(w, "attempt", a->attempt);
    hd_json_add_string(
        w, "state",
        show_word(&heddle__v1__attempt_state__descriptor, "ATTEMPT_STATE_", (int)a->state, word));
    show_time(w, "created_at", a->created_unix_ms);
    show_time(w, "running_at", a->running_unix_ms);
    show_time(w, "ended_at", a->ended_unix_ms);
    add_text_or_null(w, "run_as", a->run_as);
    add_end(w, a->end);
    if (a->base_checkpoint) {
        hd_json_begin(w, "base_checkpoint", '{');
        show_checkpoint(w, a->base_checkpoint);
        hd_json_end(w, '}');
    } else {
        hd_json_add_null(w, "base_checkpoint");
    }
    add_plan(w, a->plan);
    hd_json_end(w, '}');
}

/* Adds the job's spec; null if this build cannot read it, because a newer controller sent it. */
static void add_spec(struct hd_json_writer *w, const Heddle__V1__JobSpec *spec)
{
    struct hd_arena arena;
    struct hd_job job;

    hd_arena_init(&arena, 0);
    if (spec && !hd_spec_from_message(spec, &arena, &job))
        hd_spec_add_json(&job, "spec", w);
    else
        hd_json_add_null(w, "spec");
    hd_arena_done(&arena);
}

static void add_placement(struct hd_json_writer *w, const char *name, int32_t nodes,
                          const char *switches, double step_s)
{
    hd_json_begin(w, name, '{');
    hd_json_add_int64(w, "nodes", nodes);
    add_text_or_null(w, "switch", switches);
    hd_json_add_real(w, "step_time_s", step_s);
    hd_json_end(w, '}');
}

static void add_choice(struct hd_json_writer *w, const Heddle__V1__PlaceChoice *choice)
{
    hd_json_begin(w, "choice", '{');
    add_placement(w, "now", choice->now_nodes, choice->now_switch, choice->now_step_s);
    add_placement(w, "later", choice->later_nodes, choice->later_switch, choice->later_step_s);
    show_time(w, "later_at", choice->later_unix_ms);
    hd_json_add_real(w, "saved_s", choice->saved_s);
    hd_json_end(w, '}');
}

void show_job(struct hd_json_writer *w, const Heddle__V1__JobStatus *j, bool with_details)
{
    char word[SHOW_WORD_MAX];

    hd_json_add_int64(w, "job", (int64_t)j->job);
    hd_json_add_string(w, "name", j->name);
    hd_json_add_string(w, "owner", j->owner);
    hd_json_add_string(
        w, "state",
        show_word(&heddle__v1__job_state__descriptor, "JOB_STATE_", (int)j->state, word));
    hd_json_add_string(w, "reason", j->reason);
    hd_json_add_string(w, "queue", j->queue);
    hd_json_add_int64(w, "priority", j->priority);
    hd_json_add_bool(w, "held", j->held);
    if (*j->stale)
        hd_json_add_string(w, "stale", j->stale);
    show_time(w, "expected_start_at", j->expected_start_unix_ms);
    hd_json_add_int64(w, "attempt", j->attempt);
    hd_json_add_int64(w, "restarts", j->restarts);
    hd_json_add_int64(w, "step", j->step);
    hd_json_add_int64(w, "steps", j->steps);
    show_known(w, "loss", j->step > 0, j->loss);
    show_known(w, "tokens_per_s", j->step > 0, j->tokens_per_s);
    show_known(w, "mfu", j->mfu > 0, j->mfu);
    hd_json_add_int64(w, "checkpoint_step", j->checkpoint_step);
    show_time(w, "submitted_at", j->submitted_unix_ms);
    show_time(w, "started_at", j->started_unix_ms);
    show_time(w, "ended_at", j->ended_unix_ms);
    hd_json_add_int64(w, "devices", j->devices);
    hd_json_begin(w, "nodes", '[');
    for (size_t i = 0; i < j->n_nodes; i++)
        hd_json_add_string(w, NULL, j->nodes[i]);
    hd_json_end(w, ']');
    hd_json_begin(w, "blockers", '[');
    for (size_t i = 0; i < j->n_blockers; i++)
        hd_json_add_string(w, NULL, j->blockers[i]->kind);
    hd_json_end(w, ']');
    if (j->choice)
        add_choice(w, j->choice);
    add_text_or_null(w, "directory", j->directory);
    if (!with_details)
        return;
    hd_json_begin(w, "attempts", '[');
    for (size_t i = 0; i < j->n_attempts; i++)
        add_attempt(w, j->attempts[i]);
    hd_json_end(w, ']');
    add_spec(w, j->spec);
    add_text_or_null(w, "file", j->spec ? j->spec->file_text : "");
}

bool show_is_held(const Heddle__V1__DeviceInfo *d)
{
    return d->held || d->job; /* an older controller sends only the job, not `held` */
}

static void add_device(struct hd_json_writer *w, const Heddle__V1__DeviceInfo *d)
{
    char word[SHOW_WORD_MAX];

    hd_json_begin(w, NULL, '{');
    hd_json_add_int64(w, "index", d->index);
    hd_json_add_string(
        w, "kind",
        show_word(&heddle__v1__device_kind__descriptor, "DEVICE_KIND_", (int)d->kind, word));
    hd_json_add_string(w, "name", d->name);
    add_text_or_null(w, "uuid", d->uuid);
    show_known(w, "memory_bytes", d->memory_bytes > 0, (double)d->memory_bytes);
    hd_json_add_int64(w, "threads", d->threads);
    if (d->job)
        hd_json_add_int64(w, "job", (int64_t)d->job);
    else
        hd_json_add_null(w, "job");
    hd_json_add_bool(w, "held", show_is_held(d));
    add_text_or_null(w, "problem", d->problem);
    hd_json_end(w, '}');
}

void show_node(struct hd_json_writer *w, const Heddle__V1__NodeStatus *n)
{
    char word[SHOW_WORD_MAX];

    hd_json_add_string(w, "name", n->name);
    hd_json_add_string(w, "node_uuid", n->node_uuid);
    hd_json_add_string(
        w, "state",
        show_word(&heddle__v1__node_state__descriptor, "NODE_STATE_", (int)n->state, word));
    hd_json_add_string(w, "reason", n->reason);
    hd_json_add_string(w, "build", n->build);
    hd_json_add_bool(w, "jobs_dir_visible", n->jobs_dir_visible);
    add_text_or_null(w, "data_address", n->data_address);
    add_text_or_null(w, "jobs_dir_problem", n->jobs_dir_problem);
    show_time(w, "seen_at", n->seen_unix_ms);
    show_time(w, "drain_deadline_at", n->drain_deadline_unix_ms);
    if (n->isolation) {
        hd_json_begin(w, "isolation", '{');
        hd_json_add_string(w, "mode", n->isolation->mode);
        add_text_or_null(w, "tier", n->isolation->tier);
        add_text_or_null(w, "locks", n->isolation->locks);
        add_text_or_null(w, "lacks", n->isolation->lacks);
        add_text_or_null(w, "users", n->isolation->users);
        hd_json_end(w, '}');
    } else {
        hd_json_add_null(w, "isolation");
    }
    hd_json_begin(w, "devices", '[');
    for (size_t i = 0; i < n->n_devices; i++)
        add_device(w, n->devices[i]);
    hd_json_end(w, ']');
}

/* Adds the members of a message that has only texts, numbers and truth values, under their names and
 * in their order. */
static void add_members(struct hd_json_writer *w, const ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        const void *at = (const char *)message + field->offset;

        if (field->type == PROTOBUF_C_TYPE_STRING)
            hd_json_add_string(w, field->name, *(char *const *)at);
        else if (field->type == PROTOBUF_C_TYPE_BOOL)
            hd_json_add_bool(w, field->name, *(const protobuf_c_boolean *)at);
        else if (field->type == PROTOBUF_C_TYPE_INT32)
            hd_json_add_int64(w, field->name, *(const int32_t *)at);
        else
            hd_json_add_int64(w, field->name, *(const int64_t *)at);
    }
}

void show_queue(struct hd_json_writer *w, const Heddle__V1__QueueStatus *q)
{
    add_members(w, &q->base);
}

void show_event(struct hd_json_writer *w, const Heddle__V1__Event *e)
{
    hd_json_add_int64(w, "sequence", (int64_t)e->sequence);
    show_time(w, "time", e->time_unix_ms);
    hd_json_add_string(w, "kind", e->kind);
    if (e->job)
        hd_json_add_int64(w, "job", (int64_t)e->job);
    else
        hd_json_add_null(w, "job");
    hd_json_add_int64(w, "attempt", e->attempt);
    add_text_or_null(w, "node", e->node);
    if (e->rank >= 0)
        hd_json_add_int64(w, "rank", e->rank);
    else
        hd_json_add_null(w, "rank");
    hd_json_add_string(w, "message", e->message);
}

/* ---- a job's history, line by line ---- */

static void line_begin(struct hd_json_writer *w, const char *type, uint64_t job, int32_t attempt)
{
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "type", type);
    hd_json_add_int64(w, "job", (int64_t)job);
    hd_json_add_int64(w, "attempt", attempt);
}

static void add_loads(struct hd_json_writer *w, const Heddle__V1__StepReport *s)
{
    hd_json_begin(w, "expert_load", '[');
    for (size_t i = 0; i < s->n_expert_load; i++)
        hd_json_add_int64(w, NULL, s->expert_load[i]);
    hd_json_end(w, ']');
}

static void add_metrics(struct hd_json_writer *w, const struct hd_step_metrics *metrics,
                        bool experts)
{
    for (int i = 0; i < HD_METRIC_COUNT; i++) {
        const char *name = hd_metrics[i].name;
        const double value = hd_metric_get(metrics, i);

        if (!hd_metric_is_present(metrics, i, experts))
            continue;
        if (i == HD_METRIC_INDEX_mfu) /* 0 means that the device's peak rate is unknown */
            show_known(w, name, value > 0, value);
        else if (hd_metrics[i].is_int)
            hd_json_add_int64(w, name, (int64_t)value);
        else
            hd_json_add_real(w, name, value);
    }
}

static void add_step(struct hd_json_writer *w, const Heddle__V1__StepReport *s)
{
    struct hd_step_metrics metrics;

    hd_step_from_message(s, &metrics);
    hd_json_add_int64(w, "step", s->step);
    add_metrics(w, &metrics, s->n_expert_load > 0);
    if (s->n_expert_load)
        add_loads(w, s);
    show_time(w, "time", s->time_unix_ms);
}

static void add_validation(struct hd_json_writer *w, const Heddle__V1__ValidationReport *v)
{
    const bool is_score = hd_job_val_report_is_score(v->set);

    hd_json_add_int64(w, "step", v->step);
    hd_json_add_real(w, is_score ? "score" : "loss", v->loss);
    hd_json_add_int64(w, is_score ? "questions" : "tokens", v->tokens);
    if (*v->set)
        hd_json_add_string(w, "set", v->set);
    show_time(w, "time", v->time_unix_ms);
}

static void add_job_end(struct hd_json_writer *w, const Heddle__V1__JobEnd *end)
{
    char word[SHOW_WORD_MAX];

    hd_json_add_string(
        w, "state",
        show_word(&heddle__v1__job_state__descriptor, "JOB_STATE_", (int)end->state, word));
    hd_json_add_string(w, "reason", end->reason);
    hd_json_add_int64(w, "attempts", end->attempts);
    hd_json_add_int64(w, "step", end->step);
    add_end(w, end->end);
}

bool show_history(struct hd_json_writer *w, uint64_t job, const Heddle__V1__WatchJobResponse *entry)
{
    char word[SHOW_WORD_MAX];

    switch (entry->body_case) {
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STEP:
        line_begin(w, "step", job, entry->attempt);
        add_step(w, entry->step);
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_VALIDATION:
        line_begin(w, "validation", job, entry->attempt);
        add_validation(w, entry->validation);
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_CHECKPOINT:
        line_begin(w, "event", job, entry->attempt);
        hd_json_add_string(w, "kind", "checkpoint");
        hd_json_begin(w, "checkpoint", '{');
        show_checkpoint(w, entry->checkpoint);
        hd_json_end(w, '}');
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_EVENT:
        hd_json_begin(w, NULL, '{');
        hd_json_add_string(w, "type", "event");
        show_event(w, entry->event);
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STATUS:
        line_begin(w, "event", job, entry->status->attempt);
        hd_json_add_string(w, "kind", "state");
        hd_json_add_string(w, "state",
                           show_word(&heddle__v1__job_state__descriptor, "JOB_STATE_",
                                     (int)entry->status->state, word));
        hd_json_add_string(w, "reason", entry->status->reason);
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_END:
        line_begin(w, "end", job, entry->attempt);
        add_job_end(w, entry->end);
        break;
    default: /* kind of a newer controller: unknown to this build */
        return false;
    }
    hd_json_end(w, '}');
    return true;
}
