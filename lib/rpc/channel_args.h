/* channel_args: a list of gRPC channel arguments with a fixed capacity.
 *
 * Used by: client.c, server.c.   Uses: gRPC.   Threads: any. */
#ifndef HD_RPC_CHANNEL_ARGS_H
#define HD_RPC_CHANNEL_ARGS_H

#include <assert.h>
#include <stdint.h>

#include <grpc/grpc.h>

enum { HD_RPC_CHANNEL_ARGS_MAX = 24 };

struct hd_rpc_channel_args { /* initialise with {0}; keys and values are not copied */
    grpc_arg list[HD_RPC_CHANNEL_ARGS_MAX];
    size_t count;
};

static inline void hd_rpc_channel_args_add(struct hd_rpc_channel_args *args, grpc_arg arg)
{
    assert(args->count < HD_RPC_CHANNEL_ARGS_MAX);
    args->list[args->count++] = arg;
}

/* Adds an integer argument. gRPC takes an int: a larger value becomes INT32_MAX, which gRPC treats
 * as no limit. */
static inline void hd_rpc_channel_args_add_int(struct hd_rpc_channel_args *args, const char *key,
                                               int64_t value)
{
    hd_rpc_channel_args_add(
        args, (grpc_arg){.type = GRPC_ARG_INTEGER,
                         .key = (char *)key,
                         .value.integer = value > INT32_MAX ? INT32_MAX : (int)value});
}

#endif
