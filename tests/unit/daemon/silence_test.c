/* The supervisor's limits in time, on a clock of the test: when silence is a hang, when a stop
 * becomes a kill. A rank is no process here, or one that only waits. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/supervisor/supervisor.h"
#include "tests/program/test.h"

enum { RANKS = 2, SECOND = 1000, MINUTE = 60 * SECOND };

struct fixture {
    struct sup sup;
    struct sup_rank ranks[RANKS];
    int64_t now_ms;
};

/* all_ms: of every phase; 0: as in a job file that says nothing. */
static void set_limits(struct fixture *f, int64_t all_ms)
{
    assert_int_equal(sup_limits_init(&f->sup.limits, &f->sup.job, RANKS, all_ms), HD_OK);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    f->sup.ranks = f->ranks;
    f->sup.options.rank_count = RANKS;
    f->sup.options.world = RANKS;
    f->sup.daemon_fd = -1;
    f->sup.blamed = f->sup.elsewhere = f->sup.hanging = f->sup.starving = -1;
    hd_job_set_defaults(&f->sup.job);
    f->sup.job.pp = 1;
    set_limits(f, 0);
    f->now_ms = hd_clock_now_ms();
    assert_int_equal(hd_shm_control_new(RANKS, &f->sup.shm), HD_OK);
    for (int i = 0; i < RANKS; i++) {
        f->ranks[i].rank = i;
        f->ranks[i].link_fd = -1;
        f->ranks[i].pid = 1; /* it looks alive; nothing here sends a signal */
        f->ranks[i].received_ms = f->now_ms;
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
    sup_check_hang(&f->sup, f->now_ms + limit_ms - 1);
    assert_false(f->sup.ending);
    sup_check_hang(&f->sup, f->now_ms + limit_ms);
    assert_true(f->sup.ending);
    assert_int_equal(f->sup.cause, HD_LINK_CAUSE_HANG);
}

static void learn(struct fixture *f, int64_t count, int64_t silence_ms)
{
    for (int64_t i = 0; i < count * RANKS; i++)
        sup_limits_learn(&f->sup.limits, HD_LINK_PHASE_TRAINING, silence_ms);
}

static void what_is_not_learned_yet_has_half_an_hour(void **state)
{
    struct fixture *f = *state;

    learn(f, 15, 1);
    assert_limit(f, 30 * MINUTE);
}

static void the_limit_is_that_of_the_phase(void **state)
{
    struct fixture *f = *state;

    learn(f, 16, 1 * SECOND);
    assert_limit(f, 1 * MINUTE);
    f->sup.job.hang_checkpoint = "2h";
    set_limits(f, 0);
    for (int i = 0; i < RANKS; i++)
        f->ranks[i].phase = HD_LINK_PHASE_CHECKPOINTING;
    assert_limit(f, 120 * MINUTE);
}

static void an_option_sets_the_limit_of_all_phases(void **state)
{
    struct fixture *f = *state;

    set_limits(f, 700);
    assert_limit(f, 700);
}

/* Goal: with hang.action tell nothing ends. Method: a report is held already, so that the event is
 * held behind it, in memory. */
static void a_hang_may_only_be_told(void **state)
{
    struct fixture *f = *state;

    f->sup.job.hang_action = HD_JOB_HANG_ACTION_TELL;
    f->sup.job.hang_step = "5m";
    set_limits(f, 0);
    f->sup.held_count = 1;
    sup_check_hang(&f->sup, f->now_ms + 5 * MINUTE - 1);
    assert_string_equal(f->sup.hang, "");
    sup_check_hang(&f->sup, f->now_ms + 5 * MINUTE);
    sup_check_hang(&f->sup, f->now_ms + 500 * MINUTE); /* told once */
    assert_false(f->sup.ending);
    assert_non_null(strstr(f->sup.hang, "gave no sign of life for 300 s while training"));
    assert_int_equal(f->sup.held_count, 2);
    assert_int_equal(f->sup.held[1].event.level, HD_LINK_LEVEL_HANG);
    assert_string_equal(f->sup.held[1].event.text, f->sup.hang);
    for (int i = 0; i < RANKS; i++)
        f->ranks[i].received_ms = f->now_ms + 500 * MINUTE;
    sup_check_hang(&f->sup, f->now_ms + 500 * MINUTE);
    assert_string_equal(f->sup.hang, "");
    assert_non_null(strstr(f->sup.held[2].event.text, "signs of life again"));
}

/* ---- ranks that wait ---- */

static struct hd_comm *join(struct fixture *f, int rank)
{
    struct hd_comm *comm;

    assert_int_equal(hd_comm_open_shm(hd_shm_control_fd(f->sup.shm),
                                      hd_shm_control_rank_fds(f->sup.shm), rank, RANKS, 200, &comm),
                     HD_OK);
    return comm;
}

/* A barrier of the rank's own, or one of all. */
static struct hd_comm_stream *enter(struct hd_comm *comm, bool alone)
{
    const int32_t all[] = {0, 1};
    struct hd_comm_stream *stream = hd_comm_get_stream(comm, HD_COMM_STREAM_GATHER);
    struct hd_comm_group *group;

    assert_int_equal(hd_comm_open_group(comm, "world", all, RANKS, &group), HD_OK);
    if (alone)
        assert_int_equal(
            hd_comm_open_group(comm, "own", &all[hd_comm_group_index(group)], 1, &group), HD_OK);
    assert_int_equal(hd_comm_barrier(group, stream), HD_OK);
    assert_int_equal(hd_comm_poll(comm), HD_OK);
    return stream;
}

/* Until the deadline of the endpoint: what it waited for stays told. */
static void wait_in_vain(struct hd_comm *comm)
{
    struct hd_comm_stream *stream = enter(comm, false);

    assert_int_equal(hd_comm_wait(stream, hd_comm_record(stream)), HD_TIMEOUT);
}

/* Rank 0 waits in its first operation; rank 1, a later stage, has done two and computes. The count
 * of operations would blame rank 0, and so would the silence. */
static void the_rank_that_waits_for_none_is_to_blame(void **state)
{
    struct fixture *f = *state;
    struct hd_comm *comm[RANKS] = {join(f, 0), join(f, 1)};

    f->sup.job.pp = RANKS;
    f->ranks[0].received_ms -= 5;
    set_limits(f, 700);
    enter(comm[1], true);
    enter(comm[1], true);
    wait_in_vain(comm[0]);
    sup_check_hang(&f->sup, f->now_ms + 700);
    for (int i = 0; i < RANKS; i++)
        hd_comm_free(comm[i]);
    assert_int_equal(f->sup.blamed, 1);
    assert_non_null(strstr(f->sup.reason, "rank 1 gave no sign of life for 0 s while training: it "
                                          "waits for no rank, but computes"));
    assert_non_null(strstr(f->sup.reason, "; its last collective was barrier #2 of group own"));
    assert_non_null(strstr(f->sup.reason, "; rank 0 waits for it: rank 0 in barrier #1 of group "
                                          "world (0 B), entered, for "));
}

/* Rank 0's report of its wait is old: it was stopped in it, and rank 1 waits for it. */
static void a_rank_that_was_stopped_while_it_waited_is_to_blame(void **state)
{
    struct fixture *f = *state;
    struct hd_comm *comm = join(f, 0);

    set_limits(f, 60 * SECOND);
    wait_in_vain(comm);
    sup_check_hang(&f->sup, f->now_ms + 60 * SECOND);
    hd_comm_free(comm);
    assert_int_equal(f->sup.blamed, 0);
}

/* A waiting rank gives up before the limit, and the other one is to blame. */
static void a_rank_that_gives_up_waiting_says_for_whom(void **state)
{
    struct fixture *f = *state;
    struct hd_comm *comm[RANKS] = {join(f, 0), join(f, 1)};

    wait_in_vain(comm[0]);
    f->ranks[0].received_ms = hd_clock_now_ms();
    f->ranks[0].has_failure = true;
    f->ranks[0].failure.status = HD_TIMEOUT;
    sup_blame_for_timeout(&f->sup, &f->ranks[0]);
    for (int i = 0; i < RANKS; i++)
        hd_comm_free(comm[i]);
    assert_true(f->sup.ending);
    assert_int_equal(f->sup.cause, HD_LINK_CAUSE_HANG);
    assert_int_equal(f->sup.blamed, 1);
}

/* Goal: the supervisor of the other node, which knows more of its rank, speaks first. Method: rank
 * 0 alone is here, and waits for rank 1. A limit of 1 s, so that the wait of 0.2 s is told freshly.
 */
static void a_rank_of_another_node_is_left_to_its_supervisor(void **state)
{
    struct fixture *f = *state;
    struct hd_comm *comm = join(f, 0);
    struct hd_link_report end;

    f->sup.options.rank_count = 1;
    wait_in_vain(comm);
    f->now_ms = hd_clock_now_ms() - 700; /* silent since before its wait was told last */
    f->ranks[0].received_ms = f->now_ms;
    set_limits(f, 1 * SECOND);
    sup_check_hang(&f->sup, f->now_ms + 1 * SECOND);
    sup_check_hang(&f->sup, f->now_ms + 1499);
    assert_false(f->sup.ending);
    sup_check_hang(&f->sup, f->now_ms + 1500);
    assert_true(f->sup.ending);
    sup_describe_end(&f->sup, 0, &end);
    hd_comm_free(comm);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_HANG);
    assert_int_equal(end.end.secondary, 1);
    assert_int_equal(end.end.first_rank, 1);
    assert_non_null(strstr(end.end.message, "rank 1, on another node, is waited for: no rank here "
                                            "gave a sign of life for 1 s while training; rank 0 "
                                            "waits for it: rank 0 in barrier #1 of group world"));
}

