#include "controller/show/show.h"

#include "job/job.h"
#include "proto/step.h"
#include "spec/spec.h"

void show_envelope_begin(struct hd_json_writer *w, const char *kind)
{
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "api_version", "heddle/v1");
    hd_json_add_string(w, "kind", kind);
}

#define CHECKPOINT "attempt step path manifest_hash? size_bytes~ time=time_unix_ms@ val_loss best"
#define END        "cause rank- node? message exit_code signal bad_input"

const char show_checkpoint_form[] = CHECKPOINT;
const char show_event_form[] = "sequence time=time_unix_ms@ kind job? attempt node? rank- message";
const char show_node_form[] =
    "name node_uuid state reason build jobs_dir_visible data_address? jobs_dir_problem? "
    "seen_at=seen_unix_ms@ drain_deadline_at=drain_deadline_unix_ms@ "
    "isolation(mode tier? locks? lacks? users?) "
    "devices(index kind name uuid? memory_bytes~ threads job? held|job problem?)";
const char show_job_form[] =
    "job name owner state reason queue priority held stale! "
    "expected_start_at=expected_start_unix_ms@ attempt restarts step steps loss/step "
    "tokens_per_s/step mfu? checkpoint_step submitted_at=submitted_unix_ms@ "
    "started_at=started_unix_ms@ ended_at=ended_unix_ms@ devices nodes blockers[kind] choice!("
    "now{nodes=now_nodes switch=now_switch? step_time_s=now_step_s} "
    "later{nodes=later_nodes switch=later_switch? step_time_s=later_step_s} "
    "later_at=later_unix_ms@ saved_s) directory?";

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
    show_members(
        w, &plan->base,
        "micro_batches predicted_step_ms? predicted_memory_bytes~ ranks(rank node device)");
    hd_json_end(w, '}');
}

static void add_attempt(struct hd_json_writer *w, const Heddle__V1__AttemptStatus *a)
{
    hd_json_begin(w, NULL, '{');
    show_members(w, &a->base,
                 "attempt state created_at=created_unix_ms@ running_at=running_unix_ms@ "
                 "ended_at=ended_unix_ms@ run_as? end(" END ") base_checkpoint(" CHECKPOINT ")");
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

void show_whole_job(struct hd_json_writer *w, const void *job)
{
    const Heddle__V1__JobStatus *j = job;

    show_members(w, &j->base, show_job_form);
    hd_json_begin(w, "attempts", '[');
    for (size_t i = 0; i < j->n_attempts; i++)
        add_attempt(w, j->attempts[i]);
    hd_json_end(w, ']');
    add_spec(w, j->spec);
    if (j->spec)
        show_members(w, &j->spec->base, "file=file_text?");
    else
        hd_json_add_null(w, "file");
}

bool show_is_held(const Heddle__V1__DeviceInfo *d)
{
    return d->held || d->job; /* an older controller sends only the job, not `held` */
}

/* ---- a job's history, line by line ---- */

static void line_begin(struct hd_json_writer *w, const char *type, uint64_t job, int32_t attempt)
{
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "type", type);
    hd_json_add_int64(w, "job", (int64_t)job);
    hd_json_add_int64(w, "attempt", attempt);
}

static void add_metrics(struct hd_json_writer *w, const struct hd_step_metrics *metrics,
                        bool experts)
{
    for (int i = 0; i < HD_METRIC_COUNT; i++) {
        const char *name = hd_metrics[i].name;
        const double value = hd_metric_get(metrics, i);

        if (!hd_metric_is_present(metrics, i, experts))
            continue;
        if (i == HD_METRIC_INDEX_mfu && !(value > 0)) /* the device's peak rate is unknown */
            hd_json_add_null(w, name);
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
        show_members(w, &s->base, "expert_load");
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

bool show_history(struct hd_json_writer *w, uint64_t job, const Heddle__V1__WatchJobResponse *entry)
{
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
        show_members(w, &entry->base, "checkpoint(" CHECKPOINT ")");
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_EVENT:
        hd_json_begin(w, NULL, '{');
        hd_json_add_string(w, "type", "event");
        show_members(w, &entry->event->base, show_event_form);
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STATUS:
        line_begin(w, "event", job, entry->status->attempt);
        hd_json_add_string(w, "kind", "state");
        show_members(w, &entry->status->base, "state reason");
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_END:
        line_begin(w, "end", job, entry->attempt);
        show_members(w, &entry->end->base, "state reason attempts step end(" END ")");
        break;
    default: /* kind of a newer controller: unknown to this build */
        return false;
    }
    hd_json_end(w, '}');
    return true;
}
