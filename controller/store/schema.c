/* schema: opens, checks and migrates the database.
 *
 * The schema is a list of numbered migrations; PRAGMA user_version is the number of the last one
 * that a database has had. Never change a released migration: append a new one.
 *
 * Foreign keys are checked at COMMIT (DEFERRED), except that of `devices`. Times are wall-clock
 * milliseconds. 0 means "not yet", '' means "none", NULL in a REAL column means NaN (for example a
 * loss that diverged).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/digits.h"
#include "base/file.h"
#include "base/text.h"
#include "controller/store/store_internal.h"
#include "version/version.h"

/* Packs each step's metrics into one column: the part of migration 4 that SQL cannot do. */
static enum hd_status pack_metrics(struct store_db *db);
/* Drops the UNIQUE constraint of request ids, for migration 5. */
static enum hd_status forget_unique_requests(struct store_db *db);

static const struct migration {
    const char *sql;
    enum hd_status (*move)(struct store_db *db); /* the part of the migration that SQL cannot do;
                                                  * runs between `sql` and `after`; NULL: none */
    const char *after;
} migrations[] = {
    /* 1 */
    {.sql =
         "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;"
         "CREATE TABLE nodes ("
         " uuid TEXT PRIMARY KEY, name TEXT NOT NULL, boot_id TEXT NOT NULL, build TEXT NOT NULL,"
         " state TEXT NOT NULL CHECK (state IN "
         "('ready','unreachable','lost','draining','drained')),"
         " drain INTEGER NOT NULL, drain_reason TEXT NOT NULL, retired INTEGER NOT NULL,"
         " seen_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID;"
         "CREATE UNIQUE INDEX nodes_name ON nodes (name) WHERE retired = 0;"
         "CREATE TABLE devices ("
         " node_uuid TEXT NOT NULL REFERENCES nodes (uuid), device INTEGER NOT NULL,"
         " kind TEXT NOT NULL, name TEXT NOT NULL, uuid TEXT NOT NULL, memory_bytes INTEGER NOT "
         "NULL,"
         " threads INTEGER NOT NULL, precisions INTEGER NOT NULL,"
         " PRIMARY KEY (node_uuid, device)) STRICT, WITHOUT ROWID;"
         "CREATE TABLE jobs ("
         " job INTEGER PRIMARY KEY, request_id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,"
         " name TEXT NOT NULL, state TEXT NOT NULL CHECK (state IN"
         " ('queued','running','stopping','succeeded','failed','cancelled')),"
         " reason TEXT NOT NULL, cancel INTEGER NOT NULL, cancel_now INTEGER NOT NULL,"
         " attempt_count INTEGER NOT NULL, steps INTEGER NOT NULL, devices INTEGER NOT NULL,"
         " submitted_ms INTEGER NOT NULL, started_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL,"
         " spec BLOB NOT NULL) STRICT;"
         "CREATE INDEX jobs_state ON jobs (state, job);"
         "CREATE TABLE checkpoints ("
         " job INTEGER NOT NULL REFERENCES jobs (job) DEFERRABLE INITIALLY DEFERRED,"
         " attempt INTEGER NOT NULL, step INTEGER NOT NULL, path TEXT NOT NULL, hash TEXT NOT NULL,"
         " node_uuid TEXT NOT NULL REFERENCES nodes (uuid) DEFERRABLE INITIALLY DEFERRED,"
         " shared INTEGER NOT NULL, time_ms INTEGER NOT NULL, size_bytes INTEGER NOT NULL,"
         " state TEXT NOT NULL CHECK (state IN ('present','deleting','deleted')),"
         " seq INTEGER NOT NULL, PRIMARY KEY (job, attempt, step)) STRICT, WITHOUT ROWID;"
         "CREATE UNIQUE INDEX checkpoints_seq ON checkpoints (job, seq);"
         "CREATE INDEX checkpoints_deleting ON checkpoints (job) WHERE state = 'deleting';"
         "CREATE TABLE attempts ("
         " job INTEGER NOT NULL REFERENCES jobs (job) DEFERRABLE INITIALLY DEFERRED,"
         " attempt INTEGER NOT NULL, state TEXT NOT NULL CHECK (state IN"
         " ('starting','running','stopping','ended')),"
         " pp INTEGER NOT NULL, dp INTEGER NOT NULL, cp INTEGER NOT NULL, tp INTEGER NOT NULL,"
         " ep INTEGER NOT NULL, zero INTEGER NOT NULL, micro_batch INTEGER NOT NULL,"
         " micro_batches INTEGER NOT NULL, schedule TEXT NOT NULL, recompute TEXT NOT NULL,"
         " precision INTEGER NOT NULL, device TEXT NOT NULL, threads INTEGER NOT NULL,"
         " base_attempt INTEGER, base_step INTEGER, base_path TEXT NOT NULL, base_hash TEXT NOT "
         "NULL,"
         " created_ms INTEGER NOT NULL, running_ms INTEGER NOT NULL DEFAULT 0,"
         " ended_ms INTEGER NOT NULL DEFAULT 0, end_cause TEXT NOT NULL DEFAULT 'none',"
         " end_rank INTEGER NOT NULL DEFAULT -1, end_node TEXT NOT NULL DEFAULT '',"
         " end_message TEXT NOT NULL DEFAULT '', end_exit_code INTEGER NOT NULL DEFAULT 0,"
         " end_signal INTEGER NOT NULL DEFAULT 0, end_bad_input INTEGER NOT NULL DEFAULT 0,"
         " PRIMARY KEY (job, attempt),"
         " FOREIGN KEY (job, base_attempt, base_step) REFERENCES checkpoints (job, attempt, step)"
         " DEFERRABLE INITIALLY DEFERRED) STRICT, WITHOUT ROWID;"
         "CREATE TABLE allocations ("
         " job INTEGER NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,"
         " node_uuid TEXT NOT NULL REFERENCES nodes (uuid) DEFERRABLE INITIALLY DEFERRED,"
         " node_name TEXT NOT NULL, device INTEGER NOT NULL, PRIMARY KEY (job, attempt, rank),"
         " FOREIGN KEY (job, attempt) REFERENCES attempts (job, attempt)"
         " DEFERRABLE INITIALLY DEFERRED) STRICT, WITHOUT ROWID;"
         "CREATE TABLE events (" /* job 0: the cluster's own history */
         " job INTEGER NOT NULL, seq INTEGER NOT NULL, time_ms INTEGER NOT NULL,"
         " attempt INTEGER NOT NULL, rank INTEGER NOT NULL, kind TEXT NOT NULL, node TEXT NOT NULL,"
         " message TEXT NOT NULL, PRIMARY KEY (job, seq)) STRICT, WITHOUT ROWID;"
         "CREATE TABLE step_metrics ("
         " job INTEGER NOT NULL REFERENCES jobs (job) DEFERRABLE INITIALLY DEFERRED,"
         " seq INTEGER NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL,"
         " time_ms INTEGER NOT NULL, tokens INTEGER NOT NULL, loss REAL, grad_norm REAL, lr REAL,"
         " tokens_per_s REAL, step_ms REAL, mfu REAL, PRIMARY KEY (job, seq)) STRICT, WITHOUT "
         "ROWID;"
         "CREATE TABLE validations ("
         " job INTEGER NOT NULL REFERENCES jobs (job) DEFERRABLE INITIALLY DEFERRED,"
         " seq INTEGER NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL,"
         " time_ms INTEGER NOT NULL, tokens INTEGER NOT NULL, loss REAL,"
         " PRIMARY KEY (job, seq)) STRICT, WITHOUT ROWID;"
         "CREATE TABLE report_positions ("
         " job INTEGER NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,"
         " seq INTEGER NOT NULL, PRIMARY KEY (job, attempt, rank),"
         " FOREIGN KEY (job, attempt) REFERENCES attempts (job, attempt)"
         " DEFERRABLE INITIALLY DEFERRED) STRICT, WITHOUT ROWID;"},
    /* 2: tensor and context parallelism; older attempts had neither */
    {.sql = "ALTER TABLE attempts ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0;"
            "ALTER TABLE attempts ADD COLUMN cp_exchange INTEGER NOT NULL DEFAULT 0;"},
    /* 3: experts; expert_load holds int64 values in this machine's byte order */
    {.sql = "ALTER TABLE step_metrics ADD COLUMN router_balance REAL;"
            "ALTER TABLE step_metrics ADD COLUMN router_z REAL;"
            "ALTER TABLE step_metrics ADD COLUMN router_dropped INTEGER NOT NULL DEFAULT 0;"
            "ALTER TABLE step_metrics ADD COLUMN expert_load BLOB NOT NULL DEFAULT x'';"},
    /* 4: a plan is the text of its layout, a step's metrics are packed (job/metrics.h): a new key
       or metric needs no change of the schema */
    {.sql =
         "ALTER TABLE attempts ADD COLUMN layout TEXT NOT NULL DEFAULT '';"
         "UPDATE attempts SET layout ="
         " 'train.precision ' || CASE precision WHEN 2 THEN 'bf16' ELSE 'fp32' END || char(10) ||"
         " 'parallel.tp ' || tp || char(10) || 'parallel.pp ' || pp || char(10) ||"
         " 'parallel.dp ' || dp || char(10) || 'parallel.cp ' || cp || char(10) ||"
         " 'parallel.ep ' || ep || char(10) || 'parallel.zero ' || zero || char(10) ||"
         " 'parallel.schedule ' || schedule || char(10) ||"
         " 'parallel.micro_batch ' || micro_batch || char(10) ||"
         " 'parallel.recompute ' || recompute || char(10) ||"
         " 'parallel.sequence ' || sequence || char(10) ||"
         " 'parallel.cp_exchange ' || CASE cp_exchange WHEN 2 THEN 'all_gather' ELSE 'ring' END ||"
         " char(10) || 'resources.device ' || device || char(10) ||"
         " 'resources.threads ' || max(threads, 1) || char(10);"
         "ALTER TABLE step_metrics ADD COLUMN metrics BLOB NOT NULL DEFAULT x'';",
     .move = pack_metrics,
     /* two new tables: SQLite reads the whole schema several times to drop one column */
     .after =
         "CREATE TABLE attempts_new ("
         " job INTEGER NOT NULL REFERENCES jobs (job) DEFERRABLE INITIALLY DEFERRED,"
         " attempt INTEGER NOT NULL, state TEXT NOT NULL CHECK (state IN"
         " ('starting','running','stopping','ended')),"
         " base_attempt INTEGER, base_step INTEGER, base_path TEXT NOT NULL, base_hash TEXT NOT "
         "NULL,"
         " created_ms INTEGER NOT NULL, running_ms INTEGER NOT NULL DEFAULT 0,"
         " ended_ms INTEGER NOT NULL DEFAULT 0, end_cause TEXT NOT NULL DEFAULT 'none',"
         " end_rank INTEGER NOT NULL DEFAULT -1, end_node TEXT NOT NULL DEFAULT '',"
         " end_message TEXT NOT NULL DEFAULT '', end_exit_code INTEGER NOT NULL DEFAULT 0,"
         " end_signal INTEGER NOT NULL DEFAULT 0, end_bad_input INTEGER NOT NULL DEFAULT 0,"
         " layout TEXT NOT NULL DEFAULT '', PRIMARY KEY (job, attempt),"
         " FOREIGN KEY (job, base_attempt, base_step) REFERENCES checkpoints (job, attempt, step)"
         " DEFERRABLE INITIALLY DEFERRED) STRICT, WITHOUT ROWID;"
         "INSERT INTO attempts_new SELECT job, attempt, state, base_attempt, base_step, base_path,"
         " base_hash, created_ms, running_ms, ended_ms, end_cause, end_rank, end_node, end_message,"
         " end_exit_code, end_signal, end_bad_input, layout FROM attempts;"
         "DROP TABLE attempts;"
         "ALTER TABLE attempts_new RENAME TO attempts;"
         "CREATE TABLE step_metrics_new ("
         " job INTEGER NOT NULL REFERENCES jobs (job) DEFERRABLE INITIALLY DEFERRED,"
         " seq INTEGER NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL,"
         " time_ms INTEGER NOT NULL, expert_load BLOB NOT NULL DEFAULT x'',"
         " metrics BLOB NOT NULL DEFAULT x'', PRIMARY KEY (job, seq)) STRICT, WITHOUT ROWID;"
         "INSERT INTO step_metrics_new SELECT job, seq, attempt, step, time_ms, expert_load,"
         " metrics FROM step_metrics;"
         "DROP TABLE step_metrics;"
         "ALTER TABLE step_metrics_new RENAME TO step_metrics;"},
    /* 5: request ids are random, so the index of their UNIQUE constraint wrote another page for
     * almost every job; the core keeps them unique (I10). Lists by owner get an index */
    {.move = forget_unique_requests,
     .after = "CREATE INDEX jobs_state ON jobs (state, job);"
              "CREATE INDEX jobs_owner ON jobs (owner, state, job);"},
    /* 6: older checkpoints count as proven, because losses after them were not recorded; no job was
     * resumed */
    {.sql = "ALTER TABLE checkpoints ADD COLUMN proven INTEGER NOT NULL DEFAULT 1;"
            "ALTER TABLE jobs ADD COLUMN resumed_attempt INTEGER NOT NULL DEFAULT 0;"},
    /* 7: jobs that a user has removed. 1: nodes still delete the folder; 2: only this row is left,
     * so that its number and request id are not reused */
    {.sql = "ALTER TABLE jobs ADD COLUMN removal INTEGER NOT NULL DEFAULT 0;"
            "CREATE INDEX jobs_removal ON jobs (job) WHERE removal = 1;"},
    /* 8: checkpoint.best; NULL: the checkpoint was not validated */
    {.sql = "ALTER TABLE checkpoints ADD COLUMN val_loss REAL;"},
    /* 9: 0: unknown, for older jobs; a repeated request of such a job is not compared */
    {.sql = "ALTER TABLE jobs ADD COLUMN request_hash INTEGER NOT NULL DEFAULT 0;"},
    /* 10: queues, priorities, held jobs, expected starts; the cause of a stop (before, only a user
     * could request one); deadlines of drains */
    {.sql = "CREATE TABLE queues (name TEXT PRIMARY KEY, devices_max INTEGER NOT NULL,"
            " user_devices_max INTEGER NOT NULL, weight INTEGER NOT NULL) STRICT, WITHOUT ROWID;"
            "ALTER TABLE jobs ADD COLUMN queue TEXT NOT NULL DEFAULT 'default';"
            "ALTER TABLE jobs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;"
            "ALTER TABLE jobs ADD COLUMN held INTEGER NOT NULL DEFAULT 0;"
            "ALTER TABLE jobs ADD COLUMN promised_ms INTEGER NOT NULL DEFAULT 0;"
            "ALTER TABLE attempts ADD COLUMN stop_cause TEXT NOT NULL DEFAULT 'none';"
            "ALTER TABLE attempts ADD COLUMN stop_job INTEGER NOT NULL DEFAULT 0;"
            "UPDATE attempts SET stop_cause = 'user' WHERE state = 'stopping' AND"
            " end_cause = 'none' AND job IN (SELECT job FROM jobs WHERE cancel = 0);"
            "ALTER TABLE nodes ADD COLUMN drain_deadline_ms INTEGER NOT NULL DEFAULT 0;"},
    /* 11: predicted step time and memory of an attempt's plan; 0: unknown */
    {.sql = "ALTER TABLE attempts ADD COLUMN step_s REAL NOT NULL DEFAULT 0;"
            "ALTER TABLE attempts ADD COLUMN memory_bytes INTEGER NOT NULL DEFAULT 0;"},
    /* 12: results of probes */
    {.sql = "CREATE TABLE probes (node_uuid TEXT PRIMARY KEY REFERENCES nodes (uuid) DEFERRABLE"
            " INITIALLY DEFERRED, ended_ms INTEGER NOT NULL, problem TEXT NOT NULL,"
            " measured_on TEXT NOT NULL, measured_ms INTEGER NOT NULL, calibration BLOB NOT NULL)"
            " STRICT, WITHOUT ROWID;"},
    /* 13: attempts that borrow devices; older ones did not */
    {.sql = "ALTER TABLE attempts ADD COLUMN borrows INTEGER NOT NULL DEFAULT 0;"},
    /* 14: credentials and the audit log. Rows of the audit log are never changed or deleted; a
     * credential ends once */
    {.sql = "ALTER TABLE jobs ADD COLUMN pruned INTEGER NOT NULL DEFAULT 0;" /* retention.c */
            "CREATE INDEX jobs_ended ON jobs (ended_ms) WHERE pruned<2 AND removal=0 AND"
            " state IN ('succeeded','failed','cancelled');"
            "CREATE TABLE credentials (id INTEGER PRIMARY KEY, kind TEXT NOT NULL,"
            " name TEXT NOT NULL, role TEXT NOT NULL, hash BLOB NOT NULL UNIQUE,"
            " made_by TEXT NOT NULL, ended_by TEXT NOT NULL, made_ms INTEGER NOT NULL,"
            " expires_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL) STRICT;"
            "CREATE TABLE audit (seq INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL,"
            " who TEXT NOT NULL, role TEXT NOT NULL, method TEXT NOT NULL, object TEXT NOT NULL,"
            " source TEXT NOT NULL, result TEXT NOT NULL, hash BLOB NOT NULL) STRICT;"
            "CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit"
            " BEGIN SELECT raise(ABORT, 'the audit log is only added to'); END;"
            "CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit"
            " BEGIN SELECT raise(ABORT, 'the audit log is only added to'); END;"},
    /* 15: system user of an attempt's ranks; '' for older attempts: the daemons' user */
    {.sql = "ALTER TABLE attempts ADD COLUMN run_as TEXT NOT NULL DEFAULT '';"},
    /* 16: closed queues; older ones are open */
    {.sql = "ALTER TABLE queues ADD COLUMN closed INTEGER NOT NULL DEFAULT 0;"},
    /* 17: nodes that have seen the jobs directory; of older ones, those whose checkpoints were
     * shared. (The directory's id is a row of meta, services/jobs_dir.c.) */
    {.sql = "ALTER TABLE nodes ADD COLUMN saw_jobs_dir INTEGER NOT NULL DEFAULT 0;"
            "UPDATE nodes SET saw_jobs_dir = 1 WHERE uuid IN"
            " (SELECT node_uuid FROM checkpoints WHERE shared = 1);"},
    /* 18: checkpoints that a search did not find on the disk */
    {.sql = "ALTER TABLE checkpoints ADD COLUMN missing INTEGER NOT NULL DEFAULT 0;"},
    /* 19: names of validation sets; '': data.val is one list, as all older ones are */
    {.sql = "ALTER TABLE validations ADD COLUMN name TEXT NOT NULL DEFAULT '';"},
    /* 20: factor in an attempt's predicted step time; 0: none, as in older ones */
    {.sql = "ALTER TABLE attempts ADD COLUMN step_factor REAL NOT NULL DEFAULT 0;"},
    /* 21: for a list of more than two values SQLite makes a table in memory whenever it checks a row.
     * The lists of states are split by another text of the schema, which SQLite allows where stored rows
     * stay as they are (https://www.sqlite.org/lang_altertable.html, section 7) */
    {.sql = "DROP INDEX jobs_ended;"
            "CREATE INDEX jobs_ended ON jobs (ended_ms) WHERE pruned<2 AND removal=0 AND"
            " (state='succeeded' OR state='failed' OR state='cancelled');"
            "PRAGMA writable_schema = ON;"
            "UPDATE sqlite_schema SET sql = replace(replace(replace(replace(replace(sql,"
            " '''running'',''stopping'',', '''running'') OR state IN (''stopping'','),"
            " '''succeeded'',''failed'',', '''succeeded'') OR state IN (''failed'','),"
            " '''deleting'',''deleted'')', '''deleting'') OR state IN (''deleted'')'),"
            " '''unreachable'',''lost'',', '''unreachable'') OR state IN (''lost'','),"
            " '''draining'',''drained'')', '''draining'') OR state IN (''drained'')')"
            " WHERE type = 'table' AND name IN ('nodes','jobs','checkpoints','attempts');"
            "PRAGMA writable_schema = RESET;"},
};
enum { MIGRATION_COUNT = sizeof migrations / sizeof migrations[0] };

