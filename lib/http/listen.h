/* listen: the listening socket of an HTTP listener. Only for lib/http. */
#ifndef HD_HTTP_LISTEN_H
#define HD_HTTP_LISTEN_H

#include <sys/types.h>

#include "base/status.h"
#include "http/check.h"

struct hd_http_listener {
    int fd, lock_fd; /* descriptors of the socket and of its lock file; -1: none */
    int port;        /* TCP port; 0: a Unix socket */
    char path[108];  /* path of a Unix socket; "": TCP */
    dev_t device;    /* device and inode of the socket file */
    ino_t inode;
};

/* Opens the listening socket, and adds the host in HOST:PORT and this machine's name to `names`.
 * HD_CONFLICT: another program listens at the address. */
enum hd_status hd_http_listen(const char *address, struct hd_http_listener *ret_listener,
                              struct hd_http_names *names);
/* closes the socket and removes its file */
void hd_http_unlisten(struct hd_http_listener *listener);

#endif
