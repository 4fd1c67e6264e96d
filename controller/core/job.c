/* job: jobs and attempts: submit, cancel, start, end, retry. State charts: core.c. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "controller/core/core_internal.h"

/* ---- memory -----------------------------------------------------------------------------------*/

void core_set_job_state(struct hd_core *core, struct core_job *job, enum hd_job_state state)
{
    if (job->rec.state == HD_JOB_STATE_QUEUED) {
        core_waiting_remove(core, job);
        job->account->queue->waiting--;
    }
    job->rec.state = state;
    if (state == HD_JOB_STATE_QUEUED) {
        job->account->queue->waiting++;
        core_waiting_add(core, job);
        return;
    }
    core_search_end(core, job);
    core_claim_end(core, job);
    core_promise_end(core, job);
}

/* A queue that an older state of the controller had and this one lacks: the job waits in the
 * default one. */
static struct core_account *account_for(struct hd_core *core, const struct hd_job_record *record)
{
    struct core_queue *queue = core_find_queue(core, record->queue);

    return core_account_of(core, queue ? queue : core_find_queue(core, NULL), record->owner);
}

struct core_job *core_job_new(struct hd_core *core, const struct hd_job_record *record,
                              const struct hd_job_needs *needs)
{
    struct core_job *job = calloc(1, sizeof *job);
    void *spec = malloc(record->spec_bytes + 1);
    struct core_account *account = account_for(core, record);

    if (job)
        job->rec = *record;
    if (!job || !spec || !account || !core_table_add(&core->jobs, job)) {
        free(job);
        free(spec);
        core->no_memory = true;
        return NULL;
    }
    if (record->spec_bytes)
        memcpy(spec, record->spec, record->spec_bytes);
    job->rec.spec = spec;
    job->rec.attempt_count = 0; /* core_attempt_new counts up */
    job->rec.request_id = job->rec.owner = job->rec.name = job->rec.reason = NULL;
    job->rec.queue = NULL;
    job->account = account;
    core_set(core, &job->rec.queue, account->queue->rec.name);
    core_set(core, &job->rec.request_id, record->request_id);
    core_set(core, &job->rec.owner, record->owner);
    core_set(core, &job->rec.name, record->name);
    core_set(core, &job->rec.reason, record->reason);
    job->needs = *needs;
    job->needs.name = job->rec.name;
    job->needs.queue = job->rec.queue;
    job->ended = record->state > HD_JOB_STATE_STOPPING;
    core->live_count += !job->ended;
    if (record->state == HD_JOB_STATE_QUEUED) {
        account->queue->waiting++;
        core_waiting_add(core, job);
    }
    return job;
}

static void free_attempt(struct core_attempt *attempt)
{
    for (int32_t i = 0; i < attempt->rec.plan.rank_count; i++) {
        core_unset(&attempt->rec.plan.ranks[i].node_uuid);
        core_unset(&attempt->rec.plan.ranks[i].node_name);
    }
    free(attempt->rec.plan.ranks);
    core_unset(&attempt->rec.base_path);
    core_unset(&attempt->rec.base_hash);
    core_unset(&attempt->rec.end.node);
    core_unset(&attempt->rec.end.message);
    for (size_t i = 0; i < attempt->share_count; i++)
        core_unset(&attempt->shares[i].problem);
    free(attempt->shares);
    free(attempt->seq);
    free(attempt);
}

void core_job_free(struct core_job *job)
{
    for (int32_t i = 0; i < job->rec.attempt_count; i++)
        free_attempt(job->attempts[i]);
    for (size_t i = 0; i < job->checkpoint_count; i++) {
        core_unset(&job->checkpoints[i].path);
        core_unset(&job->checkpoints[i].hash);
        core_unset(&job->checkpoints[i].node_uuid);
    }
    free(job->attempts);
    free(job->checkpoints);
    free((void *)(uintptr_t)job->rec.spec);
    core_unset(&job->rec.request_id);
    core_unset(&job->rec.owner);
    core_unset(&job->rec.name);
    core_unset(&job->rec.reason);
    core_unset(&job->rec.queue);
    core_unset(&job->misfit);
    free(job);
}

void core_job_forget(struct hd_core *core, struct core_job *job)
{
    core_table_remove(&core->jobs, job);
    core_job_free(job);
}

/* ---- attempts in memory -----------------------------------------------------------------------*/

struct core_share *core_find_share(const struct core_attempt *attempt, const struct core_node *node)
{
    for (size_t i = 0; i < attempt->share_count; i++) {
        if (attempt->shares[i].node == node)
            return &attempt->shares[i];
    }
    return NULL;
}

