/* restore: replaces the database by a backup; the next start then takes over (epoch.c).
 *
 *   1. lock DIR
 *   2. copy FILE into state.db.restored, and check it
 *   3. migrate the copy, end people's credentials if asked, mark it: the next start takes over
 *   4. move state.db, and then its log, to DIR/before-restore.part
 *   5. rename that folder to DIR/before-restore-TIME
 *   6. rename the copy to state.db
 *
 * Interrupted in steps 1 to 3, the former database is in use as before. From the beginning of step
 * 4 to step 6 there is no state.db, so that a start is refused (life.c) and no log is lost or read
 * with another database; the same command, given again, continues. Step 6 puts in place a copy that
 * needs no further change.
 *
 * A folder that is no state directory is refused, and so is the database of another cluster: a
 * mistyped path would otherwise create a second controller of the cluster.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "controller/store/store_internal.h"

enum { FILE_PATH_MAX = HD_CTL_PATH_BYTES_MAX + 32 };

/* ---- the former database ----------------------------------------------------------------------*/

/* Files of a database, in the order in which they are moved. Without its log, state.db lacks the
 * newest transactions, so it leaves its place first. */
static const char *const names[] = {"state.db", "state.db-wal", "state.db-shm"};
enum { NAMES = sizeof names / sizeof names[0] };

static bool has(const char *dir, const char *name)
{
    char path[FILE_PATH_MAX];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return hd_file_exists(path);
}

static enum hd_status move_one(const char *dir, const char *aside, const char *name)
{
    char from[FILE_PATH_MAX], to[FILE_PATH_MAX];
    enum hd_status st;

    if (!has(dir, name))
        return HD_OK;
    (void)snprintf(from, sizeof from, "%s/%s", dir, name);
    (void)snprintf(to, sizeof to, "%s/%s", aside, name);
    st = hd_file_make_dirs(aside, 0700);
    if (!st && rename(from, to) < 0)
        st = hd_err(HD_IO, "cannot move %s to %s: %s", from, to, strerror(errno));
    if (!st)
        st = hd_file_sync_dir(aside);
    return st ? st : hd_file_sync_dir(dir); /* on disk before the next file is moved */
}

/* Renames the folder r->aside to DIR/before-restore-TIME. */
static enum hd_status name_aside(const char *dir, struct hd_store_restore *r)
{
    char named[sizeof r->aside], now[HD_CLOCK_TEXT_MAX];

    hd_clock_format_utc(hd_clock_wall_ms(), now);
    (void)snprintf(named, sizeof named, "%.4000s/before-restore-%.24s", dir, now);
    for (int i = 2; hd_file_exists(named); i++)
        (void)snprintf(named, sizeof named, "%.4000s/before-restore-%.24s-%d", dir, now, i);
    if (rename(r->aside, named) < 0)
        return hd_err(HD_IO, "cannot rename %s to %s: %s", r->aside, named, strerror(errno));
    (void)snprintf(r->aside, sizeof r->aside, "%s", named);
    return hd_file_sync_dir(dir);
}

/* Moves the former database to a folder, which an interrupted restore may have begun; sets r->aside
 * to its path, also after a failure; "": nothing was moved. */
static enum hd_status move_aside(const char *dir, struct hd_store_restore *r)
{
    enum hd_status st = HD_OK;

    (void)snprintf(r->aside, sizeof r->aside, "%.4000s/" STORE_ASIDE_NAME, dir);
    for (int i = 0; !st && i < NAMES; i++)
        if (has(r->aside, names[i]) && has(dir, names[i])) {
            /* another database was put in place since: the folder is complete */
            st = name_aside(dir, r);
            (void)snprintf(r->aside, sizeof r->aside, "%.4000s/" STORE_ASIDE_NAME, dir);
        }
    for (int i = 0; !st && i < NAMES; i++)
        st = move_one(dir, r->aside, names[i]);
    if (st)
        (void)rmdir(r->aside); /* if it is empty */
    if (!hd_file_exists(r->aside))
        r->aside[0] = '\0';
    return st || !r->aside[0] ? st : name_aside(dir, r);
}

/* Reads a summary of the former database, which was moved aside, if it is readable. */
static void look_aside(struct hd_store_restore *r)
{
    char path[FILE_PATH_MAX];
    struct store_db db = {0};

    if (!r->aside[0])
        return;
    (void)snprintf(path, sizeof path, "%s/state.db", r->aside);
    if (store_open_source(path, &db) || store_read_holding(&db, &r->former))
        r->former = (struct hd_store_backup){0};
    (void)sqlite3_close(db.sqlite);
}

