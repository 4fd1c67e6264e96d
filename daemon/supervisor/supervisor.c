#include "daemon/supervisor/supervisor.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
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
    ENDING_TICK_MS = 50,
    SWEEP_TICK_MS = 10,
    FROZEN_MS = 10000, /* a turn that took so long: the machine slept, not the ranks */
    END_TRIES = 10,    /* to write `end`, a second apart */
};

/* Longest silence of a rank. While training it is learned: 8 times the longest so far, at least
 * TRAINING_SILENCE_MS, once LEARNED_COUNT reports have come. */
enum {
    UNLEARNED_SILENCE_MS = 30 * 60 * 1000,
    TRAINING_SILENCE_MS = 60 * 1000,
    SILENCE_FACTOR = 8,
    LEARNED_COUNT = 16,
};

/* ---- opening ---- */

static enum hd_status claim_run_dir(struct sup *sup)
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

/* Dies with heddled where that is asked for; in order, so with SIGTERM. */
static enum hd_status follow_parent(const struct sup_options *options)
{
    if (!options->parent)
        return HD_OK;
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid() != options->parent)
        return hd_err(HD_ABORTED, "process %d, which this one belongs to, is gone",
                      (int)options->parent);
    return HD_OK;
}

/* What every rank's environment says: threads, and how to find the rank's attempt. */
static enum hd_status set_environment(const struct sup *sup)
{
    const int64_t threads = sup->job.threads, wanted = threads * sup->options.rank_count;
    char number[24];
    cpu_set_t cpus;
    int failed = 0;

    (void)snprintf(number, sizeof number, "%" PRId64, threads);
    failed |= setenv("OMP_NUM_THREADS", number, 1);
    failed |= setenv("OMP_DYNAMIC", "false", 1);
    /* several ranks bound the same way would all sit on the same cores */
    failed |= setenv("OMP_PROC_BIND", "false", 1);
    /* threads that wait must not spin on cores that other ranks need */
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
        st = take_signals(sup);
    if (!st)
        st = follow_parent(&sup->options);
    if (!st)
        st = hd_frame_listen(sup->options.run_dir, HD_ATTEMPT_SOCKET, &sup->listen_fd);
    if (!st)
        st = hd_spool_writer_open(sup->options.run_dir, &sup->options.spool, &sup->spool);
    if (!st) {
        hd_text_add(&logs, "%s/logs", sup->job.attempt_dir);
        st = logs.failed ? hd_err(HD_NO_MEMORY, "no memory") : hd_file_make_dirs(logs.data, 0755);
        hd_text_free(&logs);
    }
    if (!st)
        st = hd_shm_control_new(sup->options.rank_count, &sup->shm);
    return st ? st : set_environment(sup);
}

static void write_end(struct sup *sup, const struct hd_link_report *end)
{
    for (int i = 0; hd_attempt_write_end(sup->options.run_dir, end); i++) {
        hd_log(HD_LOG_ERROR, "%s", hd_err_message());
        if (i == END_TRIES) /* heddled will see a dead supervisor and say so */
            return;
        (void)sleep(1);
    }
}

enum hd_status sup_open(struct sup *sup)
{
    enum hd_status st;

    sup->lock_fd = sup->signal_fd = sup->listen_fd = sup->daemon_fd = -1;
    sup->blamed = -1;
    hd_arena_init(&sup->arena, 0);
    sup->ranks = calloc((size_t)sup->options.rank_count, sizeof *sup->ranks);
    if (!sup->ranks)
        return hd_err(HD_NO_MEMORY, "no memory for %d ranks", sup->options.rank_count);
    for (int i = 0; i < sup->options.rank_count; i++) {
        sup->ranks[i].rank = sup->options.ranks[i];
        sup->ranks[i].link_fd = -1;
        sup->ranks[i].put_round = -1;
    }
    st = claim_run_dir(sup);
    if (st)
        return st;
    st = open_rest(sup);
    if (st) {
        struct hd_link_report end = {.kind = HD_LINK_END, .rank = -1};

        end.job = sup->job.job_id;
        end.attempt = sup->job.attempt;
        end.wall_ms = hd_clock_wall_ms();
        end.end.cause = HD_LINK_CAUSE_LAUNCH_FAILED;
        end.end.first_rank = -1;
        (void)snprintf(end.end.message, sizeof end.end.message, "%s", hd_err_message());
        write_end(sup, &end);
    }
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
    if (sup->shm)
        hd_shm_control_free(sup->shm);
    hd_spool_writer_close(sup->spool);
    hd_arena_done(&sup->arena);
    close_fd(sup->daemon_fd);
    close_fd(sup->listen_fd);
    close_fd(sup->signal_fd);
    close_fd(sup->lock_fd);
}

/* ---- ending ---- */

