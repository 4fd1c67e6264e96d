/* supervisor: from its start to its exit: opening, and the loop. */
#include "daemon/supervisor/supervisor.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

enum {
    TICK_MS = 1000,
    WATCH_TICK_MS = 250, /* ms between passes while the kernel does not limit the ranks' memory */
    ENDING_TICK_MS = 50,
    SWEEP_TICK_MS = 10,
    /* number of tries to write `end`, a second apart, unless the failure is a full disk, for which
     * it waits longer */
    END_TRIES = 10,
    HURRIED_TRIES = 3, /* number of tries to write `end` if the attempt is to end at once */
    SEND_TRIES = 60,   /* number of tries to write `end` between two lines in the log */
};

/* ---- opening ---- */

static enum hd_status acquire_run_dir(struct sup *sup)
{
    const char *dir = sup->options.run_dir;
    struct hd_attempt_process process;
    struct hd_link_report report;
    char path[PATH_MAX + 16];
    enum hd_status st;

    (void)snprintf(path, sizeof path, "%s/" HD_ATTEMPT_LOCK_FILE, dir);
    st = hd_file_lock(path, &sup->lock_fd);
    if (st)
        return st;
    for (int i = 0; i < sup->options.rank_count; i++)
        if (hd_attempt_read_exit(dir, sup->options.ranks[i], &report) != HD_NOT_FOUND)
            return hd_err(HD_CONFLICT, "%s has the exit of rank %" PRId64 ": an attempt runs once",
                          dir, sup->options.ranks[i]);
    if (hd_attempt_read_end(dir, &report) != HD_NOT_FOUND ||
        hd_attempt_process_read(dir, &process) != HD_NOT_FOUND)
        return hd_err(HD_CONFLICT, "%s was supervised before: an attempt runs once", dir);
    return HD_OK;
}

static enum hd_status take_signals(struct sup *sup)
{
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    (void)signal(SIGHUP, SIG_IGN);
    sup->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (sup->signal_fd < 0)
        return hd_err(HD_IO, "cannot watch signals: %s", strerror(errno));
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        return hd_err(HD_IO, "cannot adopt orphans: %s", strerror(errno));
    return HD_OK;
}

/* Makes the kernel send SIGTERM when heddled ends, which ends the ranks in order (--parent). */
static enum hd_status follow_parent(const struct sup_options *options)
{
    if (!options->parent)
        return HD_OK;
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid() != options->parent)
        return hd_err(HD_ABORTED, "the parent process %d has ended", (int)options->parent);
    return HD_OK;
}

/* Sets the environment of every rank: threads, and the run directory. */
static enum hd_status set_environment(const struct sup *sup)
{
    const int64_t threads = sup->job.threads, wanted = threads * sup->options.rank_count;
    char number[24];
    cpu_set_t cpus;
    int failed = 0;

    (void)snprintf(number, sizeof number, "%" PRId64, threads);
    failed |= setenv("OMP_NUM_THREADS", number, 1);
    failed |= setenv("OMP_DYNAMIC", "false", 1);
    /* OpenMP threads are not bound to cores: ranks that bind them in the same way would all use the
     * same cores */
    failed |= setenv("OMP_PROC_BIND", "false", 1);
    /* by default libgomp spins 300,000 times, up to 15 ms, for a thread that has lost its core to
     * another program (docs/decisions/cpu-kernels.md) */
    failed |= setenv("GOMP_SPINCOUNT", "4000", 0);
    /* true: more threads than cores; waiting threads must not spin on cores that other ranks
     * need */
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0 && wanted > CPU_COUNT(&cpus))
        failed |= setenv("OMP_WAIT_POLICY", "passive", 1);
    failed |= setenv(HD_ATTEMPT_DIR_ENV, sup->options.run_dir, 1);
    return failed ? hd_err(HD_NO_MEMORY, "no memory for the environment") : HD_OK;
}

static enum hd_status open_rest(struct sup *sup)
{
    struct hd_attempt_process self;
    struct hd_text logs = {0};
    enum hd_status st = hd_attempt_process_find(getpid(), &self);

