/* texts: the sentences that users read, apart from the decisions. A decision calls a function
 * of this header with a kind (the function, or an enumerator) and facts: numbers, names, records.
 * The sentence is in the file of its vocabulary and nowhere else:
 *
 *   events.def, events.c   events in the history of a job or of the cluster (event_kinds.h), and reasons of
 *                     one sentence
 *   wait_reasons.c    why jobs wait
 *   node_reasons.c    why nodes take no new jobs
 *   end_reasons.c     why attempts and jobs have ended
 *
 * Private to this folder. These functions decide nothing and call no function that does: they append
 * to a text, or add one event to a history. What a sentence needs beyond the records is an argument.
 */
#ifndef HD_CONTROLLER_CORE_TEXTS_H
#define HD_CONTROLLER_CORE_TEXTS_H

#include "controller/core/state/state.h"

/* ---- events.c: of jobs ------------------------------------------------------------------------*/

/* base: the checkpoint from which the job continues; NULL: none; is_missing: there are some, but
 * not on the disk. */
void core_event_resumed(struct hd_core *core, struct core_job *job,
                        const struct hd_checkpoint_record *base, bool is_missing, const char *by);
void core_event_finished(struct hd_core *core, struct core_job *job); /* the job has ended in
                                                                       * rec.state */

/* A sentence, or part of one, with a number in it; after NULL: without one. */
struct core_sentence {
    const char *before, *after;
};
void core_add_sentence(const struct core_sentence *sentence, uint64_t number, struct hd_text *text);

/* Why the expected start of a job has the time that is reported: enumerator, struct core_sentence with the
 * number of `job`. BETTER: it waits for a better placement, job->choice. OTHER_JOB: `before` follows. */
#define CORE_START_LIST(X)                                                     \
    X(CLOCK_SET, "the clock of the controller's machine was set", NULL)        \
    X(HELD, "it is held", NULL)                                                \
    X(QUEUE_CLOSED, "its queue is closed", NULL)                               \
    X(QUOTA, "the device limit of its queue or of its owner is reached", NULL) \
    X(BETTER, "", NULL)                                                        \
    X(BEHIND, "job ", " comes before it")                                      \
    X(PREEMPTS, "job ", " writes a checkpoint and frees its devices then")     \
    X(PACE, "job ", " runs faster or slower than predicted")                   \
    X(OTHER_JOB, "it waits for job ", " now, and no longer for job ")          \
    X(FREES, "job ", " frees its devices then")                                \
    X(END_UNKNOWN, "it is not known when job ", " or others free devices")     \
    X(NODES, "the nodes that it was to start on have changed", NULL)
#define X(name, ...) CORE_START_##name,
struct core_start_cause {
    enum core_start_cause_kind { CORE_START_LIST(X) } kind;
    uint64_t job, before;
    bool takes_later; /* the time is that of a placement that is better than the first one:
                       * job->choice */
};
#undef X
/* before_ms, now_ms: the expected start as reported last, and now (wall clock); 0: unknown. */
void core_event_start(struct hd_core *core, struct core_job *job, int64_t before_ms, int64_t now_ms,
                      const struct core_start_cause *cause);
void core_event_weighed(struct hd_core *core, struct core_job *job); /* job->choice */
void core_event_starting(struct hd_core *core, struct core_job *job,
                         const struct hd_attempt_record *attempt);

/* Numbers of jobs, as a list in a sentence: "5, 6". The owner frees `numbers`. */
struct core_job_list {
    struct hd_text numbers;
    size_t count;
};
void core_job_list_add(struct core_job_list *list, uint64_t job);
enum core_leave_cause {
    CORE_LEAVE_DAEMON_ENDS,
    CORE_LEAVE_DEADLINE,       /* the deadline of the node's drain has passed */
    CORE_LEAVE_FITS_ELSEWHERE, /* the node is drained, and the job fits on others */
};
/* The listed jobs move so that the job starts in the placement `later` in place of `now`. */
void core_event_gathering(struct hd_core *core, struct core_job *job,
                          const struct core_job_list *moved, const struct core_placement *now,
                          const struct core_placement *later);

