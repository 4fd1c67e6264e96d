/* channel_args: gRPC's settings as a list that is filled one by one.
 *
 * Used by: client.c, server.c.   Uses: gRPC.   Threads: any.
 */
#ifndef HD_RPC_CHANNEL_ARGS_H
#define HD_RPC_CHANNEL_ARGS_H

#include <assert.h>
#include <stdint.h>

#include <grpc/grpc.h>

enum { HD_RPC_CHANNEL_ARGS_MAX = 24 };

struct hd_rpc_channel_args { /* starts as {0}; keys and values must outlive the use */
    grpc_arg list[HD_RPC_CHANNEL_ARGS_MAX];
    size_t count;
};

static inline void hd_rpc_channel_args_add(struct hd_rpc_channel_args *args, grpc_arg arg)
{
    assert(args->count < HD_RPC_CHANNEL_ARGS_MAX);
    args->list[args->count++] = arg;
}

/* gRPC knows int only; what is larger means "no limit" to it as INT32_MAX does. */
static inline void hd_rpc_channel_args_add_int(struct hd_rpc_channel_args *args, const char *key,
                                               int64_t value)
{
    hd_rpc_channel_args_add(
        args, (grpc_arg){.type = GRPC_ARG_INTEGER,
                         .key = (char *)key,
                         .value.integer = value > INT32_MAX ? INT32_MAX : (int)value});
}

#endif
