/* train.batch_schedule: which sequences a step reads, against a run that is counted step by step. */
#include "job/batch_spans.h"
#include "tests/program/tells.h"
#include "tests/program/test.h"

/* Counts the steps of a run one by one. */
static void compare_with_counting(const struct hd_batch_spans *spans, const int64_t *batches)
{
    int64_t read = 0;

    for (int64_t step = 0; batches[step]; step++) {
        assert_int_equal(hd_batch_spans_batch(spans, step), batches[step]);
        assert_int_equal(hd_batch_spans_before(spans, step), read);
        for (int64_t i = 0; i < batches[step]; i++) {
            assert_int_equal(hd_batch_spans_step_of(spans, read + i), step);
            assert_int_equal(hd_batch_spans_steps(spans, read + i + 1), step + 1);
        }
        read += batches[step];
    }
    assert_int_equal(hd_batch_spans_steps(spans, 0), 0);
}

static void closed_forms_count_as_a_run_does(void **state)
{
    static const int64_t steps[] = {4, 4, 4, 6, 6, 10, 10, 10, 0};
    struct hd_batch_spans spans;

    assert_int_equal(hd_batch_spans_read("0:4 3:6,  5:10", 8, &spans), HD_OK);
    compare_with_counting(&spans, steps);
    assert_int_equal(hd_batch_spans_largest(&spans), 10);
    assert_int_equal(hd_batch_spans_divisor(&spans), 2);
    spans = hd_batch_spans_even(7);
    compare_with_counting(&spans, (const int64_t[]){7, 7, 7, 0});
    assert_int_equal(hd_batch_spans_divisor(&spans), 7);
}

/* A span begins at the first step before which so many tokens were read: 4 sequences of 250 tokens
 * are 1,000 a step, so 2,000 tokens are 2 steps and 2,001 are 3. */
static void tokens_begin_a_span(void **state)
{
    static const struct {
        const char *text;
        int64_t first_step;
    } rows[] = {{"0:4 2K:8", 2},
                {"0:4 2.001K:8", 3},
                {"0:4 0.002M:8", 2},
                {"0:4 3B:8", 3000000},
                {"0:4 1T:8", 1000000000}};
    struct hd_batch_spans spans;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(hd_batch_spans_read(rows[i].text, 250, &spans), HD_OK);
        assert_int_equal(spans.list[1].first_step, rows[i].first_step);
        assert_int_equal(spans.list[1].first_sample, 4 * rows[i].first_step);
    }
    /* 8 more sequences a step from there: 4,000 tokens more are 2 steps */
    assert_int_equal(hd_batch_spans_read("0:4 2K:8 6K:16", 250, &spans), HD_OK);
    assert_int_equal(spans.list[2].first_step, 4);
}

static void what_is_no_schedule_is_refused(void **state)
{
    static const struct {
        const char *text, *told;
    } rows[] = {{"", "has no span"},
                {"4", "'4' is no span"},
                {"0:", "'0:' is no span"},
                {"0:0", "'0:0' is no span"},
                {":4", "':4' is no span"},
                {"0:4 x:8", "'x:8' is no span"},
                {"0:4 K:8", "'K:8' is no span"},
                {"0:4 -1K:8", "'-1K:8' is no span"},
                {"0:4 nanK:8", "'nanK:8' is no span"},
                {"0:4 2k:8", "'2k:8' is no span"},
                {"0:16777216 1000000000000:16777216", "is no span"}, /* too many to count */
                {"1:4", "begins at step 0"},
                {"1K:4", "begins at step 0"},
                {"0:4 3:8 3:16", "begins at step 3, and the span before at step 3"},
                {"0:4 9:8 1K:16", "begins at step 1, and the span before at step 9"},
                {"0:1 1:2 2:3 3:4 4:5 5:6 6:7 7:8 8:9 9:1 10:2 11:3 12:4 13:5 14:6 15:7 16:8",
                 "more than 16 spans"}};
    struct hd_batch_spans spans;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(hd_batch_spans_read(rows[i].text, 250, &spans), HD_INVALID);
        assert_tells(hd_err_message(), rows[i].told);
    }
}

RUN_CASES()
