/* base/child.h: helpers that end as they should, and helpers that never end. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/clock.h"
#include "tests/program/test.h"

enum { SHORT_MS = 200, LONG_MS = 20000, SAID_MAX = 64 };

struct heard {
    enum hd_status st;
    struct hd_text said;
    int status;
    int64_t took_ms;
    pid_t pid;
};

/* Runs a line of shell. */
static struct heard hear(const char *line, int64_t timeout_ms)
{
    struct heard h = {.st = HD_INTERNAL};
    int64_t begun_ms;
    int fds[2];

    assert_int_equal(pipe(fds), 0);
    h.pid = fork();
    if (h.pid == 0) {
        (void)dup2(fds[1], STDOUT_FILENO);
        (void)close(fds[0]);
        (void)close(fds[1]);
        (void)execl("/bin/sh", "sh", "-c", line, NULL);
        _exit(127);
    }
    (void)close(fds[1]);
    begun_ms = hd_clock_now_ms();
    h.st = hd_child_wait(h.pid, fds[0], timeout_ms, SAID_MAX, &h.said, &h.status);
    h.took_ms = hd_clock_now_ms() - begun_ms;
    (void)close(fds[0]);
    return h;
}

static void what_a_helper_says_and_how_it_ends_is_heard(void **state)
{
    struct heard h = hear("echo one; echo two; exit 3", LONG_MS);

    assert_int_equal(h.st, HD_OK);
    assert_string_equal(h.said.data, "one\ntwo\n");
    assert_true(WIFEXITED(h.status) && WEXITSTATUS(h.status) == 3);
    hd_text_free(&h.said);
}

/* 5000 bytes are more than a piece; SAID_MAX of them are kept, and the helper is not held up. */
static void what_it_says_beyond_the_bound_is_dropped(void **state)
{
    struct heard h = hear("printf '%05000d' 0; exit 4", LONG_MS);

    assert_int_equal(h.st, HD_OK);
    assert_int_equal(h.said.len_bytes, SAID_MAX);
    assert_int_equal(WEXITSTATUS(h.status), 4);
    hd_text_free(&h.said);
}

/* Its own child has the pipe and lives on: that is not waited for. */
static void the_children_of_a_helper_are_not_waited_for(void **state)
{
    struct heard h = hear("sleep 30 & echo $!", LONG_MS);
    const pid_t child = h.said.data ? (pid_t)strtol(h.said.data, NULL, 10) : 0;

    assert_true(child > 1);
    assert_int_equal(kill(child, SIGKILL), 0); /* it lives */
    assert_int_equal(h.st, HD_OK);
    assert_true(h.took_ms < 20000);
    hd_text_free(&h.said);
}

static void a_helper_that_never_ends_is_killed(void **state)
{
    static const char *const lines[] = {
        "exec sleep 60",                              /* without a word */
        "echo begun; exec sleep 60",                  /* after some */
        "echo begun; exec >&- 2>&-; exec sleep 60",   /* its output is closed */
        "trap '' TERM; while :; do echo again; done", /* it says more and more */
    };

    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct heard h = hear(lines[i], SHORT_MS);

        assert_int_equal(h.st, HD_TIMEOUT);
        assert_true(h.took_ms >= SHORT_MS && h.took_ms < LONG_MS);
        assert_true(WIFSIGNALED(h.status) && WTERMSIG(h.status) == SIGKILL);
        assert_int_equal(waitpid(h.pid, NULL, WNOHANG), -1); /* it is reaped */
        assert_int_equal(errno, ECHILD);
        assert_true(h.said.len_bytes <= SAID_MAX);
        hd_text_free(&h.said);
    }
}

RUN_CASES()
