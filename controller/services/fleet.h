/* fleet: the streams of daemons; what the files of the gRPC service Fleet share.
 *
 *   fleet.c           one Connect stream and one Logs stream per daemon, and its Hello
 *   fleet_streams.c   finds a stream, and writes messages to it; calls nothing of this folder
 *   fleet_send.c      messages to a daemon: desired sets, removal, probe requests
 *   fleet_receive.c   messages from a daemon: observed sets, reports
 *   fence.c           stops a second controller of the same cluster
 *   copies.c          refuses a second daemon with the same node UUID
 *
 * Used by: these files, convert.c.   Uses: internal.h.   Threads: the loop's.
 */
#ifndef HD_CONTROLLER_SERVICES_FLEET_H
#define HD_CONTROLLER_SERVICES_FLEET_H

#include "controller/services/internal.h"

enum { FLEET_PEER_MAX = 128 }; /* bytes of a daemon's network address with its NUL */

struct node_stream {
    struct controller *c;
    struct hd_rpc_call *call, *logs;
    char uuid[HD_CTL_NAME_BYTES_MAX + 1], name[HD_CTL_NAME_BYTES_MAX + 1];
    /* id of the daemon's process; "": a daemon too old to send one */
    char instance[HD_CTL_NAME_BYTES_MAX + 1];
    /* Hello of this daemon that is neither accepted nor refused yet, because an older stream of the
     * same node may be alive; NULL: none */
    Heddle__V1__NodeMessage *held;
    /* time since which `held` waits for a decision; time of the daemon's last message (both
     * monotonic) */
    int64_t held_ms, received_ms;
    uint64_t number; /* number of this stream in the core; 0: no Hello accepted yet */
    bool welcomed;   /* Welcome was sent; before it a daemon sends only Hello */
    int64_t kept_ms; /* time of the last keep-alive while the disk takes no writes (monotonic) */
    uint64_t sent_progress; /* newest progress value sent to the daemon (fence.c) */
    bool knows_users;       /* the daemon understands DesiredAttempt.run_as */
    /* an operator removed the node: further messages of its daemon are dropped */
    bool removed;
    struct { /* last refusal of a second daemon with this node's UUID (copies.c) */
        char from[FLEET_PEER_MAX];
        int64_t refused_ms;  /* time of that refusal; 0: none (monotonic) */
        int64_t reported_ms; /* time of the last event that reported such a refusal; 0: none */
    } copy;
    struct node_stream *next;
};

/* Returns the stream of a node whose Hello was accepted; NULL: the node has none. */
struct node_stream *fleet_find_node(const struct controller *c, const char *uuid);
/* Returns the stream that the core knows by this number; NULL: the stream has ended. */
struct node_stream *fleet_find_stream(const struct controller *c, uint64_t number);
/* Sends a message to the daemon. A daemon that reads too slowly loses its stream and reconnects.
 * Other failures, such as a message that is too large, are only logged: they would happen again on
 * a new stream. */
void fleet_send_message(struct node_stream *s, const Heddle__V1__ControllerMessage *message);
/* Accepts, holds or refuses the Hello of a daemon. Call in a transaction. After a failure the
 * caller ends the stream. */
enum hd_status fleet_take_hello(struct node_stream *s, const Heddle__V1__Hello *hello);

/* Sends the daemon a probe request if one is pending (hd_core_probe_asked). The other senders of
 * fleet_send.c are in internal.h; they send after the commit. */
void fleet_ask_for_probe(struct node_stream *s);
/* Pass a daemon's observed set, or its reports, to the core. Call in a transaction. */
enum hd_status fleet_receive_observed(struct node_stream *s, const Heddle__V1__ObservedState *m);
enum hd_status fleet_take_reports(struct node_stream *s, const Heddle__V1__Reports *m);

/* Compares this controller's epoch with the one that the daemon obeyed last (`seen`; NULL: none),
 * in the transaction of its Hello. HD_UNAVAILABLE: another controller leads; controller_fail was
 * called. */
enum hd_status fence_take(struct controller *c, const char *node, const Heddle__V1__Epoch *seen);
/* Returns whether the epoch that a node obeyed last (`seen`) is older than the restore of this
 * database from a backup: then this database may lack work that the node did for the controller of
 * that epoch. Call fence_take first. */
bool fence_is_before(const struct controller *c, const Heddle__V1__Epoch *seen);
/* Returns this controller's epoch as a message for a daemon. The message is valid until the next
 * call. */
Heddle__V1__Epoch fence_claim(struct controller *c, uint64_t progress);

/* Returns the stream of another heddled process with the same node UUID; NULL: none. A daemon that
 * reconnects after a network failure is the same process, so its new stream replaces its old one at
 * once. */
struct node_stream *copies_find_twin(const struct node_stream *s, const Heddle__V1__Hello *hello);
/* Holds the Hello of this stream until copies_check finds out which of the two daemons with this
 * node UUID is alive. Call in the callback that received the Hello. */
enum hd_status copies_hold(struct node_stream *s);
/* Accepts or refuses each held Hello once it is clear whether the other daemon with the same node
 * UUID is alive. */
void copies_check(struct controller *c);
/* Appends from which address a second daemon with this node's UUID was refused in the last minute;
 * appends nothing if none was refused. */
void copies_describe(const struct controller *c, const char *uuid, struct hd_text *ret_text);

#endif
