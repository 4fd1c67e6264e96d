/* bench: a folder with a job and a run directory, for tests that run a real heddle-supervisor over
 * fake workers. */
#ifndef HD_TEST_DAEMON_BENCH_H
#define HD_TEST_DAEMON_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "link/report.h"
#include "tests/temporary.h"

struct bench {
    char root[TEMPORARY_BYTES]; /* removed at the end */
    char attempt_dir[96], run_dir[128];
    pid_t supervisor;
    int64_t began_ms; /* wall clock */
};

void bench_init(struct bench *bench);
void bench_done(struct bench *bench); /* also asserts that no process of it is left */

/* Sets how rank R behaves (fake_worker.c) for what is started from here on. */
void bench_mode(int rank, const char *mode);

/* Starts heddle-supervisor for ranks 0 .. ranks-1; more arguments may follow, NULL ends them. */
void bench_start(struct bench *bench, int ranks, ...);
/* Waits for the supervisor to end; returns its wait status. Fails after timeout_ms. */
int bench_wait(struct bench *bench, int timeout_ms);
void bench_wait_exists(const struct bench *bench, const char *name, int timeout_ms);

void bench_end(const struct bench *bench, struct hd_link_report *ret_end);
void bench_exit(const struct bench *bench, int rank, struct hd_link_report *ret_exit);
char *bench_log(const struct bench *bench, int rank); /* free it */

/* Counts the spool's reports of a kind and rank (-1: any); asserts that seq has no hole. */
int bench_spooled(const struct bench *bench, enum hd_link_kind kind, int rank);

/* The one exit of a rank that the spool holds. */
void bench_spooled_exit(const struct bench *bench, int rank, struct hd_link_report *ret_exit);

/* Processes whose environment names the run directory; writes their numbers if ret is not NULL. */
int bench_processes(const struct bench *bench, pid_t ret_pids[16]);

/* The socket of the supervisor, hello done; as heddled would have it. */
int bench_connect(const struct bench *bench, int timeout_ms);
void bench_send(int fd, int type, int64_t number); /* number < 0: no field */

#endif
