/* request: one HTTP request, by libcurl.
 *
 * Redirects are followed here and not by libcurl: the headers of each hop count (X-Error-Code), and
 * the token must not reach another host. A redirect to http:// of another machine is refused.
 *
 * libcurl is loaded by the first client: it brings two dozen libraries, which take longer to load
 * than most commands, which ask no hub, to run.
 */
#include <curl/curl.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "hub_internal.h"
#include "version/version.h"

enum {
    CONNECT_TIMEOUT_S = 10,
    BUFFER_BYTES = 256 << 10, /* bytes read at a time */
    /* an answer slower than this for so long counts as broken */
    SLOW_BYTES_PER_S = 1024,
    SLOW_S = 60,
    PAGE_BYTES_MAX = 64 << 10 /* bytes kept of the page of an error */
};

/* libcurl's functions, without curl_, as load_curl found them */
#define CURL_FUNCTIONS(FUNCTION) \
    FUNCTION(easy_cleanup)       \
    FUNCTION(easy_getinfo)       \
    FUNCTION(easy_init)          \
    FUNCTION(easy_perform)       \
    FUNCTION(easy_reset)         \
    FUNCTION(easy_setopt)        \
    FUNCTION(easy_strerror)      \
    FUNCTION(free)               \
    FUNCTION(global_init)        \
    FUNCTION(slist_append)       \
    FUNCTION(slist_free_all)     \
    FUNCTION(url)                \
    FUNCTION(url_cleanup)        \
    FUNCTION(url_get)            \
    FUNCTION(url_set)
#define DECLARE(name) __typeof__(curl_##name) *name;
static struct {
    CURL_FUNCTIONS(DECLARE)
    char why[256]; /* why libcurl could not be loaded; "": it was */
} curl;

struct hub_client {
    CURL *curl;
    const struct hd_hub_settings *settings;
    const volatile sig_atomic_t *stop;
    char error[CURL_ERROR_SIZE];
    /* the request under way */
    struct hub_answer *answer;
    enum hd_status sunk; /* failure of the sink; its message is the thread's */
    const struct hub_call *call;
    int64_t body_at; /* bytes of the request's body that were sent */
};

/* ---- headers ---- */

/* Returns the value of a header line if it has this name, without the white space around it. */
static const char *value_of(const char *line, const char *name)
{
    const size_t n = strlen(name);

    if (strncasecmp(line, name, n) != 0 || line[n] != ':')
        return NULL;
    line += n + 1;
    return line + strspn(line, " \t");
}

static void copy_header(const char *value, char *ret_text, size_t size)
{
    if (strlen(value) < size)
        memcpy(ret_text, value, strlen(value) + 1);
    else
        ret_text[0] = '\0';
}

/* Reads `<URL>; rel="next"` of a Link header. */
static void read_link(const char *value, struct hub_answer *answer)
{
    for (const char *at = strchr(value, '<'); at; at = strchr(at + 1, '<')) {
        const char *end = strchr(at, '>'), *other = strchr(at + 1, '<');
        const char *rel = end ? strstr(end, "rel=\"next\"") : NULL;

        if (rel && (!other || rel < other) && (size_t)(end - at) <= sizeof answer->next) {
            memcpy(answer->next, at + 1, (size_t)(end - at) - 1);
            answer->next[end - at - 1] = '\0';
            return;
        }
    }
}

/* Reads the seconds until a rate limit's window ends: `"api";r=0;t=55`. */
static void read_rate_limit(const char *value, struct hub_answer *answer)
{
    const char *t = strstr(value, ";t=");

    if (t && answer->retry_after_s < 0)
        answer->retry_after_s = strtol(t + 3, NULL, 10);
}

/* Reads a header that object stores send. */
static void read_store_header(const char *line, struct hub_answer *a)
{
    const char *value;

    if ((value = value_of(line, "etag"))) {
        const size_t quote = *value == '"';

        hub_copy_clean(value + quote, a->etag, sizeof a->etag);
        a->etag[strcspn(a->etag, "\"")] = '\0';
    } else if ((value = value_of(line, "content-length"))) {
        a->length = strtoll(value, NULL, 10);
    } else if ((value = value_of(line, "date"))) {
        hub_copy_clean(value, a->date, sizeof a->date);
    } else if ((value = value_of(line, "x-amz-bucket-region"))) {
        hub_copy_clean(value, a->region, sizeof a->region);
    } else if ((value = value_of(line, "x-amz-server-side-encryption")) ||
               (value = value_of(line, "x-amz-server-side-encryption-customer-algorithm"))) {
        hub_copy_clean(value, a->encryption, sizeof a->encryption);
    } else if ((value = value_of(line, "x-amz-checksum-sha256"))) {
        hub_copy_clean(value, a->sha256, sizeof a->sha256);
    } else if ((value = value_of(line, "x-amz-meta-heddle-manifest"))) {
        hub_copy_clean(value, a->origin, sizeof a->origin);
    }
}

