/* store: which database may lead its cluster: one that was started before, a copy, one that was put
 * back, one from which another controller has taken over; and a log that is another database's. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "controller/store/store_internal.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

struct bench {
    char root[TEMPORARY_BYTES];
    char first[TEMPORARY_BYTES + 8], second[TEMPORARY_BYTES + 8], backup[TEMPORARY_BYTES + 8];
};

static struct bench make_bench(void)
{
    struct bench b;

    temporary_dir(b.root, "heddle-epoch");
    (void)snprintf(b.first, sizeof b.first, "%s/first", b.root);
    (void)snprintf(b.second, sizeof b.second, "%s/second", b.root);
    (void)snprintf(b.backup, sizeof b.backup, "%s/backup", b.root);
    assert_int_equal(hd_file_make_dirs(b.first, 0700), HD_OK);
    assert_int_equal(hd_file_make_dirs(b.second, 0700), HD_OK);
    return b;
}

static enum hd_status start(const char *dir, bool take_over, struct hd_store_epoch *ret_epoch)
{
    struct store_db db;
    enum hd_status st = store_db_open(&db, dir, NULL);

    if (st)
        return st;
    st = store_begin_epoch(&db, dir, true, take_over, ret_epoch);
    store_db_close(&db);
    return st;
}

static struct hd_store_epoch started(const char *dir, bool take_over)
{
    struct hd_store_epoch epoch;

    assert_int_equal(start(dir, take_over, &epoch), HD_OK);
    return epoch;
}

/* Copies as cp does: into another file, or (over) into the one that is there. */
static void copy(const char *from_dir, const char *from, const char *to_dir, const char *to,
                 bool over)
{
    char path[256], target[256];
    struct hd_text bytes = {0};
    FILE *file;

    (void)snprintf(path, sizeof path, "%s%s%s", from_dir, *from ? "/" : "", from);
    (void)snprintf(target, sizeof target, "%s%s%s", to_dir, *to ? "/" : "", to);
    assert_int_equal(hd_file_read(path, 1 << 24, &bytes), HD_OK);
    if (!over)
        (void)unlink(target);
    file = fopen(target, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes.data, 1, bytes.len_bytes, file), bytes.len_bytes);
    assert_int_equal(fclose(file), 0);
    hd_text_free(&bytes);
}

static void assert_same_file(const char *dir, const char *name, const char *other_dir,
                             const char *other)
{
    char path[300], other_path[300];
    struct hd_text a = {0}, b = {0};

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    (void)snprintf(other_path, sizeof other_path, "%s/%s", other_dir, other);
    assert_int_equal(hd_file_read(path, 1 << 24, &a), HD_OK);
    assert_int_equal(hd_file_read(other_path, 1 << 24, &b), HD_OK);
    assert_int_equal(a.len_bytes, b.len_bytes);
    assert_memory_equal(a.data, b.data, a.len_bytes);
    hd_text_free(&a);
    hd_text_free(&b);
}

static void put_meta(const char *dir, const char *key, const char *value)
{
    struct store_db db;

    assert_int_equal(store_db_open(&db, dir, NULL), HD_OK);
    assert_int_equal(store_db_put_meta(&db, key, value), HD_OK);
    store_db_close(&db);
}

static void done(struct bench *b)
{
    assert_int_equal(hd_file_remove_tree(b->root), HD_OK);
}

static void each_start_is_the_next_epoch(void **state)
{
    struct bench b = make_bench();
    const struct hd_store_epoch one = started(b.first, false), two = started(b.first, false);

    assert_int_equal(one.number, 1);
    assert_int_equal(two.number, 2);
    assert_false(two.restored);
    assert_string_not_equal(one.instance, two.instance);
    assert_memory_equal(one.secret, two.secret, sizeof one.secret);
    done(&b);
}

/* A directory that has moved is the same one: the file is the same. */
static void a_directory_that_has_moved_is_no_copy(void **state)
{
    struct bench b = make_bench();

    (void)started(b.first, false);
    assert_int_equal(rmdir(b.second), 0);
    assert_int_equal(rename(b.first, b.second), 0);
    assert_false(started(b.second, false).restored);
    done(&b);
}

/* Each of: a backup, the file itself; over the file that is there, or in its place. The epoch is
 * higher than any that the controller had. */
