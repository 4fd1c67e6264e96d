/* credential: makes, lists and ends credentials: the service Identity, and Join and Renew of Fleet.
 *
 * A change takes effect in memory at once, so that the next call sees it; the reply is sent after
 * the commit. A secret is in the one reply that creates it and is not stored.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/services/control.h"
#include "heddle/v1/identity.pb-c.h"

#define DAY_MS INT64_C(86400000)

enum { INVITATION_MS = 60 * 60 * 1000, INVITATION_MIN_MS = 60 * 1000, CHECK_EVERY_MS = 5000 };
static const int64_t INVITATION_MAX_MS = INT64_C(366) * 86400 * 1000;
static const int64_t token_ms = 90 * DAY_MS, token_min_ms = 60 * 1000, token_max_ms = 3650 * DAY_MS;

/* Returns the life of certificates of nodes and users, ms. The controller's own certificate always
 * lives HD_PKI_CERTIFICATE_DAYS. */
static int64_t certificate_ms(const struct controller *c)
{
    return c->options.certificate_ms ? c->options.certificate_ms : HD_PKI_CERTIFICATE_DAYS * DAY_MS;
}

/* ---- making and ending ------------------------------------------------------------------------*/

/* Adds a credential to the database and sets its id. Call in a transaction. */
static enum hd_status add_credential(struct controller *c, struct hd_credential_record *made)
{
    enum hd_status st;

    if (!c->transaction)
        return hd_err(HD_UNAVAILABLE, "the controller is stopping");
    st = hd_credentials_add(c->credentials, made);
    if (!st)
        hd_batch_add_credential(c->transaction->batch, made);
    return st;
}

/* Ends a credential. Call in a transaction. cut: also ends the streams that are open with it. */
static void end(struct controller *c, const struct hd_credential_record *credential, const char *by,
                bool cut)
{
    struct hd_credential_record ended = *credential;

    ended.ended_ms = hd_clock_wall_ms();
    ended.ended_by = by;
    hd_batch_add_credential(c->transaction->batch, &ended);
    hd_credentials_keep_ended(c->credentials, &ended);
    hd_credentials_end(c->credentials, ended.id);
    if (!cut)
        return;
    watch_cut(c, ended.id);
    read_log_cut(c, ended.id);
    fleet_cut(c, ended.id);
}

/* Ends all credentials of this name whose kind is in `kinds` (a set of bits); returns how many. */
static int32_t end_all(struct controller *c, unsigned kinds, const char *name, const char *by,
                       bool cut)
{
    int32_t count = 0;

    for (size_t i = 0; i < hd_credentials_count(c->credentials);) {
        const struct hd_credential_record *each = hd_credentials_at(c->credentials, i);

        if (!(kinds & 1u << each->kind) || strcmp(each->name, name) != 0) {
            i++;
            continue;
        }
        end(c, each, by, cut); /* removes `each`: the next one moves to index i */
        count++;
    }
    return count;
}

enum { OF_PEOPLE = 1u << HD_CREDENTIAL_KIND_TOKEN | 1u << HD_CREDENTIAL_KIND_PERSON };
enum { OF_NODES = 1u << HD_CREDENTIAL_KIND_NODE | 1u << HD_CREDENTIAL_KIND_INVITATION };

void credential_end_node(struct controller *c, const char *node, const char *by)
{
    if (c->transaction)
        (void)end_all(c, OF_NODES, node, by, false);
}

static void send_made(struct controller *c, struct reply *reply)
{
    (void)c;
    (void)hd_rpc_call_reply(reply->call, reply->message);
}

/* Makes the reply and the audit row of a change to credentials, which is no core step, unless `st`,
 * what the change returned, is an error. Returns the reply's message, of this type, to fill in: it
 * lives in *ret_arena. NULL: there is none; finish fails the call. */
static void *reply_of(struct controller *c, struct hd_rpc_call *call, enum hd_status st,
                      const ProtobufCMessageDescriptor *descriptor, struct hd_arena **ret_arena)
{
    struct reply *reply = st ? NULL : answer_when_durable(c, call, send_made);
    void *message;

    if (!reply)
        return NULL;
    guard_audit(c, call, NULL);
    message = answer_message(&reply->arena, descriptor);
    reply->message = message;
    *ret_arena = &reply->arena;
    return message;
}

