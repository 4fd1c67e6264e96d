/* heddle-controller: accepts jobs and sees them through. See services/controller.h. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/text.h"
#include "controller/services/controller.h"
#include "controller/store/store.h"
#include "rpc/find.h"

enum { EXIT_USAGE = 2, EXIT_CANNOT = 6 };
enum { PARENT_CHECK_MS = 500, HTTP_HOSTS_MAX = 8 };

static const char usage[] =
    "heddle-controller: accepts jobs, places them on nodes, restarts them, remembers everything\n"
    "\n"
    "  heddle-controller --state-dir DIR [options]\n"
    "  heddle-controller backup FILE --state-dir DIR\n"
    "                      copy the database to the new FILE, also while the controller runs, and\n"
    "                      check the copy; docs/operations.md says how to restore it\n"
    "\n"
    "  --state-dir DIR     what must not be lost (SQLite; never on NFS); one controller uses it\n"
    "  --listen ADDR       unix:PATH or HOST:PORT (default: the system's socket for root, else\n"
    "                      the user's); HOST:PORT takes as many connections as the limit of open\n"
    "                      files less 128, a fourth of them from one address\n"
    "  --jobs-dir DIR      logs and checkpoints of jobs, the same path on every node of a job\n"
    "                      (default: jobs in the state directory)\n"
    "  --cluster FILE      cluster file that names the nodes and says which of them share a "
    "switch\n"
    "                      (docs/planning.md); jobs on several nodes then span few switches\n"
    "  --node-lost-after SECONDS\n"
    "                      a node that is silent for so long is lost, and its jobs are started\n"
    "                      elsewhere from their newest checkpoints (default: 180, at least 30)\n"
    "  --token-file FILE   tokens of users; HOST:PORT needs it. A line is NAME TOKEN, and jobs\n"
    "                      belong to NAME; one line may be a TOKEN alone, without a name\n"
    "  --node-token-file FILE\n"
    "                      tokens of nodes, without which none comes by HOST:PORT: a TOKEN\n"
    "                      alone for all nodes, or lines NAME TOKEN, each for the node NAME\n"
    "  --tls-cert FILE, --tls-key FILE\n"
    "                      PEM; needed to listen beyond loopback\n"
    "  --tls-ca FILE       PEM; clients must show a certificate that it signed\n"
    "  --http ADDR         unix:PATH or HOST:PORT of the dashboard and of /metrics for "
    "Prometheus,\n"
    "                      which only read (default: none). HOST:PORT asks for a user's token if\n"
    "                      --token-file is given; beyond loopback it needs that and --tls-cert\n"
    "  --http-host NAME    a further name by which browsers and Prometheus reach it, beside\n"
    "                      localhost, this machine's name and addresses in numbers; repeatable\n"
    "  --umask MASK        octal; rights that folders and files of jobs do not give (default\n"
    "                      027: user and group of the controller read them; 022: all\n"
    "                      users do); heddled has the same option, for what it makes\n"
    "  --ephemeral         end when the parent process ends\n"
    "  --end-jobs          end what an earlier controller left running: its jobs have failed,\n"
    "                      its nodes are gone for good (heddle local, whose nodes end with it)\n"
    "  --help, --version\n"
    "\n"
    "Running jobs do not need the controller: they go on while it is away, and report afterwards.\n"
    "Signals: SIGTERM and SIGINT stop it; SIGHUP does not (options, tokens and certificates are\n"
    "read at the start).\n"
    "Environment: HEDDLE_LOG=error|warn|info|debug.\n"
    "\n"
    "example: heddle-controller --state-dir /var/lib/heddle --jobs-dir /shared/heddle\n";

enum option_key {
    OPT_STATE_DIR = 256,
    OPT_LISTEN,
    OPT_JOBS_DIR,
    OPT_CLUSTER,
    OPT_NODE_LOST,
    OPT_TOKEN_FILE,
    OPT_NODE_TOKEN_FILE,
    OPT_TLS_CERT,
    OPT_TLS_KEY,
    OPT_TLS_CA,
    OPT_HTTP,
    OPT_HTTP_HOST,
    OPT_UMASK,
    OPT_EPHEMERAL,
    OPT_END_JOBS,
};

struct program {
    uv_loop_t loop;
    struct controller *controller;
    struct controller_options options;
    struct hd_core_config core_config;
    const char *token_file, *node_token_file, *umask; /* NULL: not given */
    const char *http_hosts[HTTP_HOSTS_MAX];
    struct hd_rpc_tokens tokens;
    struct hd_rpc_tls tls;
    struct hd_text listen;
    bool ephemeral, stopping;
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
        return hd_err(HD_INVALID, "--node-lost-after %s: say %d to %d seconds", value, LEAST, MOST);
    config->lost_ms = seconds * 1000;
    if (config->lost_confirmed_ms > config->lost_ms)
        config->lost_confirmed_ms = config->lost_ms;
    return HD_OK;
}