static const char schema_now[] =
#include "controller/store/schema_now.inc"
    ;

/* Milliseconds to wait for a lock, because a backup in another process locks the file for moments,
 * at its start and end; and bytes of a database page. */
enum { LOCKED_TIMEOUT_MS = 5000, PAGE_BYTES = 4096 };

/* ---- opening ----------------------------------------------------------------------------------*/

static enum hd_status execute(struct store_db *db, const char *sql, const char *what)
{
    if (sqlite3_exec(db->sqlite, sql, NULL, NULL, NULL) != SQLITE_OK)
        return store_db_error(db, what);
    return HD_OK;
}

/* Sets the modes of the database connection. The directory is locked, so no other controller has
 * the file open, but `heddle-controller backup` may read it; for that SQLite needs a file that both
 * processes map (state.db-shm). exclusive: works without that file, and without backups while the
 * controller runs. */
static enum hd_status configure(struct store_db *db, bool exclusive)
{
    char mode[16];
    enum hd_status st;

    (void)sqlite3_busy_timeout(db->sqlite, LOCKED_TIMEOUT_MS);
    st =
        execute(db, "PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF;", "cannot set pragmas");
    if (!st && exclusive)
        st = execute(db, "PRAGMA locking_mode = EXCLUSIVE", "cannot set pragmas");
    if (!st)
        st = store_db_read_text(db, "PRAGMA journal_mode = WAL", mode, sizeof mode);
    if (!st && strcmp(mode, "wal") != 0)
        st = hd_err(HD_UNSUPPORTED,
                    "%s: SQLite cannot use a write-ahead log on this file system (journal mode %s)",
                    db->path, mode);
    if (!st)
        st = execute(db, "PRAGMA synchronous = FULL", "cannot set pragmas");
    return st;
}

