/* store: every column of every table holds what the record says, and comes back as it was.
 *
 * records.def generates what writes and reads them, so that this test holds what it cannot promise:
 * the names that released databases have, and what an update writes. A row of each table is written
 * for i = 1 .. ROWS, with values that follow from i and from nothing else. The first rows are
 * compared, column by column, with what is written out here by hand; and a second database, written
 * from all that was read of the first one, must hold the same. A new table fails this test until it
 * has a row here.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "controller/store/store_internal.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

enum { ROWS = 11, LOADS = 3, CHECKPOINTS = 3, RANKS = 2, OLDER = 101 };

#define BIG ((int64_t)1 << 40) /* does not fit into 32 bits */

/* ---- the rows ---------------------------------------------------------------------------------*/

static struct hd_arena memory; /* of the texts of records; freed behind each test */

static const char *word(const char *what, int i)
{
    char text[64];

    (void)snprintf(text, sizeof text, "%s-%d", what, i);
    return hd_arena_strdup(&memory, text);
}

/* `age` is 0 for the row as it ends up, OLDER for what is stored first and then changed. */
static struct hd_node_record node_of(int i, int age)
{
    const int k = i + age;
    struct hd_device_record *device = hd_arena_alloc(&memory, sizeof *device);

    *device = (struct hd_device_record){.index = 10 + i,
                                        .kind = k % 2 ? HD_DEVICE_KIND_CPU : HD_DEVICE_KIND_CUDA,
                                        .name = word("device", k),
                                        .uuid = word("gpu", k),
                                        .memory_bytes = BIG + k,
                                        .threads = 20 + k,
                                        .precisions = (uint32_t)1 << (24 + k % 8)};
    return (struct hd_node_record){.uuid = word("uuid", i),
                                   .name = word("node", k),
                                   .boot_id = word("boot", k),
                                   .build = word("build", k),
                                   .state = (enum hd_node_state)(1 + (k - 1) % 5),
                                   .drain = k % 2,
                                   .drain_reason = word("disk", k),
                                   .drain_deadline_ms = BIG + 1700 + k,
                                   .saw_jobs_dir = k / 2 % 2,
                                   .retired = !(k % 2),
                                   .seen_ms = BIG + 100 + k,
                                   .devices = device,
                                   .device_count = 1};
}

static struct hd_probe_record probe_of(int i, int age)
{
    return (struct hd_probe_record){.node_uuid = word("uuid", i),
                                    .ended_ms = BIG + 1800 + i + age,
                                    .problem = word("hot", i + age),
                                    .measured_on = word("build", i + age),
                                    .measured_ms = BIG + 1900 + i + age,
                                    .calibration = word("figures", i + age),
                                    .calibration_bytes = strlen(word("figures", i + age))};
}

static struct hd_queue_record queue_of(int i, int age)
{
    return (struct hd_queue_record){.name = word("queue", i),
                                    .devices_max = 200 + i + age,
                                    .user_devices_max = 300 + i + age,
                                    .weight = 400 + i + age,
                                    .closed = (i + age) % 2};
}

static struct hd_job_record job_of(int i, int age)
{
    const int k = i + age;
    unsigned char *spec = hd_arena_alloc(&memory, 3);

    spec[0] = (unsigned char)i;
    spec[1] = 0;
    spec[2] = 0xff;
    return (struct hd_job_record){.job = (uint64_t)i,
                                  .request_id = word("request", i),
                                  .owner = word("owner", i),
                                  .name = word("job", i),
                                  .state = (enum hd_job_state)(1 + (k - 1) % 6),
                                  .reason = word("why", k),
                                  .cancel = k % 2,
                                  .cancel_now = !(k % 2),
                                  .attempt_count = 40 + k,
                                  .steps = BIG + 200 + i,
                                  .devices = 50 + k,
                                  .submitted_ms = BIG + 300 + i,
                                  .started_ms = BIG + 400 + k,
                                  .ended_ms = BIG + 500 + k,
                                  .spec = spec,
                                  .spec_bytes = 3,
                                  .resumed_attempt = 60 + k,
                                  .request_hash = (uint64_t) - (BIG + 500 + i),
                                  .queue = word("queue", i),
                                  .priority = -70 - i,
                                  .held = !(k % 2),
                                  .planned_start_ms = BIG + 1800 + k};
}

/* A value for each key of a layout, another one for each i. */
static struct hd_layout_sizes layout_of(int i)
{
    struct hd_job job = HD_JOB(.arena = job_arena());

    for (size_t n = 0; n < hd_job_key_count; n++) {
        const struct hd_key *key = &hd_job_keys[n];
        char *text = hd_job_member(key, &job);

        if (!hd_job_key_is_of_layout(key))
            continue;
        if (key->kind == HD_KEY_NAME)
            (void)snprintf(text, HD_JOB_WORD_MAX, "name-%d", i);
        else if (key->kind == HD_KEY_WORD) /* the first or the second of its words */
            *(unsigned *)hd_job_member(key, &job) = i % 2 ? 1 : 2;
        else if (key->kind == HD_KEY_REAL)
            *(double *)hd_job_member(key, &job) = 1.5 + i;
        else if (key->max < ROWS) /* few are possible: 0 and 1 always */
            *(int64_t *)hd_job_member(key, &job) = i % 2;
        else
            *(int64_t *)hd_job_member(key, &job) = (int64_t)n + i;
    }
    return job.layout;
}

