/* disk_reserve: disk space that is kept for the day on which the disk is full.
 *
 *   WHOLE --a write fails: disk_reserve_release--> SHORT --an eighth each time--> EMPTY
 *     ^                                                  |                              |
 *     '------- the disk has space: disk_reserve_make ---+------------------------------'
 *
 * The reserve is a file of zeros beside the database, written to its last byte, because a sparse
 * file occupies no space. It is given up in pieces, so that another program that fills the disk
 * takes one piece at a time. It also works on copy-on-write file systems (btrfs, ZFS): truncation
 * frees space.
 *
 * The file is accessed through the database's VFS, so that a test's disk also holds the reserve.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "controller/store/store_internal.h"

enum { PIECES = 8, BLOCK_BYTES = 64 * 1024, DISK_DIVISOR = 16 };

int64_t disk_reserve_size(const char *dir, int64_t wanted_bytes)
{
    struct rlimit sizes; /* limit on file sizes: a larger reserve could never be written */
    struct statvfs disk;
    int64_t most;

    if (getrlimit(RLIMIT_FSIZE, &sizes) == 0 && sizes.rlim_cur < (uint64_t)INT64_MAX &&
        wanted_bytes > (int64_t)sizes.rlim_cur)
        wanted_bytes = (int64_t)sizes.rlim_cur;
    if (wanted_bytes <= 0 || statvfs(dir, &disk) < 0)
        return wanted_bytes > 0 ? wanted_bytes : 0;
    most = (int64_t)disk.f_blocks * (int64_t)disk.f_frsize / DISK_DIVISOR;
    return wanted_bytes < most ? wanted_bytes : most;
}

void disk_reserve_open(struct disk_reserve *reserve, const char *dir, const char *vfs_name,
                       int64_t bytes)
{
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_TRANSIENT_DB;
    sqlite3_vfs *vfs = sqlite3_vfs_find(vfs_name);
    sqlite3_int64 size = 0;

    *reserve = (struct disk_reserve){.dir = dir, .whole_bytes = bytes, .checks = !vfs_name};
    (void)snprintf(reserve->path, sizeof reserve->path, "%s/reserve", dir);
    if (!bytes || !vfs || !(reserve->file = calloc(1, (size_t)vfs->szOsFile)))
        return;
    if (vfs->xOpen(vfs, reserve->path, reserve->file, flags, NULL) != SQLITE_OK ||
        reserve->file->pMethods->xFileSize(reserve->file, &size) != SQLITE_OK) {
        hd_log(HD_LOG_WARN,
               "%s cannot be opened or made: there is no reserve for a full disk; correct its "
               "owner or "
               "remove it, and start the controller again",
               reserve->path);
        disk_reserve_close(reserve);
        reserve->whole_bytes = 0; /* without a reserve the store must not wait for it forever */
        return;
    }
    reserve->left_bytes = size;
    if (size > bytes && reserve->file->pMethods->xTruncate(reserve->file, bytes) == SQLITE_OK)
        reserve->left_bytes = bytes;
}

void disk_reserve_close(struct disk_reserve *reserve)
{
    if (reserve->file && reserve->file->pMethods)
        (void)reserve->file->pMethods->xClose(reserve->file);
    free(reserve->file);
    reserve->file = NULL;
}

bool disk_reserve_is_short(const struct disk_reserve *reserve)
{
    return reserve->left_bytes < reserve->whole_bytes;
}

bool disk_reserve_release(struct disk_reserve *reserve)
{
    const int64_t piece = (reserve->whole_bytes + PIECES - 1) / PIECES;
    const int64_t left = reserve->left_bytes > piece ? reserve->left_bytes - piece : 0;

    if (!reserve->file || !reserve->left_bytes ||
        reserve->file->pMethods->xTruncate(reserve->file, left) != SQLITE_OK)
        return false;
    reserve->left_bytes = left;
    return true;
}

/* Writes the missing part of the reserve file and flushes it. False: the disk is full, or fails. */
static bool fill(const struct disk_reserve *reserve)
{
    static const unsigned char zeros[BLOCK_BYTES];
    const sqlite3_io_methods *m = reserve->file->pMethods;

    for (int64_t at = reserve->left_bytes; at < reserve->whole_bytes; at += BLOCK_BYTES) {
        const int64_t left = reserve->whole_bytes - at;

        if (m->xWrite(reserve->file, zeros, (int)(left < BLOCK_BYTES ? left : BLOCK_BYTES), at) !=
            SQLITE_OK)
            return false;
    }
    return m->xSync(reserve->file, SQLITE_SYNC_NORMAL) == SQLITE_OK;
}

