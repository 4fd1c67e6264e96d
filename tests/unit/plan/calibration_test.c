/* Goal: times of a calibration, exactly, from samples that are made up. */
#include <math.h>

#include "fixture.h"
#include "plan/calibration.h"
#include "plan/calibration_report.h"
#include "plan/links.h"
#include "program/program.h"
#include "tests/program/test.h"

static void is_near(double value, double wanted)
{
    if (fabs(value - wanted) > 1e-9 * fabs(wanted))
        fail_msg("%.12g is not %.12g", value, wanted);
}

static struct hd_gemm_args product(int64_t M, int64_t N, int64_t K)
{
    return (struct hd_gemm_args){
        .M = M, .N = N, .K = K, .trans_b = true, .ab_dtype = HD_F32, .c_dtype = HD_F32};
}

static struct hd_calibration_key key_of(enum hd_kernel kernel, const void *args)
{
    struct hd_calibration_key key;
    struct hd_costs costs = {0};

    hd_kernel_cost_add(&costs, kernel, args);
    hd_calibration_key_of(kernel, args, &costs, &key);
    return key;
}

static void add(struct hd_calibration *cal, struct hd_arena *arena, enum hd_kernel kernel,
                const void *args, double seconds)
{
    const struct hd_calibration_key key = key_of(kernel, args);

    assert_int_equal(hd_calibration_add(cal, arena, &key, seconds), HD_OK);
}

static double seconds_of(const struct hd_calibration *cal, enum hd_kernel kernel, const void *args)
{
    const struct hd_calibration_key key = key_of(kernel, args);
    double seconds = 0;

    assert_true(hd_calibration_seconds(cal, &key, &seconds));
    return seconds;
}

/* Two devices of two threads: adds in and out of the cache, two products, sums of two members. */
static void make(struct hd_calibration *cal, struct hd_arena *arena)
{
    const struct hd_add_args warm = {.N = 1 << 14, .dtype = HD_F32};
    const struct hd_add_args cold = {.N = 1 << 20, .dtype = HD_F32};
    const struct hd_gemm_args small = product(64, 64, 64), large = product(256, 256, 256);

    *cal = (struct hd_calibration){.threads = 2,
                                   .devices = 2,
                                   .launch_s = 1e-6,
                                   .step_s = 0.25,
                                   .wait_share = 0.125,
                                   .wait_s = 0.0625};
    (void)strcpy(cal->device, "cpu");
    (void)snprintf(cal->isa, sizeof cal->isa, "avx2");
    (void)snprintf(cal->engine, sizeof cal->engine, "shm");
    hd_calibration_build(cal->build);
    hd_arena_init(arena, 0);
    /* an add reads two tensors and writes one, four bytes each: 12 N bytes */
    add(cal, arena, HD_K_add, &warm, 12.0 * (1 << 14) / 64e9);
    add(cal, arena, HD_K_add, &cold, 12.0 * (1 << 20) / 4e9);
    add(cal, arena, HD_K_gemm, &small, 2.0 * 64 * 64 * 64 / 10e9);
    add(cal, arena, HD_K_gemm, &large, 2.0 * 256 * 256 * 256 / 40e9);
    assert_int_equal(hd_calibration_add_collective(cal, arena, HD_COMM_ALL_GATHER, 2, 1000, 20e-6),
                     HD_OK);
    assert_int_equal(
        hd_calibration_add_collective(cal, arena, HD_COMM_ALL_GATHER, 2, 101000, 120e-6), HD_OK);
    assert_int_equal(hd_calibration_set_devices(
                         cal, arena,
                         (struct hd_calibration_device[]){{4e10, 8e10, 4e9}, {5e10, 7e10, 3e9}}, 2,
                         &(struct hd_calibration_pair){0, 1, 2e-6, 1e10}, 1),
                     HD_OK);
}

