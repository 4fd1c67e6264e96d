/* host: the CUDA plug-in's host code on an emulated device: traits, memory, bytes in and out,
 * events, who multiplies, and what a rate is quoted against. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/dtype.h"
#include "kernels/cuda/cuda.h"
#include "kernels/nccl.h"
#include "kernels/plugin.h"
#include "tests/cudasim/cudasim.h"
#include "tests/program/test.h"

enum { PIECE = 512 * 1024, PIECES_MANY = 40 }; /* more than there are slots */

struct opened {
    const struct hd_backend_table *table;
    struct hd_backend *backend;
    struct hd_stream *stream, *other;
};

static struct opened open_all(const struct hd_backend_options *options)
{
    struct opened o = {.table = hd_backend_cuda()};

    assert_int_equal(hd_backend_check(o.table), HD_OK);
    assert_int_equal(o.table->open(options, &o.backend), HD_OK);
    assert_int_equal(o.table->stream_open(o.backend, HD_STREAM_FOR_COMPUTE, &o.stream), HD_OK);
    assert_int_equal(o.table->stream_open(o.backend, HD_STREAM_FOR_COMM, &o.other), HD_OK);
    return o;
}

static void close_all(struct opened *o)
{
    o->table->stream_close(o->other);
    o->table->stream_close(o->stream);
    o->table->close(o->backend);
    assert_int_equal(hd_cudasim_leaks(), 0);
}

static const struct hd_backend_options plain_options = {.threads = 1};

static void an_old_driver_is_told_with_both_versions(void **state)
{
    static struct hd_plugin_gpu gpus[HD_PLUGIN_GPUS_MAX];
    int count = 0;

    hd_cudasim_driver(12040);
    assert_int_equal(hd_cuda_plugin_gpus(gpus, &count), HD_UNSUPPORTED);
    hd_cudasim_driver(0);
    assert_int_equal(count, 0);
    assert_non_null(strstr(hd_err_message(), "(CUDA 12.4) is older than CUDA 13."));
    assert_non_null(strstr(hd_err_message(), "needs driver 580 or newer"));
    assert_int_equal(hd_cuda_plugin_gpus(gpus, &count), HD_OK);
    assert_true(count > 0);
}

static void traits_are_the_devices(void **state)
{
    struct hd_traits t;

    hd_backend_cuda()->describe(&plain_options, &t);
    assert_string_equal(t.backend, "cuda");
    assert_true(hd_traits_is_cuda(&t));
    assert_true(t.capability >= 80 && t.memory_bytes > 0 && t.page_bytes > 0);
    assert_non_null(strstr(t.library, "cuBLASLt"));
    assert_true(t.gemm_scratch_bytes > 0);

    hd_backend_cuda()->describe(
        &(struct hd_backend_options){.threads = 1, .gemm_by = HD_GEMM_BY_OWN}, &t);
    assert_string_equal(t.library, "own");
    assert_int_equal(t.gemm_scratch_bytes, 0);
}

static void a_device_that_is_not_there_is_refused_by_number(void **state)
{
    const struct hd_backend_options options = {.threads = 1, .device = 77};
    struct hd_backend *backend = NULL;
    struct hd_traits t;

    hd_backend_cuda()->describe(&options, &t);
    assert_false(hd_traits_is_cuda(&t));
    assert_int_equal(hd_backend_cuda()->open(&options, &backend), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "device 77"));
    assert_null(backend);
}

static void a_reservation_is_zeros_and_comes_back(void **state)
{
    struct opened o = open_all(&plain_options);
    const size_t before = hd_cudasim_allocated();
    const int64_t size = 3 * PIECE + 5;
    void *base = NULL;

    for (int reachable = 0; reachable < 2; reachable++) {
        char *host = malloc((size_t)size);

        assert_non_null(host);
        memset(host, 1, (size_t)size);
        assert_int_equal(o.table->device->reserve(o.backend, size, reachable, &base), HD_OK);
        assert_int_equal((uintptr_t)base % 256, 0);
        if (reachable) /* pinned host memory: nothing of the device's */
            assert_int_equal(hd_cudasim_allocated(), before);
        else
            assert_true(hd_cudasim_allocated() >= before + (size_t)size);
        assert_int_equal(o.table->device->read(o.stream, host, base, size), HD_OK);
        for (int64_t i = 0; i < size; i++)
            assert_int_equal(host[i], 0);
        o.table->device->release(o.backend, base);
        assert_int_equal(hd_cudasim_allocated(), before);
        free(host);
    }
    close_all(&o);
}

