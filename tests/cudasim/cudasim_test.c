/* Tests that the emulator behaves like a device, and detects errors of kernels. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cudasim/cudasim.h"
#include "tests/cudasim/probe.h"
#include "tests/program/test.h"

static struct hd_cuda_stream null_stream;

static const struct {
    enum hd_cudasim_order order;
    uint64_t seed;
} orders[] = {{HD_CUDASIM_FORWARD, 0},
              {HD_CUDASIM_REVERSE, 0},
              {HD_CUDASIM_RANDOM, 1},
              {HD_CUDASIM_RANDOM, 2},
              {HD_CUDASIM_RANDOM, 3}};
enum { ORDERS = sizeof orders / sizeof orders[0] };
#define FOR_ORDERS(i) \
    for (int i = 0; i < ORDERS && (hd_cudasim_order(orders[i].order, orders[i].seed), true); i++)

static void *device_memory(size_t size_bytes)
{
    void *memory;

    assert_int_equal(cudaMalloc(&memory, size_bytes), cudaSuccess);
    return memory;
}

/* ---- Threads ---- */

/* Goal: built-in variables number all threads of all blocks once, in every order. */
static void every_thread_of_every_block_runs_once(void **state)
{
    const unsigned grid[3] = {3, 2, 2}, block[3] = {5, 3, 2};
    const int n = 12 * 30;
    int *out = device_memory(sizeof *out * (size_t)n);

    FOR_ORDERS(i)
    {
        const uint64_t before = hd_cudasim_launches();

        memset(out, 0xff, sizeof *out * (size_t)n);
        assert_int_equal(probe_index(&null_stream, out, 7, grid, block), HD_OK);
        assert_int_equal(hd_cudasim_launches(), before + 1);
        for (int k = 0; k < n; k++)
            assert_int_equal(out[k], 7 + k);
    }
    cudaFree(out);
}

static void launches_beyond_the_limits_are_refused(void **state)
{
    const struct {
        unsigned grid[3], block[3];
    } wrong[] = {{{0, 1, 1}, {1, 1, 1}},     {{1, 1, 1}, {0, 1, 1}},
                 {{1, 1, 1}, {1025, 1, 1}},  {{1, 1, 1}, {32, 33, 1}},
                 {{1, 1, 1}, {1, 1, 65}},    {{1, 65536, 1}, {1, 1, 1}},
                 {{1, 1, 65536}, {1, 1, 1}}, {{1u << 31, 1, 1}, {1, 1, 1}}};
    int unused;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(probe_index(&null_stream, &unused, 0, wrong[i].grid, wrong[i].block),
                         HD_INTERNAL);
        assert_non_null(strstr(hd_err_message(), "index_kernel"));
    }
    assert_int_equal(probe_mistake(&null_stream, 0, NULL, 227 * 1024 + 1), HD_INTERNAL);
    hd_cudasim_shared_bytes(99 * 1024); /* a device with less shared memory */
    assert_int_equal(probe_mistake(&null_stream, 0, NULL, 99 * 1024 + 1), HD_INTERNAL);
    hd_cudasim_shared_bytes(0);
    assert_int_equal(cudaGetLastError(), cudaSuccess); /* the failed launch has cleared it */
}

/* Goal: a kernel gets what a block may have beside its static arrays. Method: twice, because the
 * emulator knows the arrays only after the first launch; other code must ask for less then. */
static void a_launch_may_have_all_that_static_arrays_leave(void **state)
{
    enum { ALL = 227 * 1024, STATIC = 4096 };
    float *out = device_memory(sizeof *out);

    for (int again = 0; again < 2; again++) {
        *out = 0;
        assert_int_equal(probe_arrays(&null_stream, out, ALL - STATIC), HD_OK);
        assert_true(*out == 1);
    }
    assert_int_equal(probe_arrays(&null_stream, out, ALL - STATIC + 4), HD_INTERNAL);
    cudaFree(out);
}

/* ---- Barriers ---- */

/* Goal: a kernel with its barriers is correct in every order; without, wrong in at least one. */
static void a_missing_barrier_is_seen(void **state)
{
    float *inp = device_memory(256 * sizeof *inp), *out = device_memory(sizeof *out);
    int wrong = 0;

    for (int k = 0; k < 256; k++)
        inp[k] = (float)k; /* sum 255 * 256 / 2 = 32640, exact in fp32 */
    FOR_ORDERS(i)
    {
        assert_int_equal(probe_sum(&null_stream, out, inp, 256, true), HD_OK);
        assert_true(*out == 32640.0f);
        assert_int_equal(probe_sum(&null_stream, out, inp, 256, false), HD_OK);
        wrong += !(*out == 32640.0f);
    }
    assert_true(wrong > 0);
    cudaFree(inp);
    cudaFree(out);
}

