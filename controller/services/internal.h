/* internal: the controller's state; only for the files of this folder. */
#ifndef HD_CONTROLLER_SERVICES_INTERNAL_H
#define HD_CONTROLLER_SERVICES_INTERNAL_H

#include "base/clock.h"
#include "controller/identity/authority.h"
#include "controller/identity/identity.h"
#include "controller/services/controller.h"
#include "controller/services/guard.h"
#include "controller/services/job_stats.h"
#include "controller/services/jobs_mark.h"
#include "controller/services/veil.h"
#include "controller/store/store.h"
#include "heddle/v1/control.pb-c.h"
#include "heddle/v1/fleet.pb-c.h"
#include "heddle/v1/job.pb-c.h"
#include "proto/step.h"

enum {
    /* longest pause between two messages of a live daemon to the controller, ms */
    HEARTBEAT_MS = 3000,
    TICK_MS = 500,                /* period of the core event TICK, ms */
    LOG_CHUNK_BYTES = 256 * 1024, /* limit of log bytes in one message */
    PAGE_DEFAULT = 100,           /* items of a list if the request names no limit */
    PAGE_MAX = 1000,
    RENDEZVOUS_VALUE_MAX = 4096, /* limit of the bytes of one rank's value in a rendezvous round */
    RENDEZVOUS_ROUNDS_MAX = 16,  /* limit of open rendezvous rounds of one attempt */
};

/* An action that runs after the commit of its transaction. `run` gets HD_OK then; any other status
 * means that the batch was dropped and nothing of it is stored. `run` frees the action. */
struct post_commit_action {
    void (*run)(struct post_commit_action *action, struct controller *c, enum hd_status st);
    struct post_commit_action *next;
};

/* One or several core steps that are committed in one batch, and their post-commit actions. */
struct transaction {
    struct controller *c;
    struct hd_batch *batch;
    struct post_commit_action *first, **end;
    int64_t handed_over_ns; /* time when the batch was passed to the store (monotonic) */
    uint64_t *jobs;         /* jobs that the steps changed; their watchers are notified */
    size_t job_count, job_size;
};

/* A part of the controller that acts on transactions: transaction.c calls it by the table that
 * controller_new registers. A NULL member: the part does not act then. */
struct transaction_sink {
    /* Called after each step, in its transaction; `out` is what the step requested. */
    void (*stepped)(struct controller *c, const struct hd_core_out *out);
    /* Called before the batch is handed to the store; may add to it. */
    void (*ending)(struct controller *c, struct transaction *transaction);
    /* Called after the commit for each job that the transaction changed. */
    void (*committed)(struct controller *c, uint64_t job);
};

struct node_stream;
struct watcher;
struct log_reader;
struct log_piece;
struct refusals;
struct rendezvous;
struct reply;
struct ckpt_search;
struct planning;
struct validation;
struct job_plan;
struct jobs_dir_check;

enum { CONTROLLER_UNKNOWN_MAX = 64 };

