/* s3: object stores that speak Amazon S3's protocol: models and data from them, checkpoints to them.
 *
 *     s3://BUCKET/KEY              an object
 *     s3://BUCKET/FOLDER/          all objects below it
 *     s3://BUCKET/FOLDER/PATTERN   the objects that match; `*` does not match '/'
 *
 * What is read lies in a cache, $HEDDLE_S3_CACHE, else ~/.cache/heddle/s3:
 *
 *     objects/ID/NAME       an object; ID: hash of endpoint, bucket, key, ETag and size
 *     objects/ID.incomplete a part of one
 *     objects/ID.source     its name, s3://..
 *     folders/ID/FILE       hard links to the objects of a folder; ID: hash of those of all files
 *     names/ID              objects that a name meant when it was last looked up
 *     locks/ID.lock         flock(2), held while the object is downloaded
 *
 * Rules:
 *  1. An object gets its name only when it is whole and its hash, as far as the store tells one, is
 *     right. A folder gets its name only when all its files are in it. A download that is killed is
 *     continued.
 *  2. An ID names one version of an object, so a path means the same bytes for ever: a job that is
 *     resumed reads what it read before.
 *  3. Requests are signed here (signature version 4). Keys are never sent, and never in a message,
 *     a job or the arguments of a process.
 *
 * Used by: the heddle command, heddled; spec (names alone).
 * Uses: base, pki (hashes), hub's requests by libcurl.
 * Threads: several threads may use a struct hd_s3; hd_s3_get and hd_s3_copy_folder start threads of
 * their own, and return when these have ended.
 */
#ifndef HD_HUB_S3_H
#define HD_HUB_S3_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"
#include "hub/hub.h"

enum {
    HD_S3_BUCKET_MAX = 64,
    HD_S3_KEY_MAX = 1025, /* bytes of a key, NUL included */
    HD_S3_SECRET_MAX = 256,
    HD_S3_SESSION_MAX = 8192
};

struct hd_s3_name {
    char bucket[HD_S3_BUCKET_MAX];
    char key[HD_S3_KEY_MAX]; /* "": the whole bucket */
};

/* Returns whether the text begins with s3:// */
bool hd_s3_is_name(const char *text);
/* Parses s3://BUCKET/KEY. HD_INVALID: the message says what is wrong with the name. */
enum hd_status hd_s3_parse(const char *text, struct hd_s3_name *ret_name);
/* Appends the name s3://BUCKET/KEY of the object or folder to which a path in a cache belongs.
 * Returns false, and appends nothing, if the path is not in a cache of objects. */
bool hd_s3_describe(const char *path, struct hd_text *out);

/* ---- settings (s3_settings.c) ---- */

struct hd_s3_keys {
    char id[HD_S3_SECRET_MAX], secret[HD_S3_SECRET_MAX]; /* "": none */
    char session[HD_S3_SESSION_MAX];                     /* session token; "": none */
    int64_t expires_ms;                                  /* wall clock; 0: never */
};

struct hd_s3_settings {
    char endpoint[512];       /* URL without a slash at its end; "": Amazon's of the region */
    char region[64];          /* "": not given */
    char cache[PATH_MAX];     /* folder of the cache, absolute; "": there is no place for one */
    char ca_file[PATH_MAX];   /* certificates of authorities; "": those of the system */
    struct hd_s3_keys keys;   /* keys of the environment or of a profile */
    char keys_from[PATH_MAX]; /* their source, for messages */
    char keys_problem[512];   /* why the keys of a profile cannot be used; "": no such problem */
    bool anonymous;           /* requests are not signed */
    char container_url[512];  /* service that gives a container its keys; "": none */
    char container_token[PATH_MAX];      /* Authorization of that request, "": none */
    char container_token_file[PATH_MAX]; /* file that holds it; "": none */
    char identity_token_file[PATH_MAX];  /* web identity, as in Kubernetes; "": none */
    char identity_role[512];
    char sts_endpoint[512];      /* "": Amazon's of the region */
    char metadata_endpoint[256]; /* service of the machine's keys; "": it is not asked */
    int64_t pause_ms;            /* pause before the first retry, ms; doubles with each */
    int64_t part_bytes;          /* bytes of a part of a large upload, at least; 0: 64 MiB */
};

/* Reads the variables and files of Amazon's command: AWS_ACCESS_KEY_ID .., AWS_PROFILE,
 * ~/.aws/credentials, ~/.aws/config, AWS_ENDPOINT_URL, AWS_REGION and the like. HD_INVALID: one is
 * malformed; the message names it. */
