#include "controller/settings.h"

static const char *const usages[] = {
    "[--config FILE] --state-dir DIR [OPTION]...",
    "init --state-dir DIR [--host NAME,..] [--if-needed]",
    "backup FILE --state-dir DIR",
    "restore [FILE] --state-dir DIR [--empty] [--revoke]",
    "adopt [empty] --state-dir DIR [--jobs-dir DIR]",
    "config show|example [OPTION]... [-o json]",
    "--check-config [OPTION]...",
    NULL,
};

static const struct hd_setting settings[] = {
    {OPT_CONFIG, "config", 0, "FILE", 0, NULL,
     "configuration file (YAML): its keys are the options below, such as state_dir: DIR; an option "
     "on the command line wins"},
    {OPT_CHECK_CONFIG, "check-config", 0, NULL, 0, NULL,
     "check options, configuration file, tokens and certificates, say what is wrong, and end"},
    {OPT_STATE_DIR, "state-dir", 0, "DIR", HD_SETTING_FILE | HD_SETTING_PATH, NULL,
     "what must not be lost (SQLite; never on NFS); one controller uses it"},
    {OPT_STATE_RESERVE, "state-reserve", 0, "SIZE", HD_SETTING_FILE, "16M",
     "room on the disk of the state directory, at most a sixteenth of it, that is kept for "
     "cancels, "
     "drains and ends of jobs when the disk is full; 0: none"},
    {OPT_LISTEN, "listen", 0, "ADDR", HD_SETTING_FILE, NULL,
     "unix:PATH or HOST:PORT (default: the system's socket for root, else the user's); HOST:PORT "
     "takes as many connections as the limit of open files less 128, a fourth of them from one "
     "address. Of several --listen the last counts"},
    {OPT_ALSO_LISTEN, "also-listen", 0, "ADDR", HD_SETTING_FILE, NULL,
     "a second address, such as the Unix socket beside HOST:PORT"},
    {OPT_SOCKET_GROUP, "socket-group", 0, "GROUP", HD_SETTING_FILE, NULL,
     "users of this group may use the Unix socket, too; what they may do there the policy says "
     "(without it: nothing)"},
    {OPT_POLICY, "policy", 0, "FILE", HD_SETTING_FILE | HD_SETTING_PATH | HD_SETTING_LIVE, NULL,
     "roles of names, who sees whose jobs, and limits (docs/operations.md). Read again by a "
     "reload"},
    {OPT_CERTIFICATE_LIFE, "certificate-life", 0, "TIME", HD_SETTING_FILE, "30d",
     "how long certificates of nodes and people live, a minute at least; nodes renew theirs after "
     "two thirds of it"},
    {OPT_HOST, "host", 0, "NAME,..", 0, NULL,
     "of init: names or addresses under which the controller is reached, besides this machine's "
     "own"},
    {OPT_IF_NEEDED, "if-needed", 0, NULL, 0, NULL,
     "of init: does nothing where the state directory has a certificate authority"},
    {OPT_EMPTY, "empty", 0, NULL, 0, NULL,
     "of restore: DIR is an empty folder, in which no controller has worked yet"},
    {OPT_REVOKE, "revoke", 0, NULL, 0, NULL,
     "of restore: ends all tokens, people's certificates and invitations, because those that were "
     "revoked after the backup would be valid again (nodes keep their certificates)"},
    {OPT_JOBS_DIR, "jobs-dir", 0, "DIR", HD_SETTING_FILE | HD_SETTING_PATH, NULL,
     "logs and checkpoints of jobs, the same path on every node of a job (default: jobs in the "
     "state directory)"},
    {OPT_CLUSTER, "cluster", 0, "FILE", HD_SETTING_FILE | HD_SETTING_PATH, NULL,
     "cluster file that names the nodes and says which of them share a switch (docs/planning.md); "
     "jobs on several nodes then span few switches"},
    {OPT_NODE_LOST, "node-lost-after", 0, "SECONDS", HD_SETTING_FILE, "180",
     "a node that is silent for so long, 30 s at least, is lost, and its jobs are started "
     "elsewhere "
     "from their newest checkpoints"},
    {OPT_SPARE_NODES, "spare-nodes", 0, "COUNT", HD_SETTING_FILE, "0",
     "nodes of each kind that are kept free, so that a job that loses a node starts again at once "
     "(docs/scheduling.md)"},
    {OPT_TOKEN_FILE, "token-file", 0, "FILE", HD_SETTING_FILE | HD_SETTING_PATH | HD_SETTING_LIVE,
     NULL,
     "tokens of users; HOST:PORT needs it. A line is NAME TOKEN, and jobs belong to NAME; one line "
     "may be a TOKEN alone, without a name. Read again by a reload"},
    {OPT_NODE_TOKEN_FILE, "node-token-file", 0, "FILE",
     HD_SETTING_FILE | HD_SETTING_PATH | HD_SETTING_LIVE, NULL,
     "tokens of nodes, without which none comes by HOST:PORT: a TOKEN alone for all nodes, or "
     "lines "
     "NAME TOKEN, each for the node NAME. Read again by a reload"},
    {OPT_TLS_CERT, "tls-cert", 0, "FILE", HD_SETTING_FILE | HD_SETTING_PATH, NULL,
     "PEM; with --tls-key needed to listen beyond loopback"},
    {OPT_TLS_KEY, "tls-key", 0, "FILE", HD_SETTING_FILE | HD_SETTING_PATH, NULL,
     "PEM; the key of --tls-cert"},
    {OPT_TLS_CA, "tls-ca", 0, "FILE", HD_SETTING_FILE | HD_SETTING_PATH, NULL,
     "PEM; clients must show a certificate that it signed"},
    {OPT_HTTP, "http", 0, "ADDR", HD_SETTING_FILE, NULL,
     "unix:PATH or HOST:PORT of the dashboard and of /metrics for Prometheus, which only read "
     "(default: none). HOST:PORT asks for a person's token if there are any; beyond loopback it "
     "needs them, and --tls-cert (docs/metrics.md)"},
    {OPT_HTTP_HOST, "http-host", 0, "NAME,..", HD_SETTING_FILE, NULL,
     "further names by which browsers and Prometheus reach it, beside localhost, this machine's "
     "name and addresses in numbers"},
    {OPT_LOG_FORMAT, "log-format", 0, "FORMAT", HD_SETTING_FILE, "text",
     "of this program's own log on standard error: text, or json for one object a line; where that "
     "is the journal of systemd, either has the level that journalctl -p asks for"},
    {OPT_UMASK, "umask", 0, "MASK", HD_SETTING_FILE | HD_SETTING_LIVE, "027",
     "octal; rights that folders and files of jobs do not give (027: user and group of the "
     "controller read them; 022: all users do); heddled has the same option, for what it makes"},
    {OPT_EPHEMERAL, "ephemeral", 0, NULL, 0, NULL, "end when the parent process ends"},
    {OPT_END_JOBS, "end-jobs", 0, NULL, 0, NULL,
     "end what an earlier controller left running: its jobs have failed, its nodes are gone for "
     "good (heddle local, whose nodes end with it)"},
    {OPT_OUTPUT, "output", 'o', "FORMAT", 0, NULL, "of config show: table or json"},
    {OPT_HELP, "help", 0, NULL, 0, NULL, "print this, and end"},
    {OPT_VERSION, "version", 0, NULL, 0, NULL, "print version and commit, and end"},
};

