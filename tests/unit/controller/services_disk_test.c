/* services: a controller whose disk is full still ends work and keeps it off nodes; one that cannot
 * write at all says so in every answer, and loses no node. */
#include <stdio.h>
#include <string.h>

#include "disk_vfs.h"
#include "services_bench.h"
#include "tests/program/test.h"

enum { RESERVE = 512 << 10 };

static enum hd_status cancel(struct bench *b, uint64_t job)
{
    Heddle__V1__CancelJobRequest request = HEDDLE__V1__CANCEL_JOB_REQUEST__INIT;
    Heddle__V1__CancelJobResponse *response = NULL;
    enum hd_status st;

    request.job = job;
    st = call(b, "CancelJob", &heddle__v1__cancel_job_response__descriptor, &request.base,
              &response);
    if (!st)
        hd_rpc_message_free(&response->base);
    return st;
}

static enum hd_status drain(struct bench *b, const char *node)
{
    Heddle__V1__DrainNodeRequest request = HEDDLE__V1__DRAIN_NODE_REQUEST__INIT;
    Heddle__V1__DrainNodeResponse *response = NULL;
    enum hd_status st;

    request.node = (char *)(uintptr_t)node;
    request.reason = (char *)"its disk";
    st = call(b, "DrainNode", &heddle__v1__drain_node_response__descriptor, &request.base,
              &response);
    if (!st)
        hd_rpc_message_free(&response->base);
    return st;
}

static enum hd_status try_to_submit(struct bench *b, uint64_t *ret_job)
{
    static int number;
    char id[40];
    bool repeated;

    (void)snprintf(id, sizeof id, "full-disk-%020d", ++number);
    return submit_as(b, id, new_spec(b, 2, ""), ret_job, &repeated);
}

static enum hd_status try_to_validate(struct bench *b)
{
    Heddle__V1__ValidateJobRequest request = HEDDLE__V1__VALIDATE_JOB_REQUEST__INIT;
    Heddle__V1__ValidateJobResponse *response = NULL;
    enum hd_status st;

    request.spec = new_spec(b, 2, "");
    st = call(b, "ValidateJob", &heddle__v1__validate_job_response__descriptor, &request.base,
              &response);
    if (!st)
        hd_rpc_message_free(&response->base);
    return st;
}

/* Returns the warning of ListJobs and ListNodes; both say the same. */
static void warning_of(struct bench *b, char *ret_text, size_t size)
{
    Heddle__V1__ListJobsRequest jobs = HEDDLE__V1__LIST_JOBS_REQUEST__INIT;
    Heddle__V1__ListNodesRequest nodes = HEDDLE__V1__LIST_NODES_REQUEST__INIT;
    Heddle__V1__ListJobsResponse *of_jobs = NULL;
    Heddle__V1__ListNodesResponse *of_nodes = NULL;

    assert_int_equal(
        call(b, "ListJobs", &heddle__v1__list_jobs_response__descriptor, &jobs.base, &of_jobs),
        HD_OK);
    assert_int_equal(
        call(b, "ListNodes", &heddle__v1__list_nodes_response__descriptor, &nodes.base, &of_nodes),
        HD_OK);
    assert_string_equal(of_jobs->warning, of_nodes->warning);
    (void)snprintf(ret_text, size, "%s", of_jobs->warning);
    hd_rpc_message_free(&of_jobs->base);
    hd_rpc_message_free(&of_nodes->base);
}

static bool warns(struct bench *b)
{
    char warning[HD_ERR_MAX];

    warning_of(b, warning, sizeof warning);
    return *warning != '\0';
}

