/* hub: models and data sets by name, from the Hugging Face hub, kept in the cache of
 * huggingface_hub, which Python tools share.
 *
 *     hf://ORG/NAME[@REVISION][/PATH]             a model
 *     hf://datasets/ORG/NAME[@REVISION][/PATH]    a data set; without PATH its training files
 *
 *     name --look up--> commit and its files --pick--> wanted files --download--> cache
 *
 * The cache, $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub:
 *
 *     models--ORG--NAME/refs/main              a commit: 40 hexadecimal digits
 *                       trees/COMMIT.json      the files of a commit, with sizes and hashes
 *                       snapshots/COMMIT/F     a link to ../../blobs/HASH
 *                       blobs/HASH             a file; blobs/HASH.incomplete: a part of one
 *                       named/COMMIT/F         a hard link to the blob, for jobs (hd_hub_name_files)
 *     .locks/models--ORG--NAME/HASH.lock       flock(2), held while the blob is downloaded
 *
 * Rules:
 *  1. A blob gets its name only after its size and hash were checked: SHA-256 of a large file,
 *     git's SHA-1 of another one. A download that is killed leaves FILE.incomplete, and the next
 *     one continues it.
 *  2. The token goes to the endpoint's scheme, host and port alone, and never into a message.
 *  3. A path that the server names cannot lead out of the snapshot.
 *  4. No pickles and no code: they are not downloaded, whatever is asked for.
 *
 * Without libcurl the cache is read, and a download refused (hd_hub_can_download).
 *
 * Used by: the heddle command.   Uses: base, pki (hashes), yaml, libcurl, whose header only this
 * package includes.
 * Threads: hd_hub_get downloads with threads of its own and calls `progress` on the caller's.
 */
#ifndef HD_HUB_HUB_H
#define HD_HUB_HUB_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"

enum {
    HD_HUB_COMMIT_MAX = 41, /* 40 hexadecimal digits and NUL */
    HD_HUB_REPO_MAX = 200,  /* bytes of "ORG/NAME", NUL included */
    HD_HUB_REVISION_MAX = 256,
    HD_HUB_PATH_MAX = 1024, /* bytes of a path in a repository, NUL included */
    HD_HUB_HASH_MAX = 65    /* hexadecimal digits of a hash and NUL */
};

/* ---- names (name.c) ---- */

struct hd_hub_name {
    bool is_dataset;
    char repo[HD_HUB_REPO_MAX];         /* "ORG/NAME"; "NAME" for old models such as gpt2 */
    char revision[HD_HUB_REVISION_MAX]; /* branch, tag, refs/pr/N or commit; "main" if not given */
    char path[HD_HUB_PATH_MAX];         /* file or pattern in the repository; "": none */
};

/* Returns whether the text begins with hf:// */
bool hd_hub_is_name(const char *text);
/* Returns whether the text is ORG/NAME alone, by the hub's rule. */
bool hd_hub_is_repo(const char *text);
/* Parses hf://..., or with `bare` ORG/NAME[@REVISION], of a data set if `is_dataset`. HD_INVALID:
 * the message says what is wrong with the name. */
enum hd_status hd_hub_parse(const char *text, bool bare, bool is_dataset,
                            struct hd_hub_name *ret_name);
/* Appends hf://...@REVISION, without the path. */
void hd_hub_write(const struct hd_hub_name *name, const char *revision, struct hd_text *out);

/* Finds out which commit of which repository a path in a cache belongs to, and appends
 * "hf://ORG/NAME@COMMIT". Returns whether it is such a path. */
bool hd_hub_describe(const char *path, struct hd_text *out);

/* ---- settings (settings.c) ---- */

struct hd_hub_settings {
    char endpoint[512];        /* URL without a slash at its end */
    char token[512];           /* "": none */
    char token_from[PATH_MAX]; /* source of the token, for messages: a variable or a file */
    char cache[PATH_MAX];      /* folder of the cache, absolute */
    char ca_file[PATH_MAX];    /* certificates of authorities; "": those of the system */
    bool offline;              /* read the cache only */
    int64_t pause_ms;          /* pause before the first retry, ms; doubles with each */
};

