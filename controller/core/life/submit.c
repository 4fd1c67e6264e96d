/* submit: jobs that are submitted and cancelled. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"

enum { REQUEST_KEY_MAX = 2 * HD_CTL_NAME_BYTES_MAX + 2 };

void hd_core_warn(const struct hd_core *core, struct hd_text *ret_warning)
{
    if (core_reaches(core, HD_CTL_JOBS_WARN_PERCENT))
        core_add_jobs_limit(core, ret_warning);
}

/* Adds an event when the number of live jobs comes near its limit; again only after it has fallen
 * below HD_CTL_JOBS_CALM_PERCENT. */
static void report_limit(struct hd_core *core)
{
    if (core->limit_reported || !core_reaches(core, HD_CTL_JOBS_WARN_PERCENT))
        return;
    core->limit_reported = true;
    core_event_jobs_near_limit(core);
}

/* Writes the key of a request id in core->by_request. Ids are per owner: an equal id of another
 * owner is neither shown nor a conflict. False: too long. */
static bool request_key(const char *id, const char *owner, char ret_key[REQUEST_KEY_MAX])
{
    return snprintf(ret_key, REQUEST_KEY_MAX, "%s\n%s", id, owner) < REQUEST_KEY_MAX;
}

static uint64_t hash_owner(const char *owner)
{
    return hd_hash_bytes(owner, strlen(owner));
}

bool core_request_put(struct hd_core *core, const char *id, const char *owner, uint64_t job,
                      uint64_t hash)
{
    char key[REQUEST_KEY_MAX];

    if (!request_key(id, owner, key) ||
        !core_grow_array(core, &core->known_jobs, core->known_job_count, &core->known_job_size,
                         sizeof *core->known_jobs) ||
        !core_map_put(&core->by_request, key, core->known_job_count))
        return false;
    core->known_jobs[core->known_job_count++] =
        (struct core_known_job){.job = job, .hash = hash, .owner = hash_owner(owner)};
    return true;
}

const struct core_known_job *core_request_find(const struct hd_core *core, const char *id,
                                               const char *owner)
{
    char key[REQUEST_KEY_MAX];
    uint64_t index;

    return request_key(id, owner, key) && core_map_get(&core->by_request, key, &index)
               ? &core->known_jobs[index]
               : NULL;
}

bool hd_core_knows_request(const struct hd_core *core, const char *request_id, const char *owner)
{
    return core_request_find(core, request_id, owner) != NULL;
}

bool hd_core_job_is_of(const struct hd_core *core, uint64_t job, const char *owner)
{
    const struct core_known_job *known = core_find_known_job(core, job);

    return known && known->owner == hash_owner(owner);
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

/* Answers a repeated submission: a client that got no answer retries with the same content.
 * Different content under the same request id is refused, because the caller would take another job
 * for its own. */
static enum hd_status repeat(struct hd_core *core, const struct core_known_job *request,
                             uint64_t hash)
{
    if (request->hash && request->hash != hash)
        return hd_err(HD_EXISTS,
                      "this request id was used for job %" PRIu64 ", with another job file or "
                      "other options; use a new one (see that job: heddle show "
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
    const struct core_known_job *before;
    struct core_job *job;
    enum hd_status st;

    if (!request || !*request || strlen(request) > HD_CTL_NAME_BYTES_MAX)
        return hd_err(HD_INVALID, "request_id: must have 1 to %d bytes", HD_CTL_NAME_BYTES_MAX);
    before = core_request_find(core, request, record.owner);
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
    st = core_check_request(core, needs);
    if (st)
        return st;

    record.job = ++core->last_job;
    job = core_job_new(core, &record, needs);
    if (!job || !core_request_put(core, request, record.owner, record.job, record.request_hash)) {
        core->no_memory = true;
        return HD_OK; /* hd_core_step returns HD_NO_MEMORY */
    }
    job->is_new = true;
    core_dirty_job(core, job);
    core_event_submitted(core, job);
    core->out->job = record.job;
    core->new_job = job;
    report_limit(core);
    return HD_OK;
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
        return HD_OK; /* a duplicate request */
    job->rec.cancel = true;
    job->rec.cancel_now |= event->cancel.now;
    core_dirty_job(core, job);
    core_event_cancel(core, job, event->cancel.by, event->cancel.now);
    attempt = core_active(job);
    if (!attempt) {
        core_finish_job(core, job, HD_JOB_STATE_CANCELLED, "");
        return HD_OK;
    }
    core->due |= CORE_DUE_PASS; /* the job's devices become free soon, and its reservations end */
    core_set_job_state(core, job, HD_JOB_STATE_STOPPING);
    core_attempt_stop(core, job, attempt);
    return HD_OK;
}
