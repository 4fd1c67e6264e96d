/* durable: what survives a crash, a full disk and a cleaning. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "disk.h"
#include "fixture.h"

static void dir_of_step(const struct fixture *f, int64_t step, char ret_dir[160])
{
    assert_int_equal(hd_ckpt_format_dir(f->attempt_dir, step, ret_dir, 160), HD_OK);
}

/* Goal: HD_OK means durable, and nothing is named before it is whole. Method: the witness of disk.c
 * counts what a power cut could still take. */
static void everything_is_durable_before_the_manifest_and_after_it(void **state)
{
    struct fixture *f = *state;

    disk_watch();
    write_small_checkpoint(f->dir);
    if (disk_complaint_count())
        fail_msg("%s", disk_complaint());
    assert_int_equal(disk_pending_count(), 0);
    /* at least: 4 folders of 2 calls, 2 shards of head + data + fsync + rename + fsync, manifest */
    assert_true(disk_call_count() > 4 * 2 + 2 * 5 + 4);
    assert_small_checkpoint(f->dir);
}

static void a_shard_is_durable_when_finish_returns(void **state)
{
    const int64_t shape[] = {4};
    struct fixture *f = *state;
    const struct hd_ckpt_entry entry = hd_ckpt_entry_whole("a", HD_F32, 1, shape);

    disk_watch();
    (void)write_shard(f->dir, 0, &entry, 1);
    assert_int_equal(disk_complaint_count(), 0);
    assert_int_equal(disk_pending_count(), 0);
}

/* Goal: a rank that finds the folder made by another one does not rely on that one's flush. */
static void a_folder_made_by_another_rank_is_durable_too(void **state)
{
    struct fixture *f = *state;
    char checkpoints[128];

    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", f->attempt_dir);
    assert_int_equal(hd_file_make_dirs(checkpoints, 0700), HD_OK);
    disk_watch();
    assert_int_equal(mkdir(f->dir, 0700), 0);
    assert_int_equal(disk_pending_count(), 1);
    write_small_checkpoint(f->dir);
    assert_int_equal(disk_complaint_count(), 0);
    assert_int_equal(disk_pending_count(), 0);
}

