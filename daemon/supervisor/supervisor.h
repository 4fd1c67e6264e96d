/* supervisor: the parent process of an attempt's ranks on one node; it records how they end.
 *
 * One small process per attempt and node. It makes the ranks' shared memory, starts one
 * heddle-worker per rank, listens to them, spools what they report, and goes on when heddled ends
 * or is started again: it talks through RUN_DIR/control.sock and leaves everything that matters in
 * RUN_DIR (attempt/attempt.h). It has one thread and waits in one poll(2).
 *
 * Invariants
 *  1. A run directory is supervised once: it is locked, and refused if it has any record.
 *  2. An exit is durable (rank-R.exit, then the spool) before a peer, heddled or `end` learns of
 * it.
 *  3. `end` is written when no descendant is left: each rank was reaped, and whatever the ranks
 *     started was adopted (PR_SET_CHILD_SUBREAPER), killed and reaped. What cannot be killed within
 *     HD_SUP_GONE_MS is named in `end`. While the disk takes no writes the supervisor waits and
 * says so, unless it was killed or is to end at once.
 *  4. Once a rank has failed, all have ended within 5 s (marked dead in shared memory, 1 s to
 * leave, SIGTERM, 1.5 s, SIGKILL).
 *  5. No rank outlives the supervisor: PR_SET_PDEATHSIG is SIGKILL in each.
 *  6. Only step reports are ever dropped, never the newest one, and a gap report says how many.
 *  7. All ranks here together take no more memory than their plans and a slack, or they are ended
 *     with the cause oom (bounds.c); the ranks of other jobs do not notice.
 *  8. Of an attempt on several nodes, `end` says whether a rank here failed by itself or because
 *     ranks elsewhere did (a secondary failure); no rank here is blamed for a secondary failure.
 *
 * The environment of a rank on a GPU: CUDA_VISIBLE_DEVICES is its GPU's UUID, always, so that a
 * rank opens device 0 whatever other GPUs exist. With several ranks also, unless they are set
 * already: CUDA_MODULE_LOADING=EAGER (a kernel that is loaded at its first launch waits for the
 * device to be idle, which it is not while another rank's collective spins) and
 * NCCL_LAUNCH_ORDER_IMPLICIT=1 (communicators of one rank run in the order in which they were
 * called); and, whatever is set, NCCL_COMM_BLOCKING=-1: NCCL heeds only 0 and 1 there, which would
 * overrule how lib/comm makes communicators, and reads its own files only for what is not set. Of
 * the rest ranks get what isolation/environment.h lists.
 *
 *     STARTING --every rank left setup (rank_said)--> RUNNING
 *        |                                              |  stop asked (sup_ask_stop), or SIGTERM
 *        +--------- a failure, kill, hang, SIGTERM -----+--> STOPPING --no process left
 *                        (sup_begin_end)                       (sup_finish)--> ENDED, exit
 *
 * SIGTERM comes before the machine goes down. Ranks that train on this node alone write a
 * checkpoint first, if that takes no more than HD_SUP_SHUT_MS; a second SIGTERM ends them at once.
 * The cause is node_lost either way: the job is started again. At once are also ended: ranks of a
 * heddled that has ended (--parent), and those with peers on other nodes, which could not stop at
 * the same step.
 *
 * Used by: its own files.   Uses: base, link, comm's shm_control, daemon/attempt,
 * daemon/isolation.
 */
#ifndef HD_DAEMON_SUPERVISOR_SUPERVISOR_H
#define HD_DAEMON_SUPERVISOR_SUPERVISOR_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/arena.h"
#include "base/status.h"
#include "comm/shm_control.h"
#include "daemon/attempt/attempt.h"
#include "daemon/attempt/spool.h"
#include "daemon/attempt/starve.h"
#include "daemon/isolation/cgroup.h"
#include "daemon/supervisor/judge.h"
#include "daemon/supervisor/limits.h"
#include "daemon/supervisor/network.h"
#include "job/job.h"
#include "link/link.h"

