#include "daemon/agent/join.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/web.h"
#include "heddle/v1/fleet.pb-c.h"
#include "pki/pki.h"

enum {
    FETCH_MS = 10000,
    JOIN_MS = 20000,
    ASK_AGAIN_MS = 60 * 1000,
    CLOCK_SLACK_MS = 300 * 1000 /* ms for which lib/pki accepts a certificate before its from_ms */
};

#define SERVER_NAME "heddle-controller" /* name in every controller's certificate */

static enum hd_status path_of(const char *state_dir, const char *name, char ret_path[PATH_MAX])
{
    return snprintf(ret_path, PATH_MAX, "%s/tls/%s", state_dir, name) < PATH_MAX
               ? HD_OK
               : hd_err(HD_INVALID, "the path %s is too long", state_dir);
}

static void forget(struct hd_text *text)
{
    if (text->data)
        explicit_bzero(text->data, text->size_bytes);
    hd_text_free(text);
}

/* Writes certificate and private key to one file, so that one rename replaces both. */
static enum hd_status write_pair(const char *path, const char *cert, const char *key)
{
    struct hd_text both = {0};
    enum hd_status st;

    hd_text_add(&both, "%s%s", cert, key);
    st = both.failed ? hd_err(HD_NO_MEMORY, "no memory for a certificate")
                     : hd_file_write_atomic(path, both.data, both.len_bytes, 0600);
    forget(&both);
    return st;
}

/* ---- heddled join -----------------------------------------------------------------------------*/

struct joining {
    struct hd_pki_invitation invitation;
    char ca_path[PATH_MAX], new_ca_path[PATH_MAX], cert_path[PATH_MAX], previous_path[PATH_MAX],
        controller_path[PATH_MAX];
    struct hd_text ca, request, key;
};

static enum hd_status read_token_line(const char *line, struct hd_pki_invitation *ret)
{
    char from_input[1024];
    enum hd_status st;

    if (strcmp(line, "-") != 0)
        return hd_pki_invitation_read(line, ret);
    if (!fgets(from_input, sizeof from_input, stdin))
        return hd_err(HD_INVALID, "join: standard input has no line");
    st = hd_pki_invitation_read(from_input, ret);
    explicit_bzero(from_input, sizeof from_input);
    return st;
}

/* Replaces the name pattern of an invitation by the name with which this machine joins. */
static enum hd_status take_name(struct hd_pki_invitation *invitation, const char *node_name)
{
    if (!node_name && hd_pki_is_node_pattern(invitation->node))
        return hd_err(HD_INVALID,
                      "join: the invitation is for all nodes called %s; say the name of "
                      "this one with --node-name",
                      invitation->node);
    if (node_name && !hd_pki_is_invited(invitation->node, node_name))
        return hd_err(HD_INVALID, "join: --node-name %s: the invitation is for %s", node_name,
                      invitation->node);
    if (node_name)
        (void)snprintf(invitation->node, sizeof invitation->node, "%s", node_name);
    return HD_OK;
}

static enum hd_status open_folder(struct joining *j, const char *state_dir)
{
    char folder[PATH_MAX];
    enum hd_status st = path_of(state_dir, "", folder);

    if (!st)
        st = path_of(state_dir, "ca.pem", j->ca_path);
    if (!st)
        st = path_of(state_dir, "ca.new", j->new_ca_path);
    if (!st)
        st = path_of(state_dir, "node.pem", j->cert_path);
    if (!st)
        st = path_of(state_dir, "previous.pem", j->previous_path);
    if (!st)
        st = path_of(state_dir, "controller", j->controller_path);
    return st ? st : hd_file_make_dirs(folder, 0700);
}

/* Makes the Join call, on its own loop. */
static enum hd_status call_join(const struct joining *j, Heddle__V1__JoinResponse **ret)
{
    const struct hd_rpc_tls tls = {.ca_path = j->new_ca_path};
    const struct hd_rpc_client_options options = {
        .token = j->invitation.secret, .tls = &tls, .tls_server_name = SERVER_NAME};
    Heddle__V1__JoinRequest request = HEDDLE__V1__JOIN_REQUEST__INIT;
    ProtobufCMessage *response = NULL;
    struct hd_rpc_client *client;
    struct hd_rpc *rpc = NULL;
    struct hd_error error = {0};
    uv_loop_t loop;
    enum hd_status st;

