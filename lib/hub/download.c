/* download: gets one file into the cache.
 *
 *     lock the blob --> the cache has it: link it
 *                   --> hash what FILE.incomplete has --> ask for the rest, until all is there
 *                       --> size and hash are right: rename to the blob's name, link it
 *                       --> wrong: begin again, once
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "hub_internal.h"
#include "pki/pki.h"

enum { WRONG_MAX = 2 };

struct download {
    struct hub_client *client;
    const struct hd_hub_request *request;
    const struct hd_hub_file *file;
    struct hd_text blob, url;
    struct hub_part part; /* FILE.incomplete */
    bool wrong; /* FILE.incomplete cannot become the file, so a retry begins with an empty one */
    bool begun; /* the answer under way has given bytes */
    bool whole; /* the next request asks for the whole file: the host sent a wrong range */
};

/* Begins the hash of the file: SHA-256 of a large one, else that of git, whose input begins with
 * the size. */
static enum hd_status begin_hash(struct hub_part *part, void *user)
{
    const struct download *d = user;
    const bool is_large = *d->file->sha256;
    char head[48];
    enum hd_status st = hd_pki_digest_new(is_large ? HD_PKI_SHA256 : HD_PKI_SHA1, part->digests);

    if (!st && !is_large) {
        const int n = snprintf(head, sizeof head, "blob %lld", (long long)d->file->size_bytes);

        hd_pki_digest_add(part->digests[0], head, (size_t)n + 1); /* the digest includes the NUL */
    }
    return st;
}

/* Empties FILE.incomplete, and begins the hash again. */
static enum hd_status begin_again(struct download *d)
{
    d->wrong = false;
    return hub_part_empty(&d->part);
}

/* Takes the next bytes of the file. */
static enum hd_status take(void *user, const struct hub_answer *answer, const void *bytes,
                           size_t count)
{
    struct download *d = user;
    enum hd_status st = HD_OK;

    if (!d->begun && answer->status == 206 && answer->range_begin != d->part.have) {
        d->whole = true;
        return hd_err(HD_UNAVAILABLE, "%s sent another part of %s than was asked for", answer->host,
                      d->file->path);
    }
    if (!d->begun && answer->status == 200 && d->part.have)
        st = begin_again(d); /* the host does not know ranges */
    d->begun = true;
    if (!st && (int64_t)count > d->file->size_bytes - d->part.have) {
        d->wrong = true;
        st = hd_err(HD_CORRUPT, "%s sent more than the %lld bytes of %s", answer->host,
                    (long long)d->file->size_bytes, d->file->path);
    }
    return st ? st : hub_part_add(&d->part, bytes, count);
}

/* Asks once for what is missing. *ret_answer: the answer, if *ret_answered. */
static enum hd_status ask(struct download *d, struct hub_answer *ret_answer)
{
    enum hd_status st = HD_OK;

    if (d->whole)
        st = begin_again(d);
    d->whole = false;
    d->begun = false;
    *ret_answer = (struct hub_answer){.retry_after_s = -1};
    if (!st)
        st = hub_get(d->client, d->url.data, d->part.have, take, d, ret_answer);
    if (!st && ret_answer->status == 416)
        d->whole = true; /* at the host the file is shorter than FILE.incomplete */
    return st;
}

/* Asks until FILE.incomplete has all bytes. */
static enum hd_status get_all(struct download *d)
{
    const struct hd_hub_settings *settings = d->request->settings;
    enum hd_status st = HD_OK;

    for (int tries = 0; !st && d->part.have < d->file->size_bytes;) {
        const int64_t before = d->part.have;
        struct hub_answer answer;
        bool is_body, has_answer;

        st = ask(d, &answer);
        has_answer = !st;
        is_body = has_answer && (answer.status == 200 || answer.status == 206);
        if (st && st != HD_UNAVAILABLE && st != HD_TIMEOUT)
            return st;
        if (is_body && d->part.have == d->file->size_bytes)
            return HD_OK;
        if (is_body)
            st = hd_err(HD_UNAVAILABLE, "%s sent only %lld of the %lld bytes of %s", answer.host,
                        (long long)d->part.have, (long long)d->file->size_bytes, d->file->path);
        else if (has_answer)
            st = hub_explain(settings, d->request->name, &answer, d->file->path);
        tries = d->part.have > before ? 1 : tries + 1;
        if (tries >= HUB_TRIES ||
            (has_answer && !is_body && answer.status != 416 && !hub_may_retry(&answer)))
            return st;
        st = hub_pause(settings, tries, has_answer && !is_body ? &answer : NULL, d->request->stop);
        if (st == HD_UNAVAILABLE)
            return hub_explain(settings, d->request->name, &answer, d->file->path);
    }
    return st;
}