enum hd_status store_db_bound_log(struct store_db *db, int64_t pages)
{
    char sql[128];

    (void)snprintf(sql, sizeof sql,
                   "PRAGMA wal_autocheckpoint = %lld; PRAGMA journal_size_limit = %lld",
                   (long long)pages, (long long)pages * PAGE_BYTES);
    return execute(db, sql, "cannot set pragmas");
}

static enum hd_status check(struct store_db *db)
{
    char verdict[256];
    enum hd_status st = store_db_read_text(db, "PRAGMA quick_check(1)", verdict, sizeof verdict);

    if (!st && strcmp(verdict, "ok") != 0)
        st = hd_err(HD_CORRUPT,
                    "%s is damaged: %s; " STORE_RESTORE ", or start with an empty --state-dir",
                    db->path, verdict);
    return st;
}

static enum hd_status pack_metrics(struct store_db *db)
{
    static const char rows[] =
        "SELECT job, seq, loss, grad_norm, lr, tokens, tokens_per_s, step_ms, mfu, router_balance,"
        " router_z, router_dropped FROM step_metrics";
    sqlite3_stmt *from = NULL, *to = NULL;
    enum hd_status st = HD_OK;
    int code = SQLITE_ERROR;

    if (sqlite3_prepare_v2(db->sqlite, rows, -1, &from, NULL) != SQLITE_OK ||
        sqlite3_prepare_v2(db->sqlite, "UPDATE step_metrics SET metrics=? WHERE job=? AND seq=?",
                           -1, &to, NULL) != SQLITE_OK)
        st = store_db_error(db, "cannot migrate");
    while (!st && (code = sqlite3_step(from)) == SQLITE_ROW) {
        uint8_t bytes[HD_METRICS_BYTES_MAX];
        struct hd_step_metrics metrics = {0};

        for (int i = 0; i < 10; i++) /* metrics 1 to 10, in the order of `rows` */
            (void)hd_metric_set(&metrics, hd_metric_find(i + 1),
                                sqlite3_column_type(from, i + 2) == SQLITE_NULL
                                    ? NAN
                                    : sqlite3_column_double(from, i + 2));
        (void)sqlite3_reset(to);
        if (sqlite3_bind_blob64(to, 1, bytes, hd_metrics_pack(&metrics, bytes), SQLITE_STATIC) ||
            sqlite3_bind_int64(to, 2, sqlite3_column_int64(from, 0)) ||
            sqlite3_bind_int64(to, 3, sqlite3_column_int64(from, 1)) ||
            sqlite3_step(to) != SQLITE_DONE)
            st = store_db_error(db, "cannot migrate");
    }
    if (!st && code != SQLITE_DONE)
        st = store_db_error(db, "cannot migrate");
    (void)sqlite3_finalize(from);
    (void)sqlite3_finalize(to);
    return st;
}

