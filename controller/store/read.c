/* read: converts rows to records, for queries and when the controller starts. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "controller/store/store_internal.h"

/* ---- columns ----------------------------------------------------------------------------------*/

static const char *text_at(struct hd_arena *arena, sqlite3_stmt *s, int column)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    const char *copy = text && *text ? hd_arena_strdup(arena, text) : "";

    return copy ? copy : "";
}

static double real_at(sqlite3_stmt *s, int column)
{
    return sqlite3_column_type(s, column) == SQLITE_NULL ? NAN : sqlite3_column_double(s, column);
}

static int32_t int_at(sqlite3_stmt *s, int column)
{
    return sqlite3_column_int(s, column);
}

static int64_t long_at(sqlite3_stmt *s, int column)
{
    return sqlite3_column_int64(s, column);
}

/* Returns the enum number of a stored string by the given list; 0: it is not in the list. */
#define X(name, number, text)     \
    if (strcmp(found, text) == 0) \
        return number;
#define NUMBER_FUNCTION(function, LIST)                                   \
    static int function(sqlite3_stmt *s, int column)                      \
    {                                                                     \
        const char *found = (const char *)sqlite3_column_text(s, column); \
                                                                          \
        if (!found)                                                       \
            return 0;                                                     \
        LIST(X)                                                           \
        return 0;                                                         \
    }
NUMBER_FUNCTION(job_state_at, HD_JOB_STATE_LIST)
NUMBER_FUNCTION(attempt_state_at, HD_ATTEMPT_STATE_LIST)
NUMBER_FUNCTION(end_cause_at, HD_END_CAUSE_LIST)
NUMBER_FUNCTION(node_state_at, HD_NODE_STATE_LIST)
NUMBER_FUNCTION(device_kind_at, HD_DEVICE_KIND_LIST)
NUMBER_FUNCTION(checkpoint_state_at, HD_CHECKPOINT_STATE_LIST)
#undef NUMBER_FUNCTION
#undef X

/* Returns the array, grown in the arena to hold at least one more item; NULL: out of memory. */
static void *grow(struct hd_arena *arena, void *array, size_t count, size_t item_bytes)
{
    void *bigger;

    if (count && (count & (count - 1)))
        return array; /* the array's capacity is the next power of two */
    bigger = hd_arena_array(arena, count ? count * 2 : 1, item_bytes);
    if (bigger && count)
        memcpy(bigger, array, count * item_bytes);
    return bigger;
}

static enum hd_status no_memory(void)
{
    return hd_err(HD_NO_MEMORY, "out of memory reading the state database");
}

/* ---- rows -------------------------------------------------------------------------------------*/

/* Returns the job in a row of STORE_JOB_COLUMNS; with_spec: the column `spec` follows them. */
static struct hd_job_record job_row(struct hd_arena *arena, sqlite3_stmt *s, bool with_spec)
{
    struct hd_job_record job = {
        .job = (uint64_t)long_at(s, 0),
        .request_id = text_at(arena, s, 1),
        .owner = text_at(arena, s, 2),
        .name = text_at(arena, s, 3),
        .state = (enum hd_job_state)job_state_at(s, 4),
        .reason = text_at(arena, s, 5),
        .cancel = int_at(s, 6),
        .cancel_now = int_at(s, 7),
        .attempt_count = int_at(s, 8),
        .steps = long_at(s, 9),
        .devices = int_at(s, 10),
        .submitted_ms = long_at(s, 11),
        .started_ms = long_at(s, 12),
        .ended_ms = long_at(s, 13),
        .resumed_attempt = int_at(s, 14),
        .removal = (enum hd_removal)int_at(s, 15),
        .request_hash = (uint64_t)long_at(s, 16),
        .queue = text_at(arena, s, 17),
        .priority = int_at(s, 18),
        .held = int_at(s, 19),
        .planned_start_ms = long_at(s, 20),
    };

    if (with_spec) {
        size_t count = (size_t)sqlite3_column_bytes(s, 21);
        void *spec = hd_arena_alloc(arena, count + 1);

        if (spec && count)
            memcpy(spec, sqlite3_column_blob(s, 21), count);
        job.spec = spec;
        job.spec_bytes = spec ? count : 0;
    }
    return job;
}

