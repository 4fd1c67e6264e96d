#include "daemon/attempt/attempt.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/proc.h"
#include "daemon/isolation/cgroup.h"
#include "link/link.h"

enum { RECORD_BYTES_MAX = HD_FRAME_BYTES_MAX, PROC_FILE_MAX = 1 << 20 };

void hd_attempt_run_dir(struct hd_text *ret_path, const char *attempt_dir, const char *node)
{
    hd_text_add(ret_path, "%s/nodes/%s", attempt_dir, node);
}

void hd_attempt_log_path(struct hd_text *ret_path, const char *attempt_dir, int64_t rank)
{
    hd_text_add(ret_path, "%s/logs/rank-%" PRId64 ".log", attempt_dir, rank);
}

enum hd_status hd_attempt_boot_id(char ret_boot_id[HD_ATTEMPT_BOOT_MAX])
{
    struct hd_text text = {0};
    enum hd_status st = hd_file_read("/proc/sys/kernel/random/boot_id", 4096, &text);

    if (!st && (text.len_bytes < 8 || text.len_bytes >= HD_ATTEMPT_BOOT_MAX))
        st = hd_err(HD_CORRUPT, "the kernel's boot id has an unexpected length");
    if (!st) {
        memcpy(ret_boot_id, text.data, text.len_bytes + 1);
        ret_boot_id[strcspn(ret_boot_id, "\n")] = '\0';
    }
    hd_text_free(&text);
    return st;
}

enum hd_status hd_attempt_process_find(pid_t pid, struct hd_attempt_process *ret_process)
{
    struct hd_attempt_process process = {.pid = pid};
    struct hd_proc_stat fields;
    enum hd_status st = hd_attempt_boot_id(process.boot_id);

    if (!st)
        st = hd_proc_stat_read(pid, &fields);
    if (st)
        return st == HD_IO ? hd_err(HD_NOT_FOUND, "there is no process %d", (int)pid) : st;
    if (fields.state == 'Z' || fields.state == 'X')
        return hd_err(HD_NOT_FOUND, "process %d has ended", (int)pid);
    process.start_ticks = fields.start_ticks;
    *ret_process = process;
    return HD_OK;
}

bool hd_attempt_process_alive(const struct hd_attempt_process *process)
{
    struct hd_attempt_process now;

    return hd_attempt_process_find(process->pid, &now) == HD_OK &&
           now.start_ticks == process->start_ticks && strcmp(now.boot_id, process->boot_id) == 0;
}

bool hd_attempt_process_is_stopped(const struct hd_attempt_process *process)
{
    struct hd_proc_stat fields;

    return hd_proc_stat_read(process->pid, &fields) == HD_OK && fields.state == 'T';
}

static enum hd_status record_path(char ret_path[PATH_MAX], const char *run_dir, const char *name)
{
    return snprintf(ret_path, PATH_MAX, "%s/%s", run_dir, name) < PATH_MAX
               ? HD_OK
               : hd_err(HD_INVALID, "the path %s/%s is too long", run_dir, name);
}

enum hd_status hd_attempt_process_write(const char *run_dir,
                                        const struct hd_attempt_process *process)
{
    char path[PATH_MAX], text[128];
    enum hd_status st = record_path(path, run_dir, HD_ATTEMPT_PROCESS_FILE);
    int n = snprintf(text, sizeof text, "pid %d\nstart %" PRId64 "\nboot %s\n", (int)process->pid,
                     process->start_ticks, process->boot_id);

    return st ? st : hd_file_write_atomic(path, text, (size_t)n, HD_ATTEMPT_FILE_MODE);
}

enum hd_status hd_attempt_process_read(const char *run_dir, struct hd_attempt_process *ret_process)
{
    struct hd_attempt_process process = {0};
    struct hd_text text = {0};
    char path[PATH_MAX];
    enum hd_status st = record_path(path, run_dir, HD_ATTEMPT_PROCESS_FILE);

    if (!st)
        st = hd_file_read(path, 4096, &text);
    if (!st && sscanf(text.data, "pid %d\nstart %" SCNd64 "\nboot %39s\n", &process.pid,
                      &process.start_ticks, process.boot_id) != 3)
        st = hd_err(HD_CORRUPT, "%s is not a supervisor's record", path);
    hd_text_free(&text);
    if (!st)
        *ret_process = process;
    return st;
}

static enum hd_status write_record(const char *run_dir, const char *name,
                                   const struct hd_link_report *report)
{
    uint8_t bytes[sizeof *report + 256];
    size_t n = hd_link_report_encode(report, bytes, sizeof bytes);
    char path[PATH_MAX];
    enum hd_status st = record_path(path, run_dir, name);

    return st ? st : hd_file_write_atomic(path, bytes, n, HD_ATTEMPT_FILE_MODE);
}

