/* play_clients: recorded nodes and commands against a controller that is built. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "conversation.h"
#include "heard.h"
#include "play.h"

enum { PATIENCE_MS = 60000 };

/* One of the recorded calls, as it goes now. */
struct played {
    struct clients *c;
    const struct protocol_rpc *rpc;
    enum hd_rpc_kind kind;
    struct hd_rpc_call *call; /* NULL: not begun, or ended */
    bool done;
    enum hd_status end;
    char end_text[512];
    struct hd_text answers, recorded; /* what must be equal, a message behind the other */
    struct heard heard, heard_then;   /* of a node's streams: from the controller, now and then */
};

struct clients {
    uv_loop_t loop;
    uv_timer_t beat;
    struct hd_rpc *rpc;
    struct hd_rpc_client *client;
    const struct protocol *protocol;
    struct conversation talk;
    struct played *calls; /* by number */
    const char *root;
    int differences;
};

static void on_beat(uv_timer_t *timer)
{
}

static void differ(struct clients *c, const struct played *p, const char *what, const char *then,
                   const char *now)
{
    c->differences++;
    printf("%s: %s\n--- recorded\n%s\n--- now\n%s\n", p->rpc->path, what, then, now);
}

static const char *text_of(const struct hd_text *text)
{
    return text->data ? text->data : "";
}

/* ---- what the controller says ---- */

/* The statuses of a watched job are left out: how many there are depends on when each is taken. */
static void keep_answer(const struct played *p, const char *text, struct hd_text *all)
{
    if (p->kind == HD_RPC_UNARY || (strncmp(text, "status.", 7) && !strstr(text, "\nstatus.")))
        heard_mask(text, all);
}

static void on_answer(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    struct played *p = hd_rpc_call_user(call);
    struct plain_bytes bytes = plain_pack(message);
    struct hd_text text = {0};

    plain_print(p->c->protocol, p->rpc->response, &bytes, &text);
    heard_take(&p->heard, text_of(&text));
    if (p->kind != HD_RPC_BIDI)
        keep_answer(p, text_of(&text), &p->answers);
    hd_text_free(&text);
    free(bytes.data);
}

static void on_done(struct hd_rpc_call *call, enum hd_status status, const char *text)
{
    struct played *p = hd_rpc_call_user(call);

    p->call = NULL;
    p->done = true;
    p->end = status;
    (void)snprintf(p->end_text, sizeof p->end_text, "%s", text);
}

/* ---- what is said to it ---- */

/* Folders, and the caller where the recorded one was known by its user number. */
static void edit_text(void *user, struct plain_field *field)
{
    const struct played *p = user;
    char caller[32];

    if (!field->is_text)
        return;
    (void)snprintf(caller, sizeof caller, "uid:%u", (unsigned)geteuid());
    conversation_move(&field->text, p->c->talk.root, p->c->root);
    conversation_move(&field->text, "uid:0", caller);
}

/* Edits a recorded message into an answer to the controller's present words. */
static void edit(void *user, struct plain_field *field)
{
    struct played *p = user;

    edit_text(user, field);
    if (field->is_text) {
        if (strcmp(field->path, "observed.jobs_dir_probe") == 0 && field->text.len_bytes) {
            hd_text_clear(&field->text);
            hd_text_add(&field->text, "%s", p->heard.probe_text);
        }
    } else if (strcmp(field->path, "observed.generation") == 0) {
        field->number = p->heard.generation;
    } else if (strcmp(field->path, "request") == 0 && field->number) {
        field->number = p->heard.log_request;
    }
}

static void begin(struct played *p, const ProtobufCMessage *request)
{
    const struct hd_rpc_call_options options = {
        .path = p->rpc->path,
        .kind = p->kind,
        .response = &plain_message,
        .handler = {.on_msg = on_answer, .on_done = on_done},
        .user = p};

    if (hd_rpc_client_call(p->c->client, &options, request, &p->call)) {
        fprintf(stderr, "%s: %s\n", p->rpc->path, hd_err_message());
        exit(1);
    }
}

static void say(struct played *p, const struct said *said)
{
    struct plain_bytes bytes = plain_edit(p->c->protocol, p->rpc->request, &said->bytes, edit, p);
    ProtobufCMessage *message = plain_unpack(&bytes);

    if (p->kind != HD_RPC_BIDI)
        begin(p, message);
    else if (p->call && hd_rpc_call_write(p->call, message))
        fprintf(stderr, "%s: %s\n", p->rpc->path, hd_err_message());
    protobuf_c_message_free_unpacked(message, NULL);
    free(bytes.data);
}

/* ---- waiting ---- */

