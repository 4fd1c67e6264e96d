/* supervisor: the parent process of an attempt's ranks on one node; it records how they end.
 *
 * One small process per attempt and node. It creates the ranks' shared memory, starts one
 * heddle-worker per rank, receives and spools their reports, and continues when heddled ends or is
 * restarted: it talks through RUN_DIR/control.sock and leaves all records in RUN_DIR
 * (attempt/attempt.h). It has one thread and waits in one poll(2).
 *
 * Invariants
 *  1. A run directory is supervised once: it is locked, and refused if it has any record.
 *  2. An exit is durable (rank-R.exit, then the spool) before a peer, heddled or `end` learns of
 *     it.
 *  3. `end` is written when no descendant is left: each rank was reaped, and every process that
 *     ranks started was adopted (PR_SET_CHILD_SUBREAPER), killed and reaped. `end` counts those
 *     that cannot be killed within HD_SUP_GONE_MS. While the disk accepts no writes the supervisor
 *     waits and reports it, unless it was killed or is to end at once.
 *  4. Once a rank has failed, all have ended within 5 s (marked dead in shared memory, 1 s to
 *     leave, SIGTERM, 1.5 s, SIGKILL).
 *  5. No rank outlives the supervisor: PR_SET_PDEATHSIG is SIGKILL in each.
 *  6. Only step reports are ever dropped, never the newest one, and a gap report says how many.
 *  7. All ranks here together use no more memory than their plans and a slack, or they are ended
 *     with the cause oom (bounds.c); the ranks of other jobs are not affected.
 *  8. For an attempt on several nodes, `end` says whether a rank here failed by itself or because
 *     ranks elsewhere did (a secondary failure); no rank here is blamed for a secondary failure.
 *
 * Environment of a rank on a GPU:
 *  - CUDA_VISIBLE_DEVICES is its GPU's UUID, always, so that a rank opens device 0 whatever other
 *    GPUs exist.
 *  - With several ranks, unless already set: CUDA_MODULE_LOADING=EAGER (a kernel that is loaded at
 *    its first launch waits until the device is idle, which it is not while another rank's
 *    collective spins) and NCCL_LAUNCH_ORDER_IMPLICIT=1 (communicators of one rank run in the order
 *    in which they were called).
 *  - With several ranks, whatever is set: NCCL_COMM_BLOCKING=-1. NCCL obeys only 0 and 1 in this
 *    variable, which would override how lib/comm creates communicators, and it reads its own files
 *    only for variables that are not set.
 *  - Of all other variables ranks get those that isolation/environment.h lists.
 *
 *     STARTING --every rank left setup (rank_moves_on)--> RUNNING
 *        |                                                 |  stop asked (sup_ask_stop), or SIGTERM
 *        +--------- a failure, kill, hang, SIGTERM --------+--> STOPPING --no process left
 *                        (sup_begin_end)                          (sup_finish)--> ENDED, exit
 *
 * SIGTERM comes before the machine goes down. Ranks that train on this node alone write a
 * checkpoint first, if that takes no more than HD_SUP_SHUT_MS; a second SIGTERM ends them at once.
 * The cause is node_lost either way: the job is restarted. Also ended at once: ranks of a heddled
 * that has ended (--parent), and ranks with peers on other nodes, which could not stop at the same
 * step.
 *
 * Used by: its own files.   Uses: base, link, comm's shm_control, daemon/attempt, daemon/isolation.
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
#include "daemon/devices/network.h"
#include "daemon/isolation/cgroup.h"
#include "daemon/supervisor/judge.h"
#include "daemon/supervisor/limits.h"
#include "job/job.h"
#include "link/link.h"

enum {
    HD_SUP_LEAVE_MS = 1000, /* ms for peers of a failed rank to report and exit */
    HD_SUP_TERM_MS = 1500,  /* ms between SIGTERM and SIGKILL */
    /* ms after SIGKILL, until `end` counts the processes that still exist */
    HD_SUP_GONE_MS = 10000,
    HD_SUP_SHUT_MS = 60000, /* ms for a checkpoint after SIGTERM; a systemd unit has 90 s */
    HD_SUP_HELD_MAX = 64,   /* most reports held in memory while they cannot be written to disk */
};

