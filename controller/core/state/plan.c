/* plan: the layout of a job on a number of devices. The rules for its sizes are in plan/choose.h.
 */
#include <string.h>

#include "controller/core/state/state.h"

struct hd_plan_request core_plan_request_on(const struct hd_job_needs *needs,
                                            enum hd_device_kind kind)
{
    struct hd_plan_request wish = needs->wish;

    wish.sizes.device = kind == HD_DEVICE_KIND_CPU    ? HD_JOB_DEVICE_CPU
                        : kind == HD_DEVICE_KIND_CUDA ? HD_JOB_DEVICE_CUDA
                                                      : HD_JOB_DEVICE_AUTO;
    return wish;
}

bool core_plan(const struct hd_job_needs *needs, enum hd_device_kind kind, int32_t count,
               struct hd_plan_record *ret_plan)
{
    const struct hd_plan_request wish = core_plan_request_on(needs, kind);
    struct hd_layout_sizes layout;

    if (hd_plan_size(&wish, count, &layout) && !hd_plan_first(&wish, count, &layout))
        return false;
    *ret_plan = (struct hd_plan_record){.layout = layout};
    return true;
}

enum hd_status hd_core_plan(const struct hd_job_needs *needs, enum hd_device_kind kind,
                            int32_t count, struct hd_plan_record *ret_plan)
{
    const struct hd_plan_request wish = core_plan_request_on(needs, kind);

    return core_plan(needs, kind, count, ret_plan) ? HD_OK : hd_plan_check(&wish, count, count);
}

int32_t core_devices_needed(const struct hd_job_needs *needs, enum hd_device_kind kind)
{
    struct hd_plan_record plan;

    for (int32_t count = needs->devices_min; count <= needs->devices_max; count++) {
        if (core_plan(needs, kind, count, &plan))
            return count;
    }
    return 0;
}

int32_t core_pick_count(const struct hd_job_needs *needs, enum hd_device_kind kind,
                        int32_t available, struct hd_plan_record *ret_plan)
{
    int32_t count = available < needs->devices_max ? available : needs->devices_max;

    for (; count >= needs->devices_min; count--) {
        if (core_plan(needs, kind, count, ret_plan))
            return count;
    }
    return 0;
}

int32_t core_whole_groups(const struct hd_job_needs *needs, int32_t devices)
{
    return devices - devices % hd_plan_unit(&needs->wish);
}

size_t core_kinds(const struct hd_job_needs *needs,
                  enum hd_device_kind ret_kinds[HD_DEVICE_KIND_COUNT])
{
    size_t count = 0;

    if (needs->device != HD_DEVICE_KIND_ANY) {
        ret_kinds[count++] = needs->device;
        return count;
    }
    ret_kinds[count++] = HD_DEVICE_KIND_CUDA;
    ret_kinds[count++] = HD_DEVICE_KIND_CPU;
    return count;
}

enum hd_status core_check_needs(const struct hd_job_needs *needs)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    struct hd_plan_record plan;
    size_t count = core_kinds(needs, kinds);

    if (needs->devices_min < 1 || needs->devices_max < needs->devices_min ||
        needs->devices_max > HD_CTL_WORLD_MAX)
        return hd_err(HD_INVALID, "resources.devices: needs 1 <= min (%d) <= max (%d) <= %d",
                      needs->devices_min, needs->devices_max, HD_CTL_WORLD_MAX);
    for (size_t i = 0; i < count; i++) {
        if (core_devices_needed(needs, kinds[i]))
            return HD_OK;
    }
    return hd_core_plan(needs, kinds[count - 1], needs->devices_max, &plan);
}

enum hd_device_kind hd_probed_kind(const struct hd_node_record *node)
{
    for (int32_t d = 0; d < node->device_count; d++)
        if (node->devices[d].kind == HD_DEVICE_KIND_CUDA)
            return HD_DEVICE_KIND_CUDA;
    return HD_DEVICE_KIND_CPU;
}
