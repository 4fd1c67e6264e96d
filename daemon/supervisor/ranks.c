/* ranks: starts and reaps the ranks' processes, and kills everything that they have started. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/proc.h"
#include "comm/nccl.h"
#include "daemon/supervisor/log_bound.h"
#include "daemon/supervisor/supervisor.h"

enum { NUMBER_MAX = 24 };

/* Command line of one rank, with the memory of its strings. */
struct command {
    char rank[NUMBER_MAX], world[NUMBER_MAX], link[NUMBER_MAX], control[NUMBER_MAX];
    char here[NUMBER_MAX], wait[NUMBER_MAX];
    char shm_ranks[HD_SHM_FDS_TEXT_MAX];
    char *argv[32];
};

static enum hd_status fill_command(struct sup *sup, const struct sup_rank *rank, int link_fd,
                                   struct command *command)
{
    /* numbers of the shared memory's file descriptors, as in "control,rank 0,rank 1" */
    char fds[HD_SHM_FDS_TEXT_MAX];
    enum hd_status st = hd_shm_control_format(sup->shm, fds, sizeof fds);
    char *comma;
    int n = 0;

    if (st)
        return st;
    comma = strchr(fds, ',');
    (void)snprintf(command->control, sizeof command->control, "%.*s", (int)(comma - fds), fds);
    (void)snprintf(command->shm_ranks, sizeof command->shm_ranks, "%s", comma + 1);
    (void)snprintf(command->rank, sizeof command->rank, "%" PRId64, rank->rank);
    (void)snprintf(command->world, sizeof command->world, "%" PRId64, sup->options.world);
    (void)snprintf(command->link, sizeof command->link, "%d", link_fd);
    (void)snprintf(command->here, sizeof command->here, "%d", (int)(rank - sup->ranks));
    (void)snprintf(command->wait, sizeof command->wait, "%" PRId64,
                   sup_wait_limit_ms(&sup->limits));
    command->argv[n++] = sup->options.worker;
    command->argv[n++] = (char *)"rank";
    command->argv[n++] = (char *)"--job";
    command->argv[n++] = sup->options.job_file;
    command->argv[n++] = (char *)"--rank";
    command->argv[n++] = command->rank;
    command->argv[n++] = (char *)"--world";
    command->argv[n++] = command->world;
    command->argv[n++] = (char *)"--link-fd";
    command->argv[n++] = command->link;
    command->argv[n++] = (char *)"--shm-control";
    command->argv[n++] = command->control;
    command->argv[n++] = (char *)"--shm-ranks";
    command->argv[n++] = command->shm_ranks;
    command->argv[n++] = (char *)"--here";
    command->argv[n++] = command->here;
    command->argv[n++] = (char *)"--wait-limit-ms";
    command->argv[n++] = command->wait;
    if (sup_spans(sup)) {
        command->argv[n++] = (char *)"--node";
        command->argv[n++] = sup->options.node;
        command->argv[n++] = (char *)"--data-address";
        command->argv[n++] = sup->options.data_address;
    }
    command->argv[n++] = (char *)"--isolation";
    command->argv[n++] = sup->options.isolation;
    if (sup->options.data_roots[0]) {
        command->argv[n++] = (char *)"--data-roots";
        command->argv[n++] = sup->options.data_roots;
    }
    if (sup->options.choices_dir[0]) {
        command->argv[n++] = (char *)"--choices-dir";
        command->argv[n++] = sup->options.choices_dir;
    }
    command->argv[n] = NULL;
    return HD_OK;
}

void sup_warn_of_environment(const struct sup *sup)
{
    const char *loading = getenv("CUDA_MODULE_LOADING");

    if (sup->options.gpu_count && sup->options.world > 1 && loading &&
        strcmp(loading, "EAGER") != 0)
        hd_log(HD_LOG_WARN,
               "CUDA_MODULE_LOADING is %s in this environment, and %" PRId64
               " ranks take part: a kernel "
               "that is loaded late waits until the device is idle, and so hangs if a "
               "collective runs there that waits for this rank; unset it, or say EAGER",
               loading, sup->options.world);
}