/* Compares the hash of FILE.incomplete with that of the hub's list. */
static enum hd_status check_hash(struct download *d)
{
    char is[HD_PKI_HASH_TEXT_MAX];
    enum hd_status st = hd_pki_digest_end(d->part.digests[0], is);

    d->wrong = !st && strcmp(is, hub_etag(d->file)) != 0;
    if (d->wrong)
        st =
            hd_err(HD_CORRUPT,
                   "%s of %s arrives with other bytes than the hub lists: its hash is %.12s.., not "
                   "%.12s..; a proxy or a mirror changes it",
                   d->file->path, d->request->name->repo, is, hub_etag(d->file));
    return st;
}

/* Gets all bytes and checks them. Empties FILE.incomplete and begins again, once, if its bytes are
 * wrong; any other failure leaves it for the next download. */
static enum hd_status get_right(struct download *d)
{
    enum hd_status st = HD_OK;

    for (int wrong = 0; wrong < WRONG_MAX; wrong++) {
        struct hd_error error;

        st = get_all(d);
        if (!st)
            st = check_hash(d);
        if (!d->wrong)
            return st;
        hd_err_save(st, &error);
        st = begin_again(d);
        if (st)
            return st;
        st = hd_err_restore(&error);
    }
    return st;
}

/* Returns whether the cache has the blob; removes one of another size, left by a full disk. */
static bool has_blob(const struct download *d)
{
    struct stat info;

    if (stat(d->blob.data, &info) < 0)
        return false;
    if (S_ISREG(info.st_mode) && info.st_size == d->file->size_bytes)
        return true;
    (void)unlink(d->blob.data);
    return false;
}

static enum hd_status get_locked(struct download *d, const char *folder, const char *commit)
{
    enum hd_status st = HD_OK;

    if (has_blob(d)) {
        (void)__atomic_add_fetch(&d->part.meter->bytes, d->file->size_bytes, __ATOMIC_RELAXED);
    } else {
        st = hub_part_open(&d->part, 0666);
        if (!st)
            st = get_right(d);
        if (!st)
            st = hub_part_keep(&d->part, d->blob.data);
    }
    return st ? st : hub_link_blob(folder, commit, d->file);
}

static enum hd_status name_paths(struct download *d, const char *folder, const char *commit)
{
    const struct hd_hub_request *r = d->request;
    enum hd_status st;

    hd_text_add(&d->blob, "%s/blobs", folder);
    st = d->blob.failed ? HD_OK : hd_file_make_dirs(d->blob.data, 0777);
    hd_text_add(&d->blob, "/%s", hub_etag(d->file));
    hd_text_add(&d->part.path, "%s/blobs/%s.incomplete", folder, hub_etag(d->file));
    hub_add_resolve(&d->url, r->settings->endpoint, r->name, commit, d->file->path);
    if (d->blob.failed || d->part.path.failed || d->url.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a path");
    return st;
}

enum hd_status hub_download(struct hub_client *client, const struct hd_hub_request *request,
                            const char *folder, const char *commit, const struct hd_hub_file *file,
                            struct hub_meter *meter)
{
    struct download d = {.client = client, .request = request, .file = file};
    int lock = -1;
    enum hd_status st;

    d.part = (struct hub_part){.fd = -1,
                               .size_bytes = file->size_bytes,
                               .begin_digests = begin_hash,
                               .user = &d,
                               .meter = meter,
                               .stop = request->stop};
    st = name_paths(&d, folder, commit);
    if (!st)
        st = hub_lock_blob(request->settings->cache, request->name, hub_etag(file), request->stop,
                           &meter->waits, &lock);
    if (!st)
        st = get_locked(&d, folder, commit);
    hub_part_close(&d.part);
    if (lock >= 0)
        (void)close(lock);
    hd_text_free(&d.blob);
    hd_text_free(&d.url);
    return st;
}
