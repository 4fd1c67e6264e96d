/* identity: who calls the controller, what they may do, and how much of it.
 *
 * A caller shows a credential: a token, a client certificate, or its uid at the Unix socket. It
 * becomes a name and a role. The *registry* finds credentials by the hash of what is shown; the
 * *policy*, read from a file, gives roles to names without a credential of their own, says who sees
 * the jobs of others, and sets limits. Names are compared exactly, never by a beginning or a
 * pattern.
 *
 * What each call needs is in services/rpcs.def. HTTP doors use hd_identity_of_token.
 *
 * Used by: services, main.c, HTTP doors, tests.   Uses: base, pki, record.h.
 * Threads: the loop's.
 */
#ifndef HD_CONTROLLER_IDENTITY_H
#define HD_CONTROLLER_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/user.h"
#include "controller/core/record.h"

/* ---- roles (role.c) ---------------------------------------------------------------------------*/

/* Each role of a person may do what those before it may. code, word */
#define HD_ROLE_LIST(X)                                                              \
    X(NONE, "none")         /* nothing                                            */ \
    X(INVITED, "invited")   /* a node with an invitation: join, and nothing else  */ \
    X(NODE, "node")         /* a node: the service Fleet, in its own name         */ \
    X(VIEWER, "viewer")     /* look                                               */ \
    X(USER, "user")         /* also submit jobs, and change their own             */ \
    X(OPERATOR, "operator") /* also nodes and the jobs of all                     */ \
    X(ADMIN, "admin")       /* also tokens, invitations, queues and the audit log */

#define X(code, word) HD_ROLE_##code,
enum hd_role { HD_ROLE_LIST(X) HD_ROLE_COUNT };
#undef X
const char *hd_role_name(enum hd_role role);
/* Of the roles that a person can have: none, viewer, user, operator, admin. */
bool hd_role_of(const char *word, enum hd_role *ret_role);
/* Whether `role` includes `least`. A person's role never includes a node's, nor the reverse. */
bool hd_role_has(enum hd_role role, enum hd_role least);

/* ---- the policy (policy.c) --------------------------------------------------------------------*/

/* What of the jobs of others. Operators and admins see all. */
enum hd_visibility {
    HD_VISIBILITY_OWN,  /* nothing: they do not exist */
    HD_VISIBILITY_JOBS, /* lists, states, progress; not specs, logs, checkpoints */
    HD_VISIBILITY_ALL,
};

/* name, word, default of all but operators and admins, unit; 0: no limit. Operators and admins have
 * none unless the policy gives them one. */
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

/* How long the controller keeps what it knows of jobs that have ended; 0: for ever. */
struct hd_retention {
    int64_t history_ms;    /* events, steps and validations, after the job's end */
    int64_t history_jobs;  /* of so many jobs, those that ended last */
    int64_t step_lines;    /* of an ended job, at most so many lines of steps */
    int64_t step_lines_ms; /* from so long after its end on */
};

struct hd_policy;

/* The policy without a file. NULL: no memory. */
struct hd_policy *hd_policy_new(void);
void hd_policy_free(struct hd_policy *policy);
/* Reads the lines of a policy file, whose form docs/operations.md describes. HD_INVALID: the
 * message has `name` and the line, and what to write. */
enum hd_status hd_policy_parse(const char *name, const char *text, struct hd_policy **ret_policy);
/* The same of a file. HD_DENIED: others than its owner may write it. */
enum hd_status hd_policy_read(const char *path, struct hd_policy **ret_policy);

/* How a caller without a role of its credential has come. */
enum hd_login {
    HD_LOGIN_TOKEN_FILE, /* --token-file: user, unless the policy says otherwise */
    HD_LOGIN_SOCKET,     /* another uid than the controller's and root: none */
};

enum hd_role hd_policy_role(const struct hd_policy *policy, const char *name, enum hd_login login);
enum hd_visibility hd_policy_visibility(const struct hd_policy *policy, const char *name,
                                        enum hd_role role);
/* INT64_MAX: no limit. */
int64_t hd_policy_limit(const struct hd_policy *policy, const char *name, enum hd_role role,
                        enum hd_limit limit);
