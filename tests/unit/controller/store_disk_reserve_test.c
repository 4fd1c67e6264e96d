/* store: on a full disk there is a reserve, which is made again; the log is bounded. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "controller/store/store_internal.h"
#include "disk_vfs.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

enum { RESERVE = 256 << 10, PAGE = 4096, FRAME = PAGE + 24, WAIT_MS = 20000 };

struct bench {
    uv_loop_t loop;
    struct hd_job_store *store;
    char dir[TEMPORARY_BYTES];
    int64_t reserve;
    int queued, done, aborted;
    bool closed;
    struct hd_query *answer;
};

static enum hd_status try_to_open(struct bench *b)
{
    const struct hd_store_options options = {
        .dir = b->dir, .vfs = DISK_VFS, .retry_ms = 5, .reserve_bytes = b->reserve, .user = b};

    b->closed = false;
    return hd_store_open(&b->loop, &options, &b->store);
}

static void open_store(struct bench *b)
{
    if (try_to_open(b))
        fail_msg("%s", hd_err_message());
}

static void on_closed(void *user)
{
    ((struct bench *)user)->closed = true;
}

static void close_store(struct bench *b)
{
    hd_store_close(b->store, WAIT_MS, on_closed, b);
    while (!b->closed)
        (void)uv_run(&b->loop, UV_RUN_ONCE);
}

static void start_with(struct bench *b, int64_t reserve)
{
    *b = (struct bench){.reserve = reserve};
    disk_register();
    disk_wipe();
    assert_int_equal(uv_loop_init(&b->loop), 0);
    temporary_dir(b->dir, "heddle-reserve");
    open_store(b);
}

static void start(struct bench *b)
{
    start_with(b, RESERVE);
}

static void finish(struct bench *b)
{
    close_store(b);
    (void)uv_run(&b->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&b->loop), 0);
    assert_int_equal(hd_file_remove_tree(b->dir), HD_OK);
    disk_wipe();
}

static void on_done(void *user, enum hd_status st)
{
    struct bench *b = user;

    *(st ? &b->aborted : &b->done) += 1;
}

static void transaction(struct bench *b, int64_t end_ms)
{
    (void)uv_run(&b->loop, UV_RUN_ONCE);
    assert_true(hd_clock_now_ms() < end_ms);
}

/* A job whose spec takes a page. */
static void commit_job(struct bench *b, uint64_t job)
{
    static const char spec[3000];
    struct hd_batch *batch = hd_batch_new();
    char id[32];
    const struct hd_job_record record = {.job = job,
                                         .request_id = id,
                                         .owner = "ann",
                                         .name = "tiny",
                                         .state = HD_JOB_STATE_QUEUED,
                                         .spec = spec,
                                         .spec_bytes = sizeof spec};

    (void)snprintf(id, sizeof id, "request-%d", (int)job);
    hd_batch_add_job(batch, true, &record);
    hd_store_commit(b->store, batch, on_done, b);
    b->queued++;
}

/* Until what was queued is done, or nothing can be written any more. True: it is done. */
static bool settle(struct bench *b)
{
    const int64_t end_ms = hd_clock_now_ms() + WAIT_MS;

    while (b->done < b->queued && hd_store_disk_state(b->store) != HD_STORE_STUCK)
        transaction(b, end_ms);
    return b->done == b->queued;
}

/* Each of these jobs by itself, until one waits. Returns how many were written. */
static int commit_until_stuck(struct bench *b, uint64_t *job)
{
    int written = 0;

    do {
        commit_job(b, ++*job);
    } while (settle(b) && ++written < 10000);
    assert_int_equal(hd_store_disk_state(b->store), HD_STORE_STUCK);
    return written;
}

static void wait_until_fine(struct bench *b)
{
    const int64_t end_ms = hd_clock_now_ms() + WAIT_MS;

    while (b->done < b->queued || hd_store_disk_state(b->store) != HD_STORE_FINE) {
        (void)uv_run(&b->loop, UV_RUN_NOWAIT);
        assert_true(hd_clock_now_ms() < end_ms);
    }
}

