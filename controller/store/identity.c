/* identity: credentials and the audit log.
 *
 * Invariant of the audit log: the hash of row n covers the hash of row n-1, and rows are numbered
 * from 1 without a gap. db->audit is the newest row, including the open transaction; store.c resets
 * it when the transaction fails.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "controller/store/row.h"
#include "pki/pki.h"

_Static_assert((int)HD_CREDENTIAL_HASH_BYTES == (int)HD_PKI_HASH_BYTES, "SHA-256 in both");

static enum hd_status damaged(const struct store_db *db, const char *table, int64_t row)
{
    return hd_err(HD_CORRUPT, "%s: row %" PRId64 " of %s is damaged", db->path, row, table);
}

/* ---- credentials ------------------------------------------------------------------------------*/

static enum hd_status credential_row(const struct store_db *db, struct hd_arena *arena,
                                     sqlite3_stmt *s, struct hd_credential_record *ret)
{
    *ret = (struct hd_credential_record){0};
    return !store_get(arena, s, 0, &hd_table_credentials, ret) && ret->kind
               ? HD_OK
               : damaged(db, "credentials", sqlite3_column_int64(s, 0));
}

static enum hd_status read_last(struct store_db *db, uint64_t *ret_last)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_LAST_CREDENTIAL, "");
    bool row = false;
    enum hd_status st = s ? store_db_step(db, s, &row) : HD_INTERNAL;

    *ret_last = !st && row ? (uint64_t)sqlite3_column_int64(s, 0) : 0;
    if (row)
        (void)sqlite3_reset(s);
    return st;
}

enum hd_status store_load_credentials(struct store_db *db, const struct hd_store_loader *loader,
                                      struct hd_arena *arena)
{
    sqlite3_stmt *s =
        store_db_bind(db, STORE_GET_CREDENTIALS, "i", hd_clock_wall_ms() - INT64_C(365) * 86400000);
    enum hd_status st = HD_OK;
    uint64_t last = 0;

    while (loader->credential && store_db_next(db, s, &st)) {
        struct hd_credential_record credential;

        st = credential_row(db, arena, s, &credential);
        if (!st)
            st = loader->credential(loader->user, &credential);
    }
    if (!st && loader->credentials_end) {
        st = read_last(db, &last);
        loader->credentials_end(loader->user, last);
    }
    return st;
}

enum hd_status store_query_credentials(struct store_db *db, struct hd_query *query)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_ENDED_CREDENTIALS, "in", (int64_t)query->after,
                                    (int)query->limit + 1);
    enum hd_status st = HD_OK;

    query->credentials =
        hd_arena_array(&query->arena, (size_t)query->limit + 1, sizeof *query->credentials);
    while (query->credentials && store_db_next(db, s, &st)) {
        query->more = query->credential_count == (size_t)query->limit;
        if (query->more)
            break;
        st = credential_row(db, &query->arena, s, &query->credentials[query->credential_count]);
        query->credential_count += !st;
    }
    (void)sqlite3_reset(s);
    return st;
}

/* ---- owner of a job ---------------------------------------------------------------------------*/

enum hd_status store_check_owner(struct store_db *db, const struct hd_query *query)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_OWNER, "i", (int64_t)query->job);
    const char *owner;
    bool row = false;
    enum hd_status st = s ? store_db_step(db, s, &row) : HD_INTERNAL;

    if (st)
        return st;
    owner = row ? (const char *)sqlite3_column_text(s, 0) : "";
    if (!row || (strcmp(owner, query->only_of) != 0 && query->hidden))
        st = hd_err(HD_NOT_FOUND, "there is no job %" PRIu64, query->job);
    else if (strcmp(owner, query->only_of) != 0)
        st = hd_err(HD_DENIED, "job %" PRIu64 " belongs to %s; you are %s", query->job, owner,
                    query->only_of);
    (void)sqlite3_reset(s);
    return st;
}

enum hd_status store_query_bytes(struct store_db *db, struct hd_query *query)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_BYTES, "t", query->owner);
    bool row = false;
    enum hd_status st = s ? store_db_step(db, s, &row) : HD_INTERNAL;

    if (!st && row) {
        query->bytes = sqlite3_column_int64(s, 0);
        (void)sqlite3_reset(s);
    }
    return st;
}

/* ---- the audit log ----------------------------------------------------------------------------*/

enum hd_status store_read_audit_head(struct store_db *db)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_AUDIT_HEAD, "");
    bool row = false;
    enum hd_status st = s ? store_db_step(db, s, &row) : HD_INTERNAL;

    db->audit = (struct store_audit_head){0};
    if (st || !row)
        return st;
    db->audit.seq = (uint64_t)sqlite3_column_int64(s, 0);
    if (!store_row_hash(s, 1, db->audit.hash))
        st = damaged(db, "audit", (int64_t)db->audit.seq);
    (void)sqlite3_reset(s);
    return st;
}

enum hd_status store_insert_audit(struct store_db *db, const struct hd_audit_record *a)
{
    const char *const texts[HD_AUDIT_TEXT_COUNT] = HD_AUDIT_TEXTS(a);
    struct store_audit_head next = {.seq = db->audit.seq + 1};
    enum hd_status st;

    hd_pki_chain(db->audit.hash, next.seq, a->time_ms, texts, HD_AUDIT_TEXT_COUNT, next.hash);
    st = store_db_run(db, STORE_INSERT_AUDIT, "iittttttb", (int64_t)next.seq, a->time_ms, a->who,
                      a->role, a->method, a->object, a->source, a->result, next.hash,
                      sizeof next.hash);
    if (!st)
        db->audit = next;
    return st;
}

