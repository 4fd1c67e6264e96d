#include "controller/services/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "controller/services/internal.h"
#include "controller/services/job_stats.h"
#include "job/job.h"

/* ---- totals of all jobs -----------------------------------------------------------------------*/

static void add_states(const struct controller *c, struct hd_text *out)
{
    size_t states[STATS_STATES] = {0}, blockers[HD_CORE_BLOCKERS_MAX] = {0};

    for (size_t i = 0; i < c->stats.count; i++) {
        enum hd_core_blocker why[HD_CORE_BLOCKERS_MAX];
        const struct hd_job_record *job = hd_core_job(c->core, c->stats.jobs[i].job);

        if (!job || job->state > HD_JOB_STATE_STOPPING)
            continue;
        states[job->state]++;
        if (job->state == HD_JOB_STATE_QUEUED && hd_core_blockers(c->core, job->job, why))
            blockers[why[0]]++;
    }
    hd_prom_begin(out, HD_PROM_jobs);
    for (int s = HD_JOB_STATE_QUEUED; s <= HD_JOB_STATE_STOPPING; s++)
        hd_prom_add_label(out, HD_PROM_jobs, "state", hd_job_state_name(s), (double)states[s]);
    hd_prom_begin(out, HD_PROM_jobs_waiting);
    for (int b = 0; b < HD_CORE_BLOCKERS_MAX; b++)
        hd_prom_add_label(out, HD_PROM_jobs_waiting, "blocker",
                          hd_core_blocker_word((enum hd_core_blocker)b), (double)blockers[b]);
}

static void add_totals(const struct stats *s, struct hd_text *out)
{
    hd_prom_add_one(out, HD_PROM_jobs_submitted_total, (double)s->submitted);
    hd_prom_begin(out, HD_PROM_jobs_ended_total);
    for (int state = HD_JOB_STATE_SUCCEEDED; state <= HD_JOB_STATE_CANCELLED; state++)
        hd_prom_add_label(out, HD_PROM_jobs_ended_total, "state", hd_job_state_name(state),
                          (double)s->ended[state]);
    hd_prom_add_histogram(out, HD_PROM_job_wait_seconds, &s->waits);
    hd_prom_add_one(out, HD_PROM_attempts_started_total, (double)s->attempts_started);
    hd_prom_begin(out, HD_PROM_attempts_ended_total);
    for (int cause = HD_END_CAUSE_COMPLETED; cause < STATS_CAUSES; cause++)
        hd_prom_add_label(out, HD_PROM_attempts_ended_total, "cause", hd_end_cause_name(cause),
                          (double)s->attempts_ended[cause]);
    hd_prom_add_one(out, HD_PROM_steps_total, (double)s->steps);
    hd_prom_add_one(out, HD_PROM_tokens_total, (double)s->tokens);
    hd_prom_add_one(out, HD_PROM_steps_lost_total, (double)s->steps_lost);
}

/* ---- series of each job -----------------------------------------------------------------------*/

struct metrics_row {
    const struct job_stats *seen;
    const struct hd_job_record *record;
};

static double seconds(int64_t unix_ms)
{
    return unix_ms ? (double)unix_ms / 1e3 : NAN;
}

/* Returns the value of a metric family for one job; NaN: unknown, so no sample is written.
 * Exception: a loss that is NaN is written (keeps_nan). */
static double value_of(enum hd_prom_family family, const struct metrics_row *row, int64_t now_ms)
{
    const struct job_stats *s = row->seen;
    const struct hd_step_metrics *m = s->has_step ? &s->metrics : NULL;

    switch (family) {
    case HD_PROM_job_running:
        return row->record->state != HD_JOB_STATE_QUEUED;
    case HD_PROM_job_submitted_timestamp_seconds:
        return seconds(row->record->submitted_ms);
    case HD_PROM_job_started_timestamp_seconds:
        return seconds(row->record->started_ms);
    case HD_PROM_job_devices:
        return row->record->devices;
    case HD_PROM_job_attempts_total:
        return row->record->attempt_count;
    case HD_PROM_job_step:
        return (double)s->step;
    case HD_PROM_job_steps:
        return (double)row->record->steps;
    case HD_PROM_job_step_timestamp_seconds:
        return m ? seconds(s->step_time_ms) : NAN;
    case HD_PROM_job_step_duration_seconds:
        return m ? m->step_ms / 1e3 : NAN;
    case HD_PROM_job_predicted_step_duration_seconds:
        return s->predicted_step_s > 0 ? s->predicted_step_s : NAN;
    case HD_PROM_job_loss:
        return m ? m->loss : NAN;
    case HD_PROM_job_z_loss:
        return m && m->z_loss != 0 ? m->z_loss : NAN;
    case HD_PROM_job_max_attention_logit:
        return m && m->max_attention_logit > 0 ? m->max_attention_logit : NAN;
    case HD_PROM_job_clipped_heads:
        return m && m->max_attention_logit > 0 ? (double)m->clipped_heads : NAN;
    case HD_PROM_job_grad_norm:
        return m ? m->grad_norm : NAN;
    case HD_PROM_job_tokens_per_second:
        return m ? m->tokens_per_s : NAN;
    case HD_PROM_job_mfu_ratio:
        return m && m->mfu > 0 ? m->mfu : NAN;
    case HD_PROM_job_checkpoint_step:
        return s->checkpoint_ms ? (double)s->checkpoint_step : NAN;
    case HD_PROM_job_checkpoint_timestamp_seconds:
        return seconds(s->checkpoint_ms);
    case HD_PROM_job_goodput_ratio:
        return stats_goodput(s, now_ms);
    default:
        return NAN;
    }
}

