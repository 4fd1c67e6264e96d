/* play_controller: the recorded controller against nodes and commands that are built. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "conversation.h"
#include "heard.h"
#include "play.h"

enum { STEPS_MAX = 64 };

struct scene {
    uv_loop_t loop;
    struct hd_rpc *rpc;
    struct hd_rpc_server *server;
    const struct protocol *protocol;
    struct conversation talk;
    bool *used; /* by call: it has been played */
    const char *root;
    int differences;
    /* the node's stream: Connect of the recording */
    int connect, logs; /* their numbers */
    size_t next;       /* line of Connect that comes next */
    struct hd_rpc_call *stream, *log_stream;
    struct heard then, now; /* what the node has said */
    int steps[STEPS_MAX];   /* how often a report of each step has come */
    bool completed, log_asked, log_answered;
};

static const char *text_of(const struct hd_text *text)
{
    return text->data ? text->data : "";
}

static void differ(struct scene *s, const char *path, const char *what, const char *text)
{
    s->differences++;
    printf("%s: %s\n%s\n", path, what, text);
    (void)fflush(stdout);
}

static void edit(void *user, struct plain_field *field)
{
    struct scene *s = user;

    if (!field->is_text)
        return;
    conversation_move(&field->text, s->talk.root, s->root);
    if (s->then.node_uuid[0] && s->now.node_uuid[0])
        conversation_move(&field->text, s->then.node_uuid, s->now.node_uuid);
}

static void print(struct scene *s, const char *message, const struct plain_bytes *bytes, bool moved,
                  struct hd_text *text)
{
    struct plain_bytes copy = {NULL, 0};

    if (moved)
        copy = plain_edit(s->protocol, message, bytes, edit, s);
    plain_print(s->protocol, message, moved ? &copy : bytes, text);
    free(copy.data);
}

static ProtobufCMessage *moved_message(struct scene *s, const char *message,
                                       const struct plain_bytes *bytes)
{
    struct plain_bytes moved = plain_edit(s->protocol, message, bytes, edit, s);
    ProtobufCMessage *unpacked = plain_unpack(&moved);

    free(moved.data);
    return unpacked;
}

static int find_call(const struct scene *s, const char *path)
{
    for (size_t i = 0; i < s->talk.count; i++)
        if (s->talk.lines[i].kind == SAID_OPEN && strcmp(s->talk.lines[i].text, path) == 0)
            return s->talk.lines[i].call;
    return 0;
}

/* ---- commands ---- */

/* The recorded call with this request that was not played yet; 0: there is none. */
static int find_recorded(struct scene *s, const struct protocol_rpc *rpc, const char *request)
{
    int found = 0;

    for (size_t i = 0; i < s->talk.count && !found; i++) {
        const struct said *said = &s->talk.lines[i];
        struct hd_text text = {0}, masked = {0};

        if (said->kind != SAID_REQUEST || s->used[said->call] ||
            strcmp(conversation_path(&s->talk, said->call), rpc->path) != 0)
            continue;
        print(s, rpc->request, &said->bytes, true, &text);
        heard_mask(text_of(&text), &masked);
        if (heard_contains(request, text_of(&masked)))
            found = said->call;
        hd_text_free(&text);
        hd_text_free(&masked);
    }
    return found;
}

static void give_answers(struct scene *s, struct hd_rpc_call *call, const struct protocol_rpc *rpc,
                         int number)
{
    const bool unary = conversation_kind(rpc->path) == HD_RPC_UNARY;

    for (size_t i = 0; i < s->talk.count; i++) {
        const struct said *said = &s->talk.lines[i];
        ProtobufCMessage *message;

        if (said->call != number)
            continue;
        if (said->kind == SAID_ANSWER) {
            message = moved_message(s, rpc->response, &said->bytes);
            (void)(unary ? hd_rpc_call_reply(call, message) : hd_rpc_call_write(call, message));
            protobuf_c_message_free_unpacked(message, NULL);
        } else if (said->kind == SAID_END && said->status) {
            hd_rpc_call_fail(call, hd_err((enum hd_status)said->status, "%s", said->text));
        } else if (said->kind == SAID_END && !unary) {
            hd_rpc_call_finish(call);
        }
    }
}

static void on_call(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    struct scene *s = hd_rpc_call_user(call);
    const struct protocol_rpc *rpc = protocol_find_rpc(s->protocol, hd_rpc_call_path(call));
    struct plain_bytes bytes = plain_pack(request);
    struct hd_text text = {0}, masked = {0};
    int number;

    print(s, rpc->request, &bytes, false, &text);
    heard_mask(text_of(&text), &masked);
    number = find_recorded(s, rpc, text_of(&masked));
    if (number) {
        s->used[number] = true;
        give_answers(s, call, rpc, number);
    } else {
        differ(s, rpc->path, "a request that was not recorded", text_of(&masked));
        hd_rpc_call_fail(call, hd_err(HD_INVALID, "this request was not recorded"));
    }
    hd_text_free(&text);
    hd_text_free(&masked);
    free(bytes.data);
}

