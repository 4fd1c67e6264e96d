/* one_map: lets the thread sanitizer see the engine shm.
 *
 * Each rank maps the shared memory by itself, so ranks that are threads of one process see the same
 * bytes at different addresses, and the sanitizer takes them for different memory. Linked with
 * --wrap=mmap,--wrap=munmap this gives every mapping of one file the same address, and so shows the
 * sanitizer every access that the engine's stamps and doorbells do not order. Used in that build
 * alone.
 */
#include <assert.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *at, size_t bytes);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void *at, size_t bytes);

enum { MAPS_MAX = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    dev_t device;
    ino_t inode;
    void *base;
    int users;
} maps[MAPS_MAX];

void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    int unused = -1, i;
    struct stat stat;
    void *base;

    if (fd < 0 || !(flags & MAP_SHARED) || fstat(fd, &stat) < 0)
        return __real_mmap(at, bytes, protection, flags, fd, offset);
    (void)pthread_mutex_lock(&lock);
    for (i = 0; i < MAPS_MAX; i++) {
        if (maps[i].users && maps[i].device == stat.st_dev && maps[i].inode == stat.st_ino)
            break;
        if (!maps[i].users)
            unused = i;
    }
    if (i == MAPS_MAX) {
        assert(unused >= 0);
        i = unused;
        maps[i].device = stat.st_dev;
        maps[i].inode = stat.st_ino;
        maps[i].base = __real_mmap(at, bytes, protection, flags, fd, offset);
    }
    base = maps[i].base;
    maps[i].users += base != MAP_FAILED;
    (void)pthread_mutex_unlock(&lock);
    return base;
}

int __wrap_munmap(void *at, size_t bytes)
{
    int result = 0;
    int i;

    (void)pthread_mutex_lock(&lock);
    for (i = 0; i < MAPS_MAX && !(maps[i].users && maps[i].base == at); i++)
        ;
    if (i == MAPS_MAX || --maps[i].users == 0)
        result = __real_munmap(at, bytes);
    (void)pthread_mutex_unlock(&lock);
    return result;
}