static struct hd_checkpoint_record checkpoint_row(struct hd_arena *arena, sqlite3_stmt *s,
                                                  uint64_t job)
{
    return (struct hd_checkpoint_record){
        .job = job,
        .attempt = int_at(s, 0),
        .step = long_at(s, 1),
        .path = text_at(arena, s, 2),
        .hash = text_at(arena, s, 3),
        .node_uuid = text_at(arena, s, 4),
        .shared = int_at(s, 5),
        .time_ms = long_at(s, 6),
        .size_bytes = long_at(s, 7),
        .state = (enum hd_checkpoint_state)checkpoint_state_at(s, 8),
        .sequence = (uint64_t)long_at(s, 9),
        .proven = int_at(s, 10),
        .val_loss = real_at(s, 11),
        .missing = int_at(s, 12),
    };
}

static struct hd_position_record position_row(sqlite3_stmt *s, uint64_t job)
{
    return (struct hd_position_record){
        .job = job, .attempt = int_at(s, 0), .rank = int_at(s, 1), .seq = (uint64_t)long_at(s, 2)};
}

/* Sets *ret_step to the step in a row. HD_CORRUPT: its metrics cannot be unpacked. */
static enum hd_status step_row(struct hd_arena *arena, sqlite3_stmt *s, uint64_t job,
                               struct hd_step_record *ret_step)
{
    struct hd_step_record step = {
        .job = job,
        .sequence = (uint64_t)long_at(s, 0),
        .attempt = int_at(s, 1),
        .step = long_at(s, 2),
        .time_ms = long_at(s, 3),
    };
    const size_t count = (size_t)sqlite3_column_bytes(s, 5) / sizeof *step.expert_load;
    int64_t *load = count ? hd_arena_array(arena, count, sizeof *load) : NULL;

    if (hd_metrics_unpack(sqlite3_column_blob(s, 4), (size_t)sqlite3_column_bytes(s, 4),
                          &step.metrics))
        return hd_err_prefix(HD_CORRUPT, "state.db: step %" PRId64 " of attempt %d of job %" PRIu64,
                             step.step, step.attempt, job);
    if (load) {
        memcpy(load, sqlite3_column_blob(s, 5), count * sizeof *load);
        step.expert_load = load;
        step.expert_count = count;
    }
    *ret_step = step;
    return HD_OK;
}

/* Reads an attempt, without its ranks, from a row. HD_CORRUPT: this build cannot read the
 * layout. */
static enum hd_status attempt_row(struct hd_arena *arena, sqlite3_stmt *s, uint64_t job,
                                  struct hd_attempt_record *ret_attempt)
{
    const char *layout = (const char *)sqlite3_column_text(s, 2);

    *ret_attempt = (struct hd_attempt_record){
        .job = job,
        .attempt = int_at(s, 0),
        .state = (enum hd_attempt_state)attempt_state_at(s, 1),
        .base_attempt = int_at(s, 3),
        .base_step = long_at(s, 4),
        .base_path = text_at(arena, s, 5),
        .base_hash = text_at(arena, s, 6),
        .created_ms = long_at(s, 7),
        .running_ms = long_at(s, 8),
        .ended_ms = long_at(s, 9),
        .end = {.cause = (enum hd_end_cause)end_cause_at(s, 10),
                .rank = int_at(s, 11),
                .node = text_at(arena, s, 12),
                .message = text_at(arena, s, 13),
                .exit_code = int_at(s, 14),
                .signal = int_at(s, 15),
                .bad_input = int_at(s, 16)},
        .stop_cause = (enum hd_end_cause)end_cause_at(s, 17),
        .stop_job = (uint64_t)long_at(s, 18),
        .plan = {.step_s = sqlite3_column_double(s, 19), .memory_bytes = long_at(s, 20)},
        .borrows = int_at(s, 21) != 0,
        .run_as = text_at(arena, s, 22),
    };
    if (hd_layout_read(layout ? layout : "", &ret_attempt->plan.layout))
        return hd_err_prefix(HD_CORRUPT, "state.db: the layout of attempt %d of job %" PRIu64,
                             ret_attempt->attempt, job);
    return HD_OK;
}