const struct hd_program_table controller_program = {
    .name = "heddle-controller",
    .summary = "accepts jobs, places them on nodes, restarts them, remembers everything",
    .usages = usages,
    .settings = settings,
    .setting_count = sizeof settings / sizeof settings[0],
    .notes =
        "init makes, once, the state directory, a certificate authority, the controller's "
        "certificate and the first admin's token, and says where they are. With an authority "
        "HOST:PORT needs neither --token-file nor --tls-cert: people come with tokens of heddle "
        "token create, nodes by heddle node invite and heddled join.\n"
        "\n"
        "backup copies the database to the new FILE, also while the controller runs, and checks "
        "the "
        "copy. restore puts such a FILE in the place of the database of a stopped controller, and "
        "has "
        "the next start take over from every other controller of the cluster; without FILE, a "
        "database that is there already, which is a copy or was taken over from "
        "(docs/operations.md, \"Backup\"). DIR is the former state directory, or with --empty an "
        "empty folder. config show prints every key with its "
        "value and where it came from; config example prints a configuration file with all of "
        "them.\n"
        "\n"
        "Running jobs do not need the controller: they go on while it is away, and report "
        "afterwards.\n"
        "\n"
        "Signals: SIGTERM and SIGINT stop it. SIGHUP reads the configuration file, tokens and "
        "certificates again, and logs what has changed and what waits for a restart; with a "
        "mistake in them it logs that, and everything stays as it was.\n"
        "\n"
        "Environment: HEDDLE_LOG=error|warn|info|debug.\n",
    .example = "heddle-controller --state-dir /var/lib/heddle/controller --jobs-dir /shared/heddle",
    .config_path = "/etc/heddle/controller.yaml",
};
