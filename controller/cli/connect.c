#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"
#include "controller/cli/cli.h"
#include "controller/cli/process.h"
#include "controller/cli/watch.h"
#include "heddle/v1/identity.pb-c.h"
#include "pki/pki.h"
#include "rpc/find.h"
#include "version/version.h"

enum {
    NOTICE_MS = 1000, /* wait before a notice says what the command waits for, ms */
    RETRY_MS = 1000,
    SLICE_MS = 100, /* wait between two checks for Ctrl-C, ms */
    EXPLAIN_MS = 3000,
    /* Retries of a call whose connection is closed before its first answer: number of tries, total
     * time, and the first pause, which doubles. */
    CUT_TRIES = 8,
    CUT_PATIENCE_MS = 10000,
    CUT_PAUSE_MS = 50,
    CUT_PAUSE_MAX_MS = 800,
    CONNECT_MS = 1500 /* timeout of the first attempt to connect, ms; the second has twice that, the
                         third three times */
};

/* Tries to connect to a Unix socket, which fails at once if no program listens. Without this check
 * a call would wait until its timeout. */
static enum hd_status probe_socket(const char *path)
{
    const int fd = process_reach(path);

    if (fd >= 0)
        (void)close(fd);
    if (fd >= 0 || errno == ENAMETOOLONG) /* the address check reports a long path */
        return HD_OK;
    if (errno == EACCES)
        return hd_err(HD_DENIED,
                      "no permission to use the controller's socket %s: %s; run as its owner, or "
                      "use its port with a token",
                      path, strerror(errno));
    return hd_err(HD_UNAVAILABLE,
                  "no controller answers at unix:%s (%s); start heddle-controller, or give the "
                  "address of another one with --controller",
                  path, strerror(errno));
}

static enum hd_status find_in_contexts(struct cli *cli)
{
    const char *const given[CONTEXT_KEY_COUNT] = {cli->controller, cli->token_file, cli->tls_ca,
                                                  cli->tls_cert};
    struct hd_text address = {0};
    enum hd_status st = contexts_find(cli->context, given, &cli->contexts);

    if (!st)
        st = hd_rpc_find_controller(cli->contexts.values[CONTEXT_CONTROLLER].text, &address);

    if (!st && address.len_bytes >= sizeof cli->address)
        st = hd_err(HD_INVALID, "the controller's address is longer than %zu bytes",
                    sizeof cli->address - 1);
    if (!st) {
        memcpy(cli->address, address.data, address.len_bytes + 1);
        st = hd_rpc_check_address(cli->address);
    }
    if (!st && hd_rpc_address_is_unix(cli->address))
        st = probe_socket(cli->address + strlen("unix:"));
    hd_text_free(&address);
    return st;
}

/* Returns HD_INVALID in place of HD_NOT_FOUND: the exit code "not found" is for jobs and nodes, and
 * a wrong file name is invalid input. */
static enum hd_status as_input(enum hd_status st)
{
    return st == HD_NOT_FOUND ? hd_err(HD_INVALID, "%s", hd_err_message()) : st;
}

/* Reads the caller's token from a file that a flag or the environment names: any user of the
 * machine could read a token on a command line. Called once per command, because a pipe delivers
 * the token only once. */
static enum hd_status read_own_token(struct cli *cli)
{
    const struct context_value *values = cli->contexts.values;
    const char *path = values[CONTEXT_TOKEN_FILE].text;
    const char *from = values[CONTEXT_TOKEN_FILE].from; /* "FILE:LINE" */
    const char *cert = values[CONTEXT_TLS_CERT].text;

    if (cert && *cert && !values[CONTEXT_TLS_CA].text)
        return hd_err(HD_INVALID,
                      "--tls-cert %s needs --tls-ca FILE, the authority of the controller's "
                      "certificate",
                      cert);
    if (!path || !*path || hd_rpc_address_is_unix(cli->address))
        return HD_OK;
    /* a pipe may be named by a flag or the environment, not in a configuration file */
    return as_input(
        hd_rpc_read_token(path, strchr(from, ':') ? 0 : HD_FILE_PATIENCE_MS, cli->token));
}

