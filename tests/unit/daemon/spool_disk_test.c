/* Reports and the disk: what is flushed, what a disk leaves that refuses to write, and what the
 * supervisor keeps in memory meanwhile. The test stands between the room and the kernel. */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/file.h"
#include "daemon/supervisor/supervisor.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

/* ---- the disk ---------------------------------------------------------------------------------*/

static struct {
    bool full;        /* a write stores half of its bytes, then there is no room */
    int refusals;     /* so many writes more; then there is room. 0: no end */
    bool no_truncate; /* and what was stored cannot be taken back */
    int flushes;
    bool flushed[8]; /* by segment */
} disk;

ssize_t __real_write(int fd, const void *data, size_t size_bytes);
int __real_fdatasync(int fd);
int __real_ftruncate(int fd, off_t size_bytes);
ssize_t __wrap_write(int fd, const void *data, size_t size_bytes);
int __wrap_fdatasync(int fd);
int __wrap_ftruncate(int fd, off_t size_bytes);

static bool is_segment(int fd, int64_t *ret_number)
{
    char link[64], path[PATH_MAX];
    const char *name;
    ssize_t n;

    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    name = strrchr(path, '/');
    *ret_number = name ? atoll(name + 1) : 0;
    return strstr(path, "/spool/") != NULL;
}

ssize_t __wrap_write(int fd, const void *data, size_t size_bytes)
{
    int64_t segment;

    if (disk.full && is_segment(fd, &segment)) {
        if (size_bytes > 1 && __real_write(fd, data, size_bytes / 2) > 0)
            disk.full = true;
        disk.full = disk.refusals != 1;
        disk.refusals -= disk.refusals > 0;
        errno = ENOSPC;
        return -1;
    }
    return __real_write(fd, data, size_bytes);
}

int __wrap_fdatasync(int fd)
{
    int64_t segment;

    if (is_segment(fd, &segment) && segment < 8) {
        disk.flushes++;
        disk.flushed[segment] = true;
    }
    return __real_fdatasync(fd);
}

int __wrap_ftruncate(int fd, off_t size_bytes)
{
    int64_t segment;

    if (disk.no_truncate && is_segment(fd, &segment)) {
        errno = EIO;
        return -1;
    }
    return __real_ftruncate(fd, size_bytes);
}

/* ---- a supervisor without ranks ---------------------------------------------------------------*/

/* A step report of a model without experts (spool_test.c). */
enum { REPORT_BYTES = 12 + 6 * 8 + 2 * 8 + 4 + HD_METRICS_BYTES_MAX + 8 };

struct fixture {
    char dir[TEMPORARY_BYTES];
    struct sup sup;
    struct sup_rank rank;
    struct hd_spool_reader *reader;
};

static void open_spool(struct fixture *f, int64_t segment_bytes, int segments_max)
{
    const struct hd_spool_limits limits = {.segment_bytes = segment_bytes,
                                           .segments_max = segments_max};

    assert_int_equal(hd_spool_writer_open(f->dir, &limits, &f->sup.spool), HD_OK);
    assert_int_equal(hd_spool_reader_open(f->dir, &f->reader), HD_OK);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    memset(&disk, 0, sizeof disk);
    temporary_dir(f->dir, "heddle-spool");
    f->sup.daemon_fd = f->sup.listen_fd = f->sup.signal_fd = -1;
    (void)snprintf(f->sup.options.run_dir, sizeof f->sup.options.run_dir, "%s", f->dir);
    f->sup.job.job_id = 7;
    f->sup.job.attempt = 2;
    f->rank.rank = 3;
    f->sup.ranks = &f->rank;
    f->sup.options.rank_count = 1;
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    enum hd_status st;

    hd_spool_reader_close(f->reader);
    hd_spool_writer_close(f->sup.spool);
    st = hd_file_remove_tree(f->dir);
    free(f);
    return (int)st;
}

static void append_step(struct fixture *f, int64_t seq, bool durable)
{
    const struct hd_link_report report = {.kind = HD_LINK_STEP, .seq = seq};

    assert_int_equal(hd_spool_append(f->sup.spool, &report, durable), HD_OK);
}

