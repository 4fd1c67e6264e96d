#include "disk_vfs.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/random.h"

enum { FILES_MAX = 8, SECTOR_BYTES = 512 };

struct image {
    unsigned char *bytes;
    int64_t size, room; /* of room bytes size are the file's */
};

struct pending {
    bool is_truncate;
    int64_t offset, size;
    unsigned char *bytes;
    struct pending *next;
};

struct disk_file {
    char name[512];
    bool exists;
    struct image now, durable;
    struct pending *first, **last;
};

static struct {
    struct disk_file files[FILES_MAX];
    int64_t operations, fail_from;
    atomic_bool full, broken, hold_syncs, is_holding;
    bool ignore_syncs;
    atomic_llong capacity; /* 0: without a limit */
    atomic_bool greedy;
} disk;

struct handle {
    sqlite3_file base;
    struct disk_file *file;
};

/* ---- images -----------------------------------------------------------------------------------*/

static void resize(struct image *image, int64_t size)
{
    if (size > image->room) { /* twice as much: files grow page after page */
        const int64_t room = size > 2 * image->room ? size : 2 * image->room;
        unsigned char *bigger = realloc(image->bytes, (size_t)room);

        if (!bigger)
            abort();
        image->bytes = bigger;
        image->room = room;
    }
    if (size > image->size)
        memset(image->bytes + image->size, 0, (size_t)(size - image->size));
    image->size = size;
}

static void put_bytes(struct image *image, int64_t offset, const void *bytes, int64_t size)
{
    if (offset + size > image->size)
        resize(image, offset + size);
    memcpy(image->bytes + offset, bytes, (size_t)size);
}

static void apply(struct image *image, const struct pending *p)
{
    if (p->is_truncate)
        resize(image, p->size);
    else
        put_bytes(image, p->offset, p->bytes, p->size);
}

static void forget_pending(struct disk_file *file)
{
    while (file->first) {
        struct pending *p = file->first;

        file->first = p->next;
        free(p->bytes);
        free(p);
    }
    file->last = &file->first;
}

static void remember(struct disk_file *file, bool is_truncate, int64_t offset, const void *bytes,
                     int64_t size)
{
    struct pending *p = calloc(1, sizeof *p);

    if (!p)
        abort();
    p->is_truncate = is_truncate;
    p->offset = offset;
    p->size = size;
    if (bytes) {
        p->bytes = malloc((size_t)size);
        if (!p->bytes)
            abort();
        memcpy(p->bytes, bytes, (size_t)size);
    }
    *file->last = p;
    file->last = &p->next;
    apply(&file->now, p);
}

static void copy_image(struct image *to, const struct image *from)
{
    resize(to, from->size);
    if (from->size)
        memcpy(to->bytes, from->bytes, (size_t)from->size);
}

/* Applies a write in part: each sector reaches the disk or not. */
static void apply_some(struct image *image, const struct pending *p, uint64_t key, uint64_t *draws)
{
    if (p->is_truncate) {
        if (hd_random_u64(key, (*draws)++) & 1)
            apply(image, p);
        return;
    }
    for (int64_t at = 0; at < p->size; at += SECTOR_BYTES) {
        int64_t size = p->size - at < SECTOR_BYTES ? p->size - at : SECTOR_BYTES;

        if (hd_random_u64(key, (*draws)++) & 1)
            put_bytes(image, p->offset + at, p->bytes + at, size);
    }
}

/* ---- the bad days -----------------------------------------------------------------------------*/

static bool power_is_gone(void)
{
    disk.operations++;
    return disk.fail_from && disk.operations >= disk.fail_from;
}

void disk_fail_from(int64_t operation)
{
    disk.fail_from = operation;
}

int64_t disk_operations(void)
{
    return disk.operations;
}

void disk_set_full(bool full)
{
    disk.full = full;
}

int64_t disk_used(void)
{
    int64_t bytes = 0;

    for (int i = 0; i < FILES_MAX; i++)
        bytes += disk.files[i].exists ? disk.files[i].now.size : 0;
    return bytes;
}

void disk_set_capacity(int64_t bytes)
{
    disk.capacity = bytes;
}

void disk_set_greedy(bool greedy)
{
    disk.greedy = greedy;
}

