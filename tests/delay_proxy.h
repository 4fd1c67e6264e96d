/* delay_proxy: a long way between a client and a server of this machine.
 *
 * Connections to the proxy are passed on to the server; every byte, and the end of the
 * bytes, arrives half a round trip later, in either direction. The kernel answers a connect to the
 * proxy at once, which a far server would not: therefore the client's first bytes wait for a round
 * trip more. From the first proxy on the process ignores SIGPIPE.
 *
 * Used by: tests.   Uses: libuv.   Threads: the loop's.
 */
#ifndef HD_TESTS_DELAY_PROXY_H
#define HD_TESTS_DELAY_PROXY_H

#include <stdint.h>

#include <uv.h>

struct delay_proxy;

/* Listens on 127.0.0.1:*ret_port, for a server on 127.0.0.1. A failure ends the program. */
struct delay_proxy *delay_proxy_open(uv_loop_t *loop, int server_port, int64_t round_trip_ms,
                                     int *ret_port);
/* Connects likewise between two Unix sockets; replaces the file `path`. */
struct delay_proxy *delay_proxy_open_unix(uv_loop_t *loop, const char *path,
                                          const char *server_path, int64_t round_trip_ms);

/* Closes the next `count` connections as soon as they come. */
void delay_proxy_cut(struct delay_proxy *proxy, int count);

/* How many connections have come so far. */
int delay_proxy_connections(const struct delay_proxy *proxy);

/* Cuts all connections; the loop must run until the handles are closed, which frees the proxy. */
void delay_proxy_close(struct delay_proxy *proxy);

#endif
