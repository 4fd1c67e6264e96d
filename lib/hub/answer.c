/* answer: what the hub's answers mean, as messages that say what to do. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/random.h"
#include "hub_internal.h"

bool hub_may_retry(const struct hub_answer *answer)
{
    const int s = answer->status;

    /* a host behind a redirect refuses a signed URL that has expired; a new request gets a new
     * one */
    return s == 408 || s == 429 || s == 500 || s == 502 || s == 503 || s == 504 ||
           (s == 403 && !answer->by_endpoint);
}

enum hd_status hub_take_text(void *user, const struct hub_answer *answer, const void *bytes,
                             size_t count)
{
    struct hd_text *text = user;

    if (text->len_bytes + count > HUB_API_BYTES_MAX)
        return hd_err(HD_LIMIT, "%s sends an answer of more than %d MiB", answer->host,
                      HUB_API_BYTES_MAX >> 20);
    hd_text_add_bytes(text, bytes, count);
    return text->failed ? hd_err(HD_NO_MEMORY, "no memory for an answer") : HD_OK;
}

/* Returns "model" or "data set", for messages. */
static const char *kind_of(const struct hd_hub_name *name)
{
    return name->is_dataset ? "data set" : "model";
}

static enum hd_status explain_denied(const struct hd_hub_settings *s,
                                     const struct hd_hub_name *name,
                                     const struct hub_answer *answer)
{
    const char *folder = name->is_dataset ? "datasets/" : "";

    if (strstr(answer->error_message, "Invalid credentials"))
        return hd_err(HD_DENIED,
                      "the hub does not accept the token of %s; make a new one at "
                      "%s/settings/tokens, or unset it for public models",
                      *s->token_from ? s->token_from : "this request", s->endpoint);
    if (strcmp(answer->error_code, "GatedRepo") == 0)
        return hd_err(HD_DENIED,
                      "the %s %s is gated: accept its terms at %s/%s%s with your account, then set "
                      "HF_TOKEN to a token of it%s%s",
                      kind_of(name), name->repo, s->endpoint, folder, name->repo,
                      *answer->error_message ? ". The hub says: " : "", answer->error_message);
    if (answer->status == 401)
        return hd_err(HD_NOT_FOUND,
                      "there is no %s %s on %s, or it is private or gated%s: check the name; %s",
                      kind_of(name), name->repo, s->endpoint,
                      *s->token ? " and the token may not read it" : "",
                      *s->token ? "look whether the token's account may see it"
                                : "for a private one set HF_TOKEN to your token");
    if (!*s->token)
        return hd_err(HD_DENIED,
                      "the hub refuses the %s %s to a request without a token; look at %s/%s%s, or "
                      "set HF_TOKEN to your token%s%s",
                      kind_of(name), name->repo, s->endpoint, folder, name->repo,
                      *answer->error_message ? ". The hub says: " : "", answer->error_message);
    return hd_err(HD_DENIED,
                  "the token of %s has no right to read the %s %s (a fine-grained token needs it "
                  "listed)%s%s",
                  s->token_from, kind_of(name), name->repo,
                  *answer->error_message ? ". The hub says: " : "", answer->error_message);
}

enum hd_status hub_explain(const struct hd_hub_settings *settings, const struct hd_hub_name *name,
                           const struct hub_answer *answer, const char *what)
{
    if ((answer->status == 401 || answer->status == 403) && answer->by_endpoint)
        return explain_denied(settings, name, answer);
    if (answer->status == 404 && strcmp(answer->error_code, "RevisionNotFound") == 0)
        return hd_err(
            HD_NOT_FOUND,
            "the %s %s has no branch, tag or commit %s; its branches are shown at %s/%s%s",
            kind_of(name), name->repo, name->revision, settings->endpoint,
            name->is_dataset ? "datasets/" : "", name->repo);
    if (answer->status == 404 && what)
        return hd_err(HD_NOT_FOUND,
                      "the hub lists %s of %s and does not have it; name another revision", what,
                      name->repo);
    if (answer->status == 404)
        return hd_err(
            HD_NOT_FOUND,
            "there is no %s %s on %s, or it is private: check the name; for a private one "
            "set HF_TOKEN to your token%s",
            kind_of(name), name->repo, settings->endpoint,
            name->is_dataset ? "; a model is named without --dataset or datasets/"
                             : "; a data set is named with --dataset or datasets/");
    if (answer->status == 429) {
        char window[48] = "";

        if (answer->retry_after_s >= 0)
            (void)snprintf(window, sizeof window, " for another %lld s",
                           (long long)answer->retry_after_s);
        return hd_err(
            HD_UNAVAILABLE, "the hub refuses requests%s, since there were too many; %s", window,
            *settings->token ? "try again later" : "with a token (HF_TOKEN) the limit is higher");
    }
    return hd_err(HD_UNAVAILABLE, "%s answers with HTTP status %d%s%s%s%s", answer->host,
                  answer->status, what ? " for " : "", what ? what : "",
                  *answer->error_message ? ": " : "", answer->error_message);
}

enum hd_status hub_sleep(int64_t pause_ms, const volatile sig_atomic_t *stop)
{
    const int64_t end_ms = hd_clock_now_ms() + pause_ms;

    for (int64_t left; (left = end_ms - hd_clock_now_ms()) > 0;) {
        const int64_t part = left < 50 ? left : 50;

        if (hub_is_stopped(stop))
            return hd_err(HD_ABORTED, "interrupted");
        (void)nanosleep(&(struct timespec){.tv_nsec = part * 1000000}, NULL);
    }
    return HD_OK;
}

enum hd_status hub_pause(const struct hd_hub_settings *settings, int try,
                         const struct hub_answer *answer, const volatile sig_atomic_t *stop)
{
    int64_t pause_ms = settings->pause_ms << (try - 1);
    uint64_t seed = 0;

    if (pause_ms > HUB_PAUSE_MAX_MS)
        pause_ms = HUB_PAUSE_MAX_MS;
    (void)hd_random_bytes(&seed, sizeof seed); /* on failure there is no jitter */
    pause_ms = pause_ms / 2 + (int64_t)(seed % (uint64_t)(pause_ms / 2 + 1));
    if (answer && answer->retry_after_s > HUB_WAIT_MAX_MS / 1000)
        return HD_UNAVAILABLE;
    if (answer && answer->retry_after_s >= 0)
        pause_ms = answer->retry_after_s * 1000;
    return hub_sleep(pause_ms, stop);
}
