/* rpc: calls between Heddle's programs: gRPC on the wire, protobuf-c messages, one libuv loop.
 *
 * Two concepts explain this room. A *call* is one conversation on one method, the same object on
 * both sides: messages come in through a handler, go out through hd_rpc_call_write, and it ends
 * exactly once with a status and its story. A *server* or a *client* makes calls. Everything below
 * happens on the thread of the loop that was given to hd_rpc_new; gRPC's own threads never run a
 * handler.
 *
 *     struct hd_rpc_method m = {
 *         .path = "/heddle.v1.Control/ShowJob", .kind = HD_RPC_UNARY, .user = controller,
 *         .request = &heddle__v1__show_job_request__descriptor,
 *         .response = &heddle__v1__show_job_response__descriptor,
 *         .handler = { .on_open = show_job },
 *     };
 *
 *     static void show_job(struct hd_rpc_call *call, const ProtobufCMessage *request)
 *     {
 *         ...
 *         if (st)
 *             hd_rpc_call_fail(call, st);           // carries hd_err_message() to the peer
 *         else
 *             hd_rpc_call_reply(call, &response.base);
 *     }
 *
 * Received bytes are checked before they are unpacked (wire_check.h): no message can exhaust the
 * stack, amplify itself in memory, or smuggle a string that is not text.
 *
 * Doors: `unix:PATH` is a socket, mode 0600, in a directory that is created with mode 0700.
 * `HOST:PORT` (loopback included) needs a bearer token, and beyond loopback TLS as well; without
 * them neither a server nor a client starts. Both sides speak of the same rules in their error
 * messages.
 *
 * May be used by: controller, daemon, command line.   Uses: base, gRPC C core, protobuf-c, libuv.
 * Threads: all functions on the loop's thread, unless a function says otherwise.
 */
#ifndef HD_RPC_RPC_H
#define HD_RPC_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <protobuf-c/protobuf-c.h>
#include <uv.h>

#include "base/status.h"

struct hd_rpc;
struct hd_rpc_server;
struct hd_rpc_client;
struct hd_rpc_call;

/* What a zero in an option stands for. */
enum {
    HD_RPC_TOKEN_MIN = 16, /* bytes; a shorter token is refused as guessable */
    HD_RPC_TOKEN_MAX = 256,
    HD_RPC_QUEUE_LEN_DEFAULT = 1024,                /* messages a call holds for a slow peer */
    HD_RPC_QUEUE_BYTES_DEFAULT = 8 * 1024 * 1024,   /* and their bytes */
    HD_RPC_RECEIVE_BYTES_DEFAULT = 4 * 1024 * 1024, /* one message */
    HD_RPC_CALLS_DEFAULT = 4096,                    /* calls in flight on one server */
    HD_RPC_STREAMS_DEFAULT = 128,                   /* calls in flight on one connection */
    HD_RPC_CONNECT_DEFAULT_MS = 10000,              /* to connect, TLS included */
    HD_RPC_TIMEOUT_DEFAULT_MS = 20000,              /* a unary call: as long again for its answer */
    HD_RPC_FIRST_BYTES_DEFAULT_MS = 10000, /* a TCP connection that sends nothing is closed */
    HD_RPC_KEEPALIVE_DEFAULT_MS = 30000,   /* a client's ping when all is quiet */
    HD_RPC_KEEPALIVE_TIMEOUT_DEFAULT_MS = 10000,
};

/* ---- the context ---- */

/* Starts gRPC's completion thread and ties it to `loop`. The context keeps the loop alive until it
 * is closed. */
enum hd_status hd_rpc_new(uv_loop_t *loop, struct hd_rpc **ret_rpc);

/* Closes all: servers stop, calls are cancelled and get their on_done, clients go. on_closed (may
 * be NULL) runs last, on the loop, when nothing of the context is left; the loop must run until
 * then. Servers and clients need not be closed before. */
void hd_rpc_close(struct hd_rpc *rpc, void (*on_closed)(void *user), void *user);

/* Raises the soft limit of open files to the hard one. HD_LIMIT when that is below `needed`. Call
 * it at start, before the first listener: how many connections TCP may bring follows from it. */
enum hd_status hd_rpc_raise_file_limit(uint64_t needed);

/* ---- who calls ---- */

enum hd_rpc_door {
    HD_RPC_DOOR_UNIX, /* through the Unix socket; uid is the peer's, told by the kernel */
    HD_RPC_DOOR_TCP,  /* with the right token */
};

