/* rpc: what a TCP connection may send before a call with a token has come by it, and after. The
 * floods of tests/e2e/listeners try the same on a whole controller. */
#include "echo_fixture.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

static struct hd_rpc_token echo_tokens[] = {{.party = HD_RPC_PARTY_USER, .token = ECHO_TOKEN}};
static const struct hd_rpc_tokens known = {.items = echo_tokens, .count = 1};
static const struct hd_rpc_server_options server_token = {.tokens = &known};
static const struct hd_rpc_client_options client_token = {.token = ECHO_TOKEN};

static int connect_to(const char *address)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int small = 4096, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    in.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof in), 0);
    return fd;
}

static bool is_closed(int fd)
{
    char bytes[4096];
    ssize_t count;

    do
        count = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    while (count > 0);
    return count == 0 || errno != EAGAIN;
}

/* HTTP/2 up to a header block that does not end; each further frame has one small header. */
static const unsigned char begin[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                                     "\0\0\0\4\0\0\0\0\0"
                                     "\0\0\1\1\0\0\0\0\1\x83";
static const unsigned char more[] = "\0\0\5\x09\0\0\0\0\1\0\1a\1b";

/* Sends headers without end until the connection is closed, or the time is over. The bytes that
 * left; *ret_ms: when it was closed. */
static size_t flood(struct echo *echo, int fd, int64_t limit_ms, int64_t *ret_ms)
{
    const int64_t begin_ms = hd_clock_now_ms();
    unsigned char block[64 * (sizeof more - 1)];
    size_t sent = 0, count = 0;

    for (size_t i = 0; i < 64; i++)
        memcpy(block + i * (sizeof more - 1), more, sizeof more - 1);
    assert_int_equal(send(fd, begin, sizeof begin - 1, MSG_NOSIGNAL), sizeof begin - 1);
    while (hd_clock_now_ms() - begin_ms < limit_ms && !is_closed(fd)) {
        const size_t at = sent % sizeof block;
        const ssize_t n = send(fd, block + at, sizeof block - at, MSG_NOSIGNAL | MSG_DONTWAIT);

        sent += n > 0 ? (size_t)n : 0;
        if (n <= 0 || ++count % 64 == 0)
            echo_run_for(echo, 5);
    }
    *ret_ms = hd_clock_now_ms() - begin_ms;
    return sent;
}

/* The kernels of both sides take 4 KiB and some 128 KiB; gRPC alone would read tens of megabytes in
 * that time. */
static void a_stranger_is_not_read_without_end(void **state)
{
    struct echo echo;
    int64_t ms;
    size_t sent;
    int fd;

    echo_open(&echo, "127.0.0.1:0", &server_token, &client_token);
    fd = connect_to(echo.address);
    sent = flood(&echo, fd, 8000, &ms);
    assert_in_range(sent, 12 * 1024, 1024 * 1024);
    assert_in_range(ms, 900, 7900); /* a second after its last byte, long before first_call_ms */
    assert_int_equal(close(fd), 0);
    echo_close(&echo);
}

/* Floods that go on; beside them a client that has called before, and new ones. */
static void floods_keep_no_caller_with_a_token_waiting(void **state)
{
    const Heddle__Test__EchoRequest request = HEDDLE__TEST__ECHO_REQUEST__INIT;
    struct outcome outcome;
    struct echo echo;
    int fds[40], late = 0;

    echo_open(&echo, "127.0.0.1:0", &server_token, &client_token);
    assert_int_equal(echo_ask(&echo, &request, &outcome), HD_OK);
    for (int i = 0; i < 40; i++) {
        unsigned char block[256 * (sizeof more - 1)];

        fds[i] = connect_to(echo.address);
        for (size_t k = 0; k < 256; k++)
            memcpy(block + k * (sizeof more - 1), more, sizeof more - 1);
        assert_int_equal(send(fds[i], begin, sizeof begin - 1, MSG_NOSIGNAL), sizeof begin - 1);
        (void)send(fds[i], block, sizeof block, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    for (int i = 0; i < 10; i++) {
        const int64_t begin_ms = hd_clock_now_ms();
        struct hd_rpc_client *client;
        ProtobufCMessage *response = NULL;

        assert_int_equal(echo_ask(&echo, &request, &outcome), HD_OK);
        assert_int_equal(hd_rpc_client_new(echo.rpc, echo.address, &client_token, &client), HD_OK);
        if (hd_rpc_call_wait(client, ECHO_UNARY, &heddle__test__echo_response__descriptor, 5000,
                             &request.base, &response))
            fail_msg("%s", hd_err_message());
        hd_rpc_message_free(response);
        hd_rpc_client_close(client);
        late += hd_clock_now_ms() - begin_ms > 1000;
    }
    assert_in_range(late, 0, 2); /* a busy machine may stop for a second */
    for (int i = 0; i < 40; i++)
        assert_int_equal(close(fds[i]), 0);
    echo_close(&echo);
}

/* Goal: the bound is none for clients with a token. Method: the first call of a connection has a
 * message of 3 MiB; so do eight at a time. */
static void the_first_call_may_be_large(void **state)
{
    enum { BYTES = 3 * 1024 * 1024, CALLS = 8 };
    Heddle__Test__EchoRequest request = HEDDLE__TEST__ECHO_REQUEST__INIT;
    struct outcome outcomes[CALLS];
    struct echo echo;
    char *text = malloc(BYTES + 1);

    assert_non_null(text);
    memset(text, 'x', BYTES);
    text[BYTES] = '\0';
    request.text = text;
    echo_open(&echo, "127.0.0.1:0", &server_token, &client_token);
    for (int i = 0; i < CALLS; i++) {
        struct hd_rpc_call_options options =
            echo_call_options(ECHO_UNARY, HD_RPC_UNARY, &outcomes[i]);

        options.timeout_ms = 30000;
        assert_int_equal(hd_rpc_client_call(echo.client, &options, &request.base, NULL), HD_OK);
    }
    for (int i = 0; i < CALLS; i++) {
        echo_run_until(&echo, &outcomes[i].dones, 1, 30000);
        assert_string_equal(outcomes[i].message, "");
        assert_int_equal(outcomes[i].status, HD_OK);
    }
    echo_close(&echo);
    free(text);
}

/* A caller without a token is answered at its head; its message is not waited for. */
static void a_call_without_a_token_is_refused_before_its_message(void **state)
{
    /* HEADERS with END_HEADERS: POST, http, the path of ECHO_UNARY, gRPC's type; no message */
    static const unsigned char call[] =
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        "\0\0\0\4\0\0\0\0\0"
        "\0\0\x3e\1\4\0\0\0\1\x83\x86\x04\x17/heddle.test.Echo/Unary"
        "\x01\x01x\x0f\x10\x10"
        "application/grpc\x00\x02te\x08trailers";
    unsigned char bytes[1024] = {0};
    bool refused = false;
    struct echo echo;
    int fd;

    assert_int_equal(sizeof call - 1, 24 + 9 + 9 + 0x3e);
    echo_open(&echo, "127.0.0.1:0", &server_token, &client_token);
    fd = connect_to(echo.address);
    assert_int_equal(send(fd, call, sizeof call - 1, MSG_NOSIGNAL), sizeof call - 1);
    for (int i = 0; i < 1000 && !refused; i++) {
        ssize_t count;

        echo_run_for(&echo, 20);
        count = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        /* trailers alone: a HEADERS frame with END_HEADERS and END_STREAM */
        for (ssize_t k = 0; k + 9 <= count;
             k += 9 + bytes[k] * 65536 + bytes[k + 1] * 256 + bytes[k + 2])
            refused |= bytes[k + 3] == 1 && bytes[k + 4] == 5;
    }
    assert_true(refused);
    assert_int_equal(close(fd), 0);
    echo_close(&echo);
}

RUN_CASES()
