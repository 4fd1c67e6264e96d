/* rpc_internal: declarations that the files of lib/rpc share.
 *
 * Threads. The completion thread waits in grpc_completion_queue_next, which also does gRPC's I/O.
 * It appends each event {tag, ok} to a buffer and wakes the loop; it does not access what the tag
 * points to. All state of calls, servers and clients belongs to the loop's thread.
 *
 * Invariants
 *  1. hd_rpc_expect is called before every batch and accept request. Each ends with exactly one
 *     event, so the buffers always have space and the completion thread never allocates.
 *  2. rpc->live counts servers, clients and calls that have not ended. The completion queue is shut
 *     down only when it is 0 and the context is closing: gRPC aborts the process if a batch is
 *     started later.
 *  3. A call has at most one read and one write batch in flight, plus its final one. After the last
 *     of them on_done runs and the grpc_call is released; the last reference frees the memory.
 *  4. A server is freed when its shutdown event arrived, its accept slots are freed, its calls have
 *     ended, and its libuv handles are closed (hd_rpc_server_release).
 */
#ifndef HD_RPC_INTERNAL_H
#define HD_RPC_INTERNAL_H

#include <grpc/grpc.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "rpc/rpc.h"

/* The operation that an event belongs to (gRPC's tag of a batch): fn is called on the loop's thread
 * when the batch ends. */
struct hd_rpc_op {
    void (*fn)(struct hd_rpc_op *op, bool ok);
};

#define HD_RPC_OWNER(op, type, member) ((type *)((char *)(op)-offsetof(type, member)))

struct hd_rpc_event {
    struct hd_rpc_op *op;
    bool ok;
};

struct hd_rpc {
    uv_loop_t *loop;
    grpc_completion_queue *cq;
    uv_thread_t thread;
    uv_async_t async;

    uv_mutex_t mutex; /* guards incoming, incoming_count and queue_ended */
    struct hd_rpc_event *incoming;
    size_t incoming_count;
    bool queue_ended;

    struct hd_rpc_event *current; /* buffer that the loop processes */
    size_t capacity;              /* capacity of each of the two buffers, events */
    /* number of events announced by hd_rpc_expect that have not been processed */
    size_t expected;

    size_t live; /* number of servers, clients and calls that have not ended (invariant 2) */
    struct hd_rpc_server *servers;
    struct hd_rpc_client *clients;
    bool closing, queue_down;
    void (*on_closed)(void *user);
    void *on_closed_user;
};

/* Reserves space for an event; call it before a batch or accept request starts. Fails only with
 * HD_NO_MEMORY. */
enum hd_status hd_rpc_expect(struct hd_rpc *rpc);
/* Takes back one hd_rpc_expect, because the batch could not be started. */
void hd_rpc_expect_cancel(struct hd_rpc *rpc);
void hd_rpc_live_drop(struct hd_rpc *rpc); /* counts that a server, client or call has ended */

/* Queues an event without a batch: `op` runs on the loop later. For work that must not run inside a
 * function that the user called. */
enum hd_status hd_rpc_post(struct hd_rpc *rpc, struct hd_rpc_op *op);

/* ---- calls (call.c) ---- */

struct hd_rpc_pair {
    char *key, *value;
};

struct hd_rpc_out { /* one message in a send queue */
    struct hd_rpc_out *next;
    grpc_byte_buffer *buffer;
    size_t size_bytes;
};

enum hd_rpc_ending {
    HD_RPC_ENDING_NONE,
    HD_RPC_ENDING_FINISH, /* send the queue, then the status (server) or half-close (client) */
    HD_RPC_ENDING_FAIL,   /* server: drop the send queue and send the status */
    HD_RPC_ENDING_SENT,   /* passed to gRPC; nothing more is sent */
};

struct hd_rpc_call {
    struct hd_rpc *rpc;
    /* The side that the call belongs to: one is set, the other NULL; both are NULL after the call's
     * end. */
    struct hd_rpc_server *server;
    struct hd_rpc_client *client;
    struct hd_rpc_call *next, **link; /* neighbours in the client's list */
    grpc_call *call;                  /* gRPC's call; NULL after its end */
    int refs;

    enum hd_rpc_kind kind;
    const char *path;
    /* owned memory of `path`, on a client and for unknown methods; NULL: `path` is the method's */
    char *path_copy;
    const ProtobufCMessageDescriptor *incoming;
    struct hd_rpc_handler handler;
    void *user;
    int64_t deadline_ms; /* deadline on the clock of hd_clock_now_ms; INT64_MAX: none */
    char *peer;
    struct hd_rpc_principal principal;
    grpc_metadata_array received; /* client: the server's initial metadata */
    struct hd_rpc_pair *pairs;    /* server: copy of the client's metadata, without binary values */
    size_t pairs_count;
    bool wait_for_ready;    /* client: retry to connect until the deadline */
    grpc_metadata *headers; /* this side's initial metadata */
    size_t headers_count;

