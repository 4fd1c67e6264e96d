/* store_internal: the database connection and its statements. Private to this folder.
 *
 *   store.c         the writer thread, its queue, and the callbacks on the loop
 *   db.c            prepared statements, error messages
 *   schema.c        opening, checking, migrations
 *   write.c         writes one batch into the open transaction
 *   fields.c        records as rows of their tables
 *   row.c           columns and rows as values and records (row.h)
 *   read.c          queries
 *   load.c          loading at start
 *   identity.c      credentials and the audit log
 *   retention.c     deletion of old history
 *   disk_reserve.c  disk space that is given up when the disk is full
 *   life.c          refuses to create a database where an earlier one was lost
 *   restore.c       replaces the database by a backup, safe against interruption at each step
 *   epoch.c         decides which of several controllers of one cluster is the newest
 *   backup.c        copies the database, in another process than the controller; or in the
 *                   controller itself, when the file was removed or replaced under it
 *
 * Threads: a struct store_db is used by the loop's thread until the first item is queued, then by
 * the writer thread only, until that has ended.
 */
#ifndef HD_CONTROLLER_STORE_INTERNAL_H
#define HD_CONTROLLER_STORE_INTERNAL_H

#include <sqlite3.h>

#include "controller/store/store.h"

/* Prepared statements: name, and SQL text, in which fields.c replaces the placeholders in braces by a
 * table's columns. */
