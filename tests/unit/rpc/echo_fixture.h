/* A server and a client of the echo service in one process, on one loop. */
#ifndef HD_ECHO_FIXTURE_H
#define HD_ECHO_FIXTURE_H

#include "echo.pb-c.h"
#include "rpc/rpc.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

#define ECHO_UNARY  "/heddle.test.Echo/Unary"
#define ECHO_STREAM "/heddle.test.Echo/Stream"
#define ECHO_CHAT   "/heddle.test.Echo/Chat"
#define ECHO_TOKEN  "0123456789abcdef0123456789abcdef"

/* How a call of the client went. */
struct outcome {
    int opens, messages, drains, dones;
    int64_t count; /* of the last message */
    char text[64];
    enum hd_status status;
    char message[HD_ERR_MAX];
};

struct echo {
    uv_loop_t loop;
    struct hd_rpc *rpc;
    struct hd_rpc_server *server;
    struct hd_rpc_client *client;
    char dir[TEMPORARY_BYTES];
    char address[96];

    /* what the server saw */
    struct hd_rpc_call *held; /* the call that asked to be held, with a reference */
    int server_opens, server_messages, server_half_closes, server_dones;
    size_t most_queued;
    int64_t flood_left;
    enum hd_status server_status;
    struct hd_rpc_principal principal;
    char metadata[64];
    bool token_shown;
};

/* A directory, a loop and a context; then, for most tests, the rest. `address` may be NULL (a
 * socket in the directory) or end in :0 (the port is filled in). */
void echo_begin(struct echo *echo);
void echo_add_methods(struct echo *echo);
void echo_open(struct echo *echo, const char *address, const struct hd_rpc_server_options *server,
               const struct hd_rpc_client_options *client);
void echo_close(struct echo *echo); /* and proves that nothing is left on the loop */

/* Runs the loop until *flag, at most limit_ms. Fails the test when the time is over. */
void echo_run_until(struct echo *echo, const int *flag, int at_least, int64_t limit_ms);
void echo_run_for(struct echo *echo, int64_t span_ms);

/* One unary call, waited for. */
enum hd_status echo_ask(struct echo *echo, const Heddle__Test__EchoRequest *request,
                        struct outcome *ret_outcome);
struct hd_rpc_call_options echo_call_options(const char *path, enum hd_rpc_kind kind,
                                             struct outcome *outcome);

#endif
