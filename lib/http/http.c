/* http: opens and closes the listener. */
#include "http/http_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static enum hd_status start_daemon(struct hd_http *http)
{
    const struct hd_http_options *o = &http->options;
    const unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL |
                           MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | MHD_USE_NO_LISTEN_SOCKET |
                           MHD_USE_ITC | (http->tls ? MHD_USE_TLS : 0);
    const struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_CERT_CALLBACK2, 0, (void *)(uintptr_t)http_give_certificate},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t) "NORMAL:-VERS-ALL:+VERS-TLS1.3"},
        {MHD_OPTION_END, 0, NULL}};

    http->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, http_on_access, http, MHD_OPTION_EXTERNAL_LOGGER, http_drop_log, NULL,
        MHD_OPTION_NOTIFY_COMPLETED, http_on_completed, http, MHD_OPTION_NOTIFY_CONNECTION,
        http_on_connection, http, MHD_OPTION_URI_LOG_CALLBACK, http_on_target, http,
        MHD_OPTION_UNESCAPE_CALLBACK, http_keep_codes, NULL, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)((1 + INSIDE) * o->connections_max) + REFUSALS + ENDING,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)((o->head_ms + 999) / 1000),
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_STRICT_FOR_CLIENT,
        1, http->tls ? MHD_OPTION_ARRAY : MHD_OPTION_END, tls, MHD_OPTION_END);
    return http->daemon ? HD_OK : hd_err(HD_IO, "cannot open the HTTP listener %s", o->address);
}

static enum hd_status check_options(const struct hd_http_options *o)
{
    enum hd_status st = hd_rpc_check_address(o->address);

    if (st)
        return hd_err_prefix(st, "HTTP listener");
    if (!o->cert_path != !o->key_path)
        return hd_err(HD_INVALID, "TLS needs a certificate and its key, or neither");
    if (hd_rpc_address_is_loopback(o->address))
        return HD_OK;
    if (!o->cert_path || !o->asks_tokens)
        return hd_err(HD_DENIED,
                      "an HTTP listener at %s can be reached from other machines: it needs %s; or "
                      "listen on 127.0.0.1 or unix:PATH",
                      o->address,
                      !o->cert_path ? "a certificate and its key (TLS)" : "tokens for its callers");
    if (o->host_count > HD_HTTP_NAMES_MAX - 2)
        return hd_err(HD_LIMIT, "more than %d names of the HTTP listener", HD_HTTP_NAMES_MAX - 2);
    return HD_OK;
}

static enum hd_status take_names(struct hd_http *http)
{
    const struct hd_http_options *o = &http->options;

    for (size_t i = 0; i < o->host_count; i++) {
        const size_t length = strlen(o->hosts[i]);

        if (length == 0 || length > HD_HTTP_NAME_MAX || i == HD_HTTP_NAMES_MAX - 2)
            return hd_err(HD_INVALID, "\"%.100s\" is no name of a host, or there are too many",
                          o->hosts[i]);
        memcpy(http->names.name[http->names.count++], o->hosts[i], length + 1);
    }
    return HD_OK;
}

static void set_defaults(struct hd_http_options *o)
{
    o->connections_max = o->connections_max ? o->connections_max : CONNECTIONS_DEFAULT;
    o->head_ms = o->head_ms ? o->head_ms : HEAD_MS_DEFAULT;
    o->body_ms = o->body_ms ? o->body_ms : BODY_MS_DEFAULT;
    o->reply_ms = o->reply_ms ? o->reply_ms : REPLY_MS_DEFAULT;
    o->stream_bytes_max = o->stream_bytes_max ? o->stream_bytes_max : STREAM_BYTES_DEFAULT;
}

static enum hd_status open_certificate(struct hd_http *http)
{
    enum hd_status st = hd_http_certificate_init(&http->certificate);

    if (st)
        return st;
    st = hd_http_certificate_read(&http->certificate, http->options.cert_path,
                                  http->options.key_path);
    if (st)
        hd_http_certificate_done(&http->certificate);
    return st;
}