struct sup_options {
    char job_file[PATH_MAX], run_dir[PATH_MAX], worker[PATH_MAX];
    char node[HD_LINK_WORD_MAX];
    /* folder in which the ranks store their timed choices of GEMM algorithms; "": they are not
     * stored */
    char choices_dir[PATH_MAX];
    /* this node's address for ranks of other nodes; "": all ranks are on this node */
    char data_address[64];
    int64_t ranks[HD_ATTEMPT_RANKS_MAX];
    int rank_count;
    char gpus[HD_ATTEMPT_RANKS_MAX][64]; /* UUID of each rank's GPU */
    int gpu_count;                       /* rank_count, or 0: CPU devices */
    int64_t world;
    pid_t parent; /* process (heddled) with which the supervisor ends, too; 0: none */
    /* ms of silence, in any phase, that are a hang; 0: the limits of each phase (limits.h) */
    int64_t hang_limit_ms;
    int64_t log_limit_bytes; /* largest size of a rank's log in bytes (log_bound.h); 0: no limit */
    /* isolation of the ranks (sandbox and limits): "require", "try" or "off" (docs/isolation.md) */
    char isolation[16];
    /* allowed folders, separated by ':', in which the job's data may be; "": all paths are
     * allowed */
    char data_roots[PATH_MAX];
    /* parent folder of the attempt's control group; "unit": the group of the systemd unit that
     * this process is in; "": no group is made */
    char group[PATH_MAX];
    char cpus[256]; /* CPUs that ranks may use; "": all */
    /* memory limit for all ranks together until their plans are known; 0: no limit */
    int64_t memory_bytes;
    int64_t slack_bytes; /* memory that each rank may use besides its plan */
    /* user of heddled, if it is another user than this process's; (uid_t)-1: it is the same */
    uid_t daemon_uid;
    struct hd_spool_limits spool;
};

struct sup_rank {
    int64_t rank;
    pid_t pid;   /* process of the rank; 0: not started yet, or ended and reaped */
    int link_fd; /* socket to the rank; -1: closed */
    bool greeted, exited, gone_bad;
    bool is_ending; /* true: a signal of this supervisor is ending the rank */
    /* bytes of host memory in the rank's plan; 0: the rank has not reported it yet */
    int64_t planned_bytes;
    int code, signal;
    /* last message of a failed rank, or advice about a rank that ended without one */
    char exit_text[HD_LINK_TEXT_MAX];
    enum hd_link_phase phase;
    int64_t seq;
    int64_t received_ms;
    struct hd_starve starve; /* waits for a CPU during the rank's current silence */
    /* time at which the rank was first seen stopped by a signal (SIGSTOP); 0: it is not stopped */
    int64_t stopped_ms;
    bool has_failure;
    struct hd_link_failure failure;
    /* dropped step reports since the last gap report: their number, first and last step */
    int64_t gap_count, gap_first, gap_last;
    /* newest step report that was dropped; kind NONE: none */
    struct hd_link_report newest_step;
    int64_t log_bytes; /* size of the rank's log at the last check */
    /* rendezvous round for which the rank sent `value`, and the time; put_round -1: none */
    int64_t put_round, put_ms;
    size_t value_bytes;
    uint8_t value[HD_LINK_VALUE_MAX];
};

/* Limits of the ranks, and how often the kernel enforced them. */
struct sup_bounds {
    bool on;
    struct hd_cgroup group; /* control group of the attempt; dir_fd -1: there is none */
    /* subgroup that the ranks are in; dir_fd -1: they are in `group` */
    struct hd_cgroup ranks;
    int64_t limit_bytes; /* memory limit of all ranks together; 0: no limit */
    /* processes of the group that the kernel killed for lack of memory, before the ranks started */
    int64_t group_kills;
    /* processes of the whole machine that the kernel killed for lack of memory, at the last
     * check */
    int64_t machine_kills;
    int64_t machine_killed_ms; /* time at which machine_kills was last seen to grow; 0: never */
};

/* Duration in ms of one pass of the supervisor's loop from which on the machine must have slept, or
 * this process alone was stopped, but not the ranks. */
enum { SUP_FROZEN_MS = 10000 };

struct sup {
    struct sup_options options;
    struct hd_arena arena;
    struct hd_job job;
    struct hd_shm_control *shm;
    struct hd_spool_writer *spool;
    /* listen_fd: socket on which heddled connects; daemon_fd: that connection, -1: heddled is not
     * connected */
    int lock_fd, signal_fd, listen_fd, daemon_fd;
    enum hd_alloc_state state;
    struct sup_rank *ranks; /* [options.rank_count] */
    struct sup_bounds bounds;
    /* network for NCCL, set if ranks on GPUs are on several nodes; else interface is "" */
    struct hd_network network;

