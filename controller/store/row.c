/* row: converts rows of the database to records. */
#include <inttypes.h>
#include <string.h>

#include "controller/store/row.h"

void *store_row_grow(struct hd_arena *arena, void *array, size_t count, size_t item_bytes)
{
    void *bigger;

    if (count && (count & (count - 1)))
        return array; /* the array's capacity is the next power of two */
    bigger = hd_arena_array(arena, count ? count * 2 : 1, item_bytes);
    if (bigger && count)
        memcpy(bigger, array, count * item_bytes);
    return bigger;
}

enum hd_status store_row_no_memory(void)
{
    return hd_err(HD_NO_MEMORY, "out of memory reading the state database");
}

/* ---- rows -------------------------------------------------------------------------------------*/

enum hd_status store_row_job(struct hd_arena *arena, sqlite3_stmt *s, bool with_spec,
                             struct hd_job_record *ret_job)
{
    struct hd_table table = hd_table_jobs;

    table.count -= !with_spec; /* the spec is the last field */
    return store_get(arena, s, 0, &table, ret_job);
}

enum hd_status store_row_step(struct hd_arena *arena, sqlite3_stmt *s, uint64_t job,
                              struct hd_step_record *ret_step)
{
    const enum hd_status st = store_get(arena, s, 1, &hd_table_step_metrics, ret_step);

    return st ? hd_err_prefix(st, "state.db: step %" PRId64 " of attempt %d of job %" PRIu64,
                              ret_step->step, ret_step->attempt, job)
              : HD_OK;
}

static enum hd_status read_allocations(struct store_db *db, struct hd_arena *arena,
                                       struct hd_attempt_record *attempt)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_ALLOCATIONS, "in", (int64_t)attempt->job,
                                    (int)attempt->attempt);
    struct hd_plan_record *plan = &attempt->plan;
    enum hd_status st = HD_OK;

    while (store_db_next(db, s, &st)) {
        plan->ranks =
            store_row_grow(arena, plan->ranks, (size_t)plan->rank_count, sizeof *plan->ranks);
        if (!plan->ranks)
            st = store_row_no_memory();
        else
            plan->ranks[plan->rank_count++] =
                (struct hd_rank_location){.node_uuid = store_row_text(arena, s, 0),
                                          .node_name = store_row_text(arena, s, 1),
                                          .device = sqlite3_column_int(s, 2)};
    }
    return st;
}

enum hd_status store_row_attempts(struct store_db *db, struct hd_arena *arena, uint64_t job,
                                  struct hd_attempt_record **ret_attempts, size_t *ret_count)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_GET_ATTEMPTS, "i", (int64_t)job);
    struct hd_attempt_record *attempts = NULL;
    enum hd_status st = HD_OK;
    size_t count = 0;

    while (store_db_next(db, s, &st)) {
        attempts = store_row_grow(arena, attempts, count, sizeof *attempts);
        st = attempts ? store_get(arena, s, 0, &hd_table_attempts, &attempts[count])
                      : store_row_no_memory();
        if (st && attempts)
            st = hd_err_prefix(st, "state.db: the layout of attempt %d of job %" PRIu64,
                               attempts[count].attempt, job);
        count += !st;
    }
    for (size_t i = 0; !st && i < count; i++)
        st = read_allocations(db, arena, &attempts[i]);
    *ret_attempts = attempts;
    *ret_count = count;
    return st;
}

enum hd_status store_row_number(struct store_db *db, enum store_statement statement, uint64_t job,
                                int64_t *ret_number)
{
    sqlite3_stmt *s = store_db_bind(db, statement, "i", (int64_t)job);
    bool row = false;
    enum hd_status st = s ? store_db_step(db, s, &row) : HD_INTERNAL;

    *ret_number = !st && row ? sqlite3_column_int64(s, 0) : 0;
    if (!st && row)
        (void)sqlite3_reset(s);
    return st;
}
