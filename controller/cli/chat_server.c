#include "controller/cli/chat_server.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"

enum {
    POLL_US = 20000,
    ARGS_MAX = 64,
    LINE_BYTES_MAX = 1 << 20, /* longest line of an answer */
    VALUES_MAX = 10000,
    DEPTH_MAX = 16,
};

/* ---- the connection ---- */

static enum hd_status cannot_connect(const struct chat_server *server, const char *why)
{
    return hd_err(HD_UNAVAILABLE, "cannot reach the server at %s: %s", server->address, why);
}

static enum hd_status connect_tcp(const struct chat_server *server, int *ret_fd)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    const char *colon = strrchr(server->address, ':'), *port = colon ? colon + 1 : "";
    const bool bracketed = server->address[0] == '[';
    struct addrinfo *list = NULL;
    char host[256];
    int error, fd = -1;

    (void)snprintf(host, sizeof host, "%.*s",
                   (int)(colon ? colon - server->address - 2 * bracketed : 0),
                   server->address + bracketed);
    error = getaddrinfo(host, port, &hints, &list);
    if (error)
        return cannot_connect(server, gai_strerror(error));
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) < 0) {
            error = errno;
            (void)close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0)
        return cannot_connect(server, strerror(error));
    *ret_fd = fd;
    return HD_OK;
}

static enum hd_status open_connection(const struct chat_server *server, int *ret_fd)
{
    if (!hd_rpc_address_is_unix(server->address))
        return connect_tcp(server, ret_fd);
    *ret_fd = process_reach(server->address + strlen("unix:"));
    if (*ret_fd >= 0)
        return HD_OK;
    return cannot_connect(server, errno == ENAMETOOLONG ? "the path is too long" : strerror(errno));
}

/* ---- the server ---- */

/* Makes an error of the last line that heddle-serve wrote, which says why it ended. */
static enum hd_status explain_end(struct chat_server *server)
{
    static const char prefix[] = "heddle serve: ";
    const int status = server->process.wait_status;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    const enum hd_status st = code == 2   ? HD_INVALID
                              : code == 4 ? HD_NOT_FOUND
                              : code == 5 ? HD_DENIED
                                          : HD_IO;
    struct hd_text log = {0};
    const char *line;

    if (hd_file_read(server->log, LINE_BYTES_MAX, &log) || !log.len_bytes) {
        hd_text_free(&log);
        return hd_err(HD_IO, "heddle-serve ended before it answered, with status %d", code);
    }
    while (log.len_bytes && log.data[log.len_bytes - 1] == '\n')
        log.data[--log.len_bytes] = '\0';
    line = strrchr(log.data, '\n') ? strrchr(log.data, '\n') + 1 : log.data;
    line += hd_text_starts(line, prefix) ? strlen(prefix) : 0;
    (void)hd_err(st, "%s%s", code < 0 ? "heddle-serve was killed: " : "", line);
    hd_text_free(&log);
    return st;
}

static enum hd_status await_server(struct chat_server *server)
{
    int fd = -1;

    while (open_connection(server, &fd)) {
        if (process_has_ended(&server->process))
            return explain_end(server);
        (void)usleep(POLL_US);
    }
    (void)close(fd);
    return HD_OK;
}

enum hd_status chat_server_start(struct chat_server *server, const char *const *argv, size_t argc)
{
    const char *args[ARGS_MAX + 4] = {"heddle-serve", "--listen", server->address};
    enum hd_status st = local_controller_make_dir(&server->place);

    if (!st && argc > ARGS_MAX)
        st = hd_err(HD_INVALID, "more than %d words for heddle-serve", ARGS_MAX);
    if (st)
        return st;
    (void)snprintf(server->address, sizeof server->address, "unix:%s/serve.sock",
                   server->place.dir);
    (void)snprintf(server->log, sizeof server->log, "%s/serve.log", server->place.dir);
    memcpy(args + 3, argv, argc * sizeof *argv);
    /* the setting of ranks: docs/decisions/cpu-kernels.md */
    (void)setenv("GOMP_SPINCOUNT", "4000", 0);
    st = process_start(args, server->log, &server->process);
    return st ? st : await_server(server);
}