/* Three models on the line 0.05 + 0.001 x; then lines that would begin, or go, below 0. */
static void waits_are_a_share_and_a_part_per_collective(void **state)
{
    const struct hd_calibration_waits line[] = {{0.15, 100}, {0.25, 200}, {0.55, 500}};
    const struct hd_calibration_waits steep[] = {{0.1, 200}, {0.4, 400}}; /* 0.0015 x - 0.2 */
    const struct hd_calibration_waits falling[] = {{0.3, 100}, {0.1, 300}};
    struct hd_calibration cal = {.wait_share = 7};

    hd_calibration_set_waits(&cal, line, 0);
    is_near(cal.wait_share, 7);
    hd_calibration_set_waits(&cal, line, 3);
    is_near(cal.wait_share, 0.05);
    is_near(cal.wait_s, 0.001);
    hd_calibration_set_waits(&cal, steep, 2);
    is_near(1 + cal.wait_share, 1);
    is_near(cal.wait_s, (200 * 0.1 + 400 * 0.4) / (200.0 * 200 + 400 * 400));
    hd_calibration_set_waits(&cal, falling, 2);
    is_near(cal.wait_share, 0.2); /* the mean */
    is_near(1 + cal.wait_s, 1);
}

static void a_measured_size_takes_its_measured_time(void **state)
{
    const struct hd_gemm_args large = product(256, 256, 256);
    struct hd_calibration cal;
    struct hd_arena arena;

    make(&cal, &arena);
    is_near(seconds_of(&cal, HD_K_gemm, &large), 2.0 * 256 * 256 * 256 / 40e9);
    hd_arena_done(&arena);
}

/* In the cache 64 GB/s, out of it 4 GB/s; a size midway in the logarithm: the geometric mean, 16.
 * Far beyond the largest sample its rate nearly holds. */
static void bytes_out_of_the_cache_take_longer(void **state)
{
    const struct hd_add_args cold = {.N = 1 << 20, .dtype = HD_F32};
    const struct hd_add_args midway = {.N = 1 << 17, .dtype = HD_F32};
    struct hd_calibration cal;
    struct hd_arena arena;

    make(&cal, &arena);
    is_near(seconds_of(&cal, HD_K_add, &cold), 12.0 * (1 << 20) / 4e9);
    is_near(seconds_of(&cal, HD_K_add, &midway), 12.0 * (1 << 17) / 16e9);
    hd_arena_done(&arena);
}

/* 128 lies midway between 64 and 256 in all three sizes: the geometric mean of 10 and 40 GF/s. */
static void a_product_lies_between_its_neighbours(void **state)
{
    const struct hd_gemm_args midway = product(128, 128, 128);
    struct hd_calibration cal;
    struct hd_arena arena;

    make(&cal, &arena);
    is_near(seconds_of(&cal, HD_K_gemm, &midway), 2.0 * 128 * 128 * 128 / 20e9);
    hd_arena_done(&arena);
}

/* With GELU in the same pass, where that was not measured, a product takes the plain one's time; of
 * another layout of the factors nothing is known. */
static void a_variant_that_was_not_measured(void **state)
{
    struct hd_gemm_args other = product(256, 256, 256);
    struct hd_calibration_key key;
    struct hd_calibration cal;
    struct hd_arena arena;
    double seconds;

    make(&cal, &arena);
    other.epilogue = HD_EPILOGUE_GELU;
    is_near(seconds_of(&cal, HD_K_gemm, &other), 2.0 * 256 * 256 * 256 / 40e9);
    other.epilogue = HD_EPILOGUE_NONE;
    other.trans_a = true;
    key = key_of(HD_K_gemm, &other);
    assert_false(hd_calibration_seconds(&cal, &key, &seconds));
    hd_arena_done(&arena);
}

/* A launch takes its measured time and the gap to the next one; what was not measured takes what
 * the tables say. */