/* Ends the transaction of a change; on an error fails the call. */
static void finish(struct controller *c, struct hd_rpc_call *call, enum hd_status st)
{
    transaction_end(c);
    if (st)
        hd_rpc_call_fail(call, st);
}

/* ---- tokens -----------------------------------------------------------------------------------*/

static enum hd_status check_person(const char *name, const char *role)
{
    enum hd_role known;

    if (!hd_identity_is_name(name))
        return hd_err(
            HD_INVALID,
            "name: \"%s\" is no name: 1 to 64 letters, digits or . _ - @, not digits alone", name);
    if (!hd_role_of(role, &known) || known == HD_ROLE_NONE)
        return hd_err(HD_INVALID, "role: \"%s\" is no role: viewer, user, operator or admin", role);
    return HD_OK;
}

/* Checks that no node has the name of a person who gets a certificate. */
static enum hd_status check_no_node(const struct controller *c, const char *name)
{
    return hd_credentials_knows(c->credentials, HD_CREDENTIAL_KIND_NODE, name)
               ? hd_err(HD_EXISTS,
                        "name: %s is the name of a node, or was less than a year ago; the "
                        "certificate of a person needs another one (a name with an @ is never a "
                        "node's)",
                        name)
               : HD_OK;
}

/* Checks that no person with a certificate has the name of a node that joins. */
static enum hd_status check_no_person(const struct controller *c, const char *node)
{
    return hd_credentials_knows(c->credentials, HD_CREDENTIAL_KIND_PERSON, node)
               ? hd_err(HD_EXISTS,
                        "%s is the name in a person's certificate, or was less than a year ago; "
                        "a node needs another one: heddle node invite NAME, and heddled join "
                        "--node-name NAME",
                        node)
               : HD_OK;
}

static void create_token(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    const Heddle__V1__CreateTokenRequest *m = (const void *)request;
    struct controller *c = hd_rpc_call_user(call);
    const int64_t now_ms = hd_clock_wall_ms(), ttl_ms = m->ttl_ms ? m->ttl_ms : token_ms;
    struct hd_credential_record made = {.kind = HD_CREDENTIAL_KIND_TOKEN,
                                        .name = m->name,
                                        .role = m->role,
                                        .made_by = control_caller(call),
                                        .made_ms = now_ms,
                                        .expires_ms = now_ms + ttl_ms};
    Heddle__V1__CreateTokenResponse *response = NULL;
    char secret[HD_PKI_HASH_TEXT_MAX];
    struct hd_arena *made_in;
    enum hd_status st = control_check_disk(c);

    if (!st)
        st = check_person(m->name, m->role);
    if (!st && (ttl_ms < token_min_ms || ttl_ms > token_max_ms))
        st = hd_err(HD_INVALID, "ttl_ms: a token lives for a minute to ten years");
    if (!st)
        st = hd_pki_make_secret(secret);
    if (st) {
        hd_rpc_call_fail(call, st);
        return;
    }
    hd_pki_hash(secret, strlen(secret), made.hash);
    transaction_begin(c);
    st = add_credential(c, &made);
    response = reply_of(c, call, st, &heddle__v1__create_token_response__descriptor, &made_in);
    if (response) {
        response->id = made.id;
        response->token = convert_text(hd_arena_strdup(made_in, secret));
        response->expires_unix_ms = made.expires_ms;
    }
    explicit_bzero(secret, sizeof secret);
    finish(c, call, st);
}

