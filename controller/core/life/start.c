/* start: starts an attempt on a placement that was found for it. */
#include <stdlib.h>

#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"

/* Sets precision and threads where the job file says `auto`. Precision: bf16 if every held device
 * computes it natively, else fp32. Threads: the smallest number among the held devices.
 * hold_devices must have marked these with the job's number. */
static void decide_precision_and_threads(const struct core_placement *placement, uint64_t job,
                                         struct hd_plan_record *plan)
{
    int32_t threads_min = INT32_MAX;
    bool bf16 = true;

    for (size_t m = 0; m < placement->member_count; m++) {
        const struct core_node *node = placement->members[m].node;

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

/* Marks the devices of the ranks as held, and sets the ranks of the attempt's record. devices: for
 * each rank, index of its device on its node. */
static void hold_devices(struct hd_core *core, struct hd_attempt_record *record,
                         const struct core_placement *placement, const int32_t *devices,
                         uint64_t start)
{
    for (size_t m = 0; m < placement->member_count; m++) {
        struct core_node *node = placement->members[m].node;

        for (int32_t i = 0; i < placement->members[m].count; i++) {
            const int32_t d = devices[record->plan.rank_count];

            node->holds[d] = (struct hd_device_hold){
                .job = record->job, .attempt = record->attempt, .start = start};
            record->plan.ranks[record->plan.rank_count++] =
                (struct hd_rank_location){.node_uuid = node->rec.uuid,
                                          .node_name = node->rec.name,
                                          .device = node->rec.devices[d].index};
        }
        core_node_changed(core, node);
    }
}

void core_attempt_start(struct hd_core *core, struct core_job *job,
                        const struct core_placement *placement, const char *why)
{
    const struct hd_checkpoint_record *base = core_checkpoint_newest(job);
    struct hd_attempt_record record = {.job = job->rec.job,
                                       .attempt = job->rec.attempt_count + 1,
                                       .state = HD_ATTEMPT_STATE_STARTING,
                                       .plan = placement->plan,
                                       .end = {.rank = -1},
                                       .created_ms = core->now.wall_ms};
    int32_t *devices = calloc((size_t)placement->device_count + 1, sizeof *devices);
    struct core_attempt *attempt;

    record.plan.ranks = calloc((size_t)placement->device_count + 1, sizeof *record.plan.ranks);
    record.plan.rank_count = 0;
    if (!devices || !record.plan.ranks ||
        !core_choose_devices(core, &job->needs, placement, devices)) {
        core->no_memory = true;
        free(devices);
        free(record.plan.ranks);
        return;
    }
    hold_devices(core, &record, placement, devices, ++core->starts);
    free(devices);
    decide_precision_and_threads(placement, record.job, &record.plan);
    if (base) {
        record.base_attempt = base->attempt;
        record.base_step = base->step;
        record.base_path = base->path;
        record.base_hash = base->hash;
    }
    if (core->config.run_as)
        record.run_as = core->config.run_as(core->config.run_as_user, job->rec.owner);
    attempt = core_attempt_new(core, job, &record);
    if (attempt) {
        attempt->start_number = core->starts;
        core->due |= CORE_DUE_ENDS | CORE_DUE_OPENED;
        if (job->rec.priority < core->lowest_priority)
            core->lowest_priority = job->rec.priority;
        core_quota_take(job, record.plan.rank_count);
        core_set_job_state(core, job, HD_JOB_STATE_RUNNING);
        attempt->backfilled = job->backfilled;
        attempt->ends_mono_ms = core_predict_end(core, job, attempt);
        job->rec.devices = record.plan.rank_count;
        if (!job->rec.started_ms)
            job->rec.started_ms = core->now.wall_ms;
        core_dirty_attempt(core, job, attempt);
        for (size_t m = 0; m < placement->member_count; m++)
            core_dirty_desired(core, placement->members[m].node);
        core_event_starting(core, job, &record);
        if (*why)
            core_event_layout(core, job, &record, why);
    }
    free(record.plan.ranks);
}
