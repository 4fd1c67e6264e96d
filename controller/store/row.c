/* row: converts rows of the database to records. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "controller/store/row.h"

/* ---- columns ----------------------------------------------------------------------------------*/

const char *store_row_text(struct hd_arena *arena, sqlite3_stmt *s, int column)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    const char *copy = text && *text ? hd_arena_strdup(arena, text) : "";

    return copy ? copy : "";
}

double store_row_real(sqlite3_stmt *s, int column)
{
    return sqlite3_column_type(s, column) == SQLITE_NULL ? NAN : sqlite3_column_double(s, column);
}

int32_t store_row_int(sqlite3_stmt *s, int column)
{
    return sqlite3_column_int(s, column);
}

int64_t store_row_long(sqlite3_stmt *s, int column)
{
    return sqlite3_column_int64(s, column);
}

/* Returns the enum number of a stored string by the given list; 0: it is not in the list. */
#define X(name, number, text)     \
    if (strcmp(found, text) == 0) \
        return number;
#define NUMBER_FUNCTION(linkage, function, LIST)                          \
    linkage int function(sqlite3_stmt *s, int column)                     \
    {                                                                     \
        const char *found = (const char *)sqlite3_column_text(s, column); \
                                                                          \
        if (!found)                                                       \
            return 0;                                                     \
        LIST(X)                                                           \
        return 0;                                                         \
    }
NUMBER_FUNCTION(, store_row_job_state, HD_JOB_STATE_LIST)
NUMBER_FUNCTION(static, attempt_state_at, HD_ATTEMPT_STATE_LIST)
NUMBER_FUNCTION(static, end_cause_at, HD_END_CAUSE_LIST)
NUMBER_FUNCTION(, store_row_node_state, HD_NODE_STATE_LIST)
NUMBER_FUNCTION(, store_row_device_kind, HD_DEVICE_KIND_LIST)
NUMBER_FUNCTION(, store_row_credential_kind, HD_CREDENTIAL_KIND_LIST)
NUMBER_FUNCTION(static, checkpoint_state_at, HD_CHECKPOINT_STATE_LIST)
#undef NUMBER_FUNCTION
#undef X

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

struct hd_job_record store_row_job(struct hd_arena *arena, sqlite3_stmt *s, bool with_spec)
{
    struct hd_job_record job = {
        .job = (uint64_t)store_row_long(s, 0),
        .request_id = store_row_text(arena, s, 1),
        .owner = store_row_text(arena, s, 2),
        .name = store_row_text(arena, s, 3),
        .state = (enum hd_job_state)store_row_job_state(s, 4),
        .reason = store_row_text(arena, s, 5),
        .cancel = store_row_int(s, 6),
        .cancel_now = store_row_int(s, 7),
        .attempt_count = store_row_int(s, 8),
        .steps = store_row_long(s, 9),
        .devices = store_row_int(s, 10),
        .submitted_ms = store_row_long(s, 11),
        .started_ms = store_row_long(s, 12),
        .ended_ms = store_row_long(s, 13),
        .resumed_attempt = store_row_int(s, 14),
        .removal = (enum hd_removal)store_row_int(s, 15),
        .request_hash = (uint64_t)store_row_long(s, 16),
        .queue = store_row_text(arena, s, 17),
        .priority = store_row_int(s, 18),
        .held = store_row_int(s, 19),
        .planned_start_ms = store_row_long(s, 20),
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

struct hd_checkpoint_record store_row_checkpoint(struct hd_arena *arena, sqlite3_stmt *s,
                                                 uint64_t job)
{
    return (struct hd_checkpoint_record){
        .job = job,
        .attempt = store_row_int(s, 0),
        .step = store_row_long(s, 1),
        .path = store_row_text(arena, s, 2),
        .hash = store_row_text(arena, s, 3),
        .node_uuid = store_row_text(arena, s, 4),
        .shared = store_row_int(s, 5),
        .time_ms = store_row_long(s, 6),
        .size_bytes = store_row_long(s, 7),
        .state = (enum hd_checkpoint_state)checkpoint_state_at(s, 8),
        .sequence = (uint64_t)store_row_long(s, 9),
        .proven = store_row_int(s, 10),
        .val_loss = store_row_real(s, 11),
        .missing = store_row_int(s, 12),
    };
}

struct hd_position_record store_row_position(sqlite3_stmt *s, uint64_t job)
{
    return (struct hd_position_record){.job = job,
                                       .attempt = store_row_int(s, 0),
                                       .rank = store_row_int(s, 1),
                                       .seq = (uint64_t)store_row_long(s, 2)};
}

enum hd_status store_row_step(struct hd_arena *arena, sqlite3_stmt *s, uint64_t job,
                              struct hd_step_record *ret_step)
{
    struct hd_step_record step = {
        .job = job,
        .sequence = (uint64_t)store_row_long(s, 0),
        .attempt = store_row_int(s, 1),
        .step = store_row_long(s, 2),
        .time_ms = store_row_long(s, 3),
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
        .attempt = store_row_int(s, 0),
        .state = (enum hd_attempt_state)attempt_state_at(s, 1),
        .base_attempt = store_row_int(s, 3),
        .base_step = store_row_long(s, 4),
        .base_path = store_row_text(arena, s, 5),
        .base_hash = store_row_text(arena, s, 6),
        .created_ms = store_row_long(s, 7),
        .running_ms = store_row_long(s, 8),
        .ended_ms = store_row_long(s, 9),
        .end = {.cause = (enum hd_end_cause)end_cause_at(s, 10),
                .rank = store_row_int(s, 11),
                .node = store_row_text(arena, s, 12),
                .message = store_row_text(arena, s, 13),
                .exit_code = store_row_int(s, 14),
                .signal = store_row_int(s, 15),
                .bad_input = store_row_int(s, 16)},
        .stop_cause = (enum hd_end_cause)end_cause_at(s, 17),
        .stop_job = (uint64_t)store_row_long(s, 18),
        .plan = {.step_s = sqlite3_column_double(s, 19), .memory_bytes = store_row_long(s, 20)},
        .borrows = store_row_int(s, 21) != 0,
        .run_as = store_row_text(arena, s, 22),
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
        plan->ranks =
            store_row_grow(arena, plan->ranks, (size_t)plan->rank_count, sizeof *plan->ranks);
        if (!plan->ranks)
            st = store_row_no_memory();
        else
            plan->ranks[plan->rank_count++] =
                (struct hd_rank_location){.node_uuid = store_row_text(arena, s, 0),
                                          .node_name = store_row_text(arena, s, 1),
                                          .device = store_row_int(s, 2)};
    }
    return st;
}

enum hd_status store_row_attempts(struct store_db *db, struct hd_arena *arena, uint64_t job,
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
        attempts = store_row_grow(arena, attempts, count, sizeof *attempts);
        st = attempts ? attempt_row(arena, s, job, &attempts[count++]) : store_row_no_memory();
        if (st)
            (void)sqlite3_reset(s);
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

    *ret_number = !st && row ? store_row_long(s, 0) : 0;
    if (!st && row)
        (void)sqlite3_reset(s);
    return st;
}