    if (uv_loop_init(&loop))
        return hd_err(HD_IO, "cannot start an event loop");
    request.node_name = (char *)(uintptr_t)j->invitation.node;
    request.request = j->request.data;
    st = hd_rpc_new(&loop, &rpc);
    if (!st)
        st = hd_rpc_client_new(rpc, j->invitation.address, &options, &client);
    if (!st)
        st = hd_rpc_call_wait(client, "/heddle.v1.Fleet/Join",
                              &heddle__v1__join_response__descriptor, JOIN_MS, &request.base,
                              &response);
    /* The controller's message speaks of a token, so the error says that the invitation was
     * refused. */
    if (st == HD_DENIED)
        st = hd_err(
            HD_DENIED,
            "the invitation has been used, has expired, was revoked, or a newer one for %s has "
            "replaced it; make a new one with: heddle node invite %s",
            j->invitation.node, j->invitation.node);
    if (st)
        hd_err_save(st, &error);
    if (rpc)
        hd_rpc_close(rpc, NULL, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&loop);
    *ret = (Heddle__V1__JoinResponse *)(void *)response;
    return st ? hd_err_restore(&error) : HD_OK;
}

static enum hd_status write_controller(const struct joining *j)
{
    struct hd_text text = {0};
    enum hd_status st;

    hd_text_add(&text, "%s\n%s\n", j->invitation.address, j->invitation.node);
    st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for a file")
                     : hd_file_write_atomic(j->controller_path, text.data, text.len_bytes, 0644);
    hd_text_free(&text);
    return st;
}

static enum hd_status do_join(struct joining *j)
{
    Heddle__V1__JoinResponse *response = NULL;
    enum hd_status st =
        hd_pki_fetch_authority(j->invitation.address, j->invitation.ca_hash, FETCH_MS, &j->ca);

    if (!st)
        st = hd_file_write_atomic(j->new_ca_path, j->ca.data, j->ca.len_bytes, 0644);
    if (!st)
        st = hd_pki_make_request(j->invitation.node, &j->request, &j->key);
    if (!st)
        st = call_join(j, &response);
    if (!st)
        (void)unlink(j->previous_path); /* belongs to the node that this machine was before */
    if (!st)
        st = write_pair(j->cert_path, response->certificate, j->key.data);
    if (!st && rename(j->new_ca_path, j->ca_path) < 0)
        st = hd_err(HD_IO, "cannot rename %s to %s: %s", j->new_ca_path, j->ca_path,
                    strerror(errno));
    if (!st)
        st = write_controller(j);
    if (st)
        /* The CA of the cluster to which the node already belongs is kept. */
        (void)unlink(j->new_ca_path);
    if (!st)
        hd_log(HD_LOG_INFO, "joined the cluster of %s (build %s) as node %s", j->invitation.address,
               response->build, j->invitation.node);
    if (response)
        hd_rpc_message_free(&response->base);
    return st;
}

bool agent_has_joined(const char *state_dir)
{
    char path[PATH_MAX];
    struct hd_pki_certificate cert;
    struct hd_text text = {0};
    bool valid;

    if (path_of(state_dir, "controller", path) || access(path, F_OK) < 0)
        return false;
    valid = path_of(state_dir, "node.pem", path) == HD_OK &&
            hd_file_read(path, 4 * HD_PKI_PEM_BYTES_MAX, &text) == HD_OK &&
            hd_pki_inspect(text.data ? text.data : "", &cert) == HD_OK &&
            cert.to_ms > hd_clock_wall_ms();
    forget(&text);
    return valid;
}

enum hd_status agent_join(const char *state_dir, const char *line, const char *node_name)
{
    struct joining *j = calloc(1, sizeof *j);
    enum hd_status st =
        j ? read_token_line(line, &j->invitation) : hd_err(HD_NO_MEMORY, "no memory to join");

    if (!st)
        st = take_name(&j->invitation, node_name);
    if (!st)
        st = open_folder(j, state_dir);
    if (!st)
        st = do_join(j);
    if (!j)
        return st;
    hd_text_free(&j->ca);
    hd_text_free(&j->request);
    forget(&j->key);
    explicit_bzero(j, sizeof *j);
    free(j);
    return st;
}

/* ---- a node that has joined -------------------------------------------------------------------*/

enum hd_status agent_joined_check(const struct agent_joined *joined)
{
    const int64_t now_ms = hd_clock_wall_ms();
    char from[HD_CLOCK_TEXT_MAX], now[HD_CLOCK_TEXT_MAX];

    if (joined->to_ms <= now_ms)
        return hd_err(HD_DENIED,
                      "this node's certificate has expired: on the controller's side run heddle "
                      "node invite %s, and here heddled join",
                      joined->node);
    if (joined->from_ms <= now_ms + CLOCK_SLACK_MS)
        return HD_OK;
    hd_clock_format_utc(joined->from_ms, from);
    hd_clock_format_utc(now_ms, now);
    return hd_err(HD_DENIED,
                  "this node's certificate is not valid before %s, and the clock here says %s: set "
                  "the clock, or join again: heddle node invite %s, and here heddled join",
                  from, now, joined->node);
}