/* ---- ranks that get no processor ---- */

/* In so much of the silence since now_ms the rank waited for a processor. */
static void starve(struct fixture *f, int rank, int64_t starved_ms)
{
    f->ranks[rank].starve.received_ms = f->ranks[rank].received_ms;
    f->ranks[rank].starve.starved_ms = starved_ms;
}

/* Goal: only the time in which a rank could run is its silence. Method: both ranks are silent for
 * 2 minutes, which is twice the limit, and for 90 s of them they were ready to run; then the
 * machine has processors again, and 30 s later the limit is reached. */
static void a_rank_that_gets_no_processor_does_not_hang(void **state)
{
    struct fixture *f = *state;

    learn(f, 16, 1 * SECOND);
    for (int i = 0; i < RANKS; i++)
        starve(f, i, 90 * SECOND);
    sup_check_hang(&f->sup, f->now_ms + 2 * MINUTE);
    assert_false(f->sup.ending);
    assert_non_null(strstr(f->sup.hang, "rank 0 gets no processor: in 90 of the 120 s since its "
                                        "last sign of life it was ready to run"));
    assert_limit(f, 90 * SECOND + 1 * MINUTE);
    assert_non_null(strstr(f->sup.reason, "gave no sign of life for 150 s while training (it "
                                          "waited for a processor in 90 s of them)"));
}

