/* local: the attempts on record on this node, each with its supervisor.
 *
 *     STATE_DIR/attempts/JOB-K       one attempt: its directories
 *
 * The record is written before anything is started and removed when the controller has dropped the
 * attempt. A new heddled finds the records, connects to the supervisors that live, and derives the
 * end of an attempt whose supervisor is dead (hd_attempt_conclude).
 *
 *   PLANNED --local_launch--> ALIVE --`end` was written or derived (locals_tick)--> ENDED
 *
 * While the jobs directory or the state directory takes no writes, what is PLANNED stays so, and
 * what is ALIVE and whose supervisor is dead, too; `trouble` says why.
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

/* A rank's value for a round of the rendezvous that the controller has not answered yet. */
struct local_put {
    int64_t rank, round; /* round -1: none */
    size_t value_bytes;
    uint8_t value[HD_LINK_VALUE_MAX];
};

struct agent_attempt {
    struct agent_attempt *next;
    struct locals *all;
    int64_t job, attempt;
    char *attempt_dir, *checkpoint_dir, *run_dir;
    char *run_as; /* system user of supervisor and ranks; NULL: heddled's own (job_user.h) */
    int64_t unit_due_ms, end_seen_ms; /* job_user.c */
    enum local_state state;
    bool recorded;             /* else the state directory takes no writes */
    enum hd_alloc_state alloc; /* as its supervisor has sent it */
    bool stop_wanted, kill_wanted;
    bool save_wanted;          /* and not sent yet */
    int32_t saves_asked;       /* of the desired set; told to the supervisor */
    struct hd_link_report end; /* with ENDED */
    struct agent_outbox *outbox;
    bool end_reported; /* ENDED and every report acknowledged: may be shown as ended */
    int64_t check; /* of the GPUs, that must be over before the end is told (hd_health); 0: none */

    uv_process_t *child; /* the supervisor, if this heddled started it and it lives */
    uv_poll_t *poll;     /* of fd */
    int fd;              /* to the supervisor; -1: not connected */
    bool greeted, commands_sent;
    int64_t alive_ms;     /* since when it is ALIVE here */
    bool refused_run_dir; /* a part of it is a link, or it is another cluster's, or another
                             attempt's: nothing is written below it */

    /* watchdog.c; times by the monotonic clock, 0: never */
    bool answers_pings;  /* the supervisor's build knows them */
    int64_t received_ms; /* the supervisor's last message */
    int64_t watched_ms;  /* the last look */
    int64_t pinged_ms, continued_ms, kill_ms;
    struct hd_starve starve;       /* of the silence since received_ms */
    int64_t log_bytes, stepped_ms; /* of the ranks' logs, while the supervisor is silent */
    char problem[256];             /* of the supervisor, while it does not answer; "": none */
    int64_t reported_ms;           /* since when there is a problem */

    /* What its ranks or its supervisor do without, or what keeps it from starting or from ending;
     * "": nothing. waits: it does not go on until that is over. */
    char trouble[HD_LINK_TEXT_MAX];
    bool waits;
    int64_t trouble_ms;  /* when it was told, to the controller and to the log */
    int64_t conclude_ms; /* not before then again */
    struct local_put *puts;
    int put_count;
};

struct locals {
    uv_loop_t *loop;
    char state_dir[PATH_MAX], supervisor[PATH_MAX], node[64];
    char choices_dir[PATH_MAX + 16]; /* absolute: of the GPUs' choices among algorithms */
    char worker[PATH_MAX];           /* "": the one in the supervisor's folder */
    char launcher[108];              /* socket of heddle-launcher; "": supervisors are children */
    const char *isolation, *data_roots, *job_cpus; /* of the options; NULL: not given */
    const char
        *group; /* control group for groups of attempts; "unit": the unit's own; NULL: none */
    char memory_slack[24];            /* of each rank, in bytes */
    const char *cluster;              /* its id, of the owner's mark; NULL or "": not known */
    bool jobs_dir_seen;               /* it was the cluster's: it is not made, but mounted */
    bool jobs_dir_away;               /* and is not any more: nothing is made in its place */
    const struct hd_devices *devices; /* NULL: not known */
    int64_t log_limit_bytes;          /* of a rank's log; 0: none */
    bool tied;                        /* supervisors end with this process */
    const char *data_address;         /* for ranks of other nodes; "": there is none */
    int64_t supervisor_lost_ms; /* silent for so long, with ranks that make no steps: killed */
    struct agent_attempt *first;
    /* on_change: an attempt's state, share, spool or end has changed; on_put: a rank has sent a
     * value for its peers. */
    void (*on_change)(void *user, struct agent_attempt *local);
    void (*on_put)(void *user, struct agent_attempt *local, const struct local_put *put);
    void *user;
    uint8_t received[HD_FRAME_BYTES_MAX];
};