static struct agent_cert_file version_of(const char *path)
{
    struct stat info;

    if (stat(path, &info) < 0)
        return (struct agent_cert_file){0};
    return (struct agent_cert_file){.inode = (uint64_t)info.st_ino,
                                    .changed_ns = (int64_t)info.st_mtim.tv_sec * 1000000000 +
                                                  info.st_mtim.tv_nsec};
}

static enum hd_status read_pair(const char *path, struct hd_pki_certificate *ret_cert)
{
    struct hd_text text = {0};
    enum hd_status st = hd_file_read(path, 4 * HD_PKI_PEM_BYTES_MAX, &text);

    if (!st)
        st = hd_pki_inspect(text.data ? text.data : "", ret_cert);
    forget(&text);
    return st ? hd_err_prefix(st, "%s", path) : HD_OK;
}

static bool is_valid(const struct hd_pki_certificate *cert, int64_t now_ms)
{
    return cert->from_ms <= now_ms + CLOCK_SLACK_MS && cert->to_ms > now_ms;
}

/* Chooses which certificate and key to use: the newest, or the previous pair if only that is valid
 * now. Returns whether the choice has changed. */
static bool choose_pair(struct agent_joined *joined)
{
    const int64_t now_ms = hd_clock_wall_ms();
    const struct hd_pki_certificate newest = {.from_ms = joined->from_ms, .to_ms = joined->to_ms};
    struct hd_pki_certificate previous;
    const char *path = joined->newest_path;

    if (!is_valid(&newest, now_ms) && hd_file_exists(joined->previous_path) &&
        read_pair(joined->previous_path, &previous) == HD_OK && is_valid(&previous, now_ms))
        path = joined->previous_path;
    if (strcmp(path, joined->cert_path) == 0)
        return false;
    if (path == joined->previous_path)
        hd_log(HD_LOG_WARN,
               "the certificate in %s is not valid by the clock here: the one before it is shown "
               "until it is renewed",
               joined->newest_path);
    memcpy(joined->cert_path, path, strlen(path) + 1);
    return true;
}

/* Reads the newest certificate and schedules its renewal after two thirds of its life. */
static enum hd_status check_cert(struct agent_joined *joined)
{
    struct hd_pki_certificate cert;
    enum hd_status st;

    /* The version is taken before the file is read, so that a concurrent write is noticed. */
    joined->file = version_of(joined->newest_path);
    st = read_pair(joined->newest_path, &cert);
    if (st)
        return st;
    joined->from_ms = cert.from_ms;
    joined->to_ms = cert.to_ms;
    joined->renew_ms = cert.from_ms + (cert.to_ms - cert.from_ms) / 3 * 2;
    joined->again_ms = (cert.to_ms - cert.from_ms) / 12;
    joined->asked_ms = 0;
    if (joined->again_ms > ASK_AGAIN_MS)
        joined->again_ms = ASK_AGAIN_MS;
    (void)choose_pair(joined);
    if (strcmp(joined->cert_path, joined->newest_path) == 0 && agent_joined_check(joined))
        hd_log(HD_LOG_ERROR, "%s", hd_err_message());
    return HD_OK;
}

static enum hd_status read_controller(const char *path, struct agent_joined *joined)
{
    struct hd_text text = {0};
    char *second;
    enum hd_status st = hd_file_read(path, 1024, &text);

    if (st)
        return st;
    second = strchr(text.data ? text.data : "", '\n');
    if (second)
        *second++ = '\0';
    if (second)
        second[strcspn(second, "\n")] = '\0';
    if (!second || strlen(text.data) >= sizeof joined->address || !hd_pki_is_node_name(second))
        st = hd_err(HD_INVALID, "%s is damaged; join again with a new invitation", path);
    if (!st) {
        (void)snprintf(joined->address, sizeof joined->address, "%s", text.data);
        (void)snprintf(joined->node, sizeof joined->node, "%s", second);
    }
    hd_text_free(&text);
    return st;
}

enum hd_status agent_joined_open(struct agent_joined *joined, struct agent_options *options)
{
    char path[PATH_MAX];
    enum hd_status st;

