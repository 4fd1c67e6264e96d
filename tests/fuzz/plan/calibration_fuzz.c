/* Hostile calibrations. What the reader accepts gives a finite positive time for each kernel and
 * collective that it has, and is read again as it is written; what it refuses has a message. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/calibration.h"
#include "tests/fuzz/driver.h"

static void require(int condition)
{
    if (!condition)
        abort();
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
    hd_calibration_write(&cal, &text);
    n = text.len_bytes;
    require(!text.failed && n <= max_bytes);
    memcpy(ret_bytes, text.data, n);
    hd_text_free(&text);
    hd_arena_done(&arena);
    return n;
}
