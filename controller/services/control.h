/* control: the files that answer the service Control.
 *
 *   control.c                                         the table of calls
 *   jobs.c validate.c resume.c remove.c lists.c nodes.c queues.c  the calls
 *   answer.c prepare.c access.c                       what these share: answers that wait for the
 *                                                     disk, specs, who may do what
 *   request.c                                         a leaf: the caller, the size of a page
 */
#ifndef HD_CONTROLLER_SERVICES_CONTROL_H
#define HD_CONTROLLER_SERVICES_CONTROL_H

#include "controller/services/internal.h"
#include "job/job.h"

/* ---- request.c --------------------------------------------------------------------------------*/

const char *control_caller(const struct hd_rpc_call *call); /* the principal's name; "": unknown */
int32_t control_page_size(int32_t limit); /* items of a page, as a request asks for */

/* ---- access.c ---------------------------------------------------------------------------------*/

/* Whether the caller may change a job: its own, and an operator any. HD_NOT_FOUND: it is another's,
 * and the caller does not see those of others. HD_DENIED: it sees them, and may not change them. */
enum hd_status control_check_owner(const struct controller *c, const struct hd_rpc_call *call,
                                   const char *owner, uint64_t job);
/* A query about one job, which finds those of others only if the caller sees so much of them:
 * HD_NOT_FOUND, or HD_DENIED for a caller that sees that there is the job. */
void control_see(const struct controller *c, const struct hd_rpc_call *call,
                 enum hd_visibility needed, struct hd_query *query);
/* The jobs that `after` names are the caller's, or the caller sees those of others. HD_INVALID:
 * what the core says of a job that is not there, so that nothing is told of one that is hidden. */
enum hd_status control_check_after(const struct controller *c, const struct hd_rpc_call *call,
                                   const struct hd_job *job);
/* HD_LIMIT while the disk is full or cannot be written. For calls that ask for something new. */
enum hd_status control_check_disk(const struct controller *c);
/* The same for calls that end work, keep work off a node, make room or take rights away: they may
 * take of the reserve (store.h). HD_LIMIT while nothing at all can be written. */
enum hd_status control_check_reserve(const struct controller *c);

/* ---- prepare.c --------------------------------------------------------------------------------*/

/* A complete and checked copy of a spec that came, and its bytes. */
struct prepared {
    struct hd_job job;
    struct hd_arena arena; /* of the job's lists and its message */
    uint8_t *bytes;        /* the message, packed */
    size_t count;
};
/* control_free_prepared(*ret_prepared), which is NULL after a failure. */
enum hd_status control_prepare(const Heddle__V1__JobSpec *given, struct prepared **ret_prepared);
void control_free_prepared(struct prepared *prepared); /* NULL is fine */

/* ---- answer.c ---------------------------------------------------------------------------------*/

/* code, names in control.proto: calls whose answer is the job's status and nothing else */
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

/* Answers `reply->call`, or fails it. */
typedef void (*answer_send)(struct controller *c, struct reply *reply);

/* An answer that waits until its step is on disk; `send` knows which members count. */
struct reply {
    struct post_commit_action action;
    struct hd_rpc_call *call; /* referenced; NULL: control_fail_waiting has answered it */
    answer_send send;
    enum answer_kind kind;
    uint64_t job;
    bool repeated;
    char name[HD_CTL_NAME_BYTES_MAX + 1], uuid[HD_CTL_NAME_BYTES_MAX + 1]; /* of a node or queue */
    /* A new job as the step left it; NULL: it is read from the store. The step is on disk when the
     * reply leaves, and a second way through the store's queue would double the time of a reply. */
    Heddle__V1__JobStatus *status;
    struct hd_arena arena;           /* of status, and of what `send` makes */
    const ProtobufCMessage *message; /* of calls without a step (credential.c) */
    struct reply *before, *next;     /* in controller.replies */
};

/* Between transaction_begin and transaction_end: takes a step; when it is on disk, `send` answers.
 * *ret_reply, for what it is to say, lives at least until transaction_end. After a failure
 * *ret_reply is NULL and the call is not answered; but without memory for a reply it is, and HD_OK
 * comes back with NULL. */
enum hd_status answer_after_step(struct controller *c, struct hd_rpc_call *call,
                                 const struct hd_core_event *event, answer_send send,
                                 struct reply **ret_reply);
/* Between transaction_begin and transaction_end: `send` answers when the transaction is on disk.
 * NULL: the call has failed for want of memory. */
struct reply *answer_when_durable(struct controller *c, struct hd_rpc_call *call, answer_send send);
/* Takes a step about one job, which is the answer once it is on disk. A failure is not answered. */
enum hd_status control_step(struct controller *c, struct hd_rpc_call *call,
                            const struct hd_core_event *event);
/* Answers with a job as the store has it; repeated: as in SubmitJobResponse. */
void answer_with_job(struct controller *c, struct hd_rpc_call *call, uint64_t job,
                     enum answer_kind kind, bool repeated);
void answer_submitted(const struct controller *c, struct hd_rpc_call *call,
                      Heddle__V1__JobStatus *status, bool repeated);
/* Writes to *ret_text, freed by the caller, why nothing is stored or nothing starts, and returns
 * it; "": all is well. */
char *answer_trouble(const struct controller *c, struct hd_text *ret_text);
/* Writes the text of answer_trouble, or, if that is "", that many jobs live. */
char *answer_warning(const struct controller *c, struct hd_text *ret_text);

/* ---- limits.c ---------------------------------------------------------------------------------*/

typedef enum hd_status limits_step(struct controller *c, struct hd_rpc_call *call,
                                   const char *request_id, const struct prepared *prepared);
/* Takes the step of a submission if the caller's limits allow one more job, at once or when the
 * store has said what the caller's checkpoints take. After HD_OK `prepared` is taken over. */
enum hd_status limits_check_then(struct controller *c, struct hd_rpc_call *call,
                                 const char *request_id, struct prepared *prepared,
                                 limits_step *step);

/* ---- calls ------------------------------------------------------------------------------------*/

typedef void control_call(struct hd_rpc_call *call, const ProtobufCMessage *message);

control_call control_submit_job, control_get_job, control_explain_job,
    control_cancel_job;                                                        /* jobs.c */
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

/* The event of this kind, RESUME or REMOVE, with a job's records (HD_QUERY_RECORDS). */
enum hd_status resume_event(enum hd_core_event_kind kind, struct hd_query *query,
                            struct hd_rpc_call *call, struct hd_core_event *ret_event);

#endif
