#include "worker/measure.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

extern char **environ;

enum {
    SIDE = 256,
    POOL_BYTES = 64 << 20,
    END_MS = 2000,    /* ms in which the second process must free its memory and end */
    KILLED_MS = 1000, /* ms in which the second process must end after SIGKILL */
};

static const struct hd_backend_options options = {.threads = 1};

/* Computes one matrix product with the GEMM library, so that the library loads its kernels and
 * takes its workspace. */
static enum hd_status compute(const struct hd_backend_table *table, struct hd_backend *backend,
                              struct hd_stream *stream)
{
    const int64_t bytes = (int64_t)SIDE * SIDE * 2;
    struct hd_gemm_args args = {.M = SIDE,
                                .N = SIDE,
                                .K = SIDE,
                                .lda = SIDE,
                                .ldb = SIDE,
                                .ldc = SIDE,
                                .ab_dtype = HD_BF16,
                                .c_dtype = HD_BF16};
    void *pool;
    enum hd_status st = table->device->reserve(backend, POOL_BYTES, false, &pool);

    if (st)
        return st;
    args.a = pool;
    args.b = (char *)pool + bytes;
    args.c = (char *)pool + 2 * bytes;
    args.scratch = (char *)pool + 3 * bytes;
    st = table->prepare(backend, HD_K_gemm, &args);
    if (!st)
        st = hd_launch(stream, HD_K_gemm, &args);
    if (!st)
        st = table->synchronize(stream);
    table->device->release(backend, pool);
    return st;
}

enum hd_status hd_measure_hold(const struct hd_backend_table *table)
{
    struct hd_stream *stream = NULL;
    struct hd_backend *backend;
    enum hd_status st = table->open(&options, &backend);

    if (st)
        return st;
    st = table->stream_open(backend, HD_STREAM_FOR_COMPUTE, &stream);
    if (!st)
        st = compute(table, backend, stream);
    if (!st) {
        (void)puts("held");
        (void)fflush(stdout);
        while (getchar() != EOF)
            ;
    }
    if (stream)
        table->stream_close(stream);
    table->close(backend);
    return st;
}

/* Starts the second process; the caller writes nothing to *ret_in, and closes it to end the
 * process. */
static bool start(pid_t *ret_pid, int *ret_in, int *ret_out)
{
    char *const argv[] = {(char *)"heddle-worker", (char *)"device", (char *)"--device",
                          (char *)"cuda",          (char *)"--hold", NULL};
    int in[2] = {-1, -1}, out[2] = {-1, -1};
    posix_spawn_file_actions_t actions;
    bool started = false;

    (void)setenv("CUDA_MODULE_LOADING", "EAGER",
                 /* loads all kernels at once, as ranks of a job with several ranks do: uses the
                  * most memory */
                 0);
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || posix_spawn_file_actions_init(&actions))
        goto done;
    started = !posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO) &&
              !posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO) &&
              !posix_spawn(ret_pid, "/proc/self/exe", &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
done:
    (void)close(in[0]);
    (void)close(out[1]);
    if (!started) {
        (void)close(in[1]);
        (void)close(out[0]);
        return false;
    }
    *ret_in = in[1];
    *ret_out = out[0];
    return true;
}

/* Returns true if the second process prints something within timeout_ms. */
static bool hears(int out, int timeout_ms)
{
    const int64_t end_ms = hd_clock_now_ms() + timeout_ms;
    struct pollfd p = {out, POLLIN, 0};
    char byte;
    int n;

    do {
        const int64_t left_ms = end_ms - hd_clock_now_ms();

        n = poll(&p, 1, left_ms > 0 ? (int)left_ms : 0);
    } while (n < 0 && errno == EINTR);
    return n > 0 && read(out, &byte, 1) == 1;
}

static bool ends(pid_t pid, int within_ms)
{
    const int64_t end_ms = hd_clock_now_ms() + within_ms;
    pid_t ended;

    while ((ended = waitpid(pid, NULL, WNOHANG)) == 0 && hd_clock_now_ms() < end_ms)
        (void)usleep(2000);
    return ended != 0;
}

void hd_measure_process(const struct hd_backend_table *table, int timeout_ms,
                        struct hd_traits *traits)
{
    struct hd_device_memory before, with;
    struct hd_backend *backend;
    int in, out;
    bool heard;
    pid_t pid;

    if (table->open(&options, &backend))
        return;
    if (!table->device->memory(backend, &before) && start(&pid, &in, &out)) {
        heard = hears(out, timeout_ms);
        if (heard && !table->device->memory(backend, &with)) {
            traits->process_bytes =
                before.free_bytes > with.free_bytes ? before.free_bytes - with.free_bytes : 0;
            traits->process_measured = true;
        }
        (void)close(in);
        (void)close(out);
        if (!heard || !ends(pid, END_MS)) {
            (void)kill(pid, SIGKILL);
            (void)ends(pid, KILLED_MS);
        }
    }
    table->close(backend);
}
