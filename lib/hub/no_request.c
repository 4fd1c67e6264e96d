/* no_request: a build without libcurl, which reads the cache and downloads nothing. */
#include "hub_internal.h"

bool hd_hub_can_download(void)
{
    return false;
}

static enum hd_status cannot_download(void)
{
    return hd_err(
        HD_UNSUPPORTED,
        "this build of Heddle cannot download, since libcurl was not there when it was "
        "built: install libcurl4-openssl-dev (or libcurl4-gnutls-dev) and build again; or "
        "download with huggingface_hub (hf download), whose cache is read");
}

enum hd_status hub_client_new(const struct hd_hub_settings *settings,
                              const volatile sig_atomic_t *stop, struct hub_client **ret_client)
{
    (void)settings;
    (void)stop;
    *ret_client = NULL;
    return cannot_download();
}

void hub_client_free(struct hub_client *client)
{
    (void)client;
}

enum hd_status hub_get(struct hub_client *client, const char *url, int64_t from, hub_sink *sink,
                       void *user, struct hub_answer *ret_answer)
{
    (void)client;
    (void)url;
    (void)from;
    (void)sink;
    (void)user;
    (void)ret_answer;
    return cannot_download();
}

enum hd_status hub_send(struct hub_client *client, const char *url, const struct hub_call *call,
                        struct hub_answer *ret_answer)
{
    (void)client;
    (void)url;
    (void)call;
    (void)ret_answer;
    return cannot_download();
}

enum hd_status hub_next_page(char url[HUB_URL_MAX], const struct hub_answer *answer,
                             const struct hd_hub_settings *settings)
{
    (void)url;
    (void)answer;
    (void)settings;
    return cannot_download();
}
