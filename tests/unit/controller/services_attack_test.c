/* services: attacks by what callers show and send. None succeeds, and none changes a byte of the
 * store but rows of the audit log. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "controller/store/store.h"
#include "heddle/v1/control.pb-c.h"
#include "heddle/v1/fleet.pb-c.h"
#include "services_callers.h"
#include "tests/program/test.h"

enum { DEEP = 100000, BIG = 5 * 1024 * 1024 };

static enum hd_status whoami(struct callers *all)
{
    return callers_ask(all, &heddle__v1__identity__descriptor,
                       &heddle__v1__identity__descriptor.methods[0], 0);
}

static enum hd_status cancel(struct callers *all, uint64_t job)
{
    const ProtobufCMethodDescriptor *method = protobuf_c_service_descriptor_get_method_by_name(
        &heddle__v1__control__descriptor, "CancelJob");

    return callers_ask(all, &heddle__v1__control__descriptor, method, job);
}

static void assert_unchanged(const struct callers *all, const char *before, const char *attack)
{
    char *after = callers_dump(all);

    if (strcmp(before, after) != 0)
        fail_msg("the store has changed by: %s", attack);
    free(after);
}

/* ---- tokens -----------------------------------------------------------------------------------*/

/* Each is made of ada's token, who is admin. */
static void make_forged(const char *token, int number, char ret_token[HD_RPC_TOKEN_MAX + 1])
{
    const size_t length = strlen(token);

    (void)snprintf(ret_token, HD_RPC_TOKEN_MAX, "%s", token);
    if (number < 64) /* one digit is another */
        ret_token[number] = token[number] == '0' ? '1' : '0';
    else if (number < 64 + 40) /* a beginning, as long as a token may be short */
        ret_token[length - 1 - (size_t)(number - 64)] = '\0';
    else if (number == 104)
        (void)strcat(ret_token, "0");
    else if (number == 105)
        for (size_t i = 0; i < length; i++)
            ret_token[i] = token[length - 1 - i];
    else
        memset(ret_token, 'f', HD_RPC_TOKEN_MAX);
}

static void no_forged_token_opens(void **state)
{
    enum { FORGED = 107 };
    char token[HD_RPC_TOKEN_MAX + 1] = {0}, *before;
    struct callers all;

    callers_start(&all);
    before = callers_dump(&all);
    for (int i = 0; i < FORGED; i++) {
        make_forged(all.secrets[CALLER_ADMIN], i, token);
        if (strcmp(token, all.secrets[CALLER_ADMIN]) == 0)
            continue;
        callers_be(&all, token);
        assert_int_equal(whoami(&all), HD_DENIED);
        assert_int_equal(cancel(&all, all.jobs[0]), HD_DENIED);
    }
    assert_unchanged(&all, before, "a forged token");
    free(before);
    callers_finish(&all);
}

/* ---- credentials that end ---------------------------------------------------------------------*/

static enum hd_status ask(struct callers *all, const char *method,
                          const ProtobufCMessageDescriptor *response,
                          const ProtobufCMessage *request, void *ret)
{
    char path[96];
    ProtobufCMessage *message = NULL;
    enum hd_status st;

    (void)snprintf(path, sizeof path, "/heddle.v1.%s", method);
    st = hd_rpc_call_wait(all->b.client, path, response, WAIT_MS, request, &message);
    memcpy(ret, &message, sizeof message);
    return st;
}

static void watch_done(struct hd_rpc_call *c, enum hd_status st, const char *message)
{
    *(enum hd_status *)hd_rpc_call_user(c) = st;
}

