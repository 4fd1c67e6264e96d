/* Frames, reports and a rank's end of the link, against bytes and against a peer that misbehaves.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "link/frame.h"
#include "link/hello.h"
#include "link/link.h"
#include "tests/program/test.h"

static size_t sample_frame(uint8_t *bytes, size_t size)
{
    struct hd_pack pack;

    hd_pack_begin(&pack, bytes, size);
    hd_pack_int(&pack, INT64_MIN);
    hd_pack_real(&pack, -0.1);
    hd_pack_text(&pack, "ten bytes!");
    return hd_pack_end(&pack, 7);
}

static void a_frame_reads_back_field_by_field(void **state)
{
    uint8_t bytes[128];
    size_t n = sample_frame(bytes, sizeof bytes), size;
    struct hd_unpack unpack;
    struct hd_frame frame;
    char text[11];

    assert_int_equal(n, 12 + 8 + 8 + 4 + 10); /* head, int, real, counted text */
    assert_int_equal(hd_frame_decode(bytes, n, &frame, &size), HD_OK);
    assert_int_equal(size, n);
    assert_int_equal(frame.type, 7);
    hd_unpack_begin(&unpack, &frame);
    assert_true(hd_unpack_int(&unpack) == INT64_MIN);
    assert_true(hd_unpack_real(&unpack) == -0.1);
    hd_unpack_text(&unpack, text, sizeof text);
    assert_string_equal(text, "ten bytes!");
    assert_int_equal(hd_unpack_end(&unpack), HD_OK);
}

/* Goal: a torn tail is told from a whole frame, a changed one from a sound one. Method: all
 * prefixes, then all single-bit changes. */
static void no_prefix_and_no_changed_bit_passes(void **state)
{
    uint8_t bytes[128];
    size_t n = sample_frame(bytes, sizeof bytes), size;
    struct hd_frame frame;

    for (size_t k = 0; k < n; k++)
        assert_int_equal(hd_frame_decode(bytes, k, &frame, &size), HD_UNAVAILABLE);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(hd_frame_decode(bytes, n, &frame, &size), HD_OK);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_int_equal(hd_frame_decode(bytes, n, &frame, &size), HD_OK);
}

static void a_frame_that_claims_too_much_is_refused_at_once(void **state)
{
    const uint8_t head[4] = {0xff, 0xff, 0xff, 0xff};
    struct hd_frame frame;
    size_t size;

    assert_int_equal(hd_frame_decode(head, sizeof head, &frame, &size), HD_CORRUPT);
}

static void fields_that_do_not_fit_are_remembered(void **state)
{
    uint8_t bytes[HD_FRAME_HEAD_BYTES + 8];
    struct hd_unpack unpack;
    struct hd_pack pack;
    struct hd_frame frame;
    char text[4];
    size_t size;

    hd_pack_begin(&pack, bytes, sizeof bytes);
    hd_pack_int(&pack, 1);
    hd_pack_int(&pack, 2);
    assert_int_equal(hd_pack_end(&pack, 1), 0);

    hd_pack_begin(&pack, bytes, sizeof bytes);
    hd_pack_text(&pack, "four"); /* one byte more than text[4] holds with its NUL */
    assert_int_equal(hd_frame_decode(bytes, hd_pack_end(&pack, 1), &frame, &size), HD_OK);
    hd_unpack_begin(&unpack, &frame);
    hd_unpack_text(&unpack, text, sizeof text);
    assert_string_equal(text, "");
    assert_int_equal(hd_unpack_end(&unpack), HD_CORRUPT);

    hd_pack_begin(&pack, bytes, sizeof bytes);
    hd_pack_bytes(&pack, "a\0b", 3); /* a text with a NUL inside is another text to C */
    assert_int_equal(hd_frame_decode(bytes, hd_pack_end(&pack, 1), &frame, &size), HD_OK);
    hd_unpack_begin(&unpack, &frame);
    hd_unpack_text(&unpack, text, sizeof text);
    assert_int_equal(hd_unpack_end(&unpack), HD_CORRUPT);
}

