/* rpc_internal: what the files of this room share.
 *
 * Threads. One thread (the completion thread) does gRPC's I/O inside grpc_completion_queue_next. It
 * never looks into a tag: it appends {tag, ok} to a buffer and wakes the loop. Everything else, all
 * state of calls, servers and clients, belongs to the loop's thread.
 *
 * Invariants
 *  1. Every batch and every accept request is announced with hd_rpc_expect before it starts and
 *     ends with exactly one event; so the buffers always have room and the completion thread never
 *     allocates.
 *  2. rpc->live counts servers, clients and calls that have not ended. The completion queue is shut
 *     down only when it is 0 and the context is closing: a batch started later aborts the process.
 *  3. A call has at most one read and one write batch in flight, plus its final one. on_done runs
 *     when none is left; the grpc_call is released then, the memory with the last reference.
 *  4. A server is destroyed when its shutdown event has come, its accept slots are gone, its calls
 *     have ended, and its libuv handles are closed (hd_rpc_server_release).
 */
#ifndef HD_RPC_INTERNAL_H
#define HD_RPC_INTERNAL_H

#include <grpc/grpc.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "rpc/rpc.h"

/* What an event is about: the tag of a batch is the address of one of these. */
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

    struct hd_rpc_event *current; /* being worked off by the loop */
    size_t room;                  /* of both buffers */
    size_t expected;              /* events to come */

    size_t live;
    struct hd_rpc_server *servers;
    struct hd_rpc_client *clients;
    bool closing, queue_down;
    void (*on_closed)(void *user);
    void *on_closed_user;
};

/* Before each grpc_call_start_batch and the like. Fails for want of memory only. */
enum hd_status hd_rpc_expect(struct hd_rpc *rpc);
void hd_rpc_expect_cancel(struct hd_rpc *rpc); /* the batch could not be started */
void hd_rpc_live_drop(struct hd_rpc *rpc);     /* a server, client or call has ended */

/* Makes `op` run on the loop soon, as if a batch had ended: for what must not happen inside the
 * user's call. */
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
    HD_RPC_ENDING_FINISH, /* after the queue: status (server) or half-close (client) */
    HD_RPC_ENDING_FAIL,   /* server: status at once, the queue is dropped */
    HD_RPC_ENDING_SENT,   /* it is on its way; nothing more is sent */
};

struct hd_rpc_call {
    struct hd_rpc *rpc;
    struct hd_rpc_server *server; /* one of these two; NULL after the end */
    struct hd_rpc_client *client;
    struct hd_rpc_call *next, **link; /* the client's list */
    grpc_call *call;                  /* NULL after the end */
    int refs;

    enum hd_rpc_kind kind;
    const char *path;
    char *path_copy; /* server, of a method that it does not have */
    const ProtobufCMessageDescriptor *incoming;
    struct hd_rpc_handler handler;
    void *user;
    int64_t deadline_ms; /* of hd_clock_now_ms; INT64_MAX: none */
    char *peer;
    struct hd_rpc_principal principal;
    grpc_metadata_array received; /* client: the server's first metadata */
    struct hd_rpc_pair *pairs;    /* server: copies of the client's, without binary ones */
    size_t pairs_count;
    bool wait_for_ready;    /* client */
    grpc_metadata *headers; /* this side's first metadata */
    size_t headers_count;

    struct hd_rpc_op on_opened, on_read, on_written, on_final, on_posted;
    bool opening, reading, writing, posted; /* events to come */
    bool final;                             /* has come: the conversation is over */
    bool opened;                            /* on_open was due (server: so on_done is) */
    bool read_ended, paused;
    bool abandoned; /* cancelled here: what still comes in is dropped */
    bool done;      /* on_done was called */

    grpc_byte_buffer *read_buffer;
    size_t received_count;
    ProtobufCMessage *held;     /* received while paused */
    ProtobufCMessage *delivery; /* in the callback that runs now */

    struct hd_rpc_out *out_first, **out_last; /* the first one is in flight while `flying` */
    bool flying;
    size_t out_count, out_bytes, queue_len_max, queue_bytes_max, message_bytes_max;
    bool headers_sent;
    enum hd_rpc_ending ending;
    enum hd_status end_status; /* server */
    bool unauthenticated;      /* server: HD_DENIED because nobody knows who calls */
    char *end_message;

    int cancelled;                /* server, final */
    bool status_delivered;        /* server */
    grpc_metadata_array trailers; /* client, final */
    grpc_status_code code;
    grpc_slice details;
    struct hd_error *local; /* client: why this side gave up; wins over the status */
    char *story;
    int64_t timeout_ms; /* client, for the story */
};

struct hd_rpc_call *hd_rpc_call_make(struct hd_rpc *rpc); /* one reference, counted as live */
/* Adds the context's reference of the batch in flight; op->fn drops it with hd_rpc_call_unref. */
enum hd_status hd_rpc_call_start(struct hd_rpc_call *call, const grpc_op *ops, size_t count,
                                 struct hd_rpc_op *op);
void hd_rpc_call_send(struct hd_rpc_call *call);   /* starts the write that is due, if any */
void hd_rpc_call_read(struct hd_rpc_call *call);   /* starts a read if one is wanted */
void hd_rpc_call_settle(struct hd_rpc_call *call); /* send, read, or end: after every event */
enum hd_status hd_rpc_call_enqueue(struct hd_rpc_call *call, const ProtobufCMessage *msg);
void hd_rpc_call_drop_queue(struct hd_rpc_call *call);                 /* what is not in flight */
void hd_rpc_call_give_up(struct hd_rpc_call *call, enum hd_status st); /* client, with a story */
/* Calls on_open (with msg or NULL), and frees what the handler did not take. */
void hd_rpc_call_open(struct hd_rpc_call *call, ProtobufCMessage *msg);
/* Unpacks and destroys `buffer`. */
enum hd_status hd_rpc_unpack_buffer(const ProtobufCMessageDescriptor *descriptor,
                                    grpc_byte_buffer *buffer, ProtobufCMessage **ret_msg);
bool hd_rpc_slice_is(grpc_slice slice, const char *text);

/* ---- the two sides ---- */

void hd_rpc_server_forget(struct hd_rpc_call *call); /* the call has ended */
void hd_rpc_client_forget(struct hd_rpc_call *call);
enum hd_status hd_rpc_server_outcome(struct hd_rpc_call *call, const char **ret_story);
enum hd_status hd_rpc_client_outcome(struct hd_rpc_call *call, const char **ret_story);

#define HD_RPC_STATUS_TRAILER  "heddle-status"   /* the exact hd_status by name */
#define HD_RPC_ACCEPTED_HEADER "heddle-accepted" /* the call passed the doors; on_open is due */

#endif
