/* Goal: a device has in use the bytes that a plan predicts without it: on the emulator to the byte,
 * on a GPU within the stated constant of a process. Ranks are logical, in one process.
 */
#include <stdio.h>

#include "device_memory.h"
#include "tests/program/test.h"

#ifdef ON_CUDASIM
/* It has no context, and kernels are the host's. */
static int64_t constant_bytes(void)
{
    return 0;
}
#else
static int64_t constant_bytes(void)
{
    struct hd_traits traits;

    harness_backend()->describe(&(struct hd_backend_options){.threads = 1}, &traits);
    return traits.process_bytes;
}
#endif

/* Feed-forward widths by which the predictions differ in pages. */
static const struct device_case cases[] = {
    {"llama", "fp32", 2, 1500, 1, 1, 1, 1, false, HD_SCHEDULE_1F1B, false},
    {"gpt2", "bf16", 1, 3000, 1, 1, 1, 1, false, HD_SCHEDULE_GPIPE, false},
    {"qwen3", "bf16", 1, 800, 2, 1, 1, 1, false, HD_SCHEDULE_1F1B, false},
    {"llama", "bf16", 1, 48, 1, 1, 2, 1, true, HD_SCHEDULE_1F1B, false},
    {"llama", "fp32", 1, 2400, 1, 2, 1, 1, false, HD_SCHEDULE_1F1B, false},
    {"gpt2", "bf16", 1, 3000, 2, 1, 1, 1, false, HD_SCHEDULE_1F1B, true},
    {"llama", "fp8", 1, 1600, 1, 1, 1, 1, false, HD_SCHEDULE_1F1B, false},
    {"mixtral", "fp32", 1, 640, 2, 1, 1, 2, false, HD_SCHEDULE_1F1B, false},
};

static void a_device_has_in_use_what_was_predicted(void **state)
{
    const struct hd_device_memory before = device_memory_now();
    const int64_t used_before = before.total_bytes - before.free_bytes;
    const int64_t constant = constant_bytes();

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct device_found found = {.layout.schedule = cases[i].schedule};
        struct harness h;
        struct hd_job job;
        int64_t beside;

        harness_setup(&h, 20000);
        job = device_job(&h, &cases[i]);
        if (device_train(&job, &found))
            fail_msg("%s in %s: %s", cases[i].family, cases[i].precision, hd_err_message());
        beside = found.in_use_bytes - found.predicted_bytes;
        print_message("%s in %s, %d ranks: predicted %lld bytes, beside them %lld, before %lld\n",
                      cases[i].family, cases[i].precision, run_world(&job),
                      (long long)found.predicted_bytes, (long long)beside, (long long)used_before);
        assert_true(found.predicted_bytes > 0);
        /* what was there before is this process's context, or another process's: it was measured
         * by the same call; what is new is this process's */
        assert_true(beside >= 0);
        assert_true(beside <= (constant > used_before ? constant : used_before + constant));
        harness_teardown(&h);
    }
}

RUN_CASES()
