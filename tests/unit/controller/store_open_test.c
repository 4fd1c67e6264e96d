/* store: opening, schemas of other versions, damaged databases, and backups. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sqlite3.h>

#include "store_bench.h"
#include "version/version.h"

/* ---- opening ----------------------------------------------------------------------------------*/

static void a_directory_has_one_controller(void **state)
{
    struct bench bench;
    struct hd_job_store *second;
    const struct hd_store_options options = {.dir = bench.dir};

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    assert_int_equal(hd_store_open(&bench.loop, &options, &second), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), bench.dir));
    finish(&bench);
}

static void a_damaged_database_is_refused(void **state)
{
    struct bench bench;

    start(&bench);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    for (uint64_t job = 1; job <= 50; job++)
        commit_job(&bench, job);
    run_until_reported(&bench, 50);
    close_store(&bench, 1000);
    for (int64_t offset = 4096; offset < 12 * 4096; offset += 4096)
        disk_damage("state.db", offset); /* the first byte of a page says what kind it is */
    assert_int_equal(open_store(&bench, DISK_VFS), HD_CORRUPT);
    assert_non_null(strstr(hd_err_message(), "state.db"));
    finish(&bench);
}

static void a_newer_schema_is_refused(void **state)
{
    struct bench bench;
    char path[128];
    sqlite3 *db;

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    close_store(&bench, 1000);
    (void)snprintf(path, sizeof path, "%s/state.db", bench.dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version = 999", NULL, NULL, NULL), SQLITE_OK);
    (void)sqlite3_close(db);
    assert_int_equal(open_store(&bench, NULL), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "999"));
    assert_non_null(strstr(hd_err_message(), hd_version_text)); /* which build wrote it */
    assert_non_null(strstr(hd_err_message(), "\"Go back\""));
    finish(&bench);
}