    int64_t pass_ms; /* time at which the current pass of the supervisor's loop began */
    bool stop_asked;
    /* true: the ranks were told to stop because of SIGTERM, as systemd sends it before the machine
     * goes down */
    bool shut_down;
    int64_t stop_deadline_ms; /* time at which ranks that were told to stop are killed; 0: never */

    int64_t logs_due_ms; /* time of the next check of the ranks' logs */
    bool log_failed;     /* true: the last check of the logs failed, and the failure was logged */

    bool at_once; /* true: end without waiting, after SIGTERM or a kill by heddled */
    bool ending;  /* the remaining ranks are being ended, for this cause and reason: */
    enum hd_link_cause cause;
    char reason[HD_LINK_TEXT_MAX];
    bool secondary; /* true: the reason may be a failure on another node */
    /* rank that is blamed for the end; -1: none, or it is found when `end` is written */
    int64_t blamed;
    int64_t term_at_ms, kill_at_ms, give_up_at_ms;

    struct sup_limits limits;
    int64_t limits_kept_ms; /* time at which the learned limits were saved last */
    /* if `secondary`: rank of another node for which ranks of this node waited; -1: unknown */
    int64_t elsewhere;
    int64_t hanging;  /* the rank that `hang` reports as hanging; -1: none */
    int64_t starving; /* the rank that `hang` reports as waiting for a CPU; -1: none */

    /* Texts about this node's ranks for heddled, which gets the first one that is not "". */
    char stopped[HD_LINK_TEXT_MAX]; /* text about a rank that is stopped by a signal; "": none */
    /* text about a rank that has been silent for too long, or gets no CPU; "": none */
    char hang[HD_LINK_TEXT_MAX];
    /* text about what the ranks, or this supervisor, wait for; "": nothing */
    char problem[HD_LINK_TEXT_MAX];
    /* text about ranks that are slower than their peers; "": none */
    char stragglers[HD_LINK_TEXT_MAX];

    struct hd_link_report held[HD_SUP_HELD_MAX];
    bool held_durable[HD_SUP_HELD_MAX];
    int held_count;
    uint8_t received[HD_FRAME_BYTES_MAX];
};

/* Returns this node's rank of that number; NULL: it runs on another node. */
static inline struct sup_rank *sup_find_rank(struct sup *sup, int64_t number)
{
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].rank == number)
            return &sup->ranks[i];
    return NULL;
}

/* Returns true if other ranks of the attempt run on other nodes. */
static inline bool sup_spans(const struct sup *sup)
{
    return sup->options.rank_count != sup->options.world;
}

/* Returns the ms for which a rank gave no sign of life, without the time in which it waited for a
 * CPU. */
static inline int64_t sup_silence_ms(const struct sup_rank *rank, int64_t now_ms)
{
    return now_ms - rank->received_ms - hd_starve_ms(&rank->starve, rank->received_ms);
}

/* Returns true if a rank has waited for a CPU for at least half of its silence, and the rest is
 * shorter than a hang. */
static inline bool sup_is_starved(const struct sup *sup, const struct sup_rank *rank,
                                  int64_t now_ms)
{
    const int64_t starved_ms = hd_starve_ms(&rank->starve, rank->received_ms);

    return rank->pid && starved_ms > 0 && 2 * starved_ms >= now_ms - rank->received_ms &&
           sup_silence_ms(rank, now_ms) < sup_limits_of(&sup->limits, rank->phase).reported_ms;
}

/* Order of the source files below; functions of each call only those of files before it: send.c,
 * inspect.c, end.c, bounds.c, blame.c, receive.c, ranks.c, silence.c, supervisor.c. */

/* ---- send.c: messages and reports that are sent ---- */

/* Stamps a report with (job, attempt, rank, seq) and appends it to the spool. Reports that cannot
 * be written to disk are held in memory. Of step reports that come while reports are held, or while
 * the spool is full, only the newest is kept: it is spooled at the latest before the rank's next
 * spooled report or at the rank's end; the others are counted in a gap report. */
void sup_report(struct sup *sup, struct sup_rank *rank, struct hd_link_report *report);
/* Tries again to spool the reports that are held or kept in memory. Returns HD_OK if all are
 * spooled, else the failure that still holds some. */
