/* Goal: records on a node's disk: its identity, the attempts it has, and how they ended; and how
 * long it waits for its controller. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/identity.h"
#include "daemon/agent/local.h"
#include "daemon/agent/owner.h"
#include "daemon/agent/state_dir.h"
#include "daemon/attempt/attempt.h"
#include "link/link.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

struct fixture {
    char dir[TEMPORARY_BYTES];
    char run_dir[128]; /* of attempt 1 of job 7 */
    const char *cluster;
    struct locals locals;
};

static void on_change(void *user, struct agent_attempt *local)
{
}

/* The attempts as a heddled that has just started knows them. */
static enum hd_status start(struct fixture *f)
{
    f->locals = (struct locals){.data_address = "", .cluster = f->cluster, .on_change = on_change};
    (void)snprintf(f->locals.state_dir, sizeof f->locals.state_dir, "%s/state", f->dir);
    (void)snprintf(f->locals.node, sizeof f->locals.node, "n1");
    return locals_open(&f->locals);
}

static void stop(struct fixture *f)
{
    locals_close(&f->locals);
}

static void attempt_dir_of(const struct fixture *f, int job, int attempt, char ret_dir[96])
{
    (void)snprintf(ret_dir, 96, "%s/jobs/%d/attempt-%d", f->dir, job, attempt);
}

static struct agent_attempt *add(struct fixture *f, int job, int attempt)
{
    struct agent_attempt *l = NULL;
    char dir[96], checkpoints[128];

    attempt_dir_of(f, job, attempt, dir);
    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", dir);
    assert_int_equal(locals_add(&f->locals, job, attempt, dir, checkpoints, NULL, &l), HD_OK);
    return l;
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    temporary_dir(f->dir, "heddle-record");
    (void)snprintf(f->run_dir, sizeof f->run_dir, "%s/jobs/7/attempt-1/nodes/n1", f->dir);
    assert_int_equal(hd_file_make_dirs(f->run_dir, 0755), HD_OK);
    assert_int_equal(start(f), HD_OK);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    enum hd_status st;

    stop(f);
    st = hd_file_remove_tree(f->dir);
    free(f);
    return (int)st;
}

/* ---- attempts ---- */

/* 7: only planned. 8: its supervisor began. 9: it ended while heddled was away. */
static void attempts_on_record_are_known_after_a_start(void **state)
{
    struct fixture *f = *state;
    struct hd_attempt_process self;
    const struct hd_link_report end = {
        .kind = HD_LINK_END, .job = 9, .attempt = 3, .rank = -1, .end = {.first_rank = -1}};
    const struct agent_attempt *l;
    char dir[96];

    (void)add(f, 7, 1);
    l = add(f, 8, 2);
    assert_int_equal(hd_file_make_dirs(l->run_dir, 0755), HD_OK);
    assert_int_equal(hd_attempt_process_find(getpid(), &self), HD_OK);
    assert_int_equal(hd_attempt_process_write(l->run_dir, &self), HD_OK);
    l = add(f, 9, 3);
    assert_int_equal(hd_file_make_dirs(l->run_dir, 0755), HD_OK);
    assert_int_equal(hd_attempt_write_end(l->run_dir, &end), HD_OK);
    stop(f);
    assert_int_equal(start(f), HD_OK);

    l = locals_find(&f->locals, 7, 1);
    assert_non_null(l);
    assert_int_equal(l->state, LOCAL_PLANNED);
    assert_string_equal(l->run_dir, f->run_dir);
    attempt_dir_of(f, 7, 1, dir);
    assert_string_equal(l->attempt_dir, dir);
    assert_non_null(strstr(l->checkpoint_dir, "/7/attempt-1/checkpoints"));
    l = locals_find(&f->locals, 8, 2);
    assert_non_null(l);
    assert_int_equal(l->state, LOCAL_ALIVE);
    l = locals_find(&f->locals, 9, 3);
    assert_non_null(l);
    assert_int_equal(l->state, LOCAL_ALIVE); /* until it was looked after */
    locals_tick(&f->locals);
    assert_int_equal(l->state, LOCAL_ENDED);
    assert_null(locals_find(&f->locals, 7, 2));
}