static enum hd_status open_client(struct cli *cli, int64_t connect_ms)
{
    const char *cert = cli->contexts.values[CONTEXT_TLS_CERT].text;
    struct hd_rpc_tls tls = {
        .ca_path = cli->contexts.values[CONTEXT_TLS_CA].text, .cert_path = cert, .key_path = cert};
    char client[96];
    const struct hd_rpc_client_options options = {.tls = tls.ca_path ? &tls : NULL,
                                                  .token = *cli->token ? cli->token : NULL,
                                                  .client = client,
                                                  .connect_timeout_ms = connect_ms};

    /* read by check_client in services/guard.c */
    (void)snprintf(client, sizeof client, "%d-%d %.64s", HEDDLE__V1__PROTOCOL__PROTOCOL_MIN,
                   HEDDLE__V1__PROTOCOL__PROTOCOL_MAX, hd_version_text);
    return as_input(hd_rpc_client_new(cli->rpc, cli->address, &options, &cli->client));
}

/* ---- while there is no answer ---- */

static void on_notice(uv_timer_t *notice)
{
    const struct cli *cli = notice->data;

    cli_note("heddle: no answer from %s yet, still waiting; Ctrl-C gives up", cli->address);
}

void cli_wait_begin(struct cli *cli)
{
    if (isatty(STDERR_FILENO))
        (void)uv_timer_start(&cli->notice, on_notice, NOTICE_MS, 0);
}

void cli_wait_end(struct cli *cli)
{
    (void)uv_timer_stop(&cli->notice);
}

/* ---- the connection ---- */

int cli_connect(struct cli *cli)
{
    const struct hd_process_needs needs = hd_process_needs_of_grpc(48, 0);
    enum hd_status st;

    if (cli->client)
        return CLI_CONTINUE;
    st = find_in_contexts(cli);
    if (!st)
        st = hd_process_prepare(&needs);
    if (!st && uv_loop_init(&cli->loop))
        st = hd_err(HD_IO, "cannot start an event loop: %s", strerror(errno));
    if (st)
        return cli_fail(st);
    cli->looping = true;
    (void)uv_timer_init(&cli->loop, &cli->notice); /* uv_timer_init never fails */
    cli->notice.data = cli;
    st = hd_rpc_new(&cli->loop, &cli->rpc);
    if (!st)
        st = read_own_token(cli);
    if (!st)
        st = open_client(cli, CONNECT_MS);
    return st ? cli_fail(st) : CLI_CONTINUE;
}

void cli_disconnect(struct cli *cli)
{
    contexts_done(&cli->contexts);
    explicit_bzero(cli->token, sizeof cli->token);
    if (!cli->looping)
        return;
    if (cli->rpc)
        hd_rpc_close(cli->rpc, NULL, NULL);
    cli->rpc = NULL;
    cli->client = NULL;
    uv_close((uv_handle_t *)&cli->notice, NULL);
    (void)uv_run(&cli->loop, UV_RUN_DEFAULT); /* runs until all handles are closed */
    (void)uv_loop_close(&cli->loop);
    cli->looping = false;
}

static const char *method_path(const char *method, char ret_path[64])
{
    (void)snprintf(ret_path, 64, "/heddle.v1.%s%s", strchr(method, '/') ? "" : "Control/", method);
    return ret_path;
}

/* Checks the validity dates of the client's own certificate, because a server that refuses it does
 * not say why. HD_OK: the dates are valid. */
static enum hd_status judge_own_certificate(const char *path)
{
    char now[HD_CLOCK_TEXT_MAX], from[HD_CLOCK_TEXT_MAX], to[HD_CLOCK_TEXT_MAX];
    const int64_t now_ms = hd_clock_wall_ms();
    struct hd_pki_certificate cert;
    struct hd_text text = {0};
    enum hd_status st = hd_file_read(path, HD_PKI_PEM_BYTES_MAX, &text);

