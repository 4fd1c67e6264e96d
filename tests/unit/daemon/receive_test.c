/* Goal: the supervisor checks what its ranks send, frame by frame. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file.h"
#include "daemon/supervisor/supervisor.h"
#include "link/frame.h"
#include "link/hello.h"
#include "link/link.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

enum { RANKS = 2 };

struct fixture {
    char dir[TEMPORARY_BYTES];
    struct sup sup;
    struct sup_rank ranks[RANKS];
    int fds[RANKS]; /* the ranks' ends */
    struct hd_spool_reader *reader;
};

static int set_up(void **state)
{
    const struct hd_spool_limits limits = {0};
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    temporary_dir(f->dir, "heddle-hear");
    f->sup.ranks = f->ranks;
    f->sup.options.rank_count = RANKS;
    f->sup.options.world = RANKS;
    f->sup.daemon_fd = -1;
    assert_int_equal(hd_spool_writer_open(f->dir, &limits, &f->sup.spool), HD_OK);
    assert_int_equal(hd_spool_reader_open(f->dir, &f->reader), HD_OK);
    for (int i = 0; i < RANKS; i++) {
        int pair[2];

        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        f->ranks[i] = (struct sup_rank){.rank = i, .link_fd = pair[0], .put_round = -1};
        f->fds[i] = pair[1];
    }
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    enum hd_status st;

    for (int i = 0; i < RANKS; i++) {
        (void)close(f->fds[i]);
        if (f->ranks[i].link_fd >= 0)
            (void)close(f->ranks[i].link_fd);
    }
    hd_spool_reader_close(f->reader);
    hd_spool_writer_close(f->sup.spool);
    st = hd_file_remove_tree(f->dir);
    free(f);
    return (int)st;
}

static void greet(struct fixture *f, int rank)
{
    struct hd_hello hello;

    assert_int_equal(hd_hello_send(f->fds[rank], rank, 1000), HD_OK);
    sup_receive_from_rank(&f->sup, &f->ranks[rank]);
    assert_int_equal(hd_hello_receive(f->fds[rank], 1000, &hello), HD_OK);
    assert_true(f->ranks[rank].greeted);
}

static void put(struct fixture *f, int rank, int64_t who, int64_t round)
{
    uint8_t bytes[256];
    struct hd_pack pack;

    hd_pack_begin(&pack, bytes, sizeof bytes);
    hd_pack_int(&pack, who);
    hd_pack_int(&pack, round);
    hd_pack_bytes(&pack, "card", 4);
    assert_int_equal(hd_frame_send(f->fds[rank], bytes, hd_pack_end(&pack, HD_LINK_MSG_PUT), 1000),
                     HD_OK);
    sup_receive_from_rank(&f->sup, &f->ranks[rank]);
}

static void send_report(struct fixture *f, int rank, enum hd_link_kind kind)
{
    const struct hd_link_report report = {.kind = kind, .rank = rank};
    uint8_t bytes[HD_FRAME_BYTES_MAX];
    const size_t n = hd_link_report_encode(&report, bytes, sizeof bytes);

    assert_int_equal(hd_frame_send(f->fds[rank], bytes, n, 1000), HD_OK);
    sup_receive_from_rank(&f->sup, &f->ranks[rank]);
}

static int count_spooled(struct fixture *f)
{
    struct hd_link_report report;
    int count = 0;

    while (hd_spool_read(f->reader, &report) == HD_OK)
        count++;
    return count;
}

/* Values of a round are kept by rank and sent to all when the last one is there. A round too early,
 * or one that was, would mix the values of two rounds. */
static void a_rendezvous_takes_round_after_round(void **state)
{
    struct fixture *f = *state;
    uint8_t bytes[HD_FRAME_BYTES_MAX];
    struct hd_frame frame;

    greet(f, 0);
    greet(f, 1);
    put(f, 0, 0, 1); /* too early */
    put(f, 0, 1, 0); /* in the name of another rank */
    assert_int_equal(f->ranks[0].put_round, -1);
    put(f, 0, 0, 0);
    assert_int_equal(f->ranks[0].put_round, 0);
    put(f, 0, 0, 0); /* once more */
    put(f, 0, 0, 2);
    assert_int_equal(f->ranks[0].put_round, 0);
    assert_int_equal(hd_frame_receive(f->fds[0], bytes, 0, &frame), HD_UNAVAILABLE);
    put(f, 1, 1, 0);
    for (int rank = 0; rank < RANKS; rank++)
        for (int value = 0; value < RANKS; value++) {
            struct hd_unpack unpack;

            assert_int_equal(hd_frame_receive(f->fds[rank], bytes, 1000, &frame), HD_OK);
            assert_int_equal(frame.type, HD_LINK_MSG_VALUE);
            hd_unpack_begin(&unpack, &frame);
            assert_int_equal(hd_unpack_int(&unpack), value);
            assert_int_equal(hd_unpack_int(&unpack), 0);
        }
}

