/* The real heddled and heddle-supervisor over stand-ins for ranks, under a controller that wants
 * exactly what the test says. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent_node.h"
#include "base/file.h"
#include "base/hash.h"
#include "daemon/attempt/attempt.h"
#include "tests/delay_proxy.h"
#include "tests/program/test.h"

static void a_node_says_who_it_is_and_what_it_sees(void **state)
{
    stub_open(&stub, 1);
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    assert_int_equal(stub.nodes[0].devices, 2);
    assert_int_equal(stub.nodes[0].threads, 3);
    assert_int_equal(strlen(stub.nodes[0].uuid), 36);
    assert_int_equal(stub.nodes[0].attempts, 0);
    assert_int_equal(stub.nodes[0].generation, 0);
    assert_string_equal(stub.nodes[0].probe, "the same place");
    stub_close(&stub);
}

/* Another file system is mounted where the jobs should be; then the right one. */
static void another_folder_of_the_same_name_is_noticed_until_it_is_the_right_one(void **state)
{
    char path[160];

    stub_open(&stub, 1);
    (void)snprintf(path, sizeof path, "%s/.probe", stub.jobs_dir);
    assert_int_equal(hd_file_write_atomic(path, "elsewhere\n", 10, 0644), HD_OK);
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, strstr(stub.nodes[0].probe_problem, "another folder of the same name"));
    assert_int_equal(hd_file_write_atomic(path, "the same place\n", 15, 0644), HD_OK);
    stub_until(&stub, !stub.nodes[0].probe_problem[0]);
    assert_string_equal(stub.nodes[0].probe, "the same place");
    assert_string_equal(stub.nodes[0].no_room, ""); /* it may as well be a node's own folder */

    assert_int_equal(unlink(path), 0); /* the mount is gone */
    stub_until(&stub,
               strstr(stub.nodes[0].no_room, "is not the cluster's jobs directory any more"));
    assert_int_equal(hd_file_write_atomic(path, "the same place\n", 15, 0644), HD_OK);
    stub_until(&stub, !stub.nodes[0].no_room[0]);
    assert_string_equal(stub.nodes[0].probe, "the same place");
    stub_close(&stub);
}

/* Two controllers in one jobs directory, the second of which has removed the first one's mark. */
static void a_jobs_directory_that_another_cluster_has_taken_is_told_as_that(void **state)
{
    static const char theirs[] = "their place\ncluster 8c1d\nstate /srv/b on n7\n";
    static const char ours[] = "the same place\ncluster cluster-of-the-test\nstate /a on n1\n";
    char path[160];

    stub_open(&stub, 1);
    (void)snprintf(path, sizeof path, "%s/.probe", stub.jobs_dir);
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    assert_int_equal(hd_file_write_atomic(path, theirs, strlen(theirs), 0644), HD_OK);
    stub_until(&stub, strstr(stub.nodes[0].no_room, "the controller of another cluster has taken "
                                                    "it, with the state directory /srv/b on n7"));
    assert_non_null(strstr(stub.nodes[0].no_room, "remove .probe in it"));
    assert_int_equal(hd_file_write_atomic(path, ours, strlen(ours), 0644), HD_OK);
    stub_until(&stub, !stub.nodes[0].no_room[0] && !stub.nodes[0].probe_problem[0]);
    stub_close(&stub);
}

static void an_attempt_goes_the_whole_way(void **state)
{
    char path[256];

    stub_open(&stub, 1);
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    stub_want(&stub, RUNNING, 2);
    stub_until(&stub, ended(0));
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_COMPLETED);
    assert_int_equal(stub.nodes[0].end_rank, -1);
    assert_int_equal(stub.nodes[0].generation, 1);
    /* 3 steps of rank 0 (of rank 1 they are not told), a checkpoint and an exit of each */
    assert_int_equal(stub.steps, 3);
    assert_int_equal(stub.checkpoints, 2);
    assert_int_equal(stub.exits, 2);
    assert_int_equal(stub.reports, 7);
    (void)snprintf(path, sizeof path, "%s/attempts/7-1", stub.nodes[0].state_dir);
    assert_true(hd_file_exists(path));
    stub_want(&stub, NOTHING, 0);
    stub_until(&stub, !stub.nodes[0].listed);
    assert_false(hd_file_exists(path));
    stub_close(&stub);
}

