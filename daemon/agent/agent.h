/* agent: heddled, the daemon of a node: it runs the node's share of the attempts that the
 * controller wants.
 *
 *     controller  <--stream.c-->  agent.c  --reconcile-->  local.c  <--socket-->  heddle-supervisor
 *
 * One loop, one thread (and libuv's pool for removing checkpoints). daemon/devices says what
 * devices there are and which of them work. Everything that heddled must remember is on
 * disk or in the controller: it may be killed and started again at any time, and finds the
 * supervisors by their records.
 *
 * Used by: its own files.   Uses: base, config, link, rpc, spec, daemon/attempt, daemon/devices,
 * libuv, the messages.
 */
#ifndef HD_DAEMON_AGENT_AGENT_H
#define HD_DAEMON_AGENT_AGENT_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "config/config.h"
#include "daemon/agent/address.h"
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
    AGENT_LOG_REQUESTS_MAX = 256, /* waiting for bytes */
};

struct agent_options {
    const char *controller; /* NULL: found as rpc/find.h says */
    const char *state_dir, *node_name, *devices, *data_address, *token_file, *worker;
    const char *launcher;                                   /* NULL: supervisors are children */
    const char *isolation, *cgroup, *data_roots, *job_cpus; /* NULL: not given */
    int64_t memory_slack_bytes;                             /* 0: the default */
    const char *choices_dir;                                /* NULL: choices in state_dir */
    const char *umask;                                      /* NULL: the default */
    bool doctor, json;
    bool json_log;
    const char *jobs_dir;                           /* with doctor */
    const char *http, *http_token_file, *http_host; /* NULL: not given */
    struct hd_rpc_tls tls;
    const char *tls_server_name; /* NULL: the controller's host */
    bool has_tls, ephemeral;
    const char *probe;           /* "first" or "never"; NULL: never if ephemeral, else first */
    int64_t leave_within_ms;     /* SIGTERM: jobs leave, and ranks end, within it; 0: ranks go on */
    int64_t supervisor_lost_ms;  /* 0: the default */
    int64_t device_memory_bytes; /* 0: not given */
    int64_t log_limit_bytes;     /* of a rank's log; 0: none */
    int64_t min_free_percent;    /* of the disks, to take new jobs (disk_space.h); 0: always */
};

/* One checkpoint that the controller wants removed. */
struct agent_deletion {
    struct agent_deletion *next;
    struct agent *agent;
    int64_t job, attempt, step; /* attempt 0: the folder of the whole job */
    char *path, *hash;
    char *jobs_dir; /* as the controller had it */
    char *cluster;  /* whose the job is */
    bool left;      /* a part stays: it is mounted, or another owner's; error says which */
    bool wanted;    /* by the newest desired state */
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
    struct agent_options options; /* their texts are config's */
    struct hd_config config;      /* as at the start */
    int argc;                     /* the command line, without the program's name */
    char **argv;
    void (*on_reload)(struct agent *agent); /* reads the configuration again */
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
    uv_timer_cb on_soon; /* of `soon` */
    uv_signal_t sigterm, sigint, sighup;
    int64_t reload;   /* the check of GPUs that ends the reload that systemd was told of; 0: none */
    char status[256]; /* what systemd was told last */
    int64_t watchdog_ms, fed_ms; /* systemd's, 0: none; when it was told of life last */

    /* probing.c: what the controller has of the probe */
    int64_t probe_reported_ms;
    uint64_t probe_reported_request;

    struct agent_web *web; /* web.c; NULL: there is no HTTP door */

    /* send.c, stream.c */
    struct hd_rpc_call *stream;
    bool introduce; /* the stream was cancelled to say a new hello */
    bool welcomed, ever_welcomed;
    char refusal[HD_ERR_MAX]; /* why this node does not obey the controller; "": it does */
    char why[HD_ERR_MAX];     /* last logged reason why a connection ended */
    int64_t reported_ms, received_ms, lost_ms, heartbeat_ms;
    int attempts_in_a_row;
    uint64_t nonce;
    char jobs_dir[PATH_MAX], probe_name[256], probe_text[256], probe[256], probe_problem[512];
    int64_t probed_ms;
    bool probe_taken; /* its file is that of another cluster's controller */
    bool probe_seen;  /* the jobs directory was the controller's, under this path */
    char refuses_attempts
        [DISK_SPACE_REASON_MAX]; /* why there are no new attempts here; "": there are */
    int64_t disk_space_ms;       /* when that was looked at */
    bool observed_dirty;
    struct hd_link_report batch[AGENT_REPORTS_A_MESSAGE];

    /* desired.c, agent.c */
    Heddle__V1__ControllerMessage *desired; /* the newest on this stream; NULL: none yet */
    uint64_t generation;
    bool reconcile_dirty, stopping;
    bool start_again;            /* after its end this process executes heddled anew */
    int64_t ahead_ms;            /* wall clock minus monotonic clock; 0: not read yet */
    int64_t clock_back_until_ms; /* monotonic time at which the wall clock is again where it was
                                    before it was set back; 0: it never was */
    int64_t away_ms;             /* monotonic time since which it is not connected; 0: it is */
    int64_t
        try_again_ms; /* something could not be written: when to reconcile again; 0: not needed */
    int64_t stop_deadline_ms;
    int64_t
        leave_deadline_ms; /* --leave-within: jobs leave this node until then; 0: not asked to */
    struct agent_deletion *deletions;
    int exit_code;