    if (!st)
        st = hd_pki_inspect(text.data ? text.data : "", &cert);
    if (text.data)
        explicit_bzero(text.data, text.size_bytes);
    hd_text_free(&text);
    if (st || (now_ms >= cert.from_ms - HD_PKI_EARLY_MS && now_ms < cert.to_ms))
        return HD_OK;
    hd_clock_format_utc(now_ms, now);
    hd_clock_format_utc(cert.from_ms, from);
    hd_clock_format_utc(cert.to_ms, to);
    return hd_err(
        HD_UNAVAILABLE,
        "your certificate %s is valid from %s to %s, and this machine's clock says %s: %s", path,
        from, to, now,
        now_ms < cert.to_ms ? "correct the clock"
                            : "have an administrator make a new one, by heddle token cert");
}

/* Explains a TLS failure: gRPC says neither whose certificate was refused nor why. */
static enum hd_status explain_certificate(const struct cli *cli, enum hd_status st)
{
    const char *ca = cli->contexts.values[CONTEXT_TLS_CA].text;
    const char *own = cli->contexts.values[CONTEXT_TLS_CERT].text;
    struct hd_error before;

    if (st != HD_UNAVAILABLE || !ca || !*ca || hd_rpc_address_is_unix(cli->address))
        return st;
    hd_err_save(st, &before);
    if (strstr(before.message, "certificate"))
        st = hd_pki_explain_server(cli->address, ca, EXPLAIN_MS);
    else
        st = own && *own ? judge_own_certificate(own) : HD_OK;
    return st ? st : hd_err_restore(&before);
}

/* Returns whether a server that closed a connection without TLS wants TLS: it has a certificate.
 * Keeps the message of the call that failed. */
static bool wants_tls(const struct cli *cli)
{
    static const unsigned char none[HD_PKI_HASH_BYTES];
    struct hd_text cert = {0};
    struct hd_error before;
    enum hd_status st;

    if (cli->contexts.values[CONTEXT_TLS_CA].text)
        return false;
    hd_err_save(HD_UNAVAILABLE, &before);
    st = hd_pki_fetch_authority(cli->address, none, EXPLAIN_MS, &cert);
    (void)hd_err_restore(&before);
    return st == HD_DENIED; /* none of the certificates that it shows has this hash */
}

static enum hd_status ask_for_authority(struct cli *cli)
{
    cli->wants_tls = true;
    return hd_err(HD_UNAVAILABLE,
                  "%s speaks TLS: name the authority of its certificate with --tls-ca FILE (or "
                  "HEDDLE_TLS_CA), such as pki/ca.pem of its state directory",
                  cli->address);
}

enum hd_status cli_explain_stream(struct cli *cli, enum hd_status st)
{
    if (st == HD_UNAVAILABLE && !cli->is_known && hd_rpc_client_was_cut(cli->client) &&
        !hd_rpc_address_is_unix(cli->address) && wants_tls(cli))
        return ask_for_authority(cli);
    return explain_certificate(cli, st);
}

/* Takes the controller's time from an answer that contains one. */
static void take_time(struct cli *cli, const ProtobufCMessage *answer)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(answer->descriptor, "time_unix_ms");
    int64_t now_ms = 0;

    if (field && field->type == PROTOBUF_C_TYPE_INT64)
        memcpy(&now_ms, (const char *)answer + field->offset, sizeof now_ms);
    if (now_ms)
        cli->ahead_ms = now_ms - hd_clock_wall_ms();
}

/* ---- calls ---- */

