#include "link/link.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "link/hello.h"

enum { HELLO_TIMEOUT_MS = 30000, MUST_TIMEOUT_MS = 10000 };

struct hd_link {
    int fd;
    int64_t rank, world;
    atomic_bool broken;
    int64_t dropped; /* step reports dropped since the last one that was sent */
    struct hd_link_step newest_dropped;
    bool stop, checkpoint;    /* received commands that hd_link_poll has not returned yet */
    int64_t round;            /* number of the current rendezvous or, outside of one, of the next */
    enum hd_link_phase phase; /* of the last hd_link_report_phase, with its step */
    int64_t phase_step;
    int64_t values_count;
    struct hd_link_values values; /* values received during a rendezvous; empty outside of one */
    uint8_t received[HD_FRAME_BYTES_MAX];
};

enum hd_status hd_link_worker_open(int fd, int64_t rank, int64_t world, struct hd_link **ret_link)
{
    struct hd_link *link = calloc(1, sizeof *link);
    struct hd_hello theirs;
    enum hd_status st;

    if (!link) {
        (void)close(fd);
        return hd_err(HD_NO_MEMORY, "no memory for the link to the supervisor");
    }
    link->fd = fd;
    link->rank = rank;
    link->world = world;
    st = hd_hello_send(fd, rank, HELLO_TIMEOUT_MS);
    if (!st)
        st = hd_hello_receive(fd, HELLO_TIMEOUT_MS, &theirs);
    if (!st)
        st = hd_hello_check(&theirs, "heddle-supervisor");
    if (!st && theirs.protocol_max < HD_LINK_PROTOCOL_METRICS)
        st = hd_err(HD_UNSUPPORTED,
                    "heddle-supervisor (build %s) is older than this rank, whose reports it cannot "
                    "read: Heddle was upgraded while the attempt started; the next attempt starts "
                    "both of one build",
                    theirs.build);
    if (st) {
        hd_link_close(link);
        return hd_err_prefix(st, "rank %" PRId64 " cannot talk to its supervisor", rank);
    }
    *ret_link = link;
    return HD_OK;
}

void hd_link_close(struct hd_link *link)
{
    if (!link)
        return;
    (void)close(link->fd);
    hd_link_values_free(&link->values);
    free(link);
}

bool hd_link_broken(const struct hd_link *link)
{
    return atomic_load(&link->broken);
}

/* Sends one frame; an error of the connection sets `broken`. */
static enum hd_status send_frame(struct hd_link *link, const uint8_t *bytes, size_t size_bytes,
                                 int timeout_ms)
{
    enum hd_status st;

    if (hd_link_broken(link))
        return HD_ABORTED;
    st = hd_frame_send(link->fd, bytes, size_bytes, timeout_ms);
    if (st == HD_ABORTED || st == HD_IO)
        atomic_store(&link->broken, true);
    return st;
}

static enum hd_status send_report(struct hd_link *link, struct hd_link_report *report,
                                  int timeout_ms)
{
    uint8_t bytes[sizeof(struct hd_link_report) + 256];
    size_t n;

    report->rank = link->rank;
    report->wall_ms = hd_clock_wall_ms();
    n = hd_link_report_encode(report, bytes, sizeof bytes);
    return send_frame(link, bytes, n, timeout_ms);
}

static enum hd_status send_step(struct hd_link *link, const struct hd_link_step *step,
                                int timeout_ms)
{
    struct hd_link_report report = {.kind = HD_LINK_STEP, .step = *step};

    return send_report(link, &report, timeout_ms);
}

/* Sends a gap report: `count` of the step reports up to step `last` were dropped. */
static void send_gap(struct hd_link *link, int64_t count, int64_t last, int timeout_ms)
{
    struct hd_link_report report = {.kind = HD_LINK_GAP, .gap = {count, -1, last}};

    if (count && send_report(link, &report, timeout_ms) == HD_OK)
        link->dropped -= count;
}

void hd_link_report_step(struct hd_link *link, const struct hd_link_step *step)
{
    send_gap(link, link->dropped, step->step - 1, 0);
    if (send_step(link, step, 0) != HD_UNAVAILABLE)
        return;
    link->dropped++;
    link->newest_dropped = *step;
}

static int left_ms(int64_t deadline_ms)
{
    const int64_t ms = deadline_ms - hd_clock_now_ms();

    return ms > 0 ? (int)ms : 0;
}

