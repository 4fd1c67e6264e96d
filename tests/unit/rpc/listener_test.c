/* rpc: who gets in. Unix sockets, tokens, TLS, ports. */
#include "callers.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "tests/delay_proxy.h"
#include "tests/program/tells.h"

/* Tries to listen with a second server in the same context. */
static enum hd_status try_listen(struct echo *echo, const char *address,
                                 const struct hd_rpc_server_options *options)
{
    struct hd_rpc_server *server;
    enum hd_status st;

    assert_int_equal(hd_rpc_server_new(echo->rpc, options, &server), HD_OK);
    st = hd_rpc_server_listen(server, address, NULL);
    hd_rpc_server_close(server, 0, NULL, NULL);
    return st;
}

/* ---- Unix sockets ---- */

static void unix_door_is_private_and_knows_the_peer(void **state)
{
    const Heddle__Test__EchoRequest request = request_of("x");
    struct outcome outcome;
    struct stat info;
    struct echo echo;
    char path[128];

    echo_open(&echo, NULL, NULL, NULL); /* in a directory that did not exist */
    (void)snprintf(path, sizeof path, "%s/run", echo.dir);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    assert_int_equal(stat(echo.address + strlen("unix:"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(echo_ask(&echo, &request, &outcome), HD_OK);
    assert_int_equal(echo.principal.transport, HD_RPC_TRANSPORT_UNIX);
    assert_int_equal(echo.principal.uid, getuid());
    (void)snprintf(path, sizeof path, "uid:%u", getuid());
    assert_string_equal(echo.principal.name, path);
    (void)snprintf(path, sizeof path, "%s", echo.address + strlen("unix:"));
    echo_close(&echo);
    assert_false(hd_file_exists(path)); /* a closed server leaves no socket */
}

static void second_server_on_a_socket_is_a_conflict(void **state)
{
    struct echo echo;

    echo_open(&echo, NULL, NULL, NULL);
    assert_int_equal(try_listen(&echo, echo.address, NULL), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), echo.address));
    assert_true(hd_file_exists(echo.address + strlen("unix:"))); /* and takes nothing away */
    echo_close(&echo);
}

/* A socket as a program leaves it that was killed (or, listening, that lives but is not Heddle's).
 */
static int foreign_socket(const char *path, bool listening)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof un), 0);
    if (listening)
        assert_int_equal(listen(fd, 1), 0);
    return fd;
}

static void socket_of_a_dead_server_is_replaced_a_live_one_is_not(void **state)
{
    char path[128], address[160];
    struct echo echo;
    int fd;

    echo_begin(&echo);
    (void)snprintf(path, sizeof path, "%s/s", echo.dir);
    (void)snprintf(address, sizeof address, "unix:%s", path);
    fd = foreign_socket(path, true);
    assert_int_equal(try_listen(&echo, address, NULL), HD_CONFLICT);
    assert_int_equal(close(fd), 0);
    assert_true(hd_file_exists(path));
    assert_int_equal(try_listen(&echo, address, NULL), HD_OK);

    assert_int_equal(hd_file_write_atomic(path, "x", 1, 0600), HD_OK);
    assert_int_equal(try_listen(&echo, address, NULL), HD_EXISTS); /* never someone's file */
    assert_true(hd_file_exists(path));
    echo_close(&echo);
}

static int count_sockets(void)
{
    struct stat info;
    int count = 0;

    for (int fd = 0; fd < 256; fd++)
        count += fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode);
    return count;
}

/* A client that dies as soon as its second call has left it. */
enum { SECOND_CALL_AFTER_MS = 300, DEATH_AFTER_MS = 500 };

static int call_and_die(const char *address)
{
    const Heddle__Test__EchoRequest request = request_of("hold");
    struct hd_rpc_call_options options;
    struct outcome outcome;
    struct echo echo;

    echo_begin(&echo);
    assert_int_equal(hd_rpc_client_new(echo.rpc, address, NULL, &echo.client), HD_OK);
    options = echo_call_options(ECHO_UNARY, HD_RPC_UNARY, &outcome);
    assert_int_equal(hd_rpc_client_call(echo.client, &options, &request.base, NULL), HD_OK);
    echo_run_for(&echo, SECOND_CALL_AFTER_MS);
    assert_int_equal(hd_rpc_client_call(echo.client, &options, &request.base, NULL), HD_OK);
    (void)usleep((DEATH_AFTER_MS - SECOND_CALL_AFTER_MS) * 1000);
    assert_int_equal(hd_file_remove_tree(echo.dir), HD_OK);
    _exit(0);
}