/* Its file system is not mounted: what is made in its place is hidden when it is back, and hides
 * meanwhile that it is away. */
static void the_jobs_directory_is_not_made_in_place_of_one_that_is_away(void **state)
{
    const struct local_ranks ranks = {.world = 1, .count = 1};
    struct fixture *f = *state;
    struct agent_attempt *l = add(f, 7, 1), *other = add(f, 8, 1), *third = add(f, 9, 1);
    char jobs[96], away[96];

    (void)snprintf(jobs, sizeof jobs, "%s/jobs", f->dir);
    (void)snprintf(away, sizeof away, "%s/away", f->dir);
    assert_int_equal(rename(jobs, away), 0);
    local_fail_launch(l, false, "it was cancelled");
    assert_int_equal(l->state, LOCAL_ENDED);
    assert_false(hd_file_exists(jobs));
    f->locals.jobs_dir_seen = true;
    local_launch(other, "job", 3, &ranks);
    assert_int_equal(other->state, LOCAL_PLANNED);
    assert_true(other->waits);
    assert_non_null(strstr(other->trouble, "is not there"));
    assert_false(hd_file_exists(jobs));

    f->locals.jobs_dir_away = true; /* the folder on which it was mounted */
    assert_int_equal(mkdir(jobs, 0755), 0);
    local_fail_launch(third, false, "it was cancelled");
    assert_int_equal(rmdir(jobs), 0); /* nothing is in it */
}

/* The share was not mounted when the records were read: 7 ran on, and its record of a process comes
 * back with the share; of 8, which ran too, nothing is there; 9 was never started. */
static void an_attempt_that_ran_is_not_started_again_when_its_share_comes_back(void **state)
{
    struct fixture *f = *state;
    struct hd_attempt_process self;
    struct agent_attempt *l[3];
    char jobs[96], away[96];

    for (int i = 0; i < 3; i++)
        assert_int_equal(hd_file_make_dirs(add(f, 7 + i, 1)->run_dir, 0755), HD_OK);
    assert_int_equal(hd_attempt_process_find(getpid(), &self), HD_OK);
    assert_int_equal(hd_attempt_process_write(f->run_dir, &self), HD_OK);
    stop(f);
    (void)snprintf(jobs, sizeof jobs, "%s/jobs", f->dir);
    (void)snprintf(away, sizeof away, "%s/away", f->dir);
    assert_int_equal(rename(jobs, away), 0);
    assert_int_equal(mkdir(jobs, 0755), 0);
    assert_int_equal(start(f), HD_OK);
    for (int i = 0; i < 3; i++) {
        l[i] = locals_find(&f->locals, 7 + i, 1);
        assert_int_equal(l[i]->state, LOCAL_PLANNED);
    }
    f->locals.jobs_dir_seen = f->locals.jobs_dir_away = true;
    for (int i = 0; i < 3; i++)
        assert_false(local_take_up(l[i], i < 2)); /* local_launch makes it wait */
    assert_int_equal(rmdir(jobs), 0);
    assert_int_equal(rename(away, jobs), 0);
    f->locals.jobs_dir_away = false;
    assert_true(local_take_up(l[0], true));
    assert_int_equal(l[0]->state, LOCAL_ALIVE);
    assert_true(local_take_up(l[1], true));
    assert_int_equal(l[1]->state, LOCAL_ENDED);
    assert_int_equal(l[1]->end.end.cause, HD_LINK_CAUSE_STORAGE);
    assert_false(local_take_up(l[2], false));
    assert_int_equal(l[2]->state, LOCAL_PLANNED);
}