static bool copy_ranks(struct hd_core *core, struct core_attempt *attempt,
                       const struct hd_plan_record *plan)
{
    const size_t count = (size_t)plan->rank_count;

    attempt->rec.plan.rank_count = 0;
    attempt->rec.plan.ranks = calloc(count + 1, sizeof *plan->ranks);
    attempt->shares = calloc(count + 1, sizeof *attempt->shares);
    attempt->seq = calloc(count + 1, sizeof *attempt->seq);
    if (!attempt->rec.plan.ranks || !attempt->shares || !attempt->seq)
        return false;
    attempt->rec.plan.rank_count = plan->rank_count;
    for (size_t i = 0; i < count; i++) {
        struct core_node *node = core_find_node(core, plan->ranks[i].node_uuid);

        attempt->rec.plan.ranks[i].device = plan->ranks[i].device;
        core_set(core, &attempt->rec.plan.ranks[i].node_uuid, plan->ranks[i].node_uuid);
        core_set(core, &attempt->rec.plan.ranks[i].node_name, plan->ranks[i].node_name);
        if (node && !core_find_share(attempt, node))
            attempt->shares[attempt->share_count++].node = node;
    }
    return true;
}

struct core_attempt *core_attempt_new(struct hd_core *core, struct core_job *job,
                                      const struct hd_attempt_record *record)
{
    struct core_attempt *attempt = calloc(1, sizeof *attempt);

    if (!attempt || !core_reserve(core, &job->attempts, (size_t)job->rec.attempt_count,
                                  &job->attempt_size, sizeof(struct core_attempt *))) {
        free(attempt);
        core->no_memory = true;
        return NULL;
    }
    attempt->rec = *record;
    attempt->rec.base_path = attempt->rec.base_hash = NULL;
    attempt->rec.end.node = attempt->rec.end.message = NULL;
    if (!copy_ranks(core, attempt, &record->plan))
        core->no_memory = true;
    core_set(core, &attempt->rec.base_path, record->base_path);
    core_set(core, &attempt->rec.base_hash, record->base_hash);
    core_set(core, &attempt->rec.end.node, record->end.node);
    core_set(core, &attempt->rec.end.message, record->end.message);
    attempt->state_since_mono_ms = core->now.mono_ms;
    attempt->ends_mono_ms = INT64_MAX;
    job->attempts[job->rec.attempt_count++] = attempt;
    if (record->state != HD_ATTEMPT_STATE_ENDED)
        core_jobs_add(core, &core->active, job);
    return attempt;
}

/* ---- submit and cancel ------------------------------------------------------------------------*/

bool core_reaches(const struct hd_core *core, size_t percent)
{
    return core->live_count * 100 >= core->config.jobs_live_max * percent;
}

void hd_core_warn(const struct hd_core *core, struct hd_text *ret_warning)
{
    if (core_reaches(core, HD_CTL_JOBS_WARN_PERCENT))
        hd_text_add(ret_warning,
                    "%zu jobs are queued or running; at %zu new ones are refused: let some end, or "
                    "cancel some",
                    core->live_count, core->config.jobs_live_max);
}

/* Once on the way up; the queue must shrink clearly before it is told again. */
static void tell_limit(struct hd_core *core)
{
    struct hd_text text = {0};

    if (core->limit_told || !core_reaches(core, HD_CTL_JOBS_WARN_PERCENT))
        return;
    core->limit_told = true;
    hd_core_warn(core, &text);
    core->no_memory |= text.failed;
    core_event(core, NULL, "jobs_near_limit", 0, -1, "", "%s", text.failed ? "" : text.data);
    hd_text_free(&text);
}

bool core_request_put(struct hd_core *core, const char *id, uint64_t job, uint64_t hash)
{
    if (!core_reserve(core, &core->requests, core->request_count, &core->request_size,
                      sizeof *core->requests) ||
        !core_map_put(&core->by_request, id, core->request_count))
        return false;
    core->requests[core->request_count++] = (struct core_request){.job = job, .hash = hash};
    return true;
}

const struct core_request *core_request_find(const struct hd_core *core, const char *id)
{
    uint64_t index;

    return core_map_get(&core->by_request, id, &index) ? &core->requests[index] : NULL;
}

static uint64_t hash_request(const struct hd_core_event *event)
{
    struct hd_hash hash;
    uint64_t value;

    hd_hash_begin(&hash);
    hd_hash_add(&hash, event->submit.spec, event->submit.spec_bytes);
    hd_hash_add(&hash, event->submit.owner, strlen(event->submit.owner));
    value = hd_hash_value(&hash);
    return value ? value : 1;
}

/* A client that got no answer asks again, for the same. Anything else under this id is a mistake:
 * the caller would take another job for its own. */