/* A database as an older build left it: without what the last migration added. */
static void an_older_schema_is_brought_up_to_date(void **state)
{
    static const char back[] =
        "DROP INDEX jobs_ended;"
        "ALTER TABLE jobs DROP COLUMN pruned;"
        "DROP TABLE credentials;"
        "DROP TABLE audit;"
        "ALTER TABLE validations DROP COLUMN name;"
        "ALTER TABLE checkpoints DROP COLUMN missing;"
        "ALTER TABLE checkpoints DROP COLUMN val_loss;"
        "ALTER TABLE checkpoints DROP COLUMN proven;"
        "ALTER TABLE jobs DROP COLUMN resumed_attempt;"
        "DROP INDEX jobs_removal;"
        "ALTER TABLE jobs DROP COLUMN removal;"
        "ALTER TABLE jobs DROP COLUMN request_hash;"
        "DROP TABLE probes;"
        "DROP TABLE queues;"
        "ALTER TABLE jobs DROP COLUMN queue;"
        "ALTER TABLE jobs DROP COLUMN priority;"
        "ALTER TABLE jobs DROP COLUMN held;"
        "ALTER TABLE jobs DROP COLUMN promised_ms;"
        "ALTER TABLE attempts DROP COLUMN stop_cause;"
        "ALTER TABLE attempts DROP COLUMN stop_job;"
        "ALTER TABLE attempts DROP COLUMN borrows;"
        "ALTER TABLE attempts DROP COLUMN run_as;"
        "ALTER TABLE attempts DROP COLUMN step_s;"
        "ALTER TABLE attempts DROP COLUMN step_factor;"
        "ALTER TABLE attempts DROP COLUMN memory_bytes;"
        "ALTER TABLE nodes DROP COLUMN drain_deadline_ms;"
        "ALTER TABLE nodes DROP COLUMN saw_jobs_dir;"
        "DROP INDEX jobs_owner;"
        "ALTER TABLE step_metrics DROP COLUMN metrics;"
        "ALTER TABLE step_metrics DROP COLUMN expert_load;"
        "ALTER TABLE step_metrics ADD COLUMN tokens INTEGER NOT NULL DEFAULT 96;"
        "ALTER TABLE step_metrics ADD COLUMN loss REAL;"
        "ALTER TABLE step_metrics ADD COLUMN grad_norm REAL DEFAULT 0.5;"
        "ALTER TABLE step_metrics ADD COLUMN lr REAL DEFAULT 0.25;"
        "ALTER TABLE step_metrics ADD COLUMN tokens_per_s REAL DEFAULT 1e5;"
        "ALTER TABLE step_metrics ADD COLUMN step_ms REAL DEFAULT 3;"
        "ALTER TABLE step_metrics ADD COLUMN mfu REAL DEFAULT 0.125;"
        "ALTER TABLE attempts DROP COLUMN layout;"
        "ALTER TABLE attempts ADD COLUMN pp INTEGER NOT NULL DEFAULT 1;"
        "ALTER TABLE attempts ADD COLUMN dp INTEGER NOT NULL DEFAULT 3;"
        "ALTER TABLE attempts ADD COLUMN cp INTEGER NOT NULL DEFAULT 1;"
        "ALTER TABLE attempts ADD COLUMN tp INTEGER NOT NULL DEFAULT 2;"
        "ALTER TABLE attempts ADD COLUMN ep INTEGER NOT NULL DEFAULT 1;"
        "ALTER TABLE attempts ADD COLUMN zero INTEGER NOT NULL DEFAULT 0;"
        "ALTER TABLE attempts ADD COLUMN micro_batch INTEGER NOT NULL DEFAULT 4;"
        "ALTER TABLE attempts ADD COLUMN micro_batches INTEGER NOT NULL DEFAULT 2;"
        "ALTER TABLE attempts ADD COLUMN schedule TEXT NOT NULL DEFAULT 'none';"
        "ALTER TABLE attempts ADD COLUMN recompute TEXT NOT NULL DEFAULT 'none';"
        "ALTER TABLE attempts ADD COLUMN precision INTEGER NOT NULL DEFAULT 2;"
        "ALTER TABLE attempts ADD COLUMN device TEXT NOT NULL DEFAULT 'cpu';"
        "ALTER TABLE attempts ADD COLUMN threads INTEGER NOT NULL DEFAULT 0;"
        "PRAGMA user_version = 1";
    const struct hd_step_record step = {.job = 1, .sequence = 2, .attempt = 1, .step = 7};
    const struct hd_attempt_record attempt = {
        .job = 1,
        .attempt = 1,
        .state = HD_ATTEMPT_STATE_RUNNING,
        .plan = {.layout = {.precision = HD_JOB_PRECISION_FP32,
                            .schedule = "none",
                            .recompute = "none",
                            .offload = HD_JOB_OFFLOAD_NONE,
                            .cp_exchange = HD_JOB_CP_EXCHANGE_RING,
                            .stages = "auto",
                            .device = HD_JOB_DEVICE_CPU,
                            .threads = 1}}};
    struct bench bench;
    const struct hd_layout_sizes *layout;
    struct hd_query *query;
    struct hd_batch *batch = hd_batch_new();
    char path[128];
    sqlite3 *db;

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    add_job(batch, 1);
    hd_batch_add_attempt(batch, &attempt);
    hd_batch_add_step(batch, &step);
    hd_store_commit(bench.store, batch, on_done, &bench);
    close_store(&bench, 1000);
    (void)snprintf(path, sizeof path, "%s/state.db", bench.dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, back, NULL, NULL, NULL))
        fail_msg("%s", sqlite3_errmsg(db));
    /* migration 12 fails: those before it are taken back */
    assert_int_equal(sqlite3_exec(db, "CREATE TABLE probes (a)", NULL, NULL, NULL), SQLITE_OK);
    assert_int_not_equal(open_store(&bench, NULL), HD_OK);
    if (sqlite3_exec(db, "SELECT pp FROM attempts; DROP TABLE probes", NULL, NULL, NULL))
        fail_msg("%s", sqlite3_errmsg(db));
    /* and all of them are, whenever a row refers to nothing */
    assert_int_equal(
        sqlite3_exec(db, "INSERT INTO report_positions VALUES (9, 9, 0, 0)", NULL, NULL, NULL),
        SQLITE_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(open_store(&bench, NULL), HD_CORRUPT);
    if (sqlite3_exec(db, "SELECT pp FROM attempts; DELETE FROM report_positions WHERE job = 9",
                     NULL, NULL, NULL))
        fail_msg("%s", sqlite3_errmsg(db));
    (void)sqlite3_close(db);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    query = hd_query_new(HD_QUERY_HISTORY);
    query->job = 1;
    assert_int_equal(needs(&bench, query).st, HD_OK);
    assert_int_equal(query->entry_count, 2);
    assert_int_equal(query->entries[1].step.step, 7);
    assert_int_equal(query->entries[1].step.expert_count, 0);
    assert_int_equal(query->entries[1].step.metrics.tokens, 96);
    assert_true(isnan(query->entries[1].step.metrics.loss)); /* NULL in the old column */
    assert_true(query->entries[1].step.metrics.mfu == 0.125);
    hd_query_free(query);
    query = hd_query_new(HD_QUERY_JOB);
    query->job = 1;
    assert_int_equal(needs(&bench, query).st, HD_OK);
    assert_int_equal(query->attempt_count, 1);
    layout = &query->attempts[0].plan.layout;
    assert_true(layout->tp == 2 && layout->dp == 3 && layout->micro_batch == 4);
    assert_true(layout->sequence == 0 && layout->threads == 1); /* 0 on a GPU in those days */
    assert_int_equal(layout->precision, HD_JOB_PRECISION_BF16);
    assert_int_equal(layout->cp_exchange, HD_JOB_CP_EXCHANGE_RING);
    hd_query_free(query);
    finish(&bench);
}

