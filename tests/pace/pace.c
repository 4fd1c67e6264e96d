/* pace: loaded into the ranks of scenarios (LD_PRELOAD), makes each step take 20 ms longer, as
 * those of a larger model would, but asleep. A scenario waits until a job is under way and then
 * does something to it: what the job's ranks compute until then is dear, and proves nothing.
 *
 * A rank writes one line of its log per step, in one write: there it sleeps, and its peers wait for
 * it. The other programs of a scenario, which load it too, never write such a line to their
 * standard error.
 *
 * A rank is also told that it has one processor, so that a wait for its sleeping peer sleeps soon:
 * the processors belong to the tests beside it. */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int is_rank;

static void __attribute__((constructor)) begin(void)
{
    is_rank = strcmp(program_invocation_short_name, "heddle-worker") == 0;
}

__attribute__((visibility("default"))) ssize_t write(int fd, const void *bytes, size_t n)
{
    static const struct timespec pace = {.tv_nsec = 20 * 1000 * 1000};

    if (is_rank && fd == STDERR_FILENO && memmem(bytes, n, ": step ", 7))
        (void)nanosleep(&pace, NULL);
    return syscall(SYS_write, fd, bytes, n);
}

__attribute__((visibility("default"))) int sched_getaffinity(pid_t pid, size_t size,
                                                             cpu_set_t *ret_set)
{
    const long n = syscall(SYS_sched_getaffinity, pid, size, ret_set);

    if (n < 0)
        return -1;
    memset((char *)ret_set + n, 0, size - (size_t)n);
    for (size_t cpu = 0, found = 0; is_rank && cpu < 8 * size; cpu++)
        if (CPU_ISSET_S(cpu, size, ret_set) && found++)
            CPU_CLR_S(cpu, size, ret_set);
    return 0;
}
