/* guard: who may call what, by rpcs.def, and the audit log's rows.
 *
 * A call goes through: identify (who is it), authorize (role and rates, before its request is
 * unpacked), open (what it is about, open streams), its handler, answered (audit). A handler that
 * changes something calls guard_audit in the transaction of the change, so that both are on disk
 * together.
 *
 * Used by: the files of services, tests.   Threads: the loop's.
 */
#ifndef HD_CONTROLLER_SERVICES_GUARD_H
#define HD_CONTROLLER_SERVICES_GUARD_H

#include "controller/identity/identity.h"
#include "controller/services/rpcs.def"
#include "controller/services/veil.h"
#include "rpc/rpc.h"

struct controller;

enum guard_object { GUARD_NONE, GUARD_JOB, GUARD_NODE, GUARD_NODE_NAME, GUARD_QUEUE, GUARD_PERSON };
enum guard_access { GUARD_WRITE, GUARD_READ };
enum guard_cost { GUARD_SUBMIT, GUARD_QUERY, GUARD_STREAM, GUARD_FREE };

struct guard_row {
    const char *path, *method;
    enum hd_role least;
    enum guard_object object;
    enum guard_access keep;
    enum guard_cost cost;
};

extern const struct guard_row guard_rows[];
extern const size_t guard_row_count;

/* Registers the method, whose handler is called for those who may. HD_INTERNAL: it has no row. */
enum hd_status guard_add_method(struct controller *c, const struct hd_rpc_method *method);

/* The server's hooks (rpc.h); `user` is the controller. */
enum hd_status guard_identify(void *user, const struct hd_rpc_shown *shown,
                              struct hd_rpc_principal *principal);
enum hd_status guard_authorize(void *user, struct hd_rpc_call *call);
void guard_answered(void *user, struct hd_rpc_call *call, enum hd_status st);
/* Writes rows about refusals that were counted (refusals.h). all_of_them: the controller stops. */
void guard_tick(struct controller *c, bool all_of_them);

/* In a transaction: the row of a call that succeeds, beside its change. object: what it turned out
 * to be about; NULL: as the request said. */
void guard_audit(struct controller *c, struct hd_rpc_call *call, const char *object);

enum hd_role guard_role(const struct hd_rpc_call *call);
enum hd_visibility guard_visibility(const struct controller *c, const struct hd_rpc_call *call);
/* Returns the veil of answers to the caller; it lives as long as the call. */
struct veil guard_veil(const struct controller *c, const struct hd_rpc_call *call);
/* HD_LIMIT: the caller has as many jobs as it may. */
enum hd_status guard_check_jobs(const struct controller *c, const struct hd_rpc_call *call);
/* Memory of the hooks; before the server and after it. */
enum hd_status guard_open(struct controller *c);
void guard_close(struct controller *c);

#endif
