/* fit: the layout of an attempt, chosen so that it fits the devices that were found for it.
 *
 * Placement decides how many devices, by arithmetic alone (plan.c). What a layout takes of them is
 * only known when it is laid out, which takes milliseconds to tenths of a second: config.fit is
 * asked once, for the job that is about to start, never for those that wait.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/core/core_internal.h"

int32_t core_free_device(const struct core_node *node, enum hd_device_kind kind, int32_t from)
{
    for (int32_t d = from; d < node->rec.device_count; d++)
        if (node->rec.devices[d].kind == kind && !node->holds[d].job && core_device_works(node, d))
            return d;
    return -1;
}

/* Folds the devices that an attempt would hold. False: of one the memory is not known. */
static bool fold_devices(const struct core_placement *place, enum hd_device_kind kind,
                         struct hd_core_fit *fit)
{
    fit->threads = INT32_MAX;
    fit->bf16 = true;
    for (size_t m = 0; m < place->member_count; m++) {
        const struct core_node *node = place->members[m].node;
        int32_t left = place->members[m].count;

        for (int32_t d = core_free_device(node, kind, 0); d >= 0 && left > 0;
             d = core_free_device(node, kind, d + 1), left--) {
            const struct hd_device_record *device = &node->rec.devices[d];

            fit->bf16 = fit->bf16 && (device->precisions & (1u << HD_PRECISION_BF16));
            fit->threads = device->threads < fit->threads ? device->threads : fit->threads;
            if (device->memory_bytes <= 0)
                return false;
            if (fit->memory_bytes && fit->memory_bytes <= device->memory_bytes)
                continue;
            fit->memory_bytes = device->memory_bytes;
            fit->device_name = device->name ? device->name : "";
            fit->traits = node->traits ? node->traits : "";
        }
    }
    return fit->memory_bytes > 0;
}

bool core_choose_layout(const struct hd_core *core, const struct hd_job_needs *needs,
                        const void *spec, size_t spec_bytes, struct core_placement *place,
                        struct hd_text *ret_why)
{
    const enum hd_device_kind kind = hd_device_kind_of(place->plan.layout.device);
    const struct hd_plan_request wish = core_wish_on(needs, kind);
    struct hd_core_fit fit = {
        .spec = spec, .spec_bytes = spec_bytes, .wish = &wish, .devices = place->device_count};

    if (!core->config.fit || (wish.sizes.pp && wish.sizes.zero >= 0) ||
        !fold_devices(place, kind, &fit))
        return true;
    return core->config.fit(&fit, &place->plan.layout, ret_why);
}

void core_take_misfit(struct hd_core *core, struct core_job *job, int32_t devices, const char *why)
{
    core_event(core, job, "no_fit", job->rec.attempt_count, -1, "", "%s", why);
    if (devices >= job->needs.devices_max) {
        core_finish_job(core, job, HD_JOB_STATE_FAILED, why);
        return;
    }
    core_waiting_remove(core, job); /* into the class of jobs that need more */
    job->needs.devices_min = devices + 1;
    core_set(core, &job->misfit, why);
    core_waiting_add(core, job);
}