    struct hd_rpc_op on_opened, on_read, on_written, on_final, on_posted;
    /* true while that operation is in progress: its event has not arrived */
    bool opening, reading, writing, posted;
    bool final;  /* the final event arrived: the call is over */
    bool opened; /* on_open has run; a server then calls on_done, too */
    bool read_ended, paused;
    /* server, not BIDI: the call is authorised, and its request message is being read */
    bool awaits_request;
    /* the call was cancelled on this side: messages that still arrive are dropped */
    bool abandoned;
    bool done; /* the call has reached its end, where on_done is called */

    grpc_byte_buffer *read_buffer;
    size_t received_count;
    ProtobufCMessage *held;     /* message received while the call is paused; NULL: none */
    ProtobufCMessage *delivery; /* argument of the callback that is running */

    struct hd_rpc_out *out_first, **out_last; /* messages to send, in order */
    bool message_in_flight;                   /* the write batch in progress uses out_first */
    size_t out_count, out_bytes, queue_len_max, queue_bytes_max, message_bytes_max;
    bool headers_sent;
    enum hd_rpc_ending ending;
    enum hd_status end_status; /* server: status that the call ends with */
    bool unauthenticated;      /* server: HD_DENIED is sent as UNAUTHENTICATED */
    char *end_message;
    char *label;
    /* flag for the server's own use (hd_rpc_call_set_mark); on_answer was called */
    bool mark, answered;

    int cancelled;         /* server: gRPC's result of the call, set with `final` */
    bool status_delivered; /* server: the status reached gRPC */
    /* client: the server's trailers, status and details, set with `final` */
    grpc_metadata_array trailers;
    grpc_status_code code;
    grpc_slice details;
    struct hd_error *local; /* client: a failure on this side; overrides the received status */
    char *failure_text;     /* client: the error message; NULL: none */
    int64_t timeout_ms;     /* time limit of the call, for the client's error message */
};

/* Returns a call with one reference, counted as live. */
struct hd_rpc_call *hd_rpc_call_make(struct hd_rpc *rpc);
/* Starts a batch of operations of a call. The batch holds a reference, which op->fn drops with
 * hd_rpc_call_unref. */
enum hd_status hd_rpc_call_start(struct hd_rpc_call *call, const grpc_op *ops, size_t count,
                                 struct hd_rpc_op *op);
/* starts sending the next queued message, if any */
void hd_rpc_call_send(struct hd_rpc_call *call);
void hd_rpc_call_read(struct hd_rpc_call *call); /* starts reading the next message, if possible */
/* Sends, reads or ends the call, depending on its state; called after each of its events. */
void hd_rpc_call_settle(struct hd_rpc_call *call);
/* Handles the end of the operation call->on_final: the call has its status. */
void hd_rpc_call_on_final(struct hd_rpc_op *op, bool ok);
enum hd_status hd_rpc_call_enqueue(struct hd_rpc_call *call, const ProtobufCMessage *msg);
/* drops queued messages that no write batch uses */
void hd_rpc_call_drop_queue(struct hd_rpc_call *call);
/* Cancels the call; on a client, st and hd_err_message() become its result. */
void hd_rpc_call_give_up(struct hd_rpc_call *call, enum hd_status st);
/* Calls on_open with msg (may be NULL), then frees msg if the handler did not take it. */
void hd_rpc_call_open(struct hd_rpc_call *call, ProtobufCMessage *msg);
/* Checks and unpacks a received message; destroys `buffer`, also after a failure. */
enum hd_status hd_rpc_unpack_buffer(const ProtobufCMessageDescriptor *descriptor,
                                    grpc_byte_buffer *buffer, ProtobufCMessage **ret_msg);
bool hd_rpc_slice_is(grpc_slice slice, const char *text);

/* ---- the two sides ---- */

/* Continues an authorised call with its request message; NULL: the client has sent none. */
void hd_rpc_server_requested(struct hd_rpc_call *call, ProtobufCMessage *request);
void hd_rpc_server_remove_call(struct hd_rpc_call *call); /* removes a call that has ended */
/* Calls the server's on_answer, once, when the call's result is known. */
void hd_rpc_server_answered(struct hd_rpc_call *call, enum hd_status st);
void hd_rpc_client_remove_call(struct hd_rpc_call *call);
/* Return the status of an ended call and set *ret_message to its error message, both for on_done;
 * the call owns the message. */
enum hd_status hd_rpc_server_outcome(struct hd_rpc_call *call, const char **ret_message);
enum hd_status hd_rpc_client_outcome(struct hd_rpc_call *call, const char **ret_message);

#define HD_RPC_STATUS_TRAILER  "heddle-status"   /* name of the exact hd_status */
#define HD_RPC_ACCEPTED_HEADER "heddle-accepted" /* the server accepted the stream */

/* Returns advice for a connection failure that gRPC describes with `details`; NULL: none is known.
 */
const char *hd_rpc_explain_no_connection(const char *details, size_t len_bytes);

#endif