enum hd_status hd_http_set_tls(struct hd_http *http, const char *cert_path, const char *key_path)
{
    return http->tls ? hd_http_certificate_read(&http->certificate, cert_path, key_path) : HD_OK;
}

enum hd_status hd_http_new(uv_loop_t *loop, const struct hd_http_options *options,
                           struct hd_http **ret_http)
{
    struct hd_http *http;
    enum hd_status st = check_options(options);

    if (st)
        return st;
    http = calloc(1, sizeof *http);
    if (!http)
        return hd_err(HD_NO_MEMORY, "no memory for an HTTP listener");
    http->loop = loop;
    http->options = *options;
    http->arrived_end = &http->arrived;
    http->tls = options->cert_path && !hd_rpc_address_is_unix(options->address);
    set_defaults(&http->options);
    st = take_names(http);
    if (!st && http->tls)
        st = open_certificate(http);
    if (!st)
        st = hd_http_listen(options->address, &http->listener, &http->names);
    if (st) {
        if (http->certificate.chain.data)
            hd_http_certificate_done(&http->certificate);
        free(http);
        return st;
    }
    if (uv_mutex_init(&http->lock) || uv_async_init(loop, &http->async, http_on_wake)) {
        hd_http_unlisten(&http->listener);
        if (http->tls)
            hd_http_certificate_done(&http->certificate);
        free(http);
        return hd_err(HD_LIMIT, "no file descriptor for an HTTP listener");
    }
    http->async.data = http->check.data = http;
    st = start_daemon(http);
    if (!st)
        st = http_accept_start(http);
    if (st) {
        struct hd_error error;

        hd_err_save(st, &error);
        hd_http_close(http, NULL, NULL);
        return hd_err_restore(&error);
    }
    (void)uv_timer_init(loop, &http->check);
    (void)uv_timer_start(&http->check, http_check_clients, CHECK_MS, CHECK_MS);
    *ret_http = http;
    return HD_OK;
}

int hd_http_port(const struct hd_http *http)
{
    return http->listener.port;
}

void hd_http_get_stats(struct hd_http *http, struct hd_http_stats *ret_stats)
{
    uv_mutex_lock(&http->lock);
    *ret_stats = http->stats;
    uv_mutex_unlock(&http->lock);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct hd_http *http = handle->data;
    void (*on_closed)(void *user) = http->on_closed;
    void *user = http->closed_user;

    if (--http->open_handles)
        return;
    http->closed = true; /* no lock needed: the listener's thread has ended */
    if (!http->all)
        http_free(http);
    if (on_closed)
        on_closed(user);
}

/* Resumes all suspended connections, because libmicrohttpd stops only when none is suspended. */
static void end_requests(struct hd_http *http)
{
    uv_mutex_lock(&http->lock);
    http->closing = true;
    for (struct hd_http_request *r = http->all; r; r = r->all_next)
        if (!r->completed)
            http_request_resume(r); /* without a reply its connection is closed */
    uv_mutex_unlock(&http->lock);
    if (http->daemon)
        MHD_stop_daemon(http->daemon); /* waits until the listener's thread has ended */
    while (http->arrived) {            /* requests for which on_request was not called */
        struct hd_http_request *r = http->arrived;

        http->arrived = r->next;
        http_request_let_go(r, false);
    }
}

void hd_http_close(struct hd_http *http, void (*on_closed)(void *user), void *user)
{
    if (!http) {
        if (on_closed)
            on_closed(user);
        return;
    }
    http->on_closed = on_closed;
    http->closed_user = user;
    http->open_handles = 1 + (http->check.loop != NULL);
    http->open_handles += http_accept_stop(http, on_handle_closed);
    end_requests(http);
    hd_http_unlisten(&http->listener);
    uv_close((uv_handle_t *)&http->async, on_handle_closed);
    if (http->check.loop)
        uv_close((uv_handle_t *)&http->check, on_handle_closed);
}