static size_t on_header(char *bytes, size_t size, size_t count, void *user)
{
    struct hub_client *c = user;
    struct hub_answer *a = c->answer;
    char line[HUB_URL_MAX + 256];
    const char *value;
    size_t n = size * count;

    if (n >= sizeof line)
        return size * count; /* no header that is read here is as long */
    memcpy(line, bytes, n);
    while (n && (line[n - 1] == '\r' || line[n - 1] == '\n'))
        n--;
    line[n] = '\0';
    if ((value = value_of(line, "location")))
        copy_header(value, a->location, sizeof a->location);
    else if ((value = value_of(line, "link")))
        read_link(value, a);
    else if ((value = value_of(line, "x-error-code")))
        hub_copy_clean(value, a->error_code, sizeof a->error_code);
    else if ((value = value_of(line, "x-error-message")))
        hub_copy_clean(value, a->error_message, sizeof a->error_message);
    else if ((value = value_of(line, "retry-after")) && strspn(value, "0123456789"))
        a->retry_after_s = strtol(value, NULL, 10);
    else if ((value = value_of(line, "ratelimit")))
        read_rate_limit(value, a);
    else if ((value = value_of(line, "content-range")) && hd_text_starts(value, "bytes "))
        a->range_begin = strtoll(value + 6, NULL, 10);
    else
        read_store_header(line, a);
    return size * count;
}

/* ---- the body ---- */

static size_t on_body(char *bytes, size_t size, size_t count, void *user)
{
    struct hub_client *c = user;
    long status = 0;

    (void)curl.easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    c->answer->status = (int)status;
    if (status != 200 && status != 206) { /* the page of an error or a redirect */
        struct hd_text *page = c->call->page;

        if (page && page->len_bytes + size * count <= PAGE_BYTES_MAX)
            hd_text_add_bytes(page, bytes, size * count);
        return size * count;
    }
    if (c->call->sink)
        c->sunk = c->call->sink(c->call->user, c->answer, bytes, size * count);
    return c->sunk ? CURL_WRITEFUNC_ERROR : size * count;
}

/* Gives libcurl the next bytes of the request's body. */
static size_t on_read(char *ret_bytes, size_t size, size_t count, void *user)
{
    struct hub_client *c = user;
    const struct hub_call *call = c->call;
    const int64_t left = call->body_bytes - c->body_at;
    size_t n = size * count;
    ssize_t got;

    if ((int64_t)n > left)
        n = (size_t)left;
    if (!n)
        return 0;
    if (call->body) {
        memcpy(ret_bytes, (const char *)call->body + c->body_at, n);
        got = (ssize_t)n;
    } else {
        got = pread(call->body_fd, ret_bytes, n, call->body_from + c->body_at);
    }
    if (got <= 0) {
        c->sunk = hd_err(HD_IO, "cannot read the file that is sent: %s",
                         got ? strerror(errno) : "it became shorter");
        return CURL_READFUNC_ABORT;
    }
    c->body_at += got;
    return (size_t)got;
}

static int on_seek(void *user, curl_off_t offset, int origin)
{
    struct hub_client *c = user;

    if (origin != SEEK_SET || offset < 0 || offset > c->call->body_bytes)
        return CURL_SEEKFUNC_FAIL;
    c->body_at = offset;
    return CURL_SEEKFUNC_OK;
}

static int on_progress(void *user, curl_off_t total, curl_off_t now, curl_off_t up_total,
                       curl_off_t up)
{
    const struct hub_client *c = user;

    (void)total;
    (void)now;
    (void)up_total;
    (void)up;
    return hub_is_stopped(c->stop);
}

/* ---- where a URL leads ---- */

