/* services: what people, daemons and watchers see of a whole controller. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "disk_vfs.h"
#include "grpc/health/v1/health.pb-c.h"
#include "services_bench.h"
#include "spec/spec.h"
#include "tests/program/tells.h"
#include "tests/program/test.h"

/* ---- people -----------------------------------------------------------------------------------*/

static void a_request_id_is_one_job(void **state)
{
    struct bench b;
    Heddle__V1__JobSpec *spec;
    uint64_t first, again;
    bool repeated;

    start(&b, NULL);
    spec = new_spec(&b, 2, "");
    assert_int_equal(submit_as(&b, "0123456789abcdef", spec, &first, &repeated), HD_OK);
    assert_false(repeated);
    assert_int_equal(submit_as(&b, "0123456789abcdef", spec, &again, &repeated), HD_OK);
    assert_true(repeated);
    assert_int_equal(again, first);
    stop_controller(&b);
    assert_int_equal(start_controller(&b), HD_OK);
    WAIT_FOR(&b, submit_as(&b, "0123456789abcdef", spec, &again, &repeated) == HD_OK);
    assert_true(repeated);
    assert_int_equal(again, first);
    assert_int_equal(submit_as(&b, "short", spec, &again, &repeated), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "request_id"));
    finish(&b);
}

/* Goal: while a queue is nearly full, the answer to a submission and each list say so. */
static void a_queue_that_is_nearly_full_is_told(void **state)
{
    struct hd_core_config config = hd_core_config_default;
    Heddle__V1__ListJobsRequest list = HEDDLE__V1__LIST_JOBS_REQUEST__INIT;
    Heddle__V1__SubmitJobRequest request = HEDDLE__V1__SUBMIT_JOB_REQUEST__INIT;
    Heddle__V1__SubmitJobResponse *submitted = NULL;
    Heddle__V1__ListJobsResponse *jobs = NULL;
    struct bench b;
    char id[40];

    config.jobs_live_max = 10;
    start(&b, NULL);
    stop_controller(&b);
    b.core_config = &config;
    assert_int_equal(start_controller(&b), HD_OK);
    request.request_id = id;
    request.spec = new_spec(&b, 2, "");
    for (int i = 1; i <= 11; i++) {
        enum hd_status st;

        (void)snprintf(id, sizeof id, "nearly-full-%020d", i);
        if (i == 1)
            WAIT_FOR(&b, call(&b, "ListJobs", &heddle__v1__list_jobs_response__descriptor,
                              &list.base, &jobs) == HD_OK);
        else
            assert_int_equal(call(&b, "ListJobs", &heddle__v1__list_jobs_response__descriptor,
                                  &list.base, &jobs),
                             HD_OK);
        assert_int_equal(*jobs->warning != '\0', i - 1 >= 9); /* i - 1 jobs wait */
        hd_rpc_message_free(&jobs->base);
        st = call(&b, "SubmitJob", &heddle__v1__submit_job_response__descriptor, &request.base,
                  &submitted);
        assert_int_equal(st, i <= 10 ? HD_OK : HD_LIMIT);
        if (st)
            break;
        assert_int_equal(*submitted->warning != '\0', i >= 9);
        if (i == 9)
            assert_tells(submitted->warning, "9 jobs", "at 10", "refused", "cancel");
        hd_rpc_message_free(&submitted->base);
    }
    finish(&b);
}

/* The answer to a submission is what the core decided with it, and the store agrees. */
static void the_answer_to_a_submission_is_the_job_as_it_is(void **state)
{
    Heddle__V1__SubmitJobRequest request = HEDDLE__V1__SUBMIT_JOB_REQUEST__INIT;
    Heddle__V1__SubmitJobResponse *response = NULL;
    struct daemon d = {.b = NULL};
    Heddle__V1__GetJobResponse *got;
    struct bench b;

    start(&b, NULL);
    join(&d, &b, "n1");
    request.request_id = (char *)"0123456789abcdef";
    request.spec = new_spec(&b, 2, "");
    assert_int_equal(call(&b, "SubmitJob", &heddle__v1__submit_job_response__descriptor,
                          &request.base, &response),
                     HD_OK);
    got = get_job(&b, response->job->job);
    assert_int_equal(response->job->state, HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING);
    assert_int_equal(response->job->state, got->job->state);
    assert_int_equal(response->job->attempt, got->job->attempt);
    assert_int_equal(response->job->sequence, got->job->sequence);
    assert_int_equal(response->job->submitted_unix_ms, got->job->submitted_unix_ms);
    assert_int_equal(response->job->started_unix_ms, got->job->started_unix_ms);
    assert_int_equal(response->job->n_nodes, 1);
    assert_string_equal(response->job->nodes[0], got->job->nodes[0]);
    assert_string_equal(response->job->name, got->job->name);
    assert_string_equal(response->job->owner, got->job->owner);
    assert_string_equal(response->job->directory, got->job->directory);
    hd_rpc_message_free(&got->base);
    hd_rpc_message_free(&response->base);
    free_daemon(&d);
    finish(&b);
}