/* Also an open stream ends, not only the next call. */
static void a_revoked_token_ends_at_once(void **state)
{
    Heddle__V1__RevokeTokenRequest request = HEDDLE__V1__REVOKE_TOKEN_REQUEST__INIT;
    Heddle__V1__WatchJobRequest watch_request = HEDDLE__V1__WATCH_JOB_REQUEST__INIT;
    enum hd_status end = HD_OK;
    const struct hd_rpc_call_options options = {.path = "/heddle.v1.Control/WatchJob",
                                                .kind = HD_RPC_SERVER_STREAM,
                                                .response =
                                                    &heddle__v1__watch_job_response__descriptor,
                                                .handler = {.on_done = watch_done},
                                                .user = &end};
    ProtobufCMessage *response = NULL;
    struct hd_rpc_client *anns;
    struct callers all;

    callers_start(&all);
    callers_be(&all, all.secrets[CALLER_USER]);
    assert_int_equal(whoami(&all), HD_OK);
    watch_request.job = all.jobs[CALLER_USER];
    assert_int_equal(hd_rpc_client_call(all.b.client, &options, &watch_request.base, NULL), HD_OK);
    assert_int_equal(whoami(&all), HD_OK); /* the stream was opened before */
    anns = all.b.client;
    all.b.client = callers_client(&all, all.secrets[CALLER_ADMIN]);
    request.name = (char *)"ann";
    assert_int_equal(ask(&all, "Identity/RevokeToken",
                         &heddle__v1__revoke_token_response__descriptor, &request.base, &response),
                     HD_OK);
    /* two: the one of her role, and the one that has submitted her job */
    assert_int_equal(((Heddle__V1__RevokeTokenResponse *)(void *)response)->count, 2);
    hd_rpc_message_free(response);
    WAIT_FOR(&all.b, end);
    assert_int_equal(end, HD_DENIED);
    hd_rpc_client_close(anns);
    callers_be(&all, all.secrets[CALLER_USER]);
    assert_int_equal(whoami(&all), HD_DENIED);
    stop_controller(&all.b); /* nor after a restart */
    (void)snprintf(all.b.address, sizeof all.b.address, "127.0.0.1:0");
    assert_int_equal(start_controller(&all.b), HD_OK);
    (void)snprintf(all.b.address, sizeof all.b.address, "127.0.0.1:%d",
                   controller_port(all.b.controller));
    callers_be(&all, all.secrets[CALLER_USER]);
    assert_int_equal(whoami(&all), HD_DENIED);
    callers_finish(&all);
}

/* ---- invitations ------------------------------------------------------------------------------*/

static enum hd_status join_with(struct callers *all, const char *node, const char *asked_for)
{
    Heddle__V1__JoinRequest request = HEDDLE__V1__JOIN_REQUEST__INIT;
    struct hd_text asked = {0}, key = {0};
    ProtobufCMessage *response = NULL;
    enum hd_status st;

    assert_int_equal(hd_pki_make_request(asked_for, &asked, &key), HD_OK);
    request.node_name = (char *)(uintptr_t)node;
    request.request = asked.data;
    st = ask(all, "Fleet/Join", &heddle__v1__join_response__descriptor, &request.base, &response);
    hd_rpc_message_free(response);
    hd_text_free(&asked);
    hd_text_free(&key);
    return st;
}

static void an_invitation_is_for_one_name_and_one_time(void **state)
{
    struct callers all;
    char *before;

    callers_start(&all);
    before = callers_dump(&all);
    for (int who = 0; who <= CALLER_NODE; who++) { /* no other caller joins */
        callers_be(&all, all.secrets[who]);
        assert_int_equal(join_with(&all, "n2", "n2"), HD_DENIED);
    }
    callers_be(&all, all.secrets[CALLER_INVITED]);
    assert_int_equal(join_with(&all, "n1", "n1"), HD_DENIED);
    assert_int_equal(join_with(&all, "n2", "n1"), HD_INVALID); /* a request for another name */
    assert_int_equal(join_with(&all, "", "x"), HD_DENIED);
    assert_int_equal(whoami(&all), HD_DENIED);
    assert_unchanged(&all, before, "an invitation for another name");
    assert_int_equal(join_with(&all, "n2", "n2"), HD_OK);
    free(before);
    before = callers_dump(&all);
    assert_int_equal(join_with(&all, "n2", "n2"), HD_DENIED); /* it is used up */
    assert_unchanged(&all, before, "a second use of an invitation");
    free(before);
    callers_finish(&all);
}

