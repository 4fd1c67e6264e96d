/* Goal: the process is set up before a program's first line of work. Each case is a process of its
 * own. */
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process.h"
#include "tests/program/test.h"

/* Exit status of a child that runs `body`; 128 and more: a signal. */
static int in_child(int (*body)(void))
{
    const pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0)
        _exit(body());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static bool is_null_device(int fd)
{
    struct stat is, null;

    return fstat(fd, &is) == 0 && stat("/dev/null", &null) == 0 && is.st_rdev == null.st_rdev;
}

static int without_streams(void)
{
    const struct hd_process_needs needs = {.files = 16};

    (void)close(0);
    (void)close(1);
    (void)close(2);
    if (hd_process_prepare(&needs))
        return 1;
    if (!is_null_device(0) || !is_null_device(1) || !is_null_device(2))
        return 2;
    return write(1, "x", 1) == 1 && write(2, "x", 1) == 1 ? 0 : 3;
}

static int with_an_open_stdout(void)
{
    const struct hd_process_needs needs = {.files = 16};
    int ends[2];
    char byte = 0;

    if (pipe(ends) || dup2(ends[1], 1) != 1)
        return 1;
    (void)close(0);
    if (hd_process_prepare(&needs) || !is_null_device(0))
        return 2;
    return write(1, "x", 1) == 1 && read(ends[0], &byte, 1) == 1 && byte == 'x' ? 0 : 3;
}

static int with_few_files(void)
{
    const struct hd_process_needs needs = {.files = 32};
    const struct rlimit limit = {.rlim_cur = 8, .rlim_max = 31};

    if (setrlimit(RLIMIT_NOFILE, &limit))
        return 1;
    if (hd_process_prepare(&needs) != HD_LIMIT)
        return 2;
    return strstr(hd_err_message(), "32 open files") && strstr(hd_err_message(), "31") ? 0 : 3;
}

static int with_a_soft_limit_of_files(void)
{
    const struct hd_process_needs needs = {.files = 32};
    struct rlimit limit = {.rlim_cur = 8, .rlim_max = 64};

    if (setrlimit(RLIMIT_NOFILE, &limit) || hd_process_prepare(&needs) ||
        getrlimit(RLIMIT_NOFILE, &limit))
        return 1;
    return limit.rlim_cur == 32 ? 0 : 2;
}

/* The limit binds no superuser, and counts the threads of the whole user: the child becomes one
 * that has no other process. */
static int with_few_threads(void)
{
    const struct hd_process_needs needs = {.files = 16, .threads = 8};
    const struct rlimit limit = {.rlim_cur = 4, .rlim_max = 4};

    if (geteuid() == 0 && (setgid(54321) || setuid(54321)))
        return 1;
    if (setrlimit(RLIMIT_NPROC, &limit))
        return 2;
    if (hd_process_prepare(&needs) != HD_LIMIT)
        return 3;
    return strstr(hd_err_message(), "8 threads are needed") ? 0 : 4;
}

static void *use_stack(void *unused)
{
    volatile char block[1 << 20];

    memset((char *)block, 1, sizeof block);
    return block[sizeof block - 1] == 1 ? unused : NULL;
}

static int with_a_small_stack(void)
{
    const struct hd_process_needs needs = {.files = 16, .threads = 2};
    const struct rlimit limit = {.rlim_cur = 128 << 10, .rlim_max = RLIM_INFINITY};
    pthread_attr_t small;
    pthread_t thread;
    void *result = NULL;
    int mark;

    /* what the C library does at the start of a program whose limit is that */
    if (setrlimit(RLIMIT_STACK, &limit) || pthread_attr_init(&small) ||
        pthread_attr_setstacksize(&small, 128 << 10) || pthread_setattr_default_np(&small))
        return 1;
    if (hd_process_prepare(&needs))
        return 2;
    if (pthread_create(&thread, NULL, use_stack, &mark) || pthread_join(thread, &result))
        return 3;
    return result == &mark && use_stack(&mark) == &mark ? 0 : 4;
}

static void closed_streams_become_the_null_device(void **state)
{
    assert_int_equal(in_child(without_streams), 0);
    assert_int_equal(in_child(with_an_open_stdout), 0);
}

static void too_few_files_are_told_and_a_soft_limit_is_raised(void **state)
{
    assert_int_equal(in_child(with_few_files), 0);
    assert_int_equal(in_child(with_a_soft_limit_of_files), 0);
}

static void too_few_threads_are_told(void **state)
{
    assert_int_equal(in_child(with_few_threads), 0);
}

static void stacks_are_wide_enough_for_libraries(void **state)
{
    assert_int_equal(in_child(with_a_small_stack), 0);
}

RUN_CASES()