/* Goal: a bad job is refused in the words as the job file's reader uses, as INVALID_ARGUMENT. */
static void a_bad_job_is_refused_in_the_same_words(void **state)
{
    struct bench b;
    Heddle__V1__JobSpec *spec;
    struct hd_job read;
    Heddle__V1__ValidateJobRequest request = HEDDLE__V1__VALIDATE_JOB_REQUEST__INIT;
    Heddle__V1__ValidateJobResponse *response = NULL;
    char expected[HD_ERR_MAX];
    uint64_t job;
    bool repeated;

    start(&b, NULL);
    spec = new_spec(&b, 2, "");
    spec->model->heads = 3; /* does not divide hidden = 16 */
    assert_int_equal(hd_spec_from_message(spec, &b.arena, &read), HD_OK);
    assert_int_not_equal(hd_spec_check(&read), HD_OK);
    (void)snprintf(expected, sizeof expected, "%s", hd_err_message());
    assert_int_equal(submit_as(&b, "0123456789abcdef", spec, &job, &repeated), HD_INVALID);
    assert_string_equal(hd_err_message(), expected);
    request.spec = spec;
    assert_int_equal(call(&b, "ValidateJob", &heddle__v1__validate_job_response__descriptor,
                          &request.base, &response),
                     HD_INVALID);
    assert_string_equal(hd_err_message(), expected);
    spec = new_spec(&b, 2, "");
    request.spec = spec;
    assert_int_equal(call(&b, "ValidateJob", &heddle__v1__validate_job_response__descriptor,
                          &request.base, &response),
                     HD_OK);
    assert_false(response->fits_now);
    assert_non_null(strstr(response->reason, "no node has joined yet"));
    hd_rpc_message_free(&response->base);
    finish(&b);
}

static void what_is_not_there_is_not_found(void **state)
{
    struct bench b;
    Heddle__V1__GetJobRequest get = HEDDLE__V1__GET_JOB_REQUEST__INIT;
    Heddle__V1__CancelJobRequest cancel = HEDDLE__V1__CANCEL_JOB_REQUEST__INIT;
    Heddle__V1__ListEventsRequest events = HEDDLE__V1__LIST_EVENTS_REQUEST__INIT;
    Heddle__V1__ListCheckpointsRequest checkpoints = HEDDLE__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    Heddle__V1__DrainNodeRequest drain = HEDDLE__V1__DRAIN_NODE_REQUEST__INIT;
    ProtobufCMessage *response = NULL;
    struct watch w;

    start(&b, NULL);
    get.job = cancel.job = events.job = checkpoints.job = 7;
    drain.node = (char *)"n9";
    assert_int_equal(
        call(&b, "GetJob", &heddle__v1__get_job_response__descriptor, &get.base, &response),
        HD_NOT_FOUND);
    assert_string_equal(hd_err_message(), "there is no job 7");
    assert_int_equal(call(&b, "CancelJob", &heddle__v1__cancel_job_response__descriptor,
                          &cancel.base, &response),
                     HD_NOT_FOUND);
    assert_int_equal(call(&b, "ListEvents", &heddle__v1__list_events_response__descriptor,
                          &events.base, &response),
                     HD_NOT_FOUND);
    assert_int_equal(call(&b, "ListCheckpoints", &heddle__v1__list_checkpoints_response__descriptor,
                          &checkpoints.base, &response),
                     HD_NOT_FOUND);
    assert_int_equal(
        call(&b, "DrainNode", &heddle__v1__drain_node_response__descriptor, &drain.base, &response),
        HD_NOT_FOUND);
    watch(&w, &b, 7, 0, false);
    WAIT_FOR(&b, w.done);
    assert_int_equal(w.st, HD_NOT_FOUND);
    finish(&b);
}