static void tell(struct fixture *f, enum hd_link_kind kind, int64_t step)
{
    struct hd_link_report report = {.kind = kind};

    if (kind == HD_LINK_STEP)
        report.step.step = step;
    else if (kind == HD_LINK_CHECKPOINT)
        report.checkpoint.step = step;
    else if (kind == HD_LINK_VALIDATION)
        report.validation.step = step;
    sup_report(&f->sup, &f->rank, &report);
}

static struct hd_link_report expect_read(struct fixture *f, enum hd_link_kind kind, int64_t seq)
{
    struct hd_link_report report;

    if (hd_spool_read(f->reader, &report))
        fail_msg("%s", hd_err_message());
    assert_int_equal(report.kind, kind);
    assert_int_equal(report.seq, seq);
    return report;
}

static void expect_no_more(struct fixture *f)
{
    struct hd_link_report report;

    assert_int_equal(hd_spool_read(f->reader, &report), HD_UNAVAILABLE);
}

/* ---- what is flushed --------------------------------------------------------------------------*/

static void a_durable_report_is_flushed_and_others_are_not(void **state)
{
    struct fixture *f = *state;

    open_spool(f, 0, 0);
    append_step(f, 1, false);
    assert_int_equal(disk.flushes, 0);
    append_step(f, 2, true);
    assert_int_equal(disk.flushes, 1);
    append_step(f, 3, false);
    assert_int_equal(disk.flushes, 1);
}

/* Report 5 is durable only together with 1 to 4 of the segment before. */
static void a_durable_report_takes_the_older_segment_along(void **state)
{
    struct fixture *f = *state;

    open_spool(f, 4 * REPORT_BYTES, 0);
    for (int64_t seq = 1; seq <= 4; seq++)
        append_step(f, seq, false);
    append_step(f, 5, true);
    assert_true(disk.flushed[1]);
    assert_true(disk.flushed[2]);
}

/* Reports by which the controller decides must survive a power cut; steps may. */
static void checkpoints_validations_and_exits_are_durable(void **state)
{
    static const enum hd_link_kind durable[] = {HD_LINK_CHECKPOINT, HD_LINK_VALIDATION,
                                                HD_LINK_EXIT};
    struct fixture *f = *state;

    open_spool(f, 0, 0);
    for (int i = 0; i < 3; i++) {
        tell(f, HD_LINK_STEP, 1);
        assert_int_equal(disk.flushes, i);
        tell(f, durable[i], 1);
        assert_int_equal(disk.flushes, i + 1);
    }
}

/* ---- a full disk ------------------------------------------------------------------------------*/

/* The half that was stored is taken back, so that what follows can be read. */
static void half_a_report_is_taken_back(void **state)
{
    const struct hd_link_report second = {.kind = HD_LINK_STEP, .seq = 2};
    struct fixture *f = *state;

    open_spool(f, 0, 0);
    append_step(f, 1, false);
    disk.full = true;
    assert_int_equal(hd_spool_append(f->sup.spool, &second, false), HD_STORAGE);
    disk.full = false;
    append_step(f, 2, false);
    (void)expect_read(f, HD_LINK_STEP, 1);
    (void)expect_read(f, HD_LINK_STEP, 2);
    expect_no_more(f);
}

/* It cannot even be taken back: then a new segment is begun, and the half is told as lost. */
static void half_a_report_that_stays_ends_its_segment(void **state)
{
    const struct hd_link_report second = {.kind = HD_LINK_STEP, .seq = 2};
    struct fixture *f = *state;
    struct hd_link_report report;

    open_spool(f, 0, 0);
    append_step(f, 1, false);
    disk.full = disk.no_truncate = true;
    assert_int_equal(hd_spool_append(f->sup.spool, &second, false), HD_STORAGE);
    disk.full = disk.no_truncate = false;
    append_step(f, 2, false);
    (void)expect_read(f, HD_LINK_STEP, 1);
    assert_int_equal(hd_spool_read(f->reader, &report), HD_CORRUPT);
    (void)expect_read(f, HD_LINK_STEP, 2);
    expect_no_more(f);
}

/* Reports wait in memory in the order of their numbers: a later one does not go before them when
 * the disk takes it, and a try that fails loses none. */
