/* store_bench: a store in a temporary directory on a loop of its own, for the tests of the store. */
#ifndef HD_TESTS_STORE_BENCH_H
#define HD_TESTS_STORE_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "controller/store/store_internal.h"
#include "disk_vfs.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

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

static inline void on_trouble(void *user, const char *message)
{
    struct bench *bench = user;

    bench->troubles += message != NULL;
    (void)snprintf(bench->trouble, sizeof bench->trouble, "%s", message ? message : "");
}

static inline void on_fatal(void *user, const struct hd_error *error)
{
    ((struct bench *)user)->fatal = *error;
}

static inline enum hd_status open_store(struct bench *bench, const char *vfs)
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

static inline void on_closed(void *user)
{
    ((struct bench *)user)->closed = true;
}

static inline void close_store(struct bench *bench, int64_t timeout_ms)
{
    hd_store_close(bench->store, timeout_ms, on_closed, bench);
    while (!bench->closed)
        (void)uv_run(&bench->loop, UV_RUN_ONCE);
    bench->store = NULL;
}

static inline void start(struct bench *bench)
{
    *bench = (struct bench){0};
    assert_int_equal(uv_loop_init(&bench->loop), 0);
    temporary_dir(bench->dir, "heddle-store");
    disk_wipe();
}

static inline void finish(struct bench *bench)
{
    if (bench->store)
        close_store(bench, 1000);
    (void)uv_run(&bench->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&bench->loop), 0);
    assert_int_equal(hd_file_remove_tree(bench->dir), HD_OK);
    disk_wipe();
}

static inline void on_done(void *user, enum hd_status st)
{
    struct bench *bench = user;

    if (st)
        bench->aborted++;
    else
        bench->done++;
}

static inline void run_until_reported(struct bench *bench, int count)
{
    const int64_t end_ms = hd_clock_now_ms() + 20000;

    while (bench->done + bench->aborted < count && !bench->fatal.status) {
        (void)uv_run(&bench->loop, UV_RUN_ONCE);
        assert_true(hd_clock_now_ms() < end_ms);
    }
}

static inline void run_until_trouble(struct bench *bench, int count)
{
    const int64_t end_ms = hd_clock_now_ms() + 20000;

    while (bench->troubles < count) {
        (void)uv_run(&bench->loop, UV_RUN_ONCE);
        assert_int_equal(bench->fatal.status, HD_OK);
        assert_true(hd_clock_now_ms() < end_ms);
    }
}

static inline void add_job_of(struct hd_batch *batch, uint64_t job, const char *owner,
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

static inline void add_job(struct hd_batch *batch, uint64_t job)
{
    add_job_of(batch, job, "ann", HD_JOB_STATE_QUEUED);
}

static inline void commit_job(struct bench *bench, uint64_t job)
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

static inline enum hd_status count_node(void *user, const struct hd_node_record *node)
{
    struct census *census = user;

    census->nodes++;
    census->retired += node->retired;
    return HD_OK;
}

static inline enum hd_status count_request(void *user, const char *request_id, const char *owner,
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

static inline enum hd_status count_job(void *user, const struct hd_job_record *job,
                                       uint64_t sequence)
{
    struct census *census = user;

    assert_int_equal(sequence, 1); /* job and event came in one batch: both or none */
    assert_int_equal(job->spec_bytes, 4);
    census->jobs++;
    return HD_OK;
}

static inline enum hd_status count_end(void *user, uint64_t last_job, uint64_t cluster_sequence)
{
    ((struct census *)user)->last_job = last_job;
    return HD_OK;
}

static inline struct census load(struct bench *bench)
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

static inline void on_answer(struct hd_query *query, enum hd_status st)
{
    struct answer *answer = query->user;

    answer->query = query;
    answer->st = st;
    answer->there = true;
}

static inline struct answer needs(struct bench *bench, struct hd_query *query)
{
    struct answer answer = {0};

    query->done = on_answer;
    query->user = &answer;
    hd_store_query(bench->store, query);
    while (!answer.there)
        (void)uv_run(&bench->loop, UV_RUN_ONCE);
    return answer;
}

static inline int register_disk(void **state)
{
    disk_register();
    return 0;
}

#endif
