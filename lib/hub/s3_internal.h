/* s3_internal: declarations that the files of lib/hub about object stores share.
 *
 *     s3_name.c      names, and what the caches' paths mean
 *     s3_settings.c  the environment and the files of Amazon's command
 *     s3_keys.c      keys of containers and machines, which expire
 *     s3_sign.c      signature version 4
 *     s3_send.c      a request: signed, retried, explained
 *     s3_xml.c       elements of XML
 *     s3_list.c      lists of objects
 *     s3_get.c       downloads into the cache
 *     s3_object.c    one object into the cache
 *     s3_put.c       a checkpoint to a store
 *     s3_copies.c    the copies of checkpoints in a store
 */
#ifndef HD_HUB_S3_INTERNAL_H
#define HD_HUB_S3_INTERNAL_H

#include <pthread.h>
#include <time.h>

#include "hub/s3.h"
#include "hub_internal.h"
#include "pki/pki.h"

enum {
    S3_TRIES = 8,
    S3_QUERY_MAX = 8,
    S3_ID_MAX = 41 /* hexadecimal digits of an ID of the cache, and NUL */
};

/* Payload hash of a request without a body. */
#define S3_EMPTY_HASH "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

/* ---- s3_sign.c ---- */

struct s3_pair {
    const char *name, *value;
};

struct s3_signing {
    const char *method;
    const char *path;              /* encoded, begins with '/' */
    const char *query;             /* encoded and sorted; "": none */
    const struct s3_pair *headers; /* signed headers, names in lower case, sorted */
    size_t header_count;
    const char *payload_hash; /* hexadecimal SHA-256 of the body */
    const char *region, *service;
    const struct hd_s3_keys *keys;
    time_t time;
};

enum { S3_TIME_MAX = 20 };
void s3_format_time(time_t time, char ret_text[S3_TIME_MAX]); /* 20130524T000000Z */
/* Appends the value of the Authorization header. */
void s3_sign(const struct s3_signing *signing, struct hd_text *out);

/* ---- s3_keys.c ---- */

/* Gets keys from the service of a container, of web identities or of the machine. Sets ret_from to
 * their source, for messages. HD_NOT_FOUND: there is no such service, or it has no keys. */
enum hd_status s3_fetch_keys(const struct hd_s3_settings *settings, const char *region,
                             const volatile sig_atomic_t *stop, struct hd_s3_keys *ret_keys,
                             char *ret_from, size_t from_size);

/* ---- s3_send.c ---- */

struct hd_s3 {
    const struct hd_s3_settings *settings;
    const volatile sig_atomic_t *stop;
    struct hd_hub_settings http; /* settings of the connections: no token */
    pthread_mutex_t mutex;       /* of the rest */
    char region[64];             /* region that signs; a store may name another one */
    struct hd_s3_keys keys;
    char keys_from[PATH_MAX];
    bool has_keys;
    int slow; /* atomic: times that the store asked for fewer requests */
};

struct s3_call {
    const char *method; /* NULL: GET */
    const char *bucket, *key;
    struct s3_pair query[S3_QUERY_MAX]; /* sorted by name */
    size_t query_count;
    const char *etag;    /* If-Match; NULL: none */
    bool is_first;       /* If-None-Match: *, so that no object is replaced: status 412, or 409 */
    const char *origin;  /* x-amz-meta-heddle-manifest; NULL: none */
    bool wants_checksum; /* the answer is to have the store's checksum of the object */
    int64_t from;
    bool has_body;
    const void *body;
    int body_fd;
    int64_t body_from, body_bytes;
    const char *payload_hash; /* NULL: no body */
    hub_sink *sink;
    void *user;
    struct hd_text *reply; /* collects the body of a success, of at most HUB_API_BYTES_MAX; with a
                              sink: NULL */
    bool once;             /* not repeated: the caller does */
    bool may_lack;         /* status 404 is HD_NOT_FOUND without a message */
};

/* Sends a request, and repeats it while that helps. HD_OK: status 200, 204 or 206. HD_UNAVAILABLE,
 * HD_TIMEOUT: a repetition may succeed. */
enum hd_status s3_send(struct hd_s3 *s3, struct hub_client *client, const struct s3_call *call,
                       struct hub_answer *ret_answer);
/* Sleeps before repetition number `try` (from 1) of a request with this answer. */
enum hd_status s3_pause(struct hd_s3 *s3, int try, const struct hub_answer *answer,
                        const volatile sig_atomic_t *stop);
/* Makes the failure that an answer's XML names. */
enum hd_status s3_explain(struct hd_s3 *s3, const struct s3_call *call,
                          const struct hub_answer *answer, const char *page);

/* ---- s3_xml.c ---- */

/* Finds <TAG>TEXT</TAG> in [at, end), and appends the text, decoded, to ret_text (cleared). Returns
 * the end of the element; NULL: there is none. */
const char *s3_find_text(const char *at, const char *end, const char *tag,
                         struct hd_text *ret_text);
/* Finds the next element, and sets ret_begin to its content and ret_end to the end of that. */
bool s3_find_element(const char *at, const char *end, const char *tag, const char **ret_begin,
                     const char **ret_end);

/* ---- s3_list.c ---- */

struct s3_object {
    const char *key;
    const char *etag;
    int64_t size_bytes;
};

struct s3_list {
    struct s3_object *items; /* in the arena, in the store's order: bytewise */
    int count, room;
};

/* Adds all objects whose keys begin with `prefix`, but those that end in '/'. */
enum hd_status s3_list_objects(struct hd_s3 *s3, struct hub_client *client, const char *bucket,
                               const char *prefix, struct hd_arena *arena, struct s3_list *list);
enum hd_status s3_list_add(struct s3_list *list, const char *key, const char *etag,
                           int64_t size_bytes, struct hd_arena *arena);

/* ---- s3_object.c ---- */

struct s3_want { /* an object that is wanted */
    const struct s3_object *object;
    const struct s3_object *index; /* .idx of a .bin file, which is linked beside it; NULL: none */
    const char *rel;               /* path below the folder that the request names */
    char id[S3_ID_MAX];
    char path[PATH_MAX]; /* its file in the cache */
};

/* Sets id and path. HD_INVALID: the key's last part cannot be the name of a file. */
enum hd_status s3_name_want(const struct hd_s3_settings *settings, const char *cache,
                            const char *bucket, struct s3_want *want);
/* Sets ret_id to the ID in the cache: a hash of the text that identifies an object or a folder. */
void s3_make_id(const struct hd_text *of, char ret_id[S3_ID_MAX]);
/* Returns whether the cache has the object. */
bool s3_has(const struct s3_want *want);
/* Downloads an object into the cache, unless it is there. */
enum hd_status s3_download(struct hd_s3 *s3, struct hub_client *client, const char *cache,
                           const char *bucket, const struct s3_want *want, struct hub_meter *meter,
                           const volatile sig_atomic_t *stop);

#endif
