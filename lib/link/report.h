/* report: the reports of an attempt, from a rank to the controller.
 *
 * A rank sends a report over its link. The supervisor stamps it with (job, attempt, rank, seq) and
 * appends it to the spool, a file in the attempt's directory. heddled reads the spool and sends its
 * reports until the controller has acknowledged them. The supervisor itself makes EXIT and END, and
 * does not spool PROGRESS, FAILURE, PROBLEM and STRAGGLERS. One list of fields per kind generates
 * the struct and its packing and unpacking.
 *
 * Used by: worker (through link.h), supervisor, heddled.   Uses: base, frame.   Threads: any.
 */
#ifndef HD_LINK_REPORT_H
#define HD_LINK_REPORT_H

#include <stdint.h>

#include "base/status.h"
#include "job/job.h"
#include "job/metrics.h"
#include "link/frame.h"

enum {
    HD_LINK_WORD_MAX = 96,    /* bytes of an operation or a hash, with NUL */
    HD_LINK_TEXT_MAX = 1024,  /* bytes of a message, with NUL */
    HD_LINK_VALUE_MAX = 4096, /* bytes of one rank's value in a rendezvous */
    HD_LINK_RANKS_MAX = 4096, /* maximum number of ranks of an attempt */
    HD_LINK_LOADS_MAX = 4096, /* maximum number of experts of a transformer block */
};

/* Phases of a rank. Their names are API: they do not change. */
#define HD_LINK_PHASES(X)             \
    X(SETUP, "setup")                 \
    X(TRAINING, "training")           \
    X(VALIDATING, "validating")       \
    X(CHECKPOINTING, "checkpointing") \
    X(ENDING, "ending")

/* Levels of an event; HANG, STRAGGLER, GUARD and SAMPLE are also kinds of events. A build that does
 * not know a level shows the event as a note. */
#define HD_LINK_LEVELS(X)     \
    X(INFO, "info")           \
    X(WARN, "warn")           \
    X(ERROR, "error")         \
    X(HANG, "hang")           \
    X(STRAGGLER, "straggler") \
    X(GUARD, "guard")         \
    X(SAMPLE, "sample")

/* Causes of an attempt's end. */
#define HD_LINK_CAUSES(X)             \
    X(COMPLETED, "completed")         \
    X(RANK_EXIT, "rank_exit")         \
    X(NODE_LOST, "node_lost")         \
    X(HANG, "hang")                   \
    X(USER, "user")                   \
    X(LAUNCH_FAILED, "launch_failed") \
    X(DIVERGED, "diverged")           \
    X(STORAGE, "storage")             \
    X(OOM, "oom")

enum hd_link_phase {
#define X(code, name) HD_LINK_PHASE_##code,
    HD_LINK_PHASES(X)
#undef X
        HD_LINK_PHASE_COUNT
};

enum hd_link_level {
#define X(code, name) HD_LINK_LEVEL_##code,
    HD_LINK_LEVELS(X)
#undef X
        HD_LINK_LEVEL_COUNT
};

enum hd_link_cause {
#define X(code, name) HD_LINK_CAUSE_##code,
    HD_LINK_CAUSES(X)
#undef X
        HD_LINK_CAUSE_COUNT
};

const char *hd_link_phase_name(enum hd_link_phase phase);
const char *hd_link_level_name(enum hd_link_level level);
const char *hd_link_cause_name(enum hd_link_cause cause);

/* Fields of each kind. INT: int64_t; REAL: double; LATER: a double that older builds do not know,
 * always the last field, omitted if it is NaN; LATER_WORD: likewise a WORD, omitted if it is empty;
 * WORD, TEXT, PATH: char[] of that kind's size;
 * METRICS: struct hd_step_metrics; LOADS: int64_t[] and its count. */
#define HD_LINK_STEP_FIELDS(X) \
    X(INT, step)               \
    X(METRICS, metrics)        \
    X(LOADS, expert_load) /* tokens that chose each expert; count 0: no experts */
#define HD_LINK_VALIDATION_FIELDS(X) \
    X(INT, step)                     \
    X(REAL, loss)                    \
    X(INT, tokens)                   \
    X(LATER_WORD, set) /* name of the validation set; "": data.val is one list */
#define HD_LINK_CHECKPOINT_FIELDS(X)                                            \
    X(INT, step)                                                                \
    X(PATH, path)          /* directory of the saved checkpoint */              \
    X(WORD, manifest_hash) /* hash of the checkpoint's manifest, hexadecimal */ \
    X(INT, bytes)                                                               \
    X(LATER, val_loss) /* checkpoint.best: loss of the saved weights, if just validated; else NaN */
#define HD_LINK_EVENT_FIELDS(X) \
    X(INT, level)               \
    X(TEXT, text)               \
    X(LATER, about) /* the rank that the event is about; NaN: the sender */
#define HD_LINK_PROGRESS_FIELDS(X) X(INT, phase) X(INT, step)
#define HD_LINK_FAILURE_FIELDS(X)                                                  \
    X(INT, status)     /* enum hd_status */                                        \
    X(INT, first_rank) /* the rank that failed first, as far as this rank knows */ \
    X(WORD, operation)                                                             \
    X(TEXT, message)