/* Goal: what the host reaches is written, copied and read like device memory. Method: to and from
 * device memory, of which the host may know nothing. */
static void reachable_memory_is_used_like_the_devices(void **state)
{
    enum { SIZE = 64 };
    struct opened o = open_all(&plain_options);
    const struct hd_device_table *d = o.table->device;
    char host[SIZE], back[SIZE] = {0};
    struct hd_device_memory there;
    void *reached = NULL, *device = NULL;

    memset(host, 7, sizeof host);
    assert_int_equal(d->reserve(o.backend, SIZE, true, &reached), HD_OK);
    assert_int_equal(d->memory(o.backend, &there), HD_OK);
    assert_int_equal(there.reserved_bytes, 0);
    assert_int_equal(d->reserve(o.backend, SIZE, false, &device), HD_OK);
    assert_int_equal(d->write(o.stream, reached, host, SIZE), HD_OK);
    assert_int_equal(d->copy(o.stream, device, reached, SIZE), HD_OK);
    assert_int_equal(o.table->synchronize(o.stream), HD_OK);
    assert_memory_equal(reached, host, SIZE);
    memset(reached, 8, SIZE);
    assert_int_equal(d->read(o.stream, back, reached, SIZE), HD_OK);
    assert_memory_equal(back, reached, SIZE);
    assert_int_equal(d->copy(o.stream, reached, device, SIZE), HD_OK);
    assert_int_equal(o.table->synchronize(o.stream), HD_OK);
    assert_memory_equal(reached, host, SIZE);
    d->release(o.backend, reached);
    d->release(o.backend, device);
    close_all(&o);
}

static void too_much_is_told_with_what_there_is(void **state)
{
    struct opened o = open_all(&plain_options);
    void *base = NULL;

    hd_cudasim_memory((size_t)1 << 30);
    assert_int_equal(o.table->device->reserve(o.backend, (int64_t)3 << 29, false, &base),
                     HD_NO_MEMORY);
    assert_null(base);
    assert_non_null(strstr(hd_err_message(), "has 1.00 GiB"));
    assert_non_null(strstr(hd_err_message(), "1.50 GiB are needed"));
    hd_cudasim_memory((size_t)8 << 30);
    close_all(&o);
}

/* Goal: `host` may change when write returns, and read sees what was launched before it. Method:
 * streams that run late; more pieces than there are slots, of an odd size; the host's bytes are
 * spoilt at once. */
static void bytes_go_in_and_out_in_order(void **state)
{
    const int64_t size = (int64_t)PIECES_MANY * PIECE + 77;

    for (int lazy = 0; lazy < 2; lazy++) {
        struct opened o = open_all(&plain_options);
        unsigned char *host = malloc((size_t)size);
        char *base;
        void *memory = NULL;

        hd_cudasim_lazy(lazy, 7);
        assert_non_null(host);
        assert_int_equal(o.table->device->reserve(o.backend, 2 * size, false, &memory), HD_OK);
        base = memory;
        for (int64_t i = 0; i < size; i++)
            host[i] = (unsigned char)(i * 31 + i / PIECE);
        assert_int_equal(o.table->device->write(o.stream, base, host, size), HD_OK);
        memset(host, 0xee, (size_t)size);
        assert_int_equal(o.table->device->copy(o.stream, base + size, base, size), HD_OK);
        assert_int_equal(o.table->device->read(o.stream, host, base + size, size), HD_OK);
        for (int64_t i = 0; i < size; i++)
            if (host[i] != (unsigned char)(i * 31 + i / PIECE))
                fail_msg("byte %lld is %d", (long long)i, host[i]);
        o.table->device->release(o.backend, memory);
        free(host);
        hd_cudasim_lazy(false, 0);
        close_all(&o);
    }
}

/* Goal: an event orders two streams, and tells when it is done. Method: late streams; bytes written
 * on one are copied on the other behind an event, many times. Without the wait the copy would be
 * drawn first in some of them. */
