/* local: the attempts on record on this node, each with its supervisor.
 *
 *     STATE_DIR/attempts/JOB-K       that the attempt is here, and where its directories are
 *
 * The record is written before anything is started and removed when the controller has dropped the
 * attempt. A new heddled finds the records, connects to the supervisors that live and concludes
 * for those that do not (attempt/attempt.h).
 *
 *   PLANNED --local_launch--> ALIVE --its `end` is there, or concluded (look_after)--> ENDED
 *
 * Used by: agent.   Uses: base, link, daemon/attempt, libuv.   Threads: the loop's.
 */
#ifndef HD_DAEMON_AGENT_LOCAL_H
#define HD_DAEMON_AGENT_LOCAL_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "base/status.h"
#include "daemon/agent/outbox.h"
#include "daemon/attempt/attempt.h"
#include "link/link.h"

enum local_state { LOCAL_PLANNED, LOCAL_ALIVE, LOCAL_ENDED };

/* A rank's share of a rendezvous that was not answered yet. */
struct local_put {
    int64_t rank, round; /* round -1: none */
    size_t value_bytes;
    uint8_t value[HD_LINK_VALUE_MAX];
};

struct local {
    struct local *next;
    struct locals *all;
    int64_t job, attempt;
    char *attempt_dir, *checkpoint_dir, *run_dir;
    enum local_state state;
    enum hd_attempt_state share; /* as its supervisor says */
    bool stop_wanted, kill_wanted;
    struct hd_link_report end; /* with ENDED */
    struct agent_outbox *outbox;
    bool end_told;    /* ENDED and every report acknowledged: may be shown as ended */
    bool inherited;   /* an earlier heddled has put it on record */
    bool on_gpus;     /* or may be, where it is inherited */
    bool weighed;     /* whether its end says that a GPU may be broken (offer.c) */
    int64_t question; /* about GPUs, that must be answered before it is shown as ended; 0: none */

    uv_process_t *child; /* the supervisor, if this heddled started it and it lives */
    uv_poll_t *poll;     /* of fd */
    int fd;              /* to the supervisor; -1: not connected */
    bool greeted, commands_sent;
    int64_t alive_ms; /* since when it is ALIVE here */
    struct local_put *puts;
    int put_count;
};

struct locals {
    uv_loop_t *loop;
    char state_dir[PATH_MAX], supervisor[PATH_MAX], node[64];
    char worker[PATH_MAX];    /* "": the one beside the supervisor */
    bool tied;                /* supervisors end with this process */
    const char *data_address; /* where other nodes reach this one's ranks; "": nowhere */
    struct local *first;
    /* What happened to one: state, share, spool or end; and a rank's value for its peers. */
    void (*on_change)(void *user, struct local *local);
    void (*on_put)(void *user, struct local *local, const struct local_put *put);
    void *user;
    uint8_t received[HD_FRAME_BYTES_MAX];
};

/* Reads the records. The state directory exists. */
enum hd_status locals_open(struct locals *locals);
/* Leaves the supervisors alone. The loop must run once more for the handles. */
void locals_close(struct locals *locals);

struct local *locals_find(const struct locals *locals, int64_t job, int64_t attempt);

/* Puts an attempt on record, PLANNED. */
enum hd_status locals_add(struct locals *locals, int64_t job, int64_t attempt,
                          const char *attempt_dir, const char *checkpoint_dir,
                          struct local **ret_local);

/* Which ranks of an attempt are this node's. */
struct local_ranks {
    int64_t world; /* on all nodes */
    int count;
    int64_t rank[HD_ATTEMPT_RANKS_MAX];
    const char *gpu[HD_ATTEMPT_RANKS_MAX]; /* UUID of each one's; all NULL on CPU devices */
};

/* Writes the job file and starts the supervisor. A failure ends the attempt as launch_failed with
 * the story: it is not the caller's any more. */
void local_launch(struct local *local, const char *job_text, size_t job_bytes,
                  const struct local_ranks *ranks);
void local_fail_launch(struct local *local, bool bad_input, const char *message);

void local_stop(struct local *local); /* checkpoint, then end */
void local_kill(struct local *local);
void local_values(struct local *local, int64_t rank, int64_t round, const void *value,
                  size_t value_bytes);
/* Removes the record; its files stay. A planned one turns out to be ALIVE if a supervisor has come
 * up meanwhile; then it stays. */
void local_forget(struct local *local);

/* Called a few times a second: connects, notices ends, concludes for the dead. */
void locals_look_after(struct locals *locals);
bool locals_any_alive(const struct locals *locals);

#endif
