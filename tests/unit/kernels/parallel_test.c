/* parallel: the crew of threads that shares a launch. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "tests/unit/kernels/harness.h"

enum { THREADS = 5, PIECES_MAX = 40, JOBS = 20000 };

struct tally {
    _Atomic int runs[PIECES_MAX]; /* of each item */
    _Atomic int inside[THREADS];  /* bodies that run under this number now */
    _Atomic int wrong;            /* pieces that are not as they should be */
    int64_t count, grain;
    bool slow; /* pieces take long enough for every thread to come, and for some to end late */
};

static void count_items(const void *args, int64_t begin, int64_t end, int thread)
{
    struct tally *t = (struct tally *)(uintptr_t)args;

    if (thread < 0 || thread >= THREADS) {
        t->wrong++;
        return;
    }
    t->wrong += t->inside[thread]++ != 0; /* scratch is by number: two at once would share it */
    t->wrong += begin % t->grain != 0 || end - begin > t->grain || end > t->count;
    if (t->slow)
        (void)nanosleep(&(struct timespec){.tv_nsec = 100 * 1000}, NULL);
    for (int64_t i = begin; i < end; i++)
        t->runs[i]++;
    t->inside[thread]--;
}

/* Goal: each item is done once, before the call returns, whoever comes. Method: many jobs of all
 * sizes close upon each other, on more threads than most machines have cores. */
static void every_item_is_done_once(void **state)
{
    const struct setting setting = {.threads = THREADS, .gemm_by = HD_GEMM_BY_OWN};
    struct device device = device_open(&setting);
    static struct tally t;

    for (int job = 0; job < JOBS; job++) {
        t.count = job % PIECES_MAX + 1;
        t.grain = job % 3 + 1;
        t.slow = job % 50 == 0;
        memset((void *)t.runs, 0, sizeof t.runs);
        hd_cpu_parallel(device.backend, t.count, t.grain, count_items, &t);
        for (int i = 0; i < PIECES_MAX; i++)
            assert_int_equal(t.runs[i], i < t.count ? 1 : 0);
    }
    assert_int_equal(t.wrong, 0);
    device_close(&device);
}

enum { ROUNDS = 100, ROUNDS_WITHIN_S = 60 }; /* a round takes some 0.1 ms */

static atomic_int rounds;

static void *open_and_close(void *unused)
{
    const struct hd_backend_options options = {.threads = THREADS, .gemm_by = HD_GEMM_BY_OWN};

    for (rounds = 0; rounds < ROUNDS; rounds++) {
        struct hd_backend *backend;

        if (on_backend()->open(&options, &backend))
            break;
        on_backend()->close(backend);
    }
    return NULL;
}

/* A backend can be closed whatever its threads do: just started, or asleep. Who is not dismissed is
 * waited for without end, so the rounds are those of another thread, which has some time. */
static void a_crew_that_had_no_job_is_dismissed(void **state)
{
    struct timespec end;
    pthread_t thread;

    assert_int_equal(clock_gettime(CLOCK_REALTIME, &end), 0);
    end.tv_sec += ROUNDS_WITHIN_S;
    assert_int_equal(pthread_create(&thread, NULL, open_and_close, NULL), 0);
    if (pthread_timedjoin_np(thread, NULL, &end))
        fail_msg("a crew was not dismissed within %d s, in round %d", (int)ROUNDS_WITHIN_S,
                 (int)rounds);
    assert_int_equal(rounds, ROUNDS);
}

static atomic_int interrupted;

static void interrupt(int signal_number)
{
    interrupted++;
}

/* Goal: a signal to the process reaches the threads that expect it. Method: with the test's own
 * thread closed to it, a signal to the process stays pending, whatever threads the backend has. */
static void the_crew_takes_no_signal(void **state)
{
    const struct setting setting = {.threads = THREADS, .gemm_by = HD_GEMM_BY_OWN};
    const struct sigaction action = {.sa_handler = interrupt};
    struct device device = device_open(&setting);
    struct sigaction old_action;
    sigset_t mine, old, pending;

    (void)sigemptyset(&mine);
    (void)sigaddset(&mine, SIGUSR1);
    (void)pthread_sigmask(SIG_BLOCK, &mine, &old);
    (void)sigaction(SIGUSR1, &action, &old_action);
    (void)kill(getpid(), SIGUSR1);
    (void)sigpending(&pending);
    assert_true(sigismember(&pending, SIGUSR1));
    device_close(&device);
    assert_int_equal(interrupted, 0);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    assert_int_equal(interrupted, 1);
    (void)sigaction(SIGUSR1, &old_action, NULL);
}

RUN_CASES()
