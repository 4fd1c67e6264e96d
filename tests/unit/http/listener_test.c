/* http: the door itself, spoken to in raw bytes by a client on its own thread. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "http/http.h"
#include "pki/pki.h"
#include "tests/program/test.h"

#define TOKEN "ann-0123456789abcdef"

/* A door on a loop, and clients whose sockets the same thread polls between turns of the loop. */
struct door {
    uv_loop_t loop;
    struct hd_http *http;
    struct hd_http_options options;
    char address[160];
    int requests, gone;
    bool asks_token;
    struct hd_http_request *stream; /* NULL: none */
};

static void on_gone(void *user)
{
    struct door *d = user;

    d->gone++;
    d->stream = NULL;
}

static enum hd_status authorize(void *user, const struct hd_http_caller *caller)
{
    const struct door *d = user;

    if (!d->asks_token || (caller->token && strcmp(caller->token, TOKEN) == 0))
        return HD_OK;
    return hd_err(HD_DENIED, "a token is needed");
}

static bool guarded(void *user, const char *path)
{
    return strcmp(path, "/page") != 0;
}

static void on_request(void *user, struct hd_http_request *r)
{
    struct door *d = user;
    struct hd_text text = {0};

    d->requests++;
    if (strcmp(hd_http_path(r), "/page") == 0) {
        hd_http_reply_static(r, "text/plain", "page", 4);
    } else if (strcmp(hd_http_path(r), "/stream") == 0) {
        d->stream = r;
        hd_http_stream_begin(r, "application/jsonl", on_gone, d);
    } else if (strcmp(hd_http_path(r), "/work") == 0) {
        d->stream = r;
        hd_http_watch(r, on_gone, d);
    } else if (strcmp(hd_http_path(r), "/big") == 0) {
        while (text.len_bytes < 8 << 20)
            hd_text_add(&text, "%08zu", text.len_bytes);
        hd_http_reply(r, 200, "text/plain", &text);
    } else if (hd_http_is_post(r)) {
        size_t bytes;
        const char *body = hd_http_body(r, &bytes);

        hd_text_add(&text, "%zu:%.8s..%s", bytes, body, body + (bytes > 8 ? bytes - 8 : 0));
        hd_http_reply(r, 200, "text/plain", &text);
    } else if (strcmp(hd_http_path(r), "/echo") == 0) {
        hd_text_add(&text, "<%s>", hd_http_param(r, "x") ? hd_http_param(r, "x") : "");
        hd_http_reply(r, 200, "text/plain", &text);
    } else {
        hd_http_fail(r, hd_err(HD_NOT_FOUND, "there is no %s", hd_http_path(r)));
    }
}

static void door_open(struct door *d, const char *address)
{
    assert_int_equal(uv_loop_init(&d->loop), 0);
    d->options.address = address;
    d->options.authorize = authorize;
    d->options.guarded = guarded;
    d->options.on_request = on_request;
    d->options.user = d;
    assert_int_equal(hd_http_new(&d->loop, &d->options, &d->http), HD_OK);
}

static void door_close(struct door *d)
{
    if (d->stream)
        hd_http_stream_end(d->stream);
    hd_http_close(d->http, NULL, NULL);
    (void)uv_run(&d->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&d->loop), 0);
}

static int dial(const struct door *d)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)hd_http_port(d->http)),
                             .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static void say(int fd, const char *bytes)
{
    (void)send(fd, bytes, strlen(bytes), MSG_NOSIGNAL); /* the door may have closed */
}

/* Turns the loop until the door closes the connection, or `until` has come (NULL: that). Returns
 * what has come. */
static const char *hear(struct door *d, int fd, const char *until, int64_t limit_ms)
{
    static char got[64 * 1024];
    const int64_t end_ms = hd_clock_now_ms() + limit_ms;
    size_t count = 0;

    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t n;

        (void)uv_run(&d->loop, UV_RUN_NOWAIT);
        if (poll(&p, 1, 5) == 1) {
            n = recv(fd, got + count, sizeof got - 1 - count, 0);
            if (n <= 0)
                break;
            count += (size_t)n;
            got[count] = '\0';
            if (until && strstr(got, until))
                break;
        }
        if (hd_clock_now_ms() > end_ms)
            fail_msg("the door neither answered nor closed; it sent: %.*s", (int)count, got);
    }
    got[count] = '\0';
    return got;
}

/* One connection: these bytes, and all that comes back. */
static const char *ask(struct door *d, const char *bytes)
{
    const int fd = dial(d);
    const char *got;

    say(fd, bytes);
    got = hear(d, fd, NULL, 10000);
    (void)close(fd);
    return got;
}