/* Goal: what the controller stores about an end is complete. Method: acknowledge nothing; the end
 * must not be shown. */
/* Method: a round trip of 300 ms, by TCP; to connect takes two of them. */
static void a_node_far_away_is_a_node(void **state)
{
    struct delay_proxy *way;
    char token[160], address[32];
    int port;

    stub_open(&stub, 1);
    (void)snprintf(token, sizeof token, "%s/token", stub.root);
    assert_int_equal(hd_file_write_atomic(token, STUB_TOKEN, strlen(STUB_TOKEN), 0600), HD_OK);
    way = delay_proxy_open(&stub.loop, stub.port, 300, &port);
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", port);
    stub_start_node(&stub, 0, "--controller", address, "--token-file", token, NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    stub_want(&stub, RUNNING, 2);
    stub_until(&stub, ended(0));
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_COMPLETED);
    assert_int_equal(stub.nodes[0].hellos, 1);
    assert_int_equal(delay_proxy_connections(way), 1); /* none was given up */
    stub_signal_node(&stub, 0, SIGTERM);
    assert_int_equal(stub_wait_node(&stub, 0), 0);
    delay_proxy_close(way);
    stub_close(&stub);
}

static void an_end_is_shown_after_every_report_is_acknowledged(void **state)
{
    stub_open(&stub, 1);
    stub.hold_acks = true;
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    stub_want(&stub, RUNNING, 2);
    stub_until(&stub, stub.reports == 7);
    stub_run_for(&stub, 700);
    assert_true(is(0, HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_STOPPING));
    stub_acknowledge(&stub);
    stub_until(&stub, ended(0));
    assert_int_equal(stub.repeated, 0);
    stub_close(&stub);
}

static void ranks_outlive_heddled(void **state)
{
    static const int signals[] = {SIGTERM, SIGKILL};
    char first[40];
    int steps;

    begin_waiting(NULL);
    (void)snprintf(first, sizeof first, "%s", stub.nodes[0].uuid);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        stub_signal_node(&stub, 0, signals[i]);
        (void)stub_wait_node(&stub, 0);
        assert_int_equal(stub_processes(&stub), 2);
        steps = stub.steps;
        stub.nodes[0].listed = false;
        stub_start_node(&stub, 0, NULL);
        stub_until(&stub, runs(0) && stub.steps > steps);
        assert_string_equal(stub.nodes[0].uuid, first);
        stub_want(&stub, RUNNING, 2);
    }
    assert_int_equal(stub_processes(&stub), 2); /* nothing was started twice */
    stop_and_close();
}

/* heddled is killed, and the attempt ends before it is started again. */
static void an_end_in_the_absence_of_heddled_is_told_later(void **state)
{
    stub_open(&stub, 1);
    assert_int_equal(setenv("FAKE_STEPS", "2000", 1), 0);
    stub.hold_acks = true;
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    stub_want(&stub, RUNNING, 2);
    stub_until(&stub, stub.steps > 0);
    stub_signal_node(&stub, 0, SIGKILL);
    (void)stub_wait_node(&stub, 0);
    stub_until(&stub, stub_processes(&stub) == 0);
    stub.hold_acks = false;
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, ended(0));
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_COMPLETED);
    assert_int_equal(stub.exits, 2);
    assert_int_equal(unsetenv("FAKE_STEPS"), 0);
    stub_close(&stub);
}

static void what_was_not_acknowledged_is_sent_again(void **state)
{
    begin_waiting(NULL);
    stub.hold_acks = true;
    stub_until(&stub, stub.reports > 10);
    stub_unserve(&stub);
    stub_until(&stub, !stub.nodes[0].stream);
    stub_run_for(&stub, 500);
    assert_int_equal(stub_processes(&stub), 2);
    stub.repeated = 0;
    stub.hold_acks = false;
    stub_serve(&stub);
    stub_until(&stub, stub.nodes[0].hellos >= 2 && runs(0));
    stub_until(&stub, stub.repeated > 0);
    assert_false(stub.nodes[0].first_of_stream);
    assert_int_equal(stub.nodes[0].first_generation, 0); /* nothing was wanted on it yet */
    stub_want(&stub, RUNNING, 2);
    stop_and_close();
}

