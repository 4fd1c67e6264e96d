/* ran: records which kernels ran, and the threads per block, for tests/cudasim/every_kernel. */
#include <assert.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/cudasim/internal.h"

enum { KERNELS_MAX = 1024 }; /* per process: a power of two, more than the plug-in has */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const void *kernel;
    unsigned threads; /* largest block so far */
} seen[KERNELS_MAX];

/* Appends a line to the file of this process. */
static void tell(const char *folder, const void *kernel, unsigned threads)
{
    char path[4096], line[4200];
    Dl_info where;
    int fd, length;

    if (!dladdr(kernel, &where))
        return;
    (void)snprintf(path, sizeof path, "%s/%ld", folder, (long)getpid());
    length = snprintf(line, sizeof line, "%zx\t%u\t%s\n",
                      (size_t)((const char *)kernel - (const char *)where.dli_fbase), threads,
                      where.dli_fname);
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, line, (size_t)length) != length)
        perror(path); /* every_kernel will report that the kernel did not run */
    if (fd >= 0)
        (void)close(fd);
}

void hd_sim_note_run(const void *kernel, unsigned threads)
{
    const char *folder = getenv("HEDDLE_CUDASIM_RAN");
    size_t at = ((uintptr_t)kernel >> 4) * 0x9e3779b97f4a7c15u % KERNELS_MAX;
    bool news;

    if (!folder || !*folder)
        return;
    (void)pthread_mutex_lock(&lock);
    for (int n = 0; seen[at].kernel && seen[at].kernel != kernel; n++) {
        assert(n < KERNELS_MAX);
        at = (at + 1) % KERNELS_MAX;
    }
    news = threads > seen[at].threads;
    if (news) {
        seen[at].kernel = kernel;
        seen[at].threads = threads;
    }
    (void)pthread_mutex_unlock(&lock);
    if (news)
        tell(folder, kernel, threads);
}