static void an_event_orders_two_streams(void **state)
{
    struct opened o = open_all(&plain_options);
    const struct hd_device_table *d = o.table->device;
    struct hd_event *event = NULL;
    void *memory = NULL;
    bool done = false;
    int32_t *words;

    assert_int_equal(d->reserve(o.backend, 4096, false, &memory), HD_OK);
    words = memory;
    assert_int_equal(d->event_new(o.backend, false, &event), HD_OK);
    assert_int_equal(d->event_done(event, &done), HD_OK);
    assert_true(done); /* never recorded */
    hd_cudasim_lazy(true, 3);
    for (int32_t i = 1; i <= 20; i++) {
        int32_t got = -1;

        assert_int_equal(d->write(o.stream, words, &i, sizeof i), HD_OK);
        assert_int_equal(d->event_record(event, o.stream), HD_OK);
        assert_int_equal(d->event_wait(o.other, event), HD_OK);
        assert_int_equal(d->copy(o.other, words + 16, words, sizeof i), HD_OK);
        assert_int_equal(d->read(o.other, &got, words + 16, sizeof got), HD_OK);
        assert_int_equal(got, i);
        assert_int_equal(d->event_finish(event), HD_OK);
        assert_int_equal(d->event_done(event, &done), HD_OK);
        assert_true(done);
    }
    hd_cudasim_lazy(false, 0);
    d->event_free(event);
    d->release(o.backend, memory);
    close_all(&o);
}

/* Goal: launches are captured only where the setting asks for it, and a wrong setting is told. */
static void graphs_are_taken_by_their_setting(void **state)
{
    const struct {
        const char *setting;
        bool takes;
    } cases[] = {{"", false}, {"off", false}, {"on", true}};
    struct hd_backend *backend;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct opened o;

        assert_int_equal(setenv("HEDDLE_CUDA_GRAPHS", cases[i].setting, 1), 0);
        o = open_all(&plain_options);
        assert_int_equal(o.table->device->takes_graphs(o.backend), cases[i].takes);
        close_all(&o);
    }
    assert_int_equal(setenv("HEDDLE_CUDA_GRAPHS", "yes", 1), 0);
    assert_int_equal(hd_backend_cuda()->open(&plain_options, &backend), HD_INVALID);
    assert_string_equal(hd_err_message(), "HEDDLE_CUDA_GRAPHS is \"yes\"; it takes on or off");
    assert_int_equal(unsetenv("HEDDLE_CUDA_GRAPHS"), 0);
}

/* Goal: gated activations are inside products only where the setting asks for it and the GPU has wgmma. */
static void products_with_gates_are_taken_by_their_setting(void **state)
{
    const struct {
        const char *setting, *isa, *error;
        int capability;
    } cases[] = {
        {"", "sm_90_cuda_", NULL, 90},
        {"separate", "sm_80_cuda_", NULL, 80},
        {"wgmma", "_glu", NULL, 90},
        {"fused", NULL, "HEDDLE_CUDA_GLU is \"fused\"; it takes separate or wgmma", 90},
        {"wgmma", NULL,
         "HEDDLE_CUDA_GLU=wgmma needs a GPU of compute capability 9.0 (H100, H200); leave it out, "
         "or set it to separate",
         100},
    };
    struct hd_backend *backend;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_traits t;

        hd_cudasim_kind(2, cases[i].capability);
        assert_int_equal(setenv("HEDDLE_CUDA_GLU", cases[i].setting, 1), 0);
        if (cases[i].isa) {
            hd_backend_cuda()->describe(&plain_options, &t);
            assert_non_null(strstr(t.isa, cases[i].isa));
            assert_int_equal(strstr(t.isa, "_glu") != NULL, !strcmp(cases[i].setting, "wgmma"));
        } else {
            assert_int_not_equal(hd_backend_cuda()->open(&plain_options, &backend), HD_OK);
            assert_string_equal(hd_err_message(), cases[i].error);
        }
    }
    assert_int_equal(unsetenv("HEDDLE_CUDA_GLU"), 0);
    hd_cudasim_kind(2, 90);
}