static void every_kind_of_report_reads_back(void **state)
{
    static uint8_t first[HD_FRAME_BYTES_MAX], second[HD_FRAME_BYTES_MAX];

    for (int kind = HD_LINK_NONE + 1; kind < HD_LINK_KIND_COUNT; kind++) {
        struct hd_link_report report, back;
        struct hd_frame frame;
        size_t n, size;

        /* all ones: sound as a number and, but for the last byte, as a text of the full length */
        memset(&report, 1, sizeof report);
        report.kind = (enum hd_link_kind)kind;
        report.rank = 4;
        report.seq = INT64_MAX;
        switch (report.kind) {
        case HD_LINK_STEP:
            report.step.expert_load_count = HD_LINK_LOADS_MAX;
            for (int i = 0; i < HD_METRIC_COUNT; i++) /* counts are what a double holds */
                (void)hd_metric_set(&report.step.metrics, i, 1 + i);
            break;
        case HD_LINK_VALIDATION:
            report.validation.set[HD_LINK_WORD_MAX - 1] = '\0';
            break;
        case HD_LINK_CHECKPOINT:
            report.checkpoint.path[HD_JOB_PATH_MAX - 1] = '\0';
            report.checkpoint.manifest_hash[HD_LINK_WORD_MAX - 1] = '\0';
            break;
        case HD_LINK_EVENT:
            report.event.level = HD_LINK_LEVEL_COUNT - 1;
            report.event.about = HD_LINK_RANKS_MAX - 1;
            report.event.text[HD_LINK_TEXT_MAX - 1] = '\0';
            break;
        case HD_LINK_PROBLEM:
            report.problem.text[HD_LINK_TEXT_MAX - 1] = '\0';
            break;
        case HD_LINK_STRAGGLERS:
            report.stragglers.text[HD_LINK_TEXT_MAX - 1] = '\0';
            break;
        case HD_LINK_PROGRESS:
            report.progress.phase = HD_LINK_PHASE_ENDING;
            break;
        case HD_LINK_FAILURE:
            report.failure.status = HD_ABORTED;
            report.failure.operation[HD_LINK_WORD_MAX - 1] = '\0';
            report.failure.message[HD_LINK_TEXT_MAX - 1] = '\0';
            break;
        case HD_LINK_EXIT:
            report.exit.operation[HD_LINK_WORD_MAX - 1] = '\0';
            report.exit.message[HD_LINK_TEXT_MAX - 1] = '\0';
            break;
        case HD_LINK_END:
            report.end.cause = HD_LINK_CAUSE_USER;
            report.end.operation[HD_LINK_WORD_MAX - 1] = '\0';
            report.end.message[HD_LINK_TEXT_MAX - 1] = '\0';
            break;
        default:
            break;
        }
        n = hd_link_report_encode(&report, first, sizeof first);
        assert_int_not_equal(n, 0);
        assert_int_equal(hd_frame_decode(first, n, &frame, &size), HD_OK);
        assert_int_equal(hd_link_report_decode(&frame, &back), HD_OK);
        assert_int_equal(hd_link_report_encode(&back, second, sizeof second), n);
        assert_memory_equal(first, second, n);
    }
}

/* The last fields of the reports of checkpoints and validations are newer than the others: older builds read and write it
 * without. */