static enum hd_status repeat(struct hd_core *core, const struct core_request *request,
                             uint64_t hash)
{
    if (request->hash && request->hash != hash)
        return hd_err(HD_EXISTS,
                      "this request id was used for job %" PRIu64 ", with another job file, other "
                      "options or by another user; use a new one (see that job: heddle show "
                      "%" PRIu64 ")",
                      request->job, request->job);
    core->out->job = request->job;
    core->out->repeated = true;
    return HD_OK;
}

enum hd_status core_submit(struct hd_core *core, const struct hd_core_event *event)
{
    const struct hd_job_needs *needs = &event->submit.needs;
    const char *request = event->submit.request_id;
    struct hd_job_record record = {.request_id = request,
                                   .owner = event->submit.owner,
                                   .request_hash = hash_request(event),
                                   .name = needs->name,
                                   .state = HD_JOB_STATE_QUEUED,
                                   .steps = needs->steps,
                                   .devices = needs->devices_max,
                                   .submitted_ms = core->now.wall_ms,
                                   .queue = needs->queue,
                                   .priority = needs->priority,
                                   .spec = event->submit.spec,
                                   .spec_bytes = event->submit.spec_bytes};
    const struct core_request *before;
    struct core_job *job;
    enum hd_status st;

    if (!request || !*request || strlen(request) > HD_CTL_NAME_BYTES_MAX)
        return hd_err(HD_INVALID, "request_id: must have 1 to %d bytes", HD_CTL_NAME_BYTES_MAX);
    before = core_request_find(core, request);
    if (before)
        return repeat(core, before, record.request_hash);
    if (record.spec_bytes > HD_CTL_SPEC_BYTES_MAX)
        return hd_err(HD_LIMIT, "the job's spec has %zu bytes, the limit is %d", record.spec_bytes,
                      HD_CTL_SPEC_BYTES_MAX);
    if (core->live_count >= core->config.jobs_live_max)
        return hd_err(HD_LIMIT,
                      "%zu jobs are queued or running already, which is the limit; wait until some "
                      "have ended, or cancel some",
                      core->live_count);
    st = core_check_needs(needs);
    if (!st)
        st = core_check_quota(core, needs);
    if (!st)
        st = core_check_after(core, needs);
    if (st)
        return st;

    record.job = ++core->last_job;
    job = core_job_new(core, &record, needs);
    if (!job || !core_request_put(core, request, record.job, record.request_hash)) {
        core->no_memory = true;
        return HD_OK; /* hd_core_step returns HD_NO_MEMORY */
    }
    job->is_new = true;
    core_outcome_set(core, record.job, HD_JOB_STATE_QUEUED);
    core_dirty_job(core, job);
    core_event(core, job, "submitted", 0, -1, "", "submitted by %s", event->submit.owner);
    core->out->job = record.job;
    core->newcomer = job;
    tell_limit(core);
    return HD_OK;
}

static void stop_shares(struct hd_core *core, struct core_attempt *attempt)
{
    for (size_t i = 0; i < attempt->share_count; i++) {
        struct core_share *share = &attempt->shares[i];

        core_dirty_desired(core, share->node);
        if (!share->stop_generation)
            share->stop_generation = share->node->generation;
    }
}

void core_attempt_stop(struct hd_core *core, struct core_job *job, struct core_attempt *attempt)
{
    stop_shares(core, attempt);
    if (attempt->rec.state == HD_ATTEMPT_STATE_STOPPING)
        return;
    attempt->rec.state = HD_ATTEMPT_STATE_STOPPING;
    attempt->state_since_mono_ms = core->now.mono_ms;
    core_dirty_attempt(core, job, attempt);
}

void core_attempt_stop_for(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                           enum hd_end_cause cause, uint64_t for_job)
{
    if (attempt->rec.state == HD_ATTEMPT_STATE_STOPPING || job->rec.cancel)
        return;
    attempt->rec.stop_cause = cause;
    attempt->rec.stop_job = for_job;
    core_attempt_stop(core, job, attempt);
}

void core_finish_job(struct hd_core *core, struct core_job *job, enum hd_job_state state,
                     const char *reason)
{
    core_set_job_state(core, job, state);
    core_outcome_set(core, job->rec.job, state);
    core->just_ended = true;
    job->rec.ended_ms = core->now.wall_ms;
    job->ended = true;
    core->live_count--;
    core->limit_told &= core_reaches(core, HD_CTL_JOBS_CALM_PERCENT);
    core_set(core, &job->rec.reason, reason);
    core_dirty_job(core, job);
    core_event(core, job, hd_job_state_name(state), job->rec.attempt_count, -1, "", "job %s%s%s",
               hd_job_state_name(state), *reason ? ": " : "", reason);
    core_checkpoint_prune(core, job);
    core->schedule_due = true;
}

