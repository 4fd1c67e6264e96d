/* db: prepared statements, and translation of SQLite errors into statuses. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/file.h"
#include "controller/store/store_internal.h"

/* Returns the cause of an I/O error as text. SQLite sometimes loses errno; then a limit on file
 * sizes is assumed to be the cause. */
static const char *name_cause(int code, int system_error)
{
    struct rlimit sizes;

    if (!system_error && code == SQLITE_IOERR && getrlimit(RLIMIT_FSIZE, &sizes) == 0 &&
        sizes.rlim_cur != RLIM_INFINITY)
        system_error = EFBIG;
    return system_error ? hd_file_error_text(system_error) : "";
}

enum hd_status store_db_error(struct store_db *db, const char *what)
{
    const char *cause;
    const int code = sqlite3_errcode(db->sqlite) & 0xff;
    const int system_error = sqlite3_system_errno(db->sqlite);
    const char *message = sqlite3_errmsg(db->sqlite);

    db->full = code == SQLITE_FULL ||
               (code == SQLITE_IOERR && (system_error == ENOSPC || system_error == EDQUOT));
    if (db->full) { /* whole MiB: the text does not change with each retry */
        const int64_t free_bytes = hd_file_free_bytes(db->path);

        return hd_err(HD_IO, "%s: the disk is full (%lld MiB free); free some space, %s", db->path,
                      (long long)(free_bytes < 0 ? 0 : free_bytes >> 20),
                      db->opened ? "the write is retried" : "and try again");
    }
    cause = name_cause(code, system_error);
    switch (code) {
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PERM:
    case SQLITE_NOMEM:
        return hd_err(HD_IO, "%s: %s: %s%s%s", db->path, what, message, *cause ? ": " : "", cause);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return hd_err(HD_CORRUPT, "%s: %s: %s; " STORE_RESTORE, db->path, what, message);
    default:
        return hd_err(HD_INTERNAL, "%s: %s: %s", db->path, what, message);
    }
}

static int bind_values(sqlite3_stmt *statement, const char *types, va_list args)
{
    int code = SQLITE_OK;

    for (int i = 1; code == SQLITE_OK && *types; types++, i++) {
        const void *bytes;
        const char *text;

        switch (*types) {
        case 'i':
            code = sqlite3_bind_int64(statement, i, va_arg(args, int64_t));
            break;
        case 'n':
            code = sqlite3_bind_int(statement, i, va_arg(args, int));
            break;
        case 't':
            text = va_arg(args, const char *);
            code = sqlite3_bind_text(statement, i, text ? text : "", -1, SQLITE_STATIC);
            break;
        case 'b':
            bytes = va_arg(args, const void *);
            code = sqlite3_bind_blob64(statement, i, bytes ? bytes : "", va_arg(args, size_t),
                                       SQLITE_STATIC);
            break;
        default:
            code = SQLITE_MISUSE;
        }
    }
    return code;
}

sqlite3_stmt *store_db_bind(struct store_db *db, enum store_statement statement, const char *types,
                            ...)
{
    sqlite3_stmt *prepared = db->statements[statement];
    va_list args;
    int code;

    (void)sqlite3_reset(prepared);
    va_start(args, types);
    code = bind_values(prepared, types, args);
    va_end(args);
    if (code == SQLITE_OK)
        return prepared;
    (void)store_db_error(db, "cannot bind values");
    return NULL;
}

enum hd_status store_db_step(struct store_db *db, sqlite3_stmt *statement, bool *ret_row)
{
    enum hd_status st = HD_OK;
    int code = sqlite3_step(statement);

    *ret_row = code == SQLITE_ROW;
    if (code == SQLITE_ROW)
        return HD_OK;
    if (code != SQLITE_DONE)
        st = store_db_error(db, sqlite3_sql(statement));
    (void)sqlite3_reset(statement);
    (void)sqlite3_clear_bindings(statement);
    return st;
}

bool store_db_next(struct store_db *db, sqlite3_stmt *statement, enum hd_status *st)
{
    bool row = false;

    if (!statement)
        *st = *st ? *st : HD_INTERNAL;
    else if (!*st)
        *st = store_db_step(db, statement, &row);
    else
        (void)sqlite3_reset(statement);
    return !*st && row;
}

enum hd_status store_db_run(struct store_db *db, enum store_statement statement, const char *types,
                            ...)
{
    sqlite3_stmt *prepared = db->statements[statement];
    bool row;
    va_list args;
    int code;

    (void)sqlite3_reset(prepared);
    va_start(args, types);
    code = bind_values(prepared, types, args);
    va_end(args);
    if (code != SQLITE_OK)
        return store_db_error(db, "cannot bind values");
    return store_db_step(db, prepared, &row);
}

enum hd_status store_db_read_text(struct store_db *db, const char *sql, char *ret_text, size_t size)
{
    sqlite3_stmt *statement = NULL;
    enum hd_status st = HD_OK;

    *ret_text = 0;
    if (sqlite3_prepare_v2(db->sqlite, sql, -1, &statement, NULL) != SQLITE_OK)
        return store_db_error(db, sql);
    if (sqlite3_step(statement) == SQLITE_ROW)
        (void)snprintf(ret_text, size, "%s", (const char *)sqlite3_column_text(statement, 0));
    else if (sqlite3_errcode(db->sqlite) != SQLITE_DONE)
        st = store_db_error(db, sql);
    (void)sqlite3_finalize(statement);
    return st;
}
