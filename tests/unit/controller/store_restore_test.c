/* store: a restore that is ended or fails at any step loses nothing, and one that cannot succeed
 * changes nothing. */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "controller/store/store_internal.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

enum { KILLED = 9 };

static int kill_at; /* the process ends before this call of fsync or rename; 0: before none */
static int fail_at; /* this call of rename fails; 0: none does */

/* These replace libc's in this program and in SQLite. A process that ends loses nothing that was
 * not flushed, so the test does not wait for the disk. */
int fsync(int fd)
{
    if (kill_at && --kill_at == 0)
        _exit(KILLED);
    return 0;
}

int fdatasync(int fd)
{
    return fsync(fd);
}

int rename(const char *from, const char *to)
{
    if (kill_at && --kill_at == 0)
        _exit(KILLED);
    if (fail_at && --fail_at == 0) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

/* ---- a state directory ------------------------------------------------------------------------*/

struct bench {
    char root[TEMPORARY_BYTES];
    char dir[TEMPORARY_BYTES + 8], backup[TEMPORARY_BYTES + 8];
};

static void put_progress(const char *dir, const char *value)
{
    struct store_db db;

    assert_int_equal(store_db_open(&db, dir, NULL), HD_OK);
    assert_int_equal(store_db_put_meta(&db, "progress", value), HD_OK);
    store_db_close(&db);
}

static enum hd_status start(const char *dir, struct hd_store_epoch *ret_epoch)
{
    struct store_db db;
    enum hd_status st = store_db_open(&db, dir, NULL);

    if (st)
        return st;
    st = store_begin_epoch(&db, dir, true, false, ret_epoch);
    store_db_close(&db);
    return st;
}

static void add_token(const char *dir)
{
    const struct hd_credential_record token = {.id = 1,
                                               .kind = HD_CREDENTIAL_KIND_TOKEN,
                                               .name = "ann",
                                               .role = "user",
                                               .made_by = "admin",
                                               .ended_by = "",
                                               .made_ms = 1,
                                               .expires_ms = INT64_MAX};
    struct hd_batch *batch = hd_batch_new();

    assert_non_null(batch);
    hd_batch_add_credential(batch, &token);
    assert_int_equal(hd_store_write(dir, batch), HD_OK);
}

static int64_t count_tokens(const char *dir)
{
    struct store_db db;
    char text[32];

    assert_int_equal(store_db_open(&db, dir, NULL), HD_OK);
    assert_int_equal(store_db_read_text(&db, "SELECT count(*) FROM credentials WHERE ended_ms = 0",
                                        text, sizeof text),
                     HD_OK);
    store_db_close(&db);
    return strtoll(text, NULL, 10);
}

/* Sets the progress to 77, in the log alone, as a controller leaves it that is killed. */
static void progress_in_the_log(const struct bench *b)
{
    const pid_t child = fork();
    int status;

    if (child == 0) {
        struct store_db db;

        _exit(store_db_open(&db, b->dir, NULL) || store_db_put_meta(&db, "progress", "77"));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* A backup with progress 5 and a token; a database with progress 77, which only its log has. */
static struct bench make_bench(void)
{
    struct hd_store_backup made;
    struct hd_store_epoch epoch;
    struct bench b;

    temporary_dir(b.root, "heddle-restore");
    (void)snprintf(b.dir, sizeof b.dir, "%s/state", b.root);
    (void)snprintf(b.backup, sizeof b.backup, "%s/backup", b.root);
    assert_int_equal(hd_file_make_dirs(b.dir, 0700), HD_OK);
    assert_int_equal(start(b.dir, &epoch), HD_OK);
    add_token(b.dir);
    put_progress(b.dir, "5");
    assert_int_equal(hd_store_make_backup(b.dir, b.backup, &made), HD_OK);
    progress_in_the_log(&b);
    return b;
}

static void done(struct bench *b)
{
    assert_int_equal(hd_file_remove_tree(b->root), HD_OK);
}

static enum hd_status restore(const struct bench *b)
{
    struct hd_store_restore restored;

    return hd_store_restore_from(b->dir, b->backup, true, false, &restored);
}

/* Restores in a child that ends before call number `step`. Returns whether it ended there. */
static bool restore_until(const struct bench *b, int step)
{
    const pid_t child = fork();
    int status;

    if (child == 0) {
        kill_at = step;
        _exit(restore(b) ? 1 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_not_equal(WEXITSTATUS(status), 1);
    return WEXITSTATUS(status) == KILLED;
}

/* Removes the folders of former databases. */
static void forget_kept(const struct bench *b)
{
    char pattern[300];
    glob_t all = {0};

    (void)snprintf(pattern, sizeof pattern, "%s/before-restore*", b->dir);
    (void)glob(pattern, 0, NULL, &all);
    for (size_t i = 0; i < all.gl_pathc; i++)
        assert_int_equal(hd_file_remove_tree(all.gl_pathv[i]), HD_OK);
    globfree(&all);
}

/* Returns whether a folder of a restore has the former database with its log. */
static bool is_kept(const struct bench *b)
{
    char pattern[300], progress[32];
    bool found = false;
    glob_t all = {0};

    (void)snprintf(pattern, sizeof pattern, "%s/before-restore*/state.db", b->dir);
    (void)glob(pattern, 0, NULL, &all);
    for (size_t i = 0; i < all.gl_pathc; i++) {
        struct store_db db;

        assert_int_equal(store_open_source(all.gl_pathv[i], &db), HD_OK);
        assert_int_equal(store_db_get_meta(&db, "progress", progress, sizeof progress), HD_OK);
        found |= strcmp(progress, "77") == 0;
        (void)sqlite3_close(db.sqlite);
    }
    globfree(&all);
    return found;
}

/* ---- cases ------------------------------------------------------------------------------------*/

/* A start then finds the whole former database, or the whole restored one in which the token has
 * ended, or is refused because there is none. The next restore completes the work. */
static void an_interrupted_restore_loses_nothing(void **state)
{
    struct bench b = make_bench();
    int refused = 0, former = 0, restored = 0;
    bool is_killed = true;

    for (int step = 1; is_killed; step++) {
        struct hd_store_epoch epoch;
        char path[300];
        enum hd_status st;

        is_killed = restore_until(&b, step);
        st = start(b.dir, &epoch);
        if (st) {
            assert_int_equal(st, HD_CORRUPT);
            assert_non_null(strstr(hd_err_message(), "is missing"));
            refused++;
        } else if (epoch.restored) {
            assert_int_equal(epoch.progress, 5);
            assert_int_equal(count_tokens(b.dir), 0);
            assert_true(is_kept(&b));
            restored++;
        } else {
            assert_int_equal(epoch.progress, 77);
            former++;
        }
        assert_int_equal(restore(&b), HD_OK);
        assert_true(is_kept(&b));
        (void)snprintf(path, sizeof path, "%s/" STORE_ASIDE_NAME, b.dir);
        assert_false(hd_file_exists(path));
        assert_int_equal(start(b.dir, &epoch), HD_OK);
        assert_true(epoch.restored);
        assert_int_equal(epoch.progress, 5);
        assert_int_equal(count_tokens(b.dir), 0);
        forget_kept(&b);
        progress_in_the_log(&b);
    }
    done(&b);
    /* before state.db is moved: the flushes of the copy. Until the copy has its name: three renames
     * at least. Then the flush of the folder, and the end */
    assert_true(former >= 2 && refused >= 3 && restored >= 2);
}

/* The first rename moves state.db: if it fails, the database is where it was, and that is not said. */
static void an_error_half_way_says_where_the_former_database_is(void **state)
{
    bool has_failed = true;

    for (int step = 1; has_failed; step++) {
        struct bench b = make_bench();
        char path[300];

        fail_at = step;
        has_failed = restore(&b) != HD_OK;
        fail_at = 0;
        (void)snprintf(path, sizeof path, "The former database is in %s/before-restore", b.dir);
        if (has_failed)
            assert_true((strstr(hd_err_message(), path) != NULL) == (step > 1));
        (void)snprintf(path, sizeof path, "%s/" STORE_RESTORED_NAME, b.dir);
        assert_false(hd_file_exists(path));
        assert_int_equal(restore(&b), HD_OK);
        assert_true(is_kept(&b));
        done(&b);
    }
}

/* Changes the backup by SQL. */
static void change_backup(const struct bench *b, const char *sql)
{
    sqlite3 *db = NULL;

    assert_int_equal(sqlite3_open(b->backup, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void the_backup_of_a_newer_build_is_refused_before_anything_is_moved(void **state)
{
    struct bench b = make_bench();
    struct hd_store_epoch epoch;

    change_backup(&b, "PRAGMA user_version = 9999;"
                      "INSERT OR REPLACE INTO meta VALUES ('build', '99.1')");
    assert_int_equal(restore(&b), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), b.backup));
    assert_non_null(strstr(hd_err_message(), "written by Heddle 99.1"));
    assert_int_equal(start(b.dir, &epoch), HD_OK);
    assert_false(epoch.restored);
    assert_int_equal(epoch.progress, 77);
    done(&b);
}

/* The database that would tell the cluster is lost, or damaged. */
static void the_file_epoch_tells_the_cluster_of_a_lost_database(void **state)
{
    for (int damaged = 0; damaged < 2; damaged++) {
        struct bench b = make_bench();
        char path[300];

        (void)snprintf(path, sizeof path, "%s/state.db", b.dir);
        assert_int_equal(unlink(path), 0);
        if (damaged)
            assert_int_equal(hd_file_write_atomic(path, "no database", 11, 0600), HD_OK);
        change_backup(&b, "UPDATE meta SET value = 'another' WHERE key = 'cluster_id'");
        assert_int_equal(restore(&b), HD_CONFLICT);
        (void)snprintf(path, sizeof path, "%s/epoch", b.dir);
        assert_non_null(strstr(hd_err_message(), "another cluster"));
        assert_non_null(strstr(hd_err_message(), path));
        done(&b);
    }
}

/* A restore into an empty folder that was killed while it copied. */
static void the_copy_of_an_interrupted_restore_leaves_a_folder_empty(void **state)
{
    static const char *const left[] = {"lock", STORE_RESTORED_NAME, STORE_RESTORED_NAME "-journal",
                                       STORE_RESTORED_NAME "-wal"};
    struct bench b = make_bench();
    struct hd_store_restore restored;
    struct hd_store_epoch epoch;
    char empty[300], path[400];

    (void)snprintf(empty, sizeof empty, "%s/empty", b.root);
    assert_int_equal(hd_file_make_dirs(empty, 0700), HD_OK);
    for (size_t i = 0; i < sizeof left / sizeof left[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", empty, left[i]);
        assert_int_equal(hd_file_write_atomic(path, "a part", 6, 0600), HD_OK);
    }
    assert_int_equal(start(empty, &epoch), HD_CORRUPT); /* it is no new cluster either */
    assert_int_equal(hd_store_restore_from(empty, b.backup, false, true, &restored), HD_OK);
    assert_int_equal(start(empty, &epoch), HD_OK);
    assert_int_equal(epoch.progress, 5);
    done(&b);
}

RUN_CASES()
