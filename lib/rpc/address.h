/* address: parses and formats the addresses `unix:PATH` and `HOST:PORT`.
 *
 * Used by: the files of rpc.   Uses: base.   Threads: any. */
#ifndef HD_RPC_ADDRESS_H
#define HD_RPC_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/status.h"

enum {
    /* limit of bytes in the path of a Unix socket: 107 */
    HD_RPC_UNIX_PATH_MAX = sizeof(((struct sockaddr_un *)0)->sun_path) - 1,
    HD_RPC_HOST_MAX = 255,
    HD_RPC_ADDRESS_MAX = HD_RPC_HOST_MAX + 16,
};

struct hd_rpc_address {
    bool is_unix;
    char path[HD_RPC_UNIX_PATH_MAX + 1]; /* path of a Unix socket; "": HOST:PORT */
    char host[HD_RPC_HOST_MAX + 1];      /* IPv6 address without brackets */
    int port;                            /* TCP port, 0 .. 65535; 0: the system chooses */
    bool is_loopback;                    /* true for unix, localhost, 127.0.0.0/8 and ::1 */
};

/* Parses an address. HD_INVALID: `text` is no address. */
enum hd_status hd_rpc_parse_address(const char *text, struct hd_rpc_address *ret_address);

/* limit of the bytes of a target string of gRPC's client: HOST:PORT, or a percent-encoded unix: URI
 */
enum { HD_RPC_TARGET_MAX = 3 * HD_RPC_UNIX_PATH_MAX + HD_RPC_ADDRESS_MAX };
void hd_rpc_format_target(const struct hd_rpc_address *address, char ret_target[HD_RPC_TARGET_MAX]);
/* Writes HOST:PORT with the address's host and port; an IPv6 address gets brackets. */
void hd_rpc_format_host_port(const struct hd_rpc_address *address,
                             char ret_text[HD_RPC_ADDRESS_MAX + 1]);

/* Resolves the socket address to connect to. A wildcard host becomes loopback. Resolving a name
 * blocks. HD_UNAVAILABLE: the name cannot be resolved. */
enum hd_status hd_rpc_resolve(const struct hd_rpc_address *address,
                              struct sockaddr_storage *ret_peer, socklen_t *ret_peer_bytes);

#endif
