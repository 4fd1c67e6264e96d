/* store: what it reports done survives; what it reads is what was written. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"
#include "controller/core/core.h"
#include "controller/store/store_internal.h"
#include "disk_vfs.h"
#include "pki/pki.h"
#include "sim.h"
#include "tests/program/test.h"
#include "tests/sanitized.h"
#include "tests/temporary.h"
#include "version/version.h"

/* ---- a store on a loop ------------------------------------------------------------------------*/

struct bench {
    uv_loop_t loop;
    struct hd_job_store *store;
    char dir[TEMPORARY_BYTES];
    int done, aborted; /* batches reported */
    char trouble[HD_ERR_MAX];
    int troubles;
    struct hd_error fatal;
    bool closed;
};

static void on_trouble(void *user, const char *message)
{
    struct bench *bench = user;

    bench->troubles += message != NULL;
    (void)snprintf(bench->trouble, sizeof bench->trouble, "%s", message ? message : "");
}

static void on_fatal(void *user, const struct hd_error *error)
{
    ((struct bench *)user)->fatal = *error;
}

static enum hd_status open_store(struct bench *bench, const char *vfs)
{
    const struct hd_store_options options = {.dir = bench->dir,
                                             .vfs = vfs,
                                             .retry_ms = 5,
                                             .on_trouble = on_trouble,
                                             .on_fatal = on_fatal,
                                             .user = bench};

    bench->closed = false;
    return hd_store_open(&bench->loop, &options, &bench->store);
}

static void on_closed(void *user)
{
    ((struct bench *)user)->closed = true;
}

static void close_store(struct bench *bench, int64_t timeout_ms)
{
    hd_store_close(bench->store, timeout_ms, on_closed, bench);
    while (!bench->closed)
        (void)uv_run(&bench->loop, UV_RUN_ONCE);
    bench->store = NULL;
}

static void start(struct bench *bench)
{
    *bench = (struct bench){0};
    assert_int_equal(uv_loop_init(&bench->loop), 0);
    temporary_dir(bench->dir, "heddle-store");
    disk_wipe();
}

static void finish(struct bench *bench)
{
    if (bench->store)
        close_store(bench, 1000);
    (void)uv_run(&bench->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&bench->loop), 0);
    assert_int_equal(hd_file_remove_tree(bench->dir), HD_OK);
    disk_wipe();
}

static void on_done(void *user, enum hd_status st)
{
    struct bench *bench = user;

    if (st)
        bench->aborted++;
    else
        bench->done++;
}

static void run_until_reported(struct bench *bench, int count)
{
    const int64_t end_ms = hd_clock_now_ms() + 20000;

    while (bench->done + bench->aborted < count && !bench->fatal.status) {
        (void)uv_run(&bench->loop, UV_RUN_ONCE);
        assert_true(hd_clock_now_ms() < end_ms);
    }
}

static void run_until_trouble(struct bench *bench, int count)
{
    const int64_t end_ms = hd_clock_now_ms() + 20000;

    while (bench->troubles < count) {
        (void)uv_run(&bench->loop, UV_RUN_ONCE);
        assert_int_equal(bench->fatal.status, HD_OK);
        assert_true(hd_clock_now_ms() < end_ms);
    }
}

static void add_job_of(struct hd_batch *batch, uint64_t job, const char *owner,
                       enum hd_job_state state)
{
    char request[32];
    const struct hd_job_record record = {.job = job,
                                         .request_id = request,
                                         .owner = owner,
                                         .name = "job",
                                         .state = state,
                                         .steps = 10,
                                         .spec = "spec",
                                         .spec_bytes = 4};
    const struct hd_event_record event = {
        .job = job, .sequence = 1, .rank = -1, .kind = "submitted", .message = "by a test"};

    (void)snprintf(request, sizeof request, "request-%llu", (unsigned long long)job);
    hd_batch_add_job(batch, true, &record);
    hd_batch_add_event(batch, &event);
}

static void add_job(struct hd_batch *batch, uint64_t job)
{
    add_job_of(batch, job, "ann", HD_JOB_STATE_QUEUED);
}

static void commit_job(struct bench *bench, uint64_t job)
{
    struct hd_batch *batch = hd_batch_new();

    assert_non_null(batch);
    add_job(batch, job);
    hd_store_commit(bench->store, batch, on_done, bench);
}

/* ---- loading ----------------------------------------------------------------------------------*/

struct census {
    uint64_t requests, last_job, jobs, nodes, retired;
    int32_t seen[4096];
};

static enum hd_status count_node(void *user, const struct hd_node_record *node)
{
    struct census *census = user;

    census->nodes++;
    census->retired += node->retired;
    return HD_OK;
}

static enum hd_status count_request(void *user, const char *request_id, const char *owner,
                                    uint64_t job, uint64_t hash, enum hd_job_state state)
{
    struct census *census = user;
    char expected[32];

    (void)snprintf(expected, sizeof expected, "request-%llu", (unsigned long long)job);
    assert_string_equal(request_id, expected);
    census->requests++;
    census->seen[job]++;
    return HD_OK;
}

static enum hd_status count_job(void *user, const struct hd_job_record *job, uint64_t sequence)
{
    struct census *census = user;

    assert_int_equal(sequence, 1); /* job and event came in one batch: both or none */
    assert_int_equal(job->spec_bytes, 4);
    census->jobs++;
    return HD_OK;
}

static enum hd_status count_end(void *user, uint64_t last_job, uint64_t cluster_sequence)
{
    ((struct census *)user)->last_job = last_job;
    return HD_OK;
}

static struct census load(struct bench *bench)
{
    struct census census = {0};
    const struct hd_store_loader loader = {.node = count_node,
                                           .request = count_request,
                                           .job = count_job,
                                           .end = count_end,
                                           .user = &census};

    assert_int_equal(hd_store_load(bench->store, &loader), HD_OK);
    return census;
}

/* ---- asking -----------------------------------------------------------------------------------*/

struct answer {
    struct hd_query *query;
    enum hd_status st;
    bool there;
};

static void on_answer(struct hd_query *query, enum hd_status st)
{
    struct answer *answer = query->user;

    answer->query = query;
    answer->st = st;
    answer->there = true;
}

static struct answer needs(struct bench *bench, struct hd_query *query)
{
    struct answer answer = {0};

    query->done = on_answer;
    query->user = &answer;
    hd_store_query(bench->store, query);
    while (!answer.there)
        (void)uv_run(&bench->loop, UV_RUN_ONCE);
    return answer;
}

/* ---- durability -------------------------------------------------------------------------------*/

static void jobs_survive_a_reopening(void **state)
{
    struct bench bench;
    struct census census;

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    for (uint64_t job = 1; job <= 500; job++)
        commit_job(&bench, job);
    run_until_reported(&bench, 500);
    close_store(&bench, 1000);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    census = load(&bench);
    assert_int_equal(census.jobs, 500);
    assert_int_equal(census.last_job, 500);
    finish(&bench);
}

/* Jobs 1, 2, 3 .. one after the other, sometimes several at once, until the power is gone. */
static int work_until_the_cut(struct bench *bench, int count)
{
    int queued = 0;

    while (queued < count && !bench->aborted) {
        for (int k = 0; k <= queued % 3 && queued < count; k++)
            commit_job(bench, (uint64_t)++queued);
        while (bench->done < queued && !bench->troubles && !bench->fatal.status)
            (void)uv_run(&bench->loop, UV_RUN_ONCE);
        if (bench->troubles || bench->fatal.status)
            break;
    }
    return queued;
}

/* After the cut: everything acknowledged is there, once, and what is there has no hole. */
static void expect_whole(struct bench *bench, int acknowledged, int queued)
{
    struct census census = load(bench);

    assert_int_equal(census.jobs, census.requests);
    assert_int_equal(census.jobs, census.last_job);
    if ((int)census.last_job < acknowledged)
        fail_msg("%d jobs were acknowledged, %d are there", acknowledged, (int)census.last_job);
    assert_true((int)census.last_job <= queued);
    for (uint64_t job = 1; job <= census.last_job; job++)
        assert_int_equal(census.seen[job], 1);
}