/* Rank 0 waits for rank 1, which gets no processor: neither hangs. */
static void a_rank_that_waits_for_a_starved_one_does_not_hang(void **state)
{
    struct fixture *f = *state;
    struct hd_comm *comm = join(f, 0);

    set_limits(f, 700);
    wait_in_vain(comm);
    starve(f, 1, 600);
    sup_check_hang(&f->sup, f->now_ms + 1100);
    hd_comm_free(comm);
    assert_false(f->sup.ending);
}

/* The case above where waits are not seen, as on GPUs: rank 0 may wait for rank 1. */
static void a_silent_peer_of_a_starved_rank_does_not_hang(void **state)
{
    struct fixture *f = *state;

    learn(f, 16, 1 * SECOND);
    starve(f, 1, 110 * SECOND);
    sup_check_hang(&f->sup, f->now_ms + 2 * MINUTE);
    assert_false(f->sup.ending);
}

/* The endpoint's deadline is 200 ms; the parent knows of a reason to wait for 600 ms. */
static void a_wait_for_a_starved_rank_does_not_end(void **state)
{
    struct fixture *f = *state;
    struct hd_comm *comm = join(f, 0);
    const int64_t until_ms = hd_clock_now_ms() + 600;

    hd_shm_control_be_patient(f->sup.shm, until_ms);
    wait_in_vain(comm);
    assert_true(hd_clock_now_ms() >= until_ms);
    hd_comm_free(comm);
}

/* Nothing was heard while nothing could be: the silence begins when the machine is awake again. */
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
    sup_check_stopped(&f->sup, f->now_ms + after_ms);
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
    f->ranks[1].received_ms = f->now_ms + 29 * MINUTE;
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

RUN_EACH_CASE_WITH(set_up, tear_down)