void sup_ask_stop(struct sup *sup, int64_t grace_ms)
{
    if (!sup->stop_asked)
        hd_log(HD_LOG_INFO, "told to stop: the ranks write a checkpoint and end");
    sup->stop_asked = true;
    if (grace_ms > 0 && !sup->stop_deadline_ms)
        sup->stop_deadline_ms = hd_clock_now_ms() + grace_ms;
    sup->state = HD_ATTEMPT_STOPPING;
    for (int i = 0; i < sup->options.rank_count; i++)
        sup_command(&sup->ranks[i], HD_LINK_MSG_STOP);
    sup_tell_state(sup);
}

void sup_begin_end(struct sup *sup, enum hd_link_cause cause, int64_t blamed, bool at_once,
                   const char *fmt, ...)
{
    const int64_t now_ms = hd_clock_now_ms();
    va_list ap;

    if (at_once && (!sup->ending || sup->term_at_ms > now_ms)) {
        sup->term_at_ms = now_ms;
        sup->kill_at_ms = now_ms + HD_SUP_TERM_MS;
    }
    if (sup->ending)
        return;
    sup->ending = true;
    sup->cause = cause;
    sup->blamed = blamed;
    va_start(ap, fmt);
    (void)vsnprintf(sup->reason, sizeof sup->reason, fmt, ap);
    va_end(ap);
    if (!at_once) {
        sup->term_at_ms = now_ms + HD_SUP_LEAVE_MS;
        sup->kill_at_ms = sup->term_at_ms + HD_SUP_TERM_MS;
    }
    sup->give_up_at_ms = sup->kill_at_ms + HD_SUP_GONE_MS;
    sup->state = HD_ATTEMPT_STOPPING;
    hd_log(HD_LOG_WARN, "ending all ranks: %s", sup->reason);
    if (cause != HD_LINK_CAUSE_RANK_EXIT) /* else the dead rank was marked, with its reason */
        hd_shm_control_abort(sup->shm, sup->reason);
    sup_tell_state(sup);
}

/* Sends each signal of the ladder when its time has come. */
static void climb(struct sup *sup, int64_t now_ms)
{
    if (sup->stop_deadline_ms && now_ms >= sup->stop_deadline_ms)
        sup_begin_end(sup, HD_LINK_CAUSE_USER, -1, true,
                      "the ranks did not stop in the time they were given");
    if (!sup->ending)
        return;
    if (sup->term_at_ms && now_ms >= sup->term_at_ms) {
        sup_signal_ranks(sup, SIGTERM);
        sup_signal_ranks(sup, SIGCONT); /* a stopped process acts on nothing else */
        sup->term_at_ms = 0;
    }
    if (now_ms >= sup->kill_at_ms)
        sup_signal_ranks(sup, SIGKILL); /* again and again: it costs nothing */
}

static struct sup_rank *find_rank(struct sup *sup, int64_t number)
{
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].rank == number)
            return &sup->ranks[i];
    return NULL;
}

/* It gave up because others did not answer or had given up. */
static bool only_echoes(const struct sup_rank *rank)
{
    return rank->has_failure &&
           (rank->failure.status == HD_ABORTED || rank->failure.status == HD_TIMEOUT);
}

/* Of an attempt on several nodes: a rank here that failed by itself, NULL: none did. */
static struct sup_rank *find_cause(struct sup *sup)
{
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].gone_bad && !sup->ranks[i].told_to_end && !only_echoes(&sup->ranks[i]))
            return &sup->ranks[i];
    return NULL;
}

/* Who failed first: the shared memory remembers; a rank may know better about another. */
static struct sup_rank *find_blamed(struct sup *sup)
{
    char reason[HD_SHM_REASON_MAX];
    struct sup_rank *rank = NULL, *named;
    enum hd_status st;
    int index;

    if (sup->blamed >= 0)
        return find_rank(sup, sup->blamed);
    if (sup_spans(sup))
        return find_cause(sup);
    if (hd_shm_control_failure(sup->shm, &index, &st, reason) && index >= 0 &&
        index < sup->options.rank_count)
        rank = &sup->ranks[index];
    for (int i = 0; !rank && i < sup->options.rank_count; i++)
        if (sup->ranks[i].gone_bad)
            rank = &sup->ranks[i];
    named = rank && rank->has_failure ? find_rank(sup, rank->failure.first_rank) : NULL;
    return named && named->gone_bad ? named : rank;
}

static bool is_bad_input(const struct sup_rank *rank)
{
    return (rank->exited && rank->code == HD_LINK_EXIT_BAD_INPUT) ||
           (rank->has_failure &&
            (rank->failure.status == HD_INVALID || rank->failure.status == HD_UNSUPPORTED));
}

/* The cause of an end that nothing forced. */
static enum hd_link_cause quiet_cause(const struct sup *sup)
{
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].code == HD_LINK_EXIT_STOPPED)
            return HD_LINK_CAUSE_USER;
    return HD_LINK_CAUSE_COMPLETED;
}

