/* send: writes reports to the spool, and sends messages to heddled and the ranks. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/supervisor/supervisor.h"

enum {
    SMALL_FRAME = 256,
    VALUE_FRAME = HD_LINK_VALUE_MAX + 64,
    PROBLEM_FRAME = HD_LINK_TEXT_MAX + 64
};

/* ---- the spool ---- */

static bool must_be_durable(enum hd_link_kind kind)
{
    return kind == HD_LINK_CHECKPOINT || kind == HD_LINK_EXIT || kind == HD_LINK_VALIDATION;
}

/* Keeps a report in memory that could not be written to disk. The last HD_ATTEMPT_RANKS_MAX / 2
 * places in memory are reserved for exits. */
static void hold(struct sup *sup, const struct hd_link_report *report, bool durable)
{
    const int space =
        report->kind == HD_LINK_EXIT ? HD_SUP_HELD_MAX : HD_SUP_HELD_MAX - HD_ATTEMPT_RANKS_MAX / 2;

    if (sup->held_count >= space) {
        hd_log(HD_LOG_ERROR,
               "a %s report of rank %" PRId64
               " is lost: the disk refuses it, and no more are kept in memory",
               hd_link_kind_name(report->kind), report->rank);
        return;
    }
    sup->held[sup->held_count] = *report;
    sup->held_durable[sup->held_count++] = durable;
}

static enum hd_status stamp_and_spool(struct sup *sup, struct sup_rank *rank,
                                      struct hd_link_report *report)
{
    const bool durable = must_be_durable(report->kind);
    enum hd_status st = HD_OK;

    report->job = sup->job.job_id;
    report->attempt = sup->job.attempt;
    report->rank = rank->rank;
    report->seq = ++rank->seq;
    if (!report->wall_ms)
        report->wall_ms = hd_clock_wall_ms();
    if (!sup->held_count)
        st = hd_spool_append(sup->spool, report, durable);
    if (st)
        hd_log(HD_LOG_ERROR, "%s; will try again", hd_err_message());
    if (st || sup->held_count)
        hold(sup, report, durable);
    return st;
}

static void leave_out(struct sup_rank *rank, int64_t count, int64_t first, int64_t last)
{
    if (!rank->gap_count || (first >= 0 && first < rank->gap_first))
        rank->gap_first = first;
    if (last > rank->gap_last)
        rank->gap_last = last;
    rank->gap_count += count;
}

/* Writes a gap report of the dropped step reports to the spool, then the newest dropped one. */
static enum hd_status report_left_out(struct sup *sup, struct sup_rank *rank)
{
    struct hd_link_report gap = {.kind = HD_LINK_GAP,
                                 .gap = {rank->gap_count, rank->gap_first, rank->gap_last}};
    struct hd_link_report newest = rank->newest_step;
    enum hd_status of_gap = HD_OK, of_newest = HD_OK;

    rank->gap_count = rank->gap_last = 0;
    rank->newest_step.kind = HD_LINK_NONE;
    if (gap.gap.count)
        of_gap = stamp_and_spool(sup, rank, &gap);
    if (newest.kind == HD_LINK_STEP)
        of_newest = stamp_and_spool(sup, rank, &newest);
    return of_gap ? of_gap : of_newest;
}

/* Keeps the step report as the rank's newest dropped one; the one kept before is counted in the
 * gap. */
static void keep_newest(struct sup_rank *rank, const struct hd_link_report *report)
{
    const int64_t older = rank->newest_step.step.step;

    if (rank->newest_step.kind == HD_LINK_STEP)
        leave_out(rank, 1, older, older);
    rank->newest_step = *report;
}

/* Spools the reports held in memory before newer ones, because the spool is in order of seq. */
enum hd_status sup_retry_held(struct sup *sup)
{
    enum hd_status st = HD_OK;
    int done = 0;

    while (done < sup->held_count &&
           !(st = hd_spool_append(sup->spool, &sup->held[done], sup->held_durable[done])))
        done++;
    sup->held_count -= done;
    memmove(sup->held, sup->held + done, (size_t)sup->held_count * sizeof sup->held[0]);
    memmove(sup->held_durable, sup->held_durable + done,
            (size_t)sup->held_count * sizeof sup->held_durable[0]);
    for (int i = 0; !st && i < sup->options.rank_count; i++) {
        struct sup_rank *rank = &sup->ranks[i];

        if (rank->newest_step.kind == HD_LINK_STEP &&
            (rank->exited || !hd_spool_is_full(sup->spool)))
            st = report_left_out(sup, rank);
    }
    if (done)
        sup_send_state(sup);
    return st;
}

void sup_drop_held(struct sup *sup)
{
    sup->held_count = 0;
    for (int i = 0; i < sup->options.rank_count; i++)
        sup->ranks[i].newest_step.kind = HD_LINK_NONE;
}

void sup_report(struct sup *sup, struct sup_rank *rank, struct hd_link_report *report)
{
    if (report->kind == HD_LINK_GAP) {
        leave_out(rank, report->gap.count, report->gap.first_step, report->gap.last_step);
        return;
    }
    if (report->kind == HD_LINK_STEP && (sup->held_count || hd_spool_is_full(sup->spool))) {
        keep_newest(rank, report);
        return;
    }
    if (!sup->held_count)
        (void)report_left_out(sup, rank);
    (void)stamp_and_spool(sup, rank, report);
    sup_send_state(sup);
}