enum { SWEEP_JOBS = 12 };

/* One life of a store, cut at its operation number `cut`; false when the work ended before it. */
static bool live_and_die(int64_t cut, enum disk_cut kept)
{
    struct bench bench;
    bool was_cut = false;
    int queued = 0, acknowledged;
    enum hd_status st;

    start(&bench);
    disk_fail_from(cut);
    st = open_store(&bench, DISK_VFS);
    if (!st) {
        queued = work_until_the_cut(&bench, SWEEP_JOBS);
        was_cut = bench.troubles || bench.fatal.status;
        close_store(&bench, 0); /* the power is gone: nothing more can be written */
    } else {
        was_cut = true;
        assert_int_equal(st, HD_IO);
    }
    acknowledged = bench.done;
    disk_power_cut(kept, (uint64_t)cut);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    expect_whole(&bench, acknowledged, queued);
    finish(&bench);
    return was_cut;
}

/* At every third operation, beginning elsewhere for each of the three ways to cut, so that each
 * operation is cut; with a sanitizer at every twelfth. */
static void sweep(enum disk_cut kept)
{
    const int64_t step = HD_TEST_SANITIZED ? 12 : 3;
    int64_t cut = 1 + (int64_t)kept;

    while (live_and_die(cut, kept))
        cut += step;
    print_message("%lld points of time, each with a power cut\n", (long long)(cut - 1) / step);
    assert_true(cut > 2 * SWEEP_JOBS); /* at least a write and a sync for each commit */
}

static void nothing_acknowledged_is_lost_when_unsynced_writes_vanish(void **state)
{
    sweep(DISK_KEEPS_NOTHING);
}

static void nothing_acknowledged_is_lost_when_unsynced_writes_stay(void **state)
{
    sweep(DISK_KEEPS_ALL);
}

static void nothing_acknowledged_is_lost_when_sectors_survive_at_random(void **state)
{
    sweep(DISK_KEEPS_SOME);
}

/* Goal: the sweeps can fail. Method: a disk that lies about syncs loses what was acknowledged. */
static void a_disk_that_ignores_syncs_is_noticed_by_this_test(void **state)
{
    struct bench bench;
    struct census census;

    start(&bench);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    commit_job(&bench, 1);
    run_until_reported(&bench, 1);
    disk_ignore_syncs(true);
    commit_job(&bench, 2);
    run_until_reported(&bench, 2);
    disk_power_cut(DISK_KEEPS_NOTHING, 1); /* before SQLite tidies up */
    hd_store_close(bench.store, 0, on_closed, &bench);
    while (!bench.closed)
        (void)uv_run(&bench.loop, UV_RUN_ONCE);
    bench.store = NULL;
    disk_power_cut(DISK_KEEPS_NOTHING, 1);
    disk_ignore_syncs(false);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    census = load(&bench);
    assert_int_equal(census.jobs, 1);
    finish(&bench);
}

static void a_full_disk_is_told_and_waited_out(void **state)
{
    struct bench bench;

    start(&bench);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    commit_job(&bench, 1);
    run_until_reported(&bench, 1);
    assert_null(hd_store_trouble(bench.store));
    disk_set_full(true);
    for (uint64_t job = 2; job <= 40; job++) /* more than one page's worth: files must grow */
        commit_job(&bench, job);
    run_until_trouble(&bench, 1);
    assert_non_null(strstr(bench.trouble, "the disk is full"));
    assert_non_null(hd_store_trouble(bench.store));
    assert_int_equal(bench.done, 1);
    disk_set_full(false);
    run_until_reported(&bench, 40);
    assert_int_equal(bench.done, 40);
    assert_null(hd_store_trouble(bench.store));
    close_store(&bench, 1000);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    assert_int_equal(load(&bench).jobs, 40);
    finish(&bench);
}

/* Until the writer has answered: it may be in the middle of something. */
static void run_until_heard(struct bench *bench)
{
    bool heard = false;

    for (int i = 0; i < 5000 && !heard; i++) {
        (void)uv_run(&bench->loop, UV_RUN_NOWAIT);
        (void)usleep(1000);
        heard = hd_store_silent_ms(bench->store) == 0; /* until it is asked again */
    }
    assert_true(heard);
}

/* Goal: a watchdog ends a controller whose writer hangs, and none whose disk is full. */
static void a_writer_that_hangs_is_told_from_a_full_disk(void **state)
{
    struct bench bench;

    start(&bench);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    run_until_heard(&bench);
    disk_hold_syncs(true);
    commit_job(&bench, 1);
    (void)uv_run(&bench.loop, UV_RUN_NOWAIT); /* hands it over */
    disk_wait_held();                         /* the writer is in the sync */
    (void)hd_store_silent_ms(bench.store);    /* asks */
    (void)usleep(50000);
    assert_true(hd_store_silent_ms(bench.store) >= 50);
    disk_hold_syncs(false);
    run_until_reported(&bench, 1);
    run_until_heard(&bench);

    disk_set_full(true);
    for (uint64_t job = 2; job <= 40; job++)
        commit_job(&bench, job);
    run_until_trouble(&bench, 1);
    run_until_heard(&bench); /* it goes round in retries */
    disk_set_full(false);
    run_until_reported(&bench, 40);
    finish(&bench);
}

static void a_failing_disk_is_tried_again_in_order(void **state)
{
    struct bench bench;

    start(&bench);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    for (uint64_t job = 1; job <= 20; job++) {
        disk_set_broken(job % 2);
        commit_job(&bench, job);
        if (job % 2) {
            run_until_trouble(&bench, bench.troubles + 1);
            disk_set_broken(false);
        }
        run_until_reported(&bench, (int)job);
    }
    close_store(&bench, 1000);
    disk_power_cut(DISK_KEEPS_NOTHING, 1);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    expect_whole(&bench, 20, 20);
    finish(&bench);
}

/* Goal: many submissions share one commit. Method: 50 are queued before the loop goes round, slowly
 * enough for an eager writer to commit each alone, and what is done on the disk is counted: it must
 * be that of a few commits (their rows fill a few pages more than one row does), not of 50. */
static void what_a_round_of_the_loop_queues_is_one_commit(void **state)
{
    struct bench bench;
    int64_t before, alone, together;

    start(&bench);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    commit_job(&bench, 1);
    run_until_reported(&bench, 1);
    before = disk_operations();
    commit_job(&bench, 2);
    run_until_reported(&bench, 2);
    alone = disk_operations() - before;
    for (uint64_t job = 3; job <= 52; job++) {
        commit_job(&bench, job);
        (void)usleep(1000);
    }
    run_until_reported(&bench, 52);
    together = disk_operations() - before - alone;
    if (together > 5 * alone)
        fail_msg("one job is %lld operations on the disk, 50 together are %lld", (long long)alone,
                 (long long)together);
    finish(&bench);
}

/* Nothing can be written, but what is durable can be read: people still see their jobs. */
/* A transaction that fails is tried again as a whole: its rows follow from the same row as before.
 */
static void the_audit_log_survives_a_full_disk(void **state)
{
    const struct hd_audit_record row = {.who = "ann", .method = "SubmitJob", .result = "ok"};
    const char *const texts[] = {"ann", "", "SubmitJob", "", "", "ok"};
    unsigned char hash[HD_PKI_HASH_BYTES] = {0};
    struct hd_query *query = hd_query_new(HD_QUERY_AUDIT);
    struct bench bench;

    start(&bench);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    disk_set_full(true);
    for (uint64_t job = 1; job <= 40; job++) {
        struct hd_batch *batch = hd_batch_new();

        add_job(batch, job);
        hd_batch_add_audit(batch, &row);
        hd_store_commit(bench.store, batch, on_done, &bench);
    }
    run_until_trouble(&bench, 1);
    disk_set_full(false);
    run_until_reported(&bench, 40);
    assert_int_equal(needs(&bench, query).st, HD_OK);
    assert_int_equal(query->audit_count, 40);
    for (size_t i = 0; i < query->audit_count; i++) {
        assert_int_equal(query->audit[i].seq, i + 1);
        hd_pki_chain(hash, i + 1, 0, texts, 6, hash);
        assert_memory_equal(query->audit[i].hash, hash, sizeof hash);
    }
    hd_query_free(query);
    finish(&bench);
}

