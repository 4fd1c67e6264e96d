/* heddled: the daemon of a node. See agent.h. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "daemon/agent/agent.h"

enum { EXIT_USAGE = 2, EXIT_UNREACHABLE = 3, EXIT_CANNOT = 6 };

static const char usage[] =
    "heddled: runs this machine's share of the cluster's jobs\n"
    "\n"
    "  heddled [--controller ADDR] --state-dir DIR [options]\n"
    "\n"
    "  --controller ADDR   unix:PATH or HOST:PORT (default: $HEDDLE_CONTROLLER, then the user's\n"
    "                      and the system's socket)\n"
    "  --state-dir DIR     folder of this node's records; one heddled at a time uses it\n"
    "  --node-name NAME    unique in the cluster (default: the host's name)\n"
    "  --devices WHAT      auto (default): all GPUs, or one device of all usable cores if no\n"
    "                      GPU works; cpu:N[:T]: N devices of T threads (default: usable cores\n"
    "                      / N); cuda: all GPUs; cuda:0,2 or cuda:GPU-UUID: these GPUs;\n"
    "                      several with + between, such as cuda:0+cpu:2:4\n"
    "  --device-memory SIZE\n"
    "                      memory of each device that a rank may take, such as 24G or 512M: what\n"
    "                      parallel.zero and parallel.pp, where they are auto, are chosen by\n"
    "                      (default: a GPU's own; of a CPU device its share of the machine's)\n"
    "  --data-address ADDR this node's address for ranks of other nodes: a numeric address\n"
    "                      of this machine (default: the one from which it reaches the\n"
    "                      controller; loopback, for daemons of one machine, if that is local)\n"
    "  --choices-dir DIR   where GPUs keep which algorithms of matrix products were the fastest\n"
    "                      (default: choices in --state-dir)\n"
    "  --probe WHEN        first (default): what the CPU devices compute and send in a second is\n"
    "                      measured when they are idle, for at most 60 s, once per machine and\n"
    "                      build; never (default with --ephemeral): only by heddle probe\n"
    "  --ephemeral         end all ranks when heddled ends, and heddled when its parent ends;\n"
    "                      without it, ranks go on and a new heddled finds them\n"
    "  --token-file FILE   this node's token, for a controller at HOST:PORT: one line of its\n"
    "                      --node-token-file (a user's token is refused)\n"
    "  --tls-ca FILE       PEM: the CA of the controller's certificate (needed beyond loopback)\n"
    "  --tls-cert FILE, --tls-key FILE\n"
    "                      this node's own certificate, if the controller asks for one\n"
    "  --supervisor-lost-after SECONDS\n"
    "                      a supervisor that has not answered for so long, and whose ranks make\n"
    "                      no steps, is killed with its ranks (default: 60, at least 20)\n"
    "  --worker PATH       the heddle-worker to run (default: beside heddled)\n"
    "  --http ADDR         unix:PATH or HOST:PORT of /metrics for Prometheus (default: none); "
    "beyond\n"
    "                      loopback it needs --http-token-file, and --tls-cert with --tls-key\n"
    "  --http-token-file FILE\n"
    "                      tokens of those who may read it, as lines NAME TOKEN (without it, on\n"
    "                      loopback, all users of this machine may)\n"
    "  --http-host NAME    a further name by which Prometheus reaches it; repeatable\n"
    "  --umask MASK        octal; rights that folders and files of jobs do not give (default\n"
    "                      027: user and group of heddled read them; 022: all users do)\n"
    "  --doctor [-o json]  check what this node needs (programs, GPUs, memory, the options\n"
    "                      given here), print what is wrong and what helps, and end: with 0 if\n"
    "                      nothing is wrong, else with 1\n"
    "  --jobs-dir DIR      with --doctor: the controller's jobs directory, checked from here\n"
    "  --help, --version\n"
    "\n"
    "Signals: SIGTERM and SIGINT leave ranks running, unless --ephemeral. SIGHUP checks the GPUs "
    "at\n"
    "once, and offers those again that an error in the kernel's log has withdrawn.\n"
    "Environment: HEDDLE_LOG=error|warn|info|debug.\n"
    "\n"
    "example: heddled --controller unix:/run/heddle/controller.sock \\\n"
    "             --state-dir /var/lib/heddle/node --devices cpu:2\n";

enum heddled_option {
    OPT_CONTROLLER = 256,
    OPT_STATE_DIR,
    OPT_NODE_NAME,
    OPT_DEVICES,
    OPT_DEVICE_MEMORY,
    OPT_DATA_ADDRESS,
    OPT_CHOICES_DIR,
    OPT_EPHEMERAL,
    OPT_PROBE,
    OPT_TOKEN_FILE,
    OPT_TLS_CA,
    OPT_TLS_CERT,
    OPT_TLS_KEY,
    OPT_WORKER,
    OPT_SUPERVISOR_LOST,
    OPT_HTTP,
    OPT_HTTP_TOKEN_FILE,
    OPT_HTTP_HOST,
    OPT_UMASK,
    OPT_DOCTOR,
    OPT_JOBS_DIR,
};

static enum hd_status read_seconds(const char *name, const char *value, int64_t *ret_ms)
{
    enum { LEAST = 20, MOST = 24 * 3600 };
    char *end;
    const long seconds = strtol(value, &end, 10);

    if (end == value || *end || seconds < LEAST || seconds > MOST)
        return hd_err(HD_INVALID, "%s %s: say %d to %d seconds", name, value, LEAST, MOST);
    *ret_ms = seconds * 1000;
    return HD_OK;
}

static enum hd_status take_option(int key, const char *value, struct agent_options *options)
{
    enum hd_status st;

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
        st = hd_text_to_bytes(value, 1 << 20, &options->device_memory_bytes);
        return st ? hd_err_prefix(st, "--device-memory") : HD_OK;
    case OPT_DATA_ADDRESS:
        options->data_address = value;
        return HD_OK;
    case OPT_CHOICES_DIR:
        options->choices_dir = value;
        return HD_OK;
    case OPT_EPHEMERAL:
        options->ephemeral = true;
        return HD_OK;
    case OPT_PROBE:
        options->probe = value;
        if (strcmp(value, "first") != 0 && strcmp(value, "never") != 0)
            return hd_err(HD_INVALID, "--probe %s: say first or never", value);
        return HD_OK;
    case OPT_TOKEN_FILE:
        options->token_file = value;
        return HD_OK;
    case OPT_TLS_CA:
        options->tls.ca_path = value;
        options->has_tls = true;
        return HD_OK;
    case OPT_TLS_CERT:
        options->tls.cert_path = value;
        options->has_tls = true;
        return HD_OK;
    case OPT_TLS_KEY:
        options->tls.key_path = value;
        options->has_tls = true;
        return HD_OK;
    case OPT_WORKER:
        options->worker = value;
        return HD_OK;
    case OPT_SUPERVISOR_LOST:
        return read_seconds("--supervisor-lost-after", value, &options->supervisor_lost_ms);
    case OPT_HTTP:
        options->http = value;
        return HD_OK;
    case OPT_HTTP_TOKEN_FILE:
        options->http_token_file = value;
        return HD_OK;
    case OPT_HTTP_HOST:
        if (options->http_host_count == AGENT_HTTP_HOSTS_MAX)
            return hd_err(HD_INVALID, "--http-host: more than %d names", AGENT_HTTP_HOSTS_MAX);
        options->http_hosts[options->http_host_count++] = value;
        return HD_OK;
    case OPT_UMASK:
        options->umask = value;
        return HD_OK;
    case OPT_DOCTOR:
        options->doctor = true;
        return HD_OK;
    case OPT_JOBS_DIR:
        options->jobs_dir = value;
        return HD_OK;
    case 'o':
        options->json = strcmp(value, "json") == 0;
        if (!options->json && strcmp(value, "table") != 0)
            return hd_err(HD_INVALID, "-o %s: say table or json", value);
        return HD_OK;
    default:
        return hd_err(HD_INVALID, "see heddled --help");
    }
}

static enum hd_status read_options(int argc, char **argv, struct agent_options *ret_options)
{
    static const struct option longs[] = {
        {"controller", required_argument, NULL, OPT_CONTROLLER},
        {"state-dir", required_argument, NULL, OPT_STATE_DIR},
        {"node-name", required_argument, NULL, OPT_NODE_NAME},
        {"devices", required_argument, NULL, OPT_DEVICES},
        {"device-memory", required_argument, NULL, OPT_DEVICE_MEMORY},
        {"data-address", required_argument, NULL, OPT_DATA_ADDRESS},
        {"choices-dir", required_argument, NULL, OPT_CHOICES_DIR},
        {"ephemeral", no_argument, NULL, OPT_EPHEMERAL},
        {"probe", required_argument, NULL, OPT_PROBE},
        {"token-file", required_argument, NULL, OPT_TOKEN_FILE},
        {"tls-ca", required_argument, NULL, OPT_TLS_CA},
        {"tls-cert", required_argument, NULL, OPT_TLS_CERT},
        {"tls-key", required_argument, NULL, OPT_TLS_KEY},
        {"worker", required_argument, NULL, OPT_WORKER},
        {"supervisor-lost-after", required_argument, NULL, OPT_SUPERVISOR_LOST},
        {"http", required_argument, NULL, OPT_HTTP},
        {"http-token-file", required_argument, NULL, OPT_HTTP_TOKEN_FILE},
        {"http-host", required_argument, NULL, OPT_HTTP_HOST},
        {"umask", required_argument, NULL, OPT_UMASK},
        {"doctor", no_argument, NULL, OPT_DOCTOR},
        {"jobs-dir", required_argument, NULL, OPT_JOBS_DIR},
        {"output", required_argument, NULL, 'o'},
        {NULL, 0, NULL, 0},
    };
    enum hd_status st = HD_OK;
    int key;

    while (!st && (key = getopt_long(argc, argv, "o:", longs, NULL)) != -1)
        st = take_option(key, optarg, ret_options);
    if (!st && optind != argc)
        st = hd_err(HD_INVALID, "unexpected argument \"%s\"; see heddled --help", argv[optind]);
    if (!st && !ret_options->doctor && (ret_options->jobs_dir || ret_options->json))
        st = hd_err(HD_INVALID, "--jobs-dir and -o belong to --doctor; see heddled --help");
    if (!st && !ret_options->doctor && ret_options->data_address)
        st = agent_address_check(ret_options->data_address);
    if (!st && !ret_options->doctor && !ret_options->state_dir)
        st = hd_err(HD_INVALID, "--state-dir DIR is missing; see heddled --help");
    return st;
}

static int exit_code_of(enum hd_status st)
{
    return st == HD_INVALID || st == HD_UNSUPPORTED ? EXIT_USAGE
           : st == HD_UNAVAILABLE                   ? EXIT_UNREACHABLE
                                                    : EXIT_CANNOT;
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
    static struct agent agent;
    enum hd_status st;

    hd_log_init("heddled", HD_LOG_INFO);
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return print(usage);
    if (argc == 2 && strcmp(argv[1], "--version") == 0)
        return print("heddled " HD_BUILD "\n");
    st = read_options(argc, argv, &agent.options);
    if (st) {
        hd_log(HD_LOG_ERROR, "%s", hd_err_message());
        return EXIT_USAGE;
    }
    if (agent.options.doctor) {
        int exit_code = EXIT_FAILURE;

        st = agent_doctor(&agent, &exit_code);
        if (st)
            hd_log(HD_LOG_ERROR, "%s", hd_err_message());
        return st ? exit_code_of(st) : exit_code;
    }
    st = agent_open(&agent);
    if (st) {
        hd_log(HD_LOG_ERROR, "%s", hd_err_message());
        return exit_code_of(st);
    }
    return agent_run(&agent);
}