static void revoke_token(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    const Heddle__V1__RevokeTokenRequest *m = (const void *)request;
    struct controller *c = hd_rpc_call_user(call);
    const struct hd_credential_record *one =
        hd_credentials_find_id(c->credentials, m->id, hd_clock_wall_ms());
    Heddle__V1__RevokeTokenResponse *response = NULL;
    struct hd_arena *made_in;
    int32_t count = 0;
    enum hd_status st = control_check_reserve(c);

    if (!st && !m->id == !*m->name)
        st = hd_err(HD_INVALID, "id, name: one of them is needed");
    if (!st && m->id && (!one || !(OF_PEOPLE & 1u << one->kind)))
        st = hd_err(
            HD_NOT_FOUND,
            "there is no valid token or certificate of a person with the number %llu; see heddle "
            "token ls",
            (unsigned long long)m->id);
    if (st) {
        hd_rpc_call_fail(call, st);
        return;
    }
    transaction_begin(c);
    if (!c->transaction) {
        st = hd_err(HD_UNAVAILABLE, "the controller is stopping");
    } else if (m->id) {
        hd_rpc_call_set_label(call, one->name);
        end(c, one, control_caller(call), true);
        count = 1;
    } else {
        count = end_all(c, OF_PEOPLE, m->name, control_caller(call), true);
    }
    if (!st && !count)
        st = hd_err(HD_NOT_FOUND, "%s has no valid token; see heddle token ls", m->name);
    response = reply_of(c, call, st, &heddle__v1__revoke_token_response__descriptor, &made_in);
    if (response) {
        response->count = count;
    }
    finish(c, call, st);
}

/* ---- lists ------------------------------------------------------------------------------------*/

static Heddle__V1__Credential *convert_credential(struct hd_arena *arena,
                                                  const struct hd_credential_record *r)
{
    Heddle__V1__Credential *m = answer_message(arena, &heddle__v1__credential__descriptor);

    if (!m)
        return NULL;
    m->id = r->id;
    m->kind = convert_text(hd_credential_kind_name((int)r->kind));
    m->name = convert_text(r->name);
    m->role = convert_text(r->role);
    m->made_by = convert_text(r->made_by);
    m->made_unix_ms = r->made_ms;
    m->expires_unix_ms = r->expires_ms;
    m->ended_unix_ms = r->ended_ms;
    m->ended_by = convert_text(r->ended_by);
    return m;
}

static ProtobufCMessage *fill_credentials(struct hd_query *query, bool with_ended)
{
    Heddle__V1__ListCredentialsResponse *response =
        answer_message(&query->arena, &heddle__v1__list_credentials_response__descriptor);
    const int64_t now_ms = hd_clock_wall_ms();

    if (!response)
        return NULL;
    response->credentials =
        hd_arena_array(&query->arena, query->credential_count + 1, sizeof *response->credentials);
    for (size_t i = 0; response->credentials && i < query->credential_count; i++) {
        const struct hd_credential_record *r = &query->credentials[i];

        if (!with_ended && (r->ended_ms || r->expires_ms <= now_ms))
            continue;
        response->credentials[response->n_credentials] = convert_credential(&query->arena, r);
        response->n_credentials += response->credentials[response->n_credentials] != NULL;
    }
    if (query->more)
        response->next = query->credentials[query->credential_count - 1].id;
    return &response->base;
}

static ProtobufCMessage *fill_valid(struct controller *c, const struct hd_rpc_call *call,
                                    struct hd_query *query)
{
    (void)c;
    (void)call;
    return fill_credentials(query, false);
}

static ProtobufCMessage *fill_all(struct controller *c, const struct hd_rpc_call *call,
                                  struct hd_query *query)
{
    (void)c;
    (void)call;
    return fill_credentials(query, true);
}

static void list_credentials(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    const Heddle__V1__ListCredentialsRequest *m = (const void *)request;
    struct hd_query *query = hd_query_new(HD_QUERY_CREDENTIALS);

    if (query) {
        query->after = m->after;
        query->limit = control_page_size(m->limit);
    }
    answer_list(call, query, m->ended ? fill_all : fill_valid);
}

static const char *way_of(const struct controller *c, const struct hd_rpc_principal *caller)
{
    const struct hd_credential_record *credential =
        caller->credential
            ? hd_credentials_find_id(c->credentials, caller->credential, hd_clock_wall_ms())
            : NULL;

    if (caller->transport == HD_RPC_TRANSPORT_UNIX)
        return "socket";
    if (!credential)
        return "token-file";
    return credential->kind == HD_CREDENTIAL_KIND_TOKEN ? "token" : "certificate";
}

