/* first: the placement of a job that becomes available first, as far as the ends of running attempts
 * can be predicted (predict.c). */
#include "controller/core/schedule/schedule.h"

void core_count_surplus(const struct hd_core *core, const struct core_forecast *forecast,
                        const struct hd_job_needs *needs, enum hd_device_kind kind,
                        struct core_placement *placement)
{
    for (size_t i = 0; i < placement->member_count; i++) {
        struct core_member *member = &placement->members[i];

        member->surplus =
            core_count_free(core, forecast, needs, member->node->index, kind) - member->count;
    }
}

bool core_least_needs(const struct hd_job_needs *needs, enum hd_device_kind kind,
                      struct hd_job_needs *ret_least)
{
    const int32_t least = core_devices_needed(needs, kind);

    *ret_least = *needs;
    ret_least->device = kind;
    ret_least->devices_min = ret_least->devices_max = least;
    return least > 0;
}

/* Makes a forecast over the predicted ends, for a search for the job's first placement. Devices that
 * younger jobs have borrowed count as free: the job can reclaim them when it starts. */
bool core_forecast_for(struct hd_core *core, const struct core_job *job,
                       struct core_forecast *ret_forecast)
{
    const struct core_allocations *all = &core->allocations;

    if (!core_forecast_init(core, all->items, all->run_count, ret_forecast))
        return false;
    for (size_t i = all->run_count; i < all->count; i++)
        if (all->items[i].attempt && core_yields_to(core, all->items[i].attempt, job))
            core_forecast_end(ret_forecast, all->items[i].attempt, true);
    return true;
}

void core_find_first(struct hd_core *core, struct core_forecast *forecast,
                     const struct core_view *view, enum hd_device_kind kind,
                     const struct core_first *wider, struct core_first *ret)
{
    struct core_layout_client client = core_layout_client_of(view->job, view->needs);
    const struct core_allocation *runs = forecast->list;
    struct hd_text why = {0};
    int64_t memory_bytes;
    size_t needed;

    *ret = (struct core_first){.start = {.mono_ms = INT64_MAX}, .layout = CORE_LAYOUT_INFEASIBLE};
    ret->least = core_least_ends(core, forecast, view, kind, wider ? wider->least : 0);
    needed = core_forecast_fewest(core, forecast, view, ret->least, wider ? wider->ends : 0,
                                  &ret->placement);
    ret->ends = needed;
    if (needed <= forecast->count) {
        ret->start.mono_ms = needed ? runs[needed - 1].until_mono_ms : core->now.mono_ms;
        ret->start.after = needed ? runs[needed - 1].job : 0;
        core_count_surplus(core, forecast, view->needs, kind, &ret->placement);
        client.forecast = forecast;
        if (ret->placement
                .device_count) /* computed before its devices are free, so that the layout is known
                                * when the job starts */
            ret->layout = core_choose_layout(core, &client, &ret->placement, &memory_bytes,
                                             &ret->entry, &why);
    }
    hd_text_free(&why);
}
