/* choices: the algorithm of a product is chosen by time, once for a GPU, and kept in a file. On the
 * emulator, whose products pretend to take some time. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/file.h"
#include "base/fp8.h"
#include "base/log.h"
#include "kernels/cuda/choices.h"
#include "kernels/cuda/cuda.h"
#include "tests/cudasim/cudasim.h"
#include "tests/program/test.h"

enum { SIDE = 16, NOT_SUPPORTED = 15 /* CUBLAS_STATUS_NOT_SUPPORTED */ };

static const double even[HD_CUDASIM_OFFERS], second_is_best[] = {3, 1, 2},
                                             third_is_best[] = {3, 2, 1};
static char dir[PATH_MAX];

struct opened {
    const struct hd_backend_table *table;
    struct hd_backend *backend;
    struct hd_stream *stream;
    void *memory;
};

static struct opened open_with(const struct hd_backend_options *options)
{
    struct opened o = {.table = hd_backend_cuda()};

    assert_int_equal(o.table->open(options, &o.backend), HD_OK);
    assert_int_equal(o.table->stream_open(o.backend, HD_STREAM_FOR_COMPUTE, &o.stream), HD_OK);
    assert_int_equal(o.table->device->reserve(o.backend, (int64_t)1 << 26, true, &o.memory), HD_OK);
    return o;
}

static struct opened open_timed(void)
{
    return open_with(&(struct hd_backend_options){.threads = 1, .choices_dir = dir});
}

static void close_one(struct opened *o)
{
    o->table->device->release(o->backend, o->memory);
    o->table->stream_close(o->stream);
    o->table->close(o->backend);
}

static void close_all(struct opened *o)
{
    close_one(o);
    assert_int_equal(hd_cudasim_leaks(), 0);
}

/* c [M, SIDE] = a b. The offers of a K below 256 differ in their pretended time alone. */
static struct hd_gemm_args product_of(const struct opened *o, int64_t M)
{
    char *x = o->memory;

    return (struct hd_gemm_args){.c = x,
                                 .a = x + 65536,
                                 .b = x + 2 * 65536,
                                 .scratch = x + 4 * 65536,
                                 .M = M,
                                 .N = SIDE,
                                 .K = SIDE,
                                 .lda = SIDE,
                                 .ldb = SIDE,
                                 .ldc = SIDE,
                                 .ab_dtype = HD_BF16,
                                 .c_dtype = HD_BF16};
}

/* Launches of the library that `prepare` makes. */
static uint64_t prepare(const struct opened *o, int64_t M)
{
    const struct hd_gemm_args args = product_of(o, M);
    const uint64_t before = hd_cudasim_products();

    assert_int_equal(o->table->prepare(o->backend, HD_K_gemm, &args), HD_OK);
    return hd_cudasim_products() - before;
}

/* Which offer a launch takes. */
static int offer_of(const struct opened *o, int64_t M)
{
    const struct hd_gemm_args args = product_of(o, M);
    uint64_t before[HD_CUDASIM_OFFERS];
    int taken = -1;

    for (int i = 0; i < HD_CUDASIM_OFFERS; i++)
        before[i] = hd_cudasim_products_of(i);
    assert_int_equal(hd_launch(o->stream, HD_K_gemm, &args), HD_OK);
    assert_int_equal(o->table->synchronize(o->stream), HD_OK);
    for (int i = 0; i < HD_CUDASIM_OFFERS; i++)
        if (hd_cudasim_products_of(i) != before[i])
            taken = i;
    return taken;
}

static void file_of(char ret_path[PATH_MAX])
{
    /* the bytes of the emulator's UUID: "heddle-cudasim", 0 and the number of the device */
    (void)snprintf(ret_path, PATH_MAX, "%.4000s/GPU-68656464-6c65-2d63-7564-6173696d0000", dir);
}

static void write_file(const char *text, size_t bytes)
{
    char path[PATH_MAX];

    file_of(path);
    assert_int_equal(hd_file_write_atomic(path, text, bytes, 0644), HD_OK);
}

static struct hd_text read_file(void)
{
    struct hd_text text = {0};
    char path[PATH_MAX];

    file_of(path);
    assert_int_equal(hd_file_read(path, 1 << 20, &text), HD_OK);
    return text;
}