/* Returns whether two URLs have the same scheme, host and port. */
static bool same_origin(const char *a, const char *b)
{
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    CURLU *x = curl.url(), *y = curl.url();
    bool same =
        x && y && !curl.url_set(x, CURLUPART_URL, a, 0) && !curl.url_set(y, CURLUPART_URL, b, 0);

    for (size_t i = 0; same && i < sizeof parts / sizeof parts[0]; i++) {
        char *p = NULL, *q = NULL;

        same = !curl.url_get(x, parts[i], &p, CURLU_DEFAULT_PORT) &&
               !curl.url_get(y, parts[i], &q, CURLU_DEFAULT_PORT) && strcasecmp(p, q) == 0;
        curl.free(p);
        curl.free(q);
    }
    curl.url_cleanup(x);
    curl.url_cleanup(y);
    return same;
}

static void copy_host(const char *url, char *ret_host, size_t size)
{
    CURLU *u = curl.url();
    char *host = NULL;

    ret_host[0] = '\0';
    if (u && !curl.url_set(u, CURLUPART_URL, url, 0) && !curl.url_get(u, CURLUPART_HOST, &host, 0))
        hub_copy_clean(host, ret_host, size);
    curl.free(host);
    curl.url_cleanup(u);
}

/* Replaces `url` by the URL that a Location or Link names relative to it. An https hub must stay
 * with https. */
static enum hd_status follow(char url[HUB_URL_MAX], const char *location,
                             const struct hd_hub_settings *settings)
{
    const bool is_protected = hd_text_starts(settings->endpoint, "https:");
    CURLU *u = curl.url();
    char *next = NULL, host[256];
    enum hd_status st = HD_OK;

    if (!u || curl.url_set(u, CURLUPART_URL, url, 0) ||
        curl.url_set(u, CURLUPART_URL, location, 0) || curl.url_get(u, CURLUPART_URL, &next, 0) ||
        strlen(next) >= HUB_URL_MAX)
        st = hd_err(HD_CORRUPT, "the hub redirects to a URL that is none");
    copy_host(st ? "" : next, host, sizeof host);
    if (!st && (!hub_url_is_allowed(next) || (is_protected && !hd_text_starts(next, "https:"))))
        st = hd_err(
            HD_DENIED,
            "the hub redirects to %s without TLS, which is not followed: the answer could be "
            "read and changed on its way",
            *host ? host : "a local file");
    if (!st)
        memcpy(url, next, strlen(next) + 1);
    curl.free(next);
    curl.url_cleanup(u);
    return st;
}

enum hd_status hub_next_page(char url[HUB_URL_MAX], const struct hub_answer *answer,
                             const struct hd_hub_settings *settings)
{
    enum hd_status st = follow(url, answer->next, settings);

    if (!st && !same_origin(url, settings->endpoint))
        st = hd_err(HD_CORRUPT, "the hub's list of files goes on at another host");
    return st;
}

/* ---- a request ---- */

static enum hd_status explain_failure(const struct hub_client *c, CURLcode code, const char *url)
{
    const char *why = *c->error ? c->error : curl.easy_strerror(code);
    char host[256];

    copy_host(url, host, sizeof host);
    if ((code == CURLE_WRITE_ERROR || code == CURLE_ABORTED_BY_CALLBACK) && c->sunk)
        return c->sunk;
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return hd_err(HD_ABORTED, "interrupted");
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE)
        return hd_err(HD_DENIED,
                      "%s: its certificate is not accepted: %s; a proxy that opens TLS has an "
                      "authority of its own: name it in SSL_CERT_FILE",
                      host, why);
    if (code == CURLE_OUT_OF_MEMORY)
        return hd_err(HD_NO_MEMORY, "no memory for a request");
    return hd_err(code == CURLE_OPERATION_TIMEDOUT ? HD_TIMEOUT : HD_UNAVAILABLE,
                  "%s cannot be reached, or the connection broke: %s", host, why);
}

