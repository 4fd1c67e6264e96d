/* restore: a backup takes the place of the database, and the next start takes over (epoch.c).
 *
 *   lock DIR -> copy FILE into state.db.restored, checked and on disk -> move state.db and its log
 *   to DIR/before-restore-TIME -> give the copy its name -> mark it: the next start takes over
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

static enum hd_status put_in_place(const char *dir, const char *file, struct hd_store_restore *r)
{
    char part[HD_CTL_PATH_BYTES_MAX + 16], path[HD_CTL_PATH_BYTES_MAX + 16];
    enum hd_status st;

    (void)snprintf(part, sizeof part, "%s/state.db.restored", dir);
    (void)snprintf(path, sizeof path, "%s/state.db", dir);
    (void)unlink(part); /* left by an earlier try */
    st = store_copy_file(file, part, &r->copy);
    if (!st)
        st = move_aside(dir, r);
    if (!st && rename(part, path) < 0)
        st = hd_err(HD_IO, "cannot rename %s to %s: %s", part, path, strerror(errno));
    return st ? st : hd_file_sync_dir(dir);
}

static enum hd_status mark(struct store_db *db, bool revoke, struct hd_store_restore *r)
{
    char copied[32];
    enum hd_status st = store_db_get_meta(db, "copied", copied, sizeof copied);

    if (!st && *copied)
        st = hd_text_to_int64(copied, 0, INT64_MAX, &r->copied_ms);
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

enum hd_status hd_store_restore(const char *dir, const char *file, bool revoke,
                                struct hd_store_restore *ret_restore)
{
    struct hd_store_restore r = {0};
    struct store_db db = {0};
    char lock[HD_CTL_PATH_BYTES_MAX + 16];
    int lock_fd = -1;
    enum hd_status st;

    (void)snprintf(lock, sizeof lock, "%s/lock", dir);
    if (strlen(dir) > HD_CTL_PATH_BYTES_MAX - 64)
        st = hd_err(HD_INVALID, "the path %s is too long", dir);
    else
        st = hd_file_lock(lock, &lock_fd);
    if (st == HD_CONFLICT)
        (void)hd_err(st,
                     "a controller uses the state directory %s; stop it first (running jobs go "
                     "on)",
                     dir);
    if (!st && file)
        st = put_in_place(dir, file, &r);
    if (!st)
        st = store_db_open(&db, dir, NULL);
    if (!st) {
        st = mark(&db, revoke, &r);
        store_db_close(&db);
    }
    if (lock_fd >= 0)
        (void)close(lock_fd);
    if (!st)
        *ret_restore = r;
    return st;
}
