/* control: what the files that answer the service Control share: who calls, specs, and answers that
 * wait for the disk. */
#ifndef HD_CONTROLLER_SERVICES_CONTROL_H
#define HD_CONTROLLER_SERVICES_CONTROL_H

#include "controller/services/internal.h"
#include "job/job.h"

const char *control_caller(const struct hd_rpc_call *call); /* the principal's name; "": unknown */
/* HD_DENIED: the job is another's. Root and the controller's own user may touch all. */
enum hd_status control_check_owner(const struct hd_rpc_call *call, const char *owner, uint64_t job);
/* HD_LIMIT while the disk cannot be written: nothing may change then. */
enum hd_status control_check_disk(const struct controller *c);

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

/* Takes a step about one job, which is the answer once it is on disk. A failure is not answered. */
enum hd_status control_step(struct controller *c, struct hd_rpc_call *call,
                            const struct hd_core_event *event);

/* ---- remove.c ---- */

void remove_job(struct hd_rpc_call *call, const ProtobufCMessage *message);

/* ---- resume.c ---- */

/* The event of this kind, RESUME or REMOVE, with a job's records (HD_QUERY_RECORDS). */
enum hd_status resume_event(enum hd_core_event_kind kind, struct hd_query *query,
                            struct hd_rpc_call *call, struct hd_core_event *ret_event);

void resume_job(struct hd_rpc_call *call, const ProtobufCMessage *message);
void requeue_job(struct hd_rpc_call *call, const ProtobufCMessage *message);
void checkpoint_job(struct hd_rpc_call *call, const ProtobufCMessage *message);
void hold_job(struct hd_rpc_call *call, const ProtobufCMessage *message);
void release_job(struct hd_rpc_call *call, const ProtobufCMessage *message);

#endif
