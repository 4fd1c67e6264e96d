/* s3_settings: reads the variables and files of Amazon's command.
 *
 * Keys are those of the first source that has any: the environment; a web identity; the profile
 * AWS_PROFILE, else `default`, of ~/.aws/credentials and ~/.aws/config; a container; the machine.
 * The files of the last two and of web identities are read when they are needed, since their keys
 * expire (s3_keys.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "s3_internal.h"

enum { FILE_BYTES_MAX = 1 << 20, PAUSE_MS = 200 };

/* Copies a key or a token. HD_INVALID: it has characters that none has, of which a line break would
 * end a header; the message has no part of it. */
static enum hd_status copy_secret(const char *what, const char *text, char *ret_text, size_t size)
{
    for (const char *at = text; *at; at++)
        if ((unsigned char)*at <= 0x20 || (unsigned char)*at >= 0x7f)
            return hd_err(HD_INVALID, "%s: it has blanks or characters that no key has", what);
    return hub_copy_setting(what, text, ret_text, size);
}

/* ---- profiles ---- */

/* Finds the value of a key in a section of an INI file, and copies it; false: it has none. */
static bool find_value(const char *text, const char *section, const char *key, char *ret_value,
                       size_t size)
{
    bool inside = false, found = false;

    while (*text) {
        const size_t n = strcspn(text, "\n");
        const char *at = text + strspn(text, " \t\r"), *end = text + n;

        while (end > at && strchr(" \t\r", end[-1]))
            end--;
        if (at < end && *at == '[') {
            const size_t length = strlen(section);

            inside = (size_t)(end - at) == length + 2 && memcmp(at + 1, section, length) == 0;
        } else if (inside && at < end && at == text && (size_t)(end - at) > strlen(key) &&
                   strncasecmp(at, key, strlen(key)) == 0) {
            const char *value = at + strlen(key) + strspn(at + strlen(key), " \t");

            if (*value == '=') {
                value += 1 + strspn(value + 1, " \t");
                found = (size_t)(end > value ? end - value : 0) < size;
                (void)snprintf(ret_value, size, "%.*s", end > value ? (int)(end - value) : 0,
                               value);
            }
        }
        text += n + (text[n] == '\n');
    }
    return found;
}

/* Reads $NAME, else ~/.aws/FILE. An absent file is an empty text. */
static enum hd_status read_file(const char *name, const char *file, struct hd_text *ret_text,
                                char ret_path[PATH_MAX])
{
    const char *value = hub_variable(name), *home = hub_variable("HOME");
    enum hd_status st;

    ret_path[0] = '\0';
    if (value && hd_text_starts(value, "~/") && home)
        (void)snprintf(ret_path, PATH_MAX, "%s%s", home, value + 1);
    else if (value)
        (void)snprintf(ret_path, PATH_MAX, "%s", value);
    else if (home)
        (void)snprintf(ret_path, PATH_MAX, "%s/.aws/%s", home, file);
    st = *ret_path ? hd_file_read(ret_path, FILE_BYTES_MAX, ret_text) : HD_OK;
    hd_text_add(ret_text, "%s", "");
    if (st == HD_NOT_FOUND && !value)
        st = HD_OK;
    return st;
}

/* Notes why a profile without keys cannot be used. */
static void explain_profile(const char *config, const char *section, const char *profile,
                            const char *path, struct hd_s3_settings *s)
{
    static const char *const others[] = {"sso_session", "sso_start_url", "role_arn",
                                         "credential_process", "login_session"};
    char value[512];

    for (size_t i = 0; i < sizeof others / sizeof others[0] && !*s->keys_problem; i++)
        if (find_value(config, section, others[i], value, sizeof value))
            (void)snprintf(s->keys_problem, sizeof s->keys_problem,
                           "the profile %.60s of %.200s has %s, which Heddle does not read; write "
                           "the keys into the environment: eval \"$(aws configure "
                           "export-credentials --profile %.60s --format env)\"",
                           profile, path, others[i], profile);
}

static enum hd_status take_profile_keys(const char *text, const char *section, const char *path,
                                        struct hd_s3_settings *s)
{
    char id[HD_S3_SECRET_MAX], secret[HD_S3_SECRET_MAX], *session = calloc(1, HD_S3_SESSION_MAX);
    enum hd_status st = session ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for keys");

    if (!st && find_value(text, section, "aws_access_key_id", id, sizeof id) &&
        find_value(text, section, "aws_secret_access_key", secret, sizeof secret)) {
        (void)find_value(text, section, "aws_session_token", session, HD_S3_SESSION_MAX);
        st = copy_secret(path, id, s->keys.id, sizeof s->keys.id);
        if (!st)
            st = copy_secret(path, secret, s->keys.secret, sizeof s->keys.secret);
        if (!st)
            st = copy_secret(path, session, s->keys.session, sizeof s->keys.session);
        (void)snprintf(s->keys_from, sizeof s->keys_from, "%s", path);
        explicit_bzero(secret, sizeof secret);
    }
    if (session)
        explicit_bzero(session, HD_S3_SESSION_MAX);
    free(session);
    return st;
}