static int make_defensive(sqlite3 *db, char **message, const struct sqlite3_api_routines *api)
{
    (void)message;
    (void)api;
    return sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
}

/* Evaluates the CHECK of a table's state for one state. */
static bool takes_state(struct store_db *db, const char *table, const char *word)
{
    char sql[96], text[4096], query[512], verdict[8];
    const char *check;
    int depth = 0, len = 0;

    (void)snprintf(sql, sizeof sql, "SELECT sql FROM sqlite_schema WHERE name='%s'", table);
    assert_int_equal(store_db_read_text(db, sql, text, sizeof text), HD_OK);
    check = strstr(text, "CHECK (");
    assert_non_null(check);
    check += strlen("CHECK ");
    do
        depth += (check[len] == '(') - (check[len] == ')');
    while (check[len++] && depth);
    (void)snprintf(query, sizeof query, "SELECT %.*s FROM (SELECT '%s' AS state)", len, check,
                   word);
    assert_int_equal(store_db_read_text(db, query, verdict, sizeof verdict), HD_OK);
    return strcmp(verdict, "1") == 0;
}

/* Makes a database with a table, so that no tables but those of the migrations are created. */
static void add_table(const char *dir)
{
    char path[TEMPORARY_BYTES + 16];
    sqlite3 *db;

    (void)snprintf(path, sizeof path, "%s/state.db", dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "CREATE TABLE other (x)", NULL, NULL, NULL), SQLITE_OK);
    (void)sqlite3_close(db);
}

/* Goal: a new database, which takes no migrations, is what they make, but for the quotes that SQLite puts
 * around the name of a table that was renamed. If this fails, schema_now.inc lacks what a migration
 * does. */
static void a_new_database_is_what_the_migrations_make(void **state)
{
    static const char all[] =
        "SELECT group_concat(text, char(10)) FROM (SELECT type || ' ' ||"
        " tbl_name || ': ' || coalesce(replace(sql, '\"', ''), name) AS text FROM sqlite_schema"
        " WHERE name <> 'other' ORDER BY name)";
    char dir[TEMPORARY_BYTES], text[2][16384];
    struct store_db db;

    (void)state;
    for (int migrated = 0; migrated < 2; migrated++) {
        temporary_dir(dir, "heddle-store");
        if (migrated)
            add_table(dir);
        assert_int_equal(store_db_open(&db, dir, NULL), HD_OK);
        assert_int_equal(store_db_read_text(&db, all, text[migrated], sizeof text[0]), HD_OK);
        store_db_close(&db);
        (void)hd_file_remove_tree(dir);
    }
    assert_string_equal(text[0], text[1]);
    assert_non_null(strstr(text[0], "table jobs: CREATE TABLE"));
}

/* Goal: the schema's edited text takes each right state and no other, also where SQLite was built to
 * protect such texts. Method: new connections are those of such a build. */