/* The supervisor alone knows how a rank and an attempt ended. */
static void a_rank_reports_no_ends(void **state)
{
    struct fixture *f = *state;

    greet(f, 0);
    send_report(f, 0, HD_LINK_EXIT);
    send_report(f, 0, HD_LINK_END);
    assert_int_equal(count_spooled(f), 0);
    send_report(f, 0, HD_LINK_CHECKPOINT);
    assert_int_equal(count_spooled(f), 1);
}

static void nothing_counts_before_the_hello(void **state)
{
    struct fixture *f = *state;

    send_report(f, 0, HD_LINK_CHECKPOINT);
    put(f, 0, 0, 0);
    assert_int_equal(count_spooled(f), 0);
    assert_int_equal(f->ranks[0].put_round, -1);
}

/* Rank 0 tells what is equal on all ranks; of the others it is a sign of life. */
static void rank_0_tells_for_all(void **state)
{
    struct fixture *f = *state;

    greet(f, 0);
    greet(f, 1);
    send_report(f, 1, HD_LINK_STEP);
    send_report(f, 1, HD_LINK_VALIDATION);
    assert_int_equal(count_spooled(f), 0);
    assert_int_equal(f->ranks[1].phase, HD_LINK_PHASE_TRAINING);
    send_report(f, 0, HD_LINK_STEP);
    send_report(f, 0, HD_LINK_VALIDATION);
    assert_int_equal(count_spooled(f), 2);
}

static void expect_problem(int fd, const char *expected)
{
    uint8_t bytes[HD_FRAME_BYTES_MAX];
    char text[HD_LINK_TEXT_MAX];
    struct hd_unpack unpack;
    struct hd_frame frame;

    do
        assert_int_equal(hd_frame_receive(fd, bytes, 1000, &frame), HD_OK);
    while (frame.type != HD_LINK_MSG_PROBLEM);
    hd_unpack_begin(&unpack, &frame);
    hd_unpack_text(&unpack, text, sizeof text);
    assert_int_equal(hd_unpack_end(&unpack), HD_OK);
    assert_string_equal(text, expected);
}

/* heddled hears at once what the ranks wait for, not by the spool, which is on the same disk; and
 * once more when it connects again. */
static void what_ranks_wait_for_is_passed_on(void **state)
{
    const struct hd_link_report waits = {.kind = HD_LINK_PROBLEM, .problem = {"waits: no space"}};
    struct fixture *f = *state;
    uint8_t bytes[HD_FRAME_BYTES_MAX];
    int pair[2], fd;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    f->sup.daemon_fd = pair[0];
    greet(f, 0);
    assert_int_equal(
        hd_frame_send(f->fds[0], bytes, hd_link_report_encode(&waits, bytes, sizeof bytes), 1000),
        HD_OK);
    sup_receive_from_rank(&f->sup, &f->ranks[0]);
    expect_problem(pair[1], "waits: no space");
    assert_int_equal(count_spooled(f), 0);
    (void)close(pair[1]);

    assert_int_equal(hd_frame_listen(f->dir, "sock", (uid_t)-1, &f->sup.listen_fd), HD_OK);
    assert_int_equal(hd_frame_connect(f->dir, "sock", &fd), HD_OK);
    sup_accept_daemon(&f->sup);
    expect_problem(fd, "waits: no space");
    sup_set_stopped(&f->sup, "rank 1 is stopped"); /* before what the ranks say */
    expect_problem(fd, "rank 1 is stopped");
    sup_set_stopped(&f->sup, "");
    expect_problem(fd, "waits: no space");
    send_report(f, 0, HD_LINK_PROBLEM); /* "": it is over */
    expect_problem(fd, "");
    (void)close(fd);
    (void)close(f->sup.daemon_fd);
    (void)close(f->sup.listen_fd);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
