#include "interpose.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* Calls are noted as they come and told apart later: looking up a caller takes time and locks. */
enum { CALLS_MAX = 1 << 16 };

struct call {
    const char *what;
    void *caller;
    size_t bytes;
};

static struct call calls[CALLS_MAX];
static atomic_long call_count;
static atomic_bool counting;

void interpose_start(void)
{
    atomic_store(&counting, true);
}

void interpose_stop(void)
{
    atomic_store(&counting, false);
}

static enum interpose_caller caller_of(const Dl_info *info)
{
    if (strstr(info->dli_fname, "libdnnl") || strstr(info->dli_fname, "libstdc++"))
        return INTERPOSE_ONEDNN;
    if (strstr(info->dli_fname, "libgomp") || strstr(info->dli_fname, "libomp"))
        return INTERPOSE_OPENMP;
    return INTERPOSE_HEDDLE;
}

void interpose_get(struct interpose_count *ret_count)
{
    const long made = atomic_load(&call_count);

    *ret_count = (struct interpose_count){0};
    for (long i = 0; i < made && i < CALLS_MAX; i++) {
        Dl_info info = {.dli_fname = "?"};
        enum interpose_caller caller;

        (void)dladdr(calls[i].caller, &info);
        caller = caller_of(&info);
        if (caller == INTERPOSE_HEDDLE && !ret_count->calls[caller])
            (void)snprintf(ret_count->first, sizeof ret_count->first,
                           "%s of %zu bytes from %.80s+%#zx", calls[i].what, calls[i].bytes,
                           info.dli_fname,
                           (size_t)((uintptr_t)calls[i].caller - (uintptr_t)info.dli_fbase));
        ret_count->calls[caller]++;
        ret_count->bytes[caller] += calls[i].bytes;
    }
    if (made > CALLS_MAX)
        ret_count->calls[INTERPOSE_HEDDLE] += made - CALLS_MAX;
}

#ifdef SANITIZED

bool interpose_works(void)
{
    return false;
}

#else

bool interpose_works(void)
{
    return true;
}

static void note(const char *what, void *caller, size_t bytes)
{
    long at;

    if (!atomic_load_explicit(&counting, memory_order_relaxed))
        return;
    at = atomic_fetch_add(&call_count, 1);
    if (at < CALLS_MAX)
        calls[at] = (struct call){what, caller, bytes};
}

/* glibc's own, under their other names */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

#pragma GCC visibility push(default) /* libraries must find these, too */

#define NOTE(what, bytes) note(what, __builtin_return_address(0), bytes)

void *malloc(size_t size)
{
    NOTE("malloc", size);
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    NOTE("calloc", count * size);
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    NOTE("realloc", size);
    return __libc_realloc(old, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    NOTE("aligned_alloc", size);
    return __libc_memalign(alignment, size);
}

void *memalign(size_t alignment, size_t size)
{
    NOTE("memalign", size);
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **ret_memory, size_t alignment, size_t size)
{
    void *memory;

    NOTE("posix_memalign", size);
    memory = __libc_memalign(alignment, size);
    if (!memory)
        return ENOMEM;
    *ret_memory = memory;
    return 0;
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    NOTE("mmap", size);
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset);
}

void *mmap64(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    NOTE("mmap", size);
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset);
}

#pragma GCC visibility pop

#endif
