/* agent: heddled, the daemon of a node: it runs the node's share of the attempts that the
 * controller wants.
 *
 *     controller  <--stream.c-->  agent.c  --reconcile-->  local.c  <--socket-->  heddle-supervisor
 *
 * One loop, one thread; besides, libuv's pool removes checkpoints, and a thread of copies.c copies
 * them to object stores. daemon/devices lists the devices and checks which of them work. All
 * durable state is on disk or in the controller: heddled may be killed and restarted at any time,
 * and finds its supervisors by their records.
 *
 * Used by: its own files.   Uses: base, config, hub, link, rpc, spec, daemon/attempt, daemon/devices,
 * libuv, the messages.
 */
#ifndef HD_DAEMON_AGENT_AGENT_H
#define HD_DAEMON_AGENT_AGENT_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "config/config.h"
#include "daemon/agent/address.h"
#include "daemon/agent/copies.h"
#include "daemon/agent/disk_space.h"
#include "daemon/agent/identity.h"
#include "daemon/agent/join.h"
#include "daemon/agent/local.h"
#include "daemon/devices/health.h"
#include "daemon/devices/prober.h"
#include "heddle/v1/fleet.pb-c.h"
#include "rpc/rpc.h"

enum {
    AGENT_PROTOCOL_MIN = 2,
    AGENT_PROTOCOL_MAX = 2,
    AGENT_TICK_MS = 200,
    AGENT_SUPERVISOR_LOST_MS = 60 * 1000,
    AGENT_REPORTS_A_MESSAGE = 64,
    AGENT_LOG_BYTES_MAX = 256 << 10,
    /* limit of pending requests for log bytes that the rank has not written yet */
    AGENT_LOG_REQUESTS_MAX = 256,
};

struct agent_options {
    const char *controller; /* controller's address; NULL: searched as rpc/find.h describes */
    const char *state_dir, *node_name, *devices, *data_address, *token_file, *worker;
    const char *launcher; /* socket of heddle-launcher; NULL: supervisors are child processes */
    /* options of job isolation; NULL: not given */
    const char *isolation, *cgroup, *data_roots, *job_cpus;
    /* memory of a rank beyond its planned use, bytes; 0: the default */
    int64_t memory_slack_bytes;
    /* folder of stored GPU algorithm choices; NULL: `choices` in state_dir */
    const char *choices_dir;
    const char *umask; /* file mode mask of heddled and its ranks; NULL: the default */
    bool doctor, json;
    bool json_log;
    const char *jobs_dir; /* jobs directory that --doctor checks */
    /* options of the HTTP endpoint; NULL: not given */
    const char *http, *http_token_file, *http_host;
    struct hd_rpc_tls tls;
    /* host name expected in the certificate; NULL: the controller's host */
    const char *tls_server_name;
    bool has_tls, ephemeral;
    const char *probe; /* "first" or "never"; NULL: never if ephemeral, else first */
    /* time after SIGTERM for jobs to leave the node before their ranks are ended, ms; 0: ranks keep
     * running */
    int64_t leave_within_ms;
    int64_t supervisor_lost_ms;  /* time that a supervisor may be silent, ms; 0: the default */
    int64_t device_memory_bytes; /* bytes per device offered to ranks; 0: not given */
    int64_t log_limit_bytes;     /* limit of a rank's log, bytes; 0: none */
    /* free disk space needed to take new jobs, per cent (disk_space.h); 0: no check */
    int64_t min_free_percent;
};

/* One checkpoint or job folder that the controller wants removed. */
struct agent_deletion {
    struct agent_deletion *next;
    struct agent *agent;
    int64_t job, attempt, step; /* attempt 0: the folder of the whole job */
    char *path, *hash;
    char *jobs_dir; /* path of the jobs directory, as the controller named it */
    char *cluster;  /* id of the cluster that owns the job */
    /* part of the folder was not removed: it is a mount or has another owner; `error` names it */
    bool left;
    bool wanted; /* the newest desired state still lists this deletion */
    bool busy, done;
    int64_t tried_ms;
    uv_work_t work;
    struct hd_error error;
};

struct agent_log_request {
    uint64_t request;
    int64_t rank, offset_bytes, deadline_ms;
    int32_t max_bytes;
    char *path;
};

