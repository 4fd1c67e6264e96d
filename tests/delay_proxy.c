#include "tests/delay_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CLIENT, SERVER, SIDES, CHUNK_BYTES = 64 * 1024 };

struct chunk { /* size_bytes 0: the end */
    struct chunk *next;
    uint64_t due_ms;
    uv_write_t write;
    size_t size_bytes;
    char bytes[];
};

union way {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
};

struct side { /* of a link; what it reads goes to the other side */
    struct link *link;
    union way way;
    uv_timer_t due;
    uv_shutdown_t shutdown;
    struct chunk *first, **last;
    bool connected, ended;
};

struct link {
    struct delay_proxy *proxy;
    struct link *next, **back;
    struct side sides[SIDES];
    uv_connect_t connect;
    uint64_t not_before_ms; /* no byte reaches the server before */
    int handles;
    bool closing;
};

struct delay_proxy {
    union way listener;
    struct sockaddr_in server;
    char *server_path; /* of a Unix socket; NULL: `server` */
    uint64_t round_trip_ms;
    struct link *links;
    int connections; /* so far */
    int cuts;        /* connections that are to be closed at once */
    bool closed;     /* the listener is */
};

static void must(int code, const char *what)
{
    if (!code)
        return;
    fprintf(stderr, "delay_proxy: %s: %s\n", what, uv_strerror(code));
    abort();
}

static struct side *other(struct side *side)
{
    return &side->link->sides[side == &side->link->sides[CLIENT] ? SERVER : CLIENT];
}

/* ---- the end of a link ---- */

static void free_if_unused(struct delay_proxy *proxy)
{
    if (!proxy->closed || proxy->links)
        return;
    free(proxy->server_path);
    free(proxy);
}

static void on_side_closed(uv_handle_t *handle)
{
    struct link *link = ((struct side *)handle->data)->link;
    struct delay_proxy *proxy = link->proxy;

    if (--link->handles)
        return;
    for (int i = 0; i < SIDES; i++)
        while (link->sides[i].first) {
            struct chunk *chunk = link->sides[i].first;

            link->sides[i].first = chunk->next;
            free(chunk);
        }
    *link->back = link->next;
    if (link->next)
        link->next->back = link->back;
    free(link);
    free_if_unused(proxy);
}

static void close_link(struct link *link)
{
    if (link->closing)
        return;
    link->closing = true;
    for (int i = 0; i < SIDES; i++) {
        uv_close(&link->sides[i].way.handle, on_side_closed);
        uv_close((uv_handle_t *)&link->sides[i].due, on_side_closed);
    }
}

/* ---- the way of bytes ---- */

static void send_due(uv_timer_t *due);

static void wait_for_first(struct side *side)
{
    const uint64_t now_ms = uv_now(side->due.loop);

    if (side->first && other(side)->connected && !side->link->closing)
        (void)uv_timer_start(&side->due, send_due,
                             side->first->due_ms > now_ms ? side->first->due_ms - now_ms : 0, 0);
}

static void on_written(uv_write_t *write, int status)
{
    struct side *side = write->data;

    free((char *)write - offsetof(struct chunk, write));
    if (status < 0)
        close_link(side->link);
}

static void on_shut(uv_shutdown_t *shutdown, int status)
{
    struct side *side = shutdown->data;

    side->ended = true;
    if (status < 0 || other(side)->ended)
        close_link(side->link);
}

static void send_due(uv_timer_t *due)
{
    struct side *side = due->data;
    uv_stream_t *to = &other(side)->way.stream;
    struct chunk *chunk;
    uv_buf_t buffer;
    int code = 0;

    while (!code && side->first && side->first->due_ms <= uv_now(due->loop)) {
        chunk = side->first;
        side->first = chunk->next;
        if (!side->first)
            side->last = &side->first;
        if (chunk->size_bytes) {
            chunk->write.data = side;
            buffer = uv_buf_init(chunk->bytes, (unsigned)chunk->size_bytes);
            code = uv_write(&chunk->write, to, &buffer, 1, on_written);
        } else {
            side->shutdown.data = side;
            code = uv_shutdown(&side->shutdown, to, on_shut);
        }
        if (code || !chunk->size_bytes)
            free(chunk);
    }
    if (code)
        close_link(side->link);
    else
        wait_for_first(side);
}

static void give_buffer(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buffer)
{
    struct chunk *chunk = calloc(1, sizeof *chunk + CHUNK_BYTES);

    must(chunk ? 0 : UV_ENOMEM, "a chunk");
    *ret_buffer = uv_buf_init(chunk->bytes, CHUNK_BYTES);
}

static void on_bytes(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer)
{
    struct chunk *chunk =
        buffer->base ? (struct chunk *)(buffer->base - offsetof(struct chunk, bytes)) : NULL;
    struct side *side = stream->data;
    struct link *link = side->link;
    uint64_t left_ms = uv_now(stream->loop);

    if (!chunk || count == 0 || (count < 0 && count != UV_EOF)) {
        free(chunk);
        if (count < 0)
            close_link(link);
        return;
    }
    if (side == &link->sides[CLIENT] && left_ms < link->not_before_ms)
        left_ms = link->not_before_ms;
    chunk->due_ms = left_ms + link->proxy->round_trip_ms / 2;
    chunk->size_bytes = count > 0 ? (size_t)count : 0;
    *side->last = chunk;
    side->last = &chunk->next;
    if (side->first == chunk)
        wait_for_first(side);
}

