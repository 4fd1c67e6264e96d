/* receive: handles messages from the ranks and from heddled. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/supervisor/supervisor.h"
#include "link/hello.h"

enum { FRAMES_PER_PASS = 1024 };

/* ---- the rendezvous ---- */

/* Takes a rank's value of the rendezvous. If all ranks of the attempt are on this node, this
 * supervisor collects the values of all ranks; else heddled does. */
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
    rank->put_ms = hd_clock_now_ms();
    rank->value_bytes = count;
    if (count)
        memcpy(rank->value, value, count);
    if (sup_spans(sup)) {
        sup_put_to_daemon(sup, rank);
        return;
    }
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].put_round < round)
            return;
    for (int i = 0; i < sup->options.rank_count; i++)
        sup_value_to_ranks(sup, sup->ranks[i].rank, round, sup->ranks[i].value,
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
        sup_value_to_ranks(sup, rank, round, value, count);
}

static void rank_plans(struct sup *sup, struct sup_rank *rank, const struct hd_frame *frame)
{
    struct hd_unpack unpack;
    int64_t bytes;

    hd_unpack_begin(&unpack, frame);
    bytes = hd_unpack_int(&unpack);
    if (hd_unpack_end(&unpack) == HD_OK)
        sup_bounds_planned(sup, rank, bytes);
}

/* ---- heddled ---- */

static void daemon_sent(struct sup *sup, const struct hd_frame *frame)
{
    struct hd_unpack unpack;
    struct hd_hello hello;
    int64_t grace_ms;

    switch ((enum hd_link_message)frame->type) {
    case HD_LINK_MSG_HELLO:
        if (hd_hello_decode(frame, &hello) || hd_hello_check(&hello, "heddled")) {
            hd_log(HD_LOG_WARN, "%s", hd_err_message());
            sup_lose_daemon(sup);
        }
        break;
    case HD_LINK_MSG_STOP:
        hd_unpack_begin(&unpack, frame);
        grace_ms = hd_unpack_int(&unpack);
        if (hd_unpack_end(&unpack) == HD_OK)
            sup_ask_stop(sup, grace_ms);
        break;
    case HD_LINK_MSG_KILL:
        sup->at_once = true;
        sup_blame_for_overdue(sup);
        sup_begin_end(sup, HD_LINK_CAUSE_USER, -1, true,
                      "killed: the controller wants the attempt ended at once");
        break;
    case HD_LINK_MSG_CHECKPOINT:
        for (int i = 0; i < sup->options.rank_count; i++)
            sup_command(&sup->ranks[i], HD_LINK_MSG_CHECKPOINT);
        break;
    case HD_LINK_MSG_VALUE:
        daemon_values(sup, frame);
        break;
    case HD_LINK_MSG_PING:
        sup_send_state(sup);
        break;
    default:
        break; /* an unknown message is ignored: a newer heddled may send it */
    }
}

void sup_receive_from_daemon(struct sup *sup)
{
    for (int n = 0; n < FRAMES_PER_PASS && sup->daemon_fd >= 0; n++) {
        struct hd_frame frame;
        enum hd_status st = hd_frame_receive(sup->daemon_fd, sup->received, 0, &frame);

        if (st == HD_UNAVAILABLE)
            return;
        if (st) {
            hd_log(HD_LOG_INFO, "heddled closed its connection: %s", hd_err_message());
            sup_lose_daemon(sup);
            return;
        }
        daemon_sent(sup, &frame);
    }
}

void sup_accept_daemon(struct sup *sup)
{
    int fd;

    if (hd_frame_accept(sup->listen_fd, sup->options.daemon_uid, &fd))
        return;
    sup_lose_daemon(sup); /* closes heddled's previous connection, which the new one replaces */
    sup->daemon_fd = fd;
    if (hd_hello_send(fd, -1, 0)) {
        sup_lose_daemon(sup);
        return;
    }
    sup_send_state(sup);
    sup_send_problem(sup); /* sends the text about a problem, also "" if the problem is over */
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].put_round >= 0 && sup_spans(sup))
            sup_put_to_daemon(sup, &sup->ranks[i]);
}

