/* rpc: remote procedure calls between Heddle's programs: gRPC on the wire, protobuf-c messages, one
 * libuv loop.
 *
 * A *client* starts calls, a *server* accepts them. A *call* is one invocation of a method, unary
 * or streaming; client and server use the same struct. Received messages arrive through a handler,
 * hd_rpc_call_write sends messages, and the call ends exactly once, with a status and an error
 * message. All handlers run on the thread of the loop that was given to hd_rpc_new.
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
 * Received bytes are checked before they are unpacked (wire_check.h), so that a message cannot
 * overflow the stack, use far more memory than its size, or contain strings that are not UTF-8.
 *
 * Security: `unix:PATH` is a socket with mode 0600, in a directory that is created with mode 0700.
 * `HOST:PORT` (loopback included) needs a bearer token, and beyond loopback also TLS; without them
 * neither a server nor a client starts (HD_DENIED).
 *
 * May be used by: controller, daemon, command line.   Uses: base, gRPC C core, protobuf-c, libuv.
 * Threads: all functions on the loop's thread.
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

/* Limits of tokens, and the defaults of options that are 0. */
enum {
    HD_RPC_TOKEN_MIN = 16, /* bytes; a shorter token is refused as guessable */
    HD_RPC_TOKEN_MAX = 256,
    HD_RPC_TOKEN_NAME_MAX = 64,                     /* limit of the bytes of a token's name */
    HD_RPC_TOKENS_MAX = 4096,                       /* limit of the tokens of one server */
    HD_RPC_QUEUE_LEN_DEFAULT = 1024,                /* limit of messages in a call's send queue */
    HD_RPC_QUEUE_BYTES_DEFAULT = 8 * 1024 * 1024,   /* limit of bytes in a call's send queue */
    HD_RPC_RECEIVE_BYTES_DEFAULT = 4 * 1024 * 1024, /* limit of the bytes of one message */
    HD_RPC_CALLS_DEFAULT = 4096,                    /* limit of calls in progress on one server */
    /* limit of calls in progress on one connection */
    HD_RPC_STREAMS_DEFAULT = 128,
    HD_RPC_CONNECT_DEFAULT_MS = 10000, /* limit of one attempt to connect, TLS included */
    /* limit of a whole unary call, ms: 10 s to connect, and 10 s for the reply */
    HD_RPC_TIMEOUT_DEFAULT_MS = 20000,
    /* limit of the wait for the first bytes of a TCP connection, ms; then the server closes it */
    HD_RPC_FIRST_BYTES_DEFAULT_MS = 10000,
    /* limit from a TCP connection's first bytes to its first call with a token, ms; then the server
     * closes it */
    HD_RPC_FIRST_CALL_DEFAULT_MS = 30000,
    /* a client sends a ping after this time without traffic, ms */
    HD_RPC_KEEPALIVE_DEFAULT_MS = 30000,
    HD_RPC_KEEPALIVE_TIMEOUT_DEFAULT_MS = 10000,
};

/* ---- the context ---- */

/* Starts the thread that waits for gRPC's events and delivers them to `loop`. uv_run does not
 * return before the context is closed. */
enum hd_status hd_rpc_new(uv_loop_t *loop, struct hd_rpc **ret_rpc);

/* Closes the context's servers and clients that are still open, and cancels their calls; each call
 * gets its on_done. on_closed (may be NULL) runs on the loop when everything is freed; the loop
 * must run until then. */
void hd_rpc_close(struct hd_rpc *rpc, void (*on_closed)(void *user), void *user);

/* Raises the soft limit of open files to the hard limit. HD_LIMIT: the hard limit is below
 * `needed`. Call it when the program starts, before the first listener opens: the default limit of
 * TCP connections is computed from it. */
enum hd_status hd_rpc_raise_file_limit(uint64_t needed);

/* ---- gRPC ---- */

enum { HD_RPC_LIBRARY_MAX = 96 };

/* Writes a name such as "gRPC 1.51 (core 29.0.0)". core_version: version of gRPC's core to name;
 * NULL: the loaded one's. */
void hd_rpc_library_name(const char *core_version, char ret_name[HD_RPC_LIBRARY_MAX]);
/* Returns a text for operators about a known vulnerability of the gRPC with this core version;
 * NULL: none is known. A distribution may have fixed it without changing the version. */
