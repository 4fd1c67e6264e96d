/* heddle-controller: accepts jobs and sees them through. See services/controller.h. */
#include <errno.h>
#include <grp.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/first.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/process.h"
#include "base/text.h"
#include "base/user.h"
#include "controller/identity/authority.h"
#include "controller/identity/identity.h"
#include "controller/init.h"
#include "controller/services/controller.h"
#include "controller/services/jobs_mark.h"
#include "controller/settings.h"
#include "controller/store/store.h"
#include "pki/pki.h"
#include "rpc/find.h"
#include "version/version.h"

enum { EXIT_USAGE = 2, EXIT_CANNOT = 6 };
enum { RESERVE_BYTES = 16 << 20 }; /* --state-reserve */
enum { PARENT_CHECK_MS = 500, HTTP_HOSTS_MAX = 8, HTTP_NAMES_BYTES = 1024 };

struct program {
    uv_loop_t loop;
    int argc; /* arguments without the program's name, which a reload reads again */
    char **argv;
    struct hd_config config;
    struct controller *controller;
    struct controller_options options;
    struct hd_core_config core_config;
    const char *token_file, *node_token_file, *umask; /* NULL: not given */
    char http_names[HTTP_NAMES_BYTES];                /* cut at their commas */
    const char *http_hosts[HTTP_HOSTS_MAX];
    struct hd_rpc_tokens tokens;
    struct hd_rpc_tls tls;
    struct hd_text listen;
    bool ephemeral, stopping, json_log;
    pid_t parent;
    uv_signal_t terminate, interrupt, hangup;
    uv_timer_t parent_check;
    int exit_code;
};

/* ---- the command line -------------------------------------------------------------------------*/

static enum hd_status read_node_lost(const char *value, struct hd_core_config *config)
{
    enum { LEAST = 30, MOST = 7 * 24 * 3600 };
    char *end;
    const long seconds = strtol(value, &end, 10);

    if (end == value || *end || seconds < LEAST || seconds > MOST)
        return hd_err(HD_INVALID, "%s: say %d to %d seconds", value, LEAST, MOST);
    config->lost_ms = seconds * 1000;
    config->restart_grace_ms = config->lost_ms * 5 / 3;
    config->lost_confirmed_ms = config->lost_ms / 3;
    if (config->lost_confirmed_ms < LEAST * 1000)
        config->lost_confirmed_ms = LEAST * 1000;
    return HD_OK;
}

static enum hd_status read_spares(const char *value, struct hd_core_config *config)
{
    enum { MOST = 1000 };
    char *end;
    const long count = strtol(value, &end, 10);

    if (end == value || *end || count < 0 || count > MOST)
        return hd_err(HD_INVALID, "%s: say 0 to %d nodes", value, MOST);
    config->spare_nodes = (int32_t)count;
    return HD_OK;
}

static enum hd_status read_group(const char *value, struct controller_options *options)
{
    const struct group *found;

    errno = 0;
    found = getgrnam(value);
    if (!found)
        return hd_err(HD_INVALID, "there is no group %s", value);
    options->socket_mode = 0660;
    options->socket_group = found->gr_gid;
    return HD_OK;
}

static enum hd_status take_http_hosts(struct program *p, const char *value)
{
    char *rest = p->http_names, *name;

    if (strlen(value) >= sizeof p->http_names)
        return hd_err(HD_INVALID, "the names are too long");
    memcpy(p->http_names, value, strlen(value) + 1);
    p->options.http_hosts = p->http_hosts;
    p->options.http_host_count = 0;
    while ((name = strsep(&rest, ",")) != NULL) {
        if (!*name || p->options.http_host_count == HTTP_HOSTS_MAX)
            return hd_err(HD_INVALID, "give 1 to %d names with commas between", HTTP_HOSTS_MAX);
        p->http_hosts[p->options.http_host_count++] = name;
    }
    return HD_OK;
}

static enum hd_status take_setting(void *user, int key, const char *value)
{
    struct program *p = user;

