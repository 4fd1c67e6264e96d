/* standard: the standard services that gRPC tools (grpcurl, probes) use.
 *
 *   grpc.health.v1.Health               whether the server, or one of its services, can be called
 *   grpc.reflection.v1 and v1alpha      which services are registered, and their message types
 *
 * Both describe only registered services. Like every other method they need the token or the Unix
 * socket and pass `authorize`.
 *
 * Used by: programs with a server.   Uses: rpc, the generated messages of both.
 * Threads: the loop's.
 */
#ifndef HD_RPC_STANDARD_H
#define HD_RPC_STANDARD_H

#include "rpc/rpc.h"

/* Registers the health and the reflection service; call it before the first listen and after all
 * other methods. `descriptors`: a serialised google.protobuf.FileDescriptorSet with at least the
 * registered services, each file after its imports (heddle_descriptors in proto/CMakeLists.txt
 * makes one). It is borrowed.
 *
 * The server ("") and each of its services are SERVING until the server closes, except between
 * hd_rpc_server_set_serving(server, false) and (server, true). On close, Watch calls get
 * NOT_SERVING and end; hd_rpc_server_close waits up to HD_RPC_HEALTH_END_MS for that. For a service
 * that is not registered Check fails with NOT_FOUND and Watch sends SERVICE_UNKNOWN. */
enum hd_status hd_rpc_server_add_standard(struct hd_rpc_server *server, const void *descriptors,
                                          size_t size_bytes);

enum { HD_RPC_HEALTH_END_MS = 500 };

#endif
