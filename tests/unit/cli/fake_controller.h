/* fake_controller: a Control service with a script, which misbehaves on purpose, on a loop in a
 * thread of this process; and the real heddle program, in a process of its own, against it.
 *
 * Used by: client_test.c, terminal_test.c.   Threads: the test's; `fake` as said there.
 */
#ifndef HD_TEST_FAKE_CONTROLLER_H
#define HD_TEST_FAKE_CONTROLLER_H

#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <pthread.h>

#include "rpc/rpc.h"
#include "tests/delay_proxy.h"

enum {
    WAYS = 4,      /* to the controller's port, each longer than the one before */
    RUN_MS = 30000 /* a program that runs for longer is killed */
};
extern const int64_t round_trips_ms[WAYS];

struct fake {
    uv_loop_t loop;
    struct hd_rpc *rpc;
    struct hd_rpc_server *server;
    uv_async_t stop, meet;
    sem_t met;
    uv_timer_t timer;
    struct hd_rpc_call *broken; /* fails when the timer says so */
    pthread_t thread;
    char dir[64], address[128];
    struct delay_proxy *ways[WAYS]; /* open_ways; else NULL */
    int ports[WAYS];
    /* touched by the loop's thread only while a program runs, by the test only while none does */
    int submits, watches, reads, cancels, gets, topologies;
    char first_id[80], last_id[80], last_array[80];
    uint32_t states;    /* a bit for each state that the last ListJobs names */
    uint64_t after[8];  /* of each WatchJob */
    bool new_only[8];   /* likewise */
    int64_t offset[8];  /* of each ReadLog */
    int32_t attempt[8]; /* likewise */
    bool hold;          /* WatchJob sends its first messages and stays open */
    bool warns;         /* that the limit is near */
    bool never_fits;    /* it has too few devices for any job */
    int refuse_at;      /* number of the SubmitJob, from 1 on, that a limit refuses; 0: none */
    bool interrupts;    /* a SubmitJob interrupts the program, and its answer is lost */
    _Atomic pid_t pid;  /* process of the program that runs */
    int validations;    /* number of ValidateJob calls, touched like `submits` */
    /* jobs that ListJobs sends, newest first; none: job 7, on two pages */
    struct fake_job {
        uint64_t job;
        const char *name;
        int state;         /* Heddle__V1__JobState */
        const char *owner; /* NULL: me */
    } listed[4];
    bool node_lost;      /* its node is lost, not draining */
    int64_t deadline_ms; /* of the drain of its node, by the wall clock */
    int64_t ahead_ms;    /* its clock, before the program's; 0: it does not tell the time */
};
extern struct fake fake; /* of the test that runs */

/* Setup and teardown of a test. far: with a port with TLS, and ways of several lengths to it. */
int start_fake(void **state);
int start_far(void **state);
int stop_fake(void **state);
/* Both threads have seen what the other wrote before. */
void meet(void);

struct run {
    int code; /* exit code, or 256 + signal */
    char out[4096], err[4096];
};

/* Runs `heddle WORDS`; with a signal, sends it once the program has printed something. */
struct run heddle(const char *words, int signal_number);
/* Replaces this process, which is a child, by heddle; does not return. */
void exec_heddle(const char *words, int out, int err);
/* A job file in fake.dir, and its data. */
void put_job_file(char ret_path[128]);

#endif