    switch (key) {
    case OPT_STATE_DIR:
        p->options.state_dir = value;
        break;
    case OPT_STATE_RESERVE:
        return hd_text_to_bytes(value, 0, &p->options.reserve_bytes);
    case OPT_LISTEN:
        p->options.listen = value;
        return hd_rpc_check_address(value);
    case OPT_ALSO_LISTEN:
        p->options.listens[0] = value;
        return hd_rpc_check_address(value);
    case OPT_SOCKET_GROUP:
        return read_group(value, &p->options);
    case OPT_CERTIFICATE_LIFE:
        return hd_clock_read_span(value, 60 * 1000, INT64_C(3650) * 86400000,
                                  &p->options.certificate_ms);
    case OPT_POLICY:
        p->options.policy_file = value;
        break;
    case OPT_JOBS_DIR:
        p->options.jobs_dir = value;
        break;
    case OPT_CLUSTER:
        p->options.cluster_file = value;
        break;
    case OPT_NODE_LOST:
        return read_node_lost(value, &p->core_config);
    case OPT_SPARE_NODES:
        return read_spares(value, &p->core_config);
    case OPT_TOKEN_FILE:
        p->token_file = value;
        break;
    case OPT_NODE_TOKEN_FILE:
        p->node_token_file = value;
        break;
    case OPT_TLS_CERT:
        p->tls.cert_path = value;
        break;
    case OPT_TLS_KEY:
        p->tls.key_path = value;
        break;
    case OPT_TLS_CA:
        p->tls.ca_path = value;
        break;
    case OPT_HTTP:
        p->options.http = value;
        return hd_rpc_check_address(value);
    case OPT_HTTP_HOST:
        return take_http_hosts(p, value);
    case OPT_LOG_FORMAT:
        return hd_log_read_format(value, &p->json_log);
    case OPT_UMASK:
        p->umask = value;
        return hd_file_check_umask(value);
    case OPT_EPHEMERAL:
        p->ephemeral = true;
        break;
    case OPT_END_JOBS:
        p->options.end_jobs = "it was killed before it ended";
        break;
    default: /* options that main reads itself */
        break;
    }
    return HD_OK;
}

static enum hd_status read_tokens(struct program *p)
{
    const char *dir = p->options.state_dir;
    enum hd_status st = HD_OK;

    hd_rpc_tokens_done(&p->tokens);
    if (p->token_file)
        st = hd_config_pass(&p->config, OPT_TOKEN_FILE,
                            hd_rpc_tokens_read(&p->tokens, p->token_file, dir, HD_RPC_PARTY_USER));
    if (!st && p->node_token_file)
        st = hd_config_pass(
            &p->config, OPT_NODE_TOKEN_FILE,
            hd_rpc_tokens_read(&p->tokens, p->node_token_file, dir, HD_RPC_PARTY_NODE));
    p->options.tokens = &p->tokens;
    return st;
}

/* Checks the TLS files, for --check-config and a reload. A start goes on without them: people on
 * this machine need no TLS. */
static enum hd_status check_certificates(struct program *p)
{
    const int64_t now_ms = hd_clock_wall_ms();
    enum hd_status st = HD_OK;

    if (p->tls.cert_path)
        st = hd_config_pass(&p->config, OPT_TLS_CERT, hd_pki_check_dates(p->tls.cert_path, now_ms));
    if (!st && p->tls.ca_path)
        st = hd_config_pass(&p->config, OPT_TLS_CA, hd_pki_check_dates(p->tls.ca_path, now_ms));
    return st ? st : hd_config_verdict(&p->config);
}

static enum hd_status check_policy(struct program *p)
{
    struct hd_policy *policy = NULL;
    enum hd_status st = p->options.policy_file
                            ? hd_policy_read(p->options.policy_file, p->options.state_dir, &policy)
                            : HD_OK;

    hd_policy_free(policy);
    return hd_config_pass(&p->config, OPT_POLICY, st);
}

/* Checks what settings together forbid. */
static enum hd_status check_together(const struct program *p)
{
    if (!p->options.state_dir && !hd_config_is_on(&p->config, OPT_CHECK_CONFIG))
        return hd_err(HD_INVALID, "--state-dir DIR is missing; see heddle-controller --help");
    if (p->options.http_host_count && !p->options.http)
        return hd_err(HD_INVALID, "--http-host without --http ADDR: there is no door to name");
    if (p->node_token_file && !p->token_file)
        return hd_err(HD_INVALID, "--node-token-file without --token-file: no user could come by "
                                  "HOST:PORT; give both");
    return p->options.tls ? hd_rpc_check_tls(p->options.tls) : HD_OK;
}