static void timed_events_tell_a_time(void **state)
{
    struct opened o = open_all(&plain_options);
    const struct hd_device_table *d = o.table->device;
    struct hd_event *begin = NULL, *end = NULL;
    double seconds = -1;

    assert_int_equal(d->event_new(o.backend, true, &begin), HD_OK);
    assert_int_equal(d->event_new(o.backend, true, &end), HD_OK);
    assert_int_equal(d->event_record(begin, o.stream), HD_OK);
    assert_int_equal(d->event_record(end, o.stream), HD_OK);
    assert_int_equal(d->event_finish(end), HD_OK);
    assert_int_equal(d->event_elapsed(begin, end, &seconds), HD_OK);
    assert_true(seconds >= 0);
    d->event_free(begin);
    d->event_free(end);
    close_all(&o);
}

/* Blocks of collectives go before a layer's, whichever stream was opened first. */
static void streams_have_the_priority_of_what_they_are_for(void **state)
{
    struct opened o = open_all(&plain_options);
    struct hd_stream *compute = NULL;
    int priority[3];

    assert_int_equal(o.table->stream_open(o.backend, HD_STREAM_FOR_COMPUTE, &compute), HD_OK);
    for (int i = 0; i < 3; i++) {
        struct hd_stream *const streams[] = {o.stream, o.other, compute};

        assert_int_equal(
            cudaStreamGetPriority(((struct hd_cuda_stream *)streams[i])->handle, &priority[i]),
            cudaSuccess);
    }
    assert_true(priority[1] < priority[0]); /* less is sooner */
    assert_int_equal(priority[2], priority[0]);
    o.table->stream_close(compute);
    close_all(&o);
}

/* ---- Sums of many ranks ---- */

enum { SUM_INS = 70, SUM_COUNT = 37, SUM_STRIDE = 320 }; /* more inputs than addresses */

/* Other sizes for other inputs: another order rounds to other bits. */
static float summand(int input, int i)
{
    return (float)(input * 7 % 11 - 5) * (input % 3 ? 1.0f : 257.0f) + (float)i * 0.37f;
}

/* Goal: inputs beyond HD_COMBINE_MAX are added from left to right, in fp32, and rounded once.
 * Method: inputs at equal distances, on 16 bytes and not, the first of them the output, too; the
 * sum by hand. */
static void inputs_at_equal_distances_may_be_many(void **state)
{
    struct opened o = open_all(&plain_options);
    void *memory = NULL;

    assert_int_equal(o.table->device->reserve(o.backend, 65536, true, &memory), HD_OK);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        for (int shift = 0; shift <= 4; shift += 4) { /* 0: on bounds of 16 bytes */
            char *base = (char *)memory + shift;
            struct hd_combine_args args = {.out = {base},
                                           .in = {base},
                                           .outs = 1,
                                           .ins = SUM_INS,
                                           .in_stride_bytes = SUM_STRIDE + shift,
                                           .count = SUM_COUNT,
                                           .dtype = bf16 ? HD_BF16 : HD_F32};

            for (int m = 0; m < SUM_INS; m++) {
                for (int i = 0; i < SUM_COUNT; i++) {
                    char *at = base + m * args.in_stride_bytes;

                    if (bf16)
                        ((uint16_t *)at)[i] = hd_f32_to_bf16(summand(m, i));
                    else
                        ((float *)at)[i] = summand(m, i);
                }
            }
            assert_int_equal(o.table->device->combine(o.stream, &args), HD_OK);
            assert_int_equal(o.table->synchronize(o.stream), HD_OK);
            for (int i = 0; i < SUM_COUNT; i++) {
                float sum = bf16 ? hd_bf16_to_f32(hd_f32_to_bf16(summand(0, i))) : summand(0, i);

                for (int m = 1; m < SUM_INS; m++)
                    sum += bf16 ? hd_bf16_to_f32(hd_f32_to_bf16(summand(m, i))) : summand(m, i);
                if (bf16)
                    assert_int_equal(((uint16_t *)base)[i], hd_f32_to_bf16(sum));
                else
                    assert_memory_equal((float *)base + i, &sum, sizeof sum);
            }
        }
    }
    o.table->device->release(o.backend, memory);
    close_all(&o);
}

/* ---- Several devices ---- */

struct visitor {
    struct opened o;
    struct hd_event *event;
    int32_t *words; /* on the device */
    bool done;
    char failed[256]; /* why, or "" */
};