static void rates_take_what_was_measured(void **state)
{
    struct hd_add_args cold = {.N = 1 << 20, .dtype = HD_F32};
    struct hd_bias_forward_args unknown = {.R = 1000, .N = 1000, .dtype = HD_F32};
    const struct hd_node node = {.kernel = HD_K_add, .args = &cold};
    const struct hd_node other = {.kernel = HD_K_bias_forward, .args = &unknown};
    struct hd_calibration cal;
    struct hd_rates rates;
    struct hd_arena arena;

    make(&cal, &arena);
    hd_rates_of_peaks(1e12, 1e12, 1e10, 0, 0, &rates);
    hd_rates_calibrate(&rates, &cal);
    is_near(hd_rates_node(&rates, &node), 1e-6 + 12.0 * (1 << 20) / 4e9);
    /* reads 1000 x 1000 and 1000 numbers, writes 1000 x 1000; four bytes each at 10 GB/s */
    is_near(hd_rates_node(&rates, &other), 1e-6 + 4.0 * 2001000 / 1e10);
    hd_arena_done(&arena);
}

/* 20 us at 1000 bytes and 1 ns for each further byte; less takes no less, more goes on alike. Of
 * four members: the ratio of their rings, which is that of 3 hops to 1. */
static void a_collective_has_its_latency_and_its_bytes(void **state)
{
    struct hd_cluster c = priced_cluster(2, 4, 4e11, 5e10);
    const struct hd_link_group two = {.size = 2, .near = {2, 2}, .top = 0};
    const struct hd_link_group four = {.size = 4, .near = {4, 4}, .top = 0};
    const struct hd_link_group across = {.size = 2, .near = {1, 2}, .top = 1};
    const double by_table = hd_links_collective(&c, &across, HD_COMM_ALL_GATHER, 51000, false);
    struct hd_calibration cal;
    struct hd_arena arena;

    make(&cal, &arena);
    hd_rates_calibrate(&c.rates, &cal);
    is_near(hd_links_collective(&c, &two, HD_COMM_ALL_GATHER, 8, false), 20e-6);
    is_near(hd_links_collective(&c, &two, HD_COMM_ALL_GATHER, 51000, false), 70e-6);
    is_near(hd_links_collective(&c, &two, HD_COMM_ALL_GATHER, 1001000, false), 1020e-6);
    is_near(hd_links_collective(&c, &four, HD_COMM_ALL_GATHER, 51000, false), 210e-6);
    is_near(hd_links_collective(&c, &across, HD_COMM_ALL_GATHER, 51000, false), by_table);
    hd_arena_done(&arena);
}

static struct hd_program_time backward_of(const struct hd_job *job, const struct hd_cluster *c)
{
    struct hd_layer_profile profile;

    if (hd_layer_profiles_whole(job, c, (struct hd_units){0, 4}, &profile))
        fail_msg("%s", hd_err_message());
    return profile.time[HD_LAYER_PROFILE_B][1];
}

/* The engines of processors move bytes in the rank's own thread: a program takes its kernels and
 * its collectives one after the other, and no reduction is left when it ends. */
static void collectives_in_the_thread_overlap_with_nothing(void **state)
{
    struct hd_cluster c = priced_cluster(1, 2, 1e9, 1e9);
    struct hd_job job = priced_job(2, 512, 8);
    struct hd_plan_request request;
    struct hd_program_time beside, in_thread;
    double all = 0;

    job.zero = 3;
    request = priced_request(&job);
    assert_int_equal(hd_plan_decide(&request, 2, &job.layout), HD_OK);
    hd_plan_decide_device(HD_JOB_DEVICE_CPU, false, 1, &job.layout);
    c.rates.collectives_take_thread = false;
    beside = backward_of(&job, &c);
    c.rates.collectives_take_thread = true;
    in_thread = backward_of(&job, &c);
    for (int g = 0; g < HD_GROUP_COUNT; g++)
        all += in_thread.waits[g];
    assert_true(beside.reduce > 0);
    is_near(in_thread.compute, beside.compute);
    is_near(in_thread.run, in_thread.compute + all);
    is_near(in_thread.reduce + 1, 1);
    assert_true(all > beside.reduce); /* with the gathers */
}

