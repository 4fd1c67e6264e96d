/* nccl_address: where the processes of the emulated NCCL listen, and how they connect.
 *
 * Two processes are on one node if NCCL_HOSTID is equal, or, where it is not set, the host name and
 * the boot id. They connect over an abstract local socket; processes of different nodes over TCP,
 * at the address of the interface that NCCL_SOCKET_IFNAME names ("=lo", or "lo" for one whose name
 * begins so; without the variable there is no TCP).
 *
 * Used by: nccl_wire.c.   Threads: any, after hd_address_listen has returned.
 */
#ifndef HD_CUDASIM_NCCL_ADDRESS_H
#define HD_CUDASIM_NCCL_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The address at which a process listens. */
struct hd_address {
    uint64_t node;  /* processes of equal `node` use `local` */
    uint64_t local; /* the name of its local socket */
    uint16_t family, port;
    uint8_t ip[16];
};

enum { HD_LISTENERS = 2 }; /* a local socket, and TCP */

/* Listens; a listener that is not there is -1. False: this process cannot be reached. */
bool hd_address_listen(struct hd_address *ret_self, int ret_listeners[HD_LISTENERS]);

/* A blocking socket, or -1. */
int hd_address_connect(const struct hd_address *self, const struct hd_address *to);

/* The address as text, for people; "no address" where there is no TCP. */
void hd_address_text(const struct hd_address *a, char *text, size_t size);

/* FNV-1a over the bytes, after those that h is the hash of; h = 0: after none. */
uint64_t hd_address_hash(uint64_t h, const void *bytes, size_t size);

#endif