static void a_report_without_the_later_field_is_read(void **state)
{
    struct hd_link_report report = {.kind = HD_LINK_CHECKPOINT,
                                    .checkpoint = {.step = 3, .bytes = 7, .val_loss = NAN}},
                          back;
    uint8_t bytes[512];
    struct hd_frame frame;
    size_t without, with, size;

    without = hd_link_report_encode(&report, bytes, sizeof bytes);
    assert_int_equal(hd_frame_decode(bytes, without, &frame, &size), HD_OK);
    assert_int_equal(hd_link_report_decode(&frame, &back), HD_OK);
    assert_true(isnan(back.checkpoint.val_loss));
    assert_int_equal(back.checkpoint.bytes, 7);
    report.checkpoint.val_loss = 1.5;
    with = hd_link_report_encode(&report, bytes, sizeof bytes);
    assert_int_equal(with, without + 8);
    assert_int_equal(hd_frame_decode(bytes, with, &frame, &size), HD_OK);
    assert_int_equal(hd_link_report_decode(&frame, &back), HD_OK);
    assert_true(back.checkpoint.val_loss == 1.5);
    report = (struct hd_link_report){.kind = HD_LINK_VALIDATION,
                                     .validation = {.step = 3, .loss = 2, .tokens = 5}};
    without = hd_link_report_encode(&report, bytes, sizeof bytes);
    assert_int_equal(hd_frame_decode(bytes, without, &frame, &size), HD_OK);
    assert_int_equal(hd_link_report_decode(&frame, &back), HD_OK);
    assert_string_equal(back.validation.set, "");
    (void)strcpy(report.validation.set, "code");
    with = hd_link_report_encode(&report, bytes, sizeof bytes);
    assert_true(with > without);
    assert_int_equal(hd_frame_decode(bytes, with, &frame, &size), HD_OK);
    assert_int_equal(hd_link_report_decode(&frame, &back), HD_OK);
    assert_string_equal(back.validation.set, "code");
    assert_int_equal(back.validation.tokens, 5);
}

static void a_report_with_unknown_numbers_is_refused(void **state)
{
    struct hd_link_report report = {.kind = HD_LINK_PROGRESS, .progress = {.phase = 99}}, back;
    uint8_t bytes[512];
    struct hd_frame frame;
    size_t size;

    assert_int_equal(
        hd_frame_decode(bytes, hd_link_report_encode(&report, bytes, sizeof bytes), &frame, &size),
        HD_OK);
    assert_int_equal(hd_link_report_decode(&frame, &back), HD_CORRUPT);
    report.progress.phase = 0;
    report.rank = HD_LINK_RANKS_MAX;
    assert_int_equal(
        hd_frame_decode(bytes, hd_link_report_encode(&report, bytes, sizeof bytes), &frame, &size),
        HD_OK);
    assert_int_equal(hd_link_report_decode(&frame, &back), HD_CORRUPT);
}

/* A link whose other end, *ret_fd, the test holds; the hellos are done. */
static struct hd_link *open_pair(int64_t rank, int64_t world, int *ret_fd)
{
    struct hd_link *link;
    struct hd_hello hello;
    int fd[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd), 0);
    assert_int_equal(hd_hello_send(fd[1], -1, 1000), HD_OK);
    assert_int_equal(hd_link_worker_open(fd[0], rank, world, &link), HD_OK);
    assert_int_equal(hd_hello_receive(fd[1], 1000, &hello), HD_OK);
    assert_int_equal(hello.rank, rank);
    assert_int_equal(hd_hello_check(&hello, "the rank"), HD_OK);
    *ret_fd = fd[1];
    return link;
}

static void next_report(int fd, struct hd_link_report *ret_report)
{
    static uint8_t bytes[HD_FRAME_BYTES_MAX];
    struct hd_frame frame;

    assert_int_equal(hd_frame_receive(fd, bytes, 1000, &frame), HD_OK);
    assert_int_equal(hd_link_report_decode(&frame, ret_report), HD_OK);
}

static void send_command(int fd, uint16_t type)
{
    uint8_t bytes[64];
    struct hd_pack pack;

    hd_pack_begin(&pack, bytes, sizeof bytes);
    assert_int_equal(hd_frame_send(fd, bytes, hd_pack_end(&pack, type), 1000), HD_OK);
}