/* What the first rank said that echoes a failure elsewhere. */
static const char *echoed(const struct sup *sup)
{
    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].gone_bad && only_echoes(&sup->ranks[i]))
            return sup->ranks[i].failure.message;
    return sup->reason;
}

/* No process is left, or none that can be helped: writes `end` and tells it. */
static void sup_finish(struct sup *sup, int left)
{
    struct hd_link_report report = {.kind = HD_LINK_END, .rank = -1};
    struct hd_link_end *end = &report.end;
    const struct sup_rank *blamed = NULL;
    const char *message = sup->reason;

    if (!sup->ending && quiet_cause(sup) == HD_LINK_CAUSE_USER)
        message = "stopped after a checkpoint, as told";
    report.job = sup->job.job_id;
    report.attempt = sup->job.attempt;
    report.wall_ms = hd_clock_wall_ms();
    end->cause = sup->ending ? sup->cause : quiet_cause(sup);
    if (end->cause == HD_LINK_CAUSE_RANK_EXIT || sup->blamed >= 0)
        blamed = find_blamed(sup);
    end->first_rank = blamed ? blamed->rank : -1;
    end->echo = sup->echo || (end->cause == HD_LINK_CAUSE_RANK_EXIT && !blamed && sup_spans(sup));
    if (end->echo && end->cause == HD_LINK_CAUSE_RANK_EXIT)
        message = echoed(sup);
    if (blamed) {
        end->code = blamed->code;
        end->signal = blamed->signal;
        end->bad_input = is_bad_input(blamed);
        (void)snprintf(end->operation, sizeof end->operation, "%s", blamed->failure.operation);
        if (end->cause == HD_LINK_CAUSE_RANK_EXIT && blamed->exit_text[0])
            message = blamed->exit_text;
    }
    (void)snprintf(end->message, sizeof end->message, "%s", message);
    if (left) {
        const size_t n = strlen(end->message);

        (void)snprintf(end->message + n, sizeof end->message - n,
                       "; %d processes could not be killed", left);
    }
    sup_retry_held(sup);
    write_end(sup, &report);
    sup->state = HD_ATTEMPT_ENDED;
    hd_log(HD_LOG_INFO, "ended: %s %s", hd_link_cause_name((enum hd_link_cause)end->cause),
           end->message);
    sup_tell_state(sup);
}

/* ---- silence ---- */

static int64_t silence_limit_ms(const struct sup *sup, const struct sup_rank *rank)
{
    int64_t learned_ms;

    if (sup->options.hang_limit_ms)
        return sup->options.hang_limit_ms;
    if (rank->phase != HD_LINK_PHASE_TRAINING || rank->heard_count < LEARNED_COUNT)
        return UNLEARNED_SILENCE_MS;
    learned_ms = SILENCE_FACTOR * rank->longest_silence_ms;
    return learned_ms > TRAINING_SILENCE_MS ? learned_ms : TRAINING_SILENCE_MS;
}

/* How far a rank has come: its first collective that is not complete, and how far that is. */
static uint64_t progress_of(const struct sup *sup, const struct sup_rank *rank)
{
    struct hd_flight_record record;

    if (!sup_find_flight(sup, rank, &record))
        return 0;
    return record.launch * (HD_FLIGHT_COMPLETE + 1) + (uint64_t)record.state;
}

/* All fall silent when one stands still: those that are within half of the longest silence. */
static bool is_silent_too(const struct sup_rank *rank, const struct sup_rank *silent,
                          int64_t now_ms)
{
    return rank->pid && now_ms - rank->heard_ms >= (now_ms - silent->heard_ms) / 2;
}

/* To blame is the one that is behind in its collectives, for which the others wait; of several, the
 * one that was silent first. */
static const struct sup_rank *find_behind(const struct sup *sup, const struct sup_rank *silent,
                                          int64_t now_ms)
{
    const struct sup_rank *blamed = silent;

    for (int i = 0; i < sup->options.rank_count; i++)
        if (is_silent_too(&sup->ranks[i], silent, now_ms) &&
            progress_of(sup, &sup->ranks[i]) < progress_of(sup, blamed))
            blamed = &sup->ranks[i];
    return blamed;
}

/* With ranks on other nodes there is no such count: to blame is one that is not asleep, as those
 * are that wait. NULL: all sleep. The first that is busy ends the search, for each look takes time.
 */
static const struct sup_rank *find_busy(const struct sup *sup, const struct sup_rank *silent,
                                        int64_t now_ms)
{
    if (sup_is_busy(silent))
        return silent;
    for (int i = 0; i < sup->options.rank_count; i++)
        if (&sup->ranks[i] != silent && is_silent_too(&sup->ranks[i], silent, now_ms) &&
            sup_is_busy(&sup->ranks[i]))
            return &sup->ranks[i];
    return NULL;
}

