/* An order of pipeline stages from a file: what is refused and where, and that the job has the
 * order itself: the file may change. */
#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "heddle/v1/job.pb-c.h"
#include "spec/spec_internal.h"
#include "tests/program/tells.h"

/* Two stages, four micro-batches, W apart. */
#define STAGE_0 "0: F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 W0.0 B0.2 W0.1 B0.3 W0.2 W0.3\n"
#define STAGE_1 "1: F1.0 B1.0 W1.0 F1.1 B1.1 F1.2 B1.2 W1.1 F1.3 B1.3 W1.2 W1.3\n"

#define OWN "parallel: {schedule: {file: own.txt}}"

/* The good job has 2 devices and a batch of 8. */
static void what_is_wrong_in_the_file_has_its_line_there(void **state)
{
    static const struct {
        const char *order, *message;
    } rows[] = {
        {STAGE_0 "1: F1.0 F1.1 B1.0\n", "line 2: F1.2 is missing"},
        {"# W is lost\n" STAGE_0 "1: F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3\n",
         "line 3: W1.0 is missing"},
        {"0: F0.0 B0.0 F0.1 B0.1\n1: F1.0 F1.1 B1.0 B1.1\n",
         "the schedule deadlocks: B0.0 (line 1, word 3) waits for B1.0 (line 2, word 4), "
         "which comes after F1.1 (line 2, word 3); F1.1 (line 2, word 3) waits for F0.1 "
         "(line 1, word 4), which comes after B0.0 (line 1, word 3)"},
        {STAGE_0 "3: F1.0\n", "line 2, word 1: stage 3 is the last, so 4 lines are needed, and "
                              "there are 2; stages are counted from 0"},
        {"0: F0.0 B0.0 F2.0 B2.0\n1: F1.0 B1.0\n",
         "line 1, word 4: chunk 2 is the last of 3, and 2 stages have equally many; chunks are "
         "counted from 0"},
        {"0: F0.0 B0.70000000\n1: F1.0 B1.0\n",
         "2 chunks (line 2, word 2) with 70000001 micro-batches (line 1, word 3) have at least "
         "280000004 programs, and there are 4; numbers are counted from 0"},
        {"0: F0.0 E0.0\n", "line 1, word 3: \"E0.0\" is not a program; write F, B or W, the chunk, "
                           "a point and the micro-batch, like \"F0.1\""},
        {"# no order\n", "line 2: the text ends without a program"},
    };
    char *yaml = with_line(15, "\n" OWN), message[640];

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_job *job = NULL;

        put_text("own.txt", rows[i].order);
        (void)snprintf(message, sizeof message, "job.yaml:16: parallel.schedule.file: own.txt: %s",
                       rows[i].message);
        assert_int_equal(read_bytes(yaml, strlen(yaml), NULL, &job), HD_INVALID);
        assert_string_equal(hd_err_message(), message);
    }
    free(yaml);
}

