/* server_call: the server's side of calls: accepting, authentication and result.
 *
 * A slot receives the headers of a call. Then the call is checked, in this order: limit of calls,
 * token or Unix peer, method, deadline, authorize. Only then its request message is read and
 * on_open called; a refused call never reaches a handler, and of a caller without a token only the
 * headers are kept. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>

#include "base/clock.h"
#include "base/log.h"
#include "rpc/relay.h"
#include "rpc/server_internal.h"

enum {
    SLOTS_PER_METHOD = 16, /* calls of one method that gRPC can accept before the loop runs */
    SLOTS_UNKNOWN = 4,     /* calls of unknown methods, which would hang without a slot */
    CERT_BYTES_MAX = 16 * 1024,
    /* tolerance for deadlines, ms: a client's timer ends earlier than the server's, by the network
     * delay */
    DEADLINE_SLACK_MS = 100,
};

struct hd_rpc_slot {
    struct hd_rpc_op on_accept;
    struct hd_rpc_server *server;
    /* method that the slot takes a call of; NULL: an unknown method */
    struct hd_rpc_registration *registration;
    grpc_call *call;
    grpc_call_details details; /* method and host of the call; set for unknown methods */
    gpr_timespec deadline;
    grpc_metadata_array metadata;
};

/* ---- the identity of a caller ---- */

/* Identifies the peer of a Unix socket, which gRPC calls "fd:N". N cannot be the descriptor of a
 * later connection, because gRPC keeps it open as long as a call of its connection exists. */
static bool identify_unix(const struct hd_rpc_server *server, struct hd_rpc_call *call,
                          const char *peer)
{
    struct hd_rpc_principal *who = &call->principal;
    unsigned long fd;

    if (strncmp(peer, "fd:", 3) != 0)
        return false;
    fd = strtoul(peer + 3, NULL, 10);
    if (fd >= server->uids_count)
        return false;
    who->transport = HD_RPC_TRANSPORT_UNIX;
    who->party = HD_RPC_PARTY_LOCAL;
    who->uid = server->uids[fd];
    (void)snprintf(who->name, sizeof who->name, "uid:%u", (unsigned)who->uid);
    if (asprintf(&call->peer, "unix (%s)", who->name) < 0)
        call->peer = NULL;
    return true;
}

/* Finds the server's token that the call carries; NULL: the call's token is none of them.
 * ret_given: token in the call; "": none, or a malformed one. */
static const struct hd_rpc_token *find_token(const struct hd_rpc_server *server,
                                             const grpc_metadata_array *metadata,
                                             char ret_given[HD_RPC_TOKEN_MAX + 1])
{
    static const char scheme[] = "Bearer ";
    const size_t scheme_bytes = sizeof scheme - 1;
    const grpc_slice *value;
    size_t len_bytes;

    *ret_given = '\0';
    for (size_t i = 0; i < metadata->count; i++) {
        if (!hd_rpc_slice_is(metadata->metadata[i].key, "authorization"))
            continue;
        value = &metadata->metadata[i].value;
        len_bytes = GRPC_SLICE_LENGTH(*value);
        if (len_bytes < scheme_bytes || len_bytes - scheme_bytes > HD_RPC_TOKEN_MAX ||
            memcmp(GRPC_SLICE_START_PTR(*value), scheme, scheme_bytes) != 0)
            return NULL;
        memcpy(ret_given, GRPC_SLICE_START_PTR(*value) + scheme_bytes, len_bytes - scheme_bytes);
        ret_given[len_bytes - scheme_bytes] = '\0';
        return hd_rpc_token_set_find(&server->tokens, ret_given);
    }
    return NULL;
}

/* Copies a TLS property of the call's connection; "" if it is absent or too long. */
static void read_property(struct hd_rpc_call *call, const char *name, char *ret_text, size_t size)
{
    grpc_auth_context *auth = grpc_call_auth_context(call->call);
    const grpc_auth_property *property = NULL;
    grpc_auth_property_iterator found;

    *ret_text = '\0';
    if (auth && grpc_auth_context_peer_is_authenticated(auth)) {
        found = grpc_auth_context_find_properties_by_name(auth, name);
        property = grpc_auth_property_iterator_next(&found);
    }
    if (property && property->value_length < size) {
        memcpy(ret_text, property->value, property->value_length);
        ret_text[property->value_length] = '\0';
    }
    if (auth)
        grpc_auth_context_release(auth);
}