static void who_am_i(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    static const char *const visibilities[] = {
        [HD_VISIBILITY_OWN] = "own", [HD_VISIBILITY_JOBS] = "jobs", [HD_VISIBILITY_ALL] = "all"};
    Heddle__V1__WhoAmIResponse response = HEDDLE__V1__WHO_AM_IRESPONSE__INIT;
    const struct controller *c = hd_rpc_call_user(call);
    const struct hd_rpc_principal *caller = hd_rpc_call_principal(call);
    const struct hd_credential_record *credential =
        hd_credentials_find_id(c->credentials, caller->credential, hd_clock_wall_ms());

    (void)request;
    response.name = convert_text(caller->name);
    response.role = convert_text(hd_role_name(guard_role(call)));
    response.way = convert_text(way_of(c, caller));
    response.credential = caller->credential;
    response.expires_unix_ms = credential ? credential->expires_ms : 0;
    response.sees = convert_text(visibilities[guard_visibility(c, call)]);
    (void)hd_rpc_call_reply(call, &response.base);
}

/* ---- nodes ------------------------------------------------------------------------------------*/

static enum hd_status check_authority(const struct controller *c)
{
    return c->authority
               ? HD_OK
               : hd_err(HD_CONFLICT, "this controller has no certificate authority; make one with "
                                     "heddle-controller init --state-dir DIR, and restart it");
}

/* Finds HOST:PORT by which other machines reach the controller: its TCP listen address, with the
 * machine's name if that is a wildcard address. HD_CONFLICT: it listens on a Unix socket alone. */
static enum hd_status find_address(const struct controller *c, char *ret_address, size_t size)
{
    const char *listen = NULL, *colon;
    char host[256];
    size_t length;

    for (size_t i = 0; i < CONTROLLER_LISTENS_MAX && c->options.listens[i]; i++)
        if (!hd_rpc_address_is_unix(c->options.listens[i]))
            listen = c->options.listens[i];
    if (!listen && !hd_rpc_address_is_unix(c->options.listen))
        listen = c->options.listen;
    if (!listen)
        return hd_err(HD_CONFLICT, "this controller listens on its Unix socket alone; start it "
                                   "with --listen HOST:PORT, too");
    colon = strrchr(listen, ':');
    length = (size_t)(colon - listen);
    if (strncmp(listen, "0.0.0.0", length) == 0 || strncmp(listen, "[::]", length) == 0) {
        if (gethostname(host, sizeof host - 1) < 0)
            return hd_err(HD_IO, "cannot get the name of this machine: %m");
        host[sizeof host - 1] = '\0';
    } else {
        (void)snprintf(host, sizeof host, "%.*s", (int)length, listen);
    }
    (void)snprintf(ret_address, size, "%s:%d", host, c->port);
    return HD_OK;
}

static void invite_node(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    const Heddle__V1__InviteNodeRequest *m = (const void *)request;
    struct controller *c = hd_rpc_call_user(call);
    const int64_t now_ms = hd_clock_wall_ms();
    struct hd_credential_record made = {.kind = HD_CREDENTIAL_KIND_INVITATION,
                                        .name = m->node,
                                        .role = "",
                                        .made_by = control_caller(call),
                                        .made_ms = now_ms,
                                        .expires_ms =
                                            now_ms + (m->ttl_ms ? m->ttl_ms : INVITATION_MS)};
    Heddle__V1__InviteNodeResponse *response = NULL;
    char secret[HD_PKI_HASH_TEXT_MAX], address[300];
    struct hd_arena *made_in;
    enum hd_status st = control_check_disk(c);

    if (!st)
        st = check_authority(c);
    if (!st && !hd_pki_is_node_name(m->node) && !hd_pki_is_node_pattern(m->node))
        st = hd_err(HD_INVALID,
                    "node: \"%s\" is no name of a node (lower-case letters, digits, - and ., at "
                    "most 63), nor a beginning of names and *",
                    m->node);
    if (!st)
        st = check_no_person(c, m->node);
    if (!st && m->ttl_ms && (m->ttl_ms < INVITATION_MIN_MS || m->ttl_ms > INVITATION_MAX_MS))
        st = hd_err(HD_INVALID, "ttl_ms: an invitation lives for a minute to a year");
    if (!st)
        st = find_address(c, address, sizeof address);
    if (!st)
        st = hd_pki_make_secret(secret);
    if (st) {
        hd_rpc_call_fail(call, st);
        return;
    }
    hd_pki_hash(secret, strlen(secret), made.hash);
    transaction_begin(c);
    if (c->transaction)
        (void)end_all(c, 1u << HD_CREDENTIAL_KIND_INVITATION, m->node, control_caller(call), true);
    st = add_credential(c, &made);
    response = reply_of(c, call, st, &heddle__v1__invite_node_response__descriptor, &made_in);
    if (response) {
        response->secret = convert_text(hd_arena_strdup(made_in, secret));
        response->ca_hash.data = c->authority->hash;
        response->ca_hash.len = sizeof c->authority->hash;
        response->address = convert_text(hd_arena_strdup(made_in, address));
        response->expires_unix_ms = made.expires_ms;
    }
    explicit_bzero(secret, sizeof secret);
    finish(c, call, st);
}

