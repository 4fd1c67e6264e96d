/* The real supervisor over fake workers: what it records, whom it blames, what it leaves behind. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "bench.h"
#include "daemon/attempt/attempt.h"
#include "link/frame.h"
#include "link/link.h"
#include "tests/program/test.h"

enum {
    SLOW_MS = 20000,
    GONE_MS = 5000
}; /* GONE_MS is the promise; SLOW_MS only ends a hung test */

/* 16 MiB and a few words, of which the last 512 KiB and the first 256 KiB of a limit of 1 MiB stay.
 */
static void a_flood_of_a_log_is_bounded(void **state)
{
    struct stat info;
    struct bench bench;
    char path[256];

    bench_init(&bench);
    bench_mode(0, "chatty");
    bench_start(&bench, 1, "--log-limit", "1048576", NULL);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    (void)snprintf(path, sizeof path, "%s/logs/rank-0.log", bench.attempt_dir);
    assert_int_equal(stat(path, &info), 0);
    assert_true(info.st_size >= 16 << 20);
    assert_true((int64_t)info.st_blocks * 512 <= 1 << 20);
    bench_done(&bench);
}

static void ranks_that_finish_complete_the_attempt(void **state)
{
    struct hd_link_report report;
    struct bench bench;
    char *log;
    int fd;

    bench_init(&bench);
    bench_start(&bench, 2, NULL);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &report);
    assert_int_equal(report.end.cause, HD_LINK_CAUSE_COMPLETED);
    assert_int_equal(report.end.first_rank, -1);
    for (int rank = 0; rank < 2; rank++) {
        bench_exit(&bench, rank, &report);
        assert_int_equal(report.exit.code, 0);
        assert_int_equal(report.exit.signal, 0);
        assert_true(report.wall_ms > 0);
        /* steps are told by rank 0 for all */
        assert_int_equal(bench_spooled(&bench, HD_LINK_STEP, rank), rank == 0 ? 3 : 0);
        assert_int_equal(bench_spooled(&bench, HD_LINK_CHECKPOINT, rank), 1);
        assert_int_equal(bench_spooled(&bench, HD_LINK_EXIT, rank), 1);
    }
    log = bench_log(&bench, 1);
    assert_string_equal(log, "rank 1 of 2: finish, 3 threads\n");
    free(log);
    assert_int_equal(hd_frame_connect(bench.run_dir, HD_ATTEMPT_SOCKET, &fd), HD_UNAVAILABLE);
    bench_done(&bench);
}

/* Each rank sees its GPU and no other, whatever this process saw; what a person has set stays. */
static void a_rank_sees_its_own_gpu(void **state)
{
    struct bench bench;
    char *log;

    bench_init(&bench);
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "0,1,2", 1), 0);
    assert_int_equal(setenv("CUDA_MODULE_LOADING", "LAZY", 1), 0);
    assert_int_equal(setenv("NCCL_COMM_BLOCKING", "1", 1), 0); /* lib/comm decides */
    bench_start(&bench, 2, "--gpus", "GPU-b,GPU-a", NULL);
    assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
    assert_int_equal(unsetenv("CUDA_MODULE_LOADING"), 0);
    assert_int_equal(unsetenv("NCCL_COMM_BLOCKING"), 0);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    log = bench_log(&bench, 0);
    assert_non_null(strstr(log, "sees GPU-b, modules LAZY, order 1, blocking -1\n"));
    free(log);
    log = bench_log(&bench, 1);
    assert_non_null(strstr(log, "sees GPU-a, modules LAZY, order 1, blocking -1\n"));
    free(log);
    bench_done(&bench);
}

/* Returns what the supervisor writes about `ranks` on GPUs where modules are loaded so; free it. */
static char *said_of_modules(const char *loading, int ranks)
{
    const int saved = dup(STDERR_FILENO);
    struct hd_text text = {0};
    struct bench bench;
    char path[256];
    int fd;

    bench_init(&bench);
    (void)snprintf(path, sizeof path, "%s/said", bench.run_dir);
    fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(saved >= 0 && fd >= 0);
    assert_int_equal(setenv("CUDA_MODULE_LOADING", loading, 1), 0);
    assert_int_equal(setenv("HEDDLE_LOG", "warn", 1), 0);
    (void)fflush(stderr);
    (void)dup2(fd, STDERR_FILENO);
    bench_start(&bench, ranks, "--gpus", ranks == 2 ? "GPU-b,GPU-a" : "GPU-a", NULL);
    (void)dup2(saved, STDERR_FILENO);
    assert_int_equal(unsetenv("HEDDLE_LOG"), 0);
    assert_int_equal(unsetenv("CUDA_MODULE_LOADING"), 0);
    (void)close(saved);
    (void)close(fd);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    assert_int_equal(hd_file_read(path, 1 << 20, &text), HD_OK);
    bench_done(&bench);
    return text.data;
}