/* Reads flags and the configuration file into p->options. Checks all of them: keeps the mistakes in
 * single settings; without any, checks what settings together forbid. */
static enum hd_status use_config(struct program *p)
{
    enum hd_status st;

    p->options.reserve_bytes = RESERVE_BYTES;
    p->core_config = hd_core_config_default;
    p->options.core_config = &p->core_config;
    st = hd_config_apply(&p->config, take_setting, p);
    if (p->tls.cert_path || p->tls.key_path || p->tls.ca_path)
        p->options.tls = &p->tls;
    if (!st)
        st = read_tokens(p);
    if (!st)
        st = check_policy(p);
    if (!st)
        st = hd_config_is_on(&p->config, OPT_CHECK_CONFIG) ? check_certificates(p)
                                                           : hd_config_verdict(&p->config);
    if (!st)
        st = check_together(p);
    if (!st && !p->options.listen) {
        st = hd_rpc_default_listen(&p->listen);
        p->options.listen = p->listen.data;
    }
    return st ? st : hd_file_set_umask(p->umask);
}

/* ---- the end ----------------------------------------------------------------------------------*/

static void close_handles(struct program *p)
{
    uv_close((uv_handle_t *)&p->terminate, NULL);
    uv_close((uv_handle_t *)&p->interrupt, NULL);
    uv_close((uv_handle_t *)&p->hangup, NULL);
    uv_close((uv_handle_t *)&p->parent_check, NULL);
}

static void on_stopped(void *user)
{
    close_handles(user);
}

static void stop(struct program *p, int exit_code)
{
    if (p->stopping)
        return;
    p->stopping = true;
    p->exit_code = exit_code;
    hd_notify_stopping();
    controller_stop(p->controller, on_stopped, p);
}

static void on_signal(uv_signal_t *handle, int number)
{
    hd_log(HD_LOG_INFO, "stopping on %s; running jobs go on", strsignal(number));
    stop(handle->data, EXIT_SUCCESS);
}

/* Reads flags and configuration file once more into a program of its own, so that a mistake in them
 * changes nothing, and takes over what can change while the controller runs. */
static enum hd_status reload(struct program *p)
{
    static char reload_prefix[] = "reload: ";
    struct program fresh = {0};
    enum hd_status st = hd_config_read(&fresh.config, &controller_program, p->argc, p->argv);

    if (!st || fresh.config.mistake_count)
        st = use_config(&fresh);
    if (!st)
        st = check_certificates(&fresh);
    if (!st)
        st = controller_reload(p->controller, &fresh.options);
    if (!st) {
        (void)hd_config_compare(&p->config, &fresh.config, hd_config_log_line, reload_prefix);
        hd_log(HD_LOG_INFO, "reload: tokens read again (%zu in force)", fresh.tokens.count);
        if (fresh.options.policy_file)
            hd_log(HD_LOG_INFO, "reload: the policy %s was read again and is in force",
                   fresh.options.policy_file);
    }
    if (st) {
        hd_config_log_mistakes(&fresh.config, reload_prefix);
        hd_log(HD_LOG_ERROR, "reload: everything stays as it was");
    }
    /* p->config stays the configuration of the start, so each reload reports again which of its
     * changes wait for a restart */
    hd_rpc_tokens_done(&fresh.tokens);
    hd_text_free(&fresh.listen);
    hd_config_done(&fresh.config);
    return st;
}

static void on_hangup(uv_signal_t *handle, int number)
{
    struct program *p = handle->data;
    mode_t in_force;

    (void)number;
    if (p->stopping)
        return;
    hd_notify_reloading();
    in_force = umask(0077);
    (void)umask(in_force);
    if (reload(p))
        (void)umask(in_force);
    hd_notify_ready();
}

static void on_fatal(void *user, const struct hd_error *error)
{
    hd_log(HD_LOG_ERROR, "%s", error->message);
    stop(user, EXIT_CANNOT);
}

