/* link: a rank's end of the local socket to its supervisor.
 *
 * The supervisor starts each rank with one end of a SOCK_SEQPACKET pair. The rank sends reports
 * (report.h) and receives commands and the values of the rendezvous. hd_link_worker_open and
 * hd_link_rendezvous allocate and wait; the other calls do not allocate. Reports that must not be
 * lost (validation, checkpoint, failure) wait for a full socket buffer, at most 10 s. Other reports
 * never wait: they are dropped, and dropped step reports are counted in a GAP report. The newest
 * step is never lost: if it was dropped, it is sent before the next report that must not be lost.
 *
 * A broken link does not stop a rank: the calls become no-ops and hd_link_poll returns NONE. A rank
 * must not outlive its supervisor, which records its exit; therefore the supervisor sets
 * PR_SET_PDEATHSIG to SIGKILL in each rank before exec.
 *
 * Used by: worker.   Uses: base, report, frame, libc.
 * Threads: hd_link_report_event, _problem and _phase from any thread; the rest from one at a time.
 */
#ifndef HD_LINK_LINK_H
#define HD_LINK_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "link/report.h"

/* Protocol versions. Version 2: step reports contain the loads of experts. Version 3: PING. Version
 * 4: step reports name their metrics, so that new metrics need no new version. heddled reads
 * reports of versions 3 and 4; a rank writes version 4, and so needs a supervisor that knows it. */
enum {
    HD_LINK_PROTOCOL_MIN = 2,
    HD_LINK_PROTOCOL_MAX = 4,
    HD_LINK_PROTOCOL_PING = 3,
    HD_LINK_PROTOCOL_METRICS = 4,
};

/* Message types on the links. Numbers are never reused. up: rank to supervisor; down: supervisor to
 * rank. */
enum hd_link_message {
    /* both ways, the first message: oldest and newest protocol version, build, rank */
    HD_LINK_MSG_HELLO = 1,
    HD_LINK_MSG_REPORT = 2, /* up: one report (report.h) */
    /* up: rank, round, value: the value that this rank gives to a rendezvous */
    HD_LINK_MSG_PUT = 3,
    /* down: rank, round, value: the value that one rank gave to a rendezvous; one message per rank,
     * in any order */
    HD_LINK_MSG_VALUE = 4,
    HD_LINK_MSG_STOP = 5,       /* down: write a checkpoint and exit; from heddled with grace_ms */
    HD_LINK_MSG_CHECKPOINT = 6, /* down: write a checkpoint and continue */
    HD_LINK_MSG_KILL = 7,       /* heddled to supervisor: end the ranks now */
    HD_LINK_MSG_STATUS = 8,     /* supervisor to heddled: state; the spool may have grown */
    HD_LINK_MSG_PING = 9,       /* heddled to supervisor: the supervisor answers with STATUS */
    /* supervisor to heddled: what this node's ranks wait for; "": nothing */
    HD_LINK_MSG_PROBLEM = 10,
    HD_LINK_MSG_PLANNED = 11, /* up: bytes of host memory in the rank's plan */
};

enum hd_link_command {
    HD_LINK_COMMAND_NONE,
    HD_LINK_COMMAND_STOP,       /* write a checkpoint and exit; hd_link_poll returns it once */
    HD_LINK_COMMAND_CHECKPOINT, /* write a checkpoint and continue */
};

/* Exit statuses of a rank's process; any other status, or a signal, is a failure, too. */
enum hd_link_exit_status {
    HD_LINK_EXIT_COMPLETED = 0, /* the rank has done all steps */
    HD_LINK_EXIT_FAILED = 1,    /* the rank failed; a retry may succeed */
    HD_LINK_EXIT_BAD_INPUT = 2, /* the failure is in the input; a retry would fail again */
    HD_LINK_EXIT_BAD_BASE =
        /* the checkpoint to start from is damaged; in builds before NO_BASE existed also: it is
         * missing */
    3,
    HD_LINK_EXIT_DIVERGED = 4, /* losses or gradients are not finite; a retry would fail again */
    HD_LINK_EXIT_STORAGE =
        /* a file could not be written; a retry may succeed, and is not counted as one */
    5,
    HD_LINK_EXIT_NO_BASE = 6, /* the checkpoint to start from is not on the disk */
    /* stopped by command with steps left, after a checkpoint; or without one, because none could be
     * written (newest PROBLEM) */
    HD_LINK_EXIT_STOPPED = 10,
    /* completed before the last step, as validate.stop says; the rank's FAILURE report, of status
     * HD_OK, has the reason */
    HD_LINK_EXIT_EARLY = 11,
};

