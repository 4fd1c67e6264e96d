/* identity_record: credentials and audit entries as plain structs that the store keeps. Part of
 * record.h, which includes it.
 *
 * Used by: identity, store, services.   Threads: as record.h.
 */
#ifndef HD_CONTROLLER_IDENTITY_RECORD_H
#define HD_CONTROLLER_IDENTITY_RECORD_H

#include <stdint.h>

/* Kinds of credentials: enumerator, number, string (in the database). */
#define HD_CREDENTIAL_KIND_LIST(X)                                      \
    X(TOKEN, 1, "token")           /* a person's bearer token */        \
    X(INVITATION, 2, "invitation") /* lets one or several nodes join */ \
    X(NODE, 3, "node")             /* a node's certificate */           \
    X(PERSON, 4, "person")         /* a person's client certificate */

#define X(name, number, text) HD_CREDENTIAL_KIND_##name = number,
enum hd_credential_kind { HD_CREDENTIAL_KIND_LIST(X) };
#undef X
const char *hd_credential_kind_name(int kind);

enum { HD_CREDENTIAL_HASH_BYTES = 32 };

/* A call of an RPC in the audit log. The store numbers the rows and chains each to the previous one
 * by hash (pki.h: hd_pki_chain, over the texts in this order). */
struct hd_audit_record {
    int64_t time_ms;
    const char *who, *role; /* name and role of the caller */
    const char *method;     /* name of the RPC, such as "SubmitJob" */
    const char *object;     /* "job 7", "node n1"; "": unknown */
    const char *source;     /* the peer's address */
    const char *result;     /* "ok", or the name of a status */
};
#define HD_AUDIT_TEXTS(r)                                                       \
    {                                                                           \
        (r)->who, (r)->role, (r)->method, (r)->object, (r)->source, (r)->result \
    }
enum { HD_AUDIT_TEXT_COUNT = 6 };

/* Retention limits for ended jobs (identity.h: struct hd_retention). A limit of 0 deletes
 * nothing. */
struct hd_prune_record {
    int64_t now_ms, history_ms, history_jobs, step_lines, step_lines_ms;
};

#endif