enum hd_status sup_retry_held(struct sup *sup);
void sup_drop_held(struct sup *sup);  /* drops the reports held in memory, which are lost */
void sup_send_state(struct sup *sup); /* sends heddled the state of this node's ranks */
/* Set a text about this node's ranks and send it to heddled; text "": the problem is over. */
void sup_set_problem(struct sup *sup, const char *text);
void sup_set_stopped(struct sup *sup, const char *text);
void sup_set_hang(struct sup *sup, const char *text);
void sup_set_stragglers(struct sup *sup, const char *text);
/* Reports an event of the job about rank `about`, which may be on another node; `rank`, one of this
 * node, is the sender. */
void sup_report_event(struct sup *sup, struct sup_rank *rank, int64_t about,
                      enum hd_link_level level, const char *text);
void sup_send_problem(struct sup *sup);
void sup_lose_daemon(struct sup *sup); /* closes the connection to heddled */
/* Sends a command (stop, checkpoint) to a rank that has said hello; a rank that has not yet gets
 * the command after its hello. */
void sup_command(const struct sup_rank *rank, enum hd_link_message type);
/* sup_put_to_daemon sends a rank's value of a rendezvous to heddled, which collects those of all
 * nodes. The next function sends one rank's value, of any node, to the ranks here that wait for
 * that round. */
void sup_put_to_daemon(struct sup *sup, const struct sup_rank *rank);
void sup_value_to_ranks(struct sup *sup, int64_t of_rank, int64_t round, const uint8_t *value,
                        size_t value_bytes);

/* ---- inspect.c: reading the state of ranks ---- */

/* Returns the phase, for a text after "while": "training", "setting up". */
const char *sup_phase_text(const struct sup_rank *rank);
/* Sets *ret_record to the first collective of a rank, in its record in shared memory, that is not
 * complete, else to its last one. Returns false if the rank has begun none. */
bool sup_find_flight(const struct sup *sup, const struct sup_rank *rank,
                     struct hd_flight_record *ret_record);
/* Writes a description of the collective that a rank is in, for messages (hd_flight_describe_open);
 * "": no collective is on record. */
enum { SUP_FLIGHT_MAX = 320 };
void sup_describe_flight(const struct sup *sup, const struct sup_rank *rank,
                         char ret_text[SUP_FLIGHT_MAX]);
/* Returns true if a signal (SIGSTOP) has stopped a rank's process. */
bool sup_is_stopped(const struct sup_rank *rank);
/* Returns true if a rank is stopped, waits for a disk or computes; a rank that waits for peers
 * sleeps. Blocks for 200 ms while the rank is busy: no message is received meanwhile. */
bool sup_is_busy(const struct sup_rank *rank);

/* ---- end.c: ending an attempt ---- */

void sup_ask_stop(struct sup *sup, int64_t grace_ms);
/* Starts ending the ranks of this node that still run, for a cause and reason; those of the first
 * call are kept. at_once: SIGTERM is sent without delay. */