struct controller {
    uv_loop_t *loop;
    struct controller_options options;
    char state_dir[HD_CTL_PATH_BYTES_MAX], jobs_dir[HD_CTL_PATH_BYTES_MAX];
    /* first line of the file JOBS_DIR_MARK: random, new in each start of the controller */
    char probe[80];
    int64_t probe_due_ms;               /* time of the next jobs directory check (monotonic) */
    char jobs_share[HD_JOBS_SHARE_MAX]; /* id of the jobs directory; "": it has none yet */
    char jobs_dir_problem[HD_ERR_MAX];  /* why jobs_dir cannot be used; "": it can be used */
    /* the last check found in JOBS_DIR_MARK the first line that this start wrote */
    bool jobs_marked;
    bool lacks_jobs; /* jobs_dir has no folder of any job that the database has */
    struct jobs_dir_check *jobs_dir_check;
    int port;
    struct hd_rpc *rpc;
    struct hd_rpc_server *server;
    struct hd_job_store *store;
    struct hd_core *core;
    struct hd_core_out out;          /* output of the last step */
    struct transaction *transaction; /* open transaction; NULL: none */
    int transaction_depth;
    const struct transaction_sink *sinks; /* called in this order */
    size_t sink_count;
    uv_timer_t tick;
    uint64_t last_stream, last_log_request;
    struct node_stream *streams;
    struct watcher *watchers;
    struct log_reader *log_readers;
    struct log_piece *log_pieces;
    struct rendezvous *rendezvous;
    struct reply *replies; /* replies that wait for a commit */
    struct ckpt_search *searches;
    struct planning *plannings;     /* layout searches that the core requested, the oldest first */
    struct validation *validations; /* ValidateJob calls that wait for a layout */
    struct job_plan *job_plans;     /* PlanJob calls; the search of the first one is running */
    void *inventories;              /* search tree of the nodes' link inventories (topology.c) */
    void *probes;                   /* search tree of the nodes' calibrations (probe.c) */
    struct hd_node_tree *tree;      /* switches of options.cluster_file; NULL: no file */
    struct hd_arena tree_arena;     /* owns `tree`; initialised only with options.cluster_file */
    struct stats stats;
    struct web *web;     /* HTTP listener; NULL: none */
    int64_t tick_due_ms; /* time of the next tick (monotonic); 0: before the first tick */
    struct hd_credentials *credentials;
    struct hd_policy *policy;
    /* buffer of run_as(): system user of the last attempt that began */
    char run_as[HD_USER_BYTES_MAX + 1];
    struct hd_usages *usages;
    struct refusals *refusals;
    struct guard_method *methods; /* one per row of rpcs.def */
    /* certificate authority; NULL: heddle-controller init has not made one */
    struct hd_authority *authority;
    struct hd_rpc_tls tls; /* certificate of the authority, used if the options name none */
    bool own_tls;
    bool certificate_due; /* certificate renewed, but not yet installed in both listeners */
    struct {              /* state of fence.c */
        uint64_t number;  /* epoch of this controller */
        /* newest progress value of this epoch; `durable`: newest committed progress value */
        uint64_t progress;
        uint64_t durable;
        int64_t progress_due_ms; /* time of the next progress value (monotonic) */
        /* time when this database was last restored from a copy (wall); 0: never */
        int64_t taken_over_ms;
        /* time when the copy was made from which that restore began (wall); 0: unknown */
        int64_t copied_ms;
        bool rose; /* the epoch was raised in this run, because a node had obeyed a newer one */
        unsigned char proof[HD_CREDENTIAL_HASH_BYTES];
    } fence;
    /* hashes of certificates already reported as missing in the database (adopt.c) */
    unsigned char unknown[CONTROLLER_UNKNOWN_MAX][HD_CREDENTIAL_HASH_BYTES];
    size_t unknown_count;
    /* clock for deletions and other actions that cannot be undone (base/clock.h) */
    struct hd_clock_settled settled;
    int64_t retention_due_ms;
    int64_t credentials_due_ms; /* time of the next check for expired credentials (monotonic) */
    /* timeout of systemd's watchdog, 0: none; time of the last keep-alive sent to it */
    int64_t watchdog_ms, fed_ms;
    bool takes_nodes;       /* the token file for nodes contains tokens */
    bool self_check_failed; /* the self-check cannot connect to the controller's own address */
    bool unwritable;        /* the disk of the database accepts no commit */
    char status[256];       /* last STATUS= sent to systemd */
    bool stopping;
    void (*on_stopped)(void *user);
    void *stopped_user;
};

struct hd_now controller_now(void); /* now.c */
/* Calls on_fatal once with the message of hd_err; afterwards the controller refuses all core steps.
 */
void controller_fail(struct controller *c, enum hd_status st);

/* ---- transaction.c ----------------------------------------------------------------------------*/

/* Begins a transaction of any number of steps. Transactions nest: the outermost transaction_end
 * commits. */
void transaction_begin(struct controller *c);
enum hd_status transaction_step(struct controller *c, const struct hd_core_event *event);
void transaction_when_durable(struct controller *c, struct post_commit_action *action);
void transaction_end(struct controller *c);

/* ---- adopt.c ----------------------------------------------------------------------------------*/

/* Adds to the database a certificate that it lacks because the certificate was signed after the
 * backup from which the database was restored. Returns its new credential; NULL: the certificate
 * does not meet the conditions in adopt.c. */
const struct hd_credential_record *adopt_certificate(struct controller *c, const char *pem,
                                                     const struct hd_pki_certificate *cert);
/* Return HD_DENIED for a certificate or token that the database lacks; the message tells the caller
 * how to get a valid credential. */
enum hd_status adopt_refuse_certificate(const struct controller *c,
                                        const struct hd_pki_certificate *cert);
enum hd_status adopt_refuse_token(const struct controller *c);

/* ---- fence.c ----------------------------------------------------------------------------------*/

void fence_open(struct controller *c); /* requires an open store */
/* Adds the next progress value to a non-empty transaction, at most every 10 s. */
void fence_count(struct controller *c, struct transaction *transaction);

