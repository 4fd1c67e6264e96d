/* Checkpoints that may go: the right one, and whole or not at all, also after a power cut. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "daemon/agent/agent.h"
#include "tests/program/test.h"
#include "tests/temporary.h"
#include "tests/unit/checkpoint/disk.h"

static const char *const files[] = {"manifest.json", "rank-00000.safetensors",
                                    "rank-00001.safetensors"};
enum { FILES = sizeof files / sizeof files[0] };

struct fixture {
    char root[TEMPORARY_BYTES], dir[128], hash[HD_HASH_TEXT_MAX];
};

static void make_checkpoint(const struct fixture *f)
{
    char path[192];

    assert_int_equal(hd_file_make_dirs(f->dir, 0700), HD_OK);
    for (int i = 0; i < FILES; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", f->dir, files[i]);
        assert_int_equal(hd_file_write_atomic(path, "{}", 2, 0600), HD_OK);
    }
}

static int count_files(const struct fixture *f)
{
    char path[192];
    int count = 0;

    for (int i = 0; i < FILES; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", f->dir, files[i]);
        count += hd_file_exists(path);
    }
    return count;
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    temporary_dir(f->root, "heddle-deletion");
    (void)snprintf(f->dir, sizeof f->dir, "%s/attempt-1/checkpoints/step-00000005", f->root);
    hd_hash_format(hd_hash_bytes("{}", 2), f->hash);
    make_checkpoint(f);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    enum hd_status st = hd_file_remove_tree(f->root);

    free(f);
    return (int)st;
}

static void assert_nothing_left(const struct fixture *f)
{
    char parent[128];

    assert_false(hd_file_exists(f->dir));
    (void)snprintf(parent, sizeof parent, "%s/attempt-1/checkpoints", f->root);
    assert_int_equal(rmdir(parent), 0); /* nothing beside it either */
}

static void another_checkpoint_stays(void **state)
{
    static const char *const bad[] = {"step-00000005", "/step", "/x/../step-5", "/x/./step-5"};
    const struct fixture *f = *state;

    assert_int_equal(deletion_remove(f->dir, "0000000000000000"), HD_CONFLICT);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(deletion_remove(bad[i], f->hash), HD_INVALID);
    assert_int_equal(count_files(f), FILES);
}

static void what_is_gone_already_is_removed(void **state)
{
    const struct fixture *f = *state;

    assert_int_equal(deletion_remove(f->dir, f->hash), HD_OK);
    assert_nothing_left(f);
    assert_int_equal(deletion_remove(f->dir, f->hash), HD_OK);
}

static void the_folder_of_a_job_goes_and_no_other(void **state)
{
    const struct fixture *f = *state;
    char job[160], link[160];

    (void)snprintf(job, sizeof job, "%s/7", f->root);
    (void)snprintf(link, sizeof link, "%s/8", f->root);
    assert_int_equal(hd_file_make_dirs(job, 0700), HD_OK);
    assert_int_equal(symlink(f->dir, link), 0);
    assert_int_equal(deletion_remove_job(job, f->root, 8), HD_INVALID);
    assert_int_equal(deletion_remove_job(job, "/elsewhere", 7), HD_INVALID);
    assert_int_equal(deletion_remove_job(job, "", 7), HD_INVALID);
    assert_int_equal(deletion_remove_job(link, f->root, 8), HD_CONFLICT);
    assert_true(hd_file_exists(job) && hd_file_exists(link));
    assert_int_equal(deletion_remove_job(job, f->root, 7), HD_OK);
    assert_false(hd_file_exists(job));
    assert_int_equal(deletion_remove_job(job, f->root, 7), HD_OK); /* gone already */
    assert_int_equal(count_files(f), FILES);
}

/* Below the folder of a job, and in its place; a bind mount of the same file system. */
static void what_is_mounted_stays_and_is_told(void **state)
{
    const struct fixture *f = *state;
    char job[160], share[160], below[192], moved[192];

    (void)snprintf(job, sizeof job, "%s/7", f->root);
    (void)snprintf(share, sizeof share, "%s/attempt-1", f->root);
    (void)snprintf(below, sizeof below, "%s/share", job);
    (void)snprintf(moved, sizeof moved, "%s.removed/share", job);
    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
        print_message("mounting takes root\n");
        skip();
    }
    assert_int_equal(hd_file_make_dirs(below, 0700), HD_OK);
    assert_int_equal(mount(share, below, NULL, MS_BIND, NULL), 0);
    assert_int_equal(deletion_remove_job(job, f->root, 7), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), moved));
    assert_non_null(strstr(hd_err_message(), "unmount it, and remove the folder by hand"));
    assert_int_equal(umount(moved), 0);
    assert_int_equal(deletion_remove_job(job, f->root, 7), HD_OK);

    assert_int_equal(hd_file_make_dirs(job, 0700), HD_OK);
    assert_int_equal(mount(share, job, NULL, MS_BIND, NULL), 0);
    assert_int_equal(deletion_remove_job(job, f->root, 7), HD_CONFLICT);
    assert_int_equal(umount(job), 0);
    assert_int_equal(deletion_remove_job(job, f->root, 7), HD_OK);
    assert_int_equal(count_files(f), FILES);
}

/* Goal: a power cut leaves the checkpoint whole, or none of that name. Method: the witness of
 * disk.c complains about each file that goes while the folder's new name is not durable. */
static void no_file_goes_before_the_name(void **state)
{
    const struct fixture *f = *state;

    disk_watch();
    assert_int_equal(deletion_remove(f->dir, f->hash), HD_OK);
    if (disk_complaint_count())
        fail_msg("%s", disk_complaint());
    /* the rename, its flush, three files and their folder */
    assert_true(disk_call_count() >= 1 + 1 + FILES + 1);
    assert_nothing_left(f);
}

/* In a child that ends instead of the given call. */
static int remove_with_cut(const struct fixture *f, int call_number)
{
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        disk_watch();
        disk_cut_at(call_number);
        _exit(deletion_remove(f->dir, f->hash) == HD_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_crash_at_any_instant_leaves_all_or_nothing(void **state)
{
    const struct fixture *f = *state;
    int call = 1;

    for (;; call++) {
        const int status = remove_with_cut(f, call), count = count_files(f);

        if (status == 0)
            break; /* the removal has fewer calls than that */
        assert_int_equal(status, DISK_CUT_STATUS);
        assert_true(count == 0 || count == FILES);
        assert_int_equal(deletion_remove(f->dir, f->hash), HD_OK); /* heddled tries again */
        assert_nothing_left(f);
        make_checkpoint(f);
    }
    assert_true(call > FILES + 2);
    assert_nothing_left(f);
}

/* Goal: what a crash has left aside does not prevent the deletion of a checkpoint of the same name.
 */
static void leftovers_of_an_earlier_try_go_too(void **state)
{
    const struct fixture *f = *state;

    assert_int_equal(remove_with_cut(f, 3), DISK_CUT_STATUS); /* moved aside, nothing removed */
    make_checkpoint(f);
    assert_int_equal(deletion_remove(f->dir, f->hash), HD_OK);
    assert_nothing_left(f);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
