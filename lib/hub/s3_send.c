/* s3_send: one request to an object store: keys, URL, signature, retries, and what an error means.
 *
 * Path style (ENDPOINT/BUCKET/KEY) where an endpoint is given, or the bucket's name is no host's;
 * else https://BUCKET.s3.REGION.amazonaws.com/KEY. A store that names another region for the bucket
 * is asked once more with that one.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/random.h"
#include "s3_internal.h"

enum {
    DEFAULT_PAUSE_MAX_MS = 20000,
    RENEW_MS = 5 * 60 * 1000, /* keys are renewed this long before they expire */
    HEADERS_MAX = 12,
    NO_ANSWER_TRIES = 4 /* tries of a request to which no answer comes at all */
};

#define DEFAULT_REGION "us-east-1"

enum hd_status hd_s3_new(const struct hd_s3_settings *settings, const volatile sig_atomic_t *stop,
                         struct hd_s3 **ret_s3)
{
    struct hd_s3 *s3 = calloc(1, sizeof *s3);

    if (!s3)
        return hd_err(HD_NO_MEMORY, "no memory for an object store");
    s3->settings = settings;
    s3->stop = stop;
    (void)pthread_mutex_init(&s3->mutex, NULL);
    (void)snprintf(s3->region, sizeof s3->region, "%s",
                   *settings->region ? settings->region : DEFAULT_REGION);
    (void)snprintf(s3->http.ca_file, sizeof s3->http.ca_file, "%s", settings->ca_file);
    (void)snprintf(s3->http.endpoint, sizeof s3->http.endpoint, "%s", settings->endpoint);
    s3->http.pause_ms = settings->pause_ms;
    *ret_s3 = s3;
    return HD_OK;
}

void hd_s3_free(struct hd_s3 *s3)
{
    if (!s3)
        return;
    (void)pthread_mutex_destroy(&s3->mutex);
    explicit_bzero(s3, sizeof *s3);
    free(s3);
}

/* ---- keys ---- */

static enum hd_status no_keys(const struct hd_s3_settings *s)
{
    return hd_err(HD_DENIED, "there are no keys for s3://: %s",
                  *s->keys_problem
                      ? s->keys_problem
                      : "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE with "
                        "~/.aws/credentials; for public data set HEDDLE_S3_ANONYMOUS=1");
}

/* Gets keys, from the settings or from the service that gives keys for a time. */
static enum hd_status get_keys(struct hd_s3 *s3)
{
    const struct hd_s3_settings *s = s3->settings;
    struct hd_s3_keys keys;
    char from[sizeof s3->keys_from];
    enum hd_status st;

    if (*s->keys.id) {
        s3->keys = s->keys;
        (void)snprintf(s3->keys_from, sizeof s3->keys_from, "%s", s->keys_from);
        return HD_OK;
    }
    if (*s->keys_problem)
        return no_keys(s);
    st = s3_fetch_keys(s, s3->region, s3->stop, &keys, from, sizeof from);
    if (st)
        return st == HD_NOT_FOUND ? no_keys(s) : st;
    s3->keys = keys;
    memcpy(s3->keys_from, from, sizeof from);
    return HD_OK;
}

/* Copies the keys and the region that are to sign. Renews keys RENEW_MS before they expire; if
 * their service gives none, the old ones sign until then. */
static enum hd_status take_keys(struct hd_s3 *s3, struct hd_s3_keys *ret_keys, char region[64])
{
    enum hd_status st = HD_OK;

    (void)pthread_mutex_lock(&s3->mutex);
    if (!s3->settings->anonymous) {
        const int64_t left_ms = !s3->has_keys         ? 0
                                : s3->keys.expires_ms ? s3->keys.expires_ms - hd_clock_wall_ms()
                                                      : INT64_MAX;

        if (left_ms < RENEW_MS)
            st = get_keys(s3);
        if (st && left_ms > 0)
            st = HD_OK;
        s3->has_keys = !st;
    }
    *ret_keys = s3->keys;
    memcpy(region, s3->region, sizeof s3->region);
    (void)pthread_mutex_unlock(&s3->mutex);
    return st;
}

/* ---- a request ---- */

static bool is_host_name(const char *bucket)
{
    for (const char *at = bucket; *at; at++)
        if (!islower((unsigned char)*at) && !isdigit((unsigned char)*at) && *at != '-')
            return false;
    return true;
}

/* Sets host, path and query of a request. */
static void make_target(const struct hd_s3 *s3, const struct s3_call *call, const char *region,
                        struct hd_text *base, struct hd_text *path, struct hd_text *query)
{
    const char *endpoint = s3->settings->endpoint;
    const bool is_path_style = *endpoint || !is_host_name(call->bucket);