/* Reads HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, SSL_CERT_FILE and the like
 * from the environment. HD_INVALID: one is malformed; the message names it. */
enum hd_status hd_hub_read_settings(struct hd_hub_settings *ret_settings);

/* ---- getting files (get.c) ---- */

/* Returns whether downloads are possible: this build has libcurl, and it can be loaded. */
bool hd_hub_can_download(void);

struct hd_hub_file {
    const char *path; /* path in the repository */
    int64_t size_bytes;
    char blob_id[HD_HUB_HASH_MAX];  /* git's SHA-1 of the file, or of the pointer to a large one */
    char sha256[HD_HUB_HASH_MAX];   /* SHA-256 of a large file; "": the file is not large */
    char xet_hash[HD_HUB_HASH_MAX]; /* kept for trees/COMMIT.json; "": none */
};

enum hd_hub_mode {
    HD_HUB_CACHE_ONLY,  /* HD_NOT_FOUND unless the cache has all files */
    HD_HUB_CACHE_FIRST, /* a branch is the commit that the cache knows it as, if that is whole */
    HD_HUB_NEWEST       /* a branch is looked up; if the hub cannot be reached: the cache */
};

struct hd_hub_progress {
    int64_t done_bytes, total_bytes; /* bytes in the cache, and of all wanted files */
    size_t done_files, total_files;
    int64_t bytes_per_s;
    const char *note; /* reason why the download waits, such as another process; NULL: none */
};

struct hd_hub_request {
    const struct hd_hub_settings *settings;
    const struct hd_hub_name *name;
    enum hd_hub_mode mode;
    /* Patterns (fnmatch) of paths: files that match one of `include` (none: what Heddle reads) and
     * none of `exclude`. "dir/" means "dir/" and all below it. */
    const char *const *include, *const *exclude;
    size_t include_count, exclude_count;
    bool by_folder; /* `*` of a pattern does not match '/', as in a job file */
    bool list_only; /* the files are listed, and not downloaded */
    /* Called about ten times a second. NULL: not called. */
    void (*progress)(void *user, const struct hd_hub_progress *progress);
    void *user;
    const volatile sig_atomic_t *stop; /* not 0: end with HD_ABORTED; NULL: no such flag */
};

struct hd_hub_result {
    char commit[HD_HUB_COMMIT_MAX];
    char snapshot[PATH_MAX];         /* folder of the snapshot */
    const struct hd_hub_file *files; /* the wanted files; in the arena */
    size_t file_count;
    int64_t size_bytes;    /* bytes of the wanted files */
    int64_t fetched_bytes; /* bytes that were downloaded now */
    bool unreachable; /* the hub was not reached, so the commit is the cache's; hd_err_message says
                         why */
};

/* Finds the wanted files in the cache and downloads those that are missing. HD_NOT_FOUND: no such
 * repository, revision or file; or, without a network, not in the cache. HD_DENIED: private or
 * gated. HD_UNAVAILABLE: the hub does not answer. HD_STORAGE: no space. HD_CORRUPT: what arrives is
 * not what the hub says it is. HD_UNSUPPORTED: no such download with this build. */
enum hd_status hd_hub_get(const struct hd_hub_request *request, struct hd_arena *arena,
                          struct hd_hub_result *ret_result);

/* Gets the training files of a data set of which no file is named (dataset.c); the members `include`
 * and `exclude` are ignored. HD_INVALID: it has several configurations; the message lists them. */
enum hd_status hd_hub_get_set(const struct hd_hub_request *request, struct hd_arena *arena,
                              struct hd_hub_result *ret_result);
/* Appends a line for each file of the result whose name says that it is data: a pattern that matches
 * this file below `folder` alone. HD_NOT_FOUND: there is none. */
enum hd_status hd_hub_add_paths(const struct hd_hub_result *result, const char *folder,
                                struct hd_text *out);

/* Gives the files of the result names that are no links, in named/COMMIT beside snapshots/COMMIT,
 * and sets ret_folder to that folder. A node with data_roots follows no links, and the name of a
 * blob has no suffix that says what the file holds. Sets
 * ret_folder to the snapshot where that has no links, or the file system no hard links. */
void hd_hub_name_files(const struct hd_hub_result *result, char ret_folder[PATH_MAX]);

#endif
