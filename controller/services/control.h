/* control: the gRPC service Control; what its files share.
 *
 *   control.c    the table of its calls
 *   jobs.c validate.c plan_job.c resume.c remove.c lists.c nodes.c queues.c    the calls
 *   answer.c     replies that wait for the commit
 *   prepare.c    job specs that come with a call
 *   access.c     checks of the caller's rights and of the disk
 *   limits.c     limits of the caller that need a query of the store
 *   request.c    caller of a call, what it may see, page size; calls nothing of this folder
 */
#ifndef HD_CONTROLLER_SERVICES_CONTROL_H
#define HD_CONTROLLER_SERVICES_CONTROL_H

#include "controller/services/internal.h"
#include "job/job.h"

/* ---- request.c --------------------------------------------------------------------------------*/

/* Returns the name of the call's principal; "": unknown. */
const char *control_caller(const struct hd_rpc_call *call);
/* Returns the number of items in one page of a list: `limit` of the request, cut to 1..PAGE_MAX;
 * PAGE_DEFAULT if `limit` is 0. */
int32_t control_page_size(int32_t limit);
/* Restricts a query about one job to the caller's own jobs if the caller's visibility (identity.h)
 * is lower than `needed`. The query then fails for a job of another user: with HD_NOT_FOUND if the
 * caller sees only its own jobs, with HD_DENIED if the caller may know that the job exists. */
void control_see(const struct controller *c, const struct hd_rpc_call *call,
                 enum hd_visibility needed, struct hd_query *query);

/* ---- access.c ---------------------------------------------------------------------------------*/

/* Checks that the caller may change a job: the owner may, and an operator may change any job.
 * HD_NOT_FOUND: the job belongs to another user, and the caller sees only its own jobs. HD_DENIED:
 * the caller sees the job, but may not change it. */
enum hd_status control_check_owner(const struct controller *c, const struct hd_rpc_call *call,
                                   const char *owner, uint64_t job);
/* Checks that the caller sees each job in the `after` key of a spec. Returns HD_NOT_FOUND if one of
 * them is hidden from the caller; the message is the one for a job that does not exist, so it does
 * not reveal the hidden job. is_stored: the spec was accepted earlier, when the caller saw more;
 * then a hidden job that has succeeded, so that there is nothing to wait for, is accepted. */
enum hd_status control_check_after(const struct controller *c, const struct hd_rpc_call *call,
                                   const struct hd_job *job, bool is_stored);
/* Returns HD_LIMIT while the disk of the database is full or takes no writes, else HD_OK. Used by
 * calls that add something to the database. */
enum hd_status control_check_disk(const struct controller *c);
/* Returns HD_LIMIT only while not even the disk reserve (store.h) can be written, else HD_OK. Used
 * by calls that end work, drain a node, free disk space or revoke rights: they may use the reserve.
 */
enum hd_status control_check_reserve(const struct controller *c);

/* ---- prepare.c --------------------------------------------------------------------------------*/

/* A checked copy of the job spec in a request, and the spec's packed message. */
struct prepared {
    struct hd_job job;
    struct hd_arena arena; /* owns the lists in the job spec and its packed message */
    uint8_t *bytes;        /* packed message of the job spec, `count` bytes */
    size_t count;
};
/* Copies and checks the spec of a request. The caller frees *ret_prepared with
 * control_free_prepared; it is NULL after a failure. */
enum hd_status control_prepare(const Heddle__V1__JobSpec *given, struct prepared **ret_prepared);
void control_free_prepared(struct prepared *prepared); /* NULL: does nothing */

/* ---- answer.c ---------------------------------------------------------------------------------*/

/* X(code, message, name): calls whose reply is the job's status and nothing more; `message` and
 * `name` are the call's two spellings in control.pb-c.h. */
#define JOB_ANSWER_LIST(X)                       \
    X(CANCEL, CancelJob, CANCEL_JOB)             \
    X(RESUME, ResumeJob, RESUME_JOB)             \
    X(REQUEUE, RequeueJob, REQUEUE_JOB)          \
    X(CHECKPOINT, CheckpointJob, CHECKPOINT_JOB) \
    X(HOLD, HoldJob, HOLD_JOB)                   \
    X(RELEASE, ReleaseJob, RELEASE_JOB)

enum answer_kind {
#define X(code, message, name) ANSWER_##code,
    JOB_ANSWER_LIST(X)
#undef X
        ANSWER_GET,
    ANSWER_EXPLAIN,
    ANSWER_SUBMIT
};

/* Sends the reply to the call `reply->call`, or fails that call. */
typedef void (*answer_send)(struct controller *c, struct reply *reply);

/* A reply that is sent after the commit of its core step; which members are set depends on `send`.
 */
