/* web: the HTTP listener: access, the dashboard's files, and streams of changes. */
#include "controller/services/web.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "controller/services/metrics.h"
#include "controller/show/show.h"

enum {
    STREAMS_MAX = 24,
    /* limit of job numbers in one line of a stream; with more changed jobs the line says "all" */
    STREAM_JOBS_MAX = 64,
    ALIVE_MS = 10000, /* pause between two lines of a stream if nothing changes, ms */
    /* life of a stream, ms; then the page reconnects, and its token is checked again */
    STREAM_AGE_MS = 300000,
    STALLED_MS = 30000, /* a stream whose client has taken no line for this long is ended, ms */
};

/* ---- access -----------------------------------------------------------------------------------*/

/* Returns whether HTTP requests need a token. If no tokens for people exist, the listener is open
 * to this machine only. */
static bool asks_tokens(const struct controller *c)
{
    return c->authority || hd_credentials_count(c->credentials) ||
           hd_rpc_server_has_tokens(c->server, HD_RPC_PARTY_USER);
}

static enum hd_status know_token(const struct controller *c, const char *given,
                                 struct hd_identity *ret_identity)
{
    const struct hd_rpc_token *token = hd_rpc_server_find_token(c->server, given);

    if (!token)
        return hd_identity_of_token(c->credentials, given, hd_clock_wall_ms(), ret_identity);
    if (token->party != HD_RPC_PARTY_USER)
        return hd_err(HD_DENIED, "this token is a node's, not a person's");
    (void)snprintf(ret_identity->name, sizeof ret_identity->name, "%s",
                   token->name[0] ? token->name : "token");
    ret_identity->role = hd_policy_role(c->policy, ret_identity->name, HD_LOGIN_TOKEN_FILE);
    return HD_OK;
}

static enum hd_status know(const struct controller *c, const struct hd_http_caller *caller,
                           struct hd_identity *ret_identity)
{
    if (caller->is_unix) {
        (void)snprintf(ret_identity->name, sizeof ret_identity->name, "uid:%u",
                       (unsigned)caller->uid);
        ret_identity->role = caller->uid == 0 || caller->uid == geteuid()
                                 ? HD_ROLE_ADMIN
                                 : hd_policy_role(c->policy, ret_identity->name, HD_LOGIN_SOCKET);
        return HD_OK;
    }
    if (caller->token)
        return know_token(c, caller->token, ret_identity);
    if (c->web->asks_tokens || asks_tokens(c))
        return hd_err(HD_DENIED, "a token is needed (Authorization: Bearer TOKEN): one of heddle "
                                 "token create, or of the controller's --token-file");
    /* any user of this machine is an operator; web_open has logged this */
    ret_identity->role = HD_ROLE_OPERATOR;
    return HD_OK;
}

/* Authenticates an HTTP request and sets the reader: role, rate limit and visibility as with gRPC
 * (guard.h). */
static enum hd_status authorize_reader(void *user, const struct hd_http_caller *caller)
{
    struct controller *c = user;
    struct web_reader *reader = &c->web->reader;
    struct hd_identity identity = {.role = HD_ROLE_NONE};
    enum hd_status st = know(c, caller, &identity);

    if (!st && !hd_role_has(identity.role, HD_ROLE_VIEWER))
        st = hd_err(HD_DENIED,
                    "%s has no role here; an admin gives one by a line of the policy "
                    "file: role %s viewer",
                    identity.name, identity.name);
    if (!st)
        st = hd_usages_take(
            c->usages, identity.name, HD_LIMIT_QUERIES,
            hd_policy_limit(c->policy, identity.name, identity.role, HD_LIMIT_QUERIES),
            hd_clock_now_ms());
    if (st)
        return st;
    (void)snprintf(reader->name, sizeof reader->name, "%s", identity.name);
    reader->visibility = hd_policy_visibility(c->policy, identity.name, identity.role);
    return HD_OK;
}

void web_see(const struct web_reader *reader, enum hd_visibility needed, struct hd_query *query)
{
    if (reader->visibility >= needed)
        return;
    query->only_of = reader->name; /* the store copies it */
    query->hidden = reader->visibility == HD_VISIBILITY_OWN;
}

struct veil web_veil(const struct controller *c, const struct web_reader *reader)
{
    return (struct veil){.core = c->core,
                         .jobs_dir = c->jobs_dir,
                         .reader = reader->visibility == HD_VISIBILITY_OWN ? reader->name : NULL};
}

/* ---- the dashboard's files --------------------------------------------------------------------*/

#define PAGE_LIST(X)                                             \
    X("/", index_html, "text/html; charset=utf-8")               \
    X("/app.js", app_js, "text/javascript; charset=utf-8")       \
    X("/page.js", page_js, "text/javascript; charset=utf-8")     \
    X("/jobs.js", jobs_js, "text/javascript; charset=utf-8")     \
    X("/job.js", job_js, "text/javascript; charset=utf-8")       \
    X("/curves.js", curves_js, "text/javascript; charset=utf-8") \
    X("/app.css", app_css, "text/css; charset=utf-8")            \
    X("/icon.svg", icon_svg, "image/svg+xml")