static int status_in(const char *got)
{
    return strncmp(got, "HTTP/1.1 ", 9) == 0 ? atoi(got + 9) : 0;
}

static size_t count_in(const char *got, const char *what)
{
    size_t count = 0;

    while ((got = strstr(got, what)) != NULL) {
        got += strlen(what);
        count++;
    }
    return count;
}

#define HOST "Host: localhost\r\n"

static void an_answer_forbids_the_browser_everything_from_elsewhere(void **state)
{
    struct door d = {.requests = 0};
    const char *got;

    door_open(&d, "127.0.0.1:0");
    got = ask(&d, "GET /page HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(status_in(got), 200);
    assert_non_null(strstr(got, "default-src 'none'"));
    assert_non_null(strstr(got, "nosniff"));
    assert_non_null(strstr(got, "Connection: close"));
    assert_null(strstr(got, "Access-Control-Allow-Origin"));
    assert_non_null(strstr(got, "\r\n\r\npage"));
    got = ask(&d, "GET /echo?x=%3Cb%3E HTTP/1.1\r\n" HOST "\r\n");
    assert_non_null(strstr(got, "<<b>>"));
    got = ask(&d, "GET /nothing HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(status_in(got), 404);
    assert_non_null(strstr(got, "{\"error\":{\"status\":\"not_found\""));
    door_close(&d);
}

/* Whatever is behind the first request of a connection is not looked at, however it is dressed. */
static void a_second_request_in_the_first_is_never_answered(void **state)
{
    static const char *const smuggled[] = {
        "GET /page HTTP/1.1\r\n" HOST "\r\nGET /echo?x=2 HTTP/1.1\r\n" HOST "\r\n",
        "GET /page HTTP/1.1\r\n" HOST
        "Content-Length: 44\r\n\r\nGET /echo?x=2 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /page HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /echo?x=2 "
        "HTTP/1.1\r\n" HOST "\r\n",
        "GET /page HTTP/1.1\r\n" HOST "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
        "\r\nGET /echo?x=2 HTTP/1.1\r\n" HOST "\r\n",
        "GET /page HTTP/1.1\r\n" HOST "Content-Length: 5\r\nContent-Length: 0\r\n\r\nGET /echo?x=2 "
        "HTTP/1.1\r\n" HOST "\r\n",
        "GET /page HTTP/1.1\r\n" HOST "Content-Length: +0\r\n\r\nGET /echo?x=2 HTTP/1.1\r\n" HOST
        "\r\n",
        "GET /page HTTP/1.1\r\n" HOST "X: a\r\n \r\n\r\nGET /echo?x=2 HTTP/1.1\r\n" HOST "\r\n",
        "GET /page HTTP/1.1\r\n" HOST
        "Connection: keep-alive\r\n\r\nGET /echo?x=2 HTTP/1.1\r\n" HOST "\r\n",
    };
    struct door d = {.requests = 0};

    door_open(&d, "127.0.0.1:0");
    for (size_t i = 0; i < sizeof smuggled / sizeof smuggled[0]; i++) {
        const char *got = ask(&d, smuggled[i]);

        if (count_in(got, "HTTP/1.1 200") > 1 || strstr(got, "<2>"))
            fail_msg("request %zu smuggled another one in: %s", i, got);
    }
    assert_true(d.requests <= 3); /* those without a body, once each */
    door_close(&d);
}

static void write_failure(struct hd_text *out, int status, const char *word, const char *message)
{
    hd_text_add(out, "!%d %s %s", status, word, message);
}

#define POST "POST /post HTTP/1.1\r\n" HOST "Content-Type: application/json\r\n"

/* A body arrives whole, also in pieces; one that is too long, or never ends, does not arrive; and
 * what is behind it is never answered. */
static void a_body_arrives_whole_or_not_at_all(void **state)
{
    enum { BYTES = 100000 };
    struct door d = {.options = {.body_bytes_max = BYTES, .body_ms = 300}};
    char *body = malloc(BYTES + 1), head[200];
    const char *got;
    int fd;

    assert_non_null(body);
    memset(body, 'x', BYTES);
    memcpy(body, "<begin>{", 8);
    memcpy(body + BYTES - 8, "}.<end>!", 9);
    d.options.write_failure = write_failure;
    door_open(&d, "127.0.0.1:0");
    got = ask(&d, POST "Content-Length: 4\r\n\r\nabcdGET /echo?x=2 HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(status_in(got), 200);
    assert_non_null(strstr(got, "\r\n\r\n4:abcd..abcd"));
    assert_null(strstr(got, "<2>"));
    assert_non_null(strstr(ask(&d, POST "Content-Length: 0\r\n\r\n"), "\r\n\r\n0:.."));
    fd = dial(&d);
    (void)snprintf(head, sizeof head, POST "Content-Length: %d\r\n\r\n", BYTES);
    say(fd, head);
    for (int at = 0; at < BYTES; at += BYTES / 4) {
        assert_int_equal(send(fd, body + at, BYTES / 4, MSG_NOSIGNAL), BYTES / 4);
        (void)uv_run(&d.loop, UV_RUN_NOWAIT);
    }
    assert_non_null(strstr(hear(&d, fd, NULL, 10000), "100000:<begin>{..}.<end>!"));
    (void)close(fd);
    d.requests = 0;
    (void)snprintf(head, sizeof head, POST "Content-Length: %d\r\n\r\n", BYTES + 1);
    got = ask(&d, head);
    assert_int_equal(status_in(got), 413);
    assert_non_null(strstr(got, "!413 invalid the body has 100001 bytes, and at most 100000"));
    assert_int_equal(status_in(ask(&d, POST "Content-Length: 9\r\n\r\nabc")), 0); /* cut off */
    fd = dial(&d);
    say(fd, POST "Content-Length: 9\r\n\r\nabc");
    (void)close(fd);
    /* behind a whole request the door has seen the client go */
    assert_int_equal(status_in(ask(&d, POST "Content-Length: 1\r\n\r\nx")), 200);
    assert_int_equal(d.requests, 1);
    door_close(&d);
    assert_int_equal(d.requests, 1);
    free(body);
}

/* Probes of load balancers ask by HEAD. */
static void a_head_is_answered_as_a_get_without_a_body(void **state)
{
    static const char *const paths[] = {"/page", "/echo?x=1", "/stream", "/none"};
    static const int statuses[] = {200, 200, 200, 404};
    char request[128];
    struct door d = {.requests = 0};

    door_open(&d, "127.0.0.1:0");
    for (int i = 0; i < 4; i++) {
        const char *got, *end;

        (void)snprintf(request, sizeof request, "HEAD %s HTTP/1.1\r\n" HOST "\r\n", paths[i]);
        got = ask(&d, request);
        assert_int_equal(status_in(got), statuses[i]);
        end = strstr(got, "\r\n\r\n");
        assert_non_null(end);
        assert_string_equal(end, "\r\n\r\n");
    }
    assert_int_equal(d.requests, 4);
    while (d.stream) /* its client has got all that it asked for */
        (void)uv_run(&d.loop, UV_RUN_ONCE);
    assert_int_equal(d.gone, 1);
    door_close(&d);
}

static void hostile_heads_never_reach_the_program(void **state)
{
    static const struct {
        const char *bytes;
        int status;
    } heads[] = {
        {"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n", 405},
        {"DELETE /echo HTTP/1.1\r\n" HOST "\r\n", 405},
        {"OPTIONS /echo HTTP/1.1\r\n" HOST "\r\n", 405},
        {"GET /echo HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421},
        {"GET /echo HTTP/1.1\r\n" HOST "Host: evil.example\r\n\r\n", 400},
        {"GET /echo HTTP/1.1\r\n\r\n", 400},
        {"GET /echo HTTP/1.0\r\n\r\n", 400},
        {"GET /echo HTTP/1.1\r\n" HOST "Origin: http://evil.example\r\n\r\n", 403},
        {"GET /echo HTTP/1.1\r\n" HOST "Sec-Fetch-Site: cross-site\r\n\r\n", 403},
        {"GET /echo/../x HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /%65cho%00 HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET http://localhost/echo HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc", 400},
        {"GET /echo HTTP/9.9\r\n" HOST "\r\n", 505},
    };
    struct door d = {.requests = 0};

    door_open(&d, "127.0.0.1:0");
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        const int status = status_in(ask(&d, heads[i].bytes));

        if (status != heads[i].status)
            fail_msg("head %zu was answered with %d, not %d", i, status, heads[i].status);
    }
    assert_int_equal(d.requests, 0);
    door_close(&d);
}

static void a_huge_head_is_refused(void **state)
{
    const size_t count = 100 * 1024;
    char *bytes = malloc(count + 200);
    struct door d = {.requests = 0};
    int status;

    assert_non_null(bytes);
    door_open(&d, "127.0.0.1:0");
    (void)snprintf(bytes, 100, "GET /page HTTP/1.1\r\n" HOST "X: ");
    memset(bytes + strlen(bytes), 'x', count);
    memcpy(bytes + count, "\r\n\r\n", 5);
    status = status_in(ask(&d, bytes)); /* 0: closed before the answer could be read */
    assert_true(status == 431 || status == 413 || status == 400 || status == 0);
    (void)snprintf(bytes, 100, "GET /");
    memset(bytes + strlen(bytes), 'x', count);
    memcpy(bytes + count, " HTTP/1.1\r\n\r\n", 14);
    status = status_in(ask(&d, bytes));
    assert_true(status == 414 || status == 400 || status == 0);
    assert_int_equal(d.requests, 0);
    assert_int_equal(status_in(ask(&d, "GET /page HTTP/1.1\r\n" HOST "\r\n")),
                     200); /* still there */
    free(bytes);
    door_close(&d);
}

static void without_a_token_only_the_page_is_given(void **state)
{
    struct door d = {.asks_token = true};
    const char *got;

    door_open(&d, "127.0.0.1:0");
    got = ask(&d, "GET /echo HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(status_in(got), 401);
    assert_non_null(strstr(got, "WWW-Authenticate: Bearer"));
    assert_int_equal(d.requests, 0);
    assert_int_equal(
        status_in(ask(&d, "GET /echo HTTP/1.1\r\n" HOST "Authorization: Bearer wrong\r\n\r\n")),
        401);
    assert_int_equal(status_in(ask(&d, "GET /echo?token=" TOKEN " HTTP/1.1\r\n" HOST "\r\n")), 401);
    assert_int_equal(
        status_in(ask(&d, "GET /echo HTTP/1.1\r\n" HOST "Authorization: Basic " TOKEN "\r\n\r\n")),
        401);
    assert_int_equal(
        status_in(ask(&d, "GET /echo HTTP/1.1\r\n" HOST "Authorization: Bearer " TOKEN "\r\n\r\n")),
        200);
    assert_int_equal(status_in(ask(&d, "GET /page HTTP/1.1\r\n" HOST "\r\n")), 200);
    door_close(&d);
}

/* A byte now and then keeps a connection busy, but not for longer than head_ms. */
static void a_slow_client_is_cut_off_and_holds_up_no_other(void **state)
{
    struct door d = {.options = {.head_ms = 1500}};
    const int64_t begin_ms = hd_clock_now_ms();
    int slow, status = 0;
    bool closed = false;

    door_open(&d, "127.0.0.1:0");
    slow = dial(&d);
    say(slow, "GET /page HTTP/1.1\r\n");
    while (!closed && hd_clock_now_ms() < begin_ms + 20000) {
        struct pollfd p = {.fd = slow, .events = POLLIN};
        char byte[256];

        say(slow, "X");
        (void)uv_run(&d.loop, UV_RUN_NOWAIT);
        closed = poll(&p, 1, 100) == 1 && recv(slow, byte, sizeof byte, 0) <= 0;
        if (!status)
            status = status_in(ask(&d, "GET /page HTTP/1.1\r\n" HOST "\r\n"));
    }
    assert_true(closed);
    assert_int_equal(status, 200);
    assert_int_equal(d.requests, 1);
    (void)close(slow);
    door_close(&d);
}

/* Silent connections, from 127.0.0.`host`, more than there are places; with the loop's turns. */
static void dial_from(struct door *d, int host, int *fds, size_t count)
{
    struct sockaddr_in own = {.sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + (uint32_t)host)},
                       at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)hd_http_port(d->http)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    for (size_t i = 0; i < count; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fds[i] >= 0);
        assert_int_equal(bind(fds[i], (struct sockaddr *)&own, sizeof own), 0);
        assert_int_equal(connect(fds[i], (struct sockaddr *)&at, sizeof at), 0);
        (void)uv_run(&d->loop, UV_RUN_NOWAIT);
    }
}

/* Goal: who has shown nothing takes no place from a caller: of the same address, of another one,
 * while three addresses fill all places, with and without a token. */
static void silent_connections_make_room_for_callers(void **state)
{
    struct door d = {.options = {.connections_max = 8, .head_ms = 60000}, .asks_token = true};
    struct hd_http_stats stats;
    int idle[4][24];

    door_open(&d, "127.0.0.1:0");
    dial_from(&d, 1, idle[0], 24);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(status_in(ask(&d, "GET /page HTTP/1.1\r\n" HOST "\r\n")), 200);
        assert_int_equal(status_in(ask(&d, "GET /echo HTTP/1.1\r\n" HOST
                                           "Authorization: Bearer " TOKEN "\r\n\r\n")),
                         200);
    }
    for (int k = 1; k < 4; k++)
        dial_from(&d, 1 + k, idle[k], 24);
    for (int i = 0; i < 10; i++)
        assert_int_equal(status_in(ask(&d, "GET /page HTTP/1.1\r\n" HOST "\r\n")), 200);
    hd_http_get_stats(d.http, &stats);
    assert_in_range(stats.connections, 0, 8 + 64); /* those that were ended go soon */
    for (int i = 0; i < 4000 && stats.connections > 8; i++) {
        (void)usleep(5000);
        hd_http_get_stats(d.http, &stats);
    }
    assert_in_range(stats.connections, 0, 8);
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 24; i++)
            (void)close(idle[k][i]);
    door_close(&d);
}

