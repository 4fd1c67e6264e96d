/* What the supervisor hears from its ranks and from heddled, and what it tells them. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/supervisor/supervisor.h"
#include "link/hello.h"

enum { FRAMES_A_TURN = 1024, SMALL_FRAME = 256, VALUE_FRAME = HD_LINK_VALUE_MAX + 64 };

/* ---- the spool ---- */

static bool must_be_durable(enum hd_link_kind kind)
{
    return kind == HD_LINK_CHECKPOINT || kind == HD_LINK_EXIT || kind == HD_LINK_VALIDATION;
}

/* Keeps what the disk refused. The last place is for exits: nothing else may take it. */
static void hold(struct sup *sup, const struct hd_link_report *report, bool durable)
{
    const int room =
        report->kind == HD_LINK_EXIT ? HD_SUP_HELD_MAX : HD_SUP_HELD_MAX - HD_ATTEMPT_RANKS_MAX / 2;

    if (sup->held_count >= room) {
        hd_log(HD_LOG_ERROR, "a %s report of rank %" PRId64 " is lost: the spool does not take it",
               hd_link_kind_name(report->kind), report->rank);
        return;
    }
    sup->held[sup->held_count] = *report;
    sup->held_durable[sup->held_count++] = durable;
}

/* Reports that were held go first: the spool is in order of seq. */
void sup_retry_held(struct sup *sup)
{
    int done = 0;

    while (done < sup->held_count &&
           hd_spool_append(sup->spool, &sup->held[done], sup->held_durable[done]) == HD_OK)
        done++;
    sup->held_count -= done;
    memmove(sup->held, sup->held + done, (size_t)sup->held_count * sizeof sup->held[0]);
    memmove(sup->held_durable, sup->held_durable + done,
            (size_t)sup->held_count * sizeof sup->held_durable[0]);
    if (done)
        sup_tell_state(sup);
}

static void stamp_and_spool(struct sup *sup, struct sup_rank *rank, struct hd_link_report *report)
{
    const bool durable = must_be_durable(report->kind);

    report->job = sup->job.job_id;
    report->attempt = sup->job.attempt;
    report->rank = rank->rank;
    report->seq = ++rank->seq;
    if (!report->wall_ms)
        report->wall_ms = hd_clock_wall_ms();
    if (sup->held_count || hd_spool_append(sup->spool, report, durable) != HD_OK) {
        if (!sup->held_count)
            hd_log(HD_LOG_ERROR, "%s; will try again", hd_err_message());
        hold(sup, report, durable);
    }
}

static void leave_out(struct sup_rank *rank, int64_t count, int64_t first, int64_t last)
{
    if (!rank->gap_count || (first >= 0 && first < rank->gap_first))
        rank->gap_first = first;
    if (last > rank->gap_last)
        rank->gap_last = last;
    rank->gap_count += count;
}

static void tell_gap(struct sup *sup, struct sup_rank *rank)
{
    struct hd_link_report gap = {.kind = HD_LINK_GAP,
                                 .gap = {rank->gap_count, rank->gap_first, rank->gap_last}};

    if (!rank->gap_count)
        return;
    rank->gap_count = rank->gap_last = 0;
    stamp_and_spool(sup, rank, &gap);
}

void sup_report(struct sup *sup, struct sup_rank *rank, struct hd_link_report *report)
{
    if (report->kind == HD_LINK_GAP) {
        leave_out(rank, report->gap.count, report->gap.first_step, report->gap.last_step);
        return;
    }
    if (report->kind == HD_LINK_STEP && (sup->held_count || hd_spool_is_full(sup->spool))) {
        leave_out(rank, 1, report->step.step, report->step.step);
        return;
    }
    tell_gap(sup, rank);
    stamp_and_spool(sup, rank, report);
    sup_tell_state(sup);
}

/* ---- heddled ---- */

void sup_command(const struct sup_rank *rank, enum hd_link_message type)
{
    uint8_t bytes[SMALL_FRAME];
    struct hd_pack pack;

    if (!rank->greeted || rank->link_fd < 0)
        return;
    hd_pack_begin(&pack, bytes, sizeof bytes);
    (void)hd_frame_send(rank->link_fd, bytes, hd_pack_end(&pack, (uint16_t)type), 0);
}

static void lose_daemon(struct sup *sup)
{
    if (sup->daemon_fd >= 0)
        (void)close(sup->daemon_fd);
    sup->daemon_fd = -1;
}