static void versions_that_do_not_meet_are_named(void **state)
{
    uint8_t bytes[128];
    struct hd_link *link;
    struct hd_pack pack;
    int fd[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd), 0);
    hd_pack_begin(&pack, bytes, sizeof bytes);
    hd_pack_int(&pack, 7);
    hd_pack_int(&pack, 9);
    hd_pack_text(&pack, "9.9.9");
    hd_pack_int(&pack, -1);
    assert_int_equal(hd_frame_send(fd[1], bytes, hd_pack_end(&pack, HD_LINK_MSG_HELLO), 1000),
                     HD_OK);
    assert_int_equal(hd_link_worker_open(fd[0], 0, 1, &link), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "build 9.9.9"));
    assert_non_null(strstr(hd_err_message(), "7 to 9"));
    (void)close(fd[1]);
}

static void reports_arrive_as_they_were_given(void **state)
{
    struct hd_link_step step = {.step = 3, .metrics = {.loss = 2.5, .tokens = 64}};
    struct hd_link_report report;
    struct hd_link *link;
    int fd;

    link = open_pair(1, 2, &fd);
    hd_link_report_step(link, &step);
    hd_link_report_checkpoint(link, 3, "/jobs/1/attempt-1/checkpoints/step-3", "00ff", 4096, NAN);
    hd_link_report_failure(link, HD_IO, 0, "all_gather", "rank 0 went away");
    next_report(fd, &report);
    assert_int_equal(report.kind, HD_LINK_STEP);
    assert_int_equal(report.rank, 1);
    assert_int_equal(report.step.step, 3);
    assert_true(report.step.metrics.loss == 2.5 && report.step.metrics.tokens == 64);
    assert_int_equal(report.step.expert_load_count, 0);
    next_report(fd, &report);
    assert_int_equal(report.kind, HD_LINK_CHECKPOINT);
    assert_string_equal(report.checkpoint.path, "/jobs/1/attempt-1/checkpoints/step-3");
    assert_string_equal(report.checkpoint.manifest_hash, "00ff");
    next_report(fd, &report);
    assert_int_equal(report.kind, HD_LINK_FAILURE);
    assert_int_equal(report.failure.status, HD_IO);
    assert_string_equal(report.failure.operation, "all_gather");
    step.metrics.router_balance = 1.5; /* of a mixture with as many experts as there can be */
    step.metrics.router_dropped = 7;
    step.expert_load_count = HD_LINK_LOADS_MAX;
    for (int i = 0; i < HD_LINK_LOADS_MAX; i++)
        step.expert_load[i] = i;
    hd_link_report_step(link, &step);
    next_report(fd, &report);
    assert_int_equal(report.step.expert_load_count, HD_LINK_LOADS_MAX);
    assert_memory_equal(report.step.expert_load, step.expert_load, sizeof step.expert_load);
    assert_true(report.step.metrics.router_balance == 1.5 &&
                report.step.metrics.router_dropped == 7);
    hd_link_close(link);
    (void)close(fd);
}

/* Goal: training never waits for a stalled supervisor, and no step is lost silently. Method: report
 * until the socket is surely full, then read all: steps that came + steps counted as left out must
 * be all steps. */
static void a_stalled_supervisor_costs_steps_but_no_time(void **state)
{
    enum { STEPS = 20000 };
    int64_t seen = 0, left_out = 0, start_ms;
    struct hd_link_report report;
    struct hd_link *link;
    struct hd_link_step step = {0};
    int fd;

    link = open_pair(0, 1, &fd);
    start_ms = hd_clock_now_ms();
    for (step.step = 1; step.step < STEPS; step.step++)
        hd_link_report_step(link, &step);
    assert_true(hd_clock_now_ms() - start_ms < 5000);
    for (;;) {
        static uint8_t bytes[HD_FRAME_BYTES_MAX];
        struct hd_frame frame;

        if (hd_frame_receive(fd, bytes, 0, &frame))
            break;
        assert_int_equal(hd_link_report_decode(&frame, &report), HD_OK);
        assert_int_equal(report.kind, HD_LINK_STEP);
        seen++;
    }
    assert_true(seen < STEPS - 1);
    hd_link_report_step(link, &step); /* now there is room: the gap, then the step */
    next_report(fd, &report);
    assert_int_equal(report.kind, HD_LINK_GAP);
    left_out = report.gap.count;
    assert_int_equal(report.gap.first_step, -1);
    assert_int_equal(report.gap.last_step, STEPS - 1);
    next_report(fd, &report);
    assert_int_equal(report.kind, HD_LINK_STEP);
    assert_int_equal(seen + left_out + 1, STEPS);
    step.step++;
    hd_link_report_step(link, &step);
    next_report(fd, &report);
    assert_int_equal(report.kind, HD_LINK_STEP); /* the gap is told once */
    hd_link_close(link);
    (void)close(fd);
}