static struct hd_attempt_record attempt_of(int i, int age)
{
    const int k = i + age;
    struct hd_rank_location *ranks = hd_arena_array(&memory, RANKS, sizeof *ranks);

    for (int r = 0; r < RANKS; r++)
        ranks[r] = (struct hd_rank_location){.node_uuid = word("uuid", i),
                                             .node_name = word("place", i),
                                             .device = 100 + 10 * i + r};
    return (struct hd_attempt_record){
        .job = (uint64_t)i,
        .attempt = 30 + i,
        .state = (enum hd_attempt_state)(1 + (k - 1) % 4),
        .plan = {.layout = layout_of(i),
                 .ranks = ranks,
                 .rank_count = RANKS,
                 .step_s = i + 0.25,
                 .step_factor = i + 0.5,
                 .memory_bytes = BIG + 2000 + i},
        .base_attempt = i < ROWS ? 20 + i : 0, /* the last one starts from scratch */
        .base_step = i < ROWS ? BIG + 60 + i : 0,
        .base_path = word("base", i),
        .base_hash = word("base-hash", i),
        .end = {.cause = (enum hd_end_cause)((k - 1) % 11),
                .rank = k - 2,
                .node = word("end-node", k),
                .message = word("end", k),
                .exit_code = 80 + k,
                .signal = 90 + k,
                .bad_input = k % 2},
        .created_ms = BIG + 600 + i,
        .running_ms = BIG + 700 + k,
        .ended_ms = BIG + 800 + k,
        .stop_cause = (enum hd_end_cause)((k + 2) % 14), /* 3 to 13; the ends above are 0 to 10 */
        .stop_job = (uint64_t)(BIG + 1900 + k),
        .borrows = i % 2,
        .run_as = word("run-as", i)};
}

/* Returns one checkpoint of each state for each job; that of step 60 + i is the base of its
 * attempt. The older ones are all present. */
static struct hd_checkpoint_record checkpoint_of(int i, int c, int age)
{
    return (struct hd_checkpoint_record){.job = (uint64_t)i,
                                         .attempt = 20 + i,
                                         .step = BIG + 60 + i + 10 * c,
                                         .path = word("path", i),
                                         .hash = word("hash", i),
                                         .node_uuid = word("uuid", i),
                                         .shared = (i + c) % 2,
                                         .time_ms = BIG + 900 + i,
                                         .size_bytes = BIG + 1000 + i,
                                         .state = age ? HD_CHECKPOINT_STATE_PRESENT
                                                      : (enum hd_checkpoint_state)(1 + c),
                                         .sequence = (uint64_t)(2 + c),
                                         .missing = !age && c == 1,
                                         .proven = age || (i + c) % 2,
                                         .val_loss = c ? NAN : i + 0.5};
}

static struct hd_event_record event_of(uint64_t job, int i)
{
    return (struct hd_event_record){.job = job,
                                    .sequence = job ? 1 : (uint64_t)i,
                                    .time_ms = BIG + 1100 + i,
                                    .attempt = 30 + i,
                                    .rank = i - 2,
                                    .kind = word("kind", i),
                                    .node = word("event-node", i),
                                    .message = word("message", i)};
}

static struct hd_step_record step_of(int i)
{
    int64_t *load = hd_arena_array(&memory, LOADS, sizeof *load);
    struct hd_step_record step = {.job = (uint64_t)i,
                                  .sequence = 5,
                                  .attempt = 30 + i,
                                  .step = BIG + 1200 + i,
                                  .time_ms = BIG + 1300 + i,
                                  .expert_load = load,
                                  .expert_count = LOADS};

    for (int n = 0; n < LOADS; n++)
        load[n] = BIG + 10 * i + n;
    for (int n = 0; n < HD_METRIC_COUNT; n++)
        assert_true(
            hd_metric_set(&step.metrics, n, 100 * n + i + (hd_metrics[n].is_int ? 0 : 0.5)));
    return step;
}

static struct hd_validation_record validation_of(int i)
{
    return (struct hd_validation_record){.job = (uint64_t)i,
                                         .sequence = 6,
                                         .attempt = 30 + i,
                                         .step = BIG + 1400 + i,
                                         .time_ms = BIG + 1500 + i,
                                         .tokens = BIG + 1600 + i,
                                         .loss = i + 0.25,
                                         .set = {'s', (char)('0' + i)}};
}

static struct hd_position_record position_of(int i, int age)
{
    return (struct hd_position_record){
        .job = (uint64_t)i, .attempt = 30 + i, .rank = i % RANKS, .seq = (uint64_t)(BIG + i + age)};
}

