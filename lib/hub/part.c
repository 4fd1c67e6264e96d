/* part: the unfinished file of a download, which a later one continues. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/folder.h"
#include "hub_internal.h"

enum { CHUNK_BYTES = 1 << 20 };

static void free_digests(struct hub_part *part)
{
    for (int i = 0; i < 2; i++) {
        hd_pki_digest_free(part->digests[i]);
        part->digests[i] = NULL;
    }
}

static enum hd_status begin(struct hub_part *part)
{
    free_digests(part);
    return part->begin_digests(part, part->user);
}

static void take_bytes(struct hub_part *part, const void *bytes, size_t count)
{
    for (int i = 0; i < 2; i++)
        if (part->digests[i])
            hd_pki_digest_add(part->digests[i], bytes, count);
    part->have += (int64_t)count;
    (void)__atomic_add_fetch(&part->meter->bytes, (int64_t)count, __ATOMIC_RELAXED);
}

enum hd_status hub_part_empty(struct hub_part *part)
{
    (void)__atomic_add_fetch(&part->meter->bytes, -part->have, __ATOMIC_RELAXED);
    part->have = 0;
    if (ftruncate(part->fd, 0) < 0 || lseek(part->fd, 0, SEEK_SET) < 0)
        return hd_err(hd_file_write_status(errno), "cannot empty %s: %s", part->path.data,
                      hd_file_error_text(errno));
    return begin(part);
}

/* Hashes the bytes of an earlier, interrupted download. */
static enum hd_status hash_part(struct hub_part *part)
{
    char *chunk = malloc(CHUNK_BYTES);
    enum hd_status st = chunk ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to read a file");
    ssize_t n = 1;

    while (!st && n > 0) {
        n = read(part->fd, chunk, CHUNK_BYTES);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n < 0)
            st = hd_err(HD_IO, "cannot read %s: %s", part->path.data, strerror(errno));
        else
            take_bytes(part, chunk, (size_t)n);
        if (!st && hub_is_stopped(part->stop))
            st = hd_err(HD_ABORTED, "interrupted");
    }
    free(chunk);
    return st;
}

enum hd_status hub_part_open(struct hub_part *part, mode_t mode)
{
    struct stat info;
    enum hd_status st;

    part->fd = open(part->path.data, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, mode);
    if (part->fd < 0 || fstat(part->fd, &info) < 0)
        return hd_err(hd_file_write_status(errno), "cannot open %s: %s", part->path.data,
                      hd_file_error_text(errno));
    st = begin(part);
    if (!st)
        st = info.st_size > part->size_bytes ? hub_part_empty(part) : hash_part(part);
    return st;
}

enum hd_status hub_part_add(struct hub_part *part, const void *bytes, size_t count)
{
    const enum hd_status st = hd_file_write_all(part->fd, bytes, count);

    if (st)
        return hd_err_prefix(st, "%s", part->path.data);
    take_bytes(part, bytes, count);
    (void)__atomic_add_fetch(&part->meter->fetched, (int64_t)count, __ATOMIC_RELAXED);
    return HD_OK;
}

enum hd_status hub_part_keep(struct hub_part *part, const char *path)
{
    if (fsync(part->fd) < 0 || rename(part->path.data, path) < 0)
        return hd_err(hd_file_write_status(errno), "cannot keep %s: %s", path,
                      hd_file_error_text(errno));
    return hd_folder_sync_of(path);
}

void hub_part_close(struct hub_part *part)
{
    if (part->fd >= 0)
        (void)close(part->fd);
    free_digests(part);
    hd_text_free(&part->path);
}