/* Job 7 of another cluster is another job: heddled ends rather than tell of this one there, and
 * leaves the ranks alone. */
static void attempts_are_not_told_to_another_cluster(void **state)
{
    int reports;

    begin_waiting(NULL);
    stub_unserve(&stub);
    stub_until(&stub, !stub.nodes[0].stream);
    reports = stub.reports;
    stub.cluster = "another-cluster";
    stub_serve(&stub);
    assert_int_equal(WEXITSTATUS(stub_wait_node(&stub, 0)), EXIT_FAILURE);
    assert_int_equal(stub.reports, reports);
    assert_int_equal(stub_processes(&stub), 2);
    stub.cluster = "cluster-of-the-test";
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, runs(0) && stub.reports > reports);
    stub_want(&stub, RUNNING, 2);
    stop_and_close();
}

/* Nothing can be put on record, so nothing is started; heddled tries again by itself. */
static void a_launch_waits_for_its_record(void **state)
{
    char records[160], aside[160];

    stub_open(&stub, 1);
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    (void)snprintf(records, sizeof records, "%s/attempts", stub.nodes[0].state_dir);
    (void)snprintf(aside, sizeof aside, "%s/aside", stub.nodes[0].state_dir);
    assert_int_equal(rename(records, aside), 0);
    stub_want(&stub, RUNNING, 2);
    stub_until(&stub, stub.nodes[0].generation == stub.generation);
    stub_run_for(&stub, 300);
    assert_false(stub.nodes[0].listed);
    assert_int_equal(stub_processes(&stub), 0);
    assert_int_equal(rename(aside, records), 0);
    stub_until(&stub, ended(0));
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_COMPLETED);
    stub_close(&stub);
}

static void a_rank_that_dies_is_named(void **state)
{
    stub_open(&stub, 1);
    mode(0, "wait");
    mode(1, "killself");
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    stub_want(&stub, RUNNING, 2);
    stub_until(&stub, ended(0));
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_RANK_EXIT);
    assert_int_equal(stub.nodes[0].end_rank, 1);
    assert_int_equal(stub.nodes[0].end_signal, SIGKILL);
    assert_non_null(strstr(stub.nodes[0].end_message, "out of memory"));
    stub_close(&stub);
}

static void signal_supervisor(int signal)
{
    struct hd_attempt_process process;
    char run_dir[256];

    (void)snprintf(run_dir, sizeof run_dir, "%s/7/attempt-1/nodes/n0", stub.jobs_dir);
    assert_int_equal(hd_attempt_process_read(run_dir, &process), HD_OK);
    assert_int_equal(kill(process.pid, signal), 0);
}

/* 15 s pass until it is noticed; watch_test has the rest of it on a clock of its own. */
static void a_stopped_supervisor_is_said_and_continued(void **state)
{
    begin_waiting(NULL);
    signal_supervisor(SIGSTOP);
    stub_until(&stub, strstr(stub.nodes[0].problem, "does not answer"));
    stub_until(&stub, !stub.nodes[0].problem[0]); /* it goes on, and answers */
    assert_true(runs(0));
    signal_supervisor(SIGSTOP);
    stub_want(&stub, STOPPED, 2);
    stub_until(&stub, ended(0)); /* at once: a kill continues it first */
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_USER);
    assert_int_equal(stub_processes(&stub), 0);
    stub_close(&stub);
}

static void a_killed_supervisor_ends_the_attempt(void **state)
{
    begin_waiting(NULL);
    signal_supervisor(SIGKILL);
    stub_until(&stub, ended(0));
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_RANK_EXIT);
    assert_non_null(strstr(stub.nodes[0].end_message, "heddle-supervisor"));
    assert_int_equal(stub_processes(&stub), 0);
    stub_close(&stub);
}