void sup_tell_state(struct sup *sup)
{
    uint8_t bytes[SMALL_FRAME];
    struct hd_pack pack;
    enum hd_status st;

    if (sup->daemon_fd < 0)
        return;
    hd_pack_begin(&pack, bytes, sizeof bytes);
    hd_pack_int(&pack, sup->state);
    st = hd_frame_send(sup->daemon_fd, bytes, hd_pack_end(&pack, HD_LINK_MSG_STATUS), 0);
    if (st && st != HD_UNAVAILABLE) /* when it is behind, a later state will reach it */
        lose_daemon(sup);
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

static void put_to_daemon(struct sup *sup, const struct sup_rank *rank)
{
    uint8_t bytes[VALUE_FRAME];
    size_t n = pack_value(bytes, sizeof bytes, HD_LINK_MSG_PUT, rank->rank, rank->put_round,
                          rank->value, rank->value_bytes);

    /* without an answer it is put again when heddled is back */
    if (sup->daemon_fd >= 0 && hd_frame_send(sup->daemon_fd, bytes, n, 1000))
        lose_daemon(sup);
}

static void value_to_ranks(struct sup *sup, int64_t of_rank, int64_t round, const uint8_t *value,
                           size_t value_bytes)
{
    uint8_t bytes[VALUE_FRAME];
    size_t n =
        pack_value(bytes, sizeof bytes, HD_LINK_MSG_VALUE, of_rank, round, value, value_bytes);

    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].link_fd >= 0 && sup->ranks[i].put_round == round)
            (void)hd_frame_send(sup->ranks[i].link_fd, bytes, n, 1000);
}

/* With all ranks of the attempt on this node, the set is complete here; else heddled collects it.
 */
static void rank_puts(struct sup *sup, struct sup_rank *rank, const struct hd_frame *frame)
{
    struct hd_unpack unpack;
    const uint8_t *value;
    int64_t round, who;
    size_t count;

    hd_unpack_begin(&unpack, frame);
    who = hd_unpack_int(&unpack);
    round = hd_unpack_int(&unpack);
    value = hd_unpack_bytes(&unpack, HD_LINK_VALUE_MAX, &count);
    if (hd_unpack_end(&unpack) || who != rank->rank || round != rank->put_round + 1)
        return;
    rank->put_round = round;
    rank->value_bytes = count;
    if (count)
        memcpy(rank->value, value, count);
    if (sup_spans(sup)) {
        put_to_daemon(sup, rank);
        return;
    }
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].put_round < round)
            return;
    for (int i = 0; i < sup->options.rank_count; i++)
        value_to_ranks(sup, sup->ranks[i].rank, round, sup->ranks[i].value,
                       sup->ranks[i].value_bytes);
}

static void daemon_values(struct sup *sup, const struct hd_frame *frame)
{
    struct hd_unpack unpack;
    const uint8_t *value;
    int64_t rank, round;
    size_t count;

    hd_unpack_begin(&unpack, frame);
    rank = hd_unpack_int(&unpack);
    round = hd_unpack_int(&unpack);
    value = hd_unpack_bytes(&unpack, HD_LINK_VALUE_MAX, &count);
    if (hd_unpack_end(&unpack) == HD_OK)
        value_to_ranks(sup, rank, round, value, count);
}

static void daemon_said(struct sup *sup, const struct hd_frame *frame)
{
    struct hd_unpack unpack;
    struct hd_hello hello;
    int64_t grace_ms;

    switch ((enum hd_link_message)frame->type) {
    case HD_LINK_MSG_HELLO:
        if (hd_hello_decode(frame, &hello) || hd_hello_check(&hello, "heddled")) {
            hd_log(HD_LOG_WARN, "%s", hd_err_message());
            lose_daemon(sup);
        }
        break;
    case HD_LINK_MSG_STOP:
        hd_unpack_begin(&unpack, frame);
        grace_ms = hd_unpack_int(&unpack);
        if (hd_unpack_end(&unpack) == HD_OK)
            sup_ask_stop(sup, grace_ms);
        break;
    case HD_LINK_MSG_KILL:
        sup_begin_end(sup, HD_LINK_CAUSE_USER, -1, true, "ended at once, as told");
        break;
    case HD_LINK_MSG_CHECKPOINT:
        for (int i = 0; i < sup->options.rank_count; i++)
            sup_command(&sup->ranks[i], HD_LINK_MSG_CHECKPOINT);
        break;
    case HD_LINK_MSG_VALUE:
        daemon_values(sup, frame);
        break;
    default:
        break; /* a newer heddled may say more */
    }
}

void sup_hear_daemon(struct sup *sup)
{
    for (int n = 0; n < FRAMES_A_TURN && sup->daemon_fd >= 0; n++) {
        struct hd_frame frame;
        enum hd_status st = hd_frame_receive(sup->daemon_fd, sup->received, 0, &frame);

        if (st == HD_UNAVAILABLE)
            return;
        if (st) {
            hd_log(HD_LOG_INFO, "heddled left: %s", hd_err_message());
            lose_daemon(sup);
            return;
        }
        daemon_said(sup, &frame);
    }
}