/* Returns a credential of each kind in turn; one that `age` made first has not ended yet. */
static struct hd_credential_record credential_of(int i, int age)
{
    struct hd_credential_record made = {.id = (uint64_t)i,
                                        .kind = (enum hd_credential_kind)(1 + (i - 1) % 4),
                                        .name = word("person", i),
                                        .role = word("role", i),
                                        .made_by = word("made", i),
                                        .made_ms = BIG + 2000 + i,
                                        .expires_ms = BIG + 2100 + i,
                                        .ended_by = age ? "" : word("ended", i),
                                        .ended_ms = age ? 0 : BIG + 2200 + i};

    memset(made.hash, i, sizeof made.hash);
    return made;
}

static struct hd_audit_record audit_of(int i)
{
    return (struct hd_audit_record){.time_ms = BIG + 2300 + i,
                                    .who = word("who", i),
                                    .role = word("as", i),
                                    .method = word("Method", i),
                                    .object = word("job", i),
                                    .source = word("from", i),
                                    .result = word("result", i)};
}

/* Rows of each table, in the order of its columns: of i = 1, and of others where truth values of
 * i = 1 are equal or a value may be NULL. They hold which column of released databases has which
 * member; records.def alone says that. A value that is `*` is secret or packed. */
static const struct expected_row {
    const char *table, *where, *values;
} expected_rows[] = {
    {"nodes", "uuid='uuid-1'",
     "uuid 'uuid-1', name 'node-1', boot_id 'boot-1', build 'build-1', state 'ready', drain 1, "
     "drain_reason 'disk-1', retired 0, seen_ms 1099511627877, "
     "drain_deadline_ms 1099511629477, saw_jobs_dir 0"},
    {"nodes", "uuid='uuid-2'",
     "uuid 'uuid-2', name 'node-2', boot_id 'boot-2', build 'build-2', state 'unreachable', "
     "drain 0, drain_reason 'disk-2', retired 1, seen_ms 1099511627878, "
     "drain_deadline_ms 1099511629478, saw_jobs_dir 1"},
    {"probes", "node_uuid='uuid-1'",
     "node_uuid 'uuid-1', ended_ms 1099511629577, problem 'hot-1', measured_on 'build-1', "
     "measured_ms 1099511629677, calibration X'666967757265732D31'"},
    {"queues", "name='queue-1'",
     "name 'queue-1', devices_max 201, user_devices_max 301, weight 401, closed 1"},
    {"devices", "node_uuid='uuid-1'",
     "node_uuid 'uuid-1', device 11, kind 'cpu', name 'device-1', uuid 'gpu-1', "
     "memory_bytes 1099511627777, threads 21, precisions 33554432"},
    {"jobs", "job=1",
     "job 1, request_id 'request-1', owner 'owner-1', name 'job-1', state 'queued', "
     "reason 'why-1', cancel 1, cancel_now 0, attempt_count 41, steps 1099511627977, devices 51, "
     "submitted_ms 1099511628077, started_ms 1099511628177, ended_ms 1099511628277, "
     "spec X'0100FF', resumed_attempt 61, removal 0, request_hash -1099511628277, "
     "queue 'queue-1', priority -71, held 0, promised_ms 1099511629577, pruned 0"},
    {"jobs", "job=2",
     "job 2, request_id 'request-2', owner 'owner-2', name 'job-2', state 'running', "
     "reason 'why-2', cancel 0, cancel_now 1, attempt_count 42, steps 1099511627978, devices 52, "
     "submitted_ms 1099511628078, started_ms 1099511628178, ended_ms 1099511628278, "
     "spec X'0200FF', resumed_attempt 62, removal 0, request_hash -1099511628278, "
     "queue 'queue-2', priority -72, held 1, promised_ms 1099511629578, pruned 0"},
    {"attempts", "job=1",
     "job 1, attempt 31, state 'starting', base_attempt 21, base_step 1099511627837, "
     "base_path 'base-1', base_hash 'base-hash-1', created_ms 1099511628377, "
     "running_ms 1099511628477, ended_ms 1099511628577, end_cause 'none', end_rank -1, "
     "end_node 'end-node-1', end_message 'end-1', end_exit_code 81, end_signal 91, "
     "end_bad_input 1, layout *, "
     "stop_cause 'node_lost', stop_job 1099511629677, step_s 1.25, memory_bytes 1099511629777, "
     "borrows 1, run_as 'run-as-1', step_factor 1.5"},
    {"attempts", "job=2",
     "job 2, attempt 32, state 'running', base_attempt 22, base_step 1099511627838, "
     "base_path 'base-2', base_hash 'base-hash-2', created_ms 1099511628378, "
     "running_ms 1099511628478, ended_ms 1099511628578, end_cause 'completed', end_rank 0, "
     "end_node 'end-node-2', end_message 'end-2', end_exit_code 82, end_signal 92, "
     "end_bad_input 0, layout *, "
     "stop_cause 'hang', stop_job 1099511629678, step_s 2.25, memory_bytes 1099511629778, "
     "borrows 0, run_as 'run-as-2', step_factor 2.5"},
    {"attempts", "job=11", /* from scratch */
     "job 11, attempt 41, state 'stopping', base_attempt NULL, base_step NULL, base_path "
     "'base-11', "
     "base_hash 'base-hash-11', created_ms 1099511628387, running_ms 1099511628487, "
     "ended_ms 1099511628587, end_cause 'incomplete', end_rank 9, end_node 'end-node-11', "
     "end_message 'end-11', end_exit_code 91, end_signal 101, end_bad_input 1, layout *, "
     "stop_cause 'oom', stop_job 1099511629687, step_s 11.25, memory_bytes 1099511629787, "
     "borrows 1, run_as 'run-as-11', step_factor 11.5"},
    {"allocations", "job=1 AND rank=0",
     "job 1, attempt 31, rank 0, node_uuid 'uuid-1', node_name 'place-1', device 110"},
    {"allocations", "job=2 AND rank=1",
     "job 2, attempt 32, rank 1, node_uuid 'uuid-2', node_name 'place-2', device 121"},
    {"checkpoints", "job=1 AND seq=2",
     "job 1, attempt 21, step 1099511627837, path 'path-1', hash 'hash-1', node_uuid 'uuid-1', "
     "shared 1, time_ms 1099511628677, size_bytes 1099511628777, state 'present', seq 2, proven 1, "
     "val_loss 1.5, missing 0"},
    {"checkpoints", "job=2 AND seq=2",
     "job 2, attempt 22, step 1099511627838, path 'path-2', hash 'hash-2', node_uuid 'uuid-2', "
     "shared 0, time_ms 1099511628678, size_bytes 1099511628778, state 'present', seq 2, proven 0, "
     "val_loss 2.5, missing 0"},
    {"checkpoints", "job=2 AND seq=3",
     "job 2, attempt 22, step 1099511627848, path 'path-2', hash 'hash-2', node_uuid 'uuid-2', "
     "shared 1, time_ms 1099511628678, size_bytes 1099511628778, state 'deleting', seq 3, proven "
     "1, val_loss NULL, missing 1"},
    {"events", "job=0 AND seq=1",
     "job 0, seq 1, time_ms 1099511628877, attempt 31, rank -1, kind 'kind-1', "
     "node 'event-node-1', message 'message-1'"},
    {"step_metrics", "job=1",
     "job 1, seq 5, attempt 31, step 1099511628977, time_ms 1099511629077, expert_load *, "
     "metrics *"},
    {"validations", "job=1",
     "job 1, seq 6, attempt 31, step 1099511629177, time_ms 1099511629277, tokens 1099511629377, "
     "loss 1.25, name 's1'"},
    {"credentials", "id=1",
     "id 1, kind 'token', name 'person-1', role 'role-1', hash *, made_by 'made-1', "
     "ended_by 'ended-1', made_ms 1099511629777, expires_ms 1099511629877, "
     "ended_ms 1099511629977"},
    {"audit", "seq=1",
     "seq 1, time_ms 1099511630077, who 'who-1', role 'as-1', method 'Method-1', object 'job-1', "
     "source 'from-1', result 'result-1', hash *"},
    {"report_positions", "job=1", "job 1, attempt 31, rank 1, seq 1099511627777"},
};
enum { EXPECTED_ROWS = sizeof expected_rows / sizeof expected_rows[0] };

