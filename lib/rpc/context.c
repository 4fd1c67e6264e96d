/* context: the completion thread, and delivery of its events on the loop. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <grpc/support/log.h>
#include <grpc/support/time.h>

#include "base/clock.h"
#include "base/log.h"
#include "rpc/rpc_internal.h"
#include "rpc/server_internal.h"

enum { CAPACITY_START = 256, LOG_INTERVAL_MS = 1000 };

/* Logs gRPC's own messages. gRPC writes a line per failed handshake or accept, from any of its
 * threads; at most one per second is logged, so that port scanners do not fill the journal. Failed
 * assertions are always logged. */
static void log_grpc(gpr_log_func_args *args)
{
    /* time of the next line that may be logged; one per process, like gRPC's log function */
    static _Atomic int64_t next_ms;
    int64_t now_ms = hd_clock_now_ms(), due_ms = atomic_load(&next_ms);

    if (args->severity < GPR_LOG_SEVERITY_ERROR)
        hd_log(HD_LOG_DEBUG, "gRPC: %s", args->message);
    else if (strstr(args->message, "assertion failed") ||
             (now_ms >= due_ms &&
              atomic_compare_exchange_strong(&next_ms, &due_ms, now_ms + LOG_INTERVAL_MS)))
        hd_log(HD_LOG_WARN, "gRPC: %s", args->message);
}

static void complete(void *arg)
{
    struct hd_rpc *rpc = arg;
    bool ended = false;

    while (!ended) {
        grpc_event event =
            grpc_completion_queue_next(rpc->cq, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);

        ended = event.type == GRPC_QUEUE_SHUTDOWN;
        uv_mutex_lock(&rpc->mutex);
        if (ended)
            rpc->queue_ended = true;
        else
            rpc->incoming[rpc->incoming_count++] =
                (struct hd_rpc_event){event.tag, event.success != 0};
        uv_mutex_unlock(&rpc->mutex);
        (void)uv_async_send(&rpc->async);
    }
}

static void on_async_closed(uv_handle_t *handle)
{
    struct hd_rpc *rpc = handle->data;
    void (*on_closed)(void *user) = rpc->on_closed;
    void *user = rpc->on_closed_user;

    uv_mutex_destroy(&rpc->mutex);
    free(rpc->incoming);
    free(rpc->current);
    free(rpc);
    if (on_closed)
        on_closed(user);
}

static void stop_queue_when_idle(struct hd_rpc *rpc)
{
    if (!rpc->closing || rpc->live || rpc->expected || rpc->queue_down)
        return;
    rpc->queue_down = true;
    grpc_completion_queue_shutdown(rpc->cq);
}

static void on_async(uv_async_t *async)
{
    struct hd_rpc *rpc = async->data;
    struct hd_rpc_event *batch;
    size_t count;
    bool ended;

    uv_mutex_lock(&rpc->mutex);
    batch = rpc->current;
    rpc->current = rpc->incoming;
    rpc->incoming = batch;
    count = rpc->incoming_count;
    rpc->incoming_count = 0;
    ended = rpc->queue_ended;
    uv_mutex_unlock(&rpc->mutex);

    for (size_t i = 0; i < count; i++) { /* a callback may reallocate `current` (hd_rpc_expect) */
        struct hd_rpc_event event = rpc->current[i];

        rpc->expected--;
        event.op->fn(event.op, event.ok);
    }
    if (ended) {
        uv_thread_join(&rpc->thread);
        grpc_completion_queue_destroy(rpc->cq);
        uv_close((uv_handle_t *)&rpc->async, on_async_closed);
        return;
    }
    stop_queue_when_idle(rpc);
}

static enum hd_status grow(struct hd_rpc *rpc, size_t capacity)
{
    struct hd_rpc_event *incoming, *current;

    current = realloc(rpc->current, capacity * sizeof *current);
    if (!current)
        return hd_err(HD_NO_MEMORY, "no memory for %zu calls in flight", capacity);
    rpc->current = current;
    uv_mutex_lock(&rpc->mutex);
    incoming = realloc(rpc->incoming, capacity * sizeof *incoming);
    if (incoming)
        rpc->incoming = incoming;
    uv_mutex_unlock(&rpc->mutex);
    if (!incoming)
        return hd_err(HD_NO_MEMORY, "no memory for %zu calls in flight", capacity);
    rpc->capacity = capacity;
    return HD_OK;
}

enum hd_status hd_rpc_expect(struct hd_rpc *rpc)
{
    enum hd_status st;

    if (rpc->expected == rpc->capacity) {
        st = grow(rpc, rpc->capacity * 2);
        if (st)
            return st;
    }
    rpc->expected++;
    return HD_OK;
}

