#include "daemon/agent/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc/address.h"

enum { ANY_PORT = 9 }; /* port for a datagram socket that is connected but sends nothing */

static socklen_t read_numeric(const char *text, struct sockaddr_storage *ret_address)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)ret_address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)ret_address;

    memset(ret_address, 0, sizeof *ret_address);
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        return sizeof *v4;
    }
    if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        return sizeof *v6;
    }
    return 0;
}

static bool is_wildcard(const char *text)
{
    return strcmp(text, "0.0.0.0") == 0 || strcmp(text, "::") == 0;
}

enum hd_status agent_address_check(const char *given)
{
    struct sockaddr_storage address;
    socklen_t size = read_numeric(given, &address);
    enum hd_status st = HD_OK;
    int fd;

    if (!size || is_wildcard(given) || strlen(given) >= AGENT_ADDRESS_MAX)
        return hd_err(HD_INVALID,
                      "%s: give one numeric address of this machine, as other nodes "
                      "reach it, e.g. 10.0.0.3",
                      given);
    fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* A listener must be able to bind to the address, on any free port. */
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) < 0)
        st = hd_err(HD_INVALID, "%s: ranks cannot listen there: %s", given, strerror(errno));
    if (fd >= 0)
        (void)close(fd);
    return st;
}

/* Finds the source address that the kernel would use towards `peer`. */
static enum hd_status find_source(const struct sockaddr_storage *peer, socklen_t peer_bytes,
                                  char ret_address[AGENT_ADDRESS_MAX])
{
    struct sockaddr_storage self;
    socklen_t size = sizeof self;
    const void *bytes;
    enum hd_status st = HD_OK;
    int fd = socket(peer->ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, (const struct sockaddr *)peer, peer_bytes) < 0 ||
        getsockname(fd, (struct sockaddr *)&self, &size) < 0) {
        st = hd_err(HD_UNAVAILABLE, "no route to the controller: %s", strerror(errno));
    } else {
        bytes = self.ss_family == AF_INET
                    ? (const void *)&((struct sockaddr_in *)(void *)&self)->sin_addr
                    : (const void *)&((struct sockaddr_in6 *)(void *)&self)->sin6_addr;
        if (!inet_ntop(self.ss_family, bytes, ret_address, AGENT_ADDRESS_MAX))
            st = hd_err(HD_INTERNAL, "cannot write an address: %s", strerror(errno));
    }
    if (fd >= 0)
        (void)close(fd);
    return st;
}

enum hd_status agent_address_find(const char *controller, char ret_address[AGENT_ADDRESS_MAX])
{
    struct hd_rpc_address address;
    struct sockaddr_storage peer;
    socklen_t peer_bytes;
    enum hd_status st = hd_rpc_parse_address(controller, &address);

    if (st)
        return st;
    if (address.is_loopback) {
        (void)snprintf(ret_address, AGENT_ADDRESS_MAX, "127.0.0.1");
        return HD_OK;
    }
    address.port = address.port ? address.port : ANY_PORT;
    st = hd_rpc_resolve(&address, &peer, &peer_bytes);
    return st ? st : find_source(&peer, peer_bytes, ret_address);
}