#define STORE_STATEMENTS(X)                                                                        \
    X(BEGIN, "BEGIN IMMEDIATE")                                                                    \
    X(COMMIT, "COMMIT")                                                                            \
    X(ROLLBACK, "ROLLBACK")                                                                        \
    X(INSERT_JOB, "INSERT INTO jobs ({jobs}) VALUES ({jobs?})")                                    \
    X(UPDATE_JOB, "UPDATE jobs SET {jobs=PUT}, pruned=CASE WHEN {jobs:state} IN"                   \
                  " ('queued','running') OR {jobs:state}='stopping' THEN 0 ELSE pruned END"        \
                  " WHERE job={jobs:job}")                                                         \
    X(UPDATE_SPEC, "UPDATE jobs SET {jobs=SPEC} WHERE job={jobs:job}")                             \
    X(PUT_QUEUE, "INSERT INTO queues ({queues}) VALUES ({queues?})"                                \
                 " ON CONFLICT (name) DO UPDATE SET {queues=PUT}")                                 \
    X(DELETE_QUEUE, "DELETE FROM queues WHERE name=?")                                             \
    X(GET_QUEUES, "SELECT {queues} FROM queues ORDER BY name")                                     \
    /* Statements for removed jobs; attempts stay until the folder is deleted. */                  \
    X(DELETE_EVENTS, "DELETE FROM events WHERE job=?")                                             \
    X(DELETE_STEPS, "DELETE FROM step_metrics WHERE job=?")                                        \
    X(DELETE_VALIDATIONS, "DELETE FROM validations WHERE job=?")                                   \
    X(DELETE_POSITIONS, "DELETE FROM report_positions WHERE job=?")                                \
    X(DELETE_BASES, "UPDATE attempts SET base_attempt=NULL, base_step=NULL WHERE job=?")           \
    X(DELETE_CHECKPOINTS, "DELETE FROM checkpoints WHERE job=?")                                   \
    X(DELETE_ALLOCATIONS, "DELETE FROM allocations WHERE job=?")                                   \
    X(DELETE_ATTEMPTS, "DELETE FROM attempts WHERE job=?")                                         \
    X(EMPTY_SPEC, "UPDATE jobs SET spec=x'' WHERE job=?")                                          \
    X(INSERT_ATTEMPT,                                                                              \
      "INSERT INTO attempts ({attempts}) VALUES ({attempts?}) ON CONFLICT DO NOTHING")             \
    X(INSERT_ALLOCATION,                                                                           \
      "INSERT INTO allocations (job, attempt, rank, node_uuid, node_name, device)"                 \
      " VALUES (?,?,?,?,?,?)")                                                                     \
    X(UPDATE_ATTEMPT, "UPDATE attempts SET {attempts=PUT} WHERE job={attempts:job}"                \
                      " AND attempt={attempts:attempt}")                                           \
    X(PUT_NODE, "INSERT INTO nodes ({nodes}) VALUES ({nodes?})"                                    \
                " ON CONFLICT (uuid) DO UPDATE SET {nodes=PUT}")                                   \
    /* Keeps the row (retired = 1) if an attempt or checkpoint refers to it. */                    \
    X(DELETE_NODE, "DELETE FROM nodes WHERE uuid=?1"                                               \
                   " AND NOT EXISTS (SELECT 1 FROM allocations WHERE node_uuid=?1)"                \
                   " AND NOT EXISTS (SELECT 1 FROM checkpoints WHERE node_uuid=?1)")               \
    X(PUT_PROBE, "INSERT INTO probes ({probes}) VALUES ({probes?})"                                \
                 " ON CONFLICT (node_uuid) DO UPDATE SET {probes=PUT}")                            \
    X(DELETE_PROBE, "DELETE FROM probes WHERE node_uuid=?")                                        \
    X(GET_PROBES, "SELECT {probes} FROM probes")                                                   \
    X(DELETE_DEVICES, "DELETE FROM devices WHERE node_uuid=?")                                     \
    X(INSERT_DEVICE, "INSERT INTO devices ({devices}, node_uuid) VALUES ({devices?}, ?)")          \
    X(PUT_CHECKPOINT, "INSERT INTO checkpoints ({checkpoints}) VALUES ({checkpoints?})"            \
                      " ON CONFLICT (job, attempt, step) DO UPDATE SET {checkpoints=PUT}")         \
    X(INSERT_EVENT, "INSERT INTO events ({events}) VALUES ({events?})")                            \
    X(INSERT_STEP, "INSERT INTO step_metrics ({step_metrics}) VALUES ({step_metrics?})")           \
    X(INSERT_VALIDATION, "INSERT INTO validations ({validations}) VALUES ({validations?})")        \
    X(PUT_POSITION, "INSERT INTO report_positions ({report_positions})"                            \
                    " VALUES ({report_positions?}) ON CONFLICT (job, attempt, rank)"               \
                    " DO UPDATE SET {report_positions=PUT}")                                       \
    X(GET_NODES, "SELECT {nodes} FROM nodes ORDER BY name")                                        \
    X(GET_DEVICES, "SELECT {devices} FROM devices WHERE node_uuid=? ORDER BY device")              \
    X(GET_SHARED_PATHS, "SELECT path FROM checkpoints WHERE shared=1 AND state='present'"          \
                        " ORDER BY job DESC, step DESC LIMIT 200")                                 \
    X(GET_REQUESTS, "SELECT request_id, job, request_hash, state, owner FROM jobs ORDER BY job")   \
    X(GET_LIVE_JOBS, "SELECT {jobs} FROM jobs"                                                     \
                     " WHERE state IN ('queued','running','stopping')"                             \
                     " OR job IN (SELECT job FROM checkpoints WHERE state='deleting')"             \
                     " OR job IN (SELECT job FROM jobs WHERE removal=1) ORDER BY job")             \
    X(GET_JOB, "SELECT {jobs} FROM jobs WHERE job=? AND removal=0")                                \
    /* Each statement scans one range of one index and stops at its limit. */                      \
    X(FIND_JOBS, "SELECT job FROM jobs WHERE job<? AND removal=0 ORDER BY job DESC LIMIT ?")       \
    X(FIND_JOBS_BY_STATE,                                                                          \
      "SELECT job FROM jobs WHERE state=? AND job<? AND removal=0 ORDER BY job DESC LIMIT ?")      \
    X(FIND_JOBS_BY_OWNER, "SELECT job FROM jobs WHERE owner=? AND state=? AND job<? AND removal=0" \
                          " ORDER BY job DESC LIMIT ?")                                            \
    /* Scans jobs until its limit: names have no index. ?4: ",queued,running,"; "": all states */  \
    X(FIND_JOBS_BY_NAME, "SELECT job FROM jobs WHERE job<?1 AND removal=0 AND name GLOB ?2"        \
                         " AND (?3='' OR owner=?3) AND (?4='' OR instr(?4,','||state||','))"       \
                         " ORDER BY job DESC LIMIT ?5")                                            \
    /* Scans all specs: for rare queries only. */                                                  \
    X(FIND_USERS, /* live jobs first: ?3 may cut the list */                                       \
      "SELECT {jobs} FROM jobs WHERE job<>?1 AND removal=0 AND instr(spec, ?2)"                    \
      " ORDER BY state IN ('queued','running','stopping') DESC, job LIMIT ?3")                     \
    X(GET_ATTEMPTS, "SELECT {attempts} FROM attempts WHERE job=? ORDER BY attempt")                \
    X(GET_ALLOCATIONS,                                                                             \
      "SELECT node_uuid, node_name, device FROM allocations WHERE job=? AND attempt=?"             \
      " ORDER BY rank")                                                                            \
    X(GET_CHECKPOINTS, /* ?2: include those being deleted */                                       \
      "SELECT {checkpoints} FROM checkpoints WHERE job=?1 AND (state='present' OR (?2 AND "        \
      "state='deleting'))"                                                                         \
      " ORDER BY step, attempt")                                                                   \
    /* A history's statements return the sequence number, then the record. */                      \
    X(GET_CHECKPOINTS_AFTER, "SELECT seq, {checkpoints} FROM checkpoints WHERE job=? AND seq>?"    \
                             " ORDER BY seq LIMIT ?")                                              \
    X(GET_NEWEST_CHECKPOINT, "SELECT max(step) FROM checkpoints WHERE job=? AND state='present'"   \
                             " AND missing=0")                                                     \
    X(GET_EVENTS_AFTER,                                                                            \
      "SELECT seq, {events} FROM events WHERE job=? AND seq>? ORDER BY seq LIMIT ?")               \
    X(GET_LAST_EVENTS, /* ?3: the limit + 1 */                                                     \
      "SELECT seq, {events} FROM (SELECT * FROM events WHERE job=?1 ORDER BY seq DESC"             \
      " LIMIT ?3 - 1) WHERE seq>?2 ORDER BY seq")                                                  \
    X(GET_STEPS_AFTER,                                                                             \
      "SELECT seq, {step_metrics} FROM step_metrics WHERE job=? AND seq>? ORDER BY seq LIMIT ?")   \
    X(GET_NEWEST_STEP,                                                                             \
      "SELECT seq, {step_metrics} FROM step_metrics WHERE job=? ORDER BY seq DESC LIMIT 1")        \
    X(GET_VALIDATIONS_AFTER,                                                                       \
      "SELECT seq, {validations} FROM validations WHERE job=? AND seq>? ORDER BY seq LIMIT ?")     \
    X(GET_POSITIONS, "SELECT {report_positions} FROM report_positions WHERE job=?")                \
    X(GET_SEQUENCE, "SELECT max(ifnull((SELECT max(seq) FROM events WHERE job=?1), 0),"            \
                    " ifnull((SELECT max(seq) FROM step_metrics WHERE job=?1), 0),"                \
                    " ifnull((SELECT max(seq) FROM validations WHERE job=?1), 0),"                 \
                    " ifnull((SELECT max(seq) FROM checkpoints WHERE job=?1), 0))")                \
    X(HAS_JOB, "SELECT 1 FROM jobs WHERE job=? AND removal=0")                                     \
    X(GET_LAST_JOB, "SELECT ifnull(max(job), 0) FROM jobs")                                        \
    X(GET_BYTES, "SELECT ifnull(sum(size_bytes), 0) FROM jobs JOIN checkpoints USING (job)"        \
                 " WHERE owner=? AND checkpoints.state='present'")                                 \
    /* retention.c; the index jobs_ended holds the jobs not yet pruned */                          \
    X(FIND_OLD, "SELECT job FROM " STORE_KEPT " AND ended_ms<? ORDER BY ended_ms")                 \
    X(FIND_MANY, "SELECT job FROM " STORE_KEPT " ORDER BY ended_ms DESC"                           \
                 " LIMIT 1000 OFFSET ?")                                                           \
    X(FIND_LONG, "SELECT job FROM " STORE_KEPT " AND pruned=0 AND ended_ms<?"                      \
                 " ORDER BY ended_ms")                                                             \
    X(SET_PRUNED, "UPDATE jobs SET pruned=?2 WHERE job=?1")                                        \
    X(PRUNE_EVENTS, "DELETE FROM events WHERE job=?1"                                              \
                    " AND seq<(SELECT max(seq) FROM events WHERE job=?1)")                         \
    X(PRUNE_STEPS, "DELETE FROM step_metrics WHERE job=?1"                                         \
                   " AND seq<(SELECT max(seq) FROM step_metrics WHERE job=?1)")                    \
    X(REPORT_PRUNED, "INSERT OR IGNORE INTO events (job, seq, time_ms, attempt, rank, kind, node," \
                     " message) VALUES (?1, 1, ?2, 0, -1, 'history_removed', '', ?3)")             \
    /* write.c, while the disk reserve runs out */                                                 \
    X(DROP_STEP, "DELETE FROM step_metrics WHERE job=?1 AND seq=(SELECT max(seq)"                  \
                 " FROM step_metrics WHERE job=?1) AND seq % 16 <> 0")                             \
    X(COUNT_STEPS, "SELECT count(*) FROM step_metrics WHERE job=?")                                \
    X(DOWNSAMPLE_STEPS,                                                                            \
      "DELETE FROM step_metrics WHERE job=?1 AND seq IN (SELECT seq FROM (SELECT seq,"             \
      " row_number() OVER (ORDER BY seq) AS n FROM step_metrics WHERE job=?1) WHERE n % ?2 <> 1)"  \
      " AND seq<(SELECT max(seq) FROM step_metrics WHERE job=?1)")                                 \
    X(GET_OWNER, "SELECT owner FROM jobs WHERE job=? AND removal=0")                               \
    X(PUT_CREDENTIAL, "INSERT INTO credentials ({credentials}) VALUES ({credentials?})"            \
                      " ON CONFLICT (id) DO UPDATE SET {credentials=PUT} WHERE ended_ms=0")        \
    X(GET_CREDENTIALS,                                                                             \
      "SELECT {credentials} FROM credentials"                                                      \
      " WHERE (ended_ms=0 OR kind IN ('node','person')) AND expires_ms>? ORDER BY id")             \
    X(GET_ENDED_CREDENTIALS, "SELECT {credentials} FROM credentials WHERE id>? ORDER BY id"        \
                             " LIMIT ?")                                                           \
    X(GET_LAST_CREDENTIAL, "SELECT ifnull(max(id), 0) FROM credentials")                           \
    X(PUT_META, "INSERT INTO meta (key, value) VALUES (?1,?2)"                                     \
                " ON CONFLICT (key) DO UPDATE SET value=?2")                                       \
    X(END_PEOPLE, "UPDATE credentials SET ended_ms=?1, ended_by='restore' WHERE ended_ms=0"        \
                  " AND kind IN ('token','person','invitation')")                                  \
    X(INSERT_AUDIT,                                                                                \
      "INSERT INTO audit (seq, time_ms, who, role, method, object, source, result, hash)"          \
      " VALUES (?,?,?,?,?,?,?,?,?)")                                                               \
    X(GET_AUDIT_HEAD, "SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1")                     \
    X(GET_AUDIT, "SELECT seq, time_ms, who, role, method, object, source, result, hash"            \
                 " FROM audit WHERE seq>? ORDER BY seq LIMIT ?")