struct callers {
    int count;
    uid_t last_uid;
};

static enum hd_status note_caller(void *user, struct hd_rpc_call *call)
{
    struct callers *callers = user;

    callers->count++;
    callers->last_uid = hd_rpc_call_principal(call)->uid;
    return HD_OK;
}

/* Goal: a call is never taken for another peer's. The peer is known by its connection's descriptor,
 * so that may not be used again before the call was taken. Method: a client calls and dies while
 * the server's loop is busy; its connection must stay open until the loop has seen the call. Its
 * message is never read: the client has gone. */
static void connection_of_a_dead_peer_stays_until_its_calls_are_taken(void **state)
{
    struct callers callers = {.last_uid = (uid_t)-1};
    const struct hd_rpc_server_options options = {.authorize = note_caller,
                                                  .authorize_user = &callers};
    int before, status;
    struct echo echo;
    pid_t pid;

    echo_open(&echo, NULL, &options, NULL);
    before = count_sockets();
    pid = start_self("--die", echo.address);
    echo_run_until(&echo, &echo.server_opens, 1, 5000);
    assert_int_equal(waitpid(pid, &status, 0), pid); /* the loop does not run meanwhile */
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    (void)usleep(200 * 1000); /* gRPC sees the end of the connection */
    assert_int_equal(count_sockets(), before + 1);
    assert_int_equal(callers.count, 1);
    callers.last_uid = (uid_t)-1;
    hd_rpc_call_unref(echo.held);
    echo.held = NULL;
    echo_run_until(&echo, &callers.count, 2, 2000);
    assert_int_equal(callers.last_uid, getuid());
    echo_run_until(&echo, &echo.server_dones, 1, 2000);
    echo_run_for(&echo, 200);
    assert_int_equal(count_sockets(), before); /* and then it goes */
    echo_close(&echo);
}

/* ---- tokens ---- */

static void tcp_needs_the_token_and_nothing_less(void **state)
{
    const struct hd_rpc_client_options wrong = {.token = "0123456789abcdef0123456789abcdeX"},
                                       shorter = {.token = "0123456789abcdef0123456789abcde"},
                                       none = {0};
    const struct hd_rpc_client_options *bad[] = {&wrong, &shorter};
    const Heddle__Test__EchoRequest request = request_of("x");
    ProtobufCMessage *response = NULL;
    struct hd_rpc_client *client;
    struct outcome outcome;
    struct echo echo;

    echo_open(&echo, "127.0.0.1:0", &server_token, &client_token);
    assert_int_equal(echo_ask(&echo, &request, &outcome), HD_OK);
    assert_int_equal(echo.principal.transport, HD_RPC_TRANSPORT_TCP);
    assert_string_equal(echo.principal.name, "token");
    assert_int_equal(echo.principal.uid, (uid_t)-1);
    assert_false(echo.token_shown); /* handlers cannot leak it */
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(hd_rpc_client_new(echo.rpc, echo.address, bad[i], &client), HD_OK);
        assert_int_equal(hd_rpc_call_wait(client, ECHO_UNARY,
                                          &heddle__test__echo_response__descriptor, 2000,
                                          &request.base, &response),
                         HD_DENIED);
        assert_non_null(strstr(hd_err_message(), "token"));
        assert_null(strstr(hd_err_message(), "0123456789"));
    }
    assert_int_equal(echo.server_opens, 1);
    assert_int_equal(hd_rpc_client_new(echo.rpc, echo.address, &none, &client), HD_DENIED);
    assert_non_null(strstr(hd_err_message(), "--token-file"));
    echo_close(&echo);
}

/* Users alone may call ECHO_UNARY. */
static enum hd_status only_users(void *user, struct hd_rpc_call *call)
{
    const struct hd_rpc_principal *principal = hd_rpc_call_principal(call);

