/* The supervisor's limits in time, on a clock of the test: when silence is a hang, when a stop
 * becomes a kill. A rank is no process here, or one that only waits. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "daemon/supervisor/supervisor.h"

enum { RANKS = 2, SECOND = 1000, MINUTE = 60 * SECOND };

struct fixture {
    struct sup sup;
    struct sup_rank ranks[RANKS];
    int64_t now_ms;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    f->sup.ranks = f->ranks;
    f->sup.options.rank_count = RANKS;
    f->sup.options.world = RANKS;
    f->sup.daemon_fd = -1;
    f->sup.blamed = -1;
    f->now_ms = hd_clock_now_ms();
    assert_int_equal(hd_shm_control_new(RANKS, &f->sup.shm), HD_OK);
    for (int i = 0; i < RANKS; i++) {
        f->ranks[i].rank = i;
        f->ranks[i].link_fd = -1;
        f->ranks[i].pid = 1; /* it looks alive; nothing here sends a signal */
        f->ranks[i].heard_ms = f->now_ms;
        f->ranks[i].phase = HD_LINK_PHASE_TRAINING;
    }
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    hd_shm_control_free(f->sup.shm);
    free(f);
    return 0;
}

/* Both ranks have been silent since now_ms: it is a hang at limit_ms and not before. */
static void assert_limit(struct fixture *f, int64_t limit_ms)
{
    f->sup.ending = false;
    sup_look_for_hang(&f->sup, f->now_ms + limit_ms - 1);
    assert_false(f->sup.ending);
    sup_look_for_hang(&f->sup, f->now_ms + limit_ms);
    assert_true(f->sup.ending);
    assert_int_equal(f->sup.cause, HD_LINK_CAUSE_HANG);
}

static void learn(struct fixture *f, int64_t count, int64_t longest_ms)
{
    for (int i = 0; i < RANKS; i++) {
        f->ranks[i].heard_count = count;
        f->ranks[i].longest_silence_ms = longest_ms;
    }
}

static void what_is_not_learned_yet_has_half_an_hour(void **state)
{
    struct fixture *f = *state;

    learn(f, 15, 1);
    assert_limit(f, 30 * MINUTE);
}

/* 8 times the longest silence that was no hang, at least a minute. */
static void the_limit_is_learned(void **state)
{
    struct fixture *f = *state;

    learn(f, 16, 20 * SECOND);
    assert_limit(f, 160 * SECOND);
    learn(f, 16, 1 * SECOND);
    assert_limit(f, 1 * MINUTE);
}

static void a_checkpoint_has_more_patience_than_a_step(void **state)
{
    struct fixture *f = *state;

    learn(f, 100, 1 * SECOND);
    for (int i = 0; i < RANKS; i++)
        f->ranks[i].phase = HD_LINK_PHASE_CHECKPOINTING;
    assert_limit(f, 30 * MINUTE);
}

static void an_option_sets_the_limit_of_all_phases(void **state)
{
    struct fixture *f = *state;

    f->sup.options.hang_limit_ms = 700;
    learn(f, 100, 20 * SECOND);
    assert_limit(f, 700);
}

/* Nothing was heard while nothing could be: the silence begins when the machine is awake again. */
/* A barrier of the rank's own, or one of all in which it waits. */
static void enter(struct hd_comm *comm, bool alone)
{
    const int32_t all[] = {0, 1}, own = hd_comm_rank(comm);
    struct hd_comm_group *group;

    assert_int_equal(
        hd_comm_group(comm, alone ? "own" : "world", alone ? &own : all, alone ? 1 : RANKS, &group),
        HD_OK);
    assert_int_equal(hd_comm_barrier(group, hd_comm_stream(comm, HD_COMM_STREAM_GATHER)), HD_OK);
    assert_int_equal(hd_comm_poll(comm), HD_OK);
}

/* Rank 0 sleeps in its first operation; rank 1, the later stage, has done two and is stopped. The
 * count of operations would blame rank 0. */
static void of_stages_the_one_that_does_not_sleep_is_to_blame(void **state)
{
    struct fixture *f = *state;
    struct hd_comm *comm[RANKS];

    f->sup.job.pp = RANKS;
    f->sup.options.hang_limit_ms = 700;
    for (int i = 0; i < RANKS; i++) {
        f->ranks[i].pid = fork();
        if (f->ranks[i].pid == 0)
            for (;;)
                (void)pause();
        assert_int_equal(hd_comm_open_shm(hd_shm_control_fd(f->sup.shm),
                                          hd_shm_control_rank_fds(f->sup.shm), i, RANKS, MINUTE,
                                          &comm[i]),
                         HD_OK);
    }
    enter(comm[0], false);
    enter(comm[1], true);
    enter(comm[1], true);
    (void)kill(f->ranks[1].pid, SIGSTOP);
    (void)waitpid(f->ranks[1].pid, NULL, WUNTRACED);
    (void)usleep(100 * 1000); /* rank 0 has come to its pause */
    sup_look_for_hang(&f->sup, f->now_ms + 700);
    for (int i = 0; i < RANKS; i++) {
        (void)kill(f->ranks[i].pid, SIGKILL);
        (void)waitpid(f->ranks[i].pid, NULL, 0);
        hd_comm_free(comm[i]);
    }
    assert_int_equal(f->sup.blamed, 1);
    assert_non_null(strstr(f->sup.reason, "; its last collective was barrier #2 of group own"));
}