static void lists_are_paged(void **state)
{
    struct bench b;
    Heddle__V1__ListJobsRequest request = HEDDLE__V1__LIST_JOBS_REQUEST__INIT;
    Heddle__V1__ListJobsResponse *response = NULL;
    char page[32] = "";
    uint64_t expected = 7;

    start(&b, NULL);
    for (int i = 0; i < 7; i++)
        (void)submit(&b, 2);
    request.limit = 3;
    for (int i = 0; i < 3; i++) {
        request.page = page;
        assert_int_equal(call(&b, "ListJobs", &heddle__v1__list_jobs_response__descriptor,
                              &request.base, &response),
                         HD_OK);
        for (size_t k = 0; k < response->n_jobs; k++) {
            assert_int_equal(response->jobs[k]->job, expected--);
            assert_int_not_equal(strlen(response->jobs[k]->reason), 0);
            assert_string_equal(response->jobs[k]->name, "tiny");
        }
        (void)snprintf(page, sizeof page, "%s", response->next_page);
        hd_rpc_message_free(&response->base);
    }
    assert_int_equal(expected, 0);
    assert_string_equal(page, "");
    request.page = (char *)"nonsense";
    assert_int_equal(
        call(&b, "ListJobs", &heddle__v1__list_jobs_response__descriptor, &request.base, &response),
        HD_INVALID);
    finish(&b);
}

/* ---- a job's whole way ------------------------------------------------------------------------*/

static void a_job_goes_its_way_and_its_watcher_sees_it(void **state)
{
    struct bench b;
    struct daemon d = {0};
    struct watch w, late, fresh;
    Heddle__V1__EndReport end = HEDDLE__V1__END_REPORT__INIT;
    Heddle__V1__GetJobResponse *job_response = NULL;
    const Heddle__V1__DesiredAttempt *attempt;
    uint64_t job;
    int middle;

    start(&b, NULL);
    join(&d, &b, "n1");
    job = submit(&b, 2);
    watch(&w, &b, job, 0, false);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    attempt = d.desired->desired->attempts[0];
    assert_int_equal(attempt->wanted, HEDDLE__V1__WANTED__WANTED_RUNNING);
    assert_non_null(strstr(attempt->resolved_job, "\nname tiny\n"));
    assert_non_null(strstr(attempt->resolved_job, "\nparallel.dp 2\n"));
    assert_non_null(strstr(attempt->resolved_job, "\nresources.threads 3\n"));
    assert_int_equal(attempt->plan->dp, 2);
    assert_int_equal(attempt->plan->micro_batch, 4);
    assert_int_equal(attempt->plan->threads_per_device, 3);
    assert_int_equal(attempt->plan->n_ranks, 2);
    assert_string_equal(attempt->plan->ranks[1]->node_uuid, d.uuid);
    assert_int_equal(attempt->plan->ranks[1]->device, 1);
    assert_non_null(strstr(attempt->resolved_job, "\nattempt.base \n")); /* from scratch */

    observe(&d, job, HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_RUNNING, NULL);
    for (uint64_t seq = 1; seq <= 10; seq++)
        send_step(&d, job, seq, (int64_t)seq);
    send_checkpoint(&d, job, 11, 10, attempt->checkpoint_dir);
    send_step(&d, job, 5, 5); /* resent: acknowledged, taken in once */
    WAIT_FOR(&b, d.acked == 5);
    WAIT_FOR(&b, w.count >= 14);
    assert_int_equal(w.status, HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING);

    end.cause = HEDDLE__V1__END_CAUSE__END_CAUSE_COMPLETED;
    end.rank = -1;
    observe(&d, job, HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_ENDED, &end);
    WAIT_FOR(&b, w.done);
    assert_int_equal(w.st, HD_OK);
    assert_true(w.ended);
    assert_int_equal(w.end, HEDDLE__V1__JOB_STATE__JOB_STATE_SUCCEEDED);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 0);

    /* submitted, starting, running, 10 steps, checkpoint, ended, succeeded: numbered 1, 2, 3 .. */
    assert_int_equal(w.count, 3 + 10 + 1 + 2);
    for (int i = 0, step = 0; i < w.count; i++) {
        assert_int_equal(w.sequences[i], i + 1);
        if (w.bodies[i] == HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STEP)
            assert_int_equal(w.steps[i], ++step);
    }
    /* From the middle on, and only what is new. */
    middle = w.count / 2;
    watch(&late, &b, job, (uint64_t)middle, false);
    WAIT_FOR(&b, late.done);
    assert_int_equal(late.count, w.count - middle);
    assert_int_equal(late.sequences[0], middle + 1);
    watch(&fresh, &b, job, 0, true);
    WAIT_FOR(&b, fresh.done);
    assert_int_equal(fresh.count, 0);
    assert_true(fresh.ended);

    job_response = get_job(&b, job);
    assert_int_equal(job_response->job->step, 10);
    assert_true(job_response->job->loss == 0.1);
    assert_int_equal(job_response->job->checkpoint_step, 10);
    assert_int_equal(job_response->job->n_attempts, 1);
    assert_int_equal(job_response->job->attempts[0]->end->cause,
                     HEDDLE__V1__END_CAUSE__END_CAUSE_COMPLETED);
    assert_string_equal(job_response->job->spec->name, "tiny");
    hd_rpc_message_free(&job_response->base);
    free_daemon(&d);
    finish(&b);
}