/* Returns whether a NaN of this family is written: a loss that has become NaN must not look like a
 * job without steps. */
static bool keeps_nan(enum hd_prom_family family, const struct metrics_row *row)
{
    return row->seen->has_step && (family == HD_PROM_job_loss || family == HD_PROM_job_grad_norm);
}

static void add_info(const struct metrics_row *rows, size_t count, struct hd_text *out)
{
    hd_prom_begin(out, HD_PROM_job_info);
    for (size_t i = 0; i < count; i++) {
        const struct hd_prom_pair pairs[] = {{"name", rows[i].record->name},
                                             {"owner", rows[i].record->owner},
                                             {"queue", rows[i].record->queue}};

        hd_prom_add_labels(out, HD_PROM_job_info, rows[i].seen->label, pairs, 3, 1);
    }
}

/* Adds the newest losses of a job's validation sets, or its scores, whose names have a slash. */
static void add_validations(const struct job_stats *s, bool scores, struct hd_text *out)
{
    const enum hd_prom_family family =
        scores ? HD_PROM_job_validation_score : HD_PROM_job_validation_loss;

    for (size_t i = 0; i < s->validation_count; i++) {
        const struct hd_prom_pair pair = {scores ? "name" : "set", s->validations[i].set};

        if (hd_job_val_report_is_score(pair.value) == scores && !isnan(s->validations[i].loss))
            hd_prom_add_labels(out, family, s->label, &pair, 1, s->validations[i].loss);
    }
}

static void add_jobs(const struct controller *c, struct hd_text *out)
{
    const struct stats *s = &c->stats;
    const int64_t now_ms = controller_now().wall_ms;
    const size_t most = s->count < METRICS_JOBS_MAX ? s->count : METRICS_JOBS_MAX;
    struct metrics_row *rows = calloc(most + 1, sizeof *rows);
    size_t count = 0;

    if (!rows) {
        out->failed = true;
        return;
    }
    for (size_t i = 0; i < s->count && count < most; i++) {
        rows[count] = (struct metrics_row){&s->jobs[i], hd_core_job(c->core, s->jobs[i].job)};
        count += rows[count].record != NULL;
    }
    hd_prom_add_one(out, HD_PROM_job_series_left_out, (double)(s->count - count));
    add_info(rows, count, out);
    for (int f = HD_PROM_job_info + 1; f <= HD_PROM_job_goodput_ratio; f++) {
        hd_prom_begin(out, (enum hd_prom_family)f);
        for (size_t i = 0; i < count; i++) {
            const double value = value_of((enum hd_prom_family)f, &rows[i], now_ms);

            if (f == HD_PROM_job_validation_loss || f == HD_PROM_job_validation_score)
                add_validations(rows[i].seen, f == HD_PROM_job_validation_score, out);
            if (!isnan(value) || keeps_nan((enum hd_prom_family)f, &rows[i]))
                hd_prom_add(out, (enum hd_prom_family)f, rows[i].seen->label, value);
        }
    }
    free(rows);
}

/* ---- queues and nodes -------------------------------------------------------------------------*/

static double of_queue(const struct hd_queue_view *v, enum hd_prom_family f)
{
    switch (f) {
    case HD_PROM_queue_devices_held:
        return (double)v->devices_held;
    case HD_PROM_queue_devices_limit:
        return (double)v->record->devices_max;
    case HD_PROM_queue_jobs_waiting:
        return (double)v->jobs_waiting;
    default:
        return v->record->closed;
    }
}

static void add_queues(const struct controller *c, struct hd_text *out)
{
    const size_t count = hd_core_queue_count(c->core);
    struct hd_queue_view v;

    for (int f = HD_PROM_queue_devices_held; f <= HD_PROM_queue_closed; f++) {
        hd_prom_begin(out, (enum hd_prom_family)f);
        for (size_t i = 0; i < count; i++) {
            hd_core_queue_at(c->core, i, &v);
            if (f != HD_PROM_queue_devices_limit || v.record->devices_max)
                hd_prom_add_label(out, (enum hd_prom_family)f, "queue", v.record->name,
                                  of_queue(&v, (enum hd_prom_family)f));
        }
    }
}