enum {
    HD_SUP_LEAVE_MS = 1000, /* for peers of a failed rank to report and exit */
    HD_SUP_TERM_MS = 1500,  /* between SIGTERM and SIGKILL */
    HD_SUP_GONE_MS = 10000, /* after SIGKILL; then `end` counts what still exists */
    HD_SUP_SHUT_MS = 60000, /* after SIGTERM for a checkpoint; a unit of systemd has 90 s */
    HD_SUP_HELD_MAX = 64,   /* reports kept in memory while the disk refuses them */
};

struct sup_options {
    char job_file[PATH_MAX], run_dir[PATH_MAX], worker[PATH_MAX];
    char node[HD_LINK_WORD_MAX];
    char choices_dir[PATH_MAX]; /* of GPUs' timed choices among algorithms; "": none are kept */
    char data_address[64];      /* for ranks of other nodes; "": there are none */
    int64_t ranks[HD_ATTEMPT_RANKS_MAX];
    int rank_count;
    char gpus[HD_ATTEMPT_RANKS_MAX][64]; /* UUID of each rank's GPU */
    int gpu_count;                       /* rank_count, or 0: on CPU devices */
    int64_t world;
    pid_t parent;              /* the supervisor ends when this process does; 0: it does not */
    int64_t hang_limit_ms;     /* of silence in any phase; 0: the limits of each phase (limits.h) */
    int64_t log_limit_bytes;   /* of a rank's log (log_bound.h); 0: none */
    char isolation[16];        /* "require", "try" or "off" (docs/isolation.md) */
    char data_roots[PATH_MAX]; /* folders with ':' between, below which data may lie; "": all */
    char group[PATH_MAX]; /* control group for groups of attempts; "unit": this process's; "": none
                           */
    char cpus[256];       /* processors that ranks may use; "": all */
    int64_t memory_bytes; /* that all ranks may take until their plan is known; 0: no bound */
    int64_t slack_bytes;  /* that each may take beside its plan */
    uid_t daemon_uid;     /* heddled's, where it is another user than this one; (uid_t)-1: not */
    struct hd_spool_limits spool;
};

struct sup_rank {
    int64_t rank;
    pid_t pid;   /* 0: not started, or reaped */
    int link_fd; /* -1: closed */
    bool greeted, exited, gone_bad;
    bool is_ending;        /* by a signal of this supervisor */
    int64_t planned_bytes; /* host memory of its plan; 0: not told yet */
    int code, signal;
    char exit_text[HD_LINK_TEXT_MAX]; /* of a failed rank: its last message, or advice */
    enum hd_link_phase phase;
    int64_t seq;
    int64_t received_ms;
    struct hd_starve starve; /* of its silence: how long it waited for a processor */
    int64_t stopped_ms; /* when it was first seen stopped by a signal (SIGSTOP); 0: it is not */
    bool has_failure;
    struct hd_link_failure failure;
    int64_t gap_count, gap_first, gap_last; /* step reports dropped since the last gap report */
    struct hd_link_report
        newest_step;           /* left out, and newer than those; kind NONE: there is none */
    int64_t log_bytes;         /* the size of its log when it was looked at last */
    int64_t put_round, put_ms; /* of `value`; -1: none */
    size_t value_bytes;
    uint8_t value[HD_LINK_VALUE_MAX];
};

/* What the ranks may take. */
struct sup_bounds {
    bool on;
    struct hd_cgroup group;    /* of the ranks; dir_fd -1: there is none */
    int64_t limit_bytes;       /* of memory, all ranks together; 0: none */
    int64_t group_kills;       /* by the kernel in the group, before the ranks started */
    int64_t machine_kills;     /* by the kernel on the machine, at the last look */
    int64_t machine_killed_ms; /* when that number was seen to grow; 0: it was not */
};

/* A turn that took so long: the machine slept, or this process stood still, and not the ranks. */
enum { SUP_FROZEN_MS = 10000 };