static bool is_opaque(const char *column)
{
    return strcmp(column, "layout") == 0 || strcmp(column, "metrics") == 0 ||
           strcmp(column, "expert_load") == 0;
}

/* ---- databases --------------------------------------------------------------------------------*/

struct base {
    struct store_db db;
    char dir[TEMPORARY_BYTES];
};

static void open_base(struct base *base)
{
    temporary_dir(base->dir, "heddle-columns");
    if (store_db_open(&base->db, base->dir, NULL))
        fail_msg("%s", hd_err_message());
}

static void close_base(struct base *base)
{
    store_db_close(&base->db);
    assert_int_equal(hd_file_remove_tree(base->dir), HD_OK);
}

static void commit(struct base *base, struct hd_batch *batch)
{
    assert_false(hd_batch_failed(batch));
    assert_int_equal(store_db_run(&base->db, STORE_BEGIN, ""), HD_OK);
    if (store_write_batch(&base->db, batch) || store_db_run(&base->db, STORE_COMMIT, ""))
        fail_msg("%s", hd_err_message());
    hd_batch_free(batch);
}

/* Adds records that may change later: nodes, jobs, attempts, checkpoints, positions. */
static void add_changing(struct hd_batch *batch, bool is_new, int age)
{
    for (int i = 1; i <= ROWS; i++) {
        const struct hd_node_record node = node_of(i, age);
        const struct hd_probe_record probe = probe_of(i, age);
        const struct hd_queue_record queue = queue_of(i, age);
        const struct hd_job_record job = job_of(i, age);
        const struct hd_attempt_record attempt = attempt_of(i, age);
        const struct hd_position_record position = position_of(i, age);

        const struct hd_credential_record credential = credential_of(i, age);

        hd_batch_add_credential(batch, &credential);
        hd_batch_add_node(batch, &node);
        hd_batch_add_probe(batch, &probe);
        hd_batch_add_queue(batch, &queue);
        hd_batch_add_job(batch, is_new, &job);
        hd_batch_add_attempt(batch, &attempt);
        hd_batch_add_position(batch, &position);
        for (int c = 0; c < CHECKPOINTS; c++) {
            const struct hd_checkpoint_record checkpoint = checkpoint_of(i, c, age);

            hd_batch_add_checkpoint(batch, &checkpoint);
        }
    }
}

