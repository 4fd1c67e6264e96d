/* standard: the services that every gRPC tool knows, so that Heddle can be asked without its files.
 *
 *   grpc.health.v1.Health               is the server, or one of its services, fit to be called?
 *   grpc.reflection.v1 and v1alpha      which services are there, and what do their messages hold?
 *
 * Both speak of what is registered on the server and of nothing else, and stand behind the same
 * doors and the same token as every other method: whoever may not call a service learns nothing
 * about it.
 *
 * Used by: programs with a server.   Uses: rpc, the generated messages of both.
 * Threads: the loop's.
 */
#ifndef HD_RPC_STANDARD_H
#define HD_RPC_STANDARD_H

#include "rpc/rpc.h"

/* Registers both, before the first listen and after every other method. `descriptors` is a
 * serialised google.protobuf.FileDescriptorSet of at least the registered services, each file
 * behind what it imports (heddle_descriptors in proto/CMakeLists.txt makes one); it must stay.
 *
 * The server as a whole ("") and each of its services are SERVING until the server closes, except
 * between hd_rpc_server_set_serving(server, false) and (server, true). When the server closes,
 * those who Watch hear NOT_SERVING, and their calls end; hd_rpc_server_close waits up to
 * HD_RPC_FAREWELL_MS for that. A service that is not registered is NOT_FOUND to Check and
 * SERVICE_UNKNOWN to Watch. */
enum hd_status hd_rpc_server_add_standard(struct hd_rpc_server *server, const void *descriptors,
                                          size_t size_bytes);

enum { HD_RPC_FAREWELL_MS = 500 };

#endif
