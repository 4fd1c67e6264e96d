/* Goal: today's build understands an attempt of an older one: "Stopping or upgrading heddled
 * touches no rank" means that today's heddled reads the spool and the records of yesterday's
 * supervisor, and that each understands what the other says.
 *
 * The files are those of a recorded run (tests/golden/protocol_2/README.md), the messages are
 * written out in bytes: nothing of today's code has made them. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file.h"
#include "bench.h"
#include "daemon/attempt/attempt.h"
#include "daemon/attempt/spool.h"
#include "link/hello.h"
#include "link/link.h"
#include "tests/program/test.h"

enum { SLOW_MS = 20000 };

static void run_dir(char ret_dir[512])
{
    const char *source = getenv("HEDDLE_SOURCE_DIR");

    (void)snprintf(ret_dir, 512, "%s/tests/golden/protocol_2/run", source ? source : ".");
}

/* The job of the recording: 6 steps of 4 samples of 32 tokens; validations before the first step
 * and behind steps 3 and 6, checkpoints behind those two; two ranks, which end well. */
static void the_spool_of_an_older_build_is_read_whole(void **state)
{
    int64_t steps = 0, validations = 0, checkpoints = 0, exits = 0, seqs[3] = {0};
    struct hd_spool_reader *reader;
    struct hd_link_report r;
    enum hd_status st;
    char dir[512];

    run_dir(dir);
    assert_int_equal(hd_spool_reader_open(dir, &reader), HD_OK);
    while (!(st = hd_spool_read(reader, &r))) {
        assert_int_equal(r.job, 1);
        assert_int_equal(r.attempt, 1);
        assert_in_range(r.rank + 1, 0, 2);
        assert_int_equal(r.seq, ++seqs[r.rank + 1]); /* without a hole */
        if (r.kind == HD_LINK_STEP) {
            assert_int_equal(r.step.step, ++steps);
            assert_int_equal(r.step.metrics.tokens, 4 * 32);
            assert_int_equal(r.step.metrics.targets, 4 * 32);
            assert_int_equal(r.step.metrics.reward, 0); /* the last of its list */
            /* from ln 256 = 5.545 of a model of bytes that knows nothing, downwards */
            assert_true(r.step.metrics.loss > 5 && r.step.metrics.loss < 5.6);
            assert_true(r.step.metrics.step_ms > 0);
        } else if (r.kind == HD_LINK_VALIDATION) {
            assert_int_equal(r.validation.step, 3 * validations++);
        } else if (r.kind == HD_LINK_CHECKPOINT) {
            assert_int_equal(r.checkpoint.step, 3 * ++checkpoints);
        } else if (r.kind == HD_LINK_EXIT) {
            exits++;
        }
    }
    if (st != HD_UNAVAILABLE) /* no more */
        fail_msg("%s", hd_err_message());
    assert_int_equal(steps, 6);
    assert_int_equal(validations, 3);
    assert_int_equal(checkpoints, 2);
    assert_int_equal(exits, 2);
    hd_spool_reader_close(reader);
}

static void the_records_of_an_older_build_are_read(void **state)
{
    struct hd_link_report r;
    char dir[512];

    run_dir(dir);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(hd_attempt_read_exit(dir, rank, &r), HD_OK);
        assert_int_equal(r.rank, rank);
        assert_int_equal(r.exit.code, 0);
        assert_int_equal(r.exit.signal, 0);
    }
    assert_int_equal(hd_attempt_read_end(dir, &r), HD_OK);
    assert_int_equal(r.end.cause, HD_LINK_CAUSE_COMPLETED);
    assert_int_equal(r.end.first_rank, -1);
}

/* ---- messages of protocol 3 ---- */

/* size, type, zero, FNV-1a of type and payload; payload: 8 bytes a number, a text behind its size
 */
static const uint8_t old_hello[] = "\x21\0\0\0\x01\0\0\0\xdf\xb9\x2f\xdf"
                                   "\x02\0\0\0\0\0\0\0" /* protocol 2 .. */
                                   "\x03\0\0\0\0\0\0\0" /* .. to 3 */
                                   "\x05\0\0\0"
                                   "0.1.0"
                                   "\xff\xff\xff\xff\xff\xff\xff\xff"; /* no rank */
