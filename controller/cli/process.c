#include "controller/cli/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"

extern char **environ;

enum { POLL_US = 10000, LOG_TAIL_BYTES = 400, LOG_BYTES_MAX = 64 << 20 };

/* Puts the path of a program in this program's folder in place of its name in argv[0]. */
static enum hd_status find_program(const char **argv, char path[PATH_MAX])
{
    enum hd_status st;

    if (strchr(argv[0], '/'))
        return HD_OK;
    st = hd_process_find_beside(argv[0], path);
    if (!st && access(path, X_OK) == 0)
        argv[0] = path;
    return st;
}

static enum hd_status cannot_start(const char *program, int error, bool tells_remedy)
{
    return hd_err(HD_IO, "cannot start %s: %s%s", program, strerror(error),
                  tells_remedy ? "; it belongs beside heddle, or into PATH (cmake --build BUILD -t "
                                 "programs makes all programs)"
                               : "");
}

enum hd_status process_become(const char **argv)
{
    char path[PATH_MAX];
    const enum hd_status st = find_program(argv, path);

    if (st)
        return st;
    /* the setting of ranks: docs/decisions/cpu-kernels.md */
    (void)setenv("GOMP_SPINCOUNT", "4000", 0);
    (void)execvp(argv[0], (char *const *)argv);
    return cannot_start(argv[0], errno, true);
}

/* ---- a question ---- */

/* Makes a file with the text `input` for a program's stdin, positioned at its start. Only its owner
 * may read it, else heddle would refuse a token in it. */
static enum hd_status make_input(const struct hd_text *input, int *ret_fd)
{
    const int fd = memfd_create("heddle-input", MFD_CLOEXEC);
    enum hd_status st = HD_OK;

    if (fd < 0)
        return hd_err(HD_IO, "cannot make a file in memory: %s", strerror(errno));
    if (fchmod(fd, 0600) < 0)
        st = hd_err(HD_IO, "cannot set the mode of a file in memory: %s", strerror(errno));
    if (!st && input && input->len_bytes)
        st = hd_file_write_all(fd, input->data, input->len_bytes);
    if (!st && lseek(fd, 0, SEEK_SET) < 0)
        st = hd_err(HD_IO, "cannot seek in a file in memory: %s", strerror(errno));
    if (st)
        (void)close(fd);
    else
        *ret_fd = fd;
    return st;
}

/* Starts a program. err_fd -1: it inherits stderr. */
static int spawn(const char *const *argv, int in_fd, int out_fd, int err_fd, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);

    if (error)
        return error;
    error = posix_spawn_file_actions_adddup2(&actions, in_fd, STDIN_FILENO);
    if (!error)
        error = posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
    if (!error && err_fd >= 0)
        error = posix_spawn_file_actions_adddup2(&actions, err_fd, STDERR_FILENO);
    if (!error)
        error = posix_spawnp(ret_pid, argv[0], &actions, NULL, (char *const *)argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    return error;
}

static void close_file(int fd)
{
    if (fd >= 0)
        (void)close(fd);
}

/* Reads a program's output from fd until its end. */
static void gather(int fd, struct hd_text *text)
{
    char buffer[4096];
    ssize_t n;

    while ((n = read(fd, buffer, sizeof buffer)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0)
            hd_text_add_bytes(text, buffer, (size_t)n);
}

static enum hd_status ask_program(const char **argv, const struct hd_text *input, int timeout_ms,
                                  struct hd_text *ret_output, struct hd_text *ret_errors,
                                  int *ret_exit)
{
    int in_fd = -1, err_fd = -1, fds[2], error, status = 0;
    pid_t pid;
    enum hd_status st = make_input(input, &in_fd);

    if (!st && ret_errors)
        st = make_input(NULL, &err_fd);
    if (st) {
        close_file(in_fd);
        return st;
    }
    if (pipe2(fds, O_CLOEXEC) < 0) {
        close_file(in_fd);
        close_file(err_fd);
        return hd_err(HD_IO, "cannot make a pipe: %s", strerror(errno));
    }
    error = spawn(argv, in_fd, fds[1], err_fd, &pid);
    close_file(in_fd);
    (void)close(fds[1]);
    if (!error)
        st = hd_child_wait(pid, fds[0], timeout_ms, SIZE_MAX, ret_output, &status);
    (void)close(fds[0]);
    if (error || st)
        close_file(err_fd);
    if (error)
        return cannot_start(argv[0], error, error == ENOENT);
    if (st)
        return hd_err_prefix(st, "%s", argv[0]);
    if (ret_errors && lseek(err_fd, 0, SEEK_SET) == 0)
        gather(err_fd, ret_errors);
    close_file(err_fd);
    *ret_exit = WIFEXITED(status) ? WEXITSTATUS(status) : PROCESS_KILLED;
    return ret_output->failed ? hd_err(HD_NO_MEMORY, "no memory for what %s says", argv[0]) : HD_OK;
}

enum hd_status process_ask(const char **argv, const struct hd_text *input, int timeout_ms,
                           struct hd_text *ret_output, struct hd_text *ret_errors, int *ret_exit)
{
    const char *const name = argv[0];
    char path[PATH_MAX];
    enum hd_status st = find_program(argv, path);

    if (!st)
        st = ask_program(argv, input, timeout_ms, ret_output, ret_errors, ret_exit);
    argv[0] = name;
    return st;
}

int process_reach(const char *socket_path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int error;

    if (snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path) >=
        (int)sizeof address.sun_path)
        error = ENAMETOOLONG;
    else if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    else
        error = errno;
    close_file(fd);
    errno = error;
    return -1;
}

