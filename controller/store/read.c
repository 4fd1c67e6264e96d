/* read: answers queries from the database. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/store/row.h"

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
        st = store_row_step(arena, s, job, &row->step);
        (void)sqlite3_reset(s);
    }
    if (!st)
        st = store_row_number(db, STORE_GET_NEWEST_CHECKPOINT, job, &row->checkpoint_step);
    if (!st)
        st = store_row_number(db, STORE_GET_SEQUENCE, job, &sequence);
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
    enum hd_status st = HD_OK;

    while (store_db_next(db, s, &st))
        numbers[(*count)++] = (uint64_t)sqlite3_column_int64(s, 0);
    return st;
}

/* Finds jobs by name, newest first. */
static enum hd_status find_jobs_by_name(struct store_db *db, const struct hd_query *query,
                                        uint64_t *numbers, size_t *ret_count)
{
    const int64_t before = query->before_job ? (int64_t)query->before_job : INT64_MAX;
    char states[128] = "";

    for (int state = HD_JOB_STATE_QUEUED; state <= HD_JOB_STATE_CANCELLED; state++) {
        const size_t len = strlen(states);

        if (query->states & (1u << state))
            (void)snprintf(states + len, sizeof states - len, "%s%s,", len ? "" : ",",
                           hd_job_state_name(state));
    }
    if (query->states && !*states)
        return HD_OK; /* a set that matches no job */
    return add_numbers(db,
                       store_db_bind(db, STORE_FIND_JOBS_BY_NAME, "ittti", before, query->name,
                                     query->owner ? query->owner : "", states,
                                     (int64_t)query->limit + 1),
                       numbers, ret_count);
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
    *ret_row = (struct hd_job_row){0};
    st = store_row_job(arena, s, with_spec, &ret_row->record);
    (void)sqlite3_reset(s);
    return st ? st : fill_job_row(db, arena, ret_row);
}

static enum hd_status query_job(struct store_db *db, struct hd_query *query)
{
    enum hd_status st;

    query->jobs = hd_arena_alloc(&query->arena, sizeof *query->jobs);
    if (!query->jobs)
        return store_row_no_memory();
    st = read_job(db, &query->arena, query->job, true, &query->jobs[0]);
    if (st)
        return st;
    query->job_count = 1;
    return store_row_attempts(db, &query->arena, query->job, &query->attempts,
                              &query->attempt_count);
}

static enum hd_status query_jobs(struct store_db *db, struct hd_query *query)
{
    const size_t capacity = ((size_t)query->limit + 1) * HD_JOB_STATE_CANCELLED;
    uint64_t *numbers = hd_arena_array(&query->arena, capacity, sizeof *numbers);
    enum hd_status st;
    size_t count = 0;

    query->jobs = hd_arena_array(&query->arena, (size_t)query->limit + 1, sizeof *query->jobs);
    if (!numbers || !query->jobs)
        return store_row_no_memory();
    st = query->name ? find_jobs_by_name(db, query, numbers, &count)
                     : find_jobs(db, query, numbers, &count);
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

/* The current row of one of the four tables that hold a job's history; column 0 is its sequence
 * number. */
struct cursor {
    enum hd_batch_op_kind kind;
    enum store_statement statement;
    sqlite3_stmt *s;
    bool row;
};

static enum hd_status entry_of(struct hd_arena *arena, const struct cursor *c, uint64_t job,
                               struct hd_history_entry *ret_entry)
{
    struct hd_history_entry entry = {.kind = c->kind,
                                     .sequence = (uint64_t)sqlite3_column_int64(c->s, 0)};
    enum hd_status st;

    switch (c->kind) {
    case HD_OP_EVENT:
        st = store_get(arena, c->s, 1, &hd_table_events, &entry.event);
        break;
    case HD_OP_STEP:
        st = store_row_step(arena, c->s, job, &entry.step);
        break;
    case HD_OP_VALIDATION:
        st = store_get(arena, c->s, 1, &hd_table_validations, &entry.validation);
        break;
    default:
        st = store_get(arena, c->s, 1, &hd_table_checkpoints, &entry.checkpoint);
        break;
    }
    *ret_entry = entry;
    return st;
}

static struct cursor *earliest(struct cursor *cursors, size_t count)
{
    struct cursor *best = NULL;

    for (size_t i = 0; i < count; i++) {
        if (cursors[i].row &&
            (!best || sqlite3_column_int64(cursors[i].s, 0) < sqlite3_column_int64(best->s, 0)))
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
        query->entries = store_row_grow(&query->arena, query->entries, query->entry_count,
                                        sizeof *query->entries);
        if (!query->entries) {
            st = store_row_no_memory();
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
        {.kind = HD_OP_CHECKPOINT, .statement = STORE_GET_CHECKPOINTS_AFTER},
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
    sqlite3_stmt *s =
        st ? NULL : store_db_bind(db, STORE_GET_CHECKPOINTS, "in", (int64_t)query->job, 0);

    while (store_db_next(db, s, &st)) {
        struct hd_history_entry *entry;

        query->entries = store_row_grow(&query->arena, query->entries, query->entry_count,
                                        sizeof *query->entries);
        if (!query->entries) {
            st = store_row_no_memory();
            continue;
        }
        entry = &query->entries[query->entry_count++];
        *entry = (struct hd_history_entry){.kind = HD_OP_CHECKPOINT};
        st = store_get(&query->arena, s, 0, &hd_table_checkpoints, &entry->checkpoint);
    }
    return st;
}

static enum hd_status query_records(struct store_db *db, struct hd_query *query)
{
    enum hd_status st = query_job(db, query);
    sqlite3_stmt *s;

    if (!st)
        st = query_checkpoints(db, query);
    s = st ? NULL : store_db_bind(db, STORE_GET_POSITIONS, "i", (int64_t)query->job);
    while (store_db_next(db, s, &st)) {
        query->positions = store_row_grow(&query->arena, query->positions, query->position_count,
                                          sizeof *query->positions);
        st = query->positions ? store_get(&query->arena, s, 0, &hd_table_report_positions,
                                          &query->positions[query->position_count++])
                              : store_row_no_memory();
    }
    return st;
}

static enum hd_status query_users(struct store_db *db, struct hd_query *query)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_FIND_USERS, "ibi", (int64_t)query->job, query->text,
                                    strlen(query->text), (int64_t)query->limit + 1);
    enum hd_status st = HD_OK;

    query->jobs = hd_arena_array(&query->arena, (size_t)query->limit + 1, sizeof *query->jobs);
    if (!query->jobs)
        return store_row_no_memory();
    while (store_db_next(db, s, &st)) {
        query->more = query->job_count == (size_t)query->limit;
        if (!query->more)
            st = store_row_job(&query->arena, s, false, &query->jobs[query->job_count++].record);
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
        st = store_row_no_memory();
    return st;
}
