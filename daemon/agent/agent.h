/* agent: heddled, which owns a node's devices and does what the controller wants with them.
 *
 *     controller  <--stream.c-->  agent.c  --reconcile-->  local.c  <--socket-->  heddle-supervisor
 *
 * One loop, one thread (and libuv's pool for removing checkpoints). offer.c knows what devices
 * there are, by asking a process beside the loop. heddled holds nothing that is not on disk or in
 * the controller: it may be killed and started again at any time, and finds the supervisors by
 * their records.
 *
 * Used by: its own files.   Uses: base, link, rpc, spec, daemon/attempt, libuv, the messages.
 */
#ifndef HD_DAEMON_AGENT_AGENT_H
#define HD_DAEMON_AGENT_AGENT_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "daemon/agent/address.h"
#include "daemon/agent/ask.h"
#include "daemon/agent/identity.h"
#include "daemon/agent/local.h"
#include "daemon/agent/question.h"
#include "daemon/agent/withdrawn.h"
#include "heddle/v1/fleet.pb-c.h"
#include "rpc/rpc.h"

enum {
    AGENT_PROTOCOL_MIN = 1,
    AGENT_PROTOCOL_MAX = 1,
    AGENT_TICK_MS = 200,
    AGENT_REPORTS_A_MESSAGE = 64,
    AGENT_LOG_BYTES_MAX = 256 << 10,
    AGENT_LOG_REQUESTS_MAX = 256, /* waiting for bytes */
};

struct agent_options {
    const char *controller; /* NULL: found as rpc/find.h says */
    const char *state_dir, *node_name, *devices, *data_address, *token_file, *worker;
    bool doctor, json;
    const char *jobs_dir; /* with doctor */
    struct hd_rpc_tls tls;
    bool has_tls, ephemeral;
};

/* One checkpoint that the controller wants removed. */
struct agent_deletion {
    struct agent_deletion *next;
    struct agent *agent;
    int64_t job, attempt, step;
    char *path, *hash;
    bool wanted; /* by the newest desired state */
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

/* The question about GPUs, and what it is for. */
struct agent_offer {
    struct agent_devices_wish wish;
    char worker[PATH_MAX + 16];
    bool cpu_bf16;
    struct agent_ask ask;
    struct agent_question question;
    int64_t killed_ms; /* when one under way was, for another; 0: it has ended since */
    int64_t write_ms;  /* when what is known is written again, if that has failed */
    bool opening;      /* which attempts there are is not known yet */
    struct agent_withdrawn withdrawn;
};

struct agent {
    struct agent_options options;
    struct agent_identity identity;
    char address[PATH_MAX], token[HD_RPC_TOKEN_MAX + 1];
    uv_loop_t *loop;
    struct hd_rpc *rpc;
    struct hd_rpc_client *client;
    struct locals locals;
    uv_timer_t tick, soon, retry;
    uv_signal_t sigterm, sigint, sighup;

    /* offer.c */
    struct agent_known known;
    struct agent_offer offer;

    /* stream.c */
    struct hd_rpc_call *stream;
    bool introduce; /* the stream ends for the sake of a new hello */
    bool welcomed, ever_welcomed;
    int64_t said_ms, heard_ms, lost_ms, heartbeat_ms;
    int attempts_in_a_row;
    uint64_t nonce;
    char jobs_dir[PATH_MAX], probe_name[256], probe_text[256], probe[256], probe_problem[512];
    int64_t probed_ms;
    bool observed_dirty;
    struct hd_link_report batch[AGENT_REPORTS_A_MESSAGE];

    /* agent.c */
    Heddle__V1__ControllerMessage *desired; /* the newest on this stream; NULL: none yet */
    uint64_t generation;
    bool reconcile_dirty, stopping;
    int64_t try_again_ms; /* something could not be put on record: when to reconcile anew; 0: no */
    int64_t stop_deadline_ms;
    struct agent_deletion *deletions;
    int exit_code;

    /* logs.c */
    struct hd_rpc_call *logs;
    int64_t logs_retry_ms;
    struct agent_log_request log_requests[AGENT_LOG_REQUESTS_MAX];
    int log_request_count;
    uint8_t log_bytes[AGENT_LOG_BYTES_MAX];
};

/* ---- agent.c ---- */

enum hd_status agent_open(struct agent *agent); /* from options */
/* Instead of opening: --doctor. Prints, and sets 0 (nothing is wrong) or 1. */
enum hd_status agent_doctor(struct agent *agent, int *ret_exit_code);
int agent_run(struct agent *agent);   /* returns the exit status */
void agent_soon(struct agent *agent); /* something changed: look at it in this turn */
void agent_end(struct agent *agent, int exit_code);
void agent_take_desired(struct agent *agent, Heddle__V1__ControllerMessage *message); /* owns it */
void agent_forget_desired(struct agent *agent);

/* ---- stream.c: the controller ---- */

void stream_open(struct agent *agent);
void stream_flush(struct agent *agent); /* sends reports and the observed set, if they changed */
void stream_tick(struct agent *agent);
void stream_introduce(struct agent *agent); /* what a hello says has changed: says it */
void stream_put(struct agent *agent, const struct local *local, const struct local_put *put);

/* ---- offer.c: the devices ---- */

enum hd_status offer_open(struct agent *agent); /* blocks while it asks */
void offer_attempts_known(struct agent *agent); /* and again when there are less of them */
void offer_close(struct agent *agent);
void offer_tick(struct agent *agent);
void offer_ask_now(struct agent *agent);
void offer_attempt_ended(struct agent *agent, struct local *local);

/* ---- logs.c: pieces of logs, on a stream of their own ---- */

void logs_open(struct agent *agent);
void logs_tick(struct agent *agent);

/* ---- deletion.c: checkpoints that may go ---- */

void deletion_take(struct agent *agent, const Heddle__V1__DesiredState *desired);
void deletion_tick(struct agent *agent); /* tries again what failed */
void deletion_free_all(struct agent *agent);
/* What is at stake, for tests: removes the checkpoint at `path` if its manifest has the hash, or is
 * gone. HD_CONFLICT: another checkpoint is there; HD_INVALID: the path is not a checkpoint's. */
enum hd_status deletion_remove(const char *path, const char *hash);

#endif
