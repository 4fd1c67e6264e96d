/* base/file.h: what must be on disk before what. The calls that reach the disk are watched. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/program/test.h"

/* The calls in their order: w written, f a file flushed, d a directory flushed, r renamed. */
static char calls[32];
static char failing; /* the call that fails next, as a disk would make it */

static int record(char call)
{
    size_t n = strlen(calls);

    if (n + 1 < sizeof calls)
        calls[n] = call;
    if (call != failing)
        return 0;
    failing = '\0';
    errno = ENOSPC;
    return -1;
}

/* These stand in for libc's, for everything that this program links. */
int fsync(int fd)
{
    struct stat about;

    if (fstat(fd, &about) < 0 || record(S_ISDIR(about.st_mode) ? 'd' : 'f') < 0)
        return -1;
    return (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to)
{
    if (record('r') < 0)
        return -1;
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

ssize_t write(int fd, const void *bytes, size_t count)
{
    if (fd > STDERR_FILENO && record('w') < 0)
        return -1;
    return (ssize_t)syscall(SYS_write, fd, bytes, count);
}

static char dir[] = "/tmp/heddle-durable-XXXXXX";
static char path[64];

static int make_dir(void **state)
{
    (void)snprintf(dir + strlen(dir) - 6, 7, "XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    (void)snprintf(path, sizeof path, "%s/f", dir);
    memset(calls, 0, sizeof calls);
    failing = '\0';
    return 0;
}

static int remove_dir(void **state)
{
    return hd_file_remove_tree(dir) ? -1 : 0;
}

static void content_is_flushed_before_its_name_and_the_name_before_success(void **state)
{
    assert_int_equal(hd_file_write_atomic(path, "new", 3, 0600), HD_OK);
    assert_string_equal(calls, "wfrd");
}

/* Goal: whatever the disk refuses, the old content stays whole, and no debris stays beside it. */
static void refused_write_keeps_the_old_content(void **state)
{
    static const char refused[] = "wfr";

    assert_int_equal(hd_file_write_atomic(path, "old", 3, 0600), HD_OK);
    for (const char *call = refused; *call; call++) {
        struct hd_text text = {0};

        failing = *call;
        assert_int_equal(hd_file_write_atomic(path, "new", 3, 0600), HD_STORAGE);
        assert_int_equal(failing, 0);
        assert_int_equal(hd_file_read(path, 10, &text), HD_OK);
        assert_string_equal(text.data, "old");
        hd_text_free(&text);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(rmdir(dir), 0); /* empty: nothing but f was there */
        assert_int_equal(mkdir(dir, 0700), 0);
        assert_int_equal(hd_file_write_atomic(path, "old", 3, 0600), HD_OK);
    }
}

static void name_that_is_not_flushed_is_reported(void **state)
{
    failing = 'd';
    assert_int_equal(hd_file_write_atomic(path, "new", 3, 0600), HD_STORAGE);
}

/* A device of the kind of /dev/null, which only root can make. */
static void a_device_is_written_and_never_replaced(void **state)
{
    struct stat info;

    if (mknod(path, S_IFCHR | 0600, makedev(1, 3)) < 0)
        skip();
    assert_int_equal(hd_file_write_atomic(path, "new", 3, 0600), HD_OK);
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISCHR(info.st_mode));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(hd_file_write_atomic(path, "new", 3, 0600), HD_INVALID);
}

RUN_EACH_CASE_WITH(make_dir, remove_dir)