    if (principal->party == HD_RPC_PARTY_NODE && strcmp(hd_rpc_call_path(call), ECHO_UNARY) == 0)
        return hd_err(HD_DENIED, "not for %s", principal->name);
    return HD_OK;
}

static void a_caller_has_the_name_of_its_token(void **state)
{
    const struct hd_rpc_client_options ann = {.token = ANN_TOKEN}, node = {.token = NODE_TOKEN};
    struct hd_rpc_server_options options = server_token;
    struct echo echo;

    echo_open(&echo, "127.0.0.1:0", &options, &client_token);
    assert_int_equal(ask_by(&echo, &ann), HD_OK);
    assert_string_equal(echo.principal.name, "ann");
    assert_string_equal(echo.principal.token_name, "ann");
    assert_int_equal(echo.principal.party, HD_RPC_PARTY_USER);
    assert_int_equal(ask_by(&echo, &node), HD_OK);
    assert_string_equal(echo.principal.name, "node:n1");
    assert_string_equal(echo.principal.token_name, "n1");
    assert_int_equal(echo.principal.party, HD_RPC_PARTY_NODE);
    assert_int_equal(ask_by(&echo, &client_token), HD_OK);
    assert_string_equal(echo.principal.name, "token");
    assert_string_equal(echo.principal.token_name, "");
    echo_close(&echo);

    options.authorize = only_users;
    echo_open(&echo, "127.0.0.1:0", &options, &client_token);
    assert_int_equal(ask_by(&echo, &ann), HD_OK);
    assert_int_equal(ask_by(&echo, &node), HD_DENIED);
    assert_string_equal(hd_err_message(), "not for node:n1");
    assert_int_equal(echo.server_opens, 1);
    echo_close(&echo);
}

/* Keeps what is written to stderr until read_errors. */
static int keep_errors(const char *dir, int *ret_before)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    *ret_before = dup(STDERR_FILENO);
    assert_true(*ret_before >= 0 && dup2(fd, STDERR_FILENO) >= 0);
    return fd;
}

static void read_errors(int fd, int before, char *ret_text, size_t size_bytes)
{
    ssize_t count = pread(fd, ret_text, size_bytes - 1, 0);

    assert_true(dup2(before, STDERR_FILENO) >= 0);
    assert_true(count >= 0);
    ret_text[count] = '\0';
    assert_int_equal(close(fd) + close(before), 0);
}

static int count_of(const char *text, const char *part)
{
    int count = 0;

    for (const char *at = text; (at = strstr(at, part)) != NULL; at++)
        count++;
    return count;
}

static void wrong_tokens_leave_one_line_in_the_log(void **state)
{
    const struct hd_rpc_client_options wrong = {.token = "0123456789abcdef0123456789abcdeX"};
    const Heddle__Test__EchoRequest request = request_of("x");
    struct outcome outcome;
    char text[4096];
    struct echo echo;
    int fd, before;

    echo_open(&echo, "127.0.0.1:0", &server_token, &wrong);
    fd = keep_errors(echo.dir, &before);
    for (int i = 0; i < 20; i++)
        assert_int_equal(echo_ask(&echo, &request, &outcome), HD_DENIED);
    read_errors(fd, before, text, sizeof text);
    assert_int_equal(count_of(text, "the token is missing or wrong"), 1); /* 20 calls in 10 s */
    assert_non_null(strstr(text, "refused a call from ipv4:127.0.0.1:"));
    assert_null(strstr(text, "0123456789abcde"));
    echo_close(&echo);
}

