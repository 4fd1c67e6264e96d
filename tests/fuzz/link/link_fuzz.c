/* Hostile bytes for every decoder of the link. Nothing may crash, and what is accepted must survive
 * a second trip unchanged.
 *
 * LLVMFuzzerTestOneInput is the target for a coverage-guided fuzzer; the test below drives it with
 * random changes to sound frames, from a fixed seed, with the check repaired so that the fields
 * behind it are reached. */
#include <string.h>

#include "base/random.h"
#include "link/frame.h"
#include "link/hello.h"
#include "link/report.h"
#include "tests/program/test.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

/* A sound report seen with changed text is one the first decoder should not have let through. Of a
 * step's metrics it leaves out those of a newer build, and those of an older one are written in
 * today's form: there what was understood stays what it is. */
static void check_report(const struct hd_frame *frame)
{
    static uint8_t again[HD_FRAME_BYTES_MAX], once_more[HD_FRAME_BYTES_MAX];
    struct hd_link_report report, back;
    struct hd_frame second;
    size_t n, size;

    if (hd_link_report_decode(frame, &report))
        return;
    n = hd_link_report_encode(&report, again, sizeof again);
    assert_int_not_equal(n, 0);
    assert_int_equal(hd_frame_decode(again, n, &second, &size), HD_OK);
    if (report.kind != HD_LINK_STEP) {
        assert_int_equal(second.payload_bytes, frame->payload_bytes);
        assert_memory_equal(second.payload, frame->payload, second.payload_bytes);
    }
    assert_int_equal(hd_link_report_decode(&second, &back), HD_OK);
    assert_int_equal(hd_link_report_encode(&back, once_more, sizeof once_more), n);
    assert_memory_equal(once_more, again, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct hd_frame frame;
    struct hd_hello hello;
    size_t size;

    if (hd_frame_decode(bytes, count, &frame, &size) == HD_OK) {
        assert_true(size <= count);
        check_report(&frame);
        (void)hd_hello_decode(&frame, &hello);
    }
    if (count >= 2 && count - 2 <= HD_FRAME_PAYLOAD_MAX) { /* past the check */
        frame = (struct hd_frame){(uint16_t)(bytes[0] % 16), bytes + 2, count - 2};
        check_report(&frame);
        (void)hd_hello_decode(&frame, &hello);
    }
    return 0;
}

static void changed_reports_neither_crash_nor_change_meaning(void **state)
{
    const uint64_t key = hd_random_key(1, 2);
    static uint8_t bytes[HD_FRAME_BYTES_MAX], input[HD_FRAME_BYTES_MAX];
    uint64_t draw = 0;
    size_t n, kept;

    for (int kind = HD_LINK_NONE + 1; kind < HD_LINK_KIND_COUNT; kind++) {
        struct hd_link_report report = {.kind = (enum hd_link_kind)kind};

        if (kind == HD_LINK_FAILURE)
            report.failure.status = HD_IO;
        n = hd_link_report_encode(&report, bytes, sizeof bytes);
        assert_int_not_equal(n, 0);
        for (int round = 0; round < 20000; round++) {
            memcpy(input, bytes, n);
            input[HD_FRAME_HEAD_BYTES - 2] = input[4]; /* the type, where the target looks */
            for (uint64_t i = hd_random_u64(key, draw++) % 4; i > 0; i--) {
                const uint64_t r = hd_random_u64(key, draw++);

                input[HD_FRAME_HEAD_BYTES - 2 + r % (n - HD_FRAME_HEAD_BYTES + 2)] =
                    (uint8_t)(r >> 32);
            }
            kept = n - hd_random_u64(key, draw++) % 8 * (round % 2);
            (void)LLVMFuzzerTestOneInput(input, kept);
            (void)LLVMFuzzerTestOneInput(input + HD_FRAME_HEAD_BYTES - 2,
                                         kept - HD_FRAME_HEAD_BYTES + 2);
        }
    }
}

RUN_CASES()
