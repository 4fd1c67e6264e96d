/* identity: who calls the controller, what the caller may do, and how much.
 *
 * A caller shows a credential: a token, a client certificate, or its uid at the Unix socket. It is
 * mapped to a name and a role. The *registry* finds credentials by their hash; the *policy*, read
 * from a file, gives roles to names without a credential of their own, says who sees the jobs of
 * others, and sets limits. Names are compared exactly, never by prefix or pattern.
 *
 * The role that each call needs is in services/rpcs.def. HTTP listeners use hd_identity_of_token.
 *
 * Used by: services, main.c, HTTP listeners, tests.   Uses: base, pki, record.h.
 * Threads: the loop's.
 */
#ifndef HD_CONTROLLER_IDENTITY_H
#define HD_CONTROLLER_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/user.h"
#include "controller/core/record.h"

/* ---- roles (role.c) ---------------------------------------------------------------------------*/

/* Roles of callers: code, word. Each role of a person (viewer to admin) includes the rights of the
 * roles before it. */
#define HD_ROLE_LIST(X)                                                         \
    X(NONE, "none")         /* no rights at all */                              \
    X(INVITED, "invited")   /* a node with an invitation: may only join */      \
    X(NODE, "node")         /* a node: may call the service Fleet for itself */ \
    X(VIEWER, "viewer")     /* may read, change nothing */                      \
    X(USER, "user")         /* may also submit jobs, change own jobs */         \
    X(OPERATOR, "operator") /* may also change nodes and all jobs */            \
    X(ADMIN, "admin")       /* may also manage tokens, invitations, queues; read audit log */

#define X(code, word) HD_ROLE_##code,
enum hd_role { HD_ROLE_LIST(X) HD_ROLE_COUNT };
#undef X
const char *hd_role_name(enum hd_role role);
/* Parses a role that a person can have: none, viewer, user, operator, admin. False: no such
 * role. */
bool hd_role_of(const char *word, enum hd_role *ret_role);
/* Returns whether `role` has all rights of `least`. A person's role never includes a node's, nor
 * the reverse. */
bool hd_role_has(enum hd_role role, enum hd_role least);

/* ---- the policy (policy.c) --------------------------------------------------------------------*/

/* How much a caller sees of the jobs of other owners. Operators and admins see all. */
enum hd_visibility {
    HD_VISIBILITY_OWN,  /* nothing: jobs of others seem not to exist */
    HD_VISIBILITY_JOBS, /* their lists, states and progress; not their specs, logs, checkpoints */
    HD_VISIBILITY_ALL,
};

/* Limits: name, word, default for all but operators and admins, unit; 0: no limit. Operators and
 * admins have no limit unless the policy sets one. */
#define HD_LIMIT_LIST(X)                                                          \
    X(SUBMISSIONS, "submissions_per_s", 100, "submissions in a second")           \
    X(QUERIES, "queries_per_s", 1000, "queries in a second")                      \
    X(WATCHES, "watches", 256, "open streams of heddle watch and heddle logs -f") \
    X(JOBS_QUEUED, "jobs_queued", 0, "jobs that wait")                            \
    X(JOBS_LIVE, "jobs_live", 0, "jobs that wait or run")                         \
    X(CHECKPOINT_BYTES, "checkpoint_bytes", 0, "bytes of checkpoints that are kept")

#define X(name, word, preset, unit) HD_LIMIT_##name,
enum hd_limit { HD_LIMIT_LIST(X) HD_LIMIT_COUNT };
#undef X
const char *hd_limit_name(enum hd_limit limit);
const char *hd_limit_unit(enum hd_limit limit);

/* How long history of ended jobs is kept; 0: forever. */
struct hd_retention {
    int64_t history_ms;    /* milliseconds after a job's end during which its events, steps and
                            * validations are kept */
    int64_t history_jobs;  /* number of jobs, those that ended last, whose history is kept */
    int64_t step_lines;    /* largest number of step records kept of an ended job */
    int64_t step_lines_ms; /* milliseconds after the job's end from which step_lines applies */
};

struct hd_policy;

/* Returns the policy that applies without a policy file. NULL: no memory. */
struct hd_policy *hd_policy_new(void);
void hd_policy_free(struct hd_policy *policy);
/* Parses the lines of a policy file (format: docs/operations.md). HD_INVALID: the message has
 * `name`, the line, and what to write. */
enum hd_status hd_policy_parse(const char *name, const char *text, struct hd_policy **ret_policy);
/* Reads and parses a policy file. dir: the state directory, whose owner may own the file, too
 * (hd_user_read_file). HD_DENIED: others than its owner may write it, or another user owns it. */
enum hd_status hd_policy_read(const char *path, const char *dir, struct hd_policy **ret_policy);

/* How a caller connects whose credential gives it no role. */
enum hd_login {
    HD_LOGIN_TOKEN_FILE, /* with a token of --token-file: role user, unless the policy says
                          * otherwise */
    HD_LOGIN_SOCKET,     /* at the Unix socket, with a uid other than the controller's and root:
                          * role none, unless the policy says otherwise */
};

enum hd_role hd_policy_role(const struct hd_policy *policy, const char *name, enum hd_login login);
enum hd_visibility hd_policy_visibility(const struct hd_policy *policy, const char *name,
                                        enum hd_role role);