/* ---- certificates -----------------------------------------------------------------------------*/

/* A key and a certificate of it, as node.pem has them; by an authority of the test's own if
 * `foreign`. */
static void write_cert(const struct callers *all, const char *name, bool foreign, int64_t from_ms,
                       int64_t to_ms, char ret_path[128])
{
    const struct hd_pki_terms terms = {
        .name = name, .use = HD_PKI_CLIENT, .from_ms = from_ms, .to_ms = to_ms};
    struct hd_text ca = {0}, ca_key = {0}, asked = {0}, key = {0}, both = {0};
    struct hd_pki_authority *authority;
    char path[128];

    if (foreign) {
        assert_int_equal(hd_pki_make_authority("heddle-authority", from_ms, &ca, &ca_key), HD_OK);
    } else {
        (void)snprintf(path, sizeof path, "%s/state/pki/ca.pem", all->b.dir);
        assert_int_equal(hd_file_read(path, 1 << 16, &ca), HD_OK);
        (void)snprintf(path, sizeof path, "%s/state/pki/ca.key", all->b.dir);
        assert_int_equal(hd_file_read(path, 1 << 16, &ca_key), HD_OK);
    }
    assert_int_equal(hd_pki_authority_open(ca.data, ca_key.data, &authority), HD_OK);
    assert_int_equal(hd_pki_make_request(name, &asked, &key), HD_OK);
    assert_int_equal(hd_pki_sign(authority, asked.data, &terms, &both), HD_OK);
    hd_text_add(&both, "%s", key.data);
    (void)snprintf(ret_path, 128, "%s/%s.pem", all->b.dir, name);
    assert_int_equal(hd_file_write_atomic(ret_path, both.data, both.len_bytes, 0600), HD_OK);
    hd_pki_authority_free(authority);
    hd_text_free(&ca);
    hd_text_free(&ca_key);
    hd_text_free(&asked);
    hd_text_free(&key);
    hd_text_free(&both);
}

static void be_certified(struct callers *all, const char *cert)
{
    char ca[128];
    const struct hd_rpc_tls tls = {.ca_path = ca, .cert_path = cert, .key_path = cert};
    const struct hd_rpc_client_options options = {.tls = &tls,
                                                  .tls_server_name = "heddle-controller"};

    (void)snprintf(ca, sizeof ca, "%s/state/pki/ca.pem", all->b.dir);
    hd_rpc_client_close(all->b.client);
    assert_int_equal(hd_rpc_client_new(all->b.rpc, all->b.address, &options, &all->b.client),
                     HD_OK);
}

/* The controller makes a certificate for a person. */
static enum hd_status certify(struct callers *all, const char *name)
{
    Heddle__V1__SignPersonRequest request = HEDDLE__V1__SIGN_PERSON_REQUEST__INIT;
    struct hd_text asked = {0}, key = {0};
    ProtobufCMessage *response = NULL;
    enum hd_status st;

    callers_be(all, all->secrets[CALLER_ADMIN]);
    assert_int_equal(hd_pki_make_request(name, &asked, &key), HD_OK);
    request.name = (char *)(uintptr_t)name;
    request.role = (char *)"admin";
    request.request = asked.data;
    st = ask(all, "Identity/SignPerson", &heddle__v1__sign_person_response__descriptor,
             &request.base, &response);
    hd_rpc_message_free(response);
    hd_text_free(&asked);
    hd_text_free(&key);
    return st;
}

/* dora has a certificate of the controller's. */
static void certify_dora(struct callers *all)
{
    assert_int_equal(certify(all, "dora"), HD_OK);
}