struct late_checkpoint {
    struct hd_link *link;
    int64_t step;
};

static void *report_late(void *argument)
{
    const struct late_checkpoint *late = argument;

    hd_link_report_checkpoint(late->link, late->step, "/c", "1", 1, NAN);
    return NULL;
}

/* The last step of a job is what it is known by: it is sent again before the checkpoint, which
 * waits until the supervisor reads. */
static void the_newest_step_is_not_lost_to_a_stalled_supervisor(void **state)
{
    struct late_checkpoint late = {.step = 20000}; /* more reports than the socket takes */
    static struct hd_link_report report;
    int64_t seen = 0, left_out = 0, newest = 0;
    struct hd_link_step step = {0};
    pthread_t thread;
    int fd;

    late.link = open_pair(0, 1, &fd);
    for (step.step = 1; step.step <= late.step; step.step++)
        hd_link_report_step(late.link, &step);
    assert_int_equal(pthread_create(&thread, NULL, report_late, &late), 0);
    do {
        next_report(fd, &report);
        seen += report.kind == HD_LINK_STEP;
        left_out += report.kind == HD_LINK_GAP ? report.gap.count : 0;
        if (report.kind == HD_LINK_STEP)
            newest = report.step.step;
    } while (report.kind != HD_LINK_CHECKPOINT);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(left_out > 0);
    assert_int_equal(newest, late.step);
    assert_int_equal(seen + left_out, late.step);
    hd_link_close(late.link);
    (void)close(fd);
}

/* A supervisor that comes back after a moment, and reads on until it has this kind of report. */
struct late_reader {
    int fd;
    enum hd_link_kind kind;
    bool found;
};

static void *read_late(void *argument)
{
    struct late_reader *reader = argument;
    uint8_t *bytes = malloc(HD_FRAME_BYTES_MAX);
    struct hd_link_report *report = malloc(sizeof *report);
    struct hd_frame frame;

    (void)usleep(200000);
    while (!reader->found && hd_frame_receive(reader->fd, bytes, 2000, &frame) == HD_OK)
        reader->found =
            hd_link_report_decode(&frame, report) == HD_OK && report->kind == reader->kind;
    free(bytes);
    free(report);
    return NULL;
}

/* The controller decides by these: they wait for a supervisor that is behind. */
static void what_must_not_be_lost_waits_for_room(void **state)
{
    static const enum hd_link_kind kinds[] = {HD_LINK_VALIDATION, HD_LINK_CHECKPOINT,
                                              HD_LINK_FAILURE};

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct late_reader reader = {.kind = kinds[i]};
        const struct hd_link_step step = {.step = 1};
        struct hd_link *link = open_pair(0, 1, &reader.fd);
        pthread_t thread;

        for (int n = 0; n < 20000; n++) /* until the socket is full, and more */
            hd_link_report_step(link, &step);
        assert_int_equal(pthread_create(&thread, NULL, read_late, &reader), 0);
        if (kinds[i] == HD_LINK_VALIDATION)
            hd_link_report_validation(link, 2, 1.5, 64, "");
        else if (kinds[i] == HD_LINK_CHECKPOINT)
            hd_link_report_checkpoint(link, 2, "/checkpoint", "00ff", 7, NAN);
        else
            hd_link_report_failure(link, HD_IO, 0, "all_gather", "rank 0 went away");
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_true(reader.found);
        hd_link_close(link);
        (void)close(reader.fd);
    }
}