/* ---- credential.c, credential_find.c, audit.c, limits.c, retention.c --------------------------*/

enum hd_status credential_register(struct controller *c);
void credential_tick(struct controller *c);
void retention_tick(struct controller *c); /* deletes old history (retention.c) */
/* Ends the certificates and invitations of a removed node, in a transaction. Its stream stays open
 * so that fleet_send_removed can notify the daemon. */
void credential_end_node(struct controller *c, const char *node, const char *by);
/* Returns the node's valid certificate that expires last; NULL: none. It may be newer than the one
 * of the node's connection, which keeps the certificate that it was opened with. */
const struct hd_credential_record *credential_newest_of_node(const struct controller *c,
                                                             const char *node, int64_t now_ms);
/* Returns whether a certificate was made while the clock was ahead, and is not valid yet. */
bool credential_is_from_future(const struct hd_credential_record *cert, int64_t now_ms);
/* Returns the credential of a certificate; NULL: none. An expired certificate of a node still
 * counts if the node has a newer valid one, because the connection may be older than the renewal.
 */
const struct hd_credential_record *credential_of_cert(const struct controller *c,
                                                      const unsigned char *hash);
/* Returns whether an open stream of this caller may continue: its credential has neither expired
 * nor been revoked. */
bool credential_is_valid(const struct controller *c, const struct hd_rpc_principal *caller);
void audit_list(struct hd_rpc_call *call, const ProtobufCMessage *request);
void limits_get(struct hd_rpc_call *call, const ProtobufCMessage *request);

/* ---- convert.c --------------------------------------------------------------------------------*/

/* Returns JobStatus.stale of a job that has not ended: why its status may be outdated; "": it is
 * not. */
const char *convert_stale(const struct controller *c);
/* Return a message that lives in `arena` and points into the records; keep both until the message
 * is packed. NULL: out of memory. The veil hides other users' jobs from the caller who gets the
 * message. */
Heddle__V1__JobStatus *convert_job(struct hd_arena *arena, const struct controller *c,
                                   const struct veil *veil, const struct hd_job_row *row);
enum hd_status convert_job_details(struct hd_arena *arena, const struct veil *veil,
                                   const struct hd_query *query, Heddle__V1__JobStatus *status);
Heddle__V1__Plan *convert_plan(struct hd_arena *arena, const struct hd_plan_record *plan);
Heddle__V1__EndReport *convert_end(struct hd_arena *arena, const struct veil *veil,
                                   const struct hd_end_record *end);
Heddle__V1__CheckpointInfo *convert_checkpoint(struct hd_arena *arena,
                                               const struct hd_checkpoint_record *checkpoint);
Heddle__V1__Event *convert_event(struct hd_arena *arena, const struct veil *veil,
                                 const struct hd_event_record *event);
/* Convert all rows of a query, in its arena; hd_arena_failed: not all. The best of the checkpoints
 * whose files are there is marked. */
Heddle__V1__JobStatus **convert_jobs(struct hd_query *query, const struct controller *c,
                                     const struct veil *veil);
Heddle__V1__CheckpointInfo **convert_checkpoints(struct hd_query *query);
Heddle__V1__Event **convert_events(struct hd_query *query, const struct veil *veil);
Heddle__V1__StepReport *convert_step(struct hd_arena *arena, const struct hd_step_record *step);
Heddle__V1__ValidationReport *convert_validation(struct hd_arena *arena,
                                                 const struct hd_validation_record *validation);
Heddle__V1__NodeStatus *convert_node(struct hd_arena *arena, const struct controller *c,
                                     const struct veil *veil, size_t index);
void convert_queue(const struct controller *c, size_t index, Heddle__V1__QueueStatus *ret_queue);

/* Decodes a stored JobSpec; its lists live in `arena`. HD_CORRUPT: it cannot be decoded. */
enum hd_status convert_unpack_spec(const void *bytes, size_t count, struct hd_arena *arena,
                                   struct hd_job *ret_job);
/* Returns the part of a job that the core needs; the name points into the job. */
struct hd_job_needs convert_needs(const struct hd_job *job);
/* Convert a message to a record; strings point into the message. */
struct hd_end_record convert_end_record(const Heddle__V1__EndReport *end);
struct hd_checkpoint_record convert_checkpoint_record(const Heddle__V1__CheckpointInfo *info);
/* Casts const away for protobuf-c, which only reads; NULL becomes "". */
static inline char *convert_text(const char *text)
{
    return (char *)(uintptr_t)(text ? text : "");
}

