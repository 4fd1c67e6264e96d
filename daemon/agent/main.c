/* heddled: the daemon of a node. See agent.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/first.h"
#include "base/log.h"
#include "base/process.h"
#include "base/user.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/settings.h"
#include "daemon/isolation/cpus.h"
#include "daemon/isolation/roots.h"
#include "pki/pki.h"
#include "version/version.h"

enum { EXIT_USAGE = 2, EXIT_UNREACHABLE = 3, EXIT_CANNOT = 6 };

static enum hd_status read_seconds(const char *value, int least, int64_t *ret_ms)
{
    enum { MOST = 24 * 3600 };
    char *end;
    const long seconds = strtol(value, &end, 10);

    if (end == value || *end || seconds < least || seconds > MOST)
        return hd_err(HD_INVALID, "%s: say %d to %d seconds", value, least, MOST);
    *ret_ms = seconds * 1000;
    return HD_OK;
}

enum { SUPERVISOR_LOST_LEAST_S = 20 };
enum { LOG_LIMIT_BYTES = 256 << 20, MIN_FREE_PERCENT = 5 };

static enum hd_status take_tls(struct agent_options *options, const char **path, const char *value)
{
    *path = value;
    options->has_tls = true;
    return HD_OK;
}

static enum hd_status take_probe(struct agent_options *options, const char *value)
{
    options->probe = value;
    if (strcmp(value, "first") != 0 && strcmp(value, "anyway") != 0 && strcmp(value, "never") != 0)
        return hd_err(HD_INVALID, "%s: say first, anyway or never", value);
    return HD_OK;
}

static enum hd_status take_output(struct agent_options *options, const char *value)
{
    options->json = strcmp(value, "json") == 0;
    if (!options->json && strcmp(value, "table") != 0)
        return hd_err(HD_INVALID, "%s: say table or json", value);
    return HD_OK;
}

static enum hd_status take_isolation(struct agent_options *options, const char *value)
{
    options->isolation = value;
    if (strcmp(value, "require") != 0 && strcmp(value, "try") != 0 && strcmp(value, "off") != 0)
        return hd_err(HD_INVALID, "%.64s: say require, try or off", value);
    return HD_OK;
}

static enum hd_status read_log_limit(const char *value, int64_t *ret_bytes)
{
    enum { LEAST = 1 << 20 };
    enum hd_status st = hd_text_to_bytes(value, 0, ret_bytes);

    if (!st && *ret_bytes && *ret_bytes < LEAST)
        st = hd_err(HD_INVALID, "%s: say 1M or more, or 0 for no limit", value);
    return st;
}

static enum hd_status take_setting(void *user, int key, const char *value)
{
    struct agent_options *options = user;

    switch (key) {
    case OPT_CONTROLLER:
        options->controller = value;
        return HD_OK;
    case OPT_STATE_DIR:
        options->state_dir = value;
        return HD_OK;
    case OPT_NODE_NAME:
        options->node_name = value;
        return HD_OK;
    case OPT_DEVICES:
        options->devices = value;
        return HD_OK;
    case OPT_DEVICE_MEMORY:
        return hd_text_to_bytes(value, 1 << 20, &options->device_memory_bytes);
    case OPT_DATA_ADDRESS:
        options->data_address = value;
        return HD_OK;
    case OPT_CHOICES_DIR:
        options->choices_dir = value;
        return HD_OK;
    case OPT_LOG_LIMIT:
        return read_log_limit(value, &options->log_limit_bytes);
    case OPT_MIN_FREE:
        return hd_text_to_int64(value, 0, 99, &options->min_free_percent);
    case OPT_EPHEMERAL:
        options->ephemeral = true;
        return HD_OK;
    case OPT_PROBE:
        return take_probe(options, value);
    case OPT_TOKEN_FILE:
        options->token_file = value;
        return HD_OK;
    case OPT_TLS_CA:
        return take_tls(options, &options->tls.ca_path, value);
    case OPT_TLS_CERT:
        return take_tls(options, &options->tls.cert_path, value);
    case OPT_TLS_KEY:
        return take_tls(options, &options->tls.key_path, value);
    case OPT_LAUNCHER:
        options->launcher = value;
        return HD_OK;
    case OPT_ISOLATION:
        return take_isolation(options, value);
    case OPT_CGROUP:
        options->cgroup = value;
        return HD_OK;
    case OPT_DATA_ROOTS:
        options->data_roots = value;
        return hd_roots_check(value);
    case OPT_JOB_CPUS:
        options->job_cpus = value;
        return hd_cpus_check(value);
    case OPT_MEMORY_SLACK:
        return hd_text_to_bytes(value, 1 << 20, &options->memory_slack_bytes);
    case OPT_WORKER:
        options->worker = value;
        return HD_OK;
    case OPT_SUPERVISOR_LOST:
        return read_seconds(value, SUPERVISOR_LOST_LEAST_S, &options->supervisor_lost_ms);
    case OPT_LEAVE_WITHIN:
        return read_seconds(value, 1, &options->leave_within_ms);
    case OPT_HTTP:
        options->http = value;
        return hd_rpc_check_address(value);
    case OPT_HTTP_TOKEN_FILE:
        options->http_token_file = value;
        return HD_OK;
    case OPT_HTTP_HOST:
        options->http_host = value;
        return HD_OK;
    case OPT_LOG_FORMAT:
        return hd_log_read_format(value, &options->json_log);
    case OPT_UMASK:
        options->umask = value;
        return hd_file_check_umask(value);
    case OPT_DOCTOR:
        options->doctor = true;
        return HD_OK;
    case OPT_JOBS_DIR:
        options->jobs_dir = value;
        return HD_OK;
    case OPT_OUTPUT:
        return take_output(options, value);
    default: /* flags that main handles itself */
        return HD_OK;
    }
}

