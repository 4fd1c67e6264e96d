/* access: checks of the caller's rights in the service Control, and of the disk. */
#include <inttypes.h>
#include <string.h>

#include "controller/services/control.h"

enum hd_status control_check_owner(const struct controller *c, const struct hd_rpc_call *call,
                                   const char *owner, uint64_t job)
{
    const char *caller = control_caller(call);

    if (strcmp(caller, owner) == 0 || hd_role_has(guard_role(call), HD_ROLE_OPERATOR))
        return HD_OK;
    if (guard_visibility(c, call) == HD_VISIBILITY_OWN)
        return hd_err(HD_NOT_FOUND, "there is no job %" PRIu64, job);
    return hd_err(HD_DENIED, "job %" PRIu64 " belongs to %s; you are %s", job, owner, caller);
}

enum hd_status control_check_after(const struct controller *c, const struct hd_rpc_call *call,
                                   const struct hd_job *job, bool is_stored)
{
    uint64_t after[HD_JOB_AFTER_MAX];
    int count = 0;

    (void)hd_after_read(job->after, after, &count); /* cannot fail: control_prepare has read it */
    for (int i = 0; i < count; i++) {
        const uint64_t other = after[i];

        if (guard_visibility(c, call) == HD_VISIBILITY_OWN &&
            !hd_core_job_is_of(c->core, other, control_caller(call)) &&
            !(is_stored && hd_core_outcome(c->core, other) == HD_JOB_STATE_SUCCEEDED))
            return hd_err(HD_NOT_FOUND, "after: there is no job %" PRIu64 " (heddle jobs)", other);
    }
    return HD_OK;
}

enum hd_status control_check_disk(const struct controller *c)
{
    const char *trouble = hd_store_trouble(c->store);

    return trouble ? hd_err(HD_LIMIT, "%s", trouble) : HD_OK;
}

enum hd_status control_check_reserve(const struct controller *c)
{
    return hd_store_disk_state(c->store) == HD_STORE_STUCK ? control_check_disk(c) : HD_OK;
}
