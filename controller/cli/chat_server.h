/* chat_server: asks a heddle-serve for the next answer of a conversation.
 *
 * The server is one that runs already, or a child of this command, with a Unix socket in a private
 * folder, which keeps the model and the cache of the conversation between answers. A request is one
 * HTTP/1.0 request of the chat API with a stream as its answer; closing its connection stops the
 * answer.
 *
 * Used by: cmd_chat.   Uses: local_controller (its private folder), process, base.   Threads: one.
 */
#ifndef HD_CLI_CHAT_SERVER_H
#define HD_CLI_CHAT_SERVER_H

#include <signal.h>

#include "controller/cli/local_controller.h"
#include "rpc/rpc.h"

struct chat_server {
    struct local_controller place; /* only its private folder is used */
    struct process process;        /* heddle-serve; pid 0: it is not a child */
    char log[LOCAL_DIR_MAX + 32];
    char address[512];                /* unix:PATH or HOST:PORT */
    char token[HD_RPC_TOKEN_MAX + 1]; /* token of the caller; "": none */
};

/* Starts heddle-serve with the flags argv [argc] and waits until it answers. On failure the message is
 * what heddle-serve said. */
enum hd_status chat_server_start(struct chat_server *server, const char *const *argv, size_t argc);
/* Uses a server that runs already. token_file: file with the caller's token; NULL: none. HD_INVALID:
 * its address is not of this machine. */
enum hd_status chat_server_use(struct chat_server *server, const char *address,
                               const char *token_file);
void chat_server_stop(struct chat_server *server);

struct chat_request {
    const char *body; /* JSON of the request */
    /* gets pieces of the answer as they arrive */
    void (*on_text)(void *user, const char *text);
    void *user;
    const volatile sig_atomic_t *interrupted; /* set: the answer is stopped, which is no failure */
};
/* Sends a request and reads its answer to the end. *ret_reason: why it ended, "stop" or "length";
 * "" if it was stopped. HD_INVALID: the server refused the request. */
enum hd_status chat_server_ask(struct chat_server *server, const struct chat_request *request,
                               char ret_reason[32]);

#endif