static void what_is_put_back_in_its_place_takes_over(void **state)
{
    for (int way = 0; way < 4; way++) {
        const bool is_backup = way & 1, over = way & 2;
        struct bench b = make_bench();
        struct hd_store_backup made;
        struct hd_store_epoch before, after;

        (void)started(b.first, false);
        if (is_backup)
            assert_int_equal(hd_store_make_backup(b.first, b.backup, &made), HD_OK);
        else
            copy(b.first, "state.db", b.backup, "", false);
        for (int i = 0; i < 3; i++)
            before = started(b.first, false);
        copy(b.backup, "", b.first, "state.db", over);
        after = started(b.first, false);
        assert_true(after.restored);
        assert_true(after.number > before.number);
        assert_int_equal(after.takeover, after.number);
        assert_true(after.taken_over_ms > 0);
        assert_int_equal(after.copied_ms > 0, is_backup);
        assert_false(started(b.first, false).restored); /* the next start is an ordinary one */
        done(&b);
    }
}

/* A backup, the file, or all of the directory, in another place: refused, until a person says that
 * the first controller is gone. */
static void a_copy_in_another_place_waits_for_a_person(void **state)
{
    for (int way = 0; way < 3; way++) {
        struct bench b = make_bench();
        struct hd_store_backup made;
        struct hd_store_restore restored;
        struct hd_store_epoch first, epoch;

        first = started(b.first, false);
        if (way == 0)
            assert_int_equal(hd_store_make_backup(b.first, b.backup, &made), HD_OK);
        if (way == 0)
            copy(b.backup, "", b.second, "state.db", false);
        else
            copy(b.first, "state.db", b.second, "state.db", false);
        if (way == 2)
            copy(b.first, "epoch", b.second, "epoch", false);
        assert_int_equal(start(b.second, false, &epoch), HD_CONFLICT);
        assert_non_null(strstr(hd_err_message(), b.first)); /* it names both */
        assert_non_null(strstr(hd_err_message(), b.second));
        assert_non_null(strstr(hd_err_message(), "heddle-controller restore"));
        assert_int_equal(hd_store_restore_from(b.second, NULL, false, false, &restored), HD_OK);
        epoch = started(b.second, false);
        assert_true(epoch.restored && epoch.number > first.number + 1000);
        assert_false(started(b.second, false).restored);
        done(&b);
    }
}

static void one_that_was_taken_over_from_starts_no_more(void **state)
{
    struct bench b = make_bench();
    struct hd_store_restore restored;
    struct hd_store_epoch epoch;

    (void)started(b.first, false);
    put_meta(b.first, "fenced", "7000000 in /elsewhere on n9");
    assert_int_equal(start(b.first, false, &epoch), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), "/elsewhere on n9"));
    assert_int_equal(hd_store_restore_from(b.first, NULL, false, false, &restored), HD_OK);
    assert_true(started(b.first, false).number > 7000000);
    done(&b);
}

/* heddle local: its nodes end with it, so no other controller can lead them. */
static void a_controller_that_ends_its_jobs_asks_nobody(void **state)
{
    struct bench b = make_bench();

    (void)started(b.first, false);
    copy(b.first, "state.db", b.second, "state.db", false);
    assert_true(started(b.second, true).restored);
    done(&b);
}

/* A log beside a backup, or beside the file of an earlier start, is that of the database that was
 * there before. Its own log is not refused, as after a crash. */
static void a_log_of_another_database_is_refused(void **state)
{
    for (int way = 0; way < 3; way++) {
        struct bench b = make_bench();
        struct hd_store_backup made;
        struct hd_store_epoch epoch;
        struct store_db db;
        char file[300];

        (void)started(b.first, false);
        copy(b.first, "state.db", b.root, "earlier", false);
        (void)started(b.first, false);
        assert_int_equal(hd_store_make_backup(b.first, b.backup, &made), HD_OK);
        assert_int_equal(store_db_open(&db, b.first, NULL), HD_OK);
        assert_int_equal(store_db_put_meta(&db, "x", "9"), HD_OK); /* into the log */
        copy(b.first, "state.db-wal", b.second, "state.db-wal", false);
        copy(b.first, "epoch", b.second, "epoch", false);
        copy(b.first, "state.db", b.second, "state.db", false);
        store_db_close(&db);
        if (way == 1)
            copy(b.backup, "", b.second, "state.db", true);
        if (way == 2)
            copy(b.root, "earlier", b.second, "state.db", true);
        /* a backup refuses the mixture as well, and uses up no log, whosever it is */
        copy(b.second, "state.db-wal", b.root, "log", false);
        (void)snprintf(file, sizeof file, "%s/copy", b.root);
        assert_int_equal(hd_store_make_backup(b.second, file, &made), way ? HD_CONFLICT : HD_OK);
        assert_same_file(b.second, "state.db-wal", b.root, "log");
        assert_int_equal(start(b.second, true, &epoch), way ? HD_CONFLICT : HD_OK);
        if (way)
            assert_non_null(strstr(hd_err_message(), "state.db-wal"));
        done(&b);
    }
}