/* Sends a report that must not be lost. If the newest step was dropped, that step is sent first. */
static void send_safely(struct hd_link *link, struct hd_link_report *report)
{
    const int64_t deadline_ms = hd_clock_now_ms() + MUST_TIMEOUT_MS;

    if (link->dropped) {
        send_gap(link, link->dropped - 1, link->newest_dropped.step - 1, left_ms(deadline_ms));
        if (send_step(link, &link->newest_dropped, left_ms(deadline_ms)) == HD_OK)
            link->dropped--;
    }
    (void)send_report(link, report, left_ms(deadline_ms));
}

void hd_link_report_validation(struct hd_link *link, int64_t step, double loss, int64_t tokens,
                               const char *set)
{
    struct hd_link_report report = {.kind = HD_LINK_VALIDATION,
                                    .validation = {.step = step, .loss = loss, .tokens = tokens}};

    (void)snprintf(report.validation.set, sizeof report.validation.set, "%s", set);
    send_safely(link, &report);
}

void hd_link_report_checkpoint(struct hd_link *link, int64_t step, const char *path,
                               const char *manifest_hash, int64_t bytes, double val_loss)
{
    struct hd_link_report report = {
        .kind = HD_LINK_CHECKPOINT,
        .checkpoint = {.step = step, .bytes = bytes, .val_loss = val_loss}};

    (void)snprintf(report.checkpoint.path, sizeof report.checkpoint.path, "%s", path);
    (void)snprintf(report.checkpoint.manifest_hash, sizeof report.checkpoint.manifest_hash, "%s",
                   manifest_hash);
    send_safely(link, &report);
}

void hd_link_report_event(struct hd_link *link, enum hd_link_level level, const char *text)
{
    hd_link_report_event_about(link, level, NAN, text);
}

void hd_link_report_event_about(struct hd_link *link, enum hd_link_level level, double about,
                                const char *text)
{
    struct hd_link_report report = {.kind = HD_LINK_EVENT,
                                    .event = {.level = level, .about = about}};

    (void)snprintf(report.event.text, sizeof report.event.text, "%s", text);
    (void)send_report(link, &report, 0);
}

void hd_link_report_stragglers(struct hd_link *link, const char *text)
{
    struct hd_link_report report = {.kind = HD_LINK_STRAGGLERS};

    (void)snprintf(report.stragglers.text, sizeof report.stragglers.text, "%s", text);
    (void)send_report(link, &report, MUST_TIMEOUT_MS);
}

void hd_link_report_problem(struct hd_link *link, const char *text)
{
    struct hd_link_report report = {.kind = HD_LINK_PROBLEM};

    (void)snprintf(report.problem.text, sizeof report.problem.text, "%s", text);
    (void)send_report(link, &report, MUST_TIMEOUT_MS);
}

void hd_link_report_phase(struct hd_link *link, enum hd_link_phase phase, int64_t step)
{
    link->phase = phase;
    link->phase_step = step;
    hd_link_report_alive(link);
}

void hd_link_report_alive(struct hd_link *link)
{
    struct hd_link_report report = {.kind = HD_LINK_PROGRESS,
                                    .progress = {link->phase, link->phase_step}};

    (void)send_report(link, &report, 0);
}

void hd_link_report_planned(struct hd_link *link, int64_t bytes)
{
    uint8_t frame[32];
    struct hd_pack pack;

    hd_pack_begin(&pack, frame, sizeof frame);
    hd_pack_int(&pack, bytes);
    (void)send_frame(link, frame, hd_pack_end(&pack, HD_LINK_MSG_PLANNED), MUST_TIMEOUT_MS);
}

void hd_link_report_failure(struct hd_link *link, enum hd_status st, int64_t first_rank,
                            const char *operation, const char *message)
{
    struct hd_link_report report = {.kind = HD_LINK_FAILURE,
                                    .failure = {.status = st, .first_rank = first_rank}};

    (void)snprintf(report.failure.operation, sizeof report.failure.operation, "%s", operation);
    (void)snprintf(report.failure.message, sizeof report.failure.message, "%s", message);
    send_safely(link, &report);
}

static void keep_value(struct hd_link *link, const struct hd_frame *frame)
{
    struct hd_unpack unpack;
    const uint8_t *value;
    int64_t rank, round;
    size_t count;

    hd_unpack_begin(&unpack, frame);
    rank = hd_unpack_int(&unpack);
    round = hd_unpack_int(&unpack);
    value = hd_unpack_bytes(&unpack, HD_LINK_VALUE_MAX, &count);
    if (hd_unpack_end(&unpack) || round != link->round || rank < 0 || rank >= link->values.world ||
        link->values.size_bytes[rank] != SIZE_MAX)
        return; /* ignores a value of another round, or a duplicate */
    if (count)
        memcpy(link->values.value[rank], value, count);
    link->values.size_bytes[rank] = count;
    link->values_count++;
}