struct agent {
    struct agent_options options; /* texts are owned by config */
    struct hd_config config;      /* configuration at the start */
    int argc;                     /* command line of heddled, without the program's name */
    char **argv;
    void (*on_reload)(struct agent *agent); /* re-reads the configuration */
    struct agent_identity identity;
    struct agent_isolation isolation;
    struct agent_joined joined;
    struct hd_health health;
    struct hd_prober prober;
    char address[PATH_MAX], token[HD_RPC_TOKEN_MAX + 1];
    uv_loop_t *loop;
    struct hd_rpc *rpc;
    struct hd_rpc_client *client;
    struct locals locals;
    uv_timer_t tick, soon, retry;
    uv_timer_cb on_soon; /* callback of the timer `soon`, which sends pending changes */
    uv_signal_t sigterm, sigint, sighup;
    /* number of the GPU check at whose end systemd is told that the reload is done; 0: none */
    int64_t reload;
    char status[256]; /* last status text sent to systemd */
    /* systemd's watchdog interval, ms (0: none); time when the watchdog was last notified */
    int64_t watchdog_ms, fed_ms;

    /* state of probing.c: time of the probe result that the controller has */
    int64_t probe_reported_ms;
    uint64_t probe_reported_request;

    struct agent_web *web; /* web.c; NULL: no HTTP endpoint */

    /* state of send.c and stream.c */
    struct hd_rpc_call *stream;
    bool introduce; /* the stream must be reconnected at once, to send a new hello */
    bool welcomed, ever_welcomed;
    char refusal[HD_ERR_MAX]; /* why this node refuses the controller; "": it does not */
    char why[HD_ERR_MAX];     /* last logged reason why a connection ended */
    int64_t reported_ms, received_ms, lost_ms, heartbeat_ms;
    int attempts_in_a_row;
    uint64_t nonce;
    char jobs_dir[PATH_MAX], probe_name[256], probe_text[256], probe[256], probe_problem[512];
    int64_t probed_ms;
    bool probe_taken; /* the jobs directory's marker file names another cluster */
    bool probe_seen;  /* the jobs directory was this controller's before, under this path */
    char refuses_attempts
        /* why this node takes no new attempts, as for disk space; "": it takes them */
        [DISK_SPACE_REASON_MAX];
    int64_t disk_space_ms; /* time of the last check of disk space, monotonic */
    bool observed_dirty;
    int64_t
        copied_ms; /* time of the newest finished copy that an observed set was to tell; 0: none */
    struct hd_link_report batch[AGENT_REPORTS_A_MESSAGE];

    /* state of desired.c and agent.c */
    /* newest desired state on this stream; NULL: none yet */
    Heddle__V1__ControllerMessage *desired;
    uint64_t generation;
    bool reconcile_dirty, stopping;
    bool start_again; /* on exit, heddled is executed again in place */
    int64_t ahead_ms; /* wall clock minus monotonic clock; 0: not read yet */
    /* monotonic time at which the wall clock reaches the value from which it was set back; 0: it
     * was not set back */
    int64_t clock_back_until_ms;
    int64_t away_ms; /* monotonic time at which the connection was lost; 0: connected */
    int64_t
        /* monotonic time of the next reconcile after a write to disk failed; 0: none due */
        try_again_ms;
    int64_t stop_deadline_ms;
    int64_t
        /* --leave-within: monotonic deadline by which jobs leave this node; 0: not leaving */
        leave_deadline_ms;
    struct agent_deletion *deletions;
    struct agent_copies *copies; /* copies of checkpoints in object stores */
    int exit_code;

    /* state of logs.c */
    struct hd_rpc_call *logs;
    int64_t logs_retry_ms;
    struct agent_log_request log_requests[AGENT_LOG_REQUESTS_MAX];
    int log_request_count;
    uint8_t log_bytes[AGENT_LOG_BYTES_MAX];
};

/* Files of this package; each calls only those before it: loop.c, isolate.c, deletion.c, send.c,
 * probing.c, desired.c, logs.c, stream.c, agent.c. */

/* ---- loop.c ---- */

/* Returns the pause before the next try to connect to the controller, ms: it doubles with each try
 * in a row from 100 ms to 5 s. `noise`, a random number, varies the second half of the pause, so
 * that nodes do not reconnect simultaneously. */
int64_t agent_retry_ms(int attempts_in_a_row, uint64_t noise);
/* Returns whether a controller silent for silent_ms counts as lost: after five heartbeats, and at
 * least 15 s. */
bool agent_lost_controller(int64_t silent_ms, int64_t heartbeat_ms);

/* Makes the next connection use a renewed certificate; call between two connections. */
void agent_use_new_certificate(struct agent *agent);