static void a_full_disk_does_not_stop_queries(void **state)
{
    struct bench bench;
    struct hd_query *query = hd_query_new(HD_QUERY_JOBS);

    start(&bench);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    commit_job(&bench, 1);
    run_until_reported(&bench, 1);
    disk_set_broken(true);
    commit_job(&bench, 2);
    run_until_trouble(&bench, 1);
    assert_int_equal(needs(&bench, query).st, HD_OK);
    assert_int_equal(query->job_count, 1);
    hd_query_free(query);
    disk_set_broken(false);
    run_until_reported(&bench, 2);
    finish(&bench);
}

/* Updates of one job, of which the last one wins. Two queue up while nothing can be written, one of
 * them while the store waits to try again. */
static void what_had_to_wait_is_committed_in_order(void **state)
{
    static const char *const reasons[] = {"first", "second", "third"};
    struct bench bench;
    struct hd_query *query = hd_query_new(HD_QUERY_JOB);
    struct hd_job_record record = {.job = 1, .state = HD_JOB_STATE_QUEUED};

    start(&bench);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    disk_set_broken(true);
    commit_job(&bench, 1);
    for (int i = 0; i < 3; i++) {
        struct hd_batch *batch = hd_batch_new();

        record.reason = reasons[i];
        hd_batch_add_job(batch, false, &record);
        hd_store_commit(bench.store, batch, on_done, &bench);
        if (i == 0)
            run_until_trouble(&bench, 1);
    }
    (void)usleep(20000); /* it tries every 5 ms */
    disk_set_broken(false);
    run_until_reported(&bench, 4);
    assert_int_equal(bench.done, 4);
    query->job = 1;
    assert_int_equal(needs(&bench, query).st, HD_OK);
    assert_string_equal(query->jobs[0].record.reason, "third");
    hd_query_free(query);
    finish(&bench);
}

static void mend_disk(uv_timer_t *timer)
{
    disk_set_broken(false);
    uv_close((uv_handle_t *)timer, NULL);
}

/* A disk that recovers within the time given costs nothing. */
static void closing_waits_for_a_disk_that_recovers(void **state)
{
    struct bench bench;
    uv_timer_t timer;

    start(&bench);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    disk_set_broken(true);
    commit_job(&bench, 1);
    run_until_trouble(&bench, 1);
    assert_int_equal(uv_timer_init(&bench.loop, &timer), 0);
    assert_int_equal(uv_timer_start(&timer, mend_disk, 100, 0), 0);
    close_store(&bench, 20000);
    assert_int_equal(bench.done, 1);
    assert_int_equal(bench.aborted, 0);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    assert_int_equal(load(&bench).jobs, 1);
    finish(&bench);
}

static void closing_with_a_broken_disk_gives_up_and_says_so(void **state)
{
    struct bench bench;

    start(&bench);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    disk_set_broken(true);
    commit_job(&bench, 1);
    close_store(&bench, 20);
    assert_int_equal(bench.done, 0);
    assert_int_equal(bench.aborted, 1);
    finish(&bench);
}

/* ---- opening ----------------------------------------------------------------------------------*/

static void a_directory_has_one_controller(void **state)
{
    struct bench bench;
    struct hd_job_store *second;
    const struct hd_store_options options = {.dir = bench.dir};

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    assert_int_equal(hd_store_open(&bench.loop, &options, &second), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), bench.dir));
    finish(&bench);
}

static void a_damaged_database_is_refused(void **state)
{
    struct bench bench;

    start(&bench);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    for (uint64_t job = 1; job <= 50; job++)
        commit_job(&bench, job);
    run_until_reported(&bench, 50);
    close_store(&bench, 1000);
    for (int64_t offset = 4096; offset < 12 * 4096; offset += 4096)
        disk_damage("state.db", offset); /* the first byte of a page says what kind it is */
    assert_int_equal(open_store(&bench, DISK_VFS), HD_CORRUPT);
    assert_non_null(strstr(hd_err_message(), "state.db"));
    finish(&bench);
}

static void a_newer_schema_is_refused(void **state)
{
    struct bench bench;
    char path[128];
    sqlite3 *db;

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    close_store(&bench, 1000);
    (void)snprintf(path, sizeof path, "%s/state.db", bench.dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version = 999", NULL, NULL, NULL), SQLITE_OK);
    (void)sqlite3_close(db);
    assert_int_equal(open_store(&bench, NULL), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "999"));
    assert_non_null(strstr(hd_err_message(), hd_version_text)); /* which build wrote it */
    assert_non_null(strstr(hd_err_message(), "\"Go back\""));
    finish(&bench);
}

