#include "daemon/agent/disk_space.h"

#include <stdio.h>
#include <sys/statvfs.h>

/* Returns the free space for this user on the folder's disk, per cent, rounded down; -1: it cannot
 * be queried. */
static int64_t free_percent(const char *dir)
{
    struct statvfs disk;

    if (!*dir || statvfs(dir, &disk) < 0 || !disk.f_blocks)
        return -1;
    return (int64_t)((double)disk.f_bavail * 100 / (double)disk.f_blocks);
}

void disk_space_check(const char *jobs_dir, const char *state_dir, int64_t min_free_percent,
                      char reason[DISK_SPACE_REASON_MAX])
{
    const char *const dirs[] = {jobs_dir, state_dir};
    const int64_t limit = min_free_percent + (*reason ? 1 : 0);

    *reason = '\0';
    for (int i = 0; i < 2 && min_free_percent && !*reason; i++) {
        const int64_t percent = free_percent(dirs[i]);

        if (percent >= 0 && percent < limit)
            (void)snprintf(reason, DISK_SPACE_REASON_MAX,
                           "takes no new jobs: %lld%% of the disk of %.350s are free, less than "
                           "%lld%%; free some space there (heddled --min-free)",
                           (long long)percent, dirs[i], (long long)limit);
    }
}