static void on_connected(uv_connect_t *connect, int status)
{
    struct link *link = connect->data;

    if (status < 0) {
        close_link(link);
        return;
    }
    link->sides[SERVER].connected = true;
    must(uv_read_start(&link->sides[SERVER].way.stream, give_buffer, on_bytes), "read");
    wait_for_first(&link->sides[CLIENT]);
}

static void init_way(uv_loop_t *loop, const struct delay_proxy *proxy, union way *way)
{
    must(proxy->server_path ? uv_pipe_init(loop, &way->pipe, 0) : uv_tcp_init(loop, &way->tcp),
         "socket");
}

static void on_client(uv_stream_t *listener, int status)
{
    struct delay_proxy *proxy = listener->data;
    struct link *link = calloc(1, sizeof *link);

    must(status, "listen");
    must(link ? 0 : UV_ENOMEM, "a link");
    link->proxy = proxy;
    link->next = proxy->links;
    link->back = &proxy->links;
    if (link->next)
        link->next->back = &link->next;
    proxy->links = link;
    proxy->connections++;
    link->handles = 2 * SIDES;
    link->not_before_ms = uv_now(listener->loop) + proxy->round_trip_ms;
    for (int i = 0; i < SIDES; i++) {
        struct side *side = &link->sides[i];

        side->link = link;
        side->last = &side->first;
        init_way(listener->loop, proxy, &side->way);
        must(uv_timer_init(listener->loop, &side->due), "timer");
        side->way.handle.data = side->due.data = side;
    }
    must(uv_accept(listener, &link->sides[CLIENT].way.stream), "accept");
    link->sides[CLIENT].connected = true;
    must(uv_read_start(&link->sides[CLIENT].way.stream, give_buffer, on_bytes), "read");
    if (proxy->cuts > 0) {
        proxy->cuts--;
        close_link(link);
        return;
    }
    link->connect.data = link;
    if (proxy->server_path)
        uv_pipe_connect(&link->connect, &link->sides[SERVER].way.pipe, proxy->server_path,
                        on_connected);
    else
        must(uv_tcp_connect(&link->connect, &link->sides[SERVER].way.tcp,
                            (const struct sockaddr *)&proxy->server, on_connected),
             "connect");
}

/* ---- opening and closing ---- */

/* server_path NULL: TCP. */
static struct delay_proxy *new_proxy(uv_loop_t *loop, const char *server_path,
                                     int64_t round_trip_ms)
{
    struct delay_proxy *proxy = calloc(1, sizeof *proxy);

    (void)signal(SIGPIPE, SIG_IGN); /* libuv writes to an end that has just closed */
    must(proxy ? 0 : UV_ENOMEM, "a proxy");
    proxy->round_trip_ms = (uint64_t)round_trip_ms;
    proxy->server_path = server_path ? strdup(server_path) : NULL;
    init_way(loop, proxy, &proxy->listener);
    proxy->listener.handle.data = proxy;
    return proxy;
}

struct delay_proxy *delay_proxy_open(uv_loop_t *loop, int server_port, int64_t round_trip_ms,
                                     int *ret_port)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct delay_proxy *proxy = new_proxy(loop, NULL, round_trip_ms);
    int own_bytes = sizeof own;

    proxy->server = own;
    proxy->server.sin_port = htons((uint16_t)server_port);
    must(uv_tcp_bind(&proxy->listener.tcp, (struct sockaddr *)&own, 0), "bind");
    must(uv_listen(&proxy->listener.stream, 16, on_client), "listen");
    must(uv_tcp_getsockname(&proxy->listener.tcp, (struct sockaddr *)&own, &own_bytes), "port");
    *ret_port = ntohs(own.sin_port);
    return proxy;
}

struct delay_proxy *delay_proxy_open_unix(uv_loop_t *loop, const char *path,
                                          const char *server_path, int64_t round_trip_ms)
{
    struct delay_proxy *proxy = new_proxy(loop, server_path, round_trip_ms);

    (void)unlink(path);
    must(uv_pipe_bind(&proxy->listener.pipe, path), "bind");
    must(uv_listen(&proxy->listener.stream, 16, on_client), "listen");
    return proxy;
}

void delay_proxy_cut(struct delay_proxy *proxy, int count)
{
    proxy->cuts = count;
}

int delay_proxy_connections(const struct delay_proxy *proxy)
{
    return proxy->connections;
}

static void on_listener_closed(uv_handle_t *listener)
{
    struct delay_proxy *proxy = listener->data;

    proxy->closed = true;
    free_if_unused(proxy);
}

void delay_proxy_close(struct delay_proxy *proxy)
{
    for (struct link *link = proxy->links; link; link = link->next)
        close_link(link);
    uv_close(&proxy->listener.handle, on_listener_closed);
}
