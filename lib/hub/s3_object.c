/* s3_object: gets one object into the cache.
 *
 *     lock --> the cache has it
 *          --> hash what ID.incomplete has --> ask for the rest, with If-Match, until all is there
 *              --> size and hash are right: give it its name
 *              --> wrong: begin again, once
 *
 * An ETag is the MD5 of many objects, but not of all (uploads in parts, keys of a service). Where it
 * looks like one and is not that of the bytes, the object is read a second time: bytes that are the
 * same twice are the store's, and others are refused. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digits.h"
#include "base/file.h"
#include "s3_internal.h"

struct s3_transfer {
    struct hd_s3 *s3;
    struct hub_client *client;
    const char *bucket;
    const struct s3_want *want;
    struct hub_part part; /* ID.incomplete */
    struct hd_text lock;
    bool begun;                         /* the answer under way has given bytes */
    char claimed[HD_PKI_HASH_TEXT_MAX]; /* SHA-256 that the store claims; "": none */
};

void s3_make_id(const struct hd_text *of, char ret_id[S3_ID_MAX])
{
    unsigned char hash[HD_PKI_HASH_BYTES];
    char text[HD_PKI_HASH_TEXT_MAX];

    hd_pki_hash(of->data ? of->data : "", of->len_bytes, hash);
    hd_pki_format_hash(hash, text);
    memcpy(ret_id, text, S3_ID_MAX - 1);
    ret_id[S3_ID_MAX - 1] = '\0';
}

enum hd_status s3_name_want(const struct hd_s3_settings *settings, const char *cache,
                            const char *bucket, struct s3_want *want)
{
    const struct s3_object *o = want->object;
    const char *slash = strrchr(o->key, '/'), *name = slash ? slash + 1 : o->key;
    struct hd_text identity = {0};

    if (!hub_path_is_safe(name) || strlen(name) > NAME_MAX)
        return hd_err(HD_INVALID, "s3://%s/%.200s: its name cannot be that of a file here", bucket,
                      o->key);
    hd_text_add(&identity, "%s\n%s\n%s\n%s\n%lld", settings->endpoint, bucket, o->key, o->etag,
                (long long)o->size_bytes);
    if (want->index)
        hd_text_add(&identity, "\n%s", want->index->etag);
    if (identity.failed)
        return hd_err(HD_NO_MEMORY, "no memory for the name of an object");
    s3_make_id(&identity, want->id);
    hd_text_free(&identity);
    if (snprintf(want->path, sizeof want->path, "%s/objects/%s/%s", cache, want->id, name) >=
        (int)sizeof want->path)
        return hd_err(HD_INVALID, "%s: the path of the cache is too long; set HEDDLE_S3_CACHE",
                      cache);
    return HD_OK;
}

bool s3_has(const struct s3_want *want)
{
    struct stat info;

    return stat(want->path, &info) == 0 && S_ISREG(info.st_mode) &&
           info.st_size == want->object->size_bytes;
}

/* ---- bytes ---- */

/* Digests of an object. */
enum { SHA256, MD5 };

static enum hd_status begin_hashes(struct hub_part *part, void *user)
{
    (void)user;
    if (hd_pki_digest_new(HD_PKI_MD5, &part->digests[MD5]))
        part->digests[MD5] = NULL; /* this machine's security policy forbids MD5 */
    return hd_pki_digest_new(HD_PKI_SHA256, &part->digests[SHA256]);
}

/* Sets `claimed` from a base64 SHA-256; leaves it empty if the text is none, such as that of an
 * upload in parts. */
static void read_checksum(struct s3_transfer *d, const char *base64)
{
    unsigned char hash[HD_PKI_HASH_BYTES + 1];

    if (strlen(base64) == 44 && hd_base64_parse(base64, hash) == HD_PKI_HASH_BYTES)
        hd_pki_format_hash(hash, d->claimed);
}

static enum hd_status s3_take(void *user, const struct hub_answer *answer, const void *bytes,
                              size_t count)
{
    struct s3_transfer *d = user;
    const struct s3_object *o = d->want->object;
    enum hd_status st = HD_OK;

    if (!d->begun && answer->status == 206 && answer->range_begin >= 0 &&
        answer->range_begin != d->part.have)
        return hd_err(HD_CORRUPT, "%s sends another part of %s than was asked for", answer->host,
                      o->key);
    if (!d->begun && answer->status == 200 && d->part.have)
        st = hub_part_empty(&d->part); /* the store does not know ranges */
    if (!d->begun && answer->status == 200)
        read_checksum(d, answer->sha256);
    if (!d->begun && *answer->etag && strcmp(answer->etag, o->etag) != 0)
        return hd_err(HD_CONFLICT,
                      "s3://%s/%s was changed while it was read; the same command reads it again",
                      d->bucket, o->key);
    d->begun = true;
    if (!st && (int64_t)count > o->size_bytes - d->part.have)
        return hd_err(HD_CORRUPT, "%s sends more than the %lld bytes of %s", answer->host,
                      (long long)o->size_bytes, o->key);
    return st ? st : hub_part_add(&d->part, bytes, count);
}

/* Asks until ID.incomplete has all bytes. */
static enum hd_status s3_get_all(struct s3_transfer *d, struct hub_answer *ret_answer)
{
    const struct s3_object *o = d->want->object;
    enum hd_status st = HD_OK;

