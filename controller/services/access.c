/* access: who calls the service Control, what that caller may do, and whether anything may change.
 */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "controller/services/control.h"

const char *control_caller(const struct hd_rpc_call *call)
{
    const struct hd_rpc_principal *principal = hd_rpc_call_principal(call);

    return principal ? principal->name : "";
}

enum hd_status control_check_owner(const struct hd_rpc_call *call, const char *owner, uint64_t job)
{
    const struct hd_rpc_principal *principal = hd_rpc_call_principal(call);

    if (!principal)
        return hd_err(HD_DENIED,
                      "the caller is not authenticated: use the controller's Unix socket, a token "
                      "or a client certificate");
    if (strcmp(principal->name, owner) == 0)
        return HD_OK;
    if (principal->transport == HD_RPC_TRANSPORT_UNIX &&
        (principal->uid == 0 || principal->uid == geteuid()))
        return HD_OK;
    return hd_err(HD_DENIED, "job %" PRIu64 " belongs to %s; you are %s", job, owner,
                  principal->name);
}

enum hd_status control_check_disk(const struct controller *c)
{
    const char *trouble = hd_store_trouble(c->store);

    return trouble ? hd_err(HD_LIMIT, "the controller cannot write its state: %s", trouble) : HD_OK;
}

/* For those who may do everything: a limit that its users could lift would be none, and a probe
 * takes all of a node for a while. What: "queues are changed". */
enum hd_status control_check_operator(const struct hd_rpc_call *call, const char *what)
{
    const struct hd_rpc_principal *principal = hd_rpc_call_principal(call);

    if (principal && principal->transport == HD_RPC_TRANSPORT_UNIX &&
        (principal->uid == 0 || principal->uid == geteuid()))
        return HD_OK;
    return hd_err(HD_DENIED,
                  "%s by root or by the controller's user, on the controller's machine and through "
                  "its Unix socket; you are %s",
                  what, principal ? principal->name : "not authenticated");
}