/* Returns the limit that holds for a name with this role; INT64_MAX: no limit. */
int64_t hd_policy_limit(const struct hd_policy *policy, const char *name, enum hd_role role,
                        enum hd_limit limit);
struct hd_retention hd_policy_retention(const struct hd_policy *policy);
/* Finds the system user as which the ranks of an owner's jobs run: *ret_user in the form of
 * base/user.h; "": heddled's own user, because the policy has no rule for users, or says so.
 * HD_DENIED: the policy names none; the message says what to add. */
enum hd_status hd_policy_user(const struct hd_policy *policy, const char *owner,
                              char ret_user[HD_USER_BYTES_MAX + 1]);

/* ---- credentials (credentials.c) --------------------------------------------------------------*/

struct hd_credentials; /* registry of valid credentials by hash, and the next id */

struct hd_credentials *hd_credentials_new(void);
void hd_credentials_free(struct hd_credentials *all);
/* Adds a stored credential when the controller starts, in the order of ids; hd_credentials_restored
 * then sets the highest id ever used. */
enum hd_status hd_credentials_restore(struct hd_credentials *all,
                                      const struct hd_credential_record *credential);
void hd_credentials_restored(struct hd_credentials *all, uint64_t last);

enum { HD_CREDENTIALS_MAX = 100000 };
/* Adds a new credential and sets its id. HD_LIMIT: there are HD_CREDENTIALS_MAX already. */
enum hd_status hd_credentials_add(struct hd_credentials *all,
                                  struct hd_credential_record *credential);
/* Returns the credential with this hash that is valid now; NULL: none. The pointer is valid until a
 * credential is added or ended. */
const struct hd_credential_record *hd_credentials_find(const struct hd_credentials *all,
                                                       const unsigned char *hash, int64_t now_ms);
const struct hd_credential_record *hd_credentials_find_id(const struct hd_credentials *all,
                                                          uint64_t id, int64_t now_ms);
/* Ends the credential with this id: hd_credentials_find does not return it any more. */
void hd_credentials_end(struct hd_credentials *all, uint64_t id);
/* Keeps hash and name of a node's or person's certificate that was ended, for the two functions
 * below; does nothing for other kinds. */
void hd_credentials_keep_ended(struct hd_credentials *all,
                               const struct hd_credential_record *credential);
/* Returns whether the certificate with this hash was ended, or any certificate of `node` at
 * since_ms or later; true also if that is unknown for lack of memory. */
bool hd_credentials_was_ended(const struct hd_credentials *all, const unsigned char *hash,
                              const char *node, int64_t since_ms);
/* Returns whether there is a certificate of this kind and name: valid, ended, or expired for less
 * than a year. A name is of a node or of a person, never of both: a restored database that does not
 * know a person's certificate would take it for a newer one of the node (services/adopt.c). */
bool hd_credentials_knows(const struct hd_credentials *all, enum hd_credential_kind kind,
                          const char *name);
/* Allows dropping credentials that expired before settled_ms (base/clock.h, settled clock); 0, the
 * initial value: none may be dropped. */
void hd_credentials_settle(struct hd_credentials *all, int64_t settled_ms);
size_t hd_credentials_count(const struct hd_credentials *all);
/* Returns the credential at `index` (below the count); the order has no meaning, and the credential
 * may have expired. */
const struct hd_credential_record *hd_credentials_at(const struct hd_credentials *all,
                                                     size_t index);

/* The identity of a caller with a person's token. HD_DENIED from hd_identity_of_token: the token is
 * unknown, expired, revoked, or not a person's. */
struct hd_identity {
    char name[HD_CTL_NAME_BYTES_MAX + 1];
    enum hd_role role;
    uint64_t credential;
};
enum hd_status hd_identity_of_token(const struct hd_credentials *all, const char *token,
                                    int64_t now_ms, struct hd_identity *ret_identity);

/* Returns whether the text is a valid name of a token or person; token files (rpc.h) have the same
 * rule. */
bool hd_identity_is_name(const char *name);

/* ---- usage (usage.c) --------------------------------------------------------------------------*/

/* Current usage of the limits, for each name. */
struct hd_usages;

struct hd_usages *hd_usages_new(void);
void hd_usages_free(struct hd_usages *usages);
/* Counts one call of `name` against a rate (SUBMISSIONS, QUERIES) of `most` calls per second; as
 * many may come at once. HD_LIMIT: the rate is exceeded; the message names the limit and the
 * usage. */
enum hd_status hd_usages_take(struct hd_usages *usages, const char *name, enum hd_limit limit,
                              int64_t most, int64_t now_ms);
/* Returns the current usage of a rate by `name`, rounded up. */
int64_t hd_usages_rate(const struct hd_usages *usages, const char *name, enum hd_limit limit,
                       int64_t most, int64_t now_ms);
/* Returns HD_LIMIT, with a message as of hd_usages_take, if `used` has reached the limit `most`. */
enum hd_status hd_limit_check(const char *name, enum hd_limit limit, int64_t used, int64_t most);

/* Counts the live jobs of each owner, from each job record that is written. */
void hd_usages_see_job(struct hd_usages *usages, const struct hd_job_record *job);
int64_t hd_usages_jobs(const struct hd_usages *usages, const char *name, bool queued_alone);

#endif