/* Returns the form of a method's response, from the services of the .proto files. */
static const ProtobufCMessageDescriptor *response_of(const char *method)
{
    const char *slash = strchr(method, '/');

    return protobuf_c_service_descriptor_get_method_by_name(
               slash ? &heddle__v1__identity__descriptor : &heddle__v1__control__descriptor,
               slash ? slash + 1 : method)
        ->output;
}

enum hd_status cli_begin_call(struct cli *cli, const char *method, enum hd_rpc_kind kind,
                              const ProtobufCMessage *request, const struct hd_rpc_handler *handler,
                              void *user, struct hd_rpc_call **ret_call)
{
    char path[64];
    const struct hd_rpc_call_options options = {.path = method_path(method, path),
                                                .kind = kind,
                                                .response = response_of(method),
                                                .handler = *handler,
                                                .user = user};

    return hd_rpc_client_call(cli->client, &options, request, ret_call);
}

static void on_handle_closed(uv_handle_t *handle)
{
    *(bool *)handle->data = true;
}

void cli_close_handle(struct cli *cli, void *handle)
{
    uv_handle_t *h = handle;
    bool closed = false;

    h->data = &closed;
    uv_close(h, on_handle_closed);
    while (!closed)
        (void)uv_run(&cli->loop, UV_RUN_ONCE);
}

int cli_get_job(struct cli *cli, uint64_t job, Heddle__V1__GetJobResponse **ret_response)
{
    Heddle__V1__GetJobRequest request = HEDDLE__V1__GET_JOB_REQUEST__INIT;

    request.job = job;
    return cli_call(cli, "GetJob", &request.base, ret_response);
}

static void pause_before_retry(struct cli *cli, int64_t pause_ms)
{
    for (int64_t left_ms = pause_ms; left_ms > 0 && !(cli->interrupted && *cli->interrupted);
         left_ms -= SLICE_MS) {
        (void)uv_run(&cli->loop, UV_RUN_NOWAIT);
        (void)usleep((useconds_t)(left_ms < SLICE_MS ? left_ms : SLICE_MS) * 1000);
    }
}

int64_t cli_connect_timeout_ms(int tries, int64_t left_ms)
{
    const int64_t wanted_ms = (int64_t)CONNECT_MS * (tries + 1);

    return wanted_ms < left_ms ? wanted_ms : left_ms;
}

/* Replaces the client, whose connection was closed, by one that connects at its next call. */
static enum hd_status reopen_client(struct cli *cli, int64_t connect_ms)
{
    struct hd_rpc_client *old = cli->client;
    enum hd_status st = open_client(cli, connect_ms);

    if (st)
        cli->client = old;
    else
        hd_rpc_client_close(old);
    return st;
}

static enum hd_status call_once(struct cli *cli, const char *method,
                                const ProtobufCMessage *request, ProtobufCMessage **ret_message)
{
    char path[64];
    enum hd_status st = hd_rpc_call_wait(cli->client, method_path(method, path),
                                         response_of(method), 0, request, ret_message);

    cli->is_known |= st != HD_UNAVAILABLE && st != HD_TIMEOUT;
    return st;
}

/* Returns whether a call should be tried again that was made `tries` times. */
static bool should_retry(const struct cli *cli, int tries)
{
    return hd_rpc_client_was_cut(cli->client) && !cli->is_known && tries < CUT_TRIES &&
           !hd_rpc_address_is_unix(cli->address) && !(cli->interrupted && *cli->interrupted);
}

/* Retries a call while the connection is closed before its first answer: a listener with too many
 * unauthenticated connections closes some of them (docs/decisions/listeners-and-strangers.md). */