static bool is_redirect(int status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/* Appends a header; frees the list and returns NULL without memory. */
static struct curl_slist *add_header(struct curl_slist *list, const char *line)
{
    struct curl_slist *longer = curl.slist_append(list, line);

    if (!longer)
        curl.slist_free_all(list);
    return longer;
}

/* Makes the headers of a request; with the token only for the endpoint. */
static struct curl_slist *make_headers(const struct hub_client *c, bool to_endpoint)
{
    struct curl_slist *list = add_header(NULL, "Accept-Encoding: identity");
    char line[sizeof c->settings->token + 32];

    if (list && to_endpoint && *c->settings->token) {
        (void)snprintf(line, sizeof line, "Authorization: Bearer %s", c->settings->token);
        list = add_header(list, line);
        explicit_bzero(line, sizeof line);
    }
    if (list && c->call->has_body) /* the server's "100 Continue" is not waited for */
        list = add_header(list, "Expect:");
    for (size_t i = 0; list && i < c->call->header_count; i++)
        list = add_header(list, c->call->headers[i]);
    return list;
}

/* Sets the options that all requests of the client share. */
static void set_options(struct hub_client *c)
{
    char agent[64];

    (void)snprintf(agent, sizeof agent, "heddle/%s", hd_version);
    (void)curl.easy_setopt(c->curl, CURLOPT_USERAGENT, agent);
    (void)curl.easy_setopt(c->curl, CURLOPT_ERRORBUFFER, c->error);
    (void)curl.easy_setopt(c->curl, CURLOPT_NOSIGNAL, 1L);
    (void)curl.easy_setopt(c->curl, CURLOPT_BUFFERSIZE, (long)BUFFER_BYTES);
    (void)curl.easy_setopt(c->curl, CURLOPT_UPLOAD_BUFFERSIZE, (long)BUFFER_BYTES);
    (void)curl.easy_setopt(c->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl.easy_setopt(c->curl, CURLOPT_FOLLOWLOCATION, 0L);
    (void)curl.easy_setopt(c->curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_TIMEOUT_S);
    (void)curl.easy_setopt(c->curl, CURLOPT_LOW_SPEED_LIMIT, (long)SLOW_BYTES_PER_S);
    (void)curl.easy_setopt(c->curl, CURLOPT_LOW_SPEED_TIME, (long)SLOW_S);
    (void)curl.easy_setopt(c->curl, CURLOPT_HEADERFUNCTION, on_header);
    (void)curl.easy_setopt(c->curl, CURLOPT_HEADERDATA, c);
    (void)curl.easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, on_body);
    (void)curl.easy_setopt(c->curl, CURLOPT_WRITEDATA, c);
    (void)curl.easy_setopt(c->curl, CURLOPT_NOPROGRESS, 0L);
    (void)curl.easy_setopt(c->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    (void)curl.easy_setopt(c->curl, CURLOPT_XFERINFODATA, c);
    if (*c->settings->ca_file)
        (void)curl.easy_setopt(c->curl, CURLOPT_CAINFO, c->settings->ca_file);
}

/* Sets method and body of the call. */
static void set_call(struct hub_client *c)
{
    const struct hub_call *call = c->call;

    if (call->method && strcmp(call->method, "HEAD") == 0)
        (void)curl.easy_setopt(c->curl, CURLOPT_NOBODY, 1L);
    if (call->has_body) {
        (void)curl.easy_setopt(c->curl, CURLOPT_UPLOAD, 1L);
        (void)curl.easy_setopt(c->curl, CURLOPT_READFUNCTION, on_read);
        (void)curl.easy_setopt(c->curl, CURLOPT_READDATA, c);
        (void)curl.easy_setopt(c->curl, CURLOPT_SEEKFUNCTION, on_seek);
        (void)curl.easy_setopt(c->curl, CURLOPT_SEEKDATA, c);
        (void)curl.easy_setopt(c->curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)call->body_bytes);
    }
    if (call->method)
        (void)curl.easy_setopt(c->curl, CURLOPT_CUSTOMREQUEST, call->method);
    if (call->timeout_ms) {
        (void)curl.easy_setopt(c->curl, CURLOPT_TIMEOUT_MS, (long)call->timeout_ms);
        (void)curl.easy_setopt(c->curl, CURLOPT_CONNECTTIMEOUT_MS, (long)call->timeout_ms);
    }
}

static enum hd_status send_one(struct hub_client *c, const char *url)
{
    const bool to_endpoint = same_origin(url, c->settings->endpoint);
    struct curl_slist *headers = make_headers(c, to_endpoint);
    char range[32];
    long status = 0;
    CURLcode code;

    if (!headers)
        return hd_err(HD_NO_MEMORY, "no memory for a request");
    *c->answer = (struct hub_answer){
        .retry_after_s = -1, .range_begin = -1, .length = -1, .by_endpoint = to_endpoint};
    copy_host(url, c->answer->host, sizeof c->answer->host);
    c->error[0] = '\0';
    c->sunk = HD_OK;
    c->body_at = 0;
    curl.easy_reset(c->curl); /* keeps the connections */
    set_options(c);
    set_call(c);
    (void)snprintf(range, sizeof range, "%lld-", (long long)c->call->from);
    (void)curl.easy_setopt(c->curl, CURLOPT_URL, url);
    (void)curl.easy_setopt(c->curl, CURLOPT_HTTPHEADER, headers);
    (void)curl.easy_setopt(c->curl, CURLOPT_RANGE, c->call->from ? range : NULL);
    /* no proxy for this machine: it would be sent the token in plain text */
    (void)curl.easy_setopt(c->curl, CURLOPT_PROXY, hd_text_starts(url, "http:") ? "" : NULL);
    code = curl.easy_perform(c->curl);
    (void)curl.easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    c->answer->status = (int)status;
    (void)curl.easy_setopt(c->curl, CURLOPT_HTTPHEADER, NULL);
    for (struct curl_slist *h = headers; h; h = h->next)
        explicit_bzero(h->data, strlen(h->data)); /* the token */
    curl.slist_free_all(headers);
    return code ? explain_failure(c, code, url) : HD_OK;
}

enum hd_status hub_send(struct hub_client *client, const char *url, const struct hub_call *call,
                        struct hub_answer *ret_answer)
{
    enum hd_status st;

    client->answer = ret_answer;
    client->call = call;
    st = send_one(client, url);
    client->call = NULL;
    return st;
}

enum hd_status hub_get(struct hub_client *client, const char *url, int64_t from, hub_sink *sink,
                       void *user, struct hub_answer *ret_answer)
{
    const struct hub_call call = {.from = from, .sink = sink, .user = user};
    char at[HUB_URL_MAX];
    enum hd_status st = HD_OK;

    if (strlen(url) >= sizeof at)
        return hd_err(HD_INVALID, "the URL of a file is longer than %d bytes", HUB_URL_MAX - 1);
    memcpy(at, url, strlen(url) + 1);
    client->answer = ret_answer;
    client->call = &call;
    for (int hops = 0; !st; hops++) {
        st = send_one(client, at);
        if (st || !is_redirect(ret_answer->status) || !*ret_answer->location)
            break;
        if (hops == HUB_REDIRECTS_MAX)
            st = hd_err(HD_CORRUPT, "the hub redirects more than %d times", HUB_REDIRECTS_MAX);
        if (!st)
            st = follow(at, ret_answer->location, client->settings);
    }
    client->call = NULL;
    return st;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Loads libcurl, of whichever TLS library: both builds have the same functions. */
static void load_curl(void)
{
    void *library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    bool is_whole = true;

    if (!library)
        library = dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        (void)snprintf(curl.why, sizeof curl.why, "%s", dlerror());
        return;
    }
#define FIND(name) is_whole &= (curl.name = dlsym(library, "curl_" #name)) != NULL;
    CURL_FUNCTIONS(FIND)
    if (!is_whole || curl.global_init(CURL_GLOBAL_DEFAULT))
        (void)snprintf(curl.why, sizeof curl.why, "the library is too old or cannot start");
}

bool hd_hub_can_download(void)
{
    (void)pthread_once(&once, load_curl);
    return !*curl.why;
}

enum hd_status hub_client_new(const struct hd_hub_settings *settings,
                              const volatile sig_atomic_t *stop, struct hub_client **ret_client)
{
    struct hub_client *c;

    if (!hd_hub_can_download())
        return hd_err(
            HD_UNSUPPORTED,
            "nothing can be downloaded or uploaded without libcurl, which cannot be loaded: %s; "
            "install libcurl4 (or libcurl3-gnutls)",
            curl.why);
    c = calloc(1, sizeof *c);
    if (c)
        c->curl = curl.easy_init();
    if (!c || !c->curl) {
        free(c);
        return hd_err(HD_NO_MEMORY, "no memory for a connection");
    }
    c->settings = settings;
    c->stop = stop;
    *ret_client = c;
    return HD_OK;
}

void hub_client_free(struct hub_client *client)
{
    if (!client)
        return;
    curl.easy_cleanup(client->curl);
    free(client);
}