static void name_tcp_peer(struct hd_rpc_call *call, const struct hd_rpc_token *token)
{
    struct hd_rpc_principal *who = &call->principal;
    char name[sizeof who->name];

    who->party = token->party;
    memcpy(who->token_name, token->name, sizeof who->token_name);
    if (token->name[0]) {
        (void)snprintf(who->name, sizeof who->name, "%s%s",
                       token->party == HD_RPC_PARTY_NODE ? "node:" : "", token->name);
        return;
    }
    read_property(call, GRPC_X509_CN_PROPERTY_NAME, name, sizeof name - sizeof "cert:");
    if (*name)
        (void)snprintf(who->name, sizeof who->name, "cert:%s", name);
    else
        (void)snprintf(who->name, sizeof who->name, "%s",
                       token->party == HD_RPC_PARTY_NODE ? "node" : "token");
}

/* Logs a call that was refused for its token, so that guessed or outdated tokens are noticed. The
 * rate is limited, so that these lines do not fill the log. */
static void report_denied(struct hd_rpc_server *server, const struct hd_rpc_call *call,
                          const char *why)
{
    size_t left_out;

    if (hd_rpc_rate_allows(&server->denials, &left_out))
        hd_log(HD_LOG_WARN,
               "refused a call from %s: %s (%zu more such calls since the last such line)",
               hd_rpc_call_peer(call), why, left_out);
}

/* Identifies a TCP caller by its token or certificate. */
static enum hd_status identify_tcp(struct hd_rpc_call *call, const grpc_metadata_array *metadata)
{
    struct hd_rpc_server *server = call->server;
    char given[HD_RPC_TOKEN_MAX + 1], cert[CERT_BYTES_MAX];
    const struct hd_rpc_token *token = find_token(server, metadata, given);
    struct hd_rpc_shown shown = {.known = token != NULL, .token = "", .cert = ""};
    enum hd_status st = HD_OK;

    call->principal.transport = HD_RPC_TRANSPORT_TCP;
    call->principal.uid = (uid_t)-1;
    if (token) {
        name_tcp_peer(call, token);
    } else if (server->options.identify) {
        read_property(call, GRPC_X509_PEM_CERT_PROPERTY_NAME, cert, sizeof cert);
        shown.token = given;
        shown.cert = cert;
    }
    if (server->options.identify)
        st = server->options.identify(server->options.authorize_user, &shown, &call->principal);
    else if (!token)
        st = hd_err(HD_DENIED, "the token is missing or wrong; give a token file with one of the "
                               "controller's");
    explicit_bzero(given, sizeof given);
    return st;
}

/* Sets the address of a TCP peer, for logs; leaves it unset for a client that has disconnected. */
static void name_connection(struct hd_rpc_call *call, const char *peer)
{
    const struct hd_rpc_server *server = call->server;
    char name[HD_RPC_RELAY_NAME_MAX];

    if (peer && server->relay && hd_rpc_relay_name(server->relay, peer, name))
        call->peer = strdup(name);
}

static void notify_relay(struct hd_rpc_relay *relay, const char *peer, enum hd_status st)
{
    if (st)
        hd_rpc_relay_deny(relay, peer);
    else
        hd_rpc_relay_prove(relay, peer);
}

static enum hd_status identify(struct hd_rpc_call *call, const grpc_metadata_array *metadata)
{
    struct hd_rpc_server *server = call->server;
    const struct hd_rpc_shown socket = {.known = true, .token = "", .cert = ""};
    char *peer = grpc_call_get_peer(call->call);
    enum hd_status st = HD_OK;

    if (peer && identify_unix(server, call, peer)) {
        if (server->options.identify)
            st =
                server->options.identify(server->options.authorize_user, &socket, &call->principal);
    } else {
        name_connection(call, peer);
        st = identify_tcp(call, metadata);
        if (peer && server->relay)
            notify_relay(server->relay, peer, st);
    }
    gpr_free(peer);
    if (st) {
        call->principal.name[0] = '\0';
        call->unauthenticated = true;
        report_denied(server, call, hd_err_message());
        st = hd_err(HD_DENIED, "%s", hd_err_message());
    }
    return st;
}

static enum hd_status authorize(struct hd_rpc_call *call)
{
    const struct hd_rpc_server_options *options = &call->server->options;
    enum hd_status st = HD_OK;

    if (options->authorize)
        st = options->authorize(options->authorize_user, call);
    if (st == HD_DENIED)
        report_denied(call->server, call, hd_err_message());
    return st;
}

void hd_rpc_server_answered(struct hd_rpc_call *call, enum hd_status st)
{
    const struct hd_rpc_server_options *options = &call->server->options;

    if (call->answered || !options->on_answer || !call->principal.name[0])
        return;
    call->answered = true;
    options->on_answer(options->authorize_user, call, st);
}

