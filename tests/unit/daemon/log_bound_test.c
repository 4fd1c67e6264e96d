/* log_bound: a log that has grown beyond its limit keeps its beginning and its end, every byte in
 * its place. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <fcntl.h>
#include <unistd.h>

#include "base/file.h"
#include "daemon/supervisor/log_bound.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

enum { MIB = 1 << 20, LIMIT = MIB, LINE = 16, BLOCK = 512 };

struct bench {
    char dir[TEMPORARY_BYTES], path[TEMPORARY_BYTES + 16];
    int fd; /* of the rank, which appends */
    int64_t lines;
};

static void start(struct bench *b)
{
    b->lines = 0;
    temporary_dir(b->dir, "heddle-log");
    (void)snprintf(b->path, sizeof b->path, "%s/rank-0.log", b->dir);
    b->fd = open(b->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(b->fd >= 0);
}

static void finish(struct bench *b)
{
    (void)close(b->fd);
    assert_int_equal(hd_file_remove_tree(b->dir), HD_OK);
}

/* Line n is at byte 16 n, and says so. */
static void put_line(int64_t line, char ret_text[LINE + 1])
{
    (void)snprintf(ret_text, LINE + 1, "%015lld\n", (long long)(line * LINE));
}

static void write_lines(struct bench *b, int64_t bytes)
{
    const size_t count = (size_t)bytes / LINE;
    char *text = malloc(count * LINE + 1);

    assert_non_null(text);
    for (size_t i = 0; i < count; i++)
        put_line(b->lines++, text + i * LINE);
    assert_int_equal(hd_file_write_all(b->fd, text, count * LINE), HD_OK);
    free(text);
}

static void expect_line(const struct bench *b, int64_t line)
{
    char expected[LINE + 1], found[LINE + 1] = "";
    size_t count;
    int64_t offset;

    put_line(line, expected);
    assert_int_equal(hd_file_read_piece(b->path, line * LINE, found, LINE, &count, &offset), HD_OK);
    assert_int_equal(offset, line * LINE);
    assert_string_equal(found, expected);
}

static void bound(const struct bench *b)
{
    int64_t size;

    if (sup_log_bound(b->path, LIMIT, &size))
        fail_msg("%s", hd_err_message());
    assert_int_equal(size, b->lines * LINE);
}

static int64_t taken(const struct bench *b)
{
    struct stat info;

    assert_int_equal(stat(b->path, &info), 0);
    assert_int_equal(info.st_size, b->lines * LINE);
    return (int64_t)info.st_blocks * BLOCK;
}

/* The first quarter of the limit but for the line about the hole, then the hole, then the newest
 * half. A reader that is in the hole goes on behind it. */
static void expect_bounded(const struct bench *b)
{
    const int64_t begin = LIMIT / 4, end = (b->lines * LINE - LIMIT / 2) / 4096 * 4096;
    char text[4096 + 1] = "", states[64];
    size_t count;
    int64_t offset;

    assert_true(taken(b) <= LIMIT / 4 + LIMIT / 2 + 2 * 4096);
    expect_line(b, 0);
    expect_line(b, begin / LINE - 16); /* 256 bytes before the hole; the line about it is shorter */
    expect_line(b, end / LINE);
    expect_line(b, b->lines - 1);
    assert_int_equal(hd_file_read_piece(b->path, begin - 256, text, 4096, &count, &offset), HD_OK);
    assert_int_equal(count, 256); /* not into the hole */
    (void)snprintf(states, sizeof states, "beyond 1 MiB; from here to byte %lld ", (long long)end);
    assert_non_null(strstr(text, states));
    assert_int_equal(hd_file_read_piece(b->path, begin + 8192, text, 16, &count, &offset), HD_OK);
    assert_int_equal(offset, end);
    assert_int_equal(count, 16);
}

static void a_log_keeps_its_beginning_and_its_end_in_place(void **state)
{
    struct bench b;

    start(&b);
    write_lines(&b, LIMIT);
    bound(&b);
    assert_true(taken(&b) >= LIMIT); /* nothing is taken from a log that is within its limit */
    expect_line(&b, LIMIT / LINE / 2);
    write_lines(&b, 3 * MIB);
    bound(&b);
    expect_bounded(&b);
    for (int i = 0; i < 5; i++) { /* it goes on, and the hole grows */
        write_lines(&b, MIB);
        bound(&b);
    }
    expect_bounded(&b);
    finish(&b);
}

/* Positions stay also where the file system makes no holes on request. */
static void a_log_that_is_cut_keeps_its_last_part_in_place(void **state)
{
    struct bench b;
    int64_t end = 0;
    int fd;

    start(&b);
    write_lines(&b, 2 * MIB);
    fd = open(b.path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(sup_log_cut(fd, LIMIT / 4, &end), HD_OK);
    (void)close(fd);
    assert_int_equal(end, 2 * MIB - SUP_LOG_CUT_TAIL);
    assert_true(taken(&b) <= LIMIT / 4 + SUP_LOG_CUT_TAIL + 2 * 4096);
    expect_line(&b, LIMIT / 4 / LINE - 1);
    expect_line(&b, end / LINE);
    write_lines(&b, LINE);
    expect_line(&b, b.lines - 1);
    finish(&b);
}

/* A job may put anything in its folder: a link is not followed, a pipe is not waited for. */
static void what_is_no_log_is_left_alone(void **state)
{
    struct bench b;
    char link[TEMPORARY_BYTES + 16];
    int64_t size;

    start(&b);
    write_lines(&b, 2 * MIB);
    (void)snprintf(link, sizeof link, "%s/link", b.dir);
    assert_int_equal(symlink(b.path, link), 0);
    assert_int_equal(sup_log_bound(link, LIMIT, &size), HD_IO);
    expect_line(&b, MIB / LINE);
    (void)snprintf(link, sizeof link, "%s/none", b.dir);
    assert_int_equal(sup_log_bound(link, LIMIT, &size), HD_OK);
    assert_int_equal(size, 0);
    assert_int_equal(mkfifo(link, 0600), 0);
    assert_int_equal(sup_log_bound(link, LIMIT, &size), HD_OK);
    finish(&b);
}

RUN_CASES()