static void what_the_disk_refuses_is_kept_in_order(void **state)
{
    struct fixture *f = *state;
    struct hd_link_report report;

    open_spool(f, 0, 0);
    tell(f, HD_LINK_VALIDATION, 1);
    disk.full = true;
    tell(f, HD_LINK_CHECKPOINT, 2);
    tell(f, HD_LINK_VALIDATION, 3);
    assert_int_equal(sup_retry_held(&f->sup), HD_STORAGE);
    assert_int_equal(f->sup.held_count, 2);
    disk.full = false;
    tell(f, HD_LINK_CHECKPOINT, 4); /* joins those that wait */
    assert_int_equal(f->sup.held_count, 3);
    disk.flushes = 0;
    assert_int_equal(sup_retry_held(&f->sup), HD_OK);
    assert_int_equal(f->sup.held_count, 0);
    assert_int_equal(disk.flushes, 3); /* as durable as they would have been */
    report = expect_read(f, HD_LINK_VALIDATION, 1);
    report = expect_read(f, HD_LINK_CHECKPOINT, 2);
    assert_int_equal(report.job, 7);
    assert_int_equal(report.attempt, 2);
    assert_int_equal(report.rank, 3);
    assert_int_equal(report.checkpoint.step, 2);
    report = expect_read(f, HD_LINK_VALIDATION, 3);
    report = expect_read(f, HD_LINK_CHECKPOINT, 4);
    assert_int_equal(report.checkpoint.step, 4);
    expect_no_more(f);
}

/* The end is written when the reports before it are: heddled reads no more after it. Meanwhile
 * heddled is told what the attempt waits for. */
static void the_end_waits_for_the_disk(void **state)
{
    struct fixture *f = *state;
    struct hd_link_report report;

    open_spool(f, 0, 0);
    disk.full = true;
    tell(f, HD_LINK_CHECKPOINT, 400);
    disk.refusals = 1; /* of sup_finish's first try */
    sup_finish(&f->sup, 0);
    assert_int_equal(f->sup.state, HD_ALLOC_ENDED);
    assert_non_null(strstr(f->sup.problem, "cannot record how the attempt ended: "));
    assert_non_null(strstr(f->sup.problem, strerror(ENOSPC)));
    assert_int_equal(hd_attempt_read_end(f->dir, &report), HD_OK);
    assert_int_equal(report.end.cause, HD_LINK_CAUSE_COMPLETED);
    report = expect_read(f, HD_LINK_CHECKPOINT, 1);
    assert_int_equal(report.checkpoint.step, 400);
    expect_no_more(f);
}

/* Held reports are lost then; the end is recorded if that can be. */
static void one_that_is_to_end_at_once_waits_for_no_disk(void **state)
{
    struct fixture *f = *state;
    struct hd_link_report report;

    open_spool(f, 0, 0);
    disk.full = true;
    tell(f, HD_LINK_CHECKPOINT, 400);
    tell(f, HD_LINK_STEP, 401);
    f->rank.exited = true;
    f->sup.at_once = true;
    sup_finish(&f->sup, 0);
    assert_int_equal(hd_attempt_read_end(f->dir, &report), HD_OK);
    expect_no_more(f);
}

/* When memory is full of them, reports are lost, but never an exit: places are kept for those. */
static void the_last_places_in_memory_are_for_exits(void **state)
{
    enum { OTHERS = HD_SUP_HELD_MAX - HD_ATTEMPT_RANKS_MAX / 2 };
    struct fixture *f = *state;

    open_spool(f, 0, 0);
    disk.full = true;
    for (int i = 0; i < HD_SUP_HELD_MAX; i++)
        tell(f, HD_LINK_CHECKPOINT, i);
    assert_int_equal(f->sup.held_count, OTHERS);
    for (int i = 0; i < HD_ATTEMPT_RANKS_MAX / 2; i++)
        tell(f, HD_LINK_EXIT, 0);
    assert_int_equal(f->sup.held_count, HD_SUP_HELD_MAX);
    tell(f, HD_LINK_EXIT, 0);
    assert_int_equal(f->sup.held_count, HD_SUP_HELD_MAX);
}

/* ---- the bound of the spool -------------------------------------------------------------------*/

/* Two segments of two reports are all there may be. Steps beyond them are counted and told as a gap
 * when there is room; a checkpoint is stored all the same. */