/* A database as an older build left it: without what the last migration added. */
static void an_older_schema_is_brought_up_to_date(void **state)
{
    static const char back[] =
        "DROP INDEX jobs_ended;"
        "ALTER TABLE jobs DROP COLUMN pruned;"
        "DROP TABLE credentials;"
        "DROP TABLE audit;"
        "ALTER TABLE checkpoints DROP COLUMN missing;"
        "ALTER TABLE checkpoints DROP COLUMN val_loss;"
        "ALTER TABLE checkpoints DROP COLUMN proven;"
        "ALTER TABLE jobs DROP COLUMN resumed_attempt;"
        "DROP INDEX jobs_removal;"
        "ALTER TABLE jobs DROP COLUMN removal;"
        "ALTER TABLE jobs DROP COLUMN request_hash;"
        "DROP TABLE probes;"
        "DROP TABLE queues;"
        "ALTER TABLE jobs DROP COLUMN queue;"
        "ALTER TABLE jobs DROP COLUMN priority;"
        "ALTER TABLE jobs DROP COLUMN held;"
        "ALTER TABLE jobs DROP COLUMN promised_ms;"
        "ALTER TABLE attempts DROP COLUMN stop_cause;"
        "ALTER TABLE attempts DROP COLUMN stop_job;"
        "ALTER TABLE attempts DROP COLUMN borrows;"
        "ALTER TABLE attempts DROP COLUMN run_as;"
        "ALTER TABLE attempts DROP COLUMN step_s;"
        "ALTER TABLE attempts DROP COLUMN memory_bytes;"
        "ALTER TABLE nodes DROP COLUMN drain_deadline_ms;"
        "ALTER TABLE nodes DROP COLUMN saw_jobs_dir;"
        "DROP INDEX jobs_owner;"
        "ALTER TABLE step_metrics DROP COLUMN metrics;"
        "ALTER TABLE step_metrics DROP COLUMN expert_load;"
        "ALTER TABLE step_metrics ADD COLUMN tokens INTEGER NOT NULL DEFAULT 96;"
        "ALTER TABLE step_metrics ADD COLUMN loss REAL;"
        "ALTER TABLE step_metrics ADD COLUMN grad_norm REAL DEFAULT 0.5;"
        "ALTER TABLE step_metrics ADD COLUMN lr REAL DEFAULT 0.25;"
        "ALTER TABLE step_metrics ADD COLUMN tokens_per_s REAL DEFAULT 1e5;"
        "ALTER TABLE step_metrics ADD COLUMN step_ms REAL DEFAULT 3;"
        "ALTER TABLE step_metrics ADD COLUMN mfu REAL DEFAULT 0.125;"
        "ALTER TABLE attempts DROP COLUMN layout;"
        "ALTER TABLE attempts ADD COLUMN pp INTEGER NOT NULL DEFAULT 1;"
        "ALTER TABLE attempts ADD COLUMN dp INTEGER NOT NULL DEFAULT 3;"
        "ALTER TABLE attempts ADD COLUMN cp INTEGER NOT NULL DEFAULT 1;"
        "ALTER TABLE attempts ADD COLUMN tp INTEGER NOT NULL DEFAULT 2;"
        "ALTER TABLE attempts ADD COLUMN ep INTEGER NOT NULL DEFAULT 1;"
        "ALTER TABLE attempts ADD COLUMN zero INTEGER NOT NULL DEFAULT 0;"
        "ALTER TABLE attempts ADD COLUMN micro_batch INTEGER NOT NULL DEFAULT 4;"
        "ALTER TABLE attempts ADD COLUMN micro_batches INTEGER NOT NULL DEFAULT 2;"
        "ALTER TABLE attempts ADD COLUMN schedule TEXT NOT NULL DEFAULT 'none';"
        "ALTER TABLE attempts ADD COLUMN recompute TEXT NOT NULL DEFAULT 'none';"
        "ALTER TABLE attempts ADD COLUMN precision INTEGER NOT NULL DEFAULT 2;"
        "ALTER TABLE attempts ADD COLUMN device TEXT NOT NULL DEFAULT 'cpu';"
        "ALTER TABLE attempts ADD COLUMN threads INTEGER NOT NULL DEFAULT 0;"
        "PRAGMA user_version = 1";
    const struct hd_step_record step = {.job = 1, .sequence = 2, .attempt = 1, .step = 7};
    const struct hd_attempt_record attempt = {.job = 1,
                                              .attempt = 1,
                                              .state = HD_ATTEMPT_STATE_RUNNING,
                                              .plan = {.layout = {.precision = "fp32",
                                                                  .schedule = "none",
                                                                  .recompute = "none",
                                                                  .offload = "none",
                                                                  .cp_exchange = "ring",
                                                                  .stages = "auto",
                                                                  .device = "cpu",
                                                                  .threads = 1}}};
    struct bench bench;
    const struct hd_layout_sizes *layout;
    struct hd_query *query;
    struct hd_batch *batch = hd_batch_new();
    char path[128];
    sqlite3 *db;

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    add_job(batch, 1);
    hd_batch_add_attempt(batch, &attempt);
    hd_batch_add_step(batch, &step);
    hd_store_commit(bench.store, batch, on_done, &bench);
    close_store(&bench, 1000);
    (void)snprintf(path, sizeof path, "%s/state.db", bench.dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, back, NULL, NULL, NULL))
        fail_msg("%s", sqlite3_errmsg(db));
    (void)sqlite3_close(db);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    query = hd_query_new(HD_QUERY_HISTORY);
    query->job = 1;
    assert_int_equal(needs(&bench, query).st, HD_OK);
    assert_int_equal(query->entry_count, 2);
    assert_int_equal(query->entries[1].step.step, 7);
    assert_int_equal(query->entries[1].step.expert_count, 0);
    assert_int_equal(query->entries[1].step.metrics.tokens, 96);
    assert_true(isnan(query->entries[1].step.metrics.loss)); /* NULL in the old column */
    assert_true(query->entries[1].step.metrics.mfu == 0.125);
    hd_query_free(query);
    query = hd_query_new(HD_QUERY_JOB);
    query->job = 1;
    assert_int_equal(needs(&bench, query).st, HD_OK);
    assert_int_equal(query->attempt_count, 1);
    layout = &query->attempts[0].plan.layout;
    assert_true(layout->tp == 2 && layout->dp == 3 && layout->micro_batch == 4);
    assert_true(layout->sequence == 0 && layout->threads == 1); /* 0 on a GPU in those days */
    assert_string_equal(layout->precision, "bf16");
    assert_string_equal(layout->cp_exchange, "ring");
    hd_query_free(query);
    finish(&bench);
}