static void a_defensive_sqlite_migrates_too(void **state)
{
    static const struct {
        const char *table, *states[7];
    } tables[] = {
        {"nodes", {"ready", "unreachable", "lost", "draining", "drained"}},
        {"jobs", {"queued", "running", "stopping", "succeeded", "failed", "cancelled"}},
        {"checkpoints", {"present", "deleting", "deleted"}},
        {"attempts", {"starting", "running", "stopping", "ended"}},
    };
    char dir[TEMPORARY_BYTES];
    struct store_db db;
    enum hd_status st;

    temporary_dir(dir, "heddle-store");
    add_table(dir);
    assert_int_equal(sqlite3_auto_extension((void (*)(void))make_defensive), SQLITE_OK);
    st = store_db_open(&db, dir, NULL);
    (void)sqlite3_cancel_auto_extension((void (*)(void))make_defensive);
    assert_int_equal(st, HD_OK);
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
        assert_false(takes_state(&db, tables[t].table, "nonsense"));
        for (int i = 0; tables[t].states[i]; i++)
            assert_true(takes_state(&db, tables[t].table, tables[t].states[i]));
    }
    store_db_close(&db);
    (void)hd_file_remove_tree(dir);
}

/* Goal: a wrong state is refused, and the check makes no table in memory for each row, which once took
 * two thirds of a job's insert. Method: SQLite's program of an update that changes the state. */
static void the_check_of_a_state_is_cheap(void **state)
{
    static const char *const tables[] = {"nodes", "jobs", "checkpoints", "attempts"};
    char dir[TEMPORARY_BYTES], sql[96];
    struct store_db db;

    temporary_dir(dir, "heddle-store");
    assert_int_equal(store_db_open(&db, dir, NULL), HD_OK);
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        int checks = 0;
        sqlite3_stmt *s;

        (void)snprintf(sql, sizeof sql, "EXPLAIN UPDATE %s SET state='nonsense'", tables[i]);
        assert_int_equal(sqlite3_prepare_v2(db.sqlite, sql, -1, &s, NULL), SQLITE_OK);
        while (sqlite3_step(s) == SQLITE_ROW) {
            const char *text = (const char *)sqlite3_column_text(s, 5);

            assert_string_not_equal((const char *)sqlite3_column_text(s, 1), "OpenEphemeral");
            checks +=
                text && strstr(text, "state IN") != NULL; /* of the instruction that refuses */
        }
        (void)sqlite3_finalize(s);
        assert_int_equal(checks, 1);
    }
    store_db_close(&db);
    (void)hd_file_remove_tree(dir);
}