/* Jobs that ended and have history to prune: those of an index, whose condition has these very words. */
#define STORE_KEPT                                            \
    "jobs INDEXED BY jobs_ended WHERE pruned<2 AND removal=0" \
    " AND (state='succeeded' OR state='failed' OR state='cancelled')"

#define X(name, text) STORE_##name,
enum store_statement { STORE_STATEMENTS(X) STORE_STATEMENT_COUNT };
#undef X

struct store_db {
    sqlite3 *sqlite;
    bool full;   /* true: the last error was a full disk or an exceeded quota */
    bool opened; /* true: the database is open, and the writer retries what fails */
    bool thins;  /* true: the disk reserve runs out, and few of the newly written steps are kept */
    sqlite3_stmt *statements[STORE_STATEMENT_COUNT];
    char path[HD_CTL_PATH_BYTES_MAX];
    int64_t log_reported_bytes; /* bytes of the write-ahead log at the last warning about its size;
                                 * 0: no warning since it was short */
    char cluster_id[40];
    char jobs_share[HD_JOBS_SHARE_MAX]; /* id of the jobs directory that was stored when the
                                         * database was opened; "": none */
    struct store_audit_head { /* number and hash of the newest row of the audit log, including the
                               * open transaction */
        uint64_t seq;
        unsigned char hash[HD_CREDENTIAL_HASH_BYTES]; /* hash of that row; zeros: no row yet */
    } audit;
};