enum hd_status core_cancel(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_job *job = core_find_job(core, event->cancel.job);
    struct core_attempt *attempt;

    if (!job || job->ended)
        return hd_err(HD_NOT_FOUND, "there is no job %" PRIu64 " that has not ended",
                      event->cancel.job);
    core->out->job = job->rec.job;
    if (job->rec.cancel && (job->rec.cancel_now || !event->cancel.now))
        return HD_OK; /* the same request came before */
    job->rec.cancel = true;
    job->rec.cancel_now |= event->cancel.now;
    core_dirty_job(core, job);
    core_event(core, job, "cancel", job->rec.attempt_count, -1, "", "cancel requested by %s%s",
               event->cancel.by, event->cancel.now ? ", without a checkpoint" : "");
    attempt = core_active(job);
    if (!attempt) {
        core_finish_job(core, job, HD_JOB_STATE_CANCELLED, "");
        return HD_OK;
    }
    core_set_job_state(core, job, HD_JOB_STATE_STOPPING);
    core_attempt_stop(core, job, attempt);
    return HD_OK;
}

enum hd_wanted core_wanted(const struct core_job *job, const struct core_attempt *attempt)
{
    if (attempt->kill || job->rec.cancel_now)
        return HD_WANTED_STOPPED;
    return job->rec.cancel || attempt->rec.stop_cause ? HD_WANTED_STOPPING : HD_WANTED_RUNNING;
}

/* ---- start ------------------------------------------------------------------------------------*/

/* Precision auto: bf16 if every held device computes it natively, else fp32. Threads auto: the
 * smallest number among the held devices. hold_devices has marked them with the job's number. */
static void decide_precision_and_threads(const struct core_placement *place, uint64_t job,
                                         struct hd_plan_record *plan)
{
    int32_t threads_min = INT32_MAX;
    bool bf16 = true;

    for (size_t m = 0; m < place->member_count; m++) {
        const struct core_node *node = place->members[m].node;

        for (int32_t d = 0; d < node->rec.device_count; d++) {
            const struct hd_device_record *device = &node->rec.devices[d];

            if (node->holds[d].job != job)
                continue;
            bf16 = bf16 && (device->precisions & (1u << HD_PRECISION_BF16));
            threads_min = device->threads < threads_min ? device->threads : threads_min;
        }
    }
    hd_plan_decide_device(plan->layout.device, bf16, threads_min, &plan->layout);
}

static void announce_start(struct hd_core *core, struct core_job *job,
                           const struct hd_attempt_record *record,
                           const struct core_placement *place)
{
    const struct hd_layout_sizes *plan = &record->plan.layout;
    char from[64] = "from scratch", layout[96], experts[24] = "", zero[24] = "";
    struct hd_text nodes = {0};

    for (size_t m = 0; m < place->member_count; m++)
        hd_text_add(&nodes, "%s%s", m ? ", " : "", place->members[m].node->rec.name);
    core->no_memory |= nodes.failed;
    if (record->base_attempt)
        (void)snprintf(from, sizeof from, "from step %lld of attempt %d",
                       (long long)record->base_step, record->base_attempt);
    if (plan->pp > 1)
        (void)snprintf(layout, sizeof layout, "tp %d x cp %d x dp %d x pp %d (%s)", (int)plan->tp,
                       (int)plan->cp, (int)plan->dp, (int)plan->pp, plan->schedule);
    else if (plan->tp * plan->cp > 1)
        (void)snprintf(layout, sizeof layout, "tp %d x cp %d x dp %d", (int)plan->tp, (int)plan->cp,
                       (int)plan->dp);
    else
        (void)snprintf(layout, sizeof layout, "dp %d", (int)plan->dp);
    if (plan->ep > 1)
        (void)snprintf(experts, sizeof experts, ", ep %d", (int)plan->ep);
    if (plan->zero > 0)
        (void)snprintf(zero, sizeof zero, ", zero %d", (int)plan->zero);
    core_event(core, job, "starting", record->attempt, -1, record->plan.ranks[0].node_name,
               "attempt %d on %s: %d %s device%s, %s%s%s, micro-batch %d, %s", record->attempt,
               nodes.failed ? "" : nodes.data, record->plan.rank_count, plan->device,
               record->plan.rank_count == 1 ? "" : "s", layout, experts, zero,
               (int)plan->micro_batch, from);
    hd_text_free(&nodes);
}

/* Marks the devices of the ranks as held, and sets the record's ranks. devices: of each rank, as
 * positions on its node. */
static void hold_devices(struct hd_core *core, struct hd_attempt_record *record,
                         const struct core_placement *place, const int32_t *devices, uint64_t start)
{
    for (size_t m = 0; m < place->member_count; m++) {
        struct core_node *node = place->members[m].node;

        for (int32_t i = 0; i < place->members[m].count; i++) {
            const int32_t d = devices[record->plan.rank_count];

            node->holds[d] = (struct hd_device_hold){
                .job = record->job, .attempt = record->attempt, .start = start};
            record->plan.ranks[record->plan.rank_count++] =
                (struct hd_place){.node_uuid = node->rec.uuid,
                                  .node_name = node->rec.name,
                                  .device = node->rec.devices[d].index};
        }
        core_node_changed(core, node);
    }
}

