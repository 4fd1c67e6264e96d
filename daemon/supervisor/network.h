/* network: finds the interface and adapters that NCCL uses between nodes.
 *
 * NCCL listens on an interface, not on an address: NCCL_SOCKET_IFNAME is the interface that has the
 * data address, and NCCL_SOCKET_FAMILY the family of the address. InfiniBand and RoCE adapters are
 * used if the data address is on one: all active adapters with the same link layer (NCCL_IB_HCA),
 * because a node with eight GPUs has an adapter for each. If it is on none, NCCL uses sockets only
 * (NCCL_IB_DISABLE), so that no data travels over a network that was not named.
 *
 * Used by: ranks.c, tests.   Uses: base.   Threads: none of its own.
 */
#ifndef HD_DAEMON_SUPERVISOR_NETWORK_H
#define HD_DAEMON_SUPERVISOR_NETWORK_H

#include <stdbool.h>

#include "base/status.h"

enum { SUP_INTERFACE_MAX = 16, SUP_ADAPTERS_MAX = 1024 };

struct sup_network {
    char interface[SUP_INTERFACE_MAX]; /* name of the network interface, such as "eth0" */
    bool is_ipv6;
    /* InfiniBand or RoCE adapters and ports, such as "mlx5_0:1,mlx5_1:1"; "": use none */
    char adapters[SUP_ADAPTERS_MAX];
    /* with `adapters` "": those that are active, and serve other interfaces */
    char left_out[SUP_ADAPTERS_MAX];
};

/* Finds the interface that has `address`, and the adapters to use with it. sys: "/sys", another
 * folder in tests. HD_NOT_FOUND: no interface of this machine has the address. */
enum hd_status sup_network_find(const char *address, const char *sys,
                                struct sup_network *ret_network);

#endif
