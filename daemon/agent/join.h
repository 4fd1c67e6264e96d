/* join: gets a certificate for a node and keeps it valid.
 *
 *     STATE_DIR/tls/ca.pem       the cluster's CA
 *     STATE_DIR/tls/node.pem     the node's certificate and key; replaced atomically, by renaming
 *     STATE_DIR/tls/previous.pem the previous pair, used while that in node.pem is not valid yet or
 *                                has expired: it was made while a clock was wrong
 *     STATE_DIR/tls/controller   two lines: HOST:PORT of the controller, the node's name
 *
 *   heddled join LINE: CA fetched and compared with the line's hash -> key and request made
 *   -> Fleet.Join with the line's secret -> the files written, `controller` last
 *   heddled: two thirds of the certificate's life over -> Fleet.Renew by the open connection ->
 *   node.pem replaced; the next connection uses it
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
    /* path of the file with certificate and key in use, newest_path or previous_path */
    char cert_path[PATH_MAX];
    char address[256], node[64];
    int64_t from_ms, to_ms;  /* validity of the certificate, wall clock */
    struct agent_cert_file { /* version of node.pem when it was read */
        uint64_t inode;
        int64_t changed_ns;
    } file;
    int64_t again_ms; /* pause between two tries to renew the certificate, ms */
    int64_t renew_ms; /* time when the certificate is to be renewed, wall clock */
    /* time of the last renewal request (monotonic); 0: none since the newest certificate */
    int64_t asked_ms;
    /* asking: a renewal request waits for its reply; renewed: node.pem is newer than the
     * certificate of the connection */
    bool asking, renewed;
    struct hd_text *key; /* private key for the certificate that is being requested */
};

/* Joins the cluster that the invitation `line` names; "-": reads the line from standard input.
 * node_name: required if the line invites many nodes, else NULL or the line's name. */
enum hd_status agent_join(const char *state_dir, const char *line, const char *node_name);
/* Returns whether to renew the certificate: two thirds of its life are over, or it is not valid
 * yet, because it was made while a clock was ahead. */
bool agent_joined_is_due(const struct agent_joined *joined, int64_t now_ms);
/* Returns whether the state directory has the files of a join and a valid certificate, so that the
 * node need not join again. */
bool agent_has_joined(const char *state_dir);
/* Reads the files that a join left in the state directory and sets the options that were not given:
 * controller, node name, TLS. Changes nothing if the node has not joined, or if TLS or a token was
 * given. HD_INVALID, HD_IO: the files are damaged. */
enum hd_status agent_joined_open(struct agent_joined *joined, struct agent_options *options);
/* Checks the validity dates of a joined node's certificate. HD_DENIED: the certificate has expired,
 * or is not valid yet. */
enum hd_status agent_joined_check(const struct agent_joined *joined);
/* Checks, before a connection is opened, whether `heddled join` has written another certificate;
 * then sets `renewed`. */
bool agent_check_joined(struct agent_joined *joined);
void agent_joined_close(struct agent_joined *joined);
/* requests the node's next certificate when it is due */
void agent_joined_tick(struct agent *agent);

#endif
