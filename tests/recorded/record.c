/* record: a door in front of a controller that writes down each message of each call. */
#include "record.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "conversation.h"

struct recorder {
    uv_loop_t loop;
    struct hd_rpc *rpc;
    struct hd_rpc_server *server;
    struct hd_rpc_client *client;
    FILE *out;
    int calls;
};

/* A call from a client, and the same call to the controller. */
struct pair {
    struct recorder *r;
    struct hd_rpc_call *from, *to; /* NULL: it has ended */
    int number;
};

static void must(enum hd_status st)
{
    if (!st)
        return;
    fprintf(stderr, "recorded_player record: %s\n", hd_err_message());
    exit(1);
}

static void write_down(struct pair *p, char direction, const ProtobufCMessage *message)
{
    struct plain_bytes bytes = plain_pack(message);

    conversation_write_bytes(p->r->out, p->number, direction, &bytes);
    free(bytes.data);
}

static void free_if_over(struct pair *p)
{
    if (!p->from && !p->to)
        free(p);
}

/* ---- the controller's side ---- */

static void on_answer(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    struct pair *p = hd_rpc_call_user(call);

    write_down(p, '<', message);
    if (!p->from)
        return;
    if (conversation_kind(hd_rpc_call_path(call)) == HD_RPC_UNARY)
        (void)hd_rpc_call_reply(p->from, message);
    else
        must(hd_rpc_call_write(p->from, message));
}

static void on_answered(struct hd_rpc_call *call, enum hd_status status, const char *text)
{
    struct pair *p = hd_rpc_call_user(call);

    fprintf(p->r->out, "%d end %d %s\n", p->number, (int)status, text);
    (void)fflush(p->r->out);
    p->to = NULL;
    if (p->from && status)
        hd_rpc_call_fail(p->from, hd_err(status, "%s", text));
    else if (p->from && conversation_kind(hd_rpc_call_path(p->from)) != HD_RPC_UNARY)
        hd_rpc_call_finish(p->from);
    free_if_over(p);
}

/* ---- the client's side ---- */

static void on_open(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    struct recorder *r = hd_rpc_call_user(call);
    struct pair *p = calloc(1, sizeof *p);
    const struct hd_rpc_call_options options = {
        .path = hd_rpc_call_path(call),
        .kind = conversation_kind(hd_rpc_call_path(call)),
        .response = &plain_message,
        .handler = {.on_msg = on_answer, .on_done = on_answered},
        .user = p};

    if (!p)
        abort();
    *p = (struct pair){.r = r, .from = call, .number = ++r->calls};
    hd_rpc_call_set_user(call, p);
    fprintf(r->out, "%d open %s\n", p->number, options.path);
    if (request)
        write_down(p, '>', request);
    must(hd_rpc_client_call(r->client, &options, request, &p->to));
}

static void on_request(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    struct pair *p = hd_rpc_call_user(call);

    write_down(p, '>', message);
    if (p->to)
        must(hd_rpc_call_write(p->to, message));
}

static void on_half_close(struct hd_rpc_call *call)
{
    struct pair *p = hd_rpc_call_user(call);

    fprintf(p->r->out, "%d .\n", p->number);
    if (p->to)
        hd_rpc_call_finish(p->to);
}

static void on_client_done(struct hd_rpc_call *call, enum hd_status status, const char *text)
{
    struct pair *p = hd_rpc_call_user(call);

    p->from = NULL;
    if (p->to)
        hd_rpc_call_cancel(p->to);
    free_if_over(p);
}

/* ---- the program ---- */

static void on_term(uv_signal_t *signal, int number)
{
    exit(fclose(((struct recorder *)signal->data)->out) ? 1 : 0);
}

int record(const struct protocol *protocol, const char *listen, const char *controller,
           const char *out)
{
    const struct hd_rpc_server_options server_options = {.allow_no_deadline = true};
    struct recorder r = {.out = fopen(out, "ae")};
    const struct protocol_rpc *rpcs;
    uv_signal_t term;
    size_t count;

    if (!r.out || uv_loop_init(&r.loop)) {
        perror(out);
        return 1;
    }
    (void)setvbuf(r.out, NULL, _IOFBF, 1 << 20);
    must(hd_rpc_new(&r.loop, &r.rpc));
    must(hd_rpc_client_new(r.rpc, controller, NULL, &r.client));
    must(hd_rpc_server_new(r.rpc, &server_options, &r.server));
    rpcs = protocol_rpcs(protocol, &count);
    for (size_t i = 0; i < count; i++) {
        const struct hd_rpc_method method = {.path = rpcs[i].path,
                                             .kind = conversation_kind(rpcs[i].path),
                                             .request = &plain_message,
                                             .response = &plain_message,
                                             .handler = {.on_open = on_open,
                                                         .on_msg = on_request,
                                                         .on_half_close = on_half_close,
                                                         .on_done = on_client_done},
                                             .user = &r};

        must(hd_rpc_server_add_method(r.server, &method));
    }
    must(hd_rpc_server_listen(r.server, listen, NULL));
    must(hd_rpc_server_start(r.server));
    (void)uv_signal_init(&r.loop, &term);
    term.data = &r;
    (void)uv_signal_start(&term, on_term, SIGTERM);
    return uv_run(&r.loop, UV_RUN_DEFAULT);
}