/* Half of the places at most are one address's, and with callers that have shown a token more are
 * told so. None of these makes room. Places that are given back are free again. */
static void one_address_cannot_take_every_place(void **state)
{
    struct door d = {.options = {.connections_max = 8, .head_ms = 60000}};
    struct hd_http_stats stats;
    int waiting[4], idle[24];
    const char *got;

    door_open(&d, "127.0.0.1:0");
    for (int i = 0; i < 4; i++) { /* 8 / 2 */
        waiting[i] = dial(&d);
        say(waiting[i], "GET /work HTTP/1.1\r\n" HOST "\r\n");
        while (d.requests <= i)
            (void)uv_run(&d.loop, UV_RUN_NOWAIT);
    }
    got = ask(&d, "GET /page HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(status_in(got), 503);
    assert_non_null(strstr(got, "there are as many connections as there may be"));
    dial_from(&d, 1, idle, 24);
    assert_int_equal(*hear(&d, idle[23], NULL, 10000), '\0'); /* the 17th of those is closed */
    hd_http_get_stats(d.http, &stats);
    assert_true(stats.connections <= 4 + 16);
    assert_int_equal(d.requests, 4);
    for (int i = 0; i < 24; i++)
        (void)close(idle[i]);
    for (int i = 0; i < 4; i++)
        (void)close(waiting[i]);
    for (int i = 0; i < 4000 && d.gone < 4; i++) {
        (void)uv_run(&d.loop, UV_RUN_NOWAIT);
        (void)usleep(5000);
    }
    assert_int_equal(d.gone, 4);
    d.stream = NULL;
    for (int i = 0; i < 4000 && stats.connections; i++) {
        (void)usleep(5000);
        hd_http_get_stats(d.http, &stats);
    }
    assert_int_equal(status_in(ask(&d, "GET /page HTTP/1.1\r\n" HOST "\r\n")), 200);
    door_close(&d);
}

/* Goal: who has shown no token makes the door keep no body. Method: a head that announces one;
 * the answer comes although no byte of the body does. */
static void a_body_is_read_for_those_with_a_token_alone(void **state)
{
    struct door d = {.options = {.body_bytes_max = 1 << 20, .body_ms = 60000}, .asks_token = true};
    const char *got;
    int fd;

    door_open(&d, "127.0.0.1:0");
    fd = dial(&d);
    say(fd, POST "Content-Length: 1000000\r\n\r\n");
    got = hear(&d, fd, NULL, 5000);
    assert_int_equal(status_in(got), 401);
    (void)close(fd);
    fd = dial(&d);
    say(fd, POST "Authorization: Bearer " TOKEN "\r\nContent-Length: 4\r\n\r\n");
    for (int i = 0; i < 20; i++) {
        (void)uv_run(&d.loop, UV_RUN_NOWAIT);
        (void)usleep(5000);
    }
    assert_int_equal(d.requests, 0); /* its body is waited for */
    say(fd, "abcd");
    assert_non_null(strstr(hear(&d, fd, NULL, 5000), "4:abcd..abcd"));
    assert_int_equal(d.requests, 1);
    (void)close(fd);
    door_close(&d);
}

static void a_stream_comes_as_it_is_written_and_its_end_is_noticed(void **state)
{
    struct door d = {.requests = 0};
    struct hd_http_stats stats;
    const char *got;
    int fd;

    door_open(&d, "127.0.0.1:0");
    fd = dial(&d);
    say(fd, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    while (!d.stream)
        (void)uv_run(&d.loop, UV_RUN_ONCE);
    assert_int_equal(hd_http_stream_write(d.stream, "{\"n\":1}\n", 8), HD_OK);
    got = hear(&d, fd, "{\"n\":1}", 10000); /* before there is a second line */
    assert_int_equal(status_in(got), 200);
    assert_int_equal(hd_http_stream_write(d.stream, "{\"n\":2}\n", 8), HD_OK);
    (void)hear(&d, fd, "{\"n\":2}", 10000);
    hd_http_get_stats(d.http, &stats);
    assert_int_equal(stats.streams, 1);
    (void)close(fd);
    for (int i = 0; i < 20000 && !d.gone; i++) { /* noticed by what is written to it */
        if (d.stream)
            (void)hd_http_stream_write(d.stream, "\n", 1);
        (void)uv_run(&d.loop, UV_RUN_NOWAIT);
        (void)usleep(1000);
    }
    assert_int_equal(d.gone, 1);
    hd_http_get_stats(d.http, &stats);
    assert_int_equal(stats.streams, 0);
    door_close(&d);
}

/* The door knows that the client has gone, and the loop ends the stream before it has heard. */
static void a_stream_may_end_while_its_client_goes(void **state)
{
    struct door d = {.requests = 0};
    struct hd_http_stats stats = {.streams = 1};
    int fd;

    door_open(&d, "127.0.0.1:0");
    fd = dial(&d);
    say(fd, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    while (!d.stream)
        (void)uv_run(&d.loop, UV_RUN_ONCE);
    (void)close(fd);
    while (stats.streams) { /* or the test's time is up; the loop does not turn */
        (void)hd_http_stream_write(d.stream, "\n", 1);
        (void)usleep(1000);
        hd_http_get_stats(d.http, &stats);
    }
    hd_http_stream_end(d.stream); /* frees it: the door has let go */
    d.stream = NULL;
    assert_int_equal(status_in(ask(&d, "GET /page HTTP/1.1\r\n" HOST "\r\n")), 200);
    assert_int_equal(d.gone, 0);
    door_close(&d);
}

/* While an answer is being made libmicrohttpd looks at no socket. */
static void a_client_that_does_not_wait_is_noticed(void **state)
{
    struct door d = {.requests = 0};
    struct hd_text text = {0};
    int fd;

    door_open(&d, "127.0.0.1:0");
    for (int waits = 1; waits >= 0; waits--) {
        fd = dial(&d);
        say(fd, "GET /work HTTP/1.1\r\n" HOST "\r\n");
        while (!d.stream)
            (void)uv_run(&d.loop, UV_RUN_ONCE);
        if (waits) {
            hd_text_add(&text, "done");
            hd_http_reply(d.stream, 200, "text/plain", &text);
            d.stream = NULL;
            assert_int_equal(status_in(hear(&d, fd, NULL, 10000)), 200);
        }
        (void)close(fd);
    }
    while (!d.gone) /* or the test's time is up */
        (void)uv_run(&d.loop, UV_RUN_ONCE);
    assert_int_equal(d.gone, 1);
    door_close(&d);
}

static void a_reader_that_stalls_costs_no_more_than_its_queue(void **state)
{
    struct door d = {.options = {.stream_bytes_max = 64 * 1024}};
    static char line[4096];
    enum hd_status st = HD_OK;
    int fd, small = 4096;

    memset(line, 'x', sizeof line);
    door_open(&d, "127.0.0.1:0");
    fd = dial(&d);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    say(fd, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    while (!d.stream)
        (void)uv_run(&d.loop, UV_RUN_ONCE);
    for (int i = 0; i < 20000 && !st; i++) { /* 80 MB: more than any socket holds */
        st = hd_http_stream_write(d.stream, line, sizeof line);
        if (st)
            (void)usleep(50000);
    }
    assert_int_equal(st, HD_LIMIT);
    (void)close(fd);
    door_close(&d);
}

/* Reads what is left of an answer; whether the other side then closes the connection within 10 s.
 */
static bool is_closed(int fd)
{
    const struct timeval limit = {.tv_sec = 10};
    char bytes[4096];
    ssize_t n;

    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    while ((n = read(fd, bytes, sizeof bytes)) > 0)
        ;
    return n == 0 || errno == ECONNRESET;
}

/* The program stops while requests are on their way: none is leaked, none is touched later. */
static void closing_ends_what_is_on_its_way(void **state)
{
    struct door d = {.requests = 0};
    int stream, late;

    door_open(&d, "127.0.0.1:0");
    stream = dial(&d);
    say(stream, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    while (!d.stream)
        (void)uv_run(&d.loop, UV_RUN_ONCE);
    late = dial(&d);
    say(late, "GET /echo?x=1 HTTP/1.1\r\n" HOST "\r\n");
    (void)usleep(100000); /* handed over, and not answered: the loop does not turn */
    door_close(&d);
    assert_true(is_closed(stream));
    assert_true(is_closed(late));
    (void)close(stream);
    (void)close(late);
}

static void a_unix_door_is_private(void **state)
{
    char dir[] = "/tmp/httpXXXXXX", path[64], address[80];
    struct door d = {.requests = 0}, other = {.requests = 0};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct stat info;
    int fd;

    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/h.sock", dir);
    (void)snprintf(address, sizeof address, "unix:%s", path);
    door_open(&d, address);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    other.options = d.options;
    assert_int_equal(hd_http_new(&d.loop, &other.options, &other.http), HD_CONFLICT);
    (void)snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&un, sizeof un), 0);
    say(fd, "GET /echo?x=1 HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(status_in(hear(&d, fd, NULL, 10000)), 200);
    (void)close(fd);
    door_close(&d);
    assert_false(hd_file_exists(path));
    (void)snprintf(path, sizeof path, "%s/h.sock.lock", dir);
    (void)unlink(path);
    (void)rmdir(dir);
}

static void beyond_loopback_it_opens_with_tls_and_tokens_alone(void **state)
{
    struct door d = {.requests = 0};

    assert_int_equal(uv_loop_init(&d.loop), 0);
    d.options = (struct hd_http_options){
        .address = "0.0.0.0:0", .authorize = authorize, .on_request = on_request, .user = &d};
    assert_int_equal(hd_http_new(&d.loop, &d.options, &d.http), HD_DENIED);
    d.options.asks_tokens = true;
    assert_int_equal(hd_http_new(&d.loop, &d.options, &d.http), HD_DENIED);
    d.options.asks_tokens = false;
    d.options.cert_path = d.options.key_path = "/dev/null";
    assert_int_equal(hd_http_new(&d.loop, &d.options, &d.http), HD_DENIED);
    (void)uv_run(&d.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&d.loop), 0);
}

struct pair {
    char cert[128], key[128];
    unsigned char hash[HD_PKI_HASH_BYTES];
};

/* A certificate for a server, with its key, in two files. It begins so long from now. */
static void make_pair_of(const struct hd_pki_authority *authority, const char *dir,
                         const char *name, int64_t begins_ms, const char *host,
                         struct pair *ret_pair)
{
    const int64_t from_ms = hd_clock_wall_ms() + begins_ms;
    const struct hd_pki_terms terms = {.name = name,
                                       .use = HD_PKI_SERVER,
                                       .from_ms = from_ms,
                                       .to_ms = from_ms + 3600000,
                                       .hosts = &host,
                                       .host_count = host != NULL};
    struct hd_text request = {0}, cert = {0}, key = {0};
    struct hd_pki_certificate is;

    assert_int_equal(hd_pki_make_request(name, &request, &key), HD_OK);
    assert_int_equal(hd_pki_sign(authority, request.data, &terms, &cert), HD_OK);
    assert_int_equal(hd_pki_inspect(cert.data, &is), HD_OK);
    memcpy(ret_pair->hash, is.hash, sizeof is.hash);
    (void)snprintf(ret_pair->cert, sizeof ret_pair->cert, "%s/%s.pem", dir, name);
    (void)snprintf(ret_pair->key, sizeof ret_pair->key, "%s/%s.key", dir, name);
    assert_int_equal(hd_file_write_atomic(ret_pair->cert, cert.data, cert.len_bytes, 0600), HD_OK);
    assert_int_equal(hd_file_write_atomic(ret_pair->key, key.data, key.len_bytes, 0600), HD_OK);
    hd_text_free(&request);
    hd_text_free(&cert);
    hd_text_free(&key);
}

static void make_pair(const struct hd_pki_authority *authority, const char *dir, const char *name,
                      struct pair *ret_pair)
{
    make_pair_of(authority, dir, name, 0, NULL, ret_pair);
}

/* A client of TLS, on a thread of its own, while the door's loop turns. */
struct visit {
    char address[32];
    const unsigned char *hash; /* the certificate's that it expects; NULL: see `ca` */
    const char *ca;            /* whose certificate it trusts */
    enum hd_status st;
    char message[HD_ERR_MAX];
    _Atomic bool over;
};

static void visit_now(void *arg)
{
    struct visit *v = arg;
    struct hd_text cert = {0};

    v->st = v->hash ? hd_pki_fetch_authority(v->address, v->hash, 10000, &cert)
                    : hd_pki_explain_server(v->address, v->ca, 10000);
    if (v->st)
        (void)snprintf(v->message, sizeof v->message, "%s", hd_err_message());
    hd_text_free(&cert);
    v->over = true;
}

static enum hd_status visit(struct door *d, struct visit *v)
{
    uv_thread_t thread;

    (void)snprintf(v->address, sizeof v->address, "127.0.0.1:%d", hd_http_port(d->http));
    assert_int_equal(uv_thread_create(&thread, visit_now, v), 0);
    while (!v->over) {
        (void)uv_run(&d->loop, UV_RUN_NOWAIT);
        (void)usleep(1000);
    }
    assert_int_equal(uv_thread_join(&thread), 0);
    return v->st;
}

static enum hd_status shows(struct door *d, const struct pair *pair)
{
    struct visit v = {.hash = pair->hash};

    return visit(d, &v);
}

/* A certificate lives for days and a door for months: the renewed one is shown without a restart.
 * One that cannot be used, as its key is another's, changes nothing. */
static void a_renewed_certificate_is_shown_to_the_next_caller(void **state)
{
    char dir[] = "/tmp/door-tls-XXXXXX";
    struct pair old, renewed;
    struct hd_text cert = {0}, key = {0};
    struct hd_pki_authority *authority;
    struct door d = {.requests = 0};

    assert_non_null(mkdtemp(dir));
    assert_int_equal(hd_pki_make_authority("test", hd_clock_wall_ms(), &cert, &key), HD_OK);
    assert_int_equal(hd_pki_authority_open(cert.data, key.data, &authority), HD_OK);
    hd_text_free(&cert);
    hd_text_free(&key);
    make_pair(authority, dir, "old", &old);
    make_pair(authority, dir, "renewed", &renewed);
    hd_pki_authority_free(authority);
    d.options.cert_path = old.cert;
    d.options.key_path = old.key;
    door_open(&d, "127.0.0.1:0");
    assert_int_equal(shows(&d, &old), HD_OK);
    assert_int_equal(shows(&d, &renewed), HD_DENIED);
    assert_int_equal(hd_http_set_tls(d.http, renewed.cert, old.key), HD_INVALID);
    assert_int_equal(hd_http_set_tls(d.http, "/dev/null", old.key), HD_INVALID);
    assert_int_equal(shows(&d, &old), HD_OK);
    assert_int_equal(hd_http_set_tls(d.http, renewed.cert, renewed.key), HD_OK);
    assert_int_equal(shows(&d, &renewed), HD_OK);
    assert_int_equal(shows(&d, &old), HD_DENIED);
    door_close(&d);
    assert_int_equal(unlink(old.cert) | unlink(old.key) | unlink(renewed.cert) |
                         unlink(renewed.key) | rmdir(dir),
                     0);
}

/* Goal: who refuses a server's certificate is told why. Method: one door, and certificates of an
 * hour of which each but the first has one thing wrong. */
static void what_is_wrong_with_a_certificate_is_told(void **state)
{
    static const struct {
        const char *host, *says;
        int64_t begins_ms;
        int authority;
    } cases[] = {
        {"127.0.0.1", NULL, 0, 0},
        {"elsewhere", "is not for the name 127.0.0.1", 0, 0},
        {"127.0.0.1", " ended at ", -2 * 3600 * 1000, 0},
        {"127.0.0.1", " is not valid before ", 2 * 3600 * 1000, 0},
        {"127.0.0.1", " is signed by \"other\", and not by the authority in ", 0, 1},
    };
    static const char *const names[] = {"test", "other"};
    char dir[] = "/tmp/door-tls-XXXXXX", ca[64];
    struct hd_pki_authority *authorities[2];
    struct door d = {.requests = 0};
    struct visit v;
    struct pair pair;

    assert_non_null(mkdtemp(dir));
    (void)snprintf(ca, sizeof ca, "%s/ca.pem", dir);
    for (int i = 1; i >= 0; i--) { /* the first one's is the file that is left */
        struct hd_text cert = {0}, key = {0};

        assert_int_equal(hd_pki_make_authority(names[i], hd_clock_wall_ms(), &cert, &key), HD_OK);
        assert_int_equal(hd_pki_authority_open(cert.data, key.data, &authorities[i]), HD_OK);
        assert_int_equal(hd_file_write_atomic(ca, cert.data, cert.len_bytes, 0600), HD_OK);
        hd_text_free(&cert);
        hd_text_free(&key);
    }
    make_pair(authorities[0], dir, "pair", &pair);
    d.options.cert_path = pair.cert;
    d.options.key_path = pair.key;
    door_open(&d, "127.0.0.1:0");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make_pair_of(authorities[cases[i].authority], dir, "pair", cases[i].begins_ms,
                     cases[i].host, &pair);
        assert_int_equal(hd_http_set_tls(d.http, pair.cert, pair.key), HD_OK);
        v = (struct visit){.ca = ca};
        assert_int_equal(visit(&d, &v), cases[i].says ? HD_UNAVAILABLE : HD_OK);
        if (cases[i].says && !strstr(v.message, cases[i].says))
            fail_msg("%s", v.message);
    }
    door_close(&d);
    hd_pki_authority_free(authorities[0]);
    hd_pki_authority_free(authorities[1]);
    assert_int_equal(unlink(pair.cert) | unlink(pair.key) | unlink(ca) | rmdir(dir), 0);
}

RUN_CASES()
