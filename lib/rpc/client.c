/* client: a gRPC channel to one address, and the client's side of calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>

#include "base/clock.h"
#include "rpc/address.h"
#include "rpc/channel_args.h"
#include "rpc/credentials.h"
#include "rpc/rpc_internal.h"

enum {
    METADATA_COUNT_MAX = 32,
    CLIENT_BYTES = 128,
    RECONNECT_MIN_MS = 200,
    RECONNECT_MAX_MS = 5000,
};

struct hd_rpc_client {
    struct hd_rpc *rpc;
    struct hd_rpc_client *next, **link;
    /* channel to the address; NULL: closed, and the struct is freed after its last call */
    grpc_channel *channel;
    struct hd_rpc_call *calls;
    size_t calls_count, receive_bytes_max;
    bool was_cut;
    char address[HD_RPC_ADDRESS_MAX + 1];
    /* value of the header `authorization`; "": no token */
    char authorization[HD_RPC_TOKEN_MAX + sizeof "Bearer "];
    char says[CLIENT_BYTES]; /* value of HD_RPC_CLIENT_HEADER; "": not sent */
};

/* ---- channels ---- */

static int64_t or_default(int64_t value, int64_t otherwise)
{
    return value ? value : otherwise;
}

static void fill_client_args(struct hd_rpc_channel_args *args,
                             const struct hd_rpc_client_options *o)
{
    int64_t min_ms = or_default(o->reconnect_min_ms, RECONNECT_MIN_MS);

    hd_rpc_channel_args_add_int(args, GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL,
                                1); /* a connection is not shared by equal channels */
    hd_rpc_channel_args_add_int(args, GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    hd_rpc_channel_args_add_int(args, GRPC_ARG_ENABLE_RETRIES,
                                0); /* gRPC does not know which calls are idempotent */
    hd_rpc_channel_args_add_int(args, GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    hd_rpc_channel_args_add_int(args, GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    hd_rpc_channel_args_add_int(
        args, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
        or_default((int64_t)o->receive_bytes_max, HD_RPC_RECEIVE_BYTES_DEFAULT));
    hd_rpc_channel_args_add_int(args, GRPC_ARG_KEEPALIVE_TIME_MS,
                                or_default(o->keepalive_ms, HD_RPC_KEEPALIVE_DEFAULT_MS));
    hd_rpc_channel_args_add_int(
        args, GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
        or_default(o->keepalive_timeout_ms, HD_RPC_KEEPALIVE_TIMEOUT_DEFAULT_MS));
    hd_rpc_channel_args_add_int(args, GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    hd_rpc_channel_args_add_int(args, GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    hd_rpc_channel_args_add_int(args, GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, min_ms);
    /* this argument is, despite its name, the limit of one attempt to connect */
    hd_rpc_channel_args_add_int(args, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                                or_default(o->connect_timeout_ms, HD_RPC_CONNECT_DEFAULT_MS));
    hd_rpc_channel_args_add_int(args, GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                                or_default(o->reconnect_max_ms, RECONNECT_MAX_MS));
    if (o->tls_server_name)
        hd_rpc_channel_args_add(args, (grpc_arg){.type = GRPC_ARG_STRING,
                                                 .key = GRPC_SSL_TARGET_NAME_OVERRIDE_ARG,
                                                 .value.string = (char *)o->tls_server_name});
}

static enum hd_status check_client_security(const char *text, const struct hd_rpc_address *address,
                                            const struct hd_rpc_client_options *options)
{
    enum hd_status st;

    if (address->is_unix)
        return HD_OK;
    if (!address->port)
        return hd_err(HD_INVALID, "the address %s has port 0; give the server's port", text);
    if (!options->token && !(options->tls && options->tls->cert_path))
        return hd_err(HD_DENIED, "calling %s needs a token: name its file with --token-file FILE",
                      text);
    st = options->token ? hd_rpc_check_token(options->token) : HD_OK;
    if (st)
        return st;
    if (!address->is_loopback && !options->tls)
        return hd_err(HD_DENIED,
                      "calling %s, another machine, needs TLS, else the token would be sent "
                      "unencrypted: name the authority of its certificate with --tls-ca FILE",
                      text);
    return HD_OK;
}

enum hd_status hd_rpc_client_new(struct hd_rpc *rpc, const char *address,
                                 const struct hd_rpc_client_options *options,
                                 struct hd_rpc_client **ret_client)
{
    static const struct hd_rpc_client_options none;
    grpc_channel_credentials *credentials = NULL;
    char target[HD_RPC_TARGET_MAX];
    struct hd_rpc_address parsed;
    struct hd_rpc_client *client;
    struct hd_rpc_channel_args args = {0};
    enum hd_status st;

    options = options ? options : &none;
    st = hd_rpc_parse_address(address, &parsed);
    if (!st)
        st = check_client_security(address, &parsed, options);
    if (!st && !parsed.is_unix && options->tls)
        st = hd_rpc_load_client_tls(options->tls, &credentials);
    if (st)
        return st;
    client = calloc(1, sizeof *client);
    if (!client) {
        if (credentials)
            grpc_channel_credentials_release(credentials);
        return hd_err(HD_NO_MEMORY, "no memory for a client");
    }
    client->rpc = rpc;
    client->receive_bytes_max =
        options->receive_bytes_max ? options->receive_bytes_max : HD_RPC_RECEIVE_BYTES_DEFAULT;
    (void)snprintf(client->address, sizeof client->address, "%s", address);
    if (!parsed.is_unix && options->token)
        (void)snprintf(client->authorization, sizeof client->authorization, "Bearer %s",
                       options->token);
    (void)snprintf(client->says, sizeof client->says, "%s", options->client ? options->client : "");
    fill_client_args(&args, options);
    hd_rpc_format_target(&parsed, target);
    if (!credentials)
        credentials = grpc_insecure_credentials_create();
    client->channel =
        grpc_channel_create(target, credentials, &(grpc_channel_args){args.count, args.list});
    grpc_channel_credentials_release(credentials);

    rpc->live++;
    client->next = rpc->clients;
    client->link = &rpc->clients;
    if (client->next)
        client->next->link = &client->next;
    rpc->clients = client;
    *ret_client = client;
    return HD_OK;
}

static void release(struct hd_rpc_client *client)
{
    struct hd_rpc *rpc = client->rpc;

    if (client->channel || client->calls_count)
        return;
    explicit_bzero(client->authorization, sizeof client->authorization);
    free(client);
    hd_rpc_live_drop(rpc);
}

void hd_rpc_client_close(struct hd_rpc_client *client)
{
    *client->link = client->next;
    if (client->next)
        client->next->link = client->link;
    for (struct hd_rpc_call *call = client->calls; call; call = call->next)
        hd_rpc_call_cancel(call); /* leaves the list unchanged: on_done is called later */
    grpc_channel_destroy(client->channel);
    client->channel = NULL;
    release(client);
}

/* ---- calls ---- */

static void on_opened(struct hd_rpc_op *op, bool ok)
{
    struct hd_rpc_call *call = HD_RPC_OWNER(op, struct hd_rpc_call, on_opened);
    bool accepted = false;

    call->opening = false;
    for (size_t i = 0; ok && i < call->received.count; i++)
        accepted |= hd_rpc_slice_is(call->received.metadata[i].key, HD_RPC_ACCEPTED_HEADER);
    if (accepted && !call->abandoned)
        hd_rpc_call_open(call, NULL);
    hd_rpc_call_settle(call);
    hd_rpc_call_unref(call);
}

static enum hd_status add_header(struct hd_rpc_call *call, const char *key, const char *value)
{
    grpc_metadata *header = &call->headers[call->headers_count];

    header->key = grpc_slice_from_copied_string(key);
    header->value = grpc_slice_from_copied_string(value);
    call->headers_count++;
    if (!grpc_header_key_is_legal(header->key) || grpc_is_binary_header(header->key) ||
        !grpc_header_nonbin_value_is_legal(header->value))
        return hd_err(HD_INVALID, "%s: the metadata %.64s is not printable ASCII", call->path, key);
    return HD_OK;
}

static enum hd_status add_headers(struct hd_rpc_call *call,
                                  const struct hd_rpc_call_options *options)
{
    enum hd_status st = HD_OK;

    if (options->metadata_count > METADATA_COUNT_MAX)
        return hd_err(HD_LIMIT, "%s: more than %d metadata", call->path, METADATA_COUNT_MAX);
    call->headers = calloc(options->metadata_count + 2, sizeof *call->headers);
    if (!call->headers)
        return hd_err(HD_NO_MEMORY, "no memory for metadata");
    if (call->client->authorization[0])
        st = add_header(call, "authorization", call->client->authorization);
    if (!st && call->client->says[0])
        st = add_header(call, HD_RPC_CLIENT_HEADER, call->client->says);
    for (size_t i = 0; !st && i < options->metadata_count; i++)
        st = add_header(call, options->metadata[i].key, options->metadata[i].value);
    return st;
}

static void fill_call(struct hd_rpc_call *call, const struct hd_rpc_call_options *options)
{
    int64_t timeout_ms = options->timeout_ms;

    if (timeout_ms == 0 && options->kind == HD_RPC_UNARY)
        timeout_ms = HD_RPC_TIMEOUT_DEFAULT_MS;
    if (timeout_ms > 0)
        call->deadline_ms = hd_clock_now_ms() + timeout_ms;
    call->timeout_ms = timeout_ms;
    call->wait_for_ready = options->wait_for_ready;
    call->kind = options->kind;
    call->path_copy = strdup(options->path); /* options->path may not live as long as the call */
    call->path = call->path_copy ? call->path_copy : "a call";
    call->incoming = options->response;
    call->handler = options->handler;
    call->user = options->user;
    call->peer = strdup(call->client->address);
    call->message_bytes_max = call->client->receive_bytes_max;
    call->queue_len_max =
        options->queue_len_max ? options->queue_len_max : HD_RPC_QUEUE_LEN_DEFAULT;
    call->queue_bytes_max =
        options->queue_bytes_max ? options->queue_bytes_max : HD_RPC_QUEUE_BYTES_DEFAULT;
}

static void create_grpc_call(struct hd_rpc_call *call)
{
    grpc_slice path = grpc_slice_from_copied_string(call->path);
    gpr_timespec deadline = gpr_inf_future(GPR_CLOCK_MONOTONIC);

    if (call->timeout_ms > 0)
        deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                gpr_time_from_millis(call->timeout_ms, GPR_TIMESPAN));
    call->call = grpc_channel_create_call(call->client->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                          call->rpc->cq, path, NULL, deadline, NULL);
    grpc_slice_unref(path);
}

/* Starts the batches of a call. After a failure none is in progress; later failures arrive as
 * events. */
static enum hd_status start_batches(struct hd_rpc_call *call)
{
    grpc_op final = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT},
            open = {.op = GRPC_OP_RECV_INITIAL_METADATA};
    enum hd_status st;

    final.data.recv_status_on_client.trailing_metadata = &call->trailers;
    final.data.recv_status_on_client.status = &call->code;
    final.data.recv_status_on_client.status_details = &call->details;
    open.data.recv_initial_metadata.recv_initial_metadata = &call->received;
    call->on_final.fn = hd_rpc_call_on_final;
    call->on_opened.fn = on_opened;
    st = hd_rpc_call_start(call, &final, 1, &call->on_final);
    if (st)
        return st;
    call->opening = true;
    hd_rpc_call_send(call);
    st = hd_rpc_call_start(call, &open, 1, &call->on_opened);
    if (st) {
        call->opening = false;
        hd_rpc_call_give_up(call, st);
    }
    return HD_OK;
}

/* Frees a call that was never started. */
static void discard(struct hd_rpc_call *call)
{
    struct hd_rpc *rpc = call->rpc;

    call->done = true;
    hd_rpc_call_drop_queue(call);
    if (call->call)
        grpc_call_unref(call->call);
    call->call = NULL;
    call->client = NULL;
    hd_rpc_call_unref(call);
    hd_rpc_live_drop(rpc);
}

enum hd_status hd_rpc_client_call(struct hd_rpc_client *client,
                                  const struct hd_rpc_call_options *options,
                                  const ProtobufCMessage *request, struct hd_rpc_call **ret_call)
{
    struct hd_rpc_call *call;
    enum hd_status st = HD_OK;

    if (client->rpc->closing || !client->channel)
        return hd_err(HD_ABORTED, "%s: the client is closed", options->path);
    call = hd_rpc_call_make(client->rpc);
    if (!call)
        return HD_NO_MEMORY;
    call->client = client;
    fill_call(call, options);
    st = add_headers(call, options);
    if (!st && request)
        st = hd_rpc_call_enqueue(call, request);
    if (!st) {
        if (options->kind != HD_RPC_BIDI)
            call->ending = HD_RPC_ENDING_FINISH;
        create_grpc_call(call);
        st = start_batches(call);
    }
    if (st) {
        discard(call);
        return st;
    }
    client->calls_count++;
    call->next = client->calls;
    call->link = &client->calls;
    if (call->next)
        call->next->link = &call->next;
    client->calls = call;
    if (ret_call)
        *ret_call = call;
    return HD_OK;
}

void hd_rpc_client_remove_call(struct hd_rpc_call *call)
{
    struct hd_rpc_client *client = call->client;

    *call->link = call->next;
    if (call->next)
        call->next->link = call->link;
    call->client = NULL;
    client->calls_count--;
    release(client);
}

/* ---- the result ---- */

/* Finds the exact hd_status in the trailer of a Heddle server. Returns false if the trailer is
 * absent or contradicts the gRPC status code. */
static bool find_exact_status(const struct hd_rpc_call *call, enum hd_status *ret_status)
{
    for (size_t i = 0; i < call->trailers.count; i++) {
        if (!hd_rpc_slice_is(call->trailers.metadata[i].key, HD_RPC_STATUS_TRAILER))
            continue;
        for (int st = HD_OK + 1; st < HD_STATUS_COUNT; st++) {
            if (!hd_rpc_slice_is(call->trailers.metadata[i].value, hd_status_name(st)))
                continue;
            *ret_status = (enum hd_status)st;
            return hd_rpc_status_to_grpc(*ret_status) == (int)call->code ||
                   hd_rpc_status_from_grpc((int)call->code) == *ret_status;
        }
    }
    return false;
}

const char *hd_rpc_explain_no_connection(const char *details, size_t len_bytes)
{
    static const struct {
        const char *theirs, *ours;
    } rows[] = {
        {"receiving SETTINGS frame",
         "it takes connections but does not answer; it may be stopped or overloaded, or no "
         "program of Heddle: look for its process and its log"},
        {"certificate verify failed",
         "its certificate is not accepted: it is of another authority than --tls-ca names, is for "
         "another name, has ended, or is not valid yet; compare the clocks of both machines"},
        {"wrong version number",
         "it does not speak TLS; leave --tls-ca out, or use its port for TLS"},
        {"WRONG_VERSION_NUMBER",
         "it does not speak TLS; leave --tls-ca out, or use its port for TLS"},
        {"ocket closed", "it closed the connection at once; its log says why"},
        {"Connection refused",
         "nothing listens there (connection refused); start it, or give another address"},
        {"No such file or directory", "there is no such socket; start it, or give another address"},
        {"No route to host", "no route leads to that machine; look at its network and firewalls"},
        {"Network is unreachable", "its network cannot be reached from this machine"},
        {"DNS resolution failed", "its name cannot be resolved; is the address right?"},
        {"Domain name not found", "its name cannot be resolved; is the address right?"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (memmem(details, len_bytes, rows[i].theirs, strlen(rows[i].theirs)))
            return rows[i].ours;
    return NULL;
}

/* Returns whether gRPC's error text `details` says that the server sent GOAWAY to refuse the
 * connection (relay.c); gRPC does not report the text of GOAWAY itself. */
static bool is_turned_away(const char *details, size_t len_bytes)
{
    static const char goaway[] = "GOAWAY received";

    return len_bytes == sizeof goaway - 1 && memcmp(details, goaway, sizeof goaway - 1) == 0;
}

static const char *explain_unavailable(const char *details, size_t len_bytes)
{
    if (is_turned_away(details, len_bytes))
        return "the server is shutting down, or too many connections are open, in all or from "
               "this address; see its log";
    return hd_rpc_explain_no_connection(details, len_bytes);
}

/* Returns whether gRPC's error text `details` says that the connection was closed or refused. A
 * listener of another protocol closes connections, too, so texts about certificates and versions do
 * not count. */
static bool is_cut(const char *details, size_t len_bytes)
{
    static const char *const cuts[] = {"reset by peer",  "ocket closed", "ndpoint closed",
                                       "Broken pipe",    "andshake",     "receiving SETTINGS frame",
                                       "GOAWAY received"};
    static const char *const others[] = {"ertificate", "ersion number", "VERSION_NUMBER"};

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (memmem(details, len_bytes, others[i], strlen(others[i])))
            return false;
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++)
        if (memmem(details, len_bytes, cuts[i], strlen(cuts[i])))
            return true;
    return false;
}

bool hd_rpc_client_was_cut(const struct hd_rpc_client *client)
{
    return client->was_cut;
}

static char *format_failure(const struct hd_rpc_call *call, enum hd_status st, bool from_server)
{
    const char *details = (const char *)GRPC_SLICE_START_PTR(call->details);
    int len_bytes = (int)GRPC_SLICE_LENGTH(call->details);
    const char *ours = explain_unavailable(details, (size_t)len_bytes);
    char *text = NULL;
    int code;

    if (from_server)
        code = asprintf(&text, "%.*s", len_bytes, details);
    else if (st == HD_TIMEOUT)
        code = asprintf(&text, "no answer from %s within %g s", call->client->address,
                        (double)call->timeout_ms / 1e3);
    else if (st == HD_UNAVAILABLE)
        code = asprintf(&text, "cannot reach %s: %.*s", call->client->address,
                        ours ? (int)strlen(ours) : len_bytes, ours ? ours : details);
    else
        code = asprintf(&text, "%s: %.*s", call->path, len_bytes, details);
    return code < 0 ? NULL : text;
}

enum hd_status hd_rpc_client_outcome(struct hd_rpc_call *call, const char **ret_message)
{
    enum hd_status st = hd_rpc_status_from_grpc((int)call->code);
    bool from_server;

    *ret_message = "";
    if (call->local) {
        *ret_message = call->local->message;
        return call->local->status;
    }
    if (st == HD_OK && call->kind == HD_RPC_UNARY && !call->received_count && !call->abandoned) {
        *ret_message = "the server answered without a message";
        return HD_INTERNAL;
    }
    if (st == HD_OK)
        return HD_OK;
    from_server = find_exact_status(call, &st);
    call->failure_text = format_failure(call, st, from_server);
    call->client->was_cut =
        !from_server && st == HD_UNAVAILABLE &&
        is_cut((const char *)GRPC_SLICE_START_PTR(call->details), GRPC_SLICE_LENGTH(call->details));
    if (call->failure_text)
        *ret_message = call->failure_text;
    return st;
}

/* ---- waiting ---- */

struct wait {
    bool done;
    struct hd_error error;
    ProtobufCMessage *response;
};

static void keep_response(struct hd_rpc_call *call, const ProtobufCMessage *msg)
{
    struct wait *wait = hd_rpc_call_user(call);

    (void)msg;
    wait->response = hd_rpc_call_take(call);
}

static void stop_waiting(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct wait *wait = hd_rpc_call_user(call);

    wait->done = true;
    wait->error.status = status;
    (void)snprintf(wait->error.message, sizeof wait->error.message, "%s", message);
}

enum hd_status hd_rpc_call_wait(struct hd_rpc_client *client, const char *path,
                                const ProtobufCMessageDescriptor *response, int64_t timeout_ms,
                                const ProtobufCMessage *request, ProtobufCMessage **ret_response)
{
    struct wait wait = {0};
    const struct hd_rpc_call_options options = {
        .path = path,
        .kind = HD_RPC_UNARY,
        .response = response,
        .timeout_ms = timeout_ms,
        .handler = {.on_msg = keep_response, .on_done = stop_waiting},
        .user = &wait,
    };
    uv_loop_t *loop = client->rpc->loop;
    enum hd_status st;

    client->was_cut = false;
    st = hd_rpc_client_call(client, &options, request, NULL);
    if (st)
        return st;
    while (!wait.done)
        (void)uv_run(loop, UV_RUN_ONCE);
    if (wait.error.status) {
        hd_rpc_message_free(wait.response);
        return hd_err_restore(&wait.error);
    }
    *ret_response = wait.response;
    return HD_OK;
}
