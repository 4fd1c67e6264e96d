/* store: old history goes by the policy's rules, and the audit log only grows. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/pieces.h"
#include "controller/store/store_internal.h"
#include "pki/pki.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

enum { DAY = 86400000, STEPS = 100, NOW = 2000000000 };

struct base {
    struct store_db db;
    char dir[TEMPORARY_BYTES];
};

static void open_base(struct base *base)
{
    temporary_dir(base->dir, "heddle-keep");
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
    assert_int_equal(store_db_run(&base->db, STORE_BEGIN, ""), HD_OK);
    if (store_write_batch(&base->db, batch) || store_db_run(&base->db, STORE_COMMIT, ""))
        fail_msg("%s", hd_err_message());
    hd_batch_free(batch);
}

static int64_t number(const struct base *base, const char *sql)
{
    sqlite3_stmt *s = NULL;
    int64_t value;

    if (sqlite3_prepare_v2(base->db.sqlite, sql, -1, &s, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(base->db.sqlite));
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    value = sqlite3_column_int64(s, 0);
    (void)sqlite3_finalize(s);
    return value;
}

/* A job with 2 events around 100 steps, which ended so long ago. */
static void add_ended(struct hd_batch *batch, uint64_t job, int64_t days)
{
    struct hd_job_record record = {.job = job,
                                   .owner = "ann",
                                   .name = "job",
                                   .state = HD_JOB_STATE_SUCCEEDED,
                                   .ended_ms = NOW - days * DAY,
                                   .spec = "spec",
                                   .spec_bytes = 4};
    struct hd_event_record event = {.job = job, .sequence = 1, .rank = -1, .kind = "submitted"};
    struct hd_step_record step = {.job = job, .attempt = 1};
    char request[32];

    (void)snprintf(request, sizeof request, "request-%llu", (unsigned long long)job);
    record.request_id = request;
    hd_batch_add_job(batch, true, &record);
    hd_batch_add_event(batch, &event);
    for (int i = 0; i < STEPS; i++) {
        step.sequence = (uint64_t)(2 + i);
        step.step = 1 + i;
        hd_batch_add_step(batch, &step);
    }
    event.sequence = 2 + STEPS;
    event.kind = "succeeded";
    hd_batch_add_event(batch, &event);
}

static void prune(struct base *base, const struct hd_prune_record *record)
{
    struct hd_batch *batch = hd_batch_new();

    hd_batch_add_prune(batch, record);
    commit(base, batch);
}

/* Three jobs ended 40, 20 and 2 days ago. History that is older than 30 days goes, and says so;
 * what is older than 10 is thinned: of 100 lines at most 9: the newest, and of the other 99 the
 * first and every 13th (99 / 8 = 12.4): 1, 14, 27 .. 92 are eight. */
static void old_history_goes_and_less_old_is_thinned(void **state)
{
    const struct hd_prune_record rule = {.now_ms = NOW,
                                         .history_ms = INT64_C(30) * DAY,
                                         .step_lines = 9,
                                         .step_lines_ms = INT64_C(10) * DAY};
    struct hd_batch *batch = hd_batch_new();
    struct base base;

    open_base(&base);
    add_ended(batch, 1, 40);
    add_ended(batch, 2, 20);
    add_ended(batch, 3, 2);
    commit(&base, batch);
    for (int i = 0; i < 2; i++) { /* a second time changes nothing */
        prune(&base, &rule);
        assert_int_equal(number(&base, "SELECT count(*) FROM step_metrics WHERE job=1"), 1);
        assert_int_equal(number(&base, "SELECT step FROM step_metrics WHERE job=1"), STEPS);
        assert_int_equal(number(&base, "SELECT count(*) FROM events WHERE job=1"), 2);
        assert_int_equal(number(&base, "SELECT count(*) FROM events WHERE job=1 AND seq=1 AND"
                                       " kind='history_removed' AND message LIKE '%history 30'"),
                         1);
        assert_int_equal(number(&base, "SELECT count(*) FROM step_metrics WHERE job=2"), 9);
        assert_int_equal(number(&base, "SELECT count(*) FROM step_metrics WHERE job=2 AND step IN"
                                       " (1,14,27,40,53,66,79,92,100)"),
                         9);
        assert_int_equal(number(&base, "SELECT count(*) FROM events WHERE job=2"), 2);
        assert_int_equal(number(&base, "SELECT count(*) FROM step_metrics WHERE job=3"), STEPS);
    }
    assert_int_equal(number(&base, "SELECT count(*) FROM jobs"), 3);
    close_base(&base);
}

/* The newest 5 of 50 jobs keep their history: 45 lose it, 20 in a batch. A job that was resumed has
 * one again. */
static void history_beyond_a_count_goes_in_pieces(void **state)
{
    const struct hd_prune_record rule = {.now_ms = NOW, .history_jobs = 5};
    static const char all[] = "SELECT count(*) FROM jobs WHERE pruned=2";
    const int piece = HD_PIECE(20, 2); /* as JOBS_A_BATCH of the store */
    struct hd_job_record resumed = {.job = 50, .state = HD_JOB_STATE_RUNNING};
    struct hd_batch *batch = hd_batch_new();
    struct base base;

    open_base(&base);
    for (uint64_t job = 1; job <= 50; job++)
        add_ended(batch, job, (int64_t)job); /* 1 ended last */
    commit(&base, batch);
    prune(&base, &rule);
    assert_int_equal(number(&base, all), piece);
    for (int pruned = 0; pruned <= 45; pruned += piece)
        prune(&base, &rule);
    assert_int_equal(number(&base, all), 45);
    assert_int_equal(number(&base, "SELECT max(job) FROM jobs WHERE pruned=0"), 5);
    batch = hd_batch_new();
    hd_batch_add_job(batch, false, &resumed);
    commit(&base, batch);
    assert_int_equal(number(&base, all), 44);
    close_base(&base);
}