/* ---- from a slot to a call ---- */

static char *copy_slice(grpc_slice slice)
{
    return strndup((const char *)GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
}

/* Copies the client's metadata as text, without the token and binary values. */
static enum hd_status copy_metadata(struct hd_rpc_call *call, const grpc_metadata_array *metadata)
{
    struct hd_rpc_pair *pair;

    call->pairs = calloc(metadata->count + 1, sizeof *call->pairs);
    if (!call->pairs)
        return hd_err(HD_NO_MEMORY, "no memory for metadata");
    for (size_t i = 0; i < metadata->count; i++) {
        if (hd_rpc_slice_is(metadata->metadata[i].key, "authorization") ||
            grpc_is_binary_header(metadata->metadata[i].key))
            continue;
        pair = &call->pairs[call->pairs_count++];
        pair->key = copy_slice(metadata->metadata[i].key);
        pair->value = copy_slice(metadata->metadata[i].value);
        if (!pair->key || !pair->value)
            return hd_err(HD_NO_MEMORY, "no memory for metadata");
    }
    return HD_OK;
}

static int64_t to_deadline_ms(gpr_timespec deadline)
{
    gpr_timespec left;

    if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0)
        return INT64_MAX;
    left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
    return hd_clock_now_ms() + left.tv_sec * 1000 + left.tv_nsec / 1000000;
}

static enum hd_status admit(struct hd_rpc_call *call, struct hd_rpc_slot *slot,
                            const struct hd_rpc_method *method)
{
    const struct hd_rpc_server *server = call->server;
    enum hd_status st;

    if (server->calls > server->options.calls_max)
        return hd_err(HD_LIMIT, "the server has %zu calls in flight, which is its limit; try again",
                      server->options.calls_max);
    st = identify(call, &slot->metadata);
    if (st)
        return st;
    if (!method)
        return hd_err(HD_UNSUPPORTED, "this server has no method %s", call->path);
    if (method->kind == HD_RPC_UNARY && call->deadline_ms == INT64_MAX &&
        !server->options.allow_no_deadline)
        return hd_err(HD_INVALID, "calls of %s need a deadline", call->path);
    st = copy_metadata(call, &slot->metadata);
    return st ? st : authorize(call);
}

/* Starts the operation RECV_CLOSE_ON_SERVER, whose event marks the end of the call. */
static void watch_end(struct hd_rpc_call *call)
{
    grpc_op ops[1] = {{.op = GRPC_OP_RECV_CLOSE_ON_SERVER}};

    ops[0].data.recv_close_on_server.cancelled = &call->cancelled;
    call->on_final.fn = hd_rpc_call_on_final;
    if (hd_rpc_call_start(call, ops, 1, &call->on_final)) {
        (void)grpc_call_cancel(call->call, NULL);
        call->final = call->abandoned = true;
    }
}

/* Adds the header that tells a stream's client that the call is accepted, before the first message.
 */
static void add_accepted_header(struct hd_rpc_call *call)
{
    call->headers = calloc(1, sizeof *call->headers);
    if (!call->headers)
        return; /* the first message tells the client as well */
    call->headers->key = grpc_slice_from_static_string(HD_RPC_ACCEPTED_HEADER);
    call->headers->value = grpc_slice_from_static_string("1");
    call->headers_count = 1;
}

static void open_call(struct hd_rpc_call *call, ProtobufCMessage *request)
{
    hd_rpc_call_open(call, request);
    if (call->kind != HD_RPC_UNARY && !call->headers_sent && hd_rpc_call_alive(call))
        add_accepted_header(call);
}

void hd_rpc_server_requested(struct hd_rpc_call *call, ProtobufCMessage *request)
{
    call->awaits_request = false;
    call->read_ended = true; /* further messages of a unary call or a server's stream are ignored */
    if (request)
        open_call(call, request);
    else
        hd_rpc_call_fail(call,
                         hd_err(HD_INVALID, "%s: the request message is missing", call->path));
}