static void on_answer(struct hd_query *query, enum hd_status st)
{
    struct bench *b = query->user;

    assert_int_equal(st, HD_OK);
    b->answer = query;
}

static size_t count_jobs(struct bench *b)
{
    const int64_t end_ms = hd_clock_now_ms() + WAIT_MS;
    struct hd_query *query = hd_query_new(HD_QUERY_JOBS);
    size_t count;

    query->limit = 10000;
    query->done = on_answer;
    query->user = b;
    b->answer = NULL;
    hd_store_query(b->store, query);
    while (!b->answer)
        transaction(b, end_ms);
    count = query->job_count;
    hd_query_free(query);
    return count;
}

/* Goal: changes are written on a full disk, and told; at its end nothing that waits is lost, and
 * when there is room all goes back by itself. The reserve has 256 KiB, and a job takes less than
 * two pages of the database, which are in the log for a while, too: at least 256 / (2 * 2 * 4) = 16
 * jobs fit. */
static void a_full_disk_is_written_from_the_reserve_which_is_made_again(void **state)
{
    struct bench b;
    uint64_t job = 0;
    char needed[64];
    int written;

    start(&b);
    commit_job(&b, ++job);
    assert_true(settle(&b));
    assert_int_equal(hd_store_disk_state(b.store), HD_STORE_FINE);
    assert_null(hd_store_trouble(b.store));
    assert_int_equal(disk_size_of("/reserve"), RESERVE);

    disk_set_capacity(disk_used());
    while (hd_store_disk_state(b.store) == HD_STORE_FINE) {
        commit_job(&b, ++job);
        assert_true(settle(&b));
        assert_true(job < 1000);
    }
    assert_int_equal(hd_store_disk_state(b.store), HD_STORE_RESERVE);
    assert_non_null(strstr(hd_store_trouble(b.store), b.dir));
    /* the missing part of the reserve, and half of it more, so that the next write fits beside it */
    (void)snprintf(needed, sizeof needed, "free at least %lld.0 KiB there",
                   (long long)(RESERVE + RESERVE / 2 - disk_size_of("/reserve")) / 1024);
    assert_non_null(strstr(hd_store_trouble(b.store), needed));
    assert_int_equal(hd_store_reserve_left(b.store), disk_size_of("/reserve"));
    assert_true(disk_size_of("/reserve") < RESERVE);

    written = commit_until_stuck(&b, &job);
    if (written < 15)
        fail_msg("the reserve was enough for %d jobs", written + 1);
    assert_int_equal(disk_size_of("/reserve"), 0);
    assert_non_null(strstr(hd_store_trouble(b.store), "cannot write its state since "));
    assert_non_null(strstr(hd_store_trouble(b.store), "state.db: the disk is full"));
    assert_int_equal(count_jobs(&b), b.done); /* what is durable is answered */

    disk_set_capacity(0);
    wait_until_fine(&b);
    assert_int_equal(b.aborted, 0);
    assert_int_equal(hd_store_reserve_left(b.store), RESERVE);
    assert_int_equal(count_jobs(&b), job);
    close_store(&b);
    open_store(&b);
    assert_int_equal(count_jobs(&b), job);
    finish(&b);
}

/* Goal: another program that fills the disk takes of the reserve what it can, and still changes are
 * written. Of each of 8 pieces of 256 KiB it takes half. The rest is 256 pages, and the log needs
 * none, since it keeps its file: at two pages a job 128 jobs. */
static void what_fills_the_disk_does_not_get_all_of_the_reserve(void **state)
{
    struct bench b;
    uint64_t job = 0;
    int written;

    start_with(&b, 2 << 20);
    while (job < 300) { /* the log has its size, which it keeps */
        commit_job(&b, ++job);
        assert_true(settle(&b));
    }
    disk_set_greedy(true);
    disk_set_capacity(disk_used());
    written = commit_until_stuck(&b, &job);
    if (written < 128)
        fail_msg("%d jobs were written", written);
    disk_set_greedy(false);
    disk_set_capacity(0);
    wait_until_fine(&b);
    assert_int_equal(count_jobs(&b), job);
    finish(&b);
}