static void a_stop_is_told_once_and_before_a_checkpoint(void **state)
{
    struct hd_link *link;
    int fd;

    link = open_pair(0, 1, &fd);
    assert_int_equal(hd_link_poll(link), HD_LINK_COMMAND_NONE);
    send_command(fd, HD_LINK_MSG_CHECKPOINT);
    assert_int_equal(hd_link_poll(link), HD_LINK_COMMAND_CHECKPOINT);
    assert_int_equal(hd_link_poll(link), HD_LINK_COMMAND_NONE);
    send_command(fd, HD_LINK_MSG_CHECKPOINT);
    send_command(fd, HD_LINK_MSG_STOP);
    assert_int_equal(hd_link_poll(link), HD_LINK_COMMAND_STOP);
    assert_int_equal(hd_link_poll(link), HD_LINK_COMMAND_NONE);
    hd_link_close(link);
    (void)close(fd);
}

static void a_broken_link_does_not_disturb(void **state)
{
    const struct hd_link_step step = {.step = 1};
    struct hd_link *link;
    int fd;

    link = open_pair(0, 1, &fd);
    (void)close(fd);
    hd_link_report_step(link, &step);
    hd_link_report_validation(link, 1, 1.0, 1, "");
    assert_int_equal(hd_link_poll(link), HD_LINK_COMMAND_NONE);
    assert_true(hd_link_broken(link));
    hd_link_close(link);
}

static void send_value(int fd, int64_t rank, int64_t round, const char *value)
{
    uint8_t bytes[64];
    struct hd_pack pack;

    hd_pack_begin(&pack, bytes, sizeof bytes);
    hd_pack_int(&pack, rank);
    hd_pack_int(&pack, round);
    hd_pack_text(&pack, value);
    assert_int_equal(hd_frame_send(fd, bytes, hd_pack_end(&pack, HD_LINK_MSG_VALUE), 1000), HD_OK);
}

static void a_rendezvous_takes_values_in_any_order_and_repeated(void **state)
{
    struct hd_link_values values;
    struct hd_link *link;
    int fd;

    link = open_pair(1, 3, &fd);
    send_value(fd, 2, 0, "two");
    send_value(fd, 2, 0, "twice"); /* a re-put after a reconnect; the first one stands */
    send_value(fd, 7, 0, "nobody");
    send_value(fd, 0, 0, "");
    send_value(fd, 1, 0, "one");
    assert_int_equal(hd_link_rendezvous(link, "one", 3, 1000, &values), HD_OK);
    assert_int_equal(values.world, 3);
    assert_int_equal(values.size_bytes[0], 0);
    assert_int_equal(values.size_bytes[1], 3);
    assert_memory_equal(values.value[2], "two", 3);
    hd_link_values_free(&values);

    for (int64_t rank = 0; rank < 3; rank++) {
        send_value(fd, rank, 0, "of the first round");
        send_value(fd, rank, 1, "second");
    }
    assert_int_equal(hd_link_rendezvous(link, "one", 3, 1000, &values), HD_OK);
    assert_int_equal(values.size_bytes[0], 6);
    hd_link_values_free(&values);
    hd_link_close(link);
    (void)close(fd);
}

static void a_rendezvous_that_stays_incomplete_names_who_is_missing(void **state)
{
    struct hd_link_values values;
    struct hd_link *link;
    int fd;

    link = open_pair(1, 4, &fd);
    send_value(fd, 1, 0, "one");
    send_value(fd, 2, 0, "two");
    assert_int_equal(hd_link_rendezvous(link, "one", 3, 50, &values), HD_TIMEOUT);
    assert_non_null(strstr(hd_err_message(), "no value from rank 0 3 of 4"));
    hd_link_close(link);
    (void)close(fd);
}