    /* logs.c */
    struct hd_rpc_call *logs;
    int64_t logs_retry_ms;
    struct agent_log_request log_requests[AGENT_LOG_REQUESTS_MAX];
    int log_request_count;
    uint8_t log_bytes[AGENT_LOG_BYTES_MAX];
};

/* The files, each of which calls only those before it: loop.c, isolate.c, deletion.c, send.c,
 * probing.c, desired.c, logs.c, stream.c, agent.c. */

/* ---- loop.c ---- */

/* How long to wait before trying to connect once more: doubles with each attempt in a row from 100
 * ms to 5 s; `noise`, a random number, says how much of the second half of it, so that nodes do not
 * come in step. */
int64_t agent_retry_ms(int attempts_in_a_row, uint64_t noise);
/* Whether a controller that has been silent for so long is to be given up: five heartbeats, and not
 * less than 15 s. */
bool agent_lost_controller(int64_t silent_ms, int64_t heartbeat_ms);

/* Between two connections: a certificate that was renewed meanwhile is shown from now on. */
void agent_use_new_certificate(struct agent *agent);

void agent_soon(struct agent *agent); /* in this turn: sends what has changed */
/* No rank outlives this heddled: --ephemeral, --leave-within. */
bool agent_ends_ranks(const struct agent *agent);
void agent_end(struct agent *agent, int exit_code); /* leaves the loop */
/* --leave-within: asks the controller to have all attempts stop at a checkpoint, and ends when it
 * has dropped them (agent_leave_tick), or when the time is over. */
void agent_leave(struct agent *agent);
void agent_leave_tick(struct agent *agent);

/* ---- isolate.c: what keeps jobs apart ---- */

/* Checks the options; what this machine can goes to isolation and locals, and what it lacks to the
 * log, once. HD_UNSUPPORTED: isolation is required, and this machine lacks a lock. */
enum hd_status isolate_open(struct agent *agent);
/* Of --check-config: HD_INVALID: a value cannot be. */
enum hd_status isolate_check(const struct agent_options *options);

/* ---- deletion.c: checkpoints that may go ---- */

void deletion_take(struct agent *agent, const Heddle__V1__DesiredState *desired);
void deletion_tick(struct agent *agent); /* tries again what failed */
void deletion_free_all(struct agent *agent);
/* Removes the checkpoint at `path` if its manifest has the hash, or does not exist. HD_CONFLICT: it
 * is another checkpoint, or a part stays (base/tree.h); HD_INVALID: the path is not a checkpoint's.
 */
enum hd_status deletion_remove(const char *path, const char *hash);
/* Removes the folder of a job that the controller has forgotten. HD_INVALID: `path` is not
 * JOBS_DIR/JOB; HD_CONFLICT: it is a link or a file, or a part stays. */
enum hd_status deletion_remove_job(const char *path, const char *jobs_dir, int64_t job);

/* ---- probing.c: what the devices were measured to do ---- */

void probing_open(struct agent *agent);
void probing_choose(struct agent *agent); /* which devices; called whenever those have changed */
void probing_tick(struct agent *agent);   /* also tells the controller what is new */
/* A stream has begun, on which the controller says which result it has; 0: none. */
void probing_welcome(struct agent *agent, int64_t known_ms);
void probing_ask(struct agent *agent, uint64_t request);
void probing_yield(struct agent *agent, int64_t job); /* its attempt is about to start here */

/* ---- desired.c: what the controller wants ---- */

/* Takes over the newest desired state, and applies it. */
void desired_take(struct agent *agent, Heddle__V1__ControllerMessage *message);
void desired_apply(struct agent *agent); /* once more, because something here has changed */
void desired_forget(struct agent *agent);

/* ---- logs.c: pieces of logs, on a stream of their own ---- */

void logs_open(struct agent *agent);
void logs_tick(struct agent *agent);

/* ---- send.c: what is sent to the controller ---- */

/* HD_UNAVAILABLE: there is no stream; HD_LIMIT: its queue is full. */
enum hd_status send_message(struct agent *agent, Heddle__V1__NodeMessage *message);
void send_changes(struct agent *agent); /* reports, and the observed set if it changed */
/* The observed set, though nothing has changed: the first message after the welcome. */
enum hd_status send_observed(struct agent *agent);
void send_put(struct agent *agent, const struct agent_attempt *local, const struct local_put *put);
/* Reads the probe in the jobs directory, for the next observed set. */
void send_read_probe(struct agent *agent);

/* ---- stream.c: the connection to the controller ---- */

void stream_open(struct agent *agent);
void stream_tick(struct agent *agent);
void stream_introduce(struct agent *agent); /* says hello again, because it has changed */

/* ---- agent.c ---- */

enum hd_status agent_open(struct agent *agent); /* from options */
/* Instead of opening: --doctor. Prints, and sets 0 (nothing is wrong) or 1. */
enum hd_status agent_doctor(struct agent *agent, int *ret_exit_code);
int agent_run(struct agent *agent); /* returns the exit status */

#endif
