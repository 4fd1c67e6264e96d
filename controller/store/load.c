/* load: hands the whole state to the core when the controller starts. */
#include "controller/store/row.h"

static enum hd_status read_devices(struct store_db *db, struct hd_arena *arena,
                                   struct hd_node_record *node)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_DEVICES, "t", node->uuid);
    enum hd_status st = HD_OK;

    while (store_db_next(db, s, &st)) {
        node->devices =
            store_row_grow(arena, node->devices, (size_t)node->device_count, sizeof *node->devices);
        st = node->devices
                 ? store_get(arena, s, 0, &hd_table_devices, &node->devices[node->device_count++])
                 : store_row_no_memory();
    }
    return st;
}

static enum hd_status load_nodes(struct store_db *db, const struct hd_store_loader *loader,
                                 struct hd_arena *arena)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_NODES, "");
    enum hd_status st = HD_OK;

    while (store_db_next(db, s, &st)) {
        struct hd_node_record node = {0};

        st = store_get(arena, s, 0, &hd_table_nodes, &node);
        if (!st)
            st = read_devices(db, arena, &node);
        if (!st)
            st = loader->node(loader->user, &node);
    }
    return st;
}

/* Loads the records of a statement by fields alone: of a table, or those of a job. */
#define LOAD(record, table)                                                          \
    static enum hd_status load_##record(struct store_db *db, sqlite3_stmt *s,        \
                                        const struct hd_store_loader *loader,        \
                                        struct hd_arena *arena)                      \
    {                                                                                \
        enum hd_status st = HD_OK;                                                   \
                                                                                     \
        while (store_db_next(db, s, &st)) {                                          \
            struct hd_##record##_record loaded = {0};                                \
                                                                                     \
            st = store_get(arena, s, 0, &hd_table_##table, &loaded);                 \
            if (!st)                                                                 \
                st = hd_arena_failed(arena) ? store_row_no_memory()                  \
                                            : loader->record(loader->user, &loaded); \
        }                                                                            \
        return st;                                                                   \
    }
LOAD(probe, probes)
LOAD(queue, queues)
LOAD(checkpoint, checkpoints)
LOAD(position, report_positions)
#undef LOAD

static enum hd_status load_requests(struct store_db *db, const struct hd_store_loader *loader)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_REQUESTS, "");
    enum hd_status st = HD_OK;

    while (store_db_next(db, s, &st)) {
        const char *state = (const char *)sqlite3_column_text(s, 3);

        st = loader->request(
            loader->user, (const char *)sqlite3_column_text(s, 0),
            (const char *)sqlite3_column_text(s, 4), (uint64_t)sqlite3_column_int64(s, 1),
            (uint64_t)sqlite3_column_int64(s, 2),
            (enum hd_job_state)hd_field_number(HD_FIELD_JOB_STATE, state ? state : ""));
    }
    return st;
}

static enum hd_status load_step(struct store_db *db, const struct hd_store_loader *loader,
                                struct hd_arena *arena, uint64_t job)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_NEWEST_STEP, "i", (int64_t)job);
    enum hd_status st = HD_OK;

    while (store_db_next(db, s, &st)) { /* at most one */
        struct hd_step_record step = {0};

        st = store_row_step(arena, s, job, &step);
        if (!st)
            st = loader->step(loader->user, &step);
    }
    return st;
}

static enum hd_status load_job(struct store_db *db, const struct hd_store_loader *loader,
                               struct hd_arena *arena, const struct hd_job_record *job)
{
    struct hd_attempt_record *attempts = NULL;
    size_t count = 0;
    int64_t sequence;
    enum hd_status st = store_row_number(db, STORE_GET_SEQUENCE, job->job, &sequence);

    if (!st)
        st = loader->job(loader->user, job, (uint64_t)sequence);
    if (!st)
        st = store_row_attempts(db, arena, job->job, &attempts, &count);
    for (size_t i = 0; !st && i < count; i++)
        st = loader->attempt(loader->user, &attempts[i]);
    if (!st)
        st = load_checkpoint(db,
                             store_db_bind(db, STORE_GET_CHECKPOINTS, "in", (int64_t)job->job, 1),
                             loader, arena);
    if (!st)
        st = load_position(db, store_db_bind(db, STORE_GET_POSITIONS, "i", (int64_t)job->job),
                           loader, arena);
    if (!st)
        st = load_step(db, loader, arena, job->job);
    return st;
}

static enum hd_status load_jobs(struct store_db *db, const struct hd_store_loader *loader,
                                struct hd_arena *arena)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_LIVE_JOBS, "");
    enum hd_status st = HD_OK;

    while (store_db_next(db, s, &st)) {
        struct hd_job_record job = {0};

        st = store_get(arena, s, 0, &hd_table_jobs, &job);
        if (!st)
            st = hd_arena_failed(arena) ? store_row_no_memory() : load_job(db, loader, arena, &job);
        hd_arena_done(arena); /* frees the records of each job before the next, because all jobs
                               * together may be large */
    }
    return st;
}

static enum hd_status load_shared_paths(struct store_db *db, const struct hd_store_loader *loader,
                                        struct hd_arena *arena)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_SHARED_PATHS, "");
    enum hd_status st = HD_OK;

    while (store_db_next(db, s, &st))
        loader->shared_checkpoint(loader->user, store_row_text(arena, s, 0));
    return st;
}

enum hd_status store_read_all(struct store_db *db, const struct hd_store_loader *loader)
{
    int64_t cluster_sequence = 0, last_job = 0;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = load_nodes(db, loader, &arena);
    if (!st)
        st = load_probe(db, store_db_bind(db, STORE_GET_PROBES, ""), loader, &arena);
    if (!st)
        st = load_queue(db, store_db_bind(db, STORE_GET_QUEUES, ""), loader, &arena);
    if (!st)
        st = store_load_credentials(db, loader, &arena);
    if (!st && loader->shared_checkpoint)
        st = load_shared_paths(db, loader, &arena);
    if (!st)
        st = load_requests(db, loader);
    if (!st)
        st = load_jobs(db, loader, &arena);
    if (!st)
        st = store_row_number(db, STORE_GET_SEQUENCE, 0, &cluster_sequence);
    if (!st) {
        sqlite3_stmt *s = store_db_bind(db, STORE_GET_LAST_JOB, "");

        while (store_db_next(db, s, &st))
            last_job = sqlite3_column_int64(s, 0);
    }
    if (!st)
        st = loader->end(loader->user, (uint64_t)last_job, (uint64_t)cluster_sequence);
    hd_arena_done(&arena);
    return st;
}