/* Goal: barriers with counts and votes work; they do not wait for threads that have returned. */
static void barriers_count_the_threads_that_are_left(void **state)
{
    enum { N = 70 };
    int *out = device_memory(N * sizeof *out);

    FOR_ORDERS(i)
    {
        for (unsigned left = 1; left <= N; left += 23) { /* 1, 24, 47, 70 */
            const int thirds = ((int)left + 2) / 3;

            assert_int_equal(probe_votes(&null_stream, out, N, left), HD_OK);
            for (unsigned t = 0; t < left; t++)
                assert_int_equal(out[t], thirds | (left > 5) << 16 | 1 << 20 | (left <= 7) << 24);
        }
    }
    cudaFree(out);
}

/* ---- Warps ---- */

static void lanes_exchange_by_mask_and_width(void **state)
{
    enum { N = 64 };
    struct probe_lane *out = device_memory(N * sizeof *out);

    FOR_ORDERS(i)
    {
        assert_int_equal(probe_shuffles(&null_stream, out, N), HD_OK);
        for (int t = 0; t < N; t++) {
            const int lane = t % 32, at = lane % 16;
            const struct probe_lane *o = &out[t];

            assert_int_equal(o->from_three, 103);
            assert_int_equal(o->from_three_of_eight, 100 + lane / 8 * 8 + 3);
            assert_int_equal(o->up_two, 100 + (at < 2 ? lane : lane - 2));
            assert_int_equal(o->down_two, 100 + (at > 13 ? lane : lane + 2));
            assert_true(o->swapped == 0.5 + (lane + 16) % 32);
            assert_int_equal(o->odd, 0xaaaaaaaau);
            assert_true(o->any && o->all);
            assert_int_equal(o->of_its_half, lane % 2 ? 10 : 4);
            if (lane < 8)
                assert_true(isnan(o->from_outside)); /* lane 20 is not in the mask: poison */
        }
    }
    cudaFree(out);
}

/* ---- Asynchronous copies ---- */

static void copies_land_at_the_wait_and_show_after_the_barrier(void **state)
{
    enum { THREADS = 33, N = 4 * THREADS - 4 }; /* the last thread's copy is not valid: zeros */
    float *inp = device_memory(N * sizeof *inp), *out = device_memory(4 * THREADS * sizeof *out);
    int wrong[4] = {0};

    for (int k = 0; k < N; k++)
        inp[k] = 1.0f + (float)k;
    for (int kind = 0; kind < 4; kind++)
        FOR_ORDERS(i)
        {
            bool right = true;

            assert_int_equal(probe_copies(&null_stream, out, inp, N, THREADS, kind & 1, kind & 2),
                             HD_OK);
            for (int k = 0; k < 4 * THREADS; k++) {
                const int from = (k + 4) % (4 * THREADS);

                right = right && out[k] == (from < N ? inp[from] : 0.0f);
            }
            wrong[kind] += !right;
        }
    assert_true(wrong[0] > 0); /* neither */
    assert_true(wrong[1] > 0); /* waited, no barrier */
    assert_true(wrong[2] > 0); /* a barrier, no wait */
    assert_int_equal(wrong[3], 0);
    cudaFree(inp);
    cudaFree(out);
}

/* ---- Matrices ---- */

/* Goal: ldmatrix and mma give the product computed by loops; factors are random bf16 or f16. */
static void products_of_fragments_are_matrix_products(void **state)
{
    const enum hd_dtype dtypes[] = {HD_BF16, HD_F16};
    uint16_t *a = device_memory(256 * sizeof *a), *b = device_memory(128 * sizeof *b);
    float *c = device_memory(128 * sizeof *c), *d = device_memory(128 * sizeof *d);

    srand(1);
    FOR_ORDERS(i)
    {
        const enum hd_dtype dtype = dtypes[i % 2];
        float wide_a[256], wide_b[128];

        for (int k = 0; k < 384; k++) {
            const float x = (float)rand() / (float)RAND_MAX - 0.5f;
            const uint16_t bits = dtype == HD_BF16 ? hd_f32_to_bf16(x) : hd_f32_to_f16(x);

            *(k < 256 ? &a[k] : &b[k - 256]) = bits;
            *(k < 256 ? &wide_a[k] : &wide_b[k - 256]) =
                dtype == HD_BF16 ? hd_bf16_to_f32(bits) : hd_f16_to_f32(bits);
        }
        for (int k = 0; k < 128; k++)
            c[k] = (float)k / 64.0f;
        assert_int_equal(probe_product(&null_stream, d, a, b, c, dtype), HD_OK);
        for (int row = 0; row < 16; row++)
            for (int column = 0; column < 8; column++) {
                double sum = c[row * 8 + column];

                for (int k = 0; k < 16; k++)
                    sum += (double)wide_a[row * 16 + k] * (double)wide_b[k * 8 + column];
                /* Two operations of 9 terms. The terms are below 8, so each loses less than 4 x
                 * 2^-24, and the sum, also below 8, less than 4 x 2^-23. */
                assert_true(fabs((double)d[row * 8 + column] - sum) <= 2 * (9 + 2) * 4 * 0x1p-24);
            }
    }
    cudaFree(a);
    cudaFree(b);
    cudaFree(c);
    cudaFree(d);
}

