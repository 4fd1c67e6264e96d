/* link: a rank's end of the local socket to its supervisor.
 *
 * The supervisor starts each rank with one end of a SOCK_SEQPACKET pair. Upwards go reports
 * (report.h), downwards commands and the values of the rendezvous. The calls allocate nothing and,
 * but for hd_link_worker_open and hd_link_rendezvous, do not wait: a step report that finds the
 * supervisor far behind is counted and left out (the next one carries the count). Only what must
 * not be lost (validation, checkpoint, failure) waits for room, at most 10 s.
 *
 * A broken link never stops a rank by itself: the calls become no-ops and hd_link_poll says "none".
 * A rank whose supervisor died must die with it, since nobody would record its exit; that is the
 * kernel's business: the supervisor sets PR_SET_PDEATHSIG to SIGKILL in each rank before exec.
 *
 * Used by: worker.   Uses: base, report, frame; libc alone.
 * Threads: hd_link_report_* from any thread; open, poll, rendezvous, close from one at a time.
 */
#ifndef HD_LINK_LINK_H
#define HD_LINK_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "link/report.h"

/* 2: step reports with what routers did. 3: PING. */
enum { HD_LINK_PROTOCOL_MIN = 2, HD_LINK_PROTOCOL_MAX = 3, HD_LINK_PROTOCOL_PING = 3 };

/* Message types on the links; reports are one of them. Numbers are never used again. */
enum hd_link_message {
    HD_LINK_MSG_HELLO = 1,      /* both ways, first: protocol min, max, build, rank */
    HD_LINK_MSG_REPORT = 2,     /* up: report.h */
    HD_LINK_MSG_PUT = 3,        /* up: rank, round, value: its share of a rendezvous */
    HD_LINK_MSG_VALUE = 4,      /* down: rank, round, value; for every rank, any order */
    HD_LINK_MSG_STOP = 5,       /* down: checkpoint, then end; heddled: grace_ms */
    HD_LINK_MSG_CHECKPOINT = 6, /* down: checkpoint now and go on */
    HD_LINK_MSG_KILL = 7,       /* heddled to supervisor: end now */
    HD_LINK_MSG_STATUS = 8,     /* supervisor to heddled: state; and: the spool may have grown */
    HD_LINK_MSG_PING = 9,       /* heddled to supervisor: answered with STATUS */
};

enum hd_link_command {
    HD_LINK_COMMAND_NONE,
    HD_LINK_COMMAND_STOP,       /* checkpoint, then end; told once */
    HD_LINK_COMMAND_CHECKPOINT, /* checkpoint now and go on */
};

/* How a rank's process ends; any other status, or a signal, is a failure as well. */
enum hd_link_exit_status {
    HD_LINK_EXIT_COMPLETED = 0, /* all steps are done */
    HD_LINK_EXIT_FAILED = 1,    /* trying again may help */
    HD_LINK_EXIT_BAD_INPUT = 2, /* trying again is useless */
    HD_LINK_EXIT_BAD_BASE = 3,  /* the checkpoint it was to start from is damaged or gone */
    HD_LINK_EXIT_DIVERGED = 4,  /* losses or gradients are no longer finite; retrying is useless */
    HD_LINK_EXIT_STOPPED = 10,  /* told to stop, checkpoint written, steps left */
};

struct hd_link;

/* Takes over fd (also on failure: then it is closed), tells version and build and waits for the
 * supervisor's answer, at most 30 s. HD_UNSUPPORTED names both versions when they do not meet. */
enum hd_status hd_link_worker_open(int fd, int64_t rank, int64_t world, struct hd_link **ret_link);
void hd_link_close(struct hd_link *link);

/* Steps and validations are about all ranks: rank 0's are kept, of the others they are a sign of
 * life.
 */
void hd_link_report_step(struct hd_link *link, const struct hd_link_step *step);
void hd_link_report_validation(struct hd_link *link, int64_t step, double loss, int64_t tokens);
void hd_link_report_checkpoint(struct hd_link *link, int64_t step, const char *path,
                               const char *manifest_hash, int64_t bytes);
void hd_link_report_event(struct hd_link *link, enum hd_link_level level, const char *text);

/* Tells what the rank is doing now; also the sign of life. Report at each change of phase and,
 * while a phase lasts, whenever something moved (a step report counts as one). */
void hd_link_report_phase(struct hd_link *link, enum hd_link_phase phase, int64_t step);

/* The last word of a rank that cannot go on. first_rank: who failed first as far as this rank knows
 * (from the comm abort reason), or this rank; the supervisor names it in the attempt's end. */
void hd_link_report_failure(struct hd_link *link, enum hd_status st, int64_t first_rank,
                            const char *operation, const char *message);

/* The next command, or none; never waits. A stop is kept before everything else. */
enum hd_link_command hd_link_poll(struct hd_link *link);

bool hd_link_broken(const struct hd_link *link);

/* What all ranks put, by rank. */
struct hd_link_values {
    int64_t world;
    size_t *size_bytes;                  /* [world] */
    uint8_t (*value)[HD_LINK_VALUE_MAX]; /* [world] */
};

/* Puts this rank's value (at most HD_LINK_VALUE_MAX bytes) and waits until every rank's value is
 * here. The n-th call of each rank meets the n-th calls of the others. HD_TIMEOUT names the ranks
 * that are missing; HD_ABORTED: told to stop, or the link broke. Free the values after use. */
enum hd_status hd_link_rendezvous(struct hd_link *link, const void *value, size_t value_bytes,
                                  int timeout_ms, struct hd_link_values *ret_values);
void hd_link_values_free(struct hd_link_values *values);

#endif
