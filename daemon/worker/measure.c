#include "worker/measure.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { SIDE = 256, POOL_BYTES = 64 << 20 };

static const struct hd_backend_options options = {.threads = 1};

/* A product by the library: so its kernels, and what it needs for them, are there. */
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

/* Starts the other process; the caller writes nothing to *ret_in, and closes it to end it. */
static bool start(pid_t *ret_pid, int *ret_in, int *ret_out)
{
    char *const argv[] = {(char *)"heddle-worker", (char *)"device", (char *)"--device",
                          (char *)"cuda",          (char *)"--hold", NULL};
    int in[2] = {-1, -1}, out[2] = {-1, -1};
    posix_spawn_file_actions_t actions;
    bool started = false;

    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0); /* as ranks of several have it, the most */
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

void hd_measure_process(const struct hd_backend_table *table, struct hd_traits *traits)
{
    struct hd_device_memory before, with;
    struct hd_backend *backend;
    int in, out;
    pid_t pid;
    char byte;

    if (table->open(&options, &backend))
        return;
    if (!table->device->memory(backend, &before) && start(&pid, &in, &out)) {
        if (read(out, &byte, 1) == 1 && !table->device->memory(backend, &with)) {
            traits->process_bytes =
                before.free_bytes > with.free_bytes ? before.free_bytes - with.free_bytes : 0;
            traits->process_measured = true;
        }
        (void)close(in);
        (void)close(out);
        (void)waitpid(pid, NULL, 0);
    }
    table->close(backend);
}
