#include "daemon/attempt/starve.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/proc.h"

enum { NS_PER_MS = 1000000 };

/* ---- sampling ---- */

static bool sample_thread(pid_t pid, pid_t tid, struct hd_starve_thread *ret_thread)
{
    struct hd_starve_thread thread = {.tid = tid};
    char path[96], line[512];
    const char *end;

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/schedstat", (int)pid, (int)tid);
    if (!hd_proc_read(path, line, sizeof line) ||
        sscanf(line, "%" SCNd64 " %" SCNd64, &thread.ran_ns, &thread.waited_ns) != 2)
        return false;
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)pid, (int)tid);
    if (!hd_proc_read(path, line, sizeof line))
        return false;
    end = strrchr(line, ')'); /* end of the thread's name, which may contain any character */
    thread.runnable = end && strncmp(end, ") R", 3) == 0;
    *ret_thread = thread;
    return true;
}

int hd_starve_sample(pid_t pid, struct hd_starve_thread ret_threads[HD_STARVE_THREADS_MAX])
{
    const struct dirent *entry;
    char path[64];
    int count = 0;
    DIR *tasks;

    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    tasks = opendir(path);
    while (tasks && count < HD_STARVE_THREADS_MAX && (entry = readdir(tasks)) != NULL) {
        const pid_t tid = (pid_t)strtol(entry->d_name, NULL, 10);

        if (tid > 0 && sample_thread(pid, tid, &ret_threads[count]))
            count++;
    }
    if (tasks)
        (void)closedir(tasks);
    return count;
}

/* ---- adding up ---- */

/* Returns how long a thread has waited between two samples, interval_ns apart, without waits that
 * were counted ahead. */
static int64_t waited_between(const struct hd_starve_thread *before,
                              const struct hd_starve_thread *now, int64_t interval_ns,
                              int64_t *ahead_ns)
{
    int64_t waited_ns = now->waited_ns - before->waited_ns;

    if (waited_ns == 0 && now->ran_ns == before->ran_ns && before->runnable && now->runnable) {
        *ahead_ns += interval_ns;
        return interval_ns;
    }
    waited_ns = waited_ns > *ahead_ns ? waited_ns - *ahead_ns : 0;
    *ahead_ns = 0;
    return waited_ns;
}

void hd_starve_note(struct hd_starve *starve, int64_t received_ms,
                    const struct hd_starve_thread *threads, int count, int64_t now_ms)
{
    const bool is_first = !starve->begin_ms || starve->received_ms != received_ms;
    const struct hd_starve before = *starve;
    int64_t starved_ns = 0;

    *starve = (struct hd_starve){.received_ms = received_ms,
                                 .begin_ms = is_first ? now_ms : before.begin_ms,
                                 .seen_ms = now_ms,
                                 .count = count};
    for (int i = 0; i < count; i++) {
        starve->threads[i].seen = threads[i];
        for (int k = 0; k < before.count && !is_first; k++) {
            if (before.threads[k].seen.tid != threads[i].tid)
                continue;
            starve->threads[i].ahead_ns = before.threads[k].ahead_ns;
            starve->threads[i].starved_ns =
                before.threads[k].starved_ns + waited_between(&before.threads[k].seen, &threads[i],
                                                              (now_ms - before.seen_ms) * NS_PER_MS,
                                                              &starve->threads[i].ahead_ns);
        }
        if (starve->threads[i].starved_ns > starved_ns)
            starved_ns = starve->threads[i].starved_ns;
    }
    starve->starved_ms = starved_ns / NS_PER_MS;
    /* limits the wait to the time since the first sample: an earlier part of it does not count */
    if (starve->starved_ms > now_ms - starve->begin_ms)
        starve->starved_ms = now_ms - starve->begin_ms;
}

int64_t hd_starve_ms(const struct hd_starve *starve, int64_t received_ms)
{
    return starve->received_ms == received_ms ? starve->starved_ms : 0;
}
