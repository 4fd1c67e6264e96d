#include "serve/serve.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

enum { CHECK_MS = 100, QUIET_MS = 5000 };

/* ---- requests ---- */

static enum hd_status authorize(void *user, const struct hd_http_caller *caller)
{
    const struct serve *s = user;

    if (!s->options.token_file || caller->is_unix)
        return HD_OK;
    if (caller->token && hd_rpc_tokens_find(&s->tokens, caller->token))
        return HD_OK;
    return hd_err(HD_DENIED, "a token is needed (Authorization: Bearer TOKEN), one of the server's "
                             "--tokens");
}

static bool is_guarded(void *user, const char *path)
{
    (void)user;
    return strcmp(path, "/health") != 0;
}

static void reply(struct hd_http_request *request, struct hd_text *text)
{
    hd_text_add(text, "\n");
    hd_http_reply(request, 200, "application/json", text);
}

static void wrong_method(struct hd_http_request *request)
{
    hd_http_fail_as(request, 405,
                    hd_err(HD_INVALID, "%s takes %s", hd_http_path(request),
                           hd_http_is_post(request) ? "GET" : "POST with a body of JSON"));
}

static void answer_model(const struct serve *s, struct hd_http_request *request, const char *name)
{
    struct hd_text text = {0};

    if (name && strcmp(name, s->options.name) != 0) {
        hd_http_fail(request, hd_err(HD_NOT_FOUND,
                                     "there is no model \"%.100s\"; this server has "
                                     "\"%s\"",
                                     name, s->options.name));
        return;
    }
    serve_write_models(s, &text, name != NULL);
    reply(request, &text);
}

/* Adds the state of the server as JSON, with the drafts if it has any (--draft). */
static void add_health(const struct serve *s, struct hd_text *text)
{
    const struct hd_draft_counts c = serve_work_drafts(s->work);

    hd_text_add(text, "{\"status\":\"%s\",\"choices\":%lld", s->stopping ? "stopping" : "ok",
                (long long)s->choices);
    if (s->options.work.decoder.drafts)
        hd_text_add(text, ",\"drafted\":%lld,\"drafts_kept\":%lld", (long long)c.drafted,
                    (long long)c.accepted);
    hd_text_add(text, "}");
}

static void on_request(void *user, struct hd_http_request *request)
{
    static const char models[] = "/v1/models/";
    static const struct {
        const char *path;
        enum hd_ask_kind kind;
    } posts[] = {{"/v1/completions", HD_ASK_COMPLETION}, {"/v1/chat/completions", HD_ASK_CHAT}};
    struct serve *s = user;
    const char *path = hd_http_path(request);
    const bool is_model = strncmp(path, models, sizeof models - 1) == 0;
    struct hd_text text = {0};

    for (size_t i = 0; i < sizeof posts / sizeof posts[0]; i++)
        if (strcmp(path, posts[i].path) == 0) {
            if (hd_http_is_post(request))
                serve_call_begin(s, request, posts[i].kind);
            else
                wrong_method(request);
            return;
        }
    if (!is_model && strcmp(path, "/v1/models") != 0 && strcmp(path, "/health") != 0) {
        hd_http_fail(request, hd_err(HD_NOT_FOUND,
                                     "there is no %.100s; there are /v1/completions, "
                                     "/v1/chat/completions, /v1/models and /health",
                                     path));
    } else if (hd_http_is_post(request)) {
        wrong_method(request);
    } else if (strcmp(path, "/health") == 0) {
        add_health(s, &text);
        reply(request, &text);
    } else {
        answer_model(s, request, is_model ? path + sizeof models - 1 : NULL);
    }
}

/* ---- the end ---- */

static void on_work_closed(void *user)
{
    struct serve *s = user;

    s->closed = true;
}

/* Returns whether no call runs and all answers are sent. Answers that clients have not read after
 * QUIET_MS or the grace period are given up. */
static bool is_quiet(struct serve *s, int64_t now_ms)
{
    struct hd_http_stats stats;

    if (s->calls)
        return false;
    if (!s->quiet_ms)
        s->quiet_ms = now_ms;
    hd_http_get_stats(s->http, &stats);
    return !stats.connections || now_ms - s->quiet_ms >= QUIET_MS || now_ms >= s->stop_ms;
}