enum hd_status hd_s3_read_settings(struct hd_s3_settings *ret_settings);

/* ---- a store (s3_send.c) ---- */

struct hd_s3;
/* Opens a store. Borrows `settings` and `stop`, which is as in struct hd_hub_request. */
enum hd_status hd_s3_new(const struct hd_s3_settings *settings, const volatile sig_atomic_t *stop,
                         struct hd_s3 **ret_s3);
void hd_s3_free(struct hd_s3 *s3); /* NULL: does nothing */

/* ---- getting models and data (s3_get.c) ---- */

struct hd_s3_request {
    const struct hd_s3_settings *settings;
    const struct hd_s3_name *name;
    bool is_data; /* false: the folder of a model, an adapter or a checkpoint */
    bool cache_only;
    void (*progress)(void *user, const struct hd_hub_progress *progress); /* NULL: not called */
    void *user;
    const volatile sig_atomic_t *stop;
};

struct hd_s3_file {
    const char *rel;  /* path below the folder that the request names */
    const char *path; /* its file in the cache */
    int64_t size_bytes;
};

struct hd_s3_result {
    /* Not is_data, or a data set of save_to_disk: a folder. Other data: a line for each file: its
     * path, or, if a folder or a pattern was named, a pattern that matches this file alone (so that
     * a file of data.val is left out of data.train, as with other patterns). In the arena. */
    const char *paths;
    const struct hd_s3_file *files; /* in the arena */
    size_t file_count;
    int64_t size_bytes, fetched_bytes;
    bool unreachable; /* the store was not reached, so the objects are those of the cache; the
                         message says why */
};

/* Looks the name up and downloads what the cache lacks. HD_NOT_FOUND: no such bucket or object; or
 * cache_only, and it is not in the cache. HD_DENIED: the keys do not allow it, or there are none.
 * HD_UNAVAILABLE: the store does not answer. HD_CONFLICT: an object was changed meanwhile. */
enum hd_status hd_s3_get(const struct hd_s3_request *request, struct hd_arena *arena,
                         struct hd_s3_result *ret_result);

/* ---- copies of checkpoints (s3_put.c, s3_copies.c) ---- */

struct hd_s3_copy {
    const struct hd_s3_settings *settings;
    const struct hd_s3_name
        *name;  /* the copy: s3://BUCKET/KEY/FILE; the key has no slash at its end */
    int dir_fd; /* the folder; links in it are not followed */
    /* hash of the folder's manifest, kept with each object: tells which objects of an unfinished
     * copy belong to this checkpoint */
    const char *origin;
    const volatile sig_atomic_t *stop;
    volatile int64_t *sent_bytes; /* atomic: counts bytes that were sent; NULL: not counted */
};

/* Copies a folder with a manifest.json, which is sent last: a copy without one is not whole. Files
 * that an earlier copy of the same origin has sent are not sent again; its unfinished uploads in
 * parts are removed. The store compares the SHA-256 of what it receives, and after each file its
 * size there is compared.
 * HD_NOT_FOUND: the folder has no manifest, or lost a file meanwhile. Others as of hd_s3_get. */
enum hd_status hd_s3_copy_folder(const struct hd_s3_copy *copy);

/* Claims the folder of copies s3://BUCKET/KEY/ for this owner, a line of text, by an object in it.
 * HD_CONFLICT: it belongs to another owner. */
enum hd_status hd_s3_claim(const struct hd_s3_settings *settings, const struct hd_s3_name *name,
                           const char *owner, const volatile sig_atomic_t *stop);

struct hd_s3_checkpoint {
    int64_t attempt, step;
    char name[80]; /* attempt-K/step-N, as it is written in the key */
};

/* Lists the whole copies s3://BUCKET/KEY/attempt-K/step-N, newest first: by step, then by attempt. */
enum hd_status hd_s3_list_copies(const struct hd_s3_settings *settings,
                                 const struct hd_s3_name *name, const volatile sig_atomic_t *stop,
                                 struct hd_arena *arena, struct hd_s3_checkpoint **ret_items,
                                 size_t *ret_count);
/* Removes the objects of a copy, its manifest first. */
enum hd_status hd_s3_remove_copy(const struct hd_s3_settings *settings,
                                 const struct hd_s3_name *name, const volatile sig_atomic_t *stop);

#endif