static void a_sleep_of_the_machine_is_forgiven(void **state)
{
    struct fixture *f = *state;

    learn(f, 16, 1 * SECOND);
    f->now_ms += 100 * MINUTE;
    sup_forgive_silence(&f->sup, f->now_ms);
    assert_limit(f, 1 * MINUTE);
}

static void look_for_stopped(struct fixture *f, int64_t after_ms)
{
    sup_look_for_stopped(&f->sup, f->now_ms + after_ms);
}

/* Waits until the child has taken the signal. */
static void tell_child(pid_t pid, int signal, int wait_for)
{
    assert_int_equal(kill(pid, signal), 0);
    assert_int_equal(waitpid(pid, NULL, wait_for), pid);
}

/* A job whose rank is stopped (kill -STOP, or a debugger that left) would run for half an hour
 * without a reason, which is what a set-up may take: it is told after 10 s, and is a hang after 60
 * s more. */
static void a_stopped_rank_is_told_and_then_hangs(void **state)
{
    struct fixture *f = *state;
    const pid_t pid = fork();

    if (pid == 0)
        for (;;)
            (void)pause();
    f->ranks[1].pid = pid;
    f->ranks[1].phase = HD_LINK_PHASE_SETUP;
    look_for_stopped(f, 29 * MINUTE); /* silent, as a long set-up is */
    assert_string_equal(f->sup.stopped, "");
    tell_child(pid, SIGSTOP, WUNTRACED);
    f->ranks[1].heard_ms = f->now_ms + 29 * MINUTE;
    look_for_stopped(f, 29 * MINUTE + 9 * SECOND); /* it may be stopped for a moment */
    assert_string_equal(f->sup.stopped, "");
    look_for_stopped(f, 29 * MINUTE + 10 * SECOND);
    assert_non_null(strstr(f->sup.stopped, "rank 1 (process "));
    tell_child(pid, SIGCONT, WCONTINUED);
    look_for_stopped(f, 40 * MINUTE);
    assert_string_equal(f->sup.stopped, "");
    tell_child(pid, SIGSTOP, WUNTRACED);
    look_for_stopped(f, 50 * MINUTE);
    look_for_stopped(f, 51 * MINUTE - 1);
    assert_false(f->sup.ending);
    look_for_stopped(f, 51 * MINUTE);
    assert_true(f->sup.ending);
    assert_int_equal(f->sup.cause, HD_LINK_CAUSE_HANG);
    assert_int_equal(f->sup.blamed, 1);
    tell_child(pid, SIGKILL, 0);
}

/* A second request does not give a stop more time; the first that names a time sets it. */
static void the_time_for_a_stop_is_set_once(void **state)
{
    struct fixture *f = *state;
    int64_t deadline_ms;

    for (int i = 0; i < RANKS; i++)
        f->ranks[i].pid = 0;
    sup_ask_stop(&f->sup, 0);
    assert_true(f->sup.stop_asked);
    assert_int_equal(f->sup.stop_deadline_ms, 0); /* without a limit */
    sup_ask_stop(&f->sup, 5 * SECOND);
    deadline_ms = f->sup.stop_deadline_ms;
    assert_in_range(deadline_ms, f->now_ms + 5 * SECOND, hd_clock_now_ms() + 5 * SECOND);
    sup_ask_stop(&f->sup, 100 * SECOND);
    assert_int_equal(f->sup.stop_deadline_ms, deadline_ms);
    sup_climb(&f->sup, deadline_ms - 1);
    assert_false(f->sup.ending);
    sup_climb(&f->sup, deadline_ms);
    assert_true(f->sup.ending);
    assert_int_equal(f->sup.cause, HD_LINK_CAUSE_USER);
}

/* Peers of a failed rank have a second to leave by themselves, then 1.5 s between the signals; at
 * once means that the first second is left out. What still exists 10 s later is given up. */
static void each_signal_has_its_time(void **state)
{
    struct fixture *f = *state;

    sup_begin_end(&f->sup, HD_LINK_CAUSE_RANK_EXIT, 1, false, "rank 1 died");
    assert_in_range(f->sup.term_at_ms, f->now_ms + 1000, hd_clock_now_ms() + 1000);
    assert_int_equal(f->sup.kill_at_ms, f->sup.term_at_ms + 1500);
    assert_int_equal(f->sup.give_up_at_ms, f->sup.kill_at_ms + 10000);
    sup_begin_end(&f->sup, HD_LINK_CAUSE_USER, -1, true,
                  "killed"); /* hurries, and does not explain */
    assert_in_range(f->sup.term_at_ms, f->now_ms, hd_clock_now_ms());
    assert_int_equal(f->sup.kill_at_ms, f->sup.term_at_ms + 1500);
    assert_int_equal(f->sup.cause, HD_LINK_CAUSE_RANK_EXIT);
    assert_int_equal(f->sup.blamed, 1);
    assert_string_equal(f->sup.reason, "rank 1 died");
}

int main(void)
{
#define with_ranks(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        with_ranks(what_is_not_learned_yet_has_half_an_hour),
        with_ranks(the_limit_is_learned),
        with_ranks(a_checkpoint_has_more_patience_than_a_step),
        with_ranks(an_option_sets_the_limit_of_all_phases),
        with_ranks(of_stages_the_one_that_does_not_sleep_is_to_blame),
        with_ranks(a_sleep_of_the_machine_is_forgiven),
        with_ranks(a_stopped_rank_is_told_and_then_hangs),
        with_ranks(the_time_for_a_stop_is_set_once),
        with_ranks(each_signal_has_its_time),
    };

    return cmocka_run_group_tests_name("silence", tests, NULL, NULL);
}