static void late_modules_beside_peers_are_warned_of(void **state)
{
    static const struct {
        const char *loading;
        int ranks;
        bool warned;
    } cases[] = {{"LAZY", 2, true}, {"EAGER", 2, false}, {"LAZY", 1, false}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *said = said_of_modules(cases[i].loading, cases[i].ranks);

        assert_int_equal(said && strstr(said, "CUDA_MODULE_LOADING is LAZY"), cases[i].warned);
        free(said);
    }
}

/* One rank has no peer whose collectives spin: nothing is loaded before it is needed. */
static void a_lone_rank_loads_kernels_when_they_are_needed(void **state)
{
    struct bench bench;
    char *log;

    bench_init(&bench);
    bench_start(&bench, 1, "--gpus", "GPU-c", NULL);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    log = bench_log(&bench, 0);
    assert_non_null(strstr(log, "sees GPU-c, modules (null), order (null), blocking (null)\n"));
    free(log);
    bench_done(&bench);
    bench_init(&bench);
    bench_start(&bench, 2, "--gpus", "GPU-a", NULL); /* one GPU for two ranks */
    assert_int_equal(WEXITSTATUS(bench_wait(&bench, SLOW_MS)), 2);
    bench_done(&bench);
}

/* One way to fail: rank 1 of 3 behaves so, rank 0 waits, rank 2 is stubborn. */
static void run_failure(const char *mode, struct bench *bench, struct hd_link_report *ret_end)
{
    int64_t start_ms;

    bench_init(bench);
    bench_mode(0, "wait");
    bench_mode(1, mode);
    bench_mode(2, "stubborn");
    bench_start(bench, 3, NULL);
    bench_wait_exists(bench, "rank-1.exit", SLOW_MS);
    start_ms = hd_clock_now_ms();
    assert_int_equal(bench_wait(bench, SLOW_MS), 0);
    assert_true(hd_clock_now_ms() - start_ms < GONE_MS);
    bench_end(bench, ret_end);
    assert_int_equal(ret_end->end.cause, HD_LINK_CAUSE_RANK_EXIT);
    assert_int_equal(ret_end->end.first_rank, 1);
}

/* The record of a rank's exit, and the same as the controller will get it. */
static void assert_exit(const struct bench *bench, int rank, const struct hd_link_exit *expected)
{
    struct hd_link_report recorded, spooled;

    bench_exit(bench, rank, &recorded);
    bench_spooled_exit(bench, rank, &spooled);
    assert_int_equal(recorded.job, 7);
    assert_int_equal(recorded.attempt, 1);
    assert_in_range(recorded.wall_ms, bench->began_ms, hd_clock_wall_ms());
    assert_int_equal(spooled.wall_ms, recorded.wall_ms);
    for (int i = 0; i < 2; i++) {
        const struct hd_link_exit *exit = i ? &spooled.exit : &recorded.exit;

        assert_int_equal(exit->code, expected->code);
        assert_int_equal(exit->signal, expected->signal);
        assert_string_equal(exit->operation, expected->operation);
        assert_string_equal(exit->message, expected->message);
    }
}

static void a_rank_that_dies_ends_its_peers_and_is_named(void **state)
{
    struct hd_link_report end;
    struct bench bench;

    run_failure("killself", &bench, &end);
    assert_int_equal(end.end.signal, SIGKILL);
    assert_int_equal(end.end.code, 0);
    assert_non_null(strstr(end.end.message, "out of memory"));
    assert_exit(&bench, 1, &(struct hd_link_exit){.signal = SIGKILL}); /* it left no words */
    assert_exit(&bench, 0, &(struct hd_link_exit){.signal = SIGTERM});
    assert_exit(&bench, 2, &(struct hd_link_exit){.signal = SIGKILL}); /* it ignored SIGTERM */
    bench_done(&bench);
}