/* ---- the audit log ----------------------------------------------------------------------------*/

static void add_rows(struct hd_batch *batch, int count)
{
    const struct hd_audit_record row = {.time_ms = NOW,
                                        .who = "ann",
                                        .role = "user",
                                        .method = "CancelJob",
                                        .object = "job 7",
                                        .source = "unix",
                                        .result = "denied"};

    for (int i = 0; i < count; i++)
        hd_batch_add_audit(batch, &row);
}

/* Verifies like `heddle audit --verify`: the first row that does not follow; 0: all do. */
static uint64_t first_wrong(struct base *base)
{
    struct hd_query *query = hd_query_new(HD_QUERY_AUDIT);
    unsigned char hash[HD_PKI_HASH_BYTES] = {0};
    uint64_t wrong = 0;

    assert_int_equal(store_read_query(&base->db, query), HD_OK);
    for (size_t i = 0; i < query->audit_count && !wrong; i++) {
        const struct hd_audit_row *row = &query->audit[i];
        const char *const texts[] = HD_AUDIT_TEXTS(&row->record);

        hd_pki_chain(hash, row->seq, row->record.time_ms, texts, HD_AUDIT_TEXT_COUNT, hash);
        if (row->seq != i + 1 || memcmp(hash, row->hash, sizeof hash) != 0)
            wrong = row->seq;
    }
    hd_query_free(query);
    return wrong;
}

static int execute(struct base *base, const char *sql)
{
    return sqlite3_exec(base->db.sqlite, sql, NULL, NULL, NULL);
}

static void rows_of_the_audit_log_follow_from_each_other(void **state)
{
    struct hd_batch *batch = hd_batch_new();
    struct base base;

    open_base(&base);
    add_rows(batch, 3);
    commit(&base, batch);
    store_db_close(&base.db); /* the chain goes on after a restart */
    assert_int_equal(store_db_open(&base.db, base.dir, NULL), HD_OK);
    batch = hd_batch_new();
    add_rows(batch, 3);
    commit(&base, batch);
    assert_int_equal(first_wrong(&base), 0);
    assert_int_equal(number(&base, "SELECT max(seq) FROM audit"), 6);
    close_base(&base);
}

/* Whoever writes to the file: SQLite refuses, and where its triggers are taken away, the chain
 * shows it. Row 3 left out: row 4 does not follow. */
static void a_changed_audit_log_shows_it(void **state)
{
    struct hd_batch *batch = hd_batch_new();
    struct base base;

    open_base(&base);
    add_rows(batch, 6);
    commit(&base, batch);
    assert_int_not_equal(execute(&base, "UPDATE audit SET result='ok' WHERE seq=2"), SQLITE_OK);
    assert_int_not_equal(execute(&base, "DELETE FROM audit WHERE seq=6"), SQLITE_OK);
    assert_int_equal(first_wrong(&base), 0);
    assert_int_equal(execute(&base, "DROP TRIGGER audit_is_kept; DROP TRIGGER"
                                    " audit_is_not_changed; DELETE FROM audit WHERE seq=3"),
                     SQLITE_OK);
    assert_int_equal(first_wrong(&base), 4);
    assert_int_equal(execute(&base, "UPDATE audit SET result='ok' WHERE seq=2"), SQLITE_OK);
    assert_int_equal(first_wrong(&base), 2);
    close_base(&base);
}

static void add_user(struct hd_batch *batch, uint64_t job, enum hd_job_state state)
{
    static const char spec[] = "data.train: /jobs/1/samples.npy";
    char id[32];
    const struct hd_job_record record = {.job = job,
                                         .request_id = id,
                                         .owner = "ann",
                                         .name = "user",
                                         .state = state,
                                         .spec = (const uint8_t *)spec,
                                         .spec_bytes = sizeof spec};

    (void)snprintf(id, sizeof id, "user-%d", (int)job);
    hd_batch_add_job(batch, true, &record);
}

/* Goal: nothing in use is removed, however many jobs name the folder. Method: of four that do, the
 * last one runs, and two are asked for. */
static void a_live_user_of_a_folder_comes_first(void **state)
{
    struct hd_query *query = hd_query_new(HD_QUERY_USERS);
    struct hd_batch *batch = hd_batch_new();
    struct base base;

    open_base(&base);
    for (uint64_t job = 2; job <= 4; job++)
        add_user(batch, job, HD_JOB_STATE_SUCCEEDED);
    add_user(batch, 5, HD_JOB_STATE_RUNNING);
    commit(&base, batch);
    query->job = 1;
    query->text = "/jobs/1/";
    query->limit = 2;
    assert_int_equal(store_read_query(&base.db, query), HD_OK);
    assert_int_equal(query->job_count, 2);
    assert_int_equal(query->jobs[0].record.job, 5);
    assert_int_equal(query->jobs[1].record.job, 2);
    hd_query_free(query);
    close_base(&base);
}

RUN_CASES()