struct reply {
    struct post_commit_action action;
    /* call that waits for this reply; holds a reference. NULL: control_fail_waiting has failed it
     */
    struct hd_rpc_call *call;
    answer_send send;
    enum answer_kind kind;
    uint64_t job;
    bool repeated;
    /* name of the node or queue that the call changed; UUID of that node */
    char name[HD_CTL_NAME_BYTES_MAX + 1], uuid[HD_CTL_NAME_BYTES_MAX + 1];
    /* status of a job that the step created; NULL: `send` reads the job from the store. A query of
     * the store after the commit would double the latency of a submission. */
    Heddle__V1__JobStatus *status;
    struct hd_arena arena; /* owns `status` and messages that `send` makes */
    /* reply of a call that takes no core step (credential.c); else NULL */
    const ProtobufCMessage *message;
    struct reply *before, *next; /* neighbours in controller.replies */
};

/* Takes a core step; `send` replies after the commit of that step. Call between transaction_begin
 * and transaction_end. *ret_reply lives at least until transaction_end, so the caller can fill in
 * its members. After a failure *ret_reply is NULL and the caller must fail the call. Exception:
 * without memory for the reply this function itself fails the call, sets *ret_reply to NULL and
 * returns HD_OK. */
enum hd_status answer_after_step(struct controller *c, struct hd_rpc_call *call,
                                 const struct hd_core_event *event, answer_send send,
                                 struct reply **ret_reply);
/* Makes `send` reply after the transaction's commit. Call between transaction_begin and
 * transaction_end. Returns the reply; NULL: no memory, and this function has failed the call. */
struct reply *answer_when_durable(struct controller *c, struct hd_rpc_call *call, answer_send send);
/* Handles a call that is one core step: takes it in a transaction of its own, unless `st`, what the
 * checks of the call found, is an error; then `send` replies, or the call is failed. name: of the
 * node or queue, for reply->name. */
void answer_change(struct hd_rpc_call *call, enum hd_status st, const struct hd_core_event *event,
                   const char *name, answer_send send);
/* Takes a core step about one job; replies with the job's status after the commit. After a failure
 * the caller must fail the call. */
enum hd_status control_step(struct controller *c, struct hd_rpc_call *call,
                            const struct hd_core_event *event);
/* Reads a job from the store and replies with its status. repeated: the job is that of an earlier
 * request with the same request id (SubmitJobResponse.repeated). */
void answer_with_job(struct controller *c, struct hd_rpc_call *call, uint64_t job,
                     enum answer_kind kind, bool repeated);
void answer_submitted(const struct controller *c, struct hd_rpc_call *call,
                      Heddle__V1__JobStatus *status, bool repeated);
/* Writes to *ret_text, which the caller frees, why the store takes no writes or why no job starts;
 * "" if there is no such trouble. Returns the text. */
char *answer_trouble(const struct controller *c, struct hd_text *ret_text);
/* Writes to *ret_text the text of answer_trouble; if that is "", a warning when the number of live
 * jobs nears its limit. Returns the text; "": no warning. */
char *answer_warning(const struct controller *c, struct hd_text *ret_text);

/* Makes the reply of a list in the query's arena; NULL: out of memory. */
typedef ProtobufCMessage *answer_fill(struct controller *c, const struct hd_rpc_call *call,
                                      struct hd_query *query);
/* Sends the query of a list (NULL: out of memory) to the store, and replies with what `fill` makes of
 * its results. */
void answer_list(struct hd_rpc_call *call, struct hd_query *query, answer_fill *fill);
/* Returns an empty message in an arena; NULL: out of memory. */
void *answer_message(struct hd_arena *arena, const ProtobufCMessageDescriptor *descriptor);

/* ---- limits.c ---------------------------------------------------------------------------------*/

typedef enum hd_status limits_step(struct controller *c, struct hd_rpc_call *call,
                                   const char *request_id, const struct prepared *prepared);
/* Submits a job if the caller's limits allow one more: at once or, if the bytes of the caller's
 * checkpoints are limited, after a query of the store. After HD_OK this function owns `prepared`;
 * after a failure the caller still owns it. */
enum hd_status limits_check_then(struct controller *c, struct hd_rpc_call *call,
                                 const char *request_id, struct prepared *prepared,
                                 limits_step *step);

/* ---- calls ------------------------------------------------------------------------------------*/

typedef void control_call(struct hd_rpc_call *call, const ProtobufCMessage *message);

control_call control_submit_job, control_get_job, control_explain_job,
    control_cancel_job;                                                        /* jobs.c */
control_call control_get_server_info;                                          /* control.c */
control_call control_plan_job;                                                 /* plan_job.c */
control_call control_validate_job;                                             /* validate.c */
control_call control_list_jobs, control_list_events, control_list_checkpoints; /* lists.c */
control_call control_list_nodes, control_drain_node, control_undrain_node, control_probe_node,
    control_remove_node;                                                   /* nodes.c */
control_call control_list_queues, control_set_queue, control_remove_queue; /* queues.c */
control_call control_remove_job;                                           /* remove.c */
control_call control_resume_job, control_requeue_job, control_checkpoint_job, control_hold_job,
    control_release_job; /* resume.c */

/* ---- resume.c ---------------------------------------------------------------------------------*/

/* Makes a core event of kind RESUME or REMOVE from the result of a query for all records of a job
 * (HD_QUERY_RECORDS). */
enum hd_status resume_event(enum hd_core_event_kind kind, struct hd_query *query,
                            struct hd_rpc_call *call, struct hd_core_event *ret_event);

#endif