static void log_drafts(const struct serve *s)
{
    const struct hd_draft_counts c = serve_work_drafts(s->work);

    if (c.drafted)
        hd_log(HD_LOG_INFO, "%lld of %lld drafts kept (%.1f %%)", (long long)c.accepted,
               (long long)c.drafted, 100 * (double)c.accepted / (double)c.drafted);
}

/* Closes all libuv handles, so that the loop ends. */
static void close_all(struct serve *s)
{
    log_drafts(s);
    uv_close((uv_handle_t *)&s->timer, NULL);
    for (int i = 0; i < SERVE_SIGNALS; i++)
        uv_close((uv_handle_t *)&s->signals[i], NULL);
    hd_http_close(s->http, NULL, NULL);
    s->http = NULL;
}

static void on_timer(uv_timer_t *timer)
{
    struct serve *s = timer->data;
    const int64_t now_ms = hd_clock_now_ms();

    if (!s->stopping && serve_work_failure(s->work)) {
        /* the model cannot compute any more: stops, so that a supervisor may restart the program */
        hd_log(HD_LOG_ERROR, "stopping: the model can no longer compute");
        s->stopping = true;
        s->stop_ms = now_ms + s->options.grace_ms;
    }
    serve_calls_end(s, now_ms, s->stopping && now_ms >= s->stop_ms);
    if (s->stopping && is_quiet(s, now_ms))
        close_all(s);
}

/* ---- signals ---- */

static enum hd_status read_tokens_again(struct serve *s)
{
    struct hd_rpc_tokens tokens = {0};
    enum hd_status st = HD_OK;

    if (!s->options.token_file)
        return HD_OK;
    st = hd_rpc_tokens_read(&tokens, s->options.token_file, NULL, HD_RPC_PARTY_USER);
    if (!st) {
        const struct hd_rpc_tokens before = s->tokens;

        s->tokens = tokens;
        tokens = before;
    }
    hd_rpc_tokens_done(&tokens);
    return st;
}

/* Reads certificate and tokens again, each even if the other fails. What cannot be read keeps its
 * previous value. */
static void reload(struct serve *s)
{
    const struct hd_http_options *o = &s->options.http;
    const bool shown = hd_http_set_tls(s->http, o->cert_path, o->key_path) == HD_OK;

    if (!shown)
        hd_log(HD_LOG_WARN, "reload: %s; keeping the previous certificate", hd_err_message());
    if (read_tokens_again(s))
        hd_log(HD_LOG_WARN, "reload: %s; keeping the previous tokens", hd_err_message());
    else if (s->options.token_file)
        hd_log(HD_LOG_INFO, "reload: tokens read again from the file");
    if (shown && o->cert_path)
        hd_log(HD_LOG_INFO, "reload: certificate read again from the file");
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct serve *s = handle->data;

    if (number == SIGHUP) {
        if (!s->stopping)
            reload(s);
        return;
    }
    if (s->stopping) { /* second signal: ends the grace period at once */
        s->stop_ms = 0;
        return;
    }
    s->stopping = true;
    s->stop_ms = hd_clock_now_ms() + s->options.grace_ms;
    hd_log(HD_LOG_INFO, "%s: stopping; %lld choices wait or run", strsignal(number),
           (long long)s->choices);
}

/* ---- the beginning ---- */

static enum hd_status open_listener(struct serve *s)
{
    struct hd_http_options *o = &s->options.http;
    enum hd_status st = HD_OK;

    if (s->options.token_file)
        st = hd_rpc_tokens_read(&s->tokens, s->options.token_file, NULL, HD_RPC_PARTY_USER);
    if (st)
        return st;
    o->asks_tokens = s->options.token_file != NULL;
    o->authorize = authorize;
    o->guarded = is_guarded;
    o->on_request = on_request;
    o->write_failure = serve_write_failure;
    o->user = s;
    return hd_http_new(&s->loop, o, &s->http);
}

static void choose_name(struct serve *s)
{
    const struct hd_decoder *decoder = serve_work_decoder(s->work);
    const char *dir = s->options.work.decoder.dirs.dir, *begin = dir;
    size_t length = strlen(dir);

    if (s->options.name)
        return;
    while (length > 1 && dir[length - 1] == '/')
        length--;
    for (size_t i = 0; i + 1 < length; i++)
        if (dir[i] == '/')
            begin = dir + i + 1;
    (void)snprintf(s->name, sizeof s->name, "%.*s", (int)(dir + length - begin), begin);
    s->options.name = hd_decoder_is_checkpoint(decoder) ? hd_decoder_job(decoder)->name : s->name;
}