/* ---- disk_reserve.c: used by one thread at a time, as `store_db` is ---- */

struct disk_reserve {
    sqlite3_file *file; /* open reserve file; NULL: there is none */
    const char *dir;
    char path[HD_CTL_PATH_BYTES_MAX];
    int64_t whole_bytes, left_bytes; /* bytes of the full reserve (0: no reserve is wanted), and
                                      * bytes that are left of it */
    bool checks;                     /* true: check the free disk space before writing; false with a
                                      * test's VFS */
};

/* Returns wanted_bytes, at most a sixteenth of the size of the disk that holds `dir`. */
int64_t disk_reserve_size(const char *dir, int64_t wanted_bytes);
/* Opens the reserve file and reads its size; writes nothing. `reserve` and `dir` must stay valid. A
 * file that cannot be opened counts as an empty reserve. */
void disk_reserve_open(struct disk_reserve *reserve, const char *dir, const char *vfs_name,
                       int64_t bytes);
void disk_reserve_close(struct disk_reserve *reserve);
bool disk_reserve_is_short(const struct disk_reserve *reserve);
/* Gives up one piece of the reserve (an eighth) as free disk space. False: nothing is left. */
bool disk_reserve_release(struct disk_reserve *reserve);
/* Restores the full reserve, if the disk has space for it and for half of the reserve more. True:
 * the reserve is full. */
