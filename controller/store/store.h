/* store: the controller's durable state: one SQLite database in the state directory.
 *
 * Asynchronous. One writer thread takes all queued batches (record.h), writes them in one
 * transaction (group commit; WAL, synchronous=FULL) and then reports each batch done, in order, on
 * the loop's thread. Nothing that depends on a batch may leave the controller before its callback.
 *
 * When the disk is full or fails, nothing that was reported done is lost:
 *
 *   HD_STORE_FINE --no room--> HD_STORE_RESERVE --reserve used up--> HD_STORE_STUCK
 *        |                          |     ^                               |    ^
 *        '---- any other failure ---|-----|-------------------------------|----'
 *        ^                          |     '---- a write succeeds ---------'
 *        '--- the reserve is made again
 *
 * In the reserve (disk_reserve.c) batches are written on; the caller asks for less. In the second half
 * of it, of a job's steps only every sixteenth and the newest stay. STUCK: the writer keeps the
 * batches and retries every second. All that goes back by itself when the disk has room. Errors
 * that a retry cannot fix (a damaged database, a violated constraint) lead to on_fatal.
 *
 * Queries run on the writer thread after the batches queued before them, so they see durable state
 * only. While batches cannot be written, queries do not wait for them.
 *
 * Used by: services, tests.   Uses: record, base, libuv, SQLite (sqlite3.h is included only here).
 * Threads: all functions and callbacks on the loop's thread.
 */
#ifndef HD_CONTROLLER_STORE_H
#define HD_CONTROLLER_STORE_H

#include <uv.h>

#include "controller/core/record.h"

struct hd_job_store;

struct hd_store_options {
    const char *dir;  /* exists; locked while the store is open */
    const char *vfs;  /* name of an SQLite VFS; NULL: the system's */
    int64_t retry_ms; /* pause before a failed transaction is retried; 0: 1000 */
    /* Of the reserve; at most a sixteenth of the disk is taken for it. 0: none, and after FINE
     * comes STUCK. The log takes a sixteenth of the disk, as much as the
     * reserve or 4 MiB, whichever is least, but for a larger transaction or a slow backup. */
    int64_t reserve_bytes;
    /* uses the database although it is a copy of another controller's, which has ended */
    bool take_over;
    /* May be NULL. message: what hd_store_trouble says now; NULL: all is fine again. */
    void (*on_trouble)(void *user, const char *message);
    /* May be NULL. The store has failed; log the error and exit. */
    void (*on_fatal)(void *user, const struct hd_error *error);
    void *user;
};

/* Locks the directory, opens or creates the database, checks it and migrates its schema.
 * HD_CONFLICT: another controller uses the directory; HD_CORRUPT: the check failed, the message
 * names the file; HD_UNSUPPORTED: a newer version of Heddle wrote it, or the file system cannot
 * hold a write-ahead log. HD_CONFLICT also: the database is a copy of another controller's, or that
 * one has taken over; or the log beside it is another database's (epoch.c). */
enum hd_status hd_store_open(uv_loop_t *loop, const struct hd_store_options *options,
                             struct hd_job_store **ret_store);

/* Writes what is queued, closes and frees the store; on_closed (may be NULL) runs last. Batches
 * that cannot be written within timeout_ms are dropped: their callbacks get HD_ABORTED. */
void hd_store_close(struct hd_job_store *store, int64_t timeout_ms, void (*on_closed)(void *user),
                    void *user);

/* The cluster's id, made at random when the database was created. */
const char *hd_store_cluster_id(const struct hd_job_store *store);

enum { HD_STORE_PLACE_MAX = 512 };

/* Epoch of one start of a controller: it decides which of several controllers leads the cluster
 * (epoch.c). */
struct hd_store_epoch {
    uint64_t number;   /* higher than that of every earlier start */
    uint64_t takeover; /* number of the newest start on a copy or an older database: what was
                        * committed in earlier epochs may be missing; 0: there was none */
    char instance[33]; /* random, of this start */
    char place[HD_STORE_PLACE_MAX]; /* "DIR on HOST", for people */
    uint64_t progress;     /* commits, counted in steps of 10 s and more, when it was opened */
    int64_t copied_ms;     /* when the copy of that takeover was made (wall); 0: not known */
    int64_t taken_over_ms; /* when that takeover began (wall); 0: there was none */
    bool restored;         /* this start is a takeover */
    int64_t settled_ms;    /* the settled clock with the last of `progress`; 0: not known */
    unsigned char secret[HD_CREDENTIAL_HASH_BYTES]; /* known to copies of the database alone */
};
const struct hd_store_epoch *hd_store_own_epoch(const struct hd_job_store *store);

/* Returns the id of the jobs directory (hd_batch_add_jobs_share) that was stored when the store
 * was opened; "": none was. */
const char *hd_store_jobs_share(const struct hd_job_store *store);

/* Batches and queries that have not been answered. */
size_t hd_store_queued(const struct hd_job_store *store);