/* ---- children ---- */

enum hd_status process_adopt_orphans(void)
{
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        return hd_err(
            HD_IO, "cannot adopt the processes of children that end (PR_SET_CHILD_SUBREAPER): %s",
            strerror(errno));
    return HD_OK;
}

/* Runs in the child, between fork and exec: must not allocate or take a lock. Writes a failure to
 * the log. The child gets SIGTERM when `parent` ends, even if that happens before this call. */
static void exec_child(const struct process *process, pid_t parent, int log_fd, char *const *argv)
{
    sigset_t none;

    /* the handler of SIGTERM must not run in the child: it would swallow the signal of
     * PR_SET_PDEATHSIG before the new program has started */
    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGINT, SIG_DFL);
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid() != parent)
        _exit(127);
    (void)setpgid(0, 0);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    if (dup2(log_fd, STDOUT_FILENO) >= 0 && dup2(log_fd, STDERR_FILENO) >= 0)
        (void)execvp(argv[0], argv);
    (void)dprintf(STDERR_FILENO, "cannot start %s: %s\n", process->name, strerror(errno));
    _exit(127);
}

enum hd_status process_start(const char **argv, const char *log, struct process *ret_process)
{
    const struct process process = {.name = argv[0], .log = log};
    const pid_t parent = getpid();
    char path[PATH_MAX];
    int null_fd, log_fd;
    pid_t pid;
    enum hd_status st = find_program(argv, path);

    if (st)
        return st;
    log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    if (log_fd < 0)
        return hd_err(HD_IO, "cannot create %s: %s", log, strerror(errno));
    (void)fflush(NULL); /* else the child could write buffered output a second time */
    pid = fork();
    if (pid == 0) {
        null_fd = open("/dev/null", O_RDONLY);
        if (null_fd >= 0)
            (void)dup2(null_fd, STDIN_FILENO);
        exec_child(&process, parent, log_fd, (char *const *)argv);
    }
    (void)close(log_fd);
    argv[0] = process.name;
    if (pid < 0)
        return cannot_start(process.name, errno, false);
    *ret_process = process;
    ret_process->pid = pid;
    return HD_OK;
}

bool process_has_ended(struct process *process)
{
    int status;

    if (process->pid && waitpid(process->pid, &status, WNOHANG) == process->pid) {
        process->pid = 0;
        process->wait_status = status;
    }
    return process->pid == 0;
}

enum hd_status process_explain(const struct process *process)
{
    int status = process->wait_status;
    struct hd_text log = {0};
    const char *tail = "";
    char how[64];

    if (WIFSIGNALED(status))
        (void)snprintf(how, sizeof how, "was killed by signal %d", WTERMSIG(status));
    else
        (void)snprintf(how, sizeof how, "ended with status %d", WEXITSTATUS(status));
    if (!hd_file_read(process->log, LOG_BYTES_MAX, &log) && log.len_bytes) {
        while (log.len_bytes && log.data[log.len_bytes - 1] == '\n')
            log.data[--log.len_bytes] = '\0';
        tail = log.data + (log.len_bytes > LOG_TAIL_BYTES ? log.len_bytes - LOG_TAIL_BYTES : 0);
        if (strrchr(tail, '\n'))
            tail = strrchr(tail, '\n') + 1;
    }
    (void)hd_err(HD_IO, "%s %s; its log is %s%s%s", process->name, how, process->log,
                 *tail ? ": " : "", tail);
    hd_text_free(&log);
    return HD_IO;
}

void process_stop(struct process *process, int grace_ms)
{
    int64_t kill_at_ms = hd_clock_now_ms() + grace_ms;
    bool killed = false;

    if (process_has_ended(process))
        return;
    if (grace_ms > 0)
        (void)kill(process->pid, SIGTERM);
    while (!process_has_ended(process)) {
        if (!killed && hd_clock_now_ms() >= kill_at_ms) {
            (void)kill(process->pid, SIGKILL);
            killed = true;
        }
        (void)usleep(POLL_US);
    }
}

/* Sends `signal` to every child of this process. */
static void signal_children(int signal)
{
    struct hd_text list = {0};
    char path[64], *next;
    long pid;

    (void)snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    if (!hd_file_read(path, 1 << 20, &list) && list.len_bytes)
        for (char *p = list.data; (pid = strtol(p, &next, 10)) > 0; p = next)
            (void)kill((pid_t)pid, signal);
    hd_text_free(&list);
}

void process_stop_all(int grace_ms)
{
    int64_t kill_at_ms = hd_clock_now_ms() + grace_ms;
    pid_t pid;

    if (grace_ms > 0)
        signal_children(SIGTERM);
    while ((pid = waitpid(-1, NULL, WNOHANG)) >= 0 || errno == EINTR) {
        if (hd_clock_now_ms() >= kill_at_ms)
            signal_children(SIGKILL);
        if (pid == 0)
            (void)usleep(POLL_US);
    }
}