/* The key of the authority alone makes nobody: certificates of ada, who has a token, of dora, who
 * has a certificate, and of n1, signed by it but not by the controller, which has no row of them.
 * One of another authority, or out of its time, ends in the handshake. */
static void certificates_that_the_controller_has_not_made_open_nothing(void **state)
{
    const int64_t now_ms = hd_clock_wall_ms(), day_ms = INT64_C(86400000);
    char path[128], *before;
    struct callers all;

    callers_start(&all);
    certify_dora(&all);
    before = callers_dump(&all);
    for (int i = 0; i < 3; i++) {
        const char *const names[] = {"ada", "dora", "n1"}, *name = names[i];

        write_cert(&all, name, false, now_ms, now_ms + day_ms, path);
        be_certified(&all, path);
        assert_int_equal(whoami(&all), HD_DENIED);
        assert_int_equal(cancel(&all, all.jobs[0]), HD_DENIED);
        write_cert(&all, name, true, now_ms, now_ms + day_ms, path);
        be_certified(&all, path);
        assert_int_equal(whoami(&all), HD_UNAVAILABLE);
        write_cert(&all, name, false, now_ms - 2 * day_ms, now_ms - day_ms, path);
        be_certified(&all, path);
        assert_int_equal(whoami(&all), HD_UNAVAILABLE);
        write_cert(&all, name, false, now_ms + day_ms, now_ms + 2 * day_ms, path);
        be_certified(&all, path);
        assert_int_equal(whoami(&all), HD_UNAVAILABLE);
    }
    assert_unchanged(&all, before, "a certificate that the controller has not made");
    free(before);
    callers_finish(&all);
}

/* ---- renewal ----------------------------------------------------------------------------------*/

static enum hd_status renew(struct callers *all, const char *asked_for)
{
    Heddle__V1__RenewRequest request = HEDDLE__V1__RENEW_REQUEST__INIT;
    struct hd_text asked = {0}, key = {0};
    ProtobufCMessage *response = NULL;
    enum hd_status st;

    assert_int_equal(hd_pki_make_request(asked_for, &asked, &key), HD_OK);
    request.request = asked.data;
    st = ask(all, "Fleet/Renew", &heddle__v1__renew_response__descriptor, &request.base, &response);
    hd_rpc_message_free(response);
    hd_text_free(&asked);
    hd_text_free(&key);
    return st;
}

static void wait_until(struct callers *all, int64_t when_ms)
{
    WAIT_FOR(&all->b, hd_clock_now_ms() >= when_ms);
}

/* Joins as n2; the bench then calls with the certificate. */
static void be_joined(struct callers *all)
{
    Heddle__V1__JoinRequest request = HEDDLE__V1__JOIN_REQUEST__INIT;
    struct hd_text asked = {0}, key = {0}, both = {0};
    Heddle__V1__JoinResponse *response = NULL;
    char path[128];

    callers_be(all, all->secrets[CALLER_INVITED]);
    assert_int_equal(hd_pki_make_request("n2", &asked, &key), HD_OK);
    request.node_name = (char *)"n2";
    request.request = asked.data;
    assert_int_equal(
        ask(all, "Fleet/Join", &heddle__v1__join_response__descriptor, &request.base, &response),
        HD_OK);
    hd_text_add(&both, "%s%s", response->certificate, key.data);
    (void)snprintf(path, sizeof path, "%s/node.pem", all->b.dir);
    assert_int_equal(hd_file_write_atomic(path, both.data, both.len_bytes, 0600), HD_OK);
    hd_rpc_message_free(&response->base);
    hd_text_free(&asked);
    hd_text_free(&key);
    hd_text_free(&both);
    be_certified(all, path);
}