/* The n-th call meets the n-th calls of the others, also when the one before it has failed: what
 * comes late for that one is not taken for this one's. */
static void a_failed_rendezvous_counts(void **state)
{
    struct hd_link_values values;
    struct hd_link *link;
    int fd;

    link = open_pair(0, 2, &fd);
    send_value(fd, 0, 0, "mine");
    assert_int_equal(hd_link_rendezvous(link, "mine", 4, 50, &values), HD_TIMEOUT);
    for (int64_t rank = 0; rank < 2; rank++)
        send_value(fd, rank, 0, "late");
    for (int64_t rank = 0; rank < 2; rank++)
        send_value(fd, rank, 1, "second");
    assert_int_equal(hd_link_rendezvous(link, "mine", 4, 1000, &values), HD_OK);
    assert_int_equal(values.size_bytes[0], 6);
    assert_memory_equal(values.value[1], "second", 6);
    hd_link_values_free(&values);
    hd_link_close(link);
    (void)close(fd);
}

static void a_wait_ends_at_its_deadline(void **state)
{
    static uint8_t bytes[HD_FRAME_BYTES_MAX];
    const int64_t start_ms = hd_clock_now_ms();
    struct hd_frame frame;
    int fd[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd), 0);
    assert_int_equal(hd_frame_receive(fd[0], bytes, 1000, &frame), HD_TIMEOUT);
    assert_in_range(hd_clock_now_ms() - start_ms, 1000, 1900); /* a busy machine is late */
    (void)close(fd[0]);
    (void)close(fd[1]);
}

/* Two builds understand each other if there is a version that both speak. */
static void versions_meet_where_they_overlap(void **state)
{
    static const struct {
        int64_t min, max;
        bool meet;
    } theirs[] = {
        {HD_LINK_PROTOCOL_MIN - 2, HD_LINK_PROTOCOL_MIN - 1, false},
        {HD_LINK_PROTOCOL_MIN - 1, HD_LINK_PROTOCOL_MIN, true},
        {HD_LINK_PROTOCOL_MIN, HD_LINK_PROTOCOL_MAX, true},
        {HD_LINK_PROTOCOL_MAX, HD_LINK_PROTOCOL_MAX + 1, true},
        {HD_LINK_PROTOCOL_MAX + 1, HD_LINK_PROTOCOL_MAX + 2, false},
    };

    for (size_t i = 0; i < sizeof theirs / sizeof theirs[0]; i++) {
        const struct hd_hello hello = {
            .protocol_min = theirs[i].min, .protocol_max = theirs[i].max, .build = "9.9.9"};

        assert_int_equal(hd_hello_check(&hello, "heddled"),
                         theirs[i].meet ? HD_OK : HD_UNSUPPORTED);
    }
}

/* Goal: an attempt's directory may be as deep as it likes. Method: 40 levels of 10 bytes, 4 times
 * what a socket address holds. */
