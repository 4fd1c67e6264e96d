/* local: the attempts recorded on this node, each with its supervisor.
 *
 *     STATE_DIR/attempts/JOB-K       one attempt: its directories
 *
 * The record is written before anything is started and removed when the controller has dropped the
 * attempt. A new heddled reads the records, connects to the living supervisors, and derives the
 * end of an attempt whose supervisor is dead (hd_attempt_conclude).
 *
 *   PLANNED --local_launch--> ALIVE --`end` was written or derived (locals_tick)--> ENDED
 *
 * While the jobs directory or the state directory is not writable, PLANNED attempts, and ALIVE ones
 * whose supervisor is dead, keep their state; `trouble` says why.
 *
 * Used by: agent.   Uses: base, link, daemon/attempt, daemon/devices, libuv.   Threads: the loop's.
 */
#ifndef HD_DAEMON_AGENT_LOCAL_H
#define HD_DAEMON_AGENT_LOCAL_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "base/status.h"
#include "daemon/agent/outbox.h"
#include "daemon/attempt/attempt.h"
#include "daemon/attempt/starve.h"
#include "daemon/devices/devices.h"
#include "link/link.h"

enum local_state { LOCAL_PLANNED, LOCAL_ALIVE, LOCAL_ENDED };

/* A rank's value for a rendezvous round that the controller has not answered yet. */
struct local_put {
    /* rank that sent the value; number of the rendezvous round; round -1: none */
    int64_t rank, round;
    size_t value_bytes;
    uint8_t value[HD_LINK_VALUE_MAX];
};

struct agent_attempt {
    struct agent_attempt *next;
    struct locals *all;
    int64_t job, attempt;
    char *attempt_dir, *checkpoint_dir, *run_dir;
    char *run_as; /* system user of supervisor and ranks; NULL: heddled's own (job_user.h) */
    int64_t unit_due_ms, end_seen_ms; /* monotonic times used by job_user.c */
    enum local_state state;
    bool recorded; /* the record is on disk; false: the state directory was not writable */
    enum hd_alloc_state alloc; /* allocation state that the supervisor reported last */
    bool stop_wanted, kill_wanted;
    /* a checkpoint was requested, and the supervisor has not got the request yet */
    bool save_wanted;
    /* number of checkpoint requests passed to the supervisor, by the counter in the desired set */
    int32_t saves_asked;
    struct hd_link_report end; /* how the attempt ended; valid in state ENDED */
    struct agent_outbox *outbox;
    /* state ENDED, and the controller has acknowledged every report: the observed set may show the
     * end */
    bool end_reported;
    /* number of the GPU check (hd_health) that must finish before the attempt's end is reported; 0:
     * none */
    int64_t check;

    /* process handle of the supervisor; NULL: the supervisor has exited, or an earlier heddled
     * started it */
    uv_process_t *child;
    uv_poll_t *poll; /* watches `fd` for messages */
    int fd;          /* connection to the supervisor; -1: none */
    bool greeted, commands_sent;
    int64_t alive_ms; /* time when the attempt became ALIVE in this process of heddled */
    /* The run directory contains a link or belongs to another cluster or attempt: nothing may be
     * written to it. */
    bool refused_run_dir;

    /* state of watchdog.c; monotonic times, 0: never */
    bool answers_pings;  /* the supervisor's build answers PING messages */
    int64_t received_ms; /* time of the supervisor's last message */
    int64_t watched_ms;  /* time when watchdog.c last checked the supervisor */
    int64_t pinged_ms, continued_ms, kill_ms;
    /* time that the supervisor has waited for a processor since received_ms */
    struct hd_starve starve;
    /* size of the ranks' logs, bytes, and time when they last grew, while the supervisor is silent
     */
    int64_t log_bytes, stepped_ms;
    char problem[256];   /* why the supervisor does not answer; "": no problem */
    int64_t reported_ms; /* time when `problem` was first reported to the controller */

    /* Why ranks or supervisor run with restrictions, or cannot start or end; "": no trouble. waits:
     * the attempt cannot continue until the trouble is over. */
    char trouble[HD_LINK_TEXT_MAX];
    bool waits;
    int64_t trouble_ms;  /* time of the last report of `trouble` to the controller and to the log */
    int64_t conclude_ms; /* earliest time of the next try to derive the attempt's end */
    struct local_put *puts;
    int put_count;
};