static void start_again(struct callers *all)
{
    (void)snprintf(all->b.address, sizeof all->b.address, "127.0.0.1:0");
    assert_int_equal(start_controller(&all->b), HD_OK);
    (void)snprintf(all->b.address, sizeof all->b.address, "127.0.0.1:%d",
                   controller_port(all->b.controller));
}

static void revoke_n2(struct callers *all)
{
    Heddle__V1__RevokeNodeRequest revoke = HEDDLE__V1__REVOKE_NODE_REQUEST__INIT;
    ProtobufCMessage *response = NULL;

    revoke.node = (char *)"n2";
    callers_be(all, all->secrets[CALLER_ADMIN]);
    assert_int_equal(ask(all, "Identity/RevokeNode", &heddle__v1__revoke_node_response__descriptor,
                         &revoke.base, &response),
                     HD_OK);
    hd_rpc_message_free(response);
}

static enum hd_status invite(struct callers *all, const char *node)
{
    Heddle__V1__InviteNodeRequest request = HEDDLE__V1__INVITE_NODE_REQUEST__INIT;
    Heddle__V1__InviteNodeResponse *response = NULL;
    enum hd_status st;

    request.node = (char *)(uintptr_t)node;
    callers_be(all, all->secrets[CALLER_ADMIN]);
    st = ask(all, "Identity/InviteNode", &heddle__v1__invite_node_response__descriptor,
             &request.base, &response);
    if (!st)
        (void)snprintf(all->secrets[CALLER_INVITED], sizeof all->secrets[CALLER_INVITED], "%s",
                       response->secret);
    hd_rpc_message_free(response ? &response->base : NULL);
    return st;
}

/* HD_LIMIT: the certificate is one of n2, and too young to be renewed. HD_DENIED: it opens nothing.
 */
static enum hd_status try_certificate(struct callers *all, const char *path)
{
    be_certified(all, path);
    return renew(all, "n2");
}

/* A restored database takes a certificate that it does not know, but not after a revocation: not
 * that one, and no other of the node that was made before, although n2 has joined again within the
 * minutes that clocks may differ; nor at a later start. */
static void a_revoked_certificate_is_never_adopted(void **state)
{
    const int64_t now_ms = hd_clock_wall_ms(), day_ms = INT64_C(86400000), minute_ms = 60000;
    struct hd_store_restore restored;
    char path[128], adopted[128], other[128], dir[96];
    struct callers all;

    callers_start(&all);
    be_joined(&all);
    (void)snprintf(adopted, sizeof adopted, "%s/adopted.pem", all.b.dir);
    (void)snprintf(other, sizeof other, "%s/other.pem", all.b.dir);
    write_cert(&all, "n2", false, now_ms + 1000, now_ms + day_ms, path);
    assert_int_equal(rename(path, adopted), 0);
    write_cert(&all, "n2", false, now_ms + minute_ms, now_ms + day_ms, path);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(try_certificate(&all, adopted), HD_DENIED); /* nothing was restored yet */
    stop_controller(&all.b);
    (void)snprintf(dir, sizeof dir, "%s/state", all.b.dir);
    assert_int_equal(hd_store_restore_from(dir, NULL, false, false, &restored), HD_OK);
    start_again(&all);
    assert_int_equal(try_certificate(&all, adopted), HD_LIMIT);
    revoke_n2(&all);
    assert_int_equal(invite(&all, "n2"), HD_OK);
    be_joined(&all);
    assert_int_equal(renew(&all, "n2"), HD_LIMIT); /* the new one is */
    for (int starts = 0; starts < 2; starts++) {
        assert_int_equal(try_certificate(&all, adopted), HD_DENIED);
        assert_int_equal(try_certificate(&all, other), HD_DENIED);
        stop_controller(&all.b);
        start_again(&all);
    }
    callers_finish(&all);
}

/* Adds a node to the database of a controller that does not run, as builds did that gave a person's
 * name to a node. */