static void take_call(struct hd_rpc_slot *slot, struct hd_rpc_call *call)
{
    struct hd_rpc_server *server = slot->server;
    const struct hd_rpc_method *method = slot->registration ? &slot->registration->method : NULL;
    enum hd_status st;

    call->server = server;
    call->call = slot->call;
    call->principal.uid = (uid_t)-1;
    call->message_bytes_max = server->options.receive_bytes_max;
    call->read_ended = true;
    if (method) {
        call->kind = method->kind;
        call->path = method->path;
        call->incoming = method->request;
        call->handler = method->handler;
        call->user = method->user;
        call->queue_len_max = method->queue_len_max;
        call->queue_bytes_max = method->queue_bytes_max;
        call->deadline_ms = to_deadline_ms(slot->deadline);
    } else {
        call->path_copy = copy_slice(slot->details.method);
        call->path = call->path_copy ? call->path_copy : "?";
    }
    server->calls++;
    watch_end(call);

    st = admit(call, slot, method);
    if (st) {
        hd_rpc_call_fail(call, st);
    } else {
        call->read_ended = false;
        call->awaits_request = call->kind != HD_RPC_BIDI;
        if (!call->awaits_request)
            open_call(call, NULL);
    }
    hd_rpc_call_settle(call);
}

/* ---- slots ---- */

static enum hd_status arm(struct hd_rpc_slot *slot)
{
    struct hd_rpc_server *server = slot->server;
    grpc_completion_queue *cq = server->rpc->cq;
    enum hd_status st = hd_rpc_expect(server->rpc);
    grpc_call_error error;

    if (st)
        return st;
    slot->call = NULL;
    grpc_metadata_array_init(&slot->metadata);
    grpc_call_details_init(&slot->details);
    if (slot->registration)
        error = grpc_server_request_registered_call(server->server, slot->registration->handle,
                                                    &slot->call, &slot->deadline, &slot->metadata,
                                                    NULL, cq, cq, &slot->on_accept);
    else
        error = grpc_server_request_call(server->server, &slot->call, &slot->details,
                                         &slot->metadata, cq, cq, &slot->on_accept);
    if (error == GRPC_CALL_OK)
        return HD_OK;
    hd_rpc_expect_cancel(server->rpc);
    return hd_err(HD_INTERNAL, "gRPC refused to wait for calls: %s",
                  grpc_call_error_to_string(error));
}

static void reset(struct hd_rpc_slot *slot)
{
    grpc_metadata_array_destroy(&slot->metadata);
    grpc_call_details_destroy(&slot->details);
}

static void on_accept(struct hd_rpc_op *op, bool ok)
{
    struct hd_rpc_slot *slot = HD_RPC_OWNER(op, struct hd_rpc_slot, on_accept);
    struct hd_rpc_server *server = slot->server;
    struct hd_rpc_call *call;

    if (ok) {
        call = hd_rpc_call_make(server->rpc);
        if (call)
            take_call(slot, call);
        else
            grpc_call_unref(slot->call); /* cancels the call */
    }
    reset(slot);
    if (ok && arm(slot) == HD_OK)
        return;
    free(slot); /* the server is closing, or out of memory */
    server->slots--;
    hd_rpc_server_release(server);
}

static enum hd_status add_slot(struct hd_rpc_server *server, struct hd_rpc_registration *method)
{
    struct hd_rpc_slot *slot = calloc(1, sizeof *slot);
    enum hd_status st;

    if (!slot)
        return hd_err(HD_NO_MEMORY, "no memory to wait for calls");
    slot->server = server;
    slot->registration = method;
    slot->on_accept.fn = on_accept;
    st = arm(slot);
    if (st)
        free(slot);
    else
        server->slots++;
    return st;
}

enum hd_status hd_rpc_server_fill_slots(struct hd_rpc_server *server)
{
    enum hd_status st = HD_OK;

    for (struct hd_rpc_registration *m = server->methods; !st && m; m = m->next)
        for (int i = 0; !st && i < SLOTS_PER_METHOD; i++)
            st = add_slot(server, m);
    for (int i = 0; !st && i < SLOTS_UNKNOWN; i++)
        st = add_slot(server, NULL);
    return st;
}

/* ---- the end ---- */

enum hd_status hd_rpc_server_outcome(struct hd_rpc_call *call, const char **ret_message)
{
    *ret_message = "";
    if (call->status_delivered && !call->cancelled)
        return HD_OK;
    if (!call->abandoned && hd_rpc_call_time_left_ms(call) <= DEADLINE_SLACK_MS) {
        *ret_message = "the deadline passed"; /* gRPC reports a passed deadline as a cancel */
        return HD_TIMEOUT;
    }
    *ret_message = call->abandoned ? "cancelled" : "the peer cancelled or disconnected";
    return HD_ABORTED;
}

void hd_rpc_server_remove_call(struct hd_rpc_call *call)
{
    struct hd_rpc_server *server = call->server;

    call->server = NULL;
    server->calls--;
    hd_rpc_server_release(server);
}
