/* backup: copies the database while a controller uses it.
 *
 *   check FILE -> copy into FILE.part.PID (sqlite3_backup) -> check the copy -> flush it
 *   -> give it its name, which must still be free -> flush the folder
 *
 * The copy is the state that was committed when the copying began. The controller continues to
 * commit; only its write-ahead log is not truncated until the copy is complete.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/text.h"
#include "controller/store/store_internal.h"

enum { LOCKED_TIMEOUT_MS = 10 * 1000 };

/* Refuses to read a state.db beside the log of another database: SQLite would mix them, and reading
 * would consume the log. */
static enum hd_status check_log_beside(const char *file)
{
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
    char dir[HD_CTL_PATH_BYTES_MAX];

    if (strcmp(name, "state.db") != 0)
        return HD_OK;
    (void)snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - file) : 1, slash ? file : ".");
    return store_check_log(dir);
}

static enum hd_status check_readable(const char *file)
{
    struct stat info;

    if (stat(file, &info) < 0 || access(file, R_OK) < 0)
        return hd_file_cannot_open("the database ", file, errno);
    return S_ISREG(info.st_mode)
               ? HD_OK
               : hd_err(HD_INVALID,
                        "%s is no regular file; restore one that heddle-controller backup "
                        "made",
                        file);
}

/* Opens for reading the database that is to be copied. Its log stays unchanged, even if this is the
 * last connection. */
enum hd_status store_open_source(const char *file, struct store_db *ret_db)
{
    int keeps_log = 1;
    enum hd_status st;

