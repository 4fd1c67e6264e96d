/* services: the jobs directory: whose it is, and what happens while it is not there. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "controller/services/jobs_mark.h"
#include "controller/store/store.h"
#include "services_bench.h"
#include "tests/program/test.h"

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

/* Two controllers on one jobs directory would give their jobs the same numbers, and each would take
 * the other's folders for its own. */
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

RUN_CASES()