/* A pipe in the place of a file that a start reads: a start that opened it would wait for a writer
 * for ever; an alarm ends the test then. */
static void a_pipe_beside_the_database_makes_no_start_wait(void **state)
{
    static const char *const names[] = {"epoch", "state.db-wal"};

    (void)alarm(30);
    for (int i = 0; i < 2; i++) {
        struct bench b = make_bench();
        struct store_db db;
        char path[300];

        (void)started(b.first, false);
        assert_int_equal(store_db_open(&db, b.first, NULL), HD_OK);
        assert_int_equal(store_db_put_meta(&db, "x", "9"), HD_OK); /* into the log */
        copy(b.first, "state.db", b.second, "state.db", false);
        copy(b.first, "state.db-wal", b.second, "state.db-wal", false);
        store_db_close(&db);
        (void)snprintf(path, sizeof path, "%s/%s", b.second, names[i]);
        (void)unlink(path);
        assert_int_equal(mkfifo(path, 0600), 0);
        assert_int_equal(store_check_log(b.second), i == 0 ? HD_OK : HD_INVALID);
        assert_int_equal(store_db_open(&db, b.second, NULL), i == 0 ? HD_OK : HD_INVALID);
        if (i == 0)
            store_db_close(&db);
        else
            assert_non_null(strstr(hd_err_message(), path));
        done(&b);
    }
    (void)alarm(0);
}

/* A reader keeps the log from being copied into the database: it is told when the log is twice as
 * long as it should be, once; a large transaction alone is nothing to tell. */
static void a_reader_that_lets_the_log_grow_is_told(void **state)
{
    enum { BOUND = 8 * 4096 };
    static char text[4 * BOUND];

    memset(text, 'x', sizeof text - 1);
    for (int reads = 0; reads < 2; reads++) {
        struct bench b = make_bench();
        struct store_db db;
        sqlite3 *reader = NULL;

        assert_int_equal(store_db_open(&db, b.first, NULL), HD_OK);
        assert_int_equal(sqlite3_open(db.path, &reader), SQLITE_OK);
        if (reads)
            assert_int_equal(sqlite3_exec(reader, "BEGIN; SELECT * FROM meta", 0, 0, 0), SQLITE_OK);
        assert_int_equal(store_db_put_meta(&db, "x", text), HD_OK);
        store_watch_log(&db, BOUND);
        assert_int_equal(db.log_reported_bytes > 2 * BOUND, reads);
        if (reads) {
            assert_int_equal(sqlite3_exec(reader, "COMMIT", 0, 0, 0), SQLITE_OK);
            store_db_empty_log(&db, BOUND);
            store_watch_log(&db, BOUND);
            assert_int_equal(db.log_reported_bytes, 0);
        }
        (void)sqlite3_close(reader);
        store_db_close(&db);
        done(&b);
    }
}

static void restore_moves_the_former_database_aside(void **state)
{
    struct bench b = make_bench();
    struct hd_store_backup made;
    struct hd_store_restore restored;
    char path[4200];

    (void)started(b.first, false);
    assert_int_equal(hd_store_make_backup(b.first, b.backup, &made), HD_OK);
    put_meta(b.first, "progress", "77");
    assert_int_equal(hd_store_restore_from(b.first, b.backup, true, false, &restored), HD_OK);
    assert_int_equal(restored.copy.copied_ms, made.copied_ms);
    (void)snprintf(path, sizeof path, "%s/state.db", restored.aside);
    assert_true(hd_file_exists(path));
    assert_int_equal(started(b.first, false).progress, 0); /* that of the backup */
    assert_int_equal(hd_store_restore_from(b.first, "/nowhere/backup", false, false, &restored),
                     HD_NOT_FOUND);
    assert_false(started(b.first, false).restored); /* nothing has changed */
    done(&b);
}

/* Waits until a copy that is made now has another time than one that was made at `then_ms`. */
static void pass_ms(int64_t then_ms)
{
    while (hd_clock_wall_ms() <= then_ms)
        (void)usleep(500);
}