static const uint8_t old_ping[] = "\0\0\0\0\x09\0\0\0\xac\xf0\x87\x1b";
static const uint8_t old_stop[] = "\x08\0\0\0\x05\0\0\0\xce\x4d\x1d\x1a"
                                  "\x60\xea\0\0\0\0\0\0"; /* within 60000 ms */

static void say(int fd, const uint8_t *bytes, size_t size_bytes)
{
    assert_int_equal(send(fd, bytes, size_bytes, 0), (ssize_t)size_bytes);
}

static size_t hear(int fd, uint8_t bytes[HD_FRAME_BYTES_MAX])
{
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    ssize_t n;

    assert_int_equal(poll(&poller, 1, SLOW_MS), 1);
    n = recv(fd, bytes, HD_FRAME_BYTES_MAX, 0);
    assert_true(n >= HD_FRAME_HEAD_BYTES);
    return (size_t)n;
}

/* heddled of the older build has come back to a supervisor of this one: after a step back, or while
 * nodes are upgraded from programs that an administrator copies one by one. */
static void a_supervisor_understands_an_older_heddled(void **state)
{
    uint8_t bytes[HD_FRAME_BYTES_MAX];
    struct hd_link_report end;
    struct bench bench;
    int fd;

    bench_init(&bench);
    bench_mode(0, "wait");
    bench_start(&bench, 1, NULL);
    bench_wait_exists(&bench, HD_ATTEMPT_SOCKET, SLOW_MS);
    while (hd_frame_connect(bench.run_dir, HD_ATTEMPT_SOCKET, &fd))
        (void)usleep(10000);
    say(fd, old_hello, sizeof old_hello - 1);
    assert_true(hear(fd, bytes) >= 12 + 8 + 8 + 4 + 8);
    assert_int_equal(bytes[4], 1); /* a hello, of which 3 is a version: protocol_min <= 3 <= max */
    assert_true(bytes[12] <= 3 && bytes[20] >= 3);
    say(fd, old_ping, sizeof old_ping - 1);
    do
        assert_int_equal(hear(fd, bytes), 12 + 8); /* STATUS: one number */
    while (bytes[4] != 8);
    assert_in_range(bytes[12], 0, 1); /* starting or running */
    say(fd, old_stop, sizeof old_stop - 1);
    assert_int_equal(bench_wait(&bench, SLOW_MS), 0);
    bench_end(&bench, &end);
    assert_int_equal(end.end.cause, HD_LINK_CAUSE_USER);
    (void)close(fd);
    bench_done(&bench);
}

/* Goal: heddled takes an older supervisor's hello, and the supervisor understands its answer. */
static void the_hello_of_an_older_supervisor_is_taken(void **state)
{
    uint8_t bytes[HD_FRAME_BYTES_MAX];
    struct hd_hello hello;
    int fd[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd), 0);
    say(fd[1], old_hello, sizeof old_hello - 1);
    assert_int_equal(hd_hello_receive(fd[0], SLOW_MS, &hello), HD_OK);
    assert_int_equal(hello.protocol_min, 2);
    assert_int_equal(hello.protocol_max, 3);
    assert_string_equal(hello.build, "0.1.0");
    assert_int_equal(hd_hello_check(&hello, "heddle-supervisor"), HD_OK);
    bench_send(fd[0], HD_LINK_MSG_PING, -1);
    assert_int_equal(hear(fd[1], bytes), sizeof old_ping - 1);
    assert_memory_equal(bytes, old_ping, sizeof old_ping - 1);
    bench_send(fd[0], HD_LINK_MSG_STOP, 60000);
    assert_int_equal(hear(fd[1], bytes), sizeof old_stop - 1);
    assert_memory_equal(bytes, old_stop, sizeof old_stop - 1);
    (void)close(fd[0]);
    (void)close(fd[1]);
}

/* A rank whose reports its supervisor could not read says so, and ends. */
static void a_rank_refuses_a_supervisor_that_is_older(void **state)
{
    struct hd_link *link;
    int fd[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd), 0);
    say(fd[1], old_hello, sizeof old_hello - 1);
    assert_int_equal(hd_link_worker_open(fd[0], 0, 1, &link), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "build 0.1.0"));
    (void)close(fd[1]);
}

RUN_CASES()
