/* services: what people, daemons and watchers see of a whole controller. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "controller/services/jobs_mark.h"
#include "controller/store/store.h"
#include "disk_vfs.h"
#include "grpc/health/v1/health.pb-c.h"
#include "services_bench.h"
#include "spec/spec.h"
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
            assert_string_equal(submitted->warning,
                                "9 jobs are queued or running; at 10 new ones are refused: let "
                                "some end, or cancel some");
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

/* A cluster that was forgotten left folders 1 .. 41: the first new job does not write into them. */
static void new_jobs_do_not_meet_old_folders(void **state)
{
    struct bench b;
    char path[128];

    start(&b, NULL);
    stop_controller(&b);
    (void)snprintf(path, sizeof path, "%s/state/jobs/41", b.dir);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    assert_int_equal(start_controller(&b), HD_OK);
    assert_int_equal(submit(&b, 2), 42);
    finish(&b);
}

/* Both would give their jobs the same numbers, and take each other's folders for their own. */
static void a_jobs_directory_of_another_cluster_is_refused(void **state)
{
    static const char theirs[] = "heddle-0f\ncluster 8c1d\nstate /srv/b on n7\n";
    static const char before[] = "heddle-0f"; /* by a version that names no cluster */
    struct hd_text found = {0};
    struct hd_error refusal;
    struct bench b;
    char path[128], own[256], host[128];

    start(&b, NULL);
    stop_controller(&b);
    (void)snprintf(path, sizeof path, "%s/state/jobs/.heddle-probe", b.dir);
    assert_int_equal(hd_file_write_atomic(path, theirs, strlen(theirs), 0644), HD_OK);
    assert_int_equal(start_controller(&b), HD_CONFLICT);
    hd_err_save(HD_CONFLICT, &refusal);
    assert_non_null(strstr(refusal.message, "/srv/b on n7"));
    assert_non_null(strstr(refusal.message, path)); /* to be removed, if that one was given up */
    assert_int_equal(hd_file_read(path, 1000, &found), HD_OK);
    assert_string_equal(found.data, theirs);
    hd_text_free(&found);
    for (int64_t end_ms = hd_clock_now_ms() + 500; hd_clock_now_ms() < end_ms;)
        (void)uv_run(&b.loop, UV_RUN_ONCE); /* so that it lets go of its state directory */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(start_controller(&b), HD_OK);
    stop_controller(&b);
    assert_int_equal(start_controller(&b), HD_OK); /* its own mark */
    stop_controller(&b);
    assert_int_equal(gethostname(host, sizeof host), 0); /* its database was lost, and made anew */
    (void)snprintf(own, sizeof own, "heddle-0f\ncluster 8c1d\nstate %s/state on %.64s\n", b.dir,
                   host);
    assert_int_equal(hd_file_write_atomic(path, own, strlen(own), 0644), HD_OK);
    assert_int_equal(start_controller(&b), HD_OK);
    stop_controller(&b);
    assert_int_equal(hd_file_write_atomic(path, before, strlen(before), 0644), HD_OK);
    assert_int_equal(start_controller(&b), HD_OK);
    finish(&b);
}

/* ---- the jobs directory -----------------------------------------------------------------------*/

static void rename_jobs(const struct bench *b, const char *from, const char *to)
{
    char old[160], new[160];

    (void)snprintf(old, sizeof old, "%s/state/%s", b->dir, from);
    (void)snprintf(new, sizeof new, "%s/state/%s", b->dir, to);
    assert_int_equal(rename(old, new), 0);
}

/* Unmounts the jobs share: the empty folder that it was mounted on is seen. */
static void unmount_jobs(const struct bench *b)
{
    char path[160];

    rename_jobs(b, "jobs", "share");
    (void)snprintf(path, sizeof path, "%s/state/jobs", b->dir);
    assert_int_equal(mkdir(path, 0755), 0);
}

/* Nothing may have been written into the folder meanwhile. */
static void mount_jobs(const struct bench *b)
{
    char path[160];

    (void)snprintf(path, sizeof path, "%s/state/jobs", b->dir);
    assert_int_equal(rmdir(path), 0);
    rename_jobs(b, "share", "jobs");
}

/* Reads the warnings in lists of jobs and of nodes: whether both have `words`; NULL: nothing. */
static bool lists_warn(struct bench *b, const char *words)
{
    Heddle__V1__ListJobsRequest jobs_request = HEDDLE__V1__LIST_JOBS_REQUEST__INIT;
    Heddle__V1__ListNodesRequest nodes_request = HEDDLE__V1__LIST_NODES_REQUEST__INIT;
    Heddle__V1__ListJobsResponse *jobs = NULL;
    Heddle__V1__ListNodesResponse *nodes = NULL;
    bool warn;

    assert_int_equal(
        call(b, "ListJobs", &heddle__v1__list_jobs_response__descriptor, &jobs_request.base, &jobs),
        HD_OK);
    assert_int_equal(call(b, "ListNodes", &heddle__v1__list_nodes_response__descriptor,
                          &nodes_request.base, &nodes),
                     HD_OK);
    warn = words ? strstr(jobs->warning, words) && strstr(nodes->warning, words)
                 : !*jobs->warning && !*nodes->warning;
    hd_rpc_message_free(&jobs->base);
    hd_rpc_message_free(&nodes->base);
    return warn;
}