/* The exit status of a child that saves into `dir` and is cut off at the given call. */
static int save_with_cut(const char *dir, int call_number)
{
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        disk_watch();
        disk_cut_at(call_number);
        write_small_checkpoint(dir);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Goal: a crash at any instant leaves the old checkpoint whole, and the new one whole or not a
 * checkpoint; cleaning leaves exactly the whole ones. Method: cut at every call of a save. */
static void a_crash_at_any_instant_leaves_whole_checkpoints_only(void **state)
{
    struct fixture *f = *state;
    char checkpoints[128], next[160];
    struct hd_ckpt_place *places = NULL;
    int complete = 0, absent = 0;
    size_t count = 0;

    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", f->attempt_dir);
    write_small_checkpoint(f->dir);
    dir_of_step(f, 200, next);
    for (int call = 1;; call++) {
        const int status = save_with_cut(next, call);
        const enum hd_status st = hd_ckpt_verify(next);

        if (status == 0)
            break; /* the save has fewer calls than that */
        assert_int_equal(status, DISK_CUT_STATUS);
        assert_true(st == HD_OK || st == HD_NOT_FOUND);
        complete += st == HD_OK;
        absent += st == HD_NOT_FOUND;
        assert_int_equal(hd_ckpt_list(f->attempt_dir, &places, &count), HD_OK);
        assert_int_equal(count, st == HD_OK ? 2 : 1);
        hd_ckpt_places_free(places, count);

        assert_int_equal(hd_ckpt_clean_partial(checkpoints), HD_OK);
        assert_int_equal(hd_file_exists(next), st == HD_OK);
        assert_small_checkpoint(f->dir);
        assert_int_equal(hd_file_remove_tree(next), HD_OK);
    }
    /* Only the last flush, of the folder after the manifest's rename, comes after the commit. */
    assert_int_equal(complete, 1);
    assert_true(absent > 15);
    assert_small_checkpoint(next);
}

/* Goal: after a crash in mid-save the next try in the same folder succeeds without cleaning. */
static void a_save_over_leftovers_succeeds(void **state)
{
    struct fixture *f = *state;

    for (int call = 3; call < 20; call += 4) {
        assert_int_equal(save_with_cut(f->dir, call), DISK_CUT_STATUS);
        assert_int_equal(save_with_cut(f->dir, 0), 0);
        assert_small_checkpoint(f->dir);
        assert_int_equal(hd_file_remove_tree(f->dir), HD_OK);
        assert_false(hd_file_exists(f->dir));
    }
}

static void a_complete_checkpoint_is_never_written_to_again(void **state)
{
    const int64_t shape[] = {4};
    struct fixture *f = *state;
    const struct hd_ckpt_entry entry = hd_ckpt_entry_whole("a", HD_F32, 1, shape);
    struct hd_ckpt_writer *writer = NULL;
    struct hd_ckpt_manifest manifest;
    struct hd_ckpt *ckpt = NULL;

    write_small_checkpoint(f->dir);
    assert_int_equal(hd_ckpt_writer_open(f->dir, 0, &entry, 1, &writer), HD_EXISTS);
    assert_int_equal(hd_ckpt_open(f->dir, &ckpt), HD_OK);
    manifest = *hd_ckpt_get_manifest(ckpt);
    manifest.step++;
    assert_int_equal(hd_ckpt_commit(f->dir, &manifest, NULL), HD_EXISTS);
    hd_ckpt_close(ckpt);
    assert_small_checkpoint(f->dir);
}

/* ---- a full disk ---- */

/* 300 KiB do not fit into what the caller has arranged. */
static void assert_fails_on_a_full_disk(const char *dir)
{
    const int64_t shape[] = {300 * 1024};
    const struct hd_ckpt_entry entry = hd_ckpt_entry_whole("a", HD_U8, 1, shape);
    unsigned char *bytes = make_data(&entry);
    const void *data[] = {bytes};
    struct hd_ckpt_shard shard;
    struct hd_ckpt *ckpt = NULL;
    char part[224];

    assert_int_equal(hd_ckpt_write_shard(dir, 0, &entry, 1, bytes_in_array, data, &shard),
                     HD_STORAGE);
    assert_non_null(strstr(hd_err_message(), dir));
    assert_non_null(strstr(hd_err_message(), "rank-00000.safetensors"));
    (void)snprintf(part, sizeof part, "%s/rank-00000.safetensors.part.%d", dir, (int)getpid());
    assert_false(hd_file_exists(part)); /* the space is given back */
    assert_int_equal(hd_ckpt_open(dir, &ckpt), HD_NOT_FOUND);
    free(bytes);
}

/* Method: the kernel refuses to let a file grow past 64 KiB. */
static void a_file_that_cannot_grow_leaves_the_old_checkpoint(void **state)
{
    struct fixture *f = *state;
    struct rlimit before, small;
    void (*handler)(int);
    char next[160];

    write_small_checkpoint(f->dir);
    dir_of_step(f, 200, next);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 64 * 1024;
    handler = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_fails_on_a_full_disk(next);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, handler);
    assert_small_checkpoint(f->dir);
}

/* In a child with a mount namespace of its own; 0: as expected, 1: not, 2: cannot mount here. */
static int try_on_a_small_disk(struct fixture *f)
{
    const int64_t shape[] = {300 * 1024};
    const struct hd_ckpt_entry entry = hd_ckpt_entry_whole("a", HD_U8, 1, shape);
    unsigned char *bytes = make_data(&entry);
    const void *data[] = {bytes};
    struct hd_ckpt_shard shard;
    char next[160];

    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        hd_file_make_dirs(f->attempt_dir, 0700) ||
        mount("none", f->attempt_dir, "tmpfs", 0, "size=128k"))
        return 2;
    write_small_checkpoint(f->dir);
    dir_of_step(f, 200, next);
    if (hd_ckpt_write_shard(next, 0, &entry, 1, bytes_in_array, data, &shard) != HD_STORAGE ||
        !strstr(hd_err_message(), strerror(ENOSPC)))
        return 1;
    if (hd_ckpt_remove_partial(next) || hd_file_exists(next))
        return 1;
    return hd_ckpt_verify(f->dir) == HD_OK && hd_ckpt_verify(next) == HD_NOT_FOUND ? 0 : 1;
}