/* A controller that is started on a full disk opens its database with a piece of the reserve. */
static void a_store_opens_on_a_full_disk(void **state)
{
    struct bench b;
    uint64_t job = 0;

    start(&b);
    commit_job(&b, ++job);
    assert_true(settle(&b));
    close_store(&b);
    disk_set_capacity(disk_used());
    open_store(&b);
    commit_job(&b, ++job);
    assert_true(settle(&b));
    assert_int_equal(hd_store_disk_state(b.store), HD_STORE_RESERVE);
    disk_set_capacity(0);
    wait_until_fine(&b);
    finish(&b);
}

/* Nothing retries what a start could not write: it says to try again. */
static void without_a_reserve_a_start_on_a_full_disk_fails(void **state)
{
    struct bench b;

    start_with(&b, 0);
    close_store(&b);
    disk_wipe();
    disk_set_capacity(1);
    assert_int_equal(try_to_open(&b), HD_IO);
    assert_non_null(strstr(hd_err_message(), " MiB free); free some space, and try again"));
    disk_set_capacity(0);
    open_store(&b);
    finish(&b);
}

/* Goal: the log does not grow with what is committed. With a reserve of 256 KiB it is copied into
 * the database at 64 pages; a commit of one job is a few pages more. Without the bound it would
 * have three pages or more of each of 200 jobs. The first commit ends the log of the new schema,
 * which is one transaction. */
static void the_log_is_bounded(void **state)
{
    struct bench b;
    int64_t largest = 0;

    start(&b);
    commit_job(&b, 1);
    assert_true(settle(&b));
    for (uint64_t job = 2; job <= 200; job++) {
        commit_job(&b, job);
        assert_true(settle(&b));
        largest = disk_size_of("-wal") > largest ? disk_size_of("-wal") : largest;
    }
    if (largest > (RESERVE / PAGE + 32) * FRAME)
        fail_msg("the log has grown to %lld bytes", (long long)largest);
    finish(&b);
}

static void commit_step(struct bench *b, uint64_t sequence)
{
    struct hd_batch *batch = hd_batch_new();
    const struct hd_step_record step = {
        .job = 1, .sequence = sequence, .attempt = 1, .step = (int64_t)sequence};

    hd_batch_add_step(batch, &step);
    hd_store_commit(b->store, batch, on_done, b);
    b->queued++;
}

static size_t count_steps(struct bench *b, uint64_t *ret_newest)
{
    const int64_t end_ms = hd_clock_now_ms() + WAIT_MS;
    struct hd_query *query = hd_query_new(HD_QUERY_STEPS);
    size_t count;

    query->job = 1;
    query->limit = 10000;
    query->done = on_answer;
    query->user = b;
    b->answer = NULL;
    hd_store_query(b->store, query);
    while (!b->answer)
        transaction(b, end_ms);
    count = query->entry_count;
    *ret_newest = count ? query->entries[count - 1].sequence : 0;
    hd_query_free(query);
    return count;
}

/* Goal: steps do not use up what is kept for ends of jobs. Of steps 1 to 64, which come while less
 * than half of the reserve is left, stay 16, 32, 48 and 64; then 65 comes, and it is the newest. */
static void of_steps_few_are_kept_when_the_reserve_runs_out(void **state)
{
    struct bench b;
    uint64_t job = 0, newest;

    start(&b);
    commit_job(&b, ++job);
    assert_true(settle(&b));
    disk_set_capacity(disk_used());
    while (2 * hd_store_reserve_left(b.store) >= RESERVE) {
        commit_job(&b, ++job);
        assert_true(settle(&b));
    }
    for (uint64_t sequence = 1; sequence <= 65; sequence++)
        commit_step(&b, sequence);
    assert_true(settle(&b));
    assert_int_equal(count_steps(&b, &newest), 5);
    assert_int_equal(newest, 65);
    disk_set_capacity(0);
    wait_until_fine(&b);
    commit_step(&b, 66);
    commit_step(&b, 67);
    assert_true(settle(&b));
    assert_int_equal(count_steps(&b, &newest), 7);
    finish(&b);
}

RUN_CASES()