static enum hd_status read_allocations(struct store_db *db, struct hd_arena *arena,
                                       struct hd_attempt_record *attempt)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_ALLOCATIONS, "in", (int64_t)attempt->job,
                                    (int)attempt->attempt);
    struct hd_plan_record *plan = &attempt->plan;
    enum hd_status st = s ? HD_OK : HD_INTERNAL;
    bool row = true;

    while (!st) {
        st = store_db_step(db, s, &row);
        if (st || !row)
            break;
        plan->ranks = grow(arena, plan->ranks, (size_t)plan->rank_count, sizeof *plan->ranks);
        if (!plan->ranks)
            st = no_memory();
        else
            plan->ranks[plan->rank_count++] =
                (struct hd_rank_location){.node_uuid = text_at(arena, s, 0),
                                          .node_name = text_at(arena, s, 1),
                                          .device = int_at(s, 2)};
    }
    return st;
}

static enum hd_status read_attempts(struct store_db *db, struct hd_arena *arena, uint64_t job,
                                    struct hd_attempt_record **ret_attempts, size_t *ret_count)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_ATTEMPTS, "i", (int64_t)job);
    struct hd_attempt_record *attempts = NULL;
    enum hd_status st = s ? HD_OK : HD_INTERNAL;
    size_t count = 0;
    bool row = true;

    while (!st) {
        st = store_db_step(db, s, &row);
        if (st || !row)
            break;
        attempts = grow(arena, attempts, count, sizeof *attempts);
        st = attempts ? attempt_row(arena, s, job, &attempts[count++]) : no_memory();
        if (st)
            (void)sqlite3_reset(s);
    }
    for (size_t i = 0; !st && i < count; i++)
        st = read_allocations(db, arena, &attempts[i]);
    *ret_attempts = attempts;
    *ret_count = count;
    return st;
}

/* Sets *ret_number to the single number that a statement about a job returns; 0: no row, or
 * NULL. */
static enum hd_status read_number(struct store_db *db, enum store_statement statement, uint64_t job,
                                  int64_t *ret_number)
{
    sqlite3_stmt *s = store_db_bind(db, statement, "i", (int64_t)job);
    bool row = false;
    enum hd_status st = s ? store_db_step(db, s, &row) : HD_INTERNAL;

    *ret_number = !st && row ? long_at(s, 0) : 0;
    if (!st && row)
        (void)sqlite3_reset(s);
    return st;
}

/* ---- queries ----------------------------------------------------------------------------------*/

/* Reads the newest step, checkpoint and sequence number of a job, which change too often to be in
 * its row. */
static enum hd_status fill_job_row(struct store_db *db, struct hd_arena *arena,
                                   struct hd_job_row *row)
{
    const uint64_t job = row->record.job;
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_NEWEST_STEP, "i", (int64_t)job);
    enum hd_status st = s ? store_db_step(db, s, &row->has_step) : HD_INTERNAL;
    int64_t sequence = 0;

    if (!st && row->has_step) {
        st = step_row(arena, s, job, &row->step);
        (void)sqlite3_reset(s);
    }
    if (!st)
        st = read_number(db, STORE_GET_NEWEST_CHECKPOINT, job, &row->checkpoint_step);
    if (!st)
        st = read_number(db, STORE_GET_SEQUENCE, job, &sequence);
    row->sequence = (uint64_t)sequence;
    return st;
}

static int newest_first(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return a < b ? 1 : -(a > b);
}

/* Appends the job numbers that a bound FIND_JOBS statement returns. */
static enum hd_status add_numbers(struct store_db *db, sqlite3_stmt *s, uint64_t *numbers,
                                  size_t *count)
{
    enum hd_status st = s ? HD_OK : HD_INTERNAL;
    bool row = true;

    while (!st) {
        st = store_db_step(db, s, &row);
        if (st || !row)
            break;
        numbers[(*count)++] = (uint64_t)long_at(s, 0);
    }
    return st;
}

/* Finds the numbers of the jobs that a query lists, newest first; one more than the limit if there
 * are more. An index is sorted within one owner and one state only, so the newest of each state are
 * read and merged: the cost depends on the limit, not on the number of jobs. `numbers` must hold
 * limit + 1 items per state. */