int64_t disk_reserve_needs(int64_t whole_bytes, int64_t left_bytes)
{
    /* half of the reserve more, else the next write would use it up again */
    return whole_bytes - left_bytes + whole_bytes / 2;
}

bool disk_reserve_make(struct disk_reserve *reserve)
{
    if (!disk_reserve_is_short(reserve))
        return true;
    if (!reserve->file ||
        (reserve->checks &&
         hd_file_check_space(reserve->dir,
                             disk_reserve_needs(reserve->whole_bytes, reserve->left_bytes))))
        return false;
    if (fill(reserve)) {
        reserve->left_bytes = reserve->whole_bytes;
        return true;
    }
    (void)reserve->file->pMethods->xTruncate(reserve->file, reserve->left_bytes);
    return false;
}

/* ---- the log of the database ------------------------------------------------------------------*/

static int64_t log_bytes(struct store_db *db)
{
    sqlite3_file *file = NULL;
    sqlite3_int64 size = 0;

    if (sqlite3_file_control(db->sqlite, "main", SQLITE_FCNTL_JOURNAL_POINTER, &file) !=
            SQLITE_OK ||
        !file || !file->pMethods || file->pMethods->xFileSize(file, &size) != SQLITE_OK)
        return 0;
    return size;
}

void store_db_empty_log(struct store_db *db, int64_t keep_bytes)
{
    (void)sqlite3_wal_checkpoint_v2(db->sqlite, NULL,
                                    log_bytes(db) > keep_bytes ? SQLITE_CHECKPOINT_TRUNCATE
                                                               : SQLITE_CHECKPOINT_RESTART,
                                    NULL, NULL);
}

/* Finds another process that holds a lock on the shared memory of the write-ahead log, as readers
 * do; writes it as "process 17 (sqlite3)"; "": none found. A line of /proc/locks has: number, kind,
 * .., pid, device:inode, .. */
static void find_reader(const struct store_db *db, char ret_who[64])
{
    char path[HD_CTL_PATH_BYTES_MAX + 8], line[256], comm[32] = "";
    unsigned long long inode;
    struct stat info;
    FILE *locks, *name;
    int pid;

    ret_who[0] = '\0';
    (void)snprintf(path, sizeof path, "%s-shm", db->path);
    locks = stat(path, &info) == 0 ? fopen("/proc/locks", "re") : NULL;
    while (locks && !ret_who[0] && fgets(line, sizeof line, locks)) {
        if (sscanf(line, "%*s %*s %*s %*s %d %*x:%*x:%llu", &pid, &inode) != 2 ||
            inode != (unsigned long long)info.st_ino || pid == (int)getpid())
            continue;
        (void)snprintf(path, sizeof path, "/proc/%d/comm", pid);
        name = fopen(path, "re");
        if (name && fgets(comm, sizeof comm, name))
            comm[strcspn(comm, "\n")] = '\0';
        if (name)
            (void)fclose(name);
        (void)snprintf(ret_who, 64, "process %d (%s)", pid, comm);
    }
    if (locks)
        (void)fclose(locks);
}

void store_watch_log(struct store_db *db, int64_t bytes_max)
{
    const int64_t bytes = log_bytes(db);
    int in_log = 0, copied = 0;
    char size[32], bound[32], who[64];

    if (bytes <= 2 * bytes_max) {
        if (db->log_reported_bytes)
            hd_log(HD_LOG_INFO, "the write-ahead log %s-wal is short again", db->path);
        db->log_reported_bytes = 0;
        return;
    }
    if (bytes < 2 * db->log_reported_bytes ||
        sqlite3_wal_checkpoint_v2(db->sqlite, NULL, SQLITE_CHECKPOINT_PASSIVE, &in_log, &copied) !=
            SQLITE_OK ||
        copied >= in_log) /* no reader has let the log grow: a large transaction was written */
        return;
    db->log_reported_bytes = bytes;
    hd_text_format_bytes(bytes, size);
    hd_text_format_bytes(bytes_max, bound);
    find_reader(db, who);
    hd_log(
        HD_LOG_WARN,
        "the write-ahead log %s-wal has grown to %s, beyond its bound of %s: %s has been reading "
        "the database since, and the log grows until it stops. Stop it, or the disk fills",
        db->path, size, bound, who[0] ? who : "another process");
}
