/* guard: runs one test so that nothing of it remains, whatever it does.
 *
 *   guard SECONDS LOG COMMAND [ARG...]
 *
 * COMMAND runs in a session of its own with stdin from /dev/null and all output in LOG. Its
 * processes, orphans and daemons included, stay our descendants (child subreaper). When COMMAND
 * ends, when SECONDS are over, when we are asked to stop or when our parent dies, all of them are
 * killed and reaped before we exit. LOG.used then holds the CPU time of them all, in milliseconds.
 *
 * Exit status: COMMAND's own, or 128 + its signal; 124 the time was over; 125 COMMAND succeeded
 * but left processes behind that did not end within GRACE_MS; 126 the guard itself failed;
 * 130 stopped. LOG's last lines say which.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    EXIT_TIME_OVER = 124,
    EXIT_LEFT_BEHIND = 125,
    EXIT_GUARD_FAILED = 126,
    EXIT_STOPPED = 130,
    GRACE_MS = 3000,
    POLL_MS = 50,
    PROCESSES_MAX = 65536, /* more descendants than that are killed round by round */
};

struct process {
    pid_t pid, parent;
    char state;
    char name[32];
};

static int64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Reads /proc/PID/stat: "pid (name) state ppid ..."; the name may contain anything but a '\0'. */
static bool read_process(const char *pid, struct process *ret_process)
{
    char path[300], line[512], *open_paren, *close_paren;
    ssize_t n;
    int fd;

    (void)snprintf(path, sizeof path, "/proc/%s/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    n = read(fd, line, sizeof line - 1);
    (void)close(fd);
    if (n <= 0)
        return false;
    line[n] = '\0';
    open_paren = strchr(line, '(');
    close_paren = strrchr(line, ')');
    if (!open_paren || !close_paren)
        return false;
    *close_paren = '\0';
    ret_process->pid = (pid_t)strtol(pid, NULL, 10);
    ret_process->state = close_paren[2];
    ret_process->parent = (pid_t)strtol(close_paren + 4, NULL, 10);
    (void)snprintf(ret_process->name, sizeof ret_process->name, "%s", open_paren + 1);
    return true;
}

/* Fills `list` with our living descendants and returns how many; zombies are not living. */
static int list_descendants(struct process *list)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    int all = 0, count = 0;
    bool grew = true;

    if (!proc)
        return 0;
    while (all < PROCESSES_MAX && (entry = readdir(proc)))
        if (isdigit((unsigned char)entry->d_name[0]) && read_process(entry->d_name, &list[all]))
            all++;
    (void)closedir(proc);

    /* The front [0, count) is known to descend from us; it grows until a pass adds nobody. */
    while (grew) {
        grew = false;
        for (int i = count; i < all; i++) {
            bool ours = list[i].parent == getpid();
            struct process swap;

            for (int j = 0; j < count && !ours; j++)
                ours = list[j].pid == list[i].parent;
            if (!ours)
                continue;
            swap = list[count];
            list[count++] = list[i];
            list[i] = swap;
            grew = true;
        }
    }
    all = count;
    count = 0;
    for (int i = 0; i < all; i++)
        if (list[i].state != 'Z')
            list[count++] = list[i];
    return count;
}

/* Reaps what has ended; true when `child` was among it (then with its status). */
static bool reap(pid_t child, int *ret_status)
{
    bool found = false;
    pid_t pid;
    int status;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == child) {
            *ret_status = status;
            found = true;
        }
    }
    return found;
}

static void sleep_ms(int ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000L};

    (void)nanosleep(&t, NULL);
}

/* Kills and reaps all descendants; the session is named too, for where /proc is missing. */
static void kill_all(pid_t child, struct process *list)
{
    int status;

    for (;;) {
        int count = list_descendants(list);

        (void)kill(-child, SIGKILL);
        for (int i = 0; i < count; i++)
            (void)kill(list[i].pid, SIGKILL);
        (void)reap(child, &status);
        if (waitpid(-1, &status, WNOHANG) < 0 && errno == ECHILD)
            return;
        sleep_ms(5);
    }
}

/* Writes the times of all reaped processes. Only tests/run's table misses it where it cannot be
 * written. */
