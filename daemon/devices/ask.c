#include "daemon/devices/ask.h"

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

enum { ANSWER_BYTES_MAX = 1 << 20, PIECE_BYTES = 4096, KILLED_MS = 200, CHECK_US = 5000 };

extern char **environ;

/* Reaps the run's process if it has ended. Returns true if no process is left. */
static bool reap(struct hd_worker_run *ask)
{
    pid_t pid = 0;

    if (ask->pid)
        do
            pid = waitpid(ask->pid, &ask->ended, WNOHANG);
        while (pid < 0 && errno == EINTR);
    if (pid)
        ask->pid = 0;
    return !ask->pid;
}

static void close_pipe(struct hd_worker_run *ask)
{
    if (ask->open)
        (void)close(ask->fd);
    ask->open = false;
}

static enum hd_status start(struct hd_worker_run *ask, const char *const argv[])
{
    posix_spawn_file_actions_t actions;
    int fds[2], error;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return hd_err(HD_IO, "cannot make a pipe: %s", strerror(errno));
    ask->fd = fds[0];
    ask->open = true;
    error =
        fcntl(fds[0], F_SETFL, O_NONBLOCK) < 0 ? errno : posix_spawn_file_actions_init(&actions);
    if (!error) {
        error = posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
        if (!error)
            error = posix_spawn(&ask->pid, argv[0], &actions, NULL, (char *const *)argv, environ);
        (void)posix_spawn_file_actions_destroy(&actions);
    }
    (void)close(fds[1]);
    if (!error)
        return HD_OK;
    ask->pid = 0;
    close_pipe(ask);
    return hd_err(HD_IO, "cannot be started: %s", strerror(error));
}

enum hd_status hd_ask_begin(struct hd_worker_run *ask, const char *const argv[], int timeout_ms)
{
    enum hd_status st;

    if (!reap(ask))
        return hd_err(HD_CONFLICT, "%s: process %d, which an earlier check has started, hangs",
                      ask->program, (int)ask->pid);
    hd_ask_end(ask);
    (void)snprintf(ask->program, sizeof ask->program, "%.220s %.20s", argv[0], argv[1]);
    ask->ended = 0;
    ask->timeout_ms = timeout_ms;
    ask->deadline_ms = hd_clock_now_ms() + timeout_ms;
    st = start(ask, argv);
    return st ? hd_err_prefix(st, "%s", ask->program) : HD_OK;
}

/* Returns the error for a process that closed its output without printing anything; waits up to 0.2
 * s to learn how it ended. */
static enum hd_status fail_silent(struct hd_worker_run *ask)
{
    const int64_t end_ms = hd_clock_now_ms() + KILLED_MS;

    while (!reap(ask) && hd_clock_now_ms() < end_ms)
        (void)usleep(CHECK_US);
    if (!ask->pid && WIFSIGNALED(ask->ended))
        return hd_err(
            HD_IO, "it was killed by signal %d before it printed anything%s", WTERMSIG(ask->ended),
            WTERMSIG(ask->ended) == SIGKILL
                ? "; if no user killed it, check with dmesg whether the node ran out of memory"
                : "");
    return hd_err(HD_IO, "it printed nothing; heddled's log may say why");
}

static enum hd_status read_pipe(struct hd_worker_run *ask)
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
            return hd_err(HD_IO, "cannot read its output: %s", strerror(errno));
        if (n == 0)
            close_pipe(ask);
        hd_text_add_bytes(&ask->answer, piece, (size_t)n);
        if (ask->answer.len_bytes > ANSWER_BYTES_MAX)
            return hd_err(HD_LIMIT, "it prints more than %d bytes", ANSWER_BYTES_MAX);
    }
    if (!ask->open && !ask->answer.len_bytes)
        return fail_silent(ask);
    return ask->answer.failed ? hd_err(HD_NO_MEMORY, "no memory for its answer") : HD_OK;
}