/* Adds to the error message where the former database is. */
static enum hd_status tell_half_done(enum hd_status st, const struct hd_store_restore *r)
{
    struct hd_error error;

    if (!r->aside[0])
        return st;
    hd_err_save(st, &error);
    return hd_err(st,
                  "%s. The former database is in %s: when this is mended, run the same command "
                  "again, or move the files in that folder back",
                  error.message, r->aside);
}

/* ---- checks -----------------------------------------------------------------------------------*/

static enum hd_status check_dir(const char *dir, const char *file, bool into_empty)
{
    struct stat info;

    if (strlen(dir) > HD_CTL_PATH_BYTES_MAX - 128)
        return hd_err(HD_INVALID, "the path %s is too long", dir);
    if (stat(dir, &info) < 0)
        return hd_err(HD_INVALID,
                      "cannot find the state directory %s: %s. If this machine is a new one, make "
                      "the folder, and run this again with --empty",
                      dir, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return hd_err(HD_INVALID, "%s is no folder; --state-dir is the controller's", dir);
    if (access(dir, R_OK | W_OK | X_OK) < 0)
        return hd_err(HD_INVALID, "cannot write into %s: %s; run this as the controller's user",
                      dir, strerror(errno));
    if (!file && !store_is_state_dir(dir))
        return hd_err(HD_INVALID,
                      "%s is no state directory of a controller; to put a backup there, name the "
                      "file: heddle-controller restore FILE --state-dir DIR",
                      dir);
    if (!file || store_is_state_dir(dir))
        return HD_OK;
    if (!store_is_empty(dir))
        return hd_err(HD_INVALID,
                      "%s is no state directory: no controller has worked there, and it is not "
                      "empty. --state-dir is the controller's; for a controller on a new machine "
                      "name an empty folder, and add --empty",
                      dir);
    return into_empty ? HD_OK
                      : hd_err(HD_INVALID,
                               "%s is empty: no controller has worked there. If the controller is "
                               "to begin there, because the former state directory is lost, run "
                               "this again with --empty; else correct --state-dir",
                               dir);
}

/* Sets ret_id to the cluster's id in an open database; "": it cannot be read, or has none. */
static void read_cluster(struct store_db *db, char ret_id[HD_JOBS_SHARE_MAX])
{
    if (store_db_get_meta(db, "cluster_id", ret_id, HD_JOBS_SHARE_MAX))
        ret_id[0] = '\0';
}

/* Sets ret_id to the id of the cluster that works in `dir`, and ret_path to the file that says so:
 * its database or, if that is lost or unreadable, the file `epoch`. "": unknown. */
static void read_cluster_here(const char *dir, char ret_id[HD_JOBS_SHARE_MAX],
                              char ret_path[FILE_PATH_MAX])
{
    struct store_db db = {0};

    ret_id[0] = '\0';
    (void)snprintf(ret_path, FILE_PATH_MAX, "%s/state.db", dir);
    if (!store_open_source(ret_path, &db))
        read_cluster(&db, ret_id);
    (void)sqlite3_close(db.sqlite);
    if (*ret_id)
        return;
    (void)snprintf(ret_path, FILE_PATH_MAX, "%s/epoch", dir);
    store_read_epoch_cluster(dir, ret_id);
}

/* Refuses a backup of another cluster's database, and one of a newer version of Heddle. If the
 * cluster that works in `dir` is unknown, the backup is accepted: a lost database may be the reason
 * for the restore. */
static enum hd_status check_cluster_of_copy(const char *dir, const char *file, const char *part)
{
    char path[FILE_PATH_MAX], here[HD_JOBS_SHARE_MAX], there[HD_JOBS_SHARE_MAX] = "";
    struct store_db db = {0};
    enum hd_status st = store_open_source(part, &db);