static void revoke_node(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    const Heddle__V1__RevokeNodeRequest *m = (const void *)request;
    struct controller *c = hd_rpc_call_user(call);
    Heddle__V1__RevokeNodeResponse *response = NULL;
    struct hd_arena *made_in;
    int32_t count = 0;
    enum hd_status st = control_check_reserve(c);

    if (st) {
        hd_rpc_call_fail(call, st);
        return;
    }
    transaction_begin(c);
    if (c->transaction)
        count = end_all(c, OF_NODES, m->node, control_caller(call), true);
    if (!count)
        st = hd_err(HD_NOT_FOUND, "node %s has no certificate and no invitation; see heddle nodes",
                    m->node);
    response = reply_of(c, call, st, &heddle__v1__revoke_node_response__descriptor, &made_in);
    if (response) {
        response->count = count;
    }
    finish(c, call, st);
}

/* Signs the certificate request `request` of a node or user and adds the credential to this
 * transaction. *ret_cert lives in `arena`. */
static enum hd_status sign(struct controller *c, const char *request, struct hd_arena *arena,
                           struct hd_credential_record *made, const char **ret_cert)
{
    struct hd_text cert = {0};
    enum hd_status st = hd_authority_sign(c->authority, request, made->name, made->made_ms,
                                          made->expires_ms, &cert, made->hash);

    if (!st)
        st = add_credential(c, made);
    *ret_cert = st ? NULL : hd_arena_strdup(arena, cert.data);
    hd_text_free(&cert);
    return st;
}

/* Checks an invitation against the name of the joining node. One for a single name lets that node
 * join again. One for a pattern of names is known to many machines, so it does not let a node with
 * a valid certificate be replaced. */
static enum hd_status check_join(const struct controller *c, const char *invited, const char *node,
                                 int64_t now_ms)
{
    if (!hd_pki_is_invited(invited, node))
        return hd_err(HD_DENIED, "the invitation is for node %s, not for %s", invited, node);
    if (hd_pki_is_node_pattern(invited) && credential_newest_of_node(c, node, now_ms))
        return hd_err(HD_EXISTS,
                      "node %s has a certificate already, which the invitation for %s does not "
                      "replace; if its machine was installed anew: heddle node revoke %s",
                      node, invited, node);
    return check_no_person(c, node);
}

/* Handles Join. A name belongs to one machine: older certificates of it end, and so does an
 * invitation for this name alone. */
static void join_node(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    const Heddle__V1__JoinRequest *m = (const void *)request;
    struct controller *c = hd_rpc_call_user(call);
    const struct hd_rpc_principal *caller = hd_rpc_call_principal(call);
    const int64_t now_ms = hd_clock_wall_ms();
    struct hd_credential_record made = {.kind = HD_CREDENTIAL_KIND_NODE,
                                        .name = m->node_name,
                                        .role = "",
                                        .made_by = "invitation",
                                        .made_ms = now_ms,
                                        .expires_ms = now_ms + certificate_ms(c)};
    Heddle__V1__JoinResponse *response = NULL;
    const char *cert = NULL;
    struct hd_arena arena;
    struct hd_arena *made_in;
    enum hd_status st = control_check_disk(c);

    if (!st)
        st = check_authority(c);
    if (!st)
        st = check_join(c, caller->token_name, m->node_name, now_ms);
    if (st) {
        hd_rpc_call_fail(call, st);
        return;
    }
    hd_arena_init(&arena, 0);
    transaction_begin(c);
    st = sign(c, m->request, &arena, &made, &cert);
    if (!st) { /* the new one is taken out meanwhile, so that only older ones end */
        hd_credentials_end(c->credentials, made.id);
        (void)end_all(c, OF_NODES, m->node_name, "join", true);
        st = hd_credentials_restore(c->credentials, &made);
    }
    response = reply_of(c, call, st, &heddle__v1__join_response__descriptor, &made_in);
    if (response) {
        response->certificate = convert_text(hd_arena_strdup(made_in, cert));
        response->expires_unix_ms = made.expires_ms;
        response->build = convert_text(c->options.build);
        hd_log(HD_LOG_INFO, "node %s has joined from %s", m->node_name, hd_rpc_call_peer(call));
    }
    hd_arena_done(&arena);
    finish(c, call, st);
}