static enum hd_status find_jobs(struct store_db *db, const struct hd_query *query,
                                uint64_t *numbers, size_t *ret_count)
{
    const int64_t before = query->before_job ? (int64_t)query->before_job : INT64_MAX;
    const int64_t most = (int64_t)query->limit + 1;
    const bool owned = query->owner && *query->owner;
    enum hd_status st = HD_OK;
    size_t count = 0;

    if (!owned && !query->states)
        st = add_numbers(db, store_db_bind(db, STORE_FIND_JOBS, "ii", before, most), numbers,
                         &count);
    for (int state = HD_JOB_STATE_QUEUED;
         !st && (owned || query->states) && state <= HD_JOB_STATE_CANCELLED; state++) {
        const char *name = hd_job_state_name(state);

        if (query->states && !(query->states & (1u << state)))
            continue;
        st = add_numbers(
            db,
            owned ? store_db_bind(db, STORE_FIND_JOBS_BY_OWNER, "ttii", query->owner, name, before,
                                  most)
                  : store_db_bind(db, STORE_FIND_JOBS_BY_STATE, "tii", name, before, most),
            numbers, &count);
    }
    qsort(numbers, count, sizeof *numbers, newest_first);
    *ret_count = count < (size_t)most ? count : (size_t)most;
    return st;
}

static enum hd_status read_job(struct store_db *db, struct hd_arena *arena, uint64_t job,
                               bool with_spec, struct hd_job_row *ret_row)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_JOB, "i", (int64_t)job);
    bool row = false;
    enum hd_status st = s ? store_db_step(db, s, &row) : HD_INTERNAL;

    if (st)
        return st;
    if (!row)
        return hd_err(HD_NOT_FOUND, "there is no job %" PRIu64, job);
    *ret_row = (struct hd_job_row){.record = job_row(arena, s, with_spec)};
    (void)sqlite3_reset(s);
    return fill_job_row(db, arena, ret_row);
}

static enum hd_status query_job(struct store_db *db, struct hd_query *query)
{
    enum hd_status st;

    query->jobs = hd_arena_alloc(&query->arena, sizeof *query->jobs);
    if (!query->jobs)
        return no_memory();
    st = read_job(db, &query->arena, query->job, true, &query->jobs[0]);
    if (st)
        return st;
    query->job_count = 1;
    return read_attempts(db, &query->arena, query->job, &query->attempts, &query->attempt_count);
}

static enum hd_status query_jobs(struct store_db *db, struct hd_query *query)
{
    const size_t capacity = ((size_t)query->limit + 1) * HD_JOB_STATE_CANCELLED;
    uint64_t *numbers = hd_arena_array(&query->arena, capacity, sizeof *numbers);
    enum hd_status st;
    size_t count = 0;

    query->jobs = hd_arena_array(&query->arena, (size_t)query->limit + 1, sizeof *query->jobs);
    if (!numbers || !query->jobs)
        return no_memory();
    st = find_jobs(db, query, numbers, &count);
    query->more = count > (size_t)query->limit;
    for (size_t i = 0; !st && i < count - query->more; i++) {
        st = read_job(db, &query->arena, numbers[i], false, &query->jobs[i]);
        query->job_count += !st;
    }
    return st;
}

static enum hd_status expect_job(struct store_db *db, uint64_t job)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_HAS_JOB, "i", (int64_t)job);
    bool row = false;
    enum hd_status st = s ? store_db_step(db, s, &row) : HD_INTERNAL;

    if (row)
        (void)sqlite3_reset(s);
    if (!st && !row)
        st = hd_err(HD_NOT_FOUND, "there is no job %" PRIu64, job);
    return st;
}

/* The current row of one of the four tables that hold a job's history. */
struct cursor {
    enum hd_batch_op_kind kind;
    enum store_statement statement;
    int sequence_column;
    sqlite3_stmt *s;
    bool row;
};