const char *hd_rpc_library_weakness(const char *core_version);

/* ---- the identity of a caller ---- */

enum hd_rpc_transport {
    HD_RPC_TRANSPORT_UNIX, /* Unix socket; the kernel gives the peer's uid (SO_PEERCRED) */
    HD_RPC_TRANSPORT_TCP,  /* TCP with a valid token, or a certificate that `identify` accepts */
};

/* Kinds of caller, distinguished by their token. The server's `authorize` decides which calls each
 * kind may make. */
enum hd_rpc_party {
    HD_RPC_PARTY_USER,
    HD_RPC_PARTY_NODE,
    HD_RPC_PARTY_LOCAL, /* caller without a token, on a Unix socket */
};

struct hd_rpc_principal {
    enum hd_rpc_transport transport;
    enum hd_rpc_party party;
    uid_t uid; /* uid of the peer; (uid_t)-1 for TCP */
    /* "uid:1000" (Unix socket); the name of a user's token; "node:" and the name of a node's token.
     * For a token without a name "token" or "node"; "cert:NAME" for a verified client certificate.
     */
    char name[128];
    char token_name[HD_RPC_TOKEN_NAME_MAX + 1]; /* name of the token; "": it has none */
    /* values that `identify` sets, for the server's own use; 0 without `identify` */
    int role;
    uint64_t credential;
};

/* Credentials that a caller presented, for `identify`. */
struct hd_rpc_shown {
    /* the principal is already filled in, by a Unix socket or a token of `tokens` */
    bool known;
    const char *token; /* a token that is not in `tokens`; "": none */
    /* PEM of the client's certificate, signed by the authority of tls.ca_path and valid now; "":
     * none. */
    const char *cert;
};

/* ---- calls ---- */

#define HD_RPC_CLIENT_HEADER "heddle-client" /* metadata key of hd_rpc_client_options.client */

enum hd_rpc_kind {
    HD_RPC_UNARY,         /* one request, one response */
    HD_RPC_SERVER_STREAM, /* one request, a stream of responses */
    /* a stream of requests and a stream of responses; also for many requests with one response */
    HD_RPC_BIDI,
};

/* The callbacks of a call, on server and client; any member may be NULL. A message is valid during
 * the callback, unless hd_rpc_call_take takes it. Order: on_open; then on_msg and on_drain;
 * on_half_close after the last on_msg; on_done exactly once, last. No callback runs inside
 * hd_rpc_client_call, or because a write or reply fails. */
struct hd_rpc_handler {
    /* Server: an authorised call arrived; request is NULL for HD_RPC_BIDI. Client: the server
     * accepted the stream; request is NULL; not called for HD_RPC_UNARY. */
    void (*on_open)(struct hd_rpc_call *call, const ProtobufCMessage *request);
    /* A message arrived. Client: each response. Server: each request of HD_RPC_BIDI. */
    void (*on_msg)(struct hd_rpc_call *call, const ProtobufCMessage *msg);
    /* Server of HD_RPC_BIDI: the client sends no more messages. If it cancelled the call, on_done
     * follows. After the server ended the call, on_half_close and on_msg are not called. */
    void (*on_half_close)(struct hd_rpc_call *call);
    /* The send queue is empty: after HD_LIMIT hd_rpc_call_write can be called again. */
    void (*on_drain)(struct hd_rpc_call *call);
    /* The call ended. Client: its status and error message ("" if HD_OK). Server: HD_OK if the
     * reply, success or failure, was sent; HD_TIMEOUT if the deadline passed; HD_ABORTED if the
     * call was cancelled or the peer disconnected. Afterwards the call is invalid, unless the user
     * holds a reference. */
    void (*on_done)(struct hd_rpc_call *call, enum hd_status status, const char *message);
};

/* Server: ends a unary call with its response, which is copied. HD_ABORTED: the call has already
 * ended (on_done reports why). HD_LIMIT: the response is larger than receive_bytes_max, or memory
 * ran out; the call has been ended with this failure. */
enum hd_status hd_rpc_call_reply(struct hd_rpc_call *call, const ProtobufCMessage *response);

