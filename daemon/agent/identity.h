/* identity: who a node is, and what it owns.
 *
 *     STATE_DIR/lock          one heddled at a time
 *     STATE_DIR/node-uuid     made once
 *     STATE_DIR/cluster       whose attempts are on record here
 *     STATE_DIR/devices       known.h
 *     STATE_DIR/attempts/     local.h
 *
 * Used by: agent.   Uses: base, daemon/attempt.   Threads: immutable once opened.
 */
#ifndef HD_DAEMON_AGENT_IDENTITY_H
#define HD_DAEMON_AGENT_IDENTITY_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "daemon/agent/address.h"
#include "daemon/agent/devices.h"
#include "daemon/attempt/attempt.h"

enum { AGENT_UUID_MAX = 40, AGENT_NAME_MAX = 64 };

struct agent_identity {
    char state_dir[PATH_MAX];       /* absolute */
    char node_name[AGENT_NAME_MAX]; /* [a-z0-9][-a-z0-9.]* */
    char node_uuid[AGENT_UUID_MAX], boot_id[HD_ATTEMPT_BOOT_MAX], instance_id[AGENT_UUID_MAX];
    int lock_fd;

    struct agent_devices devices; /* set by the agent, once they were asked */
    bool spans;                   /* likewise: ranks can work with those of other nodes */
    char compute[72];             /* likewise: instruction set and library */
    /* likewise: where those reach them; "": nowhere */
    char data_address[AGENT_ADDRESS_MAX];
};

/* `node_name` NULL: the host's. HD_CONFLICT: another heddled has the state directory. */
enum hd_status agent_identity_open(const char *state_dir, const char *node_name,
                                   struct agent_identity *ret_identity);
void agent_identity_close(struct agent_identity *identity);

/* The cluster that the state directory belongs to; "" when none yet. */
enum hd_status agent_identity_read_cluster(const struct agent_identity *identity,
                                           char ret_cluster[AGENT_NAME_MAX]);
enum hd_status agent_identity_write_cluster(const struct agent_identity *identity,
                                            const char *cluster);

#endif
