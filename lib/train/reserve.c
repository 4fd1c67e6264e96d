#include "train/reserve.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "train/opened_rank.h"

enum {
    HUGE_BYTES = 2 << 20,
    /* one more thread touches the memory for each PIECE_BYTES of it, up to the rank's threads */
    PIECE_BYTES = 64 << 20,
    TOUCHERS_MAX = 64,
};

/* ---- touching ---- */

struct memory_piece {
    char *base;
    size_t size_bytes;
    int error; /* errno of the thread; 0: none */
    pthread_t thread;
    bool started;
};

static void *touch(void *argument)
{
    struct memory_piece *p = argument;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    while (p->size_bytes && madvise(p->base, p->size_bytes, MADV_POPULATE_WRITE) < 0) {
        if (errno == EINTR || errno == EAGAIN)
            continue;
        if (errno != EINVAL) {
            p->error = errno;
            return NULL;
        }
        /* kernels before 5.14 lack MADV_POPULATE_WRITE */
        for (size_t at = 0; at < p->size_bytes; at += page)
            ((volatile char *)p->base)[at] = 0;
        break;
    }
    return NULL;
}

/* Touches all pages, in several threads, since one core cannot use the whole memory bandwidth. If a
 * thread cannot be started, this thread does its work. */
static enum hd_status touch_all(char *base, size_t size_bytes, int threads)
{
    struct memory_piece pieces[TOUCHERS_MAX] = {0};
    size_t count = size_bytes / PIECE_BYTES + 1, each;
    int error = 0;

    if (count > (size_t)threads)
        count = (size_t)threads;
    if (count > TOUCHERS_MAX)
        count = TOUCHERS_MAX;
    each = (size_bytes / count + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    for (size_t i = 0, at = 0; i < count; i++) {
        struct memory_piece *p = &pieces[i];

        p->base = base + at;
        p->size_bytes = i + 1 == count || size_bytes - at < each ? size_bytes - at : each;
        at += p->size_bytes;
        p->started = i + 1 < count && pthread_create(&p->thread, NULL, touch, p) == 0;
        if (!p->started)
            (void)touch(p);
    }
    for (size_t i = 0; i < count; i++) {
        if (pieces[i].started)
            (void)pthread_join(pieces[i].thread, NULL);
        error = pieces[i].error ? pieces[i].error : error;
    }
    return error ? hd_err(HD_NO_MEMORY, "cannot back %zu bytes: %s", size_bytes, strerror(error))
                 : HD_OK;
}

static enum hd_status reserve_host(int64_t size_bytes, int threads, struct hd_private *p)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t used = ((size_t)size_bytes + page - 1) / page * page;
    void *map;

    p->map_bytes = used + page + HUGE_BYTES;
    map = mmap(NULL, p->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return hd_err(HD_NO_MEMORY, "cannot reserve %zu bytes: %s", used, strerror(errno));
    p->map = map;
    p->host_base = (char *)(((uintptr_t)map + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);
    (void)madvise(p->host_base, used, MADV_HUGEPAGE); /* a hint: fewer faults, fewer TLB misses */
    if (mprotect(p->host_base, used, PROT_READ | PROT_WRITE) < 0)
        return hd_err(HD_NO_MEMORY, "cannot back %zu bytes: %s", used, strerror(errno));
    return touch_all(p->host_base, used, threads);
}

enum hd_status hd_rank_reserve(struct hd_opened_rank *o, int64_t size_bytes, int64_t host_bytes,
                               int threads)
{
    const struct hd_device_table *device = o->table->device;
    struct hd_private *p = &o->memory;
    void *base = NULL;
    enum hd_status st = HD_OK;

    host_bytes = device ? host_bytes : size_bytes;
    if (host_bytes)
        st = reserve_host(host_bytes, threads, p);
    if (st)
        return st;
    if (!device) {
        p->base = p->host_base;
        return HD_OK;
    }
    st = device->reserve(o->backend, size_bytes, false, &base);
    if (st)
        return st;
    p->base = base;
    o->staging.host_begin = p->host_base;
    o->staging.host_end = p->host_base + host_bytes;
    return HD_OK;
}

void hd_rank_release(struct hd_opened_rank *o)
{
    if (o->memory.base && o->table->device)
        o->table->device->release(o->backend, o->memory.base);
    if (o->memory.map)
        (void)munmap(o->memory.map, o->memory.map_bytes);
    o->memory = (struct hd_private){0};
}

/* ---- queries ---- */

int64_t hd_memory_resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    long long pages = 0;

    if (!file || fscanf(file, "%*s %lld", &pages) != 1)
        pages = 0;
    if (file)
        (void)fclose(file);
    return pages * (int64_t)sysconf(_SC_PAGESIZE);
}

int64_t hd_memory_huge_bytes(const void *base, int64_t size_bytes)
{
    const unsigned long long begin = (uintptr_t)base, end = begin + (unsigned long long)size_bytes;
    FILE *file = fopen("/proc/self/smaps", "re");
    unsigned long long from, to, kib;
    int64_t bytes = 0;
    char *line = NULL;
    size_t capacity = 0;
    bool inside = false;

    while (file && getline(&line, &capacity, file) > 0) {
        /* true: the line is the first one of a mapping, with its addresses */
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2)
            inside = from < end && to > begin;
        else if (inside && (sscanf(line, "AnonHugePages: %llu", &kib) == 1 ||
                            sscanf(line, "ShmemPmdMapped: %llu", &kib) == 1))
            bytes += (int64_t)kib * 1024;
    }
    free(line);
    if (file)
        (void)fclose(file);
    return bytes;
}
