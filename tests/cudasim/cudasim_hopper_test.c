/* Tests that the emulator does what Hopper GPUs do beside their threads, and detects misuse. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/dtype.h"
#include "tests/cudasim/cudasim.h"
#include "tests/cudasim/hopper_probe.h"
#include "tests/program/test.h"

static struct hd_cuda_stream null_stream;

static const struct {
    enum hd_cudasim_order order;
    uint64_t seed;
} orders[] = {{HD_CUDASIM_FORWARD, 0}, {HD_CUDASIM_REVERSE, 0}, {HD_CUDASIM_RANDOM, 1}};
enum { ORDERS = sizeof orders / sizeof orders[0], COLUMNS = 64 };
#define FOR_ORDERS(i) \
    for (int i = 0; i < ORDERS && (hd_cudasim_order(orders[i].order, orders[i].seed), true); i++)

static void *device_memory(size_t size_bytes)
{
    void *memory;

    assert_int_equal(cudaMalloc(&memory, size_bytes), cudaSuccess);
    return memory;
}

/* ---- Boxes ---- */

/* Goal: boxes of tensors with 2, 3 and 4 dimensions have the tensor's elements, and zeros outside of
 * it on each side. Method: every element has its own number. */
static void boxes_are_parts_of_tensors(void **state)
{
    /* rows of 80 elements, of which 72 belong to the tensor; 5 rows; 3 and 2 of the outer ones */
    static const struct probe_box boxes[] = {
        {.rank = 2, .rows = 5, .at = {8, 0}},        {.rank = 2, .rows = 16, .at = {-8, -3}},
        {.rank = 2, .rows = 4, .at = {16, 3}},       {.rank = 3, .rows = 5, .at = {0, 1, 2}},
        {.rank = 3, .rows = 8, .at = {32, 0, 3}},    {.rank = 4, .rows = 3, .at = {0, 2, 1, 1}},
        {.rank = 4, .rows = 3, .at = {0, 2, 1, -1}},
    };
    static const int64_t sizes[4] = {72, 5, 3, 2}, strides[3] = {80, 400, 1200};
    uint16_t *base = device_memory(2400 * sizeof *base);
    uint16_t *out = device_memory(16 * COLUMNS * sizeof *out);

    for (int i = 0; i < 2400; i++)
        base[i] = (uint16_t)(i + 1);
    for (size_t n = 0; n < sizeof boxes / sizeof boxes[0]; n++) {
        struct probe_box box = boxes[n];

        box.base = base;
        memcpy(box.sizes, sizes, sizeof sizes);
        memcpy(box.strides, strides, sizeof strides);
        hd_cudasim_order(orders[n % ORDERS].order, orders[n % ORDERS].seed);
        assert_int_equal(probe_box(&null_stream, out, &box), HD_OK);
        for (int i = 0; i < box.rows * COLUMNS; i++) {
            int64_t at = box.at[0] + i % COLUMNS;
            bool is_inside = at >= 0 && at < sizes[0];

            for (int d = 1; d < box.rank; d++) {
                const int64_t place = box.at[d] + (d == 1 ? i / COLUMNS : 0);

                is_inside = is_inside && place >= 0 && place < sizes[d];
                at += place * strides[d - 1];
            }
            assert_int_equal(out[i], is_inside ? at + 1 : 0);
        }
    }
    cudaFree(base);
    cudaFree(out);
}

static void maps_that_a_device_refuses_are_refused(void **state)
{
    uint16_t *base = device_memory(4096), *out = device_memory(4096);
    const struct probe_box right = {
        .base = base, .rank = 2, .rows = 8, .sizes = {64, 8}, .strides = {64}};
    struct probe_box wrong[4] = {right, right, right, right};

    wrong[0].base = base + 4; /* 8 bytes behind a bound of 16 */
    wrong[1].strides[0] = 68; /* 136 bytes */
    wrong[2].rows = 257;      /* a side of 256 at most */
    wrong[3].sizes[1] = 0;    /* no rows */
    assert_int_equal(probe_box(&null_stream, out, &right), HD_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(probe_box(&null_stream, out, &wrong[i]), HD_INTERNAL);
        assert_non_null(strstr(hd_err_message(), "refuses the map"));
    }
    cudaFree(base);
    cudaFree(out);
}

/* ---- Products ---- */

enum { M = 64, K = 64 };

/* Returns whether the product has the sums computed in double. Factors are small integers, so that
 * every order of additions is exact. */