/* Beside the death signal, which is lost when the parent ends before it was asked for. */
static void check_parent(uv_timer_t *timer)
{
    struct program *p = timer->data;

    if (getppid() == p->parent)
        return;
    hd_log(HD_LOG_INFO, "stopping: the parent process has ended");
    stop(p, EXIT_SUCCESS);
}

/* ---- the beginning ----------------------------------------------------------------------------*/

static void watch_signals(struct program *p)
{
    p->terminate.data = p->interrupt.data = p->hangup.data = p->parent_check.data = p;
    (void)uv_signal_init(&p->loop, &p->terminate);
    (void)uv_signal_init(&p->loop, &p->interrupt);
    (void)uv_signal_init(&p->loop, &p->hangup);
    (void)uv_timer_init(&p->loop, &p->parent_check);
    (void)uv_signal_start(&p->terminate, on_signal, SIGTERM);
    (void)uv_signal_start(&p->interrupt, on_signal, SIGINT);
    (void)uv_signal_start(&p->hangup, on_hangup, SIGHUP);
    if (!p->ephemeral)
        return;
    p->parent = getppid();
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)uv_timer_start(&p->parent_check, check_parent, PARENT_CHECK_MS, PARENT_CHECK_MS);
}

/* HOST:0 took some port: say which. */
/* Appends an address with the port that was found for it: that of the last one with a port. */
static void add_address(const struct program *p, const char *address, bool is_last,
                        struct hd_text *out)
{
    if (is_last && !hd_rpc_address_is_unix(address))
        hd_text_add(out, "%.*s:%d", (int)(strrchr(address, ':') - address), address,
                    controller_port(p->controller));
    else
        hd_text_add(out, "%s", address);
}

static void report_ready(const struct program *p)
{
    const char *address = p->options.listen, *also = p->options.listens[0];
    struct hd_text all = {0};

    add_address(p, address, !also || hd_rpc_address_is_unix(also), &all);
    if (also) {
        hd_text_add(&all, " and ");
        add_address(p, also, true, &all);
    }
    hd_log(HD_LOG_INFO, "ready on %s, jobs in %s", all.failed ? address : all.data,
           controller_jobs_dir(p->controller));
    hd_text_free(&all);
}

static void print_http(const struct program *p)
{
    const char *address = p->options.http, *colon = address ? strrchr(address, ':') : NULL;

    if (address && hd_rpc_address_is_unix(address))
        hd_log(HD_LOG_INFO, "dashboard and metrics on %s", address);
    else if (address)
        hd_log(HD_LOG_INFO, "dashboard and metrics on %s://%.*s:%d/",
               controller_http_is_tls(p->controller) ? "https" : "http", (int)(colon - address),
               address, controller_http_port(p->controller));
}

static enum hd_status run(struct program *p)
{
    enum hd_status st;

    if (uv_loop_init(&p->loop) != 0)
        return hd_err(HD_INTERNAL, "cannot make an event loop");
    (void)signal(SIGPIPE, SIG_IGN);
    watch_signals(p);
    p->options.build = hd_version_text;
    p->options.on_fatal = on_fatal;
    p->options.user = p;
    st = controller_new(&p->loop, &p->options, &p->controller);
    if (st) {
        struct hd_error error;

        hd_err_save(st, &error);
        close_handles(p);
        (void)uv_run(&p->loop, UV_RUN_DEFAULT);
        st = hd_err_restore(&error);
    } else {
        report_ready(p);
        print_http(p);
        hd_notify_ready();
        (void)uv_run(&p->loop, UV_RUN_DEFAULT);
    }
    (void)uv_loop_close(&p->loop);
    return st;
}

/* ---- backup -----------------------------------------------------------------------------------*/

static enum hd_status check_backup(const struct hd_config *config)
{
    if (config->arg_count > 2)
        return hd_err(HD_INVALID,
                      "backup: \"%s\" is one word too many; see heddle-controller --help",
                      config->args[2]);
    if (config->arg_count < 2 || !*config->args[1])
        return hd_err(HD_INVALID, "backup: FILE is missing, the new file to write");
    if (!hd_config_get(config, OPT_STATE_DIR))
        return hd_err(HD_INVALID, "backup: --state-dir DIR is missing, the controller's");
    return HD_OK;
}

