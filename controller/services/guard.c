#include "controller/services/guard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "controller/services/internal.h"
#include "controller/services/refusals.h"
#include "heddle/v1/identity.pb-c.h"
#include "pki/pki.h"

/* limit of refused calls of one caller per second, also of admins */
enum { REFUSED_PER_S_MAX = 100 };

/* ---- the table --------------------------------------------------------------------------------*/

#define ROW(service, name, member, role, what, kept, price) \
    {.path = "/heddle.v1." #service "/" #name,              \
     .method = #name,                                       \
     .least = HD_ROLE_##role,                               \
     .object = GUARD_##what,                                \
     .keep = GUARD_##kept,                                  \
     .cost = GUARD_##price},
const struct guard_row guard_rows[] = {CONTROL_RPCS(ROW) FLEET_RPCS(ROW) IDENTITY_RPCS(ROW)};
const size_t guard_row_count = sizeof guard_rows / sizeof guard_rows[0];
#undef ROW

/* Checks at compile time that rpcs.def has exactly one row per RPC: a struct with one member per
 * row is as large as the generated service struct, which has one member per RPC, and has the same
 * members. */
#define MEMBER(service, name, member, role, what, kept, price) void (*member)(void);
#define EXISTS(service, name, member, role, what, kept, price) \
    _Static_assert(offsetof(Heddle__V1__##service##_Service, member) > 0, #name);
struct control_members {
    ProtobufCService base;
    CONTROL_RPCS(MEMBER)
};
struct fleet_members {
    ProtobufCService base;
    FLEET_RPCS(MEMBER)
};
struct identity_members {
    ProtobufCService base;
    IDENTITY_RPCS(MEMBER)
};
CONTROL_RPCS(EXISTS)
FLEET_RPCS(EXISTS)
IDENTITY_RPCS(EXISTS)
_Static_assert(sizeof(struct control_members) == sizeof(Heddle__V1__Control_Service),
               "an RPC of Control has no row in rpcs.def");
_Static_assert(sizeof(struct fleet_members) == sizeof(Heddle__V1__Fleet_Service),
               "an RPC of Fleet has no row in rpcs.def");
_Static_assert(sizeof(struct identity_members) == sizeof(Heddle__V1__Identity_Service),
               "an RPC of Identity has no row in rpcs.def");
#undef MEMBER
#undef EXISTS

/* One registered gRPC method: its handler, and the request's field that names the object. */
struct guard_method {
    void (*on_open)(struct hd_rpc_call *call, const ProtobufCMessage *request);
    /* field of the request with the object's name or number, for the audit log; NULL: none */
    const ProtobufCFieldDescriptor *field;
};

static const char *const object_fields[] = {
    [GUARD_NONE] = NULL,    [GUARD_JOB] = "job",
    [GUARD_NODE] = "node",  [GUARD_NODE_NAME] = "node_name",
    [GUARD_QUEUE] = "name", [GUARD_PERSON] = "name",
};

static const char *const object_words[] = {
    [GUARD_NONE] = "",          [GUARD_JOB] = "job",     [GUARD_NODE] = "node",
    [GUARD_NODE_NAME] = "node", [GUARD_QUEUE] = "queue", [GUARD_PERSON] = "person",
};

/* Finds the row of rpcs.def for a call by the address of the call's path, which guard_add_method
 * set. Returns NULL for health and reflection. */
static const struct guard_row *row_of(const struct hd_rpc_call *call)
{
    const char *path = hd_rpc_call_path(call);

    for (size_t i = 0; i < guard_row_count; i++)
        if (guard_rows[i].path == path)
            return &guard_rows[i];
    return NULL;
}

/* ---- memory -----------------------------------------------------------------------------------*/

enum hd_status guard_open(struct controller *c)
{
    enum hd_status st = HD_OK;

    c->methods = calloc(guard_row_count, sizeof *c->methods);
    c->usages = hd_usages_new();
    c->credentials = hd_credentials_new();
    c->refusals = refusals_new();
    if (c->options.policy_file)
        st = hd_policy_read(c->options.policy_file, c->options.state_dir, &c->policy);
    else
        c->policy = hd_policy_new();
    if (!st && (!c->methods || !c->usages || !c->credentials || !c->refusals || !c->policy))
        st = hd_err(HD_NO_MEMORY, "no memory for the callers");
    return st;
}

void guard_close(struct controller *c)
{
    hd_usages_free(c->usages);
    refusals_free(c->refusals);
    hd_credentials_free(c->credentials);
    hd_policy_free(c->policy);
    free(c->methods);
}

/* ---- identify ---------------------------------------------------------------------------------*/

static void take_credential(const struct hd_credential_record *found,
                            struct hd_rpc_principal *principal)
{
    const bool node =
        found->kind == HD_CREDENTIAL_KIND_NODE || found->kind == HD_CREDENTIAL_KIND_INVITATION;
    enum hd_role role = HD_ROLE_NONE;

    if (found->kind == HD_CREDENTIAL_KIND_NODE)
        role = HD_ROLE_NODE;
    else if (found->kind == HD_CREDENTIAL_KIND_INVITATION)
        role = HD_ROLE_INVITED;
    else
        (void)hd_role_of(found->role, &role);
    principal->party = node ? HD_RPC_PARTY_NODE : HD_RPC_PARTY_USER;
    principal->role = role;
    principal->credential = found->id;
    (void)snprintf(principal->name, sizeof principal->name, "%s%s", node ? "node:" : "",
                   found->name);
    (void)snprintf(principal->token_name, sizeof principal->token_name, "%s", found->name);
}

/* Finds the credential of the token or certificate that a caller showed. With both, the token
 * counts, because the caller chose to send it. */
static enum hd_status identify_by_hash(struct controller *c, const struct hd_rpc_shown *shown,
                                       struct hd_rpc_principal *principal)
{
    const int64_t now_ms = hd_clock_wall_ms();
    const struct hd_credential_record *found = NULL;
    struct hd_pki_certificate cert = {.name = ""};
    unsigned char hash[HD_PKI_HASH_BYTES];

    if (*shown->token) {
        hd_pki_hash(shown->token, strlen(shown->token), hash);
        found = hd_credentials_find(c->credentials, hash, now_ms);
        if (found && found->kind != HD_CREDENTIAL_KIND_TOKEN &&
            found->kind != HD_CREDENTIAL_KIND_INVITATION)
            found = NULL;
        if (!found)
            return adopt_refuse_token(c);
    } else if (*shown->cert) {
        if (!hd_pki_inspect(shown->cert, &cert))
            found = credential_of_cert(c, cert.hash);
        if (!found && *cert.name)
            found = adopt_certificate(c, shown->cert, &cert);
        if (found && found->kind != HD_CREDENTIAL_KIND_NODE &&
            found->kind != HD_CREDENTIAL_KIND_PERSON)
            found = NULL;
        if (!found)
            return adopt_refuse_certificate(c, &cert);
    }
    if (!found)
        return hd_err(HD_DENIED, "the token is missing; give a token file with one of the "
                                 "controller's");
    take_credential(found, principal);
    return HD_OK;
}

enum hd_status guard_identify(void *user, const struct hd_rpc_shown *shown,
                              struct hd_rpc_principal *principal)
{
    struct controller *c = user;

    if (!shown->known)
        return identify_by_hash(c, shown, principal);
    if (principal->transport == HD_RPC_TRANSPORT_UNIX)
        principal->role = principal->uid == 0 || principal->uid == geteuid()
                              ? HD_ROLE_ADMIN
                              : hd_policy_role(c->policy, principal->name, HD_LOGIN_SOCKET);
    else if (principal->party == HD_RPC_PARTY_NODE)
        principal->role = HD_ROLE_NODE;
    else
        principal->role = hd_policy_role(c->policy, principal->name, HD_LOGIN_TOKEN_FILE);
    return HD_OK;
}

/* ---- authorize --------------------------------------------------------------------------------*/

/* Refuses a call for nodes from a caller that is none. A node receives the jobs of all users and
 * its reports are trusted, so a user's credential must not act as a node; likewise a credential
 * stored on a node must not submit jobs (check_role). */
static enum hd_status refuse_node_call(const struct controller *c, const char *who,
                                       const struct guard_row *row)
{
    if (row->least == HD_ROLE_INVITED)
        return hd_err(HD_DENIED,
                      "%s has no invitation: a node joins with a line of heddle node "
                      "invite that was not used before",
                      who);
    if (c->authority || c->takes_nodes)
        return hd_err(HD_DENIED,
                      "this token is a user's (%s), not a node's; give heddled a token of the "
                      "controller's --node-token-file",
                      who);
    return hd_err(HD_DENIED,
                  "this token is a user's (%s), and this controller has no tokens of nodes; start "
                  "heddle-controller with --node-token-file FILE, and heddled with a token of that "
                  "file",
                  who);
}

static enum hd_status check_role(const struct controller *c, const struct hd_rpc_principal *caller,
                                 const struct guard_row *row)
{
    const enum hd_role role = (enum hd_role)caller->role;

    if (hd_role_has(role, row->least) ||
        (row->least == HD_ROLE_NODE && caller->party == HD_RPC_PARTY_LOCAL &&
         role == HD_ROLE_ADMIN)) /* heddled on the controller's machine */
        return HD_OK;
    if (role == HD_ROLE_NODE || role == HD_ROLE_INVITED)
        return row->least == HD_ROLE_INVITED || row->least == HD_ROLE_NODE
                   ? hd_err(HD_DENIED, "%s %s; this call is for a node that %s", caller->name,
                            role == HD_ROLE_NODE ? "has joined" : "has not joined yet",
                            role == HD_ROLE_NODE ? "is invited" : "has joined")
                   : hd_err(HD_DENIED,
                            "this token is a node's (%s), not a user's; give a token of the "
                            "controller's --token-file",
                            caller->name);
    if (row->least == HD_ROLE_INVITED || row->least == HD_ROLE_NODE)
        return refuse_node_call(c, caller->name, row);
    if (role == HD_ROLE_NONE)
        return hd_err(HD_DENIED,
                      "%s has no role here; an admin gives one by a line of the policy file: role "
                      "%s viewer (or user, operator, admin)",
                      caller->name, caller->name);
    return hd_err(HD_DENIED, "%s is %s; %s needs the role %s", caller->name, hd_role_name(role),
                  row->method, hd_role_name(row->least));
}

static enum hd_status take_rate(struct controller *c, const struct hd_rpc_principal *caller,
                                enum guard_cost cost)
{
    const enum hd_limit limit = cost == GUARD_SUBMIT ? HD_LIMIT_SUBMISSIONS : HD_LIMIT_QUERIES;

    if (cost == GUARD_FREE)
        return HD_OK;
    return hd_usages_take(
        c->usages, caller->name, limit,
        hd_policy_limit(c->policy, caller->name, (enum hd_role)caller->role, limit),
        hd_clock_now_ms());
}

/* Counts a refused call as a query of its caller, at most REFUSED_PER_S_MAX per second; also for
 * methods without a limit, and for admins. A refusal costs time and may add an audit row, so its
 * rate must be bounded even for a caller without any right. */
static enum hd_status take_refusal(struct controller *c, const struct hd_rpc_principal *caller,
                                   enum hd_status st)
{
    const int64_t given =
        hd_policy_limit(c->policy, caller->name, (enum hd_role)caller->role, HD_LIMIT_QUERIES);
    struct hd_error refusal;

    hd_err_save(st, &refusal);
    st = hd_usages_take(c->usages, caller->name, HD_LIMIT_QUERIES,
                        given < REFUSED_PER_S_MAX ? given : REFUSED_PER_S_MAX, hd_clock_now_ms());
    if (st == HD_LIMIT)
        return hd_err_prefix(st, "refused (%s)", refusal.message);
    return st ? st : hd_err_restore(&refusal);
}

/* Checks the protocol version of a command, which sends "MIN-MAX BUILD" with each call. Older
 * commands and other clients send nothing and are served. */
static enum hd_status check_client(const struct controller *c, const struct hd_rpc_call *call)
{
    const char *client = hd_rpc_call_metadata(call, HD_RPC_CLIENT_HEADER);
    char build[96];
    int min, max;

    if (!client || sscanf(client, "%d-%d %95[^\n]", &min, &max, build) != 3 ||
        (min <= HEDDLE__V1__PROTOCOL__PROTOCOL_MAX && max >= HEDDLE__V1__PROTOCOL__PROTOCOL_MIN))
        return HD_OK;
    return hd_err(HD_CONFLICT,
                  "this controller (build %s) speaks protocol %d to %d, the command (build %s) %d "
                  "to %d; upgrade the older one",
                  c->options.build, HEDDLE__V1__PROTOCOL__PROTOCOL_MIN,
                  HEDDLE__V1__PROTOCOL__PROTOCOL_MAX, build, min, max);
}

enum hd_status guard_authorize(void *user, struct hd_rpc_call *call)
{
    struct controller *c = user;
    const struct hd_rpc_principal *caller = hd_rpc_call_principal(call);
    const struct guard_row *row = row_of(call);
    enum hd_status st;

    if (!row) /* health and reflection: for all authenticated callers */
        return HD_OK;
    st = check_role(c, caller, row);
    if (!st)
        st = check_client(c, call);
    return st ? take_refusal(c, caller, st) : take_rate(c, caller, row->cost);
}

/* ---- open -------------------------------------------------------------------------------------*/

/* Writes the object that a request names, such as "job 7" or "node n1"; "" if it names none. */
static void name_object(const struct guard_row *row, const ProtobufCFieldDescriptor *field,
                        const ProtobufCMessage *request, char *ret_text, size_t size)
{
    const void *at = (const char *)request + field->offset;
    uint64_t number;
    const char *text;

    *ret_text = '\0';
    if (field->type == PROTOBUF_C_TYPE_UINT64) {
        memcpy(&number, at, sizeof number);
        if (number)
            (void)snprintf(ret_text, size, "%s %" PRIu64, object_words[row->object], number);
        return;
    }
    memcpy(&text, at, sizeof text);
    if (text && *text)
        (void)snprintf(ret_text, size, "%s %.*s", object_words[row->object],
                       (int)hd_record_fit(text, HD_CTL_NAME_BYTES_MAX), text);
}

static enum hd_status check_streams(const struct controller *c, const struct hd_rpc_call *call)
{
    const char *name = hd_rpc_call_principal(call)->name;
    const int64_t most = hd_policy_limit(c->policy, name, guard_role(call), HD_LIMIT_WATCHES);

    return most == INT64_MAX
               ? HD_OK
               : hd_limit_check(name, HD_LIMIT_WATCHES,
                                watch_count_of(c, name) + read_log_count_of(c, name), most);
}

static void open_call(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    struct controller *c = hd_rpc_call_user(call);
    const struct guard_row *row = row_of(call);
    const struct guard_method *method = &c->methods[row - guard_rows];
    char object[HD_CTL_NAME_BYTES_MAX + 16];
    enum hd_status st = row->cost == GUARD_STREAM ? check_streams(c, call) : HD_OK;

    if (method->field && request) {
        name_object(row, method->field, request, object, sizeof object);
        hd_rpc_call_set_label(call, object);
    }
    if (st) {
        /* the handler of a refused call was never called, so its on_done must not be called either
         */
        hd_rpc_call_set_user(call, NULL);
        hd_rpc_call_fail(call, st);
        return;
    }
    if (method->on_open)
        method->on_open(call, request);
}

/* Returns the .proto's description of the method at /SERVICE/METHOD. */
static const ProtobufCMethodDescriptor *describe_method(const char *path)
{
    static const ProtobufCServiceDescriptor *const services[] = {&heddle__v1__control__descriptor,
                                                                 &heddle__v1__fleet__descriptor,
                                                                 &heddle__v1__identity__descriptor};

    for (size_t i = 0; i < sizeof services / sizeof services[0]; i++) {
        const size_t length = strlen(services[i]->name);

        if (strncmp(path + 1, services[i]->name, length) == 0 && path[1 + length] == '/')
            return protobuf_c_service_descriptor_get_method_by_name(services[i], path + length + 2);
    }
    return NULL;
}

enum hd_status guard_add_method(struct controller *c, const struct hd_rpc_method *method)
{
    const ProtobufCMethodDescriptor *described = describe_method(method->path);
    struct hd_rpc_method made = *method;
    size_t i = 0;

    while (i < guard_row_count && strcmp(guard_rows[i].path, method->path) != 0)
        i++;
    if (i == guard_row_count)
        return hd_err(HD_INTERNAL, "%s has no row in rpcs.def", method->path);
    if (!described)
        return hd_err(HD_INTERNAL, "%s is no method of the .proto", method->path);
    made.request = described->input;
    made.response = described->output;
    c->methods[i].on_open = method->handler.on_open;
    if (guard_rows[i].object != GUARD_NONE) {
        c->methods[i].field = protobuf_c_message_descriptor_get_field_by_name(
            made.request, object_fields[guard_rows[i].object]);
        if (!c->methods[i].field)
            return hd_err(HD_INTERNAL, "rpcs.def: the request of %s has no field %s", method->path,
                          object_fields[guard_rows[i].object]);
    }
    made.path = guard_rows[i].path; /* row_of compares addresses */
    made.user = c;
    made.handler.on_open = open_call;
    return hd_rpc_server_add_method(c->server, &made);
}

enum hd_status guard_check_jobs(const struct controller *c, const struct hd_rpc_call *call)
{
    const char *name = hd_rpc_call_principal(call)->name;
    const enum hd_role role = guard_role(call);
    enum hd_status st =
        hd_limit_check(name, HD_LIMIT_JOBS_QUEUED, hd_usages_jobs(c->usages, name, true),
                       hd_policy_limit(c->policy, name, role, HD_LIMIT_JOBS_QUEUED));

    return st ? st
              : hd_limit_check(name, HD_LIMIT_JOBS_LIVE, hd_usages_jobs(c->usages, name, false),
                               hd_policy_limit(c->policy, name, role, HD_LIMIT_JOBS_LIVE));
}

/* ---- audit ------------------------------------------------------------------------------------*/

static struct hd_audit_record row_about(const struct hd_rpc_call *call, const char *result)
{
    const struct hd_rpc_principal *caller = hd_rpc_call_principal(call);
    const struct guard_row *row = row_of(call);

    return (struct hd_audit_record){.time_ms = hd_clock_wall_ms(),
                                    .who = caller->name,
                                    .role = hd_role_name((enum hd_role)caller->role),
                                    .method = row ? row->method : hd_rpc_call_path(call),
                                    .object = hd_rpc_call_label(call),
                                    .source = hd_rpc_call_peer(call),
                                    .result = result};
}

static void add_row(struct controller *c, const struct hd_audit_record *record)
{
    transaction_begin(c);
    if (c->transaction)
        hd_batch_add_audit(c->transaction->batch, record);
    transaction_end(c);
}

void guard_audit(struct controller *c, struct hd_rpc_call *call, const char *object)
{
    struct hd_audit_record record;

    if (object)
        hd_rpc_call_set_label(call, object);
    record = row_about(call, "ok");
    hd_rpc_call_set_mark(call);
    add_row(c, &record);
}

/* Returns whether a call gets an audit row. A call over a rate limit gets none, so that a flood of
 * calls does not fill the disk. */
static bool is_kept(const struct guard_row *row, enum hd_status st)
{
    if (st == HD_LIMIT)
        return false;
    return row->keep == GUARD_WRITE || st == HD_DENIED ||
           (st == HD_NOT_FOUND && row->object == GUARD_JOB);
}

void guard_answered(void *user, struct hd_rpc_call *call, enum hd_status st)
{
    struct controller *c = user;
    const struct guard_row *row = row_of(call);
    struct hd_audit_record record;
    bool can_write;

    if (!row || hd_rpc_call_mark(call) || c->stopping || !is_kept(row, st))
        return;
    record = row_about(call, st ? hd_status_name(st) : "ok");
    hd_rpc_call_set_mark(call);
    can_write = hd_store_disk_state(c->store) != HD_STORE_STUCK;
    if (st && !refusals_take(c->refusals, &record, can_write, hd_clock_now_ms()))
        return;
    if (can_write) /* without disk space rows would only fill memory */
        add_row(c, &record);
}

void guard_tick(struct controller *c, bool all_of_them)
{
    struct hd_audit_record record;

    if (hd_store_disk_state(c->store) == HD_STORE_STUCK)
        return; /* the counted refusals stay in memory until a later tick */
    while (refusals_next(c->refusals, hd_clock_now_ms(), all_of_them, &record)) {
        record.time_ms = hd_clock_wall_ms();
        add_row(c, &record);
    }
}