static bool is_there(const struct played *p)
{
    return p->kind == HD_RPC_BIDI ? p->done || heard_reaches(&p->heard_then, &p->heard) : p->done;
}

/* Until the controller has said on this call what it had said then. */
static bool await(struct played *p)
{
    const int64_t end_ms = hd_clock_now_ms() + PATIENCE_MS;

    while (!is_there(p)) {
        (void)uv_run(&p->c->loop, UV_RUN_ONCE);
        if (hd_clock_now_ms() > end_ms) {
            differ(p->c, p, "waited in vain",
                   p->kind == HD_RPC_BIDI ? p->heard_then.desired : text_of(&p->recorded),
                   p->kind == HD_RPC_BIDI ? p->heard.desired : text_of(&p->answers));
            return false;
        }
    }
    if (p->kind == HD_RPC_BIDI && p->done) {
        differ(p->c, p, "the stream has ended", "open", p->end_text);
        return false;
    }
    return true;
}

/* An answer that was recorded: what is expected by now. */
static bool expect(struct played *p, const struct said *said)
{
    struct hd_text text = {0};
    struct plain_bytes moved =
        plain_edit(p->c->protocol, p->rpc->response, &said->bytes, edit_text, p);

    plain_print(p->c->protocol, p->rpc->response, &moved, &text);
    free(moved.data);
    heard_take(&p->heard_then, text_of(&text));
    if (p->kind != HD_RPC_BIDI)
        keep_answer(p, text_of(&text), &p->recorded);
    hd_text_free(&text);
    return p->kind != HD_RPC_BIDI || await(p);
}

static bool compare_end(struct played *p, const struct said *said)
{
    if (p->kind == HD_RPC_BIDI) { /* the node was stopped */
        if (p->call)
            hd_rpc_call_cancel(p->call);
        return true;
    }
    if (!await(p))
        return false;
    if (p->end != (enum hd_status)said->status)
        differ(p->c, p, "ends otherwise", said->text, p->end_text);
    if (p->kind == HD_RPC_UNARY ? !heard_contains(text_of(&p->answers), text_of(&p->recorded))
                                : strcmp(text_of(&p->recorded), text_of(&p->answers)) != 0)
        differ(p->c, p, "answers otherwise", text_of(&p->recorded), text_of(&p->answers));
    return true;
}

/* ---- line after line ---- */

static struct played *played_of(struct clients *c, int number)
{
    struct played *p = &c->calls[number];

    if (!p->c) {
        p->c = c;
        p->rpc = protocol_find_rpc(c->protocol, conversation_path(&c->talk, number));
        p->kind = conversation_kind(p->rpc->path);
    }
    return p;
}

static bool play_line(struct clients *c, const struct said *said)
{
    struct played *p = said->call ? played_of(c, said->call) : NULL;

    switch (said->kind) {
    case SAID_OPEN:
        if (p->kind == HD_RPC_BIDI)
            begin(p, NULL);
        return true;
    case SAID_REQUEST:
        say(p, said);
        return true;
    case SAID_ANSWER:
        return expect(p, said);
    case SAID_HALF:
        if (p->call)
            hd_rpc_call_finish(p->call);
        return true;
    case SAID_END:
        return compare_end(p, said);
    case SAID_COMMAND:
    case SAID_OUTPUT:
        break;
    }
    return true;
}

int play_clients(const struct protocol *protocol, const char *file, const char *controller,
                 const char *root)
{
    struct clients c = {.protocol = protocol, .root = root};
    size_t i;

    conversation_read(&c.talk, file);
    c.calls = calloc((size_t)c.talk.call_count + 1, sizeof *c.calls);
    if (!c.calls || uv_loop_init(&c.loop) || uv_timer_init(&c.loop, &c.beat))
        abort();
    (void)uv_timer_start(&c.beat, on_beat, 20, 20);
    if (hd_rpc_new(&c.loop, &c.rpc) || hd_rpc_client_new(c.rpc, controller, NULL, &c.client)) {
        fprintf(stderr, "%s\n", hd_err_message());
        return 1;
    }
    for (i = 0; i < c.talk.count && play_line(&c, &c.talk.lines[i]); i++)
        ;
    printf("%zu of %zu lines played, %d differences\n", i, c.talk.count, c.differences);
    hd_rpc_close(c.rpc, NULL, NULL);
    uv_close((uv_handle_t *)&c.beat, NULL);
    (void)uv_run(&c.loop, UV_RUN_DEFAULT);
    for (int n = 0; n <= c.talk.call_count; n++) {
        hd_text_free(&c.calls[n].answers);
        hd_text_free(&c.calls[n].recorded);
    }
    free(c.calls);
    i = c.talk.count - i;
    conversation_free(&c.talk);
    return i || c.differences ? 1 : 0;
}