struct hd_rpc_principal {
    enum hd_rpc_door door;
    uid_t uid;      /* DOOR_UNIX only, else (uid_t)-1 */
    char name[128]; /* "uid:1000", "token", or "cert:NAME" of a verified client certificate */
};

/* ---- calls ---- */

enum hd_rpc_kind {
    HD_RPC_UNARY,         /* one request, one response */
    HD_RPC_SERVER_STREAM, /* one request, many responses */
    HD_RPC_BIDI,          /* many of both; also for streams of requests with one response */
};

/* What happens on a call; the same struct on both sides, any member may be NULL. A message is valid
 * during the callback unless hd_rpc_call_take takes it. Callbacks of a call come in this order:
 * on_open, then on_msg and on_drain, on_half_close after the last on_msg, on_done exactly once and
 * last. No callback runs inside hd_rpc_client_call; a failing write or reply calls none back. */
struct hd_rpc_handler {
    /* Server: an authorised call has come; request is NULL on HD_RPC_BIDI. Client: the server has
     * accepted the stream (request is NULL; not called on HD_RPC_UNARY). */
    void (*on_open)(struct hd_rpc_call *call, const ProtobufCMessage *request);
    /* A message of the peer: on a client each response, on a server each request of HD_RPC_BIDI. */
    void (*on_msg)(struct hd_rpc_call *call, const ProtobufCMessage *msg);
    /* The peer sends nothing more (server of HD_RPC_BIDI only). It may have cancelled: on_done
     * follows and tells. Once a server has ended a call, neither this nor on_msg comes any more. */
    void (*on_half_close)(struct hd_rpc_call *call);
    /* The send queue has become empty: a producer that met HD_LIMIT may go on. */
    void (*on_drain)(struct hd_rpc_call *call);
    /* The end. Client: the call's status and story ("" if HD_OK). Server: HD_OK when the answer
     * (whatever it was) went out, HD_TIMEOUT when the deadline passed, HD_ABORTED when the peer
     * cancelled or is gone. The call is not valid after it, unless the user holds a reference. */
    void (*on_done)(struct hd_rpc_call *call, enum hd_status status, const char *message);
};

/* Server: ends a unary call with its response. The message is packed at once and may go after.
 * HD_ABORTED: the call has ended already (on_done tells or told why); HD_LIMIT: the message is
 * larger than receive_bytes_max, and the call was failed with that story. */
enum hd_status hd_rpc_call_reply(struct hd_rpc_call *call, const ProtobufCMessage *response);

/* Server: ends any call with a failure; st is not HD_OK. The story is this thread's:
 *     hd_rpc_call_fail(call, hd_err(HD_NOT_FOUND, "there is no job %lld", id));
 * Messages still queued are dropped. Nothing happens on a call that has ended. */
void hd_rpc_call_fail(struct hd_rpc_call *call, enum hd_status st);

/* Streams: queues a message. HD_ABORTED: the call has ended or was finished; HD_LIMIT: the queue is
 * full (bound it meets: queue_len_max or queue_bytes_max), nothing was queued, on_drain will come;
 * HD_INVALID: the message is larger than receive_bytes_max, nothing was queued. */
enum hd_status hd_rpc_call_write(struct hd_rpc_call *call, const ProtobufCMessage *msg);

/* Streams, after all that was queued: a server ends the call with HD_OK, a client says that it
 * sends nothing more. */
void hd_rpc_call_finish(struct hd_rpc_call *call);

/* Ends the call now, from either side; on_done comes later, with HD_ABORTED. */
void hd_rpc_call_cancel(struct hd_rpc_call *call);

/* A reference keeps the memory, not the conversation: for answers that come later, e.g. from the
 * store. On a call that has ended, replies and writes return HD_ABORTED and do nothing. */
struct hd_rpc_call *hd_rpc_call_ref(struct hd_rpc_call *call);
void hd_rpc_call_unref(struct hd_rpc_call *call);

/* Inside on_open or on_msg: makes the message the caller's, who frees it with hd_rpc_message_free.
 * NULL outside, and the second time. */
ProtobufCMessage *hd_rpc_call_take(struct hd_rpc_call *call);
void hd_rpc_message_free(ProtobufCMessage *msg); /* NULL is fine */

/* Streams: stops and restarts on_msg. While paused, flow control holds the peer back (at most one
 * message waits here); on_done of a cancelled call still comes. */
void hd_rpc_call_pause(struct hd_rpc_call *call);
void hd_rpc_call_resume(struct hd_rpc_call *call);