static enum hd_status read_profile(struct hd_s3_settings *s)
{
    const char *profile = hub_variable("AWS_PROFILE");
    char section[160], path[2][PATH_MAX];
    struct hd_text credentials = {0}, config = {0};
    enum hd_status st =
        read_file("AWS_SHARED_CREDENTIALS_FILE", "credentials", &credentials, path[0]);

    if (!st)
        st = read_file("AWS_CONFIG_FILE", "config", &config, path[1]);
    if (!st && (credentials.failed || config.failed))
        st = hd_err(HD_NO_MEMORY, "no memory for a file");
    (void)snprintf(section, sizeof section, "%s%.140s",
                   profile && strcmp(profile, "default") != 0 ? "profile " : "",
                   profile ? profile : "default");
    profile = profile ? profile : "default";
    if (!st && !*s->region)
        (void)find_value(config.data, section, "region", s->region, sizeof s->region);
    if (!st && !*s->endpoint)
        (void)find_value(config.data, section, "endpoint_url", s->endpoint, sizeof s->endpoint);
    if (!st && !*s->keys.id && !*s->identity_token_file) {
        st = take_profile_keys(credentials.data, profile, path[0], s);
        if (!st && !*s->keys.id)
            st = take_profile_keys(config.data, section, path[1], s);
        if (!st && !*s->keys.id)
            explain_profile(config.data, section, profile, path[1], s);
        if (!st && !*s->keys.id && !*s->keys_problem && hub_variable("AWS_PROFILE"))
            (void)snprintf(s->keys_problem, sizeof s->keys_problem,
                           "AWS_PROFILE is %.60s, and neither %.180s nor %.180s has keys of it",
                           profile, path[0], path[1]);
    }
    if (credentials.data)
        explicit_bzero(credentials.data, credentials.len_bytes);
    if (config.data)
        explicit_bzero(config.data, config.len_bytes);
    hd_text_free(&credentials);
    hd_text_free(&config);
    return st;
}

/* ---- the environment ---- */

static enum hd_status read_keys(struct hd_s3_settings *s)
{
    const char *id = hub_variable("AWS_ACCESS_KEY_ID"),
               *secret = hub_variable("AWS_SECRET_ACCESS_KEY");
    enum hd_status st = HD_OK;

    if (!id && !secret)
        return HD_OK;
    if (!id || !secret)
        return hd_err(HD_INVALID, "%s is set without %s; set both, or neither",
                      id ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
                      id ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
    st = copy_secret("AWS_ACCESS_KEY_ID", id, s->keys.id, sizeof s->keys.id);
    if (!st)
        st = copy_secret("AWS_SECRET_ACCESS_KEY", secret, s->keys.secret, sizeof s->keys.secret);
    if (!st && hub_variable("AWS_SESSION_TOKEN"))
        st = copy_secret("AWS_SESSION_TOKEN", hub_variable("AWS_SESSION_TOKEN"), s->keys.session,
                         sizeof s->keys.session);
    (void)snprintf(s->keys_from, sizeof s->keys_from, "AWS_ACCESS_KEY_ID");
    return st;
}

/* Reads where a container or a pod gets its keys. */
static enum hd_status read_container(struct hd_s3_settings *s)
{
    const char *relative = hub_variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    const char *full = hub_variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    const char *endpoint = hub_variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    enum hd_status st = HD_OK;

    if (relative)
        (void)snprintf(s->container_url, sizeof s->container_url, "http://169.254.170.2%s%.400s",
                       relative[0] == '/' ? "" : "/", relative);
    else if (full)
        st = hub_copy_setting("AWS_CONTAINER_CREDENTIALS_FULL_URI", full, s->container_url,
                              sizeof s->container_url);
    if (!st && full && !relative && !hub_url_is_allowed(full) &&
        !hd_text_starts(full, "http://169.254.170.2/") &&
        !hd_text_starts(full, "http://169.254.170.23/") &&
        !hd_text_starts(full, "http://[fd00:ec2::23]/"))
        st = hd_err(HD_INVALID, "AWS_CONTAINER_CREDENTIALS_FULL_URI: http:// is allowed for this "
                                "machine and the addresses of ECS and EKS alone");
    if (!st && hub_variable("AWS_CONTAINER_AUTHORIZATION_TOKEN"))
        st = copy_secret("AWS_CONTAINER_AUTHORIZATION_TOKEN",
                         hub_variable("AWS_CONTAINER_AUTHORIZATION_TOKEN"), s->container_token,
                         sizeof s->container_token);
    if (!st && hub_variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"))
        st = hub_copy_setting("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                              hub_variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
                              s->container_token_file, sizeof s->container_token_file);
    if (!st && !hub_is_on("AWS_EC2_METADATA_DISABLED"))
        st = hub_copy_setting("AWS_EC2_METADATA_SERVICE_ENDPOINT",
                              endpoint ? endpoint : "http://169.254.169.254", s->metadata_endpoint,
                              sizeof s->metadata_endpoint);
    return st;
}

static enum hd_status read_identity(struct hd_s3_settings *s)
{
    const char *file = hub_variable("AWS_WEB_IDENTITY_TOKEN_FILE"),
               *role = hub_variable("AWS_ROLE_ARN");
    enum hd_status st = HD_OK;