    if (!options->state_dir || options->has_tls || options->token_file)
        return HD_OK;
    st = path_of(options->state_dir, "controller", path);
    if (st || !hd_file_exists(path))
        return st;
    st = path_of(options->state_dir, "ca.pem", joined->ca_path);
    if (!st)
        st = path_of(options->state_dir, "node.pem", joined->newest_path);
    if (!st)
        st = path_of(options->state_dir, "previous.pem", joined->previous_path);
    if (!st)
        st = read_controller(path, joined);
    if (!st)
        st = check_cert(joined);
    if (st)
        return st;
    joined->joined = true;
    joined->key = calloc(1, sizeof *joined->key);
    if (!joined->key)
        return hd_err(HD_NO_MEMORY, "no memory for a key");
    options->tls = (struct hd_rpc_tls){
        .ca_path = joined->ca_path, .cert_path = joined->cert_path, .key_path = joined->cert_path};
    options->has_tls = true;
    options->tls_server_name = SERVER_NAME;
    options->controller = options->controller ? options->controller : joined->address;
    options->node_name = options->node_name ? options->node_name : joined->node;
    return HD_OK;
}

bool agent_check_joined(struct agent_joined *joined)
{
    const struct agent_cert_file now = version_of(joined->newest_path);

    if (!joined->joined || !now.inode)
        return false;
    if (now.inode == joined->file.inode && now.changed_ns == joined->file.changed_ns) {
        joined->renewed |= choose_pair(joined); /* time has passed, or the clock was set */
        return false;
    }
    if (check_cert(joined)) {
        hd_log(HD_LOG_ERROR, "cannot use the node's new certificate: %s", hd_err_message());
        return false;
    }
    hd_log(HD_LOG_INFO, "the node has joined again: its new certificate is used");
    joined->renewed = true;
    return true;
}

void agent_joined_close(struct agent_joined *joined)
{
    if (joined->key)
        forget(joined->key);
    free(joined->key);
    joined->key = NULL;
}

/* Saves certificate and key of the present connection, in case the clock that dates the next
 * certificate turns out to be wrong. Ignores a failure. */
static void keep_previous(const struct agent_joined *joined)
{
    struct hd_text text = {0};
    struct hd_pki_certificate shown;

    if (strcmp(joined->cert_path, joined->newest_path) == 0 &&
        read_pair(joined->cert_path, &shown) == HD_OK && is_valid(&shown, hd_clock_wall_ms()) &&
        hd_file_read(joined->cert_path, 4 * HD_PKI_PEM_BYTES_MAX, &text) == HD_OK)
        (void)hd_file_write_atomic(joined->previous_path, text.data, text.len_bytes, 0600);
    forget(&text);
}

static void on_renewed(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__RenewResponse *response = (const void *)message;
    struct agent *agent = hd_rpc_call_user(call);
    struct agent_joined *joined = &agent->joined;

    keep_previous(joined);
    if (write_pair(joined->newest_path, response->certificate, joined->key->data) ||
        check_cert(joined)) {
        hd_log(HD_LOG_ERROR, "cannot keep the node's new certificate: %s", hd_err_message());
        return;
    }
    joined->renewed = true;
    web_use_certificate(agent);
    hd_log(HD_LOG_INFO, "the node's certificate is renewed");
}

static void on_renew_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct agent *agent = hd_rpc_call_user(call);

    agent->joined.asking = false;
    forget(agent->joined.key);
    if (status && !agent->stopping)
        hd_log(HD_LOG_WARN, "the node's certificate is not renewed: %s; trying again in %lld s",
               message, (long long)agent->joined.again_ms / 1000);
}

bool agent_joined_is_due(const struct agent_joined *joined, int64_t now_ms)
{
    return now_ms >= joined->renew_ms || joined->from_ms > now_ms + CLOCK_SLACK_MS;
}

void agent_joined_tick(struct agent *agent)
{
    const struct hd_rpc_call_options options = {
        .path = "/heddle.v1.Fleet/Renew",
        .kind = HD_RPC_UNARY,
        .response = &heddle__v1__renew_response__descriptor,
        .handler = {.on_msg = on_renewed, .on_done = on_renew_done},
        .user = agent,
    };
    struct agent_joined *joined = &agent->joined;
    Heddle__V1__RenewRequest request = HEDDLE__V1__RENEW_REQUEST__INIT;
    struct hd_text asked = {0};
    enum hd_status st;

    const int64_t mono_ms = hd_clock_now_ms();

    if (!joined->joined || joined->asking || !agent->welcomed ||
        !agent_joined_is_due(joined, hd_clock_wall_ms()) ||
        (joined->asked_ms && mono_ms < joined->asked_ms + joined->again_ms))
        return;
    joined->asked_ms = mono_ms;
    st = hd_pki_make_request(joined->node, &asked, joined->key);
    request.request = asked.data;
    if (!st)
        st = hd_rpc_client_call(agent->client, &options, &request.base, NULL);
    joined->asking = !st;
    if (st) {
        forget(joined->key);
        hd_log(HD_LOG_WARN, "cannot ask for a new certificate: %s", hd_err_message());
    }
    hd_text_free(&asked);
}
