#include "daemon/agent/ask.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

extern char **environ;

static enum hd_status start(char *const argv[], int write_fd, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    int error;

    if (posix_spawn_file_actions_init(&actions))
        return hd_err(HD_NO_MEMORY, "no memory to start it");
    error = posix_spawn_file_actions_adddup2(&actions, write_fd, STDOUT_FILENO);
    if (!error)
        error = posix_spawn(ret_pid, argv[0], &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    return error ? hd_err(HD_IO, "cannot be started: %s", strerror(error)) : HD_OK;
}

/* Until the end of the pipe. */
static enum hd_status take(int fd, size_t bytes_max, int timeout_ms, struct hd_text *answer)
{
    const int64_t end_ms = hd_clock_now_ms() + timeout_ms;
    char piece[4096];
    ssize_t n = 1;

    while (n > 0) {
        struct pollfd p = {fd, POLLIN, 0};
        const int64_t left_ms = end_ms - hd_clock_now_ms();

        if (left_ms <= 0 || poll(&p, 1, (int)left_ms) == 0)
            return hd_err(HD_TIMEOUT, "it did not answer within %.3g s", (double)timeout_ms / 1e3);
        n = read(fd, piece, sizeof piece);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            hd_text_add_bytes(answer, piece, (size_t)n);
        if (answer->len_bytes > bytes_max)
            return hd_err(HD_LIMIT, "it says more than %zu bytes", bytes_max);
    }
    return answer->failed ? hd_err(HD_NO_MEMORY, "no memory for its answer") : HD_OK;
}

/* One that sits in the kernel, waiting for a GPU, dies later: it is not waited for. */
static enum hd_status end(pid_t pid, enum hd_status st)
{
    int status = 0;

    if (st) {
        (void)kill(pid, SIGKILL);
        (void)usleep(10000);
        (void)waitpid(pid, &status, WNOHANG);
        return st;
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        return hd_err(HD_IO, "it was killed by signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status))
        return hd_err(HD_IO, "it ended with status %d", WEXITSTATUS(status));
    return HD_OK;
}

enum hd_status agent_ask(char *const argv[], size_t bytes_max, int timeout_ms,
                         struct hd_text *ret_answer)
{
    enum hd_status st;
    int fds[2];
    pid_t pid;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return hd_err(HD_IO, "cannot make a pipe: %s", strerror(errno));
    st = start(argv, fds[1], &pid);
    (void)close(fds[1]);
    if (!st)
        st = end(pid, take(fds[0], bytes_max, timeout_ms, ret_answer));
    (void)close(fds[0]);
    return st ? hd_err_prefix(st, "%s %s", argv[0], argv[1]) : HD_OK;
}