/* Returns whether the node's newest certificate is not valid yet, because it was made while the
 * clock was ahead. Such a node may renew at once. */
static bool last_is_from_future(const struct controller *c, const char *node, int64_t now_ms)
{
    const struct hd_credential_record *last = NULL;

    for (size_t i = 0; i < hd_credentials_count(c->credentials); i++) {
        const struct hd_credential_record *each = hd_credentials_at(c->credentials, i);

        if (each->kind == HD_CREDENTIAL_KIND_NODE && strcmp(each->name, node) == 0 &&
            (!last || each->id > last->id))
            last = each;
    }
    return last && credential_is_from_future(last, now_ms);
}

/* Returns HD_LIMIT if it is too early to renew. A node renews after two thirds of its certificate's
 * life; a twelfth of the life is tolerance for clocks. The reply to an earlier renewal may have
 * been lost, so that the node still has its older certificate: therefore the certificate of this
 * connection must be old enough, and the newest one need only be a twelfth of a life old. */
static enum hd_status check_renewal(const struct controller *c, uint64_t shown_id,
                                    const struct hd_credential_record *newest, int64_t now_ms)
{
    const struct hd_credential_record *shown =
        hd_credentials_find_id(c->credentials, shown_id, now_ms);
    const int64_t life_ms = newest->expires_ms - newest->made_ms;
    const int64_t early_ms = life_ms - life_ms / 3 - life_ms / 12;
    char when[HD_CLOCK_TEXT_MAX];
    int64_t from_ms = newest->made_ms + life_ms / 12;

    if (shown && !credential_is_from_future(shown, now_ms) && shown->made_ms + early_ms > from_ms)
        from_ms = shown->made_ms + early_ms;
    if (now_ms >= from_ms || last_is_from_future(c, newest->name, now_ms))
        return HD_OK;
    hd_clock_format_utc(from_ms, when);
    return hd_err(HD_LIMIT, "the certificate of %s may be renewed from %s on", newest->name, when);
}

static void renew_node(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    const Heddle__V1__RenewRequest *m = (const void *)request;
    struct controller *c = hd_rpc_call_user(call);
    const int64_t now_ms = hd_clock_wall_ms();
    const struct hd_credential_record *old =
        hd_rpc_call_principal(call)->credential
            ? credential_newest_of_node(c, hd_rpc_call_principal(call)->token_name, now_ms)
            : NULL;
    struct hd_credential_record made = {.kind = HD_CREDENTIAL_KIND_NODE,
                                        .role = "",
                                        .made_by = control_caller(call),
                                        .made_ms = now_ms,
                                        .expires_ms = now_ms + certificate_ms(c)};
    char name[HD_CTL_NAME_BYTES_MAX + 1] = "";
    Heddle__V1__RenewResponse *response = NULL;
    const char *cert = NULL;
    struct hd_arena arena;
    struct hd_arena *made_in;
    enum hd_status st = control_check_disk(c);

    if (!st)
        st = check_authority(c);
    if (!st && !old)
        st = hd_err(HD_DENIED, "%s has no certificate to renew", control_caller(call));
    if (!st)
        st = check_renewal(c, hd_rpc_call_principal(call)->credential, old, now_ms);
    if (st) {
        hd_rpc_call_fail(call, st);
        return;
    }
    (void)snprintf(name, sizeof name, "%s", old->name);
    made.name = name;
    hd_arena_init(&arena, 0);
    transaction_begin(c);
    st = sign(c, m->request, &arena, &made, &cert);
    response = reply_of(c, call, st, &heddle__v1__renew_response__descriptor, &made_in);
    if (response) {
        response->certificate = convert_text(hd_arena_strdup(made_in, cert));
        response->expires_unix_ms = made.expires_ms;
    }
    hd_arena_done(&arena);
    finish(c, call, st);
}