/* Server: ends any call with the failure st, which is not HD_OK, and hd_err_message():
 *     hd_rpc_call_fail(call, hd_err(HD_NOT_FOUND, "there is no job %lld", id));
 * Queued messages are dropped. Does nothing if the call has ended. */
void hd_rpc_call_fail(struct hd_rpc_call *call, enum hd_status st);

/* Streams: queues a copy of the message for sending. HD_ABORTED: the call has ended or was
 * finished. HD_LIMIT: the queue is full (queue_len_max or queue_bytes_max); on_drain will be
 * called. HD_INVALID: the message is larger than receive_bytes_max. After a failure nothing is
 * queued. */
enum hd_status hd_rpc_call_write(struct hd_rpc_call *call, const ProtobufCMessage *msg);

/* Streams: ends sending after the queued messages: a server ends the call with HD_OK, a client
 * half-closes. */
void hd_rpc_call_finish(struct hd_rpc_call *call);

/* Ends the call now, on either side; on_done is called later, with HD_ABORTED. */
void hd_rpc_call_cancel(struct hd_rpc_call *call);

/* Adds a reference, which keeps the struct valid for a later reply; the call may still end
 * meanwhile, and then reply and write return HD_ABORTED. */
struct hd_rpc_call *hd_rpc_call_ref(struct hd_rpc_call *call);
void hd_rpc_call_unref(struct hd_rpc_call *call);

/* Takes ownership of the message that the running on_open or on_msg was called with; free it with
 * hd_rpc_message_free. Returns NULL outside these callbacks, or if the message is already taken. */
ProtobufCMessage *hd_rpc_call_take(struct hd_rpc_call *call);
void hd_rpc_message_free(ProtobufCMessage *msg); /* NULL: does nothing */

/* Streams: pauses and resumes the delivery of received messages to on_msg. While paused, flow
 * control stops the peer; one received message may be held here. on_done is still called if the
 * call is cancelled. */
void hd_rpc_call_pause(struct hd_rpc_call *call);
void hd_rpc_call_resume(struct hd_rpc_call *call);

/* Return and set the pointer that a call carries for its user; at first it is `user` of the method
 * (server) or of the options (client). */
void *hd_rpc_call_user(const struct hd_rpc_call *call);
void hd_rpc_call_set_user(struct hd_rpc_call *call, void *user);

const char *hd_rpc_call_path(const struct hd_rpc_call *call);
/* network address of the peer, for logs */
const char *hd_rpc_call_peer(const struct hd_rpc_call *call);
const struct hd_rpc_principal *
hd_rpc_call_principal(const struct hd_rpc_call *call); /* caller; server only */
/* Server: a metadata value of the request; NULL: absent. Keys are lower case. */
const char *hd_rpc_call_metadata(const struct hd_rpc_call *call, const char *key);
/* Server: set and return a label and a flag of the call for the server's own use, such as the
 * object of the call. The label is copied, NULL counts as "". At first "" and false. */
void hd_rpc_call_set_label(struct hd_rpc_call *call, const char *label);
const char *hd_rpc_call_label(const struct hd_rpc_call *call);
void hd_rpc_call_set_mark(struct hd_rpc_call *call);
bool hd_rpc_call_mark(const struct hd_rpc_call *call);
/* ms until the deadline; INT64_MAX: no deadline */
int64_t hd_rpc_call_time_left_ms(const struct hd_rpc_call *call);
/* Returns the number of messages in the send queue. */
size_t hd_rpc_call_queued(const struct hd_rpc_call *call);
/* Returns whether the call is neither ended nor finished. */
bool hd_rpc_call_alive(const struct hd_rpc_call *call);

/* ---- TLS ---- */

/* PEM files, read when the server or client is made. Server: cert and key; with ca, clients must
 * present a certificate signed by it. Client: ca, which must have signed the server's certificate;
 * with cert and key, the client presents them. Names are checked against subjectAltName. One file
 * may hold certificate and key. TLS is 1.3. */
struct hd_rpc_tls {
    const char *cert_path, *key_path, *ca_path;
    /* true, on a server with `ca`: a client without a certificate may connect, and needs a token */
    bool cert_optional;
};

/* Reads and checks the TLS files as a server or client would, without using them. HD_INVALID or
 * HD_IO: the message names the file. */
