#include "daemon/agent/settings.h"

static const char *const usages[] = {
    "[--config FILE] [--controller ADDR] --state-dir DIR [OPTION]...",
    "join LINE|- --state-dir DIR [--node-name NAME] [--if-needed]",
    "--doctor [OPTION]... [-o json]",
    "config show|example [OPTION]... [-o json]",
    "--check-config [OPTION]...",
    NULL,
};

static const struct hd_setting settings[] = {
    {OPT_CONFIG, "config", 0, "FILE", 0, NULL,
     "configuration file (YAML): its keys are the options below, such as state_dir: DIR; an option "
     "on the command line wins"},
    {OPT_CHECK_CONFIG, "check-config", 0, NULL, 0, NULL,
     "check options, configuration file, token and certificates, say what is wrong, and end"},
    {OPT_CONTROLLER, "controller", 0, "ADDR", HD_SETTING_FILE, NULL,
     "unix:PATH or HOST:PORT (default: $HEDDLE_CONTROLLER, then the user's and the system's "
     "socket)"},
    {OPT_STATE_DIR, "state-dir", 0, "DIR", HD_SETTING_FILE | HD_SETTING_PATH, NULL,
     "folder of this node's records; one heddled at a time uses it"},
    {OPT_NODE_NAME, "node-name", 0, "NAME", HD_SETTING_FILE, NULL,
     "unique in the cluster (default: the host's name)"},
    {OPT_DEVICES, "devices", 0, "WHAT", HD_SETTING_FILE, "auto",
     "auto: all GPUs, or one device of all usable cores if no GPU works; cpu:N[:T]: N devices of T "
     "threads (else usable cores / N); cuda: all GPUs; cuda:0,2 or cuda:GPU-UUID: these GPUs; "
     "several with + between, such as cuda:0+cpu:2:4"},
    {OPT_DEVICE_MEMORY, "device-memory", 0, "SIZE", HD_SETTING_FILE, NULL,
     "memory of each device that a rank may take, such as 24G or 512MiB: what parallel.zero and "
     "parallel.pp, where they are auto, are chosen by (default: a GPU's own; of a CPU device its "
     "share of the machine's)"},
    {OPT_DATA_ADDRESS, "data-address", 0, "ADDR", HD_SETTING_FILE, NULL,
     "this node's address for ranks of other nodes: a numeric address of this machine (default: "
     "the "
     "one from which it reaches the controller; loopback, for daemons of one machine, if that is "
     "local)"},
    {OPT_CHOICES_DIR, "choices-dir", 0, "DIR", HD_SETTING_FILE | HD_SETTING_PATH, NULL,
     "where GPUs keep which algorithms of matrix products were the fastest (default: choices in "
     "--state-dir)"},
    {OPT_PROBE, "probe", 0, "WHEN", HD_SETTING_FILE, NULL,
     "first: what the devices compute and send in a second is measured when they are idle and "
     "other "
     "programs leave the processors free, for at most 60 s, once per machine and build; anyway: "
     "also "
     "while other programs run; never: only by heddle probe (default: first; never with "
     "--ephemeral)"},
    {OPT_LOG_LIMIT, "log-limit", 0, "SIZE", HD_SETTING_FILE, "256M",
     "of each rank's log: of a larger one the beginning and the end are kept, and a line between "
     "them says what is missing; 1M at least, 0: no limit"},
    {OPT_MIN_FREE, "min-free", 0, "PERCENT", HD_SETTING_FILE, NULL,
     "with less than this of the disk of the jobs directory or of --state-dir free, the node takes "
     "no new jobs, and heddle nodes says why; 0: it takes them always (default: 5; 0 with "
     "--ephemeral)"},
    {OPT_EPHEMERAL, "ephemeral", 0, NULL, 0, NULL,
     "end all ranks when heddled ends, and heddled when its parent ends; without it, ranks go on "
     "and a new heddled finds them"},
    {OPT_LEAVE_WITHIN, "leave-within", 0, "SECONDS", HD_SETTING_FILE, NULL,
     "SIGTERM ends the ranks, too, as where heddled is the first process of a container: the node "
     "takes no new jobs, those that run here write a checkpoint, to go on elsewhere or later, and "
     "ranks that are left after SECONDS are killed; a second SIGTERM kills them at once (without "
     "it, ranks go on and a new heddled finds them)"},
    {OPT_TOKEN_FILE, "token-file", 0, "FILE", HD_SETTING_FILE | HD_SETTING_PATH, NULL,
     "this node's token, for a controller at HOST:PORT: one line of its --node-token-file (a "
     "user's "
     "token is refused)"},
    {OPT_TLS_CA, "tls-ca", 0, "FILE", HD_SETTING_FILE | HD_SETTING_PATH, NULL,
     "PEM: the CA of the controller's certificate (needed beyond loopback)"},
    {OPT_TLS_CERT, "tls-cert", 0, "FILE", HD_SETTING_FILE | HD_SETTING_PATH, NULL,
     "PEM: this node's own certificate, if the controller asks for one"},
    {OPT_TLS_KEY, "tls-key", 0, "FILE", HD_SETTING_FILE | HD_SETTING_PATH, NULL,
     "PEM: the key of --tls-cert"},
    {OPT_SUPERVISOR_LOST, "supervisor-lost-after", 0, "SECONDS", HD_SETTING_FILE | HD_SETTING_LIVE,
     "60",
     "a supervisor that has not answered for so long, 20 s at least, and whose ranks make no "
     "steps, "
     "is killed with its ranks"},
    {OPT_LAUNCHER, "launcher", 0, "PATH", HD_SETTING_FILE | HD_SETTING_PATH, NULL,
     "socket of heddle-launcher, which has supervisors started by systemd in units of their own "
     "(default: they are children of heddled)"},
    {OPT_ISOLATION, "isolation", 0, "WORD", HD_SETTING_FILE, "try",
     "try: the memory of a job's ranks is bounded and they lock themselves in, as far as this "
     "machine can; require: jobs do not run without all locks; off: neither (docs/isolation.md)"},
    {OPT_CGROUP, "cgroup", 0, "DIR", HD_SETTING_FILE | HD_SETTING_PATH, NULL,
     "a folder of cgroup v2 that is delegated to heddled's user, in which each attempt gets a "
     "group "
     "(default: with --launcher the attempt's unit; else the supervisors look at the memory)"},
    {OPT_DATA_ROOTS, "data-roots", 0, "DIR[:DIR]", HD_SETTING_FILE, NULL,
     "folders below which the data, tokenizers and weights of jobs must lie, without links "
     "(default: whatever heddled's user may read)"},
    {OPT_JOB_CPUS, "job-cpus", 0, "LIST", HD_SETTING_FILE, NULL,
     "processors that this daemon and its jobs use, such as 2-15 (default: all that it may)"},
    {OPT_MEMORY_SLACK, "memory-slack", 0, "SIZE", HD_SETTING_FILE, "4G",
     "memory that each rank may take beside what its plan has; more ends its job with the cause "
     "oom"},
    {OPT_WORKER, "worker", 0, "PATH", HD_SETTING_FILE | HD_SETTING_PATH, NULL,
     "the heddle-worker to run (default: beside heddled)"},
    {OPT_HTTP, "http", 0, "ADDR", HD_SETTING_FILE, NULL,
     "unix:PATH or HOST:PORT of /metrics for Prometheus (default: none); beyond loopback it needs "
     "--http-token-file, and --tls-cert with --tls-key (docs/metrics.md)"},
    {OPT_HTTP_TOKEN_FILE, "http-token-file", 0, "FILE", HD_SETTING_FILE | HD_SETTING_PATH, NULL,
     "tokens of those who may read /metrics, as lines NAME TOKEN (without it, on loopback, all "
     "users of this machine may)"},
    {OPT_HTTP_HOST, "http-host", 0, "NAME", HD_SETTING_FILE, NULL,
     "a further name by which Prometheus reaches it, beside localhost, this machine's name and "
     "addresses in numbers"},
    {OPT_LOG_FORMAT, "log-format", 0, "FORMAT", HD_SETTING_FILE, "text",
     "of this program's own log on standard error: text, or json for one object a line; where that "
     "is the journal of systemd, either has the level that journalctl -p asks for"},
    {OPT_UMASK, "umask", 0, "MASK", HD_SETTING_FILE | HD_SETTING_LIVE, "027",
     "octal; rights that folders and files of jobs do not give (027: user and group of heddled "
     "read them; 022: all users do)"},
    {OPT_IF_NEEDED, "if-needed", 0, NULL, 0, NULL,
     "of join: does nothing if the state directory has a certificate that is valid"},
    {OPT_DOCTOR, "doctor", 0, NULL, 0, NULL,
     "check what this node needs (programs, GPUs, memory, the options given here), print what is "
     "wrong and what helps, and end: with 0 if nothing is wrong, else with 1"},
    {OPT_JOBS_DIR, "jobs-dir", 0, "DIR", 0, NULL,
     "with --doctor: the controller's jobs directory, checked from here"},
    {OPT_OUTPUT, "output", 'o', "FORMAT", 0, NULL, "of --doctor and config show: table or json"},
    {OPT_HELP, "help", 0, NULL, 0, NULL, "print this, and end"},
    {OPT_VERSION, "version", 0, NULL, 0, NULL, "print version and commit, and end"},
};

const struct hd_program_table heddled_program = {
    .name = "heddled",
    .summary = "runs this machine's share of the cluster's jobs",
    .usages = usages,
    .settings = settings,
    .setting_count = sizeof settings / sizeof settings[0],
    .notes =
        "config show prints every key with its value and where it came from; config example prints "
        "a "
        "configuration file with all of them.\n"
        "\n"
        "join makes this machine a node of the cluster whose controller has printed LINE (heddle "
        "node invite): key and certificate come to tls in the state directory, and heddled finds "
        "the controller and its own name there. With a LINE for many nodes (heddle node invite "
        "'gpu-*') --node-name says which this is.\n"
        "\n"
        "Signals: SIGTERM and SIGINT leave ranks running, unless --ephemeral or --leave-within. "
        "SIGHUP checks the "
        "GPUs at once, offers those again that an error in the kernel's log has withdrawn, reads "
        "the configuration file again, and logs what has changed and what waits for a restart.\n"
        "\n"
        "Environment: HEDDLE_LOG=error|warn|info|debug.\n",
    .example =
        "heddled --controller 10.0.0.1:7070 --state-dir /var/lib/heddle/node --devices cpu:2",
    .config_path = "/etc/heddle/node.yaml",
};