/* 8: by another cluster, before it was started here; 9: meanwhile. */
static void an_end_of_another_cluster_is_not_believed(void **state)
{
    struct fixture *f = *state;
    struct hd_link_report end = {.kind = HD_LINK_END,
                                 .rank = -1,
                                 .end = {.cause = HD_LINK_CAUSE_COMPLETED, .first_rank = -1}};
    struct agent_attempt *l;
    char dir[96];

    for (int job = 8; job <= 9; job++) {
        l = add(f, job, 1);
        assert_int_equal(hd_file_make_dirs(l->run_dir, 0755), HD_OK);
        end.job = job;
        end.attempt = 1;
        assert_int_equal(hd_attempt_write_end(l->run_dir, &end), HD_OK);
        (void)snprintf(dir, sizeof dir, "%s/jobs/%d", f->dir, job);
        assert_int_equal(owner_acquire(dir, "theirs", job), HD_OK);
        assert_int_equal(owner_acquire(dir, "ours", job), HD_CONFLICT);
        assert_int_equal(owner_check(dir, "theirs", job + 1), HD_CONFLICT); /* a copied folder */
    }
    stop(f);
    f->cluster = "ours";
    assert_int_equal(start(f), HD_OK);
    l = locals_find(&f->locals, 8, 1);
    assert_int_equal(l->state, LOCAL_PLANNED);
    l = locals_find(&f->locals, 9, 1);
    l->state = LOCAL_ALIVE;
    locals_tick(&f->locals);
    assert_int_equal(l->state, LOCAL_ENDED);
    assert_int_equal(l->end.end.cause, HD_LINK_CAUSE_LAUNCH_FAILED);
    assert_true(l->end.end.bad_input);
    assert_non_null(strstr(l->end.end.message, "cluster theirs"));
    assert_int_equal(hd_attempt_read_end(l->run_dir, &end), HD_OK); /* theirs stays */
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_COMPLETED);

    f->cluster = "theirs"; /* and they believe it */
    stop(f);
    assert_int_equal(start(f), HD_OK);
    locals_tick(&f->locals);
    l = locals_find(&f->locals, 9, 1);
    assert_int_equal(l->state, LOCAL_ENDED);
    assert_int_equal(l->end.end.cause, HD_LINK_CAUSE_COMPLETED);
}

/* The controller's database was restored from a backup of before attempt 1 of job 7, and begins it
 * once more: what the first one left here is no end of the second. */
static void an_end_of_an_attempt_of_the_same_number_is_not_believed(void **state)
{
    struct hd_link_report end = {.kind = HD_LINK_END,
                                 .job = 7,
                                 .attempt = 1,
                                 .rank = -1,
                                 .end = {.cause = HD_LINK_CAUSE_COMPLETED, .first_rank = -1}};
    struct hd_attempt_process self;
    struct fixture *f = *state;
    struct agent_attempt *l;
    char record[128];

    assert_int_equal(hd_attempt_write_end(f->run_dir, &end), HD_OK);
    l = add(f, 7, 1);
    assert_int_equal(l->state, LOCAL_ENDED);
    assert_int_equal(l->end.end.cause, HD_LINK_CAUSE_LAUNCH_FAILED);
    assert_false(l->end.end.bad_input); /* it is tried again, by the next number */
    assert_non_null(strstr(l->end.end.message, "attempt of the same number"));
    assert_int_equal(hd_attempt_read_end(f->run_dir, &end), HD_OK); /* that of before stays */
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_COMPLETED);
    (void)snprintf(record, sizeof record, "%s/state/attempts/7-1", f->dir);
    assert_false(hd_file_exists(record)); /* or a heddled that starts again believed the end */
    local_forget(l);

    (void)snprintf(record, sizeof record, "%s/" HD_ATTEMPT_END_FILE, f->run_dir);
    assert_int_equal(unlink(record), 0);
    assert_int_equal(hd_attempt_process_find(getpid(), &self), HD_OK);
    assert_int_equal(hd_attempt_process_write(f->run_dir, &self), HD_OK);
    assert_int_equal(add(f, 7, 1)->state, LOCAL_PLANNED); /* it runs: it is adopted */
}

static void a_forgotten_attempt_is_not_known_after_a_start(void **state)
{
    struct fixture *f = *state;

    (void)add(f, 7, 1);
    local_forget(add(f, 8, 1));
    stop(f);
    assert_int_equal(start(f), HD_OK);
    assert_non_null(locals_find(&f->locals, 7, 1));
    assert_null(locals_find(&f->locals, 8, 1));
}

/* Each line missing in turn, and text behind the last one: heddled would start with paths that are
 * not the attempt's. */
