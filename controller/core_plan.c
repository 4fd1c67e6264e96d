/* core_plan: the layout of a job on a number of devices.
 *
 * Which sizes go together is asked of plan/choose.h; here is what this build's engines run.
 */
#include "controller/core_internal.h"

bool core_kind_spans_nodes(enum hd_device_kind kind)
{
    return kind == HD_DEVICE_KIND_CPU; /* the engine gloo */
}

bool core_plan(const struct hd_ask *ask, enum hd_device_kind kind, int32_t count,
               struct hd_plan_record *ret_plan)
{
    struct hd_plan_sizes s;

    if (hd_plan_size(&ask->wish, count, &s))
        return false;
    *ret_plan = (struct hd_plan_record){.pp = s.pp,
                                        .dp = s.dp,
                                        .cp = s.cp,
                                        .tp = s.tp,
                                        .ep = s.ep,
                                        .zero = s.zero,
                                        .micro_batch = s.micro_batch,
                                        .micro_batches = s.micro_batches,
                                        .sequence = s.sequence,
                                        .cp_exchange = (int32_t)s.cp_exchange,
                                        .schedule = "none",
                                        .recompute = "none",
                                        .precision = ask->precision,
                                        .device = kind};
    return true;
}

enum hd_status hd_core_plan(const struct hd_ask *ask, enum hd_device_kind kind, int32_t count,
                            struct hd_plan_record *ret_plan)
{
    return core_plan(ask, kind, count, ret_plan) ? HD_OK : hd_plan_check(&ask->wish, count, count);
}