/* schedules sending of changes to the controller in this turn of the loop */
void agent_soon(struct agent *agent);
/* Returns whether ranks must end when this heddled ends: --ephemeral, --leave-within. */
bool agent_ends_ranks(const struct agent *agent);
void agent_end(struct agent *agent, int exit_code); /* stops the loop with this exit code */
/* Asks the controller to stop all attempts on this node at a checkpoint (--leave-within). heddled
 * ends when the controller has dropped them (agent_leave_tick) or the deadline has passed. */
void agent_leave(struct agent *agent);
void agent_leave_tick(struct agent *agent);

/* ---- isolate.c: isolation of jobs ---- */

/* Checks the options of job isolation. Stores in `isolation` and `locals` what this machine
 * supports, and logs missing mechanisms once. HD_UNSUPPORTED: isolation is required, and the
 * machine lacks a mechanism. */
enum hd_status isolate_open(struct agent *agent);
/* Refuses options of job isolation that exclude each other: HD_INVALID. */
enum hd_status isolate_check(const struct agent_options *options);

/* ---- deletion.c: removal of checkpoints ---- */

void deletion_take(struct agent *agent, const Heddle__V1__DesiredState *desired);
/* retries failed deletions of checkpoints and job folders */
void deletion_tick(struct agent *agent);
void deletion_free_all(struct agent *agent);
/* Removes the checkpoint at `path` if its manifest has this hash; succeeds if it does not exist.
 * HD_CONFLICT: the folder holds another checkpoint, or part of it must not be removed
 * (base/tree.h); HD_INVALID: the path is not a checkpoint's. */
enum hd_status deletion_remove(const char *path, const char *hash);
/* Removes the folder of a job that the controller has removed. HD_INVALID: `path` is not
 * JOBS_DIR/JOB; HD_CONFLICT: `path` is a link or a file, or part of it must not be removed. */
enum hd_status deletion_remove_job(const char *path, const char *jobs_dir, int64_t job);

/* ---- probing.c: measured speed of the devices ---- */

void probing_open(struct agent *agent);
/* selects the devices to probe; called when the devices have changed */
void probing_choose(struct agent *agent);
/* runs probes when devices are idle; sends new results to the controller */
void probing_tick(struct agent *agent);
/* Compares the time of the probe result that the controller has (0: none) with this node's, at the
 * start of a stream. */
void probing_welcome(struct agent *agent, int64_t known_ms);
void probing_ask(struct agent *agent, uint64_t request);
/* Ends a running probe of the devices, because an attempt of this job is about to start. */
void probing_yield(struct agent *agent, int64_t job);

/* ---- desired.c: the desired state ---- */

/* Stores the newest desired state and applies it. */
void desired_take(struct agent *agent, Heddle__V1__ControllerMessage *message);
/* applies the newest desired state again, after a change on this node */
void desired_apply(struct agent *agent);
void desired_forget(struct agent *agent);

/* ---- logs.c: pieces of logs, on a separate stream ---- */

void logs_open(struct agent *agent);
void logs_tick(struct agent *agent);

/* ---- send.c: messages to the controller ---- */

/* Queues a message to the controller. HD_UNAVAILABLE: no stream is open; HD_LIMIT: the stream's
 * queue is full. */
enum hd_status send_message(struct agent *agent, Heddle__V1__NodeMessage *message);
/* sends the attempts' reports, and the observed set of attempts if it changed */
void send_changes(struct agent *agent);
/* Sends the observed set of attempts even if unchanged; it is the first message after the welcome.
 */
enum hd_status send_observed(struct agent *agent);
void send_put(struct agent *agent, const struct agent_attempt *local, const struct local_put *put);
/* Reads the marker file in the jobs directory; the next observed set contains it. */
void send_read_probe(struct agent *agent);

/* ---- stream.c: the connection to the controller ---- */

void stream_open(struct agent *agent);
void stream_tick(struct agent *agent);
/* Reconnects to the controller and sends a new hello, because its contents have changed. */
void stream_introduce(struct agent *agent);

/* ---- agent.c ---- */

enum hd_status agent_open(struct agent *agent); /* initializes from `options` */
/* Runs --doctor instead of agent_open. Prints findings and sets the exit code: 0 (no problem) or 1.
 */
enum hd_status agent_doctor(struct agent *agent, int *ret_exit_code);
int agent_run(struct agent *agent); /* runs the loop; returns heddled's exit status */

#endif
