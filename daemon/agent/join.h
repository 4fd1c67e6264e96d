/* join: how a node gets its certificate, and keeps one that is valid.
 *
 *     STATE_DIR/tls/ca.pem       the cluster's authority
 *     STATE_DIR/tls/node.pem     the node's certificate and key; replaced at once, by renaming
 *     STATE_DIR/tls/previous.pem the pair before, shown where that in node.pem is not valid yet or
 *                                has expired: it was made while a clock was wrong
 *     STATE_DIR/tls/controller   two lines: HOST:PORT of the controller, the node's name
 *
 *   heddled join LINE: authority fetched and compared with the line's hash -> key and request made
 *   -> Fleet.Join with the line's secret -> the files written, `controller` last
 *   heddled: two thirds of the certificate's life over -> Fleet.Renew by the open connection ->
 *   node.pem replaced; the next connection shows it
 *
 * Used by: main.c, agent.c, stream.c.   Uses: base, pki, rpc, the messages.   Threads: the loop's.
 */
#ifndef HD_DAEMON_AGENT_JOIN_H
#define HD_DAEMON_AGENT_JOIN_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "rpc/rpc.h"

struct agent;
struct agent_options;

struct agent_joined {
    bool joined;
    char ca_path[PATH_MAX], newest_path[PATH_MAX], previous_path[PATH_MAX];
    char cert_path[PATH_MAX]; /* path of the pair that is shown, one of these two */
    char address[256], node[64];
    int64_t from_ms, to_ms;  /* wall clock: when the certificate is valid */
    struct agent_cert_file { /* of node.pem, as it was read */
        uint64_t inode;
        int64_t changed_ns;
    } file;
    int64_t again_ms;     /* between two tries */
    int64_t renew_ms;     /* wall clock: when the next certificate is due */
    int64_t asked_ms;     /* when it was asked for last (monotonic); 0: not since the newest */
    bool asking, renewed; /* renewed: node.pem is newer than the connection's */
    struct hd_text *key;  /* of the request that waits for its answer */
};

/* Joins the cluster of the line; "-": the line comes from standard input. node_name: needed where
 * the line is for many nodes, else NULL or the line's name. */
enum hd_status agent_join(const char *state_dir, const char *line, const char *node_name);
/* Returns whether the certificate is to be renewed: two thirds of its life are over, or it is not
 * valid yet, because it was made while a clock was ahead. */
bool agent_joined_is_due(const struct agent_joined *joined, int64_t now_ms);
/* Returns whether the folder holds the files of a join, with a valid certificate: there is no need
 * to join. */
bool agent_has_joined(const char *state_dir);
/* Finds what a join has left in the state directory, and fills in the options that were not
 * given: controller, node name, TLS. Nothing changes if the node has not joined, or if TLS or a
 * token was given. HD_INVALID, HD_IO: the files are damaged. */
enum hd_status agent_joined_open(struct agent_joined *joined, struct agent_options *options);
/* HD_DENIED: the certificate of a node that has joined has expired, or is not valid yet. */
enum hd_status agent_joined_check(const struct agent_joined *joined);
/* Before a connection: whether heddled join has put another certificate there. Then `renewed`. */
bool agent_check_joined(struct agent_joined *joined);
void agent_joined_close(struct agent_joined *joined);
void agent_joined_tick(struct agent *agent); /* asks for the next certificate when it is due */

#endif