struct sup {
    struct sup_options options;
    struct hd_arena arena;
    struct hd_job job;
    struct hd_shm_control *shm;
    struct hd_spool_writer *spool;
    int lock_fd, signal_fd, listen_fd, daemon_fd; /* daemon_fd -1: heddled is not connected */
    enum hd_alloc_state state;
    struct sup_rank *ranks; /* [options.rank_count] */
    struct sup_bounds bounds;
    struct sup_network network; /* of GPUs that work with GPUs of other nodes; else interface "" */

    int64_t pass_ms; /* when this turn of the loop began */
    bool stop_asked;
    bool shut_down; /* the stop was asked by SIGTERM, as by systemd before the machine goes down */
    int64_t stop_deadline_ms; /* when the ranks are killed; 0: never */

    int64_t logs_due_ms; /* when the ranks' logs are to be looked at */
    bool log_failed;     /* the last look at them failed, and that was said */

    bool at_once; /* SIGTERM, or a kill by heddled: nothing is waited for */
    bool ending;  /* the ranks that still run are being ended, because: */
    enum hd_link_cause cause;
    char reason[HD_LINK_TEXT_MAX];
    bool secondary; /* the reason may be a failure on another node */
    int64_t blamed; /* rank; -1: none, or found when `end` is written */
    int64_t term_at_ms, kill_at_ms, give_up_at_ms;

    struct sup_limits limits;
    int64_t limits_kept_ms; /* when they were written last */
    int64_t elsewhere; /* `secondary`: the rank of another node for which ranks here waited; -1 */
    int64_t hanging;   /* the rank of which `hang` tells that it hangs; -1: none */
    int64_t starving;  /* the same: that it waits for a processor; -1: none */

    /* What heddled is told of the share; the first that is not "". */
    char stopped[HD_LINK_TEXT_MAX];    /* a rank is stopped by a signal */
    char hang[HD_LINK_TEXT_MAX];       /* a rank has been silent for too long, or starves */
    char problem[HD_LINK_TEXT_MAX];    /* what the ranks wait for, or this supervisor */
    char stragglers[HD_LINK_TEXT_MAX]; /* ranks that are slower than their peers */

    struct hd_link_report held[HD_SUP_HELD_MAX];
    bool held_durable[HD_SUP_HELD_MAX];
    int held_count;
    uint8_t received[HD_FRAME_BYTES_MAX];
};

/* Whether other ranks of the attempt run on other nodes. */
static inline bool sup_spans(const struct sup *sup)
{
    return sup->options.rank_count != sup->options.world;
}

/* How long a rank gave no sign of life, without the time in which it waited for a processor. */
static inline int64_t sup_silence_ms(const struct sup_rank *rank, int64_t now_ms)
{
    return now_ms - rank->received_ms - hd_starve_ms(&rank->starve, rank->received_ms);
}

/* Whether a rank has waited for a processor for most of its silence, and the rest is no hang. */
static inline bool sup_is_starved(const struct sup *sup, const struct sup_rank *rank,
                                  int64_t now_ms)
{
    const int64_t starved_ms = hd_starve_ms(&rank->starve, rank->received_ms);

    return rank->pid && starved_ms > 0 && 2 * starved_ms >= now_ms - rank->received_ms &&
           sup_silence_ms(rank, now_ms) < sup_limits_of(&sup->limits, rank->phase).reported_ms;
}

/* The files, each of which calls only those before it: send.c, inspect.c, end.c, bounds.c, blame.c,
 * receive.c, ranks.c, silence.c, supervisor.c. */

/* ---- send.c: what the supervisor tells ---- */

/* Stamps and spools. What the disk refuses is held. Of steps that come while reports are held, or
 * beyond the spool's bound, the newest is kept until there is room, at the longest until the rank's
 * next report that is not held or its end; the others are counted. */
