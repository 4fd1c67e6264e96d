/* store: the controller's memory that survives: one SQLite database in the state directory.
 *
 * Asynchronous. Batches (record.h) go to one writer thread, which writes everything that has queued
 * up since its last commit as one transaction, waits until that is on disk (WAL, synchronous=FULL)
 * and then reports each batch done, in order, on the loop's thread. Whatever depends on a batch
 * must wait for its callback: that is the whole durability rule of the controller.
 *
 * A disk that is full or fails loses nothing that was reported done. The writer keeps what it could
 * not write and tries again every second; hd_store_trouble says so meanwhile. Errors that trying
 * again cannot mend (a damaged database, a broken rule of the schema) end in on_fatal.
 *
 * Queries run on the same thread behind the batches queued before them: they see durable state
 * only, and all that was committed before they were asked. In trouble they do not wait for batches
 * that cannot be written.
 *
 * Used by: services, tests.   Uses: record, base, libuv, SQLite (nobody else includes sqlite3.h).
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
    int64_t retry_ms; /* pause before a failed transaction is tried again; 0: 1000 */
    /* May be NULL. Trouble begins (message) or is over (NULL). */
    void (*on_trouble)(void *user, const char *message);
    /* Nothing more will be written; the program should say so and exit. */
    void (*on_fatal)(void *user, const struct hd_error *error);
    void *user;
};

/* Locks the directory, opens or creates the database, checks it, brings its schema up to date.
 * HD_CONFLICT: another controller uses the directory; HD_CORRUPT: the check failed, the story names
 * the file; HD_UNSUPPORTED: a newer version of Heddle wrote it. */
enum hd_status hd_store_open(uv_loop_t *loop, const struct hd_store_options *options,
                             struct hd_job_store **ret_store);

/* Writes what is queued, then closes; on_closed (may be NULL) runs last. What cannot be written
 * within timeout_ms is given up: its callbacks get HD_ABORTED. */
void hd_store_close(struct hd_job_store *store, int64_t timeout_ms, void (*on_closed)(void *user),
                    void *user);

/* An identity made when the database was created: the cluster's. */
const char *hd_store_cluster_id(const struct hd_job_store *store);

/* What is wrong with the disk, NULL when nothing is. */
const char *hd_store_trouble(const struct hd_job_store *store);

/* Takes the batch. done (may be NULL) runs when it is durable (HD_OK) or given up (HD_ABORTED).
 * Batches become durable in order; an empty one waits for those before it. */
void hd_store_commit(struct hd_job_store *store, struct hd_batch *batch,
                     void (*done)(void *user, enum hd_status st), void *user);

/* ---- at start ---------------------------------------------------------------------------------*/

/* Called in the order that hd_core_restore_* wants. The first failure ends the loading. */
struct hd_store_loader {
    enum hd_status (*node)(void *user, const struct hd_node_record *node);
    enum hd_status (*request)(void *user, const char *request_id, uint64_t job);
    enum hd_status (*job)(void *user, const struct hd_job_record *job, uint64_t sequence);
    enum hd_status (*attempt)(void *user, const struct hd_attempt_record *attempt);
    enum hd_status (*checkpoint)(void *user, const struct hd_checkpoint_record *checkpoint);
    enum hd_status (*position)(void *user, const struct hd_position_record *position);
    enum hd_status (*end)(void *user, uint64_t last_job, uint64_t cluster_sequence);
    void *user;
};

/* Before the first commit or query. Blocks. */
enum hd_status hd_store_load(struct hd_job_store *store, const struct hd_store_loader *loader);

/* ---- queries ----------------------------------------------------------------------------------*/

enum hd_query_kind {
    HD_QUERY_JOB,         /* job -> jobs[0] with spec, attempts; HD_NOT_FOUND */
    HD_QUERY_JOBS,        /* states, owner, before, limit -> jobs, newest first */
    HD_QUERY_HISTORY,     /* job, after, limit -> entries: everything, in order */
    HD_QUERY_EVENTS,      /* job (0: cluster), after, limit -> entries: events, in order */
    HD_QUERY_CHECKPOINTS, /* job -> entries: those present, in order of steps */
    HD_QUERY_RECORDS, /* job -> what HD_QUERY_JOB and HD_QUERY_CHECKPOINTS give, and positions */
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

/* Fill in kind, inputs, done and user; the rest is the store's. Everything in it lives until
 * hd_query_free, which the callback should call. */
struct hd_query {
    enum hd_query_kind kind;
    uint64_t job;
    uint64_t after;      /* sequence */
    uint64_t before_job; /* 0: from the newest */
    uint32_t states;     /* set: bit n is state n; 0: all */
    const char *owner;   /* copied; NULL: all */
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
    bool more; /* there is more than `limit` */
    struct hd_arena arena;
};

struct hd_query *hd_query_new(enum hd_query_kind kind); /* NULL: out of memory */
void hd_query_free(struct hd_query *query);
void hd_store_query(struct hd_job_store *store, struct hd_query *query);

#endif