static void a_record_that_is_not_whole_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "attempt_dir /a\ncheckpoint_dir /c\nrun_dir /r\n",
        "attempt_dir /a\ncheckpoint_dir /c\nend\n",
        "checkpoint_dir /c\nrun_dir /r\nend\n",
        "attempt_dir /a\ncheckpoint_dir /c\nrun_dir /r\nend\nmore\n",
    };
    struct fixture *f = *state;
    char path[128];

    (void)snprintf(path, sizeof path, "%s/state/attempts/7-1", f->dir);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        stop(f);
        assert_int_equal(hd_file_write_atomic(path, bad[i], strlen(bad[i]), 0600), HD_OK);
        assert_int_equal(start(f), HD_CORRUPT);
        assert_non_null(strstr(hd_err_message(), path));
    }
}

/* The attempt has no directory yet: its end is on record all the same, so that a heddled that
 * starts again tells the same one. */
static void a_launch_that_failed_is_remembered_with_its_reason(void **state)
{
    struct fixture *f = *state;
    struct agent_attempt *l = add(f, 8, 1);

    assert_false(hd_file_exists(l->run_dir));
    local_fail_launch(l, true, "model.layers: no such key");
    for (int again = 0; again < 2; again++) {
        assert_int_equal(l->state, LOCAL_ENDED);
        assert_int_equal(l->end.job, 8);
        assert_int_equal(l->end.attempt, 1);
        assert_true(l->end.wall_ms > 0);
        assert_int_equal(l->end.end.cause, HD_LINK_CAUSE_LAUNCH_FAILED);
        assert_int_equal(l->end.end.first_rank, -1);
        assert_int_equal(l->end.end.bad_input, 1);
        assert_string_equal(l->end.end.message, "model.layers: no such key");
        if (again)
            break;
        stop(f);
        assert_int_equal(start(f), HD_OK);
        locals_tick(&f->locals);
        l = locals_find(&f->locals, 8, 1);
        assert_non_null(l);
    }
}

/* ---- ends that nobody wrote ---- */

static void write_exit(const struct fixture *f, int64_t rank, int64_t wall_ms, int64_t code,
                       int64_t signal)
{
    struct hd_link_report exit = {.kind = HD_LINK_EXIT,
                                  .job = 7,
                                  .attempt = 1,
                                  .rank = rank,
                                  .wall_ms = wall_ms,
                                  .exit = {.code = code, .signal = signal}};

    (void)snprintf(exit.exit.operation, sizeof exit.exit.operation, "op-%d", (int)rank);
    (void)snprintf(exit.exit.message, sizeof exit.exit.message, "words of %d", (int)rank);
    assert_int_equal(hd_attempt_write_exit(f->run_dir, &exit), HD_OK);
}

/* A process that has ended. */
static struct hd_attempt_process dead_supervisor(void)
{
    struct hd_attempt_process process;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        (void)pause();
        _exit(0);
    }
    assert_int_equal(hd_attempt_process_find(child, &process), HD_OK);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    return process;
}

static struct hd_link_report conclude(const struct fixture *f)
{
    struct hd_link_report end, again;

    assert_int_equal(hd_attempt_conclude(f->run_dir, 7, 1, false, &end), HD_OK);
    assert_int_equal(end.job, 7);
    assert_int_equal(end.attempt, 1);
    assert_int_equal(hd_attempt_read_end(f->run_dir, &again), HD_OK); /* and it is on record */
    assert_int_equal(again.end.cause, end.end.cause);
    assert_int_equal(again.wall_ms, end.wall_ms);
    return end;
}

/* The rank that failed first is to blame: not the one that ended first, which had done its work,
 * nor one that stopped as it was told. */
