/* Tests that the emulated CUDA runtime guarantees what host code may rely on, and no more. */
#include <cudasim_engine.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cudasim/cudasim.h"
#include "tests/cudasim/probe.h"
#include "tests/program/test.h"

enum { N = 1000, SEEDS = 40 };

static cudaStream_t new_stream(void)
{
    cudaStream_t stream;

    assert_int_equal(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1), cudaSuccess);
    return stream;
}

static cudaEvent_t new_event(void)
{
    cudaEvent_t event;

    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    return event;
}

/* ---- Memory ---- */

static void memory_is_poison_at_first_and_counted(void **state)
{
    unsigned char *memory;
    void *pinned, *nothing;
    size_t before, now, total;

    assert_int_equal(cudaMemGetInfo(&before, &total), cudaSuccess);
    assert_int_equal(cudaMalloc((void **)&memory, N), cudaSuccess);
    assert_int_equal((uintptr_t)memory % 256, 0);
    for (int i = 0; i < N; i++)
        assert_int_equal(memory[i], 0xff);
    assert_int_equal(cudaHostAlloc(&pinned, 24, cudaHostAllocMapped), cudaSuccess);
    assert_int_equal(cudaMemGetInfo(&now, &total), cudaSuccess);
    assert_int_equal(before - now, N);
    assert_int_equal(hd_cudasim_allocated(), N);
    assert_int_equal(cudaFree(memory), cudaSuccess);
    assert_int_equal(cudaFreeHost(pinned), cudaSuccess);
    assert_int_equal(cudaFree(NULL), cudaSuccess);
    assert_int_equal(hd_cudasim_allocated(), 0);
    assert_int_equal(cudaMalloc(&nothing, 0), cudaSuccess);
    assert_null(nothing);
}