    *ret_db = (struct store_db){0};
    (void)snprintf(ret_db->path, sizeof ret_db->path, "%s", file);
    st = check_readable(ret_db->path);
    if (!st)
        st = check_log_beside(ret_db->path);
    if (st)
        return st;
    if (sqlite3_open_v2(ret_db->path, &ret_db->sqlite, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK)
        return ret_db->sqlite ? store_db_error(ret_db, "cannot open")
                              : hd_err(HD_NO_MEMORY, "no memory to open %s", ret_db->path);
    (void)sqlite3_busy_timeout(ret_db->sqlite, LOCKED_TIMEOUT_MS);
    (void)sqlite3_db_config(ret_db->sqlite, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    (void)sqlite3_file_control(ret_db->sqlite, "main", SQLITE_FCNTL_PERSIST_WAL, &keeps_log);
    return HD_OK;
}

/* Creates an empty file `part` that only its owner can read; fails if the name exists. */
static enum hd_status make_part(const char *part)
{
    const int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    char why[HD_FILE_WHY_MAX];

    if (fd < 0)
        return hd_err(HD_IO, "cannot create %s: %s%s", part, hd_file_explain(errno, part, why),
                      errno == ENOENT ? "; make its folder first" : "");
    (void)close(fd);
    return HD_OK;
}

static enum hd_status open_copy(const char *part, struct store_db *ret_db)
{
    *ret_db = (struct store_db){0};
    (void)snprintf(ret_db->path, sizeof ret_db->path, "%s", part);
    if (sqlite3_open_v2(part, &ret_db->sqlite, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) !=
        SQLITE_OK)
        return ret_db->sqlite ? store_db_error(ret_db, "cannot open")
                              : hd_err(HD_NO_MEMORY, "no memory to open %s", part);
    return HD_OK;
}

static enum hd_status copy_pages(struct store_db *from, struct store_db *to)
{
    sqlite3_backup *backup = sqlite3_backup_init(to->sqlite, "main", from->sqlite, "main");
    int code;

    if (!backup)
        return store_db_error(to, "cannot begin the backup");
    code = sqlite3_backup_step(backup, -1);
    (void)sqlite3_backup_finish(backup); /* returns the error code of the last step again; the error
                                          * text is in `to` */
    if (code == SQLITE_BUSY || code == SQLITE_LOCKED)
        return hd_err(HD_CONFLICT,
                      "%s is locked by the controller, because its file system has no shared "
                      "memory maps; stop the controller (running jobs go on), run this again, and "
                      "start it",
                      from->path);
    if (code == SQLITE_NOTADB || code == SQLITE_CORRUPT)
        return hd_err(HD_CORRUPT, "%s; restore a file that heddle-controller backup made",
                      code == SQLITE_NOTADB ? "it is no database"
                                            : "it is damaged, or only a part of it is there");
    return code == SQLITE_DONE ? HD_OK : store_db_error(to, "cannot copy");
}

static enum hd_status check_text(struct store_db *db, const char *sql, const char *expected)
{
    char text[256];
    enum hd_status st = store_db_read_text(db, sql, text, sizeof text);

    for (char *c = text; !st && *c; c++) /* SQLite's answer has several lines */
        if (*c == '\n')
            *c = ' ';
    if (!st && strcmp(text, expected) != 0)
        st = hd_err(HD_CORRUPT,
                    "it is damaged, or the disk that the copy was written to is (%s: %s)", sql,
                    text);
    return st;
}

static enum hd_status read_number_at(struct store_db *db, const char *sql, int64_t *ret_number)
{
    char text[32];
    enum hd_status st = store_db_read_text(db, sql, text, sizeof text);

    return st ? st : hd_text_to_int64(text, 0, INT64_MAX, ret_number);
}

/* Sets *ret_ms to a wall-clock time stored in meta under `key`; 0: none. */
static enum hd_status read_time(struct store_db *db, const char *key, int64_t *ret_ms)
{
    char sql[128];

    (void)snprintf(sql, sizeof sql,
                   "SELECT ifnull((SELECT CAST(value AS INTEGER) FROM meta WHERE key = '%s'), 0)",
                   key);
    return read_number_at(db, sql, ret_ms);
}

/* Records in the copy that it is a copy, for a controller that is started on it (epoch.c). A copy
 * of a copy keeps the time of the first: nothing was written in between. */
static enum hd_status mark_copy(struct store_db *copy, int64_t now_ms)
{
    char sql[160];

    (void)snprintf(sql, sizeof sql,
                   "INSERT INTO meta VALUES ('copied', '%lld')"
                   " ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE value = ''",
                   (long long)now_ms);
    return sqlite3_exec(copy->sqlite, sql, NULL, NULL, NULL) == SQLITE_OK
               ? HD_OK
               : store_db_error(copy, "cannot mark the copy");
}

/* Checks that the copy has the tables of a controller's database; fails otherwise. */
static enum hd_status check_tables(struct store_db *copy)
{
    int64_t tables;
    enum hd_status st = read_number_at(copy,
                                       "SELECT count(*) FROM sqlite_schema WHERE type = 'table'"
                                       " AND name IN ('meta', 'jobs', 'nodes')",
                                       &tables);

    return st || tables == 3
               ? st
               : hd_err(HD_CORRUPT, "it is no database of a heddle-controller; restore a file "
                                    "that heddle-controller backup made");
}

/* Makes the copy a single file without a log, checks it, and reads the summary of its content.
 * made_ms: time to store as that of the copy's making; 0: none. */
static enum hd_status check_copy(struct store_db *copy, int64_t made_ms,
                                 struct hd_store_backup *ret_backup)
{
    char mode[16];
    enum hd_status st = store_db_read_text(copy, "PRAGMA journal_mode = DELETE", mode, sizeof mode);

    if (!st && strcmp(mode, "delete") != 0)
        st =
            hd_err(HD_IO, "%s: the copy keeps a log beside it (journal mode %s)", copy->path, mode);
    if (!st)
        st = check_text(copy, "PRAGMA integrity_check(1)", "ok");
    if (!st)
        st = check_text(copy, "PRAGMA foreign_key_check", "");
    if (!st)
        st = read_number_at(copy, "PRAGMA user_version", &ret_backup->schema);
    if (!st)
        st = check_tables(copy);
    if (!st && made_ms)
        st = mark_copy(copy, made_ms);
    if (!st)
        st = store_read_holding(copy, ret_backup);
    return st;
}

enum hd_status store_read_holding(struct store_db *db, struct hd_store_backup *ret_backup)
{
    enum hd_status st = read_number_at(db, "SELECT count(*) FROM jobs", &ret_backup->jobs);

    if (!st)
        st = read_number_at(db, "SELECT ifnull(max(job), 0) FROM jobs", &ret_backup->last_job);
    if (!st)
        st = read_time(db, "copied", &ret_backup->copied_ms);
    return st ? st : read_time(db, "settled_ms", &ret_backup->newest_ms);
}

enum hd_status store_flush_file(const char *path, int64_t *ret_bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum hd_status st = HD_OK;
    struct stat info = {0};

    if (fd < 0)
        return hd_err(HD_IO, "cannot open %s: %s", path, strerror(errno));
    if (fsync(fd) < 0 || fstat(fd, &info) < 0)
        st = hd_err(HD_IO, "cannot flush %s: %s", path, strerror(errno));
    (void)close(fd);
    *ret_bytes = info.st_size;
    return st;
}

static enum hd_status is_there(const char *file)
{
    return hd_err(HD_EXISTS, "%s exists, and a backup overwrites nothing; give another name", file);
}

/* Renames the complete copy from `part` to its final name; fails if the name has been taken
 * meanwhile. */
static enum hd_status give_name(const char *part, const char *file)
{
    enum hd_status st = HD_OK;

    if (link(part, file) < 0)
        st = errno == EEXIST
                 ? is_there(file)
                 : hd_err(HD_IO, "cannot name the backup %s: %s", file, strerror(errno));
    (void)unlink(part);
    return st ? st : hd_folder_sync_of(file);
}

static enum hd_status copy_into(const char *file, const char *part, int64_t made_ms,
                                struct hd_store_backup *ret_backup)
{
    struct store_db from = {0}, to = {0};
    enum hd_status st = store_open_source(file, &from);

    if (!st)
        st = open_copy(part, &to);
    if (!st)
        st = copy_pages(&from, &to);
    if (!st)
        st = check_copy(&to, made_ms, ret_backup);
    (void)sqlite3_close(to.sqlite);
    (void)sqlite3_close(from.sqlite);
    return st ? st : store_flush_file(part, &ret_backup->size_bytes);
}

enum hd_status store_copy_file(const char *file, const char *part, int64_t made_ms,
                               struct hd_store_backup *ret_backup)
{
    struct hd_error error;
    enum hd_status st = make_part(part);

    if (st)
        return st;
    st = copy_into(file, part, made_ms, ret_backup);
    if (!st)
        return HD_OK;
    hd_err_save(st, &error);
    (void)unlink(part);
    st = hd_err_restore(&error);
    return st == HD_CORRUPT ? hd_err_prefix(st, "%s cannot be used", file) : st;
}

enum hd_status hd_store_make_backup(const char *dir, const char *file,
                                    struct hd_store_backup *ret_backup)
{
    char database[HD_CTL_PATH_BYTES_MAX];
    struct stat info;
    struct hd_text part = {0};
    enum hd_status st = HD_OK;

    *ret_backup = (struct hd_store_backup){0};
    (void)snprintf(database, sizeof database, "%s/state.db", dir);
    if (!hd_file_exists(database))
        return hd_err(HD_NOT_FOUND, "%s does not exist; --state-dir is the controller's", database);
    if (lstat(file, &info) == 0)
        return is_there(file);
    hd_text_add(&part, "%s.part.%d", file, (int)getpid());
    if (part.failed || part.len_bytes >= HD_CTL_PATH_BYTES_MAX)
        st = hd_err(HD_LIMIT, "the path of the backup is too long");
    if (!st)
        st = store_copy_file(database, part.data, hd_clock_wall_ms(), ret_backup);
    if (!st)
        st = give_name(part.data, file);
    hd_text_free(&part);
    return st;
}

/* ---- a file removed under the controller ------------------------------------------------------*/

/* Copies the database through the open connection, which still reads the file although its name was
 * removed or reused. */
static enum hd_status rescue(struct store_db *db, const char *file)
{
    struct hd_store_backup made = {0};
    struct store_db to = {0};
    struct hd_text part = {0};
    enum hd_status st;

    hd_text_add(&part, "%s.part", file);
    if (part.failed || part.len_bytes >= HD_CTL_PATH_BYTES_MAX) {
        hd_text_free(&part);
        return hd_err(HD_LIMIT, "the path of a copy is too long");
    }
    (void)unlink(part.data); /* left by an earlier try to copy */
    st = make_part(part.data);
    if (!st)
        st = open_copy(part.data, &to);
    if (!st)
        st = copy_pages(db, &to);
    if (!st)
        st = check_copy(&to, hd_clock_wall_ms(), &made);
    (void)sqlite3_close(to.sqlite);
    if (!st)
        st = store_flush_file(part.data, &made.size_bytes);
    if (!st)
        st = give_name(part.data, file);
    hd_text_free(&part);
    return st;
}

enum hd_status store_check_place(struct store_db *db)
{
    char copy[HD_CTL_PATH_BYTES_MAX + 32];
    int moved = 0;

    if (sqlite3_file_control(db->sqlite, "main", SQLITE_FCNTL_HAS_MOVED, &moved) != SQLITE_OK ||
        !moved)
        return HD_OK;
    (void)snprintf(copy, sizeof copy, "%s.rescued.%d", db->path, (int)getpid());
    if (!hd_file_exists(copy) && rescue(db, copy))
        return hd_err(HD_IO,
                      "%s was removed, or replaced, under the running controller, and could not be "
                      "copied: %s; move it back",
                      db->path, hd_err_message());
    return hd_err(HD_IO,
                  "%s was removed, or replaced, under the running controller, which takes nothing "
                  "new. All that it held is in %s: move the file back; or stop the controller, "
                  "remove state.db-wal and state.db-shm, name that copy state.db, and start again",
                  db->path, copy);
}