/* Copies the table jobs into one without the UNIQUE constraint of request ids, because SQLite
 * cannot drop it. */
static enum hd_status forget_unique_requests(struct store_db *db)
{
    char sql[4096];
    enum hd_status st = store_db_read_text(
        db,
        "SELECT 'CREATE TABLE jobs_new ' || replace(substr(sql, instr(sql, '(')),"
        " 'request_id TEXT NOT NULL UNIQUE', 'request_id TEXT NOT NULL')"
        " FROM sqlite_schema WHERE type = 'table' AND name = 'jobs'",
        sql, sizeof sql);

    if (!st)
        st = execute(db, sql, "cannot migrate");
    if (!st)
        st = execute(db,
                     "INSERT INTO jobs_new SELECT * FROM jobs; DROP TABLE jobs;"
                     "ALTER TABLE jobs_new RENAME TO jobs;",
                     "cannot migrate");
    return st;
}

static enum hd_status migrate_one(struct store_db *db, const struct migration *m)
{
    enum hd_status st = m->sql ? execute(db, m->sql, "cannot migrate") : HD_OK;

    if (!st && m->move)
        st = m->move(db);
    if (!st && m->after)
        st = execute(db, m->after, "cannot migrate");
    return st;
}

static enum hd_status check_references(struct store_db *db)
{
    char table[32];
    enum hd_status st = store_db_read_text(db, "PRAGMA foreign_key_check", table, sizeof table);