static void what_is_more_than_there_is_is_refused(void **state)
{
    void *first, *second;

    hd_cudasim_memory(10000);
    assert_int_equal(cudaMalloc(&first, 6000), cudaSuccess);
    assert_int_equal(cudaMalloc(&second, 4001), cudaErrorMemoryAllocation);
    assert_null(second);
    assert_int_equal(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    assert_string_equal(cudaGetErrorName(cudaGetLastError()), "cudaErrorMemoryAllocation");
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(cudaMalloc(&second, 4000), cudaSuccess);
    assert_int_equal(cudaFree(first), cudaSuccess);
    assert_int_equal(cudaFree(second), cudaSuccess);
    hd_cudasim_memory((size_t)8 << 30);
}

static void devices_are_as_many_as_are_set(void **state)
{
    struct cudaDeviceProp prop;
    size_t free_bytes, total;
    void *memory;
    char bus[16];
    int count;

    hd_cudasim_devices(0);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    assert_int_equal(cudaMalloc(&memory, 1), cudaErrorNoDevice);
    hd_cudasim_devices(3);
    assert_int_equal(cudaGetDeviceCount(&count), cudaSuccess);
    assert_int_equal(count, 3);
    assert_int_equal(cudaSetDevice(3), cudaErrorInvalidDevice);
    assert_int_equal(cudaSetDevice(2), cudaSuccess);
    assert_int_equal(cudaMalloc(&memory, 100), cudaSuccess);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
    assert_int_equal(free_bytes, total); /* each device has its own memory */
    assert_int_equal(cudaFree(memory), cudaSuccess);
    assert_int_equal(cudaGetDeviceProperties(&prop, 1), cudaSuccess);
    assert_int_equal(prop.warpSize, 32);
    assert_int_equal(cudaDeviceGetPCIBusId(bus, sizeof bus, 1), cudaSuccess);
    assert_string_equal(bus, "0000:02:00.0");
    hd_cudasim_devices(1);
    (void)cudaGetLastError();
}

/* Goal: a copy with the wrong kind of memory, or beyond the end of an allocation, is refused. */
static void copies_are_held_against_what_they_touch(void **state)
{
    char host[N], *device, *pinned;

    memset(host, 1, sizeof host);
    assert_int_equal(cudaMalloc((void **)&device, N), cudaSuccess);
    assert_int_equal(cudaMallocHost((void **)&pinned, N), cudaSuccess);
    assert_int_equal(cudaMemcpy(device, host, N, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(cudaMemcpy(device + 1, host, N, cudaMemcpyHostToDevice),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(device, host, N, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(device, host, N, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(pinned, device, N, cudaMemcpyDeviceToDevice),
                     cudaErrorInvalidValue); /* although the device may access it */
    assert_int_equal(cudaMemset(host, 0, N), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(device + 10, 5, N - 10), cudaSuccess);
    assert_int_equal(cudaMemset(device + 10, 5, N - 9), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(pinned, device, N, cudaMemcpyDefault), cudaSuccess);
    assert_int_equal(pinned[9], 1);
    assert_int_equal(pinned[10], 5);
    assert_int_equal(cudaFree(pinned), cudaErrorInvalidValue);
    assert_int_equal(cudaFreeHost(pinned), cudaSuccess);
    assert_int_equal(cudaFree(device), cudaSuccess);
    assert_int_equal(cudaFree(device), cudaErrorInvalidValue); /* already freed */
    (void)cudaGetLastError();
}

/* ---- Streams that are queues ---- */

static void lazy_work_waits_until_somebody_waits_for_it(void **state)
{
    const unsigned grid[3] = {1, 1, 1}, block[3] = {32, 1, 1};
    struct hd_cuda_stream s = {0};
    int *out;

    hd_cudasim_lazy(true, 1);
    s.handle = new_stream();
    assert_int_equal(cudaMalloc((void **)&out, 32 * sizeof *out), cudaSuccess);
    assert_int_equal(probe_index(&s, out, 5, grid, block), HD_OK);
    assert_int_equal(hd_cudasim_pending(), 1);
    assert_int_equal(out[0], -1); /* poison */
    assert_int_equal(cudaStreamSynchronize(s.handle), cudaSuccess);
    assert_int_equal(out[31], 36);

    assert_int_equal(probe_index(&s, out, 6, grid, block), HD_OK);
    while (cudaStreamQuery(s.handle) == cudaErrorNotReady)
        ;
    assert_int_equal(out[31], 37);

    assert_int_equal(probe_index(&s, out, 7, grid, block), HD_OK);
    assert_int_equal(cudaStreamDestroy(s.handle), cudaSuccess); /* its work still runs */
    assert_int_equal(out[31], 37);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(out[31], 38);
    assert_int_equal(cudaFree(out), cudaSuccess);
    hd_cudasim_lazy(false, 0);
}

/* One stream writes, another copies; with `edge` it waits for an event first. Returns true if the
 * copy is correct. The event was also recorded earlier: the wait must be for its newest record. */
static bool copy_after_write(uint64_t seed, bool edge)
{
    const unsigned grid[3] = {1, 1, 1}, block[3] = {32, 1, 1};
    struct hd_cuda_stream writer = {0};
    cudaStream_t reader;
    cudaEvent_t event;
    int *out, *copy;
    bool right = true;

    hd_cudasim_lazy(true, seed);
    writer.handle = new_stream();
    reader = new_stream();
    event = new_event();
    assert_int_equal(cudaMalloc((void **)&out, 32 * sizeof *out), cudaSuccess);
    assert_int_equal(cudaMallocHost((void **)&copy, 32 * sizeof *copy), cudaSuccess);
    assert_int_equal(cudaEventRecord(event, writer.handle), cudaSuccess);
    assert_int_equal(cudaMemsetAsync(out, 0, 32 * sizeof *out, writer.handle), cudaSuccess);
    assert_int_equal(probe_index(&writer, out, 1, grid, block), HD_OK);
    if (edge) {
        assert_int_equal(cudaEventRecord(event, writer.handle), cudaSuccess);
        assert_int_equal(cudaStreamWaitEvent(reader, event, 0), cudaSuccess);
    }
    assert_int_equal(cudaMemcpyAsync(copy, out, 32 * sizeof *copy, cudaMemcpyDeviceToHost, reader),
                     cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(reader), cudaSuccess);
    for (int i = 0; i < 32; i++)
        right = right && copy[i] == 1 + i;
    assert_int_equal(cudaEventRecord(event, writer.handle), cudaSuccess);
    assert_int_equal(cudaEventSynchronize(event), cudaSuccess);
    assert_int_equal(cudaEventQuery(event), cudaSuccess);
    assert_int_equal(out[31], 32);
    assert_int_equal(cudaEventDestroy(event), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(writer.handle), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(reader), cudaSuccess);
    assert_int_equal(cudaFree(out), cudaSuccess);
    assert_int_equal(cudaFreeHost(copy), cudaSuccess);
    hd_cudasim_lazy(false, 0);
    return right;
}

static void a_missing_edge_between_streams_is_seen(void **state)
{
    int right = 0;

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        assert_true(copy_after_write(seed, true));
        right += copy_after_write(seed, false);
    }
    assert_true(right < SEEDS);
    assert_true(right > 0); /* the orders differ */
}

/* Goal: after an asynchronous copy, pageable source memory may be reused at once, pinned memory
 * only after the copy; a copy to pageable memory has ended when it returns. */
static void pageable_memory_is_free_at_once_pinned_memory_after_the_copy(void **state)
{
    cudaStream_t stream;
    int pageable = 1, *pinned, *device;

    hd_cudasim_lazy(true, 1);
    stream = new_stream();
    assert_int_equal(cudaMalloc((void **)&device, 2 * sizeof *device), cudaSuccess);
    assert_int_equal(cudaMallocHost((void **)&pinned, sizeof *pinned), cudaSuccess);
    *pinned = 1;
    assert_int_equal(cudaMemcpyAsync(device, &pageable, 4, cudaMemcpyHostToDevice, stream),
                     cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(device + 1, pinned, 4, cudaMemcpyHostToDevice, stream),
                     cudaSuccess);
    pageable = *pinned = 2;
    assert_int_equal(hd_cudasim_pending(), 2);
    assert_int_equal(cudaMemcpyAsync(&pageable, device, 4, cudaMemcpyDeviceToHost, stream),
                     cudaSuccess);
    assert_int_equal(pageable, 1);
    assert_int_equal(device[1], 2);
    assert_int_equal(hd_cudasim_pending(), 0);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
    assert_int_equal(cudaFreeHost(pinned), cudaSuccess);
    assert_int_equal(cudaFree(device), cudaSuccess);
    hd_cudasim_lazy(false, 0);
}

/* Goal: the legacy stream waits for other streams, except those created as non-blocking. */
static void the_legacy_stream_waits_for_blocking_streams(void **state)
{
    cudaStream_t blocking, other;
    unsigned char *device;

    hd_cudasim_lazy(true, 1);
    assert_int_equal(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault), cudaSuccess);
    other = new_stream();
    assert_int_equal(cudaMalloc((void **)&device, 3), cudaSuccess);
    assert_int_equal(cudaMemsetAsync(device, 1, 1, other), cudaSuccess);
    assert_int_equal(cudaMemsetAsync(device + 1, 2, 1, blocking), cudaSuccess);
    assert_int_equal(cudaMemsetAsync(device + 1, 3, 1, blocking), cudaSuccess);
    assert_int_equal(cudaMemset(device + 2, device[1] == 0xff ? 4 : 5, 1), cudaSuccess);
    assert_int_equal(device[1], 3);
    assert_int_equal(device[2], 4);
    assert_int_equal(cudaStreamSynchronize(other), cudaSuccess);
    assert_int_equal(device[0], 1);
    assert_int_equal(cudaStreamDestroy(blocking), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(other), cudaSuccess);
    assert_int_equal(cudaFree(device), cudaSuccess);
    hd_cudasim_lazy(false, 0);
}

static void increment(void *number)
{
    ++*(int *)number;
}

static void host_functions_and_timed_events_run_in_order(void **state)
{
    cudaEvent_t first, last, untimed = new_event();
    cudaStream_t stream;
    int number = 0;
    float ms = -1;

    hd_cudasim_lazy(true, 1);
    stream = new_stream();
    assert_int_equal(cudaEventCreate(&first), cudaSuccess);
    assert_int_equal(cudaEventCreate(&last), cudaSuccess);
    assert_int_equal(cudaLaunchHostFunc(stream, increment, &number), cudaSuccess);
    assert_int_equal(cudaEventRecord(first, stream), cudaSuccess);
    assert_int_equal(cudaLaunchHostFunc(stream, increment, &number), cudaSuccess);
    assert_int_equal(cudaEventRecord(last, stream), cudaSuccess);
    assert_int_equal(cudaEventElapsedTime(&ms, first, last), cudaErrorNotReady);
    assert_int_equal(cudaEventSynchronize(first), cudaSuccess);
    assert_int_equal(number, 1);
    assert_int_equal(cudaEventSynchronize(last), cudaSuccess);
    assert_int_equal(number, 2);
    assert_int_equal(cudaEventElapsedTime(&ms, first, last), cudaSuccess);
    assert_true(ms > 0);
    assert_int_equal(cudaEventElapsedTime(&ms, first, untimed), cudaErrorInvalidResourceHandle);
    (void)cudaGetLastError();
    assert_int_equal(cudaEventDestroy(first), cudaSuccess);
    assert_int_equal(cudaEventDestroy(last), cudaSuccess);
    assert_int_equal(cudaEventDestroy(untimed), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
    hd_cudasim_lazy(false, 0);
}

/* ---- Launches ---- */

enum { STATIC_BYTES = 4096 };

static void with_an_array(void *unused)
{
    static struct hd_cudasim_shared_site site = {"array", __FILE__, __LINE__};

    (void)hd_cudasim_shared(&site, STATIC_BYTES);
}

static void forget(void *unused)
{
}

static cudaError_t launch_with(size_t dynamic_bytes)
{
    const struct dim3 one = {1, 1, 1};
    const cudaError_t error =
        hd_cudasim_launch(NULL, (const void *)with_an_array, "with_an_array", one, one,
                          dynamic_bytes, with_an_array, forget, NULL);

    (void)cudaGetLastError();
    return error;
}

static cudaError_t allow(int dynamic_bytes)
{
    const cudaError_t error = cudaFuncSetAttribute(
        (const void *)with_an_array, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic_bytes);

    (void)cudaGetLastError();
    return error;
}

/* Goal: 48 KB in all unless the kernel asked for more; then no more than it asked for, and with its
 * static arrays no more than the device has. Method: one byte too many at each limit. */
static void shared_memory_has_the_limits_of_a_device(void **state)
{
    enum { USUAL = 48 * 1024, DEVICE = 227 * 1024, ASKED = 100 * 1024 };
    struct cudaFuncAttributes attributes;

    assert_int_equal(launch_with(0), cudaSuccess); /* now its array is known */
    assert_int_equal(cudaFuncGetAttributes(&attributes, (const void *)with_an_array), cudaSuccess);
    assert_int_equal(attributes.sharedSizeBytes, STATIC_BYTES);
    assert_int_equal(attributes.maxDynamicSharedSizeBytes, USUAL - STATIC_BYTES);
    assert_int_equal(launch_with(USUAL - STATIC_BYTES), cudaSuccess);
    assert_int_equal(launch_with(USUAL - STATIC_BYTES + 1), cudaErrorInvalidValue);
    assert_int_equal(allow(DEVICE - STATIC_BYTES + 1), cudaErrorInvalidValue);
    assert_int_equal(allow(ASKED), cudaSuccess);
    assert_int_equal(launch_with(ASKED), cudaSuccess); /* and the array */
    assert_int_equal(launch_with(ASKED + 1), cudaErrorInvalidValue);
    assert_int_equal(allow(DEVICE - STATIC_BYTES), cudaSuccess);
    assert_int_equal(launch_with(DEVICE - STATIC_BYTES), cudaSuccess);
}

/* ---- Handles ---- */

enum misuse {
    NO_MISUSE, /* all calls, each in time */
    STREAM_AFTER_ITS_END,
    STREAM_TWICE,
    STREAM_NEVER,
    LAUNCH_AFTER_ITS_END,
    RECORD_AFTER_ITS_END,
    EVENT_AFTER_ITS_END,
    EVENT_TWICE,
    WAIT_AFTER_ITS_END
};

static void misuse(enum misuse what)
{
    const unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
    struct hd_cuda_stream s = {.handle = new_stream()};
    const cudaStream_t other = new_stream(), never = calloc(1, 1024);
    const cudaEvent_t event = new_event();
    int out;

    (void)cudaEventRecord(event, s.handle);
    (void)cudaStreamDestroy(s.handle);
    if (what == STREAM_AFTER_ITS_END)
        (void)cudaStreamSynchronize(s.handle);
    if (what == STREAM_TWICE)
        (void)cudaStreamDestroy(s.handle);
    if (what == STREAM_NEVER)
        (void)cudaStreamQuery(never);
    if (what == LAUNCH_AFTER_ITS_END)
        (void)probe_index(&s, &out, 0, grid, block);
    if (what == RECORD_AFTER_ITS_END)
        (void)cudaEventRecord(event, s.handle);
    (void)cudaStreamWaitEvent(other, event, 0); /* the event outlives its stream */
    (void)cudaEventDestroy(event);
    if (what == EVENT_AFTER_ITS_END)
        (void)cudaEventQuery(event);
    if (what == EVENT_TWICE)
        (void)cudaEventDestroy(event);
    if (what == WAIT_AFTER_ITS_END)
        (void)cudaStreamWaitEvent(other, event, 0);
    (void)cudaStreamDestroy(other);
    free((void *)never);
}

/* Goal: a stream or event that is none ends the program, as it may on a device. Method: a child
 * process per mistake, and one without any. */
static void a_handle_that_is_none_ends_the_program(void **state)
{
    for (int what = NO_MISUSE; what <= WAIT_AFTER_ITS_END; what++) {
        int status = 0;
        pid_t child;

        (void)fflush(NULL);
        child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            (void)signal(SIGABRT, SIG_DFL); /* not cmocka's handler */
            if (what != NO_MISUSE)
                (void)close(STDERR_FILENO);
            misuse((enum misuse)what);
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if ((what == NO_MISUSE) != (WIFEXITED(status) && WEXITSTATUS(status) == 0))
            fail_msg("misuse %d ended with status %d", what, status);
    }
}

/* ---- Several OS threads ---- */

enum { RANKS = 4, ROUNDS = 20 };
static struct probe_sums *shared_sums;

/* Returns the number of wrong calls and sums: only the main thread may assert. */
static void *one_rank(void *unused)
{
    struct hd_cuda_stream s = {0};
    float *inp = NULL, *out = NULL;
    intptr_t wrong = 0;

    wrong += cudaStreamCreate(&s.handle) != cudaSuccess;
    wrong += cudaMalloc((void **)&inp, 64 * sizeof *inp) != cudaSuccess;
    wrong += cudaMalloc((void **)&out, sizeof *out) != cudaSuccess;
    for (int i = 0; i < 64 && !wrong; i++)
        inp[i] = (float)i;
    for (int round = 0; round < ROUNDS && !wrong; round++) {
        wrong += probe_sum(&s, out, inp, 64, true) != HD_OK;
        wrong += probe_atomics(&s, shared_sums, 1, 50) != HD_OK;
        wrong += cudaStreamSynchronize(s.handle) != cudaSuccess;
        wrong += *out != 2016.0f; /* 63 * 64 / 2 */
    }
    wrong += cudaFree(inp) != cudaSuccess;
    wrong += cudaFree(out) != cudaSuccess;
    wrong += cudaStreamDestroy(s.handle) != cudaSuccess;
    return (void *)wrong;
}

static void ranks_in_one_process_launch_side_by_side(void **state)
{
    hd_cudasim_order(HD_CUDASIM_RANDOM, 5);
    assert_int_equal(cudaMalloc((void **)&shared_sums, sizeof *shared_sums), cudaSuccess);
    for (int lazy = 0; lazy < 2; lazy++) {
        pthread_t threads[RANKS];

        hd_cudasim_lazy(lazy, 3);
        memset(shared_sums, 0, sizeof *shared_sums);
        for (int i = 0; i < RANKS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, one_rank, NULL), 0);
        for (int i = 0; i < RANKS; i++) {
            void *wrong;

            assert_int_equal(pthread_join(threads[i], &wrong), 0);
            assert_null(wrong);
        }
        assert_int_equal(shared_sums->ints, RANKS * ROUNDS * (50 * 49 / 2));
        assert_int_equal(shared_sums->by_cas, RANKS * ROUNDS * 50);
    }
    assert_int_equal(cudaFree(shared_sums), cudaSuccess);
    hd_cudasim_lazy(false, 0);
    hd_cudasim_order(HD_CUDASIM_FORWARD, 0);
}

/* ---- Graphs ---- */

/* Goal: a replay has the arguments of the capture, and reads memory when it runs, also the host's. */
static void a_graph_has_the_arguments_of_its_capture(void **state)
{
    static const unsigned one[3] = {1, 1, 1}, four[3] = {4, 1, 1};

    for (int lazy = 0; lazy < 2; lazy++) {
        struct hd_cuda_stream s = {.handle = new_stream()};
        int first = 10, host = 1, *device;
        cudaGraphExec_t exec;
        cudaGraph_t graph;

        hd_cudasim_lazy(lazy, 7);
        assert_int_equal(cudaMalloc((void **)&device, 6 * sizeof *device), cudaSuccess);
        assert_int_equal(cudaStreamBeginCapture(s.handle, cudaStreamCaptureModeThreadLocal),
                         cudaSuccess);
        assert_int_equal(probe_index(&s, device, first, one, four), HD_OK);
        assert_int_equal(
            cudaMemcpyAsync(device + 4, &host, sizeof host, cudaMemcpyHostToDevice, s.handle),
            cudaSuccess);
        assert_int_equal(
            cudaMemcpyAsync(device + 5, device, sizeof *device, cudaMemcpyDeviceToDevice, s.handle),
            cudaSuccess);
        assert_int_equal(cudaStreamEndCapture(s.handle, &graph), cudaSuccess);
        assert_int_equal(cudaGraphInstantiateWithFlags(&exec, graph, 0), cudaSuccess);
        assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
        assert_int_equal(device[0], -1); /* poison: nothing has run */
        first = 20;
        for (host = 2; host < 4; host++) {
            const size_t before = hd_cudasim_replays();

            device[0] = device[5] = 0;
            assert_int_equal(cudaGraphLaunch(exec, s.handle), cudaSuccess);
            assert_int_equal(device[0], lazy ? 0 : 10);
            assert_int_equal(cudaStreamSynchronize(s.handle), cudaSuccess);
            assert_int_equal(device[3], 13);
            assert_int_equal(device[4], host);
            assert_int_equal(device[5], 10);
            assert_int_equal(hd_cudasim_replays() - before, 3);
        }
        assert_int_equal(hd_cudasim_leaks(), 3); /* stream, memory, graph */
        assert_int_equal(cudaGraphLaunch(exec, s.handle), cudaSuccess);
        assert_int_equal(cudaGraphExecDestroy(exec), cudaSuccess); /* the launch still runs */
        assert_int_equal(cudaStreamSynchronize(s.handle), cudaSuccess);
        assert_int_equal(cudaFree(device), cudaSuccess);
        assert_int_equal(cudaStreamDestroy(s.handle), cudaSuccess);
        assert_int_equal(hd_cudasim_leaks(), 0);
    }
    hd_cudasim_lazy(false, 0);
}

/* Goal: what CUDA forbids in a capture fails there, and the capture with it. */
static void a_capture_is_lost_by_what_it_forbids(void **state)
{
    cudaStream_t stream = new_stream();
    cudaEvent_t event = new_event();
    cudaGraph_t graph;
    void *memory;

    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnmatched);
    for (int i = 0; i < 6; i++) {
        cudaError_t error;

        assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                         cudaSuccess);
        error = i == 0   ? cudaStreamSynchronize(stream)
                : i == 1 ? cudaMalloc(&memory, 8)
                : i == 2 ? cudaEventQuery(event)
                : i == 3 ? cudaDeviceSynchronize()
                : i == 4 ? cudaEventRecord(event, stream)
                         : cudaStreamQuery(stream);
        assert_int_equal(error, cudaErrorStreamCaptureUnsupported);
        assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
    }
    (void)cudaGetLastError();
    assert_int_equal(cudaEventDestroy(event), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

/* Goal: everything that was not freed is reported, one line each. */
static void leaks_are_counted(void **state)
{
    cudaStream_t stream = new_stream();
    cudaEvent_t event = new_event();
    void *memory;

    assert_int_equal(cudaMalloc(&memory, 10), cudaSuccess);
    assert_int_equal(hd_cudasim_leaks(), 3);
    assert_int_equal(cudaFree(memory), cudaSuccess);
    assert_int_equal(cudaEventDestroy(event), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
    assert_int_equal(hd_cudasim_leaks(), 0);
}

RUN_CASES()