static void tcp_without_token_is_refused_before_anything_listens(void **state)
{
    struct hd_rpc_token secret[] = {{.token = "secret"}};
    const struct hd_rpc_tokens secrets = {.items = secret, .count = 1};
    const struct hd_rpc_server_options guessable = {.tokens = &secrets};
    struct hd_rpc_server *server;
    struct echo echo;

    echo_begin(&echo);
    assert_int_equal(try_listen(&echo, "127.0.0.1:0", NULL), HD_DENIED);
    assert_int_equal(try_listen(&echo, "localhost:0", NULL), HD_DENIED);
    assert_int_equal(try_listen(&echo, "[::1]:0", NULL), HD_DENIED);
    assert_non_null(strstr(hd_err_message(), "token"));
    assert_int_equal(try_listen(&echo, "0.0.0.0:0", &server_token), HD_DENIED);
    assert_non_null(strstr(hd_err_message(), "TLS"));
    assert_int_equal(try_listen(&echo, "10.1.2.3:5", &server_token), HD_DENIED);
    assert_int_equal(hd_rpc_server_new(echo.rpc, &guessable, &server), HD_INVALID);
    assert_int_equal(hd_rpc_client_new(echo.rpc, "10.1.2.3:5", &client_token, &echo.client),
                     HD_DENIED); /* the token would travel in the clear */
    echo_close(&echo);
}

static enum hd_status write_token(const char *path, const char *text)
{
    return hd_file_write_atomic(path, text, strlen(text), 0600);
}

static void token_file_must_be_private_and_long_enough(void **state)
{
    char path[128], token[HD_RPC_TOKEN_MAX + 1];
    struct echo echo;

    echo_begin(&echo);
    (void)snprintf(path, sizeof path, "%s/token", echo.dir);
    assert_int_equal(hd_rpc_read_token(path, 0, token), HD_NOT_FOUND);
    assert_int_equal(write_token(path, ECHO_TOKEN "\n"), HD_OK);
    assert_int_equal(hd_rpc_read_token(path, 0, token), HD_OK);
    assert_string_equal(token, ECHO_TOKEN);
    for (mode_t mode = 0; mode <= 0777; mode++) { /* refused if the group or others may anything */
        assert_int_equal(chmod(path, mode | 0400), 0);
        if (hd_rpc_read_token(path, 0, token) != (mode & 0077 ? HD_DENIED : HD_OK))
            fail_msg("mode %03o", mode | 0400);
    }
    assert_int_equal(write_token(path, "short\n"), HD_OK);
    assert_int_equal(hd_rpc_read_token(path, 0, token), HD_INVALID);
    assert_int_equal(write_token(path, "0123456789 abcdef\n"), HD_OK);
    assert_int_equal(hd_rpc_read_token(path, 0, token), HD_INVALID); /* too short behind its name */
    assert_int_equal(write_token(path, "ann " ANN_TOKEN), HD_OK);    /* her line of the server's */
    assert_int_equal(hd_rpc_read_token(path, 0, token), HD_OK);
    assert_string_equal(token, ANN_TOKEN);
    assert_int_equal(write_token(path, "ann " ANN_TOKEN "\n" ECHO_TOKEN), HD_OK);
    assert_int_equal(hd_rpc_read_token(path, 0, token), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "has 2 tokens"));
    echo_close(&echo);
}