static void a_status_other_than_zero_is_a_failure(void **state)
{
    struct hd_link_report end;
    struct bench bench;

    run_failure("exit3", &bench, &end);
    assert_int_equal(end.end.code, 3);
    assert_int_equal(end.end.signal, 0);
    assert_exit(&bench, 1, &(struct hd_link_exit){.code = 3});
    assert_non_null(strstr(end.end.message, "/logs/rank-1.log"));
    assert_int_equal(end.end.bad_input, 0);
    bench_done(&bench);
}

static void bad_input_is_told_apart(void **state)
{
    struct hd_link_report end;
    struct bench bench;

    run_failure("badinput", &bench, &end);
    assert_int_equal(end.end.bad_input, 1);
    assert_exit(&bench, 1, &(struct hd_link_exit){.code = HD_LINK_EXIT_BAD_INPUT});
    bench_done(&bench);
}

static void the_last_words_of_a_rank_reach_the_end(void **state)
{
    struct hd_link_report end;
    struct bench bench;

    run_failure("fail", &bench, &end);
    assert_string_equal(end.end.message, "the disk is full");
    assert_string_equal(end.end.operation, "all_reduce");
    assert_exit(&bench, 1,
                &(struct hd_link_exit){.code = HD_LINK_EXIT_FAILED,
                                       .operation = "all_reduce",
                                       .message = "the disk is full"});
    bench_done(&bench);
}

static void a_stop_lets_ranks_write_a_checkpoint(void **state)
{
    struct hd_link_report end;
    struct bench bench;
    int fd;

    bench_init(&bench);
    bench_mode(0, "wait");
    bench_mode(1, "wait");
    bench_start(&bench, 2, NULL);
    fd = bench_connect(&bench, SLOW_MS);
    bench_send(fd, HD_LINK_MSG_STOP, 10000);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_USER);
    assert_int_equal(end.end.first_rank, -1);
    assert_int_equal(bench_spooled(&bench, HD_LINK_CHECKPOINT, -1), 2);
    (void)close(fd);
    bench_done(&bench);
}

/* Starts two ranks that behave so, and sends the supervisor SIGTERM when they train. */
static void shut_down(struct bench *bench, const char *mode)
{
    bench_init(bench);
    bench_mode(0, mode);
    bench_mode(1, mode);
    bench_start(bench, 2, NULL);
    while (bench_spooled(bench, HD_LINK_STEP, 0) < 1)
        (void)usleep(10000);
    (void)kill(bench->supervisor, SIGTERM);
}

/* A shutdown as by systemd before the machine goes down. The job is not stopped by it. */
static void a_shutdown_lets_ranks_write_a_checkpoint(void **state)
{
    struct hd_link_report end;
    struct bench bench;

    shut_down(&bench, "wait");
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_NODE_LOST);
    assert_string_equal(end.end.message, "node n1 ended its supervisor, after a checkpoint");
    assert_int_equal(bench_spooled(&bench, HD_LINK_CHECKPOINT, -1), 2);
    bench_done(&bench);
}

static void a_second_signal_waits_for_nothing(void **state)
{
    struct hd_link_report end;
    struct bench bench;

    shut_down(&bench, "saved"); /* which hears of no stop */
    (void)usleep(100000);       /* two signals at once would be one */
    (void)kill(bench.supervisor, SIGTERM);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_NODE_LOST);
    assert_string_equal(end.end.message, "node n1 ended its supervisor (signal 15)");
    bench_done(&bench);
}

/* The request comes before the rank can be told of it, which is then the first that it hears. */
static void a_rank_that_is_late_hears_of_the_stop(void **state)
{
    struct hd_link_report end;
    struct bench bench;
    int fd;

    bench_init(&bench);
    bench_mode(0, "late");
    bench_start(&bench, 1, NULL);
    fd = bench_connect(&bench, SLOW_MS);
    bench_send(fd, HD_LINK_MSG_STOP, 5000);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_USER);
    assert_string_equal(end.end.message, "stopped after a checkpoint, as requested");
    assert_int_equal(bench_spooled(&bench, HD_LINK_CHECKPOINT, 0), 1);
    (void)close(fd);
    bench_done(&bench);
}

