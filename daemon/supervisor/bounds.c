/* What the ranks of this node may take: memory, processes, processors.
 *
 * The bound of memory is for all ranks together: what their plans have in host memory, as each
 * tells before it takes any, and a slack for each. Until all have told, it is what heddled gave for
 * the start. Three ways to hold it:
 *
 *   unit, group   the kernel does, in a control group of the ranks alone (isolation/cgroup.h)
 *   process       this supervisor looks at its ranks' memory, and ends all when it is too much.
 * What of a page is shared counts once: the sum of PSS, without mapped files, which the kernel can
 * drop. PSS is only asked for where the cheaper sum of RSS is too much.
 *
 * A rank is also the first that the kernel kills when the machine has no memory left. */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/isolation/cpus.h"
#include "daemon/supervisor/supervisor.h"

enum {
    PROCESSES_A_RANK = 512, /* threads of libraries; those that compute come to it */
    PROCESSES_A_THREAD = 4, /* of the job */
    LATE_KILL_MS = 3000,    /* the kernel's count of kills may be read so late */
};

/* ---- numbers of /proc ---- */

/* The sum of the numbers behind keys of a file with lines "key: number kB", in bytes. Keys with
 * fewer than all are fine; false: the file cannot be read, or has none of them. */
static bool read_kilobytes(const char *path, const char *const keys[2], int64_t *ret_bytes)
{
    FILE *file = fopen(path, "re");
    char line[256];
    int found = 0;

    *ret_bytes = 0;
    while (file && found < 2 && fgets(line, sizeof line, file))
        for (int k = 0; k < 2; k++)
            if (hd_text_starts(line, keys[k])) {
                *ret_bytes += 1024 * strtoll(line + strlen(keys[k]), NULL, 10);
                found++;
            }
    if (file)
        (void)fclose(file);
    return found > 0;
}

/* Memory of a process that no file backs. exact: what is shared is divided by those that share it;
 * that costs a walk over its pages. */
static int64_t memory_of(pid_t pid, bool exact)
{
    static const char *const rss[] = {"RssAnon:", "RssShmem:"};
    static const char *const pss[] = {"Pss_Anon:", "Pss_Shmem:"};
    char path[64];
    int64_t bytes;

    (void)snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    if (exact && read_kilobytes(path, pss, &bytes))
        return bytes;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    return read_kilobytes(path, rss, &bytes) ? bytes : 0;
}

/* Processes that the kernel has killed on this machine since its boot, for want of memory. */
static int64_t machine_kills(void)
{
    FILE *file = fopen("/proc/vmstat", "re");
    char line[128];
    int64_t kills = 0;

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "oom_kill %" SCNd64, &kills) == 1)
            break;
    if (file)
        (void)fclose(file);
    return kills;
}

/* ---- opening ---- */

static enum hd_status open_group(struct sup *sup)
{
    struct sup_bounds *b = &sup->bounds;
    char name[64];

    (void)snprintf(name, sizeof name, "heddle-%" PRId64 "-%" PRId64, sup->job.job_id,
                   sup->job.attempt);
    return strcmp(sup->options.group, "unit") == 0
               ? hd_cgroup_open_in_unit(name, &b->group)
               : hd_cgroup_open(sup->options.group, name, &b->group);
}

static enum hd_status set_limit(struct sup *sup, int64_t bytes)
{
    struct sup_bounds *b = &sup->bounds;
    const int64_t processes =
        sup->options.rank_count * (PROCESSES_A_RANK + PROCESSES_A_THREAD * sup->job.threads);

    b->limit_bytes = bytes;
    return b->group.dir_fd < 0 ? HD_OK
                               : hd_cgroup_limit(&b->group, bytes, processes,
                                                 sup->options.cpus[0] ? sup->options.cpus : NULL);
}

/* Without its group an attempt runs all the same, unless isolation is demanded. */
static enum hd_status give_up_group(struct sup *sup, enum hd_status why)
{
    if (strcmp(sup->options.isolation, "require") == 0)
        return hd_err_prefix(why, "this node demands isolation (isolation: require)");
    hd_log(HD_LOG_WARN, "%s; the supervisor looks at its ranks' memory instead", hd_err_message());
    (void)hd_cgroup_remove(&sup->bounds.group);
    hd_cgroup_close(&sup->bounds.group);
    sup->bounds.limit_bytes = sup->options.memory_bytes; /* from the start, by looking */
    return HD_OK;
}

enum hd_status sup_bounds_open(struct sup *sup)
{
    struct sup_bounds *b = &sup->bounds;
    enum hd_status st = HD_OK;

    if (strcmp(sup->options.isolation, "off") == 0)
        return HD_OK;
    b->on = true;
    b->machine_kills = machine_kills();
    if (sup->options.cpus[0])
        st = hd_cpus_use(sup->options.cpus);
    if (st || !sup->options.group[0])
        return st ? st : set_limit(sup, sup->options.memory_bytes);
    st = open_group(sup);
    if (!st)
        st = hd_attempt_write_group(sup->options.run_dir, b->group.path);
    if (!st)
        st = set_limit(sup, sup->options.memory_bytes);
    if (!st)
        hd_log(HD_LOG_INFO, "ranks are in the control group %s", b->group.path);
    b->group_kills = hd_cgroup_oom_kills(&b->group);
    return st ? give_up_group(sup, st) : HD_OK;
}

bool sup_bounds_join(const struct sup *sup)
{
    const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

    if (fd >= 0) {
        (void)!write(fd, "500", 3); /* of 1000: heddled and this supervisor outlive the ranks */
        (void)close(fd);
    }
    return sup->bounds.group.dir_fd < 0 || hd_cgroup_join(&sup->bounds.group);
}