    return st || !*table
               ? st
               : hd_err(HD_CORRUPT, "%s: rows of %s refer to what is not there; " STORE_RESTORE,
                        db->path, table);
}

/* Does the migrations behind `version` in one transaction: a database whose migration fails, or is
 * interrupted, stays as it was, for the build that wrote it. A database without tables gets the tables
 * that all migrations would leave. */
static enum hd_status migrate_all(struct store_db *db, int64_t version)
{
    char text[64];
    enum hd_status st = execute(db, "BEGIN IMMEDIATE", "cannot begin the migrations");

    if (st)
        return st;
    st = store_db_read_text(db, "SELECT count(*) FROM sqlite_schema", text, sizeof text);
    if (!st && strcmp(text, "0") == 0) {
        st = execute(db, schema_now, "cannot create tables");
        version = MIGRATION_COUNT;
    }
    while (!st && version < MIGRATION_COUNT)
        st = migrate_one(db, &migrations[version++]);
    if (!st)
        st = check_references(db);
    (void)snprintf(text, sizeof text, "PRAGMA user_version = %d; COMMIT", MIGRATION_COUNT);
    if (!st)
        st = execute(db, text, "cannot migrate");
    if (st)
        (void)sqlite3_exec(db->sqlite, "ROLLBACK", NULL, NULL, NULL);
    return st;
}