/* Warns that the fast adapters of this node are not used: sockets are many times slower. */
static void warn_of_left_out(struct sup *sup, struct sup_rank *rank)
{
    const struct hd_network *network = &sup->network;
    char text[HD_LINK_TEXT_MAX];

    if (!hd_network_count_left_out(network))
        return;
    (void)snprintf(text, sizeof text,
                   "NCCL uses sockets on %s only: the active adapters %.120s serve other "
                   "interfaces than that of the data address %s. If they are the fast network, "
                   "start heddled with a --data-address on it, or set NCCL_IB_HCA for heddled",
                   network->interface, network->left_out, sup->options.data_address);
    sup_report_event(sup, rank, rank->rank, HD_LINK_LEVEL_WARN, text);
}

static enum hd_status find_network(struct sup *sup, struct sup_rank *rank)
{
    enum hd_status st;

    if (!sup_spans(sup) || !sup->options.gpu_count || sup->network.interface[0])
        return HD_OK;
    st = hd_network_find(sup->options.data_address, "/sys", &sup->network);
    if (!st)
        hd_log(HD_LOG_INFO, "NCCL: sockets on %s; adapters: %s", sup->network.interface,
               sup->network.adapters[0] ? sup->network.adapters : "none");
    if (!st)
        warn_of_left_out(sup, rank);
    return st;
}

/* Sets, in the child process of a rank, the environment by which NCCL connects to ranks of other
 * nodes. NCCL's unique id comes from rank 0 through the rendezvous alone, so NCCL_COMM_ID, which
 * would replace it, must not be set. */
static int set_network(const struct hd_network *network)
{
    char value[HD_NETWORK_ADAPTERS_MAX + 1];
    int failed = unsetenv("NCCL_COMM_ID");

    (void)snprintf(value, sizeof value, "=%s", network->interface);
    failed |= setenv("NCCL_SOCKET_IFNAME", value, 0);
    failed |= setenv("NCCL_SOCKET_FAMILY", network->is_ipv6 ? "AF_INET6" : "AF_INET", 0);
    /* "=" makes NCCL take exact names, not prefixes */
    (void)snprintf(value, sizeof value, "=%s", network->adapters);
    if (network->adapters[0])
        failed |= setenv("NCCL_IB_HCA", value, 0);
    else if (!getenv("NCCL_IB_HCA"))
        failed |= setenv("NCCL_IB_DISABLE", "1", 0);
    return failed;
}

/* Restricts the child process of a rank to the rank's GPU, which is then its device 0
 * (daemon/supervisor/supervisor.h). Other variables that the user has set stay. */
static bool show_gpu(const struct sup *sup, const struct sup_rank *rank)
{
    const int64_t at = rank - sup->ranks;
    int failed = 0;

    if (!sup->options.gpu_count)
        return true;
    failed |= setenv("CUDA_VISIBLE_DEVICES", sup->options.gpus[at], 1);
    if (sup->options.world > 1)
        failed |= !hd_comm_nccl_set_environment();
    if (sup->network.interface[0])
        failed |= set_network(&sup->network);
    return !failed;
}

/* Executes the worker, in the child, between fork and exec. If exec fails, sends errno through
 * error_fd. */
static void become_rank(const struct sup *sup, const struct sup_rank *rank,
                        const struct command *command, pid_t supervisor, int link_fd, int log_fd,
                        int error_fd)
{
    int null_fd = open("/dev/null", O_RDONLY);
    sigset_t none;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor) /* true: the supervisor died before PR_SET_PDEATHSIG took effect */
        _exit(127);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGHUP, SIG_DFL);
    hd_shm_control_keep_over_exec(sup->shm);
    if (sup_bounds_join(sup) && show_gpu(sup, rank) && dup2(null_fd, STDIN_FILENO) >= 0 &&
        dup2(log_fd, STDOUT_FILENO) >= 0 && dup2(log_fd, STDERR_FILENO) >= 0 &&
        fcntl(link_fd, F_SETFD, 0) == 0)
        (void)execv(command->argv[0], command->argv);
    (void)!write(error_fd, &errno, sizeof errno);
    _exit(127);
}