enum hd_status chat_server_use(struct chat_server *server, const char *address,
                               const char *token_file)
{
    enum hd_status st = hd_rpc_check_address(address);
    int fd;

    if (!st && !hd_rpc_address_is_loopback(address))
        st = hd_err(HD_INVALID,
                    "--server %s: only a server of this machine is asked; from elsewhere: ssh -L "
                    "8000:127.0.0.1:8000 MACHINE, then --server 127.0.0.1:8000",
                    address);
    if (!st && strlen(address) >= sizeof server->address)
        st = hd_err(HD_INVALID, "--server: the address is too long");
    if (!st && token_file)
        st = hd_rpc_read_token(token_file, HD_FILE_PATIENCE_MS, server->token);
    if (st)
        return st;
    (void)snprintf(server->address, sizeof server->address, "%s", address);
    st = open_connection(server, &fd);
    if (st) {
        char why[HD_ERR_MAX];

        (void)snprintf(why, sizeof why, "%s", hd_err_message());
        return hd_err(
            st, "%s; heddle serve MODEL --listen %s starts one, and heddle chat MODEL needs none",
            why, address);
    }
    (void)close(fd);
    return HD_OK;
}

void chat_server_stop(struct chat_server *server)
{
    if (server->process.pid)
        process_stop(&server->process, 0); /* it has nothing to save */
    if (*server->place.dir)
        (void)hd_file_remove_tree(server->place.dir); /* the next command that makes one retries */
}

/* ---- a request ---- */

struct answer {
    const struct chat_request *request;
    char *reason;         /* [32] */
    struct hd_text lines; /* bytes that no line break ended yet */
    int status;           /* of HTTP; 0: not read yet */
    bool in_body, done;
    struct hd_text body; /* body of a refusal */
};

static const struct hd_json *parse_json(struct hd_arena *arena, const char *text, size_t bytes)
{
    const struct hd_json_limits limits = {VALUES_MAX, DEPTH_MAX};
    const struct hd_json *root = NULL;

    return hd_json_parse_line(arena, text, bytes, &limits, &root) ? NULL : root;
}

static const struct hd_json *member_of(const struct hd_json *object, const char *key)
{
    return object && object->kind == HD_JSON_OBJECT ? hd_json_member(object, key) : NULL;
}

/* Makes an error of {"error": {"message": ..}}; HD_OK if the text is none. */
static enum hd_status error_of(const struct hd_json *root, enum hd_status st)
{
    const char *message = hd_json_text(member_of(root, "error"), "message");

    return message ? hd_err(st, "%s", message) : HD_OK;
}

/* Takes one event of the stream, the text behind "data: ". */
static enum hd_status take_event(struct answer *a, const char *text, size_t bytes)
{
    const struct hd_json *root, *choices, *choice;
    struct hd_arena arena;
    const char *piece, *reason;
    enum hd_status st;

    if (strncmp(text, "[DONE]", 6) == 0) {
        a->done = true;
        return HD_OK;
    }
    hd_arena_init(&arena, LINE_BYTES_MAX * 4);
    root = parse_json(&arena, text, bytes);
    st = root ? error_of(root, HD_IO) : hd_err(HD_CORRUPT, "the server's answer is no JSON");
    choices = member_of(root, "choices");
    choice = choices && choices->kind == HD_JSON_ARRAY ? choices->first : NULL;
    piece = hd_json_text(member_of(choice, "delta"), "content");
    reason = hd_json_text(choice, "finish_reason");
    if (!st && piece && *piece)
        a->request->on_text(a->request->user, piece);
    if (!st && reason)
        (void)snprintf(a->reason, 32, "%s", reason);
    hd_arena_done(&arena);
    return st;
}