bool hd_ask_step(struct hd_worker_run *ask, enum hd_status *ret_status)
{
    enum hd_status st = read_pipe(ask);

    if (!st && ask->open) {
        if (hd_clock_now_ms() < ask->deadline_ms)
            return false;
        st = hd_err(HD_TIMEOUT, "it did not answer within %.3g s", (double)ask->timeout_ms / 1e3);
    }
    if (ask->pid)
        (void)kill(ask->pid, SIGKILL);
    close_pipe(ask);
    *ret_status = st ? hd_err_prefix(st, "%s", ask->program) : HD_OK;
    return true;
}

enum hd_status hd_ask_wait(struct hd_worker_run *ask)
{
    enum hd_status st;

    while (!hd_ask_step(ask, &st)) {
        struct pollfd p = {ask->fd, POLLIN, 0};
        const int64_t left_ms = ask->deadline_ms - hd_clock_now_ms();

        (void)poll(&p, 1, left_ms > 0 ? (int)left_ms : 0);
    }
    return st;
}

void hd_ask_reap(struct hd_worker_run *ask)
{
    const int64_t end_ms = hd_clock_now_ms() + KILLED_MS;

    if (ask->pid)
        (void)kill(ask->pid, SIGKILL);
    while (!reap(ask) && hd_clock_now_ms() < end_ms)
        (void)usleep(CHECK_US);
}

void hd_ask_end(struct hd_worker_run *ask)
{
    hd_ask_reap(ask);
    close_pipe(ask);
    hd_text_free(&ask->answer);
}

/* ---- the two questions ---- */

/* Parses the answer of `heddle-worker device`, lines "KEY VALUE". Ignores unknown keys: some lines
 * are for other readers. */
static enum hd_status read_processor(char *rest, struct hd_processor *ret_cpu)
{
    struct hd_processor cpu = {.isa = ""};
    bool has_bf16 = false;

    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        const char *key = strsep(&line, " "), *value = line ? line : "";

        if (strcmp(key, "isa") == 0)
            (void)snprintf(cpu.isa, sizeof cpu.isa, "%s", value);
        if (strcmp(key, "library") == 0)
            (void)snprintf(cpu.library, sizeof cpu.library, "%s", value);
        if (strcmp(key, "traits") == 0 && strlen(value) < sizeof cpu.traits)
            (void)snprintf(cpu.traits, sizeof cpu.traits, "%s", value);
        if (strcmp(key, "gloo") == 0)
            cpu.gloo = strcmp(value, "1") == 0;
        if (strcmp(key, "bf16_fast") == 0) {
            cpu.bf16 = strcmp(value, "1") == 0;
            has_bf16 = true;
        }
    }
    if (!cpu.isa[0] || !has_bf16)
        return hd_err(HD_CORRUPT, "its answer names no instruction set");
    *ret_cpu = cpu;
    return HD_OK;
}

enum hd_status hd_ask_processor(const char *worker, int threads, struct hd_processor *ret_cpu)
{
    struct hd_worker_run ask = {.pid = 0};
    char number[16];
    const char *const argv[] = {worker, "device", "--threads", number, NULL};
    enum hd_status st;

    (void)snprintf(number, sizeof number, "%d", threads);
    st = hd_ask_begin(&ask, argv, HD_ASK_MS);
    if (!st)
        st = hd_ask_wait(&ask);
    if (!st && read_processor(ask.answer.data, ret_cpu))
        st = hd_err_prefix(HD_CORRUPT, "%s", ask.program);
    hd_ask_end(&ask);
    return st;
}

enum hd_status hd_ask_gpus_begin(struct hd_worker_run *ask, const char *worker)
{
    return hd_ask_begin(ask, (const char *const[]){worker, "gpus", NULL}, HD_ASK_MS);
}

enum hd_status hd_ask_gpus_read(const struct hd_worker_run *ask, struct hd_gpu_list *ret_list)
{
    enum hd_status st = hd_gpu_list_read(ask->answer.data, ask->answer.len_bytes, ret_list);

    return st ? hd_err_prefix(st, "%s", ask->program) : HD_OK;
}