static void a_full_disk_takes_cancels_and_drains(void **state)
{
    struct bench b = {0};
    struct daemon d = {0};
    uint64_t running, queued, job;
    char warning[HD_ERR_MAX];

    start_on(&b, DISK_VFS, RESERVE);
    join(&d, &b, "n1");
    running = submit(&b, 2);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    queued = submit(&b, 2); /* both devices are in use */
    assert_false(warns(&b));
    disk_set_capacity(disk_used());
    for (int i = 0; i < 1000 && try_to_submit(&b, &job) == HD_OK; i++)
        ; /* until the first piece of the reserve is gone */
    assert_int_equal(try_to_submit(&b, &job), HD_LIMIT);
    assert_non_null(
        strstr(hd_err_message(), "only requests that end work or free space are accepted"));
    assert_int_equal(try_to_validate(&b), HD_LIMIT); /* heddle submit --dry-run says the same */
    warning_of(&b, warning, sizeof warning);
    assert_non_null(strstr(warning, "state is full since "));
    assert_non_null(strstr(warning, "free at least "));

    assert_int_equal(cancel(&b, queued), HD_OK);
    assert_int_equal(state_of(&b, queued), HEDDLE__V1__JOB_STATE__JOB_STATE_CANCELLED);
    assert_int_equal(drain(&b, "n1"), HD_OK);
    send_step(&d, running, 1, 1);
    WAIT_FOR(&b, d.acked == 1); /* reports are kept */
    assert_int_equal(cancel(&b, running), HD_OK);
    assert_int_equal(state_of(&b, running), HEDDLE__V1__JOB_STATE__JOB_STATE_STOPPING);

    disk_set_capacity(0);
    WAIT_FOR(&b, !warns(&b)); /* made again by itself */
    assert_int_equal(try_to_submit(&b, &job), HD_OK);
    free_daemon(&d);
    finish(&b);
}

static void stale_of(struct bench *b, uint64_t job, char *ret_text, size_t size)
{
    Heddle__V1__GetJobResponse *got = get_job(b, job);

    (void)snprintf(ret_text, size, "%s", got->job->stale);
    hd_rpc_message_free(&got->base);
}

/* The writer has found out: jobs say that they may be older than now. */
static bool is_stuck(struct bench *b, uint64_t job)
{
    char stale[HD_ERR_MAX];

    stale_of(b, job, stale, sizeof stale);
    return *stale != '\0';
}

/* Goal: while the disk takes no writes, each answer says that its state is old, and a node that
 * connects is kept. Method: the welcome of such a node waits for the disk, so the test looks for
 * the heartbeats that the controller sends it meanwhile. */
static void a_controller_that_cannot_write_says_so_and_keeps_its_nodes(void **state)
{
    struct bench b;
    struct daemon d = {0}, late = {0};
    char text[HD_ERR_MAX];
    struct watch w;
    uint64_t job;
    int heartbeats;

    start(&b, DISK_VFS);
    join(&d, &b, "n1");
    job = submit(&b, 2);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    watch(&w, &b, job, 0, false);
    WAIT_FOR(&b, w.status == HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING);
    disk_set_broken(true);
    send_step(&d, job, 1, 1);
    WAIT_FOR(&b, is_stuck(&b, job));
    stale_of(&b, job, text, sizeof text);
    assert_non_null(strstr(text, "cannot write its state since "));
    assert_non_null(strstr(text, "state.db"));
    warning_of(&b, text, sizeof text);
    assert_non_null(strstr(text, "cannot write its state since "));
    WAIT_FOR(&b, w.stale); /* who waits is told, too */
    heartbeats = d.heartbeats;
    WAIT_FOR(&b, d.heartbeats > heartbeats); /* its report has no answer, but it hears something */
    assert_int_equal(cancel(&b, job), HD_LIMIT);

    connect_as(&late, &b, "n2", "uuid-2", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    WAIT_FOR(&b, late.heartbeats >= 1);
    assert_null(late.welcome);
    assert_false(late.done);
    disk_set_broken(false);
    WAIT_FOR(&b, late.welcome);
    WAIT_FOR(&b, !w.stale);
    WAIT_FOR(&b, d.acked == 1);
    hd_rpc_call_cancel(w.call);
    WAIT_FOR(&b, w.done);
    free_daemon(&late);
    free_daemon(&d);
    finish(&b);
}

RUN_CASES()