void sup_report(struct sup *sup, struct sup_rank *rank, struct hd_link_report *report);
/* Spools what was held or kept; the failure that keeps some, or HD_OK. */
enum hd_status sup_retry_held(struct sup *sup);
void sup_drop_held(struct sup *sup);  /* they are lost */
void sup_send_state(struct sup *sup); /* to heddled */
/* Keeps the share's problem, or that a rank is stopped, and tells it to heddled; "": it is over. */
void sup_set_problem(struct sup *sup, const char *text);
void sup_set_stopped(struct sup *sup, const char *text);
void sup_set_hang(struct sup *sup, const char *text);
void sup_set_stragglers(struct sup *sup, const char *text);
/* An event of the job about a rank, which may be on another node; in the name of a rank here. */
void sup_report_event(struct sup *sup, struct sup_rank *rank, int64_t about,
                      enum hd_link_level level, const char *text);
void sup_send_problem(struct sup *sup);
void sup_lose_daemon(struct sup *sup); /* closes the connection to heddled */
/* Tells a rank, if it has said hello; a rank that has not is told when it does. */
void sup_command(const struct sup_rank *rank, enum hd_link_message type);
/* A rank's share of the rendezvous to heddled; a value from a rank of any node to the ranks here
 * that wait for that round. */
void sup_put_to_daemon(struct sup *sup, const struct sup_rank *rank);
void sup_value_to_ranks(struct sup *sup, int64_t of_rank, int64_t round, const uint8_t *value,
                        size_t value_bytes);

/* ---- inspect.c: what it sees of its ranks ---- */

/* "training", "setting up": after "while". */
const char *sup_phase_text(const struct sup_rank *rank);
/* The first collective on record of a rank that is not complete, else its last. False: there is no
 * record, as none has begun. */
bool sup_find_flight(const struct sup *sup, const struct sup_rank *rank,
                     struct hd_flight_record *ret_record);
/* What a rank is in, for messages (hd_flight_describe_open); "": no record. */
enum { SUP_FLIGHT_MAX = 320 };
void sup_describe_flight(const struct sup *sup, const struct sup_rank *rank,
                         char ret_text[SUP_FLIGHT_MAX]);
/* Whether a rank is stopped by a signal. */
bool sup_is_stopped(const struct sup_rank *rank);
/* Whether a rank is stopped, waits for a disk or computes; a rank that waits for peers sleeps.
 * Blocks for 200 ms while the rank is busy: nothing else is heard then. */
bool sup_is_busy(const struct sup_rank *rank);
/* Of /proc/PID/stat; false: there is no such process. */
bool sup_read_stat(pid_t pid, char *ret_state, pid_t *ret_parent);

/* ---- end.c: how an attempt ends ---- */

void sup_ask_stop(struct sup *sup, int64_t grace_ms);
/* Starts ending the ranks that still run; the first reason stays. at_once: SIGTERM without delay.
 */
void sup_begin_end(struct sup *sup, enum hd_link_cause cause, int64_t blamed, bool at_once,
                   const char *fmt, ...) __attribute__((format(printf, 5, 6)));
void sup_climb(struct sup *sup, int64_t now_ms); /* sends each signal when its time has come */
/* The share's END report; `left`: processes that could not be killed. */
void sup_describe_end(struct sup *sup, int left, struct hd_link_report *ret_end);
/* Writes what is held, and then `end`, and tells that it is written. */
enum hd_status sup_write_end(struct sup *sup, const struct hd_link_report *end);

/* ---- bounds.c: what the ranks may take ---- */

/* Before the ranks start. A failure: isolation is demanded, and the group cannot be made. */
enum hd_status sup_bounds_open(struct sup *sup);
/* In the child, between fork and exec. False: it cannot enter the group; errno. */
bool sup_bounds_join(const struct sup *sup);
void sup_bounds_planned(struct sup *sup, struct sup_rank *rank, int64_t bytes);
/* Whether sup_bounds_check is to be called several times a second: no kernel bounds their memory.
 */
