/* epilogue: what stands behind a product or beside it, where the library takes it, where it does
 * not, and where it is told not to; on an emulated device.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/cuda.h"
#include "tests/cudasim/cudasim.h"
#include "tests/program/test.h"

enum { POOL_BYTES = 64 << 20 };

struct opened {
    const struct hd_backend_table *table;
    struct hd_backend *backend;
    struct hd_stream *stream;
    float *x; /* POOL_BYTES of zeros */
};

static struct opened open_all(const struct hd_backend_options *options)
{
    struct opened o = {.table = hd_backend_cuda()};
    void *memory = NULL;

    assert_int_equal(o.table->open(options, &o.backend), HD_OK);
    assert_int_equal(o.table->stream_open(o.backend, HD_STREAM_FOR_COMPUTE, &o.stream), HD_OK);
    assert_int_equal(o.table->device->reserve(o.backend, POOL_BYTES, true, &memory), HD_OK);
    o.x = memory;
    return o;
}

static void close_all(struct opened *o)
{
    o->table->device->release(o->backend, o->x);
    o->table->stream_close(o->stream);
    o->table->close(o->backend);
    assert_int_equal(hd_cudasim_leaks(), 0);
}

static const struct hd_backend_options plain_options = {.threads = 1};

/* Whether the library does all of it. */
static bool by_library(const struct opened *o, const struct hd_gemm_args *args)
{
    const char *by = NULL;

    assert_int_equal(o->table->computed_by(o->backend, HD_K_gemm, args, &by), HD_OK);
    return strcmp(by, "own") != 0;
}

/* A product that the library computes with GELU behind it: a is zeros, so pre is the bias and c its
 * GELU, which is 10 j itself in fp32. */
static struct hd_gemm_args gelu_of_a_bias(float *x)
{
    for (int j = 0; j < 8; j++)
        x[96 + j] = (float)(10 * j);
    return (struct hd_gemm_args){.a = x,
                                 .b = x + 16,
                                 .c = x + 64,
                                 .bias = x + 96,
                                 .pre = x + 256,
                                 .scratch = x + 1024,
                                 .M = 2,
                                 .N = 8,
                                 .K = 4,
                                 .lda = 4,
                                 .ldb = 8,
                                 .ldc = 8,
                                 .epilogue = HD_EPILOGUE_GELU,
                                 .ab_dtype = HD_F32,
                                 .c_dtype = HD_F32};
}

/* Goal: an epilogue that the heuristic has and the library's launch has not is no failure of the
 * step, and is not asked for again. Method: who computes it is said before and behind. */
static void an_epilogue_refused_at_the_launch_goes_the_second_way(void **state)
{
    struct opened o = open_all(&plain_options);
    struct hd_gemm_args a;
    float *x = o.x;

    a = gelu_of_a_bias(x);
    assert_true(by_library(&o, &a));
    for (int again = 0; again < 2; again++) {
        const uint64_t products = hd_cudasim_products(), launches = hd_cudasim_launches();

        memset(x + 64, 0xff, 16 * sizeof *x);
        hd_cudasim_epilogues_run(again); /* that it has come back is not noticed */
        assert_int_equal(hd_launch(o.stream, HD_K_gemm, &a), HD_OK);
        hd_cudasim_epilogues_run(true);
        assert_int_equal(hd_cudasim_products(), products + 1);
        assert_int_equal(hd_cudasim_launches(), launches + 1);
        assert_int_equal(o.table->synchronize(o.stream), HD_OK);
        for (int i = 0; i < 16; i++)
            assert_true(x[64 + i] == (float)(10 * (i % 8)) && x[256 + i] == x[64 + i]);
    }
    assert_false(by_library(&o, &a));
    close_all(&o);
}

struct refusing {
    const struct opened *o;
    const struct hd_gemm_args *args;
    int refusals, status;
};

