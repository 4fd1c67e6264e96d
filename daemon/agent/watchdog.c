/* watchdog: watches supervisors: one that does not answer gets SIGCONT, and finally SIGKILL.
 *
 *   PING every PING_MS --no answer for SILENT_MS--> SIGCONT, and again every SILENT_MS
 *     --no answer and no rank makes a step for supervisor_lost_ms, without the time in which it
 *       waited for a processor--> SIGKILL
 *   kill wanted --> SIGCONT if it is stopped --not ended after KILL_MS--> SIGKILL
 *
 * The ranks of a killed supervisor get SIGKILL from the kernel (PR_SET_PDEATHSIG); the end is then
 * derived as for any dead supervisor (hd_attempt_conclude), which also verifies that no process is
 * left.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "daemon/agent/job_user.h"
#include "daemon/agent/local.h"

enum {
    PING_MS = 5000,
    SILENT_MS = 15000, /* time without any message after which a supervisor counts as silent, ms */
    /* time after a kill was sent, ms; a working supervisor has ended its ranks well before */
    KILL_MS = 15000,
    STARVED_CHECK_MS = 1000,
    /* shortest time that `problem` is kept, ms, so that an observed set contains it */
    REPORTED_MS = 1000,
    /* pause between two checks, ms, that means that heddled itself was stopped, so that a
     * supervisor's silence means nothing */
    PAUSED_MS = 5000,
};

static void set_problem(struct agent_attempt *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void set_problem(struct agent_attempt *l, const char *fmt, ...)
{
    char text[sizeof l->problem];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (strcmp(text, l->problem) == 0)
        return;
    memcpy(l->problem, text, sizeof text);
    if (l->problem[0])
        hd_log(HD_LOG_WARN, "job %" PRId64 " attempt %" PRId64 ": %s", l->job, l->attempt,
               l->problem);
    l->all->on_change(l->all->user, l);
}

void watchdog_received(struct agent_attempt *l, int64_t now_ms)
{
    l->received_ms = now_ms;
    l->continued_ms = 0;
    /* `problem` is kept for now; the next answer of the supervisor clears it. */
    if (!l->problem[0] || now_ms - l->reported_ms < REPORTED_MS)
        return;
    hd_log(HD_LOG_INFO, "job %" PRId64 " attempt %" PRId64 ": heddle-supervisor answers again",
           l->job, l->attempt);
    set_problem(l, "%s", "");
}

/* Returns the size of the logs of all ranks of the attempt, bytes; a rank writes a line for each
 * step. -1: unreadable. */
static int64_t log_bytes(const struct agent_attempt *l)
{
    struct hd_text path = {0};
    const struct dirent *entry;
    struct stat info;
    int64_t sum = 0;
    DIR *d;

    hd_text_add(&path, "%s/logs", l->attempt_dir);
    d = path.failed ? NULL : opendir(path.data);
    hd_text_free(&path);
    if (!d)
        return -1;
    while ((entry = readdir(d)))
        if (fstatat(dirfd(d), entry->d_name, &info, 0) == 0 && S_ISREG(info.st_mode))
            sum += info.st_size;
    (void)closedir(d);
    return sum;
}

static void note_steps(struct agent_attempt *l, int64_t now_ms)
{
    const int64_t bytes = log_bytes(l);

    if (l->continued_ms == 0) /* first check: the ranks' last step may be as old */
        l->stepped_ms = l->received_ms;
    else if (bytes != l->log_bytes)
        l->stepped_ms = now_ms;
    l->log_bytes = bytes;
}

/* Finds the supervisor's process. Returns false if none is recorded, or it has ended. A record
 * written by another user is not trusted: job_user_signal asks for the unit instead. */
static bool find_supervisor(const struct agent_attempt *l, struct hd_attempt_process *ret_process)
{
    if (l->run_as) {
        *ret_process = (struct hd_attempt_process){0};
        (void)hd_attempt_process_read(l->run_dir, ret_process);
        return true;
    }
    return hd_attempt_process_read(l->run_dir, ret_process) == HD_OK &&
           hd_attempt_process_alive(ret_process);
}

/* Returns the time that the silent supervisor has waited for a processor, ms, counted from
 * SILENT_MS after its last message. */
static int64_t note_starved(struct agent_attempt *l, pid_t pid, int64_t now_ms)
{
    struct hd_starve_thread threads[HD_STARVE_THREADS_MAX];

    if (l->starve.received_ms != l->received_ms || now_ms - l->starve.seen_ms >= STARVED_CHECK_MS)
        hd_starve_note(&l->starve, l->received_ms, threads, hd_starve_sample(pid, threads), now_ms);
    return hd_starve_ms(&l->starve, l->received_ms);
}

static void watch_silence(struct agent_attempt *l, int64_t now_ms)
{
    const int64_t silent_ms = now_ms - l->received_ms, lost_ms = l->all->supervisor_lost_ms;
    struct hd_attempt_process process;
    int64_t starved_ms;

    if (silent_ms < SILENT_MS || !find_supervisor(l, &process))
        return;
    note_steps(l, now_ms);
    starved_ms = note_starved(l, process.pid, now_ms);
    if (silent_ms - starved_ms >= lost_ms && now_ms - l->stepped_ms >= lost_ms) {
        set_problem(l,
                    "heddle-supervisor (process %d) has not answered for %" PRId64
                    " s and its ranks make no steps; they are killed",
                    (int)process.pid, silent_ms / 1000);
        job_user_signal(l, process.pid, SIGKILL);
    } else if (!l->continued_ms || now_ms - l->continued_ms >= SILENT_MS) {
        l->continued_ms = now_ms;
        if (!l->problem[0])
            l->reported_ms = now_ms;
        job_user_signal(l, process.pid, SIGCONT);
        set_problem(
            l,
            "heddle-supervisor (process %d) does not answer; it was sent SIGCONT in case it "
            "is stopped",
            (int)process.pid);
    }
}

static void watch_kill(struct agent_attempt *l, int64_t now_ms)
{
    struct hd_attempt_process process;
    const bool first = !l->kill_ms;

    if (first)
        l->kill_ms = now_ms;
    if ((!first && now_ms - l->kill_ms < KILL_MS) || !find_supervisor(l, &process))
        return;
    if (first) {
        /* a running supervisor gets no SIGCONT: it may be ending under a leak checker or debugger,
         * which would wait forever for a tracee that SIGCONT resumes */
        if (hd_attempt_process_is_stopped(&process))
            job_user_signal(l, process.pid, SIGCONT);
        return;
    }
    set_problem(l,
                "heddle-supervisor (process %d) has not ended its ranks within %d s; all are "
                "killed",
                (int)process.pid, KILL_MS / 1000);
    job_user_signal(l, process.pid, SIGKILL);
    l->kill_ms = now_ms;
}

bool watch_wants_ping(struct agent_attempt *l, int64_t now_ms)
{
    if (!l->answers_pings || now_ms - l->pinged_ms < PING_MS)
        return false;
    l->pinged_ms = now_ms;
    return true;
}

void watch_supervisor(struct agent_attempt *l, int64_t now_ms)
{
    if (now_ms - l->watched_ms > PAUSED_MS)
        l->received_ms = now_ms;
    l->watched_ms = now_ms;
    if (l->kill_wanted)
        watch_kill(l, now_ms);
    else if (l->answers_pings || l->fd < 0 || !l->greeted)
        watch_silence(l, now_ms);
}