    if (file && role && !*s->keys.id) {
        st = hub_copy_setting("AWS_WEB_IDENTITY_TOKEN_FILE", file, s->identity_token_file,
                              sizeof s->identity_token_file);
        if (!st)
            st = hub_copy_setting("AWS_ROLE_ARN", role, s->identity_role, sizeof s->identity_role);
        if (!st && hub_variable("AWS_ENDPOINT_URL_STS"))
            st = hub_copy_setting("AWS_ENDPOINT_URL_STS", hub_variable("AWS_ENDPOINT_URL_STS"),
                                  s->sts_endpoint, sizeof s->sts_endpoint);
    }
    return st;
}

/* Checks the endpoint, which is a URL for requests with signatures. */
static enum hd_status check_endpoint(struct hd_s3_settings *s)
{
    size_t n = strlen(s->endpoint);

    while (n && s->endpoint[n - 1] == '/')
        s->endpoint[--n] = '\0';
    if (!n)
        return HD_OK;
    if ((!hd_text_starts(s->endpoint, "https://") && !hd_text_starts(s->endpoint, "http://")) ||
        strpbrk(s->endpoint, "@?# \n"))
        return hd_err(HD_INVALID, "AWS_ENDPOINT_URL: write https://HOST[:PORT][/PREFIX]");
    /* signatures do not reveal the keys, but a session token and the data would be readable */
    if (!hub_url_is_allowed(s->endpoint) && !hub_is_on("HEDDLE_S3_PLAIN_HTTP"))
        return hd_err(HD_INVALID,
                      "AWS_ENDPOINT_URL is %s: without TLS, data and session tokens can be read "
                      "and changed on their way; write https://, or set HEDDLE_S3_PLAIN_HTTP=1 in "
                      "a network that you trust",
                      s->endpoint);
    return HD_OK;
}

static enum hd_status find_cache(struct hd_s3_settings *s)
{
    const char *given = hub_variable("HEDDLE_S3_CACHE"), *cache = hub_variable("XDG_CACHE_HOME"),
               *home = hub_variable("HOME");
    char path[PATH_MAX];

    if (given && given[0] != '/')
        return hd_err(HD_INVALID, "HEDDLE_S3_CACHE: %.200s is not absolute", given);
    if (given)
        (void)snprintf(path, sizeof path, "%s", given);
    else if (cache && cache[0] == '/')
        (void)snprintf(path, sizeof path, "%.4000s/heddle/s3", cache);
    else if (home && home[0] == '/')
        (void)snprintf(path, sizeof path, "%.4000s/.cache/heddle/s3", home);
    else
        path[0] = '\0';
    return hub_copy_setting("HEDDLE_S3_CACHE", path, s->cache, sizeof s->cache);
}

enum hd_status hd_s3_read_settings(struct hd_s3_settings *ret_settings)
{
    static const char *const regions[] = {"AWS_REGION", "AWS_DEFAULT_REGION"};
    static const char *const endpoints[] = {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"};
    static const char *const authorities[] = {"AWS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE"};
    struct hd_s3_settings *s = ret_settings;
    enum hd_status st;

    *s = (struct hd_s3_settings){.pause_ms = PAUSE_MS};
    s->anonymous = hub_is_on("HEDDLE_S3_ANONYMOUS");
    st = find_cache(s);
    for (size_t i = 0; !st && i < 2; i++)
        if (!*s->region && hub_variable(regions[i]))
            st = copy_secret(regions[i], hub_variable(regions[i]), s->region, sizeof s->region);
    for (size_t i = 0; !st && i < 2; i++)
        if (!*s->endpoint && hub_variable(endpoints[i]))
            st = hub_copy_setting(endpoints[i], hub_variable(endpoints[i]), s->endpoint,
                                  sizeof s->endpoint);
    for (size_t i = 0; !st && i < sizeof authorities / sizeof authorities[0]; i++)
        if (!*s->ca_file && hub_variable(authorities[i]))
            st = hub_copy_setting(authorities[i], hub_variable(authorities[i]), s->ca_file,
                                  sizeof s->ca_file);
    if (!st)
        st = read_keys(s);
    if (!st)
        st = read_identity(s);
    if (!st)
        st = read_profile(s);
    if (!st)
        st = read_container(s);
    if (!st)
        st = check_endpoint(s);
    if (st)
        explicit_bzero(s, sizeof *s);
    return st;
}
