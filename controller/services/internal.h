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
    HEARTBEAT_MS = 3000,          /* a daemon sends something at least this often */
    TICK_MS = 500,                /* period of HD_CORE_TICK */
    LOG_CHUNK_BYTES = 256 * 1024, /* log bytes in one message */
    PAGE_DEFAULT = 100,           /* items of a list if the request names no limit */
    PAGE_MAX = 1000,
    RENDEZVOUS_VALUE_MAX = 4096, /* bytes of one rank's value */
    RENDEZVOUS_ROUNDS_MAX = 16,  /* of one attempt */
};

/* An action that must wait until the transaction's batch is durable. run gets HD_OK then; any other
 * status means that the batch was dropped and nothing of it is stored. run frees the post-commit
 * action. */
struct post_commit_action {
    void (*run)(struct post_commit_action *action, struct controller *c, enum hd_status st);
    struct post_commit_action *next;
};

/* One or several core steps, written in one batch, and the post-commit actions that wait for it. */
struct transaction {
    struct controller *c;
    struct hd_batch *batch;
    struct post_commit_action *first, **end;
    int64_t handed_over_ns; /* to the store */
    uint64_t *jobs;         /* that changed: their watchers are notified */
    size_t job_count, job_size;
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
    char probe[80];                     /* first line of JOBS_DIR_MARK in jobs_dir */
    int64_t probe_due_ms;               /* when to look at it the next time */
    char jobs_share[HD_JOBS_SHARE_MAX]; /* id of the jobs directory; "": it has none yet */
    char jobs_dir_problem[HD_ERR_MAX];  /* why jobs_dir is not it; "": it is */
    bool jobs_marked;                   /* the file was this start's when it was looked at */
    bool lacks_jobs; /* jobs_dir has no trace of the jobs that the database knows */
    struct jobs_dir_check *jobs_dir_check;
    int port;
    struct hd_rpc *rpc;
    struct hd_rpc_server *server;
    struct hd_job_store *store;
    struct hd_core *core;
    struct hd_core_out out;          /* of the last step */
    struct transaction *transaction; /* between transaction_begin and transaction_end; else NULL */
    int transaction_depth;
    uv_timer_t tick;
    uint64_t last_stream, last_log_request;
    struct node_stream *streams;
    struct watcher *watchers;
    struct log_reader *log_readers;
    struct log_piece *log_pieces;
    struct rendezvous *rendezvous;
    struct reply *replies; /* waiting for the commit */
    struct ckpt_search *searches;
    struct planning *plannings;     /* layouts that the core asked for, the oldest first */
    struct validation *validations; /* that wait for one */
    struct job_plan *job_plans;     /* PlanJob: the first one is being searched */
    void *inventories;              /* what nodes have said of their links: topology.c */
    void *probes;                   /* what nodes have measured of their devices: probe.c */
    struct hd_node_tree *tree;      /* switches, of options.cluster_file; NULL: not known */
    struct hd_arena tree_arena;     /* its memory, if there is one */
    struct stats stats;
    struct web *web;     /* the HTTP listener; NULL: there is none */
    int64_t tick_due_ms; /* of the next tick; 0: there was none yet */
    struct hd_credentials *credentials;
    struct hd_policy *policy;
    char run_as[HD_USER_BYTES_MAX + 1]; /* what the core was told last */
    struct hd_usages *usages;
    struct refusals *refusals;
    struct guard_method *methods;   /* by row of rpcs.def */
    struct hd_authority *authority; /* NULL: heddle-controller init has not made one */
    struct hd_rpc_tls tls;          /* of the authority, if the options name no certificate */
    bool own_tls;
    bool certificate_due;  /* it is renewed, and not shown by both listeners yet */
    struct {               /* fence.c */
        uint64_t number;   /* the epoch */
        uint64_t progress; /* the last one given out; `durable`: on disk */
        uint64_t durable;
        int64_t progress_due_ms; /* monotonic */
        int64_t taken_over_ms;   /* when this database took over the last time (wall); 0: never */
        int64_t copied_ms;       /* when the copy of that takeover was made (wall); 0: not known */
        bool rose;               /* it took over in this run, at the word of a node */
        unsigned char proof[HD_CREDENTIAL_HASH_BYTES];
    } fence;
    unsigned char unknown[CONTROLLER_UNKNOWN_MAX][HD_CREDENTIAL_HASH_BYTES]; /* told (adopt.c) */
    size_t unknown_count;
    struct hd_clock_settled settled; /* for what cannot be undone (base/clock.h) */
    int64_t retention_due_ms;
    int64_t credentials_due_ms;  /* when to look for those that have expired */
    int64_t watchdog_ms, fed_ms; /* systemd's, 0: none; when it was told of life last */
    bool takes_nodes;            /* there are tokens of nodes */
    bool self_check_failed;      /* the own listener does not open (the self-check) */
    bool unwritable;             /* nothing can be committed */
    char status[256];            /* the last STATUS= for systemd */
    bool stopping;
    void (*on_stopped)(void *user);
    void *stopped_user;
};