void sup_accept_daemon(struct sup *sup)
{
    int fd;

    if (hd_frame_accept(sup->listen_fd, &fd))
        return;
    lose_daemon(sup); /* the newer one stands for the node */
    sup->daemon_fd = fd;
    if (hd_hello_send(fd, -1, 0)) {
        lose_daemon(sup);
        return;
    }
    sup_tell_state(sup);
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].put_round >= 0 && sup_spans(sup))
            put_to_daemon(sup, &sup->ranks[i]);
}

/* ---- ranks ---- */

static void note_sign_of_life(struct sup_rank *rank)
{
    const int64_t now_ms = hd_clock_now_ms();
    const int64_t silence_ms = now_ms - rank->heard_ms;

    if (rank->phase == HD_LINK_PHASE_TRAINING) {
        rank->heard_count++;
        if (silence_ms > rank->longest_silence_ms)
            rank->longest_silence_ms = silence_ms;
    }
    rank->heard_ms = now_ms;
}

static void rank_moves_on(struct sup *sup, struct sup_rank *rank, enum hd_link_phase phase)
{
    rank->phase = phase;
    if (sup->state != HD_ATTEMPT_STARTING)
        return;
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].phase == HD_LINK_PHASE_SETUP)
            return;
    sup->state = HD_ATTEMPT_RUNNING;
    hd_log(HD_LOG_INFO, "every rank here runs");
    sup_tell_state(sup);
}

static void rank_reports(struct sup *sup, struct sup_rank *rank, const struct hd_frame *frame)
{
    struct hd_link_report report;

    if (hd_link_report_decode(frame, &report) || report.kind == HD_LINK_EXIT ||
        report.kind == HD_LINK_END) {
        hd_log(HD_LOG_WARN, "rank %" PRId64 " sent what is not a rank's report", rank->rank);
        return;
    }
    switch (report.kind) {
    case HD_LINK_PROGRESS:
        rank_moves_on(sup, rank, (enum hd_link_phase)report.progress.phase);
        break;
    case HD_LINK_FAILURE:
        rank->has_failure = true;
        rank->failure = report.failure;
        break;
    case HD_LINK_STEP:
        /* after a checkpoint or a validation it is the word that training goes on */
        rank_moves_on(sup, rank, HD_LINK_PHASE_TRAINING);
        if (rank->rank == 0)
            sup_report(sup, rank, &report);
        break;
    case HD_LINK_VALIDATION:
    case HD_LINK_GAP:
        if (rank->rank == 0) /* they are about all ranks: one says them for all */
            sup_report(sup, rank, &report);
        break;
    default:
        sup_report(sup, rank, &report);
        break;
    }
}

static void rank_greets(struct sup *sup, struct sup_rank *rank, const struct hd_frame *frame)
{
    struct hd_hello hello;
    enum hd_status st = hd_hello_decode(frame, &hello);

    (void)hd_hello_send(rank->link_fd, -1, 0); /* if it is gone, its exit will tell */
    if (!st)
        st = hd_hello_check(&hello, "heddle-worker");
    if (st) {
        sup_begin_end(sup, HD_LINK_CAUSE_LAUNCH_FAILED, rank->rank, false, "%s", hd_err_message());
        return;
    }
    rank->greeted = true;
    if (sup->stop_asked)
        sup_command(rank, HD_LINK_MSG_STOP);
}

void sup_hear_rank(struct sup *sup, struct sup_rank *rank)
{
    for (int n = 0; n < FRAMES_A_TURN && rank->link_fd >= 0; n++) {
        struct hd_frame frame;
        enum hd_status st = hd_frame_receive(rank->link_fd, sup->received, 0, &frame);

        if (st == HD_UNAVAILABLE)
            return;
        if (st) { /* its exit follows, or it works on without a word */
            (void)close(rank->link_fd);
            rank->link_fd = -1;
            return;
        }
        note_sign_of_life(rank);
        if (frame.type == HD_LINK_MSG_HELLO)
            rank_greets(sup, rank, &frame);
        else if (!rank->greeted)
            hd_log(HD_LOG_WARN, "rank %" PRId64 " talks before its hello", rank->rank);
        else if (frame.type == HD_LINK_MSG_REPORT)
            rank_reports(sup, rank, &frame);
        else if (frame.type == HD_LINK_MSG_PUT)
            rank_puts(sup, rank, &frame);
    }
}
