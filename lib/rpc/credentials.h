/* credentials: tokens and certificates, read from files and compared.
 *
 * Used by: the files of rpc.   Uses: base, gRPC.   Threads: any. */
#ifndef HD_RPC_CREDENTIALS_H
#define HD_RPC_CREDENTIALS_H

#include <stdbool.h>

#include <grpc/grpc_security.h>

#include "rpc/rpc.h"

enum hd_status hd_rpc_check_token(const char *token); /* HD_INVALID: length, or not ASCII */
/* Compares in constant time. `expected` is padded with zeros. */
bool hd_rpc_token_equals(const char expected[HD_RPC_TOKEN_MAX + 1], const char *given);

enum hd_status hd_rpc_load_server_tls(const struct hd_rpc_tls *tls,
                                      grpc_server_credentials **ret_credentials);
enum hd_status hd_rpc_load_client_tls(const struct hd_rpc_tls *tls,
                                      grpc_channel_credentials **ret_credentials);

#endif
