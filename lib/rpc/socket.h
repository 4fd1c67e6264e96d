/* socket: opens listening sockets, for gRPC's listeners and for those of HTTP.
 *
 * A Unix socket holds a lock on PATH.lock as long as it is open, so that two programs that start at
 * the same moment cannot take the socket file from each other. The lock file stays; the lock is
 * released when the process ends. With the lock held, a socket file on which no program listens was
 * left by a dead program, and is replaced.
 *
 * Used by: rpc, http.   Uses: base.   Threads: any. */
#ifndef HD_RPC_SOCKET_H
#define HD_RPC_SOCKET_H

#include <netdb.h>
#include <sys/types.h>

#include "rpc/address.h"

struct hd_unix_socket {
    int fd, lock_fd; /* descriptors of the socket and of its lock file; -1: none */
    char path[HD_RPC_UNIX_PATH_MAX + 1]; /* "": none */
    /* device and inode of the socket file, so that only this program's own file is unlinked */
    dev_t device;
    ino_t inode;
};

/* Opens a Unix socket and listens on it. Its file gets the mode, and the group if that is not
 * (gid_t)-1. hd_unix_socket_close also follows a failure. HD_CONFLICT: another program listens. */
enum hd_status hd_unix_socket_open(const char *path, mode_t mode, gid_t group, int backlog,
                                   struct hd_unix_socket *ret_socket);
void hd_unix_socket_close(struct hd_unix_socket *socket); /* removes its file */

/* Finds the addresses to listen at; the caller frees them by freeaddrinfo. HD_INVALID: no such
 * host. */
enum hd_status hd_tcp_find(const char *host, int port, struct addrinfo **ret_found);
/* Opens a listening socket at one address; after unsent_ms without an acknowledgement its
 * connections end. Returns 0, or the errno. */
int hd_tcp_listen(const struct addrinfo *at, unsigned unsent_ms, int backlog, int *ret_fd);
int hd_tcp_port(int fd); /* returns the port of a listening socket; 0: it has none */

#endif