void hd_rpc_expect_cancel(struct hd_rpc *rpc)
{
    rpc->expected--;
}

enum hd_status hd_rpc_post(struct hd_rpc *rpc, struct hd_rpc_op *op)
{
    enum hd_status st = hd_rpc_expect(rpc);

    if (st)
        return st;
    uv_mutex_lock(&rpc->mutex);
    rpc->incoming[rpc->incoming_count++] = (struct hd_rpc_event){op, true};
    uv_mutex_unlock(&rpc->mutex);
    (void)uv_async_send(&rpc->async);
    return HD_OK;
}

void hd_rpc_live_drop(struct hd_rpc *rpc)
{
    rpc->live--;
    if (rpc->closing)
        (void)uv_async_send(&rpc->async); /* on_async checks whether this was the last event */
}

/* gRPC is never shut down: after a large write, grpc_shutdown waits up to 10 s for one of its own
 * pollers, which would delay the end of a command. gRPC's threads and tables stay until the process
 * ends; contexts leave nothing in them. */
/* Makes gRPC refuse TLS older than 1.3, which its C API cannot. Its list of ciphers applies to TLS
 * 1.2 alone. The ones set here need a pre-shared key, which gRPC never has, so every handshake of
 * TLS 1.2 fails. */
static void require_tls_1_3(void)
{
    (void)setenv("GRPC_SSL_CIPHER_SUITES", "PSK-AES256-GCM-SHA384", 1);
}

static void init_grpc(void)
{
    require_tls_1_3();
    gpr_set_log_function(log_grpc);
    if (!getenv("GRPC_VERBOSITY"))
        gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
    grpc_init();
}

enum hd_status hd_rpc_new(uv_loop_t *loop, struct hd_rpc **ret_rpc)
{
    struct hd_rpc *rpc = calloc(1, sizeof *rpc);
    int code;

    if (!rpc)
        return hd_err(HD_NO_MEMORY, "no memory for the RPC context");
    rpc->loop = loop;
    rpc->capacity = CAPACITY_START;
    rpc->incoming = calloc(rpc->capacity, sizeof *rpc->incoming);
    rpc->current = calloc(rpc->capacity, sizeof *rpc->current);
    code = rpc->incoming && rpc->current ? uv_mutex_init(&rpc->mutex) : UV_ENOMEM;
    if (code)
        goto no_mutex;
    init_grpc();
    rpc->cq = grpc_completion_queue_create_for_next(NULL);
    code = uv_async_init(loop, &rpc->async, on_async);
    if (code)
        goto no_async;
    rpc->async.data = rpc;
    code = uv_thread_create(&rpc->thread, complete, rpc);
    if (code) {
        grpc_completion_queue_shutdown(rpc->cq);
        grpc_completion_queue_destroy(rpc->cq);
        uv_close((uv_handle_t *)&rpc->async, on_async_closed); /* on_async_closed frees the rest */
        return hd_err(HD_NO_MEMORY, "cannot start the RPC thread: %s", uv_strerror(code));
    }
    *ret_rpc = rpc;
    return HD_OK;

no_async:
    grpc_completion_queue_shutdown(rpc->cq);
    grpc_completion_queue_destroy(rpc->cq);
    uv_mutex_destroy(&rpc->mutex);
no_mutex:
    free(rpc->incoming);
    free(rpc->current);
    free(rpc);
    return hd_err(HD_NO_MEMORY, "cannot start the RPC context: %s", uv_strerror(code));
}

void hd_rpc_close(struct hd_rpc *rpc, void (*on_closed)(void *user), void *user)
{
    struct hd_rpc_server *next_server;

    rpc->closing = true;
    rpc->on_closed = on_closed;
    rpc->on_closed_user = user;
    for (struct hd_rpc_server *s = rpc->servers; s; s = next_server) {
        next_server = s->next;
        hd_rpc_server_stop(s);
    }
    while (rpc->clients)
        hd_rpc_client_close(rpc->clients);
    (void)uv_async_send(&rpc->async); /* on_async ends the context if live is already 0 */
}

enum hd_status hd_rpc_raise_file_limit(uint64_t needed)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return hd_err(HD_INTERNAL, "cannot read the limit of open files: %m");
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
            return hd_err(HD_INTERNAL, "cannot raise the limit of open files: %m");
    }
    if (limit.rlim_cur < needed)
        return hd_err(
            HD_LIMIT,
            "%llu open files may be needed, the hard limit is %llu; raise it (ulimit -Hn, "
            "or LimitNOFILE= in the systemd unit)",
            (unsigned long long)needed, (unsigned long long)limit.rlim_cur);
    return HD_OK;
}