    if (*endpoint) {
        const size_t scheme = (size_t)(strstr(endpoint, "://") + 3 - endpoint);
        const size_t host = scheme + strcspn(endpoint + scheme, "/");

        hd_text_add(base, "%.*s", (int)host, endpoint);
        if (base->data && hd_text_ends(base->data, scheme == 8 ? ":443" : ":80"))
            base->data[base->len_bytes -= scheme == 8 ? 4 : 3] = '\0'; /* no default port in Host */
        hd_text_add(path, "%s", endpoint + host);
    } else if (is_path_style) {
        hd_text_add(base, "https://s3.%s.amazonaws.com%s", region,
                    hd_text_starts(region, "cn-") ? ".cn" : "");
    } else {
        hd_text_add(base, "https://%s.s3.%s.amazonaws.com%s", call->bucket, region,
                    hd_text_starts(region, "cn-") ? ".cn" : "");
    }
    if (is_path_style)
        hd_text_add(path, "/%s", call->bucket);
    if (*call->key || !is_path_style)
        hd_text_add(path, "/");
    hub_add_encoded(path, call->key, "/");
    hd_text_add(query, "%s", "");
    for (size_t i = 0; i < call->query_count; i++) {
        hd_text_add(query, "%s%s=", i ? "&" : "", call->query[i].name);
        hub_add_encoded(query, call->query[i].value, "");
    }
}

/* Signs a request and sends it once. */
static enum hd_status send_signed(struct hd_s3 *s3, struct hub_client *client,
                                  const struct s3_call *call, const char *region,
                                  const struct hd_s3_keys *keys, struct hd_text *page,
                                  struct hub_answer *ret_answer)
{
    struct hd_text base = {0}, path = {0}, query = {0}, url = {0}, signature = {0};
    struct hd_text lines[HEADERS_MAX] = {{0}};
    const char *headers[HEADERS_MAX];
    char time_text[S3_TIME_MAX];
    struct s3_pair signed_headers[8] = {{NULL, NULL}};
    struct s3_signing signing = {.method = call->method ? call->method : "GET",
                                 .headers = signed_headers,
                                 .payload_hash =
                                     call->payload_hash ? call->payload_hash : S3_EMPTY_HASH,
                                 .region = region,
                                 .service = "s3",
                                 .keys = keys,
                                 .time = (time_t)(hd_clock_wall_ms() / 1000)};
    struct hub_call http = {.method = call->method,
                            .headers = headers,
                            .from = call->from,
                            .has_body = call->has_body,
                            .body = call->body,
                            .body_fd = call->body_fd,
                            .body_from = call->body_from,
                            .body_bytes = call->body_bytes,
                            .sink = call->sink,
                            .user = call->user,
                            .page = page};
    size_t n = 0, k = 0;
    enum hd_status st = HD_OK;