static void the_first_failed_exit_on_record_is_the_cause(void **state)
{
    struct fixture *f = *state;
    const struct hd_attempt_process process = dead_supervisor();
    struct hd_link_report end;

    assert_int_equal(hd_attempt_process_write(f->run_dir, &process), HD_OK);
    write_exit(f, 0, 50, HD_LINK_EXIT_COMPLETED, 0);
    write_exit(f, 1, 60, HD_LINK_EXIT_STOPPED, 0);
    write_exit(f, 2, 200, 0, SIGKILL);
    write_exit(f, 3, 100, HD_LINK_EXIT_BAD_INPUT, 0);
    write_exit(f, 4, 300, HD_LINK_EXIT_FAILED, 0);
    end = conclude(f);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_RANK_EXIT);
    assert_int_equal(end.end.first_rank, 3);
    assert_int_equal(end.end.code, HD_LINK_EXIT_BAD_INPUT);
    assert_int_equal(end.end.signal, 0);
    assert_int_equal(end.end.bad_input, 1);
    assert_string_equal(end.end.operation, "op-3");
    assert_string_equal(end.end.message, "words of 3");
}

static void ranks_that_only_stopped_are_no_cause(void **state)
{
    struct fixture *f = *state;
    const struct hd_attempt_process process = dead_supervisor();
    struct hd_link_report end;

    assert_int_equal(hd_attempt_process_write(f->run_dir, &process), HD_OK);
    write_exit(f, 0, 50, HD_LINK_EXIT_STOPPED, 0);
    end = conclude(f);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_RANK_EXIT);
    assert_int_equal(end.end.first_rank, -1);
    assert_int_equal(end.end.bad_input, 0);
    assert_non_null(strstr(end.end.message, "heddle-supervisor"));
}

/* Nothing of it can be left, and no rank is to blame. */
static void a_restarted_machine_lost_its_attempts(void **state)
{
    struct fixture *f = *state;
    struct hd_attempt_process process = dead_supervisor();
    struct hd_link_report end;

    (void)snprintf(process.boot_id, sizeof process.boot_id, "another boot");
    assert_int_equal(hd_attempt_process_write(f->run_dir, &process), HD_OK);
    end = conclude(f);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_NODE_LOST);
    assert_int_equal(end.end.first_rank, -1);
    assert_non_null(strstr(end.end.message, "restarted"));
}

/* ---- processes ---- */

static void a_process_is_known_by_more_than_its_number(void **state)
{
    struct fixture *f = *state;
    struct hd_attempt_process self, other;

    assert_int_equal(hd_attempt_process_find(getpid(), &self), HD_OK);
    assert_true(hd_attempt_process_alive(&self));
    other = self;
    other.start_ticks--; /* the number was that of an earlier process */
    assert_false(hd_attempt_process_alive(&other));
    other = self;
    other.boot_id[0] ^= 1;
    assert_false(hd_attempt_process_alive(&other));
    other = dead_supervisor();
    assert_false(hd_attempt_process_alive(&other));
    assert_int_equal(hd_attempt_process_write(f->run_dir, &self), HD_OK);
    assert_int_equal(hd_attempt_process_read(f->run_dir, &other), HD_OK);
    assert_int_equal(other.pid, self.pid);
    assert_int_equal(other.start_ticks, self.start_ticks);
    assert_string_equal(other.boot_id, self.boot_id);
}

/* ---- identity ---- */

static void a_node_stays_the_same_over_its_starts(void **state)
{
    struct fixture *f = *state;
    struct agent_identity first, second;
    char cluster[AGENT_NAME_MAX], dir[TEMPORARY_BYTES + 16];

    (void)snprintf(dir, sizeof dir, "%s/state", f->dir);
    assert_int_equal(agent_identity_open(dir, "n1", &first), HD_OK);
    assert_int_equal(strlen(first.node_uuid), 36);
    assert_int_equal(agent_identity_read_cluster(&first, cluster), HD_OK);
    assert_string_equal(cluster, "");
    assert_int_equal(agent_identity_write_cluster(&first, "a-cluster"), HD_OK);
    assert_int_equal(agent_identity_open(dir, "n1", &second), HD_CONFLICT); /* one at a time */
    agent_identity_close(&first);
    assert_int_equal(agent_identity_open(dir, "n1", &second), HD_OK);
    assert_string_equal(second.node_uuid, first.node_uuid);
    assert_string_not_equal(second.instance_id, first.instance_id);
    assert_int_equal(agent_identity_read_cluster(&second, cluster), HD_OK);
    assert_string_equal(cluster, "a-cluster");
    agent_identity_close(&second);
}

