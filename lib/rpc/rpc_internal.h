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

/* The tag of a batch: fn is called on the loop's thread when the batch ends. */
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

    struct hd_rpc_event *current; /* processed by the loop */
    size_t capacity;              /* capacity of each of the two buffers */
    size_t expected;              /* events that have not been processed */

    size_t live; /* invariant 2 */
    struct hd_rpc_server *servers;
    struct hd_rpc_client *clients;
    bool closing, queue_down;
    void (*on_closed)(void *user);
    void *on_closed_user;
};

/* Reserves space for an event; call it before a batch or accept request starts. Fails only with
 * HD_NO_MEMORY. */
enum hd_status hd_rpc_expect(struct hd_rpc *rpc);
void hd_rpc_expect_cancel(struct hd_rpc *rpc); /* the batch could not be started */
void hd_rpc_live_drop(struct hd_rpc *rpc);     /* a server, client or call has ended */

/* Posts an event: `op` runs on the loop later. For work that must not run inside a function that
 * the user called. */
enum hd_status hd_rpc_post(struct hd_rpc *rpc, struct hd_rpc_op *op);

/* ---- calls (call.c) ---- */

struct hd_rpc_pair {
    char *key, *value;
};

struct hd_rpc_out { /* a message in a send queue */
    struct hd_rpc_out *next;
    grpc_byte_buffer *buffer;
    size_t size_bytes;
};

enum hd_rpc_ending {
    HD_RPC_ENDING_NONE,
    HD_RPC_ENDING_FINISH, /* after the queue send the status (server) or half-close (client) */
    HD_RPC_ENDING_FAIL,   /* server: drop the queue and send the status */
    HD_RPC_ENDING_SENT,   /* given to gRPC; nothing more is sent */
};

struct hd_rpc_call {
    struct hd_rpc *rpc;
    struct hd_rpc_server *server; /* server or client is set, the other NULL; after the end both */
    struct hd_rpc_client *client;
    struct hd_rpc_call *next, **link; /* the client's list */
    grpc_call *call;                  /* NULL after the end */
    int refs;

    enum hd_rpc_kind kind;
    const char *path;
    char *path_copy; /* memory of `path`: client; server: of an unknown method */
    const ProtobufCMessageDescriptor *incoming;
    struct hd_rpc_handler handler;
    void *user;
    int64_t deadline_ms; /* of hd_clock_now_ms; INT64_MAX: none */
    char *peer;
    struct hd_rpc_principal principal;
    grpc_metadata_array received; /* client: the server's initial metadata */
    struct hd_rpc_pair *pairs;    /* server: copy of the client's metadata, without binary values */
    size_t pairs_count;
    bool wait_for_ready;    /* client */
    grpc_metadata *headers; /* this side's initial metadata */
    size_t headers_count;

    struct hd_rpc_op on_opened, on_read, on_written, on_final, on_posted;
    bool opening, reading, writing, posted; /* the event is expected */
    bool final;                             /* the final event arrived: the call is over */
    bool opened;                            /* past on_open; a server then calls on_done, too */
    bool read_ended, paused;
    bool awaits_request; /* server, not BIDI: admitted, and its message is being read */
    bool abandoned;      /* cancelled on this side: later messages are dropped */
    bool done;           /* the end, where on_done is called, was reached */

    grpc_byte_buffer *read_buffer;
    size_t received_count;
    ProtobufCMessage *held;     /* received while paused */
    ProtobufCMessage *delivery; /* argument of the callback that runs now */

    struct hd_rpc_out *out_first, **out_last; /* the send queue */
    bool message_in_flight;                   /* out_first belongs to the write batch */
    size_t out_count, out_bytes, queue_len_max, queue_bytes_max, message_bytes_max;
    bool headers_sent;
    enum hd_rpc_ending ending;
    enum hd_status end_status; /* server */
    bool unauthenticated;      /* server: HD_DENIED is sent as UNAUTHENTICATED */
    char *end_message;
    char *label;
    bool mark, answered; /* answered: on_answer was called */

    int cancelled;                /* server, final */
    bool status_delivered;        /* server */
    grpc_metadata_array trailers; /* client, final */
    grpc_status_code code;
    grpc_slice details;
    struct hd_error *local; /* client: a failure on this side; overrides the received status */
    char *failure_text;     /* client: the error message; NULL: none */
    int64_t timeout_ms;     /* client, for the error message */
};

struct hd_rpc_call *hd_rpc_call_make(struct hd_rpc *rpc); /* one reference, counted as live */
/* Starts a batch; it holds a reference, which op->fn drops with hd_rpc_call_unref. */
enum hd_status hd_rpc_call_start(struct hd_rpc_call *call, const grpc_op *ops, size_t count,
                                 struct hd_rpc_op *op);
void hd_rpc_call_send(struct hd_rpc_call *call);   /* starts the next write, if there is one */
void hd_rpc_call_read(struct hd_rpc_call *call);   /* starts the next read, if possible */
void hd_rpc_call_settle(struct hd_rpc_call *call); /* after every event: sends, reads or ends */
enum hd_status hd_rpc_call_enqueue(struct hd_rpc_call *call, const ProtobufCMessage *msg);
void hd_rpc_call_drop_queue(struct hd_rpc_call *call); /* messages that are not in flight */
/* Cancels; on a client st and hd_err_message() become the call's result. */
void hd_rpc_call_give_up(struct hd_rpc_call *call, enum hd_status st);
/* Calls on_open with msg (may be NULL), then frees msg if the handler did not take it. */
void hd_rpc_call_open(struct hd_rpc_call *call, ProtobufCMessage *msg);
/* Checks and unpacks the message; destroys `buffer`, also after a failure. */
enum hd_status hd_rpc_unpack_buffer(const ProtobufCMessageDescriptor *descriptor,
                                    grpc_byte_buffer *buffer, ProtobufCMessage **ret_msg);
bool hd_rpc_slice_is(grpc_slice slice, const char *text);

/* ---- the two sides ---- */

/* Continues an admitted call with its request message; NULL: the client has sent none. */
void hd_rpc_server_requested(struct hd_rpc_call *call, ProtobufCMessage *request);
void hd_rpc_server_remove_call(struct hd_rpc_call *call); /* the call has ended */
/* The call's answer is known. */
void hd_rpc_server_answered(struct hd_rpc_call *call, enum hd_status st);
void hd_rpc_client_remove_call(struct hd_rpc_call *call);
/* The status and error message for on_done; the call owns the message. */
enum hd_status hd_rpc_server_outcome(struct hd_rpc_call *call, const char **ret_message);
enum hd_status hd_rpc_client_outcome(struct hd_rpc_call *call, const char **ret_message);

#define HD_RPC_STATUS_TRAILER  "heddle-status"   /* the exact hd_status by name */
#define HD_RPC_ACCEPTED_HEADER "heddle-accepted" /* the server accepted the stream: on_open */

/* What gRPC says of a connection that failed, in words that name what to do; NULL: no row fits. */
const char *hd_rpc_explain_no_connection(const char *details, size_t len_bytes);

#endif