static void a_full_disk_leaves_the_old_checkpoint(void **state)
{
    struct fixture *f = *state;
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0)
        _exit(try_on_a_small_disk(f));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2) {
        (void)printf("no small disk can be mounted here (that takes root)\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- directories ---- */

static void write_at(const char *job_dir, int attempt, int64_t step, bool complete)
{
    const int64_t shape[] = {4};
    const struct hd_ckpt_entry entry = hd_ckpt_entry_whole("a", HD_F32, 1, shape);
    struct hd_ckpt_manifest manifest;
    struct hd_ckpt_shard shard;
    char attempt_dir[96], dir[160];

    (void)snprintf(attempt_dir, sizeof attempt_dir, "%s/attempt-%d", job_dir, attempt);
    assert_int_equal(hd_ckpt_format_dir(attempt_dir, step, dir, sizeof dir), HD_OK);
    shard = write_shard(dir, 0, &entry, 1);
    manifest = make_manifest(&shard, 1);
    if (complete)
        assert_int_equal(hd_ckpt_commit(dir, &manifest, NULL), HD_OK);
}

static void only_complete_checkpoints_are_listed_in_order_of_steps(void **state)
{
    struct fixture *f = *state;
    struct hd_ckpt_place *places = NULL;
    size_t count = 1;

    assert_int_equal(hd_ckpt_list(f->attempt_dir, &places, &count), HD_OK);
    assert_int_equal(count, 0);
    write_at(f->job_dir, 2, 99999999, false);
    write_at(f->job_dir, 2, 100, true);
    write_at(f->job_dir, 2, 100000000, true); /* nine digits: sorted as a number */
    write_at(f->job_dir, 2, 20, true);
    (void)snprintf(f->attempt_dir, sizeof f->attempt_dir, "%s/attempt-2", f->job_dir);
    assert_int_equal(hd_ckpt_list(f->attempt_dir, &places, &count), HD_OK);
    assert_int_equal(count, 3);
    assert_int_equal(places[0].step, 20);
    assert_int_equal(places[1].step, 100);
    assert_int_equal(places[2].step, 100000000);
    assert_non_null(strstr(places[1].path, "step-00000100"));
    hd_ckpt_places_free(places, count);
}

static bool exists_at(const char *job_dir, int attempt, int64_t step)
{
    char attempt_dir[96], dir[160];

    (void)snprintf(attempt_dir, sizeof attempt_dir, "%s/attempt-%d", job_dir, attempt);
    assert_int_equal(hd_ckpt_format_dir(attempt_dir, step, dir, sizeof dir), HD_OK);
    return hd_file_exists(dir);
}

/* Goal: an unfinished checkpoint of a killed rank goes, as it takes the disk space of the next one;
 * the attempt that cleans may be writing already. */
static void what_earlier_attempts_left_unfinished_goes(void **state)
{
    struct fixture *f = *state;

    write_at(f->job_dir, 1, 100, true);
    write_at(f->job_dir, 1, 200, false);
    write_at(f->job_dir, 2, 300, false);
    write_at(f->job_dir, 3, 400, false);
    write_at(f->job_dir, 10, 400, false);
    assert_int_equal(hd_ckpt_clean_before(f->job_dir, 3), HD_OK);
    assert_true(exists_at(f->job_dir, 1, 100));
    assert_false(exists_at(f->job_dir, 1, 200));
    assert_false(exists_at(f->job_dir, 2, 300));
    assert_true(exists_at(f->job_dir, 3, 400));
    assert_true(exists_at(f->job_dir, 10, 400));
}

static void a_complete_checkpoint_is_never_removed_as_unfinished(void **state)
{
    struct fixture *f = *state;

    write_small_checkpoint(f->dir);
    assert_int_equal(hd_ckpt_remove_partial(f->dir), HD_EXISTS);
    assert_small_checkpoint(f->dir);
}

/* The ranks look for so much room before they write: it must be enough, and not far too much. */
static void the_bound_holds_for_what_is_written(void **state)
{
    struct fixture *f = *state;
    struct hd_ckpt_summary summary;
    struct hd_ckpt *ckpt = NULL;
    int64_t data_bytes = 0;

    write_small_checkpoint(f->dir);
    assert_int_equal(hd_ckpt_summarize(f->dir, &summary), HD_OK);
    assert_int_equal(hd_ckpt_open(f->dir, &ckpt), HD_OK);
    for (size_t i = 0; i < hd_ckpt_tensor_count(ckpt); i++)
        data_bytes += hd_ckpt_entry_bytes(hd_ckpt_get_tensor(ckpt, i));
    assert_true(summary.size_bytes > data_bytes);
    assert_true(summary.size_bytes <=
                hd_ckpt_bound_bytes(data_bytes, (int64_t)hd_ckpt_tensor_count(ckpt)));
    hd_ckpt_close(ckpt);
    /* 1 TiB in 1000 entries: hashes of 2^20 blocks, 24 bytes each, and little else */
    assert_true(hd_ckpt_bound_bytes(INT64_C(1) << 40, 1000) - (INT64_C(1) << 40) < 32 << 20);
}

static void cleaning_touches_nothing_else(void **state)
{
    struct fixture *f = *state;
    char path[256], checkpoints[128];

    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", f->attempt_dir);
    assert_int_equal(hd_ckpt_clean_partial(checkpoints), HD_OK); /* absent: nothing to do */
    write_small_checkpoint(f->dir);
    (void)snprintf(path, sizeof path, "%s/rank-00000.safetensors.part.12", f->dir);
    write_whole_file(path, "x", 1);
    (void)snprintf(path, sizeof path, "%s/manifest.json.part.34567890", f->dir);
    write_whole_file(path, "x", 1);
    (void)snprintf(path, sizeof path, "%s/notes.part.txt", f->dir);
    write_whole_file(path, "x", 1);
    (void)snprintf(path, sizeof path, "%s/step-1x", checkpoints);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(hd_ckpt_clean_partial(checkpoints), HD_OK);
    assert_true(hd_file_exists(path));
    (void)snprintf(path, sizeof path, "%s/notes.part.txt", f->dir);
    assert_true(hd_file_exists(path));
    (void)snprintf(path, sizeof path, "%s/rank-00000.safetensors.part.12", f->dir);
    assert_false(hd_file_exists(path));
    (void)snprintf(path, sizeof path, "%s/manifest.json.part.34567890", f->dir);
    assert_false(hd_file_exists(path));
    assert_small_checkpoint(f->dir);
}

/* A place that cannot be looked at is neither a checkpoint nor rubbish: it is told, and nothing is
 * removed. Method: a link to itself, which no call can follow. */
static void what_cannot_be_looked_at_is_not_rubbish(void **state)
{
    struct fixture *f = *state;
    struct hd_ckpt_place *places = NULL;
    char path[256], checkpoints[128];
    struct stat info;
    size_t count = 0;

    write_small_checkpoint(f->dir);
    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", f->attempt_dir);
    (void)snprintf(path, sizeof path, "%s/step-00000200", checkpoints);
    assert_int_equal(symlink("step-00000200", path), 0);
    assert_int_equal(hd_ckpt_list(f->attempt_dir, &places, &count), HD_IO);
    assert_non_null(strstr(hd_err_message(), "step-00000200"));
    assert_int_equal(hd_ckpt_clean_partial(checkpoints), HD_IO);
    assert_int_equal(lstat(path, &info), 0);
    assert_small_checkpoint(f->dir);
    assert_int_equal(unlink(path), 0);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