/* ---- a node ---- */

/* The file by which a node sees whether it has the controller's jobs directory. */
static void write_probe(const struct scene *s, const char *welcome)
{
    struct heard told = {.hello = false};
    char path[400];
    FILE *file;

    heard_take(&told, welcome);
    (void)snprintf(path, sizeof path, "%s/%s", told.jobs_dir, told.probe_file);
    file = fopen(path, "we");
    if (!file || fputs(told.probe_text, file) < 0 || fclose(file)) {
        perror(path);
        exit(1);
    }
}

/* Acknowledgements follow what comes now, so the recorded ones are not played; nor are answers to
 * heartbeats. */
static bool is_played(const char *text)
{
    return strncmp(text, "report_ack", 10) != 0 && strncmp(text, "heartbeat", 9) != 0;
}

static void ask_log(struct scene *s)
{
    const struct protocol_rpc *rpc = protocol_find_rpc(s->protocol, "/heddle.v1.Fleet/Logs");

    for (size_t i = 0; s->log_stream && !s->log_asked && i < s->talk.count; i++) {
        const struct said *said = &s->talk.lines[i];
        ProtobufCMessage *message;

        if (said->call != s->logs || said->kind != SAID_ANSWER)
            continue;
        message = moved_message(s, rpc->response, &said->bytes);
        (void)hd_rpc_call_write(s->log_stream, message);
        protobuf_c_message_free_unpacked(message, NULL);
        s->log_asked = true;
    }
}

/* Says what the controller had said, as far as the node has come. */
static void go_on(struct scene *s)
{
    const struct protocol_rpc *rpc = protocol_find_rpc(s->protocol, "/heddle.v1.Fleet/Connect");

    for (; s->stream && s->next < s->talk.count; s->next++) {
        const struct said *said = &s->talk.lines[s->next];
        struct hd_text text = {0};

        if (said->call != s->connect || (said->kind != SAID_REQUEST && said->kind != SAID_ANSWER))
            continue;
        if (said->kind == SAID_REQUEST) {
            print(s, rpc->request, &said->bytes, false, &text);
            heard_take(&s->then, text_of(&text));
        } else {
            print(s, rpc->response, &said->bytes, true, &text);
            if (is_played(text_of(&text))) {
                ProtobufCMessage *message;

                if (!heard_reaches(&s->then, &s->now)) {
                    hd_text_free(&text);
                    return;
                }
                if (strncmp(text_of(&text), "welcome", 7) == 0)
                    write_probe(s, text_of(&text));
                message = moved_message(s, rpc->response, &said->bytes);
                (void)hd_rpc_call_write(s->stream, message);
                protobuf_c_message_free_unpacked(message, NULL);
            }
        }
        hd_text_free(&text);
    }
    if (s->next == s->talk.count)
        ask_log(s);
}

static void put(struct hd_text *bytes, unsigned value)
{
    do {
        const uint8_t byte = (uint8_t)(value & 0x7f) | (value > 0x7f ? 0x80 : 0);

        hd_text_add_bytes(bytes, &byte, 1);
        value >>= 7;
    } while (value);
}

static void send_bytes(struct hd_rpc_call *call, const struct hd_text *bytes)
{
    const struct plain_bytes plain = {(uint8_t *)bytes->data, bytes->len_bytes};
    ProtobufCMessage *message = plain_unpack(&plain);

    (void)hd_rpc_call_write(call, message);
    protobuf_c_message_free_unpacked(message, NULL);
}

static int64_t member(const char *text, int index, const char *name)
{
    char key[64], value[32] = "0";

    (void)snprintf(key, sizeof key, "reports.reports[%d].%s", index, name);
    (void)heard_value(text, key, value, sizeof value);
    return strtoll(value, NULL, 10);
}

/* Acknowledges each report, in the numbers of protocol 2: ControllerMessage.report_ack is 3,
 * ReportAck.positions 1, ReportPosition {job 1, attempt 2, rank 3, seq 4}. */