void core_attempt_start(struct hd_core *core, struct core_job *job,
                        const struct core_placement *place, const char *why)
{
    const struct hd_checkpoint_record *base = core_checkpoint_newest(job);
    struct hd_attempt_record record = {.job = job->rec.job,
                                       .attempt = job->rec.attempt_count + 1,
                                       .state = HD_ATTEMPT_STATE_STARTING,
                                       .plan = place->plan,
                                       .end = {.rank = -1},
                                       .created_ms = core->now.wall_ms};
    int32_t *devices = calloc((size_t)place->device_count + 1, sizeof *devices);
    struct core_attempt *attempt;

    record.plan.ranks = calloc((size_t)place->device_count + 1, sizeof *record.plan.ranks);
    record.plan.rank_count = 0;
    if (!devices || !record.plan.ranks || !core_choose_devices(core, &job->needs, place, devices)) {
        core->no_memory = true;
        free(devices);
        free(record.plan.ranks);
        return;
    }
    hold_devices(core, &record, place, devices, ++core->starts);
    free(devices);
    decide_precision_and_threads(place, record.job, &record.plan);
    if (base) {
        record.base_attempt = base->attempt;
        record.base_step = base->step;
        record.base_path = base->path;
        record.base_hash = base->hash;
    }
    attempt = core_attempt_new(core, job, &record);
    if (attempt) {
        attempt->start_number = core->starts;
        core->ends_due = true;
        if (job->rec.priority < core->lowest_priority)
            core->lowest_priority = job->rec.priority;
        core_quota_take(job, record.plan.rank_count);
        core_set_job_state(core, job, HD_JOB_STATE_RUNNING);
        attempt->ends_mono_ms = core_predict_end(core, job, attempt);
        job->rec.devices = record.plan.rank_count;
        if (!job->rec.started_ms)
            job->rec.started_ms = core->now.wall_ms;
        core_dirty_attempt(core, job, attempt);
        for (size_t m = 0; m < place->member_count; m++)
            core_dirty_desired(core, place->members[m].node);
        announce_start(core, job, &record, place);
        if (*why)
            core_event(core, job, "layout", record.attempt, -1, "", "%s", why);
    }
    free(record.plan.ranks);
}

/* ---- end --------------------------------------------------------------------------------------*/

static void describe_rank(const struct hd_end_record *end, struct hd_text *text)
{
    if (end->rank >= 0)
        hd_text_add(text, ": rank %d", end->rank);
    if (end->node && *end->node)
        hd_text_add(text, "%s %s", end->rank >= 0 ? " on" : ": node", end->node);
    if (end->signal)
        hd_text_add(text, ": killed by signal %d", end->signal);
    else if (end->exit_code)
        hd_text_add(text, ": exit code %d", end->exit_code);
}

/* "rank_exit: rank 1 on n1: killed by signal 9: ..." */
static void describe_end(const struct hd_end_record *end, char *ret_text, size_t size)
{
    struct hd_text text = {0};
    const char *all;
    hd_text_add(&text, "%s", hd_end_cause_name((int)end->cause));
    if (end->cause != HD_END_CAUSE_DIVERGED) /* that is no single rank's fault */
        describe_rank(end, &text);
    if (end->message && *end->message)
        hd_text_add(&text, ": %s", end->message);
    all = text.data && !text.failed ? text.data : "";
    (void)snprintf(ret_text, size, "%.*s", (int)hd_record_fit(all, size - 1), all);
    hd_text_free(&text);
}

void core_attempt_set_end(struct hd_core *core, struct core_attempt *attempt,
                          const struct hd_end_record *end)
{
    const char *node = attempt->rec.end.node, *message = attempt->rec.end.message;

    core_set(core, &node, end->node);
    core_set(core, &message, end->message);
    attempt->rec.end = *end;
    attempt->rec.end.node = node;
    attempt->rec.end.message = message;
}

bool core_is_stop(enum hd_end_cause cause)
{
    return cause == HD_END_CAUSE_USER || cause == HD_END_CAUSE_PREEMPTED ||
           cause == HD_END_CAUSE_TIME_LIMIT || cause == HD_END_CAUSE_RESIZED;
}

