/* hub_internal: declarations that the files of lib/hub share.
 *
 *     name.c       names, paths and URLs
 *     settings.c   the environment
 *     pick.c       which files of a repository are wanted
 *     tree.c       the list of a commit's files: from the hub, from the cache
 *     cache.c      the folders of the cache
 *     request.c    one HTTP request, by libcurl   (no_request.c: a build without it)
 *     answer.c     what an HTTP status means, as a message
 *     download.c   one file: lock, continue, check, name
 *     part.c       the unfinished file of a download
 *     pool.c       threads that download
 *     get.c        all files of a request
 *     dataset.c    which files of a data set are its training data
 *     mlflow.c     a tracking server of MLflow (mlflow.h)
 *     s3_*.c       object stores (s3.h, s3_internal.h)
 */
#ifndef HD_HUB_HUB_INTERNAL_H
#define HD_HUB_HUB_INTERNAL_H

#include <sys/types.h>

#include "hub/hub.h"
#include "pki/pki.h"

enum {
    HUB_FILES_MAX = 200000,       /* files of a repository */
    HUB_API_BYTES_MAX = 64 << 20, /* bytes of one answer of the API */
    HUB_URL_MAX = 8192,
    HUB_REDIRECTS_MAX = 10,
    HUB_TRIES = 5, /* consecutive tries without a byte of progress after which a download fails */
    HUB_PAUSE_MAX_MS = 8000,  /* longest pause between tries, without a Retry-After */
    HUB_WAIT_MAX_MS = 300000, /* longest Retry-After that is waited for */
    HUB_THREADS = 8           /* files at a time */
};

/* Bytes of a file that the hub does not serve by plain HTTP (huggingface_hub's limit). */
#define HUB_PLAIN_BYTES_MAX INT64_C(50000000000)

/* Returns whether a download is to end: the flag is set by a signal, or by another thread. */
static inline bool hub_is_stopped(const volatile sig_atomic_t *stop)
{
    return stop && __atomic_load_n(stop, __ATOMIC_RELAXED);
}

/* ---- name.c ---- */

/* Returns whether a path that the server names is a relative path without "." and "..", control
 * characters, backslashes and empty parts. A `%2e` or `%2f` in it is refused, too: a program that
 * decodes it would read a dot or a slash. */
bool hub_path_is_safe(const char *path);
bool hub_is_commit(const char *revision); /* true: 40 lower-case hexadecimal digits */
bool hub_is_hash(const char *text);       /* true: 40 or 64 of them */
/* Copies a text for a message, with '?' for control characters; cuts what does not fit. */
void hub_copy_clean(const char *text, char *ret_text, size_t size);
/* Appends the text with all bytes percent-encoded but letters, digits and "-_.~", and those of
 * `kept`. */
void hub_add_encoded(struct hd_text *out, const char *text, const char *kept);
/* Appends a glob(3) pattern that matches this absolute path alone. */
void hub_add_exact(struct hd_text *out, const char *path);
/* Appends ENDPOINT/api/models/REPO/, or the like of a data set. */
void hub_add_api(struct hd_text *out, const char *endpoint, const struct hd_hub_name *name);
/* Appends ENDPOINT/REPO/resolve/COMMIT/PATH, or the like of a data set. */
void hub_add_resolve(struct hd_text *out, const char *endpoint, const struct hd_hub_name *name,
                     const char *commit, const char *path);

/* ---- settings.c ---- */

const char *hub_variable(const char *name); /* variable of the environment; NULL: not set, or "" */
bool hub_is_on(const char *name);           /* whether the variable is 1, on, yes or true */
/* Copies the value of a setting. HD_INVALID: it is too long. */
enum hd_status hub_copy_setting(const char *what, const char *text, char *ret_text, size_t size);

/* Returns whether the URL is https://, or http:// of this machine. */
bool hub_url_is_allowed(const char *url);

/* ---- tree.c ---- */

struct hub_tree {
    char commit[HD_HUB_COMMIT_MAX];
    struct hd_hub_file *files; /* in the arena, by path */
    int count, room;
    bool is_partial; /* made of what a snapshot has; files may be missing */
};

/* Returns the name of the file's blob. */
static inline const char *hub_etag(const struct hd_hub_file *file)
{
    return *file->sha256 ? file->sha256 : file->blob_id;
}
/* Adds the entries of one page of the API's list of files. HD_CORRUPT: it is no such list, or names
 * a path that is not safe. */
enum hd_status hub_tree_add_page(struct hub_tree *tree, const char *text, size_t bytes,
                                 struct hd_arena *arena);
/* Reads and writes trees/COMMIT.json. hub_tree_read: HD_NOT_FOUND also if the file is damaged. */
enum hd_status hub_tree_read(const char *path, struct hd_arena *arena, struct hub_tree *tree);
enum hd_status hub_tree_write(const char *path, const struct hub_tree *tree);
/* Adds a file, whose path it copies. */
enum hd_status hub_tree_add(struct hub_tree *tree, const struct hd_hub_file *file,
                            struct hd_arena *arena);
