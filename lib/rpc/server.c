/* server: options, listeners and shutdown of a server.
 *
 *   new --start--> open --close--> closing --on_shutdown, slots, calls, handles gone--> freed
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/grpc_security.h>

#include "base/text.h"
#include "rpc/acceptor.h"
#include "rpc/channel_args.h"
#include "rpc/credentials.h"
#include "rpc/relay.h"
#include "rpc/server_internal.h"
#include "rpc/standard.h"
#include "rpc/standard_internal.h"

enum {
    METADATA_BYTES_MAX = 8 * 1024,
    HANDSHAKE_TIMEOUT_MS = 10000,
    PING_STRIKES_MAX = 3,
    CONNECTION_AGE_GRACE_MS = 5 * 60 * 1000,
    CONNECTION_IDLE_MAX_MS = 10 * 60 * 1000,
    MEMORY_BYTES_MAX = 512 * 1024 * 1024, /* limit of the memory of gRPC's resource quota, bytes */
};

static void fill_server_args(struct hd_rpc_channel_args *args,
                             const struct hd_rpc_server_options *o)
{
    hd_rpc_channel_args_add_int(args, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                                (int64_t)o->receive_bytes_max);
    hd_rpc_channel_args_add_int(args, GRPC_ARG_MAX_METADATA_SIZE, METADATA_BYTES_MAX);
    hd_rpc_channel_args_add_int(args, GRPC_ARG_MAX_CONCURRENT_STREAMS,
                                (int64_t)o->streams_per_connection_max);
    hd_rpc_channel_args_add_int(args, GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION,
                                /* decompression off: bounds the memory that a small message can use
                                 */
                                0);
    hd_rpc_channel_args_add_int(args, GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, HANDSHAKE_TIMEOUT_MS);
    hd_rpc_channel_args_add_int(args, GRPC_ARG_MAX_CONNECTION_IDLE_MS, CONNECTION_IDLE_MAX_MS);
    hd_rpc_channel_args_add_int(args, GRPC_ARG_KEEPALIVE_TIME_MS, o->keepalive_ms);
    hd_rpc_channel_args_add_int(args, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, o->keepalive_timeout_ms);
    hd_rpc_channel_args_add_int(args, GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    hd_rpc_channel_args_add_int(args, GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    /* Clients ping every keepalive_ms; half of that is allowed, as tolerance. */
    hd_rpc_channel_args_add_int(args, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                                o->keepalive_ms / 2);
    hd_rpc_channel_args_add_int(args, GRPC_ARG_HTTP2_MAX_PING_STRIKES, PING_STRIKES_MAX);
    if (o->connection_age_max_ms) {
        hd_rpc_channel_args_add_int(args, GRPC_ARG_MAX_CONNECTION_AGE_MS, o->connection_age_max_ms);
        hd_rpc_channel_args_add_int(args, GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                                    CONNECTION_AGE_GRACE_MS);
    }
}

static grpc_server *create_server(struct hd_rpc_server *owner)
{
    grpc_resource_quota *quota = grpc_resource_quota_create("heddle");
    struct hd_rpc_channel_args args = {0};
    grpc_server *server;

    fill_server_args(&args, &owner->options);
    hd_rpc_channel_args_add(&args, hd_rpc_acceptor_arg(&owner->acceptor));
    grpc_resource_quota_resize(quota, MEMORY_BYTES_MAX);
    hd_rpc_channel_args_add(
        &args,
        (grpc_arg){.type = GRPC_ARG_POINTER,
                   .key = GRPC_ARG_RESOURCE_QUOTA,
                   .value.pointer = {.p = quota, .vtable = grpc_resource_quota_arg_vtable()}});
    server = grpc_server_create(&(grpc_channel_args){args.count, args.list}, NULL);
    grpc_resource_quota_unref(quota); /* the server holds its own reference */
    return server;
}

static void fill_defaults(struct hd_rpc_server_options *o)
{
    o->receive_bytes_max =
        o->receive_bytes_max ? o->receive_bytes_max : HD_RPC_RECEIVE_BYTES_DEFAULT;
    o->calls_max = o->calls_max ? o->calls_max : HD_RPC_CALLS_DEFAULT;
    o->streams_per_connection_max =
        o->streams_per_connection_max ? o->streams_per_connection_max : HD_RPC_STREAMS_DEFAULT;
    o->first_bytes_ms = o->first_bytes_ms ? o->first_bytes_ms : HD_RPC_FIRST_BYTES_DEFAULT_MS;
    o->first_call_ms = o->first_call_ms ? o->first_call_ms : HD_RPC_FIRST_CALL_DEFAULT_MS;
    o->keepalive_ms = o->keepalive_ms ? o->keepalive_ms : HD_RPC_KEEPALIVE_DEFAULT_MS;
    o->keepalive_timeout_ms =
        o->keepalive_timeout_ms ? o->keepalive_timeout_ms : HD_RPC_KEEPALIVE_TIMEOUT_DEFAULT_MS;
}

static void on_shutdown(struct hd_rpc_op *op, bool ok);

enum hd_status hd_rpc_server_new(struct hd_rpc *rpc, const struct hd_rpc_server_options *options,
                                 struct hd_rpc_server **ret_server)
{
    struct hd_rpc_server *server = calloc(1, sizeof *server);
    enum hd_status st;

    if (!server)
        return hd_err(HD_NO_MEMORY, "no memory for a server");
    server->rpc = rpc;
    server->on_shutdown.fn = on_shutdown;
    if (options)
        server->options = *options;
    fill_defaults(&server->options);
    st = hd_rpc_token_set_init(&server->tokens, server->options.tokens);
    if (!st && server->options.tls)
        st = hd_rpc_server_tls_open(server->options.tls, &server->pems, &server->tls);
    if (!st)
        st = hd_rpc_expect(rpc); /* space for the shutdown event, so that closing cannot fail */
    if (st) {
        if (server->tls)
            grpc_server_credentials_release(server->tls);
        hd_rpc_server_tls_free(server->pems);
        hd_rpc_token_set_done(&server->tokens);
        free(server);
        return st;
    }
    server->insecure = grpc_insecure_server_credentials_create();
    server->server = create_server(server);
    grpc_server_register_completion_queue(server->server, rpc->cq, NULL);
    server->options.tokens = NULL;
    server->options.tls = NULL;

    rpc->live++;
    server->next = rpc->servers;
    server->link = &rpc->servers;
    if (server->next)
        server->next->link = &server->next;
    rpc->servers = server;
    *ret_server = server;
    return HD_OK;
}

enum hd_status hd_rpc_server_add_method(struct hd_rpc_server *server,
                                        const struct hd_rpc_method *method)
{
    struct hd_rpc_registration *made;

    for (const struct hd_rpc_registration *m = server->methods; m; m = m->next)
        if (strcmp(m->method.path, method->path) == 0)
            return hd_err(HD_EXISTS, "the method %s is registered already", method->path);
    made = calloc(1, sizeof *made);
    if (!made)
        return hd_err(HD_NO_MEMORY, "no memory for a method");
    made->method = *method;
    if (!made->method.queue_len_max)
        made->method.queue_len_max = HD_RPC_QUEUE_LEN_DEFAULT;
    if (!made->method.queue_bytes_max)
        made->method.queue_bytes_max = HD_RPC_QUEUE_BYTES_DEFAULT;
    made->handle =
        grpc_server_register_method(server->server, method->path, NULL, GRPC_SRM_PAYLOAD_NONE, 0);
    if (!made->handle) {
        free(made);
        return hd_err(HD_INTERNAL, "gRPC cannot register the method %s", method->path);
    }
    made->next = server->methods;
    server->methods = made;
    return HD_OK;
}

static bool listens_at_port(const struct hd_rpc_server *server)
{
    for (const struct hd_rpc_listener *l = server->listeners; l; l = l->next)
        if (!hd_text_starts(l->address, "unix:"))
            return true;
    return false;
}

enum hd_status hd_rpc_server_set_tokens(struct hd_rpc_server *server,
                                        const struct hd_rpc_tokens *tokens)
{
    struct hd_rpc_token_set fresh;
    enum hd_status st;

    if (listens_at_port(server) && (!tokens || !tokens->count) &&
        !server->options.identify_has_tokens)
        return hd_err(HD_DENIED, "there is no token left for HOST:PORT; give a token file");
    st = hd_rpc_token_set_init(&fresh, tokens);
    if (st)
        return st;
    hd_rpc_token_set_done(&server->tokens);
    server->tokens = fresh;
    return HD_OK;
}

/* ---- listening ---- */

static enum hd_status check_server_security(const struct hd_rpc_server *server, const char *text,
                                            const struct hd_rpc_address *address)
{
    if (!server->tokens.tokens.count && !server->options.identify_has_tokens)
        return hd_err(HD_DENIED, "listening on %s needs a token file; or listen on unix:PATH",
                      text);
    if (!address->is_loopback && !server->tls)
        return hd_err(HD_DENIED,
                      "listening on %s, beyond this machine, needs a TLS certificate and key; or "
                      "listen on unix:PATH or 127.0.0.1:PORT",
                      text);
    return HD_OK;
}

enum hd_status hd_rpc_server_listen(struct hd_rpc_server *server, const char *address,
                                    int *ret_port)
{
    struct hd_rpc_listener *listener;
    struct hd_rpc_address parsed;
    enum hd_status st;

    if (server->started)
        return hd_err(HD_CONFLICT, "cannot listen on %s: the server has already started", address);
    st = hd_rpc_parse_address(address, &parsed);
    if (!st && !parsed.is_unix)
        st = check_server_security(server, address, &parsed);
    if (st)
        return st;
    listener = calloc(1, sizeof *listener);
    if (!listener)
        return hd_err(HD_NO_MEMORY, "no memory to listen");
    st = parsed.is_unix ? hd_rpc_unix_listener_open(server, parsed.path)
                        : hd_rpc_tcp_listeners_open(server, address, &parsed);
    if (!st)
        st = hd_rpc_resolve(&parsed, &listener->peer, &listener->peer_bytes);
    if (st) {
        free(listener);
        return st;
    }
    if (parsed.is_unix)
        (void)snprintf(listener->address, sizeof listener->address, "%s", address);
    else
        hd_rpc_format_host_port(&parsed, listener->address); /* has the chosen port now */
    listener->next = server->listeners;
    server->listeners = listener;
    if (ret_port)
        *ret_port = parsed.port;
    return HD_OK;
}

enum hd_status hd_rpc_server_start(struct hd_rpc_server *server)
{
    enum hd_status st;

    grpc_server_start(server->server);
    server->started = true;
    st = hd_rpc_server_fill_slots(server);
    for (struct hd_rpc_unix_listener *unix_listener = server->unix_listeners; !st && unix_listener;
         unix_listener = unix_listener->next)
        st = hd_rpc_listener_start(unix_listener);
    return st || !server->relay ? st : hd_rpc_relay_start(server->relay);
}

enum hd_status hd_rpc_server_set_tls(struct hd_rpc_server *server, const struct hd_rpc_tls *tls)
{
    if (!server->pems)
        return hd_err(HD_CONFLICT, "the server was started without TLS; restart it with a "
                                   "certificate and a key");
    return hd_rpc_server_tls_replace(server->pems, tls);
}

/* ---- the end ---- */

static void cancel_all(uv_timer_t *grace)
{
    struct hd_rpc_server *server = grace->data;

    grpc_server_cancel_all_calls(server->server);
}

static void on_grace_closed(uv_handle_t *handle)
{
    hd_rpc_server_handle_closed(handle->data);
}

static void on_shutdown(struct hd_rpc_op *op, bool ok)
{
    struct hd_rpc_server *server = HD_RPC_OWNER(op, struct hd_rpc_server, on_shutdown);

    (void)ok;
    server->shut_down = true;
    grpc_server_destroy(server->server);
    uv_close((uv_handle_t *)&server->grace, on_grace_closed);
}

void hd_rpc_server_close(struct hd_rpc_server *server, int64_t grace_ms,
                         void (*on_closed)(void *user), void *user)
{
    struct hd_rpc_unix_listener *next;

    if (server->closing)
        return;
    server->closing = true;
    server->on_closed = on_closed;
    server->on_closed_user = user;
    if (server->standard && hd_rpc_health_end(server->standard) && grace_ms < HD_RPC_HEALTH_END_MS)
        grace_ms = HD_RPC_HEALTH_END_MS; /* time to send NOT_SERVING before calls are cancelled */
    if (server->check)
        hd_rpc_self_check_close(server->check);
    server->check = NULL;
    for (struct hd_rpc_unix_listener *unix_listener = server->unix_listeners; unix_listener;
         unix_listener = next) {
        next = unix_listener->next;
        hd_rpc_listener_close(unix_listener);
    }
    server->unix_listeners = NULL;
    if (server->relay)
        hd_rpc_relay_close(server->relay);
    (void)uv_timer_init(server->rpc->loop, &server->grace);
    server->grace.data = server;
    server->handles++;
    grpc_server_shutdown_and_notify(server->server, server->rpc->cq, &server->on_shutdown);
    if (grace_ms > 0)
        (void)uv_timer_start(&server->grace, cancel_all, (uint64_t)grace_ms, 0);
    else
        grpc_server_cancel_all_calls(server->server);
}

void hd_rpc_server_stop(struct hd_rpc_server *server)
{
    if (!server->closing)
        hd_rpc_server_close(server, 0, NULL, NULL);
    else if (!server->shut_down)
        grpc_server_cancel_all_calls(server->server);
}

void hd_rpc_server_handle_closed(struct hd_rpc_server *server)
{
    server->handles--;
    hd_rpc_server_release(server);
}

void hd_rpc_server_release(struct hd_rpc_server *server)
{
    void (*on_closed)(void *user) = server->on_closed;
    void *user = server->on_closed_user;
    struct hd_rpc *rpc = server->rpc;

    if (!server->shut_down || server->slots || server->calls || server->handles)
        return;
    while (server->methods) {
        struct hd_rpc_registration *m = server->methods;

        server->methods = m->next;
        free(m);
    }
    while (server->listeners) {
        struct hd_rpc_listener *l = server->listeners;

        server->listeners = l->next;
        free(l);
    }
    if (server->tls)
        grpc_server_credentials_release(server->tls);
    grpc_server_credentials_release(server->insecure);
    hd_rpc_server_tls_free(server->pems);
    hd_rpc_token_set_done(&server->tokens);
    *server->link = server->next;
    if (server->next)
        server->next->link = server->link;
    hd_rpc_relay_free(server->relay);
    free(server->uids);
    free(server->standard);
    free(server);
    if (on_closed)
        on_closed(user);
    hd_rpc_live_drop(rpc);
}

void hd_rpc_server_set_serving(struct hd_rpc_server *server, bool serving)
{
    if (server->unfit == !serving)
        return;
    server->unfit = !serving;
    if (server->standard && !server->closing)
        hd_rpc_health_set(server->standard);
}

size_t hd_rpc_server_calls(const struct hd_rpc_server *server)
{
    return server->calls;
}

const struct hd_rpc_token *hd_rpc_server_find_token(const struct hd_rpc_server *server,
                                                    const char *given)
{
    return hd_rpc_token_set_find(&server->tokens, given);
}

bool hd_rpc_server_has_tokens(const struct hd_rpc_server *server, enum hd_rpc_party party)
{
    for (size_t i = 0; i < server->tokens.tokens.count; i++)
        if (server->tokens.tokens.items[i].party == party)
            return true;
    return false;
}
