/* room: a nearly full disk takes no new attempts. The test stands between disk_space.c and statvfs. */
#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>

#include "daemon/agent/disk_space.h"
#include "tests/program/test.h"

static int jobs_free, state_free; /* per cent; negative: the disk cannot be asked */

int __wrap_statvfs(const char *path, struct statvfs *ret_disk); /* NOLINT: ld's names */
int __wrap_statvfs(const char *path, struct statvfs *ret_disk)
{
    const int percent = strcmp(path, "/jobs") == 0 ? jobs_free : state_free;

    if (percent < 0) {
        errno = EIO;
        return -1;
    }
    *ret_disk =
        (struct statvfs){.f_frsize = 1 << 20, .f_blocks = 100, .f_bavail = (fsblkcnt_t)percent};
    return 0;
}

static void a_disk_below_the_limit_is_told_until_it_is_clearly_above(void **state)
{
    char reason[DISK_SPACE_REASON_MAX] = "";

    jobs_free = 5;
    state_free = 90;
    disk_space_check("/jobs", "/state", 5, reason);
    assert_string_equal(reason, "");
    jobs_free = 4;
    disk_space_check("/jobs", "/state", 5, reason);
    assert_string_equal(reason,
                        "takes no new jobs: 4% of the disk of /jobs are free (4.0 MiB), less "
                        "than 5% (5.0 MiB); free 1.0 MiB there (heddled --min-free)");
    jobs_free = 5; /* as before it began: it would come and go */
    disk_space_check("/jobs", "/state", 5, reason);
    assert_non_null(
        strstr(reason, "5% of the disk of /jobs are free (5.0 MiB), less than 6% (6.0"));
    jobs_free = 6;
    disk_space_check("/jobs", "/state", 5, reason);
    assert_string_equal(reason, "");
}

static void either_disk_counts_and_one_that_cannot_be_asked_does_not(void **state)
{
    char reason[DISK_SPACE_REASON_MAX] = "";

    jobs_free = 90;
    state_free = 0;
    disk_space_check("/jobs", "/state", 5, reason);
    assert_non_null(strstr(reason, "0% of the disk of /state"));
    disk_space_check("/jobs", "/state", 0, reason); /* switched off */
    assert_string_equal(reason, "");
    jobs_free = state_free = -1;
    disk_space_check("/jobs", "/state", 5, reason);
    assert_string_equal(reason, "");
    state_free = 0;
    disk_space_check("", "/state", 5,
                     reason); /* before the controller has named the jobs directory */
    assert_non_null(strstr(reason, "/state"));
}

RUN_CASES()