void core_event_attempt_end(struct hd_core *core, struct core_job *job,
                            const struct core_attempt *attempt, const struct hd_end_record *end,
                            bool as_requested);

/* next: the checkpoint from which the job continues; NULL: none, it waits. */
void core_event_checkpoint_missing(struct hd_core *core, struct core_job *job,
                                   const struct hd_checkpoint_record *next);

/* ---- events.c: of the cluster -----------------------------------------------------------------*/

/* The node was drained or undrained. void_ms: deadline of an earlier drain that this one replaces;
 * 0: none. */
void core_event_drain(struct hd_core *core, const struct core_node *node, const char *by,
                      int64_t void_ms);
void core_event_queue_set(struct hd_core *core, const struct hd_queue_record *queue,
                          const char *by);

#define E(name, params, ...) void core_event_##name params;
#define R(name, params, ...) void core_add_##name params;
#define J                    E
#define N                    E
#include "controller/core/state/events.def"
#undef E
#undef R
#undef J
#undef N

/* ---- wait_reasons.c ---------------------------------------------------------------------------*/

/* Why a queued job waits. */
struct core_wait_reason {
    enum core_wait wait;
    bool lacks_checkpoint; /* with SEARCH: its checkpoints are known to be missing */
    bool is_thrashing;     /* with DELAY: it was preempted soon after its start more than once */
    int64_t left_ms;       /* with DELAY: time until it is retried; negative: it is over */
    int32_t array_open;    /* with ARRAY: members of the array that run or may start */
    uint64_t behind;       /* with RESERVED: number of the job for which the nodes are reserved */
};
/* Appends how the newest attempt ended and then why the job waits; for some kinds a sentence of its
 * own comes after that (core_add_after, core_add_quota, core_add_need). */
void core_add_wait(const struct hd_core *core, const struct core_job *job,
                   const struct core_wait_reason *reason, struct hd_text *text);
void core_add_after(const struct core_job_list *jobs, struct hd_text *text);
/* A device limit that keeps a job from starting. */
struct core_quota_reason {
    bool by_user;      /* true: the limit of one user in the queue; false: the queue's limit */
    int32_t too_small; /* the limit, if the job needs more devices; 0: the limit is used up */
};
void core_add_quota(const struct core_job *job, const struct core_quota_reason *reason,
                    struct hd_text *text);

/* The devices that a job needs, for each device kind that it may use. */
struct core_need {
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    int32_t devices[HD_DEVICE_KIND_COUNT];
    size_t kind_count;
    int64_t memory_min;  /* hd_job_needs.memory_min */
    bool on_one_node;    /* true: all devices must be on one node */
    int32_t multiple_of; /* the devices on each node are a multiple of this number; 0: any */
};
void core_add_need(const struct core_need *need, struct hd_text *text);
/* all, biggest: devices of all nodes together, and of the node that has most, of each kind of `need`. */
void core_add_capacity(const struct core_need *need, const int64_t all[HD_DEVICE_KIND_COUNT],
                       const int32_t biggest[HD_DEVICE_KIND_COUNT], struct hd_text *text);
/* The devices of one usable node that a job may use. */
struct core_node_offer {
    int32_t all, free; /* devices that work; free: those that no attempt holds */
    int32_t in_groups; /* free devices in whole tensor-parallel groups */
    int32_t broken;    /* devices with a problem; `problem` is that of the first one */
    const char *problem;
    const struct core_allocation *reservation; /* of the node; NULL: none */
    bool reserved_for_it;                      /* the reservation is for this job */
    enum hd_device_kind kind;
    enum core_gang_obstacle obstacle;
};
void core_add_offer(const struct core_node *node, const struct core_node_offer *offer,
                    struct hd_text *text);