enum hd_status hd_rpc_check_tls(const struct hd_rpc_tls *tls);
enum hd_status hd_rpc_check_client_tls(const struct hd_rpc_tls *tls);

/* ---- tokens ---- */

struct hd_rpc_token {
    enum hd_rpc_party party;
    char name[HD_RPC_TOKEN_NAME_MAX + 1]; /* name of the token; "": it has none */
    char token[HD_RPC_TOKEN_MAX + 1];
};

/* Tokens that a server accepts; {0}: none. */
struct hd_rpc_tokens {
    struct hd_rpc_token *items;
    size_t count, capacity;
};

/* A token file has lines `NAME TOKEN`, and at most one line with a TOKEN alone; empty lines and
 * lines that begin with # are skipped. A NAME has letters, digits and . _ - @, and is not "token"
 * or "node"; a TOKEN has HD_RPC_TOKEN_MIN .. HD_RPC_TOKEN_MAX printable ASCII bytes without spaces.
 *
 * Adds the file's tokens. dir: the server's state directory, whose owner may own the file, too
 * (hd_user_read_file); NULL: a server that runs as root trusts every owner. HD_DENIED: the file's
 * mode gives access to group or others, or it belongs to another user. HD_INVALID: the message names the line; also for a token that is
 * already present. After use and after a failure the caller erases and frees the tokens with
 * hd_rpc_tokens_done. */
enum hd_status hd_rpc_tokens_read(struct hd_rpc_tokens *tokens, const char *path, const char *dir,
                                  enum hd_rpc_party party);
void hd_rpc_tokens_done(struct hd_rpc_tokens *tokens);
/* Returns the token of `tokens` that equals `given`; NULL: none does. The time of the search does
 * not depend on the tokens. */
const struct hd_rpc_token *hd_rpc_tokens_find(const struct hd_rpc_tokens *tokens,
                                              const char *given);

/* Reads a client's token from a file with one line. patience_ms: as in hd_file_read_stream
 * (base/file.h). */
enum hd_status hd_rpc_read_token(const char *path, int patience_ms,
                                 char ret_token[HD_RPC_TOKEN_MAX + 1]);

/* ---- addresses ---- */

/* Checks the syntax of `unix:PATH` or `HOST:PORT` (`[::1]:PORT` for IPv6). HD_INVALID: the message
 * says what is wrong, for example that a path is longer than the 107 bytes that a socket address
 * can hold. */
enum hd_status hd_rpc_check_address(const char *address);
bool hd_rpc_address_is_unix(const char *address);
/* Returns true for unix:PATH, loopback addresses and localhost; false for all other hosts. */
bool hd_rpc_address_is_loopback(const char *address);

/* ---- server ---- */

struct hd_rpc_server_options {
    const struct hd_rpc_tokens *tokens; /* TCP listeners need them; NULL: none */
    /* certificates of TCP listeners; required beyond loopback; NULL: none */
    const struct hd_rpc_tls *tls;
    /* Authenticates callers whom neither a Unix socket nor `tokens` identifies. Called first, once
     * per call; may change the whole principal. Any failure is sent as UNAUTHENTICATED. NULL: these
     * callers are refused. */
    enum hd_status (*identify)(void *user, const struct hd_rpc_shown *shown,
                               struct hd_rpc_principal *principal);
    /* `identify` accepts tokens, so TCP listeners need none in `tokens` */
    bool identify_has_tokens;
    /* Authorises a call, after its caller is authenticated and before its request is unpacked. A
     * status other than HD_OK refuses the call with that status and hd_err_message(). May be NULL.
     */
    enum hd_status (*authorize)(void *user, struct hd_rpc_call *call);
    /* Called once per call of an authenticated caller, when its result is known: HD_OK, or why it
     * fails, with hd_err_message(); also for calls that `authorize` refused. Not called if the
     * client leaves first. May be NULL. */
    void (*on_answer)(void *user, struct hd_rpc_call *call, enum hd_status st);
    void *authorize_user; /* `user` of these three callbacks */
    /* Unix sockets: mode (0: 0600), and group if the mode gives it rights ((gid_t)-1 or 0: the
     * process's group). A folder that is created for a socket lets the group enter. */
    mode_t unix_mode;
    gid_t unix_group;
    /* limits; 0: the default above */
    size_t receive_bytes_max;
    size_t calls_max;
    size_t streams_per_connection_max;
    /* limits of TCP connections at one time, in total and from one address; 0: the default. The
     * default is a third of (the limit of open files - 128) in total, because a connection takes up
     * to three files, and a fourth of that for one address. */
    size_t connections_max, connections_of_peer_max;
    /* limit of the wait for a TCP connection's first bytes, ms; 0: the default */
    int64_t first_bytes_ms;
    /* limit from a TCP connection's first bytes to its first call with a token, ms; 0: the default
     */
    int64_t first_call_ms;
    /* Clients that ping more often than every keepalive_ms / 2 are disconnected by gRPC: give both
     * sides the same value. 0: the default. */
    int64_t keepalive_ms, keepalive_timeout_ms;
    /* age at which a connection is closed so that its client reconnects, ms; 0: never */
    int64_t connection_age_max_ms;
    bool allow_no_deadline; /* unary calls without a deadline are allowed; else refused */
};