/* ---- people's certificates --------------------------------------------------------------------*/

static void sign_person(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    const Heddle__V1__SignPersonRequest *m = (const void *)request;
    struct controller *c = hd_rpc_call_user(call);
    const int64_t now_ms = hd_clock_wall_ms();
    struct hd_credential_record made = {.kind = HD_CREDENTIAL_KIND_PERSON,
                                        .name = m->name,
                                        .role = m->role,
                                        .made_by = control_caller(call),
                                        .made_ms = now_ms,
                                        .expires_ms = now_ms + certificate_ms(c)};
    Heddle__V1__SignPersonResponse *response = NULL;
    const char *cert = NULL;
    struct hd_arena arena;
    struct hd_arena *made_in;
    enum hd_status st = control_check_disk(c);

    if (!st)
        st = check_authority(c);
    if (!st)
        st = check_person(m->name, m->role);
    if (!st)
        st = check_no_node(c, m->name);
    if (st) {
        hd_rpc_call_fail(call, st);
        return;
    }
    hd_arena_init(&arena, 0);
    transaction_begin(c);
    st = sign(c, m->request, &arena, &made, &cert);
    response = reply_of(c, call, st, &heddle__v1__sign_person_response__descriptor, &made_in);
    if (response) {
        response->certificate = convert_text(hd_arena_strdup(made_in, cert));
        response->authority = c->authority->cert.data;
        response->expires_unix_ms = made.expires_ms;
    }
    hd_arena_done(&arena);
    finish(c, call, st);
}

/* ---- time -------------------------------------------------------------------------------------*/

/* Installs the controller's renewed certificate in the gRPC and the HTTP listener. */
static enum hd_status show_certificate(struct controller *c)
{
    const enum hd_status st = hd_rpc_server_set_tls(c->server, &c->tls);

    return st ? st : web_set_tls(c, &c->tls);
}

void credential_tick(struct controller *c)
{
    const int64_t now_ms = hd_clock_now_ms();
    bool renewed = false;

    if (now_ms < c->credentials_due_ms)
        return;
    c->credentials_due_ms = now_ms + CHECK_EVERY_MS;
    watch_cut(c, 0);
    read_log_cut(c, 0);
    fleet_cut(c, 0);
    if (!c->authority)
        return;
    if (hd_authority_renew(c->authority, hd_clock_wall_ms(), &renewed)) {
        hd_log(HD_LOG_ERROR, "cannot renew the controller's certificate: %s", hd_err_message());
        return;
    }
    c->certificate_due = (c->certificate_due || renewed) && c->own_tls;
    if (c->certificate_due && show_certificate(c)) {
        hd_log(HD_LOG_ERROR, "the controller cannot use its renewed certificate: %s",
               hd_err_message());
        return;
    }
    c->certificate_due = false;
    if (renewed)
        hd_log(HD_LOG_INFO, "the controller's certificate is renewed");
}

/* ---- the service ------------------------------------------------------------------------------*/

#define UNARY(service, name, function)                                \
    {                                                                 \
        .path = "/heddle.v1." service "/" name, .kind = HD_RPC_UNARY, \
        .handler = {.on_open = function},                             \
    }

enum hd_status credential_register(struct controller *c)
{
    const struct hd_rpc_method methods[] = {
        UNARY("Identity", "WhoAmI", who_am_i),
        UNARY("Identity", "CreateToken", create_token),
        UNARY("Identity", "ListCredentials", list_credentials),
        UNARY("Identity", "RevokeToken", revoke_token),
        UNARY("Identity", "InviteNode", invite_node),
        UNARY("Identity", "RevokeNode", revoke_node),
        UNARY("Identity", "SignPerson", sign_person),
        UNARY("Identity", "ListAudit", audit_list),
        UNARY("Identity", "GetLimits", limits_get),
        UNARY("Fleet", "Join", join_node),
        UNARY("Fleet", "Renew", renew_node),
    };
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < sizeof methods / sizeof methods[0]; i++)
        st = guard_add_method(c, &methods[i]);
    return st;
}
