#include "daemon/agent/ask.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum { PIECE_BYTES = 4096, LOOK_MS = 50, LOOK_FOR_END_MS = 5, KILLED_MS = 100 };

extern char **environ;

static enum hd_status start(struct agent_ask *ask, char *const argv[], int write_fd)
{
    posix_spawn_file_actions_t actions;
    int error;

    if (posix_spawn_file_actions_init(&actions))
        return hd_err(HD_NO_MEMORY, "no memory to start it");
    error = posix_spawn_file_actions_adddup2(&actions, write_fd, STDOUT_FILENO);
    if (!error)
        error = posix_spawn(&ask->pid, argv[0], &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    if (error)
        ask->pid = 0;
    return error ? hd_err(HD_IO, "cannot be started: %s", strerror(error)) : HD_OK;
}

enum hd_status agent_ask_begin(struct agent_ask *ask, char *const argv[], size_t bytes_max,
                               int timeout_ms)
{
    enum hd_status st = HD_OK;
    int fds[2];

    if (agent_ask_is_left(ask))
        return hd_err(HD_CONFLICT, "%s: process %d of an earlier question still hangs",
                      ask->program, (int)ask->pid);
    agent_ask_done(ask);
    (void)snprintf(ask->program, sizeof ask->program, "%.220s %.20s", argv[0], argv[1]);
    ask->bytes_max = bytes_max;
    ask->timeout_ms = timeout_ms;
    ask->give_up_ms = hd_clock_now_ms() + timeout_ms;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return hd_err(HD_IO, "cannot make a pipe: %s", strerror(errno));
    if (fcntl(fds[0], F_SETFL, O_NONBLOCK) < 0)
        st = hd_err(HD_IO, "cannot set up a pipe: %s", strerror(errno));
    if (!st)
        st = start(ask, argv, fds[1]);
    (void)close(fds[1]);
    if (st) {
        (void)close(fds[0]);
        return hd_err_prefix(st, "%s", ask->program);
    }
    ask->fd = fds[0];
    ask->open = true;
    return HD_OK;
}

static void close_pipe(struct agent_ask *ask)
{
    if (ask->open)
        (void)close(ask->fd);
    ask->open = false;
}

static enum hd_status take(struct agent_ask *ask)
{
    char piece[PIECE_BYTES];
    ssize_t n;

    while (ask->open) {
        n = read(ask->fd, piece, sizeof piece);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0)
            return hd_err(HD_IO, "cannot hear it: %s", strerror(errno));
        if (n == 0) {
            close_pipe(ask);
            if (ask->give_up_ms > hd_clock_now_ms() + AGENT_ASK_END_MS)
                ask->give_up_ms = hd_clock_now_ms() + AGENT_ASK_END_MS;
        }
        hd_text_add_bytes(&ask->answer, piece, (size_t)n);
        if (ask->answer.len_bytes > ask->bytes_max)
            return hd_err(HD_LIMIT, "it says more than %zu bytes", ask->bytes_max);
    }
    return ask->answer.failed ? hd_err(HD_NO_MEMORY, "no memory for its answer") : HD_OK;
}

/* Whether it has ended; *ret_status is how. */
static bool reap(struct agent_ask *ask, int *ret_status)
{
    pid_t pid;

    *ret_status = 0;
    do
        pid = ask->pid ? waitpid(ask->pid, ret_status, WNOHANG) : ask->pid;
    while (pid < 0 && errno == EINTR);
    if (pid == 0 && ask->pid)
        return false;
    ask->pid = 0;
    return true;
}

static enum hd_status judge(int status)
{
    if (WIFSIGNALED(status))
        return hd_err(HD_IO, "it was killed by signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status))
        return hd_err(HD_IO, "it ended with status %d", WEXITSTATUS(status));
    return HD_OK;
}

bool agent_ask_step(struct agent_ask *ask, enum hd_status *ret_status)
{
    enum hd_status st = take(ask);
    int status;

    if (!st && !ask->open && reap(ask, &status)) {
        st = judge(status);
    } else if (!st && hd_clock_now_ms() < ask->give_up_ms) {
        return false;
    } else if (!st && ask->open) {
        st = hd_err(HD_TIMEOUT, "it did not answer within %.3g s", (double)ask->timeout_ms / 1e3);
    }
    if (ask->pid)
        (void)kill(ask->pid, SIGKILL);
    close_pipe(ask);
    *ret_status = st ? hd_err_prefix(st, "%s", ask->program) : HD_OK;
    return true;
}

bool agent_ask_wait(struct agent_ask *ask, int wait_ms, enum hd_status *ret_status)
{
    const int64_t end_ms = hd_clock_now_ms() + wait_ms;

    while (!agent_ask_step(ask, ret_status)) {
        struct pollfd p = {ask->open ? ask->fd : -1, POLLIN, 0};

        if (hd_clock_now_ms() >= end_ms)
            return false;
        (void)poll(&p, 1, ask->open ? LOOK_MS : LOOK_FOR_END_MS); /* a signal only hurries it */
    }
    return true;
}

bool agent_ask_is_left(struct agent_ask *ask)
{
    int status;

    return !reap(ask, &status);
}

void agent_ask_done(struct agent_ask *ask)
{
    const int64_t end_ms = hd_clock_now_ms() + KILLED_MS; /* one that hangs in the kernel stays */

    if (ask->pid)
        (void)kill(ask->pid, SIGKILL);
    while (agent_ask_is_left(ask) && hd_clock_now_ms() < end_ms)
        (void)usleep(1000);
    close_pipe(ask);
    hd_text_free(&ask->answer);
}