struct hd_rpc_method {
    const char *path; /* "/package.Service/Method" */
    enum hd_rpc_kind kind;
    const ProtobufCMessageDescriptor *request, *response;
    struct hd_rpc_handler handler;
    void *user;
    size_t queue_len_max, queue_bytes_max; /* limits of each call's send queue; 0: the default */
};

/* Makes a server. The options with their tokens are copied, later also methods; descriptors and the
 * strings of methods are borrowed. */
enum hd_status hd_rpc_server_new(struct hd_rpc *rpc, const struct hd_rpc_server_options *options,
                                 struct hd_rpc_server **ret_server);
/* Adds a method. Call it before the first listen. HD_EXISTS: the path is already registered. */
enum hd_status hd_rpc_server_add_method(struct hd_rpc_server *server,
                                        const struct hd_rpc_method *method);
/* Listens on one address; call it for each address before hd_rpc_server_start. *ret_port (ret_port
 * may be NULL): TCP port, with HOST:0 the one that the system chose. The socket file of a server
 * that no longer runs is replaced; PATH.lock is never removed. HD_CONFLICT: another server listens
 * there. HD_DENIED: token or TLS is missing. */
enum hd_status hd_rpc_server_listen(struct hd_rpc_server *server, const char *address,
                                    int *ret_port);
enum hd_status hd_rpc_server_start(struct hd_rpc_server *server);

/* Replaces the server's certificates for new connections; open connections continue. After a
 * failure nothing has changed. HD_CONFLICT: the server was made without TLS. */
enum hd_status hd_rpc_server_set_tls(struct hd_rpc_server *server, const struct hd_rpc_tls *tls);

/* Accepts no new calls, and cancels calls that are still in flight after grace_ms. on_closed (may
 * be NULL) runs after the last call ended and the server was freed. */
void hd_rpc_server_close(struct hd_rpc_server *server, int64_t grace_ms,
                         void (*on_closed)(void *user), void *user);
/* returns the number of calls in progress */
size_t hd_rpc_server_calls(const struct hd_rpc_server *server);
/* Return, for listeners of other protocols: the server's token that equals `given` (NULL: none),
 * found in a time that does not depend on the tokens; and whether the server has tokens of this
 * kind of caller. */
const struct hd_rpc_token *hd_rpc_server_find_token(const struct hd_rpc_server *server,
                                                    const char *given);
bool hd_rpc_server_has_tokens(const struct hd_rpc_server *server, enum hd_rpc_party party);

/* Replaces all tokens by these (copied; NULL or {0}: none). Open calls continue. HD_INVALID: a
 * token is malformed. HD_DENIED: none would be left, and the server listens at HOST:PORT. After a
 * failure nothing has changed. */
enum hd_status hd_rpc_server_set_tokens(struct hd_rpc_server *server,
                                        const struct hd_rpc_tokens *tokens);

/* Sets whether the health service reports the server and all its services as serving (standard.h),
 * and notifies its watchers; true at the start. Calls are accepted in any case. */
void hd_rpc_server_set_serving(struct hd_rpc_server *server, bool serving);