static void steps_beyond_the_bound_are_told_as_a_gap(void **state)
{
    struct fixture *f = *state;
    struct hd_link_report gap;

    open_spool(f, 2 * REPORT_BYTES, 2);
    for (int64_t step = 1; step <= 3; step++)
        tell(f, HD_LINK_STEP, step); /* the third begins the second segment, the last one */
    for (int64_t step = 4; step <= 6; step++)
        tell(f, HD_LINK_STEP, step);
    gap = (struct hd_link_report){.kind = HD_LINK_GAP, .gap = {2, 8, 9}}; /* of the rank itself */
    sup_report(&f->sup, &f->rank, &gap);
    tell(f, HD_LINK_CHECKPOINT, 9);
    for (int64_t seq = 1; seq <= 3; seq++)
        assert_int_equal(expect_read(f, HD_LINK_STEP, seq).step.step, seq);
    gap = expect_read(f, HD_LINK_GAP, 4);
    assert_int_equal(gap.gap.count, 4); /* 4 and 5, and the rank's two */
    assert_int_equal(gap.gap.first_step, 4);
    assert_int_equal(gap.gap.last_step, 9);
    assert_int_equal(expect_read(f, HD_LINK_STEP, 5).step.step, 6);
    (void)expect_read(f, HD_LINK_CHECKPOINT, 6);
    tell(f, HD_LINK_CHECKPOINT, 10); /* both are told once */
    (void)expect_read(f, HD_LINK_CHECKPOINT, 7);
    expect_no_more(f);
}

/* ---- the newest step --------------------------------------------------------------------------*/

/* A job's last step is what the last step report says: a job that succeeded at step 60 was shown at
 * step 45, because reports 46 to 60 came while the disk was full. */
static void the_newest_step_is_told_when_the_disk_takes_writes(void **state)
{
    struct fixture *f = *state;
    struct hd_link_report gap;

    open_spool(f, 0, 0);
    tell(f, HD_LINK_STEP, 44);
    disk.full = true;
    for (int64_t step = 45; step <= 60; step++)
        tell(f, HD_LINK_STEP, step); /* 45 is held */
    tell(f, HD_LINK_VALIDATION, 60);
    assert_int_equal(sup_retry_held(&f->sup), HD_STORAGE);
    disk.full = false;
    assert_int_equal(sup_retry_held(&f->sup), HD_OK);
    (void)expect_read(f, HD_LINK_STEP, 1);
    assert_int_equal(expect_read(f, HD_LINK_STEP, 2).step.step, 45);
    (void)expect_read(f, HD_LINK_VALIDATION, 3);
    gap = expect_read(f, HD_LINK_GAP, 4);
    assert_int_equal(gap.gap.count, 14); /* 46 to 59 */
    assert_int_equal(gap.gap.first_step, 46);
    assert_int_equal(gap.gap.last_step, 59);
    assert_int_equal(expect_read(f, HD_LINK_STEP, 5).step.step, 60);
    expect_no_more(f);
}

/* While the disk refuses to write, the newest step takes no place among the reports that are held.
 */
static void steps_leave_the_places_in_memory_to_other_reports(void **state)
{
    struct fixture *f = *state;

    open_spool(f, 0, 0);
    disk.full = true;
    for (int64_t step = 1; step <= 10; step++) {
        tell(f, HD_LINK_STEP, step);
        tell(f, HD_LINK_VALIDATION, step);
    }
    assert_int_equal(f->sup.held_count, 1 + 10); /* step 1 was refused by the disk itself */
}

/* The rank has ended and its spool is at its bound: its newest step is told before the end. */
static void the_end_waits_for_the_newest_step(void **state)
{
    struct fixture *f = *state;

    open_spool(f, 2 * REPORT_BYTES, 1);
    tell(f, HD_LINK_STEP, 1);
    disk.full = true;
    tell(f, HD_LINK_STEP, 2); /* left out: one segment is all there may be */
    tell(f, HD_LINK_STEP, 3);
    tell(f, HD_LINK_EXIT, 0);
    f->rank.exited = true;
    disk.refusals = 1;
    sup_finish(&f->sup, 0);
    assert_int_equal(expect_read(f, HD_LINK_STEP, 1).step.step, 1);
    (void)expect_read(f, HD_LINK_GAP, 2);
    assert_int_equal(expect_read(f, HD_LINK_STEP, 3).step.step, 3);
    (void)expect_read(f, HD_LINK_EXIT, 4);
    expect_no_more(f);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
