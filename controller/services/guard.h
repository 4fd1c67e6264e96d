/* guard: authentication, access by role (rpcs.def) and audit rows of all gRPC calls.
 *
 * A call passes: identify (authentication), authorize (role and rate limits, before the request is
 * unpacked), open (object of the request, limit of open streams), its handler, answered (audit). A
 * handler that changes something calls guard_audit in the transaction of the change, so that change
 * and audit row are committed together.
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

/* Registers a gRPC method, whose request and response are those of the .proto. Its handler is called
 * only for callers who have the role that rpcs.def requires. HD_INTERNAL: rpcs.def has no row for
 * this method, or the .proto does not have it. */
enum hd_status guard_add_method(struct controller *c, const struct hd_rpc_method *method);

/* Hooks of the gRPC server (rpc.h); `user` is the controller. */
enum hd_status guard_identify(void *user, const struct hd_rpc_shown *shown,
                              struct hd_rpc_principal *principal);
enum hd_status guard_authorize(void *user, struct hd_rpc_call *call);
void guard_answered(void *user, struct hd_rpc_call *call, enum hd_status st);
/* Writes audit rows about counted refusals (refusals.h) whose window is over; all_of_them: about
 * all counted ones, when the controller stops. */
void guard_tick(struct controller *c, bool all_of_them);

/* Adds the audit row of a successful call to the transaction of its change. object: what the call
 * changed, e.g. "job 7"; NULL: the object that the request names. */
void guard_audit(struct controller *c, struct hd_rpc_call *call, const char *object);

/* ---- request.c ---- */

enum hd_role guard_role(const struct hd_rpc_call *call);
enum hd_visibility guard_visibility(const struct controller *c, const struct hd_rpc_call *call);
/* Returns the filter that hides other users' jobs in replies to the caller (veil.h); valid as long
 * as the call. */
struct veil guard_veil(const struct controller *c, const struct hd_rpc_call *call);

/* ---- guard.c ---- */

/* Returns HD_LIMIT if the caller already has as many jobs as its limits allow, else HD_OK. */
enum hd_status guard_check_jobs(const struct controller *c, const struct hd_rpc_call *call);
/* Allocates the data of the hooks of the gRPC server: credentials, policy, usage. Call before the
 * server is created; guard_close after the server is closed. */
enum hd_status guard_open(struct controller *c);
void guard_close(struct controller *c);

#endif