/* Runs `work` with stderr in a file; returns the number of lines there that have `text`. */
static int lines_with(const char *text, void (*work)(const struct refusing *),
                      const struct refusing *context)
{
    FILE *file = tmpfile();
    const int kept = dup(STDERR_FILENO);
    char line[4096];
    int count = 0;

    assert_non_null(file);
    assert_true(kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    work(context);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    (void)close(kept);
    rewind(file);
    while (fgets(line, sizeof line, file))
        count += strstr(line, text) != NULL;
    (void)fclose(file);
    return count;
}

static void launch_refused(const struct refusing *r)
{
    hd_cudasim_refuse_products(r->refusals, r->status);
    assert_int_equal(hd_launch(r->o->stream, HD_K_gemm, r->args), HD_OK);
    hd_cudasim_refuse_products(0, 0);
    assert_int_equal(r->o->table->synchronize(r->o->stream), HD_OK);
}

/* Goal: a status of the library's first launch never ends a job that can go on, and is told.
 * Method: refuse the first launches: of a plain product, which has three choices (with and without
 * split-K), of one with a residual, which has three with and three without it, and of one with
 * GELU, which is too shallow for split-K and so has two with and two without it. */
static void a_refused_launch_goes_to_the_next_choice(void **state)
{
    static const struct {
        enum { PLAIN, GELU, RESIDUAL } what;
        int refusals, products, launches;
    } cases[] = {
        {PLAIN, 0, 1, 0},    {PLAIN, 1, 1, 0},    {PLAIN, 2, 1, 0},    {PLAIN, 3, 0, 1},
        {GELU, 0, 1, 0},     {GELU, 1, 1, 0},     {GELU, 2, 1, 1},     {GELU, 3, 1, 1},
        {GELU, 4, 0, 1},     {RESIDUAL, 0, 1, 0}, {RESIDUAL, 2, 1, 0}, {RESIDUAL, 3, 1, 1},
        {RESIDUAL, 5, 1, 1}, {RESIDUAL, 6, 0, 1},
    };
    static const int statuses[] = {7, 8,
                                   15}; /* invalid value, architecture mismatch, unsupported */
    enum { SIZE = 8, DEPTH = 512 };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0] * 3; i++) {
        struct opened o = open_all(&plain_options);
        struct hd_gemm_args args = {.a = o.x,
                                    .b = o.x + 8192,
                                    .c = o.x + 16384,
                                    .scratch = o.x + 32768,
                                    .M = SIZE,
                                    .N = SIZE,
                                    .K = DEPTH,
                                    .lda = DEPTH,
                                    .ldb = SIZE,
                                    .ldc = SIZE,
                                    .ab_dtype = HD_F32,
                                    .c_dtype = HD_F32};
        const struct refusing r = {&o, &args, cases[i / 3].refusals, statuses[i % 3]};
        const int products = cases[i / 3].products, launches = cases[i / 3].launches;
        const bool gelu = cases[i / 3].what == GELU, residual = cases[i / 3].what == RESIDUAL;

        for (int k = 0; k < SIZE * DEPTH; k++)
            o.x[k] = o.x[8192 + k] = 1;
        for (int k = 0; k < SIZE * SIZE; k++)
            o.x[24576 + k] = (float)k;
        if (residual)
            args.add = o.x + 24576;
        if (gelu)
            args = gelu_of_a_bias(o.x + 65536);
        for (int again = 0; again < 2; again++) { /* nothing is refused or tried a second time */
            const struct refusing no = {&o, &args, 0, 0};
            const uint64_t before = hd_cudasim_products(), kernels = hd_cudasim_launches();

            assert_int_equal(lines_with("refused its algorithm", launch_refused, again ? &no : &r),
                             again ? 0 : cases[i / 3].refusals);
            assert_int_equal(hd_cudasim_products() - before, products);
            assert_int_equal(hd_cudasim_launches() - kernels, launches);
        }
        assert_int_equal(by_library(&o, &args), launches == 0);
        for (int k = 0; k < SIZE; k++)
            assert_true(gelu ? o.x[65536 + 64 + k] == (float)(10 * k)
                             : o.x[16384 + k] == (float)(DEPTH + (residual ? k : 0)));
        for (int k = 0; k < SIZE * SIZE; k++) /* only read */
            assert_true(o.x[24576 + k] == (float)k);
        close_all(&o);
    }
}

static void a_failed_launch_is_no_refusal(void **state)
{
    enum { EXECUTION_FAILED = 13 };
    struct opened o = open_all(&plain_options);
    const struct hd_gemm_args args = gelu_of_a_bias(o.x);

    hd_cudasim_refuse_products(1, EXECUTION_FAILED);
    assert_int_equal(hd_launch(o.stream, HD_K_gemm, &args), HD_INTERNAL);
    assert_non_null(strstr(hd_err_message(), "cuBLASLt failed to multiply"));
    assert_int_equal(hd_launch(o.stream, HD_K_gemm, &args), HD_OK);
    assert_int_equal(o.table->synchronize(o.stream), HD_OK);
    close_all(&o);
}

static void what_gelu_is_not_given_is_refused(void **state)
{
    struct opened o = open_all(&plain_options);
    struct hd_gemm_args whole, a;

    a = whole = gelu_of_a_bias(o.x);
    a.epilogue = HD_EPILOGUE_NONE; /* and pre */
    assert_int_equal(hd_launch(o.stream, HD_K_gemm, &a), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "pre"));
    a.bias = NULL;
    a.epilogue = HD_EPILOGUE_GELU_BACKWARD;
    assert_int_equal(hd_launch(o.stream, HD_K_gemm, &a), HD_INVALID);
    a.pre = NULL; /* and gelu_inp */
    assert_int_equal(hd_launch(o.stream, HD_K_gemm, &a), HD_INVALID);
    a = whole;
    a.gelu_inp = whole.pre;
    assert_int_equal(hd_launch(o.stream, HD_K_gemm, &a), HD_INVALID);
    assert_int_equal(hd_launch(o.stream, HD_K_gemm, &whole), HD_OK);
    assert_int_equal(o.table->synchronize(o.stream), HD_OK);
    close_all(&o);
}

/* Goal: the options turn off what the traits then say, in what is planned and what is launched.
 * Method: GELU, who computes it, and who says that it would. */
static void what_stands_apart_is_no_epilogue(void **state)
{
    static const struct {
        bool apart, deterministic, gelu;
    } cases[] = {{false, false, true}, {false, true, true}, {true, false, false}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct hd_backend_options options = {.threads = 1,
                                                   .deterministic = cases[i].deterministic,
                                                   .epilogues_separate = cases[i].apart};
        struct opened o = open_all(&options);
        struct hd_traits traits;
        struct hd_gemm_args gelu;

        o.table->describe(&options, &traits);
        gelu = gelu_of_a_bias(o.x);
        assert_int_equal(hd_gemm_takes_epilogue(&gelu, &traits), cases[i].gelu);
        assert_int_equal(by_library(&o, &gelu), cases[i].gelu);
        assert_int_equal(hd_launch(o.stream, HD_K_gemm, &gelu), HD_OK);
        assert_int_equal(o.table->synchronize(o.stream), HD_OK);
        close_all(&o);
    }
}

RUN_CASES()