/* Goal: the host's time of a step counts once a step. */
static void a_step_takes_its_time_on_the_host(void **state)
{
    struct hd_cluster c = priced_cluster(1, 1, 1e9, 1e9);
    struct hd_job job = priced_job(2, 512, 8);
    struct hd_plan_request request;
    struct hd_layer_profiles without, with;

    job.zero = 0;
    request = priced_request(&job);
    assert_int_equal(hd_plan_decide(&request, 1, &job.layout), HD_OK);
    hd_plan_decide_device(HD_JOB_DEVICE_CUDA, true, 1, &job.layout);
    assert_int_equal(hd_layer_profiles_build(&job, &c, &without), HD_OK);
    c.rates.step_s = 0.25;
    assert_int_equal(hd_layer_profiles_build(&job, &c, &with), HD_OK);
    is_near(with.update_base, without.update_base + 0.25);
}

static void devices_that_were_not_measured_are_refused(void **state)
{
    struct hd_traits traits = {.isa = "avx2"};
    struct hd_calibration cal;
    struct hd_arena arena;

    make(&cal, &arena);
    assert_int_equal(hd_calibration_check(&cal, &traits, 2), HD_OK);
    assert_int_equal(hd_calibration_check(&cal, &traits, 1), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), "2 threads"));
    (void)snprintf(traits.isa, sizeof traits.isa, "avx512");
    assert_int_equal(hd_calibration_check(&cal, &traits, 2), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), "avx512"));
    (void)snprintf(traits.isa, sizeof traits.isa, "avx2");
    (void)snprintf(cal.build, sizeof cal.build, "another");
    assert_int_equal(hd_calibration_check(&cal, &traits, 2), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), "another build"));
    hd_calibration_build(cal.build);
    (void)snprintf(traits.library, sizeof traits.library, "another-1.0");
    assert_int_equal(hd_calibration_check(&cal, &traits, 2), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), "another-1.0"));
    (void)snprintf(traits.library, sizeof traits.library, "%s", cal.library);
    assert_int_equal(hd_calibration_check(&cal, &traits, 2), HD_OK);
    (void)snprintf(cal.device, sizeof cal.device, "NVIDIA L4");
    assert_int_equal(hd_calibration_check(&cal, &traits, 2), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), "NVIDIA L4"));
    (void)strcpy(cal.device, "cpu");
    cal.class_count = 0;
    assert_int_equal(hd_calibration_check(&cal, &traits, 2), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), "no kernel"));
    hd_arena_done(&arena);
}

/* ---- figures ---- */

static void products_have_a_usual_rate_by_precision_and_shape(void **state)
{
    const struct hd_gemm_args slow = product(64, 64, 32);
    struct hd_calibration_report_product products[HD_CALIBRATION_REPORT_PRODUCTS_MAX];
    struct hd_calibration cal;
    struct hd_arena arena;

    make(&cal, &arena);
    /* small ones at 10 and 2 GFLOP/s, whose median is 6; one with sides of 256 at 40 */
    add(&cal, &arena, HD_K_gemm, &slow, 2.0 * 64 * 64 * 32 / 2e9);
    assert_int_equal(hd_calibration_report_products(&cal, products), 2);
    assert_string_equal(products[0].precision, "fp32");
    assert_string_equal(products[0].shape, "small");
    is_near(products[0].flops, 6e9);
    assert_string_equal(products[1].shape, "medium");
    is_near(products[1].flops, 40e9);
    hd_arena_done(&arena);
}