    if (!st)
        st = hd_attempt_process_write(sup->options.run_dir, &self);
    if (!st)
        st = hd_job_read_file(sup->options.job_file, &sup->arena, &sup->job);
    if (!st)
        st = sup_limits_init(&sup->limits, &sup->job, sup->options.rank_count,
                             sup->options.hang_limit_ms);
    if (!st)
        sup_read_limits(sup);
    if (!st)
        st = take_signals(sup);
    if (!st)
        st = follow_parent(&sup->options);
    if (!st)
        st = hd_frame_listen(sup->options.run_dir, HD_ATTEMPT_SOCKET, sup->options.daemon_uid,
                             &sup->listen_fd);
    if (!st)
        st = hd_spool_writer_open(sup->options.run_dir, &sup->options.spool, &sup->spool);
    if (!st) {
        hd_text_add(&logs, "%s/logs", sup->job.attempt_dir);
        st = logs.failed ? hd_err(HD_NO_MEMORY, "no memory")
                         : hd_file_make_dirs(logs.data, HD_FILE_JOB_DIR_MODE);
        hd_text_free(&logs);
    }
    if (!st)
        st = hd_shm_control_new(sup->options.rank_count, &sup->shm);
    if (!st)
        /* called before set_environment, because it may restrict the CPUs */
        st = sup_bounds_open(sup);
    return st ? st : set_environment(sup);
}

/* Records that the attempt did not start. If that fails, heddled finds out by itself. */
static void record_no_start(struct sup *sup, enum hd_status why)
{
    struct hd_link_report end = {.kind = HD_LINK_END, .rank = -1};
    struct hd_error error;

    hd_err_save(why, &error);
    end.job = sup->job.job_id;
    end.attempt = sup->job.attempt;
    end.wall_ms = hd_clock_wall_ms();
    end.end.cause = why == HD_STORAGE ? HD_LINK_CAUSE_STORAGE : HD_LINK_CAUSE_LAUNCH_FAILED;
    end.end.first_rank = -1;
    (void)snprintf(end.end.message, sizeof end.end.message, "%s", error.message);
    for (int i = 0; sup_write_end(sup, &end) && i < END_TRIES; i++)
        (void)sleep(1);
    (void)hd_err_restore(&error);
}

enum hd_status sup_open(struct sup *sup)
{
    enum hd_status st;

    sup->lock_fd = sup->signal_fd = sup->listen_fd = sup->daemon_fd = -1;
    sup->bounds.group.dir_fd = sup->bounds.ranks.dir_fd = -1;
    sup->blamed = sup->elsewhere = sup->hanging = sup->starving = -1;
    hd_arena_init(&sup->arena, 0);
    sup->ranks = calloc((size_t)sup->options.rank_count, sizeof *sup->ranks);
    if (!sup->ranks)
        return hd_err(HD_NO_MEMORY, "no memory for %d ranks", sup->options.rank_count);
    for (int i = 0; i < sup->options.rank_count; i++) {
        sup->ranks[i].rank = sup->options.ranks[i];
        sup->ranks[i].link_fd = -1;
        sup->ranks[i].put_round = -1;
    }
    st = acquire_run_dir(sup);
    if (st)
        return st;
    st = open_rest(sup);
    if (st)
        record_no_start(sup, st);
    return st;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        (void)close(fd);
}

void sup_close(struct sup *sup)
{
    char path[PATH_MAX + 16];

    if (sup->listen_fd >= 0) {
        (void)snprintf(path, sizeof path, "%s/" HD_ATTEMPT_SOCKET, sup->options.run_dir);
        (void)unlink(path);
    }
    for (int i = 0; sup->ranks && i < sup->options.rank_count; i++)
        close_fd(sup->ranks[i].link_fd);
    free(sup->ranks);
    sup_bounds_close(sup);
    if (sup->shm)
        hd_shm_control_free(sup->shm);
    hd_spool_writer_close(sup->spool);
    hd_arena_done(&sup->arena);
    close_fd(sup->daemon_fd);
    close_fd(sup->listen_fd);
    close_fd(sup->signal_fd);
    close_fd(sup->lock_fd);
}

/* ---- the loop ---- */

static void shut_down(struct sup *sup, int signal)
{
    if (sup->state != HD_ALLOC_STOPPING && !sup->options.parent && !sup_spans(sup)) {
        hd_log(HD_LOG_INFO, "signal %d: the ranks write a checkpoint within %d s, and end", signal,
               HD_SUP_SHUT_MS / 1000);
        sup->shut_down = true;
        sup_ask_stop(sup, HD_SUP_SHUT_MS);
        return;
    }
    sup->at_once = true;
    sup_begin_end(sup, HD_LINK_CAUSE_NODE_LOST, -1, true,
                  "node %s ended its supervisor (signal %d)", sup->options.node, signal);
}

