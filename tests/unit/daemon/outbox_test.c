/* The outbox: what was sent is sent again until it is acknowledged, and thrown away only then. */
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "daemon/agent/outbox.h"
#include "daemon/attempt/spool.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

/* A step report of a model without experts (spool_test.c): 4 fit into a segment, a fifth does not.
 */
enum { REPORT_BYTES = 12 + 6 * 8 + 2 * 8 + 4 + HD_METRICS_BYTES_MAX + 8 };
static const struct hd_spool_limits small = {.segment_bytes = 4 * REPORT_BYTES + 4};

struct fixture {
    char dir[TEMPORARY_BYTES];
    struct hd_spool_writer *writer;
    struct agent_outbox *outbox;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    temporary_dir(f->dir, "heddle-outbox");
    assert_int_equal(hd_spool_writer_open(f->dir, &small, &f->writer), HD_OK);
    assert_int_equal(agent_outbox_open(f->dir, &f->outbox), HD_OK);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    enum hd_status st;

    agent_outbox_close(f->outbox);
    hd_spool_writer_close(f->writer);
    st = hd_file_remove_tree(f->dir);
    free(f);
    return (int)st;
}

/* Reports of ranks 0 and 1 in turn, each rank's numbered first .. last. */
static void report(struct fixture *f, int64_t first, int64_t last)
{
    for (int64_t seq = first; seq <= last; seq++)
        for (int64_t rank = 0; rank < 2; rank++) {
            const struct hd_link_report r = {.kind = HD_LINK_STEP, .rank = rank, .seq = seq};

            assert_int_equal(hd_spool_append(f->writer, &r, false), HD_OK);
        }
}

static void expect_sent(struct fixture *f, int64_t rank, int64_t seq)
{
    struct hd_link_report r;

    assert_int_equal(agent_outbox_next(f->outbox, &r), HD_OK);
    assert_int_equal(r.rank, rank);
    assert_int_equal(r.seq, seq);
}

/* Both ranks' reports first .. last are sent now, and nothing else. */
static void expect_all_sent(struct fixture *f, int64_t first, int64_t last)
{
    struct hd_link_report r;

    for (int64_t seq = first; seq <= last; seq++)
        for (int64_t rank = 0; rank < 2; rank++)
            expect_sent(f, rank, seq);
    assert_int_equal(agent_outbox_next(f->outbox, &r), HD_UNAVAILABLE);
}

static int count_segments(const struct fixture *f, int segments_max)
{
    char path[TEMPORARY_BYTES + 32];
    int count = 0;

    for (int n = 1; n <= segments_max; n++) {
        (void)snprintf(path, sizeof path, "%s/spool/%08d", f->dir, n);
        count += hd_file_exists(path);
    }
    return count;
}

static void a_lost_connection_sends_again_what_was_not_acknowledged(void **state)
{
    struct fixture *f = *state;

    report(f, 1, 5);
    expect_all_sent(f, 1, 5);
    agent_outbox_ack(f->outbox, 0, 2);
    agent_outbox_ack(f->outbox, 1, 1);
    agent_outbox_rewind(f->outbox);
    expect_sent(f, 1, 2); /* rank 0 has 1 and 2, rank 1 has 1 */
    for (int64_t seq = 3; seq <= 5; seq++) {
        expect_sent(f, 0, seq);
        expect_sent(f, 1, seq);
    }
    assert_false(agent_outbox_is_empty(f->outbox));
}

/* An acknowledgement is of one rank's reports up to a number: it says nothing of another rank's. */
static void an_acknowledgement_is_of_one_rank(void **state)
{
    struct fixture *f = *state;

    report(f, 1, 3);
    expect_all_sent(f, 1, 3);
    agent_outbox_ack(f->outbox, 0, 3);
    assert_false(agent_outbox_is_empty(f->outbox));
    agent_outbox_rewind(f->outbox);
    expect_sent(f, 1, 1);
}

static void all_acknowledged_is_empty(void **state)
{
    struct fixture *f = *state;

    assert_true(agent_outbox_is_empty(f->outbox));
    report(f, 1, 3);
    assert_false(agent_outbox_is_empty(f->outbox)); /* not even sent */
    expect_all_sent(f, 1, 3);
    agent_outbox_ack(f->outbox, 0, 3);
    agent_outbox_ack(f->outbox, 1, 3);
    assert_true(agent_outbox_is_empty(f->outbox));
    agent_outbox_rewind(f->outbox);
    assert_true(agent_outbox_is_empty(f->outbox));
    report(f, 4, 4);
    expect_all_sent(f, 4, 4);
}

/* Segments 1 to 3 hold reports 1 and 2, 3 and 4, 5 of both ranks. */
static void the_disk_is_given_back_segment_by_segment(void **state)
{
    struct fixture *f = *state;

    report(f, 1, 5);
    expect_all_sent(f, 1, 5);
    assert_int_equal(count_segments(f, 5), 3);
    agent_outbox_ack(f->outbox, 0, 5);
    assert_int_equal(count_segments(f, 5), 3); /* rank 1's are all needed */
    agent_outbox_ack(f->outbox, 1, 1);
    assert_int_equal(count_segments(f, 5), 3);
    agent_outbox_ack(f->outbox, 1, 2);
    assert_int_equal(count_segments(f, 5), 2);
    agent_outbox_rewind(f->outbox);
    expect_sent(f, 1, 3); /* the file was still there */
    agent_outbox_ack(f->outbox, 1, 3);
    agent_outbox_rewind(f->outbox);
}

static void what_could_not_be_sent_comes_next(void **state)
{
    struct fixture *f = *state;

    report(f, 1, 3); /* two segments */
    for (int i = 0; i < 4; i++)
        expect_sent(f, i % 2, 1 + i / 2);
    expect_sent(f, 0, 3); /* the first of the second one */
    agent_outbox_unsend(f->outbox);
    agent_outbox_unsend(f->outbox);
    expect_sent(f, 1, 2);
    expect_sent(f, 0, 3);
    expect_sent(f, 1, 3);
}

static void so_many_may_be_on_their_way_and_no_more(void **state)
{
    struct fixture *f = *state;
    struct hd_link_report r;

    report(f, 1, AGENT_IN_FLIGHT_MAX / 2 + 1);
    for (int i = 0; i < AGENT_IN_FLIGHT_MAX; i++)
        expect_sent(f, i % 2, 1 + i / 2);
    assert_int_equal(agent_outbox_next(f->outbox, &r), HD_LIMIT);
    agent_outbox_ack(f->outbox, 0, 1);
    expect_sent(f, 0, AGENT_IN_FLIGHT_MAX / 2 + 1);
    assert_int_equal(agent_outbox_next(f->outbox, &r), HD_LIMIT);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