void core_attempt_fail(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                       const struct hd_end_record *end)
{
    char text[HD_CTL_MESSAGE_BYTES_MAX];
    const bool as_told = end->cause == HD_END_CAUSE_USER;
    struct hd_end_record told = *end;

    if (as_told && attempt->rec.stop_cause && !job->rec.cancel) {
        told.cause = attempt->rec.stop_cause; /* a daemon knows only that it was told to stop */
        end = &told;
    }
    /* later failures are consequences of the first one; but an echo is replaced by its cause */
    if (!attempt->failed || (attempt->rec.end.echo && !end->echo && !as_told)) {
        attempt->failed = true;
        core_attempt_set_end(core, attempt, end);
        core_dirty_attempt(core, job, attempt);
        describe_end(end, text, sizeof text);
        core_event(core, job, as_told ? "attempt_stopped" : "attempt_failed", attempt->rec.attempt,
                   end->rank, end->node, "attempt %d: %s", attempt->rec.attempt, text);
    }
    if (!as_told) /* cancelled: other ranks may still write a checkpoint */
        attempt->kill = true;
    core->schedule_due |= attempt->rec.state != HD_ATTEMPT_STATE_STOPPING; /* it ends soon now */
    core_attempt_stop(core, job, attempt);
}

/* A disk that takes no writes (STORAGE) is not the job's fault: it is tried until the disk does. */
bool core_is_failure(enum hd_end_cause cause)
{
    return cause == HD_END_CAUSE_RANK_EXIT || cause == HD_END_CAUSE_HANG ||
           cause == HD_END_CAUSE_LAUNCH_FAILED || cause == HD_END_CAUSE_INCOMPLETE;
}

/* An attempt that found its base damaged is no failure if there is an undamaged checkpoint. Each
 * such attempt marks one checkpoint as damaged, so this cannot go on forever. */
static bool is_failure(const struct core_job *job, const struct core_attempt *attempt)
{
    return core_is_failure(attempt->rec.end.cause) && !core_checkpoint_fallback(job, attempt);
}

/* Failed attempts after the last one that left a checkpoint. */
static int32_t count_failures(const struct core_job *job)
{
    int32_t count = 0;

    for (int32_t k = job->rec.attempt_count;
         k > job->rec.resumed_attempt && !core_attempt_progressed(job, k); k--)
        count += is_failure(job, core_find_attempt(job, k));
    return count;
}

/* Attempts after the last one that left a checkpoint, whatever ended them; sets the retry delay. */
static int32_t count_attempts_without_progress(const struct core_job *job)
{
    int32_t count = 0;

    for (int32_t k = job->rec.attempt_count;
         k > job->rec.resumed_attempt && !core_attempt_progressed(job, k); k--)
        count++;
    return count;
}

static int64_t retry_delay_ms(const struct hd_core *core, const struct core_job *job)
{
    int64_t delay_ms = core->config.retry_delay_ms;
    int32_t attempts = count_attempts_without_progress(job);

    if (attempts < 2)
        return 0;
    while (attempts-- > 2 && delay_ms < core->config.retry_delay_max_ms)
        delay_ms *= 2;
    return delay_ms < core->config.retry_delay_max_ms ? delay_ms : core->config.retry_delay_max_ms;
}

static void announce_fallback(struct hd_core *core, struct core_job *job,
                              const struct core_attempt *attempt)
{
    const struct hd_checkpoint_record *fallback = core_checkpoint_fallback(job, attempt);

    if (fallback)
        core_event(core, job, "checkpoint_damaged", attempt->rec.attempt, attempt->rec.end.rank,
                   attempt->rec.end.node,
                   "the checkpoint of step %lld of attempt %d is damaged; going back to that of "
                   "step %lld of attempt %d",
                   (long long)attempt->rec.base_step, attempt->rec.base_attempt,
                   (long long)fallback->step, fallback->attempt);
}

/* A retry would repeat the same steps. The user needs another learning rate, and a checkpoint to
 * start from. */
static void fail_diverged(struct hd_core *core, struct core_job *job,
                          const struct core_attempt *attempt, const char *why)
{
    const struct hd_checkpoint_record *sound;
    char text[HD_CTL_MESSAGE_BYTES_MAX + 160];

    if (!attempt->had_finite_step)
        core_checkpoint_disprove_base(core, job, attempt);
    sound = core_checkpoint_proven(job);
    (void)snprintf(text, sizeof text, "%s; no checkpoint is from before that", why);
    if (sound)
        (void)snprintf(text, sizeof text,
                       "%s; the newest checkpoint from before that is step %lld of attempt %d", why,
                       (long long)sound->step, sound->attempt);
    core_finish_job(core, job, HD_JOB_STATE_FAILED, text);
}

/* The last step of a run that succeeds had a finite loss. */
static void succeed(struct hd_core *core, struct core_job *job)
{
    core_checkpoint_prove(core, job, job->rec.attempt_count, job->rec.steps);
    core_finish_job(core, job, HD_JOB_STATE_SUCCEEDED, "");
}

