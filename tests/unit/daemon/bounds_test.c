/* Goal: limits of ranks, by the real supervisor over fake workers: a hog ends, and alone. */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "bench.h"
#include "daemon/attempt/attempt.h"
#include "daemon/isolation/cgroup.h"
#include "link/link.h"
#include "tests/program/test.h"

enum { SLOW_MS = 20000 };

static void stop(struct bench *bench)
{
    const int fd = bench_connect(bench, SLOW_MS);

    bench_send(fd, HD_LINK_MSG_STOP, 0);
    assert_int_equal(bench_wait(bench, SLOW_MS), 0);
    (void)close(fd);
}

/* Two ranks may take 2 * (1 MiB of plan + 64 MiB of slack) = 130 MiB. Rank 1 takes 256 MiB. */
static void a_memory_hog_ends_alone(void **state)
{
    struct bench hog, neighbour;
    struct hd_link_report end;

    bench_init(&neighbour);
    bench_init(&hog);
    bench_mode(0, "planned");
    bench_start(&neighbour, 1, "--memory-slack", "64M", NULL);
    bench_mode(1, "hog");
    assert_int_equal(setenv("FAKE_HOG", "268435456", 1), 0);
    bench_start(&hog, 2, "--memory-slack", "64M", NULL);
    assert_int_equal(bench_wait(&hog, SLOW_MS), 0);
    bench_end(&hog, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_OOM);
    assert_int_equal(end.end.first_rank, 1);
    assert_non_null(strstr(end.end.message, "they may take 130.0 MiB (their plan, and 64.0 MiB"));
    stop(&neighbour); /* it still runs, and ends as it is told */
    bench_end(&neighbour, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_USER);
    bench_done(&hog);
    bench_done(&neighbour);
}

/* The hog of the case above where it is allowed to. */
static void what_the_slack_covers_ends_nothing(void **state)
{
    struct hd_link_report end;
    struct bench bench;

    bench_init(&bench);
    bench_mode(0, "hog");
    assert_int_equal(setenv("FAKE_HOG", "268435456", 1), 0);
    bench_start(&bench, 1, "--memory-slack", "1G", NULL);
    while (bench_spooled(&bench, HD_LINK_STEP, 0) < 1) /* it steps when it has the memory */
        (void)usleep(2000);
    stop(&bench);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_USER);
    bench_done(&bench);
}

/* ---- a control group ---- */

static void put(const char *folder, const char *name, const char *text)
{
    char path[400];

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(hd_file_write_atomic(path, text, strlen(text), 0600), HD_OK);
}

static int64_t number_in(const char *folder, const char *name)
{
    struct hd_text text = {0};
    char path[400];
    int64_t number;

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(hd_file_read(path, 4096, &text), HD_OK);
    number = text.data ? strtoll(text.data, NULL, 10) : -1;
    hd_text_free(&text);
    return number;
}

/* A folder stands in for a control group with controllers: the kernel of this machine may not have
 * delegated any. */
static void make_group(const struct bench *bench, char ret_parent[200], char ret_group[256])
{
    (void)snprintf(ret_parent, 200, "%s/group", bench->root);
    (void)snprintf(ret_group, 256, "%s/heddle-7-1", ret_parent);
    assert_int_equal(hd_file_make_dirs(ret_group, 0755), HD_OK);
    put(ret_parent, "cgroup.controllers", "memory pids\n");
    put(ret_parent, "cgroup.subtree_control", "memory pids\n");
    put(ret_group, "cgroup.procs", "");
    put(ret_group, "cgroup.events", "populated 0\n");
    put(ret_group, "memory.max", "");
    put(ret_group, "memory.events", "oom_kill 0\n");
    put(ret_group, "pids.max", "");
}

/* memory: 1 MiB + 32 MiB; processes: 512 and 4 for each of the job's 3 threads. */
static void the_kernel_bounds_a_group_and_its_kill_is_an_oom(void **state)
{
    char parent[200], group[256], events[300];
    struct hd_link_report end;
    struct bench bench;

    bench_init(&bench);
    make_group(&bench, parent, group);
    (void)snprintf(events, sizeof events, "%s/memory.events", group);
    assert_int_equal(setenv("FAKE_EVENTS", events, 1), 0);
    bench_mode(0, "oomkilled");
    bench_start(&bench, 1, "--group", parent, "--memory", "4096", "--memory-slack", "32M", NULL);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_OOM);
    assert_int_equal(end.end.first_rank, 0);
    assert_int_equal(end.end.signal, SIGKILL);
    assert_int_equal(number_in(group, "memory.max"), 4096); /* its plan was not known */
    assert_int_equal(number_in(group, "pids.max"), 512 + 4 * 3);
    bench_done(&bench);
}