static enum hd_status audit_row(const struct store_db *db, struct hd_arena *arena, sqlite3_stmt *s,
                                struct hd_audit_row *ret)
{
    *ret = (struct hd_audit_row){.seq = (uint64_t)sqlite3_column_int64(s, 0),
                                 .record = {.time_ms = sqlite3_column_int64(s, 1),
                                            .who = store_row_text(arena, s, 2),
                                            .role = store_row_text(arena, s, 3),
                                            .method = store_row_text(arena, s, 4),
                                            .object = store_row_text(arena, s, 5),
                                            .source = store_row_text(arena, s, 6),
                                            .result = store_row_text(arena, s, 7)}};
    return store_row_hash(s, 8, ret->hash) ? HD_OK : damaged(db, "audit", (int64_t)ret->seq);
}

enum hd_status store_query_audit(struct store_db *db, struct hd_query *query)
{
    sqlite3_stmt *s =
        store_db_bind(db, STORE_GET_AUDIT, "in", (int64_t)query->after, (int)query->limit + 1);
    enum hd_status st = HD_OK;

    query->audit = hd_arena_array(&query->arena, (size_t)query->limit + 1, sizeof *query->audit);
    while (query->audit && store_db_next(db, s, &st)) {
        query->more = query->audit_count == (size_t)query->limit;
        if (query->more)
            break;
        st = audit_row(db, &query->arena, s, &query->audit[query->audit_count]);
        query->audit_count += !st;
    }
    (void)sqlite3_reset(s);
    return st;
}

/* ---- while no controller runs -----------------------------------------------------------------*/

static enum hd_status write_alone(struct store_db *db, const struct hd_batch *batch)
{
    enum hd_status st = store_db_run(db, STORE_BEGIN, "");

    if (!st)
        st = store_write_batch(db, batch);
    return st ? st : store_db_run(db, STORE_COMMIT, "");
}

/* Locks a state directory that no controller uses and opens its database; the caller closes
 * *ret_lock_fd. */
static enum hd_status open_alone(struct store_db *db, const char *dir, int *ret_lock_fd)
{
    char lock[HD_CTL_PATH_BYTES_MAX];
    enum hd_status st;

    *ret_lock_fd = -1;
    (void)snprintf(lock, sizeof lock, "%s/lock", dir);
    st = hd_file_lock(lock, ret_lock_fd);
    if (st == HD_CONFLICT)
        (void)hd_err(st,
                     "a controller uses the state directory %s; stop it first (running jobs go on)",
                     dir);
    if (!st)
        st = store_db_open(db, dir, NULL);
    if (st && *ret_lock_fd >= 0)
        (void)close(*ret_lock_fd);
    return st;
}

static void close_alone(struct store_db *db, int lock_fd)
{
    store_db_close(db);
    (void)close(lock_fd);
}

enum hd_status hd_store_last_credential(const char *dir, uint64_t *ret_last)
{
    struct store_db db;
    int lock_fd;
    enum hd_status st = open_alone(&db, dir, &lock_fd);

    if (st)
        return st;
    st = read_last(&db, ret_last);
    close_alone(&db, lock_fd);
    return st;
}

enum hd_status hd_store_read_ids(const char *dir, char ret_cluster[HD_JOBS_SHARE_MAX],
                                 char ret_share[HD_JOBS_SHARE_MAX])
{
    char path[HD_CTL_PATH_BYTES_MAX + 16];
    struct store_db db;
    int lock_fd;
    enum hd_status st;

    (void)snprintf(path, sizeof path, "%s/state.db", dir);
    if (!hd_file_exists(path))
        return hd_err(HD_NOT_FOUND,
                      "%s has no database of a controller; --state-dir is the controller's", dir);
    st = open_alone(&db, dir, &lock_fd);
    if (st)
        return st;
    (void)snprintf(ret_cluster, HD_JOBS_SHARE_MAX, "%s", db.cluster_id);
    (void)snprintf(ret_share, HD_JOBS_SHARE_MAX, "%s", db.jobs_share);
    close_alone(&db, lock_fd);
    return HD_OK;
}

enum hd_status hd_store_read_saved_jobs(const char *dir, uint64_t *ret_jobs, size_t max,
                                        size_t *ret_count)
{
    sqlite3_stmt *statement = NULL;
    struct store_db db;
    int lock_fd, code = SQLITE_OK;
    enum hd_status st = open_alone(&db, dir, &lock_fd);

    *ret_count = 0;
    if (st)
        return st;
    code = sqlite3_prepare_v2(db.sqlite,
                              "SELECT DISTINCT job FROM checkpoints"
                              " WHERE state = 'present' AND shared = 1 ORDER BY job DESC",
                              -1, &statement, NULL);
    while (code == SQLITE_OK && *ret_count < max && sqlite3_step(statement) == SQLITE_ROW)
        ret_jobs[(*ret_count)++] = (uint64_t)sqlite3_column_int64(statement, 0);
    if (code != SQLITE_OK)
        st = store_db_error(&db, "cannot read the jobs with checkpoints");
    (void)sqlite3_finalize(statement);
    close_alone(&db, lock_fd);
    return st;
}

enum hd_status hd_store_write(const char *dir, struct hd_batch *batch)
{
    struct store_db db;
    int lock_fd;
    enum hd_status st = hd_batch_failed(batch) ? hd_err(HD_NO_MEMORY, "no memory for a batch")
                                               : open_alone(&db, dir, &lock_fd);

    if (!st) {
        st = write_alone(&db, batch);
        close_alone(&db, lock_fd);
    }
    hd_batch_free(batch);
    return st;
}
