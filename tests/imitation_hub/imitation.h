/* imitation: a hub on loopback, for tests of lib/hub: its API, its files, and its misbehaviour.
 *
 * One socket is two hosts, told apart by the Host header: 127.0.0.1 is the hub, localhost the other
 * host (the "CDN") to which it redirects requests for large files, and which refuses a request with
 * an Authorization.
 *
 * Used by: hub_test, the program imitation-hub.   Uses: base, pki (hashes).
 * Threads: one for the socket and one for each connection; set the members before a request.
 */
#ifndef HD_TESTS_IMITATION_H
#define HD_TESTS_IMITATION_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IMITATION_FILES_MAX = 64, IMITATION_REPOS_MAX = 8 };

struct imitation_file {
    const char *path;
    const char *bytes;
    size_t size_bytes;
    int64_t claimed_bytes; /* size in the list of files; 0: size_bytes */
    bool is_large;         /* redirected, with a SHA-256 */
    char blob_id[65], sha256[65];
};

struct imitation_repo {
    const char *id;     /* "org/name" */
    const char *old_id; /* name before it was renamed; NULL: none */
    const char *commit; /* 40 hexadecimal digits */
    const char *token;  /* token that a reader must send; NULL: none */
    bool is_dataset, is_gated;
    struct imitation_file files[IMITATION_FILES_MAX];
    size_t file_count;
};

struct imitation {
    struct imitation_repo repos[IMITATION_REPOS_MAX];
    size_t repo_count;
    size_t page_files; /* files on a page of a list; 0: all */
    /* Misbehaviour, each this many times, of answers with a file's bytes. */
    int cuts;                /* the connection ends after half of the bytes */
    int wrong_bytes;         /* a byte is another one */
    int short_bytes;         /* half of the bytes, announced as all */
    int long_bytes;          /* a byte too many */
    int ignored_ranges;      /* 200 and the whole file, whatever Range asks for */
    int other_ranges;        /* 206 with a range that begins elsewhere */
    int expired;             /* 403 of the other host */
    int busy;                /* 429 of any request, with retry_after */
    int broken;              /* 500 of any request */
    const char *retry_after; /* value of Retry-After; NULL: none */
    const char *redirect;    /* Location of large files; NULL: the other host */
    int pace_ms;             /* pause in front of each 64 KiB */

    /* Counters. */
    volatile int requests;                        /* atomic */
    volatile int64_t sent_bytes;                  /* atomic: bytes of files */
    volatile int tokens_at_hub, tokens_elsewhere; /* atomic: requests with Authorization */

    int listener, port;
    int connections; /* atomic: threads that answer */
    pthread_t thread;
};

/* Computes the hashes of a file and adds it. Borrows path and bytes. */
void imitation_add(struct imitation_repo *repo, const char *path, const void *bytes, size_t count,
                   bool is_large);
void imitation_start(struct imitation *hub); /* begins to answer at 127.0.0.1:port */
void imitation_stop(struct imitation *hub);  /* ends all its threads */

#endif