static enum hd_status fork_rank(struct sup *sup, struct sup_rank *rank, int log_fd)
{
    const pid_t supervisor = getpid();
    struct command command;
    int link[2], error[2], failure = 0;
    enum hd_status st;
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link) < 0)
        return hd_err(HD_IO, "cannot make a socket pair: %s", strerror(errno));
    st = fill_command(sup, rank, link[1], &command);
    if (!st && pipe2(error, O_CLOEXEC) < 0)
        st = hd_err(HD_IO, "cannot make a pipe: %s", strerror(errno));
    if (st) {
        (void)close(link[0]);
        (void)close(link[1]);
        return st;
    }
    pid = fork();
    if (pid == 0)
        become_rank(sup, rank, &command, supervisor, link[1], log_fd, error[1]);
    (void)close(link[1]);
    (void)close(error[1]);
    if (pid < 0) {
        st = hd_err(HD_IO, "cannot fork: %s", strerror(errno));
    } else if (read(error[0], &failure, sizeof failure) == (ssize_t)sizeof failure) {
        (void)waitpid(pid, NULL, 0);
        st = hd_err(HD_IO, "cannot run %s: %s", sup->options.worker, strerror(failure));
    }
    (void)close(error[0]);
    if (st) {
        (void)close(link[0]);
        return st;
    }
    rank->pid = pid;
    rank->link_fd = link[0];
    rank->received_ms = hd_clock_now_ms();
    return HD_OK;
}

/* Refuses several ranks on slices of GPUs: NCCL does not connect slices, and they share no NVLink. */
static enum hd_status check_slices(const struct sup *sup, const struct sup_rank *rank)
{
    const int64_t at = rank - sup->ranks;

    if (!sup->options.gpu_count || sup->options.world == 1 ||
        strncmp(sup->options.gpus[at], "MIG-", 4) != 0)
        return HD_OK;
    return hd_err(HD_UNSUPPORTED,
                  "%s is a slice of a GPU (MIG), and a job on several ranks needs whole GPUs; use "
                  "resources.devices: 1, or switch MIG off on this node (nvidia-smi -mig 0)",
                  sup->options.gpus[at]);
}

enum hd_status sup_start_rank(struct sup *sup, struct sup_rank *rank)
{
    char why[HD_FILE_WHY_MAX];
    struct hd_text path = {0};
    enum hd_status st = check_slices(sup, rank);
    int log_fd = -1;