static int backup(const struct hd_config *config)
{
    struct hd_store_backup made;
    char size[32], line[256];
    struct hd_text text = {0};
    enum hd_status st = check_backup(config);

    if (!st)
        st = hd_store_make_backup(hd_config_get(config, OPT_STATE_DIR), config->args[1], &made);
    if (!st) {
        hd_text_format_bytes(made.size_bytes, size);
        (void)snprintf(line, sizeof line, "%s, %lld job%s, the last is %lld, schema %lld", size,
                       (long long)made.jobs, made.jobs == 1 ? "" : "s", (long long)made.last_job,
                       (long long)made.schema);
        hd_text_add(&text, "%s: %s; checked and on disk\n", config->args[1], line);
        st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for a line") : hd_file_print(text.data);
        hd_text_free(&text);
    }
    if (!st)
        return EXIT_SUCCESS;
    hd_log(HD_LOG_ERROR, "%s", hd_err_message());
    return st == HD_INVALID || st == HD_EXISTS || st == HD_NOT_FOUND ? EXIT_USAGE : EXIT_CANNOT;
}

/* ---- restore ----------------------------------------------------------------------------------*/

/* Adds when the copy was made, and how long ago that was; or else how new its contents are. */
static void describe_age(const struct hd_store_backup *copy, struct hd_text *ret_text)
{
    const int64_t time_ms = copy->copied_ms ? copy->copied_ms : copy->newest_ms;
    const int64_t age_ms = hd_clock_wall_ms() - time_ms;
    char when[HD_CLOCK_TEXT_MAX], age[HD_CLOCK_TEXT_MAX];

    hd_clock_format_utc(time_ms, when);
    hd_clock_format_span(age_ms > 0 ? age_ms : 0, age);
    if (copy->copied_ms)
        hd_text_add(ret_text, "the copy was made at %s (%s ago)\n", when, age);
    else if (copy->newest_ms)
        hd_text_add(ret_text,
                    "when the copy was made is not known, because heddle-controller backup did not "
                    "make it; the controller wrote into it last at %s (%s ago)\n",
                    when, age);
    else
        hd_text_add(ret_text, "when the copy was made is not known\n");
}

static void describe_restore(const char *state_dir, const struct hd_store_restore *made,
                             bool revoke, struct hd_text *ret_text)
{
    const struct hd_store_backup *copy = &made->copy;

    if (copy->size_bytes)
        hd_text_add(ret_text, "%s/state.db: %lld job%s, the last is %lld; checked and on disk\n",
                    state_dir, (long long)copy->jobs, copy->jobs == 1 ? "" : "s",
                    (long long)copy->last_job);
    else
        hd_text_add(ret_text, "%s/state.db stays as it is, and takes over\n", state_dir);
    if (made->aside[0])
        hd_text_add(ret_text, "the former database is in %s\n", made->aside);
    describe_age(copy, ret_text);
    if (made->former.last_job > copy->last_job)
        hd_text_add(ret_text,
                    "the former database has jobs up to %lld: those after %lld are missing here\n",
                    (long long)made->former.last_job, (long long)copy->last_job);
    if (made->ended)
        hd_text_add(ret_text,
                    "%lld tokens, people's certificates and invitations were ended; make new ones "
                    "with heddle token create\n",
                    (long long)made->ended);
    hd_text_add(ret_text,
                "the controller takes over when it is started, and does not know what happened "
                "since then:\n"
                "- jobs submitted since are gone; their folders stay\n"
                "- %s\n"
                "- nodes invited since have to be invited again (heddle node invite NAME; the "
                "controller's log names those that come), and nodes revoked or removed since are "
                "members again: heddle node revoke NAME\n",
                revoke ? "tokens made since are unknown, and all former ones were ended"
                       : "tokens made since are unknown, and those revoked since are valid "
                         "again: heddle token ls, or restore --revoke");
}

static enum hd_status check_restore(const struct hd_config *config)
{
    if (config->arg_count > 2)
        return hd_err(HD_INVALID,
                      "restore: \"%s\" is one word too many; see heddle-controller --help",
                      config->args[2]);
    if (!hd_config_get(config, OPT_STATE_DIR))
        return hd_err(HD_INVALID, "restore: --state-dir DIR is missing, the controller's");
    if (config->arg_count < 2 && hd_config_is_on(config, OPT_EMPTY))
        return hd_err(HD_INVALID, "restore: --empty without FILE: there would be no database; name "
                                  "the backup");
    return hd_user_check_folder(hd_config_get(config, OPT_STATE_DIR), "heddle-controller restore");
}

