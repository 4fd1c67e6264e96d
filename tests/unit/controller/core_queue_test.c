/* core: a hundred thousand jobs wait, and no step is dearer for it. These tests drive a core
 * without the simulation, which checks every invariant after each event and is slow for that. */
#include <stdio.h>
#include <string.h>

#include "sim.h"
#include "tests/program/tells.h"
#include "tests/program/test.h"

struct queue {
    struct hd_core *core;
    struct hd_core_out out;
    struct hd_now now;
    uint64_t requests;
    size_t near_limit_events; /* of the cluster */
};

static void start(struct queue *q, const struct hd_core_config *config)
{
    *q = (struct queue){.now = {.mono_ms = 1000, .wall_ms = 1700000000000}};
    q->core = hd_core_new(config);
    assert_non_null(q->core);
}

static void finish(struct queue *q)
{
    assert_int_equal(hd_core_check(q->core), HD_OK);
    hd_core_free(q->core);
    hd_core_out_done(&q->out);
}

static enum hd_status step(struct queue *q, const struct hd_core_event *event)
{
    struct hd_batch *batch = hd_batch_new();
    enum hd_status st;

    assert_non_null(batch);
    hd_core_out_clear(&q->out);
    q->out.batch = batch;
    st = hd_core_step(q->core, event, q->now, &q->out);
    for (const struct hd_batch_op *op = batch->first; op; op = op->next)
        q->near_limit_events += op->kind == HD_OP_EVENT && !op->event.job &&
                                strcmp(op->event.kind, "jobs_near_limit") == 0;
    hd_batch_free(batch);
    return st;
}

static enum hd_status submit_needs(struct queue *q, const struct hd_job_needs *needs)
{
    char request[32];
    const struct hd_core_event event = {.kind = HD_CORE_SUBMIT,
                                        .submit = {.request_id = request,
                                                   .owner = "ann",
                                                   .needs = *needs,
                                                   .spec = "spec",
                                                   .spec_bytes = 4}};

    (void)snprintf(request, sizeof request, "request-%llu", (unsigned long long)++q->requests);
    return step(q, &event);
}

static enum hd_status submit(struct queue *q, int devices)
{
    const struct hd_job_needs needs = sim_needs(devices, 10);

    return submit_needs(q, &needs);
}

static enum hd_status cancel(struct queue *q, uint64_t job)
{
    const struct hd_core_event event = {.kind = HD_CORE_CANCEL,
                                        .cancel = {.job = job, .by = "ann"}};

    return step(q, &event);
}

/* A node numbered so lists one attempt, the first one of job `listed` (0: nothing). */
static enum hd_status observe(struct queue *q, int node, uint64_t listed,
                              enum hd_attempt_state state)
{
    char uuid[16];
    const struct hd_observed attempt = {.job = listed,
                                        .attempt = 1,
                                        .state = state,
                                        .end = {.cause = HD_END_CAUSE_RANK_EXIT, .signal = 9}};
    const struct hd_core_event event = {.kind = HD_CORE_OBSERVED,
                                        .observed = {.uuid = uuid,
                                                     .stream = (uint64_t)node,
                                                     .generation = 1,
                                                     .attempts = &attempt,
                                                     .attempt_count = listed ? 1 : 0}};

    (void)snprintf(uuid, sizeof uuid, "uuid-%d", node);
    return step(q, &event);
}

/* A node with two devices and a jobs directory of its own. */
static void join(struct queue *q, int node)
{
    char uuid[16], name[16];
    const struct hd_device_record devices[2] = {
        {.index = 0, .kind = HD_DEVICE_KIND_CPU, .name = "sim", .threads = 1},
        {.index = 1, .kind = HD_DEVICE_KIND_CPU, .name = "sim", .threads = 1}};
    const struct hd_core_event event = {.kind = HD_CORE_HELLO,
                                        .hello = {.uuid = uuid,
                                                  .name = name,
                                                  .boot_id = "boot-1",
                                                  .facts.data_address = "10.0.0.1",
                                                  .stream = (uint64_t)node,
                                                  .devices = devices,
                                                  .device_count = 2}};

    (void)snprintf(uuid, sizeof uuid, "uuid-%d", node);
    (void)snprintf(name, sizeof name, "n%d", node);
    assert_int_equal(step(q, &event), HD_OK);
    assert_int_equal(observe(q, node, 0, HD_ATTEMPT_STATE_RUNNING), HD_OK);
}

static enum hd_job_state state_of(const struct queue *q, uint64_t job)
{
    return hd_core_job(q->core, job)->state;
}

/* ---- what a step costs ------------------------------------------------------------------------*/

enum { COSTS = 9 };

/* How many jobs each kind of step looks at while jobs of three kinds wait: two that fit the node,
 * which is taken, and one that is too large for it. The queue is as deep as before afterwards. */