static enum hd_status entry_of(struct hd_arena *arena, const struct cursor *c, uint64_t job,
                               struct hd_history_entry *ret_entry)
{
    enum hd_status st = HD_OK;
    struct hd_history_entry entry = {.kind = c->kind,
                                     .sequence = (uint64_t)long_at(c->s, c->sequence_column)};

    switch (c->kind) {
    case HD_OP_EVENT:
        entry.event = (struct hd_event_record){.job = job,
                                               .sequence = entry.sequence,
                                               .time_ms = long_at(c->s, 1),
                                               .attempt = int_at(c->s, 2),
                                               .rank = int_at(c->s, 3),
                                               .kind = text_at(arena, c->s, 4),
                                               .node = text_at(arena, c->s, 5),
                                               .message = text_at(arena, c->s, 6)};
        break;
    case HD_OP_STEP:
        st = step_row(arena, c->s, job, &entry.step);
        break;
    case HD_OP_VALIDATION:
        entry.validation = (struct hd_validation_record){.job = job,
                                                         .sequence = entry.sequence,
                                                         .attempt = int_at(c->s, 1),
                                                         .step = long_at(c->s, 2),
                                                         .time_ms = long_at(c->s, 3),
                                                         .tokens = long_at(c->s, 4),
                                                         .loss = real_at(c->s, 5)};
        break;
    default:
        entry.checkpoint = checkpoint_row(arena, c->s, job);
        break;
    }
    *ret_entry = entry;
    return st;
}

static struct cursor *earliest(struct cursor *cursors, size_t count)
{
    struct cursor *best = NULL;

    for (size_t i = 0; i < count; i++) {
        if (cursors[i].row && (!best || long_at(cursors[i].s, cursors[i].sequence_column) <
                                            long_at(best->s, best->sequence_column)))
            best = &cursors[i];
    }
    return best;
}

/* Merges the tables of a history by sequence number, up to the query's limit. */
static enum hd_status query_entries(struct store_db *db, struct hd_query *query,
                                    struct cursor *cursors, size_t count)
{
    enum hd_status st = HD_OK;
    struct cursor *next;

    for (size_t i = 0; !st && i < count; i++) {
        cursors[i].s = store_db_bind(db, cursors[i].statement, "iii", (int64_t)query->job,
                                     (int64_t)query->after, (int64_t)query->limit + 1);
        st = cursors[i].s ? store_db_step(db, cursors[i].s, &cursors[i].row) : HD_INTERNAL;
    }
    while (!st && (next = earliest(cursors, count)) != NULL) {
        if (query->entry_count == (size_t)query->limit) {
            query->more = true;
            break;
        }
        query->entries =
            grow(&query->arena, query->entries, query->entry_count, sizeof *query->entries);
        if (!query->entries) {
            st = no_memory();
            break;
        }
        st = entry_of(&query->arena, next, query->job, &query->entries[query->entry_count]);
        if (!st) {
            query->entry_count++;
            st = store_db_step(db, next->s, &next->row);
        }
    }
    for (size_t i = 0; i < count; i++)
        (void)sqlite3_reset(cursors[i].s);
    return st;
}

static enum hd_status query_history(struct store_db *db, struct hd_query *query)
{
    struct cursor cursors[] = {
        {.kind = HD_OP_EVENT, .statement = STORE_GET_EVENTS_AFTER},
        {.kind = HD_OP_STEP, .statement = STORE_GET_STEPS_AFTER},
        {.kind = HD_OP_VALIDATION, .statement = STORE_GET_VALIDATIONS_AFTER},
        {.kind = HD_OP_CHECKPOINT, .statement = STORE_GET_CHECKPOINTS_AFTER, .sequence_column = 9},
    };

    if (query->job || query->kind == HD_QUERY_HISTORY) { /* job 0 of the other kinds: the cluster's
                                                          * own history */
        enum hd_status st = expect_job(db, query->job);

        if (st)
            return st;
    }
    return query_entries(db, query, cursors, query->kind == HD_QUERY_EVENTS ? 1 : 4);
}

static enum hd_status query_last_events(struct store_db *db, struct hd_query *query)
{
    struct cursor cursor = {.kind = HD_OP_EVENT, .statement = STORE_GET_LAST_EVENTS};
    enum hd_status st = query->job ? expect_job(db, query->job) : HD_OK;