/* Receives and handles one message. HD_UNAVAILABLE or HD_TIMEOUT: no message arrived. */
static enum hd_status take_message(struct hd_link *link, int timeout_ms)
{
    struct hd_frame frame;
    enum hd_status st;

    if (hd_link_broken(link))
        return hd_err(HD_ABORTED, "the link to the supervisor is broken");
    st = hd_frame_receive(link->fd, link->received, timeout_ms, &frame);
    if (st == HD_ABORTED || st == HD_IO || st == HD_CORRUPT)
        atomic_store(&link->broken, true);
    if (st)
        return st;
    switch ((enum hd_link_message)frame.type) {
    case HD_LINK_MSG_STOP:
        link->stop = true;
        break;
    case HD_LINK_MSG_CHECKPOINT:
        link->checkpoint = true;
        break;
    case HD_LINK_MSG_VALUE:
        keep_value(link, &frame);
        break;
    default:
        break; /* an unknown message is ignored: a newer supervisor may send it */
    }
    return HD_OK;
}

enum hd_link_command hd_link_poll(struct hd_link *link)
{
    while (!hd_link_broken(link) && take_message(link, 0) == HD_OK)
        continue;
    if (link->stop) {
        link->stop = link->checkpoint = false;
        return HD_LINK_COMMAND_STOP;
    }
    if (link->checkpoint) {
        link->checkpoint = false;
        return HD_LINK_COMMAND_CHECKPOINT;
    }
    return HD_LINK_COMMAND_NONE;
}

static enum hd_status values_new(int64_t world, struct hd_link_values *ret_values)
{
    struct hd_link_values v = {.world = world};

    v.size_bytes = malloc((size_t)world * sizeof *v.size_bytes);
    v.value = malloc((size_t)world * sizeof *v.value);
    if (!v.size_bytes || !v.value) {
        hd_link_values_free(&v);
        return hd_err(HD_NO_MEMORY, "no memory for the rendezvous of %" PRId64 " ranks", world);
    }
    for (int64_t r = 0; r < world; r++)
        v.size_bytes[r] = SIZE_MAX; /* marks the value of rank r as not received yet */
    *ret_values = v;
    return HD_OK;
}

static enum hd_status missing_ranks(const struct hd_link *link, int timeout_ms)
{
    char names[200] = "";
    size_t n = 0;

    for (int64_t r = 0; r < link->world && n < sizeof names - 24; r++)
        if (link->values.size_bytes[r] == SIZE_MAX)
            n += (size_t)snprintf(names + n, sizeof names - n, " %" PRId64, r);
    return hd_err(HD_TIMEOUT, "the rendezvous has no value from rank%s of %" PRId64 " after %d ms",
                  names, link->world, timeout_ms);
}

enum hd_status hd_link_rendezvous(struct hd_link *link, const void *value, size_t value_bytes,
                                  int timeout_ms, struct hd_link_values *ret_values)
{
    const int64_t deadline_ms = hd_clock_now_ms() + timeout_ms;
    uint8_t bytes[HD_LINK_VALUE_MAX + 64];
    struct hd_pack pack;
    enum hd_status st;

    if (value_bytes > HD_LINK_VALUE_MAX)
        return hd_err(HD_LIMIT, "a rendezvous value of %zu bytes is over the limit of %d",
                      value_bytes, HD_LINK_VALUE_MAX);
    st = values_new(link->world, &link->values);
    if (st)
        return st;
    link->values_count = 0;
    hd_pack_begin(&pack, bytes, sizeof bytes);
    hd_pack_int(&pack, link->rank);
    hd_pack_int(&pack, link->round);
    hd_pack_bytes(&pack, value, value_bytes);
    st = send_frame(link, bytes, hd_pack_end(&pack, HD_LINK_MSG_PUT), timeout_ms);
    while (!st && link->values_count < link->world) {
        const int64_t left_ms = deadline_ms - hd_clock_now_ms();

        if (link->stop)
            st = hd_err(HD_ABORTED, "stopped by command during the rendezvous");
        else if (left_ms <= 0)
            st = missing_ranks(link, timeout_ms);
        else if ((st = take_message(link, (int)left_ms)) == HD_TIMEOUT)
            st = HD_OK; /* the next iteration names the missing ranks */
    }
    if (st)
        hd_link_values_free(&link->values);
    else
        *ret_values = link->values;
    link->round++;
    link->values = (struct hd_link_values){0};
    return st;
}

void hd_link_values_free(struct hd_link_values *values)
{
    free(values->size_bytes);
    free(values->value);
    *values = (struct hd_link_values){0};
}