/* Neither ranks nor the supervisor can write any more. */
static void an_attempt_whose_folder_was_removed_ends_with_that(void **state)
{
    char dir[128];

    begin_waiting(NULL);
    (void)snprintf(dir, sizeof dir, "%s/7", stub.jobs_dir);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
    stub_want(&stub, STOPPING, 2);
    stub_until(&stub, ended(0));
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_STORAGE);
    assert_non_null(strstr(stub.nodes[0].end_message, "/7 was removed while the attempt ran"));
    assert_int_equal(stub_processes(&stub), 0);
    stub_close(&stub);
}

static void what_is_not_listed_is_ended_and_forgotten(void **state)
{
    begin_waiting(NULL);
    stub_want(&stub, NOTHING, 0);
    stub_until(&stub, !stub.nodes[0].listed);
    assert_int_equal(stub_processes(&stub), 0);
    stub_close(&stub);
}

static void stopped_is_a_kill(void **state)
{
    begin_waiting(NULL);
    stub_want(&stub, STOPPED, 2);
    stub_until(&stub, ended(0));
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_USER);
    assert_int_equal(stub.checkpoints, 0);
    stub_close(&stub);
}

static void ephemeral_ranks_end_with_heddled(void **state)
{
    static const int signals[] = {SIGTERM, SIGKILL};

    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        begin_waiting((char *)"--ephemeral");
        stub_signal_node(&stub, 0, signals[i]);
        (void)stub_wait_node(&stub, 0);
        if (signals[i] == SIGTERM) /* in order: it waits for them */
            assert_int_equal(stub_processes(&stub), 0);
        stub_until(&stub, stub_processes(&stub) == 0);
        stub_close(&stub);
    }
}

static void an_ephemeral_heddled_ends_with_its_parent(void **state)
{
    int pipe_fd[2];
    pid_t parent, daemon = 0;

    stub_open(&stub, 1);
    mode(0, "wait");
    mode(1, "wait");
    assert_int_equal(pipe(pipe_fd), 0);
    parent = fork();
    assert_true(parent >= 0);
    if (parent == 0) {
        stub_start_node(&stub, 0, "--ephemeral", NULL);
        (void)!write(pipe_fd[1], &stub.nodes[0].daemon, sizeof daemon);
        for (;;)
            (void)pause();
    }
    assert_int_equal(read(pipe_fd[0], &daemon, sizeof daemon), sizeof daemon);
    stub_until(&stub, stub.nodes[0].observed_count);
    stub_want(&stub, RUNNING, 2);
    stub_until(&stub, runs(0));
    assert_int_equal(kill(parent, SIGKILL), 0);
    (void)waitpid(parent, NULL, 0);
    stub_until(&stub, stub_processes(&stub) == 0 && kill(daemon, 0) < 0);
    (void)close(pipe_fd[0]);
    (void)close(pipe_fd[1]);
    stub_close(&stub);
}

static void a_state_directory_has_one_heddled(void **state)
{
    pid_t first;
    int status;

    stub_open(&stub, 1);
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    first = stub.nodes[0].daemon;
    stub_start_node(&stub, 0, NULL);
    assert_int_equal(waitpid(stub.nodes[0].daemon, &status, 0), stub.nodes[0].daemon);
    assert_int_equal(WEXITSTATUS(status), 6);
    stub.nodes[0].daemon = first;
    assert_int_equal(stub.nodes[0].hellos, 1);
    stub_close(&stub);
}

static void a_taken_name_is_an_error_at_start(void **state)
{
    stub_open(&stub, 1);
    stub.refuse = true;
    stub_start_node(&stub, 0, NULL);
    assert_int_equal(WEXITSTATUS(stub_wait_node(&stub, 0)), 1);
    stub_close(&stub);
}

static void a_plan_that_does_not_fit_the_node_fails_to_launch(void **state)
{
    stub_open(&stub, 1);
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    stub_want(&stub, RUNNING, 4); /* of a node with 2 devices */
    stub_until(&stub, ended(0));
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_LAUNCH_FAILED);
    assert_true(stub.nodes[0].bad_input);
    assert_non_null(strstr(stub.nodes[0].end_message, "4 ranks for this node of 2 devices"));
    stub_close(&stub);
}