static void sockets_live_in_long_directories(void **state)
{
    char root[] = "/tmp/heddle-link-XXXXXX";
    struct hd_text dir = {0};
    struct hd_hello hello;
    int listen_fd, client_fd, served_fd;
    struct stat info;

    assert_non_null(mkdtemp(root));
    hd_text_add(&dir, "%s", root);
    for (int i = 0; i < 40; i++)
        hd_text_add(&dir, "/directory");
    assert_int_equal(hd_file_make_dirs(dir.data, 0700), HD_OK);
    assert_int_equal(hd_frame_connect(dir.data, "socket", &client_fd), HD_UNAVAILABLE);
    assert_int_equal(hd_frame_listen(dir.data, "socket", (uid_t)-1, &listen_fd), HD_OK);
    assert_int_equal(hd_frame_accept(listen_fd, (uid_t)-1, &served_fd), HD_UNAVAILABLE);
    assert_int_equal(hd_frame_connect(dir.data, "socket", &client_fd), HD_OK);
    assert_int_equal(hd_frame_accept(listen_fd, (uid_t)-1, &served_fd), HD_OK);
    assert_int_equal(hd_hello_send(client_fd, -1, 1000), HD_OK);
    assert_int_equal(hd_hello_receive(served_fd, 1000, &hello), HD_OK);
    (void)close(client_fd);
    assert_int_equal(hd_hello_receive(served_fd, 1000, &hello), HD_ABORTED);
    hd_text_add(&dir, "/socket");
    assert_int_equal(stat(dir.data, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    (void)close(served_fd);
    (void)close(listen_fd);
    assert_int_equal(hd_file_remove_tree(root), HD_OK);
    hd_text_free(&dir);
}

/* Goal: heddled reaches the supervisor of a job that runs as another user. Method: the umask of a
 * unit, which would take the group's right to write, without which connect is refused. */
static void a_socket_for_another_user_has_its_mode_under_any_umask(void **state)
{
    char root[] = "/tmp/heddle-link-XXXXXX", path[64];
    const mode_t before = umask(027);
    struct stat info;
    int listen_fd;

    assert_non_null(mkdtemp(root));
    assert_int_equal(hd_frame_listen(root, "socket", getuid() + 1, &listen_fd), HD_OK);
    (void)umask(before);
    (void)snprintf(path, sizeof path, "%s/socket", root);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0660);
    (void)close(listen_fd);
    assert_int_equal(hd_file_remove_tree(root), HD_OK);
}

/* Uid 65534 connects in a child; root, heddled's user and the job's may, it may not. */
static void a_process_of_another_user_is_refused(void **state)
{
    enum { STRANGER = 65534 };
    char root[] = "/tmp/heddle-link-XXXXXX", path[64];
    int listen_fd, served_fd = -1;

    if (geteuid() != 0) {
        print_message("becoming another user takes root\n");
        skip();
    }
    assert_non_null(mkdtemp(root));
    assert_int_equal(chmod(root, 0755), 0);
    assert_int_equal(hd_frame_listen(root, "socket", (uid_t)-1, &listen_fd), HD_OK);
    (void)snprintf(path, sizeof path, "%s/socket", root);
    assert_int_equal(chmod(path, 0666), 0); /* the mode is the first refusal, this is the second */
    for (int is_expected = 0; is_expected < 2; is_expected++) {
        const pid_t child = fork();
        int fd, status;

        if (child == 0)
            _exit(setresuid(STRANGER, STRANGER, STRANGER) < 0 ||
                          hd_frame_connect(root, "socket", &fd)
                      ? 1
                      : 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        assert_int_equal(
            hd_frame_accept(listen_fd, is_expected ? STRANGER : STRANGER - 1, &served_fd),
            is_expected ? HD_OK : HD_DENIED);
    }
    (void)close(served_fd);
    (void)close(listen_fd);
    assert_int_equal(hd_file_remove_tree(root), HD_OK);
}

static void two_frames_in_one_packet_are_refused(void **state)
{
    static uint8_t bytes[HD_FRAME_BYTES_MAX];
    struct hd_frame frame;
    size_t n = sample_frame(bytes, sizeof bytes);
    int fd[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd), 0);
    memcpy(bytes + n, bytes, n);
    assert_int_equal(hd_frame_send(fd[0], bytes, 2 * n, 1000), HD_OK);
    assert_int_equal(hd_frame_receive(fd[1], bytes, 1000, &frame), HD_CORRUPT);
    assert_int_equal(hd_frame_send(fd[0], bytes, n / 2, 1000), HD_OK);
    assert_int_equal(hd_frame_receive(fd[1], bytes, 1000, &frame), HD_CORRUPT);
    (void)close(fd[0]);
    (void)close(fd[1]);
}

RUN_CASES()
