/* fleet: the streams of daemons, as the files of the service Fleet share them.
 *
 *   fleet.c        one Connect stream and one Logs stream per daemon, and its Hello
 *   fleet_send.c   what a daemon is told: desired sets, removal, probes
 *   fleet_receive.c   what a daemon tells: observed sets, reports
 *   fence.c        two controllers of one cluster
 *   copies.c       two daemons that call themselves the same node
 *
 * Used by: these files, convert.c.   Uses: internal.h.   Threads: the loop's.
 */
#ifndef HD_CONTROLLER_SERVICES_FLEET_H
#define HD_CONTROLLER_SERVICES_FLEET_H

#include "controller/services/internal.h"

enum { FLEET_PEER_MAX = 128 }; /* bytes of an address with its NUL */

struct node_stream {
    struct controller *c;
    struct hd_rpc_call *call, *logs;
    char uuid[HD_CTL_NAME_BYTES_MAX + 1], name[HD_CTL_NAME_BYTES_MAX + 1];
    char instance[HD_CTL_NAME_BYTES_MAX + 1]; /* of its daemon's process; "": an old daemon's */
    Heddle__V1__NodeMessage *held; /* its Hello, while an older stream of the node may be alive */
    int64_t held_ms, received_ms;  /* since when; when its daemon said something (monotonic) */
    uint64_t number;               /* of the stream, for the core; 0: no Hello yet */
    bool welcomed;   /* Welcome was sent; until then its daemon sends nothing but Hello */
    int64_t kept_ms; /* while the disk takes no writes: when it was sent something (monotonic) */
    uint64_t sent_progress; /* the last progress that its daemon was told (fence.c) */
    bool knows_users;       /* its daemon reads DesiredAttempt.run_as */
    bool removed;           /* the node was removed: messages of its daemon are dropped */
    struct {                /* a copy of this node that was refused (copies.c) */
        char from[FLEET_PEER_MAX];
        int64_t refused_ms;  /* the last time; 0: none was (monotonic) */
        int64_t reported_ms; /* when an event told it */
    } copy;
    struct node_stream *next;
};

/* The stream of the node, after its Hello; NULL: it has none. */
struct node_stream *fleet_find_node(const struct controller *c, const char *uuid);
/* The stream with this number; NULL: it has ended. */
struct node_stream *fleet_find_stream(const struct controller *c, uint64_t number);
/* Ends the stream of a daemon that reads too slowly: it connects again. Other failures (a message
 * that is too large) are only logged, because they would happen again on a new stream. */
void fleet_send_message(struct node_stream *s, const Heddle__V1__ControllerMessage *message);
/* In a transaction: a Hello that was not answered yet. */
enum hd_status fleet_take_hello(struct node_stream *s, const Heddle__V1__Hello *hello);

/* Sends the daemon the request for a probe, if one is open (hd_core_probe_asked). fleet_send.c also
 * has fleet_send_desired, fleet_send_removed and fleet_send_probe_request of internal.h, which send
 * once the transaction is durable. */
void fleet_ask_for_probe(struct node_stream *s);
/* In a transaction. */
enum hd_status fleet_receive_observed(struct node_stream *s, const Heddle__V1__ObservedState *m);
enum hd_status fleet_take_reports(struct node_stream *s, const Heddle__V1__Reports *m);

/* Compares this controller with the one that the daemon has obeyed (NULL: none), in the transaction
 * of its Hello. HD_UNAVAILABLE: another controller leads, and this one has failed. */
enum hd_status fence_take(struct controller *c, const char *node, const Heddle__V1__Epoch *seen);
/* Whether the last controller that a node obeyed led before this database was put back: what the
 * node did for it may be missing here. To be asked after fence_take. */
bool fence_is_before(const struct controller *c, const Heddle__V1__Epoch *seen);
/* Returns the epoch for a daemon; valid until the next call. */
Heddle__V1__Epoch fence_claim(struct controller *c, uint64_t progress);

/* The stream of another process with the same node's UUID; NULL: none. A daemon whose network was
 * cut is the same process, and takes its stream over at once. */
struct node_stream *copies_find_twin(const struct node_stream *s, const Heddle__V1__Hello *hello);
/* In the callback of the stream's Hello: keeps it until copies_check knows which one lives. */
enum hd_status copies_hold(struct node_stream *s);
/* Answers or refuses each Hello that is held, once it is known whether its twin lives. */
void copies_check(struct controller *c);
/* Appends that a copy of the node was refused lately, and from where; nothing if none was. */
void copies_describe(const struct controller *c, const char *uuid, struct hd_text *ret_text);

#endif