    make_target(s3, call, region, &base, &path, &query);
    signing.path = path.data;
    signing.query = query.data;
    s3_format_time(signing.time, time_text);
    if (base.data)
        signed_headers[n++] = (struct s3_pair){"host", strstr(base.data, "://") + 3};
    if (call->wants_checksum)
        signed_headers[n++] = (struct s3_pair){"x-amz-checksum-mode", "ENABLED"};
    signed_headers[n++] = (struct s3_pair){"x-amz-content-sha256", signing.payload_hash};
    signed_headers[n++] = (struct s3_pair){"x-amz-date", time_text};
    if (call->origin)
        signed_headers[n++] = (struct s3_pair){"x-amz-meta-heddle-manifest", call->origin};
    if (*keys->session)
        signed_headers[n++] = (struct s3_pair){"x-amz-security-token", keys->session};
    signing.header_count = n;
    for (size_t i = 1; i < n && base.data; i++)
        hd_text_add(&lines[k++], "%s: %s", signed_headers[i].name, signed_headers[i].value);
    if (*keys->id) {
        s3_sign(&signing, &signature);
        hd_text_add(&lines[k++], "Authorization: %s", signature.data ? signature.data : "");
    }
    if (call->etag)
        hd_text_add(&lines[k++], "If-Match: \"%s\"", call->etag);
    if (call->is_first)
        hd_text_add(&lines[k++], "If-None-Match: *");
    hd_text_add(&url, "%s%s%s%s", base.data ? base.data : "", path.data ? path.data : "",
                query.len_bytes ? "?" : "", query.data ? query.data : "");
    if (base.failed || path.failed || query.failed || url.failed || signature.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a request");
    for (size_t i = 0; i < k && !st; i++) {
        headers[i] = lines[i].data;
        if (lines[i].failed)
            st = hd_err(HD_NO_MEMORY, "no memory for a request");
    }
    http.header_count = k;
    if (!st)
        st = hub_send(client, url.data, &http, ret_answer);
    for (size_t i = 0; i < k; i++) {
        if (lines[i].data)
            explicit_bzero(lines[i].data, lines[i].len_bytes);
        hd_text_free(&lines[i]);
    }
    hd_text_free(&base);
    hd_text_free(&path);
    hd_text_free(&query);
    hd_text_free(&url);
    hd_text_free(&signature);
    return st;
}

/* ---- answers ---- */

/* Appends a part of an error's XML, without control characters. */
static void copy_part(const char *page, const char *tag, char *ret_text, size_t size)
{
    struct hd_text text = {0};

    ret_text[0] = '\0';
    if (page && s3_find_text(page, page + strlen(page), tag, &text) && text.data)
        hub_copy_clean(text.data, ret_text, size);
    hd_text_free(&text);
}

static enum hd_status explain_refusal(struct hd_s3 *s3, const struct s3_call *call,
                                      const char *code, const char *message)
{
    char from[sizeof s3->keys_from] = "";

    (void)pthread_mutex_lock(&s3->mutex); /* another thread may renew the keys */
    if (!s3->settings->anonymous)
        memcpy(from, s3->keys_from, sizeof from);
    (void)pthread_mutex_unlock(&s3->mutex);

    if (strcmp(code, "SignatureDoesNotMatch") == 0)
        return hd_err(HD_DENIED,
                      "the store does not accept the signature of s3://%s: the secret key of %s is "
                      "not the one of its access key",
                      call->bucket, from);
    if (strcmp(code, "InvalidAccessKeyId") == 0)
        return hd_err(HD_DENIED, "the store does not know the access key of %s", from);
    if (strcmp(code, "ExpiredToken") == 0 || strcmp(code, "TokenRefreshRequired") == 0)
        return hd_err(HD_DENIED, "the session token of %s has expired; get a new one", from);
    if (s3->settings->anonymous)
        return hd_err(HD_DENIED,
                      "s3://%s/%s is not public; unset HEDDLE_S3_ANONYMOUS and give keys",
                      call->bucket, call->key);
    return hd_err(HD_DENIED,
                  "the keys of %s may not do this with s3://%s/%s, or there is no such object (a "
                  "store says so only to keys that may list the bucket)%s%s",
                  from, call->bucket, call->key, *message ? ". The store says: " : "", message);
}

enum hd_status s3_explain(struct hd_s3 *s3, const struct s3_call *call,
                          const struct hub_answer *answer, const char *page)
{
    char code[64], message[400], text[64];

    copy_part(page, "Code", code, sizeof code);
    copy_part(page, "Message", message, sizeof message);
    if (strcmp(code, "RequestTimeTooSkewed") == 0) {
        char now[S3_TIME_MAX];

        copy_part(page, "ServerTime", text, sizeof text);
        s3_format_time((time_t)(hd_clock_wall_ms() / 1000), now);
        return hd_err(HD_DENIED,
                      "the store refuses the request because the clocks differ: its clock says %s, "
                      "this machine's clock %s; set this machine's clock",
                      *text ? text : answer->date, now);
    }
    if (strcmp(code, "NoSuchBucket") == 0)
        return hd_err(HD_NOT_FOUND, "there is no bucket %s at %s", call->bucket, answer->host);
    if (answer->status == 404)
        return hd_err(HD_NOT_FOUND, "there is no object s3://%s/%s", call->bucket, call->key);
    if (answer->status == 403 || answer->status == 401)
        return explain_refusal(s3, call, code, message);
    if (answer->status == 412)
        return hd_err(HD_CONFLICT,
                      "s3://%s/%s was changed while it was read; the same command reads it again",
                      call->bucket, call->key);
    if (answer->status == 301 || answer->status == 307) {
        char region[sizeof s3->region];

        (void)pthread_mutex_lock(&s3->mutex);
        memcpy(region, s3->region, sizeof region);
        (void)pthread_mutex_unlock(&s3->mutex);
        return hd_err(HD_INVALID, "the bucket %s is in another region%s%s than %s; set AWS_REGION",
                      call->bucket, *answer->region ? ", " : "", answer->region, region);
    }
    return hd_err(
        (answer->status >= 500 && answer->status != 501) || answer->status == 429 ? HD_UNAVAILABLE
                                                                                  : HD_INVALID,
        "%s answers with HTTP status %d for s3://%s/%s%s%s%s%s", answer->host, answer->status,
        call->bucket, call->key, *code ? ": " : "", code, *message ? ": " : "", message);
}

/* Takes another region for the bucket, if the answer names one. */
static bool learn_region(struct hd_s3 *s3, const struct hub_answer *answer, const char *page,
                         const char *signed_region)
{
    char region[64];
    bool is_new;

    if (answer->status != 301 && answer->status != 307 && answer->status != 400)
        return false;
    copy_part(page, "Region", region, sizeof region);
    if (*answer->region)
        (void)snprintf(region, sizeof region, "%s", answer->region);
    for (const char *at = region; *at; at++)
        if (!isalnum((unsigned char)*at) && *at != '-')
            return false;
    is_new = *region && strcmp(region, signed_region) != 0;
    if (is_new) {
        (void)pthread_mutex_lock(&s3->mutex);
        memcpy(s3->region, region, sizeof region);
        (void)pthread_mutex_unlock(&s3->mutex);
    }
    return is_new;
}

static bool may_retry(const struct hub_answer *answer, const char *page)
{
    const int s = answer->status;

    return s == 429 || s == 500 || s == 502 || s == 503 || s == 504 || s == 408 ||
           (page && strstr(page, "<Code>RequestTimeout</Code>"));
}

/* Sleeps before a repetition: a random part of a limit that doubles with each. */
enum hd_status s3_pause(struct hd_s3 *s3, int try, const struct hub_answer *answer,
                        const volatile sig_atomic_t *stop)
{
    int64_t most_ms = s3->settings->pause_ms << (try < 16 ? try - 1 : 15);
    uint64_t noise = 0;

    if (most_ms > DEFAULT_PAUSE_MAX_MS)
        most_ms = DEFAULT_PAUSE_MAX_MS;
    (void)hd_random_bytes(&noise, sizeof noise); /* on failure: the shortest pause */
    if (answer->status == 503 || answer->status == 429)
        (void)__atomic_add_fetch(&s3->slow, 1, __ATOMIC_RELAXED);
    if (answer->status && answer->retry_after_s > 0 && answer->retry_after_s < 60)
        return hub_sleep(answer->retry_after_s * 1000, stop);
    return hub_sleep((int64_t)(noise % (uint64_t)(most_ms + 1)), stop);
}

/* Sends a request once. HD_UNAVAILABLE, HD_TIMEOUT: *ret_answer has status 0, or one for which
 * may_retry is true. */
static enum hd_status send_once(struct hd_s3 *s3, struct hub_client *client, struct s3_call *call,
                                struct hd_text *page, struct hub_answer *ret_answer)
{
    struct hd_s3_keys keys;
    char region[64];
    enum hd_status st = take_keys(s3, &keys, region);

