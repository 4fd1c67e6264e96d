#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    THREADS_MAX = 256,             /* most threads that check_threads starts */
    CORES_MAX = 32,                /* number of cores up to which gRPC starts more threads */
    GRPC_THREADS = 8,              /* threads of gRPC, besides one per core */
    CHECK_STACK_BYTES = 256 << 10, /* bytes; stack of a thread that check_threads starts and that
                                      only waits */
    STACK_BYTES = 8 << 20,         /* bytes; default of most systems; a limit below STACK_BYTES_MIN
                                      is raised to it */
    STACK_BYTES_MIN = 2 << 20      /* bytes; threads of gRPC and TLS overflow a smaller stack */
};

struct hd_process_needs hd_process_needs_of_grpc(int files, int threads)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const int cores = online < 1 ? 1 : online > CORES_MAX ? CORES_MAX : (int)online;

    return (struct hd_process_needs){.files = files, .threads = threads + GRPC_THREADS + cores};
}

static enum hd_status open_streams(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF)
            continue;
        /* open returns the lowest free number, which is fd, because all below it are open */
        if (open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd)
            return hd_err(HD_IO, "cannot open /dev/null for the closed descriptor %d: %s", fd,
                          strerror(errno));
    }
    return HD_OK;
}

static enum hd_status check_files(int needed)
{
    struct rlimit limit;
    const rlim_t wanted = (rlim_t)needed;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return hd_err(HD_INTERNAL, "cannot read the limit of open files: %s", strerror(errno));
    if (limit.rlim_cur >= wanted)
        return HD_OK;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (limit.rlim_cur >= wanted && setrlimit(RLIMIT_NOFILE, &limit) == 0)
        return HD_OK;
    return hd_err(HD_LIMIT,
                  "%d open files are needed, and the limit is %llu; raise it (ulimit -n, or "
                  "LimitNOFILE= in the systemd unit)",
                  needed, (unsigned long long)limit.rlim_max);
}

/* Raises the soft limit of the first thread's stack, which may grow up to the current limit, and
 * sets the default stack size of other threads. */
static enum hd_status widen_stacks(void)
{
    struct rlimit limit;
    pthread_attr_t attr;
    size_t bytes = 0;
    int error;

    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < STACK_BYTES_MIN) {
        limit.rlim_cur = limit.rlim_max == RLIM_INFINITY || limit.rlim_max > STACK_BYTES
                             ? STACK_BYTES
                             : limit.rlim_max;
        if (limit.rlim_cur < STACK_BYTES_MIN || setrlimit(RLIMIT_STACK, &limit) < 0)
            return hd_err(HD_LIMIT,
                          "a stack of %d KiB is needed, and the limit is %llu KiB; raise it "
                          "(ulimit -s, or LimitSTACK= in the systemd unit)",
                          STACK_BYTES_MIN >> 10, (unsigned long long)limit.rlim_max >> 10);
    }
    error = pthread_getattr_default_np(&attr);
    if (error)
        return hd_err(HD_INTERNAL, "cannot read the size of stacks: %s", strerror(error));
    error = pthread_attr_getstacksize(&attr, &bytes);
    if (!error && bytes < STACK_BYTES_MIN) {
        error = pthread_attr_setstacksize(&attr, STACK_BYTES);
        if (!error)
            error = pthread_setattr_default_np(&attr);
    }
    (void)pthread_attr_destroy(&attr);
    return error ? hd_err(HD_LIMIT, "cannot make stacks of %d MiB: %s", STACK_BYTES >> 20,
                          strerror(error))
                 : HD_OK;
}

static void *wait_at(void *gate)
{
    (void)pthread_mutex_lock(gate);
    (void)pthread_mutex_unlock(gate);
    return NULL;
}

/* Checks that `needed` threads can exist at the same time: starts them, each of which waits until
 * the last one is started, and ends them. HD_LIMIT: one cannot be started. */
static enum hd_status check_threads(int needed)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t threads[THREADS_MAX];
    const int count = needed < THREADS_MAX ? needed : THREADS_MAX;
    pthread_attr_t attr;
    int started = 0, error = pthread_attr_init(&attr);

    if (error)
        return hd_err(HD_NO_MEMORY, "cannot start a thread: %s", strerror(error));
    error = pthread_attr_setstacksize(&attr, CHECK_STACK_BYTES);
    (void)pthread_mutex_lock(&gate);
    while (!error && started < count) {
        error = pthread_create(&threads[started], &attr, wait_at, &gate);
        started += !error;
    }
    (void)pthread_mutex_unlock(&gate);
    for (int i = 0; i < started; i++)
        (void)pthread_join(threads[i], NULL);
    (void)pthread_attr_destroy(&attr);
    if (!error)
        return HD_OK;
    return hd_err(HD_LIMIT,
                  "%d threads are needed, and only %d can be started: %s; raise the limit of "
                  "processes (ulimit -u, or TasksMax= in the systemd unit)",
                  count, started, strerror(error));
}

enum hd_status hd_process_prepare(const struct hd_process_needs *needs)
{
    enum hd_status st = open_streams();

    if (!st)
        st = check_files(needs->files);
    if (!st)
        st = widen_stacks();
    if (!st)
        st = check_threads(needs->threads);
    return st;
}

bool hd_process_prepare_or_tell(const char *program, const struct hd_process_needs *needs)
{
    if (hd_process_prepare(needs) == HD_OK)
        return true;
    (void)fprintf(stderr, "%s: %s\n", program, hd_err_message());
    return false;
}

enum hd_status hd_process_find_beside(const char *name, char ret_path[PATH_MAX])
{
    char self[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    if (n < 0)
        return hd_err(HD_IO, "cannot read /proc/self/exe to find this program's folder: %s",
                      strerror(errno));
    self[n] = '\0';
    return snprintf(ret_path, PATH_MAX, "%s/%s", dirname(self), name) < PATH_MAX
               ? HD_OK
               : hd_err(HD_LIMIT, "the path of %s is too long", name);
}
