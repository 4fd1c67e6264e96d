/* credentials: tokens (tokens.c) and certificates, read from files and compared.
 *
 * Used by: the files of rpc.   Uses: base, gRPC.   Threads: any. */
#ifndef HD_RPC_CREDENTIALS_H
#define HD_RPC_CREDENTIALS_H

#include <stdbool.h>

#include <grpc/grpc_security.h>

#include "rpc/rpc.h"

/* Checks the form of a token. HD_INVALID: wrong length, or not printable ASCII. */
enum hd_status hd_rpc_check_token(const char *token);

/* A server's tokens. The time of a look-up does not depend on the tokens: a hash with a random key
 * selects the candidates, then whole tokens are compared in constant time. */
struct hd_rpc_token_set {
    struct hd_rpc_tokens tokens; /* tokens, each padded with zeros */
    uint64_t *hashes;            /* keyed hash of each token, in the order of `tokens` */
    unsigned char key[16];
};

/* Copies the tokens into the set. HD_INVALID: a token is malformed. */
enum hd_status hd_rpc_token_set_init(struct hd_rpc_token_set *ret_set,
                                     const struct hd_rpc_tokens *tokens);
void hd_rpc_token_set_done(struct hd_rpc_token_set *set);
/* Returns the token of the set that equals `given`; NULL: none does. */
const struct hd_rpc_token *hd_rpc_token_set_find(const struct hd_rpc_token_set *set,
                                                 const char *given);

/* Certificates of a server, replaceable while it runs. gRPC asks for them at each handshake, on its
 * own thread; free them after the server. */
struct hd_rpc_server_tls;
enum hd_status hd_rpc_server_tls_open(const struct hd_rpc_tls *tls,
                                      struct hd_rpc_server_tls **ret_tls,
                                      grpc_server_credentials **ret_credentials);
enum hd_status hd_rpc_server_tls_replace(struct hd_rpc_server_tls *server,
                                         const struct hd_rpc_tls *tls);
void hd_rpc_server_tls_free(struct hd_rpc_server_tls *server); /* NULL: does nothing */
enum hd_status hd_rpc_load_client_tls(const struct hd_rpc_tls *tls,
                                      grpc_channel_credentials **ret_credentials);

#endif