static enum hd_status call_until_let_in(struct cli *cli, const char *method,
                                        const ProtobufCMessage *request,
                                        ProtobufCMessage **ret_message)
{
    const int64_t since_ms = hd_clock_now_ms();
    int64_t pause_ms = CUT_PAUSE_MS;
    enum hd_status st = call_once(cli, method, request, ret_message);
    int tries = 1;

    if (should_retry(cli, tries) && wants_tls(cli))
        return ask_for_authority(cli);
    while (should_retry(cli, tries)) {
        const int64_t left_ms = since_ms + CUT_PATIENCE_MS - hd_clock_now_ms() - pause_ms;

        if (left_ms <= 0)
            break;
        /* before the pause, in which gRPC would open the old connection again by itself */
        st = reopen_client(cli, cli_connect_timeout_ms(tries++, left_ms));
        if (st)
            return st;
        pause_before_retry(cli, pause_ms);
        pause_ms = pause_ms < CUT_PAUSE_MAX_MS ? 2 * pause_ms : pause_ms;
        st = call_once(cli, method, request, ret_message);
    }
    st = explain_certificate(cli, st);
    if (st && tries > 1 && hd_rpc_client_was_cut(cli->client))
        st = hd_err(st,
                    "%s (tried %d times within %.1f s; if the controller has too many connections, "
                    "its log tells whose: try again)",
                    hd_err_message(), tries, (double)(hd_clock_now_ms() - since_ms) / 1e3);
    return st;
}

/* Returns whether a call is safe to repeat when its answer was lost: it only reads, it is
 * idempotent, or a request id identifies the duplicate (SubmitJob). */
static bool may_repeat(const char *method)
{
    static const char *const once[] = {"ResumeJob",   "RequeueJob", "CheckpointJob", "RemoveJob",
                                       "RemoveQueue", "RemoveNode", "ProbeNode"};

    for (size_t i = 0; i < sizeof once / sizeof once[0]; i++)
        if (strcmp(method, once[i]) == 0)
            return false;
    /* Identity calls that create or revoke are not safe to repeat; those that only read can wait
     * for the greeting, too */
    return !hd_text_starts(method, "Identity/");
}

/* Calls GetServerInfo until the controller has accepted the connection, which any answer shows,
 * also an error. */
static enum hd_status greet(struct cli *cli)
{
    const Heddle__V1__GetServerInfoRequest request = HEDDLE__V1__GET_SERVER_INFO_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    enum hd_status st = call_until_let_in(cli, "GetServerInfo", &request.base, &message);

    hd_rpc_message_free(message);
    return cli->is_known ? HD_OK : st;
}

enum hd_status cli_try_call(struct cli *cli, const char *method, const ProtobufCMessage *request,
                            void *ret_response)
{
    ProtobufCMessage *message = NULL;
    enum hd_status st = HD_OK;

    cli_wait_begin(cli);
    if (!cli->is_known && !may_repeat(method) && !hd_rpc_address_is_unix(cli->address))
        st = greet(cli);
    if (!st)
        st = call_until_let_in(cli, method, request, &message);
    cli_wait_end(cli);
    if (!st) {
        take_time(cli, message);
        *(ProtobufCMessage **)ret_response = message;
    }
    return st;
}

static bool is_away(enum hd_status st)
{
    return st == HD_UNAVAILABLE || st == HD_ABORTED || st == HD_TIMEOUT;
}

int cli_call(struct cli *cli, const char *method, const ProtobufCMessage *request,
             void *ret_response)
{
    bool reported = false;
    int64_t since_ms;
    enum hd_status st;
    int code = cli_connect(cli);

    if (code != CLI_CONTINUE)
        return code;
    st = cli_try_call(cli, method, request, ret_response);
    since_ms = hd_clock_now_ms();
    while (is_away(st) && cli->interrupted && cli->has_answered &&
           hd_clock_now_ms() - since_ms < watch_patience_ms(cli)) {
        if (!reported)
            cli_note("heddle: the controller does not answer (%s); trying again", hd_err_message());
        reported = true;
        pause_before_retry(cli, RETRY_MS);
        if (*cli->interrupted)
            return CLI_INTERRUPTED;
        st = cli_try_call(cli, method, request, ret_response);
    }
    cli->has_answered |= !st;
    return st ? cli_fail(st) : CLI_CONTINUE;
}