/* Goal: who may make names in the jobs directory cannot send a job's files elsewhere. Method: the
 * job's folder is a link when the job comes; the folder that it names stays empty. */
/* The removed node exits with status 0, so that systemd does not start it again. */
static void heddled_ends_when_its_node_is_removed(void **state)
{
    int status;

    stub_open(&stub, 1);
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    stub_remove(&stub);
    stub_until(&stub, !stub.nodes[0].stream);
    status = stub_wait_node(&stub, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(stub.nodes[0].hellos, 1); /* it did not join again */
    stub_close(&stub);
}

static void a_job_folder_that_is_a_link_is_refused(void **state)
{
    char path[256], other[256], message[300];

    stub_open(&stub, 1);
    (void)snprintf(other, sizeof other, "%s-other", stub.jobs_dir);
    (void)snprintf(path, sizeof path, "%s/7", stub.jobs_dir);
    assert_int_equal(hd_file_make_dirs(other, 0755), HD_OK);
    assert_int_equal(symlink(other, path), 0);
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    stub_want(&stub, RUNNING, 2);
    stub_until(&stub, ended(0));
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_LAUNCH_FAILED);
    assert_true(stub.nodes[0].bad_input); /* another attempt would meet it again */
    (void)snprintf(message, sizeof message, "%s exists and is a link", path);
    assert_non_null(strstr(stub.nodes[0].end_message, message));
    assert_int_equal(rmdir(other), 0);
    stub_close(&stub);
}

/* The folder has another cluster's attempt of the same numbers, which has ended well. */
static void an_attempt_of_another_cluster_is_not_taken_for_ones_own(void **state)
{
    const struct hd_link_report end = {.kind = HD_LINK_END,
                                       .job = 7,
                                       .attempt = 1,
                                       .rank = -1,
                                       .end = {.cause = HD_LINK_CAUSE_COMPLETED, .first_rank = -1}};
    static const char mark[] = "cluster 8c1d\njob 7\n";
    char job[160], path[256];

    stub_open(&stub, 1);
    (void)snprintf(job, sizeof job, "%s/7", stub.jobs_dir);
    (void)snprintf(path, sizeof path, "%s/attempt-1/nodes/n0", job);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    assert_int_equal(hd_attempt_write_end(path, &end), HD_OK);
    (void)snprintf(path, sizeof path, "%s/owner", job);
    assert_int_equal(hd_file_write_atomic(path, mark, strlen(mark), 0644), HD_OK);
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    stub_want(&stub, RUNNING, 2);
    stub_until(&stub, ended(0));
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_LAUNCH_FAILED);
    assert_true(stub.nodes[0].bad_input); /* another attempt would meet it again */
    assert_non_null(strstr(stub.nodes[0].end_message, "\"cluster 8c1d job 7 \""));

    stub_want_removed(&stub, job); /* and heddle rm leaves it */
    stub_until(&stub, stub.nodes[0].deleted == 1);
    assert_true(hd_file_exists(path));
    assert_int_equal(unlink(path), 0);
    stub_close(&stub);
}

static void ranks_of_two_nodes_meet_through_the_controller(void **state)
{
    stub_open(&stub, 2);
    for (int rank = 0; rank < 4; rank++)
        mode(rank, "meet");
    stub_start_node(&stub, 0, NULL);
    stub_start_node(&stub, 1, NULL);
    stub_until(&stub, stub.nodes[0].observed_count && stub.nodes[1].observed_count);
    stub_want(&stub, RUNNING, 2);
    stub_until(&stub, stub.put_count == 4);
    stub_unserve(&stub); /* the set was not sent: everybody must put again */
    stub_until(&stub, !stub.nodes[0].stream && !stub.nodes[1].stream);
    stub_serve(&stub);
    stub_until(&stub, stub.put_repeated == 4);
    stub_want(&stub, RUNNING, 2);
    stub_complete_rendezvous(&stub);
    stub_until(&stub, stub.put_round == 1 && stub.put_count == 4);
    stub_complete_rendezvous(&stub);
    stub_until(&stub, ended(0) && ended(1));
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_COMPLETED);
    assert_int_equal(stub.nodes[1].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_COMPLETED);
    stub_ask_log(&stub, 3, 0, 0);
    stub_until(&stub, stub.log_answered == 1);
    assert_non_null(strstr(stub.log_text, "0.0 1.0 2.0 3.0 0.1 1.1 2.1 3.1 met"));
    stub_close(&stub);
}