/* ---- ranks ---- */

static void note_sign_of_life(struct sup *sup, struct sup_rank *rank)
{
    const int64_t now_ms = hd_clock_now_ms();

    /* learns from a silence only if the rank was not stopped (as in a debugger) */
    if (!rank->stopped_ms)
        sup_limits_learn(&sup->limits, rank->phase, sup_silence_ms(rank, now_ms));
    rank->received_ms = now_ms;
}

static void rank_moves_on(struct sup *sup, struct sup_rank *rank, enum hd_link_phase phase)
{
    rank->phase = phase;
    if (sup->state != HD_ALLOC_STARTING)
        return;
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].phase == HD_LINK_PHASE_SETUP)
            return;
    sup->state = HD_ALLOC_RUNNING;
    hd_log(HD_LOG_INFO, "all ranks of this node run");
    sup_send_state(sup);
}

static void rank_reports(struct sup *sup, struct sup_rank *rank, const struct hd_frame *frame)
{
    struct hd_link_report report;

    if (hd_link_report_decode(frame, &report) || report.kind == HD_LINK_EXIT ||
        report.kind == HD_LINK_END) {
        hd_log(HD_LOG_WARN, "rank %" PRId64 " sent a report that a rank may not send; ignored",
               rank->rank);
        return;
    }
    switch (report.kind) {
    case HD_LINK_PROGRESS:
        rank_moves_on(sup, rank, (enum hd_link_phase)report.progress.phase);
        break;
    case HD_LINK_FAILURE:
        rank->has_failure = true;
        rank->failure = report.failure;
        sup_blame_for_timeout(sup, rank);
        if (rank->failure.status == HD_ABORTED)
            sup_blame_for_overdue(sup);
        break;
    case HD_LINK_PROBLEM:
        sup_set_problem(sup, report.problem.text);
        break;
    case HD_LINK_STRAGGLERS:
        sup_set_stragglers(sup, report.stragglers.text);
        break;
    case HD_LINK_STEP:
        /* after a checkpoint or a validation, a step shows that training continues */
        rank_moves_on(sup, rank, HD_LINK_PHASE_TRAINING);
        if (rank->rank == 0)
            sup_report(sup, rank, &report);
        break;
    case HD_LINK_VALIDATION:
    case HD_LINK_GAP:
        /* the report is equal on all ranks, so only that of rank 0 is stored */
        if (rank->rank == 0)
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

    /* a failure is ignored: if the rank is gone, its exit is handled */
    (void)hd_hello_send(rank->link_fd, -1, 0);
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

void sup_receive_from_rank(struct sup *sup, struct sup_rank *rank)
{
    for (int n = 0; n < FRAMES_PER_PASS && rank->link_fd >= 0; n++) {
        struct hd_frame frame;
        enum hd_status st = hd_frame_receive(rank->link_fd, sup->received, 0, &frame);

        if (st == HD_UNAVAILABLE)
            return;
        /* on a broken link the rank's exit follows; if not, its silence is noticed (silence.c) */
        if (st) {
            (void)close(rank->link_fd);
            rank->link_fd = -1;
            return;
        }
        note_sign_of_life(sup, rank);
        if (frame.type == HD_LINK_MSG_HELLO)
            rank_greets(sup, rank, &frame);
        else if (!rank->greeted)
            hd_log(HD_LOG_WARN, "rank %" PRId64 " sent a message before its hello; ignored",
                   rank->rank);
        else if (frame.type == HD_LINK_MSG_REPORT)
            rank_reports(sup, rank, &frame);
        else if (frame.type == HD_LINK_MSG_PUT)
            rank_puts(sup, rank, &frame);
        else if (frame.type == HD_LINK_MSG_PLANNED)
            rank_plans(sup, rank, &frame);
    }
}