enum hd_store_disk_space {
    HD_STORE_FINE,
    HD_STORE_RESERVE, /* the disk is full: what is written takes of the reserve */
    HD_STORE_STUCK,   /* nothing can be written */
};
enum hd_store_disk_space hd_store_disk_state(const struct hd_job_store *store);
/* What is wrong, since when, where, and what helps, as a sentence for people; NULL: FINE. */
const char *hd_store_trouble(const struct hd_job_store *store);
/* What is left of the reserve. */
int64_t hd_store_reserve_left(const struct hd_job_store *store);

/* How long the writer thread has been at one piece of work, or has left a question unanswered; 0:
 * it waits for work, or answered the last question. Each call asks it once more, so call this every
 * few seconds. A disk that takes no writes is not a thread that hangs: the thread goes round in
 * retries.
 */
int64_t hd_store_silent_ms(struct hd_job_store *store);

/* ---- a backup ---------------------------------------------------------------------------------*/

struct hd_store_backup {
    int64_t size_bytes, schema, jobs;
    int64_t last_job;  /* the highest number of a job; 0: none */
    int64_t copied_ms; /* when it was made (wall); 0: not known, as of a copy made with cp */
    int64_t newest_ms; /* when the controller wrote into it last, to 10 s (wall); 0: not known */
};

/* Copies the database in `dir` to the new file `file` and checks the copy; while a controller runs
 * or not, in another process than the controller's. HD_OK: the copy is one committed state of the
 * database, in order, and durable. HD_EXISTS: `file` exists. HD_NOT_FOUND: `dir` has no database.
 * HD_CORRUPT: the copy is damaged. On failure no file is left. Needs no loop. */
enum hd_status hd_store_make_backup(const char *dir, const char *file,
                                    struct hd_store_backup *ret_backup);

struct hd_store_restore {
    struct hd_store_backup copy; /* what is in place now; size_bytes 0: no file was put there */
    int64_t ended;               /* tokens, people's certificates and invitations that were ended */
    char aside[HD_CTL_PATH_BYTES_MAX]; /* where the former database is now; "": there was none */
    struct hd_store_backup former;     /* what that one has; last_job 0: no job, or unreadable */
};

/* Makes the next start in `dir` take over from the controller of which the database is a copy, or
 * which has fenced it. `file` not NULL: first replaces the database by that file, and moves the
 * former one aside with its log. revoke: ends tokens, people's certificates and invitations.
 * into_empty: with `file`, `dir` may also be an empty folder, in which no controller has worked.
 * HD_CONFLICT: a controller uses `dir`, or `file` is another cluster's. HD_INVALID: `dir` is no
 * state directory. HD_NOT_FOUND: there is no such file. HD_CORRUPT: it is damaged, or no database
 * of a controller. */
enum hd_status hd_store_restore_from(const char *dir, const char *file, bool revoke,
                                     bool into_empty, struct hd_store_restore *ret_restore);

/* ---- while no controller runs -----------------------------------------------------------------*/

/* Writes one batch and frees it; for heddle-controller init. Blocks, needs no loop. `dir` exists;
 * its database is made if there is none. HD_CONFLICT: a controller uses it. */
enum hd_status hd_store_write(const char *dir, struct hd_batch *batch);
/* Reads the numbers of at most `max` jobs that have checkpoints in the jobs directory, the newest
 * first. As hd_store_write. */
enum hd_status hd_store_read_saved_jobs(const char *dir, uint64_t *ret_jobs, size_t max,
                                        size_t *ret_count);
/* Reads the ids of the cluster and of its jobs directory; "": it has none. HD_NOT_FOUND: there is
 * no database. */
enum hd_status hd_store_read_ids(const char *dir, char ret_cluster[HD_JOBS_SHARE_MAX],
                                 char ret_share[HD_JOBS_SHARE_MAX]);
/* The highest id of a credential; 0: there is none, or no database yet. */
enum hd_status hd_store_last_credential(const char *dir, uint64_t *ret_last);

/* ---- writing ----------------------------------------------------------------------------------*/

/* Takes ownership of the batch. done (may be NULL) gets HD_OK when it is durable, HD_ABORTED when
 * it is dropped. Batches become durable in order; an empty one waits for those before it. */
void hd_store_commit(struct hd_job_store *store, struct hd_batch *batch,
                     void (*done)(void *user, enum hd_status st), void *user);

/* ---- at start ---------------------------------------------------------------------------------*/