static void look_for_hang(struct sup *sup, int64_t now_ms)
{
    const struct sup_rank *silent = NULL, *blamed;
    struct hd_flight_record record;
    char flight[160] = "";

    for (int i = 0; i < sup->options.rank_count; i++)
        if (sup->ranks[i].pid && (!silent || sup->ranks[i].heard_ms < silent->heard_ms))
            silent = &sup->ranks[i];
    if (!silent || sup->ending || now_ms - silent->heard_ms < silence_limit_ms(sup, silent))
        return;
    blamed = sup_spans(sup) ? find_busy(sup, silent, now_ms) : find_behind(sup, silent, now_ms);
    if (!blamed) { /* they may wait for a rank of another node */
        sup->echo = true;
        sup_begin_end(sup, HD_LINK_CAUSE_HANG, -1, false,
                      "no rank here gave a sign of life for %" PRId64 " s while %s",
                      (now_ms - silent->heard_ms) / 1000, hd_link_phase_name(silent->phase));
        return;
    }
    if (sup_find_flight(sup, blamed, &record))
        hd_flight_describe(&record, flight, sizeof flight);
    sup_begin_end(sup, HD_LINK_CAUSE_HANG, blamed->rank, false,
                  "rank %" PRId64 " gave no sign of life for %" PRId64 " s while %s%s%s",
                  blamed->rank, (now_ms - blamed->heard_ms) / 1000,
                  hd_link_phase_name(blamed->phase), flight[0] ? "; it was in " : "", flight);
}

/* ---- the loop ---- */

static void take_signal(struct sup *sup)
{
    struct signalfd_siginfo info;

    while (read(sup->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT)
            sup_begin_end(sup, HD_LINK_CAUSE_NODE_LOST, -1, true,
                          "node %s ended its supervisor (signal %d)", sup->options.node,
                          (int)info.ssi_signo);
    sup_reap(sup);
}

static void wait_and_act(struct sup *sup, int timeout_ms)
{
    struct pollfd fds[3 + HD_ATTEMPT_RANKS_MAX] = {
        {.fd = sup->signal_fd, .events = POLLIN},
        {.fd = sup->listen_fd, .events = POLLIN},
        {.fd = sup->daemon_fd, .events = POLLIN},
    };

    for (int i = 0; i < sup->options.rank_count; i++) /* a negative one is passed over */
        fds[3 + i] = (struct pollfd){.fd = sup->ranks[i].link_fd, .events = POLLIN};
    if (poll(fds, (nfds_t)(3 + sup->options.rank_count), timeout_ms) <= 0)
        return;
    for (int i = 0; i < sup->options.rank_count; i++)
        if (fds[3 + i].revents)
            sup_hear_rank(sup, &sup->ranks[i]);
    if (fds[0].revents)
        take_signal(sup);
    if (fds[2].revents)
        sup_hear_daemon(sup);
    if (fds[1].revents)
        sup_accept_daemon(sup);
}

/* A machine that slept, or a supervisor that was stopped, knows nothing of the ranks' silence. */
static void forgive_silence(struct sup *sup, int64_t now_ms)
{
    for (int i = 0; i < sup->options.rank_count; i++)
        sup->ranks[i].heard_ms = now_ms;
}

void sup_run(struct sup *sup)
{
    int64_t before_ms, now_ms = hd_clock_now_ms();
    int left = 1;

    sup_warn_of_environment(sup);
    for (int i = 0; i < sup->options.rank_count && !sup->ending; i++)
        if (sup_start_rank(sup, &sup->ranks[i]))
            sup_begin_end(sup, HD_LINK_CAUSE_LAUNCH_FAILED, sup->ranks[i].rank, true, "%s",
                          hd_err_message());
    while (left && !(sup->ending && now_ms >= sup->give_up_at_ms)) {
        const bool all_exited = sup_all_exited(sup);

        before_ms = now_ms;
        wait_and_act(sup, all_exited ? SWEEP_TICK_MS : sup->ending ? ENDING_TICK_MS : TICK_MS);
        now_ms = hd_clock_now_ms();
        if (now_ms - before_ms > FROZEN_MS)
            forgive_silence(sup, now_ms);
        sup_retry_held(sup);
        climb(sup, now_ms);
        look_for_hang(sup, now_ms);
        sup_reap(sup);
        if (!sup_all_exited(sup))
            continue;
        if (!sup->ending && !sup->give_up_at_ms) /* a quiet end: what was left behind goes too */
            sup->give_up_at_ms = now_ms + HD_SUP_GONE_MS;
        left = sup_kill_descendants();
        if (left && now_ms >= sup->give_up_at_ms)
            break;
    }
    sup_finish(sup, left);
}
