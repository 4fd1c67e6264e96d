/* standard_internal: the state of health.c and reflection.c. Only for lib/rpc. */
#ifndef HD_RPC_STANDARD_INTERNAL_H
#define HD_RPC_STANDARD_INTERNAL_H

#include "rpc/descriptor.h"
#include "rpc/server_internal.h"

struct hd_rpc_watcher;

struct hd_rpc_standard {
    struct hd_rpc_server *server;
    struct hd_rpc_bytes descriptors;
    struct hd_rpc_watcher *watchers; /* Watch calls of the health service that are open */
};

/* Returns the service's name in a method's path: "/heddle.v1.Control/ListJobs" ->
 * "heddle.v1.Control". */
struct hd_rpc_bytes hd_rpc_service_of(const char *path);
bool hd_rpc_has_service(const struct hd_rpc_server *server, const char *service);

enum hd_status hd_rpc_health_add(struct hd_rpc_standard *standard);
/* Sends the server's new serving state to all watchers of the health service. */
void hd_rpc_health_set(struct hd_rpc_standard *standard);
/* Sends NOT_SERVING to all watchers and ends their calls. Returns the number of watchers. */
size_t hd_rpc_health_end(struct hd_rpc_standard *standard);

enum hd_status hd_rpc_reflection_add(struct hd_rpc_standard *standard);

#endif
