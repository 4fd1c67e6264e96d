/* load: hands the whole state to the core when the controller starts. */
#include "controller/store/row.h"

static enum hd_status read_devices(struct store_db *db, struct hd_arena *arena,
                                   struct hd_node_record *node)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_DEVICES, "t", node->uuid);
    enum hd_status st = s ? HD_OK : HD_INTERNAL;
    bool row = true;

    while (!st) {
        st = store_db_step(db, s, &row);
        if (st || !row)
            break;
        node->devices =
            store_row_grow(arena, node->devices, (size_t)node->device_count, sizeof *node->devices);
        if (!node->devices)
            st = store_row_no_memory();
        else
            node->devices[node->device_count++] =
                (struct hd_device_record){.index = store_row_int(s, 0),
                                          .kind = (enum hd_device_kind)store_row_device_kind(s, 1),
                                          .name = store_row_text(arena, s, 2),
                                          .uuid = store_row_text(arena, s, 3),
                                          .memory_bytes = store_row_long(s, 4),
                                          .threads = store_row_int(s, 5),
                                          .precisions = (uint32_t)store_row_long(s, 6)};
    }
    return st;
}

static enum hd_status load_nodes(struct store_db *db, const struct hd_store_loader *loader,
                                 struct hd_arena *arena)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_NODES, "");
    enum hd_status st = s ? HD_OK : HD_INTERNAL;
    bool row = true;

    while (!st) {
        struct hd_node_record node;

        st = store_db_step(db, s, &row);
        if (st || !row)
            break;
        node = (struct hd_node_record){.uuid = store_row_text(arena, s, 0),
                                       .name = store_row_text(arena, s, 1),
                                       .boot_id = store_row_text(arena, s, 2),
                                       .build = store_row_text(arena, s, 3),
                                       .state = (enum hd_node_state)store_row_node_state(s, 4),
                                       .drain = store_row_int(s, 5),
                                       .drain_reason = store_row_text(arena, s, 6),
                                       .retired = store_row_int(s, 7),
                                       .seen_ms = store_row_long(s, 8),
                                       .drain_deadline_ms = store_row_long(s, 9),
                                       .saw_jobs_dir = store_row_int(s, 10)};
        st = read_devices(db, arena, &node);
        if (!st)
            st = loader->node(loader->user, &node);
    }
    (void)sqlite3_reset(s);
    return st;
}

static enum hd_status load_probes(struct store_db *db, const struct hd_store_loader *loader,
                                  struct hd_arena *arena)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_PROBES, "");
    enum hd_status st = s ? HD_OK : HD_INTERNAL;
    bool row = true;

    while (!st) {
        struct hd_probe_record probe;

        st = store_db_step(db, s, &row);
        if (st || !row)
            break;
        probe = (struct hd_probe_record){.node_uuid = store_row_text(arena, s, 0),
                                         .ended_ms = store_row_long(s, 1),
                                         .problem = store_row_text(arena, s, 2),
                                         .measured_on = store_row_text(arena, s, 3),
                                         .measured_ms = store_row_long(s, 4),
                                         .calibration = sqlite3_column_blob(s, 5),
                                         .calibration_bytes = (size_t)sqlite3_column_bytes(s, 5)};
        st = hd_arena_failed(arena) ? store_row_no_memory() : loader->probe(loader->user, &probe);
    }
    (void)sqlite3_reset(s);
    return st;
}

static enum hd_status load_queues(struct store_db *db, const struct hd_store_loader *loader,
                                  struct hd_arena *arena)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_QUEUES, "");
    enum hd_status st = s ? HD_OK : HD_INTERNAL;
    bool row = true;

    while (!st) {
        struct hd_queue_record queue;

        st = store_db_step(db, s, &row);
        if (st || !row)
            break;
        queue = (struct hd_queue_record){.name = store_row_text(arena, s, 0),
                                         .devices_max = store_row_int(s, 1),
                                         .user_devices_max = store_row_int(s, 2),
                                         .weight = store_row_int(s, 3),
                                         .closed = store_row_int(s, 4) != 0};
        st = hd_arena_failed(arena) ? store_row_no_memory() : loader->queue(loader->user, &queue);
    }
    (void)sqlite3_reset(s);
    return st;
}

