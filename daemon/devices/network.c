#include "daemon/devices/network.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/proc.h"

enum { WORD_MAX = 64, DEPTH_MAX = 3 };

/* ---- the interface ---- */

static bool has_address(const struct ifaddrs *i, const char *address)
{
    const struct sockaddr *a = i->ifa_addr;
    unsigned char bytes[sizeof(struct in6_addr)];

    if (!a || (a->sa_family != AF_INET && a->sa_family != AF_INET6) ||
        inet_pton(a->sa_family, address, bytes) != 1)
        return false;
    if (a->sa_family == AF_INET6)
        return memcmp(bytes, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, 16) == 0;
    return memcmp(bytes, &((const struct sockaddr_in *)(const void *)a)->sin_addr, 4) == 0 ||
           /* any address of 127.0.0.0/8 is on the loopback interface */
           (bytes[0] == 127 && i->ifa_flags & IFF_LOOPBACK);
}

static enum hd_status find_interface(const char *address, struct hd_network *network)
{
    struct ifaddrs *all = NULL;

    network->is_ipv6 = strchr(address, ':') != NULL;
    if (getifaddrs(&all) != 0)
        return hd_err(HD_IO, "cannot list the network interfaces");
    for (const struct ifaddrs *i = all; i && !network->interface[0]; i = i->ifa_next)
        if (has_address(i, address))
            (void)snprintf(network->interface, sizeof network->interface, "%s", i->ifa_name);
    freeifaddrs(all);
    return network->interface[0]
               ? HD_OK
               : hd_err(HD_NOT_FOUND, "no network interface has the --data-address %s", address);
}

/* ---- adapters ---- */

/* Finds an adapter's active port and the port's link layer; returns false if no port is active. */
static bool find_port(const char *sys, const char *adapter, int *ret_port, char ret_layer[WORD_MAX])
{
    char path[PATH_MAX], state[WORD_MAX];

    for (*ret_port = 1; *ret_port <= 2; ++*ret_port) {
        (void)snprintf(path, sizeof path, "%s/class/infiniband/%s/ports/%d/state", sys, adapter,
                       *ret_port);
        if (!hd_proc_line(path, state, sizeof state) || !strstr(state, "ACTIVE"))
            continue;
        (void)snprintf(path, sizeof path, "%s/class/infiniband/%s/ports/%d/link_layer", sys,
                       adapter, *ret_port);
        return hd_proc_line(path, ret_layer, WORD_MAX);
    }
    return false;
}

/* Returns true if the adapter is the hardware of this interface, or of one below it (a bond, a
 * VLAN). */
static bool serves(const char *sys, const char *adapter, const char *interface, int depth)
{
    char path[PATH_MAX];
    const struct dirent *entry;
    bool found;
    DIR *dir;

    (void)snprintf(path, sizeof path, "%s/class/infiniband/%s/device/net/%s", sys, adapter,
                   interface);
    found = access(path, F_OK) == 0;
    (void)snprintf(path, sizeof path, "%s/class/net/%s", sys, interface);
    dir = found || depth == DEPTH_MAX ? NULL : opendir(path);
    while (dir && !found && (entry = readdir(dir)))
        if (strncmp(entry->d_name, "lower_", 6) == 0)
            found = serves(sys, adapter, entry->d_name + 6, depth + 1);
    if (dir)
        (void)closedir(dir);
    return found;
}

/* Calls `sample` for each adapter with an active port. */
static void each_adapter(const char *sys, struct hd_network *network, char layer[WORD_MAX],
                         void (*sample)(const char *sys, const char *adapter, int port,
                                        const char *found, struct hd_network *, char *layer))
{
    char path[PATH_MAX], found[WORD_MAX];
    const struct dirent *entry;
    int port;
    DIR *dir;

    (void)snprintf(path, sizeof path, "%s/class/infiniband", sys);
    dir = opendir(path);
    while (dir && (entry = readdir(dir)))
        if (entry->d_name[0] != '.' && find_port(sys, entry->d_name, &port, found))
            sample(sys, entry->d_name, port, found, network, layer);
    if (dir)
        (void)closedir(dir);
}

static void take_layer(const char *sys, const char *adapter, int port, const char *found,
                       struct hd_network *network, char *layer)
{
    (void)port;
    if (serves(sys, adapter, network->interface, 0))
        (void)snprintf(layer, WORD_MAX, "%s", found);
}

static void name_adapter(const char *sys, const char *adapter, int port, const char *found,
                         struct hd_network *network, char *layer)
{
    const size_t used = strlen(network->adapters);

    (void)sys;
    if (strcmp(found, layer) == 0 && used + strlen(adapter) + 8 < sizeof network->adapters)
        (void)snprintf(network->adapters + used, sizeof network->adapters - used, "%s%s:%d",
                       used ? "," : "", adapter, port);
}

static void add_left_out(const char *sys, const char *adapter, int port, const char *found,
                         struct hd_network *network, char *layer)
{
    const size_t used = strlen(network->left_out);

    (void)sys, (void)found, (void)layer;
    if (used + strlen(adapter) + 8 < sizeof network->left_out)
        (void)snprintf(network->left_out + used, sizeof network->left_out - used, "%s%s:%d",
                       used ? "," : "", adapter, port);
}

enum hd_status hd_network_find(const char *address, const char *sys, struct hd_network *ret_network)
{
    char layer[WORD_MAX] = "";
    enum hd_status st;

    memset(ret_network, 0, sizeof *ret_network);
    st = find_interface(address, ret_network);
    if (st)
        return st;
    each_adapter(sys, ret_network, layer, take_layer);
    each_adapter(sys, ret_network, layer, layer[0] ? name_adapter : add_left_out);
    return HD_OK;
}

int hd_network_count_left_out(const struct hd_network *network)
{
    const char *off = getenv("NCCL_IB_DISABLE");
    int count = network->left_out[0] != '\0';

    if (getenv("NCCL_IB_HCA") || (off && strcmp(off, "0") != 0))
        return 0;
    for (const char *c = network->left_out; *c; c++)
        count += *c == ',';
    return count;
}