static void a_curve_has_a_latency_and_a_bandwidth(void **state)
{
    struct hd_calibration cal;
    struct hd_arena arena;
    double alpha_s, bytes_per_s;

    make(&cal, &arena);
    hd_calibration_report_curve(&cal.curves[0], &alpha_s, &bytes_per_s);
    is_near(alpha_s, 20e-6);
    is_near(bytes_per_s, 1e9); /* 100,000 bytes in 100 us */
    hd_arena_done(&arena);
}

static void peaks_are_those_of_the_best_devices(void **state)
{
    struct hd_calibration_device peaks;
    struct hd_calibration cal;
    struct hd_arena arena;

    make(&cal, &arena);
    assert_true(hd_calibration_report_peaks(&cal, &peaks));
    is_near(peaks.single_flops, 5e10);
    is_near(peaks.half_flops, 8e10);
    is_near(peaks.memory_bytes_per_s, 4e9);
    cal.each_count = 0;
    assert_false(hd_calibration_report_peaks(&cal, &peaks));
    hd_arena_done(&arena);
}

/* ---- text ---- */

static void a_file_reads_back_as_it_was_written(void **state)
{
    struct hd_calibration cal, copy;
    struct hd_text text = {0}, again = {0};
    struct hd_arena arena;

    make(&cal, &arena);
    cal.checkpoint_bytes_per_s = 2e8;
    hd_calibration_write(&cal, &text);
    if (hd_calibration_read(text.data, text.len_bytes, &arena, &copy))
        fail_msg("%s", hd_err_message());
    hd_calibration_write(&copy, &again);
    assert_string_equal(again.data, text.data);
    hd_text_free(&text);
    hd_text_free(&again);
    hd_arena_done(&arena);
}

/* The text with one piece put in place of another, and how the reader refuses it. */
static void refuse(const char *from, const char *to, enum hd_status wanted, const char *says)
{
    struct hd_calibration cal, copy;
    struct hd_text text = {0}, changed = {0};
    struct hd_arena arena;
    const char *at;

    make(&cal, &arena);
    hd_calibration_write(&cal, &text);
    at = strstr(text.data, from);
    assert_non_null(at);
    hd_text_add_bytes(&changed, text.data, (size_t)(at - text.data));
    hd_text_add(&changed, "%s%s", to, at + strlen(from));
    assert_int_equal(hd_calibration_read(changed.data, changed.len_bytes, &arena, &copy), wanted);
    if (!strstr(hd_err_message(), says))
        fail_msg("'%s' does not say '%s'", hd_err_message(), says);
    hd_text_free(&text);
    hd_text_free(&changed);
    hd_arena_done(&arena);
}

static void damaged_files_are_refused(void **state)
{
    refuse("\"version\":1", "\"version\":2", HD_UNSUPPORTED, "version 2");
    refuse("\"kind\":\"Calibration\"", "\"kind\":\"Plan\"", HD_INVALID, "Plan");
    refuse("\"threads\":2", "\"threads\":0", HD_INVALID, "threads");
    refuse("[256,256,256,", "[256,256,", HD_INVALID, "gemm");
    refuse("[[64,64,64,", "[[64,64,0,", HD_INVALID, "gemm");
    refuse("[1000,", "[200000,", HD_INVALID, "ascending");
    refuse("[5e+10,", "[-5e+10,", HD_INVALID, "each");
    refuse(",[5e+10,7e+10,3e+09]", "", HD_INVALID, "1 rows for 2 devices");
    refuse("[0,1,2e-06", "[0,2,2e-06", HD_INVALID, "pairs");
    refuse("[0,1,2e-06", "[1,1,2e-06", HD_INVALID, "no pair");
    refuse("[0,1,2e-06,", "[0,1,2e-06,1,", HD_INVALID, "4 numbers");
    refuse("all_gather", "all_lather", HD_INVALID, "all_lather");
    refuse("\"launch_s\":", "\"launch_s\":-", HD_INVALID, "launch_s");
    refuse("\"wait_share\":", "\"wait_share\":-", HD_INVALID, "wait_share");
}

RUN_CASES()
