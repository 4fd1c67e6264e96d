/* process: metrics that a program exports about itself, from /proc/self. */
#include <dirent.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/proc.h"
#include "prometheus/prometheus.h"

static bool read_start(double *ret_unix_s)
{
    struct timespec boot, wall;
    struct hd_proc_stat stat;

    if (hd_proc_stat_read(getpid(), &stat) || clock_gettime(CLOCK_BOOTTIME, &boot) != 0 ||
        clock_gettime(CLOCK_REALTIME, &wall) != 0)
        return false;
    *ret_unix_s = (double)wall.tv_sec - (double)boot.tv_sec +
                  1e-9 * (double)(wall.tv_nsec - boot.tv_nsec) +
                  (double)stat.start_ticks / (double)sysconf(_SC_CLK_TCK);
    return true;
}

static bool count_descriptors(double *ret_count)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = -3; /* not counted: ".", ".." and the descriptor of the opened folder */

    if (!dir)
        return false;
    while (readdir(dir))
        count++;
    (void)closedir(dir);
    *ret_count = count;
    return true;
}

void hd_prom_add_process(struct hd_text *out, const char *program, const char *version)
{
    const struct hd_prom_pair pairs[] = {{"program", program}, {"version", version}};
    struct hd_proc_stat stat;
    struct rusage usage;
    struct rlimit limit;
    double value;

    hd_prom_begin(out, HD_PROM_build_info);
    hd_prom_add_labels(out, HD_PROM_build_info, "", pairs, 2, 1);
    if (read_start(&value))
        hd_prom_add_one(out, HD_PROM_process_start_timestamp_seconds, value);
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        hd_prom_add_one(out, HD_PROM_process_cpu_seconds_total,
                        (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                            1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec));
    if (!hd_proc_stat_read(getpid(), &stat))
        hd_prom_add_one(out, HD_PROM_process_resident_memory_bytes,
                        (double)stat.resident_pages * (double)sysconf(_SC_PAGESIZE));
    if (count_descriptors(&value))
        hd_prom_add_one(out, HD_PROM_process_open_fds, value);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        hd_prom_add_one(out, HD_PROM_process_max_fds, (double)limit.rlim_cur);
}

void hd_prom_add_listener(struct hd_text *out, const uint64_t answered[6], uint64_t connections)
{
    static const char *const codes[] = {"none", "1xx", "2xx", "3xx", "4xx", "5xx"};

    hd_prom_begin(out, HD_PROM_http_requests_total);
    for (int i = 0; i < 6; i++)
        hd_prom_add_label(out, HD_PROM_http_requests_total, "code", codes[i], (double)answered[i]);
    hd_prom_add_one(out, HD_PROM_http_connections, (double)connections);
}