struct hd_link;

/* Opens a rank's end of the link. Takes ownership of fd (on failure it is closed). Sends a hello
 * and waits for the supervisor's, at most 30 s. HD_UNSUPPORTED: no common protocol version; the
 * message names both sides. */
enum hd_status hd_link_worker_open(int fd, int64_t rank, int64_t world, struct hd_link **ret_link);
void hd_link_close(struct hd_link *link);

/* Send a report about a step, a validation, a checkpoint or an event. Step and validation reports
 * are equal on all ranks, so the supervisor stores only rank 0's. */
void hd_link_report_step(struct hd_link *link, const struct hd_link_step *step);
void hd_link_report_validation(struct hd_link *link, int64_t step, double loss, int64_t tokens,
                               const char *set);
void hd_link_report_checkpoint(struct hd_link *link, int64_t step, const char *path,
                               const char *manifest_hash, int64_t bytes, double val_loss);
void hd_link_report_event(struct hd_link *link, enum hd_link_level level, const char *text);

/* Reports an event about rank `about`, which may be another one; NaN: about the sender. */
void hd_link_report_event_about(struct hd_link *link, enum hd_link_level level, double about,
                                const char *text);

/* Reports the ranks that are slower than their peers, as a text for users; "": none any more. Sent
 * by rank 0. */
void hd_link_report_stragglers(struct hd_link *link, const char *text);

/* Reports what the ranks wait for, or failed to do and will retry, as a text for users; "": the
 * problem is over. A new text replaces the last one. Sent by rank 0. */
void hd_link_report_problem(struct hd_link *link, const char *text);

/* Reports the phase of the rank, which also shows that it is alive. Call it at each change of phase
 * and, during a phase, whenever the rank made progress (a step report counts, too). */
void hd_link_report_phase(struct hd_link *link, enum hd_link_phase phase, int64_t step);
/* Reports the phase of the last hd_link_report_phase again, to show that the rank is alive. */
void hd_link_report_alive(struct hd_link *link);

/* Reports the host memory in this rank's plan, before the rank reserves it: the supervisor limits
 * the memory of all ranks by it. The first report counts. */
void hd_link_report_planned(struct hd_link *link, int64_t bytes);

/* Reports why this rank fails, before it exits. first_rank: the rank that failed first as far as
 * this rank knows (from the comm failure), else this rank; the supervisor copies it into the END
 * report. */
void hd_link_report_failure(struct hd_link *link, enum hd_status st, int64_t first_rank,
                            const char *operation, const char *message);

/* Returns the next command received from the supervisor, or NONE; never waits. STOP is returned
 * first and cancels a pending CHECKPOINT. */
enum hd_link_command hd_link_poll(struct hd_link *link);

bool hd_link_broken(const struct hd_link *link);

/* Values that all ranks gave to a rendezvous, indexed by rank. */
struct hd_link_values {
    int64_t world;
    size_t *size_bytes;                  /* [world], one per rank */
    uint8_t (*value)[HD_LINK_VALUE_MAX]; /* [world], one per rank */
};

/* Gathers a value of every rank through the supervisor: sends this rank's value (at most
 * HD_LINK_VALUE_MAX bytes) and waits for all values. The n-th calls of all ranks belong together.
 * HD_TIMEOUT names the missing ranks. HD_ABORTED: a stop command, or the link broke. The caller
 * frees the values. */
enum hd_status hd_link_rendezvous(struct hd_link *link, const void *value, size_t value_bytes,
                                  int timeout_ms, struct hd_link_values *ret_values);
void hd_link_values_free(struct hd_link_values *values);

#endif