static void token_file_has_a_name_on_each_line_but_one(void **state)
{
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"# nobody yet\n\n", "has no token"},
        {ECHO_TOKEN "\n" ANN_TOKEN "\n", ":2: a second token without a name"},
        {"ann " ANN_TOKEN "\nbob " ANN_TOKEN "\n", ":2: the token of this line was given before"},
        {"ann " ANN_TOKEN " admin\n", ":1: it has more than a name and a token"},
        {"uid:0 " ANN_TOKEN "\n", ":1: a name has"}, /* root's at the Unix socket */
        {"token " ANN_TOKEN "\n", ":1: \"token\" is what a token without a name is called"},
        {"n1 " NODE_TOKEN "\n", ":1: this is a user's token and a node's"},
    };
    struct hd_rpc_tokens tokens = {0};
    char path[128];
    struct echo echo;

    echo_begin(&echo);
    (void)snprintf(path, sizeof path, "%s/tokens", echo.dir);
    assert_int_equal(write_token(path, NODE_TOKEN), HD_OK);
    assert_int_equal(hd_rpc_tokens_read(&tokens, path, NULL, HD_RPC_PARTY_NODE), HD_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct hd_rpc_tokens more = {0};

        assert_int_equal(write_token(path, NODE_TOKEN), HD_OK);
        assert_int_equal(hd_rpc_tokens_read(&more, path, NULL, HD_RPC_PARTY_NODE), HD_OK);
        assert_int_equal(write_token(path, bad[i].text), HD_OK);
        assert_int_equal(hd_rpc_tokens_read(&more, path, NULL, HD_RPC_PARTY_USER), HD_INVALID);
        if (!strstr(hd_err_message(), bad[i].why))
            fail_msg("%s: %s", bad[i].why, hd_err_message());
        assert_null(strstr(hd_err_message(), "0123456789"));
        hd_rpc_tokens_done(&more);
    }
    assert_int_equal(write_token(path, "# two people and a machine\r\nann\t" ANN_TOKEN "\r\n"
                                       "\nbob@lab  bob-0123456789abcdef\n" ECHO_TOKEN "\n"),
                     HD_OK);
    assert_int_equal(hd_rpc_tokens_read(&tokens, path, NULL, HD_RPC_PARTY_USER), HD_OK);
    assert_int_equal(tokens.count, 4);
    assert_int_equal(tokens.items[0].party, HD_RPC_PARTY_NODE);
    assert_string_equal(tokens.items[1].name, "ann");
    assert_string_equal(tokens.items[1].token, ANN_TOKEN);
    assert_string_equal(tokens.items[2].name, "bob@lab");
    assert_string_equal(tokens.items[3].name, "");
    assert_string_equal(tokens.items[3].token, ECHO_TOKEN);
    assert_int_equal(tokens.items[3].party, HD_RPC_PARTY_USER);
    hd_rpc_tokens_done(&tokens);
    echo_close(&echo);
}

/* ---- ports ---- */

static void taken_port_is_named(void **state)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t in_bytes = sizeof in;
    char address[64];
    struct echo echo;
    int fd;

    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&in, sizeof in), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&in, &in_bytes), 0);
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(in.sin_port));
    echo_begin(&echo);
    assert_int_equal(try_listen(&echo, address, &server_token), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), address));
    echo_close(&echo);
    assert_int_equal(close(fd), 0);
}

/* Two servers that share a port would each get a part of the connections, silently. */
static void two_servers_never_share_a_port(void **state)
{
    struct echo echo;

    echo_open(&echo, "127.0.0.1:0", &server_token, &client_token);
    assert_int_equal(try_listen(&echo, echo.address, &server_token), HD_CONFLICT);
    echo_close(&echo);
}

static void one_server_opens_several_doors(void **state)
{
    const Heddle__Test__EchoRequest request = request_of("x");
    struct hd_rpc_client *clients[2];
    ProtobufCMessage *response;
    char addresses[2][160];
    struct echo echo;
    int port;

    echo_begin(&echo);
    assert_int_equal(hd_rpc_server_new(echo.rpc, &server_token, &echo.server), HD_OK);
    echo_add_methods(&echo);
    (void)snprintf(addresses[0], sizeof addresses[0], "unix:%s/s", echo.dir);
    assert_int_equal(hd_rpc_server_listen(echo.server, addresses[0], NULL), HD_OK);
    assert_int_equal(hd_rpc_server_listen(echo.server, "127.0.0.1:0", &port), HD_OK);
    (void)snprintf(addresses[1], sizeof addresses[1], "127.0.0.1:%d", port);
    assert_int_equal(hd_rpc_server_start(echo.server), HD_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hd_rpc_client_new(echo.rpc, addresses[i], &client_token, &clients[i]),
                         HD_OK);
        assert_int_equal(hd_rpc_call_wait(clients[i], ECHO_UNARY,
                                          &heddle__test__echo_response__descriptor, 2000,
                                          &request.base, &response),
                         HD_OK);
        hd_rpc_message_free(response);
        assert_int_equal(echo.principal.transport,
                         i == 0 ? HD_RPC_TRANSPORT_UNIX : HD_RPC_TRANSPORT_TCP);
    }
    echo_close(&echo);
}

static enum hd_status ask_at(struct echo *echo, const char *host, int port)
{
    const Heddle__Test__EchoRequest request = request_of("x");
    ProtobufCMessage *response = NULL;
    struct hd_rpc_client *client;
    char address[64];
    enum hd_status st;