static const char get_build[] = "SELECT value FROM meta WHERE key = 'build'";

static enum hd_status read_schema(struct store_db *db, int64_t *ret_version)
{
    char text[32];
    enum hd_status st = store_db_read_text(db, "PRAGMA user_version", text, sizeof text);

    return st ? st : hd_text_to_int64(text, 0, INT32_MAX, ret_version);
}

enum hd_status store_check_schema(struct store_db *db, const char *name)
{
    char build[64];
    int64_t version = 0;
    enum hd_status st = read_schema(db, &version);

    if (st || version <= MIGRATION_COUNT)
        return st;
    if (store_db_read_text(db, get_build, build, sizeof build) || !*build)
        (void)snprintf(build, sizeof build, "a newer version");
    return hd_err(HD_UNSUPPORTED,
                  "%s was written by Heddle %.60s (its schema is %lld; this build, %s, knows %d): "
                  "install that version again, or restore the backup made before the upgrade "
                  "(docs/operations.md, \"Go back\")",
                  name, build, (long long)version, hd_version_text, MIGRATION_COUNT);
}

/* Stores the name of this build as the one that wrote the database last; an older build that cannot
 * read the database names it. */
static enum hd_status write_build(struct store_db *db)
{
    char build[64], sql[192];
    enum hd_status st = store_db_read_text(db, get_build, build, sizeof build);

