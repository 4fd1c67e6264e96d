/* s3: an object store on loopback, for tests of lib/hub: its objects, its uploads in parts, and its
 * misbehaviour. It checks each signature by code of its own.
 *
 * Used by: s3_test, the program imitation-s3.   Uses: base, pki (hashes).
 * Threads: one for the socket and one for each connection; set the members before a request.
 */
#ifndef HD_TESTS_IMITATION_S3_H
#define HD_TESTS_IMITATION_S3_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { S3_OBJECTS_MAX = 512, S3_UPLOADS_MAX = 32, S3_PARTS_MAX = 256 };

struct s3_stored {
    char bucket[64], key[1025];
    char *bytes;
    size_t size_bytes;
    char etag[72];
    char origin[64]; /* x-amz-meta-heddle-manifest; "": none */
    bool is_opaque;  /* its ETag is the MD5 of other bytes, as with keys of a service */
};

struct s3_part {
    char *bytes;
    size_t size_bytes;
    char etag[72];
};

struct s3_upload {
    int id; /* 0: a free place */
    char bucket[64], key[1025], origin[64];
    struct s3_part parts[S3_PARTS_MAX]; /* by number, from 1 */
};

struct imitation_s3 {
    const char *id, *secret; /* keys */
    const char *session;     /* token that must come with the keys; NULL: none */
    const char *region;      /* region of all buckets; NULL: us-east-1 */
    const char *root;        /* folder into which objects are written, too; NULL: none */
    size_t page_keys;        /* keys on a page of a list; 0: 1000 */
    size_t part_bytes_min;   /* least bytes of a part that is not the last */
    /* Misbehaviour, each this many times. */
    int slow;            /* 503 SlowDown of any request */
    int broken;          /* 500 of any request */
    int hidden;          /* 404 of a GET of an object that is there */
    int cuts;            /* the connection ends after half of an object's bytes */
    int cut_uploads;     /* the connection ends after half of a body that is received */
    int wrong_bytes;     /* a byte of an object is another one */
    int wrong_etags;     /* the ETag of an answer with an object is another one */
    int ignored_ranges;  /* 200 and the whole object */
    int complete_errors; /* 200 with an <Error> at the end of an upload in parts */
    int lost_parts;      /* a part is acknowledged and not kept */
    int skewed;          /* 403 RequestTimeTooSkewed */
    int expired;         /* 403 ExpiredToken */
    int answers;         /* not a number of times: requests before each gets 500; 0: no end */
    int pace_ms;         /* pause in front of each 64 KiB that is sent or received */

    /* Counters, atomic. */
    volatile int requests, unsigned_requests, refused_signatures;
    volatile int64_t sent_bytes, received_bytes;

    pthread_mutex_t mutex; /* of objects and uploads */
    struct s3_stored objects[S3_OBJECTS_MAX];
    size_t object_count;
    struct s3_upload uploads[S3_UPLOADS_MAX];
    int last_upload;

    int listener, port;
    int connections; /* atomic: threads that answer */
    pthread_t thread;
};

/* Stores an object; copies the bytes. Replaces one of the same name. */
void imitation_s3_put(struct imitation_s3 *s3, const char *bucket, const char *key,
                      const void *bytes, size_t count);
const struct s3_stored *imitation_s3_find(const struct imitation_s3 *s3, const char *bucket,
                                          const char *key); /* NULL: there is none */
int imitation_s3_parts(struct imitation_s3 *s3); /* whole parts of all uploads under way */
int imitation_s3_uploads(
    struct imitation_s3 *s3); /* uploads that are neither complete nor aborted */
bool imitation_s3_is_busy(const struct imitation_s3 *s3); /* a request is not answered yet */
void imitation_s3_start(struct imitation_s3 *s3);         /* begins to answer at 127.0.0.1:port */
void imitation_s3_stop(struct imitation_s3 *s3); /* ends all its threads, and frees the objects */

#endif