    (void)snprintf(address, sizeof address, "%s:%d", host, port);
    assert_int_equal(hd_rpc_client_new(echo->rpc, address, &client_token, &client), HD_OK);
    st = hd_rpc_call_wait(client, ECHO_UNARY, &heddle__test__echo_response__descriptor, 2000,
                          &request.base, &response);
    hd_rpc_message_free(response);
    return st;
}

/* localhost is 127.0.0.1 and, on most machines, ::1. The port that the system chose is that of
 * both. */
static void a_name_opens_a_door_at_each_of_its_addresses(void **state)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    struct echo echo;
    int port;

    echo_open(&echo, "localhost:0", &server_token, &client_token);
    port = atoi(strrchr(echo.address, ':') + 1);
    assert_int_equal(getaddrinfo("localhost", NULL, &hints, &found), 0);
    for (const struct addrinfo *at = found; at; at = at->ai_next)
        if (ask_at(&echo, at->ai_family == AF_INET6 ? "[::1]" : "127.0.0.1", port))
            fail_msg("%s", hd_err_message());
    freeaddrinfo(found);
    assert_int_equal(try_listen(&echo, echo.address, &server_token), HD_CONFLICT);
    echo_close(&echo);
}

/* ---- TLS ---- */

/* Makes a CA, a certificate of it for `name`, and another CA, with the openssl command. */
static void make_certificates(const char *dir, const char *name)
{
    static const char script[] =
        "cd '%s' && exec 2>openssl.log && "
        "new() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
        "-keyout $1.key -out $1.pem -subj /CN=$1; } && new ca && new otherca && "
        "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout leaf.key "
        "-out leaf.csr -subj /CN=%s && printf 'subjectAltName=DNS:%s' >ext && "
        "openssl x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 "
        "-extfile ext -out leaf.pem";
    char command[2048];

    (void)snprintf(command, sizeof command, script, dir, name, name);
    assert_int_equal(system(command), 0);
}

struct tls_files {
    char cert[96], key[96], ca[96], other_ca[96];
};

static void name_files(struct tls_files *files, const char *dir)
{
    (void)snprintf(files->cert, sizeof files->cert, "%s/leaf.pem", dir);
    (void)snprintf(files->key, sizeof files->key, "%s/leaf.key", dir);
    (void)snprintf(files->ca, sizeof files->ca, "%s/ca.pem", dir);
    (void)snprintf(files->other_ca, sizeof files->other_ca, "%s/otherca.pem", dir);
}

