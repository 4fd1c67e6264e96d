#include <stdio.h>
#include <stdlib.h>

#include <grpc/grpc.h>

#include "rpc/rpc.h"

/* Table of gRPC releases by the version of their core, the only version that the library reports.
 */
static const struct {
    int core;
    const char *release;
} releases[] = {{28, "1.50"}, {29, "1.51"}, {30, "1.52 or 1.53"}, {31, "1.54"},
                {32, "1.55"}, {33, "1.56"}, {34, "1.57"}};

enum { CORE_SURE = 34 /* first core whose release (1.57) has the fix in all patch versions */ };

void hd_rpc_library_name(const char *core_version, char ret_name[HD_RPC_LIBRARY_MAX])
{
    const char *version = core_version ? core_version : grpc_version_string();
    const int core = atoi(version);

    for (size_t i = 0; i < sizeof releases / sizeof releases[0]; i++)
        if (releases[i].core == core) {
            (void)snprintf(ret_name, HD_RPC_LIBRARY_MAX, "gRPC %s (core %s)", releases[i].release,
                           version);
            return;
        }
    (void)snprintf(ret_name, HD_RPC_LIBRARY_MAX, "gRPC with core %s", version);
}

const char *hd_rpc_library_weakness(const char *core_version)
{
    const int core = atoi(core_version ? core_version : grpc_version_string());

    if (core >= CORE_SURE)
        return NULL;
    return core < 30 ? "it has CVE-2023-33953: headers without end make a server unresponsive or "
                       "use up its "
                       "memory. What a connection may send before it shows a token is bounded by "
                       "Heddle itself; a caller with a token could still do that"
                     : "it may have CVE-2023-33953 (corrected in 1.53.2, 1.54.3, 1.55.2 and "
                       "1.56.2): headers without end make a server unresponsive or use up its "
                       "memory. What "
                       "a connection may send before it shows a token is bounded by Heddle itself; "
                       "a caller with a token could still do that";
}
