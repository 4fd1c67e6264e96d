/* address: the address at which ranks of other nodes connect to the ranks of this node.
 *
 * Used by: agent.   Uses: base, rpc.   Threads: the agent's.
 */
#ifndef HD_DAEMON_AGENT_ADDRESS_H
#define HD_DAEMON_AGENT_ADDRESS_H

#include "base/status.h"

enum { AGENT_ADDRESS_MAX = 64 };

/* Checks that `given` is a numeric address of this machine on which ranks can listen, else returns
 * HD_INVALID. */
enum hd_status agent_address_check(const char *given);

/* Sets ret_address to the local address that this node uses to reach the controller; 127.0.0.1 for
 * a controller on a Unix socket or on loopback. Sends no packet, but resolves a host name. */
enum hd_status agent_address_find(const char *controller, char ret_address[AGENT_ADDRESS_MAX]);

#endif
