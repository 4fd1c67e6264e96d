/* Hostile calibrations. What the reader accepts gives a finite positive time for each kernel and
 * collective that it has, and is read again as it is written; what it refuses has a message. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/calibration.h"
#include "plan/calibration_report.h"
#include "tests/fuzz/driver.h"

/* Reads all that `heddle topo` would show. */
static void look(const struct hd_calibration *cal)
{
    struct hd_calibration_report_product products[HD_CALIBRATION_REPORT_PRODUCTS_MAX];
    struct hd_calibration_device peaks;
    const int count = hd_calibration_report_products(cal, products);

    require(count <= HD_CALIBRATION_REPORT_PRODUCTS_MAX);
    for (int i = 0; i < count; i++)
        require(isfinite(products[i].flops) && products[i].flops > 0);
    for (int i = 0; i < cal->curve_count; i++) {
        double alpha_s, bytes_per_s;

        hd_calibration_report_curve(&cal->curves[i], &alpha_s, &bytes_per_s);
        require(isfinite(alpha_s) && isfinite(bytes_per_s) && bytes_per_s >= 0);
    }
    if (hd_calibration_report_peaks(cal, &peaks))
        require(peaks.single_flops > 0 && peaks.half_flops > 0 && peaks.memory_bytes_per_s > 0);
    require(cal->each_count == 0 || cal->each_count == cal->devices);
    for (int i = 0; i < cal->pair_count; i++)
        require(cal->pairs[i].a >= 0 && cal->pairs[i].a < cal->pairs[i].b &&
                cal->pairs[i].b < cal->devices);
}

static void use(const struct hd_calibration *cal)
{
    for (int i = 0; i < cal->class_count; i++) {
        struct hd_calibration_key key = {
            .kernel = cal->classes[i].kernel, .size = {100, 200, 64}, .work = 1e6};
        double seconds;

        memcpy(key.variant, cal->classes[i].variant, sizeof key.variant);
        if (hd_calibration_seconds(cal, &key, &seconds))
            require(isfinite(seconds) && seconds > 0);
    }
    for (int kind = 0; kind < HD_COMM_KIND_COUNT; kind++) {
        double seconds;
        int64_t members;

        if (hd_calibration_collective(cal, (enum hd_comm_kind)kind, 3, 5000, &seconds, &members))
            require(isfinite(seconds));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    struct hd_calibration cal, copy;
    struct hd_text text = {0}, again = {0};
    struct hd_arena arena;

    hd_arena_init(&arena, 64 << 20);
    if (hd_calibration_read((const char *)bytes, size_bytes, &arena, &cal) == HD_OK) {
        use(&cal);
        look(&cal);
        hd_calibration_write(&cal, &text);
        require(hd_calibration_read(text.data, text.len_bytes, &arena, &copy) == HD_OK);
        hd_calibration_write(&copy, &again);
        require(strcmp(text.data, again.data) == 0);
    } else {
        require(*hd_err_message() != '\0');
    }
    hd_text_free(&text);
    hd_text_free(&again);
    hd_arena_done(&arena);
    return 0;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    struct hd_calibration cal = {.device = "cpu", .isa = "avx2", .threads = 1, .devices = 2};
    struct hd_gemm_args gemm = {.M = 64, .N = 32, .K = 16, .trans_b = true};
    struct hd_add_args sum = {.N = 4096};
    struct hd_calibration_key key;
    struct hd_costs costs = {0};
    struct hd_text text = {0};
    struct hd_arena arena;
    size_t n;

    if (index > 1)
        return 0;
    hd_arena_init(&arena, 0);
    hd_calibration_build(cal.build);
    for (int i = 0; index && i < 3; i++, gemm.M *= 2, sum.N *= 4) {
        hd_calibration_key_of(HD_K_gemm, &gemm, &costs, &key);
        require(hd_calibration_add(&cal, &arena, &key, 1e-5 * (i + 1)) == HD_OK);
        hd_kernel_cost_add(&costs, HD_K_add, &sum);
        hd_calibration_key_of(HD_K_add, &sum, &costs, &key);
        require(hd_calibration_add(&cal, &arena, &key, 2e-6 * (i + 1)) == HD_OK);
        require(hd_calibration_add_collective(&cal, &arena, HD_COMM_ALL_REDUCE, 2, 1000 << i,
                                              1e-5 * (i + 1)) == HD_OK);
    }
    if (index)
        require(hd_calibration_set_devices(
                    &cal, &arena, (struct hd_calibration_device[]){{1e9, 2e9, 3e9}, {1e9, 0, 0}}, 2,
                    &(struct hd_calibration_pair){0, 1, 1e-6, 1e9}, 1) == HD_OK);
    hd_calibration_write(&cal, &text);
    n = text.len_bytes;
    require(!text.failed && n <= max_bytes);
    memcpy(ret_bytes, text.data, n);
    hd_text_free(&text);
    hd_arena_done(&arena);
    return n;
}