static enum hd_status read_record(const char *run_dir, const char *name, enum hd_link_kind kind,
                                  struct hd_link_report *ret_report)
{
    struct hd_text text = {0};
    struct hd_link_report report;
    struct hd_frame frame;
    char path[PATH_MAX];
    size_t size;
    enum hd_status st = record_path(path, run_dir, name);

    if (!st)
        st = hd_file_read(path, RECORD_BYTES_MAX, &text);
    if (!st) {
        st = hd_frame_decode((const uint8_t *)text.data, text.len_bytes, &frame, &size);
        if (!st)
            st = hd_link_report_decode(&frame, &report);
        if (!st && (report.kind != kind || size != text.len_bytes))
            st = hd_err(HD_CORRUPT, "there is a %s report", hd_link_kind_name(report.kind));
        if (st)
            st = hd_err(HD_CORRUPT, "%s is not a valid record", path);
    }
    hd_text_free(&text);
    if (!st)
        *ret_report = report;
    return st;
}

enum hd_status hd_attempt_write_exit(const char *run_dir, const struct hd_link_report *exit)
{
    char name[48];

    (void)snprintf(name, sizeof name, "rank-%" PRId64 ".exit", exit->rank);
    return write_record(run_dir, name, exit);
}

enum hd_status hd_attempt_read_exit(const char *run_dir, int64_t rank,
                                    struct hd_link_report *ret_exit)
{
    char name[48];

    (void)snprintf(name, sizeof name, "rank-%" PRId64 ".exit", rank);
    return read_record(run_dir, name, HD_LINK_EXIT, ret_exit);
}

enum hd_status hd_attempt_write_end(const char *run_dir, const struct hd_link_report *end)
{
    return write_record(run_dir, HD_ATTEMPT_END_FILE, end);
}

enum hd_status hd_attempt_read_end(const char *run_dir, struct hd_link_report *ret_end)
{
    return read_record(run_dir, HD_ATTEMPT_END_FILE, HD_LINK_END, ret_end);
}

enum hd_status hd_attempt_write_group(const char *run_dir, const char *group)
{
    char path[PATH_MAX];
    enum hd_status st = record_path(path, run_dir, HD_ATTEMPT_GROUP_FILE);

    return st ? st : hd_file_write_atomic(path, group, strlen(group), HD_ATTEMPT_FILE_MODE);
}

/* Removes the control group that a killed supervisor left. The group must be named after the
 * attempt, so that a wrong record cannot remove another group. */
static enum hd_status clear_group(const char *run_dir, int64_t job, int64_t attempt)
{
    struct hd_text group = {0};
    char path[PATH_MAX], name[64];
    enum hd_status st = record_path(path, run_dir, HD_ATTEMPT_GROUP_FILE);

    (void)snprintf(name, sizeof name, "/heddle-%" PRId64 "-%" PRId64, job, attempt);
    if (!st && hd_file_read(path, PATH_MAX, &group) == HD_OK && hd_text_ends(group.data, name))
        st = hd_cgroup_clear(group.data);
    hd_text_free(&group);
    return st;
}

/* Returns true if the environment of the process has exactly HEDDLE_RUN_DIR=run_dir. */
static bool names_run_dir(pid_t pid, const char *run_dir)
{
    struct hd_text text = {0};
    char path[64], want[PATH_MAX + 32];
    bool found = false;

    (void)snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    (void)snprintf(want, sizeof want, HD_ATTEMPT_DIR_ENV "=%s", run_dir);
    if (hd_file_read(path, PROC_FILE_MAX, &text) == HD_OK)
        for (size_t at = 0; at < text.len_bytes && !found; at += strlen(text.data + at) + 1)
            found = strcmp(text.data + at, want) == 0;
    hd_text_free(&text);
    return found;
}

int hd_attempt_kill_leftovers(const char *run_dir, pid_t supervisor)
{
    DIR *proc = opendir("/proc");
    const struct dirent *entry;
    struct hd_proc_stat fields;
    int found = 0;

    while (proc && (entry = readdir(proc))) {
        const pid_t pid = atoi(entry->d_name);

        if (pid <= 1 || pid == getpid() || hd_proc_stat_read(pid, &fields) || fields.state == 'Z' ||
            fields.session != supervisor || !names_run_dir(pid, run_dir))
            continue;
        found++;
        (void)kill(pid, SIGKILL);
    }
    if (proc)
        (void)closedir(proc);
    return found;
}

