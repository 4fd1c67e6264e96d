/* bounds: limits what the ranks of this node may use: memory, processes, CPUs.
 *
 * The memory limit is for all ranks together: the host memory in their plans, which each rank
 * reports before it reserves any, plus a slack per rank. Until all have reported, it is the start
 * value that heddled passed. Three ways to enforce it (--group):
 *
 *   unit, group   the kernel does, in a control group of the ranks alone (isolation/cgroup.h)
 *   process       this supervisor measures its ranks' memory, and ends all ranks above the limit.
 *                 Shared pages count once: the sum of PSS, without mapped files, which the kernel
 *                 can drop. PSS is read only if the cheaper sum of RSS is above the limit.
 *
 * A rank is also the first process that the kernel kills when the machine has no memory left.
 */
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
#include "job/rewards.h"

enum {
    /* processes and threads allowed per rank for libraries; those for threads that compute are
     * added */
    PROCESSES_A_RANK = 512,
    PROCESSES_A_THREAD = 4, /* processes and threads allowed per computing thread of the job */
    LATE_KILL_MS = 3000,    /* ms by which the kernel's count of kills may be read late */
};

/* ---- numbers of /proc ---- */

/* Adds up the numbers after keys in a file with lines "key: number kB", in bytes. Some keys may be
 * missing. Returns false if the file cannot be read or has none of the keys. */
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

/* Returns the bytes of a process's memory that no file backs. exact: shared memory is divided among
 * its users, which requires a walk over its pages. */
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

/* Returns how many processes the kernel has killed on this machine since boot because memory ran
 * out. */
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

/* Returns the group that the ranks themselves are in. */
static const struct hd_cgroup *group_of_ranks(const struct sup *sup)
{
    return sup->bounds.ranks.dir_fd < 0 ? &sup->bounds.group : &sup->bounds.ranks;
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

/* Handles a failure to make the control group: returns HD_OK, to continue without it, unless
 * isolation is required. */
static enum hd_status give_up_group(struct sup *sup, enum hd_status why)
{
    if (strcmp(sup->options.isolation, "require") == 0)
        return hd_err_prefix(why, "this node requires isolation (isolation: require)");
    hd_log(HD_LOG_WARN, "%s; the supervisor measures its ranks' memory instead", hd_err_message());
    hd_cgroup_close(&sup->bounds.ranks);
    (void)hd_cgroup_remove(&sup->bounds.group);
    hd_cgroup_close(&sup->bounds.group);
    /* memory limit from the start, enforced by measuring the ranks' memory */
    sup->bounds.limit_bytes = sup->options.memory_bytes;
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
    if (!st && (hd_rewards_name_program(sup->job.rewards) ||
                hd_rewards_name_program(sup->job.tasks_check)))
        st = hd_cgroup_open(b->group.path, "ranks", &b->ranks);
    if (!st)
        hd_log(HD_LOG_INFO, "ranks are in the control group %s", group_of_ranks(sup)->path);
    b->group_kills = hd_cgroup_oom_kills(group_of_ranks(sup));
    return st ? give_up_group(sup, st) : HD_OK;
}

bool sup_bounds_join(const struct sup *sup)
{
    const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

    if (fd >= 0) {
        /* writes oom_score_adj 500 of 1000: the kernel kills ranks before heddled and this
         * supervisor */
        (void)!write(fd, "500", 3);
        (void)close(fd);
    }
    return sup->bounds.group.dir_fd < 0 || hd_cgroup_join(group_of_ranks(sup));
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

/* ---- measuring ---- */

/* Returns the rank whose memory is furthest above its plan; sets *ret_bytes to the memory of all
 * ranks. */
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

/* Writes a text about the memory limit, such as "they may take 3.1 GiB (their plan, and 2.0 GiB for
 * each beside it ..)". */
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
    /* kills the ranks without a pause before SIGKILL: they would take more memory meanwhile */
    sup->kill_at_ms = sup->term_at_ms;
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
    const int64_t kills = hd_cgroup_oom_kills(group_of_ranks(sup));
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
    hd_cgroup_close(&sup->bounds.ranks);
    if (hd_cgroup_remove(&sup->bounds.group))
        hd_log(HD_LOG_WARN, "%s", hd_err_message());
    hd_cgroup_close(&sup->bounds.group);
}