static enum hd_status take_option(int key, const char *value, struct program *p)
{
    switch (key) {
    case OPT_STATE_DIR:
        p->options.state_dir = value;
        return HD_OK;
    case OPT_LISTEN:
        p->options.listen = value;
        return HD_OK;
    case OPT_JOBS_DIR:
        p->options.jobs_dir = value;
        return HD_OK;
    case OPT_CLUSTER:
        p->options.cluster_file = value;
        return HD_OK;
    case OPT_NODE_LOST:
        return read_node_lost(value, &p->core_config);
    case OPT_TOKEN_FILE:
        p->token_file = value;
        return HD_OK;
    case OPT_NODE_TOKEN_FILE:
        p->node_token_file = value;
        return HD_OK;
    case OPT_TLS_CERT:
        p->tls.cert_path = value;
        return HD_OK;
    case OPT_TLS_KEY:
        p->tls.key_path = value;
        return HD_OK;
    case OPT_TLS_CA:
        p->tls.ca_path = value;
        return HD_OK;
    case OPT_HTTP:
        p->options.http = value;
        return HD_OK;
    case OPT_HTTP_HOST:
        if (p->options.http_host_count == HTTP_HOSTS_MAX)
            return hd_err(HD_INVALID, "--http-host: more than %d names", HTTP_HOSTS_MAX);
        p->http_hosts[p->options.http_host_count++] = value;
        p->options.http_hosts = p->http_hosts;
        return HD_OK;
    case OPT_UMASK:
        p->umask = value;
        return HD_OK;
    case OPT_EPHEMERAL:
        p->ephemeral = true;
        return HD_OK;
    case OPT_END_JOBS:
        p->options.end_jobs = "it was killed before it ended";
        return HD_OK;
    default: /* getopt has told */
        return hd_err(HD_INVALID, "see heddle-controller --help");
    }
}

static enum hd_status read_tokens(struct program *p)
{
    enum hd_status st = HD_OK;

    if (p->node_token_file && !p->token_file)
        return hd_err(HD_INVALID, "--node-token-file without --token-file: no user could come by "
                                  "HOST:PORT; give both");
    if (p->token_file)
        st = hd_rpc_tokens_read(&p->tokens, p->token_file, HD_RPC_PARTY_USER);
    if (!st && p->node_token_file)
        st = hd_rpc_tokens_read(&p->tokens, p->node_token_file, HD_RPC_PARTY_NODE);
    p->options.tokens = &p->tokens;
    return st;
}

static enum hd_status read_options(int argc, char **argv, struct program *p)
{
    static const struct option longs[] = {
        {"state-dir", required_argument, NULL, OPT_STATE_DIR},
        {"listen", required_argument, NULL, OPT_LISTEN},
        {"jobs-dir", required_argument, NULL, OPT_JOBS_DIR},
        {"cluster", required_argument, NULL, OPT_CLUSTER},
        {"node-lost-after", required_argument, NULL, OPT_NODE_LOST},
        {"token-file", required_argument, NULL, OPT_TOKEN_FILE},
        {"node-token-file", required_argument, NULL, OPT_NODE_TOKEN_FILE},
        {"tls-cert", required_argument, NULL, OPT_TLS_CERT},
        {"tls-key", required_argument, NULL, OPT_TLS_KEY},
        {"tls-ca", required_argument, NULL, OPT_TLS_CA},
        {"http", required_argument, NULL, OPT_HTTP},
        {"http-host", required_argument, NULL, OPT_HTTP_HOST},
        {"umask", required_argument, NULL, OPT_UMASK},
        {"ephemeral", no_argument, NULL, OPT_EPHEMERAL},
        {"end-jobs", no_argument, NULL, OPT_END_JOBS},
        {NULL, 0, NULL, 0},
    };
    enum hd_status st = HD_OK;
    int key;