/* A thread that has not opened the backend and has never named a device. */
static void *visit(void *arg)
{
    struct visitor *v = arg;
    const struct hd_device_table *d = v->o.table->device;
    const int32_t seven = 7;
    const struct hd_add_args add = {
        .out = v->words, .a = v->words + 16, .b = v->words + 16, .N = 1, .dtype = HD_F32};
    const struct hd_combine_args combine = {.out = {v->words + 32},
                                            .in = {v->words + 16},
                                            .outs = 1,
                                            .ins = 1,
                                            .count = 1,
                                            .dtype = HD_I32};
    enum hd_status st;

    st = d->event_done(v->event, &v->done);
    if (!st)
        st = d->write(v->o.stream, v->words + 16, &seven, sizeof seven);
    if (!st)
        st = hd_launch(v->o.stream, HD_K_add, &add);
    if (!st)
        st = d->combine(v->o.stream, &combine);
    if (!st)
        st = d->event_record(v->event, v->o.stream);
    if (!st)
        st = d->event_wait(v->o.other, v->event);
    if (!st)
        st = d->event_finish(v->event);
    if (!st)
        st = v->o.table->synchronize(v->o.stream);
    if (st)
        (void)snprintf(v->failed, sizeof v->failed, "%s", hd_err_message());
    return NULL;
}

/* Goal: a backend works on its own device, whichever thread calls and whatever that thread's device
 * is; a watchdog is such a thread. Method: two devices, a backend on the second, and a new thread,
 * whose device is the first. Launches on a stream of another device than the thread's fail. */
