/* supervisor: the parent of an attempt's ranks on one node, and the witness of how they end.
 *
 * One small process per attempt and node. It makes the ranks' shared memory, starts one
 * heddle-worker per rank, listens to them, spools what they report, and outlives heddled, which may
 * come and go: it talks through RUN_DIR/control.sock and leaves everything that matters in RUN_DIR
 * (attempt/attempt.h). It has one thread and waits in one poll(2).
 *
 * Invariants
 *  1. A run directory is supervised once: a lock, and a refusal when any record is there already.
 *  2. An exit is durable (rank-R.exit, then the spool) before a peer, heddled or `end` tells of it.
 *  3. `end` is written when no descendant is left: each rank was reaped, and whatever the ranks
 *     started was adopted (PR_SET_CHILD_SUBREAPER), killed and reaped. What cannot be killed within
 *     HD_SUP_GONE_MS is named in `end`.
 *  4. Once one rank failed, all are gone within 5 s (marked dead in shared memory, 1 s to leave,
 *     SIGTERM, 1.5 s, SIGKILL).
 *  5. No rank outlives the supervisor: PR_SET_PDEATHSIG is SIGKILL in each.
 *  6. Only step reports are ever left out, and a gap report says how many.
 *  7. Of an attempt on several nodes, `end` says whether a rank here failed by itself or because
 *     ranks elsewhere did (an echo); to blame for an echo is nobody here.
 *
 * The environment of a rank on a GPU: CUDA_VISIBLE_DEVICES is its GPU's UUID, always, so that a
 * rank opens device 0 whatever else there is. With several ranks also, unless somebody has set
 * them: CUDA_MODULE_LOADING=EAGER (a kernel that is loaded at its first launch waits for the device
 * to be idle, which it is not while another rank's collective spins) and
 * NCCL_LAUNCH_ORDER_IMPLICIT=1 (communicators of one rank run in the order in which they were
 * called). The rest passes through.
 *
 *     STARTING --every rank left setup (rank_said)--> RUNNING
 *        |                                              |  stop asked (sup_ask_stop)
 *        +--------- a failure, kill, hang, SIGTERM -----+--> STOPPING --no process left
 *                        (sup_begin_end)                       (sup_finish)--> ENDED, exit
 *
 * Used by: its own files.   Uses: base, link, comm's shm_control, daemon/attempt.
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
#include "link/job.h"
#include "link/link.h"

enum {
    HD_SUP_LEAVE_MS = 1000, /* for peers of a failed rank to say what they saw and leave */
    HD_SUP_TERM_MS = 1500,  /* between SIGTERM and SIGKILL */
    HD_SUP_GONE_MS = 10000, /* after SIGKILL; then `end` says what is still there */
    HD_SUP_HELD_MAX = 64,   /* reports kept in memory while the disk refuses them */
};

struct sup_options {
    char job_file[PATH_MAX], run_dir[PATH_MAX], worker[PATH_MAX];
    char node[HD_LINK_WORD_MAX];
    char data_address[64]; /* where ranks of other nodes reach those here; "": there are none */
    int64_t ranks[HD_ATTEMPT_RANKS_MAX];
    int rank_count;
    char gpus[HD_ATTEMPT_RANKS_MAX][64]; /* UUID of each rank's GPU */
    int gpu_count;                       /* rank_count, or 0: on CPU devices */
    int64_t world;
    pid_t parent;          /* ends with this process; 0: outlives it */
    int64_t hang_limit_ms; /* of silence in any phase; 0: the limits of each phase */
    struct hd_spool_limits spool;
};