/* Called in the order of hd_core_restore_*. The first failure stops loading and is returned. */
struct hd_store_loader {
    enum hd_status (*node)(void *user, const struct hd_node_record *node);
    enum hd_status (*probe)(void *user, const struct hd_probe_record *probe); /* no devices */
    enum hd_status (*queue)(void *user, const struct hd_queue_record *queue);
    enum hd_status (*request)(void *user, const char *request_id, const char *owner, uint64_t job,
                              uint64_t hash, enum hd_job_state state);
    enum hd_status (*job)(void *user, const struct hd_job_record *job, uint64_t sequence);
    enum hd_status (*attempt)(void *user, const struct hd_attempt_record *attempt);
    enum hd_status (*checkpoint)(void *user, const struct hd_checkpoint_record *checkpoint);
    enum hd_status (*position)(void *user, const struct hd_position_record *position);
    enum hd_status (*step)(void *user, const struct hd_step_record *step); /* the newest */
    /* Those that have not ended or expired, and certificates of nodes that have ended, by id;
     * `last`: the highest id of all. NULL: skip. */
    enum hd_status (*credential)(void *user, const struct hd_credential_record *credential);
    void (*credentials_end)(void *user, uint64_t last);
    /* Folders of checkpoints that nodes have seen through the jobs directory, also of jobs that
     * have ended; the newest 200. NULL: skip. */
    void (*shared_checkpoint)(void *user, const char *path);
    enum hd_status (*end)(void *user, uint64_t last_job, uint64_t cluster_sequence);
    void *user;
};

/* Before the first commit or query. Blocks. */
enum hd_status hd_store_load(struct hd_job_store *store, const struct hd_store_loader *loader);

/* ---- queries ----------------------------------------------------------------------------------*/

enum hd_query_kind {
    HD_QUERY_JOB,         /* job -> jobs[0] with spec, attempts; HD_NOT_FOUND */
    HD_QUERY_JOBS,        /* states, owner, before_job, limit -> jobs, newest first */
    HD_QUERY_HISTORY,     /* job, after, limit -> entries of all kinds, in order */
    HD_QUERY_EVENTS,      /* job (0: cluster), after, limit -> entries: events, in order */
    HD_QUERY_LAST_EVENTS, /* job (0: cluster), limit -> entries: the newest events, in order */
    HD_QUERY_STEPS,       /* job, after, limit -> entries: steps and validations, in order */
    HD_QUERY_CHECKPOINTS, /* job -> entries: those present, sorted by step */
    HD_QUERY_RECORDS,     /* job -> all of HD_QUERY_JOB and HD_QUERY_CHECKPOINTS, and positions */
    HD_QUERY_USERS,       /* job, text, limit -> other jobs in whose specs the text occurs: records
                           * without spec, in order. Reads all specs. */
    HD_QUERY_AUDIT,       /* after, limit -> audit, in order */
    HD_QUERY_BYTES,       /* owner -> bytes of the checkpoints present of all jobs */
    HD_QUERY_CREDENTIALS, /* after, limit -> credentials, ended ones included, by id */
};

struct hd_job_row {
    struct hd_job_record record;
    bool has_step;
    struct hd_step_record step; /* the newest */
    int64_t checkpoint_step;    /* the newest present; 0: none */
    uint64_t sequence;          /* of the newest entry of its history; 0: none */
};

struct hd_history_entry {
    enum hd_batch_op_kind kind; /* EVENT, STEP, VALIDATION or CHECKPOINT */
    uint64_t sequence;
    union {
        struct hd_event_record event;
        struct hd_step_record step;
        struct hd_validation_record validation;
        struct hd_checkpoint_record checkpoint;
    };
};

struct hd_audit_row {
    uint64_t seq;
    struct hd_audit_record record;
    unsigned char hash[HD_CREDENTIAL_HASH_BYTES];
};

/* Set the inputs of the kind, done and user; the store fills in the rest. The query and its results
 * belong to the callback, which must call hd_query_free. */
struct hd_query {
    enum hd_query_kind kind;
    uint64_t job;
    uint64_t after;      /* only entries with a higher sequence */
    uint64_t before_job; /* only jobs with a lower number; 0: all */
    uint32_t states;     /* bit n: state n; 0: all */
    const char *owner;   /* copied; NULL: all */
    const char *text;    /* copied */
    /* Of kinds that take `job`: another owner's job is HD_NOT_FOUND, as one that does not exist.
     * Copied; NULL: every job is found. */
    const char *only_of;
    bool hidden; /* with only_of: else another's job is HD_DENIED, with its owner's name */
    int32_t limit;
    void (*done)(struct hd_query *query, enum hd_status st);
    void *user;

    struct hd_job_row *jobs;
    size_t job_count;
    struct hd_attempt_record *attempts;
    size_t attempt_count;
    struct hd_history_entry *entries;
    size_t entry_count;
    struct hd_position_record *positions;
    size_t position_count;
    struct hd_audit_row *audit;
    size_t audit_count;
    struct hd_credential_record *credentials;
    size_t credential_count;
    int64_t bytes;
    bool more; /* there are more than `limit` */
    struct hd_arena arena;
};

struct hd_query *hd_query_new(enum hd_query_kind kind); /* NULL: out of memory */
void hd_query_free(struct hd_query *query);
void hd_store_query(struct hd_job_store *store, struct hd_query *query);

#endif