static void take_signal(struct sup *sup)
{
    struct signalfd_siginfo info;

    while (read(sup->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT)
            shut_down(sup, (int)info.ssi_signo);
    sup_reap(sup);
}

static void wait_and_act(struct sup *sup, int timeout_ms)
{
    struct pollfd fds[3 + HD_ATTEMPT_RANKS_MAX] = {
        {.fd = sup->signal_fd, .events = POLLIN},
        {.fd = sup->listen_fd, .events = POLLIN},
        {.fd = sup->daemon_fd, .events = POLLIN},
    };

    /* a closed link has descriptor -1, which poll ignores */
    for (int i = 0; i < sup->options.rank_count; i++)
        fds[3 + i] = (struct pollfd){.fd = sup->ranks[i].link_fd, .events = POLLIN};
    if (poll(fds, (nfds_t)(3 + sup->options.rank_count), timeout_ms) <= 0)
        return;
    for (int i = 0; i < sup->options.rank_count; i++)
        if (fds[3 + i].revents)
            sup_receive_from_rank(sup, &sup->ranks[i]);
    if (fds[0].revents)
        take_signal(sup);
    if (fds[2].revents)
        sup_receive_from_daemon(sup);
    if (fds[1].revents)
        sup_accept_daemon(sup);
}

/* Waits a second before the next try. The ranks are gone, but heddled may still send messages. */
static void wait_for_disk(struct sup *sup)
{
    const int64_t end_ms = hd_clock_now_ms() + TICK_MS;
    int64_t now_ms;

    while ((now_ms = hd_clock_now_ms()) < end_ms && !sup->at_once)
        wait_and_act(sup, (int)(end_ms - now_ms));
}

/* Writes the record `end`. If the disk accepts no writes for long, it gives up and drops the held
 * reports: the newest checkpoint is found on disk anyway. If `end` cannot be written either,
 * heddled concludes the attempt when this process is gone. */
void sup_finish(struct sup *sup, int left)
{
    struct hd_link_report end;
    char problem[HD_LINK_TEXT_MAX];
    enum hd_status st;

    sup_describe_end(sup, left, &end);
    for (int tries = 1; (st = sup_write_end(sup, &end)); tries++) {
        const bool hurried = sup->at_once || sup->stop_asked;

        if (tries % SEND_TRIES == 1)
            hd_log(HD_LOG_ERROR, "%s", hd_err_message());
        if (tries >= (hurried ? HURRIED_TRIES : END_TRIES) && (hurried || st != HD_STORAGE)) {
            sup_drop_held(sup);
            (void)sup_write_end(sup, &end);
            return;
        }
        (void)snprintf(problem, sizeof problem, "cannot record how the attempt ended: %.900s",
                       hd_err_message());
        sup_set_problem(sup, problem);
        if (sup->at_once)
            (void)usleep(TICK_MS * 1000 / 4);
        else
            wait_for_disk(sup);
    }
}

void sup_run(struct sup *sup)
{
    int64_t now_ms = hd_clock_now_ms();
    enum hd_status st;
    int left = 1;

    sup_warn_of_environment(sup);
    for (int i = 0; i < sup->options.rank_count && !sup->ending; i++)
        if ((st = sup_start_rank(sup, &sup->ranks[i])))
            sup_begin_end(sup,
                          st == HD_STORAGE ? HD_LINK_CAUSE_STORAGE : HD_LINK_CAUSE_LAUNCH_FAILED,
                          sup->ranks[i].rank, true, "%s", hd_err_message());
    while (left && !(sup->ending && now_ms >= sup->give_up_at_ms)) {
        const bool all_exited = sup_all_exited(sup);
        const int logs_ms = sup_bound_logs(sup, now_ms);
        const int wait_ms = all_exited                   ? SWEEP_TICK_MS
                            : sup->ending                ? ENDING_TICK_MS
                            : sup_bounds_is_watched(sup) ? WATCH_TICK_MS
                                                         : TICK_MS;

        sup->pass_ms = now_ms;
        wait_and_act(sup, logs_ms < wait_ms ? logs_ms : wait_ms);
        now_ms = hd_clock_now_ms();
        if (now_ms - sup->pass_ms > SUP_FROZEN_MS)
            sup_forgive_silence(sup, now_ms);
        (void)sup_retry_held(sup);
        sup_bounds_check(sup, now_ms);
        sup_climb(sup, now_ms);
        sup_check_stopped(sup, now_ms);
        sup_check_starved(sup, now_ms);
        sup_check_hang(sup, now_ms);
        sup_keep_limits(sup, now_ms, false);
        sup_reap(sup);
        if (!sup_all_exited(sup))
            continue;
        if (!sup->ending &&
            /* true: no rank failed; processes that the ranks started are killed */
            !sup->give_up_at_ms)
            sup->give_up_at_ms = now_ms + HD_SUP_GONE_MS;
        left = sup_kill_descendants() + sup_bounds_kill(sup);
        if (left && now_ms >= sup->give_up_at_ms)
            break;
    }
    /* checks the logs once more now, with all that the ranks wrote since the last check */
    sup->logs_due_ms = 0;
    (void)sup_bound_logs(sup, now_ms);
    sup_keep_limits(sup, now_ms, true);
    sup_finish(sup, left);
}