static void pieces_of_logs_come_on_request(void **state)
{
    char path[256];

    begin_waiting(NULL);
    stub_ask_log(&stub, 1, 0, 0);
    stub_until(&stub, stub.log_answered == 1);
    assert_string_equal(stub.log_text, "rank 1 of 2: wait, 2 threads\n");
    stub_ask_log(&stub, 1, -8, 0); /* so many bytes before the end */
    stub_until(&stub, stub.log_answered == 2);
    assert_string_equal(stub.log_text, "threads\n");
    stub_ask_log(&stub, 1, 29, 10000); /* the end: waits for more */
    stub_run_for(&stub, 500);
    assert_int_equal(stub.log_answered, 2);
    (void)snprintf(path, sizeof path, "echo more >> %s/7/attempt-1/logs/rank-1.log", stub.jobs_dir);
    assert_int_equal(system(path), 0);
    stub_until(&stub, stub.log_answered == 3);
    assert_string_equal(stub.log_text, "more\n");
    stub_ask_log(&stub, 1, 34, 100); /* nothing comes */
    stub_until(&stub, stub.log_answered == 4);
    assert_string_equal(stub.log_text, "");
    assert_string_equal(stub.log_error, "");
    stop_and_close();
}

static void make_checkpoint(char path[256], char hash[HD_HASH_TEXT_MAX], const char *name)
{
    char file[300];

    (void)snprintf(path, 256, "%s/7/attempt-1/checkpoints/%s", stub.jobs_dir, name);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    (void)snprintf(file, sizeof file, "%s/manifest.json", path);
    assert_int_equal(hd_file_write_atomic(file, "{}", 2, 0644), HD_OK);
    hd_hash_format(hd_hash_bytes("{}", 2), hash);
}

static void only_the_named_checkpoint_is_removed(void **state)
{
    char path[256], other[256], hash[HD_HASH_TEXT_MAX];

    stub_open(&stub, 1);
    make_checkpoint(path, hash, "step-00000005");
    make_checkpoint(other, hash, "notes");
    stub_start_node(&stub, 0, NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    stub_want_deleted(&stub, path, "0000000000000000"); /* another checkpoint's hash */
    stub_until(&stub, stub.nodes[0].generation == 1);
    stub_want_deleted(&stub, other, hash); /* not a checkpoint's name */
    stub_until(&stub, stub.nodes[0].generation == 2);
    stub_run_for(&stub, 300);
    assert_int_equal(stub.nodes[0].deleted, 0);
    assert_true(hd_file_exists(path));
    assert_true(hd_file_exists(other));
    stub_want_deleted(&stub, path, hash);
    stub_until(&stub, stub.nodes[0].deleted == 1);
    assert_false(hd_file_exists(path));
    stub_want_deleted(&stub, path, hash); /* again: it is gone, which is what was wanted */
    stub_until(&stub, stub.nodes[0].generation == 4 && stub.nodes[0].deleted == 1);
    stub_close(&stub);
}

static void checkpoints_on_disk_are_shown_with_the_end(void **state)
{
    char path[256], hash[HD_HASH_TEXT_MAX];

    begin_waiting(NULL);
    make_checkpoint(path, hash, "step-00000020");
    make_checkpoint(path, hash, "step-00000005");
    stub_want(&stub, STOPPED, 2);
    stub_until(&stub, ended(0));
    assert_int_equal(stub.nodes[0].checkpoint_step, 20);
    stub_close(&stub);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