static int64_t count_rows(struct store_db *db, const char *table, uint64_t job)
{
    char sql[96];
    sqlite3_stmt *s;
    int64_t count;

    (void)snprintf(sql, sizeof sql, "SELECT count(*) FROM %s WHERE job=%llu", table,
                   (unsigned long long)job);
    assert_int_equal(sqlite3_prepare_v2(db->sqlite, sql, -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    count = sqlite3_column_int64(s, 0);
    (void)sqlite3_finalize(s);
    return count;
}

/* The attempts stay until the folder is deleted: they say on which nodes it is. */
static void a_removed_job_keeps_only_its_number_and_request(void **state)
{
    static const char *const history[] = {"events", "step_metrics", "validations", "checkpoints",
                                          "report_positions"};
    const struct hd_node_record node = {.uuid = "u", .name = "n1", .state = HD_NODE_STATE_READY};
    struct hd_rank_location place = {.node_uuid = "u", .node_name = "n1"};
    struct hd_attempt_record attempt = {.job = 2,
                                        .attempt = 1,
                                        .state = HD_ATTEMPT_STATE_ENDED,
                                        .plan = {.layout = {.precision = "fp32",
                                                            .schedule = "none",
                                                            .recompute = "none",
                                                            .offload = "none",
                                                            .cp_exchange = "ring",
                                                            .stages = "auto",
                                                            .device = "cpu",
                                                            .threads = 1},
                                                 .ranks = &place,
                                                 .rank_count = 1}};
    const struct hd_checkpoint_record checkpoint = {.job = 2,
                                                    .attempt = 1,
                                                    .step = 5,
                                                    .node_uuid = "u",
                                                    .state = HD_CHECKPOINT_STATE_PRESENT,
                                                    .sequence = 2};
    const struct hd_step_record step = {.job = 2, .sequence = 3, .attempt = 1};
    const struct hd_validation_record validation = {.job = 2, .sequence = 4, .attempt = 1};
    const struct hd_position_record position = {.job = 2, .attempt = 1, .seq = 1};
    struct hd_job_record job = {.job = 2, .state = HD_JOB_STATE_SUCCEEDED};
    struct hd_query query = {.kind = HD_QUERY_JOB, .job = 2};
    struct hd_batch *batch = hd_batch_new();
    char dir[TEMPORARY_BYTES];
    struct store_db db;

    temporary_dir(dir, "heddle-store");
    assert_int_equal(store_db_open(&db, dir, NULL), HD_OK);
    add_job(batch, 1);
    add_job(batch, 2);
    hd_batch_add_node(batch, &node);
    hd_batch_add_attempt(batch, &attempt);
    hd_batch_add_checkpoint(batch, &checkpoint);
    attempt.attempt = 2;
    attempt.base_attempt = 1;
    attempt.base_step = 5;
    hd_batch_add_attempt(batch, &attempt);
    hd_batch_add_step(batch, &step);
    hd_batch_add_validation(batch, &validation);
    hd_batch_add_position(batch, &position);
    for (int removal = HD_REMOVAL_NONE; removal <= HD_REMOVAL_DONE; removal++) {
        job.removal = (enum hd_removal)removal;
        hd_batch_add_job(batch, false, &job);
        assert_int_equal(sqlite3_exec(db.sqlite, "BEGIN", NULL, NULL, NULL), SQLITE_OK);
        assert_int_equal(store_write_batch(&db, batch), HD_OK);
        assert_int_equal(sqlite3_exec(db.sqlite, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
        hd_batch_free(batch);
        batch = hd_batch_new();
        for (size_t i = 0; i < sizeof history / sizeof history[0]; i++)
            assert_int_equal(count_rows(&db, history[i], 2) > 0, removal == HD_REMOVAL_NONE);
        assert_int_equal(count_rows(&db, "attempts", 2), removal == HD_REMOVAL_DONE ? 0 : 2);
        assert_int_equal(count_rows(&db, "allocations", 2), removal == HD_REMOVAL_DONE ? 0 : 2);
        assert_int_equal(count_rows(&db, "jobs", 2), 1);
        hd_arena_init(&query.arena, 0);
        query.attempts = NULL;
        assert_int_equal(store_read_query(&db, &query), removal ? HD_NOT_FOUND : HD_OK);
        hd_arena_done(&query.arena);
    }
    assert_int_equal(count_rows(&db, "events", 1), 1); /* another job's */
    hd_batch_free(batch);
    store_db_close(&db);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

/* ---- backup -----------------------------------------------------------------------------------*/

static int backup_in_a_child(const char *dir, const char *file)
{
    struct hd_store_backup made;
    const pid_t child = fork();
    int status = 0;

    if (child == 0) { /* the locks of POSIX do not keep a process from itself */
        const enum hd_status st = hd_store_make_backup(dir, file, &made);

        _exit(st ? (int)st : made.jobs == 2 && made.last_job == 7 && made.size_bytes > 0 ? 0 : 255);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void put_jobs(struct bench *bench, uint64_t first, uint64_t second)
{
    struct hd_batch *batch = hd_batch_new();

    bench->done = 0;
    add_job(batch, first);
    if (second)
        add_job(batch, second);
    hd_store_commit(bench->store, batch, on_done, bench);
    run_until_reported(bench, 1);
}

/* Goal: a backup is one committed state, and the controller writes on meanwhile and after it. */
static void a_backup_of_an_open_store_holds_what_was_committed(void **state)
{
    struct bench bench;
    struct hd_query *query;
    char file[TEMPORARY_BYTES + 32], restored[TEMPORARY_BYTES + 32];

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    put_jobs(&bench, 3, 7);
    (void)snprintf(file, sizeof file, "%s/backup", bench.dir);
    assert_int_equal(backup_in_a_child(bench.dir, file), 0);
    put_jobs(&bench, 8, 0);
    assert_int_equal(backup_in_a_child(bench.dir, file), HD_EXISTS);
    close_store(&bench, 1000);

    /* as docs/operations.md restores it */
    (void)snprintf(restored, sizeof restored, "%s/state.db", bench.dir);
    assert_int_equal(rename(file, restored), 0);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    query = hd_query_new(HD_QUERY_JOBS);
    query->limit = 10;
    assert_int_equal(needs(&bench, query).st, HD_OK);
    assert_int_equal(query->job_count, 2); /* 3 and 7; 8 came later */
    hd_query_free(query);
    finish(&bench);
}

/* Goal: rm state.db under the controller loses no job. Method: as the message says, the copy that
 * the controller made gets the name. */
static void a_database_that_is_taken_away_is_told_and_copied(void **state)
{
    struct bench bench;
    char path[TEMPORARY_BYTES + 64], copy[TEMPORARY_BYTES + 64];
    struct hd_batch *batch = hd_batch_new();

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    put_jobs(&bench, 3, 7);
    (void)snprintf(path, sizeof path, "%s/state.db", bench.dir);
    (void)snprintf(copy, sizeof copy, "%s/away", bench.dir);
    assert_int_equal(rename(path, copy), 0);
    add_job(batch, 8);
    bench.done = 0;
    hd_store_commit(bench.store, batch, on_done, &bench);
    while (!bench.troubles && !bench.done)
        (void)uv_run(&bench.loop, UV_RUN_ONCE);
    assert_int_equal(bench.done, 0);
    assert_non_null(
        strstr(bench.trouble, "was removed, or replaced, under the running controller"));
    assert_int_equal(rename(copy, path), 0); /* moved back: as if nothing had been */
    run_until_reported(&bench, 1);
    assert_int_equal(bench.done, 1);

    (void)snprintf(copy, sizeof copy, "%s.rescued.%d", path, (int)getpid());
    assert_int_equal(unlink(copy), 0); /* of that first time */
    assert_int_equal(unlink(path), 0);
    batch = hd_batch_new();
    add_job(batch, 9);
    hd_store_commit(bench.store, batch, on_done, &bench);
    run_until_trouble(&bench, bench.troubles + 1);
    assert_non_null(strstr(bench.trouble, copy));
    close_store(&bench, 0);
    assert_int_equal(bench.aborted, 1); /* not told as written */
    assert_int_equal(rename(copy, path), 0);
    (void)snprintf(copy, sizeof copy, "%s-wal", path);
    (void)unlink(copy);
    (void)snprintf(copy, sizeof copy, "%s-shm", path);
    (void)unlink(copy);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    assert_int_equal(load(&bench).jobs, 3); /* 3, 7 and 8 */
    finish(&bench);
}

static void a_backup_of_nothing_is_refused(void **state)
{
    struct hd_store_backup made;
    struct bench bench;
    char file[TEMPORARY_BYTES + 32];

    start(&bench);
    (void)snprintf(file, sizeof file, "%s/backup", bench.dir);
    assert_int_equal(hd_store_make_backup(bench.dir, file, &made), HD_NOT_FOUND);
    assert_false(hd_file_exists(file));
    finish(&bench);
}

/* Goal: no damaged copy gets the name. Method: the first page of a table that the backup itself
 * does not read is overwritten; only the check of the whole copy can find it. */
static void a_backup_of_a_damaged_database_fails(void **state)
{
    static const char noise[4096] = "noise";
    struct hd_store_backup made;
    struct bench bench;
    struct store_db opened;
    char file[TEMPORARY_BYTES + 32], path[TEMPORARY_BYTES + 32], page[32];
    FILE *db;

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    put_jobs(&bench, 3, 7);
    close_store(&bench, 1000);
    assert_int_equal(store_db_open(&opened, bench.dir, NULL), HD_OK);
    assert_int_equal(store_db_read_text(&opened,
                                        "SELECT rootpage FROM sqlite_schema WHERE name='events'",
                                        page, sizeof page),
                     HD_OK);
    store_db_close(&opened);
    (void)snprintf(path, sizeof path, "%s/state.db", bench.dir);
    (void)snprintf(file, sizeof file, "%s/backup", bench.dir);
    db = fopen(path, "r+be");
    assert_non_null(db);
    assert_int_equal(fseek(db, (atol(page) - 1) * 4096, SEEK_SET), 0);
    assert_int_equal(fwrite(noise, 1, sizeof noise, db), sizeof noise);
    assert_int_equal(fclose(db), 0);
    assert_int_equal(hd_store_make_backup(bench.dir, file, &made), HD_CORRUPT);
    assert_false(hd_file_exists(file));
    finish(&bench);
}

/* A removed node leaves the table, unless an attempt that ran there refers to it. */
static void a_removed_node_is_gone_from_disk(void **state)
{
    struct hd_node_record node = {
        .uuid = "uuid-9", .name = "n9", .boot_id = "b", .build = "1", .state = HD_NODE_STATE_LOST};
    struct hd_rank_location place = {.node_uuid = "uuid-8", .node_name = "n8"};
    const struct hd_attempt_record attempt = {.job = 1,
                                              .attempt = 1,
                                              .state = HD_ATTEMPT_STATE_ENDED,
                                              .plan = {.layout = {.precision = "fp32",
                                                                  .schedule = "none",
                                                                  .recompute = "none",
                                                                  .offload = "none",
                                                                  .cp_exchange = "ring",
                                                                  .stages = "auto",
                                                                  .device = "cpu",
                                                                  .threads = 1},
                                                       .ranks = &place,
                                                       .rank_count = 1}};
    const struct hd_probe_record probe = {
        .node_uuid = "uuid-9", .ended_ms = 1, .problem = "", .measured_on = ""};
    struct hd_batch *batch = hd_batch_new();
    struct census census;
    struct bench bench;

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    add_job_of(batch, 1, "ann", HD_JOB_STATE_SUCCEEDED);
    hd_batch_add_node(batch, &node);
    hd_batch_add_probe(batch, &probe); /* it refers to the node, and goes with it */
    node.uuid = "uuid-8";
    node.name = "n8";
    hd_batch_add_node(batch, &node);
    hd_batch_add_attempt(batch, &attempt);
    node.retired = node.removed = true;
    hd_batch_add_node(batch, &node);
    node.uuid = "uuid-9";
    node.name = "n9";
    hd_batch_add_node(batch, &node);
    hd_store_commit(bench.store, batch, on_done, &bench);
    close_store(&bench, 1000);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    census = load(&bench);
    assert_int_equal(census.nodes, 1); /* n8, retired */
    assert_int_equal(census.retired, 1);
    finish(&bench);
}

/* A row that something else has written over: said, and never read as zeros. */
static void damaged_metrics_are_said(void **state)
{
    static const char *const damage[] = {"UPDATE step_metrics SET metrics=x''",
                                         "UPDATE step_metrics SET metrics=x'010203'",
                                         /* metric 4, tokens, is 1.5 */
                                         "UPDATE step_metrics SET metrics=x'0400000000000000f83f'"};
    const struct hd_step_record step = {.job = 1, .sequence = 2, .attempt = 1, .step = 7};

    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        struct bench bench;
        struct hd_query *query = hd_query_new(HD_QUERY_HISTORY);
        struct hd_batch *batch = hd_batch_new();
        char path[128];
        sqlite3 *db;

        start(&bench);
        assert_int_equal(open_store(&bench, NULL), HD_OK);
        add_job(batch, 1);
        hd_batch_add_step(batch, &step);
        hd_store_commit(bench.store, batch, on_done, &bench);
        close_store(&bench, 1000);
        (void)snprintf(path, sizeof path, "%s/state.db", bench.dir);
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        if (sqlite3_exec(db, damage[i], NULL, NULL, NULL))
            fail_msg("%s", sqlite3_errmsg(db));
        (void)sqlite3_close(db);
        assert_int_equal(open_store(&bench, NULL), HD_OK);
        query->job = 1;
        assert_int_equal(needs(&bench, query).st, HD_CORRUPT);
        hd_query_free(query);
        finish(&bench);
    }
}

static void the_cluster_keeps_its_identity(void **state)
{
    struct bench bench;
    char first[64];

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    (void)snprintf(first, sizeof first, "%s", hd_store_cluster_id(bench.store));
    assert_int_equal(strlen(first), 32);
    close_store(&bench, 1000);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    assert_string_equal(hd_store_cluster_id(bench.store), first);
    finish(&bench);
}

static void a_broken_rule_of_the_schema_is_fatal(void **state)
{
    struct bench bench;

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    commit_job(&bench, 1);
    run_until_reported(&bench, 1);
    commit_job(&bench, 1); /* the same number and request again */
    while (!bench.fatal.status)
        (void)uv_run(&bench.loop, UV_RUN_ONCE);
    assert_int_equal(bench.fatal.status, HD_INTERNAL);
    assert_int_equal(bench.done, 1);
    finish(&bench);
}

/* ---- queries ----------------------------------------------------------------------------------*/

static void lists_come_in_pages_newest_first(void **state)
{
    struct bench bench;
    struct hd_query *query;
    struct answer answer;
    uint64_t before = 0, expected = 25;

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    for (uint64_t job = 1; job <= 25; job++)
        commit_job(&bench, job);
    for (int page = 0; page < 3; page++) {
        query = hd_query_new(HD_QUERY_JOBS);
        query->limit = 10;
        query->before_job = before;
        query->owner = "ann";
        answer = needs(&bench, query); /* sees what was queued before it */
        assert_int_equal(answer.st, HD_OK);
        assert_int_equal(query->job_count, page < 2 ? 10 : 5);
        assert_int_equal(query->more, page < 2);
        for (size_t i = 0; i < query->job_count; i++)
            assert_int_equal(query->jobs[i].record.job, expected--);
        before = query->jobs[query->job_count - 1].record.job;
        hd_query_free(query);
    }
    query = hd_query_new(HD_QUERY_JOBS);
    query->owner = "bob";
    assert_int_equal(needs(&bench, query).query->job_count, 0);
    hd_query_free(query);
    query = hd_query_new(HD_QUERY_JOBS);
    query->states = 1u << HD_JOB_STATE_FAILED;
    assert_int_equal(needs(&bench, query).query->job_count, 0);
    hd_query_free(query);
    query = hd_query_new(HD_QUERY_JOB);
    query->job = 99;
    assert_int_equal(needs(&bench, query).st, HD_NOT_FOUND);
    hd_query_free(query);
    finish(&bench);
}

/* Lists by state and owner find what is in one and not the other, newest first, and say when there
 * is more. Ann has the odd jobs, bob the even ones; every third one is running. */
static void lists_are_filtered_by_state_and_owner(void **state)
{
    struct bench bench;
    struct hd_batch *batch = hd_batch_new();
    struct hd_query *query;

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    for (uint64_t job = 1; job <= 30; job++)
        add_job_of(batch, job, job % 2 ? "ann" : "bob",
                   job % 3 ? HD_JOB_STATE_QUEUED : HD_JOB_STATE_RUNNING);
    hd_store_commit(bench.store, batch, on_done, &bench);

    query = hd_query_new(HD_QUERY_JOBS);
    query->owner = "bob";
    query->states = 1u << HD_JOB_STATE_RUNNING;
    query->limit = 4;
    assert_int_equal(needs(&bench, query).query->job_count, 4); /* 30, 24, 18, 12; 6 is left */
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(query->jobs[i].record.job, 30 - 6 * i);
    assert_true(query->more);
    hd_query_free(query);

    query = hd_query_new(HD_QUERY_JOBS);
    query->states = 1u << HD_JOB_STATE_RUNNING | 1u << HD_JOB_STATE_QUEUED;
    query->before_job = 6;
    query->limit = 5;
    assert_int_equal(needs(&bench, query).query->job_count, 5); /* of both states: 5, 4, 3, 2, 1 */
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(query->jobs[i].record.job, 5 - i);
    assert_false(query->more);
    hd_query_free(query);

    query = hd_query_new(HD_QUERY_JOBS);
    query->owner = "ann"; /* of all states */
    query->before_job = 10;
    query->limit = 3;
    assert_int_equal(needs(&bench, query).query->job_count, 3); /* 9, which runs, 7, 5 */
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(query->jobs[i].record.job, 9 - 2 * i);
    hd_query_free(query);
    finish(&bench);
}

/* The steps of SQLite's machine that a list of one job at most takes. */
static int64_t steps_of_list(struct store_db *db, uint32_t states, const char *owner)
{
    struct hd_query *query = hd_query_new(HD_QUERY_JOBS);
    int64_t steps = 0;

    query->states = states;
    query->owner = owner;
    query->limit = 1;
    for (int i = 0; i < STORE_STATEMENT_COUNT; i++)
        (void)sqlite3_stmt_status(db->statements[i], SQLITE_STMTSTATUS_VM_STEP, 1);
    assert_int_equal(store_read_query(db, query), HD_OK);
    for (int i = 0; i < STORE_STATEMENT_COUNT; i++)
        steps += sqlite3_stmt_status(db->statements[i], SQLITE_STMTSTATUS_VM_STEP, 0);
    hd_query_free(query);
    return steps;
}

/* Goal: a filter that finds little does not read all jobs there are. Method: SQLite counts the
 * steps of its machine; among 50 jobs and among 2,000 they must be the same. */
static void a_list_costs_the_same_however_many_jobs_there_are(void **state)
{
    static const struct {
        uint32_t states;
        const char *owner;
    } lists[] = {{0, NULL},
                 {1u << HD_JOB_STATE_FAILED, NULL},
                 {1u << HD_JOB_STATE_FAILED | 1u << HD_JOB_STATE_CANCELLED, NULL},
                 {0, "bob"},
                 {1u << HD_JOB_STATE_QUEUED, "bob"},
                 {1u << HD_JOB_STATE_RUNNING, "ann"},
                 {0, "ann"}};
    enum { LISTS = sizeof lists / sizeof lists[0] };
    int64_t few[LISTS], many[LISTS];
    struct bench bench;
    struct store_db db;
    uint64_t job = 0;

    start(&bench);
    assert_int_equal(store_db_open(&db, bench.dir, NULL), HD_OK);
    for (int64_t *steps = few; steps; steps = steps == few ? many : NULL) {
        struct hd_batch *batch = hd_batch_new();

        while (job < (steps == few ? 50 : 2000))
            add_job(batch, ++job);
        assert_int_equal(store_db_run(&db, STORE_BEGIN, ""), HD_OK);
        assert_int_equal(store_write_batch(&db, batch), HD_OK);
        assert_int_equal(store_db_run(&db, STORE_COMMIT, ""), HD_OK);
        hd_batch_free(batch);
        for (size_t i = 0; i < LISTS; i++)
            steps[i] = steps_of_list(&db, lists[i].states, lists[i].owner);
    }
    store_db_close(&db);
    for (size_t i = 0; i < LISTS; i++)
        if (many[i] != few[i])
            fail_msg("list %zu takes %lld steps among 50 jobs, %lld among 2000", i,
                     (long long)few[i], (long long)many[i]);
    finish(&bench);
}

/* Pages that SQLite writes for a commit of 32 jobs whose request ids are random, as people's are.
 */
static int pages_of_commit(struct store_db *db, uint64_t *job)
{
    struct hd_batch *batch = hd_batch_new();
    int pages = 0, high = 0;

    for (int i = 0; i < 32; i++) {
        char request[40];
        const struct hd_job_record record = {.job = ++*job,
                                             .request_id = request,
                                             .owner = "ann",
                                             .name = "job",
                                             .state = HD_JOB_STATE_QUEUED,
                                             .spec = "spec",
                                             .spec_bytes = 4};
        const struct hd_event_record event = {.job = *job, .sequence = 1, .rank = -1};

        (void)snprintf(request, sizeof request, "%016llx%016llx",
                       (unsigned long long)hd_random_u64(1, *job),
                       (unsigned long long)hd_random_u64(2, *job));
        hd_batch_add_job(batch, true, &record);
        hd_batch_add_event(batch, &event);
    }
    assert_int_equal(sqlite3_db_status(db->sqlite, SQLITE_DBSTATUS_CACHE_WRITE, &pages, &high, 1),
                     SQLITE_OK);
    assert_int_equal(store_db_run(db, STORE_BEGIN, ""), HD_OK);
    assert_int_equal(store_write_batch(db, batch), HD_OK);
    assert_int_equal(store_db_run(db, STORE_COMMIT, ""), HD_OK);
    assert_int_equal(sqlite3_db_status(db->sqlite, SQLITE_DBSTATUS_CACHE_WRITE, &pages, &high, 1),
                     SQLITE_OK);
    hd_batch_free(batch);
    return pages;
}

/* Goal: a submission costs the disk the same however many there were. Method: the pages of 50
 * commits are counted among few jobs and among 8,000; new rows go to the end of each tree, so that
 * only the trees' heights may differ. */
static void a_commit_writes_as_many_pages_however_many_jobs_there_are(void **state)
{
    struct bench bench;
    struct store_db db;
    uint64_t job = 0;
    int few = 0, many = 0;

    start(&bench);
    assert_int_equal(store_db_open(&db, bench.dir, NULL), HD_OK);
    for (int i = 0; i < 250; i++) {
        const int pages = pages_of_commit(&db, &job);

        few += i < 50 ? pages : 0;
        many += i >= 200 ? pages : 0;
    }
    store_db_close(&db);
    if (many > few + few / 4)
        fail_msg("50 commits write %d pages among the first jobs, %d among 8000", few, many);
    finish(&bench);
}

/* A diverged job's loss is not a number; that must neither be refused nor come back as 0. */
static void a_loss_that_is_not_a_number_is_kept(void **state)
{
    struct bench bench;
    struct hd_query *query;
    struct hd_batch *batch = hd_batch_new();
    const struct hd_step_record step = {
        .job = 1,
        .sequence = 2,
        .attempt = 1,
        .step = 7,
        .metrics = {.loss = NAN, .grad_norm = INFINITY, .lr = 0.25}};

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    add_job(batch, 1);
    hd_batch_add_step(batch, &step);
    hd_store_commit(bench.store, batch, on_done, &bench);
    query = hd_query_new(HD_QUERY_HISTORY);
    query->job = 1;
    assert_int_equal(needs(&bench, query).st, HD_OK);
    assert_int_equal(query->entry_count, 2);
    assert_int_equal(query->entries[0].kind, HD_OP_EVENT);
    assert_int_equal(query->entries[1].kind, HD_OP_STEP);
    assert_true(isnan(query->entries[1].step.metrics.loss));
    assert_true(isinf(query->entries[1].step.metrics.grad_norm));
    assert_true(query->entries[1].step.metrics.lr == 0.25);
    hd_query_free(query);
    finish(&bench);
}

/* The record's array goes before it is written: the batch has its own. */
static void the_loads_of_experts_come_back(void **state)
{
    struct bench bench;
    struct hd_query *query;
    struct hd_batch *batch = hd_batch_new();
    int64_t load[3] = {5, 0, INT64_C(1) << 40};
    struct hd_step_record step = {
        .job = 1,
        .sequence = 2,
        .attempt = 1,
        .step = 7,
        .metrics = {.router_balance = 1.5, .router_z = 0.25, .router_dropped = 9},
        .expert_load = load,
        .expert_count = 3};

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    add_job(batch, 1);
    hd_batch_add_step(batch, &step);
    step = (struct hd_step_record){.job = 1, .sequence = 3, .attempt = 1, .step = 8};
    hd_batch_add_step(batch, &step); /* of a model without experts */
    memset(load, 0, sizeof load);
    hd_store_commit(bench.store, batch, on_done, &bench);
    query = hd_query_new(HD_QUERY_HISTORY);
    query->job = 1;
    assert_int_equal(needs(&bench, query).st, HD_OK);
    assert_int_equal(query->entry_count, 3);
    step = query->entries[1].step;
    assert_true(step.metrics.router_balance == 1.5 && step.metrics.router_z == 0.25);
    assert_int_equal(step.metrics.router_dropped, 9);
    assert_int_equal(step.expert_count, 3);
    assert_int_equal(step.expert_load[0], 5);
    assert_int_equal(step.expert_load[1], 0);
    assert_int_equal(step.expert_load[2], INT64_C(1) << 40);
    assert_int_equal(query->entries[2].step.expert_count, 0);
    hd_query_free(query);
    finish(&bench);
}

static void history_is_merged_in_order_and_resumed(void **state)
{
    struct bench bench;
    struct hd_query *query;
    struct hd_batch *batch = hd_batch_new();
    uint64_t after = 0, expected = 1;

    start(&bench);
    assert_int_equal(open_store(&bench, NULL), HD_OK);
    add_job(batch, 1);
    for (uint64_t sequence = 2; sequence <= 60; sequence++) {
        const struct hd_step_record step = {.job = 1, .sequence = sequence, .attempt = 1};
        const struct hd_validation_record validation = {
            .job = 1, .sequence = sequence, .attempt = 1};
        const struct hd_event_record event = {.job = 1, .sequence = sequence, .kind = "x"};

        if (sequence % 7 == 0)
            hd_batch_add_validation(batch, &validation);
        else if (sequence % 5 == 0)
            hd_batch_add_event(batch, &event);
        else
            hd_batch_add_step(batch, &step);
    }
    hd_store_commit(bench.store, batch, on_done, &bench);
    while (expected <= 60) {
        query = hd_query_new(HD_QUERY_HISTORY);
        query->job = 1;
        query->after = after;
        query->limit = 13;
        assert_int_equal(needs(&bench, query).st, HD_OK);
        assert_true(query->entry_count > 0);
        for (size_t i = 0; i < query->entry_count; i++) {
            const uint64_t sequence = query->entries[i].sequence;

            assert_int_equal(sequence, expected++);
            assert_int_equal(query->entries[i].kind, sequence % 7 == 0   ? HD_OP_VALIDATION
                                                     : sequence == 1     ? HD_OP_EVENT
                                                     : sequence % 5 == 0 ? HD_OP_EVENT
                                                                         : HD_OP_STEP);
        }
        after = expected - 1;
        hd_query_free(query);
    }
    finish(&bench);
}

/* ---- the core's whole state -------------------------------------------------------------------*/

struct rebuild {
    struct hd_core *core;
    struct hd_now now;
};

static enum hd_status put_node(void *user, const struct hd_node_record *node)
{
    return hd_core_restore_node(((struct rebuild *)user)->core, node);
}

static enum hd_status put_queue(void *user, const struct hd_queue_record *queue)
{
    return hd_core_restore_queue(((struct rebuild *)user)->core, queue);
}

static enum hd_status put_request(void *user, const char *request_id, const char *owner,
                                  uint64_t job, uint64_t hash, enum hd_job_state state)
{
    return hd_core_restore_request(((struct rebuild *)user)->core, request_id, owner, job, hash,
                                   state);
}

static enum hd_status put_job(void *user, const struct hd_job_record *job, uint64_t sequence)
{
    struct hd_job_needs spec;

    assert_int_equal(job->spec_bytes, sizeof spec);
    memcpy(&spec, job->spec, sizeof spec); /* as in the simulation */
    return hd_core_restore_job(((struct rebuild *)user)->core, job, &spec, sequence);
}

static enum hd_status put_attempt(void *user, const struct hd_attempt_record *attempt)
{
    return hd_core_restore_attempt(((struct rebuild *)user)->core, attempt);
}

static enum hd_status put_checkpoint(void *user, const struct hd_checkpoint_record *checkpoint)
{
    return hd_core_restore_checkpoint(((struct rebuild *)user)->core, checkpoint);
}

static enum hd_status put_position(void *user, const struct hd_position_record *position)
{
    return hd_core_restore_position(((struct rebuild *)user)->core, position);
}

static enum hd_status put_step(void *user, const struct hd_step_record *step)
{
    return hd_core_restore_step(((struct rebuild *)user)->core, step);
}

static enum hd_status put_end(void *user, uint64_t last_job, uint64_t cluster_sequence)
{
    struct rebuild *rebuild = user;

    return hd_core_restored(rebuild->core, last_job, cluster_sequence, rebuild->now);
}

static void expect_same_attempt(const struct hd_attempt_record *a,
                                const struct hd_attempt_record *b)
{
    assert_int_equal(a->state, b->state);
    assert_int_equal(a->base_attempt, b->base_attempt);
    assert_int_equal(a->base_step, b->base_step);
    assert_string_equal(a->base_path ? a->base_path : "", b->base_path ? b->base_path : "");
    assert_string_equal(a->base_hash ? a->base_hash : "", b->base_hash ? b->base_hash : "");
    assert_int_equal(a->created_ms, b->created_ms);
    assert_int_equal(a->running_ms, b->running_ms);
    assert_int_equal(a->ended_ms, b->ended_ms);
    assert_int_equal(a->end.cause, b->end.cause);
    assert_int_equal(a->end.rank, b->end.rank);
    assert_string_equal(a->end.node ? a->end.node : "", b->end.node ? b->end.node : "");
    assert_string_equal(a->end.message ? a->end.message : "", b->end.message ? b->end.message : "");
    assert_int_equal(a->end.signal, b->end.signal);
    assert_int_equal(a->end.bad_input, b->end.bad_input);
    assert_memory_equal(&a->plan.layout, &b->plan.layout, sizeof a->plan.layout);
    assert_int_equal(a->plan.rank_count, b->plan.rank_count);
    for (int32_t r = 0; r < a->plan.rank_count; r++) {
        assert_string_equal(a->plan.ranks[r].node_uuid, b->plan.ranks[r].node_uuid);
        assert_int_equal(a->plan.ranks[r].device, b->plan.ranks[r].device);
    }
}

static void expect_same_jobs(const struct hd_core *a, const struct hd_core *b)
{
    size_t live = 0;

    assert_int_equal(hd_core_live_jobs(a), hd_core_live_jobs(b));
    for (uint64_t number = 1; number < SIM_JOBS; number++) {
        const struct hd_job_record *x = hd_core_job(a, number), *y = hd_core_job(b, number);

        assert_int_equal(x != NULL, y != NULL);
        if (!x)
            continue;
        live++;
        assert_int_equal(x->state, y->state);
        assert_string_equal(x->request_id, y->request_id);
        assert_string_equal(x->owner, y->owner);
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->cancel, y->cancel);
        assert_int_equal(x->cancel_now, y->cancel_now);
        assert_int_equal(x->steps, y->steps);
        assert_int_equal(x->devices, y->devices);
        assert_int_equal(x->submitted_ms, y->submitted_ms);
        assert_int_equal(x->started_ms, y->started_ms);
        assert_int_equal(x->attempt_count, y->attempt_count);
        assert_memory_equal(x->spec, y->spec, x->spec_bytes);
        for (int32_t k = 1; k <= x->attempt_count; k++)
            expect_same_attempt(hd_core_attempt(a, number, k), hd_core_attempt(b, number, k));
    }
    assert_int_equal(live, hd_core_live_jobs(a));
}

static void expect_same_nodes(const struct hd_core *a, const struct hd_core *b)
{
    assert_int_equal(hd_core_node_count(a), hd_core_node_count(b));
    for (size_t i = 0; i < hd_core_node_count(a); i++) {
        struct hd_node_view x, y;

        hd_core_node_at(a, i, &x);
        hd_core_node_at(b, i, &y);
        assert_string_equal(x.record->uuid, y.record->uuid);
        assert_string_equal(x.record->name, y.record->name);
        assert_string_equal(x.record->boot_id, y.record->boot_id);
        assert_int_equal(x.record->state, y.record->state);
        assert_int_equal(x.record->drain, y.record->drain);
        assert_int_equal(x.record->device_count, y.record->device_count);
        for (int32_t d = 0; d < x.record->device_count; d++) {
            assert_int_equal(x.record->devices[d].threads, y.record->devices[d].threads);
            assert_int_equal(x.holds[d].job, y.holds[d].job);
            assert_int_equal(x.holds[d].attempt, y.holds[d].attempt);
        }
    }
}

static void keep_batch(void *user, struct hd_batch *batch)
{
    struct bench *bench = user;

    hd_store_commit(bench->store, batch, on_done, bench);
}

/* Goal: a controller that starts again knows all that the old one knew. Method: a disturbed world
 * runs on the real store; at several times a new core is built from it and compared. */
static void the_core_is_rebuilt_from_the_store(void **state)
{
    struct sim *sim = calloc(1, sizeof *sim);
    struct bench bench;

    assert_non_null(sim);
    start(&bench);
    assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
    sim_init(sim, 7);
    sim->on_durable = keep_batch;
    sim->on_durable_user = &bench;
    for (int round = 0; round < 12; round++) {
        struct rebuild rebuild = {.core = hd_core_new(&hd_core_config_default), .now = sim->now};
        const struct hd_store_loader loader = {.node = put_node,
                                               .queue = put_queue,
                                               .request = put_request,
                                               .job = put_job,
                                               .attempt = put_attempt,
                                               .checkpoint = put_checkpoint,
                                               .position = put_position,
                                               .step = put_step,
                                               .end = put_end,
                                               .user = &rebuild};
        struct hd_job_needs spec = sim_needs(1 + round % 2, 40);
        uint64_t job;

        spec.wish.sizes.tp = round > 6 ? 1 + round % 2 : 0;
        assert_int_equal(sim_submit(sim, &spec, &job), HD_OK);
        if (round % 4 == 3)
            assert_int_equal(sim_cancel(sim, job, false), HD_OK);
        sim->nodes[round % 2].faults = (struct sim_faults){.fail_at_step = 13, .fail_count = 1};
        if (round == 6)
            sim_reboot(sim, &sim->nodes[0]);
        sim_run(sim, 17);
        close_store(&bench, 5000);
        disk_power_cut(DISK_KEEPS_NOTHING, 1);
        assert_int_equal(open_store(&bench, DISK_VFS), HD_OK);
        assert_int_equal(hd_store_load(bench.store, &loader), HD_OK);
        assert_int_equal(hd_core_check(rebuild.core), HD_OK);
        expect_same_jobs(sim->core, rebuild.core);
        expect_same_nodes(sim->core, rebuild.core);
        hd_core_free(rebuild.core);
    }
    assert_int_equal(bench.aborted, 0);
    sim_done(sim);
    free(sim);
    finish(&bench);
}

static int register_disk(void **state)
{
    disk_register();
    return 0;
}

RUN_CASES_BETWEEN(register_disk, NULL)
