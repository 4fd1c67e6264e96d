/* store: the controller's durable state: one SQLite database in the state directory.
 *
 * Asynchronous. One writer thread takes all queued batches (record.h), writes them in one
 * transaction (group commit; WAL, synchronous=FULL) and then reports each batch done, in order, on
 * the loop's thread. Nothing that depends on a batch may leave the controller before its callback.
 *
 * When the disk is full or fails, nothing that was reported done is lost:
 *
 *   HD_STORE_FINE --disk full--> HD_STORE_RESERVE --reserve used up--> HD_STORE_STUCK
 *        |                          |     ^                               |    ^
 *        '---- any other failure ---|-----|-------------------------------|----'
 *        ^                          |     '---- a write succeeds ---------'
 *        '--- the reserve is made again
 *
 * RESERVE: batches are still written, into disk space that the reserve (disk_reserve.c) gives up;
 * the caller sends fewer. When less than half of the reserve is left, only every sixteenth step of
 * a job and its newest step are kept. STUCK: the writer keeps the batches in memory and retries
 * every second. Both states end without intervention when the disk has space again. Errors that a
 * retry cannot fix (a damaged database, a violated constraint) lead to on_fatal.
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
    const char *dir;  /* state directory of the controller; must exist; locked while the store is
                       * open */
    const char *vfs;  /* name of an SQLite VFS; NULL: the system's default */
    int64_t retry_ms; /* milliseconds before a failed transaction is retried; 0: 1000 */
    /* Size of the disk reserve in bytes, reduced to a sixteenth of the disk; 0: no reserve, so that
     * STUCK follows FINE directly. The write-ahead log is bounded by a sixteenth of the disk, the
     * reserve's size or 4 MiB, whichever is least; only a larger transaction or a slow backup
     * exceeds that. */
    int64_t reserve_bytes;
    /* True: use the database although it is a copy of another controller's database; the user says
     * that the other controller has ended. */
    bool take_over;
    /* Called when the result of hd_store_trouble changes; may be NULL. message: the new result;
     * NULL: all is fine again. */
    void (*on_trouble)(void *user, const char *message);
    /* Called when the store has failed for good: log the error and exit. May be NULL. */
    void (*on_fatal)(void *user, const struct hd_error *error);
    void *user;
};

/* Locks the directory, opens or creates the database, checks it and migrates its schema.
 * HD_CONFLICT: another controller uses the directory; or the database is a copy of another
 * controller's; or another controller has taken over; or the log beside it belongs to another
 * database (epoch.c). HD_CORRUPT: the check failed, the message names the file. HD_UNSUPPORTED: a
 * newer version of Heddle wrote it, or the file system cannot hold a write-ahead log. */
enum hd_status hd_store_open(uv_loop_t *loop, const struct hd_store_options *options,
                             struct hd_job_store **ret_store);

/* Writes the queued batches, then closes and frees the store; calls on_closed (may be NULL) last.
 * Batches that cannot be written within timeout_ms are dropped: their callbacks get HD_ABORTED. */
void hd_store_close(struct hd_job_store *store, int64_t timeout_ms, void (*on_closed)(void *user),
                    void *user);

/* Returns the cluster's id, chosen at random when the database was created. */
const char *hd_store_cluster_id(const struct hd_job_store *store);

enum { HD_STORE_PLACE_MAX = 512 };

/* The epoch of one start of a controller: of several controllers, the one with the highest epoch
 * leads the cluster (epoch.c). */
struct hd_store_epoch {
    uint64_t number;   /* epoch of this start: higher than that of every earlier start */
    uint64_t takeover; /* number of the newest takeover, that is, a start on a copy or an older
                        * database; commits of earlier epochs may be missing; 0: none */
    char instance[33]; /* random id of this start, as hex digits */
    char place[HD_STORE_PLACE_MAX]; /* "DIR on HOST", for users */
    uint64_t progress;     /* number of commits so far, counted in steps of 10 s and more, when the
                            * database was opened */
    int64_t copied_ms;     /* wall-clock time at which the copy of the newest takeover was made; 0:
                            * unknown */
    int64_t taken_over_ms; /* wall-clock time of the newest takeover; 0: none */
    bool restored;         /* true: this start is a takeover */
    int64_t settled_ms;    /* settled clock (base/clock.h) when `progress` was last stored; 0:
                            * unknown */
    unsigned char secret[HD_CREDENTIAL_HASH_BYTES]; /* secret in the database, shared only by its
                                                     * copies */
};
const struct hd_store_epoch *hd_store_own_epoch(const struct hd_job_store *store);

/* Returns the id of the jobs directory (hd_batch_add_jobs_share) that was stored when the store was
 * opened; "": none. */
const char *hd_store_jobs_share(const struct hd_job_store *store);

/* Returns the number of batches and queries whose callbacks have not been called yet. */
size_t hd_store_queued(const struct hd_job_store *store);

