/* store: what it reports done survives a crash of the machine and a full or broken disk. */
#include <string.h>
#include <unistd.h>

#include "pki/pki.h"
#include "store_bench.h"
#include "tests/sanitized.h"

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

RUN_CASES_BETWEEN(register_disk, NULL)