static void the_plan_of_ranks_bounds_their_group(void **state)
{
    char parent[200], group[256];
    struct bench bench;

    bench_init(&bench);
    make_group(&bench, parent, group);
    bench_mode(0, "planned");
    bench_start(&bench, 1, "--group", parent, "--memory", "4096", "--memory-slack", "32M", NULL);
    while (bench_spooled(&bench, HD_LINK_STEP, 0) < 1) /* behind the plan on the link */
        (void)usleep(2000);
    assert_int_equal(number_in(group, "memory.max"), 33 << 20);
    stop(&bench);
    bench_done(&bench);
}

/* The group of cgroup v2 that a process is in, as its path below the mount. */
static void group_of(pid_t pid, char ret_path[256])
{
    struct hd_text text = {0};
    char path[64], *at;

    (void)snprintf(path, sizeof path, "/proc/%d/cgroup", (int)pid);
    assert_int_equal(hd_file_read(path, 1 << 16, &text), HD_OK);
    at = strstr(text.data, "0::/");
    assert_non_null(at);
    (void)snprintf(ret_path, 256, "%.*s", (int)strcspn(at, "\n") - 3, at + 3);
    hd_text_free(&text);
}

static void enter(const char *mount, const char *group)
{
    char path[600];
    FILE *procs;

    (void)snprintf(path, sizeof path, "%s%s/cgroup.procs", mount, group);
    procs = fopen(path, "w");
    assert_non_null(procs);
    assert_true(fputs("0", procs) >= 0 && fclose(procs) == 0);
}

/* A group stands in for the unit in which systemd starts a supervisor. */
static void a_unit_is_divided_between_supervisor_and_ranks(void **state)
{
    const char *mount = "/sys/fs/cgroup";
    char before[256], unit[64], want[256], found[256], path[600];
    struct bench bench;
    pid_t pids[16];
    unsigned has;
    int count;

    if (hd_cgroup_check(mount, &has))
        mount = "/sys/fs/cgroup/unified";
    if (hd_cgroup_check(mount, &has)) {
        print_message("skip: no cgroup v2 is delegated to this user\n");
        skip();
    }
    bench_init(&bench);
    bench_mode(0, "planned");
    group_of(getpid(), before);
    (void)snprintf(unit, sizeof unit, "/heddle-unit-%d", (int)getpid());
    (void)snprintf(path, sizeof path, "%s%s", mount, unit);
    assert_int_equal(mkdir(path, 0755), 0);
    enter(mount, unit);
    bench_start(&bench, 1, "--group", "unit", NULL);
    enter(mount, before);
    while (bench_spooled(&bench, HD_LINK_STEP, 0) < 1)
        (void)usleep(2000);
    count = bench_processes(&bench, pids);
    assert_true(count >= 1);
    for (int i = 0; i < count; i++) {
        (void)snprintf(want, sizeof want, "%s/%s", unit,
                       pids[i] == bench.supervisor ? "supervisor" : "heddle-7-1");
        group_of(pids[i], found);
        assert_string_equal(found, want);
    }
    group_of(bench.supervisor, found);
    (void)snprintf(want, sizeof want, "%s/supervisor", unit);
    assert_string_equal(found, want);
    stop(&bench);
    (void)snprintf(path, sizeof path, "%s%s/heddle-7-1", mount, unit);
    assert_int_equal(access(path, F_OK), -1);
    (void)snprintf(path, sizeof path, "%s%s/supervisor", mount, unit); /* systemd removes these */
    assert_int_equal(rmdir(path), 0);
    (void)snprintf(path, sizeof path, "%s%s", mount, unit);
    assert_int_equal(rmdir(path), 0);
    bench_done(&bench);
}

static void what_is_demanded_and_cannot_be_is_a_failed_launch(void **state)
{
    struct hd_link_report end;
    struct bench bench;

    bench_init(&bench);
    bench_start(&bench, 1, "--group", "/nowhere", "--isolation", "require", NULL);
    assert_int_not_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_LAUNCH_FAILED);
    assert_non_null(strstr(end.end.message, "/nowhere"));
    bench_done(&bench);
    bench_init(&bench); /* and else it runs without */
    bench_start(&bench, 1, "--group", "/nowhere", NULL);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_COMPLETED);
    bench_done(&bench);
}

RUN_CASES()
