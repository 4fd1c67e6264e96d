/* The spool: in order, bounded, whole after a crash, and thrown away only when acknowledged. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "daemon/attempt/spool.h"
#include "tests/program/test.h"

struct fixture {
    char dir[64];
    struct hd_spool_writer *writer;
    struct hd_spool_reader *reader;
};

/* A step report of a model without experts: 12 (head) + 6 * 8 (stamp) + 2 * 8 (step, number of
 * metrics)
 * + 4 (their size) and the metrics + 8 (the number of loads, 0). 4 fit into a segment, a fifth does
 * not. */
enum { REPORT_BYTES = 12 + 6 * 8 + 2 * 8 + 4 + HD_METRICS_BYTES_MAX + 8 };
static const struct hd_spool_limits small = {.segment_bytes = 4 * REPORT_BYTES + 4,
                                             .segments_max = 3};

static int set_up(void **state)
{
    static struct fixture f;

    f = (struct fixture){.dir = "/tmp/heddle-spool-XXXXXX"};
    assert_non_null(mkdtemp(f.dir));
    assert_int_equal(hd_spool_reader_open(f.dir, &f.reader), HD_OK);
    assert_int_equal(hd_spool_writer_open(f.dir, &small, &f.writer), HD_OK);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    hd_spool_reader_close(f->reader);
    hd_spool_writer_close(f->writer);
    return hd_file_remove_tree(f->dir);
}

static void append(struct fixture *f, int64_t first, int64_t last)
{
    for (int64_t seq = first; seq <= last; seq++) {
        const struct hd_link_report report = {.kind = HD_LINK_STEP, .seq = seq};

        assert_int_equal(hd_spool_append(f->writer, &report, seq % 2), HD_OK);
    }
}

static void expect(struct fixture *f, int64_t first, int64_t last)
{
    struct hd_link_report report;

    for (int64_t seq = first; seq <= last; seq++) {
        assert_int_equal(hd_spool_read(f->reader, &report), HD_OK);
        assert_int_equal(report.seq, seq);
    }
    assert_int_equal(hd_spool_read(f->reader, &report), HD_UNAVAILABLE);
}

static void what_is_appended_is_read_in_order_across_segments(void **state)
{
    struct fixture *f = *state;

    append(f, 1, 3);
    expect(f, 1, 3);
    append(f, 4, 10); /* segments of 4, 4 and 2 */
    expect(f, 4, 10);
    assert_int_equal(hd_spool_get_pos(f->reader).segment, 3);
    assert_int_equal(hd_spool_get_pos(f->reader).offset_bytes, 2 * REPORT_BYTES);
}

static void a_new_reader_begins_at_what_was_not_removed(void **state)
{
    struct fixture *f = *state;

    append(f, 1, 10);
    hd_spool_remove_before(f->dir, 2);
    expect(f, 5, 10);
    hd_spool_seek(f->reader, (struct hd_spool_position){2, REPORT_BYTES});
    expect(f, 6, 10);
    hd_spool_remove_before(f->dir, 100); /* the newest segment stays: it may still grow */
    hd_spool_seek(f->reader, (struct hd_spool_position){0, 0});
    expect(f, 9, 10);
}

static void too_many_segments_are_a_full_spool(void **state)
{
    struct fixture *f = *state;

    append(f, 1, 8);
    assert_false(hd_spool_is_full(f->writer));
    append(f, 9, 9); /* the third segment */
    assert_true(hd_spool_is_full(f->writer));
    hd_spool_remove_before(f->dir, 3);
    (void)usleep(1100000); /* it looks once a second */
    assert_false(hd_spool_is_full(f->writer));
}

static void damage(struct fixture *f, int64_t segment, int64_t keep_bytes, bool flip)
{
    char path[128];
    uint8_t byte;
    int fd;

    (void)snprintf(path, sizeof path, "%s/spool/%08d", f->dir, (int)segment);
    fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    if (flip) {
        assert_int_equal(pread(fd, &byte, 1, keep_bytes), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, keep_bytes), 1);
    } else {
        assert_int_equal(ftruncate(fd, keep_bytes), 0);
    }
    (void)close(fd);
}

/* Goal: a crash in the middle of a write costs that report alone. Method: cut the last report in
 * half, go on with a new writer, as after a restart. */
static void a_torn_end_costs_one_report(void **state)
{
    struct fixture *f = *state;
    struct hd_link_report report;

    append(f, 1, 3);
    damage(f, 1, 2 * REPORT_BYTES + 60, false);
    expect(f, 1, 2);
    hd_spool_writer_close(f->writer);
    assert_int_equal(hd_spool_writer_open(f->dir, &small, &f->writer), HD_OK);
    append(f, 4, 5);
    assert_int_equal(hd_spool_read(f->reader, &report), HD_CORRUPT); /* now the end is final */
    expect(f, 4, 5);
}

static void a_changed_byte_costs_the_rest_of_its_segment(void **state)
{
    struct fixture *f = *state;
    struct hd_link_report report;

    append(f, 1, 6);
    damage(f, 1, REPORT_BYTES + 70, true);
    assert_int_equal(hd_spool_read(f->reader, &report), HD_OK);
    assert_int_equal(report.seq, 1);
    assert_int_equal(hd_spool_read(f->reader, &report), HD_CORRUPT);
    expect(f, 5, 6);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