/* ---- the plan ---- */

void sup_bounds_planned(struct sup *sup, struct sup_rank *rank, int64_t bytes)
{
    int64_t sum = 0;
    char text[32];

    if (rank->planned_bytes || bytes <= 0)
        return;
    rank->planned_bytes = bytes;
    for (int i = 0; i < sup->options.rank_count; i++) {
        if (!sup->ranks[i].planned_bytes)
            return;
        sum += sup->ranks[i].planned_bytes + sup->options.slack_bytes;
    }
    if (!sup->bounds.on)
        return;
    if (set_limit(sup, sum))
        hd_log(HD_LOG_WARN, "%s", hd_err_message());
    hd_text_format_bytes(sum, text);
    hd_log(HD_LOG_INFO, "the ranks of this node may take %s of memory", text);
}

/* ---- what they take ---- */

/* The rank that is furthest above its plan; as *ret_bytes what all take. */
static int64_t measure(const struct sup *sup, bool exact, int64_t *ret_bytes)
{
    int64_t most = INT64_MIN, rank = -1;

    *ret_bytes = 0;
    for (int i = 0; i < sup->options.rank_count; i++) {
        const struct sup_rank *r = &sup->ranks[i];
        const int64_t bytes = r->pid ? memory_of(r->pid, exact) : 0;

        *ret_bytes += bytes;
        if (bytes - r->planned_bytes > most) {
            most = bytes - r->planned_bytes;
            rank = r->rank;
        }
    }
    return rank;
}

/* "the ranks of this node may take 3.1 GiB (their plan, and 2.0 GiB for each beside it)" */
static void describe_limit(const struct sup *sup, char *ret_text, size_t size)
{
    char limit[32], slack[32];
    bool planned = true;

    for (int i = 0; i < sup->options.rank_count; i++)
        planned &= sup->ranks[i].planned_bytes > 0;
    hd_text_format_bytes(sup->bounds.limit_bytes, limit);
    hd_text_format_bytes(sup->options.slack_bytes, slack);
    if (planned)
        (void)snprintf(ret_text, size,
                       "they may take %s (their plan, and %s for each beside it: memory_slack of "
                       "the node)",
                       limit, slack);
    else
        (void)snprintf(ret_text, size,
                       "they may take %s until their plan is known (their devices' share of the "
                       "machine's memory, and memory_slack of the node)",
                       limit);
}

static void end_for_memory(struct sup *sup, int64_t rank, int64_t bytes)
{
    char taken[32], limit[256];

    hd_text_format_bytes(bytes, taken);
    describe_limit(sup, limit, sizeof limit);
    sup_begin_end(sup, HD_LINK_CAUSE_OOM, rank, true,
                  "the ranks on node %s took %s of memory, most beside its plan rank %" PRId64
                  "; %s",
                  sup->options.node, taken, rank, limit);
    sup->kill_at_ms = sup->term_at_ms; /* they are not waited for: they take more meanwhile */
}

bool sup_bounds_is_watched(const struct sup *sup)
{
    return sup->bounds.on && sup->bounds.limit_bytes > 0 && !sup->ending &&
           !(sup->bounds.group.dir_fd >= 0 && sup->bounds.group.has & HD_CGROUP_MEMORY);
}

void sup_bounds_check(struct sup *sup, int64_t now_ms)
{
    struct sup_bounds *b = &sup->bounds;
    const int64_t kills = b->on ? machine_kills() : 0;
    int64_t bytes, rank;

    if (kills != b->machine_kills) {
        b->machine_kills = kills;
        b->machine_killed_ms = now_ms;
    }
    if (!sup_bounds_is_watched(sup))
        return;
    (void)measure(sup, false, &bytes);
    if (bytes <= b->limit_bytes)
        return;
    rank = measure(sup, true, &bytes);
    if (bytes > b->limit_bytes)
        end_for_memory(sup, rank, bytes);
}

bool sup_bounds_was_oom(struct sup *sup, const struct sup_rank *rank, char *ret_text, size_t size)
{
    struct sup_bounds *b = &sup->bounds;
    const int64_t kills = hd_cgroup_oom_kills(&b->group);
    char limit[256];

    if (rank->signal != SIGKILL || rank->is_ending || !b->on)
        return false;
    if (kills > b->group_kills) {
        describe_limit(sup, limit, sizeof limit);
        (void)snprintf(ret_text, size,
                       "the kernel killed rank %" PRId64
                       " because the ranks on node %s took too much memory; %s",
                       rank->rank, sup->options.node, limit);
        return true;
    }
    sup_bounds_check(sup, hd_clock_now_ms());
    if (!b->machine_killed_ms || hd_clock_now_ms() - b->machine_killed_ms > LATE_KILL_MS)
        return false;
    (void)snprintf(
        ret_text, size,
        "the kernel killed rank %" PRId64
        " because node %s had no memory left; see the kernel's log (dmesg) for what took "
        "it",
        rank->rank, sup->options.node);
    return true;
}

/* ---- the end ---- */

int sup_bounds_kill(struct sup *sup)
{
    if (hd_cgroup_is_empty(&sup->bounds.group))
        return 0;
    hd_cgroup_kill(&sup->bounds.group);
    return 1;
}

void sup_bounds_close(struct sup *sup)
{
    if (hd_cgroup_remove(&sup->bounds.group))
        hd_log(HD_LOG_WARN, "%s", hd_err_message());
    hd_cgroup_close(&sup->bounds.group);
}