static void measure(struct queue *q, size_t costs[COSTS])
{
    const struct hd_core_event tick = {.kind = HD_CORE_TICK};
    const struct hd_core_event drain = {.kind = HD_CORE_DRAIN,
                                        .drain = {.node = "n1", .reason = "a test"}};
    const struct hd_core_event undrain = {.kind = HD_CORE_UNDRAIN,
                                          .drain = {.node = "n1", .reason = ""}};
    struct hd_desired desired;
    struct hd_arena arena;
    size_t at = 0;

    q->now.mono_ms += 500;
    assert_int_equal(step(q, &tick), HD_OK);
    costs[at++] = q->out.evaluated;
    for (int devices = 1; devices <= 4; devices *= 2) {
        assert_int_equal(submit(q, devices), HD_OK);
        costs[at++] = q->out.evaluated;
        assert_int_equal(cancel(q, q->out.job), HD_OK);
    }
    costs[at++] = q->out.evaluated; /* of the last cancel */
    assert_int_equal(observe(q, 1, 1, HD_ATTEMPT_STATE_RUNNING), HD_OK);
    costs[at++] = q->out.evaluated;
    assert_int_equal(step(q, &drain), HD_OK);
    costs[at++] = q->out.evaluated;
    assert_int_equal(step(q, &undrain), HD_OK);
    costs[at++] = q->out.evaluated;
    hd_arena_init(&arena, 0);
    assert_int_equal(hd_core_desired(q->core, "uuid-1", &arena, &desired), HD_OK);
    assert_int_equal(desired.attempt_count, 1);
    costs[at++] = arena.used_bytes;
    hd_arena_done(&arena);
    assert_int_equal(at, COSTS);
}

static void fill(struct queue *q, size_t jobs)
{
    for (int devices = 1; hd_core_live_jobs(q->core) < jobs;
         devices = devices == 4 ? 1 : devices * 2)
        assert_int_equal(submit(q, devices), HD_OK);
}

/* Goal: a queue of any depth is as quick as a short one. Method: what each kind of step looks at is
 * counted with 100 and with 10,000 jobs alive; the two must be the same to the job. */
static void a_step_looks_at_as_many_jobs_however_many_wait(void **state)
{
    size_t few[COSTS], many[COSTS];
    struct queue q;

    start(&q, &hd_core_config_default);
    join(&q, 1);
    assert_int_equal(submit(&q, 2), HD_OK); /* runs on both devices */
    assert_int_equal(state_of(&q, 1), HD_JOB_STATE_RUNNING);
    fill(&q, 100);
    measure(&q, few);
    fill(&q, 10000);
    measure(&q, many);
    for (size_t i = 0; i < COSTS; i++)
        if (few[i] != many[i])
            fail_msg("step %zu looks at %zu jobs of 100 and at %zu of 10000", i, few[i], many[i]);
    assert_true(many[1] <= 1); /* a new job is looked at alone, or found to wait like others */
    finish(&q);
}

/* Submits `jobs` jobs of two devices with different time limits, so that each is of a class of its own or
 * of few others; returns how many forecasts a pass over them makes. */
static size_t count_forecasts(struct queue *q, int jobs)
{
    const struct hd_core_event drain = {.kind = HD_CORE_DRAIN,
                                        .drain = {.node = "n1", .reason = "a test"}};
    const struct hd_core_event undrain = {.kind = HD_CORE_UNDRAIN,
                                          .drain = {.node = "n1", .reason = ""}};

    for (int i = 0; i < jobs; i++) {
        struct hd_job_needs needs = sim_needs(2, 10);

        needs.time_limit_ms = (int64_t)1000 * 60 * 5 << i;
        assert_int_equal(submit_needs(q, &needs), HD_OK);
    }
    assert_int_equal(step(q, &drain), HD_OK);
    assert_int_equal(step(q, &undrain), HD_OK);
    assert_int_equal(q->out.evaluated, jobs); /* all are of different classes */
    return q->out.forecasts;
}

/* Goal: the search for victims is not repeated for each waiting job. Method: jobs of 16 and of 24
 * classes wait, all before one that runs on a single device. A pass makes a forecast for each of the 8
 * that may reserve, and one for all that would stop the running job. */
static void a_pass_finds_once_what_jobs_of_one_priority_may_stop(void **state)
{
    for (int jobs = 16; jobs <= 24; jobs += 8) {
        struct hd_job_needs low = sim_needs(1, 10);
        struct queue q;

        start(&q, &hd_core_config_default);
        for (int node = 1; node <= 9; node++)
            join(&q, node);
        low.priority = -1;
        assert_int_equal(submit_needs(&q, &low), HD_OK);
        assert_int_equal(submit(&q, 1), HD_OK); /* beside it */
        for (int i = 0; i < 8; i++)
            assert_int_equal(submit(&q, 2), HD_OK);
        assert_int_equal(count_forecasts(&q, jobs), 8 + 1);
        finish(&q);
    }
}