static int start(void **state)
{
    const char *tmp = getenv("TMPDIR");

    (void)snprintf(dir, sizeof dir, "%.4000s/choices.XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(dir))
        return -1;
    hd_cudasim_offer_ms(second_is_best);
    return 0;
}

static int end(void **state)
{
    hd_cudasim_offer_ms(even);
    hd_cudasim_driver(0);
    return hd_file_remove_tree(dir);
}

static void the_fastest_is_timed_once_and_kept(void **state)
{
    struct opened o = open_timed();
    struct hd_text text;
    int count = 0;

    assert_true(prepare(&o, 8) >= HD_CUDASIM_OFFERS - 1); /* K is too small to be split */
    assert_int_equal(offer_of(&o, 8), 1);
    assert_int_equal(prepare(&o, 8), 0);
    assert_int_equal(o.table->choices(o.backend, &count)->chosen, 1);
    assert_int_equal(count, 1);
    o.table->keep_choices(o.backend);
    close_all(&o);
    text = read_file();
    assert_non_null(strstr(text.data, " 2 1\nend ")); /* of two offers the second */
    hd_text_free(&text);

    hd_cudasim_offer_ms(third_is_best); /* which is no longer asked */
    o = open_timed();
    assert_int_equal(prepare(&o, 8), 0);
    assert_int_equal(offer_of(&o, 8), 1);
    assert_true(prepare(&o, 4) > 0); /* another product */
    close_all(&o);
}

/* 2% are needed: 0.99 of 1 + the emulator's constant are not enough, 0.9 are. */
static void the_librarys_first_offer_stays_unless_another_is_clearly_faster(void **state)
{
    static const double noise[] = {1, 0.99, 0.99}, better[] = {1, 0.9, 1};
    struct opened o = open_timed();

    hd_cudasim_offer_ms(noise);
    assert_true(prepare(&o, 8) > 0);
    assert_int_equal(offer_of(&o, 8), 0);
    hd_cudasim_offer_ms(better);
    assert_true(prepare(&o, 4) > 0);
    assert_int_equal(offer_of(&o, 4), 1);
    close_all(&o);
}

static void deterministic_and_without_a_folder_nothing_is_timed(void **state)
{
    const struct hd_backend_options options[] = {
        {.threads = 1, .choices_dir = dir, .deterministic = true}, {.threads = 1}};

    for (int i = 0; i < 2; i++) {
        struct opened o = open_with(&options[i]);
        int count = -1;

        assert_int_equal(prepare(&o, 8), 0);
        assert_int_equal(offer_of(&o, 8), 0);
        (void)o.table->choices(o.backend, &count);
        assert_int_equal(count, 0);
        o.table->keep_choices(o.backend);
        close_all(&o);
    }
    assert_int_equal(rmdir(dir), 0); /* nothing was written */
    assert_int_equal(hd_file_make_dirs(dir, 0700), HD_OK);
}

/* Opens, prepares and closes with stderr in a file; returns the line of the log. */
static uint64_t launches_and_line(char ret_line[1024])
{
    FILE *file = tmpfile();
    const int kept = dup(STDERR_FILENO);
    uint64_t launches;
    struct opened o;

    assert_true(file && kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    o = open_timed();
    launches = prepare(&o, 8);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    (void)close(kept);
    rewind(file);
    if (!fgets(ret_line, 1024, file))
        ret_line[0] = '\0';
    (void)fclose(file);
    if (launches)
        assert_int_equal(offer_of(&o, 8), 1);
    close_all(&o);
    return launches;
}

static void make_file(void)
{
    struct opened o = open_timed();

    (void)prepare(&o, 8);
    o.table->keep_choices(o.backend);
    close_all(&o);
}

static void the_file_of_another_driver_is_ignored(void **state)
{
    char line[1024];

    make_file();
    hd_cudasim_driver(12040);
    assert_true(launches_and_line(line) > 0);
    assert_non_null(strstr(line, "is ignored: it is for GPU-"));
    assert_non_null(strstr(line, "driver 12.4"));
    hd_cudasim_driver(0);
    assert_int_equal(launches_and_line(line), 0);
    assert_string_equal(line, "");
}

/* Each byte that is changed, and each line that is cut off, is noticed. */
static void a_damaged_file_is_ignored_with_a_sentence(void **state)
{
    struct hd_text text;
    char line[1024];

    make_file();
    text = read_file();
    for (size_t at = 0; at < text.len_bytes; at += 7) {
        text.data[at] ^= 1;
        write_file(text.data, text.len_bytes);
        text.data[at] ^= 1;
        assert_true(launches_and_line(line) > 0);
        assert_non_null(strstr(line, "is ignored: "));
    }
    write_file(text.data, text.len_bytes - 1);
    assert_true(launches_and_line(line) > 0);
    assert_non_null(strstr(line, "is ignored: line 4 is missing, too long, or no text"));
    write_file("", 0);
    assert_true(launches_and_line(line) > 0);
    assert_non_null(strstr(line, "is ignored: line 1 is not \"heddle choices 1\""));
    write_file(text.data, text.len_bytes);
    assert_int_equal(launches_and_line(line), 0);
    hd_text_free(&text);
}

/* Two processes of one GPU: each writes the whole file, with what the other one had written. */
static void what_another_process_has_kept_stays(void **state)
{
    struct opened one = open_timed(), other = open_timed();

    (void)prepare(&one, 8);
    (void)prepare(&other, 4);
    one.table->keep_choices(one.backend);
    other.table->keep_choices(other.backend);
    close_one(&other);
    close_all(&one);
    one = open_timed();
    assert_int_equal(prepare(&one, 8) + prepare(&one, 4), 0);
    close_all(&one);
}

static void the_choice_of_another_rank_is_taken_if_it_can_be(void **state)
{
    struct opened o = open_timed();
    const struct hd_choice *own;
    struct hd_choice other;
    int count = 0;

    (void)prepare(&o, 8);
    own = o.table->choices(o.backend, &count);
    assert_int_equal(count, 1);
    other = own[0];
    other.chosen = 0;
    for (int wrong = 0; wrong < 3; wrong++) {
        struct hd_choice bad = other;

        bad.offered += wrong == 0;
        bad.chosen = wrong == 1 ? bad.offered : wrong == 2 ? -1 : 0;
        o.table->choose(o.backend, &bad, 1);
        assert_int_equal(offer_of(&o, 8), 1);
    }
    o.table->choose(o.backend, &other, 1);
    assert_int_equal(offer_of(&o, 8), 0);
    assert_int_equal(o.table->choices(o.backend, &count)->chosen, 0);
    close_all(&o);
}

/* The library refuses its fastest offer when that is timed, then all of another product. */
static void an_offer_that_is_refused_is_not_chosen(void **state)
{
    static const double first_is_best[] = {1, 2, 3};
    struct opened o = open_timed();
    struct hd_gemm_args args = product_of(&o, 4);
    const char *by = NULL;

    hd_cudasim_offer_ms(first_is_best);
    hd_cudasim_refuse_products(1, NOT_SUPPORTED);
    assert_true(prepare(&o, 8) > 0);
    assert_int_equal(offer_of(&o, 8), 1);
    hd_cudasim_refuse_products(HD_CUDASIM_OFFERS - 1, NOT_SUPPORTED);
    assert_int_equal(prepare(&o, 4), 0);
    assert_int_equal(o.table->computed_by(o.backend, HD_K_gemm, &args, &by), HD_OK);
    assert_string_equal(by, "own");
    close_all(&o);
}

static double number_at(const void *numbers, enum hd_dtype dtype, int i)
{
    return dtype == HD_F32 ? ((const float *)numbers)[i]
                           : hd_half_to_f32(dtype, ((const uint16_t *)numbers)[i]);
}

/* Goal: algorithms are timed on numbers that switch the GPU's gates, not on zeros, and what lies
 * between the rows of a factor stays. Numbers that are uniform between -1 and 1 have a mean square of
 * 1/3; of 192 of them that is within 0.1 but once in 10^5 keys. */
static void algorithms_are_timed_on_random_numbers(void **state)
{
    enum { M = 12, GAP = 8 };
    static const enum hd_dtype dtypes[] = {HD_F32, HD_BF16, HD_F16};

    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        struct opened o = open_timed();
        struct hd_gemm_args args = product_of(&o, M);
        char *a = (char *)o.memory + 65536;
        double squares = 0;

        args.ab_dtype = args.c_dtype = dtypes[i];
        args.lda = SIDE + GAP;
        memset(a, 0, M * (SIDE + GAP) * hd_dtype_size(dtypes[i]));
        assert_int_equal(o.table->prepare(o.backend, HD_K_gemm, &args), HD_OK);
        for (int r = 0; r < M; r++)
            for (int c = 0; c < SIDE + GAP; c++) {
                const double x = number_at(a, dtypes[i], r * (SIDE + GAP) + c);

                assert_true(c < SIDE ? x >= -1 && x <= 1 && x != 0 : x == 0);
                squares += x * x;
            }
        squares /= M * SIDE;
        assert_true(squares > 1.0 / 3 - 0.1 && squares < 1.0 / 3 + 0.1);
        close_all(&o);
    }
}

/* Codes of fp8 are random as well, finite in either format: of 192, more than half are different. */
static void algorithms_of_fp8_are_timed_on_finite_codes(void **state)
{
    struct opened o = open_timed();
    uint8_t *a = (uint8_t *)o.memory + 65536;
    float *factors = (float *)((char *)o.memory + 3 * 65536);
    const struct hd_fp8_gemm_args args = {.c = o.memory,
                                          .a = a,
                                          .b = a + 65536,
                                          .a_factor = factors,
                                          .b_factor = factors + HD_FP8_FACTOR_ALIGN,
                                          .scratch = (char *)o.memory + 4 * 65536,
                                          .M = HD_FP8_SIDE,
                                          .N = HD_FP8_SIDE,
                                          .K = HD_FP8_SIDE,
                                          .c_dtype = HD_BF16};
    bool seen[256] = {false};
    int different = 0;

    factors[0] = factors[HD_FP8_FACTOR_ALIGN] = 1;
    memset(a, 0x7f, HD_FP8_SIDE * HD_FP8_SIDE);
    assert_int_equal(o.table->prepare(o.backend, HD_K_fp8_gemm, &args), HD_OK);
    for (int i = 0; i < HD_FP8_SIDE * HD_FP8_SIDE; i++) {
        assert_true(isfinite(hd_fp8_value(a[i], HD_E4M3)) && isfinite(hd_fp8_value(a[i], HD_E5M2)));
        different += !seen[a[i]];
        seen[a[i]] = true;
    }
    assert_true(different > 64);
    close_all(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ALL_CASES_WITH(start, end)};

    hd_log_init("choices_test", HD_LOG_INFO);
    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