/* The first word of what a queued job waits for. */
static bool waits_for(struct bench *b, uint64_t job, const char *word)
{
    Heddle__V1__GetJobResponse *response = get_job(b, job);
    bool is = false;

    for (size_t i = 0; i < response->job->n_blockers; i++)
        is |= strcmp(response->job->blockers[i]->kind, word) == 0;
    hd_rpc_message_free(&response->base);
    return is;
}

/* A daemon as `join` makes it, whose jobs directory is not the controller's. */
static void join_blind(struct daemon *d, struct bench *b)
{
    Heddle__V1__ObservedState observed = HEDDLE__V1__OBSERVED_STATE__INIT;

    connect_daemon(d, b, "n1", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    WAIT_FOR(b, d->welcome || d->done);
    assert_false(d->done);
    observed.jobs_dir_problem = (char *)"there is no file";
    say(d, HEDDLE__V1__NODE_MESSAGE__BODY_OBSERVED, &observed);
    WAIT_FOR(b, d->desired);
}

/* Goal: a share that is not mounted when the controller starts starts nothing, and its absence is
 * told by lists, by the job's reason, and by an event; when it comes, all goes on. Method: the
 * folder is exchanged for an empty one, as an unmount does. */
static void a_jobs_share_that_is_not_mounted_at_the_start_starts_nothing(void **state)
{
    struct bench b;
    struct daemon d = {0};
    uint64_t job;

    start(&b, NULL);
    b.jobs_dir_check_ms = 50;
    join(&d, &b, "n1"); /* it has seen the directory: the database knows that */
    assert_false(d.welcome->saw_jobs_dir);
    free_daemon(&d);
    stop_controller(&b);
    unmount_jobs(&b);
    assert_int_equal(start_controller(&b), HD_OK);
    assert_true(lists_warn(&b, "is not the cluster's jobs directory: it has no .heddle-probe"));
    join_blind(&d, &b);
    assert_true(d.welcome->saw_jobs_dir);
    job = submit(&b, 2);
    assert_true(waits_for(&b, job, "jobs_dir"));
    assert_int_equal(d.desired->desired->n_attempts, 0);

    mount_jobs(&b);
    WAIT_FOR(&b, lists_warn(&b, NULL));
    assert_true(waits_for(&b, job, "jobs_dir")); /* the node does not see it yet */
    observe(&d, 0, 0, NULL);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    free_daemon(&d);
    finish(&b);
}

static void a_jobs_share_that_vanishes_starts_nothing_until_it_is_back(void **state)
{
    struct bench b;
    struct daemon d = {0};
    uint64_t job;

    start(&b, NULL);
    b.jobs_dir_check_ms = 50;
    stop_controller(&b);
    assert_int_equal(start_controller(&b), HD_OK);
    join(&d, &b, "n1");
    unmount_jobs(&b);
    WAIT_FOR(&b, lists_warn(&b, "no job starts"));
    job = submit(&b, 2);
    assert_true(waits_for(&b, job, "jobs_dir"));
    mount_jobs(&b);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    assert_true(lists_warn(&b, NULL));
    free_daemon(&d);
    finish(&b);
}

/* Two ways: as `heddle-controller adopt` between two starts, and as a database of before shares had
 * ids. */
static void a_folder_becomes_the_jobs_directory_once_or_when_it_is_adopted(void **state)
{
    struct bench b;
    struct daemon d = {0};
    struct hd_batch *batch;
    char dir[160], jobs[160], mark[160], folder[PATH_MAX];

    start(&b, NULL);
    join(&d, &b, "n1");
    (void)submit(&b, 2);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    free_daemon(&d);
    stop_controller(&b);
    (void)snprintf(dir, sizeof dir, "%s/state", b.dir);
    (void)snprintf(jobs, sizeof jobs, "%s/state/jobs", b.dir);
    (void)snprintf(mark, sizeof mark, "%s/state/jobs/.heddle-probe", b.dir);
    unmount_jobs(&b);

    batch = hd_batch_new(); /* upgraded, with jobs, and their folder is empty */
    hd_batch_add_jobs_share(batch, "");
    assert_int_equal(hd_store_write(dir, batch), HD_OK);
    assert_int_equal(start_controller(&b), HD_OK);
    assert_true(lists_warn(&b, "it has none of the folders of its jobs"));
    assert_false(hd_file_exists(mark));
    stop_controller(&b);

    assert_int_equal(jobs_mark_adopt(dir, jobs, false, folder), HD_OK);
    assert_int_equal(start_controller(&b), HD_OK);
    assert_true(lists_warn(&b, NULL));
    stop_controller(&b);
    assert_int_equal(unlink(mark), 0);
    mount_jobs(&b); /* the old one is not it any more */
    assert_int_equal(start_controller(&b), HD_OK);
    assert_true(lists_warn(&b, "it has another .heddle-probe"));
    stop_controller(&b);
    assert_int_equal(jobs_mark_adopt(dir, NULL, false, folder), HD_OK);
    assert_int_equal(start_controller(&b), HD_OK);
    assert_true(lists_warn(&b, NULL));
    stop_controller(&b);

    batch = hd_batch_new(); /* upgraded, and the folder has the file: it is the one */
    hd_batch_add_jobs_share(batch, "");
    assert_int_equal(hd_store_write(dir, batch), HD_OK);
    assert_int_equal(start_controller(&b), HD_OK);
    assert_true(lists_warn(&b, NULL));
    finish(&b);
}

/* A checkpoint is deleted by its path one day: one outside its attempt's folder is not taken. */
static void a_checkpoint_that_is_reported_elsewhere_is_not_taken(void **state)
{
    Heddle__V1__ListCheckpointsRequest request = HEDDLE__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    Heddle__V1__ListCheckpointsResponse *response = NULL;
    struct bench b;
    struct daemon d = {0};
    char dir[400];

    start(&b, NULL);
    join(&d, &b, "n1");
    request.job = submit(&b, 2);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    observe(&d, request.job, HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_RUNNING, NULL);
    for (int i = 3; i >= 0; i--) { /* the right one last */
        const char *right = d.desired->desired->attempts[0]->checkpoint_dir;

        (void)snprintf(dir, sizeof dir,
                       i == 1   ? "%s/../../../9/attempt-1/checkpoints"
                       : i == 2 ? "%s-b"
                                : "%s",
                       i == 3 ? "/x" : right);
        send_checkpoint(&d, request.job, (uint64_t)(4 - i), 10 * (i + 1), dir);
    }
    WAIT_FOR(&b, d.acked == 4);
    assert_int_equal(call(&b, "ListCheckpoints", &heddle__v1__list_checkpoints_response__descriptor,
                          &request.base, &response),
                     HD_OK);
    assert_int_equal(response->n_checkpoints, 1);
    assert_int_equal(response->checkpoints[0]->step, 10);
    hd_rpc_message_free(&response->base);
    free_daemon(&d);
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

/* ---- daemons ----------------------------------------------------------------------------------*/

static void a_daemon_of_another_protocol_hears_both_versions(void **state)
{
    struct bench b;
    struct daemon d = {0};

    start(&b, NULL);
    connect_daemon(&d, &b, "n1", 99);
    WAIT_FOR(&b, d.done);
    assert_int_equal(d.end, HD_CONFLICT);
    assert_non_null(strstr(d.message, "protocol 2 to 2"));
    assert_non_null(strstr(d.message, "99 to 99"));
    free_daemon(&d);
    finish(&b);
}

/* One that says nothing, or a range that overlaps, is served: the command of the release before. */
static void a_command_of_another_protocol_hears_both_versions(void **state)
{
    static const struct {
        const char *client;
        enum hd_status st;
    } cases[] = {{NULL, HD_OK},
                 {"1-2 0.0.9 (commit 0123)", HD_OK},
                 {"2-7 9.8.7", HD_OK},
                 {"1-1 0.0.1", HD_CONFLICT},
                 {"3-4 9.9.9 (commit 4567)", HD_CONFLICT}};
    Heddle__V1__ListJobsRequest request = HEDDLE__V1__LIST_JOBS_REQUEST__INIT;
    struct bench b;

    start(&b, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct hd_rpc_client_options options = {.client = cases[i].client};
        Heddle__V1__ListJobsResponse *response = NULL;

        hd_rpc_client_close(b.client);
        assert_int_equal(hd_rpc_client_new(b.rpc, b.address, &options, &b.client), HD_OK);
        assert_int_equal(call(&b, "ListJobs", &heddle__v1__list_jobs_response__descriptor,
                              &request.base, &response),
                         cases[i].st);
        if (response)
            hd_rpc_message_free(&response->base);
    }
    assert_non_null(strstr(hd_err_message(), "protocol 2 to 2"));
    assert_non_null(strstr(hd_err_message(), "the command (build 9.9.9 (commit 4567)) 3 to 4"));
    finish(&b);
}

static void a_name_belongs_to_one_daemon_and_a_daemon_has_one_stream(void **state)
{
    struct bench b;
    struct daemon d = {0}, other = {0};

    start(&b, NULL);
    join(&d, &b, "n1");
    connect_as(&other, &b, "n1", "uuid-2", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    WAIT_FOR(&b, other.done);
    assert_int_equal(other.end, HD_EXISTS);
    assert_false(d.done);
    free_daemon(&other);
    connect_as(&other, &b, "n1", "uuid-1", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    WAIT_FOR(&b, other.welcome);
    WAIT_FOR(&b, d.done);
    assert_int_equal(d.end, HD_CONFLICT);
    free_daemon(&d);
    free_daemon(&other);
    finish(&b);
}

/* The state directory of a node was copied with its machine. They must not take the node from each
 * other for ever, several times a second, with its attempts lost each time. */
static void a_copy_of_a_node_is_refused_while_the_node_is_there(void **state)
{
    Heddle__V1__Heartbeat beat = HEDDLE__V1__HEARTBEAT__INIT;
    Heddle__V1__ListNodesRequest request = HEDDLE__V1__LIST_NODES_REQUEST__INIT;
    Heddle__V1__ListNodesResponse *nodes = NULL;
    Heddle__V1__ListEventsRequest events = HEDDLE__V1__LIST_EVENTS_REQUEST__INIT;
    Heddle__V1__ListEventsResponse *list = NULL;
    struct daemon d = {.instance = "first"}, copy = {.instance = "copy"}, again = {0};
    int64_t began_ms, said_ms = 0;
    struct bench b;

    start(&b, NULL);
    join(&d, &b, "n1");
    connect_as(&copy, &b, "n1", "uuid-1", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    for (began_ms = hd_clock_now_ms(); !copy.done && hd_clock_now_ms() < began_ms + WAIT_MS;) {
        if (hd_clock_now_ms() > said_ms + 300) {
            say(&d, HEDDLE__V1__NODE_MESSAGE__BODY_HEARTBEAT, &beat);
            said_ms = hd_clock_now_ms();
        }
        (void)uv_run(&b.loop, UV_RUN_ONCE);
    }
    assert_true(copy.done);
    assert_int_equal(copy.end, HD_CONFLICT);
    assert_null(copy.welcome);
    assert_non_null(strstr(copy.message, "has a copy of its --state-dir"));
    assert_false(d.done);
    free_daemon(&copy);
    assert_int_equal(
        call(&b, "ListNodes", &heddle__v1__list_nodes_response__descriptor, &request.base, &nodes),
        HD_OK);
    assert_non_null(strstr(nodes->nodes[0]->reason, "has a copy of this node's --state-dir"));
    hd_rpc_message_free(&nodes->base);
    assert_int_equal(
        call(&b, "ListEvents", &heddle__v1__list_events_response__descriptor, &events.base, &list),
        HD_OK);
    assert_string_equal(list->events[list->n_events - 1]->kind, "copy_refused");
    hd_rpc_message_free(&list->base);

    /* heddled is started again: at once, when the older stream has ended */
    again.instance = "second";
    connect_as(&again, &b, "n1", "uuid-1", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    began_ms = hd_clock_now_ms();
    hd_rpc_call_cancel(d.call);
    WAIT_FOR(&b, again.welcome);
    assert_true(hd_clock_now_ms() < began_ms + 5000);
    free_daemon(&d);

    /* and when nothing comes from it any more: its machine has lost power */
    d = (struct daemon){.instance = "third"};
    connect_as(&d, &b, "n1", "uuid-1", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    WAIT_FOR(&b, d.welcome && again.done);
    assert_int_equal(again.end, HD_CONFLICT);
    free_daemon(&again);
    free_daemon(&d);
    finish(&b);
}

static void a_heartbeat_is_answered_and_a_node_is_listed(void **state)
{
    const int64_t began_ms = hd_clock_now_ms();
    struct bench b;
    struct daemon d = {0};
    Heddle__V1__Heartbeat beat = HEDDLE__V1__HEARTBEAT__INIT;
    Heddle__V1__ListNodesRequest request = HEDDLE__V1__LIST_NODES_REQUEST__INIT;
    Heddle__V1__ListNodesResponse *response = NULL;

    start(&b, NULL);
    join(&d, &b, "n1");
    beat.nonce = 77;
    say(&d, HEDDLE__V1__NODE_MESSAGE__BODY_HEARTBEAT, &beat);
    WAIT_FOR(&b, d.answered == 77);
    assert_int_equal(call(&b, "ListNodes", &heddle__v1__list_nodes_response__descriptor,
                          &request.base, &response),
                     HD_OK);
    assert_int_equal(response->n_nodes, 1);
    assert_string_equal(response->nodes[0]->name, "n1");
    assert_int_equal(response->nodes[0]->state, HEDDLE__V1__NODE_STATE__NODE_STATE_READY);
    assert_true(response->nodes[0]->jobs_dir_visible);
    assert_null(strstr(d.welcome->jobs_dir, "/..")); /* or no checkpoint there would count */
    assert_string_equal(response->nodes[0]->data_address, "10.0.0.3");
    assert_int_equal(response->nodes[0]->n_devices, 2);
    hd_rpc_message_free(&response->base);

    /* its heddled is stopped: it takes no jobs, from the first moment on */
    hd_rpc_call_cancel(d.call);
    WAIT_FOR(&b, d.done);
    for (int state_now = HEDDLE__V1__NODE_STATE__NODE_STATE_READY;
         state_now == HEDDLE__V1__NODE_STATE__NODE_STATE_READY;) {
        assert_int_equal(call(&b, "ListNodes", &heddle__v1__list_nodes_response__descriptor,
                              &request.base, &response),
                         HD_OK);
        state_now = (int)response->nodes[0]->state;
        if (state_now == HEDDLE__V1__NODE_STATE__NODE_STATE_UNREACHABLE)
            assert_non_null(strstr(response->nodes[0]->reason, "without its heddled for "));
        hd_rpc_message_free(&response->base);
        assert_true(hd_clock_now_ms() < began_ms + 10000); /* 15 s is the silence of any node */
    }
    free_daemon(&d);
    finish(&b);
}

#define FILE_OF_SWITCHES                                                                     \
    "nodes: n[1-4]\ndevices_per_node: 4\ndevice: l4\n"                                       \
    "tiers: [{name: leaf, nodes: 2, bandwidth: 10GB/s}, {name: spine, nodes: 4, bandwidth: " \
    "5GB/s}]\n"

/* Four devices, of which 0 and 2, and 1 and 3, are under one switch each. */
struct said {
    Heddle__V1__NodeInventory inventory;
    Heddle__V1__DeviceLink links[6], *pointers[6];
};

static void say_two_switches(struct said *s)
{
    int count = 0;

    heddle__v1__node_inventory__init(&s->inventory);
    s->inventory.taken_unix_ms = 1000;
    for (int b = 1; b < 4; b++)
        for (int a = 0; a < b; a++) {
            Heddle__V1__DeviceLink *l = &s->links[count];

            heddle__v1__device_link__init(l);
            l->a = a;
            l->b = b;
            l->kind = (char *)(a % 2 == b % 2 ? "pix" : "sys");
            l->bytes_per_s = a % 2 == b % 2 ? 13e9 : 9e9;
            s->pointers[count++] = l;
        }
    s->inventory.links = s->pointers;
    s->inventory.n_links = (size_t)count;
}

static Heddle__V1__GetTopologyResponse *get_topology(struct bench *b, const char *node)
{
    Heddle__V1__GetTopologyRequest request = HEDDLE__V1__GET_TOPOLOGY_REQUEST__INIT;
    Heddle__V1__GetTopologyResponse *response = NULL;

    request.node = (char *)(uintptr_t)node;
    if (call(b, "GetTopology", &heddle__v1__get_topology_response__descriptor, &request.base,
             &response))
        fail_msg("%s", hd_err_message());
    return response;
}

/* From the hello of a daemon to what it is to launch: tp 2 has the devices under one switch. */
static void the_launch_obeys_the_links_of_the_node(void **state)
{
    static const int expected[] = {0, 2, 1, 3};
    const Heddle__V1__Plan *plan;
    struct bench b;
    struct daemon d = {0};
    struct said said;
    bool repeated;
    uint64_t job;

    say_two_switches(&said);
    start(&b, NULL);
    b.devices = 4;
    b.inventory = &said.inventory;
    join(&d, &b, "n1");
    assert_int_equal(submit_as(&b, "request-of-four-ranks", new_spec(&b, 4, "parallel: {tp: 2}\n"),
                               &job, &repeated),
                     HD_OK);
    WAIT_FOR(&b, d.desired && d.desired->desired->n_attempts == 1);
    plan = d.desired->desired->attempts[0]->plan;
    assert_int_equal(plan->n_ranks, 4);
    for (int r = 0; r < 4; r++)
        assert_int_equal(plan->ranks[r]->device, expected[r]);
    free_daemon(&d);
    finish(&b);
}

static void topology_is_what_the_file_and_the_nodes_say(void **state)
{
    Heddle__V1__GetTopologyResponse *t;
    struct bench b;
    struct daemon d = {0}, other = {0};
    struct said said;
    char path[128];

    say_two_switches(&said);
    start(&b, NULL);
    stop_controller(&b);
    (void)snprintf(path, sizeof path, "%s/cluster.yaml", b.dir);
    assert_int_equal(hd_file_write_atomic(path, FILE_OF_SWITCHES, strlen(FILE_OF_SWITCHES), 0644),
                     HD_OK);
    b.cluster_file = path;
    assert_int_equal(start_controller(&b), HD_OK);
    b.devices = 4;
    b.inventory = &said.inventory;
    join(&d, &b, "n3");
    said.links[2].b = 99; /* what makes no sense is shown, and not placed by */
    connect_as(&other, &b, "x", "uuid-x", HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    WAIT_FOR(&b, other.welcome);
    t = get_topology(&b, "");
    assert_string_equal(t->cluster_file, path);
    assert_int_equal(t->n_tiers, 2);
    assert_string_equal(t->tiers[1]->name, "spine");
    assert_int_equal(t->tiers[1]->nodes, 4);
    assert_int_equal(t->n_nodes, 2);
    assert_string_equal(t->nodes[0]->node, "n3");
    assert_int_equal(t->nodes[0]->n_switches, 2);
    assert_int_equal(t->nodes[0]->switches[0], 1);
    assert_int_equal(t->nodes[0]->switches[1], 0);
    assert_int_equal(t->nodes[0]->n_devices, 4);
    assert_int_equal(t->nodes[0]->inventory->n_links, 6);
    assert_int_equal(t->nodes[0]->inventory->taken_unix_ms, 1000);
    assert_string_equal(t->nodes[1]->node, "x");
    assert_int_equal(t->nodes[1]->n_switches, 0); /* the file does not name it */
    hd_rpc_message_free(&t->base);
    t = get_topology(&b, "x");
    assert_int_equal(t->n_nodes, 1);
    hd_rpc_message_free(&t->base);
    free_daemon(&d);
    free_daemon(&other);
    finish(&b);
}

static void put(struct daemon *d, uint64_t job, int32_t rank, const char *value)
{
    Heddle__V1__RendezvousPut m = HEDDLE__V1__RENDEZVOUS_PUT__INIT;

    m.job = job;
    m.attempt = 1;
    m.rank = rank;
    m.value.data = (uint8_t *)(uintptr_t)value;
    m.value.len = strlen(value);
    say(d, HEDDLE__V1__NODE_MESSAGE__BODY_RENDEZVOUS_PUT, &m);
}

static void ranks_meet_when_the_last_one_is_there(void **state)
{
    struct bench b;
    struct daemon d = {0};
    Heddle__V1__Heartbeat beat = HEDDLE__V1__HEARTBEAT__INIT;
    char large[5000];
    uint64_t job;

    start(&b, NULL);
    join(&d, &b, "n1");
    job = submit(&b, 2);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    put(&d, job, 1, "card of 1");
    beat.nonce = 1;
    say(&d, HEDDLE__V1__NODE_MESSAGE__BODY_HEARTBEAT, &beat);
    WAIT_FOR(&b, d.answered == 1);
    assert_int_equal(d.sets, 0);
    put(&d, job, 0, "card of 0");
    WAIT_FOR(&b, d.sets == 1);
    assert_int_equal(d.set->rendezvous_set->n_values, 2);
    assert_memory_equal(d.set->rendezvous_set->values[0].data, "card of 0", 9);
    assert_memory_equal(d.set->rendezvous_set->values[1].data, "card of 1", 9);
    put(&d, job, 0, "card of 0"); /* after a reconnect: answered again */
    WAIT_FOR(&b, d.sets == 2);
    memset(large, 'x', sizeof large - 1);
    large[sizeof large - 1] = 0;
    put(&d, job, 0, large);
    WAIT_FOR(&b, d.done);
    assert_int_equal(d.end, HD_LIMIT);
    free_daemon(&d);
    finish(&b);
}

enum { MANY_NODES = 64, MANY_RANKS = MANY_NODES * DEVICES_MAX, CARD = 288 /* of a rank */ };

/* The value of a rank, of the size of a worker's. */
static void card_of(int rank, char ret_card[CARD + 1])
{
    (void)snprintf(ret_card, CARD + 1, "%0*d", CARD, rank);
}

static void has_all_cards(const Heddle__V1__RendezvousSet *set)
{
    char card[CARD + 1];

    assert_int_equal(set->n_values, MANY_RANKS);
    for (int r = 0; r < MANY_RANKS; r++) {
        card_of(r, card);
        assert_int_equal(set->values[r].len, CARD);
        assert_memory_equal(set->values[r].data, card, CARD);
    }
}

/* The largest world, 4096 ranks on 64 nodes: every node hears all, and none before the last. */
/* When the controller has answered a call, it has heard what was said before. */
static void none_has_a_set(struct bench *b, const struct daemon *nodes)
{
    Heddle__V1__ListNodesRequest request = HEDDLE__V1__LIST_NODES_REQUEST__INIT;
    Heddle__V1__ListNodesResponse *response = NULL;

    for (int i = 0; i < 3; i++) {
        assert_int_equal(call(b, "ListNodes", &heddle__v1__list_nodes_response__descriptor,
                              &request.base, &response),
                         HD_OK);
        hd_rpc_message_free(&response->base);
    }
    for (int i = 0; i < MANY_NODES; i++)
        assert_int_equal(nodes[i].sets, 0);
}

static void four_thousand_ranks_meet(void **state)
{
    static struct daemon nodes[MANY_NODES];
    Heddle__V1__Plan *plan;
    struct bench b;
    char name[16], uuid[16], card[CARD + 1];
    uint64_t job;

    start(&b, NULL);
    for (int i = 0; i < MANY_NODES; i++) {
        nodes[i] = (struct daemon){.devices = DEVICES_MAX};
        (void)snprintf(name, sizeof name, "n%d", i);
        (void)snprintf(uuid, sizeof uuid, "uuid-%d", i);
        join_as(&nodes[i], &b, name, uuid);
    }
    job = submit(&b, MANY_RANKS);
    for (int i = 0; i < MANY_NODES; i++)
        WAIT_FOR(&b, nodes[i].desired->desired->n_attempts == 1);
    plan = nodes[0].desired->desired->attempts[0]->plan;
    assert_int_equal(plan->n_ranks, MANY_RANKS);
    for (int r = 0; r < MANY_RANKS; r++) {
        int node;

        assert_int_equal(sscanf(plan->ranks[r]->node_uuid, "uuid-%d", &node), 1);
        if (r == MANY_RANKS - 1)
            none_has_a_set(&b, nodes);
        card_of(r, card);
        put(&nodes[node], job, r, card);
    }
    for (int i = 0; i < MANY_NODES; i++) {
        WAIT_FOR(&b, nodes[i].sets == 1);
        has_all_cards(nodes[i].set->rendezvous_set);
    }
    for (int i = 0; i < MANY_NODES; i++)
        free_daemon(&nodes[i]);
    finish(&b);
}

/* A checkpoint outside its attempt's folder would be deleted one day. */
static void a_checkpoint_elsewhere_is_ignored(void **state)
{
    struct bench b;
    struct daemon d = {0};
    Heddle__V1__ListCheckpointsRequest request = HEDDLE__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    Heddle__V1__ListCheckpointsResponse *response = NULL;
    char dir[256];

    start(&b, NULL);
    join(&d, &b, "n1");
    request.job = submit(&b, 2);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    observe(&d, request.job, HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_RUNNING, NULL);
    send_checkpoint(&d, request.job, 1, 1, "/etc");
    (void)snprintf(dir, sizeof dir, "%s/../../../..",
                   d.desired->desired->attempts[0]->checkpoint_dir);
    send_checkpoint(&d, request.job, 2, 2, dir);
    send_checkpoint(&d, request.job, 3, 3, d.desired->desired->attempts[0]->checkpoint_dir);
    WAIT_FOR(&b, d.acked == 3);
    assert_int_equal(call(&b, "ListCheckpoints", &heddle__v1__list_checkpoints_response__descriptor,
                          &request.base, &response),
                     HD_OK);
    assert_int_equal(response->n_checkpoints, 1);
    assert_int_equal(response->checkpoints[0]->step, 3);
    hd_rpc_message_free(&response->base);
    free_daemon(&d);
    finish(&b);
}

/* ---- logs -------------------------------------------------------------------------------------*/

struct reading {
    char text[256], note[512];
    size_t length;
    int notes;
    bool done;
    enum hd_status st;
};

static void reading_msg(struct hd_rpc_call *c, const ProtobufCMessage *message)
{
    struct reading *r = hd_rpc_call_user(c);
    const Heddle__V1__ReadLogResponse *m = (const void *)message;

    assert_int_equal(m->offset_bytes, r->length);
    if (m->data.len)
        memcpy(r->text + r->length, m->data.data, m->data.len);
    r->length += m->data.len;
    if (*m->note) {
        (void)snprintf(r->note, sizeof r->note, "%s", m->note);
        r->notes++;
    }
}

static void reading_done(struct hd_rpc_call *c, enum hd_status status, const char *message)
{
    struct reading *r = hd_rpc_call_user(c);

    r->done = true;
    r->st = status;
}

static void read_log(struct reading *r, struct bench *b, uint64_t job, int32_t rank, bool follow)
{
    const struct hd_rpc_call_options options = {
        .path = "/heddle.v1.Control/ReadLog",
        .kind = HD_RPC_SERVER_STREAM,
        .response = &heddle__v1__read_log_response__descriptor,
        .handler = {.on_msg = reading_msg, .on_done = reading_done},
        .user = r};
    Heddle__V1__ReadLogRequest request = HEDDLE__V1__READ_LOG_REQUEST__INIT;

    *r = (struct reading){0};
    request.job = job;
    request.rank = rank;
    request.follow = follow;
    assert_int_equal(hd_rpc_client_call(b->client, &options, &request.base, NULL), HD_OK);
}

static void logs_msg(struct hd_rpc_call *c, const ProtobufCMessage *message)
{
    struct daemon *d = hd_rpc_call_user(c);

    d->log_request = *(const Heddle__V1__LogRequest *)(const void *)message;
    d->log_request.attempt_dir = NULL;
    d->log_requests++;
}

static void logs_done(struct hd_rpc_call *c, enum hd_status status, const char *message)
{
    ((struct daemon *)hd_rpc_call_user(c))->logs = NULL;
}

static void open_logs(struct daemon *d)
{
    const struct hd_rpc_call_options options = {
        .path = "/heddle.v1.Fleet/Logs",
        .kind = HD_RPC_BIDI,
        .response = &heddle__v1__log_request__descriptor,
        .handler = {.on_msg = logs_msg, .on_done = logs_done},
        .user = d};
    Heddle__V1__LogChunk first = HEDDLE__V1__LOG_CHUNK__INIT;

    first.node_uuid = d->uuid;
    assert_int_equal(hd_rpc_client_call(d->b->client, &options, &first.base, &d->logs), HD_OK);
}

static void answer_log(struct daemon *d, const char *text)
{
    Heddle__V1__LogChunk chunk = HEDDLE__V1__LOG_CHUNK__INIT;

    chunk.request = d->log_request.request;
    chunk.offset_bytes = d->log_request.offset_bytes;
    chunk.data.data = (uint8_t *)(uintptr_t)text;
    chunk.data.len = strlen(text);
    assert_int_equal(hd_rpc_call_write(d->logs, &chunk.base), HD_OK);
}

static void a_log_comes_piece_by_piece_and_is_followed(void **state)
{
    struct bench b;
    struct daemon d = {0};
    struct reading r;
    Heddle__V1__EndReport end = HEDDLE__V1__END_REPORT__INIT;
    uint64_t job;

    start(&b, NULL);
    join(&d, &b, "n1");
    open_logs(&d);
    job = submit(&b, 2);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    read_log(&r, &b, job, 2, false);
    WAIT_FOR(&b, r.done);
    assert_int_equal(r.st, HD_NOT_FOUND); /* ranks 0 and 1 only */

    read_log(&r, &b, job, 1, true);
    WAIT_FOR(&b, d.log_requests == 1);
    assert_int_equal(d.log_request.rank, 1);
    assert_true(d.log_request.wait_ms > 0);
    answer_log(&d, "first ");
    WAIT_FOR(&b, d.log_requests == 2);
    assert_int_equal(d.log_request.offset_bytes, 6);
    answer_log(&d, ""); /* nothing yet: asked again */
    WAIT_FOR(&b, d.log_requests == 3);
    send_step(&d, job, 1, 10);
    send_checkpoint(&d, job, 2, 10, d.desired->desired->attempts[0]->checkpoint_dir);
    end.cause = HEDDLE__V1__END_CAUSE__END_CAUSE_COMPLETED;
    end.rank = -1;
    observe(&d, job, HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_ENDED, &end);
    WAIT_FOR(&b, state_of(&b, job) == HEDDLE__V1__JOB_STATE__JOB_STATE_SUCCEEDED);
    answer_log(&d, ""); /* asked before the end: the last words may still be to come */
    WAIT_FOR(&b, d.log_requests == 4);
    answer_log(&d, "last");
    WAIT_FOR(&b, d.log_requests == 5);
    assert_false(r.done);
    answer_log(&d, "");
    WAIT_FOR(&b, r.done);
    assert_int_equal(r.st, HD_OK);
    assert_string_equal(r.text, "first last");

    hd_rpc_call_cancel(d.logs);
    WAIT_FOR(&b, !d.logs);
    free_daemon(&d);
    read_log(&r, &b, job, 0, false);
    WAIT_FOR(&b, r.done);
    assert_int_equal(r.st, HD_UNAVAILABLE); /* the node is away, and its log with it */
    finish(&b);
}

static void append(const struct bench *b, uint64_t job, const char *text)
{
    char path[2 * TEMPORARY_BYTES];
    FILE *log;

    (void)snprintf(path, sizeof path, "%s/state/jobs/%llu/attempt-1/logs", b->dir,
                   (unsigned long long)job);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    (void)snprintf(path, sizeof path, "%s/state/jobs/%llu/attempt-1/logs/rank-1.log", b->dir,
                   (unsigned long long)job);
    log = fopen(path, "ae");
    assert_non_null(log);
    assert_true(fputs(text, log) >= 0);
    assert_int_equal(fclose(log), 0);
}

/* Goal: a log in the jobs directory is read on without the node, no byte twice. Method: the node's
 * stream ends between two pieces; other ranks of the job go on to write. */
static void a_log_is_read_on_while_its_node_is_away(void **state)
{
    struct bench b;
    struct daemon d = {0};
    struct reading r;
    uint64_t job;

    start(&b, NULL);
    join(&d, &b, "n1");
    open_logs(&d);
    job = submit(&b, 2);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    append(&b, job, "first second ");
    read_log(&r, &b, job, 1, true);
    WAIT_FOR(&b, d.log_requests == 1);
    answer_log(&d, "first ");
    WAIT_FOR(&b, d.log_requests == 2); /* in flight when the node goes */
    assert_int_equal(r.notes, 0);
    hd_rpc_call_cancel(d.logs);
    WAIT_FOR(&b, r.length == strlen("first second "));
    append(&b, job, "third");
    WAIT_FOR(&b, r.length == strlen("first second third"));
    assert_string_equal(r.text, "first second third");
    assert_int_equal(r.notes, 1);
    assert_non_null(strstr(r.note, "n1 is away"));
    assert_non_null(strstr(r.note, "attempt-1/logs/rank-1.log"));
    WAIT_FOR(&b, !d.logs);
    open_logs(&d); /* back: it is asked for what follows */
    WAIT_FOR(&b, d.log_requests == 3);
    assert_int_equal(d.log_request.offset_bytes, r.length);
    answer_log(&d, " fourth");
    WAIT_FOR(&b, r.length == strlen("first second third fourth"));
    assert_int_equal(r.notes, 1);
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

int main(void)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    hd_log_init("controller", HD_LOG_ERROR);
    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