#define HD_LINK_EXIT_FIELDS(X)                                           \
    X(INT, code)   /* exit status of the rank; 0 if a signal ended it */ \
    X(INT, signal) /* signal that ended the rank, or 0 */                \
    X(WORD, operation)                                                   \
    X(TEXT, message) /* message of the rank's FAILURE report, or "" */
#define HD_LINK_END_FIELDS(X)                                                    \
    X(INT, cause)      /* enum hd_link_cause */                                  \
    X(INT, first_rank) /* the rank of this node that failed first; -1: none */   \
    X(INT, code)                                                                 \
    X(INT, signal)                                                               \
    X(INT, bad_input) /* 1: a retry would fail again */                          \
    X(INT, secondary) /* 1: ranks failed here only because another node's did */ \
    X(WORD, operation)                                                           \
    X(TEXT, message)
/* Text about what the ranks wait for, or failed to do and will retry; "": the problem is over. */
#define HD_LINK_PROBLEM_FIELDS(X) X(TEXT, text)
/* Text about ranks that are slower than their peers; "": none. */
#define HD_LINK_STRAGGLERS_FIELDS(X) X(TEXT, text)
#define HD_LINK_GAP_FIELDS(X)                                \
    X(INT, count)      /* step reports dropped here */       \
    X(INT, first_step) /* first dropped step; -1: unknown */ \
    X(INT, last_step)

/* kind, member, stable name, fields */
#define HD_LINK_REPORTS(R)                                             \
    R(STEP, step, "step", HD_LINK_STEP_FIELDS)                         \
    R(VALIDATION, validation, "validation", HD_LINK_VALIDATION_FIELDS) \
    R(CHECKPOINT, checkpoint, "checkpoint", HD_LINK_CHECKPOINT_FIELDS) \
    R(EVENT, event, "event", HD_LINK_EVENT_FIELDS)                     \
    R(PROGRESS, progress, "progress", HD_LINK_PROGRESS_FIELDS)         \
    R(FAILURE, failure, "failure", HD_LINK_FAILURE_FIELDS)             \
    R(EXIT, exit, "exit", HD_LINK_EXIT_FIELDS)                         \
    R(END, end, "end", HD_LINK_END_FIELDS)                             \
    R(GAP, gap, "gap", HD_LINK_GAP_FIELDS)                             \
    R(PROBLEM, problem, "problem", HD_LINK_PROBLEM_FIELDS)             \
    R(STRAGGLERS, stragglers, "stragglers", HD_LINK_STRAGGLERS_FIELDS)

enum hd_link_kind {
    HD_LINK_NONE,
#define R(kind, member, name, fields) HD_LINK_##kind,
    HD_LINK_REPORTS(R)
#undef R
        HD_LINK_KIND_COUNT
};

#define HD_LINK_MEMBER_INT(name)        int64_t name;
#define HD_LINK_MEMBER_REAL(name)       double name;
#define HD_LINK_MEMBER_LATER(name)      double name;
#define HD_LINK_MEMBER_LATER_WORD(name) char name[HD_LINK_WORD_MAX];
#define HD_LINK_MEMBER_WORD(name)       char name[HD_LINK_WORD_MAX];
#define HD_LINK_MEMBER_TEXT(name)       char name[HD_LINK_TEXT_MAX];
#define HD_LINK_MEMBER_PATH(name)       char name[HD_JOB_PATH_MAX];
#define HD_LINK_MEMBER_METRICS(name)    struct hd_step_metrics name;
#define HD_LINK_MEMBER_LOADS(name) \
    int64_t name##_count;          \
    int64_t name[HD_LINK_LOADS_MAX];
#define X(kind, name) HD_LINK_MEMBER_##kind(name)
#define R(kind, member, name, fields) \
    struct hd_link_##member {         \
        fields(X)                     \
    };
HD_LINK_REPORTS(R)
#undef R
#undef X

struct hd_link_report {
    enum hd_link_kind kind;
    int64_t job, attempt, rank; /* sender; rank -1: the supervisor, about its node */
    int64_t seq;                /* 1, 2, .. within (attempt, rank); 0: not stamped yet */
    int64_t wall_ms;            /* time of the report: hd_clock_wall_ms of the sender */
    union {
#define R(kind, member, name, fields) struct hd_link_##member member;
        HD_LINK_REPORTS(R)
#undef R
    };
};

const char *hd_link_kind_name(enum hd_link_kind kind);

/* Encodes the report as one frame of type HD_LINK_MSG_REPORT; returns its bytes. HD_FRAME_BYTES_MAX
 * bytes are always enough. */
size_t hd_link_report_encode(const struct hd_link_report *report, uint8_t *bytes,
                             size_t size_bytes);

/* Decodes a report. HD_CORRUPT: not a frame that hd_link_report_encode writes, or an unknown kind.
 * Texts are not checked: check UTF-8 where a format requires it. */
enum hd_status hd_link_report_decode(const struct hd_frame *frame,
                                     struct hd_link_report *ret_report);

#endif