int64_t core_job_ran_ms(const struct hd_core *core, const struct core_job *job)
{
    int64_t ran_ms = 0;

    for (int32_t k = job->rec.attempt_count; k > job->rec.resumed_attempt; k--) {
        const struct hd_attempt_record *attempt = &core_find_attempt(job, k)->rec;

        if (attempt->running_ms)
            ran_ms +=
                (attempt->ended_ms ? attempt->ended_ms : core->now.wall_ms) - attempt->running_ms;
    }
    return ran_ms;
}

static void fail_out_of_time(struct hd_core *core, struct core_job *job)
{
    const struct hd_checkpoint_record *newest = core_checkpoint_newest(job);
    char text[256], limit[HD_CLOCK_TEXT_MAX];

    hd_clock_format_span(job->needs.time_limit_ms, limit);
    (void)snprintf(text, sizeof text,
                   "time_limit: it has run for %s; its newest checkpoint is of step %lld of %lld; "
                   "heddle resume %" PRIu64 " gives it the same time once more",
                   limit, newest ? (long long)newest->step : 0, (long long)job->rec.steps,
                   job->rec.job);
    core_finish_job(core, job, HD_JOB_STATE_FAILED, text);
}

/* Ends or requeues a job whose newest attempt has just ended. */
static void end_or_requeue(struct hd_core *core, struct core_job *job,
                           const struct core_attempt *attempt)
{
    const struct hd_end_record *end = &attempt->rec.end;
    const int32_t failures = count_failures(job), max = job->needs.restart_max;
    char why[HD_CTL_MESSAGE_BYTES_MAX], text[HD_CTL_MESSAGE_BYTES_MAX + 128];

    describe_end(end, why, sizeof why);
    if (end->cause == HD_END_CAUSE_COMPLETED) {
        succeed(core, job);
    } else if (job->rec.cancel) {
        core_finish_job(core, job, HD_JOB_STATE_CANCELLED, "");
    } else if (end->cause == HD_END_CAUSE_TIME_LIMIT ||
               (job->needs.time_limit_ms &&
                core_job_ran_ms(core, job) >= job->needs.time_limit_ms)) {
        fail_out_of_time(core, job);
    } else if (end->bad_input) {
        core_finish_job(core, job, HD_JOB_STATE_FAILED, why);
    } else if (end->cause == HD_END_CAUSE_DIVERGED) {
        fail_diverged(core, job, attempt, why);
    } else if (is_failure(job, attempt) && (max == 0 || failures > max)) {
        (void)snprintf(text, sizeof text,
                       "%s (%d failures in a row without a new checkpoint, restart.max is %d)", why,
                       failures, max);
        core_finish_job(core, job, HD_JOB_STATE_FAILED, text);
    } else if (job->rec.attempt_count >= HD_CTL_ATTEMPTS_MAX) {
        (void)snprintf(text, sizeof text, "%s (after %d attempts)", why, HD_CTL_ATTEMPTS_MAX);
        core_finish_job(core, job, HD_JOB_STATE_FAILED, text);
    } else {
        announce_fallback(core, job, attempt);
        job->rec.devices = job->needs.devices_max;
        job->not_before_mono_ms = core->now.mono_ms + retry_delay_ms(core, job);
        if (end->cause == HD_END_CAUSE_NODE_LOST)
            core_search_begin(core, job);
        core_set_job_state(core, job, HD_JOB_STATE_QUEUED);
        core_dirty_job(core, job);
    }
}

static void release_devices(struct hd_core *core, struct core_job *job,
                            const struct core_attempt *attempt)
{
    core_quota_take(job, -(int64_t)attempt->rec.plan.rank_count);
    for (size_t i = 0; i < attempt->share_count; i++) {
        struct core_node *node = attempt->shares[i].node;

        for (int32_t d = 0; d < node->rec.device_count; d++) {
            if (node->holds[d].job == attempt->rec.job)
                node->holds[d] = (struct hd_device_hold){0};
        }
        core_node_changed(core, node);
        core_dirty_desired(core, node); /* the attempt is not in the set any more */
        core_node_refresh(core, node);
    }
}

/* Of an attempt whose shares all say that they completed. A daemon's word is not enough: without
 * the checkpoint of the last step there is no result. Of the reports of steps the last one may be
 * lost with a supervisor that was killed. */