/* Each of: a backup, the backup of a database that was restored and not started, a file that cp
 * made. What is missing is what came after the backup, not after the restore. */
static void a_restore_tells_when_the_copy_was_made(void **state)
{
    for (int way = 0; way < 3; way++) {
        struct bench b = make_bench();
        struct hd_store_backup made = {0}, again;
        struct hd_store_restore restored;
        char other[300];

        (void)snprintf(other, sizeof other, "%s/other", b.root);
        (void)started(b.first, false);
        put_meta(b.first, "settled_ms", "1700000000123");
        if (way == 2)
            copy(b.first, "state.db", b.backup, "", false);
        else
            assert_int_equal(hd_store_make_backup(b.first, b.backup, &made), HD_OK);
        pass_ms(made.copied_ms);
        assert_int_equal(hd_store_restore_from(b.first, b.backup, false, false, &restored), HD_OK);
        assert_int_equal(restored.copy.copied_ms, made.copied_ms); /* way 2: 0, not known */
        assert_int_equal(restored.copy.newest_ms, 1700000000123);
        if (way == 1) {
            assert_int_equal(hd_store_make_backup(b.first, other, &again), HD_OK);
            assert_int_equal(again.copied_ms, made.copied_ms);
        }
        assert_int_equal(started(b.first, false).copied_ms, made.copied_ms);
        /* a copy of a database that has been started is made now */
        pass_ms(made.copied_ms);
        (void)unlink(other);
        assert_int_equal(hd_store_make_backup(b.first, other, &again), HD_OK);
        assert_true(again.copied_ms > made.copied_ms);
        done(&b);
    }
}

/* Seconds since 2020-01-01 UTC, which began 18262 days after 1970: 50 years of 365 days, and the 12
 * leap days of 1972 to 2016. */
static void a_takeover_takes_the_seconds_of_the_clock(void **state)
{
    const int64_t begin_ms = INT64_C(18262) * 86400 * 1000;
    const uint64_t stride = UINT64_C(1048576), last = INT32_MAX;

    assert_int_equal(store_takeover_epoch(7, begin_ms + 200 * 1000), 200);
    assert_int_equal(store_takeover_epoch(199, begin_ms + 200 * 1000 + 999), 200);
    /* a clock that is behind what is known, as of a machine that has none, or of 1970 */
    assert_int_equal(store_takeover_epoch(200, begin_ms + 200 * 1000), 200 + stride);
    assert_int_equal(store_takeover_epoch(9, 0), 9 + stride);
    /* a clock that shows a year after 2087: the header of state.db has 31 bits */
    assert_int_equal(store_takeover_epoch(9, begin_ms + (int64_t)last * 1000), last);
    assert_int_equal(store_takeover_epoch(9, begin_ms + ((int64_t)last + 1) * 1000), 9 + stride);
}

/* One backup, in two places one after the other; the first controller had more starts meanwhile.
 * The later one leads, although neither knows of the other. */
static void the_later_of_two_restores_of_a_backup_leads(void **state)
{
    struct bench b = make_bench();
    struct hd_store_backup made;
    struct hd_store_restore restored;
    struct hd_store_epoch one;
    char third[300];

    (void)snprintf(third, sizeof third, "%s/third", b.root);
    assert_int_equal(hd_file_make_dirs(third, 0700), HD_OK);
    (void)started(b.first, false);
    assert_int_equal(hd_store_make_backup(b.first, b.backup, &made), HD_OK);
    assert_int_equal(hd_store_restore_from(b.second, b.backup, false, true, &restored), HD_OK);
    (void)started(b.second, false);
    one = started(b.second, false);
    assert_int_equal(one.number, one.takeover + 1);
    /* two starts within a second do not occur but in a test: so wait two */
    pass_ms((one.taken_over_ms / 1000 + 2) * 1000);
    assert_int_equal(hd_store_restore_from(third, b.backup, false, true, &restored), HD_OK);
    assert_true(started(third, false).number > one.number);
    done(&b);
}

static void assert_refused(const char *dir, const char *file, bool into_empty, enum hd_status st,
                           const char *advice)
{
    struct hd_store_restore restored;
    char path[4200];

    assert_int_equal(hd_store_restore_from(dir, file, false, into_empty, &restored), st);
    assert_non_null(strstr(hd_err_message(), dir));
    assert_non_null(strstr(hd_err_message(), advice));
    (void)snprintf(path, sizeof path, "%s/state.db", dir);
    assert_false(hd_file_exists(path));
}