/* ---- record.c: what is on disk, and the list ---- */

/* Reads the records. The state directory exists. */
enum hd_status locals_open(struct locals *locals);
struct agent_attempt *locals_find(const struct locals *locals, int64_t job, int64_t attempt);

/* Puts an attempt on record, PLANNED. run_as: NULL or "": as heddled's own user. HD_STORAGE: it is
 * in the list, but the state directory takes no writes; call local_record again later, and start
 * nothing before. */
enum hd_status locals_add(struct locals *locals, int64_t job, int64_t attempt,
                          const char *attempt_dir, const char *checkpoint_dir, const char *run_as,
                          struct agent_attempt **ret_local);
enum hd_status local_record(struct agent_attempt *local);
/* Removes the record, and the attempt from the list; it is still to be freed. */
void local_unrecord(struct agent_attempt *local);
void local_free(struct agent_attempt *local);
/* Returns whether a supervisor has ever started, by the files that it left in the run
 * directory. */
bool local_was_started(const struct agent_attempt *local);
/* HD_CONFLICT: the job's folder is another cluster's (owner.h). */
enum hd_status local_check_owner(const struct agent_attempt *local);
/* JOBS/7 of an attempt; "": its folder is none. */
void local_job_dir(const struct agent_attempt *local, char ret_dir[PATH_MAX]);

/* ---- local.c: an attempt that runs ---- */

/* Which ranks of an attempt are this node's. */
struct local_ranks {
    int64_t world; /* on all nodes */
    int count;
    int64_t rank[HD_ATTEMPT_RANKS_MAX];
    const char *gpu[HD_ATTEMPT_RANKS_MAX]; /* UUID of each one's; all NULL on CPU devices */
};

/* Checks, before local_launch, whether an attempt that is PLANNED was started already, perhaps
 * because its files were hidden when its record was read. Returns true if it must not be started:
 * it is ALIVE or ENDED now. ran: as in DesiredAttempt. */
bool local_take_up(struct agent_attempt *local, bool ran);
/* Writes the job file and starts the supervisor. A failure ends the attempt as launch_failed with
 * the message. If the jobs directory takes no writes now, the attempt stays PLANNED and `waits`:
 * call it again later. */
void local_launch(struct agent_attempt *local, const char *job_text, size_t job_bytes,
                  const struct local_ranks *ranks);
void local_fail_launch(struct agent_attempt *local, bool bad_input, const char *message);
/* It is not started now, for this thread's story: a disk takes no writes. It `waits`. */
void local_wait_to_start(struct agent_attempt *local);

void local_stop(struct agent_attempt *local); /* checkpoint, then end */
void local_save(struct agent_attempt *local); /* checkpoint now, then go on */
void local_kill(struct agent_attempt *local);
void local_values(struct agent_attempt *local, int64_t rank, int64_t round, const void *value,
                  size_t value_bytes);
/* Removes the record; its files stay. If a supervisor has started meanwhile, a PLANNED attempt
 * becomes ALIVE instead and stays. */
void local_forget(struct agent_attempt *local);

/* ---- watchdog.c: supervisors that do not answer ---- */

/* A few times a second, of an attempt that is ALIVE. */
void watch_supervisor(struct agent_attempt *local, int64_t now_ms);
void watchdog_received(struct agent_attempt *local,
                       int64_t now_ms); /* any message of the supervisor */
bool watch_wants_ping(struct agent_attempt *local, int64_t now_ms); /* true: it is to be sent now */

/* ---- local.c: all of them ---- */

/* Called a few times a second: connects to supervisors, notices and derives ends. */
void locals_tick(struct locals *locals);
bool locals_any_alive(const struct locals *locals);
/* Frees the list and leaves the supervisors alone. The loop must run once more for the handles. */
void locals_close(struct locals *locals);

#endif