/* Sets *ret_exit to the earliest failed exit on record. HD_NOT_FOUND: no rank failed. */
static enum hd_status first_failed_exit(const char *run_dir, struct hd_link_report *ret_exit)
{
    enum hd_status st = hd_err(HD_NOT_FOUND, "no rank has failed in %s", run_dir);
    DIR *d = opendir(run_dir);
    struct hd_link_report exit = {0};
    const struct dirent *entry;
    int64_t rank;
    char tail;

    while (d && (entry = readdir(d))) {
        if (sscanf(entry->d_name, "rank-%" SCNd64 ".exi%c", &rank, &tail) != 2 || tail != 't' ||
            hd_attempt_read_exit(run_dir, rank, &exit))
            continue;
        if (!exit.exit.signal &&
            (exit.exit.code == HD_LINK_EXIT_COMPLETED || exit.exit.code == HD_LINK_EXIT_EARLY ||
             exit.exit.code == HD_LINK_EXIT_STOPPED))
            continue;
        if (!st && exit.wall_ms >= ret_exit->wall_ms)
            continue;
        *ret_exit = exit;
        st = HD_OK;
    }
    if (d)
        (void)closedir(d);
    return st;
}

/* Derives the end from the records. `process`: NULL if the supervisor left no record. */
static void decide_end(const char *run_dir, const struct hd_attempt_process *process,
                       struct hd_link_end *ret_end)
{
    struct hd_link_report exit = {0};
    char boot_id[HD_ATTEMPT_BOOT_MAX];

    ret_end->first_rank = -1;
    if (!process) {
        ret_end->cause = HD_LINK_CAUSE_LAUNCH_FAILED;
        (void)snprintf(ret_end->message, sizeof ret_end->message,
                       "heddle-supervisor did not start; see %.900s/" HD_ATTEMPT_LOG_FILE, run_dir);
    } else if (first_failed_exit(run_dir, &exit) == HD_OK) {
        ret_end->cause = exit.exit.code == HD_LINK_EXIT_DIVERGED  ? HD_LINK_CAUSE_DIVERGED
                         : exit.exit.code == HD_LINK_EXIT_STORAGE ? HD_LINK_CAUSE_STORAGE
                                                                  : HD_LINK_CAUSE_RANK_EXIT;
        ret_end->first_rank = exit.rank;
        ret_end->code = exit.exit.code;
        ret_end->signal = exit.exit.signal;
        ret_end->bad_input = exit.exit.code == HD_LINK_EXIT_BAD_INPUT;
        memcpy(ret_end->operation, exit.exit.operation, sizeof ret_end->operation);
        memcpy(ret_end->message, exit.exit.message, sizeof ret_end->message);
    } else if (hd_attempt_boot_id(boot_id) == HD_OK && strcmp(boot_id, process->boot_id) != 0) {
        ret_end->cause = HD_LINK_CAUSE_NODE_LOST;
        (void)snprintf(ret_end->message, sizeof ret_end->message,
                       "the machine was restarted while the attempt ran");
    } else {
        ret_end->cause = HD_LINK_CAUSE_RANK_EXIT;
        (void)snprintf(ret_end->message, sizeof ret_end->message,
                       "heddle-supervisor (process %d) died, and its ranks with it",
                       (int)process->pid);
    }
}

enum hd_status hd_attempt_conclude(const char *run_dir, int64_t job, int64_t attempt, bool is_gone,
                                   struct hd_link_report *ret_end)
{
    struct hd_link_report end = {.kind = HD_LINK_END, .job = job, .attempt = attempt, .rank = -1};
    struct hd_attempt_process process;
    char path[PATH_MAX];
    enum hd_status st, known;
    int lock_fd;

    st = record_path(path, run_dir, HD_ATTEMPT_LOCK_FILE);
    if (!st)
        /* locks the run directory, so that no other supervisor begins meanwhile */
        st = hd_file_lock(path, &lock_fd);
    /* the holder of the lock is another user's process, which does not belong to the attempt */
    if (st == HD_CONFLICT && is_gone) {
        lock_fd = -1;
        st = HD_OK;
    }
    if (st)
        return st;
    known = hd_attempt_process_read(run_dir, &process);
    if (hd_attempt_read_end(run_dir, ret_end) == HD_OK)
        goto out;
    if (!is_gone && known == HD_OK && hd_attempt_kill_leftovers(run_dir, process.pid)) {
        st = hd_err(HD_TIMEOUT, "processes of %s are still being killed", run_dir);
        goto out;
    }
    st = is_gone ? HD_OK : clear_group(run_dir, job, attempt);
    if (st)
        goto out;
    end.wall_ms = hd_clock_wall_ms();
    decide_end(run_dir, known == HD_OK ? &process : NULL, &end.end);
    st = hd_attempt_write_end(run_dir, &end);
    if (!st)
        *ret_end = end;
out:
    if (lock_fd >= 0)
        (void)close(lock_fd);
    return st;
}