static void add_histories(struct hd_batch *batch)
{
    for (int i = 1; i <= ROWS; i++) {
        const struct hd_event_record of_job = event_of((uint64_t)i, i), of_all = event_of(0, i);
        const struct hd_step_record step = step_of(i);
        const struct hd_validation_record validation = validation_of(i);

        const struct hd_audit_record audit = audit_of(i);

        hd_batch_add_audit(batch, &audit);
        hd_batch_add_event(batch, &of_job);
        hd_batch_add_event(batch, &of_all);
        hd_batch_add_step(batch, &step);
        hd_batch_add_validation(batch, &validation);
    }
}

static struct hd_batch *new_batch(void)
{
    struct hd_batch *batch = hd_batch_new();

    assert_non_null(batch);
    return batch;
}

/* All rows, each made as it ends up; or each first as it was before, and then changed. */
static void write_all_rows(struct base *base, bool by_changes)
{
    struct hd_batch *batch = new_batch();

    open_base(base);
    add_changing(batch, true, by_changes ? OLDER : 0);
    add_histories(batch);
    commit(base, batch);
    if (!by_changes)
        return;
    batch = new_batch();
    add_changing(batch, false, 0);
    commit(base, batch);
}

/* ---- looking ----------------------------------------------------------------------------------*/

