/* heddle-supervisor: started by heddled, once per attempt and node. See supervisor.h. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/process.h"
#include "daemon/isolation/cpus.h"
#include "daemon/isolation/environment.h"
#include "daemon/supervisor/log_bound.h"
#include "daemon/supervisor/supervisor.h"
#include "version/version.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };
static const int64_t SLACK_BYTES = INT64_C(4) << 30;

static const char usage[] =
    "heddle-supervisor: runs the ranks of one attempt on this node\n"
    "\n"
    "  heddle-supervisor --job FILE --run-dir DIR --ranks R[,R..] --world W [options]\n"
    "\n"
    "heddled starts it; there is no need to call it by hand.\n"
    "\n"
    "  --job FILE           the resolved job\n"
    "  --run-dir DIR        folder of its records; no second supervisor may use it\n"
    "  --ranks R[,R..]      the ranks to run here\n"
    "  --world W            ranks of the attempt on all nodes\n"
    "  --gpus U[,U..]       UUID of each rank's GPU; a rank sees no other\n"
    "  --choices-dir DIR    folder for the ranks' timed choices of algorithms\n"
    "  --data-address ADDR  this node's address for ranks of other nodes\n"
    "  --node NAME          this node's name, for messages\n"
    "  --worker PATH        the heddle-worker to run (default: beside this program)\n"
    "  --log FILE           append standard output and error to it\n"
    "  --log-limit BYTES    of each rank's log, of which the beginning and the end are\n"
    "                       kept; 0: no limit (default: 268435456)\n"
    "  --parent PID         end all ranks when this process, the caller, ends\n"
    "  --isolation WORD     require, try (default) or off: ranks enter a sandbox, and\n"
    "                       their memory is bounded\n"
    "  --data-roots D[:D]   folders below which a job's data may lie (default: all)\n"
    "  --group DIR|unit     control group in which the ranks' own is made; unit: the one\n"
    "                       of this process, delegated by systemd\n"
    "  --daemon-uid UID     heddled's user, if this is another one: it may connect\n"
    "  --cpus LIST          CPUs that ranks may use, such as 2-15\n"
    "  --memory SIZE        memory limit of the ranks until their plan is known\n"
    "  --memory-slack SIZE  memory of each rank besides its plan (default: 4G)\n"
    "  --silence-limit-ms N a rank that sends nothing for N ms hangs\n"
    "                       (default: a limit per phase, learned or from the job)\n"
    "  --help, --version\n"
    "\n"
    "example: heddle-supervisor --job /jobs/7/attempt-1/nodes/n1/job \\\n"
    "             --run-dir /jobs/7/attempt-1/nodes/n1 --ranks 0,1 --world 2 --node n1\n";

static enum hd_status read_ranks(const char *text, struct sup_options *options)
{
    char copy[HD_ATTEMPT_RANKS_MAX * 24], *rest = copy, *word;
    int64_t rank;

    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy)
        return hd_err(HD_INVALID, "--ranks is too long");
    while ((word = strsep(&rest, ","))) {
        if (options->rank_count == HD_ATTEMPT_RANKS_MAX)
            return hd_err(HD_LIMIT, "--ranks: one node runs at most %d", HD_ATTEMPT_RANKS_MAX);
        if (hd_text_to_int64(word, 0, HD_LINK_RANKS_MAX - 1, &rank))
            return hd_err(HD_INVALID, "--ranks: %s is not a rank", word);
        for (int i = 0; i < options->rank_count; i++)
            if (options->ranks[i] == rank)
                return hd_err(HD_INVALID, "--ranks: %s is given twice", word);
        options->ranks[options->rank_count++] = rank;
    }
    return HD_OK;
}

static enum hd_status read_gpus(const char *text, struct sup_options *options)
{
    while (*text) {
        const size_t n = strcspn(text, ",");

        if (options->gpu_count == HD_ATTEMPT_RANKS_MAX || !n || n >= sizeof options->gpus[0])
            return hd_err(HD_INVALID, "--gpus: %s is not a list of at most %d UUIDs", text,
                          HD_ATTEMPT_RANKS_MAX);
        (void)snprintf(options->gpus[options->gpu_count++], sizeof options->gpus[0], "%.*s", (int)n,
                       text);
        text += n + (text[n] == ',');
    }
    return HD_OK;
}

static enum hd_status read_path(const char *flag, const char *text, char ret_path[PATH_MAX])
{
    return realpath(text, ret_path)
               ? HD_OK
               : hd_err(HD_INVALID, "%s: cannot find %s: %s", flag, text, strerror(errno));
}

static enum hd_status default_worker(char ret_path[PATH_MAX])
{
    char self[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    if (n < 0)
        return hd_err(HD_IO, "cannot find this program's own file: %s", strerror(errno));
    self[n] = '\0';
    (void)snprintf(ret_path, PATH_MAX, "%s/heddle-worker", dirname(self));
    return HD_OK;
}

static enum hd_status open_log(const char *path)
{
    const int fd =
        open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, HD_ATTEMPT_FILE_MODE);

    if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
        return hd_err(HD_IO, "--log: cannot open %s: %s", path, strerror(errno));
    (void)close(fd);
    return HD_OK;
}

static enum hd_status take_text(const char *flag, const char *text, char *ret_text, size_t size)
{
    if (strlen(text) >= size)
        return hd_err(HD_INVALID, "%s is too long", flag);
    memcpy(ret_text, text, strlen(text) + 1);
    return HD_OK;
}

static enum hd_status read_isolation(const char *text, struct sup_options *options)
{
    if (strcmp(text, "require") != 0 && strcmp(text, "try") != 0 && strcmp(text, "off") != 0)
        return hd_err(HD_INVALID, "--isolation: say require, try or off, not %s", text);
    return take_text("--isolation", text, options->isolation, sizeof options->isolation);
}

static enum hd_status read_option(int option, const char *text, struct sup_options *options)
{
    int64_t number;
    enum hd_status st;

    switch (option) {
    case 'j':
        return read_path("--job", text, options->job_file);
    case 'd':
        return read_path("--run-dir", text, options->run_dir);
    case 'r':
        return read_ranks(text, options);
    case 'w':
        return hd_text_to_int64(text, 1, HD_LINK_RANKS_MAX, &options->world);
    case 'g':
        return read_gpus(text, options);
    case 'n':
        (void)snprintf(options->node, sizeof options->node, "%s", text);
        return HD_OK;
    case 'a':
        (void)snprintf(options->data_address, sizeof options->data_address, "%s", text);
        return HD_OK;
    case 'c':
        if (text[0] != '/' || strlen(text) >= sizeof options->choices_dir)
            return hd_err(HD_INVALID, "--choices-dir: %s is no absolute path of less than %d bytes",
                          text, PATH_MAX);
        memcpy(options->choices_dir, text, strlen(text) + 1);
        return HD_OK;
    case 'W':
        return read_path("--worker", text, options->worker);
    case 'l':
        return open_log(text);
    case 'p':
        st = hd_text_to_int64(text, 1, INT32_MAX, &number);
        options->parent = st ? 0 : (pid_t)number;
        return st;
    case 'i':
        return read_isolation(text, options);
    case 'D':
        return take_text("--data-roots", text, options->data_roots, sizeof options->data_roots);
    case 'G':
        return take_text("--group", text, options->group, sizeof options->group);
    case 'u':
        st = hd_text_to_int64(text, 1, UINT32_MAX - 1, &number);
        options->daemon_uid = st ? options->daemon_uid : (uid_t)number;
        return st;
    case 'C':
        st = take_text("--cpus", text, options->cpus, sizeof options->cpus);
        return st ? st : hd_cpus_check(text);
    case 'M':
        return hd_text_to_bytes(text, 1, &options->memory_bytes);
    case 'S':
        return hd_text_to_bytes(text, 1, &options->slack_bytes);
    case 'L':
        st = hd_text_to_int64(text, 0, INT64_MAX, &options->log_limit_bytes);
        if (!st && options->log_limit_bytes && options->log_limit_bytes < SUP_LOG_LIMIT_MIN)
            st = hd_err(HD_INVALID, "--log-limit: %s is less than %d", text, SUP_LOG_LIMIT_MIN);
        return st;
    case 's':
        return hd_text_to_int64(text, 1, INT64_C(1) << 40, &options->hang_limit_ms);
    default:
        return hd_err(HD_INVALID, "unknown option; see --help");
    }
}

static enum hd_status read_options(int argc, char **argv, struct sup_options *ret_options)
{
    static const struct option longs[] = {
        {"job", required_argument, NULL, 'j'},
        {"run-dir", required_argument, NULL, 'd'},
        {"ranks", required_argument, NULL, 'r'},
        {"world", required_argument, NULL, 'w'},
        {"gpus", required_argument, NULL, 'g'},
        {"node", required_argument, NULL, 'n'},
        {"data-address", required_argument, NULL, 'a'},
        {"choices-dir", required_argument, NULL, 'c'},
        {"worker", required_argument, NULL, 'W'},
        {"log", required_argument, NULL, 'l'},
        {"log-limit", required_argument, NULL, 'L'},
        {"parent", required_argument, NULL, 'p'},
        {"silence-limit-ms", required_argument, NULL, 's'},
        {"isolation", required_argument, NULL, 'i'},
        {"data-roots", required_argument, NULL, 'D'},
        {"group", required_argument, NULL, 'G'},
        {"daemon-uid", required_argument, NULL, 'u'},
        {"cpus", required_argument, NULL, 'C'},
        {"memory", required_argument, NULL, 'M'},
        {"memory-slack", required_argument, NULL, 'S'},
        {NULL, 0, NULL, 0},
    };
    struct sup_options options = {.node = "?",
                                  .daemon_uid = (uid_t)-1,
                                  .isolation = "try",
                                  .slack_bytes = SLACK_BYTES,
                                  .log_limit_bytes = SUP_LOG_LIMIT_DEFAULT};
    enum hd_status st = HD_OK;
    int option;

    while (!st && (option = getopt_long(argc, argv, "", longs, NULL)) != -1)
        st = read_option(option, optarg, &options);
    if (!st && (optind != argc || !options.job_file[0] || !options.run_dir[0] ||
                !options.rank_count || options.world < options.rank_count))
        st = hd_err(HD_INVALID, "needs --job, --run-dir, --ranks and --world; see --help");
    if (!st && options.gpu_count && options.gpu_count != options.rank_count)
        st = hd_err(HD_INVALID, "--gpus names %d GPUs for %d ranks", options.gpu_count,
                    options.rank_count);
    if (!st && options.rank_count != options.world && !options.data_address[0])
        st = hd_err(HD_INVALID, "--data-address is missing: some ranks run on other nodes");
    if (!st && !options.worker[0])
        st = default_worker(options.worker);
    if (!st)
        *ret_options = options;
    return st;
}

static int print(const char *text)
{
    if (!hd_file_print(text))
        return EXIT_SUCCESS;
    hd_log(HD_LOG_ERROR, "%s", hd_err_message());
    return EXIT_FAILED;
}

static int print_version(void)
{
    char line[128];

    (void)snprintf(line, sizeof line, "heddle-supervisor %s\n", hd_version_text);
    return print(line);
}

int main(int argc, char **argv)
{
    static struct sup sup;
    enum hd_status st;

    if (!hd_process_prepare_or_tell("heddle-supervisor",
                                    &(struct hd_process_needs){.files = 64, .threads = 1}))
        return EXIT_FAILED;
    hd_log_init("heddle-supervisor", HD_LOG_INFO);
    hd_file_ignore_size_signal();
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return print(usage);
    if (argc == 2 && strcmp(argv[1], "--version") == 0)
        return print_version();
    st = read_options(argc, argv, &sup.options);
    if (st) {
        hd_log(HD_LOG_ERROR, "%s", hd_err_message());
        return EXIT_USAGE;
    }
    hd_environment_clean(getenv(HD_ENVIRONMENT_NAMES));
    /* drops the capabilities that a systemd unit gives heddled: ranks do not need them */
    (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    (void)setsid(); /* a failure means that the process already leads a session */
    st = sup_open(&sup);
    /* core files of ranks are written to the current folder */
    if (!st && chdir(sup.options.run_dir) < 0)
        hd_log(HD_LOG_WARN, "cannot enter %s: %s", sup.options.run_dir, strerror(errno));
    if (!st)
        sup_run(&sup);
    else
        hd_log(HD_LOG_ERROR, "%s", hd_err_message());
    sup_close(&sup);
    return st ? EXIT_FAILED : EXIT_SUCCESS;
}