static bool product_is_right(int N, bool transposed_a, bool transposed_b, bool by_registers,
                             enum probe_hopper_mistake mistake)
{
    uint16_t *a = device_memory(M * K * sizeof *a), *b = device_memory(K * 128 * sizeof *b);
    float *c = device_memory(M * 128 * sizeof *c), *d = device_memory(M * 128 * sizeof *d);
    const struct probe_wgmma p = {.d = d,
                                  .c = c,
                                  .a = a,
                                  .b = b,
                                  .N = N,
                                  .transposed_a = transposed_a,
                                  .transposed_b = transposed_b,
                                  .by_registers = by_registers,
                                  .mistake = mistake};
    bool right;

    srand(1);
    for (int i = 0; i < M * K; i++)
        a[i] = hd_f32_to_bf16((float)(rand() % 15 - 7));
    for (int i = 0; i < K * N; i++)
        b[i] = hd_f32_to_bf16((float)(rand() % 15 - 7));
    for (int i = 0; i < M * N; i++)
        c[i] = (float)(rand() % 100);
    right = probe_wgmma(&null_stream, &p) == HD_OK;
    for (int row = 0; row < M && right; row++)
        for (int column = 0; column < N; column++) {
            float sum = c[row * N + column];

            for (int k = 0; k < K; k++)
                sum += hd_bf16_to_f32(a[transposed_a ? k * M + row : row * K + k]) *
                       hd_bf16_to_f32(b[transposed_b ? k * N + column : column * K + k]);
            right = right && d[row * N + column] == sum;
        }
    cudaFree(a);
    cudaFree(b);
    cudaFree(c);
    cudaFree(d);
    return right;
}

/* Goal: each layout that the descriptors can tell, with both widths, from shared memory and from
 * registers. */
static void products_of_warp_groups_are_matrix_products(void **state)
{
    for (int i = 0; i < 12; i++) {
        const int N = i % 2 ? 128 : 64;
        const bool transposed_b = i / 2 % 2, by_registers = i / 4 == 2;

        hd_cudasim_order(orders[i % ORDERS].order, orders[i % ORDERS].seed);
        assert_true(product_is_right(N, i / 4 == 1, transposed_b, by_registers, PROBE_RIGHT));
    }
}

/* ---- Mistakes ---- */

enum { TILES = 7, TILE = 8 * COLUMNS }; /* two stages: with 2 tiles none is filled again */

/* Returns whether the launch gives what it should. */
static bool is_right(enum probe_hopper_mistake mistake, int tiles)
{
    uint16_t *inp = device_memory(TILES * TILE * sizeof *inp);
    float *out = device_memory(TILE * sizeof *out);
    int *flag = device_memory(2 * sizeof *flag);
    bool right = true;

    for (int i = 0; i < TILES * TILE; i++)
        inp[i] = hd_f32_to_bf16((float)(i % 251));
    flag[0] = flag[1] = 0;
    if (mistake >= PROBE_REGISTERS_MISTAKES) {
        right = product_is_right(64, false, false, false, mistake);
    } else if (mistake >= PROBE_STREAM_MISTAKES) {
        right = probe_registers(&null_stream, flag, mistake) == HD_OK && *flag == 1;
    } else {
        right = probe_stream(&null_stream, out, inp, tiles, mistake) == HD_OK;
        for (int i = 0; i < TILE; i++) {
            float sum = 0; /* exact: integers below 2^24 */

            for (int t = 0; t < tiles; t++)
                sum += (float)((t * TILE + i) % 251);
            right = right && out[i] == sum;
        }
    }
    cudaFree(inp);
    cudaFree(out);
    cudaFree(flag);
    return right;
}

/* Makes a mistake in a child process and returns what it said; "wrong" if it gave another result
 * without a word, "right" if nothing happened. */
static const char *fate_of(enum probe_hopper_mistake mistake, int tiles)
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
        dup2(pipes[1], 2);
        close(pipes[0]);
        close(pipes[1]);
        signal(SIGABRT, SIG_DFL); /* not cmocka's handler */
        _exit(is_right(mistake, tiles) ? 0 : 1);
    }
    close(pipes[1]);
    while ((got = read(pipes[0], said + length, sizeof said - 1 - length)) > 0)
        length += (size_t)got;
    said[length] = '\0';
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status))
        return said;
    return WEXITSTATUS(status) ? "wrong" : "right";
}