static sqlite3_stmt *select_from(const struct base *base, const char *sql)
{
    sqlite3_stmt *statement = NULL;

    if (sqlite3_prepare_v2(base->db.sqlite, sql, -1, &statement, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(base->db.sqlite));
    return statement;
}

/* A value as SQL would write it. */
static void add_value(struct hd_text *text, sqlite3_stmt *row, int column)
{
    const unsigned char *bytes;

    switch (sqlite3_column_type(row, column)) {
    case SQLITE_NULL:
        hd_text_add(text, "NULL");
        break;
    case SQLITE_TEXT:
        hd_text_add(text, "'%s'", (const char *)sqlite3_column_text(row, column));
        break;
    case SQLITE_BLOB:
        bytes = sqlite3_column_blob(row, column);
        hd_text_add(text, "X'");
        for (int i = 0; i < sqlite3_column_bytes(row, column); i++)
            hd_text_add(text, "%02X", bytes[i]);
        hd_text_add(text, "'");
        break;
    case SQLITE_FLOAT:
        hd_text_add(text, "%.17g", sqlite3_column_double(row, column));
        break;
    default:
        hd_text_add(text, "%lld", (long long)sqlite3_column_int64(row, column));
    }
}

/* The rows of a query, a line each; opaque values as `*` if they are to be hidden. Free it. */
static char *rows_of(const struct base *base, const char *sql, bool hide)
{
    sqlite3_stmt *row = select_from(base, sql);
    struct hd_text text = {0};

    while (sqlite3_step(row) == SQLITE_ROW) {
        hd_text_add(&text, "%s", text.len_bytes ? "\n" : "");
        for (int c = 0; c < sqlite3_column_count(row); c++) {
            hd_text_add(&text, "%s%s ", c ? ", " : "", sqlite3_column_name(row, c));
            if (hide && (is_opaque(sqlite3_column_name(row, c)) ||
                         (strcmp(sqlite3_column_name(row, c), "hash") == 0 &&
                          sqlite3_column_type(row, c) == SQLITE_BLOB)))
                hd_text_add(&text, "*");
            else
                add_value(&text, row, c);
        }
    }
    (void)sqlite3_finalize(row);
    assert_non_null(text.data);
    assert_false(text.failed);
    return text.data;
}

/* Every table but `meta`, whose one row is the cluster's own identity. */
static char *everything_in(const struct base *base)
{
    sqlite3_stmt *tables = select_from(base, "SELECT name FROM sqlite_master WHERE type='table'"
                                             " AND name<>'meta' ORDER BY name");
    struct hd_text text = {0};

    while (sqlite3_step(tables) == SQLITE_ROW) {
        const char *name = (const char *)sqlite3_column_text(tables, 0);
        char sql[128], *rows;

        (void)snprintf(sql, sizeof sql, "SELECT * FROM %s", name);
        rows = rows_of(base, sql, false);
        hd_text_add(&text, "%s\n%s\n", name, rows);
        free(rows);
    }
    (void)sqlite3_finalize(tables);
    assert_false(text.failed);
    return text.data;
}

static void assert_same_everything(const struct base *a, const struct base *b)
{
    char *x = everything_in(a), *y = everything_in(b);

    assert_string_equal(x, y);
    free(x);
    free(y);
}

static void assert_expected_rows(const struct base *base)
{
    for (int i = 0; i < EXPECTED_ROWS; i++) {
        char sql[256], *row;

        (void)snprintf(sql, sizeof sql, "SELECT * FROM %s WHERE %s", expected_rows[i].table,
                       expected_rows[i].where);
        row = rows_of(base, sql, true);
        assert_string_equal(row, expected_rows[i].values);
        free(row);
    }
}

/* ---- reading everything back ------------------------------------------------------------------*/

struct reader {
    struct hd_batch *batch; /* all that was read */
    int nodes, probes, queues, requests, jobs, attempts, checkpoints, positions, steps;
    uint64_t last_job, cluster_sequence;
};

static enum hd_status take_node(void *user, const struct hd_node_record *node)
{
    struct reader *reader = user;

    reader->nodes++;
    hd_batch_add_node(reader->batch, node);
    return HD_OK;
}

static enum hd_status take_probe(void *user, const struct hd_probe_record *probe)
{
    struct reader *reader = user;

    reader->probes++;
    hd_batch_add_probe(reader->batch, probe);
    return HD_OK;
}

static enum hd_status take_queue(void *user, const struct hd_queue_record *queue)
{
    struct reader *reader = user;

    reader->queues++;
    hd_batch_add_queue(reader->batch, queue);
    return HD_OK;
}

static enum hd_status take_request(void *user, const char *request_id, const char *owner,
                                   uint64_t job, uint64_t hash, enum hd_job_state state)
{
    assert_int_equal(state, job_of((int)job, 0).state);
    ((struct reader *)user)->requests++;
    assert_string_equal(request_id, word("request", (int)job));
    assert_string_equal(owner, word("owner", (int)job));
    assert_true(hash == job_of((int)job, 0).request_hash);
    return HD_OK;
}

static enum hd_status take_job(void *user, const struct hd_job_record *job, uint64_t sequence)
{
    struct reader *reader = user;

    reader->jobs++;
    assert_int_equal(sequence, 6); /* event 1, checkpoints 2 to 4, step 5, validation 6 */
    hd_batch_add_job(reader->batch, true, job);
    return HD_OK;
}

static enum hd_status take_attempt(void *user, const struct hd_attempt_record *attempt)
{
    const struct hd_layout_sizes layout = layout_of((int)attempt->job);
    struct reader *reader = user;

    reader->attempts++;
    assert_memory_equal(&attempt->plan.layout, &layout, sizeof layout);
    assert_true(attempt->plan.step_s == (double)attempt->job + 0.25);
    assert_true(attempt->plan.step_factor == (double)attempt->job + 0.5);
    assert_int_equal(attempt->borrows, attempt->job % 2);
    assert_int_equal(attempt->plan.memory_bytes, BIG + 2000 + (int64_t)attempt->job);
    hd_batch_add_attempt(reader->batch, attempt);
    return HD_OK;
}

static enum hd_status take_checkpoint(void *user, const struct hd_checkpoint_record *checkpoint)
{
    struct reader *reader = user;

    reader->checkpoints++;
    assert_int_not_equal(checkpoint->state, HD_CHECKPOINT_STATE_DELETED);
    hd_batch_add_checkpoint(reader->batch, checkpoint);
    return HD_OK;
}

static enum hd_status take_position(void *user, const struct hd_position_record *position)
{
    struct reader *reader = user;

    reader->positions++;
    hd_batch_add_position(reader->batch, position);
    return HD_OK;
}

/* Takes the newest step; the test of the history sees the columns of each one. */
static enum hd_status take_step(void *user, const struct hd_step_record *step)
{
    const struct hd_step_record expected = step_of((int)step->job);

    ((struct reader *)user)->steps++;
    assert_int_equal(step->attempt, expected.attempt);
    assert_true(step->step == expected.step && step->time_ms == expected.time_ms);
    return HD_OK;
}

static enum hd_status take_end(void *user, uint64_t last_job, uint64_t cluster_sequence)
{
    struct reader *reader = user;

    reader->last_job = last_job;
    reader->cluster_sequence = cluster_sequence;
    return HD_OK;
}

static void assert_step(const struct hd_step_record *step)
{
    const struct hd_step_record expected = step_of((int)step->job);

    for (int n = 0; n < HD_METRIC_COUNT; n++)
        assert_true(hd_metric_get(&step->metrics, n) == hd_metric_get(&expected.metrics, n));
    assert_int_equal(step->expert_count, LOADS);
    for (int n = 0; n < LOADS; n++)
        assert_int_equal(step->expert_load[n], expected.expert_load[n]);
}

/* The history of a job, or the cluster's events. */
static void read_history(struct base *base, struct reader *reader, uint64_t job, int expected)
{
    struct hd_query *query = hd_query_new(job ? HD_QUERY_HISTORY : HD_QUERY_EVENTS);

    assert_non_null(query);
    query->job = job;
    assert_int_equal(store_read_query(&base->db, query), HD_OK);
    assert_int_equal(query->entry_count, expected);
    for (size_t i = 0; i < query->entry_count; i++) {
        const struct hd_history_entry *entry = &query->entries[i];

        assert_int_equal(entry->sequence, i + 1);
        if (entry->kind == HD_OP_EVENT)
            hd_batch_add_event(reader->batch, &entry->event);
        else if (entry->kind == HD_OP_VALIDATION)
            hd_batch_add_validation(reader->batch, &entry->validation);
        else if (entry->kind == HD_OP_CHECKPOINT)
            hd_batch_add_checkpoint(reader->batch, &entry->checkpoint);
        else {
            assert_step(&entry->step);
            hd_batch_add_step(reader->batch, &entry->step);
        }
    }
    hd_query_free(query);
}

/* All of them have ended, so that a start would load none. */
static void read_identity(struct base *base, struct reader *reader)
{
    struct hd_query *query = hd_query_new(HD_QUERY_CREDENTIALS);

    assert_int_equal(store_read_query(&base->db, query), HD_OK);
    assert_int_equal(query->credential_count, ROWS);
    for (size_t i = 0; i < query->credential_count; i++) {
        const struct hd_credential_record expected = credential_of((int)i + 1, 0);

        assert_int_equal(query->credentials[i].kind, expected.kind);
        assert_memory_equal(query->credentials[i].hash, expected.hash, sizeof expected.hash);
        hd_batch_add_credential(reader->batch, &query->credentials[i]);
    }
    hd_query_free(query);
    query = hd_query_new(HD_QUERY_AUDIT);
    assert_int_equal(store_read_query(&base->db, query), HD_OK);
    assert_int_equal(query->audit_count, ROWS);
    for (size_t i = 0; i < query->audit_count; i++)
        hd_batch_add_audit(reader->batch, &query->audit[i].record);
    hd_query_free(query);
}

static void read_everything(struct base *base, struct reader *reader)
{
    const struct hd_store_loader loader = {.node = take_node,
                                           .probe = take_probe,
                                           .queue = take_queue,
                                           .request = take_request,
                                           .job = take_job,
                                           .attempt = take_attempt,
                                           .checkpoint = take_checkpoint,
                                           .position = take_position,
                                           .step = take_step,
                                           .end = take_end,
                                           .user = reader};

    *reader = (struct reader){.batch = new_batch()};
    if (store_read_all(&base->db, &loader))
        fail_msg("%s", hd_err_message());
    assert_int_equal(reader->nodes, ROWS);
    assert_int_equal(reader->probes, ROWS);
    assert_int_equal(reader->queues, ROWS);
    assert_int_equal(reader->requests, ROWS);
    assert_int_equal(reader->jobs, ROWS); /* ended ones, too: each has a checkpoint to delete */
    assert_int_equal(reader->attempts, ROWS);
    assert_int_equal(reader->checkpoints, ROWS * (CHECKPOINTS - 1));
    assert_int_equal(reader->positions, ROWS);
    assert_int_equal(reader->steps, ROWS);
    assert_int_equal(reader->last_job, ROWS);
    assert_int_equal(reader->cluster_sequence, ROWS);
    read_identity(base, reader);
    read_history(base, reader, 0, ROWS);
    for (uint64_t job = 1; job <= ROWS; job++)
        read_history(base, reader, job, 1 + CHECKPOINTS + 1 + 1);
}

/* ---- the promises -----------------------------------------------------------------------------*/

static void each_table_has_its_expected_rows(void **state)
{
    struct base base;
    sqlite3_stmt *tables;

    write_all_rows(&base, false);
    tables = select_from(&base, "SELECT name FROM sqlite_master WHERE type='table'");
    while (sqlite3_step(tables) == SQLITE_ROW) {
        const char *name = (const char *)sqlite3_column_text(tables, 0);
        int count = 0;

        for (int i = 0; i < EXPECTED_ROWS; i++)
            count += strcmp(expected_rows[i].table, name) == 0;
        if (count == 0 && strcmp(name, "meta") != 0)
            fail_msg("this test knows nothing of the table %s: add rows to expected_rows", name);
    }
    (void)sqlite3_finalize(tables);
    close_base(&base);
}

static void a_new_row_holds_each_value(void **state)
{
    struct base base;

    write_all_rows(&base, false);
    assert_expected_rows(&base);
    close_base(&base);
}

static void a_changed_row_holds_each_value(void **state)
{
    struct base made, changed;

    write_all_rows(&made, false);
    write_all_rows(&changed, true);
    assert_expected_rows(&changed);
    assert_same_everything(&made, &changed);
    close_base(&made);
    close_base(&changed);
}

static void what_is_read_is_what_was_written(void **state)
{
    struct base first, second;
    struct reader reader;

    write_all_rows(&first, false);
    read_everything(&first, &reader);
    open_base(&second);
    commit(&second, reader.batch);
    assert_same_everything(&first, &second);
    close_base(&first);
    close_base(&second);
}

/* Goal: a list of jobs shows, beside each job's own row: of i = 2 the checkpoint of step 62, not
 * those of 72 and 82, which are being deleted or gone. */
static void a_job_is_shown_with_the_newest_of_its_history(void **state)
{
    struct hd_query *query = hd_query_new(HD_QUERY_JOBS);
    struct hd_step_record newer = step_of(2);
    struct hd_batch *batch = new_batch();
    struct base base;

    write_all_rows(&base, false);
    newer.sequence = 7;
    newer.step++;
    hd_batch_add_step(batch, &newer);
    commit(&base, batch);
    assert_int_equal(store_read_query(&base.db, query), HD_OK);
    assert_int_equal(query->job_count, ROWS);
    for (size_t n = 0; n < query->job_count; n++) {
        const struct hd_job_row *row = &query->jobs[n];
        const int i = ROWS - (int)n; /* the newest first */

        assert_int_equal(row->record.job, i);
        assert_int_equal(row->checkpoint_step, BIG + 60 + i);
        assert_true(row->has_step);
        assert_int_equal(row->step.step, step_of(i).step + (i == 2));
        assert_int_equal(row->sequence, i == 2 ? 7 : 6);
    }
    hd_query_free(query);
    close_base(&base);
}

static void only_checkpoints_that_are_present_are_listed(void **state)
{
    struct hd_query *query = hd_query_new(HD_QUERY_CHECKPOINTS);
    struct base base;

    write_all_rows(&base, false);
    query->job = 3;
    assert_int_equal(store_read_query(&base.db, query), HD_OK);
    assert_int_equal(query->entry_count, 1);
    assert_int_equal(query->entries[0].checkpoint.step, BIG + 63);
    hd_query_free(query);
    close_base(&base);
}

/* A history has 6 entries here: whoever gets fewer is told that there are more. */
static void a_page_says_whether_there_is_more(void **state)
{
    struct base base;

    write_all_rows(&base, false);
    for (int32_t limit = 1; limit <= 7; limit++) {
        struct hd_query *query = hd_query_new(HD_QUERY_HISTORY);

        query->job = 3;
        query->limit = limit;
        assert_int_equal(store_read_query(&base.db, query), HD_OK);
        assert_int_equal(query->entry_count, limit < 6 ? limit : 6);
        assert_int_equal(query->more, limit < 6);
        hd_query_free(query);
    }
    close_base(&base);
}

/* Goal: a row without its owner is refused: the core has lost its way, and must not go on. */
static void rows_without_their_owner_are_refused(void **state)
{
    const struct hd_attempt_record attempt = attempt_of(1, 0);
    const struct hd_checkpoint_record checkpoint = checkpoint_of(1, 0, 0);
    const struct hd_position_record position = position_of(1, 0);
    const struct hd_step_record step = step_of(1);

    for (int kind = 0; kind < 4; kind++) {
        struct hd_batch *batch = new_batch();
        struct base base;
        enum hd_status st;

        open_base(&base);
        if (kind == 0)
            hd_batch_add_attempt(batch, &attempt);
        else if (kind == 1)
            hd_batch_add_checkpoint(batch, &checkpoint);
        else if (kind == 2)
            hd_batch_add_position(batch, &position);
        else
            hd_batch_add_step(batch, &step);
        assert_int_equal(store_db_run(&base.db, STORE_BEGIN, ""), HD_OK);
        st = store_write_batch(&base.db, batch);
        if (!st)
            st = store_db_run(&base.db, STORE_COMMIT, "");
        assert_int_equal(st, HD_INTERNAL);
        hd_batch_free(batch);
        close_base(&base);
    }
}

/* NULL, which is what SQL makes of NaN, and an empty text are not 0 and not a word. */
static void no_number_and_no_text_come_back_as_such(void **state)
{
    struct hd_validation_record validation = validation_of(1);
    const struct hd_job_record job = {
        .job = 1, .request_id = "r", .state = HD_JOB_STATE_QUEUED, .spec = "", .spec_bytes = 0};
    struct hd_query *query = hd_query_new(HD_QUERY_HISTORY);
    struct hd_batch *batch = new_batch();
    struct base base;

    validation.loss = NAN;
    open_base(&base);
    hd_batch_add_job(batch, true, &job);
    hd_batch_add_validation(batch, &validation);
    commit(&base, batch);
    query->job = 1;
    assert_int_equal(store_read_query(&base.db, query), HD_OK);
    assert_int_equal(query->entry_count, 1);
    assert_true(isnan(query->entries[0].validation.loss));
    hd_query_free(query);
    query = hd_query_new(HD_QUERY_JOB);
    query->job = 1;
    assert_int_equal(store_read_query(&base.db, query), HD_OK);
    assert_string_equal(query->jobs[0].record.reason, "");
    assert_int_equal(query->jobs[0].record.spec_bytes, 0);
    hd_query_free(query);
    close_base(&base);
}

/* A result that holds no more, because the node has another build, is a row less. */
static void a_result_that_was_dropped_is_gone(void **state)
{
    struct hd_batch *batch = new_batch();
    struct hd_probe_record probe = {.node_uuid = "uuid-2"};
    struct base base;
    char *rows;

    write_all_rows(&base, false);
    hd_batch_add_probe(batch, &probe);
    commit(&base, batch);
    rows = rows_of(
        &base, "SELECT count(*) AS rows, sum(node_uuid = 'uuid-2') AS dropped FROM probes", false);
    assert_string_equal(rows, "rows 10, dropped 0"); /* ROWS - 1 */
    free(rows);
    close_base(&base);
}

static int forget_words(void **state)
{
    hd_arena_done(&memory);
    return 0;
}

RUN_EACH_CASE_WITH(NULL, forget_words)
