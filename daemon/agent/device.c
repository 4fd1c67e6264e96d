#include "daemon/agent/device.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

extern char **environ;

enum { ANSWER_MAX = 4096, ANSWER_TIMEOUT_MS = 30000 };

static enum hd_status start(const char *worker, int threads, int write_fd, pid_t *ret_pid)
{
    char number[16];
    char *argv[] = {(char *)worker, "device", "--threads", number, NULL};
    posix_spawn_file_actions_t actions;
    int error;

    (void)snprintf(number, sizeof number, "%d", threads);
    if (posix_spawn_file_actions_init(&actions))
        return hd_err(HD_NO_MEMORY, "no memory to start %s", worker);
    error = posix_spawn_file_actions_adddup2(&actions, write_fd, STDOUT_FILENO);
    if (!error)
        error = posix_spawn(ret_pid, worker, &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    return error ? hd_err(HD_IO, "cannot start %s: %s", worker, strerror(error)) : HD_OK;
}

/* Reads until the end of the pipe; a worker that hangs is ended. */
static enum hd_status read_answer(int fd, pid_t pid, char ret_answer[ANSWER_MAX])
{
    const int64_t end_ms = hd_clock_now_ms() + ANSWER_TIMEOUT_MS;
    size_t used = 0;
    int status;

    for (;;) {
        struct pollfd p = {fd, POLLIN, 0};
        const int64_t left_ms = end_ms - hd_clock_now_ms();
        ssize_t n;

        if (left_ms <= 0 || poll(&p, 1, (int)left_ms) == 0) {
            (void)kill(pid, SIGKILL);
            (void)waitpid(pid, &status, 0);
            return hd_err(HD_TIMEOUT, "it did not answer within %d s", ANSWER_TIMEOUT_MS / 1000);
        }
        n = read(fd, ret_answer + used, ANSWER_MAX - 1 - used);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        used += (size_t)n;
    }
    ret_answer[used] = '\0';
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        return hd_err(HD_IO, "it ended with status %d",
                      WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    return HD_OK;
}

/* "key value" lines; what is not known here is passed over, so that a worker may say more. */
static enum hd_status understand(char *answer, struct agent_device *ret_device)
{
    struct agent_device d = {.isa = ""};
    bool bf16_told = false;
    char *rest = answer;

    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *value = strchr(line, ' ');

        if (!value)
            continue;
        *value++ = '\0';
        if (strcmp(line, "isa") == 0)
            (void)snprintf(d.isa, sizeof d.isa, "%s", value);
        if (strcmp(line, "library") == 0)
            (void)snprintf(d.library, sizeof d.library, "%s", value);
        if (strcmp(line, "gloo") == 0)
            d.gloo = strcmp(value, "1") == 0;
        if (strcmp(line, "bf16_fast") == 0) {
            d.bf16 = strcmp(value, "1") == 0;
            bf16_told = true;
        }
    }
    if (!d.isa[0] || !bf16_told)
        return hd_err(HD_CORRUPT, "its answer names no instruction set");
    *ret_device = d;
    return HD_OK;
}

enum hd_status agent_device_ask(const char *worker, int threads, struct agent_device *ret_device)
{
    char answer[ANSWER_MAX];
    enum hd_status st;
    int fds[2];
    pid_t pid;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return hd_err(HD_IO, "cannot make a pipe: %s", strerror(errno));
    st = start(worker, threads, fds[1], &pid);
    (void)close(fds[1]);
    if (!st)
        st = read_answer(fds[0], pid, answer);
    (void)close(fds[0]);
    if (!st)
        st = understand(answer, ret_device);
    return st ? hd_err_prefix(st, "%s device", worker) : HD_OK;
}