bool sup_bounds_is_watched(const struct sup *sup);
/* Ends all ranks if they take too much. */
void sup_bounds_check(struct sup *sup, int64_t now_ms);
/* Whether a rank that has ended was killed by the kernel for want of memory, and how to say it. */
bool sup_bounds_was_oom(struct sup *sup, const struct sup_rank *rank, char *ret_text, size_t size);
/* Kills what is left in the group; returns 0 when nothing is. */
int sup_bounds_kill(struct sup *sup);
void sup_bounds_close(struct sup *sup);

/* ---- blame.c: whom a hang is blamed on ---- */

/* What is found when a rank has been silent for too long, or has given up waiting. */
struct sup_blame {
    enum sup_finding finding;
    struct sup_rank *here;       /* the rank to blame, or one of a circle; else NULL */
    int64_t rank;                /* ELSEWHERE: the rank of another node; else -1 */
    char text[HD_LINK_TEXT_MAX]; /* for people: who, since when, in what, who waits for it */
};
void sup_find_blame(struct sup *sup, struct sup_rank *silent, int64_t now_ms,
                    struct sup_blame *ret_blame);
/* A rank has given up waiting for another one (HD_TIMEOUT): ends the attempt as a hang of that one,
 * if that is known; else its own failure counts. */
void sup_blame_for_timeout(struct sup *sup, struct sup_rank *rank);
/* Of the ranks that are silent for longer than they may be, the one that is so longest; NULL: none.
 */
struct sup_rank *sup_find_silent(struct sup *sup, int64_t now_ms);
/* The attempt ends, as heddled or a rank that gave up says; maybe because ranks of another node
 * waited in vain for one of these, and their supervisor was first. Ends it as a hang of a rank here
 * that is overdue. */
void sup_blame_for_overdue(struct sup *sup);

/* ---- receive.c: what the supervisor hears ---- */

void sup_receive_from_rank(struct sup *sup, struct sup_rank *rank);
void sup_receive_from_daemon(struct sup *sup);
void sup_accept_daemon(struct sup *sup);

/* ---- ranks.c: processes ---- */

enum hd_status sup_start_rank(struct sup *sup, struct sup_rank *rank);
/* Before the ranks start: warns of an environment in which several ranks on GPUs may hang. */
void sup_warn_of_environment(const struct sup *sup);
void sup_reap(struct sup *sup); /* after SIGCHLD */
bool sup_all_exited(const struct sup *sup);
/* Keeps the ranks' logs within their limit. Returns how long the next look may wait at most. */
int sup_bound_logs(struct sup *sup, int64_t now_ms);
int sup_kill_descendants(void); /* returns how many children there are still */

/* ---- silence.c: ranks that hang ---- */

/* Tells ranks that have been silent for longer than the limit of their phase, and ends the attempt
 * where hang.action says so. If those here wait for a rank of another node, its supervisor is given
 * half the limit more to say why. */
void sup_check_hang(struct sup *sup, int64_t now_ms);
/* Looks now and then how long silent ranks wait for a processor: that time is no hang. While one
 * starves, waits of the others for it have no end. Before sup_check_hang. */
void sup_check_starved(struct sup *sup, int64_t now_ms);
/* Reads and keeps what was learned of silences; rank 0's supervisor keeps it, now and then and at
 * the end. */
void sup_read_limits(struct sup *sup);
void sup_keep_limits(struct sup *sup, int64_t now_ms, bool at_end);
/* A rank that is stopped by a signal is told as a problem after 10 s, and hangs after 60 s. */
void sup_check_stopped(struct sup *sup, int64_t now_ms);
/* After the machine slept, or this process was stopped: all ranks count as just heard. */
void sup_forgive_silence(struct sup *sup, int64_t now_ms);

/* ---- supervisor.c: from start to exit ---- */

enum hd_status sup_open(struct sup *sup); /* from options; HD_CONFLICT: supervised before */
void sup_run(struct sup *sup);
/* Describes and writes the end, when no process is left but `left` that could not be killed. While
 * the disk takes no writes it waits, and heddled is told so. */
void sup_finish(struct sup *sup, int left);
void sup_close(struct sup *sup);

#endif