static void print_memory(const struct serve *s, const struct hd_decoder *d)
{
    int64_t all = 0, most = 0;
    char memory[32], of_one[32];

    for (int r = 0; r < hd_decoder_ranks(d); r++) {
        const int64_t bytes = hd_decoder_memory_bytes(d, r);

        all += bytes;
        most = bytes > most ? bytes : most;
    }
    hd_text_format_bytes(all, memory);
    hd_text_format_bytes(most, of_one);
    hd_log(HD_LOG_INFO, "%s: %d sequences of %lld tokens, %s, %s of memory%s%s%s", s->options.name,
           hd_decoder_slots(d), (long long)hd_decoder_context(d),
           hd_job_precision_words[hd_decoder_job(d)->precision], memory,
           hd_decoder_ranks(d) > 1 ? ", at most " : "", hd_decoder_ranks(d) > 1 ? of_one : "",
           hd_decoder_ranks(d) > 1 ? " on a rank" : "");
}

/* Prints the URL on standard output, as soon as the server accepts requests: scripts may wait for
 * it. */
static enum hd_status print_address(const struct serve *s)
{
    const char *address = s->options.http.address, *colon = strrchr(address, ':');
    const struct hd_decoder *d = serve_work_decoder(s->work);
    struct hd_text text = {0};
    enum hd_status st;

    print_memory(s, d);
    if (serve_work_chat(s->work))
        hd_log(HD_LOG_WARN, "there is no /v1/chat/completions: %s", hd_err_message());
    if (hd_http_port(s->http))
        hd_text_add(&text, "%s://%.*s:%d/v1\n", s->options.http.cert_path ? "https" : "http",
                    (int)(colon - address), address, hd_http_port(s->http));
    else
        hd_text_add(&text, "%s\n", address);
    st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for the address") : hd_file_print(text.data);
    hd_text_free(&text);
    return st;
}

static void watch(struct serve *s)
{
    static const int numbers[SERVE_SIGNALS] = {SIGTERM, SIGINT, SIGHUP};

    s->timer.data = s;
    (void)uv_timer_init(&s->loop, &s->timer);
    (void)uv_timer_start(&s->timer, on_timer, CHECK_MS, CHECK_MS);
    for (int i = 0; i < SERVE_SIGNALS; i++) {
        s->signals[i].data = s;
        (void)uv_signal_init(&s->loop, &s->signals[i]);
        (void)uv_signal_start(&s->signals[i], on_signal, numbers[i]);
    }
}

enum hd_status serve_run(const struct serve_options *options)
{
    struct serve *s = calloc(1, sizeof *s);
    struct hd_error error;
    enum hd_status st;

    if (!s)
        return hd_err(HD_NO_MEMORY, "no memory to serve a model");
    s->options = *options;
    s->options.work.on_event = serve_call_event;
    s->options.work.user = s;
    if (uv_loop_init(&s->loop)) {
        free(s);
        return hd_err(HD_LIMIT, "no descriptor for an event loop");
    }
    st = serve_work_new(&s->loop, &s->options.work, &s->work);
    if (!st)
        st = open_listener(s);
    if (!st) {
        choose_name(s);
        st = print_address(s);
        if (st)
            hd_http_close(s->http, NULL, NULL);
    }
    if (!st) {
        watch(s);
        (void)uv_run(&s->loop, UV_RUN_DEFAULT);
        st = serve_work_failure(s->work);
    }
    hd_err_save(st, &error);
    if (s->work) {
        serve_work_close(s->work, on_work_closed, s);
        while (!s->closed)
            (void)uv_run(&s->loop, UV_RUN_ONCE);
        serve_work_free(s->work);
    }
    (void)uv_run(&s->loop, UV_RUN_DEFAULT); /* runs callbacks of closing handles */
    (void)uv_loop_close(&s->loop);
    hd_rpc_tokens_done(&s->tokens);
    free(s);
    return st ? hd_err_restore(&error) : HD_OK;
}