static int restore(const struct hd_config *config)
{
    const char *state_dir = hd_config_get(config, OPT_STATE_DIR);
    struct hd_store_restore made;
    struct hd_text text = {0};
    enum hd_status st = check_restore(config);

    if (!st)
        st = hd_store_restore_from(state_dir, config->arg_count > 1 ? config->args[1] : NULL,
                                   hd_config_is_on(config, OPT_REVOKE),
                                   hd_config_is_on(config, OPT_EMPTY), &made);
    if (!st) {
        describe_restore(state_dir, &made, hd_config_is_on(config, OPT_REVOKE), &text);
        st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for a line") : hd_file_print(text.data);
        hd_text_free(&text);
    }
    if (!st)
        return EXIT_SUCCESS;
    hd_log(HD_LOG_ERROR, "%s", hd_err_message());
    return st == HD_INVALID || st == HD_NOT_FOUND ? EXIT_USAGE : EXIT_CANNOT;
}

/* ---- adopt ------------------------------------------------------------------------------------*/

static int adopt(const struct hd_config *config)
{
    const char *state_dir = hd_config_get(config, OPT_STATE_DIR);
    const char *jobs_dir = hd_config_get(config, OPT_JOBS_DIR);
    char folder[PATH_MAX], line[2 * PATH_MAX + 128];
    enum hd_status st = HD_OK;
    const bool also_empty = config->arg_count > 1 && strcmp(config->args[1], "empty") == 0;

    if (config->arg_count > 1 + also_empty)
        st = hd_err(HD_INVALID, "adopt: \"%s\" is one word too many; see heddle-controller --help",
                    config->args[1 + also_empty]);
    else if (!state_dir)
        st = hd_err(HD_INVALID, "adopt: --state-dir DIR is missing, the controller's");
    if (!st)
        st = hd_user_check_folder(state_dir, "heddle-controller adopt");
    if (!st)
        st = jobs_mark_adopt(state_dir, jobs_dir, also_empty, folder);
    if (!st) {
        (void)snprintf(line, sizeof line,
                       "%s is the cluster's jobs directory from now on; start the controller%s%s\n",
                       folder, jobs_dir ? " with --jobs-dir " : "", jobs_dir ? folder : "");
        st = hd_file_print(line);
    }
    if (!st)
        return EXIT_SUCCESS;
    hd_log(HD_LOG_ERROR, "%s", hd_err_message());
    return st == HD_INVALID || st == HD_NOT_FOUND ? EXIT_USAGE : EXIT_CANNOT;
}

/* ---- all --------------------------------------------------------------------------------------*/

static int usage_error(void)
{
    hd_log(HD_LOG_ERROR, "%s", hd_err_message());
    return EXIT_USAGE;
}

/* Logs all mistakes of flags and configuration file. */
static int refuse(const struct program *p)
{
    hd_config_log_mistakes(&p->config, "");
    return EXIT_USAGE;
}

static int init(const struct hd_config *config)
{
    const char *state_dir = hd_config_get(config, OPT_STATE_DIR);
    enum hd_status st = HD_OK;

    if (config->arg_count > 1)
        st = hd_err(HD_INVALID, "init: \"%s\" is one word too many; see heddle-controller --help",
                    config->args[1]);
    else if (!state_dir)
        st = hd_err(HD_INVALID, "init: --state-dir DIR is missing");
    if (!st)
        st = hd_user_check_folder(state_dir, "heddle-controller init");
    if (!st)
        st = hd_config_is_on(config, OPT_IF_NEEDED) && hd_authority_exists(state_dir)
                 ? HD_OK
                 : controller_init(state_dir, hd_config_get(config, OPT_HOST));
    if (!st)
        return EXIT_SUCCESS;
    hd_log(HD_LOG_ERROR, "%s", hd_err_message());
    return st == HD_INVALID || st == HD_EXISTS ? EXIT_USAGE : EXIT_CANNOT;
}