struct hd_now controller_now(void); /* now.c */
/* Calls on_fatal with hd_err's message, once; the controller then refuses all steps. */
void controller_fail(struct controller *c, enum hd_status st);

/* ---- transaction.c ----------------------------------------------------------------------------*/

/* Any number of steps between begin and end. Turns nest: the outermost transaction_end commits. */
void transaction_begin(struct controller *c);
enum hd_status transaction_step(struct controller *c, const struct hd_core_event *event);
void transaction_when_durable(struct controller *c, struct post_commit_action *action);
void transaction_end(struct controller *c);

/* ---- adopt.c ----------------------------------------------------------------------------------*/

/* Returns the credential of a certificate that the registry does not know and that was signed
 * after the backup from which the database was restored; NULL: it is no such certificate. */
const struct hd_credential_record *adopt_certificate(struct controller *c, const char *pem,
                                                     const struct hd_pki_certificate *cert);
/* Return HD_DENIED; the message says what the caller is to do. */
enum hd_status adopt_refuse_certificate(const struct controller *c,
                                        const struct hd_pki_certificate *cert);
enum hd_status adopt_refuse_token(const struct controller *c);

/* ---- fence.c ----------------------------------------------------------------------------------*/

void fence_open(struct controller *c); /* needs the open store */
/* Adds the counter of commits to a transaction that is to be committed, every so often. */
void fence_count(struct controller *c, struct transaction *transaction);

/* ---- credential.c, audit.c, limits.c
 * ------------------------------------------------------------*/

enum hd_status credential_register(struct controller *c);
void credential_tick(struct controller *c);
void retention_tick(struct controller *c); /* retention.c: old history */
/* In a transaction: the node was removed, and its certificates end; its stream may still say so. */
void credential_end_node(struct controller *c, const char *node, const char *by);
/* The credential of a certificate, valid now; or one that has expired while its connection was
 * open, of a node that has the next one. NULL: there is none. */
const struct hd_credential_record *credential_of_cert(const struct controller *c,
                                                      const unsigned char *hash);
/* Whether a stream of this caller may go on. */
bool credential_is_valid(const struct controller *c, const struct hd_rpc_principal *caller);
void audit_list(struct hd_rpc_call *call, const ProtobufCMessage *request);
void limits_get(struct hd_rpc_call *call, const ProtobufCMessage *request);

/* ---- convert.c --------------------------------------------------------------------------------*/

/* JobStatus.stale of a job that has not ended. */
const char *convert_stale(const struct controller *c);
/* Messages live in `arena` and point into the records: keep both until the message is packed. NULL:
 * out of memory. The veil says for whom they are. */
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
Heddle__V1__StepReport *convert_step(struct hd_arena *arena, const struct hd_step_record *step);
Heddle__V1__ValidationReport *convert_validation(struct hd_arena *arena,
                                                 const struct hd_validation_record *validation);
Heddle__V1__NodeStatus *convert_node(struct hd_arena *arena, const struct controller *c,
                                     const struct veil *veil, size_t index);
void convert_queue(const struct controller *c, size_t index, Heddle__V1__QueueStatus *ret_queue);

/* Decodes a stored JobSpec; lists live in `arena`. HD_CORRUPT: it cannot be decoded. */
enum hd_status convert_unpack_spec(const void *bytes, size_t count, struct hd_arena *arena,
                                   struct hd_job *ret_job);