    query->after = 0;
    return st ? st : query_entries(db, query, &cursor, 1);
}

static enum hd_status query_steps(struct store_db *db, struct hd_query *query)
{
    struct cursor cursors[] = {
        {.kind = HD_OP_STEP, .statement = STORE_GET_STEPS_AFTER},
        {.kind = HD_OP_VALIDATION, .statement = STORE_GET_VALIDATIONS_AFTER},
    };
    enum hd_status st = expect_job(db, query->job);

    return st ? st : query_entries(db, query, cursors, 2);
}

static enum hd_status query_checkpoints(struct store_db *db, struct hd_query *query)
{
    enum hd_status st = expect_job(db, query->job);
    sqlite3_stmt *s;
    bool row = true;

    if (st)
        return st;
    s = store_db_bind(db, STORE_GET_CHECKPOINTS, "in", (int64_t)query->job, 0);
    st = s ? HD_OK : HD_INTERNAL;
    while (!st) {
        st = store_db_step(db, s, &row);
        if (st || !row)
            break;
        query->entries =
            grow(&query->arena, query->entries, query->entry_count, sizeof *query->entries);
        if (!query->entries)
            st = no_memory();
        else
            query->entries[query->entry_count++] = (struct hd_history_entry){
                .kind = HD_OP_CHECKPOINT,
                .checkpoint = checkpoint_row(&query->arena, s, query->job)};
    }
    return st;
}

static enum hd_status query_records(struct store_db *db, struct hd_query *query)
{
    enum hd_status st = query_job(db, query);
    sqlite3_stmt *s;
    bool row = true;

    if (!st)
        st = query_checkpoints(db, query);
    if (st)
        return st;
    s = store_db_bind(db, STORE_GET_POSITIONS, "i", (int64_t)query->job);
    st = s ? HD_OK : HD_INTERNAL;
    while (!st) {
        st = store_db_step(db, s, &row);
        if (st || !row)
            break;
        query->positions =
            grow(&query->arena, query->positions, query->position_count, sizeof *query->positions);
        if (!query->positions)
            st = no_memory();
        else
            query->positions[query->position_count++] = position_row(s, query->job);
    }
    return st;
}

static enum hd_status query_users(struct store_db *db, struct hd_query *query)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_FIND_USERS, "ibi", (int64_t)query->job, query->text,
                                    strlen(query->text), (int64_t)query->limit + 1);
    enum hd_status st = s ? HD_OK : HD_INTERNAL;
    bool row = true;

    query->jobs = hd_arena_array(&query->arena, (size_t)query->limit + 1, sizeof *query->jobs);
    if (!query->jobs)
        return no_memory();
    while (!st) {
        st = store_db_step(db, s, &row);
        if (st || !row)
            break;
        if (query->job_count < (size_t)query->limit)
            query->jobs[query->job_count++].record = job_row(&query->arena, s, false);
        else
            query->more = true;
    }
    return st;
}

enum hd_status store_read_query(struct store_db *db, struct hd_query *query)
{
    enum hd_status st = query->only_of && query->job ? store_check_owner(db, query) : HD_OK;

    if (st)
        return st;
    switch (query->kind) {
    case HD_QUERY_JOB:
        st = query_job(db, query);
        break;
    case HD_QUERY_JOBS:
        st = query_jobs(db, query);
        break;
    case HD_QUERY_HISTORY:
    case HD_QUERY_EVENTS:
        st = query_history(db, query);
        break;
    case HD_QUERY_LAST_EVENTS:
        st = query_last_events(db, query);
        break;
    case HD_QUERY_STEPS:
        st = query_steps(db, query);
        break;
    case HD_QUERY_CHECKPOINTS:
        st = query_checkpoints(db, query);
        break;
    case HD_QUERY_RECORDS:
        st = query_records(db, query);
        break;
    case HD_QUERY_USERS:
        st = query_users(db, query);
        break;
    case HD_QUERY_AUDIT:
        st = store_query_audit(db, query);
        break;
    case HD_QUERY_BYTES:
        st = store_query_bytes(db, query);
        break;
    case HD_QUERY_CREDENTIALS:
        st = store_query_credentials(db, query);
        break;
    }
    if (!st && hd_arena_failed(&query->arena))
        st = no_memory();
    return st;
}