static void add_node_row(const struct callers *all, const char *name)
{
    const struct hd_credential_record row = {.id = 900,
                                             .kind = HD_CREDENTIAL_KIND_NODE,
                                             .name = name,
                                             .role = "",
                                             .made_by = "invitation",
                                             .made_ms = 1,
                                             .expires_ms = INT64_MAX};
    struct hd_batch *batch = hd_batch_new();
    char dir[96];

    (void)snprintf(dir, sizeof dir, "%s/state", all->b.dir);
    hd_batch_add_credential(batch, &row);
    assert_int_equal(hd_store_write(dir, batch), HD_OK);
}

static void restore_present(struct callers *all)
{
    struct hd_store_restore restored;
    char dir[96];

    (void)snprintf(dir, sizeof dir, "%s/state", all->b.dir);
    assert_int_equal(hd_store_restore_from(dir, NULL, false, false, &restored), HD_OK);
}

static enum hd_status revoke_person(struct callers *all, const char *name)
{
    Heddle__V1__RevokeTokenRequest revoke = HEDDLE__V1__REVOKE_TOKEN_REQUEST__INIT;
    ProtobufCMessage *response = NULL;
    enum hd_status st;

    revoke.name = (char *)(uintptr_t)name;
    callers_be(all, all->secrets[CALLER_ADMIN]);
    st = ask(all, "Identity/RevokeToken", &heddle__v1__revoke_token_response__descriptor,
             &revoke.base, &response);
    hd_rpc_message_free(response);
    return st;
}

/* A node may do what no person may, and a restored database knows neither dora's newer certificate
 * nor its kind: while hers is valid, and after it was revoked. */
static void a_certificate_of_a_person_is_never_adopted_as_of_a_node(void **state)
{
    const int64_t now_ms = hd_clock_wall_ms(), day_ms = INT64_C(86400000);
    char path[128];
    struct callers all;

    callers_start(&all);
    certify_dora(&all);
    write_cert(&all, "dora", false, now_ms + 1000, now_ms + day_ms, path);
    stop_controller(&all.b);
    add_node_row(&all, "dora");
    restore_present(&all);
    for (int revoked = 0; revoked < 2; revoked++) {
        start_again(&all);
        assert_int_equal(try_certificate(&all, path), HD_DENIED);
        if (!revoked)
            assert_int_equal(revoke_person(&all, "dora"), HD_OK);
        assert_int_equal(try_certificate(&all, path), HD_DENIED);
        stop_controller(&all.b);
    }
    start_again(&all);
    callers_finish(&all);
}

/* n2 had no certificate in the backup, so a certificate of that name may be a person's; that a node
 * joined as n2 afterwards says nothing about it. */
static void a_node_that_joins_after_a_restore_adopts_nothing(void **state)
{
    const int64_t now_ms = hd_clock_wall_ms(), day_ms = INT64_C(86400000);
    struct callers all;
    char path[128];

    callers_start(&all);
    write_cert(&all, "n2", false, now_ms, now_ms + day_ms, path);
    stop_controller(&all.b);
    restore_present(&all);
    start_again(&all);
    be_joined(&all);
    assert_int_equal(try_certificate(&all, path), HD_DENIED);
    callers_finish(&all);
}

/* Valid or ended, also at a later start. */
static void a_name_is_of_a_node_or_of_a_person(void **state)
{
    struct callers all;

    callers_start(&all);
    be_joined(&all);
    assert_int_equal(certify(&all, "dora"), HD_OK);
    for (int starts = 0; starts < 2; starts++) {
        assert_int_equal(certify(&all, "n2"), HD_EXISTS);
        assert_non_null(strstr(hd_err_message(), "the name of a node"));
        assert_int_equal(invite(&all, "dora"), HD_EXISTS);
        assert_non_null(strstr(hd_err_message(), "a person's certificate"));
        assert_int_equal(invite(&all, "do*"), HD_OK);
        callers_be(&all, all.secrets[CALLER_INVITED]);
        assert_int_equal(join_with(&all, "dora", "dora"), HD_EXISTS);
        if (starts == 0) {
            assert_int_equal(revoke_person(&all, "dora"), HD_OK);
            revoke_n2(&all);
        }
        stop_controller(&all.b);
        start_again(&all);
    }
    callers_finish(&all);
}