/* Checks the TLS files that options name, for --check-config and a reload; keeps the mistakes. */
static enum hd_status check_dates(struct hd_config *config, const struct agent_options *options)
{
    const int64_t now_ms = hd_clock_wall_ms();
    enum hd_status st = HD_OK;

    if (options->tls.cert_path)
        st = hd_config_pass(config, OPT_TLS_CERT,
                            hd_pki_check_dates(options->tls.cert_path, now_ms));
    if (!st && options->tls.ca_path)
        st = hd_config_pass(config, OPT_TLS_CA, hd_pki_check_dates(options->tls.ca_path, now_ms));
    return st;
}

/* Checks files that are otherwise read only when heddled connects; keeps the mistakes. */
static enum hd_status check_files(struct hd_config *config, const struct agent_options *options)
{
    char token[HD_RPC_TOKEN_MAX + 1];
    enum hd_status st = HD_OK;

    if (options->token_file)
        st = hd_config_pass(config, OPT_TOKEN_FILE,
                            hd_rpc_read_token(options->token_file, 0, token));
    explicit_bzero(token, sizeof token);
    return st ? st : check_dates(config, options);
}

/* Checks values that a check by doctor does not need; keeps the mistakes. */
static enum hd_status check_values(struct hd_config *config, const struct agent_options *options)
{
    struct hd_device_selection selection;
    enum hd_status st = hd_config_pass(config, OPT_DEVICES,
                                       hd_device_selection_parse(options->devices, &selection));

    if (!st && options->data_address)
        st = hd_config_pass(config, OPT_DATA_ADDRESS, agent_address_check(options->data_address));
    return st;
}

/* Converts the flags and the configuration file into options and checks them. Keeps the mistakes in
 * single settings; without any, checks what settings together forbid. */
static enum hd_status use_config(struct hd_config *config, struct agent_options *ret_options)
{
    enum hd_status st;

    ret_options->log_limit_bytes = LOG_LIMIT_BYTES;
    ret_options->min_free_percent = -1; /* -1: not given */
    st = hd_config_apply(config, take_setting, ret_options);
    if (ret_options->min_free_percent < 0)
        ret_options->min_free_percent = ret_options->ephemeral ? 0 : MIN_FREE_PERCENT;
    if (!st && !ret_options->doctor)
        st = check_values(config, ret_options);
    if (!st && hd_config_is_on(config, OPT_CHECK_CONFIG))
        st = check_files(config, ret_options);
    if (!st)
        st = hd_config_verdict(config);
    if (!st && config->arg_count)
        st = hd_err(HD_INVALID, "unexpected argument \"%s\"; see heddled --help", config->args[0]);
    if (!st && hd_config_is_on(config, OPT_IF_NEEDED))
        st = hd_err(HD_INVALID, "--if-needed belongs to join; see heddled --help");
    if (!st && !ret_options->doctor && (ret_options->jobs_dir || ret_options->json))
        st = hd_err(HD_INVALID, "--jobs-dir and -o belong to --doctor; see heddled --help");
    if (!st && ret_options->leave_within_ms && ret_options->ephemeral)
        st = hd_err(HD_INVALID, "--leave-within and --ephemeral: with --ephemeral ranks are ended "
                                "without a checkpoint; leave one out");
    if (!st && ret_options->launcher && ret_options->ephemeral)
        st =
            hd_err(HD_INVALID, "--launcher and --ephemeral: a supervisor in a unit of its own does "
                               "not end with heddled; leave one out");
    if (!st)
        st = isolate_check(ret_options);
    if (!st && !ret_options->doctor && !ret_options->state_dir &&
        !hd_config_is_on(config, OPT_CHECK_CONFIG))
        st = hd_err(HD_INVALID, "--state-dir DIR is missing; see heddled --help");
    return st;
}

static int exit_code_of(enum hd_status st)
{
    return st == HD_INVALID || st == HD_UNSUPPORTED ? EXIT_USAGE
           : st == HD_UNAVAILABLE                   ? EXIT_UNREACHABLE
                                                    : EXIT_CANNOT;
}

static int fail(int code)
{
    hd_log(HD_LOG_ERROR, "%s", hd_err_message());
    return code;
}

/* Logs all mistakes of flags and configuration file. */
static int refuse(const struct hd_config *config)
{
    hd_config_log_mistakes(config, "");
    return EXIT_USAGE;
}

