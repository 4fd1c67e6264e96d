/* heddle-supervisor: started by heddled, once per attempt and node. See supervisor.h. */
#include <errno.h>
#include <fcntl.h>
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
#include "flags/flags.h"
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

static enum hd_status read_ranks(const char *text, void *into)
{
    struct sup_options *options = into;
    char copy[HD_ATTEMPT_RANKS_MAX * 24], *rest = copy, *word;
    int64_t rank;

    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy)
        return hd_err(HD_INVALID, "the list is too long");
    while ((word = strsep(&rest, ","))) {
        if (options->rank_count == HD_ATTEMPT_RANKS_MAX)
            return hd_err(HD_LIMIT, "one node runs at most %d", HD_ATTEMPT_RANKS_MAX);
        if (hd_text_to_int64(word, 0, HD_LINK_RANKS_MAX - 1, &rank))
            return hd_err(HD_INVALID, "%s is not a rank", word);
        for (int i = 0; i < options->rank_count; i++)
            if (options->ranks[i] == rank)
                return hd_err(HD_INVALID, "%s is given twice", word);
        options->ranks[options->rank_count++] = rank;
    }
    return HD_OK;
}

static enum hd_status read_gpus(const char *text, void *into)
{
    struct sup_options *options = into;

    while (*text) {
        const size_t n = strcspn(text, ",");

        if (options->gpu_count == HD_ATTEMPT_RANKS_MAX || !n || n >= sizeof options->gpus[0])
            return hd_err(HD_INVALID, "%s is not a list of at most %d UUIDs", text,
                          HD_ATTEMPT_RANKS_MAX);
        (void)snprintf(options->gpus[options->gpu_count++], sizeof options->gpus[0], "%.*s", (int)n,
                       text);
        text += n + (text[n] == ',');
    }
    return HD_OK;
}

/* Finds the file; into: char[PATH_MAX]. */
static enum hd_status read_path(const char *text, void *into)
{
    return realpath(text, into) ? HD_OK
                                : hd_err(HD_INVALID, "cannot find %s: %s", text, strerror(errno));
}

static enum hd_status open_log(const char *path, void *into)
{
    const int fd =
        open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, HD_ATTEMPT_FILE_MODE);

    (void)into;
    if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
        return hd_err(HD_IO, "cannot open %s: %s", path, strerror(errno));
    (void)close(fd);
    return HD_OK;
}

static enum hd_status take_text(const char *text, char *ret_text, size_t size)
{
    if (strlen(text) >= size)
        return hd_err(HD_INVALID, "the value is too long");
    memcpy(ret_text, text, strlen(text) + 1);
    return HD_OK;
}

static enum hd_status read_isolation(const char *text, void *into)
{
    if (strcmp(text, "require") != 0 && strcmp(text, "try") != 0 && strcmp(text, "off") != 0)
        return hd_err(HD_INVALID, "say require, try or off, not %s", text);
    return take_text(text, into, sizeof((struct sup_options *)0)->isolation);
}

static enum hd_status read_choices_dir(const char *text, void *into)
{
    return text[0] == '/' ? take_text(text, into, PATH_MAX)
                          : hd_err(HD_INVALID, "%s is no absolute path", text);
}

/* Copies a list of folders, or a folder; into: char[PATH_MAX]. */
static enum hd_status read_paths(const char *text, void *into)
{
    return take_text(text, into, PATH_MAX);
}

static enum hd_status read_cpus(const char *text, void *into)
{
    const enum hd_status st = take_text(text, into, sizeof((struct sup_options *)0)->cpus);

    return st ? st : hd_cpus_check(text);
}

static enum hd_status read_options(int argc, char **argv, struct sup_options *ret_options)
{
    struct sup_options o = {
        .isolation = "try", .slack_bytes = SLACK_BYTES, .log_limit_bytes = SUP_LOG_LIMIT_DEFAULT};
    const char *node = "?", *address = "";
    int64_t parent = 0, daemon_uid = -1;
    struct hd_flag f[] = {
        HD_FLAG_READ("--job", read_path, o.job_file, .required = true),
        HD_FLAG_READ("--run-dir", read_path, o.run_dir, .required = true),
        HD_FLAG_READ("--ranks", read_ranks, o, .required = true),
        HD_FLAG_INT64("--world", o.world, 1, HD_LINK_RANKS_MAX, .required = true),
        HD_FLAG_READ("--gpus", read_gpus, o),
        HD_FLAG_TEXT("--node", node),
        HD_FLAG_TEXT("--data-address", address),
        HD_FLAG_READ("--choices-dir", read_choices_dir, o.choices_dir),
        HD_FLAG_READ("--worker", read_path, o.worker),
        HD_FLAG_READ("--log", open_log, o),
        HD_FLAG_INT64("--log-limit", o.log_limit_bytes, 0, INT64_MAX),
        HD_FLAG_INT64("--parent", parent, 1, INT32_MAX),
        HD_FLAG_INT64("--silence-limit-ms", o.hang_limit_ms, 1, INT64_C(1) << 40),
        HD_FLAG_READ("--isolation", read_isolation, o.isolation),
        HD_FLAG_READ("--data-roots", read_paths, o.data_roots),
        HD_FLAG_READ("--group", read_paths, o.group),
        HD_FLAG_INT64("--daemon-uid", daemon_uid, 1, UINT32_MAX - 1),
        HD_FLAG_READ("--cpus", read_cpus, o.cpus),
        HD_FLAG_BYTES("--memory", o.memory_bytes),
        HD_FLAG_BYTES("--memory-slack", o.slack_bytes),
    };
    enum hd_status st = HD_FLAGS_READ_LAST(argc, argv, f);

    if (!st && o.world < o.rank_count)
        st = hd_err(HD_INVALID, "--world: %lld, but --ranks names %d", (long long)o.world,
                    o.rank_count);
    if (!st && o.log_limit_bytes && o.log_limit_bytes < SUP_LOG_LIMIT_MIN)
        st = hd_err(HD_INVALID, "--log-limit: %lld is less than %d", (long long)o.log_limit_bytes,
                    SUP_LOG_LIMIT_MIN);
    if (!st && o.gpu_count && o.gpu_count != o.rank_count)
        st = hd_err(HD_INVALID, "--gpus names %d GPUs for %d ranks", o.gpu_count, o.rank_count);
    if (!st && o.rank_count != o.world && !*address)
        st = hd_err(HD_INVALID, "--data-address is missing: some ranks run on other nodes");
    if (!st && !o.worker[0])
        st = hd_process_find_beside("heddle-worker", o.worker);
    if (st)
        return st;
    (void)snprintf(o.node, sizeof o.node, "%s", node);
    (void)snprintf(o.data_address, sizeof o.data_address, "%s", address);
    o.parent = (pid_t)parent;
    o.daemon_uid = (uid_t)daemon_uid;
    *ret_options = o;
    return HD_OK;
}

int main(int argc, char **argv)
{
    static struct sup sup;
    enum hd_status st;
    int answered;

    if (!hd_process_prepare_or_tell("heddle-supervisor",
                                    &(struct hd_process_needs){.files = 64, .threads = 1}))
        return EXIT_FAILED;
    hd_log_init("heddle-supervisor", HD_LOG_INFO);
    hd_file_ignore_size_signal();
    answered = hd_flags_answer(argc, argv, usage, "heddle-supervisor", hd_version_text);
    if (answered < 0)
        hd_log(HD_LOG_ERROR, "%s", hd_err_message());
    if (answered)
        return answered < 0 ? EXIT_FAILED : EXIT_SUCCESS;
    st = read_options(argc - 1, argv + 1, &sup.options);
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