/* A life of 6 s: not again before 7/12 of it, which are 3.5 s. The connection that the first
 * certificate has opened serves beyond its end, as long as the node has a newer one and is not
 * revoked. */
static void a_node_renews_by_the_connection_that_it_has(void **state)
{
    struct hd_rpc_client *nodes;
    struct callers all;
    int64_t begin_ms;

    callers_start(&all);
    stop_controller(&all.b);
    all.b.certificate_ms = 6000;
    start_again(&all);
    be_joined(&all);
    begin_ms = hd_clock_now_ms(); /* the certificate is a little older */
    assert_int_equal(renew(&all, "n2"), HD_LIMIT);
    wait_until(&all, begin_ms + 4000);               /* more than 7/12 of 6 s */
    assert_int_equal(renew(&all, "n1"), HD_INVALID); /* in no other name */
    assert_int_equal(renew(&all, "n2"), HD_OK);
    assert_int_equal(whoami(&all), HD_DENIED);
    wait_until(&all, begin_ms + 8500);          /* so much of the second one's 6 s, too */
    assert_int_equal(renew(&all, "n2"), HD_OK); /* the first has expired 2 s ago */
    nodes = all.b.client;
    all.b.client = callers_client(&all, all.secrets[CALLER_ADMIN]);
    revoke_n2(&all);
    hd_rpc_client_close(all.b.client);
    all.b.client = nodes;
    assert_int_equal(renew(&all, "n2"), HD_DENIED);
    callers_finish(&all);
}

/* ---- messages ---------------------------------------------------------------------------------*/

/* A field that no version has, with whatever bytes. */
static enum hd_status send_unknown(struct callers *all, unsigned wire_type, const void *bytes,
                                   size_t count)
{
    Heddle__V1__GetJobRequest request = HEDDLE__V1__GET_JOB_REQUEST__INIT;
    ProtobufCMessageUnknownField field = {.tag = 100,
                                          .wire_type = (ProtobufCWireType)wire_type,
                                          .len = count,
                                          .data = (uint8_t *)(uintptr_t)bytes};
    ProtobufCMessage *response = NULL;
    enum hd_status st;

    request.base.n_unknown_fields = 1;
    request.base.unknown_fields = &field;
    request.job = 1;
    st = ask(all, "Control/GetJob", &heddle__v1__get_job_response__descriptor, &request.base,
             &response);
    hd_rpc_message_free(response);
    return st;
}

static void huge_and_deep_messages_are_refused(void **state)
{
    uint8_t *bytes = calloc(1, BIG);
    struct callers all;
    char *before;

    callers_start(&all);
    before = callers_dump(&all);
    callers_be(&all, all.secrets[CALLER_USER]);
    bytes[0] = 0xFF, bytes[1] = 0xFF, bytes[2] = 0xFF, bytes[3] = 0x01; /* a length */
    assert_int_not_equal(send_unknown(&all, 2, bytes, BIG), HD_OK);
    for (size_t i = 0; i < DEEP; i++) { /* groups in groups: field 100, wire type 3 */
        bytes[2 * i] = 0xA3;
        bytes[2 * i + 1] = 0x06;
    }
    assert_int_not_equal(send_unknown(&all, 3, bytes, (size_t)2 * DEEP), HD_OK);
    assert_int_equal(whoami(&all), HD_OK); /* the controller lives, and the caller is served */
    assert_unchanged(&all, before, "a huge or deep message");
    free(before);
    free(bytes);
    callers_finish(&all);
}

RUN_CASES()
