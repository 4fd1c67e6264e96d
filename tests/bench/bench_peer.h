/* bench_peer: the processes that a benchmark measures in turns.
 *
 * A peer says one line about itself, then answers each line that it is told by one line of numbers,
 * so that runs of all peers are interleaved while each keeps what it has warm. What fails ends the
 * benchmark with a message: these functions return only results.
 */
#ifndef HD_TESTS_BENCH_PEER_H
#define HD_TESTS_BENCH_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

enum { BENCH_RUNS_MAX = 64, BENCH_ABOUT_MAX = 512 };

struct bench_peer {
    const char *name;
    pid_t pid;
    bool forked;
    FILE *to, *from;
};

_Noreturn void bench_die(const char *what, const char *why);

/* Another program, argv[0]; as "/proc/self/exe" this one, whose threads are not bound to cores. */
void bench_peer_exec(struct bench_peer *peer, const char *name, const char *const *argv);
/* A copy of this process, whose exit status is that of `serve`; its input has ended when it reads
 * the line "end". It does not outlive this process. */
void bench_peer_fork(struct bench_peer *peer, const char *name, int (*serve)(void *context),
                     void *context);
/* The line that the peer says about itself, with its newline. */
void bench_peer_about(struct bench_peer *peer, char ret_about[BENCH_ABOUT_MAX]);

void bench_peer_tell(struct bench_peer *peer, const char *line);
/* Returns how many numbers the next line has, at most numbers_max. */
int bench_peer_hear(struct bench_peer *peer, double *ret_numbers, int numbers_max);
void bench_peer_stop(struct bench_peer *peer);

/* VmHWM of a process; 0: the system does not say. */
double bench_peak_mib(pid_t pid);

/* The median and the ends of up to BENCH_RUNS_MAX values. */
struct bench_spread {
    double median, least, most;
};
struct bench_spread bench_spread(const double *values, int count);

/* The command line: the word behind `name`, else `otherwise`; whether `name` is there. */
const char *bench_value_of(int argc, char **argv, const char *name, const char *otherwise);
bool bench_has(int argc, char **argv, const char *name);

/* Keeps freed memory in the allocator, for PyTorch; our step allocates nothing. */
void bench_keep_memory(void);

#endif