    if (st || strcmp(build, hd_version_text) == 0)
        return st;
    (void)snprintf(sql, sizeof sql, "INSERT OR REPLACE INTO meta VALUES ('build', '%.63s')",
                   hd_version_text);
    return execute(db, sql, "cannot store the build");
}

static enum hd_status migrate(struct store_db *db)
{
    int64_t version = 0;
    enum hd_status st = store_check_schema(db, db->path);

    if (!st)
        st = read_schema(db, &version);
    if (st || version == MIGRATION_COUNT)
        return st;
    /* some builds of SQLite refuse to change the text of a schema, unless this is switched off */
    (void)sqlite3_db_config(db->sqlite, SQLITE_DBCONFIG_DEFENSIVE, 0, NULL);
    /* Foreign keys are off, because those to a table dangle while it is replaced. */
    st = execute(db, "PRAGMA foreign_keys = OFF", "cannot migrate");
    if (!st)
        st = migrate_all(db, version);
    if (!st)
        st = execute(db, "PRAGMA foreign_keys = ON", "cannot migrate");
    return st;
}

/* Sets db->cluster_id to the stored id of the cluster, or creates one for a new database. */
static enum hd_status read_cluster_id(struct store_db *db)
{
    static const char get[] = "SELECT value FROM meta WHERE key = 'cluster_id'";
    char sql[128], hex[HD_HEX_ID_MAX];
    enum hd_status st = store_db_read_text(db, get, db->cluster_id, sizeof db->cluster_id);

