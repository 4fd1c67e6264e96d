/* limits: GetLimits, and the limits whose check needs a query of the store. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "controller/services/control.h"
#include "heddle/v1/identity.pb-c.h"

struct asking {
    const struct controller *c;
    struct hd_rpc_call *call; /* the call to answer; holds a reference */
    char name[HD_CTL_NAME_BYTES_MAX + 1];
    enum hd_role role;
    bool known;
};

static int64_t used_of(const struct asking *a, enum hd_limit limit, int64_t most,
                       int64_t checkpoint_bytes)
{
    switch (limit) {
    case HD_LIMIT_SUBMISSIONS:
    case HD_LIMIT_QUERIES:
        return hd_usages_rate(a->c->usages, a->name, limit, most, hd_clock_now_ms());
    case HD_LIMIT_WATCHES:
        return watch_count_of(a->c, a->name) + read_log_count_of(a->c, a->name);
    case HD_LIMIT_JOBS_QUEUED:
        return hd_usages_jobs(a->c->usages, a->name, true);
    case HD_LIMIT_JOBS_LIVE:
        return hd_usages_jobs(a->c->usages, a->name, false);
    case HD_LIMIT_CHECKPOINT_BYTES:
        return checkpoint_bytes;
    case HD_LIMIT_COUNT:
        break;
    }
    return 0;
}

static void answer_limits(struct asking *a, int64_t checkpoint_bytes)
{
    Heddle__V1__GetLimitsResponse response = HEDDLE__V1__GET_LIMITS_RESPONSE__INIT;
    Heddle__V1__LimitUse uses[HD_LIMIT_COUNT], *pointers[HD_LIMIT_COUNT];

    for (int i = 0; i < HD_LIMIT_COUNT; i++) {
        const enum hd_limit limit = (enum hd_limit)i;
        const int64_t most = hd_policy_limit(a->c->policy, a->name, a->role, limit);

        heddle__v1__limit_use__init(&uses[i]);
        uses[i].name = convert_text(hd_limit_name(limit));
        uses[i].unit = convert_text(hd_limit_unit(limit));
        uses[i].most = most == INT64_MAX ? 0 : most;
        uses[i].used = used_of(a, limit, most, checkpoint_bytes);
        pointers[i] = &uses[i];
    }
    response.name = a->name;
    response.role = convert_text(a->known ? hd_role_name(a->role) : "");
    response.limits = pointers;
    response.n_limits = HD_LIMIT_COUNT;
    (void)hd_rpc_call_reply(a->call, &response.base);
}

static void on_bytes(struct hd_query *query, enum hd_status st)
{
    struct asking *a = query->user;

    if (st)
        hd_rpc_call_fail(a->call, st);
    else
        answer_limits(a, query->bytes);
    hd_rpc_call_unref(a->call);
    free(a);
    hd_query_free(query);
}

/* Finds the role of the user whose limits another user asks for: the role of a credential, or of
 * the policy. */
static void find_role(struct asking *a)
{
    for (size_t i = 0; i < hd_credentials_count(a->c->credentials); i++) {
        const struct hd_credential_record *each = hd_credentials_at(a->c->credentials, i);

        if (strcmp(each->name, a->name) == 0 && hd_role_of(each->role, &a->role)) {
            a->known = true;
            return;
        }
    }
    a->role =
        hd_policy_role(a->c->policy, a->name,
                       strncmp(a->name, "uid:", 4) == 0 ? HD_LOGIN_SOCKET : HD_LOGIN_TOKEN_FILE);
}

void limits_get(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    const Heddle__V1__GetLimitsRequest *m = (const void *)request;
    const char *mine = control_caller(call), *name = *m->name ? m->name : mine;
    struct asking *a = calloc(1, sizeof *a);
    struct hd_query *query = hd_query_new(HD_QUERY_BYTES);
    enum hd_status st = a && query ? HD_OK : hd_err(HD_NO_MEMORY, "out of memory for a reply");

    if (!st && strcmp(name, mine) != 0 && !hd_role_has(guard_role(call), HD_ROLE_ADMIN))
        st = hd_err(HD_DENIED, "%s is %s; the limits of others are for an admin", mine,
                    hd_role_name(guard_role(call)));
    if (!st && strlen(name) > HD_CTL_NAME_BYTES_MAX)
        st = hd_err(HD_INVALID, "name: it is longer than any name");
    if (st) {
        hd_rpc_call_fail(call, st);
        free(a);
        hd_query_free(query);
        return;
    }
    a->c = hd_rpc_call_user(call);
    a->call = hd_rpc_call_ref(call);
    (void)strcpy(a->name, name); /* fits: its length was checked */
    a->role = guard_role(call);
    a->known = strcmp(name, mine) == 0;
    if (!a->known)
        find_role(a);
    query->owner = name;
    query->done = on_bytes;
    query->user = a;
    hd_store_query(a->c->store, query);
}

/* ---- a submission -----------------------------------------------------------------------------*/

struct submission {
    struct controller *c;
    struct hd_rpc_call *call; /* the call to answer; holds a reference */
    struct prepared *prepared;
    limits_step *step;
    char *request_id;
    int64_t most;
};

static void free_submission(struct submission *s)
{
    hd_rpc_call_unref(s->call);
    control_free_prepared(s->prepared);
    free(s->request_id);
    free(s);
}

static void on_submission(struct hd_query *query, enum hd_status st)
{
    struct submission *s = query->user;

    if (!st)
        st = hd_limit_check(control_caller(s->call), HD_LIMIT_CHECKPOINT_BYTES, query->bytes,
                            s->most);
    if (!st) /* limits are checked again: another job may have been submitted during the query */
        st = guard_check_jobs(s->c, s->call);
    if (!st)
        st = s->step(s->c, s->call, s->request_id, s->prepared);
    if (st)
        hd_rpc_call_fail(s->call, st);
    free_submission(s);
    hd_query_free(query);
}

enum hd_status limits_check_then(struct controller *c, struct hd_rpc_call *call,
                                 const char *request_id, struct prepared *prepared,
                                 limits_step *step)
{
    const int64_t most = hd_policy_limit(c->policy, control_caller(call), guard_role(call),
                                         HD_LIMIT_CHECKPOINT_BYTES);
    struct submission *s;
    struct hd_query *query;
    enum hd_status st = guard_check_jobs(c, call);

    if (!st && most == INT64_MAX) {
        st = step(c, call, request_id, prepared);
        if (!st)
            control_free_prepared(prepared);
        return st;
    }
    if (st)
        return st;
    s = calloc(1, sizeof *s);
    query = hd_query_new(HD_QUERY_BYTES);
    if (!s || !query || !(s->request_id = strdup(request_id))) {
        free(s);
        hd_query_free(query);
        return hd_err(HD_NO_MEMORY, "no memory for a job");
    }
    s->c = c;
    s->call = hd_rpc_call_ref(call);
    s->prepared = prepared;
    s->step = step;
    s->most = most;
    query->owner = control_caller(call);
    query->done = on_submission;
    query->user = s;
    hd_store_query(c->store, query);
    return HD_OK;
}