static void tls_lets_in_who_proves_it_and_nobody_else(void **state)
{
    struct hd_rpc_tls server_tls, trusting = {0}, mistrusting = {0}, proving = {0}, broken = {0};
    struct hd_rpc_server_options server = server_token;
    struct hd_rpc_client_options client = client_token;
    char dir[TEMPORARY_BYTES];
    struct tls_files files;
    struct echo echo;

    temporary_dir(dir, "hd_rpc");
    make_certificates(dir, "node-0042");
    name_files(&files, dir);
    server_tls =
        (struct hd_rpc_tls){.cert_path = files.cert, .key_path = files.key, .ca_path = NULL};
    server.tls = &server_tls;
    trusting.ca_path = files.ca;
    client.tls = &trusting;
    client.tls_server_name = "node-0042";
    for (int mutual = 0; mutual < 2; mutual++) {
        server_tls.ca_path = mutual ? files.ca : NULL;
        client.tls = &trusting;
        echo_open(&echo, "127.0.0.1:0", &server, &client);
        assert_int_equal(ask_by(&echo, &client), mutual ? HD_UNAVAILABLE : HD_OK);
        if (!mutual)
            assert_string_equal(echo.principal.name, "token");
        proving = (struct hd_rpc_tls){
            .cert_path = files.cert, .key_path = files.key, .ca_path = files.ca};
        client.tls = &proving;
        assert_int_equal(ask_by(&echo, &client), HD_OK);
        if (mutual)
            assert_string_equal(echo.principal.name, "cert:node-0042");

        mistrusting.ca_path = files.other_ca; /* signed by nobody we know */
        client.tls = &mistrusting;
        assert_int_equal(ask_by(&echo, &client), HD_UNAVAILABLE);
        client.tls = &proving;
        client.tls_server_name = "node-0043"; /* another node's name */
        assert_int_equal(ask_by(&echo, &client), HD_UNAVAILABLE);
        client.tls_server_name = "node-0042";
        client.token = "0123456789abcdef0123456789abcdeX"; /* a certificate is no token */
        assert_int_equal(ask_by(&echo, &client), HD_DENIED);
        client.token = ECHO_TOKEN;
        assert_int_equal(ask_by(&echo, &client_token), HD_UNAVAILABLE); /* without TLS */
        echo_close(&echo);
    }

    echo_begin(&echo);
    broken = (struct hd_rpc_tls){.cert_path = files.cert, .key_path = NULL, .ca_path = NULL};
    server.tls = &broken;
    assert_int_equal(hd_rpc_server_new(echo.rpc, &server, &echo.server), HD_INVALID);
    broken.key_path = "/nowhere/key.pem";
    assert_int_equal(hd_rpc_server_new(echo.rpc, &server, &echo.server), HD_NOT_FOUND);
    assert_non_null(strstr(hd_err_message(), "/nowhere/key.pem"));
    server_tls.ca_path = NULL; /* with TLS, the door to other machines opens */
    server.tls = &server_tls;
    assert_int_equal(try_listen(&echo, "0.0.0.0:0", &server), HD_OK);
    echo_close(&echo);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

/* ---- a long way ---- */

struct far {
    char dir[TEMPORARY_BYTES], address[64];
    struct tls_files files;
    struct hd_rpc_tls server_tls, client_tls;
    struct hd_rpc_client_options client;
    struct delay_proxy *proxy;
    struct echo echo;
};

static void open_far(struct far *far, int64_t round_trip_ms)
{
    struct hd_rpc_server_options server = server_token;
    int port;

    temporary_dir(far->dir, "hd_rpc");
    make_certificates(far->dir, "controller");
    name_files(&far->files, far->dir);
    far->server_tls = (struct hd_rpc_tls){
        .cert_path = far->files.cert, .key_path = far->files.key, .ca_path = NULL};
    far->client_tls = (struct hd_rpc_tls){.ca_path = far->files.ca};
    far->client = client_token;
    far->client.tls = &far->client_tls;
    far->client.tls_server_name = "controller";
    server.tls = &far->server_tls;
    echo_open(&far->echo, "127.0.0.1:0", &server, &far->client);
    far->proxy = delay_proxy_open(&far->echo.loop, atoi(strrchr(far->echo.address, ':') + 1),
                                  round_trip_ms, &port);
    (void)snprintf(far->echo.address, sizeof far->echo.address, "127.0.0.1:%d", port);
}

static void close_far(struct far *far)
{
    delay_proxy_close(far->proxy);
    echo_close(&far->echo);
    assert_int_equal(hd_file_remove_tree(far->dir), HD_OK);
}

/* Goal: a controller on another continent is as good as one in the next room. Method: a first call
 * over TLS through a proxy, which takes at least three round trips: TCP, TLS 1.3, the call. */
static void far_away_is_reached_over_tls(void **state)
{
    static const int64_t round_trips_ms[] = {0, 50, 150, 300};
    struct far far;
    int64_t begin_ms;

    for (size_t i = 0; i < sizeof round_trips_ms / sizeof round_trips_ms[0]; i++) {
        open_far(&far, round_trips_ms[i]);
        begin_ms = hd_clock_now_ms();
        if (ask_by(&far.echo, &far.client))
            fail_msg("at %d ms: %s", (int)round_trips_ms[i], hd_err_message());
        assert_true(hd_clock_now_ms() - begin_ms >= 3 * round_trips_ms[i] - 10);
        close_far(&far);
    }
}

/* A loop that computes, or a machine with too few cores, takes a second to accept. */
static void a_busy_server_is_waited_for(void **state)
{
    const Heddle__Test__EchoRequest request = request_of("x");
    struct hd_rpc_call_options options;
    struct outcome outcome;
    struct far far;

    open_far(&far, 0);
    options = echo_call_options(ECHO_UNARY, HD_RPC_UNARY, &outcome);
    assert_int_equal(hd_rpc_client_call(far.echo.client, &options, &request.base, NULL), HD_OK);
    (void)usleep(1000 * 1000); /* the client's TLS goes on in gRPC's thread, and waits */
    echo_run_until(&far.echo, &outcome.dones, 1, 6000);
    assert_string_equal(outcome.message, "");
    assert_int_equal(outcome.status, HD_OK);
    close_far(&far);
}

/* ---- connections that stay ---- */

/* Goal: a quiet stream is not cut for the pings that keep it alive. Method: pings every 200 ms for
 * 2 s, so 10 of them; a server with gRPC's own interval of 5 minutes would send GOAWAY
 * (too_many_pings) after the third. */
static void keepalive_pings_do_not_annoy_the_server(void **state)
{
    struct hd_rpc_server_options server = {.keepalive_ms = 200, .keepalive_timeout_ms = 2000};
    const struct hd_rpc_client_options client = {.keepalive_ms = 200, .keepalive_timeout_ms = 2000};
    struct hd_rpc_call_options options;
    struct outcome outcome;
    struct echo echo;

    echo_open(&echo, NULL, &server, &client);
    options = echo_call_options(ECHO_CHAT, HD_RPC_BIDI, &outcome);
    options.timeout_ms = 0;
    assert_int_equal(hd_rpc_client_call(echo.client, &options, NULL, NULL), HD_OK);
    echo_run_until(&echo, &outcome.opens, 1, 2000);
    echo_run_for(&echo, 2000);
    assert_int_equal(outcome.dones, 0);
    echo_close(&echo);

    /* and the pings are real: a server that wants them 100 times rarer hangs up */
    server.keepalive_ms = 20000;
    echo_open(&echo, NULL, &server, &client);
    options = echo_call_options(ECHO_CHAT, HD_RPC_BIDI, &outcome);
    options.timeout_ms = 0;
    assert_int_equal(hd_rpc_client_call(echo.client, &options, NULL, NULL), HD_OK);
    echo_run_until(&echo, &outcome.dones, 1, 6000);
    assert_int_equal(outcome.status, HD_UNAVAILABLE);
    echo_close(&echo);
}

/* ---- the server's check of itself, and the limit of open files ---- */

static void self_check_is_content_with_every_kind_of_listener(void **state)
{
    struct hd_rpc_tls tls;
    struct hd_rpc_server_options options = server_token;
    char dir[TEMPORARY_BYTES], address[128];
    struct tls_files files;
    struct watch watch = {0};
    struct echo echo;

    temporary_dir(dir, "hd_rpc");
    make_certificates(dir, "localhost");
    name_files(&files, dir);
    tls = (struct hd_rpc_tls){.cert_path = files.cert, .key_path = files.key, .ca_path = NULL};
    options.tls = &tls;
    echo_begin(&echo);
    assert_int_equal(hd_rpc_server_new(echo.rpc, &options, &echo.server), HD_OK);
    (void)snprintf(address, sizeof address, "unix:%s/s", echo.dir);
    assert_int_equal(hd_rpc_server_listen(echo.server, address, NULL), HD_OK);
    assert_int_equal(hd_rpc_server_listen(echo.server, "0.0.0.0:0", NULL), HD_OK);
    assert_int_equal(hd_rpc_server_start(echo.server), HD_OK);
    assert_int_equal(hd_rpc_server_self_check(echo.server, 50, 500, note_result, &watch), HD_OK);
    echo_run_for(&echo, 800);
    assert_int_equal(watch.failures, 0);
    echo_close(&echo);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

static void file_limit_is_raised_to_the_hard_one(void **state)
{
    struct rlimit limit, before;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = before;
    limit.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(hd_rpc_raise_file_limit(65), before.rlim_max >= 65 ? HD_OK : HD_LIMIT);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(limit.rlim_cur == before.rlim_max);
    if (before.rlim_max != RLIM_INFINITY)
        assert_int_equal(hd_rpc_raise_file_limit(before.rlim_max + 1), HD_LIMIT);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    if (argc == 3 && strcmp(argv[1], "--die") == 0)
        return call_and_die(argv[2]);
    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