    if (st || *db->cluster_id)
        return st;
    st = hd_hex_make_id(hex);
    if (st)
        return st;
    (void)snprintf(sql, sizeof sql, "INSERT INTO meta VALUES ('cluster_id', '%s')", hex);
    st = execute(db, sql, "cannot store the cluster id");
    if (!st)
        st = store_db_read_text(db, get, db->cluster_id, sizeof db->cluster_id);
    return st;
}

static enum hd_status read_jobs_share(struct store_db *db)
{
    return store_db_read_text(db, "SELECT value FROM meta WHERE key = 'jobs_share'", db->jobs_share,
                              sizeof db->jobs_share);
}

static enum hd_status prepare(struct store_db *db)
{
#define X(name, text) text,
    static const char *const texts[] = {STORE_STATEMENTS(X)};
#undef X

    struct hd_text sql = {0};
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < STORE_STATEMENT_COUNT; i++) {
        hd_text_clear(&sql);
        st = store_fields_sql(texts[i], &sql);
        if (!st && sqlite3_prepare_v3(db->sqlite, sql.data, -1, SQLITE_PREPARE_PERSISTENT,
                                      &db->statements[i], NULL) != SQLITE_OK)
            st = store_db_error(db, sql.data);
    }
    hd_text_free(&sql);
    return st;
}

static enum hd_status open_as(struct store_db *db, const char *path, const char *vfs,
                              bool exclusive)
{
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    enum hd_status st = HD_OK;

    *db = (struct store_db){0};
    (void)snprintf(db->path, sizeof db->path, "%s", path);
    if (sqlite3_open_v2(db->path, &db->sqlite, flags, vfs) != SQLITE_OK)
        st = db->sqlite ? store_db_error(db, "cannot open")
                        : hd_err(HD_NO_MEMORY, "no memory to open %s", db->path);
    if (!st)
        st = configure(db, exclusive);
    return st;
}

enum hd_status store_db_open_file(struct store_db *db, const char *path, const char *vfs)
{
    enum hd_status st = open_as(db, path, vfs, false);

    if (st == HD_IO || st == HD_UNSUPPORTED) { /* the file PATH-shm cannot be mapped in this file
                                                * system, or there is no disk space for it */
        store_db_close(db);
        st = open_as(db, path, vfs, true);
    }
    if (!st)
        st = check(db);
    if (!st)
        st = migrate(db);
    if (!st)
        st = read_cluster_id(db);
    if (!st)
        st = read_jobs_share(db);
    if (!st)
        st = write_build(db);
    if (!st)
        st = prepare(db);
    if (!st)
        st = store_read_audit_head(db);
    if (st)
        store_db_close(db);
    return st;
}

enum hd_status store_db_open(struct store_db *db, const char *dir, const char *vfs)
{
    char path[sizeof db->path];
    enum hd_status st;

    (void)snprintf(path, sizeof path, "%s/state.db", dir);
    st = hd_file_check_regular(path); /* SQLite would block on a database path that is a pipe */
    if (!st && !vfs)
        st = store_check_life(dir);
    if (!st && !vfs)
        st = store_check_log(dir);
    if (!st)
        return store_db_open_file(db, path, vfs);
    *db = (struct store_db){0};
    return st;
}

void store_db_close(struct store_db *db)
{
    for (int i = 0; i < STORE_STATEMENT_COUNT; i++)
        (void)sqlite3_finalize(db->statements[i]);
    (void)sqlite3_close(db->sqlite);
    *db = (struct store_db){0};
}