void hub_tree_sort(struct hub_tree *tree); /* by path, for hub_tree_find */
const struct hd_hub_file *hub_tree_find(const struct hub_tree *tree, const char *path);

/* Makes a tree of what the snapshot has. */
enum hd_status hub_list_snapshot(const char *snapshot, struct hd_arena *arena,
                                 struct hub_tree *tree);

/* ---- pick.c ---- */

/* Sets ret_files to the wanted files of the tree, in the arena. HD_INVALID: a pattern asks for
 * files that are never downloaded, or a model has its weights as pickles alone. HD_NOT_FOUND:
 * nothing matches; the message lists files of the repository. */
enum hd_status hub_pick(const struct hd_hub_request *request, const struct hub_tree *tree,
                        struct hd_arena *arena, struct hd_hub_file **ret_files, size_t *ret_count);

/* Returns whether a file is code, or runs code when it is loaded. */
bool hub_is_forbidden(const char *path, bool is_dataset);
/* Returns whether Heddle uses this file of a model, whose files are all in `tree`. */
bool hub_is_model_file(const struct hub_tree *tree, const char *path);
/* Returns whether a file holds data, by its name: it has a suffix of data, and is no readme or the
 * like. */
bool hub_is_data_file(const char *path);

/* ---- cache.c ---- */

/* Appends CACHE/models--ORG--NAME */
void hub_add_folder(struct hd_text *out, const char *cache, const struct hd_hub_name *name);
/* Sets ret_commit to the commit that the cache knows the revision as; else HD_NOT_FOUND. */
enum hd_status hub_read_ref(const char *folder, const char *revision,
                            char ret_commit[HD_HUB_COMMIT_MAX]);
enum hd_status hub_write_ref(const char *folder, const char *revision, const char *commit);
/* Returns whether the snapshot has the file, of this size; size_bytes -1: of any size. */
bool hub_has_file(const char *snapshot, const char *path, int64_t size_bytes);
/* Makes the link snapshots/COMMIT/PATH to the blob. */
enum hd_status hub_link_blob(const char *folder, const char *commit,
                             const struct hd_hub_file *file);
/* Takes the flock on a blob, waiting for another process; HD_ABORTED: *stop. *ret_waits is set while
 * it waits. */
enum hd_status hub_lock_blob(const char *cache, const struct hd_hub_name *name, const char *etag,
                             const volatile sig_atomic_t *stop, volatile int *ret_waits,
                             int *ret_fd);
enum hd_status hub_lock_path(const char *path, const volatile sig_atomic_t *stop,
                             volatile int *ret_waits, int *ret_fd); /* the lock file itself */
/* Writes a small file by rename; makes its folder. */
enum hd_status hub_write_file(const char *path, const char *text, size_t bytes);

/* ---- request.c, no_request.c ---- */

struct hub_answer {
    int status;                 /* HTTP status */
    char error_code[64];        /* X-Error-Code */
    char error_message[512];    /* X-Error-Message */
    char location[HUB_URL_MAX]; /* URL of a redirect */
    char next[HUB_URL_MAX];     /* next page of a list; "": the last one */
    char host[256];             /* host that answered */
    int64_t retry_after_s;      /* Retry-After, or the rest of a RateLimit window; -1: not given */
    int64_t range_begin;        /* first byte of a 206; -1: not given */
    bool by_endpoint;           /* the endpoint itself answered, not a host behind a redirect */
    /* headers of object stores; "": not given */
    char etag[160];      /* without quotes */
    char region[64];     /* x-amz-bucket-region */
    char encryption[64]; /* x-amz-server-side-encryption, or the algorithm of a customer's key */
    char sha256[64];     /* x-amz-checksum-sha256, base64 */
    char origin[64];     /* x-amz-meta-heddle-manifest */
    char date[64];       /* clock of the server */
    int64_t length;      /* Content-Length; -1: not given */
};

/* Receives the body of an answer of status 200 or 206. Return other than HD_OK ends the request
 * with that status. */
typedef enum hd_status hub_sink(void *user, const struct hub_answer *answer, const void *bytes,
                                size_t count);

struct hub_client;
/* Makes a client, which belongs to one thread. stop: as in struct hd_hub_request. */
enum hd_status hub_client_new(const struct hd_hub_settings *settings,
                              const volatile sig_atomic_t *stop, struct hub_client **ret_client);
void hub_client_free(struct hub_client *client); /* NULL: does nothing */

/* Sends one GET and follows redirects, without a retry. from: first byte wanted (Range); 0: the
 * whole. HD_OK: an answer came, of whatever status. HD_UNAVAILABLE, HD_TIMEOUT: no answer, or the
 * connection broke; a retry may succeed. HD_DENIED: a redirect that is not followed. HD_ABORTED:
 * *stop. */
enum hd_status hub_get(struct hub_client *client, const char *url, int64_t from, hub_sink *sink,
                       void *user, struct hub_answer *ret_answer);