/* SIGTERM waits until a stopped process goes on, so it is made to: it can end in order. */
static void a_stopped_rank_is_ended_in_order(void **state)
{
    struct hd_link_report exit;
    struct bench bench;

    bench_init(&bench);
    bench_mode(0, "exit3");
    bench_mode(1, "frozen");
    bench_start(&bench, 2, NULL);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_exit(&bench, 1, &exit);
    assert_int_equal(exit.exit.signal, SIGTERM);
    bench_done(&bench);
}

static void a_stop_that_is_not_followed_becomes_a_kill(void **state)
{
    struct hd_link_report end;
    struct bench bench;
    int fd;

    bench_init(&bench);
    bench_mode(0, "stubborn");
    bench_start(&bench, 1, NULL);
    fd = bench_connect(&bench, SLOW_MS);
    bench_send(fd, HD_LINK_MSG_STOP, 300);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_USER);
    assert_non_null(strstr(end.end.message, "did not stop"));
    (void)close(fd);
    bench_done(&bench);
}

static void a_kill_takes_what_ranks_started_along(void **state)
{
    struct hd_link_report end;
    struct bench bench;
    pid_t pids[16];
    int fd;

    bench_init(&bench);
    bench_mode(0, "parent");
    bench_start(&bench, 1, NULL);
    fd = bench_connect(&bench, SLOW_MS);
    while (bench_processes(&bench, pids) < 2) /* the rank and its runaway child */
        (void)usleep(5000);
    bench_send(fd, HD_LINK_MSG_KILL, -1);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_USER);
    assert_int_equal(bench_processes(&bench, NULL), 0);
    (void)close(fd);
    bench_done(&bench);
}

static void a_runaway_is_killed_after_a_good_end_too(void **state)
{
    struct hd_link_report end;
    struct bench bench;
    int fd;

    bench_init(&bench);
    bench_mode(0, "parent");
    bench_start(&bench, 1, NULL);
    fd = bench_connect(&bench, SLOW_MS);
    while (bench_processes(&bench, NULL) < 2)
        (void)usleep(5000);
    bench_send(fd, HD_LINK_MSG_STOP, 10000);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &end);
    assert_string_equal(end.end.message, "stopped after a checkpoint, as requested");
    (void)close(fd);
    bench_done(&bench);
}

static void a_silent_rank_hangs(void **state)
{
    struct hd_link_report end;
    struct bench bench;

    bench_init(&bench);
    bench_mode(0, "wait");
    bench_mode(1, "silent");
    bench_start(&bench, 2, "--silence-limit-ms", "700", NULL);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_HANG);
    assert_int_equal(end.end.first_rank, 1);
    assert_non_null(strstr(end.end.message, "no sign of life"));
    assert_non_null(strstr(end.end.message, "while training"));
    bench_done(&bench);
}

/* Else the long patience that a checkpoint needs would stay for all of the training after it. */
static void a_step_ends_the_patience_of_a_checkpoint(void **state)
{
    struct hd_link_report end;
    struct bench bench;

    bench_init(&bench);
    bench_mode(0, "saved");
    bench_start(&bench, 1, "--silence-limit-ms", "700", NULL);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_HANG);
    assert_non_null(strstr(end.end.message, "while training"));
    bench_done(&bench);
}

static void a_worker_that_is_not_there_is_a_failed_launch(void **state)
{
    struct hd_link_report end;
    struct bench bench;

    bench_init(&bench);
    bench_start(&bench, 2, "--worker", "/dev/null", NULL);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_LAUNCH_FAILED);
    assert_non_null(strstr(end.end.message, "cannot run /dev/null: Permission denied"));
    bench_done(&bench);
}

static void an_attempt_runs_once(void **state)
{
    struct hd_link_report first, second;
    struct bench bench;

    bench_init(&bench);
    bench_start(&bench, 1, NULL);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &first);
    bench_start(&bench, 1, NULL);
    assert_int_not_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &second);
    assert_int_equal(first.wall_ms, second.wall_ms);
    assert_int_equal(bench_spooled(&bench, HD_LINK_EXIT, -1), 1);
    bench_done(&bench);
}

