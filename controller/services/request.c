/* request: caller of a call of Control, and the page size that a request names; calls nothing of
 * this folder.
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
