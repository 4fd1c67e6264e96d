/* How long a silent rank has waited for a processor, from planted numbers of the kernel. */
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/attempt/starve.h"
#include "tests/program/test.h"

enum { MAIN = 100, HELPER, BEGIN_MS = 5000 };
#define SECONDS(n) (INT64_C(1000000000) * (n))

/* A thread of the rank that is ready to run, or sleeps. */
static struct hd_starve_thread thread(pid_t tid, bool runnable, int64_t ran_ns, int64_t waited_ns)
{
    return (struct hd_starve_thread){tid, runnable, ran_ns, waited_ns};
}

/* At second 0 and then after each 10 s one look; the rank was heard at 1 ms. */
static void note(struct hd_starve *s, int64_t after_s, struct hd_starve_thread main,
                 struct hd_starve_thread helper)
{
    const struct hd_starve_thread threads[] = {main, helper};

    hd_starve_note(s, 1, threads, 2, BEGIN_MS + 1000 * after_s);
}

/* The kernel counts a wait when it ends: 10 s without any change count at once, and the 20 s that
 * the kernel then adds for both intervals not twice. */
static void a_wait_counts_while_it_lasts_and_once(void **state)
{
    struct hd_starve s = {0};
    const struct hd_starve_thread helper = thread(HELPER, false, 0, 0);

    note(&s, 0, thread(MAIN, true, SECONDS(3), SECONDS(1)), helper);
    assert_int_equal(hd_starve_ms(&s, 1), 0);
    note(&s, 10, thread(MAIN, true, SECONDS(3), SECONDS(1)), helper);
    assert_int_equal(hd_starve_ms(&s, 1), 10 * 1000);
    note(&s, 20, thread(MAIN, true, SECONDS(3) + 1, SECONDS(1 + 19)), helper);
    assert_int_equal(hd_starve_ms(&s, 1), 19 * 1000);
    note(&s, 30, thread(MAIN, true, SECONDS(3) + 2, SECONDS(1 + 19 + 5)), helper);
    assert_int_equal(hd_starve_ms(&s, 1), (19 + 5) * 1000);
}

/* One that sleeps hangs, or waits for a device or a disk; one that runs spins. */
static void a_rank_that_sleeps_or_runs_is_not_starved(void **state)
{
    struct hd_starve s = {0};

    for (int i = 0; i < 5; i++)
        note(&s, 10 * i, thread(MAIN, false, 0, 0), thread(HELPER, true, SECONDS(10 * i), 0));
    assert_int_equal(hd_starve_ms(&s, 1), 0);
}

/* The main thread sleeps until a helper that starves is done: the waits of two threads count once.
 */
static void the_thread_that_waits_longest_counts(void **state)
{
    struct hd_starve s = {0};

    for (int i = 0; i < 3; i++)
        note(&s, 10 * i, thread(MAIN, false, i, SECONDS(2 * i)),
             thread(HELPER, true, i, SECONDS(8 * i)));
    assert_int_equal(hd_starve_ms(&s, 1), 2 * 8 * 1000);
}

/* Waiting before the first look (here 100 s) is no part of this silence. */
static void each_silence_begins_anew(void **state)
{
    struct hd_starve s = {0};
    const struct hd_starve_thread helper = thread(HELPER, false, 0, 0);

    note(&s, 0, thread(MAIN, true, 0, 0), helper);
    note(&s, 10, thread(MAIN, true, 1, SECONDS(100)), helper);
    assert_int_equal(hd_starve_ms(&s, 1), 10 * 1000);
    assert_int_equal(hd_starve_ms(&s, 2), 0); /* it was heard since */
    hd_starve_note(&s, 2, &helper, 1, BEGIN_MS + 20 * 1000);
    assert_int_equal(hd_starve_ms(&s, 2), 0);
}

/* Goal: the files of the kernel are read as they are. Method: this process runs until the kernel,
 * which adds up at its ticks, has counted some of it. */
static void a_process_shows_its_threads(void **state)
{
    struct hd_starve_thread threads[HD_STARVE_THREADS_MAX] = {0};
    const int64_t end_ms = hd_clock_now_ms() + 10000;

    do
        assert_int_equal(hd_starve_sample(getpid(), threads), 1);
    while (threads[0].ran_ns == 0 && hd_clock_now_ms() < end_ms);
    assert_int_equal(threads[0].tid, getpid());
    assert_true(threads[0].runnable);
    assert_true(threads[0].ran_ns > 0);
    assert_int_equal(hd_starve_sample(-1, threads), 0);
}

RUN_CASES()