struct hd_retention hd_policy_retention(const struct hd_policy *policy);
/* As which system user the ranks of an owner's jobs run: *ret_user as base/user.h has it; "": as
 * heddled's own, because the policy has no rule for users, or says so. HD_DENIED: none; the message
 * says what to add. */
enum hd_status hd_policy_user(const struct hd_policy *policy, const char *owner,
                              char ret_user[HD_USER_BYTES_MAX + 1]);

/* ---- credentials (credentials.c) --------------------------------------------------------------*/

struct hd_credentials; /* those that are valid, by hash; and the next number */

struct hd_credentials *hd_credentials_new(void);
void hd_credentials_free(struct hd_credentials *all);
/* At start, in the order of their ids, then the highest id that was ever used. */
enum hd_status hd_credentials_restore(struct hd_credentials *all,
                                      const struct hd_credential_record *credential);
void hd_credentials_restored(struct hd_credentials *all, uint64_t last);

enum { HD_CREDENTIALS_MAX = 100000 };
/* Adds one that is new: sets its id. HD_LIMIT: there are HD_CREDENTIALS_MAX. */
enum hd_status hd_credentials_add(struct hd_credentials *all,
                                  struct hd_credential_record *credential);
/* The credential with this hash that is valid now; NULL: none. It stays until one is added or
 * ended. */
const struct hd_credential_record *hd_credentials_find(const struct hd_credentials *all,
                                                       const unsigned char *hash, int64_t now_ms);
const struct hd_credential_record *hd_credentials_find_id(const struct hd_credentials *all,
                                                          uint64_t id, int64_t now_ms);
/* Ends one: it is not found any more. */
void hd_credentials_end(struct hd_credentials *all, uint64_t id);
/* Remembers a certificate of a node that was ended, from which no other may be adopted
 * (services/adopt.c); nothing for other kinds. */
void hd_credentials_keep_ended(struct hd_credentials *all,
                               const struct hd_credential_record *credential);
/* Returns whether the certificate with this hash was ended, or any of `node` at since_ms or later;
 * true, too, if that is not known for want of memory. */
bool hd_credentials_was_ended(const struct hd_credentials *all, const unsigned char *hash,
                              const char *node, int64_t since_ms);
/* Lets credentials that have expired by this clock (base/clock.h, settled) make room when more
 * come; 0, as at first: none does. */
void hd_credentials_settle(struct hd_credentials *all, int64_t settled_ms);
size_t hd_credentials_count(const struct hd_credentials *all);
/* The one at `index`, below the count, in no order; it may have expired. */
const struct hd_credential_record *hd_credentials_at(const struct hd_credentials *all,
                                                     size_t index);

/* The caller with this token. HD_DENIED: it is unknown, expired, revoked, or not a person's. */
struct hd_identity {
    char name[HD_CTL_NAME_BYTES_MAX + 1];
    enum hd_role role;
    uint64_t credential;
};
enum hd_status hd_identity_of_token(const struct hd_credentials *all, const char *token,
                                    int64_t now_ms, struct hd_identity *ret_identity);

/* What names of tokens and people are made of; as in token files (rpc.h). */
bool hd_identity_is_name(const char *name);

/* ---- usage (usage.c) --------------------------------------------------------------------------*/

/* What each name uses of its limits. */
struct hd_usages;

struct hd_usages *hd_usages_new(void);
void hd_usages_free(struct hd_usages *usages);
/* Takes one of a rate (SUBMISSIONS, QUERIES). `most` a second; a second's worth may come at once.
 * HD_LIMIT: the message names the limit and what is used. */
enum hd_status hd_usages_take(struct hd_usages *usages, const char *name, enum hd_limit limit,
                              int64_t most, int64_t now_ms);
/* What of a rate is used now, rounded up. */
int64_t hd_usages_rate(const struct hd_usages *usages, const char *name, enum hd_limit limit,
                       int64_t most, int64_t now_ms);
/* HD_LIMIT, with the same words: `used` of `most` are used, and one more is not possible. */
enum hd_status hd_limit_check(const char *name, enum hd_limit limit, int64_t used, int64_t most);

/* Live jobs, counted by their owners from the records that are written. */
void hd_usages_see_job(struct hd_usages *usages, const struct hd_job_record *job);
int64_t hd_usages_jobs(const struct hd_usages *usages, const char *name, bool queued_alone);

#endif
