/* services_callers: a controller at a port, with an authority, and a caller of each role. */
#ifndef HD_TEST_SERVICES_CALLERS_H
#define HD_TEST_SERVICES_CALLERS_H

#include "heddle/v1/identity.pb-c.h"
#include "pki/pki.h"
#include "services_bench.h"

/* name, role of its token, letter in the matrix */
#define CALLER_LIST(X)                  \
    X(VIEWER, "vic", "viewer", 'V')     \
    X(USER, "ann", "user", 'U')         \
    X(OPERATOR, "oli", "operator", 'O') \
    X(ADMIN, "ada", "admin", 'A')

#define X(code, name, role, letter) CALLER_##code,
enum caller { CALLER_LIST(X) CALLER_NODE, CALLER_INVITED, CALLERS };
#undef X

struct callers {
    struct bench b;
    char secrets[CALLERS][HD_PKI_HASH_TEXT_MAX], submitter[4][HD_PKI_HASH_TEXT_MAX];
    uint64_t jobs[4];              /* of each person */
    uint64_t last;                 /* row of the audit log that was seen */
    struct hd_rpc_client *auditor; /* with the admin's token; NULL: not yet */
    /* Called with each message that answers callers_ask; NULL: none. */
    void (*heard)(void *user, const ProtobufCMessage *message);
    void *heard_user;
};

extern const char *const caller_names[CALLERS];
extern const char caller_letters[CALLERS + 1];

/* Each person has submitted a job. The node is n1; the invitation is for n2. */
void callers_start(struct callers *all);
void callers_finish(struct callers *all);
/* From here on the bench calls with this token. */
void callers_be(struct callers *all, const char *secret);
/* A client with this token, the caller's. */
struct hd_rpc_client *callers_client(struct callers *all, const char *secret);
/* One unary call of a path, with an empty request in which members `job`, `node`, `node_name` and
 * `name` are set as far as it has them. */
enum hd_status callers_ask(struct callers *all, const ProtobufCServiceDescriptor *service,
                           const ProtobufCMethodDescriptor *method, uint64_t job);
/* All tables but the audit log, as text; freed by the caller. */
char *callers_dump(const struct callers *all);
/* Rows of the audit log since the last call of this; the answer is the caller's. */
Heddle__V1__ListAuditResponse *callers_audit(struct callers *all);

#endif