/* One pointer per call: on a server it starts as the method's, on a client as the options'. */
void *hd_rpc_call_user(const struct hd_rpc_call *call);
void hd_rpc_call_set_user(struct hd_rpc_call *call, void *user);

const char *hd_rpc_call_path(const struct hd_rpc_call *call);
const char *hd_rpc_call_peer(const struct hd_rpc_call *call);                         /* for logs */
const struct hd_rpc_principal *hd_rpc_call_principal(const struct hd_rpc_call *call); /* server */
/* Server: a metadata value of the request, NULL when absent. Keys are lower case. */
const char *hd_rpc_call_metadata(const struct hd_rpc_call *call, const char *key);
int64_t hd_rpc_call_time_left_ms(const struct hd_rpc_call *call); /* INT64_MAX: no deadline */
size_t hd_rpc_call_queued(const struct hd_rpc_call *call);        /* messages not yet sent */
bool hd_rpc_call_alive(const struct hd_rpc_call *call);           /* could still send */

/* ---- TLS ---- */

/* PEM files, read when the server or client is made. Server: cert and key; with ca, clients must
 * show a certificate that it signed. Client: ca (which must have signed the server's certificate);
 * with cert and key, they are shown. Names are checked against subjectAltName. */
struct hd_rpc_tls {
    const char *cert_path, *key_path, *ca_path;
};

/* Reads a token: one line of HD_RPC_TOKEN_MIN .. HD_RPC_TOKEN_MAX printable ASCII bytes. A file
 * that others than its owner may read is HD_DENIED. */
enum hd_status hd_rpc_read_token(const char *path, char ret_token[HD_RPC_TOKEN_MAX + 1]);

/* ---- addresses ---- */

/* `unix:PATH` or `HOST:PORT` (`[::1]:PORT` for IPv6). HD_INVALID says what is wrong with ADDR; a
 * path longer than the 107 bytes that a socket address holds is one of these wrongs. */
enum hd_status hd_rpc_check_address(const char *address);
bool hd_rpc_address_is_unix(const char *address);
bool hd_rpc_address_is_loopback(
    const char *address); /* unix: too; names other than localhost: no */

/* ---- server ---- */

struct hd_rpc_server_options {
    const char *token;            /* needed by TCP listeners */
    const struct hd_rpc_tls *tls; /* for TCP listeners; needed beyond loopback */
    /* Asked once per call, after the door's own checks (uid or token) and before on_open. A status
     * other than HD_OK, with its story, refuses the call: HD_DENIED ends as PERMISSION_DENIED. */
    enum hd_status (*authorize)(void *user, const struct hd_rpc_principal *principal,
                                const char *path);
    void *authorize_user;
    /* 0 means the default above */
    size_t receive_bytes_max;
    size_t calls_max;
    size_t streams_per_connection_max;
    /* TCP connections at one time, and those of one address. The default: the limit of open files
     * less 128, and a fourth of that. */
    size_t connections_max, connections_of_peer_max;
    int64_t first_bytes_ms; /* until a TCP connection must have sent something */
    /* Pings of clients more often than half of keepalive_ms are counted as misbehaviour: give both
     * sides the same value. */
    int64_t keepalive_ms, keepalive_timeout_ms;
    int64_t connection_age_max_ms; /* then clients are asked to connect anew; 0: never */
    bool allow_no_deadline;        /* else unary calls without a deadline are refused */
};

struct hd_rpc_method {
    const char *path; /* "/package.Service/Method" */
    enum hd_rpc_kind kind;
    const ProtobufCMessageDescriptor *request, *response;
    struct hd_rpc_handler handler;
    void *user;
    size_t queue_len_max, queue_bytes_max; /* of each call's send queue; 0: the default */
};

/* Options and methods are copied; strings within methods and descriptors must stay. */
enum hd_status hd_rpc_server_new(struct hd_rpc *rpc, const struct hd_rpc_server_options *options,
                                 struct hd_rpc_server **ret_server);
/* Before the first listen. HD_EXISTS: the path is registered. */
enum hd_status hd_rpc_server_add_method(struct hd_rpc_server *server,
                                        const struct hd_rpc_method *method);
/* Opens one address; several may be opened before hd_rpc_server_start. ret_port (may be NULL) is
 * the port of HOST:0. HD_CONFLICT: another server lives there. A socket file that a dead server
 * left is removed; PATH.lock stays beside it. HD_DENIED: a door without its key (token, TLS). */