    *ret_answer = (struct hub_answer){.retry_after_s = -1, .length = -1};
    for (int regions = 0; !st; regions++) {
        if (call->reply)
            hd_text_clear(call->reply);
        hd_text_clear(page);
        st = send_signed(s3, client, call, region, &keys, page, ret_answer);
        if (st || regions || !learn_region(s3, ret_answer, page->data, region))
            break;
        st = take_keys(s3, &keys, region);
    }
    explicit_bzero(&keys, sizeof keys);
    if (st)
        return st;
    if (ret_answer->status == 200 || ret_answer->status == 204 || ret_answer->status == 206)
        return HD_OK;
    if (call->may_lack && ret_answer->status == 404 &&
        !(page->data && strstr(page->data, "NoSuchBucket")))
        return HD_NOT_FOUND;
    st = s3_explain(s3, call, ret_answer, page->data);
    return may_retry(ret_answer, page->data) ? HD_UNAVAILABLE : st;
}

enum hd_status s3_send(struct hd_s3 *s3, struct hub_client *client, const struct s3_call *call,
                       struct hub_answer *ret_answer)
{
    struct s3_call copy = *call;
    struct hd_text page = {0};
    enum hd_status st;

    if (copy.reply && !copy.sink) {
        copy.sink = hub_take_text;
        copy.user = copy.reply;
    }
    for (int try = 1;; try++) {
        st = send_once(s3, client, &copy, &page, ret_answer);
        if ((st != HD_UNAVAILABLE && st != HD_TIMEOUT) || call->once ||
            try == (ret_answer->status ? S3_TRIES : NO_ANSWER_TRIES))
            break;
        st = s3_pause(s3, try, ret_answer, s3->stop);
        if (st)
            break;
    }
    hd_text_free(&page);
    return st;
}