/* Takes one line, without its end: of the head, then of the body. */
static enum hd_status take_answer_line(struct answer *a, char *line, size_t bytes)
{
    if (bytes && line[bytes - 1] == '\r')
        line[--bytes] = '\0';
    if (!a->status) {
        if (sscanf(line, "HTTP/%*d.%*d %d", &a->status) != 1)
            return hd_err(HD_CORRUPT, "what answers is no HTTP server");
    } else if (!a->in_body) {
        a->in_body = !bytes;
    } else if (a->status != 200) {
        hd_text_add_bytes(&a->body, line, bytes);
    } else if (hd_text_starts(line, "data: ")) {
        return take_event(a, line + 6, bytes - 6);
    }
    return HD_OK;
}

static enum hd_status take_lines(struct answer *a)
{
    char *at = a->lines.data, *end;
    size_t left = a->lines.len_bytes;
    enum hd_status st = HD_OK;

    while (!st && left && (end = memchr(at, '\n', left))) {
        *end = '\0';
        st = take_answer_line(a, at, (size_t)(end - at));
        left -= (size_t)(end + 1 - at);
        at = end + 1;
    }
    if (left && at != a->lines.data)
        memmove(a->lines.data, at, left);
    a->lines.len_bytes = left;
    if (!st && left > LINE_BYTES_MAX)
        st = hd_err(HD_CORRUPT, "a line of the server's answer is longer than 1 MiB");
    return st;
}

/* Makes an error of a refusal: the message of its body, else its status. */
static enum hd_status refusal(struct answer *a)
{
    const enum hd_status st = a->status == 401   ? HD_DENIED
                              : a->status < 500  ? HD_INVALID
                              : a->status == 503 ? HD_LIMIT
                                                 : HD_IO;
    struct hd_arena arena;
    enum hd_status told = HD_OK;

    hd_text_add_bytes(&a->body, a->lines.data ? a->lines.data : "", a->lines.len_bytes);
    hd_arena_init(&arena, LINE_BYTES_MAX * 4);
    if (a->body.len_bytes && !a->body.failed)
        told = error_of(parse_json(&arena, a->body.data, a->body.len_bytes), st);
    hd_arena_done(&arena);
    return told ? told : hd_err(st, "the server answered with status %d", a->status);
}

static enum hd_status read_answer(struct answer *a, int fd)
{
    char buffer[8192];
    enum hd_status st = HD_OK;
    ssize_t n = 1;

    while (!st && !a->done && n > 0 && !*a->request->interrupted) {
        n = read(fd, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) {
            n = 1;
        } else if (n < 0) {
            st = hd_err(HD_UNAVAILABLE, "the connection to the server broke: %s", strerror(errno));
        } else if (n > 0) {
            hd_text_add_bytes(&a->lines, buffer, (size_t)n);
            st = a->lines.failed ? hd_err(HD_NO_MEMORY, "no memory for an answer") : take_lines(a);
        }
    }
    if (st || *a->request->interrupted || a->done)
        return st;
    if (a->status && a->status != 200)
        return refusal(a);
    return hd_err(HD_UNAVAILABLE, "the server closed the connection before its answer was whole");
}

enum hd_status chat_server_ask(struct chat_server *server, const struct chat_request *request,
                               char ret_reason[32])
{
    struct answer answer = {.request = request, .reason = ret_reason};
    struct hd_text head = {0};
    int fd = -1;
    enum hd_status st = open_connection(server, &fd);

    ret_reason[0] = '\0';
    if (st && *request->interrupted)
        return HD_OK; /* the signal ended connect() */
    if (st && process_has_ended(&server->process) && server->process.name)
        st = explain_end(server);
    hd_text_add(&head,
                "POST /v1/chat/completions HTTP/1.0\r\nHost: localhost\r\n"
                "Content-Type: application/json\r\nContent-Length: %zu\r\n%s%s%s\r\n%s",
                strlen(request->body), *server->token ? "Authorization: Bearer " : "",
                server->token, *server->token ? "\r\n" : "", request->body);
    if (!st && head.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a request");
    if (!st)
        st = hd_file_write_all(fd, head.data, head.len_bytes);
    if (!st)
        st = read_answer(&answer, fd);
    if (fd >= 0)
        (void)close(fd);
    hd_text_free(&head);
    hd_text_free(&answer.lines);
    hd_text_free(&answer.body);
    return st;
}