/* Connects to each of the server's own listeners every interval_ms. If a listener does not accept
 * within timeout_ms, on_result gets a message and the number of consecutive failed checks; the
 * first check that succeeds after failures gives it NULL and 0. A program that no longer accepts
 * connections should exit and be restarted. Call it at most once, after hd_rpc_server_start. */
enum hd_status
hd_rpc_server_self_check(struct hd_rpc_server *server, int64_t interval_ms, int64_t timeout_ms,
                         void (*on_result)(void *user, int in_a_row, const char *message),
                         void *user);

/* ---- client ---- */

struct hd_rpc_client_options {
    /* token of the client, sent to HOST:PORT only; there a token, or a certificate in `tls`, is
     * required */
    const char *token;
    const struct hd_rpc_tls *tls; /* certificates; required for hosts beyond loopback; NULL: none */
    /* name in the server's certificate if it is not HOST; NULL: HOST */
    const char *tls_server_name;
    /* limit of the bytes of one message; 0: the default (so for the limits below) */
    size_t receive_bytes_max;
    int64_t keepalive_ms, keepalive_timeout_ms;
    int64_t connect_timeout_ms; /* limit of one attempt to connect: TCP, TLS and HTTP/2 */
    /* shortest and longest pause before gRPC reconnects; 0: 200 ms and 5 s */
    int64_t reconnect_min_ms, reconnect_max_ms;
    /* printable ASCII text that describes the client, sent with each call as metadata
     * HD_RPC_CLIENT_HEADER; NULL: not sent */
    const char *client;
};

/* Makes a gRPC channel to `address`, which connects at the first call. options may be NULL.
 * HD_DENIED: token or TLS is missing. */
enum hd_status hd_rpc_client_new(struct hd_rpc *rpc, const char *address,
                                 const struct hd_rpc_client_options *options,
                                 struct hd_rpc_client **ret_client);
/* Closes the client and cancels its calls in progress; their on_done is called later. The client is
 * invalid afterwards. */
void hd_rpc_client_close(struct hd_rpc_client *client);
/* Returns whether the last hd_rpc_call_wait failed because the server closed or refused its
 * connection. Servers do so to admit other connections (unauthenticated.h), so an idempotent call
 * should be retried soon. */
bool hd_rpc_client_was_cut(const struct hd_rpc_client *client);

struct hd_rpc_metadata {
    const char *key, *value; /* printable ASCII, keys lower case */
};

struct hd_rpc_call_options {
    const char *path;
    enum hd_rpc_kind kind;
    const ProtobufCMessageDescriptor *response;
    /* limit of the whole call, connecting and reply included, ms. Unary: 0 means
     * HD_RPC_TIMEOUT_DEFAULT_MS; streams: 0 means no deadline. Negative: no deadline, which servers
     * refuse for unary calls. */
    int64_t timeout_ms;
    /* true: retries to connect until the deadline; false: fails with HD_UNAVAILABLE at once */
    bool wait_for_ready;
    const struct hd_rpc_metadata *metadata;
    size_t metadata_count;
    struct hd_rpc_handler handler;
    void *user;
    size_t queue_len_max, queue_bytes_max;
};

/* Starts a call. `request` is sent first; NULL only for HD_RPC_BIDI. ret_call (may be NULL) is
 * valid until on_done returns, longer with a reference. After a failure no callback is called. */
enum hd_status hd_rpc_client_call(struct hd_rpc_client *client,
                                  const struct hd_rpc_call_options *options,
                                  const ProtobufCMessage *request, struct hd_rpc_call **ret_call);

/* Makes one unary call and runs the loop until it ends, so other handlers run, too. For command
 * lines; not in a callback. The caller frees ret_response with hd_rpc_message_free. Fails with the
 * call's status and error message. */
enum hd_status hd_rpc_call_wait(struct hd_rpc_client *client, const char *path,
                                const ProtobufCMessageDescriptor *response, int64_t timeout_ms,
                                const ProtobufCMessage *request, ProtobufCMessage **ret_response);

/* ---- statuses on the wire ---- */

/* Conversion to and from gRPC status codes. It is not one to one, so servers also send the exact
 * hd_status, in the trailer `heddle-status`. The error message is sent as status details. */
int hd_rpc_status_to_grpc(enum hd_status st);
enum hd_status hd_rpc_status_from_grpc(int code);

#endif