void core_add_avoided(const struct core_job *job, struct hd_text *text);

/* Appends the name of the newest missing checkpoint, such as "step 20 of attempt 1 (/jobs/7/..)";
 * all: also those of some older ones. */
void core_add_missing_names(const struct hd_core *core, const struct core_job *job, bool all,
                            struct hd_text *text);
/* Appends to the reason of a job that lacks a checkpoint: which ones are missing, and what the user
 * can do. */
void core_add_missing(const struct hd_core *core, const struct core_job *job, struct hd_text *text);

/* Appends a text such as "2 nodes at one switch of tier leaf". */
void core_add_placement_text(const struct hd_core *core, int32_t nodes, int32_t tier,
                             struct hd_text *text);
/* Appends to `text` the comparison of two placements; waits: the job still waits for the later one
 * (else it has started). */
void core_add_choice(const struct hd_core *core, const struct hd_core_choice *choice, bool waits,
                     struct hd_text *text);

/* Why a running attempt stops: enumerator, struct core_sentence, with the number of the job that gets the
 * devices; from TIME_LIMIT on with the seconds that it has for its last checkpoint. */
#define CORE_STOP_LIST(X)                                                                          \
    X(NONE, "", NULL)                                                                              \
    X(NO_LONGER_NEEDED, WRITES " and gives its devices back: job ",                                \
      " asked for them, and no longer needs them")                                                 \
    X(FOR_HELD_JOB, WRITES " and gives its devices back: job ",                                    \
      " asked for them, and is now held")                                                          \
    X(MOVES, WRITES " and moves to other nodes, so that the devices of job ",                      \
      " span fewer switches")                                                                      \
    X(PREEMPTED, WRITES " and gives its devices back for job ", "")                                \
    X(LEAVES_NODE, WRITES " and leaves a node that is drained", NULL)                              \
    X(NEED_NOT_LEAVE,                                                                              \
      WRITES " and starts again: it was asked to leave a node that is not drained any more", NULL) \
    X(TIME_LIMIT, WRITES ", for at most ", " s, and ends: its time_limit is over")                 \
    X(RESIZED, WRITES ", for at most ", " s, and starts again with other devices")                 \
    X(USER, WRITES ", for at most ", " s, and stops, as a user asked")
#define WRITES       "writes a checkpoint"
#define X(name, ...) CORE_STOP_##name,
enum core_stop_reason { CORE_STOP_LIST(X) };
#undef X
/* for_job: number of the job that gets the devices. */
void core_add_stop(const struct hd_core *core, enum core_stop_reason reason, uint64_t for_job,
                   struct hd_text *text);

/* ---- node_reasons.c ---------------------------------------------------------------------------*/

/* Reasons why a node takes no new jobs. */
enum core_absence {
    CORE_ABSENCE_NONE, /* the node takes new jobs */
    CORE_ABSENCE_LOST,
    CORE_ABSENCE_DRAINED,
    /* The node may be drained, too: */
    CORE_ABSENCE_NOT_COME, /* the node has not connected since the controller's start */
    CORE_ABSENCE_UNREACHABLE,
    CORE_ABSENCE_AWAY, /* the node's stream has ended */
    CORE_ABSENCE_CONNECTING,
    CORE_ABSENCE_REFUSES, /* node->refuses_attempts */
    CORE_ABSENCE_STALE,   /* the node stops a stale attempt */
};
/* is_empty: no ranks run on the node; silent_ms: time since its last message. */
void core_add_absence(const struct core_node *node, enum core_absence absence, bool is_empty,
                      int64_t silent_ms, struct hd_text *text);
/* The machine that does not see the jobs directory, because of which the node starts no job. */
enum core_no_jobs_dir {
    CORE_NO_JOBS_DIR_NONE,
    CORE_NO_JOBS_DIR_ON_CONTROLLER,
    CORE_NO_JOBS_DIR_ON_NODE,
};
void core_add_no_jobs_dir(const struct hd_core *core, const struct core_node *node,
                          enum core_no_jobs_dir where, struct hd_text *text);
