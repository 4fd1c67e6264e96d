/* clock: loaded into the programs of a scenario (LD_PRELOAD), sets their wall clock ahead or back
 * by the seconds that the file $FAKE_CLOCK says: 11 characters, such as "+0002160000", which the
 * scenario overwrites in place. The monotonic clock goes on. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 11 };

static const char *shown; /* the file; NULL: there is none */

static void __attribute__((constructor)) begin(void)
{
    const char *path = getenv("FAKE_CLOCK");
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);

    if (fd >= 0)
        (void)close(fd);
    shown = at == MAP_FAILED ? NULL : at;
}

static time_t ahead_s(void)
{
    long seconds = 0;

    for (int i = 1; shown && i < BYTES; i++)
        seconds = seconds * 10 + (shown[i] - '0');
    return shown && shown[0] == '-' ? -seconds : seconds;
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *ret)
{
    const long code = syscall(SYS_clock_gettime, id, ret);

    if (!code && id == CLOCK_REALTIME)
        ret->tv_sec += ahead_s();
    return (int)code;
}

__attribute__((visibility("default"))) time_t time(time_t *ret)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (ret)
        *ret = now.tv_sec;
    return now.tv_sec;
}

__attribute__((visibility("default"))) int gettimeofday(struct timeval *restrict ret,
                                                        void *restrict zone)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    *ret = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}