static int serve(struct program *p)
{
    enum hd_status st = use_config(p);
    int code;

    if (st) {
        code = refuse(p);
    } else {
        hd_log_set_json(p->json_log);
        hd_config_log_replaced(&p->config, hd_config_log_line, NULL);
        if (check_certificates(p))
            hd_log(HD_LOG_ERROR, "%s; nodes and people refuse it", hd_err_message());
        st = run(p);
        code = !st ? p->exit_code : st == HD_INVALID || st == HD_DENIED ? EXIT_USAGE : EXIT_CANNOT;
        if (st)
            (void)usage_error();
    }
    hd_text_free(&p->listen);
    hd_rpc_tokens_done(&p->tokens);
    return code;
}

/* Prints a note on the gRPC that is loaded, if there is one to make. */
static void add_library(char *text, size_t size)
{
    const char *weakness = hd_rpc_library_weakness(NULL);
    const size_t length = strlen(text);
    char name[HD_RPC_LIBRARY_MAX];

    hd_rpc_library_name(NULL, name);
    if (weakness)
        (void)snprintf(text + length, size - length, "note: %s: %s\n", name, weakness);
}

static int check_config(struct program *p)
{
    char line[PATH_MAX + 1024];
    int code = EXIT_SUCCESS;

    if (use_config(p)) {
        code = refuse(p);
    } else {
        (void)snprintf(line, sizeof line, "%s: fine\n",
                       p->config.path ? p->config.path : "options");
        add_library(line, sizeof line);
        if (hd_file_print(line)) {
            hd_log(HD_LOG_ERROR, "%s", hd_err_message());
            code = EXIT_CANNOT;
        }
    }
    hd_text_free(&p->listen);
    hd_rpc_tokens_done(&p->tokens);
    return code;
}

static int command(struct program *p)
{
    char version[160], library[HD_RPC_LIBRARY_MAX];
    int code;

    hd_rpc_library_name(NULL, library);
    (void)snprintf(version, sizeof version, "%s\n%s", hd_version_text, library);
    if (hd_config_page(&p->config, OPT_HELP, OPT_VERSION, OPT_OUTPUT, version, &code))
        return code;
    if (p->config.arg_count && strcmp(p->config.args[0], "backup") == 0)
        return backup(&p->config);
    if (p->config.arg_count && strcmp(p->config.args[0], "restore") == 0)
        return restore(&p->config);
    if (p->config.arg_count && strcmp(p->config.args[0], "adopt") == 0)
        return adopt(&p->config);
    if (p->config.arg_count && strcmp(p->config.args[0], "init") == 0)
        return init(&p->config);
    if (p->config.arg_count) {
        (void)hd_err(HD_INVALID, "\"%s\" is one word too many; see heddle-controller --help",
                     p->config.args[0]);
        return usage_error();
    }
    if (hd_config_is_on(&p->config, OPT_IF_NEEDED)) {
        (void)hd_err(HD_INVALID, "--if-needed belongs to init; see heddle-controller --help");
        return usage_error();
    }
    return hd_config_is_on(&p->config, OPT_CHECK_CONFIG) ? check_config(p) : serve(p);
}

int main(int argc, char **argv)
{
    static struct program program;
    struct hd_process_needs needs;
    int code;

    /* each submission takes and returns blocks of more than 100 KiB; memory that is kept needs no
     * new pages for the next one */
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 16 << 20);
    needs = hd_process_needs_of_grpc(96, 8);
    if (!hd_process_prepare_or_tell("heddle-controller", &needs))
        return EXIT_FAILURE;
    hd_log_init("heddle-controller", HD_LOG_INFO);
    hd_file_ignore_size_signal();
    if (hd_first_split()) {
        hd_log(HD_LOG_ERROR, "%s", hd_err_message());
        return EXIT_FAILURE;
    }
    program.argc = argc - 1;
    program.argv = argv + 1;
    if (!hd_config_read(&program.config, &controller_program, argc - 1, argv + 1)) {
        code = command(&program);
    } else {
        if (program.config.mistake_count) /* adds the mistakes in values to those in keys */
            (void)use_config(&program);
        code = refuse(&program);
        hd_text_free(&program.listen);
        hd_rpc_tokens_done(&program.tokens);
    }
    hd_config_done(&program.config);
    return code;
}
