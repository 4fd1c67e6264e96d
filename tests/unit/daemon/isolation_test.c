/* Goal: each bound of jobs by itself: environment, processors, paths, control groups. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "daemon/isolation/cgroup.h"
#include "daemon/isolation/cpus.h"
#include "daemon/isolation/environment.h"
#include "daemon/isolation/roots.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

struct fixture {
    char dir[TEMPORARY_BYTES];
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    temporary_dir(f->dir, "heddle-isolation");
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(hd_file_remove_tree(f->dir), HD_OK);
    free(f);
    return 0;
}

static void path_of(const struct fixture *f, const char *name, char ret_path[256])
{
    (void)snprintf(ret_path, 256, "%s/%s", f->dir, name);
}

static void put(const struct fixture *f, const char *name, const char *text)
{
    char path[256];

    path_of(f, name, path);
    assert_int_equal(hd_file_write_atomic(path, text, strlen(text), 0600), HD_OK);
}

static void folder(const struct fixture *f, const char *name)
{
    char path[256];

    path_of(f, name, path);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
}

/* ---- environment ---- */

CASE_WITH(NULL, NULL)
static void secrets_of_the_environment_do_not_reach_ranks(void **state)
{
    static const struct {
        const char *variable;
        bool travels, stays;
    } cases[] = {
        {"NCCL_DEBUG=WARN", true, true},
        {"HEDDLE_LOG=debug", true, true},
        {"LD_LIBRARY_PATH=/x", false, true},
        {"HOME=/home/x", false, true},
        {"AWS_SECRET_KEY=x", false, false},
        {"HEDDLE_TOKEN_FILE=/t", false, false},
        {"HEDDLE_CONTROLLER=a", false, false},
        {"NCCLX=1", false, false},
        {"SITE_TOKEN=x", false, false},
        {"SITE_NET=x", false, true /* named */},
        {"TZ=UTC", true, true},
        {"TZX=UTC", false, false},
    };
    const pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        int wrong = 0;

        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            (void)putenv((char *)cases[i].variable);
        hd_environment_clean("SITE_NET,OTHER_*");
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            char name[64];

            (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(cases[i].variable, "="),
                           cases[i].variable);
            if ((getenv(name) != NULL) != cases[i].stays ||
                hd_environment_may_travel(cases[i].variable) != cases[i].travels)
                wrong = (int)i + 1;
        }
        _exit(wrong);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0); /* else 256 times the number of the case */
}

/* ---- processors ---- */

