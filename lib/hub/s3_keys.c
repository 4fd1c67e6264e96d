/* s3_keys: keys that expire: of a web identity, of a container, of the machine. The services that
 * give them are on this machine or next to it, so they are asked with short limits, and never if
 * other keys are there. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "s3_internal.h"

enum {
    METADATA_TIMEOUT_MS = 1000,
    METADATA_TRIES = 2,
    SERVICE_TIMEOUT_MS = 5000,
    ANSWER_BYTES_MAX = 64 << 10,
    TOKEN_FILE_BYTES_MAX = 16 << 10
};

#define METADATA_PATH "/latest/meta-data/iam/security-credentials/"

static enum hd_status take_answer(void *user, const struct hub_answer *answer, const void *bytes,
                                  size_t count)
{
    struct hd_text *text = user;

    if (text->len_bytes + count > ANSWER_BYTES_MAX)
        return hd_err(HD_CORRUPT, "%s answers a request for keys with more than %d KiB",
                      answer->host, ANSWER_BYTES_MAX >> 10);
    hd_text_add_bytes(text, bytes, count);
    return HD_OK;
}

static enum hd_status ask_service(struct hub_client *client, const char *url, struct hub_call *call,
                                  struct hd_text *ret_text)
{
    struct hub_answer answer;
    enum hd_status st;

    hd_text_clear(ret_text);
    call->sink = take_answer;
    call->user = ret_text;
    st = hub_send(client, url, call, &answer);
    if (!st && answer.status != 200)
        st = hd_err(HD_UNAVAILABLE, "%s answers with HTTP status %d to a request for keys",
                    answer.host, answer.status);
    hd_text_add(ret_text, "%s", "");
    return st ? st : ret_text->failed ? hd_err(HD_NO_MEMORY, "no memory for keys") : HD_OK;
}

static bool copy_key(const char *text, char *ret_text, size_t size)
{
    for (const char *at = text; *at; at++)
        if ((unsigned char)*at <= 0x20 || (unsigned char)*at >= 0x7f)
            return false;
    if (!*text || strlen(text) >= size)
        return false;
    memcpy(ret_text, text, strlen(text) + 1);
    return true;
}

/* Returns the wall-clock time of "2026-11-29T18:00:00Z", ms; 0: it is none. */
static int64_t parse_time(const char *text)
{
    struct tm parts = {0};

    if (sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d", &parts.tm_year, &parts.tm_mon, &parts.tm_mday,
               &parts.tm_hour, &parts.tm_min, &parts.tm_sec) != 6)
        return 0;
    parts.tm_year -= 1900;
    parts.tm_mon--;
    return (int64_t)timegm(&parts) * 1000;
}

/* Reads {"AccessKeyId":..,"SecretAccessKey":..,"Token":..,"Expiration":..}. */
static enum hd_status read_json(const struct hd_text *text, const char *from,
                                struct hd_s3_keys *ret_keys)
{
    static const struct hd_json_limits limits = {.values_max = 1000, .depth_max = 8};
    const struct hd_json *root = NULL;
    const char *id = NULL, *secret = NULL, *session = NULL, *until = NULL;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_json_parse_repeated(&arena, text->data, text->len_bytes, &limits, &root);
    if (st || hd_json_need_string(root, "AccessKeyId", &id) ||
        hd_json_need_string(root, "SecretAccessKey", &secret) ||
        hd_json_need_string(root, "Token", &session) ||
        !copy_key(id, ret_keys->id, sizeof ret_keys->id) ||
        !copy_key(secret, ret_keys->secret, sizeof ret_keys->secret) ||
        !copy_key(session, ret_keys->session, sizeof ret_keys->session))
        st = hd_err(
            HD_CORRUPT,
            "%s sends no keys: AccessKeyId, SecretAccessKey or Token is missing or malformed",
            from);
    else if (!hd_json_need_string(root, "Expiration", &until))
        ret_keys->expires_ms = parse_time(until);
    hd_arena_done(&arena);
    return st;
}

static enum hd_status read_token_file(const char *path, struct hd_text *ret_text)
{
    enum hd_status st = hd_file_read(path, TOKEN_FILE_BYTES_MAX, ret_text);

    if (!st && ret_text->data)
        ret_text->data[strcspn(ret_text->data, "\r\n")] = '\0';
    hd_text_add(ret_text, "%s", "");
    return st;
}

static enum hd_status ask_container(const struct hd_s3_settings *s, struct hub_client *client,
                                    struct hd_s3_keys *ret_keys)
{
    struct hd_text text = {0}, token = {0}, line = {0};
    struct hub_call call = {.timeout_ms = SERVICE_TIMEOUT_MS};
    const char *header;
    enum hd_status st = HD_OK;

    if (*s->container_token_file)
        st = read_token_file(s->container_token_file, &token);
    hd_text_add(&line, "Authorization: %s", token.data ? token.data : s->container_token);
    header = line.data;
    if (token.len_bytes || *s->container_token) {
        call.headers = &header;
        call.header_count = 1;
    }
    if (!st)
        st = line.failed ? hd_err(HD_NO_MEMORY, "no memory for keys")
                         : ask_service(client, s->container_url, &call, &text);
    if (!st)
        st = read_json(&text, "the container's service", ret_keys);
    for (struct hd_text *t[] = {&text, &token, &line, NULL}, **at = t; *at; at++) {
        if ((*at)->data)
            explicit_bzero((*at)->data, (*at)->len_bytes);
        hd_text_free(*at);
    }
    return st;
}

/* Asks the machine's metadata service: a token, the name of the role, its keys. HD_NOT_FOUND: there
 * is no such service, or the machine has no role. */