static void what_is_done_right_is_right_in_every_order(void **state)
{
    FOR_ORDERS(i)
    {
        int *flag = device_memory(2 * sizeof *flag);

        assert_true(is_right(PROBE_RIGHT, TILES));
        flag[0] = flag[1] = 0;
        assert_int_equal(probe_registers(&null_stream, flag, PROBE_RIGHT), HD_OK);
        assert_int_equal(flag[0], 1);
        assert_int_equal(flag[1], 1);
        cudaFree(flag);
    }
}

static void each_mistake_is_told_or_shows(void **state)
{
    static const struct {
        enum probe_hopper_mistake mistake;
        int tiles;
        const char *says; /* "wrong": the result shows it */
    } mistakes[] = {
        {PROBE_READ_BEFORE_FULL, 2, "wrong"},
        {PROBE_WRITE_BEFORE_EMPTY, 7, "an mbarrier that has all of its 1 in this phase"},
        {PROBE_OTHER_PARITY, 2, "deadlock: thread"},
        {PROBE_ARRIVAL_MISSING, 7, "phase of parity 0, which is phase 0; it still expects 2 of 2"},
        {PROBE_ARRIVAL_TOO_MANY, 7, "two phases of an mbarrier ended"},
        {PROBE_BYTES_TOO_MANY, 2, "it still expects 0 of 1 arrivals and 16 bytes"},
        {PROBE_BYTES_TOO_FEW, 2, "it still expects 0 of 1 arrivals and -16 bytes"},
        {PROBE_INIT_UNFENCED, 2, "not fenced after it was initialised"},
        {PROBE_INIT_MISSING, 2, "was not initialised, or was overwritten"},
        {PROBE_WORD_OVERWRITTEN, 2, "was not initialised, or was overwritten"},
        {PROBE_BOX_MISALIGNED, 2, "misaligned address"},
        {PROBE_END_BEFORE_BOX, 2, "the block ended before this box was copied"},
        {PROBE_REGISTERS_NEVER_FREE, 2, "waits in setmaxnreg for 256 registers; its warp has 248"},
        {PROBE_REGISTERS_OF_HALF_A_WARP, 2, "of which only lanes 0xffff0000 live"},
        {PROBE_REGISTERS_ODD, 2, "setmaxnreg to 100 registers"},
        {PROBE_TURN_NEVER_COMES, 2, "waits for turn 3 of a counter that is 0"},
        {PROBE_TURN_NOT_WAITED_FOR, 2, "passed by a thread that did not wait"},
        {PROBE_GROUP_BARRIER_WITHOUT_ALL, 2, "waits at barrier 1, where 128 of 256 are"},
        {PROBE_GROUP_BARRIERS_DIFFER, 2, "barrier 1 for "},
        {PROBE_SUMS_READ_EARLY, 2, "wrong"},
        {PROBE_SUMS_WRITTEN_EARLY, 2, "sums of wgmma were written before this wgmma_wait"},
        {PROBE_FACTOR_OVERWRITTEN, 2, "shared memory was written while this wgmma read it"},
        {PROBE_WAIT_FOR_ALL_BUT_ONE, 2, "ended before this wgmma"},
        {PROBE_COMMIT_MISSING, 2, "ended before this wgmma"},
        {PROBE_FENCE_MISSING, 2, "begins without wgmma_fence"},
        {PROBE_WARP_MISSING, 2, "warp 2 issued 0 of the 4 products of its warp group"},
        {PROBE_WARPS_DIFFER, 2, "is another than that of its warp group"},
        {PROBE_TILE_MISALIGNED, 2, "does not begin at a bound of 1024 bytes"},
        {PROBE_NO_SWIZZLE, 2, "knows the 128-byte swizzle"},
    };

#ifdef __SANITIZE_THREAD__
    puts("ThreadSanitizer loses sight of fibers in a forked child");
    skip();
#endif
    for (size_t m = 0; m < sizeof mistakes / sizeof mistakes[0]; m++) {
        int seen = 0;

        FOR_ORDERS(i)
        {
            const char *fate = fate_of(mistakes[m].mistake, mistakes[m].tiles);

            seen += strstr(fate, mistakes[m].says) != NULL;
        }
        if (!seen)
            fail_msg("mistake %d was not told: \"%s\"", (int)mistakes[m].mistake, mistakes[m].says);
    }
}

static int nothing_is_left(void **state)
{
    return hd_cudasim_leaks() ? -1 : 0;
}

RUN_CASES_BETWEEN(NULL, nothing_is_left)