/* ---- states and commands ---- */

void sup_command(const struct sup_rank *rank, enum hd_link_message type)
{
    uint8_t bytes[SMALL_FRAME];
    struct hd_pack pack;

    if (!rank->greeted || rank->link_fd < 0)
        return;
    hd_pack_begin(&pack, bytes, sizeof bytes);
    (void)hd_frame_send(rank->link_fd, bytes, hd_pack_end(&pack, (uint16_t)type), 0);
}

void sup_lose_daemon(struct sup *sup)
{
    if (sup->daemon_fd >= 0)
        (void)close(sup->daemon_fd);
    sup->daemon_fd = -1;
}

void sup_send_state(struct sup *sup)
{
    uint8_t bytes[SMALL_FRAME];
    struct hd_pack pack;
    enum hd_status st;

    if (sup->daemon_fd < 0)
        return;
    hd_pack_begin(&pack, bytes, sizeof bytes);
    hd_pack_int(&pack, sup->state);
    st = hd_frame_send(sup->daemon_fd, bytes, hd_pack_end(&pack, HD_LINK_MSG_STATUS), 0);
    if (st && st != HD_UNAVAILABLE) /* if heddled's socket is full, a later state will reach it */
        sup_lose_daemon(sup);
}

static const char *first_text(const struct sup *sup)
{
    const char *const texts[] = {sup->stopped, sup->hang, sup->problem, sup->stragglers};

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i][0])
            return texts[i];
    return "";
}

void sup_send_problem(struct sup *sup)
{
    uint8_t bytes[PROBLEM_FRAME];
    struct hd_pack pack;

    if (sup->daemon_fd < 0)
        return;
    hd_pack_begin(&pack, bytes, sizeof bytes);
    hd_pack_text(&pack, first_text(sup));
    if (hd_frame_send(sup->daemon_fd, bytes, hd_pack_end(&pack, HD_LINK_MSG_PROBLEM), 1000))
        sup_lose_daemon(sup); /* sent again when heddled reconnects */
}

static void set_text(struct sup *sup, char kept[HD_LINK_TEXT_MAX], const char *text)
{
    if (strcmp(kept, text) == 0)
        return;
    (void)snprintf(kept, HD_LINK_TEXT_MAX, "%s", text);
    sup_send_problem(sup);
}

void sup_set_problem(struct sup *sup, const char *text)
{
    set_text(sup, sup->problem, text);
}

void sup_set_stopped(struct sup *sup, const char *text)
{
    set_text(sup, sup->stopped, text);
}

void sup_set_hang(struct sup *sup, const char *text)
{
    set_text(sup, sup->hang, text);
}

void sup_set_stragglers(struct sup *sup, const char *text)
{
    set_text(sup, sup->stragglers, text);
}

void sup_report_event(struct sup *sup, struct sup_rank *rank, int64_t about,
                      enum hd_link_level level, const char *text)
{
    struct hd_link_report report = {
        .kind = HD_LINK_EVENT,
        .event = {.level = level, .about = about == rank->rank ? NAN : (double)about}};

    (void)snprintf(report.event.text, sizeof report.event.text, "%s", text);
    hd_log(level == HD_LINK_LEVEL_INFO ? HD_LOG_INFO : HD_LOG_WARN, "%s", text);
    sup_report(sup, rank, &report);
}

/* ---- the rendezvous ---- */

static size_t pack_value(uint8_t *bytes, size_t size_bytes, enum hd_link_message type, int64_t rank,
                         int64_t round, const uint8_t *value, size_t value_bytes)
{
    struct hd_pack pack;

    hd_pack_begin(&pack, bytes, size_bytes);
    hd_pack_int(&pack, rank);
    hd_pack_int(&pack, round);
    hd_pack_bytes(&pack, value, value_bytes);
    return hd_pack_end(&pack, (uint16_t)type);
}

void sup_put_to_daemon(struct sup *sup, const struct sup_rank *rank)
{
    uint8_t bytes[VALUE_FRAME];
    size_t n = pack_value(bytes, sizeof bytes, HD_LINK_MSG_PUT, rank->rank, rank->put_round,
                          rank->value, rank->value_bytes);

    /* the value is sent again when heddled reconnects, until it is answered */
    if (sup->daemon_fd >= 0 && hd_frame_send(sup->daemon_fd, bytes, n, 1000))
        sup_lose_daemon(sup);
}

void sup_value_to_ranks(struct sup *sup, int64_t of_rank, int64_t round, const uint8_t *value,
                        size_t value_bytes)
{
    uint8_t bytes[VALUE_FRAME];
    size_t n =
        pack_value(bytes, sizeof bytes, HD_LINK_MSG_VALUE, of_rank, round, value, value_bytes);

    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].link_fd >= 0 && sup->ranks[i].put_round == round)
            (void)hd_frame_send(sup->ranks[i].link_fd, bytes, n, 1000);
}