/* Return a path in `arena`: <jobs_dir>/<job>, its attempt-<attempt>, and in that a rank's log file
 * and the folder `checkpoints`. NULL: out of memory.
 */
const char *convert_job_dir(struct hd_arena *arena, const struct controller *c, uint64_t job);
const char *convert_attempt_dir(struct hd_arena *arena, const struct controller *c, uint64_t job,
                                int32_t attempt);
const char *convert_log_path(struct hd_arena *arena, const struct controller *c, uint64_t job,
                             int32_t attempt, int32_t rank);
const char *convert_checkpoint_dir(struct hd_arena *arena, const struct controller *c, uint64_t job,
                                   int32_t attempt);

/* ---- search.c ---------------------------------------------------------------------------------*/

/* Starts to list an attempt's complete checkpoints in a thread; the list reaches the core as an
 * event. */
void search_begin(struct controller *c, const struct hd_core_search *asked);
/* Detaches checkpoint searches in progress: their results are dropped. */
void search_forget_all(struct controller *c);

/* ---- planner.c --------------------------------------------------------------------------------*/

/* Starts the layout searches that the core's newest step requested; each found layout reaches the
 * core as an event. */
void planner_ask(struct controller *c, const struct hd_core_out *out);
/* Detaches layout searches in progress: their results are dropped. */
void planner_forget_all(struct controller *c);
/* returns the number of layout searches in progress or queued */
size_t planner_count(const struct controller *c);
/* Replaces the cluster's predicted rates by those of a calibration (text), if that was measured on
 * GPUs of this kind; else changes nothing. The calibration is read into `arena`. */
void planner_calibrate(struct hd_arena *arena, const char *calibration,
                       const struct hd_gpu_kind *kind, struct hd_cluster *cluster);
/* Sets *ret_cluster to the CPU devices of one node, with the rates that its probe measured. False:
 * the probe ran under another build, or measured too little. Any thread. */
bool planner_measured(struct hd_arena *arena, const char *calibration,
                      const struct hd_traits *traits, int64_t devices, int32_t threads,
                      int64_t memory_bytes, struct hd_cluster *ret_cluster);

/* ---- plan_job.c -------------------------------------------------------------------------------*/

/* Detaches the layout search of a PlanJob call in progress: its result is dropped. */
void plan_job_forget_all(struct controller *c);

/* ---- topology.c -------------------------------------------------------------------------------*/

/* Reads options.cluster_file. HD_INVALID: the message says what is wrong with the file. */
enum hd_status topology_read_file(struct controller *c);
/* Stores the link inventory (links between its devices) that a node reported; NULL: the node
 * reported none. */
void topology_keep(struct controller *c, const char *uuid,
                   const Heddle__V1__NodeInventory *reported);
void topology_free_all(struct controller *c);
/* Converts a reported link inventory (links between a node's devices) for the core. Returns false
 * if it lacks a pair of devices or contradicts itself. */
bool topology_links(const Heddle__V1__NodeInventory *reported, size_t devices,
                    struct hd_node_links *ret_links);
void control_get_topology(struct hd_rpc_call *call, const ProtobufCMessage *request);

/* ---- jobs_dir.c -------------------------------------------------------------------------------*/

/* Makes c->probe, and writes the file JOBS_DIR_MARK if the jobs directory may be used. HD_CONFLICT:
 * the directory belongs to another cluster. If the directory is not the one whose id the database
 * has, sets c->jobs_dir_problem and returns HD_OK. */
enum hd_status jobs_dir_acquire(struct controller *c);
void jobs_dir_report(struct controller *c); /* sends jobs_dir_problem to the core */
/* Starts a check of the jobs directory when it is due (every jobs_dir_check_ms). */
void jobs_dir_tick(struct controller *c);
void jobs_dir_close(struct controller *c);

/* ---- probe.c ----------------------------------------------------------------------------------*/

/* Passes a daemon's probe report to the core and stores its calibration. An unreadable calibration
 * counts as none; its error becomes the record's problem. */
enum hd_status probe_take(struct controller *c, const char *uuid, uint64_t stream,
                          const Heddle__V1__ProbeReport *m);
/* Restores a node's probe from the store when the controller starts. */
enum hd_status probe_load(struct controller *c, const struct hd_probe_record *record);
/* Returns the probe result of the node at `index`, allocated in `arena`. NULL: the node was never
 * probed and no probe is pending, or out of memory. */