    *ret_answer = (struct hub_answer){.status = 0};
    for (int tries = 0; !st && d->part.have < o->size_bytes;) {
        const struct s3_call call = {.bucket = d->bucket,
                                     .key = o->key,
                                     .etag = o->etag,
                                     .from = d->part.have,
                                     .wants_checksum = !d->part.have,
                                     .sink = s3_take,
                                     .user = d,
                                     .once = true};
        const int64_t before = d->part.have;

        d->begun = false;
        st = s3_send(d->s3, d->client, &call, ret_answer);
        if (!st && d->part.have < o->size_bytes)
            st =
                hd_err(HD_UNAVAILABLE, "%s sent only %lld of the %lld bytes of %s",
                       ret_answer->host, (long long)d->part.have, (long long)o->size_bytes, o->key);
        tries = d->part.have > before ? 1 : tries + 1;
        if ((st != HD_UNAVAILABLE && st != HD_TIMEOUT) || tries >= S3_TRIES)
            continue;
        st = s3_pause(d->s3, tries, ret_answer, d->part.stop);
    }
    return st;
}

/* Returns whether the ETag may be the MD5 of the object. */
static bool is_md5(const char *etag)
{
    return strlen(etag) == 32 && strspn(etag, HD_HEX_DIGITS) == 32;
}

/* Checks the hashes of ID.incomplete. *ret_doubt: the ETag is another MD5. ret_sha256: theirs. */
static enum hd_status check_hashes(struct s3_transfer *d, const struct hub_answer *answer,
                                   bool *ret_doubt, char ret_sha256[HD_PKI_HASH_TEXT_MAX])
{
    const struct s3_object *o = d->want->object;
    char md5[HD_PKI_HASH_TEXT_MAX] = "";
    enum hd_status st = hd_pki_digest_end(d->part.digests[SHA256], ret_sha256);

    *ret_doubt = false;
    if (!st && d->part.digests[MD5])
        st = hd_pki_digest_end(d->part.digests[MD5], md5);
    if (st)
        return st;
    if (*d->claimed && strcmp(d->claimed, ret_sha256) != 0)
        return hd_err(HD_CORRUPT,
                      "s3://%s/%s arrives with other bytes than the store has: its SHA-256 is "
                      "%.12s.., not %.12s..; a proxy may change it: read it without one",
                      d->bucket, o->key, ret_sha256, d->claimed);
    *ret_doubt = !*d->claimed && *md5 && is_md5(o->etag) && !strstr(answer->encryption, "kms") &&
                 strcmp(md5, o->etag) != 0;
    return HD_OK;
}

/* Gets all bytes and checks them. */
static enum hd_status s3_get_right(struct s3_transfer *d)
{
    char before[HD_PKI_HASH_TEXT_MAX] = "", now[HD_PKI_HASH_TEXT_MAX] = "";
    enum hd_status st = HD_OK;

    for (int try = 0; try < 3; try++) {
        struct hub_answer answer;
        struct hd_error error;
        bool doubt = false;

        st = s3_get_all(d, &answer);
        if (!st)
            st = check_hashes(d, &answer, &doubt, now);
        if (st && st != HD_CORRUPT)
            return st;
        if (!st && (!doubt || strcmp(now, before) == 0))
            return HD_OK;
        if (!st)
            st = hd_err(HD_CORRUPT,
                        "s3://%s/%s arrives with other bytes each time; a proxy or the store "
                        "changes it",
                        d->bucket, d->want->object->key);
        memcpy(before, now, sizeof before);
        hd_err_save(st, &error);
        d->claimed[0] = '\0';
        st = hub_part_empty(&d->part);
        if (st)
            return st;
        st = hd_err_restore(&error);
        if (!doubt && try == 1)
            break;
    }
    return st;
}

/* ---- the cache ---- */

/* Gives ID.incomplete its name, and writes what it is beside it. */
static enum hd_status s3_keep(struct s3_transfer *d, const char *cache)
{
    struct hd_text folder = {0}, source = {0}, text = {0};
    enum hd_status st = HD_OK;

    hd_text_add(&folder, "%s/objects/%s", cache, d->want->id);
    hd_text_add(&source, "%s.source", folder.data ? folder.data : "");
    hd_text_add(&text, "s3://%s/%s\n%s\n", d->bucket, d->want->object->key, d->want->object->etag);
    if (folder.failed || source.failed || text.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a path");
    if (!st)
        st = hub_write_file(source.data, text.data, text.len_bytes);
    if (!st)
        st = hd_file_make_dirs(folder.data, 0755);
    if (!st)
        st = hub_part_keep(&d->part, d->want->path);
    hd_text_free(&folder);
    hd_text_free(&source);
    hd_text_free(&text);
    return st;
}

enum hd_status s3_download(struct hd_s3 *s3, struct hub_client *client, const char *cache,
                           const char *bucket, const struct s3_want *want, struct hub_meter *meter,
                           const volatile sig_atomic_t *stop)
{
    struct s3_transfer d = {.s3 = s3,
                            .client = client,
                            .bucket = bucket,
                            .want = want,
                            .part = {.fd = -1,
                                     .size_bytes = want->object->size_bytes,
                                     .begin_digests = begin_hashes,
                                     .meter = meter,
                                     .stop = stop}};
    int lock = -1;
    enum hd_status st = HD_OK;

    hd_text_add(&d.part.path, "%s/objects/%s.incomplete", cache, want->id);
    hd_text_add(&d.lock, "%s/locks/%s.lock", cache, want->id);
    if (d.part.path.failed || d.lock.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a path");
    if (!st)
        st = hub_lock_path(d.lock.data, stop, &meter->waits, &lock);
    if (!st && s3_has(want)) {
        (void)__atomic_add_fetch(&meter->bytes, want->object->size_bytes, __ATOMIC_RELAXED);
    } else if (!st) {
        st = hub_part_open(&d.part, 0644);
        if (!st)
            st = s3_get_right(&d);
        if (!st)
            st = s3_keep(&d, cache);
    }
    hub_part_close(&d.part);
    if (lock >= 0)
        (void)close(lock);
    hd_text_free(&d.lock);
    return st;
}
