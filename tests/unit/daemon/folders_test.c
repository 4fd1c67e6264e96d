/* folders: what of an attempt's folders heddled's user, the job's, and other users can reach. Each
 * step is done by a process of that user; so the test needs root. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "daemon/agent/folders.h"
#include "tests/program/test.h"

enum { DAEMON = 30990, ANN = 30001, BOB = 30002 };

static char top[64], jobs[128], job[160], attempt[192], run_dir[256];

static int make_dirs(void **state)
{
    if (geteuid() != 0)
        return 0;
    (void)snprintf(top, sizeof top, "/tmp/heddle-folders-XXXXXX"); /* whose parents all may pass */
    assert_non_null(mkdtemp(top));
    assert_int_equal(chmod(top, 0755), 0);
    (void)snprintf(jobs, sizeof jobs, "%s/jobs", top);
    (void)snprintf(job, sizeof job, "%s/7", jobs);
    (void)snprintf(attempt, sizeof attempt, "%s/attempt-2", job);
    (void)snprintf(run_dir, sizeof run_dir, "%s/nodes/n1", attempt);
    assert_int_equal(mkdir(jobs, 0750), 0);
    assert_int_equal(chown(jobs, DAEMON, DAEMON), 0);
    return 0;
}

static int remove_dirs(void **state)
{
    return geteuid() != 0 || hd_file_remove_tree(top) == HD_OK ? 0 : -1;
}

/* Returns the result of the deed in a process of this user, with a umask that keeps others away. */
static int as(uid_t uid, int (*deed)(const char *path), const char *path)
{
    const pid_t child = fork();
    int status = 0;

    assert_true(child >= 0);
    if (child == 0) {
        (void)umask(0077);
        if (setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
            _exit(99);
        _exit(deed(path));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int make(const char *unused)
{
    char path[300];

    if (folders_make(attempt, run_dir, true))
        return 1;
    (void)snprintf(path, sizeof path, "%s/job", run_dir);
    return hd_file_write_atomic(path, "j", 1, 0644) ? 2 : 0;
}
static int share_with_ann(const char *unused)
{
    return (int)folders_share(attempt, run_dir, ANN);
}
static int share_with_bob(const char *unused)
{
    return (int)folders_share(attempt, run_dir, BOB);
}
static int can_read(const char *path)
{
    return open(path, O_RDONLY) >= 0 ? 0 : errno;
}
static int can_make(const char *path)
{
    return open(path, O_WRONLY | O_CREAT | O_EXCL, 0640) >= 0 ? 0 : errno;
}
static int can_make_dir(const char *path)
{
    return mkdir(path, HD_FILE_JOB_DIR_MODE) == 0 ? 0 : errno;
}
static int can_rename(const char *path)
{
    char other[300];

    (void)snprintf(other, sizeof other, "%s.moved", path);
    return rename(path, other) == 0 ? 0 : errno;
}
static int can_remove_tree(const char *path)
{
    return hd_file_remove_tree(path) == HD_OK ? 0 : 1;
}

static const char *in(const char *dir, const char *name)
{
    static char path[400];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void the_jobs_user_writes_and_heddleds_reads_and_removes(void **state)
{
    if (geteuid() != 0)
        skip(); /* only root may become other users */
    assert_int_equal(as(DAEMON, make, NULL), 0);
    assert_int_equal(as(ANN, can_read, in(run_dir, "job")), EACCES); /* not yet */
    assert_int_equal(as(DAEMON, share_with_ann, NULL), HD_OK);
    assert_int_equal(as(ANN, can_read, in(run_dir, "job")), 0);
    assert_int_equal(as(ANN, can_make, in(attempt, "logs/rank-0.log")), 0);
    assert_int_equal(as(ANN, can_make_dir, in(attempt, "checkpoints/step-1")), 0);
    assert_int_equal(as(ANN, can_make, in(attempt, "checkpoints/step-1/manifest.json")), 0);
    assert_int_equal(as(DAEMON, can_read, in(attempt, "logs/rank-0.log")), 0);
    assert_int_equal(as(DAEMON, can_remove_tree, in(attempt, "checkpoints/step-1")), 0);
    assert_int_equal(as(DAEMON, can_remove_tree, job), 0);
}

static void others_do_not_get_in_and_heddleds_folders_stay_its_own(void **state)
{
    if (geteuid() != 0)
        skip();
    assert_int_equal(as(DAEMON, make, NULL), 0);
    assert_int_equal(as(DAEMON, share_with_ann, NULL), HD_OK);
    assert_int_equal(as(ANN, can_make, in(attempt, "logs/rank-0.log")), 0);
    assert_int_equal(as(BOB, can_read, job), EACCES);
    assert_int_equal(as(BOB, can_read, in(attempt, "logs/rank-0.log")), EACCES);
    assert_int_equal(as(BOB, can_make, in(jobs, "8")), EACCES);
    /* or heddled, who opens names below them, would follow what she puts in their place */
    assert_int_equal(as(ANN, can_rename, in(attempt, "logs")), EPERM);
    assert_int_equal(as(ANN, can_rename, in(attempt, "checkpoints")), EPERM);
    assert_int_equal(as(ANN, can_rename, attempt), EPERM);
    assert_int_equal(as(ANN, can_rename, job), EACCES);
}

/* The next attempt is another user's, by a new line in the policy. */
static void the_next_user_reads_what_the_one_before_left_who_is_out(void **state)
{
    if (geteuid() != 0)
        skip();
    assert_int_equal(as(DAEMON, make, NULL), 0);
    assert_int_equal(as(DAEMON, can_make, in(attempt, "kept")), 0); /* heddled's own, 0600 */
    assert_int_equal(as(DAEMON, share_with_ann, NULL), HD_OK);
    assert_int_equal(as(ANN, can_make, in(attempt, "logs/rank-0.log")), 0);
    assert_int_equal(chmod(in(attempt, "logs/rank-0.log"), 0644), 0);
    (void)snprintf(attempt, sizeof attempt, "%s/attempt-3", job);
    (void)snprintf(run_dir, sizeof run_dir, "%s/nodes/n1", attempt);
    assert_int_equal(as(DAEMON, make, NULL), 0);
    assert_int_equal(as(DAEMON, share_with_bob, NULL), HD_OK);
    assert_int_equal(as(BOB, can_read, in(job, "attempt-2/logs/rank-0.log")), 0);
    assert_int_equal(as(BOB, can_read, in(job, "attempt-2/kept")), 0);
    assert_int_equal(as(BOB, can_make, in(attempt, "logs/rank-0.log")), 0);
    assert_int_equal(as(ANN, can_read, in(attempt, "logs/rank-0.log")), EACCES);
    assert_int_equal(as(ANN, can_read, job), EACCES);
}

static void a_link_in_the_place_of_a_folder_is_not_followed(void **state)
{
    if (geteuid() != 0)
        skip();
    assert_int_equal(as(DAEMON, make, NULL), 0);
    assert_int_equal(mkdir(in(top, "elsewhere"), 0700), 0);
    assert_int_equal(chown(in(top, "elsewhere"), DAEMON, DAEMON), 0);
    assert_int_equal(symlink("../../elsewhere", in(job, "tokens")), 0);
    assert_int_equal(as(DAEMON, share_with_ann, NULL), HD_CONFLICT);
    assert_int_equal(as(ANN, can_read, in(top, "elsewhere")), EACCES);
}

RUN_EACH_CASE_WITH(make_dirs, remove_dirs)