    if (!st)
        st = find_network(sup, rank);
    if (st)
        return st;
    hd_attempt_log_path(&path, sup->job.attempt_dir, rank->rank);
    if (path.failed)
        return hd_err(HD_NO_MEMORY, "no memory for the name of a log");
    log_fd = open(path.data, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    st = log_fd < 0 ? hd_err(hd_file_write_status(errno), "cannot open %s: %s", path.data,
                             hd_file_explain(errno, path.data, why))
                    : fork_rank(sup, rank, log_fd);
    if (log_fd >= 0)
        (void)close(log_fd);
    hd_text_free(&path);
    if (!st)
        hd_log(HD_LOG_INFO, "rank %" PRId64 " started as process %d", rank->rank, (int)rank->pid);
    return st ? hd_err_prefix(st, "rank %" PRId64, rank->rank) : HD_OK;
}

/* ---- logs ---- */

/* Cuts all ranks' logs to the size limit. A log that grows by a sixteenth of its limit between two
 * checks is checked often. */
int sup_bound_logs(struct sup *sup, int64_t now_ms)
{
    enum { CALM_MS = 1000, FLOOD_MS = 50 };
    const int64_t limit = sup->options.log_limit_bytes;
    enum hd_status st = HD_OK;
    bool floods = false;

    if (!limit)
        return CALM_MS;
    if (now_ms < sup->logs_due_ms)
        return (int)(sup->logs_due_ms - now_ms);
    /* the logs after one that fails are checked, too */
    for (int i = 0; i < sup->options.rank_count; i++) {
        struct sup_rank *rank = &sup->ranks[i];
        struct hd_text path = {0};
        int64_t size_bytes = 0;

        hd_attempt_log_path(&path, sup->job.attempt_dir, rank->rank);
        if (path.failed)
            st = hd_err(HD_NO_MEMORY, "no memory for the name of a log");
        else if (sup_log_bound(path.data, limit, &size_bytes))
            st = HD_IO;
        floods |= size_bytes - rank->log_bytes > limit / 16;
        rank->log_bytes = size_bytes;
        hd_text_free(&path);
    }
    if (st && !sup->log_failed)
        hd_log(HD_LOG_WARN, "%s; it grows without a limit", hd_err_message());
    sup->log_failed = st != HD_OK;
    sup->logs_due_ms = now_ms + (floods ? FLOOD_MS : CALM_MS);
    return floods ? FLOOD_MS : CALM_MS;
}

/* Describes the exit for the peers, which repeat it as the reason why they gave up. */
static void describe_exit(const struct sup *sup, const struct sup_rank *rank, char *ret_text,
                          size_t size_bytes)
{
    char flight[SUP_FLIGHT_MAX];

    sup_describe_flight(sup, rank, flight);
    if (rank->has_failure && rank->failure.message[0])
        (void)snprintf(ret_text, size_bytes, "%s", rank->failure.message);
    else if (rank->signal)
        (void)snprintf(ret_text, size_bytes, "rank %" PRId64 " was killed by signal %d (%s)%s",
                       rank->rank, rank->signal, strsignal(rank->signal), flight);
    else
        (void)snprintf(ret_text, size_bytes, "rank %" PRId64 " ended with status %d", rank->rank,
                       rank->code);
}

/* Appends the rank's last collectives to its log. */
static void log_flight(const struct sup *sup, const struct sup_rank *rank)
{
    struct hd_flight_record records[HD_FLIGHT_MAX];
    const int count = hd_shm_control_flight(sup->shm, (int)(rank - sup->ranks), records);
    struct hd_text path = {0}, text = {0};
    int fd;

    if (count == 0)
        return;
    hd_attempt_log_path(&path, sup->job.attempt_dir, rank->rank);
    hd_flight_add_text(records, count, (int)rank->rank, hd_clock_now_ms(), &text);
    fd = path.failed || text.failed ? -1 : open(path.data, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0 || write(fd, text.data, text.len_bytes) != (ssize_t)text.len_bytes)
        hd_log(HD_LOG_WARN, "rank %" PRId64 ": its collectives could not be added to its log",
               rank->rank);
    if (fd >= 0)
        (void)close(fd);
    hd_text_free(&path);
    hd_text_free(&text);
}

/* Writes advice about a rank that ended without a message. Rank, status and signal are shown next
 * to this text. */
static void advise(const struct sup *sup, const struct sup_rank *rank, char *ret_text,
                   size_t size_bytes)
{
    char flight[SUP_FLIGHT_MAX];

    sup_describe_flight(sup, rank, flight);
    if (rank->signal == SIGKILL)
        (void)snprintf(ret_text, size_bytes,
                       "unless a person killed it, the machine ran out of memory: see the kernel's "
                       "log (dmesg)%s",
                       flight);
    /* SIGBUS: a read of a mapped page beyond the end of its file */
    else if (rank->signal == SIGBUS)
        (void)snprintf(ret_text, size_bytes,
                       "a file that it reads became shorter, most likely one of data.train or "
                       "data.val; write a new file and rename it in place of the old one%s",
                       flight);
    else
        (void)snprintf(ret_text, size_bytes,
                       "it gave no reason; see %.700s/logs/rank-%" PRId64 ".log%s",
                       sup->job.attempt_dir, rank->rank, flight);
}

static void record_exit(struct sup *sup, struct sup_rank *rank, int status)
{
    struct hd_link_report report = {.kind = HD_LINK_EXIT};
    char reason[HD_LINK_TEXT_MAX];
    bool oom;

    sup_receive_from_rank(sup, rank); /* receives the rank's last messages, which may be unread */
    rank->pid = 0;
    rank->exited = true;
    rank->code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    rank->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    /* true: the exit is a failure. Status STOPPED is none after a stop, or on several nodes: ranks
     * of another node may be told to stop first, and stop those here with them */
    rank->gone_bad = rank->signal ||
                     (rank->code != HD_LINK_EXIT_COMPLETED && rank->code != HD_LINK_EXIT_EARLY &&
                      !(rank->code == HD_LINK_EXIT_STOPPED && (sup->stop_asked || sup_spans(sup))));
    report.job = sup->job.job_id;
    report.attempt = sup->job.attempt;
    report.rank = rank->rank;
    report.wall_ms = hd_clock_wall_ms();
    report.exit.code = rank->code;
    report.exit.signal = rank->signal;
    memcpy(report.exit.operation, rank->failure.operation, sizeof report.exit.operation);
    memcpy(report.exit.message, rank->failure.message, sizeof report.exit.message);
    if (rank->gone_bad && rank->has_failure)
        memcpy(rank->exit_text, rank->failure.message, sizeof rank->exit_text);
    else if (rank->gone_bad)
        advise(sup, rank, rank->exit_text, sizeof rank->exit_text);
    if (rank->gone_bad && !rank->has_failure)
        log_flight(sup, rank);
    if (hd_attempt_write_exit(sup->options.run_dir, &report))
        hd_log(HD_LOG_ERROR, "rank %" PRId64 ": %s", rank->rank, hd_err_message());
    sup_report(sup, rank, &report);
    hd_log(rank->gone_bad ? HD_LOG_WARN : HD_LOG_INFO,
           "rank %" PRId64 " ended: status %d, signal %d %s", rank->rank, rank->code, rank->signal,
           report.exit.message);
    if (!rank->gone_bad)
        return;
    oom = sup_bounds_was_oom(sup, rank, reason, sizeof reason);
    if (!oom)
        describe_exit(sup, rank, reason, sizeof reason);
    hd_shm_control_mark_dead(sup->shm, (int)(rank - sup->ranks), reason);
    if (oom)
        sup_begin_end(sup, HD_LINK_CAUSE_OOM, rank->rank, false, "%s", reason);
    else
        sup_begin_end(sup, HD_LINK_CAUSE_RANK_EXIT, -1, false, "%s", reason);
}

void sup_reap(struct sup *sup)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (int i = 0; i < sup->options.rank_count; i++)
            /* a reaped process that is no rank is an adopted orphan */
            if (sup->ranks[i].pid == pid)
                record_exit(sup, &sup->ranks[i], status);
}

bool sup_all_exited(const struct sup *sup)
{
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].pid)
            return false;
    return true;
}

int sup_kill_descendants(void)
{
    DIR *proc = opendir("/proc");
    const struct dirent *entry;
    int count = 0;

    /* kills this process's children only: their children become its own when they are dead */
    while (proc && (entry = readdir(proc))) {
        const pid_t pid = atoi(entry->d_name);
        struct hd_proc_stat stat;

        if (pid <= 1 || hd_proc_stat_read(pid, &stat) || stat.parent != getpid())
            continue;
        count++;
        (void)kill(pid, SIGKILL);
    }
    if (proc)
        (void)closedir(proc);
    return count;
}
