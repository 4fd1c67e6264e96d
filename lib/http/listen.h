/* listen: the listening socket of an HTTP listener. Only for lib/http. */
#ifndef HD_HTTP_LISTEN_H
#define HD_HTTP_LISTEN_H

#include "base/status.h"
#include "http/check.h"
#include "rpc/socket.h"

struct hd_http_listener {
    struct hd_unix_socket socket; /* with an empty path: a TCP socket */
    int port;                     /* TCP port; 0: a Unix socket */
};

/* Opens the listening socket, and adds the host in HOST:PORT and this machine's name to `names`.
 * HD_CONFLICT: another program listens at the address. */
enum hd_status hd_http_listen(const char *address, struct hd_http_listener *ret_listener,
                              struct hd_http_names *names);
/* closes the socket and removes its file */
void hd_http_unlisten(struct hd_http_listener *listener);

#endif