static void an_order_that_does_not_fit_the_job_is_refused_at_its_key(void **state)
{
    static const struct {
        const char *parallel, *message;
    } rows[] = {
        {"parallel: {pp: 4, schedule: {file: own.txt}}",
         "parallel.pp: 4 is not the number of stages of the order that parallel.schedule names, 2; "
         "write 2 or auto, or give another order"},
        {"parallel: {schedule: {file: own.txt}, virtual_stages: 2}",
         "parallel.virtual_stages: 2 is not the number of chunks per stage of the order that "
         "parallel.schedule names, 1; write 1 or auto, or give another order"},
        {"parallel: {schedule: {file: own.txt}, micro_batch: 1}",
         "parallel.schedule: the order has 4 micro-batches, and the 8 sequences of a replica are 8 "
         "of parallel.micro_batch = 1; give an order with 8, or write micro_batch: auto"},
        {"parallel: {schedule: {file: three.txt}}",
         "parallel.schedule: the order has 3 micro-batches, which do not divide the 8 sequences of "
         "a replica (train.global_batch / parallel.dp); give an order with 1, 2, 4 or 8, or change "
         "the batch"},
        {"parallel: {schedule: {file: one.txt}}",
         "parallel.schedule: the order has one stage; a pipeline has 2 or more: write auto"},
        {"parallel: {schedule: {file: empty.txt}}",
         "parallel.schedule.file: 'empty.txt' is no text of an order: it is empty or has a byte 0"},
        {"parallel: {schedule: {text: own.txt}}",
         "parallel.schedule: expected the name of a schedule, or {file: PATH}"},
        {"parallel: {pp: 2, schedule: file}",
         "parallel.schedule: file without a path; write {file: PATH}, or the name of a schedule"},
        {"parallel: {schedule: {order: [\"0: F0.0 B0.0\", \"1: F1.0\"]}}",
         "parallel.schedule.order: line 2: B1.0 is missing"},
    };
    char message[640];

    put_text("own.txt", STAGE_0 STAGE_1);
    put_text("three.txt", "0: F0.0 F0.1 F0.2 B0.0 B0.1 B0.2\n1: F1.0 F1.1 F1.2 B1.0 B1.1 B1.2\n");
    put_text("one.txt", "0: F0.0 B0.0\n");
    put_text("empty.txt", "");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *yaml = with_line(15, rows[i].parallel);
        struct hd_job *job = NULL;

        (void)snprintf(message, sizeof message, "job.yaml:15: %s", rows[i].message);
        assert_int_equal(read_bytes(yaml, strlen(yaml), NULL, &job), HD_INVALID);
        assert_string_equal(hd_err_message(), message);
        free(yaml);
    }
}

static void an_absent_file_is_named(void **state)
{
    char *yaml = with_line(15, "parallel: {schedule: {file: nowhere.txt}}"), message[512];
    struct hd_job *job = NULL;

    (void)snprintf(
        message, sizeof message,
        "job.yaml:15: parallel.schedule.file: 'nowhere.txt' cannot be read (its path is "
        "relative to the job file's folder): cannot open %s/nowhere.txt: No such file or "
        "directory",
        folder);
    assert_int_equal(read_bytes(yaml, strlen(yaml), NULL, &job), HD_INVALID);
    assert_string_equal(hd_err_message(), message);
    free(yaml);
}

static struct hd_job *read_own(void)
{
    char *yaml = with_line(15, OWN);
    struct hd_job *job = NULL;

    put_text("own.txt", "# by hand\n" STAGE_1 "\n" STAGE_0);
    if (read_bytes(yaml, strlen(yaml), NULL, &job))
        fail_msg("%s", hd_err_message());
    free(yaml);
    return job;
}

static void check_own(const struct hd_job *job)
{
    assert_string_equal(job->schedule, "file");
    assert_string_equal(job->schedule_order, STAGE_0 STAGE_1);
    assert_int_equal(job->pp, 2);
    assert_int_equal(job->virtual_stages, 1);
    assert_int_equal(job->order_micro_batches, 4);
    assert_int_equal(hd_spec_check(job), HD_OK);
}

/* Read; as a message, twice; as JSON, which is a job file; resolved, as ranks read it. The file is
 * gone after the first. */