/* Sink that appends the answer to a struct hd_text, up to HUB_API_BYTES_MAX. */
enum hd_status hub_take_text(void *user, const struct hub_answer *answer, const void *bytes,
                             size_t count);

/* A request that is sent as it is, without following redirects. Members that are not set: a GET of
 * the whole, without a body. */
struct hub_call {
    const char *method;
    const char *const *headers; /* "Name: value" */
    size_t header_count;
    int64_t from; /* first byte wanted */
    /* The body: `body`, or else bytes of the file body_fd from body_from on. */
    bool has_body;
    const void *body;
    int body_fd;
    int64_t body_from, body_bytes;
    int64_t timeout_ms; /* limit of the whole request; 0: none */
    hub_sink *sink;     /* NULL: the body of the answer is ignored */
    void *user;
    struct hd_text
        *page; /* beginning of the body of another status than 200 and 206; NULL: ignored */
};

/* Sends a request once. Results as of hub_get. */
enum hd_status hub_send(struct hub_client *client, const char *url, const struct hub_call *call,
                        struct hub_answer *ret_answer);

/* Replaces the URL of a page of a list by that of the next one. HD_CORRUPT: it is of another
 * host. */
enum hd_status hub_next_page(char url[HUB_URL_MAX], const struct hub_answer *answer,
                             const struct hd_hub_settings *settings);

/* ---- answer.c ---- */

/* Returns whether a request with this answer may succeed later. */
bool hub_may_retry(const struct hub_answer *answer);
/* Sleeps; HD_ABORTED: *stop. */
enum hd_status hub_sleep(int64_t pause_ms, const volatile sig_atomic_t *stop);
/* Makes the failure of an answer other than 200 and 206. what: a file, for messages; NULL: the
 * repository. */
enum hd_status hub_explain(const struct hd_hub_settings *settings, const struct hd_hub_name *name,
                           const struct hub_answer *answer, const char *what);
/* Sleeps before try number `try` (from 1), or as long as the answer says. HD_ABORTED: *stop.
 * HD_UNAVAILABLE: the answer asks for a longer pause than is waited for. answer NULL: none came. */
enum hd_status hub_pause(const struct hd_hub_settings *settings, int try,
                         const struct hub_answer *answer, const volatile sig_atomic_t *stop);

/* ---- part.c ---- */

struct hub_meter {                   /* progress that threads report */
    volatile int64_t bytes, fetched; /* atomic: bytes in the cache; bytes that came now */
    volatile int64_t files;          /* atomic */
    volatile int waits;              /* files that another process downloads */
};

/* FILE.incomplete: the bytes of a file that have come, all of them hashed. */
struct hub_part {
    struct hd_text path;
    int fd;                           /* -1: not open */
    int64_t have, size_bytes;         /* bytes that it has; bytes of the whole file */
    struct hd_pki_digest *digests[2]; /* of the bytes that it has; NULL: none */
    /* Sets `digests`, which are NULL, to those of an empty file. */
    enum hd_status (*begin_digests)(struct hub_part *part, void *user);
    void *user;
    struct hub_meter *meter;
    const volatile sig_atomic_t *stop;
};

/* Opens the file, and hashes what an earlier, interrupted download left in it. hub_part_close also
 * follows a failure. */
enum hd_status hub_part_open(struct hub_part *part, mode_t mode);
/* Makes the file empty; its digests are then those of no bytes. */
enum hd_status hub_part_empty(struct hub_part *part);
/* Appends bytes that came now. */
enum hd_status hub_part_add(struct hub_part *part, const void *bytes, size_t count);
/* Gives the whole file its name, an absolute path. */
enum hd_status hub_part_keep(struct hub_part *part, const char *path);
void hub_part_close(struct hub_part *part);

/* ---- download.c ---- */

/* Downloads one file into the cache, unless its blob is in it, and links it into the snapshot. */
enum hd_status hub_download(struct hub_client *client, const struct hd_hub_request *request,
                            const char *folder, const char *commit, const struct hd_hub_file *file,
                            struct hub_meter *meter);

/* ---- pool.c ---- */

struct hub_pool {
    const struct hd_hub_settings *settings; /* of the threads' connections */
    /* Downloads the file of this index, in a thread that has the client. */
    enum hd_status (*get)(void *owner, struct hub_client *client, size_t i);
    void *owner;
    void (*progress)(void *user, const struct hd_hub_progress *progress); /* NULL: not called */
    void *user;
    const volatile sig_atomic_t *stop; /* the caller's flag */
    const int *slow; /* atomic; not 0: the server asks for fewer requests, and half of the threads
                        end; NULL: it never does */
    int64_t total_bytes;
    size_t total_files;
    struct hub_meter meter;
    volatile sig_atomic_t end; /* not 0: the threads end */
};
/* Gets the files 0 to count - 1. HD_OK with `slow`: the threads may have ended before they got all;
 * the caller asks for the rest again. Returns the first failure. */
enum hd_status hub_pool_run(struct hub_pool *pool, size_t count);

#endif
