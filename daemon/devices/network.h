/* network: finds the interface and adapters that NCCL uses between nodes.
 *
 * NCCL listens on an interface, not on an address: NCCL_SOCKET_IFNAME is the interface that has the
 * data address, and NCCL_SOCKET_FAMILY the family of the address. InfiniBand and RoCE adapters are
 * used if the data address is on one: all active adapters with the same link layer (NCCL_IB_HCA),
 * because a node with eight GPUs has an adapter for each. If it is on none, NCCL uses sockets only
 * (NCCL_IB_DISABLE), so that no data travels over a network that was not named.
 *
 * Used by: supervisor (which tells the ranks), agent (doctor, metrics), tests.   Uses: base.
 * Threads: none of its own.
 */
#ifndef HD_DAEMON_DEVICES_NETWORK_H
#define HD_DAEMON_DEVICES_NETWORK_H

#include <stdbool.h>

#include "base/status.h"

enum { HD_NETWORK_INTERFACE_MAX = 16, HD_NETWORK_ADAPTERS_MAX = 1024 };

struct hd_network {
    char interface[HD_NETWORK_INTERFACE_MAX]; /* name of the network interface, such as "eth0" */
    bool is_ipv6;
    /* InfiniBand or RoCE adapters and ports, such as "mlx5_0:1,mlx5_1:1"; "": use none */
    char adapters[HD_NETWORK_ADAPTERS_MAX];
    /* with `adapters` "": those that are active, and serve other interfaces */
    char left_out[HD_NETWORK_ADAPTERS_MAX];
};

/* Finds the interface that has `address`, and the adapters to use with it. sys: "/sys", another
 * folder in tests. HD_NOT_FOUND: no interface of this machine has the address. */
enum hd_status hd_network_find(const char *address, const char *sys,
                               struct hd_network *ret_network);

/* Returns the number of active adapters that NCCL does not use because they serve other interfaces.
 * 0 if a variable of this process's environment chooses adapters (NCCL_IB_HCA, NCCL_IB_DISABLE). */
int hd_network_count_left_out(const struct hd_network *network);

#endif
