/* heddled's watch over a supervisor, on a clock of the test's own. The supervisor is a process of
 * the test that only waits; it is stopped, and looked at. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "daemon/agent/local.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

enum { BEGIN_MS = 1000000, LOST_MS = 60000 };

struct watched {
    char dir[TEMPORARY_BYTES], log[TEMPORARY_BYTES + 32];
    pid_t supervisor;
    struct locals all;
    struct agent_attempt local;
    int64_t now_ms;
    int changes;
};

static void on_change(void *user, struct agent_attempt *local)
{
    ((struct watched *)user)->changes++;
}

static void begin(struct watched *w)
{
    struct hd_attempt_process process;
    char path[TEMPORARY_BYTES + 16];

    *w = (struct watched){.now_ms = BEGIN_MS};
    temporary_dir(w->dir, "watch");
    (void)snprintf(path, sizeof path, "%s/logs", w->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(w->log, sizeof w->log, "%s/logs/rank-0.log", w->dir);
    w->supervisor = fork();
    assert_true(w->supervisor >= 0);
    if (w->supervisor == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* also if an assertion fails */
        for (;;)
            (void)pause();
    }
    assert_int_equal(hd_attempt_process_find(w->supervisor, &process), HD_OK);
    assert_int_equal(hd_attempt_process_write(w->dir, &process), HD_OK);
    w->all = (struct locals){.supervisor_lost_ms = LOST_MS, .on_change = on_change, .user = w};
    w->local = (struct agent_attempt){.all = &w->all,
                                      .job = 7,
                                      .attempt = 1,
                                      .attempt_dir = w->dir,
                                      .run_dir = w->dir,
                                      .state = LOCAL_ALIVE,
                                      .fd = 3,
                                      .greeted = true,
                                      .answers_pings = true};
}

static void finish(struct watched *w)
{
    (void)kill(w->supervisor, SIGKILL);
    (void)waitpid(w->supervisor, NULL, 0);
    assert_int_equal(hd_file_remove_tree(w->dir), HD_OK);
}

/* Time goes on by `seconds`, with five looks a second. */
static void pass(struct watched *w, int seconds)
{
    for (int i = 0; i < 5 * seconds; i++) {
        w->now_ms += 200;
        watch_supervisor(&w->local, w->now_ms);
    }
}

static void stop(const struct watched *w)
{
    int status;

    assert_int_equal(kill(w->supervisor, SIGSTOP), 0);
    assert_int_equal(waitpid(w->supervisor, &status, WUNTRACED), w->supervisor);
    assert_true(WIFSTOPPED(status));
}

/* Whether the process runs again since it was stopped. A signal takes effect a moment later. */
static bool was_continued(const struct watched *w)
{
    int status = 0;

    return waitpid(w->supervisor, &status, WCONTINUED) == w->supervisor && WIFCONTINUED(status);
}

static bool is_still_stopped(const struct watched *w)
{
    return waitpid(w->supervisor, NULL, WCONTINUED | WNOHANG) == 0;
}

static bool was_killed(const struct watched *w)
{
    int status = 0;

    return waitpid(w->supervisor, &status, 0) == w->supervisor && WIFSIGNALED(status) &&
           WTERMSIG(status) == SIGKILL;
}

static void write_step(const struct watched *w)
{
    FILE *f = fopen(w->log, "a");

    assert_non_null(f);
    (void)fputs("step\n", f);
    assert_int_equal(fclose(f), 0);
}

static void a_silent_supervisor_is_continued_and_said(void **state)
{
    struct watched w;

    begin(&w);
    pass(&w, 1);
    watchdog_received(&w.local, w.now_ms);
    stop(&w);
    pass(&w, 14);
    assert_true(is_still_stopped(&w));
    assert_string_equal(w.local.problem, "");
    pass(&w, 2);
    assert_true(was_continued(&w));
    assert_non_null(strstr(w.local.problem, "does not answer"));
    assert_int_equal(w.changes, 1);
    stop(&w); /* again, and again */
    pass(&w, 15);
    assert_true(was_continued(&w));
    assert_int_equal(w.changes, 1); /* said once */

    watchdog_received(&w.local, w.now_ms);
    assert_string_equal(w.local.problem, "");
    assert_int_equal(w.changes, 2);
    finish(&w);
}