CASE_WITH(NULL, NULL)
static void lists_of_processors(void **state)
{
    static const char *const bad[] = {"",   "a",  "1-",   "-1",     "3-2",
                                      "1,", ",1", "1024", "0-1024", "1 2"};
    static const char *const good[] = {"0", "0-3", "0-3,8", "2,4,6-7"};
    const pid_t pid = fork();
    cpu_set_t set;
    int status, one = 0;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(hd_cpus_check(bad[i]), HD_INVALID);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_int_equal(hd_cpus_check(good[i]), HD_OK);
    if (pid == 0) { /* of those that this process has, the first */
        char list[16];

        (void)sched_getaffinity(0, sizeof set, &set);
        while (!CPU_ISSET((size_t)one, &set))
            one++;
        (void)snprintf(list, sizeof list, "%d", one);
        if (hd_cpus_use(list) || sched_getaffinity(0, sizeof set, &set) < 0)
            _exit(1);
        _exit(CPU_COUNT(&set) == 1 && CPU_ISSET((size_t)one, &set) ? 0 : 2);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* ---- paths ---- */

/* data/ is a root; beside it lies what no path may lead to. */
static void only_what_lies_below_a_root_is_opened(void **state)
{
    static const struct {
        const char *path;
        enum hd_status st;
    } cases[] = {
        {"data/a.txt", HD_OK},
        {"data/sub/b.txt", HD_OK},
        {"data", HD_OK},
        {"secret.txt", HD_INVALID},
        {"data/link", HD_INVALID},
        {"data/way/b.txt", HD_INVALID},
        {"data/../secret.txt", HD_INVALID},
        {"datax/a.txt", HD_INVALID},
        {"data/fifo", HD_INVALID},
        {"data/none", HD_NOT_FOUND},
    };
    const struct fixture *f = *state;
    char path[256], target[256], roots[300];

    folder(f, "data/sub");
    folder(f, "datax");
    put(f, "secret.txt", "s");
    put(f, "data/a.txt", "a");
    put(f, "data/sub/b.txt", "b");
    put(f, "datax/a.txt", "x");
    path_of(f, "data/link", path);
    path_of(f, "secret.txt", target);
    assert_int_equal(symlink(target, path), 0);
    path_of(f, "data/way", path);
    assert_int_equal(symlink("sub", path), 0);
    path_of(f, "data/fifo", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    (void)snprintf(roots, sizeof roots, "/nowhere:%s/data", f->dir);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int fd = -1;

        path_of(f, cases[i].path, path);
        if (hd_roots_open(roots, path, &fd) != cases[i].st)
            fail_msg("%s: not %d", path, (int)cases[i].st);
        if (cases[i].st == HD_OK)
            assert_int_equal(close(fd), 0);
    }
    assert_int_equal(hd_roots_check(roots), HD_INVALID); /* there is no /nowhere */
    assert_int_equal(hd_roots_check("data"), HD_INVALID);
    assert_int_equal(hd_roots_check(roots + strlen("/nowhere:")), HD_OK);
}

static void without_roots_a_link_is_fine_and_a_device_is_not(void **state)
{
    const struct fixture *f = *state;
    char path[256];
    int fd;

    put(f, "a.txt", "a");
    path_of(f, "link", path);
    assert_int_equal(symlink("a.txt", path), 0);
    assert_int_equal(hd_roots_open(NULL, path, &fd), HD_OK);
    assert_int_equal(close(fd), 0);
    assert_int_equal(hd_roots_open(NULL, "/dev/zero", &fd), HD_INVALID);
}

/* ---- control groups ---- */

static void expect_file(const struct fixture *f, const char *name, const char *text)
{
    struct hd_text found = {0};
    char path[256];

    path_of(f, name, path);
    assert_int_equal(hd_file_read(path, 4096, &found), HD_OK);
    assert_memory_equal(found.data, text, strlen(text)); /* a real file ends there, too */
    hd_text_free(&found);
}

/* A folder with files of a control group's names stands in: what is written where. */
static void the_bounds_of_a_group(void **state)
{
    const struct fixture *f = *state;
    struct hd_cgroup group;
    unsigned has;

    folder(f, "heddle-7-2");
    put(f, "cgroup.controllers", "cpuset cpu io memory pids\n");
    put(f, "cgroup.subtree_control", "memory pids\n"); /* cpuset cannot be had in a plain file */
    put(f, "heddle-7-2/memory.max", "max------\n");
    put(f, "heddle-7-2/memory.swap.max", "max\n");
    put(f, "heddle-7-2/pids.max", "max------\n");
    put(f, "heddle-7-2/memory.events",
        "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 5\n");
    put(f, "heddle-7-2/cgroup.events", "populated 1\nfrozen 0\n");
    assert_int_equal(hd_cgroup_check(f->dir, &has), HD_UNSUPPORTED); /* it is no cgroup2 */
    assert_int_equal(hd_cgroup_open(f->dir, "heddle-7-2", &group), HD_OK);
    assert_int_equal(group.has & (HD_CGROUP_MEMORY | HD_CGROUP_PIDS),
                     HD_CGROUP_MEMORY | HD_CGROUP_PIDS);
    group.has &= ~(unsigned)HD_CGROUP_CPUSET;
    assert_int_equal(hd_cgroup_limit(&group, 12345678, 777, NULL), HD_OK);
    expect_file(f, "heddle-7-2/memory.max", "12345678");
    expect_file(f, "heddle-7-2/memory.swap.max", "0");
    expect_file(f, "heddle-7-2/pids.max", "777");
    assert_int_equal(hd_cgroup_oom_kills(&group), 2);
    assert_false(hd_cgroup_is_empty(&group));
    put(f, "heddle-7-2/cgroup.events", "populated 0\nfrozen 0\n");
    assert_true(hd_cgroup_is_empty(&group));
    assert_int_equal(hd_cgroup_remove(&group), HD_CONFLICT);
    hd_cgroup_close(&group);
}

/* The first mount of cgroup v2 in which this user may make groups; false: there is none. */
static bool find_cgroup2(char ret_path[256])
{
    static const char *const places[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    unsigned has;

    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(ret_path, 256, "%s", places[i]);
        if (hd_cgroup_check(ret_path, &has) == HD_OK)
            return true;
    }
    return false;
}

/* A process of a session of its own, that ignores SIGTERM, and the child that it has started. */
static pid_t start_pair(const struct hd_cgroup *group)
{
    const pid_t pid = fork();

    if (pid == 0) {
        if (!hd_cgroup_join(group))
            _exit(1);
        (void)setsid();
        (void)signal(SIGTERM, SIG_IGN);
        (void)fork();
        for (;;)
            (void)pause();
    }
    return pid;
}

CASE_WITH(NULL, NULL)
static void all_in_a_real_group_are_killed_as_one(void **state)
{
    struct hd_cgroup group, below;
    char parent[256], name[64], path[512];
    int status;
    pid_t pid;

    if (!find_cgroup2(parent)) {
        print_message("skip: no cgroup v2 is delegated to this user\n");
        skip();
    }
    (void)snprintf(name, sizeof name, "heddle-test-%d", (int)getpid());
    assert_int_equal(hd_cgroup_open(parent, name, &group), HD_OK);
    assert_true(hd_cgroup_is_empty(&group));
    assert_int_equal(hd_cgroup_open(group.path, "ranks", &below), HD_OK);
    pid = start_pair(&below);
    hd_cgroup_close(&below);
    while (hd_cgroup_is_empty(&group) && waitpid(pid, &status, WNOHANG) == 0)
        (void)usleep(1000);
    assert_false(hd_cgroup_is_empty(&group));
    assert_int_equal(hd_cgroup_remove(&group), HD_CONFLICT);
    (void)snprintf(path, sizeof path, "%s", group.path);
    hd_cgroup_close(&group);
    while (hd_cgroup_clear(path) == HD_TIMEOUT) /* as heddled does for a dead supervisor */
        (void)usleep(1000);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* A record that was changed clears nothing else: hd_cgroup_clear looks at what it is given. */
static void a_plain_folder_is_not_cleared(void **state)
{
    const struct fixture *f = *state;
    char path[256];

    put(f, "kept", "k");
    assert_int_equal(hd_cgroup_clear(f->dir), HD_OK);
    path_of(f, "kept", path);
    assert_int_equal(access(path, F_OK), 0);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