static void a_folder_that_is_no_state_directory_is_refused(void **state)
{
    struct bench b = make_bench();
    struct hd_store_backup made;
    struct hd_store_restore restored;
    char absent[300];

    (void)snprintf(absent, sizeof absent, "%s/absent", b.root);
    (void)started(b.first, false);
    assert_int_equal(hd_store_make_backup(b.first, b.backup, &made), HD_OK);
    assert_refused(absent, b.backup, true, HD_INVALID, "make the folder");
    assert_refused(b.root, b.backup, true, HD_INVALID, "is not empty");
    assert_refused(b.root, NULL, false, HD_INVALID, "name the file");
    assert_refused(b.second, NULL, false, HD_INVALID, "name the file");
    assert_refused(b.second, b.backup, false, HD_INVALID, "--empty");
    assert_int_equal(hd_store_restore_from(b.second, b.backup, false, true, &restored), HD_OK);
    assert_true(started(b.second, false).restored);
    done(&b);
}

/* The database stays as it is, and no part of a copy is left. */
static void the_backup_of_another_cluster_is_refused(void **state)
{
    struct bench b = make_bench();
    struct hd_store_backup made;
    struct hd_store_restore restored;
    char path[300];

    (void)started(b.first, false);
    (void)started(b.second, false);
    assert_int_equal(hd_store_make_backup(b.first, b.backup, &made), HD_OK);
    assert_int_equal(hd_store_restore_from(b.second, b.backup, false, false, &restored),
                     HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), "another cluster"));
    (void)snprintf(path, sizeof path, "%s/state.db.restored", b.second);
    assert_false(hd_file_exists(path));
    assert_false(started(b.second, false).restored);
    done(&b);
}

static void write_file(const char *path, const char *bytes, size_t count)
{
    assert_int_equal(hd_file_write_atomic(path, bytes, count, 0600), HD_OK);
}

/* Each of: nothing, a folder, an empty file, a text, half a backup, a damaged one, a database of
 * another program. The message names the file that the operator gave, and what to give. */
static void what_is_no_backup_is_told_by_its_name(void **state)
{
    static const enum hd_status expected[] = {HD_NOT_FOUND, HD_INVALID, HD_CORRUPT, HD_CORRUPT,
                                              HD_CORRUPT,   HD_CORRUPT, HD_CORRUPT};
    struct bench b = make_bench();
    struct hd_store_backup made;
    struct hd_store_restore restored;
    struct hd_text whole = {0};
    sqlite3 *other = NULL;
    char path[300];

    (void)snprintf(path, sizeof path, "%s/given", b.root);
    (void)started(b.first, false);
    assert_int_equal(hd_store_make_backup(b.first, b.backup, &made), HD_OK);
    assert_int_equal(hd_file_read(b.backup, 1 << 24, &whole), HD_OK);
    for (size_t way = 0; way < sizeof expected / sizeof expected[0]; way++) {
        (void)remove(path);
        if (way == 1)
            assert_int_equal(hd_file_make_dirs(path, 0700), HD_OK);
        else if (way == 2)
            write_file(path, "", 0);
        else if (way == 3)
            write_file(path, "this is a text, and no database\n", 32);
        else if (way == 4)
            write_file(path, whole.data, whole.len_bytes / 2);
        if (way == 5) {
            memset(whole.data + 4096 + 100, 0xff, 4096); /* the second page and some of the third */
            write_file(path, whole.data, whole.len_bytes);
        }
        if (way == 6) {
            assert_int_equal(sqlite3_open(path, &other), SQLITE_OK);
            assert_int_equal(sqlite3_exec(other, "CREATE TABLE x (y)", 0, 0, 0), SQLITE_OK);
            (void)sqlite3_close(other);
        }
        if (hd_store_restore_from(b.first, path, false, false, &restored) != expected[way] ||
            !strstr(hd_err_message(), path) || strstr(hd_err_message(), "restored"))
            fail_msg("way %zu: %s", way, hd_err_message());
        if (expected[way] == HD_CORRUPT && !strstr(hd_err_message(), "cannot be used"))
            fail_msg("way %zu: %s", way, hd_err_message());
    }
    hd_text_free(&whole);
    assert_false(started(b.first, false).restored); /* nothing has changed */
    done(&b);
}

RUN_CASES()