static void complete(struct hd_core *core, struct core_job *job, struct core_attempt *attempt)
{
    const long long steps = job->rec.steps;
    struct hd_end_record end = {.cause = HD_END_CAUSE_COMPLETED, .rank = -1};
    const bool had_all_before =
        attempt->rec.base_attempt && attempt->rec.base_step >= job->rec.steps;
    const bool has_all = had_all_before || core_checkpoint_is_final(job, attempt);
    char message[160] = "", text[HD_CTL_MESSAGE_BYTES_MAX];

    if (!has_all && attempt->last_step < job->rec.steps)
        (void)snprintf(message, sizeof message,
                       "its ranks ended as if the run were complete, but the last step that they "
                       "reported is %lld of %lld",
                       (long long)attempt->last_step, steps);
    else if (!has_all)
        (void)snprintf(message, sizeof message,
                       "its ranks ended as if the run were complete, but they reported no "
                       "checkpoint of step %lld, the last one",
                       steps);
    if (*message) {
        end.cause = HD_END_CAUSE_INCOMPLETE;
        end.node = attempt->rec.plan.ranks[0].node_name;
        end.message = message;
    }
    core_attempt_set_end(core, attempt, &end);
    if (*message) {
        describe_end(&end, text, sizeof text);
        core_event(core, job, "attempt_failed", attempt->rec.attempt, -1, end.node,
                   "attempt %d: %s", attempt->rec.attempt, text);
    }
}

static void attempt_end(struct hd_core *core, struct core_job *job, struct core_attempt *attempt)
{
    if (!attempt->failed)
        complete(core, job, attempt);
    attempt->rec.state = HD_ATTEMPT_STATE_ENDED;
    core_jobs_remove(&core->active, job);
    attempt->rec.ended_ms = core->now.wall_ms;
    core_dirty_attempt(core, job, attempt);
    release_devices(core, job, attempt);
    core_event(core, job, "ended", attempt->rec.attempt, -1, "", "attempt %d ended: %s",
               attempt->rec.attempt, hd_end_cause_name((int)attempt->rec.end.cause));
    end_or_requeue(core, job, attempt);
    core->schedule_due = true;
}

void core_share_end(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                    struct core_share *share)
{
    share->ended = true;
    for (size_t i = 0; i < attempt->share_count; i++) {
        if (!attempt->shares[i].ended)
            return;
    }
    attempt_end(core, job, attempt);
}

/* ---- timers -----------------------------------------------------------------------------------*/

static void fail_slow_start(struct hd_core *core, struct core_job *job,
                            struct core_attempt *attempt)
{
    struct hd_end_record end = {.cause = HD_END_CAUSE_LAUNCH_FAILED, .rank = -1};
    char message[256];

    for (size_t i = 0; i < attempt->share_count; i++) {
        if (!attempt->shares[i].running && !end.node)
            end.node = attempt->shares[i].node->rec.name;
    }
    (void)snprintf(message, sizeof message,
                   "its ranks were not all connected to each other after %lld s",
                   (long long)(core->config.start_timeout_ms / 1000));
    end.message = message;
    core_attempt_fail(core, job, attempt, &end);
}

static bool any_waits(const struct core_attempt *attempt)
{
    for (size_t i = 0; i < attempt->share_count; i++)
        if (!attempt->shares[i].ended && attempt->shares[i].waits)
            return true;
    return false;
}

static void stop_out_of_time(struct hd_core *core, struct core_job *job,
                             struct core_attempt *attempt)
{
    char limit[HD_CLOCK_TEXT_MAX];

    hd_clock_format_span(job->needs.time_limit_ms, limit);
    core_event(core, job, "time_limit", attempt->rec.attempt, -1, "",
               "the job has run for %s, its time_limit: attempt %d writes a checkpoint and ends",
               limit, attempt->rec.attempt);
    core_attempt_stop_for(core, job, attempt, HD_END_CAUSE_TIME_LIMIT, 0);
}

void core_attempt_timers(struct hd_core *core, struct core_job *job)
{
    struct core_attempt *attempt = core_active(job);
    int64_t spent_ms;

    core->out->looked++;
    if (attempt->rec.state == HD_ATTEMPT_STATE_STARTING && any_waits(attempt))
        attempt->state_since_mono_ms = core->now.mono_ms; /* this time does not count */
    spent_ms = core->now.mono_ms - attempt->state_since_mono_ms;
    if (attempt->rec.state == HD_ATTEMPT_STATE_STARTING &&
        spent_ms >= core->config.start_timeout_ms) {
        fail_slow_start(core, job, attempt);
    } else if (attempt->rec.state == HD_ATTEMPT_STATE_RUNNING && job->needs.time_limit_ms &&
               core_job_ran_ms(core, job) >= job->needs.time_limit_ms) {
        stop_out_of_time(core, job, attempt);
    } else if (attempt->rec.state == HD_ATTEMPT_STATE_STOPPING &&
               core_wanted(job, attempt) == HD_WANTED_STOPPING &&
               spent_ms >= core->config.stop_grace_ms) {
        attempt->kill = true;
        stop_shares(core, attempt);
        core_event(core, job, "killed", attempt->rec.attempt, -1, "",
                   "attempt %d did not stop within %lld s and is killed", attempt->rec.attempt,
                   (long long)(core->config.stop_grace_ms / 1000));
    }
}