/* The first of each kind in the queue's order, whatever came between: 1 device, 2, 4, 1, 2, 4 .. */
static void jobs_start_in_their_order_from_a_deep_queue(void **state)
{
    struct queue q;

    start(&q, &hd_core_config_default);
    fill(&q, 999);
    join(&q, 1); /* job 1 wants one device, job 2 both, job 4 one */
    assert_int_equal(state_of(&q, 1), HD_JOB_STATE_RUNNING);
    assert_int_equal(state_of(&q, 2), HD_JOB_STATE_QUEUED); /* and keeps the node */
    assert_int_equal(state_of(&q, 4), HD_JOB_STATE_QUEUED);
    assert_int_equal(cancel(&q, 2), HD_OK); /* job 4 is before job 5, which keeps the node then */
    assert_int_equal(state_of(&q, 4), HD_JOB_STATE_RUNNING);
    assert_int_equal(state_of(&q, 7), HD_JOB_STATE_QUEUED);
    finish(&q);
}

/* A job is queued again, on a node that takes none, when the checkpoint of its attempt is told.
 * That ties it to the node, whose disk no other sees; jobs that were submitted behind it are not
 * tied. */
static void a_checkpoint_told_late_ties_its_job_and_no_other(void **state)
{
    const struct hd_core_event drain = {.kind = HD_CORE_DRAIN,
                                        .drain = {.node = "n1", .reason = "a test"}};
    const struct hd_core_event undrain = {.kind = HD_CORE_UNDRAIN,
                                          .drain = {.node = "n1", .reason = ""}};
    const struct hd_core_event report = {
        .kind = HD_CORE_REPORT,
        .report = {.uuid = "uuid-1",
                   .stream = 1,
                   .job = 1,
                   .attempt = 1,
                   .seq = 1,
                   .kind = HD_REPORT_CHECKPOINT,
                   .checkpoint = {.step = 5, .path = "/jobs/1/step-5", .hash = "00"}}};
    struct queue q;

    start(&q, &hd_core_config_default);
    join(&q, 1);
    assert_int_equal(submit(&q, 2), HD_OK);
    assert_int_equal(submit(&q, 2), HD_OK);
    assert_int_equal(observe(&q, 1, 1, HD_ATTEMPT_STATE_RUNNING), HD_OK);
    assert_int_equal(step(&q, &drain), HD_OK);
    assert_int_equal(observe(&q, 1, 1, HD_ATTEMPT_STATE_ENDED), HD_OK);
    assert_int_equal(state_of(&q, 1), HD_JOB_STATE_QUEUED);
    assert_int_equal(step(&q, &report), HD_OK);
    join(&q, 2);
    assert_int_equal(state_of(&q, 1), HD_JOB_STATE_QUEUED);
    assert_int_equal(state_of(&q, 2), HD_JOB_STATE_RUNNING);
    assert_int_equal(step(&q, &undrain), HD_OK);
    assert_int_equal(state_of(&q, 1), HD_JOB_STATE_RUNNING);
    assert_int_equal(hd_core_attempt(q.core, 1, 0)->base_step, 5);
    finish(&q);
}

/* ---- the limit --------------------------------------------------------------------------------*/

static void expect_warning(const struct queue *q, const char *expected)
{
    struct hd_text text = {0};

    hd_core_warn(q->core, &text);
    assert_string_equal(text.data ? text.data : "", expected);
    hd_text_free(&text);
}

/* At 90 % of the limit, once: 9 of 10; again only when there were fewer than 80 % in between. */
static void the_limit_of_live_jobs_is_told_before_it_is_met(void **state)
{
    struct hd_core_config config = hd_core_config_default;
    struct queue q;

    config.jobs_live_max = 10;
    start(&q, &config);
    fill(&q, 8);
    expect_warning(&q, "");
    assert_int_equal(q.near_limit_events, 0);
    fill(&q, 9);
    expect_warning(&q, "9 jobs are queued or running; at 10 new ones are refused: let some end, or "
                       "cancel some");
    assert_int_equal(q.near_limit_events, 1);
    fill(&q, 10);
    assert_int_equal(submit(&q, 1), HD_LIMIT);
    assert_tells(hd_err_message(), "10 jobs", "limit", "wait", "cancel");
    assert_int_equal(cancel(&q, 1), HD_OK);
    assert_int_equal(cancel(&q, 2), HD_OK); /* 8: not news when there are 9 again */
    expect_warning(&q, "");
    fill(&q, 9);
    assert_int_equal(q.near_limit_events, 1);
    assert_int_equal(cancel(&q, 3), HD_OK);
    assert_int_equal(cancel(&q, 4), HD_OK); /* 7: it is */
    fill(&q, 9);
    assert_int_equal(q.near_limit_events, 2);
    finish(&q);
}

static void a_hundred_thousand_jobs_may_wait(void **state)
{
    struct queue q;

    assert_int_equal(HD_CTL_JOBS_LIVE_MAX, 100000);
    start(&q, &hd_core_config_default);
    for (int i = 0; i < HD_CTL_JOBS_LIVE_MAX; i++)
        if (submit(&q, 1))
            fail_msg("job %d: %s", i + 1, hd_err_message());
    assert_int_equal(submit(&q, 1), HD_LIMIT);
    join(&q, 1);
    assert_int_equal(state_of(&q, 1), HD_JOB_STATE_RUNNING);
    assert_int_equal(state_of(&q, 2), HD_JOB_STATE_RUNNING);
    assert_int_equal(state_of(&q, 3), HD_JOB_STATE_QUEUED);
    finish(&q);
}

RUN_CASES()