static void write_used(const char *log_path)
{
    char path[4096];
    struct rusage u;
    FILE *file;

    (void)snprintf(path, sizeof path, "%s.used", log_path);
    file = getrusage(RUSAGE_CHILDREN, &u) == 0 ? fopen(path, "w") : NULL;
    if (!file)
        return;
    fprintf(file, "%lld\n",
            (long long)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000 +
                (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1000);
    (void)fclose(file);
}

static void run_command(char **argv, const char *log_path)
{
    const int null = open("/dev/null", O_RDONLY);
    const int log = open(log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
    sigset_t none;

    if (null < 0 || log < 0) {
        perror(log_path);
        _exit(EXIT_GUARD_FAILED);
    }
    (void)setsid();
    (void)dup2(null, STDIN_FILENO);
    (void)dup2(log, STDOUT_FILENO);
    (void)dup2(log, STDERR_FILENO);
    (void)close(null);
    (void)close(log);
    /* A shell's background job ignores these; a test of Ctrl-C must find them as they are. */
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGQUIT, SIG_DFL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)execvp(argv[0], argv);
    fprintf(stderr, "guard: cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(EXIT_GUARD_FAILED);
}

/* Returns the status to exit with for a status of waitpid: above 128 for a signal alone, so that a
 * program that exits with 255 (cmocka's, of an assertion in a thread) does not look killed. */
static int exit_status(int status)
{
    if (WIFSIGNALED(status))
        return 128 + WTERMSIG(status);
    return WEXITSTATUS(status) < 128 ? WEXITSTATUS(status) : 1;
}

/* Waits for the child, the end of its time or a request to stop. Returns the exit status. */
static int watch(pid_t child, int64_t limit_ms, const sigset_t *signals)
{
    const int64_t end = now_ms() + limit_ms;
    int status;

    for (;;) {
        const struct timespec poll = {.tv_nsec = POLL_MS * 1000000L};
        int signal_number;

        if (reap(child, &status))
            return exit_status(status);
        if (now_ms() >= end)
            return EXIT_TIME_OVER;
        signal_number = sigtimedwait(signals, NULL, &poll);
        if (signal_number > 0 && signal_number != SIGCHLD)
            return EXIT_STOPPED;
    }
}

/* After a command that ended by itself: true if something of it still lives after GRACE_MS. */
static bool left_behind(pid_t child, struct process *list, FILE *log)
{
    const int64_t end = now_ms() + GRACE_MS;
    int count, status;

    for (;;) {
        (void)reap(child, &status);
        count = list_descendants(list);
        if (!count || now_ms() >= end)
            break;
        sleep_ms(POLL_MS);
    }
    for (int i = 0; i < count; i++)
        fprintf(log, "guard: left behind: process %d (%s)\n", (int)list[i].pid, list[i].name);
    return count > 0;
}

int main(int argc, char **argv)
{
    struct process *list = calloc(PROCESSES_MAX, sizeof *list);
    const pid_t parent = getppid();
    sigset_t signals;
    FILE *log;
    pid_t child;
    int status;

    if (argc < 4 || atoi(argv[1]) <= 0) {
        fprintf(stderr, "usage: guard SECONDS LOG COMMAND [ARG...]\n");
        return EXIT_GUARD_FAILED;
    }
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGCHLD);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &signals, NULL);
    (void)signal(SIGINT, SIG_DFL); /* an ignored signal would not even be pending */
    if (!list || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0 || prctl(PR_SET_PDEATHSIG, SIGTERM) < 0) {
        perror("guard");
        return EXIT_GUARD_FAILED;
    }
    if (getppid() != parent)
        return EXIT_STOPPED; /* it died before the death signal was set */

    child = fork();
    if (child < 0) {
        perror("guard: fork");
        return EXIT_GUARD_FAILED;
    }
    if (child == 0)
        run_command(argv + 3, argv[2]);

    status = watch(child, (int64_t)atoi(argv[1]) * 1000, &signals);
    log = fopen(argv[2], "a");
    if (!log)
        log = stderr;
    if (status == EXIT_TIME_OVER)
        fprintf(log, "guard: not done after %s s, killed\n", argv[1]);
    else if (status > 128 && status != EXIT_STOPPED)
        fprintf(log, "guard: ended by signal %d (%s)\n", status - 128, strsignal(status - 128));
    else if (status != EXIT_STOPPED && left_behind(child, list, log) && status == 0)
        status = EXIT_LEFT_BEHIND;
    kill_all(child, list);
    write_used(argv[2]);
    (void)fclose(log);
    free(list);
    return status;
}
