#include "daemon/agent/disk_space.h"

#include <stdio.h>
#include <sys/statvfs.h>

#include "base/text.h"

/* Returns the free space for this user on the folder's disk, per cent, rounded down; -1: it cannot
 * be queried. *ret_disk_bytes: size of the disk. */
static int64_t free_percent(const char *dir, int64_t *ret_disk_bytes)
{
    struct statvfs disk;

    if (!*dir || statvfs(dir, &disk) < 0 || !disk.f_blocks)
        return -1;
    *ret_disk_bytes = (int64_t)disk.f_blocks * (int64_t)disk.f_frsize;
    return (int64_t)((double)disk.f_bavail * 100 / (double)disk.f_blocks);
}

/* Writes why a node takes no attempts. Sizes are those of whole per cents, so that the text does not
 * change with each written file. */
static void write_reason(const char *dir, int64_t percent, int64_t limit, int64_t disk_bytes,
                         char reason[DISK_SPACE_REASON_MAX])
{
    const int64_t one = disk_bytes / 100;
    char left[32], needed[32], missing[32];

    hd_text_format_bytes(one * percent, left);
    hd_text_format_bytes(one * limit, needed);
    hd_text_format_bytes(one * (limit - percent), missing);
    (void)snprintf(reason, DISK_SPACE_REASON_MAX,
                   "takes no new jobs: %lld%% of the disk of %.300s are free (%s), less than "
                   "%lld%% (%s); free %s there (heddled --min-free)",
                   (long long)percent, dir, left, (long long)limit, needed, missing);
}

void disk_space_check(const char *jobs_dir, const char *state_dir, int64_t min_free_percent,
                      char reason[DISK_SPACE_REASON_MAX])
{
    const char *const dirs[] = {jobs_dir, state_dir};
    const int64_t limit = min_free_percent + (*reason ? 1 : 0);
    int64_t disk_bytes;

    *reason = '\0';
    for (int i = 0; i < 2 && min_free_percent && !*reason; i++) {
        const int64_t percent = free_percent(dirs[i], &disk_bytes);

        if (percent >= 0 && percent < limit)
            write_reason(dirs[i], percent, limit, disk_bytes, reason);
    }
}
