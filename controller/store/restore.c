/* restore: replaces the database by a backup; the next start then takes over (epoch.c).
 *
 *   lock DIR -> copy FILE into state.db.restored, checked and on disk -> move state.db and its log
 *   to DIR/before-restore-TIME -> give the copy its name -> mark it: the next start takes over
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

static const char *const names[] = {"state.db-wal", "state.db-shm", "state.db"};

static enum hd_status move_aside(const char *dir, struct hd_store_restore *r)
{
    char from[HD_CTL_PATH_BYTES_MAX + 16], to[HD_CTL_PATH_BYTES_MAX + 16], now[HD_CLOCK_TEXT_MAX];
    enum hd_status st = HD_OK;

    hd_clock_format_utc(hd_clock_wall_ms(), now);
    for (size_t i = 0; !st && i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(from, sizeof from, "%s/%s", dir, names[i]);
        if (!hd_file_exists(from))
            continue;
        if (!r->aside[0])
            (void)snprintf(r->aside, sizeof r->aside, "%.4000s/before-restore-%.24s", dir, now);
        st = hd_file_make_dirs(r->aside, 0700);
        (void)snprintf(to, sizeof to, "%s/%s", r->aside, names[i]);
        if (!st && rename(from, to) < 0)
            st = hd_err(HD_IO, "cannot move %s to %s: %s", from, to, strerror(errno));
    }
    if (!st && r->aside[0])
        st = hd_file_sync_dir(r->aside);
    return st ? st : hd_file_sync_dir(dir);
}

/* ---- checks -----------------------------------------------------------------------------------*/

static enum hd_status check_dir(const char *dir, const char *file, bool into_empty)
{
    struct stat info;

    if (strlen(dir) > HD_CTL_PATH_BYTES_MAX - 64)
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

/* Sets ret_id to the cluster's id in a database; "": it cannot be read, or has none. */
static void read_cluster(const char *file, char ret_id[HD_JOBS_SHARE_MAX])
{
    struct store_db db = {0};

    if (store_open_source(file, &db) ||
        store_db_get_meta(&db, "cluster_id", ret_id, HD_JOBS_SHARE_MAX))
        ret_id[0] = '\0';
    (void)sqlite3_close(db.sqlite);
}

/* Refuses a backup of another cluster's database. If the present database is unreadable, the backup
 * is accepted: that may be the reason for the restore. */
static enum hd_status check_cluster(const char *dir, const char *file, const char *part)
{
    char path[HD_CTL_PATH_BYTES_MAX + 16], here[HD_JOBS_SHARE_MAX], there[HD_JOBS_SHARE_MAX];

    (void)snprintf(path, sizeof path, "%s/state.db", dir);
    read_cluster(path, here);
    read_cluster(part, there);
    if (!*here || !*there || strcmp(here, there) == 0)
        return HD_OK;
    return hd_err(HD_CONFLICT,
                  "%s is the database of another cluster (%.8s..) than the one in %s (%.8s..). If "
                  "that cluster is to go on here, move all that is in %s to another folder, put "
                  "the pki folder of its controller there, and run this again",
                  file, there, path, here, dir);
}

/* ---- changes ----------------------------------------------------------------------------------*/

/* Reads a summary of the former database, which was moved aside, if it is readable. */
static void look_aside(struct hd_store_restore *r)
{
    char path[HD_CTL_PATH_BYTES_MAX + 16];
    struct store_db db = {0};

    if (!r->aside[0])
        return;
    (void)snprintf(path, sizeof path, "%s/state.db", r->aside);
    if (store_open_source(path, &db) || store_read_holding(&db, &r->former))
        r->former = (struct hd_store_backup){0};
    (void)sqlite3_close(db.sqlite);
}

static enum hd_status put_in_place(const char *dir, const char *file, struct hd_store_restore *r)
{
    char part[HD_CTL_PATH_BYTES_MAX + 16], path[HD_CTL_PATH_BYTES_MAX + 16];
    enum hd_status st;

    (void)snprintf(part, sizeof part, "%s/state.db.restored", dir);
    (void)snprintf(path, sizeof path, "%s/state.db", dir);
    (void)unlink(part); /* left by an earlier try to restore */
    st = store_copy_file(file, part, 0, &r->copy);
    if (st)
        return st;
    st = check_cluster(dir, file, part);
    if (!st)
        st = move_aside(dir, r);
    if (!st && rename(part, path) < 0)
        st = hd_err(HD_IO, "cannot rename %s to %s: %s", part, path, strerror(errno));
    if (st) {
        (void)unlink(part); /* best effort: the error to report is st */
        return st;
    }
    look_aside(r);
    return hd_file_sync_dir(dir);
}

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

/* Adds to the error message that the copy is in place, but not marked as a takeover. */
static enum hd_status tell_half_done(const char *dir, enum hd_status st,
                                     const struct hd_store_restore *r)
{
    struct hd_error error;

    hd_err_save(st, &error);
    return hd_err(
        st,
        "%s. The copy is in its place already%s%s: when this is mended, run "
        "heddle-controller restore --state-dir %s, without a file, and only then start the "
        "controller",
        error.message, r->aside[0] ? ", and the former database is in " : "", r->aside, dir);
}

enum hd_status hd_store_restore_from(const char *dir, const char *file, bool revoke,
                                     bool into_empty, struct hd_store_restore *ret_restore)
{
    struct hd_store_restore r = {0};
    struct store_db db = {0};
    char lock[HD_CTL_PATH_BYTES_MAX + 16];
    int lock_fd = -1;
    bool is_put;
    enum hd_status st = check_dir(dir, file, into_empty);

    (void)snprintf(lock, sizeof lock, "%s/lock", dir);
    if (!st)
        st = hd_file_lock(lock, &lock_fd);
    if (st == HD_CONFLICT)
        (void)hd_err(st,
                     "a controller uses the state directory %s; stop it first (running jobs go "
                     "on)",
                     dir);
    if (!st && file)
        st = put_in_place(dir, file, &r);
    is_put = !st && file;
    if (!st)
        st = store_db_open(&db, dir, NULL);
    if (!st) {
        st = mark(&db, revoke, &r);
        store_db_close(&db);
    }
    if (st && is_put)
        st = tell_half_done(dir, st, &r);
    if (lock_fd >= 0)
        (void)close(lock_fd);
    if (!st)
        *ret_restore = r;
    return st;
}
