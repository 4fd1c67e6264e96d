/* train_gpu: its smallest case trains on the backend that the test is linked with, and the report
 * says what it should. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/train_gpu.h"
#include "tests/unit/kernels/harness.h"

static char *report_of(const struct gpu_case *c, int steps, bool apart, double *ret_ms)
{
    const struct gpu_run run = {
        .table = on_backend(), .precision = "fp32", .apart = apart, .warm_up = 1, .steps = steps};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    assert_non_null(out);
    if (train_gpu_ours(c, &run, out, ret_ms))
        fail_msg("%s", hd_err_message());
    assert_int_equal(fclose(out), 0);
    return text;
}

/* The number behind `word` in the line that begins with `line`. */
static double number_after(const char *report, const char *line, const char *word)
{
    const char *at = strstr(report, line);

    if (at)
        at = strstr(at, word);
    if (!at)
        fail_msg("the report has no \"%s\" with \"%s\":\n%s", line, word, report);
    return strtod(at + strlen(word), NULL);
}

/* Launches and milliseconds of a class. */
static void class_of(const char *report, const char *class, double ret_numbers[2])
{
    const char *at = strstr(report, class);

    if (!at || sscanf(at + strlen(class), "%lf %lf", &ret_numbers[0], &ret_numbers[1]) != 2)
        fail_msg("the report has no \"%s\":\n%s", class, report);
}

/* Goal: a report that a figure can be taken from. Random tokens of 67 cost ln 67 before anything is
 * learned. In the step that is shown, each of 2 micro-batches has one loss, attention in 2 blocks
 * forward and backward, and 5 layer norms forward; GELU stands in the products, so that of passes over
 * elements those are left that add up the gradients of 4 biases per block, from sums of chunks of rows
 * that the producers leave; the classes add up to no more than the step. */
static void the_report_says_where_a_step_went(void **state)
{
    static const char *const classes[] = {"  products",   "  attention", "  norms", "  elements",
                                          "  embeddings", "  loss",      "  update"};
    const struct gpu_case *c = gpu_case_find("toy");
    double ms, numbers[2], sum = 0;
    char *report = report_of(c, 3, false, &ms);

    assert_true(ms > 0);
    assert_true(fabs(number_after(report, "  MFU", "loss ") - log(67)) < 0.3);
    assert_true(number_after(report, "  MFU", "bandwidth ") > 0);
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        class_of(report, classes[i], numbers);
        assert_true(numbers[0] >= 1 && numbers[1] >= 0);
        sum += numbers[1];
    }
    class_of(report, "  elements", numbers);
    assert_int_equal(numbers[0], 2 * 2 * 4);
    class_of(report, "  attention", numbers);
    assert_int_equal(numbers[0], 2 * 2 * 2);
    class_of(report, "  norms", numbers);
    assert_true(numbers[0] >= 2 * 5 * 2);
    class_of(report, "  all", numbers); /* one number: the milliseconds */
    assert_true(fabs(numbers[0] - sum) < 0.0005 * 8 + 1e-9 * sum);
    free(report);
}

/* Difference of the two runs on a GPU: passes over elements are back, 2 blocks' GELU forward and
 * backward and the gradients of their 4 biases, in 2 micro-batches; products are as many. */
static void epilogues_are_passes_where_they_are_told_to_be(void **state)
{
    const struct gpu_case *c = gpu_case_find("toy");
    double ms, fused[2], apart[2], passes[2];
    char *report = report_of(c, 1, false, &ms);

    class_of(report, "  products", fused);
    free(report);
    report = report_of(c, 1, true, &ms);
    class_of(report, "  products", apart);
    class_of(report, "  elements", passes);
    free(report);
    assert_true(apart[0] == fused[0]);
    assert_true(passes[0] == 2 * 2 * (2 + 4));
}

static void every_case_has_a_shape_that_is_one(void **state)
{
    for (int i = 0; gpu_case_at(i); i++) {
        const struct gpu_case *c = gpu_case_at(i);

        assert_ptr_equal(gpu_case_find(c->name), c);
        assert_int_equal(c->heads % c->kv_heads, 0);
        assert_int_equal(c->global_batch % c->micro_batch, 0);
    }
    assert_null(gpu_case_find("none"));
}

RUN_CASES()
