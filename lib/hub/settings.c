/* settings: reads the environment variables of huggingface_hub. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/file.h"
#include "hub_internal.h"

enum { TOKEN_FILE_BYTES_MAX = 4096, PAUSE_MS = 1000 };

/* Returns the value of a variable; NULL: it is not set, or empty. */
const char *hub_variable(const char *name)
{
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

/* Returns whether a variable is one of the words that huggingface_hub takes for true. */
bool hub_is_on(const char *name)
{
    static const char *const words[] = {"1", "ON", "YES", "TRUE"};
    const char *value = hub_variable(name);

    for (size_t i = 0; value && i < sizeof words / sizeof words[0]; i++)
        if (strcasecmp(value, words[i]) == 0)
            return true;
    return false;
}

enum hd_status hub_copy_setting(const char *what, const char *text, char *ret_text, size_t size)
{
    if (strlen(text) >= size)
        return hd_err(HD_INVALID, "%s: longer than %zu bytes", what, size - 1);
    memcpy(ret_text, text, strlen(text) + 1);
    return HD_OK;
}

/* Sets ret_path to the path in the variable, else to the one that `other` and `below` make; "~/"
 * at its beginning is the home folder. */
static enum hd_status find_folder(const char *name, const char *other, const char *below,
                                  char ret_path[PATH_MAX])
{
    const char *value = hub_variable(name), *home = hub_variable("HOME");
    struct hd_text path = {0};
    char cwd[PATH_MAX];
    enum hd_status st = HD_OK;

    if (value && hd_text_starts(value, "~/") && home)
        hd_text_add(&path, "%s%s", home, value + 1);
    else if (value && value[0] != '/')
        hd_text_add(&path, "%s/%s", getcwd(cwd, sizeof cwd) ? cwd : "", value);
    else if (value)
        hd_text_add(&path, "%s", value);
    else
        hd_text_add(&path, "%s/%s", other, below);
    if (path.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a path");
    while (!st && path.len_bytes > 1 && path.data[path.len_bytes - 1] == '/')
        path.data[--path.len_bytes] = '\0';
    if (!st)
        st = hub_copy_setting(name, path.data, ret_path, PATH_MAX);
    hd_text_free(&path);
    return st;
}

/* Sets ret_home to $HF_HOME, which is ~/.cache/huggingface by default. */
static enum hd_status find_home(char ret_home[PATH_MAX])
{
    const char *cache = hub_variable("XDG_CACHE_HOME"), *home = hub_variable("HOME");
    char base[PATH_MAX];

    if (!hub_variable("HF_HOME") && !cache && !home)
        return hd_err(HD_INVALID, "neither HF_HOME nor HOME is set, so there is no folder for "
                                  "models of the hub; set HF_HOME");
    if (cache && strlen(cache) < sizeof base)
        (void)hub_copy_setting("XDG_CACHE_HOME", cache, base, sizeof base);
    else
        (void)snprintf(base, sizeof base, "%s/.cache", home ? home : "");
    return find_folder("HF_HOME", base, "huggingface", ret_home);
}

/* Copies a token without the white space around it. HD_INVALID: it has other characters than a
 * token has, of which a line break would end the header. */
static enum hd_status take_token(const char *text, const char *from,
                                 struct hd_hub_settings *settings)
{
    const char *begin = text + strspn(text, " \t\r\n");
    const size_t count = strcspn(begin, " \t\r\n");

    if (begin[count + strspn(begin + count, " \t\r\n")])
        return hd_err(HD_INVALID, "%s: is no token: it has blanks or several lines", from);
    if (count >= sizeof settings->token)
        return hd_err(HD_INVALID, "%s: is no token: longer than %zu bytes", from,
                      sizeof settings->token - 1);
    for (size_t i = 0; i < count; i++)
        if ((unsigned char)begin[i] <= 0x20 || (unsigned char)begin[i] >= 0x7f)
            return hd_err(HD_INVALID, "%s: is no token: it has characters that no token has", from);
    memcpy(settings->token, begin, count);
    settings->token[count] = '\0';
    if (count)
        (void)snprintf(settings->token_from, sizeof settings->token_from, "%s", from);
    return HD_OK;
}

static enum hd_status find_token(const char *home, struct hd_hub_settings *settings)
{
    static const char *const names[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"};
    char path[PATH_MAX];
    struct hd_text text = {0};
    enum hd_status st;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (hub_variable(names[i]))
            return take_token(hub_variable(names[i]), names[i], settings);
    if (hub_is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN"))
        return HD_OK;
    st = find_folder("HF_TOKEN_PATH", home, "token", path);
    if (st)
        return st;
    st = hd_file_read(path, TOKEN_FILE_BYTES_MAX, &text);
    if (st == HD_NOT_FOUND)
        st = HD_OK;
    else if (!st && text.data)
        st = take_token(text.data, path, settings);
    if (text.data)
        explicit_bzero(text.data, text.len_bytes);
    hd_text_free(&text);
    return st;
}

/* Returns whether the host at the beginning of `at` is this machine. Not if a user is named, as in
 * localhost:x@HOST, where "localhost" is no host. */
static bool is_loopback(const char *at)
{
    static const char *const hosts[] = {"localhost", "127.0.0.1", "[::1]"};

    if (memchr(at, '@', strcspn(at, "/?#\\")))
        return false;
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++)
        if (hd_text_starts(at, hosts[i]) && strchr(":/", at[strlen(hosts[i])]))
            return true;
    return false;
}

bool hub_url_is_allowed(const char *url)
{
    if (hd_text_starts(url, "https://"))
        return true;
    return hd_text_starts(url, "http://") && is_loopback(url + strlen("http://"));
}

static enum hd_status find_endpoint(struct hd_hub_settings *settings)
{
    const char *value = hub_variable("HF_ENDPOINT");
    enum hd_status st = hub_copy_setting("HF_ENDPOINT", value ? value : "https://huggingface.co",
                                         settings->endpoint, sizeof settings->endpoint);
    size_t n = strlen(settings->endpoint);

    while (n && settings->endpoint[n - 1] == '/')
        settings->endpoint[--n] = '\0';
    if (!st && (!hub_url_is_allowed(settings->endpoint) || strpbrk(settings->endpoint, "@?# \n")))
        st = hd_err(HD_INVALID, "HF_ENDPOINT: write https://HOST[:PORT][/PREFIX]; http:// is "
                                "allowed for this machine only, since a token would be readable");
    return st;
}

enum hd_status hd_hub_read_settings(struct hd_hub_settings *ret_settings)
{
    static const char *const authorities[] = {"SSL_CERT_FILE", "CURL_CA_BUNDLE",
                                              "REQUESTS_CA_BUNDLE"};
    struct hd_hub_settings settings = {.pause_ms = PAUSE_MS};
    char home[PATH_MAX];
    enum hd_status st = find_home(home);

    if (!st)
        st = find_folder(hub_variable("HF_HUB_CACHE") ? "HF_HUB_CACHE" : "HUGGINGFACE_HUB_CACHE",
                         home, "hub", settings.cache);
    if (!st)
        st = find_token(home, &settings);
    if (!st)
        st = find_endpoint(&settings);
    for (size_t i = 0; !st && i < sizeof authorities / sizeof authorities[0]; i++)
        if (!*settings.ca_file && hub_variable(authorities[i]))
            st = hub_copy_setting(authorities[i], hub_variable(authorities[i]), settings.ca_file,
                                  sizeof settings.ca_file);
    settings.offline = hub_is_on("HF_HUB_OFFLINE") || hub_is_on("TRANSFORMERS_OFFLINE");
    if (!st)
        *ret_settings = settings;
    explicit_bzero(settings.token, sizeof settings.token);
    return st;
}
