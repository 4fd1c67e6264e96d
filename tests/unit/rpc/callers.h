/* callers: an echo server's tokens, callers by them, and what its self-check says. */
#ifndef TESTS_UNIT_RPC_CALLERS_H
#define TESTS_UNIT_RPC_CALLERS_H

#include <stdio.h>
#include <unistd.h>

#include "echo_fixture.h"

#define ANN_TOKEN  "ann-0123456789abcdef"
#define NODE_TOKEN "node-0123456789abcdef"

static struct hd_rpc_token echo_tokens[] = {
    {.party = HD_RPC_PARTY_USER, .token = ECHO_TOKEN},
    {.party = HD_RPC_PARTY_USER, .name = "ann", .token = ANN_TOKEN},
    {.party = HD_RPC_PARTY_NODE, .name = "n1", .token = NODE_TOKEN},
};
static const struct hd_rpc_tokens known = {.items = echo_tokens, .count = 3};
static const struct hd_rpc_server_options server_token = {.tokens = &known};
static const struct hd_rpc_client_options client_token = {.token = ECHO_TOKEN};

static inline Heddle__Test__EchoRequest request_of(const char *text)
{
    Heddle__Test__EchoRequest request = HEDDLE__TEST__ECHO_REQUEST__INIT;

    request.text = (char *)text;
    return request;
}

/* By a connection of its own. */
static inline enum hd_status ask_by(struct echo *echo, const struct hd_rpc_client_options *options)
{
    const Heddle__Test__EchoRequest request = request_of("x");
    ProtobufCMessage *response = NULL;
    struct hd_rpc_client *client;
    enum hd_status st;

    st = hd_rpc_client_new(echo->rpc, echo->address, options, &client);
    if (st)
        return st;
    st = hd_rpc_call_wait(client, ECHO_UNARY, &heddle__test__echo_response__descriptor, 3000,
                          &request.base, &response);
    hd_rpc_message_free(response);
    hd_rpc_client_close(client);
    return st;
}

static inline pid_t start_self(const char *what, const char *address)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        (void)execl("/proc/self/exe", "rpc_test", what, address, (char *)NULL);
        _exit(99);
    }
    return pid;
}

struct watch {
    int failures, in_a_row, recoveries;
};

static inline void note_result(void *user, int in_a_row, const char *message)
{
    struct watch *watch = user;

    if (message && !watch->failures)
        fprintf(stderr, "self-check: %s\n", message);
    watch->failures += message != NULL;
    watch->recoveries += message == NULL;
    watch->in_a_row = in_a_row;
}

#endif