static enum hd_status load_requests(struct store_db *db, const struct hd_store_loader *loader)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_REQUESTS, "");
    enum hd_status st = s ? HD_OK : HD_INTERNAL;
    bool row = true;

    while (!st) {
        st = store_db_step(db, s, &row);
        if (st || !row)
            break;
        st = loader->request(loader->user, (const char *)sqlite3_column_text(s, 0),
                             (const char *)sqlite3_column_text(s, 4),
                             (uint64_t)store_row_long(s, 1), (uint64_t)store_row_long(s, 2),
                             (enum hd_job_state)store_row_job_state(s, 3));
    }
    (void)sqlite3_reset(s);
    return st;
}

static enum hd_status load_checkpoints(struct store_db *db, const struct hd_store_loader *loader,
                                       struct hd_arena *arena, uint64_t job)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_CHECKPOINTS, "in", (int64_t)job, 1);
    enum hd_status st = s ? HD_OK : HD_INTERNAL;
    bool row = true;

    while (!st) {
        struct hd_checkpoint_record checkpoint;

        st = store_db_step(db, s, &row);
        if (st || !row)
            break;
        checkpoint = store_row_checkpoint(arena, s, job);
        st = loader->checkpoint(loader->user, &checkpoint);
    }
    (void)sqlite3_reset(s);
    return st;
}

static enum hd_status load_positions(struct store_db *db, const struct hd_store_loader *loader,
                                     uint64_t job)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_POSITIONS, "i", (int64_t)job);
    enum hd_status st = s ? HD_OK : HD_INTERNAL;
    bool row = true;

    while (!st) {
        struct hd_position_record position;

        st = store_db_step(db, s, &row);
        if (st || !row)
            break;
        position = store_row_position(s, job);
        st = loader->position(loader->user, &position);
    }
    (void)sqlite3_reset(s);
    return st;
}

static enum hd_status load_step(struct store_db *db, const struct hd_store_loader *loader,
                                struct hd_arena *arena, uint64_t job)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_NEWEST_STEP, "i", (int64_t)job);
    bool row = false;
    enum hd_status st = s ? store_db_step(db, s, &row) : HD_INTERNAL;
    struct hd_step_record step = {0};

    if (st || !row)
        return st;
    st = store_row_step(arena, s, job, &step);
    (void)sqlite3_reset(s);
    return st ? st : loader->step(loader->user, &step);
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
        st = load_checkpoints(db, loader, arena, job->job);
    if (!st)
        st = load_positions(db, loader, job->job);
    if (!st)
        st = load_step(db, loader, arena, job->job);
    return st;
}

static enum hd_status load_jobs(struct store_db *db, const struct hd_store_loader *loader,
                                struct hd_arena *arena)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_LIVE_JOBS, "");
    enum hd_status st = s ? HD_OK : HD_INTERNAL;
    bool row = true;

    while (!st) {
        struct hd_job_record job;

        st = store_db_step(db, s, &row);
        if (st || !row)
            break;
        job = store_row_job(arena, s, true);
        st = hd_arena_failed(arena) ? store_row_no_memory() : load_job(db, loader, arena, &job);
        hd_arena_done(arena); /* frees the records of each job before the next, because all jobs
                               * together may be large */
    }
    (void)sqlite3_reset(s);
    return st;
}

static enum hd_status load_shared_paths(struct store_db *db, const struct hd_store_loader *loader,
                                        struct hd_arena *arena)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_SHARED_PATHS, "");
    enum hd_status st = s ? HD_OK : HD_INTERNAL;
    bool row = true;

    while (!st) {
        st = store_db_step(db, s, &row);
        if (st || !row)
            break;
        loader->shared_checkpoint(loader->user, store_row_text(arena, s, 0));
    }
    (void)sqlite3_reset(s);
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
        st = load_probes(db, loader, &arena);
    if (!st)
        st = load_queues(db, loader, &arena);
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
        bool row = false;
        sqlite3_stmt *s = store_db_bind(db, STORE_GET_LAST_JOB, "");

        st = s ? store_db_step(db, s, &row) : HD_INTERNAL;
        if (!st && row) {
            last_job = store_row_long(s, 0);
            (void)sqlite3_reset(s);
        }
    }
    if (!st)
        st = loader->end(loader->user, (uint64_t)last_job, (uint64_t)cluster_sequence);
    hd_arena_done(&arena);
    return st;
}