/* The part of a job that the core uses; the name points into the job. */
struct hd_job_needs convert_needs(const struct hd_job *job);
/* Messages to records; strings point into the message. */
struct hd_end_record convert_end_record(const Heddle__V1__EndReport *end);
struct hd_checkpoint_record convert_checkpoint_record(const Heddle__V1__CheckpointInfo *info);
/* Casts const away for protobuf-c, which only reads; NULL becomes "". */
static inline char *convert_text(const char *text)
{
    return (char *)(uintptr_t)(text ? text : "");
}

/* <jobs_dir>/<job>, its attempt-<attempt>, and below that a rank's log and the folder `checkpoints`
 */
const char *convert_job_dir(struct hd_arena *arena, const struct controller *c, uint64_t job);
const char *convert_attempt_dir(struct hd_arena *arena, const struct controller *c, uint64_t job,
                                int32_t attempt);
const char *convert_log_path(struct hd_arena *arena, const struct controller *c, uint64_t job,
                             int32_t attempt, int32_t rank);
const char *convert_checkpoint_dir(struct hd_arena *arena, const struct controller *c, uint64_t job,
                                   int32_t attempt);

/* ---- search.c ---------------------------------------------------------------------------------*/

/* Lists an attempt's complete checkpoints in the background, and tells the core. */
void search_begin(struct controller *c, const struct hd_core_search *asked);
void search_forget_all(
    struct controller *c); /* the ones in progress end without post-commit action */

/* ---- planner.c --------------------------------------------------------------------------------*/

/* Finds the layouts that the core's newest step asked for, and tells the core. */
void planner_ask(struct controller *c, const struct hd_core_out *out);
void planner_forget_all(
    struct controller *c); /* the searches in progress end without post-commit action */
size_t planner_count(const struct controller *c); /* in progress or waiting for their transaction */
/* Times of GPUs of this kind are from now on those of the calibration, a text, if it is of such. It
 * lives in `arena`. */
void planner_calibrate(struct hd_arena *arena, const char *calibration,
                       const struct hd_gpu_kind *kind, struct hd_cluster *cluster);
/* CPU devices of one node, as fast as its probe has measured. False: what it has measured is of
 * another build, or not enough. Any thread. */
bool planner_measured(struct hd_arena *arena, const char *calibration,
                      const struct hd_traits *traits, int64_t devices, int32_t threads,
                      int64_t memory_bytes, struct hd_cluster *ret_cluster);

/* ---- plan_job.c -------------------------------------------------------------------------------*/

void plan_job_forget_all(
    struct controller *c); /* the search in progress ends without post-commit action */

/* ---- topology.c -------------------------------------------------------------------------------*/

/* Reads options.cluster_file. HD_INVALID: the message says what is wrong with it. */
enum hd_status topology_read_file(struct controller *c);
/* Keeps what a node has said of its links; NULL: nothing. */
void topology_keep(struct controller *c, const char *uuid,
                   const Heddle__V1__NodeInventory *reported);
void topology_free_all(struct controller *c);
/* The same for the core. False: it is not known of all pairs, or makes no sense. */
bool topology_links(const Heddle__V1__NodeInventory *reported, size_t devices,
                    struct hd_node_links *ret_links);
void topology_open(struct hd_rpc_call *call, const ProtobufCMessage *request);

/* ---- jobs_dir.c -------------------------------------------------------------------------------*/

/* Makes c->probe, and marks the jobs directory as this cluster's where it may. HD_CONFLICT: it is
 * another cluster's. Where it is none that the database knows, c->jobs_dir_problem says so. */
enum hd_status jobs_dir_acquire(struct controller *c);
void jobs_dir_report(struct controller *c); /* the core, whether jobs_dir_problem is "" */
void jobs_dir_tick(struct controller *c);   /* looks at the directory now and then */
void jobs_dir_close(struct controller *c);

/* ---- probe.c ----------------------------------------------------------------------------------*/

/* What a daemon has measured: to the core, and kept. A calibration that cannot be read is as none,
 * and the message says why. */
enum hd_status probe_take(struct controller *c, const char *uuid, uint64_t stream,
                          const Heddle__V1__ProbeReport *m);