static void the_job_has_the_order_wherever_it_goes(void **state)
{
    struct hd_job *first = read_own(), *third = NULL;
    struct hd_text json = {0}, ranks = {0};
    struct hd_json_writer writer = {.out = &json};
    struct hd_layout_sizes layout = first->layout;
    struct hd_job second, resolved, fourth;

    check_own(first);
    put_text("own.txt", "0: another\n");
    assert_int_equal(hd_spec_from_message(hd_spec_to_message(first, &jobs), &jobs, &second), HD_OK);
    check_own(&second);
    hd_spec_add_json(&second, NULL, &writer);
    if (read_bytes(json.data, json.len_bytes, NULL, &third))
        fail_msg("%s", hd_err_message());
    check_own(third);

    layout.tp = layout.cp = layout.ep = layout.dp = layout.threads = 1;
    layout.micro_batch = 2;
    layout.zero = layout.sequence = 0;
    layout.precision = HD_JOB_PRECISION_FP32;
    layout.device = HD_JOB_DEVICE_CPU;
    layout.cp_exchange = HD_JOB_CP_EXCHANGE_RING;
    memcpy(layout.recompute, "none", 5);
    layout.offload = HD_JOB_OFFLOAD_NONE;
    if (hd_spec_resolve(third, &layout, &(struct hd_spec_attempt){1, 1, "/x", NULL, NULL},
                        &resolved) ||
        hd_job_write(&resolved, &ranks) || hd_job_read(ranks.data, ranks.len_bytes, &jobs, &fourth))
        fail_msg("%s", hd_err_message());
    check_own(&fourth);
    layout.micro_batch = 4; /* two micro-batches: not what the order is for */
    assert_int_equal(hd_spec_resolve(third, &layout,
                                     &(struct hd_spec_attempt){1, 1, "/x", NULL, NULL}, &resolved),
                     HD_INVALID);
    hd_text_free(&json);
    hd_text_free(&ranks);
}

/* A message that no client of ours sends. */
static void a_message_with_another_order_is_refused(void **state)
{
    static const struct {
        const char *order, *message;
    } rows[] = {
        {"# a comment\n" STAGE_0 STAGE_1, "parallel.schedule: the order is not as heddle-worker "
                                          "schedule --text writes it, without comments; send that "
                                          "text"},
        {STAGE_0,
         "parallel.schedule: the order has one stage; a pipeline has 2 or more: write auto"},
        {"0: F0.0 B0.0\n1: B1.0 F1.0\n",
         "parallel.schedule: the order: the schedule deadlocks: B1.0 (line 2, word 2) waits "
         "for F1.0 (line 2, word 3), which comes after B1.0 (line 2, word 2)"},
        {"0: F0.0 B0.0\n1: F1.0 B1.0\n",
         "parallel.schedule.order_micro_batches: 4; the order has 1"},
        {"", "parallel.schedule: file without a path; write {file: PATH}, or the name of a "
             "schedule"},
    };
    Heddle__V1__JobSpec *message = hd_spec_to_message(read_own(), &jobs);
    struct hd_job job;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        message->parallel->schedule_order = (char *)(uintptr_t)rows[i].order;
        assert_int_equal(hd_spec_from_message(message, &jobs, &job), HD_OK);
        assert_int_equal(hd_spec_check(&job), HD_INVALID);
        assert_string_equal(hd_err_message(), rows[i].message);
    }
    message->parallel->schedule_order = (char *)(uintptr_t)STAGE_0 STAGE_1;
    message->parallel->schedule = (char *)(uintptr_t) "1f1b";
    assert_int_equal(hd_spec_from_message(message, &jobs, &job), HD_OK);
    assert_int_equal(hd_spec_check(&job), HD_INVALID);
    assert_tells(hd_err_message(), "parallel.schedule", "{file: PATH}");
}

/* A V: two chunks per stage, the last on stage 0. */
static void a_folded_order_brings_its_chunks(void **state)
{
    char *yaml = with_line(15, OWN);
    struct hd_job *job = NULL;

    put_text("own.txt", "0: F0.0 F3.0 B3.0 B0.0\n1: F1.0 F2.0 B2.0 B1.0\n");
    if (read_bytes(yaml, strlen(yaml), NULL, &job))
        fail_msg("%s", hd_err_message());
    assert_int_equal(job->pp, 2);
    assert_int_equal(job->virtual_stages, 2);
    free(yaml);
}

RUN_CASES_BETWEEN(make_corpus, drop_corpus)
