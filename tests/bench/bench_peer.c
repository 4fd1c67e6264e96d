#include "tests/bench/bench_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sorted.h"

_Noreturn void bench_die(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, why);
    exit(1);
}

/* ---- processes ---- */

/* Returns true in the child, whose standard input and output are the pipes. */
static bool split(struct bench_peer *p, const char *name)
{
    int to[2], from[2];

    p->name = name;
    if (pipe2(to, O_CLOEXEC) < 0 || pipe2(from, O_CLOEXEC) < 0)
        bench_die("pipe", strerror(errno));
    (void)fflush(NULL);
    p->pid = fork();
    if (p->pid < 0)
        bench_die("fork", strerror(errno));
    if (!p->pid) {
        (void)dup2(to[0], 0);
        (void)dup2(from[1], 1);
        return true;
    }
    (void)close(to[0]);
    (void)close(from[1]);
    p->to = fdopen(to[1], "w");
    p->from = fdopen(from[0], "r");
    if (!p->to || !p->from)
        bench_die(name, "did not start");
    return false;
}

void bench_peer_exec(struct bench_peer *p, const char *name, const char *const *argv)
{
    *p = (struct bench_peer){0};
    if (!split(p, name))
        return;
    if (!strcmp(argv[0], "/proc/self/exe")) { /* as the supervisor starts ranks: bound, the crew */
        (void)setenv("OMP_PROC_BIND", "false", 1); /* would share the first thread's core */
        (void)setenv("GOMP_SPINCOUNT", "4000", 0);
    }
    (void)execvp(argv[0], (char *const *)argv);
    bench_die(argv[0], strerror(errno));
}

void bench_peer_fork(struct bench_peer *p, const char *name, int (*serve)(void *), void *context)
{
    const pid_t parent = getpid();

    *p = (struct bench_peer){.forked = true};
    if (!split(p, name))
        return;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
        exit(1);
    exit(serve(context));
}

void bench_peer_about(struct bench_peer *p, char ret_about[BENCH_ABOUT_MAX])
{
    if (!fgets(ret_about, BENCH_ABOUT_MAX, p->from))
        bench_die(p->name, "did not start");
}

void bench_peer_tell(struct bench_peer *p, const char *line)
{
    fprintf(p->to, "%s\n", line);
    (void)fflush(p->to);
}

int bench_peer_hear(struct bench_peer *p, double *ret_numbers, int numbers_max)
{
    char line[1024], *rest = line;
    int count = 0;

    if (!fgets(line, sizeof line, p->from))
        bench_die(p->name, "ended early");
    for (char *end; count < numbers_max; rest = end) {
        ret_numbers[count] = strtod(rest, &end);
        if (end == rest)
            break;
        count++;
    }
    return count;
}

void bench_peer_stop(struct bench_peer *p)
{
    int status;

    if (p->forked) /* a later fork has this pipe's end, too: closing it here ends nothing */
        bench_peer_tell(p, "end");
    (void)fclose(p->to);
    (void)waitpid(p->pid, &status, 0);
    (void)fclose(p->from);
}

double bench_peak_mib(pid_t pid)
{
    char path[64], line[256];
    long long kib = 0;
    FILE *status;

    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    status = fopen(path, "re");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %lld", &kib) == 1)
            break;
    if (status)
        (void)fclose(status);
    return (double)kib / 1024;
}

/* ---- numbers ---- */

struct bench_spread bench_spread(const double *values, int count)
{
    double sorted[BENCH_RUNS_MAX];

    memcpy(sorted, values, (size_t)count * sizeof *values);
    sort_doubles(sorted, (size_t)count);
    return (struct bench_spread){
        .median = count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2,
        .least = sorted[0],
        .most = sorted[count - 1]};
}

/* ---- the command line, the environment ---- */

const char *bench_value_of(int argc, char **argv, const char *name, const char *otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name))
            return argv[i + 1];
    return otherwise;
}

bool bench_has(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], name))
            return true;
    return false;
}

void bench_keep_memory(void)
{
    (void)setenv("MALLOC_MMAP_MAX_", "0", 1);
    (void)setenv("MALLOC_TRIM_THRESHOLD_", "20000000000", 1);
    (void)setenv("MALLOC_TOP_PAD_", "268435456", 1);
}