static int64_t count_rows(struct store_db *db, const char *table, uint64_t job)
{
    char sql[96];
    sqlite3_stmt *s;
    int64_t count;

    (void)snprintf(sql, sizeof sql, "SELECT count(*) FROM %s WHERE job=%llu", table,
                   (unsigned long long)job);
    assert_int_equal(sqlite3_prepare_v2(db->sqlite, sql, -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    count = sqlite3_column_int64(s, 0);
    (void)sqlite3_finalize(s);
    return count;
}

/* The attempts stay until the folder is deleted: they say on which nodes it is. */
static void a_removed_job_keeps_only_its_number_and_request(void **state)
{
    static const char *const history[] = {"events", "step_metrics", "validations", "checkpoints",
                                          "report_positions"};
    const struct hd_node_record node = {.uuid = "u", .name = "n1", .state = HD_NODE_STATE_READY};
    struct hd_rank_location place = {.node_uuid = "u", .node_name = "n1"};
    struct hd_attempt_record attempt = {.job = 2,
                                        .attempt = 1,
                                        .state = HD_ATTEMPT_STATE_ENDED,
                                        .plan = {.layout = {.precision = HD_JOB_PRECISION_FP32,
                                                            .schedule = "none",
                                                            .recompute = "none",
                                                            .offload = HD_JOB_OFFLOAD_NONE,
                                                            .cp_exchange = HD_JOB_CP_EXCHANGE_RING,
                                                            .stages = "auto",
                                                            .device = HD_JOB_DEVICE_CPU,
                                                            .threads = 1},
                                                 .ranks = &place,
                                                 .rank_count = 1}};
    const struct hd_checkpoint_record checkpoint = {.job = 2,
                                                    .attempt = 1,
                                                    .step = 5,
                                                    .node_uuid = "u",
                                                    .state = HD_CHECKPOINT_STATE_PRESENT,
                                                    .sequence = 2};
    const struct hd_step_record step = {.job = 2, .sequence = 3, .attempt = 1};
    const struct hd_validation_record validation = {.job = 2, .sequence = 4, .attempt = 1};
    const struct hd_position_record position = {.job = 2, .attempt = 1, .seq = 1};
    struct hd_job_record job = {.job = 2, .state = HD_JOB_STATE_SUCCEEDED};
    struct hd_query query = {.kind = HD_QUERY_JOB, .job = 2};
    struct hd_batch *batch = hd_batch_new();
    char dir[TEMPORARY_BYTES];
    struct store_db db;

    temporary_dir(dir, "heddle-store");
    assert_int_equal(store_db_open(&db, dir, NULL), HD_OK);
    add_job(batch, 1);
    add_job(batch, 2);
    hd_batch_add_node(batch, &node);
    hd_batch_add_attempt(batch, &attempt);
    hd_batch_add_checkpoint(batch, &checkpoint);
    attempt.attempt = 2;
    attempt.base_attempt = 1;
    attempt.base_step = 5;
    hd_batch_add_attempt(batch, &attempt);
    hd_batch_add_step(batch, &step);
    hd_batch_add_validation(batch, &validation);
    hd_batch_add_position(batch, &position);
    for (int removal = HD_REMOVAL_NONE; removal <= HD_REMOVAL_DONE; removal++) {
        job.removal = (enum hd_removal)removal;
        hd_batch_add_job(batch, false, &job);
        assert_int_equal(sqlite3_exec(db.sqlite, "BEGIN", NULL, NULL, NULL), SQLITE_OK);
        assert_int_equal(store_write_batch(&db, batch), HD_OK);
        assert_int_equal(sqlite3_exec(db.sqlite, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
        hd_batch_free(batch);
        batch = hd_batch_new();
        for (size_t i = 0; i < sizeof history / sizeof history[0]; i++)
            assert_int_equal(count_rows(&db, history[i], 2) > 0, removal == HD_REMOVAL_NONE);
        assert_int_equal(count_rows(&db, "attempts", 2), removal == HD_REMOVAL_DONE ? 0 : 2);
        assert_int_equal(count_rows(&db, "allocations", 2), removal == HD_REMOVAL_DONE ? 0 : 2);
        assert_int_equal(count_rows(&db, "jobs", 2), 1);
        hd_arena_init(&query.arena, 0);
        query.attempts = NULL;
        assert_int_equal(store_read_query(&db, &query), removal ? HD_NOT_FOUND : HD_OK);
        hd_arena_done(&query.arena);
    }
    assert_int_equal(count_rows(&db, "events", 1), 1); /* another job's */
    hd_batch_free(batch);
    store_db_close(&db);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

/* ---- backup -----------------------------------------------------------------------------------*/

static int backup_in_a_child(const char *dir, const char *file)
{
    struct hd_store_backup made;
    const pid_t child = fork();
    int status = 0;

    if (child == 0) { /* the locks of POSIX do not keep a process from itself */
        const enum hd_status st = hd_store_make_backup(dir, file, &made);

        _exit(st ? (int)st : made.jobs == 2 && made.last_job == 7 && made.size_bytes > 0 ? 0 : 255);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void put_jobs(struct bench *bench, uint64_t first, uint64_t second)
{
    struct hd_batch *batch = hd_batch_new();

    bench->done = 0;
    add_job(batch, first);
    if (second)
        add_job(batch, second);
    hd_store_commit(bench->store, batch, on_done, bench);
    run_until_reported(bench, 1);
}

/* Goal: a backup is one committed state, and the controller writes on meanwhile and after it. */
static void a_backup_of_an_open_store_holds_what_was_committed(void **state)
{
    struct bench bench;
    struct hd_query *query;
    char file[TEMPORARY_BYTES + 32], restored[TEMPORARY_BYTES + 32];

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    put_jobs(&bench, 3, 7);
    (void)snprintf(file, sizeof file, "%s/backup", bench.dir);
    assert_int_equal(backup_in_a_child(bench.dir, file), 0);
    put_jobs(&bench, 8, 0);
    assert_int_equal(backup_in_a_child(bench.dir, file), HD_EXISTS);
    close_store(&bench, 1000);

    /* as docs/operations.md restores it */
    (void)snprintf(restored, sizeof restored, "%s/state.db", bench.dir);
    assert_int_equal(rename(file, restored), 0);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    query = hd_query_new(HD_QUERY_JOBS);
    query->limit = 10;
    assert_int_equal(needs(&bench, query).st, HD_OK);
    assert_int_equal(query->job_count, 2); /* 3 and 7; 8 came later */
    hd_query_free(query);
    finish(&bench);
}

/* Goal: rm state.db under the controller loses no job. Method: as the message says, the copy that
 * the controller made gets the name. */
static void a_database_that_is_taken_away_is_told_and_copied(void **state)
{
    struct bench bench;
    char path[TEMPORARY_BYTES + 64], copy[TEMPORARY_BYTES + 64];
    struct hd_batch *batch = hd_batch_new();

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    put_jobs(&bench, 3, 7);
    (void)snprintf(path, sizeof path, "%s/state.db", bench.dir);
    (void)snprintf(copy, sizeof copy, "%s/away", bench.dir);
    assert_int_equal(rename(path, copy), 0);
    add_job(batch, 8);
    bench.done = 0;
    hd_store_commit(bench.store, batch, on_done, &bench);
    while (!bench.troubles && !bench.done)
        (void)uv_run(&bench.loop, UV_RUN_ONCE);
    assert_int_equal(bench.done, 0);
    assert_non_null(
        strstr(bench.trouble, "was removed, or replaced, under the running controller"));
    assert_int_equal(rename(copy, path), 0); /* moved back: as if nothing had been */
    run_until_reported(&bench, 1);
    assert_int_equal(bench.done, 1);

    (void)snprintf(copy, sizeof copy, "%s.rescued.%d", path, (int)getpid());
    assert_int_equal(unlink(copy), 0); /* of that first time */
    assert_int_equal(unlink(path), 0);
    batch = hd_batch_new();
    add_job(batch, 9);
    hd_store_commit(bench.store, batch, on_done, &bench);
    run_until_trouble(&bench, bench.troubles + 1);
    assert_non_null(strstr(bench.trouble, copy));
    close_store(&bench, 0);
    assert_int_equal(bench.aborted, 1); /* not told as written */
    assert_int_equal(rename(copy, path), 0);
    (void)snprintf(copy, sizeof copy, "%s-wal", path);
    (void)unlink(copy);
    (void)snprintf(copy, sizeof copy, "%s-shm", path);
    (void)unlink(copy);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    assert_int_equal(load(&bench).jobs, 3); /* 3, 7 and 8 */
    finish(&bench);
}

static void a_backup_of_nothing_is_refused(void **state)
{
    struct hd_store_backup made;
    struct bench bench;
    char file[TEMPORARY_BYTES + 32];

    start(&bench);
    (void)snprintf(file, sizeof file, "%s/backup", bench.dir);
    assert_int_equal(hd_store_make_backup(bench.dir, file, &made), HD_NOT_FOUND);
    assert_false(hd_file_exists(file));
    finish(&bench);
}

/* Goal: no damaged copy gets the name. Method: the first page of a table that the backup itself
 * does not read is overwritten; only the check of the whole copy can find it. */
static void a_backup_of_a_damaged_database_fails(void **state)
{
    static const char noise[4096] = "noise";
    struct hd_store_backup made;
    struct bench bench;
    struct store_db opened;
    char file[TEMPORARY_BYTES + 32], path[TEMPORARY_BYTES + 32], page[32];
    FILE *db;

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    put_jobs(&bench, 3, 7);
    close_store(&bench, 1000);
    assert_int_equal(store_db_open(&opened, bench.dir, NULL), HD_OK);
    assert_int_equal(store_db_read_text(&opened,
                                        "SELECT rootpage FROM sqlite_schema WHERE name='events'",
                                        page, sizeof page),
                     HD_OK);
    store_db_close(&opened);
    (void)snprintf(path, sizeof path, "%s/state.db", bench.dir);
    (void)snprintf(file, sizeof file, "%s/backup", bench.dir);
    db = fopen(path, "r+be");
    assert_non_null(db);
    assert_int_equal(fseek(db, (atol(page) - 1) * 4096, SEEK_SET), 0);
    assert_int_equal(fwrite(noise, 1, sizeof noise, db), sizeof noise);
    assert_int_equal(fclose(db), 0);
    assert_int_equal(hd_store_make_backup(bench.dir, file, &made), HD_CORRUPT);
    assert_false(hd_file_exists(file));
    finish(&bench);
}

/* A removed node leaves the table, unless an attempt that ran there refers to it. */
static void a_removed_node_is_gone_from_disk(void **state)
{
    struct hd_node_record node = {
        .uuid = "uuid-9", .name = "n9", .boot_id = "b", .build = "1", .state = HD_NODE_STATE_LOST};
    struct hd_rank_location place = {.node_uuid = "uuid-8", .node_name = "n8"};
    const struct hd_attempt_record attempt = {
        .job = 1,
        .attempt = 1,
        .state = HD_ATTEMPT_STATE_ENDED,
        .plan = {.layout = {.precision = HD_JOB_PRECISION_FP32,
                            .schedule = "none",
                            .recompute = "none",
                            .offload = HD_JOB_OFFLOAD_NONE,
                            .cp_exchange = HD_JOB_CP_EXCHANGE_RING,
                            .stages = "auto",
                            .device = HD_JOB_DEVICE_CPU,
                            .threads = 1},
                 .ranks = &place,
                 .rank_count = 1}};
    const struct hd_probe_record probe = {
        .node_uuid = "uuid-9", .ended_ms = 1, .problem = "", .measured_on = ""};
    struct hd_batch *batch = hd_batch_new();
    struct census census;
    struct bench bench;

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    add_job_of(batch, 1, "ann", HD_JOB_STATE_SUCCEEDED);
    hd_batch_add_node(batch, &node);
    hd_batch_add_probe(batch, &probe); /* it refers to the node, and goes with it */
    node.uuid = "uuid-8";
    node.name = "n8";
    hd_batch_add_node(batch, &node);
    hd_batch_add_attempt(batch, &attempt);
    node.retired = node.removed = true;
    hd_batch_add_node(batch, &node);
    node.uuid = "uuid-9";
    node.name = "n9";
    hd_batch_add_node(batch, &node);
    hd_store_commit(bench.store, batch, on_done, &bench);
    close_store(&bench, 1000);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    census = load(&bench);
    assert_int_equal(census.nodes, 1); /* n8, retired */
    assert_int_equal(census.retired, 1);
    finish(&bench);
}

/* A row that something else has written over: said, and never read as zeros. */
static void damaged_metrics_are_said(void **state)
{
    static const char *const damage[] = {"UPDATE step_metrics SET metrics=x''",
                                         "UPDATE step_metrics SET metrics=x'010203'",
                                         /* metric 4, tokens, is 1.5 */
                                         "UPDATE step_metrics SET metrics=x'0400000000000000f83f'"};
    const struct hd_step_record step = {.job = 1, .sequence = 2, .attempt = 1, .step = 7};

    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        struct bench bench;
        struct hd_query *query = hd_query_new(HD_QUERY_HISTORY);
        struct hd_batch *batch = hd_batch_new();
        char path[128];
        sqlite3 *db;

        start(&bench);
        assert_int_equal(open_store(&bench, NULL), HD_OK);
        add_job(batch, 1);
        hd_batch_add_step(batch, &step);
        hd_store_commit(bench.store, batch, on_done, &bench);
        close_store(&bench, 1000);
        (void)snprintf(path, sizeof path, "%s/state.db", bench.dir);
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        if (sqlite3_exec(db, damage[i], NULL, NULL, NULL))
            fail_msg("%s", sqlite3_errmsg(db));
        (void)sqlite3_close(db);
        assert_int_equal(open_store(&bench, NULL), HD_OK);
        query->job = 1;
        assert_int_equal(needs(&bench, query).st, HD_CORRUPT);
        hd_query_free(query);
        finish(&bench);
    }
}

static void the_cluster_keeps_its_identity(void **state)
{
    struct bench bench;
    char first[64];

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    (void)snprintf(first, sizeof first, "%s", hd_store_cluster_id(bench.store));
    assert_int_equal(strlen(first), 32);
    close_store(&bench, 1000);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    assert_string_equal(hd_store_cluster_id(bench.store), first);
    finish(&bench);
}

static void a_broken_rule_of_the_schema_is_fatal(void **state)
{
    struct bench bench;

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    commit_job(&bench, 1);
    run_until_reported(&bench, 1);
    commit_job(&bench, 1); /* the same number and request again */
    while (!bench.fatal.status)
        (void)uv_run(&bench.loop, UV_RUN_ONCE);
    assert_int_equal(bench.fatal.status, HD_INTERNAL);
    assert_int_equal(bench.done, 1);
    finish(&bench);
}

RUN_CASES_BETWEEN(register_disk, NULL)
