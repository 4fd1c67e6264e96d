/* core_plan: the layout of a job on a number of devices.
 *
 * Plain data parallelism: every rank holds the whole model and trains on its share of the global
 * batch. What an engine can do is asked in one place, check_capability(), so that a new engine
 * changes one function.
 */
#include "controller/core_internal.h"
#include "link/job.h"
#include "plan/choose.h"

/* The one place that knows what the engines of this build can run. */
static enum hd_status check_capability(const struct hd_ask *ask, enum hd_device_kind kind)
{
    if (kind != HD_DEVICE_KIND_CPU)
        return hd_err(HD_UNSUPPORTED, "resources.device: %s is not supported yet; use device: cpu",
                      hd_device_kind_name(kind));
    if (ask->tp > 1)
        return hd_err(HD_UNSUPPORTED, "parallel.tp: %d is not supported yet; use 1 or auto",
                      ask->tp);
    if (ask->pp > 1)
        return hd_err(HD_UNSUPPORTED, "parallel.pp: %d is not supported yet; use 1 or auto",
                      ask->pp);
    if (ask->cp > 1)
        return hd_err(HD_UNSUPPORTED, "parallel.cp: %d is not supported yet; use 1 or auto",
                      ask->cp);
    if (ask->ep > 1)
        return hd_err(HD_UNSUPPORTED, "parallel.ep: %d is not supported yet; use 1 or auto",
                      ask->ep);
    if (ask->zero > 0)
        return hd_err(HD_UNSUPPORTED, "parallel.zero: %d is not supported yet; use 0 or auto",
                      ask->zero);
    return HD_OK;
}

bool core_kind_spans_nodes(enum hd_device_kind kind)
{
    return kind == HD_DEVICE_KIND_CPU; /* the engine gloo */
}

bool core_kind_supported(enum hd_device_kind kind)
{
    return kind == HD_DEVICE_KIND_CPU;
}

enum hd_status hd_core_plan(const struct hd_ask *ask, enum hd_device_kind kind, int32_t count,
                            struct hd_plan_record *ret_plan)
{
    struct hd_plan_record plan = {.pp = 1, .cp = 1, .tp = 1, .ep = 1, .device = kind};
    enum hd_status st = check_capability(ask, kind);
    int64_t share;

    if (st)
        return st;
    if (count > HD_JOB_RANKS_MAX)
        return hd_err(HD_UNSUPPORTED,
                      "resources.devices: %d are not supported yet; a job has at most %d cpu "
                      "devices",
                      count, HD_JOB_RANKS_MAX);
    plan.dp = count;
    if (ask->dp && ask->dp != count)
        return hd_err(HD_INVALID, "parallel.dp: %d does not use all of %d devices", ask->dp, count);
    if (count < 1 || ask->global_batch % count)
        return hd_err(HD_INVALID,
                      "train.global_batch: %lld sequences cannot be shared evenly by %d devices",
                      (long long)ask->global_batch, count);
    share = ask->global_batch / count;
    plan.micro_batch = ask->micro_batch ? ask->micro_batch : hd_plan_micro_batch(share);
    if (share % plan.micro_batch)
        return hd_err(HD_INVALID,
                      "parallel.micro_batch: %d does not divide the %lld sequences of each of %d "
                      "devices",
                      plan.micro_batch, (long long)share, count);
    plan.micro_batches = (int32_t)(share / plan.micro_batch);
    plan.schedule = "none";
    plan.recompute = "none";
    plan.precision = ask->precision;
    *ret_plan = plan;
    return HD_OK;
}