void core_add_gang_obstacle(const struct core_node *node, enum hd_device_kind kind,
                            enum core_gang_obstacle obstacle, struct hd_text *text);
/* A measured rate that is far below the median of equal devices. */
struct core_slow_rate {
    const char *name, *unit; /* unit: of a rate in units of 1e9 per second */
    double value, median;    /* per second */
    size_t count;            /* number of devices whose median it is */
};
void core_add_slow_rate(const struct core_slow_rate *slow, struct hd_text *text);

/* ---- end_reasons.c ----------------------------------------------------------------------------*/

/* Appends the reason of an attempt's end, such as "rank_exit: rank 1 on n1: killed by signal 9:
 * ...", cut to the length of a message. */
void core_add_end(const struct core_attempt *attempt, const struct hd_end_record *end,
                  struct hd_text *text);
/* Messages of ends (hd_end_record.message) without numbers. PLACEHOLDER is in stored records, in which
 * core_attempt_is_placeholder looks for this very text: never change it. */
#define CORE_END_LIST(X)                                  \
    X(MACHINE_RESTARTED, "the machine was restarted")     \
    X(ATTEMPT_GONE, "the node no longer has the attempt") \
    X(NOT_STARTED, "stopped before its start")            \
    X(PLACEHOLDER, "it began after the backup from which the controller was restored")
#define X(name, message) CORE_END_##name,
enum core_known_end { CORE_END_LIST(X) };
#undef X
const char *core_end_message(enum core_known_end end);
/* Appends to an empty text that the nodes of the attempt lost the connection to each other; rec.end
 * has the first message about it. */
void core_add_disconnection(const struct core_attempt *attempt, struct hd_text *text);
/* Appends that all ranks ended without a report of the last step, or of its checkpoint. */
void core_add_incomplete(const struct core_job *job, const struct core_attempt *attempt,
                         struct hd_text *text);

/* Why a job has ended without success. */
struct core_job_end {
    enum core_job_end_kind {
        CORE_JOB_END_ATTEMPT,  /* its attempt ended so that a retry would be useless */
        CORE_JOB_END_DIVERGED, /* the reason names the newest checkpoint from before */
        CORE_JOB_END_RESTARTS, /* restart.max is used up */
        CORE_JOB_END_ATTEMPTS, /* HD_CTL_ATTEMPTS_MAX attempts are used up */
        CORE_JOB_END_TIME,     /* the reason says what was saved and what is lost */
        CORE_JOB_END_CANCELLED,
        CORE_JOB_END_AFTER, /* a job of `after` did not succeed */
    } kind;
    const struct core_attempt *attempt; /* newest attempt, which has ended; unused with AFTER */
    /* With TIME and CANCELLED: the newest checkpoint; with DIVERGED: the newest one that is proven;
     * NULL: none. */
    const struct hd_checkpoint_record *checkpoint;
    int64_t ran_ms;   /* with TIME: running time of all attempts */
    bool has_failed;  /* with TIME: the attempt failed; else it was told to stop */
    int32_t failures; /* with RESTARTS: failures in a row */
    uint64_t after;   /* with AFTER: number and state of that job */
    enum hd_job_state outcome;
};
/* Appends the reason; nothing if a cancelled job lost no step. */
void core_add_job_end(const struct hd_core *core, const struct core_job *job,
                      const struct core_job_end *end, struct hd_text *text);

/* ---- mark.c -----------------------------------------------------------------------------------*/

/* Appends an event to the history of a job, or of the cluster (job NULL). Called by events.c, and for events whose text comes from elsewhere. */
void core_event(struct hd_core *core, struct core_job *job, enum hd_event_kind kind,
                int32_t attempt, int32_t rank, const char *node, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));

#endif