/* Checks the TLS files of a join, for --check-config and a reload. */
static enum hd_status check_join(const struct agent_options *given)
{
    struct agent_options options = *given;
    struct agent_joined joined = {0};
    enum hd_status st = given->state_dir ? agent_joined_open(&joined, &options) : HD_OK;

    if (!st && joined.joined)
        st = agent_joined_check(&joined);
    agent_joined_close(&joined);
    return st;
}

static int check_config(const struct hd_config *config, const struct agent_options *options)
{
    char line[PATH_MAX + 128];
    enum hd_status st = options->has_tls ? hd_rpc_check_client_tls(&options->tls) : HD_OK;

    if (!st)
        st = check_join(options);
    if (st)
        return refuse(config);
    (void)snprintf(line, sizeof line, "%s: fine\n", config->path ? config->path : "options");
    return hd_file_print(line) ? fail(EXIT_CANNOT) : EXIT_SUCCESS;
}

static int doctor(struct agent *agent)
{
    int code = EXIT_FAILURE;
    enum hd_status st = agent_doctor(agent, &code);

    return st ? fail(exit_code_of(st)) : code;
}

static int join(const struct hd_config *config)
{
    const char *state_dir = hd_config_get(config, OPT_STATE_DIR);
    enum hd_status st = HD_OK;

    if (config->arg_count != 2)
        st = hd_err(HD_INVALID, "join: give one line of heddle node invite, or - and the line on "
                                "standard input");
    else if (!state_dir)
        st = hd_err(HD_INVALID, "join: --state-dir DIR is missing");
    if (!st)
        st = hd_user_check_folder(state_dir, "heddled join");
    if (!st)
        st = hd_config_is_on(config, OPT_IF_NEEDED) && agent_has_joined(state_dir)
                 ? HD_OK
                 : agent_join(state_dir, config->args[1], hd_config_get(config, OPT_NODE_NAME));
    return st ? fail(exit_code_of(st)) : EXIT_SUCCESS;
}

static int command(struct agent *agent)
{
    enum hd_status st;
    int code;

    if (hd_config_page(&agent->config, OPT_HELP, OPT_VERSION, OPT_OUTPUT, hd_version_text, &code))
        return code;
    if (agent->config.arg_count && strcmp(agent->config.args[0], "join") == 0)
        return join(&agent->config);
    if (use_config(&agent->config, &agent->options))
        return refuse(&agent->config);
    hd_log_set_json(agent->options.json_log);
    if (hd_config_is_on(&agent->config, OPT_CHECK_CONFIG))
        return check_config(&agent->config, &agent->options);
    if (agent->options.doctor)
        return doctor(agent);
    hd_config_log_replaced(&agent->config, hd_config_log_line, NULL);
    st = agent_open(agent);
    if (st)
        return fail(exit_code_of(st));
    code = agent_run(agent);
    if (agent->start_again) {
        (void)execv("/proc/self/exe", agent->argv - 1);
        hd_log(HD_LOG_ERROR, "cannot start anew: %s", strerror(errno));
    }
    return code;
}

/* Applies the settings that can change at run time (settings.c). */
static void reload(struct agent *agent)
{
    static char reload_prefix[] = "reload: ";
    struct agent_options options = {0};
    struct hd_config fresh;
    enum hd_status st = hd_config_read(&fresh, &heddled_program, agent->argc, agent->argv);

    if (!st || fresh.mistake_count)
        st = use_config(&fresh, &options);
    if (!st)
        st = check_dates(&fresh, &options);
    if (!st)
        st = hd_config_verdict(&fresh);
    if (!st)
        st = check_join(&options);
    if (!st)
        st = hd_file_set_umask(options.umask);
    if (st) {
        hd_config_log_mistakes(&fresh, reload_prefix);
        hd_log(HD_LOG_ERROR, "reload: every setting stays as it was");
    } else {
        agent->locals.supervisor_lost_ms =
            options.supervisor_lost_ms ? options.supervisor_lost_ms : AGENT_SUPERVISOR_LOST_MS;
        (void)hd_config_compare(&agent->config, &fresh, hd_config_log_line, reload_prefix);
    }
    hd_config_done(&fresh);
}

int main(int argc, char **argv)
{
    static struct agent agent;
    struct hd_process_needs needs;
    int code;

    needs = hd_process_needs_of_grpc(96, 8);
    if (!hd_process_prepare_or_tell("heddled", &needs))
        return EXIT_FAILURE;
    hd_log_init("heddled", HD_LOG_INFO);
    hd_file_ignore_size_signal();
    if (hd_first_split())
        return fail(EXIT_FAILURE);
    agent.argc = argc - 1;
    agent.argv = argv + 1;
    agent.on_reload = reload;
    if (!hd_config_read(&agent.config, &heddled_program, argc - 1, argv + 1)) {
        code = command(&agent);
    } else {
        if (agent.config.mistake_count) /* adds the mistakes in values to those in keys */
            (void)use_config(&agent.config, &agent.options);
        code = refuse(&agent.config);
    }
    hd_config_done(&agent.config);
    return code;
}