int64_t disk_size_of(const char *suffix)
{
    for (int i = 0; i < FILES_MAX; i++) {
        const struct disk_file *file = &disk.files[i];
        const size_t length = strlen(file->name), tail = strlen(suffix);

        if (file->exists && length >= tail && strcmp(file->name + length - tail, suffix) == 0)
            return file->now.size;
    }
    return 0;
}

void disk_set_broken(bool broken)
{
    disk.broken = broken;
}

void disk_hold_syncs(bool hold)
{
    disk.hold_syncs = hold;
}

void disk_wait_held(void)
{
    while (!disk.is_holding)
        (void)usleep(1000);
}

void disk_ignore_syncs(bool ignore)
{
    disk.ignore_syncs = ignore;
}

void disk_wipe(void)
{
    for (int i = 0; i < FILES_MAX; i++) {
        struct disk_file *file = &disk.files[i];

        if (file->last)
            forget_pending(file);
        free(file->now.bytes);
        free(file->durable.bytes);
    }
    memset(&disk, 0, sizeof disk);
}

void disk_power_cut(enum disk_cut kept, uint64_t seed)
{
    uint64_t draws = 0;

    for (int i = 0; i < FILES_MAX; i++) {
        struct disk_file *file = &disk.files[i];

        if (!file->exists)
            continue;
        for (const struct pending *p = file->first; p; p = p->next) {
            if (kept == DISK_KEEPS_ALL)
                apply(&file->durable, p);
            else if (kept == DISK_KEEPS_SOME)
                apply_some(&file->durable, p, seed, &draws);
        }
        forget_pending(file);
        copy_image(&file->now, &file->durable);
    }
    disk.fail_from = 0;
    disk.full = disk.broken = false;
}

void disk_damage(const char *suffix, int64_t offset)
{
    for (int i = 0; i < FILES_MAX; i++) {
        struct disk_file *file = &disk.files[i];
        size_t length = strlen(file->name), tail = strlen(suffix);

        if (file->exists && length >= tail && strcmp(file->name + length - tail, suffix) == 0 &&
            offset < file->now.size)
            file->now.bytes[offset] ^= 0xff;
    }
}

/* ---- files ------------------------------------------------------------------------------------*/

static struct disk_file *file_of(sqlite3_file *handle)
{
    return ((struct handle *)(void *)handle)->file;
}

static int file_close(sqlite3_file *handle)
{
    return SQLITE_OK;
}

static int file_read(sqlite3_file *handle, void *ret_bytes, int count, sqlite3_int64 offset)
{
    const struct image *now = &file_of(handle)->now;
    int64_t there = now->size - offset;

    if (there >= count) {
        memcpy(ret_bytes, now->bytes + offset, (size_t)count);
        return SQLITE_OK;
    }
    memset(ret_bytes, 0, (size_t)count);
    if (there > 0)
        memcpy(ret_bytes, now->bytes + offset, (size_t)there);
    return SQLITE_IOERR_SHORT_READ;
}

static int file_write(sqlite3_file *handle, const void *bytes, int count, sqlite3_int64 offset)
{
    struct disk_file *file = file_of(handle);

    if (power_is_gone() || disk.broken)
        return SQLITE_IOERR_WRITE;
    if (offset + count > file->now.size &&
        (disk.full ||
         (disk.capacity && disk_used() + offset + count - file->now.size > disk.capacity)))
        return SQLITE_FULL;
    remember(file, false, offset, bytes, count);
    return SQLITE_OK;
}

static int file_truncate(sqlite3_file *handle, sqlite3_int64 size)
{
    if (power_is_gone() || disk.broken)
        return SQLITE_IOERR_TRUNCATE;
    if (disk.greedy && disk.capacity && size < file_of(handle)->now.size)
        disk.capacity -= (file_of(handle)->now.size - size) / 2;
    remember(file_of(handle), true, 0, NULL, size);
    return SQLITE_OK;
}

static int file_sync(sqlite3_file *handle, int flags)
{
    struct disk_file *file = file_of(handle);

    while (disk.hold_syncs) {
        disk.is_holding = true;
        (void)usleep(1000);
    }
    disk.is_holding = false;
    if (power_is_gone() || disk.broken)
        return SQLITE_IOERR_FSYNC;
    if (disk.ignore_syncs)
        return SQLITE_OK;
    for (const struct pending *p = file->first; p; p = p->next)
        apply(&file->durable, p);
    forget_pending(file);
    return SQLITE_OK;
}