struct locals {
    uv_loop_t *loop;
    char state_dir[PATH_MAX], supervisor[PATH_MAX], node[64];
    char choices_dir[PATH_MAX + 16]; /* absolute path of the folder of GPU algorithm choices */
    /* path of heddle-worker; "": the one in the supervisor's folder */
    char worker[PATH_MAX];
    char launcher[108]; /* socket of heddle-launcher; "": supervisors are child processes */
    const char *isolation, *data_roots, *job_cpus; /* options of job isolation; NULL: not given */
    const char
        /* cgroup in which the groups of attempts are made; "unit": the cgroup of the attempt's
         * unit; NULL: none */
        *group;
    char memory_slack[24]; /* memory of each rank beyond its planned use, bytes, as text */
    /* id of the cluster, written to the owner marks of jobs' folders; NULL or "": unknown */
    const char *cluster;
    /* The jobs directory was the cluster's before: if it is missing, it must be mounted, not
     * created. */
    bool jobs_dir_seen;
    /* the jobs directory is not the cluster's at present: nothing may be created in it */
    bool jobs_dir_away;
    const struct hd_devices *devices; /* devices that the node offers; NULL: unknown */
    int64_t log_limit_bytes;          /* limit of a rank's log, bytes; 0: none */
    bool tied;                        /* supervisors end with this process */
    const char *data_address;         /* address at which ranks of other nodes connect; "": none */
    /* a supervisor is killed after this time without a message and without training steps, ms */
    int64_t supervisor_lost_ms;
    struct agent_attempt *first;
    /* on_change: an attempt's state, allocation, spool or end has changed; on_put: a rank has sent
     * a value for its peers. */
    void (*on_change)(void *user, struct agent_attempt *local);
    void (*on_put)(void *user, struct agent_attempt *local, const struct local_put *put);
    void *user;
    uint8_t received[HD_FRAME_BYTES_MAX];
};

/* ---- record.c: records on disk, and the list ---- */

/* Reads the records of all attempts; the state directory must exist. */
enum hd_status locals_open(struct locals *locals);
struct agent_attempt *locals_find(const struct locals *locals, int64_t job, int64_t attempt);

/* Records an attempt as PLANNED. run_as NULL or "": heddled's own user. HD_STORAGE: the attempt is
 * in the list, but the state directory is not writable; call local_record later, and start nothing
 * before. */
enum hd_status locals_add(struct locals *locals, int64_t job, int64_t attempt,
                          const char *attempt_dir, const char *checkpoint_dir, const char *run_as,
                          struct agent_attempt **ret_local);
enum hd_status local_record(struct agent_attempt *local);
/* Removes the attempt's record from disk, and the attempt from the list; the caller still frees
 * `local`. */
void local_unrecord(struct agent_attempt *local);
void local_free(struct agent_attempt *local);
/* Returns whether a supervisor was ever started for the attempt, judged by its files in the run
 * directory. */
bool local_was_started(const struct agent_attempt *local);
/* Checks whose the job's folder is. HD_CONFLICT: it belongs to another cluster (owner.h). */
enum hd_status local_check_owner(const struct agent_attempt *local);
/* Sets ret_dir to the job's folder, JOBS/7; "": the attempt's folder is not in a job's folder. */
void local_job_dir(const struct agent_attempt *local, char ret_dir[PATH_MAX]);

/* ---- local.c: a running attempt ---- */

/* The ranks of an attempt that run on this node. */
struct local_ranks {
    int64_t world; /* number of ranks on all nodes */
    int count;
    int64_t rank[HD_ATTEMPT_RANKS_MAX];
    const char *gpu[HD_ATTEMPT_RANKS_MAX]; /* UUID of each rank's GPU; all NULL on CPU devices */
};

/* Checks before local_launch whether a PLANNED attempt was already started, perhaps because its
 * files were hidden when its record was read. Returns true if it must not be started; it is ALIVE
 * or ENDED then. ran: the controller knows that the attempt ran on this node (DesiredAttempt.ran).
 */
bool local_take_up(struct agent_attempt *local, bool ran);
/* Writes the job file and starts the supervisor. A failure ends the attempt with the cause
 * launch_failed and the message. If the jobs directory is not writable now, the attempt stays
 * PLANNED and `waits`: call this function again later. */
void local_launch(struct agent_attempt *local, const char *job_text, size_t job_bytes,
                  const struct local_ranks *ranks);
void local_fail_launch(struct agent_attempt *local, bool bad_input, const char *message);
/* Marks a PLANNED attempt as waiting because a disk is not writable; the reason shown is
 * hd_err_message. */
void local_wait_to_start(struct agent_attempt *local);

/* tells the supervisor to write a checkpoint and then end */
void local_stop(struct agent_attempt *local);
/* tells the supervisor to write a checkpoint now and continue */
void local_save(struct agent_attempt *local);
void local_kill(struct agent_attempt *local);
void local_values(struct agent_attempt *local, int64_t rank, int64_t round, const void *value,
                  size_t value_bytes);
/* Removes the attempt's record; its files stay. If a supervisor has started meanwhile, a PLANNED
 * attempt becomes ALIVE instead and stays recorded. */
void local_forget(struct agent_attempt *local);

/* ---- watchdog.c: supervisors that do not answer ---- */

/* Checks whether an ALIVE attempt's supervisor answers; call a few times a second. */
void watch_supervisor(struct agent_attempt *local, int64_t now_ms);
void watchdog_received(struct agent_attempt *local,
                       int64_t now_ms); /* notes a message of the supervisor, of any kind */
/* Returns whether to send the supervisor a PING now. */
bool watch_wants_ping(struct agent_attempt *local, int64_t now_ms);

/* ---- local.c: all attempts ---- */

/* Connects to supervisors, and reads or derives the ends of attempts; call a few times a second. */
void locals_tick(struct locals *locals);
bool locals_any_alive(const struct locals *locals);
/* Frees the list of attempts without ending their supervisors. Run the loop once more afterwards,
 * to close the handles. */
void locals_close(struct locals *locals);

#endif