bool disk_reserve_make(struct disk_reserve *reserve);
/* Returns the free disk space that disk_reserve_make requires. */
int64_t disk_reserve_needs(int64_t whole_bytes, int64_t left_bytes);
/* Checkpoints the write-ahead log into the database and restarts it; truncates the file if it
 * exceeds keep_bytes. Best effort: a running backup may block it. */
void store_db_empty_log(struct store_db *db, int64_t keep_bytes);
/* Logs a warning, after a commit, when a reader has let the write-ahead log grow to twice its
 * bound; again at each doubling, and when it is short again. */
void store_watch_log(struct store_db *db, int64_t bytes_max);

/* Opens, checks and migrates the database DIR/state.db; on failure nothing is left open. */
enum hd_status store_db_open(struct store_db *db, const char *dir, const char *vfs);
/* Does so with the database file `path`, without the checks of the files beside it. */
enum hd_status store_db_open_file(struct store_db *db, const char *path, const char *vfs);
/* Returns HD_UNSUPPORTED if a newer version of Heddle wrote the open database; the message calls
 * it `name`. */
enum hd_status store_check_schema(struct store_db *db, const char *name);
/* Returns HD_CORRUPT if the database is missing or empty although other files show that there was
 * one (life.c). */
enum hd_status store_check_life(const char *dir);
/* life.c: returns whether a controller, or init, has used `dir`. */
bool store_is_state_dir(const char *dir);
/* life.c: returns whether `dir` is empty, apart from the lock and copies that an interrupted
 * restore left. */
bool store_is_empty(const char *dir);

/* Names in the state directory while a restore runs (restore.c): of the copy, and of the folder that
 * the former database is moved to. */
#define STORE_RESTORED_NAME "state.db.restored"
#define STORE_ASIDE_NAME    "before-restore.part"

void store_db_close(struct store_db *db);

/* Advice for a damaged database, appended to error messages. */
#define STORE_RESTORE                                                                 \
    "restore it from a backup (made by heddle-controller backup; docs/operations.md " \
    "says how)"

/* Bounds the write-ahead log: at `pages` pages it is checkpointed into the database, and its file
 * keeps that size. */
enum hd_status store_db_bound_log(struct store_db *db, int64_t pages);
/* Sets hd_err from the last error of the database connection. HD_IO: a retry may help (disk full,
 * read or write errors); HD_CORRUPT, HD_INTERNAL: it cannot. */
enum hd_status store_db_error(struct store_db *db, const char *what);
/* Checks that the path db->path still names the open database file. HD_IO: it does not, so a later
 * start would not find new commits; the content is copied beside it, once, and the message names
 * the copy. */
enum hd_status store_check_place(struct store_db *db);

/* Binds values by type letter (i int64_t, n int, t const char *, b const void * and size_t) and returns the statement, ready to step. NULL:
 * failed, and hd_err is set. Texts and blobs are not copied: they must live until the reset. */
sqlite3_stmt *store_db_bind(struct store_db *db, enum store_statement statement, const char *types,
                            ...);
/* Binds values as store_db_bind does and runs a statement without result rows. */
enum hd_status store_db_run(struct store_db *db, enum store_statement statement, const char *types,
                            ...);
/* Steps to the next row; sets *ret_row to whether there is one. After the last row, and after an
 * error, the statement is reset; a caller that stops earlier must reset it. */