enum hd_store_disk_space {
    HD_STORE_FINE,
    HD_STORE_RESERVE, /* the disk is full; batches are still written, into disk space that the
                       * reserve gives up */
    HD_STORE_STUCK,   /* nothing can be written; batches wait in memory */
};
enum hd_store_disk_space hd_store_disk_state(const struct hd_job_store *store);
/* Returns a sentence for users about the store's trouble: the problem, since when, where, and the
 * remedy; NULL: FINE. */
const char *hd_store_trouble(const struct hd_job_store *store);
/* Returns the bytes left of the disk reserve. */
int64_t hd_store_reserve_left(const struct hd_job_store *store);

/* Returns how long the writer thread has been busy with one piece of work, or has left a liveness
 * request unanswered, in milliseconds; 0: it waits for work, or has answered. Each call sends a new
 * request, so call it every few seconds. A full disk does not count as a hang: the thread answers
 * between retries. */
int64_t hd_store_silent_ms(struct hd_job_store *store);

/* ---- backup -----------------------------------------------------------------------------------*/

struct hd_store_backup {
    int64_t size_bytes, schema, jobs;
    int64_t last_job;  /* highest job number in the database; 0: none */
    int64_t copied_ms; /* wall-clock time at which the copy was made; 0: unknown, for example a copy
                        * made with cp */
    int64_t newest_ms; /* wall-clock time of the controller's last write, to 10 s; 0: unknown */
};

/* Copies the database in `dir` to the new file `file` and checks the copy. Works while a controller
 * runs, from another process, and also while none runs. HD_OK: the copy is durable, undamaged and
 * equals one committed state. HD_EXISTS: `file` exists. HD_NOT_FOUND: `dir` has no database.
 * HD_CORRUPT: the copy is damaged. On failure no file is left. Needs no loop. */
enum hd_status hd_store_make_backup(const char *dir, const char *file,
                                    struct hd_store_backup *ret_backup);

struct hd_store_restore {
    struct hd_store_backup copy; /* the database that is in place now; size_bytes 0: no file was
                                  * restored */
    int64_t ended;               /* number of tokens, people's certificates and invitations that the
                                  * restore ended */
    char aside[HD_CTL_PATH_BYTES_MAX]; /* folder to which the former database was moved; "": there
                                        * was none */
    struct hd_store_backup former;     /* the former database; last_job 0: no job, or unreadable */
};

/* Makes the next start in `dir` a takeover, for a database that is a copy or that another
 * controller has fenced. `file` not NULL: first replaces the database by that file, and moves the
 * former one aside with its log. Interrupted, it loses nothing, and a call with the same arguments
 * completes it; after a failure that moved files the message says where they are. revoke: ends
 * tokens, people's certificates and invitations. into_empty: with `file`, `dir` may also be an
 * empty folder that no controller has used. HD_CONFLICT: a controller uses `dir`, or `file` is
 * another cluster's. HD_INVALID: `dir` is no state directory. HD_NOT_FOUND: `file` does not exist.
 * HD_CORRUPT: `file` is damaged, or no database of a controller. HD_UNSUPPORTED: a newer version of
 * Heddle wrote `file`. */
enum hd_status hd_store_restore_from(const char *dir, const char *file, bool revoke,
                                     bool into_empty, struct hd_store_restore *ret_restore);

/* ---- while no controller runs -----------------------------------------------------------------*/

/* Writes one batch to the database in `dir` and frees the batch; for heddle-controller init.
 * Blocks, needs no loop. `dir` must exist; its database is created if missing. HD_CONFLICT: a
 * controller uses `dir`. */
enum hd_status hd_store_write(const char *dir, struct hd_batch *batch);
/* Sets ret_jobs to the numbers of at most `max` jobs that have checkpoints in the jobs directory,
 * newest first. Conditions and failures as for hd_store_write. */
enum hd_status hd_store_read_saved_jobs(const char *dir, uint64_t *ret_jobs, size_t max,
                                        size_t *ret_count);
/* Sets ret_cluster and ret_share to the ids of the cluster and of its jobs directory; "": the
 * database has none. HD_NOT_FOUND: there is no database in `dir`. */
enum hd_status hd_store_read_ids(const char *dir, char ret_cluster[HD_JOBS_SHARE_MAX],
                                 char ret_share[HD_JOBS_SHARE_MAX]);
/* Sets *ret_last to the highest id of a credential; 0: there is none, or no database yet. */
enum hd_status hd_store_last_credential(const char *dir, uint64_t *ret_last);

/* ---- writing ----------------------------------------------------------------------------------*/

/* Queues a batch and takes ownership of it. done (may be NULL) gets HD_OK when it is durable,
 * HD_ABORTED when it is dropped. Batches become durable in order; an empty one waits for the
 * batches before it. */
void hd_store_commit(struct hd_job_store *store, struct hd_batch *batch,
                     void (*done)(void *user, enum hd_status st), void *user);

/* ---- loading ----------------------------------------------------------------------------------*/

/* Callbacks of hd_store_load, called in the order of hd_core_restore_*. The first failure stops
 * loading and is returned. */