#define X(path, name, type)                       \
    extern const unsigned char web_page_##name[]; \
    extern const size_t web_page_##name##_bytes;
PAGE_LIST(X)
#undef X

static bool is_guarded(void *user, const char *path)
{
    (void)user;
#define X(page, name, type)      \
    if (strcmp(path, page) == 0) \
        return false;
    PAGE_LIST(X)
#undef X
    return true;
}

static bool answer_page(struct hd_http_request *request, const char *path)
{
#define X(page, name, type)                                                            \
    if (strcmp(path, page) == 0) {                                                     \
        hd_http_reply_static(request, type, web_page_##name, web_page_##name##_bytes); \
        return true;                                                                   \
    }
    PAGE_LIST(X)
#undef X
    return false;
}

/* ---- streams of changes -----------------------------------------------------------------------*/

struct web_stream {
    struct controller *c;
    struct hd_http_request *request;
    struct web_stream *next;
    /* numbers of the jobs that changed since the last line was sent */
    uint64_t jobs[STREAM_JOBS_MAX];
    size_t job_count;
    /* the next line says "all": too many jobs changed for the array, or their numbers are hidden */
    bool all;
    bool hides;   /* the reader may not see jobs of other users */
    bool cluster; /* nodes, queues or cluster events changed */
    int64_t since_ms;
    int64_t reported_ms,
        stalled_ms; /* time of the last line; time since which none could be queued, 0: it could */
};

static void free_stream(struct web_stream *stream)
{
    struct web_stream **at = &stream->c->web->streams;

    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    free(stream);
}

static void on_stream_gone(void *user)
{
    free_stream(user);
}

static void end_stream(struct web_stream *stream)
{
    hd_http_stream_end(stream->request);
    free_stream(stream);
}

/* Queues a line of a stream. Returns false if it was not queued: the client is slow or gone. */
static bool send_line(struct web_stream *stream, struct hd_text *line)
{
    const int64_t now_ms = hd_clock_now_ms();

    if (line->failed || hd_http_stream_write(stream->request, line->data, line->len_bytes)) {
        stream->stalled_ms = stream->stalled_ms ? stream->stalled_ms : now_ms;
        return false;
    }
    stream->stalled_ms = 0;
    stream->reported_ms = now_ms;
    return true;
}

static void add_line(struct hd_text *out, const struct web_stream *stream, const char *type)
{
    struct hd_json_writer w = {.out = out};

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "type", type);
    show_time(&w, "time", hd_clock_wall_ms());
    if (strcmp(type, "changed") == 0) {
        hd_json_add_bool(&w, "all", stream->all);
        hd_json_begin(&w, "jobs", '[');
        for (size_t i = 0; i < stream->job_count; i++)
            hd_json_add_int64(&w, NULL, (int64_t)stream->jobs[i]);
        hd_json_end(&w, ']');
        hd_json_add_bool(&w, "cluster", stream->cluster);
    }
    hd_json_end(&w, '}');
    hd_text_add(out, "\n");
}

static void send_to_stream(struct web_stream *stream)
{
    const bool changed = stream->all || stream->job_count || stream->cluster;
    struct hd_text line = {0};

    if (!changed && hd_clock_now_ms() - stream->reported_ms < ALIVE_MS)
        return;
    add_line(&line, stream, changed ? "changed" : "alive");
    if (send_line(stream, &line)) {
        stream->job_count = 0;
        stream->all = stream->cluster = false;
    }
    hd_text_free(&line);
}

static void open_stream(struct controller *c, struct hd_http_request *request)
{
    struct web_stream *stream;
    struct hd_text line = {0};
    size_t count = 0;

    for (stream = c->web->streams; stream; stream = stream->next)
        count++;
    if (count >= STREAMS_MAX) {
        hd_http_fail(request, hd_err(HD_LIMIT, "%zu streams are open; close a page", count));
        return;
    }
    stream = calloc(1, sizeof *stream);
    if (!stream) {
        hd_http_fail(request, hd_err(HD_NO_MEMORY, "no memory for a stream"));
        return;
    }
    *stream = (struct web_stream){.c = c,
                                  .request = request,
                                  .next = c->web->streams,
                                  .since_ms = hd_clock_now_ms(),
                                  .hides = c->web->reader.visibility == HD_VISIBILITY_OWN};
    c->web->streams = stream;
    hd_http_stream_begin(request, "application/jsonl; charset=utf-8", on_stream_gone, stream);
    add_line(&line, stream, "hello");
    (void)send_line(stream, &line);
    hd_text_free(&line);
}

void web_announce(struct controller *c, uint64_t job)
{
    for (struct web_stream *s = c->web ? c->web->streams : NULL; s; s = s->next) {
        size_t i = 0;

        s->all |= s->hides;
        if (s->all)
            continue;
        while (i < s->job_count && s->jobs[i] != job)
            i++;
        if (i < s->job_count)
            continue;
        if (i < STREAM_JOBS_MAX)
            s->jobs[s->job_count++] = job;
        else
            s->all = true;
    }
}