/* Goal: tensor cores truncate. Method: c plus up to three kinds of products in one row; the results
 * of rounding to nearest, of no extra bit, of more than one, and of an operation of 16 products all
 * differ from those wanted. */
static void tensor_cores_truncate(void **state)
{
    static const struct {
        const char *what;
        float c, products[16], want;
    } cases[] = {
        {"the extra bit holds them", 1, {0x1p-24f, 0x1p-24f, 0x1p-24f, 0x1p-24f}, 1 + 0x1p-22f},
        {"below the extra bit", 1, {0x1p-25f, 0x1p-25f, 0x1p-25f, 0x1p-25f}, 1},
        {"towards zero from above", 1, {-0x1p-25f, -0x1p-25f}, 1},
        {"a term is not rounded", 1, {0x1.8p-24f}, 1},
        {"nor is a negative one", -1, {-0x1.8p-24f}, -1},
        {"nor is the sum", 1, {0x1p-24f, 0x1p-24f, 0x1p-24f}, 1 + 0x1p-23f},
        {"two operations", 1, {[0] = 0x1p-24f, [8] = 0x1p-24f}, 1},
        {"one of 8 products", 1, {[0] = 0x1p-24f, [7] = 0x1p-24f}, 1 + 0x1p-23f},
        {"a product is the largest", 0x1p-24f, {1}, 1},
        {"products are exact", 0, {0x1p-60f, 0x1p-66f}, 0x1p-60f + 0x1p-66f},
        {"infinity", 1, {INFINITY}, INFINITY},
    };
    enum { COUNT = sizeof cases / sizeof cases[0] };
    uint16_t *a = device_memory(256 * sizeof *a), *b = device_memory(128 * sizeof *b);
    float *c = device_memory(128 * sizeof *c), *d = device_memory(128 * sizeof *d);

    for (int i = 0; i < 256; i++)
        a[i] = hd_f32_to_bf16(i / 16 < COUNT ? cases[i / 16].products[i % 16] : 0);
    for (int i = 0; i < 128; i++) {
        b[i] = hd_f32_to_bf16(1);
        c[i] = i / 8 < COUNT ? cases[i / 8].c : 0;
    }
    assert_int_equal(probe_product(&null_stream, d, a, b, c, HD_BF16), HD_OK);
    for (int row = 0; row < COUNT; row++)
        for (int column = 0; column < 8; column++)
            if (d[row * 8 + column] != cases[row].want)
                fail_msg("%s: mma gives %a, not %a", cases[row].what, (double)d[row * 8 + column],
                         (double)cases[row].want);
    cudaFree(a);
    cudaFree(b);
    cudaFree(c);
    cudaFree(d);
}

/* ---- Atomics ---- */

static void atomic_operations_lose_nothing(void **state)
{
    enum { GRID = 3, BLOCK = 40, N = GRID * BLOCK };
    struct probe_sums *sums = device_memory(sizeof *sums);

    FOR_ORDERS(i)
    {
        memset(sums, 0, sizeof *sums);
        sums->token = 1;
        assert_int_equal(probe_atomics(&null_stream, sums, GRID, BLOCK), HD_OK);
        assert_int_equal(sums->ints, N * (N - 1) / 2);
        assert_true(sums->wides == (unsigned long long)(N * (N - 1) / 2) << 32);
        assert_true(sums->floats == 0.5f * N && sums->doubles == 0.25 * N);
        assert_int_equal(sums->largest, N - 1);
        assert_int_equal(sums->least, -(N - 1));
        assert_int_equal(sums->bits, 0xffffffffu);
        assert_int_equal(sums->by_cas, N);
        assert_int_equal(sums->holders, 1);
    }
    cudaFree(sums);
}

/* ---- Vectors ---- */

