/* store: a database that was lost is not taken for a new one. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "controller/store/store_internal.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

struct life {
    char dir[TEMPORARY_BYTES];
};

static void put(const struct life *life, const char *name, const char *text)
{
    struct hd_text path = {0}, folder = {0};

    hd_file_join(&path, life->dir, name);
    hd_text_add(&folder, "%.*s", (int)(strrchr(path.data, '/') - path.data), path.data);
    assert_int_equal(hd_file_make_dirs(folder.data, 0700), HD_OK);
    assert_int_equal(hd_file_write_atomic(path.data, text, strlen(text), 0600), HD_OK);
    hd_text_free(&path);
    hd_text_free(&folder);
}

static enum hd_status open_once(const struct life *life)
{
    struct store_db db;
    enum hd_status st = store_db_open(&db, life->dir, NULL);

    if (!st)
        store_db_close(&db);
    return st;
}

/* Checks what is found beside a database that is missing, or of no bytes; found: NULL, if it may be
 * a new one. */
static void expect(const char *database, const char *name, const char *text, const char *found)
{
    struct life life;
    struct store_db db;
    enum hd_status st;

    temporary_dir(life.dir, "heddle-life");
    if (database)
        put(&life, "state.db", database);
    if (name)
        put(&life, name, text);
    st = open_once(&life);
    assert_int_equal(st, found ? HD_CORRUPT : HD_OK);
    if (found) {
        assert_non_null(strstr(hd_err_message(), found));
        assert_non_null(strstr(hd_err_message(), database ? "is empty" : "is missing"));
        assert_non_null(strstr(hd_err_message(), "Restore a backup"));
        if (database) { /* nothing was written */
            struct hd_text read = {0};
            struct hd_text path = {0};

            hd_file_join(&path, life.dir, "state.db");
            assert_int_equal(hd_file_read(path.data, 100, &read), HD_OK);
            assert_int_equal(read.len_bytes, 0);
            hd_text_free(&read);
            hd_text_free(&path);
        }
    } else {
        assert_int_equal(store_db_open(&db, life.dir, NULL),
                         HD_OK); /* as it is found the next time */
        store_db_close(&db);
    }
    assert_int_equal(hd_file_remove_tree(life.dir), HD_OK);
}

static void an_earlier_life_is_seen(void **state)
{
    for (int empty = 0; empty < 2; empty++) {
        const char *database = empty ? "" : NULL;

        expect(database, "state.db-wal", "frames", "state.db-wal");
        expect(database, "pki/ca.pem", "a certificate", "pki/ca.pem");
        expect(database, "before-upgrade-from-0.1.0-7.db", "SQLite",
               "before-upgrade-from-0.1.0-7.db");
        expect(database, "reserve", "zeros", "reserve");
        expect(database, "epoch", "epoch 7", "the file epoch");
        expect(database, "before-restore.part/state.db", "SQLite", "interrupted");
        expect(database, "state.db.restored", "SQLite", "interrupted");
        expect(database, "jobs/12/attempt-1/logs/rank-0.log", "step 1", "jobs/12");
    }
}

static void a_new_folder_is_no_earlier_life(void **state)
{
    expect(NULL, NULL, NULL, NULL);
    expect("", NULL, NULL, NULL); /* a first start that was ended before it wrote */
    expect(NULL, "lock", "", NULL);
    expect(NULL, "state.db-wal", "", NULL);
    expect(NULL, "jobs/.heddle-probe", "mine", NULL);
    expect(NULL, "old/jobs/12/a", "moved away", NULL);
}

RUN_CASES()
