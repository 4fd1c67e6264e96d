/* A server keeps accepting clients although strangers open connections without a token, or the
 * process has no file descriptors left for a while. */
#include "callers.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/program/tells.h"

/* ---- descriptors run out ---- */

/* Connects `fd`, whatever the kind of the address. */
static void knock(int fd, const char *address)
{
    const char *path = hd_rpc_address_is_unix(address) ? address + strlen("unix:") : NULL;
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un un = {.sun_family = AF_UNIX};

    if (path) {
        (void)snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
        assert_int_equal(connect(fd, (struct sockaddr *)&un, sizeof un), 0);
    } else {
        in.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
        assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof in), 0);
    }
}

/* Runs in a process of its own: takes all descriptors, lets a connection come that so cannot be
 * accepted, and gives the descriptors back. Exit status: what the self-check said in the end. */
enum { DEAF = 10, HEARING = 20, BLIND = 30 };

static int starve(const char *address)
{
    const bool tcp = !hd_rpc_address_is_unix(address);
    const struct rlimit limit = {.rlim_cur = 128, .rlim_max = 128};
    const Heddle__Test__EchoRequest request = request_of("x");
    int hoard[128], count = 0, knocker;
    struct watch watch = {0};
    struct outcome outcome;
    struct echo echo;

    echo_open(&echo, tcp ? address : NULL, &server_token, &client_token);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(echo_ask(&echo, &request, &outcome), HD_OK);
    knocker = socket(tcp ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(knocker >= 0);
    while (count < 128 && (hoard[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        count++;
    assert_int_equal(errno, EMFILE);
    knock(knocker, echo.address);
    assert_int_equal(hd_rpc_server_self_check(echo.server, 100, 400, note_result, &watch), HD_OK);
    echo_run_for(&echo, 350);
    if (!watch.failures)
        return BLIND;
    assert_int_equal(watch.recoveries, 0);
    while (count)
        assert_int_equal(close(hoard[--count]), 0);
    assert_int_equal(close(knocker), 0);
    assert_int_equal(echo_ask(&echo, &request, &outcome), HD_OK); /* who is in stays in */
    echo_run_for(&echo, 700);
    echo_close(&echo);
    return watch.recoveries == 1 && watch.in_a_row == 0 ? HEARING : DEAF;
}

static int run_self(const char *what, const char *address)
{
    pid_t pid = start_self(what, address);
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void tcp_door_hears_again_when_descriptors_are_back(void **state)
{
    assert_int_equal(run_self("--starve", "127.0.0.1:0"), HEARING);
}

static void unix_door_hears_again_when_descriptors_are_back(void **state)
{
    assert_int_equal(run_self("--starve", "unix:"), HEARING);
}

/* ---- connections of strangers ---- */

static int open_files(void)
{
    int count = 0;

    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* A connection from 127.0.0.`host`, which the whole network 127.0.0.0/8 makes possible. */
static int connect_from(int host, const char *address)
{
    struct sockaddr_in own = {.sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + (uint32_t)host)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
    knock(fd, address);
    return fd;
}

/* The server has closed the connection. What it sent before, such as HTTP/2's settings, is read. */
static bool is_closed(int fd)
{
    char bytes[256];
    ssize_t count;

    do
        count = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    while (count > 0);
    return count == 0 || errno != EAGAIN;
}

static enum hd_status ask_anew(struct echo *echo)
{
    return ask_by(echo, &client_token);
}

/* Runs in a process of its own: connects 2,000 times, sends nothing, holds on, and goes. */
enum { IDLERS = 2000, HOLD_MS = 600, IDLERS_CANNOT = 77 };

static int idle(const char *address)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    if (limit.rlim_max < IDLERS + 64 || setrlimit(RLIMIT_NOFILE, &limit) < 0)
        return IDLERS_CANNOT;
    for (int i = 0; i < IDLERS; i++)
        (void)connect_from(2, address);
    (void)usleep(HOLD_MS * 1000);
    return 0; /* which closes them */
}

/* Goal: who has no token cannot keep others from connecting. Method: a server that may have
 * 256 files; a program opens 2,000 connections, sends nothing, and ends. Meanwhile and afterwards
 * others come in by connections of their own. */
static void idle_connections_keep_nobody_out(void **state)
{
    struct rlimit before, low;
    int status = 0, files, asked = 0;
    struct echo echo;
    pid_t pid;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = 256;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    echo_open(&echo, "127.0.0.1:0", &server_token, &client_token);
    assert_int_equal(ask_anew(&echo), HD_OK);
    echo_run_for(&echo, 200);
    files = open_files();
    pid = start_self("--idle", echo.address);
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (ask_anew(&echo))
            fail_msg("during the flood: %s", hd_err_message());
        assert_in_range(open_files(), 0, files + 64); /* the server's, and the client's that asks */
        echo_run_for(&echo, 50);
        asked++;
    }
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == IDLERS_CANNOT) {
        print_message("cannot open %d files here\n", IDLERS);
        echo_close(&echo);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_in_range(asked, 3, 1000);
    assert_int_equal(ask_anew(&echo), HD_OK);
    echo_run_for(&echo, 500);
    assert_in_range(open_files(), 0, files); /* no connection that has ended is left */
    echo_close(&echo);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* Method: connections that send the beginning of HTTP/2's preface, so that gRPC holds them until
 * its handshake's deadline. */
static void one_address_has_a_part_of_the_connections(void **state)
{
    struct hd_rpc_server_options options = server_token;
    struct echo echo;
    int fds[5];

    options.connections_max = 9;
    options.connections_of_peer_max = 4;
    echo_open(&echo, "127.0.0.1:0", &options, &client_token);
    for (int i = 0; i < 5; i++) {
        fds[i] = connect_from(2, echo.address);
        assert_int_equal(send(fds[i], "PRI", 3, MSG_NOSIGNAL), 3);
        echo_run_for(&echo, 100);
    }
    assert_true(is_closed(fds[0])); /* the oldest, for the fifth */
    for (int i = 1; i < 5; i++)
        assert_false(is_closed(fds[i]));
    (void)close(fds[0]);
    fds[0] = connect_from(2, echo.address); /* sends nothing yet, like a client on its way in */
    (void)close(fds[1]);
    fds[1] = connect_from(2, echo.address);
    (void)close(fds[2]);
    fds[2] = connect_from(2, echo.address);
    echo_run_for(&echo, 100);
    assert_false(is_closed(fds[0]) || is_closed(fds[1]) || is_closed(fds[2]));
    assert_true(is_closed(fds[3]));           /* older, though it has sent something */
    assert_int_equal(ask_anew(&echo), HD_OK); /* another address */
    for (int i = 0; i < 5; i++)
        assert_int_equal(close(fds[i]), 0);
    echo_close(&echo);
}

/* A client by whose connection a call with a token has come. */
static struct hd_rpc_client *known_client(struct echo *echo)
{
    const Heddle__Test__EchoRequest request = request_of("x");
    ProtobufCMessage *response = NULL;
    struct hd_rpc_client *client;

    assert_int_equal(hd_rpc_client_new(echo->rpc, echo->address, &client_token, &client), HD_OK);
    if (hd_rpc_call_wait(client, ECHO_UNARY, &heddle__test__echo_response__descriptor, 3000,
                         &request.base, &response))
        fail_msg("%s", hd_err_message());
    hd_rpc_message_free(response);
    return client;
}

/* Goal: no newcomer, with or without a token, takes the place of a connection by which a call with
 * a token has come; and a client that is refused hears why. */
static void calls_with_a_token_keep_a_place(void **state)
{
    struct hd_rpc_server_options options = server_token;
    struct hd_rpc_client *clients[3];
    char bytes[512] = "", *text;
    struct echo echo;
    ssize_t count;
    int fd;

    options.connections_max = 9;
    options.connections_of_peer_max = 3;
    echo_open(&echo, "127.0.0.1:0", &options, &client_token);
    for (int i = 0; i < 3; i++)
        clients[i] = known_client(&echo);
    fd = connect_from(1, echo.address);
    echo_run_for(&echo, 100);
    count = recv(fd, bytes, sizeof bytes - 1, MSG_DONTWAIT);
    assert_true(count > 26);
    text = bytes + 26; /* SETTINGS: 9 bytes; GOAWAY: 9 of its frame, 8 of its own */
    assert_tells(text, "too many connections from this address", "3 of at most 3");
    assert_int_equal((unsigned char)bytes[11], 8 + strlen(text)); /* the frame's length */
    assert_true(is_closed(fd));
    assert_int_equal(close(fd), 0);
    assert_int_equal(ask_anew(&echo), HD_UNAVAILABLE);
    assert_non_null(
        strstr(hd_err_message(), "too many connections are open, in all or from this address"));

    hd_rpc_client_close(clients[0]);
    echo_run_for(&echo, 200);
    assert_int_equal(ask_anew(&echo), HD_OK); /* gRPC has closed that one, and its place is free */
    echo_close(&echo);
}

static bool has_ipv6(void)
{
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool has = fd >= 0 && bind(fd, (struct sockaddr *)&in6, sizeof in6) == 0;

    if (fd >= 0)
        (void)close(fd);
    return has;
}

/* Method: HTTP/2's whole preface, and then no call; beside it a client that has called once, and
 * whose stream stays open. */
static void a_connection_without_a_call_with_a_token_goes(void **state)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";
    struct hd_rpc_server_options options = server_token;
    struct hd_rpc_call_options chat;
    struct outcome outcome;
    struct echo echo;
    int fd;

    options.first_call_ms = 700;
    for (int ipv6 = 0; ipv6 <= (int)has_ipv6(); ipv6++) {
        echo_open(&echo, ipv6 ? "[::1]:0" : "127.0.0.1:0", &options, &client_token);
        chat = echo_call_options(ECHO_CHAT, HD_RPC_BIDI, &outcome);
        chat.timeout_ms = 0;
        assert_int_equal(hd_rpc_client_call(echo.client, &chat, NULL, NULL), HD_OK);
        echo_run_until(&echo, &outcome.opens, 1, 2000);
        fd = ipv6 ? -1 : connect_from(1, echo.address);
        if (fd >= 0)
            assert_int_equal(send(fd, preface, sizeof preface, MSG_NOSIGNAL), sizeof preface);
        echo_run_for(&echo, 400);
        assert_false(fd >= 0 && is_closed(fd));
        echo_run_for(&echo, 800);
        assert_true(fd < 0 || is_closed(fd));
        assert_int_equal(outcome.dones, 0);
        echo_close(&echo);
        assert_true(fd < 0 || close(fd) == 0);
    }
}

static void a_connection_that_sends_nothing_goes(void **state)
{
    struct hd_rpc_server_options options = server_token;
    struct echo echo;
    int fds[5];

    options.first_bytes_ms = 1000;
    options.connections_max = 3;
    options.connections_of_peer_max = 3;
    echo_open(&echo, "127.0.0.1:0", &options, &client_token);
    for (int i = 0; i < 4; i++)
        fds[i] = connect_from(1, echo.address);
    echo_run_for(&echo, 300);
    assert_true(is_closed(fds[0])); /* the oldest, for the fourth */
    for (int i = 1; i < 4; i++)
        assert_false(is_closed(fds[i]));
    assert_int_equal(ask_anew(&echo),
                     HD_OK); /* from the same address, and in the next one's place */
    assert_true(is_closed(fds[1]));
    assert_int_equal(send(fds[3], "PRI", 3, MSG_NOSIGNAL), 3);
    echo_run_for(&echo, 1200);
    assert_true(is_closed(fds[2]));  /* after first_bytes_ms */
    assert_false(is_closed(fds[3])); /* gRPC's, with a deadline of its own */
    fds[4] = connect_from(1, echo.address);
    echo_run_for(&echo, 100);
    assert_false(is_closed(fds[4]));
    echo_close(&echo);
    assert_true(is_closed(fds[4])); /* with its server */
    for (int i = 0; i < 5; i++)
        assert_int_equal(close(fds[i]), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    if (argc == 3 && strcmp(argv[1], "--starve") == 0)
        return starve(argv[2]);
    if (argc == 3 && strcmp(argv[1], "--idle") == 0)
        return idle(argv[2]);
    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
