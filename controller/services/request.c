/* request: caller of a call, with role and visibility, and the page size that a request names; calls
 * nothing of this folder.
 */
#include "controller/services/control.h"

const char *control_caller(const struct hd_rpc_call *call)
{
    const struct hd_rpc_principal *principal = hd_rpc_call_principal(call);

    return principal ? principal->name : "";
}

int32_t control_page_size(int32_t limit)
{
    if (limit <= 0)
        return PAGE_DEFAULT;
    return limit < PAGE_MAX ? limit : PAGE_MAX;
}

enum hd_role guard_role(const struct hd_rpc_call *call)
{
    return (enum hd_role)hd_rpc_call_principal(call)->role;
}

enum hd_visibility guard_visibility(const struct controller *c, const struct hd_rpc_call *call)
{
    return hd_policy_visibility(c->policy, hd_rpc_call_principal(call)->name, guard_role(call));
}

struct veil guard_veil(const struct controller *c, const struct hd_rpc_call *call)
{
    return (struct veil){.core = c->core,
                         .jobs_dir = c->jobs_dir,
                         .reader = guard_visibility(c, call) == HD_VISIBILITY_OWN
                                       ? hd_rpc_call_principal(call)->name
                                       : NULL};
}

void control_see(const struct controller *c, const struct hd_rpc_call *call,
                 enum hd_visibility needed, struct hd_query *query)
{
    const enum hd_visibility visibility = guard_visibility(c, call);

    if (visibility >= needed)
        return;
    query->only_of = control_caller(call);
    query->hidden = visibility == HD_VISIBILITY_OWN;
}
