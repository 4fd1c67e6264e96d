/* identity: the name, UUIDs and state directory of this heddled.
 *
 *     STATE_DIR/lock          locked while a heddled uses the directory
 *     STATE_DIR/node-uuid     made at the first start, never changed
 *     STATE_DIR/node-name     the node's name in the cluster
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

/* How this node isolates jobs, in the form of the message NodeIsolation. */
struct agent_isolation {
    const char *mode, *tier;
    /* users as whom ranks can run on this node: "own", "all", or names (job_user.h) */
    char users[640];
    struct hd_text locks, lacks;
};

struct agent_identity {
    char state_dir[PATH_MAX];       /* absolute path of the state directory */
    char node_name[AGENT_NAME_MAX]; /* name of the node in the cluster, [a-z0-9][-a-z0-9.]* */
    char node_uuid[AGENT_UUID_MAX], boot_id[HD_ATTEMPT_BOOT_MAX], instance_id[AGENT_UUID_MAX];
    char cluster[AGENT_NAME_MAX]; /* id of the cluster; "": no cluster yet, or not read */
    char host[AGENT_NAME_MAX]; /* the machine's host name if it differs from node_name; else "" */
    struct agent_epoch epoch;  /* epoch of the controller that was obeyed last */
    int lock_fd;

    const struct hd_devices *devices; /* devices that the node offers; set by the agent */
    /* links between devices, and network adapters; set by the agent; NULL: unknown */
    const struct hd_inventory *inventory;
    /* ranks on this node can communicate with ranks of other nodes; set by the agent */
    bool spans;
    /* instruction set and matrix library of the CPU devices; set by the agent */
    char compute[72];
    /* traits of the CPU devices for the planner, encoded as text; set by the agent; "": unknown */
    const char *traits;
    /* isolation of jobs; set by the agent; NULL: unknown */
    const struct agent_isolation *isolation;
    /* address at which ranks of other nodes connect; set by the agent; "": none */
    char data_address[AGENT_ADDRESS_MAX];
};

/* Opens the state directory. node_name NULL: uses the stored name under which the cluster knows the
 * node, else the host's name, so that a renamed machine stays the same node. HD_CONFLICT: another
 * heddled uses the state directory. */
enum hd_status agent_identity_open(const char *state_dir, const char *node_name,
                                   struct agent_identity *ret_identity);
void agent_identity_close(struct agent_identity *identity);
/* Locks a state directory that replaced the opened one, and writes UUID and cluster to it.
 * HD_CONFLICT: another heddled uses the directory, or it belongs to another node. */
enum hd_status agent_identity_take(struct agent_identity *identity);

/* Stores the node's name in STATE_DIR/node-name, once the cluster has accepted it. */
void agent_identity_keep_name(const struct agent_identity *identity);

/* Reads the id of the cluster that the state directory belongs to; "": none yet. */
enum hd_status agent_identity_read_cluster(struct agent_identity *identity,
                                           char ret_cluster[AGENT_NAME_MAX]);
enum hd_status agent_identity_write_cluster(struct agent_identity *identity, const char *cluster);

#endif