struct hd_store_loader {
    enum hd_status (*node)(void *user, const struct hd_node_record *node);
    enum hd_status (*probe)(void *user, const struct hd_probe_record *probe); /* probe of a node,
                                                                               * without its
                                                                               * `devices` */
    enum hd_status (*queue)(void *user, const struct hd_queue_record *queue);
    enum hd_status (*request)(void *user, const char *request_id, const char *owner, uint64_t job,
                              uint64_t hash, enum hd_job_state state);
    enum hd_status (*job)(void *user, const struct hd_job_record *job, uint64_t sequence);
    enum hd_status (*attempt)(void *user, const struct hd_attempt_record *attempt);
    enum hd_status (*checkpoint)(void *user, const struct hd_checkpoint_record *checkpoint);
    enum hd_status (*position)(void *user, const struct hd_position_record *position);
    /* Newest step of the job that was passed last. */
    enum hd_status (*step)(void *user, const struct hd_step_record *step);
    /* Valid credentials, and certificates that were ended, by id, also if they expired less than a
     * year ago; `last`: the highest id of all. NULL: skip. */
    enum hd_status (*credential)(void *user, const struct hd_credential_record *credential);
    void (*credentials_end)(void *user, uint64_t last);
    /* Paths of checkpoints that nodes have seen through the jobs directory, the newest 200, also of
     * ended jobs. NULL: skip. */
    void (*shared_checkpoint)(void *user, const char *path);
    enum hd_status (*end)(void *user, uint64_t last_job, uint64_t cluster_sequence);
    void *user;
};

/* Loads all records and passes them to `loader`; call it before the first commit or query.
 * Blocks. */
enum hd_status hd_store_load(struct hd_job_store *store, const struct hd_store_loader *loader);

/* ---- queries ----------------------------------------------------------------------------------*/

enum hd_query_kind {
    HD_QUERY_JOB,         /* job -> jobs[0] with spec, attempts; HD_NOT_FOUND */
    HD_QUERY_JOBS,        /* states, owner, name, before_job, limit -> jobs, newest first */
    HD_QUERY_HISTORY,     /* job, after, limit -> entries of all kinds, in order */
    HD_QUERY_EVENTS,      /* job (0: cluster), after, limit -> entries: events, in order */
    HD_QUERY_LAST_EVENTS, /* job (0: cluster), limit -> entries: the newest events, in order */
    HD_QUERY_STEPS,       /* job, after, limit -> entries: steps and validations, in order */
    HD_QUERY_CHECKPOINTS, /* job -> entries: those present, sorted by step */
    HD_QUERY_RECORDS,     /* job -> results of HD_QUERY_JOB and HD_QUERY_CHECKPOINTS, and
                           * positions */
    HD_QUERY_USERS,       /* job, text, limit -> other jobs whose spec contains the text: records
                           * without spec, in order. Reads all specs. */
    HD_QUERY_AUDIT,       /* after, limit -> audit, in order */
    HD_QUERY_BYTES,       /* owner -> bytes of all present checkpoints of the owner's jobs */
    HD_QUERY_CREDENTIALS, /* after, limit -> credentials, ended ones included, by id */
};

struct hd_job_row {
    struct hd_job_record record;
    bool has_step;
    struct hd_step_record step; /* newest step */
    int64_t checkpoint_step;    /* step of the newest checkpoint present; 0: none */
    uint64_t sequence;          /* sequence number of the newest entry of the job's history; 0:
                                 * none */
};

struct hd_history_entry {
    enum hd_batch_op_kind kind; /* kind of the entry: EVENT, STEP, VALIDATION or CHECKPOINT */
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

/* A query of the database. Set the inputs of the kind, done and user; the store fills in the rest.
 * The query and its results belong to the callback, which must call hd_query_free. */
struct hd_query {
    enum hd_query_kind kind;
    uint64_t job;
    uint64_t after;      /* for kinds with `after`: only entries with a higher sequence number
                          * (HD_QUERY_CREDENTIALS: id) */
    uint64_t before_job; /* with HD_QUERY_JOBS: only jobs with a lower number; 0: all */
    uint32_t states;     /* with HD_QUERY_JOBS: only jobs in these states, bit n for state n; 0:
                          * all */
    const char *owner;   /* only jobs of this owner; copied by the store; NULL: all */
    const char *name; /* with HD_QUERY_JOBS: only jobs whose name matches this pattern of SQLite's
                          * GLOB; copied by the store; NULL: all */
    const char *text; /* with HD_QUERY_USERS: text to find in specs; copied by the store */
    /* Only this owner's job is found, by kinds that take `job`: another owner's job yields
     * HD_NOT_FOUND, like a job that does not exist, unless `hidden` is false. Copied; NULL: every
     * job is found. */
    const char *only_of;
    bool hidden; /* with only_of: true: another owner's job yields HD_NOT_FOUND; false: it yields
                  * HD_DENIED, and the message names the owner */
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
    bool more; /* true: more results than `limit` match */
    struct hd_arena arena;
};

struct hd_query *hd_query_new(enum hd_query_kind kind); /* NULL: out of memory */
void hd_query_free(struct hd_query *query);
void hd_store_query(struct hd_job_store *store, struct hd_query *query);

#endif