static int file_size(sqlite3_file *handle, sqlite3_int64 *ret_size)
{
    *ret_size = file_of(handle)->now.size;
    return SQLITE_OK;
}

static int file_lock(sqlite3_file *handle, int level)
{
    return SQLITE_OK;
}

static int file_check_lock(sqlite3_file *handle, int *ret_locked)
{
    *ret_locked = 0;
    return SQLITE_OK;
}

static int file_control(sqlite3_file *handle, int op, void *arg)
{
    return SQLITE_NOTFOUND;
}

static int file_sector_size(sqlite3_file *handle)
{
    return SECTOR_BYTES;
}

static int file_characteristics(sqlite3_file *handle)
{
    return 0; /* promises nothing */
}

static const sqlite3_io_methods methods = {
    .iVersion = 1,
    .xClose = file_close,
    .xRead = file_read,
    .xWrite = file_write,
    .xTruncate = file_truncate,
    .xSync = file_sync,
    .xFileSize = file_size,
    .xLock = file_lock,
    .xUnlock = file_lock,
    .xCheckReservedLock = file_check_lock,
    .xFileControl = file_control,
    .xSectorSize = file_sector_size,
    .xDeviceCharacteristics = file_characteristics,
};

/* ---- the VFS ----------------------------------------------------------------------------------*/

static struct disk_file *find_file(const char *name)
{
    for (int i = 0; i < FILES_MAX; i++) {
        if (disk.files[i].exists && strcmp(disk.files[i].name, name) == 0)
            return &disk.files[i];
    }
    return NULL;
}

static int vfs_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *handle, int flags,
                    int *ret_flags)
{
    struct disk_file *file = name ? find_file(name) : NULL;

    handle->pMethods = NULL;
    for (int i = 0; !file && i < FILES_MAX; i++) {
        if (disk.files[i].exists)
            continue;
        file = &disk.files[i];
        file->exists = true;
        file->last = &file->first;
        (void)strncpy(file->name, name ? name : "temporary", sizeof file->name - 1);
    }
    if (!file)
        return SQLITE_CANTOPEN;
    ((struct handle *)(void *)handle)->file = file;
    handle->pMethods = &methods;
    if (ret_flags)
        *ret_flags = flags;
    return SQLITE_OK;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *name, int sync_dir)
{
    struct disk_file *file = find_file(name);

    if (power_is_gone())
        return SQLITE_IOERR_DELETE;
    if (!file)
        return SQLITE_IOERR_DELETE_NOENT;
    forget_pending(file);
    file->now.size = file->durable.size = 0;
    file->exists = false;
    memset(file->name, 0, sizeof file->name);
    return SQLITE_OK;
}

static int vfs_access(sqlite3_vfs *vfs, const char *name, int flags, int *ret_there)
{
    const struct disk_file *file = find_file(name);

    *ret_there = file && file->now.size > 0;
    return SQLITE_OK;
}

static int vfs_full_path(sqlite3_vfs *vfs, const char *name, int size, char *ret_path)
{
    (void)sqlite3_snprintf(size, ret_path, "%s", name);
    return SQLITE_OK;
}

static int vfs_randomness(sqlite3_vfs *vfs, int size, char *ret_bytes)
{
    static uint64_t draws; /* the same salts in every run */

    for (int i = 0; i < size; i++)
        ret_bytes[i] = (char)hd_random_u64(99, draws++);
    return size;
}

static int vfs_sleep(sqlite3_vfs *vfs, int microseconds)
{
    return microseconds;
}

static int vfs_time(sqlite3_vfs *vfs, double *ret_days)
{
    *ret_days = 2460000.0;
    return SQLITE_OK;
}

static int vfs_last_error(sqlite3_vfs *vfs, int size, char *ret_text)
{
    return 0;
}

void disk_register(void)
{
    static sqlite3_vfs vfs = {
        .iVersion = 1,
        .szOsFile = sizeof(struct handle),
        .mxPathname = 511,
        .zName = DISK_VFS,
        .xOpen = vfs_open,
        .xDelete = vfs_delete,
        .xAccess = vfs_access,
        .xFullPathname = vfs_full_path,
        .xRandomness = vfs_randomness,
        .xSleep = vfs_sleep,
        .xCurrentTime = vfs_time,
        .xGetLastError = vfs_last_error,
    };

    (void)sqlite3_vfs_register(&vfs, 0);
}
