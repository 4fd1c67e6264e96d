/* heddled and a jobs directory that takes no writes: an attempt waits for it before it starts, and
 * until its end is recorded. The test stands between heddled and the kernel. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "daemon/agent/local.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

/* ---- the disk ---------------------------------------------------------------------------------*/

static bool full;

int __real_statvfs(const char *path, struct statvfs *fs);
int __wrap_statvfs(const char *path, struct statvfs *fs);
ssize_t __real_write(int fd, const void *data, size_t size_bytes);
ssize_t __wrap_write(int fd, const void *data, size_t size_bytes);

int __wrap_statvfs(const char *path, struct statvfs *fs)
{
    const int result = __real_statvfs(path, fs);

    if (full)
        fs->f_bavail = fs->f_bfree = 0;
    return result;
}

ssize_t __wrap_write(int fd, const void *data, size_t size_bytes)
{
    if (!full || fd <= STDERR_FILENO)
        return __real_write(fd, data, size_bytes);
    errno = ENOSPC;
    return -1;
}

/* ---- an attempt -------------------------------------------------------------------------------*/

struct fixture {
    char dir[TEMPORARY_BYTES];
    uv_loop_t loop;
    struct locals all;
    struct agent_attempt *local;
    int changes;
};

static void on_change(void *user, struct agent_attempt *local)
{
    ((struct fixture *)user)->changes++;
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    char dir[TEMPORARY_BYTES + 32];

    assert_non_null(f);
    full = false;
    temporary_dir(f->dir, "heddle-launch");
    assert_int_equal(uv_loop_init(&f->loop), 0);
    f->all =
        (struct locals){.loop = &f->loop, .data_address = "", .on_change = on_change, .user = f};
    (void)snprintf(f->all.state_dir, sizeof f->all.state_dir, "%s/state", f->dir);
    (void)snprintf(f->all.supervisor, sizeof f->all.supervisor, "%s/no-such-program", f->dir);
    (void)snprintf(f->all.node, sizeof f->all.node, "n1");
    assert_int_equal(locals_open(&f->all), HD_OK);
    (void)snprintf(dir, sizeof dir, "%s/jobs/7/attempt-1", f->dir);
    assert_int_equal(locals_add(&f->all, 7, 1, dir, dir, NULL, &f->local), HD_OK);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    enum hd_status st;

    full = false;
    locals_close(&f->all);
    (void)uv_run(&f->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&f->loop);
    st = hd_file_remove_tree(f->dir);
    free(f);
    return (int)st;
}

static void launch(struct fixture *f)
{
    const struct local_ranks ranks = {.world = 1, .count = 1};

    local_launch(f->local, "job", 3, &ranks);
}

/* The folder's mark is the first file that is written: what it waits for names the disk. */
static void the_mark_of_its_folder_is_named_when_it_does_not_fit(void **state)
{
    struct fixture *f = *state;

    f->all.cluster = "8c1d";
    full = true;
    launch(f);
    assert_int_equal(f->local->state, LOCAL_PLANNED);
    assert_non_null(strstr(f->local->trouble, "/jobs/7/owner: cannot write: "));
}

/* However often heddled tries, its state and words stay the same. With room it is tried in earnest;
 * that its supervisor cannot be run is then a failed launch. */
static void an_attempt_stays_planned_while_the_disk_is_full(void **state)
{
    struct fixture *f = *state;

    full = true;
    for (int i = 0; i < 5; i++)
        launch(f);
    assert_int_equal(f->local->state, LOCAL_PLANNED);
    assert_true(f->local->waits);
    assert_non_null(
        strstr(f->local->trouble, "waits to start: no space: 1.0 MiB needed, 0 B free"));
    assert_int_equal(f->changes, 1); /* not told at each try */
    full = false;
    launch(f);
    assert_int_equal(f->local->state, LOCAL_ENDED);
    assert_int_equal(f->local->end.end.cause, HD_LINK_CAUSE_LAUNCH_FAILED);
    assert_non_null(strstr(f->local->end.end.message, "no-such-program"));
    assert_false(f->local->waits);
}

/* Its supervisor is dead and left no record of the end. */
static void an_end_that_cannot_be_recorded_is_waited_for(void **state)
{
    const struct hd_attempt_process dead = {.pid = 1 << 22, .boot_id = "another"};
    struct fixture *f = *state;
    struct hd_link_report end;

    assert_int_equal(hd_file_make_dirs(f->local->run_dir, 0700), HD_OK);
    assert_int_equal(hd_attempt_process_write(f->local->run_dir, &dead), HD_OK);
    f->local->state = LOCAL_ALIVE;
    full = true;
    locals_tick(&f->all);
    assert_int_equal(f->local->state, LOCAL_ALIVE);
    assert_non_null(strstr(f->local->trouble, "waits to record how the attempt ended: "));
    full = false;
    f->local->conclude_ms = 0; /* its time has come */
    locals_tick(&f->all);
    assert_int_equal(f->local->state, LOCAL_ENDED);
    assert_string_equal(f->local->trouble, "");
    assert_int_equal(hd_attempt_read_end(f->local->run_dir, &end), HD_OK);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_NODE_LOST); /* another boot */
}

/* One that is to stop does not wait; its end is not counted as a failure. */
static void a_stop_ends_the_wait(void **state)
{
    const struct hd_attempt_process dead = {.pid = 1 << 22, .boot_id = "another"};
    struct fixture *f = *state;

    assert_int_equal(hd_file_make_dirs(f->local->run_dir, 0700), HD_OK);
    assert_int_equal(hd_attempt_process_write(f->local->run_dir, &dead), HD_OK);
    f->local->state = LOCAL_ALIVE;
    full = true;
    locals_tick(&f->all);
    assert_int_equal(f->local->state, LOCAL_ALIVE);
    local_stop(f->local);
    locals_tick(&f->all);
    assert_int_equal(f->local->state, LOCAL_ENDED);
    assert_int_equal(f->local->end.end.cause, HD_LINK_CAUSE_STORAGE);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