/* Goal: heddled may come and go. Method: two "heddleds" in a row vanish without a word. */
static void the_supervisor_outlives_those_who_listen(void **state)
{
    uint8_t bytes[HD_FRAME_BYTES_MAX];
    struct hd_link_report end;
    struct hd_frame frame;
    struct bench bench;
    int fd, steps;

    bench_init(&bench);
    bench_mode(0, "wait");
    bench_start(&bench, 1, NULL);
    for (int i = 0; i < 2; i++) {
        fd = bench_connect(&bench, SLOW_MS);
        assert_int_equal(hd_frame_receive(fd, bytes, 5000, &frame), HD_OK);
        assert_int_equal(frame.type, HD_LINK_MSG_STATUS);
        (void)close(fd);
    }
    steps = bench_spooled(&bench, HD_LINK_STEP, 0);
    (void)usleep(300000);
    assert_true(bench_spooled(&bench, HD_LINK_STEP, 0) > steps);
    fd = bench_connect(&bench, SLOW_MS);
    bench_send(fd, HD_LINK_MSG_STOP, 10000);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_USER);
    (void)close(fd);
    bench_done(&bench);
}

/* The rank is stopped, so that nothing else is told. */
static void a_ping_is_answered(void **state)
{
    uint8_t bytes[HD_FRAME_BYTES_MAX];
    struct hd_frame frame;
    struct bench bench;
    int fd;

    bench_init(&bench);
    bench_mode(0, "frozen");
    bench_start(&bench, 1, NULL);
    fd = bench_connect(&bench, SLOW_MS);
    while (hd_frame_receive(fd, bytes, 500, &frame) == HD_OK)
        continue;
    bench_send(fd, HD_LINK_MSG_PING, 0);
    assert_int_equal(hd_frame_receive(fd, bytes, 5000, &frame), HD_OK);
    assert_int_equal(frame.type, HD_LINK_MSG_STATUS);
    bench_send(fd, HD_LINK_MSG_KILL, 0);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    (void)close(fd);
    bench_done(&bench);
}

static void a_newer_listener_takes_the_place_of_the_older(void **state)
{
    uint8_t bytes[HD_FRAME_BYTES_MAX];
    struct hd_frame frame;
    struct bench bench;
    enum hd_status st;
    int old_fd, new_fd;

    bench_init(&bench);
    bench_mode(0, "wait");
    bench_start(&bench, 1, NULL);
    old_fd = bench_connect(&bench, SLOW_MS);
    new_fd = bench_connect(&bench, SLOW_MS);
    do
        st = hd_frame_receive(old_fd, bytes, 5000, &frame);
    while (!st);
    assert_int_equal(st, HD_ABORTED);
    bench_send(new_fd, HD_LINK_MSG_KILL, -1);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    (void)close(old_fd);
    (void)close(new_fd);
    bench_done(&bench);
}

/* Goal: nobody trains on unseen. Method: kill -9 of the supervisor; the ranks must be gone, the
 * runaway of a rank when heddled concludes, and the end must be on record. */
static void ranks_die_with_a_killed_supervisor_and_the_end_is_declared(void **state)
{
    int64_t deadline_ms = hd_clock_now_ms() + SLOW_MS;
    struct hd_link_report end, again;
    struct bench bench;
    enum hd_status st;

    bench_init(&bench);
    bench_mode(0, "wait");
    bench_mode(1, "stubborn");
    bench_start(&bench, 2, NULL);
    while (bench_processes(&bench, NULL) < 2)
        (void)usleep(5000);
    assert_int_equal(hd_attempt_conclude(bench.run_dir, 7, 1, false, &end), HD_CONFLICT);
    (void)kill(bench.supervisor, SIGKILL);
    (void)bench_wait(&bench, SLOW_MS);
    do
        st = hd_attempt_conclude(bench.run_dir, 7, 1, false, &end);
    while (st == HD_TIMEOUT && hd_clock_now_ms() < deadline_ms);
    assert_int_equal(st, HD_OK);
    assert_int_equal(bench_processes(&bench, NULL), 0);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_RANK_EXIT);
    assert_non_null(strstr(end.end.message, "heddle-supervisor"));
    assert_int_equal(hd_attempt_conclude(bench.run_dir, 7, 1, false, &again), HD_OK);
    assert_int_equal(again.wall_ms, end.wall_ms); /* what is written is never replaced */
    assert_true(bench_spooled(&bench, HD_LINK_STEP, 0) >= 0); /* still readable */
    bench_done(&bench);
}