/* ---- loading ----------------------------------------------------------------------------------*/

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
            grow(arena, node->devices, (size_t)node->device_count, sizeof *node->devices);
        if (!node->devices)
            st = no_memory();
        else
            node->devices[node->device_count++] =
                (struct hd_device_record){.index = int_at(s, 0),
                                          .kind = (enum hd_device_kind)device_kind_at(s, 1),
                                          .name = text_at(arena, s, 2),
                                          .uuid = text_at(arena, s, 3),
                                          .memory_bytes = long_at(s, 4),
                                          .threads = int_at(s, 5),
                                          .precisions = (uint32_t)long_at(s, 6)};
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
        node = (struct hd_node_record){.uuid = text_at(arena, s, 0),
                                       .name = text_at(arena, s, 1),
                                       .boot_id = text_at(arena, s, 2),
                                       .build = text_at(arena, s, 3),
                                       .state = (enum hd_node_state)node_state_at(s, 4),
                                       .drain = int_at(s, 5),
                                       .drain_reason = text_at(arena, s, 6),
                                       .retired = int_at(s, 7),
                                       .seen_ms = long_at(s, 8),
                                       .drain_deadline_ms = long_at(s, 9),
                                       .saw_jobs_dir = int_at(s, 10)};
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
        probe = (struct hd_probe_record){.node_uuid = text_at(arena, s, 0),
                                         .ended_ms = long_at(s, 1),
                                         .problem = text_at(arena, s, 2),
                                         .measured_on = text_at(arena, s, 3),
                                         .measured_ms = long_at(s, 4),
                                         .calibration = sqlite3_column_blob(s, 5),
                                         .calibration_bytes = (size_t)sqlite3_column_bytes(s, 5)};
        st = hd_arena_failed(arena) ? no_memory() : loader->probe(loader->user, &probe);
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
        queue = (struct hd_queue_record){.name = text_at(arena, s, 0),
                                         .devices_max = int_at(s, 1),
                                         .user_devices_max = int_at(s, 2),
                                         .weight = int_at(s, 3),
                                         .closed = int_at(s, 4) != 0};
        st = hd_arena_failed(arena) ? no_memory() : loader->queue(loader->user, &queue);
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
                             (const char *)sqlite3_column_text(s, 4), (uint64_t)long_at(s, 1),
                             (uint64_t)long_at(s, 2), (enum hd_job_state)job_state_at(s, 3));
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
        checkpoint = checkpoint_row(arena, s, job);
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
        position = position_row(s, job);
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
    st = step_row(arena, s, job, &step);
    (void)sqlite3_reset(s);
    return st ? st : loader->step(loader->user, &step);
}

static enum hd_status load_job(struct store_db *db, const struct hd_store_loader *loader,
                               struct hd_arena *arena, const struct hd_job_record *job)
{
    struct hd_attempt_record *attempts = NULL;
    size_t count = 0;
    int64_t sequence;
    enum hd_status st = read_number(db, STORE_GET_SEQUENCE, job->job, &sequence);

    if (!st)
        st = loader->job(loader->user, job, (uint64_t)sequence);
    if (!st)
        st = read_attempts(db, arena, job->job, &attempts, &count);
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
        job = job_row(arena, s, true);
        st = hd_arena_failed(arena) ? no_memory() : load_job(db, loader, arena, &job);
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
        loader->shared_checkpoint(loader->user, text_at(arena, s, 0));
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
        st = read_number(db, STORE_GET_SEQUENCE, 0, &cluster_sequence);
    if (!st) {
        bool row = false;
        sqlite3_stmt *s = store_db_bind(db, STORE_GET_LAST_JOB, "");

        st = s ? store_db_step(db, s, &row) : HD_INTERNAL;
        if (!st && row) {
            last_job = long_at(s, 0);
            (void)sqlite3_reset(s);
        }
    }
    if (!st)
        st = loader->end(loader->user, (uint64_t)last_job, (uint64_t)cluster_sequence);
    hd_arena_done(&arena);
    return st;
}
