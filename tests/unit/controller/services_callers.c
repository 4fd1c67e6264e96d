#include "services_callers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sqlite3.h>

#include "controller/identity/authority.h"
#include "controller/store/store.h"
#include "tests/program/test.h"

#define X(code, name, role, letter) name,
const char *const caller_names[CALLERS] = {CALLER_LIST(X) "n1", "n2"};
#undef X
#define X(code, name, role, letter) letter,
const char caller_letters[CALLERS + 1] = {CALLER_LIST(X) 'N', 'I', '\0'};
#undef X
#define X(code, name, role, letter) role,
static const char *const roles[] = {CALLER_LIST(X)};
#undef X

enum { HOUR_MS = 3600 * 1000, HEARD_MS = 200 };

static struct hd_rpc_token node_token = {.party = HD_RPC_PARTY_NODE, .name = "n1"};
static const struct hd_rpc_tokens node_tokens = {.items = &node_token, .count = 1};

static void add(struct hd_batch *batch, uint64_t id, enum hd_credential_kind kind, const char *name,
                const char *role, char secret[HD_PKI_HASH_TEXT_MAX])
{
    struct hd_credential_record made = {.id = id,
                                        .kind = kind,
                                        .name = name,
                                        .role = role,
                                        .made_by = "test",
                                        .made_ms = hd_clock_wall_ms(),
                                        .expires_ms = hd_clock_wall_ms() + HOUR_MS};

    assert_int_equal(hd_pki_make_secret(secret), HD_OK);
    hd_pki_hash(secret, strlen(secret), made.hash);
    hd_batch_add_credential(batch, &made);
}

static void write_credentials(struct callers *all, const char *state)
{
    struct hd_batch *batch = hd_batch_new();

    for (int i = 0; i < 4; i++) {
        add(batch, (uint64_t)(1 + i), HD_CREDENTIAL_KIND_TOKEN, caller_names[i], roles[i],
            all->secrets[i]);
        add(batch, (uint64_t)(11 + i), HD_CREDENTIAL_KIND_TOKEN, caller_names[i], "user",
            all->submitter[i]);
    }
    add(batch, 21, HD_CREDENTIAL_KIND_INVITATION, "n2", "", all->secrets[CALLER_INVITED]);
    if (hd_store_write(state, batch))
        fail_msg("%s", hd_err_message());
    assert_int_equal(hd_pki_make_secret(all->secrets[CALLER_NODE]), HD_OK);
    (void)snprintf(node_token.token, sizeof node_token.token, "%s", all->secrets[CALLER_NODE]);
}

struct hd_rpc_client *callers_client(struct callers *all, const char *secret)
{
    char ca[128];
    const struct hd_rpc_tls tls = {.ca_path = ca};
    const struct hd_rpc_client_options options = {
        .token = secret, .tls = &tls, .tls_server_name = HD_AUTHORITY_SERVER_NAME};
    struct hd_rpc_client *client;

    (void)snprintf(ca, sizeof ca, "%s/state/pki/ca.pem", all->b.dir);
    if (hd_rpc_client_new(all->b.rpc, all->b.address, &options, &client))
        fail_msg("%s", hd_err_message());
    return client;
}

void callers_be(struct callers *all, const char *secret)
{
    hd_rpc_client_close(all->b.client);
    all->b.client = callers_client(all, secret);
}

void callers_start(struct callers *all)
{
    static const char *const hosts[] = {"127.0.0.1"};
    struct bench *b = &all->b;
    char state[96];

    start(b, NULL);
    stop_controller(b);
    (void)snprintf(state, sizeof state, "%s/state", b->dir);
    if (hd_authority_init(state, hosts, 1, hd_clock_wall_ms()))
        fail_msg("%s", hd_err_message());
    write_credentials(all, state);
    b->tokens = &node_tokens;
    (void)snprintf(b->address, sizeof b->address, "127.0.0.1:0");
    if (start_controller(b))
        fail_msg("%s", hd_err_message());
    (void)snprintf(b->address, sizeof b->address, "127.0.0.1:%d", controller_port(b->controller));
    for (int i = 0; i < 4; i++) {
        callers_be(all, all->submitter[i]);
        all->jobs[i] = submit(b, 2);
    }
    all->last = 0;
    all->auditor = NULL;
    all->heard = NULL;
    hd_rpc_message_free(&callers_audit(all)->base);
}

void callers_finish(struct callers *all)
{
    finish(&all->b);
}

/* ---- calls ------------------------------------------------------------------------------------*/

static void set_text(ProtobufCMessage *message, const char *field, const char *value)
{
    const ProtobufCFieldDescriptor *found =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, field);
    char *text = (char *)(uintptr_t)value;

    if (found && found->type == PROTOBUF_C_TYPE_STRING && found->label != PROTOBUF_C_LABEL_REPEATED)
        memcpy((char *)message + found->offset, &text, sizeof text);
}

static void set_job(ProtobufCMessage *message, uint64_t job)
{
    const ProtobufCFieldDescriptor *found =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, "job");

    if (found && found->type == PROTOBUF_C_TYPE_UINT64)
        memcpy((char *)message + found->offset, &job, sizeof job);
}

struct stream {
    const struct callers *all;
    bool accepted, done;
    enum hd_status st;
};

static void hear(const struct callers *all, const ProtobufCMessage *message)
{
    if (all->heard && message)
        all->heard(all->heard_user, message);
}