static void a_supervisor_that_never_came_up_is_a_failed_launch(void **state)
{
    struct hd_link_report end;
    struct bench bench;

    bench_init(&bench);
    assert_int_equal(hd_attempt_conclude(bench.run_dir, 7, 1, false, &end), HD_OK);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_LAUNCH_FAILED);
    bench_start(&bench, 1, NULL); /* one that comes late finds that it is over */
    assert_int_not_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_done(&bench);
}

/* Goal: --parent ties the supervisor to its caller. Method: a child starts it and is killed. */
static void a_tied_supervisor_ends_with_its_parent(void **state)
{
    struct hd_link_report end;
    struct bench bench;
    char number[16];
    pid_t parent;

    bench_init(&bench);
    bench_mode(0, "wait");
    parent = fork();
    assert_true(parent >= 0);
    if (parent == 0) {
        (void)snprintf(number, sizeof number, "%d", (int)getpid());
        bench_start(&bench, 1, "--parent", number, NULL);
        for (;;)
            (void)pause();
    }
    while (bench_processes(&bench, NULL) < 1)
        (void)usleep(5000);
    (void)kill(parent, SIGKILL);
    (void)waitpid(parent, NULL, 0);
    bench_wait_exists(&bench, HD_ATTEMPT_END_FILE, SLOW_MS);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_NODE_LOST);
    bench_done(&bench);
}

static void ranks_of_one_node_meet_without_anybody_else(void **state)
{
    struct hd_link_report end;
    struct bench bench;
    char *log;

    bench_init(&bench);
    for (int rank = 0; rank < 3; rank++)
        bench_mode(rank, "meet");
    bench_start(&bench, 3, NULL);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_COMPLETED);
    log = bench_log(&bench, 2);
    assert_non_null(strstr(log, "0.0 1.0 2.0 0.1 1.1 2.1 met"));
    free(log);
    bench_done(&bench);
}

/* ---- an attempt whose ranks 2 and 3 are on another node ---- */

static void run_share(const char *mode_0, const char *mode_1, struct bench *bench,
                      struct hd_link_report *ret_end)
{
    bench_init(bench);
    bench_mode(0, mode_0);
    bench_mode(1, mode_1);
    bench_start(bench, 2, "--world", "4", "--data-address", "127.0.0.1", "--silence-limit-ms",
                "4000", NULL);
    assert_int_equal(bench_wait(bench, 3 * SLOW_MS), 0);
    bench_end(bench, ret_end);
}

static void an_echo_of_a_failure_elsewhere_blames_nobody_here(void **state)
{
    struct hd_link_report end;
    struct bench bench;

    run_share("echo", "wait", &bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_RANK_EXIT);
    assert_int_equal(end.end.secondary, 1);
    assert_int_equal(end.end.first_rank, -1); /* nor rank 1, which was ended by SIGTERM */
    assert_string_equal(end.end.message, "rank 2 on n2 left");
    bench_done(&bench);
}

static void a_rank_that_failed_by_itself_is_no_echo(void **state)
{
    struct hd_link_report end;
    struct bench bench;

    assert_int_equal(setenv("FAKE_ECHO_LAST", "1", 1), 0);
    run_share("echo", "exit3", &bench, &end);
    assert_int_equal(unsetenv("FAKE_ECHO_LAST"), 0);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_RANK_EXIT);
    assert_int_equal(end.end.secondary, 0);
    assert_int_equal(end.end.first_rank, 1);
    assert_int_equal(end.end.code, 3);
    bench_done(&bench);
}

/* The other node was told first, and the request came with the step. */
static void ranks_may_stop_because_others_were_told_to(void **state)
{
    struct hd_link_report end;
    struct bench bench;

    run_share("stopped", "stopped", &bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_USER);
    assert_int_equal(end.end.first_rank, -1);
    bench_done(&bench);
}

static void ranks_that_sleep_may_wait_for_those_of_another_node(void **state)
{
    struct hd_link_report end;
    struct bench bench;

    run_share("silent", "silent", &bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_HANG);
    assert_int_equal(end.end.secondary, 1);
    assert_int_equal(end.end.first_rank, -1);
    bench_done(&bench);
    run_share("silent", "frozen", &bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_HANG);
    assert_int_equal(end.end.secondary, 0);
    assert_int_equal(end.end.first_rank, 1);
    bench_done(&bench);
}

RUN_CASES()