    p->core_config = hd_core_config_default;
    p->options.core_config = &p->core_config;
    while (!st && (key = getopt_long(argc, argv, "", longs, NULL)) != -1)
        st = take_option(key, optarg, p);
    if (!st && optind != argc)
        st = hd_err(HD_INVALID, "\"%s\" is one word too many; see heddle-controller --help",
                    argv[optind]);
    if (!st)
        st = hd_file_set_umask(p->umask);
    if (!st && !p->options.state_dir)
        st = hd_err(HD_INVALID, "--state-dir DIR is missing; see heddle-controller --help");
    if (!st && !p->options.listen) {
        st = hd_rpc_default_listen(&p->listen);
        p->options.listen = p->listen.data;
    }
    if (!st)
        st = hd_rpc_check_address(p->options.listen);
    if (!st && p->options.http_host_count && !p->options.http)
        st = hd_err(HD_INVALID, "--http-host without --http ADDR: there is no door to name");
    if (!st)
        st = read_tokens(p);
    if (p->tls.cert_path || p->tls.key_path || p->tls.ca_path)
        p->options.tls = &p->tls;
    return st;
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

/* Not an end: systemd takes one by SIGHUP for wanted, and would not start the controller again. */
static void on_hangup(uv_signal_t *handle, int number)
{
    (void)handle, (void)number;
    hd_log(HD_LOG_INFO, "SIGHUP: nothing is read again; to read tokens and certificates again, "
                        "restart the controller (running jobs go on)");
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
    p->terminate.data = p->interrupt.data = p->parent_check.data = p;
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
static void tell_ready(const struct program *p)
{
    const char *address = p->options.listen, *colon = strrchr(address, ':');

    if (hd_rpc_address_is_unix(address))
        hd_log(HD_LOG_INFO, "ready on %s, jobs in %s", address, controller_jobs_dir(p->controller));
    else
        hd_log(HD_LOG_INFO, "ready on %.*s:%d, jobs in %s", (int)(colon - address), address,
               controller_port(p->controller), controller_jobs_dir(p->controller));
}

static void tell_http(const struct program *p)
{
    const char *address = p->options.http, *colon = address ? strrchr(address, ':') : NULL;

    if (address && hd_rpc_address_is_unix(address))
        hd_log(HD_LOG_INFO, "dashboard and metrics on %s", address);
    else if (address)
        hd_log(HD_LOG_INFO, "dashboard and metrics on %s://%.*s:%d/",
               p->tls.cert_path ? "https" : "http", (int)(colon - address), address,
               controller_http_port(p->controller));
}

static enum hd_status run(struct program *p)
{
    enum hd_status st;

    if (uv_loop_init(&p->loop) != 0)
        return hd_err(HD_INTERNAL, "cannot make an event loop");
    (void)signal(SIGPIPE, SIG_IGN);
    watch_signals(p);
    p->options.build = HD_BUILD;
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
        tell_ready(p);
        tell_http(p);
        hd_notify_ready();
        (void)uv_run(&p->loop, UV_RUN_DEFAULT);
    }
    (void)uv_loop_close(&p->loop);
    return st;
}

/* ---- backup -----------------------------------------------------------------------------------*/

static enum hd_status read_backup_options(int argc, char **argv, const char **ret_dir,
                                          const char **ret_file)
{
    static const struct option longs[] = {{"state-dir", required_argument, NULL, OPT_STATE_DIR},
                                          {NULL, 0, NULL, 0}};
    int key;

    *ret_dir = *ret_file = NULL;
    while ((key = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (key != OPT_STATE_DIR) /* getopt has told */
            return hd_err(HD_INVALID, "see heddle-controller --help");
        *ret_dir = optarg;
    }
    if (optind < argc)
        *ret_file = argv[optind++];
    if (optind < argc)
        return hd_err(HD_INVALID,
                      "backup: \"%s\" is one word too many; see heddle-controller --help",
                      argv[optind]);
    if (!*ret_file || !**ret_file)
        return hd_err(HD_INVALID, "backup: FILE is missing, the new file to write");
    if (!*ret_dir)
        return hd_err(HD_INVALID, "backup: --state-dir DIR is missing, the controller's");
    return HD_OK;
}

/* argv[0] is "backup". */
static int backup(int argc, char **argv)
{
    struct hd_store_backup made;
    const char *dir, *file;
    char size[32], line[256];
    struct hd_text text = {0};
    enum hd_status st = read_backup_options(argc, argv, &dir, &file);

    if (!st)
        st = hd_store_backup(dir, file, &made);
    if (!st) {
        hd_text_format_bytes(made.size_bytes, size);
        (void)snprintf(line, sizeof line, "%s, %lld job%s, the last is %lld, schema %lld", size,
                       (long long)made.jobs, made.jobs == 1 ? "" : "s", (long long)made.last_job,
                       (long long)made.schema);
        hd_text_add(&text, "%s: %s; checked and on disk\n", file, line);
        st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for a line") : hd_file_print(text.data);
        hd_text_free(&text);
    }
    if (!st)
        return EXIT_SUCCESS;
    hd_log(HD_LOG_ERROR, "%s", hd_err_message());
    return st == HD_INVALID || st == HD_EXISTS || st == HD_NOT_FOUND ? EXIT_USAGE : EXIT_CANNOT;
}

static int print(const char *text)
{
    if (!hd_file_print(text))
        return EXIT_SUCCESS;
    hd_log(HD_LOG_ERROR, "%s", hd_err_message());
    return EXIT_CANNOT;
}

int main(int argc, char **argv)
{
    static struct program program;
    enum hd_status st;

    hd_log_init("heddle-controller", HD_LOG_INFO);
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return print(usage);
    if (argc == 2 && strcmp(argv[1], "--version") == 0)
        return print("heddle-controller " HD_BUILD "\n");
    if (argc > 1 && strcmp(argv[1], "backup") == 0)
        return backup(argc - 1, argv + 1);
    st = read_options(argc, argv, &program);
    if (st) {
        hd_log(HD_LOG_ERROR, "%s", hd_err_message());
        return EXIT_USAGE;
    }
    st = run(&program);
    hd_text_free(&program.listen);
    hd_rpc_tokens_done(&program.tokens);
    if (!st)
        return program.exit_code;
    hd_log(HD_LOG_ERROR, "%s", hd_err_message());
    return st == HD_INVALID || st == HD_DENIED ? EXIT_USAGE : EXIT_CANNOT;
}