enum hd_status hd_rpc_server_listen(struct hd_rpc_server *server, const char *address,
                                    int *ret_port);
enum hd_status hd_rpc_server_start(struct hd_rpc_server *server);

/* Takes no new calls, lets those in flight go on for grace_ms, then cancels them. on_closed (may be
 * NULL) runs when the last is done; the server is gone then. */
void hd_rpc_server_close(struct hd_rpc_server *server, int64_t grace_ms,
                         void (*on_closed)(void *user), void *user);
size_t hd_rpc_server_calls(const struct hd_rpc_server *server); /* in flight */

/* What the health service says of the server and of all its services (standard.h), true from the
 * start on; those who watch it are told of a change. Calls are taken in any case. */
void hd_rpc_server_set_serving(struct hd_rpc_server *server, bool serving);

/* Every interval_ms, makes a connection to each own listener; if one is not accepted within
 * timeout_ms, on_result is told what failed and how many checks in a row have; after failures, the
 * first check that finds all listeners well tells it 0 and NULL. A program that cannot be reached
 * any more should exit and be started again. Once per server, after start. */
enum hd_status
hd_rpc_server_self_check(struct hd_rpc_server *server, int64_t interval_ms, int64_t timeout_ms,
                         void (*on_result)(void *user, int in_a_row, const char *message),
                         void *user);

/* ---- client ---- */

struct hd_rpc_client_options {
    const char *token;            /* sent to HOST:PORT only */
    const struct hd_rpc_tls *tls; /* needed beyond loopback */
    const char *tls_server_name;  /* the name in the server's certificate, if not HOST */
    size_t receive_bytes_max;     /* 0: the default, as for the rest */
    int64_t keepalive_ms, keepalive_timeout_ms;
    int64_t connect_timeout_ms; /* one attempt to connect: the network's part, TLS, HTTP/2 */
    int64_t reconnect_min_ms, reconnect_max_ms; /* gRPC's back-off; 0: 200 ms and 5 s */
};

/* Makes a channel of its own to `address`; connects with the first call. */
enum hd_status hd_rpc_client_new(struct hd_rpc *rpc, const char *address,
                                 const struct hd_rpc_client_options *options,
                                 struct hd_rpc_client **ret_client);
/* Calls in flight are cancelled and get their on_done; the client must not be used any more. */
void hd_rpc_client_close(struct hd_rpc_client *client);

struct hd_rpc_metadata {
    const char *key, *value; /* printable ASCII, keys lower case */
};

struct hd_rpc_call_options {
    const char *path;
    enum hd_rpc_kind kind;
    const ProtobufCMessageDescriptor *response;
    /* From now to the last byte of the answer, connecting included. Unary: 0 means
     * HD_RPC_TIMEOUT_DEFAULT_MS; streams: 0 means no deadline. Negative: none, which servers refuse
     * on unary calls. */
    int64_t timeout_ms;
    /* Waits for a server until the deadline; else a server that is away is HD_UNAVAILABLE at once.
     */
    bool wait_for_ready;
    const struct hd_rpc_metadata *metadata;
    size_t metadata_count;
    struct hd_rpc_handler handler;
    void *user;
    size_t queue_len_max, queue_bytes_max;
};

/* Starts a call. `request` is sent first; it may be NULL on HD_RPC_BIDI only. ret_call (may be
 * NULL) is valid until on_done has returned, or longer with a reference. After a failure no
 * callback comes. */
enum hd_status hd_rpc_client_call(struct hd_rpc_client *client,
                                  const struct hd_rpc_call_options *options,
                                  const ProtobufCMessage *request, struct hd_rpc_call **ret_call);

/* For command lines: one unary call, running the loop until it is done (so other handlers on the
 * loop run too). Not from inside a callback. ret_response is the caller's, see hd_rpc_message_free;
 * the story of a failure is the server's. */
enum hd_status hd_rpc_call_wait(struct hd_rpc_client *client, const char *path,
                                const ProtobufCMessageDescriptor *response, int64_t timeout_ms,
                                const ProtobufCMessage *request, ProtobufCMessage **ret_response);

/* ---- statuses on the wire ---- */

/* The numbers of gRPC. Both ways, the message travels as the status details; the exact hd_status
 * travels beside it (trailer `heddle-status`), so that Heddle's own programs lose nothing. */
int hd_rpc_status_to_grpc(enum hd_status st);
enum hd_status hd_rpc_status_from_grpc(int code);

#endif