static void a_backend_minds_its_device_in_any_thread(void **state)
{
    const struct hd_backend_options options = {.threads = 1, .device = 1};
    struct visitor v = {.failed = ""};
    void *memory = NULL;
    int32_t got = 0;
    pthread_t thread;

    hd_cudasim_devices(2);
    v.o = open_all(&options);
    assert_int_equal(v.o.table->device->reserve(v.o.backend, 4096, false, &memory), HD_OK);
    assert_int_equal(v.o.table->device->event_new(v.o.backend, false, &v.event), HD_OK);
    v.words = memory;
    assert_int_equal(pthread_create(&thread, NULL, visit, &v), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(v.failed, "");
    assert_true(v.done);
    assert_int_equal(v.o.table->device->read(v.o.stream, &got, v.words + 32, sizeof got), HD_OK);
    assert_int_equal(got, 7);
    v.o.table->device->event_free(v.event);
    v.o.table->device->release(v.o.backend, memory);
    close_all(&v.o);
    hd_cudasim_devices(1);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
}

/* ---- Who multiplies ---- */

/* How many kernels of ours a product of [8, 8] x [8, 8] in bf16 launches, with this much added to
 * the distance of rows and to the addresses, in elements. The library's are not counted. */
static uint64_t own_launches(const struct hd_backend_options *options, int64_t ld_more,
                             int64_t begin, enum hd_dtype c_dtype)
{
    struct opened o = open_all(options);
    uint64_t launches;
    const char *by = NULL;
    void *memory = NULL;
    struct hd_gemm_args a = {.M = 8,
                             .N = 8,
                             .K = 8,
                             .lda = 8 + ld_more,
                             .ldb = 8 + ld_more,
                             .ldc = 8,
                             .trans_b = true,
                             .ab_dtype = HD_BF16,
                             .c_dtype = c_dtype};

    assert_int_equal(o.table->device->reserve(o.backend, (int64_t)64 << 20, true, &memory), HD_OK);
    a.a = (uint16_t *)memory + begin;
    a.b = (uint16_t *)memory + 1024 + begin;
    a.c = (uint16_t *)memory + 2048;
    a.scratch = (char *)memory + 65536;
    launches = hd_cudasim_launches();
    assert_int_equal(o.table->prepare(o.backend, HD_K_gemm, &a), HD_OK);
    assert_int_equal(hd_cudasim_launches(), launches);
    assert_int_equal(o.table->computed_by(o.backend, HD_K_gemm, &a, &by), HD_OK);
    assert_int_equal(hd_launch(o.stream, HD_K_gemm, &a), HD_OK);
    launches = hd_cudasim_launches() - launches;
    assert_int_equal(!strcmp(by, "own"), launches > 0); /* as it says beforehand */
    assert_int_equal(o.table->synchronize(o.stream), HD_OK);
    o.table->device->release(o.backend, memory);
    close_all(&o);
    return launches;
}

static void the_library_multiplies_what_it_takes_and_own_code_the_rest(void **state)
{
    const struct hd_backend_options own = {.threads = 1, .gemm_by = HD_GEMM_BY_OWN};

    assert_int_equal(own_launches(&plain_options, 0, 0, HD_BF16), 0);
    assert_int_equal(own_launches(&plain_options, 0, 0, HD_F32), 0);
    assert_int_equal(own_launches(&plain_options, 2, 2, HD_BF16), 0);
    assert_int_equal(own_launches(&plain_options, 1, 0, HD_BF16), 1); /* an odd distance */
    assert_int_equal(own_launches(&plain_options, 0, 1, HD_BF16), 1); /* an odd address */
    assert_int_equal(own_launches(&own, 0, 0, HD_BF16), 1);
}

/* One column of a, one row of b: the product is theirs rounded. TF32 keeps 10 bits: 1 + 2^-11 is a
 * tie between 1 and 1 + 2^-10 and goes to the even one. */
static void tf32_rounds_factors_only_where_it_is_asked_for(void **state)
{
    for (int tf32 = 0; tf32 < 2; tf32++) {
        const struct hd_backend_options options = {.threads = 1, .tf32 = tf32};
        struct opened o = open_all(&options);
        void *memory = NULL;
        float *x;
        struct hd_gemm_args a = {
            .M = 1, .N = 1, .K = 1, .lda = 1, .ldb = 1, .ldc = 1, .ab_dtype = HD_F32};

        assert_int_equal(o.table->device->reserve(o.backend, (int64_t)64 << 20, true, &memory),
                         HD_OK);
        x = memory;
        a.a = x;
        a.b = x + 16;
        a.c = x + 32;
        a.scratch = x + 64;
        x[0] = 1 + 0x1p-11f;
        x[16] = 1;
        assert_int_equal(hd_launch(o.stream, HD_K_gemm, &a), HD_OK);
        assert_int_equal(o.table->synchronize(o.stream), HD_OK);
        assert_true(x[32] == (tf32 ? 1 : 1 + 0x1p-11f));
        o.table->device->release(o.backend, memory);
        close_all(&o);
    }
}

/* Goal: what was chosen for one bias is not taken for one at a worse bound. Method: the same
 * product with a bias on a bound of 64 bytes, then of 4; a and b are zeros, so c is the bias. */
static void a_choice_minds_where_the_bias_is(void **state)
{
    struct opened o = open_all(&plain_options);
    void *memory = NULL;
    float *x;
    struct hd_gemm_args a = {
        .M = 4, .N = 4, .K = 4, .lda = 4, .ldb = 4, .ldc = 4, .ab_dtype = HD_F32};

    assert_int_equal(o.table->device->reserve(o.backend, (int64_t)64 << 20, true, &memory), HD_OK);
    x = memory;
    a.a = x;
    a.b = x + 16;
    a.c = x + 32;
    a.scratch = x + 1024;
    for (int begin = 0; begin < 3; begin++) {
        float *bias = x + 64 + begin;

        for (int j = 0; j < 4; j++)
            bias[j] = (float)(10 * begin + j);
        a.bias = bias;
        assert_int_equal(hd_launch(o.stream, HD_K_gemm, &a), HD_OK);
        assert_int_equal(o.table->synchronize(o.stream), HD_OK);
        for (int i = 0; i < 16; i++)
            assert_true(x[32 + i] == (float)(10 * begin + i % 4));
    }
    o.table->device->release(o.backend, memory);
    close_all(&o);
}

struct counted {
    uint64_t products, launches; /* of the library, of ours */
};

/* Returns the launches of a prepared product. */
static struct counted count_of(struct opened *o, const struct hd_gemm_args *args)
{
    const char *by = NULL;
    struct counted n;

    assert_int_equal(o->table->prepare(o->backend, HD_K_gemm, args), HD_OK);
    assert_int_equal(o->table->computed_by(o->backend, HD_K_gemm, args, &by), HD_OK);
    n = (struct counted){hd_cudasim_products(), hd_cudasim_launches()};
    assert_int_equal(hd_launch(o->stream, HD_K_gemm, args), HD_OK);
    n.products = hd_cudasim_products() - n.products;
    n.launches = hd_cudasim_launches() - n.launches;
    assert_int_equal(o->table->synchronize(o->stream), HD_OK);
    assert_int_equal(!strcmp(by, "own"), n.launches > 0);
    return n;
}

/* GELU behind [8, N] x [N, N], rows of c `gap` elements apart, pre `begin` from a bound of 64. */
static struct counted gelu_launches(enum hd_gemm_epilogue epilogue, int64_t N, int64_t gap,
                                    int64_t begin)
{
    struct opened o = open_all(&plain_options);
    struct counted n;
    void *memory = NULL;
    char *x;
    struct hd_gemm_args a = {.M = 8,
                             .N = N,
                             .K = N,
                             .lda = N + N % 2,
                             .ldb = N + N % 2,
                             .ldc = N + gap,
                             .trans_b = true,
                             .epilogue = epilogue,
                             .ab_dtype = HD_BF16,
                             .c_dtype = HD_BF16};

    assert_int_equal(o.table->device->reserve(o.backend, (int64_t)64 << 20, true, &memory), HD_OK);
    x = memory;
    a.a = x;
    a.b = x + 4096;
    a.c = x + 8192;
    if (epilogue == HD_EPILOGUE_GELU)
        a.pre = x + 12288 + 2 * begin;
    else
        a.gelu_inp = x + 12288 + 2 * begin;
    a.scratch = x + 65536;
    n = count_of(&o, &a);
    o.table->device->release(o.backend, memory);
    close_all(&o);
    return n;
}

/* The library's auxiliary matrix has lines of multiples of 8, and it is asked only for one that
 * begins on a bound of 16 bytes. Where it has not, the library still multiplies, and GELU is a pass
 * of its own; where that pass would find gaps, all of it is ours. */
static void gelu_is_the_librarys_where_its_rules_allow_it(void **state)
{
    static const enum hd_gemm_epilogue both[] = {HD_EPILOGUE_GELU, HD_EPILOGUE_GELU_BACKWARD};
    static const struct {
        int64_t N, gap, begin;
        bool known;
        struct counted want;
    } cases[] = {
        {16, 0, 0, true, {1, 0}}, {16, 8, 0, true, {1, 0}},  {16, 0, 8, true, {1, 0}},
        {16, 0, 2, true, {1, 1}}, {16, 0, 0, false, {1, 1}}, {12, 0, 0, true, {1, 1}},
        {16, 4, 0, true, {0, 1}}, {15, 0, 0, true, {0, 1}},
    };

    for (int e = 0; e < 2; e++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct counted n;

            hd_cudasim_epilogues(cases[i].known);
            n = gelu_launches(both[e], cases[i].N, cases[i].gap, cases[i].begin);
            hd_cudasim_epilogues(true);
            assert_int_equal(n.products, cases[i].want.products);
            assert_int_equal(n.launches, cases[i].want.launches);
        }
}

/* Goal: who waits for launches says that they failed, whichever call of the runtime is the first to
 * know. Method: the device fails at the first question already. */
static void a_fault_is_told_as_that_of_what_was_launched(void **state)
{
    static const char story[] = "a kernel or copy on the device failed: ";
    struct opened o = open_all(&plain_options);
    struct hd_event *event;
    bool done = false;

    assert_int_equal(o.table->device->event_new(o.backend, false, &event), HD_OK);
    assert_int_equal(o.table->device->event_record(event, o.stream), HD_OK);
    hd_cudasim_fault(cudaErrorIllegalAddress);
    assert_int_equal(o.table->synchronize(o.stream), HD_INTERNAL);
    assert_memory_equal(hd_err_message(), story, sizeof story - 1);
    assert_non_null(strstr(hd_err_message(), "compute-sanitizer"));
    assert_int_equal(o.table->device->event_done(event, &done), HD_INTERNAL);
    assert_memory_equal(hd_err_message(), story, sizeof story - 1);
    assert_int_equal(o.table->device->event_finish(event), HD_INTERNAL);
    assert_memory_equal(hd_err_message(), story, sizeof story - 1);
    /* and others do not say that it is the device which cannot be used */
    assert_int_equal(o.table->device->event_record(event, o.stream), HD_INTERNAL);
    assert_non_null(strstr(hd_err_message(), "an earlier launch failed, or the device"));
    hd_cudasim_fault(0);
    assert_int_equal(o.table->synchronize(o.stream), HD_OK);
    o.table->device->event_free(event);
    close_all(&o);
}

/* Goal: what was chosen for one place of the auxiliary matrix is not taken for one at a worse
 * bound. Method: one product with pre moving on; a is zeros, so pre is the bias. */
static void a_choice_minds_where_the_auxiliary_matrix_is(void **state)
{
    struct opened o = open_all(&plain_options);
    void *memory = NULL;
    float *x;
    struct hd_gemm_args a = {.M = 2,
                             .N = 8,
                             .K = 4,
                             .lda = 4,
                             .ldb = 8,
                             .ldc = 8,
                             .epilogue = HD_EPILOGUE_GELU,
                             .ab_dtype = HD_F32,
                             .c_dtype = HD_F32};

    assert_int_equal(o.table->device->reserve(o.backend, (int64_t)64 << 20, true, &memory), HD_OK);
    x = memory;
    a.a = x;
    a.b = x + 16;
    a.c = x + 64;
    a.bias = x + 96;
    a.scratch = x + 1024;
    for (int j = 0; j < 8; j++)
        x[96 + j] = (float)j;
    for (int begin = 0; begin < 3; begin++) {
        float *pre = x + 256 + begin;

        a.pre = pre;
        assert_int_equal(hd_launch(o.stream, HD_K_gemm, &a), HD_OK);
        assert_int_equal(o.table->synchronize(o.stream), HD_OK);
        for (int i = 0; i < 16; i++)
            assert_true(pre[i] == (float)(i % 8));
    }
    o.table->device->release(o.backend, memory);
    close_all(&o);
}

/* ---- NCCL ---- */

/* True if a process with this version of NCCL takes memory from it. The library is loaded once for
 * a process. */
static bool takes_memory_from(const char *version)
{
    const struct hd_nccl_table *calls;
    int status = 0;
    const pid_t child = fork();

    if (child == 0)
        _exit(setenv("HD_CUDASIM_NCCL_VERSION", version, 1) ||
                      hd_backend_cuda()->device->nccl(&calls)
                  ? 2
                  : calls->reserve && calls->register_buffer && calls->deregister);
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 1;
}

/* Before 2.26.2 it rounds up to more than a plan counts. */
static void memory_is_nccls_from_the_version_that_rounds_to_pages(void **state)
{
    assert_true(takes_memory_from("22809"));
    assert_true(takes_memory_from("22602"));
    assert_false(takes_memory_from("22601"));
}

/* ---- The peak ---- */

/* A name that is known has its maker's number, whatever clock is told; others are reckoned:
 * 100 multiprocessors of sm_90 at 1 GHz do 4096 operations of bf16 a cycle, half that in TF32, and
 * 256 in fp32. */
static void the_peak_is_what_is_sold_or_what_is_reckoned(void **state)
{
    assert_true(hd_cuda_peak("NVIDIA H100 80GB HBM3", 90, 132, 1e9, HD_BF16, false) == 989.4e12);
    assert_true(hd_cuda_peak("NVIDIA H200", 90, 132, 1e9, HD_F16, false) == 989.4e12);
    assert_true(hd_cuda_peak("NVIDIA H100 PCIe", 90, 114, 1e9, HD_BF16, false) == 756e12);
    assert_true(hd_cuda_peak("NVIDIA A100-SXM4-80GB", 80, 108, 1e9, HD_F32, true) == 156e12);
    assert_true(hd_cuda_peak("NVIDIA A100-SXM4-80GB", 80, 108, 1e9, HD_F32, false) == 19.5e12);
    assert_true(hd_cuda_peak("NVIDIA RTX A1000", 90, 100, 1e9, HD_BF16, false) == 100e9 * 4096);
    assert_true(hd_cuda_peak("GPU of tomorrow", 90, 100, 1e9, HD_BF16, false) == 100e9 * 4096);
    assert_true(hd_cuda_peak("GPU of tomorrow", 90, 100, 1e9, HD_F32, true) == 100e9 * 2048);
    assert_true(hd_cuda_peak("GPU of tomorrow", 90, 100, 1e9, HD_F32, false) == 100e9 * 256);
}

RUN_CASES()