/* One that is continued answers within a millisecond, and the observed set is sent a moment later.
 */
static void what_was_said_stays_until_it_can_be_sent(void **state)
{
    struct watched w;

    begin(&w);
    pass(&w, 1);
    watchdog_received(&w.local, w.now_ms);
    stop(&w);
    pass(&w, 15);
    assert_true(was_continued(&w));
    watchdog_received(&w.local, w.now_ms);
    assert_non_null(strstr(w.local.problem, "does not answer"));
    pass(&w, 5);
    watchdog_received(&w.local, w.now_ms); /* of the next ping */
    assert_string_equal(w.local.problem, "");
    assert_int_equal(w.changes, 2);
    finish(&w);
}

/* Its ranks may be training: then there is no hurry. */
static void one_whose_ranks_make_no_steps_is_killed(void **state)
{
    struct watched w;

    begin(&w);
    pass(&w, 1);
    watchdog_received(&w.local, w.now_ms);
    write_step(&w);
    for (int i = 0; i < 12; i++) {
        pass(&w, 10);
        write_step(&w);
    }
    assert_int_equal(kill(w.supervisor, 0), 0);
    pass(&w, 58);
    assert_true(is_still_stopped(&w)); /* as "no news of it" */
    pass(&w, 4);
    assert_true(was_killed(&w));
    assert_non_null(strstr(w.local.problem, "killed"));
    finish(&w);
}

/* On a machine whose processors others take, it cannot answer: 40 of the first 70 s it was ready to
 * run and waited. */
static void one_that_gets_no_processor_has_so_much_longer(void **state)
{
    struct watched w;

    begin(&w);
    pass(&w, 1);
    watchdog_received(&w.local, w.now_ms);
    pass(&w, 20); /* from the first look on the numbers are the test's */
    for (int i = 0; i < 250; i++) {
        w.local.starve.seen_ms = w.now_ms + 200;
        w.local.starve.starved_ms = 40000;
        w.now_ms += 200;
        watch_supervisor(&w.local, w.now_ms);
    }
    assert_null(strstr(w.local.problem, "killed"));
    for (int i = 0; i < 5 * 31; i++) {
        w.local.starve.seen_ms = w.now_ms + 200;
        w.now_ms += 200;
        watch_supervisor(&w.local, w.now_ms);
    }
    assert_true(was_killed(&w));
    finish(&w);
}

static void a_kill_continues_it_at_once_and_kills_it_after_15_s(void **state)
{
    struct watched w;

    begin(&w);
    pass(&w, 1);
    watchdog_received(&w.local, w.now_ms);
    stop(&w);
    w.local.kill_wanted = true;
    pass(&w, 1);
    assert_true(was_continued(&w));
    pass(&w, 13);
    watchdog_received(&w.local, w.now_ms); /* it answers, but does not end */
    assert_int_equal(waitpid(w.supervisor, NULL, WNOHANG), 0);
    pass(&w, 2);
    assert_true(was_killed(&w));
    finish(&w);
}

/* heddled was stopped itself for an hour: that nothing was heard is no wonder. */
static void silence_does_not_count_while_heddled_was_stopped(void **state)
{
    struct watched w;

    begin(&w);
    pass(&w, 1);
    watchdog_received(&w.local, w.now_ms);
    w.now_ms += 3600 * 1000;
    pass(&w, 14);
    assert_string_equal(w.local.problem, "");
    pass(&w, 2);
    assert_string_not_equal(w.local.problem, "");
    finish(&w);
}

static void pings_go_out_every_5_s_to_those_that_know_them(void **state)
{
    struct watched w;
    int pings = 0;

    begin(&w);
    for (int i = 0; i < 100; i++) /* 20 s */
        pings += watch_wants_ping(&w.local, w.now_ms += 200);
    assert_int_equal(pings, 4);
    w.local.answers_pings = false;
    assert_false(watch_wants_ping(&w.local, w.now_ms + 60000));
    finish(&w);
}

RUN_CASES()