void sup_begin_end(struct sup *sup, enum hd_link_cause cause, int64_t blamed, bool at_once,
                   const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* Sends each signal of the sequence SIGTERM, SIGKILL when its time has come. */
void sup_climb(struct sup *sup, int64_t now_ms);
/* Makes the END report of this node's ranks; `left`: number of processes that could not be
 * killed. */
void sup_describe_end(struct sup *sup, int left, struct hd_link_report *ret_end);
/* Writes the reports held in memory to the spool, then the record `end`, and sends the state to
 * heddled. Returns the first failure. */
enum hd_status sup_write_end(struct sup *sup, const struct hd_link_report *end);

/* ---- bounds.c: limits of memory, processes, CPUs ---- */

/* Sets up the limits of memory, processes and CPUs, before the ranks start. Fails if isolation is
 * required and the control group cannot be made. */
enum hd_status sup_bounds_open(struct sup *sup);
/* Moves a rank's process into the control group, in the child between fork and exec. Returns false
 * if it cannot; errno says why. */
bool sup_bounds_join(const struct sup *sup);
void sup_bounds_planned(struct sup *sup, struct sup_rank *rank, int64_t bytes);
/* Returns true if sup_bounds_check must be called several times a second, because the kernel does
 * not limit the ranks' memory. */
bool sup_bounds_is_watched(const struct sup *sup);
/* Ends all ranks if they use more memory than the limit. */
void sup_bounds_check(struct sup *sup, int64_t now_ms);
/* Returns true if the kernel killed an ended rank because memory ran out; ret_text then gets a
 * sentence that says so. */
bool sup_bounds_was_oom(struct sup *sup, const struct sup_rank *rank, char *ret_text, size_t size);
/* Kills the processes left in the control group; returns 0 if none is left, else 1. */
int sup_bounds_kill(struct sup *sup);
void sup_bounds_close(struct sup *sup);

/* ---- blame.c: the rank to blame for a hang ---- */

/* Finding about a rank that has been silent for too long, or has given up waiting: which rank is to
 * blame. */
struct sup_blame {
    enum sup_finding finding;
    /* rank of this node to blame, or one of a circle of ranks that wait for each other; else
     * NULL */
    struct sup_rank *here;
    int64_t rank; /* rank of another node to blame (SUP_FOUND_ELSEWHERE); else -1 */
    /* text for users: which rank, since when, in which operation, which ranks wait for it */
    char text[HD_LINK_TEXT_MAX];
};
void sup_find_blame(struct sup *sup, struct sup_rank *silent, int64_t now_ms,
                    struct sup_blame *ret_blame);
/* Handles a rank that has given up waiting for another one (HD_TIMEOUT): ends the attempt as a hang
 * of the awaited rank, if that rank is known; else as a failure of the waiting rank. */
void sup_blame_for_timeout(struct sup *sup, struct sup_rank *rank);
/* Returns the longest silent rank among those whose silence is above its limit; NULL: none. */
struct sup_rank *sup_find_silent(struct sup *sup, int64_t now_ms);
/* Blames an overdue rank here for an end that heddled or a rank that gave up requested: ranks of
 * another node may have waited for it, and their supervisor acted first. The attempt then ends as a
 * hang of that rank. */
void sup_blame_for_overdue(struct sup *sup);

/* ---- receive.c: messages that are received ---- */

void sup_receive_from_rank(struct sup *sup, struct sup_rank *rank);
void sup_receive_from_daemon(struct sup *sup);
void sup_accept_daemon(struct sup *sup);

/* ---- ranks.c: processes ---- */

enum hd_status sup_start_rank(struct sup *sup, struct sup_rank *rank);
/* Warns, before the ranks start, about an environment in which several ranks on GPUs may hang. */
void sup_warn_of_environment(const struct sup *sup);
/* Reaps the ended ranks and handles their exits; call it after SIGCHLD. */
void sup_reap(struct sup *sup);
bool sup_all_exited(const struct sup *sup);
/* Cuts the ranks' logs to the limit of their size. Returns the ms until the next check. */
int sup_bound_logs(struct sup *sup, int64_t now_ms);
/* Kills all descendants of this process; returns the number of children that still exist. */
int sup_kill_descendants(void);

/* ---- silence.c: ranks that hang ---- */

/* Reports ranks that have been silent for longer than the limit of their phase, and ends the
 * attempt if hang.action says so. If ranks here wait for a rank of another node, that node's
 * supervisor gets half the limit more to report the reason. */
void sup_check_hang(struct sup *sup, int64_t now_ms);
/* Measures from time to time how long silent ranks wait for a CPU: that time is not a hang. While a
 * rank gets no CPU, the waits of other ranks for it have no limit. Call it before
 * sup_check_hang. */
void sup_check_starved(struct sup *sup, int64_t now_ms);
/* sup_read_limits reads the learned silences of earlier attempts. The next function saves those of
 * this attempt; rank 0's supervisor calls it every few minutes and at the end. */
void sup_read_limits(struct sup *sup);
void sup_keep_limits(struct sup *sup, int64_t now_ms, bool at_end);
/* Reports a rank that has been stopped by a signal for 10 s as a problem, and treats it as a hang
 * after 60 s. */
void sup_check_stopped(struct sup *sup, int64_t now_ms);
/* Restarts the silence of every rank from now_ms, after the machine slept or this process was
 * stopped. */
void sup_forgive_silence(struct sup *sup, int64_t now_ms);

/* ---- supervisor.c: from start to exit ---- */

/* Opens the supervisor with its `options`. HD_CONFLICT: the run directory was supervised before. */
enum hd_status sup_open(struct sup *sup);
void sup_run(struct sup *sup);
/* Makes and writes the record `end`, when no process is left except `left` processes that could not
 * be killed. While the disk accepts no writes it waits and tells heddled. */
void sup_finish(struct sup *sup, int left);
void sup_close(struct sup *sup);

#endif