/* ---- the state directory of a heddled that runs ---- */

/* Removed, replaced by a file, by that of another node, and made anew: then all that the next
 * heddled needs is in it again, and it is locked. */
static void a_state_directory_that_was_lost_is_told_and_mended(void **state)
{
    struct fixture *f = *state;
    struct agent_identity id, second;
    char reason[STATE_DIR_REASON_MAX], dir[TEMPORARY_BYTES + 16], uuid_file[TEMPORARY_BYTES + 32];
    char cluster[AGENT_NAME_MAX];

    (void)snprintf(dir, sizeof dir, "%s/state", f->dir);
    (void)snprintf(uuid_file, sizeof uuid_file, "%s/node-uuid", dir);
    assert_int_equal(agent_identity_open(dir, "n1", &id), HD_OK);
    assert_int_equal(agent_identity_write_cluster(&id, "a-cluster"), HD_OK);
    assert_int_equal(start(f), HD_OK);
    (void)add(f, 7, 2);
    state_dir_check(&id, &f->locals, reason);
    assert_string_equal(reason, "");

    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
    state_dir_check(&id, &f->locals, reason);
    assert_non_null(strstr(reason, "takes no new jobs: its state directory "));
    assert_non_null(strstr(reason, "it is not there"));
    assert_int_equal(agent_identity_read_cluster(&id, cluster), HD_OK);
    assert_string_equal(cluster, "a-cluster"); /* a reconnect must not take it for another one */
    assert_int_equal(hd_file_write_atomic(dir, "", 0, 0600), HD_OK);
    state_dir_check(&id, &f->locals, reason);
    assert_non_null(strstr(reason, "it is not there"));
    assert_int_equal(unlink(dir), 0);

    assert_int_equal(hd_file_make_dirs(dir, 0700), HD_OK);
    assert_int_equal(hd_file_write_atomic(uuid_file, "another\n", 8, 0600), HD_OK);
    state_dir_check(&id, &f->locals, reason);
    assert_non_null(strstr(reason, "that of another node, another"));

    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
    assert_int_equal(hd_file_make_dirs(dir, 0700), HD_OK);
    state_dir_check(&id, &f->locals, reason);
    assert_string_equal(reason, "");
    assert_int_equal(agent_identity_open(dir, "n1", &second), HD_CONFLICT);
    stop(f);
    agent_identity_close(&id);
    assert_int_equal(agent_identity_open(dir, "n1", &second), HD_OK);
    assert_string_equal(second.node_uuid, id.node_uuid);
    assert_int_equal(agent_identity_read_cluster(&second, cluster), HD_OK);
    assert_string_equal(cluster, "a-cluster");
    agent_identity_close(&second);
    assert_int_equal(start(f), HD_OK);
    assert_non_null(locals_find(&f->locals, 7, 2));
    stop(f);
}

/* ---- the controller ---- */

/* 100, 200, 400 .. 3200, 5000 ms, of which the half is certain and the rest is chance. */
CASE_WITH(NULL, NULL)
static void attempts_to_connect_are_spaced_out(void **state)
{
    static const int waits_ms[] = {100, 200, 400, 800, 1600, 3200, 5000, 5000};

    for (int i = 0; i < 8; i++) {
        assert_int_equal(agent_retry_ms(i, 0), waits_ms[i] / 2);
        assert_int_equal(agent_retry_ms(i, (uint64_t)waits_ms[i] / 2 - 1), waits_ms[i] - 1);
        assert_in_range(agent_retry_ms(i, UINT64_MAX), waits_ms[i] / 2, waits_ms[i] - 1);
    }
    assert_int_equal(agent_retry_ms(1000000, 0), 2500);
}

CASE_WITH(NULL, NULL)
static void a_silent_controller_is_given_up_in_time(void **state)
{
    assert_false(agent_lost_controller(15000, 100)); /* five heartbeats are less than that */
    assert_true(agent_lost_controller(15001, 100));
    assert_false(agent_lost_controller(50000, 10000));
    assert_true(agent_lost_controller(50001, 10000));
}

RUN_EACH_CASE_WITH(set_up, tear_down)