static enum hd_status ask_machine(const struct hd_s3_settings *s, struct hub_client *client,
                                  struct hd_s3_keys *ret_keys)
{
    static const char *const ttl = "X-aws-ec2-metadata-token-ttl-seconds: 21600";
    struct hub_call first = {.method = "PUT",
                             .headers = &ttl,
                             .header_count = 1,
                             .has_body = true,
                             .body = "",
                             .timeout_ms = METADATA_TIMEOUT_MS};
    struct hub_call call = {.timeout_ms = METADATA_TIMEOUT_MS};
    struct hd_text url = {0}, text = {0}, line = {0};
    const char *header;
    enum hd_status st = HD_UNAVAILABLE;

    hd_text_add(&url, "%s/latest/api/token", s->metadata_endpoint);
    for (int try = 0; try < METADATA_TRIES && st && !url.failed; try++)
        st = ask_service(client, url.data, &first, &text);
    if (st) {
        hd_text_free(&url);
        hd_text_free(&text);
        return HD_NOT_FOUND;
    }
    hd_text_add(&line, "X-aws-ec2-metadata-token: %s", text.data);
    header = line.data;
    call.headers = &header;
    call.header_count = 1;
    hd_text_clear(&url);
    hd_text_add(&url, "%s" METADATA_PATH, s->metadata_endpoint);
    st = url.failed || line.failed || ask_service(client, url.data, &call, &text) ? HD_NOT_FOUND
                                                                                  : HD_OK;
    if (!st) {
        text.data[strcspn(text.data, "\r\n")] = '\0';
        hub_add_encoded(&url, text.data, "");
        st = url.failed ? hd_err(HD_NO_MEMORY, "no memory for keys")
                        : ask_service(client, url.data, &call, &text);
    }
    if (!st)
        st = read_json(&text, "the machine's metadata service", ret_keys);
    if (text.data)
        explicit_bzero(text.data, text.len_bytes);
    hd_text_free(&url);
    hd_text_free(&text);
    hd_text_free(&line);
    return st;
}

/* Exchanges the token of a web identity for keys. */
static enum hd_status ask_sts(const struct hd_s3_settings *s, const char *region,
                              struct hub_client *client, struct hd_s3_keys *ret_keys)
{
    static const char *const form = "Content-Type: application/x-www-form-urlencoded";
    struct hub_call call = {.method = "POST",
                            .headers = &form,
                            .header_count = 1,
                            .has_body = true,
                            .timeout_ms = SERVICE_TIMEOUT_MS};
    struct hd_text url = {0}, body = {0}, token = {0}, text = {0}, value = {0};
    enum hd_status st = read_token_file(s->identity_token_file, &token);

    if (*s->sts_endpoint)
        hd_text_add(&url, "%s/", s->sts_endpoint);
    else
        hd_text_add(&url, "https://sts.%s.amazonaws.com/", region);
    hd_text_add(&body, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleSessionName=heddle"
                       "&RoleArn=");
    hub_add_encoded(&body, s->identity_role, "");
    hd_text_add(&body, "&WebIdentityToken=");
    hub_add_encoded(&body, token.data ? token.data : "", "");
    call.body = body.data;
    call.body_bytes = (int64_t)body.len_bytes;
    if (!st && (url.failed || body.failed))
        st = hd_err(HD_NO_MEMORY, "no memory for keys");
    if (!st)
        st = ask_service(client, url.data, &call, &text);
    if (!st) {
        const char *end = text.data + text.len_bytes;

        if (!s3_find_text(text.data, end, "AccessKeyId", &value) ||
            !copy_key(value.data, ret_keys->id, sizeof ret_keys->id) ||
            !s3_find_text(text.data, end, "SecretAccessKey", &value) ||
            !copy_key(value.data, ret_keys->secret, sizeof ret_keys->secret) ||
            !s3_find_text(text.data, end, "SessionToken", &value) ||
            !copy_key(value.data, ret_keys->session, sizeof ret_keys->session))
            st = hd_err(HD_CORRUPT, "the service for web identities sends no keys");
        else if (s3_find_text(text.data, end, "Expiration", &value))
            ret_keys->expires_ms = parse_time(value.data);
    }
    for (struct hd_text *t[] = {&body, &token, &text, &value, NULL}, **at = t; *at; at++) {
        if ((*at)->data)
            explicit_bzero((*at)->data, (*at)->len_bytes);
        hd_text_free(*at);
    }
    hd_text_free(&url);
    return st;
}

enum hd_status s3_fetch_keys(const struct hd_s3_settings *settings, const char *region,
                             const volatile sig_atomic_t *stop, struct hd_s3_keys *ret_keys,
                             char *ret_from, size_t from_size)
{
    struct hd_hub_settings http = {.pause_ms = settings->pause_ms};
    struct hub_client *client = NULL;
    enum hd_status st;

    (void)snprintf(http.ca_file, sizeof http.ca_file, "%s", settings->ca_file);
    st = hub_client_new(&http, stop, &client);
    if (st)
        return st;
    if (*settings->identity_token_file) {
        (void)snprintf(ret_from, from_size, "the web identity of %s",
                       settings->identity_token_file);
        st = ask_sts(settings, region, client, ret_keys);
    } else if (*settings->container_url) {
        (void)snprintf(ret_from, from_size, "the container");
        st = ask_container(settings, client, ret_keys);
    } else if (*settings->metadata_endpoint) {
        (void)snprintf(ret_from, from_size, "the machine's metadata service");
        st = ask_machine(settings, client, ret_keys);
    } else {
        st = HD_NOT_FOUND;
    }
    hub_client_free(client);
    return st;
}