static void on_accepted(struct hd_rpc_call *c, const ProtobufCMessage *message)
{
    struct stream *s = hd_rpc_call_user(c);

    hear(s->all, message);
    s->accepted = true;
}

static void on_done(struct hd_rpc_call *c, enum hd_status st, const char *message)
{
    struct stream *s = hd_rpc_call_user(c);

    if (st)
        (void)hd_err(st, "%s", message);
    s->st = st;
    s->done = true;
}

/* A stream that is still open when a message or nothing has come is as good as HD_OK. Where the
 * messages are heard, more of them are waited for. */
static enum hd_status ask_stream(struct callers *all, const char *path, enum hd_rpc_kind kind,
                                 const ProtobufCMessageDescriptor *response,
                                 const ProtobufCMessage *request)
{
    struct stream s = {.all = all};
    int64_t until_ms;
    const struct hd_rpc_call_options options = {
        .path = path,
        .kind = kind,
        .response = response,
        .handler = {.on_open = kind == HD_RPC_BIDI ? on_accepted : NULL,
                    .on_msg = on_accepted,
                    .on_done = on_done},
        .user = &s};
    struct hd_rpc_call *call;

    assert_int_equal(
        hd_rpc_client_call(all->b.client, &options, kind == HD_RPC_BIDI ? NULL : request, &call),
        HD_OK);
    WAIT_FOR(&all->b, s.done || s.accepted);
    until_ms = hd_clock_now_ms() + (all->heard ? HEARD_MS : 0);
    WAIT_FOR(&all->b, s.done || hd_clock_now_ms() >= until_ms);
    if (s.done)
        return s.st;
    hd_rpc_call_cancel(call);
    WAIT_FOR(&all->b, s.done);
    return HD_OK;
}

enum hd_status callers_ask(struct callers *all, const ProtobufCServiceDescriptor *service,
                           const ProtobufCMethodDescriptor *method, uint64_t job)
{
    const bool bidi = strcmp(method->name, "Connect") == 0 || strcmp(method->name, "Logs") == 0;
    const bool stream =
        strcmp(method->name, "WatchJob") == 0 || strcmp(method->name, "ReadLog") == 0;
    ProtobufCMessage *request = calloc(1, method->input->sizeof_message), *response = NULL;
    char path[96];
    enum hd_status st;

    protobuf_c_message_init(method->input, request);
    set_job(request, job);
    set_text(request, "node", "nx");
    set_text(request, "node_name", "nx");
    (void)snprintf(path, sizeof path, "/%s/%s", service->name, method->name);
    if (bidi || stream)
        st = ask_stream(all, path, bidi ? HD_RPC_BIDI : HD_RPC_SERVER_STREAM, method->output,
                        request);
    else
        st = hd_rpc_call_wait(all->b.client, path, method->output, WAIT_MS, request, &response);
    hear(all, response);
    hd_rpc_message_free(response);
    free(request);
    return st;
}

/* ---- what is stored ---------------------------------------------------------------------------*/

Heddle__V1__ListAuditResponse *callers_audit(struct callers *all)
{
    Heddle__V1__ListAuditRequest request = HEDDLE__V1__LIST_AUDIT_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    Heddle__V1__ListAuditResponse *response;

    if (!all->auditor)
        all->auditor = callers_client(all, all->secrets[CALLER_ADMIN]);
    request.after_sequence = all->last;
    request.limit = 1000;
    assert_int_equal(hd_rpc_call_wait(all->auditor, "/heddle.v1.Identity/ListAudit",
                                      &heddle__v1__list_audit_response__descriptor, WAIT_MS,
                                      &request.base, &message),
                     HD_OK);
    response = (Heddle__V1__ListAuditResponse *)(void *)message;
    if (response->n_rows)
        all->last = response->rows[response->n_rows - 1]->sequence;
    return response;
}

static void add_rows(sqlite3 *db, const char *table, struct hd_text *text)
{
    char sql[160];
    sqlite3_stmt *rows = NULL;

    (void)snprintf(sql, sizeof sql, "SELECT * FROM %s", table);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &rows, NULL), SQLITE_OK);
    while (sqlite3_step(rows) == SQLITE_ROW) {
        hd_text_add(text, "%s", table);
        for (int i = 0; i < sqlite3_column_count(rows); i++) {
            const void *bytes = sqlite3_column_blob(rows, i);

            hd_text_add(text, "|");
            if (bytes)
                hd_text_add_bytes(text, bytes, (size_t)sqlite3_column_bytes(rows, i));
        }
        hd_text_add(text, "\n");
    }
    (void)sqlite3_finalize(rows);
}

char *callers_dump(const struct callers *all)
{
    static const char list[] = "SELECT name FROM sqlite_schema WHERE type='table'"
                               " AND name<>'audit' ORDER BY name";
    char path[96];
    struct hd_text text = {0};
    sqlite3_stmt *tables = NULL;
    sqlite3 *db = NULL;

    (void)snprintf(path, sizeof path, "%s/state/state.db", all->b.dir);
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, list, -1, &tables, NULL), SQLITE_OK);
    while (sqlite3_step(tables) == SQLITE_ROW)
        add_rows(db, (const char *)sqlite3_column_text(tables, 0), &text);
    (void)sqlite3_finalize(tables);
    (void)sqlite3_close(db);
    assert_false(text.failed);
    return text.data;
}