static void take_reports(struct scene *s, const char *text)
{
    int64_t job;

    for (int i = 0; (job = member(text, i, "job")); i++) {
        const int64_t step = member(text, i, "step.step"), rank = member(text, i, "rank");
        struct hd_text position = {0}, ack = {0}, message = {0};

        if (step > 0 && step < STEPS_MAX)
            s->steps[step]++;
        put(&position, 1 << 3), put(&position, (unsigned)job);
        put(&position, 2 << 3), put(&position, (unsigned)member(text, i, "attempt"));
        if (rank < 0) { /* an int32 below 0 is ten bytes on the wire */
            hd_text_add_bytes(&position, "\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11);
        } else {
            put(&position, 3 << 3), put(&position, (unsigned)rank);
        }
        put(&position, 4 << 3), put(&position, (unsigned)member(text, i, "seq"));
        put(&ack, 1 << 3 | 2), put(&ack, (unsigned)position.len_bytes);
        hd_text_add_bytes(&ack, position.data, position.len_bytes);
        put(&message, 3 << 3 | 2), put(&message, (unsigned)ack.len_bytes);
        hd_text_add_bytes(&message, ack.data, ack.len_bytes);
        send_bytes(s->stream, &message);
        hd_text_free(&position);
        hd_text_free(&ack);
        hd_text_free(&message);
    }
}

static void on_node(struct hd_rpc_call *call, const ProtobufCMessage *base)
{
    struct scene *s = hd_rpc_call_user(call);
    const bool is_log = conversation_kind(hd_rpc_call_path(call)) == HD_RPC_BIDI &&
                        strcmp(hd_rpc_call_path(call), "/heddle.v1.Fleet/Logs") == 0;
    struct plain_bytes bytes = plain_pack(base);
    struct hd_text text = {0};
    char value[32];

    print(s, is_log ? "heddle.v1.LogChunk" : "heddle.v1.NodeMessage", &bytes, false, &text);
    if (is_log) {
        s->log_stream = call;
        if (heard_value(text_of(&text), "request", value, sizeof value) &&
            heard_value(text_of(&text), "data", value, sizeof value)) {
            s->log_answered = true;
            printf("the log was sent\n");
            (void)fflush(stdout);
        }
    } else {
        s->stream = call;
        heard_take(&s->now, text_of(&text));
        if (heard_value(text_of(&text), "observed.attempts[0].end.cause", value, sizeof value))
            s->completed = strcmp(value, "1") == 0; /* END_CAUSE_COMPLETED */
        if (strncmp(text_of(&text), "heartbeat", 9) == 0)
            (void)hd_rpc_call_write(call, base); /* the answer has the same number and form */
        take_reports(s, text_of(&text));
    }
    go_on(s);
    hd_text_free(&text);
    free(bytes.data);
}

static void on_node_gone(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct scene *s = hd_rpc_call_user(call);

    if (call == s->stream)
        s->stream = NULL;
    if (call == s->log_stream)
        s->log_stream = NULL;
}

/* ---- the program ---- */

/* Answers a scenario's question: `node` lines when the node has come to the recorded end. */
static int result(const struct scene *s)
{
    int steps = 0, twice = 0, unplayed = 0;

    for (int i = 0; i < STEPS_MAX; i++) {
        steps += s->steps[i] > 0;
        twice += s->steps[i] > 1;
    }
    for (int n = 1; n <= s->talk.call_count; n++)
        unplayed += n != s->connect && n != s->logs && !s->used[n];
    printf("node: %s, completed %d, steps %d, twice %d, log %d\ncommands: %d calls not asked for\n",
           s->next == s->talk.count ? "played" : "not played to its end", s->completed, steps,
           twice, s->log_answered, unplayed);
    return s->differences ? 1 : 0;
}

static void on_term(uv_signal_t *signal, int number)
{
    exit(result(signal->data));
}

static void add_methods(struct scene *s)
{
    const struct protocol_rpc *rpcs;
    size_t count;

    rpcs = protocol_rpcs(s->protocol, &count);
    for (size_t i = 0; i < count; i++) {
        const bool is_stream = conversation_kind(rpcs[i].path) == HD_RPC_BIDI;
        const struct hd_rpc_method method = {
            .path = rpcs[i].path,
            .kind = conversation_kind(rpcs[i].path),
            .request = &plain_message,
            .response = &plain_message,
            .handler = {.on_open = is_stream ? NULL : on_call,
                        .on_msg = is_stream ? on_node : NULL,
                        .on_done = is_stream ? on_node_gone : NULL},
            .user = s};

        if (hd_rpc_server_add_method(s->server, &method))
            abort();
    }
}

int play_controller(const struct protocol *protocol, const char *file, const char *listen,
                    const char *root)
{
    const struct hd_rpc_server_options options = {.allow_no_deadline = true};
    struct scene s = {.protocol = protocol, .root = root};
    uv_signal_t term;

    conversation_read(&s.talk, file);
    s.connect = find_call(&s, "/heddle.v1.Fleet/Connect");
    s.logs = find_call(&s, "/heddle.v1.Fleet/Logs");
    s.used = calloc((size_t)s.talk.call_count + 1, sizeof *s.used);
    if (!s.used || uv_loop_init(&s.loop) || hd_rpc_new(&s.loop, &s.rpc) ||
        hd_rpc_server_new(s.rpc, &options, &s.server))
        abort();
    add_methods(&s);
    if (hd_rpc_server_listen(s.server, listen, NULL) || hd_rpc_server_start(s.server)) {
        fprintf(stderr, "%s\n", hd_err_message());
        return 1;
    }
    (void)uv_signal_init(&s.loop, &term);
    term.data = &s;
    (void)uv_signal_start(&term, on_term, SIGTERM);
    return uv_run(&s.loop, UV_RUN_DEFAULT);
}