/* At start, from the store. */
enum hd_status probe_load(struct controller *c, const struct hd_probe_record *record);
/* The node at `index`, in `arena`. NULL: it was never probed, nor asked to, or no memory. */
Heddle__V1__NodeProbe *probe_show(struct controller *c, const struct veil *veil,
                                  struct hd_arena *arena, size_t index);
/* Its calibration, as text in `arena`; NULL: there is none. */
const char *probe_calibration(const struct controller *c, struct hd_arena *arena, const char *uuid);
void probe_free_all(struct controller *c);

/* ---- web.c ------------------------------------------------------------------------------------*/

/* Opens the HTTP listener that options.http names; without it nothing. */
enum hd_status web_open(struct controller *c);
/* HD_DENIED: with a policy several people use the controller, and its HTTP listener asks for no
 * token.
 */
enum hd_status web_check_policy(const struct controller *c, bool has_policy);
/* The listener shows this certificate from now on, if it shows one. */
enum hd_status web_set_tls(struct controller *c, const struct hd_rpc_tls *tls);
void web_close(struct controller *c, void (*on_closed)(void *user), void *user);
void web_announce(struct controller *c, uint64_t job); /* a change of the job is durable */
void web_tick(struct controller *c);

/* ---- the services -----------------------------------------------------------------------------*/

enum hd_status control_register(struct controller *c);
enum hd_status fleet_register(struct controller *c);

/* Writing fails: answers the calls that wait for a commit with the error. */
void control_fail_waiting(struct controller *c, const char *message);
/* A layout is known: answers the validations that waited for it. */
void control_go_on_validating(struct controller *c);
void control_forget_validations(struct controller *c);

void watch_open(struct hd_rpc_call *call, const ProtobufCMessage *request);
void watch_drain(struct hd_rpc_call *call);
void watch_done(struct hd_rpc_call *call, enum hd_status status, const char *message);
/* Ends the streams of a credential; 0: of all that are not valid any more. Likewise read_log_cut
 * and fleet_cut. */
void watch_cut(struct controller *c, uint64_t credential);
int64_t watch_count_of(const struct controller *c, const char *name); /* of this caller */
void watch_announce(struct controller *c, uint64_t job); /* a change of the job is durable */
void watch_tick(struct controller *c); /* sends changed reasons, which change without a commit */

void read_log_open(struct hd_rpc_call *call, const ProtobufCMessage *request);
void read_log_drain(struct hd_rpc_call *call);
void read_log_done(struct hd_rpc_call *call, enum hd_status status, const char *message);
/* `logs`: the stream that it came by. */
void read_log_chunk(struct controller *c, const struct hd_rpc_call *logs,
                    const Heddle__V1__LogChunk *chunk);
void read_log_node_gone(struct controller *c, const char *uuid); /* its Logs stream broke */
void read_log_cut(struct controller *c, uint64_t credential);
int64_t read_log_count_of(const struct controller *c, const char *name);
void read_log_tick(struct controller *c);
void read_log_forget_all(
    struct controller *c); /* reads in progress end without post-commit action */

/* The node's Logs stream; NULL: not connected. */
struct hd_rpc_call *fleet_logs_of(const struct controller *c, const char *uuid);
void fleet_cut(struct controller *c, uint64_t credential);
/* Keeps streams that wait for the disk: their nodes are there. */
void fleet_tick(struct controller *c);
/* Builds the node's desired set now and sends it when the transaction is durable. */
void fleet_send_desired(struct controller *c, const char *uuid);
/* Asks the node's daemon for the probe that the core waits for, when the transaction is durable. */
void fleet_send_probe_request(struct controller *c, const char *uuid);
/* The node was removed, by this caller: tells its daemon so when the transaction is durable, and
 * ends its stream. */
void fleet_send_removed(struct controller *c, const char *uuid, const char *by);
void fleet_send_to_attempt(struct controller *c, const struct hd_attempt_record *attempt,
                           const Heddle__V1__ControllerMessage *message);

enum hd_status rendezvous_put(struct controller *c, struct hd_rpc_call *call, const char *node_uuid,
                              const Heddle__V1__RendezvousPut *put);
void rendezvous_tick(struct controller *c); /* frees those of ended attempts */
void rendezvous_free_all(struct controller *c);

#endif