Heddle__V1__NodeProbe *probe_show(struct controller *c, const struct veil *veil,
                                  struct hd_arena *arena, size_t index);
/* Returns a copy of the node's calibration text in `arena`; NULL: it has none. */
const char *probe_calibration(const struct controller *c, struct hd_arena *arena, const char *uuid);
void probe_free_all(struct controller *c);

/* ---- web.c ------------------------------------------------------------------------------------*/

/* Opens the HTTP listener options.http; without that option does nothing. */
enum hd_status web_open(struct controller *c);
/* Returns HD_DENIED if a policy is given while the HTTP listener accepts requests without a token:
 * with a policy several people use the controller.
 */
enum hd_status web_check_policy(const struct controller *c, bool has_policy);
/* Installs a renewed certificate in the HTTP listener; without a listener does nothing. */
enum hd_status web_set_tls(struct controller *c, const struct hd_rpc_tls *tls);
void web_close(struct controller *c, void (*on_closed)(void *user), void *user);
/* sends the job's number to the dashboards' open streams after a commit that changed the job */
void web_announce(struct controller *c, uint64_t job);
void web_tick(struct controller *c);

/* ---- the services -----------------------------------------------------------------------------*/

enum hd_status control_register(struct controller *c);
enum hd_status fleet_register(struct controller *c);

/* Fails the calls whose reply waits for a commit; called while the disk takes no writes. */
void control_fail_waiting(struct controller *c, const char *message);
/* Replies to the ValidateJob calls that waited for a layout; called after a layout search ends. */
void control_go_on_validating(struct controller *c);
void control_forget_validations(struct controller *c);

void watch_open(struct hd_rpc_call *call, const ProtobufCMessage *request);
void watch_drain(struct hd_rpc_call *call);
void watch_done(struct hd_rpc_call *call, enum hd_status status, const char *message);
/* Ends the WatchJob streams of a credential; 0: of all credentials that are expired or revoked.
 * read_log_cut and fleet_cut do this for log readers and daemons. */
void watch_cut(struct controller *c, uint64_t credential);
/* Returns the number of open WatchJob streams of this caller. */
int64_t watch_count_of(const struct controller *c, const char *name);
/* Sends a committed change of the job to the streams that watch it. */
void watch_announce(struct controller *c, uint64_t job);
/* sends new reasons why a job waits, where the reason changed without a commit */
void watch_tick(struct controller *c);

void read_log_open(struct hd_rpc_call *call, const ProtobufCMessage *request);
void read_log_drain(struct hd_rpc_call *call);
void read_log_done(struct hd_rpc_call *call, enum hd_status status, const char *message);
/* Takes a chunk of a rank's log from a daemon. logs: the Logs stream on which the chunk arrived. */
void read_log_chunk(struct controller *c, const struct hd_rpc_call *logs,
                    const Heddle__V1__LogChunk *chunk);
void read_log_node_gone(struct controller *c, const char *uuid); /* the node's Logs stream ended */
void read_log_cut(struct controller *c, uint64_t credential);
int64_t read_log_count_of(const struct controller *c, const char *name);
void read_log_tick(struct controller *c);
/* Detaches log reads in progress: their results are dropped. */
void read_log_forget_all(struct controller *c);

/* Returns the open Logs stream of a node; NULL: its daemon is not connected. */
struct hd_rpc_call *fleet_logs_of(const struct controller *c, const char *uuid);
void fleet_cut(struct controller *c, uint64_t credential);
/* Sends keep-alives on streams whose replies wait for a disk that takes no writes, so that their
 * nodes are not declared lost. */
void fleet_tick(struct controller *c);
/* Builds the node's desired set now; sends it after the commit. */
void fleet_send_desired(struct controller *c, const char *uuid);
/* Sends the node's daemon the probe request that the core has pending, after the commit. */
void fleet_send_probe_request(struct controller *c, const char *uuid);
/* Tells the daemon of a removed node by whom it was removed, after the commit, and ends its stream.
 */
void fleet_send_removed(struct controller *c, const char *uuid, const char *by);
void fleet_send_to_attempt(struct controller *c, const struct hd_attempt_record *attempt,
                           const Heddle__V1__ControllerMessage *message);

enum hd_status rendezvous_put(struct controller *c, struct hd_rpc_call *call, const char *node_uuid,
                              const Heddle__V1__RendezvousPut *put);
void rendezvous_tick(struct controller *c); /* frees the rendezvous rounds of ended attempts */
void rendezvous_free_all(struct controller *c);

#endif