static bool is_up(const struct hd_node_view *v)
{
    return !v->is_away && v->record->state != HD_NODE_STATE_UNREACHABLE &&
           v->record->state != HD_NODE_STATE_LOST;
}

static void add_devices_of(const struct hd_node_view *v, struct hd_text *out)
{
    static const char *const uses[] = {"held", "free", "broken"};
    size_t counts[3] = {0};

    for (int32_t d = 0; d < v->record->device_count; d++) {
        const char *problem = v->record->devices[d].problem;

        counts[v->holds[d].job ? 0 : problem && *problem ? 2 : 1]++;
    }
    for (int u = 0; u < 3; u++) {
        const struct hd_prom_pair pairs[] = {{"node", v->record->name}, {"use", uses[u]}};

        hd_prom_add_labels(out, HD_PROM_node_devices, "", pairs, 2, (double)counts[u]);
    }
}

static void add_node_metrics(const struct controller *c, struct hd_text *out)
{
    const size_t count = hd_core_node_count(c->core);
    size_t states[HD_NODE_STATE_DRAINED + 1] = {0};
    struct hd_node_view v;

    hd_prom_begin(out, HD_PROM_node_up);
    for (size_t i = 0; i < count; i++) {
        hd_core_node_at(c->core, i, &v);
        if (hd_node_view_state(&v) <= HD_NODE_STATE_DRAINED)
            states[hd_node_view_state(&v)]++;
        hd_prom_add_label(out, HD_PROM_node_up, "node", v.record->name, is_up(&v));
    }
    hd_prom_begin(out, HD_PROM_nodes);
    for (int s = HD_NODE_STATE_READY; s <= HD_NODE_STATE_DRAINED; s++)
        hd_prom_add_label(out, HD_PROM_nodes, "state", hd_node_state_name(s), (double)states[s]);
    hd_prom_begin(out, HD_PROM_node_seen_timestamp_seconds);
    for (size_t i = 0; i < count; i++) {
        hd_core_node_at(c->core, i, &v);
        if (v.record->seen_ms)
            hd_prom_add_label(out, HD_PROM_node_seen_timestamp_seconds, "node", v.record->name,
                              seconds(v.record->seen_ms));
    }
    hd_prom_begin(out, HD_PROM_node_devices);
    for (size_t i = 0; i < count; i++) {
        hd_core_node_at(c->core, i, &v);
        add_devices_of(&v, out);
    }
}

/* ---- the controller itself --------------------------------------------------------------------*/

static void add_file(const struct controller *c, enum hd_prom_family family, const char *name,
                     struct hd_text *out)
{
    char path[HD_CTL_PATH_BYTES_MAX + 16];
    struct stat info;

    (void)snprintf(path, sizeof path, "%s/%s", c->state_dir, name);
    if (stat(path, &info) == 0)
        hd_prom_add_one(out, family, (double)info.st_size);
}

static void add_store(const struct controller *c, struct hd_text *out)
{
    struct statvfs disk;

    hd_prom_add_histogram(out, HD_PROM_commit_duration_seconds, &c->stats.commits);
    hd_prom_add_one(out, HD_PROM_store_queued, (double)hd_store_queued(c->store));
    hd_prom_add_one(out, HD_PROM_store_writable, hd_store_trouble(c->store) == NULL);
    hd_prom_add_one(out, HD_PROM_store_reserve_bytes, (double)hd_store_reserve_left(c->store));
    add_file(c, HD_PROM_store_database_bytes, "state.db", out);
    add_file(c, HD_PROM_store_wal_bytes, "state.db-wal", out);
    if (statvfs(c->state_dir, &disk) == 0) {
        hd_prom_add_one(out, HD_PROM_state_free_bytes,
                        (double)disk.f_bavail * (double)disk.f_frsize);
        hd_prom_add_one(out, HD_PROM_state_size_bytes,
                        (double)disk.f_blocks * (double)disk.f_frsize);
    }
    hd_prom_add_histogram(out, HD_PROM_loop_delay_seconds, &c->stats.delays);
    hd_prom_add_one(out, HD_PROM_rpc_calls, (double)hd_rpc_server_calls(c->server));
    hd_prom_add_one(out, HD_PROM_layout_searches, (double)planner_count(c));
}

void metrics_add(struct controller *c, struct hd_http *http, struct hd_text *out)
{
    struct hd_http_stats stats;

    hd_prom_add_process(out, "heddle-controller", c->options.build);
    if (http) {
        hd_http_get_stats(http, &stats);
        hd_prom_add_listener(out, stats.answered, stats.connections);
    }
    add_states(c, out);
    add_totals(&c->stats, out);
    add_jobs(c, out);
    add_queues(c, out);
    add_node_metrics(c, out);
    add_store(c, out);
}