static void vectors_and_tails_cover_each_element(void **state)
{
    const enum hd_dtype dtypes[] = {HD_F32, HD_BF16, HD_F16};
    const int64_t sizes[] = {0, 1, 7, 16, 61, 1000};
    char *inp = device_memory(4096), *out = device_memory(4096);

    for (int d = 0; d < 3; d++)
        for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++)
            for (size_t shift = 0; shift <= 4; shift += 4) { /* aligned to 16 bytes, and not */
                const size_t size = hd_dtype_size(dtypes[d]);

                if (sizes[n] * (int64_t)size > 4000)
                    continue;
                memset(out, 0xff, 4096);
                for (int64_t k = 0; k < sizes[n]; k++) {
                    char *at = inp + shift + (size_t)k * size;
                    const float x = (float)k;

                    if (d == 0)
                        memcpy(at, &x, size);
                    else
                        *(uint16_t *)(void *)at = d == 1 ? hd_f32_to_bf16(x) : hd_f32_to_f16(x);
                }
                assert_int_equal(
                    probe_twice(&null_stream, out + shift, inp + shift, sizes[n], dtypes[d]),
                    HD_OK);
                for (int64_t k = 0; k < sizes[n]; k++) {
                    const char *at = out + shift + (size_t)k * size;
                    uint16_t half;
                    float x;

                    memcpy(&half, at, sizeof half);
                    if (d == 0)
                        memcpy(&x, at, sizeof x);
                    else
                        x = d == 1 ? hd_bf16_to_f32(half) : hd_f16_to_f32(half);
                    /* doubling is exact; k itself may round to bf16 */
                    assert_true(
                        x == 2.0f * (d == 1 ? hd_bf16_to_f32(hd_f32_to_bf16((float)k)) : (float)k));
                }
                assert_int_equal((unsigned char)out[shift + (size_t)sizes[n] * size], 0xff);
            }
    assert_int_equal(probe_twice(&null_stream, out, inp, 4, HD_I32), HD_UNSUPPORTED);
    cudaFree(inp);
    cudaFree(out);
}

/* ---- Reports ---- */

/* Runs a mistake in a child process, asserts that it was aborted, and returns its output. */
static const char *death_of(enum probe_mistake mistake, size_t shared_bytes)
{
    static char said[8192];
    size_t length = 0;
    int pipes[2], status;
    ssize_t got;
    pid_t child;

    fflush(NULL);
    assert_int_equal(pipe(pipes), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        float *out = NULL;

        dup2(pipes[1], 2);
        close(pipes[0]);
        close(pipes[1]);
        signal(SIGABRT, SIG_DFL); /* not cmocka's handler */
        if (cudaMalloc((void **)&out, 4096) == cudaSuccess)
            (void)probe_mistake(&null_stream, mistake, out, shared_bytes);
        _exit(0);
    }
    close(pipes[1]);
    while ((got = read(pipes[0], said + length, sizeof said - 1 - length)) > 0)
        length += (size_t)got;
    said[length] = '\0';
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        fail_msg("mistake %d went unseen", (int)mistake);
    if (!strstr(said, "mistake_kernel"))
        fail_msg("the report of mistake %d names no kernel: %s", (int)mistake, said);
    return said;
}

static void mistakes_end_the_program_with_kernel_and_place(void **state)
{
#ifdef __SANITIZE_THREAD__
    puts("ThreadSanitizer loses sight of fibers in a forked child");
    skip();
#endif
    FOR_ORDERS(i)
    {
        assert_non_null(strstr(death_of(PROBE_BARRIERS_OF_TWO_PLACES, 0), "divergent barrier"));
        assert_non_null(strstr(death_of(PROBE_BARRIER_AND_SHUFFLE, 0),
                               "mask 0xffffffff for lanes 0x00000008, which never arrive"));
        assert_non_null(strstr(death_of(PROBE_LANE_NOT_IN_MASK, 0), "which is not in it"));
        assert_non_null(
            strstr(death_of(PROBE_LANES_IN_TWO_OPERATIONS, 0), "must meet at the same operation"));
        assert_non_null(strstr(death_of(PROBE_MISALIGNED_VECTOR, 0), "misaligned address"));
        assert_non_null(strstr(death_of(PROBE_MISALIGNED_LDMATRIX, 4096), "misaligned address"));
        assert_non_null(strstr(death_of(PROBE_COPY_TO_GLOBAL, 4096), "cp.async to"));
        assert_non_null(strstr(death_of(PROBE_PART_OF_A_WARP_MULTIPLIES, 0),
                               "of which only lanes 0xffff0000 live"));
        assert_non_null(strstr(death_of(PROBE_CONSTANT_WRITTEN, 0), "read by __ldg and written"));
        (void)death_of(PROBE_SHARED_OVERRUN, 0);       /* detected by AddressSanitizer, */
        (void)death_of(PROBE_DYNAMIC_OVERRUN, 4 * 63); /* or by the guard bytes */
    }
}

static int nothing_is_left(void **state)
{
    return hd_cudasim_leaks() ? -1 : 0;
}

RUN_CASES_BETWEEN(NULL, nothing_is_left)