void web_tick(struct controller *c)
{
    const int64_t now_ms = hd_clock_now_ms();
    struct web_stream *next;
    bool cluster;

    if (!c->web)
        return;
    cluster = c->web->cluster_changes != c->stats.cluster_changes;
    c->web->cluster_changes = c->stats.cluster_changes;
    for (struct web_stream *s = c->web->streams; s; s = next) {
        next = s->next;
        s->cluster |= cluster;
        if ((s->stalled_ms && now_ms - s->stalled_ms > STALLED_MS) ||
            now_ms - s->since_ms > STREAM_AGE_MS)
            end_stream(s);
        else
            send_to_stream(s);
    }
}

/* ---- requests ---------------------------------------------------------------------------------*/

static void on_request(void *user, struct hd_http_request *request)
{
    static const char api[] = "/api/v1/";
    struct controller *c = user;
    const char *path = hd_http_path(request);
    struct hd_text text = {0};

    if (answer_page(request, path))
        return;
    if (strcmp(path, "/metrics") == 0 && c->web->reader.visibility == HD_VISIBILITY_OWN) {
        hd_http_fail(request, hd_err(HD_DENIED,
                                     "metrics name the jobs of all, which the policy hides from "
                                     "%s; use a token of an operator, or one that sees jobs",
                                     c->web->reader.name));
    } else if (strcmp(path, "/metrics") == 0) {
        metrics_add(c, c->web->http, &text);
        hd_http_reply(request, 200, HD_PROM_TYPE, &text);
    } else if (strcmp(path, "/api/v1/stream") == 0) {
        open_stream(c, request);
    } else if (hd_text_starts(path, api)) {
        web_api(c, request, path + strlen(api));
    } else {
        hd_http_fail(request, hd_err(HD_NOT_FOUND,
                                     "there is no page %s; these are: /, /metrics "
                                     "and those of docs/metrics.md",
                                     path));
    }
}

/* ---- open and close ---------------------------------------------------------------------------*/

static enum hd_status refuse_several(const struct controller *c)
{
    return hd_err(HD_DENIED,
                  "--http %s: several people use this controller, and without tokens every user of "
                  "this machine would see their jobs; run heddle-controller init, give "
                  "--token-file, or use unix:PATH",
                  c->options.http);
}

enum hd_status web_check_policy(const struct controller *c, bool has_policy)
{
    return c->web && has_policy && !c->web->asks_tokens && !asks_tokens(c) &&
                   !hd_rpc_address_is_unix(c->options.http)
               ? refuse_several(c)
               : HD_OK;
}

enum hd_status web_open(struct controller *c)
{
    const struct hd_rpc_tls *tls = c->options.tls ? c->options.tls : c->own_tls ? &c->tls : NULL;
    const struct hd_http_options options = {
        .address = c->options.http,
        .hosts = c->options.http_hosts,
        .host_count = c->options.http_host_count,
        .cert_path = tls ? tls->cert_path : NULL,
        .key_path = tls ? tls->key_path : NULL,
        .asks_tokens = asks_tokens(c),
        .authorize = authorize_reader,
        .guarded = is_guarded,
        .on_request = on_request,
        .user = c,
    };
    enum hd_status st = HD_OK;

    if (!c->options.http)
        return HD_OK;
    if (!options.asks_tokens && !hd_rpc_address_is_unix(c->options.http)) {
        if (c->options.socket_mode || c->options.policy_file)
            return refuse_several(c);
        hd_log(HD_LOG_INFO,
               "all users of this machine may read jobs and metrics by HTTP; with tokens (init, or "
               "--token-file) one is asked for");
    }
    c->web = calloc(1, sizeof *c->web);
    if (!c->web)
        return hd_err(HD_NO_MEMORY, "no memory for an HTTP listener");
    c->web->asks_tokens = options.asks_tokens;
    c->web->tls = options.cert_path && !hd_rpc_address_is_unix(c->options.http);
    st = hd_http_new(c->loop, &options, &c->web->http);
    if (st) {
        free(c->web);
        c->web = NULL;
        return hd_err_prefix(st, "--http");
    }
    return HD_OK;
}

enum hd_status web_set_tls(struct controller *c, const struct hd_rpc_tls *tls)
{
    const enum hd_status st =
        c->web ? hd_http_set_tls(c->web->http, tls->cert_path, tls->key_path) : HD_OK;

    return st ? hd_err_prefix(st, "--http") : HD_OK;
}

/* Closes the listener. Queries of the store that are in flight find c->web NULL afterwards; their
 * requests are still answered. */
void web_close(struct controller *c, void (*on_closed)(void *user), void *user)
{
    struct hd_http *http = c->web ? c->web->http : NULL;

    while (c->web && c->web->streams)
        end_stream(c->web->streams);
    if (c->web)
        curve_free_all(c);
    free(c->web);
    c->web = NULL;
    hd_http_close(http, on_closed, user);
}

int controller_http_port(const struct controller *c)
{
    return c->web ? hd_http_port(c->web->http) : 0;
}

bool controller_http_is_tls(const struct controller *c)
{
    return c->web && c->web->tls;
}