struct sup_rank {
    int64_t rank;
    pid_t pid;   /* 0: not started, or reaped */
    int link_fd; /* -1: closed */
    bool greeted, exited, gone_bad;
    bool told_to_end; /* by a signal of this supervisor */
    int code, signal;
    char exit_text[HD_LINK_TEXT_MAX]; /* of a failed one: its last words, or advice */
    enum hd_link_phase phase;
    int64_t seq;
    int64_t heard_ms, longest_silence_ms, heard_count; /* longest and count: while training */
    bool has_failure;
    struct hd_link_failure failure;
    int64_t gap_count, gap_first, gap_last; /* step reports left out and not told yet */
    int64_t put_round;                      /* of `value`; -1: none */
    size_t value_bytes;
    uint8_t value[HD_LINK_VALUE_MAX];
};

struct sup {
    struct sup_options options;
    struct hd_arena arena;
    struct hd_job job;
    struct hd_shm_control *shm;
    struct hd_spool_writer *spool;
    int lock_fd, signal_fd, listen_fd, daemon_fd; /* daemon_fd -1: heddled is not connected */
    enum hd_attempt_state state;
    struct sup_rank *ranks; /* [options.rank_count] */

    bool stop_asked;
    int64_t stop_deadline_ms; /* then they are killed; 0: none */

    bool ending; /* the ranks that are left are being ended, for this reason: */
    enum hd_link_cause cause;
    char reason[HD_LINK_TEXT_MAX];
    bool echo;      /* it is one of a failure elsewhere, perhaps */
    int64_t blamed; /* rank, -1: none, or found out at the end */
    int64_t term_at_ms, kill_at_ms, give_up_at_ms;

    struct hd_link_report held[HD_SUP_HELD_MAX];
    bool held_durable[HD_SUP_HELD_MAX];
    int held_count;
    uint8_t received[HD_FRAME_BYTES_MAX];
};

/* Ranks of the attempt are on other nodes, too. */
static inline bool sup_spans(const struct sup *sup)
{
    return sup->options.rank_count != sup->options.world;
}

/* ---- supervisor.c: the loop, and how an attempt ends ---- */

enum hd_status sup_open(struct sup *sup); /* from options; HD_CONFLICT: supervised before */
void sup_run(struct sup *sup);
void sup_close(struct sup *sup);

void sup_ask_stop(struct sup *sup, int64_t grace_ms);
/* Starts ending the ranks that are left; the first reason stays. at_once: no time to leave. */
void sup_begin_end(struct sup *sup, enum hd_link_cause cause, int64_t blamed, bool at_once,
                   const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* ---- ranks.c: processes ---- */

enum hd_status sup_start_rank(struct sup *sup, struct sup_rank *rank);
/* Of what a person has set for ranks on GPUs and several of them may hang with; before they start.
 */
void sup_warn_of_environment(const struct sup *sup);
void sup_reap(struct sup *sup); /* after SIGCHLD */
void sup_signal_ranks(struct sup *sup, int signal);
bool sup_all_exited(const struct sup *sup);
/* The first collective on record of a rank that is not complete, else its last; false: there is
 * none (yet; and over gloo, on several nodes, ranks keep their records to themselves). */
bool sup_find_flight(const struct sup *sup, const struct sup_rank *rank,
                     struct hd_flight_record *ret_record);
int sup_kill_descendants(void); /* returns how many children there are still */
/* Stopped, waiting for a disk or computing: anything but asleep, as one is that waits for peers.
 * Blocks for 200 ms while the rank is busy: nothing else is heard then. */
bool sup_is_busy(const struct sup_rank *rank);

/* ---- talk.c: messages ---- */

void sup_hear_rank(struct sup *sup, struct sup_rank *rank);
void sup_hear_daemon(struct sup *sup);
void sup_accept_daemon(struct sup *sup);
void sup_tell_state(struct sup *sup);
/* Tells a rank, if it has said hello; a rank that has not is told when it does. */
void sup_command(const struct sup_rank *rank, enum hd_link_message type);
/* Stamps and spools; what the disk refuses is held, steps beyond the spool's bound are counted. */
void sup_report(struct sup *sup, struct sup_rank *rank, struct hd_link_report *report);
void sup_retry_held(struct sup *sup);

#endif
