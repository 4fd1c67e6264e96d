/* store: what queries read is what was written, and so is the whole state of the core. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sqlite3.h>

#include "base/random.h"
#include "controller/core/core.h"
#include "sim.h"
#include "store_bench.h"

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

    query = hd_query_new(HD_QUERY_JOBS);
    query->name = "?o*"; /* all are named job */
    query->owner = "bob";
    query->states = 1u << HD_JOB_STATE_RUNNING;
    query->before_job = 20;
    query->limit = 2;
    assert_int_equal(needs(&bench, query).query->job_count, 2); /* 18, 12; 6 is left */
    assert_int_equal(query->jobs[1].record.job, 12);
    assert_true(query->more);
    hd_query_free(query);
    query = hd_query_new(HD_QUERY_JOBS);
    query->name = "jo";
    assert_int_equal(needs(&bench, query).query->job_count, 0);
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

RUN_CASES_BETWEEN(register_disk, NULL)
