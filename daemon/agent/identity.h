/* identity: the name, UUIDs and state directory of this heddled.
 *
 *     STATE_DIR/lock          held while a heddled uses the directory
 *     STATE_DIR/node-uuid     made at the first start, never changed
 *     STATE_DIR/node-name     the name under which the cluster knows this node
 *     STATE_DIR/epoch         epoch.h
 *     STATE_DIR/cluster       id of the cluster that the records belong to
 *     STATE_DIR/devices       devices/numbers.h
 *     STATE_DIR/attempts/     local.h
 *
 * Used by: agent.   Uses: base, daemon/attempt, daemon/devices.   Threads: immutable once opened.
 */
#ifndef HD_DAEMON_AGENT_IDENTITY_H
#define HD_DAEMON_AGENT_IDENTITY_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "daemon/agent/address.h"
#include "daemon/agent/epoch.h"
#include "daemon/attempt/attempt.h"
#include "daemon/devices/devices.h"

enum { AGENT_UUID_MAX = 40, AGENT_NAME_MAX = 64 };

/* How the jobs here are kept apart, as NodeIsolation has it. */
struct agent_isolation {
    const char *mode, *tier;
    char users[640]; /* as whom ranks can run here: "own", "all", or names (job_user.h) */
    struct hd_text locks, lacks;
};

struct agent_identity {
    char state_dir[PATH_MAX];       /* absolute */
    char node_name[AGENT_NAME_MAX]; /* [a-z0-9][-a-z0-9.]* */
    char node_uuid[AGENT_UUID_MAX], boot_id[HD_ATTEMPT_BOOT_MAX], instance_id[AGENT_UUID_MAX];
    char cluster[AGENT_NAME_MAX]; /* "": of none yet, or not read */
    char host[AGENT_NAME_MAX];    /* the machine's host name, if not node_name; "": it is */
    struct agent_epoch epoch;     /* the controller that was obeyed */
    int lock_fd;

    const struct hd_devices *devices;     /* set by the agent: what the node offers */
    const struct hd_inventory *inventory; /* likewise: its links and adapters; NULL: not known */
    bool spans;                           /* likewise: ranks can work with ranks of other nodes */
    char compute[72];   /* likewise: of its CPU devices: instruction set, library */
    const char *traits; /* likewise: of its CPU devices, as a word; "": not known */
    const struct agent_isolation *isolation; /* likewise; NULL: not known */
    /* likewise: the address for ranks of other nodes; "": there is none */
    char data_address[AGENT_ADDRESS_MAX];
};

/* Opens the state directory. node_name NULL: the name under which the cluster knows this node
 * already, else the host's: a machine that is renamed is the same node. HD_CONFLICT: another
 * heddled has the state directory. */
enum hd_status agent_identity_open(const char *state_dir, const char *node_name,
                                   struct agent_identity *ret_identity);
void agent_identity_close(struct agent_identity *identity);
/* Locks a directory that was put in the place of the one that was opened, and writes UUID and
 * cluster to it. HD_CONFLICT: another heddled uses it, or it is another node's. */
enum hd_status agent_identity_take(struct agent_identity *identity);

/* Keeps the node's name in STATE_DIR/node-name, because the cluster has accepted it. */
void agent_identity_keep_name(const struct agent_identity *identity);

/* The cluster that the state directory belongs to; "" if it belongs to none yet. */
enum hd_status agent_identity_read_cluster(struct agent_identity *identity,
                                           char ret_cluster[AGENT_NAME_MAX]);
enum hd_status agent_identity_write_cluster(struct agent_identity *identity, const char *cluster);

#endif