enum hd_status store_db_step(struct store_db *db, sqlite3_stmt *statement, bool *ret_row);
/* Steps to the next row while *st is HD_OK; returns whether there is one. Afterwards the statement is
 * reset. A NULL statement, whose binding failed, sets *st to HD_INTERNAL. */
bool store_db_next(struct store_db *db, sqlite3_stmt *statement, enum hd_status *st);

/* Runs a statement whose first parameters are the fields of a record in the order of its table, and
 * whose last one is `owner`; NULL: it has no other parameters. */
enum hd_status store_put(struct store_db *db, enum store_statement statement,
                         const struct hd_table *table, const void *record, const char *owner);
/* Appends the SQL of a statement of STORE_STATEMENTS. */
enum hd_status store_fields_sql(const char *text, struct hd_text *ret_sql);

/* Sets ret_text to the first value of a pragma or a query; "": no row. */
enum hd_status store_db_read_text(struct store_db *db, const char *sql, char *ret_text,
                                  size_t size);

/* Sets ret_value to the value of a key in the table meta; "": none. */
enum hd_status store_db_get_meta(struct store_db *db, const char *key, char *ret_value,
                                 size_t size);
enum hd_status store_db_put_meta(struct store_db *db, const char *key, const char *value);

/* ---- epoch.c ---- */

/* Returns HD_CONFLICT if the log beside DIR/state.db belongs to another database, because SQLite
 * would mix the two; HD_INVALID if the log is not a regular file. */
enum hd_status store_check_log(const char *dir);
/* Raises the epoch of an open database in a locked directory. on_disk: files beside it can be read.
 * HD_CONFLICT: it is a copy of another controller's database, or another controller has taken over;
 * take_over: use it all the same. */
enum hd_status store_begin_epoch(struct store_db *db, const char *dir, bool on_disk, bool take_over,
                                 struct hd_store_epoch *ret_epoch);

/* epoch.c: sets ret_id to the id of the cluster of the newest start in `dir`, from DIR/epoch; "":
 * unknown. */
void store_read_epoch_cluster(const char *dir, char ret_id[HD_JOBS_SHARE_MAX]);
/* epoch.c: returns the epoch of a takeover: higher than `known` (the highest epoch that the
 * database and its directory name), and than each takeover at least a second earlier by the same
 * clock. */
uint64_t store_takeover_epoch(uint64_t known, int64_t wall_ms);
/* backup.c: copies the database `file`, with its log, to the new file `part`, checks the copy and
 * flushes it. made_ms: time stored in the copy as that of its making, unless `file` is a copy
 * already; 0: none is stored. On failure no `part` is left. */
enum hd_status store_copy_file(const char *file, const char *part, int64_t made_ms,
                               struct hd_store_backup *ret_backup);
/* backup.c: flushes a file to disk, and sets *ret_bytes to its size. */
enum hd_status store_flush_file(const char *path, int64_t *ret_bytes);
/* backup.c: sets *ret_backup to a database's highest job number, the time at which it was copied,
 * and the time of its last write. */
enum hd_status store_read_holding(struct store_db *db, struct hd_store_backup *ret_backup);
/* backup.c: opens a database for reading; its log stays unchanged. The caller closes
 * ret_db->sqlite, also after a failure. */
enum hd_status store_open_source(const char *file, struct store_db *ret_db);

/* write.c, read.c, load.c */
enum hd_status store_write_batch(struct store_db *db, const struct hd_batch *batch);
enum hd_status store_read_query(struct store_db *db, struct hd_query *query);
enum hd_status store_read_all(struct store_db *db, const struct hd_store_loader *loader);

/* identity.c */
enum hd_status store_insert_audit(struct store_db *db, const struct hd_audit_record *a);
enum hd_status store_read_audit_head(struct store_db *db);
enum hd_status store_query_audit(struct store_db *db, struct hd_query *query);
enum hd_status store_query_credentials(struct store_db *db, struct hd_query *query);
enum hd_status store_load_credentials(struct store_db *db, const struct hd_store_loader *loader,
                                      struct hd_arena *arena);
/* Checks that the job query->job belongs to query->only_of. HD_NOT_FOUND: it does not exist, or is
 * of another owner while query->hidden; HD_DENIED: it is of another owner, not hidden. */
enum hd_status store_check_owner(struct store_db *db, const struct hd_query *query);

/* retention.c */
enum hd_status store_prune(struct store_db *db, const struct hd_prune_record *p);
enum hd_status store_query_bytes(struct store_db *db, struct hd_query *query);

#endif