    if (!st)
        st = store_check_schema(&db, file);
    if (!st)
        read_cluster(&db, there);
    (void)sqlite3_close(db.sqlite);
    if (st)
        return st;
    read_cluster_here(dir, here, path);
    if (!*here || !*there || strcmp(here, there) == 0)
        return HD_OK;
    return hd_err(HD_CONFLICT,
                  "%s is the database of another cluster (%.8s..) than the one in %s (%.8s..). If "
                  "that cluster is to go on here, move all that is in %s to another folder, put "
                  "the pki folder of its controller there, and run this again",
                  file, there, path, here, dir);
}

/* ---- the new database -------------------------------------------------------------------------*/

static enum hd_status mark(struct store_db *db, bool revoke, struct hd_store_restore *r)
{
    enum hd_status st = r->copy.size_bytes ? HD_OK : store_read_holding(db, &r->copy);

    if (!st)
        st = store_db_run(db, STORE_BEGIN, "");
    if (!st && revoke) {
        st = store_db_run(db, STORE_END_PEOPLE, "i", hd_clock_wall_ms());
        r->ended = st ? 0 : sqlite3_changes(db->sqlite);
    }
    if (!st)
        st = store_db_put_meta(db, "take_over", "1");
    return st ? st : store_db_run(db, STORE_COMMIT, "");
}

/* Migrates and marks the copy, and leaves it as a single file, without a log, on disk. */
static enum hd_status mark_restored(const char *part, bool revoke, struct hd_store_restore *r)
{
    struct store_db db = {0};
    char mode[16];
    enum hd_status st = store_db_open_file(&db, part, NULL);

    if (st)
        return st;
    st = mark(&db, revoke, r);
    if (!st)
        st = store_db_read_text(&db, "PRAGMA journal_mode = DELETE", mode, sizeof mode);
    if (!st && strcmp(mode, "delete") != 0)
        st = hd_err(HD_IO, "%s keeps a log beside it (journal mode %s)", part, mode);
    store_db_close(&db);
    return st ? st : store_flush_file(part, &r->copy.size_bytes);
}

/* Removes the copy with the files that SQLite keeps beside it; best effort. */
static void remove_copy(const char *part)
{
    static const char *const ends[] = {"-journal", "-wal", "-shm", ""};
    char path[FILE_PATH_MAX + 16];

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        (void)snprintf(path, sizeof path, "%s%s", part, ends[i]);
        (void)unlink(path);
    }
}

static enum hd_status put_in_place(const char *dir, const char *file, bool revoke,
                                   struct hd_store_restore *r)
{
    char part[FILE_PATH_MAX], path[FILE_PATH_MAX];
    enum hd_status st;

    (void)snprintf(part, sizeof part, "%s/" STORE_RESTORED_NAME, dir);
    (void)snprintf(path, sizeof path, "%s/state.db", dir);
    remove_copy(part); /* left by an earlier try to restore */
    st = store_copy_file(file, part, 0, &r->copy);
    if (!st)
        st = check_cluster_of_copy(dir, file, part);
    if (!st)
        st = mark_restored(part, revoke, r);
    if (!st)
        st = move_aside(dir, r);
    if (!st && rename(part, path) < 0)
        st = hd_err(HD_IO, "cannot rename %s to %s: %s", part, path, strerror(errno));
    if (!st)
        st = hd_file_sync_dir(dir);
    if (st) {
        st = tell_half_done(st, r);
        remove_copy(part);
    } else {
        look_aside(r);
    }
    return st;
}

/* Makes the next start on the database that is in `dir` a takeover. */
static enum hd_status mark_present(const char *dir, bool revoke, struct hd_store_restore *r)
{
    struct store_db db = {0};
    enum hd_status st = store_db_open(&db, dir, NULL);

    if (st)
        return st;
    st = mark(&db, revoke, r);
    store_db_close(&db);
    return st;
}

enum hd_status hd_store_restore_from(const char *dir, const char *file, bool revoke,
                                     bool into_empty, struct hd_store_restore *ret_restore)
{
    struct hd_store_restore r = {0};
    char lock[FILE_PATH_MAX];
    int lock_fd = -1;
    enum hd_status st = check_dir(dir, file, into_empty);

    (void)snprintf(lock, sizeof lock, "%s/lock", dir);
    if (!st)
        st = hd_file_lock(lock, &lock_fd);
    if (st == HD_CONFLICT)
        (void)hd_err(st,
                     "a controller uses the state directory %s; stop it first (running jobs go "
                     "on)",
                     dir);
    if (!st)
        st = file ? put_in_place(dir, file, revoke, &r) : mark_present(dir, revoke, &r);
    if (lock_fd >= 0)
        (void)close(lock_fd);
    if (!st)
        *ret_restore = r;
    return st;
}