/* The controller is stopped and started between every two reports; the last step's, too, so that
 * the one that hears the end knows it from the store. */
static void a_controller_that_comes_and_goes_loses_nothing(void **state)
{
    struct bench b;
    struct daemon d = {0};
    struct watch w;
    Heddle__V1__EndReport end = HEDDLE__V1__END_REPORT__INIT;
    uint64_t job;

    start(&b, NULL);
    join(&d, &b, "n1");
    job = submit(&b, 2);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    observe(&d, job, HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_RUNNING, NULL);
    for (uint64_t seq = 1; seq <= 4; seq++) {
        send_step(&d, job, seq, 6 + (int64_t)seq); /* the last one is 10 */
        WAIT_FOR(&b, d.acked == seq);
        stop_controller(&b);
        WAIT_FOR(&b, d.done);
        free_daemon(&d);
        assert_int_equal(start_controller(&b), HD_OK);
        connect_daemon(&d, &b, "n1", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
        WAIT_FOR(&b, d.welcome);
        observe(&d, job, HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_RUNNING, NULL);
        WAIT_FOR(&b, d.desired);
        assert_int_equal(d.desired->desired->n_attempts, 1);
        assert_int_equal(d.desired->desired->attempts[0]->attempt, 1);
    }
    send_checkpoint(&d, job, 5, 10, d.desired->desired->attempts[0]->checkpoint_dir);
    end.cause = HEDDLE__V1__END_CAUSE__END_CAUSE_COMPLETED;
    end.rank = -1;
    observe(&d, job, HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_ENDED, &end);
    WAIT_FOR(&b, state_of(&b, job) == HEDDLE__V1__JOB_STATE__JOB_STATE_SUCCEEDED);
    watch(&w, &b, job, 0, false);
    WAIT_FOR(&b, w.done);
    assert_int_equal(w.count, 3 + 4 + 1 + 2);
    for (int i = 0; i < w.count; i++)
        assert_int_equal(w.sequences[i], i + 1);
    free_daemon(&d);
    finish(&b);
}

static void cancel_reaches_the_daemon(void **state)
{
    struct bench b;
    struct daemon d = {0};
    Heddle__V1__CancelJobRequest request = HEDDLE__V1__CANCEL_JOB_REQUEST__INIT;
    Heddle__V1__CancelJobResponse *response = NULL;
    Heddle__V1__EndReport end = HEDDLE__V1__END_REPORT__INIT;

    start(&b, NULL);
    join(&d, &b, "n1");
    request.job = submit(&b, 2);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    for (int now = 0; now < 2; now++) {
        request.now = now;
        assert_int_equal(call(&b, "CancelJob", &heddle__v1__cancel_job_response__descriptor,
                              &request.base, &response),
                         HD_OK);
        assert_int_equal(response->job->state, HEDDLE__V1__JOB_STATE__JOB_STATE_STOPPING);
        hd_rpc_message_free(&response->base);
        WAIT_FOR(&b, d.desired->desired->attempts[0]->wanted ==
                         (now ? HEDDLE__V1__WANTED__WANTED_STOPPED
                              : HEDDLE__V1__WANTED__WANTED_STOPPING));
    }
    end.cause = HEDDLE__V1__END_CAUSE__END_CAUSE_USER;
    end.rank = -1;
    observe(&d, request.job, HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_ENDED, &end);
    WAIT_FOR(&b, state_of(&b, request.job) == HEDDLE__V1__JOB_STATE__JOB_STATE_CANCELLED);
    /* Once more: it is over, so nothing changes. */
    assert_int_equal(call(&b, "CancelJob", &heddle__v1__cancel_job_response__descriptor,
                          &request.base, &response),
                     HD_OK);
    assert_int_equal(response->job->state, HEDDLE__V1__JOB_STATE__JOB_STATE_CANCELLED);
    hd_rpc_message_free(&response->base);
    free_daemon(&d);
    finish(&b);
}

/* ---- the disk ---------------------------------------------------------------------------------*/

static void a_full_disk_refuses_jobs_and_still_shows_them(void **state)
{
    struct bench b;
    struct daemon d = {0};
    Heddle__V1__JobSpec *spec;
    uint64_t first, job;
    bool repeated;

    start(&b, DISK_VFS);
    join(&d, &b, "n1");
    first = submit(&b, 2);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    spec = new_spec(&b, 2, "");
    disk_set_broken(true);
    /* the first hears it when the disk is found broken, the second at once; neither waits */
    assert_int_equal(submit_as(&b, "0123456789abcdef", spec, &job, &repeated), HD_ABORTED);
    assert_non_null(strstr(hd_err_message(), "state.db")); /* it may still happen; the next not: */
    assert_int_equal(submit_as(&b, "fedcba9876543210", spec, &job, &repeated), HD_LIMIT);
    assert_int_equal(state_of(&b, first), HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING);
    send_step(&d, first, 1, 1);
    for (int i = 0; i < 10; i++)
        (void)uv_run(&b.loop, UV_RUN_ONCE);
    assert_int_equal(d.acked, 0); /* not on disk, not acknowledged; and the daemon stays */
    assert_false(d.done);
    disk_set_broken(false);
    WAIT_FOR(&b, d.acked == 1);
    WAIT_FOR(&b, submit_as(&b, "0123456789abcdef", spec, &job, &repeated) == HD_OK);
    assert_true(repeated); /* it did happen */
    free_daemon(&d);
    finish(&b);
}

/* ---- health -----------------------------------------------------------------------------------*/

enum health { UNKNOWN, NOT_SERVING, SERVING };

static enum health health(struct bench *b)
{
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    ProtobufCMessage *response = NULL;
    enum health health;

    if (hd_rpc_call_wait(b->client, "/grpc.health.v1.Health/Check",
                         &grpc__health__v1__health_check_response__descriptor, WAIT_MS,
                         &request.base, &response))
        return UNKNOWN;
    health = ((Grpc__Health__V1__HealthCheckResponse *)response)->status ==
                     GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
                 ? SERVING
                 : NOT_SERVING;
    hd_rpc_message_free(response);
    return health;
}

static void health_says_that_nothing_can_be_committed(void **state)
{
    Heddle__V1__JobSpec *spec;
    struct bench b;
    uint64_t job;
    bool repeated;

    start(&b, DISK_VFS);
    assert_int_equal(health(&b), SERVING);
    spec = new_spec(&b, 2, "");
    disk_set_broken(true);
    assert_int_equal(submit_as(&b, "0123456789abcdef", spec, &job, &repeated), HD_ABORTED);
    assert_int_equal(health(&b), NOT_SERVING);
    disk_set_broken(false);
    WAIT_FOR(&b, health(&b) == SERVING);
    finish(&b);
}

/* Method: no descriptor is left, so the door cannot accept. The connection that is there still
 * serves calls. */
static void health_says_that_the_door_does_not_open(void **state)
{
    struct rlimit before, low;
    struct bench b;

    start(&b, NULL);
    stop_controller(&b);
    b.self_check_ms = 100;
    assert_int_equal(start_controller(&b), HD_OK);
    WAIT_FOR(&b, health(&b) == SERVING);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = 3; /* what is open stays open */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    WAIT_FOR(&b, health(&b) == NOT_SERVING);
    WAIT_FOR(&b, b.fatal.status == HD_UNAVAILABLE); /* after three checks: a reason to start anew */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    WAIT_FOR(&b, health(&b) == SERVING);
    finish(&b);
}

RUN_CASES()
